"""Hugging Face and timm models by folder or name, and towers made of them."""

from __future__ import annotations

import copy
import difflib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, affine_grid, grid_sample, layer_norm

from counterfoil.core.model_files import SIDE, check_settings
from counterfoil.core.optional import first_line, hub_options, optional_import, quiet_transformers
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.pooling import (
    ImageTower,
    PatchGrid,
    TextTower,
    check_positive,
    field_shift,
    full_mask,
    masked_ids,
    projection,
)
from counterfoil.models.layers.towers import (
    Init,
    MLPRegions,
    Regions,
    WordDrop,
    check_share,
    drop_cells,
)

FILES = ("model.safetensors", "pytorch_model.bin")
# keys of a configuration by which transformers would fetch code, kernels or files
FETCHED = ("auto_map", "attn_implementation", "_attn_implementation", "_name_or_path")
HALF = (0.5, 0.5, 0.5)
MEASURED = 3  # cells of a side from which one is not at an edge
# by PIL's number of the filter, as in configurations
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
BICUBIC = 3


@final
@dataclass(frozen=True, slots=True)
class PictureFormat:
    """The picture format that a model expects."""

    size: int  # side in pixels
    mean: tuple[float, ...]  # mean of each channel, in 0..1
    deviation: tuple[float, ...]  # standard deviation of each channel, in 0..1
    crop: bool  # cut out the middle square; else squeeze the picture
    frame: str = ""  # the exact order of resizing and cropping, and the interpolation, where known


def picture_format(name: str) -> PictureFormat:
    """Return the picture format of the model of this folder or name."""
    transformers = import_transformers()
    try:
        plain, _ = transformers.ImageProcessingMixin.get_image_processor_dict(
            name, local_files_only=Path(name).is_dir()
        )
    except Exception as error:  # libraries raise anything at damaged files
        if not Path(name).is_dir():
            config_of(name)  # raises, if there is no such model
        raise ValueError(
            f"{name} does not say how its pictures are prepared: it has no preprocessor_config.json"
        ) from error
    if not isinstance(plain, Mapping):
        raise ValueError(f"the preprocessor_config.json of {name} is no JSON object")
    size, fit, resized = _fit_of(name, plain)
    resample, factor = plain.get("resample", BICUBIC), plain.get("rescale_factor", 1 / 255)
    if plain.get("do_resize") is False or resample not in range(len(FILTERS)):
        raise ValueError(
            f"{name} prepares pictures with do_resize {plain.get('do_resize')} and resample "
            f"{resample}; models are read that resize, by a filter of 0 to 5"
        )
    mean, deviation = (
        channel_numbers(name, key, plain.get(key) or HALF) for key in ("image_mean", "image_std")
    )
    if not plain.get("do_normalize", True):
        mean, deviation = (0.0,) * 3, (1.0,) * 3
    if not plain.get("do_rescale", True):
        factor = 1
    if not isinstance(factor, float | int) or not 0 < factor <= 1:
        raise ValueError(f"{name} scales pixels by {factor!r}; a number up to 1 is needed")
    white = 255 * factor
    frame = f"{fit} {FILTERS[resample]}" + (f" {resized}" if resized > size else "")
    return PictureFormat(
        size=size,
        mean=tuple(value / white for value in mean),
        deviation=tuple(value / white for value in deviation),
        crop=fit != "squash",
        frame="" if frame == "squash bicubic" else frame,
    )


