"""The first results of a search, put in order by a model that reads image and caption together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, TypeAlias, final

import torch
from PIL import Image
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import FeatureEye
from counterfoil.engine.modes import evaluating
from counterfoil.engine.rerank import Rescored
from counterfoil.engine.tiles import Member, Side
from counterfoil.evaluate.cascade import DEPTH, check_depth
from counterfoil.recipes.model import Model, open_model
from counterfoil.records import Encoded

Picture: TypeAlias = Path | Image.Image
_AT_ONCE = 32  # images or captions encoded together


@final
@dataclass(frozen=True, slots=True)
class Things:
    """Images or captions, as people see them.

    Attributes:
        side: which of the two.
        ids: of the data; "" of what is in none.
        texts: the captions; none of images.
        pictures: of images, None where there is none; none of captions.
    """

    side: Side
    ids: tuple[str, ...]
    texts: tuple[str, ...] = ()
    pictures: tuple[Picture | None, ...] = ()

    @classmethod
    def asked(cls, query: str | Picture) -> Self:
        """A caption, or a picture, that is in no data."""
        if isinstance(query, str):
            return cls("text", ("",), texts=(query,))
        return cls("image", ("",), pictures=(query,))


@final
@dataclass(frozen=True, eq=False)
class Reranker:
    """A model that puts the first results of a search in order.

    Attributes:
        model: any host; it scores each pair of query and result.
        depth: how many results it looks at.
        corpus: the data with the images' features, for a model that reads features.

    Raises:
        ValueError: the model reads no captions, needs features and has none, or a depth below 1.
    """

    model: Model
    depth: int = DEPTH
    corpus: Corpus | None = None

    def __post_init__(self) -> None:
        check_depth(self.depth)
        lens = self.model.lens
        if lens is None or lens.tokenizer is None:
            raise ValueError(
                f"{self.model.name} compares ready-made vectors and reads no caption; re-rank with "
                "another model"
            )
        if isinstance(lens.eye, FeatureEye) and self.corpus is None:
            raise ValueError(
                f"{self.model.name} reads stored features of images; name the data that have them, "
                "with --data and --features"
            )

    def check(self, k: int) -> None:
        """Refuse to be asked for more than is looked at.

        Raises:
            ValueError: that is so.
        """
        if self.depth < k:
            raise ValueError(
                f"{k} results are wanted, and only the first {self.depth} are re-ranked; ask for "
                "fewer results, or for a greater depth"
            )

    def unseen(self, images: Things) -> list[str]:
        """Ids of the images that have nothing it could look at; files are not opened."""
        if self._looks_up:
            return [name for name in images.ids if name not in self._rows]
        return [name for name, one in zip(images.ids, images.pictures, strict=True) if one is None]

    def best(
        self, query: Things, found: Things, rows: Sequence[int], k: int
    ) -> list[tuple[int, float]]:
        """The k best rows and their scores, best first; all where there are fewer.

        Args:
            query: one caption or one image.
            found: images or captions, the other of the two.
            rows: of each of them.
            k: how many to keep.

        Raises:
            ValueError: as `order` does.
        """
        if not rows:
            return []
        places, scores = self.order(query, found, min(k, len(rows)))
        return [(rows[n], score) for n, score in zip(places.tolist(), scores.tolist())]

    def order(self, query: Things, found: Things, k: int) -> tuple[Tensor, Tensor]:
        """The k best of what was found.

        Args:
            query: one caption or one image.
            found: images or captions, the other of the two.
            k: how many to keep, at most as many as were found.

        Returns:
            (k,) long places among what was found, and (k,) scores, best first.

        Raises:
            ValueError: both are of one side, or an image cannot be seen.
        """
        if query.side == found.side:
            kind = "image" if query.side == "image" else "caption"
            raise ValueError(
                f"{self.model.name} scores images with captions and cannot compare one {kind} with "
                "another; leave out --rerank"
            )
        asked, every = self._encoded(query), torch.arange(len(found.ids))[None]
        none = torch.empty(len(found.ids), 0, dtype=torch.long)
        if query.side == "text":
            member = Member(self.model.matcher, self._encoded(found), asked)
            rows, scores = Rescored([member], none, every).best("text", k)
        else:
            member = Member(self.model.matcher, asked, self._encoded(found))
            rows, scores = Rescored([member], every, none).best("image", k)
        return rows[0].long(), scores[0]

    def _encoded(self, things: Things) -> Encoded:
        every = range(0, len(things.ids), _AT_ONCE)
        if things.side == "text":
            return Encoded.cat(
                [self.model.encode(things.texts[start : start + _AT_ONCE]) for start in every]
            )
        return Encoded.cat([self._seen(things, start, start + _AT_ONCE) for start in every])

    def _seen(self, things: Things, start: int, stop: int) -> Encoded:
        lens, ids = self.model.lens, things.ids[start:stop]
        assert lens is not None
        if self._looks_up:
            assert self.corpus is not None
            items = lens.eye.look(self.corpus, torch.tensor([self._row(name) for name in ids]))
            with evaluating([self.model.matcher]):
                return self.model.matcher.encode_images(items.to(world.device()))
        pictures = [picture for picture in things.pictures[start:stop] if picture is not None]
        if len(pictures) < len(ids):
            lost = next(n for n, p in zip(ids, things.pictures[start:stop]) if p is None)
            raise ValueError(
                f"the index knows no picture of image {lost!r}, and {self.model.name} reads "
                "pixels; re-rank with a model that reads features"
            )
        return self.model.encode(pictures)

    @property
    def _looks_up(self) -> bool:
        """Whether it reads features of the data, not pixels."""
        lens = self.model.lens
        return self.corpus is not None and lens is not None and isinstance(lens.eye, FeatureEye)

    @cached_property
    def _rows(self) -> dict[str, int]:
        ids: Sequence[str] = self.corpus.image_ids if self.corpus else ()
        return {name: row for row, name in enumerate(ids)}

    def _row(self, name: str) -> int:
        assert self.corpus is not None
        if name not in self._rows:
            what = f"{self.corpus.name} holds no image {name!r}" if name else "the picture is new"
            raise ValueError(
                f"{what}, and {self.model.name} reads stored features; name data with its features"
            )
        return self._rows[name]


def open_reranker(
    name: str | None, depth: int | None = None, corpus: Corpus | None = None
) -> Reranker | None:
    """The model that puts first results in order, by its name; None where none is named.

    Args:
        name: what `open_model` opens.
        depth: how many results it looks at; None for `DEPTH`.
        corpus: the data with the images' features, for a model that reads features.

    Raises:
        ValueError: a depth without a model, or the model does not go with it or with the data.
    """
    if name:
        return Reranker(open_model(name), DEPTH if depth is None else depth, corpus)
    if depth is not None:
        raise ValueError("--depth says how much is re-ranked, and no model does; add --rerank")
    return None
