"""Edits of captions: tokens replaced by others, and captions made false by rule (VSE-C).

`replace_tokens` replaces tokens in the text of a caption. `replace_nouns`, `replace_numbers`,
`swap_noun_phrases` and `replace_prepositions` are the rules of Shi et al., "Learning
Visually-Grounded Semantics from Contrastive Adversarial Samples"
(https://arxiv.org/abs/1806.10348), sections 3.1 to 3.3. Other functions give plurals, articles, and
words that may be true of the same picture.

>>> from counterfoil.data.phrases import parse_sentence
>>> caption = "A dog and two cats."
>>> [edit.apply(caption) for edit in replace_numbers(parse_sentence(caption))][:2]
['Two dogs and two cats.', 'Three dogs and two cats.']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import combinations, pairwise
from typing import Any, Literal, TypeAlias, final

from counterfoil.data.phrases import (
    NUMBER_WORDS,
    ParsedCaption,
    Span,
    TaggedWord,
    inflection,
    lemma,
    lexicon,
)

# --- tokens ----------------------------------------------------------------------------------

PIECE = "##"  # marks a piece that continues a word
BLANKS = ("Ġ", "▁")  # mark a piece that begins a word


@final
@dataclass(frozen=True, slots=True)
class RewrittenCaption:
    """A caption after some of its tokens were replaced.

    Attributes:
        text: the new caption.
        changes: from left to right, the span in the old caption and in the new one; whole words,
            even if only a piece of a word is new.
    """

    text: str
    changes: tuple[tuple[Span, Span], ...]


def replace_tokens(text: str, spans: Sequence[Span], new: Mapping[int, str]) -> RewrittenCaption:
    """Replace tokens of a caption; everything else stays as it was written.

    >>> spans = [(0, 0), (0, 1), (2, 5), (7, 11), (11, 12)]
    >>> replace_tokens("A dog  runs.", spans, {1: "one", 3: "##fish"})
    RewrittenCaption(text='One dogfish.', changes=(((0, 1), (0, 3)), ((2, 11), (4, 11))))
    """
    out, at = "", 0
    runs: list[tuple[Span, Span]] = []
    for place, (start, stop) in enumerate(spans):
        if start == stop:
            continue
        gap, word = text[at:start], text[start:stop]
        if place in new:
            gap, word = _spelled(new[place], gap, word, out + gap)
            same = len(gap) if gap == text[at:start] else 0
            runs.append(((at + same, stop), (len(out) + same, len(out + gap + word))))
        out, at = out + gap + word, stop
    out += text[at:]
    return RewrittenCaption(out, _whole_words(text, out, runs))


def token_text(token: str) -> str:
    """The text of a token without the tokenizer's marks of word boundaries.

    >>> token_text("##ing"), token_text("Ġdog"), token_text("cat</w>")
    ('ing', 'dog', 'cat')
    """
    token = token.removesuffix("</w>").removeprefix(PIECE)
    for blank in BLANKS:
        token = token.removeprefix(blank)
    return token


def _spelled(token: str, gap: str, old: str, before: str) -> tuple[str, str]:
    """The gap before a new token, and the token as text."""
    word = token_text(token)
    if not before.strip() and old[:1].isupper():
        word = word[:1].upper() + word[1:]
    if token.startswith(PIECE):
        return "", word
    return gap or (" " if word[:1].isalnum() and before[-1:].isalnum() else ""), word


def _whole_words(
    text: str, out: str, runs: Iterable[tuple[Span, Span]]
) -> tuple[tuple[Span, Span], ...]:
    """Changed runs of characters, widened to whole words; runs without a change are dropped.

    Outside of the runs, which go from left to right, `text` and `out` are alike.
    """
    left: list[tuple[Span, Span]] = []  # widened to the left, in order
    for (start, stop), (begin, end) in runs:
        while start and text[start - 1].isalnum() and _continues(text[start:stop], out[begin:end]):
            if left and left[-1][0][1] == start:  # the run before belongs to the same word
                (start, _), (begin, _) = left.pop()
            else:
                start, begin = start - 1, begin - 1
        left.append(((start, stop), (begin, end)))
    both: list[tuple[Span, Span]] = []  # and to the right, from the last one on
    for (start, stop), (begin, end) in reversed(left):
        limit = both[-1][0][0] if both else len(text)
        while stop < limit and text[stop].isalnum() and _continues(text[stop - 1], out[end - 1]):
            stop, end = stop + 1, end + 1
        both.append(((start, stop), (begin, end)))
    return tuple(run for run in reversed(both) if text[slice(*run[0])] != out[slice(*run[1])])


def _continues(*words: str) -> bool:
    """Return True if any of them begins with a letter or digit, or with a gap that was closed."""
    return any(word[:1].isalnum() or word[:1].isspace() for word in words)


# --- words -----------------------------------------------------------------------------------

ARTICLES = ("a", "an")

_NEAR = "next to|near|beside|by|alongside|close to|at|with"
_OVER = "on|on top of|atop|upon|onto|above|over|higher than|up"
_UNDER = "under|below|beneath|underneath|lower than|down"
_LEFT = "left of|to the left of|on the left of|on the left side of"
_RIGHT = "right of|to the right of|on the right of|on the right side of"
# Groups of prepositions that may be true of the same two objects.
PREPOSITIONS: tuple[frozenset[str], ...] = tuple(
    frozenset(group.split("|"))
    for group in (
        "in|inside|within|into|through|among|between|at",
        *(f"{place}|{_NEAR}" for place in (_OVER, _UNDER, _LEFT, _RIGHT)),
        *(f"{side}|{height}" for side in (_LEFT, _RIGHT) for height in (_OVER, _UNDER)),
        f"in front of|before|{_NEAR}",
        f"behind|after|in back of|{_NEAR}",
        f"against|towards|toward|{_NEAR}",
        f"around|along|across|past|through|{_NEAR}",
        "off|out of|from|away from|outside|outside of",
        "without",
    )
)
_SAME_PLURAL = frozenset(
    {"sheep", "deer", "fish", "aircraft", "salmon", "moose", "bison", "series", "species"}
)
_PLURAL_OES = frozenset({"potato", "tomato", "hero", "echo", "mango", "volcano"})
_HYPERNYM_STEPS = 2


@cache
def other_prepositions(word: str) -> tuple[str, ...]:
    """Prepositions that share no group with this one; () if it is in no group.

    >>> "under" in other_prepositions("on"), "above" in other_prepositions("on")
    (True, False)
    """
    compatible = frozenset[str]().union(*(group for group in PREPOSITIONS if word in group))
    every = frozenset[str]().union(*PREPOSITIONS)
    return tuple(sorted(every - compatible)) if compatible else ()


@cache
def related_nouns(word: str) -> frozenset[str]:
    """Dictionary forms of nouns that may name the same object, by a small list; includes its own.

    >>> sorted(related_nouns("kittens"))
    ['animal', 'cat', 'feline', 'kitten', 'pet']
    """
    form = lemma(word)
    return frozenset({form}).union(*(group for group in lexicon().related_nouns if form in group))


def wordnet_synonyms(word: str) -> frozenset[str]:
    """A lower-cased word, its synonyms, and hypernyms up to two steps up, from WordNet by nltk.

    Only the most frequent sense of each part of speech counts.
    """
    wordnet, names = _wordnet(), {word}
    for part in "nvar":
        level = wordnet.synsets(word, pos=part)[:1]
        for _ in range(_HYPERNYM_STEPS + 1):
            names |= {name.lower() for sense in level for name in sense.lemma_names()}
            level = [hypernym for sense in level for hypernym in sense.hypernyms()]
    return frozenset(name for name in names if "_" not in name)


@cache
def _wordnet() -> Any:
    try:
        wordnet: Any = import_module("nltk.corpus").wordnet
        wordnet.synsets("dog")
    except (ImportError, LookupError, OSError):  # OSError: some of its files are missing
        raise ValueError(
            "the rule 'wordnet' needs nltk and its WordNet: pip install nltk, then python -m "
            "nltk.downloader wordnet; the rule 'lemmas' needs nothing"
        ) from None
    return wordnet


def plural(noun: str) -> str:
    """The plural of a lower-cased noun; of a plural, itself.

    >>> [plural(noun) for noun in "man puppy box kite boys sheep person".split()]
    ['men', 'puppies', 'boxes', 'kites', 'boys', 'sheep', 'people']
    """
    if noun in _irregular_plurals():
        return _irregular_plurals()[noun]
    if noun in _SAME_PLURAL or inflection(noun) == "s":
        return noun
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return noun[:-1] + "ies"
    es = noun.endswith(("s", "x", "z", "ch", "sh")) or noun in _PLURAL_OES
    return noun + ("es" if es else "s")


@cache
def _irregular_plurals() -> Mapping[str, str]:
    return {
        word: inflected
        for inflected, (word, ending) in lexicon().irregular.items()
        if ending == "s" and word not in ("have", "do", "go")  # "has" is no plural
    }


def singular(noun: str) -> str:
    """The singular of a lower-cased noun; of a singular, itself.

    >>> [singular(noun) for noun in "men puppies boxes dress people".split()]
    ['man', 'puppy', 'box', 'dress', 'person']
    """
    return lemma(noun) if inflection(noun) == "s" else noun


def article(following: str) -> str:
    """The indefinite article before a word, by the letters that the word begins with.

    >>> article("umbrella"), article("unicycle"), article("dog")
    ('an', 'a', 'a')
    """
    vowel = following[:1] in tuple("aeiou")
    consonant_sound = following.startswith(("uni", "use", "eu", "on"))
    exception = following.startswith(("hour", "onion", "eight"))
    return "an" if (vowel and not consonant_sound) or exception else "a"


# --- rules (VSE-C) ---------------------------------------------------------------------------

RuleKind: TypeAlias = Literal["noun", "numeral", "relation"]
RULE_KINDS: tuple[RuleKind, ...] = ("noun", "numeral", "relation")
LINKS = (",", "with", "and", "or")
_IN_BOTH_DIRECTIONS = (
    "plus|along with|together with|as|well|also|next to|beside|near|alongside|close to|by"
)
SYMMETRIC = tuple(_IN_BOTH_DIRECTIONS.split("|"))
Candidates: TypeAlias = Callable[[str], Iterable[str]]


@final
@dataclass(frozen=True, slots=True)
class TextChange:
    """A replacement of one span of a text."""

    start: int  # first character of the old words
    stop: int  # one past their last character
    new: str


@final
@dataclass(frozen=True, slots=True)
class CaptionEdit:
    """An edit that makes a foil of a caption."""

    kind: RuleKind
    changes: tuple[TextChange, ...]  # from left to right, without overlap

    def apply(self, text: str) -> str:
        """The foil; it begins with a capital where the caption does."""
        return self.apply_with_spans(text)[0]

    def apply_with_spans(self, text: str) -> tuple[str, tuple[Span, ...]]:
        """The foil, and the spans of the changed words in it."""
        out, at = "", 0
        spans: list[Span] = []
        for change in self.changes:
            out += text[at : change.start]
            new = change.new
            if not out.strip() and text[change.start].isupper():
                new = new[:1].upper() + new[1:]
            spans.append((len(out), len(out) + len(new)))
            out, at = out + new, change.stop
        return out + text[at:], tuple(spans)


def replace_nouns(
    caption: ParsedCaption, candidates: Candidates, *, agree: bool = True
) -> Iterator[CaptionEdit]:
    """Replace the head of a noun phrase by other nouns.

    With `agree`, candidates are in the same number, and the article before them is corrected; the
    authors' code uses all candidates as they are.
    """
    words = caption.words
    for first, stop in caption.chunks:
        if not all(_is_plain(word.text) for word in words[first:stop]):
            continue
        head = words[stop - 1]
        for new in candidates(head.text):
            if not agree:
                yield CaptionEdit("noun", (_replaced(head, new),))
            elif (inflection(new) == "s") == (inflection(head.text) == "s"):
                yield CaptionEdit(
                    "noun", (*_article_change(words, stop - 1, new), _replaced(head, new))
                )


def replace_numbers(caption: ParsedCaption, *, agree: bool = True) -> Iterator[CaptionEdit]:
    """Replace the number of some objects by each of 28 number words of another value.

    "a", "an" and "one" are 1. The noun changes between singular and plural; the verb does not. With
    `agree`, "a" and "an" are written only where they are correct; the authors' code writes either
    anywhere.

    Departs from the authors' code in: a number at the end of the caption is left alone (C2: their
    loop never ends); so are runs of several numbers.
    """
    words = caption.words
    for at, word in enumerate(words):
        value = _number_value(words, at)
        last = None if value is None else _counted_noun(words, at + 1)
        if last is None:
            continue
        noun = words[last]
        after_determiner = at > 0 and words[at - 1].part == "determiner"
        for new, other in NUMBER_WORDS.items():
            if other == value:
                continue
            form = singular(noun.text) if other == 1 else noun.text
            form = plural(noun.text) if value == 1 else form
            follows = form if last == at + 1 else words[at + 1].text
            if agree and new in ARTICLES and (after_determiner or new != article(follows)):
                continue
            more = () if form == noun.text else (_replaced(noun, form),)
            yield CaptionEdit("numeral", (_replaced(word, new), *more))


def swap_noun_phrases(
    caption: ParsedCaption, *, links: Sequence[str] = LINKS + SYMMETRIC
) -> Iterator[CaptionEdit]:
    """Exchange two noun phrases.

    `links` are words that, alone between two phrases, join them to a list; joined phrases are not
    exchanged with each other, also if others are between them.

    Departs from the authors' code in: a comma links (C1: they compare it with a string that no
    token equals), and so do symmetric relations, such as "next to", and several such words
    together, such as ", and".
    """
    group = list(range(len(caption.chunks)))
    for at, ((_, end), (begin, _)) in enumerate(pairwise(caption.chunks)):
        between = [word.text for word in caption.words[end:begin] if word.text not in lexicon().be]
        if between and all(word in links for word in between):
            group[at + 1] = group[at]
    for pair in combinations(range(len(group)), 2):
        if group[pair[0]] == group[pair[1]]:
            continue
        one, other = (_chunk(caption, chunk) for chunk in pair)
        if one.new.lower() != other.new.lower():
            changes = replace(one, new=other.new), replace(other, new=one.new)
            yield CaptionEdit("relation", changes)


def replace_prepositions(
    caption: ParsedCaption, candidates: Candidates = other_prepositions
) -> Iterator[CaptionEdit]:
    """Replace a preposition by others with another meaning.

    The authors use 29 groups of tokens that their tagger labelled as prepositions, among them
    "toronto"; the default are groups of prepositions, also of several words, that may be true of
    the same two objects.
    """
    for word in caption.words:
        if word.part == "preposition":
            for new in candidates(word.text):
                yield CaptionEdit("relation", (_replaced(word, new),))


def noun_vocabulary(captions: Iterable[ParsedCaption], *, at_least: int) -> tuple[str, ...]:
    """Nouns of captions, the most frequent first."""
    counts = Counter(
        word.text
        for caption in captions
        for word in caption.words
        if word.part == "noun" and _is_plain(word.text)
    )
    frequent = (word for word, count in counts.items() if count >= at_least)
    return tuple(sorted(frequent, key=lambda word: (-counts[word], word)))


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha()


def _replaced(word: TaggedWord, new: str) -> TextChange:
    return TextChange(word.start, word.stop, new)


def _article_change(words: Sequence[TaggedWord], at: int, new: str) -> tuple[TextChange, ...]:
    """The change of the article before a new word, where it needs one."""
    before = words[at - 1] if at else None
    if before is None or before.text not in ARTICLES or before.text == article(new):
        return ()
    return (_replaced(before, article(new)),)


def _number_value(words: Sequence[TaggedWord], at: int) -> int | None:
    """The value of a number or an article; None for other words and for runs of numbers."""
    word = words[at]
    if word.part != "number" and word.text not in ARTICLES:
        return None
    around = [*words[max(at - 1, 0) : at], *words[at + 1 : at + 2]]
    if word.part == "number" and any(other.part == "number" for other in around):
        return None
    return int(word.text) if word.text.isdecimal() else NUMBER_WORDS.get(word.text)


def _counted_noun(words: Sequence[TaggedWord], at: int) -> int | None:
    """The index of the noun that a number before this index counts."""
    while at < len(words) and words[at].part in ("adjective", "conjunction"):
        at += 1
    last = None
    while at < len(words) and words[at].part == "noun":
        last, at = at, at + 1
    return last


def _chunk(caption: ParsedCaption, chunk: int) -> TextChange:
    """The place of a noun phrase, and its words without the capital that begins a sentence."""
    first, last = caption.chunks[chunk]
    start, stop = caption.words[first].start, caption.words[last - 1].stop
    text = caption.text[start:stop]
    begins = not caption.text[:start].strip()
    return TextChange(start, stop, text[:1].lower() + text[1:] if begins else text)
