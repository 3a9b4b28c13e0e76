"""Re-ranking of the first search results by a model that scores each pair."""

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
from counterfoil.recipes.model import Model
from counterfoil.records import Encoded

ImageInput: TypeAlias = Path | Image.Image
DEFAULT_DEPTH = 50
_BATCH = 32  # images or captions encoded together


@final
@dataclass(frozen=True, slots=True)
class RerankItems:
    """Images or captions in the form that a model encodes.

    Attributes:
        side: which of the two.
        ids: of the data set; "" for items that are in none.
        texts: the captions; empty for images.
        images: the images, None where only features exist; empty for captions.
    """

    side: Side
    ids: tuple[str, ...]
    texts: tuple[str, ...] = ()
    images: tuple[ImageInput | None, ...] = ()

    @classmethod
    def from_query(cls, query: str | ImageInput) -> Self:
        """A caption, or an image that is in no data set."""
        if isinstance(query, str):
            return cls("text", ("",), texts=(query,))
        return cls("image", ("",), images=(query,))


@final
@dataclass(frozen=True, eq=False)
class Reranker:
    """A model that re-ranks the first results of a search.

    Attributes:
        model: scores each pair of query and result.
        depth: how many results it scores.
        corpus: the data set with the images' features, for a model that reads features.

    Raises:
        ValueError: the model reads no captions, needs features and has none, or the depth is below
            1.
    """

    model: Model
    depth: int = DEFAULT_DEPTH
    corpus: Corpus | None = None

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(
                f"depth={self.depth}: at least 1 counterpart of a query has to be re-ranked"
            )
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

    def check(self, top_k: int) -> None:
        """Refuse to return more results than are re-ranked.

        Raises:
            ValueError: `top_k` is above the depth.
        """
        if self.depth < top_k:
            raise ValueError(
                f"{top_k} results are wanted, and only the first {self.depth} are re-ranked; ask "
                "for fewer results, or for a greater depth"
            )

    def unseen(self, images: RerankItems) -> list[str]:
        """Ids of the images that the model has no input for; files are not opened."""
        if self._reads_features:
            return [image_id for image_id in images.ids if image_id not in self._feature_rows]
        pairs = zip(images.ids, images.images, strict=True)
        return [image_id for image_id, image in pairs if image is None]

    def order(self, query: RerankItems, results: RerankItems, k: int) -> tuple[Tensor, Tensor]:
        """Rank results by the scores of this model.

        Args:
            query: one caption or one image.
            results: items of the other modality.
            k: how many to return, at most all.

        Returns:
            (k,) long positions among the results, and (k,) scores, best first.

        Raises:
            ValueError: both are of one modality, or an image cannot be encoded.
        """
        if query.side == results.side:
            kind = "image" if query.side == "image" else "caption"
            raise ValueError(
                f"{self.model.name} scores images with captions and cannot compare one {kind} with "
                "another; leave out --rerank"
            )
        encoded_query, every = self._encode(query), torch.arange(len(results.ids))[None]
        none = torch.empty(len(results.ids), 0, dtype=torch.long)
        if query.side == "text":
            member = Member(self.model.matcher, self._encode(results), encoded_query)
            rows, scores = Rescored([member], none, every).best("text", k)
        else:
            member = Member(self.model.matcher, encoded_query, self._encode(results))
            rows, scores = Rescored([member], every, none).best("image", k)
        return rows[0].long(), scores[0]

    def _encode(self, items: RerankItems) -> Encoded:
        starts = range(0, len(items.ids), _BATCH)
        if items.side == "text":
            batches = [self.model.encode(items.texts[start : start + _BATCH]) for start in starts]
        else:
            batches = [self._encode_images(items, start, start + _BATCH) for start in starts]
        return Encoded.cat(batches)

    def _encode_images(self, items: RerankItems, start: int, stop: int) -> Encoded:
        ids, images = items.ids[start:stop], items.images[start:stop]
        if self._reads_features:
            lens = self.model.lens
            assert lens is not None
            assert self.corpus is not None
            rows = torch.tensor([self._feature_row(image_id) for image_id in ids])
            inputs = lens.eye.look(self.corpus, rows)
            with evaluating([self.model.matcher]):
                return self.model.matcher.encode_images(inputs.to(world.device()))
        known = [image for image in images if image is not None]
        if len(known) < len(ids):
            raise ValueError(
                f"the index knows no picture of image {ids[images.index(None)]!r}, and "
                f"{self.model.name} reads pixels; re-rank with a model that reads features"
            )
        return self.model.encode(known)

    @property
    def _reads_features(self) -> bool:
        lens = self.model.lens
        return self.corpus is not None and lens is not None and isinstance(lens.eye, FeatureEye)

    @cached_property
    def _feature_rows(self) -> dict[str, int]:
        ids: Sequence[str] = self.corpus.image_ids if self.corpus else ()
        return {image_id: row for row, image_id in enumerate(ids)}

    def _feature_row(self, image_id: str) -> int:
        assert self.corpus is not None
        if image_id not in self._feature_rows:
            missing = (
                f"{self.corpus.name} holds no image {image_id!r}"
                if image_id
                else "the picture is new"
            )
            raise ValueError(
                f"{missing}, and {self.model.name} reads stored features; name data with its "
                "features"
            )
        return self._feature_rows[image_id]


def open_reranker(
    name: str | None, depth: int | None = None, corpus: Corpus | None = None
) -> Reranker | None:
    """Open a re-ranking model by name; None without a name.

    Args:
        name: what `open_model` opens.
        depth: how many results it scores; None for `DEFAULT_DEPTH`.
        corpus: the data set with the images' features, for a model that reads features.

    Raises:
        ValueError: a depth without a model, or the model does not fit it or the data set.
    """
    from counterfoil.recipes.model import open_model

    if name:
        return Reranker(open_model(name), DEFAULT_DEPTH if depth is None else depth, corpus)
    if depth is not None:
        raise ValueError("--depth says how much is re-ranked, and no model does; add --rerank")
    return None
