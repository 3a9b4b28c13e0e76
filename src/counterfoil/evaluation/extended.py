"""Evaluation with several positives for a query: ECCV Caption and Crisscrossed Captions (CxC).

Chun et al., "ECCV Caption: Correcting False Negatives by Collecting Machine-and-Human-verified
Image-Caption Associations for MS-COCO", ECCV 2022. Parekh et al., "Crisscrossed Captions: Extended
Intramodal and Intermodal Semantic Similarity Judgments for MS-COCO", EACL 2021.

The annotations are not part of this package. A folder contains one JSON object for each direction,
query id to a list of item ids (``i2t.json``, ``t2i.json``), or for CxC to a list of [item id,
rating] (``i2i.json`` and ``t2t.json`` too). Ids are COCO's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final

import torch
from rich.table import Table
from torch import Tensor

from counterfoil.core.io import read_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import Direction
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import TopK, rank_keys, rows_of, scores_of
from counterfoil.scoring.stream import stream_scores

# ids of the positives of each query id
Positives: TypeAlias = Mapping[int, frozenset[int]]


def read_extended(path: Path) -> Positives:
    """Read ``{"query id": [item id, ...], ...}``, the layout of the `eccv_caption` package.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    plain = read_json(path, "a ground-truth file")
    try:
        return {int(query): frozenset(int(item) for item in plain[query]) for query in plain}
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise ValueError(
            f"{path} is not a ground-truth file: a JSON object from query id to a list of item "
            f"ids is needed ({error})"
        ) from error


def align_rankings(
    positives: Positives, query_ids: Tensor, item_ids: Tensor, rows: Tensor
) -> Tensor:
    """(Q, K) ids of ranked items, for the queries of a ground truth in its order.

    `query_ids` (N,) are those of the evaluated queries, `item_ids` (M,) those of the ranked items,
    and `rows` (N, K) the rows of ranked items, best first; -1 for none.

    Raises:
        ValueError: a query of the ground truth was not evaluated.
    """
    places = {query: place for place, query in enumerate(query_ids.tolist())}
    missing = [query for query in positives if query not in places]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(positives)} queries of the ground truth are not among the "
            f"{len(query_ids)} evaluated ones (the first is {missing[0]}); evaluate the split "
            "that the ground truth was written for"
        )
    rows = rows[[places[query] for query in positives]].long()
    return item_ids[rows.clamp(min=0)].masked_fill(rows < 0, -1)


def positive_hits(rankings: Tensor, positives: Positives) -> Tensor:
    """(Q, K) bool, whether each ranked item is a positive.

    `rankings` (Q, K) are item ids, best first, in the order of `positives`; -1 for none.

    Raises:
        ValueError: not one row per query, or an item occurs twice in a row.
    """
    queries = len(positives)
    if rankings.dim() != 2 or len(rankings) != queries:
        raise ValueError(
            f"the ground truth has {queries} queries, so rankings of shape ({queries}, K) are "
            f"needed, not {tuple(rankings.shape)}"
        )
    ordered = rankings.sort(1).values
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    if twice.any():
        raise ValueError(
            f"{int(twice.sum())} of the {queries} rankings hold an item twice (the first is row "
            f"{int(twice.nonzero()[0])}); an item may occur once in a ranking"
        )
    pairs = zip(rankings.tolist(), positives.values(), strict=True)
    hits = [[item in items for item in ranking] for ranking, items in pairs]
    return torch.tensor(hits, dtype=torch.bool).view(rankings.shape)


# -- ECCV Caption ---------------------------------------------------------------------------------
# Annotation files: `eccv_image_to_caption.json` and `eccv_caption_to_image.json` of the package
# `eccv_caption` (MIT licence). They cover the whole COCO 5K test split, so that rankings
# have to come from all 25,000 captions and 5,000 images.

