"""SCAN against vectors of the authors' code. Every key that the folder holds is run."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.layers import fused
from counterfoil.papers.models.scan import scan_from_checkpoint

SYSTEM = "scan"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
TERMS = {"mh": HardestTripletLoss, "sh": SumTripletLoss}


def build(**options):
    """The authors' defaults of a direction, with its two temperatures."""
    golden = golden_scores.load(SYSTEM)
    options = {**golden.meta["config"][options.get("cross_attn", "t2i")], **options}
    return golden, scan_from_checkpoint(golden_scores.checkpoint(SYSTEM, **options)).build()


def embedded(key: str, **options) -> Tensor:
    golden, model = build(**options)
    if key.startswith("img_emb"):
        return model.encode_images(golden_scores.images(golden.inputs)).tokens
    texts = model.encode_texts(golden_scores.captions(golden.inputs))
    return texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)


def kernel(direction: str, norm: str, how: str, what: str) -> Tensor:
    golden, model = build(cross_attn=direction, raw_feature_norm=norm, agg_func=how)
    images, texts = golden_scores.kernel(golden.inputs)
    scores = model.score_matrix(images, texts)
    if what == "scores":
        return scores
    leaf = {"grad_regions": images, "grad_words": texts}[what].tokens
    return torch.autograd.grad((scores * golden.inputs["score_weights"]).sum(), leaf)[0]


def attention(direction: str, what: str, caption: int) -> Tensor:
    golden, model = build(cross_attn=direction)
    images, texts = golden_scores.kernel(golden.inputs)
    one = texts.rows(torch.full((len(images),), caption))
    maps = model.word_region_maps(images, one)[:, : int(one.mask[0].sum())]  # (I, L, R)
    words = one.tokens[:, : maps.shape[1]]
    if direction == "t2i":
        return maps.transpose(1, 2) if what == "attn" else maps @ images.tokens
    return maps if what == "attn" else maps.transpose(1, 2) @ words


def trained(direction: str, how: str, what: str) -> Tensor:
    golden, model = build(cross_attn=direction, agg_func=how)
    images = model.encode_images(golden_scores.images(golden.inputs))
    texts = model.encode_texts(golden_scores.captions(golden.inputs))
    if what == "scores":
        return model.score_matrix(images, texts)
    n = golden.meta["config"]["n_loss_batch"]
    scores = model.score_matrix(images.rows(slice(n)), texts.rows(slice(n)))
    anchors = ScoreMatrix(scores, torch.eye(n, dtype=torch.bool), scores.diagonal())
    kind = "sh" if what.endswith("sh") else "mh"
    term = TERMS[kind](margin=golden.meta["config"]["margin"], reduction="sum")
    value = term(Scores({"inference": anchors}))
    if what in TERMS:
        return value
    value.backward()
    if what == "grad_norm":
        return torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    _, _, name = what.partition("grad_mh/")
    ours = name.replace("img_enc.", "image.").replace("txt_enc.", "text.")
    return dict(model.named_parameters())[ours].grad


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if key in ("img_emb", "cap_emb"):
        return embedded(key)
    if key in ("img_emb_no_imgnorm", "cap_emb_no_txtnorm"):
        return embedded(key, **{key.removeprefix("img_emb_").removeprefix("cap_emb_"): True})
    if found := re.fullmatch(r"kernel/(t2i|i2t)/(attn|attended)_caption(\d+)", key):
        return attention(found[1], found[2], int(found[3]))
    if found := re.fullmatch(r"kernel/(\w+)/(\w+)/(\w+)/(scores|grad_regions|grad_words)", key):
        return kernel(*found.groups())
    found = re.fullmatch(r"loss/(\w+)/(\w+)/(mh|sh|scores|grad_norm|grad_mh/.+)", key)
    assert found, f"the golden folder has {key!r}, which no test understands"
    return trained(*found.groups())


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden_scores.load(SYSTEM), key, ours(key))


@pytest.mark.parametrize("key", [k for k in golden_vectors.keys(SYSTEM) if "grad_" in k])
def test_gradients_agree_when_only_some_pairs_are_visited(key, monkeypatch):
    monkeypatch.setattr(fused, "SPARSE", 1.1)
    golden_scores.agrees(golden_scores.load(SYSTEM), key, ours(key))
