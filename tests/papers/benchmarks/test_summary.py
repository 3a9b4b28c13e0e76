from __future__ import annotations

import pytest

from benchmarks.experiments import catalogue
from benchmarks.experiments.__main__ import main
from benchmarks.experiments.ledger import add
from benchmarks.experiments.summary import (
    as_markdown,
    difference,
    figure_svg,
    lines,
    seeds_needed,
    show,
    verdict,
)
from papers_experiment_cases import CONTRAST, entry, pairs, toy_table

CHANGES = [1.0, 2.5, 3.0, 5.5]


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    from scipy import stats

    _, line = lines(toy_table(), pairs(CHANGES, CHANGES[::-1]))
    want = stats.ttest_1samp(CHANGES, 0).confidence_interval(0.95)
    for split in ("dev", "test"):
        against = line.against[split]
        assert (against.low, against.high) == pytest.approx((want.low, want.high))
        assert (against.mean, against.better, against.count) == (pytest.approx(3.0), 4, 4)
    assert line.values("dev") == [203.0, 205.5, 207.0, 210.5]


def test_only_equal_seeds_are_compared() -> None:
    entries = [*pairs(CHANGES, CHANGES), entry("AdapOffQuin", 99, 500.0, 500.0)]
    base, line = lines(toy_table(), entries)
    assert (list(line.entries), list(base.entries)) == ([2, 3, 4, 5, 99], [2, 3, 4, 5])
    assert line.against["test"].mean == pytest.approx(3.0)
    assert difference(line.entries, {}, "test") is None


@pytest.mark.parametrize(
    ("dev", "test", "state"),
    [
        ([2.0, 2.5, 3.0, 2.2], [2.0, 2.5, 3.0, 2.2], "Confirmed"),
        ([2.0, 2.5, 3.0, 2.2], [-9.0, 9.0, -4.0, 4.0], "Open, dev and test disagree"),
        ([-0.1, 0.1, 0.0, 0.2], [0.1, -0.1, 0.2, 0.0], "Refuted, any gain is below 1"),
        ([-2.0, -2.5, -3.0, -2.2], [-2.0, -2.5, -3.0, -2.2], "Refuted, the opposite holds"),
        ([-9.0, 9.0, -4.0, 4.0], [-9.0, 9.0, -4.0, 4.0], "Open:"),
        ([2.0, 2.5, 3.0], [2.0, 2.5, 3.0], "Open, 3 of 4 seeds"),
    ],
)
def test_a_contrast_is_judged_on_both_splits_and_all_its_seeds(dev, test, state) -> None:
    said = verdict(CONTRAST, pairs(dev, test)).replace("**", "")
    assert said.startswith(state)
    assert "dev" in said
    assert "test" in said


def test_seeds_of_the_exploration_do_not_confirm() -> None:
    explored = [entry(m, seed, v, v) for m, v in (("online", 1.0), ("AdapOffQuin", 90.0))
                for seed in (0, 1)]  # fmt: skip
    assert verdict(CONTRAST, explored).startswith("**Not run yet**")
    mixed = [*explored, *pairs([-1.0] * 4, [-1.0] * 4)]
    assert "the opposite holds" in verdict(CONTRAST, mixed)


def test_power_is_that_of_simulated_paired_tests() -> None:
    import numpy as np
    from scipy import stats

    count = seeds_needed(3.0, 4.0)
    rng = np.random.default_rng(0)
    for seeds, powerful in ((count, True), (count - 2, False)):
        treated = rng.normal(4.0, 3.0, (4000, seeds))
        share = (stats.ttest_rel(treated, np.zeros_like(treated), axis=1).pvalue < 0.05).mean()
        assert (share > 0.78) == powerful
    with pytest.raises(ValueError, match="must differ from 0"):
        seeds_needed(3.0, 0.0)


def test_results_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="no result yet"):
        lines(toy_table(), [])
    other = entry().model_copy(update={"data": "another"})
    with pytest.raises(ValueError, match="data sets"):
        lines(toy_table(), [entry(), other])


def test_table_and_figure_show_both_splits_and_the_protocol(tmp_path, capsys, monkeypatch) -> None:
    entries = pairs(CHANGES, CHANGES)
    text = as_markdown(toy_table(), entries)
    assert "toy test; whole split" in text
    assert "| VSE++ | batch 8 | AdapOffQuin | 4 | 206.5 ± 3.1 | 209.5 ± 0.7 | +3.0 (" in text
    assert "**Confirmed**" in text
    monkeypatch.setattr(catalogue, "tables", lambda: (toy_table(),))
    path = tmp_path / "ledger.jsonl"
    add(path, entries)
    show([path], figure=tmp_path / "figure.svg")
    shown = capsys.readouterr().out
    assert "AdapOffQuin" in shown
    assert "seeds needed" in shown
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
    assert "<svg" in figure_svg(toy_table(), entries)


def test_the_plan_lists_experiments_and_declared_contrasts(capsys) -> None:
    assert main(["plan", "aoq-batch"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "adapters on CCA, batch 8, seed 3: online, AdapOffQuin" in shown
    assert "--budget gpu" in shown
    assert (
        "declared: AdapOffQuin is better than the online loss at batch 8. (seeds 2 to 9)" in shown
    )
    assert main(["plan"]) == 0
    assert "ndgl-adapters" in capsys.readouterr().out
