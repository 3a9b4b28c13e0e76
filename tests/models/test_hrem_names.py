from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from counterfoil.core.config import config_from_dict
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.models.convert import SYSTEMS, convert_checkpoint
from counterfoil.models.hrem import HREM, NAMES, hrem_from_checkpoint
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import MLPRegions

WIDTH, SMALL = 8, {"hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    config = {"model_type": "bert", "vocab_size": 20, "intermediate_size": 7, **SMALL}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def authors(bert: str) -> dict[str, Tensor]:
    """Tensors under their names, with what they save and never read."""
    torch.manual_seed(0)
    host = HREM(
        image=MLPRegions(features=5, width=WIDTH),
        text=BertTextTower(name=bert, width=WIDTH, pretrained=False),
        heads=2,
    )
    state = {}
    for name, value in host.state_dict().items():
        theirs = next(t for t, ours in NAMES.prefixes.items() if name.startswith(ours))
        state[theirs + name.removeprefix(NAMES.prefixes[theirs])] = value
    state["img_enc.fc.mlp.bns.1.running_mean"] = torch.zeros(WIDTH)
    return state


def test_every_tensor_comes_back(bert):
    state = authors(bert)
    options = {"nhead": 2, "residual_weight": 0.7}
    found = hrem_from_checkpoint(Checkpoint(state, options), bert=bert)
    built = found.build()
    assert isinstance(built, HREM)
    assert not built.uses_batch_context
    assert built.image_pool.residual == 0.7
    for theirs, value in state.items():
        if name := NAMES.ours(theirs):
            assert torch.equal(built.state_dict()[name], value)
    assert config_from_dict(found.model.to_dict()) == found.model


def test_a_file_as_they_save_it(bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sides: list[dict[str, Tensor]] = [{}, {}]
    for name, value in authors(bert).items():
        side, _, rest = name.partition(".")
        sides[side == "txt_enc"][f"module.{rest}"] = value
    path = tmp_path / "model_best.pth"
    torch.save({"model": sides, "opt": argparse.Namespace(nhead=4), "epoch": 3}, path)
    monkeypatch.setitem(
        SYSTEMS, "hrem", lambda checkpoint: hrem_from_checkpoint(checkpoint, bert=bert)
    )
    built = convert_checkpoint(path, "hrem").build()
    assert built.image_pool.layer.self_attn.num_heads == 4
    assert torch.equal(built.text.fc.weight, sides[1]["module.linear.weight"])


def test_what_is_not_theirs(bert):
    state = authors(bert)
    with pytest.raises(ValueError, match=r"'img_enc.gpool.gru.weight' is no tensor of an HREM"):
        NAMES.renamed({**state, "img_enc.gpool.gru.weight": torch.zeros(1)})
    del state["txt_enc.linear.weight"]
    with pytest.raises(ValueError, match=r"this HREM checkpoint has no 'text.fc.weight'"):
        NAMES.renamed(state)
