"""Plain tensor records. They carry data between stages and compute nothing.

Axis legend, used in every docstring and shape comment of the package:
    I images in a pool          T texts in a pool          B anchor pairs in a batch
    N candidates per anchor     P aligned pairs            L tokens per item
    F raw feature width         D encoded width            V vocabulary size
    M supervised word slots     Q queries                  K kept per query
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad

INFERENCE = "inference"


@final
class Role(Enum):
    """Why a pair is scored. A term says which roles it needs, a source which it provides."""

    HARD_TEXT = "hard text"  # (anchor image, negative text)
    HARD_IMAGE = "hard image"  # (negative image, anchor text)
    CROSS = "cross"  # (negative image, negative text)
    COMPANION = "companion"  # (image of the negative text, a caption of the negative image)
    WRITTEN = "written"  # (anchor image, machine-written text)
    EDITED = "edited"  # (anchor, counterfactually edited counterpart)
    MASKED_POSITIVE = "masked positive"  # (anchor, true counterpart without what counts most)
    MASKED_NEGATIVE = "masked negative"  # (anchor, hardest wrong one without what counts most)


def _pick(tensor: Tensor | None, index: Tensor | slice) -> Tensor | None:
    place = index if tensor is None or isinstance(index, slice) else index.to(tensor.device)
    return None if tensor is None else tensor[place]


def _move(tensor: Tensor | None, device: torch.device | str) -> Tensor | None:
    return None if tensor is None else tensor.to(device, non_blocking=True)


@final
@dataclass(frozen=True, slots=True)
class ModalityBatch:
    """Raw items of one modality, padded to the longest.

    Attributes:
        ids: (N,) long, row of each item in the data set; -1 for what is not in the data set.
        values: (N, L, F) float features, (N, L) long word ids, or (N, C, H, W) float pixels.
        mask: (N, L) bool, True where a token is real; (N, 1) for pixels.
        boxes: (N, L, 4) float x1, y1, x2, y2 as fractions of the picture, where known.
        targets: (N, C, L) long, token ids of the anchor captions of each image of a training
            batch, which a model may learn to write; -1 behind the last token.
        words: (N, L) long, which word of its text each token is a piece of; -1 for special tokens
            and padding. None where every token is a word.
    """

    ids: Tensor
    values: Tensor
    mask: Tensor
    boxes: Tensor | None = None
    targets: Tensor | None = None
    words: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: Tensor | slice) -> ModalityBatch:
        """The items at these places."""
        return ModalityBatch(*(_pick(t, index) for t in self._tensors()))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> ModalityBatch:
        """The same items on another device."""
        return ModalityBatch(*(_move(t, device) for t in self._tensors()))  # type: ignore[arg-type]

    def _tensors(self) -> tuple[Tensor | None, ...]:
        return self.ids, self.values, self.mask, self.boxes, self.targets, self.words


@final
@dataclass(frozen=True, slots=True)
class Embeddings:
    """Every model encodes an item as a bag of L vectors; L is 1 for global embeddings.

    Attributes:
        tokens: (N, L, D) float.
        mask: (N, L) bool.
        gram: (N, L, L) inner products of an item's own vectors, where the model's score needs them.
    """

    tokens: Tensor
    mask: Tensor
    gram: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, index: Tensor | slice) -> Embeddings:
        """The items at these places."""
        picked = (_pick(t, index) for t in (self.tokens, self.mask, self.gram))
        return Embeddings(*picked)  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Embeddings:
        """The same items on another device."""
        moved = (_move(t, device) for t in (self.tokens, self.mask, self.gram))
        return Embeddings(*moved)  # type: ignore[arg-type]

    def padded(self, length: int) -> Embeddings:
        """The same items with room for `length` tokens."""
        more = length - self.tokens.shape[1]
        if more <= 0:
            return self
        gram = None if self.gram is None else pad(self.gram, (0, more, 0, more))
        return Embeddings(pad(self.tokens, (0, 0, 0, more)), pad(self.mask, (0, more)), gram)

    @staticmethod
    def cat(parts: list[Embeddings]) -> Embeddings:
        """Stack pools, padding the shorter ones to the longest."""
        longest = max(part.tokens.shape[1] for part in parts)
        parts = [part.padded(longest) for part in parts]
        grams = [part.gram for part in parts if part.gram is not None]
        return Embeddings(
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.mask for part in parts]),
            torch.cat(grams) if len(grams) == len(parts) else None,
        )


@final
@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of an image pool matched with rows of a text pool; both long, same shape."""

    image: Tensor
    text: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of both."""
        return self.image.shape

    def flatten(self) -> Pairs:
        """The same pairs in one row."""
        return Pairs(self.image.flatten(), self.text.flatten())

    def to(self, device: torch.device | str) -> Pairs:
        """The same pairs on another device."""
        return Pairs(self.image.to(device), self.text.to(device))


@final
@dataclass(frozen=True, slots=True)
class Batch:
    """One training batch: two pools, the anchor block at their head, candidates behind it.

    The batch is the same on every process; `cxc_images` and `texts` hold this process's share of
    the pools (all of them when there is one process), see `counterfoil.data.batching`.

    Attributes:
        step: how many batches came before.
        image_rows: (Ip,) data set rows of the whole image pool; the first ``block[0]`` are anchors.
        text_rows: (Tp,) data set rows of the whole text pool; the first ``block[1]`` are anchors.
        images: the images of the pool that this process encodes.
        texts: the texts of the pool that this process encodes.
        block: (I, T) size of the anchor block.
        positive: (I, T) bool, True where the text describes the image.
        anchors: (B,) the anchor pairs that `pairs` are aligned with, as places in the pools.
        pairs: pairs to score outside the anchor block, by role; each (B, N).
        candidates: data set rows of pairs for a proposer to screen, by role; (B, N), -1 for none.
        offered: images and texts of this process's share of the candidates, in order of ids.
    """

    step: int
    image_rows: Tensor
    text_rows: Tensor
    images: ModalityBatch
    texts: ModalityBatch
    block: tuple[int, int]
    positive: Tensor
    anchors: Pairs
    pairs: Mapping[Role, Pairs] = field(default_factory=dict)
    candidates: Mapping[Role, Pairs] = field(default_factory=dict)
    offered: tuple[ModalityBatch, ModalityBatch] | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device; the data set rows stay where they are."""
        return replace(
            self,
            images=self.images.to(device),
            texts=self.texts.to(device),
            positive=self.positive.to(device),
            anchors=self.anchors.to(device),
            pairs={role: pair.to(device) for role, pair in self.pairs.items()},
            candidates={role: pair.to(device) for role, pair in self.candidates.items()},
            offered=self.offered and (self.offered[0].to(device), self.offered[1].to(device)),
        )


