"""The page of explained captions: what stands over them, and what was asked."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from counterfoil.evaluate.explain_page import (
    BY_DOUBT,
    BY_GAIN,
    ExplainedCard,
    ExplainPage,
    render,
    signed,
)
from counterfoil.evaluate.explanation import Explanation
from counterfoil.files import write_text
from counterfoil.recipes.explain import ExplainPlan, lacking
from counterfoil.recipes.model import Model
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.show import say
from counterfoil.report.page import PageItem, thumbnail

SIDE = 448  # pixels of a picture; shown at half that


def summary(doubted: int, counted: int, plan: ExplainPlan) -> str:
    """How many captions have a doubted word, in a sentence."""
    share = 100 * doubted / counted
    return (
        f"{doubted:,} of {counted:,} captions ({share:.1f} %) have a word whose doubt is "
        f"{plan.threshold:g} or more."
    )


def headline(found: Explanation, plan: ExplainPlan) -> str:
    """The result in a sentence or two."""
    if not found.doubts:
        gains = [word for word in found.words if word.gain is not None]
        most = max(gains, key=lambda word: word.gain or 0.0, default=None)
        told = f" Without “{most.text}” it changes by {signed(most.gain or 0.0)}." if most else ""
        return f"Score {found.score:.3f}.{told}"
    wrong = [word.text for word in found.words if (word.doubt or 0.0) >= plan.threshold]
    if not wrong:
        return f"Score {found.score:.3f}; no word is doubted."
    words = ", ".join(f"“{word}”" for word in wrong)
    told = f"Doubted: {words}. Score {found.score:.3f}"
    return f"{told}, corrected {found.corrected.score:.3f}." if found.corrected else f"{told}."


def made_page(
    model: Model, title: str, headline: str, cards: tuple[ExplainedCard, ...], data: str
) -> ExplainPage:
    """The page, of one caption or of several."""
    doubts = not cards or cards[0].explanation.doubts
    return ExplainPage(
        title=title,
        headline=headline,
        protocol="; ".join(part for part in (model.name, data, lacking(model)) if part),
        note=BY_DOUBT if doubts else BY_GAIN,
        measure=measure(cards[0].explanation) if cards else "",
        cards=cards,
        provenance=made_now(),
    )


def write_page(path: Path, page: ExplainPage) -> None:
    """Write the page, whole or not at all, and say where."""
    write_text(path, render(page))
    say(f"{path}")


def measure(found: Explanation) -> str:
    """What the number of a word is."""
    return "doubt" if found.doubts else "gain without it"


def shown_image(name: str, picture: Image.Image | None) -> PageItem:
    """An image by its name, with its picture where there is one."""
    return PageItem(name, None if picture is None else thumbnail(picture, SIDE))
