from __future__ import annotations

import subprocess
import sys

import pytest

from bad_input_cases import CASES
from counterfoil.cli import main
from recipes_cases import snapshot

AS_PROCESSES = (
    "unknown verb",
    "unknown key",
    "truncated_picture",
    "card_that_calls_the_system",
    "run_of_other_settings",
)


def test_there_are_fifty_kinds():
    assert len(CASES) >= 50


def check(code: int, error: str, fragments: tuple[str, ...]) -> None:
    assert code == 2, error
    *messages, sentence = error.splitlines()
    # Messages of the stages before the fault may precede the sentence.
    assert all(": kept, " in message for message in messages), error
    assert sentence.startswith("counterfoil: ")
    assert "Traceback" not in error
    assert "Error(" not in error
    for fragment in fragments:
        assert fragment in sentence


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_and_nothing_touched(name, models, tmp_path, monkeypatch, capsys):
    prepare, fragments = CASES[name]
    monkeypatch.chdir(tmp_path)
    words = [str(word) for word in prepare(tmp_path, models)]
    before = snapshot(tmp_path)
    capsys.readouterr()
    code = main(words)
    check(code, capsys.readouterr().err, fragments)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", AS_PROCESSES)
def test_as_a_process(name, models, tmp_path):
    prepare, fragments = CASES[name]
    words = [str(word) for word in prepare(tmp_path, models)]
    before = snapshot(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    check(done.returncode, done.stderr, fragments)
    assert snapshot(tmp_path) == before
