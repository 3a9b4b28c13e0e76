from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluation_cases
from counterfoil.evaluation import bootstrap, metrics
from counterfoil.evaluation.evaluate import EvaluationResult
from counterfoil.evaluation.metrics import (
    Protocol,
    further_metrics,
    ranks_of,
    recall_from_ranks,
)
from counterfoil.evaluation.protocols import evaluate_scores


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6), st.sampled_from([None, 1, 2]))
def test_ranks_equal_the_place_in_a_sorted_list(images, seed, levels):
    text_to_image = evaluation_cases.ragged(images, seed, orphans=seed % 3)
    scores = evaluation_cases.scores(images, text_to_image, seed, levels)
    for tie in ("row", "optimistic", "pessimistic"):
        i2t, t2i = ranks_of(scores, text_to_image, tie)
        assert (i2t.tolist(), t2i.tolist()) == evaluation_cases.slow_ranks(
            scores, text_to_image, tie
        )


def test_all_scores_equal():
    text_to_image = torch.tensor([2, 0, 0, 1])
    flat = torch.zeros(3, 4)
    assert [r.tolist() for r in ranks_of(flat, text_to_image, "row")] == [[1, 3, 0], [2, 0, 0, 1]]
    assert [r.tolist() for r in ranks_of(flat, text_to_image, "optimistic")] == [
        [0, 0, 0],
        [0, 0, 0, 0],
    ]
    assert [r.tolist() for r in ranks_of(flat, text_to_image, "pessimistic")] == [
        [2, 3, 3],
        [2, 2, 2, 2],
    ]


@given(st.lists(st.integers(-1, 30), min_size=1, max_size=40).filter(lambda r: max(r) >= 0))
def test_recall_is_what_numpy_says(ranks):
    found = recall_from_ranks(torch.tensor(ranks), "i2t")
    counted = np.array([rank for rank in ranks if rank >= 0])
    assert found.queries == len(counted)
    assert found.left_out == len(ranks) - len(counted)
    assert found.numbers == pytest.approx(
        (
            100 * (counted < 1).mean(),
            100 * (counted < 5).mean(),
            100 * (counted < 10).mean(),
            np.floor(np.median(counted)) + 1,
            counted.mean() + 1,
        )
    )
    assert found.total == pytest.approx(found.r1 + found.r5 + found.r10)


def test_recall_is_json():
    found = recall_from_ranks(torch.tensor([0, 3, -1]), "t2i")
    known = {
        "direction": "t2i",
        "r1": 50.0,
        "r5": 100.0,
        "r10": 100.0,
        "median_rank": 2.0,
        "mean_rank": 2.5,
        "queries": 2,
        "left_out": 1,
        "tied": 0,
    }
    assert known.items() <= json.loads(json.dumps(found.to_dict())).items()


def test_nothing_to_evaluate():
    with pytest.raises(ValueError, match="none of the 2 queries can be evaluated"):
        recall_from_ranks(torch.tensor([-1, -1]), "t2i")


@pytest.mark.parametrize(
    "scores, text_to_image, tie, message",
    [
        (torch.zeros(2, 3), torch.tensor([0, 1]), "row", r"each of the 3 texts.*\(2,\)"),
        (torch.zeros(2, 3), torch.tensor([0, 1, 2]), "row", "rows from 0 to 2, but there are 2"),
        (torch.zeros(2, 1), torch.tensor([-2]), "row", "rows from -2 to -2"),
        (torch.full((1, 1), torch.nan), torch.tensor([0]), "row", "1 of the scores are NaN"),
        (torch.zeros(1, 1), torch.tensor([0]), "mean", "'mean' is not a tie rule"),
    ],
)
def test_bad_input(scores, text_to_image, tie, message):
    with pytest.raises(ValueError, match=message):
        ranks_of(scores, text_to_image, tie)


