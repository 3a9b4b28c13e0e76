"""The verdicts' benchmark: its page shows its ledger, and its shares are counts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.caption_check import END, START, Judged, curve, photo_counts, summary, tables
from counterfoil.evaluation.caption_check import CaptionCheck

DOCS = Path(__file__).parents[3] / "docs"
LEDGER = DOCS / "evidence" / "caption-check.json"
CHECK = CaptionCheck(0.2, 0.6, (0.1, 0.25), 50, 50, "d", "m")


def test_the_page_shows_the_tables_of_the_ledger():
    page = (DOCS / "results" / "caption-check.md").read_text("utf-8")
    shown = page.split(START)[1].split(END)[0].strip()
    assert shown == tables(json.loads(LEDGER.read_text("utf-8")))


def test_the_page_says_what_the_ledger_says():
    ledger = json.loads(LEDGER.read_text("utf-8"))
    page = (DOCS / "results" / "caption-check.md").read_text("utf-8")
    (row,) = (
        row for row in ledger["rows"] if (row["photos"], row["rule"]) == (300, "experts, 3 or more")
    )
    fits, fails, unsure = (row[key][0] for key in ("fits", "does not fit", "cannot tell"))
    said = f"{fits:.0f} % of *fits* and {fails:.0f} % of *does not fit* are right"
    assert said in " ".join(page.split())
    assert f"with {unsure:.0f} % *cannot tell*" in page
    assert f"RSum {min(ledger['rsum']):.0f} to {max(ledger['rsum']):.0f}" in page
    even = ledger["even"]
    assert f"fits {even['fits'][0]} %, does not fit {even['does not fit'][0]} %" in page


def test_shares_are_counted_by_photo():
    pairs = Judged(
        torch.tensor([1, 1, 3, 3, 3]),
        torch.arange(5),
        torch.tensor([True, False, False, False, True]),
    )
    counts = photo_counts(CHECK, np.array([0.7, 0.1, 0.65, 0.5, 0.3]), pairs)
    assert counts[1].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert counts[3].tolist() == [[1, 0, 1], [0, 0, 1]]
    told = summary(counts[None])
    # of right pairs 1/2 fit, of wrong ones 1/3 fit and 1/3 do not
    assert told["fits"][0] == pytest.approx(60)
    assert told["fits as judged"][0] == 50
    assert told["does not fit"][0] == 100
    assert told["cannot tell"][0] == pytest.approx(100 * (1 / 2 + 1 / 3) / 2, abs=0.1)
    assert told["cannot tell as judged"][0] == 40
    assert told["fits"][1] <= told["fits"][0] <= told["fits"][2]


def test_the_curve_is_that_of_the_best_thresholds():
    scores = np.arange(100) / 100
    apart = curve(scores, scores >= 0.5)
    assert set(apart.values()) == {0.0}
    rng = np.random.default_rng(0)
    blind = curve(rng.random(20_000), rng.random(20_000) < 0.5)
    assert blind["75"] > 95
    mixed = curve(np.r_[rng.normal(1, 1, 9000), rng.normal(-1, 1, 9000)], np.arange(18_000) < 9000)
    assert mixed["80"] == 0.0, "a single threshold is right in 84 %"
    assert 5 < mixed["90"] < mixed["95"] < 60
