"""Mine offline hard negatives: the hardest wrong counterparts over the whole data set.

`mine_hard_negatives` takes a model and a data set and returns ranked lists. It is built on
`mine_lists` (all pairs in float32), `mine_half_precision` (all pairs in bfloat16, few again in
float32, the same lists) and `rerank_proposals` (an embedding model proposes, a slower one decides).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack, final
from zlib import crc32

import torch
from torch import Tensor

from counterfoil.core.config import parse_literal
from counterfoil.core.types import Precision
from counterfoil.data.contents import ContentDigests
from counterfoil.data.dataset import ImageTextDataset, check_dataset
from counterfoil.model import Model, as_models
from counterfoil.negatives.filters import (
    FilterConfig,
    FilteredReducer,
    NegativeFilters,
    check_encoder,
    filters_of,
)
from counterfoil.negatives.store import (
    MOST,
    TO_IMAGE,
    Direction,
    Form,
    HardNegativeLists,
    NegativeStore,
)
from counterfoil.scoring.checkpoint import EVERY, Fact, StreamCheckpoint
from counterfoil.scoring.embedding_store import model_digest
from counterfoil.scoring.encode import EmbeddedDataset, ScoreTile, Side, device_of
from counterfoil.scoring.pairs import PAIRS, RescoredPairs, best_in_parts, score_index_pairs
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import MEMORY, ScoreReducer, stream_scores

IVF: Final = "ivf"  # in place of a proposing model
_QUERIES = 2**16  # whose proposals are looked at together


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HardNegatives:
    """Mined hard negatives and the data set whose rows they list.

    Attributes:
        store: ranked lists and their provenance.
        dataset: the images and captions.
    """

    store: NegativeStore
    dataset: ImageTextDataset

    @property
    def lists(self) -> HardNegativeLists:
        """Ranked texts of every image and images of every text, as rows of the data set."""
        return self.store.lists

    def save(self, folder: str | Path) -> None:
        """Write a folder of mined negatives, which training and `counterfoil export` read.

        Raises:
            ValueError: something else is there.
        """
        self.store.save(Path(folder))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each true pair, with the hard captions of its image, hardest first.

        The columns are image_id, caption, negatives (captions) and scores. Captions of data that
        have vectors only are given by their ids.
        """
        names = [text or name for text, name in zip(self.dataset.texts, self.dataset.text_ids)]
        texts, scores = self.lists.texts, self.lists.text_scores
        assert scores is not None
        for text, image in enumerate(self.dataset.text_to_image.tolist()):
            if image < 0:
                continue
            negatives = [row for row in texts[image].tolist() if row >= 0]
            yield {
                "image_id": self.dataset.image_ids[image],
                "caption": names[text],
                "negatives": [names[row] for row in negatives],
                "scores": scores[image, : len(negatives)].tolist(),
            }

    def to_dataset(
        self,
        form: Form = "triplet",
        direction: Direction | Literal["both"] = TO_IMAGE,
        *,
        images: bool = True,
        most: int = MOST,
    ) -> Any:
        """Return a `datasets.Dataset` that sentence-transformers' and other trainers read as it is.

        A query is a caption, or with "image-to-text" an image; its true counterparts are positives.
        Pictures that are in no file of their own are written into the cache.

        Args:
            form: "triplet", a row for each query, positive and negative (columns anchor, positive,
                negative); "n-tuple", a row for each query and positive (anchor, positive,
                negative_1 to negative_n; queries with shorter lists are left out); "labeled-pair",
                a row for each pair (anchor, candidate, label: 1 for true ones, 0 for negatives).
            direction: "text-to-image", "image-to-text", or "both" for a `datasets.DatasetDict` of
                the two, as a column holds either captions or pictures.
            images: images as pictures; False for their ids.
            most: negatives of a query, hardest first.

        Raises:
            ValueError: an unknown form or direction, no negative, no pictures, or `datasets` is
                not installed.
        """
        from counterfoil.negatives.tables import training_tables

        return training_tables(
            self.dataset, self.lists, form=form, direction=direction, images=images, most=most
        )

    def __repr__(self) -> str:
        filters = "; ".join(self.store.manifest.filters) or "none"
        lines = [
            f"HardNegatives({self.dataset.name}, {self.store.manifest.split}: "
            f"{self.lists.describe()}; filters: {filters})"
        ]
        if first := next(self.rows(), None):
            hardest = ", ".join(
                f"{caption!r} ({score:.3f})"
                for caption, score in zip(first["negatives"][:3], first["scores"])
            )
            lines.append(f"  {first['image_id']}: {first['caption']!r}, not {hardest or 'any'}")
        lines += (f"  {line}" for line in self.store.manifest.summary())
        return "\n".join(lines)


