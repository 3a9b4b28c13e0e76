"""Models, indices and stores that version 0.1 saved open and answer as they did."""

from __future__ import annotations

import shutil

import pytest

from saved_cases import ANSWERS, WRITTEN_BY_0_1, answers, differences, read


@pytest.fixture
def folder(tmp_path):
    """A copy, as opening may write."""
    return shutil.copytree(WRITTEN_BY_0_1, tmp_path / "v0.1")


def test_all_answer_as_they_did(folder):
    assert list(differences(read(ANSWERS), answers(folder))) == []
