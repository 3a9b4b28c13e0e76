"""Where other tools find the picture of an image."""

from __future__ import annotations

from pathlib import Path
from typing import final

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pictures import PictureFiles

DRAWN = "pictures"


@final
class Places:
    """Paths of the pictures of a corpus.

    Files are named where they lie; pictures that are none are drawn into the exported folder when
    they are first asked for; where there are no pictures, the data set's own name stands for one.

    Args:
        corpus: whose pictures.
        made: the folder while it is being made.
        named: the folder as it will be called.
    """

    def __init__(self, corpus: Corpus, made: Path, named: Path) -> None:
        self._corpus, self._made, self._named = corpus, made / DRAWN, named.absolute() / DRAWN
        self._known: dict[int, str] = {}

    def __call__(self, row: int) -> str:
        """What stands for the image of this row."""
        if row not in self._known:
            self._known[row] = self._found(row)
        return self._known[row]

    def _found(self, row: int) -> str:
        pictures = self._corpus.pictures
        if pictures is None:
            return self._corpus.image_ids[row]
        if isinstance(pictures, PictureFiles):
            return str(Path(pictures.place(row)).absolute())
        name = f"{row:06d}.png"
        self._made.mkdir(exist_ok=True)
        pictures.open(row).save(self._made / name)
        return str(self._named / name)
