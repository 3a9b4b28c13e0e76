"""Bootstrap intervals and paired tests."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace

import pytest
import torch

import evaluation_cases
from counterfoil.evaluation import bootstrap
from counterfoil.evaluation.bootstrap import Counted, compare, intervals, shares, sums
from counterfoil.evaluation.metrics import (
    JOINT_METRICS,
    METRICS,
    RSUM,
    Protocol,
    recall_from_ranks,
)
from counterfoil.evaluation.protocols import WHOLE, evaluate_scores

FOLDS = Protocol("folds", folds=3)
JOINT = [metric.name for metric in JOINT_METRICS if not metric.is_sum]


def _report(seed=0, images=30, protocol=WHOLE, text_to_image=None, lean=1.0):
    text_to_image = (
        evaluation_cases.ragged(images, 5, orphans=2) if text_to_image is None else text_to_image
    )
    scores = evaluation_cases.scores(images, text_to_image, seed)
    true = text_to_image == torch.arange(images).unsqueeze(1)
    return evaluate_scores(scores + lean * true, text_to_image, protocol)


def _slow(report, counts):
    """The metrics of queries repeated as often as their image was drawn."""
    folds = []
    for fold in range(len(report.folds)):
        numbers = []
        for ranked in report.ranked:
            mine = ranked.counted & (ranked.folds == fold)
            times = counts[ranked.images[mine]].long()
            numbers.append(
                recall_from_ranks(ranked.ranks[mine].repeat_interleave(times), ranked.direction)
            )
        i2t, t2i = numbers
        folds.append([*i2t.numbers, *t2i.numbers, i2t.total + t2i.total])
    return torch.tensor(folds, dtype=torch.float64).mean(0)


@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
def test_a_draw_repeats_images_with_all_their_queries(protocol):
    report = _report(protocol=protocol)
    for counts in bootstrap._draws(report, 20, 3):
        ours = bootstrap._metrics(report, counts)
        for line, drawn in zip(ours, counts):
            slow = _slow(report, drawn)
            torch.testing.assert_close(line[: len(slow)], slow)


@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
def test_drawing_every_image_once_gives_the_metrics_themselves(protocol):
    report = _report(protocol=protocol)
    once = torch.ones(1, 30, dtype=torch.float64)
    assert bootstrap._metrics(report, once)[0].tolist() == pytest.approx(report.numbers)
    linear = [n for n, tested in zip(report.numbers, bootstrap._tested(report)) if tested]
    assert bootstrap._shares(report).sum(0).tolist() == pytest.approx(linear)


def test_folds_are_drawn_within_themselves():
    report = _report(protocol=FOLDS)
    (counts,) = bootstrap._draws(report, 50, 0)
    sizes = torch.stack([counts[:, report.ranked[0].folds == f].sum(1) for f in range(3)], 1)
    assert (sizes == 10).all()
    assert counts.std() > 0


def test_draws_do_not_depend_on_how_many_are_held(monkeypatch):
    report = _report()
    whole = intervals(report, resamples=40)
    assert intervals(report, resamples=40) == whole
    assert intervals(report, resamples=40, seed=1) != whole
    monkeypatch.setattr(bootstrap, "CELLS", 1)
    assert len(list(bootstrap._draws(report, 7, 0))) == 7


def test_captions_of_one_image_do_not_count_as_so_many_images():
    """Repeating every caption must leave the interval as wide as it was."""
    images = 60
    one = torch.arange(images)
    scores = evaluation_cases.scores(images, one, 1)
    spans = []
    for times in (1, 8):
        report = evaluate_scores(scores.repeat_interleave(times, 1), one.repeat_interleave(times))
        spans.append(intervals(report, resamples=400)[METRICS.index("t2i R@1")])
    assert spans[0] == spans[1]


def test_intervals_hold_the_metric():
    report = _report(images=50)
    for number, span in zip(report.numbers, intervals(report)):
        assert span.low <= number <= span.high


def test_sums_are_those_of_the_same_draws():
    report = _report()
    total, i2t, t2i = sums(report, resamples=50)
    assert total == intervals(report, resamples=50)[RSUM]
    drawn = bootstrap._resampled(report, 50, 0)
    for side, span in (("i2t", i2t), ("t2i", t2i)):
        columns = [METRICS.index(f"{side} R@{k}") for k in (1, 5, 10)]
        each = sorted(sum(float(row[column]) for column in columns) for row in drawn)
        assert each[0] <= span.low <= each[2]
        assert each[-3] <= span.high <= each[-1]


def test_about_95_of_100_intervals_hold_the_truth():
    """Ranks drawn from a known distribution with images as clusters."""
    rng = torch.Generator().manual_seed(0)
    report = _report(images=80, text_to_image=torch.arange(80).repeat_interleave(4))
    held = 0
    for _ in range(200):
        skill = torch.rand(80, generator=rng)  # mean 0.5, shared by an image's captions
        hit = torch.rand(320, generator=rng) < skill.repeat_interleave(4)
        t2i = replace(report.ranked[1], ranks=torch.where(hit, 0, 99))
        drawn = replace(report, ranked=(report.ranked[0], t2i))
        span = intervals(drawn, resamples=200)[METRICS.index("t2i R@1")]
        held += span.low <= 50 <= span.high
    assert 180 <= held <= 199


def test_a_run_does_not_differ_from_itself():
    changes = compare(_report(), _report(), resamples=20, flips=50)
    for change, tested in zip(changes, bootstrap._tested(_report()), strict=True):
        assert (change.difference, change.interval.low, change.interval.high) == (0, 0, 0)
        assert change.p == (1.0 if tested else None)
        assert tested or change.metric in bootstrap.MEDIANS or change.metric in JOINT


@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
def test_differences_are_second_minus_first(protocol):
    first, second = _report(0, protocol=protocol), _report(1, protocol=protocol, lean=3.0)
    found = compare(first, second)
    assert [change.metric for change in found] == list(METRICS)
    for change, before, after in zip(found, first.numbers, second.numbers):
        assert change.difference == pytest.approx(after - before)
        assert change.interval.low <= change.difference <= change.interval.high
    assert found[RSUM].difference > 0
    assert found[RSUM].p < 0.01
    json.dumps([change.to_dict() for change in found])


def test_p_is_the_share_of_all_exchanges():
    text_to_image = torch.arange(8).repeat_interleave(2)
    first, second = (_report(seed, 8, text_to_image=text_to_image) for seed in (2, 3))
    changes = bootstrap._shares(second) - bootstrap._shares(first)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=8)), dtype=torch.float64)
    exact = ((signs @ changes).abs() >= changes.sum(0).abs() - 1e-9).double().mean(0)
    ours = [c.p for c in compare(first, second, flips=20_000) if c.p is not None]
    assert ours == pytest.approx(exact.tolist(), abs=0.015)
    assert 0 < min(ours) < 1


def test_runs_on_other_queries():
    with pytest.raises(ValueError, match=r"different queries \(30 and 31 i2t"):
        compare(_report(), _report(images=31))
    with pytest.raises(ValueError, match="same split and protocol"):
        compare(_report(), _report(protocol=FOLDS))


def test_no_resample():
    with pytest.raises(ValueError, match="at least 1 resample, not 0"):
        intervals(_report(), resamples=0)


def test_by_a_loop():
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(7, (40,), generator=rng) * 3
    right, among = (torch.rand(40, generator=rng) < 0.6 for _ in range(2))
    found = shares([Counted.where(right, among)], images, scale=100, resamples=4000)[0]
    kept = [r for r, a in zip(right.tolist(), among.tolist()) if a]
    assert found.count == len(kept)
    assert found.value == pytest.approx(100 * sum(kept) / len(kept))
    sums = {name: [0, 0] for name in images.tolist()}  # right and counted
    for name, r, a in zip(images.tolist(), right.tolist(), among.tolist()):
        sums[name][0] += r and a
        sums[name][1] += a
    slow, names, draw = [], sorted(sums), random.Random(1)
    for _ in range(4000):
        drawn = [sums[name] for name in draw.choices(names, k=len(names))]
        slow.append(100 * sum(gained for gained, _ in drawn) / sum(many for _, many in drawn))
    slow.sort()
    assert found.interval.low == pytest.approx(slow[100], abs=1.5)
    assert found.interval.high == pytest.approx(slow[3899], abs=1.5)


def test_columns_count_alike_and_empty_draws_of_one_are_left_out():
    gained = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    possible = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 2.0]])
    found = shares([Counted(gained, possible)], torch.arange(3))[0]
    assert found.value == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert 0 <= found.interval.low <= found.value <= found.interval.high <= 1


def test_one_image_has_no_spread_and_the_same_seed_gives_the_same():
    values = torch.tensor([1.0, 2.0, 6.0])
    found = shares([Counted.mean(values)], torch.tensor([4, 4, 4]))[0]
    assert (found.value, found.interval.low, found.interval.high) == pytest.approx((3, 3, 3))
    values, images = torch.arange(20) ** 1.5, torch.arange(20)
    one, two = (shares([Counted.mean(values)], images, seed=5)[0] for _ in range(2))
    assert one == two
    assert one != shares([Counted.mean(values)], images, seed=6)[0]


@pytest.mark.parametrize("many", [0, 3])
def test_nothing_counts(many):
    nothing = torch.zeros(many, dtype=torch.bool)
    found = shares([Counted.where(nothing, nothing)], torch.arange(many))[0]
    assert found.count == 0
    assert math.isnan(found.value)
    assert found.to_dict() == {"value": None, "interval": None, "count": 0}
