"""Audits of captions: which are shown, in which order lines are written, and of which images."""

from __future__ import annotations

import json

import pytest

import explain_cases as cases
import recipes_cases
from corpus_cases import write_picture
from counterfoil.evaluation.explain import ExplainedWord, Explanation
from recipes_cases import run

DOUBTS = (0.25, 0.75, 0.5, 0.75, 0.0, 0.5)


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """An audit of six captions whose doubts are known: what is shown, and the lines."""
    folder = tmp_path / "photos"
    write_picture(folder / "a.png")
    lines = [{"image": "a.png", "caption": f"caption {row}"} for row in range(len(DOUBTS))]
    cases.write_lines(folder / "captions.jsonl", lines)
    model = recipes_cases.pixel_model(tmp_path / "model")

    def made_up(model, dataset, plan, parts=None):
        for row, doubt in enumerate(DOUBTS):
            yield (
                row,
                Explanation(dataset.texts[row], -doubt, (ExplainedWord("c", 0, 1, doubt=doubt),)),
            )

    monkeypatch.setattr("counterfoil.evaluation.explain.explain_dataset", made_up)

    def audited(top: int, doubts: bool):
        out, shown = tmp_path / "lines.jsonl", []
        monkeypatch.setattr("counterfoil.evaluation.explain.has_doubt_head", lambda _: doubts)
        monkeypatch.setattr("counterfoil.cli.explain.print_ranking", shown.extend)
        words = ("--data", folder, "--split", "all", "--top", top, "--json", out)
        assert run("explain", model, *words) == 0
        kept = [json.loads(line) for line in out.read_text().splitlines()]
        return [card.explanation.caption[-1] for card in shown], kept

    return audited


@pytest.mark.parametrize("top", range(1, 8))
def test_the_most_suspicious_are_shown_and_of_equals_the_first(audited, top):
    order = sorted(range(len(DOUBTS)), key=lambda row: (-DOUBTS[row], row))
    shown, lines = audited(top, True)
    assert shown == [str(row) for row in order[:top]]
    assert [line["caption"][-1] for line in lines] == [str(row) for row in order]
    assert [line["suspicion"] for line in lines] == sorted(DOUBTS, reverse=True)


def test_by_score_the_lowest_come_first(audited):
    shown, lines = audited(2, False)
    assert shown == ["1", "3"]
    assert [line["suspicion"] for line in lines] == sorted(DOUBTS, reverse=True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("dog 7", "a dog"), "'dog 7' is no picture; give the path of one"),
        (("dog 7", "a dog", "--output", "."), "is a folder"),
        (("dog 7", "a dog", "--json", "."), "is a folder"),
        (("--data", "scenes", "--resume"), "--resume continues the file that --json has begun"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_a_model_is_opened(words, told, capsys):
    assert run("explain", "no/model", *words) == 2
    assert told in capsys.readouterr().err
