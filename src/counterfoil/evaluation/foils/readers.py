"""File formats of published foil sets, and the files of their images.

sugarcrepe        {"0": {"filename", "caption", "negative_caption"}}, one file a category
sugarcrepe++      [{"filename", "caption", "caption2", "negative_caption"}], two true captions
bivlc             {"image", "caption", "negative_image", "negative_caption", "type", "subtype"}
aro-relation      [{"image_path", "true_caption", "false_caption", "relation_name", "bbox_x"}]
aro-attribution   the same with "attributes": [first, second]
order             [{"image", "caption_options": [true, foil, …]}]
valse             {id: {"image_file", "caption", "foil", "mturk": {"caption", …}}}, one a piece
vsr               one {"image", "caption", "label": 0 or 1, "relation"} a line
colorswap         [{"id", "image_1", "caption_1", "image_2", "caption_2", "caption_source"}]
cola              [[image, caption, image, caption]], the pairs of several objects
negbench          {"image_path", "caption_0" … "caption_3", "correct_answer" (which of them),
                  "correct_answer_template"} in a table
crepe             {"image_id", "caption", "x", "y", "width", "height", "hard_negs"} in a table, or
                  "valid_hard_negs_atom" and "valid_hard_negs_comp"
vl-checklist      [[image, {"POS": [caption], "NEG": [foil]}]], one file a kind
winoground        one {"id", "image_0", "image_1", "caption_0", "caption_1", "collapsed_tag"} a
                  line
pairs             anything with an image, a caption and its foils: NegCLIP's table ("filepath",
                  "title", "neg_caption"), stored generated negatives ("image", "caption", "foil")

Sets are told apart by what their entries hold, never by the names of files, which SugarCrepe and
SugarCrepe++ share. A file whose entries hold more captions or pictures than its form reads is
refused.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, TypeVar, final

from PIL import Image
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from counterfoil.data.files import find_pictures, list_files
from counterfoil.data.images import (
    DrawnPictures,
    PictureFiles,
    Pictures,
    is_picture_name,
    open_picture,
)
from counterfoil.evaluation.foils.files import TRUE_CAPTIONS, Rows

FoilFormat: TypeAlias = Literal[
    "sugarcrepe",
    "sugarcrepe++",
    "bivlc",
    "colorswap",
    "cola",
    "negbench",
    "crepe",
    "vl-checklist",
    "aro-relation",
    "aro-attribution",
    "order",
    "valse",
    "vsr",
    "winoground",
    "pairs",
    "scenes",
]
Box: TypeAlias = tuple[int, int, int, int]

SUGARCREPE = (
    "replace_obj",
    "replace_att",
    "replace_rel",
    "swap_obj",
    "swap_att",
    "add_obj",
    "add_att",
)
VALSE_ANNOTATORS = 2  # of three, who must agree that only the caption is true


@final
@dataclass(frozen=True, slots=True)
class FoilEntry:
    """One entry of a file: an item of the set."""

    id: str  # its name in the set
    category: str  # the kind of change, or another subset
    images: tuple[str, ...]  # name of its image, or of two
    # the true ones first, then their foils; of two images, one of each
    captions: tuple[str, ...]
    true: bool = True  # whether a single caption is true
    positives: int = 1  # number of true captions of one image
    box: Box | None = None  # left, top, width and height of the part of the image that is shown


# --- formats ---------------------------------------------------------------------------------

_IMAGE = AliasChoices(
    "image", "image_path", "image_file", "filename", "file_name", "filepath", "image_id"
)
_TRUE = AliasChoices(*sorted(TRUE_CAPTIONS))  # "caption" first
_FOILS = AliasChoices("foils", "foil", "negative_caption", "false_caption", "neg_caption")


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore")


@final
class _ChoiceRow(_Row):
    image: str | int = Field(validation_alias=_IMAGE)
    caption: str | list[str] = Field(validation_alias=_TRUE)
    foils: str | list[str] = Field(validation_alias=_FOILS)
    category: str = Field("", validation_alias=AliasChoices("category", "kind", "relation_name"))
    attributes: list[str] = Field(default_factory=list)
    mturk: dict[str, int] | None = None
    bbox_x: FiniteFloat = 0
    bbox_y: FiniteFloat = 0
    bbox_w: FiniteFloat = 0
    bbox_h: FiniteFloat = 0


@final
class _TwoTrueRow(_Row):
    image: str | int = Field(validation_alias=_IMAGE)
    caption: str = Field(validation_alias=_TRUE)
    caption2: str
    foil: str = Field(validation_alias=_FOILS)
    category: str = ""


@final
class _BothWaysRow(_Row):
    image: str | int = Field(validation_alias=_IMAGE)
    caption: str = Field(validation_alias=_TRUE)
    image_of_foil: str | int = Field(validation_alias=AliasChoices("negative_image"))
    foil: str = Field(validation_alias=_FOILS)
    category: str = Field("", validation_alias=AliasChoices("category", "type"))
    subtype: str = ""


@final
class _OrderRow(_Row):
    image: str | int = Field(validation_alias=_IMAGE)
    caption_options: list[str] = Field(min_length=2)


@final
class _JudgedRow(_Row):
    image: str | int = Field(validation_alias=_IMAGE)
    caption: str
    label: Literal[0, 1]
    relation: str = ""


@final
class _WinogroundRow(_Row):
    id: str | int = ""
    image_0: str = Field(validation_alias=AliasChoices("image_0", "image0"))
    image_1: str = Field(validation_alias=AliasChoices("image_1", "image1"))
    caption_0: str = Field(validation_alias=AliasChoices("caption_0", "caption0"))
    caption_1: str = Field(validation_alias=AliasChoices("caption_1", "caption1"))
    collapsed_tag: str = ""


@final
class _FromOneRow(_Row):
    """Two pictures and two captions, counted from 1."""

    id: str | int = ""
    image_1: str = Field(validation_alias=AliasChoices("image_1", "image1"))
    image_2: str = Field(validation_alias=AliasChoices("image_2", "image2"))
    caption_1: str = Field(validation_alias=AliasChoices("caption_1", "caption1"))
    caption_2: str = Field(validation_alias=AliasChoices("caption_2", "caption2"))


_R = TypeVar("_R", bound=_Row)


def detect_format(path: Path, rows: Rows) -> FoilFormat:
    """The format of a file, by the fields of its first entry.

    Raises:
        ValueError: it has none of the known formats.
    """
    first = rows[0][1] if rows else None
    if isinstance(first, list):
        return _format_of_lists(path, first)
    if not isinstance(first, dict):
        raise ValueError(f"{path} holds no entry with an image and captions")
    keys = first.keys()
    paired = bool(keys & set(_FOILS.choices) and keys & set(_TRUE.choices))
    fits: tuple[tuple[FoilFormat, bool], ...] = (
        ("winoground", keys >= {"image_0", "caption_0"} or keys >= {"image0", "caption0"}),
        ("colorswap", keys >= {"image_1", "caption_1"} or keys >= {"image1", "caption1"}),
        ("negbench", keys >= {"caption_0", "caption_1", "correct_answer"}),
        ("crepe", keys >= _BOX and bool(keys & _HARD.keys())),
        ("order", "caption_options" in keys),
        ("vsr", keys >= {"caption", "label"}),
        ("aro-relation", keys >= {"true_caption", "relation_name"}),
        ("aro-attribution", keys >= {"true_caption", "attributes"}),
        ("valse", "mturk" in keys),
        ("bivlc", paired and "negative_image" in keys),
        ("sugarcrepe++", paired and "caption2" in keys),
        ("sugarcrepe", _is_sugarcrepe(path, rows)),
        ("pairs", paired),
    )
    for form, fit in fits:
        if fit:
            return form
    raise ValueError(
        f"{path} is in no form of foils that is known: its first entry has the fields "
        f"{', '.join(map(str, keys))}; an image, a caption and its foils are needed, as in "
        '{"image", "caption", "foil"}'
    )


def _format_of_lists(path: Path, first: list[Any]) -> FoilFormat:
    """The format of a file whose entries are lists."""
    match first:
        case [str(), str(), str(), str()]:
            return "cola"
        case [str(), {"POS": list(), "NEG": list()}]:
            return "vl-checklist"
    if len(first) > 4 and all(isinstance(label, str) for label in first):
        raise ValueError(
            f"{path} begins with labels, as the files of single objects of COLA do, whose mean "
            "average precision is not measured; its pairs of several objects are"
        )
    raise ValueError(f"{path} holds no entry with an image and captions")


_BOX = frozenset({"x", "y", "width", "height"})  # of CREPE
_HARD = {"hard_negs": "", "valid_hard_negs_atom": "atom ", "valid_hard_negs_comp": "comp "}


def canonical_rows(form: FoilFormat, path: Path, rows: Rows) -> Rows:
    """Entries of sets with fields of their own, by the fields that other sets have.

    Raises:
        ValueError: an entry is not of this format.
    """
    change = _CHANGES.get(form)
    if change is None:
        return rows
    changed: list[tuple[str, Any]] = []
    for name, plain in rows:
        try:
            changed += ((name, entry) for entry in change(path, plain))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: {name} is no entry of {form}") from None
    return changed


def _of_cola(path: Path, plain: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(plain, list):
        raise TypeError
    image, caption, other, foil = plain
    names = (str(link).rpartition("/")[2] if "://" in link else link for link in (image, other))
    yield dict(zip(("image_1", "image_2"), names)) | {"caption_1": caption, "caption_2": foil}


def _of_negbench(path: Path, plain: Any) -> Iterator[dict[str, Any]]:
    names = [name for name in plain if re.fullmatch(r"caption_\d+", name)]
    captions = {float(name.removeprefix("caption_")): plain[name] for name in names}
    # pandas writes 2.0 where a column has gaps
    caption = captions.pop(float(plain["correct_answer"]))
    foils = [foil for foil in captions.values() if foil]
    images = {str(key): plain[key] for key in _IMAGE.choices if key in plain}
    kind = plain.get("correct_answer_template") or ""
    yield {**images, "caption": caption, "foils": foils, "category": kind}


def _of_crepe(path: Path, plain: Any) -> Iterator[dict[str, Any]]:
    box = {f"bbox_{side[0]}": float(plain[side]) for side in _BOX}
    rest = path.stem.rpartition("vg_hard_negs_")[2]
    for column, kind in _HARD.items():
        if column in plain:
            entry = {"image": plain["image_id"], "caption": plain["caption"], **box}
            yield {**entry, "foils": plain[column], "category": f"{kind}{rest}"}


def _of_checklist(path: Path, plain: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(plain, list):
        raise TypeError
    image, texts = plain
    true, foils = texts["POS"], texts["NEG"]
    if isinstance(true, str) or isinstance(foils, str):  # whose first is a letter
        raise TypeError
    entry = {"image": image, "caption": true[0], "foils": foils[:1]}
    # the authors' code reads the first of each
    more = {_FURTHER: [*true[1:], *foils[1:]]} if len(true) + len(foils) > 2 else {}
    yield entry | more | {"category": f"{path.parent.name}/{path.stem}"}


_CHANGES: Mapping[FoilFormat, Callable[[Path, Any], Iterator[dict[str, Any]]]] = {
    "cola": _of_cola,
    "negbench": _of_negbench,
    "crepe": _of_crepe,
    "vl-checklist": _of_checklist,
}
_COCO = re.compile(r"(COCO_[a-z]+\d+_)?\d{12}\.jpg")  # a picture of COCO


def _is_sugarcrepe(path: Path, rows: Rows) -> bool:
    """Whether entries have the fields of SugarCrepe, on COCO; a file's name is its category."""
    fields = {"filename", "caption", "negative_caption"}
    plain = [entry for _, entry in rows if isinstance(entry, dict) and entry.keys() >= fields]
    return len(plain) == len(rows) and _of_coco(rows) and sugarcrepe_category(path) != ""