PUBLISHED_QUERIES: dict[Direction, int] = {"i2t": 1261, "t2i": 1332}
CUTOFFS = (1, 5, 10)  # as published
ECCV_DEPTH = 50  # the longest list of true captions is 48


@final
@dataclass(frozen=True, slots=True)
class ECCVResult:
    """Metrics of one direction with several positives for a query, in percent."""

    direction: Direction
    # mean over queries of (1 / R) * sum of the precisions at the hits among the first R, where R
    # is the query's number of positives
    map_at_r: float
    r_precision: float  # fraction of positives among the first R
    r1: float  # queries with a positive first
    r5: float
    r10: float
    queries: int  # number of queries


def rank_precisions(rankings: Tensor, positives: Positives) -> tuple[Tensor, Tensor]:
    """(Q,) average precision at R and (Q,) R-Precision of each query, as fractions.

    Raises:
        ValueError: a query without positives, or rankings shorter than the longest list.
    """
    sizes = torch.tensor([len(items) for items in positives.values()])
    if int(sizes.min()) < 1:
        raise ValueError(f"{int((sizes < 1).sum())} queries have no true item; leave them out")
    if int(sizes.max()) > rankings.shape[1]:
        raise ValueError(
            f"a query has {int(sizes.max())} true items but rankings are {rankings.shape[1]} deep; "
            f"rank at least {int(sizes.max())} items"
        )
    place = torch.arange(1, rankings.shape[1] + 1)
    hits = positive_hits(rankings, positives) & (place <= sizes.unsqueeze(1))
    precision = hits.double().cumsum(1) / place
    return (precision * hits).sum(1) / sizes, hits.double().sum(1) / sizes


def any_hit_recall(rankings: Tensor, positives: Positives) -> tuple[float, float, float]:
    """Percent of queries with a positive in the first 1, 5 and 10."""
    hits = positive_hits(rankings, positives)
    r1, r5, r10 = (100.0 * hits[:, :k].any(1).double().mean().item() for k in CUTOFFS)
    return r1, r5, r10


def eccv_score(rankings: Tensor, positives: Positives, direction: Direction) -> ECCVResult:
    """All metrics of one direction.

    Args:
        rankings: (Q, K) item ids, best first, in the order of `positives`, see `align_rankings`;
            `ECCV_DEPTH` is deep enough.
        positives: the ground truth.
        direction: of the queries.
    """
    map_at_r, r_precision = (
        100.0 * of.mean().item() for of in rank_precisions(rankings, positives)
    )
    recalls = any_hit_recall(rankings, positives)
    return ECCVResult(direction, map_at_r, r_precision, *recalls, queries=len(positives))


# -- Crisscrossed Captions ------------------------------------------------------------------------
# A pair is true from a mean rating of 3.0 between texts and of 2.5 between images; between images
# and texts the published lists are used.

IMAGE_RATING = 2.5
TEXT_RATING = 3.0
CXC_DEPTH = max(CUTOFFS)

Kind = Literal["i2t", "t2i", "i2i", "t2t"]
Self = Literal["excluded", "zero"]
Rated = Mapping[int, Sequence[tuple[int, float]]]


@final
@dataclass(frozen=True, slots=True)
class CxCResult:
    """Recalls of one kind of query, in percent: any true item in the first k."""

    kind: Kind
    r1: float
    r5: float
    r10: float
    queries: int  # number of queries with a positive
    left_out: int = 0  # number of queries without


def cxc_between(
    kind: Kind, query_ids: Tensor, item_ids: Tensor, rows: Tensor, rated: Rated
) -> CxCResult:
    """Recalls between images and texts.

    Args:
        kind: "i2t" or "t2i".
        query_ids: (Q,) ids of the queries.
        item_ids: (M,) ids of the ranked items.
        rows: (Q, K) rows of ranked items, best first, at least `CXC_DEPTH` if there are as many.
        rated: positives by query id, with ratings; a query with an empty list counts as missed, one
            without a list is left out.
    """
    items = set(item_ids.tolist())
    positives = {
        query: frozenset(item for item, _ in rated[query] if item in items)
        for query in query_ids.tolist()
        if query in rated
    }
    return _recall(kind, query_ids, item_ids, rows, positives)


