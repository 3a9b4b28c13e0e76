"""Image-text data sets: ids, captions, splits, and which text describes which image."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.config import parse_literal, unknown_name
from counterfoil.core.types import EqualTexts, Pairs
from counterfoil.data.features import FeatureArray
from counterfoil.data.files import OTHER, LeftOut
from counterfoil.data.images import PictureFiles, Pictures

ColumnValue: TypeAlias = str | int | float
Positives = Literal["text", "id", "diagonal"]

DATASET = "dataset"  # the column that names the data set of an image, where several are one
FEW_IMAGES = 100  # with fewer in a split, its recalls move by more than models differ
_ALIASES = {
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "testall": "test",
    "training": "train",
}
SPLIT_NAMES = ("train", "training", "dev", "val", "valid", "validation", "test")


def canonical_split(name: str) -> str:
    """The name of a split in this package.

    >>> canonical_split("validation"), canonical_split("TEST"), canonical_split("restval")
    ('dev', 'test', 'restval')
    """
    small = name.strip().lower()
    return _ALIASES.get(small, small if small in SPLIT_NAMES else name)


def existing_split(name: str, known: Sequence[str], of: str) -> str:
    """The split with a name, or with another name of the same split.

    Raises:
        ValueError: there is none; the error lists those that exist.
    """
    matches = [
        split for split in known if split == name or canonical_split(split) == canonical_split(name)
    ]
    if not matches:
        raise ValueError(unknown_name(name, list(known), f"a split of {of}"))
    return name if name in matches else matches[0]


_STOPS = (
    ".。।۔"  # a final full stop, also of Chinese, Hindi and Urdu; NFKC turns ．and ｡ into these
)
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))  # soft hyphen, zero-width blanks


def plain_caption(text: str) -> str:
    """A caption without case, further blanks and final full stop, to tell which say the same.

    Forms of one character that Unicode calls compatible (NFKC) are one; "" where nothing is said.

    >>> plain_caption(" A  Dog runs. ") == plain_caption("a dog runs"), plain_caption("狗。")
    (True, '狗')
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).casefold()
        text = unicodedata.normalize("NFKC", text)
    plain = " ".join(text.casefold().split())
    return plain.rstrip(f"{_STOPS} ") or plain


