"""An image model of timm beside a language model: two towers, each with a head that is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.models.blocks.bert import Bert
from counterfoil.models.blocks.timm_library import PREFIX as PREFIX
from counterfoil.models.blocks.timm_model import TimmModel, timm_format
from counterfoil.models.clip import longest_text
from counterfoil.models.vse import VSE
from counterfoil.spec import Spec, late, of, part
from counterfoil.train.optimise import Group
from counterfoil.train.plan import TrainPlan

WIDTH = 512
LONGEST = 64  # pieces of a caption
RATE, SLOWER = 1e-3, 0.01  # of the heads, and how much slower the towers move


@final
@dataclass(frozen=True, slots=True)
class TimmPair:
    """An image model of timm and a language model of Hugging Face.

    Attributes:
        name: as in ``timm:resnet50+bert-base-uncased``.
        drawn: whether a part of its weights is drawn at random: its heads are.

    Raises:
        ValueError: a half is missing.
    """

    name: str
    drawn: bool = True

    def __post_init__(self) -> None:
        if not all(self._halves):
            raise ValueError(
                f"{self.name!r} names no two towers; give an image model of timm and a language "
                f"model, as in '{PREFIX}resnet50+bert-base-uncased'"
            )

    @property
    def spec(self) -> Spec[Matcher]:
        """The call that builds it as it is: two pretrained towers, and heads at random."""
        return self._built(pretrained=True, config=None, trained=True)

    def trained(self, *, frozen: bool, lora: int) -> Spec[Matcher]:
        """The call that builds it for training.

        Args:
            frozen: only the heads are trained.
            lora: rank of adapters.

        Raises:
            ValueError: adapters are wanted.
        """
        if lora:
            raise ValueError(f"{self.name} cannot have adapters; tune it full, or frozen")
        return self._built(pretrained=late("pretrained"), config=late("config"), trained=not frozen)

    def plan(self, plan: TrainPlan) -> TrainPlan:
        """Heads begin at random and learn fast, the towers slowly."""
        towers = tuple(Group(match=f"{side}.body.*", rate=SLOWER) for side in ("image", "text"))
        return replace(plan, optimiser=replace(plan.optimiser, rate=RATE, groups=towers))

    @property
    def lens(self) -> LensPlan:
        """What it sees: pictures and texts as its towers were pretrained on."""
        image, text = self._halves
        form = timm_format(image)
        return LensPlan(
            images="pixels",
            size=form.size,
            mean=form.mean,
            deviation=form.deviation,
            texts=text,
            longest=min(LONGEST, longest_text(text)),
        )

    @property
    def _halves(self) -> tuple[str, str]:
        image, _, text = self.name.removeprefix(PREFIX).partition("+")
        return image, text

    def _built(self, *, pretrained: Any, config: Any, trained: bool) -> Spec[Matcher]:
        image, text = self._halves
        return of(
            VSE,
            image=part(TimmModel, name=image, width=WIDTH, trained=trained, pretrained=pretrained),
            text=part(
                Bert,
                name=text,
                width=WIDTH,
                trained=trained,
                pretrained=pretrained,
                config=config,
            ),
            text_pool="mean",
        )
