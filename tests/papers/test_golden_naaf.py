"""NAAF (https://github.com/CrossmodalGroup/NAAF, cafcd6f). Every key of the folder is run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.models.layers import fused
from counterfoil.models.layers.cross_attention import AttentionBlock, CrossAttention
from counterfoil.papers.models.naaf import NAAF, naaf_from_checkpoint
from papers.released_bugs import mine_by_caption

SYSTEM = "naaf"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
TRIPLETS = {"sum": SumTripletLoss, "hardest": HardestTripletLoss}


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def model(image: str = "img_enc", text: str = "txt_enc", **options: object) -> NAAF:
    named = {image: "img_enc", text: "txt_enc"}
    state = {}
    for name, value in golden_scores.checkpoint(SYSTEM).state.items():
        side, _, rest = name.partition(".")
        if side in named:
            state[f"{named[side]}.{rest}"] = value
    config = golden().meta["config"]
    options = {"lambda_softmax": config["lambda_softmax"], "alpha": config["alpha"]} | options
    made = naaf_from_checkpoint(Checkpoint(state, options))
    built = replace(made, model=made.model.replace(intra_lambda=config["intra_lambda"])).build()
    assert isinstance(built, NAAF)
    return built


def bags(images: str, texts: str, lengths: str) -> tuple[Embeddings, Embeddings]:
    inputs = golden().inputs
    regions = inputs[images].clone().requires_grad_()
    mask = torch.arange(inputs[texts].shape[1]) < inputs[lengths].unsqueeze(1)
    words = inputs[texts].masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    full = torch.ones(regions.shape[:2], dtype=torch.bool)
    return Embeddings(regions, full), Embeddings(words, mask)


def weighed(scores: Tensor, key: str, what: str, images: Embeddings, texts: Embeddings) -> Tensor:
    if what == "scores":
        return scores
    leaf = {"grad_regions": images.tokens, "grad_words": texts.tokens}[what]
    return torch.autograd.grad((scores * golden().inputs[key]).sum(), leaf)[0]


def kernel(mode: str, index: int, what: str) -> Tensor:
    threshold = float(golden().inputs["thresholds"][index])
    host = model(thres=threshold, thres_safe=threshold).train(mode == "train")
    images, texts = bags("kernel_regions", "kernel_words", "kernel_lengths")
    scores = host.score_matrix(images, texts)
    return weighed(scores, "score_weights", what, images, texts)


def mined(carried: str, what: str) -> Tensor:
    thresholds = golden().inputs["mining_carry"] if carried == "carry" else torch.zeros(2)
    host = model(thres=float(thresholds[0]), thres_safe=float(thresholds[1])).train()
    images, texts = bags("mining_regions", "mining_words", "mining_lengths")
    trace = mine_by_caption(host, images, texts)
    if what == "thresholds":
        return trace.thresholds
    if what == "correct":
        return trace.correct.long()
    if what == "stats":
        values = [(x.mean(), x.std()) for x in (trace.matched, trace.mismatched)]
        return torch.stack([number for pair in values for number in pair])
    return weighed(trace.scores, "mining_score_weights", what, images, texts)


def attention(kind: str) -> Tensor:
    """The attention of caption 0: (I, L, R) over regions, or (1, L, L) between its words."""
    inputs, config = golden().inputs, golden().meta["config"]
    words = inputs["kernel_words"][0, : inputs["kernel_lengths"][0]]
    if kind == "intra":
        return (config["intra_lambda"] * words @ words.T).softmax(1)[None]
    affinity = torch.einsum("ld,ird->lir", words, inputs["kernel_regions"])[None]
    if kind == "relevance":
        head = CrossAttention("t2i", "clipped_l2norm", config["lambda_softmax"])
        return head.weights(AttentionBlock(affinity))[0].transpose(0, 1)
    above = affinity[0] - inputs["thresholds"][1]
    weight = (config["lambda_softmax"] * above).exp() * (above > 0)
    return (weight / (weight.sum(2, keepdim=True) + 1e-8)).transpose(0, 1)


def loss(kind: str, scores: Tensor) -> Tensor:
    term = TRIPLETS[kind](margin=golden().meta["config"]["margin"])
    eye = torch.eye(len(scores), dtype=torch.bool)
    return term(Scores({"inference": ScoreMatrix(scores, eye, scores.diagonal())}))


def full(text: str, what: str) -> Tensor:
    host = model(text=text).train()
    values = golden().inputs["full_images"]
    mask = torch.ones(values.shape[:2], dtype=torch.bool)
    items = ModalityBatch(torch.arange(len(values)), values, mask)
    captions = golden_scores.captions(golden().inputs)
    scores = host.score_matrix(host.encode_images(items), host.encode_texts(captions))
    if what == "scores":
        return scores
    value = loss("hardest", scores)
    if what == "loss":
        return value
    value.backward()
    name = what.removeprefix("grad/").replace("embed.glove", "embed")
    name = name.replace("img_enc.", "image.").replace(f"{text}.", "text.")
    return dict(host.named_parameters())[name].grad


def ours(key: str) -> Tensor:
    if match := re.fullmatch(r"(train|test)/thr(\d)/(\w+)", key):
        return kernel(match[1], int(match[2]), match[3])
    if match := re.fullmatch(r"mining_(carry|zero)_released/(\w+)", key):
        return mined(*match.groups())
    if match := re.fullmatch(r"part/(\w+)_attention", key):
        return attention(match[1])
    if match := re.fullmatch(r"loss/(\w+)/(value|grad_scores)", key):
        scores = golden().inputs["loss_scores"].requires_grad_()
        value = loss(match[1], scores)
        return value if match[2] == "value" else torch.autograd.grad(value, scores)[0]
    if match := re.fullmatch(r"full/(txt_enc\w*)/(.+)", key):
        return full(*match.groups())
    if key.startswith("img"):
        host = model(image="img_enc_weightnorm" if "weightnorm" in key else "img_enc")
        return host.encode_images(golden_scores.images(golden().inputs)).tokens
    assert key.startswith("txt"), f"the golden folder has {key!r}, which no test understands"
    host = model(text="txt_enc_glove" if "glove" in key else "txt_enc")
    texts = host.encode_texts(golden_scores.captions(golden().inputs))
    return texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden(), key, ours(key))


@pytest.mark.parametrize("key", [k for k in golden_vectors.keys(SYSTEM) if "grad_" in k])
def test_gradients_agree_when_only_some_pairs_are_visited(key, monkeypatch):
    monkeypatch.setattr(fused, "SPARSE", 1.1)
    golden_scores.agrees(golden(), key, ours(key))
