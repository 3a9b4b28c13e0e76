"""Whether written captions say what a picture's other captions say, by their meaning alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.meanings import Meanings
from counterfoil.corpus.relation import Relation


@final
class Paraphrase:
    """Takes a written caption for true that is as near in meaning to the others as its original.

    A foil is always near the caption that it was made of, so that one does not count: both are
    compared with the other captions of the picture, and the nearest of these counts. Of a picture
    without other captions everything is taken for false.

    Args:
        meanings: the sentence encoder that is asked.
        corpus: has the captions.
        slack: a written caption counts as true from the original's cosine less this on.
    """

    def __init__(self, *, meanings: Meanings, corpus: Corpus, slack: float = 0.0) -> None:
        self.meanings, self.corpus, self.slack = meanings, corpus, slack

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether it takes each written caption for true; see `Opinion`."""
        images, rows = images.cpu(), rows.cpu()
        told = self.corpus.relation.captions(torch.unique(images))[0]
        told = torch.unique(torch.cat([told, rows]))
        texts = self.meanings.vectors([self.corpus.texts[row] for row in told.tolist()])
        of = Nearness(self.corpus.relation, told, texts)
        old = of.nearest(texts[torch.searchsorted(told, rows)], images, rows)
        new = of.nearest(self.meanings.vectors(written), images, rows)
        return old.isfinite() & (new >= old - self.slack)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Nearness:
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
