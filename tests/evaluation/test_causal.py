from __future__ import annotations

import pytest
import tokenizers
import torch
import transformers

import hub_cases
from counterfoil.evaluation import language_models
from counterfoil.evaluation.language_models import CausalLM

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
