"""A data set: images, texts, who describes whom, and where pixels and features are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from counterfoil.core.config import unknown_name
from counterfoil.core.types import Pairs
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import Pictures

# One name for each split, whatever a data set calls it.


_SAME = {"val": "dev", "valid": "dev", "validation": "dev", "testall": "test", "training": "train"}


def canonical_split(name: str) -> str:
    """The name a split goes by here.

    >>> canonical_split("validation"), canonical_split("restval")
    ('dev', 'restval')
    """
    return _SAME.get(name, name)


def existing_split(name: str, known: Sequence[str], of: str) -> str:
    """The split that is meant by a name.

    Raises:
        ValueError: there is none; those that exist are named.
    """
    meant = [
        split for split in known if split == name or canonical_split(split) == canonical_split(name)
    ]
    if not meant:
        raise ValueError(unknown_name(name, list(known), f"a split of {of}"))
    return name if name in meant else meant[0]


# Which text describes which image.
#
# Two images and four texts, the last of which describes neither:
#
#     text   0  1  2  3
#     owner  0  0  1 -1
#
# (tensor([2, 0, 1]), tensor([1, 2]))
# tensor([[1, 1, 0, 0],
#         [0, 0, 1, 0]], dtype=torch.int32)


@final
class Relation:
    """Every text describes one image or none; an image has any number of texts.

    Args:
        text_to_image: (T,) long, the image each text describes, -1 for none.
        images: how many images there are.
        besides: rows of pairs that somebody found true besides; they are nobody's captions.

    Raises:
        ValueError: an owner that is no image.
    """

    def __init__(self, text_to_image: Tensor, *, images: int, besides: Pairs | None = None) -> None:
        if (
            len(text_to_image)
            and not -1 <= int(text_to_image.min()) <= int(text_to_image.max()) < images
        ):
            raise ValueError(
                f"texts describe images {int(text_to_image.min())} to {int(text_to_image.max())}, "
                f"but there are "
                f"images 0 to {images - 1}; use -1 for a text that describes none"
            )
        self.text_to_image, self.images, self.besides = text_to_image.long(), images, besides

    @cached_property
    def _order(self) -> Tensor:
        """Texts sorted by the image they describe, those of no image first."""
        return torch.sort(self.text_to_image, stable=True).indices

    @cached_property
    def counts(self) -> Tensor:
        """(I,) texts of each image."""
        return torch.bincount(self.text_to_image[self.text_to_image >= 0], minlength=self.images)

    @cached_property
    def _starts(self) -> Tensor:
        orphans = (self.text_to_image < 0).sum()
        return orphans + self.counts.cumsum(0) - self.counts

    def rows(self) -> Tensor:
        """(I,) every image."""
        return torch.arange(self.images)

    def captions(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """All texts of these images, image after image, and how many each has."""
        counts = self.counts[images]
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        place = torch.arange(len(first)) - first
        return self._order[self._starts[images].repeat_interleave(counts) + place], counts

    def random_caption(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """One text of each of these images, uniformly; -1 where an image has none."""
        if not len(self._order):
            return torch.full_like(images, -1)
        counts = self.counts[images]
        place = (torch.rand(images.shape, generator=rng) * counts).long().clamp(max=counts - 1)
        at = (self._starts[images] + place.clamp(min=0)).clamp(max=len(self._order) - 1)
        return torch.where(counts > 0, self._order[at], -1)

    def positive(self, images: Tensor, texts: Tensor) -> Tensor:
        """(I, T) bool, True where the text describes the image."""
        return images.unsqueeze(1) == self.text_to_image[texts].unsqueeze(0)


@final
@dataclass(frozen=True, eq=False, repr=False)
class ImageTextDataset:
    """Images and captions related by id, any number of captions per image.

    A *row* is a place in `image_ids` or `text_ids`. A corpus holds every split; `split` gives one
    of them, with rows of its own.

    Attributes:
        name: what the data are called in tables, as in "flickr8k".
        image_ids: (I,) the data set's own names of the images.
        text_ids: (T,) the data set's own names of the texts.
        texts: (T,) raw captions; empty strings where texts exist as vectors only.
        text_to_image: (T,) long, image row of each text; -1 for a text that describes none.
        splits: (I,) split of each image, as in "train".
        pictures: pixels of the images, where there are any.
        features: region, grid or global features of the images, where there are any.
        text_features: vectors of the texts, where they come ready-made.
        part: the split this data set was cut to, or "all".
        extra_positives: rows of pairs that somebody found true besides the texts' own: never to be
            mined, and right answers when models are measured.
        corrections: description of applied corrections, see `counterfoil.data.corrections`.
    """

    name: str
    image_ids: Sequence[str]
    text_ids: Sequence[str]
    texts: Sequence[str]
    text_to_image: Tensor
    splits: Sequence[str]
    pictures: Pictures | None = None
    features: FeatureArray | None = None
    text_features: FeatureArray | None = None
    split_name: str = "all"
    extra_positives: Pairs | None = None
    corrections: str = ""

    def __post_init__(self) -> None:
        for what, given, wanted in (
            ("splits", self.splits, self.image_ids),
            ("texts", self.texts, self.text_ids),
            ("owners", self.text_to_image, self.text_ids),
            ("pictures", self.pictures, self.image_ids),
            ("features", self.features, self.image_ids),
            ("text features", self.text_features, self.text_ids),
        ):
            if given is not None and len(given) != len(wanted):
                of = "images" if wanted is self.image_ids else "texts"
                raise ValueError(
                    f"{self.name}: {len(given)} {what} were given for {len(wanted)} {of}"
                )
        Relation(self.text_to_image, images=len(self.image_ids))

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, split: str) -> ImageTextDataset:
        """The images and texts of a split, as in ``data["test"]``; see `split`."""
        return self.split(split)

    # without this, `__getitem__` would make Python try data[0], data[1], …
    __iter__ = None

    def __repr__(self) -> str:
        counts = Counter(self.splits)
        parts = ", ".join(f"{name} {counts[name]:,}" for name in self.split_names)
        return (
            f"ImageTextDataset({self.name!r}, {self.split_name}: {len(self):,} images and "
            f"{len(self.texts):,} texts; {parts})"
        )

    @cached_property
    def relation(self) -> Relation:
        """Who describes whom."""
        return Relation(
            self.text_to_image, images=len(self.image_ids), besides=self.extra_positives
        )

    @cached_property
    def split_names(self) -> tuple[str, ...]:
        """The splits there are, in order of first appearance."""
        return tuple(dict.fromkeys(self.splits))

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits of everything that row numbers depend on."""
        digest = hashlib.sha256()
        for strings in (self.image_ids, self.text_ids, self.texts):
            digest.update("\x00".join(strings).encode())
            digest.update(b"\x01")
        digest.update(self.text_to_image.numpy().tobytes())
        if self.extra_positives is not None:
            digest.update(
                self.extra_positives.image.numpy().tobytes()
                + self.extra_positives.text.numpy().tobytes()
            )
        return digest.hexdigest()[:16]

    def split(self, *names: str) -> ImageTextDataset:
        """The images of these splits and their texts, renumbered from 0.

        "val" and "validation" mean "dev", and "testall" means "test". Texts that describe no image
        are left out.

        Raises:
            ValueError: there is no such split.
        """
        meant = [existing_split(name, self.split_names, self.name) for name in names]
        wanted = torch.tensor([split in meant for split in self.splits], dtype=torch.bool)
        return replace(self.subset(wanted.nonzero().squeeze(1)), split_name="+".join(meant))

    def subset(self, images: Tensor) -> ImageTextDataset:
        """These images in this order, and their texts in data set order of the images."""
        texts, counts = self.relation.captions(images)
        return self.cut(images, texts, torch.arange(len(images)).repeat_interleave(counts))

    def cut(self, images: Tensor, texts: Tensor, text_to_image: Tensor) -> ImageTextDataset:
        """These images and these texts, each in this order.

        Args:
            images: rows.
            texts: rows.
            text_to_image: of each of these texts, by the new rows of the images; -1 for none.
        """
        rows, columns = images.tolist(), texts.tolist()
        return replace(
            self,
            image_ids=[self.image_ids[row] for row in rows],
            text_ids=[self.text_ids[row] for row in columns],
            texts=[self.texts[row] for row in columns],
            text_to_image=text_to_image,
            splits=[self.splits[row] for row in rows],
            pictures=None if self.pictures is None else self.pictures.subset(images),
            features=None if self.features is None else self.features.subset(images),
            text_features=None if self.text_features is None else self.text_features.subset(texts),
            extra_positives=None
            if self.extra_positives is None
            else self._still_true(self.extra_positives, images, texts),
        )

    def _still_true(self, also: Pairs, images: Tensor, texts: Tensor) -> Pairs | None:
        """The pairs of which both are left, by their new rows."""
        image, text = torch.full((len(self),), -1), torch.full((len(self.texts),), -1)
        image[images], text[texts] = torch.arange(len(images)), torch.arange(len(texts))
        left = Pairs(image[also.image], text[also.text])
        both = (left.image >= 0) & (left.text >= 0)
        return Pairs(left.image[both], left.text[both]) if bool(both.any()) else None


