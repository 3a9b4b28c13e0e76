"""USER (https://github.com/zhangy0822/USER, aa48a85). Every key of the folder is run."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, Role, ScoreMatrix, Scores
from counterfoil.losses.queue import MomentumQueueLoss, UTOLoss
from counterfoil.models.layers.towers import MLPRegions
from counterfoil.negatives.momentum import KeyQueue, move_towards
from counterfoil.papers.models.user import NAMES, EnhancedRegions

SYSTEM = "user"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def ours_of(name: str) -> str:
    """Our name of one of their parameters of the pooling, inside `EnhancedRegions`."""
    ours = NAMES.ours(f"img_enc.v_sa.{name}")
    assert ours is not None
    return ours.removeprefix("image.")


def tower(prefix: str = "v_sa.") -> EnhancedRegions:
    state = load_file(golden_vectors.folder(SYSTEM) / "state.safetensors")
    config = golden().meta["config"]
    host = EnhancedRegions(
        tower=MLPRegions(features=config["img_dim"], width=config["embed_size"]),
        features=config["img_dim"],
        regions=config["num_region"],
        sharpness=config["attention_lamda"],
        dropout=0.0,
    )
    named = {ours_of(n.removeprefix(prefix)): v for n, v in state.items() if n.startswith(prefix)}
    missing = host.load_state_dict(named, strict=False)
    assert not missing.unexpected_keys
    assert all(name.startswith("tower.") for name in missing.missing_keys)
    return host


def enhanced(mode: str, what: str) -> Tensor:
    regions = golden().inputs["regions"].clone().requires_grad_()
    mask = torch.ones(regions.shape[:2], dtype=torch.bool)
    host = tower().train(mode == "train_nodrop")
    values = host.enhance(ModalityBatch(torch.arange(len(regions)), regions, mask)).values
    if what == "regions":
        return values
    return torch.autograd.grad((values * golden().inputs["region_weights"]).sum(), regions)[0]


def losses(what: str, images: Tensor, captions: Tensor) -> Tensor:
    inputs, config = golden().inputs, golden().meta["config"]
    settings = {"sharpness": config["mu"], "bar": config["gama"]}
    grid = images @ captions.T
    matrix = ScoreMatrix(grid, torch.eye(len(grid), dtype=torch.bool), grid.diagonal())
    pairs = {
        Role.QUEUE_TEXT: images @ inputs["caption_queue"],
        Role.QUEUE_IMAGE: captions @ inputs["image_queue"],
        Role.KEY_TEXT: (images * inputs["caption_key"]).sum(1, keepdim=True),
        Role.KEY_IMAGE: (captions * inputs["image_key"]).sum(1, keepdim=True),
    }
    record = Scores({"inference": matrix}, pairs)
    batch, queue = UTOLoss(**settings)(record), MomentumQueueLoss(**settings)(record)
    return {"batch": batch, "queue": queue, "total": config["loss_lamda"] * batch + queue}[what]


def judged(what: str, leaf: str) -> Tensor:
    images, captions = (
        golden().inputs[f"{name}_emb"].clone().requires_grad_() for name in ("image", "caption")
    )
    value = losses(what, images, captions)
    if leaf == "value":
        return value
    return torch.autograd.grad(value, {"grad_image": images, "grad_caption": captions}[leaf])[0]


def queued(what: str) -> Tensor:
    """Their queues are (D, K) tables with a pointer."""
    inputs, pointer = golden().inputs, golden().meta["config"]["queue_pointer"]
    if what == "pointer":
        size = golden().meta["config"]["moco_M"]
        return torch.tensor([(pointer + len(inputs["image_key"])) % size])
    side = what.removesuffix("_queue")
    queue = KeyQueue(golden().meta["config"]["moco_M"])
    for name, values in (("queue", inputs[f"{side}_queue"].T), ("key", inputs[f"{side}_key"])):
        if name == "key":
            queue.pointer.fill_(pointer)
        mask = torch.ones(len(values), 1, dtype=torch.bool)
        queue.append(Embeddings(values.unsqueeze(1), mask), torch.arange(len(values)))
    return queue.tokens[:, 0].T


def moved(name: str) -> Tensor:
    key, trained = tower("key.v_sa."), tower()
    move_towards(key, trained, golden().meta["config"]["moco_r"])
    return key.state_dict()[ours_of(name)]


def ours(key: str) -> Tensor:
    if match := re.fullmatch(r"enhance/(eval|train_nodrop)/(\w+)", key):
        return enhanced(*match.groups())
    if match := re.fullmatch(r"loss/(batch|queue|total)/(\w+)", key):
        return judged(*match.groups())
    if match := re.fullmatch(r"queue/after/(\w+)", key):
        return queued(match[1])
    match = re.fullmatch(r"momentum/after/(.+)", key)
    assert match, f"the golden folder has {key!r}, which no test understands"
    return moved(match[1])


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden(), key, ours(key))
