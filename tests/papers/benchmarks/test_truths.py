"""The flagship's command: explored, declared, confirmed, and taken up again; its intervals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.truths import __main__ as command
from benchmarks.truths import arms, ledger, page, table
from counterfoil.losses.contrastive import InfoNCELoss

DOCS = Path(__file__).parents[3] / "docs"


def test_the_bed_keeps_rows_together(bed):
    data = bed.data
    assert data.split_names == ("train", "dev", "test")
    assert data.texts[5 * 7 + 2] == "a thing 7 2"
    assert bed.guide.shape == (1500, 300)
    scores = torch.from_numpy(
        np.load(bed.folder / "images.npy") @ np.load(bed.folder / "texts.npy").T
    )
    own = scores[data.text_to_image, torch.arange(len(data.texts))].mean()
    assert own > scores.mean() + 0.2
    assert "15 of 45 judged pairs of others" in bed.judged.line


def test_every_arm_trains_and_has_as_many_points(bed):
    assert {len(arm.grid) for arm in arms.ARMS.values()} == {12}
    for contrast in table.CONTRASTS:
        assert {contrast.arm, contrast.base} <= {*arms.ARMS}


@pytest.mark.slow
@pytest.mark.parametrize("name", arms.ARMS)
def test_an_arm(bed, name):
    cost = arms.Cost()
    model = arms.ARMS[name].train(bed, arms.ARMS[name].grid[5], 2, cost)
    assert cost.steps >= 2
    assert cost.pairs >= 2 * 1500
    points = bed.measure(model)
    for column, _ in table.MEASURES.values():
        for side in ("i2t", "t2i"):
            assert points[column.format(side)][:, 1].sum() > 0


def test_explored_declared_confirmed_and_taken_up_again(bed, tmp_path, monkeypatch, capsys):
    few = {
        name: replace(arms.ARMS[name], grid=arms.ARMS[name].grid[4:6])
        for name in (arms.BASE, arms.TRIPLET)
    }
    monkeypatch.setattr(command, "ARMS", few)
    monkeypatch.setattr(command, "CONFIRMING", range(2, 4))
    call = ["run", str(bed.folder), "--judgements", str(bed.judgements), "--folder", str(tmp_path)]
    assert command.main([*call, "--minutes", "0"]) == command.STOPPED
    assert not (tmp_path / "declared.json").exists()
    assert command.main(call) == 0
    lines = command.read_ledger(tmp_path)
    assert [line["phase"] for line in lines] == ["explore"] * 8 + ["confirm"] * 5
    declared = json.loads((tmp_path / "declared.json").read_text())
    for name in few:
        tried = [line for line in lines if (line["phase"], line["arm"]) == ("explore", name)]
        means = {
            json.dumps(point): sum(ledger.dev_rsum(t) for t in tried if t["point"] == dict(point))
            for point in few[name].grid
        }
        assert declared["points"][name] == json.loads(max(means, key=means.get))
        used = [line for line in lines if (line["phase"], line["arm"]) == ("confirm", name)]
        assert [line["point"] for line in used] == [declared["points"][name]] * 2
        assert used[0]["pairs"] == 3000
    before = (tmp_path / "ledger.jsonl").read_text()
    capsys.readouterr()
    assert command.main(call) == 0  # nothing is left to do
    assert (tmp_path / "ledger.jsonl").read_text() == before
    assert "confirm" not in capsys.readouterr().out
    (tmp_path / "ledger.jsonl").write_text(
        "".join(f"{line}\n" for line in before.splitlines()[:-1])
    )
    assert command.main(call) == 0  # the last again, to the digit
    again = command.read_ledger(tmp_path)
    assert again[-1]["numbers"] == lines[-1]["numbers"]
    assert command.main(["table", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "hardest triplet, batch 512 against InfoNCE, batch 512, 2 seeds." in shown
    assert "- **Open, 2 of 20 seeds**: The hardest triplet has the better" in shown
    assert "**Not run yet**: Mined pairs help InfoNCE." in shown
    (tmp_path / "docs" / "results").mkdir(parents=True)
    page = tmp_path / "docs" / "results" / "truths.md"
    page.write_text("# Truths\n")
    assert command.main(["table", str(tmp_path), "--docs", str(tmp_path / "docs")]) == 2
    assert "has no place <!-- truths --> … <!-- end -->" in capsys.readouterr().err
    page.write_text("# Truths\n\n<!-- truths -->\nold\n<!-- end -->\n\nmore\n")
    for name in ("evidence", "images"):
        (tmp_path / "docs" / name).mkdir()
    assert command.main(["table", str(tmp_path), "--docs", str(tmp_path / "docs")]) == 0
    block = shown[shown.index("- **Open") :]
    assert page.read_text() == f"# Truths\n\n<!-- truths -->\n{block}<!-- end -->\n\nmore\n"
    assert "hardest triplet" in (tmp_path / "docs" / "images" / "truths.svg").read_text()
    monkeypatch.setattr(command, "CONTRASTS", table.CONTRASTS[:2])
    (tmp_path / "ledger.jsonl").write_text(
        "".join(f"{line}\n" for line in before.splitlines()[:-1])
    )
    assert command.main(call) == 2
    assert "declares other comparisons than this code" in capsys.readouterr().err


def test_the_page_shows_its_ledger():
    """The table is that of the summary, whose means are those of the trainings."""
    shown = page.TRUTHS
    found = json.loads((DOCS / shown.summary).read_text("utf-8"))
    _, inside, _ = shown.shown((DOCS / shown.page).read_text("utf-8"))
    assert inside.strip() == table.table(found)
    lines = [json.loads(line) for line in (DOCS / shown.trainings).read_text("utf-8").splitlines()]
    by_arm = {}
    for line in lines:
        if line["phase"] == "confirm":
            by_arm.setdefault(line["arm"], {})[line["seed"]] = line["numbers"]
    assert [*by_arm[arms.BASE]] == [*table.SEEDS]
    assert by_arm.keys() == {arm["arm"] for arm in found["arms"]} == {arms.CCA, *arms.ARMS}
    for arm in found["arms"]:
        for measure, (name, weight) in table.MEASURES.items():
            mean, base = (
                weight
                * sum(numbers[name.format(s)] for numbers in one.values() for s in ("i2t", "t2i"))
                / len(one)
                for one in (by_arm[arm["arm"]], by_arm[arms.BASE])
            )
            assert arm["means"][measure] == pytest.approx(mean, abs=1e-3)
            if "differences" in arm:
                change, low, high = arm["differences"][measure]
                assert change == pytest.approx(mean - base, abs=2e-3)
                assert low <= change <= high
    tried = [line for line in lines if line["phase"] == "explore"]
    assert len(tried) == 24 * len(arms.ARMS)
    best = ledger.chosen(tried)
    assert {arm["arm"]: arm["point"] for arm in found["arms"][1:]} == best


def points(seed: int, gain: float, between: float) -> dict[int, dict[str, torch.Tensor]]:
    """Points of 12 seeds on 200 images, with a deviation between seeds."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    found = {}
    for number in range(12):
        shift = gain + between * torch.randn(1, generator=rng)
        values = images + 0.1 * torch.randn(200, 1, generator=rng) + shift
        one = torch.cat([values, torch.ones(200, 1)], 1).double()
        found[number] = {f"test {side} RSum": one for side in ("i2t", "t2i")}
    return found


