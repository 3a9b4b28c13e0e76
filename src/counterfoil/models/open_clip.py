"""Dual encoders of open_clip: CLIP, SigLIP, CoCa, and towers of timm."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import nn
from torch.nn.functional import pad

from counterfoil.core.io import read_json, write_json
from counterfoil.core.model_files import check_model_folder
from counterfoil.core.optional import first_line, hub_options, optional_import
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers import pretrained as pretrained_layers
from counterfoil.models.layers.lora import LoRADualEncoder, add_lora
from counterfoil.models.layers.pooling import single_vector, unit_vectors
from counterfoil.models.layers.positions import load_stretched, stretched_length
from counterfoil.models.layers.pretrained import PictureFormat, channel_numbers

# Names, configurations and weights of open_clip models.


PREFIX = "open_clip:"
CONFIG = "open_clip_config.json"
HUB, FOLDER = "hf-hub:", "local-dir:"  # open_clip's prefixes of model names
FILES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "model.safetensors",
    "open_clip_pytorch_model.bin",
    "open_clip_pytorch_model.pt",
)


@final
@dataclass(frozen=True, slots=True)
class OpenClipPlace:
    """The location of an open_clip model."""

    model: str  # an architecture, ``hf-hub:USER/MODEL`` or ``local-dir:FOLDER``
    tag: str = ""  # pretrained weights of an architecture; "" for fresh ones

    @property
    def folder(self) -> Path | None:
        """The local folder; None for other locations."""
        return Path(self.model.removeprefix(FOLDER)) if self.model.startswith(FOLDER) else None

    @property
    def fresh(self) -> bool:
        """True if no pretrained weights are named."""
        return not self.tag and not self.model.startswith((HUB, FOLDER))


def open_clip_place(name: str) -> OpenClipPlace:
    """Return the location of a named model, as in ``open_clip:ViT-B-32/laion2b_s34b_b79k``.

    Args:
        name: an architecture, one with a tag, ``hf-hub:USER/MODEL``, or a folder; ``open_clip:``
            before it may be left out.
    """
    path, library = name.removeprefix(PREFIX), open_clip_library()
    if path.startswith(HUB):
        return OpenClipPlace(path)
    if (Path(path) / CONFIG).is_file():
        check_model_folder(Path(path))
        return OpenClipPlace(f"{FOLDER}{path}")
    model, _, tag = path.partition("/")
    if model not in (known := list(library.list_models())):
        near = difflib.get_close_matches(model, known, 5, cutoff=0.3)
        raise ValueError(
            f"{name!r} is no model of open_clip, and no folder with {CONFIG}; near are: "
            f"{', '.join(near) or 'none'}"
        )
    tags = list(library.list_pretrained_tags_by_model(model))
    if tag and not library.get_pretrained_cfg(model, tag):
        near = difflib.get_close_matches(tag, tags, len(tags) or 1, cutoff=0)
        raise ValueError(
            f"{name!r}: open_clip has no weights {tag!r} of {model}; there are: "
            f"{', '.join(near) or 'none'}"
        )
    return OpenClipPlace(model, tag)


def hub_name(name: str) -> str | None:
    """Return the hub repository of a model, as in ``timm/ViT-B-16-SigLIP``; None for others."""
    path = name.removeprefix(PREFIX)
    if path.startswith(HUB):
        return path.removeprefix(HUB)
    model, _, tag = path.partition("/")
    if not tag or Path(path).exists():
        return None
    weights = open_clip_library().get_pretrained_cfg(model, tag)
    user, _, rest = weights.get("hf_hub", "").partition("/")
    repository = rest.partition("/")[0]  # a file may be named behind it
    return f"{user}/{repository}" if repository else None


def open_clip_config(name: str) -> str:
    """Return the configuration of an open_clip model, as JSON for `load_open_clip`."""
    place = open_clip_place(name)
    model, pictures = _settings(place)
    try:
        text = model["text_cfg"]
        size = model["vision_cfg"].get("image_size", 224)
        language = text.get("hf_model_name")
        sizes = {"embed_dim": model["embed_dim"], "image_size": size}
        sizes["context_length"] = text.get("context_length", 77)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} has no configuration of open_clip: {error!r}") from error
    for key, value in sizes.items():
        if not all(type(n) is int and n > 0 for n in (value if type(value) is list else [value])):
            raise ValueError(f"{name} gives {key} {value!r}; a whole number above 0 is needed")
    config = json.loads(pretrained_layers.read_config_json(language)) if language else None
    plain = {
        "model": model,
        "pictures": {"size": size, **pictures},
        "language": config,
        "pad": config["pad_token_id"] if config else _pad(text, place.folder),
    }
    return json.dumps(plain, sort_keys=True)


def open_clip_picture_format(name: str, config: str) -> PictureFormat:
    """Return the picture format that a model expects; `name` is for messages."""
    plain = json.loads(config)["pictures"]
    size = plain["size"]
    sides = set(size) if isinstance(size, list) else {size}
    if len(sides) != 1:
        raise ValueError(f"{name} reads pictures of size {size}; only square ones can be given")
    fit, scaled = plain.get("resize_mode") or "shortest", plain.get("interpolation") or "bicubic"
    library = open_clip_library()
    return PictureFormat(
        size=int(sides.pop()),
        mean=channel_numbers(name, "mean", plain.get("mean") or library.OPENAI_DATASET_MEAN),
        deviation=channel_numbers(name, "std", plain.get("std") or library.OPENAI_DATASET_STD),
        crop=fit == "shortest",
        frame=f"{fit} {'bilinear' if scaled == 'bilinear' else 'bicubic'}",
    )


def load_open_clip(name: str, *, pretrained: bool, config: str) -> nn.Module:
    """Load the model of a name, in single precision.

    Weights are read as safetensors, or as tensors alone: nothing is unpickled.

    Args:
        name: see `open_clip_place`.
        pretrained: load its weights, or where its name says none, those of its language model;
            else it starts from fresh ones, and neither a folder nor the hub is asked.
        config: as `open_clip_config` returns it.
    """
    place = open_clip_place(name) if pretrained else None
    fresh = place is not None and place.fresh
    try:
        body = _build(json.loads(config), language=fresh)
        if place is not None and not fresh:
            weights = _weights(place)
            open_clip_library().load_checkpoint(body, str(weights), weights_only=True)
    except Exception as error:  # libraries raise anything at damaged files
        raise ValueError(
            f"{name} cannot be loaded as a model of open_clip: {first_line(error)}"
        ) from error
    assert isinstance(body, nn.Module)
    return body.float().eval()


def open_clip_library() -> Any:
    """Import open_clip, which is optional."""
    return optional_import("open_clip", 'this needs open_clip: pip install "counterfoil[vision]"')


def _settings(place: OpenClipPlace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configurations of the model and of its picture preprocessing."""
    library = open_clip_library()
    if not place.model.startswith((HUB, FOLDER)):
        model = deepcopy(library.get_model_config(place.model))
        weights = library.get_pretrained_cfg(place.model, place.tag) if place.tag else {}
        if place.tag:  # as in the training of the weights, whatever the architecture's name says
            model["quick_gelu"] = bool(weights.get("quick_gelu", False))
        return model, _picture_settings(weights)
    path = _model_file(place, CONFIG)
    plain = read_json(path, "a model of open_clip")
    if not isinstance(plain, dict) or not isinstance(plain.get("model_cfg"), dict):
        raise ValueError(f"{path} has no model_cfg, so it is no configuration of open_clip")
    return plain["model_cfg"], _picture_settings(plain.get("preprocess_cfg") or {})


