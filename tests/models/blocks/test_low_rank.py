from __future__ import annotations

import sys

import pytest
import torch

import hub_cases
import matcher_cases
from counterfoil.models.blocks.pretrained import written_config
from counterfoil.models.clip import DualEncoder

pytest.importorskip("peft")
KINDS = ("clip", "siglip", "siglip2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {kind: getattr(hub_cases, kind)(root / kind) for kind in KINDS}


def learnt(folder: str) -> DualEncoder:
    """A model whose adapters are no longer zero."""
    torch.manual_seed(1)
    matcher = DualEncoder(name=folder, lora=2).eval()
    with torch.no_grad():
        for name, parameter in matcher.named_parameters():
            if ".lora_" in name:
                parameter.add_(torch.randn(parameter.shape) / 3)
    return matcher


def grid(matcher: DualEncoder) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), matcher_cases.words(4, rng)
    with torch.no_grad():
        return matcher.grid(matcher.encode_images(images), matcher.encode_texts(texts))


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
    matcher = learnt(folders[kind])
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), matcher_cases.words(4, rng)
    matcher.grid(
        matcher.encode_images(images), matcher.encode_texts(texts)
    ).square().sum().backward()
    assert all(p.grad is not None for p in matcher.parameters() if p.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_score_the_same_in_a_plain_model(kind, folders):
    matcher = learnt(folders[kind])
    before = grid(matcher)
    assert not torch.allclose(before, grid(DualEncoder(name=folders[kind]).eval()))
    matcher.merge()
    assert matcher.lora == 0
    torch.testing.assert_close(grid(matcher), before, rtol=1e-4, atol=1e-5)
    plain = DualEncoder(name="nowhere", pretrained=False, config=written_config(folders[kind]))
    plain.load_state_dict(matcher.state_dict())
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
