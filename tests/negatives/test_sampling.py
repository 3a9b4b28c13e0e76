"""Samplers of random and mined negatives and of candidates."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import pstdev
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.core.types import Pairs, Role
from counterfoil.data.dataset import Relation
from counterfoil.negatives.sampling import (
    AlternatingCandidates,
    CandidateConfig,
    NegativeSampler,
    OfflineNegativeSampler,
    RandomNegativeSampler,
    RoleSubset,
    SamplingConfig,
    images_for_texts,
)
from counterfoil.negatives.store import HardNegativeLists
from negatives_cases import ragged, random_lists, ranked, rng


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), images=st.integers(2, 9), orphans=st.integers(0, 3))
def test_nothing_true_is_drawn_and_shapes_are_anchors_by_count(
    seed: int, images: int, orphans: int
) -> None:
    relation = ragged(images, seed, orphans)
    draws: NegativeSampler = RandomNegativeSampler(relation=relation, texts=7, images=7)
    texts = (relation.text_to_image >= 0).nonzero().squeeze(1)
    drawn = draws.draw(texts, rng(seed))
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
    drawn = draws.draw(torch.tensor([anchor]), rng())
    texts = torch.bincount(drawn[Role.HARD_TEXT].text[0], minlength=len(relation.text_to_image))
    images = torch.bincount(drawn[Role.HARD_IMAGE].image[0], minlength=6)
    for counts, wrong in ((texts, relation.text_to_image != 3), (images, torch.arange(6) != 3)):
        assert (counts[~wrong] == 0).all()
        share = 40_000 / int(wrong.sum())
        assert ((counts[wrong] - share).abs() < 6 * share**0.5).all()


@pytest.mark.parametrize(
    ("text_to_image", "images"), [([0, 0], 1), ([1, 1, 1], 2), ([], 0), ([], 3)]
)
def test_a_corpus_without_wrong_pairs_is_refused(text_to_image: list[int], images: int) -> None:
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    with pytest.raises(ValueError, match="leave no wrong pair to draw"):
        RandomNegativeSampler(relation=relation)


def test_one_side_alone() -> None:
    draws = RandomNegativeSampler(relation=ragged(), texts=0, images=4)
    drawn = draws.draw(torch.arange(3), rng())
    assert drawn.keys() == draws.provides == {Role.HARD_IMAGE}
    assert drawn[Role.HARD_IMAGE].shape == (3, 4)
    for texts, images in ((-1, 4), (0, 0)):
        with pytest.raises(ValueError, match=f"texts={texts} and images={images}"):
            RandomNegativeSampler(relation=ragged(), texts=texts, images=images)


def test_only_what_is_needed_is_drawn():
    relation = Relation(torch.tensor([0, 0, 1]), images=2)
    source = RandomNegativeSampler(relation=relation, texts=2, images=2)
    needed = RoleSubset(source, frozenset({Role.HARD_TEXT, Role.CROSS}))
    drawn = needed.draw(torch.tensor([0, 2]), rng())
    whole = source.draw(torch.tensor([0, 2]), rng())
    assert set(drawn) == needed.provides == {Role.HARD_TEXT}
    assert torch.equal(drawn[Role.HARD_TEXT].text, whole[Role.HARD_TEXT].text)
    with pytest.raises(ValueError, match="no term of the objective needs"):
        RoleSubset(source, frozenset({Role.WRITTEN}))


def test_what_was_judged_true_is_drawn_anew() -> None:
    """All others stay as likely as before; where nothing else is wrong, it is drawn after all."""
    besides = Pairs(torch.tensor([0, 2]), torch.tensor([3, 0]))
    text_to_image = torch.tensor([0, 0, 1, 1, 2])
    anchors = torch.zeros(4000, dtype=torch.long)
    chance = rng()
    relation = Relation(text_to_image, images=3, besides=besides)
    drawn = RandomNegativeSampler(relation=relation).draw(anchors, chance)
    texts = torch.bincount(drawn[Role.HARD_TEXT].text.flatten(), minlength=5)
    assert texts[[0, 1, 3]].tolist() == [0, 0, 0]
    assert abs(int(texts[2]) - 2000) < 200
    assert drawn[Role.HARD_IMAGE].image.unique().tolist() == [1]
    every = Pairs(torch.tensor([0, 0, 0]), torch.tensor([2, 3, 4]))
    alone = RandomNegativeSampler(relation=Relation(text_to_image, images=3, besides=every))
    assert alone.draw(anchors[:2], chance)[Role.HARD_TEXT].text.shape == (2, 1)


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


def scored_lists(relation: Relation, h: int, k: int, seed: int = 0) -> HardNegativeLists:
    """Lists by random scores, with these and those of true pairs; in float16 as stored."""
    scores = torch.rand(relation.images, len(relation.text_to_image), generator=rng(seed)).half()
    lists = ranked(scores, relation, h, k)
    of_texts = scores.gather(1, lists.texts.long().clamp(min=0))
    of_images = scores.T.gather(1, lists.images.long().clamp(min=0))
    true = scores[relation.text_to_image.clamp(min=0), torch.arange(scores.shape[1])]
    return HardNegativeLists(
        lists.texts,
        lists.images,
        of_texts.masked_fill(lists.texts < 0, -torch.inf),
        of_images.masked_fill(lists.images < 0, -torch.inf),
        true.masked_fill(relation.text_to_image < 0, -torch.inf),
    )


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("plan", [{"ambiguity": 0.5}, {"ambiguity": 2.0, "centre": -1.0}], ids=str)
def test_ambiguous_negatives_are_drawn_by_their_scores(plan: dict[str, Any], resample: bool):
    """Frequencies of both negatives together are those of a loop over the pairs of two lists."""
    relation = ragged(6, 3, orphans=2)
    lists = scored_lists(relation, h=5, k=3)
    anchor, most = int(anchors(relation)[4]), 4
    image = int(relation.text_to_image[anchor])
    config = SamplingConfig(texts=most, images=3, count=40_000, resample=resample, **plan)
    drawn = OfflineNegativeSampler(lists=lists, relation=relation, plan=config).draw(
        torch.tensor([anchor]), rng(1)
    )

    def weights(listed: Tensor, scores: Tensor, usable: Callable[[int], bool], row: int, keep: int):
        rows = [
            [(item, score) for item, score in zip(r[:keep], s[:keep]) if item >= 0 and usable(item)]
            for r, s in zip(listed.tolist(), scores.tolist())
        ]
        unit = pstdev([score for entries in rows for _, score in entries])
        true = lists.true_scores[anchor].item()
        return {
            item: math.exp(
                -plan["ambiguity"] * ((score - true) / unit - plan.get("centre", 0.0)) ** 2
            )
            for item, score in rows[row]
        }

    owner = relation.text_to_image.tolist()
    texts = weights(lists.texts, lists.text_scores, lambda t: owner[t] >= 0, image, most)
    images = weights(lists.images, lists.image_scores, lambda i: i in owner, anchor, 3)
    both = {
        (t, i): texts[t] * images[i] for t in texts for i in images if not resample or owner[t] != i
    }
    pairs = zip(drawn[Role.HARD_TEXT].text[0].tolist(), drawn[Role.HARD_IMAGE].image[0].tolist())
    counts = Counter(pairs)
    assert counts.keys() <= both.keys()
    total = sum(both.values())
    for pair, weight in both.items():
        expected = 40_000 * weight / total
        assert abs(counts[pair] - expected) < 6 * expected**0.5 + 3, pair
    spread = [both[p] / total for p in both]
    assert max(spread) > 3 * min(spread)  # else a uniform draw would pass


def test_ambiguous_negatives_are_exact_where_redraws_do_not_end():
    """All but one entry of the text list describe the only image that weighs anything."""
    relation = Relation(torch.tensor([0, 1, 1, 1, 2]), images=3)
    texts = torch.tensor([[1, 2, 3, 4], [0, 4, -1, -1], [0, 1, -1, -1]]).int()
    images = torch.tensor([[1, 2], [0, 2], [0, 2], [0, 2], [0, 1]]).int()
    far = 60.0  # the other image, and the other text, are far from ambiguous
    lists = HardNegativeLists(
        texts,
        images,
        torch.tensor([[1.0, 1, 1, -far], [1, 1, 0, 0], [1, 1, 0, 0]]).half(),
        torch.tensor([[1.0, -far], [1, 1], [1, 1], [1, 1], [1, 1]]).half(),
        torch.ones(5).half(),
    )
    plan = SamplingConfig(ambiguity=50.0, count=200)
    drawn = OfflineNegativeSampler(lists=lists, relation=relation, plan=plan).draw(
        torch.tensor([0]), rng()
    )
    pairs = zip(drawn[Role.HARD_TEXT].text[0].tolist(), drawn[Role.HARD_IMAGE].image[0].tolist())
    assert {*pairs} <= {(1, 2), (2, 2), (3, 2), (4, 1)}


def test_lists_without_scores_cannot_be_drawn_by_them():
    relation, plan = ragged(), SamplingConfig(ambiguity=0.5)
    bare = random_lists(relation, h=5, k=3)
    with pytest.raises(ValueError, match="hold no scores; mine them with `counterfoil mine`"):
        OfflineNegativeSampler(lists=bare, relation=relation, plan=plan)
    partial = replace(scored_lists(relation, h=5, k=3), true_scores=None)
    with pytest.raises(ValueError, match="hold no scores of the true pairs; mine"):
        OfflineNegativeSampler(lists=partial, relation=relation, plan=plan)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda scores: scores.clamp(min=65504).half(), r"scores of these lists \d+ are beyond"),
        (lambda scores: torch.zeros_like(scores), "scores of these lists all are equal"),
    ],
    ids=["beyond float16", "equal"],
)
def test_scores_that_cannot_be_told_apart_are_no_even_draw_without_a_word(change, fault: str):
    relation = ragged()
    lists = scored_lists(relation, h=5, k=3)
    names = "text_scores", "image_scores", "true_scores"
    known = {name: getattr(lists, name) for name in names}
    changed = {name: s.where(s.isneginf(), change(s)) for name, s in known.items()}
    with pytest.raises(ValueError, match=fault):
        OfflineNegativeSampler(
            lists=replace(lists, **changed), relation=relation, plan=SamplingConfig(ambiguity=0.5)
        )


def test_candidates_are_not_drawn_by_scores():
    relation, offer = ragged(), CandidateConfig(texts=2, images=2, source="mined")
    lists = scored_lists(relation, h=5, k=3)
    with pytest.raises(ValueError, match=r"ambiguity=0\.5 draws single negatives .* with Mined"):
        offer.draws(relation, lists, SamplingConfig(ambiguity=0.5))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ambiguity": -1.0}, "ambiguity=-1.0, centre=0.0: give an ambiguity of 0 or more"),
        ({"ambiguity": math.inf}, "ambiguity=inf"),
        ({"ambiguity": 0.5, "centre": math.nan}, "centre=nan"),
        ({"centre": 1.0}, "centre=1.0 says .* set ambiguity=0.5"),
        ({"ambiguity": 0.5, "tied_rank": True}, "tied_rank takes one rank for both lists"),
    ],
    ids=str,
)
def test_draws_by_scores_that_make_no_sense(wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**wrong)


@pytest.mark.parametrize(
    ("relation", "texts", "images", "drawn_texts", "drawn_images"),
    [
        pytest.param(
            Relation(torch.tensor([0, 1, 2]), images=3),
            [[1, -1], [2, 0], [0, 1]],
            [[2, -1], [0, 2], [1, -1]],
            [[1], [0, 2], [0]],
            [[2], [0, 2], [1]],
            id="short lists",
        ),
        pytest.param(
            Relation(torch.tensor([0, 1, 2, -1]), images=4),
            [[3, 1, 2], [3, 2, 0], [0, 3, 1], [0, 1, 2]],
            [[3, 1, 2], [0, 3, 2], [0, 1, 3], [0, 1, 2]],
            [[1, 2], [0, 2], [0, 1]],
            [[1, 2], [0, 2], [0, 1]],
            id="a text of no image, an image without captions",
        ),
    ],
)
def test_unusable_entries_are_not_drawn(
    relation: Relation,
    texts: list[list[int]],
    images: list[list[int]],
    drawn_texts: list[list[int]],
    drawn_images: list[list[int]],
) -> None:
    lists = HardNegativeLists(torch.tensor(texts).int(), torch.tensor(images).int())
    sampler = OfflineNegativeSampler(lists=lists, relation=relation, plan=SamplingConfig(count=300))
    pairs = sampler.draw(torch.arange(3), rng())
    assert [row.unique().tolist() for row in pairs[Role.HARD_TEXT].text] == drawn_texts
    assert [row.unique().tolist() for row in pairs[Role.HARD_IMAGE].image] == drawn_images


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


@pytest.mark.parametrize("source", ["random", "mined"])
def test_the_same_seed_draws_the_same(source: str) -> None:
    relation = ragged(9, 3)
    draws: NegativeSampler = RandomNegativeSampler(relation=relation, texts=5, images=5)
    if source == "mined":
        draws = OfflineNegativeSampler(lists=random_lists(relation, 8, 4), relation=relation)
    a, b, c = (draws.draw(anchors(relation), rng(s)) for s in (1, 1, 2))
    assert all(torch.equal(a[r].image, b[r].image) for r in a)
    assert all(torch.equal(a[r].text, b[r].text) for r in a)
    assert not torch.equal(a[Role.HARD_TEXT].text, c[Role.HARD_TEXT].text)


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
        ([[1], [2], [0]], [[2], [0], [1]], {"texts": 2}, "2 texts of an image are wanted"),
        ([[1], [2], [0]], [[2], [0], [1]], {"images": 9}, "9 images of a text are wanted"),
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


def test_random_negatives_fill_the_lists_that_filters_left_empty(capsys) -> None:
    relation = Relation(torch.arange(40) // 2, images=20)
    texts = ((torch.arange(20) + 1) % 20 * 2).unsqueeze(1).int()
    images = ((torch.arange(40) // 2 + 2) % 20).unsqueeze(1).int()
    texts[3], images[[4, 39]] = -1, -1  # captions 6 and 7 of image 3, and two others
    mined = OfflineNegativeSampler(lists=HardNegativeLists(texts, images), relation=relation)
    assert "leave nothing to 4 of 40 captions; random" in capsys.readouterr().err
    pairs = mined.draw(torch.arange(40), rng())
    for role, pair in pairs.items():
        assert (relation.text_to_image[pair.text] != pair.image).all(), role
    kept = torch.tensor([text for text in range(40) if text not in (4, 6, 7, 39)])
    expected = torch.arange(40)[kept] // 2
    assert (pairs[Role.HARD_TEXT].text[kept, 0] == (expected + 1) % 20 * 2).all()
    assert (pairs[Role.HARD_IMAGE].image[kept, 0] == (expected + 2) % 20).all()


def test_random_negatives_of_empty_lists_are_no_extra_positives() -> None:
    judged = torch.arange(2, 38)  # of image 0, whose list is empty
    relation = Relation(
        torch.arange(40) // 2, images=20, besides=Pairs(torch.zeros_like(judged), judged)
    )
    texts = ((torch.arange(20) + 1) % 20 * 2).unsqueeze(1).expand(-1, 8).int().contiguous()
    images = ((torch.arange(40) // 2 + 2) % 20).unsqueeze(1).int()
    texts[0] = -1
    mined = OfflineNegativeSampler(lists=HardNegativeLists(texts, images), relation=relation)
    drawn = [mined.draw(torch.tensor([0, 1]), rng(seed))[Role.HARD_TEXT] for seed in range(20)]
    assert {int(text) for pairs in drawn for text in pairs.text.flatten()} <= {38, 39}


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


TEXT, IMAGE = Role.HARD_TEXT, Role.HARD_IMAGE


def test_roles_and_numbers_of_candidates() -> None:
    plan = CandidateConfig(texts=9, images=5)
    assert plan.provides == {TEXT, IMAGE}
    drawn = plan.draws(ragged(orphans=2)).draw(torch.arange(4), rng())
    assert [drawn[role].shape for role in (TEXT, IMAGE)] == [(4, 9), (4, 5)]
    assert CandidateConfig(images=2).provides == {IMAGE}
    assert not CandidateConfig().provides


def test_listed_ones_are_each_drawn_once_from_the_head() -> None:
    relation = ragged(orphans=2)
    lists = random_lists(relation, 6, 4, 1)
    offer = CandidateConfig(texts=3, images=2, source="mined")
    draws = offer.draws(relation, lists, SamplingConfig(texts=5, images=3))
    texts = anchors(relation)
    seen: dict[Role, set[int]] = {TEXT: set(), IMAGE: set()}
    for seed in range(40):
        drawn = draws.draw(texts, rng(seed))
        assert drawn.keys() == draws.provides == {TEXT, IMAGE}
        for n, anchor in enumerate(texts.tolist()):
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
    own = int(relation.text_to_image[texts[0]])
    assert seen[TEXT] == {
        t for t in lists.texts[own, :5].tolist() if relation.text_to_image[t] >= 0
    }


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
    with pytest.raises(ValueError, match="7 texts cannot be offered from the 6 hardest"):
        offer.draws(relation, random_lists(relation, 6, 4, 1))
    with pytest.raises(ValueError, match="7 texts cannot be offered from the 2 hardest"):
        offer.draws(relation, random_lists(relation, 6, 4, 1), SamplingConfig(texts=2))
