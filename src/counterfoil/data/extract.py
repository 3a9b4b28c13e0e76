"""Grid features of images from pretrained vision models.

The features of an image are (S * S, F): the last map of a convolutional network, row by row, or the
patch tokens of a transformer without its class and register tokens.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from counterfoil.core.io import read_json, write_json
from counterfoil.core.resumable import PartsFolder, work_through
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import (
    FEATURES,
    FeaturesManifest,
    FeatureTable,
    open_features,
    write_feature_array,
)
from counterfoil.data.images import Pictures, ResizeSquare

TIMM = "timm:"


class Backbone(ABC):
    """A vision model that computes grid features.

    Attributes:
        whole: whether the grid covers the whole picture, so that its cells have known boxes.
    """

    whole: bool

    @abstractmethod
    def prepare(self, pictures: Sequence[Image.Image]) -> Tensor:
        """(N, 3, H, W) pixels, preprocessed for the model."""

    @abstractmethod
    def grid(self, values: Tensor) -> Tensor:
        """(N, S * S, F) features of prepared pixels."""


def open_backbone(name: str, device: torch.device | str = "cpu") -> Backbone:
    """Load a backbone: ``timm:resnet18``, or a Hugging Face name or folder.

    Raises:
        ValueError: its library is not installed, or there is no such model.
    """
    if name.startswith(TIMM):
        return TimmBackbone(name.removeprefix(TIMM), device=device)
    return HuggingFaceBackbone(name, device=device)


@final
class HuggingFaceBackbone(Backbone):
    """A vision model of Hugging Face, or the vision half of a CLIP-like one.

    Args:
        name: name or folder.
        device: of the model.

    Raises:
        ValueError: transformers is not installed, or the model cannot be read.
    """

    def __init__(self, name: str, *, device: torch.device | str = "cpu") -> None:
        try:
            from transformers import AutoImageProcessor, AutoModel
        except ImportError:
            raise ValueError(
                f'the model {name!r} needs transformers: pip install "counterfoil[hf]"'
            ) from None
        with _quiet():
            try:
                self._processor = AutoImageProcessor.from_pretrained(name, backend="pil")
                model = AutoModel.from_pretrained(name, dtype=torch.float32)
            except (OSError, ValueError, KeyError) as error:
                first = str(error).strip().splitlines()[0]
                raise ValueError(
                    f"{name!r} is no vision model that can be read: {first}"
                ) from error
        self._model = _ready(getattr(model, "vision_model", model), device)
        self._device = device
        self.whole = not getattr(self._processor, "do_center_crop", False)

    def prepare(self, pictures: Sequence[Image.Image]) -> Tensor:
        values: Tensor = self._processor(images=list(pictures), return_tensors="pt")["pixel_values"]
        return values

    def grid(self, values: Tensor) -> Tensor:
        out: Tensor = self._model(pixel_values=_placed(values, self._device)).last_hidden_state
        patch = getattr(self._model.config, "patch_size", None)
        side = values.shape[-1] // patch if isinstance(patch, int) and out.ndim == 3 else None
        return grid_cells(out, side=side)


@final
class TimmBackbone(Backbone):
    """A timm model with its pretrained weights; pictures are squeezed to its square.

    Args:
        name: timm's name, as in "resnet18".
        device: of the model.

    Raises:
        ValueError: timm is not installed or does not know the model.
    """

    whole = True

    def __init__(self, name: str, *, device: torch.device | str = "cpu") -> None:
        try:
            import timm
        except ImportError:
            raise ValueError(
                f'the model {TIMM + name!r} needs timm: pip install "counterfoil[vision]"'
            ) from None
        try:
            model: Any = timm.create_model(name, pretrained=True, num_classes=0)
        except (RuntimeError, OSError, ValueError) as error:
            raise ValueError(f"timm cannot make {name!r}: {error}") from error
        settings = timm.data.resolve_model_data_config(model)
        self._size = int(settings["input_size"][-1])
        self._mean, self._deviation = (
            torch.tensor(settings[key]).view(1, 3, 1, 1) for key in ("mean", "std")
        )
        self._model, self._device = _ready(model, device), device

    def prepare(self, pictures: Sequence[Image.Image]) -> Tensor:
        transform = ResizeSquare(self._size)
        stacked = np.stack([transform(picture) for picture in pictures])
        return (torch.from_numpy(stacked).float() / 255 - self._mean) / self._deviation

    def grid(self, values: Tensor) -> Tensor:
        out: Tensor = self._model.forward_features(_placed(values, self._device))
        width = int(self._model.num_features)
        if out.ndim == 4 and out.shape[1] != width and out.shape[3] == width:
            out = out.permute(0, 3, 1, 2)  # Swin and similar models put the width last
        prefix = int(getattr(self._model, "num_prefix_tokens", 0))
        return grid_cells(out[:, prefix:] if out.ndim == 3 else out)


def grid_cells(out: Tensor, *, side: int | None = None) -> Tensor:
    """A model's output as (N, S * S, F).

    Args:
        out: (N, F, S, S) a map, or (N, L, F) tokens whose last S * S are patches.
        side: S, for tokens; the largest that fits by default.

    Raises:
        ValueError: the output is neither.

    >>> grid_cells(torch.zeros(2, 197, 8)).shape, grid_cells(torch.zeros(2, 8, 7, 7)).shape
    (torch.Size([2, 196, 8]), torch.Size([2, 49, 8]))
    """
    if out.ndim == 4:
        return out.flatten(2).transpose(1, 2)
    if out.ndim != 3:
        raise ValueError(f"the model gives {tuple(out.shape)}; a map or patch tokens are needed")
    side = side or math.isqrt(out.shape[1])
    return out[:, out.shape[1] - side * side :]


def pooled_features(grid: Tensor, side: int | None) -> Tensor:
    """(N, S * S, F) averaged to (N, side * side, F); as it is where `side` is None.

    Raises:
        ValueError: the grid is smaller, or it is no square.
    """
    if side is None:
        return grid
    old = math.isqrt(grid.shape[1])
    if old * old != grid.shape[1] or not 1 <= side <= old:
        raise ValueError(
            f"a grid of {grid.shape[1]} cells cannot be averaged to {side} x {side}; use 1 to {old}"
        )
    square = grid.transpose(1, 2).reshape(len(grid), -1, old, old)
    return adaptive_avg_pool2d(square, side).flatten(2).transpose(1, 2)


def _ready(model: nn.Module, device: torch.device | str) -> Any:
    """Channels last: convolutional networks take 0.6 of the time on a CPU."""
    return model.to(device=device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]


def _placed(values: Tensor, device: torch.device | str) -> Tensor:
    return values.to(device, memory_format=torch.channels_last)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and reports that transformers prints when it loads a model."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


# Grid features of all pictures of a data set, as a feature folder; a stopped run can be resumed.


def extract_features(
    dataset: ImageTextDataset,
    model: str,
    out: Path,
    *,
    grid: int | None = None,
    kind: Literal["float16", "float32"] = "float16",
    batch: int = 32,
    device: torch.device | str = "cpu",
    shard: int = 512,
) -> FeatureTable:
    """Compute grid features of all pictures and write a feature folder.

    Shards are stored in a hidden folder beside `out` until all are complete; a run that was killed
    resumes with the missing ones. If `out` is complete already, it is opened. For one process.

    Args:
        dataset: the data set.
        model: ``timm:NAME``, or a Hugging Face name or folder.
        out: folder to write.
        grid: average the model's grid to this many cells a side; 1 gives one vector a picture.
        kind: dtype of the stored numbers.
        batch: pictures of a forward pass.
        device: of the model.
        shard: pictures of a shard.

    Raises:
        ValueError: there are no pictures, one cannot be read, the model cannot be loaded, or `out`
            or the folder of the shards is of other settings.
    """
    if dataset.pictures is None:
        raise ValueError(f"{dataset.name} has no pictures to extract features of")
    if batch < 1 or shard < 1 or (grid is not None and grid < 1):
        raise ValueError(f"batch {batch}, shard {shard} and grid {grid} have to be at least 1")
    images = hashlib.sha256("\x00".join(dataset.image_ids).encode()).hexdigest()[:16]
    settings = {"model": model, "grid": grid, "kind": kind, "images": images}
    if out.exists():
        if not FEATURES.exists(out) or FEATURES.read_manifest(out).settings != settings:
            raise ValueError(
                f"{out} exists and does not hold these features; remove it or write somewhere else"
            )
        return open_features(out)
    work, pictures = out.with_name(f".{out.name}.part"), dataset.pictures
    shards = [range(at, min(at + shard, len(dataset))) for at in range(0, len(dataset), shard)]
    parts = PartsFolder(work / "shards", suffix=".json")
    missing = parts.begin({**settings, "shard": shard}, len(shards))

    def extract_shard(number: int) -> None:
        rows = shards[number]
        blocks = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        grids = [
            pooled_features(backbone.grid(values), grid).float().cpu()
            for values in _prepared(backbone, pictures, blocks)
        ]
        _write_rows(work, rows, torch.cat(grids), len(dataset), kind)
        parts.save(number, lambda path: write_json(path, {"whole": backbone.whole}))

    sizes = [len(rows) for rows in shards]
    try:
        if missing:  # a run that was stopped after its last shard needs no model
            backbone = open_backbone(model, device)
        with torch.inference_mode():
            work_through(missing, extract_shard, sizes, description="pictures")
    except ValueError:
        if not any(parts.path(number).exists() for number in range(len(shards))):
            shutil.rmtree(work)  # an error before the first shard leaves nothing behind
        raise
    count, cells = np.load(work / "features.npy", mmap_mode="r").shape[:2]
    side = math.isqrt(cells)
    whole = read_json(parts.path(0), "the state of an extraction")["whole"]
    if whole and side**2 == cells:
        np.save(work / "boxes.npy", np.broadcast_to(grid_boxes(side), (count, cells, 4)))
    ids = list(dataset.image_ids)
    FEATURES.write_manifest(
        work, FeaturesManifest(ids=ids, kind=kind, model=model, settings=settings)
    )
    work.rename(out)
    shutil.rmtree(out / "shards")
    return open_features(out)


def _prepared(backbone: Backbone, pictures: Pictures, blocks: Sequence[range]) -> Iterator[Tensor]:
    """Pixels of each block; the next block is decoded while the model works."""

    def prepare(block: range) -> Tensor:
        return backbone.prepare([pictures.open(row) for row in block])

    with ThreadPoolExecutor(1) as thread:
        current = thread.submit(prepare, blocks[0])
        for following in [*blocks[1:], None]:
            values = current.result()
            if following is not None:
                current = thread.submit(prepare, following)
            yield values


def _write_rows(
    work: Path, rows: range, values: Tensor, count: int, kind: Literal["float16", "float32"]
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    path, shape = work / "features.npy", (count, *values.shape[1:])
    if rows.start == 0:  # the first shard is always computed first
        out = np.lib.format.open_memmap(path, "w+", np.dtype(kind), shape)
    else:
        out = np.lib.format.open_memmap(path, "r+")
    if out.shape != shape:
        raise ValueError(f"{path} has shape {out.shape}, not {shape}; remove {work} to begin anew")
    out[rows.start : rows.stop] = write_feature_array(values.numpy(), kind)
    out.flush()


def grid_boxes(side: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    """(side * side, 4) x1, y1, x2, y2 of the cells of a grid, row by row.

    >>> grid_boxes(2)[1].tolist()
    [0.5, 0.0, 1.0, 0.5]
    """
    y, x = np.divmod(np.arange(side * side), side)
    return np.stack([x, y, x + 1, y + 1], axis=1).astype(np.float16) / np.float16(side)