def _picture_settings(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("size", "mean", "std", "interpolation", "resize_mode")
    return {key: preprocessing[key] for key in keys if preprocessing.get(key) is not None}


def _weights(place: OpenClipPlace) -> Path:
    library = open_clip_library()
    if place.tag:
        return Path(library.download_pretrained(library.get_pretrained_cfg(place.model, place.tag)))
    if place.folder is None:
        return _model_file(place, None)
    files = [place.folder / name for name in FILES if (place.folder / name).is_file()]
    if not files:
        raise ValueError(f"{place.folder} has a {CONFIG} but no weights; put {FILES[0]} beside it")
    return files[0]


def _model_file(place: OpenClipPlace, file: str | None) -> Path:
    """Return the path of a file of a model, fetched from the hub if needed; None: its weights."""
    if place.folder is not None and file:
        return place.folder / file
    name = place.model.removeprefix(HUB)
    try:
        return Path(open_clip_library().pretrained.download_pretrained_from_hf(name, filename=file))
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be fetched from the hub: {first_line(error)}") from error


def _pad(text: Mapping[str, Any], folder: Path | None) -> int:
    """Return the token id that open_clip pads texts with."""
    name = text.get("hf_tokenizer_name")
    if not name:
        return 0
    try:
        tokenizer = pretrained_layers.import_transformers().AutoTokenizer.from_pretrained(
            str(folder or name), **hub_options(str(folder or name))
        )
    except Exception as error:  # libraries raise anything at damaged files
        raise ValueError(
            f"{name!r} is no tokenizer that can be read here: {first_line(error)}"
        ) from error
    return int(tokenizer.pad_token_id or 0)


def _build(plain: Mapping[str, Any], *, language: bool) -> nn.Module:
    """Build the model with fresh weights; `language` loads its language model's public ones."""
    library, model = open_clip_library(), deepcopy(plain["model"])
    text, vision = model["text_cfg"], model["vision_cfg"]
    custom = model.pop("custom_text", False) or bool(plain["language"])
    make = library.CustomTextCLIP if custom else library.CLIP
    if custom and "multimodal_cfg" in model:
        make = library.CoCa
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    with tempfile.TemporaryDirectory() as folder:
        if plain["language"] and not language:
            write_json(Path(folder) / "config.json", plain["language"])
            text |= {"hf_model_name": folder, "hf_model_pretrained": False}
        elif not language:  # a card that names a language model on the hub
            text.pop("hf_model_name", None)
        made: nn.Module = make(**model)
    return made


ATTENTION = r".*\.resblocks\.\d+\.attn|.*\.attn\.(qkv|proj)|.*\.self\.(query|key|value)"
POSITIONS = ("positional_embedding", "text.positional_embedding")
UNUSED = ("logit_", "text_decoder.")  # scale and bias belong to the objective


@final
class OpenClipModel(LoRADualEncoder):
    """A dual encoder of open_clip, compared by cosine.

    Texts are padded to the full length with open_clip's padding token.

    Attributes:
        written: its configuration as JSON, as the argument `config` takes it.

    Departs from the authors' code in: whether activations are QuickGELU is what the weights of a
    name were trained with, where theirs warns if a name says otherwise.
    """

    @classmethod
    def pretrained_name(cls, arguments: Mapping[str, Any]) -> str | None:
        """That of its weights on the hub, if they are there."""
        return hub_name(str(arguments.get("name", "")))

    def __init__(
        self,
        *,
        name: str,
        pretrained: bool = True,
        config: str | None = None,
        lora: int = 0,
        apart: bool = False,
        positions: int = 0,
    ) -> None:
        """Initialise the module.

        Args:
            name: ``open_clip:`` and an architecture, with ``/`` and a tag for its weights,
                ``open_clip:hf-hub:USER/MODEL``, or a folder with ``open_clip_config.json``.
            pretrained: load its weights; else it starts from fresh ones.
            config: its configuration as JSON, see `written`; looked up by name where None.
            lora: rank of adapters on the attention, which alone are trained; 0 to train everything.
            apart: keep adapters beside the weights in a finished model, which then needs peft; else
                they are merged.
            positions: number of text positions, to which those of a CLIP are stretched, see
                `counterfoil.models.layers.positions`; 0 for its own.

        Raises:
            ValueError: open_clip is not installed, there is no such model, or it cannot have
                adapters or more positions.
        """
        super().__init__(lora, apart=apart)
        self.config_json = config or open_clip_config(name)
        self.body = load_open_clip(name, pretrained=pretrained, config=self.config_json)
        if positions and positions != open_clip_text_length(self.config_json):
            self.config_json, self.body = _stretched(name, self.config_json, self.body)
        plain = json.loads(self.config_json)
        self.filler = int(plain["pad"] or 0)
        words = plain["model"]["text_cfg"].get("vocab_size", self.filler + 1)
        if not (plain["language"] or self.filler < words):
            raise ValueError(
                f"the tokenizer of {name} pads with the id {self.filler}, and the model has {words}"
            )
        self.length = 0 if plain["language"] else open_clip_text_length(self.config_json)
        if lora:
            self.body = add_lora(self.body, lora, ATTENTION)
        for parameter, value in self.body.named_parameters():
            if parameter.startswith(UNUSED):
                value.requires_grad_(False)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode pixels (N, C, H, W) as one unit vector each."""
        body: Any = self.body
        pixels = images.values.to(next(self.body.parameters()).dtype)
        return unit_vectors(single_vector(body.encode_image(pixels)))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode token ids (N, L) as one unit vector each."""
        ids = texts.values.masked_fill(~texts.mask, self.filler)
        room = max(0, self.length - ids.shape[1])
        if self.length and ids.shape[1] > self.length:
            raise ValueError(
                f"texts of {ids.shape[1]} tokens do not fit a model that reads {self.length}; cut "
                "them"
            )
        body: Any = self.body
        return unit_vectors(single_vector(body.encode_text(pad(ids, (0, room), value=self.filler))))


def _stretched(name: str, config: str, body: nn.Module) -> tuple[str, nn.Module]:
    """The configuration and the model with stretched text positions."""
    plain = json.loads(config)
    text = plain["model"]["text_cfg"]
    key = next((key for key in POSITIONS if key in body.state_dict()), None)
    if plain["language"] or text.get("no_causal_mask") or key is None:
        raise ValueError(
            f"{name} reads captions in another way than CLIP does, whose text positions alone are "
            "stretched: leave --long-captions out"
        )
    text["context_length"] = stretched_length(open_clip_text_length(config))
    longer_config = json.dumps(plain, sort_keys=True)
    longer = load_open_clip(name, pretrained=False, config=longer_config)
    load_stretched(longer, body, key)
    return longer_config, longer


def open_clip_text_length(config: str) -> int:
    """Return the maximum text length in tokens of the model of this configuration."""
    return int(json.loads(config)["model"]["text_cfg"].get("context_length", 77))


def open_clip_width(config: str) -> int:
    """Return the width of the vectors of the model of this configuration."""
    return int(json.loads(config)["model"]["embed_dim"])