@final
class Relation:
    """Which text describes which image: every text one or none, an image any number of texts.

    >>> relation = Relation(torch.tensor([0, 0, 1, -1]), images=2)
    >>> relation.captions(torch.tensor([1, 0]))
    (tensor([2, 0, 1]), tensor([1, 2]))
    >>> relation.positive(relation.rows(), torch.arange(4)).int()
    tensor([[1, 1, 0, 0],
            [0, 0, 1, 0]], dtype=torch.int32)

    Args:
        text_to_image: (T,) long, image row of each text, -1 for none.
        images: number of images.
        besides: extra positive pairs, as rows; they count as true but not as captions of the image.
        weights: (E,) weight of each of `besides` in training, above 0 and at most 1; None for 1.
        ambiguous: pairs, as rows, that are neither positives nor negatives.
        texts: the captions; those that say the same are no negatives of each other's images, see
            `plain_caption`. () compares none.

    Raises:
        ValueError: a row of `text_to_image` is no image.
    """

    def __init__(
        self,
        text_to_image: Tensor,
        *,
        images: int,
        besides: Pairs | None = None,
        weights: Tensor | None = None,
        ambiguous: Pairs | None = None,
        texts: Sequence[str] = (),
    ) -> None:
        low, high = (
            (int(row) for row in text_to_image.aminmax()) if len(text_to_image) else (-1, -1)
        )
        if not -1 <= low <= high < images:
            raise ValueError(
                f"texts describe images {low} to {high}, but there are images 0 to {images - 1}; "
                "use -1 for a text that describes none"
            )
        self.text_to_image, self.images, self.besides = text_to_image.long(), images, besides
        self.weights, self.ambiguous, self._texts = weights, ambiguous, texts

    @cached_property
    def _order(self) -> Tensor:
        """Text rows sorted by image, texts of no image first; `_starts` indexes it by image."""
        return torch.sort(self.text_to_image, stable=True).indices

    @cached_property
    def counts(self) -> Tensor:
        """(I,) number of texts of each image."""
        return torch.bincount(self.text_to_image[self.text_to_image >= 0], minlength=self.images)

    @cached_property
    def owned(self) -> Tensor:
        """Rows of the texts that describe an image, in order."""
        return (self.text_to_image >= 0).nonzero().squeeze(1)

    @cached_property
    def described(self) -> Tensor:
        """Rows of the images that have texts, in order."""
        return self.counts.nonzero().squeeze(1)

    @cached_property
    def _starts(self) -> Tensor:
        orphans = (self.text_to_image < 0).sum()
        return orphans + self.counts.cumsum(0) - self.counts

    def of_images(self, images: Tensor) -> Relation:
        """The texts of some images alone, by the same rows; the other texts describe none."""
        texts = self.text_to_image.where(torch.isin(self.text_to_image, images), -1)
        besides, ambiguous = self.besides, self.ambiguous
        return Relation(texts, images=self.images, besides=besides, ambiguous=ambiguous)

    def rows(self) -> Tensor:
        """(I,) all image rows."""
        return torch.arange(self.images)

    def captions(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """All texts of some images, image after image, and the number of texts of each."""
        counts = self.counts[images]
        # A ragged gather without a loop: place counts 0, 1, … within each image's run of texts.
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        place = torch.arange(len(first)) - first
        return self._order[self._starts[images].repeat_interleave(counts) + place], counts

    def random_caption(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """A random text of each of some images, uniformly; -1 if an image has none."""
        if not len(self._order):
            return torch.full_like(images, -1)
        counts = self.counts[images]
        place = (torch.rand(images.shape, generator=rng) * counts).long().clamp(max=counts - 1)
        # Clamped so that images without texts index something; torch.where discards it.
        index = (self._starts[images] + place.clamp(min=0)).clamp(max=len(self._order) - 1)
        return torch.where(counts > 0, self._order[index], -1)

    def positive(self, images: Tensor, texts: Tensor) -> Tensor:
        """(I, T) bool, True if the text describes the image."""
        return images.unsqueeze(1) == self.text_to_image[texts].unsqueeze(0)

    @cached_property
    def equal(self) -> EqualTexts | None:
        """Texts that say what a caption of an image says, and so are no negatives of it."""
        if not self._texts:
            return None
        first: dict[str, int] = {}
        plain = (plain_caption(text) for text in self._texts)
        wording = torch.tensor([first.setdefault(t, len(first)) if t else -1 for t in plain])
        true, more = Pairs(self.text_to_image[self.owned], self.owned), self.exempt
        if more is not None:  # what equals a confirmed or an unclear caption is no negative either
            true = Pairs(torch.cat([true.image, more.image]), torch.cat([true.text, more.text]))
        return EqualTexts.of(wording, true, self.text_to_image, self.images)

    @property
    def has_wrong_pairs(self) -> bool:
        """True unless every text is true of every image, as where all captions are equal."""
        spared = self.counts.sum() + (0 if self.equal is None else self.equal.pairs)
        return int(spared) < self.images * len(self.text_to_image)

    @property
    def spares_pairs(self) -> bool:
        """True if pairs besides the captions' own are never negatives."""
        judged = self.exempt is not None and len(self.exempt.image) > 0
        return judged or self.equal is not None

    @cached_property
    def exempt(self) -> Pairs | None:
        """Pairs that are judged to be no negatives: extra positives, ambiguous ones."""
        parts = [pairs for pairs in (self.besides, self.ambiguous) if pairs is not None]
        if not parts:
            return None
        return Pairs(torch.cat([p.image for p in parts]), torch.cat([p.text for p in parts]))

    @cached_property
    def exempt_weights(self) -> Tensor:
        """(E,) weight of each `exempt` pair in training; 0 of an ambiguous one."""
        weights = torch.zeros(0 if self.exempt is None else len(self.exempt.image))
        if self.besides is not None:
            weights[: len(self.besides.image)] = 1.0 if self.weights is None else self.weights
        return weights

    @cached_property
    def _sorted_exempt(self) -> tuple[Tensor, Tensor]:
        """Numbers of the `exempt` pairs in ascending order, and their weights."""
        assert self.exempt is not None
        numbers, order = (self.exempt.image * len(self.text_to_image) + self.exempt.text).sort()
        return numbers, self.exempt_weights[order]

    def exempt_weight(self, images: Tensor, texts: Tensor) -> Tensor:
        """Weights of pairs of rows in training, of any shapes that broadcast.

        Returns:
            float32: the weight of an extra positive, 0 of another pair that is no negative, as an
            ambiguous one or a text that says what a caption of the image says; -1 of any other.
        """
        number = images * len(self.text_to_image) + texts
        weight = torch.full(number.shape, -1.0)
        if self.equal is not None:
            own = self.text_to_image[texts] == images
            weight.masked_fill_(self.equal.contains(images, texts) & ~own, 0.0)
        if self.exempt is None or not len(self.exempt.image):
            return weight
        numbers, weights = self._sorted_exempt
        place = torch.searchsorted(numbers, number.contiguous()).clamp_(max=len(numbers) - 1)
        return weights[place].where((numbers[place] == number) & (texts >= 0), weight)


@final
@dataclass(frozen=True, eq=False, repr=False)
class ImageTextDataset:
    """Images and captions related by id, any number of captions per image.

    A *row* is an index into `image_ids` or `text_ids`. A loaded data set holds every split; `split`
    returns one of them, with rows of its own.

    Attributes:
        name: of the data in tables, as in "flickr8k".
        image_ids: (I,) names of the images, unique.
        text_ids: (T,) names of the texts, unique.
        texts: (T,) raw captions; empty strings if texts exist as vectors only.
        text_to_image: (T,) long, image row of each text; -1 for texts that describe none.
        splits: (I,) split of each image, as in "train".
        pictures: image files, if any.
        features: region, grid or global features of the images, if any.
        text_features: precomputed vectors of the texts, if any.
        split_name: the split that this data set holds, or "all".
        extra_positives: pairs that people or judges confirmed, as rows, besides the captions' own:
            never mined as negatives, and counted as hits in evaluation.
        corrections: description of applied corrections, see `counterfoil.data.corrections`.
        extra_weights: (E,) float32, weight of each extra positive in training, above 0 and at most
            1; None for 1. Evaluation counts an extra positive as a hit whatever its weight.
        ambiguous: pairs, as rows, that are never negatives, and no positives either.
        columns: further columns of the data, as album or year: the value of each of (I,) images,
            None where it has none. Search filters by them; the fingerprint leaves them out.
        left_out: files and rows of the source that are not in the data, with the reason.
        unlisted: pictures of the source's folder that its table does not name, by their names in
            the folder. They have no caption and are never evaluated; an index takes them.
        positives: which pairs are no negatives in mining, batches and losses: "text", the captions
            of an image and every text that says the same, see `plain_caption`; "id", its captions
            alone; "diagonal", as in the authors' code, where each caption of a batch has an image
            of its own, and other captions of the same image are negatives. Evaluation and the
            fingerprint do not depend on it.
        dependencies: (T, E, 2) integer, up to E dependency pairs of each text by a parser, if any:
            the places of head and dependent, where the first word is 1 and 0 is the root; -1 for no
            pair. Those that name words beyond a text's last are left out by models.
        datasets: weights of data sets that are one, by name, as of `concatenate_datasets`; {} for
            none. The column "dataset" says which of them an image is of.
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
    extra_weights: Tensor | None = None
    ambiguous: Pairs | None = None
    columns: Mapping[str, Sequence[ColumnValue | None]] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    unlisted: Mapping[str, Path] = field(default_factory=dict)
    positives: Positives = "text"
    dependencies: Tensor | None = None
    datasets: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_literal(Positives, self.positives, "a kind of positives")
        for name, values, ids in (
            ("splits", self.splits, self.image_ids),
            ("texts", self.texts, self.text_ids),
            ("owners", self.text_to_image, self.text_ids),
            ("pictures", self.pictures, self.image_ids),
            ("features", self.features, self.image_ids),
            ("text features", self.text_features, self.text_ids),
            ("texts with dependencies", self.dependencies, self.text_ids),
            *(
                (f"values of {name!r}", values, self.image_ids)
                for name, values in self.columns.items()
            ),
        ):
            if values is not None and len(values) != len(ids):
                of = "images" if ids is self.image_ids else "texts"
                raise ValueError(
                    f"{self.name}: {len(values)} {name} were given for {len(ids)} {of}"
                )
        Relation(self.text_to_image, images=len(self.image_ids))  # checks the rows
        given = self.dependencies
        if given is not None and (
            given.dim() != 3 or given.shape[2] != 2 or given.is_floating_point()
        ):
            raise ValueError(
                f"{self.name}: dependencies are {given.dtype} of shape {tuple(given.shape)}; whole "
                "numbers of shape (texts, pairs, 2) are needed"
            )
        weights, pairs = self.extra_weights, self.extra_positives
        count = 0 if pairs is None else len(pairs.image)
        if weights is not None and not (
            weights.shape == (count,) and bool(((weights > 0) & (weights <= 1)).all())
        ):
            raise ValueError(
                f"{self.name}: weights of shape {tuple(weights.shape)} were given for {count} "
                "extra positives; give one above 0 and at most 1 for each"
            )

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, split: str) -> ImageTextDataset:
        """The images and texts of a split, as in ``data["test"]``; see `split`."""
        return self.split(split)

    # without this, `__getitem__` would make Python try data[0], data[1], …
    __iter__ = None

    def __repr__(self) -> str:
        counts = Counter(self.splits)
        names = dict.fromkeys(("train", "dev", "test", *self.split_names))
        parts = ", ".join(f"{name} {counts[name]:,}" for name in names if counts[name])
        several = f"; {parts}" if len(self.split_names) > 1 else ""
        return (
            f"ImageTextDataset({self.name!r}, {self.split_name}: {len(self):,} images and "
            f"{len(self.texts):,} texts{several})"
        )

    @cached_property
    def relation(self) -> Relation:
        """Which text describes which image."""
        return Relation(
            self.text_to_image,
            images=len(self.image_ids),
            besides=self.extra_positives,
            weights=self.extra_weights,
            ambiguous=self.ambiguous,
            texts=self.texts if self.positives == "text" else (),
        )

    def check_wrong_pairs(self) -> None:
        """Refuse data in which no caption is a negative of any image.

        Raises:
            ValueError: all captions say the same, or there is one image.
        """
        if not self.relation.has_wrong_pairs:
            raise ValueError(
                f"{self.name} {self.split_name} holds no wrong pair: {len(self)} images and "
                f"{len(self.texts)} captions, all of which are true of every image; a model learns "
                "from captions that tell at least two images apart"
            )

    def with_positives(self, positives: Positives) -> ImageTextDataset:
        """The data set with other `positives`, as "id" to count equal captions as negatives."""
        return self if positives == self.positives else replace(self, positives=positives)

    @cached_property
    def split_names(self) -> tuple[str, ...]:
        """The splits, in order of first appearance."""
        return tuple(dict.fromkeys(self.splits))

    @cached_property
    def parts(self) -> dict[str, Tensor]:
        """Image rows of each of the `datasets` that has any here."""
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self.columns[DATASET] if self.datasets else ()):
            rows.setdefault(str(name), []).append(row)
        return {name: torch.tensor(own) for name, own in rows.items()}

    def separate(self) -> dict[str, ImageTextDataset]:
        """Each of the data sets that `concatenate_datasets` made one, to measure it by itself."""
        sets = {name: self.subset(rows) for name, rows in self.parts.items()}
        return {name: replace(each, name=name, datasets={}) for name, each in sets.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits, the hash of ids, texts and their relation."""
        digest = hashlib.sha256()
        for strings in (self.image_ids, self.text_ids, self.texts):
            digest.update("\x00".join(strings).encode())
            digest.update(b"\x01")
        digest.update(self.text_to_image.numpy().tobytes())
        extra, ambiguous = (
            None if pairs is None else pairs.image.numpy().tobytes() + pairs.text.numpy().tobytes()
            for pairs in (self.extra_positives, self.ambiguous)
        )
        weights = None if self.extra_weights is None else self.extra_weights.numpy().tobytes()
        for mark, part in ((b"", extra), (b"\x02", weights), (b"\x03", ambiguous)):
            if part is not None:
                digest.update(mark + part)
        return digest.hexdigest()[:16]

    def split(self, *names: str) -> ImageTextDataset:
        """The images of some splits and their texts, with rows from 0.

        "val" and "validation" mean "dev", and "testall" means "test". Texts that describe no image
        are left out.

        Raises:
            ValueError: there is no such split.
        """
        if self.split_names == ("all",) and names != ("all",):
            self.check_captions("that splits are made of")
        chosen = [existing_split(name, self.split_names, self.name) for name in names]
        inside = torch.tensor([split in chosen for split in self.splits], dtype=torch.bool)
        return replace(self.subset(inside.nonzero().squeeze(1)), split_name="+".join(chosen))

    def subset(self, images: Tensor) -> ImageTextDataset:
        """Some images in the given order, and their texts image after image."""
        texts, counts = self.relation.captions(images)
        return self.cut(images, texts, torch.arange(len(images)).repeat_interleave(counts))

    def cut(self, images: Tensor, texts: Tensor, text_to_image: Tensor) -> ImageTextDataset:
        """Some images and some texts, each in the given order.

        `text_to_image` is the new image row of each remaining text; -1 for none.
        """
        rows, columns = images.tolist(), texts.tolist()
        extra, remaining = self._subset_pairs(self.extra_positives, images, texts)
        ambiguous, _ = self._subset_pairs(self.ambiguous, images, texts)
        weights = self.extra_weights
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
            extra_positives=extra,
            extra_weights=None if extra is None or weights is None else weights[remaining],
            ambiguous=ambiguous,
            dependencies=None if self.dependencies is None else self.dependencies[texts],
            columns={name: [own[row] for row in rows] for name, own in self.columns.items()},
            left_out=(),
            unlisted={},
        )

    def with_unlisted(self) -> ImageTextDataset:
        """Also the pictures that a table does not name, without captions; for an index."""
        if not self.unlisted or not isinstance(self.pictures, PictureFiles):
            return self
        known = set(self.image_ids)
        more = [f"./{name}" if name in known else name for name in self.unlisted]
        return replace(
            self,
            image_ids=[*self.image_ids, *more],
            splits=[*self.splits, *("unlisted" for _ in more)],
            pictures=PictureFiles([*self.pictures.paths, *self.unlisted.values()]),
            columns={name: [*own, *(None for _ in more)] for name, own in self.columns.items()},
            unlisted={},
        )

    def check_captions(self, work: str) -> None:
        """Refuse a data set without captions for work that needs them, as in "to train on".

        Raises:
            ValueError: there are no captions.
        """
        if self.texts:
            return
        notes = [name for left in self.left_out if left.reason == OTHER for name in left.names]
        other = f" (it holds {notes[0]}, which names no picture here)" if notes else ""
        split = "" if self.split_name == "all" else f" ({self.split_name})"
        raise ValueError(
            f"{self.name}{split} holds no captions {work}{other}; put a .txt beside each "
            "picture, or name the pictures in a captions.csv. Pictures alone can be "
            "indexed, encoded and audited"
        )

    def column_values(self, row: int) -> dict[str, ColumnValue]:
        """The columns in which an image has a value, with their values as an index holds them."""
        if not self.columns:
            return {}
        values = ((name, column_value(column[row])) for name, column in self.columns.items())
        return {name: value for name, value in values if value is not None}

    def _subset_pairs(
        self, pairs: Pairs | None, images: Tensor, texts: Tensor
    ) -> tuple[Pairs | None, Tensor]:
        """Pairs whose image and text both remain, by their new rows, and a mask of them."""
        if pairs is None:
            return None, torch.zeros(0, dtype=torch.bool)
        image, text = torch.full((len(self),), -1), torch.full((len(self.texts),), -1)
        image[images], text[texts] = torch.arange(len(images)), torch.arange(len(texts))
        moved = Pairs(image[pairs.image], text[pairs.text])
        inside = (moved.image >= 0) & (moved.text >= 0)
        pairs = Pairs(moved.image[inside], moved.text[inside]) if bool(inside.any()) else None
        return pairs, inside


def images_saying(dataset: ImageTextDataset, texts: Iterable[str]) -> dict[str, set[int]]:
    """Rows of the images with a caption that says what a text says, by `plain_caption`.

    Empty where equal captions count as negatives.
    """
    if dataset.positives != "text":
        return {}
    wanted, images = {plain_caption(text) for text in texts}, dataset.text_to_image.tolist()
    found: dict[str, set[int]] = {}
    for caption, image in zip(dataset.texts, images, strict=True):
        if image >= 0 and (plain := plain_caption(caption)) in wanted:
            found.setdefault(plain, set()).add(image)
    return found


# Data sets from the entries that readers collect.


@final
@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """An image with its captions, as a reader returns it."""

    id: str
    split: str  # "" if the data set has none
    texts: tuple[str, ...]
    text_ids: tuple[str, ...] = ()  # () for "image#0", "image#1", …
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)


