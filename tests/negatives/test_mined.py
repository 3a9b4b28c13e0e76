from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.core.types import Pairs, Role
from counterfoil.data.dataset import Relation
from counterfoil.negatives.sampling import (
    NegativeSampler,
    OfflineNegativeSampler,
    SamplingConfig,
    images_for_texts,
)
from counterfoil.negatives.store import HardNegativeLists
from negatives_cases import ragged, random_lists


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def anchors(relation: Relation) -> Tensor:
    return (relation.text_to_image >= 0).nonzero().squeeze(1)


def in_list(lists: Tensor, drawn: Tensor) -> bool:
    return bool((lists.unsqueeze(1) == drawn.unsqueeze(2)).any(2).all())


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 999),
    orphans=st.integers(0, 3),
    count=st.integers(1, 4),
    tied=st.booleans(),
    resample=st.booleans(),
)
def test_what_is_drawn_comes_from_the_lists_and_is_wrong(
    seed: int, orphans: int, count: int, tied: bool, resample: bool
) -> None:
    relation = ragged(8, seed, orphans)
    lists = random_lists(relation, h=9, k=4, seed=seed)
    plan = SamplingConfig(count=count, tied_rank=tied, resample=resample)
    draws: NegativeSampler = OfflineNegativeSampler(lists=lists, relation=relation, plan=plan)
    texts = anchors(relation)
    drawn = draws.draw(texts, rng(seed))
    assert (
        drawn.keys()
        == draws.provides
        == {Role.HARD_TEXT, Role.HARD_IMAGE, Role.CROSS, Role.COMPANION}
    )
    text_to_image, own = relation.text_to_image, relation.text_to_image[texts]
    hard_text, hard_image = drawn[Role.HARD_TEXT], drawn[Role.HARD_IMAGE]
    cross, companion = drawn[Role.CROSS], drawn[Role.COMPANION]
    assert all(p.image.shape == p.text.shape == (len(texts), count) for p in drawn.values())
    assert (hard_text.image == own.unsqueeze(1)).all()
    assert (hard_image.text == texts.unsqueeze(1)).all()
    assert in_list(lists.texts[own], hard_text.text)
    assert in_list(lists.images[texts], hard_image.image)
    assert torch.equal(cross.text, hard_text.text)
    assert torch.equal(cross.image, hard_image.image)
    assert torch.equal(companion.image, text_to_image[hard_text.text])
    assert torch.equal(text_to_image[companion.text], hard_image.image)
    assert (text_to_image[hard_text.text] >= 0).all()
    derived = (cross, companion) if resample else ()
    for pair in (hard_text, hard_image, *derived):
        assert (text_to_image[pair.text] != pair.image).all()


def one_anchor(
    plan: SamplingConfig, draws: int = 30_000
) -> tuple[Tensor, HardNegativeLists, Relation, int]:
    """How often each (text rank, image rank) is drawn for text 0."""
    relation = Relation(torch.arange(6).repeat_interleave(2), images=6)
    lists = random_lists(relation, h=6, k=3, seed=5)
    mined = OfflineNegativeSampler(lists=lists, relation=relation, plan=plan)
    drawn = mined.draw(torch.zeros(draws, dtype=torch.long), rng())[Role.CROSS]
    text_rank = (lists.texts[0] == drawn.text).int().argmax(1)
    image_rank = (lists.images[0] == drawn.image).int().argmax(1)
    return torch.bincount(text_rank * 3 + image_rank, minlength=18), lists, relation, draws


def true_cells(lists: HardNegativeLists, relation: Relation) -> Tensor:
    """(18,) which pairs of ranks belong together."""
    found: Tensor = relation.text_to_image[lists.texts[0].long()].unsqueeze(1) == lists.images[0]
    return found.flatten()


@pytest.mark.parametrize("resample", [True, False])
def test_ranks_are_independent_and_uniform_over_pairs_that_do_not_correspond(
    resample: bool,
) -> None:
    counts, lists, relation, draws = one_anchor(SamplingConfig(resample=resample))
    true = true_cells(lists, relation)
    assert true.any()
    allowed = ~true if resample else torch.ones_like(true)
    share = draws / int(allowed.sum())
    assert (counts[~allowed] == 0).all()
    assert ((counts[allowed] - share).abs() < 6 * share**0.5).all()


