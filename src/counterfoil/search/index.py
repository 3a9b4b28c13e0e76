"""A searchable index: vectors of images and captions together with the model that made them."""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, final, get_args

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.config import parse_choice, unknown_name
from counterfoil.core.console import Lines, progress
from counterfoil.core.io import (
    atomic_folder,
    atomic_write,
    ensure_writable_folder,
    write_lock,
)
from counterfoil.core.resumable import begin_facts, partial_folder
from counterfoil.core.types import Embeddings
from counterfoil.data.dataset import ColumnValue, ImageTextDataset, check_dataset
from counterfoil.data.images import PictureFiles, Pictures
from counterfoil.models.layers.late_interaction import MaxSimModel
from counterfoil.models.layers.pooling import ensure_nonempty, single_vector
from counterfoil.scoring.embedding_store import EmbeddingStore, encode_into
from counterfoil.scoring.encode import (
    EmbeddedDataset,
    LoadRows,
    Side,
    encode_images,
    encode_texts,
    images_in_batches,
    is_inner_product,
    texts_in_batches,
)
from counterfoil.scoring.reducers import NOTHING, rank_keys, rows_of, scores_of, sort_descending
from counterfoil.search.ann import EXACT, check_engine
from counterfoil.search.calibrate import (
    MAX_CAPTIONS,
    MIN_IMAGES,
    Calibration,
    fit_calibration,
    null_rows,
)
from counterfoil.search.changes import (
    DatasetChanges,
    KeptEntry,
    compare_dataset,
    file_stamp,
    image_digests,
    is_missing,
    text_entry,
    without_unreadable_rows,
)
from counterfoil.search.filters import Where, matching, parse_where
from counterfoil.search.hubness import ALPHA, NEAREST, HubnessCorrection, bank_rows
from counterfoil.search.proposals import (
    MaxSimProposals,
    proposed,
    rank_side,
    vocabulary_sentences,
)
from counterfoil.search.query import encode_query, parse_query
from counterfoil.search.rerank import ImageInput, Reranker, RerankItems
from counterfoil.search.vector_index import (
    Collection,
    IndexEntry,
    IndexState,
    NewVectors,
    VectorIndex,
    is_index,
)

if TYPE_CHECKING:
    from counterfoil.evaluation.caption_check import CaptionCheck, HeldOut
    from counterfoil.evaluation.exchanges import WordExchanges
    from counterfoil.model import Model


SearchTarget: TypeAlias = Literal["images", "captions"]
SearchQuery: TypeAlias = str | ImageInput
TARGET_SIDES: dict[SearchTarget, Side] = {"images": "image", "captions": "text"}
TOP_K = 10
IMAGE_FOLDER = "pictures"  # within an index: images that are in no file of their own
# `_write` names images so; the second form is their temporary one
_OWN_IMAGE = re.compile(r"\d{8,}-[0-9a-f]{8}\.png|\.\d{8,}-[0-9a-f]{8}\.png\..*\.part")
_TRIAL = 8  # images and captions that show whether a model can be indexed
_RESUMABLE = 1024  # images and captions whose encoding is worth keeping when it is stopped


