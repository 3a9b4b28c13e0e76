"""What is served: an index, the model that asks it, and one that explains."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, final

import torch
from PIL import Image
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import PixelEye
from counterfoil.corpus.pictures import open_picture
from counterfoil.evaluate.explanation import Explanation
from counterfoil.recipes.explain import explain, reads
from counterfoil.recipes.model import Model
from counterfoil.recipes.searching import SearchIndex
from counterfoil.serve.refused import Refused

SIDE = 448  # pixels of a thumbnail; shown at half that or less

Seen: TypeAlias = Image.Image | str  # a picture, or the id of an image
About: TypeAlias = str | Image.Image | int


@final
@dataclass(frozen=True, slots=True)
class Query:
    """What a query asks for.

    Attributes:
        about: a caption, a picture, or the row of an image of the index, whose like is wanted.
        top: how many images.
    """

    about: About
    top: int

    @property
    def wanted(self) -> int:
        """How many to look for: an image is not like itself."""
        return self.top + isinstance(self.about, int)


@final
@dataclass(frozen=True, slots=True)
class Hit:
    """An image that was found.

    Attributes:
        id: its own name.
        score: higher is better.
        caption: what the index knows to be said of it; "" for nothing.
    """

    id: str
    score: float
    caption: str


@final
class Library:
    """Answers queries and explains; one thread asks, any may open pictures.

    Every query is encoded alone, as it is offline, so that an answer does not depend on what else
    was asked; queries that come together share one pass over the vectors.

    Args:
        index: the images, and the model that made it.
        explainer: another model to explain with; None for the same.
        corpus: holds the images of the index, where it has no files of theirs, or where the
            explainer reads features.

    Raises:
        ValueError: the index holds no image, none of them is in the corpus, or the explainer
            cannot read captions.

    Attributes:
        explainer: what explains, by a name that does not say where it lies.
        name: of the model that made the index, without where it lies.
    """

    def __init__(
        self, index: SearchIndex, explainer: Model | None = None, corpus: Corpus | None = None
    ) -> None:
        self._search, self._images, self._corpus = index, index.index.images, corpus
        if not len(self._images):
            raise ValueError(
                f"{index.folder} holds {index.told}; add images with `counterfoil index`"
            )
        self.name = _named(index.model, index.folder)
        shown = explainer or index.model
        self.explainer = replace(shown, name=_named(shown, index.folder))
        reads(self.explainer)
        self._rows = self._images.rows  # read now, and once
        self._captions = {name: index.captions(name)[:1] for name in self._rows}
        ids = () if corpus is None else corpus.image_ids
        self._places = {name: row for row, name in enumerate(ids) if name in self._rows}
        if corpus is not None and not self._places:
            raise ValueError(
                f"none of the images of {index.folder} is in {corpus.name}; name the data that the "
                "index was made of"
            )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def sees_pictures(self) -> bool:
        """Whether the model can be asked by a picture that is in no index."""
        lens = self._search.model.lens
        return lens is not None and isinstance(lens.eye, PixelEye)

    def row(self, name: str) -> int:
        """The row of an image by its id.

        Raises:
            Refused: the index has none of this id.
        """
        found = self._rows.get(name)
        if found is None:
            raise Refused(404, f"the index has no image {name[:80]!r}")
        return found

    def answer(self, queries: Sequence[Query]) -> list[tuple[Hit, ...]]:
        """The best images of each query, best first.

        Raises:
            ValueError: the model cannot read captions or see pictures.
        """
        found: dict[int, tuple[Hit, ...]] = {}
        for wanted in {query.wanted for query in queries}:  # how many are proposed hangs on it
            places = [place for place, query in enumerate(queries) if query.wanted == wanted]
            asked = torch.cat([self._vector(queries[place].about) for place in places])
            rows, scores = self._images.search(asked, wanted)
            for place, *best in zip(places, rows.tolist(), scores.tolist(), strict=True):
                found[place] = self._hits(queries[place], *best)
        return [found[place] for place in range(len(queries))]

    def explain(self, seen: Seen, caption: str) -> Explanation:
        """Why a caption fits a picture or an image of the index, or does not.

        Raises:
            ValueError: the model cannot see it, or the caption is too long.
        """
        corpus = self._corpus if isinstance(seen, str) else None
        (found,) = explain(self.explainer, seen, [caption], corpus=corpus)
        return found

    def seen(self, name: str) -> Seen:
        """An image of the index as the explainer sees it: its picture, or where its features are.

        Raises:
            Refused: the index has none, or there is no picture of it.
        """
        self.row(name)
        features = not isinstance(reads(self.explainer).eye, PixelEye)
        return name if features and name in self._places else self.picture(name)

    def picture(self, name: str) -> Image.Image:
        """The picture of an image of the index.

        Raises:
            Refused: the index has no such image, or its picture is missing.
        """
        self.row(name)
        path, row = self._search.picture(name), self._places.get(name)
        try:
            if row is not None and self._corpus is not None and self._corpus.pictures is not None:
                return self._corpus.pictures.open(row)
            if path is not None:
                return open_picture(path)
        except ValueError:
            raise Refused(404, f"the picture of {name[:80]!r} cannot be read any more") from None
        raise Refused(404, f"the index has no picture of {name[:80]!r}, only what it encodes to")

    def thumbnail(self, name: str) -> bytes:
        """A JPEG of an image of the index; as it is drawn anew, it holds nothing but pixels.

        Raises:
            Refused: as `picture`.
        """
        small = self.picture(name)
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        small.save(out, "jpeg", quality=85, comment=b"")  # else the file's own comment is kept
        return out.getvalue()

    def _vector(self, about: About) -> Tensor:
        """(1, D) of what is asked."""
        if isinstance(about, int):
            return self._images.vectors(torch.tensor([about]))
        return self._search.model.encode([about]).tokens[:, 0].float().cpu()

    def _hits(self, query: Query, rows: Sequence[int], scores: Sequence[float]) -> tuple[Hit, ...]:
        itself = query.about if isinstance(query.about, int) else None
        found = []
        for row, score in zip(rows, scores, strict=True):
            if row >= 0 and row != itself:
                name = self._images.entry(row).id
                found.append(Hit(name, score, next(iter(self._captions[name]), "")))
        return tuple(found[: query.top])  # by product, an image need not be its own best


def _named(model: Model, index: Path) -> str:
    """What a model is called towards others, without where it lies here."""
    path = Path(model.name)
    if path.is_relative_to(index):
        return f"the model of {index.resolve().name}"
    return path.name if path.exists() or path.is_absolute() else model.name
