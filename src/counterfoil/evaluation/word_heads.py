"""Word heads of a model: doubt of each word, likely replacements, and word-level caption edits.

A correction head predicts one token for one token, so a word of several pieces is replaced by as
many pieces: beam search predicts them from left to right and reads the sentence again with the
pieces chosen so far.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from counterfoil.core.types import (
    Embeddings,
    ModalityBatch,
    WordHead,
    WordHeadModel,
    WordReading,
    WordSlots,
)
from counterfoil.data.caption_edits import ARTICLES, PIECE, TextChange, article, token_text
from counterfoil.data.tokenizers import Tokenizer
from counterfoil.models.base import RetrievalModel
from counterfoil.scoring.encode import evaluation_mode

HEAD_BATCH = {"cpu": 64, "cuda": 1024}  # sentences per forward pass
_QUOTES = ("``", "''")  # quotation marks, as word tokenizers spell them
_LAST_WORD = re.compile(r"(\w+)\s+$")


@final
@dataclass(frozen=True, slots=True)
class WordSpan:
    """A word of a caption."""

    start: int  # its first character
    stop: int  # the character after its last
    tokens: tuple[int, ...]  # positions of its tokens, from left to right


def group_tokens(spans: Sequence[tuple[int, int]], words: Sequence[int] | None) -> list[WordSpan]:
    """Group the tokens of a caption into words; special tokens belong to none.

    `spans` are the first character of each token and the one after its last; `words` the word of
    each token, None where every token is a word.

    >>> group_tokens([(0, 0), (0, 1), (2, 6), (6, 9), (0, 0)], [-1, 0, 1, 1, -1])
    [WordSpan(start=0, stop=1, tokens=(1,)), WordSpan(start=2, stop=9, tokens=(2, 3))]
    """
    grouped: dict[int, WordSpan] = {}
    for token, (start, stop) in enumerate(spans):
        if start < stop:
            word = token if words is None else words[token]
            before = grouped.get(word, WordSpan(start, stop, ()))
            grouped[word] = WordSpan(before.start, stop, (*before.tokens, token))
    return list(grouped.values())


def is_word(text: str) -> bool:
    """Return True if a stretch of text has a letter or a digit.

    >>> [text for text in ("9", "dogs", "!") if is_word(text)]
    ['9', 'dogs']
    """
    return any(map(str.isalnum, text))


def spell(tokens: Sequence[str], old: str) -> str:
    """Join tokens into a word with the capitals of the word that it replaces.

    >>> spell(["sk", "##ate", "board"], "Surf"), spell(["dog"], "CAT"), spell(["dog"], "cat")
    ('Skate board', 'DOG', 'dog')
    """
    word = ""
    for token in tokens:
        text = '"' if token in _QUOTES else token_text(token)
        word += text if not word or token.startswith(PIECE) else f" {text}"
    if len(old) > 1 and old.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if old[:1].isupper() else word


def replace_words(
    text: str, changes: Sequence[TextChange]
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Replace words of a caption and keep everything else as it was written.

    An "a" or "an" before a new word is adapted to it. Where letters would meet, as in "cannot", a
    blank is inserted. `changes` are from left to right, without overlap; returned are the new
    caption and the spans of new words in it, adapted articles among them.

    >>> new, spans = replace_words("A red umbrella, cannot fly.", [TextChange(2, 5, "orange"),
    ...     TextChange(19, 22, "ever")])
    >>> new, [new[start:stop] for start, stop in spans]
    ('An orange umbrella, can ever fly.', ['An', 'orange', 'ever'])
    """
    new_text, end = "", 0
    spans: list[tuple[int, int]] = []
    for change in _with_articles(text, changes):
        new_text += _separated(new_text, text[end : change.start])
        new_text += _separated(new_text, change.new)
        end = change.stop
        spans.append((len(new_text) - len(change.new), len(new_text)))
    tail = text[end:]
    return new_text + (_separated(new_text, tail) if spans else tail), tuple(spans)


def _with_articles(text: str, changes: Sequence[TextChange]) -> list[TextChange]:
    """The changes, and those of preceding articles that they make necessary."""
    adapted: list[TextChange] = []
    for change in changes:
        before = _LAST_WORD.search(text, adapted[-1].stop if adapted else 0, change.start)
        old = before[1] if before else ""
        new = article(change.new.lower())
        disagrees = old.lower() in ARTICLES and old.lower() != new
        if before and disagrees and change.new[:1].isalpha():
            adapted.append(TextChange(before.start(1), before.end(1), spell([new], old)))
        adapted.append(change)
    return adapted


def _separated(before: str, after: str) -> str:
    """The continuation, with a blank first where letters would meet; not before "n't"."""
    meet = before[-1:].isalnum() and after[:1].isalnum() and not after.startswith("n't")
    return f" {after}" if meet else after


