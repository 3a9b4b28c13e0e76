"""Turns drawn corpus rows into a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.lens import CorpusLens
from counterfoil.records import Batch, Items, Pairs, Role

Positives = Literal["id", "diagonal"]


@final
class _Pool:
    """Corpus rows in order of first use, so that nothing is encoded twice."""

    def __init__(self, anchors: Tensor) -> None:
        self._rows = anchors.tolist()
        self._place = {row: place for place, row in reversed(list(enumerate(self._rows)))}

    def places(self, rows: Tensor) -> Tensor:
        flat = []
        for row in rows.flatten().tolist():
            if row not in self._place:
                self._place[row] = len(self._rows)
                self._rows.append(row)
            flat.append(self._place[row])
        return torch.tensor(flat, dtype=torch.long).view(rows.shape)

    def rows(self) -> Tensor:
        return torch.tensor(self._rows, dtype=torch.long)


def _placed(roles: Mapping[Role, Pairs], image_pool: _Pool, text_pool: _Pool) -> dict[Role, Pairs]:
    return {
        role: Pairs(image_pool.places(pair.image), text_pool.places(pair.text))
        for role, pair in roles.items()
    }


def shared(rows: Tensor) -> Tensor:
    """This process's share of a pool; the last row stands in where the rows do not divide."""
    mine = world.share(len(rows))
    return rows[torch.arange(mine.start, mine.stop).clamp(max=len(rows) - 1)]


def _offered(
    lens: CorpusLens, candidates: Mapping[Role, Pairs], texts: Tensor
) -> tuple[Items, Items] | None:
    """What the candidates of this process's share of the anchors are made of, each once."""
    if not candidates:
        return None
    mine = shared(torch.arange(len(texts)))
    images = [lens.corpus.relation.owner[texts[mine]]]
    images += [pair.image[mine].flatten() for pair in candidates.values()]
    captions = [texts[mine], *(pair.text[mine].flatten() for pair in candidates.values())]
    seen, read = (torch.unique(rows) for rows in (torch.cat(images), torch.cat(captions)))
    return lens.images(seen[seen >= 0]), lens.texts(read[read >= 0])


def _told(lens: CorpusLens, texts: Tensor, row: Tensor, pool: int) -> Tensor | None:
    """(N, C, L) token ids of the anchor captions of each image in this process's share.

    Args:
        lens: where texts come from.
        texts: (B,) anchor text rows.
        row: (B,) places of their images in the pool.
        pool: how many images it has.
    """
    mine = world.share(pool)
    count = mine.stop - mine.start
    here = (row >= mine.start) & (row < mine.stop)
    if not bool(here.any()):
        return torch.full((count, 1, 1), -1)
    items, place = lens.texts(texts[here]), row[here] - mine.start
    if items.values.is_floating_point():
        return None
    earlier = (place.unsqueeze(1) == place).tril(-1).sum(1)
    told = torch.full((count, int(earlier.max()) + 1, items.values.shape[1]), -1)
    told[place, earlier] = items.values.masked_fill(~items.mask, -1)
    return told


def collate(
    lens: CorpusLens,
    texts: Tensor,
    *,
    drawn: Mapping[Role, Pairs] | None = None,
    candidates: Mapping[Role, Pairs] | None = None,
    positives: Positives = "id",
    step: int = 0,
) -> Batch:
    """A batch of B anchor texts, their images (each once), and drawn candidates behind them.

    Two captions of one image share its row, and each is a positive of it. Every process calls
    this with the same rows; each reads only its share of the pools.

    Args:
        lens: where items come from.
        texts: (B,) anchor text rows.
        drawn: pairs of corpus rows by role, each (B, N).
        candidates: pairs of corpus rows for a proposer to screen, each (B, N); -1 for none. Each
            process reads those of its share of the anchors.
        positives: by image id, or "diagonal": the authors' form, where image b stands once for
            every anchor and the other captions of the same image count as negatives.
        step: how many batches came before.
    """
    relation = lens.corpus.relation
    owners = relation.owner[texts]
    assert (owners >= 0).all(), "an anchor text describes an image"
    if positives == "id":
        images, row = torch.unique(owners, return_inverse=True)
        positive = relation.positive(images, texts)
    else:
        images, row = owners, torch.arange(len(texts))
        positive = torch.eye(len(texts), dtype=torch.bool)
    image_pool, text_pool = _Pool(images), _Pool(texts)
    pairs = _placed(drawn or {}, image_pool, text_pool)
    seen = lens.images(shared(image_pool.rows()))
    return Batch(
        step=step,
        image_rows=image_pool.rows(),
        text_rows=text_pool.rows(),
        images=replace(seen, targets=_told(lens, texts, row, len(image_pool.rows()))),
        texts=lens.texts(shared(text_pool.rows())),
        block=(len(images), len(texts)),
        positive=positive,
        anchors=Pairs(row, torch.arange(len(texts))),
        pairs=pairs,
        candidates=candidates or {},
        offered=_offered(lens, candidates or {}, texts),
    )