def _fit_of(name: str, plain: Mapping[str, Any]) -> tuple[int, str, int]:
    """Side of the square that an image processor makes, how, and the length it resizes to before.

    Raises:
        ValueError: it makes no square, or the settings are not known here.
    """
    kind = str(plain.get("image_processor_type") or plain.get("feature_extractor_type") or "")
    size, crop = plain.get("size"), bool(plain.get("do_center_crop"))
    if size is None and "max_num_patches" in plain:  # any shape up to an area; here the square
        patch, patches = plain.get("patch_size", 16), plain["max_num_patches"]
        if not (_is_size(patch) and _is_size(patches)):
            raise ValueError(f"{name} gives patch_size {patch!r} and max_num_patches {patches!r}")
        size = int(patch) * math.isqrt(int(patches))
    if size is None and crop:
        size = {"shortest_edge": _side(name, plain.get("crop_size"))}
    resized, shortest = _side(name, size), "shortest_edge" in _mapping(size)
    if "longest_edge" in _mapping(size) and "size_divisor" not in plain:  # ViLT keeps the shape
        raise ValueError(f"{name} reads pictures of size {size}; only square ones can be given")
    if isinstance(size, int):  # as older files give it
        shortest = crop and not kind.startswith(("DeiT", "Beit"))
    side = _side(name, plain.get("crop_size", resized)) if crop else resized
    if kind.startswith("ConvNext"):  # crops a part of the shortest side, up to a size
        shortest = resized < 384
        part = plain.get("crop_pct") or 224 / 256
        if not isinstance(part, int | float) or not 0.1 <= part <= 1:
            raise ValueError(f"{name} gives crop_pct {part!r}; a share from 0.1 to 1 is needed")
        resized = int(side / part) if shortest else side
    elif plain.get("crop_pct") is not None or side > resized:
        raise ValueError(
            f"{name} resizes pictures to {size} and crops {plain.get('crop_size')}, with crop_pct "
            f"{plain.get('crop_pct')}; models are read that crop a square of what they resized"
        )
    return side, "shortest-floor" if shortest else "squash", resized


def channel_numbers(name: str, key: str, values: object) -> tuple[float, ...]:
    """Check the three numbers of an image processor; deviations, ``std``, are not 0."""
    if (
        not isinstance(values, list | tuple)
        or len(values) != 3
        or not all(
            type(value) in (int, float) and math.isfinite(value) and (value or "std" not in key)
            for value in values
        )
    ):
        raise ValueError(f"{name} gives {key} {values!r}; three numbers are needed, no std of 0")
    return tuple(values)


def config_of(name: str) -> Any:
    """Return the configuration of the model of this folder or name."""
    file = Path(name, "config.json")
    if not file.is_file():
        return _load_config(name)
    # one loading asks for it several times, and to parse it takes as long as to build a small model
    found = file.stat()
    return copy.deepcopy(_config_of_folder(name, found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=16)
def _config_of_folder(name: str, *file: int) -> Any:
    """A configuration by folder and by what tells its file from one that was there before."""
    return _load_config(name)


def _load_config(name: str) -> Any:
    transformers, options = import_transformers(), hub_options(name)
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options)
    except Exception as error:  # libraries raise anything at damaged files
        raise ValueError(_missing(name, error)) from error
    check_settings(config.to_dict(), name, fetches=True)
    return config


def read_config_json(name: str) -> str:
    """Return the configuration of the model of this folder or name as JSON."""
    return config_to_json(config_of(name))


def config_to_json(config: Any) -> str:
    """Return a configuration as JSON, as the argument `config` of towers takes it."""
    return json.dumps(json.loads(config.to_json_string(use_diff=False)), sort_keys=True)


def weights_file(name: str) -> Path:
    """Return the weights file of a folder or name; downloaded if needed."""
    reason = ""
    for file in FILES:
        try:
            path = import_transformers().utils.cached_file(name, file)
        except (OSError, ValueError) as error:
            reason = reason or first_line(error)
            continue
        return Path(path)
    raise ValueError(f"{name} has no {' or '.join(FILES)} that can be read here: {reason}")


def load_hf_model(name: str, *, pretrained: bool, config: str | None = None) -> nn.Module:
    """Load a model in single precision, with fresh weights if not `pretrained`."""
    transformers = import_transformers()
    with quiet_transformers():
        settings = config_of(name) if pretrained or not config else None
        try:
            if pretrained:
                model = transformers.AutoModel.from_pretrained(
                    name, config=settings, dtype=torch.float32, **hub_options(name)
                )
            else:
                model = transformers.AutoModel.from_config(
                    settings or _read_config(config or ""),
                    dtype=torch.float32,
                    trust_remote_code=False,
                )
        except Exception as error:  # libraries raise anything at damaged files
            raise ValueError(_missing(name, error)) from error
    assert isinstance(model, nn.Module)
    return model.eval()


