from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foil_cases
from counterfoil.core.types import Embeddings
from counterfoil.evaluation.bootstrap import Interval
from counterfoil.evaluation.foils.measures import (
    NO_ORDER,
    FoilScore,
    ScoredCaptions,
    best_threshold,
    category_groups,
    choice_accuracy,
    choice_table,
    foil_pairs,
    item_margins,
    measure_foils,
    pairwise_accuracy,
    roc_area,
    score_foils,
    scored_captions,
    threshold_accuracy,
    train_blind_control,
    winoground_scores,
)
from counterfoil.evaluation.foils.sets import open_foil_set
from counterfoil.evaluation.language_models import NGrams
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.scoring.encode import EmbeddedDataset

few = st.integers(0, 3).map(float)  # ties are common
INF = math.inf


@given(st.lists(st.lists(few, min_size=2, max_size=4), min_size=1, max_size=6))
def test_choice_against_loops(rows):
    width = max(map(len, rows))
    scores = torch.tensor([[*row, *[-INF] * (width - len(row))] for row in rows]).double()
    found, pairs = choice_accuracy(scores), pairwise_accuracy(scores)
    for n, (true, *foils) in enumerate(rows):
        assert found.gained[n] == all(true > foil for foil in foils)
        assert found.chance[n] == pytest.approx(1 / (1 + len(foils)))
        assert pairs.gained[n] == sum(true > foil for foil in foils)
        assert pairs.possible[n] == len(foils)


@given(st.lists(st.tuples(few, few, few, few), min_size=1, max_size=5))
def test_winoground_against_its_definition(rows):
    scores = torch.tensor(rows).double().view(-1, 2, 2)
    text, image, group = winoground_scores(scores)
    for n, (i0c0, i0c1, i1c0, i1c1) in enumerate(rows):
        by_text = i0c0 > i0c1 and i1c1 > i1c0
        by_image = i0c0 > i1c0 and i1c1 > i0c1
        assert (text.gained[n], image.gained[n]) == (by_text, by_image)
        assert group.gained[n] == (by_text and by_image)


def test_winograounds_chances_are_those_of_random_scores():
    rng = torch.Generator().manual_seed(0)
    for measure in winoground_scores(torch.rand(60_000, 2, 2, generator=rng, dtype=torch.double)):
        assert measure.gained.mean().item() == pytest.approx(measure.chance.mean().item(), abs=0.01)


labelled = st.lists(st.tuples(few, st.booleans()), min_size=1, max_size=12)


@given(labelled)
def test_threshold_is_the_best_there_is(rows):
    scores = torch.tensor([score for score, _ in rows]).double()
    true = torch.tensor([label for _, label in rows])
    level = best_threshold(scores, true)
    right = [
        int(((scores > cut) == true).sum()) for cut in (-INF, *(x + 0.5 for x in range(-1, 4)))
    ]
    assert int(((scores > level) == true).sum()) == max(right)
    assert level not in scores.tolist()


@given(labelled, st.integers(0, 99))
def test_area_counts_pairs_and_ties_as_wrong(rows, seed):
    scores = torch.tensor([score for score, _ in rows]).double()
    true = torch.tensor([label for _, label in rows])
    times = torch.randint(0, 3, (2, len(rows)), generator=torch.Generator().manual_seed(seed))
    for counts, found in zip(times.tolist(), roc_area(scores, true, times.double()).tolist()):
        order = every = 0
        for (n, (high, yes)), (m, (low, no)) in product(enumerate(rows), enumerate(rows)):
            if yes and not no:
                every += counts[n] * counts[m]
                order += counts[n] * counts[m] * (high > low)
        if every:
            assert found == pytest.approx(order / every)
        else:
            assert math.isnan(found)


def test_thresholds_are_exchanged_between_halves():
    judged = ScoredCaptions(
        torch.tensor([0, 1, 2, 3]),
        torch.tensor([1.0, 2.0, 11.0, 12.0]).double(),
        torch.tensor([False, True, False, True]),
    )
    half = torch.tensor([True, True, False, False])
    found = threshold_accuracy(judged, half, 4)  # the levels are 1.5 and 11.5
    assert found.gained.tolist() == [1, 0, 0, 1]
    assert threshold_accuracy(judged, torch.ones(4, dtype=torch.bool), 4) is None


@pytest.fixture(params=sorted({*foil_cases.WRITERS, "scenes"}))
def foils(request, tmp_path):
    if request.param == "scenes":
        return open_foil_set(["scenes:images=18"])
    return open_foil_set([str(foil_cases.WRITERS[request.param](tmp_path))])


def random_scores(foils) -> torch.Tensor:
    many = len(foil_pairs(foils)[0])
    return torch.rand(many, generator=torch.Generator().manual_seed(5))


def test_every_set_is_measured(foils):
    scores = random_scores(foils)
    lines = measure_foils(foils, scores, resamples=50)
    whole = {line.measure: line for line in lines if line.of == "all items"}
    for line in lines:
        assert 0 <= line.value <= 100
        assert 0 <= line.interval.low <= line.interval.high <= 100
        assert line.items <= len(foils)
    assert any(line.own for line in lines) or foils.form == "aro-relation"
    if foils.task == "choice":
        right, start = [], 0
        for item in foils.items:
            true, *others = scores[start : start + len(item.texts)].tolist()
            right.append(true > max(others))
            start += len(item.texts)
        name = "pairwise" if foils.form == "valse" else "accuracy"
        assert whole[name].value == pytest.approx(100 * sum(right) / len(right))
        gaps = item_margins(foils, scores)
        assert (gaps > 0).tolist() == right
    if foils.form in ("valse", "vsr"):
        judged = scored_captions(foils, scores)
        high, low = judged.scores[judged.true], judged.scores[~judged.true]
        share = (high.unsqueeze(1) > low).double().mean().item()
        assert whole["AUC"].value == pytest.approx(100 * share)