def column_value(value: object) -> ColumnValue | None:
    """A value of `ImageTextDataset.columns` as text or a finite number; None for no value.

    Text, finite numbers, truth values and dates are kept; lists, objects and bytes are not.

    >>> column_value("holiday"), column_value(True), column_value(datetime.date(2024, 5, 1))
    ('holiday', 'true', '2024-05-01')
    >>> column_value(" "), column_value(float("nan")), column_value(["a", "b"])
    (None, None, None)
    """
    match value:
        case bool() | np.bool_():
            return str(value).lower()
        case str():
            return value.strip() or None
        case Integral():
            return whole if abs(whole := int(value)) < 2**63 else str(whole)
        case Real():
            return float(value) if math.isfinite(value) else None
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
    return None


_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")  # 007 is a name


def column_number(value: ColumnValue | None) -> int | float | None:
    """The number that a value is or that its text shows; None for other texts, such as 007.

    >>> column_number("2020"), column_number("-1.5"), column_number("007"), column_number("12e3")
    (2020, -1.5, None, None)
    """
    if value is None or not isinstance(value, str):
        return value
    if not _NUMBER.fullmatch(value):
        return None
    return float(value) if "." in value else int(value)


def first_values(
    columns: dict[str, ColumnValue], row: Mapping[str, object], without: Container[str] = ()
) -> None:
    """Add the columns of a row to those of its image; of rows of one image the first value counts.

    Args:
        columns: of the image; changed in place.
        row: of a table.
        without: names of the columns that are no metadata, as that of the caption.
    """
    for name, value in row.items():
        known = None if name in without or name in columns else column_value(value)
        if name.strip() and known is not None:  # a saved pandas index has no name
            columns[name] = known


