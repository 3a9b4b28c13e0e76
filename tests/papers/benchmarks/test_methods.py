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
from counterfoil.saved import save_model

DOCS = Path(__file__).parents[3] / "docs"


def test_every_method_has_as_many_points_and_bases_those_of_whose_truth():
    found = json.loads((DOCS / "evidence" / "truths.json").read_text("utf-8"))
    known = {arm["arm"]: arm["point"] for arm in found["arms"]}
    for name, arm in methods.ARM.items():
        if name in known:
            assert [*arm.grid] == [known[name]], name
        else:
            assert len(arm.grid) == 12, name
    for study, claims in methods_page.CLAIMS.items():
        arms_of = {name for group in methods.STUDIES[study] for name in group}
        for claim in claims:
            assert {claim.arm, claim.base} <= arms_of


@pytest.mark.slow
@pytest.mark.parametrize("study", [*methods.STUDIES])
def test_explored_declared_confirmed_and_taken_up_again(study, bed, tmp_path, monkeypatch, capsys):
    few = tuple(
        {name: replace(arm, grid=arm.grid[-1:]) for name, arm in group.items()}
        for group in methods.STUDIES[study]
    )
    monkeypatch.setattr(methods, "STUDIES", {study: few})
    monkeypatch.setattr(methods, "SCORED", (12, 6))
    monkeypatch.setattr(methods, "SEEDS", range(22, 24))
    monkeypatch.setattr(methods, "LISTS", (12, 6))
    methods._first.cache_clear()
    methods._lists.cache_clear()
    call = ["run", str(bed.folder), "--judgements", str(bed.judgements), "--folder", str(tmp_path)]
    call += ["--table", study]
    if study == "listwise":  # adapters on the vectors of the bed stand for a re-ranker
        assert command.main([*call, "--minutes", "0"]) == 2
        assert "--table listwise needs a model" in capsys.readouterr().err
        judge, place = arms.closed_form(bed), tmp_path / "reranker"
        save_model(place, spec=judge.spec, model=judge.model, processor=judge.processor)
        call += ["--reranker", str(tmp_path / "reranker"), "--regions", str(bed.folder)]
    assert command.main([*call, "--minutes", "0"]) == command.STOPPED
    assert command.main([*call, "--explored"]) == command.STOPPED
    assert not (tmp_path / "declared-1.json").exists()
    assert command.main(call) == 0
    lines = ledger.read_ledger(tmp_path)
    assert len(lines) == 4 * sum(map(len, few))
    numbers = range(1, len(few) + 1)
    declared = [json.loads((tmp_path / f"declared-{n}.json").read_text()) for n in numbers]
    assert sum(len(one["contrasts"]) for one in declared) == len(methods_page.CLAIMS[study])
    spent = {line["arm"]: (line["steps"], line["pairs"]) for line in lines}
    if study == "listwise":  # the same steps and pairs with a re-ranker and without
        assert spent[methods.TAUGHT] == spent[methods.FOUR] == (6, 9000)
    else:
        second = {methods.MINED, methods.KEPT, methods.REPLACED} & spent.keys()
        assert {spent[name] for name in second} == {(6, 4500)}
    before = (tmp_path / "ledger.jsonl").read_text()
    assert command.main(call) == 0  # nothing is left to do
    assert (tmp_path / "ledger.jsonl").read_text() == before
    capsys.readouterr()
    assert command.main(["table", str(tmp_path), "--table", study]) == 0
    assert "Open, 2 of 8 seeds" in capsys.readouterr().out


@pytest.mark.parametrize("study", [*methods.STUDIES])
def test_the_page_shows_its_ledger(study):
    published = PUBLISHED[study]
    found = json.loads((DOCS / published.summary).read_text("utf-8"))
    _, inside, _ = published.shown((DOCS / published.page).read_text("utf-8"))
    assert inside.strip() == methods_page.table(found)
    lines = [json.loads(line) for line in (DOCS / published.trainings).read_text().splitlines()]
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
