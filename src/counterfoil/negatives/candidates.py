"""Which of the captions written for an anchor may be kept, and which are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from counterfoil.core.literals import parse_choice
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.written_filters import (
    agrees,
    copies,
    hardest,
    known,
    lowered,
    twice,
)
from counterfoil.spec import unknown

Rule = Literal["captions", "lemmas", "wordnet", "inflection"]
RULES: tuple[Rule, ...] = ("captions", "lemmas", "wordnet", "inflection")
Choice = Literal["exact", "lowered logits", "lowered scores"]
CHOICES: tuple[Choice, ...] = ("exact", "lowered logits", "lowered scores")


@final
@dataclass(frozen=True, slots=True)
class Candidates:
    """Captions written for B anchors.

    Attributes:
        desk: where they were written.
        images: (B,) corpus rows of the anchors' images.
        rows: (B,) corpus rows of the anchors' captions.
        original: (B, L) long, their captions.
        written: (B, N, L) long.
    """

    desk: Desk
    images: Tensor
    rows: Tensor
    original: Tensor
    written: Tensor


@final
@dataclass(frozen=True, slots=True)
class Picked:
    """The hardest of B anchors' written captions; C of them in all.

    Attributes:
        anchor: (C,) for which anchor.
        column: (C,) its place among those of the anchor, the hardest first.
        number: (C,) which of the anchor's written captions it is.
        place: (C,) which of those that were scored it is.
    """

    anchor: Tensor
    column: Tensor
    number: Tensor
    place: Tensor


class Opinion(Protocol):
    """Another model's say on whether captions are true."""

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether it takes each written caption for true.

        Args:
            images: (P,) corpus rows.
            rows: (P,) corpus rows of the captions that were changed.
            written: P captions.
        """
        ...


@final
class Sieve:
    """Leaves out what may be true or is written twice, and picks the hardest of the rest.

    Args:
        rules: a caption is left out when all its new words occur in the image's captions
            ("captions", the paper's rule), or some form of each does ("lemmas"), or some form of
            each is what WordNet has as a synonym or a wider term of one that does ("wordnet"); and
            when a new word has another inflection than the old one ("inflection").
        choice: "exact" leaves copies out; "lowered logits" and "lowered scores" are the authors'
            first and second step, which leave nothing out and lower the scores of copies: what a
            probability was before the sigmoid, or the score itself (T3). They know no rules (T2).
        opinion: a model that is asked about the hardest.

    Raises:
        ValueError: an unknown rule or choice, or rules where the choice has none.
    """

    def __init__(
        self,
        *,
        rules: tuple[Rule, ...] = ("captions",),
        choice: Choice = "exact",
        opinion: Opinion | None = None,
    ) -> None:
        if strange := [rule for rule in rules if rule not in RULES]:
            raise ValueError(unknown(strange[0], list(RULES), "a rule for written captions"))
        parse_choice(CHOICES, choice, "a way to choose written captions")
        if choice != "exact" and (rules or opinion):
            raise ValueError(
                f"choice={choice!r} is the authors' form, which leaves nothing out; give it "
                "rules=() and no opinion"
            )
        self.rules, self.choice, self.opinion = rules, choice, opinion

    def may(self, found: Candidates) -> Tensor:
        """(B, N) bool, which may be kept; the others need not be scored."""
        written, original = found.written, found.original
        if self.choice != "exact":
            return torch.ones_like(written[:, :, 0], dtype=torch.bool)
        out = ~(copies(written, original) | twice(written))
        for rule in self.rules:
            out &= self._passes(rule, found)
        return out

    def picked(self, found: Candidates, scores: Tensor, may: Tensor, count: int) -> Picked:
        """The hardest of the captions that may be kept.

        Args:
            found: the captions.
            scores: (P,) of those that may be kept, anchor by anchor.
            may: (B, N) bool, which these are.
            count: M, of each anchor.
        """
        room = scores.new_full(may.shape, -torch.inf)
        room[may] = scores
        best = self.best(found, room, may, count)
        row, column = (best >= 0).nonzero(as_tuple=True)
        number = best[row, column]
        place = (may.flatten().cumsum(0) - 1).view(may.shape)
        return Picked(row, column, number, place[row, number])

    def best(self, found: Candidates, scores: Tensor, may: Tensor, count: int) -> Tensor:
        """(B, M) long, places of the hardest; -1 where none is left.

        Args:
            found: the captions.
            scores: (B, N), -inf where they may not be kept.
            may: (B, N) bool.
            count: M.
        """
        if self.choice != "exact":
            copy, again = copies(found.written, found.original), twice(found.written)
            if self.choice == "lowered logits":
                scores = _logits(scores)
            return hardest(lowered(scores, copy, again, scale="logits"), may, count)
        places = hardest(scores, may, 2 * count if self.opinion else count)
        if self.opinion is None:
            return places
        row, column = (places >= 0).nonzero(as_tuple=True)
        if not len(row):
            return places[:, :count]
        values = found.written[row, places[row, column]]
        rows = found.rows[row.cpu()]
        written = found.desk.strings(rows.tolist(), values)
        true = self.opinion.true(found.images[row.cpu()], rows, written).to(may.device)
        left = torch.zeros_like(may)
        left[row, places[row, column]] = ~true
        return hardest(scores, left, count)

    def _passes(self, rule: Rule, found: Candidates) -> Tensor:
        desk, device = found.desk, found.written.device
        written, original = found.written, found.original
        if rule == "inflection":
            return agrees(written, original, desk.inflections.to(device))
        there = desk.occurring(found.images)
        if rule == "captions":
            return ~known(written, original, there.to(device))
        if rule == "wordnet":
            return ~known(written, original, desk.widened(there).to(device))
        lemmas = desk.lemmas
        seen = torch.zeros(there.shape).scatter_reduce(
            1, lemmas.expand_as(there), there.float(), "amax"
        )
        lemmas = lemmas.to(device)
        return ~known(lemmas[written], lemmas[original], seen.bool().to(device))


def _logits(scores: Tensor) -> Tensor:
    """What probabilities were before the sigmoid."""
    scores = scores.float()
    if bool(((scores < 0) | (scores > 1)).any()):
        raise ValueError(
            f"choice='lowered logits' was given scores from {scores.min():.3g} to "
            f"{scores.max():.3g}, which are no probabilities; use 'lowered scores'"
        )
    return scores.logit()