def freeze_unused(module: nn.Module, output: Tensor) -> None:
    """Freeze the parameters of a model that the output does not depend on.

    A pretrained model has heads that a tower never reads; distributed training must not wait
    for their gradients.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if not output.requires_grad:
        return
    grads = torch.autograd.grad(output.sum(), trained, allow_unused=True)
    for parameter, grad in zip(trained, grads, strict=True):
        parameter.requires_grad_(grad is not None)


def import_transformers() -> Any:
    """Import Hugging Face transformers, which is optional."""
    needs = 'this needs Hugging Face transformers: pip install "counterfoil[hf]"'
    return optional_import("transformers", needs)


def _read_config(written: str) -> Any:
    # a card may be untrusted: no code or kernel of a repository that it names is fetched
    plain = {k: v for k, v in json.loads(written).items() if k not in FETCHED}
    return import_transformers().AutoConfig.for_model(plain.pop("model_type"), **plain)


def _missing(name: str, error: Exception) -> str:
    return (
        f"{name} cannot be loaded as a Hugging Face model: {first_line(error)}; give a folder with "
        "config.json and weights, or the name of a model on the hub"
    )


def _mapping(size: object) -> dict[str, Any]:
    return dict(size) if isinstance(size, dict) else {}


def _side(name: str, size: object) -> int:
    """Return the side of a square, from any of the forms that processors use."""
    sides = _mapping(size)
    lengths = [sides[key] for key in ("height", "width", "shortest_edge") if key in sides]
    if isinstance(size, int):
        lengths = [size]
    if not lengths or not _is_size(lengths[0]) or any(n != lengths[0] for n in lengths):
        raise ValueError(
            f"{name} reads pictures of size {size}; only square ones can be given, of up to "
            f"{SIDE:,} pixels"
        )
    return int(lengths[0])


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and 1 <= value <= SIDE and value == int(value)


# What towers of pretrained models share.


class PretrainedTower(nn.Module, ABC):
    """A tower around a pretrained model, which may be frozen."""

    body: nn.Module  # the pretrained model
    trained: bool  # train it too
    # keep the model in evaluation mode, so that batch norms keep their statistics, even where it is
    # trained
    fixed_norms: bool = False

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a model that is not trained stays in evaluation."""
        super().train(mode)
        if self.fixed_norms or not self.trained:
            self.body.eval()
        return self

    @abstractmethod
    def forward(self, items: ModalityBatch) -> Embeddings:
        """Encode images or texts."""


