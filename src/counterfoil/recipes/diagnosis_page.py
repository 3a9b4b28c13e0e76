"""A diagnosis as tables and as a page of examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from counterfoil.corpus.corpus import Corpus
from counterfoil.recipes.diagnosis import Diagnosis, Side
from counterfoil.recipes.provenance import made_now
from counterfoil.report.figures import NamedSample, gap_histograms
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Figure,
    FigureSection,
    Page,
    PageItem,
    TableBlock,
    thumbnail,
    write_page,
)

DEPTH = 6  # negatives shown of each anchor


def tables(found: Diagnosis) -> tuple[TableBlock, ...]:
    """Hardness and suspects by rank of both sides, what the columns mean below them, and hubs."""
    ranks = _ranks(found.texts, ()), _ranks(found.images, _meanings(found.images))
    return (*ranks, _hubs(found))


def write(found: Diagnosis, page: Path, *, title: str, examples: int) -> None:
    """Write the page: the tables, how far negatives score below their positives, examples."""
    groups = tuple(
        _examples(found, side, examples, of_images=side is found.texts)
        for side in (found.texts, found.images)
    )
    gaps = _gaps(found)
    write_page(
        Page(
            title=f"Mined negatives in {title}",
            headline="",
            protocol=found.line,
            provenance=made_now(),
            tables=tables(found),
            sections=(*([FigureSection("Hardness of negatives", gaps)] if gaps else []), *groups),
        ),
        page,
    )


def _ranks(side: Side, notes: tuple[str, ...]) -> TableBlock:
    scored = side.gaps is not None
    rows = []
    for place, rank in enumerate(side.ranks):
        whole = place > 0 and place == len(side.ranks) - 1
        span = f"{rank.first}" if rank.first == rank.last else f"{rank.first}–{rank.last}"
        gap = "–" if rank.gap is None else f"{rank.gap:+.3f}".replace("-", "−")
        cells = ["all" if whole else span, f"{rank.pairs:,}", *([gap] if scored else [])]
        rows.append((*cells, *(_percent(share) for share in rank.suspected)))
    columns = ("rank", "pairs", *(["median gap"] if scored else []))
    heads = tuple(f"{estimate.name}, %" for estimate in side.estimates)
    title = f"{side.name[0].upper()}{side.name[1:]}: hardness and suspects"
    return TableBlock(title, (*columns, *heads), tuple(rows), "\n".join(notes))


def _meanings(side: Side) -> tuple[str, ...]:
    scored = side.gaps is not None
    gap = ("Median gap: score less that of the anchor pair.",) if scored else ()
    return (
        *gap,
        *(f"{e.name.capitalize()}: percent of pairs whose text {e.words}." for e in side.estimates),
    )


def _hubs(found: Diagnosis) -> TableBlock:
    rows = tuple(
        (side.name, f"{side.hubs.skewness:.2f}", _percent(side.hubs.never),
         _percent(side.hubs.crowd))
        for side in (found.texts, found.images)
    )  # fmt: skip
    names = (_caption(found.corpus), _described(found.corpus))
    largest = [
        f"Most listed of the {side.name}: "
        + "; ".join(
            f"{name(row)} ({count:,} of {len_:,} lists)" for row, count in side.hubs.largest
        )
        for side, name, len_ in zip(
            (found.texts, found.images), names, (len(found.corpus), len(found.corpus.texts))
        )
    ]
    shared = "–" if found.overlap is None else _percent(found.overlap)
    notes = (
        f"Of how often each is among the first {found.texts.hubs.first} texts or "
        f"{found.images.hubs.first} images of a list: skewness, percent never listed, percent of "
        "all places taken by the most listed hundredth.",
        *largest,
        f"Two captions of an image share {shared} % of their first {found.first} images (Jaccard).",
    )
    return TableBlock(
        "Hubs", ("lists", "skewness", "never, %", "hundredth, %"), rows, "\n".join(notes)
    )


def _gaps(found: Diagnosis) -> tuple[Figure, ...]:
    sources = [
        NamedSample(side.name, side.gaps[side.looked.listed].numpy())
        for side in (found.texts, found.images)
        if side.gaps is not None and bool(side.looked.listed.any())
    ]
    return (gap_histograms(sources),) if sources else ()


def _examples(found: Diagnosis, side: Side, count: int, *, of_images: bool) -> CardSection:
    """The first anchors that were drawn, one an image."""
    anchors = side.looked.anchors
    lines: dict[int, int] = {}
    for line, image in enumerate(anchors.image.tolist()):
        lines.setdefault(image, line)
    step = max(1, len(lines) // max(count, 1))  # spread over the split
    chosen = list(lines.values())[::step][:count]
    rows = tuple(_example(found, side, line, of_images=of_images) for line in chosen)
    note = "Anchors spread over the split; marked is what may be true after all."
    if of_images and side.gaps is not None:
        note += " Above positive: above the one of the image's own captions that was drawn."
    return CardSection(f"{side.name[0].upper()}{side.name[1:]}", note, rows)


def _example(found: Diagnosis, side: Side, line: int, *, of_images: bool) -> ExampleCard:
    corpus, looked = found.corpus, side.looked
    image, text = int(looked.anchors.image[line]), int(looked.anchors.text[line])
    depth = min(DEPTH, int(looked.listed[line].sum()))
    listed = tuple(_listed(corpus, side, line, n, of_images=of_images) for n in range(depth))
    if of_images:
        captions, _ = corpus.relation.captions(looked.anchors.image[line : line + 1])
        own = tuple(
            PageItem(corpus.texts[row], true=True, score=_known(float(found.own[row])))
            for row in captions.tolist()
        )
        return ExampleCard(_image(corpus, image), "", (CardColumn("", "", (*own, *listed)),))
    shown = replace(_image(corpus, image, score=float(found.own[text])), true=True)
    return ExampleCard(PageItem(corpus.texts[text]), "", (CardColumn("", "", (shown, *listed)),))


def _listed(corpus: Corpus, side: Side, line: int, place: int, *, of_images: bool) -> PageItem:
    marks = tuple(e.name for e in side.estimates if bool(e.found[line, place]))
    score = None if side.scores is None else float(side.scores[line, place])
    pairs = side.looked.pairs
    if of_images:
        item = PageItem(corpus.texts[int(pairs.text[line, place])], place=place + 1, score=score)
    else:
        row = int(pairs.image[line, place])
        item = _image(corpus, row, place=place + 1, score=score)
    return replace(item, marks=marks)


def _image(corpus: Corpus, row: int, *, place: int = 0, score: float | None = None) -> PageItem:
    picture = thumbnail(corpus.pictures.open(row)) if corpus.pictures else None
    return PageItem(_place(corpus)(row), picture, place=place, score=_known(score))


def _known(score: float | None) -> float | None:
    return None if score is None or score != score else score


def _caption(corpus: Corpus) -> Callable[[int], str]:
    return lambda row: f"“{corpus.texts[row]}”"


def _described(corpus: Corpus) -> Callable[[int], str]:
    """Images by id and first caption."""

    def named(row: int) -> str:
        captions, _ = corpus.relation.captions(torch.tensor([row]))
        first = next((f" “{corpus.texts[text]}”" for text in captions.tolist()), "")
        return f"{corpus.image_ids[row]}{first}"

    return named


def _place(corpus: Corpus) -> Callable[[int], str]:
    pictures = corpus.pictures
    return pictures.place if pictures else lambda row: corpus.image_ids[row]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1f}"
