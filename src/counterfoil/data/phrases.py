"""Phrases of captions (objects, attributes, relations), their words, and dictionary forms.

Three parsers share the `PhraseParser` protocol: `RulePhraseParser` (no dependencies, the default),
`SpacyPhraseParser`, and `PhraseFile`, which reads the output of SPICE or another parser, or the
scene graphs of TAGS' authors.
The word lists of the rules are data: ``lexicon.json`` beside this file.

>>> caption = "Two men in red shirts are riding a small wooden boat next to the shore."
>>> for phrase in RulePhraseParser().phrases([caption], [""])[0]:
...     print(phrase.kind, phrase.text(caption))
attribute Two
object men
relation in
attribute red
object shirts
relation riding
attribute small
attribute wooden
object boat
relation next to
object shore
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final

from counterfoil.core.io import read_json
from counterfoil.core.optional import optional_import
from counterfoil.data.readers import registered_formats
from counterfoil.data.tokenizers import split_words, word_spans

PhraseKind: TypeAlias = Literal["object", "attribute", "relation"]
PHRASE_KINDS: tuple[PhraseKind, ...] = ("object", "attribute", "relation")
Ending: TypeAlias = Literal["", "s", "ing", "ed", "er", "est"]
PartOfSpeech: TypeAlias = Literal[
    "noun",
    "attribute",
    "verb",
    "preposition",
    "determiner",
    "adverb",
    "be",
    "other",
    "number",
    "adjective",
    "conjunction",  # of `parse_sentence` only
]
Span: TypeAlias = tuple[int, int]

_TO_TWENTY = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
_TENS = "thirty forty fifty sixty seventy eighty"
NUMBER_WORDS: Mapping[str, int] = {
    **{"a": 1, "an": 1},
    **{word: number for number, word in enumerate(_TO_TWENTY.split(), 1)},
    **{word: number * 10 for number, word in enumerate(_TENS.split(), 3)},
}


@final
@dataclass(frozen=True, slots=True)
class CaptionPhrase:
    """Words of a caption that name an object, an attribute or a relation."""

    kind: PhraseKind
    spans: tuple[Span, ...]  # start and end, in characters, of each run of words

    def text(self, caption: str) -> str:
        """The words of the phrase in its caption, joined by spaces.

        >>> CaptionPhrase("relation", ((2, 7), (11, 13))).text("A looks it at")
        'looks at'
        """
        return " ".join(caption[start:stop] for start, stop in self.spans)


class PhraseParser(Protocol):
    """Extracts the phrases of captions."""

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[CaptionPhrase, ...]]:
        """The phrases of each caption; a phrase may occur twice."""
        ...


def touched_tokens(phrase: CaptionPhrase, tokens: Sequence[Span]) -> list[int]:
    """Indices of the tokens of a caption that a phrase overlaps.

    >>> touched_tokens(CaptionPhrase("object", ((2, 9),)), [(0, 0), (0, 1), (2, 5), (5, 9)])
    [2, 3]
    """
    return [
        place
        for place, (start, stop) in enumerate(tokens)
        if start < stop and any(start < end and begin < stop for begin, end in phrase.spans)
    ]


# --- the lexicon -----------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Lexicon:
    """Word lists of the rules; a word that is in none of them counts as a noun."""

    # Closed classes.
    determiners: frozenset[str]
    pronouns: frozenset[str]
    be: frozenset[str]  # forms of "to be" and other auxiliaries
    other: frozenset[str]  # conjunctions and particles
    numbers: frozenset[str]  # and quantities
    adverbs: frozenset[str]
    prepositions: frozenset[str]  # of one word
    compounds: Mapping[str, tuple[tuple[str, ...], ...]]  # of several, and `joined`, by first word
    joined: frozenset[str]  # compounds that link like "and"
    # Open classes.
    attributes: frozenset[str]  # adjectives
    also_nouns: frozenset[str]  # attributes that are nouns if no noun follows, such as "orange"
    verbs: frozenset[str]  # dictionary forms
    noun_ing: frozenset[str]  # nouns that end in -ing
    noun_s: frozenset[str]  # singular nouns that end in -s, and plurals that look like verbs
    ended_ly: frozenset[str]  # words in -ly that are no adverbs
    patterns: frozenset[str]  # nouns that make "with ..." an attribute, as in "with stripes"
    openings: tuple[tuple[str, ...], ...]  # of captions, as in "a picture of": not parsed
    # Inflection.
    uninflected: frozenset[str]  # words that look inflected and are not, such as "bus"
    silent_e: frozenset[str]  # verb stems that end in a silent e, without it
    irregular: Mapping[str, tuple[str, Ending]]  # inflected form to dictionary form and ending
    related_nouns: tuple[frozenset[str], ...]  # groups of nouns that may name the same object


@cache
def lexicon() -> Lexicon:
    """The word lists of ``lexicon.json``, read once."""
    raw = json.loads(files("counterfoil.data").joinpath("lexicon.json").read_text("utf-8"))
    compounds: dict[str, tuple[tuple[str, ...], ...]] = {}
    for words in map(str.split, raw.pop("compounds")):
        compounds[words[0]] = (*compounds.get(words[0], ()), tuple(words))
    irregular: dict[str, tuple[str, Ending]] = {}
    for ending, pairs in raw.pop("irregular").items():
        irregular |= {form: (word, ending) for form, word in map(str.split, pairs)}
    return Lexicon(
        compounds=compounds,
        openings=tuple(tuple(opening.split()) for opening in raw.pop("openings")),
        irregular=irregular,
        related_nouns=tuple(frozenset(group.split()) for group in raw.pop("related_nouns")),
        **{name: frozenset(words) for name, words in raw.items()},
    )


# --- dictionary forms ------------------------------------------------------------------------


@lru_cache(maxsize=65_536)
def lemma(word: str) -> str:
    """The dictionary form of a lower-cased word, as far as rules reach; otherwise the word.

    >>> [lemma(word) for word in "dogs boxes babies men running stopped rides dress red".split()]
    ['dog', 'box', 'baby', 'man', 'run', 'stop', 'ride', 'dress', 'red']
    """
    if word in lexicon().irregular:
        return lexicon().irregular[word][0]
    ending = inflection(word)
    if ending == "s":
        if word.endswith("ies") and len(word) > 4:
            return word[:-3] + "y"
        es = word.endswith(("ches", "shes", "xes", "sses", "zzes", "oes"))
        return word[:-2] if es else word[:-1]
    return _verb_stem(word.removesuffix(ending)) if ending else word


@lru_cache(maxsize=65_536)
def inflection(word: str) -> Ending:
    """The inflectional ending of a lower-cased word; "" for none.

    >>> inflection("dogs"), inflection("running"), inflection("ran"), inflection("dress")
    ('s', 'ing', 'ed', '')
    """
    if word in lexicon().irregular:
        return lexicon().irregular[word][1]
    if word in lexicon().uninflected or not word.isalpha():
        return ""
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return "s"
    endings: tuple[Ending, ...] = ("ing", "ed")
    for ending in endings:
        stem = word.removesuffix(ending)
        if stem != word and len(word) > 4 and not word.endswith("eed") and set(stem) & _VOWELS:
            return ending
    return ""


_VOWELS = frozenset("aeiouy")


def _verb_stem(stem: str) -> str:
    """A verb without its ending: undo the doubled letter, restore the silent e."""
    silent = ("v", "u", "dg", "ang", "rg", "at", "iz", "bl", "gl")
    if stem in lexicon().silent_e or stem.endswith(silent):
        short = ("eat", "beat", "seat", "float", "treat", "cheat", "hang", "bang", "coat")
        return stem if stem in short else stem + "e"
    if stem.endswith("i"):
        return stem[:-1] + "y"
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lszaeiou":
        return stem[:-1]
    return stem


# --- parts of speech by rule -----------------------------------------------------------------

_WORD = re.compile(r"'(?:s|re)\b|n't\b|[^\W_]+?(?=n't\b)|[^\W_]+(?:-[^\W_]+)*|[^\w\s]|_")


@final
@dataclass(frozen=True, slots=True)
class TaggedWord:
    """A word of a caption, or a compound preposition, with its part of speech."""

    text: str  # lower-cased, with single blanks
    start: int  # first character
    stop: int  # one past the last character
    part: PartOfSpeech


def tag_words(text: str) -> tuple[TaggedWord, ...]:
    """The words of a caption with their parts of speech, without an opening such as "a photo of".

    >>> [(word.text, word.part) for word in tag_words("A dog sits next to it.")][1:4]
    [('dog', 'noun'), ('sits', 'verb'), ('next to', 'preposition')]
    """
    words = _words(text)
    closed = [*(_closed_class(word.text) for word in words), "other"]  # "other" after the last word
    single = ["", *("" if " " in word.text else word.text for word in words), ""]
    tagged: list[TaggedWord] = []
    for at, word in enumerate(words):
        context = _Context(
            word=single[at + 1],
            before=tagged[-1].part if tagged else "determiner",
            after=closed[at + 1],
            previous=single[at],
            following=single[at + 2],
        )
        part = context.exception() or closed[at] or context.open_class()
        tagged.append(replace(word, part=part))
    return tuple(tagged)


def compound_prepositions(text: str) -> tuple[int, tuple[Span, ...]]:
    """Start of a caption after its opening, and the spans of its compound prepositions.

    >>> compound_prepositions("A picture of a dog next to it.")
    (13, ((19, 26),))
    """
    words = _words(text)
    long = (word for word in words if " " in word.text and word.text not in lexicon().joined)
    return words[0].start if words else len(text), tuple((w.start, w.stop) for w in long)


def _words(text: str) -> list[TaggedWord]:
    """Words after the opening, without parts of speech; a compound preposition is one word."""
    matches = [(m[0].lower(), *m.span()) for m in _WORD.finditer(text)]
    words = [word for word, _, _ in matches]
    openings = (len(o) for o in lexicon().openings if tuple(words[: len(o)]) == o)
    at = max(openings, default=0)
    out: list[TaggedWord] = []
    while at < len(matches):
        compounds = lexicon().compounds.get(words[at], ())
        fits = (len(c) for c in compounds if tuple(words[at : at + len(c)]) == c)
        stop = at + max(fits, default=1)
        out.append(
            TaggedWord(" ".join(words[at:stop]), matches[at][1], matches[stop - 1][2], "other")
        )
        at = stop
    return out


def _closed_class(word: str) -> PartOfSpeech | None:
    """The part of speech of a word that has only one; None if it depends on the context."""
    known = lexicon()
    if " " in word:
        return "other" if word in known.joined else "preposition"
    classes: tuple[tuple[frozenset[str], PartOfSpeech], ...] = (
        (known.determiners, "determiner"),
        (known.be, "be"),
        (known.pronouns, "other"),
        (known.other, "other"),
        (known.prepositions, "preposition"),
        (known.adverbs, "adverb"),
        (known.numbers, "attribute"),
    )
    for words, part in classes:
        if word in words:
            return part
    if word.isdigit():
        return "attribute"
    if not word[0].isalpha():
        return "other"
    ly = word.endswith("ly") and word not in known.ended_ly and len(word) > 4
    return "adverb" if ly else None


@final
@dataclass(frozen=True, slots=True)
class _Context:
    """A word with its neighbours; a compound preposition is ""."""

    word: str
    before: PartOfSpeech  # of the previous word; "determiner" at the start
    after: PartOfSpeech | None  # of the next word, if it has only one
    previous: str
    following: str

    def exception(self) -> PartOfSpeech | None:
        """The part of speech of words of closed classes that depend on the context after all."""
        if self.word in ("one", "ones") and self.after not in (None, "attribute"):
            # "a red one" is a pronoun, "one of them" a number
            return "attribute" if self.word == "one" and self.before != "attribute" else "other"
        if self.word in ("pair", "couple") and self.following != "of":
            return "noun"
        if self.word == "back" and self.before == "determiner":
            return "noun"
        return None

    def open_class(self) -> PartOfSpeech:
        """Attribute, verb or noun."""
        if self.word.rpartition("-")[2] in lexicon().attributes:
            if self.word in lexicon().also_nouns and not self._before_noun():
                nominal = self.before in ("determiner", "attribute", "preposition")
                return "noun" if nominal else "attribute"
            return "attribute"
        if inflection(self.word) in ("ing", "ed"):
            return self._participle()
        verb = lemma(self.word) in lexicon().verbs and self.word not in lexicon().noun_s
        return "verb" if verb and self._is_predicate() else "noun"

    def _before_noun(self) -> bool:
        """Return True if the next word may be a noun, or an attribute of one."""
        return self.after in (None, "attribute") and not _is_verbal(self.following)

    def _participle(self) -> PartOfSpeech:
        if self.word in lexicon().noun_ing:
            return "noun"
        if self.before in ("determiner", "attribute") and self._before_noun():
            return "attribute"
        ending = inflection(self.word)
        if self.before == "determiner" and ending == "ing":
            return "noun"
        if self.before == "preposition" and ending == "ed" and self._before_noun():
            return "attribute"
        return "verb"

    def _is_predicate(self) -> bool:
        """Return True if a form that is a noun or a verb is a verb here."""
        if self.before in ("determiner", "attribute", "preposition"):
            return False
        if self.previous == "to" or self.before == "be":
            return True
        follows = self.after not in ("noun", "verb", "be")
        if inflection(self.word) == "s":
            return self.before in ("noun", "other", "adverb") and self.previous != "," and follows
        if self.before == "verb":
            return False
        plurals = ("people", "and", "who", "that", "they")
        plural = inflection(self.previous) == "s" or self.previous in plurals
        return plural and follows and self.after is not None


def _is_verbal(word: str) -> bool:
    """Return True if a word is most likely a verb in any context."""
    ending = inflection(word)
    if ending == "s":
        return lemma(word) in lexicon().verbs and word not in lexicon().noun_s
    return ending == "ing" and word not in lexicon().noun_ing


# --- noun phrases ----------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class ParsedCaption:
    """A caption with parts of speech and noun phrases.

    Attributes:
        text: the caption.
        words: its words.
        chunks: start and end of each noun phrase, as word indices; its last word is the head.
    """

    text: str
    words: tuple[TaggedWord, ...]
    chunks: tuple[tuple[int, int], ...]


def parse_sentence(text: str) -> ParsedCaption:
    """Parse a caption by rule: parts of speech and noun phrases.

    >>> parsed = parse_sentence("Two brown dogs and a cat.")
    >>> [parsed.text[parsed.words[i].start : parsed.words[k - 1].stop] for i, k in parsed.chunks]
    ['Two brown dogs', 'a cat']
    """
    words = tuple(replace(word, part=_finer_part(word)) for word in tag_words(text))
    return ParsedCaption(text, words, tuple(_noun_chunks([word.part for word in words])))


def _finer_part(word: TaggedWord) -> PartOfSpeech:
    if word.part in ("noun", "determiner", "preposition"):
        return word.part
    if word.part == "attribute":
        if word.text in NUMBER_WORDS or word.text.isdigit():
            return "number"
        return "determiner" if word.text in lexicon().numbers else "adjective"
    return "conjunction" if word.text in ("and", "or") else "other"


def _noun_chunks(parts: Sequence[PartOfSpeech]) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(parts):
        head = stop = _skip_modifiers(parts, at)
        while stop < len(parts) and parts[stop] == "noun":
            stop += 1
        if stop > head:
            yield at, stop
        at = stop if stop > head else at + 1


def _skip_modifiers(parts: Sequence[PartOfSpeech], at: int) -> int:
    """The index after the determiners, numbers and adjectives that begin here."""
    while at < len(parts) and parts[at] == "determiner":
        at += 1
    while at < len(parts):
        around = (*parts[max(at - 1, 0) : at], *parts[at + 1 : at + 2])
        joins = parts[at] == "conjunction" and around == ("adjective", "adjective")
        if parts[at] not in ("number", "adjective") and not joins:
            break
        at += 1
    return at


# --- parsers ---------------------------------------------------------------------------------


@final
class RulePhraseParser:
    """Nouns are objects, adjectives and numbers attributes, verbs and prepositions relations.

    Adjacent nouns are one phrase; every adjective, verb and preposition is a phrase of its own. The
    opening of a caption, such as "a picture of", is not parsed.
    """

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[CaptionPhrase, ...]]:
        """The phrases of each caption, from left to right."""
        return [tuple(_rule_phrases(tag_words(text))) for text in texts]


def _rule_phrases(words: Sequence[TaggedWord]) -> Iterator[CaptionPhrase]:
    kinds: Mapping[PartOfSpeech, PhraseKind] = {
        "noun": "object",
        "attribute": "attribute",
        "verb": "relation",
        "preposition": "relation",
    }
    patterns = lexicon().patterns
    at = 0
    while at < len(words):
        stop, kind = at + 1, kinds.get(words[at].part)
        if kind == "object":
            while stop < len(words) and words[stop].part == "noun":
                stop += 1
        elif words[at].text == "with" and {w.text for w in words[stop : stop + 1]} & patterns:
            kind, stop = "attribute", stop + 1  # "with stripes"
        if kind is not None:
            yield CaptionPhrase(kind, ((words[at].start, words[stop - 1].stop),))
        at = stop


_SPACY_KINDS: Mapping[str, PhraseKind] = {
    "NOUN": "object",
    "PROPN": "object",
    "ADJ": "attribute",
    "NUM": "attribute",
    "VERB": "relation",
    "ADP": "relation",
}


@final
class SpacyPhraseParser:
    """Phrases by spaCy's tagger, grouped as by `RulePhraseParser`.

    Compound prepositions such as "next to" are one phrase; the opening of a caption is not parsed.
    """

    def __init__(self, *, model: str = "en_core_web_sm") -> None:
        self.model = model
        needs = (
            "the parser 'spacy' needs spaCy: pip install spacy; the parser 'rules' needs nothing"
        )
        spacy = optional_import("spacy", needs)
        try:
            self._pipeline = spacy.load(model, disable=["parser", "lemmatizer", "ner"])
        except OSError:
            raise ValueError(
                f"the spaCy model {model!r} is not installed: python -m spacy download {model}; "
                "the parser 'rules' needs nothing"
            ) from None

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[CaptionPhrase, ...]]:
        """The phrases of each caption, from left to right."""
        return [_spacy_phrases(document) for document in self._pipeline.pipe(list(texts))]


def _spacy_phrases(document: Any) -> tuple[CaptionPhrase, ...]:
    begin, long = compound_prepositions(document.text)
    phrases: list[CaptionPhrase] = []
    for token in document:
        start, stop = token.idx, token.idx + len(token.text)
        inside = next((span for span in long if span[0] <= start < span[1]), None)
        kind = _SPACY_KINDS.get(token.pos_)
        if inside is not None:
            kind, (start, stop) = "relation", inside
        if kind is None or start < begin or (inside is not None and token.idx > start):
            continue
        adjacent = phrases and kind == "object" == phrases[-1].kind
        if adjacent and document.text[phrases[-1].spans[0][1] : start].isspace():
            start = phrases.pop().spans[0][0]
        phrases.append(CaptionPhrase(kind, ((start, stop),)))
    return tuple(phrases)


def _of_folder(folder: Path) -> Mapping[str, tuple[str, Any]]:
    """Captions with their phrases, of a folder whose format has them."""
    for format in registered_formats(folder):
        if format.phrases is not None:
            return format.phrases(folder)
    raise ValueError(f"{folder} is no folder with phrases of captions; give a JSON file of them")


@final
class PhraseFile:
    """Phrases from the output file of another parser.

    A JSON mapping from the id of each caption to its phrases, as characters or SPICE's tuples::

        {"7#0": [{"kind": "object", "spans": [[2, 5]]}, ...]}
        {"7#0": [["man"], ["man", "tall"], {"tuple": ["man", "ride", "horse"]}]}

    SPICE's names are dictionary forms; they are matched with those of the caption's words, and
    names that do not occur are left out. The ``txt_db`` of TAGS' authors, with the scene graph
    ``tree`` of each caption, is read as it is; the data set has to be read from it too.
    """

    def __init__(self, *, path: str) -> None:
        self.path = path
        self._texts: Mapping[str, str] = {}  # that spans of a txt_db are positions in
        if Path(path).is_dir():
            trees = _of_folder(Path(path))
            self._texts = {name: text for name, (text, _) in trees.items()}
            self._graphs: Mapping[str, Any] = {name: graph for name, (_, graph) in trees.items()}
            return
        graphs = read_json(Path(path), "phrases of captions")
        if not isinstance(graphs, dict):
            raise ValueError(f"{path} holds no phrases: a mapping from caption ids is needed")
        self._graphs = graphs

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[CaptionPhrase, ...]]:
        """The phrases of each caption."""
        return [self._phrases(text, name) for text, name in zip(texts, ids, strict=True)]

    def _phrases(self, text: str, name: str) -> tuple[CaptionPhrase, ...]:
        if name not in self._graphs:
            raise ValueError(
                f"{self.path} has no phrases of caption {name!r}; parse all captions of the corpus"
            )
        graph, known = self._graphs[name], self._texts.get(name, text)
        if known != text:
            raise ValueError(
                f"{self.path}: caption {name!r} is {known!r} there and {text!r} in the data; read "
                "the captions from the same txt_db"
            )
        try:
            if isinstance(graph, list) and all(isinstance(p, dict) and "kind" in p for p in graph):
                return tuple(_phrase_of_spans(phrase, len(text)) for phrase in graph)
            names = dict.fromkeys(_spice_phrases(graph))  # each once, in order
            spans = ((kind, _first_match(name, text)) for kind, name in names)
            return tuple(CaptionPhrase(kind, (span,)) for kind, span in spans if span)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{self.path}: the phrases of caption {name!r} cannot be read: {error!r}"
            ) from error


def _phrase_of_spans(plain: Mapping[str, Any], length: int) -> CaptionPhrase:
    kind, runs = plain["kind"], tuple((int(start), int(stop)) for start, stop in plain["spans"])
    if kind not in PHRASE_KINDS or not runs or not all(0 <= a < b <= length for a, b in runs):
        raise ValueError(f"{plain} is no phrase of a caption of {length} characters")
    return CaptionPhrase(kind, runs)


def _spice_phrases(tuples: Sequence[Any]) -> Iterator[tuple[PhraseKind, str]]:
    """Kind and dictionary form of every phrase in SPICE's tuples."""
    for entry in tuples:
        names = entry["tuple"] if isinstance(entry, dict) else entry
        if not 1 <= len(names) <= 3:
            raise ValueError(f"{names} is no tuple of one, two or three names")
        yield "object", names[0]
        if len(names) > 1:
            yield "relation" if len(names) == 3 else "attribute", names[1]
        if len(names) == 3:
            yield "object", names[2]


def _first_match(name: str, text: str) -> Span | None:
    """The first occurrence of the words of a name, by their dictionary forms."""
    lemmas = [lemma(word) for word in split_words(name)]
    words, places = [lemma(word) for word in split_words(text)], word_spans(text)
    for at in range(len(words) - len(lemmas) + 1):
        if lemmas and words[at : at + len(lemmas)] == lemmas:
            return places[at][0], places[at + len(lemmas) - 1][1]
    return None
