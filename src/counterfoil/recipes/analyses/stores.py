"""Folders of written captions that an analysis reads, with the split they were written for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from counterfoil.corpus.corpus import Corpus
from counterfoil.negatives.written_store import WRITTEN, WrittenFoil, WrittenManifest, WrittenStore
from counterfoil.recipes.analyses.scorers import short_names
from counterfoil.recipes.run import Source


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What lies in a folder.

    Attributes:
        name: the end of its path that tells it from the others.
        manifest: how it was written.
        corpus: the split it was written for.
        foils: all of them, in the order in which they were written.
        images: their images' rows.
        texts: the rows of the captions that they were made of.
    """

    name: str
    manifest: WrittenManifest
    corpus: Corpus
    foils: tuple[WrittenFoil, ...]
    images: tuple[int, ...]
    texts: tuple[int, ...]

    def said(self) -> str:
        """Whose they are, how many, and from which seed, in words."""
        made = self.manifest
        return f"{self.name}: {len(self.foils):,} by {made.writer}, seed {made.seed}"


def open_stores(folders: Sequence[Path], source: Source) -> tuple[Stored, ...]:
    """Written captions of one split of the data.

    Raises:
        ValueError: a folder is given twice, is none, is empty or damaged, or was written for other
            data, or two were written for different splits.
    """
    twice = next((path for path in folders if list(folders).count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; name each folder once")
    names = short_names([str(path) for path in folders])
    found = tuple(_opened(path, name, source) for path, name in zip(folders, names))
    parts = {one.corpus.part: one.name for one in found}
    if len(parts) > 1:
        told = ", ".join(f"{name} for {part!r}" for part, name in parts.items())
        raise ValueError(f"captions of one split can be compared, but {told} were written")
    return found


def _opened(folder: Path, name: str, source: Source) -> Stored:
    made = WRITTEN.read_manifest(folder)
    whole = source.open()
    parts = made.split.split("+")
    corpus = whole if set(parts) - set(whole.split_names) else whole.split(*parts)
    foils = tuple(WrittenStore.open(folder, fingerprint=corpus.fingerprint).foils())
    if not foils:
        raise ValueError(f"{folder} holds no written captions; write again")
    images = {name: row for row, name in enumerate(corpus.image_ids)}
    texts = {name: row for row, name in enumerate(corpus.text_ids)}
    strange = next((f for f in foils if f.image not in images or f.text not in texts), None)
    if strange is not None:
        raise ValueError(
            f"{folder} has a foil of caption {strange.text!r} of {strange.image!r}, which these "
            "data do not have; write again"
        )
    rows = tuple(images[foil.image] for foil in foils), tuple(texts[foil.text] for foil in foils)
    return Stored(name, made, corpus, foils, *rows)
