"""Macro-averaged foils: points of images, verdicts on fresh seeds, and the page of the ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.experiments import macro, tags
from benchmarks.experiments.foils import FoilAccuracy
from benchmarks.experiments.tags import FRESH, OWN
from benchmarks.pages import table_place
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.foils.measures import measure_foils
from counterfoil.evaluation.protocols import evaluate_protocol
from engine_cases import given

DOCS = Path(__file__).parents[3] / "docs"
SMALL = "scenes:images=60,dev=8,test=12,features=regions"
IMAGES = {"dev": 9, "test": 14}
GPO, SCAN = "GPO", "SCAN t-i"


def _ledger(path: Path, rows: list[tuple[str, str, int]], gain: dict[str, int]) -> Path:
    """Random points, the same for all rows of a seed, but for what a method gains in a kind."""
    columns = (*macro.KINDS, "i2t", "t2i")
    items = {f"{s} {c}": "5" * images for s, images in IMAGES.items() for c in columns}
    lines = [{"model": "", "method": macro.ITEMS, "seed": 0, "points": items}]
    for model, method, seed in rows:
        rng = torch.Generator().manual_seed(seed)
        points = {}
        for name, text in items.items():
            counts = torch.randint(1, 3, (len(text),), generator=rng)
            if method == macro.RULE_FOILS:
                counts += gain.get(name.partition(" ")[2], 0)
            points[name] = macro.digits(counts.double())
        lines.append({"model": model, "method": method, "seed": seed, "points": points})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def _rows(model: str, seeds: tuple[int, ...]) -> list[tuple[str, str, int]]:
    return [(model, method, seed) for seed in seeds for method in (OWN, macro.RULE_FOILS)]


def test_claims_are_declared_for_fresh_seeds_of_the_trainings():
    experiments = macro.find(tags.MACRO).of("cpu")
    keys = [f"{model}-{seed}" for model in ("gpo", "scan") for seed in FRESH]  # run one by one
    assert [one.key for one in experiments] == [*keys, tags.WRITTEN]
    rows = [row for one in experiments for row in one.rows]
    assert len(rows) == 2 * 3 * len(FRESH)
    assert {row.seed for row in rows} == set(FRESH)
    assert not {0, 1, *tags.SEEDS} & set(FRESH)
    trained = {(row.model, row.method) for row in rows}
    for one in macro.CLAIMS:
        assert {(one.model, one.claim.arm), (one.model, one.claim.base)} <= trained
        assert one.claim.measure in macro.MEASURES


def test_fresh_trainings_are_those_of_the_other_table_on_other_seeds():
    def training(table: str, method: str, model: str, seed: int):
        for one in macro.find(table).of("cpu"):
            for row in one.rows:
                if (row.model, row.method, row.seed) == (model, method, seed):
                    (name,) = row.trained
                    return one.recipe.stage(name)
        raise AssertionError(table)

    for model in (GPO, SCAN):
        for method in (OWN, macro.RULE_FOILS, macro.TAGS_FOILS):
            before = training(tags.NAME, method, model, 2)
            now = training(tags.MACRO, method, model, 10)
            same = replace(before, name=now.name, plan=replace(before.plan, seed=10))
            assert now == same


def test_measures_against_slow_loops(tmp_path):
    trained = macro.read(_ledger(tmp_path / "l.jsonl", _rows(GPO, (10, 11)), {"number": 2}))
    rows = trained[GPO, macro.RULE_FOILS]
    for split in IMAGES:
        shares = {  # by column and seed, of all items
            (name, seed): float(rows[seed][f"{split} {name}"][:, 0].sum()) / (5 * IMAGES[split])
            for seed in rows
            for name in (*macro.KINDS, "i2t", "t2i")
        }
        of_kinds = {k: 50 * (shares[k, 10] + shares[k, 11]) for k in macro.KINDS}
        rest = [share for kind, share in of_kinds.items() if kind != "number"]
        both = sum(shares[side, seed] for side in ("i2t", "t2i") for seed in (10, 11))
        wanted = {
            macro.MACRO: sum(of_kinds.values()) / 7,
            macro.MICRO: sum(of_kinds.values()) / 7,  # equal numbers of foils
            macro.OTHERS: sum(rest) / 6,
            macro.RSUM: 50 * both,
            **of_kinds,
        }
        assert wanted.keys() == macro.MEASURES.keys()
        for measure, value in wanted.items():
            assert macro.mean_of(rows, split, measure) == pytest.approx(value)
        for measure, gain in ((macro.NUMBER, 40), (macro.MACRO, 40 / 7), (macro.OTHERS, 0)):
            found = macro.difference(rows, trained[GPO, OWN], split, measure)
            assert found == pytest.approx([gain] * 3, abs=1e-3)  # the same in all images, seeds


def test_micro_weighs_kinds_by_their_foils(tmp_path):
    ledger = _ledger(tmp_path / "l.jsonl", _rows(GPO, (10,)), {"number": 1})
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for split, images in IMAGES.items():  # one image alone has a foil of number
        lines[0]["points"][f"{split} number"] = f"1{'0' * (images - 1)}"
        for line, right in zip(lines[1:], ("0", "1")):
            line["points"][f"{split} number"] = f"{right}{'0' * (images - 1)}"
    ledger.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    trained = macro.read(ledger)
    arm, base = trained[GPO, macro.RULE_FOILS], trained[GPO, OWN]
    change, *_ = macro.difference(arm, base, "dev", macro.MACRO)
    assert change == pytest.approx(100 / 7, abs=1e-3)
    change, *_ = macro.difference(arm, base, "dev", macro.MICRO)
    assert change == pytest.approx(100 / (6 * 5 * IMAGES["dev"] + 1), abs=1e-3)


def test_verdicts_need_all_fresh_seeds(tmp_path):
    rows = [*_rows(GPO, FRESH), *_rows(SCAN, FRESH[:3])]
    trained = macro.read(_ledger(tmp_path / "l.jsonl", rows, {"number": 2, "i2t": -1}))
    found = {
        (one.model, one.claim.measure, one.claim.arm): macro.judge(one, trained)["state"]
        for one in macro.CLAIMS
    }
    assert found == {
        (GPO, macro.MACRO, macro.RULE_FOILS): "Confirmed",
        (GPO, macro.MACRO, macro.TAGS_FOILS): "Not run yet",
        (GPO, macro.NUMBER, macro.RULE_FOILS): "Confirmed",
        (GPO, macro.OTHERS, OWN): "Confirmed",
        (GPO, macro.MICRO, OWN): "Refuted",
        (GPO, macro.RSUM, macro.RULE_FOILS): "Confirmed",
        (SCAN, macro.MACRO, macro.TAGS_FOILS): "Not run yet",
    } | {
        (SCAN, one.claim.measure, one.claim.arm): "Open, 3 of 8 seeds"
        for one in macro.CLAIMS
        if one.model == SCAN and one.claim.arm != macro.TAGS_FOILS
    }


def test_points_of_images_give_the_accuracies_and_recalls():
    foils = FoilAccuracy(SMALL)
    found, blind = foils._of_split("test")
    of_kinds = {k: t.sum(0) for k, t in foils.by_image("test", None).items()}
    assert set(of_kinds) <= set(macro.KINDS)
    for line in measure_foils(found, blind.scores, resamples=1):
        if line.of.startswith("mean of"):
            shares = [100 * right / items for right, items in of_kinds.values()]
            assert line.value == pytest.approx(sum(shares) / len(shares))
            continue
        right, items = sum(of_kinds.values()) if line.own else of_kinds[line.of]
        assert (line.value, line.items) == (pytest.approx(100 * right / items), items)
    data = load_dataset(SMALL).split("test")
    rng = torch.Generator().manual_seed(0)
    scores = torch.rand(len(data), len(data.texts), generator=rng)
    report = evaluate_protocol([given(scores)], data)
    sums = [table.sum(0) for table in macro.recalls(report).values()]
    assert sum(100 * hits / queries for hits, queries in sums) == pytest.approx(report.rsum)


def test_a_page_is_written_from_a_ledger_and_bad_input_gets_a_sentence(tmp_path, capsys):
    for place in (macro.PAGE, macro.LEDGER, macro.FIGURE):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    page = tmp_path / macro.PAGE
    page.write_text(f"# Foils\n{macro.BEGIN}\nold\n{macro.END}\nmore\n")
    assert macro.main(["page", str(tmp_path)]) == 2
    assert "measure a run first" in capsys.readouterr().err
    trained = macro.read(_ledger(tmp_path / macro.LEDGER, _rows(SCAN, FRESH[:2]), {"number": 1}))
    assert macro.main(["page", str(tmp_path)]) == 0
    shown = macro.as_markdown(trained)
    assert page.read_text() == f"# Foils\n{macro.BEGIN}\n{shown}\n{macro.END}\nmore\n"
    assert SCAN in (tmp_path / macro.FIGURE).read_text()
    (tmp_path / macro.LEDGER).write_text('{"method": "own loss"}\n')
    assert macro.main(["page", str(tmp_path)]) == 2
    assert "is no ledger of macro-foils" in capsys.readouterr().err
    missing = ["measure", str(tmp_path / "runs"), "--data", SMALL, "--ledger", "l.jsonl"]
    assert macro.main(missing) == 2
    assert "holds no training" in capsys.readouterr().err


def test_the_page_shows_its_ledger():
    trained = macro.read(DOCS / macro.LEDGER)
    text = (DOCS / macro.PAGE).read_text("utf-8")
    _, shown, _ = table_place(text, macro.BEGIN, macro.END)
    assert shown == f"{macro.as_markdown(trained)}\n"
    assert trained.keys() == {("", macro.READER), (GPO, OWN), (GPO, macro.RULE_FOILS)}
    for method in (OWN, macro.RULE_FOILS):
        assert [*trained[GPO, method]] == [*FRESH]
    assert f"../{macro.FIGURE}" in text
    assert "macro without number" in (DOCS / macro.FIGURE).read_text("utf-8")
