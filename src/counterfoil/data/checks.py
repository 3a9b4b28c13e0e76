"""Data set validation: unreadable images, NaN features, duplicates, leaks, malformed captions."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from counterfoil.core.console import progress, warn
from counterfoil.data.dataset import FEW_IMAGES, ImageTextDataset, plain_caption
from counterfoil.data.features import FeatureArray
from counterfoil.data.files import UNEXPECTED, LeftOut, printable
from counterfoil.data.images import PictureFiles, Pictures
from counterfoil.data.tokenizers import MANY_UNKNOWN, SUBWORDS, WordTokenizer, without_blanks

if TYPE_CHECKING:
    from rich.console import RenderableType


EQUAL = 0.01  # share of captions that equal one of another image, from which it is warned of
UNSPACED_SHARE = 0.1  # of captions without blanks between words, from which it is warned of
SAMPLE = 256  # feature rows that a quick check reads
BLOCK = 64  # feature rows in memory
UNLISTED = "that the table does not name, which an index takes"
UNREADABLE = "a picture that cannot be read"
_CAPTIONED = "This data set can be trained on."
_ALONE = "These are pictures without captions: they can be indexed, encoded and audited."
LONG = 60  # words, where captions are cut by default


@final
@dataclass(frozen=True, slots=True)
class SplitCounts:
    """Size of a split."""

    name: str
    images: int
    texts: int
    without_text: int  # images without a caption


@final
@dataclass(frozen=True, slots=True)
class Duplicates:
    """An image or caption that occurs several times."""

    names: tuple[str, ...]  # image ids, or the captions
    splits: tuple[str, ...]  # split of each of them

    @property
    def across(self) -> bool:
        """True if they are in different splits."""
        return len(set(self.splits)) > 1

    def __str__(self) -> str:
        pairs = list(zip(self.names, self.splits, strict=True))
        if self.across:  # one of each split
            pairs = [pairs[self.splits.index(split)] for split in dict.fromkeys(self.splits)]
        return " and ".join(f"{name} ({split})" for name, split in pairs[:3])


@final
@dataclass(frozen=True, slots=True)
class DatasetReport:
    """Contents and faults of a data set."""

    name: str  # of the data set
    splits: tuple[SplitCounts, ...]  # counts
    # number of captions, and how many images have that number
    captions_per_image: tuple[tuple[int, int], ...]
    words: tuple[int, float, int]  # of a caption: shortest, median, longest
    # splits and the share of their words that are not in the captions of train
    unknown: tuple[tuple[str, float], ...]
    images: str  # description of the image inputs
    unreadable: tuple[str, ...]  # a sentence for each missing or unreadable picture
    nowhere: str  # the same in one, where no picture is there; "" where some are
    not_finite: tuple[str, ...]  # ids of images whose features hold NaN or infinite values
    same_images: tuple[Duplicates, ...]  # pictures (or features) that occur more than once
    same_texts: tuple[Duplicates, ...]  # captions that occur in several splits
    orphans: int  # number of captions without an image
    left_out: tuple[LeftOut, ...]  # files and rows of the source that are not read
    unlisted: tuple[str, ...]  # names of pictures that the table does not name
    errors: tuple[str, ...]  # reasons why training is impossible; empty where it is possible
    warnings: tuple[str, ...]  # faults that training survives

    def __rich__(self) -> RenderableType:
        """Table of the splits, summary, warnings and errors."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        def table(title: str, first: str, *numbers: str) -> Table:
            made = Table(title=title, title_justify="left")
            made.add_column(first)
            for column in numbers:
                made.add_column(column, justify="right")
            return made

        splits = table(self.name, "split", "images", "captions", "without caption")
        for split in self.splits:
            counts = (split.images, split.texts, split.without_text)
            splits.add_row(split.name, *(f"{count:,}" for count in counts))
        (shortest, median, longest), per_image = self.words, self.captions_per_image
        distribution = ", ".join(f"{count} ({images:,} images)" for count, images in per_image[:8])
        summary = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        summary.add_row("images as", self.images)
        summary.add_row(
            "captions per image", distribution + (", ..." if len(per_image) > 8 else "")
        )
        summary.add_row("words per caption", f"{shortest} to {longest}, median {median:g}")
        if self.unknown:
            shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in self.unknown)
            summary.add_row("words not in train", shares)
        lines = [Text.assemble(("warning: ", "yellow"), line) for line in self.warnings]
        lines += [Text.assemble(("error: ", "bold red"), line) for line in self.errors]
        if not self.errors:
            lines.append(Text(_CAPTIONED if self.captions_per_image[-1][0] else _ALONE, "green"))
        if not (rows := self._not_read()):
            return Group(splits, summary, *lines)
        not_read = table("not read", "reason", "number")
        not_read.add_column("example", overflow="fold")
        for reason, number, example in rows:
            not_read.add_row(reason, f"{number:,}", Text(printable(example)))
        return Group(splits, summary, not_read, *lines)

    def _not_read(self) -> list[tuple[str, int, str]]:
        """Why files, rows and pictures are not among the images: reason, number, example."""
        rows = [(left.reason, len(left.names), left.names[0]) for left in self.left_out]
        if self.unlisted:
            rows.append((f"a picture {UNLISTED}", len(self.unlisted), self.unlisted[0]))
        if self.unreadable:
            rows.append((UNREADABLE, len(self.unreadable), self.unreadable[0]))
        return rows