@final
@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Images and texts of a batch as a model sees them.

    Attributes:
        images: of the pool, item after item.
        texts: of the pool, item after item.
        copies: how often each item stands there, its copies side by side: rows 2n and 2n + 1 are
            item n when it is 2.
    """

    images: Embeddings
    texts: Embeddings
    repeats: int = 1


@final
@dataclass(frozen=True, slots=True)
class EncodedViews:
    """What a model makes of a training batch.

    Attributes:
        views: by name; "inference", the view used at test time over the whole pools, is always
            there, others exist in training only and cover the anchor block.
        auxiliary: the model's own scalar losses by name, each this share's part of a batch's sum.
    """

    views: Mapping[str, EncodedBatch]
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def inference(self) -> EncodedBatch:
        """The view used at test time."""
        return self.views[INFERENCE]


@final
@dataclass(frozen=True, slots=True)
class ScoreMatrix:
    """A block of scores and what is true in it.

    Attributes:
        scores: (I, T).
        positive: (I, T) bool.
        anchor: (B,) scores of the anchor pairs; of several copies the lowest.
        guide: (I, T) how similar the pairs ought to be, or None.
        scale: units of a score, see `RetrievalModel.score_scale`.
        name: which view it came from.
        copies: how often each image and each text stands in it, side by side, see `EncodedBatch`.
    """

    scores: Tensor
    positive: Tensor
    anchor: Tensor
    guide: Tensor | None = None
    scale: float = 1.0
    name: str = INFERENCE
    repeats: int = 1


@final
@dataclass(frozen=True, slots=True)
class WordTask:
    """Per-word predictions and what they should have been.

    Attributes:
        logits: (M, C) one row per supervised word.
        labels: (M,) long; -1 for a word that does not count.
        anchor: (M,) long, which anchor pair each word belongs to; None where nobody asks.
    """

    logits: Tensor
    labels: Tensor
    anchor: Tensor | None = None


@final
@dataclass(frozen=True, slots=True)
class Scores:
    """All that an objective may look at. No model, no embedding, no data set.

    Attributes:
        grids: score blocks by name; "inference" is always there.
        pairs: (B, N) scores by role, aligned with the anchors.
        words: word tasks by name.
        step: how many batches came before.
        guides: (B, N) how similar the pairs of a role ought to be, for roles that a term asks for.
        seed: of what a term draws at this step, the same on every process.
    """

    grids: Mapping[str, ScoreMatrix]
    pairs: Mapping[Role, Tensor] = field(default_factory=dict)
    words: Mapping[str, WordTask] = field(default_factory=dict)
    step: int = 0
    guides: Mapping[Role, Tensor] = field(default_factory=dict)
    seed: int = 0


# What a model that reads image and text together can say of single words.


@final
class WordHead(Enum):
    """What is asked of one pass over the pairs; what is not asked costs nothing."""

    SCORE = "score"
    FILL = "fill"
    DOUBT = "doubt"
    CORRECT = "correct"


@final
@dataclass(frozen=True, slots=True)
class WordSlots:
    """Words of P pairs that are asked for; both (M,) long.

    Attributes:
        pair: which pair.
        place: which token of its text.
    """

    pair: Tensor
    place: Tensor


@final
@dataclass(frozen=True, slots=True)
class WordReading:
    """The answers; None where they were not asked for.

    Attributes:
        score: (P,) how well text and image go together, as `RetrievalModel.pairs`.
        fill: (M, V) logits of the word at each slot, as a language model that sees the image.
        doubt: (P, L, 2) logits that each token is wrong (0) or right (1).
        correct: (M, V) logits of the word that ought to be at each slot; a head of its own.
    """

    score: Tensor | None = None
    fill: Tensor | None = None
    doubt: Tensor | None = None
    correct: Tensor | None = None


@runtime_checkable
class WordHeadModel(Protocol):
    """A model for which one pass over aligned pairs answers everything that is wanted."""

    @property
    def wants(self) -> frozenset[WordHead]:
        """What it has heads for."""
        ...

    def read(
        self,
        images: Embeddings,
        texts: Embeddings,
        want: frozenset[WordHead],
        slots: WordSlots | None = None,
    ) -> WordReading:
        """Answers for P encoded images with P encoded texts.

        Vocabulary logits are worked out at the slots alone.

        Args:
            images: P of them.
            texts: P of them.
            want: what is asked.
            slots: where words are asked for; needed for `fill` and `correct`.
        """
        ...
