"""Hugging Face models by folder or name."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, affine_grid, grid_sample

from counterfoil.core.io import read_json
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    check_positive,
    full_mask,
    masked_ids,
    projection,
)
from counterfoil.models.layers.towers import WordDrop, check_share, drop_cells

FILES = ("model.safetensors", "pytorch_model.bin")
HALF = (0.5, 0.5, 0.5)


@final
@dataclass(frozen=True, slots=True)
class PictureFormat:
    """How a model wants its pictures.

    Attributes:
        size: side in pixels.
        mean: of each channel, in 0..1.
        deviation: of each channel, in 0..1.
        crop: the middle square is cut out; else the picture is squeezed.
        frame: more exactly, what comes first and how it is scaled, where that is known.
    """

    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    crop: bool
    frame: str = ""


def encoder_folder(folder: Path) -> Path:
    """Where the encoder lies in a folder; inside, where sentence-transformers saved it there.

    Args:
        folder: any that exists.

    Raises:
        ValueError: it is of sentence-transformers, and its vectors go through layers of others.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        return folder
    plain = read_json(modules, "modules of sentence-transformers")
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in plain]
        inner = folder / str(plain[0]["path"])
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{modules} is damaged: {error!r}") from error
    if more := [kind for kind in kinds[1:] if kind != "Normalize"]:
        raise ValueError(
            f"{folder} is a model of sentence-transformers with a module {more[0]} after its "
            "encoder; only those with a CLIP or SigLIP alone can be opened"
        )
    if not inner.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{modules} names a folder outside of {folder}; the file is refused")
    return inner


def picture_format(name: str) -> PictureFormat:
    """How the model of this folder or name wants its pictures.

    Raises:
        ValueError: it has no image processor that says so.
    """
    transformers = hf_library()
    try:
        plain, _ = transformers.ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name} does not say how its pictures are prepared: it has no preprocessor_config.json"
        ) from error
    crop = bool(plain.get("do_center_crop"))
    normalised = plain.get("do_normalize", True)
    return PictureFormat(
        size=_side(name, plain.get("crop_size" if crop else "size")),
        mean=tuple(plain.get("image_mean") or HALF) if normalised else (0.0, 0.0, 0.0),
        deviation=tuple(plain.get("image_std") or HALF) if normalised else (1.0, 1.0, 1.0),
        crop=crop or "shortest_edge" in _mapping(plain.get("size")),
    )


def config_of(name: str) -> Any:
    """The configuration of the model of this folder or name.

    Raises:
        ValueError: transformers is not installed, or there is no such model.
    """
    try:
        return hf_library().AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_missing(name, error)) from error


def written_config(name: str) -> str:
    """The configuration of the model of this folder or name, as JSON that `load` reads.

    Raises:
        ValueError: transformers is not installed, or there is no such model.
    """
    return config_as_dict(config_of(name))


def config_as_dict(config: Any) -> str:
    """A configuration as JSON that `load` reads."""
    return json.dumps(json.loads(config.to_json_string(use_diff=False)), sort_keys=True)


def weights_file(name: str) -> Path:
    """Where the weights of a folder or name lie; those of a name are fetched.

    Raises:
        ValueError: transformers is not installed, or there are none in one file.
    """
    reason = ""
    for file in FILES:
        try:
            found = hf_library().utils.cached_file(name, file)
        except (OSError, ValueError) as error:
            reason = reason or (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
            continue
        return Path(found)
    raise ValueError(f"{name} has no {' or '.join(FILES)} that can be read here: {reason}")


def load_hf_model(name: str, *, pretrained: bool, config: str | None = None) -> nn.Module:
    """The model of this folder or name in single precision; with fresh weights if not pretrained.

    Args:
        name: folder or name.
        pretrained: load its weights.
        config: what `open_clip_config` wrote, for a model with fresh weights; then nothing is asked
            of the folder or the hub.

    Raises:
        ValueError: transformers is not installed, or there is no such model.
    """
    transformers = hf_library()
    quiet = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        if pretrained:
            model = transformers.AutoModel.from_pretrained(name, dtype=torch.float32)
        else:
            found = _read_config(config) if config else config_of(name)
            model = transformers.AutoModel.from_config(found, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_missing(name, error)) from error
    finally:
        transformers.utils.logging.set_verbosity(quiet)
    assert isinstance(model, nn.Module)
    return model.eval()


def freeze_unused(module: nn.Module, output: Tensor) -> None:
    """Freeze the parameters of a model that the output does not depend on.

    A pretrained model brings heads that a tower never reads; distributed training must not wait
    for their gradients.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if not output.requires_grad:
        return
    grads = torch.autograd.grad(output.sum(), trained, allow_unused=True)
    for parameter, grad in zip(trained, grads, strict=True):
        parameter.requires_grad_(grad is not None)


def hf_library() -> Any:
    """Hugging Face transformers.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            'this needs Hugging Face transformers: pip install "counterfoil[hf]"'
        ) from error
    return transformers