BEGIN = """
import importlib.util, sys, torch
place = "counterfoil.evaluation.metrics"
spec = importlib.util.spec_from_file_location(place, sys.argv[1])
sys.modules[place] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[place])
from counterfoil.evaluation.evaluate import EvaluationResult
from counterfoil.evaluation.protocols import Protocol, evaluate_scores
from counterfoil.evaluation.bootstrap import compare
from counterfoil.evaluation.results import model_table, result_table, results

scores = torch.randn(60, 60, generator=torch.Generator().manual_seed(0))
report, other = (
    evaluate_scores(scores + lean * torch.eye(60), torch.arange(60), Protocol("two", folds=2))
    for lean in (0, 1)
)
found = EvaluationResult(report)
"""
WITH_R30 = """
for side, ranked in zip(("i2t", "t2i"), report.ranked):
    assert abs(found.metrics[side + " R@30"] - 100 * (ranked.ranks < 30).double().mean()) < 1e-9
    assert found.to_dict()[side]["r30"] == found.metrics[side + " R@30"]
six = [found.metrics[f"{side} R@{k}"] for side in ("i2t", "t2i") for k in (1, 5, 10)]
assert abs(found.rsum - sum(six)) < 1e-9
assert found.intervals.keys() == found.metrics.keys()
for name, span in found.intervals.items():
    assert span.low <= found.metrics[name] <= span.high, name
assert "R@30" in repr(found) and "R@30" in str(result_table(results({"a": report, "b": report})))
"""