def _of_coco(rows: Rows) -> bool:
    return all(_COCO.fullmatch(str(plain.get("filename"))) is not None for _, plain in rows)


_ROWS: Mapping[FoilFormat, type[_Row]] = {
    "winoground": _WinogroundRow,
    "colorswap": _FromOneRow,
    "cola": _FromOneRow,
    "bivlc": _BothWaysRow,
    "sugarcrepe++": _TwoTrueRow,
    "vsr": _JudgedRow,
    "order": _OrderRow,
}
_PUBLISHED: Mapping[FoilFormat, frozenset[str]] = {
    "winoground": frozenset({"tag", "collapsed_tag"}),
    "bivlc": frozenset({"subtype"}),
    "colorswap": frozenset({"caption_source"}),
    "negbench": frozenset({"correct_answer_template"}),
    "vsr": frozenset({"relation"}),
}
_FURTHER = "further POS and NEG"  # of VL-CheckList
# NegCLIP's rows of other pictures of its table, and what the authors' code leaves out too
_UNUSED = frozenset({"neg_image", _FURTHER})
_NAMES_CAPTION = re.compile(
    r"(?<![a-z])(caption|text|sentence|title|foil|neg|pos|distractor|paraphrase|option|hypothes)"
)
_NAMES_PICTURE = re.compile(r"(?<![a-z])(image|img|picture|photo|file)")
_ABOUT_PICTURE = re.compile(r"id|url|link|source|width|height|size|licen|credit|split|tag|type|cat")


