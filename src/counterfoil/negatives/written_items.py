"""Captions that a model writes for some captions of a corpus, with all that is known of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.negatives.candidates import Candidates, Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.hand import Hand, able, mask_of
from counterfoil.negatives.readings import Shown, read, scored
from counterfoil.reading import Want
from counterfoil.records import Items

AT_ONCE = 8  # captions
INSTEAD = "name a model that does, such as one trained with tags-dc/uniter-scenes"


@final
@dataclass(frozen=True, slots=True)
class WrittenItems:
    """W written captions, those of one caption side by side, the hardest first.

    Attributes:
        rows: (W,) corpus rows of the captions that they were made of.
        place: (W,) of each among those of its caption, from 0.
        texts: the captions as the writer reads them.
        original: (W, L) long, what each was made of, token by token.
        slots: (W, L) bool, tokens that were hidden when it was written.
        scores: (W,) what the writer thinks of it.
    """

    rows: Tensor
    place: Tensor
    texts: Items
    original: Tensor
    slots: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.rows)


def write_items(
    writer: Matcher,
    desk: Desk,
    rows: Tensor,
    *,
    hand: Hand,
    sieve: Sieve,
    keep: int,
    seed: int,
) -> Iterator[WrittenItems]:
    """Captions for some captions, a few at a time; a caption for which nothing is left has none.

    Args:
        writer: hides words, fills them and scores what came of it, in evaluation mode.
        desk: the corpus as the writer reads it.
        rows: (T,) captions that describe an image.
        hand: how to write.
        sieve: which written captions may be kept.
        keep: how many of each caption, at most; the hardest.
        seed: of what is hidden and of the words that are drawn.

    Raises:
        ValueError: the writer cannot fill hidden words.
    """
    able(writer, {Want.FILL}, "the writer", INSTEAD)
    mask, rng = mask_of(desk, writer), torch.Generator().manual_seed(seed)
    with progress("captions written for", len(rows)) as advance:
        for part in torch.split(rows, AT_ONCE):
            with evaluating([writer]):
                found = _written(writer, desk, part, hand, sieve, keep, mask, rng)
            yield found
            advance(len(part))


def _written(
    writer: Matcher,
    desk: Desk,
    rows: Tensor,
    hand: Hand,
    sieve: Sieve,
    keep: int,
    mask: int,
    rng: torch.Generator,
) -> WrittenItems:
    device = next(writer.parameters()).device
    owner = desk.lens.corpus.owner[rows]
    seen, at = torch.unique(owner, return_inverse=True)
    images, at = writer.encode_images(desk.lens.images(seen).to(device)), at.to(device)
    hidden = hand.hidden(desk, rows, mask=mask, rng=rng, device=device)
    shown = Shown(images, hidden.masked.texts, at.repeat_interleave(hand.masks))
    logits = read(writer, shown, frozenset({Want.FILL}), hidden.masked.slots).fill
    assert logits is not None
    written = hand.written(desk, hidden, logits, rng)
    found = Candidates(desk, owner, rows, hidden.texts.values, written)
    may = sieve.may(found)
    row, number = may.nonzero(as_tuple=True)
    texts = _with(hidden.texts, row, written[row, number])
    scores = scored(writer, Shown(images, texts, at[row]))
    best = sieve.picked(found, scores, may, keep)
    return WrittenItems(
        rows=rows[best.anchor.cpu()],
        place=best.column.cpu(),
        texts=texts.rows(best.place),
        original=hidden.texts.values[best.anchor],
        slots=hidden.slots[best.anchor, best.number // hand.refills],
        scores=scores[best.place].cpu(),
    )


def _with(texts: Items, row: Tensor, values: Tensor) -> Items:
    """Captions of these rows with other words."""
    some = texts.rows(row)
    return replace(some, ids=torch.full_like(some.ids, -1), values=values)
