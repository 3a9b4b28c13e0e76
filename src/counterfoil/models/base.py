"""The one thing every image-text model is: two encoders and a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Pairs,
)

PAIRS_AT_ONCE = 4096


class RetrievalModel(nn.Module, ABC):
    """Scores how well texts describe images; higher is better.

    A model is abstract here and final in `counterfoil.models`; nothing lies between. Models with
    no faster way write `product(self.pairs, ...)` for `grid`, and those that train exactly as they
    are used write `one_view(self, batch)` for `forward`.

    Promises, checked by the contract tests for every model: `grid` equals `pairs` on the product;
    what stands where a mask is False never changes a score; an item's encoding does not depend on
    its neighbours in the batch; numbers of images and texts may differ.

    Attributes:
        score_scale: units of a score: 1.0 for a cosine or a mean of cosines.
        grids: names of the views of `forward` and `relate`, each of which gives a score block.
        relates: whether `relate` adds something.
    """

    score_scale: float = 1.0
    score_names: frozenset[str] = frozenset({INFERENCE})
    uses_batch_context: bool = False

    @abstractmethod
    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """N images as N bags of vectors."""

    @abstractmethod
    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """N texts as N bags of vectors."""

    @abstractmethod
    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(P,) score of image p with text p, for P encoded images and P encoded texts."""

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """(P,) score of every listed pair of rows of two pools; equal to `pairs` of those rows.

        The pools hold about as many items as occur, as in a training batch.
        """
        return self.score_pairs(images.rows(pairs.image), texts.rows(pairs.text))

    @abstractmethod
    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(I, T) score of every image with every text."""

    @abstractmethod
    def forward(self, batch: Batch) -> EncodedViews:
        """Encode this process's share of a training batch."""

    def batch_forward(
        self, batch: Batch, views: EncodedViews, wanted: frozenset[str]
    ) -> EncodedViews:
        """The views of a whole batch, with those that arise only where all of it is seen at once.

        Called in training where `relates` is set, on every process with the same tensors and the
        same random state.

        Args:
            batch: the batch; its items are this process's share.
            views: what `forward` made of all shares.
            wanted: the grids that are judged at this step; others may be left out.
        """
        return views


@runtime_checkable
class WordEmbeddingModel(Protocol):
    """A part of a model that looks words up in a table, where a gradient can be asked."""

    def word_table(self) -> nn.Module:
        """What makes (N, L, D) vectors of (N, L) token ids."""
        ...

    @property
    def mask_word(self) -> int | None:
        """Id of the token that hides a word; None where there is none."""
        ...


@runtime_checkable
class AcceptsOtherWeights(Protocol):
    """A model that may begin from the weights of one with other heads."""

    def adopted(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What to load, where these are the weights of the other.

        Raises:
            ValueError: they are of another kind of model.
        """
        ...


@runtime_checkable
class PretrainedPart(Protocol):
    """A part of a model that comes from elsewhere."""

    @property
    def written(self) -> str:
        """What it is built from, as its argument `config` wants it."""
        ...


@runtime_checkable
class SupportsLoRA(Protocol):
    """A model that may have low-rank adapters.

    Attributes:
        lora: their rank; 0 where there are none.
        apart: whether they are kept beside the weights in a finished model.
    """

    lora: int
    apart: bool

    def merge(self) -> None:
        """Add what adapters have learnt to the weights; the model then is one without adapters."""
        ...


@runtime_checkable
class FrozenTower(Protocol):
    """A part of a model that reads pictures, or what it made of them before.

    Attributes:
        body: what makes it.
    """

    body: nn.Module

    @property
    def still(self) -> str | None:
        """What it makes of a picture depends on this and the body; None where that is trained."""
        ...

    def states(self, images: ModalityBatch) -> Tensor:
        """(N, L, F) what it makes of pixels; it reads these in their place."""
        ...


def score_all_pairs(
    pairs: Callable[[Embeddings, Embeddings], Tensor],
    images: Embeddings,
    texts: Embeddings,
    at_once: int = PAIRS_AT_ONCE,
) -> Tensor:
    """(I, T) scores by asking `pairs` for every pair, `at_once` of them at a time."""
    i, t = torch.meshgrid(torch.arange(len(images)), torch.arange(len(texts)), indexing="ij")
    left, right = i.flatten(), t.flatten()
    scores = [
        pairs(
            images.rows(left[start : start + at_once]), texts.rows(right[start : start + at_once])
        )
        for start in range(0, len(left), at_once)
    ]
    return torch.cat(scores).view(len(images), len(texts))


def encode_batch(model: RetrievalModel, batch: Batch) -> EncodedViews:
    """What a model sees when it trains exactly as it is used."""
    view = EncodedBatch(model.encode_images(batch.images), model.encode_texts(batch.texts))
    return EncodedViews({INFERENCE: view})