def cxc_images(embedded: Tensor, ids: Tensor, rated: Rated, own: Self = "excluded") -> CxCResult:
    """Recalls from images to other images; those without a positive are left out.

    Args:
        embedded: (I, D) one vector per image.
        ids: (I,) image ids.
        rated: rated images by image id.
        own: how an image is excluded from its own ranking, see `nearest_neighbours`.
    """
    positives = _related(ids, rated, IMAGE_RATING, {})
    return _recall("i2i", ids, ids, nearest_neighbours(embedded, own=own), positives)


def cxc_texts(
    embedded: Tensor, ids: Tensor, text_to_image: Tensor, rated: Rated, own: Self = "excluded"
) -> CxCResult:
    """Recalls from texts to other texts: those of the same image, and those rated alike.

    Args:
        embedded: (T, D) one vector per text.
        ids: (T,) text ids.
        text_to_image: (T,) image of each text; -1 for none.
        rated: rated texts by text id.
        own: how a text is excluded from its own ranking, see `nearest_neighbours`.
    """
    by_image: dict[int, list[int]] = {}
    for text, image in zip(ids.tolist(), text_to_image.tolist()):
        by_image.setdefault(image, []).append(text)
    siblings = {t: group for i, group in by_image.items() if i >= 0 for t in group}
    positives = _related(ids, rated, TEXT_RATING, siblings)
    return _recall("t2t", ids, ids, nearest_neighbours(embedded, own=own), positives)


def nearest_neighbours(
    embedded: Tensor, depth: int = CXC_DEPTH, own: Self = "excluded", at_once: int = 512
) -> Tensor:
    """(N, K) rows of the nearest other items by inner product; the lower row wins ties.

    Args:
        embedded: (N, D).
        depth: K.
        own: "excluded" removes an item from its own ranking; "zero" sets its own similarity to 0
            as in the code of VSE-infinity, so that it ranks before items of negative similarity;
            use it only to compare with their numbers.
        at_once: rows of similarities in memory.
    """
    lists, columns = [], torch.arange(len(embedded), device=embedded.device)
    for start in range(0, len(embedded), at_once):
        similar = embedded[start : start + at_once].float() @ embedded.T.float()
        rows = columns[: len(similar)]
        similar[rows, rows + start] = 0.0 if own == "zero" else -torch.inf
        # of equal values the lower row has the larger key
        best = rank_keys(similar, columns).topk(min(depth, len(embedded)), 1).values
        lists.append(rows_of(best).masked_fill(scores_of(best) == -torch.inf, -1))
    return torch.cat(lists)


def _related(
    ids: Tensor, rated: Rated, threshold: float, siblings: Mapping[int, list[int]]
) -> Positives:
    """Items rated alike and siblings, of each query that has any."""
    items = set(ids.tolist())
    positives: dict[int, frozenset[int]] = {}
    for item in ids.tolist():
        near = {other for other, rating in rated.get(item, ()) if rating >= threshold}
        near = (near | set(siblings.get(item, ()))) & items - {item}
        if near:
            positives[item] = frozenset(near)
    return positives


def _recall(
    kind: Kind, query_ids: Tensor, item_ids: Tensor, rows: Tensor, positives: Positives
) -> CxCResult:
    if not positives:
        raise ValueError(
            f"none of the {len(query_ids)} {kind} queries has a rated item; check the ids"
        )
    rankings = align_rankings(positives, query_ids, item_ids, rows.cpu())
    recalls = any_hit_recall(rankings, positives)
    return CxCResult(kind, *recalls, len(positives), len(query_ids) - len(positives))


# -- Evaluation of models --------------------------------------------------------------------------


