"""Tensors and metadata in one safetensors file, written atomically and checked by a checksum.

It is to one file what `counterfoil.core.artifact` is to a folder: one rename replaces all of it, as
a checkpoint needs that is written every few minutes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from counterfoil.core.io import atomic_write, check_file, parse_json

FORMAT = 1
_KEY = "counterfoil"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors with JSON-ready metadata.

    Tensors that share memory are written once each.
    """
    owned, plain = _owned(tensors), json.loads(json.dumps(about))
    facts = {"format": FORMAT, "checksum": _checksum(owned, plain), "about": plain}
    with atomic_write(path) as temporary:
        save_file(owned, temporary, {_KEY: json.dumps(facts)})


def read_tensors(path: Path, noun: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of `write_tensors`: the tensors, on the CPU, and the metadata.

    Raises:
        ValueError: the file is missing, damaged, of another program or of another version.
    """
    try:
        check_file(path)
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_KEY, "null")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = parse_json(text, "its metadata")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {noun} is needed there") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged and cannot be read as {noun}: {error}") from error
    if not isinstance(facts, dict) or "about" not in facts:
        raise ValueError(f"{path} is a safetensors file, but not {noun} of counterfoil")
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {facts.get('format')}, and this version of counterfoil reads "
            f"format {FORMAT}; open it with the version that wrote it"
        )
    if facts.get("checksum") != _checksum(tensors, facts["about"]):
        raise ValueError(f"{path} is damaged: its checksum does not fit; delete it and start again")
    return tensors, facts["about"]


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix/``, by the rest of the name."""
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU, none of which shares memory with another."""
    owned, addresses = {}, set[int]()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        place = copy.untyped_storage().data_ptr()
        if place in addresses or copy.numel() != copy.untyped_storage().nbytes() // copy.itemsize:
            copy = copy.clone()
        addresses.add(place)
        owned[name] = copy
    return owned


def _checksum(tensors: Mapping[str, Tensor], about: object) -> int:
    value = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return value