def test_all_that_ties_is_wrong(foils):
    many = len(foil_pairs(foils)[0])
    for line in measure_foils(foils, torch.zeros(many), resamples=5):
        if line.measure != "by threshold":
            assert line.value == 0
            assert line.interval == Interval(0, 0)


def test_intervals_draw_pictures_with_all_their_items(tmp_path):
    rows = [
        {"image": f"{n % 4}", "caption": f"a {n}", "foil": f"b {n}", "category": "xy"[n % 2]}
        for n in range(12)
    ]
    foils = open_foil_set([str(foil_cases.dump(tmp_path / "p.json", rows))])
    scores = torch.tensor(
        [float(n % 4 < 1) if side == 0 else 0.5 for n in range(12) for side in (0, 1)]
    )
    [x, y, whole] = measure_foils(foils, scores, resamples=4000)
    assert (x.value, y.value, whole.value) == (50, 0, 25)
    assert (x.of, y.of, whole.of) == ("x", "y", "all items")
    # each of four pictures is right or wrong as a whole: of 4 draws 1 in 4 is right
    shares = [math.comb(4, k) * 0.25**k * 0.75 ** (4 - k) for k in range(5)]
    low = next(k for k in range(5) if sum(shares[: k + 1]) > 0.025)
    high = next(k for k in range(5) if sum(shares[: k + 1]) > 0.975)
    assert (whole.interval.low, whole.interval.high) == (25 * low, 25 * high)
    again = measure_foils(foils, scores, resamples=4000)[-1]
    assert again == whole


def test_coarse_groups_average_over_items(tmp_path):
    counts = {"add_att": 1, "replace_rel": 30, "replace_obj": 10, "swap_obj": 5}
    found = category_groups("sugarcrepe", counts)
    assert [group.title for group in found] == [
        *("replace_obj", "replace_rel", "swap_obj", "add_att"),
        *("all items", "replace", "swap", "add"),
    ]
    assert found[5].categories == ("replace_obj", "replace_rel")
    assert [group.own for group in found] == [False] * 5 + [True] * 3
    assert not any(group.macro for group in found)


def test_relations_average_over_relations_that_have_an_order():
    assert len(NO_ORDER) == 157
    assert {"near", "sitting next to", "flying in", "walking through", "by"} <= NO_ORDER
    assert not {"on", "wearing", "to the left of"} & NO_ORDER
    found = category_groups("aro-relation", {"on": 4, "near": 100, "under": 1})[-1]
    assert (found.title, found.categories, found.macro) == (
        "mean of 2 relations",
        ("on", "under"),
        True,
    )
    attributes = category_groups("aro-attribution", {"red_big": 25, "old_new": 24})
    assert attributes[-1].categories == ("red_big",)
    assert [group.title for group in attributes] == [
        "red_big",
        "all items",
        "mean of 1 pairs of attributes",
    ]
    assert [g.title for g in category_groups("aro-attribution", {"a_b": 3})] == ["all items"]


def test_macro_counts_categories_alike(tmp_path):
    rows = [
        {
            "image_path": f"{n}",
            "true_caption": f"a {n}",
            "false_caption": f"b {n}",
            "relation_name": r,
        }
        for n, r in enumerate(["on", "on", "on", "under", "near"])
    ]
    foils = open_foil_set([str(foil_cases.dump(tmp_path / "vgr.json", rows))])
    right = [1.0, 1.0, 0.0, 0.0, 1.0]
    scores = torch.tensor([side for one in right for side in (one, 0.5)])
    mean = measure_foils(foils, scores, resamples=200)[-1]
    assert mean.value == pytest.approx(100 * (2 / 3 + 0) / 2)
    assert mean.items == 4
    assert mean.own


def test_each_pair_is_scored_where_it_belongs(foils):
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(len(foils.dataset), 1, 4, generator=rng)
    texts = torch.randn(len(foils.dataset.texts), 1, 4, generator=rng)
    sides = [Embeddings(t, torch.ones(len(t), 1, dtype=torch.bool)) for t in (images, texts)]
    grid = EmbeddingModel().score_matrix(*sides)
    found, place = score_foils([EmbeddedDataset(EmbeddingModel(), *sides)], foils), 0
    for item in foils.items:
        for image, text in product(item.images, item.texts):
            assert found[place].item() == pytest.approx(grid[image, text].item(), abs=1e-6)
            place += 1
    assert place == len(found)


def test_blind_model_reads_captions_only(foils):
    captions = ["seven boats at sea", "a red kite"]
    found = train_blind_control([*captions, foils.dataset.texts[0]], "captions", foils).scores
    model = NGrams.of(captions)
    texts = [foils.dataset.texts[row] for row in foil_pairs(foils)[1].tolist()]
    assert found.tolist() == model.scores(texts).tolist()


def test_rows_are_filled_in_order(tmp_path):
    rows = [{"image": "a", "caption": "a", "foils": list("bcd"[: n + 1])} for n in (0, 2, 1)]
    foils = open_foil_set([str(foil_cases.dump(tmp_path / "p.json", rows))])
    table = choice_table(foils, torch.arange(9))
    assert table.tolist() == [[0, 1, -INF, -INF], [2, 3, 4, 5], [6, 7, 8, -INF]]


def test_suspicious_when_surely_far_above_chance():
    def line(low, chance=50.0):
        return FoilScore("accuracy", "all items", 9, low + 2, Interval(low, low + 4), chance, True)

    assert line(60.1).suspicious
    assert not line(59.9).suspicious
    assert line(31.0, chance=20.0).suspicious