def _read_config(written: str) -> Any:
    plain = json.loads(written)
    return hf_library().AutoConfig.for_model(plain.pop("model_type"), **plain)


def _missing(name: str, error: Exception) -> str:
    reason = (str(error).splitlines() or [repr(error)])[0].rstrip(". ")
    return (
        f"{name} cannot be loaded as a Hugging Face model: {reason}; give a folder with "
        "config.json and weights, or the name of a model on the hub"
    )


def _mapping(size: object) -> dict[str, int]:
    return dict(size) if isinstance(size, dict) else {}


def _side(name: str, size: object) -> int:
    """The side of a square, from the forms that processors write it in."""
    sides = _mapping(size)
    found = {sides[key] for key in ("height", "width", "shortest_edge") if key in sides}
    if isinstance(size, int):
        found = {size}
    if len(found) != 1:
        raise ValueError(f"{name} reads pictures of size {size}; only square ones can be given")
    return int(found.pop())


# Wordpieces through BERT.


@final
class BertTextTower(TextTower):
    """Last hidden states of a Hugging Face text model, projected."""

    def __init__(
        self,
        *,
        name: str,
        width: int = 1024,
        trained: bool = True,
        pretrained: bool = True,
        dropout: float = 0.0,
        word_drop: float = 0.0,
        mask: int | None = None,
        config: str | None = None,
    ) -> None:
        """Keyword arguments.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too.
            pretrained: load its weights; else it starts from fresh ones.
            dropout: share of entries of the projected states that is dropped in training.
            word_drop: share of words that are masked, replaced or deleted in training, all pieces
                of a word alike, see `drop_words`; special tokens stay.
            mask: id of the tokenizer's mask token, where words are dropped.
            config: its configuration as JSON, for a model that starts from fresh weights; then
                neither the folder nor the hub is asked.

        Raises:
            ValueError: there is no such model, or words are to be dropped without a mask.
        """
        super().__init__()
        check_positive(width=width)
        if word_drop and mask is None:
            raise ValueError(
                f"word_drop={word_drop} needs mask, the id of the tokenizer's mask token, such as "
                "103 for bert-base-uncased"
            )
        self.width, self.trained, self.mask = width, trained, mask
        model = load_hf_model(name, pretrained=pretrained, config=config)
        self.body: nn.Module = getattr(model, "text_model", model).requires_grad_(trained)
        one = torch.zeros(1, 1, dtype=torch.long)
        seen = self._states(one, one == 0)
        freeze_unused(self.body, seen)
        self.fc = projection(seen.shape[-1], width)
        self.dropout = nn.Dropout(dropout)
        tokens = _vocabulary(self.body) if word_drop else 1
        self.augment = WordDrop(share=word_drop, mask=mask or 0, vocabulary=tokens, ends=False)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Read every text."""
        items = self.augment(items)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            states = self._states(masked_ids(items), items.mask)
        return Embeddings(self.dropout(self.fc(states)), items.mask)

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a model that is not trained stays in evaluation."""
        super().train(mode)
        if not self.trained:
            self.body.eval()
        return self

    @property
    def written(self) -> str:
        """Its configuration as JSON, as the argument `config` takes it."""
        return config_as_dict(self.body.config)

    def word_table(self) -> nn.Module:
        """Return the embedding table of token ids."""
        table: nn.Module = self.body.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int | None:
        """Id of the tokenizer's mask token, where it was given."""
        return self.mask

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return states