def test_a_metric_is_one_line_of_one_file(tmp_path):
    """With R@30 added to the fields, all that reads them has it, and RSum is as before."""
    source = Path(metrics.__file__).read_text("utf-8")
    line, below = (
        "    r30: float = field(metadata=_recall(30, in_rsum=False))\n",
        "    median_rank: float",
    )
    assert source.count(below) == 1
    (tmp_path / "metrics.py").write_text(source.replace(below, line + below), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + WITH_R30, tmp_path / "metrics.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


WITH_MEAN = """
gained = found.metrics["mean of both R@1"]
assert abs(gained - (found.metrics["i2t R@1"] * found.metrics["t2i R@1"]) ** 0.5) < 1e-9
assert "RSum" in found.metrics
assert report.to_dict()["mean_of_both_r1"] == gained and report.to_dict()["rsum"] == found.rsum
span = found.intervals["mean of both R@1"]
assert span.low <= gained <= span.high
changes = {change.metric: change for change in compare(report, other)}
after = EvaluationResult(other)
assert changes["RSum"].difference == after.metrics["RSum"] - found.metrics["RSum"]
assert changes["RSum"].p is not None and changes["mean of both R@1"].p is None
runs = results({"a": report, "b": other})
assert "mean of both R@1" in repr(found) and "mean of both R@1" in str(result_table(runs))
assert f"{changes['RSum'].difference:.1f}" in str(model_table(runs)).replace("+", "")
"""


def test_a_number_of_both_directions_is_one_line_of_one_file(tmp_path):
    source = Path(metrics.__file__).read_text("utf-8")
    line = 'JointMetric("RSum", _rsum, is_sum=True),'
    more = (
        f'{line} JointMetric("mean of both R@1", lambda i2t, t2i: (i2t["r1"] * t2i["r1"]).sqrt()),'
    )
    assert source.count(line) == 1
    (tmp_path / "metrics.py").write_text(source.replace(line, more), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + WITH_MEAN, tmp_path / "metrics.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def second_or_better(ranks):
    return ranks <= 2


def ninetieth(ranks):
    return np.quantile(ranks, 0.9)


def mean_log_of_array(ranks):
    return np.mean(np.log(ranks.numpy()))


def split_in_two():
    scores = torch.randn(60, 120, generator=torch.Generator().manual_seed(3))
    owner = torch.arange(60).repeat_interleave(2)
    scores[owner, torch.arange(120)] += 0.5
    return evaluate_scores(scores, owner, Protocol("two", folds=2))


def test_metrics_that_are_asked_for_stand_beside_the_others():
    report = split_in_two()
    asked = ["R@7", "MRR", "MRR@10", "mean rank", second_or_better, ninetieth, mean_log_of_array]
    found = EvaluationResult(replace(report, further=further_metrics(asked)))
    plain, shown = json.loads(json.dumps(found.to_dict())), repr(found)
    for side, ranked in zip(("i2t", "t2i"), report.ranked):
        folds = [ranked.ranks[ranked.folds == fold].numpy() + 1 for fold in (0, 1)]
        for name, key, of_fold in (
            ("R@7", "r7", lambda r: 100 * (r <= 7).mean()),
            ("MRR", "mrr", lambda r: 100 * (1 / r).mean()),
            ("MRR@10", "mrr10", lambda r: 100 * np.where(r <= 10, 1 / r, 0).mean()),
            ("second_or_better", "second_or_better", lambda r: (r <= 2).mean()),
            ("ninetieth", "ninetieth", lambda r: np.quantile(r, 0.9)),
            ("mean_log_of_array", "mean_log_of_array", lambda r: np.log(r).mean()),
        ):
            number = np.mean([of_fold(ranks) for ranks in folds])
            assert found.metrics[f"{side} {name}"] == pytest.approx(number)
            assert plain[side][key] == found.metrics[f"{side} {name}"]
            span = found.intervals[f"{side} {name}"]
            assert span.low <= number <= span.high
            assert span.low < span.high
            assert name in shown
    assert found.intervals.keys() == found.metrics.keys() == plain["intervals"].keys()
    joint = [metric.name for metric in metrics.JOINT_METRICS]
    assert list(found.metrics)[-len(joint) :] == joint
    assert found.rsum == report.rsum
    # of the same resamples, however a metric is written
    one, other = (
        bootstrap._resampled(replace(report, further=further_metrics([f])), 30, 0) for f in twice()
    )
    torch.testing.assert_close(one, other)


def twice():
    def each(ranks):
        return (ranks - 3) ** 2

    def at_once(ranks):
        return ((ranks - 3) ** 2).mean()

    return each, at_once


def test_small_numbers_of_a_function_are_shown_with_three_decimals():
    further = further_metrics([second_or_better, "R@3"])
    shown = repr(EvaluationResult(replace(split_in_two(), further=further)))
    assert re.search(r"image to text .* 0\.\d{3} \(0\.\d{3} to 0\.\d{3}\)", shown)
    first, second = (EvaluationResult(replace(split_in_two(), further=further)) for _ in range(2))
    (row, _) = (line for line in str(first.compare(second)).splitlines() if "second_or" in line)
    assert re.search(r"second_or_better +0\.\d{3} +0\.\d{3} +0\.000", row)


def no_numbers(ranks):
    return [1.0] * 7


def infinite(ranks):
    return torch.log(ranks - 1)


def broken(ranks):
    return ranks["first"]


def mean_log(ranks):
    return np.mean(np.log(ranks))


@pytest.mark.parametrize(
    "metrics, message",
    [
        (["R@0"], "'R@0' is not a metric; known are R@K and MRR@K .* any function of ranks"),
        (["nDCG@10"], "is not counted here.*--to trec"),
        ("R@30", r"write metrics=\['R@30'\]"),
        ([lambda ranks: ranks], "a function of ranks that has a name"),
        ([3], "3 is no metric"),
        ([no_numbers], r"no_numbers gave \(7,\) for 4 ranks"),
        ([infinite], "infinite gave .* with NaN or infinite values"),
        ([broken], r"broken fails on the ranks \[1.0, 2.0.*: IndexError"),
        ([mean_log], r"a one-dimensional float64 tensor of torch \(for NumPy, begin with ranks = "),
        (["R@30", "recall@30"], "two metrics are called 'R@30'"),
    ],
)
def test_metrics_that_cannot_be_measured(metrics, message):
    with pytest.raises(ValueError, match=message):
        further_metrics(metrics)
