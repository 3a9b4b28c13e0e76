"""What a model would write in the place of words.

A head that corrects words names one token for one token, so a word of several pieces is written
piece by piece: the sentence is read again with the pieces written so far, and the best beginnings
go on. A word gives way to as many pieces as it has itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from counterfoil.evaluate.word_reader import Sentences, WordReader
from counterfoil.reading import Slots


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """A word of a sentence.

    Attributes:
        row: of the sentence.
        tokens: where its tokens stand, from left to right.
    """

    row: int
    tokens: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Written:
    """What may stand in the place of a word.

    Attributes:
        ids: one token for each of the word's.
        log: log probability: the sum of its tokens', each given those before it.
    """

    ids: tuple[int, ...]
    log: float


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """All that is written in the place of a word.

    Attributes:
        written: the likeliest first.
        own: log probability of the word itself.
    """

    written: tuple[Written, ...]
    own: float


def rewordings(
    reader: WordReader, told: Sentences, asked: Sequence[Asked], most: int
) -> list[Answer]:
    """What would stand in the place of each word if the rest of its sentence stays.

    Args:
        reader: the model.
        told: the sentences.
        asked: the words, in the order of the sentences.
        most: rewordings of each, the word itself among them if it is likely enough.
    """
    if not asked:
        return []
    rows = sorted({word.row for word in asked})
    at = {row: place for place, row in enumerate(rows)}
    slots = [(at[word.row], token) for word in asked for token in word.tokens]
    begins = [place == 0 for word in asked for place in range(len(word.tokens))]
    found = reader.offers(told.rows(torch.tensor(rows)), _slots(slots), torch.tensor(begins), most)
    beams, own, start = [], [], 0
    for word in asked:
        first = zip(found.ids[start].tolist(), found.logs[start].tolist(), strict=True)
        beams.append([Written((token,), log) for token, log in first])
        own.append(float(found.own[start : start + len(word.tokens)].sum()))
        start += len(word.tokens)
    longest = max(len(word.tokens) for word in asked)
    for piece in range(1, longest):
        _extend(reader, told, asked, beams, piece, most)
    finite = [tuple(one for one in beam if one.log > -torch.inf) for beam in beams]
    return [Answer(beam, log) for beam, log in zip(finite, own, strict=True)]


def _extend(
    reader: WordReader,
    told: Sentences,
    asked: Sequence[Asked],
    beams: list[list[Written]],
    piece: int,
    most: int,
) -> None:
    """Write one more piece of every word that has one."""
    open_words = [place for place, word in enumerate(asked) if len(word.tokens) > piece]
    tries = [(place, start) for place in open_words for start in beams[place]]
    rows = torch.tensor([asked[place].row for place, _ in tries])
    ids = told.ids[rows].clone()
    for row, (place, start) in enumerate(tries):
        ids[row, list(asked[place].tokens[:piece])] = torch.tensor(start.ids)
    slots = [(row, asked[place].tokens[piece]) for row, (place, _) in enumerate(tries)]
    inside = torch.zeros(len(tries), dtype=torch.bool)
    found = reader.offers(told.rows(rows).saying(ids), _slots(slots), inside, most)
    grown: dict[int, list[Written]] = {place: [] for place in open_words}
    for row, (place, start) in enumerate(tries):
        for token, log in zip(found.ids[row].tolist(), found.logs[row].tolist(), strict=True):
            grown[place].append(Written((*start.ids, token), start.log + log))
    for place, several in grown.items():
        beams[place] = sorted(several, key=lambda one: -one.log)[:most]


def _slots(slots: Sequence[tuple[int, int]]) -> Slots:
    pair, place = torch.tensor(slots, dtype=torch.long).view(-1, 2).T
    return Slots(pair, place)