def _vocabulary(body: nn.Module) -> int:
    """How many tokens the model knows."""
    return int(body.get_input_embeddings().num_embeddings)  # type: ignore[operator]


# Pixels through a pretrained vision model.


@final
class HFVisionTower(ImageTower):
    """Grid features of a Hugging Face vision model (ViT, CLIP, MobileNetV2, ...), projected.

    A transformer's class token is one of the tokens. Where the model is not trained, what it makes
    of a picture stays the same: `states` may be kept, and read in place of the picture.

    Attributes:
        written: the model's configuration, as `config` wants it.
    """

    def __init__(
        self,
        *,
        name: str,
        width: int = 1024,
        trained: bool = False,
        pretrained: bool = True,
        grid: int = 0,
        config: str | None = None,
    ) -> None:
        """Keyword arguments.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too; else it stays as it is, also its batch norms.
            pretrained: load its weights; else it starts from fresh ones.
            grid: average a convolutional map to so many cells a side; 0 leaves it as it is.
            config: the model's configuration as JSON, for one that starts from fresh weights; then
                neither the folder nor the hub is asked.

        Raises:
            ValueError: there is no such model, it gives no grid of features, or none that could be
                averaged.
        """
        super().__init__()
        check_positive(width=width)
        if grid < 0:
            raise ValueError(f"grid={grid} is not possible; give 0 or more cells a side")
        model = load_hf_model(name, pretrained=pretrained, config=config)
        self.written = config or _brief(written_config(name))
        self.width, self.trained, self.side = width, trained, grid
        self.body: nn.Module = getattr(model, "vision_model", model)
        self.body.requires_grad_(trained)
        side = _input_size(self.body)
        seen = self._states(torch.zeros(1, 3, side, side))
        freeze_unused(self.body, seen)
        self.fc = projection(seen.shape[-1], width)

    @property
    def still(self) -> str | None:
        """How cells are averaged, where `states` of a picture stay the same."""
        return None if self.trained else f"grid {self.side}"

    def states(self, images: ModalityBatch) -> Tensor:
        """(N, L, F) what the model makes of pixels (N, C, H, W), before the projection."""
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            return self._states(images.values.to(self.fc.weight.dtype))

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Project every cell of the grid, of pixels or of their `states`."""
        seen = items.values.dim() == 3
        tokens = items.values.to(self.fc.weight.dtype) if seen else self.states(items)
        if tokens.shape[-1] != self.fc.in_features:
            raise ValueError(
                f"stored states of shape {tuple(tokens.shape)} do not fit a model that reads "
                f"(images, cells, {self.fc.in_features}); make them with this model"
            )
        return Embeddings(self.fc(tokens), full_mask(tokens))

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a model that is not trained stays in evaluation."""
        super().train(mode)
        if not self.trained:
            self.body.eval()
        return self

    def _states(self, pixels: Tensor) -> Tensor:
        """Last hidden states, a map as its cells row by row."""
        laid = pixels.contiguous(memory_format=torch.channels_last)
        found = getattr(self.body(pixel_values=laid), "last_hidden_state", None)
        if not isinstance(found, Tensor) or (self.side and found.dim() != 4):
            lacks = f"map to average to {self.side} x {self.side} cells" if self.side else "grid"
            raise ValueError(
                f"{type(self.body).__name__} gives no {lacks}; use a vision model"
                + (", or set grid=0" if self.side else "")
            )
        if found.dim() != 4:
            return found
        cells = adaptive_avg_pool2d(found, self.side) if self.side else found
        return cells.flatten(2).transpose(1, 2)


def _brief(config: str) -> str:
    """Without the names of classes, of which there may be thousands."""
    plain = json.loads(config)
    told = {key: plain[key] for key in plain if key not in ("id2label", "label2id")}
    return json.dumps(told, sort_keys=True)


def _input_size(body: nn.Module) -> int:
    config: Any = getattr(body, "config", None)
    size = getattr(getattr(config, "vision_config", config), "image_size", 224)
    return int(size[0] if isinstance(size, list | tuple) else size)


# timm, where it is installed, and the networks that it makes.


PREFIX = "timm:"  # of names that this library builds itself from towers of timm


