"""What a look at a data set found, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterfoil.corpus.corpus import Corpus


@final
@dataclass(frozen=True, slots=True)
class SplitCounts:
    """One split.

    Attributes:
        name: of the split.
        images: in it.
        texts: that describe them.
        without_text: images that no text describes.
    """

    name: str
    images: int
    texts: int
    without_text: int


@final
@dataclass(frozen=True, slots=True)
class Twins:
    """The same picture or caption in several places.

    Attributes:
        names: the data set's own names of images, or the captions.
        splits: of each of them.
    """

    names: tuple[str, ...]
    splits: tuple[str, ...]

    @property
    def across(self) -> bool:
        """Whether they are in different splits."""
        return len(set(self.splits)) > 1

    def __str__(self) -> str:
        named = [f"{name} ({split})" for name, split in zip(self.names, self.splits)]
        return " and ".join(named[:3])


@final
@dataclass(frozen=True, slots=True)
class Lengths:
    """Words of a caption, blanks apart: shortest, median, longest; and empty captions."""

    shortest: int
    median: float
    longest: int
    empty: int


@final
@dataclass(frozen=True, slots=True)
class Findings:
    """What is in a data set and what is wrong with it.

    Attributes:
        name: of the data set.
        splits: counts.
        captions_per_image: number of captions, and how many images have so many.
        lengths: of the captions.
        images: what the images are there as, in words.
        unreadable: a sentence for each missing or unreadable picture.
        not_finite: ids of images whose features hold NaN or infinite values.
        same_images: pictures (or features) that are there more than once.
        same_texts: captions that stand in several splits.
        orphans: texts that describe no image.
        errors: why the data set cannot be trained on; nothing when it can.
        warnings: what is worth knowing before training.
    """

    name: str
    splits: tuple[SplitCounts, ...]
    captions_per_image: tuple[tuple[int, int], ...]
    lengths: Lengths
    images: str
    unreadable: tuple[str, ...]
    not_finite: tuple[str, ...]
    same_images: tuple[Twins, ...]
    same_texts: tuple[Twins, ...]
    orphans: int
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def shown(findings: Findings) -> RenderableType:
    """Findings for a terminal: a table of splits, figures, then warnings and errors."""
    return Group(_splits(findings), _figures(findings), *_complaints(findings))


def _splits(findings: Findings) -> Table:
    table = Table(title=findings.name, title_justify="left")
    table.add_column("split")
    for column in ("images", "captions", "without caption"):
        table.add_column(column, justify="right")
    for part in findings.splits:
        table.add_row(part.name, f"{part.images:,}", f"{part.texts:,}", f"{part.without_text:,}")
    return table


def _figures(findings: Findings) -> Table:
    lengths, counts = findings.lengths, findings.captions_per_image
    each = ", ".join(f"{count} ({images:,} images)" for count, images in counts[:8])
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("images as", findings.images)
    table.add_row("captions per image", each + (", ..." if len(counts) > 8 else ""))
    table.add_row(
        "words per caption",
        f"{lengths.shortest} to {lengths.longest}, median {lengths.median:g}",
    )
    return table


def _complaints(findings: Findings) -> Iterator[Text]:
    for style, kind, sentences in (
        ("yellow", "warning", findings.warnings),
        ("bold red", "error", findings.errors),
    ):
        for sentence in sentences:
            yield Text.assemble((f"{kind}: ", style), sentence)
    if not findings.errors:
        yield Text("This data set can be trained on.", style="green")


def conclusions(
    corpus: Corpus,
    counts: tuple[SplitCounts, ...],
    unreadable: tuple[str, ...],
    not_finite: tuple[str, ...],
) -> Iterator[str]:
    """Why a data set cannot be trained on, one sentence each."""
    train = next((part for part in counts if part.name == "train"), None)
    if train is None:
        found = ", ".join(part.name for part in counts) or "none"
        yield f"there is no train split to learn from; the splits are: {found}"
    elif not train.texts:
        yield "no image of the train split has a caption"
    if corpus.pictures is None and corpus.features is None:
        yield "there are neither pictures nor features; give an image folder or features"
    if unreadable and corpus.features is None:
        yield f"{counted(len(unreadable), 'picture')} cannot be read, such as: {unreadable[0]}"
    if not_finite:
        yield (
            f"{counted(len(not_finite), 'image')} with NaN or infinite features, such as "
            f"{not_finite[0]!r}; extract them again"
        )


def counted(number: int, what: str) -> str:
    """A number with its noun.

    >>> counted(1, "picture"), counted(2000, "picture")
    ('1 picture', '2,000 pictures')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
