"""Later methods on the bed of whose truth: the run, its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.truths import __main__ as command
from benchmarks.truths import arms, ledger, methods, methods_page
from benchmarks.truths.methods_page import PUBLISHED
from benchmarks.truths.table import MEASURES

DOCS = Path(__file__).parents[3] / "docs"


def test_every_method_has_as_many_points_and_bases_those_of_whose_truth():
    found = json.loads((DOCS / "evidence" / "truths.json").read_text("utf-8"))
    known = {arm["arm"]: arm["point"] for arm in found["arms"]}
    for name, arm in methods.ARM.items():
        if name in known:
            assert [*arm.grid] == [known[name]], name
        else:
            assert len(arm.grid) == 12, name
    for claim in methods_page.CLAIMS:
        assert {claim.arm, claim.base} <= {*methods.ARM}


@pytest.mark.slow
def test_explored_declared_confirmed_and_taken_up_again(bed, tmp_path, monkeypatch, capsys):
    few = tuple(
        {name: replace(arm, grid=arm.grid[-1:]) for name, arm in group.items()}
        for group in methods.GROUPS
    )
    monkeypatch.setattr(methods, "GROUPS", few)
    monkeypatch.setattr(methods, "SEEDS", range(22, 24))
    monkeypatch.setattr(methods, "LISTS", (12, 6))
    methods._first.cache_clear()
    methods._lists.cache_clear()
    call = ["run", str(bed.folder), "--judgements", str(bed.judgements), "--folder", str(tmp_path)]
    call += ["--table", "methods"]
    assert command.main([*call, "--minutes", "0"]) == command.STOPPED
    assert command.main([*call, "--explored"]) == command.STOPPED
    assert not (tmp_path / "declared-1.json").exists()
    assert command.main(call) == 0
    lines = ledger.read_ledger(tmp_path)
    assert len(lines) == 4 * len(methods.ARM)
    declared = [json.loads((tmp_path / f"declared-{n}.json").read_text()) for n in (1, 2, 3, 4)]
    assert [len(one["contrasts"]) for one in declared] == [1, 1, 1, 1]
    mined = [line for line in lines if line["arm"] == methods.MINED][-1]
    assert (mined["steps"], mined["pairs"]) == (6, 4500)
    before = (tmp_path / "ledger.jsonl").read_text()
    assert command.main(call) == 0  # nothing is left to do
    assert (tmp_path / "ledger.jsonl").read_text() == before
    capsys.readouterr()
    assert command.main(["table", str(tmp_path), "--table", "methods"]) == 0
    assert "Open, 2 of 8 seeds" in capsys.readouterr().out


def test_the_page_shows_its_ledger():
    found = json.loads((DOCS / PUBLISHED.summary).read_text("utf-8"))
    _, inside, _ = PUBLISHED.shown((DOCS / PUBLISHED.page).read_text("utf-8"))
    assert inside.strip() == methods_page.table(found)
    lines = [json.loads(line) for line in (DOCS / PUBLISHED.trainings).read_text().splitlines()]
    by_arm = {}
    for line in lines:
        if line["phase"] == "confirm":
            by_arm.setdefault(line["arm"], {})[line["seed"]] = line["numbers"]
    assert by_arm.keys() == {arm["arm"] for arm in found["arms"]} <= {*methods.ARM}
    for arm in found["arms"]:
        of, base = by_arm[arm["arm"]], by_arm[arms.BASE]
        assert arm["seeds"] == len(of)
        for measure, (name, weight) in MEASURES.items():

            def mean(one, name=name, weight=weight, seeds=sorted(of.keys() & base.keys())):
                sides = (one[seed][name.format(s)] for seed in seeds for s in ("i2t", "t2i"))
                return weight * sum(sides) / len(seeds)

            assert arm["means"][measure] == pytest.approx(mean(of), abs=1e-3)
            if "differences" in arm:
                change, low, high = arm["differences"][measure]
                assert change == pytest.approx(mean(of) - mean(base), abs=2e-3)
                assert low <= change <= high
    tried = [line for line in lines if line["phase"] == "explore"]
    best = ledger.chosen(tried)
    for arm in found["arms"]:
        assert best[arm["arm"]] == arm["point"]
        count = sum(line["arm"] == arm["arm"] for line in tried)
        assert count == 2 * len(methods.ARM[arm["arm"]].grid)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_shared_targets_are_those_of_beta_cal_for_any_beta(beta):
    """One row for each caption as the first one; a masked pair has no share."""
    owner, none = [0, 0, 0, 1, 2, 2], (2, 0)
    s = torch.rand(3, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    s.requires_grad_()
    positives = torch.arange(3).unsqueeze(1) == torch.tensor(owner)
    mask = torch.ones_like(positives)
    mask[none] = False
    logits, total = (s / 0.2).masked_fill(~mask, -torch.inf), s.new_zeros(())
    for text, image in enumerate(owner):
        target = [(1.0 if t == text else beta) * (owner[t] == image) for t in range(6)]
        for t, share in enumerate(target):
            if share:
                total = total - share / sum(target) * logits[image].log_softmax(0)[t] / 12
        total = total - logits[:, text].log_softmax(0)[image] / 12
    ours = methods.SharedTargetInfoNCE(temperature=0.2)(s, positives, mask)
    torch.testing.assert_close(ours, total)
    for one, other in zip(torch.autograd.grad(ours, s), torch.autograd.grad(total, s)):
        torch.testing.assert_close(one, other)