def check_dataset(dataset: ImageTextDataset, *, quick: bool = False) -> DatasetReport:
    """Validate all splits of a data set in one pass over its images, features and captions.

    `quick` only tests that picture files exist, and reads a sample of the features.
    """
    errors, picture_hashes = check_pictures(dataset.pictures, quick=quick)
    not_finite, feature_hashes = _check_features(dataset.features, quick)
    words = torch.tensor([len(text.split()) for text in dataset.texts] or [0])
    report = DatasetReport(
        name=dataset.name,
        splits=tuple(_split_counts(dataset)),
        captions_per_image=tuple(sorted(Counter(dataset.relation.counts.tolist()).items())),
        words=(int(words.min()), float(words.double().quantile(0.5)), int(words.max())),
        unknown=tuple(_unknown_words(dataset)),
        images=_describe_images(dataset),
        unreadable=tuple(errors.values()),
        nowhere=none_is_there(dataset) if len(errors) == len(dataset) else "",
        not_finite=tuple(dataset.image_ids[row] for row in not_finite),
        same_images=tuple(_duplicate_images(picture_hashes or feature_hashes, dataset)),
        same_texts=tuple(_captions_across_splits(dataset)),
        orphans=int((dataset.text_to_image < 0).sum()),
        left_out=dataset.left_out,
        unlisted=tuple(dataset.unlisted),
        errors=(),
        warnings=(),
    )
    warnings = (
        *_warnings(dataset, report),
        *_caption_warnings(dataset),
        *_vocabulary_warnings(dataset, report),
        *_equal_warnings(dataset),
        *_repeated_warnings(dataset),
        *(_size_warnings(report.splits) if dataset.texts else ()),
    )
    return replace(report, errors=tuple(_errors(dataset, report)), warnings=warnings)


def check_pictures(
    pictures: Pictures | None, *, quick: bool = False
) -> tuple[dict[int, str], dict[int, bytes]]:
    """Open all pictures, or if `quick`, only test that their files exist.

    Returns:
        Error messages of unreadable pictures, and, unless `quick`, pixel hashes of the others, by
        row.
    """
    if pictures is None or (quick and not isinstance(pictures, PictureFiles)):
        return {}, {}

    def check_one(row: int) -> str | bytes:
        if quick:
            place = Path(pictures.place(row))
            return b"" if place.is_file() else f"{place} does not exist"
        try:
            picture = pictures.open(row)
        except ValueError as error:
            return str(error)
        size = repr(picture.size).encode()
        return hashlib.blake2b(size + picture.tobytes(), digest_size=16).digest()

    errors, hashes = {}, {}
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads,
        progress("pictures checked", len(pictures)) as advance,
    ):
        for row, outcome in enumerate(threads.map(check_one, range(len(pictures)))):
            if isinstance(outcome, str):
                errors[row] = outcome
            elif outcome:
                hashes[row] = outcome
            advance(1)
    return errors, hashes


