from __future__ import annotations

import pytest
import torch

from benchmarks.experiments.__main__ import main
from benchmarks.experiments.ledger import add
from benchmarks.experiments.summary import as_markdown, figure_svg, lines, show
from counterfoil.evaluation.bootstrap import compare
from experiment_cases import entry, report


def _entries(better: float = 0.6):
    return [
        *(entry(report(seed), seed=seed) for seed in (0, 1, 2)),
        *(entry(report(seed, better), "AdapOffQuin", seed) for seed in (0, 1, 2)),
    ]


def test_means_and_deviation_over_seeds() -> None:
    online, adaptive = lines(_entries())
    rsums = torch.tensor([report(seed).rsum for seed in (0, 1, 2)], dtype=torch.float64)
    assert online.means["RSum"] == pytest.approx(rsums.mean().item())
    assert online.deviation == pytest.approx(rsums.std().item())
    assert online.against is None
    assert (online.seeds, adaptive.method) == ((0, 1, 2), "AdapOffQuin")


def test_one_seed_agrees_with_the_paired_test_of_two_reports() -> None:
    first, second = report(0), report(0, 0.55)
    (_, line) = lines([entry(first), entry(second, "OffTri")])
    (want,) = [c for c in compare(first, second) if c.metric == "RSum"]
    assert line.against is not None
    assert line.deviation is None
    assert line.against.mean == pytest.approx(want.difference, abs=1e-6)
    assert line.against.p == pytest.approx(want.p, abs=0.03)
    assert line.against.low == pytest.approx(want.interval.low, abs=3)
    assert line.against.high == pytest.approx(want.interval.high, abs=3)


def test_a_clear_gain_is_found_and_no_gain_is_not() -> None:
    gain, none = lines(_entries(0.8))[1].against, lines(_entries(0.5))[1].against
    assert gain is not None
    assert none is not None
    assert gain.low > 0
    assert gain.p < 0.01
    assert gain.better == (3, 3)
    assert (none.mean, none.p, none.better) == (0.0, 1.0, (0, 3))


def test_seeds_without_a_counterpart_are_not_compared() -> None:
    entries = [*_entries(), entry(report(9), "AdapOffQuin", 9)]
    line = lines(entries)[1]
    assert line.seeds == (0, 1, 2, 9)
    assert line.against is not None
    assert line.against.better[1] == 3


def test_results_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="no result yet"):
        lines([])
    other = entry(report(0)).model_copy(update={"data": "another"})
    with pytest.raises(ValueError, match="data sets"):
        lines([entry(report(0)), other])


def test_it_is_shown_with_its_protocol(tmp_path, capsys) -> None:
    entries = _entries(0.8)
    text = as_markdown(entries, lines(entries))
    assert "toy test" in text
    assert "any hit" in text
    assert text.count("\n| ") == 3
    assert "3 of 3" in text
    assert "<svg" in figure_svg(lines(entries))
    path = tmp_path / "ledger.jsonl"
    add(path, entries)
    show([path], figure=tmp_path / "figure.svg")
    assert "AdapOffQuin" in capsys.readouterr().out
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_what_would_be_run_is_shown(capsys) -> None:
    assert main(["plan", "aoq-flickr8k"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "BFAN equal, seed 0: online, AdapOffQuin (lists of VSE++)" in shown
    assert "--budget gpu" in shown
    assert main(["plan"]) == 0
    assert "evidence/aoq-ablations-flickr8k" in capsys.readouterr().out
