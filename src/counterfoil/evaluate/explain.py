"""Which words of captions are wrong, and what ought to stand there, by the model's own heads.

A word is as doubtful as the most doubtful of its pieces: in training one wrong piece made a word
wrong. From a doubt of 0.5 on it counts as wrong (TAGS-DC, section 4.4). Punctuation is no word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.tokens import pack
from counterfoil.corpus.words import Tokenizer
from counterfoil.data.caption_edits import TextChange
from counterfoil.evaluate.correcting import Answer, Asked, rewordings
from counterfoil.evaluate.explanation import Corrected, Correction, Explanation, Word
from counterfoil.evaluate.surgery import Place, exchanged, lettered, places, said
from counterfoil.evaluate.word_reader import Sentences, WordReader
from counterfoil.matcher import Matcher
from counterfoil.reading import ReadsWords, Want
from counterfoil.records import Encoded

THRESHOLD = 0.5
SPARE = 2  # rewordings for one that is shown: forms that differ in capitals alone are one


@final
@dataclass(slots=True)
class _Caption:
    """A caption while it is explained and corrected."""

    text: str
    words: list[Place]
    score: float
    doubts: list[float]
    answers: dict[int, Answer] = field(default_factory=dict)  # by word
    new: dict[int, str] = field(default_factory=dict)


def doubts_words(matcher: Matcher) -> bool:
    """Whether a model has a head that says how likely a word is wrong."""
    return isinstance(matcher, ReadsWords) and Want.DOUBT in matcher.wants


def corrects_words(matcher: Matcher) -> bool:
    """Whether a model has a head that says what ought to stand in the place of a word."""
    return isinstance(matcher, ReadsWords) and Want.CORRECT in matcher.wants


def explain_words(
    matcher: Matcher,
    tokenizer: Tokenizer,
    images: Encoded,
    captions: Sequence[str],
    *,
    image: Tensor | None = None,
    threshold: float = THRESHOLD,
    most: int = 3,
) -> list[Explanation]:
    """Explain captions by the doubts and corrections of a model that reads words.

    Corrections are what the model would write in the place of one doubted word, all others as they
    are. For the corrected caption the most doubtful word gives way to its likeliest correction, the
    new sentence is read again, and so on until no word that is still the caption's own is doubted.

    Args:
        matcher: with a head that doubts; without one that corrects nothing is corrected.
        tokenizer: its own.
        images: what the captions are said of.
        captions: none of them empty.
        image: (N,) which image goes with each caption; aligned with the images by default.
        threshold: doubt from which a word counts as wrong.
        most: corrections of each doubted word.

    Raises:
        ValueError: an answer of the model is not a number.
    """
    if not captions:
        return []
    rows = torch.arange(len(captions)) if image is None else image.cpu()
    reader = WordReader(matcher, tokenizer, images)
    told, spans = _read(tokenizer, captions, rows)
    found = _doubted(reader, told, captions, spans)
    if corrects_words(matcher):
        asked = [
            (row, word)
            for row, one in enumerate(found)
            for word, doubt in enumerate(one.doubts)
            if doubt >= threshold
        ]
        _ask(reader, told, found, asked, SPARE * most + SPARE)
        _correct(reader, told, found, threshold)
    scores = _rescored(reader, found, rows)
    return [
        _explanation(reader.tokenizer, one, scores.get(row), most, threshold)
        for row, one in enumerate(found)
    ]


def unread(text: str, words: Sequence[Place]) -> int | None:
    """From which character on a caption was cut; None where all of it was read."""
    stop = words[-1].stop if words else 0
    return stop if any(sign.isalnum() for sign in text[stop:]) else None


def _read(
    tokenizer: Tokenizer, captions: Sequence[str], rows: Tensor
) -> tuple[Sentences, list[list[Place]]]:
    reading = tokenizer.read(captions)
    ids, mask = pack(reading, tokenizer.pad).take(torch.arange(len(captions)))
    spans = tokenizer.spans(captions)
    found = [
        lettered(captions[row], places(own, None if reading.words is None else reading.words[row]))
        for row, own in enumerate(spans)
    ]
    return Sentences(ids, mask, rows), found


def _doubted(
    reader: WordReader, told: Sentences, captions: Sequence[str], words: Sequence[list[Place]]
) -> list[_Caption]:
    scores, doubts = reader.doubts(told)
    bad = scores.isnan() | doubts.masked_fill(~told.mask, 0).isnan().any(1)
    if bool(bad.any()):
        raise ValueError(
            f"what the model says of {captions[int(bad.nonzero()[0])]!r} is not a number; look for "
            "NaN in the features, or train again with a lower learning rate"
        )
    return [
        _Caption(text, own, score, _of_words(own, line))
        for text, own, score, line in zip(
            captions, words, scores.tolist(), doubts.tolist(), strict=True
        )
    ]


def _of_words(words: Sequence[Place], doubts: Sequence[float]) -> list[float]:
    return [max(doubts[token] for token in word.tokens) for word in words]


def _ask(
    reader: WordReader,
    told: Sentences,
    found: Sequence[_Caption],
    asked: Sequence[tuple[int, int]],
    most: int,
) -> None:
    """Note what would stand in the place of some words, (caption, word) in order."""
    words = [Asked(row, found[row].words[word].tokens) for row, word in asked]
    answers = rewordings(reader, told, words, most)
    for (row, word), answer in zip(asked, answers, strict=True):
        found[row].answers[word] = answer


def _correct(
    reader: WordReader, told: Sentences, found: Sequence[_Caption], threshold: float
) -> None:
    """Exchange doubted words, one of each caption at a time."""
    ids = told.ids.clone()
    doubts = {row: one.doubts for row, one in enumerate(found)}
    first = {row: dict(one.answers) for row, one in enumerate(found)}
    turn = 0
    while worst := {
        row: word
        for row, line in doubts.items()
        if (word := _worst(line, found[row], threshold)) is not None
    }:
        now = told.saying(ids)
        if turn:
            _ask(reader, now, found, sorted(worst.items()), SPARE + SPARE)
        for row, word in worst.items():
            _exchange(reader.tokenizer, found[row], word, ids[row])
        rows = torch.tensor(sorted(worst))
        _, lines = reader.doubts(told.saying(ids).rows(rows))
        doubts = {
            row: _of_words(found[row].words, line)
            for row, line in zip(rows.tolist(), lines.tolist(), strict=True)
        }
        turn += 1
    for row, one in enumerate(found):
        one.answers = first[row]


def _worst(doubts: Sequence[float], one: _Caption, threshold: float) -> int | None:
    """The most doubtful word that is still the caption's own; None where none is doubted."""
    left = [word for word, doubt in enumerate(doubts) if doubt >= threshold and word not in one.new]
    return max(left, key=lambda word: doubts[word], default=None)


