"""The words of the captions, usual ones first."""

from __future__ import annotations

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
