from __future__ import annotations

import argparse
from itertools import product
from math import exp, log, sqrt

import pytest
import torch
from torch.autograd import gradcheck

from bag_cases import WIDTH, bags
from counterfoil.core.types import Embeddings, ModalityBatch, Pairs
from counterfoil.models.chan import CHAN, NAMES
from counterfoil.models.convert import convert_checkpoint
from counterfoil.models.layers import cross_attention, fused
from counterfoil.models.layers.towers import GRU, Regions

CODINGS = ("VHA", "THA", "VSA")
POOLINGS = ("LSE", "Mean", "Max", "Sum", "Softmax")
EVERY = tuple(product(CODINGS, POOLINGS))


def model(**options) -> CHAN:
    image, text = Regions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    return CHAN(image=image, text=text, **options)


def whole(*rows: list[list[float]]) -> Embeddings:
    """Bags of plane vectors, as many in each, nothing hidden."""
    tokens = torch.tensor(rows, dtype=torch.double)
    return Embeddings(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))


def slow(regions, words, coding, pooling, alpha, beta) -> float:
    """The paper's equations over plain lists of vectors."""

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    if coding == "VHA":
        found = [max(dot(v, w) for v in regions) for w in words]
    elif coding == "THA":
        found = [max(dot(v, w) for w in words) for v in regions]
    else:
        found = []
        for v in regions:
            weights = [exp(dot(v, w) / alpha) for w in words]
            mean = [
                sum(p * w[d] for p, w in zip(weights, words, strict=True)) for d in range(WIDTH)
            ]
            found.append(dot(v, mean) / sqrt(dot(mean, mean)))
    if pooling == "LSE":
        return log(sum(exp(s / beta) for s in found))
    if pooling == "Softmax":
        return sum(exp(s / beta) * s for s in found) / sum(exp(s / beta) for s in found)
    return {"Max": max(found), "Sum": sum(found), "Mean": sum(found) / len(found)}[pooling]


@pytest.mark.parametrize(("coding", "pooling"), EVERY)
def test_equals_the_loop_over_pairs(coding, pooling):
    images, texts = bags()
    grid = model(coding=coding, pooling=pooling, alpha=0.7, beta=0.4).score_matrix(images, texts)
    for i, t in product(range(len(images)), range(len(texts))):
        v, w = images.tokens[i][images.mask[i]], texts.tokens[t][texts.mask[t]]
        expected = slow(v.tolist(), w.tolist(), coding, pooling, 0.7, 0.4)
        assert float(grid[i, t]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("share", [0.0, 1.1], ids=["dense", "sparse"])
@pytest.mark.parametrize(("coding", "pooling"), EVERY)
def test_gradient(coding, pooling, share, monkeypatch):
    monkeypatch.setattr(fused, "SPARSE", share)
    images, texts = bags()
    host = model(coding=coding, pooling=pooling, alpha=0.7, beta=0.4)
    some = Pairs(torch.tensor([2, 0, 0, 2]), torch.tensor([1, 3, 0, 1]))

    def grid(v, w):
        return host.score_matrix(Embeddings(v, images.mask), Embeddings(w, texts.mask))

    def pairs(v, w):
        return host.score_pairs(
            Embeddings(v, images.mask), Embeddings(w, texts.mask).rows(slice(3))
        )

    def listed(v, w):
        return host.score_indices(Embeddings(v, images.mask), Embeddings(w, texts.mask), some)

    leaves = [x.tokens.nan_to_num().requires_grad_() for x in (images, texts)]
    for score in (grid, pairs, listed):
        assert gradcheck(score, leaves, fast_mode=True)


@pytest.mark.parametrize(("coding", "pooling"), EVERY)
def test_pairs_and_listed_pairs_are_entries_of_the_grid(coding, pooling):
    images, texts = bags(images=6, texts=8)
    image, text = torch.tensor([5, 0, 0, 3, 2, 5]), torch.tensor([1, 7, 0, 3, 3, 1])
    leaves = [x.tokens.clone().requires_grad_() for x in (images, texts)]
    host = model(coding=coding, pooling=pooling)
    images, texts = (Embeddings(v, x.mask) for v, x in zip(leaves, (images, texts), strict=True))
    every = (
        host.score_matrix(images, texts)[image, text],
        host.score_pairs(images.rows(image), texts.rows(text)),
        host.score_indices(images, texts, Pairs(image, text)),
    )
    found = [(s.detach(), *torch.autograd.grad(s.square().sum(), leaves)) for s in every]
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            assert ours.isfinite().all()
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("coding", "pooling"), EVERY)
def test_an_image_without_regions_is_one_zero_region(coding, pooling):
    """However many places it has."""
    images, texts = bags()
    regions = images.tokens.clone().requires_grad_()
    nothing = Embeddings(regions, images.mask & torch.tensor([[True], [False], [True]]))
    zero = Embeddings(torch.zeros(1, 1, WIDTH, dtype=torch.double), torch.ones(1, 1).bool())
    host = model(coding=coding, pooling=pooling)
    expected, grid = host.score_matrix(zero, texts)[0], host.score_matrix(nothing, texts)
    torch.testing.assert_close(grid[1], expected)
    torch.testing.assert_close(host.score_matrix(nothing.padded(9), texts), grid)
    torch.testing.assert_close(host.score_pairs(nothing, texts.rows(slice(3))), grid.diagonal())
    assert torch.autograd.grad(grid.sum(), regions)[0].isfinite().all()


