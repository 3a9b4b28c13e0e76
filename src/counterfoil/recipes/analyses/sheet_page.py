"""What people answered on a sheet, as tables and a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from counterfoil.core.console import output
from counterfoil.corpus.pictures import open_picture
from counterfoil.evaluate.agreement import Agreement
from counterfoil.evaluate.analysis_page import AnalysisPage, Card, Cards, Column, Rows
from counterfoil.evaluate.gallery import Shown, thumbnail
from counterfoil.evaluate.table import plain
from counterfoil.evaluation.bootstrap import Share
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.sheet import PICTURES
from counterfoil.recipes.analyses.sheet_answers import (
    ANSWERS,
    Judged,
    judged,
    read_answers,
    read_key,
)
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.show import console

HEAD = "", "by", "answers", *ANSWERS, "judged false, %"
PAPER = "TAGS-DC: 96.5 % of 200 sentences, two annotators."
_NOTE = (
    "Of the answers, unsure ones among them. By all: sentences that all answered, counted where "
    "all say the same. In brackets Wilson's 95 % interval, with as many trials as sentences. "
    + PAPER
)
_AGREEMENT = (
    "Same: pairs of answers to one sentence that are the same. Kappa: Cohen's, of two annotators; "
    "alpha: Krippendorff's, nominal, of more; both are 0 where annotators agree as often as by "
    "chance, and – where all gave one and the same answer. In brackets 95 % intervals: sentences "
    "drawn anew 1,000 times."
)


def judge(folder: Path, files: Sequence[Path], out: Path | None = None, *, seed: int = 0) -> Judged:
    """Read answers, print rates and agreement and, if asked, write a page with disagreements.

    Args:
        folder: of the sheet.
        files: answers, one file of each annotator.
        out: page to write; the numbers go beside it as JSON.
        seed: of the intervals of agreement.

    Raises:
        ValueError: the page exists, or the answers are damaged or for another sheet.
    """
    if out is not None:
        check_out(out)
    key = read_key(folder)
    found = judged(key, [read_answers(path, key) for path in files], seed=seed)
    page = _page(found, folder, seed)
    if out is not None:
        publish(page, _plain(found, seed), out)
        return found
    for table in page.tables:
        console.print(plain(table, page.protocol))
    output(page.headline)
    return found


def _page(found: Judged, folder: Path, seed: int) -> AnalysisPage:
    tables = [_rates(found)]
    tables += [_agreed(found)] if found.agreements else []
    tables += [_differ(found)] if any(found.disagreements()) else []
    cards = tuple(_cards(found, folder))
    note = "What not all judged alike."
    return AnalysisPage(
        title="Sentences as people judge them",
        headline=_headline(found),
        protocol=_protocol(found, seed),
        provenance=made_now(seed=seed),
        tables=tuple(tables),
        sections=(Cards("Disagreements", note, cards),) if cards else (),
    )


def _protocol(found: Judged, seed: int) -> str:
    key = found.key
    who = ", ".join(map(str, found.annotators))
    many = "annotator" if len(found.annotators) == 1 else "annotators"
    return (
        f"{key.data}; {'; '.join(key.sources)}; sheet {key.sheet}, seed {key.seed}: "
        f"{len(key.items):,} sentences, each about a picture of its own, sources hidden, orders "
        f"shuffled; {many} {who} of {key.annotators}; seed {seed}"
    )


def _headline(found: Judged) -> str:
    by = "all judgements" if len(found.annotators) > 1 else f"annotator {found.annotators[0]}"
    told = [
        f"{one.source}: {one.false:.1f} % ({one.interval.low:.1f} to {one.interval.high:.1f})"
        for one in found.judgements
        if one.by == by
    ]
    return f"Judged false: {'; '.join(told)}."


def _rates(found: Judged) -> Rows:
    rows = tuple(
        (
            one.source,
            one.by,
            f"{one.answered:,}",
            *(f"{count:,}" for count in one.counts),
            f"{one.false:.1f} ({one.interval.low:.1f} to {one.interval.high:.1f})",
        )
        for one in found.judgements
    )
    return Rows("Judged false", HEAD, rows, _NOTE)


def _agreed(found: Judged) -> Rows:
    head = "annotators", "sentences", "same, %", "kappa", "alpha"
    rows = tuple(_agreement(one, found.annotators) for one in found.agreements)
    return Rows("Agreement", head, rows, _AGREEMENT)


def _agreement(one: Agreement, annotators: Sequence[int]) -> tuple[str, ...]:
    who = " and ".join(str(annotators[judge]) for judge in one.judges)
    return (who, f"{one.items:,}", _shown(one.raw, 1), _shown(one.kappa, 2), _shown(one.alpha, 2))


def _shown(share: Share | None, places: int) -> str:
    if share is None or math.isnan(share.value):
        return "–"
    span = share.interval
    text = f"{share.value:.{places}f} ({span.low:.{places}f} to {span.high:.{places}f})"
    return text.replace("-", "−")


def _differ(found: Judged) -> Rows:
    head = "item", "sentence", "source", *(f"annotator {n}" for n in found.annotators)
    rows = tuple(
        (item.id, item.sentence, item.source, *said) for item, said in found.disagreements()
    )
    return Rows("Disagreements", head, rows)


def _cards(found: Judged, folder: Path) -> Iterator[Card]:
    for item, said in found.disagreements():
        path = folder / PICTURES / f"{item.id}.png"
        picture = thumbnail(open_picture(path)) if path.is_file() else None
        whose = ", ".join(
            f"{n}: {answer}" for n, answer in zip(found.annotators, said, strict=True)
        )
        lines = (Shown(item.sentence), Shown(f"made of: {item.caption}"))
        yield Card(
            Shown(item.image, picture), "", (Column(f"{item.id} · {item.source}", whose, lines),)
        )


def _plain(found: Judged, seed: int) -> dict[str, object]:
    return {
        "sheet": found.key.sheet,
        "seed": seed,
        "annotators": list(found.annotators),
        "judgements": [one.plain() for one in found.judgements],
        "agreement": [one.plain() for one in found.agreements],
        "disagreements": [
            {**item.model_dump(), "answers": list(said)} for item, said in found.disagreements()
        ],
    }
