from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from counterfoil.core.types import Role
from counterfoil.data.dataset import Relation
from counterfoil.negatives.sampling import (
    AlternatingCandidates,
    CandidateConfig,
    ListedCandidates,
    NegativeSampler,
    RandomNegativeSampler,
    SamplingConfig,
    check_candidates,
)
from counterfoil.negatives.store import HardNegativeLists
from negatives_cases import ragged, ranked

TEXT, IMAGE = Role.HARD_TEXT, Role.HARD_IMAGE


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mined(relation: Relation, h: int = 6, k: int = 4) -> HardNegativeLists:
    scores = torch.rand(relation.images, len(relation.text_to_image), generator=rng(1))
    return ranked(scores, relation, h, k)


def test_random_ones_are_wrong_and_as_many_as_asked() -> None:
    relation = ragged(orphans=2)
    plan = CandidateConfig(texts=9, images=5)
    assert plan.provides == {TEXT, IMAGE}
    draws = plan.draws(relation)
    drawn = draws.draw(torch.arange(4), rng())
    assert [drawn[role].shape for role in (TEXT, IMAGE)] == [(4, 9), (4, 5)]
    for pairs in drawn.values():
        assert (relation.text_to_image[pairs.text] != pairs.image).all()
    assert CandidateConfig(images=2).provides == {IMAGE}
    assert not CandidateConfig().provides


def test_listed_ones_are_each_drawn_once_from_the_head() -> None:
    relation = ragged(orphans=2)
    lists = mined(relation)
    offer = CandidateConfig(texts=3, images=2, source="mined")
    draws = offer.draws(relation, lists, SamplingConfig(texts=5, images=3))
    anchors = (relation.text_to_image >= 0).nonzero().squeeze(1)
    seen: dict[Role, set[int]] = {TEXT: set(), IMAGE: set()}
    for seed in range(40):
        drawn = draws.draw(anchors, rng(seed))
        assert drawn.keys() == draws.provides == {TEXT, IMAGE}
        for n, anchor in enumerate(anchors.tolist()):
            own = int(relation.text_to_image[anchor])
            heads = {
                TEXT: [t for t in lists.texts[own, :5].tolist() if relation.text_to_image[t] >= 0],
                IMAGE: [i for i in lists.images[anchor, :3].tolist() if relation.counts[i] > 0],
            }
            for role, found, side, width in (
                (TEXT, drawn[TEXT].text, drawn[TEXT].image, 3),
                (IMAGE, drawn[IMAGE].image, drawn[IMAGE].text, 2),
            ):
                there = [row for row in found[n].tolist() if row >= 0]
                assert len(found[n]) == width
                assert len(there) == len(set(there)) == min(width, len(heads[role]))
                assert set(there) <= set(heads[role])
                assert set(side[n].tolist()) == {own if role is TEXT else anchor}
                if n == 0:
                    seen[role] |= set(there)
    own = int(relation.text_to_image[anchors[0]])
    assert seen[TEXT] == {
        t for t in lists.texts[own, :5].tolist() if relation.text_to_image[t] >= 0
    }


def test_a_short_list_is_filled_with_none() -> None:
    relation = Relation(torch.tensor([0, 1, 2]), images=3)
    rows = torch.tensor([[1, -1], [2, 0], [0, -1]], dtype=torch.int32)
    offer = CandidateConfig(texts=2, images=1)
    drawn = ListedCandidates(
        lists=HardNegativeLists(rows, rows), relation=relation, offer=offer
    ).draw(torch.arange(3), rng())
    assert drawn[TEXT].text[0].tolist() == [1, -1]
    assert sorted(drawn[TEXT].text[1].tolist()) == [0, 2]


@pytest.mark.parametrize("anchors", [1, 2, 7])
def test_two_streams_take_turns(anchors: int) -> None:
    relation = ragged()
    draws: NegativeSampler = AlternatingCandidates(
        RandomNegativeSampler(relation=relation, texts=3, images=2)
    )
    begun = set()
    for seed in range(12):
        drawn = draws.draw(torch.arange(anchors), rng(seed))
        texts = [bool((row >= 0).all()) for row in drawn[TEXT].text]
        images = [bool((row >= 0).all()) for row in drawn[IMAGE].image]
        assert [bool((row < 0).all()) for row in drawn[TEXT].text] == images
        assert images == [not one for one in texts]
        assert all(a != b for a, b in itertools.pairwise(texts))
        assert (drawn[TEXT].image >= 0).all()
        begun.add(texts[0])
    assert begun == {True, False}
    assert isinstance(
        CandidateConfig(texts=1, streams="two").draws(relation), AlternatingCandidates
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"texts": -1}, "texts=-1 and images=0: neither may be below 0"),
        ({"source": "mine"}, "'mine' is not a source of candidates; did you mean 'mined'"),
        ({"streams": "three"}, "'three' is not a form of streams"),
    ],
)
def test_a_plan_that_cannot_be(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CandidateConfig(**arguments)


def test_lists_that_are_too_short() -> None:
    relation = ragged()
    offer = CandidateConfig(texts=7, source="mined")
    with pytest.raises(ValueError, match="7 texts are to be offered from the 6 hardest"):
        offer.draws(relation, mined(relation))
    with pytest.raises(ValueError, match="7 texts are to be offered from the 2 hardest"):
        offer.draws(relation, mined(relation), SamplingConfig(texts=2))


def test_offering_and_screening_go_together() -> None:
    both = frozenset({TEXT, IMAGE})
    check_candidates(both, both, both)
    check_candidates(frozenset(), frozenset(), both)
    check_candidates(frozenset({TEXT}), both, frozenset({TEXT, Role.WRITTEN}))
    with pytest.raises(ValueError, match="the proposer screens none"):
        check_candidates(both, frozenset(), both)
    with pytest.raises(ValueError, match="in the role of 'hard image' are to be screened, and no"):
        check_candidates(frozenset({TEXT}), both, both)
