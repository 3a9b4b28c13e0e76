"""Triples and foils of TAGS, against loops."""

from __future__ import annotations

import pytest
import torch

import tailored_cases
from counterfoil.data.dataset import Relation
from counterfoil.papers.tags.figures import (
    foil_accuracies,
    hardest_captions,
    random_captions,
    triple_difficulty,
)

# Figure 1a: triples.


OWNER = torch.tensor([0, 0, 1, 1, 1, 2, -1, 3])
RELATION = Relation(OWNER, images=4)
ANCHORS = torch.tensor([1, 4, 7])


def drawn(seed: int = 0) -> torch.Tensor:
    return torch.rand(3, len(OWNER), generator=torch.Generator().manual_seed(seed))


def hardest(seed: int = 0, batch: int = 99, drawn_by: int = 0):
    """Hardest wrong captions of a batch and of all."""
    rng = torch.Generator().manual_seed(drawn_by)
    return hardest_captions(drawn(seed), ANCHORS, RELATION, batch=batch, rng=rng)


@pytest.mark.parametrize("seed", range(5))
def test_the_hardest_of_all_by_a_loop(seed):
    in_batch, in_all = hardest(seed, drawn_by=seed)
    assert torch.equal(in_batch, in_all), "of a batch of everything"
    for place, row in enumerate(ANCHORS.tolist()):
        wrong = [t for t, o in enumerate(OWNER.tolist()) if o >= 0 and o != OWNER[row]]
        assert in_all[place] == max(wrong, key=lambda t: drawn(seed)[place, t])


def test_a_small_batch_holds_other_images_captions_alone():
    picked = torch.stack([hardest(batch=2, drawn_by=seed)[0] for seed in range(200)])
    for place, row in enumerate(ANCHORS.tolist()):
        own = set((OWNER[row] == OWNER).nonzero().flatten().tolist())
        found = set(picked[:, place].tolist())
        assert not found & (own | {6})
        assert (-1 in found) is (len(own) > 1)  # the other caption may be one of the same image
        assert found >= set(range(8)) - own - {6}


def test_where_all_captions_are_of_one_image():
    alone, rng = Relation(torch.tensor([0, 0]), images=1), torch.Generator()
    both = hardest_captions(torch.zeros(1, 2), torch.tensor([0]), alone, batch=2, rng=rng)
    assert [found.tolist() for found in both] == [[-1], [-1]]


def test_difficulty_by_hand():
    positive = torch.tensor([0.5, 0.5, 0.5, 0.5])
    negative = torch.tensor([0.6, 0.5, 0.48, 0.25])
    found = triple_difficulty(positive, negative, torch.arange(4), level=0.25)
    above, below, gap = found.values()
    assert above.value == below.value == 25
    assert gap.value == pytest.approx((0.1 - 0.02 - 0.25) / 4)
    assert above.interval.low <= 25 <= above.interval.high


# Table 4: captions against foils.


@pytest.mark.parametrize("seed", range(4))
def test_accuracies_by_loops(seed):
    rng = torch.Generator().manual_seed(seed)
    captions = torch.randint(9, (40,), generator=rng) * 2
    images, hardest = captions // 4, torch.rand(40, generator=rng) < 0.3
    positive, negative = (torch.randint(5, (40,), generator=rng).double() for _ in range(2))
    found = foil_accuracies(images, captions, hardest, positive, negative)
    pairs, at_hardest, every = found.pairs, found.hardest, found.every
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
    assert found.chance["every"] == pytest.approx(100 * guessed)
    for share in (pairs, at_hardest, every):
        assert share.interval.low <= share.value <= share.interval.high


def test_a_tie_is_wrong_and_nobody_need_say_what_is_hardest():
    images, captions = torch.tensor([0, 1]), torch.tensor([0, 3])
    scores = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.4])
    found = foil_accuracies(images, captions, None, *scores)
    assert found.pairs.value == found.every.value == found.chance["hardest"] == 50
    assert found.hardest is None


# Random captions of other images, the easy control.


def test_others_are_of_other_pictures_and_say_something_else() -> None:
    dataset = tailored_cases.dataset()
    dataset.texts[5] = dataset.texts[0]  # two pictures of which the same was said
    rows = torch.tensor([0, 4, 5, 11])
    [found] = random_captions(dataset, rows, 99, seed=0)
    for row in rows.tolist():
        own = {
            t
            for t, o in zip(dataset.texts, dataset.text_to_image)
            if o == dataset.text_to_image[row]
        }
        said = [text for text, of in zip(found.texts, found.rows.tolist()) if of == row]
        foreign = [
            t
            for t, o in zip(dataset.texts, dataset.text_to_image)
            if o != dataset.text_to_image[row]
        ]
        assert sorted(said) == sorted(text for text in foreign if text not in own)
        assert len(said) < len(foreign) or row not in (0, 5)
    [few] = random_captions(dataset, rows, 2, seed=1)
    assert few.rows.tolist() == [0, 0, 4, 4, 5, 5, 11, 11]
    assert few.texts != next(random_captions(dataset, rows, 2, seed=2)).texts


def test_where_all_pictures_are_one_there_are_none() -> None:
    alone = tailored_cases.dataset(images=1)
    assert not list(random_captions(alone, torch.tensor([0]), 3, seed=0))
