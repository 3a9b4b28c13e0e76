"""Teachers as a guide: the mean score of K frozen models, for the pairs of a batch alone.

NDGL (Expanding the Scope of Negatives, AAAI 2025), Eq. 3, is written over all images times all
texts. A batch reads a block of that, so a block is what is computed: from stored vectors, from
stored bags, or from what the frozen models make of the batch. All three give the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.lens import CorpusLens
from counterfoil.engine.bags import Bags
from counterfoil.engine.encode import Look
from counterfoil.engine.modes import evaluating
from counterfoil.engine.shares import gathered, mine, shared
from counterfoil.matcher import Matcher
from counterfoil.records import Batch, Encoded, Items, Pairs

Inputs = Literal["clean", "same"]
Weight = tuple[float, float]  # of a teacher's score: its factor, and what is added


class Teacher(ABC):
    """Scores pairs of places in a batch's pools; no part of the step that it teaches."""

    @abstractmethod
    def block(self, batch: Batch) -> Tensor:
        """(I, T) scores of the anchor block, the same on every process."""

    @abstractmethod
    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        """(P,) scores of P pairs of places in the pools."""


@final
class Vectors(Teacher):
    """Stored teachers with one vector an item and inner products: all of them are one product.

    Args:
        stores: images and texts of each.
        weights: of each; their sum is what this teacher says.
    """

    def __init__(self, *, stores: Sequence[tuple[Bags, Bags]], weights: Sequence[Weight]) -> None:
        self.stores = tuple(stores)
        self.factors = torch.tensor([factor for factor, _ in weights])
        self.more = sum(more for _, more in weights)

    def block(self, batch: Batch) -> Tensor:
        device, (images, texts) = batch.positive.device, batch.block
        text = self._texts(batch.text_rows[:texts]).to(device).T

        def scores(rows: Tensor | slice) -> Tensor:
            at = rows if isinstance(rows, slice) else rows.cpu()
            return self._images(batch.image_rows[:images][at]).to(device) @ text

        return shared(images, scores, device) + self.more

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        device = batch.positive.device
        image = self._images(batch.image_rows).to(device)[pairs.image]
        text = self._texts(batch.text_rows).to(device)[pairs.text]
        return (image * text).sum(1) + self.more

    def _images(self, rows: Tensor) -> Tensor:
        found = [images.vectors(rows) for images, _ in self.stores]
        return concatenated(found, self.factors)

    def _texts(self, rows: Tensor) -> Tensor:
        return concatenated([texts.vectors(rows) for _, texts in self.stores])


class _Seeing(Teacher):
    """A model and where its encodings come from.

    Args:
        matcher: the model; it is frozen and moves to where this process computes.
        weight: of its scores.
    """

    def __init__(self, matcher: Matcher, weight: Weight) -> None:
        self.matcher = matcher.to(world.device()).eval().requires_grad_(requires_grad=False)
        self.weight = weight
        self._last: tuple[Batch, tuple[Encoded, Encoded]] | None = None

    @abstractmethod
    def look(self, batch: Batch, *, whole: bool) -> tuple[Encoded, Encoded]:
        """The pools on the device, the same on every process; the anchor block where not whole."""

    def block(self, batch: Batch) -> Tensor:
        images, texts = self._pools(batch, whole=False)
        images, texts = images.rows(slice(batch.block[0])), texts.rows(slice(batch.block[1]))
        scores = shared(
            len(images),
            lambda rows: self.matcher.grid(images.rows(rows), texts),
            batch.positive.device,
        )
        return scores.float() * self.weight[0] + self.weight[1]

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        images, texts = self._pools(batch, whole=True)
        scores = shared(
            len(pairs.image),
            lambda rows: self.matcher.listed(
                images, texts, Pairs(pairs.image[rows], pairs.text[rows])
            ),
            batch.positive.device,
        )
        return scores.float() * self.weight[0] + self.weight[1]

    def _pools(self, batch: Batch, *, whole: bool) -> tuple[Encoded, Encoded]:
        if self._last and self._last[0] is batch:
            pools = self._last[1]
            missing = (len(batch.image_rows), len(batch.text_rows)) != tuple(map(len, pools))
            if not (whole and missing):
                return pools
        with evaluating([self.matcher]):
            pools = self.look(batch, whole=whole)
        self._last = batch, pools
        return pools


