"""What readers find, made into a corpus."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pictures import Pictures
from counterfoil.corpus.regions import Features


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One image as a reader finds it.

    Attributes:
        id: the data set's own name of the image.
        split: its split, "" where the data set does not say.
        texts: its captions, in their order.
        text_ids: the data set's own names of the captions; () for "image#place".
    """

    id: str
    split: str
    texts: tuple[str, ...]
    text_ids: tuple[str, ...] = ()


def assemble(
    name: str,
    entries: Sequence[Entry],
    *,
    where: str,
    pictures: Pictures | None = None,
    features: Features | None = None,
) -> Corpus:
    """A corpus of these images in this order, caption after caption.

    Args:
        name: what to call the corpus.
        entries: its images; those without a split are divided by `divided`.
        where: the file they were read from, for messages.
        pictures: one for each entry.
        features: one row for each entry.

    Raises:
        ValueError: there is no image, an id stands twice, or a caption is not text.
    """
    if not entries:
        raise ValueError(f"{where} holds no image; at least one with a caption is needed")
    entries = divided(entries)
    image_ids = [entry.id for entry in entries]
    texts = [text for entry in entries for text in entry.texts]
    text_ids = [name for entry in entries for name in _text_ids(entry)]
    _once(image_ids, "image", where)
    _once(text_ids, "caption", where)
    _encodable([*image_ids, *text_ids, *texts], where)
    counts = torch.tensor([len(entry.texts) for entry in entries])
    return Corpus(
        name=name,
        image_ids=image_ids,
        text_ids=text_ids,
        texts=texts,
        owner=torch.arange(len(entries)).repeat_interleave(counts),
        splits=[entry.split for entry in entries],
        pictures=pictures,
        features=features,
    )


def divided(entries: Sequence[Entry], *, dev: float = 0.1, test: float = 0.1) -> Sequence[Entry]:
    """The same images, those without a split put into one by the hash of their id.

    The split of an image depends on nothing but its id, so that a folder may grow. Only where a
    small set would have no dev or test image at all are images counted off in order of the hash.

    Args:
        entries: the images.
        dev: share of the dev split.
        test: share of the test split; the rest is for training.
    """
    draws = {entry.id: _fraction(entry.id) for entry in entries if not entry.split}
    names = {
        name: "test" if draw >= 1 - test else "dev" if draw >= 1 - test - dev else "train"
        for name, draw in draws.items()
    }
    if len(draws) >= 3 and len(set(names.values())) < 3:
        order = sorted(draws, key=lambda name: -draws[name])
        last = max(1, round(len(order) * test))
        middle = last + max(1, round(len(order) * dev))
        names = {
            name: "test" if place < last else "dev" if place < middle else "train"
            for place, name in enumerate(order)
        }
    return [entry if entry.split else replace(entry, split=names[entry.id]) for entry in entries]


def _fraction(name: str) -> float:
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _text_ids(entry: Entry) -> Sequence[str]:
    return entry.text_ids or [f"{entry.id}#{place}" for place in range(len(entry.texts))]


def _once(ids: Sequence[str], what: str, where: str) -> None:
    if len(set(ids)) < len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        raise ValueError(f"{where}: {what} id {twice!r} stands twice; every {what} has its own id")


def _encodable(strings: Sequence[str], where: str) -> None:
    try:
        "\n".join(strings).encode()
    except UnicodeEncodeError as error:
        bad = error.object[max(error.start - 20, 0) : error.end]
        raise ValueError(
            f"{where}: {bad!r} is not valid Unicode (half of a surrogate pair); write the whole "
            "character"
        ) from None