class StatesTower(PretrainedTower, ImageTower):
    """A projection of a pretrained model's outputs, its `states`.

    Where the model is not trained, the states of a picture stay the same: they may be cached and
    passed in place of the picture.
    """

    fc: nn.Linear

    @abstractmethod
    def states(self, images: ModalityBatch) -> Tensor:
        """Return the model's outputs (N, L, F) for pixels (N, C, H, W), before the projection."""

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Project the outputs for pixels, or cached `states`."""
        cached = items.values.dim() == 3
        tokens = items.values.to(self.fc.weight.dtype) if cached else self.states(items)
        if tokens.shape[-1] != self.fc.in_features:
            raise ValueError(
                f"stored states of shape {tuple(tokens.shape)} do not fit a model that reads "
                f"(images, cells, {self.fc.in_features}); make them with this model"
            )
        return Embeddings(self.fc(tokens), full_mask(tokens))


# Wordpieces through BERT.


@final
class BertTextTower(PretrainedTower, TextTower):
    """Last hidden states of a Hugging Face text model, projected.

    A BERT in training reads several captions in a row of tokens, without seeing one from another,
    see `pack_rows`: the longest of 128 captions has three times the pieces of the others.
    """

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
        """Initialise the module.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too.
            pretrained: load its weights; else it starts from fresh ones.
            dropout: dropout rate of the projected states.
            word_drop: share of words that are masked, replaced or deleted in training, all pieces
                of a word alike, see `drop_words`; special tokens stay.
            mask: id of the tokenizer's mask token, where words are dropped.
            config: its configuration as JSON, for a model that starts from fresh weights; then
                neither the folder nor the hub is read.

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
        token = torch.zeros(1, 1, dtype=torch.long)
        states = self._states(token, token == 0)
        freeze_unused(self.body, states)
        self.fc = projection(states.shape[-1], width)
        self.dropout = nn.Dropout(dropout)
        tokens = int(self.word_table().num_embeddings) if word_drop else 1  # type: ignore[arg-type]
        self.augment = WordDrop(share=word_drop, mask=mask or 0, vocabulary=tokens, ends=False)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Encode token ids as one projected vector a token."""
        items = self.augment(items)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            states = self._states(masked_ids(items), items.mask)
        return Embeddings(self.dropout(self.fc(states)), items.mask)

    @property
    def config_json(self) -> str:
        """Its configuration as JSON, as the argument `config` takes it."""
        return config_to_json(self.body.config)

    def word_table(self) -> nn.Module:
        """Return the embedding table of token ids."""
        table: nn.Module = self.body.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int | None:
        """Id of the tokenizer's mask token, where it was given."""
        return self.mask

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        if self.body.training and self._packs:
            return self._packed_states(ids, mask)
        states: Tensor = self.body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return states

    @property
    def _packs(self) -> bool:
        """Whether the model is known to take positions, and a mask of pairs of tokens."""
        config: Any = self.body.config
        return bool(config.model_type == "bert" and config._attn_implementation == "sdpa")

    def _packed_states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(N, L, D) states of the same captions in fewer rows; zeros at padding."""
        width = mask.shape[1]
        rows, starts = pack_rows(mask.sum(1).tolist(), width)
        item, column = mask.nonzero(as_tuple=True)
        first = torch.tensor([row * width + at for row, at in zip(rows, starts)], device=ids.device)
        place = first[item] + (mask.cumsum(1) - 1)[item, column]
        count = max(rows, default=0) + 1

        def packed(values: Tensor, filler: int) -> Tensor:
            flat = ids.new_full((count * width,), filler)
            return flat.index_put((place,), values).view(count, width)

        owner = packed(item, -1)  # filler sees filler: a row of a softmax needs something
        states: Tensor = self.body(
            input_ids=packed(ids[item, column], 0),
            position_ids=packed(column, 0),
            attention_mask=(owner.unsqueeze(2) == owner.unsqueeze(1)).unsqueeze(1),
        ).last_hidden_state
        padded = states.new_zeros(*mask.shape, states.shape[2])
        return padded.index_put((item, column), states.flatten(0, 1)[place])


def pack_rows(lengths: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Put N items into few rows of `width`: the row of each, and where it begins there.

    The longest first, each into the first row with room: rows of 128 captions are 94 % full.

    >>> pack_rows([2, 5, 3, 1], 5)
    ([1, 0, 1, 2], [3, 0, 0, 0])
    """
    rows, starts, used = [0] * len(lengths), [0] * len(lengths), list[int]()
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        room = (row for row, taken in enumerate(used) if taken + lengths[item] <= width)
        row = next(room, len(used))
        if row == len(used):
            used.append(0)
        rows[item], starts[item] = row, used[row]
        used[row] += lengths[item]
    return rows, starts


# Pixels through a pretrained vision model.


@final
class HFVisionTower(StatesTower):
    """Grid features of a Hugging Face vision model (ViT, CLIP, MobileNetV2, ...), projected.

    A transformer's class token is one of the tokens.

    Attributes:
        written: the model's configuration, as the argument `config` takes it.
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
        """Initialise the module.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too; else its weights and batch norms are frozen.
            pretrained: load its weights; else it starts from fresh ones.
            grid: average a convolutional map to `grid` x `grid` cells; 0 leaves it as it is.
            config: the model's configuration as JSON, for one that starts from fresh weights; then
                neither the folder nor the hub is read.

        Raises:
            ValueError: there is no such model, or it returns no grid of features, or none that
                can be averaged.
        """
        super().__init__()
        check_positive(width=width)
        _check_grid(grid)
        self.body, self.config_json = _vision_body(name, pretrained=pretrained, config=config)
        self.width, self.trained, self.side = width, trained, grid
        self.body.requires_grad_(trained)
        side = _input_size(self.body)
        states = self._states(torch.zeros(1, 3, side, side))
        freeze_unused(self.body, states)
        self.fc = projection(states.shape[-1], width)

    @property
    def cache_key(self) -> str | None:
        """Cache key of `states`; None if the model is trained."""
        return None if self.trained else f"grid {self.side}"

    def states(self, images: ModalityBatch) -> Tensor:
        """Return the model's outputs (N, L, F) for pixels (N, C, H, W), before the projection."""
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            return self._states(images.values.to(self.fc.weight.dtype))

    def _states(self, pixels: Tensor) -> Tensor:
        """Return last hidden states; a convolutional map cell by cell."""
        states = _last_hidden_state(self.body, pixels)
        if states is None or (self.side and states.dim() != 4):
            lacks = f"map to average to {self.side} x {self.side} cells" if self.side else "grid"
            raise ValueError(
                f"{type(self.body).__name__} gives no {lacks}; use a vision model"
                + (", or set grid=0" if self.side else "")
            )
        if states.dim() != 4:
            return states
        cells = adaptive_avg_pool2d(states, self.side) if self.side else states
        return cells.flatten(2).transpose(1, 2)

    def patch_grid(self, vectors: int, pixels: tuple[int, int]) -> PatchGrid | None:
        """Return the square of cells, or of the patches behind a class token."""
        return _pretrained_grid(self.body, self._states, vectors, pixels)