@pytest.mark.parametrize("angle", [1.0, -1.0])
def test_cosines_below_zero_and_of_minus_one_count(angle):
    """An affinity is never taken for padding, not even -1."""
    texts = whole([[1.0, 0.0], [1.0, 0.0]])
    images = Embeddings(
        torch.tensor([[[-1.0, 0.0], [angle, 7.0]]], dtype=torch.double),
        torch.tensor([[True, False]]),
    )
    image, text = Regions(features=1, width=2), GRU(words=1, word_width=1, width=2)
    expected = {"LSE": -10 + log(2), "Mean": -1, "Max": -1, "Sum": -2, "Softmax": -1}
    for pooling, value in expected.items():
        host = CHAN(image=image, text=text, pooling=pooling)
        assert host.score_matrix(images, texts).item() == pytest.approx(value)
        assert host.score_pairs(images, texts).item() == pytest.approx(value)


@pytest.mark.parametrize("coding", CODINGS)
def test_one_region_and_one_word_are_their_cosine(coding):
    images, texts = whole([[0.6, 0.8]], [[-1.0, 0.0]]), whole([[1.0, 0.0]])
    image, text = Regions(features=1, width=2), GRU(words=1, word_width=1, width=2)
    for pooling, scale in {"LSE": 10, "Mean": 1, "Max": 1, "Sum": 1, "Softmax": 1}.items():
        host = CHAN(image=image, text=text, coding=coding, pooling=pooling)
        assert host.score_scale == pytest.approx(scale)
        expected = [scale * 0.6, -scale]
        assert host.score_matrix(images, texts)[:, 0].tolist() == pytest.approx(expected)


def test_of_equal_regions_one_learns():
    """In every form the same one, so that forms agree in gradients too."""
    tokens = torch.ones(2, 4, WIDTH, dtype=torch.double)
    words = torch.ones(2, 3, WIDTH, dtype=torch.double)
    masks = [torch.ones(x.shape[:2], dtype=torch.bool) for x in (tokens, words)]
    for coding in ("VHA", "THA"):
        host, found = model(coding=coding, pooling="Sum"), []
        for score in (host.score_matrix, host.score_pairs):
            leaves = [x.clone().requires_grad_() for x in (tokens, words)]
            scores = score(*(Embeddings(x, m) for x, m in zip(leaves, masks, strict=True)))
            diagonal = scores.diagonal() if scores.dim() == 2 else scores
            found.append(torch.autograd.grad(diagonal.sum(), leaves))
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours, theirs)
        (learnt,) = (g for g in found[0] if g.shape == (tokens if coding == "VHA" else words).shape)
        assert (learnt != 0).any(2).sum(1).tolist() == [1, 1]


@pytest.mark.parametrize("coding", CODINGS)
def test_tiles_change_nothing(coding, monkeypatch):
    images, texts = bags(images=7, texts=9)
    before = model(coding=coding).score_matrix(images, texts)
    monkeypatch.setattr(cross_attention, "IMAGES_AT_ONCE", 3)
    monkeypatch.setattr(cross_attention, "CELLS_AT_ONCE", 100)
    monkeypatch.setattr(fused, "CELLS_IN_CACHE", 40)
    torch.testing.assert_close(model(coding=coding).score_matrix(images, texts), before)


