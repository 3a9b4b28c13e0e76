"""Vectors of images and texts kept for search, in a folder.

The folder keeps all vectors and what they stand for; ``index.json`` names the files that count and
is replaced as the last step of every write, so that one that is killed leaves the index as it was.
Where a library finds candidates, the index compares them itself: scores are the same behind every
backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, final

from counterfoil.engine.index_draft import Desk, Draft, New, draft
from counterfoil.engine.index_faiss import FaissFinder
from counterfoil.engine.index_finder import Finder
from counterfoil.engine.index_milvus import MilvusFinder
from counterfoil.engine.index_parts import files_of
from counterfoil.engine.index_shelf import Shelf
from counterfoil.engine.index_state import (
    IndexState,
    read_state,
    write_state,
    writing,
)
from counterfoil.engine.tiles import Side

_ENDINGS = (".npy", ".jsonl", ".faiss", ".part")  # of what a killed write may leave behind


@final
class Index:
    """Images and texts that can be searched by vectors.

    Args:
        folder: where it lies.

    Raises:
        ValueError: there is none, it is damaged, or its backend cannot be reached.

    Attributes:
        folder: where it lies.
        state: what it says of itself.
        images: the images.
        texts: the texts.
    """

    state: IndexState
    images: Shelf
    texts: Shelf

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._finders: dict[Side, Finder | None] = {}
        self._read()

    @classmethod
    def create(cls, folder: Path, state: IndexState) -> Self:
        """An empty one in a new or empty folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder, state)
        return cls(folder)

    def shelf(self, side: Side) -> Shelf:
        """One of the sides."""
        return self.images if side == "image" else self.texts

    def change(
        self,
        *,
        images: New | None = None,
        texts: New | None = None,
        no_images: Sequence[int] = (),
        no_texts: Sequence[int] = (),
    ) -> None:
        """Keep more and forget some, in one step; when it is killed, nothing has changed.

        Args:
            images: to keep; ids that are not there yet, or that go in the same step.
            texts: to keep; ids that are not there yet, or that go in the same step.
            no_images: rows to forget.
            no_texts: rows to forget.

        Raises:
            ValueError: vectors are of another width or not numbers, or another process writes.
        """
        news: dict[Side, New | None] = {"image": images, "text": texts}
        rows: dict[Side, Sequence[int]] = {"image": no_images, "text": no_texts}
        with writing(self.folder):
            before = read_state(self.folder)
            if before != self.state:
                raise ValueError(
                    f"{self.folder} was changed by another process; open the index again"
                )
            _tidy(self.folder, before)
            try:
                self._commit({side: self._draft(side, news[side], rows[side]) for side in news})
            except BaseException:
                self.close()  # finders may be ahead of what counts
                self._read()
                raise
            self._read()
            _tidy(self.folder, self.state)

    def close(self) -> None:
        """Let go of files and connections."""
        for finder in self._finders.values():
            if finder is not None:
                finder.close()
        self._finders.clear()

    def _draft(self, side: Side, new: New | None, rows: Sequence[int]) -> Draft:
        name = f"{self.state.writes:06d}-{side}s"
        desk = Desk(self.folder, name, self.state.width, self.state.half)
        state = self.state.images if side == "image" else self.state.texts
        return draft(desk, self.shelf(side), state, new, rows)

    def _commit(self, drafts: Mapping[Side, Draft]) -> None:
        after = {
            "writes": self.state.writes + 1,
            "images": drafts["image"].state,
            "texts": drafts["text"].state,
        }
        write_state(self.folder, self.state.model_copy(update=after))
        for side, done in drafts.items():
            finder = self.shelf(side).finder
            if finder is not None and len(done.gone):
                finder.forget(done.gone)

    def _read(self) -> None:
        """Read what counts, and again where another process cleared it away meanwhile."""
        while True:
            state = read_state(self.folder)
            width = state.width
            try:
                images = Shelf(self.folder, state.images, width, self._finder("image", state))
                texts = Shelf(self.folder, state.texts, width, self._finder("text", state))
            except ValueError:
                self.close()
                if read_state(self.folder) == state:
                    raise
            else:
                self.state, self.images, self.texts = state, images, texts
                return

    def _finder(self, side: Side, state: IndexState) -> Finder | None:
        """The finder of a side, opened once: it knows what it was told."""
        if side not in self._finders:
            name = (state.images if side == "image" else state.texts).finder
            self._finders[side] = _opened(self.folder, side, state, name)
        return self._finders[side]


def _opened(folder: Path, side: Side, state: IndexState, name: str) -> Finder | None:
    """What finds candidates on a side; None where all is compared."""
    match state.backend:
        case "faiss-hnsw":
            return FaissFinder(folder, "hnsw", name)
        case "faiss-ivf-pq":
            return FaissFinder(folder, "ivf-pq", name)
        case "milvus":
            return MilvusFinder(folder, state.address, side, state.width, name)
    return None


def _tidy(folder: Path, state: IndexState) -> None:
    """Remove what counts no more, and what a killed write has left."""
    keep = {name for part in (*state.images.parts, *state.texts.parts) for name in files_of(part)}
    keep |= {state.images.finder, state.texts.finder}
    for path in folder.iterdir():
        if path.is_file() and path.suffix in _ENDINGS and path.name not in keep:
            path.unlink()
