from __future__ import annotations

import math
from itertools import permutations, product

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
    alike_accuracy,
    best_threshold,
    both_ways_scores,
    caption_cosines,
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


@given(st.lists(st.tuples(st.integers(1, 2), st.lists(few, min_size=3, max_size=4)), min_size=1))
def test_several_true_captions_against_loops(rows):
    scores = torch.tensor([[*row, *[-INF] * (4 - len(row))] for _, row in rows]).double()
    positives = torch.tensor([count for count, _ in rows])
    found, pairs = choice_accuracy(scores, positives), pairwise_accuracy(scores, positives)
    for n, (count, row) in enumerate(rows):
        above = [true > foil for true in row[:count] for foil in row[count:]]
        assert found.gained[n] == all(above)
        assert (pairs.gained[n], pairs.possible[n]) == (sum(above), len(above))
        orders = [min(o[:count]) > max(o[count:]) for o in permutations(range(len(row)))]
        assert found.chance[n] == pytest.approx(sum(orders) / len(orders))
        assert pairs.chance[n] == len(above) / 2


@given(st.lists(st.tuples(few, few, few), min_size=1, max_size=6))
def test_tot_against_its_definition(rows):
    found = alike_accuracy(torch.tensor(rows).double())
    right = [both > first and both > second for both, first, second in rows]
    assert found.gained.tolist() == right
    orders = [o[0] > max(o[1:]) for o in permutations(range(3))]
    assert found.chance.tolist() == pytest.approx([sum(orders) / 6] * len(rows))


@given(st.lists(st.tuples(few, few, few, few), min_size=1, max_size=5))
def test_bivlc_against_its_definition(rows):
    measures = both_ways_scores(torch.tensor(rows).double().view(-1, 2, 2))
    found = {measure.name: measure for measure in measures}
    for n, (i0c0, i0c1, i1c0, i1c1) in enumerate(rows):
        single = {
            "I2T, true picture": i0c0 > i0c1,
            "I2T, foil's picture": i1c1 > i1c0,
            "T2I, true caption": i0c0 > i1c0,
            "T2I, foil": i1c1 > i0c1,
        }
        by_picture, by_caption = (all(list(single.values())[at : at + 2]) for at in (0, 2))
        both = {"I2T": by_picture, "T2I": by_caption, "group": by_picture and by_caption}
        assert {name: bool(m.gained[n]) for name, m in found.items()} == both | single
    chances = {name: round(100 * m.chance[0].item(), 1) for name, m in found.items()}
    assert chances == {"I2T": 25, "T2I": 25, "group": 16.7, **dict.fromkeys(single, 50)}


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
    source = str(foil_cases.WRITERS[request.param](tmp_path))
    return open_foil_set([source], images=tmp_path / "images")


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
            own, count = scores[start : start + len(item.texts)].tolist(), item.positives
            right.append(min(own[:count]) > max(own[count:]))
            start += len(item.texts)
        name = {"valse": "pairwise", "sugarcrepe++": "ITT"}.get(foils.form, "accuracy")
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
    [x, y, whole, _] = measure_foils(foils, scores, resamples=4000)
    assert (x.value, y.value, whole.value) == (50, 0, 25)
    assert (x.of, y.of, whole.of) == ("x", "y", "all items")
    # each of four pictures is right or wrong as a whole: of 4 draws 1 in 4 is right
    shares = [math.comb(4, k) * 0.25**k * 0.75 ** (4 - k) for k in range(5)]
    low = next(k for k in range(5) if sum(shares[: k + 1]) > 0.025)
    high = next(k for k in range(5) if sum(shares[: k + 1]) > 0.975)
    assert (whole.interval.low, whole.interval.high) == (25 * low, 25 * high)
    again = measure_foils(foils, scores, resamples=4000)[-2]
    assert again == whole


def test_coarse_groups_average_over_items(tmp_path):
    counts = {"add_att": 1, "replace_rel": 30, "replace_obj": 10, "swap_obj": 5}
    found = category_groups("sugarcrepe", counts)
    assert [group.title for group in found] == [
        *("replace_obj", "replace_rel", "swap_obj", "add_att"),
        *("all items", "mean of 4 kinds", "replace", "swap", "add"),
    ]
    assert found[6].categories == ("replace_obj", "replace_rel")
    assert [group.own for group in found] == [False] * 6 + [True] * 3
    assert [group.macro for group in found] == [False] * 5 + [True] + [False] * 3


