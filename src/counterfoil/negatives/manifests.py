"""Manifests: JSON files that say what a folder was made from."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from counterfoil.files import read_json

MANIFEST = "manifest.json"

M = TypeVar("M", bound=BaseModel)


def read_as(kind: type[M], folder: Path, *, latest: int, what: str, again: str) -> M:
    """The manifest in a folder.

    Args:
        kind: what it has to be.
        folder: where it lies.
        latest: the newest format that can be read.
        what: it is, in words.
        again: what the user does to have it made anew.

    Raises:
        ValueError: there is none, it is damaged, or a newer counterfoil wrote it.
    """
    plain = read_json(folder / MANIFEST, what)
    if isinstance(plain, dict) and isinstance(found := plain.get("format"), int) and found > latest:
        raise ValueError(
            f"{folder} has format {found} and this version of counterfoil reads up to {latest}; "
            f"upgrade counterfoil or {again}"
        )
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ValueError(
            f"{folder / MANIFEST} is damaged: {where}: {first['msg'].lower()}; {again}"
        ) from None
