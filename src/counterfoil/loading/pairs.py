"""Pretrained pairs of an image and a text encoder: a CLIP or SigLIP, whatever library has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from counterfoil.core.config import Config, from_data, lazy
from counterfoil.core.config import config as make_config
from counterfoil.data.processor import ProcessorConfig
from counterfoil.loading import Pretrained
from counterfoil.models.base import RetrievalModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.layers.pretrained import PictureFormat


@final
@dataclass(frozen=True)
class PretrainedPair(Pretrained):
    """A pretrained pair of encoders, of transformers or open_clip."""

    make: type[RetrievalModel]  # of transformers or open_clip
    name: str
    inputs: ProcessorConfig
    width: int  # D of its vectors
    config: str | None = None  # of a model of open_clip
    untrained: bool = False  # whether its weights are random
    positions: int = 0  # of its texts, where they are stretched

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""
        config: dict[str, Any] = {} if self.config is None else {"config": self.config}
        return make_config(self.make, name=self.name, **config, **self._length)

    @property
    def processor(self) -> ProcessorConfig:
        """How it reads images and texts."""
        return self.inputs

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training; see `Pretrained.trained`."""
        pretrained, config = from_data("pretrained"), from_data("config")
        if frozen:
            body: RetrievalModel = lazy(
                self.make, name=self.name, pretrained=pretrained, config=config, **self._length
            )
            return make_config(FrozenWithAdapters, body=body, width=self.width)
        return make_config(
            self.make,
            name=self.name,
            pretrained=pretrained,
            config=config,
            lora=lora,
            **self._length,
        )

    @property
    def _length(self) -> dict[str, Any]:
        return {"positions": self.positions} if self.positions else {}


def processor_of(form: PictureFormat, texts: str, longest: int, **more: Any) -> ProcessorConfig:
    """How a pair reads pictures of a format, and texts by a tokenizer.

    Args:
        form: of its pictures.
        texts: name of its tokenizer.
        longest: tokens of a text.
        more: other arguments of `ProcessorConfig`.
    """
    return ProcessorConfig(
        images="pixels",
        size=form.size,
        mean=form.mean,
        deviation=form.deviation,
        crop=form.crop,
        frame=form.frame,
        texts=texts,
        longest=longest,
        **more,
    )
