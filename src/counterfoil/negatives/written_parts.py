"""Written captions in the making: part by part, by any number of processes, through any kill."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterfoil import world
from counterfoil.core.resumable import PartsFolder, work_through
from counterfoil.corpus.corpus import Corpus
from counterfoil.negatives.written_store import WrittenFoil, WrittenStore, read_foils

CAPTIONS = 32  # of a part, which is all that a kill can cost

Write = Callable[[Sequence[int]], Iterable[WrittenFoil]]


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
        WorkStopped: a process was asked to stop.
    """
    rows = (corpus.owner >= 0).nonzero().flatten().tolist()
    parts = [rows[start : start + CAPTIONS] for start in range(0, len(rows), CAPTIONS)]
    parts_folder = PartsFolder(partial, suffix=".jsonl")
    facts = {"corpus": corpus.fingerprint, "split": corpus.part, "writer": writer, "seed": seed}
    missing = parts_folder.begin({**facts, **settings}, len(parts))

    def write_part(number: int) -> None:
        lines = (foil.line() for foil in write(parts[number]))
        parts_folder.save(number, lambda path: _write_lines(path, lines))

    sizes = [len(part) for part in parts]
    work_through(missing, write_part, sizes, description="captions rewritten", stop=stop)
    if world.rank() == 0:
        files = (parts_folder.path(number) for number in range(len(parts)))
        foils = itertools.chain.from_iterable(map(read_foils, files))
        WrittenStore.write(folder, foils, corpus, writer=writer, settings=settings, seed=seed)
        parts_folder.remove()
    world.wait()
    return WrittenStore.open(folder, fingerprint=corpus.fingerprint)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines)
