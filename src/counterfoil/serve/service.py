"""Search backend of the server: an index, its model, an explainer and a reranker."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, final

import torch
from fastapi import HTTPException
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.types import Embeddings
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import ImageTransform, PictureFiles, open_picture
from counterfoil.evaluation.caption_check import CAPTION_CHECK, UNCALIBRATED
from counterfoil.evaluation.exchanges import EXCHANGES
from counterfoil.evaluation.explain import Explanation, explain
from counterfoil.evaluation.read_image import text_processor
from counterfoil.model import Model
from counterfoil.models.layers.pooling import single_vector
from counterfoil.scoring.encode import Side
from counterfoil.search.calibrate import CALIBRATION, MIN_IMAGES
from counterfoil.search.filters import Condition, parse_where
from counterfoil.search.hubness import HUBNESS
from counterfoil.search.index import TARGET_SIDES, SearchIndex, SearchTarget
from counterfoil.search.query import encode_query, parse_query
from counterfoil.search.rerank import Reranker, RerankItems
from counterfoil.search.vector_index import INDEX, Collection, read_state
from counterfoil.serve.decoding import THUMBNAIL, thumbnail
from counterfoil.serve.schemas import MOST_CHOICES, ColumnInfo, SearchResult

# Rocchio's weights of examples (Manning, Raghavan and Schuetze, Introduction to Information
# Retrieval, section 9.1.1): a query of weight 1, the mean of good and of bad examples
MORE, LESS = 0.75, 0.15

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")

QueryInput: TypeAlias = str | Image.Image | int
ImageInput: TypeAlias = Image.Image | str  # a picture, or the id of an image with features


@final
@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A query: a caption, a picture, or the row of an image of the index.

    `more` and `less` are rows of images that the results are to be like and unlike; they are left
    out of the results. All conditions of `where` hold for the images of results.
    """

    value: QueryInput
    top: int
    find: SearchTarget = "images"
    more: tuple[int, ...] = ()
    less: tuple[int, ...] = ()
    where: tuple[Condition, ...] = ()

    @property
    def examples(self) -> frozenset[int]:
        """Rows of the images that refine it."""
        return frozenset((*self.more, *self.less))

    @property
    def side(self) -> Side:
        """Modality of the results."""
        return TARGET_SIDES[self.find]

    @property
    def cross_modal(self) -> bool:
        """True if the results are of the other modality than the query."""
        return isinstance(self.value, str) == (self.find == "images")

    @property
    def excluded(self) -> int | None:
        """Row of the query image among the results; None for none."""
        return self.value if isinstance(self.value, int) and not self.cross_modal else None