@final
class FrozenPatches(PretrainedTower, ImageTower):
    """Patches of a frozen Hugging Face vision model (ViT, SigLIP, DINOv2, a CNN) as regions.

    The vision half of a CLIP-like model is used alone. Class and register tokens are left out, a
    convolutional map has a patch for each cell, and patches may be averaged to a coarser grid. Each
    patch is normalised over its channels, so that the outputs of all models have one scale, and
    read by the same layers as a detected region. As the model is frozen, its patches may be cached
    and passed in place of the pictures.

    Attributes:
        config_json: the model's configuration, as the argument `config` takes it.
    """

    trained = False

    def __init__(
        self,
        *,
        name: str,
        width: int = 1024,
        grid: int = 7,
        mlp: bool = False,
        init: Init = "default",
        region_drop: float = 0.0,
        pretrained: bool = True,
        config: str | None = None,
    ) -> None:
        """Initialise the module.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            grid: average patches to `grid` x `grid`, where there are more; 0 leaves them as they
                are.
            mlp: read the patches as `MLPRegions` does; else as `Regions` does.
            init: see `MLPRegions`.
            region_drop: share of patches that are left out in training.
            pretrained: load the model's weights; else it starts from fresh ones.
            config: the model's configuration as JSON, for one that starts from fresh weights; then
                neither the folder nor the hub is read.

        Raises:
            ValueError: there is no such model, it returns no patches, or a size is not possible.
        """
        super().__init__()
        check_positive(width=width)
        _check_grid(grid)
        self.body, self.config_json = _vision_body(name, pretrained=pretrained, config=config)
        self.body.requires_grad_(False)
        self.width, self.side = width, grid
        side = _input_size(self.body)
        try:
            features = self._patches(torch.zeros(1, 3, side, side)).shape[-1]
        except (TypeError, ValueError, AttributeError) as error:  # models of texts, or NaFlex
            raise ValueError(
                f"{name} gives no patches of square pictures ({first_line(error)}); use a vision "
                "model such as google/vit-base-patch16-224, or a CLIP or SigLIP"
            ) from error
        self.regions: MLPRegions | Regions = (
            MLPRegions(features=features, width=width, init=init, region_drop=region_drop)
            if mlp
            else Regions(features=features, width=width, region_drop=region_drop)
        )

    @property
    def cache_key(self) -> str:
        """Cache key of `states`."""
        return f"patches {self.side}"

    def states(self, images: ModalityBatch) -> Tensor:
        """Return the patches (N, L, F) of pixels (N, C, H, W)."""
        with torch.no_grad():
            return self._patches(images.values.to(self.regions.fc.weight.dtype))

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Encode the patches of pixels, or cached `states`."""
        cached = items.values.dim() == 3
        patches = items.values.to(self.regions.fc.weight.dtype) if cached else self.states(items)
        mask = items.mask if cached else full_mask(patches)
        patches = layer_norm(patches, patches.shape[-1:])
        encoded: Embeddings = self.regions(replace(items, values=patches, mask=mask))
        return encoded

    def patch_grid(self, vectors: int, pixels: tuple[int, int]) -> PatchGrid | None:
        """Return the square of patches."""
        return _pretrained_grid(self.body, self._patches, vectors, pixels)

    def _patches(self, pixels: Tensor) -> Tensor:
        states = _last_hidden_state(self.body, pixels)
        if states is None or states.dim() not in (3, 4):
            raise ValueError(f"{type(self.body).__name__} has no last hidden state of patches")
        if states.dim() == 3:  # special tokens stand before the patches
            side = math.isqrt(states.shape[1])
            if patch := _patch_size(self.body):
                side = min(side, pixels.shape[-1] // patch)
            patches = states[:, states.shape[1] - side * side :]
            states = patches.mT.reshape(len(patches), -1, side, side)
        if 0 < self.side < max(states.shape[2:]):
            states = adaptive_avg_pool2d(states, self.side)
        return states.flatten(2).transpose(1, 2)


def _patch_size(body: nn.Module) -> int:
    """Side of a transformer's patches in pixels; 0 where it is not known."""
    patch = getattr(getattr(body, "config", None), "patch_size", None)
    return patch if isinstance(patch, int) else 0