@final
class Fragments(_Seeing):
    """A stored teacher with bags of vectors, scored by its own model.

    Args:
        matcher: the model.
        images: its encodings of all images.
        texts: its encodings of all texts.
        weight: of its scores.
    """

    def __init__(self, *, matcher: Matcher, images: Bags, texts: Bags, weight: Weight) -> None:
        super().__init__(matcher, weight)
        self.images, self.texts = images, texts

    def look(self, batch: Batch, *, whole: bool) -> tuple[Encoded, Encoded]:
        device, (images, texts) = batch.positive.device, batch.block
        rows = slice(None if whole else images), slice(None if whole else texts)
        return (
            self.images.rows(batch.image_rows[rows[0]]).to(device),
            self.texts.rows(batch.text_rows[rows[1]]).to(device),
        )


@final
class Frozen(_Seeing):
    """A model that encodes every batch anew, each process a share of it.

    Args:
        matcher: the model.
        lens: what it sees of the corpus that batches come from.
        inputs: "clean" items of its own, or the "same" ones as the student.
        weight: of its scores.
    """

    def __init__(
        self, *, matcher: Matcher, lens: CorpusLens, inputs: Inputs, weight: Weight
    ) -> None:
        super().__init__(matcher, weight)
        self.lens, self.inputs = lens, inputs

    def look(self, batch: Batch, *, whole: bool) -> tuple[Encoded, Encoded]:
        if self.inputs == "same":
            images, texts = batch.images, batch.texts
            many = len(batch.image_rows), len(batch.text_rows)
        else:
            many = (len(batch.image_rows), len(batch.text_rows)) if whole else batch.block
            images = self._items(self.lens.images, batch.image_rows[: many[0]], batch)
            texts = self._items(self.lens.texts, batch.text_rows[: many[1]], batch)
        return (
            gathered(self.matcher.encode_images(images), many[0]),
            gathered(self.matcher.encode_texts(texts), many[1]),
        )

    def _items(self, look: Look, rows: Tensor, batch: Batch) -> Items:
        return look(rows[mine(len(rows), rows.device)]).to(batch.positive.device)


@final
class Teachers:
    """The sum of what teachers say of a batch: a `Guide` and a `PairGuide`.

    Args:
        teachers: each with its weight; weights are what makes the sum a mean on the student's
            scale, see `counterfoil.negatives.taught.weigher`.
    """

    def __init__(self, *, teachers: Sequence[Teacher]) -> None:
        assert teachers
        self.teachers = tuple(teachers)

    def __call__(self, batch: Batch) -> Tensor:
        """(I, T) targets on the scale of the inference grid, the same on every process."""
        with torch.no_grad(), _exactly(batch):
            return torch.stack([teacher.block(batch) for teacher in self.teachers]).sum(0)

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        """(B, N) targets of pairs of places in the pools, on the scale of the inference grid."""
        flat = pairs.flatten()
        with torch.no_grad(), _exactly(batch):
            found = [teacher.pairs(batch, flat) for teacher in self.teachers]
        return torch.stack(found).sum(0).view(pairs.shape)


def concatenated(vectors: Sequence[Tensor], factors: Tensor | None = None) -> Tensor:
    """(N, K * D) of K times (N, D) vectors, each teacher's times its factor."""
    if factors is not None:
        vectors = [v * factor for v, factor in zip(vectors, factors, strict=True)]
    return torch.cat(list(vectors), 1)


def _exactly(batch: Batch) -> AbstractContextManager[object]:
    """Without the half precision that the student may be trained in."""
    return torch.autocast(batch.positive.device.type, enabled=False)
