from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core.types import Pairs, Role
from counterfoil.data.dataset import Relation
from counterfoil.negatives.sampling import (
    NegativeSampler,
    RandomNegativeSampler,
    RoleSubset,
    random_below,
)
from negatives_cases import ragged


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), images=st.integers(2, 9), orphans=st.integers(0, 3))
def test_nothing_true_is_drawn_and_shapes_are_anchors_by_count(
    seed: int, images: int, orphans: int
) -> None:
    relation = ragged(images, seed, orphans)
    draws: NegativeSampler = RandomNegativeSampler(relation=relation, texts=7, images=7)
    texts = (relation.text_to_image >= 0).nonzero().squeeze(1)
    drawn = draws.draw(texts, torch.Generator().manual_seed(seed))
    assert drawn.keys() == draws.provides == {Role.HARD_TEXT, Role.HARD_IMAGE}
    hard_text, hard_image = drawn[Role.HARD_TEXT], drawn[Role.HARD_IMAGE]
    for pair in (hard_text, hard_image):
        assert pair.shape == (len(texts), 7) == pair.text.shape
        assert (relation.text_to_image[pair.text] != pair.image).all()
    assert (hard_text.image == relation.text_to_image[texts].unsqueeze(1)).all()
    assert (hard_image.text == texts.unsqueeze(1)).all()


def test_every_wrong_row_is_equally_likely() -> None:
    relation = ragged(6, 1, orphans=2)
    anchor = int((relation.text_to_image == 3).nonzero()[0])
    draws = RandomNegativeSampler(relation=relation, texts=40_000, images=40_000)
    drawn = draws.draw(torch.tensor([anchor]), torch.Generator().manual_seed(0))
    texts = torch.bincount(drawn[Role.HARD_TEXT].text[0], minlength=len(relation.text_to_image))
    images = torch.bincount(drawn[Role.HARD_IMAGE].image[0], minlength=6)
    for counts, wrong in ((texts, relation.text_to_image != 3), (images, torch.arange(6) != 3)):
        assert (counts[~wrong] == 0).all()
        share = 40_000 / int(wrong.sum())
        assert ((counts[wrong] - share).abs() < 6 * share**0.5).all()


def test_the_same_seed_draws_the_same() -> None:
    draws = RandomNegativeSampler(relation=ragged(), texts=5, images=5)
    a, b, c = (
        draws.draw(torch.arange(8), torch.Generator().manual_seed(s))[Role.HARD_TEXT].text
        for s in (3, 3, 4)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(
    ("text_to_image", "images"), [([0, 0], 1), ([1, 1, 1], 2), ([], 0), ([], 3)]
)
def test_a_corpus_without_wrong_pairs_is_refused(text_to_image: list[int], images: int) -> None:
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    with pytest.raises(ValueError, match="leave no wrong pair to draw"):
        RandomNegativeSampler(relation=relation)


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="texts=0 and images=0"):
        RandomNegativeSampler(relation=ragged(), texts=0, images=0)


def test_one_side_alone() -> None:
    draws = RandomNegativeSampler(relation=ragged(), texts=0, images=4)
    drawn = draws.draw(torch.arange(3), torch.Generator().manual_seed(0))
    assert drawn.keys() == draws.provides == {Role.HARD_IMAGE}
    assert drawn[Role.HARD_IMAGE].shape == (3, 4)
    with pytest.raises(ValueError, match="texts=-1 and images=4"):
        RandomNegativeSampler(relation=ragged(), texts=-1, images=4)


def test_below_reaches_all_numbers_and_no_other() -> None:
    drawn = random_below(torch.full((2000,), 5), torch.Generator().manual_seed(0))
    assert drawn.unique().tolist() == [0, 1, 2, 3, 4]


def test_only_what_is_needed_is_drawn():
    relation = Relation(torch.tensor([0, 0, 1]), images=2)
    source = RandomNegativeSampler(relation=relation, texts=2, images=2)
    needed = RoleSubset(source, frozenset({Role.HARD_TEXT, Role.CROSS}))
    drawn = needed.draw(torch.tensor([0, 2]), torch.Generator().manual_seed(0))
    whole = source.draw(torch.tensor([0, 2]), torch.Generator().manual_seed(0))
    assert set(drawn) == needed.provides == {Role.HARD_TEXT}
    assert torch.equal(drawn[Role.HARD_TEXT].text, whole[Role.HARD_TEXT].text)
    with pytest.raises(ValueError, match="no term of the objective needs"):
        RoleSubset(source, frozenset({Role.WRITTEN}))


def test_what_was_judged_true_is_drawn_anew() -> None:
    """All others stay as likely as before; where nothing else is wrong, it is drawn after all."""
    besides = Pairs(torch.tensor([0, 2]), torch.tensor([3, 0]))
    text_to_image = torch.tensor([0, 0, 1, 1, 2])
    anchors = torch.zeros(4000, dtype=torch.long)
    rng = torch.Generator().manual_seed(0)
    relation = Relation(text_to_image, images=3, besides=besides)
    drawn = RandomNegativeSampler(relation=relation).draw(anchors, rng)
    texts = torch.bincount(drawn[Role.HARD_TEXT].text.flatten(), minlength=5)
    assert texts[[0, 1, 3]].tolist() == [0, 0, 0]
    assert abs(int(texts[2]) - 2000) < 200
    assert drawn[Role.HARD_IMAGE].image.unique().tolist() == [1]
    every = Pairs(torch.tensor([0, 0, 0]), torch.tensor([2, 3, 4]))
    alone = RandomNegativeSampler(relation=Relation(text_to_image, images=3, besides=every))
    assert alone.draw(anchors[:2], rng)[Role.HARD_TEXT].text.shape == (2, 1)
