"""An index of small pictures, its server, and clients."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import torch
from fastapi import FastAPI
from PIL import Image

import recipes_cases
from counterfoil.core.config import config, lazy
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import WordTokenizer
from counterfoil.model import load_model, save_model
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.models.vsepp import VSEPP
from counterfoil.search.index import open_index
from counterfoil.search.vector_index import IndexEntry, IndexState, NewVectors, VectorIndex
from counterfoil.serve.app import application
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings

T = TypeVar("T")
SIDE = 24
NASTY = '<img src=x onerror="alert(1)"> & a dog'
WHERE = "http://127.0.0.1:8000"


def colour(row: int) -> tuple[int, int, int]:
    """Colour of the n-th picture; all differ."""
    return 37 * row % 256, 91 * row % 256, 151 * row % 256


def painted(row: int, size: int = SIDE) -> Image.Image:
    """The n-th picture, of two colours."""
    picture = Image.new("RGB", (size, size), colour(row))
    picture.paste(colour(row + 7), (0, 0, size // 2, size // 3 + row % 5))
    return picture


def content(picture: Image.Image, kind: str = "png") -> bytes:
    """A picture as a file."""
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


def names(count: int) -> list[str]:
    """Ids, some with special characters."""
    odd = ["a/b c.png", "été #1?&.png", "<b>.png"]
    return [*odd, *(f"{row:05d}.png" for row in range(len(odd), count))][:count]


def indexed(root: Path, count: int = 12) -> Path:
    """A folder with the model "model", pictures and the index "index"."""
    recipes_cases.pixel_model(root / "model")
    model = load_model(root / "model")
    pictures = [painted(row) for row in range(count)]
    places = []
    for row, picture in enumerate(pictures):
        places.append(root / "photos" / f"{row}.png")
        places[-1].parent.mkdir(exist_ok=True)
        places[-1].write_bytes(content(picture))
    vectors = torch.cat([model.encode([picture]).tokens[:, 0] for picture in pictures])
    state = IndexState(identity=model.identity(), model=str(root / "model"), width=vectors.shape[1])
    index = VectorIndex.create(root / "index", state)
    ids = names(count)
    entries = [IndexEntry(name, place=str(place)) for name, place in zip(ids, places)]
    said = IndexEntry("caption", NASTY, image=ids[1])
    index.change(
        images=NewVectors(entries, vectors),
        texts=NewVectors([said], model.encode([NASTY]).tokens[:, 0]),
    )
    index.close()
    return root


def library(root: Path, **more: Any) -> SearchService:
    """The search service of `indexed`."""
    return SearchService(open_index(root / "index"), **more)


def served(root: Path, settings: ServerSettings | None = None) -> FastAPI:
    """The application of `indexed`."""
    return application(library(root), settings or ServerSettings(gather=0.0))


def asked(app: FastAPI, ask: Callable[[httpx.AsyncClient], Awaitable[T]], where: str = WHERE) -> T:
    """Result of a client of an application."""

    async def scene() -> T:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=where) as client:
            return await ask(client)

    return asyncio.run(scene())


def posted(app: FastAPI, route: str, **how: Any) -> httpx.Response:
    """The answer to one POST."""
    return asked(app, lambda client: client.post(route, **how))


def got(app: FastAPI, route: str, **how: Any) -> httpx.Response:
    """The answer to one GET."""
    return asked(app, lambda client: client.get(route, **how))


def wide_index(root: Path, count: int) -> Path:
    """An index of many vectors of width 256, without pictures."""
    torch.manual_seed(0)
    text = lazy(GRU, words=len(recipes_cases.WORDS), width=256, word_width=64)
    spec = config(VSEPP, image=lazy(PatchTower, size=16, patch=8, width=256, channels=4), text=text)
    processor = Processor(PixelProcessor(16), WordTokenizer(recipes_cases.WORDS))
    save_model(root / "model", spec=spec, model=spec.build(), processor=processor)
    model = load_model(root / "model")
    vectors = torch.nn.functional.normalize(torch.randn(count, 256), dim=1)
    state = IndexState(identity=model.identity(), model=str(root / "model"), width=256)
    index = VectorIndex.create(root / "index", state)
    index.change(images=NewVectors([IndexEntry(f"{row:06d}") for row in range(count)], vectors))
    index.close()
    return root / "index"


@contextmanager
def running(*words: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of ``counterfoil serve`` on a free port of this machine."""
    patient = ("--seconds", "120", *map(str, words), "--port", "0")  # on a busy machine, too
    command = [sys.executable, "-m", "counterfoil.cli", "serve", *patient]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        told = []
        try:
            for line in process.stdout:
                told.append(line)
                if found := re.search(r"http://\S+/", line):
                    break
            else:
                raise AssertionError("".join(told))
            yield found[0], process
        finally:
            process.kill()
