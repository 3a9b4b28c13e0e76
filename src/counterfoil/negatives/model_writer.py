"""A writer that looks at the picture: a frozen model changes phrases of every caption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.negatives.candidates import Candidates, Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.hand import Hand, Hidden, able, at_least_one, mask_of
from counterfoil.negatives.readings import Shown, read, scored
from counterfoil.negatives.writers import as_compared, dice
from counterfoil.negatives.written_store import Changed, WrittenFoil
from counterfoil.reading import Want
from counterfoil.records import Encoded

WRITER = "tags"
PLACES = 6  # decimal places of a stored score


@final
class ModelWriter:
    """Writes what `Tailored` would write if it were frozen, one caption after the other.

    TAGS (https://arxiv.org/abs/2111.03349), Algorithm 1. Each caption is read by itself, with a
    random state that depends on the seed and its name alone: what is written of it depends neither
    on the captions beside it, nor on their order, nor on the number of processes. What is itself a
    caption of the image, or the same words as another foil, is left out, so that there may be fewer
    than `keep`.
    """

    def __init__(
        self,
        *,
        desk: Desk,
        matcher: Matcher,
        hand: Hand,
        keep: int = 10,
        sieve: Sieve | None = None,
        seed: int = 0,
    ) -> None:
        """Keyword arguments.

        Args:
            desk: what the model reads.
            matcher: the model, on the device it is to run on.
            hand: how it writes.
            keep: m, hardest foils that are kept of each caption, at most.
            sieve: which of them may be kept; None for the paper's rule.
            seed: of what is hidden and drawn.

        Raises:
            ValueError: the model has no head for hidden words or nothing that hides them, or
                `keep` is below 1.
        """
        at_least_one({"keep": keep})
        able(matcher, {Want.FILL, Want.SCORE}, "the writer", "name a model that does, as UNITER")
        self.desk, self.matcher, self.hand, self.keep = desk, matcher, hand, keep
        self.sieve, self.seed = sieve or Sieve(), seed
        self._mask = mask_of(desk, matcher)
        self._device = next(matcher.parameters()).device

    def foils(self, rows: Sequence[int]) -> Iterator[WrittenFoil]:
        """Foils of these captions of the corpus, each an image's, the hardest of each first."""
        image, seen = -1, None
        owner = self.desk.lens.corpus.owner
        with evaluating([self.matcher]), world.apart():
            for row in rows:
                if seen is None or image != int(owner[row]):
                    image = int(owner[row])
                    some = self.desk.lens.images(torch.tensor([image])).to(self._device)
                    seen = self.matcher.encode_images(some)
                yield from self._of(row, image, seen)

    def _of(self, row: int, image: int, seen: Encoded) -> list[WrittenFoil]:
        """Foils of one caption."""
        rng = dice(f"{self.seed}/{self.desk.lens.corpus.text_ids[row]}")
        rows = torch.tensor([row])
        draft = self.hand.hidden(self.desk, rows, mask=self._mask, rng=rng, device=self._device)
        if not len(draft.masked.labels):
            return []  # no word of it is known
        written = self.hand.written(self.desk, draft, self._guessed(draft, seen), rng)
        values = draft.texts.values
        found = Candidates(self.desk, torch.tensor([image]), rows, values, written)
        may = self.sieve.may(found)
        scores = self._scores(draft, written[may], seen)
        best = self.sieve.picked(found, scores[1:], may, self.keep)
        values = written[0, best.number]
        return self._told(row, image, values, scores[1:][best.place].tolist(), float(scores[0]))

    def _guessed(self, draft: Hidden, seen: Encoded) -> Tensor:
        """(M, V) logits at the slots."""
        texts, slots = draft.masked.texts, draft.masked.slots
        image = torch.zeros(len(texts), dtype=torch.long, device=self._device)
        logits = read(self.matcher, Shown(seen, texts, image), frozenset({Want.FILL}), slots).fill
        assert logits is not None
        return logits

    def _scores(self, draft: Hidden, values: Tensor, seen: Encoded) -> Tensor:
        """(1 + P,) of the caption, and of P that were written of it."""
        values = torch.cat([draft.texts.values, values])
        image = torch.zeros(len(values), dtype=torch.long, device=self._device)
        texts = replace(draft.texts.rows(image), ids=torch.full_like(image, -1), values=values)
        return scored(self.matcher, Shown(seen, texts, image))

    def _told(
        self, row: int, image: int, values: Tensor, scores: list[float], true: float
    ) -> list[WrittenFoil]:
        """What is kept of a caption, as text."""
        corpus = self.desk.lens.corpus
        caption, before = corpus.texts[row], self.desk.texts(torch.tensor([row])).values[0]
        captions, _ = corpus.relation.captions(torch.tensor([image]))
        said = {as_compared(corpus.texts[one]) for one in captions.tolist()}
        out = []
        for ids, made, score in zip(
            values.cpu(), self.desk.rewritings([row] * len(values), values), scores, strict=True
        ):
            if as_compared(made.text) in said:
                continue
            said.add(as_compared(made.text))
            changed = tuple(
                Changed(caption[start:stop], made.text[begin:end], begin, end)
                for (start, stop), (begin, end) in made.changes
            )
            out.append(
                WrittenFoil(
                    image=corpus.image_ids[image],
                    text=corpus.text_ids[row],
                    caption=caption,
                    foil=made.text,
                    kind=self.desk.kind(row, (ids != before).nonzero().flatten().tolist()),
                    changed=changed,
                    scores={"foil": round(score, PLACES), "caption": round(true, PLACES)},
                    writer=WRITER,
                )
            )
        return out