def build_dataset(
    name: str,
    entries: Sequence[DatasetEntry],
    *,
    where: str,
    pictures: Pictures | None = None,
    features: FeatureArray | None = None,
    left_out: Sequence[LeftOut] = (),
    unlisted: Mapping[str, Path] | None = None,
) -> ImageTextDataset:
    """Build a data set from entries, in their order.

    Args:
        name: of the data set.
        entries: its images; those without a split get one from `split_into_parts`.
        where: the file they were read from, for errors.
        pictures: one for each entry.
        features: one row for each entry.
        left_out: what the source holds besides.
        unlisted: pictures that a table does not name, by name.

    Raises:
        ValueError: there is no image, an id occurs twice, or a caption is not valid Unicode.
    """
    if not entries:
        raise ValueError(f"{where} holds no image; at least one with a caption is needed")
    entries = split_into_parts(entries)
    image_ids = [entry.id for entry in entries]
    texts = [text for entry in entries for text in entry.texts]
    text_ids = [
        name
        for entry in entries
        for name in entry.text_ids or (f"{entry.id}#{place}" for place in range(len(entry.texts)))
    ]
    _check_unique(image_ids, "image", where)
    _check_unique(text_ids, "caption", where)
    _check_encodable([*image_ids, *text_ids, *texts], where)
    names = dict.fromkeys(name for entry in entries for name in entry.columns)
    _check_encodable([*names, *(v for e in entries for v in map(str, e.columns.values()))], where)
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
        columns={name: [entry.columns.get(name) for entry in entries] for name in names},
        left_out=tuple(left_out),
        unlisted=unlisted or {},
    )


