from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.tokenizers import END, START
from counterfoil.evaluation.language_models import NGrams

CAPTIONS = [
    "a dog runs in the snow",
    "a dog runs in the park",
    "a cat sleeps in the park",
    "the dog sleeps",
    "a small dog runs",
    "two cats",
]
WORDS = sorted({word for caption in CAPTIONS for word in caption.split()})


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("before", [(START,), (START, "a"), ("in", "the"), ("cow",), ("a", "cow")])
def test_probabilities_sum_to_one(order, before):
    model = NGrams.of(CAPTIONS, order=order)
    every = [*WORDS, END, "a word it has never seen"]
    shares = [model.probability(word, before) for word in every]
    assert min(shares) > 0
    assert sum(shares) == pytest.approx(1)


def bigrams(word: str, before: str) -> float:
    """Kneser-Ney with two words, told another way."""
    pairs = Counter()
    for caption in CAPTIONS:
        words = [START, *caption.split(), END]
        pairs.update(pairwise(words))
    seen = Counter(pairs.values())
    discount = seen[1] / (seen[1] + 2 * seen[2])
    left = Counter(second for _, second in pairs)
    ends = Counter(left.values())
    lower = ends[1] / (ends[1] + 2 * ends[2])
    uniform = 1 / (len(left) + 1)
    unigram = (max(left[word] - lower, 0) + lower * len(left) * uniform) / len(pairs)
    follow = {second: n for (first, second), n in pairs.items() if first == before}
    if not follow:
        return unigram
    total = sum(follow.values())
    return (max(follow.get(word, 0) - discount, 0) + discount * len(follow) * unigram) / total


def test_two_words_against_another_way():
    model = NGrams.of(CAPTIONS, order=2)
    for before in (START, *WORDS, "cow"):
        for word in (*WORDS, END, "cow"):
            assert model.probability(word, [before]) == pytest.approx(bigrams(word, before))


def test_scores_are_means_of_logs():
    model = NGrams.of(CAPTIONS)
    words = [START, "the", "dog", "runs", END]
    logs = [math.log(model.probability(words[n], words[max(0, n - 2) : n])) for n in range(1, 5)]
    assert model.scores(["The dog runs"]).item() == pytest.approx(sum(logs) / 4)
    two = ["the dog runs", "two cats"]
    every = model.scores(two) * torch.tensor([4, 3])
    assert model.perplexity(two) == pytest.approx(math.exp(-every.sum().item() / 7))


@given(st.permutations(CAPTIONS[0].split()))
def test_what_it_has_read_is_likelier_than_its_words_shuffled(words):
    model = NGrams.of(CAPTIONS)
    told = model.scores(["a dog runs in the snow", " ".join(words)])
    assert told[0] >= told[1]


def test_nothing_to_learn_from():
    with pytest.raises(ValueError, match="at least one caption"):
        NGrams.of([])
    with pytest.raises(ValueError, match="n-grams of 0 words"):
        NGrams.of(["a"], order=0)
    with pytest.raises(ValueError, match="at least one caption"):
        NGrams.of(["a"]).perplexity([])
