"""X-Dim (https://github.com/CrossmodalGroup/X-Dim, e2432ed). Every key of the folder is run."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.checkpoints import THIRD, Checkpoint
from counterfoil.papers.models.xdim import NAMES, XDim, xdim_from_checkpoint
from papers.released_bugs import unmasked

SYSTEM = "xdim"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
TRIPLETS = {"sum": SumTripletLoss, "hardest": HardestTripletLoss}
OVERRIDES = {  # temp_learnable, sim_map, temp_scale
    "sim_soft": (1.0, 0.3, 1.5),
    "sim_default": (4.0, 2.5, math.log(1 / 0.07)),
}


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


@pytest.fixture
def bert(tmp_path_factory) -> Path:
    """A folder that says what the tiny BERT looks like."""
    folder = tmp_path_factory.mktemp("bert")
    plain = golden().meta["config"]["tiny_bert"] | {"model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(plain))
    return folder


def renamed(name: str) -> str:
    return name.replace("sim_vec.", THIRD)


def model(bert: Path) -> XDim:
    state = {renamed(name): value for name, value in golden_scores.checkpoint(SYSTEM).state.items()}
    built = xdim_from_checkpoint(Checkpoint(state, {}), bert=str(bert)).build()
    assert isinstance(built, XDim)
    return built


def upto(lengths: Tensor, longest: int) -> Tensor:
    return torch.arange(longest) < lengths.unsqueeze(1)


def images() -> ModalityBatch:
    values = golden().inputs["images"]
    mask = upto(golden().inputs["image_lengths"], values.shape[1])
    return ModalityBatch(torch.arange(len(values)), values, mask)


def bags() -> tuple[Embeddings, Embeddings]:
    """The embeddings that the kernel cases start from, with garbage as padding."""
    inputs = golden().inputs
    regions, words = (inputs[f"kernel_{name}"].clone() for name in ("regions", "words"))
    mask = upto(inputs["kernel_lengths"], words.shape[1])
    words = words.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    full = torch.ones(regions.shape[:2], dtype=torch.bool)
    return Embeddings(regions.requires_grad_(), full), Embeddings(words, mask)


def parameter(host: nn.Module, name: str) -> Tensor:
    return dict(host.named_parameters())[NAMES.ours(renamed(name))].grad


def kernel(bert: Path, case: str, what: str) -> Tensor:
    host = model(bert)
    if case in OVERRIDES:
        dependencies = host.dependencies
        places = (dependencies.sharpness, dependencies.deviations, host.temperature)
        for place, value in zip(places, OVERRIDES[case], strict=True):
            nn.init.constant_(place, value)
    regions, words = bags()
    scores = host.score_matrix(regions, words)
    if what == "scores":
        return scores
    (scores * golden().inputs["score_weights"]).sum().backward()
    if what.startswith("grad/"):
        return parameter(host, "sim_vec." + what.removeprefix("grad/"))
    return {"grad_regions": regions.tokens, "grad_words": words.tokens}[what].grad


def loss(kind: str, scores: Tensor) -> Tensor:
    term = TRIPLETS[kind](margin=golden().meta["config"]["margin"])
    eye = torch.eye(len(scores), dtype=torch.bool)
    return term(Scores({"inference": ScoreMatrix(scores, eye, scores.diagonal())}))


def full(bert: Path, what: str) -> Tensor:
    host = model(bert)
    host.image.train()
    values = golden().inputs["full_images"]
    mask = torch.ones(values.shape[:2], dtype=torch.bool)
    items = ModalityBatch(torch.arange(len(values)), values, mask)
    texts = host.encode_texts(golden_scores.captions(golden().inputs))
    scores = host.score_matrix(host.encode_images(items), texts)
    if what == "scores":
        return scores
    value = loss("hardest", scores)
    if what == "loss":
        return value
    value.backward()
    return parameter(host, what.removeprefix("grad/"))


def embedded(bert: Path, mode: str, what: str) -> Tensor:
    """The image encoder; in training, padding counts in the statistics, as released (X2)."""
    host = model(bert)
    host.image.train(mode == "train")
    tokens = host.encode_images(unmasked(images())).tokens
    if what == "emb":
        return tokens
    name = what.removeprefix("after/mlp.bns.0.")
    return dict(host.image.named_buffers())[f"norm.{name}"]


def ours(key: str, bert: Path) -> Tensor:
    if match := re.fullmatch(r"(sim\w*)/(.+)", key):
        return kernel(bert, *match.groups())
    if match := re.fullmatch(r"img/(eval|train)/(.+)", key):
        return embedded(bert, *match.groups())
    if match := re.fullmatch(r"dims/(weights|diagonal)", key):
        matrix = model(bert).dependencies()
        return matrix if match[1] == "weights" else matrix.sum(0)
    if match := re.fullmatch(r"loss/(\w+)/(value|grad_scores)", key):
        scores = golden().inputs["loss_scores"].requires_grad_()
        value = loss(match[1], scores)
        return value if match[2] == "value" else torch.autograd.grad(value, scores)[0]
    if match := re.fullmatch(r"full/(.+)", key):
        return full(bert, match[1])
    texts = model(bert).encode_texts(golden_scores.captions(golden().inputs))
    if key == "compat_padding/scores":
        host = model(bert)
        return host.score_matrix(host.encode_images(unmasked(images())), texts)
    assert key == "txt_bert/emb_valid", f"the golden folder has {key!r}, which no test understands"
    return texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key, bert):
    golden_scores.agrees(golden(), key, ours(key, bert).view(golden().outputs[key].shape))


def test_unpadded_regions_do_not_depend_on_padding(bert):
    host = model(bert)
    texts = host.encode_texts(golden_scores.captions(golden().inputs))
    few = images().rows(images().mask.sum(1).argsort()[:1])
    cut = int(few.mask.sum())
    short = ModalityBatch(few.ids, few.values[:, :cut], few.mask[:, :cut])
    scores = [host.score_matrix(host.encode_images(items), texts) for items in (few, short)]
    torch.testing.assert_close(*scores)
