"""An index of small pictures, its server, and clients."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import torch
from fastapi import FastAPI
from PIL import Image

import recipes_cases
from benchmarks.speed.server import running as running
from counterfoil.cli import main
from counterfoil.model import load_model
from counterfoil.search.index import open_index
from counterfoil.search.vector_index import IndexEntry, IndexState, NewVectors, VectorIndex
from counterfoil.serve.app import application
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings

T = TypeVar("T")
SIDE = 24
ALBUMS = ("sea", "home", "Sea 2")
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


def with_columns(root: Path, count: int = 12) -> Path:
    """A folder with the model "model", "photos" with a table of columns, and the index "index"."""
    recipes_cases.pixel_model(root / "model")
    (root / "photos").mkdir()
    lines = ["image,caption,album,year,note"]
    for row in range(count):
        (root / "photos" / f"{row:02}.png").write_bytes(content(painted(row)))
        lines.append(f"{row:02}.png,a dog {row},{ALBUMS[row % 3]},{2010 + row},note {row}")
    (root / "photos" / "captions.csv").write_text("\n".join(lines))
    made = ("index", root / "model", root / "photos", "--output", root / "index")
    assert main([str(word) for word in made]) == 0
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