def is_published(form: FoilFormat, rows: Rows) -> bool:
    """Return True for a published set, not pairs or any other file of the same fields."""
    if form in ("sugarcrepe", "sugarcrepe++"):
        return _of_coco(rows)
    if form == "cola":  # on pictures of Visual Genome, which have numbers
        return all(_is_number(plain[0]) and _is_number(plain[2]) for _, plain in rows)
    own = _PUBLISHED.get(form)
    return form != "pairs" and (own is None or any(own & plain.keys() for _, plain in rows))


def unread_fields(form: FoilFormat, rows: Rows) -> Counter[str]:
    """Fields with captions or pictures that a form does not read, and in how many entries."""
    return Counter(
        name for _, plain in rows if isinstance(plain, dict) for name in _unread(form, plain)
    )


def check_fields(path: Path, form: FoilFormat, rows: Rows) -> None:
    """Refuse entries with more captions or pictures than their form reads.

    Raises:
        ValueError: they are of another set.
    """
    if more := [name for name in unread_fields(form, rows) if name not in _UNUSED]:
        raise ValueError(
            f"{path} is of a set that cannot be measured yet: {form} does not read its "
            f"{' and '.join(more)}; a second true caption is called caption2 and a picture of the "
            f"foil negative_image; to measure each caption against its foils alone, name it as "
            f"pairs:{path}"
        )


