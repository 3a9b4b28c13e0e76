"""Making an index, adding to it and deleting from it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pictures import PictureFiles, Pictures
from counterfoil.engine.encode import encode_images, encode_texts
from counterfoil.engine.index import Index
from counterfoil.engine.index_draft import New
from counterfoil.engine.index_parts import Entry
from counterfoil.engine.index_state import Backend, IndexState, is_index
from counterfoil.files import check_folder, replacing, replacing_folder
from counterfoil.recipes.arriving import Arriving, arriving, content, stamp, text_entry
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
        exchanged: images among those that came that took the place of others with their ids.
    """

    images: int
    texts: int
    known: int = 0
    exchanged: int = 0


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


def add(into: SearchIndex, corpus: Corpus, *, exchange: bool = False) -> Changed:
    """Add the images and captions of a corpus that an index does not hold as they are.

    A picture whose file has changed and a caption that reads otherwise take the place of what is
    there under their ids, see `counterfoil.recipes.arriving.arriving`.

    Args:
        into: the index.
        corpus: what to add.
        exchange: whether other pictures that have the ids of some take their place, too.

    Raises:
        ValueError: there are such pictures and they are not to be exchanged, model and data do not
            fit, or another process writes.
    """
    coming = _coming(into.model, corpus, into.index, exchange=exchange)
    if world.rank() == 0:
        places = _places(into.index, coming.what.images_gone)
        _keep(into.index, corpus, coming)
        _remove(into.index, places)
    world.wait()
    come, gone = coming.what.images, coming.what.images_gone
    return Changed(len(come), len(coming.what.texts), len(corpus) - len(come), len(gone))


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
    places = _places(index, sorted(images))
    index.change(no_images=sorted(images), no_texts=sorted(texts))
    _remove(index, places)
    return Changed(len(images), len(texts))


def _places(index: Index, rows: Sequence[int]) -> list[Path]:
    return [Path(index.images.entry(row).place) for row in rows]


def _remove(index: Index, places: Sequence[Path]) -> None:
    """Pictures that lie in an index, when nothing there names them any more."""
    for place in places:
        if place.parent == Path(PICTURES):  # an index may come from anybody, and name any file
            (index.folder / place).unlink(missing_ok=True)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Coming:
    """What an index does not hold as it is.

    Attributes:
        what: rows that come and go.
        marks: (n,) of each image, by which it is known again: content and stamp.
        images: (n, D); None for none.
        texts: (m, D); None for none.
        width: D.
    """

    what: Arriving
    marks: Sequence[tuple[str, str]]
    images: Tensor | None
    texts: Tensor | None
    width: int


def _coming(
    model: Model, corpus: Corpus, index: Index | None, *, exchange: bool = False
) -> _Coming:
    """Encode what is new."""
    if index is not None:
        what = arriving(corpus, index, exchange=exchange)
    elif len(corpus):
        what = Arriving(range(len(corpus)), range(len(corpus.texts)))
    else:
        raise ValueError(f"{corpus.name} ({corpus.part}) has no images; there is nothing to index")
    few = replace(what, images=what.images[:_FEW], texts=what.texts[:_FEW])
    if few != what:
        _encoded(model, corpus, few)  # who does not fit is told so at once
    marks = _marks(corpus, what.images)  # what changes from now on is looked at again
    seen, read = _encoded(model, corpus, what)
    one = seen or read
    width = one.tokens.shape[2] if one is not None else index.state.width if index else 0
    return _Coming(what, marks, _flat(seen), _flat(read), width)


def _encoded(model: Model, corpus: Corpus, what: Arriving) -> tuple[Encoded | None, Encoded | None]:
    """Images and texts that come, with one vector each; None for none."""
    part = corpus.cut(
        torch.tensor(what.images, dtype=torch.long),
        torch.tensor(what.texts, dtype=torch.long),
        torch.full((len(what.texts),), -1),
    )
    lens = model.on(part)
    seen = encode_images(model.matcher, lens.images, len(part)) if len(part) else None
    read = encode_texts(model.matcher, lens.texts, len(part.texts)) if part.texts else None
    check_vectors(model, seen, read)
    return seen, read


def _marks(corpus: Corpus, rows: Sequence[int]) -> list[tuple[str, str]]:
    """Of each image, by which it is known again."""
    if world.rank() != 0:
        return []
    marks = []
    with progress("pictures noted", len(rows)) as done:
        for row in rows:
            read = stamp(corpus, row)
            marks.append((content(corpus, row), read))
            done(1)
    return marks


def _flat(encoded: Encoded | None) -> Tensor | None:
    return None if encoded is None else encoded.tokens[:, 0].float()


def _keep(index: Index, corpus: Corpus, coming: _Coming) -> None:
    images = _image_entries(corpus, coming, index)
    texts = [text_entry(corpus, row) for row in coming.what.texts]
    index.change(
        images=None if coming.images is None else New(images, coming.images),
        texts=None if coming.texts is None else New(texts, coming.texts),
        no_images=coming.what.images_gone,
        no_texts=coming.what.texts_gone,
    )


def _image_entries(corpus: Corpus, coming: _Coming, index: Index) -> list[Entry]:
    """Entries of images; a picture that lies in no file is written into the index."""
    entries: list[Entry] = []
    mine = secrets.token_hex(4)  # another process may be about to add under the same numbers
    for number, row in enumerate(coming.what.images, index.state.images.next):
        place = _placed(corpus.pictures, row, index.folder, f"{number:08d}-{mine}.png")
        read, when = coming.marks[len(entries)]
        entries.append(Entry(corpus.image_ids[row], place=place, content=read, stamp=when))
    return entries


def _placed(pictures: Pictures | None, row: int, folder: Path, name: str) -> str:
    if pictures is None:
        return ""
    if isinstance(pictures, PictureFiles):
        return str(pictures.paths[row].resolve())
    with replacing(folder / PICTURES / name) as temporary:
        pictures.open(row).save(temporary, format="png")
    return f"{PICTURES}/{name}"


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