def mine_hard_negatives(
    model: Model | str | Sequence[Model | str],
    dataset: ImageTextDataset,
    *,
    texts_per_image: int = 100,
    images_per_text: int = 20,
    filters: FilterConfig | Mapping[str, Any] | None = None,
    guides: Sequence[Model | str] = (),
    precision: Precision = "fp32",
    checkpoint: str | Path | None = None,
    device: torch.device | str | None = None,
) -> HardNegatives:
    """Mine the hardest wrong captions of every image and wrong images of every caption.

    Every image is scored with every caption; see `mine_lists`.

    Args:
        model: the model, or the name of one; the mean score of several counts.
        dataset: the split to mine, as ``load_dataset("flickr8k/").split("train")``. A text that
            says what a caption of the image says is never listed, unless this is
            ``dataset.with_positives("id")``.
        texts_per_image: captions listed for an image, at most.
        images_per_text: images listed for a caption, at most.
        filters: pairs to leave out because they may be true, as ``{"captions": 0.5, "skip": 2}``
            or a `counterfoil.negatives.filters.FilterConfig`, which tells all of them; only true
            pairs by default.
        guides: models whose scores limit the negatives too, for the filter "guided".
        precision: "fp32", or "bf16" to score all pairs in bfloat16 and few again in float32, see
            `mine_half_precision`; faster for models of region and word vectors.
        checkpoint: folder in which a long pass saves its progress and resumes; removed by hand.
        device: where to compute; by default where the model is.

    Raises:
        ValueError: models and data do not fit, a number out of range, an unknown precision,
            an unknown filter, filters that lack a guide or an encoder, or that leave nothing.

    >>> negatives = mine_hard_negatives("openai/clip-vit-base-patch32", dataset)  # doctest: +SKIP
    >>> negatives.to_dataset()[0]  # doctest: +SKIP
    {'anchor': 'a dog in the snow', 'positive': <PIL.Image.Image ...>, 'negative': <PIL...>}
    """
    check_dataset(dataset, 'data["train"]')
    parse_literal(Precision, precision, "a precision of mining")
    wanted = filters_of(filters)
    dataset.check_captions("to mine")
    store, _ = mine_store(
        as_models(model),
        dataset,
        texts_per_image=texts_per_image,
        images_per_text=images_per_text,
        filters=wanted,
        guides=as_models(guides),
        precision=precision,
        device=device,
        keep=None if checkpoint is None else Path(checkpoint),
    )
    store.check_filled()
    return HardNegatives(store, dataset)


class StreamOptions(TypedDict, total=False):
    """Optional settings of the pass over all scores.

    Attributes:
        memory: bytes, see `stream_scores`.
        device: where to compute, see `stream_scores`.
        tile: images and texts per tile, see `stream_scores`.
        keep: checkpoint folder, shared by all processes; a pass that was stopped there is resumed.
            The caller removes the folder once the lists are saved.
        every: seconds between two checkpoints.
        stop: polled now and then; once it returns True on any process, all of them stop.
        run: what else the lists depend on, as the data and the guides, by name or as a digest.
    """

    memory: int
    device: torch.device | str | None
    tile: tuple[int, int] | None
    keep: Path | None
    every: float
    stop: Callable[[], bool] | None
    run: str | Mapping[str, Fact]


