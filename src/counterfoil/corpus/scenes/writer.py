"""From a claim to English; `counterfoil.corpus.scenes.reader` is the way back.

>>> form = Form((Phrase(colour="orange", shape="circle"), Phrase(shape="star")),
...             (Link("above", 0, 1),))
>>> for name in "adg":
...     print(write(form, Dice(name)))
A star with an orange circle above it.
Above a star, you can see an orange circle.
An orange circle above a star.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from counterfoil.corpus.scenes import lexicon
from counterfoil.corpus.scenes.dice import Dice
from counterfoil.corpus.scenes.form import Form, Link, Phrase

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
        closing = " ".join(dice.pick([c for c in lexicon.CLOSINGS if c[0] == "," or not crowded]))
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
    words = dice.pick(lexicon.OPENINGS)
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
        last = f" {' '.join(dice.usual(lexicon.LOOSE))} "
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
    return " ".join(dice.usual(lexicon.RELATION_WORDS[relation]))


def _to_it(relation: str, many: bool, dice: Dice) -> str:
    if relation in lexicon.SIDE_WORDS and dice.chance(0.6):
        before, after = lexicon.SIDE_WORDS[relation]
        return f"{before} {lexicon.SIDES[many]} {after}"
    return f"{_relation(relation, dice)} {lexicon.PRONOUNS[many]}"


def _verb(many: bool, dice: Dice, *, bare: bool) -> str:
    return "" if bare or dice.chance(0.5) else _copula(many, dice) + " "


def _copula(many: bool, dice: Dice) -> str:
    return dice.usual(("are", "sit", "are placed", "lie") if many else _SINGULAR)


def _there(many: bool, dice: Dice) -> str:
    return dice.usual(("there are" if many else "there is", "we see", "you can see"))


def _noun_phrase(phrase: Phrase, dice: Dice, seen: str) -> str:
    singular, plural = dice.usual(lexicon.NOUNS[phrase.shape])
    words: list[str] = []
    if phrase.size:
        words.append(dice.usual(lexicon.SIZE_WORDS[phrase.size]))
    after = ""
    colour = [dice.usual(lexicon.COLOUR_WORDS[phrase.colour])] if phrase.colour else []
    pattern: list[str] = []
    if phrase.pattern in lexicon.PATTERN_NOUNS and dice.chance(0.25):
        after = f" with {dice.usual(lexicon.PATTERN_NOUNS[phrase.pattern])}"
    elif phrase.pattern:
        pattern = [dice.usual(lexicon.PATTERN_WORDS[phrase.pattern])]
    late = phrase.pattern != "plain" and dice.chance(0.25)
    words += colour + pattern if late else pattern + colour
    words.append(plural if (phrase.count or 1) > 1 else singular)
    return f"{_determiner(phrase, singular, dice, seen)} {' '.join(words)}{after}"


def _determiner(phrase: Phrase, noun: str, dice: Dice, seen: str) -> str:
    if phrase.count is not None:
        number, *others = lexicon.NUMBERS[phrase.count]
        return " ".join(dice.usual((number, others[0])) if phrase.count == 2 else number)
    return "another" if f" {noun}" in seen and dice.chance(0.5) else "a"


_SINGULAR = ("is", "sits", "is placed", "lies")
