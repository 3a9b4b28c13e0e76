"""Saving a model so that it opens anywhere, with a card that says what it is."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from counterfoil.files import (
    check_folder,
    check_new,
    read_json,
    replacing_folder,
    write_json,
    write_text,
)
from counterfoil.models.blocks.pretrained import written_config
from counterfoil.recipes.hub import pushed
from counterfoil.recipes.sharing_card import card
from counterfoil.spec import Spec
from counterfoil.train.saved import read_card, save_model

if TYPE_CHECKING:
    from counterfoil.recipes.model import Model

EVALUATIONS, README = "evaluations.json", "README.md"
Evaluation = Mapping[str, Any]

T = TypeVar("T")


def save(model: Model, folder: Path, *, evaluations: Sequence[Path] = (), name: str = "") -> None:
    """Write a model's folder and its card, whole or not at all.

    Args:
        model: what to save.
        folder: where; must not exist yet, or be empty.
        evaluations: files that ``counterfoil evaluate --out`` wrote; those of the run that the
            model comes from are found by themselves.
        name: what others open it by, for the card; the folder where none is given.

    Raises:
        ValueError: something is there, ready-made vectors, or a file that is no evaluation.
    """
    if model.lens is None or model.spec is None:
        raise ValueError("ready-made vectors are no model; save the folder that holds them")
    if not folder.is_dir() or any(folder.iterdir()):  # which may have been made empty before
        check_new(folder)
    check_folder(folder)
    measured = [*_found(model.name), *(_read(path) for path in evaluations)]
    spec, known = portable(model.spec), model.card
    with replacing_folder(folder) as temporary:
        save_model(
            temporary,
            spec=spec,
            matcher=model.matcher,
            lens=model.lens,
            provenance=known.provenance if known else {"pretrained": _elsewhere(model.name)},
            metrics=known.metrics if known else {},
        )
        text = card(read_card(temporary), model.lens, measured, name or str(folder))
        write_text(temporary / README, text)
        if measured:
            write_json(temporary / EVALUATIONS, measured)


def push(
    model: Model, name: str, *, evaluations: Sequence[Path], private: bool, message: str
) -> str:
    """Save a model on the hub; its address.

    Raises:
        ValueError: as `save`, or the hub does not take it.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(model, folder, evaluations=evaluations, name=name)
        return pushed(folder, name, private=private, message=message)


def portable(spec: Spec[T]) -> Spec[T]:
    """The written call with the configurations of pretrained parts in it, in place of their names.

    What it builds begins from fresh weights and asks neither a folder nor the hub.

    Raises:
        ValueError: such a part is no longer there.
    """
    inner = {name: _inner(value) for name, value in spec.arguments.items()}
    known = inspect.signature(spec.make).parameters
    if "config" in known and "pretrained" in known:
        name = str(inner["name"])
        config = json.loads(inner.get("config") or written_config(name))
        config.pop("_name_or_path", None)
        written = json.dumps(config, sort_keys=True)
        inner |= {"pretrained": False, "config": written, "name": _elsewhere(name)}
    elif "pretrained" in known:
        inner["pretrained"] = False
    return Spec(spec.make, inner)


def _elsewhere(name: str) -> str:
    """A name without the folders above it, which mean nothing elsewhere."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _inner(value: Any) -> Any:
    match value:
        case Spec():
            return portable(value)
        case tuple():
            return tuple(_inner(part) for part in value)
    return value


def _found(name: str) -> list[Evaluation]:
    """What is known beside a model: saved with it, or measured by the run that trained it."""
    folder = Path(name)
    if (folder / EVALUATIONS).is_file():
        return list(read_json(folder / EVALUATIONS, "evaluations"))
    stage = folder.parent if folder.name == "model" else folder
    notes = sorted(stage.parent.glob("*.json")) if folder.is_dir() else []
    return [_read(note.with_suffix("") / "evaluation.json") for note in notes if _of(note, stage)]


def _of(note: Path, stage: Path) -> bool:
    """Whether a note in a run is of a finished evaluation of this stage alone."""
    try:
        plain = read_json(note, "a note")
    except ValueError:  # it may be anything where the folder is no run
        return False
    match plain:
        case {"kind": "evaluate", "state": "done", "stage": {"using": [only], **more}}:
            return bool(only == stage.resolve().name and not more.get("models"))
    return False


def _read(path: Path) -> Evaluation:
    plain = read_json(path, "an evaluation")
    match plain:
        case {"protocol": str(), "setting": {"dataset": str()}, "i2t": {}, "t2i": {}, "rsum": _}:
            keys = ("protocol", "setting", "i2t", "t2i", "rsum")
            return {key: plain[key] for key in keys}
    raise ValueError(
        f"{path} holds no evaluation; give a file that `counterfoil evaluate --out` wrote"
    )
