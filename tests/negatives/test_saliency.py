from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig

import matcher_cases
import train_cases as cases
from counterfoil.core.types import ModalityBatch
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.scan import SCAN
from counterfoil.models.vsepp import VSEPP
from counterfoil.negatives.counterfactual import (
    check_word_gradients,
    region_saliency,
    token_saliency,
    word_embeddings_of,
    word_saliency,
)

WEIGHT = torch.tensor([0.5, 1.0, -0.25, -2.0], dtype=torch.float64)


def host(kind: str, words: int = 20) -> RetrievalModel:
    torch.manual_seed(0)
    image, text = Regions(features=6, width=8), GRU(words=words, word_width=5, width=8, dropout=0.4)
    return (SCAN if kind == "scan" else VSEPP)(image=image, text=text).double()


def items() -> tuple[ModalityBatch, ModalityBatch]:
    rng = torch.Generator().manual_seed(1)
    images, texts = matcher_cases.regions(4, rng), matcher_cases.words(4, rng)
    texts.values[0] = texts.values[0, 0]  # one word over and over
    texts.mask[0] = True
    return replace(images, values=images.values.double()), texts


def total(model: RetrievalModel, images: ModalityBatch, texts: ModalityBatch) -> Tensor:
    model.eval()
    scores = model.score_pairs(model.encode_images(images), model.encode_texts(texts))
    return (WEIGHT * scores).sum()


@pytest.mark.parametrize("kind", ["scan", "vse"])
def test_regions_are_those_of_finite_differences(kind: str) -> None:
    model, (images, texts) = host(kind), items()
    found = region_saliency(model, images, model.eval().encode_texts(texts), WEIGHT)
    with torch.no_grad():
        for place in [(0, 0, 1), (1, 0, 5), (2, 0, 0), (3, 0, 2)]:
            step = torch.zeros_like(images.values)
            step[place] = 1e-6
            up, down = (
                total(model, replace(images, values=images.values + s), texts)
                for s in (step, -step)
            )
            assert found[place].item() == pytest.approx(float(up - down) / 2e-6, abs=1e-7)
    assert not found.masked_fill(images.mask.unsqueeze(2), 0).any()


def spread(model: RetrievalModel, texts: ModalityBatch) -> tuple[RetrievalModel, ModalityBatch]:
    """A model with a row for every occurrence of a word, so that its table tells them apart."""
    ids = texts.values.masked_fill(~texts.mask, 0)
    other = host("scan" if isinstance(model, SCAN) else "vse", words=ids.numel())
    state = model.state_dict()
    state["text.embed.weight"] = state["text.embed.weight"][ids.flatten()]
    other.load_state_dict(state)
    return other, replace(texts, values=torch.arange(ids.numel()).view(ids.shape))


@pytest.mark.parametrize("kind", ["scan", "vse"])
def test_words_are_those_of_a_table_of_occurrences(kind: str) -> None:
    model, (images, texts) = host(kind), items()
    found = word_saliency(model, texts, model.eval().encode_images(images), WEIGHT)
    other, alone = spread(model, texts)
    total(other, images, alone).backward()
    wanted = other.text.embed.weight.grad.view(found.shape)
    torch.testing.assert_close(found[texts.mask], wanted[texts.mask])
    assert found[0, 0].norm() != found[0, 1].norm()


def test_tokens_are_those_of_the_table_itself() -> None:
    model, (images, texts) = host("scan"), items()
    found = word_saliency(model, texts, model.eval().encode_images(images), WEIGHT)
    total(model, images, texts).backward()
    wanted = model.text.embed.weight.grad[texts.values]
    torch.testing.assert_close(token_saliency(found, texts)[texts.mask], wanted[texts.mask])


def test_the_model_is_left_as_it_was() -> None:
    model, (images, texts) = host("scan").train(), items()
    model.text.rnn.eval()
    seen = model.encode_images(images), model.encode_texts(texts)
    state = torch.get_rng_state()
    with torch.no_grad():
        one = word_saliency(model, texts, seen[0], WEIGHT)
        region_saliency(model, images, seen[1], WEIGHT)
    assert torch.equal(state, torch.get_rng_state()), "no dropout"
    torch.testing.assert_close(one, word_saliency(model, texts, seen[0], WEIGHT))
    assert model.training
    assert model.text.dropout.training
    assert not model.text.rnn.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.text.embed._forward_hooks
    assert not images.values.requires_grad


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_features_in_half_precision(dtype: torch.dtype) -> None:
    model, (images, texts) = host("scan").float(), items()
    half = replace(images, values=images.values.to(dtype))
    seen = model.eval().encode_texts(texts)
    found = region_saliency(model, half, seen, WEIGHT.float())
    wanted = region_saliency(model, replace(half, values=half.values.float()), seen, WEIGHT.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted)


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.ModuleList([GRU(words=5, width=8), GRU(words=5, width=8)])


def test_who_looks_words_up() -> None:
    model = host("scan")
    assert word_embeddings_of(model) is check_word_gradients(model) is model.text
    with pytest.raises(ValueError, match="Global has 0 text encoders that tell where they look"):
        word_embeddings_of(cases.host("global", cases.processor()))
    with pytest.raises(ValueError, match="TwoReaders has 2 text encoders"):
        word_embeddings_of(TwoReaders())  # type: ignore[arg-type]


def test_what_does_not_listen_to_its_words() -> None:
    model = host("scan")
    model.text.read = lambda vectors, mask: GRU.read(model.text, vectors.detach(), mask)
    with pytest.raises(ValueError, match="the text encoder GRU is not trained, so no gradient"):
        check_word_gradients(model)


def test_a_frozen_bert_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
    BertConfig(**sizes, num_hidden_layers=1).save_pretrained(tmp_path)
    for trained in (True, False):
        text = BertTextTower(name=str(tmp_path), width=8, pretrained=False, trained=trained, mask=4)
        model = VSEPP(image=Regions(features=6, width=8), text=text, text_pool="mean")
        if trained:
            assert check_word_gradients(model).mask_word == 4
            continue
        with pytest.raises(ValueError, match="the text encoder BertTextTower is not trained"):
            check_word_gradients(model)
