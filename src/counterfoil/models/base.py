"""Base class of image-text retrieval models: two encoders and a score of their embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

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
from counterfoil.models.layers.pooling import PatchGrid, full_precision, inner_pairs, inner_products

Weights = Literal["stored", "fp32", "bf16"]  # types of numbers in which weights are loaded
ENCODER = "encoder"  # folder of a library's files within a saved model
PAIRS_AT_ONCE = 4096  # in `score_all_pairs`


class RetrievalModel(nn.Module, ABC):
    """A model that encodes images and texts separately and scores pairs; higher is better.

    A subclass implements the two encoders and `score_pairs`. It overrides `score_matrix` if there
    is a faster way, and `forward` if it has outputs in training alone.

    The contract tests check for every model that
    - `score_matrix` and `score_indices` equal `score_pairs` on the same pairs;
    - values where a mask is False never change a score;
    - the encoding of an item does not depend on the other items of the batch;
    - numbers of images and texts may differ.

    Attributes:
        score_scale: range of a score: 1.0 for a cosine or a mean of cosines.
        score_names: names of the views of `forward` and `batch_forward` that losses can score.
        uses_batch_context: whether `batch_forward` adds views or losses.
        has_kernels: whether kernels compute `score_matrix` on a GPU.
        keeps_vectors: whether its vectors of a data set are kept in the cache on disk.
    """

    score_scale: float = 1.0
    score_names: frozenset[str] = frozenset({INFERENCE})
    uses_batch_context: bool = False
    has_kernels: bool = False
    keeps_vectors: bool = False

    @classmethod
    def pretrained_name(cls, arguments: Mapping[str, Any]) -> str | None:
        """Name on the hub of the model that one built with these arguments began from, if any."""
        return None

    @property
    def own_module(self) -> nn.Module:
        """The module that it is around, where it makes a model of anybody's; else itself."""
        return self

    @property
    def score_name(self) -> str:
        """What a score is, in the words of the protocols of results, such as "cosine"."""
        return f"as {type(self).__name__} scores"

    @abstractmethod
    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as (N, R, D) vectors with a mask; R is 1 for global embeddings."""

    @abstractmethod
    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as (N, L, D) vectors with a mask; L is 1 for global embeddings."""

    @abstractmethod
    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) scores of image p with text p."""

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """Return the (P,) scores of listed pairs of rows; equal to `score_pairs` of those rows.

        Args:
            images: pool of images, about as many as occur in the pairs, as in a training batch.
            texts: pool of texts, likewise.
            pairs: rows of the pools.
        """
        return self.score_pairs(images.rows(pairs.image), texts.rows(pairs.text))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores of every image with every text."""
        return score_all_pairs(self.score_pairs, images, texts)

    def patch_grid(self, images: ModalityBatch, vectors: int) -> PatchGrid | None:
        """Return which of so many vectors of an image are patches; None if that is not known.

        Args:
            images: one image.
            vectors: those that its encoding has.
        """
        return None

    def loss_scores(self, scores: Tensor) -> Tensor:
        """Return scores as losses and explanations read them, in the same order.

        By default the scores. A model that is trained on probabilities returns their sigmoid and
        ranks by the logit: near 1, many different logits are one float32 probability.
        """
        return scores

    @property
    def loss_scale(self) -> float:
        """Range of `loss_scores`, which margins are relative to."""
        return self.score_scale

    def forward(self, batch: Batch) -> EncodedViews:
        """Encode this process's share of a training batch; by default exactly as in inference."""
        view = EncodedBatch(self.encode_images(batch.images), self.encode_texts(batch.texts))
        return EncodedViews({INFERENCE: view})

    def batch_forward(
        self, batch: Batch, views: EncodedViews, wanted: frozenset[str]
    ) -> EncodedViews:
        """Add the views and losses that need the whole batch at once.

        Called in training if `uses_batch_context` is set, on every process with the same tensors
        and the same random state.

        Args:
            batch: the batch; its items are this process's share.
            views: outputs of `forward`, gathered from all processes.
            wanted: names of the views that are scored at this step; others may be left out.
        """
        return views


class SingleVectorModel(RetrievalModel):
    """A model of one vector per item, whose score is the inner product of both vectors.

    Attributes:
        normalise: whether vectors of images, and those of texts, have length 1; then it is a
            cosine.
    """

    normalise: tuple[bool, bool] = (False, False)

    @property
    def score_name(self) -> str:
        return "cosine" if all(self.normalise) else "inner product"

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) inner products of image p and text p."""
        return inner_pairs(images, texts)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) inner products of every image and text."""
        return inner_products(images, texts)