def missing_pictures(dataset: ImageTextDataset) -> list[Path]:
    """Its picture files that do not exist."""
    if not isinstance(dataset.pictures, PictureFiles):
        return []
    return [path for path in dataset.pictures.paths if not path.is_file()]


def none_is_there(dataset: ImageTextDataset) -> str:
    """That no picture file of a data set exists, and what to do; "" where one does."""
    missing = missing_pictures(dataset)
    if not missing or len(missing) < len(dataset):
        return ""
    return (
        f"none of the {counted(len(dataset), 'picture')} of {dataset.name} is there, such as "
        f"{missing[0]}; name the folder that holds them, as in --data photos.csv:images=pictures/"
    )


def without_unreadable(dataset: ImageTextDataset) -> tuple[ImageTextDataset, dict[str, str]]:
    """Leave out images whose pictures cannot be read, with their captions.

    Returns:
        The data set, and error messages by the id of the image.
    """
    errors, _ = check_pictures(dataset.pictures)
    if not errors:
        return dataset, {}
    readable = [row for row in range(len(dataset)) if row not in errors]
    if not readable:
        raise ValueError(
            f"none of the {counted(len(errors), 'picture')} of {dataset.name} can be read, such "
            f"as: {next(iter(errors.values()))}"
        )
    unreadable = {dataset.image_ids[row]: error for row, error in errors.items()}
    kept = dataset.subset(torch.tensor(readable, dtype=torch.long))
    left_out = (*dataset.left_out, LeftOut(UNREADABLE, tuple(unreadable)))
    return replace(kept, left_out=left_out, unlisted=dataset.unlisted), unreadable


def warn_of_left_out(dataset: ImageTextDataset) -> None:
    """Say in one line which pictures are not read, where nobody would expect it."""
    parts = [str(left) for left in dataset.left_out if left.reason in UNEXPECTED]
    if dataset.unlisted:
        pictures = counted(len(dataset.unlisted), "picture")
        parts.append(f"{pictures} {UNLISTED}, such as {next(iter(dataset.unlisted))}")
    if parts:
        warn(f"{dataset.name}: {'; '.join(parts)}; `counterfoil data check` lists all")


def equal_captions(dataset: ImageTextDataset) -> list[list[int]]:
    """Groups of caption rows that say the same, see `plain_caption`."""
    return _equal_rows(
        (row, plain)
        for row, (text, image) in enumerate(zip(dataset.texts, dataset.text_to_image.tolist()))
        if image >= 0 and (plain := plain_caption(text))
    )


