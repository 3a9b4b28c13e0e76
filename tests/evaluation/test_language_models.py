"""N-grams, causal language models, and perplexities of captions."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import hub_cases
from counterfoil.data.tokenizers import END, START, split_words
from counterfoil.evaluation import language_models
from counterfoil.evaluation.language_models import (
    CaptionLogProbs,
    CausalLM,
    NGrams,
    fluency,
    ngram_log_probs,
)

TRAINING = [
    "a dog runs in the snow",
    "a dog runs in the park",
    "a cat sleeps in the park",
    "the dog sleeps",
    "a small dog runs",
    "two cats",
]
TRAINED_WORDS = sorted({word for caption in TRAINING for word in caption.split()})


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("before", [(START,), (START, "a"), ("in", "the"), ("cow",), ("a", "cow")])
def test_probabilities_sum_to_one(order, before):
    model = NGrams.of(TRAINING, order=order)
    every = [*TRAINED_WORDS, END, "a word it has never seen"]
    shares = [model.probability(word, before) for word in every]
    assert min(shares) > 0
    assert sum(shares) == pytest.approx(1)


def bigrams(word: str, before: str) -> float:
    """Kneser-Ney with two words, told another way."""
    pairs = Counter()
    for caption in TRAINING:
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
    model = NGrams.of(TRAINING, order=2)
    for before in (START, *TRAINED_WORDS, "cow"):
        for word in (*TRAINED_WORDS, END, "cow"):
            assert model.probability(word, [before]) == pytest.approx(bigrams(word, before))


def test_scores_are_means_of_logs():
    model = NGrams.of(TRAINING)
    words = [START, "the", "dog", "runs", END]
    logs = [math.log(model.probability(words[n], words[max(0, n - 2) : n])) for n in range(1, 5)]
    assert model.scores(["The dog runs"]).item() == pytest.approx(sum(logs) / 4)


@given(st.permutations(TRAINING[0].split()))
def test_what_it_has_read_is_likelier_than_its_words_shuffled(words):
    model = NGrams.of(TRAINING)
    told = model.scores(["a dog runs in the snow", " ".join(words)])
    assert told[0] >= told[1]


def test_nothing_to_learn_from():
    with pytest.raises(ValueError, match="at least one caption"):
        NGrams.of([])
    with pytest.raises(ValueError, match="n-grams of 0 words"):
        NGrams.of(["a"], order=0)


WORDS = ["a", "dog", "cat", "runs", "sleeps", "on", "grass", "."]
CAPTIONS = ["a dog runs .", "a cat sleeps on grass .", "dog", "a dog runs .", "cat cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return hub_cases.gpt2(tmp_path_factory.mktemp("lm"), WORDS)


def slow(folder: str, caption: str) -> tuple[float, int]:
    """Token by token, each with all before it and nothing else in the batch."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    read = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    ids = [read.token_to_id("<|endoftext|>"), *read.encode(caption, add_special_tokens=False).ids]
    total = 0.0
    for at in range(1, len(ids)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[:at]])).logits[0, -1]
        total += float(logits.double().log_softmax(0)[ids[at]])
    return total, len(ids) - 1


@pytest.mark.parametrize("at_once", [2, 2**10])
def test_captions_are_read_as_alone(folder, monkeypatch, at_once):
    monkeypatch.setattr(language_models, "BATCH_TOKENS", at_once)
    model = CausalLM(folder)
    assert model.begins == "<|endoftext|>"
    found = model.log_probs(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        logs, tokens = slow(folder, caption)
        assert found.logs[row].item() == pytest.approx(logs, abs=1e-5)
        assert found.tokens[row] == tokens
    assert found.logs[0] == found.logs[3]


def test_what_it_cannot_read_is_refused(folder):
    model = CausalLM(folder)
    with pytest.raises(ValueError, match=r"reads 2 to 12 tokens .* has 14"):
        model.log_probs(["dog " * 13])
    with pytest.raises(ValueError, match="has 1"):
        model.log_probs([""])
    with pytest.raises(ValueError, match="or leave --lm out"):
        CausalLM("no/such-model")


def some(count: int = 30, seed: int = 0) -> tuple[CaptionLogProbs, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 12, (count,), generator=rng)
    logs = -tokens * (1 + torch.rand(count, generator=rng, dtype=torch.double))
    return CaptionLogProbs(logs, tokens), torch.arange(count) // 3


def test_the_three_perplexities_are_those_of_a_loop():
    spoken, images = some()
    made_of, _ = some(seed=1)
    found = fluency(spoken, images, made_of=made_of)
    each = [-log / n for log, n in zip(spoken.logs.tolist(), spoken.tokens.tolist())]
    old = [-log / n for log, n in zip(made_of.logs.tolist(), made_of.tokens.tolist())]
    typical = math.exp(sum(each) / len(each))
    assert found.captions == len(each)
    assert found.typical.value == pytest.approx(typical)
    assert found.mean.value == pytest.approx(sum(map(math.exp, each)) / len(each))
    whole = math.exp(-sum(spoken.logs.tolist()) / sum(spoken.tokens.tolist()))
    assert found.whole.value == pytest.approx(whole)
    assert found.times.value == pytest.approx(typical / math.exp(sum(old) / len(old)))
    for share in (found.typical, found.mean, found.whole, found.times):
        assert share.interval.low < share.value < share.interval.high


def test_what_is_equal_is_as_fluent():
    spoken, images = some()
    times = fluency(spoken, images, made_of=spoken).times
    assert (times.value, times.interval.low, times.interval.high) == (1, 1, 1)
    assert fluency(spoken, images).times is None
    assert fluency(spoken, images).to_dict()["times"] is None


def test_ngrams_count_the_end():
    model = NGrams.of(["a dog runs", "a cat sleeps", "a dog sleeps"])
    captions = ["A dog sleeps.", "cat"]
    spoken = ngram_log_probs(model, captions)
    for row, caption in enumerate(captions):
        words = [START, *split_words(caption), END]
        logs = [
            math.log(model.probability(words[at], words[max(0, at - 2) : at]))
            for at in range(1, len(words))
        ]
        assert spoken.logs[row].item() == pytest.approx(sum(logs))
        assert spoken.tokens[row] == len(logs)
    whole = math.exp(-spoken.logs.sum().item() / spoken.tokens.sum().item())
    assert fluency(spoken, torch.arange(2)).whole.value == pytest.approx(whole)