# What readers find, made into a data set.


@final
@dataclass(frozen=True, slots=True)
class DatasetEntry:
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


def build_dataset(
    name: str,
    entries: Sequence[DatasetEntry],
    *,
    where: str,
    pictures: Pictures | None = None,
    features: FeatureArray | None = None,
) -> ImageTextDataset:
    """A data set of these images in this order, caption after caption.

    Args:
        name: what to call the data set.
        entries: its images; those without a split are divided by `split_into_parts`.
        where: the file they were read from, for messages.
        pictures: one for each entry.
        features: one row for each entry.

    Raises:
        ValueError: there is no image, an id stands twice, or a caption is not text.
    """
    if not entries:
        raise ValueError(f"{where} holds no image; at least one with a caption is needed")
    entries = split_into_parts(entries)
    image_ids = [entry.id for entry in entries]
    texts = [text for entry in entries for text in entry.texts]
    text_ids = [name for entry in entries for name in _text_ids(entry)]
    _once(image_ids, "image", where)
    _once(text_ids, "caption", where)
    _encodable([*image_ids, *text_ids, *texts], where)
    counts = torch.tensor([len(entry.texts) for entry in entries])
    return ImageTextDataset(
        name=name,
        image_ids=image_ids,
        text_ids=text_ids,
        texts=texts,
        text_to_image=torch.arange(len(entries)).repeat_interleave(counts),
        splits=[entry.split for entry in entries],
        pictures=pictures,
        features=features,
    )


def split_into_parts(
    entries: Sequence[DatasetEntry], *, dev: float = 0.1, test: float = 0.1
) -> Sequence[DatasetEntry]:
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


def _text_ids(entry: DatasetEntry) -> Sequence[str]:
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
