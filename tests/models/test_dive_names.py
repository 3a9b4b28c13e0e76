from __future__ import annotations

import argparse

import pytest
import torch

import hub_cases
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.models.convert import convert_checkpoint
from counterfoil.models.dive import (
    NAMES,
    DivE,
    PartsTower,
    PooledParts,
    WordsAndStates,
    convert_dive,
    dive_from_checkpoint,
)
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions

WIDTH, ROUNDS = 8, 2
State = dict[str, torch.Tensor]


def model(text: PartsTower, **settings: int) -> DivE:
    torch.manual_seed(0)
    image = PooledParts(tower=MLPRegions(features=6, width=WIDTH, stacked=True, dropout=0.1))
    host = DivE(image=image, text=text, slots=3, heads=4, head_width=5, rounds=ROUNDS, **settings)
    for tensor in host.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape))
    return host.eval()


def bigru() -> WordsAndStates:
    return WordsAndStates(gru=GRU(words=9, word_width=4, width=WIDTH))


def authors(host: DivE) -> State:
    """The model's tensors under the authors' names, the shared layers once for every round."""
    theirs = {ours: name for name, ours in NAMES.prefixes.items()}
    state: State = {}
    for name, value in host.state_dict().items():
        ours = max((prefix for prefix in theirs if name.startswith(prefix)), key=len)
        full = theirs[ours] + name.removeprefix(ours)
        for number in range(ROUNDS if ".layers.0." in full else 1):
            state[full.replace(".layers.0.", f".layers.{number}.")] = value
    return state


def same(built: DivE, host: DivE) -> None:
    assert built.state_dict().keys() == host.state_dict().keys()
    for name, value in built.state_dict().items():
        assert torch.equal(value, host.state_dict()[name]), name


@pytest.mark.parametrize("parallel", [False, True])
def test_a_file_of_theirs(tmp_path, parallel):
    host = model(bigru())
    state = {f"module.{n}" if parallel else n: v for n, v in authors(host).items()}
    options = argparse.Namespace(dropout=0.2, temperature=8, txt_pooling="rnn")
    torch.save({"model": state, "args": options, "best_score": 1.5}, tmp_path / "a.pth.tar")
    found = convert_checkpoint(tmp_path / "a.pth.tar", "dive")
    built = found.build()
    assert isinstance(built, DivE)
    same(built, host)
    assert (built.alpha, built.image_slots.dropout.p, built.image_slots.rounds) == (8.0, 0.2, 2)
    assert built.image_slots.released_padding
    assert built.text_slots.released_padding
    assert (built.image_slots.positions, built.text_slots.positions) == ("none", "sine")


def test_factor_and_weights_come_from_the_checkpoint(tmp_path):
    """Their code's own defaults: a feed-forward factor of 2; the script sets 4."""
    host = model(bigru(), inner=2)
    options = argparse.Namespace(
        mmd_weight=0.02, unif_weight=0.03, div_weight=0.1, unif_residual=False, temperature=9
    )
    torch.save({"model": authors(host), "args": options}, tmp_path / "a.pth.tar")
    built = convert_checkpoint(tmp_path / "a.pth.tar", "dive").build()
    assert isinstance(built, DivE)
    same(built, host)
    assert built.image_slots.enter.out_features == 2 * WIDTH
    assert (built.mmd_weight, built.diversity_of, built.alpha) == (0.02, "elements", 9.0)
    assert built.diversity_weight == 0.03


@pytest.mark.parametrize(("pooling", "pool"), [("cls", "first"), ("max", "max"), ("rnn", "max")])
@pytest.mark.parametrize("apart", [False, True])
def test_bert(tmp_path, monkeypatch, pooling, pool, apart):
    folder = hub_cases.bert(tmp_path / "bert")
    bert = BertTextTower(name=folder, width=WIDTH * (1 + apart))
    host = model(PooledParts(tower=bert, pool=pool, apart=apart))
    state = authors(host)
    if apart:
        for kind in ("weight", "bias"):
            halves = state[f"txt_enc.linear.{kind}"].chunk(2)
            state |= {f"txt_enc.linear{n}.{kind}": half for n, half in zip(("", "2"), halves)}
    state["txt_enc.bert.embeddings.position_ids"] = torch.arange(3)
    built = dive_from_checkpoint(Checkpoint(state, {"txt_pooling": pooling}), bert=folder).build()
    same(built, host)
    assert (built.text.kind, built.text.apart) == (pool, apart)


def test_rounds_with_layers_of_their_own_are_refused():
    state = authors(model(bigru()))
    name = next(name for name in state if ".layers.1." in name)
    state[name] = state[name] + 1
    with pytest.raises(ValueError, match="differs from that of the first round"):
        convert_dive(state)


def test_tensors_of_no_dive_are_refused():
    with pytest.raises(ValueError, match=r"'img_enc.cnn.0' is no tensor of a DivE checkpoint"):
        convert_dive({"img_enc.cnn.0": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"has no 'image\.tower\.fc\.weight'"):
        convert_dive({"txt_enc.embed.weight": torch.zeros(1)})
