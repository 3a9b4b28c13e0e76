"""Settings of a data set that are said with its name, as in ``photos.csv:caption-column=title``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterfoil.core.config import unknown_name

# keys as they are typed, and the fields of `DataSource`
KEYS = {
    "features": "features",
    "images": "images",
    "corrections": "corrections",
    "unreadable": "skip_unreadable",
    "caption-column": "caption_column",
    "image-column": "image_column",
    "half": "half",
    "weight": "weight",
}
SEVERAL = "::"  # between data sets that are one
# of the images, drawn by their ids: each half is trained on where the other is test
HALVES = {
    1: {"train": 0.45, "dev": 0.05, "test": 0.5},
    2: {"test": 0.5, "train": 0.45, "dev": 0.05},
}
UNREADABLE = {"skip": True, "stop": False}
_SETTINGS = re.compile(r"(?P<name>.+?):(?P<settings>[a-z_-]+=.*)", re.DOTALL)
_NEXT = re.compile(r",(?=[a-z_-]+=)")


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """A data set's path or name, and its settings as fields of `DataSource`.

    A path that exists is taken as it is. Rendered scenes have settings of their own, `images` and
    ``features=regions``, which stay with the name.

    Raises:
        ValueError: a setting is unknown, given twice or has a value that it may not have.
    """
    match = _SETTINGS.fullmatch(text)
    if match is None or Path(text).expanduser().exists():
        return text, {}
    name, own, settings = match["name"], [], {}
    for setting in _NEXT.split(match["settings"]):
        key, _, value = setting.partition("=")
        if name == "scenes" and _of_scenes(key, value):
            own.append(setting)
            continue
        if key not in KEYS:
            raise ValueError(f"{text}: {unknown_name(key, [*KEYS], 'a setting of a data set')}")
        if KEYS[key] in settings:
            raise ValueError(f"{text} has {key} twice; give it once")
        settings[KEYS[key]] = _value(key, value)
    return name + (f":{','.join(own)}" if own else ""), settings


def join_settings(name: str, settings: Mapping[str, Any]) -> str:
    """A data set as it is typed, from what `split_settings` makes of it.

    >>> join_settings("photos.csv", {"images": Path("pictures"), "caption_column": "title"})
    'photos.csv:images=pictures,caption-column=title'
    """
    said = []
    for key, argument in KEYS.items():
        value = settings.get(argument)
        if key == "unreadable":
            said += [f"{key}={word}" for word, skips in UNREADABLE.items() if skips and value]
        elif value is not None:
            said.append(f"{key}={value}")
    own = _SETTINGS.fullmatch(name) and not Path(name).expanduser().exists()  # those of scenes
    return name + ("," if own else ":") * bool(said) + ",".join(said)


def _of_scenes(key: str, value: str) -> bool:
    """Whether rendered scenes have such a setting of their own."""
    if key == "features":
        # the word means scenes' own, whatever lies in the folder; regions/ is a path
        return value == "regions" or not Path(value).expanduser().exists()
    return key not in KEYS or key == "images"


def _value(key: str, value: str) -> Any:
    if not value:
        raise ValueError(f"{key} of a data set has no value; write {key}=VALUE")
    if key == "unreadable":
        if value not in UNREADABLE:
            raise ValueError(unknown_name(value, [*UNREADABLE], "what to do with the unreadable"))
        return UNREADABLE[value]
    if key == "weight":
        weight = float(value) if re.fullmatch(r"\d*\.?\d+", value) else math.nan
        if not 0 < weight < math.inf:
            raise ValueError(
                f"weight={value} is no number above 0; weight=2 draws each caption twice an epoch"
            )
        return weight
    if key == "half":
        if value not in map(str, HALVES):
            raise ValueError(f"half={value} is no half of the images; give half=1 or half=2")
        return int(value)
    return value if key.endswith("column") else Path(value).expanduser()
