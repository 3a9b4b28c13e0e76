"""Pairs of encoders as open_clip has them: CLIP, SigLIP, CoCa, and towers of timm."""

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

from torch import Tensor, nn
from torch.nn.functional import pad

from counterfoil.core.io import read_json, write_json
from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch
from counterfoil.models.base import RetrievalModel, encode_batch
from counterfoil.models.layers import lora as lora_layers
from counterfoil.models.layers import pretrained as pretrained_module
from counterfoil.models.layers.pooling import (
    inner_pairs,
    inner_products,
    single_vector,
    unit_vectors,
)
from counterfoil.models.layers.pretrained import PictureFormat

# Models of open_clip by name or folder.


PREFIX = "open_clip:"
CONFIG = "open_clip_config.json"
HUB, FOLDER = "hf-hub:", "local-dir:"  # as open_clip says where a model is
REFUSED = (
    RuntimeError,
    OSError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    UnpicklingError,
)
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


def open_clip_place(name: str) -> OpenClipPlace:
    """Where the model of a name is, as in ``open_clip:ViT-B-32/laion2b_s34b_b79k``.

    Args:
        name: an architecture, one with a tag, ``hf-hub:USER/MODEL``, or a folder; ``open_clip:``
            before it may be left out.

    Raises:
        ValueError: open_clip is not installed, or does not know it; near ones are named.
    """
    given, theirs = name.removeprefix(PREFIX), open_clip_library()
    if given.startswith(HUB):
        return OpenClipPlace(given)
    if (Path(given) / CONFIG).is_file():
        return OpenClipPlace(f"{FOLDER}{given}")
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
    return OpenClipPlace(model, tag)


def hub_name(name: str) -> str | None:
    """Where on the hub the weights of a name are, as in ``timm/ViT-B-16-SigLIP``; None for others.

    Raises:
        ValueError: open_clip is not installed.
    """
    given = name.removeprefix(PREFIX)
    if given.startswith(HUB):
        return given.removeprefix(HUB)
    model, _, tag = given.partition("/")
    found = (
        open_clip_library().get_pretrained_cfg(model, tag)
        if tag and not Path(given).exists()
        else {}
    )
    text_to_image, _, rest = found.get("hf_hub", "").partition("/")
    named = rest.partition("/")[0]  # a file may be named behind it
    return f"{text_to_image}/{named}" if named else None


def open_clip_config(name: str) -> str:
    """What a model of open_clip is built from, as JSON that `load` reads.

    Raises:
        ValueError: there is no such model, or what says how it is built is damaged.
    """
    place = open_clip_place(name)
    model, pictures = _settings(place)
    try:
        text = model["text_cfg"]
        size = model["vision_cfg"].get("image_size", 224)
        language = text.get("hf_model_name")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} has no configuration of open_clip: {error!r}") from error
    config = json.loads(pretrained_module.written_config(language)) if language else None
    plain = {
        "model": model,
        "pictures": {"size": size, **pictures},
        "language": config,
        "pad": config["pad_token_id"] if config else _pad(text, place.folder),
    }
    return json.dumps(plain, sort_keys=True)


def open_clip_picture_format(name: str, config: str) -> PictureFormat:
    """How the model wants its pictures.

    Args:
        name: what it is called.
        config: what `open_clip_config` wrote.

    Raises:
        ValueError: they are no squares.
    """
    plain = json.loads(config)["pictures"]
    size = plain["size"]
    sides = set(size) if isinstance(size, list) else {size}
    if len(sides) != 1:
        raise ValueError(f"{name} reads pictures of size {size}; only square ones can be given")
    fit, scaled = plain.get("resize_mode") or "shortest", plain.get("interpolation") or "bicubic"
    theirs = open_clip_library()
    return PictureFormat(
        size=int(sides.pop()),
        mean=tuple(plain.get("mean") or theirs.OPENAI_DATASET_MEAN),
        deviation=tuple(plain.get("std") or theirs.OPENAI_DATASET_STD),
        crop=fit == "shortest",
        frame=f"{fit} {'bilinear' if scaled == 'bilinear' else 'bicubic'}",
    )