def _unread(form: FoilFormat, plain: Mapping[str, Any]) -> Iterator[str]:
    read, pictures = set[str](), set[str]()
    for name, field in _ROWS.get(form, _ChoiceRow).model_fields.items():
        alias = field.validation_alias
        choices = [str(c) for c in alias.choices] if isinstance(alias, AliasChoices) else [name]
        there = [choice for choice in choices if choice in plain]
        # other names of the picture say the same again
        read.update(there if name == "image" else there[:1])
        if name.startswith("image"):
            pictures.update(_stem(str(plain[choice])) for choice in there)
    words = {word for name in read for text in _texts(plain[name]) for word in _words(text)}
    ours = {"text"} if "changed" in plain else set()  # the id of a caption, in our own files
    if isinstance(plain.get("caption"), list) and len(plain["caption"]) > 1:
        yield "captions after the first"
    for name in plain.keys() - read - ours:
        if _is_picture(name, plain[name], pictures) or any(
            _is_caption(name, _words(text), words) for text in _texts(plain[name])
        ):
            yield name


def _is_picture(name: str, value: Any, own: set[str]) -> bool:
    if isinstance(value, str) and _stem(value) in own:
        return False
    named = _NAMES_PICTURE.search(name.lower()) and not _ABOUT_PICTURE.search(name.lower())
    picture = isinstance(value, str) and is_picture_name(Path(value)) and "://" not in value
    return bool(named) or picture


