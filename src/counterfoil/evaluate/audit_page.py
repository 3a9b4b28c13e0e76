"""The page on which somebody goes through what is odd about a data set, and decides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, final

from counterfoil.corpus.decisions import Decision, Do
from counterfoil.evaluate.explain_page import Part
from counterfoil.report.page import PageItem, Provenance, template

WORDS: dict[Do, str] = {"keep": "Keep", "drop": "Drop", "fix": "Fix", "true": "True"}


@final
@dataclass(frozen=True, slots=True)
class Item:
    """Something to decide on.

    Attributes:
        image: its id, "" where the decision is about a caption.
        caption: its id, "" where the decision is about an image.
        was: what a decision has to know, see `counterfoil.corpus.decisions.Decision`.
        acts: what may be decided.
        shown: the caption, or the picture with its name.
        note: why it is here, in few words.
        measure: how odd it is, for programs; None where that is no number.
        parts: the caption in stretches, coloured by doubt; none where nobody doubted words.
        proposed: what the caption might say instead; "" where nobody knows.
    """

    image: str
    caption: str
    was: str
    acts: tuple[Do, ...]
    shown: PageItem
    note: str = ""
    measure: float | None = None
    parts: tuple[Part, ...] = ()
    proposed: str = ""

    @property
    def key(self) -> str:
        """Tells it from all others."""
        return json.dumps([self.image, self.caption])

    def plain(self) -> dict[str, Any]:
        """JSON-ready form, without the picture."""
        told = {"image": self.image, "caption": self.caption, "proposed": self.proposed}
        doubted = [{"word": p.text, "number": p.told} for p in self.parts if p.marked]
        return {
            **{key: value for key, value in told.items() if value},
            "was": self.was,
            "note": self.note,
            "measure": self.measure,
            **({"doubted": doubted} if doubted else {}),
        }


@final
@dataclass(frozen=True, slots=True)
class Find:
    """Items that are looked at together.

    Attributes:
        items: at least one.
        image: they are all about this one, with its picture where there is one; None for none.
        own: captions of that image, to compare with.
    """

    items: tuple[Item, ...]
    image: PageItem | None = None
    own: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Section:
    """Finds of one kind.

    Attributes:
        kind: short name, for programs.
        title: of the section.
        note: what they are, and how they were found.
        found: how many there are in all.
        shown: how many of them are on the page.
        finds: those to look at, the oddest first.
    """

    kind: str
    title: str
    note: str
    found: int
    shown: int
    finds: tuple[Find, ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready form, without pictures."""
        return {
            "title": self.title,
            "note": self.note,
            "found": self.found,
            "shown": self.shown,
            "finds": [
                {
                    **({"image": find.image.text, "own": list(find.own)} if find.image else {}),
                    "items": [item.plain() for item in find.items],
                }
                for find in self.finds
            ],
        }


@final
@dataclass(frozen=True, slots=True)
class AuditPage:
    """All that stands on the page.

    Attributes:
        title: of the page.
        headline: the result in a sentence.
        protocol: data and models, in a sentence.
        sections: in the order to show.
        earlier: decisions that hold already, and are saved with the new ones.
        key: of the data, under which the browser keeps decisions.
        provenance: for the foot of the page.
    """

    title: str
    headline: str
    protocol: str
    sections: tuple[Section, ...]
    earlier: tuple[Decision, ...]
    key: str
    provenance: Provenance

    @property
    def many(self) -> int:
        """How many things there are to decide on."""
        keys = {i.key for part in self.sections for find in part.finds for i in find.items}
        return len(keys)


def render(page: AuditPage) -> str:
    """The page as HTML; everything that comes from data or users is escaped."""
    plain = {"key": page.key, "earlier": [decision.plain() for decision in page.earlier]}
    told = json.dumps(plain, ensure_ascii=False).replace("<", "\\u003c")  # ends no script
    return template("audit.html.j2").render(page=page, data=told, words=WORDS)
