"""Mined negatives as tables that other libraries' trainers read: `training_tables`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from counterfoil.core.config import parse_literal
from counterfoil.core.console import warn
from counterfoil.core.optional import optional_import
from counterfoil.data.checks import counted
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import as_files
from counterfoil.negatives.store import TO_IMAGE, TO_TEXT, Direction, Form, HardNegativeLists

_Columns: TypeAlias = dict[str, list[int]]  # rows of the data set by column


def positive_rows(dataset: ImageTextDataset) -> tuple[list[list[int]], list[list[int]]]:
    """Text rows of each image and image rows of each text: its own first, then extra positives."""
    texts: list[list[int]] = [[] for _ in range(len(dataset))]
    images: list[list[int]] = [[] for _ in dataset.texts]
    pairs = [(image, text) for text, image in enumerate(dataset.text_to_image.tolist())]
    if dataset.extra_positives is not None:
        extra = dataset.extra_positives
        pairs += sorted(zip(extra.image.tolist(), extra.text.tolist(), strict=True))
    for image, text in pairs:
        if image >= 0 and text not in texts[image]:
            texts[image].append(text)
            images[text].append(image)
    return texts, images


def training_tables(
    dataset: ImageTextDataset,
    lists: HardNegativeLists,
    *,
    form: Form,
    direction: Direction | Literal["both"],
    images: bool,
    most: int,
) -> Any:
    """A `datasets.Dataset` of mined lists, or two; see `HardNegatives.to_dataset`.

    Raises:
        ValueError: an unknown form or direction, no negative in a direction, no pictures, or
            `datasets` is not installed.
    """
    parse_literal(Form, form, "a form of negatives")
    directions: tuple[Direction, ...] = (TO_IMAGE, TO_TEXT)
    if direction != "both":
        directions = (parse_literal(Direction, direction, "a direction (beside 'both')"),)
    if most < 1:
        raise ValueError(f"most={most}: a query needs at least one negative")
    if images and dataset.pictures is None:
        raise ValueError(
            f"{dataset.name} has no pictures; images=False gives the ids of its images"
        )
    datasets = optional_import(
        "datasets", 'to_dataset needs datasets: pip install "counterfoil[hf]"'
    )
    texts = [text or name for text, name in zip(dataset.texts, dataset.text_ids)]
    pictures: Sequence[str] = dataset.image_ids
    if images and dataset.pictures is not None:
        pictures = list(map(str, as_files(dataset.pictures)))
    word = datasets.Value("string")
    image = datasets.Image(mode="RGB") if images else word
    of_images, of_texts = positive_rows(dataset)
    tables = {}
    for each in directions:
        to_text = each == TO_TEXT
        positives = of_images if to_text else of_texts
        listed = (lists.texts if to_text else lists.images)[:, :most].tolist()
        rows = _FORMS[form](positives, [[row for row in own if row >= 0] for own in listed], each)
        if not rows:
            raise ValueError(f"there are no negatives to train on from {each.split('-')[0]}s")
        sides = [(texts, word), (pictures, image)]
        query, answer = reversed(sides) if to_text else sides
        columns: dict[str, list[Any]] = {}
        features = {}
        for name, numbers in rows.items():
            values, kind = query if name == "anchor" else answer
            columns[name] = numbers if name == "label" else [values[row] for row in numbers]
            features[name] = datasets.Value("int64") if name == "label" else kind
        tables[each] = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    return datasets.DatasetDict(tables) if direction == "both" else tables[direction]


def _triplets(
    positives: Sequence[Sequence[int]], negatives: Sequence[Sequence[int]], direction: Direction
) -> _Columns:
    """A row for each query, positive and negative."""
    rows = [
        (query, positive, negative)
        for query, (true, wrong) in enumerate(zip(positives, negatives))
        for positive in true
        for negative in wrong
    ]
    return dict(zip(("anchor", "positive", "negative"), map(list, zip(*rows))))


def _tuples(
    positives: Sequence[Sequence[int]], negatives: Sequence[Sequence[int]], direction: Direction
) -> _Columns:
    """A row for each query and positive with as many negatives as the longest list has."""
    queries = [query for query, true in enumerate(positives) if true]
    longest = max((len(negatives[query]) for query in queries), default=0)
    if short := sum(0 < len(negatives[query]) < longest for query in queries):
        warn(
            f"{counted(short, 'query')} of {direction} with fewer than {longest} negatives are "
            "left out; a lower `most` keeps them"
        )
    rows = [
        (query, positive, *negatives[query])
        for query in queries
        for positive in positives[query]
        if len(negatives[query]) == longest > 0
    ]
    names = ("anchor", "positive", *(f"negative_{place + 1}" for place in range(longest)))
    return dict(zip(names, map(list, zip(*rows))))


def _pairs(
    positives: Sequence[Sequence[int]], negatives: Sequence[Sequence[int]], direction: Direction
) -> _Columns:
    """A row for each true pair, with the label 1, and for each negative, with 0."""
    rows = [
        (query, other, label)
        for query, (true, wrong) in enumerate(zip(positives, negatives))
        if true and wrong
        for label, others in ((1, true), (0, wrong))
        for other in others
    ]
    return dict(zip(("anchor", "candidate", "label"), map(list, zip(*rows))))


_FORMS: dict[
    Form, Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], Direction], _Columns]
] = {"triplet": _triplets, "n-tuple": _tuples, "labeled-pair": _pairs}
