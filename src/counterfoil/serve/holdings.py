"""What is served: an index, the model that asks it, and one that explains."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, final

import torch
from PIL import Image
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import PixelEye
from counterfoil.corpus.pictures import open_picture
from counterfoil.engine.tiles import Side
from counterfoil.evaluate.explanation import Explanation
from counterfoil.recipes.explain import explain, reads
from counterfoil.recipes.model import Model
from counterfoil.search.index import SearchIndex
from counterfoil.search.rerank import Reranker, RerankItems
from counterfoil.serve.queries import About, Hit, Query, Shortlist
from counterfoil.serve.refused import Refused

SIDE = 448  # pixels of a thumbnail; shown at half that or less

Seen: TypeAlias = Image.Image | str  # a picture, or the id of an image


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
        reranker: puts the first results in order, where images are compared with captions; None
            for the index's own order.

    Raises:
        ValueError: the index holds no image, none of them is in the corpus, the explainer cannot
            read captions, or the reranker cannot see all images.

    Attributes:
        explainer: what explains, by a name that does not say where it lies.
        name: of the model that made the index, without where it lies.
        reranker: what puts the first results in order, by such a name too; None for nothing.
    """

    def __init__(
        self,
        index: SearchIndex,
        explainer: Model | None = None,
        corpus: Corpus | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        self._search, self._images, self._corpus = index, index.vectors.images, corpus
        if not len(self._images):
            raise ValueError(
                f"{index.folder} holds {index.description}; add images with `counterfoil index`"
            )
        self.name = _named(index.model, index.folder)
        shown = explainer or index.model
        self.explainer = replace(shown, name=_named(shown, index.folder))
        reads(self.explainer)
        self.reranker = reranker and _renamed(reranker, index)
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
    def captions(self) -> int:
        """How many captions there are to find."""
        return len(self._search.vectors.texts)

    @property
    def sees_pictures(self) -> bool:
        """Whether the model can be asked by a picture that is in no index."""
        return _sees(self._search.model)

    @property
    def explains_pictures(self) -> bool:
        """Whether a caption can be checked against a picture that is in no index."""
        return _sees(self.explainer)

    def reranks(self, query: Query) -> bool:
        """Whether what is found for a query is put in order by the other model.

        It scores images with captions, and a new picture only if it reads pixels.
        """
        if self.reranker is None or not query.crosses:
            return False
        return not isinstance(query.about, Image.Image) or _sees(self.reranker.model)

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
        """What the index finds for each query, best first; where it is re-ranked, all that is.

        Raises:
            ValueError: the model cannot read captions or see pictures.
        """
        found: dict[int, tuple[Hit, ...]] = {}
        alike = [(query.find, self._wanted(query)) for query in queries]
        for find, wanted in set(alike):  # how many are proposed hangs on how many are wanted
            places = [place for place, one in enumerate(alike) if one == (find, wanted)]
            asked = torch.cat([self._vector(queries[place].about) for place in places])
            shelf = self._search.vectors.collection(queries[places[0]].side)
            try:
                rows, scores = shelf.search(asked, wanted)
            except ValueError as error:  # as of a database that is gone: no query is at fault
                raise RuntimeError(f"the index cannot be searched: {error}") from error
            for place, *best in zip(places, rows.tolist(), scores.tolist(), strict=True):
                found[place] = self._hits(queries[place], list(zip(*best, strict=True)))
        return [found[place] for place in range(len(queries))]

    def reranked(self, shortlist: Shortlist) -> tuple[Hit, ...]:
        """The best of what the index found, in the order of the other model.

        Raises:
            ValueError: more are wanted than are re-ranked, or it cannot see an image.
        """
        assert self.reranker is not None
        query, shelf = shortlist.query, self._search.vectors.collection(shortlist.query.side)
        self.reranker.check(query.top)
        if isinstance(query.about, int):
            asked = self._search.items("image", [query.about])
        else:
            asked = RerankItems.from_query(query.about)
        rows = [shelf.rows[hit.id] for hit in shortlist.hits]
        found = self._search.items(query.side, rows)
        return self._hits(query, self.reranker.best(asked, found, rows, query.top))

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
        path, row = self._search.image_path(name), self._places.get(name)
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

    def _wanted(self, query: Query) -> int:
        """How many to look for, as many as there are at most: an image is not like itself."""
        depth = self.reranker.depth if self.reranker and self.reranks(query) else query.top
        least = min(depth, len(self._search.vectors.collection(query.side)))
        return least + (query.itself is not None)

    def _hits(self, query: Query, pairs: Sequence[tuple[int, float]]) -> tuple[Hit, ...]:
        """At most as many as are wanted: by product, an image need not be its own best."""
        most = self._wanted(query) - (query.itself is not None)
        real = [(row, score) for row, score in pairs if row >= 0 and row != query.itself]
        return tuple(self._hit(query.side, row, score) for row, score in real[:most])

    def _hit(self, side: Side, row: int, score: float) -> Hit:
        entry = self._search.vectors.collection(side).entry(row)
        if side == "image":
            return Hit(entry.id, score, next(iter(self._captions[entry.id]), ""), entry.id)
        return Hit(entry.id, score, entry.text, entry.image if entry.image in self._rows else "")


def _sees(model: Model) -> bool:
    """Whether a model reads pixels."""
    return model.lens is not None and isinstance(model.lens.eye, PixelEye)


def _renamed(reranker: Reranker, index: SearchIndex) -> Reranker:
    """By a name that does not say where it lies.

    Raises:
        ValueError: it cannot see all images, so that most queries would end without it.
    """
    model, every = reranker.model, list(index.vectors.images.rows.values())  # the living ones
    if unseen := reranker.unseen(index.items("image", every)):
        raise ValueError(
            f"{model.name} cannot look at {len(unseen):,} of the {len(every):,} images of "
            f"{index.folder}, as {unseen[0]!r}: it reads features of the data, or picture files "
            "that the index knows; name data that have all of them, or re-rank with another model"
        )
    return replace(reranker, model=replace(model, name=_named(model, index.folder)))


def _named(model: Model, index: Path) -> str:
    """What a model is called towards others, without where it lies here."""
    path = Path(model.name)
    if path.is_relative_to(index):
        return f"the model of {index.resolve().name}"
    return path.name if path.exists() or path.is_absolute() else model.name
