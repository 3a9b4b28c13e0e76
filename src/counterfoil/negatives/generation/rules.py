"""A writer that needs no model: VSE-C's rules on every caption of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Literal, TypeAlias, final

import torch

from counterfoil.core.config import parse_choice, unknown_name
from counterfoil.core.console import progress
from counterfoil.data.caption_edits import (
    RULE_KINDS,
    CaptionEdit,
    RuleKind,
    noun_vocabulary,
    related_nouns,
    replace_nouns,
    replace_numbers,
    replace_prepositions,
    swap_noun_phrases,
    wordnet_synonyms,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.phrases import ParsedCaption, inflection, lemma, parse_sentence
from counterfoil.data.tokenizers import split_words
from counterfoil.negatives.generation.store import (
    ChangedSpan,
    GeneratedCaption,
    named_generator,
    normalise_for_comparison,
)

FREQUENT = 200  # VSE-C's threshold, on 567,000 captions
SYNONYMS: dict[str, Callable[[str], frozenset[str]]] = {
    "list": related_nouns,
    "wordnet": wordnet_synonyms,
}


@final
class RuleGenerator:
    """Changes a noun, a number or a relation of each caption.

    VSE-C (https://arxiv.org/abs/1806.10348), section 3. A noun is replaced by frequent nouns of the
    *training* captions that stand in no caption of the image and are neither a synonym nor a wider
    or narrower term. What is itself a caption of the image is left out. Which foils are kept
    depends on the seed and the name of the caption only.

    Departs from the authors' code in: nouns are counted in training captions, not in those of all
    splits; their list of concrete nouns is not used, frequency stands alone; WordNet is an option
    and a small list the default; parts of speech are by rule, not by spaCy; number and article
    agree; "stands in a caption" means any form of the word.
    """

    def __init__(
        self,
        *,
        nouns: Sequence[str],
        kinds: tuple[str, ...] = RULE_KINDS,
        most: int = 5,
        synonyms: str = "list",
        seed: int = 0,
    ) -> None:
        """Keyword arguments.

        Args:
            nouns: that may be written, see `frequent_nouns`; only these are replaced, too.
            kinds: "noun", "numeral", "relation".
            most: foils of a kind that are kept of each caption.
            synonyms: which nouns may name the same: "list", or "wordnet", which needs nltk.
            seed: of the choice among all foils.

        Raises:
            ValueError: an unknown kind or list of synonyms, or `most` below 1.
        """
        if strange := [kind for kind in kinds if kind not in RULE_KINDS]:
            raise ValueError(unknown_name(strange[0], list(RULE_KINDS), "a kind of foil"))
        if not kinds or most < 1:
            raise ValueError(
                f"{len(kinds)} kinds and most={most} write nothing; name at least one kind and one "
                "foil"
            )
        parse_choice(SYNONYMS, synonyms, "a list of synonyms")
        self.nouns = {noun: lemma(noun) for noun in nouns}
        self.kinds, self.most, self.seed = kinds, most, seed
        self._wider = SYNONYMS[synonyms]
        self._others: dict[str, tuple[str, ...]] = {}
        self._wider("dog")

    def foils(self, dataset: ImageTextDataset) -> Iterator[GeneratedCaption]:
        """Foils of all captions that describe an image, in data set order."""
        text_to_image = dataset.text_to_image.tolist()
        said: dict[int, list[str]] = {}
        for text, image in zip(dataset.texts, text_to_image, strict=True):
            said.setdefault(image, []).append(text)
        with progress("captions rewritten", total=len(text_to_image)) as advance:
            for row, image in enumerate(text_to_image):
                if image >= 0:
                    name, text = dataset.image_ids[image], dataset.text_ids[row]
                    for kind, edit in self._edits(dataset.texts[row], text, said[image]):
                        yield _written(name, text, dataset.texts[row], kind, edit)
                advance(1)

    def _edits(
        self, caption: str, name: str, said: Sequence[str]
    ) -> Iterator[tuple[RuleKind, CaptionEdit]]:
        """The edits that are kept of a caption.

        Args:
            caption: the caption.
            name: what the choice among its edits depends on.
            said: all captions of its image.
        """
        found = parse_sentence(caption)
        known = {normalise_for_comparison(text) for text in said}
        forms = {lemma(word) for text in known for word in text.split()}
        for kind in RULE_KINDS:
            if kind not in self.kinds:
                continue
            edits, left = self._all(kind, found, forms, name), self.most
            for place in _order(len(edits), f"{self.seed}/{kind}/{name}"):
                foil = normalise_for_comparison(edits[place].apply(caption))
                if foil not in known:
                    known.add(foil)
                    left -= 1
                    yield kind, edits[place]
                if not left:
                    break

    def _all(
        self, kind: RuleKind, found: ParsedCaption, forms: set[str], name: str
    ) -> list[CaptionEdit]:
        """Edits of a kind; of nouns no more than can be needed."""
        if kind == "noun":
            return list(replace_nouns(found, lambda word: self._some(word, forms, name)))
        return (
            list(replace_numbers(found))
            if kind == "numeral"
            else [*swap_noun_phrases(found), *replace_prepositions(found)]
        )

    def _some(self, word: str, forms: set[str], name: str) -> Iterator[str]:
        """Nouns for a noun, drawn from those that stand in no caption of the image."""
        others = self._other(word)
        drawn = (others[place] for place in _order(len(others), f"{self.seed}/{word}/{name}"))
        return islice((noun for noun in drawn if self.nouns[noun] not in forms), 2 * self.most)

    def _other(self, word: str) -> tuple[str, ...]:
        """Nouns in the same number that name something else than one of them."""
        if word not in self._others:
            own, number = self._wider(lemma(word)), inflection(word) == "s"
            self._others[word] = tuple(
                noun
                for noun, form in self.nouns.items()
                if word in self.nouns
                and (inflection(noun) == "s") == number
                and form not in own
                and lemma(word) not in self._wider(form)
            )
        return self._others[word]


def frequent_nouns(captions: Iterable[str], *, at_least: int | None = None) -> tuple[str, ...]:
    """Nouns of training captions that rules may write, the most frequent first.

    Args:
        captions: of the training split.
        at_least: how often one stands there; None for as large a part of the captions as VSE-C's
            200 of 567,000 are, at least 3.

    Raises:
        ValueError: fewer than two are left.
    """
    found = [parse_sentence(caption) for caption in captions]
    least = max(3, round(len(found) * FREQUENT / 567_000)) if at_least is None else at_least
    kept = noun_vocabulary(found, at_least=least)
    if len(kept) < 2:
        raise ValueError(
            f"{len(kept)} nouns stand {least} times or more in the {len(found):,} training "
            "captions, and one can only be replaced by another; lower the frequency"
        )
    return kept


def _written(
    image: str, text: str, caption: str, kind: RuleKind, edit: CaptionEdit
) -> GeneratedCaption:
    foil, spans = edit.apply_with_spans(caption)
    changed = tuple(
        ChangedSpan(caption[change.start : change.stop], foil[start:stop], start, stop)
        for change, (start, stop) in zip(edit.changes, spans, strict=True)
    )
    return GeneratedCaption(image, text, caption, foil, kind, changed)


def _order(count: int, name: str) -> list[int]:
    """A permutation that depends on a name only."""
    places: list[int] = torch.randperm(count, generator=named_generator(name)).tolist()
    return places


# The rules of `CandidateFilter` for captions as text: which captions may be true, by their words
# alone. For captions of whole-word tokens, both keep the same ones.


Rule = Literal["captions", "lemmas", "wordnet", "inflection"]
Exchanged: TypeAlias = tuple[tuple[str, str], ...]


@final
class FilterDecision:
    """The words of all captions of an image.

    Attributes:
        words: as they stand there, in lower case.
        lemmas: their dictionary forms.
    """

    def __init__(self, captions: Sequence[str]) -> None:
        self.words = frozenset(word for caption in captions for word in split_words(caption))
        self.lemmas = frozenset(map(lemma, self.words))
        self._wider: frozenset[str] | None = None

    @property
    def wider(self) -> frozenset[str]:
        """Them, their synonyms and wider terms.

        Raises:
            ValueError: WordNet is not installed.
        """
        if self._wider is None:
            self._wider = self.words.union(*map(wordnet_synonyms, self.words))
        return self._wider


def exchanged_words(foil: GeneratedCaption) -> Exchanged:
    """Words that were exchanged, as (old, new); "" where there is none on a side.

    Where a change has more words on one side, they are paired from the last one on.
    """
    found: list[tuple[str, str]] = []
    for change in foil.changed:
        old, new = reversed(split_words(change.old)), reversed(split_words(change.new))
        found += [pair for pair in zip_longest(old, new, fillvalue="") if len(set(pair)) > 1]
    return tuple(found)


def words_added(caption: str) -> Exchanged:
    """All words of a caption that was made of no other."""
    return tuple(("", word) for word in split_words(caption))


def words_removed(rule: Rule, told: FilterDecision, words: Exchanged) -> bool:
    """Whether a rule leaves a caption out; see
    `counterfoil.negatives.generation.inputs.CandidateFilter`.

    Args:
        rule: "captions", "lemmas" and "wordnet": all new words, some form of each, or what some
            form of each is a synonym or a wider term of, occur in the captions of the image;
            "inflection": a new word has another ending than the old one.
        told: those captions.
        words: what was exchanged.

    Raises:
        ValueError: WordNet is not installed.
    """
    new = [word for _, word in words if word]
    if rule == "captions":
        return all(word in told.words for word in new)
    if rule == "lemmas":
        return all(lemma(word) in told.lemmas for word in new)
    if rule == "wordnet":
        return all(word in told.wider or lemma(word) in told.wider for word in new)
    return any(old and word and inflection(old) != inflection(word) for old, word in words)
