"""Tables of a set of foils, and a page with the items a model got most wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from counterfoil.corpus.foil_sets import FoilItem, FoilSet
from counterfoil.evaluate.foils import MARGIN, FoilScore, margins
from counterfoil.recipes.provenance import made_now
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Page,
    PageItem,
    TableBlock,
    render_page,
    thumbnail,
)

SUSPICIOUS = (
    f"suspicious: the blind model is surely more than {MARGIN:.0f} points above chance, so the "
    "captions alone give answers away"
)
MEANINGS = {
    "accuracy": "accuracy: the caption scores above every foil.",
    "pairwise": "pairwise: the caption scores above a foil.",
    "by threshold": "by threshold: each caption is judged alone.",
    "AUC": "AUC: a true caption scores above a false one of any picture.",
    "text": "text: each picture prefers its caption.",
    "image": "image: each caption prefers its picture.",
    "group": "group: text and image.",
}


def tables(lines: Sequence[FoilScore], blind: Sequence[FoilScore]) -> tuple[TableBlock, ...]:
    """One table for each measure; aggregates of the set's authors are marked."""
    guesses = {(line.measure, line.of): line for line in blind}
    head = "", "items", "%", "95 %", "chance", *(("blind", "95 %") if blind else ())
    found = []
    for measure in dict.fromkeys(line.measure for line in lines):
        rows = tuple(
            (*_cells(line), *_guess(guesses.get((measure, line.of)))) if blind else _cells(line)
            for line in lines
            if line.measure == measure
        )
        note = f"{MEANINGS[measure]} *: as the set's authors report it."
        if any(line.suspicious for line in blind if line.measure == measure):
            note = f"{note} !: {SUSPICIOUS}."
        found.append(TableBlock(measure, head, rows, note))
    return tuple(found)


def headline(lines: Sequence[FoilScore]) -> str:
    """The aggregates of the set's authors in one sentence."""
    told = []
    for measure in dict.fromkeys(line.measure for line in lines):
        own = [line for line in lines if line.own and line.measure == measure]
        numbers = ", ".join(f"{line.of} {line.value:.1f} %" for line in own)
        told += [f"{measure}: {numbers}"] if numbers else []
    return f"{'; '.join(told)}."


def rendered(
    foils: FoilSet,
    scores: Tensor,
    lines: Sequence[FoilScore],
    blind: Sequence[FoilScore],
    protocol: str,
    worst: Sequence[int],
    seed: int,
) -> str:
    """The page as HTML.

    Args:
        foils: the set.
        scores: (P,) of its pairs.
        lines: the numbers.
        blind: those of the blind model, or none.
        protocol: in one sentence.
        worst: items to show, in this order.
        seed: of what was drawn.
    """
    starts = [0]
    for item in foils.items:
        starts.append(starts[-1] + len(item.images) * len(item.texts))
    gaps = margins(foils, scores).tolist()
    cards = [
        card
        for row in worst
        for card in _cards(
            foils, foils.items[row], scores[starts[row] : starts[row + 1]].tolist(), gaps[row]
        )
    ]
    section = CardSection("Most wrong", _note(foils), tuple(cards))
    page = Page(
        title=foils.name,
        headline=headline(lines),
        protocol=protocol,
        provenance=made_now(seed=seed),
        tables=tables(lines, blind),
        sections=(section,) if cards else (),
    )
    return render_page(page)


def _cells(line: FoilScore) -> tuple[str, ...]:
    span = line.interval
    title = f"{line.of} *" if line.own else line.of
    return (
        title,
        f"{line.items:,}",
        f"{line.value:.1f}",
        f"{span.low:.1f} to {span.high:.1f}",
        f"{line.chance:.1f}",
    )


def _guess(line: FoilScore | None) -> tuple[str, str]:
    if line is None:
        return "", ""
    span = f"{line.interval.low:.1f} to {line.interval.high:.1f}"
    return f"{line.value:.1f}{' !' if line.suspicious else ''}", span


def _note(foils: FoilSet) -> str:
    what = {
        "choice": "the true caption's score less the best foil's",
        "crossed": "the lower true score less the higher false one",
        "judged": "distance from the median score, on the right side",
    }
    return f"Lowest margins first; margin: {what[foils.task]}."


def _cards(
    foils: FoilSet, item: FoilItem, scores: list[float], gap: float
) -> Iterator[ExampleCard]:
    """One card for each picture of an item, captions by score."""
    many = len(item.texts)
    for place, image in enumerate(item.images):
        own = scores[place * many : (place + 1) * many]
        true = place if foils.task == "crossed" else 0
        ranked = sorted(range(many), key=lambda at: (-own[at], at == true))
        found = tuple(
            PageItem(
                foils.corpus.texts[item.texts[at]], None, rank, at == true and item.true, own[at]
            )
            for rank, at in enumerate(ranked, 1)
        )
        name = foils.corpus.image_ids[image]
        pictures = foils.corpus.pictures
        shown = thumbnail(pictures.open(image)) if pictures else None
        away = f"{gap:.3f}".replace("-", "−")
        told = f"{item.category or 'item'} · {item.id} · margin {away}"
        yield ExampleCard(PageItem(name, shown), "", (CardColumn(told, "", found),))
