"""The grammar of scene captions: lexicon, logical form, generation and parsing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, final

from counterfoil.data.scenes.world import COLOURS, OPPOSITE, Dice, Thing
from counterfoil.data.tokenizers import split_words

Words = tuple[str, ...]
Attribute = Literal["size", "pattern", "colour"]


def _words(*phrases: str) -> tuple[Words, ...]:
    return tuple(tuple(phrase.split()) for phrase in phrases)


# Lexicon; the usual words come first.

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
ADJECTIVES: dict[Attribute, dict[str, Words]] = {
    "size": {"small": ("small", "little", "tiny"), "big": ("big", "large")},
    "pattern": {
        "plain": ("plain", "solid"),
        "striped": ("striped", "stripy"),
        "dotted": ("dotted", "spotted"),
        "checked": ("checked", "checkered"),
    },
    "colour": {colour: (colour,) for colour in COLOURS} | {"purple": ("purple", "violet")},
}
PATTERN_NOUNS: dict[str, Words] = {  # after "with"
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
COPULAS = (  # of one thing, of several
    ("is", "sits", "is placed", "lies"),
    ("are", "sit", "are placed", "lie"),
)
THERE = (("there is", "we see", "you can see"), ("there are", "we see", "you can see"))
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
ATTRIBUTE_OF: dict[str, tuple[Attribute, str]] = {
    word: (attribute, value)
    for attribute, table in ADJECTIVES.items()
    for value, words in table.items()
    for word in words
}
SHAPE_OF: dict[str, tuple[str | None, bool]] = {  # shape, and whether the noun is a plural
    noun: (shape, number == 1)
    for shape, pairs in NOUNS.items()
    for pair in pairs
    for number, noun in enumerate(pair)
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

    @property
    def is_plural(self) -> bool:
        """True if it denotes several things."""
        return (self.count or 1) > 1

    def fits(self, thing: Thing) -> bool:
        """Return True if the words other than the number are true of a thing."""
        # written out, as foils ask millions of times
        return (
            self.colour in (None, thing.colour)
            and self.shape in (None, thing.shape)
            and self.size in (None, thing.size)
            and self.pattern in (None, thing.pattern)
        )

    def __str__(self) -> str:
        words = (self.size, self.pattern, self.colour, self.shape or "shape")
        return " ".join([str(self.count or "a"), *filter(None, words)])


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A relation claimed between the things of two phrases."""

    relation: str
    subject: int  # place of the phrase whose things stand in the relation
    object: int  # place of the phrase they stand in the relation to

    def turned(self) -> Link:
        """The claim with subject and object exchanged."""
        return Link(OPPOSITE[self.relation], self.object, self.subject)


@final
@dataclass(frozen=True, slots=True)
class Form:
    """A claim about a scene: its logical form.

    It is true if things of the scene can be assigned to the phrases, no thing to two of them, such
    that every thing of a link's subject stands in the relation to every thing of its object. If
    the claim is complete, no thing may be left over.
    """

    phrases: tuple[Phrase, ...]  # in order of mention
    links: tuple[Link, ...] = ()  # between phrases, by place
    complete: bool = False  # "nothing else"

    def __str__(self) -> str:
        links = (f"{link.subject} {link.relation} {link.object}" for link in self.links)
        end = ["nothing else"] if self.complete else []
        return "; ".join([*map(str, self.phrases), *links, *end])


# Generation: from a logical form to English. The order of random choices is part of the data set.

LONGEST = 3  # phrases that relations may join into one clause


def write(form: Form, dice: Dice) -> str:
    """A caption that makes this claim and no other."""
    clauses = sorted(_clauses(form), key=lambda clause: -len(clause[1]))
    opening = _opening(form.phrases[clauses[0][0][0]], dice)
    texts: list[str] = []
    for places, links in clauses:
        has_verb = bool(opening) and not texts
        texts.append(_clause(form, places, links, dice, has_verb, " ".join(texts)))
    text = opening + _joined(texts, dice, firm=bool(form.links))
    if form.complete:
        crowded = len(form.phrases) > 2
        closing = " ".join(dice.pick([c for c in CLOSINGS if c[0] == "," or not crowded]))
        text += closing if closing.startswith(",") else " " + closing
    return articles(text[0].upper() + text[1:] + ".")


def articles(text: str) -> str:
    """The text with "a" or "an" as the next word requires."""

    def correct(match: re.Match[str]) -> str:
        return match[1] + ("n" if match[3].lower() in "aeiou" else "") + match[2]

    return re.sub(r"\b([Aa])n?(\s+)(?=(\w))", correct, text)


