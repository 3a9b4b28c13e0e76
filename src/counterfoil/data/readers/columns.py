"""Names that people give to the columns of images, captions, ids and splits; for every reader.

Names are compared in small letters, without blanks and signs: "File Name" is ``file_name``. Of
several columns that fit, the name that stands first in the list counts.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from counterfoil.core.config import unknown_name
from counterfoil.core.io import parse_json

# addresses stand last, so that they are refused as such where there is no file
IMAGE = (
    "image", "img", "picture", "photo", "image_file", "image_path", "image_name", "image_filename",
    "image_file_name", "img_file", "img_path", "img_name", "img_filename", "file_name", "file_path",
    "path", "file", "picture_path", "picture_name", "photo_path", "photo_name", "photo_file", "jpg",
    "image_id", "img_id", "photo_id", "image_url", "img_url", "photo_url", "url",
)  # fmt: skip
CAPTION = (
    "caption", "captions", "text", "texts", "sentence", "sentences", "title", "comment", "comments",
    "description", "descriptions", "raw", "raw_caption", "caption_text", "image_caption",
    "caption_str", "alt_text", "alt", "txt", "top_caption", "blip_caption", "prompt", "prompts",
    "query", "conversations",
)  # fmt: skip
# of these, those that errors and docs/data.md name
NAMED = {
    "image": (
        "image", "img", "picture", "photo", "file", "file_name", "file_path", "path", "image_name",
        "img_path", "image_id",
    ),
    "caption": (
        "caption", "text", "title", "sentence", "comment", "description", "alt_text", "prompt",
        "raw", "txt",
    ),
}  # fmt: skip
ID = ("image_id", "id", "img_id", "imgid", "coco_id", "photo_id")
SPLIT = ("split", "set_name", "data_split", "partition")

_NULLS = ("nan", "null", "none", "<na>", "n/a")  # as pandas and databases write them into tables


def plain_column(name: str) -> str:
    """The name of a column in small letters, without blanks and signs.

    >>> plain_column("File Name"), plain_column("caption_0"), plain_column("#")
    ('filename', 'caption0', '#')
    """
    return "".join(letter for letter in name.lower() if letter.isalnum()) or name


def find_column(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The column that a list of names knows; None if there is none.

    >>> find_column(["Title", "File Name"], IMAGE), find_column(["a"], IMAGE)
    ('File Name', None)
    """
    plain = {plain_column(name): name for name in reversed(names)}
    return next((plain[key] for key in map(plain_column, known) if key in plain), None)


def caption_columns(names: Sequence[str]) -> list[str]:
    """The columns of captions, in their order: one, or numbered ones.

    >>> caption_columns(["caption_0", "caption_1", "n"]), caption_columns(["title", "text"])
    (['caption_0', 'caption_1'], ['text'])
    """
    bases = {name: plain_column(name).rstrip("0123456789") for name in names}
    base = find_column(list(bases.values()), CAPTION)
    return [name for name in names if bases[name] == base]


def chosen_column(chosen: str, names: Sequence[str], where: str) -> str:
    """The column that the user chose.

    Raises:
        ValueError: there is none of this name; the error lists those that exist.
    """
    column = chosen if chosen in names else find_column(names, [chosen])
    if column is None:
        raise ValueError(f"{where}: {unknown_name(chosen, list(names), 'a column')}")
    return column


def image_column(
    names: Sequence[str],
    where: str,
    chosen: str | None = None,
    *,
    known: Sequence[str] = IMAGE,
) -> str:
    """Choose the column of a table that names the images.

    Raises:
        ValueError: there is none.
    """
    column = chosen_column(chosen, names, where) if chosen else find_column(names, known)
    return column or _refuse(names, where, "image", known)


def captions_column(names: Sequence[str], where: str, chosen: str | None = None) -> list[str]:
    """Choose the columns of a table that hold captions.

    Raises:
        ValueError: there is none.
    """
    columns = [chosen_column(chosen, names, where)] if chosen else caption_columns(names)
    return columns or [_refuse(names, where, "caption", CAPTION)]


def _refuse(names: Sequence[str], where: str, noun: str, known: Sequence[str]) -> str:
    *first, last = [name for name in NAMED[noun] if name in known]
    raise ValueError(
        f"{where}: there is no {noun!r} among the columns {', '.join(map(repr, names))}; "
        f"name the column with --{noun}-column, or {noun}_column in Python, or call it "
        f"{', '.join(first)} or {last}"
    )


def captions_of(value: Any, where: str, *, cell: bool = False) -> tuple[list[str], int]:
    """The captions of a value, and the number of those that are null.

    Args:
        value: a caption, or a list of captions or of objects with a caption.
        where: for errors.
        cell: of a table of text, where a list stands as JSON or as Python writes it, and null as
            no text, "nan" or "null".

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, str) and value.strip().startswith("["):
        value = _list_in_text(value)
    texts: list[str] = []
    nulls = 0
    items = value if isinstance(value, list) else [value]
    for item in items:
        text = _text_of_object(item) if isinstance(item, dict) else item
        if text is None or text != text:
            nulls += 1
        elif isinstance(text, list):
            inner, more = captions_of(text, where)
            texts, nulls = texts + inner, nulls + more
        elif not isinstance(text, str):
            raise ValueError(
                f"{where}: the caption is {value!r}; text or a list of texts is needed"
            )
        elif item is value and (not text.strip() or (cell and text.strip().lower() in _NULLS)):
            nulls += 1  # in a list, no text is a caption that somebody wrote
        else:
            texts.append(text)
    return texts, nulls


def captions_of_json(plain: Any) -> list[str]:
    """The captions of the object beside a picture; none where it has other fields only.

    >>> captions_of_json({"url": "x", "TEXT": "a dog"}), captions_of_json(["a dog"])
    (['a dog'], [])
    """
    if not isinstance(plain, dict):
        return []
    names = caption_columns([name for name, value in plain.items() if value])
    values = [plain[name] for name in names]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    return [text for text in texts if isinstance(text, str) and text.strip()]


def _list_in_text(text: str) -> Any:
    """The list of texts that a text shows; the text itself if it shows none."""
    for python in (False, True):
        try:
            value = ast.literal_eval(text.strip()) if python else parse_json(text, "it")
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list) and all(isinstance(item, str | None) for item in value):
            return value
    return text


def _text_of_object(item: dict[str, Any]) -> Any:
    """The caption of an object in a list of captions, or of a turn that a model answered."""
    if "from" in item:  # LLaVA's conversations: the question is none
        return item.get("value") if item["from"] == "gpt" else []
    name = find_column(list(item), ("raw", *CAPTION))
    return None if name is None else item[name]
