"""Foil sets: an image, its true caption, and captions that differ by one detail.

``open_foil_set(["sugarcrepe/"], images="val2017/")`` reads any of the formats of
`counterfoil.evaluation.foils.readers`, ``open_foil_set(["scenes"])`` makes foils of rendered
scenes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

import torch

from counterfoil.core.config import unknown_name
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.precomp import features_of
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import foils as scene_foils
from counterfoil.data.tokenizers import split_words
from counterfoil.evaluation.foils.readers import (
    Box,
    FoilEntry,
    FoilFormat,
    Rows,
    detect_format,
    locate_images,
    parse_entries,
    read_rows,
)

FoilTask: TypeAlias = Literal["choice", "crossed", "judged"]
NAMES: Mapping[FoilFormat, str] = {
    "sugarcrepe": "SugarCrepe",
    "aro-relation": "ARO VG-Relation",
    "aro-attribution": "ARO VG-Attribution",
    "order": "ARO order",
    "valse": "VALSE",
    "vsr": "VSR",
    "foil-it": "FOIL-it",
    "winoground": "Winoground",
    "pairs": "pairs",
    "scenes": "foils of scenes",
}
ENDINGS = (".json", ".jsonl", ".tsv", ".csv")


@final
@dataclass(frozen=True, slots=True)
class FoilItem:
    """One item of a set: images with a true caption and foils.

    Attributes:
        id: its name in the set.
        category: the part of the set that it belongs to.
        images: row of its image, or of two.
        texts: rows of the true caption and then of its foils; with two images, the caption of
            each.
        true: whether a single caption is true.
    """

    id: str
    category: str
    images: tuple[int, ...]
    texts: tuple[int, ...]
    true: bool = True


@final
@dataclass(frozen=True, eq=False, slots=True)
class FoilSet:
    """Items, and a data set with their images and captions, each once.

    Attributes:
        form: published format; each format has aggregates of its own.
        name: name in tables.
        dataset: images and captions; foils describe no image.
        items: the items.
        left_out: number of entries left out, by reason.
        seed: random seed of foils made here; None for published foils.
    """

    form: FoilFormat
    name: str
    dataset: ImageTextDataset
    items: tuple[FoilItem, ...]
    left_out: Mapping[str, int]
    seed: int | None = None

    @property
    def task(self) -> FoilTask:
        """Choose a caption for an image, match two pairs, or judge one caption."""
        return (
            "crossed" if self.form == "winoground" else "judged" if self.form == "vsr" else "choice"
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
        images: folder of the images; by default a folder ``cxc_images`` beside the file.
        features: stored features of the images, by their names.
        split: split of the scenes.
        seed: random seed of foils made here.

    Raises:
        ValueError: something is missing or of no known format, or files are of several formats.
    """
    if is_scenes(sources[0]):
        if images is not None:
            raise ValueError(f"{sources[0]} renders its own pictures; leave out --images")
        foils = scenes_foil_set(sources[0], split, seed)
        return foils if features is None else _with_features(foils, features)
    form, rest = _split_format(sources[0])
    files = _foil_files([rest, *sources[1:]])
    form, entries, left_out, shuffled = _read_files(form, files, seed)
    beside = files[0].parent / "images"
    foils = build_foil_set(
        form,
        entries,
        left_out,
        ", ".join(map(str, files)),
        name=Path(rest).stem if form == "pairs" else NAMES[form],
        folder=images or (beside if beside.is_dir() else None),
        seed=seed if shuffled else None,
    )
    return foils if features is None else _with_features(foils, features)


def is_scenes(source: str) -> bool:
    """Whether a source names rendered scenes."""
    return source.partition(":")[0] == "scenes" and not Path(source).exists()


