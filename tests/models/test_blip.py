"""BLIP beside transformers' own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hub_cases
import recipes_cases
import train_cases
from corpus_cases import write_folder
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.blip import BLIP, blip_from_pretrained
from counterfoil.models.layers import joint_encoder
from counterfoil.papers.compared.counterfactual import (
    check_word_gradients,
    word_embeddings_of,
    word_saliency,
)

SIZES = {"layers": 2, "width": 16, "heads": 2, "inner": 16, "positions": 12, "vocabulary": 40}
SIZES |= {"image_layers": 2, "image_width": 24, "image_heads": 2, "image_inner": 16}
SIZES |= {"size": 16, "patch": 8}
LENGTHS = [5, 2, 7, 3]


def items() -> tuple[ModalityBatch, ModalityBatch]:
    """Three pictures, and four captions of several lengths."""
    rng = torch.Generator().manual_seed(1)
    pixels = torch.randn(3, 3, 16, 16, generator=rng)
    texts = torch.randint(0, 40, (4, 7), generator=rng)
    real = torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(1)
    return (
        ModalityBatch(torch.arange(3), pixels, torch.ones(3, 1, dtype=torch.bool)),
        ModalityBatch(torch.arange(4), texts, real),
    )


def encoded(host: RetrievalModel) -> tuple[Embeddings, Embeddings]:
    images, texts = items()
    return host.encode_images(images), host.encode_texts(texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return hub_cases.blip(tmp_path_factory.mktemp("hub") / "blip")


def alone(own: nn.Module, image: int, text: int) -> Tensor:
    """What transformers says of a pair alone, without padding."""
    images, texts = items()
    ids = texts.values[text : text + 1, : LENGTHS[text]]
    found = own(
        pixel_values=images.values[image : image + 1],
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
    )
    no, yes = found.itm_score[0]
    return yes - no


@torch.no_grad()
@pytest.mark.parametrize("most", [1, 30, 10**6])
def test_scores_are_those_of_transformers(folder, monkeypatch, most):
    """However many pairs are read together."""
    monkeypatch.setitem(joint_encoder.TOKENS_AT_ONCE, "cpu", most)
    found = blip_from_pretrained(folder, mask=3)
    ours = found.build()
    grid = ours.score_matrix(*encoded(ours))
    own = transformers.BlipForImageTextRetrieval.from_pretrained(folder).eval()
    wanted = torch.stack([torch.stack([alone(own, i, t) for t in range(4)]) for i in range(3)])
    assert wanted.std() > 0.1
    torch.testing.assert_close(grid, wanted, atol=1e-5, rtol=1e-5)
    images, texts = encoded(ours)
    pairs = ours.score_pairs(images, texts.rows(slice(3)))
    torch.testing.assert_close(pairs, wanted.diagonal(), atol=1e-5, rtol=1e-5)
    likely = replace(found, model=found.model.replace(score="probability")).build()
    torch.testing.assert_close(likely.score_matrix(images, texts), grid)
    torch.testing.assert_close(likely.loss_scores(grid), grid.sigmoid())


def test_nothing_with_nothing(folder):
    host = blip_from_pretrained(folder, mask=None).build()
    images, texts = encoded(host)
    none = slice(0)
    assert host.score_matrix(images.rows(none), texts).shape == (0, 4)
    assert host.score_matrix(images, texts.rows(none)).shape == (3, 0)
    assert host.score_pairs(images.rows(none), texts.rows(none)).shape == (0,)


def test_opened_anew_it_is_the_same(folder):
    one, two = (blip_from_pretrained(folder, mask=3) for _ in range(2))
    assert one.model == two.model
    assert all(torch.equal(value, two.state[name]) for name, value in one.state.items())


def test_weights_in_the_older_form_of_a_file(folder, tmp_path):
    """With numbered places, which later versions leave out."""
    state = load_file(Path(folder) / "model.safetensors")
    state["text_encoder.embeddings.position_ids"] = torch.arange(12).unsqueeze(0)
    transformers.BlipConfig.from_pretrained(folder).save_pretrained(tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin")
    newer, older = (
        blip_from_pretrained(folder, mask=3).build(),
        blip_from_pretrained(str(tmp_path), mask=3).build(),
    )
    assert torch.equal(older.score_matrix(*encoded(older)), newer.score_matrix(*encoded(newer)))


def test_words_can_be_asked_for_their_share():
    torch.manual_seed(0)
    host, (images, texts) = BLIP(**SIZES, mask=3), items()
    assert word_embeddings_of(host).mask_word == 3
    assert check_word_gradients(host) is host
    seen = host.encode_images(images.rows(torch.tensor([0, 1, 2, 0])))
    gradient = word_saliency(host, texts, seen, torch.ones(4))
    assert gradient.shape == (4, 7, 16)
    assert gradient[texts.mask].norm(dim=1).min() > 0
    assert not gradient[~texts.mask].any()


def test_dropout_is_drawn_in_training_alone(folder):
    spec = blip_from_pretrained(folder, mask=None).model.replace(dropout=0.2)
    host = spec.build().eval()
    pools = encoded(host)
    assert torch.equal(host.score_matrix(*pools), host.score_matrix(*pools))
    host.train()
    assert not torch.equal(host.score_matrix(*pools), host.score_matrix(*pools))


def test_it_learns():
    torch.manual_seed(0)
    host = BLIP(**SIZES)

    def losses() -> dict[str, Tensor]:
        scores = host.score_matrix(*encoded(host))
        return {"x": nn.functional.binary_cross_entropy_with_logits(scores, torch.eye(3, 4))}

    # 0.56 for one answer to all
    assert train_cases.learnt(host, losses, rate=0.003, steps=60)[-1]["x"] < 0.3


def test_what_cannot_be_read():
    host, (images, texts) = BLIP(**SIZES | {"positions": 6}), items()
    with pytest.raises(ValueError, match="texts of 7 tokens do not fit a model that reads 6"):
        host.encode_texts(texts)
    with pytest.raises(ValueError, match="token id 41 is not in this model's vocabulary of 40"):
        BLIP(**SIZES).encode_texts(replace(texts, values=texts.values.clone().fill_(41)))
    with pytest.raises(ValueError, match=r"images of shape \(3, 3, 8, 16\) do not fit a model"):
        host.encode_images(replace(images, values=images.values[:, :, :8]))


def test_another_kind_of_blip_is_told(folder, tmp_path):
    config = transformers.BlipConfig.from_pretrained(folder)
    state = load_file(Path(folder) / "model.safetensors")
    writes = {name: value for name, value in state.items() if not name.startswith("itm_head")}
    config.save_pretrained(tmp_path)
    save_file(writes, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="holds no BLIP that matches images and texts"):
        blip_from_pretrained(str(tmp_path), mask=3)
    config.vision_config.hidden_act = "relu"
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"BLIP of another kind .* relu and gelu"):
        blip_from_pretrained(str(tmp_path), mask=3)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Photos, a model that shortlists them, and a BLIP."""
    root = tmp_path_factory.mktemp("place")
    recipes_cases.pixel_model(root / "fast")
    recipes_cases.blip_like(root / "blip")
    write_folder(load_dataset("scenes:images=8"), root / "photos")
    return root


def test_it_ranks_again_what_a_faster_model_finds(place, monkeypatch):
    monkeypatch.chdir(place)
    whole = len(load_dataset("photos").texts)
    found = {}
    for name, first in (("alone", ()), ("all", (whole,)), ("few", (2,))):
        more = ("--first", "fast", "--depth", *first) if first else ()
        asked = ("evaluate", "blip", "--data", "photos", "--split", "all", *more)
        assert recipes_cases.run(*asked, "--json", f"{name}.json") == 0
        found[name] = json.loads((place / f"{name}.json").read_text())
    assert found["all"]["i2t"] == found["alone"]["i2t"]
    assert found["few"]["i2t"] != found["alone"]["i2t"]


def test_a_caption_is_explained_by_what_its_words_add(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    photo = sorted((place / "photos" / "images").iterdir())[0]
    assert recipes_cases.run("explain", "blip", photo, "a red circle") == 0
    shown = capsys.readouterr().out
    score = load_model("blip").score(photo, ["a red circle"]).item()
    assert f"{score:.3f}" in shown
    assert "circle" in shown
