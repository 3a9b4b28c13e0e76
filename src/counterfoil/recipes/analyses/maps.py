"""Maps of queries, their true counterparts and their nearest wrong ones (NDGL, Fig. 1b)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.analysis_page import AnalysisPage, Card, Cards, Column, Rows
from counterfoil.evaluate.distribution_figures import minus
from counterfoil.evaluate.embeddings import MEAN_OF_BAGS, holds_bags
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.gallery import shown_caption, shown_image
from counterfoil.evaluate.map_figure import Marked, mapped
from counterfoil.evaluate.neighbourhood import Neighbourhood, neighbourhood
from counterfoil.evaluate.projection import Projection, check_projection
from counterfoil.evaluate.recall import Direction
from counterfoil.recipes.analyses.queries import asked_row
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import exhibits, open_scorers, said
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source
from counterfoil.spec import unknown

NAMED = 5  # of the nearest negatives
_METHODS = {"tsne": "t-SNE", "pca": "principal components"}
_SIDES = {"i2t": ("image", "texts"), "t2i": ("text", "images")}


def maps(
    name: str,
    source: Source,
    out: Path,
    *,
    split: str = "test",
    queries: Sequence[str] = (),
    count: int = 1,
    negatives: int = 100,
    method: str = "tsne",
    seed: int = 0,
) -> tuple[Neighbourhood, ...]:
    """Draw embeddings of queries, their true counterparts and their nearest wrong ones.

    Args:
        name: of the model; joined by ``+``, an ensemble, whose vectors are set side by side.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        queries: captions of the split and ids of its images; without any, some at random.
        count: how many images and how many captions are chosen at random.
        negatives: wrong counterparts on each map; all, where there are fewer.
        method: "tsne" or "pca".
        seed: of the choice; the maps themselves are not random.

    Raises:
        ValueError: the page exists, a query is not in the split, model and data do not fit, or
            t-SNE is asked for where scikit-learn is not installed.
    """
    by: Projection | None = next((one for one in get_args(Projection) if one == method), None)
    if by is None:
        raise ValueError(unknown(method, list(get_args(Projection)), "a way to draw a map"))
    check_projection(by)
    check_out(out)
    world.join()
    corpus = source.split(split)
    asked = [asked_row(query, corpus) for query in queries] or _drawn(corpus, count, seed)
    scorers = open_scorers([name])
    members = scorers[0].on(corpus)
    found = tuple(
        neighbourhood(members, corpus.owner, side, row, negatives=negatives, method=by)
        for side, row in asked
    )
    drawn, bags = None if queries else seed, holds_bags(members)
    protocol = f"{said(corpus, scorers, seed=drawn)}; {_METHODS[by]}"
    numbers = {
        "models": [name],
        "method": by,
        "seed": drawn,
        "bags": bags,
        "maps": [_plain(one, corpus) for one in found],
    }
    publish(_page(found, corpus, protocol, bags=bags), numbers, out)
    return found


def _page(
    found: Sequence[Neighbourhood], corpus: Corpus, protocol: str, *, bags: bool
) -> AnalysisPage:
    note = f" {MEAN_OF_BAGS[0].upper()}{MEAN_OF_BAGS[1:]}." if bags else ""
    return AnalysisPage(
        title="Maps of embeddings",
        headline=_headline(found),
        protocol=protocol,
        provenance=made_now(),
        figures=tuple(_figure(one, corpus, place) for place, one in enumerate(found)),
        tables=(_rows(found, corpus, note),),
        sections=(Cards("On the maps", _LEGEND, tuple(_card(one, corpus) for one in found)),),
    )


_LEGEND = "Letters and numbers are those beside the points; distances on a map are no scores."


def _drawn(corpus: Corpus, count: int, seed: int) -> list[tuple[Direction, int]]:
    """Images and captions at random, of those with a true counterpart."""
    rng = torch.Generator().manual_seed(seed)
    described = (corpus.relation.counts > 0).nonzero().flatten()
    owned = (corpus.owner >= 0).nonzero().flatten()
    if not len(described):
        raise ValueError(f"no text of {corpus.name} {corpus.part} describes an image; name queries")
    images = described[torch.randperm(len(described), generator=rng)[:count]]
    texts = owned[torch.randperm(len(owned), generator=rng)[:count]]
    return [*(("i2t", row) for row in images.tolist()), *(("t2i", row) for row in texts.tolist())]


def _name(corpus: Corpus, side: Direction, row: int) -> str:
    return corpus.image_ids[row] if side == "i2t" else corpus.texts[row]


def _figure(one: Neighbourhood, corpus: Corpus, place: int) -> Figure:
    query, others = _SIDES[one.direction]
    captions = exhibits(corpus)
    shown = shown_caption if one.direction == "i2t" else shown_image
    edge = 1 + len(one.true)

    def words(rows: Tensor) -> tuple[str, ...]:
        return tuple(shown(captions, row).text for row in rows.tolist())

    letters = tuple(chr(ord("a") + n) for n in range(min(len(one.true), 26)))
    numbers = tuple(str(n + 1) for n in range(min(len(one.wrong), NAMED)))
    return mapped(
        (
            Marked(f"query {query}", one.points[:1]),
            Marked(f"true {others}", one.points[1:edge], letters, words(one.true[:26])),
            Marked(f"wrong {others}", one.points[edge:], numbers, words(one.wrong[:NAMED])),
        ),
        f"map-{place}",
        f"The {query} “{_name(corpus, one.direction, one.row)}” and its nearest {others}.",
    )


def _card(one: Neighbourhood, corpus: Corpus) -> Card:
    shown = exhibits(corpus)
    asks_image = one.direction == "i2t"
    item = shown_caption if asks_image else shown_image
    true = tuple(item(shown, row, one.row) for row in one.true.tolist())
    wrong = enumerate(one.wrong[:NAMED].tolist())
    return Card(
        (shown_image if asks_image else shown_caption)(shown, one.row),
        "",
        (
            Column("True", "a, b, … in this order", true),
            Column("Wrong", "the nearest", tuple(item(shown, r, one.row, n) for n, r in wrong)),
        ),
    )


def _rows(found: Sequence[Neighbourhood], corpus: Corpus, note: str) -> Rows:
    cells = tuple(
        (
            _name(corpus, one.direction, one.row),
            f"{len(one.true)}",
            f"{len(one.wrong)}",
            *(
                "–" if value is None else minus(value, ".3f")
                for value in (one.to_true, one.to_wrong, one.among_wrong)
            ),
        )
        for one in found
    )
    head = "query", "true", "wrong", "query to true", "query to wrong", "among wrong"
    return Rows("Mean cosines", head, cells, f"Between the vectors, not on the map.{note}")


def _headline(found: Sequence[Neighbourhood]) -> str:
    words = [
        f"{_SIDES[one.direction][0]} {place + 1}: {one.among_wrong:.2f}"
        for place, one in enumerate(found)
        if one.among_wrong is not None
    ]
    return f"Mean cosine of two of a query's nearest wrong counterparts: {', '.join(words)}."


def _plain(one: Neighbourhood, corpus: Corpus) -> dict[str, Any]:
    names = corpus.text_ids if one.direction == "i2t" else corpus.image_ids
    return {
        "direction": one.direction,
        "query": _name(corpus, one.direction, one.row),
        "true": [names[row] for row in one.true.tolist()],
        "wrong": [names[row] for row in one.wrong.tolist()],
        "points": [[round(x, 3) for x in point] for point in one.points.tolist()],
        "cosines": {
            "to_true": one.to_true,
            "to_wrong": one.to_wrong,
            "among_wrong": one.among_wrong,
        },
    }
