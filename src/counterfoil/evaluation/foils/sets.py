"""Foil sets: an image, its true caption, and captions that differ by one detail.

``open_foil_set(["sugarcrepe/"], images="val2017/")`` reads any of the formats of
`counterfoil.evaluation.foils.readers`, ``open_foil_set(["scenes"])`` makes foils of rendered
scenes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, final, get_args

import torch

from counterfoil.core.config import unknown_name
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import features_of
from counterfoil.data.images import Pictures
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.settings import split_settings
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import foils_by_kind
from counterfoil.evaluation.foils.files import (
    Rows,
    StoredPictures,
    foil_files,
    read_rows,
    read_stored,
)
from counterfoil.evaluation.foils.readers import (
    Box,
    FoilEntry,
    FoilFormat,
    canonical_rows,
    check_fields,
    detect_format,
    is_published,
    locate_images,
    parse_entries,
    unread_fields,
)

FoilTask: TypeAlias = Literal["choice", "crossed", "judged"]
NAMES: Mapping[FoilFormat, str] = {
    "sugarcrepe": "SugarCrepe",
    "sugarcrepe++": "SugarCrepe++",
    "bivlc": "BiVLC",
    "colorswap": "ColorSwap",
    "cola": "COLA",
    "negbench": "NegBench",
    "crepe": "CREPE",
    "vl-checklist": "VL-CheckList",
    "aro-relation": "ARO VG-Relation",
    "aro-attribution": "ARO VG-Attribution",
    "order": "ARO order",
    "valse": "VALSE",
    "vsr": "VSR",
    "winoground": "Winoground",
    "pairs": "pairs",
    "scenes": "foils of scenes",
}
# two images, two captions
CROSSED: frozenset[FoilFormat] = frozenset({"winoground", "bivlc", "colorswap", "cola"})


@final
@dataclass(frozen=True, slots=True)
class FoilItem:
    """One item of a set: images with a true caption and foils."""

    id: str  # its name in the set
    category: str  # the part of the set that it belongs to
    images: tuple[int, ...]  # row of its image, or of two
    # rows of the true captions and then of their foils; with two images, the caption of each
    texts: tuple[int, ...]
    true: bool = True  # whether a single caption is true
    positives: int = 1  # number of true captions of one image


@final
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class FoilSet:
    """Items, and a data set with their images and captions, each once.

    Attributes:
        form: published format; each format has aggregates of its own.
        name: name in tables.
        dataset: images and captions; foils describe no image.
        items: the items.
        left_out: number of entries left out, by reason.
        seed: random seed of foils of scenes; None for published foils.
        published: whether its authors report numbers of it.
    """

    form: FoilFormat
    name: str
    dataset: ImageTextDataset
    items: tuple[FoilItem, ...]
    left_out: Mapping[str, int]
    seed: int | None = None
    published: bool = True

    @property
    def task(self) -> FoilTask:
        """Choose a caption for an image, match two pairs, or judge one caption."""
        if self.form in CROSSED:
            return "crossed"
        return "judged" if self.form == "vsr" else "choice"

    def __repr__(self) -> str:
        left = f", {sum(self.left_out.values()):,} left out" if self.left_out else ""
        return (
            f"FoilSet({self.name}, {self.form}: {len(self):,} items on "
            f"{len(self.dataset):,} images{left})"
        )

    def __len__(self) -> int:
        return len(self.items)


def open_foil_set(
    sources: Sequence[str],
    *,
    images: Path | None = None,
    features: Path | None = None,
    split: str = "test",
    seed: int = 0,
) -> FoilSet:
    """Read the files of a foil set, or make one of rendered scenes.

    Args:
        sources: files, or a folder of them; "FORM:PATH" gives the format where it cannot be
            detected; "scenes" or "scenes:images=300,seed=2" makes foils of rendered scenes.
        images: folder of the images; by default a folder ``images`` beside the file.
        features: stored features of the images, by their names.
        split: split of the scenes, or of a data set whose files are named after splits.
        seed: random seed of foils of scenes.

    Raises:
        ValueError: something is missing or of no known format, or files are of several formats.
    """
    if is_scenes(sources[0]):
        if images is not None:
            raise ValueError(f"{sources[0]} renders its own pictures; leave out their folder")
        foils = scenes_foil_set(sources[0], split, seed)
        return foils if features is None else _with_features(foils, features)
    form, rest = _split_format(sources[0])
    files, stored = foil_files([rest, *sources[1:]], split), StoredPictures()
    contents = [
        (
            path,
            read_stored(path, split, stored)
            if path.is_dir() or path.suffix == ".parquet"
            else read_rows(path),
        )
        for path in files
    ]
    if images is not None and stored.places:
        raise ValueError(f"{rest} holds its pictures; leave out their folder, {images}")
    form, entries, left_out = _parse_files(form, contents)
    published = all(is_published(form, rows) for _, rows in contents)
    foils = build_foil_set(
        form,
        entries,
        left_out,
        ", ".join(map(str, files)),
        name=NAMES[form] if published else Path(rest).stem,
        folder=images or _pictures_beside(files[0], entries),
        stored=stored,
    )
    foils = replace(foils, published=published)
    return foils if features is None else _with_features(foils, features)


def named_places(foil_set: Sequence[str]) -> tuple[list[str], dict[str, Path]]:
    """Files or folder of a set, and the folders of its images and features that are said there.

    Raises:
        ValueError: another setting, as in "my-set/:split=dev".
    """
    names: list[str] = []
    places: dict[str, Path] = {}
    for name, said in map(split_settings, foil_set):
        names.append(name)
        if others := said.keys() - {"images", "features"}:
            key = min(others).replace("_", "-")
            raise ValueError(f"a foil set has images and features, and no {key}; leave it out")
        places |= said
    return names, places


def _pictures_beside(file: Path, entries: Sequence[FoilEntry]) -> Path | None:
    """The folder of the pictures, if it is ``images`` beside a file or that of its metadata."""
    beside = file.parent / "images"
    if beside.is_dir():
        return beside
    names = (name for entry in entries for name in entry.images)
    here = file.stem == "metadata" and any((file.parent / name).is_file() for name in names)
    return file.parent if here else None


def is_scenes(source: str) -> bool:
    """Return True if a source names rendered scenes."""
    return source.partition(":")[0] == "scenes" and not Path(source).exists()


def build_foil_set(
    form: FoilFormat,
    entries: Iterable[FoilEntry],
    left_out: Mapping[str, int],
    where: str,
    *,
    name: str,
    folder: Path | None = None,
    stored: StoredPictures | None = None,
    seed: int | None = None,
) -> FoilSet:
    """Build a set of entries; foils that equal their caption are left out.

    Not those of crossed pairs and of SugarCrepe++, whose authors count them: they are wrong.
    `left_out` counts the entries that the reader left out, by reason, and `where` is the source of
    the entries, for messages.

    Raises:
        ValueError: no item is left, a caption is empty, or images are missing.
    """
    shots: dict[tuple[str, Box | None], int] = {}
    texts: dict[str, int] = {}
    text_to_image: dict[int, int] = {}
    items, left = [], Counter(left_out)
    whole = form in CROSSED or form == "sugarcrepe++"
    for entry in entries if whole else _without_copies(entries, left):
        if not all(caption.strip() for caption in entry.captions):
            raise ValueError(f"{where}: entry {entry.id!r} has an empty caption; give it words")
        images = tuple(shots.setdefault((name, entry.box), len(shots)) for name in entry.images)
        rows = tuple(texts.setdefault(caption, len(texts)) for caption in entry.captions)
        items.append(FoilItem(entry.id, entry.category, images, rows, entry.true, entry.positives))
        if entry.true:
            for image, row in zip(images * entry.positives, rows):
                text_to_image.setdefault(row, image)
    if not items:
        raise ValueError(f"{where} holds no item with a foil; at least one is needed")
    dataset = ImageTextDataset(
        name=name,
        image_ids=[_image_id(*shot) for shot in shots],
        text_ids=[str(row) for row in range(len(texts))],
        texts=list(texts),
        text_to_image=torch.tensor([text_to_image.get(row, -1) for row in range(len(texts))]),
        splits=[""] * len(shots),
        pictures=_pictures(list(shots), folder, stored, name),
    )
    return FoilSet(form, name, dataset, tuple(items), +left, seed)


def _pictures(
    shots: Sequence[tuple[str, Box | None]],
    folder: Path | None,
    stored: StoredPictures | None,
    of: str,
) -> Pictures | None:
    if stored is not None and stored.places:
        if not all(name in stored.places and box is None for name, box in shots):
            raise ValueError(f"{of} has pictures in its files, and not all of them whole")
        return stored.of([name for name, _ in shots], of)
    return None if folder is None else locate_images(shots, folder, of)


def _without_copies(entries: Iterable[FoilEntry], left_out: Counter[str]) -> Iterator[FoilEntry]:
    """Entries without foils that equal the caption but for case and blanks; counts them."""

    def normal(text: str) -> str:
        return " ".join(text.split()).casefold()

    for entry in entries:
        caption, *foils = entry.captions
        others = [foil for foil in foils if normal(foil) != normal(caption)]
        left_out["foils that are the caption itself"] += len(foils) - len(others)
        if foils and not others:
            left_out["without a foil"] += 1
            continue
        yield replace(entry, captions=(caption, *others))


def _image_id(name: str, box: Box | None) -> str:
    return name if box is None else f"{name}#{','.join(map(str, box))}"


def _parse_files(
    named: FoilFormat | None, contents: Sequence[tuple[Path, Rows]]
) -> tuple[FoilFormat, list[FoilEntry], Counter[str]]:
    """The format, the entries, and the number of others by reason."""
    forms = {named or detect_format(path, rows) for path, rows in contents}
    if len(forms) > 1:
        raise ValueError(
            f"the files are of several sets, {' and '.join(sorted(forms))}; name files of one"
        )
    form = forms.pop()
    entries, left_out = list[FoilEntry](), Counter[str]()
    for path, raw in contents:
        rows = canonical_rows(form, path, raw)
        if named != "pairs":
            check_fields(path, form, rows)
        parsed, others = parse_entries(form, path, rows)
        entries += parsed
        left_out.update(others)
        for name, count in unread_fields(form, rows).items():
            left_out[f"entries' {name}"] += count
    return form, entries, left_out


def _with_features(foils: FoilSet, features: Path) -> FoilSet:
    table = features_of(foils.dataset.image_ids, features)
    return replace(foils, dataset=replace(foils.dataset, features=table))


def _split_format(source: str) -> tuple[FoilFormat | None, str]:
    """The format before the colon of a source, and the rest of it."""
    before, colon, rest = source.partition(":")
    form: FoilFormat | None = next((name for name in get_args(FoilFormat) if name == before), None)
    if not colon or Path(source).exists():
        return None, source
    if form is None:
        raise ValueError(unknown_name(before, list(get_args(FoilFormat)), "a form of foils"))
    return form, rest


# --- scenes ----------------------------------------------------------------------------------


def scenes_foil_set(source: str, split: str, seed: int) -> FoilSet:
    """Make a set of a split of rendered scenes, as "scenes" or "scenes:images=300".

    Raises:
        ValueError: no such scenes or split.
    """
    return foils_of_scenes(load_dataset(source).split(split), seed)


def foils_of_scenes(dataset: ImageTextDataset, seed: int) -> FoilSet:
    """Pair each caption of rendered scenes with the first foil of each kind.

    The foils are those of `counterfoil.data.scenes.truth.foils_by_kind`.

    Raises:
        ValueError: an image is no rendered scene.
    """
    foils = build_foil_set(
        "scenes",
        _changed_entries(dataset, torch.Generator().manual_seed(seed)),
        {},
        dataset.name,
        name=f"foils of {dataset.name} {dataset.split_name}",
        seed=seed,
    )
    place = {name: row for row, name in enumerate(dataset.image_ids)}
    subset = dataset.subset(torch.tensor([place[name] for name in foils.dataset.image_ids]))
    filled = replace(foils.dataset, pictures=subset.pictures, features=subset.features)
    return replace(foils, dataset=filled)


def _changed_entries(dataset: ImageTextDataset, rng: torch.Generator) -> Iterator[FoilEntry]:
    scenes = graphs(dataset)
    for row, caption in enumerate(dataset.texts):
        image = int(dataset.text_to_image[row])
        for foil in foils_by_kind(caption, scenes[image], rng):
            name = f"{dataset.text_ids[row]} {foil.kind}"
            yield FoilEntry(name, foil.kind, (dataset.image_ids[image],), (caption, foil.caption))
