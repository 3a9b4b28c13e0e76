"""From a caption to what it claims, and which words claim it.

>>> parse("A small red circle is to the left of two stars.").form
Form(phrases=(Phrase(count=None, size='small', pattern=None, colour='red', shape='circle'), \
Phrase(count=2, size=None, pattern=None, colour=None, shape='star')), \
links=(Link(relation='left of', subject=0, object=1),), complete=False)
>>> parse("A dog in the snow.") is None
True

The grammar, in which `rel` is a relation, `np` a noun phrase and `be` a form of "to be" or "sit":

    caption  = [opening] clause {joint clause} ["nothing else"] ["."]
    clause   = np
             | np [be] rel np
             | np [be] rel np "and" rel np          both of the first
             | np [be] rel np "which" be rel np     the second of the middle one
             | np "with" np rel ("it" | "them")     or "to its left"
             | rel np [","] (be | "there is") np
    rel      = relation | relation "and" relation
    np       = ("a" | number) {adjective} noun ["with stripes" | "with dots" | "with checks"]

A clause with a relation is set off from its neighbours by a comma or a semicolon, since "a circle
left of a star and a square" can be read in two ways; it is outside the grammar.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

from counterfoil.corpus.scenes import lexicon
from counterfoil.corpus.scenes.form import Form, Link, Phrase
from counterfoil.corpus.words import split

Kind = Literal["phrase", "number", "size", "pattern", "colour", "object", "relation"]
Words = tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring words of a caption and what they are.

    Attributes:
        kind: "phrase" for a whole noun phrase, "object" for its noun, "number", "size", "pattern"
            and "colour" for what is said of it, "relation" for a relation with its pronoun.
        start: first word.
        stop: one past the last word.
        place: of the phrase in the form, or of the link where the span is a relation.
    """

    kind: Kind
    start: int
    stop: int
    place: int


@final
@dataclass(frozen=True, slots=True)
class Parse:
    """A caption understood.

    Attributes:
        words: the caption's words, as `counterfoil.corpus.words.split` gives them.
        form: what it claims: phrases, and the links between them.
        spans: which words say what, in order of their first word.
    """

    words: Words
    form: Form
    spans: tuple[Span, ...]

    def of(self, *kinds: Kind) -> list[Span]:
        """The spans of these kinds."""
        return [span for span in self.spans if span.kind in kinds]

    def text(self, span: Span) -> str:
        """The words of a span."""
        return " ".join(self.words[span.start : span.stop])


@lru_cache(maxsize=65_536)
def parse(caption: str) -> Parse | None:
    """What a caption claims; None where it is outside the grammar."""
    words = tuple(split(caption))
    reader = _Reader(words)
    try:
        form = reader.caption()
    except _OutsideError:
        return None
    return Parse(words, form, tuple(sorted(reader.spans, key=lambda s: (s.start, -s.stop))))


class _OutsideError(Exception):
    """The caption is outside the grammar."""


