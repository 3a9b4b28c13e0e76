from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import train_cases as cases
from counterfoil.corpus.collate import collate
from counterfoil.engine.items import joined, padded
from counterfoil.matcher import Matcher
from counterfoil.negatives.draws import RandomNegatives
from counterfoil.negatives.proposal import Proposal, screened
from counterfoil.negatives.screened import Screened
from counterfoil.negatives.together import Together
from counterfoil.objectives.term import Objective
from counterfoil.objectives.triplet import RankedBelow
from counterfoil.objectives.words import Words
from counterfoil.records import Batch, Items, Pairs, Role, WordTask
from counterfoil.spec import of, part
from counterfoil.train.step import Step

ANCHORS = [0, 5, 9, 13]


class Writes:
    """Two new texts for every anchor, one of them longer than any other, and a word task."""

    provides = frozenset({Role.WRITTEN})
    provides_words = frozenset({"masked"})

    def __init__(self, image: bool = False) -> None:
        self.image, self.refuses = image, False

    def check(self, matcher: Matcher) -> None:
        if self.refuses:
            raise ValueError("not with this model")

    def propose(self, matcher: Any, batch: Batch, *rest: Any) -> Proposal:
        count = len(batch.anchors.image)
        texts = Items(
            torch.full((2 * count,), -1),
            torch.arange(2 * count * 11).view(-1, 11) % 5,
            torch.ones(2 * count, 11, dtype=torch.bool),
        )
        place = len(batch.text_rows) + torch.arange(2 * count).view(count, 2)
        pairs = Pairs(batch.anchors.image.unsqueeze(1).expand(-1, 2), place)
        words = WordTask(torch.zeros(3, 4), torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
        images = batch.images.rows(slice(0, 1)) if self.image else None
        if self.image:
            pairs = Pairs(torch.full_like(place, len(batch.image_rows)), place)
        return Proposal(texts, {Role.WRITTEN: pairs}, {"masked": words}, images)


class Scored:
    """Scores of pairs that nobody else sees."""

    provides = frozenset({Role.EDITED})
    provides_words = frozenset[str]()

    def propose(self, matcher: Any, batch: Batch, *rest: Any) -> Proposal:
        return Proposal(scores={Role.EDITED: torch.full((len(batch.anchors.image), 1), 0.5)})


def batch_of(step: int = 0) -> Batch:
    lens = cases.lens()
    rows = torch.tensor(ANCHORS)
    draws = RandomNegatives(relation=lens.corpus.relation, texts=6, images=6)
    found = draws.draw(rows, torch.Generator().manual_seed(step))
    return collate(lens, rows, candidates=found, step=step)


def seen(proposer: Any, batch: Batch, needs: Mapping[str, Any]) -> dict[Role, Tensor]:
    """(B, N) scores by role, as a step makes them."""
    found: dict[Role, Tensor] = {}
    step = Step(cases.host("bag", cases.lens()), Objective(terms=dict(needs)), proposer=proposer)
    real = step.objective.forward

    def spy(scores: Any) -> Any:
        found.update(scores.pairs)
        return real(scores)

    step.objective.forward = spy  # type: ignore[method-assign]
    step(batch)
    return found


WRITTEN = {"w": (1.0, RankedBelow(role="written"))}
TEXTS = {"t": (1.0, RankedBelow(role="hard text"))}
MASKED = {"m": (1.0, Words(task="masked"))}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("image", [True, False])
def test_each_is_scored_as_it_would_be_alone(first: bool, image: bool) -> None:
    batch = batch_of()
    both = (Screened(keep=3), Writes(image), Scored())
    together = Together(proposers=both if first else both[::-1])
    found = seen(together, batch, {**WRITTEN, **TEXTS, **MASKED})
    alone = seen(Screened(keep=3), batch, TEXTS) | seen(Writes(image), batch, {**WRITTEN, **MASKED})
    assert found.keys() == together.provides
    assert (found[Role.EDITED] == 0.5).all()
    for role, scores in alone.items():
        torch.testing.assert_close(found[role], scores)


def test_what_each_needs_and_offers_is_what_they_need_and_offer() -> None:
    together = Together(proposers=(Screened(keep=3), Writes()))
    assert together.provides == {Role.HARD_TEXT, Role.HARD_IMAGE, Role.WRITTEN}
    assert together.provides_words == {"masked"}
    assert screened(together) == Screened.screens
    assert screened(Together(proposers=(Writes(),))) == frozenset()
    refuses = Writes()
    refuses.refuses = True
    for proposers in ((Screened(), refuses), (refuses,)):
        with pytest.raises(ValueError, match="not with this model"):
            Together(proposers=proposers).check(cases.host("bag", cases.lens()))


def test_a_written_call_builds_them_all() -> None:
    spec = of(Together, proposers=(part(Screened, keep=5), part(Screened, keep=6)))
    with pytest.raises(ValueError, match="'hard image', 'hard text'; drop one"):
        spec.build()
    (one,) = of(Together, proposers=(part(Screened, keep=5),)).build().proposers
    assert isinstance(one, Screened)
    assert one.keep == 5


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one"):
        Together(proposers=())
    with pytest.raises(ValueError, match="Writes and another proposer both provide 'masked', 'wri"):
        Together(proposers=(Writes(), Screened(), Writes()))


def test_joined_items_are_padded_to_the_longest() -> None:
    lens = cases.lens()
    short, long = lens.texts(torch.tensor([0, 1])), padded(lens.texts(torch.tensor([2])), 20)
    both = joined([short, long])
    width = short.mask.shape[1]
    assert both.values.shape == both.mask.shape == (3, 20)
    assert torch.equal(both.values[:2, :width], short.values)
    assert not both.mask[:2, width:].any()
    seen = lens.images(torch.tensor([3]))
    boxes = torch.rand(*seen.mask.shape, 4)
    words = torch.zeros_like(seen.mask).long()
    told = replace(seen, boxes=boxes, words=words)
    assert joined([seen, told]).boxes is None
    whole = joined([told, padded(told, 9)])
    assert whole.boxes is not None
    assert whole.words is not None
    assert torch.equal(whole.boxes[1, : boxes.shape[1]], boxes[0])
    assert (whole.words[:, boxes.shape[1] :] == -1).all()
