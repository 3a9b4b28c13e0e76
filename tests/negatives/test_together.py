from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import train_cases as cases
from counterfoil.core.config import config, lazy
from counterfoil.core.types import Batch, ModalityBatch, Pairs, Role, WordTask
from counterfoil.data.batching import collate
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.tags import WordLoss
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.online import MinedExtras, MinerChain, TopScoringMiner, screens_lists
from counterfoil.negatives.sampling import RandomNegativeSampler
from counterfoil.scoring.encode import concatenate_batches, pad_tokens
from counterfoil.training.step import TrainingStep

ANCHORS = [0, 5, 9, 13]


class Writes:
    """Two new texts for every anchor, one of them longer than any other, and a word task."""

    provides = frozenset({Role.WRITTEN})
    provides_words = frozenset({"masked"})

    def __init__(self, image: bool = False) -> None:
        self.image, self.refuses = image, False

    def check(self, model: RetrievalModel) -> None:
        if self.refuses:
            raise ValueError("not with this model")

    def propose(self, model: Any, batch: Batch, *rest: Any) -> MinedExtras:
        count = len(batch.anchors.image)
        texts = ModalityBatch(
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
        return MinedExtras(texts, {Role.WRITTEN: pairs}, {"masked": words}, images)


class Scored:
    """Scores of pairs that nobody else sees."""

    provides = frozenset({Role.EDITED})
    provides_words = frozenset[str]()

    def propose(self, model: Any, batch: Batch, *rest: Any) -> MinedExtras:
        return MinedExtras(scores={Role.EDITED: torch.full((len(batch.anchors.image), 1), 0.5)})


def batch_of(step: int = 0) -> Batch:
    processor = cases.processor()
    rows = torch.tensor(ANCHORS)
    draws = RandomNegativeSampler(relation=processor.dataset.relation, texts=6, images=6)
    found = draws.draw(rows, torch.Generator().manual_seed(step))
    return collate(processor, rows, candidates=found, step=step)


def seen(proposer: Any, batch: Batch, needs: Mapping[str, Any]) -> dict[Role, Tensor]:
    """(B, N) scores by role, as a step makes them."""
    found: dict[Role, Tensor] = {}
    step = TrainingStep(
        cases.host("bag", cases.processor()), WeightedSum(terms=dict(needs)), proposer=proposer
    )
    real = step.objective.forward

    def spy(scores: Any) -> Any:
        found.update(scores.pairs)
        return real(scores)

    step.objective.forward = spy  # type: ignore[method-assign]
    step(batch)
    return found


WRITTEN = {"w": (1.0, MarginRankingLoss(role="written"))}
TEXTS = {"t": (1.0, MarginRankingLoss(role="hard text"))}
MASKED = {"m": (1.0, WordLoss(task="masked"))}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("image", [True, False])
def test_each_is_scored_as_it_would_be_alone(first: bool, image: bool) -> None:
    batch = batch_of()
    both = (TopScoringMiner(keep=3), Writes(image), Scored())
    together = MinerChain(proposers=both if first else both[::-1])
    found = seen(together, batch, {**WRITTEN, **TEXTS, **MASKED})
    alone = seen(TopScoringMiner(keep=3), batch, TEXTS) | seen(
        Writes(image), batch, {**WRITTEN, **MASKED}
    )
    assert found.keys() == together.provides
    assert (found[Role.EDITED] == 0.5).all()
    for role, scores in alone.items():
        torch.testing.assert_close(found[role], scores)


def test_what_each_needs_and_offers_is_what_they_need_and_offer() -> None:
    together = MinerChain(proposers=(TopScoringMiner(keep=3), Writes()))
    assert together.provides == {Role.HARD_TEXT, Role.HARD_IMAGE, Role.WRITTEN}
    assert together.provides_words == {"masked"}
    assert screens_lists(together) == TopScoringMiner.screens
    assert screens_lists(MinerChain(proposers=(Writes(),))) == frozenset()
    refuses = Writes()
    refuses.refuses = True
    for proposers in ((TopScoringMiner(), refuses), (refuses,)):
        with pytest.raises(ValueError, match="not with this model"):
            MinerChain(proposers=proposers).check(cases.host("bag", cases.processor()))


def test_a_written_call_builds_them_all() -> None:
    spec = config(
        MinerChain, proposers=(lazy(TopScoringMiner, keep=5), lazy(TopScoringMiner, keep=6))
    )
    with pytest.raises(ValueError, match="'hard image', 'hard text'; drop one"):
        spec.build()
    (one,) = config(MinerChain, proposers=(lazy(TopScoringMiner, keep=5),)).build().proposers
    assert isinstance(one, TopScoringMiner)
    assert one.keep == 5


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one"):
        MinerChain(proposers=())
    with pytest.raises(ValueError, match="Writes and another proposer both provide 'masked', 'wri"):
        MinerChain(proposers=(Writes(), TopScoringMiner(), Writes()))


def test_joined_items_are_padded_to_the_longest() -> None:
    processor = cases.processor()
    short, long = (
        processor.texts(torch.tensor([0, 1])),
        pad_tokens(processor.texts(torch.tensor([2])), 20),
    )
    both = concatenate_batches([short, long])
    width = short.mask.shape[1]
    assert both.values.shape == both.mask.shape == (3, 20)
    assert torch.equal(both.values[:2, :width], short.values)
    assert not both.mask[:2, width:].any()
    seen = processor.images(torch.tensor([3]))
    boxes = torch.rand(*seen.mask.shape, 4)
    words = torch.zeros_like(seen.mask).long()
    told = replace(seen, boxes=boxes, words=words)
    assert concatenate_batches([seen, told]).boxes is None
    whole = concatenate_batches([told, pad_tokens(told, 9)])
    assert whole.boxes is not None
    assert whole.words is not None
    assert torch.equal(whole.boxes[1, : boxes.shape[1]], boxes[0])
    assert (whole.words[:, boxes.shape[1] :] == -1).all()
