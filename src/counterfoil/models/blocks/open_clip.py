"""Models of open_clip by name or folder."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, final

from torch import nn

from counterfoil.files import read_json, write_json
from counterfoil.models.blocks import pretrained as hugging_face
from counterfoil.models.blocks.pretrained import PictureFormat

PREFIX = "open_clip:"
CONFIG = "open_clip_config.json"
HUB, FOLDER = "hf-hub:", "local-dir:"  # as open_clip says where a model is
REFUSED = (
    RuntimeError, OSError, LookupError, TypeError, AttributeError, AssertionError, UnpicklingError,
)  # fmt: skip
FILES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "model.safetensors",
    "open_clip_pytorch_model.bin",
    "open_clip_pytorch_model.pt",
)


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a model of open_clip is.

    Attributes:
        model: an architecture, ``hf-hub:USER/MODEL`` or ``local-dir:FOLDER``.
        tag: which weights of an architecture; "" for fresh ones.
    """

    model: str
    tag: str = ""

    @property
    def folder(self) -> Path | None:
        """Where it lies, if it is here."""
        return Path(self.model.removeprefix(FOLDER)) if self.model.startswith(FOLDER) else None

    @property
    def fresh(self) -> bool:
        """Whether nothing says which weights it has."""
        return not self.tag and not self.model.startswith((HUB, FOLDER))


def place_of(name: str) -> Place:
    """Where the model of a name is, as in ``open_clip:ViT-B-32/laion2b_s34b_b79k``.

    Args:
        name: an architecture, one with a tag, ``hf-hub:USER/MODEL``, or a folder; ``open_clip:``
            before it may be left out.

    Raises:
        ValueError: open_clip is not installed, or does not know it; near ones are named.
    """
    given, theirs = name.removeprefix(PREFIX), library()
    if given.startswith(HUB):
        return Place(given)
    if (Path(given) / CONFIG).is_file():
        return Place(f"{FOLDER}{given}")
    model, _, tag = given.partition("/")
    if model not in (known := list(theirs.list_models())):
        near = difflib.get_close_matches(model, known, 5, cutoff=0.3)
        raise ValueError(
            f"{name!r} is no model of open_clip, and no folder with {CONFIG}; near are: "
            f"{', '.join(near) or 'none'}"
        )
    tags = list(theirs.list_pretrained_tags_by_model(model))
    if tag and not theirs.get_pretrained_cfg(model, tag):
        near = difflib.get_close_matches(tag, tags, len(tags) or 1, cutoff=0)
        raise ValueError(
            f"{name!r}: open_clip has no weights {tag!r} of {model}; there are: "
            f"{', '.join(near) or 'none'}"
        )
    return Place(model, tag)


def hub_name(name: str) -> str | None:
    """Where on the hub the weights of a name are, as in ``timm/ViT-B-16-SigLIP``; None for others.

    Raises:
        ValueError: open_clip is not installed.
    """
    given = name.removeprefix(PREFIX)
    if given.startswith(HUB):
        return given.removeprefix(HUB)
    model, _, tag = given.partition("/")
    found = library().get_pretrained_cfg(model, tag) if tag and not Path(given).exists() else {}
    owner, _, rest = found.get("hf_hub", "").partition("/")
    named = rest.partition("/")[0]  # a file may be named behind it
    return f"{owner}/{named}" if named else None


def written_config(name: str) -> str:
    """What a model of open_clip is built from, as JSON that `load` reads.

    Raises:
        ValueError: there is no such model, or what says how it is built is damaged.
    """
    place = place_of(name)
    model, pictures = _settings(place)
    try:
        text = model["text_cfg"]
        size = model["vision_cfg"].get("image_size", 224)
        language = text.get("hf_model_name")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} has no configuration of open_clip: {error!r}") from error
    config = json.loads(hugging_face.written_config(language)) if language else None
    plain = {
        "model": model,
        "pictures": {"size": size, **pictures},
        "language": config,
        "pad": config["pad_token_id"] if config else _pad(text, place.folder),
    }
    return json.dumps(plain, sort_keys=True)


def picture_format(name: str, config: str) -> PictureFormat:
    """How the model wants its pictures.

    Args:
        name: what it is called.
        config: what `written_config` wrote.

    Raises:
        ValueError: they are no squares.
    """
    plain = json.loads(config)["pictures"]
    size = plain["size"]
    sides = set(size) if isinstance(size, list) else {size}
    if len(sides) != 1:
        raise ValueError(f"{name} reads pictures of size {size}; only square ones can be given")
    fit, scaled = plain.get("resize_mode") or "shortest", plain.get("interpolation") or "bicubic"
    theirs = library()
    return PictureFormat(
        size=int(sides.pop()),
        mean=tuple(plain.get("mean") or theirs.OPENAI_DATASET_MEAN),
        deviation=tuple(plain.get("std") or theirs.OPENAI_DATASET_STD),
        crop=fit == "shortest",
        frame=f"{fit} {'bilinear' if scaled == 'bilinear' else 'bicubic'}",
    )