def mine_store(
    models: Sequence[Model],
    dataset: ImageTextDataset,
    *,
    texts_per_image: int,
    images_per_text: int,
    filters: FilterConfig,
    guides: Sequence[Model] = (),
    proposing: Sequence[Model] | Literal["ivf"] = (),
    proposals: int = 1,
    precision: Precision = "fp32",
    **options: Unpack[StreamOptions],
) -> tuple[NegativeStore, list[EmbeddedDataset]]:
    """Mine a split with opened models and guides; see `mine_hard_negatives` for the arguments.

    `proposing` models choose `proposals` pairs for each listed negative, which `models` score, see
    `rerank_proposals`; with "ivf" the one model of `models` does so by its vectors, see
    `propose_by_ivf`, and a stopped mining starts anew. Without any, all pairs are scored. Returns
    the lists with their provenance, and the split as the models encoded it.
    """
    check_encoder(filters)
    ivf, keep = proposing == IVF, options.get("keep")
    if ivf:
        from counterfoil.negatives.proposals import import_faiss

        import_faiss()
        if keep is not None and keep.exists():
            raise ValueError(
                f"{keep} holds an unfinished mining, and one with proposals by IVF starts anew; "
                "delete it, or mine into another folder"
            )
    again = len(models) + len(guides) > 1 or not isinstance(proposing, str)
    members = [model.embed(dataset, keep_pixels=again) for model in models]
    fast = () if isinstance(proposing, str) else proposing
    streamed = [model.embed(dataset) for model in fast] or members
    sources, guide_sources, proposers = (
        tuple(model.source() for model in some) for some in (models, guides, fast)
    )
    device = options.get("device")
    applied = NegativeFilters(
        filters, dataset, guides=[guide.embed(dataset) for guide in guides], device=device
    )
    scoring = {"scoring models": proposers or sources, "guides": guide_sources}
    contents = ContentDigests.of(dataset)  # or parts that were kept would be of other pictures
    options["run"] = {"data": dataset.fingerprint, **asdict(contents)} | {
        name: ", ".join(f"{s.checkpoint} {s.identity} {s.spec} {s.matcher}" for s in some)
        for name, some in scoring.items()
    }
    many, reason = proposals if proposing else 1, ""
    lengths = {
        "texts_per_image": texts_per_image * many,
        "images_per_text": images_per_text * many,
    }
    settings: dict[str, Any] = {**lengths, "filters": applied, **options}
    if ivf:
        from counterfoil.negatives.proposals import PROBES, propose_by_own_vectors

        (member,) = members
        lists = propose_by_own_vectors(member, **lengths, stop=options.get("stop"))
        lists = applied.without(lists)
        reason = f"float32, of pairs that FAISS IVF proposes ({PROBES} of √N cells for each query)"
    elif precision == "bf16":
        lists, certificate = mine_half_precision(streamed, dataset.text_to_image, **settings)
        reason = f"bfloat16, then float32: {certificate.describe()}"
    else:
        lists = mine_lists(streamed, dataset.text_to_image, **settings)
    if proposing:
        lists = rerank_proposals(
            lists,
            members,
            dataset.text_to_image,
            texts_per_image=min(texts_per_image, lists.texts.shape[1]),
            images_per_text=min(images_per_text, lists.images.shape[1]),
            device=device,
        )
    store = NegativeStore.of(
        with_true_scores(lists, members, dataset.text_to_image, device),
        dataset=dataset.fingerprint,
        split=dataset.split_name,
        sources=sources,
        filters=(*filters.describe(), *(f"guide: {source.matcher}" for source in guide_sources)),
        proposing=proposers,
        proposals=many if proposing else 0,
        precision=reason,
        removed=applied.removed,
        contents=contents,
    )
    return store, members


def mine_lists(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    filters: NegativeFilters | None = None,
    **options: Unpack[StreamOptions],
) -> HardNegativeLists:
    """List the hardest wrong texts of every image and wrong images of every text, in one pass.

    AOQ (https://arxiv.org/abs/2003.03669), section 3.2. Departs from the authors' code in: float32
    scores of any model instead of float16 cosines; equal scores go to the lower row. The lists
    are the same, bit for bit, for any number of processes and however often the pass was stopped.

    Args:
        members: models with their encodings; the mean score of several counts.
        text_to_image: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, cut to the number of texts.
        images_per_text: length of a text's list, cut to the number of images.
        filters: what else to leave out of the lists.
        **options: see `StreamOptions`.

    Raises:
        ValueError: a list shorter than 1, or a checkpoint of another mining.
        WorkStopped: `stop` returned True.
    """
    check_lengths(texts_per_image, images_per_text)
    matrix = _ScoreMatrix(members, text_to_image, filters, options)
    lists = matrix.empty_lists(texts_per_image, images_per_text)
    matrix.fill(lists, "float32")
    return scored_lists(*((side.rows, side.scores) for side in lists))