def _exchange(tokenizer: Tokenizer, one: _Caption, word: int, ids: Tensor) -> None:
    """Put the likeliest correction in the place of a word; where there is none, the word stays."""
    place = one.words[word]
    best = _others(tokenizer, one, word, 1)
    one.new[word] = best[0][0] if best else one.text[place.start : place.stop]
    if best:
        ids[list(place.tokens)] = torch.tensor(best[0][1])


def _others(
    tokenizer: Tokenizer, one: _Caption, word: int, most: int
) -> list[tuple[str, tuple[int, ...], float]]:
    """What may stand in the place of a word, as it is written, each form once, and never itself."""
    old = one.text[one.words[word].start : one.words[word].stop]
    seen = {old.casefold()}
    found: list[tuple[str, tuple[int, ...], float]] = []
    for written in one.answers[word].written:
        text = said(tokenizer.tokens(written.ids), old)
        if text.casefold() not in seen and len(found) < most:
            found.append((text, written.ids, math.exp(written.log)))
        seen.add(text.casefold())
    return found


def _rescored(reader: WordReader, found: Sequence[_Caption], rows: Tensor) -> dict[int, Corrected]:
    """The corrected captions as they are read anew, by row."""
    texts = {row: exchanged(one.text, _changes(one)) for row, one in enumerate(found) if one.new}
    texts = {row: text for row, text in texts.items() if text[0] != found[row].text}
    if not texts:
        return {}
    told, _ = _read(reader.tokenizer, [text for text, _ in texts.values()], rows[list(texts)])
    return {
        row: Corrected(text, score, spans)
        for (row, (text, spans)), score in zip(
            texts.items(), reader.scores(told).tolist(), strict=True
        )
    }


def _changes(one: _Caption) -> list[TextChange]:
    spots = ((one.words[word], new) for word, new in sorted(one.new.items()))
    return [
        TextChange(place.start, place.stop, new)
        for place, new in spots
        if new != one.text[place.start : place.stop]
    ]


def _explanation(
    tokenizer: Tokenizer, one: _Caption, corrected: Corrected | None, most: int, threshold: float
) -> Explanation:
    words = []
    for word, (place, doubt) in enumerate(zip(one.words, one.doubts, strict=True)):
        text, answer = one.text[place.start : place.stop], one.answers.get(word)
        if answer is None or doubt < threshold:
            words.append(Word(text, place.start, place.stop, doubt=doubt))
            continue
        others = tuple(
            Correction(other, chance) for other, _, chance in _others(tokenizer, one, word, most)
        )
        kept = math.exp(answer.own)
        words.append(
            Word(text, place.start, place.stop, doubt=doubt, kept=kept, corrections=others)
        )
    return Explanation(one.text, one.score, tuple(words), corrected, unread(one.text, one.words))
