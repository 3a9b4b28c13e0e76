"""Manifests are read or refused in words."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, Field

from counterfoil.files import write_json
from counterfoil.negatives.manifests import MANIFEST, read_as


class Note(BaseModel):
    """A manifest with one field of its own."""

    model_config = ConfigDict(extra="forbid")
    format: int = Field(default=2, ge=1)
    count: int


def read(folder) -> Note:
    return read_as(Note, folder, latest=2, what="the manifest of notes", again="note it again")


def test_what_is_there_is_read(tmp_path):
    for plain in ({"count": 3}, {"count": 3, "format": 1}):
        write_json(tmp_path / MANIFEST, plain)
        assert read(tmp_path) == Note(**plain)


@pytest.mark.parametrize(
    "plain,message",
    [
        (None, "does not exist; the manifest of notes"),
        ({"count": 3, "format": 3}, "has format 3 and .* up to 2; upgrade .* or note it again"),
        ({"count": "x"}, "is damaged: count: .*; note it again"),
        ({"count": 3, "colour": "red"}, "is damaged: colour: "),
        ([1], "is damaged: the whole: "),
    ],
)
def test_anything_else_is_refused(tmp_path, plain, message):
    if plain is not None:
        write_json(tmp_path / MANIFEST, plain)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)
