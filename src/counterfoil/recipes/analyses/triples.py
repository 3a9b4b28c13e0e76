"""Triples of an image, its caption and a negative, from batches, the whole set, or written.

TAGS (https://arxiv.org/abs/2111.03349), Fig. 1a.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.analysis_page import AnalysisPage
from counterfoil.evaluate.triples import (
    LEVEL,
    Triples,
    all_scores,
    difficulty,
    hardest_of,
    in_all,
    in_batches,
)
from counterfoil.recipes.analyses.asking import (
    INTERVALS,
    Pen,
    asked,
    check_reads,
    drawn_captions,
    writer_of,
    writes,
)
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import Scorer, open_scorers
from counterfoil.recipes.analyses.stores import open_stores
from counterfoil.recipes.analyses.triples_page import Seen, drawn, headline, table
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

WHOLE, WRITTEN = "whole set", "written"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TriplePlan:
    """What is drawn, and from where.

    Attributes:
        split: whose captions are anchors, and whose are negatives.
        anchors: how many images, a caption of each.
        batch: captions in a batch.
        level: how far below the positive counts as easy, in units of a score.
        writer: who writes; None for each model itself.
        written: folder of written captions, in place of a writer.
        pen: how to write.
        seed: of anchors, batches, written captions and intervals.
    """

    split: str = "test"
    anchors: int = 200
    batch: int = 128
    level: float = LEVEL
    writer: str | None = None
    written: Path | None = None
    pen: Pen = Pen()
    seed: int = 0


def triples(
    names: Sequence[str],
    source: Source,
    out: Path,
    *,
    judges: Sequence[str] = (),
    plan: TriplePlan | None = None,
) -> tuple[Seen, ...]:
    """Draw how hard negatives of three sources are for models, and for others who judge.

    Args:
        names: of the models, each of which chooses the hardest negatives of every source.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        judges: models that score the same triples without having chosen any.
        plan: what is drawn.

    Returns:
        Every source by every model that chose and every model that scored.

    Raises:
        ValueError: the page exists, a model cannot write, read or see, or does not fit the data.
    """
    check_out(out)
    world.join()
    plan = plan or TriplePlan()
    if plan.written is not None and plan.writer is not None:
        raise ValueError("captions are given with --written and a writer with --writer; drop one")
    corpus = source.split(plan.split)
    if plan.batch > int((corpus.owner >= 0).sum()):
        raise ValueError(
            f"batches of {plan.batch} cannot be drawn from {len(corpus.texts):,} captions; give "
            "less with --batch"
        )
    scorers = open_scorers([*names, *judges])
    check_reads(scorers)
    rows = drawn_captions(corpus, plan.anchors, torch.Generator().manual_seed(plan.seed))
    stored = _stored(plan, source, corpus, rows)
    found = tuple(
        seen
        for scorer in scorers[: len(names)]
        for seen in _of(scorer, scorers[len(names) :], corpus, rows, plan, stored)
    )
    page = AnalysisPage(
        title="Triples",
        headline=headline(found),
        protocol=_protocol(corpus, rows, scorers, plan),
        provenance=made_now(seed=plan.seed),
        figures=tuple(drawn(found, plan.level)),
        tables=(table(found, plan.level),),
    )
    models = {scorer.name: scorer.given for scorer in scorers}
    publish(page, {"models": models, "triples": [seen.plain() for seen in found]}, out)
    return found


Foils = Mapping[int, Sequence[str]]


def _stored(plan: TriplePlan, source: Source, corpus: Corpus, rows: Tensor) -> Foils | None:
    """Written captions by the row of the caption they were made of; None where models write.

    Raises:
        ValueError: they were written for another split, or for none of the captions.
    """
    if plan.written is None:
        return None
    store = open_stores([plan.written], source)[0]
    if store.corpus.part != corpus.part:
        raise ValueError(
            f"{plan.written} was written for split {store.corpus.part!r}, and the triples are of "
            f"{corpus.part!r}; name it with --split"
        )
    wanted = set(rows.tolist())
    found: dict[int, list[str]] = {}
    for row, foil in zip(store.texts, store.foils, strict=True):
        if row in wanted:
            found.setdefault(row, []).append(foil.foil)
    if not found:
        raise ValueError(
            f"{plan.written} has no foil of the {len(rows):,} captions that were drawn; draw more "
            "with --anchors"
        )
    return found


def _written(scorer: Scorer, corpus: Corpus, rows: Tensor, plan: TriplePlan) -> Foils:
    """What a model writes, or another one for it.

    Raises:
        ValueError: it cannot.
    """
    author = scorer if plan.writer is None else open_scorers([plan.writer])[0]
    if not writes(author):
        raise ValueError(
            f"{author.given} writes no captions; name one model with a head for hidden words with "
            "--writer, or captions that are written with --written"
        )
    writer = writer_of(author.models[0], corpus, plan.pen, plan.seed)
    number = {name: row for row, name in enumerate(corpus.text_ids)}
    found: dict[int, list[str]] = {}
    for foil in writer.foils(rows.tolist()):
        found.setdefault(number[foil.text], []).append(foil.foil)
    return found


def _of(
    scorer: Scorer,
    judges: Sequence[Scorer],
    corpus: Corpus,
    rows: Tensor,
    plan: TriplePlan,
    stored: Foils | None,
) -> Iterator[Seen]:
    """Triples that one model chose, by its own scores and by those of the judges."""
    foils = _written(scorer, corpus, rows, plan) if stored is None else stored
    scores = all_scores(scorer.on(corpus), corpus.owner[rows])
    rng = torch.Generator().manual_seed(plan.seed + 1)
    batch = in_batches(scores, rows, corpus.relation, batch=plan.batch, rng=rng)
    whole = in_all(scores, rows, corpus.relation)
    sources = {
        f"batch of {plan.batch}": [corpus.texts[row] if row >= 0 else "" for row in batch],
        WHOLE: [corpus.texts[row] if row >= 0 else "" for row in whole],
        WRITTEN: _hardest(scorer, corpus, rows, foils),
    }
    for judge in (scorer, *judges):
        for name, negatives in sources.items():
            there = torch.tensor([bool(text) for text in negatives])
            kept, images = rows[there], corpus.owner[rows[there]]
            texts = [corpus.texts[row] for row in kept.tolist()]
            both = [*texts, *(text for text in negatives if text)]
            shown = asked(judge, corpus, torch.cat([images, images]), both)
            true, false = shown[: len(kept)], shown[len(kept) :]
            made = Triples(name, images, true, false, int((~there).sum()))
            found = difficulty(made, level=plan.level, seed=plan.seed)
            yield Seen(scorer.name, judge.name, made, found)


def _hardest(scorer: Scorer, corpus: Corpus, rows: Tensor, foils: Foils) -> list[str]:
    """The written caption of each caption that a model scores highest; "" where there is none."""
    flat = [(place, foil) for place, row in enumerate(rows.tolist()) for foil in foils.get(row, ())]
    if not flat:
        return [""] * len(rows)
    group = torch.tensor([place for place, _ in flat])
    found = asked(scorer, corpus, corpus.owner[rows[group]], [foil for _, foil in flat])
    best = hardest_of(found, group, len(rows)).tolist()
    return [flat[place][1] if place >= 0 else "" for place in best]


def _protocol(corpus: Corpus, rows: Tensor, scorers: Sequence[Scorer], plan: TriplePlan) -> str:
    who = "; ".join(f"{scorer.name}: {scorer.said()}" for scorer in scorers)
    author = plan.writer or "each model itself"
    pen = f"by {author}, {plan.pen.said()}" if plan.written is None else f"of {plan.written}"
    return (
        f"{corpus.name} {corpus.part}, {len(corpus.texts):,} captions: a caption each of "
        f"{len(rows):,} images; written {pen}; a tie is not above; {who}; sampling seed "
        f"{plan.seed}; {INTERVALS}"
    )
