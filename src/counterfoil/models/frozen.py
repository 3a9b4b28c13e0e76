"""A frozen pretrained model with small trainable adapters behind its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast, final

import torch
from torch import Tensor, nn

from counterfoil.core.config import Config
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import RetrievalModel, SingleVectorModel
from counterfoil.models.layers.pooling import check_positive, single_vector, unit_vectors

BODY, HEAD = "body.", "head."
VECTORS = 3  # axes of vectors, where pixels have four and ids two


@final
class FrozenAdapters(SingleVectorModel):
    """A residual adapter each for image and text vectors, compared by cosine.

    ``x + A(x)`` as in CLIP-Adapter (arXiv:2110.04544), where A is a hidden layer or a matrix. A
    begins at zero, so that an untrained head scores as its vectors do.

    Departs from the authors' code in: both sides have an adapter; it is added whole, not blended
    by a fixed ratio; nothing is rectified behind it.
    """

    normalise = (True, True)

    def __init__(self, *, width: int, hidden: int = 512, dropout: float = 0.0) -> None:
        """Initialise the module.

        Args:
            width: of the vectors.
            hidden: units of the hidden layer; 0 for a matrix alone.
            dropout: of vectors on their way into an adapter.

        Raises:
            ValueError: a width below 1, or a hidden layer below 0.
        """
        super().__init__()
        check_positive(width=width)
        if hidden < 0:
            raise ValueError(f"hidden={hidden} is not possible; give 0 for a matrix alone, or more")
        self.width = width
        self.image = _adapter(width, hidden, dropout)
        self.text = _adapter(width, hidden, dropout)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Adapt precomputed image vectors (N, 1, D)."""
        return self.adapt_images(single_vector(self._vectors(images, "image")))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Adapt precomputed text vectors (N, 1, D)."""
        return self.adapt_texts(single_vector(self._vectors(texts, "text")))

    def adapt_images(self, images: Embeddings) -> Embeddings:
        """Pass (N, 1, D) vectors of images through their adapter, to length 1."""
        return unit_vectors(single_vector(_residual(self.image, images)))

    def adapt_texts(self, texts: Embeddings) -> Embeddings:
        """Pass (N, 1, D) vectors of texts through their adapter, to length 1."""
        return unit_vectors(single_vector(_residual(self.text, texts)))

    def _vectors(self, items: ModalityBatch, noun: str) -> Tensor:
        shape = tuple(items.values.shape)
        if len(shape) != 3 or shape[1:] != (1, self.width):
            raise ValueError(
                f"{noun} vectors of shape {shape} do not fit a head that reads "
                f"({noun}s, 1, {self.width}); use the vectors that it was trained on"
            )
        return items.values[:, 0]


@final
class FrozenWithAdapters(SingleVectorModel):
    """A frozen model with one vector per item, and adapters behind it.

    The body computes no gradient and stays in evaluation mode, so its vectors can be computed once
    and cached: the model, and its `head` alone, accept them in place of pixels and token ids.
    """

    normalise = (True, True)

    @classmethod
    def pretrained_name(cls, arguments: Mapping[str, Any]) -> str | None:
        """That of the frozen model."""
        body: Config[RetrievalModel] = arguments["body"]
        make: Any = body.make
        return cast("str | None", make.pretrained_name(body.arguments))

    def __init__(
        self, *, body: RetrievalModel, width: int, hidden: int = 512, dropout: float = 0.0
    ) -> None:
        """Initialise the module.

        Args:
            body: the model, whose score is a cosine or an inner product.
            width: of its vectors.
            hidden: see `FrozenAdapters`.
            dropout: see `FrozenAdapters`.

        Raises:
            ValueError: a size is not possible.
        """
        super().__init__()
        self.body = body.requires_grad_(False).eval()
        self.head = FrozenAdapters(width=width, hidden=hidden, dropout=dropout)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode images, or adapt the vectors (N, 1, D) that the body computed of them before."""
        if images.values.dim() == VECTORS:
            return self.head.encode_images(images)
        with torch.no_grad():
            encoded = self.body.encode_images(images)
        return self.head.adapt_images(encoded)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode texts, or adapt the vectors (N, 1, D) that the body computed of them before."""
        if texts.values.dim() == VECTORS:
            return self.head.encode_texts(texts)
        with torch.no_grad():
            encoded = self.body.encode_texts(texts)
        return self.head.adapt_texts(encoded)

    def train(self, mode: bool = True) -> Self:
        """Switch the head to training; the body stays in evaluation mode."""
        super().train(mode)
        self.body.eval()
        return self

    def adopted(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict to load, from the same model or from its body alone."""
        if any(name.startswith(HEAD) for name in state):
            return dict(state)
        head = {name: t for name, t in self.state_dict().items() if name.startswith(HEAD)}
        return {**head, **{f"{BODY}{name}": tensor for name, tensor in state.items()}}


def _adapter(width: int, hidden: int, dropout: float) -> nn.Sequential:
    last = nn.Linear(hidden or width, width)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    first = [nn.Linear(width, hidden), nn.ReLU()] if hidden else []
    return nn.Sequential(nn.Dropout(dropout), *first, last)


def _residual(adapter: nn.Sequential, encoded: Embeddings) -> Tensor:
    vectors = encoded.tokens[:, 0]
    change: Tensor = adapter(vectors)
    return vectors + change
