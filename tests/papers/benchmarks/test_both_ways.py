"""What foils in both directions teach: the arms, and the table that the ledger gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import both_ways
from benchmarks.pages import table_place
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes.truth import is_true
from counterfoil.losses.contrastive import InfoNCELoss

DOCS = Path(__file__).parents[3] / "docs"
LEDGER = DOCS / "evidence" / f"{both_ways.NAME}.jsonl"
DECLARED = DOCS / "evidence" / f"{both_ways.NAME}.declared.json"


def test_the_page_shows_the_table_of_the_ledger() -> None:
    page = (DOCS / both_ways.PAGE).read_text("utf-8")
    _, table, _ = table_place(page, both_ways.BEGIN, both_ways.END)
    assert table.rstrip("\n") == both_ways.as_markdown(LEDGER)


def test_claims_seeds_and_cost_are_those_declared() -> None:
    declared = json.loads(DECLARED.read_text("utf-8"))
    assert declared["claims"] == [claim.to_dict() for claim in both_ways.CLAIMS]
    lines = [json.loads(line) for line in LEDGER.read_text("utf-8").splitlines()][1:]
    for line in lines:
        assert line["seed"] in declared["seeds"]
        assert line["point"] == declared["points"][line["method"]]
        assert line["items"] == pytest.approx(both_ways.ITEMS, rel=0.01)
    assert len({(line["method"], line["seed"]) for line in lines}) == len(lines)


def test_the_same_pairs_that_are_not_opposed_are_two_batches() -> None:
    rng = torch.Generator().manual_seed(0)
    block, pair, other = (torch.rand(4, 4, generator=rng) for _ in range(3))
    pairs = {"generated": other, "generated_image": other, "generated_pair": pair}
    found = both_ways.ApartLoss(temperature=0.1)(block, **pairs)
    alone = InfoNCELoss(temperature=0.1, reduction="mean")
    torch.testing.assert_close(found, alone(block) + alone(pair))


def test_foils_of_the_bed_are_exact() -> None:
    data = load_dataset("scenes:images=12,dev=2,test=2").split("dev")
    shown = {}
    entries, _ = both_ways.shown_foils(data, shown)
    assert len(entries) > 10
    for entry in entries:
        truth = [is_true(text, shown[name]) for name in entry.images for text in entry.captions]
        assert truth == [True, False, False, True]
