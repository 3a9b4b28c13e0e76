"""Written captions in the making: part by part, by any number of processes, through any kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.corpus.corpus import Corpus
from counterfoil.files import read_json, replacing, write_json
from counterfoil.negatives.written_store import WrittenFoil, WrittenStore, read_foils

CAPTIONS = 32  # of a part, which is all that a kill can cost
FACTS = "facts.json"

Write = Callable[[Sequence[int]], Iterable[WrittenFoil]]


class PartsStopped(Exception):
    """Writing was asked to stop; the parts that were written are kept."""


def write_in_parts(
    folder: Path,
    corpus: Corpus,
    write: Write,
    *,
    partial: Path,
    writer: str,
    settings: Mapping[str, Any],
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> WrittenStore:
    """Write foils of all captions that describe an image, from where it was stopped on.

    Every process of a group calls this; each writes every so many parts, the first one puts them
    together in the order of the corpus.

    Args:
        folder: of the written captions; must not exist yet.
        corpus: the split.
        write: foils of some captions of it; they may not depend on which others there are.
        partial: where the parts lie until all are there; the same for all processes.
        writer: who writes, in words.
        settings: of the writer; plain values.
        seed: of what is drawn.
        stop: asked after every part; when it answers True on any process, all of them stop.

    Raises:
        ValueError: what was begun there is of another writer or other data.
        PartsStopped: a process was asked to stop.
    """
    rows = (corpus.owner >= 0).nonzero().flatten().tolist()
    parts = [rows[start : start + CAPTIONS] for start in range(0, len(rows), CAPTIONS)]
    about = {"corpus": corpus.fingerprint, "split": corpus.part, "writer": writer, "seed": seed}
    left = _begin(partial, {**about, **settings}, len(parts))
    done = len(rows) - sum(len(parts[number]) for number in left)
    with progress("captions rewritten", total=len(rows), completed=done) as advance:
        for first in range(0, len(left), world.size()):
            now = left[first : first + world.size()]
            if world.rank() < len(now):
                number = now[world.rank()]
                _save(_part(partial, number), write(parts[number]))
            advance(sum(len(parts[number]) for number in now))
            last = first + world.size() >= len(left)
            if world.largest(int(stop())) and not last:
                raise PartsStopped
    world.wait()
    if world.rank() == 0:
        foils = _together(partial, len(parts))
        WrittenStore.write(folder, foils, corpus, writer=writer, settings=settings, seed=seed)
        shutil.rmtree(partial)
    world.wait()
    return WrittenStore.open(folder, fingerprint=corpus.fingerprint)


def _begin(partial: Path, facts: Mapping[str, Any], parts: int) -> list[int]:
    """Numbers of the parts that are not written yet.

    Raises:
        ValueError: what was begun there is something else.
    """
    path = partial / FACTS
    plain = json.loads(json.dumps(facts))
    if path.exists() and (begun := read_json(path, "what is written in parts")) != plain:
        known = begun if isinstance(begun, dict) else {}
        name = next((n for n in plain if known.get(n) != plain[n]), "something")
        raise ValueError(
            f"{partial} was begun with another {name}; go on with the settings and data of then, "
            "or delete it"
        )
    world.wait()  # nobody writes before everybody has looked
    if world.rank() == 0 and not path.exists():
        write_json(path, plain)
    world.wait()
    left = [number for number in range(parts) if not _part(partial, number).exists()]
    world.wait()
    return left


def _save(path: Path, foils: Iterable[WrittenFoil]) -> None:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(foil.line() for foil in foils)


def _together(partial: Path, parts: int) -> Iterator[WrittenFoil]:
    for number in range(parts):
        yield from read_foils(_part(partial, number))


def _part(partial: Path, number: int) -> Path:
    return partial / f"{number:06d}.jsonl"
