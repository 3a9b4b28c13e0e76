from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.training.checkpoint import BestEpoch, CheckpointFolder, TrainProgress, TrainState
from counterfoil.training.config import WeightAverage


def moving(seed: int = 0) -> TrainState:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[2].bias.requires_grad_(False)
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [{"params": parameters[1:]}, {"params": parameters[:1], "lr": 0.5}]
    optimiser = torch.optim.AdamW(groups, lr=0.1)
    return TrainState(module, optimiser, WeightAverage(module, 0.5).shadow)


def walk(at: TrainState, steps: int) -> list[float]:
    """Losses of a few steps with random inputs."""
    losses = []
    for _ in range(steps):
        loss = at.step(torch.rand(5, 3) * random.random()).square().sum()
        at.optimiser.zero_grad()
        loss.backward()
        at.optimiser.step()
        losses.append(loss.item())
    return losses


def test_everything_comes_back(tmp_path: Path) -> None:
    best = BestEpoch(3, 1, 210.5, {"rsum": 210.5})
    progress = TrainProgress(7, 12.5, 99, best, {"loss": 0.1}, 3, 5, True)
    at, checkpoints = moving(), CheckpointFolder(tmp_path, "abc")
    walk(at, 3)
    at.average["0.weight"].fill_(4.0)
    checkpoints.save(at, progress)
    wanted = walk(at, 4)
    again = moving(seed=9)
    random.seed(5)
    assert checkpoints.restore(again) == progress
    assert again.average["0.weight"].eq(4.0).all()
    assert walk(again, 4) == wanted
    assert [group["lr"] for group in again.optimiser.param_groups] == [0.1, 0.5]


def test_nothing_there(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "none", "abc").restore(moving()) is None


def test_the_best_weights(tmp_path: Path) -> None:
    checkpoints, at = CheckpointFolder(tmp_path, "abc"), moving()
    first, second = BestEpoch(3, 1, 1.0, {"rsum": 1.0}), BestEpoch(6, 2, 2.0, {"rsum": 2.0})
    checkpoints.save_best(first, {"w": torch.ones(2)})
    checkpoints.save(at, TrainProgress(best=first))
    checkpoints.save_best(second, {"w": torch.zeros(2)})
    assert checkpoints.load_best(first)["w"].sum() == 2, "still there until the next is named"
    checkpoints.save(at, TrainProgress(best=second))
    assert not checkpoints.best(first).exists()
    assert checkpoints.load_best(second)["w"].sum() == 0
    with pytest.raises(ValueError, match="belongs to another training"):
        CheckpointFolder(tmp_path, "xyz").load_best(second)


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".last.safetensors.x.part").write_bytes(b"half")
    CheckpointFolder(tmp_path, "abc").restore(moving())
    assert not list(tmp_path.iterdir())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("not a checkpoint")


def foreign(path: Path) -> None:
    save_file({"w": torch.ones(2)}, path)


def newer(path: Path) -> None:
    tensors, about = read_tensors(path, "x")
    facts = {"format": 99, "checksum": 0, "about": about}
    save_file(tensors, path, {"counterfoil": json.dumps(facts)})


def several(path: Path) -> None:
    tensors, about = read_tensors(path, "x")
    write_tensors(path, tensors, {**about, "processes": 4})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, "is damaged and cannot be read as a checkpoint"),
        (flipped, "is damaged: its checksum does not fit"),
        (empty, "is damaged"),
        (text, "is damaged"),
        (foreign, "is a safetensors file, but not a checkpoint of counterfoil"),
        (newer, "has format 99, and this version of counterfoil reads format 1"),
        (several, "was written by 4 processes and there are 1 now; resume with 4"),
    ],
)
def test_damage_is_one_sentence(tmp_path: Path, damage: Any, words: str) -> None:
    checkpoints = CheckpointFolder(tmp_path, "abc")
    checkpoints.save(moving(), TrainProgress())
    damage(checkpoints.last)
    before, at = checkpoints.last.read_bytes(), moving()
    wanted = {name: value.clone() for name, value in at.step.state_dict().items()}
    with pytest.raises(ValueError, match=words) as error:
        checkpoints.restore(at)
    assert "\n" not in str(error.value)
    assert str(checkpoints.last) in str(error.value)
    assert checkpoints.last.read_bytes() == before
    assert all(torch.equal(value, wanted[n]) for n, value in at.step.state_dict().items())


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    tensors = {
        "a": whole,
        "b": whole,
        "part": whole[2:4],
        "turned": whole.view(2, 3).T,
        "half": whole.bfloat16(),
        "number": torch.tensor(3),
        "none": torch.zeros(0, 2),
        "yes": torch.tensor([True]),
    }
    write_tensors(tmp_path / "t", tensors, {"x": [1]})
    found, about = read_tensors(tmp_path / "t", "tensors")
    assert about == {"x": [1]}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype
