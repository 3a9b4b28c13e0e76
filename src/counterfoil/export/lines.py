"""Files with one record a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

Record = Mapping[str, object]


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines as they come; how many there were."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    return count


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write JSON, one record a line; how many there were."""
    return write_lines(path, (json.dumps(record, ensure_ascii=False) for record in records))