def check_lengths(texts: int, images: int) -> None:
    """Refuse lengths of mined lists below 1."""
    for name, length in (("texts", texts), ("images", images)):
        if length < 1:
            raise ValueError(f"{name}={length}: a list of negatives has at least 1")


@final
@dataclass(frozen=True, slots=True)
class _ScoreMatrix:
    """The score matrix, streamed in float32 or bfloat16; for the fields see `mine_lists`."""

    members: Sequence[EmbeddedDataset]
    text_to_image: Tensor
    filters: NegativeFilters | None
    options: StreamOptions

    def empty_lists(self, texts_per_image: int, images_per_text: int) -> tuple[TopK, TopK]:
        """Return lists of these lengths, cut to the number of texts and of images."""
        first = self.members[0] if self.members else None
        images, texts = (len(first.images), len(first.texts)) if first else (0, 0)
        return (
            TopK("image", images, max(1, min(texts_per_image, texts)), self.text_to_image),
            TopK("text", texts, max(1, min(images_per_text, images)), self.text_to_image),
        )

    def fill(self, lists: tuple[TopK, TopK], precision: Literal["float32", "bfloat16"]) -> None:
        """Fill the lists in one pass, which checkpoints can resume."""
        reducers = [self._filtered(side) for side in lists]
        options, checkpoint = self.options, None
        keep, stop = options.get("keep"), options.get("stop")
        if keep or stop:
            run = options.get("run", "")
            more = {"run": run} if isinstance(run, str) else run
            facts: dict[str, Fact] = {**more, "precision": precision, **self._facts(lists)}
            saved = dict(zip(("texts", "images"), reducers))
            every = options.get("every", EVERY)
            checkpoint = StreamCheckpoint(saved, facts, folder=keep, every=every, stop=stop)
        device = options.get("device") or (device_of(self.members[0]) if self.members else "cpu")
        half = precision == "bfloat16"
        with torch.autocast(torch.device(device).type, torch.bfloat16) if half else nullcontext():
            self._stream(self.members, reducers, checkpoint)

    def fill_rows(self, lists: TopK, rows: Tensor) -> None:
        """Fill the lists of these queries from scores in float32; the others stay empty."""
        first, members = self.members[0], self.members
        if len(rows) < lists.queries:
            members = [_with_queries(member, lists.query, rows) for member in members]
        shape = len(first.images), len(first.texts)
        reducer = _QuerySubset(lists.query, rows, shape, self._filtered(lists))
        stop = self.options.get("stop")
        checkpoint = None if stop is None else StreamCheckpoint({}, {}, stop=stop)
        self._stream(members, [reducer], checkpoint)

    def _stream(
        self,
        members: Sequence[EmbeddedDataset],
        reducers: Sequence[ScoreReducer],
        checkpoint: StreamCheckpoint | None,
    ) -> None:
        stream_scores(
            members,
            reducers,
            memory=self.options.get("memory", MEMORY),
            device=self.options.get("device"),
            tile=self.options.get("tile"),
            checkpoint=checkpoint,
        )

    def _filtered(self, lists: TopK) -> TopK | FilteredReducer:
        """Return the reducer that sees the tiles in place of the lists."""
        if self.filters is None:
            return lists
        reducer = self.filters.on(lists.query, lists)
        assert isinstance(reducer, TopK | FilteredReducer)
        return reducer

    def _facts(self, lists: tuple[TopK, TopK]) -> dict[str, Fact]:
        """Describe what the lists depend on, so that no checkpoint of another mining is resumed."""
        return {
            "models": ", ".join(model_digest(member.model) for member in self.members),
            "images and texts": ", ".join(
                f"{len(m.images)} x {len(m.texts)}" for m in self.members
            ),
            "true pairs": crc32(self.text_to_image.cpu().contiguous().numpy().tobytes()),
            "texts of an image": lists[0].k,
            "images of a text": lists[1].k,
            "filters": "; ".join(self.filters.config.describe()) if self.filters else "",
            "equal captions": "left out" if self.filters and self.filters.equal else "none",
        }


