"""Two towers to be trained: an image model of timm, and a language model of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from counterfoil.core.config import Config, from_data, lazy
from counterfoil.core.config import config as make_config
from counterfoil.data.processor import ProcessorConfig
from counterfoil.loading import Pretrained, refuse_large
from counterfoil.models.base import RetrievalModel
from counterfoil.models.clip import max_text_length
from counterfoil.models.layers.pretrained import PREFIX, BertTextTower, TimmTower, timm_format
from counterfoil.models.vsepp import VSEPP

WIDTH = 512  # of the heads on two towers
MAX_TOKENS = 64  # of a caption, for two towers


@final
@dataclass(frozen=True)
class TwoTowers(Pretrained):
    """An image model of timm and a language model of Hugging Face, each with an untrained head."""

    name: str  # as in ``timm:resnet50+bert-base-uncased``
    untrained: bool = True  # its heads have random weights
    heads: bool = True

    def __post_init__(self) -> None:
        if not all(self._towers):
            raise ValueError(
                f"{self.name!r} names no two towers; give an image model of timm and a language "
                f"model, as in '{PREFIX}resnet50+bert-base-uncased'"
            )

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it with pretrained towers and random heads."""
        return self._config(pretrained=True, config=None, trained=True)

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training; with `frozen`, of its heads only."""
        if lora:
            raise ValueError(f"{self.name} cannot have adapters; tune it full, or frozen")
        return self._config(
            pretrained=from_data("pretrained"), config=from_data("text config"), trained=not frozen
        )

    @property
    def processor(self) -> ProcessorConfig:
        """Preprocessing of images and texts as in its towers' pretraining."""
        image, text = self._towers
        form = timm_format(image)
        return ProcessorConfig(
            images="pixels",
            size=form.size,
            mean=form.mean,
            deviation=form.deviation,
            texts=text,
            longest=min(MAX_TOKENS, max_text_length(text)),
        )

    @property
    def _towers(self) -> tuple[str, str]:
        image, _, text = self.name.removeprefix(PREFIX).partition("+")
        return image, text

    def _config(self, *, pretrained: Any, config: Any, trained: bool) -> Config[RetrievalModel]:
        image, text = self._towers
        return make_config(
            VSEPP,
            image=lazy(TimmTower, name=image, width=WIDTH, trained=trained, pretrained=pretrained),
            text=lazy(
                BertTextTower,
                name=text,
                width=WIDTH,
                trained=trained,
                pretrained=pretrained,
                config=config,
            ),
            text_pool="mean",
        )


def load_towers(name: str, **options: Any) -> TwoTowers:
    """The towers of a name such as ``timm:resnet50+bert-base-uncased``.

    Raises:
        ValueError: it names no two towers, or an option is not for them.
    """
    refuse_large(name, options)
    if options:
        raise ValueError(
            f"{name} has the text positions of its language model; only those of a CLIP are "
            "stretched: leave --long-captions out"
        )
    return TwoTowers(name)
