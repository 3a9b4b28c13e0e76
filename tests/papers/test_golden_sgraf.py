"""SGRAF (https://github.com/Paranioar/SGRAF, a19d1a9). Every key of the folder is run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.checkpoints import THIRD, Checkpoint
from counterfoil.models.layers.cross_attention import attended_vectors
from counterfoil.papers.models.sgraf import NAMES, SGRAF, sgraf_from_checkpoint

SYSTEM = "sgraf"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
TRIPLETS = {"sum": SumTripletLoss, "hardest": HardestTripletLoss}


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def model(module: str = "sgr") -> SGRAF:
    """The authors' model, without dropout."""
    named = {"img_enc": "img_enc.", "txt_enc": "txt_enc.", module: THIRD}
    state = {}
    for name, value in golden_scores.checkpoint(SYSTEM).state.items():
        side, _, rest = name.partition(".")
        if side in named:
            state[named[side] + rest] = value
    made = sgraf_from_checkpoint(Checkpoint(state, {}))
    smooth = golden().meta["config"]["smooth"]
    built = replace(made, model=made.model.replace(lambda_softmax=smooth)).build()
    assert isinstance(built, SGRAF)
    for part in (built.image_pool, built.text_pool):
        part.dropout.p = 0.0
    return built


def bags() -> tuple[Embeddings, Embeddings]:
    """The embeddings that the kernel cases start from, with garbage as padding."""
    inputs = golden().inputs
    regions, words = (inputs[f"kernel_{name}"].clone() for name in ("regions", "words"))
    mask = torch.arange(words.shape[1]) < inputs["kernel_lengths"].unsqueeze(1)
    words = words.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    full = torch.ones(regions.shape[:2], dtype=torch.bool)
    return Embeddings(regions.requires_grad_(), full), Embeddings(words, mask)


def theirs(name: str) -> str:
    """Our name of one of their parameters of the similarity module."""
    ours = NAMES.ours(THIRD + name)
    assert ours is not None
    return ours


def kernel(module: str, mode: str, what: str) -> Tensor:
    host = model(module).train(mode == "train_nodrop")
    regions, words = bags()
    scores = host.score_matrix(host.pool_images(regions), host.pool_texts(words))
    scores = host.loss_scores(scores)  # theirs are the sigmoid
    if what == "scores":
        return scores
    if what.startswith("after/"):
        return dict(host.named_buffers())[theirs(what.removeprefix("after/"))]
    (scores * golden().inputs["score_weights"]).sum().backward()
    if what.startswith("grad/"):
        return dict(host.named_parameters())[theirs(what.removeprefix("grad/"))].grad
    return {"grad_regions": regions.tokens, "grad_words": words.tokens}[what].grad


def loss(kind: str, scores: Tensor) -> Tensor:
    term = TRIPLETS[kind](margin=golden().meta["config"]["margin"])
    eye = torch.eye(len(scores), dtype=torch.bool)
    return term(Scores({"inference": ScoreMatrix(scores, eye, scores.diagonal())}))


def full(module: str, what: str) -> Tensor:
    host = model(module).train()
    values = golden().inputs["full_images"]
    mask = torch.ones(values.shape[:2], dtype=torch.bool)
    items = ModalityBatch(torch.arange(len(values)), values, mask)
    texts = host.encode_texts(golden_scores.captions(golden().inputs))
    scores = host.loss_scores(host.score_matrix(host.encode_images(items), texts))
    if what == "scores":
        return scores
    value = loss("hardest", scores)
    if what == "loss":
        return value
    value.backward()
    name = what.removeprefix("grad/")
    ours = NAMES.ours(name) if name.startswith(("img_enc", "txt_enc")) else theirs(name)
    return dict(host.named_parameters())[ours].grad


def part(what: str) -> Tensor:
    regions, words = bags()
    if what == "scan_attention":
        first = words.tokens[:1, : int(words.mask[0].sum())]
        return normalize(attended_vectors(regions, first, model().head), dim=-1)[:, 0]
    module, side = what.split("/")
    host = model(module)
    if side == "image_global":
        return host.pool_images(regions).tokens[:, 0]
    return host.pool_texts(words.rows(slice(0, 1))).tokens[:, 0]


def ours(key: str) -> Tensor:
    if match := re.fullmatch(r"(sgr|saf)/(eval|train_nodrop)/(.+)", key):
        return kernel(*match.groups())
    if match := re.fullmatch(r"part/(.+)", key):
        return part(match[1])
    if match := re.fullmatch(r"loss/(\w+)/(value|grad_scores)", key):
        scores = golden().inputs["loss_scores"].requires_grad_()
        value = loss(match[1], scores)
        return value if match[2] == "value" else torch.autograd.grad(value, scores)[0]
    if match := re.fullmatch(r"full/(sgr|saf)/(.+)", key):
        return full(*match.groups())
    if key == "sgraf/eval/scores":  # two models, averaged
        return torch.stack([kernel(name, "eval", "scores") for name in ("sgr", "saf")]).mean(0)
    if key == "img/emb":
        encoded = model().encode_images(golden_scores.images(golden().inputs))
        return encoded.tokens[:, 1:]
    assert key == "txt/emb", f"the golden folder has {key!r}, which no test understands"
    texts = model().encode_texts(golden_scores.captions(golden().inputs))
    return texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)[:, 1:]


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden(), key, ours(key))
