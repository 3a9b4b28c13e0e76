"""The files in which sets of foils are published, each entry checked and brought to one form.

sugarcrepe        {"0": {"filename", "caption", "negative_caption"}}, one file a category
aro-relation      [{"image_path", "true_caption", "false_caption", "relation_name", "bbox_x"}]
aro-attribution   the same with "attributes": [first, second]
order             [{"image", "caption_options": [true, foil, …]}], or [{"image", "caption"}], to be
                  shuffled, see `counterfoil.corpus.foil_orders`
valse             {id: {"image_file", "caption", "foil", "mturk": {"caption", …}}}, one a piece
vsr               one {"image", "caption", "label": 0 or 1, "relation"} a line
foil-it           {"annotations": [{"id", "image_id", "caption", "foil", "target_word"}]}
winoground        one {"id", "image_0", "image_1", "caption_0", "caption_1", "collapsed_tag"} a
                  line
pairs             anything with an image, a caption and its foils: NegCLIP's table ("filepath",
                  "title", "neg_caption"), stored written negatives ("image", "caption", "foil")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from counterfoil.corpus.foil_rows import Rows

Form: TypeAlias = Literal[
    "sugarcrepe", "aro-relation", "aro-attribution", "order", "valse", "vsr", "foil-it",
    "winoground", "pairs", "scenes",
]  # fmt: skip
Box: TypeAlias = tuple[int, int, int, int]
SUGARCREPE = (
    "replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att",
)  # fmt: skip
AGREED = 2  # of three annotators of VALSE, for whom the caption alone is right


@final
@dataclass(frozen=True, slots=True)
class FoilEntry:
    """One question of a set, as a reader finds it.

    Attributes:
        id: the set's own name of it.
        category: what the foil changes, or another part of the set it belongs to.
        images: names of its picture, or of two.
        captions: the true one first, then its foils; with two pictures the caption of each.
        true: whether a single caption is true.
        box: left, top, width and height of the part of the picture that is shown.
    """

    id: str
    category: str
    images: tuple[str, ...]
    captions: tuple[str, ...]
    true: bool = True
    box: Box | None = None


@final
@dataclass(frozen=True, slots=True)
class Parsed:
    """What a file holds.

    Attributes:
        entries: the questions.
        left_out: how many entries ask nothing, by the reason.
    """

    entries: tuple[FoilEntry, ...]
    left_out: Mapping[str, int]


_IMAGE = AliasChoices("image", "image_path", "image_file", "filename", "filepath", "image_id")
_TRUE = AliasChoices("caption", "true_caption", "title")
_FOILS = AliasChoices("foils", "foil", "negative_caption", "false_caption", "neg_caption")


@final
class _Choice(BaseModel):
    model_config = ConfigDict(extra="ignore")
    image: str | int = Field(validation_alias=_IMAGE)
    caption: str | list[str] = Field(validation_alias=_TRUE)
    foils: str | list[str] = Field(validation_alias=_FOILS)
    category: str = Field("", validation_alias=AliasChoices("category", "kind", "relation_name"))
    attributes: list[str] = Field(default_factory=list)
    mturk: dict[str, int] | None = None
    bbox_x: float = 0
    bbox_y: float = 0
    bbox_w: float = 0
    bbox_h: float = 0


@final
class _Order(BaseModel):
    model_config = ConfigDict(extra="ignore")
    image: str | int = Field(validation_alias=_IMAGE)
    caption_options: list[str] = Field(min_length=2)


@final
class _Judged(BaseModel):
    model_config = ConfigDict(extra="ignore")
    image: str | int = Field(validation_alias=_IMAGE)
    caption: str
    label: Literal[0, 1]
    relation: str = ""


@final
class _Crossed(BaseModel):
    model_config = ConfigDict(extra="ignore")
    id: str | int = ""
    image_0: str
    image_1: str
    caption_0: str
    caption_1: str
    collapsed_tag: str = ""


@final
class _Annotation(BaseModel):
    model_config = ConfigDict(extra="ignore")
    id: int | str
    image_id: int | str
    caption: str
    foil: bool
    target_word: str = ""


_Entry = TypeVar("_Entry", bound=BaseModel)


def recognised(path: Path, rows: Rows) -> Form:
    """Which form a file is in, by the fields of its first entry.

    Raises:
        ValueError: it is in none of them.
    """
    first = rows[0][1] if rows else None
    if not isinstance(first, dict):
        raise ValueError(f"{path} holds no entry with an image and captions")
    keys = first.keys()
    found: tuple[tuple[Form, bool], ...] = (
        ("foil-it", rows[0][0].startswith("annotations[")),
        ("winoground", keys >= {"image_0", "caption_0"}),
        ("order", "caption_options" in keys),
        ("vsr", keys >= {"caption", "label"}),
        ("aro-relation", keys >= {"true_caption", "relation_name"}),
        ("aro-attribution", keys >= {"true_caption", "attributes"}),
        ("valse", "mturk" in keys),
        ("sugarcrepe", category_of(path) != ""),
        ("pairs", bool(keys & set(_FOILS.choices) and keys & set(_TRUE.choices))),
    )
    for form, fits in found:
        if fits:
            return form
    raise ValueError(
        f"{path} is in no form of foils that is known: its first entry has the fields "
        f"{', '.join(map(str, keys))}; an image, a caption and its foils are needed, as in "
        '{"image", "caption", "foil"}'
    )


def category_of(path: Path) -> str:
    """The category of a file of SugarCrepe; empty for any other file.

    >>> category_of(Path("data/swap_att.json"))
    'swap_att'
    """
    return next((name for name in SUGARCREPE if path.stem.endswith(name)), "")


def parse(form: Form, path: Path, rows: Rows) -> Parsed:
    """The questions of a file.

    Raises:
        ValueError: an entry is not of this form.
    """
    if form == "foil-it":
        return _foil_it(path, rows)
    left: Counter[str] = Counter()
    entries = []
    for place, (name, plain) in enumerate(rows):
        entry = _parsed(form, path, name, plain, str(place))
        if isinstance(entry, FoilEntry):
            entries.append(entry)
        else:
            left[entry] += 1
    return Parsed(tuple(entries), left)


def _parsed(form: Form, path: Path, name: str, plain: Any, number: str) -> FoilEntry | str:
    """An entry, or why it asks nothing."""
    key = str(plain.get("key", number)) if isinstance(plain, dict) else number
    if form == "winoground":
        pair = _checked(_Crossed, path, name, plain)
        names, told = (pair.image_0, pair.image_1), (pair.caption_0, pair.caption_1)
        return FoilEntry(str(pair.id or key), pair.collapsed_tag, names, told)
    if form == "vsr":
        one = _checked(_Judged, path, name, plain)
        return FoilEntry(key, one.relation, (str(one.image),), (one.caption,), bool(one.label))
    if form == "order":
        options = _checked(_Order, path, name, plain)
        return FoilEntry(key, "", (str(options.image),), tuple(options.caption_options))
    return _choice(form, path, _checked(_Choice, path, name, plain), key)


def _choice(form: Form, path: Path, found: _Choice, key: str) -> FoilEntry | str:
    captions = [found.caption] if isinstance(found.caption, str) else found.caption[:1]
    foils = [found.foils] if isinstance(found.foils, str) else found.foils
    if not foils or not captions:
        return "without a foil"
    category, box = found.category, None
    if form == "sugarcrepe":
        category = category_of(path)
    if form == "valse":
        category = path.stem.rpartition("valse_")[2]
        if found.mturk is not None and found.mturk.get("caption", 0) < AGREED:
            return f"on whose caption fewer than {AGREED} annotators agreed"
    if form == "aro-attribution":
        category = "_".join(found.attributes)
    if form.startswith("aro-") and found.bbox_w > 0 and found.bbox_h > 0:
        box = (int(found.bbox_x), int(found.bbox_y), int(found.bbox_w), int(found.bbox_h))
    return FoilEntry(key, category, (str(found.image),), (*captions, *foils), box=box)


def _foil_it(path: Path, rows: Rows) -> Parsed:
    """Every foil with the caption it was made of, which has its id."""
    notes = [_checked(_Annotation, path, name, plain) for name, plain in rows]
    captions = {note.id: note.caption for note in notes if not note.foil}
    foils = [note for note in notes if note.foil]
    entries = tuple(
        FoilEntry(
            str(note.id), note.target_word, (str(note.image_id),), (captions[note.id], note.caption)
        )
        for note in foils
        if note.id in captions
    )
    lost = len(foils) - len(entries)
    return Parsed(entries, {"whose caption is not in the file": lost} if lost else {})


def _checked(kind: type[_Entry], path: Path, name: str, plain: Any) -> _Entry:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"][:1])
        where = f"{name}.{field}" if field else name
        raise ValueError(f"{path}: {where}: {first['msg'].lower()}") from None