def load(name: str, *, pretrained: bool, config: str) -> nn.Module:
    """The model of a name in single precision.

    Weights are read as safetensors, or as tensors alone: nothing is unpickled.

    Args:
        name: see `place_of`.
        pretrained: load its weights, or where its name says none, those of its language model;
            else it starts from fresh ones, and neither a folder nor the hub is asked.
        config: what `written_config` wrote.

    Raises:
        ValueError: open_clip is not installed, or cannot build or fill the model.
    """
    place = place_of(name) if pretrained else None
    fresh = place is not None and place.fresh
    try:
        body = _built(json.loads(config), language=fresh)
        if place is not None and not fresh:
            weights = _weights(place)
            library().load_checkpoint(body, str(weights), weights_only=True)
    except REFUSED as error:
        first = (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
        raise ValueError(f"{name} cannot be loaded as a model of open_clip: {first}") from error
    assert isinstance(body, nn.Module)
    return body.float().eval()


def library() -> Any:
    """open_clip.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import open_clip
    except ImportError as error:
        raise ValueError('this needs open_clip: pip install "counterfoil[vision]"') from error
    return open_clip


def _settings(place: Place) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the model, and of how pictures are prepared."""
    theirs = library()
    if not place.model.startswith((HUB, FOLDER)):
        model = deepcopy(theirs.get_model_config(place.model))
        found = theirs.get_pretrained_cfg(place.model, place.tag) if place.tag else {}
        if place.tag:  # what the weights were trained with
            model["quick_gelu"] = bool(found.get("quick_gelu", False))
        return model, _of_pictures(found)
    path = _fetched(place, CONFIG)
    plain = read_json(path, "a model of open_clip")
    if not isinstance(plain, dict) or not isinstance(plain.get("model_cfg"), dict):
        raise ValueError(f"{path} has no model_cfg, so it is no configuration of open_clip")
    return plain["model_cfg"], _of_pictures(plain.get("preprocess_cfg") or {})


def _of_pictures(found: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("size", "mean", "std", "interpolation", "resize_mode")
    return {key: found[key] for key in wanted if found.get(key) is not None}


def _weights(place: Place) -> Path:
    theirs = library()
    if place.tag:
        return Path(theirs.download_pretrained(theirs.get_pretrained_cfg(place.model, place.tag)))
    if place.folder is None:
        return _fetched(place, None)
    found = [place.folder / name for name in FILES if (place.folder / name).is_file()]
    if not found:
        raise ValueError(f"{place.folder} has a {CONFIG} but no weights; put {FILES[0]} beside it")
    return found[0]


def _fetched(place: Place, file: str | None) -> Path:
    """A file of a folder or of a model on the hub; None for its weights."""
    if place.folder is not None and file:
        return place.folder / file
    name = place.model.removeprefix(HUB)
    try:
        return Path(library().pretrained.download_pretrained_from_hf(name, filename=file))
    except (OSError, ValueError, RuntimeError) as error:
        first = (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
        raise ValueError(f"{name} cannot be fetched from the hub: {first}") from error


def _pad(text: Mapping[str, Any], folder: Path | None) -> int:
    """What open_clip fills texts up with."""
    name = text.get("hf_tokenizer_name")
    if not name:
        return 0
    try:
        found = hugging_face.library().AutoTokenizer.from_pretrained(str(folder or name))
    except (OSError, ValueError) as error:
        first = (str(error).splitlines() or [repr(error)])[0]
        raise ValueError(f"{name!r} is no tokenizer that can be read here: {first}") from error
    return int(found.pad_token_id or 0)


def _built(plain: Mapping[str, Any], *, language: bool) -> nn.Module:
    """The model with fresh weights; those of its language model, if wanted, are public ones."""
    theirs, model = library(), deepcopy(plain["model"])
    text, vision = model["text_cfg"], model["vision_cfg"]
    custom = model.pop("custom_text", False) or bool(plain["language"])
    make = theirs.CustomTextCLIP if custom else theirs.CLIP
    if custom and "multimodal_cfg" in model:
        make = theirs.CoCa
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    with tempfile.TemporaryDirectory() as folder:
        if plain["language"] and not language:
            write_json(Path(folder) / "config.json", plain["language"])
            text |= {"hf_model_name": folder, "hf_model_pretrained": False}
        made: nn.Module = make(**model)
    return made
