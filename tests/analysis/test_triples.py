from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.tags import (
    all_scores,
    in_all,
    in_batches,
    triple_difficulty,
)
from counterfoil.data.dataset import Relation
from evaluation_cases import member, scores

OWNER = torch.tensor([0, 0, 1, 1, 1, 2, -1, 3])
RELATION = Relation(OWNER, images=4)
ANCHORS = torch.tensor([1, 4, 7])


def drawn(seed: int = 0) -> torch.Tensor:
    return torch.rand(3, len(OWNER), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(5))
def test_the_hardest_of_all_by_a_loop(seed):
    found = in_all(drawn(seed), ANCHORS, RELATION)
    for place, row in enumerate(ANCHORS.tolist()):
        wrong = [t for t, o in enumerate(OWNER.tolist()) if o >= 0 and o != OWNER[row]]
        assert found[place] == max(wrong, key=lambda t: drawn(seed)[place, t])


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_of_everything_finds_the_hardest_of_all(seed):
    rng = torch.Generator().manual_seed(seed)
    found = in_batches(drawn(seed), ANCHORS, RELATION, batch=99, rng=rng)
    assert torch.equal(found, in_all(drawn(seed), ANCHORS, RELATION))


def test_a_small_batch_holds_other_images_captions_alone():
    picked = torch.stack(
        [
            in_batches(drawn(), ANCHORS, RELATION, batch=2, rng=torch.Generator().manual_seed(seed))
            for seed in range(200)
        ]
    )
    for place, row in enumerate(ANCHORS.tolist()):
        own = set((OWNER[row] == OWNER).nonzero().flatten().tolist())
        found = set(picked[:, place].tolist())
        assert not found & (own | {6})
        assert (-1 in found) is (len(own) > 1)  # the other caption may be one of the same image
        assert found >= set(range(8)) - own - {6}


def test_where_all_captions_are_of_one_image():
    alone = Relation(torch.tensor([0, 0]), images=1)
    rows = torch.tensor([0])
    assert in_all(torch.zeros(1, 2), rows, alone).tolist() == [-1]
    rng = torch.Generator()
    assert in_batches(torch.zeros(1, 2), rows, alone, batch=2, rng=rng).tolist() == [-1]


def test_scores_of_some_images():
    found = scores(4, OWNER, 0)
    assert torch.equal(all_scores([member(found)], torch.tensor([2, 0])), found[[2, 0]].float())


def test_difficulty_by_hand():
    positive = torch.tensor([0.5, 0.5, 0.5, 0.5])
    negative = torch.tensor([0.6, 0.5, 0.48, 0.25])
    above, below, gap = triple_difficulty(positive, negative, torch.arange(4), level=0.25)
    assert above.value == below.value == 25
    assert gap.value == pytest.approx((0.1 - 0.02 - 0.25) / 4)
    assert above.interval.low <= 25 <= above.interval.high
