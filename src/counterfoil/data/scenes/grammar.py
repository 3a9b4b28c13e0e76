"""The grammar of scene captions: lexicon, logical form, generation and parsing.

In the tables of words the usual ones come first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

from counterfoil.data.scenes.world import OPPOSITE, Dice, Thing
from counterfoil.data.tokenizers import split_words

Words = tuple[str, ...]


def _words(*phrases: str) -> tuple[Words, ...]:
    return tuple(tuple(phrase.split()) for phrase in phrases)


NOUNS: dict[str | None, tuple[tuple[str, str], ...]] = {
    "circle": (("circle", "circles"), ("disc", "discs")),
    "square": (("square", "squares"),),
    "triangle": (("triangle", "triangles"),),
    "diamond": (("diamond", "diamonds"), ("rhombus", "rhombuses")),
    "star": (("star", "stars"),),
    "heart": (("heart", "hearts"),),
    "cross": (("cross", "crosses"),),
    "moon": (("moon", "moons"), ("crescent", "crescents")),
    None: (("shape", "shapes"), ("thing", "things"), ("object", "objects")),
}
COLOUR_WORDS: dict[str, Words] = {
    "red": ("red",),
    "orange": ("orange",),
    "yellow": ("yellow",),
    "green": ("green",),
    "blue": ("blue",),
    "purple": ("purple", "violet"),
    "pink": ("pink",),
    "black": ("black",),
}
SIZE_WORDS: dict[str, Words] = {"small": ("small", "little", "tiny"), "big": ("big", "large")}
PATTERN_WORDS: dict[str, Words] = {
    "plain": ("plain", "solid"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted"),
    "checked": ("checked", "checkered"),
}
PATTERN_NOUNS: dict[str, Words] = {
    "striped": ("stripes",),
    "dotted": ("dots", "spots"),
    "checked": ("checks",),
}
NUMBERS: dict[int, tuple[Words, ...]] = {
    1: _words("one", "exactly one", "1"),
    2: _words("two", "a pair of", "2"),
    3: _words("three", "3"),
    4: _words("four", "4"),
    5: _words("five", "5"),
    6: _words("six", "6"),
}
ARTICLES = ("a", "an", "another")
RELATION_WORDS: dict[str, tuple[Words, ...]] = {
    "left of": _words("to the left of", "left of", "on the left of", "on the left side of"),
    "right of": _words("to the right of", "right of", "on the right of", "on the right side of"),
    "above": _words("above", "over", "higher than"),
    "below": _words("below", "under", "beneath", "underneath", "lower than"),
    "next to": _words("next to", "beside", "close to", "near"),
}
PRONOUNS = ("it", "them")
SIDES = ("its", "their")
SIDE_WORDS: dict[str, tuple[str, str]] = {  # "to its left": what stands before and after
    "left of": ("to", "left"),
    "right of": ("to", "right"),
}
COPULAS = _words("is", "are", "sits", "sit", "is placed", "are placed", "lies", "lie")
THERE = _words("there is", "there are", "we see", "you can see")
OPENINGS = _words(
    "there is",
    "there are",
    "a picture of",
    "an image of",
    "a picture with",
    "here is",
    "here are",
    "we see",
    "you can see",
    "this picture shows",
    "the picture shows",
    "an image showing",
)
CLOSINGS = _words(", and nothing else", "and nothing else", ", nothing else", "but nothing else")
LOOSE = _words("and", "as well as", "along with", "together with", "plus")
FIRM = _words(", and", ", and also", "; and", "; and also", ";", ",")


ADJECTIVES: dict[str, tuple[str, str]] = {
    word: (kind, value)
    for kind, words in (
        ("size", SIZE_WORDS),
        ("pattern", PATTERN_WORDS),
        ("colour", COLOUR_WORDS),
    )
    for value, choices in words.items()
    for word in choices
}
AFTER_WITH: dict[str, str] = {
    word: pattern for pattern, words in PATTERN_NOUNS.items() for word in words
}
SHAPE_OF: dict[str, tuple[str | None, bool]] = {
    word: (shape, place == 1)
    for shape, pairs in NOUNS.items()
    for pair in pairs
    for place, word in enumerate(pair)
}
COUNT_OF: dict[Words, int] = {words: n for n, choices in NUMBERS.items() for words in choices}
RELATION_OF: dict[Words, str] = {
    words: relation for relation, choices in RELATION_WORDS.items() for words in choices
}


# Logical form: the claim of a caption, apart from its wording.


@final
@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase; None for what it does not mention.

    Attributes:
        count: None for "a": at least one thing fits. A number: exactly so many things of the scene
            fit, and the phrase stands for all of them.
        size: one of the sizes.
        pattern: one of the patterns.
        colour: one of the colours.
        shape: one of the shapes, None for "a shape".
    """

    count: int | None = None
    size: str | None = None
    pattern: str | None = None
    colour: str | None = None
    shape: str | None = None

    def fits(self, thing: Thing) -> bool:
        """Whether the words other than the number are true of a thing."""
        return (
            self.shape in (None, thing.shape)
            and self.colour in (None, thing.colour)
            and self.pattern in (None, thing.pattern)
            and self.size in (None, thing.size)
        )

    def __str__(self) -> str:
        said = (self.size, self.pattern, self.colour, self.shape or "shape")
        return " ".join([str(self.count or "a"), *(word for word in said if word)])


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A relation claimed between the things of two phrases.

    Attributes:
        relation: one of the relations.
        subject: place of the phrase whose things stand in the relation.
        object: place of the phrase they stand in the relation to.
    """

    relation: str
    subject: int
    object: int

    def turned(self) -> Link:
        """The same claim, seen from the other side."""
        return Link(OPPOSITE[self.relation], self.object, self.subject)


@final
@dataclass(frozen=True, slots=True)
class Form:
    """A claim about a scene: its logical form.

    There are things that the phrases stand for, no thing for two phrases; every thing of a link's
    subject stands in its relation to every thing of its object; and, where the claim is complete,
    there is no thing besides.

    Attributes:
        phrases: in order of mention.
        links: between phrases, by place.
        complete: "nothing else".
    """

    phrases: tuple[Phrase, ...]
    links: tuple[Link, ...] = ()
    complete: bool = False

    def __str__(self) -> str:
        links = (f"{link.subject} {link.relation} {link.object}" for link in self.links)
        end = ["nothing else"] if self.complete else []
        return "; ".join([*map(str, self.phrases), *links, *end])


# Generation: from a logical form to English.

LONGEST = 3  # phrases that relations may join into one clause


def write(form: Form, dice: Dice) -> str:
    """A caption that claims this and nothing more.

    Raises:
        ValueError: relations join more than three phrases, or join three in more than two ways.
    """
    clauses = sorted(_clauses(form), key=lambda clause: -len(clause[1]))
    opening = _opening(form.phrases[clauses[0][0][0]], dice)
    told: list[str] = []
    for places, links in clauses:
        bare = bool(opening) and not told
        told.append(_clause(form, places, links, dice, bare=bare, seen=" ".join(told)))
    text = opening + _joined(told, dice, firm=bool(form.links))
    if form.complete:
        crowded = len(form.phrases) > 2
        closing = " ".join(dice.pick([c for c in CLOSINGS if c[0] == "," or not crowded]))
        text += closing if closing.startswith(",") else " " + closing
    return articles(text[0].upper() + text[1:] + ".")


def articles(text: str) -> str:
    """The same text with every "a" and "an" as the next word wants it."""

    def fitting(match: re.Match[str]) -> str:
        return match[1] + ("n" if match[3].lower() in "aeiou" else "") + match[2]

    return re.sub(r"\b([Aa])n?(\s+)(?=(\w))", fitting, text)


def _clauses(form: Form) -> list[tuple[list[int], list[Link]]]:
    """Phrases that relations join, with the links between them."""
    clauses: list[tuple[list[int], list[Link]]] = []
    left = list(range(len(form.phrases)))
    while left:
        places = {left[0]}
        while (
            more := {
                end
                for link in form.links
                for end in (link.subject, link.object)
                if {link.subject, link.object} & places
            }
            - places
        ):
            places |= more
        links = [link for link in form.links if link.subject in places]
        clauses.append((sorted(places), links))
        left = [place for place in left if place not in places]
    if any(len(p) > LONGEST or len(links) > 2 for p, links in clauses):
        raise ValueError(
            f"{form} cannot be put into words: relations may join at most {LONGEST} phrases, "
            "in at most two ways"
        )
    return clauses


def _opening(first: Phrase, dice: Dice) -> str:
    if dice.chance(0.6):
        return ""
    words = dice.pick(OPENINGS)
    many = (first.count or 1) > 1
    if words[-1] in ("is", "are"):
        words = (*words[:-1], "are" if many else "is")
    return " ".join(words) + " "


def _joined(clauses: Sequence[str], dice: Dice, *, firm: bool) -> str:
    if len(clauses) == 1:
        return clauses[0]
    if firm:
        last = dice.pick((", and ", ", and ", ", and also ", "; and "))
    elif len(clauses) > 2:
        last = dice.pick((" and ", ", and "))
    else:
        last = f" {' '.join(dice.usual(LOOSE))} "
    return ", ".join(clauses[:-1]) + last + clauses[-1]


def _clause(
    form: Form, places: list[int], links: list[Link], dice: Dice, *, bare: bool, seen: str
) -> str:
    """One clause; `bare` where an opening has taken the verb."""
    said = {place: _noun_phrase(form.phrases[place], dice, seen) for place in places}
    many = {place: (form.phrases[place].count or 1) > 1 for place in places}
    if not links:
        return said[places[0]]
    if dice.chance(0.5):
        links = [link.turned() for link in links]
    if len(links) == 1 or len(places) == 2:
        return _two(said, many, links, dice, bare=bare)
    return _three(said, many, links, dice, bare=bare)


def _two(
    said: dict[int, str], many: dict[int, bool], links: list[Link], dice: Dice, *, bare: bool
) -> str:
    """Two phrases and one or two links between them."""
    one, other = links[0].subject, links[0].object
    links = [link if link.subject == one else link.turned() for link in links]
    relation = " and ".join(_relation(link.relation, dice) for link in links)
    if len(links) == 1 and dice.chance(0.25):
        return f"{said[other]} with {said[one]} {_to_it(links[0].relation, many[other], dice)}"
    if not bare and dice.chance(0.25):
        comma, verb = dice.pick((("", _copula(many[one], dice)), (",", _there(many[one], dice))))
        return f"{relation} {said[other]}{comma} {verb} {said[one]}"
    return f"{said[one]} {_verb(many[one], dice, bare=bare)}{relation} {said[other]}"


def _three(
    said: dict[int, str], many: dict[int, bool], links: list[Link], dice: Dice, *, bare: bool
) -> str:
    """Three phrases and two links, which meet in one of them."""
    first, second = links
    hub = ({first.subject, first.object} & {second.subject, second.object}).pop()
    ending = [link if link.object == hub else link.turned() for link in links]
    starting = [link if link.subject == hub else link.turned() for link in links]
    if dice.chance(0.5):
        told = [f"{_relation(link.relation, dice)} {said[link.object]}" for link in starting]
        return f"{said[hub]} {_verb(many[hub], dice, bare=bare)}{told[0]} and {told[1]}"
    start, on = ending[0], starting[1]
    which = dice.pick((", which", " that", " which"))
    return (
        f"{said[start.subject]} {_verb(many[start.subject], dice, bare=bare)}"
        f"{_relation(start.relation, dice)} {said[hub]}{which} {_copula(many[hub], dice)} "
        f"{_relation(on.relation, dice)} {said[on.object]}"
    )


def _relation(relation: str, dice: Dice) -> str:
    return " ".join(dice.usual(RELATION_WORDS[relation]))


def _to_it(relation: str, many: bool, dice: Dice) -> str:
    if relation in SIDE_WORDS and dice.chance(0.6):
        before, after = SIDE_WORDS[relation]
        return f"{before} {SIDES[many]} {after}"
    return f"{_relation(relation, dice)} {PRONOUNS[many]}"


def _verb(many: bool, dice: Dice, *, bare: bool) -> str:
    return "" if bare or dice.chance(0.5) else _copula(many, dice) + " "


def _copula(many: bool, dice: Dice) -> str:
    return dice.usual(("are", "sit", "are placed", "lie") if many else _SINGULAR)


def _there(many: bool, dice: Dice) -> str:
    return dice.usual(("there are" if many else "there is", "we see", "you can see"))


def _noun_phrase(phrase: Phrase, dice: Dice, seen: str) -> str:
    singular, plural = dice.usual(NOUNS[phrase.shape])
    words: list[str] = []
    if phrase.size:
        words.append(dice.usual(SIZE_WORDS[phrase.size]))
    after = ""
    colour = [dice.usual(COLOUR_WORDS[phrase.colour])] if phrase.colour else []
    pattern: list[str] = []
    if phrase.pattern in PATTERN_NOUNS and dice.chance(0.25):
        after = f" with {dice.usual(PATTERN_NOUNS[phrase.pattern])}"
    elif phrase.pattern:
        pattern = [dice.usual(PATTERN_WORDS[phrase.pattern])]
    late = phrase.pattern != "plain" and dice.chance(0.25)
    words += colour + pattern if late else pattern + colour
    words.append(plural if (phrase.count or 1) > 1 else singular)
    return f"{_determiner(phrase, singular, dice, seen)} {' '.join(words)}{after}"


def _determiner(phrase: Phrase, noun: str, dice: Dice, seen: str) -> str:
    if phrase.count is not None:
        number, *others = NUMBERS[phrase.count]
        return " ".join(dice.usual((number, others[0])) if phrase.count == 2 else number)
    return "another" if f" {noun}" in seen and dice.chance(0.5) else "a"


_SINGULAR = ("is", "sits", "is placed", "lies")


# Parsing: from a caption to its logical form, and the words that express each part.
#
# The grammar, in which `rel` is a relation, `np` a noun phrase and `be` a form of "to be" or "sit":
#
#     caption  = [opening] clause {joint clause} ["nothing else"] ["."]
#     clause   = np
#              | np [be] rel np
#              | np [be] rel np "and" rel np          both of the first
#              | np [be] rel np "which" be rel np     the second of the middle one
#              | np "with" np rel ("it" | "them")     or "to its left"
#              | rel np [","] (be | "there is") np
#     rel      = relation | relation "and" relation
#     np       = ("a" | number) {adjective} noun ["with stripes" | "with dots" | "with checks"]
#
# A clause with a relation is set off from its neighbours by a comma or a semicolon, since "a circle
# left of a star and a square" can be read in two ways; it is outside the grammar.


Kind = Literal["phrase", "number", "size", "pattern", "colour", "object", "relation"]
SceneWords = tuple[str, ...]


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
    """A parsed caption.

    Attributes:
        words: the caption's words, as `counterfoil.data.tokenizers.split_words` gives them.
        form: what it claims: phrases, and the links between them.
        spans: which words say what, in order of their first word.
    """

    words: SceneWords
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
    words = tuple(split_words(caption))
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

    def __init__(self, words: SceneWords) -> None:
        self.words, self.at = words, 0
        self.phrases: list[Phrase] = []
        self.links: list[Link] = []
        self.spans: list[Span] = []

    def caption(self) -> Form:
        opened = bool(self._eat(OPENINGS))
        related, complete, firm = [self._clause(bare=opened)], False, True
        while not (complete := bool(self._eat(CLOSINGS))):
            if not (joint := self._eat((*FIRM, *LOOSE))):
                break
            firm = firm and joint in FIRM
            related.append(self._clause(bare=False))
        self._eat(((".",),))
        if self.at < len(self.words) or (any(related) and not firm):
            raise _OutsideError
        return Form(tuple(self.phrases), tuple(self.links), complete)

    def _eat(self, choices: Collection[SceneWords]) -> SceneWords:
        """The longest of these that comes next, now read; else nothing."""
        for length in range(5, 0, -1):
            ahead = self.words[self.at : self.at + length]
            if len(ahead) == length and ahead in choices:
                self.at += length
                return ahead
        return ()

    def _need(self, choices: Collection[SceneWords]) -> SceneWords:
        found = self._eat(choices)
        if not found:
            raise _OutsideError
        return found

    def _ahead(self, choices: Collection[SceneWords]) -> bool:
        start = self.at
        found = self._eat(choices)
        self.at = start
        return bool(found)

    def _clause(self, *, bare: bool) -> bool:
        """One clause; whether it holds a relation."""
        if self._ahead(RELATION_OF):
            return self._inverted()
        subject = self._noun_phrase()
        if self._eat((("with",),)):
            companion = self._noun_phrase()
            self._to_pronoun(companion, subject)
            return True
        stands = not bare and bool(self._eat(COPULAS))
        if not self._ahead(RELATION_OF):
            if stands:
                raise _OutsideError
            return False
        middle = self._related(subject)
        if self._and_relation():
            self._eat((("and",),))
            self._related(subject)
        elif self._eat(_WHICH):
            self._need(COPULAS)
            self._related(middle)
        return True

    def _inverted(self) -> bool:
        relations = self._relations()
        landmark = self._noun_phrase()
        self._eat(((",",),))
        self._need((*COPULAS, *THERE))
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
        return RELATION_OF[self._need(RELATION_OF)], start, self.at

    def _and_relation(self) -> bool:
        start = self.at
        found = bool(self._eat((("and",),))) and self._ahead(RELATION_OF)
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
        while found := ADJECTIVES.get(self._word()):
            self._attribute(said, *found, place, width=1)
        noun = self._word()
        if noun not in SHAPE_OF:
            raise _OutsideError
        shape, plural = SHAPE_OF[noun]
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
        if words := self._eat(COUNT_OF):
            self.spans.append(Span("number", start, self.at, place))
            return COUNT_OF[words]
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

    def _peek(self, length: int) -> SceneWords:
        return self.words[self.at : self.at + length]


_KINDS: dict[str, Kind] = {"size": "size", "pattern": "pattern", "colour": "colour"}
_ARTICLES = tuple((article,) for article in ARTICLES)
_PRONOUNS = tuple((pronoun,) for pronoun in PRONOUNS)
_WHICH: tuple[SceneWords, ...] = (("which",), (",", "which"), ("that",))
_WITH_PATTERN: dict[SceneWords, str] = {
    ("with", noun): pattern for noun, pattern in AFTER_WITH.items()
}
_AT_ITS_SIDE: dict[SceneWords, str] = {
    (before, its, side): relation
    for relation, (before, side) in SIDE_WORDS.items()
    for its in SIDES
}