def _clauses(form: Form) -> list[tuple[list[int], list[Link]]]:
    """Groups of phrases that relations join, with the links between them."""
    groups = [{place} for place in range(len(form.phrases))]
    for link in form.links:
        joined = [group for group in groups if group & {link.subject, link.object}]
        groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    clauses = [
        (sorted(group), [link for link in form.links if link.subject in group])
        for group in sorted(groups, key=min)
    ]
    if any(len(places) > LONGEST or len(links) > 2 for places, links in clauses):
        raise ValueError(
            f"{form} cannot be put into words: relations may join at most {LONGEST} phrases, "
            "in at most two ways"
        )
    return clauses


def _opening(first: Phrase, dice: Dice) -> str:
    if dice.chance(0.6):
        return ""
    words = dice.pick(OPENINGS)
    if words[-1] in ("is", "are"):
        words = (*words[:-1], "are" if first.is_plural else "is")
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
    form: Form, places: list[int], links: list[Link], dice: Dice, has_verb: bool, earlier: str
) -> str:
    """One clause; `has_verb` if an opening supplies the verb, `earlier` is the text before it."""
    phrases = {place: _noun_phrase(form.phrases[place], dice, earlier) for place in places}
    if not links:
        return phrases[places[0]]
    plural = {place: form.phrases[place].is_plural for place in places}
    if dice.chance(0.5):
        links = [link.turned() for link in links]
    if len(links) == 1 or len(places) == 2:
        return _two(phrases, plural, links, dice, has_verb)
    return _three(phrases, plural, links, dice, has_verb)


def _two(
    phrases: dict[int, str], plural: dict[int, bool], links: list[Link], dice: Dice, has_verb: bool
) -> str:
    """Two phrases and one or two links between them."""
    one, other = links[0].subject, links[0].object
    links = [link if link.subject == one else link.turned() for link in links]
    relation = " and ".join(_relation(link.relation, dice) for link in links)
    if len(links) == 1 and dice.chance(0.25):
        pronoun = _to_pronoun(links[0].relation, plural[other], dice)
        return f"{phrases[other]} with {phrases[one]} {pronoun}"
    if not has_verb and dice.chance(0.25):
        copula, there = dice.usual(COPULAS[plural[one]]), dice.usual(THERE[plural[one]])
        comma, verb = dice.pick((("", copula), (",", there)))
        return f"{relation} {phrases[other]}{comma} {verb} {phrases[one]}"
    return f"{phrases[one]} {_verb(plural[one], dice, has_verb)}{relation} {phrases[other]}"


def _three(
    phrases: dict[int, str], plural: dict[int, bool], links: list[Link], dice: Dice, has_verb: bool
) -> str:
    """Three phrases and two links, which meet in one of them."""
    first, second = links
    hub = ({first.subject, first.object} & {second.subject, second.object}).pop()
    from_hub = [link if link.subject == hub else link.turned() for link in links]
    if dice.chance(0.5):
        ends = [f"{_relation(link.relation, dice)} {phrases[link.object]}" for link in from_hub]
        return f"{phrases[hub]} {_verb(plural[hub], dice, has_verb)}{ends[0]} and {ends[1]}"
    start, end = from_hub[0].turned(), from_hub[1]
    which = dice.pick((", which", " that", " which"))
    main = (
        f"{phrases[start.subject]} {_verb(plural[start.subject], dice, has_verb)}"
        f"{_relation(start.relation, dice)} {phrases[hub]}"
    )
    copula, relation = dice.usual(COPULAS[plural[hub]]), _relation(end.relation, dice)
    return f"{main}{which} {copula} {relation} {phrases[end.object]}"


def _relation(relation: str, dice: Dice) -> str:
    return " ".join(dice.usual(RELATION_WORDS[relation]))


def _to_pronoun(relation: str, plural: bool, dice: Dice) -> str:
    if relation in SIDE_WORDS and dice.chance(0.6):
        before, after = SIDE_WORDS[relation]
        return f"{before} {SIDES[plural]} {after}"
    return f"{_relation(relation, dice)} {PRONOUNS[plural]}"


def _verb(plural: bool, dice: Dice, has_verb: bool) -> str:
    return "" if has_verb or dice.chance(0.5) else dice.usual(COPULAS[plural]) + " "


