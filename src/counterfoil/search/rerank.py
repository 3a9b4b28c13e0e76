"""Re-ranking of the first search results by a model that scores each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, TypeAlias, final

import torch
from PIL import Image

from counterfoil.core import distributed
from counterfoil.core.types import Embeddings
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.model import Model
from counterfoil.scoring.encode import EmbeddedDataset, Side, evaluation_mode
from counterfoil.scoring.pairs import RescoredPairs
from counterfoil.search.query import parse_query

ImageInput: TypeAlias = Path | Image.Image
DEFAULT_DEPTH = 50
_BATCH = 32  # images or captions encoded together


@final
@dataclass(frozen=True, slots=True)
class RerankItems:
    """Images or captions in the form that a model encodes; ids are "" for items of no data set.

    An image is None where only its features exist.
    """

    side: Side
    ids: tuple[str, ...]
    texts: tuple[str, ...] = ()
    images: tuple[ImageInput | None, ...] = ()

    @classmethod
    def from_query(cls, query: str | ImageInput) -> Self:
        """A caption, without what it says behind a minus, or an image that is in no data set."""
        if isinstance(query, str):
            return cls("text", ("",), texts=(parse_query(query)[0],))
        return cls("image", ("",), images=(query,))


@final
@dataclass(frozen=True, eq=False)
class Reranker:
    """A model that re-ranks the first results of a search.

    Attributes:
        model: scores each pair of query and result.
        depth: number of results to score.
        dataset: the data set with the images' features, for a model that reads features.

    Raises:
        ValueError: the model reads no captions, needs features and has none, or the depth is below
            1.
    """

    model: Model
    depth: int = DEFAULT_DEPTH
    dataset: ImageTextDataset | None = None

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(
                f"depth={self.depth}: at least 1 counterpart of a query has to be re-ranked"
            )
        processor = self.model.processor
        if processor is None or processor.tokenizer is None:
            raise ValueError(
                f"{self.model.name} compares ready-made vectors and reads no caption; re-rank with "
                "another model"
            )
        if self.model.reads_features and self.dataset is None:
            raise ValueError(
                f"{self.model.name} reads stored features of images; name the data that have them, "
                "as in --data my-photos/:features=features/"
            )

    def check(self, top_k: int) -> None:
        """Raise a `ValueError` if more results are wanted than are re-ranked."""
        if self.depth < top_k:
            raise ValueError(
                f"{top_k} results are wanted, and only the first {self.depth} are re-ranked; ask "
                "for fewer results, or for a greater depth"
            )

    def unseen(self, images: RerankItems) -> list[str]:
        """Ids of the images that the model has no input for; files are not opened."""
        if self.model.reads_features:
            return [image_id for image_id in images.ids if image_id not in self._feature_rows]
        pairs = zip(images.ids, images.images, strict=True)
        return [image_id for image_id, image in pairs if image is None]

    def best(
        self, query: RerankItems, results: RerankItems, rows: Sequence[int], k: int
    ) -> list[tuple[int, float]]:
        """The k best results and their scores by this model, best first; all if there are fewer.

        Args:
            query: one caption or one image.
            results: items of the other modality.
            rows: by which the results are named.
            k: number of results.

        Raises:
            ValueError: both are of one modality, or an image cannot be encoded.
        """
        if not rows:
            return []
        if query.side == results.side:
            kind = "image" if query.side == "image" else "caption"
            raise ValueError(
                f"{self.model.name} scores images with captions and cannot compare one {kind} with "
                "another; leave out --rerank"
            )
        sides = self._encode(query), self._encode(results)
        images, texts = sides if query.side == "image" else reversed(sides)
        every = torch.arange(len(rows))[None]
        none = torch.empty(len(rows), 0, dtype=torch.long)
        lists = (every, none) if query.side == "image" else (none, every)
        rescored = RescoredPairs([EmbeddedDataset(self.model.model, images, texts)], *lists)
        positions, scores = rescored.best(query.side, min(k, len(rows)))
        return [(rows[n], score) for n, score in zip(positions[0].tolist(), scores[0].tolist())]

    def _encode(self, items: RerankItems) -> Embeddings:
        starts = range(0, len(items.ids), _BATCH)
        if items.side == "text":
            batches = [self.model.encode(items.texts[start : start + _BATCH]) for start in starts]
        else:
            batches = [self._encode_images(items, start, start + _BATCH) for start in starts]
        return Embeddings.cat(batches)

    def _encode_images(self, items: RerankItems, start: int, stop: int) -> Embeddings:
        ids, images = items.ids[start:stop], items.images[start:stop]
        if self.model.reads_features:
            processor = self.model.processor
            assert processor is not None
            assert self.dataset is not None
            rows = torch.tensor([self._feature_row(image_id) for image_id in ids])
            inputs = processor.image_processor.from_dataset(self.dataset, rows)
            with evaluation_mode([self.model.model]):
                return self.model.model.encode_images(inputs.to(distributed.device()))
        known = [image for image in images if image is not None]
        if len(known) < len(ids):
            raise ValueError(
                f"the index knows no picture of image {ids[images.index(None)]!r}, and "
                f"{self.model.name} reads pixels; re-rank with a model that reads features"
            )
        return self.model.encode(known)

    @cached_property
    def _feature_rows(self) -> dict[str, int]:
        ids: Sequence[str] = self.dataset.image_ids if self.dataset else ()
        return {image_id: row for row, image_id in enumerate(ids)}

    def _feature_row(self, image_id: str) -> int:
        assert self.dataset is not None
        if image_id not in self._feature_rows:
            known = f"{self.dataset.name} holds no image {image_id!r}"
            missing = known if image_id else "the picture is new"
            raise ValueError(
                f"{missing}, and {self.model.name} reads stored features; name data with its "
                "features"
            )
        return self._feature_rows[image_id]


def open_reranker(
    name: str | None, depth: int | None = None, dataset: ImageTextDataset | None = None
) -> Reranker | None:
    """Open a `Reranker` by the name of its model; None without a name."""
    from counterfoil.model import load_model

    if name:
        return Reranker(load_model(name), DEFAULT_DEPTH if depth is None else depth, dataset)
    if depth is not None:
        raise ValueError(
            "--depth is the number of re-ranked results, and no model re-ranks; add --rerank"
        )
    return None
