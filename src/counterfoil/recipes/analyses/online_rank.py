"""The paper's argument for offline negatives, measured: how hard a batch's hardest negative is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import torch

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.analysis_figures import Counted, by_batch
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.figures import Figure
from counterfoil.negatives.online_rank import (
    Direction,
    OnlineRanks,
    chance_of_top,
    expected_rank,
    online_ranks,
)
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import open_scorers, said
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

BATCHES = (32, 64, 128, 256, 512, 1024)
HEAD = "batch", "mean rank", "expected", "among the hardest", "expected share", "median gap"
_ASKED = {"i2t": "captions for an image", "t2i": "images for a caption"}


@final
@dataclass(frozen=True, slots=True)
class Line:
    """One direction at one batch size.

    Attributes:
        direction: "i2t", images ask for texts, or "t2i".
        batch: captions in a batch.
        mean_rank: of the online negative, from 1.
        half_interval: half of its 95 % interval over anchors.
        expected_rank: by counting.
        hardest: how many counterparts count as the hardest.
        top: percent of batches whose online negative is one of them.
        expected_top: by counting.
        median_gap: score of the negative minus score of the anchor pair.
    """

    direction: Direction
    batch: int
    mean_rank: float
    half_interval: float
    expected_rank: float
    hardest: int
    top: float
    expected_top: float
    median_gap: float


def online_rank(
    name: str,
    source: Source,
    out: Path,
    *,
    split: str = "train",
    batches: Sequence[int] = (),
    anchors: int = 200,
    draws: int = 20,
    top: int = 100,
    seed: int = 0,
) -> tuple[OnlineRanks, OnlineRanks]:
    """Rank the hardest negatives of random batches in a whole split, beside what counting says.

    AOQ, section 1. Images count as among the hardest in the proportion of images to texts: 20 where
    captions are 100 and an image has five, as the paper takes 60 images for 300 texts.

    Args:
        name: of the model; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        batches: sizes in captions; by default 32 to 1,024 as far as there are captions.
        anchors: captions whose batches are drawn.
        draws: batches of each size for each anchor.
        top: how many captions count as the hardest.
        seed: of anchors and batches.

    Returns:
        Images asking for texts, and texts for images.

    Raises:
        ValueError: the page exists, model and data do not fit, or a batch cannot be drawn.
    """
    check_out(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers([name])
    owned = int((corpus.owner >= 0).sum())
    sizes = tuple(batches) or tuple(b for b in BATCHES if b <= owned) or (owned,)
    rng = torch.Generator().manual_seed(seed)
    found = online_ranks(
        scorers[0].on(corpus),
        corpus.relation,
        batches=sizes,
        anchors=anchors,
        draws=draws,
        rng=rng,
    )
    many = f"{min(anchors, owned):,} anchors, {draws} batches of each size for each"
    protocol = f"{said(corpus, scorers, seed=seed)}; {many}"
    i2t, t2i = (_lines(ranks, corpus, top) for ranks in found)
    page = _page(i2t, t2i, corpus, protocol)
    numbers = {
        "models": [name],
        "seed": seed,
        "lines": [asdict(line) for lines in (i2t, t2i) for line in lines],
    }
    publish(page, numbers, out)
    return found


def _lines(ranks: OnlineRanks, corpus: Corpus, top: int) -> list[Line]:
    """One line for each batch size."""
    texts = int((corpus.owner >= 0).sum())
    described = int((corpus.relation.counts > 0).sum())
    captions = 1.0 if ranks.direction == "i2t" else texts / described
    hardest = max(1, round(top / captions))
    return [
        Line(
            ranks.direction,
            batch,
            *ranks.mean(place),
            expected_rank(texts, batch, captions=captions),
            hardest,
            ranks.top(place, hardest),
            100 * chance_of_top(hardest, texts, batch, captions=captions),
            ranks.gap(place),
        )
        for place, batch in enumerate(ranks.batches)
    ]


def _page(i2t: list[Line], t2i: list[Line], corpus: Corpus, protocol: str) -> AnalysisPage:
    shown = next((line for line in i2t if line.batch == 128), i2t[-1])
    headline = (
        f"The hardest wrong caption of a batch of {shown.batch:,} has rank "
        f"{_rank(shown.mean_rank)} on average in {len(corpus.texts):,} captions (by counting "
        f"{_rank(shown.expected_rank)}) and is one of the {shown.hardest:,} hardest in "
        f"{shown.top:.1f} % of batches (by counting {shown.expected_top:.1f} %)."
    )
    return AnalysisPage(
        title="How hard online negatives are",
        headline=headline,
        protocol=protocol,
        provenance=made_now(),
        figures=_figures(i2t, t2i),
        tables=(_rows(i2t), _rows(t2i)),
    )


def _rank(rank: float) -> str:
    return f"{rank:,.0f}" if rank >= 100 else f"{rank:.1f}"


def _rows(lines: Sequence[Line]) -> Rows:
    asked = _ASKED[lines[0].direction]
    cells = tuple(
        (
            f"{line.batch:,}",
            f"{line.mean_rank:,.1f}\u00a0±\u00a0{line.half_interval:,.1f}",
            f"{line.expected_rank:,.1f}",
            f"{line.top:.2f}\u00a0%",
            f"{line.expected_top:.2f}\u00a0%",
            f"{line.median_gap:+.3f}".replace("-", "−"),
        )
        for line in lines
    )
    note = (
        f"Rank among all wrong {asked.split()[0]} of the split, from 1; ± is a 95 % interval over "
        f"anchors. Hardest: the first {lines[0].hardest:,}. Gap: score of the negative minus score "
        "of the anchor pair. Expected: by counting, whatever the model."
    )
    return Rows(f"Online negatives: {asked}", HEAD, cells, note)


def _figures(i2t: Sequence[Line], t2i: Sequence[Line]) -> tuple[Figure, Figure]:
    ranks, tops = [], []
    for lines in (i2t, t2i):
        name, batches = _ASKED[lines[0].direction], tuple(line.batch for line in lines)
        expected = tuple(line.expected_rank for line in lines)
        measured = tuple(line.mean_rank for line in lines)
        spread = tuple(line.half_interval for line in lines)
        ranks.append(Counted(name, batches, expected, measured, spread))
        counted = tuple(line.expected_top for line in lines)
        tops.append(Counted(name, batches, counted, tuple(line.top for line in lines)))
    hardest = f"{i2t[0].hardest:,} captions or {t2i[0].hardest:,} images"
    return (
        by_batch(ranks, "mean rank", "rank", "Its rank in the whole split.", log=True),
        by_batch(
            tops,
            "share of batches, %",
            "top",
            f"How often it is one of the hardest {hardest}.",
        ),
    )
