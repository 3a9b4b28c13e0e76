"""Making an index, adding to it and deleting from it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pictures import PictureFiles
from counterfoil.engine.encode import encode_images, encode_texts
from counterfoil.engine.index import Index
from counterfoil.engine.index_draft import New
from counterfoil.engine.index_parts import Entry
from counterfoil.engine.index_shelf import Shelf
from counterfoil.engine.index_state import Backend, IndexState, is_index
from counterfoil.files import check_folder, replacing, replacing_folder
from counterfoil.progress import progress
from counterfoil.recipes.model import MODEL, Model
from counterfoil.recipes.searching import SearchIndex
from counterfoil.recipes.vector_hosts import check_vectors
from counterfoil.records import Encoded
from counterfoil.train.saved import CARD

PICTURES = "pictures"
_FEW = 8  # images and captions that show whether a model fits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlan:
    """How an index is kept.

    Attributes:
        backend: what finds candidates.
        address: of a Milvus server; "" for a file in the index.
        half: keep vectors in float16.
    """

    backend: Backend = "exact"
    address: str = ""
    half: bool = False

    def __post_init__(self) -> None:
        if self.address and self.backend != "milvus":
            raise ValueError(
                f"an address is that of a Milvus server, and the backend is {self.backend!r}; "
                "leave it out, or choose milvus"
            )


@final
@dataclass(frozen=True, slots=True)
class Changed:
    """What became of an index.

    Attributes:
        images: how many came or went.
        texts: how many came or went.
        known: images that were there already.
    """

    images: int
    texts: int
    known: int = 0


def build_index(
    model: Model, corpus: Corpus, folder: str | Path, *, plan: IndexPlan | None = None
) -> SearchIndex:
    """Make an index of all images and captions of a corpus; whole or, if it is killed, not at all.

    A model folder is copied into the index; of a model with a name the index keeps the name.

    Args:
        model: that makes one vector of each item.
        corpus: what to put in it.
        folder: of the index; must not exist yet.
        plan: how to keep it.

    Raises:
        ValueError: the folder exists, the corpus is empty, or the model is none for an index.
    """
    folder, plan = Path(folder), plan or IndexPlan()
    if folder.exists():
        what = "an index; --add adds to it" if is_index(folder) else "something else"
        raise ValueError(f"{folder} exists and holds {what}; name a new folder")
    check_folder(folder)
    world.wait()  # nobody begins before everybody has looked
    coming = _coming(model, corpus, None)
    if world.rank() == 0:
        with replacing_folder(folder) as temporary:
            state = IndexState(
                identity=model.identity(),
                model=_kept_model(model, temporary),
                width=coming.width,
                backend=plan.backend,
                address=plan.address,
                half=plan.half,
            )
            index = Index.create(temporary, state)
            try:
                _keep(index, corpus, coming)
            finally:
                index.close()
    world.wait()
    return SearchIndex(folder, model=model)


def add(into: SearchIndex, corpus: Corpus) -> Changed:
    """Add the images and captions of a corpus that an index does not hold yet, by id.

    A caption that reads otherwise than before takes the place of the one with its id.

    Raises:
        ValueError: model and data do not fit, or another process writes.
    """
    coming = _coming(into.model, corpus, into.index)
    if world.rank() == 0:
        _keep(into.index, corpus, coming)
    world.wait()
    known = len(corpus) - len(coming.image_rows)
    return Changed(len(coming.image_rows), len(coming.text_rows), known)


def delete(from_index: SearchIndex, names: Sequence[str]) -> Changed:
    """Forget images with their captions, or single captions, by id.

    Raises:
        ValueError: an id is not there; then nothing is forgotten.
    """
    index = from_index.index
    images: set[int] = set()
    texts: set[int] = set()
    for name in names:
        side, row = from_index.named(name)
        (images if side == "image" else texts).add(row)
        texts |= set(index.texts.about.get(name, ())) if side == "image" else set()
    places = [Path(index.images.entry(row).place) for row in images]
    index.change(no_images=sorted(images), no_texts=sorted(texts))
    for place in places:
        if place.parent == Path(PICTURES):  # an index may come from anybody, and name any file
            (index.folder / place).unlink(missing_ok=True)
    return Changed(len(images), len(texts))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Coming:
    """What an index does not hold yet.

    Attributes:
        image_rows: of the corpus.
        text_rows: of the corpus.
        images: (n, D); None for none.
        texts: (m, D); None for none.
        gone: rows on the index's shelf of captions that read otherwise now.
        width: D.
    """

    image_rows: list[int]
    text_rows: list[int]
    images: Tensor | None
    texts: Tensor | None
    gone: tuple[int, ...]
    width: int


def _coming(model: Model, corpus: Corpus, index: Index | None) -> _Coming:
    """Encode what is new."""
    images = list(range(len(corpus)))
    texts = list(range(len(corpus.texts)))
    gone: tuple[int, ...] = ()
    if index is not None:
        images = [row for row in images if index.images.find(corpus.image_ids[row]) is None]
        texts, gone = _other_texts(corpus, index.texts)
    elif not images:
        raise ValueError(f"{corpus.name} ({corpus.part}) has no images; there is nothing to index")
    part = corpus.cut(
        torch.tensor(images, dtype=torch.long),
        torch.tensor(texts, dtype=torch.long),
        torch.full((len(texts),), -1),
    )
    lens = model.on(part)
    seen = read = None
    for most in (_FEW, max(len(images), len(texts))):  # who does not fit is told so at once
        seen = encode_images(model.matcher, lens.images, min(most, len(part))) if images else None
        read = encode_texts(model.matcher, lens.texts, min(most, len(texts))) if texts else None
        check_vectors(model, seen, read)
    one = seen or read
    width = one.tokens.shape[2] if one is not None else index.state.width if index else 0
    return _Coming(images, texts, _flat(seen), _flat(read), gone, width)


def _flat(encoded: Encoded | None) -> Tensor | None:
    return None if encoded is None else encoded.tokens[:, 0].float()


def _other_texts(corpus: Corpus, shelf: Shelf) -> tuple[list[int], tuple[int, ...]]:
    """Rows of the corpus whose caption is not there as it is, and the rows these replace."""
    rows, gone = [], []
    for row, name in enumerate(corpus.text_ids):
        found = shelf.find(name)
        if found is not None and shelf.entry(found) == _text_entry(corpus, row):
            continue
        rows.append(row)
        if found is not None:
            gone.append(found)
    return rows, tuple(gone)


def _keep(index: Index, corpus: Corpus, coming: _Coming) -> None:
    images = _image_entries(corpus, coming.image_rows, index)
    texts = [_text_entry(corpus, row) for row in coming.text_rows]
    index.change(
        images=None if coming.images is None else New(images, coming.images),
        texts=None if coming.texts is None else New(texts, coming.texts),
        no_texts=coming.gone,
    )


def _text_entry(corpus: Corpus, row: int) -> Entry:
    owner = int(corpus.owner[row])
    image = "" if owner < 0 else corpus.image_ids[owner]
    return Entry(corpus.text_ids[row], text=corpus.texts[row], image=image)


def _image_entries(corpus: Corpus, rows: Sequence[int], index: Index) -> list[Entry]:
    """Entries of images; a picture that lies in no file is written into the index."""
    pictures = corpus.pictures
    if pictures is None:
        return [Entry(corpus.image_ids[row]) for row in rows]
    if isinstance(pictures, PictureFiles):
        return [
            Entry(corpus.image_ids[row], place=str(pictures.paths[row].resolve())) for row in rows
        ]
    first, places = index.state.images.next, []
    mine = secrets.token_hex(4)  # another process may be about to add under the same numbers
    with progress("pictures written", len(rows)) as advance:
        for number, row in enumerate(rows, first):
            places.append(f"{PICTURES}/{number:08d}-{mine}.png")
            with replacing(index.folder / places[-1]) as temporary:
                pictures.open(row).save(temporary, format="png")
            advance(1)
    return [
        Entry(corpus.image_ids[row], place=place) for row, place in zip(rows, places, strict=True)
    ]


def _kept_model(model: Model, folder: Path) -> str:
    """Copy a model folder into an index; the name of any other model."""
    found = Path(model.name)
    if not found.is_dir():
        return model.name
    if model.card is None:
        return str(found.resolve())
    whole = found if (found / CARD).is_file() else found / MODEL
    shutil.copytree(whole, folder / MODEL)
    return MODEL
