"""Stretched text positions, for captions beyond what a model was trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import hub_cases
import recipes_cases
import vision_cases
from counterfoil import load_dataset, load_model
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import WordTokenizer, split_words
from counterfoil.models.layers.positions import stretched_length, stretched_positions
from counterfoil.models.open_clip import OpenClipModel
from counterfoil.training.interpolation import interpolate_models, load_original
from recipes_cases import run

SHORT, LONG = "a dog in the snow", " ".join(["a red circle and a big blue square"] * 4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of 24 text positions."""
    folder = recipes_cases.clip_like(tmp_path_factory.mktemp("hub") / "clip")
    text = hub_cases.TEXT | {"max_position_embeddings": 24, "eos_token_id": 39, "pad_token_id": 39}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config=text, vision_config=hub_cases.VISION, projection_dim=8
    )
    model = transformers.CLIPModel(config)
    with torch.no_grad():  # the initial positions are too small to tell apart
        model.text_model.embeddings.position_embedding.weight.mul_(50)
    model.save_pretrained(folder)
    return folder


def long_clip(table: Tensor) -> Tensor:
    """Long-CLIP's formula, number by number."""
    new = torch.empty(4 * len(table) - 60, table.shape[1])
    new[:20] = table[:20]
    for i in range(20, len(table) - 1):
        for j in range(4):
            new[20 + 4 * (i - 20) + j] = ((4 - j) * table[i] + j * table[i + 1]) / 4
    for j in range(4):
        new[len(new) - 4 + j] = table[-1] + j * (table[-1] - table[-2]) / 4
    return new


@pytest.mark.parametrize("length", [22, 24, 77])
def test_positions_are_those_of_long_clip(length: int) -> None:
    table = torch.randn(length, 3, generator=torch.Generator().manual_seed(length))
    torch.testing.assert_close(stretched_positions(table), long_clip(table))
    assert stretched_length(77) == 248


def test_short_captions_keep_their_vectors_and_long_ones_are_read(clip: Path) -> None:
    plain, long = load_model(clip), load_model(clip, long_captions=True)
    assert (
        long.processor.tokenizer.longest
        == long.model.body.config.text_config.max_position_embeddings
    )
    torch.testing.assert_close(long.encode(SHORT).tokens, plain.encode(SHORT).tokens)
    ends = [LONG, f"{LONG} dog"]  # which differ behind the 24th token
    assert torch.equal(*plain.encode(ends).tokens)
    assert not torch.allclose(*long.encode(ends).tokens, atol=1e-4)


def test_a_training_on_long_captions_is_saved_loaded_and_interpolated(
    clip: Path, tmp_path: Path
) -> None:
    data = ("--data", "scenes:images=36", "--output", tmp_path / "run")
    short = ("--set=*.steps=3", "--set=*.batch=16")
    model = ("--model", clip, "--long-captions")
    assert run("train", "contrastive", *model, *data, *short, "--remedies") == 0
    tuned = load_model(tmp_path / "run" / "tuned")
    table = tuned.model.state_dict()["body.text_model.embeddings.position_embedding.weight"]
    assert len(table) == stretched_length(24) == 36
    tuned.save_pretrained(tmp_path / "shared")
    shared = load_model(tmp_path / "shared")
    torch.testing.assert_close(shared.encode(LONG).tokens, tuned.encode(LONG).tokens)
    between = load_model(tmp_path / "run" / "wise-ft")
    assert between.processor.tokenizer.longest == 36
    start = interpolate_models(load_original(str(clip), tuned), tuned, 0)
    long = load_model(clip, long_captions=True)
    torch.testing.assert_close(start.encode(LONG).tokens, long.encode(LONG).tokens)


class OrderedClip(vision_cases.Clip):
    """A text tower whose vector is that of the end mark, with its position."""

    def __init__(self, embed_dim: int, vision_cfg: Any, text_cfg: Any, **more: Any) -> None:
        super().__init__(embed_dim, vision_cfg, text_cfg, **more)
        self.places = None
        self.positional_embedding = torch.nn.Parameter(torch.randn(self.length, embed_dim))

    def encode_text(self, ids: Tensor) -> Tensor:
        assert ids.shape[1] == self.length
        placed = self.words(ids) + self.positional_embedding
        return placed[torch.arange(len(ids)), ids.argmax(1)]


