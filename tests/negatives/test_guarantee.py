"""A threshold with a guarantee, by judged pairs: against sums, loops and repeated draws."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import comb

import numpy as np
import pytest
import torch

from counterfoil.negatives.guarantee import (
    GuaranteeConfig,
    calibrate,
    filter_with_guarantee,
    pairs_at,
    sampled_places,
    upper_bound,
)
from counterfoil.negatives.mining import mine_lists
from counterfoil.negatives.store import NegativeStore
from engine_cases import given as scoring
from filters_cases import eighths, tfidf, toy

GRID = np.arange(1, 101) / 100


@pytest.mark.parametrize(("true", "judged"), [(0, 59), (3, 40), (12, 300)])
def test_at_the_bound_so_few_true_ones_are_as_likely_as_the_error(true, judged):
    share = upper_bound(true, judged, 0.95)
    chance = sum(comb(judged, k) * share**k * (1 - share) ** (judged - k) for k in range(true + 1))
    assert chance == pytest.approx(0.05)


def test_as_many_judged_pairs_as_are_said_to_be_needed_are_enough_and_one_less_is_not():
    for plan in (GuaranteeConfig(), GuaranteeConfig(at_most_true=0.2, confidence=0.99)):
        for judged, enough in ((plan.needed(), True), (plan.needed() - 1, False)):
            assert (upper_bound(0, judged, plan.confidence) <= plan.at_most_true) == enough
    assert GuaranteeConfig().needed() == 59


@pytest.mark.parametrize("judged", [100, 600])
def test_more_than_the_promised_share_is_kept_as_rarely_as_promised(judged):
    """Pairs of a measure m are true with probability 0.15 m, so 2/3 may be kept at 5 %."""
    rng, wrong, kept, runs = np.random.default_rng(0), 0, 0.0, 300
    for _ in range(runs):
        measure = rng.random(judged)
        true = rng.random(judged) < 0.15 * measure
        found = calibrate(measure, true, GRID, at_most_true=0.05, confidence=0.95)
        if found is not None:
            assert found[1] <= 0.05
            wrong += found[0] > 2 / 3
            kept += found[0] / runs
    assert wrong <= 0.05 * runs
    assert kept > (0.02 if judged == 100 else 0.1)


def test_a_thresholds_bound_is_of_all_judged_pairs_up_to_it():
    measure = np.array([0.1] * 100 + [0.5] * 60 + [0.9] * 40)
    true = np.array([False] * 160 + [True] * 40)
    found = calibrate(measure, true, np.array([0.1, 0.5, 0.9]), at_most_true=0.05, confidence=0.95)
    assert found == (0.5, pytest.approx(upper_bound(0, 160, 0.95)))
    assert calibrate(measure, ~true, GRID, at_most_true=0.05, confidence=0.95) is None


def stored(seed: int = 0) -> tuple:
    """Data, scores and full lists of a small data set."""
    dataset, scores = toy(12, 60, seed), eighths(12, 60, seed)
    lists = mine_lists(
        [scoring(scores)], dataset.text_to_image, texts_per_image=40, images_per_text=8
    )
    own = scores[dataset.text_to_image.clamp(min=0), torch.arange(60)]
    own = own.masked_fill(dataset.text_to_image < 0, -torch.inf)
    lists = replace(lists, true_scores=own.half())
    store = NegativeStore.of(lists, dataset=dataset.fingerprint, split="train", sources=())
    return dataset, scores, store


@cache
def cosines_of(texts: tuple[str, ...]) -> list[list[float]]:
    return tfidf(list(texts))


def measure_of(by: str, dataset, scores, side: str, image: int, text: int, place: int) -> float:
    """The measure of one pair."""
    owners = dataset.text_to_image.tolist()
    captions = [row for row, owner in enumerate(owners) if owner == image]
    if by == "margin":
        if side == "image":
            own = [float(scores[image, row]) for row in captions]
        else:
            own = [float(scores[owners[text], text])] if owners[text] >= 0 else []
        return float(scores[image, text]) - min(own) if own else float("inf")
    if by == "captions":
        cosines = cosines_of(tuple(dataset.texts))
        return max((cosines[text][row] for row in captions), default=0.0)
    return {"score": float(scores[image, text]), "rank": float(-place)}[by]


@pytest.mark.parametrize("by", ["margin", "score", "rank", "captions"])
@pytest.mark.parametrize("again", [False, True])
def test_what_is_left_out_is_above_the_threshold_or_judged_true(by, again):
    dataset, scores, store = stored()
    lists = store.lists
    config = GuaranteeConfig(at_most_true=0.1, by=by)
    members = [scoring(scores)] if again else []
    chosen = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    true_at = torch.rand(scores.shape, generator=torch.Generator().manual_seed(2)) < 0.02
    verdicts = {(i, t): bool(true_at[i, t]) for i, t in chosen.nonzero().tolist()}
    found, sides = filter_with_guarantee(store, dataset, verdicts, config, members=members)
    pairs = (("image", lists.texts, found.lists.texts), ("text", lists.images, found.lists.images))
    for (side, before, after), told in zip(pairs, sides, strict=True):
        judged, kept, count = [], 0, 0
        for query, line in enumerate(before.tolist()):
            left = []
            for place, row in enumerate(line):
                pair = (query, row) if side == "image" else (row, query)
                if row < 0:
                    continue
                value = measure_of(by, dataset, scores, side, *pair, place)
                below = value <= told.threshold + 1e-9
                count, kept = count + 1, kept + below
                if pair in verdicts:
                    judged.append((below, verdicts[pair]))
                if below and not verdicts.get(pair, False):
                    left.append(row)
            assert [row for row in after[query].tolist() if row >= 0] == left
        assert (told.pairs, told.kept, told.judged) == (count, kept, len(judged))
        assert told.true == sum(true for _, true in judged)
        assert told.kept_judged == sum(below for below, _ in judged)
        assert told.kept_true == sum(below and true for below, true in judged)
        assert told.bound <= 0.1
    found.lists.check_order()
    assert "at most 10 % are true with 95 % confidence" in found.manifest.filters[-1]
    assert found.manifest.removed[found.manifest.filters[-1]]["image"] == (
        sides[0].pairs - int((found.lists.texts >= 0).sum())
    )


def test_a_sample_counts_alone_and_what_it_lacks_counts_as_true():
    dataset, _, store = stored()
    config = GuaranteeConfig(at_most_true=0.2, by="rank", sample=90)
    verdicts = {}
    for side, rows in (("image", store.lists.texts), ("text", store.lists.images)):
        drawn = pairs_at(side, rows, sampled_places(rows, 90))
        verdicts |= dict.fromkeys(zip(drawn.image.tolist(), drawn.text.tolist()), False)
    every = {(i, t): verdicts.get((i, t), True) for i in range(12) for t in range(60)}
    for given in (verdicts, every):  # verdicts on other pairs change nothing but what is removed
        _, sides = filter_with_guarantee(store, dataset, given, config)
        assert [(each.judged, each.true, each.unjudged) for each in sides] == [(90, 0, 0)] * 2
    places = sampled_places(store.lists.texts, 90)
    first = pairs_at("image", store.lists.texts, places[:2])
    for pair in zip(first.image.tolist(), first.text.tolist()):
        del verdicts[pair]
    _, sides = filter_with_guarantee(store, dataset, verdicts, config)
    assert (sides[0].judged, sides[0].true, sides[0].unjudged) == (90, 2, 2)
    assert "2 without a verdict among them" in str(sides[0])


def test_a_sample_is_of_listed_entries_each_once_and_longer_ones_begin_with_shorter_ones():
    rows = torch.tensor([[3, 1, -1], [0, -1, -1], [2, 4, 5]], dtype=torch.int32)
    assert sorted(sampled_places(rows, 99).tolist()) == [0, 1, 3, 6, 7, 8]
    assert sampled_places(rows, 99)[:4].tolist() == sampled_places(rows, 4).tolist()


def test_what_cannot_be_promised_is_refused():
    dataset, _, store = stored()
    few = {(0, int(store.lists.texts[0, 0])): False}
    with pytest.raises(ValueError, match=r"1 of the texts of images .* at least 59 are needed"):
        filter_with_guarantee(store, dataset, few, GuaranteeConfig())
    true = dict.fromkeys(((i, t) for i in range(12) for t in range(60)), True)
    with pytest.raises(ValueError, match=r"no threshold keeps texts of images of which at most 5"):
        filter_with_guarantee(store, dataset, true, GuaranteeConfig())
    bare = replace(store, lists=replace(store.lists, true_scores=None))
    with pytest.raises(ValueError, match="these lists hold none of true pairs"):
        filter_with_guarantee(bare, dataset, true, GuaranteeConfig())
    with pytest.raises(ValueError, match="needs a sentence encoder"):
        filter_with_guarantee(store, dataset, true, GuaranteeConfig(by="meanings"))
    for wrong in ({"at_most_true": 0}, {"confidence": 1}, {"by": "gap"}, {"sample": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong)).replace("by", "gap")):
            GuaranteeConfig(**wrong)
