from __future__ import annotations

import subprocess
import sys

import pytest

from bad_input_cases import CASES, prepare
from counterfoil.cli import main
from recipes_cases import snapshot

AS_PROCESSES = (
    "runn demo",
    pytest.param("photos :: keep photos/images/4.png 150 :: $TRAIN", marks=pytest.mark.slow),
    next(case for case in CASES if "os:system" in case),
)


def test_every_kind_of_input_is_tried():
    assert len(CASES) >= 390


def check(code: int, error: str, fragments: tuple[str, ...]) -> None:
    assert code == 2, error
    *messages, sentence = error.splitlines()
    # messages of the stages before the fault, and warnings, may precede the sentence
    assert all(
        any(part in line for part in (": kept, ", "warning: ", " of the words of ", " is cut to "))
        for line in messages
    ), error
    assert sentence.startswith("counterfoil: ")
    assert "Traceback" not in error
    assert "Error(" not in error
    for fragment in fragments:
        assert fragment in sentence


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_and_nothing_touched(case, models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = prepare(case, models)
    before = snapshot(tmp_path)
    capsys.readouterr()
    code = main(words)
    check(code, capsys.readouterr().err, CASES[case])
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("case", AS_PROCESSES)
def test_as_a_process(case, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = prepare(case, models)
    before = snapshot(tmp_path)
    command = [sys.executable, "-m", "counterfoil.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    check(done.returncode, done.stderr, CASES[case])
    assert snapshot(tmp_path) == before
