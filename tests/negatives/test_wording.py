from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import processes
from counterfoil.negatives import filters
from counterfoil.negatives.filters import near_captions, plain_words

WORDS = st.sampled_from(["a", "the", "dog", "cat", "runs", "red", "ball", "in", ",", "."])
CAPTIONS = st.lists(st.lists(WORDS, max_size=7).map(" ".join), max_size=25)


def slow(texts: list[str], least: float) -> dict[tuple[int, int], float]:
    bags = [plain_words(text) for text in texts]
    found = {}
    for i, one in enumerate(bags):
        for j in range(i + 1, len(bags)):
            both = weight(one & bags[j], bags)
            alone = math.sqrt(weight(one, bags) * weight(bags[j], bags))
            if alone and both / alone >= least - 1e-9:
                found[i, j] = both / alone
    return found


def weight(words: set[str], bags: list[set[str]]) -> float:
    return sum(
        (1 + math.log((1 + len(bags)) / (1 + sum(word in bag for bag in bags)))) ** 2
        for word in words
    )


def check(texts: list[str], least: float) -> None:
    near, wanted = near_captions(texts, least=least), slow(texts, least)
    assert list(zip(near.left.tolist(), near.right.tolist())) == sorted(wanted)
    torch.testing.assert_close(
        near.score.double(), torch.tensor([wanted[pair] for pair in sorted(wanted)]).double()
    )


def drawn() -> list[str]:
    """Captions in which some words are frequent and most are rare."""
    rng = torch.Generator().manual_seed(0)
    length = torch.randint(1, 12, (80,), generator=rng).tolist()
    words = [(torch.rand(n, generator=rng) ** 2 * 60).long().tolist() for n in length]
    return [" ".join(f"w{word}" for word in line) for line in words]


@given(CAPTIONS, st.sampled_from([1e-6, 0.1, 0.3, 0.5, 0.75, 0.9, 1.0]))
def test_all_pairs_that_reach(texts, least):
    check(texts, least)


@pytest.mark.parametrize("at_once, dense", [(1, 1), (5, 3), (2**21, 4)])
def test_however_many_are_looked_at_together(monkeypatch, at_once, dense):
    monkeypatch.setattr(filters, "_PAIRS_AT_ONCE", at_once)
    monkeypatch.setattr(filters, "_CAPTIONS_AT_ONCE", dense)
    for least in (0.2, 0.5, 0.8):
        check(drawn(), least)


def found(least: float) -> list[np.ndarray]:
    filters._CAPTIONS_AT_ONCE = 8
    near = near_captions(drawn(), least=least)
    return [near.left.numpy(), near.right.numpy(), near.score.numpy()]


@pytest.mark.parametrize("least", [0.3, 0.5])
def test_processes_find_what_one_does(monkeypatch, least):
    monkeypatch.setattr(filters, "_CAPTIONS_AT_ONCE", 8)
    alone = found(least)
    assert len(alone[0])
    for together in processes.run(found, 3, least):
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_the_same_words_in_any_order_and_case():
    texts = ["A dog, a cat.", "the cat - the dog", "CAT a Dog", "", ".", "a dog"]
    near = near_captions(texts, least=1.0)
    assert list(zip(near.left.tolist(), near.right.tolist())) == [(0, 2)]
    assert near.score.tolist() == [1.0]


def test_rare_words_say_more():
    texts = ["a red zebra", "the zebra", "a red dog", "a dog", "a red cat", "a red cow", "the cow"]
    near = near_captions(texts, least=0.1)
    score = dict(zip(zip(near.left.tolist(), near.right.tolist()), near.score.tolist()))
    assert score[0, 1] > score[0, 2] > 0


def test_bad_input(monkeypatch):
    with pytest.raises(ValueError, match="captions=0: a cosine above 0 and up to 1 is needed"):
        near_captions(["a"], least=0)
    monkeypatch.setattr(filters, "MOST", 2)
    with pytest.raises(ValueError, match=r"captions=0\.9 finds more than 2 pairs alike"):
        near_captions(["a dog"] * 4, least=0.9)
