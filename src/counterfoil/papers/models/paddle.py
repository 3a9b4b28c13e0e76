"""Parameters that Paddle 1 saved, one file each, read without Paddle: numbers alone, no code.

A file holds the version 0 (4 bytes), the number of levels of sequences, 0 (8 bytes), the version 0
again (4 bytes), the length of a description (4 bytes), the description and the numbers, all
little-endian. The description is a protocol buffer: field 1 the type, field 2 once for each size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.io import read_json
from counterfoil.models.checkpoints import Checkpoint

HEAD = struct.Struct("<IQIi")
TYPES = {2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8"}
LARGEST = 1 << 12  # bytes of a description
LARGEST_OPTIONS = 1 << 20  # bytes of a file of options beside the folder
LARGEST_SIZE = 1 << 31


def read_paddle(
    folder: Path, wanted: Callable[[str], bool], option: str = "t_biattention_id"
) -> Checkpoint:
    """Read the parameters of a folder, with the options of a JSON file in it or beside it.

    Beside it may lie any other JSON, which is passed over.

    Args:
        folder: with a file for each parameter, called like it.
        wanted: whether a parameter is one of the model; others, as of an optimiser, are not read.
        option: a name that the file of options has.

    Raises:
        ValueError: a file is no such parameter, or several files have options.
    """
    state = {
        path.name: read_parameter(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and wanted(path.name)
    }
    inside = {path: read_json(path, "options of a model") for path in folder.glob("*.json")}
    found = _with_option(inside, option)
    if not found:
        found = _with_option(_read_beside(folder.resolve().parent), option)
    if len(found) > 1:
        names = " and ".join(path.name for path in sorted(found))
        raise ValueError(f"{names} both have options; leave the one that belongs to {folder}")
    return Checkpoint(state, next(iter(found.values()), {}))


def _with_option(files: Mapping[Path, Any], option: str) -> dict[Path, Mapping[str, Any]]:
    return {
        path: plain for path, plain in files.items() if isinstance(plain, dict) and option in plain
    }


def _read_beside(place: Path) -> dict[Path, Any]:
    """Read the JSON files of a folder that are small and whole: most are of something else."""
    found = {}
    for path in place.glob("*.json"):
        try:
            if path.is_file() and path.stat().st_size <= LARGEST_OPTIONS:
                found[path] = read_json(path, "options of a model")
        except (OSError, ValueError):
            continue
    return found


def read_parameter(path: Path) -> Tensor:
    """Read one parameter.

    Raises:
        ValueError: the file is damaged, or not a parameter of Paddle 1.
    """
    data = path.read_bytes()
    try:
        version, levels, inner, length = HEAD.unpack_from(data)
        if version or levels or inner or not 0 < length <= LARGEST:
            raise ValueError("its beginning is another")
        start = HEAD.size + length
        kind, shape = _description(data[HEAD.size : start])
        if kind not in TYPES:
            raise ValueError(f"its numbers are of type {kind}")
        if wrong := [size for size in shape if not 0 < size < LARGEST_SIZE]:
            raise ValueError(f"it has a size of {wrong[0]}")
        numbers = np.frombuffer(data, dtype=TYPES[kind], offset=start)
        if len(numbers) != math.prod(shape):
            raise ValueError(f"it holds {len(numbers)} numbers for the shape {shape}")
        native = numbers.astype(numbers.dtype.newbyteorder("="))
        return torch.from_numpy(native).reshape(shape)
    except (ValueError, StopIteration, struct.error) as error:
        raise ValueError(
            f"{path} is not a parameter as Paddle 1 saves it ({error}); give the folder of "
            "parameters as it was downloaded"
        ) from error


def _description(data: bytes) -> tuple[int, tuple[int, ...]]:
    """Return type and shape of a tensor."""
    kind, shape, values = -1, list[int](), _varints(data)
    for key in values:
        if key == 8:  # field 1
            kind = next(values)
        elif key == 16:  # field 2
            shape.append(next(values))
        elif key == 18:  # field 2, packed: a length, then so many bytes of sizes
            raise ValueError("its sizes are packed")
        else:
            raise ValueError(f"its description has a field {key >> 3}")
    return kind, tuple(shape)


def _varints(data: bytes) -> Iterator[int]:
    """Yield the numbers of a protocol buffer that has no other kind."""
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0
    if shift:
        raise ValueError("its description is cut")