def load_open_clip(name: str, *, pretrained: bool, config: str) -> nn.Module:
    """The model of a name in single precision.

    Weights are read as safetensors, or as tensors alone: nothing is unpickled.

    Args:
        name: see `open_clip_place`.
        pretrained: load its weights, or where its name says none, those of its language model;
            else it starts from fresh ones, and neither a folder nor the hub is asked.
        config: what `open_clip_config` wrote.

    Raises:
        ValueError: open_clip is not installed, or cannot build or fill the model.
    """
    place = open_clip_place(name) if pretrained else None
    fresh = place is not None and place.fresh
    try:
        body = _built(json.loads(config), language=fresh)
        if place is not None and not fresh:
            weights = _weights(place)
            open_clip_library().load_checkpoint(body, str(weights), weights_only=True)
    except REFUSED as error:
        first = (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
        raise ValueError(f"{name} cannot be loaded as a model of open_clip: {first}") from error
    assert isinstance(body, nn.Module)
    return body.float().eval()


def open_clip_library() -> Any:
    """open_clip.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import open_clip
    except ImportError as error:
        raise ValueError('this needs open_clip: pip install "counterfoil[vision]"') from error
    return open_clip


def _settings(place: OpenClipPlace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the model, and of how pictures are prepared."""
    theirs = open_clip_library()
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


def _weights(place: OpenClipPlace) -> Path:
    theirs = open_clip_library()
    if place.tag:
        return Path(theirs.download_pretrained(theirs.get_pretrained_cfg(place.model, place.tag)))
    if place.folder is None:
        return _fetched(place, None)
    found = [place.folder / name for name in FILES if (place.folder / name).is_file()]
    if not found:
        raise ValueError(f"{place.folder} has a {CONFIG} but no weights; put {FILES[0]} beside it")
    return found[0]


def _fetched(place: OpenClipPlace, file: str | None) -> Path:
    """A file of a folder or of a model on the hub; None for its weights."""
    if place.folder is not None and file:
        return place.folder / file
    name = place.model.removeprefix(HUB)
    try:
        return Path(open_clip_library().pretrained.download_pretrained_from_hf(name, filename=file))
    except (OSError, ValueError, RuntimeError) as error:
        first = (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
        raise ValueError(f"{name} cannot be fetched from the hub: {first}") from error


def _pad(text: Mapping[str, Any], folder: Path | None) -> int:
    """What open_clip fills texts up with."""
    name = text.get("hf_tokenizer_name")
    if not name:
        return 0
    try:
        found = pretrained_module.hf_library().AutoTokenizer.from_pretrained(str(folder or name))
    except (OSError, ValueError) as error:
        first = (str(error).splitlines() or [repr(error)])[0]
        raise ValueError(f"{name!r} is no tokenizer that can be read here: {first}") from error
    return int(found.pad_token_id or 0)


def _built(plain: Mapping[str, Any], *, language: bool) -> nn.Module:
    """The model with fresh weights; those of its language model, if wanted, are public ones."""
    theirs, model = open_clip_library(), deepcopy(plain["model"])
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


ATTENTION = r".*\.resblocks\.\d+\.attn|.*\.attn\.(qkv|proj)|.*\.self\.(query|key|value)"
UNUSED = ("logit_", "text_decoder.")  # scale and bias belong to the objective


@final
class OpenClipModel(RetrievalModel):
    """A model of open_clip, its towers compared by cosine.

    Texts are padded to their full length with what open_clip pads them with.

    Attributes:
        written: what it is built from, as `config` wants it.

    Departs from the authors' code in: whether activations are QuickGELU is what the weights of a
    name were trained with, where theirs warns if a name says otherwise.
    """

    def __init__(
        self,
        *,
        name: str,
        pretrained: bool = True,
        config: str | None = None,
        lora: int = 0,
        apart: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            name: ``open_clip:`` and an architecture, with ``/`` and a tag for its weights,
                ``open_clip:hf-hub:USER/MODEL``, or a folder with ``open_clip_config.json``.
            pretrained: load its weights; else it starts from fresh ones.
            config: what it is built from as JSON, see `written`; asked of its name where None.
            lora: rank of adapters on the attention, which alone are trained; 0 to train everything.
            apart: keep adapters beside the weights in a finished model, which then needs peft; else
                they are merged.

        Raises:
            ValueError: open_clip is not installed, there is no such model, or it cannot have
                adapters.
        """
        super().__init__()
        if lora < 0:
            raise ValueError(f"lora={lora} is not possible; give a rank, or 0 to train everything")
        self.lora, self.apart = lora, apart
        self.written = config or open_clip_config(name)
        plain = json.loads(self.written)
        self.filler = int(plain["pad"] or 0)
        self.length = 0 if plain["language"] else open_clip_text_length(self.written)
        self.body = load_open_clip(name, pretrained=pretrained, config=self.written)
        if lora:
            self.body = lora_layers.add_lora(self.body, lora, ATTENTION)
        for parameter, value in self.body.named_parameters():
            if parameter.startswith(UNUSED):
                value.requires_grad_(False)

    def merge(self) -> None:
        """Add what adapters have learnt to the weights; the model then is one without adapters."""
        if self.lora:
            lora_layers.merge_lora(self.body)
            self.lora = 0

    def adopted(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What to load from the same model, with adapters or without."""
        return lora_layers.lora_state(self.state_dict(), state) if self.lora else dict(state)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Pixels (N, C, H, W) as one vector each."""
        body: Any = self.body
        pixels = images.values.to(next(self.body.parameters()).dtype)
        return unit_vectors(single_vector(body.encode_image(pixels)))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Token ids (N, L) as one vector each."""
        ids = texts.values.masked_fill(~texts.mask, self.filler)
        room = max(0, self.length - ids.shape[1])
        if self.length and ids.shape[1] > self.length:
            raise ValueError(
                f"texts of {ids.shape[1]} tokens do not fit a model that reads {self.length}; cut "
                "them"
            )
        body: Any = self.body
        return unit_vectors(single_vector(body.encode_text(pad(ids, (0, room), value=self.filler))))

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(P,) cosines of aligned pairs."""
        return inner_pairs(images, texts)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(I, T) cosines."""
        return inner_products(images, texts)

    def forward(self, batch: Batch) -> EncodedViews:
        """Trains as it is used."""
        return encode_batch(self, batch)


def open_clip_text_length(config: str) -> int:
    """How many tokens the model of this configuration reads at most."""
    return int(json.loads(config)["model"]["text_cfg"].get("context_length", 77))


def open_clip_width(config: str) -> int:
    """How wide the vectors of the model of this configuration are."""
    return int(json.loads(config)["model"]["embed_dim"])
