"""Stand in for open_clip and timm, which need torchvision; tiny models of them in folders."""

from __future__ import annotations

import json
import types
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import recipes_cases

MEAN, DEVIATION = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
WEIGHTS = "open_clip_model.safetensors"
TEXT = {"context_length": 12, "vocab_size": 40, "width": 8}
VISION = {"image_size": 16, "width": 8}
CONFIGS = {
    "ViT-T-8": {"embed_dim": 8, "vision_cfg": VISION, "text_cfg": TEXT},
    "ViT-T-8-wide": {
        "embed_dim": 8,
        "vision_cfg": VISION | {"image_size": [16, 24]},
        "text_cfg": TEXT,
    },
    "ViT-T-4": {"embed_dim": 8, "vision_cfg": VISION, "text_cfg": TEXT},
}
TAGS = {"ViT-T-8": {"laion_s1": {"quick_gelu": True, "mean": MEAN, "std": DEVIATION}}}


class Block(nn.Module):
    """Attention as open_clip has it."""

    def __init__(self, width):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, rows):
        return rows + self.attn(rows, rows, rows, need_weights=False)[0]


class Clip(nn.Module):
    """Two towers as open_clip's: texts are read at their full length, and the last id counts."""

    def __init__(self, embed_dim, vision_cfg, text_cfg, quick_gelu=False, init_logit_bias=None):
        super().__init__()
        size = vision_cfg["image_size"]
        if text_cfg.get("hf_model_name"):
            assert (Path(text_cfg["hf_model_name"]) / "config.json").is_file()
        assert isinstance(size, int)
        self.quick_gelu, self.length = quick_gelu, text_cfg.get("context_length", 77)
        self.visual = nn.Sequential(nn.AvgPool2d(size // 4), nn.Flatten(), nn.Linear(48, embed_dim))
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList([Block(embed_dim)])
        self.words = nn.Embedding(text_cfg.get("vocab_size", 40), embed_dim)
        self.places = nn.Parameter(torch.randn(self.length, 1))
        self.logit_scale = nn.Parameter(torch.ones([]))
        self.logit_bias = nn.Parameter(torch.ones([])) if init_logit_bias is not None else None

    def encode_image(self, pixels):
        return self.transformer.resblocks[0](self.visual(pixels)[:, None])[:, 0]

    def encode_text(self, ids):
        assert ids.shape[1] == self.length
        return self.transformer.resblocks[0](self.words(ids) * self.places).mean(1)


class SimpleTokenizer:
    """Letters of words, of which the last ends in </w>."""

    def __init__(self, context_length, clean):
        self.clean, self.sot_token_id, self.eot_token_id = clean, 38, 39
        self.all_special_ids, self.vocab_size = [38, 39], 40
        signs = "abcdefghijklmnopqr"
        self.encoder = {s: n for n, s in enumerate([*signs, *(f"{s}</w>" for s in signs)], 1)}
        self.decoder = {n: s for s, n in self.encoder.items()} | {38: "<start>", 39: "<end>"}

    def encode(self, text):
        found = []
        for word in (text.lower() if self.clean == "lower" else text).split():
            signs = [s for s in word if s in "abcdefghijklmnopqr"]
            found += [self.encoder[s] for s in signs[:-1]]
            found += [self.encoder[f"{s}</w>"] for s in signs[-1:]]
        return found


def open_clip(root: Path) -> types.SimpleNamespace:
    """The library, whose tags and hub lie in a folder."""

    def get_model_config(name):
        if name.startswith("local-dir:"):
            path = Path(name.removeprefix("local-dir:")) / "open_clip_config.json"
            return json.loads(path.read_text())["model_cfg"]
        if name.startswith("hf-hub:"):
            return json.loads((root / "hub" / "open_clip_config.json").read_text())["model_cfg"]
        return json.loads(json.dumps(CONFIGS[name])) if name in CONFIGS else None

    def load_checkpoint(model, path, *, weights_only):
        assert weights_only
        if path.endswith(".safetensors"):
            model.load_state_dict(load_file(path))
        else:
            model.load_state_dict(torch.load(path, weights_only=True))

    def from_hub(name, *, filename):
        if name != "user/model":
            raise FileNotFoundError(f"{name} is not there.\nSo it is.")
        return str(root / "hub" / (filename or WEIGHTS))

    return types.SimpleNamespace(
        OPENAI_DATASET_MEAN=(0.48, 0.46, 0.41),
        OPENAI_DATASET_STD=(0.27, 0.26, 0.28),
        CLIP=Clip,
        CustomTextCLIP=Clip,
        CoCa=Clip,
        SimpleTokenizer=SimpleTokenizer,
        list_models=lambda: list(CONFIGS),
        list_pretrained_tags_by_model=lambda name: list(TAGS.get(name, {})),
        get_pretrained_cfg=lambda name, tag: TAGS.get(name, {}).get(tag, {}),
        get_model_config=get_model_config,
        download_pretrained=lambda found: str(root / "hub" / WEIGHTS),
        load_checkpoint=load_checkpoint,
        pretrained=types.SimpleNamespace(download_pretrained_from_hf=from_hub),
    )


def clip_folder(
    folder: Path, kind: str = "clip", *, file: str = "open_clip_model.safetensors"
) -> Path:
    """A model of open_clip; "siglip" has a Hugging Face tokenizer and a bias, "bert" a BERT."""
    folder.mkdir(parents=True)
    model = json.loads(json.dumps(CONFIGS["ViT-T-8"]))
    form = {"mean": MEAN, "std": DEVIATION, "interpolation": "bilinear", "resize_mode": "longest"}
    if kind != "clip":
        recipes_cases.clip_like(folder / "tokenizer", "siglip")
        for path in (folder / "tokenizer").glob("tokenizer*"):
            path.rename(folder / path.name)
        model["text_cfg"] |= {"hf_tokenizer_name": "user/tokenizer"}
    if kind == "siglip":
        model |= {"init_logit_bias": -10, "custom_text": True}
        model["text_cfg"] |= {"tokenizer_kwargs": {"clean": "canonicalize"}}
    if kind == "bert":
        recipes_cases.hub_cases.bert(folder / "bert")
        model["text_cfg"] |= {"hf_model_name": str(folder / "bert")}
    plain = {"model_cfg": model, "preprocess_cfg": form}
    (folder / "open_clip_config.json").write_text(json.dumps(plain))
    torch.manual_seed(3)
    given = {k: v for k, v in model.items() if k != "custom_text"}
    state = Clip(**given).state_dict()
    if file.endswith(".safetensors"):
        save_file(state, str(folder / file))
    else:
        torch.save(state, folder / file)
    return folder


def filled(folder: Path, model, form, create_model) -> None:
    """The files of a model of open_clip itself, whose weights are large enough to show."""
    plain = {"model_cfg": model, "preprocess_cfg": form}
    (folder / "open_clip_config.json").write_text(json.dumps(plain))
    torch.manual_seed(0)
    body = create_model(f"local-dir:{folder}")
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.add_(torch.randn(parameter.shape) / 8)
    save_file({k: v.contiguous() for k, v in body.state_dict().items()}, str(folder / WEIGHTS))


class Image(nn.Module):
    """A model of timm without its classifier."""

    num_features = 6

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 4, 4)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, pixels):
        return self.norm(self.conv(pixels)).mean((2, 3))


def timm() -> types.SimpleNamespace:
    """The library, which knows two models."""
    known = ["resnet8", "resnet8x", "widenet"]

    def create_model(name, *, pretrained, num_classes):
        assert num_classes == 0
        with torch.random.fork_rng():
            if pretrained:
                torch.manual_seed(5)
            return Image()

    def get_pretrained_cfg(name):
        if name.endswith(".none"):
            raise RuntimeError("Invalid pretrained tag (none)")
        size = (3, 16, 24) if name == "widenet" else (3, 16, 16)
        return types.SimpleNamespace(input_size=size, mean=MEAN, std=DEVIATION)

    return types.SimpleNamespace(
        is_model=lambda name: name.partition(".")[0] in known,
        list_models=lambda: known,
        create_model=create_model,
        models=types.SimpleNamespace(get_pretrained_cfg=get_pretrained_cfg),
    )
