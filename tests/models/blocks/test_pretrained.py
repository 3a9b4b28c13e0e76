from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import hub_cases
from counterfoil.core.types import ModalityBatch
from counterfoil.models.layers.pretrained import (
    BertTextTower,
    HFVisionTower,
    load_hf_model,
    picture_format,
)

SIDES = {"clip": 16, "vit": 16, "mobilenet": 32}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {name: getattr(hub_cases, name)(root / name) for name in (*SIDES, "bert")}


def pictures(side: int) -> ModalityBatch:
    values = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    return ModalityBatch(torch.arange(3), values, torch.ones(3, 1, dtype=torch.bool))


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("trained", [False, True])
def test_vision_towers(name, trained, folders):
    tower = HFVisionTower(name=folders[name], width=8, trained=trained).train()
    made = tower.eval()(pictures(SIDES[name]))
    assert made.tokens.shape == (3, made.mask.shape[1], 8)
    assert made.mask.all()
    alone = tower(pictures(SIDES[name]).rows(slice(1, 2))).tokens
    torch.testing.assert_close(alone[0], made.tokens[1], rtol=1e-4, atol=1e-5)
    made.tokens.sum().backward()
    for parameter in tower.body.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad
    assert any(p.requires_grad for p in tower.body.parameters()) == trained


def test_a_frozen_model_does_not_move_in_training(folders):
    tower = HFVisionTower(name=folders["mobilenet"], width=8).train()
    before = {k: v.clone() for k, v in tower.body.state_dict().items()}
    tower(pictures(32))
    assert all(torch.equal(v, before[k]) for k, v in tower.body.state_dict().items())
    assert tower.training
    assert not tower.body.training


def test_bert_does_not_see_padding(folders):
    tower = BertTextTower(name=folders["bert"], width=8).eval()
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    ids = torch.randint(1, 40, (2, 5)).masked_fill(~mask, 10**9)
    made = tower(ModalityBatch(torch.arange(2), ids, mask)).tokens
    alone = tower(ModalityBatch(torch.arange(1), ids[1:, :2], mask[1:, :2])).tokens
    torch.testing.assert_close(made[1, :2], alone[0])
    made[mask].sum().backward()
    for parameter in tower.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad


def still_bert(folder: str) -> BertTextTower:
    """A BERT in training whose dropout draws nothing."""
    tower = BertTextTower(name=folder, width=8).train()
    for part in tower.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.0
    return tower


@pytest.mark.parametrize("lengths", [[5, 2, 3, 1, 1, 4], [4], [1, 1], [6, 6, 6], [3, 0, 2]])
def test_captions_in_rows_train_bert_as_padded_ones(folders, lengths, monkeypatch):
    tower = still_bert(folders["bert"]).double()
    mask = torch.arange(6) < torch.tensor(lengths).unsqueeze(1)
    texts = ModalityBatch(torch.arange(len(mask)), torch.randint(1, 40, mask.shape), mask)
    found = []
    for packs in (True, False):
        monkeypatch.setattr(BertTextTower, "_packs", packs)
        made = tower(texts).tokens[mask]
        tower.zero_grad()
        made.sin().sum().backward()
        found.append([made, *(p.grad for p in tower.parameters() if p.grad is not None)])
    for packed, padded in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-11)


def test_rows_of_captions_are_as_few_as_their_tokens_need(folders, monkeypatch):
    tower, seen = still_bert(folders["bert"]), []
    assert tower._packs
    monkeypatch.setattr(
        tower.body.embeddings, "forward", _seeing(seen, tower.body.embeddings.forward)
    )
    mask = torch.arange(8) < torch.tensor([8, 3, 5, 4, 4, 1, 2]).unsqueeze(1)
    texts = ModalityBatch(torch.arange(7), torch.ones(7, 8, dtype=torch.long), mask)
    tower(texts)
    tower.eval()(texts)
    assert seen == [(4, 8), (7, 8)]  # 27 tokens in training; encodings are sorted by length


def _seeing(seen, forward):
    def seeing(*words, input_ids, **named):
        seen.append(tuple(input_ids.shape))
        return forward(*words, input_ids=input_ids, **named)

    return seeing


def test_fresh_weights_differ(folders):
    torch.manual_seed(1)
    loaded, fresh = (
        load_hf_model(folders["bert"], pretrained=p).state_dict() for p in (True, False)
    )
    name = "embeddings.word_embeddings.weight"
    assert not torch.equal(loaded[name], fresh[name])


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be loaded as a .* model: .*config\.json"):
        load_hf_model(str(tmp_path), pretrained=True)


@pytest.mark.parametrize(
    "plain,size,crop",
    [
        ({"size": {"height": 32, "width": 32}}, 32, False),
        ({"size": 20}, 20, False),
        (
            {
                "do_center_crop": True,
                "size": {"shortest_edge": 40},
                "crop_size": {"height": 36, "width": 36},
            },
            36,
            True,
        ),
        ({"size": {"shortest_edge": 24}}, 24, True),
    ],
)
def test_picture_format(plain, size, crop, tmp_path):
    name = hub_cases.processor(tmp_path / "p", image_mean=[0.1, 0.2, 0.3], **plain)
    found = picture_format(name)
    assert (found.size, found.crop) == (size, crop)
    assert found.mean == (0.1, 0.2, 0.3)
    assert found.deviation == (0.5, 0.5, 0.5)


def test_picture_format_without_normalisation(tmp_path):
    name = hub_cases.processor(tmp_path / "p", do_normalize=False, size=8, image_mean=[1, 1, 1])
    assert picture_format(name).mean == (0.0, 0.0, 0.0)
    assert picture_format(name).deviation == (1.0, 1.0, 1.0)


def test_oblong_pictures_are_refused(tmp_path):
    name = hub_cases.processor(tmp_path / "p", size={"height": 8, "width": 9})
    with pytest.raises(ValueError, match="only square ones"):
        picture_format(name)


def test_a_folder_without_a_processor_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not say how its pictures are prepared"):
        picture_format(str(tmp_path))


@pytest.mark.skipif("COUNTERFOIL_DATA" not in os.environ, reason="no real data")
def test_a_real_backbone():
    name = str(Path(os.environ["COUNTERFOIL_DATA"]) / "backbone_mobilenet_v2")
    form = picture_format(name)
    assert (form.size, form.mean, form.crop) == (224, (0.5, 0.5, 0.5), False)
    tower = HFVisionTower(name=name, width=8)
    made = tower(
        ModalityBatch(torch.arange(1), torch.randn(1, 3, 224, 224), torch.ones(1, 1).bool())
    )
    assert made.tokens.shape == (1, 49, 8)
    assert tower.fc.in_features == 1280
