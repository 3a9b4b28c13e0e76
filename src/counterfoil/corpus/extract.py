"""Grid features of all pictures of a corpus, as a feature folder; a stopped run goes on."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.core.resumable import PartsFolder, work_through
from counterfoil.corpus.backbones import Backbone, open_backbone, pooled
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.featurefolder import (
    FEATURES,
    FeaturesManifest,
    FeatureTable,
    open_features,
    stored,
)
from counterfoil.corpus.pictures import Pictures
from counterfoil.files import read_json, write_json


def extract(
    corpus: Corpus,
    model: str,
    out: Path,
    *,
    grid: int | None = None,
    kind: Literal["float16", "float32"] = "float16",
    batch: int = 32,
    device: torch.device | str = "cpu",
    shard: int = 512,
) -> FeatureTable:
    """Run a vision model over all pictures and write a feature folder.

    Work stands in a hidden folder beside `out` until all of it is done; a run that was killed
    goes on with the shards that are missing. A folder that is already complete is only opened.
    One process does this.

    Args:
        corpus: whose pictures.
        model: ``timm:NAME``, or a Hugging Face name or folder.
        out: folder to write.
        grid: average the model's grid to this many cells a side; 1 gives one vector a picture.
        kind: how numbers are stored.
        batch: pictures that go through the model at once.
        device: where the model computes.
        shard: pictures after which progress is kept.

    Raises:
        ValueError: there are no pictures, one cannot be read, the model cannot be had, or `out` or
            the work beside it is of other settings.
    """
    if corpus.pictures is None:
        raise ValueError(f"{corpus.name} has no pictures to extract features of")
    if batch < 1 or shard < 1 or (grid is not None and grid < 1):
        raise ValueError(f"batch {batch}, shard {shard} and grid {grid} have to be at least 1")
    settings = {"model": model, "grid": grid, "kind": kind, "images": _digest(corpus.image_ids)}
    if out.exists():
        return _complete(out, settings)
    work, pictures = out.with_name(f".{out.name}.part"), corpus.pictures
    shards = [range(at, min(at + shard, len(corpus))) for at in range(0, len(corpus), shard)]
    parts = PartsFolder(work / "shards", suffix=".json")
    missing = parts.begin({**settings, "shard": shard}, len(shards))
    backbone = open_backbone(model, device) if missing else None

    def extract_shard(number: int) -> None:
        assert backbone is not None
        values = _features(backbone, pictures, shards[number], batch, grid)
        _store(work, shards[number], values, len(corpus), kind)
        parts.save(number, lambda path: write_json(path, {"whole": backbone.whole}))

    with torch.inference_mode():
        work_through(missing, extract_shard, [len(rows) for rows in shards], description="pictures")
    whole = bool(read_json(parts.path(0), "the state of an extraction")["whole"])
    _finish(work, corpus.image_ids, settings, whole=whole)
    work.rename(out)
    shutil.rmtree(out / "shards")
    return open_features(out)


def _complete(out: Path, settings: dict[str, Any]) -> FeatureTable:
    """The features of an earlier run with these settings."""
    if not FEATURES.exists(out) or FEATURES.read_manifest(out).settings != settings:
        raise ValueError(
            f"{out} exists and does not hold these features; remove it or write somewhere else"
        )
    return open_features(out)


def _features(
    backbone: Backbone, pictures: Pictures, rows: range, batch: int, grid: int | None
) -> Tensor:
    """(N, R, F) of a shard; the next batch is decoded while the model works."""
    blocks = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    parts = [
        pooled(backbone.grid(values), grid).float().cpu()
        for values in _ahead(backbone, pictures, blocks)
    ]
    return torch.cat(parts)


def _ahead(backbone: Backbone, pictures: Pictures, blocks: Sequence[range]) -> Iterator[Tensor]:
    def prepared(block: range) -> Tensor:
        opened: list[Image.Image] = [pictures.open(row) for row in block]
        return backbone.prepare(opened)

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(prepared, blocks[0])
        for following in [*blocks[1:], None]:
            values = waiting.result()
            if following is not None:
                waiting = thread.submit(prepared, following)
            yield values


def _store(
    work: Path, rows: range, values: Tensor, count: int, kind: Literal["float16", "float32"]
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    path, shape = work / "features.npy", (count, *values.shape[1:])
    if rows.start == 0:  # always the first shard to be made
        out = np.lib.format.open_memmap(path, "w+", np.dtype(kind), shape)
    else:
        out = np.lib.format.open_memmap(path, "r+")
    if out.shape != shape:
        raise ValueError(f"{path} has shape {out.shape}, not {shape}; remove {work} to begin anew")
    out[rows.start : rows.stop] = stored(values.numpy(), kind)
    out.flush()


def _finish(work: Path, ids: Sequence[str], settings: dict[str, Any], *, whole: bool) -> None:
    array = np.load(work / "features.npy", mmap_mode="r")
    side = math.isqrt(array.shape[1])
    if whole and side**2 == array.shape[1]:
        np.save(work / "boxes.npy", np.broadcast_to(boxes(side), (len(array), side**2, 4)))
    manifest = FeaturesManifest(
        ids=list(ids), kind=settings["kind"], model=settings["model"], settings=settings
    )
    FEATURES.write_manifest(work, manifest)


def boxes(side: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    """(side * side, 4) x1, y1, x2, y2 of the cells of a grid, row by row.

    >>> boxes(2)[1].tolist()
    [0.5, 0.0, 1.0, 0.5]
    """
    y, x = np.divmod(np.arange(side * side), side)
    return np.stack([x, y, x + 1, y + 1], axis=1).astype(np.float16) / np.float16(side)


def _digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\x00".join(ids).encode()).hexdigest()[:16]
