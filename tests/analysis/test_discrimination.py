from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.tags import FoilPairs, foil_accuracies


@pytest.mark.parametrize("seed", range(4))
def test_by_loops(seed):
    rng = torch.Generator().manual_seed(seed)
    captions = torch.randint(9, (40,), generator=rng) * 2
    images, hardest = captions // 4, torch.rand(40, generator=rng) < 0.3
    positive, negative = (torch.randint(5, (40,), generator=rng).double() for _ in range(2))
    found = foil_accuracies(FoilPairs(images, captions, hardest), positive, negative)
    right = [p > n for p, n in zip(positive.tolist(), negative.tolist())]
    assert found.pairs.value == pytest.approx(100 * sum(right) / 40)
    first = [r for r, h in zip(right, hardest.tolist()) if h]
    assert found.hardest.value == pytest.approx(100 * sum(first) / len(first))
    groups: dict[int, list[bool]] = {}
    for caption, won in zip(captions.tolist(), right):
        groups.setdefault(caption, []).append(won)
    wanted = 100 * sum(all(one) for one in groups.values()) / len(groups)
    assert found.every.value == pytest.approx(wanted)
    assert found.every.count == len(groups)
    guessed = sum(1 / (1 + len(one)) for one in groups.values()) / len(groups)
    assert found.chance == pytest.approx(100 * guessed)
    for share in (found.pairs, found.hardest, found.every):
        assert share.interval.low <= share.value <= share.interval.high


def test_a_tie_is_wrong_and_nobody_need_say_what_is_hardest():
    duels = FoilPairs(torch.tensor([0, 1]), torch.tensor([0, 3]), None)
    found = foil_accuracies(duels, torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.4]))
    assert found.pairs.value == found.every.value == 50
    assert found.hardest is None
    assert found.to_dict()["hardest"] is None
