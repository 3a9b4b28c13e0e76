from __future__ import annotations

import argparse

import pytest
import torch
from torch import Tensor

import hub_cases
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.models.convert import convert_checkpoint
from counterfoil.models.gpo import GPO, NAMES, gpo_from_checkpoint
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions

THEIRS = {ours: theirs for theirs, ours in NAMES.prefixes.items()}


def host(*, bert: str | None = None, grid: bool = False) -> GPO:
    torch.manual_seed(0)
    image = Regions(features=6, width=4) if grid else MLPRegions(features=6, width=4, inner=3)
    text = BertTextTower(name=bert, width=4) if bert else GRU(words=9, word_width=3, width=4)
    made = GPO(image=image, text=text, positions=7, hidden=5)
    for tensor in made.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape))
    return made.eval()


def authors(made: GPO) -> dict[str, Tensor]:
    """Its tensors under the authors' names, with what they save and never use."""
    state: dict[str, Tensor] = {"txt_enc.bert.embeddings.position_ids": torch.arange(3)}
    for name, value in made.state_dict().items():
        ours = next(prefix for prefix in THEIRS if name.startswith(prefix))
        state[THEIRS[ours] + name.removeprefix(ours)] = value
        if ours == "image.norm.":
            state[name.replace("image.norm.", "img_enc.mlp.bns.1.")] = value
    return state


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("pretrained", [False, True])
def test_every_tensor_finds_its_place(tmp_path, grid, pretrained):
    bert = hub_cases.bert(tmp_path) if pretrained else None
    made = host(bert=bert, grid=grid)
    built = gpo_from_checkpoint(Checkpoint(authors(made)), bert=bert or "").build()
    assert isinstance(built.image, Regions if grid else MLPRegions)
    for name, value in made.state_dict().items():
        assert torch.equal(built.state_dict()[name], value), name


def test_a_file_with_options(tmp_path):
    made = host()
    sides: list[dict[str, Tensor]] = [{}, {}]
    for name, value in authors(made).items():
        side, _, rest = name.partition(".")
        sides[side == "txt_enc"][f"module.{rest}" if rest.startswith("fc.") else rest] = value
    opt = argparse.Namespace(no_imgnorm=True, no_txtnorm=False)
    torch.save({"epoch": 1, "model": sides, "opt": opt}, tmp_path / "best.pth.tar")
    built = convert_checkpoint(tmp_path / "best.pth.tar", "gpo").build()
    assert isinstance(built, GPO)
    assert built.normalise == (False, True)
    assert torch.equal(built.image.fc.weight, made.image.fc.weight)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("img_enc.backbone.conv1.weight", "'img_enc.backbone.conv1.weight' .* trained on pixels"),
        ("img_enc.Rs_GCN_1.g.weight", "is no tensor of a GPO checkpoint on features$"),
        ("img_enc.fc.weight", r"has no 'image_pool\.score\.weight'; is it another system's"),
    ],
)
def test_tensors_of_something_else_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        NAMES.renamed({name: torch.zeros(1)})


@pytest.mark.parametrize("lost", ["text.embed.weight", "image.fc.weight"])
def test_a_tensor_that_is_missing_is_named(lost):
    state = authors(host())
    del state[next(name for name in state if name.endswith(lost.partition(".")[2]))]
    with pytest.raises(ValueError, match=f"has no '{lost}'"):
        NAMES.renamed(state)
