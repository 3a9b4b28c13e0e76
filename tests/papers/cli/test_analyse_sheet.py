"""Judgements by people: a CSV sheet is written, filled in, and read again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from analysis_cases import SCENES
from artifact_cases import resealed
from counterfoil.data.readers import load_dataset
from counterfoil.negatives.generated import GeneratedStore
from counterfoil.papers.tags.true_rate import sheet_cell
from recipes_cases import run


@pytest.fixture
def sheet(tmp_path, capsys) -> Path:
    """A sheet about foils of the test split by rule; its store is "written"."""
    folder = tmp_path / "written"
    assert run("papers", "write", "rules", SCENES, "--split", "test", "--output", folder) == 0
    out = tmp_path / "sheet.csv"
    code = run(
        "papers", "analyse", "sheet", folder, "--data", SCENES, "--count", 6, "--output", out
    )
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "6 sentences" in shown.out
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def fill(sheet: Path, name: str, answers: list[str]) -> Path:
    lines = rows(sheet)
    out = sheet.with_name(f"{name}.csv")
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows({**line, "answer": a} for line, a in zip(lines, answers, strict=True))
    return out


def test_a_sheet_is_blind_and_has_one_sentence_a_picture(sheet, tmp_path):
    lines = rows(sheet)
    assert len(lines) == len({line["picture"] for line in lines}) == 6
    dataset = load_dataset(SCENES).split("test")
    foils = GeneratedStore.open(tmp_path / "written", fingerprint=dataset.fingerprint).foils()
    known = {foil.foil for foil in foils}
    for line in lines:
        assert set(line) == {"item", "picture", "sentence", "answer"}
        assert line["sentence"] in known
        assert line["answer"] == ""
    assert (
        run("papers", "analyse", "sheet", tmp_path / "written", "--data", SCENES, "--output", sheet)
        == 2
    )


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_cell_is_a_formula(begin):
    formula = f'{begin}HYPERLINK("http://a.example", "a dog")'
    assert sheet_cell(formula) == f"'{formula}"
    for plain in ("a dog", f"a{begin}1", "", "'quoted'", "–", f" {begin}"):
        assert sheet_cell(plain) == plain


def test_sentences_of_a_sheet_are_no_formulas(sheet, tmp_path, monkeypatch):
    """Whoever wrote the captions."""
    folder, out = tmp_path / "written", tmp_path / "formulas.csv"
    path = folder / "foils.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    hostile = [json.dumps(line | {"foil": f"={line['foil']}", "changed": []}) for line in lines]
    path.write_text("\n".join(hostile) + "\n")
    resealed(folder)
    assert (
        run("papers", "analyse", "sheet", folder, "--data", SCENES, "--count", 6, "--output", out)
        == 0
    )
    assert all(line["sentence"].startswith("'=") for line in rows(out))
    answered = fill(out, "anna", ["true"] * 6)
    words = ("papers", "analyse", "true-rate", folder, "--data", SCENES, "--answers", answered)
    assert run(*words, "--output", tmp_path / "rate.html") == 0


def test_answers_decide_what_is_true_and_people_are_compared(sheet, analysed, tmp_path):
    sklearn = pytest.importorskip("sklearn.metrics")
    first = ["true", "false", "TRUE ", "false", "unsure", ""]
    second = ["true", "true", "false", "false", "false", "unsure"]
    told = [
        x for n, a in (("anna", first), ("ben", second)) for x in ("--answers", fill(sheet, n, a))
    ]
    shown, _, numbers = analysed("true-rate", tmp_path / "written", *told)
    [one] = numbers["sets"]
    assert (one["captions"], one["true"]) == (5, 3)  # equal votes count as true
    [agreement] = one["agreement"]
    kappa = sklearn.cohen_kappa_score([True, False, True, False], [True, True, False, False])
    assert agreement == {
        "judges": ["anna", "ben"],
        "items": 4,
        "raw": 50.0,
        "kappa": pytest.approx(kappa),
    }
    assert f"Cohen's kappa {kappa:.2f}" in shown
    assert "5 judged by anna, ben" in numbers["protocol"]


def test_one_person_is_compared_with_nobody(sheet, analysed, tmp_path):
    filled = fill(sheet, "anna", ["true", "false", "false", "false", "false", "false"])
    shown, _, numbers = analysed("true-rate", tmp_path / "written", "--answers", filled)
    assert "kappa" not in shown
    assert (numbers["sets"][0]["captions"], numbers["sets"][0]["true"]) == (6, 1)