@final
@dataclass(frozen=True, slots=True)
class ImageSentences:
    """N tokenized sentences, each paired with an image."""

    ids: Tensor  # (N, L) long, tokens
    mask: Tensor  # (N, L) bool, True for real tokens
    image: Tensor  # (N,) long, row of the image

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, rows: Tensor) -> ImageSentences:
        """Some of the pairs, by (P,) long rows."""
        return ImageSentences(self.ids[rows], self.mask[rows], self.image[rows])

    def with_ids(self, ids: Tensor) -> ImageSentences:
        """Return the pairs with other tokens."""
        return replace(self, ids=ids)


class TokenCandidates(NamedTuple):
    """The K most likely tokens at M positions."""

    ids: Tensor  # (M, K) long, by falling probability
    log_probs: Tensor  # (M, K), normalised over the tokens that are allowed there
    own: Tensor  # (M,) log probability of the present token


@final
class WordHeads:
    """Batched forward passes through a model's word heads, without gradients.

    Sentences refer to the encoded images by row.
    """

    def __init__(self, model: RetrievalModel, tokenizer: Tokenizer, images: Embeddings) -> None:
        assert isinstance(model, WordHeadModel)
        self.read_scores = model.loss_scores
        self.model, self.tokenizer = model, tokenizer
        self.device = next(model.parameters()).device
        self.images = images.to(self.device)

    def scores(self, sentences: ImageSentences) -> Tensor:
        """(N,) double, score of each sentence with its image, see `RetrievalModel.loss_scores`."""
        return self._scores(self._forward(sentences, WordHead.SCORE))

    def doubts(self, sentences: ImageSentences) -> tuple[Tensor, Tensor]:
        """(N,) scores, and (N, L) probability that each token is wrong."""
        parts = self._forward(sentences, WordHead.SCORE, WordHead.DOUBT)
        # class 0 is "wrong", class 1 "right"
        doubts = [_present(part.doubt).double().softmax(2)[..., 0] for part in parts]
        return self._scores(parts), torch.cat(doubts)

    def _scores(self, parts: Sequence[WordReading]) -> Tensor:
        scores = torch.cat([_present(part.score) for part in parts])
        return self.read_scores(scores.double())

    def candidates(
        self, sentences: ImageSentences, slots: WordSlots, word_starts: Tensor, count: int
    ) -> TokenCandidates:
        """The most likely tokens at some positions, the rest of the sentences unchanged.

        Special tokens and punctuation are excluded, and so are continuation pieces where a word
        starts. `slots` are M positions in the order of the sentences, and `word_starts` (M,) says
        whether a word starts there; there are `count` tokens each, or the whole vocabulary.
        """
        parts = []
        batches = self._forward(sentences, WordHead.CORRECT, slots=slots)
        for (start, stop), batch in zip(self._batches(sentences), batches, strict=True):
            inside = (slots.pair >= start) & (slots.pair < stop)
            logits = _present(batch.correct).double().cpu()
            excluded = self._excluded(logits.shape[1])[word_starts[inside].long()]
            log_probs = logits.masked_fill(excluded, -torch.inf).log_softmax(1)
            originals = sentences.ids[slots.pair[inside], slots.place[inside]]
            best = log_probs.topk(min(count, self.tokenizer.size), dim=1)
            own_log_probs = log_probs.gather(1, originals.unsqueeze(1)).squeeze(1)
            parts.append((best.indices, best.values, own_log_probs))
        return TokenCandidates(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _batches(self, sentences: ImageSentences) -> list[tuple[int, int]]:
        """First row of each batch, and the row after its last."""
        size = HEAD_BATCH.get(self.device.type, HEAD_BATCH["cuda"])
        return [(at, min(at + size, len(sentences))) for at in range(0, len(sentences), size)]

    def _forward(
        self, sentences: ImageSentences, *want: WordHead, slots: WordSlots | None = None
    ) -> list[WordReading]:
        """One reading per batch, on the CPU; doubts are padded to the full width."""
        readings = []
        with evaluation_mode([self.model]):
            for start, stop in self._batches(sentences):
                part = sentences.rows(torch.arange(start, stop))
                # cut to the longest sentence of the batch; image row -1: not of a data set
                width = int(part.mask.sum(1).max())
                texts = ModalityBatch(
                    torch.full((len(part),), -1), part.ids[:, :width], part.mask[:, :width]
                )
                own_slots = None
                if slots is not None:
                    inside = (slots.pair >= start) & (slots.pair < stop)
                    own_slots = WordSlots(
                        (slots.pair[inside] - start).to(self.device),
                        slots.place[inside].to(self.device),
                    )
                reading = self.model.read(
                    self.images.rows(part.image),
                    self.model.encode_texts(texts.to(self.device)),
                    frozenset(want),
                    own_slots,
                )
                readings.append(_padded_on_cpu(reading, sentences.ids.shape[1]))
        return readings

    def _excluded(self, width: int) -> Tensor:
        """(2, V) bool, tokens excluded inside a word (row 0) and at its start (row 1)."""
        no_word, continues = self._token_kinds
        # logits may be wider than the vocabulary: the surplus is excluded
        excluded = torch.ones(2, width, dtype=torch.bool)
        known = min(width, self.tokenizer.size)
        excluded[0, :known] = no_word[:known]
        excluded[1, :known] = (no_word | continues)[:known]
        return excluded

    @cached_property
    def _token_kinds(self) -> tuple[Tensor, Tensor]:
        """(V,) bool each: special tokens and punctuation; continuation pieces."""
        spelled = self.tokenizer.tokens(range(self.tokenizer.size))
        no_word = torch.tensor([not is_word(token_text(token)) for token in spelled])
        no_word[list(self.tokenizer.wordless)] = True
        return no_word, torch.tensor([token.startswith(PIECE) for token in spelled])


def _present(output: Tensor | None) -> Tensor:
    assert output is not None, "the output was requested"
    return output


def _padded_on_cpu(reading: WordReading, width: int) -> WordReading:
    doubt = reading.doubt
    if doubt is not None:
        padded = doubt.new_zeros(len(doubt), width, 2, device="cpu")
        padded[:, : doubt.shape[1]] = doubt.cpu()
        doubt = padded
    score, correct = (None if t is None else t.cpu() for t in (reading.score, reading.correct))
    return WordReading(score=score, doubt=doubt, correct=correct)


@final
@dataclass(frozen=True, slots=True)
class SentenceWord:
    """A word of a sentence, to be replaced."""

    row: int  # of the sentence
    tokens: tuple[int, ...]  # positions of its tokens, from left to right


@final
@dataclass(frozen=True, slots=True)
class Replacement:
    """Tokens that may replace a word."""

    ids: tuple[int, ...]  # as many as the word has
    log_prob: float  # sum of the tokens' log probabilities, each given the tokens before it


@final
@dataclass(frozen=True, slots=True)
class RankedReplacements:
    """Replacements of a word."""

    best: tuple[Replacement, ...]  # by falling probability
    own: float  # log probability of the word itself


def rank_replacements(
    heads: WordHeads, sentences: ImageSentences, words: Sequence[SentenceWord], beam: int
) -> list[RankedReplacements]:
    """Beam search for replacements of each word, all other words unchanged.

    `words` are ordered by sentence; each has at most `beam` replacements, the word itself may be
    among them.
    """
    if not words:
        return []
    rows = sorted({word.row for word in words})
    new_rows = {row: new for new, row in enumerate(rows)}
    slots = [(new_rows[word.row], token) for word in words for token in word.tokens]
    starts = [piece == 0 for word in words for piece in range(len(word.tokens))]
    # one pass gives the first pieces, and the probabilities of the words themselves
    first = heads.candidates(
        sentences.rows(torch.tensor(rows)), _slots(slots), torch.tensor(starts), beam
    )
    beams, own, at = [], [], 0
    for word in words:
        pieces = zip(first.ids[at].tolist(), first.log_probs[at].tolist(), strict=True)
        beams.append([Replacement((token,), log_prob) for token, log_prob in pieces])
        own.append(float(first.own[at : at + len(word.tokens)].sum()))
        at += len(word.tokens)
    for piece in range(1, max(len(word.tokens) for word in words)):
        _extend(heads, sentences, words, beams, piece, beam)
    return [
        RankedReplacements(tuple(r for r in best if r.log_prob > -torch.inf), log_prob)
        for best, log_prob in zip(beams, own, strict=True)
    ]


def _extend(
    heads: WordHeads,
    sentences: ImageSentences,
    words: Sequence[SentenceWord],
    beams: list[list[Replacement]],
    piece: int,
    beam: int,
) -> None:
    """Extend the beams of all words that have one more piece."""
    unfinished = [number for number, word in enumerate(words) if len(word.tokens) > piece]
    hypotheses = [(number, start) for number in unfinished for start in beams[number]]
    rows = torch.tensor([words[number].row for number, _ in hypotheses])
    ids = sentences.ids[rows].clone()
    for row, (number, start) in enumerate(hypotheses):
        ids[row, list(words[number].tokens[:piece])] = torch.tensor(start.ids)
    slots = [(row, words[number].tokens[piece]) for row, (number, _) in enumerate(hypotheses)]
    word_starts = torch.zeros(len(hypotheses), dtype=torch.bool)
    pieces = heads.candidates(sentences.rows(rows).with_ids(ids), _slots(slots), word_starts, beam)
    extended: dict[int, list[Replacement]] = {number: [] for number in unfinished}
    for row, (number, start) in enumerate(hypotheses):
        best = zip(pieces.ids[row].tolist(), pieces.log_probs[row].tolist(), strict=True)
        extended[number] += [
            Replacement((*start.ids, token), start.log_prob + log_prob) for token, log_prob in best
        ]
    for number, replacements in extended.items():
        beams[number] = sorted(replacements, key=lambda r: -r.log_prob)[:beam]


def _slots(slots: Sequence[tuple[int, int]]) -> WordSlots:
    pair, place = torch.tensor(slots, dtype=torch.long).view(-1, 2).T
    return WordSlots(pair, place)
