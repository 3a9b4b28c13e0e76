"""BFAN (https://github.com/CrossmodalGroup/BFAN, c5c2d2a). Every key of the folder is run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.layers import fused
from counterfoil.models.layers.fused import align_pairs
from counterfoil.papers.models.bfan import bfan_from_checkpoint

SYSTEM = "bfan"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
TERMS = {"mh": HardestTripletLoss, "sh": SumTripletLoss}
KERNEL = re.compile(r"kernel/(\w+)/(scores|grad_regions|grad_words)")
FOCAL = re.compile(r"kernel/(\w+)/(t2i|i2t)/(pre_attn|mask|attended)_caption(\d+)")
LOSS = re.compile(r"loss/(\w+)/(mh|sh|scores|grad_norm|grad_mh/.+)")


def build(focus: str):
    golden = golden_scores.load(SYSTEM)
    softmax = golden.meta["config"]["lambda_softmax"]
    options = {"focal_type": focus, "lambda_softmax": softmax}
    return golden, bfan_from_checkpoint(golden_scores.checkpoint(SYSTEM, **options)).build()


def kernel(focus: str, what: str) -> Tensor:
    golden, model = build(focus)
    images, texts = golden_scores.kernel(golden.inputs)
    scores = model.score_matrix(images, texts)
    if what == "scores":
        return scores
    leaf = {"grad_regions": images, "grad_words": texts}[what].tokens
    return torch.autograd.grad((scores * golden.inputs["score_weights"]).sum(), leaf)[0]


def focal(focus: str, direction: str, what: str, caption: int) -> Tensor:
    """(I, query, context) weights, or the vectors that they attend to."""
    golden, model = build(focus)
    images, texts = golden_scores.kernel(golden.inputs)
    one = texts.rows(torch.full((len(images),), caption))
    length = int(one.mask[0].sum())
    (head,) = (head for head in model.heads if head.direction == direction)
    if what == "pre_attn":
        block = align_pairs((head,), images, one).block(head)
        weights = replace(head, focus="none").weights(block)
        maps = weights[0].transpose(0, 1) if direction == "t2i" else weights[:, :, 0]
    else:
        maps = model.word_region_maps(images, one, direction)
    maps, words = maps[:, :length], one.tokens[:, :length]
    maps, context = (maps, images.tokens) if direction == "t2i" else (maps.mT, words)
    return maps @ context if what == "attended" else maps > 0 if what == "mask" else maps


def trained(focus: str, what: str) -> Tensor:
    golden, model = build(focus)
    images = model.encode_images(golden_scores.images(golden.inputs))
    texts = model.encode_texts(golden_scores.captions(golden.inputs))
    if what == "scores":
        return model.score_matrix(images, texts)
    n = golden.meta["config"]["n_loss_batch"]
    scores = model.score_matrix(images.rows(slice(n)), texts.rows(slice(n)))
    anchors = ScoreMatrix(scores, torch.eye(n, dtype=torch.bool), scores.diagonal())
    term = TERMS.get(what, HardestTripletLoss)
    value = term(margin=golden.meta["config"]["margin"], reduction="sum")(
        Scores({"inference": anchors})
    )
    if what in TERMS:
        return value
    value.backward()
    if what == "grad_norm":
        return torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    name = what.removeprefix("grad_mh/")
    ours = name.replace("img_enc.", "image.").replace("txt_enc.", "text.")
    return dict(model.named_parameters())[ours].grad


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if key == "img_emb":
        golden, model = build("equal")
        return model.encode_images(golden_scores.images(golden.inputs)).tokens
    if key == "cap_emb":
        golden, model = build("equal")
        texts = model.encode_texts(golden_scores.captions(golden.inputs))
        return texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)
    if key == "ensemble/scores":
        return (kernel("equal", "scores") + kernel("prob", "scores")) / 2
    if found := KERNEL.fullmatch(key):
        return kernel(*found.groups())
    if found := FOCAL.fullmatch(key):
        focus, direction, what, caption = found.groups()
        return focal(focus, direction, what, int(caption))
    found = LOSS.fullmatch(key)
    assert found, f"the golden folder has {key!r}, which no test understands"
    return trained(*found.groups())


def agrees(key: str) -> None:
    golden = golden_scores.load(SYSTEM)
    value = ours(key)
    assert value.shape == golden.outputs[key].shape
    if golden.exact(key):
        assert torch.equal(value.long(), golden.outputs[key].long())
    else:
        golden_scores.agrees(golden, key, value)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    agrees(key)


@pytest.mark.parametrize("key", [k for k in golden_vectors.keys(SYSTEM) if "grad_" in k])
def test_gradients_agree_when_only_some_pairs_are_visited(key, monkeypatch):
    monkeypatch.setattr(fused, "SPARSE", 1.1)
    agrees(key)
