"""Words that rules put into captions: numbers, prepositions, and nouns that must not meet."""

from __future__ import annotations

from functools import cache

from counterfoil.corpus.inflection import IRREGULAR, inflection, lemma


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_UP_TO_TWENTY = _listed(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
NUMBERS: dict[str, int] = {"a": 1, "an": 1} | {
    word: value for value, word in enumerate(_UP_TO_TWENTY, 1)
}
NUMBERS |= {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80}

_NEAR = "next to|near|beside|by|alongside|close to|at|with"
_OVER = "on|on top of|atop|upon|onto|above|over|higher than|up"
_UNDER = "under|below|beneath|underneath|lower than|down"
_LEFT = "left of|to the left of|on the left of|on the left side of"
_RIGHT = "right of|to the right of|on the right of|on the right side of"
PREPOSITIONS: tuple[frozenset[str], ...] = tuple(  # what may be true of the same two things
    frozenset(group.split("|"))
    for group in (
        "in|inside|within|into|through|among|between|at",
        *(f"{one}|{_NEAR}" for one in (_OVER, _UNDER, _LEFT, _RIGHT)),
        *(f"{side}|{height}" for side in (_LEFT, _RIGHT) for height in (_OVER, _UNDER)),
        f"in front of|before|{_NEAR}",
        f"behind|after|in back of|{_NEAR}",
        f"against|towards|toward|{_NEAR}",
        f"around|along|across|past|through|{_NEAR}",
        "off|out of|from|away from|outside|outside of",
        "without",
    )
)
_RELATED = tuple(
    frozenset(group.split())
    for group in (
        "man guy gentleman male person human adult individual",
        "woman lady female person human adult individual",
        "boy child kid toddler baby infant youth youngster teenager person",
        "girl child kid toddler baby infant youth youngster teenager person",
        "crowd group people audience team person",
        "player athlete person man woman boy girl",
        "worker person man woman",
        "dog puppy canine animal pet",
        "cat kitten feline animal pet",
        "horse pony animal",
        "cow bull cattle animal",
        "sheep lamb goat animal",
        "bird animal",
        "bike bicycle cycle vehicle",
        "motorbike motorcycle bike cycle vehicle",
        "car automobile vehicle suv",
        "truck lorry vehicle van",
        "boat ship canoe kayak vessel raft",
        "street road sidewalk pavement path",
        "grass field lawn meadow ground",
        "sand beach shore coast",
        "ocean sea water wave",
        "lake river stream pond water pool",
        "snow ice slope hill mountain",
        "rock stone boulder cliff",
        "shirt t-shirt top blouse jersey",
        "jacket coat sweater",
        "pants trousers jeans shorts",
        "hat cap helmet",
        "house building home structure",
        "photo picture image photograph camera",
        "shape thing object item",
        "circle disc shape thing object",
        "square diamond rhombus shape thing object",
        "triangle star heart cross shape thing object",
        "moon crescent shape thing object",
        "side front back top bottom middle center edge end",
        "tree plant bush branch",
        "couch sofa seat chair bench",
    )
)
_PLURALS = {
    word: inflected
    for inflected, (word, ending) in IRREGULAR.items()
    if ending == "s" and word not in ("have", "do", "go")
}
_ALIKE = _listed("sheep deer fish aircraft salmon moose bison series species")
_OES = _listed("potato tomato hero echo mango volcano")


@cache
def other_prepositions(word: str) -> tuple[str, ...]:
    """Prepositions that are in no group with this one; none where it is in no group.

    >>> "under" in other_prepositions("on"), "above" in other_prepositions("on")
    (True, False)
    """
    close = frozenset[str]().union(*(group for group in PREPOSITIONS if word in group))
    return tuple(sorted(frozenset[str]().union(*PREPOSITIONS) - close)) if close else ()


@cache
def related(word: str) -> frozenset[str]:
    """Dictionary forms of nouns that may name the same thing, by a small list; itself among them.

    >>> sorted(related("kittens"))
    ['animal', 'cat', 'feline', 'kitten', 'pet']
    """
    own = lemma(word)
    return frozenset({own}).union(*(group for group in _RELATED if own in group))


def plural(noun: str) -> str:
    """The plural of a lower-cased noun; of a plural, itself.

    >>> [plural(noun) for noun in "man puppy box kite boys sheep person".split()]
    ['men', 'puppies', 'boxes', 'kites', 'boys', 'sheep', 'people']
    """
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun in _ALIKE or inflection(noun) == "s":
        return noun
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "z", "ch", "sh")) or noun in _OES else "s")


def singular(noun: str) -> str:
    """The singular of a lower-cased noun; of a singular, itself.

    >>> [singular(noun) for noun in "men puppies boxes dress people".split()]
    ['man', 'puppy', 'box', 'dress', 'person']
    """
    return lemma(noun) if inflection(noun) == "s" else noun


def article(following: str) -> str:
    """What stands before a word, "a" or "an", by the letter that it begins with.

    >>> article("umbrella"), article("unicycle"), article("dog")
    ('an', 'a', 'a')
    """
    sounds = following[:1] in tuple("aeiou") and not following.startswith(
        ("uni", "use", "eu", "on")
    )
    return "an" if sounds or following.startswith(("hour", "onion", "eight")) else "a"
