from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call

import hub_cases
import matcher_cases
import vision_cases
from counterfoil.models.clip import DualEncoder
from counterfoil.models.layers import lora as lora_layers
from counterfoil.models.layers.pretrained import read_config_json

KINDS = ("clip", "siglip", "siglip2")


@pytest.fixture(autouse=True, scope="module")
def _needs_peft():  # not where tests are collected: it takes seconds to import
    pytest.importorskip("peft")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {kind: getattr(hub_cases, kind)(root / kind) for kind in KINDS}


def learnt(folder: str) -> DualEncoder:
    """A model whose adapters are no longer zero."""
    torch.manual_seed(1)
    model = DualEncoder(name=folder, lora=2).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.add_(torch.randn(parameter.shape) / 3)
    return model


def grid(model: DualEncoder) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), matcher_cases.words(4, rng)
    with torch.no_grad():
        return model.score_matrix(model.encode_images(images), model.encode_texts(texts))


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_adapters_change_nothing_and_alone_learn(kind, folders):
    plain, adapted = DualEncoder(name=folders[kind]).eval(), DualEncoder(name=folders[kind], lora=2)
    torch.testing.assert_close(grid(adapted.eval()), grid(plain))
    moving = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert moving
    assert all(".lora_" in name for name in moving)
    towers = ("vision_model", "text_model")
    assert {tower for tower in towers if any(tower in name for name in moving)} == set(towers)


@pytest.mark.parametrize("kind", KINDS)
def test_every_adapter_has_a_gradient(kind, folders):
    model = learnt(folders[kind])
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), matcher_cases.words(4, rng)
    model.score_matrix(
        model.encode_images(images), model.encode_texts(texts)
    ).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_score_the_same_in_a_plain_model(kind, folders):
    model = learnt(folders[kind])
    before = grid(model)
    assert not torch.allclose(before, grid(DualEncoder(name=folders[kind]).eval()))
    model.merge()
    assert model.lora == 0
    torch.testing.assert_close(grid(model), before, rtol=1e-4, atol=1e-5)
    plain = DualEncoder(name="nowhere", pretrained=False, config=read_config_json(folders[kind]))
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(grid(plain.eval()), before, rtol=1e-4, atol=1e-5)


def test_begins_from_a_plain_model_and_from_one_with_adapters(folders):
    plain = DualEncoder(name=folders["clip"]).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.1)
    other = DualEncoder(name=folders["clip"], lora=2).eval()
    other.load_state_dict(other.adopted(plain.state_dict()))
    torch.testing.assert_close(grid(other), grid(plain))
    source = learnt(folders["clip"])
    other.load_state_dict(other.adopted(source.state_dict()))
    torch.testing.assert_close(grid(other), grid(source))


def test_a_rank_below_nothing_is_refused(folders):
    with pytest.raises(ValueError, match="lora=-1 is not possible"):
        DualEncoder(name=folders["clip"], lora=-1)


def test_without_peft_the_extra_is_named(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r'pip install "counterfoil\[tune\]"'):
        DualEncoder(name=folders["clip"], lora=2)


def attending() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Adapters on attention that is one module, no longer zero; and weights without them."""
    torch.manual_seed(0)
    block = vision_cases.Block(8)
    before = {name: value.clone() for name, value in block.state_dict().items()}
    body = nn.ModuleDict({"resblocks": nn.ModuleList([block])})
    lora_layers.add_lora(body, 2, r"resblocks\.\d+\.attn")
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            assert parameter.requires_grad == (".lora_" in name)
            if ".lora_" in name:
                parameter.add_(torch.randn(parameter.shape) / 3)
    return body, before


@pytest.mark.parametrize("training", [True, False])
def test_adapters_on_an_attention_are_products_added_to_its_weights(training):
    """Values and gradients."""
    body, before = attending()
    rows = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    made = body.train(training)["resblocks"][0](rows)
    made.square().sum().backward()
    added = {n: p.detach().requires_grad_() for n, p in body.named_parameters() if ".lora_" in n}
    outer = "resblocks.0.attn"
    weights = dict(before)
    for at, weight in (
        (outer, "attn.in_proj_weight"),
        (f"{outer}.base_layer.out_proj", "attn.out_proj.weight"),
    ):
        down, up = (added[f"{at}.lora_{side}.default.weight"] for side in "AB")
        weights[weight] = before[weight] + up @ down
    wanted = functional_call(vision_cases.Block(8), weights, (rows,))
    wanted.square().sum().backward()
    torch.testing.assert_close(made, wanted)
    grads = {name: parameter.grad for name, parameter in body.named_parameters()}
    assert len(added) == 4
    for name, value in added.items():
        torch.testing.assert_close(grads[name], value.grad)


def test_an_attention_stays_as_it_is_when_it_is_used():
    body, before = attending()
    rows = torch.randn(3, 5, 8)
    state = {name: value.clone() for name, value in body.state_dict().items()}
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            for _ in range(50):
                body["resblocks"][0](rows)
    with pytest.raises((AssertionError, RuntimeError)):
        body["resblocks"][0](rows[..., :7])  # which ends before its time
    for name, value in body.state_dict().items():
        assert torch.equal(value, state[name]), name
    body.load_state_dict(state)  # which what was made in inference mode would refuse
    lora_layers.merge_lora(body)
    assert set(body["resblocks"][0].state_dict()) == set(before)
