"""A finished model in a folder: weights, how to build it, what it sees, and where it came from.

``model.safetensors`` holds the weights, ``model.json`` the written call that builds the model with
its provenance and figures, ``lens.json`` and the tokenizer's files what it sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from counterfoil import __version__
from counterfoil.corpus.lens import Lens
from counterfoil.files import read_json, replacing_folder, write_json
from counterfoil.matcher import Matcher
from counterfoil.spec import Spec, digest, from_plain
from counterfoil.train.tensors import read_tensors, write_tensors

WEIGHTS, CARD = "model.safetensors", "model.json"
_KIND = "counterfoil model"
FORMAT = 2  # of model.json; format 1, of version 0.1, named classes by their modules
_READ = (1, FORMAT)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known about a finished model.

    Attributes:
        model: the written call that builds it.
        provenance: JSON-ready facts: the recipe, the data, the seed, the machine.
        metrics: figures by name.
        version: of counterfoil when it was saved.
        tokenizer: digest of the tokenizer; None where there is none, or it was not noted.
    """

    model: Spec[Matcher]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: str = ""
    tokenizer: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Saved:
    """An opened model folder.

    Attributes:
        matcher: the model, in evaluation mode.
        lens: what it sees.
        card: what is known about it.
    """

    matcher: Matcher
    lens: Lens
    card: Card


def save_model(
    folder: Path,
    *,
    spec: Spec[Matcher],
    matcher: Matcher,
    lens: Lens,
    provenance: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write a model folder, whole or not at all; one that stands there is replaced.

    Args:
        folder: where.
        spec: the call that builds the model, without late values.
        matcher: the model.
        lens: what it sees.
        provenance: JSON-ready facts about where it came from.
        metrics: figures by name.
    """
    card = {
        "kind": _KIND,
        "format": FORMAT,
        "version": __version__,
        "model": spec.plain(),
        "provenance": dict(provenance or {}),
        "metrics": dict(metrics or {}),
        "tokenizer": lens.tokenizer.digest if lens.tokenizer else None,
    }
    with replacing_folder(folder) as temporary:
        write_tensors(temporary / WEIGHTS, matcher.state_dict(), {"model": spec.digest()})
        write_json(temporary / CARD, card)
        lens.save(temporary)


def load_model(
    folder: Path, *, device: torch.device | str = "cpu", allow: tuple[str, ...] = ("counterfoil",)
) -> Saved:
    """Open a model folder; nothing in it is executed but the constructors of modules.

    Args:
        folder: what `save_model` wrote.
        device: where the model is to be.
        allow: packages whose modules the folder may name.

    Raises:
        ValueError: it is no model folder, is damaged, or comes from another version.
    """
    plain = _read_plain(folder)
    card = _card(plain, folder, allow)
    weights, about = read_tensors(folder / WEIGHTS, "the weights of a model")
    if about.get("model") != digest(plain["model"]):  # as written: 0.1 had other names
        raise ValueError(f"{folder / WEIGHTS} and {folder / CARD} belong to different models")
    matcher = _built(card.model, folder / CARD)
    try:
        matcher.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{folder / WEIGHTS} does not fit the model of {folder / CARD} in this version of "
            f"counterfoil (saved with {card.version}): {first}"
        ) from error
    lens = Lens.open(folder)
    found = lens.tokenizer.digest if lens.tokenizer else None
    if card.tokenizer not in (None, found):
        raise ValueError(f"the tokenizer in {folder} is another one than the model was saved with")
    return Saved(matcher.to(device).eval(), lens, card)


def read_card(folder: Path, *, allow: tuple[str, ...] = ("counterfoil",)) -> Card:
    """What is known about the model in a folder.

    Raises:
        ValueError: it is no model folder, or comes from another version.
    """
    return _card(_read_plain(folder), folder, allow)


def _read_plain(folder: Path) -> dict[str, Any]:
    plain = read_json(folder / CARD, "the card of a model")
    if not isinstance(plain, dict) or plain.get("kind") != _KIND:
        raise ValueError(f"{folder / CARD} is not the card of a counterfoil model")
    if plain.get("format") not in _READ:
        raise ValueError(
            f"{folder / CARD} has format {plain.get('format')}, and this version of counterfoil "
            f"reads formats {' and '.join(map(str, _READ))}; open it with the version that wrote it"
        )
    return plain


def _card(plain: Mapping[str, Any], folder: Path, allow: tuple[str, ...]) -> Card:
    spec = from_plain(plain.get("model"), allow=allow)
    _check_calls(spec, folder / CARD)
    return Card(
        model=spec,
        provenance=plain.get("provenance", {}),
        metrics=plain.get("metrics", {}),
        version=str(plain.get("version", "")),
        tokenizer=plain.get("tokenizer"),
    )


def _built(spec: Spec[Matcher], path: Path) -> Matcher:
    try:
        return spec.build()
    except TypeError as error:
        raise ValueError(f"{path} does not fit this version of counterfoil: {error}") from error


def _check_calls(spec: Spec[Any], path: Path) -> None:
    """A model folder may come from anywhere: it may build modules and do nothing else."""
    if not (isinstance(spec.make, type) and issubclass(spec.make, Matcher)):
        raise ValueError(f"{path} describes {_called(spec)}, which is no matcher")
    for inner in _inner(spec):
        if not (isinstance(inner.make, type) and issubclass(inner.make, nn.Module)):
            raise ValueError(
                f"{path} calls {_called(inner)}, which is no part of a model; the file is refused"
            )


def _called(spec: Spec[Any]) -> str:
    return str(getattr(spec.make, "__qualname__", spec.make))


def _inner(value: Any) -> Iterator[Spec[Any]]:
    match value:
        case Spec():
            yield value
            yield from _inner(value.arguments)
        case Mapping():
            for inside in value.values():
                yield from _inner(inside)
        case tuple() | list():
            for inside in value:
                yield from _inner(inside)