def split_into_parts(entries: Sequence[DatasetEntry]) -> Sequence[DatasetEntry]:
    """Give images without a split one by `splits_of`."""
    unsplit = [entry.id for entry in entries if not entry.split]
    names = dict(zip(unsplit, splits_of(unsplit)))
    return [entry if entry.split else replace(entry, split=names[entry.id]) for entry in entries]


def splits_of(ids: Sequence[str]) -> list[str]:
    """The splits of images by the hash of their ids: 80 % train, 10 % dev, 10 % test.

    The split of an image depends on its id alone, so that a folder may grow. Only if a small set
    would have no dev or test image at all, images are counted off in order of the hash.
    """
    draws = {name: _fraction(name) for name in ids}
    names = {
        name: "test" if draw >= 0.9 else "dev" if draw >= 0.8 else "train"
        for name, draw in draws.items()
    }
    if len(draws) >= 3 and len(set(names.values())) < 3:
        tenth = max(1, round(len(draws) * 0.1))
        names = {
            name: "test" if place < tenth else "dev" if place < 2 * tenth else "train"
            for place, name in enumerate(sorted(draws, key=lambda name: -draws[name]))
        }
    return [names[name] for name in ids]


def divided_by(ids: Sequence[str], fractions: Mapping[str, float], seed: int) -> list[str]:
    """The splits of images, at random, with exact numbers; the same for the same ids and seed.

    >>> divided_by(["a", "b", "c", "d"], {"train": 0.5, "test": 0.5}, seed=1)
    ['train', 'test', 'train', 'test']

    Args:
        ids: of the images.
        fractions: of the images by the name of the split; their sum is 1.
        seed: of the draw.

    Raises:
        ValueError: the fractions are not above 0, their sum is not 1, or a split would be empty.
    """
    shown = dict(fractions)
    if not all(value > 0 for value in shown.values()) or not math.isclose(
        sum(shown.values()), 1, abs_tol=1e-6
    ):
        raise ValueError(
            f"fractions={shown}: numbers above 0 are needed, whose sum is 1, as "
            "{'train': 0.8, 'dev': 0.1, 'test': 0.1}"
        )
    order = sorted(range(len(ids)), key=lambda row: _fraction(f"{seed} {ids[row]}"))
    splits, start, total = [""] * len(ids), 0, 0.0
    for name, fraction in shown.items():
        total += fraction
        end = round(total * len(ids))
        if end == start:
            raise ValueError(f"fractions={shown} of {len(ids):,} images leave none for {name!r}")
        for row in order[start:end]:
            splits[row] = canonical_split(name)
        start = end
    return splits


def _fraction(name: str) -> float:
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _check_unique(ids: Sequence[str], noun: str, where: str) -> None:
    if len(set(ids)) < len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        raise ValueError(f"{where}: {noun} id {twice!r} occurs twice; every {noun} has its own id")


def _check_encodable(strings: Sequence[str], where: str) -> None:
    try:
        "\n".join(strings).encode()
    except UnicodeEncodeError as error:
        bad = error.object[max(error.start - 20, 0) : error.end]
        raise ValueError(
            f"{where}: {bad!r} is not valid Unicode (half of a surrogate pair); write the whole "
            "character"
        ) from None


def check_dataset(data: object, like: str = 'data["test"]') -> None:
    """Refuse what is no data set, with what to write instead.

    Raises:
        TypeError: so.
    """
    if isinstance(data, ImageTextDataset):
        return
    if isinstance(data, str | Path):
        given, instead = f"{str(data)!r} is a name", f"data = cf.load_dataset({str(data)!r})"
    else:
        given, instead = f"{type(data).__name__} is no data set", "data = cf.load_dataset(…)"
    raise TypeError(f"{given}; write {instead}, then {like}")