def timm_library(what: str = "this") -> Any:
    """The package.

    Args:
        what: needs it, for the error.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import timm
    except ImportError as error:
        raise ValueError(f'{what} needs timm: pip install "counterfoil[vision]"') from error
    return timm


def timm_network(name: str, *, pretrained: bool) -> nn.Module:
    """A network without its classifier.

    Raises:
        ValueError: timm is not installed, or cannot make it.
    """
    timm = timm_library(f"the network {name!r}")
    try:
        made: Any = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except (RuntimeError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [repr(error)])[0]
        raise ValueError(f"timm cannot make {name!r}: {first}") from error
    assert isinstance(made, nn.Module)
    return made


# Pixels through any image model of timm, as one vector.


@final
class TimmTower(ImageTower):
    """What an image model of timm hands to its classifier, projected.

    The model stays in evaluation mode, so its batch norms keep their statistics. Where it is not
    trained, what it makes of a picture stays the same: `states` may be kept, and read in place of
    the picture.
    """

    def __init__(
        self, *, name: str, width: int = 512, trained: bool = True, pretrained: bool = True
    ) -> None:
        """Keyword arguments.

        Args:
            name: timm's name of the model, as in "resnet50" or "vit_base_patch16_224.augreg_in21k".
            width: of the joint space.
            trained: train the model too.
            pretrained: load its weights; else it starts from fresh ones.

        Raises:
            ValueError: timm is not installed or does not know the model.
        """
        super().__init__()
        check_positive(width=width)
        self.name, self.width, self.trained = name, width, trained
        size = timm_format(name).size  # which refuses names that timm does not know
        self.body = timm_network(name, pretrained=pretrained).requires_grad_(trained)
        with torch.no_grad():
            seen = self.body.eval()(torch.zeros(1, 3, size, size))
        self.fc = projection(seen.shape[-1], width)
        self.train()

    @property
    def still(self) -> str | None:
        """By what `states` of a picture are known, where they stay the same.

        Weights tell neither strides nor padding of a model.
        """
        return None if self.trained else f"{self.name}, pooled"

    def states(self, images: ModalityBatch) -> Tensor:
        """(N, 1, F) what the model makes of pixels (N, C, H, W), before the projection."""
        pixels = images.values.to(self.fc.weight.dtype)
        laid = pixels.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            found: Tensor = self.body(laid)
        return found.unsqueeze(1)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """One vector of each picture, or of its `states`."""
        seen = items.values.dim() == 3
        states = items.values.to(self.fc.weight.dtype) if seen else self.states(items)
        tokens = self.fc(states)
        return Embeddings(tokens, full_mask(tokens))

    def train(self, mode: bool = True) -> Self:
        """Switch to training; the model itself stays in evaluation."""
        super().train(mode)
        self.body.eval()
        return self


def timm_format(name: str) -> PictureFormat:
    """How a model of timm wants its pictures: all of a picture, squeezed to a square.

    Raises:
        ValueError: timm is not installed, or does not know the model; near ones are named.
    """
    timm = timm_library()
    _check(name)
    try:
        found = timm.models.get_pretrained_cfg(name)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"timm has no weights of {name!r}: {error}") from error
    _, height, wide = getattr(found, "input_size", None) or (3, 224, 224)
    if height != wide:
        raise ValueError(f"{name} reads pictures of {height} x {wide}; only squares can be given")
    return PictureFormat(
        size=int(wide),
        mean=tuple(getattr(found, "mean", None) or HALF),
        deviation=tuple(getattr(found, "std", None) or HALF),
        crop=False,
    )


def _check(name: str) -> None:
    timm = timm_library()
    if timm.is_model(name):
        return
    near = difflib.get_close_matches(name, timm.list_models(), 5, cutoff=0.3)
    raise ValueError(f"{name!r} is no model of timm; near are: {', '.join(near) or 'none'}")


# Pixels through a convolutional network of timm, one vector for each cell of its last map.


@final
class TimmGridTower(ImageTower):
    """Grid features of a network that is trained along (GPO, CVPR 2021, section 4.1), projected.

    The network stays in evaluation mode, so its batch norms keep their statistics. To keep it still
    at first and slower afterwards, give the optimiser a group, as in
    ``Group(match="image.body.*", rate=0.1, begins=1)``.

    In training pictures are cut to a random part and mirrored at random, on the device, each with
    its own draw.

    Departs from the authors' code in: pictures are cut after they have been brought to one size,
    which the processor does by cubic instead of linear interpolation.
    """

    def __init__(
        self,
        *,
        name: str = "resnext101_32x8d",
        width: int = 1024,
        trained: bool = True,
        pretrained: bool = True,
        smallest: float = 1.0,
        mirror: float = 0.0,
        cell_drop: float = 0.0,
    ) -> None:
        """Keyword arguments.

        Args:
            name: timm's name of the network.
            width: of the joint space.
            trained: train the network too.
            pretrained: load its weights; else it starts from fresh ones.
            smallest: least share of both sides that is left of a picture in training; the authors
                take 0.6.
            mirror: share of pictures that are mirrored in training; the authors take 0.5.
            cell_drop: see `drop_cells`; the authors take 0.2.

        Raises:
            ValueError: timm is not installed or does not know the network, or a share is not
                possible.
        """
        super().__init__()
        check_positive(width=width)
        if not (0 < smallest <= 1 and 0 <= mirror <= 1):
            raise ValueError(
                f"smallest={smallest}, mirror={mirror}: give shares up to 1, of which the first is "
                "above 0"
            )
        self.cell_drop = check_share(cell_drop, "cell_drop")
        self.width, self.trained, self.smallest, self.mirror = width, trained, smallest, mirror
        self.body = timm_network(name, pretrained=pretrained).requires_grad_(trained)
        self.fc = projection(int(self.body.num_features), width)  # type: ignore[arg-type]
        self.train()

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Project every cell of the grid, row by row."""
        if items.values.dim() != 4 or items.values.shape[1] != 3:
            raise ValueError(
                f"pictures of shape {tuple(items.values.shape)} do not fit a model that reads "
                "(images, 3, height, width)"
            )
        pixels = items.values.to(self.fc.weight.dtype)
        if self.training:
            pixels = random_crop(pixels, smallest=self.smallest, mirror=self.mirror)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            found = self._map(pixels.contiguous(memory_format=torch.channels_last))
        tokens = self.fc(found.flatten(2).transpose(1, 2))
        bag = Embeddings(tokens, full_mask(tokens))
        return drop_cells(bag, self.cell_drop) if self.training else bag

    def train(self, mode: bool = True) -> Self:
        """Switch to training; the network itself stays in evaluation."""
        super().train(mode)
        self.body.eval()
        return self

    def _map(self, pixels: Tensor) -> Tensor:
        """(N, F, H, W) the last map."""
        found: Tensor = self.body.forward_features(pixels)  # type: ignore[operator]
        features = self.fc.in_features
        if found.dim() == 4 and found.shape[1] != features:
            found = found.permute(0, 3, 1, 2)  # some keep the width last
        if found.dim() != 4 or found.shape[1] != features:
            raise ValueError(
                f"{type(self.body).__name__} gives {tuple(found.shape)}, which is no map of "
                f"{features} features; use a convolutional network"
            )
        return found


def random_crop(pixels: Tensor, *, smallest: float, mirror: float) -> Tensor:
    """A random part of each picture, brought to the size of the whole, perhaps mirrored.

    Args:
        pixels: (N, C, H, W).
        smallest: least share of both sides that is left; each picture draws one for both.
        mirror: with which probability it is mirrored.
    """
    if smallest == 1 and not mirror:
        return pixels
    draws = torch.rand(4, len(pixels), device=pixels.device)
    share = smallest + (1 - smallest) * draws[0]
    x, y = (2 * draws[1:3] - 1) * (1 - share)  # of the middle, where sides go from -1 to 1
    places = torch.zeros(len(pixels), 2, 3, device=pixels.device)
    places[:, 0, 0] = torch.where(draws[3] < mirror, -share, share)
    places[:, 1, 1] = share
    places[:, 0, 2], places[:, 1, 2] = x, y
    grid = affine_grid(places, list(pixels.shape), align_corners=False).to(pixels.dtype)
    return grid_sample(pixels, grid, padding_mode="border", align_corners=False)