def test_a_difference_has_an_interval_over_seeds_and_images():
    base = points(1, 0.0, 0.0)
    for between in (0.0, 0.5):
        arm = points(2, 1.0, between)
        change, span = table.difference(arm, base, "test RSum")
        by_seed = [
            2 * (arm[s]["test i2t RSum"] - base[s]["test i2t RSum"])[:, 0].mean().item()
            for s in base
        ]
        assert change == pytest.approx(sum(by_seed) / len(by_seed))
        assert span.low < change < span.high
        over_seeds = 1.96 * float(np.std(by_seed, ddof=1)) / len(by_seed) ** 0.5
        assert (span.high - span.low) / 2 > 0.8 * over_seeds
    # all pictures of an arm gain alike by seed, so that only seeds make the interval wide
    narrow = table.difference(points(2, 1.0, 0.0), base, "test RSum")[1]
    assert narrow.high - narrow.low < 0.5 * (span.high - span.low)


def test_arms_that_two_measures_order():
    """Three arms whose own recall and whose mAP of others agree in one pair of three."""
    by_arm = {}
    for name, gain, other in (("a", 0.0, 0.0), ("b", 1.0, -1.0), ("c", 2.0, -0.5)):
        by_arm[name] = points(1, gain, 0.01)
        for seed, found in points(2, other, 0.01).items():
            for side in ("i2t", "t2i"):
                by_arm[name][seed][f"judged {side} mAP of others"] = found[f"test {side} RSum"]
    alike, low, high = table.agreement(by_arm)
    assert (alike, low, high) == (33.3, 33.3, 33.3)


