"""Tiny random Hugging Face models, saved as folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
import pytest
import tokenizers
import torch
import transformers
from huggingface_hub.errors import EntryNotFoundError

TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def _saved(model: torch.nn.Module, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


def _varied(model: torch.nn.Module) -> torch.nn.Module:
    """A model whose weights are large enough that its inputs show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) / 3)
    return model


def clip(folder: Path) -> str:
    torch.manual_seed(0)
    text = TEXT | {"max_position_embeddings": 12, "eos_token_id": 39, "pad_token_id": 39}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=8)
    return _saved(transformers.CLIPModel(config), folder)


def siglip(folder: Path) -> str:
    torch.manual_seed(0)
    text = TEXT | {"max_position_embeddings": 12, "pad_token_id": 1, "projection_size": 16}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    return _saved(transformers.SiglipModel(config), folder)


def siglip2(folder: Path) -> str:
    torch.manual_seed(0)
    text = TEXT | {"max_position_embeddings": 12, "pad_token_id": 0, "projection_size": 16}
    vision = {k: v for k, v in VISION.items() if k != "image_size"} | {"num_patches": 4}
    config = transformers.Siglip2Config(text_config=text, vision_config=vision)
    return _saved(transformers.Siglip2Model(config), folder)


def bert(folder: Path, **sizes: int) -> str:
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**TEXT, "max_position_embeddings": 12, **sizes})
    return _saved(transformers.BertModel(config), folder)


def vit(folder: Path) -> str:
    torch.manual_seed(0)
    return _saved(transformers.ViTModel(transformers.ViTConfig(**VISION)), folder)


def vilt(folder: Path, kind: str = "MaskedLM", words: int = TEXT["vocab_size"]) -> str:
    """A ViLT with this head, whose weights are large enough to show; one without is "Model"."""
    torch.manual_seed(0)
    sizes = {**TEXT, **VISION, "vocab_size": words, "max_position_embeddings": 12}
    make = getattr(transformers, "ViltModel" if kind == "Model" else f"ViltFor{kind}")
    return _saved(_varied(make(transformers.ViltConfig(**sizes))), folder)


def blip(folder: Path, words: int = TEXT["vocab_size"]) -> str:
    """A BLIP that matches images and texts, whose weights are large enough to show."""
    torch.manual_seed(0)
    none = {"bos_token_id": None, "sep_token_id": None}
    text = TEXT | none | {"vocab_size": words, "max_position_embeddings": 12}
    vision = VISION | {"hidden_size": 24, "initializer_range": 0.02}
    config = transformers.BlipConfig(
        text_config=text, vision_config=vision, image_text_hidden_size=8
    )
    return _saved(_varied(transformers.BlipForImageTextRetrieval(config)), folder)


def mobilenet(folder: Path) -> str:
    torch.manual_seed(0)
    config = transformers.MobileNetV2Config(depth_multiplier=0.1, min_depth=4, image_size=32)
    return _saved(transformers.MobileNetV2Model(config), folder)


DETECTOR = {
    "num_queries": 12,
    "num_labels": 5,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}


def detr(folder: Path) -> str:
    """A DETR (softmax with "no object") and its processor, which keeps the aspect ratio."""
    torch.manual_seed(0)
    backbone = transformers.ResNetConfig(
        embedding_size=4,
        hidden_sizes=[4, 8],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None, **DETECTOR
    )
    sizes = {"shortest_edge": 48, "longest_edge": 80}
    processor(folder, image_processor_type="DetrImageProcessor", size=sizes)
    return _saved(_varied(transformers.DetrForObjectDetection(config)), folder)


def rt_detr(folder: Path, queries: int = 12) -> str:
    """An RT-DETR (sigmoids) and its processor, which squeezes images to squares."""
    torch.manual_seed(0)
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=4,
        hidden_sizes=[4, 8, 8, 8],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=16,
        encoder_in_channels=[8, 8, 8],
        decoder_in_channels=[16, 16, 16],
        **DETECTOR | {"num_queries": queries},
    )
    sizes = {"height": 64, "width": 64}
    processor(folder, image_processor_type="RTDetrImageProcessor", size=sizes)
    return _saved(_varied(transformers.RTDetrForObjectDetection(config)), folder)


def yolos(folder: Path) -> str:
    """A YOLOS, whose queries follow the patches of the image."""
    torch.manual_seed(0)
    sizes = VISION | {"image_size": [16, 16], "num_detection_tokens": 12, "num_labels": 5}
    config = transformers.YolosConfig(**sizes, use_mid_position_embeddings=False)
    sizes = {"shortest_edge": 32, "longest_edge": 96}
    processor(folder, image_processor_type="YolosImageProcessor", size=sizes)
    return _saved(_varied(transformers.YolosForObjectDetection(config)), folder)


def processor(folder: Path, **plain: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(plain))
    return str(folder)


def gpt2(folder: Path, words: Sequence[str], positions: int = 12) -> str:
    """A GPT-2 of whole words with its tokenizer, whose weights are large enough to show."""
    torch.manual_seed(0)
    ids = {word: row for row, word in enumerate(["<|endoftext|>", "<unk>", *words])}
    read = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    read.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    begin = "<|endoftext|>"
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=read, bos_token=begin, eos_token=begin, unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    sizes = {
        "n_positions": positions,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": len(ids),
    }
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return _saved(_varied(transformers.GPT2LMHeadModel(config)), folder)


class FakeHub:
    """Keeps what is pushed in a folder each, and gives it back as the hub's functions do."""

    def __init__(self, root: Path, repo_type: str) -> None:
        self.root, self.repo_type, self.calls = root, repo_type, []

    def create_repo(self, name: str, *, private: bool, exist_ok: bool, repo_type: str) -> str:
        assert exist_ok
        assert repo_type == self.repo_type
        self.calls.append((name, private))
        return f"https://hub.test/{name}"

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, commit_message: str, repo_type: str
    ) -> None:
        assert repo_type == self.repo_type
        self.calls.append(commit_message)
        (self.root / repo_id).parent.mkdir(parents=True)
        Path(folder_path).rename(self.root / repo_id)

    def hf_hub_download(self, name: str, file: str, *, revision: str | None) -> str:
        if not (self.root / name / file).is_file() or revision not in (None, "main"):
            raise EntryNotFoundError(name)
        return str(self.root / name / file)

    def snapshot_download(
        self,
        name: str,
        *,
        revision: str | None,
        allow_patterns: list[str],
        repo_type: str = "model",
    ) -> str:
        assert repo_type == self.repo_type
        folder = self.root / name
        if not folder.is_dir() or revision not in (None, "main"):
            raise OSError(f"404 Client Error: {name}")
        for path in folder.rglob("*"):
            named = path.relative_to(folder)
            kept = any(named.match(pattern) for pattern in allow_patterns)
            assert path.is_dir() or kept, f"{named} is not asked for"
        return str(folder)


def fake_hub(root: Path, monkeypatch: pytest.MonkeyPatch, repo_type: str = "model") -> FakeHub:
    """A hub in a folder, in place of huggingface_hub's."""
    hub = FakeHub(root, repo_type)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, getattr(hub, name))
    return hub