def scored_lists(
    texts: tuple[Tensor, Tensor], images: tuple[Tensor, Tensor], *, true: Tensor | None = None
) -> HardNegativeLists:
    """Return rows and scores as lists on the CPU, with scores in float16; finite ones stay so.

    `true` are (T,) scores of each text with its image.
    """
    rows, scores = [], []
    for list_rows, list_scores in (texts, images):
        rows.append(list_rows.cpu())
        scores.append(_to_half(list_scores).cpu().contiguous())
    known = None if true is None else _to_half(true).cpu()
    return HardNegativeLists(rows[0], rows[1], scores[0], scores[1], known)


def _to_half(scores: Tensor) -> Tensor:
    """Scores in float16; finite ones stay so."""
    largest = torch.finfo(torch.half).max
    return torch.where(scores.isinf(), scores.half(), scores.clamp(-largest, largest).half())


def with_true_scores(
    lists: HardNegativeLists,
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    device: torch.device | str | None = None,
) -> HardNegativeLists:
    """The lists with the score of each text with its image, by the models that scored them."""
    owned = (text_to_image >= 0).nonzero().squeeze(1)
    scores = torch.full((len(text_to_image),), -torch.inf)
    scores[owned] = score_index_pairs(members, text_to_image[owned], owned, device=device)
    return replace(lists, true_scores=_to_half(scores))


# Half precision, with the lists of single precision.
#
# The whole matrix is scored in bfloat16, and every query keeps a short list of its k + slack best.
# Those few pairs are scored again in float32, and the k best of them are the query's list, if it is
# *certain*. Why that can be known, with
#
#     c(x)   the bfloat16 score of a counterpart x, s(x) its float32 score,
#     b      a bound with |s(x) - c(x)| <= b for all pairs of the matrix,
#     c_K    the last, lowest bfloat16 score on the short list,
#     s_k    the k-th best float32 score on the short list:
#
# everything that is not on the short list has c(x) <= c_K, hence s(x) <= c_K + b. If s_k > c_K + b,
# each of the k listed counterparts beats all that was left out, and the list is that of float32,
# in the order of float32. ("Greater", not "at least": an equal score with a lower row would belong
# on the list.) A short list that holds every counterpart there is has left out nothing and is
# certain anyway. The queries that are not certain, a few where slack is generous, are mined again:
# their rows of the matrix only, in float32.
#
# b is `SAFETY` times the largest |s - c| among all pairs that were scored twice: a measurement, not
# a proof.


@final
@dataclass(frozen=True, slots=True)
class Certificate:
    """Evidence that lists mined in half precision are those of single precision.

    A query is certain if the k-th float32 score of its list is above the last bfloat16 score of its
    short list by more than `bound`; all others were mined again in float32. See the comment above.

    Attributes:
        images: number of images.
        texts: number of texts.
        certain_images: images whose first list was certain.
        certain_texts: texts whose first list was certain.
        pairs: number of pairs scored in both precisions.
        error: largest difference between the two scores of one of these pairs.
        bound: the assumed largest difference over the whole matrix, `SAFETY` times `error`.
    """

    images: int
    texts: int
    certain_images: int
    certain_texts: int
    pairs: int
    error: float
    bound: float

    def describe(self) -> str:
        """Return the certificate as one sentence."""
        source = f"{self.bound / self.error:g} times that" if self.error else "the same"
        return (
            f"{self.certain_images:,} of {self.images:,} images and {self.certain_texts:,} of "
            f"{self.texts:,} texts were certain at once, the others were mined again in float32; "
            f"{self.pairs:,} pairs were scored twice and differed by {self.error:.2g} at most, and "
            f"the bound was {self.bound:.2g}, {source}"
        )


