"""Explanations in the terminal, which is as clear without colours."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.style import Style
from rich.table import Table
from rich.text import Text

from counterfoil.core.console import output
from counterfoil.evaluate.explain_page import ExplainedCard, number
from counterfoil.evaluate.explanation import Explanation
from counterfoil.recipes.show import console

TINTS = ((0.75, "bold red"), (0.5, "red"), (0.25, "yellow"))


def sentence(card: ExplainedCard) -> Text:
    """A caption with its words coloured; doubted ones bear their doubt."""
    out = Text()
    for part in card.parts:
        out.append(part.text, _style(part.tint))
        if part.marked:
            out.append(f" [{part.told}]", _style(part.tint))
    return out


def corrected(card: ExplainedCard) -> Text:
    """The corrected caption, new words underlined and between signs; empty where there is none."""
    out = Text()
    for text, new in card.new:
        out.append(f"_{text}_" if new else text, "underline green" if new else "")
    return out


def one(card: ExplainedCard, measure: str) -> None:
    """Print a caption, each of its words, and the caption corrected."""
    found = card.explanation
    console.print(sentence(card), soft_wrap=True)
    output(f"score {found.score:.3f}, {card.image.text}")
    shown = Table("word", box=box.SIMPLE_HEAD)
    shown.add_column(measure, justify="right")
    if found.doubts:
        shown.add_column("instead")
    for part, (word, told, instead) in zip(_words(card), card.rows, strict=True):
        cells = [Text(word, _style(part)), Text(told)]
        shown.add_row(*cells, *([Text(instead)] if found.doubts else []))
    console.print(shown)
    if found.corrected is not None:
        line = Text("corrected: ").append_text(corrected(card))
        console.print(line, soft_wrap=True)
        output(f"score {found.corrected.score:.3f}")


def ranked(cards: Sequence[ExplainedCard], measure: str) -> None:
    """Print the most suspicious captions of many."""
    shown = Table("", "image", box=box.SIMPLE_HEAD)
    for name in ("score", measure):
        shown.add_column(name, justify="right")
    shown.add_column("caption")
    for card in cards:
        lines = sentence(card)
        if card.new:
            lines.append("\n→ ").append_text(corrected(card))
        score = Text(f"{card.explanation.score:.3f}")
        greatest = _greatest(card.explanation)
        shown.add_row(Text(str(card.place)), Text(card.image.text), score, Text(greatest), lines)
    console.print(shown)


def _greatest(found: Explanation) -> str:
    """The number of the word that has the greatest."""
    word = max(found.words, key=lambda one: one.doubt or one.gain or 0.0, default=None)
    return "" if word is None else number(word)


def _words(card: ExplainedCard) -> list[float | None]:
    return [part.tint for part in card.parts if part.tint is not None]


def _style(tint: float | None) -> str | Style:
    return next((style for level, style in TINTS if tint is not None and tint >= level), "")