def _noun_phrase(phrase: Phrase, dice: Dice, earlier: str) -> str:
    singular, plural = dice.usual(NOUNS[phrase.shape])
    words = [dice.usual(ADJECTIVES["size"][phrase.size])] if phrase.size else []
    colour = [dice.usual(ADJECTIVES["colour"][phrase.colour])] if phrase.colour else []
    pattern, after = list[str](), ""
    if phrase.pattern in PATTERN_NOUNS and dice.chance(0.25):
        after = f" with {dice.usual(PATTERN_NOUNS[phrase.pattern])}"
    elif phrase.pattern:
        pattern = [dice.usual(ADJECTIVES["pattern"][phrase.pattern])]
    colour_first = phrase.pattern != "plain" and dice.chance(0.25)
    words += colour + pattern if colour_first else pattern + colour
    words.append(plural if phrase.is_plural else singular)
    return f"{_determiner(phrase, singular, dice, earlier)} {' '.join(words)}{after}"


def _determiner(phrase: Phrase, noun: str, dice: Dice, earlier: str) -> str:
    if phrase.count is not None:
        number, *others = NUMBERS[phrase.count]
        return " ".join(dice.usual((number, others[0])) if phrase.count == 2 else number)
    return "another" if f" {noun}" in earlier and dice.chance(0.5) else "a"


# Parsing: from a caption to its logical form, with the words that express each part.
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
# A comma or semicolon separates a clause with a relation from its neighbours: "a circle left of a
# star and a square" is ambiguous and therefore outside the grammar.


Kind = Literal["phrase", "number", "size", "pattern", "colour", "object", "relation"]


@final
@dataclass(frozen=True, slots=True)
class Span:
    """Adjacent words of a caption with their meaning.

    Attributes:
        kind: "phrase" for a whole noun phrase, "object" for its noun, "number", "size", "pattern"
            and "colour" for its modifiers, "relation" for a relation with its pronoun.
        start: first word.
        stop: one past the last word.
        place: index of the phrase in the form, or of the link for a relation.
    """

    kind: Kind
    start: int
    stop: int
    place: int


@final
@dataclass(frozen=True, slots=True)
class Parse:
    """A caption taken apart by the grammar: its form, and the words of each part."""

    words: Words  # as `counterfoil.data.tokenizers.split_words` splits them
    form: Form
    spans: tuple[Span, ...]  # words of each part of the claim, in order of their first word

    def of(self, *kinds: Kind) -> list[Span]:
        """The spans of these kinds."""
        return [span for span in self.spans if span.kind in kinds]

    def text(self, span: Span) -> str:
        """The words of a span."""
        return " ".join(self.words[span.start : span.stop])


@lru_cache(maxsize=65_536)
def parse(caption: str) -> Parse | None:
    """Parse a caption; None if it is outside the grammar."""
    words = tuple(split_words(caption))
    parser = _Parser(words)
    try:
        form = parser.caption()
    except _OutsideError:
        return None
    return Parse(words, form, tuple(sorted(parser.spans, key=lambda s: (s.start, -s.stop))))


class _OutsideError(Exception):
    """The caption is outside the grammar."""


_WITH_PATTERN: dict[Words, str] = {
    ("with", noun): pattern for pattern, nouns in PATTERN_NOUNS.items() for noun in nouns
}
_AT_ITS_SIDE: dict[Words, str] = {
    (before, its, side): relation
    for relation, (before, side) in SIDE_WORDS.items()
    for its in SIDES
}

_Choices = dict[str, list[Words]]  # by their first word, the longest first


def _choices(*choices: Words) -> _Choices:
    """Index choices by their first word, for parsing is most of the time that foils take."""
    index: _Choices = {}
    for words in sorted(choices, key=len, reverse=True):
        index.setdefault(words[0], []).append(words)
    return index


_AND = _choices(("and",))
_COMMA = _choices((",",))
_FULL_STOP = _choices((".",))
_WITH = _choices(("with",))
_WHICH = _choices(("which",), (",", "which"), ("that",))
_OPENING = _choices(*OPENINGS)
_CLOSING = _choices(*CLOSINGS)
_JOINT = _choices(*FIRM, *LOOSE)
_COPULA = _choices(*_words(*COPULAS[0], *COPULAS[1]))
_VERB = _choices(*_words(*COPULAS[0], *COPULAS[1], *THERE[0], *THERE[1]))
_ARTICLE = _choices(*_words(*ARTICLES))
_PRONOUN = _choices(*_words(*PRONOUNS))
_NUMBER = _choices(*COUNT_OF)
_RELATION = _choices(*RELATION_OF)
_PATTERN = _choices(*_WITH_PATTERN)
_SIDE = _choices(*_AT_ITS_SIDE)


