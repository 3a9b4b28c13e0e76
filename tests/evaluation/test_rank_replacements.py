"""What would stand in the place of words, against all that could, read one sentence at a time."""

from __future__ import annotations

import pytest
import torch

import explain_cases as cases
from counterfoil.evaluation.word_heads import (
    ImageSentences,
    RankedReplacements,
    SentenceWord,
    WordHeads,
    rank_replacements,
)

IMAGE = torch.tensor([3, 0, 5])
SENTENCES = ("A red skate dog.", "surf", "An orange skates near surfs")
SKATE, SURF, SKATES, NEAR = (
    SentenceWord(0, (3, 4)),
    SentenceWord(1, (1,)),
    SentenceWord(2, (3, 4, 5)),
    SentenceWord(2, (6,)),
)
SPELT = {SKATE: ["sk", "##ate"], SURF: ["surf"], SKATES: ["sk", "##ate", "##s"], NEAR: ["near"]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return cases.pieces(tmp_path_factory.mktemp("pieces"))


@pytest.fixture(scope="module")
def reader(tokenizer) -> WordHeads:
    model = cases.model(tokenizer)
    seen = cases.tailored_cases.processor()
    return WordHeads(model, tokenizer, model.encode_images(seen.images(torch.arange(8))))


@pytest.fixture(scope="module")
def told(tokenizer) -> ImageSentences:
    ids = tokenizer.encode(SENTENCES)
    width = max(map(len, ids))
    rows = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids])
    return ImageSentences(rows, rows != 0, IMAGE)


def slow(reader, told: ImageSentences, word: SentenceWord) -> dict[tuple[int, ...], float]:
    """All that could stand in the place of a word, with log probabilities."""
    one = reader.images.rows(told.image[word.row : word.row + 1])
    ids = told.ids[word.row][told.mask[word.row]].tolist()
    return cases.every_rewording(reader.model, one, ids, word.tokens, reader.tokenizer)


def likeliest(every: dict[tuple[int, ...], float], most: int) -> dict[tuple[int, ...], float]:
    return dict(sorted(every.items(), key=lambda item: -item[1])[:most])


def test_words_are_where_they_are_asked_for(tokenizer, told):
    for word, spelt in SPELT.items():
        assert tokenizer.tokens(told.ids[word.row, list(word.tokens)].tolist()) == spelt


def test_beams_as_wide_as_the_vocabulary_find_the_likeliest(reader, told):
    wide = reader.tokenizer.size
    asked = [SKATE, SURF, NEAR]
    for word, answer in zip(asked, rank_replacements(reader, told, asked, wide), strict=True):
        best = likeliest(slow(reader, told, word), wide)
        assert {one.ids: one.log_prob for one in answer.best} == pytest.approx(best, abs=1e-5)
        logs = [one.log_prob for one in answer.best]
        assert logs == sorted(logs, reverse=True)


def test_a_beam_of_one_goes_on_with_the_best_beginning(reader, told):
    (answer,) = rank_replacements(reader, told, [SKATES], 1)
    every = slow(reader, told, SKATES)
    (written,) = answer.best
    begun: tuple[int, ...] = ()
    for piece in range(3):
        totals: dict[int, list[float]] = {}
        for ids, log in every.items():
            if ids[:piece] == begun:
                totals.setdefault(ids[piece], []).append(log)
        begun += (max(totals, key=lambda token: torch.tensor(totals[token]).logsumexp(0).item()),)
    assert written.ids == begun
    assert written.log_prob == pytest.approx(every[begun], abs=1e-5)


def test_the_word_itself_has_what_its_pieces_have(reader, told):
    for word, answer in zip((SKATE, SURF), rank_replacements(reader, told, [SKATE, SURF], 3)):
        own = tuple(told.ids[word.row, list(word.tokens)].tolist())
        assert answer.own == pytest.approx(slow(reader, told, word)[own], abs=1e-5)


def test_words_change_nothing_for_one_another(reader, told):
    before = told.ids.clone()
    asked = [SKATE, SURF, SKATES, NEAR]
    together = rank_replacements(reader, told, asked, 4)
    assert torch.equal(told.ids, before)
    for word, answer in zip(asked, together, strict=True):
        (alone,) = rank_replacements(reader, told, [word], 4)
        assert [one.ids for one in alone.best] == [one.ids for one in answer.best]
        assert alone.own == pytest.approx(answer.own, abs=1e-5)


def test_no_more_than_there_is_and_nothing_for_nothing(reader, told):
    special = cases.unwritten(reader.tokenizer)
    (answer,) = rank_replacements(reader, told, [SURF], 1000)
    assert isinstance(answer, RankedReplacements)
    found = {one.ids[0] for one in answer.best}
    assert found.isdisjoint(special)
    assert len(found) == len(slow(reader, told, SURF))
    assert rank_replacements(reader, told, [], 5) == []
