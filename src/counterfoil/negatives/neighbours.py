"""Mined hard images that join a batch together with captions of their own."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.apart import against, texts_apart
from counterfoil.corpus.relation import Relation
from counterfoil.negatives.draws import below
from counterfoil.negatives.lists import Lists, usable

_NOBODY = frozenset[int]()


@final
class Neighbours:
    """Brings one mined hard image of each anchor into the batch, by one of its captions.

    NegCLIP (https://arxiv.org/abs/2210.01936), section 4: a batch of B pairs becomes one of 2B, in
    which every image and every caption is a negative of the others, and whatever is written for
    captions is written for those of the neighbours too. The image is drawn uniformly from the list
    of the anchor caption, the caption uniformly from those of the image.

    Departs from the authors' code in: neighbours are the wrong images that score highest with the
    anchor caption, not the nearest to its image; a caption that is in the batch already does not
    come again, nor does one where something in the batch was judged true that would be a negative,
    so there may be fewer than 2B; two captions of one image are both true of it.

    Args:
        lists: mined from this corpus; only those of texts are read.
        relation: who describes whom. Images that nothing describes are not drawn.

    Raises:
        ValueError: lists of another corpus, or no anchor has a neighbour.

    >>> relation = Relation(torch.tensor([0, 1, 2]), images=3)
    >>> rows = torch.tensor([[1], [2], [0]], dtype=torch.int32)
    >>> neighbours = Neighbours(lists=Lists(rows, rows), relation=relation)
    >>> neighbours.joined(torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    tensor([0, 1, 2])
    """

    def __init__(self, *, lists: Lists, relation: Relation) -> None:
        lists.check(relation)
        self.relation = relation
        self._against = against(texts_apart(relation))
        self._images, self._counts = usable(lists.images, relation.counts > 0)
        if not bool((self._counts[relation.owner >= 0] > 0).any()):
            raise ValueError(
                "no caption has a mined image that could join it in a batch; mine again from a "
                "corpus of at least two described images"
            )

    def joined(self, texts: Tensor, rng: torch.Generator) -> Tensor:
        """(B + N,) text rows: the (B,) anchors, and behind them N <= B captions of neighbours."""
        anchors = texts[self._counts[texts] > 0]
        images = self._images[anchors, below(self._counts[anchors], rng)].long()
        found = dict.fromkeys(texts.tolist())
        for text in self.relation.random_caption(images, rng).tolist():
            if self._against.get(text, _NOBODY).isdisjoint(found):
                found[text] = None
        return torch.tensor(list(found))