def test_what_the_authors_of_sets_in_both_ways_report():
    groups = category_groups("sugarcrepe++", {"swap_obj": 3, "replace_att": 2})
    own = {group.title: group.own for group in groups}
    assert own == {
        "replace_att": True,
        "swap_obj": True,
        "all items": False,
        "mean of 2 kinds": False,
    }
    [whole] = category_groups("sugarcrepe++", {"swap_obj": 3})
    # what has no category is no kind
    assert [g.title for g in category_groups("pairs", {"x": 2, "": 3})] == ["x", "all items"]
    mean = category_groups("pairs", {"x": 2, "": 3, "y": 1})[-1]
    assert mean.title == "mean of 2 kinds"
    assert mean.categories == ("x", "y")
    assert (whole.title, whole.own) == ("all items", True)
    groups = category_groups("bivlc", {"add_att": 1, "add_obj": 2, "swap_att": 3})
    own = {group.title: group.own for group in groups}
    assert own == {
        **dict.fromkeys(("swap_att", "add_obj", "add_att"), False),
        "all items": True,
        "mean of 3 kinds": False,
        "swap": True,
        "add": True,
    }


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


def test_micro_and_macro_weigh_kinds_by_points_and_alike(tmp_path):
    kinds = ["x", "x", "x", "y"]
    rows = [
        {"image": f"{n}", "caption": f"a {n}", "foils": [f"b {n}", f"c {n}"][: 1 + n % 2]}
        | {"category": kind}
        for n, kind in enumerate(kinds)
    ]
    foils = open_foil_set([str(foil_cases.dump(tmp_path / "p.json", rows))])
    scores = random_scores(foils)
    lines = {(line.measure, line.of): line for line in measure_foils(foils, scores, resamples=9)}
    points = {"accuracy": {"x": 3, "y": 1}, "pairwise": {"x": 4, "y": 2}}
    for measure, counts in points.items():
        micro, macro = lines[measure, "all items"], lines[measure, "mean of 2 kinds"]
        total = sum(counts.values())
        assert micro.weights == {kind: count / total for kind, count in counts.items()}
        assert macro.weights == {"x": 0.5, "y": 0.5}
        for line in (micro, macro):
            parts = (weight * lines[measure, k].value for k, weight in line.weights.items())
            assert line.value == pytest.approx(sum(parts))
        assert lines[measure, "x"].weights == {}
        assert (micro.macro, macro.macro) == (False, True)


def embedded(foils, images, texts) -> EmbeddedDataset:
    sides = [Embeddings(t, torch.ones(t.shape[:2], dtype=torch.bool)) for t in (images, texts)]
    return EmbeddedDataset(EmbeddingModel(), *sides)


def test_cosines_of_captions_against_loops(tmp_path):
    foils = open_foil_set([str(foil_cases.sugarcrepe_twice(tmp_path))])
    rng = torch.Generator().manual_seed(2)
    images = torch.randn(len(foils.dataset), 1, 4, generator=rng)
    texts = [torch.randn(len(foils.dataset.texts), 1, 4, generator=rng) for _ in range(2)]
    found = caption_cosines([embedded(foils, images, own) for own in texts], foils)
    for n, item in enumerate(foils.items):
        for column, (one, other) in enumerate(((0, 1), (0, 2), (1, 2))):
            pairs = [(own[item.texts[one], 0], own[item.texts[other], 0]) for own in texts]
            cosines = [(a @ b / (a.norm() * b.norm())).item() for a, b in pairs]
            assert found[n, column].item() == pytest.approx(sum(cosines) / 2, abs=1e-6)
    right = [both > max(others) for both, *others in found.tolist()]
    lines = measure_foils(foils, random_scores(foils), cosines=found, resamples=9)
    [tot] = [line for line in lines if (line.measure, line.of) == ("TOT", "all items")]
    assert tot.value == pytest.approx(100 * sum(right) / len(right))
    bags = texts[0].expand(-1, 3, -1)
    assert caption_cosines([embedded(foils, images, bags)], foils) is None


def test_a_model_that_sees_all_is_right_of_pictures_in_both_ways(tmp_path):
    """Scored by the exact truth of scenes, which is what the sets' authors want of a model."""
    items = foil_cases.scene_items()
    truth = {(item["name"], text): 1.0 for item in items for text in item["captions"]}
    truth |= {(item["other_name"], item["foil"]): 1.0 for item in items}
    for source in (foil_cases.both_ways(tmp_path / "b"), foil_cases.sugarcrepe_twice(tmp_path)):
        foils = open_foil_set([str(source)])
        images, texts = foil_pairs(foils)
        names = [foils.dataset.image_ids[row] for row in images]
        captions = [foils.dataset.texts[row] for row in texts]
        scores = torch.tensor([truth.get(pair, 0.0) for pair in zip(names, captions)])
        for line in measure_foils(foils, scores, resamples=9):
            assert line.value == 100, line
        chances = {
            line.measure: round(line.chance, 1)
            for line in measure_foils(foils, scores, resamples=1)
        }
        assert chances in (
            {"ITT": 33.3, "pairwise": 50.0},
            {"I2T": 25.0, "T2I": 25.0, "group": 16.7}
            | dict.fromkeys(
                ("I2T, true picture", "I2T, foil's picture", "T2I, true caption", "T2I, foil"), 50.0
            ),
        )


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
