"""Models of Hugging Face that are converted to classes of ours, by the type of their config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from counterfoil.core.config import Config
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.tokenizers import WordPieceTokenizer
from counterfoil.loading import Pretrained, refuse_large
from counterfoil.models.base import RetrievalModel
from counterfoil.models.blip import blip_from_pretrained
from counterfoil.models.checkpoints import ConvertedModel
from counterfoil.models.clip import max_text_length
from counterfoil.models.layers.pretrained import picture_format

Convert = Callable[..., ConvertedModel]  # (name, mask=id of the mask token or None)


@final
@dataclass(frozen=True)
class Converted(Pretrained):
    """A pretrained model of Hugging Face that becomes a class of ours."""

    name: str
    convert: Convert

    @cached_property
    def converted(self) -> ConvertedModel:
        """Its configuration and weights."""
        tokenizer = WordPieceTokenizer(self.name, longest=max_text_length(self.name))
        return self.convert(self.name, mask=tokenizer.mask)

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""
        return self.converted.model

    @cached_property
    def processor(self) -> ProcessorConfig:
        """Pictures as it was trained on, and the pieces of its tokenizer."""
        form, divisor = picture_format(self.name), self.converted.divisor
        frame = form.frame
        if divisor:  # its images keep their shape, and their sides are multiples of a patch
            if "bicubic" not in (frame or "bicubic"):
                raise ValueError(
                    f"{self.name} resizes pictures by {frame}; such a model is read by bicubic"
                )
            frame = ""
        return ProcessorConfig(
            images="pixels",
            size=form.size,
            mean=form.mean,
            deviation=form.deviation,
            crop=form.crop and not divisor,
            divisor=divisor,
            frame=frame,
            texts=self.name,
            longest=max_text_length(self.name),
        )

    def build(self) -> RetrievalModel:
        """The model with its weights."""
        return self.converted.build()

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """Refuse: it is trained by recipes of its own."""
        raise ValueError(
            f"{self.name} compares a picture and a caption together, so that it is not trained as "
            "a pair of encoders is; give a CLIP, SigLIP or embedder, or train it to re-rank"
        )


def load_converted(name: str, convert: Convert, **options: Any) -> Converted:
    """The model of a name or folder, by the function that converts it.

    Raises:
        ValueError: an option is not for it.
    """
    refuse_large(name, options)
    if options:
        raise ValueError(
            f"{name} has the text positions that it was trained with; only those of a CLIP are "
            "stretched: leave --long-captions out"
        )
    return Converted(name, convert)


def load_blip(name: str, **options: Any) -> Converted:
    """A BLIP that matches images and texts."""
    return load_converted(name, blip_from_pretrained, **options)
