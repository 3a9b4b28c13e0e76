"""An index and its model: captions, pictures and ids as queries, and what is found in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, final, get_args

import torch
from torch import Tensor

from counterfoil.core.literals import parse_choice
from counterfoil.engine.index import Index
from counterfoil.engine.tiles import Side
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.reranking import Picture, Reranker, Things
from counterfoil.spec import unknown

Find: TypeAlias = Literal["images", "captions"]
Query: TypeAlias = str | Picture
TOP = 10
SIDES: dict[Find, Side] = {"images": "image", "captions": "text"}


@final
@dataclass(frozen=True, slots=True)
class Hit:
    """Something that was found.

    Attributes:
        place: in the list, from 1.
        score: of the pair; higher is better.
        id: of the image or caption.
        image: id of the image: its own, or of the one that the caption describes; "" for none.
        captions: what is said of the image, or the caption alone.
        path: of the image's picture; None where only features were there.
    """

    place: int
    score: float
    id: str
    image: str
    captions: tuple[str, ...]
    path: Path | None

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "place": self.place,
            "score": self.score,
            "id": self.id,
            "image": self.image,
            "captions": list(self.captions),
            "path": None if self.path is None else str(self.path),
        }


@final
class SearchIndex:
    """An index that can be asked, and the model that made it.

    Args:
        folder: of the index.
        model: to ask with; by default the one that the index names.
        reranker: puts the first results in order.

    Raises:
        ValueError: there is no index, it is damaged, or the model is another one.

    Attributes:
        folder: where it lies.
        index: its vectors.
    """

    def __init__(
        self, folder: Path, *, model: Model | None = None, reranker: Reranker | None = None
    ) -> None:
        self.folder, self.index, self._reranker = folder, Index(folder), reranker
        self._given = model
        if model is not None:
            self._check(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of files and connections."""
        self.index.close()

    @cached_property
    def model(self) -> Model:
        """The model, opened when it is first needed.

        Raises:
            ValueError: it is no longer where it was, or was trained on since.
        """
        if self._given is not None:
            return self._given
        try:
            model = open_model(self.model_name)
        except ValueError as error:
            raise ValueError(
                f"the model of {self.folder} cannot be opened ({error}); name the same model with "
                "--model"
            ) from error
        self._check(model)
        return model

    @property
    def model_name(self) -> str:
        """What `open_model` opens."""
        inside = self.folder / self.index.state.model
        return str(inside) if inside.is_dir() else self.index.state.model

    def search_text(self, caption: str, k: int = TOP, *, find: Find = "images") -> list[Hit]:
        """What fits a caption best.

        Args:
            caption: in words.
            k: how many to find.
            find: images, or captions that are alike.

        Raises:
            ValueError: the caption is empty, or the index holds nothing of the kind.
        """
        return self.search([caption], k, find=find)[0]

    def search_image(self, picture: Query, k: int = TOP, *, find: Find = "captions") -> list[Hit]:
        """What fits a picture best.

        Args:
            picture: or its path, `str` or not; it need not be in the index.
            k: how many to find.
            find: captions, or images that are alike.

        Raises:
            ValueError: it cannot be read, or the model sees no bare pictures.
        """
        image = Path(picture) if isinstance(picture, str) else picture
        return self.search([image], k, find=find)[0]

    def search_id(self, name: str, k: int = TOP, *, find: Find | None = None) -> list[Hit]:
        """What fits an image or a caption of the index best, except itself.

        Args:
            name: its id.
            k: how many to find.
            find: images or captions; by default captions of an image and images of a caption.

        Raises:
            ValueError: no image and no caption has this id.
        """
        side, row = self.named(name)
        find = find or ("captions" if side == "image" else "images")
        self._wanted(find)
        vector = self.index.shelf(side).vectors(torch.tensor([row]))
        itself = row if SIDES[find] == side else None
        return self._found(vector, [self.things(side, [row])], k, find, without=itself)[0]

    def search(self, queries: Sequence[Query], k: int = TOP, *, find: Find) -> list[list[Hit]]:
        """What fits each of several captions best, or each of several pictures.

        Args:
            queries: all captions (str), or all pictures or their paths.
            k: how many to find for each.
            find: images or captions.

        Raises:
            ValueError: as `search_text` and `search_image` do.
        """
        self._wanted(find)
        encoded = self.model.encode(list(queries))
        return self._found(
            encoded.tokens[:, 0], [Things.asked(query) for query in queries], k, find
        )

    def named(self, name: str) -> tuple[Side, int]:
        """Where an id stands.

        Raises:
            ValueError: nowhere.
        """
        for side in get_args(Side):
            row = self.index.shelf(side).find(name)
            if row is not None:
                return side, row
        known = [*self.index.images.rows][:3] + [*self.index.texts.rows][:2]
        raise ValueError(
            f"{unknown(name, known, f'an id of {self.folder}')[:-1]}, …; it holds {self.told}"
        )

    @property
    def told(self) -> str:
        """What is in it, in words."""
        return f"{len(self.index.images):,} images and {len(self.index.texts):,} captions"

    def picture(self, name: str) -> Path | None:
        """Path of an image's picture, by the image's id; None where there is none."""
        row = self.index.images.find(name)
        return None if row is None else self._path(row)

    def captions(self, name: str) -> tuple[str, ...]:
        """What is said of an image, by its id."""
        texts = self.index.texts
        return tuple(texts.entry(row).text for row in texts.about.get(name, ()))

    def things(self, side: Side, rows: Sequence[int]) -> Things:
        """Images or captions by their rows."""
        entries = [self.index.shelf(side).entry(row) for row in rows]
        ids = tuple(entry.id for entry in entries)
        if side == "text":
            return Things(side, ids, texts=tuple(entry.text for entry in entries))
        return Things(side, ids, pictures=tuple(self._path(row) for row in rows))

    def _found(
        self,
        vectors: Tensor,
        queries: Sequence[Things],
        k: int,
        find: Find,
        *,
        without: int | None = None,
    ) -> list[list[Hit]]:
        side, more, shelf = SIDES[find], int(without is not None), self.index.shelf(SIDES[find])
        if self._reranker is not None:
            self._reranker.check(k)
        wanted = min(k if self._reranker is None else self._reranker.depth, len(shelf))
        rows, scores = shelf.search(vectors, wanted + more)
        lists = [
            [(row, score) for row, score in zip(*own) if row >= 0 and row != without][:wanted]
            for own in zip(rows.tolist(), scores.tolist(), strict=True)
        ]
        if self._reranker is not None:
            lists = [self._reranked(*own, side, k) for own in zip(queries, lists, strict=True)]
        return [[self._hit(side, *one, place) for place, one in enumerate(own, 1)] for own in lists]

    def _reranked(
        self, query: Things, pairs: Sequence[tuple[int, float]], side: Side, k: int
    ) -> list[tuple[int, float]]:
        assert self._reranker is not None
        rows = [row for row, _ in pairs]
        return self._reranker.best(query, self.things(side, rows), rows, k)

    def _hit(self, side: Side, row: int, score: float, place: int) -> Hit:
        entry = self.index.shelf(side).entry(row)
        if side == "image":
            return Hit(place, score, entry.id, entry.id, self.captions(entry.id), self._path(row))
        return Hit(place, score, entry.id, entry.image, (entry.text,), self.picture(entry.image))

    def _path(self, row: int) -> Path | None:
        place = self.index.images.entry(row).place
        return self.folder / place if place else None

    def _wanted(self, find: Find) -> None:
        parse_choice(SIDES, find, "something to find")
        if not len(self.index.shelf(SIDES[find])):
            raise ValueError(f"{self.folder} holds {self.told}; there are no {find} to find")

    def _check(self, model: Model) -> None:
        """Refuse a model whose vectors cannot be compared with those of the index."""
        if model.identity() != self.index.state.identity:
            raise ValueError(
                f"{self.folder} was made with {self.model_name}, and {model.name} is "
                "another model or was trained on since: their vectors cannot be compared; ask "
                "with the model of the index, or make an index with this one"
            )


def open_index(
    folder: str | Path,
    *,
    model: str | Path | Model | None = None,
    rerank: Reranker | None = None,
) -> SearchIndex:
    """An index to search in.

    Args:
        folder: what `counterfoil index` made.
        model: to ask with; by default the one that the index names.
        rerank: puts the first results in order.

    Raises:
        ValueError: there is no index, it is damaged, or the model is another one.
    """
    found = open_model(model) if isinstance(model, str | Path) else model
    return SearchIndex(Path(folder), model=found, reranker=rerank)
