"""Sets of foils: questions about pictures whose wrong answers differ by one detail.

``open_foil_set(["sugarcrepe/"], images="val2017/")`` reads any of the forms of
`counterfoil.corpus.foil_forms`, ``open_foil_set(["scenes"])`` makes foils of rendered scenes, and
``open_foil_set(["order:scenes"])`` shuffles their captions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, final, get_args

import torch

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.featuretable import features_of
from counterfoil.corpus.foil_forms import Box, FoilEntry, Form, Parsed, parse, recognised
from counterfoil.corpus.foil_orders import is_plain, reordered
from counterfoil.corpus.foil_pictures import found_pictures
from counterfoil.corpus.foil_rows import read_rows
from counterfoil.spec import unknown

Task: TypeAlias = Literal["choice", "crossed", "judged"]
NAMES: Mapping[Form, str] = {
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
    """One question of a set.

    Attributes:
        id: the set's own name of it.
        category: what part of the set it belongs to.
        images: rows of its picture, or of two.
        texts: rows of the true caption and then its foils; with two pictures, the caption of
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
    """Questions, and a corpus that holds their pictures and captions, each once.

    Attributes:
        form: how it is published, on which its own aggregates depend.
        name: in tables.
        corpus: pictures and captions; foils describe no image.
        items: the questions.
        left_out: how many entries are no question here, by the reason.
        seed: of what was drawn to make it.
    """

    form: Form
    name: str
    corpus: Corpus
    items: tuple[FoilItem, ...]
    left_out: Mapping[str, int]
    seed: int | None = None

    @property
    def task(self) -> Task:
        """Choose a caption for a picture, match two pairs, or judge one caption."""
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
    """The set that files of one form hold.

    Args:
        sources: files, or a folder of them; "FORM:PATH" says the form where it cannot be
            recognised; "scenes" or "scenes:images=300,seed=2" makes foils of rendered scenes and
            "order:" before these shuffles their captions.
        images: folder of the pictures; a folder ``images`` beside the file by default.
        features: stored features of the pictures by their names.
        split: of the scenes.
        seed: of foils that are made here.

    Raises:
        ValueError: something is missing, or of no known form, or files are of several.
    """
    form, rest = _prefix(sources[0])
    if is_scenes(sources[0]):
        from counterfoil.corpus.foil_scenes import scenes_foils

        if images is not None:
            raise ValueError(f"{sources[0]} draws its own pictures; leave out --images")
        made = scenes_foils(rest, split, seed, shuffled=form == "order")
        return made if features is None else _featured(made, features)
    files = _files([rest, *sources[1:]])
    kind, parsed, drawn = _read(form, files, seed)
    beside = files[0].parent / "images"
    folder = images or (beside if beside.is_dir() else None)
    made = assembled(
        kind,
        parsed.entries,
        parsed.left_out,
        ", ".join(map(str, files)),
        name=Path(rest).stem if kind == "pairs" else NAMES[kind],
        folder=folder,
        seed=seed if drawn else None,
    )
    return made if features is None else _featured(made, features)


def is_scenes(source: str) -> bool:
    """Whether a set is made here, of rendered scenes."""
    _, rest = _prefix(source)
    return rest.partition(":")[0] == "scenes" and not Path(rest).exists()


def assembled(
    form: Form,
    entries: Iterable[FoilEntry],
    left_out: Mapping[str, int],
    where: str,
    *,
    name: str,
    folder: Path | None = None,
    seed: int | None = None,
) -> FoilSet:
    """A set of these entries; foils that are their caption itself are left out.

    Args:
        form: of the set.
        entries: its questions.
        left_out: what readers left out already.
        where: what they were read from, for messages.
        name: what to call it.
        folder: of the pictures, where they are wanted.
        seed: of what was drawn.

    Raises:
        ValueError: no question is left, a caption is empty, or pictures are missing.
    """
    shots: dict[tuple[str, Box | None], int] = {}
    texts: dict[str, int] = {}
    owner: dict[int, int] = {}
    items, left = [], Counter(left_out)
    for entry in entries if form == "winoground" else _without_copies(entries, left):
        _check_words(entry, where)
        images = tuple(shots.setdefault((name, entry.box), len(shots)) for name in entry.images)
        rows = tuple(texts.setdefault(caption, len(texts)) for caption in entry.captions)
        items.append(FoilItem(entry.id, entry.category, images, rows, entry.true))
        if entry.true:
            for image, row in zip(images, rows):
                owner.setdefault(row, image)
    if not items:
        raise ValueError(f"{where} holds no question that can be asked; at least one is needed")
    corpus = Corpus(
        name=name,
        image_ids=[_id(*shot) for shot in shots],
        text_ids=[str(row) for row in range(len(texts))],
        texts=list(texts),
        owner=torch.tensor([owner.get(row, -1) for row in range(len(texts))]),
        splits=[""] * len(shots),
        pictures=None if folder is None else found_pictures(list(shots), folder, name),
    )
    return FoilSet(form, name, corpus, tuple(items), +left, seed)


def _read(form: Form | None, files: Sequence[Path], seed: int) -> tuple[Form, Parsed, bool]:
    """The form of the files, all their questions, and whether captions were shuffled here."""
    read = [(path, read_rows(path)) for path in files]
    forms = {form or recognised(path, rows) for path, rows in read}
    if len(forms) > 1:
        raise ValueError(
            f"the files are of several sets, {' and '.join(sorted(forms))}; name files of one"
        )
    kind, drawn = forms.pop(), False
    left: Counter[str] = Counter()
    entries: list[FoilEntry] = []
    for path, rows in read:
        if kind == "order" and is_plain(rows):
            rows, drawn = reordered(path, rows, seed), True
        found = parse(kind, path, rows)
        left.update(found.left_out)
        entries += found.entries
    return kind, Parsed(tuple(entries), left), drawn


def _featured(found: FoilSet, features: Path) -> FoilSet:
    corpus = found.corpus
    table = features_of(corpus.image_ids, features)
    return replace(found, corpus=replace(corpus, features=table))


def _prefix(source: str) -> tuple[Form | None, str]:
    """The form that a name says, and the rest of it."""
    before, colon, rest = source.partition(":")
    form: Form | None = next((one for one in get_args(Form) if one == before), None)
    if not colon or Path(source).exists() or form == "scenes":
        return None, source
    if form is None:
        raise ValueError(unknown(before, list(get_args(Form)), "a form of foils"))
    return form, rest


def _files(sources: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, sources):
        if not path.exists():
            raise ValueError(
                f"{path} does not exist; give a file of foils, a folder of them, or scenes"
            )
        held = sorted(p for p in path.iterdir() if p.suffix in ENDINGS) if path.is_dir() else [path]
        if not held:
            raise ValueError(f"{path} holds no file of foils, {', '.join(ENDINGS)}")
        found += held
    return found


def _without_copies(entries: Iterable[FoilEntry], left: Counter[str]) -> Iterator[FoilEntry]:
    """Entries without those foils that are the caption again; how many is counted."""
    for entry in entries:
        first, *foils = entry.captions
        kept = [foil for foil in foils if _plain(foil) != _plain(first)]
        left["foils that are the caption itself"] += len(foils) - len(kept)
        if foils and not kept:
            left["without a foil"] += 1
            continue
        yield replace(entry, captions=(first, *kept))


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _check_words(entry: FoilEntry, where: str) -> None:
    if not all(caption.strip() for caption in entry.captions):
        raise ValueError(f"{where}: entry {entry.id!r} has an empty caption; give it words")


def _id(name: str, box: Box | None) -> str:
    return name if box is None else f"{name}#{','.join(map(str, box))}"