def _is_caption(name: str, words: list[str], own: set[str]) -> bool:
    """Return True for words of a field so named, or most of which the other captions have."""
    alike = 2 * len(own.intersection(words)) >= len(words)
    return len(words) >= 3 and (alike or _NAMES_CAPTION.search(name.lower()) is not None)


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def sugarcrepe_category(path: Path) -> str:
    """The category of a file of SugarCrepe; empty for any other file.

    >>> sugarcrepe_category(Path("data/swap_att.json"))
    'swap_att'
    """
    return next((name for name in SUGARCREPE if path.stem.endswith(name)), "")


def parse_entries(form: FoilFormat, path: Path, rows: Rows) -> tuple[list[FoilEntry], Counter[str]]:
    """The entries of a file, and the number of those left out, by reason.

    Raises:
        ValueError: an entry is not of this format.
    """
    entries, left_out = list[FoilEntry](), Counter[str]()
    for number, (name, plain) in enumerate(rows):
        entry = _entry(form, path, name, plain, str(number))
        if isinstance(entry, FoilEntry):
            entries.append(entry)
        else:
            left_out[entry] += 1
    return entries, left_out


def _entry(form: FoilFormat, path: Path, name: str, plain: Any, number: str) -> FoilEntry | str:
    """An entry, or the reason why it is left out."""
    key = str(plain.get("key", number)) if isinstance(plain, dict) else number
    if form == "winoground":
        pair = _validated(_WinogroundRow, path, name, plain)
        images, captions = (pair.image_0, pair.image_1), (pair.caption_0, pair.caption_1)
        return FoilEntry(str(pair.id or key), pair.collapsed_tag, images, captions)
    if form in ("colorswap", "cola"):
        from_one = _validated(_FromOneRow, path, name, plain)
        images = (from_one.image_1, from_one.image_2)
        captions = (from_one.caption_1, from_one.caption_2)
        return FoilEntry(str(from_one.id) or key, "", images, captions)
    if form == "vsr":
        row = _validated(_JudgedRow, path, name, plain)
        return FoilEntry(key, row.relation, (str(row.image),), (row.caption,), bool(row.label))
    if form == "bivlc":
        both = _validated(_BothWaysRow, path, name, plain)
        images = (str(both.image), str(both.image_of_foil))
        kind = "_".join(filter(None, (both.category, both.subtype)))
        return FoilEntry(key, kind, images, (both.caption, both.foil))
    if form == "sugarcrepe++":
        two = _validated(_TwoTrueRow, path, name, plain)
        kind = two.category or sugarcrepe_category(path)
        three = (two.caption, two.caption2, two.foil)
        return FoilEntry(key, kind, (str(two.image),), three, positives=2)
    if form == "order":
        options = _validated(_OrderRow, path, name, plain)
        return FoilEntry(key, "", (str(options.image),), tuple(options.caption_options))
    return _choice_entry(form, path, _validated(_ChoiceRow, path, name, plain), key)


def _choice_entry(form: FoilFormat, path: Path, row: _ChoiceRow, key: str) -> FoilEntry | str:
    captions = [row.caption] if isinstance(row.caption, str) else row.caption[:1]
    foils = [row.foils] if isinstance(row.foils, str) else row.foils
    if not foils or not captions:
        return "without a foil"
    category, box = row.category, None
    if form == "sugarcrepe":
        category = sugarcrepe_category(path)
    if form == "valse":
        category = path.stem.rpartition("valse_")[2]
        if row.mturk is not None and row.mturk.get("caption", 0) < VALSE_ANNOTATORS:
            return f"on whose caption fewer than {VALSE_ANNOTATORS} annotators agreed"
    if form == "aro-attribution":
        category = "_".join(row.attributes)
    if (form.startswith("aro-") or form == "crepe") and row.bbox_w > 0 and row.bbox_h > 0:
        box = (int(row.bbox_x), int(row.bbox_y), int(row.bbox_w), int(row.bbox_h))
    return FoilEntry(key, category, (str(row.image),), (*captions, *foils), box=box)


