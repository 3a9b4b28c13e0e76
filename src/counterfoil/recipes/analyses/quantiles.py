"""Quantile plot of the similarities of the hardest negatives (NDGL, Fig. 1c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from counterfoil import world
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.distribution_figures import Sample, cumulative, minus
from counterfoil.evaluate.embeddings import MEAN_OF_BAGS, holds_bags
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.negative_similarities import (
    TOP,
    NegativeSimilarities,
    negative_similarities,
    share_below,
)
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import open_scorers, said
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

Both = tuple[NegativeSimilarities, NegativeSimilarities]
LEVEL = 0.5
_WHAT = {"i2t": "texts", "t2i": "images"}


def quantiles(
    name: str,
    source: Source,
    out: Path,
    *,
    split: str = "test",
    top: int = TOP,
    level: float = LEVEL,
) -> Both:
    """Draw how similar the hardest negatives are, to the query and to each other.

    Fig. 1c shows two curves and does not say which of the two its similarities are; both are drawn.

    Args:
        name: of the model; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        top: negatives of a query; all, where there are fewer.
        level: of similarity, below which shares are counted.

    Returns:
        Images asking for texts, and texts for images.

    Raises:
        ValueError: the page exists, or model and data do not fit.
    """
    check_out(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers([name])
    members = scorers[0].on(corpus)
    found = negative_similarities(members, corpus.owner, top=top)
    note = f"{_NOTE} {MEAN_OF_BAGS[0].upper()}{MEAN_OF_BAGS[1:]}." if holds_bags(members) else _NOTE
    series = _series(found, top)
    page = AnalysisPage(
        title="Similarities of negatives",
        headline=_headline(found, top, level),
        protocol=f"{said(corpus, scorers)}; the {top} hardest negatives of each query",
        provenance=made_now(),
        figures=_figures(series, top, level),
        tables=(_rows(series, level, note),),
    )
    lines = [_plain(one, to, level) for to, samples in series.items() for one in samples]
    about = {"models": [name], "top": top, "level": level, "bags": holds_bags(members)}
    publish(page, {**about, "similarities": lines}, out)
    return found


QUERY, HARDEST = "query", "hardest negative"
_NOTE = (
    "To the query: scores over the unit of the model's score. To the hardest negative: cosines of "
    "a query's hardest negative with its others, within one modality."
)


def _series(found: Both, top: int) -> dict[str, list[Sample]]:
    """Samples by what the similarity is to."""
    to_query, to_hardest = [], []
    for side in found:
        what = _WHAT[side.direction]
        to_query.append(Sample(f"{what}, hardest", side.hardest))
        to_query.append(Sample(f"{what}, top {top}", side.top))
        if len(side.between):
            to_hardest.append(Sample(what, side.between))
    return {QUERY: to_query, HARDEST: to_hardest}


def _figures(series: dict[str, list[Sample]], top: int, level: float) -> tuple[Figure, ...]:
    captions = {
        QUERY: f"The hardest and the {top} hardest negatives: similarity to the query.",
        HARDEST: f"The {top} hardest negatives: similarity to the hardest of them.",
    }
    return tuple(
        cumulative(samples, level, f"similarity to the {to}", to.split()[0], captions[to])
        for to, samples in series.items()
        if samples
    )


def _rows(series: dict[str, list[Sample]], level: float, note: str) -> Rows:
    cells = tuple(
        (
            sample.name,
            to,
            f"{len(sample.values):,}",
            minus(sample.values.median().item(), ".3f"),
            f"{share_below(sample.values, level):.1f}\u00a0%",
        )
        for to, samples in series.items()
        for sample in samples
    )
    head = "negatives", "similarity to the", "how many", "median", f"below {level:g}"
    return Rows("Similarities", head, cells, note)


def _plain(sample: Sample, to: str, level: float) -> dict[str, Any]:
    return {
        "of": sample.name,
        "to": to,
        "count": len(sample.values),
        "median": sample.values.median().item(),
        "percent_below": share_below(sample.values, level),
        "quantiles": _tenths(sample.values),
    }


def _tenths(values: Tensor) -> list[float]:
    """The 0th to the 100th percentile by tens, each one of the values."""
    ordered = values.sort().values
    return [ordered[round(share / 10 * (len(ordered) - 1))].item() for share in range(11)]


def _headline(found: Both, top: int, level: float) -> str:
    texts, images = found
    words = (
        f"Of the {top} hardest negatives {share_below(images.top, level):.0f} % of the images and "
        f"{share_below(texts.top, level):.0f} % of the texts score below {level:g}"
    )
    if len(images.between) and len(texts.between):
        words += (
            f"; {share_below(images.between, level):.0f} % and "
            f"{share_below(texts.between, level):.0f} % are less similar than that to the hardest"
        )
    return f"{words}."
