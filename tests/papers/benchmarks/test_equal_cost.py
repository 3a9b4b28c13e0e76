"""Equal cost: stacks train as single models do; explored, declared, confirmed; the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.truths import __main__ as command
from benchmarks.truths import arms, cost, cost_page, ledger, stack, table
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.sampling import OfflineNegativeSampler

DOCS = Path(__file__).parents[3] / "docs"
FEW = {"batch": 16, "anchors": 80, "rate": 3e-3}


def near(first: stack.Weights, second: stack.Weights) -> bool:
    return all(torch.allclose(first[n], second[n], atol=2e-6, rtol=1e-4) for n in first)


def test_a_stack_of_one_is_the_plain_loop(bed, monkeypatch):
    """Written out with a module, the library's loss, clipped gradients and Adam."""
    monkeypatch.setattr(stack, "DROPOUT", 0.0)
    loss = InfoNCELoss(temperature=0.05, reduction="mean")
    start = stack.fresh([4])
    made = stack.train(bed, start, [loss], [7], **FEW)
    (model,) = stack.models(bed, start)
    network = model.model.train()
    for part in network.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    data = model.process(bed.train)
    optimiser = torch.optim.Adam(network.parameters(), lr=1.0)
    order = stack._order(len(bed.train.texts), 7, FEW["anchors"])
    for step in range(5):
        rows = order[16 * step : 16 * step + 16]
        owner = bed.train.text_to_image[rows]
        image = network.encode_images(data.images(owner)).tokens[:, 0]
        text = network.encode_texts(data.texts(rows)).tokens[:, 0]
        scores = image @ text.T
        true = torch.eye(16, dtype=torch.bool)
        twice = (owner[:, None] == owner) & ~true
        value = loss(scores.masked_fill(twice, -torch.inf), true)
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), stack.CLIP)
        rise = 0.1 * 5
        factor = (
            min(1, (step + 1) / rise)
            if step < rise
            else (1 + torch.cos(torch.tensor(torch.pi * (step - rise) / (5 - rise)))) / 2
        )
        optimiser.param_groups[0]["lr"] = FEW["rate"] * float(factor)
        optimiser.step()
    for name, value in network.state_dict().items():
        assert torch.allclose(stack._turned(made[name])[0], value, atol=2e-5), name
    assert not near(made, start)