def build_foil_set(
    form: FoilFormat,
    entries: Iterable[FoilEntry],
    left_out: Mapping[str, int],
    where: str,
    *,
    name: str,
    folder: Path | None = None,
    seed: int | None = None,
) -> FoilSet:
    """Build a set of entries; foils that equal their caption are left out.

    Args:
        form: format of the set.
        entries: its items, as read.
        left_out: number of entries that the reader left out, by reason.
        where: source of the entries, for messages.
        name: name of the set.
        folder: folder of the images, if any.
        seed: random seed of foils made here.

    Raises:
        ValueError: no item is left, a caption is empty, or images are missing.
    """
    shots: dict[tuple[str, Box | None], int] = {}
    texts: dict[str, int] = {}
    text_to_image: dict[int, int] = {}
    items, left = [], Counter(left_out)
    for entry in entries if form == "winoground" else _without_copies(entries, left):
        if not all(caption.strip() for caption in entry.captions):
            raise ValueError(f"{where}: entry {entry.id!r} has an empty caption; give it words")
        images = tuple(shots.setdefault((name, entry.box), len(shots)) for name in entry.images)
        rows = tuple(texts.setdefault(caption, len(texts)) for caption in entry.captions)
        items.append(FoilItem(entry.id, entry.category, images, rows, entry.true))
        if entry.true:
            for image, row in zip(images, rows):
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
        pictures=None if folder is None else locate_images(list(shots), folder, name),
    )
    return FoilSet(form, name, dataset, tuple(items), +left, seed)


def _without_copies(entries: Iterable[FoilEntry], left: Counter[str]) -> Iterator[FoilEntry]:
    """Entries without foils that equal the caption but for case and blanks; counts them."""

    def normal(text: str) -> str:
        return " ".join(text.split()).casefold()

    for entry in entries:
        caption, *foils = entry.captions
        others = [foil for foil in foils if normal(foil) != normal(caption)]
        left["foils that are the caption itself"] += len(foils) - len(others)
        if foils and not others:
            left["without a foil"] += 1
            continue
        yield replace(entry, captions=(caption, *others))


def _image_id(name: str, box: Box | None) -> str:
    return name if box is None else f"{name}#{','.join(map(str, box))}"


def _read_files(
    form: FoilFormat | None, files: Sequence[Path], seed: int
) -> tuple[FoilFormat, list[FoilEntry], Counter[str], bool]:
    """The format, the entries, the number of others by reason, and whether words were shuffled."""
    contents = [(path, read_rows(path)) for path in files]
    forms = {form or detect_format(path, rows) for path, rows in contents}
    if len(forms) > 1:
        raise ValueError(
            f"the files are of several sets, {' and '.join(sorted(forms))}; name files of one"
        )
    form, shuffled = forms.pop(), False
    entries, left_out = list[FoilEntry](), Counter[str]()
    for path, rows in contents:
        if form == "order" and has_plain_captions(rows):
            rows, shuffled = shuffle_rows(path, rows, seed), True
        parsed, others = parse_entries(form, path, rows)
        entries += parsed
        left_out.update(others)
    return form, entries, left_out, shuffled


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


def _foil_files(sources: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, sources):
        if not path.exists():
            raise ValueError(
                f"{path} does not exist; give a file of foils, a folder of them, or scenes"
            )
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if file.suffix in ENDINGS)
        if not inside:
            raise ValueError(f"{path} holds no file of foils, {', '.join(ENDINGS)}")
        files += inside
    return files


# --- word order (ARO) ------------------------------------------------------------------------

LONGEST = 30  # words, as BLIP's captions are cut
TAGGER = "en_core_web_sm"
_NOUN_TAGS, _ADJECTIVE_TAGS = ("NN", "NNS", "NNP", "NNPS"), ("JJ", "JJR", "JJS")


@final
@dataclass(frozen=True, slots=True)
class WordClasses:
    """The words of a caption, with the indices of its nouns and adjectives."""

    words: tuple[str, ...]
    nouns: tuple[int, ...]
    adjectives: tuple[int, ...]


def shuffle_words(caption: str, classes: WordClasses, rng: torch.Generator) -> tuple[str, ...]:
    """A caption and its four shuffles, normalised by `normalise_caption`.

    Yuksekgonul et al., "When and why vision-language models behave like bags-of-words, and what
    to do about it?", ICLR 2023, section 2.3: nouns among themselves and adjectives among
    themselves; all other words; words within groups of three; groups of three.

    Departs from the authors' code in: words are split by `counterfoil.data.tokenizers.split_words`
    for all four, and one seeded generator shuffles.
    """
    words = list(classes.words)
    named = {*classes.nouns, *classes.adjectives}
    rest = [place for place in range(len(words)) if place not in named]
    named_only = _permuted(_permuted(words, classes.nouns, rng), classes.adjectives, rng)
    plain = split_words(caption)
    threes = [plain[start : start + 3] for start in range(0, len(plain), 3)]
    within = [word for three in threes for word in _permuted(three, range(len(three)), rng)]
    order = torch.randperm(len(threes), generator=rng).tolist()
    across = [word for place in order for word in threes[place]]
    shuffles = (named_only, _permuted(words, rest, rng), within, across)
    return normalise_caption(caption), *(normalise_caption(" ".join(s)) for s in shuffles)


