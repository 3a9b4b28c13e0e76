"""Retrievals of two models for the same queries (AOQ, Fig. 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.analysis_page import AnalysisPage, Card, Cards, Column, Rows
from counterfoil.evaluate.differ import differ
from counterfoil.evaluate.gallery import Shown, shown_caption, shown_image
from counterfoil.evaluate.protocols import WHOLE
from counterfoil.evaluate.recall import Direction
from counterfoil.evaluate.report import figure
from counterfoil.evaluate.result import METRICS
from counterfoil.recipes.analyses.queries import asked_row
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import exhibits, open_scorers, said
from counterfoil.recipes.measured import Measured
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

Both = dict[str, Measured]
TEXTS, IMAGES = 5, 3  # of a list; as many as the paper shows
_SIDES = {
    "i2t": ("Image to text", "captions for an image"),
    "t2i": ("Text to image", "images for a caption"),
}


def side_by_side(
    names: Sequence[str],
    source: Source,
    out: Path,
    *,
    split: str = "test",
    queries: Sequence[str] = (),
    count: int = 4,
) -> Both:
    """Show what two models retrieve, the correct ones marked.

    Args:
        names: of the two models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        queries: captions of the split and ids of its images; without any, those on which the models
            differ most, half in favour of each.
        count: queries of each kind, where none are given.

    Returns:
        The evaluations by the models' short names.

    Raises:
        ValueError: not two models, the page exists, a query is not in the split, or model and data
            do not fit.
    """
    if len(names) != 2:
        raise ValueError(
            f"{len(names)} models are given, but two are set side by side; join those of an "
            "ensemble with +"
        )
    check_out(out)
    world.join()
    corpus = source.split(split)
    asked = [asked_row(query, corpus) for query in queries]
    scorers = open_scorers(names)
    both = {s.name: Measured.of(s.on(corpus), corpus, WHOLE) for s in scorers}
    chosen = _given(asked) if asked else _differing(both, count)
    page = AnalysisPage(
        title=f"{' and '.join(both)}, side by side",
        headline=_headline(both),
        protocol=said(corpus, scorers),
        provenance=made_now(),
        tables=(_rows(both),),
        sections=_sections(corpus, both, chosen),
    )
    numbers = {
        "models": {scorer.name: scorer.given for scorer in scorers},
        "results": {name: measured.report.plain() for name, measured in both.items()},
        "queries": _queries(corpus, both, chosen),
    }
    publish(page, numbers, out)
    return both


def differing(
    corpus: Corpus, both: Both, count: int
) -> tuple[tuple[Cards, ...], list[dict[str, object]]]:
    """The queries on which two models differ most, half in favour of each: cards, and JSON.

    Args:
        corpus: the split that both were measured on.
        both: their evaluations by name.
        count: of each kind.
    """
    chosen = _differing(both, count)
    return _sections(corpus, both, chosen), _queries(corpus, both, chosen)


def _queries(
    corpus: Corpus, both: Both, chosen: Sequence[tuple[str, str, str, list[int]]]
) -> list[dict[str, object]]:
    return [_plain(corpus, both, side, row) for *_, side, rows in chosen for row in rows]


def _sections(
    corpus: Corpus, both: Both, chosen: Sequence[tuple[str, str, str, list[int]]]
) -> tuple[Cards, ...]:
    return tuple(
        Cards(title, note, tuple(_card(corpus, both, side, row) for row in rows))
        for title, note, side, rows in chosen
        if rows
    )


def _given(asked: Sequence[tuple[Direction, int]]) -> list[tuple[str, str, str, list[int]]]:
    return [
        (
            _SIDES[side][0],
            "The queries that were asked for.",
            side,
            [r for s, r in asked if s == side],
        )
        for side in _SIDES
    ]


def _differing(both: Both, count: int) -> list[tuple[str, str, str, list[int]]]:
    """Title, note, direction and rows of each section."""
    first, second = both
    sections = []
    for place, (side, (title, what)) in enumerate(_SIDES.items()):
        ranked = [measured.report.ranked[place] for measured in both.values()]
        better, worse = differ(ranked[0], ranked[1], count)
        for name, rows in ((second, better), (first, worse)):
            note = f"Where {name} ranks the best true one highest above the other; {what}."
            sections.append((f"{title}: for {name}", note, side, rows))
    return sections


def _card(corpus: Corpus, both: Both, side: str, row: int) -> Card:
    shown = exhibits(corpus)
    asked = shown_image(shown, row) if side == "i2t" else shown_caption(shown, row)
    columns = tuple(
        Column(name, _place(measured, side, row), _list(corpus, measured, side, row))
        for name, measured in both.items()
    )
    return Card(asked, "", columns)


def _place(measured: Measured, side: str, row: int) -> str:
    rank = _rank(measured, side, row)
    return "no true counterpart" if rank < 1 else f"first true one at place {rank:,}"


def _rank(measured: Measured, side: str, row: int) -> int:
    return int(measured.report.ranked[side == "t2i"].ranks[row]) + 1


def _list(corpus: Corpus, measured: Measured, side: str, row: int) -> tuple[Shown, ...]:
    shown = exhibits(corpus)
    rows, scores = _best(measured, side, row)
    item = shown_caption if side == "i2t" else shown_image
    found = zip(rows.tolist(), scores.tolist())
    return tuple(item(shown, r, row, place, s) for place, (r, s) in enumerate(found) if r >= 0)


def _best(measured: Measured, side: str, row: int) -> tuple[Tensor, Tensor]:
    if side == "i2t":
        return measured.texts[row, :TEXTS], measured.text_scores[row, :TEXTS]
    return measured.images[row, :IMAGES], measured.image_scores[row, :IMAGES]


def _plain(corpus: Corpus, both: Both, side: str, row: int) -> dict[str, object]:
    names = corpus.text_ids if side == "i2t" else corpus.image_ids
    return {
        "direction": side,
        "query": corpus.image_ids[row] if side == "i2t" else corpus.texts[row],
        "rank": {name: _rank(measured, side, row) for name, measured in both.items()},
        "found": {
            name: [names[r] for r in _best(measured, side, row)[0].tolist() if r >= 0]
            for name, measured in both.items()
        },
    }


def _rows(both: Both) -> Rows:
    cells = tuple(
        (metric, *(figure(metric, m.report.numbers[place]) for m in both.values()))
        for place, metric in enumerate(METRICS)
    )
    note = "Recalls in percent; a query counts when any true counterpart is in the first K."
    return Rows("Retrieval", ("metric", *both), cells, note)


def _headline(both: Both) -> str:
    (first, one), (second, two) = both.items()
    words = []
    for place, (_, what) in enumerate(_SIDES.values()):
        ranks = one.report.ranked[place].ranks, two.report.ranked[place].ranks
        better, worse = int((ranks[1] < ranks[0]).sum()), int((ranks[1] > ranks[0]).sum())
        words.append(
            f"asked for {what}, {second} ranks the best true one higher {better:,} times and lower "
            f"{worse:,} times of {len(ranks[0]):,}"
        )
    return f"Compared with {first}: {'; '.join(words)}."