LOSSES = {
    "pairs": lambda: cost.ARMS[cost.BASE].loss({"temperature": 0.05}),
    "triplet": lambda: cost.ARMS[cost.TRIPLET].loss({"margin": 0.9}),
    "mined": lambda: cost.ARMS[cost.MINED].loss({"temperature": 0.05}),
    "quintuplet": lambda: cost.ARMS[cost.QUINTUPLET].loss({"offline": 0.9}),
    "ndgl": lambda: cost.ARMS[cost.NDGL].loss({"weight": 10.0}),
    "soft": lambda: cost.ARMS[cost.TAUGHT[2]].loss({"weight": 0.7}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_models_of_a_stack_do_not_touch_each_other(bed, monkeypatch, name):
    monkeypatch.setattr(stack, "DROPOUT", 0.0)
    loss, seeds = LOSSES[name](), [4, 5, 6]
    start, more = stack.fresh(seeds), {}
    if name in ("mined", "quintuplet"):
        found = mine_hard_negatives(
            stack.models(bed, start)[0], bed.train, texts_per_image=20, images_per_text=5
        )
        more["lists"] = OfflineNegativeSampler(lists=found.lists, relation=bed.train.relation)
    teachers = [stack.fresh([7, 8, 9]), stack.fresh([10, 11, 12])]
    teachers = [{n: v + 0.05 * torch.randn_like(v) for n, v in one.items()} for one in teachers]
    taught = name in ("ndgl", "soft")
    if taught:
        more |= {"teaching": stack.taught_by(bed, teachers), "taught": [0, 1, 2]}
    together = stack.train(bed, start, [loss] * 3, seeds, **FEW, **more)
    for place, seed in enumerate(seeds):
        if taught:
            more["taught"] = [place]
        one = {n: v[[place]] for n, v in start.items()}
        alone = stack.train(bed, one, [loss], [seed], **FEW, **more)
        assert near({n: v[[place]] for n, v in together.items()}, alone)
        assert not near(alone, one)
    if taught:
        more["taught"] = [1]
        other = stack.train(bed, one, [loss], [seed], **FEW, **more)
        assert not near(alone, other)  # the guide counts


def test_the_guide_is_the_mean_cosine_of_the_teachers(bed):
    teachers = [stack.fresh([1, 2]), stack.fresh([3, 4])]
    teachers = [{n: v + 0.05 * torch.randn_like(v) for n, v in one.items()} for one in teachers]
    teaching = stack.taught_by(bed, teachers)
    mean = 0
    for one in teachers:
        images, texts = (
            stack.vectors({n: v[[1]] for n, v in one.items()}, side, rows.unsqueeze(0))[0]
            for side, rows in zip(("image", "text"), stack._inputs(bed), strict=True)
        )
        mean = mean + images[:6] @ texts[:9].T / 2
    found = teaching.images[1, :6].float() @ teaching.texts[1, :9].float().T / teaching.count
    assert torch.allclose(found, mean, atol=2e-3)


def test_every_arm_has_as_many_points_and_says_its_cost():
    for batch in cost.BATCHES:
        assert {len(cost.points_of(name, batch)) for name in cost.TUNED} == {4}
    pairs = {name: arm.cost(512).pairs for name, arm in cost.ARMS.items()}
    negatives = (cost.BASE, cost.TRIPLET, cost.MINED, cost.FILTERED, cost.QUINTUPLET)
    assert {pairs[name] for name in negatives} == {60_000}
    assert (pairs[cost.NDGL], pairs[cost.TAUGHT[2]], pairs[cost.TAUGHT[4]]) == (
        90_000,
        90_000,
        150_000,
    )
    assert pairs[cost.LONG] == max(pairs.values())
    assert cost.ARMS[cost.MINED].cost(8) == arms.Cost(3750 + 1875, 60_000)
    staged = [
        (name, batch) for batches, names in cost.STAGES for batch in batches for name in names
    ]
    assert sorted(staged) == sorted((name, batch) for name in cost.ROWS for batch in cost.BATCHES)
    rows = {cost.row(name, batch) for name in cost.ROWS for batch in cost.BATCHES}
    for claim in cost_page.CLAIMS:
        assert {claim.arm, claim.base} <= rows


def small(monkeypatch) -> None:
    few = {name: replace(arm, anchors=arm.anchors // 200) for name, arm in cost.ARMS.items()}
    monkeypatch.setattr(cost, "ARMS", few)
    both = cost.STAGES[0][1], cost.STAGES[-1][1]
    monkeypatch.setattr(cost, "STAGES", [((32,), names) for names in both])
    monkeypatch.setattr(cost, "SEEDS", range(2, 4))


@pytest.mark.slow
def test_explored_declared_confirmed_and_taken_up_again(bed, tmp_path, monkeypatch, capsys):
    small(monkeypatch)
    call = ["run", str(bed.folder), "--judgements", str(bed.judgements), "--folder", str(tmp_path)]
    call += ["--table", "cost"]
    assert command.main([*call, "--minutes", "0"]) == command.STOPPED
    assert len(ledger.read_ledger(tmp_path)) == 4
    assert command.main([*call, "--explored"]) == command.STOPPED
    lines = ledger.read_ledger(tmp_path)
    assert [line["phase"] for line in lines] == ["explore"] * 8 * len(cost.TUNED)
    declared = [
        json.loads((tmp_path / f"declared-{stage}-32.json").read_text())["points"]
        for stage in (1, 2)
    ]
    assert declared[0] | declared[1] == ledger.chosen(lines)
    assert command.main(call) == 0
    lines = ledger.read_ledger(tmp_path)
    done = [line["arm"] for line in lines if line["phase"] == "confirm"]
    assert sorted(done) == sorted([arms.CCA] + 2 * [cost.row(name, 32) for name in cost.ROWS])
    before = (tmp_path / "ledger.jsonl").read_text()
    assert command.main(call) == 0  # nothing is left to do
    assert (tmp_path / "ledger.jsonl").read_text() == before
    kept = before.splitlines()[:-2]
    (tmp_path / "ledger.jsonl").write_text("".join(f"{line}\n" for line in kept))
    assert command.main(call) == 0  # the last stack again, to the digit
    again = ledger.read_ledger(tmp_path)
    assert [one["numbers"] for one in again] == [one["numbers"] for one in lines]
    capsys.readouterr()
    assert command.main(["table", str(tmp_path), "--table", "cost"]) == 0
    shown = capsys.readouterr().out
    assert "- **Open, 2 of 8 seeds**: At batch 32, mined pairs pay. dev RSum" in shown
    assert (
        "- **Not run yet**: At batch 8, mined pairs pay. At batch 128, mined pairs pay. " in shown
    )
    assert "| 32 | *ensemble of 2* |" in shown
    assert command.main([*call, "--arm", arms.BASE]) == 2
    assert "--arm is for --table truths" in capsys.readouterr().err
    assert command.main([*call[:-1], "truths", "--explored"]) == 2
    assert "--explored is for other tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sign", "dev", "test", "state"),
    [
        ("more", (1, 0.1, 2), (1, 0.2, 2), "Confirmed"),
        ("more", (1, 0.1, 2), (1, -0.2, 2), "Open"),
        ("more", (-1, -2, -0.1), (-1, -2, -0.1), "Refuted, the opposite holds"),
        ("more", (-1, -2, -0.1), (1, 0.1, 2), "Open"),
        ("level", (0, -0.9, 1), (-0.4, -0.99, 0), "Confirmed"),
        ("level", (0, -1.1, 1), (-0.4, -0.9, 0), "Open"),
        ("level", (-2, -3, -1.1), (-2, -3, -1.2), "Refuted"),
    ],
)
def test_a_claim_needs_dev_and_test(sign, dev, test, state):
    assert cost_page.Claim("a", "b", "c", sign=sign).state([dev, test]) == state


@pytest.mark.skipif(
    not (DOCS / cost_page.PUBLISHED.summary).exists(), reason="no confirming seed was run yet"
)
def test_the_page_shows_its_ledger():
    """The table is that of the summary, whose means are those of the trainings."""
    shown = cost_page.PUBLISHED
    found = json.loads((DOCS / shown.summary).read_text("utf-8"))
    _, inside, _ = shown.shown((DOCS / shown.page).read_text("utf-8"))
    assert inside.strip() == cost_page.table(found)
    lines = [json.loads(line) for line in (DOCS / shown.trainings).read_text("utf-8").splitlines()]
    by_row, tried = {}, [line for line in lines if line["phase"] == "explore"]
    for line in lines:
        if line["phase"] == "confirm":
            by_row.setdefault(line["arm"], {})[line["seed"]] = line
    assert len(by_row) == len(found["rows"])
    best = ledger.chosen(tried)
    for one in found["rows"][1:]:
        batch = one["batch"]
        mine, base = by_row[cost.row(one["arm"], batch)], by_row[cost.row(cost.BASE, batch)]
        assert [*mine] == [*base] == [*cost.SEEDS]
        assert one["point"] == cost.point_at(best, one["arm"], batch)
        assert {line["pairs"] for line in mine.values()} == {one["pairs"]}
        for measure in cost_page.MEASURES:
            name, weight = table.MEASURES[measure]
            means = [
                weight
                * sum(
                    line["numbers"][name.format(side)]
                    for line in each.values()
                    for side in ("i2t", "t2i")
                )
                / len(each)
                for each in (mine, base)
            ]
            assert one["means"][measure] == pytest.approx(means[0], abs=2e-3)
            if "differences" in one:
                change, low, high = one["differences"][measure]
                assert change == pytest.approx(means[0] - means[1], abs=3e-3)
                assert low <= change <= high
    claims = [{**claim.to_dict()} for claim in cost_page.CLAIMS]
    assert [{key: one[key] for key in claims[0]} for one in found["claims"]] == claims
