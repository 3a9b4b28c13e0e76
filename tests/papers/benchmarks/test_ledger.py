from __future__ import annotations

import pytest

from benchmarks.experiments.ledger import add, read
from papers_experiment_cases import entry


def test_a_newer_entry_of_the_same_row_replaces_the_older(tmp_path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    add(path, [entry(seed=2), entry(seed=3)])
    add(path, [entry(seed=2, test=250.0)])
    assert {e.seed: e.numbers["test"]["RSum"] for e in read(path)} == {2: 250.0, 3: 210.0}


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read(tmp_path / "none.jsonl")
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(ValueError, match="line 1"):
        add(path, [entry()])
    assert path.read_text() == "dear diary\n"
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read as text"):
        read(tmp_path / "binary")