def test_a_model_of_open_clip_is_stretched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = vision_cases.open_clip(tmp_path)
    library.CLIP = OrderedClip
    monkeypatch.setitem(sys.modules, "open_clip", library)
    monkeypatch.setitem(sys.modules, "ftfy", SimpleNamespace(fix_text=lambda text: text))
    sizes = vision_cases.CONFIGS["ViT-T-8"]
    sizes = sizes | {"text_cfg": sizes["text_cfg"] | {"context_length": 24}}
    (tmp_path / "clip").mkdir()
    form = {"interpolation": "bicubic", "resize_mode": "shortest"}
    vision_cases.filled(tmp_path / "clip", sizes, form, lambda name: OrderedClip(**sizes))
    plain = load_model(tmp_path / "clip")
    long = load_model(tmp_path / "clip", long_captions=True)
    assert json.loads(long.model.config_json)["model"]["text_cfg"]["context_length"] == 36
    torch.testing.assert_close(long.encode("a dog").tokens, plain.encode("a dog").tokens)
    ends = ["a " * 25, "a " * 26]  # which end behind the 24th token
    assert torch.equal(*plain.encode(ends).tokens)
    first, second = long.encode(ends).tokens
    assert not torch.allclose(first, second, atol=1e-4)
    long.save_pretrained(tmp_path / "saved")
    saved = load_model(tmp_path / "saved").encode(ends)
    torch.testing.assert_close(saved.tokens, long.encode(ends).tokens)
    config = json.loads(plain.model.config_json)
    config["model"]["text_cfg"]["no_causal_mask"] = True
    with pytest.raises(ValueError, match="in another way than CLIP does"):
        OpenClipModel(name=plain.name, config=json.dumps(config), positions=36, pretrained=False)


def test_what_cannot_be_stretched_is_refused(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="text encoder of 12 positions cannot be stretched"):
        load_model(recipes_cases.clip_like(tmp_path / "short"), long_captions=True)
    siglip = recipes_cases.clip_like(tmp_path / "siglip", "siglip")
    config = json.loads((siglip / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 24
    (siglip / "config.json").write_text(json.dumps(config))
    text = hub_cases.TEXT | {"max_position_embeddings": 24, "projection_size": 16}
    made = transformers.SiglipConfig(text_config=text, vision_config=hub_cases.VISION)
    transformers.SiglipModel(made).save_pretrained(siglip)
    with pytest.raises(ValueError, match="is a siglip; only the text positions of a CLIP"):
        load_model(siglip, long_captions=True)
    load_model(clip, long_captions=True).save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="is saved with the text positions"):
        load_model(tmp_path / "saved", long_captions=True)
    with pytest.raises(ValueError, match=r"timm:a\+b has the text positions"):
        load_model("timm:a+b", long_captions=True)
    with pytest.raises(ValueError, match="positions=30 were asked of"):
        load_model(clip, long_captions=True).spec.replace(positions=30).build()
    assert run("train", "vsepp", "--data", "scenes", "--long-captions") == 2
    assert "--long-captions and --other are for a pretrained" in " ".join(
        capsys.readouterr().err.split()
    )


def test_the_share_of_truncated_captions_is_said_once(
    clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_dataset("scenes:images=30")
    words = Processor(PixelProcessor(16), WordTokenizer.of(data.texts, longest=9))
    longer = sum(len(split_words(text)) > 9 for text in data.texts)
    assert 0 < longer < len(data.texts)
    for _ in range(2):
        words.process(data)
    said = " ".join(capsys.readouterr().err.split())
    share = f"{longer:,} of {len(data.texts):,} captions ({100 * longer / len(data.texts):.1f} %)"
    assert said.count(f"{share} of scenes") == 1
    pieces = load_model(clip).processor.tokenizer
    texts = ["a dog " * count for count in (1, 11, 12)]  # 4, 24 and 26 tokens
    assert pieces.read(texts).truncated == 1
