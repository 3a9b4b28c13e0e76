"""Who tells captions from whose foils: models against sources (TAGS, Table 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.discrimination import Discriminated, discriminated
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.ngrams import NGrams
from counterfoil.evaluate.share_figures import Dot, dots
from counterfoil.evaluation.bootstrap import Share
from counterfoil.recipes.analyses.asking import (
    INTERVALS,
    Pen,
    asked,
    check_reads,
    drawn_captions,
    writes,
)
from counterfoil.recipes.analyses.duels import Foils, by_rule, others, stored, written
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import Scorer, open_scorers
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

BLIND = "blind"
_NOTES = {
    "every pair": "The caption scores above a foil.",
    "the writer's hardest": "Above the foil that its writer scores highest.",
    "every foil at once": "Above all foils of its own.",
}
PAPER = (
    "The paper (Flickr30K, ties right, pairs not said): foils of TAGS, TAGS 98.7 and UNITER 2.3; "
    "of a TAGS of another seed, 99.7 and 2.8; of VSE-C's rules, 96.3 and 87.5."
)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class DuelPlan:
    """What is asked.

    Attributes:
        split: whose captions.
        anchors: how many images, a caption of each.
        stores: folders of written captions.
        writers: models that write now; None for all that are asked and can.
        rules: whether rules write too; at most as many of a kind and caption as models keep.
        others: random captions of other pictures, of each caption.
        pen: how models write.
        seed: of captions, foils and intervals.
    """

    split: str = "test"
    anchors: int = 200
    stores: tuple[Path, ...] = ()
    writers: tuple[str, ...] | None = None
    rules: bool = True
    others: int = 1
    pen: Pen = Pen()
    seed: int = 0


Matrix = Mapping[str, Mapping[str, Discriminated]]  # by source, then by model
Judge = Callable[[Tensor, Sequence[str]], Tensor]


def discrimination(
    names: Sequence[str], source: Source, out: Path, *, plan: DuelPlan | None = None
) -> Matrix:
    """Ask models whether captions score above foils of several sources; one sees no picture.

    Args:
        names: of the models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        plan: what is asked.

    Returns:
        Accuracies by source and model; "blind" is a language model of the training captions.

    Raises:
        ValueError: the page exists, nobody writes, or models, stores and data do not fit.
    """
    check_out(out)
    world.join()
    plan = plan or DuelPlan()
    corpus, scorers = source.split(plan.split), open_scorers(names)
    check_reads(scorers)
    rows = drawn_captions(corpus, plan.anchors, torch.Generator().manual_seed(plan.seed))
    foils = tuple(_foils(scorers, source, corpus, rows, plan))
    if not foils:
        raise ValueError(
            "there is nothing to tell apart; name stores with --foils, writers with --writer, or "
            "let rules write"
        )
    blind, told = _blind(source, corpus, foils)
    judges: dict[str, Judge] = {s.name: _judge(s, corpus) for s in scorers}
    found = _matrix({**judges, BLIND: blind}, foils, corpus, plan.seed)
    page = AnalysisPage(
        title="Captions and foils told apart",
        headline=_headline(found),
        protocol=_protocol(corpus, rows, scorers, plan, told),
        provenance=made_now(seed=plan.seed),
        figures=tuple(_figures(found)),
        tables=tuple(_rows(found)),
    )
    publish(page, _plain(found, scorers), out)
    return found


def _foils(
    scorers: Sequence[Scorer], source: Source, corpus: Corpus, rows: Tensor, plan: DuelPlan
) -> Iterator[Foils]:
    """All sources, stored ones first."""
    yield from stored(plan.stores, source, corpus, rows)
    writers = [s for s in scorers if writes(s)] if not plan.stores else []
    if plan.writers is not None:
        known = {scorer.given: scorer for scorer in scorers}
        unknown = [name for name in plan.writers if name not in known]
        known |= {scorer.given: scorer for scorer in open_scorers(unknown)}
        writers = [known[name] for name in plan.writers]
        check_reads(writers)
    for writer in writers:
        yield from written(writer, corpus, rows, plan.pen, plan.seed)
    if plan.rules:
        yield from by_rule(source, corpus, rows, plan.pen.keep, plan.seed)
    yield from others(corpus, rows, plan.others, plan.seed)


def _judge(scorer: Scorer, corpus: Corpus) -> Judge:
    return lambda images, texts: asked(scorer, corpus, images, texts)


def _blind(source: Source, corpus: Corpus, foils: Sequence[Foils]) -> tuple[Judge, str]:
    """A model of training captions that are not asked, and what it learnt from."""
    said = {corpus.texts[row] for one in foils for row in one.rows.tolist()}
    said |= {text for one in foils for text in one.texts}
    held = source.split("train").texts
    kept = [text for text in held if text not in said]
    if not kept:
        raise ValueError(
            f"all {len(held):,} training captions of {corpus.name} are asked, and the blind model "
            "has none to learn from; ask fewer with --anchors"
        )
    model = NGrams.of(kept)
    told = f"{BLIND}: {model.order}-gram model of {len(kept):,} training captions"
    return lambda images, texts: model.scores(texts).double(), told


def _matrix(
    judges: Mapping[str, Judge], foils: Sequence[Foils], corpus: Corpus, seed: int
) -> dict[str, dict[str, Discriminated]]:
    images = [corpus.owner[one.rows] for one in foils]
    texts = [corpus.texts[row] for one in foils for row in one.rows.tolist()]
    texts += [text for one in foils for text in one.texts]
    found: dict[str, dict[str, Discriminated]] = {one.source: {} for one in foils}
    for name, judge in judges.items():
        scores = judge(torch.cat([*images, *images]), texts)
        parts = scores.view(2, -1).split([len(one.rows) for one in foils], 1)  # type: ignore[no-untyped-call]
        for one, (positive, negative) in zip(foils, parts, strict=True):
            duels = one.duels(corpus.owner)
            found[one.source][name] = discriminated(duels, positive, negative, seed=seed)
    return found


def _protocol(
    corpus: Corpus, rows: Tensor, scorers: Sequence[Scorer], plan: DuelPlan, told: str
) -> str:
    who = "; ".join(f"{scorer.name}: {scorer.said()}" for scorer in scorers)
    return (
        f"{corpus.name} {corpus.part}: a caption each of {len(rows):,} images; models write with "
        f"{plan.pen.said()}; ties wrong; {who}; {told}; seed {plan.seed}; {INTERVALS}"
    )


def _measures(found: Discriminated) -> dict[str, tuple[Share | None, float]]:
    """Shares with what guessing gives, by the title of their table."""
    shares = (found.pairs, 50.0), (found.hardest, 50.0), (found.every, found.chance)
    return dict(zip(_NOTES, shares, strict=True))


def _figures(found: Matrix) -> Iterator[Figure]:
    for number, title in enumerate(_NOTES):
        points = [
            Dot(line, name, share, guess)
            for line, models in found.items()
            for name, one in models.items()
            for share, guess in (_measures(one)[title],)
            if share
        ]
        if points:
            caption = f"{title[0].upper()}{title[1:]}. {_NOTES[title]}"
            yield dots(points, f"told apart, {title}, %", f"duels-{number}", caption, "guessing")


def _rows(found: Matrix) -> Iterator[Rows]:
    for title, note in _NOTES.items():
        lines = {s: {n: _measures(one)[title] for n, one in m.items()} for s, m in found.items()}
        cells = []
        for line, models in lines.items():
            share, guess = next(iter(models.values()))
            if share is not None:
                told = [_cell(share) for share, _ in models.values()]
                cells.append((line, f"{share.count:,}", *told, f"{guess:.1f}"))
        if cells:
            head = "foils", "count", *next(iter(found.values())), "guessing"
            more = f"\n{PAPER}" if title == "every pair" else ""
            yield Rows(f"Told apart, %: {title}", head, tuple(cells), f"{note}{more}")


def _cell(share: Share | None) -> str:
    if share is None:
        return "–"
    return f"{share.value:.1f} ({share.interval.low:.1f} to {share.interval.high:.1f})"


def _headline(found: Matrix) -> str:
    words = [
        f"{line}: " + ", ".join(f"{name} {one.pairs.value:.1f} %" for name, one in models.items())
        for line, models in found.items()
    ]
    return f"Captions above a foil. {'; '.join(words)}."


def _plain(found: Matrix, scorers: Sequence[Scorer]) -> dict[str, Any]:
    return {
        "models": {scorer.name: scorer.given for scorer in scorers},
        "foils": {
            line: {name: one.plain() for name, one in models.items()}
            for line, models in found.items()
        },
    }
