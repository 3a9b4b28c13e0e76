"""GPO's checkpoints on pixels against their network, written again from its tensors alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, max_pool2d

from counterfoil.core.config import config_from_dict
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.tokenizers import SPECIAL
from counterfoil.model import load_model
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.cli.convert import convert as convert_command
from counterfoil.papers.models.gpo import GPO, NAMES, gpo_from_checkpoint
from counterfoil.papers.models.grid import ResnetGridTower

WIDTH, WORDS, STEM, DEPTHS = 6, [*SPECIAL, "a", "dog"], 4, (2, 1, 2, 1)
BASE = {1: "base.4", 2: "base.5", 3: "base.6", 4: "top.0"}
SOURCES = {"detector": 1, "imagenet": 1, "wsl": 2}  # groups
State = dict[str, Tensor]


def backbone(groups: int) -> State:
    """Tensors by the authors' names: half of them occur twice."""
    draw = torch.Generator().manual_seed(0)
    state: State = {}

    def layer(name: str, norm: str, *shape: int) -> None:
        state[f"{name}.weight"] = torch.randn(*shape, generator=draw) / np.prod(shape[1:]) ** 0.5
        for part in ("weight", "bias", "running_mean"):
            state[f"{norm}.{part}"] = torch.randn(shape[0], generator=draw) * 0.3 + (part[0] == "w")
        state[f"{norm}.running_var"] = torch.rand(shape[0], generator=draw) + 0.5
        state[f"{norm}.num_batches_tracked"] = torch.tensor(3)

    layer("base.0", "base.1", STEM, 3, 7, 7)
    before = STEM
    for stage, depth in enumerate(DEPTHS):
        middle, after = STEM * groups * 2**stage, 4 * STEM * 2**stage
        for block in range(depth):
            place = f"{BASE[stage + 1]}.{block}"
            layer(f"{place}.conv1", f"{place}.bn1", middle, before, 1, 1)
            layer(f"{place}.conv2", f"{place}.bn2", middle, middle // groups, 3, 3)
            layer(f"{place}.conv3", f"{place}.bn3", after, middle, 1, 1)
            if not block:
                layer(f"{place}.downsample.0", f"{place}.downsample.1", after, before, 1, 1)
            before = after
    again = {f"resnet.{name}": value for name, value in state.items()}
    return {f"img_enc.backbone.{name}": value for name, value in (state | again).items()}


def feature_map(state: State, groups: int, pixels: Tensor) -> Tensor:
    """Their forward pass: caffe's form for their own ResNet, torchvision's for a ResNeXt."""

    def norm(name: str, x: Tensor) -> Tensor:
        of = {part: state[f"img_enc.backbone.{name}.{part}"] for part in PARTS}
        return batch_norm(x, of["running_mean"], of["running_var"], of["weight"], of["bias"])

    def conv(name: str, x: Tensor, **how: int) -> Tensor:
        return conv2d(x, state[f"img_enc.backbone.{name}.weight"], **how)

    x = norm("base.1", conv("base.0", pixels, stride=2, padding=3)).relu()
    caffe = groups == 1
    x = max_pool2d(x, 3, 2, 0 if caffe else 1, ceil_mode=caffe)
    for stage, depth in enumerate(DEPTHS, 1):
        for block in range(depth):
            place, stride = f"{BASE[stage]}.{block}", 2 if stage > 1 and not block else 1
            first, second = (stride, 1) if caffe else (1, stride)
            out = norm(f"{place}.bn1", conv(f"{place}.conv1", x, stride=first)).relu()
            out = conv(f"{place}.conv2", out, stride=second, padding=1, groups=groups)
            out = norm(f"{place}.bn3", conv(f"{place}.conv3", norm(f"{place}.bn2", out).relu()))
            if not block:
                x = norm(f"{place}.downsample.1", conv(f"{place}.downsample.0", x, stride=stride))
            x = (x + out).relu()
    return x


PARTS = ("weight", "bias", "running_mean", "running_var")


def above() -> GPO:
    """The model that reads the cells of the grid."""
    torch.manual_seed(1)
    tower = Regions(features=4 * STEM * 8, width=WIDTH)
    made = GPO(image=tower, text=GRU(words=len(WORDS), word_width=3, width=WIDTH), positions=7)
    return made.eval()


def checkpoint(groups: int) -> tuple[State, GPO]:
    made = above()
    theirs = {ours: prefix for prefix, ours in NAMES.prefixes.items()}
    state = backbone(groups)
    for name, value in made.state_dict().items():
        ours = next(prefix for prefix in theirs if name.startswith(prefix))
        full = theirs[ours] + name.removeprefix(ours)
        state[full.replace("img_enc.", "img_enc.image_encoder.")] = value
    return state, made


def expected(state: State, made: GPO, groups: int, pixels: Tensor) -> Tensor:
    cells = feature_map(state, groups, pixels).flatten(2).transpose(1, 2)
    mask = torch.ones(cells.shape[:2], dtype=torch.bool)
    return made.encode_images(ModalityBatch(torch.arange(len(cells)), cells, mask)).tokens


def options(source: str, **more: Any) -> dict[str, Any]:
    return {"precomp_enc_type": "backbone", "backbone_source": source, **more}


@pytest.mark.parametrize(("source", "groups"), SOURCES.items())
@pytest.mark.parametrize("side", [64, 70])
@torch.no_grad()
def test_the_network_is_theirs(source, groups, side):
    state, made = checkpoint(groups)
    converted = gpo_from_checkpoint(Checkpoint(state, options(source)))
    built = converted.build()
    assert isinstance(built.image, ResnetGridTower)
    assert config_from_dict(converted.model.to_dict()) == converted.model
    pixels = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(2))
    found = built.encode_images(ModalityBatch(torch.arange(2), pixels, torch.ones(2, 1).bool()))
    theirs = pixels.flip(1) if source == "detector" else pixels  # theirs reads blue first
    torch.testing.assert_close(found.tokens, expected(state, made, groups, theirs))