def eccv_caption(
    members: Sequence[EmbeddedDataset], dataset: ImageTextDataset, folder: Path
) -> tuple[ECCVResult, ...]:
    """MAP@R, R-Precision and R@1 both ways (ECCV-Caption, arXiv:2204.03359).

    Raises:
        ValueError: an annotation file is missing or damaged, or the split is another one.
    """
    i2t, t2i = read_extended(folder / "i2t.json"), read_extended(folder / "t2i.json")
    image_ids, text_ids = _numbers(dataset.image_ids), _numbers(dataset.text_ids)
    texts, images = _lists(members, dataset, ECCV_DEPTH)
    return (
        eccv_score(align_rankings(i2t, image_ids, text_ids, texts), i2t, "i2t"),
        eccv_score(align_rankings(t2i, text_ids, image_ids, images), t2i, "t2i"),
    )


def crisscrossed(
    members: Sequence[EmbeddedDataset], dataset: ImageTextDataset, folder: Path
) -> tuple[CxCResult, ...]:
    """Recalls between and within modalities (CxC, arXiv:2004.15020).

    Within a modality only models with one vector per item are measured.

    Raises:
        ValueError: an annotation file is missing or damaged.
    """
    texts, images = _lists(members, dataset, CXC_DEPTH)
    image_ids, text_ids = _numbers(dataset.image_ids), _numbers(dataset.text_ids)
    results = [
        cxc_between("i2t", image_ids, text_ids, texts, _rated(folder / "i2t.json")),
        cxc_between("t2i", text_ids, image_ids, images, _rated(folder / "t2i.json")),
    ]
    if len(members) == 1 and members[0].images.tokens.shape[1] == 1:
        pictures, captions = members[0].images.tokens[:, 0], members[0].texts.tokens[:, 0]
        of_texts = _rated(folder / "t2t.json")
        results += [
            cxc_images(pictures, image_ids, _rated(folder / "i2i.json")),
            cxc_texts(captions, text_ids, dataset.text_to_image, of_texts),
        ]
    return tuple(results)


def extended_table(
    eccv_results: Sequence[ECCVResult], cxc_results: Sequence[CxCResult]
) -> Iterator[Table]:
    """Tables for the terminal, all in percent."""
    eccv = Table("ECCV-Caption", "mAP@R", "R-Precision", "R@1", "queries")
    for e in eccv_results:
        numbers = (f"{n:.1f}" for n in (e.map_at_r, e.r_precision, e.r1))
        eccv.add_row(e.direction, *numbers, f"{e.queries:,}")
    cxc = Table("CxC", "R@1", "R@5", "R@10", "queries", "left out")
    for c in cxc_results:
        numbers = (f"{n:.1f}" for n in (c.r1, c.r5, c.r10))
        cxc.add_row(c.kind, *numbers, f"{c.queries:,}", f"{c.left_out:,}")
    yield from (table for table in (eccv, cxc) if table.row_count)


def _lists(
    members: Sequence[EmbeddedDataset], dataset: ImageTextDataset, depth: int
) -> tuple[Tensor, Tensor]:
    texts = TopK("image", len(dataset), min(depth, len(dataset.texts)))
    images = TopK("text", len(dataset.texts), min(depth, len(dataset)))
    stream_scores(members, [texts, images])
    return texts.rows, images.rows


def _numbers(ids: Sequence[str]) -> Tensor:
    try:
        return torch.tensor([int(name.rpartition("_")[2].partition(".")[0]) for name in ids])
    except ValueError:
        raise ValueError(
            f"{ids[0]!r} is not a COCO id; these annotations name images and captions by number"
        ) from None


def _rated(path: Path) -> Rated:
    plain = read_json(path, "CxC ratings")
    try:
        return {int(q): [(int(item), float(r)) for item, r in plain[q]] for q in plain}
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise ValueError(
            f"{path} holds no CxC ratings: a JSON object from query id to a list of "
            f"[item id, rating] is needed ({error})"
        ) from error
