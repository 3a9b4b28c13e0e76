"""Features of images from pretrained vision models, as feature folders.

Grid features of an image are (S * S, F): the last map of a convolutional network, row by row, or
the patch tokens of a transformer without its class and register tokens. Region features are
(R, F): the decoder's states of the R most confident queries of a detector of DETR's kind, with
their boxes and class probabilities. `convert_features` copies stored features into a folder.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from counterfoil.core.io import commit, new_array, read_array, write_json, write_lock
from counterfoil.core.optional import first_line, hub_options, optional_import, quiet_transformers
from counterfoil.core.resumable import PartsFolder, work_through
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import (
    FEATURES,
    Array,
    FeaturesManifest,
    FeatureTable,
    Kind,
    open_feature_table,
    open_features,
    write_feature_array,
)
from counterfoil.data.images import Pictures, ResizeCrop

TIMM = "timm:"
Arrays: TypeAlias = Mapping[str, Array]  # rows of the files of a feature folder
Prepared = TypeVar("Prepared")


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
    """Load a backbone: ``timm:resnet18``, or a Hugging Face name or folder."""
    if name.startswith(TIMM):
        return TimmBackbone(name.removeprefix(TIMM), device=device)
    return HuggingFaceBackbone(name, device=device)


@final
class HuggingFaceBackbone(Backbone):
    """A vision model of Hugging Face, or the vision half of a CLIP-like one."""

    def __init__(self, name: str, *, device: torch.device | str = "cpu") -> None:
        self._processor, model = _from_hub(name, "AutoModel", "vision model")
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
    """A timm model with its pretrained weights; pictures are squeezed to its square."""

    whole = True

    def __init__(self, name: str, *, device: torch.device | str = "cpu") -> None:
        needs = f'the model {TIMM + name!r} needs timm: pip install "counterfoil[vision]"'
        timm = optional_import("timm", needs)
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
        transform = ResizeCrop(self._size)
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
    """A model's output, a map (N, F, S, S) or tokens (N, L, F) that end in patches, as (N, S², F).

    For tokens, S is `side`, by default the largest that fits.

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
    """(N, S * S, F) averaged to (N, side * side, F); as it is where `side` is None."""
    if side is None:
        return grid
    old = math.isqrt(grid.shape[1])
    if old * old != grid.shape[1] or not 1 <= side <= old:
        raise ValueError(
            f"a grid of {grid.shape[1]} cells cannot be averaged to {side} x {side}; use 1 to {old}"
        )
    square = grid.transpose(1, 2).reshape(len(grid), -1, old, old)
    return adaptive_avg_pool2d(square, side).flatten(2).transpose(1, 2)


def _from_hub(name: str, kind: str, words: str) -> tuple[Any, Any]:
    """The image processor and the model of this auto class of transformers."""
    needs = f'the model {name!r} needs transformers: pip install "counterfoil[hf]"'
    transformers = optional_import("transformers", needs)
    with quiet_transformers():
        try:
            options = hub_options(name)
            processor = transformers.AutoImageProcessor.from_pretrained(
                name, backend="pil", **options
            )
            model = getattr(transformers, kind).from_pretrained(
                name, dtype=torch.float32, **options
            )
        except Exception as error:  # libraries raise anything at damaged files
            first = first_line(error)
            raise ValueError(f"{name!r} is no {words} that can be read: {first}") from error
    return processor, model


def _ready(model: nn.Module, device: torch.device | str) -> Any:
    """Channels last: convolutional networks take 0.6 of the time on a CPU."""
    return model.to(device=device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]


def _placed(values: Tensor, device: torch.device | str) -> Tensor:
    return values.to(device, memory_format=torch.channels_last)


# Regions.