def _permuted(words: Sequence[str], places: Sequence[int], rng: torch.Generator) -> list[str]:
    """The words, with those at some places permuted at random."""
    out = list(words)
    for place, other in zip(places, torch.randperm(len(places), generator=rng).tolist()):
        out[place] = words[places[other]]
    return out


def normalise_caption(caption: str) -> str:
    """A caption in lower case without punctuation, cut to 30 words.

    >>> normalise_caption('A man, "Bob", sits.  (Alone)')
    'a man, bob , sits alone'
    """
    words = re.sub(r"[.!\"()*#:;~]", " ", caption.lower()).split()
    return " ".join(words[:LONGEST])


def has_plain_captions(rows: Rows) -> bool:
    """Whether entries are captions of images, without their shuffles."""
    return all(
        isinstance(entry, dict) and "caption" in entry and "caption_options" not in entry
        for _, entry in rows
    )


def shuffle_rows(path: Path, rows: Rows, seed: int) -> Rows:
    """Replace captions by options, the caption and its shuffles; spaCy tags the words.

    Args:
        path: the file, for messages.
        rows: entries with a caption or a list of them.
        seed: seed of the shuffles.

    Raises:
        ValueError: spaCy or its model is not installed, or a caption is not text.
    """
    rng = torch.Generator().manual_seed(seed)
    captions: list[tuple[str, dict[str, Any], str]] = []
    for name, plain in rows:
        listed = plain["caption"]
        for place, caption in enumerate(listed if isinstance(listed, list) else [listed]):
            if not isinstance(caption, str):
                raise ValueError(f"{path}: {name}.caption: a text or a list of texts is needed")
            captions.append((f"{name}.caption[{place}]", plain, caption))
    tagged = _spacy_classes([caption for _, _, caption in captions])
    return [
        (name, plain | {"caption_options": list(shuffle_words(caption, classes, rng))})
        for (name, plain, caption), classes in zip(captions, tagged)
    ]


def _spacy_classes(captions: Sequence[str]) -> Iterator[WordClasses]:
    try:
        pipeline = import_module("spacy").load(TAGGER)
    except (ImportError, OSError):
        raise ValueError(
            f"shuffling nouns and adjectives needs spaCy with {TAGGER}, which is not installed: "
            f"pip install spacy, python -m spacy download {TAGGER}; or give a file whose entries "
            'have "caption_options"'
        ) from None
    for document in pipeline.pipe(captions):
        tags = [word.tag_ for word in document]
        yield WordClasses(
            tuple(word.text for word in document),
            tuple(place for place, tag in enumerate(tags) if tag in _NOUN_TAGS),
            tuple(place for place, tag in enumerate(tags) if tag in _ADJECTIVE_TAGS),
        )


# --- scenes ----------------------------------------------------------------------------------


def scenes_foil_set(source: str, split: str, seed: int) -> FoilSet:
    """Make a set of a split of rendered scenes, as "scenes" or "scenes:images=300".

    Raises:
        ValueError: no such scenes or split.
    """
    return foils_of_scenes(load_dataset(source).split(split), seed)


def foils_of_scenes(dataset: ImageTextDataset, seed: int) -> FoilSet:
    """Pair each caption of rendered scenes with the first foil of each kind.

    The foils are those of `counterfoil.data.scenes.foils`.

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
        kinds: set[str] = set()
        for foil in scene_foils(caption, scenes[image], rng):
            if foil.kind in kinds:
                break  # the first ones differ in kind
            kinds.add(foil.kind)
            name = f"{dataset.text_ids[row]} {foil.kind}"
            yield FoilEntry(name, foil.kind, (dataset.image_ids[image],), (caption, foil.caption))
