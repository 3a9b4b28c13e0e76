"""Margins of several models over the same bins (NDGL, Fig. 3b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from counterfoil import world
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.distribution_figures import Sample, bins_of, histograms, minus
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.margins import Margins, margins
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import open_scorers, said
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

Both = tuple[Margins, Margins]
HEAD = "model", "queries", "median", "middle half", "below 0"
_ASKED = ("i2t", "captions for an image"), ("t2i", "images for a caption")


def margin_distributions(
    names: Sequence[str], source: Source, out: Path, *, split: str = "test"
) -> dict[str, Both]:
    """Draw how far true counterparts score above the hardest wrong ones, under each model.

    Args:
        names: of the models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.

    Returns:
        Images asking for texts, and texts for images, by the model's short name.

    Raises:
        ValueError: the page exists, or model and data do not fit.
    """
    check_out(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers(names)
    found = {s.name: margins(s.on(corpus), corpus.owner) for s in scorers}
    bins = bins_of([Sample(name, side.values) for name, both in found.items() for side in both])
    page = AnalysisPage(
        title="Margins",
        headline=_headline(found),
        protocol=said(corpus, scorers),
        provenance=made_now(),
        figures=tuple(_figure(found, place, bins) for place in range(len(_ASKED))),
        tables=tuple(_rows(found, place) for place in range(len(_ASKED))),
    )
    numbers = {
        "models": {scorer.name: scorer.given for scorer in scorers},
        "bins": list(bins),
        "margins": {
            name: {side.direction: _plain(side, bins) for side in both}
            for name, both in found.items()
        },
    }
    publish(page, numbers, out)
    return found


def _figure(found: Mapping[str, Both], place: int, bins: Sequence[float]) -> Figure:
    direction, what = _ASKED[place]
    samples = [Sample(name, both[place].values) for name, both in found.items()]
    return histograms(samples, bins, "margin", direction, f"Asked for {what}.")


def _rows(found: Mapping[str, Both], place: int) -> Rows:
    cells = tuple((name, *_cells(both[place])) for name, both in found.items())
    note = (
        "Margin: score of the best true counterpart minus that of the hardest wrong one of the "
        "split, over the unit of the model's score. Below 0: the wrong one wins."
    )
    return Rows(f"Margins: {_ASKED[place][1]}", HEAD, cells, note)


def _cells(side: Margins) -> tuple[str, ...]:
    low, high = _quartiles(side)
    span = f"{minus(low)} to {minus(high)}"
    return f"{len(side.values):,}", minus(side.median), span, f"{side.below:.1f}\u00a0%"


def _quartiles(side: Margins) -> tuple[float, float]:
    ordered = side.values.sort().values
    last = len(ordered) - 1
    return ordered[round(0.25 * last)].item(), ordered[round(0.75 * last)].item()


def _plain(side: Margins, bins: Sequence[float]) -> dict[str, Any]:
    edges = torch.tensor(bins, dtype=torch.double)
    return {
        "queries": len(side.values),
        "left_out": side.left_out,
        "median": side.median,
        "quartiles": list(_quartiles(side)),
        "percent_below_0": side.below,
        "counts": torch.histogram(side.values, edges).hist.long().tolist(),
    }


def _headline(found: Mapping[str, Both]) -> str:
    words = [
        f"{name}: median margin {minus(i2t.median)} for images and {minus(t2i.median)} for "
        f"captions, below 0 for {i2t.below:.1f} % and {t2i.below:.1f} %"
        for name, (i2t, t2i) in found.items()
    ]
    return f"{'; '.join(words)}."
