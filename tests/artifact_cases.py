"""Artifacts whose files were changed on purpose, so that what is behind the checksums is tried."""

from __future__ import annotations

import json
from pathlib import Path

from counterfoil.core.artifact import CHECKSUM, FILES, MANIFEST
from counterfoil.core.checksums import FileSums
from counterfoil.core.config import digest


def resealed(folder: Path, file: str = MANIFEST) -> Path:
    """The folder, whose manifest holds the checksums of its files as they are now."""
    plain = json.loads((folder / file).read_text(encoding="utf-8"))
    files = [name for name in plain[FILES] if (folder / name).is_file()]
    plain[FILES] = {name: FileSums.of(folder / name).model_dump() for name in files}
    plain.pop(CHECKSUM, None)
    (folder / file).write_text(json.dumps(plain | {CHECKSUM: digest(plain)}), encoding="utf-8")
    return folder