def _pretrained_grid(
    body: nn.Module,
    grid_of: Callable[[Tensor], Tensor],
    vectors: int,
    pixels: tuple[int, int],
) -> PatchGrid | None:
    """The grid of patches of a transformer, or of the cells of a convolutional network."""
    patch = _patch_size(body)
    grid = PatchGrid.square(vectors, pixels, patch=patch)
    if grid is None or patch or grid.rows < MEASURED:
        return grid
    weight = next(body.parameters())

    def cells(seen: Tensor) -> Tensor:
        cell_vectors: Tensor = grid_of(seen.to(weight)).float().cpu()
        return cell_vectors

    return replace(grid, shift=field_shift(cells, pixels[0]))


def _check_grid(grid: int) -> None:
    if grid < 0:
        raise ValueError(f"grid={grid} is not possible; give 0 or more cells a side")


def _vision_body(name: str, *, pretrained: bool, config: str | None) -> tuple[nn.Module, str]:
    """Load a vision model, or the vision half of a CLIP-like one, and its configuration."""
    model = load_hf_model(name, pretrained=pretrained, config=config)
    body: nn.Module = getattr(model, "vision_model", model)
    return body, config or _without_classes(read_config_json(name))


def _last_hidden_state(body: nn.Module, pixels: Tensor) -> Tensor | None:
    """Return tokens (N, L, F) or a map (N, F, H, W); None if the model gives neither."""
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    states = getattr(body(pixel_values=pixels), "last_hidden_state", None)
    return states if isinstance(states, Tensor) else None


def _without_classes(config: str) -> str:
    """Leave out the names of classes, of which there may be thousands."""
    plain = json.loads(config)
    settings = {key: plain[key] for key in plain if key not in ("id2label", "label2id")}
    return json.dumps(settings, sort_keys=True)


def _input_size(body: nn.Module) -> int:
    config: Any = getattr(body, "config", None)
    size = getattr(getattr(config, "vision_config", config), "image_size", 224)
    return int(size[0] if isinstance(size, list | tuple) else size)


# timm, and its networks.


PREFIX = "timm:"  # of names of models that this library builds from towers of timm


def timm_library(user: str = "this") -> Any:
    """Import timm, which is optional; `user` is named in the error message."""
    return optional_import("timm", f'{user} needs timm: pip install "counterfoil[vision]"')


def timm_network(name: str, *, pretrained: bool) -> nn.Module:
    """Create a network without its classifier."""
    timm = timm_library(f"the network {name!r}")
    try:
        network: Any = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except (RuntimeError, OSError, ValueError) as error:
        raise ValueError(f"timm cannot make {name!r}: {first_line(error)}") from error
    assert isinstance(network, nn.Module)
    return network


# Pixels through any image model of timm, as one vector.


@final
class TimmTower(StatesTower):
    """Pooled features of an image model of timm, the input of its classifier, projected.

    The model stays in evaluation mode, so its batch norms keep their statistics.
    """

    fixed_norms = True

    def __init__(
        self, *, name: str, width: int = 512, trained: bool = True, pretrained: bool = True
    ) -> None:
        """Initialise the module.

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
        size = timm_format(name).size  # raises if timm does not know the name
        self.body = timm_network(name, pretrained=pretrained).requires_grad_(trained)
        with torch.no_grad():
            features = self.body.eval()(torch.zeros(1, 3, size, size))
        self.fc = projection(features.shape[-1], width)
        self.train()

    @property
    def cache_key(self) -> str | None:
        """Cache key of `states`; None if the model is trained.

        It names the model, as weights alone do not determine strides and padding.
        """
        return None if self.trained else f"{self.name}, pooled"

    def states(self, images: ModalityBatch) -> Tensor:
        """Return the model's outputs (N, 1, F) for pixels (N, C, H, W), before the projection."""
        pixels = images.values.to(self.fc.weight.dtype)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            features: Tensor = self.body(pixels)
        return features.unsqueeze(1)