@final
class _Parser:
    """A recursive-descent parser of one caption."""

    def __init__(self, words: Words) -> None:
        self.words, self.at = words, 0
        self.phrases: list[Phrase] = []
        self.links: list[Link] = []
        self.spans: list[Span] = []

    def caption(self) -> Form:
        opened = bool(self._accept(_OPENING))
        related, complete, firm = [self._clause(has_verb=opened)], False, True
        while not (complete := bool(self._accept(_CLOSING))):
            if not (joint := self._accept(_JOINT)):
                break
            firm = firm and joint in FIRM
            related.append(self._clause(has_verb=False))
        self._accept(_FULL_STOP)
        if self.at < len(self.words) or (any(related) and not firm):
            raise _OutsideError
        return Form(tuple(self.phrases), tuple(self.links), complete)

    def _next(self, choices: _Choices) -> Words:
        """The longest of the choices that comes next; () if none does."""
        for words in choices.get(self._word(), ()):
            if self.words[self.at : self.at + len(words)] == words:
                return words
        return ()

    def _accept(self, choices: _Choices) -> Words:
        """Consume the longest of the choices that comes next, if any."""
        words = self._next(choices)
        self.at += len(words)
        return words

    def _expect(self, choices: _Choices) -> Words:
        words = self._accept(choices)
        if not words:
            raise _OutsideError
        return words

    def _clause(self, *, has_verb: bool) -> bool:
        """One clause; whether it contains a relation."""
        if self._next(_RELATION):
            relations, landmark = self._relations(), self._noun_phrase()
            self._accept(_COMMA)
            self._expect(_VERB)
            self._link(relations, self._noun_phrase(), landmark)
            return True
        subject = self._noun_phrase()
        if self._accept(_WITH):
            companion = self._noun_phrase()
            self._relation_to_pronoun(companion, subject)
            return True
        copula = not has_verb and bool(self._accept(_COPULA))
        if not self._next(_RELATION):
            if copula:
                raise _OutsideError
            return False
        middle = self._related(subject)
        if self._and_relation():
            self._related(subject)
        elif self._accept(_WHICH):
            self._expect(_COPULA)
            self._related(middle)
        return True

    def _related(self, subject: int) -> int:
        """Relations of a subject, and their object."""
        relations, landmark = self._relations(), self._noun_phrase()
        self._link(relations, subject, landmark)
        return landmark

    def _relations(self) -> list[tuple[str, int, int]]:
        """One relation, or two of the same things, each with its first word and its end."""
        relations: list[tuple[str, int, int]] = []
        while not relations or (len(relations) == 1 and self._and_relation()):
            start = self.at
            relations.append((RELATION_OF[self._expect(_RELATION)], start, self.at))
        return relations

    def _and_relation(self) -> bool:
        """Consume an "and" that a relation follows."""
        start = self.at
        if self._accept(_AND) and self._next(_RELATION):
            return True
        self.at = start
        return False

    def _relation_to_pronoun(self, subject: int, landmark: int) -> None:
        start = self.at
        if side := self._accept(_SIDE):
            relation = _AT_ITS_SIDE[side]
        else:
            relation = RELATION_OF[self._expect(_RELATION)]
            self._expect(_PRONOUN)
        self._link([(relation, start, self.at)], subject, landmark)

    def _link(self, relations: list[tuple[str, int, int]], subject: int, landmark: int) -> None:
        for relation, start, stop in relations:
            self.spans.append(Span("relation", start, stop, len(self.links)))
            self.links.append(Link(relation, subject, landmark))

    def _noun_phrase(self) -> int:
        """A noun phrase; its index."""
        place, start = len(self.phrases), self.at
        if number := self._accept(_NUMBER):
            self.spans.append(Span("number", start, self.at, place))
        else:
            self._expect(_ARTICLE)
        count = COUNT_OF.get(number)
        attributes: dict[str, Any] = {}
        while self._word() in ATTRIBUTE_OF:
            self._attribute(attributes, *ATTRIBUTE_OF[self._word()], place, width=1)
        shape, plural = SHAPE_OF.get(self._word(), (None, None))
        if plural != ((count or 1) > 1):
            raise _OutsideError
        self.spans.append(Span("object", self.at, self.at + 1, place))
        self.at += 1
        if pattern := _WITH_PATTERN.get(self._next(_PATTERN)):
            self._attribute(attributes, "pattern", pattern, place, width=2)
        self.spans.append(Span("phrase", start, self.at, place))
        self.phrases.append(Phrase(count, shape=shape, **attributes))
        return place

    def _attribute(
        self, attributes: dict[str, Any], kind: Attribute, value: str, place: int, *, width: int
    ) -> None:
        if kind in attributes:
            raise _OutsideError
        attributes[kind] = value
        self.spans.append(Span(kind, self.at, self.at + width, place))
        self.at += width

    def _word(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""
