"""What a search found: paths in the terminal, thumbnails on a page."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape
from rich.table import Table
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.recipes.show import console
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Page,
    PageItem,
    thumbnail,
    write_page,
)


def show(query: str, corpus: Corpus, rows: Tensor, scores: Tensor, *, captions: bool) -> None:
    """Print the list: score and caption, or score and path of the picture."""
    table = Table("", "score", "caption" if captions else "image", title=escape(query))
    for place, (row, score) in enumerate(zip(rows.tolist(), scores.tolist()), 1):
        named = corpus.texts[row] if captions else _place(corpus, row)
        table.add_row(str(place), f"{score:.3f}", escape(named))
    console.print(table)


def write(
    query: str, corpus: Corpus, rows: Tensor, scores: Tensor, page: Path, *, captions: bool
) -> None:
    """Write the page of thumbnails."""
    found = tuple(
        PageItem(
            corpus.texts[row] if captions else _place(corpus, row),
            None if captions else _thumbnail(corpus, row),
            place=place,
            score=score,
        )
        for place, (row, score) in enumerate(zip(rows.tolist(), scores.tolist()), 1)
    )
    note = f"{corpus.name} {corpus.part}: {len(corpus):,} images, {len(corpus.texts):,} texts"
    card = ExampleCard(PageItem(query), "", (CardColumn("", "", found),))
    write_page(Page(query, "", note, sections=(CardSection("Results", "", (card,)),)), page)


def _place(corpus: Corpus, row: int) -> str:
    return corpus.pictures.place(row) if corpus.pictures else corpus.image_ids[row]


def _thumbnail(corpus: Corpus, row: int) -> str | None:
    return thumbnail(corpus.pictures.open(row)) if corpus.pictures else None