def timm_format(name: str) -> PictureFormat:
    """Return the picture format of a model of timm: the whole picture, squeezed to a square."""
    timm = timm_library()
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), 5, cutoff=0.3)
        raise ValueError(f"{name!r} is no model of timm; near are: {', '.join(near) or 'none'}")
    try:
        settings = timm.models.get_pretrained_cfg(name)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"timm has no weights of {name!r}: {error}") from error
    _, height, width = getattr(settings, "input_size", None) or (3, 224, 224)
    if height != width:
        raise ValueError(f"{name} reads pictures of {height} x {width}; only squares can be given")
    return PictureFormat(
        size=int(width),
        mean=tuple(getattr(settings, "mean", None) or HALF),
        deviation=tuple(getattr(settings, "std", None) or HALF),
        crop=False,
    )


# Pixels through a convolutional network of timm, as one vector for each cell of its last map.


class GridTower(PretrainedTower, ImageTower):
    """Grid features of a convolutional network that is fine-tuned (GPO, section 4.1), projected.

    The network stays in evaluation mode, so its batch norms keep their statistics. To freeze it at
    first and train it more slowly afterwards, give the optimiser a group, as in
    ``Group(match="image.body.*", rate=0.1, begins=1)``.

    In training each picture is cropped and mirrored at random, on the device.

    Departs from the authors' code in: pictures are cropped after they have been resized.
    """

    fixed_norms = True

    def __init__(
        self,
        body: nn.Module,
        features: int,
        *,
        width: int,
        trained: bool,
        smallest: float,
        mirror: float,
        cell_drop: float,
    ) -> None:
        super().__init__()
        check_positive(width=width)
        if not (0 < smallest <= 1 and 0 <= mirror <= 1):
            raise ValueError(
                f"smallest={smallest}, mirror={mirror}: give shares up to 1, of which the first is "
                "above 0"
            )
        self.cell_drop = check_share(cell_drop, "cell_drop")
        self.width, self.trained, self.smallest, self.mirror = width, trained, smallest, mirror
        self.body = body.requires_grad_(trained)
        self.fc = projection(features, width)
        self.train()

    @abstractmethod
    def feature_map(self, pixels: Tensor) -> Tensor:
        """Return the last feature map (N, F, H, W) of pixels."""

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
            features = self.feature_map(pixels.contiguous(memory_format=torch.channels_last))
        tokens = self.fc(features.flatten(2).transpose(1, 2))
        bag = Embeddings(tokens, full_mask(tokens))
        return drop_cells(bag, self.cell_drop) if self.training else bag

    def patch_grid(self, vectors: int, pixels: tuple[int, int]) -> PatchGrid | None:
        """Return the square of cells."""
        return _pretrained_grid(
            self.body, lambda seen: self.feature_map(seen).flatten(2).mT, vectors, pixels
        )


@final
class TimmGridTower(GridTower):
    """Grid features of a network of timm, see `GridTower`.

    Departs from the authors' code in: the processor resizes pictures by cubic instead of linear
    interpolation.
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
        """Initialise the module.

        Args:
            name: timm's name of the network.
            width: of the joint space.
            trained: train the network too.
            pretrained: load its weights; else it starts from fresh ones.
            smallest: smallest share of both sides left by the crop; 0.6 in the authors' code.
            mirror: probability of mirroring a picture; 0.5 in the authors' code.
            cell_drop: see `drop_cells`; 0.2 in the authors' code.

        Raises:
            ValueError: timm is not installed or does not know the network, or a share is not
                possible.
        """
        body = timm_network(name, pretrained=pretrained)
        super().__init__(
            body,
            int(body.num_features),  # type: ignore[arg-type]
            width=width,
            trained=trained,
            smallest=smallest,
            mirror=mirror,
            cell_drop=cell_drop,
        )

    def feature_map(self, pixels: Tensor) -> Tensor:
        grid: Tensor = self.body.forward_features(pixels)  # type: ignore[operator]
        features = self.fc.in_features
        if grid.dim() == 4 and grid.shape[1] != features:
            grid = grid.permute(0, 3, 1, 2)  # some networks put the features last
        if grid.dim() != 4 or grid.shape[1] != features:
            raise ValueError(
                f"{type(self.body).__name__} gives {tuple(grid.shape)}, which is no map of "
                f"{features} features; use a convolutional network"
            )
        return grid


def random_crop(pixels: Tensor, *, smallest: float, mirror: float) -> Tensor:
    """Crop each picture at random, resize it to the original size, and mirror some."""
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