def score_names(models: Iterable[RetrievalModel]) -> str:
    """Return what a score of a model, or a mean score of several, is."""
    return " + ".join(dict.fromkeys(model.score_name for model in models))


LOGIT_SCALE = 4.0  # near 0 a probability changes by a quarter of its logit


def probabilities(logits: Tensor) -> Tensor:
    """Return the sigmoid in at least single precision; -inf, which is no pair, stays."""
    return full_precision(logits).sigmoid().masked_fill(logits.isneginf(), -torch.inf)


# Optional abilities of a model or of one of its parts, found with `isinstance`.


@runtime_checkable
class WordEmbeddingModel(Protocol):
    """A module with an embedding table of token ids."""

    def word_table(self) -> nn.Module:
        """Return the module that maps (N, L) token ids to (N, L, D) vectors."""
        ...

    @property
    def mask_word(self) -> int | None:
        """Id of the mask token; None if there is none."""
        ...


@runtime_checkable
class WordRegionModel(Protocol):
    """A model whose score pools a number of every word with every region or patch."""

    @property
    def maps_attention(self) -> bool:
        """Whether these are weights of attention; else similarities."""
        ...

    def word_region_maps(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P, L, R) numbers of the words of text p with the regions of image p."""
        ...


@runtime_checkable
class TokenizesCaptions(Protocol):
    """A model whose library tokenizes captions itself."""

    def token_spans(self, captions: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the first character of each word vector and the one after its last; 0, 0 for none.

        Raises:
            ValueError: the tokenizer has no offsets.
        """
        ...


@runtime_checkable
class AcceptsOtherWeights(Protocol):
    """A model that can start from the weights of one with other heads or without adapters."""

    def adopted(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict to load, made from the other model's.

        Raises:
            ValueError: the weights are of another kind of model.
        """
        ...


@runtime_checkable
class PretrainedPart(Protocol):
    """A module built from a third-party library's configuration."""

    @property
    def config_json(self) -> str:
        """Configuration of the part as JSON, for the constructor argument `config`."""
        ...


@runtime_checkable
class HasFiles(Protocol):
    """A module whose constructor reads files, in the folder that its argument `name` names.

    A saved model has them in its folder `own_files`; there `name` is that folder.
    """

    own_files: str

    def write_files(self, folder: Path) -> None:
        """Write what the constructor reads, without the weights."""
        ...


@runtime_checkable
class SupportsLoRA(Protocol):
    """A model that may have low-rank adapters."""

    lora: int  # rank of the adapters; 0 for none
    apart: bool  # whether adapters stay separate from the weights in a finished model

    def merge(self) -> None:
        """Merge the adapters into the weights and remove them."""
        ...


@runtime_checkable
class FrozenTower(Protocol):
    """An image tower whose backbone outputs can be cached and passed in place of pixels."""

    body: nn.Module  # the backbone

    @property
    def cache_key(self) -> str | None:
        """Cache key of the outputs, beside the backbone's weights; None if these are trained."""
        ...

    def states(self, images: ModalityBatch) -> Tensor:
        """Return the backbone's outputs (N, L, F) for pixels; `forward` takes them as well."""
        ...


def anchors_of(batch: Batch, view: EncodedBatch) -> EncodedBatch:
    """Return the items of a view that are anchors of the batch, without the negatives."""
    images, texts = batch.block
    return EncodedBatch(view.images.rows(slice(images)), view.texts.rows(slice(texts)))


def score_all_pairs(
    score_pairs: Callable[[Embeddings, Embeddings], Tensor],
    images: Embeddings,
    texts: Embeddings,
    at_once: int = PAIRS_AT_ONCE,
) -> Tensor:
    """Return (I, T) scores by calling `score_pairs` on all pairs, `at_once` of them at a time."""
    i, t = torch.meshgrid(torch.arange(len(images)), torch.arange(len(texts)), indexing="ij")
    left, right = i.flatten(), t.flatten()
    scores = [
        score_pairs(
            images.rows(left[start : start + at_once]), texts.rows(right[start : start + at_once])
        )
        for start in range(0, len(left), at_once)
    ]
    return torch.cat(scores).view(len(images), len(texts))
