"""What of a corpus an index does not hold as it is: what is new, and what has changed since."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from counterfoil.core.console import progress
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.findings import counted
from counterfoil.corpus.pictures import PictureFiles
from counterfoil.engine.index import Index
from counterfoil.engine.index_parts import Entry
from counterfoil.engine.index_shelf import Shelf

_JUST_NOW = 2_000_000_000  # nanoseconds; file systems note the time of a change no more exactly


@final
@dataclass(frozen=True, slots=True)
class Arriving:
    """What is to be encoded, and what goes.

    Attributes:
        images: rows of the corpus.
        texts: rows of the corpus.
        images_gone: rows on the index's shelf that others take the place of.
        texts_gone: rows on the index's shelf that others take the place of.
    """

    images: Sequence[int]
    texts: Sequence[int]
    images_gone: Sequence[int] = ()
    texts_gone: Sequence[int] = ()


def arriving(corpus: Corpus, index: Index, *, exchange: bool) -> Arriving:
    """Compare a corpus with what an index holds under its ids.

    A picture is compared by content, unless its file is where it was, of the same size and as old.
    One whose file has changed, or was moved away, takes the place of what it was; so does a caption
    that reads otherwise.

    Args:
        corpus: what comes.
        index: what is there.
        exchange: whether other pictures, and captions of other images, take the place of those with
            their ids.

    Raises:
        ValueError: there are such pictures or captions, and they are not to be exchanged.
    """
    images, images_gone, strange = _images(corpus, index.images)
    texts, texts_gone, misplaced = _texts(corpus, index.texts)
    if not exchange and (strange or misplaced):
        what = "picture than the one" if strange else "image's caption than the one"
        many = f" ({counted(len(strange), 'image')}, {counted(len(misplaced), 'caption')})"
        raise ValueError(
            f"{(strange or misplaced)[0]!r} of {corpus.name} is another {what} that {index.folder} "
            f"holds under this id{many}; give their ids a --prefix, or let them take the place of "
            "the others with --exchange"
        )
    return Arriving(images, texts, images_gone, texts_gone)


def prefixed(corpus: Corpus, prefix: str) -> Corpus:
    """The same with something before every id, so that two corpora may have the same ids."""
    images, texts = (
        [prefix + name for name in names] for names in (corpus.image_ids, corpus.text_ids)
    )
    return replace(corpus, image_ids=images, text_ids=texts)


def content(corpus: Corpus, row: int) -> str:
    """Digest of an image: of its file, of what is drawn, or of its features; "" for none."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(corpus.pictures, PictureFiles):
        try:
            digest.update(corpus.pictures.paths[row].read_bytes())
        except OSError:  # who encodes it says so
            return ""
    elif corpus.pictures is not None:
        picture = corpus.pictures.open(row)
        digest.update(f"{picture.size} {picture.mode} ".encode() + picture.tobytes())
    elif corpus.features is not None:
        items = corpus.features.take(torch.tensor([row]))
        digest.update(items.values[items.mask].contiguous().numpy().tobytes())
    else:
        return ""
    return digest.hexdigest()


def stamp(corpus: Corpus, row: int) -> str:
    """Size and time of a picture's file; "" for none, and for one that may change unnoticed."""
    if not isinstance(corpus.pictures, PictureFiles):
        return ""
    try:
        status = corpus.pictures.paths[row].stat()
    except OSError:  # who encodes it says so
        return ""
    late = time.time_ns() - status.st_mtime_ns < _JUST_NOW
    return "" if late else f"{status.st_size} {status.st_mtime_ns}"


def text_entry(corpus: Corpus, row: int) -> Entry:
    """What an index says of a caption."""
    owner = int(corpus.owner[row])
    image = "" if owner < 0 else corpus.image_ids[owner]
    return Entry(corpus.text_ids[row], text=corpus.texts[row], image=image)


def _images(corpus: Corpus, shelf: Shelf) -> tuple[list[int], list[int], list[str]]:
    """Rows that come and that go, and ids of other pictures among them."""
    rows, gone, strange = [], [], []
    with progress("pictures compared", len(corpus)) as done:
        for row, name in enumerate(corpus.image_ids):
            done(1)
            found = shelf.find(name)
            if found is not None and _same(corpus, row, shelf.entry(found)):
                continue
            rows.append(row)
            if found is None:
                continue
            gone.append(found)
            if not _known(corpus, row, shelf.entry(found)):
                strange.append(name)
    return rows, gone, strange


def _same(corpus: Corpus, row: int, entry: Entry) -> bool:
    """Whether an image is there as it is, and its picture where it is said to be."""
    if entry.stamp and entry.stamp == stamp(corpus, row) and _placed(corpus, row, entry):
        return True
    now = content(corpus, row)
    if now and entry.content and now != entry.content:
        return False
    lost = Path(entry.place).is_absolute() and not Path(entry.place).exists()
    return not (lost and now)


def _known(corpus: Corpus, row: int, entry: Entry) -> bool:
    """Whether an image that is not there as it is may be the one with its id all the same."""
    return _placed(corpus, row, entry) or content(corpus, row) == entry.content


def _placed(corpus: Corpus, row: int, entry: Entry) -> bool:
    """Whether the picture's file is the one that an index names."""
    pictures = corpus.pictures
    return isinstance(pictures, PictureFiles) and entry.place == str(pictures.paths[row].resolve())


def _texts(corpus: Corpus, shelf: Shelf) -> tuple[list[int], list[int], list[str]]:
    """Rows that come and that go, and ids of captions of other images among them."""
    rows, gone, misplaced = [], [], []
    for row, name in enumerate(corpus.text_ids):
        found, entry = shelf.find(name), text_entry(corpus, row)
        if found is not None and shelf.entry(found) == entry:
            continue
        rows.append(row)
        if found is None:
            continue
        gone.append(found)
        if shelf.entry(found).image not in ("", entry.image):
            misplaced.append(name)
    return rows, gone, misplaced