def _equal_rows(contents: Iterable[tuple[int, object]]) -> list[list[int]]:
    """Groups of rows with equal contents."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for row, content in contents:
        groups[content].append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "picture"), counted(2000, "picture")
    ('1 picture', '2,000 pictures')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _split_counts(dataset: ImageTextDataset) -> Iterator[SplitCounts]:
    counts = dataset.relation.counts
    for name in dataset.split_names:
        in_split = torch.tensor([split == name for split in dataset.splits], dtype=torch.bool)
        captions = counts[in_split]
        yield SplitCounts(name, len(captions), int(captions.sum()), int((captions == 0).sum()))


def _check_features(
    features: FeatureArray | None, quick: bool
) -> tuple[list[int], dict[int, bytes]]:
    """Rows with NaN or infinite values, and hashes of the values of the others."""
    if not features:
        return [], {}
    count = min(SAMPLE, len(features)) if quick else len(features)
    rows = torch.linspace(0, max(len(features) - 1, 0), count, dtype=torch.float64).round().long()
    not_finite: list[int] = []
    hashes = {}
    with progress("features read", count) as advance:
        for start in range(0, count, BLOCK):
            block = rows[start : start + BLOCK]
            values, finite = features.take_unchecked(block)
            for row, good, value in zip(block.tolist(), finite.tolist(), values.numpy()):
                if good:
                    hashes[row] = hashlib.blake2b(value.tobytes(), digest_size=16).digest()
                else:
                    not_finite.append(row)
            advance(len(block))
    return not_finite, hashes


def _duplicate_images(hashes: dict[int, bytes], dataset: ImageTextDataset) -> Iterator[Duplicates]:
    for rows in _equal_rows(hashes.items()):
        names = tuple(dataset.image_ids[row] for row in rows)
        yield Duplicates(names, tuple(dataset.splits[row] for row in rows))


def _captions_across_splits(dataset: ImageTextDataset) -> Iterator[Duplicates]:
    text_to_image = dataset.text_to_image.tolist()
    for rows in equal_captions(dataset):
        texts = tuple(repr(dataset.texts[row]) for row in rows)
        duplicates = Duplicates(texts, tuple(dataset.splits[text_to_image[row]] for row in rows))
        if duplicates.across:
            yield duplicates


def _describe_images(dataset: ImageTextDataset) -> str:
    kinds = []
    if dataset.pictures is not None:
        kinds.append("pictures")
    if (features := dataset.features) is not None:
        boxes = " with boxes" if features.boxes is not None else ""
        kinds.append(
            f"features of {features.regions} x {features.width}, {features.values.dtype}{boxes}"
        )
    return " and ".join(kinds) or "ids only"


def _errors(dataset: ImageTextDataset, report: DatasetReport) -> Iterator[str]:
    """Reasons why the data set cannot be trained on, or, without captions, not be indexed."""
    train = next((split for split in report.splits if split.name == "train"), None)
    if not dataset.texts:
        pass  # pictures alone are whole
    elif len(dataset) == 1:
        yield "one image cannot be learned from; a second one is needed as its negative"
    elif train is None:
        names = ", ".join(split.name for split in report.splits) or "none"
        yield f"there is no train split to learn from; the splits are: {names}"
    elif not train.texts:
        yield "no image of the train split has a caption"
    elif train.images < 2:
        yield "the train split has one image; a second one is needed as its negative"
    for split in report.splits:
        if dataset.texts and split.name in ("dev", "test") and split.images and not split.texts:
            yield f"no image of the {split.name} split has a caption"
    if dataset.pictures is None and dataset.features is None:
        yield "there are neither pictures nor features; give an image folder or features"
    if dataset.features is None:
        yield from _unreadable(report)
    if report.not_finite:
        yield (
            f"{counted(len(report.not_finite), 'image')} with NaN or infinite features, such as "
            f"{report.not_finite[0]!r}; extract them again"
        )


def _unreadable(report: DatasetReport) -> Iterator[str]:
    if report.nowhere:
        yield report.nowhere
    elif errors := report.unreadable:
        yield (
            f"{counted(len(errors), 'picture')} cannot be read, such as: {errors[0]}; mend them, "
            "or leave them out, as in --data my-photos/:unreadable=skip"
        )


def _warnings(dataset: ImageTextDataset, report: DatasetReport) -> Iterator[str]:
    names = [split.name for split in report.splits] if dataset.texts else ["dev", "test"]
    for split, purpose in (
        ("dev", "the best epoch is chosen on"),
        ("test", "results are measured on"),
    ):
        if split not in names:
            yield f"there is no {split} split, which {purpose}"
    if dataset.features is not None:
        yield from _unreadable(report)
    if report.unlisted:
        pictures = counted(len(report.unlisted), "picture")
        yield f"{pictures} {UNLISTED}, such as {printable(report.unlisted[0])}"
    if dataset.texts and (without := sum(split.without_text for split in report.splits)):
        yield f"{counted(without, 'image')} without a caption"
    if report.orphans:
        yield f"{counted(report.orphans, 'caption')} describing no image"
    across = [group for group in report.same_images if group.across]
    within = [group for group in report.same_images if not group.across]
    if across:
        yield f"{counted(len(across), 'image')} in more than one split, such as {across[0]}"
    if within:
        yield f"{counted(len(within), 'image')} more than once in a split, such as {within[0]}"
    if texts := report.same_texts:
        yield f"{counted(len(texts), 'caption')} in more than one split, such as {texts[0]}"


def _size_warnings(splits: Sequence[SplitCounts]) -> Iterator[str]:
    small = [
        f"{split.name} has {counted(split.images, 'image')}"
        for split in splits
        if split.name in ("dev", "test") and split.images < FEW_IMAGES
    ]
    if small:
        yield (
            f"{' and '.join(small)}: with fewer than {FEW_IMAGES}, differences between models are "
            "mostly chance"
        )


def _equal_warnings(dataset: ImageTextDataset) -> Iterator[str]:
    """Warn of splits in which many captions say what a caption of another image says."""
    for name in dataset.split_names:
        split = dataset.split(name).with_positives("text")
        if (equal := split.relation.equal) is None:
            continue
        rows = (equal.of_text >= 0).nonzero().flatten().tolist()
        share = len(rows) / len(split.texts)
        if share >= EQUAL:
            yield (
                f"{name}: {len(rows):,} of {len(split.texts):,} captions ({share:.1%}) say what a "
                f"caption of another image says, such as {split.texts[rows[0]]!r}; mining and "
                "training do not count them as negatives, but no model can tell their images "
                "apart, so recall cannot reach 100, and where they are counted, as with "
                "positives=id, a perfect model keeps a hinge loss of 2 × margin on them"
            )


def _repeated_warnings(dataset: ImageTextDataset) -> Iterator[str]:
    """Warn of captions that say what an earlier caption of their image says."""
    text_to_image = dataset.text_to_image.tolist()
    repeats: list[int] = []
    for rows in equal_captions(dataset):
        first: dict[int, int] = {}
        repeats += [row for row in rows if first.setdefault(text_to_image[row], row) != row]
    if repeats:
        row = min(repeats)
        yield (
            f"{counted(len(repeats), 'caption')} repeated within an image, such as "
            f"{dataset.texts[row]!r} ({dataset.image_ids[text_to_image[row]]}); "
            "`counterfoil audit` lists them"
        )


def _unknown_words(dataset: ImageTextDataset) -> Iterator[tuple[str, float]]:
    """Splits, and the share of their words that a vocabulary of the captions of train lacks."""
    if "train" not in dataset.split_names:
        return
    vocabulary = WordTokenizer.of(dataset.split("train").texts)
    for name in dataset.split_names:
        unknown, words = vocabulary.count_unknown(dataset.split(name).texts)
        if name != "train" and words:
            yield name, unknown / words


def _vocabulary_warnings(dataset: ImageTextDataset, report: DatasetReport) -> Iterator[str]:
    whole = without_blanks(dataset.texts)
    if whole > UNSPACED_SHARE * len(dataset.texts):
        first = next(text for text in dataset.texts if without_blanks([text]))
        yield (
            f"{counted(whole, 'caption')} without blanks between words, such as {first[:20]!r}, "
            f"which a vocabulary of words takes for one word each; {SUBWORDS}"
        )
    if many := [(name, share) for name, share in report.unknown if share >= MANY_UNKNOWN]:
        shares = " and ".join(f"{100 * share:.1f} % of the words of {name}" for name, share in many)
        yield (
            f"{shares} are in no caption of train, so a model that learns its vocabulary there "
            "(SCAN, VSE++, …) reads them all as one word; a pretrained CLIP reads pieces of words"
        )


def _caption_warnings(dataset: ImageTextDataset) -> Iterator[str]:
    empty = sum(not text.strip() for text in dataset.texts)
    if dataset.text_features is None and empty:
        yield f"{counted(empty, 'caption')} without a word"
    printed = [text for text in dataset.texts if text[:2] in ("b'", 'b"') and text[-1:] == text[1]]
    if printed:
        yield (
            f"{counted(len(printed), 'caption')} like {printed[0][:40]!r}, which are printed "
            "bytes: write them again as text"
        )
    if long := sum(len(text.split()) > LONG for text in dataset.texts):
        yield f"{counted(long, 'caption')} of more than {LONG} words, cut there by default"
