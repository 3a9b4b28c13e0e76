"""Pretrained pairs of encoders by name: how each is built, and what it sees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from counterfoil.corpus.lens import LensPlan
from counterfoil.files import read_json
from counterfoil.matcher import Matcher
from counterfoil.models import clip, open_clip
from counterfoil.models.adapted import Adapted
from counterfoil.models.blocks import open_clip as library
from counterfoil.models.blocks.pretrained import PictureFormat, picture_format
from counterfoil.models.clip import DualEncoder
from counterfoil.models.open_clip import OpenClip
from counterfoil.recipes.timm_pairs import PREFIX, TimmPair
from counterfoil.spec import Spec, late, of, part
from counterfoil.train.plan import TrainPlan


@final
@dataclass(frozen=True, slots=True)
class Pair:
    """A pretrained pair of encoders.

    Attributes:
        make: what it is built by.
        name: folder or name.
        form: how it wants its pictures.
        texts: how it reads captions, as `LensPlan` wants it.
        longest: how many tokens it reads.
        width: of its vectors.
        config: what it is built from, where a name alone does not say that.
        drawn: whether a part of its weights is drawn at random.
    """

    make: type[DualEncoder] | type[OpenClip]
    name: str
    form: PictureFormat
    texts: str
    longest: int
    width: int
    config: str | None = None
    drawn: bool = False

    @property
    def spec(self) -> Spec[Matcher]:
        """The call that builds it as it is."""
        if self.config is None:
            return of(self.make, name=self.name)
        return of(self.make, name=self.name, config=self.config)

    def trained(self, *, frozen: bool, lora: int) -> Spec[Matcher]:
        """The call that builds it for training.

        Args:
            frozen: only adapters behind its vectors are trained.
            lora: rank of adapters on its attention, which alone are trained; 0 for none.
        """
        pretrained, config = late("pretrained"), late("config")
        if frozen:
            body: Matcher = part(self.make, name=self.name, pretrained=pretrained, config=config)
            return of(Adapted, body=body, width=self.width)
        return of(self.make, name=self.name, pretrained=pretrained, config=config, lora=lora)

    def plan(self, plan: TrainPlan) -> TrainPlan:
        """How it is trained; as any other."""
        return plan

    @property
    def lens(self) -> LensPlan:
        """What it sees: pictures and texts as it was pretrained on."""
        return LensPlan(
            images="pixels",
            size=self.form.size,
            mean=self.form.mean,
            deviation=self.form.deviation,
            crop=self.form.crop,
            frame=self.form.frame,
            texts=self.texts,
            longest=self.longest,
        )


def pair_of(name: str) -> Pair | TimmPair:
    """The pair of encoders of a name or folder.

    Raises:
        ValueError: there is none, or its library is not installed.
    """
    if name.startswith(PREFIX):
        return TimmPair(name)
    if of_open_clip(name):
        config, place = library.written_config(name), library.place_of(name)
        return Pair(
            make=OpenClip,
            name=name,
            form=library.picture_format(name, config),
            texts=f"{library.PREFIX}{place.model}",
            longest=open_clip.longest_text(config),
            width=open_clip.vector_width(config),
            config=config,
            drawn=place.fresh,
        )
    return Pair(
        make=DualEncoder,
        name=name,
        form=picture_format(name),
        texts=name,
        longest=clip.longest_text(name),
        width=clip.vector_width(name),
    )


def knows_nothing(name: str) -> bool:
    """Whether a part of the weights of this name is drawn at random, so that it has to be trained.

    Raises:
        ValueError: open_clip is asked for, and is not installed or does not know the name.
    """
    if name.startswith(PREFIX):
        return True
    return name.startswith(library.PREFIX) and library.place_of(name).fresh


def of_open_clip(name: str) -> bool:
    """Whether open_clip is to open it: it is asked to, or nobody else can."""
    if name.startswith(library.PREFIX):
        return True
    folder = Path(name)
    if not (folder / library.CONFIG).is_file():
        return False
    if not (folder / "config.json").is_file():
        return True
    plain = read_json(folder / "config.json", "the configuration of a model")
    return not (isinstance(plain, dict) and "model_type" in plain)  # timm has such a file, too