def score_disagreement(near: TopK, rescored: RescoredPairs) -> float:
    """Return the largest difference between the bfloat16 and float32 scores on the short lists."""
    listed = near.rows.cpu() >= 0
    if not bool(listed.any()):
        return 0.0
    coarse, fine = near.scores.cpu()[listed], rescored.scores(near.query)[listed]
    return float((coarse.double() - fine.double()).abs().max())


def certain_entries(near: TopK, answers: int, scores: Tensor, bound: float) -> Tensor:
    """Return (Q,) bool: no counterpart off the short list can belong on the list.

    Lists of length `answers`, the number of counterparts, have left out nothing. `scores` (Q, k)
    are those of the lists in float32, best first.
    """
    # what was left off scored at most `last` in bfloat16, so at most last + bound in float32: a
    # list whose own last entry is above that cannot gain one. Strictly: an equal one might, by row.
    last = near.scores.cpu()[:, -1].double()  # -inf where the short list is not full
    return last.isneginf() | (near.k >= answers) | (scores[:, -1].double() > last + bound)


SLACK = 64
SAFETY = 2.0


def mine_half_precision(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    slack: int = SLACK,
    filters: NegativeFilters | None = None,
    **options: Unpack[StreamOptions],
) -> tuple[HardNegativeLists, Certificate]:
    """Mine the lists of `mine_lists`, with the matrix in bfloat16 and few of its pairs in float32.

    Every query keeps `slack` more entries than its list; these pairs are scored again in float32,
    and the queries that are not certain then (see `Certificate`) are mined again. If the bound
    holds, the lists are those of `mine_lists`, but for scores that differ by less than 1e-6,
    because pairs are multiplied in another order. They are the same for any number of processes.
    Only scores whose large products follow autocast gain, such as those of attention; plain cosines
    are in float32 either way.

    The bound is measured on the short lists, not proven for the other pairs. Only the bfloat16 pass
    is resumed where it was stopped; the later steps start anew.

    Args:
        members: see `mine_lists`.
        text_to_image: (T,) image of each text, -1 for none.
        texts_per_image: length of an image's list.
        images_per_text: length of a text's list.
        slack: additional entries of the short lists; more slack leaves fewer queries to mine again.
        filters: what else to leave out of the lists; near duplicates only.
        **options: see `StreamOptions`.

    Raises:
        ValueError: a number out of range, filters on scores, or a checkpoint of another mining.
        WorkStopped: `stop` returned True.
    """
    check_lengths(texts_per_image, images_per_text)
    if slack < 0:
        raise ValueError(f"slack={slack}: 0 or more are kept besides the wanted ones")
    if filters and (judging := filters.config.score_settings):
        name, value = judging[0]
        raise ValueError(
            f"{name}={value} judges scores, which half precision moves across its border; mine in "
            "float32, or filter by captions and pictures only"
        )
    matrix = _ScoreMatrix(members, text_to_image, filters, options)
    exact = matrix.empty_lists(texts_per_image, images_per_text)
    near = matrix.empty_lists(texts_per_image + slack, images_per_text + slack)
    matrix.fill(near, "bfloat16")
    rescored = RescoredPairs(members, near[0].rows, near[1].rows, device=options.get("device"))
    error = max(score_disagreement(side, rescored) for side in near)
    bound = SAFETY * error
    lists, certain = [], []
    for side, short, answers in zip(exact, near, (exact[1].queries, exact[0].queries)):
        # the short list in the order of float32; where that is not certain to be the whole truth,
        # the query's row of the matrix is scored anew, and replaces it
        rows, scores = rescored.best(short.query, side.k)
        is_certain = certain_entries(short, answers, scores, bound)
        if len(uncertain := (~is_certain).nonzero().squeeze(1)):
            matrix.fill_rows(side, uncertain)
            rows[uncertain] = side.rows.cpu()[uncertain]
            scores[uncertain] = side.scores.cpu()[uncertain]
        lists.append((rows, scores))
        certain.append(int(is_certain.sum()))
    certificate = Certificate(
        images=exact[0].queries,
        texts=exact[1].queries,
        certain_images=certain[0],
        certain_texts=certain[1],
        pairs=len(rescored),
        error=error,
        bound=bound,
    )
    return scored_lists(*lists), certificate