@final
class _Reader:
    """Reads a caption from left to right, looking ahead where it must."""

    def __init__(self, words: Words) -> None:
        self.words, self.at = words, 0
        self.phrases: list[Phrase] = []
        self.links: list[Link] = []
        self.spans: list[Span] = []

    def caption(self) -> Form:
        opened = bool(self._eat(lexicon.OPENINGS))
        related, complete, firm = [self._clause(bare=opened)], False, True
        while not (complete := bool(self._eat(lexicon.CLOSINGS))):
            if not (joint := self._eat((*lexicon.FIRM, *lexicon.LOOSE))):
                break
            firm = firm and joint in lexicon.FIRM
            related.append(self._clause(bare=False))
        self._eat(((".",),))
        if self.at < len(self.words) or (any(related) and not firm):
            raise _OutsideError
        return Form(tuple(self.phrases), tuple(self.links), complete)

    def _eat(self, choices: Collection[Words]) -> Words:
        """The longest of these that comes next, now read; else nothing."""
        for length in range(5, 0, -1):
            ahead = self.words[self.at : self.at + length]
            if len(ahead) == length and ahead in choices:
                self.at += length
                return ahead
        return ()

    def _need(self, choices: Collection[Words]) -> Words:
        found = self._eat(choices)
        if not found:
            raise _OutsideError
        return found

    def _ahead(self, choices: Collection[Words]) -> bool:
        start = self.at
        found = self._eat(choices)
        self.at = start
        return bool(found)

    def _clause(self, *, bare: bool) -> bool:
        """One clause; whether it holds a relation."""
        if self._ahead(lexicon.RELATION_OF):
            return self._inverted()
        subject = self._noun_phrase()
        if self._eat((("with",),)):
            companion = self._noun_phrase()
            self._to_pronoun(companion, subject)
            return True
        stands = not bare and bool(self._eat(lexicon.COPULAS))
        if not self._ahead(lexicon.RELATION_OF):
            if stands:
                raise _OutsideError
            return False
        middle = self._related(subject)
        if self._and_relation():
            self._eat((("and",),))
            self._related(subject)
        elif self._eat(_WHICH):
            self._need(lexicon.COPULAS)
            self._related(middle)
        return True

    def _inverted(self) -> bool:
        relations = self._relations()
        landmark = self._noun_phrase()
        self._eat(((",",),))
        self._need((*lexicon.COPULAS, *lexicon.THERE))
        self._link(relations, self._noun_phrase(), landmark)
        return True

    def _related(self, subject: int) -> int:
        """A relation and what stands in it to the subject."""
        relations = self._relations()
        landmark = self._noun_phrase()
        self._link(relations, subject, landmark)
        return landmark

    def _relations(self) -> list[tuple[str, int, int]]:
        """One relation, or two of the same things, each with its first word and its end."""
        found = [self._relation()]
        if self._and_relation():
            self._eat((("and",),))
            found.append(self._relation())
        return found

    def _relation(self) -> tuple[str, int, int]:
        start = self.at
        return lexicon.RELATION_OF[self._need(lexicon.RELATION_OF)], start, self.at

    def _and_relation(self) -> bool:
        start = self.at
        found = bool(self._eat((("and",),))) and self._ahead(lexicon.RELATION_OF)
        self.at = start
        return found

    def _to_pronoun(self, subject: int, landmark: int) -> None:
        start = self.at
        if side := self._eat(_AT_ITS_SIDE):
            self._link([(_AT_ITS_SIDE[side], start, self.at)], subject, landmark)
            return
        relation, start, _ = self._relation()
        self._need(_PRONOUNS)
        self._link([(relation, start, self.at)], subject, landmark)

    def _link(self, relations: list[tuple[str, int, int]], subject: int, landmark: int) -> None:
        for relation, start, stop in relations:
            self.spans.append(Span("relation", start, stop, len(self.links)))
            self.links.append(Link(relation, subject, landmark))

    def _noun_phrase(self) -> int:
        """A noun phrase; its place."""
        place, start = len(self.phrases), self.at
        count = self._count(place)
        said: dict[str, str] = {}
        while found := lexicon.ADJECTIVES.get(self._word()):
            self._attribute(said, *found, place, width=1)
        noun = self._word()
        if noun not in lexicon.SHAPE_OF:
            raise _OutsideError
        shape, plural = lexicon.SHAPE_OF[noun]
        if plural != (count is not None and count > 1):
            raise _OutsideError
        self.spans.append(Span("object", self.at, self.at + 1, place))
        self.at += 1
        if self._ahead(_WITH_PATTERN):
            self._attribute(said, "pattern", _WITH_PATTERN[self._peek(2)], place, width=2)
        self.spans.append(Span("phrase", start, self.at, place))
        self.phrases.append(
            Phrase(count, said.get("size"), said.get("pattern"), said.get("colour"), shape)
        )
        return place

    def _count(self, place: int) -> int | None:
        start = self.at
        if words := self._eat(lexicon.COUNT_OF):
            self.spans.append(Span("number", start, self.at, place))
            return lexicon.COUNT_OF[words]
        self._need(_ARTICLES)
        return None

    def _attribute(
        self, said: dict[str, str], kind: str, value: str, place: int, *, width: int
    ) -> None:
        if kind in said:
            raise _OutsideError
        said[kind] = value
        self.spans.append(Span(_KINDS[kind], self.at, self.at + width, place))
        self.at += width

    def _word(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _peek(self, length: int) -> Words:
        return self.words[self.at : self.at + length]


_KINDS: dict[str, Kind] = {"size": "size", "pattern": "pattern", "colour": "colour"}
_ARTICLES = tuple((article,) for article in lexicon.ARTICLES)
_PRONOUNS = tuple((pronoun,) for pronoun in lexicon.PRONOUNS)
_WHICH: tuple[Words, ...] = (("which",), (",", "which"), ("that",))
_WITH_PATTERN: dict[Words, str] = {
    ("with", noun): pattern for noun, pattern in lexicon.AFTER_WITH.items()
}
_AT_ITS_SIDE: dict[Words, str] = {
    (before, its, side): relation
    for relation, (before, side) in lexicon.SIDE_WORDS.items()
    for its in lexicon.SIDES
}
