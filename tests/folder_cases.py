"""A tiny folder of every kind of model that is opened, and what opening one may not do."""

from __future__ import annotations

import shutil
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import transformers

import recipes_cases
import sentence_transformer_cases as st_cases
import vision_cases
from counterfoil.card import save_shared
from counterfoil.model import load_model

WORDS = ["a", "red", "dog", "in", "the", "snow", "."]


def adapter(folder: Path) -> Path:
    """A dense embedder whose backbone is a LoRA of peft, with its base in the folder."""
    import peft  # takes seconds, in every process that collects tests

    dense, base = st_cases.dense(folder, WORDS), folder / "base"
    shutil.copytree(base, dense / "base")
    body = transformers.AutoModel.from_pretrained(dense / "base")
    with warnings.catch_warnings(action="ignore"):  # of transformers, about peft
        tuned = peft.get_peft_model(body, peft.LoraConfig(target_modules=["q_proj"]))
        tuned.save_pretrained(dense)
    for name in ("model.safetensors", "config.json"):
        (dense / name).unlink()
    return dense


def towers(folder: Path) -> Path:
    """The text tower of a pair; the picture tower is one of timm, which has no files."""
    recipes_cases.hub_cases.bert(folder)
    recipes_cases._bert_pieces(folder)
    return folder


def saved(folder: Path, make: Callable[[Path], Path]) -> Path:
    """A model folder of ours that was made of one of a library."""
    save_shared(load_model(make(folder)), folder / "saved")
    return folder / "saved"


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "clip": lambda folder: recipes_cases.clip_like(folder / "clip"),
    "siglip": lambda folder: recipes_cases.clip_like(folder / "siglip", "siglip"),
    "dense": lambda folder: st_cases.dense(folder, WORDS),
    "multi-vector": lambda folder: st_cases.multi(folder, WORDS),
    "cross-encoder": lambda folder: st_cases.judge(folder, WORDS),
    "blip": lambda folder: recipes_cases.blip_like(folder / "blip"),
    "vilt": lambda folder: recipes_cases.vilt_like(folder / "vilt"),
    "timm": lambda folder: towers(folder / "bert"),
    "open_clip": lambda folder: vision_cases.clip_folder(folder / "open_clip", "siglip"),
    "adapter": adapter,
    "ours": lambda folder: recipes_cases.pixel_model(folder / "ours"),
    "ours of clip": lambda folder: saved(folder, KINDS["clip"]),
    "ours of dense": lambda folder: saved(folder, KINDS["dense"]),
}


def name_of(kind: str, folder: Path) -> str:
    """The name by which `load_model` opens a folder."""
    return f"timm:resnet8+{folder}" if kind == "timm" else str(folder)


@contextmanager
def libraries(place: Path) -> Iterator[pytest.MonkeyPatch]:
    """Stand-ins for open_clip and timm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "open_clip", vision_cases.open_clip(place))
        patch.setitem(sys.modules, "timm", vision_cases.timm())
        plain = types.SimpleNamespace(fix_text=lambda text: text)
        patch.setitem(sys.modules, "ftfy", plain)
        yield patch


def made(root: Path) -> dict[str, Path]:
    """A folder of each kind; adapters name their base where it lies, so nothing is moved."""
    with libraries(root):
        return {kind: make(_new(root / kind)) for kind, make in KINDS.items()}


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


# What a process does is seen by one audit hook, which cannot be removed again.

_watching: list[tuple[list[str], Path]] = []
_NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")
_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")


def _hook(event: str, details: tuple[Any, ...]) -> None:
    if not _watching:
        return
    found, outside = _watching[-1]
    if event in _NETWORK or event in _PROCESSES:
        found.append(f"{event} {details}")
    elif event == "import" and str(details[0]).startswith(FORBIDDEN):
        found.append(f"import {details[0]}")
    elif event == "open" and isinstance(details[0], str) and details[0].startswith(str(outside)):
        found.append(f"open {details[0]}")


FORBIDDEN = ("decoy", "torch.distributed.run", "torch.utils.collect_env", "antigravity", "this")
_hooked = False


@contextmanager
def watched(outside: Path) -> Iterator[list[str]]:
    """What was imported, run, fetched or read of what is forbidden."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    found: list[str] = []
    _watching.append((found, outside))
    try:
        yield found
    finally:
        _watching.pop()