def test_tied_ranks_are_those_of_the_released_sampler() -> None:
    counts, *_ = one_anchor(SamplingConfig(tied_rank=True, resample=False))
    assert counts.nonzero().squeeze(1).tolist() == [n * 3 + n // 2 for n in range(6)]


def test_tied_ranks_with_resampling_stay_tied_where_they_can() -> None:
    counts, lists, relation, draws = one_anchor(SamplingConfig(tied_rank=True))
    true = true_cells(lists, relation)
    tied = torch.tensor([n * 3 + n // 2 for n in range(6)])
    wanted = tied[~true[tied]]
    assert counts[true].sum() == 0
    assert counts[wanted].sum() > 0.999 * draws
    assert 0 < len(wanted) <= 6


def test_only_the_head_of_the_lists_is_drawn_when_asked() -> None:
    relation = ragged(10, 2)
    lists = random_lists(relation, h=12, k=6)
    mined = OfflineNegativeSampler(
        lists=lists, relation=relation, plan=SamplingConfig(texts=4, images=2, count=60)
    )
    texts = anchors(relation)
    drawn = mined.draw(texts, rng())
    assert in_list(lists.texts[relation.text_to_image[texts], :4], drawn[Role.HARD_TEXT].text)
    assert in_list(lists.images[texts, :2], drawn[Role.HARD_IMAGE].image)
    assert not in_list(lists.texts[relation.text_to_image[texts], :3], drawn[Role.HARD_TEXT].text)


def test_as_many_images_as_texts_by_captions() -> None:
    relation = ragged(10, 2)
    mean = len(relation.text_to_image) / 10
    lists = random_lists(relation, h=12, k=9)
    for texts in (0, 5):
        mined = OfflineNegativeSampler(
            lists=lists, relation=relation, plan=SamplingConfig(texts=texts, images=None, count=80)
        )
        depth = math.ceil((texts or 12) / mean)
        assert 1 < depth < 9
        drawn = mined.draw(anchors(relation), rng())[Role.HARD_IMAGE]
        assert in_list(lists.images[anchors(relation), :depth], drawn.image)
        assert not in_list(lists.images[anchors(relation), : depth - 1], drawn.image)


@pytest.mark.parametrize(
    ("text_to_image", "images", "texts", "wanted"),
    [
        ([n // 5 for n in range(1000)], 200, 300, 60),
        ([n // 5 for n in range(1000)], 200, 1000, 200),
        ([n // 5 for n in range(1000)], 200, 1, 1),
        ([0, 0, 1, -1, -1], 4, 6, 4),
        ([0, 0, 1, -1, -1], 9, 6, 4),
        ([-1], 1, 6, 1),
    ],
)
def test_how_many_images_go_with_texts(
    text_to_image: list[int], images: int, texts: int, wanted: int
) -> None:
    assert images_for_texts(texts, Relation(torch.tensor(text_to_image), images=images)) == wanted


def test_short_lists_draw_among_what_they_have() -> None:
    relation = Relation(torch.tensor([0, 1, 2]), images=3)
    texts = torch.tensor([[1, -1], [2, 0], [0, 1]]).int()
    images = torch.tensor([[2, -1], [0, 2], [1, -1]]).int()
    mined = OfflineNegativeSampler(
        lists=HardNegativeLists(texts, images), relation=relation, plan=SamplingConfig(count=200)
    )
    drawn = mined.draw(torch.arange(3), rng())
    assert drawn[Role.HARD_TEXT].text[0].unique().tolist() == [1]
    assert drawn[Role.HARD_IMAGE].image[0].unique().tolist() == [2]
    assert drawn[Role.HARD_TEXT].text[1].unique().tolist() == [0, 2]


def test_texts_that_describe_nothing_and_images_nothing_describes_are_stepped_over() -> None:
    relation = Relation(torch.tensor([0, 1, 2, -1]), images=4)
    texts = torch.tensor([[3, 1, 2], [3, 2, 0], [0, 3, 1], [0, 1, 2]]).int()
    images = torch.tensor([[3, 1, 2], [0, 3, 2], [0, 1, 3], [0, 1, 2]]).int()
    mined = OfflineNegativeSampler(
        lists=HardNegativeLists(texts, images), relation=relation, plan=SamplingConfig(count=300)
    )
    drawn = mined.draw(torch.arange(3), rng())
    assert 3 not in drawn[Role.HARD_TEXT].text
    assert 3 not in drawn[Role.HARD_IMAGE].image
    assert drawn[Role.HARD_TEXT].text[0].unique().tolist() == [1, 2]


def test_rare_wrong_pairs_are_found_however_unlikely() -> None:
    """Text 0 lists 300 texts of image 1 and one of image 2, and image 1 alone."""
    text_to_image = torch.tensor([0] + [1] * 300 + [2] * 2)
    relation = Relation(text_to_image, images=3)
    texts = torch.full((3, 301), -1, dtype=torch.int32)
    texts[0] = torch.arange(1, 302)
    texts[1, :3] = torch.tensor([0, 301, 302])
    texts[2] = torch.arange(301)
    images = torch.where(text_to_image == 1, 0, 1).int().unsqueeze(1)
    mined = OfflineNegativeSampler(
        lists=HardNegativeLists(texts, images), relation=relation, plan=SamplingConfig(count=50)
    )
    drawn = mined.draw(torch.tensor([0]), rng())
    assert drawn[Role.HARD_TEXT].text.unique().tolist() == [301]


def test_the_same_seed_draws_the_same() -> None:
    relation = ragged(9, 3)
    mined = OfflineNegativeSampler(lists=random_lists(relation, 8, 4), relation=relation)
    texts = anchors(relation)
    a, b, c = (mined.draw(texts, rng(s)) for s in (1, 1, 2))
    assert all(torch.equal(a[r].image, b[r].image) for r in a)
    assert all(torch.equal(a[r].text, b[r].text) for r in a)
    assert not torch.equal(a[Role.CROSS].text, c[Role.CROSS].text)


def test_every_caption_of_the_negative_image_can_be_its_companion() -> None:
    relation = Relation(torch.tensor([0, 1, 1, 1, 2]), images=3)
    texts = torch.tensor([[4, 4], [0, 4], [0, 1]]).int()
    images = torch.tensor([[1], [2], [2], [2], [0]]).int()
    mined = OfflineNegativeSampler(
        lists=HardNegativeLists(texts, images), relation=relation, plan=SamplingConfig(count=100)
    )
    companion: Pairs = mined.draw(torch.tensor([0]), rng())[Role.COMPANION]
    assert companion.text.unique().tolist() == [1, 2, 3]
    assert companion.image.unique().tolist() == [2]


SQUARE = Relation(torch.tensor([0, 1, 2]), images=3)


@pytest.mark.parametrize(
    ("texts", "images", "plan", "words"),
    [
        ([[1], [2], [0]], [[2], [0], [1]], {"texts": 2}, "2 texts of an image were asked for"),
        ([[1], [2], [0]], [[2], [0], [1]], {"images": 9}, "9 images of a text were asked for"),
        ([[1], [2]], [[2], [0], [1]], {}, "of 2 images and 3 texts, but the corpus has 3 and 3"),
        ([[0], [2], [0]], [[2], [0], [1]], {}, "hold 1 pairs that are true"),
        ([[1], [2], [0]], [[2], [1], [1]], {}, "hold 1 pairs that are true"),
        ([[-1], [2], [0]], [[2], [0], [1]], {}, "1 of 3 captions have no mined negative"),
        ([[1], [2], [0]], [[-1], [-1], [1]], {}, "2 of 3 captions have no mined negative"),
        ([[1], [2], [0]], [[1], [0], [1]], {}, "all negatives of 1 of 3 captions describe each"),
    ],
)
def test_lists_that_cannot_be_drawn_from_are_refused(
    texts: list[list[int]], images: list[list[int]], plan: dict[str, int], words: str
) -> None:
    lists = HardNegativeLists(torch.tensor(texts).int(), torch.tensor(images).int())
    with pytest.raises(ValueError, match=words):
        OfflineNegativeSampler(lists=lists, relation=SQUARE, plan=SamplingConfig(**plan))  # type: ignore[arg-type]


def test_lists_that_always_correspond_can_be_drawn_without_resampling() -> None:
    lists = HardNegativeLists(
        torch.tensor([[1], [2], [0]]).int(), torch.tensor([[1], [0], [1]]).int()
    )
    mined = OfflineNegativeSampler(
        lists=lists, relation=SQUARE, plan=SamplingConfig(resample=False)
    )
    cross = mined.draw(torch.tensor([0]), rng())[Role.CROSS]
    assert (cross.image.item(), cross.text.item()) == (1, 1)


@pytest.mark.parametrize("field", ["texts", "images", "count"])
def test_an_impossible_plan_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=-1"):
        SamplingConfig(**{field: -1})
