"""Models of sentence-transformers: embedders of one or several vectors, and cross-encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from counterfoil.core.config import Config, from_data, lazy
from counterfoil.core.config import config as make_config
from counterfoil.data.processor import ProcessorConfig
from counterfoil.loading import Pretrained, sentence_transformers_folder
from counterfoil.models import sentence_transformers as models
from counterfoil.models.base import RetrievalModel, Weights
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.library_folders import library_class
from counterfoil.models.sentence_transformers import (
    DenseEmbedder,
    SentenceTransformersModel,
    picture_side,
)


@final
@dataclass(frozen=True)
class LibraryModel(Pretrained):
    """A model of sentence-transformers."""

    make: type[SentenceTransformersModel]
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # how it is loaded

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""
        return make_config(self.make, name=self.name, **self.options)

    @property
    def processor(self) -> ProcessorConfig:
        """Whole pictures, and captions as they are."""
        side = picture_side(self.make, self.name)
        return ProcessorConfig(images="pixels", size=side, whole=True, texts="characters")

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training; see `Pretrained.trained`.

        All weights are trained in single precision; frozen ones stay as they are stored.
        """
        pretrained = from_data("pretrained")
        if frozen:
            if self.make is not DenseEmbedder:
                raise ValueError(
                    f"{self.name} does not make one vector of an item, which adapters behind a "
                    "frozen model need; tune it full, or with lora"
                )
            body: RetrievalModel = lazy(self.make, name=self.name, pretrained=pretrained)
            width = int(
                make_config(self.make, name=self.name).build().body.get_embedding_dimension()
            )
            return make_config(FrozenWithAdapters, body=body, width=width)
        weights: Weights = "stored" if lora else "fp32"
        return make_config(
            self.make, name=self.name, pretrained=pretrained, weights=weights, lora=lora
        )


def load_embedder(name: str, **options: Any) -> LibraryModel:
    """The model of a name or folder.

    Raises:
        ValueError: there is none, or it is loaded with long captions.
    """
    if options.pop("long_captions", False):
        raise ValueError(
            f"{name} is a model of sentence-transformers; only the text positions of a CLIP of "
            "transformers or open_clip are stretched: leave --long-captions out"
        )
    folder = sentence_transformers_folder(name)
    assert folder is not None
    make: type[SentenceTransformersModel] = getattr(models, library_class(folder) or "")
    return LibraryModel(make, name, options)
