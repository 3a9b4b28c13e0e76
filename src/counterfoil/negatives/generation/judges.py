"""Other models' say on whether written captions are true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import ModalityBatch
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.processor import ProcessedDataset
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.generation.inputs import FalseNegativeJudge, PairInputs, score_in_parts
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.scoring.encode import evaluation_mode


@final
class JudgeModel:
    """Takes a written caption for true that a frozen model scores about as high as the original.

    Args:
        model: the model that is asked, on the device it is to run on.
        processor: what it sees of the data set.
        slack: a written caption counts as true from the original's score less this on, in units of
            a score; below 0 it has to be better.

    Raises:
        ValueError: the model reads ready-made vectors.
    """

    def __init__(
        self, *, model: RetrievalModel, processor: ProcessedDataset, slack: float = 0.0
    ) -> None:
        if processor.processor.tokenizer is None:
            raise ValueError(
                "a second opinion reads written captions, and this model reads ready-made vectors"
            )
        self.model, self.processor, self.slack = model, processor, slack

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether it takes each written caption for true; see `FalseNegativeJudge`."""
        seen, image = torch.unique(images, return_inverse=True)
        told, text = torch.unique(torch.stack([images, rows]), dim=1, return_inverse=True)
        place = torch.searchsorted(seen, told[0].contiguous())
        with evaluation_mode([self.model]):
            encoded = self.model.encode_images(self._there(self.processor.images(seen)))
        old = self._there(self.processor.texts(told[1]))
        new = self._there(self.processor.processor.process_texts(written))
        device = new.values.device
        true = score_in_parts(self.model, PairInputs(encoded, old, place.to(device)))
        found = score_in_parts(self.model, PairInputs(encoded, new, image.to(device)))
        return (found >= true[text.to(device)] - self.slack).cpu()

    def _there(self, items: ModalityBatch) -> ModalityBatch:
        """On the model's device."""
        first = next(self.model.parameters(), None)
        return items if first is None else items.to(first.device)


@final
class AnyJudge:
    """Takes a written caption for true that one of several opinions does.

    Args:
        opinions: at least one.
    """

    def __init__(self, opinions: Sequence[FalseNegativeJudge]) -> None:
        self.opinions = opinions

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether one takes each written caption for true; see `FalseNegativeJudge`."""
        return torch.stack([one.true(images, rows, written) for one in self.opinions]).any(0)


# Whether written captions say what a picture's other captions say, by their meaning alone.


@final
class ParaphraseJudge:
    """Takes a written caption for true that is as near in meaning to the others as its original.

    A foil is always near the caption that it was made of, so that one does not count: both are
    compared with the other captions of the picture, and the nearest of these counts. Of a picture
    without other captions everything is taken for false.

    Args:
        meanings: the sentence encoder that is asked.
        dataset: has the captions.
        slack: a written caption counts as true from the original's cosine less this on.
    """

    def __init__(
        self, *, meanings: SentenceEncoder, dataset: ImageTextDataset, slack: float = 0.0
    ) -> None:
        self.meanings, self.dataset, self.slack = meanings, dataset, slack

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether it takes each written caption for true; see `FalseNegativeJudge`."""
        images, rows = images.cpu(), rows.cpu()
        told = self.dataset.relation.captions(torch.unique(images))[0]
        told = torch.unique(torch.cat([told, rows]))
        texts = self.meanings.vectors([self.dataset.texts[row] for row in told.tolist()])
        of = CaptionNearness(self.dataset.relation, told, texts)
        old = of.nearest(texts[torch.searchsorted(told, rows)], images, rows)
        new = of.nearest(self.meanings.vectors(written), images, rows)
        return old.isfinite() & (new >= old - self.slack)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CaptionNearness:
    """What the captions of some images mean.

    Attributes:
        relation: which caption describes which image.
        rows: (R,) of these captions, ascending.
        vectors: (R, D) what they mean, of length 1.
    """

    relation: Relation
    rows: Tensor
    vectors: Tensor

    def nearest(self, vectors: Tensor, images: Tensor, besides: Tensor) -> Tensor:
        """(P,) cosine with the nearest caption of an image; -inf where there is none.

        Args:
            vectors: (P, D) what is asked about, of length 1.
            images: (P,) rows of images whose captions are all there.
            besides: (P,) a caption that does not count; -1 for none.
        """
        captions, counts = self.relation.captions(images)
        whose = torch.arange(len(images)).repeat_interleave(counts)
        own = self.vectors[torch.searchsorted(self.rows, captions)]
        near = (vectors[whose] * own).sum(1)
        near = near.masked_fill(captions == besides[whose], -torch.inf)
        return near.new_full((len(images),), -torch.inf).scatter_reduce(0, whose, near, "amax")
