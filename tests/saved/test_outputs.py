"""The verbs write the JSON that the snapshots hold."""

from __future__ import annotations

import pytest

from saved_cases import NUMBERS, OUTPUTS, differences, numbers, outputs, read


def test_json_of_the_verbs(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    today, stored = outputs(here), read(OUTPUTS)
    assert_same(stored, today, "json")


def test_a_failure_names_the_command_that_writes_the_snapshot_anew():
    with pytest.raises(AssertionError, match=r"python tests/saved_cases\.py json"):
        assert_same({"a": 1}, {"a": 2}, "json")
    with pytest.raises(AssertionError, match=r"b: new\n.*python tests/saved_cases\.py numbers"):
        assert_same({"a": 1}, {"a": 1, "b": 2}, "numbers")


@pytest.mark.slow
def test_numbers_of_smoke_recipes(tmp_path):
    """On the CPU that they were written on; training elsewhere rounds otherwise."""
    assert_same(read(NUMBERS), numbers(tmp_path), "numbers")


def assert_same(stored: object, today: object, what: str) -> None:
    """Fail with what differs, and with the command for changes that are meant."""
    found = list(differences(stored, today))
    anew = f"if this is meant, write the snapshot anew: python tests/saved_cases.py {what}"
    assert not found, "\n".join((*found, anew))


def test_other_numbers_and_other_keys_are_differences():
    one = {"a": [1, 2.0], "b": {"c": None}}
    assert list(differences(one, {"a": [1, 2.000001], "b": {"c": None}})) == []
    for other in ({"a": [1, 2.1]}, {"a": [2, 2.0]}, {"a": [1]}, {"b": {"c": 0}}, {"b": {}}):
        assert len(list(differences(one, {**one, **other}))) == 1
