"""Judges: models that decide whether generated captions are true after all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import ModalityBatch
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.processor import ProcessedDataset
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.papers.tags.scoring import PairInputs, score_in_parts
from counterfoil.scoring.encode import evaluation_mode


@final
class JudgeModel:
    """Takes a caption for true if a frozen model scores it about as high as the original.

    It does so if the caption scores at least the original's score less `slack`; if that is
    negative, it has to score higher.

    Raises:
        ValueError: the model reads ready-made vectors.
    """

    def __init__(
        self, *, model: RetrievalModel, processor: ProcessedDataset, slack: float = 0.0
    ) -> None:
        if processor.processor.tokenizer is None:
            raise ValueError(
                "a judge reads generated captions, and this model reads ready-made vectors"
            )
        self.model, self.processor, self.slack = model, processor, slack

    def is_true(self, images: Tensor, rows: Tensor, generated: list[str]) -> Tensor:
        """Return (P,) bool, True for captions that it takes for true; see `FalseNegativeJudge`."""
        # Each image and each original pair is encoded and scored once.
        unique, image = torch.unique(images, return_inverse=True)
        pairs, pair = torch.unique(torch.stack([images, rows]), dim=1, return_inverse=True)
        place = torch.searchsorted(unique, pairs[0].contiguous())
        with evaluation_mode([self.model]):
            encoded = self.model.encode_images(self._to_device(self.processor.images(unique)))
        old = self._to_device(self.processor.texts(pairs[1]))
        new = self._to_device(self.processor.processor.process_texts(generated))
        device = new.values.device
        original = score_in_parts(self.model, PairInputs(encoded, old, place.to(device)))
        scores = score_in_parts(self.model, PairInputs(encoded, new, image.to(device)))
        return (scores >= original[pair.to(device)] - self.slack).cpu()

    def _to_device(self, items: ModalityBatch) -> ModalityBatch:
        first = next(self.model.parameters(), None)
        return items if first is None else items.to(first.device)


@final
class ParaphraseJudge:
    """Takes a caption for true if it means what the image's other captions mean.

    A generated caption is always near the one it was made from, so that one does not count: both
    are compared with the other captions of the image, and the nearest of these decides: a caption
    counts as true from the original's cosine less `slack` on. For an image without other captions,
    every generated caption is taken for false.
    """

    def __init__(
        self, *, meanings: SentenceEncoder, dataset: ImageTextDataset, slack: float = 0.0
    ) -> None:
        self.meanings, self.dataset, self.slack = meanings, dataset, slack

    def is_true(self, images: Tensor, rows: Tensor, generated: list[str]) -> Tensor:
        """Return (P,) bool, True for captions that it takes for true; see `FalseNegativeJudge`."""
        images, rows = images.cpu(), rows.cpu()
        captions = self.dataset.relation.captions(torch.unique(images))[0]
        captions = torch.unique(torch.cat([captions, rows]))
        vectors = self.meanings.vectors([self.dataset.texts[row] for row in captions.tolist()])
        nearness = CaptionNearness(self.dataset.relation, captions, vectors)
        old = nearness.nearest(vectors[torch.searchsorted(captions, rows)], images, rows)
        new = nearness.nearest(self.meanings.vectors(generated), images, rows)
        return old.isfinite() & (new >= old - self.slack)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CaptionNearness:
    """Unit vectors of the captions of some images.

    Attributes:
        relation: image of each caption.
        rows: (R,) rows of the captions, ascending.
        vectors: (R, D) their vectors, of length 1.
    """

    relation: Relation
    rows: Tensor
    vectors: Tensor

    def nearest(self, vectors: Tensor, images: Tensor, besides: Tensor) -> Tensor:
        """Return the (P,) cosine with the nearest caption of an image; -inf for no caption.

        Args:
            vectors: (P, D) the vectors to compare, of length 1.
            images: (P,) rows of images whose captions are all known.
            besides: (P,) a caption that does not count; -1 for none.
        """
        captions, counts = self.relation.captions(images)
        query = torch.arange(len(images)).repeat_interleave(counts)
        caption_vectors = self.vectors[torch.searchsorted(self.rows, captions)]
        near = (vectors[query] * caption_vectors).sum(1)
        near = near.masked_fill(captions == besides[query], -torch.inf)
        return near.new_full((len(images),), -torch.inf).scatter_reduce(0, query, near, "amax")
