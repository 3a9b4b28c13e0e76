"""The verbs write the JSON that the snapshots hold."""

from __future__ import annotations

import pytest

from saved_cases import NUMBERS, OUTPUTS, differences, numbers, outputs, read


def test_json_of_the_verbs(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    today, stored = outputs(here), read(OUTPUTS)
    assert sorted(today) == sorted(stored)
    assert list(differences(stored, today)) == []


@pytest.mark.slow
def test_numbers_of_smoke_recipes(tmp_path):
    """On the CPU that they were written on; training elsewhere rounds otherwise."""
    assert list(differences(read(NUMBERS), numbers(tmp_path))) == []


def test_other_numbers_and_other_keys_are_differences():
    one = {"a": [1, 2.0], "b": {"c": None}}
    assert list(differences(one, {"a": [1, 2.000001], "b": {"c": None}})) == []
    for other in ({"a": [1, 2.1]}, {"a": [2, 2.0]}, {"a": [1]}, {"b": {"c": 0}}, {"b": {}}):
        assert len(list(differences(one, {**one, **other}))) == 1
