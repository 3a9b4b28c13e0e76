from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from counterfoil.core.types import Embeddings, ModalityBatch, WordHead, WordSlots
from counterfoil.models.layers import joint_encoder
from counterfoil.papers.models.uniter import UNITER
from papers.released_bugs import misaligned

SIZES = {"layers": 2, "width": 8, "heads": 2, "inner": 12, "positions": 9}
SIZES |= {"vocabulary": 20, "features": 6, "classes": 4}
ALL = ("rank", "match", "fill", "doubt", "correct", "regress", "classify")
EVERY = frozenset(WordHead)
COUNTS = [3, 1, 4, 2], [5, 2, 7, 3]  # regions and tokens of four pairs


def model(outputs: tuple[str, ...] = ALL, **options) -> UNITER:
    torch.manual_seed(0)
    host = UNITER(outputs=outputs, **{**SIZES, **options})
    with torch.no_grad():
        for parameter in host.parameters():  # fresh ones are so small that nothing would show
            parameter.add_(torch.randn(parameter.shape) / 3)
    return host.eval()


def items() -> tuple[ModalityBatch, ModalityBatch]:
    rng = torch.Generator().manual_seed(1)
    regions, tokens = (torch.tensor(counts).unsqueeze(1) for counts in COUNTS)
    corner = torch.rand(4, 4, 4, generator=rng) / 2
    boxes = torch.cat([corner[..., :2], corner[..., :2] + corner[..., 2:]], 2)
    images = torch.randn(4, 4, 6, generator=rng)
    texts = torch.randint(0, 20, (4, 7), generator=rng)
    return (
        ModalityBatch(torch.arange(4), images, torch.arange(4) < regions, boxes),
        ModalityBatch(torch.arange(4), texts, torch.arange(7) < tokens),
    )


def encoded(host: UNITER) -> tuple[Embeddings, Embeddings]:
    images, texts = items()
    return host.encode_images(images), host.encode_texts(texts)


def norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], layer.weight, layer.bias, 1e-12)


def told(host: UNITER, tokens: Tensor) -> Tensor:
    """(n, D) last hidden states of one sequence, head by head."""
    for layer in host.body.layers:
        asked = torch.empty_like(tokens)
        parts = (tokens @ layer.enter.weight.T + layer.enter.bias).chunk(3, 1)
        for head in torch.arange(8).chunk(layer.heads):
            query, key, value = (part[:, head] for part in parts)
            asked[:, head] = (query @ key.T / math.sqrt(len(head))).softmax(1) @ value
        tokens = norm(layer.norm, tokens + layer.leave(asked))
        tokens = norm(layer.last_norm, tokens + layer.narrow(gelu(layer.wide(tokens))))
    return tokens


def alone(host: UNITER, images: Embeddings, texts: Embeddings, image: int, text: int) -> Tensor:
    said, seen = texts.tokens[text][texts.mask[text]], images.tokens[image][images.mask[image]]
    return told(host, torch.cat([said, seen]))


@torch.no_grad()
@pytest.mark.parametrize("most", [1, 20, 10**6])
def test_every_score_is_that_of_the_pair_alone(monkeypatch, most):
    monkeypatch.setitem(joint_encoder.TOKENS_AT_ONCE, "cpu", most)
    host = model()
    images, texts = encoded(host)
    for i, row in enumerate(host.score_matrix(images, texts)):
        for t, score in enumerate(row):
            first = alone(host, images, texts, i, t)[0]
            expected = host.says.rank(host.pooler(first).tanh())
            torch.testing.assert_close(score, expected[0])


@torch.no_grad()
def test_one_pass_answers_all_that_is_wanted():
    host = model()
    images, texts = encoded(host)
    slots = WordSlots(torch.tensor([2, 0, 2, 3]), torch.tensor([6, 1, 3, 0]))
    reading = host.read(images, texts, EVERY, slots)
    torch.testing.assert_close(reading.score, host.score_pairs(images, texts))
    table = host.text.word_embeddings.weight
    for n, (pair, place) in enumerate(zip(slots.pair, slots.place, strict=True)):
        state = alone(host, images, texts, int(pair), int(pair))[place]
        for head, logits in ((host.says.fill, reading.fill), (host.says.correct, reading.correct)):
            expected = norm(head.enter[2], gelu(head.enter[0](state))) @ table.T + head.bias
            torch.testing.assert_close(logits[n], expected)
    for p, count in enumerate(COUNTS[1]):
        states = alone(host, images, texts, p, p)[:count]
        torch.testing.assert_close(reading.doubt[p, :count], host.says.doubt(states))
        assert not reading.doubt[p, count:].any()


@torch.no_grad()
def test_hidden_states_of_pairs_and_of_one_side():
    host = model()
    images, texts = encoded(host)
    joint = host.joint(images, texts)
    said, seen = host.joint(None, texts), host.joint(images, None)
    for p in range(4):
        words, regions = texts.mask[p], images.mask[p]
        states = alone(host, images, texts, p, p)
        torch.testing.assert_close(joint.texts.tokens[p][words], states[: words.sum()])
        torch.testing.assert_close(joint.images.tokens[p][regions], states[words.sum() :])
        torch.testing.assert_close(joint.pooled[p], host.pooler(states[0]).tanh())
        only = told(host, texts.tokens[p][words])
        torch.testing.assert_close(said.texts.tokens[p][words], only)
        only = told(host, images.tokens[p][regions])
        torch.testing.assert_close(seen.images.tokens[p][regions], only)
    assert not joint.texts.tokens[~texts.mask].any()
    assert said.images.tokens.shape == (4, 0, 8)
    no, yes = host.matched(joint.pooled).unbind(1)
    matching = model(("match",))
    matching.load_state_dict(matching.adopted(host.state_dict()))
    torch.testing.assert_close(matching.score_pairs(images, texts), yes - no)


@torch.no_grad()
def test_a_hidden_region_shows_where_it_is_and_not_what():
    host = model()
    images, _ = items()
    veiled = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()
    changed = replace(images, values=torch.where(veiled.unsqueeze(2), 99.0, images.values))
    one, two = (host.embed_images(some, veiled).tokens for some in (images, changed))
    assert torch.equal(one, two)
    plain = host.encode_images(images).tokens
    assert torch.equal((one != plain).any(2), veiled)
    moved = replace(images, boxes=images.boxes * 0.5)
    assert (host.embed_images(moved, veiled).tokens != one)[veiled].any()


@torch.no_grad()
def test_the_slip_of_the_released_training():
    """Regions are read from behind the last text on, in the longest text's room."""
    host = model()
    images, texts = encoded(host)
    wrong = misaligned(images, texts)
    assert torch.equal(wrong.tokens[:, :4], texts.tokens[:, 3:7])  # longest 7, last 3, 4 regions
    alike = Embeddings(texts.tokens[:, :3], texts.mask[:, :3].clone())
    alike.mask[:] = True
    assert torch.equal(misaligned(images, alike).tokens, images.tokens)


def test_what_cannot_be_read():
    host, images = model(("rank",)), items()[0]
    with pytest.raises(ValueError, match="nothing that stands for a hidden region"):
        host.embed_images(images, torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="these image features have no boxes"):
        host.encode_images(replace(images, boxes=None))


def test_fresh_weights_are_as_wide_as_is_asked():
    torch.manual_seed(0)
    for spread in (0.02, 0.1):
        host = UNITER(outputs=("rank",), **SIZES, spread=spread)
        weight = torch.cat([p.flatten() for n, p in host.body.named_parameters() if p.ndim == 2])
        assert weight.std().item() == pytest.approx(spread, rel=0.05)
