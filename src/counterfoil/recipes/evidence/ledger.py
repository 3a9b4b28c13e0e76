"""Raw results of experiments as lines of JSON, from which tables and figures are made again.

A line holds one evaluation: its numbers, and for every query whether its best true counterpart was
first, in the first 5, in the first 10 or further back, so that paired tests can be made later.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from counterfoil.evaluate.recall import CUTOFFS, Ranked
from counterfoil.files import check_file, write_text

BANDS = "0123"  # hit at 1, at 5, at 10, none


@final
class Entry(BaseModel):
    """One evaluation.

    Attributes:
        table: as in "evidence/aoq-flickr8k".
        budget: what was affordable, as in "cpu".
        host: the matcher.
        method: how it was trained.
        lists: whose scores mined its negatives; empty for none.
        seed: of the training.
        protocol: the evaluation in one sentence.
        digest: of everything the evaluation depends on.
        data: fingerprint of the corpus.
        numbers: metrics by name.
        training: what the training log says, by name: epochs, best_epoch, dev_rsum, seconds.
        versions: of counterfoil and torch.
        images: for every image a digit: 0, 1 or 2 where its best text is among the first 1, 5 or
            10, and else 3.
        texts: the same for every text, those of one image together, images apart by a blank.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: str
    budget: str
    host: str
    method: str
    lists: str = ""
    seed: int
    protocol: str
    digest: str
    data: str
    numbers: dict[str, float]
    training: dict[str, float] = {}
    versions: dict[str, str] = {}
    images: str = Field(pattern="^[0-3]+$")
    texts: str = Field(pattern="^[0-3 ]+$")

    @property
    def place(self) -> tuple[str, str, str, str, str, int]:
        """What the entry is of; a later one of the same replaces it."""
        return self.table, self.budget, self.host, self.method, self.lists, self.seed

    def shares(self) -> Tensor:
        """(I,) what each image, with all its texts, adds to RSum."""
        groups = self.texts.split(" ")
        each = torch.tensor([float(sum(map(_hits, group))) for group in groups])
        own = torch.tensor([float(_hits(digit)) for digit in self.images])
        texts = sum(map(len, groups))
        return 100 * (own.double() / len(own) + each.double() / texts)


def bands(ranked: Ranked) -> tuple[str, ...]:
    """For every image a digit for each of its queries, see `Entry`; images as in the split."""
    counted = ranked.counted
    far = torch.stack([ranked.ranks[counted] >= k for k in CUTOFFS]).sum(0)
    found: dict[int, list[str]] = {}
    for image, place in zip(ranked.images[counted].tolist(), far.tolist()):
        found.setdefault(image, []).append(BANDS[place])
    return tuple("".join(found[image]) for image in sorted(found))


def read(path: Path) -> tuple[Entry, ...]:
    """All entries of a file, the newest of each row.

    Raises:
        ValueError: there is no such file, or a line in it is no entry.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; an experiment writes it with --ledger") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from error
    found: dict[object, Entry] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _entry(line, f"{path}, line {number}")
        found[entry.place] = entry
    return tuple(found.values())


def add(path: Path, entries: Iterable[Entry]) -> None:
    """Put entries into a file, in place of older ones of the same row.

    Several runs may do so at once. What was in the file stays.

    Raises:
        ValueError: what is there is no such file.
    """
    check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        kept = {entry.place: entry for entry in (read(path) if path.exists() else ())}
        kept |= {entry.place: entry for entry in entries}
        lines = [json.dumps(_plain(entry)) for entry in kept.values()]
        write_text(path, "".join(f"{line}\n" for line in lines))


def _plain(entry: Entry) -> Mapping[str, Any]:
    return entry.model_dump(mode="json")


def _entry(line: str, where: str) -> Entry:
    try:
        return Entry.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = ".".join(str(part) for part in first["loc"]) or "the line"
        raise ValueError(
            f"{where}: {what}: {first['msg'].lower()}; it is no result of an experiment, so take "
            "the line out or name another file"
        ) from None


def _hits(digit: str) -> int:
    """How many of R@1, R@5 and R@10 a query counts for."""
    return len(CUTOFFS) - BANDS.index(digit)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