@pytest.mark.parametrize("sees", ["regions", "padding", "batch"])
def test_only_the_authors_forms_depend_on_the_batch(sees):
    torch.manual_seed(0)
    image = Regions(features=2, width=16)
    host = CHAN(image=image, text=GRU(words=3, width=16), block="selfattention", sees=sees).eval()
    items = ModalityBatch(
        torch.arange(2), torch.randn(2, 3, 2), torch.tensor([[True] * 3, [True, False, False]])
    )
    alone = items.rows(slice(1, 2))
    short = ModalityBatch(alone.ids, alone.values[:, :1], alone.mask[:, :1])
    together, apart = (host.encode_images(x).tokens[-1, 0] for x in (items, short))
    assert torch.allclose(together, apart, atol=1e-6) == (sees == "regions")


def test_dropped_regions_and_words_leave_a_score():
    torch.manual_seed(0)
    image = Regions(features=2, width=8, region_drop=0.5)
    host = CHAN(image=image, text=GRU(words=9, width=8), block="selfattention").train()
    items = ModalityBatch(torch.arange(6), torch.randn(6, 4, 2), torch.ones(6, 4, dtype=torch.bool))
    images = host.encode_images(items)
    assert not images.mask.all()
    texts = host.encode_texts(
        ModalityBatch(torch.arange(1), torch.tensor([[1, 2]]), torch.ones(1, 2) > 0)
    )
    host.score_matrix(images, texts).sum().backward()
    assert all(p.grad.isfinite().all() for p in host.parameters())


def authors(block: str) -> tuple[list[dict[str, torch.Tensor]], CHAN]:
    """What they save of a model, and the model."""
    host = CHAN(image=Regions(features=6, width=8), text=GRU(words=9, width=8), block=block)
    layer = "ln_1" if block == "transformer" else "ln"
    names = {
        "block.norm": f"feedforward.{layer}",
        "block.attention": "feedforward.attn",
        "block.perceptron.norm": "feedforward.ln_2",
        "block.perceptron.wide": "feedforward.mlp.c_fc",
        "block.perceptron.narrow": "feedforward.mlp.c_proj",
        "image.fc": "fc",
    }
    sides: tuple[dict[str, torch.Tensor], ...] = ({}, {"fc.weight": torch.zeros(8, 8)})
    for name, value in host.state_dict().items():
        ours = next((o for o in names if name.startswith(o)), None)
        if ours:
            sides[0][names[ours] + name.removeprefix(ours)] = value
        else:
            sides[1][name.removeprefix("text.")] = value
    return [*sides, {}, {}], host


@pytest.mark.parametrize("block", ["basic", "selfattention", "transformer"])
def test_their_checkpoints_are_read(block, tmp_path):
    saved, host = authors(block)
    torch.save({"epoch": 3, "model": saved}, tmp_path / "best.pth")
    built = convert_checkpoint(tmp_path / "best.pth", "chan").build()
    assert isinstance(built, CHAN)
    assert built.state_dict().keys() == host.state_dict().keys()
    assert all(torch.equal(v, built.state_dict()[k]) for k, v in host.state_dict().items())
    assert (built.coding.direction, built.pooling, built.beta) == ("t2i", "LSE", 0.1)
    if block != "basic":
        assert built.block.sees == ("batch" if block == "transformer" else "regions")


def test_their_options_are_read(tmp_path):
    saved, _ = authors("basic")
    opt = argparse.Namespace(
        coding_type="THACoding", pooling_type="SoftmaxPooling", alpha=None, belta=0.3
    )
    torch.save({"model": saved, "opt": opt}, tmp_path / "best.pth")
    built = convert_checkpoint(tmp_path / "best.pth", "chan").build()
    assert (built.coding.direction, built.pooling, built.beta) == ("i2t", "Softmax", 0.3)
    assert built.score_scale == 1.0


def test_other_tensors_are_refused():
    with pytest.raises(ValueError, match=r"'img_enc\.cnn\.0\.weight' is no tensor of a CHAN"):
        NAMES.renamed({"img_enc.cnn.0.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"this CHAN checkpoint has no 'text\.embed\.weight'"):
        NAMES.renamed({"img_enc.fc.weight": torch.zeros(1)})


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="coding='VHACoding' is not known; use one of VHA, THA"):
        model(coding="VHACoding")
    with pytest.raises(ValueError, match="pooling='LogSumExp' is not known; use one of LSE"):
        model(pooling="LogSumExp")
    with pytest.raises(ValueError, match="beta=0 is no temperature; it must be positive"):
        model(beta=0)
    with pytest.raises(ValueError, match="8 heads do not divide a width of 6"):
        model(block="selfattention")
    with pytest.raises(ValueError, match="gives 4 numbers per vector and the text tower 6"):
        CHAN(image=Regions(features=2, width=4), text=GRU(words=3, width=6))
