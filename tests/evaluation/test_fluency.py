from __future__ import annotations

import math

import pytest
import torch

from counterfoil.data.tokenizers import END, START, split_words
from counterfoil.evaluation.language_models import CaptionLogProbs, NGrams, fluency, ngram_log_probs


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
    images = torch.arange(2)
    assert fluency(spoken, images).whole.value == pytest.approx(model.perplexity(captions))