def _validated(kind: type[_R], path: Path, name: str, plain: Any) -> _R:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"][:1])
        where = f"{name}.{field}" if field else name
        raise ValueError(f"{path}: {where}: {first['msg'].lower()}") from None


# --- images ----------------------------------------------------------------------------------


def locate_images(shots: Sequence[tuple[str, Box | None]], folder: Path, of: str) -> Pictures:
    """Find images by name, as paths below a folder, or anywhere in it.

    Names are compared as `find_pictures` does; then without the ending; then by the number at their
    end, as COCO's file names have one, where either name is that number alone.

    Args:
        shots: names, with the part of the image that is shown.
        folder: folder of the images.
        of: the set, for messages.

    Raises:
        ValueError: images are missing.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; the pictures of {of} are needed there")
    paths = _image_paths([name for name, _ in shots], folder, of)
    if not any(box for _, box in shots):
        return PictureFiles(paths)
    parts = [(path, box) for path, (_, box) in zip(paths, shots)]
    return DrawnPictures(partial(_crop, parts), range(len(parts)), _crops_digest(parts))


def _image_paths(names: Sequence[str], folder: Path, of: str) -> list[Path]:
    listing, paths = list_files(folder), dict[str, Path]()
    missing = list(dict.fromkeys(names))
    for spelling in (str, _without_ending):
        found = find_pictures([spelling(name) for name in missing], listing, where=of)
        paths |= {name: path for name, path in zip(missing, found) if path.is_file()}
        missing = [name for name in missing if name not in paths]
    if missing:
        by_number: dict[str, list[Path]] = {}
        for file in listing.pictures:
            by_number.setdefault(_trailing_number(file.name), []).append(file)
        by_number.pop("", None)
        matches = {
            name: _match(name, by_number.get(_trailing_number(name), ())) for name in missing
        }
        paths |= {name: path for name, path in matches.items() if path is not None}
        missing = [name for name in missing if name not in paths]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(set(names))} pictures of {of} are not in {folder}, such as "
            f"{missing[0]!r}; give the folder of all of them"
        )
    return [paths[name] for name in names]


def _match(name: str, files: Sequence[Path]) -> Path | None:
    """The first file of the same name; or any, if one of the two names is a number alone."""
    fits = (f for f in files if _stem(name) == f.stem or _is_number(name) or _is_number(f.name))
    return next(fits, None)


def _is_number(name: str) -> bool:
    """Return True if a name is a number alone, or a number after COCO's prefix."""
    return re.fullmatch(r"(COCO_[a-z]+\d+_)?\d+", _stem(name)) is not None


def _without_ending(name: str) -> str:
    path = Path(name)
    return str(path.with_suffix("")) if is_picture_name(path) else name


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _trailing_number(name: str) -> str:
    digits = re.search(r"\d+$", _stem(name))
    return str(int(digits[0])) if digits else ""


def _crop(parts: Sequence[tuple[Path, Box | None]], row: int) -> Image.Image:
    path, box = parts[row]
    image = open_picture(path)
    if box is None:
        return image
    left, top, width, height = box
    return image.crop((left, top, left + width, top + height))


def _crops_digest(parts: Sequence[tuple[Path, Box | None]]) -> str:
    """Digest of files and boxes; it changes when a file does."""
    digest = hashlib.sha256()
    for path, box in parts:
        status = path.stat()
        digest.update(f"{path} {box} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"parts-{digest.hexdigest()[:16]}"
