"""Recalls within a modality: Crisscrossed Captions (CxC).

Parekh et al., "Crisscrossed Captions: Extended Intramodal and Intermodal Semantic Similarity
Judgments for MS-COCO", EACL 2021. A pair is true from a mean rating of 3.0 between texts and of 2.5
between images. Its lists between images and texts are a truth, see `counterfoil.evaluation.truth`.

The annotations are not part of this package. A folder contains one JSON object for each direction,
query id to a list of [item id, rating]: ``i2i.json`` and ``t2t.json``. Ids are COCO's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import torch
from rich.table import Table
from torch import Tensor

from counterfoil.core.io import read_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.truth import coco_numbers
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import rank_keys, rows_of, scores_of

IMAGE_RATING = 2.5
TEXT_RATING = 3.0
CUTOFFS = (1, 5, 10)
DEPTH = max(CUTOFFS)
FILES = ("i2i.json", "t2t.json")

Kind = Literal["i2i", "t2t"]
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


def cxc_images(embedded: Tensor, ids: Tensor, rated: Rated, own: Self = "excluded") -> CxCResult:
    """Recalls from images to other images; those without a positive are left out.

    Args:
        embedded: (I, D) one vector per image.
        ids: (I,) image ids.
        rated: rated images by image id.
        own: how an image is excluded from its own ranking, see `nearest_neighbours`.
    """
    positives = _related(ids, rated, IMAGE_RATING, {})
    return _recall("i2i", ids, nearest_neighbours(embedded, own=own).cpu(), positives)


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
    return _recall("t2t", ids, nearest_neighbours(embedded, own=own).cpu(), positives)


def nearest_neighbours(
    embedded: Tensor, depth: int = DEPTH, own: Self = "excluded", at_once: int = 512
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
) -> dict[int, frozenset[int]]:
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
    kind: Kind, ids: Tensor, rows: Tensor, positives: Mapping[int, frozenset[int]]
) -> CxCResult:
    """Any-hit recalls of (N, K) rows of ranked items, -1 for none."""
    if not positives:
        raise ValueError(f"none of the {len(ids)} {kind} queries has a rated item; check the ids")
    queries = [row for row, query in enumerate(ids.tolist()) if query in positives]
    ranked = ids[rows[queries].clamp(min=0)].masked_fill(rows[queries] < 0, -1)
    hits = torch.tensor(
        [
            [item in positives[int(ids[query])] for item in ranking]
            for query, ranking in zip(queries, ranked.tolist(), strict=True)
        ]
    )
    r1, r5, r10 = (100.0 * hits[:, :k].any(1).double().mean().item() for k in CUTOFFS)
    return CxCResult(kind, r1, r5, r10, len(queries), len(ids) - len(queries))


def within_modalities(
    members: Sequence[EmbeddedDataset], dataset: ImageTextDataset, folder: Path
) -> tuple[CxCResult, ...]:
    """Recalls from images to images and from texts to texts, of one vector for each item.

    None for several models, and for models that represent an item by several vectors.

    Raises:
        ValueError: an annotation file is missing or damaged.
    """
    if len(members) > 1 or members[0].images.tokens.shape[1] > 1:
        return ()
    pictures, captions = members[0].images.tokens[:, 0], members[0].texts.tokens[:, 0]
    image_ids, text_ids = coco_numbers(dataset.image_ids), coco_numbers(dataset.text_ids)
    of_images, of_texts = (_rated(folder / name) for name in FILES)
    return (
        cxc_images(pictures, image_ids, of_images),
        cxc_texts(captions, text_ids, dataset.text_to_image, of_texts),
    )


def cxc_tables(found: Sequence[CxCResult]) -> Iterator[Table]:
    """A table for the terminal, in percent; none without results."""
    if not found:
        return
    table = Table("CxC", "R@1", "R@5", "R@10", "queries", "left out")
    for each in found:
        numbers = (f"{number:.1f}" for number in (each.r1, each.r5, each.r10))
        table.add_row(each.kind, *numbers, f"{each.queries:,}", f"{each.left_out:,}")
    yield table


def _rated(path: Path) -> Rated:
    plain = read_json(path, "CxC ratings")
    try:
        return {int(q): [(int(item), float(r)) for item, r in plain[q]] for q in plain}
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise ValueError(
            f"{path} holds no CxC ratings: a JSON object from query id to a list of "
            f"[item id, rating] is needed ({error})"
        ) from error
