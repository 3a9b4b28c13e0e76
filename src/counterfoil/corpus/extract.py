"""Grid features of all pictures of a corpus, as a feature folder; a stopped run goes on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.corpus.backbones import Backbone, open_backbone, pooled
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.featurefolder import FeatureTable, open_features, stored
from counterfoil.corpus.pictures import Pictures
from counterfoil.files import read_json, write_json

STATE = "extraction.json"


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
    goes on after its last whole shard. A folder that is already complete is only opened.

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
    work = out.with_name(f".{out.name}.part")
    done, count = _begun(work, settings), len(corpus)
    backbone = open_backbone(model, device) if done < count else None
    with progress("pictures", count, done) as advance, torch.inference_mode():
        for start in range(done, count, shard):
            assert backbone is not None
            rows = range(start, min(start + shard, count))
            values = _features(backbone, corpus.pictures, rows, batch, grid)
            _store(work, rows, values, count, kind)
            write_json(work / STATE, {**settings, "done": rows.stop, "whole": backbone.whole})
            advance(len(rows))
    _finish(work, corpus.image_ids, settings)
    work.rename(out)
    (out / STATE).unlink(missing_ok=True)
    return open_features(out)


def _complete(out: Path, settings: dict[str, Any]) -> FeatureTable:
    """The features of an earlier run with these settings."""
    written = out / "features.json"
    plain = read_json(written, "features") if written.exists() else {}
    if not isinstance(plain, dict) or plain.get("settings") != settings:
        raise ValueError(
            f"{out} exists and does not hold these features; remove it or write somewhere else"
        )
    return open_features(out)


def _begun(work: Path, settings: dict[str, Any]) -> int:
    """How many pictures a stopped run with these settings has done."""
    if not (work / STATE).exists():
        return 0
    plain = read_json(work / STATE, "the state of an extraction")
    if not isinstance(plain, dict) or {key: plain.get(key) for key in settings} != settings:
        raise ValueError(
            f"{work} holds a stopped extraction with other settings; remove it to begin anew"
        )
    return int(plain["done"])


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
    if rows.start == 0:
        out = np.lib.format.open_memmap(path, "w+", np.dtype(kind), shape)
    else:
        out = np.lib.format.open_memmap(path, "r+")
    if out.shape != shape:
        raise ValueError(f"{path} has shape {out.shape}, not {shape}; remove {work} to begin anew")
    out[rows.start : rows.stop] = stored(values.numpy(), kind)
    out.flush()


def _finish(work: Path, ids: Sequence[str], settings: dict[str, Any]) -> None:
    array = np.load(work / "features.npy", mmap_mode="r")
    side = math.isqrt(array.shape[1])
    if read_json(work / STATE, "the state of an extraction")["whole"] and side**2 == array.shape[1]:
        np.save(work / "boxes.npy", np.broadcast_to(boxes(side), (len(array), side**2, 4)))
    plain = {"format": 1, "ids": list(ids), "kind": settings["kind"]}
    write_json(work / "features.json", {**plain, "model": settings["model"], "settings": settings})


def boxes(side: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    """(side * side, 4) x1, y1, x2, y2 of the cells of a grid, row by row.

    >>> boxes(2)[1].tolist()
    [0.5, 0.0, 1.0, 0.5]
    """
    y, x = np.divmod(np.arange(side * side), side)
    return np.stack([x, y, x + 1, y + 1], axis=1).astype(np.float16) / np.float16(side)


def _digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\x00".join(ids).encode()).hexdigest()[:16]