@pytest.mark.parametrize(
    ("dev", "test", "others", "pairs", "taken"),
    [
        ((2.0, 0.5, 3.5), (0.5, -0.9, 2.0), (-0.1, -0.3, 0.1), 60_000, True),
        ((2.0, -0.5, 3.5), (0.5, -0.9, 2.0), (-0.1, -0.3, 0.1), 60_000, False),  # nothing better
        ((0.1, -0.5, 0.7), (0.5, -0.9, 2.0), (0.2, 0.1, 0.3), 60_000, True),
        ((-0.9, -1.5, 0.7), (0.5, -0.9, 2.0), (0.2, 0.1, 0.3), 60_000, False),  # worse on dev
        ((2.0, 0.5, 3.5), (0.5, -1.1, 2.0), (0.2, 0.1, 0.3), 60_000, False),  # worse on test
        ((2.0, 0.5, 3.5), (0.5, -0.9, 2.0), (-0.5, -0.9, -0.1), 60_000, False),  # others lower
        ((2.0, 0.5, 3.5), (0.5, -0.9, 2.0), (0.2, 0.1, 0.3), 130_000, False),  # too dear
    ],
)
def test_the_rule_of_the_default(dev, test, others, pairs, taken):
    base = {"arm": arms.BASE, "pairs": 60_000}
    measured = {"dev RSum": dev, "test RSum": test, "mAP of others": others}
    weaker = {**measured, "dev RSum": (dev[0] - 0.1, *dev[1:])}
    lines = [
        base,
        {"arm": "weaker", "pairs": pairs, "differences": weaker},
        {"arm": "new", "pairs": pairs, "differences": measured},
    ]
    for order in (lines, lines[::-1]):
        assert table.default_arm({"arms": order}) == ("new" if taken else arms.BASE)


def test_seeds_that_are_not_shared():
    some = points(1, 0.0, 0.0)
    with pytest.raises(ValueError, match="share no seed"):
        table.difference({1: some[1]}, {2: some[2]}, "test RSum")


def test_the_own_mask_is_info_nce_where_it_leaves_out_nothing():
    rng = torch.Generator().manual_seed(3)
    scores = torch.randn(6, 6, generator=rng) / 5
    true = torch.eye(6, dtype=torch.bool)
    every = torch.ones_like(true)
    loose = arms.OwnMaskedInfoNCE(temperature=0.1, margin=9.0)(scores, true, every)
    plain = InfoNCELoss(temperature=0.1, reduction="mean")(scores)
    assert loose.item() == pytest.approx(plain.item(), rel=1e-5)
    found = arms.OwnMaskedInfoNCE(temperature=0.1, margin=0.05)(scores, true, every).item()
    own, total = scores.diag(), 0.0
    for matrix in (scores, scores.T):
        for row in range(6):
            kept = [
                matrix[row, other].exp().item() ** 10
                for other in range(6)
                if other != row and matrix[row, other] <= max(own[row], own[other]) + 0.05
            ]
            mine = matrix[row, row].exp().item() ** 10
            total -= np.log(mine / (mine + sum(kept))) / 12
    assert found == pytest.approx(total, rel=1e-4)
    assert found < plain.item()