@final
@dataclass(frozen=True, slots=True, repr=False)
class SearchHit:
    """One image or caption that a search returns.

    Attributes:
        rank: from 1.
        score: of query and result; higher is better.
        id: of the image or caption.
        image_id: the image's own, or that of the image a caption describes; "" for none.
        captions: all captions of an image, or the one caption.
        path: of the image file, or the name of a rendered image; None where only features exist.
        probability: that an image matches the caption; None where the index is not calibrated, and
            for other queries and results.
        columns: values of the image in the further columns of the data, as album or year.
        missing: whether the image's file is not where it was.
        same: ids of other images of the index with equal contents, for an image; these are no
            results of their own.
    """

    rank: int
    score: float
    id: str
    image_id: str
    captions: tuple[str, ...]
    path: Path | None
    probability: float | None = None
    columns: Mapping[str, ColumnValue] = field(default_factory=dict, hash=False)
    missing: bool = False
    same: tuple[str, ...] = ()

    def __repr__(self) -> str:
        place = self.image_id if self.path is None else str(self.path)
        said = repr(shorten(self.captions[0], 80, placeholder="…")) if self.captions else ""
        if self.id == self.image_id:
            more = f" and {len(self.captions) - 1} more" if len(self.captions) > 1 else ""
            told = f"{place}: {said}{more}" if said else place
        else:
            told = f"{said} of {place}" if place else said
        likely = "" if self.probability is None else f"{100 * self.probability:.0f} % likely"
        facts = [likely, *(f"{name} {value}" for name, value in self.columns.items())]
        facts += ["its file is missing"] if self.missing else []
        facts += [f"equal to {', '.join(self.same[:3])}"] if self.same else []
        known = "; ".join(filter(None, facts))
        return f"{self.rank}. {self.score:.3f}  {told}" + (f" ({known})" if known else "")

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values for JSON, without what is empty."""
        known: dict[str, Any] = {}
        if self.probability is not None:
            known["probability"] = self.probability
        if self.columns:
            known["columns"] = dict(self.columns)
        if self.missing:
            known["missing"] = True
        if self.same:
            known["same"] = list(self.same)
        return {
            "place": self.rank,
            "score": self.score,
            "id": self.id,
            "image": self.image_id,
            "captions": list(self.captions),
            "path": None if self.path is None else str(self.path),
            **known,
        }


@final
@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """The result of adding to an index or deleting from it.

    Attributes:
        images: number of images added or deleted.
        texts: number of texts added or deleted.
        unchanged: images that the index held already.
        replaced: number of added images that replaced an entry with their id.
        relabelled: number of images of which only the columns were updated.
        moved: number of images that were known, in files of another name or place.
        pruned: number of images dropped as their files are gone.
        damaged: number of images dropped as their files can no longer be read.
        gone: number of images that stay although their files are gone.
    """

    images: int
    texts: int
    unchanged: int = 0
    replaced: int = 0
    relabelled: int = 0
    moved: int = 0
    pruned: int = 0
    damaged: int = 0
    gone: int = 0


@final
class SearchIndex:
    """An index and the model that made it; see `open_index` for the arguments.

    Attributes:
        folder: of the index.
        vectors: its images and texts.
    """

    def __init__(
        self, folder: Path, *, model: Model | None = None, reranker: Reranker | None = None
    ) -> None:
        self.folder, self.vectors, self._reranker = folder, VectorIndex(folder), reranker
        self._given_model = model
        self._null: tuple[int, Tensor] | None = None
        self._offsets: dict[Side, tuple[int, Tensor]] = {}
        if model is not None:
            self._check_model(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SearchIndex({str(self.folder)!r}: {self.description})"

    def close(self) -> None:
        """Release files and connections."""
        self.vectors.close()

    @cached_property
    def model(self) -> Model:
        """The model, opened at first use."""
        from counterfoil.model import load_model

        if self._given_model is not None:
            return self._given_model
        try:
            model = load_model(self.model_name)
        except ValueError as error:
            raise ValueError(
                f"the model of {self.folder} cannot be opened ({error}); give the same model, in "
                f"Python by cf.open_index({str(self.folder)!r}, model=MODEL), on the command line "
                "by --model"
            ) from error
        self._check_model(model)
        return model

    @cached_property
    def calibration(self) -> Calibration | None:
        """The fitted map from scores to probabilities; None if `calibrate` was never called."""
        return Calibration.read(self.folder)

    @cached_property
    def hubness(self) -> HubnessCorrection | None:
        """The bank that corrects scores; None if `correct_hubness` was never called."""
        return HubnessCorrection.read(self.folder, self.vectors.state.width)

    @cached_property
    def proposals(self) -> MaxSimProposals | None:
        """What proposes candidates for a multi-vector model; None for other models."""
        return MaxSimProposals.read(self.folder) if self.vectors.state.tokens else None

    def _check_single(self, work: str) -> None:
        if self.proposals is not None:
            raise ValueError(
                f"{self.folder} holds several vectors of an item, and {work} on one of each; use "
                "an index of a model that makes one"
            )

    @property
    def model_name(self) -> str:
        """The name or folder that `load_model` opens."""
        inside = self.folder / self.vectors.state.model
        return str(inside) if inside.is_dir() else self.vectors.state.model

    @property
    def score_name(self) -> str:
        """What a score of a result is, see `RetrievalModel.score_name`."""
        return self._reranker.model.model.score_name if self._reranker else self.vectors.state.score

    @property
    def description(self) -> str:
        """The number of images and captions, in words."""
        return f"{len(self.vectors.images):,} images and {len(self.vectors.texts):,} captions"

    def search(
        self,
        caption: str,
        top_k: int = TOP_K,
        *,
        find: SearchTarget = "images",
        min_probability: float | None = None,
        where: Where | None = None,
    ) -> list[SearchHit]:
        """Find the images, or captions, nearest to a caption.

        Args:
            caption: the query.
            top_k: number of results.
            find: images or captions.
            min_probability: leaves out images less probable to match, possibly all; None for none.
            where: see `search_many`.

        Raises:
            ValueError: as `search_many`; or a probability is asked of an index that is not
                calibrated, of captions, or of re-ranked results.
        """
        if min_probability is not None:
            self.check_probability(min_probability, find)
        hits = self.search_many([caption], top_k, find=find, where=where)[0]
        low = min_probability or 0
        return Lines(hit for hit in hits if hit.probability is None or hit.probability >= low)

    @cached_property
    def exchanges(self) -> WordExchanges | None:
        """Exchanges of words for explanations; None if `calibrate_words` was never called."""
        from counterfoil.evaluation.exchanges import WordExchanges  # a search needs no grammar

        return WordExchanges.read(self.folder)

    def calibrate_words(
        self, dataset: ImageTextDataset, vocabulary: Sequence[str] | None = None
    ) -> WordExchanges:
        """Measure how much exchanges of words gain in true captions, and write it into the index.

        Args:
            dataset: true captions with their images, which the model was not trained on.
            vocabulary: captions whose words are exchanged; by default those of the data set.

        Raises:
            ValueError: as `fit_exchanges` does.
        """
        from counterfoil.evaluation.exchanges import fit_exchanges

        exchanges = fit_exchanges(self.model, dataset, vocabulary=vocabulary)
        if distributed.rank() == 0:
            exchanges.write(self.folder)
        self.__dict__["exchanges"] = exchanges
        return exchanges

    @cached_property
    def caption_check(self) -> CaptionCheck | None:
        """What tells whether a caption fits; None if `calibrate_captions` was never called."""
        from counterfoil.evaluation.caption_check import CaptionCheck

        return CaptionCheck.read(self.folder)

    def calibrate_captions(self, dataset: ImageTextDataset | HeldOut) -> CaptionCheck:
        """Set the scores at which captions fit or do not, and write them into the index.

        Args:
            dataset: captions with their images; of several splits those that the model was not
                trained on are taken, or those that `held_out` has taken.

        Raises:
            ValueError: as `fit_caption_check` does.
        """
        from counterfoil.evaluation.caption_check import fit_caption_check

        check = fit_caption_check(self.model, dataset)
        if distributed.rank() == 0:
            check.write(self.folder)
        self.__dict__["caption_check"] = check
        return check

    def calibrate(self, dataset: ImageTextDataset) -> Calibration:
        """Fit the probability that a found image matches a caption, and write it into the index.

        Args:
            dataset: captions with their images, which the model was not trained on; they need not
                be in the index.

        Raises:
            ValueError: there are too few captions or images.
        """
        self._check_single("probabilities are fitted")
        owned = dataset.relation.owned
        if len(owned) > MAX_CAPTIONS:
            owned = owned[torch.linspace(0, len(owned) - 1, MAX_CAPTIONS).round().long()]
        known = set(dataset.image_ids)
        rows = self.vectors.images.live_rows
        other = [row for row in rows.tolist() if self.vectors.images.entry(row).id not in known]
        everything = DatasetChanges([*range(len(dataset))], owned.tolist())
        images, texts = _encode_rows(self.model, dataset, everything)
        if images is None or texts is None:
            raise ValueError(
                f"{dataset.name} ({dataset.split_name}) has {len(dataset)} images and "
                f"{len(owned)} captions of them; a calibration needs both"
            )
        others = self.vectors.images.vectors(torch.tensor(other, dtype=torch.long))
        matches = torch.zeros(len(owned), len(dataset) + len(other), dtype=torch.bool)
        matches[:, : len(dataset)] = dataset.relation.positive(torch.arange(len(dataset)), owned).T
        extra = dataset.relation.besides
        if extra is not None:
            place = torch.full((len(dataset.texts),), -1)
            place[owned] = torch.arange(len(owned))
            here = place[extra.text] >= 0
            matches[place[extra.text[here]], extra.image[here]] = True
        gallery = torch.cat([images.tokens[:, 0].float().cpu(), others])
        calibration = fit_calibration(texts.tokens[:, 0].float().cpu(), gallery, matches)
        if distributed.rank() == 0:
            calibration.write(self.folder)
        self.__dict__["calibration"] = calibration
        return calibration

    def correct_hubness(
        self, dataset: ImageTextDataset, *, nearest: int = NEAREST, alpha: float = ALPHA
    ) -> HubnessCorrection:
        """Correct hubness with a bank of captions and images, and write it into the index.

        From now on, scores of captions with images are corrected, see
        `counterfoil.search.hubness`; probabilities are of scores as they were.

        Args:
            dataset: captions and images like those of queries, such as the training split.
            nearest: reference queries of an item that count.
            alpha: share of the bias that is subtracted.

        Raises:
            ValueError: the data set has no captions or no images, or a number is out of range.
        """
        self._check_single("hubness is corrected")
        rows = bank_rows(len(dataset)).tolist(), bank_rows(len(dataset.texts)).tolist()
        images, texts = _encode_rows(self.model, dataset, DatasetChanges(*rows))
        none = torch.zeros(0, self.vectors.state.width)
        bank = HubnessCorrection(
            none if texts is None else texts.tokens[:, 0].float().cpu(),
            none if images is None else images.tokens[:, 0].float().cpu(),
            nearest=nearest,
            alpha=alpha,
        )
        known: dict[Side, tuple[Tensor, Tensor]] = {}
        for side in get_args(Side):
            collection = self.vectors.collection(side)
            known[side] = collection.numbers, bank.of_rows(collection, side)
        bank = replace(bank, known=known)
        if distributed.rank() == 0:
            bank.write(self.folder)
        self.__dict__["hubness"] = bank
        self._offsets.clear()
        return bank

    def search_image(
        self,
        image: SearchQuery,
        top_k: int = TOP_K,
        *,
        find: SearchTarget = "captions",
        where: Where | None = None,
    ) -> list[SearchHit]:
        """Find the captions, or images, nearest to a PIL image or the image file of a path."""
        query = Path(image) if isinstance(image, str) else image
        return self.search_many([query], top_k, find=find, where=where)[0]

    def search_id(
        self,
        item_id: str,
        top_k: int = TOP_K,
        *,
        find: SearchTarget | None = None,
        where: Where | None = None,
    ) -> list[SearchHit]:
        """Find the items nearest to an image or a caption of the index, without itself.

        Args:
            item_id: its id.
            top_k: number of results.
            find: images or captions; by default the other modality.
            where: see `search_many`.

        Raises:
            ValueError: the index has no such id, or `where` names no column of it.
        """
        side, row = self.locate(item_id)
        find = find or ("captions" if side == "image" else "images")
        self._check_target(find)
        itself = [row] if TARGET_SIDES[find] == side else []
        query, items = self.stored(side, torch.tensor([row])), [self.items(side, [row])]
        return self._hits(query, items, top_k, find, exclude=itself, where=where)[0]

    def search_many(
        self,
        queries: Sequence[SearchQuery],
        top_k: int = TOP_K,
        *,
        find: SearchTarget,
        where: Where | None = None,
    ) -> list[list[SearchHit]]:
        """Search with several captions, or several images, at once.

        Args:
            queries: all captions (str), or all images (PIL images or `Path`). Words and quoted
                phrases behind a minus, as in ``cat -cartoon``, are what a caption does not want.
            top_k: number of results for each.
            find: images or captions.
            where: conditions on the columns of the images, or of the images that captions describe,
                all of which must hold: texts such as ``year>=2020``, see
                `counterfoil.search.filters`, or a mapping from columns to values. Filtered search
                is exact with every backend. Probabilities are those without the filter.

        Raises:
            ValueError: a caption is empty, an image cannot be read, the model reads no captions or
                no images, the index holds nothing of the kind, or `where` names no column of it.
        """
        self._check_target(find)
        for query in queries:
            _warn_of_query(self.model, query)
        if any(isinstance(query, str) and parse_query(query)[1] for query in queries):
            captions = [query for query in queries if isinstance(query, str)]
            encoded = Embeddings.cat([encode_query(self.model, caption) for caption in captions])
        else:
            encoded = self.model.encode(list(queries))
        items = [RerankItems.from_query(query) for query in queries]
        return self._hits(encoded, items, top_k, find, where=where)

    def add(
        self,
        dataset: ImageTextDataset,
        *,
        replace: bool = False,
        prune: bool = False,
        skip_unreadable: bool = False,
        workers: int = 0,
    ) -> IndexUpdate:
        """Add the images and captions that are new or have changed, in one commit.

        See `counterfoil.search.changes.compare_dataset` for what counts as a change. A picture
        that was moved or renamed keeps its vector.

        Args:
            dataset: the data set; pictures beside its table are taken, too.
            replace: whether different images replace the entries with their ids.
            prune: whether entries go whose files are gone.
            skip_unreadable: leave out pictures that cannot be read, with a warning; the entries of
                files that were damaged since go.
            workers: threads that decode pictures; 0 for none but this one.

        Raises:
            ValueError: there are such images and `replace` is false, all files of the index are
                gone or damaged, the model cannot encode the data, or another process writes.
        """
        dataset = dataset.with_unlisted()
        # from before the long work: of two additions the second is refused at once
        with distributed.on_rank_0(self.vectors.writing()):
            changes = compare_dataset(dataset, self.vectors, replace=replace, prune=prune)
            if skip_unreadable:
                changes = without_unreadable_rows(dataset, changes, self.vectors)
            if changes.any:
                self._apply(dataset, changes, workers)
        distributed.barrier()
        added, known = len(changes.images), len(changes.relabelled) + len(changes.moved)
        return IndexUpdate(
            added,
            len(changes.texts),
            len(dataset) - added - known - changes.unreadable,
            len(changes.replaced_images),
            relabelled=len(changes.relabelled),
            moved=len(changes.moved),
            pruned=len(changes.pruned),
            damaged=len(changes.damaged),
            gone=len(changes.gone),
        )

    def _apply(self, dataset: ImageTextDataset, changes: DatasetChanges, workers: int) -> None:
        """Encode and commit changes."""
        known = self.model, self.vectors.state.identity
        work = _encode(*known, dataset, changes, self.proposals, self.folder, workers)
        with work as (images, texts, _):
            if distributed.rank() == 0:
                try:
                    _write(self.vectors, dataset, changes, images, texts)
                finally:
                    self._remove_unused_images()

    def delete(self, item_ids: Sequence[str]) -> IndexUpdate:
        """Delete images with their captions, or single captions, in one commit.

        Raises:
            ValueError: an id is not in the index; then nothing is deleted.
        """
        images: set[int] = set()
        texts: set[int] = set()
        for item_id in item_ids:
            side, row = self.locate(item_id)
            if side == "image":
                images.add(row)
                texts |= set(self.vectors.texts.rows_by_image.get(item_id, ()))
            else:
                texts.add(row)
        with self.vectors.writing():
            self.vectors.change(remove_images=sorted(images), remove_texts=sorted(texts))
            self._remove_unused_images()
        return IndexUpdate(len(images), len(texts))

    def locate(self, item_id: str) -> tuple[Side, int]:
        """Modality and row of an id; a `ValueError` if the index has no such id."""
        for side in get_args(Side):
            row = self.vectors.collection(side).rows.get(item_id)
            if row is not None:
                return side, row
        known = [*self.vectors.images.rows][:3] + [*self.vectors.texts.rows][:2]
        raise ValueError(
            f"{unknown_name(item_id, known, f'an id of {self.folder}')[:-1]}, …; it holds "
            f"{self.description}"
        )

    def image_path(self, image_id: str) -> Path | None:
        """Path of an image file; None if the index knows none."""
        row = self.vectors.images.rows.get(image_id)
        return None if row is None else self._path(row)

    def captions(self, image_id: str) -> tuple[str, ...]:
        """All captions of an image."""
        texts = self.vectors.texts
        return tuple(texts.text(row) for row in texts.rows_by_image.get(image_id, ()))

    def column_values(self, image_id: str) -> Mapping[str, ColumnValue]:
        """Values of an image in the further columns of its data; {} of an unknown one."""
        row = self.vectors.images.rows.get(image_id)
        return {} if row is None else self.vectors.images.entry(row).columns

    def items(self, side: Side, rows: Sequence[int]) -> RerankItems:
        """Images or captions by row, for a re-ranker."""
        entries = [self.vectors.collection(side).entry(row) for row in rows]
        ids = tuple(entry.id for entry in entries)
        if side == "text":
            return RerankItems(side, ids, texts=tuple(entry.text for entry in entries))
        return RerankItems(side, ids, images=tuple(self._path(row) for row in rows))

    def stored(self, side: Side, rows: Tensor) -> Embeddings:
        """The vectors of (n,) rows, as queries."""
        collection = self.vectors.collection(side)
        if self.proposals is not None:
            return collection.bags(rows)
        return single_vector(collection.vectors(rows))

    def rank(
        self,
        queries: Embeddings,
        side: Side,
        count: int,
        *,
        exclude: Sequence[int] = (),
        cross_modal: bool = False,
        only: Tensor | None = None,
    ) -> list[list[tuple[int, float]]]:
        """The `count` best rows of a modality and their scores, for each of Q encoded queries.

        For a multi-vector model, `counterfoil.search.proposals` chooses rows, of which the model
        computes the scores.

        Args:
            queries: items of either modality.
            side: modality of the results.
            count: number of results.
            exclude: the row that each query leaves out; () for none.
            cross_modal: whether the queries are of the other modality, whose scores are corrected
                where the index has a bank.
            only: (R,) bool, the rows that may be found, see `matching`; None for all.
        """
        if only is not None and not bool(only.any()):
            return [[] for _ in range(len(queries))]
        collection, wanted = self.vectors.collection(side), count + bool(exclude)
        skip = exclude or [-1] * len(queries)  # -1 stands for no row
        while True:
            if self.proposals is None:
                offsets = self._hubness_offsets(side) if cross_modal else None
                vectors = queries.tokens[:, 0]
                rows, scores = collection.search(vectors, wanted, offsets=offsets, only=only)
            else:
                rows, scores = self._rank_bags(self.proposals, queries, side, wanted, only)
            found = [
                _without_copies(collection, zip(own_rows, own_scores), own, only)
                for own, own_rows, own_scores in zip(
                    skip, rows.tolist(), scores.tolist(), strict=True
                )
            ]
            short = torch.tensor([len(ranking) < count for ranking in found])
            # more can be found where copies alone made it short
            if wanted >= len(collection) or not bool((short & (rows >= 0).all(1)).any()):
                return [ranking[:count] for ranking in found]
            wanted = min(2 * wanted, len(collection))

    @torch.inference_mode()
    def _rank_bags(
        self,
        proposals: MaxSimProposals,
        queries: Embeddings,
        side: Side,
        count: int,
        only: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """(Q, count) rows and exact scores of the best of the proposed rows, as `search` does."""
        network, collection = self.model.model, self.vectors.collection(side)
        assert isinstance(network, MaxSimModel)
        vectors = (proposals.text_vectors if side == "image" else proposals.image_vectors)(queries)
        candidates, _ = collection.search(vectors, proposed(len(collection), count), only=only)
        keys = []
        for place, rows in enumerate(candidates.unbind()):
            rows = rows[rows >= 0].sort().values
            query = queries.rows(slice(place, place + 1)).to("cpu")
            scores = rank_side(side, collection.bags(rows), query, network)
            best = sort_descending(rank_keys(scores, rows).unsqueeze(0))[:, :count]
            keys.append(torch.nn.functional.pad(best, (0, count - best.shape[1]), value=NOTHING))
        found = torch.cat(keys)
        return rows_of(found), scores_of(found)

    def _hits(
        self,
        encoded: Embeddings,
        queries: Sequence[RerankItems],
        top_k: int,
        find: SearchTarget,
        *,
        exclude: Sequence[int] = (),
        where: Where | None = None,
    ) -> list[list[SearchHit]]:
        side, reranker = TARGET_SIDES[find], self._reranker
        if reranker is not None:
            reranker.check(top_k)
        count = min(
            top_k if reranker is None else reranker.depth, len(self.vectors.collection(side))
        )
        cross_modal = queries[0].side != side if queries else False
        only = self.matching(where, side)
        rankings = self.rank(
            encoded, side, count, exclude=exclude, cross_modal=cross_modal, only=only
        )
        hits = []
        for number, (query, ranking) in enumerate(zip(queries, rankings)):
            if reranker is not None:
                first = [row for row, _ in ranking]
                ranking = reranker.best(query, self.items(side, first), first, top_k)
            results = [self._hit(side, row, score, n) for n, (row, score) in enumerate(ranking, 1)]
            if side == "image" and query.side == "text" and reranker is None:
                scores = self.plain_scores(side, ranking)
                values = self.probabilities(encoded.tokens[number, 0], scores)
                results = [replace(hit, probability=p) for hit, p in zip(results, values)]
            hits.append(results)
        return [Lines(found) for found in hits]

    def matching(self, where: Where | None, side: Side) -> Tensor | None:
        """(R,) bool, the rows of a modality that a filter lets through; None for no filter.

        A caption has the columns of its image.

        Raises:
            ValueError: a condition is none, or names no column of the index.
        """
        images = self.vectors.images
        conditions = parse_where(where, list(images.columns) if where else ())
        if not conditions:
            return None
        mask = matching(conditions, images.columns, len(images.numbers)) & images.alive
        if side == "image":
            return mask
        passing = torch.cat([mask, torch.tensor([False])])  # the last for captions of no image
        return passing[self.vectors.image_of_text()] & self.vectors.texts.alive

    def probabilities(self, caption: Tensor, scores: Sequence[float]) -> list[float | None]:
        """Probability that images with these scores match a caption of this (D,) vector.

        Each is None where the index is not calibrated or holds too few images.
        """
        size, calibration = len(self.vectors.images), self.calibration
        if calibration is None or size < MIN_IMAGES:
            return [None] * len(scores)
        null = caption.detach().cpu().float().unsqueeze(0) @ self._null_vectors().T
        values: list[float | None] = []
        values += calibration.probabilities(torch.tensor([list(scores)]), null, size)[0].tolist()
        return values

    def plain_scores(self, side: Side, ranking: Sequence[tuple[int, float]]) -> list[float]:
        """Scores of rows and corrected scores of a modality, as they were before correction."""
        offsets = self._hubness_offsets(side)
        return [score if offsets is None else score - float(offsets[row]) for row, score in ranking]

    def _hubness_offsets(self, side: Side) -> Tensor | None:
        """(R,) offsets of the rows of a modality, computed once for every state; None for none."""
        if self.hubness is None:
            return None
        writes = self.vectors.state.writes
        if side not in self._offsets or self._offsets[side][0] != writes:
            offsets = self.hubness.of_rows(self.vectors.collection(side), side)
            self._offsets[side] = writes, offsets
        return self._offsets[side][1]

    def _null_vectors(self) -> Tensor:
        """(N, D) vectors of images that make null distributions, read once for every state."""
        if self._null is None or self._null[0] != self.vectors.state.writes:
            live = self.vectors.images.live_rows
            vectors = self.vectors.images.vectors(live[null_rows(len(live))])
            self._null = self.vectors.state.writes, vectors
        return self._null[1]

    def _hit(self, side: Side, row: int, score: float, rank: int) -> SearchHit:
        entry = self.vectors.collection(side).entry(row)
        if side == "image":
            captions = self.captions(entry.id)
            image_id, image = entry.id, row
        else:
            captions, image_id = (entry.text,), entry.image
            image = self.vectors.images.rows.get(image_id, -1)
        columns, missing = self.column_values(image_id), self.is_missing(image_id)
        path = self.image_path(image_id)
        return SearchHit(
            *(rank, score, entry.id, image_id, captions, path),
            columns=columns,
            missing=missing,
            same=self.copies(image) if side == "image" else (),
        )

    def is_missing(self, image_id: str) -> bool:
        """Return True for an image of the index whose file is not where it was."""
        row = self.vectors.images.rows.get(image_id)
        return row is not None and is_missing(self.vectors.images.entry(row))

    def copies(self, row: int) -> tuple[str, ...]:
        """Ids of the other images whose contents are those of the image of a row."""
        images = self.vectors.images
        rows = images.copies.get(row, ())
        return tuple(images.entry(other).id for other in rows if other != row)

    def _path(self, row: int) -> Path | None:
        place = self.vectors.images.entry(row).place
        return self.folder / place if place else None

    def _remove_unused_images(self) -> None:
        """Remove image files in the index that no entry names.

        Deleted entries leave them, and so do killed, failed and refused additions. An index may
        be untrusted: links are not followed, and files of other names are left alone.
        """
        folder = self.folder / IMAGE_FOLDER
        if folder.is_symlink() or not folder.is_dir():
            return
        images = self.vectors.images
        used = {Path(images.entry(row).place).name for row in images.live_rows.tolist()}
        for path in folder.iterdir():
            if _OWN_IMAGE.fullmatch(path.name) and path.name not in used:
                path.unlink(missing_ok=True)

    def _check_target(self, find: SearchTarget) -> None:
        parse_choice(TARGET_SIDES, find, "something to find")
        if not len(self.vectors.collection(TARGET_SIDES[find])):
            raise ValueError(f"{self.folder} holds {self.description}; there are no {find} to find")

    def check_probability(self, least: float, find: SearchTarget) -> None:
        """Raise a `ValueError` for results without probabilities, or a number outside 0 to 1."""
        if not 0 <= least <= 1:
            raise ValueError(f"the lowest probability is {least}; give a number from 0 to 1")
        if find != "images" or self._reranker is not None:
            raise ValueError(
                "probabilities are those of images found by a caption, without a re-ranker; leave "
                "the lowest probability out, or search for images by a caption"
            )
        if len(self.vectors.images) < MIN_IMAGES:
            raise ValueError(
                f"{self.folder} holds {self.description}, and probabilities need {MIN_IMAGES} "
                "images; leave the lowest probability out"
            )
        if self.calibration is None:
            raise ValueError(
                f"{self.folder} is not calibrated, so that its scores have no probabilities; "
                f"calibrate it with `counterfoil index --output {self.folder} --calibrate DATA`"
            )

    def _check_model(self, model: Model) -> None:
        """Refuse a model whose vectors cannot be compared with those of the index."""
        if model.identity() != self.vectors.state.identity:
            raise ValueError(
                f"{self.folder} was made with {self.model_name}, and {model.name} is "
                "another model or was trained on since: their vectors cannot be compared; search "
                "with the model of the index, or make an index with this one"
            )


def _without_copies(
    collection: Collection, ranking: Iterable[tuple[int, float]], own: int, only: Tensor | None
) -> list[tuple[int, float]]:
    """A ranking in which equal pictures stand once, by one whose file is there.

    Rows of -1 and the query's own are left out; `only` are the rows that may be found.
    """
    found: dict[int, tuple[int, float]] = {}
    for row, score in ranking:
        if row in (-1, own):
            continue
        equal = collection.copies.get(row, (row,))
        if equal[0] not in found:
            may = (n for n in equal if n != own and (only is None or bool(only[n])))
            there = (n for n in may if not is_missing(collection.entry(n)))
            found[equal[0]] = (row if len(equal) == 1 else next(there, row)), score
    return [*found.values()]


def open_index(
    folder: str | Path,
    *,
    model: str | Path | Model | None = None,
    rerank: Reranker | None = None,
) -> SearchIndex:
    """Open an index for searching.

    Args:
        folder: of the index, made by `build_index` or ``counterfoil index``.
        model: encodes queries; by default the one that the index names.
        rerank: re-ranks the first results.

    Raises:
        ValueError: there is no index, it is damaged, or another model made it.
    """
    from counterfoil.model import as_model

    opened = None if model is None else as_model(model)
    return SearchIndex(Path(folder), model=opened, reranker=rerank)


def build_index(
    model: Model,
    dataset: ImageTextDataset,
    folder: str | Path,
    *,
    backend: str = EXACT,
    address: str = "",
    half: bool = False,
    workers: int = 0,
) -> SearchIndex:
    """Build an index of all images and captions of a data set.

    A killed build leaves no index. What it has encoded of a large data set stays in FOLDER.partial,
    and the next build with the same model and data goes on from there. A model folder is copied
    into the index; any other model is stored by name.

    Args:
        model: encodes each item as one vector, or as several that MaxSim compares.
        dataset: the data set; pictures beside its table are taken, too.
        folder: of the index; must not exist yet.
        backend: what searches the vectors: "exact", or an engine, such as "faiss-hnsw".
        address: of the engine's server; "" for a file in the index.
        half: store the vectors in float16.
        workers: threads that decode pictures; 0 for none but this one.

    Raises:
        ValueError: the folder exists, the data set is empty, the model cannot be indexed, there is
            no such backend, or FOLDER.partial is of another model or other data.
    """
    check_dataset(dataset, "the index of data")
    from counterfoil.model import as_model

    model = as_model(model)
    folder, dataset = Path(folder), dataset.with_unlisted()
    model.check_named("an index")
    check_engine(backend, address)
    if folder.exists():
        content = "an index; --add adds to it" if is_index(folder) else "something else"
        raise ValueError(f"{folder} exists and holds {content}; name a new folder")
    ensure_writable_folder(folder)
    distributed.barrier()  # rank 0 must not create the folder before the others have checked it
    if not len(dataset):
        raise ValueError(
            f"{dataset.name} ({dataset.split_name}) has no images; there is nothing to index"
        )
    everything = DatasetChanges([*range(len(dataset))], [*range(len(dataset.texts))])
    lock = write_lock(folder.with_name(f".{folder.name}.lock"), folder)
    identity = model.identity()
    work = _encode(model, identity, dataset, everything, None, folder, workers)
    with distributed.on_rank_0(lock), work as (images, texts, proposals):
        if distributed.rank() == 0:
            assert images is not None
            with atomic_folder(folder) as temporary:
                state = IndexState(
                    identity=identity,
                    model=_stored_model(model, temporary),
                    width=images.vectors.shape[1],
                    tokens=0 if images.bags is None else images.bags.tokens.shape[2],
                    backend=backend,
                    address=address,
                    half=half,
                    score=model.model.score_name,
                )
                if proposals is not None:
                    proposals.write(temporary)
                vectors = VectorIndex.create(temporary, state)
                try:
                    _write(vectors, dataset, everything, images, texts)
                finally:
                    vectors.close()
    distributed.barrier()
    index = SearchIndex(folder)
    index._given_model = model  # which need not be compared again
    return index


def _warn_of_query(model: Model, query: SearchQuery) -> None:
    if isinstance(query, str) and model.processor:
        model.processor.warn_of_query(parse_query(query)[0])


def search_dataset(
    model: Model, query: SearchQuery, dataset: ImageTextDataset, top_k: int = TOP_K
) -> list[SearchHit]:
    """Rank the images of a data set for a caption, or its captions for an image, with any model.

    Everything is encoded and scored, so the model need not make one vector of an item.

    Args:
        model: scores each pair.
        query: a caption (str), or a PIL image or `Path`.
        dataset: the data set.
        top_k: number of results.

    Raises:
        ValueError: the model cannot encode the query, or the data set lacks images or captions.
    """
    from counterfoil.scoring.reducers import TopK
    from counterfoil.scoring.stream import stream_scores

    _warn_of_query(model, query)
    encoded, member = model.encode([query]), model.embed(dataset)
    if isinstance(query, str):
        member = EmbeddedDataset(model.model, member.images, encoded)
        best = TopK("text", 1, min(top_k, len(dataset)))
    else:
        member = EmbeddedDataset(model.model, encoded, member.texts)
        best = TopK("image", 1, min(top_k, len(dataset.texts)))
    stream_scores([member], [best])

    def hit(rank: int, row: int, score: float) -> SearchHit:
        image = row if isinstance(query, str) else int(dataset.text_to_image[row])
        texts = [row]
        if isinstance(query, str):
            texts = (dataset.text_to_image == image).nonzero().flatten().tolist()
        image_id = dataset.image_ids[image] if image >= 0 else ""
        place = dataset.pictures.place(image) if dataset.pictures and image >= 0 else ""
        return SearchHit(
            rank,
            score,
            image_id if isinstance(query, str) else dataset.text_ids[row],
            image_id,
            tuple(dataset.texts[text] for text in texts),
            Path(place) if place else None,
        )

    ranking = zip(best.rows[0].tolist(), best.scores[0].tolist())
    return Lines(hit(rank, row, score) for rank, (row, score) in enumerate(ranking, 1))


@contextmanager
def _encode(
    model: Model,
    identity: str,
    dataset: ImageTextDataset,
    rows: DatasetChanges,
    proposals: MaxSimProposals | None,
    folder: Path,
    workers: int,
) -> Iterator[tuple[NewVectors | None, NewVectors | None, MaxSimProposals | None]]:
    """New images, whose entries lack the place and are complete on rank 0 only, and new texts.

    For a multi-vector model also its proposals, which are fitted where none are given. Encodings of
    many items stay beside the index's folder until the block, which writes the index, has ended.
    """
    trial = replace(rows, images=rows.images[:_TRIAL], texts=rows.texts[:_TRIAL])
    if len(rows.images) + len(rows.texts) > _RESUMABLE:
        _encode_rows(model, dataset, trial)  # refuse an unfit model before the long work
    image_entries = []
    if distributed.rank() == 0:  # before encoding, and the stamp first: any later change is noticed
        with progress("pictures noted", len(rows.images)) as advance:
            digests = image_digests(dataset, rows.images)
            for row in rows.images:
                stamp = file_stamp(dataset, row)
                content = next(digests)
                image_id, columns = dataset.image_ids[row], dataset.column_values(row)
                image_entries.append(
                    IndexEntry(image_id, content=content, stamp=stamp, columns=columns)
                )
                advance(1)
    text_entries = [text_entry(dataset, row) for row in rows.texts]
    partial = None
    if len(rows.images) + len(rows.texts) > _RESUMABLE:
        partial = partial_folder(folder)
        contents = _digest(entry.content for entry in image_entries)
        facts = {
            "model": identity,
            "images": str(distributed.gather_objects(contents)[0]),  # rank 0 alone has noted them
            "captions": _digest(entry.text for entry in text_entries),
        }
        begin_facts(partial, facts)
    images, texts = _encode_rows(model, dataset, rows, partial, workers)
    network = model.model
    some = images is not None or texts is not None
    if isinstance(network, MaxSimModel) and some and proposals is None:
        known = vocabulary_sentences(model) if texts is None else texts
        proposals = MaxSimProposals.fit(network, images, known)
    yield (
        _new_vectors(image_entries, images, proposals and proposals.image_vectors),
        _new_vectors(text_entries, texts, proposals and proposals.text_vectors),
        proposals,
    )
    if partial is not None and distributed.rank() == 0:
        shutil.rmtree(partial)


def _digest(words: Iterable[str]) -> str:
    """Sixteen hex digits."""
    return hashlib.sha256("\x00".join(words).encode()).hexdigest()[:16]


def _new_vectors(
    entries: Sequence[IndexEntry],
    items: Embeddings | None,
    propose: Callable[[Embeddings], Tensor] | None,
) -> NewVectors | None:
    if items is None:
        return None
    if propose is None:
        return NewVectors(entries, items.tokens[:, 0].float())
    return NewVectors(entries, propose(items), ensure_nonempty(items))


def _encode_rows(
    model: Model,
    dataset: ImageTextDataset,
    rows: DatasetChanges,
    partial: Path | None = None,
    workers: int = 0,
) -> tuple[Embeddings | None, Embeddings | None]:
    """Images and texts with one vector each; None for none. What is in `partial` is taken."""
    subset = dataset.cut(
        torch.tensor(rows.images, dtype=torch.long),
        torch.tensor(rows.texts, dtype=torch.long),
        torch.full((len(rows.texts),), -1),
    )
    inputs, network = model.process(subset), model.model

    def encoded(side: Side, load: LoadRows, count: int) -> Embeddings | None:
        if not count:
            return None
        if partial is None:
            return (encode_images if side == "image" else encode_texts)(network, load, count)
        encode = images_in_batches if side == "image" else texts_in_batches
        encode_into(partial / side, encode, network, load, count)
        return EmbeddingStore(partial / side, count).rows(torch.arange(count))

    images = encoded("image", lambda rows: inputs.images_once(rows, workers), len(subset))
    texts = encoded("text", inputs.texts, len(subset.texts))
    check_single_vectors(model, images, texts)
    return images, texts


def check_single_vectors(model: Model, images: Embeddings | None, texts: Embeddings | None) -> None:
    """Raise a `ValueError` for a model whose score is no inner product of one vector per item."""
    if isinstance(model.model, MaxSimModel):
        return  # several vectors, of which `counterfoil.search.proposals` makes one
    for encoded in (images, texts):
        if encoded is not None and (encoded.tokens.shape[1] != 1 or encoded.gram is not None):
            raise ValueError(
                f"{model.name} does not make one vector of an image or a caption, and an index "
                "holds one for each item; make the index with a model that does, as vsepp or "
                "CLIP, and re-rank with this one: `counterfoil search INDEX QUERY --rerank "
                f"{model.name}`"
            )
    if images is None or texts is None:
        return
    if not is_inner_product(model.model, images, texts):
        raise ValueError(
            f"{model.name} does not compare images and captions by inner product, which is what an "
            "index is searched by; make the index with a model that does, and re-rank with this one"
        )


def _write(
    index: VectorIndex,
    dataset: ImageTextDataset,
    rows: DatasetChanges,
    images: NewVectors | None,
    texts: NewVectors | None,
) -> None:
    """Commit encoded changes; images that are in no file of their own are written first."""
    if images is not None:
        unique = secrets.token_hex(4)  # another process may be adding images of the same numbers
        numbered = enumerate(zip(rows.images, images.entries), index.state.images.next)
        entries = []
        for number, (row, entry) in numbered:
            name = f"{number:08d}-{unique}.png"
            place = _image_place(dataset.pictures, row, index.folder, name)
            replaced = index.images.rows.get(entry.id)
            if not dataset.columns and replaced is not None:  # data without any leave the known
                entry = replace(entry, columns=index.images.entry(replaced).columns)
            entries.append(replace(entry, place=place) if place else entry)
        images = replace(images, entries=entries)
    kept = [*rows.relabelled, *rows.moved]
    index.change(
        images=_with_kept(index.images, kept, images),
        texts=_with_kept(index.texts, rows.moved_texts, texts),
        remove_images=[
            *rows.replaced_images,
            *rows.pruned,
            *rows.damaged,
            *(row for row, _ in kept),
        ],
        remove_texts=[*rows.replaced_texts, *(row for row, _ in rows.moved_texts)],
    )


def _with_kept(
    collection: Collection, kept: Sequence[KeptEntry], new: NewVectors | None
) -> NewVectors | None:
    """New items, and those that keep the vectors of their rows under another entry."""
    if not kept:
        return new
    rows = torch.tensor([row for row, _ in kept])
    same = NewVectors(
        [entry for _, entry in kept],
        collection.vectors(rows),
        collection.bags(rows) if collection.tokens else None,
    )
    if new is None:
        return same
    bags = [one.bags for one in (new, same) if one.bags is not None]
    return NewVectors(
        [*new.entries, *same.entries],
        torch.cat([new.vectors.cpu(), same.vectors]),
        Embeddings.cat([one.to("cpu") for one in bags]) if bags else None,
    )


def _image_place(pictures: Pictures | None, row: int, folder: Path, name: str) -> str:
    """Path of an image; one that is in no file is written into the index."""
    if pictures is None:
        return ""
    if isinstance(pictures, PictureFiles):
        return str(pictures.paths[row].resolve())
    if (folder / IMAGE_FOLDER).is_symlink():
        raise ValueError(f"{folder / IMAGE_FOLDER} is a link, which is not followed; remove it")
    with atomic_write(folder / IMAGE_FOLDER / name) as temporary:
        pictures.open(row).save(temporary, format="png")
    return f"{IMAGE_FOLDER}/{name}"


def _stored_model(model: Model, folder: Path) -> str:
    """Copy a model folder into an index; the name of any other model."""
    from counterfoil.model import MODEL
    from counterfoil.saved import CARD

    source = Path(model.name)
    if not source.is_dir():
        return model.name
    if model.card is None:  # a pretrained model, which can be large
        return str(source.resolve())
    shutil.copytree(source if (source / CARD).is_file() else source / MODEL, folder / MODEL)
    return MODEL
