from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.tags import foil_accuracies


@pytest.mark.parametrize("seed", range(4))
def test_by_loops(seed):
    rng = torch.Generator().manual_seed(seed)
    captions = torch.randint(9, (40,), generator=rng) * 2
    images, hardest = captions // 4, torch.rand(40, generator=rng) < 0.3
    positive, negative = (torch.randint(5, (40,), generator=rng).double() for _ in range(2))
    found = foil_accuracies(images, captions, hardest, positive, negative)
    pairs, at_hardest, every = (share for share, _ in found.values())
    right = [p > n for p, n in zip(positive.tolist(), negative.tolist())]
    assert pairs.value == pytest.approx(100 * sum(right) / 40)
    first = [r for r, h in zip(right, hardest.tolist()) if h]
    assert at_hardest.value == pytest.approx(100 * sum(first) / len(first))
    groups: dict[int, list[bool]] = {}
    for caption, won in zip(captions.tolist(), right):
        groups.setdefault(caption, []).append(won)
    wanted = 100 * sum(all(one) for one in groups.values()) / len(groups)
    assert every.value == pytest.approx(wanted)
    assert every.count == len(groups)
    guessed = sum(1 / (1 + len(one)) for one in groups.values()) / len(groups)
    assert found["every"][1] == pytest.approx(100 * guessed)
    for share in (pairs, at_hardest, every):
        assert share.interval.low <= share.value <= share.interval.high


def test_a_tie_is_wrong_and_nobody_need_say_what_is_hardest():
    images, captions = torch.tensor([0, 1]), torch.tensor([0, 3])
    scores = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.4])
    found = foil_accuracies(images, captions, None, *scores)
    assert found["pairs"][0].value == found["every"][0].value == 50
    assert found["hardest"] == (None, 50.0)