def test_the_published_sizes():
    """A ResNet-101 and a ResNeXt-101 32x8d, by their numbers of parameters in torchvision."""
    for sizes, millions in (({}, 42.5), ({"middle": 256, "groups": 32, "strides": "middle"}, 86.7)):
        with torch.device("meta"):
            tower = ResnetGridTower(**sizes)
        count = sum(p.numel() for p in tower.body.parameters())
        assert count / 1e6 == pytest.approx(millions, abs=0.05)
        assert tower.fc.in_features == 2048


@torch.no_grad()
def test_pictures_are_prepared_as_theirs_are(tmp_path: Path):
    state, made = checkpoint(1)
    sides = [{}, {}]
    for name, value in state.items():
        sides[name.startswith("txt")][f"module.{name.partition('.')[2]}"] = value
    saved = {
        "model": sides,
        "opt": argparse.Namespace(**options("detector", input_scale_factor=0.25)),
    }
    torch.save(saved, tmp_path / "a.pth")
    index = {word: n for n, word in enumerate(WORDS)}
    (tmp_path / "vocab.json").write_text(json.dumps({"word2idx": index}))
    convert_command("gpo", tmp_path / "a.pth", tmp_path / "vocab.json", tmp_path / "out")
    opened = load_model(tmp_path / "out")
    rows = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    items = opened.processor.process_images([Image.fromarray(rows)])
    blue_first = torch.from_numpy(rows[:, :, ::-1].astype(np.float32))
    theirs = blue_first - torch.tensor([102.9801, 115.9465, 122.7717])
    wanted = expected(state, made, 1, theirs.permute(2, 0, 1)[None])
    found = opened.model.encode_images(items).tokens
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert opened.processor.image_processor.size == 64
    image = opened.model.image
    assert (image.smallest, image.mirror, image.cell_drop) == (0.6, 0.5, 0.2)
    assert isinstance(found, Tensor)
    assert isinstance(opened.model.image(items), Embeddings)


def test_what_a_checkpoint_on_pixels_needs():
    state, _ = checkpoint(1)
    with pytest.raises(ValueError, match="was trained on pixels and has no option backbone_source"):
        gpo_from_checkpoint(Checkpoint(state))
    less = {name: value for name, value in state.items() if ".top.0.0.conv2" not in name}
    with pytest.raises(
        ValueError, match=r"GPO checkpoint has no 'image.body.layer4.0.conv2.weight'"
    ):
        gpo_from_checkpoint(Checkpoint(less, options("detector")))