def _with_queries(member: EmbeddedDataset, side: Side, rows: Tensor) -> EmbeddedDataset:
    """Return the member with these queries only."""
    if side == "image":
        return EmbeddedDataset(member.model, member.images.rows(rows), member.texts)
    return EmbeddedDataset(member.model, member.images, member.texts.rows(rows))


@final
class _QuerySubset(ScoreReducer):
    """Passes the tiles of some queries, (q,) ascending rows, on to a reducer of the whole matrix.

    `shape` holds the number of images and of texts of that matrix.
    """

    def __init__(
        self, side: Side, rows: Tensor, shape: tuple[int, int], reducer: ScoreReducer
    ) -> None:
        self._side, self._rows, self._shape, self._reducer = side, rows, shape, reducer
        self.concurrent, self.cost = reducer.concurrent, reducer.cost

    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate for all queries."""
        self._rows = self._rows.to(device)
        self._reducer.prepare(*self._shape, device)

    def update(self, tile: ScoreTile) -> None:
        """Pass on the tile with the rows of the whole matrix."""
        if self._side == "image":
            self._reducer.update(ScoreTile(tile.scores, self._rows[tile.images], tile.texts))
        else:
            self._reducer.update(ScoreTile(tile.scores, tile.images, self._rows[tile.texts]))

    def merge(self) -> None:
        """Merge the reducer."""
        self._reducer.merge()


def rerank_proposals(
    proposed: HardNegativeLists,
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    device: torch.device | str | None = None,
) -> HardNegativeLists:
    """Choose the hardest of the negatives that another model has proposed.

    An embedding model proposes long lists, made with `mine_lists`; a slow model (cross-attention, a
    reranker) scores those pairs only. A pair that was not proposed cannot be listed. With proposals
    as long as the data set the lists are those of `mine_lists`, but for scores that differ by less
    than 1e-6, because pairs are multiplied in another order. They are the same for any number of
    processes. Beyond `scoring.pairs.PAIRS` proposals the queries are scored in parts, so that
    memory grows with the lists alone.

    Args:
        proposed: another model's lists of the same data set.
        members: models with their encodings; the mean score of several counts.
        text_to_image: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, at most that of the proposals.
        images_per_text: length of a text's list, at most that of the proposals.
        device: where to compute, see `stream_scores`.

    Raises:
        ValueError: no model, a list shorter than 1 or longer than what was proposed, or proposals
            for another data set.
    """
    if not members:
        raise ValueError("no model is given to score the proposed pairs; give at least one")
    texts, images = proposed.texts.cpu().clone(), proposed.images.cpu().clone()
    for member in members:
        member.check_sizes(len(texts), len(images), "a model")
    for name, rows, length, count in (
        ("texts", texts, texts_per_image, len(images)),
        ("images", images, images_per_text, len(texts)),
    ):
        most = rows.shape[1]
        if not 1 <= length <= most:
            raise ValueError(
                f"{name}={length}: 1 to {most} can be kept of {most} proposed; keep fewer, or "
                "propose more"
            )
        if rows.numel() and int(rows.max()) >= count:
            raise ValueError(
                f"row {int(rows.max())} of the {name} was proposed, but there are {count}; propose "
                "from the same split"
            )
    own = text_to_image.cpu().int()
    rows = torch.arange(len(texts), dtype=torch.int32).unsqueeze(1)
    # True pairs are removed; -1 indexes the last text here, but stays -1 whatever comes out.
    for part, row in zip(torch.split(texts, _QUERIES), torch.split(rows, _QUERIES)):
        part.masked_fill_(own[part.long()] == row, -1)
    images.masked_fill_(images == own.unsqueeze(1), -1)
    if texts.numel() + images.numel() > PAIRS:
        return scored_lists(
            best_in_parts(members, texts, "image", texts_per_image, device=device),
            best_in_parts(members, images, "text", images_per_text, device=device),
        )
    rescored = RescoredPairs(members, texts, images, device=device)
    return scored_lists(
        rescored.best("image", texts_per_image), rescored.best("text", images_per_text)
    )
