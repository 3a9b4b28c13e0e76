"""Losses of other libraries, which take embeddings: for models of one vector an item.

They get the vectors of the images and captions of a batch, whose inner products are the scores.
Such libraries know no mask: negatives that a mask, a correction or an equal caption leaves out
count where the loss chooses its negatives itself.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Literal, cast, final, get_args

import torch
from torch import Tensor, nn

from counterfoil.core.config import parse_literal
from counterfoil.core.types import Needs, Scores, VectorScores
from counterfoil.losses.own import ForeignLoss, callable_name, described, scalar

__all__ = ["MetricLearningLoss", "SentenceTransformersLoss"]

Form = Literal["pair", "triplet", "labels", "labeled-pair"]


class VectorLoss(ForeignLoss):
    """Base of losses of the vectors of a batch.

    Args:
        loss: of another library.

    Raises:
        TypeError: it is no module.
    """

    needs = Needs(block=False, vectors=True)

    def __init__(self, loss: object) -> None:
        nn.Module.__init__(self)
        if not isinstance(loss, nn.Module):
            hint = f"; write {loss.__name__}(…)" if isinstance(loss, type) else ""
            raise TypeError(f"{type(self).__name__} takes a loss, not {loss!r:.60}{hint}")
        self.loss = loss

    @property
    def title(self) -> str:
        return callable_name(self.loss)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "loss": described(self.loss)}

    def forward(self, scores: Scores) -> Tensor:
        vectors = cast("VectorScores", scores.vectors)  # `_check` has seen it
        return scalar(self._loss(vectors), vectors.images, self.title)

    @abstractmethod
    def _loss(self, vectors: VectorScores) -> object:
        """The loss of a batch."""


@final
class MetricLearningLoss(VectorLoss):
    """A loss of pytorch-metric-learning, or any module ``(embeddings, labels) -> scalar``.

    The label of an image and of its captions is the row of the image in the data set, so a loss
    with a weight for each class takes the number of images as that of its classes. Its own
    parameters are trained and saved with the run.

    Args:
        loss: such as ``SupConLoss()``.
        miner: of pairs or triplets, called as the loss; its result is the third argument of that.
        across: images are compared with captions alone, and captions with images (``ref_emb``), of
            which the mean is taken; else everything with everything, images one behind the other
            with captions, as losses with proxies or class weights need it.

    Raises:
        TypeError: the loss is no module, or the miner cannot be called.
        ValueError: images cannot be compared with captions alone.
    """

    def __init__(
        self, loss: nn.Module, *, miner: Callable[..., object] | None = None, across: bool = True
    ) -> None:
        super().__init__(loss)
        if miner is not None and not callable(miner):
            raise TypeError(f"the miner is {miner!r:.60}; give one of pytorch-metric-learning")
        self._miner, self.across = miner, across
        if across:
            try:
                inspect.signature(loss.forward).bind(*range(5))
            except TypeError as error:
                raise ValueError(self._alone(error)) from error

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "miner": described(self._miner) if self._miner else None}

    def _loss(self, vectors: VectorScores) -> object:
        labels = _labels(vectors)
        if not self.across:
            return self._called(torch.cat([vectors.images, vectors.texts]), torch.cat(labels))
        images, texts = (vectors.images, labels[0]), (vectors.texts, labels[1])
        return (self._called(*images, *texts) + self._called(*texts, *images)) / 2

    def _called(self, *tensors: Tensor) -> Tensor:
        found = self._miner(*tensors) if self._miner else None
        if not self.across and found is None:
            return cast("Tensor", self.loss(*tensors))
        try:
            return cast("Tensor", self.loss(*tensors[:2], found, *tensors[2:]))
        except ValueError as error:
            if self.across and "ref_" in str(error):
                raise ValueError(self._alone(error)) from error
            raise

    def _alone(self, why: object) -> str:
        name = self.title
        return (
            f"{name} cannot compare images with captions alone ({why}); write "
            f"cf.losses.MetricLearningLoss({name}(…), across=False)"
        )


@final
class SentenceTransformersLoss(VectorLoss):
    """A loss of sentence-transformers that takes embeddings, ``compute_loss_from_embeddings``.

    Args:
        loss: made with None in place of its model, ``MultipleNegativesRankingLoss(None)``.
        form: what it gets. "pair" for losses that take their negatives from the batch: images and a
            caption of each. "triplet": every image with a caption of it and the hardest other one
            of the batch. Of both the mean with the same from captions to images. "labeled-pair":
            pairs with labels 1 and 0, the true ones and the hardest wrong ones of every image and
            caption. "labels": images and captions with the row of their image, as for
            `MetricLearningLoss`.

    Raises:
        TypeError: it is no module.
        ValueError: another form, or one that the loss does not read, it encodes by itself, or it
            has a model.
    """

    def __init__(self, loss: nn.Module, *, form: Form = "pair") -> None:
        super().__init__(loss)
        if not hasattr(loss, "compute_loss_from_embeddings"):
            raise ValueError(
                f"{self.title} encodes by itself; give a loss with compute_loss_from_embeddings, "
                "such as MultipleNegativesRankingLoss(None) (large batches fit the memory by "
                "TrainConfig(grad_cache=…))"
            )
        if isinstance(getattr(loss, "model", None), nn.Module):
            raise ValueError(
                f"{self.title} has a model of its own, which would be saved with every "
                f"checkpoint; the vectors are those of the model in training: {self.title}(None)"
            )
        self.form: Form = parse_literal(Form, form, "a form")
        if why := _failure(loss, form):
            reads = [f'form="{one}"' for one in get_args(Form) if not _failure(loss, one)]
            if reads:  # else it may be the size of the vectors, or what else it is given
                raise ValueError(
                    f'{self.title} does not read form="{form}" ({why}); write '
                    f"cf.losses.SentenceTransformersLoss({self.title}(None), {reads[0]})"
                    + "".join(f", or {other}" for other in reads[1:])
                )

    def _loss(self, vectors: VectorScores) -> object:
        return _in_form(self.loss, self.form, vectors)


def _in_form(loss: nn.Module, form: Form, vectors: VectorScores) -> object:
    """A loss of sentence-transformers of a batch."""
    images, texts = vectors.images, vectors.texts
    compute = cast("Callable[..., Tensor]", loss.compute_loss_from_embeddings)
    if form == "labels":
        return compute([torch.cat([images, texts])], torch.cat(_labels(vectors)))
    first = _first_captions(vectors)
    if form == "pair":
        captions = texts[first]
        return (compute([images, captions], None) + compute([captions, images], None)) / 2
    own = vectors.text_to_image
    text, image = _hardest(vectors)
    i, t = ((side >= 0).nonzero().squeeze(1) for side in (text, image))
    if not len(i):  # no image, and then no caption, has a wrong partner in this batch
        return 0 * images.sum()
    if form == "triplet":
        to_text = compute([images[i], texts[first[i]], texts[text[i]]], None)
        return (to_text + compute([texts[t], images[own[t]], images[image[t]]], None)) / 2
    every = torch.arange(len(own), device=own.device)
    rows = torch.cat([own, i, image[t]]), torch.cat([every, text[i], t])
    labels = (torch.arange(len(rows[0]), device=own.device) < len(own)).float()
    return compute([images[rows[0]], texts[rows[1]]], labels)


@torch.no_grad()
def _failure(loss: nn.Module, form: Form) -> str:
    """Why a loss cannot be computed in a form, tried on a copy with any vectors; "" if it can."""
    images, texts = torch.rand(2, 16, 8, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(16)
    with torch.random.fork_rng([]):
        try:
            _in_form(deepcopy(loss), form, VectorScores(images, texts, rows, rows=rows))
        except Exception as error:  # of any kind: whatever the code of others raises
            return f"{type(error).__name__}: {error}"
    return ""


def _labels(vectors: VectorScores) -> tuple[Tensor, Tensor]:
    """(I,) rows of the images, and (T,) of those of the captions."""
    rows = cast("Tensor", vectors.rows).to(vectors.images.device)
    return rows, rows[vectors.text_to_image]


def _first_captions(vectors: VectorScores) -> Tensor:
    """(I,) the first caption of each image in the batch."""
    own = vectors.text_to_image
    first = own.new_full((len(vectors.images),), len(own))
    return first.scatter_reduce(0, own, torch.arange(len(own), device=own.device), "amin")


def _hardest(vectors: VectorScores) -> tuple[Tensor, Tensor]:
    """(I,) hardest wrong caption of each image, (T,) wrong image of each caption; -1 for none."""
    own = vectors.text_to_image
    every = torch.arange(len(own), device=own.device)
    scores = (vectors.images @ vectors.texts.T).detach()
    out = torch.zeros_like(scores, dtype=torch.bool)
    out[own, every] = True
    if vectors.exempt is not None:
        out[vectors.exempt.image, vectors.exempt.text] = True
    if vectors.equal is not None:
        rows = (torch.arange(size, device=own.device) for size in out.shape)
        out[vectors.equal.places(*rows)] = True
    scores = scores.masked_fill(out, -torch.inf)
    text, image = (scores.argmax(axis) for axis in (1, 0))
    return text.masked_fill(out.all(1), -1), image.masked_fill(out.all(0), -1)
