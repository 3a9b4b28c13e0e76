"""Filters against false negatives."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import processes
import sentence_cases
from counterfoil.core.config import config as recorded
from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.negatives.filters import (
    Exclusions,
    FilterConfig,
    FilteredReducer,
    NearPairs,
    NegativeFilters,
    exclude_captions,
    exclude_pictures,
)
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.pipelines.pipeline import recipe_to_dict
from counterfoil.scoring.encode import ScoreTile
from counterfoil.scoring.reducers import DenseScores, TopK
from counterfoil.scoring.stream import stream_scores
from engine_cases import given as scoring
from filters_cases import ALL, PLANS, WORDS, allowed, by_hand, case, eighths, toy


def mined(
    plan: FilterConfig,
    dataset: ImageTextDataset,
    scores: Tensor,
    guide: Tensor,
    tile: tuple[int, int],
    k: int,
) -> tuple[TopK, TopK]:
    guides = [scoring(guide)] if plan.needs_guide else []
    filters = NegativeFilters(plan, dataset, guides=guides)
    both = (
        TopK("image", len(dataset), k, dataset.text_to_image),
        TopK("text", len(dataset.texts), k, dataset.text_to_image),
    )
    stream_scores([scoring(scores)], [filters.on(one.query, one) for one in both], tile=tile)
    return both


@settings(max_examples=25)
@given(
    images=st.integers(1, 12),
    texts=st.integers(1, 20),
    seed=st.integers(0, 999),
    tile=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    config=st.builds(
        FilterConfig,
        captions=st.sampled_from([None, 0.3, 0.9]),
        pictures=st.sampled_from([None, 0.5, 1.0]),
        lowest=st.sampled_from([None, -1.0]),
        highest=st.sampled_from([None, 1.0]),
        below_positive=st.sampled_from([None, -1.0, 0.0]),
        below_share=st.sampled_from([None, 0.75]),
        guided=st.sampled_from([None, -0.5]),
        positive=st.sampled_from(["lowest", "highest", "mean"]),
        skip=st.integers(0, 3),
    ),
)
def test_any_config_on_any_corpus(
    images: int, texts: int, seed: int, tile: tuple[int, int], config: FilterConfig
) -> None:
    dataset, scores, guide = case(images, texts, seed)
    for side, found in zip(("image", "text"), mined(config, dataset, scores, guide, tile, 4)):
        keep = allowed(config, dataset, scores, guide, side)
        lines, kept = (scores, keep) if side == "image" else (scores.T, keep.T)
        assert found.rows.tolist() == by_hand(lines, kept, 4, config.skip)
        expected = [
            [line[row] if row >= 0 else -torch.inf for row in rows]
            for line, rows in zip(lines.tolist(), found.rows.tolist())
        ]
        assert found.scores.tolist() == expected


def every_plan(seed: int) -> list[np.ndarray]:
    dataset, scores, guide = case(29, 61, seed)
    both = [mined(plan, dataset, scores, guide, (8, 16), 5) for plan in PLANS]
    return [part.numpy() for pair in both for one in pair for part in (one.rows, one.scores)]


def test_processes_find_what_one_does() -> None:
    alone = every_plan(4)
    for together in processes.run(every_plan, 3, 4):
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_filter_that_is_off_is_not_there() -> None:
    dataset, *_ = case(3, 5, 0)
    ranking = TopK("image", 3, 2)
    assert (
        NegativeFilters(FilterConfig(positive="highest"), dataset).on("image", ranking) is ranking
    )


def test_others_see_the_tiles_as_they_are() -> None:
    dataset, scores, guide = case(9, 14, 2)
    dense, everything = DenseScores(9, 14), NegativeFilters(ALL, dataset, guides=[scoring(guide)])
    one = everything.on("image", TopK("image", 9, 3))
    stream_scores([scoring(scores)], [one, dense], tile=(4, 5))
    assert torch.equal(dense.scores, scores)


def test_any_reducer_sees_negatives_only() -> None:
    dataset, scores, guide = case(9, 14, 3)
    plan = replace(ALL, skip=0)
    dense = DenseScores(9, 14)
    filters = NegativeFilters(plan, dataset, guides=[scoring(guide)])
    stream_scores([scoring(scores)], [filters.on("text", dense)], tile=(4, 5))
    keep = allowed(plan, dataset, scores, guide, "text")
    assert torch.equal(dense.scores, scores.masked_fill(~keep, -torch.inf))


def test_several_guides_count_with_their_mean() -> None:
    dataset, scores, guide = case(9, 14, 5)
    plan, other = FilterConfig(guided=0.0), eighths(9, 14, 99)
    filters = NegativeFilters(plan, dataset, guides=[scoring(guide), scoring(other)])
    found = TopK("image", 9, 3)
    stream_scores([scoring(scores)], [filters.on("image", found)])
    keep = allowed(plan, dataset, scores, (guide + other) / 2, "image")
    assert found.rows.tolist() == by_hand(scores, keep, 3, 0)


def test_a_guide_scores_a_tile_once_for_both_directions() -> None:
    dataset, scores, guide = case(12, 20, 6)
    member, seen = scoring(guide), []
    grid = member.model.score_matrix
    member.model.score_matrix = lambda *sides: seen.append(1) or grid(*sides)  # type: ignore[method-assign]
    filters = NegativeFilters(FilterConfig(guided=0.0), dataset, guides=[member])
    both = TopK("image", 12, 3), TopK("text", 20, 3)
    stream_scores([scoring(scores)], [filters.on(one.query, one) for one in both], tile=(12, 20))
    assert len(seen) == 1  # also the look ahead, whose tile is kept


@pytest.mark.parametrize("skip", [0, 2])
def test_what_was_kept_is_taken_up(skip: int) -> None:
    dataset, scores, guide = case(8, 15, 7)
    plan = replace(ALL, skip=skip)

    def begun() -> tuple[TopK, FilteredReducer]:
        given = TopK("image", 8, 3, dataset.text_to_image)
        filtered = NegativeFilters(plan, dataset, guides=[scoring(guide)]).on("image", given)
        assert isinstance(filtered, FilteredReducer)
        return given, filtered

    whole, before = begun()
    stream_scores([scoring(scores)], [before])
    seen = TopK("image", 8, 3 + skip)
    seen.prepare(8, 15, torch.device("cpu"))
    keep = allowed(plan, dataset, scores, guide, "image")
    half = keep & (torch.arange(8) < 4).unsqueeze(1)
    seen.update(ScoreTile(scores.masked_fill(~half, -torch.inf), torch.arange(8), torch.arange(15)))
    given, after = begun()
    after.prepare(8, 15, torch.device("cpu"))
    everything = ScoreTile(scores, torch.arange(8), torch.arange(15))
    after.observe(everything)
    after.synchronize()
    counts = torch.arange(5)  # of pairs that the five filters of scores left out before
    after.absorb(torch.cat([seen.state().flatten(), counts]))
    after.update(ScoreTile(scores[4:], torch.arange(4, 8), torch.arange(15)))
    state = after.state()
    assert state.shape == (8 * (3 + skip) + 5,)
    assert (state[-5:] >= counts).all()
    after.merge()
    assert torch.equal(given.rows, whole.rows)
    assert torch.equal(given.scores, whole.scores)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"captions": 0.0}, "captions=0.0: a cosine above 0 and up to 1 is needed"),
        ({"captions": 1.01}, "captions=1.01: a cosine above 0"),
        ({"pictures": -0.5}, "pictures=-0.5: a cosine above 0"),
        ({"meanings": 70}, "meanings=70: a cosine above 0"),
        ({"lowest": 0.5, "highest": 0.25}, "lowest=0.5 is above highest=0.25"),
        ({"below_share": 0.0}, "below_share=0.0: above 0 is needed"),
        ({"below_positive": math.nan}, "below_positive=nan: a finite number"),
        ({"guided": math.inf}, "guided=inf: a finite number"),
        ({"positive": "worst"}, "'worst' is not a positive"),
        ({"skip": -1}, "skip=-1: 0 or more"),
    ],
    ids=str,
)
def test_plans_that_make_no_sense(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FilterConfig(**wrong)  # type: ignore[arg-type]


def test_guides_have_to_fit() -> None:
    dataset, _, guide = case(4, 6, 0)
    with pytest.raises(ValueError, match=r"guided=0\.1 needs a guide model, and none was named"):
        NegativeFilters(FilterConfig(guided=0.1), dataset)
    with pytest.raises(ValueError, match="a guide model was named, but no filter asks it"):
        NegativeFilters(FilterConfig(skip=1), dataset, guides=[scoring(guide)])
    with pytest.raises(
        ValueError,
        match="a guide encoded 3 images and 6 texts, but 4 images and 6 ",
    ):
        NegativeFilters(FilterConfig(guided=0.1), dataset, guides=[scoring(guide[:3])])


def test_a_guide_that_knows_nothing_is_refused() -> None:
    dataset, scores, guide = case(4, 6, 0)
    guide[2, 5] = math.nan
    filters = NegativeFilters(FilterConfig(guided=0.0), dataset, guides=[scoring(guide)])
    with pytest.raises(ValueError, match="of the guide, the score of image row 2 and text row 0"):
        stream_scores([scoring(scores)], [filters.on("image", TopK("image", 4, 2))])


def test_what_cannot_be_compared_is_said() -> None:
    dataset = toy(3, 5, 0)
    with pytest.raises(ValueError, match="toy has neither features nor pictures"):
        NegativeFilters(FilterConfig(pictures=0.9), replace(dataset, features=None))
    with pytest.raises(ValueError, match=r"captions=0\.9 compares words, but toy has none"):
        NegativeFilters(FilterConfig(captions=0.9), replace(dataset, texts=[""] * 5))
    with pytest.raises(
        ValueError, match="skip=1 leaves out the hardest of ranked lists, and Dense"
    ):
        NegativeFilters(FilterConfig(skip=1), dataset).on("image", DenseScores(3, 5))


@pytest.mark.parametrize("least", [0.98, 1.0])
def test_texts_that_mean_the_same_are_left_out(least: float, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    folder = sentence_cases.encoder(tmp_path, (*WORDS, "."))
    dataset, scores, _ = case(12, 60, 0)
    plan = FilterConfig(meanings=least, encoder=folder)
    vectors = SentenceEncoder(folder).vectors(dataset.texts)
    near = vectors @ vectors.T >= least - 1e-6
    mine = dataset.text_to_image == torch.arange(12).unsqueeze(1)
    keep = ~(mine.long() @ near.long() > 0) & ~mine
    dense = DenseScores(12, 60)
    stream_scores([scoring(scores)], [NegativeFilters(plan, dataset).on("image", dense)])
    assert torch.equal(dense.scores.isfinite(), keep)
    assert 0 < int(keep.sum()) < int((~mine).sum())
    assert not plan.score_settings
    assert plan.describe() == (
        f"texts within cosine {least} of a caption of the image, by {folder}",
    )


def test_an_encoder_is_named_where_it_is_asked() -> None:
    dataset = toy(3, 5, 0)
    with pytest.raises(ValueError, match=r"meanings=0\.7 needs a sentence encoder; set encoder to"):
        NegativeFilters(FilterConfig(meanings=0.7), dataset)
    with pytest.raises(
        ValueError, match=r"encoder=a\{b was named, but no filter asks it; set mean"
    ):
        NegativeFilters(FilterConfig(encoder="a{b"), dataset)
    with pytest.raises(ValueError, match=r"meanings=0\.7 compares words, but toy has none"):
        NegativeFilters(FilterConfig(meanings=0.7, encoder="a"), replace(dataset, texts=[""] * 5))
    assert "by a{b" in FilterConfig(meanings=0.7, encoder="a{b").describe()[0]


def test_nothing_to_compare_is_nothing_alike() -> None:
    dataset = toy(1, 1, 0)
    filters = NegativeFilters(FilterConfig(captions=0.5, pictures=0.5), dataset)
    assert filters.excluded is None
    assert list(filters.removed.values()) == [{"image": 0, "text": 0}] * 2


def test_a_plan_is_data() -> None:
    assert recipe_to_dict(FilterConfig(captions=0.8, skip=2)) == {
        "captions": 0.8,
        "pictures": None,
        "meanings": None,
        "encoder": None,
        "lowest": None,
        "highest": None,
        "below_positive": None,
        "below_share": None,
        "guided": None,
        "positive": "lowest",
        "skip": 2,
    }
    written = recorded(FilterConfig, captions=0.8, positive="highest", skip=2)
    again = written.build()
    assert again == FilterConfig(captions=0.8, positive="highest", skip=2)
    assert hash(again) == hash(written.build())


def test_in_words() -> None:
    assert FilterConfig().describe() == ()
    assert not FilterConfig().needs_guide
    assert ALL.needs_guide
    assert ALL.describe() == (
        "texts within TF-IDF cosine 0.8 of a caption of the image",
        "captions of pictures within cosine 0.8 of the image",
        "scores below -1.0",
        "scores above 1.5",
        "scores above the anchor's lowest positive less -0.75",
        "scores above 1.5 of the anchor's lowest positive",
        "pairs that the guide scores above the anchor's lowest positive less -0.75",
        "the 2 hardest of the rest",
    )


def test_pairs_that_somebody_found_true_are_never_listed() -> None:
    dataset, scores, guide = case(12, 30, seed=5)
    also = {(0, 7), (3, 2), (3, 9)}
    image, text = torch.tensor(sorted(also)).unbind(1)
    told = replace(dataset, extra_positives=Pairs(image, text))
    for plan in (FilterConfig(), FilterConfig(lowest=-0.5)):
        for side, found in zip(
            ("image", "text"), mined(plan, told, scores, guide, (5, 7), 30), strict=True
        ):
            keep = allowed(plan, dataset, scores, guide, side)
            keep[image, text] = False
            lines, kept = (scores, keep) if side == "image" else (scores.T, keep.T)
            assert found.rows.tolist() == by_hand(lines, kept, found.k, plan.skip)


RELATION = Relation(torch.tensor([0, 0, 1, -1, 2]), images=4)


def near(*pairs: tuple[int, int]) -> NearPairs:
    left, right = torch.tensor(pairs).T
    return NearPairs(left, right, torch.ones(len(pairs)))


def found(images: torch.Tensor, texts: torch.Tensor) -> set[tuple[int, int]]:
    assert len(images) == len(texts)
    return set(zip(images.tolist(), texts.tolist()))


@given(
    pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=30),
    first=st.integers(0, 6),
    high=st.integers(1, 7),
    order=st.permutations(range(10)),
    wide=st.integers(1, 10),
)
def test_the_places_in_any_tile(pairs, first, high, order, wide):
    images, texts = (torch.tensor([pair[side] for pair in pairs]).long() for side in (0, 1))
    exclusions = Exclusions(images, texts, (7, 10))
    assert len(exclusions) == len(set(pairs))
    rows, columns = torch.arange(7)[first : first + high], torch.tensor(order[:wide])
    for _ in range(2):  # the second look finds nothing left over from the first
        tile = ScoreTile(torch.zeros(len(rows), wide), rows, columns)
        tile.scores[exclusions.places(tile)] = 1
        for i, image in enumerate(rows.tolist()):
            for t, text in enumerate(columns.tolist()):
                assert bool(tile.scores[i, t]) == ((image, text) in pairs)


@pytest.mark.parametrize(
    "pairs, wanted",
    [
        ([(0, 2)], {(0, 2), (1, 0)}),
        ([(0, 1)], set()),  # of one image: its own captions
        ([(2, 3)], {(1, 3)}),  # a text of no image
        ([(0, 4), (1, 4)], {(0, 4), (2, 0), (2, 1)}),
    ],
)
def test_a_near_caption_goes_with_the_image(pairs, wanted):
    assert found(*exclude_captions(near(*pairs), RELATION)) == wanted


@pytest.mark.parametrize(
    "pairs, wanted",
    [
        ([(0, 1)], {(0, 2), (1, 0), (1, 1)}),
        ([(2, 3)], {(3, 4)}),  # an image without captions
        ([(0, 2), (1, 2)], {(0, 4), (1, 4), (2, 0), (2, 1), (2, 2)}),
    ],
)
def test_all_captions_of_a_near_picture_go_with_the_image(pairs, wanted):
    assert found(*exclude_pictures(near(*pairs), RELATION)) == wanted