@final
class Detector:
    """A frozen detector of DETR's kind: DETR, Conditional and Deformable DETR, RT-DETR, YOLOS, ….

    The vectors of regions are the decoder's states, from which it predicts classes and boxes.

    Args:
        name: name or folder of Hugging Face.
        regions: R, most confident queries of an image.
        device: of the model.
    """

    def __init__(self, name: str, regions: int, *, device: torch.device | str = "cpu") -> None:
        self.name, self._count, self._device = name, regions, device
        self._processor, model = _from_hub(name, "AutoModelForObjectDetection", "detector")
        self._model = _ready(model, device)

    def prepare(self, pictures: Sequence[Image.Image]) -> list[dict[str, Tensor]]:
        """Pixels of each image, with the mask of its padding if the detector needs one."""
        return [
            dict(self._processor(images=[picture], return_tensors="pt")) for picture in pictures
        ]

    def regions(self, prepared: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Regions of N images, the most confident first; of equals, the first query.

        Each image is a forward pass of its own: padded to the size of others, convolutions see
        their padding, and its regions would depend on the images beside it.

        Returns:
            "features" (N, R, F); "boxes" (N, R, 4), x1, y1, x2, y2 as fractions of the image;
            "classes" (N, R, 1 + C), the first that there is no object.
        """
        images = [self._image(values) for values in prepared]
        return {name: torch.stack([image[name] for image in images]) for name in images[0]}

    def _image(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        out = self._model(**{name: value.to(self._device) for name, value in values.items()})
        boxes, states = getattr(out, "pred_boxes", None), getattr(out, "last_hidden_state", None)
        if boxes is None or states is None:
            raise ValueError(
                f"{self.name!r} predicts no boxes from queries; use a detector of DETR's kind, "
                "such as PekingU/rtdetr_r50vd"
            )
        queries = boxes.shape[1]
        if queries < self._count:
            raise ValueError(
                f"{self.name!r} has {queries} queries, so an image has at most as many regions, "
                f"not {self._count}"
            )
        classes, confidence = class_probabilities(out.logits[0], self._model.config.num_labels)
        best = confidence.sort(descending=True, stable=True).indices[: self._count]
        middle, size = boxes[0, best].split(2, dim=-1)
        corners = torch.cat([middle - size / 2, middle + size / 2], dim=-1)
        return {
            "features": states[0, -queries:][best],  # before YOLOS' queries are its patches
            "boxes": corners.clamp(0, 1),
            "classes": classes[best],
        }


def class_probabilities(logits: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Probabilities of no object and of the classes, and the confidence in the likeliest class.

    With a logit for "no object", the last, they are a softmax. Without it the classes are
    independent sigmoids; then the likeliest class has the confidence, all classes share it in
    proportion, and the rest is for no object, so that the probabilities sum to 1.

    Args:
        logits: (Q, C + 1) or (Q, C).
        classes: C.

    Returns:
        (Q, 1 + C) and (Q,).

    >>> class_probabilities(torch.tensor([[0.0, 0.0]]), 2)[0]
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    if logits.shape[-1] > classes:
        likely = logits.softmax(-1).roll(1, -1)
        return likely, likely[:, 1:].amax(-1)
    probabilities = logits.sigmoid()
    confidence = probabilities.amax(-1)
    shares = probabilities * (confidence / probabilities.sum(-1).clamp(min=1e-30)).unsqueeze(-1)
    return torch.cat([1 - confidence.unsqueeze(-1), shares], -1), confidence


# Features of all images, as a feature folder; a stopped run can be resumed.


def extract_features(
    dataset: ImageTextDataset,
    model: str,
    out: Path,
    *,
    grid: int | None = None,
    regions: int | None = None,
    kind: Kind = "float16",
    batch: int = 32,
    device: torch.device | str = "cpu",
    shard: int = 512,
) -> FeatureTable:
    """Compute grid or region features of all pictures and write a feature folder.

    Shards are stored in a hidden folder beside `out` until all are complete; a run that was killed
    resumes with the missing ones. If `out` is complete already, it is opened. For one process.

    Args:
        dataset: the data set.
        model: ``timm:NAME``, or a Hugging Face name or folder; a detector for regions.
        out: folder to write.
        grid: average the model's grid to this many cells a side; 1 gives one vector a picture.
        regions: most confident regions of a picture; None for grid features.
        kind: dtype of the stored numbers.
        batch: pictures of a forward pass; of regions it is one.
        device: of the model.
        shard: pictures of a shard.

    Raises:
        ValueError: there are no pictures, one cannot be read, the model cannot be loaded, or `out`
            or the folder of the shards is of other settings.
    """
    pictures = dataset.pictures
    if pictures is None:
        raise ValueError(f"{dataset.name} has no pictures to extract features of")
    if batch < 1 or shard < 1 or (grid is not None and grid < 1):
        raise ValueError(f"batch {batch}, shard {shard} and grid {grid} have to be at least 1")
    if regions is not None and (regions < 1 or grid is not None):
        raise ValueError(f"regions {regions} and grid {grid}: give a number of one of them")

    def computation() -> Callable[[range], Arrays]:
        if regions is not None:
            detector = Detector(model, regions, device=device)
            return lambda rows: _region_arrays(detector, pictures, rows, kind)
        backbone = open_backbone(model, device)
        return lambda rows: _grid_arrays(backbone, pictures, rows, batch, grid, kind)

    settings = {"model": model, "grid": grid, "kind": kind}
    settings |= {} if regions is None else {"regions": regions}
    return _in_shards(dataset.image_ids, out, settings, computation, shard)


def convert_features(
    source: Path, out: Path, *, kind: Kind = "float16", shard: int = 128
) -> FeatureTable:
    """Copy stored features with their boxes and classes into a feature folder.

    It resumes as `extract_features` does.

    Args:
        source: features that `counterfoil.data.features.open_feature_table` opens, such as a table
            of bottom-up attention or an ``img_db`` of UNITER.
        out: folder to write.
        kind: dtype of the stored numbers.
        shard: images of a shard.

    Raises:
        ValueError: there are no features or no ids, they are damaged, or `out` or the folder of the
            shards is of other features.
    """
    table = open_feature_table(source)
    if table.ids is None:
        raise ValueError(f"{source} does not name its images; a folder of features has to")
    features = table.features

    def rows_of(rows: range) -> Arrays:
        here = torch.arange(rows.start, rows.stop)
        arrays = {"features": write_feature_array(features.take(here).values.numpy(), kind)}
        for name in ("lengths", "boxes", "classes"):
            if (part := getattr(features, name)) is not None:
                arrays[name] = part[features.rows[here].numpy()]
        return arrays

    settings = {"source": source.resolve().name, "kind": kind}
    return _in_shards(table.ids, out, settings, lambda: rows_of, shard)


def _kept(out: Path, settings: Mapping[str, Any]) -> FeatureTable:
    """The features of a folder that is there, which have to be these."""
    if not FEATURES.exists(out) or FEATURES.read_manifest(out).settings != settings:
        raise ValueError(
            f"{out} exists and does not hold these features; remove it or write somewhere else"
        )
    return open_features(out)


def _in_shards(
    ids: Sequence[str],
    out: Path,
    settings: dict[str, Any],
    computation: Callable[[], Callable[[range], Arrays]],
    shard: int,
) -> FeatureTable:
    """Write a feature folder shard by shard; `computation` is called if a shard is missing."""
    settings["images"] = hashlib.sha256("\x00".join(ids).encode()).hexdigest()[:16]
    if out.exists():
        return _kept(out, settings)
    with write_lock(out.with_name(f".{out.name}.lock"), out):
        if out.exists():  # another process was quicker
            return _kept(out, settings)
        work = out.with_name(f".{out.name}.part")
        shards = [range(at, min(at + shard, len(ids))) for at in range(0, len(ids), shard)]
        parts = PartsFolder(work / "shards", suffix=".json")
        missing = parts.begin({**settings, "shard": shard}, len(shards))

        def save_shard(number: int) -> None:
            rows = shards[number]
            _write_rows(work, rows, compute(rows), len(ids))
            parts.save(number, lambda path: write_json(path, {}))

        sizes = [len(rows) for rows in shards]
        try:
            if missing:  # a run that was stopped after its last shard needs no model
                compute = computation()
            with torch.inference_mode():
                work_through(missing, save_shard, sizes, description="images")
        except ValueError:
            if not any(parts.path(number).exists() for number in range(len(shards))):
                shutil.rmtree(work)  # an error before the first shard leaves nothing behind
            raise
        FEATURES.write_manifest(
            work,
            FeaturesManifest(
                ids=list(ids),
                kind=settings["kind"],
                model=settings.get("model", ""),
                settings=settings,
            ),
            [path.name for path in work.glob("*.npy")],
        )
        commit(work, out)
        shutil.rmtree(out / "shards")
    return open_features(out)


def _grid_arrays(
    backbone: Backbone,
    pictures: Pictures,
    rows: range,
    batch: int,
    side: int | None,
    kind: Kind,
) -> Arrays:
    grids = [
        pooled_features(backbone.grid(values), side).float().cpu()
        for values in _prepared(backbone.prepare, pictures, rows, batch)
    ]
    values = write_feature_array(torch.cat(grids).numpy(), kind)
    count, cells = values.shape[:2]
    side = math.isqrt(cells)
    if not backbone.whole or side**2 != cells:
        return {"features": values}
    boxes = np.broadcast_to(grid_boxes(side), (count, cells, 4))
    return {"features": values, "boxes": boxes}


def _region_arrays(detector: Detector, pictures: Pictures, rows: range, kind: Kind) -> Arrays:
    images = [
        {name: part.float().cpu() for name, part in detector.regions(values).items()}
        for values in _prepared(detector.prepare, pictures, rows, 1)
    ]
    boxes, classes = (torch.cat([i[name] for i in images]).numpy() for name in ("boxes", "classes"))
    values = torch.cat([image["features"] for image in images]).numpy()
    features = write_feature_array(values, kind)
    return {"features": features, "boxes": boxes, "classes": classes.astype(np.float16)}


def _prepared(
    prepare: Callable[[Sequence[Image.Image]], Prepared],
    pictures: Pictures,
    rows: range,
    batch: int,
) -> Iterator[Prepared]:
    """Pixels of each block of pictures; the next is decoded while the model works."""
    blocks = [rows[start : start + batch] for start in range(0, len(rows), batch)]

    def open_block(block: range) -> Prepared:
        return prepare([pictures.open(row) for row in block])

    with ThreadPoolExecutor(1) as thread:
        current = thread.submit(open_block, blocks[0])
        for following in [*blocks[1:], None]:
            values = current.result()
            if following is not None:
                current = thread.submit(open_block, following)
            yield values


def _write_rows(work: Path, rows: range, arrays: Arrays, count: int) -> None:
    work.mkdir(parents=True, exist_ok=True)
    for name, values in arrays.items():
        path, shape = work / f"{name}.npy", (count, *values.shape[1:])
        if rows.start == 0:  # the first shard is always computed first
            out = new_array(path, shape, values.dtype)
        else:
            read_array(path, "features that are being made")  # refuses what numpy chokes on
            out = np.lib.format.open_memmap(path, "r+")
        if out.shape != shape:
            raise ValueError(
                f"{path} has shape {out.shape}, not {shape}; remove {work} to begin anew"
            )
        out[rows.start : rows.stop] = values
        out.flush()


def grid_boxes(side: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    """(side * side, 4) x1, y1, x2, y2 of the cells of a grid, row by row.

    >>> grid_boxes(2)[1].tolist()
    [0.5, 0.0, 1.0, 0.5]
    """
    y, x = np.divmod(np.arange(side * side), side)
    return np.stack([x, y, x + 1, y + 1], axis=1).astype(np.float16) / np.float16(side)
