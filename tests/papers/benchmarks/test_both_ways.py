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
from counterfoil.losses.contrastive import InfoNCELoss, InfoNCEWithCandidatesLoss

DOCS = Path(__file__).parents[3] / "docs"
EVIDENCE = DOCS / "evidence"
NAMES = pytest.mark.parametrize("name", [*both_ways.STUDIES])


@NAMES
def test_the_page_shows_the_table_of_the_ledger(name: str) -> None:
    page = (DOCS / both_ways.PAGE).read_text("utf-8")
    _, table, _ = table_place(page, *both_ways.marks(name))
    shown = both_ways.as_markdown(EVIDENCE / f"{name}.jsonl", both_ways.STUDIES[name])
    assert table.rstrip("\n") == shown


@NAMES
def test_claims_seeds_and_cost_are_those_declared(name: str) -> None:
    study = both_ways.STUDIES[name]
    declared = json.loads((EVIDENCE / f"{name}.declared.json").read_text("utf-8"))
    assert declared["claims"] == [claim.to_dict() for claim in study.claims]
    assert declared["seeds"] == [*study.seeds]
    assert len({len(arm.grid) for arm in study.arms.values()}) == 1
    lines = [json.loads(s) for s in (EVIDENCE / f"{name}.jsonl").read_text("utf-8").splitlines()]
    for line in lines[1:]:
        assert line["seed"] in declared["seeds"]
        assert line["point"] == declared["points"][line["method"]]
        assert line["point"] in study.arms[line["method"]].grid
        assert line["items"] == pytest.approx(both_ways.ITEMS, rel=0.01)
    assert len({(line["method"], line["seed"]) for line in lines}) == len(lines)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_margin_is_kept_from_the_own_foil_alone(adaptive: bool) -> None:
    """By a loop; a caption without a foil has no hinge."""
    rng = torch.Generator().manual_seed(0)
    block, foils = (torch.rand(4, 4, generator=rng, dtype=torch.float64) for _ in range(2))
    foils[:, 2] = -torch.inf
    loss = both_ways.RankedLoss(temperature=0.1, margin=0.4, weight=3.0, adaptive=adaptive)
    found = loss(block, generated=foils)
    leads = [(block[b, b] - foils[b, b]).item() for b in (0, 1, 3)]
    margin = min(max(sum(leads) / 3, 0.0), 0.4) if adaptive else 0.4
    hinges = sum(max(margin - lead, 0.0) for lead in leads) / 4
    contrast = InfoNCEWithCandidatesLoss(temperature=0.1, reduction="mean")
    assert found.item() == pytest.approx(contrast(block, generated=foils).item() + 3 * hinges)


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