@final
class SearchService:
    """Answers queries and explains captions.

    Only one thread may run the models; any thread may open pictures. Every query is encoded alone,
    as in an offline search, so that its answer does not depend on the batch; the queries of a batch
    share one pass over the vectors. Names of models are given without their folders.

    Args:
        index: the images, and the model that encoded them.
        explainer: model that explains captions; None for the model of the index.
        dataset: data set with the images of the index, for indexes without picture files and for
            models that read features.
        reranker: reorders cross-modal results; None for the order of the index.
    """

    def __init__(
        self,
        index: SearchIndex,
        explainer: Model | None = None,
        dataset: ImageTextDataset | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        # an index that changed while it was opened has no stamp and is opened again
        fresh = read_state(index.folder) == index.vectors.state
        self.stamp = index_stamp(index.folder) if fresh else None
        self._opened_with = explainer, dataset, reranker
        self._search, self._images, self._dataset = index, index.vectors.images, dataset
        if not len(self._images):
            raise ValueError(
                f"{index.folder} holds {index.description}; add images with `counterfoil index`"
            )
        self.name = _public_name(index.model, index.folder)
        model = explainer or index.model
        self.explainer = replace(model, name=_public_name(model, index.folder))
        text_processor(self.explainer)
        # exchanges are measured for the model of the index alone
        self.exchanges = index.exchanges if explainer is None else None
        check = index.caption_check
        self.check = check if check and check.model == model.identity() else None
        self.reranker = reranker and _checked(reranker, index)
        self._rows = self._images.rows  # a property that reads the index
        self._captions = {name: index.captions(name)[:1] for name in self._rows}
        self.columns = _column_infos(self._images)
        ids = () if dataset is None else dataset.image_ids
        self._dataset_rows = {name: row for row, name in enumerate(ids) if name in self._rows}
        if dataset is not None and not self._dataset_rows:
            raise ValueError(
                f"none of the images of {index.folder} is in {dataset.name}; name the data that "
                "the index was made of"
            )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def folder(self) -> Path:
        """Folder of the index."""
        return self._search.folder

    def reopened(self) -> SearchService:
        """The service of the index as it is on disk now, with the same models.

        Raises:
            ValueError: the index is damaged, empty, or made by another model.
        """
        opened = SearchIndex(self.folder, model=self._search.model)
        return SearchService(opened, *self._opened_with)

    @property
    def captions(self) -> int:
        """Number of captions in the index."""
        return len(self._search.vectors.texts)

    @property
    def sees_pictures(self) -> bool:
        """True if uploaded pictures can be queries."""
        return self._search.model.reads_pixels

    @property
    def explains_pictures(self) -> bool:
        """True if captions can be checked against uploaded pictures."""
        return self.explainer.reads_pixels

    @property
    def reranker_name(self) -> str | None:
        """Name of the reranker; None for none."""
        return self.reranker and self.reranker.model.name

    def query_transforms(self, find: SearchTarget) -> tuple[ImageTransform | None, ...]:
        """Transforms of the models that read a picture as query: of the index, and the reranker."""
        models = [self._search.model]
        if self.reranker and find == "captions" and self.reranker.model.reads_pixels:
            models.append(self.reranker.model)
        return tuple(map(image_transform, models))

    def reranks(self, query: SearchQuery) -> bool:
        """Return True if the reranker orders the results of a query."""
        if self.reranker is None or not query.cross_modal or query.examples:
            return False
        return not isinstance(query.value, Image.Image) or self.reranker.model.reads_pixels

    def query_note(self, value: QueryInput) -> str | None:
        """Note on a query with unknown words, or one that is cut; None for any other."""
        processor = self._search.model.processor
        if processor is None or not isinstance(value, str):
            return None
        return processor.query_note(parse_query(value)[0]) or None

    def has_probabilities(self, query: SearchQuery) -> bool:
        """Return True if the results are of the kind that a calibration is for."""
        found_by_text = isinstance(query.value, str) and query.side == "image"
        return found_by_text and not query.examples and not self.reranks(query)

    def check_probability(self, least: float, query: SearchQuery) -> None:
        """Refuse, with status 422, a lowest probability of results that have none."""
        reason = ""
        if not self.has_probabilities(query):
            reason = (
                "probabilities are those of images found by text, without a re-ranker or examples"
            )
        elif self._search.calibration is None:
            reason = "the index is not calibrated, so that results have no probabilities"
        elif len(self) < MIN_IMAGES:
            reason = f"the index holds fewer than {MIN_IMAGES} images, too few for probabilities"
        if reason:
            raise HTTPException(422, f"{reason}; leave out min_probability ({least:g})")

    def check_examples(self, query: SearchQuery) -> None:
        """Refuse, with status 422, examples for a model with several vectors of an item."""
        if query.examples and self._search.proposals is not None:
            message = "the model makes several vectors of an item, which no example refines"
            raise HTTPException(422, f"{message}; leave out more and less")

    def conditions(self, where: Sequence[str]) -> tuple[Condition, ...]:
        """The conditions of a request; status 422 for one that is none or names no column."""
        try:
            return parse_where(where, [column.name for column in self.columns])
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    def row(self, name: str) -> int:
        """Row of an image by its id."""
        row = self._rows.get(name)
        if row is None:
            raise HTTPException(404, f"the index has no image {name[:80]!r}")
        return row

    def search(self, queries: Sequence[SearchQuery]) -> list[tuple[SearchResult, ...]]:
        """Results of each query, best first; the whole shortlist of a query to be reranked."""
        answers: dict[int, tuple[SearchResult, ...]] = {}
        groups: dict[tuple[Side, int, bool, bool, tuple[Condition, ...]], list[int]] = {}
        # an approximate index proposes candidates by depth: only equal depths may share a pass
        for place, query in enumerate(queries):
            plain = query.excluded is None
            key = query.side, self._depth(query), plain, query.cross_modal, query.where
            groups.setdefault(key, []).append(place)
        for (side, depth, _, cross_modal, where), places in groups.items():
            encoded = Embeddings.cat([self._refined(queries[place]) for place in places])
            excluded = [queries[place].excluded for place in places]
            exclude = [row for row in excluded if row is not None]  # of all in a group, or of none
            try:
                only = self._search.matching(where, side)
                rankings = self._search.rank(
                    encoded, side, depth, exclude=exclude, cross_modal=cross_modal, only=only
                )
            except ValueError as error:  # such as a lost database: not the fault of the query
                raise RuntimeError(f"the index cannot be searched: {error}") from error
            for place, vector, ranking in zip(places, encoded.tokens[:, 0], rankings, strict=True):
                if side == "image" and (left_out := queries[place].examples):
                    ranking = [(row, score) for row, score in ranking if row not in left_out]
                results = self._results(side, ranking)
                if self._search.calibration is not None and self.has_probabilities(queries[place]):
                    scores = self._search.plain_scores(side, ranking)
                    values = self._search.probabilities(vector, scores)
                    results = tuple(
                        hit.model_copy(update={"probability": value})
                        for hit, value in zip(results, values)
                    )
                answers[place] = results
        return [answers[place] for place in range(len(queries))]

    def rerank(
        self, query: SearchQuery, shortlist: Sequence[SearchResult]
    ) -> tuple[SearchResult, ...]:
        """The best of a shortlist in the order of the reranker."""
        assert self.reranker is not None
        collection = self._search.vectors.collection(query.side)
        self.reranker.check(query.top)
        if isinstance(query.value, int):
            value = self._search.items("image", [query.value])
        else:
            value = RerankItems.from_query(query.value)
        rows = [collection.rows[hit.id] for hit in shortlist]
        candidates = self._search.items(query.side, rows)
        return self._results(query.side, self.reranker.best(value, candidates, rows, query.top))

    def explain(self, image: ImageInput, caption: str) -> Explanation:
        """Explanation of a caption of a picture, or of an image of the index."""
        dataset = self._dataset if isinstance(image, str) else None
        made = explain(
            self.explainer, image, caption, dataset=dataset, exchanges=self.exchanges, maps=False
        )
        return self.check.applied(made) if self.check else made

    @property
    def basis(self) -> str:
        """What the verdicts on captions rest on, in a clause."""
        return self.check.basis if self.check else UNCALIBRATED

    def image_input(
        self, name: str, open_file: Callable[[Path], Image.Image] = open_picture
    ) -> ImageInput:
        """Explainer input of an image in the index: its picture, or the id of its features."""
        self.row(name)
        stored = name in self._dataset_rows and not self.explainer.reads_pixels
        return name if stored else self.picture(name, open_file)

    def picture_file(self, name: str) -> Path | None:
        """File of an image of the index; None if it has none, or the data have its picture."""
        self.row(name)
        row = self._dataset_rows.get(name)
        if row is None or self._dataset is None or self._dataset.pictures is None:
            return self._search.image_path(name)
        pictures = self._dataset.pictures
        return pictures.paths[row] if isinstance(pictures, PictureFiles) else None

    def picture(
        self, name: str, open_file: Callable[[Path], Image.Image] = open_picture
    ) -> Image.Image:
        """Picture of an image of the index."""
        path, row = self.picture_file(name), self._dataset_rows.get(name)
        try:
            if path is not None:
                return open_file(path)
            if row is not None and self._dataset is not None and self._dataset.pictures is not None:
                return self._dataset.pictures.open(row)
        except ValueError:  # its message names the path
            message = f"the picture of {name[:80]!r} cannot be read any more"
            raise HTTPException(404, message) from None
        raise HTTPException(404, f"the index has no picture of {name[:80]!r}, only its vector")

    def thumbnail(self, name: str, longest: int = THUMBNAIL) -> bytes:
        """JPEG of an image of the index, encoded anew so that it carries no metadata."""
        return thumbnail(self.picture(name), longest)

    def _encoded(self, value: QueryInput) -> Embeddings:
        """The vectors of a query."""
        if isinstance(value, int):
            return self._search.stored("image", torch.tensor([value]))
        if isinstance(value, str):
            return encode_query(self._search.model, value).to("cpu").map(_float)
        return self._search.model.encode([value]).to("cpu").map(_float)

    def _refined(self, query: SearchQuery) -> Embeddings:
        """The vector of a query, moved towards and away from its examples; its length stays."""
        encoded = self._encoded(query.value)
        if not query.examples:
            return encoded
        vector = encoded.tokens[:, 0]
        refined: Tensor = normalize(vector, dim=1)
        for rows, weight in ((query.more, MORE), (query.less, -LESS)):
            if rows:
                examples = self._images.vectors(torch.tensor(rows))
                refined = refined + weight * normalize(examples, dim=1).mean(0, keepdim=True)
        return single_vector(normalize(refined, dim=1) * vector.norm())

    def _depth(self, query: SearchQuery) -> int:
        """Number of results to fetch."""
        depth = self.reranker.depth if self.reranker and self.reranks(query) else query.top
        depth += len(query.examples)
        return min(depth, len(self._search.vectors.collection(query.side)))

    def _results(
        self, side: Side, ranking: Sequence[tuple[int, float]]
    ) -> tuple[SearchResult, ...]:
        return tuple(self._result(side, row, score) for row, score in ranking)

    def _result(self, side: Side, row: int, score: float) -> SearchResult:
        entry = self._search.vectors.collection(side).entry(row)
        if side == "image":
            caption, image = next(iter(self._captions[entry.id]), ""), entry.id
        else:
            caption, image = entry.text, entry.image if entry.image in self._rows else ""
        return SearchResult(
            id=entry.id,
            score=score,
            caption=caption,
            image=image,
            columns=dict(self._search.column_values(image)),
            missing=image not in self._dataset_rows and self._search.is_missing(image),
            same=self._search.copies(row) if side == "image" else (),
        )


def _column_infos(images: Collection) -> tuple[ColumnInfo, ...]:
    """The columns of images, with the values of those that have few."""
    infos = []
    for name, column in images.columns.items():
        values = [value for value in column.values if value is not None]
        few = values if len(values) <= MOST_CHOICES else []
        few.sort(key=lambda value: (isinstance(value, str), value))
        date = bool(values) and all(_DATE.match(str(value)) for value in values)
        infos.append(ColumnInfo(name=name, numeric=column.numeric, date=date, values=tuple(few)))
    return tuple(infos)


def index_stamp(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when an index or one of its calibrations is written."""
    stamps: list[tuple[int, int, int] | None] = []
    for name in (INDEX.file, CALIBRATION, HUBNESS, EXCHANGES, CAPTION_CHECK):
        try:
            found = (folder / name).stat()
            stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _float(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def image_transform(model: Model) -> ImageTransform | None:
    """All that a model reads of a picture; None if that is not known."""
    return model.processor and model.processor.image_processor.transform


def _checked(reranker: Reranker, index: SearchIndex) -> Reranker:
    """The reranker with a public name."""
    model, rows = reranker.model, list(index.vectors.images.rows.values())
    if unseen := reranker.unseen(index.items("image", rows)):
        raise ValueError(
            f"{model.name} cannot look at {len(unseen):,} of the {len(rows):,} images of "
            f"{index.folder}, as {unseen[0]!r}: it reads features of the data, or picture files "
            "that the index knows; name data that have all of them, or re-rank with another model"
        )
    return replace(reranker, model=replace(model, name=_public_name(model, index.folder)))


def _public_name(model: Model, index: Path) -> str:
    """Name of a model for clients, without its folder."""
    path = Path(model.name)
    if path.is_relative_to(index):
        return f"the model of {index.resolve().name}"
    return path.name if path.exists() or path.is_absolute() else model.name
