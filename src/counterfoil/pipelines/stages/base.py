"""The base class of stages."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from counterfoil.core.config import Config, FromData, FromStage
from counterfoil.core.registry import name_of
from counterfoil.model import model_identity
from counterfoil.negatives.aoq_format import lists_digest

if TYPE_CHECKING:
    from counterfoil.pipelines.state import RunContext

# Kinds of stages that may stand for one another where a stage is read.
KINDS = {
    "guide": ("teach", "semantics"),
    "train": ("train", "pretrain", "select", "interpolate"),
    "write": ("write", "rewrite"),
}


def _captions_digest(folder: str) -> str:
    from counterfoil.negatives.generated import generated_digest  # few runs read written captions

    return generated_digest(Path(folder))


# Content of what a field names instead of a stage: files may be written again under one name.
CONTENTS: Mapping[str, Callable[[str], Any]] = {
    "train": model_identity,
    "mine": lambda folder: lists_digest(Path(folder)),
    "write": _captions_digest,
}
_STAGE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def is_stage_name(name: str) -> bool:
    """Return True if a stage can have this name.

    Other names, which have ``/``, ``.`` or ``:``, are model folders or names that `load_model`
    opens; a folder beside the caller is ``./folder``.
    """
    return _STAGE_NAME.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class Stage(ABC):
    """One step of a recipe: its settings, what it checks before a run, and what it does.

    A stage names the stages whose results it reads: by their names, in the fields of `takes`, and
    inside of recorded calls by `counterfoil.core.config.from_stage`.

    Attributes:
        name: of the stage and of its folder.
        kind: of the stage; `KINDS` has those that may stand for one another.
        version: raised when the same settings come to another result, so that older folders count
            as those of another stage.
        takes: fields that hold names of stages, each with their kind.
        elsewhere: those of them that may name a model or a folder that no stage writes.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    takes: ClassVar[Mapping[str, str]] = {}
    elsewhere: ClassVar[frozenset[str]] = frozenset()
    name: str

    @property
    def dependencies(self) -> tuple[tuple[str, str | None], ...]:
        """Names of the stages whose results this one reads, each with the kind it must have."""
        named = (
            (name, kind)
            for field, kind in self.takes.items()
            for name in _names(getattr(self, field))
            if field not in self.elsewhere or is_stage_name(name)
        )
        members = _members(self).items()
        leaves = chain.from_iterable(
            _leaves(value, self.takes.get(name)) for name, value in members
        )
        inside = ((leaf.name, kind) for leaf, kind in leaves if isinstance(leaf, FromStage))
        return (*named, *inside)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the stages whose results this one reads."""
        return tuple(name for name, _ in self.dependencies)

    @property
    def outside_models(self) -> tuple[str, ...]:
        """Models that it reads and that no stage writes, as `load_model` opens them."""
        named = chain.from_iterable(
            _names(getattr(self, field)) for field in self.elsewhere if self.takes[field] == "train"
        )
        own = (name for name in named if not is_stage_name(name))
        leaves = _leaves(list(_members(self).values()))
        inside = (leaf for leaf, kind in leaves if isinstance(leaf, str) and kind == "train")
        return (*own, *inside)

    @property
    def lacks_inputs(self) -> bool:
        """True if the stage reads results of others and names none."""
        return False

    @property
    def training_seed(self) -> int | None:
        """Seed of a stage that trains a model, None for others."""
        return None

    def digest_content(self) -> dict[str, Any]:
        """Content of the digest that replaces or joins the stage's fields."""
        return {}

    def with_source_of(self, key: str) -> Stage:
        """The stage with the source of negatives that a setting's key names and it lacks."""
        return self

    def shortened(self, steps: int) -> Stage:
        """The stage with so many steps of work at most, to try whether it runs at all."""
        return self

    def planned(self, context: RunContext) -> Any:
        """What stands for its result before a run, while a stage that reads it is checked."""
        return self

    def result(self, context: RunContext, scale: float) -> Any:
        """Its result for a training whose scores have this `RetrievalModel.loss_scale`."""
        return str(context.place(self.name))

    def check(self, context: RunContext) -> None:  # noqa: B027 - most stages check nothing
        """Refuse settings and data that would fail only after hours."""

    @abstractmethod
    def run(self, context: RunContext, *, resume: bool) -> None:
        """Do the work and write the results into the stage's folder."""


@dataclass(frozen=True, kw_only=True)
class CaptionStage(Stage):
    """A stage that writes a folder of changed captions."""

    @property
    @abstractmethod
    def source_split(self) -> str:
        """The split whose captions are changed."""


def models_content(models: Sequence[str]) -> dict[str, Any]:
    """Digest content of saved or pretrained models: their weights, not their paths."""
    return {"models": [model_identity(model) for model in models]} if models else {}


def recipe_to_dict(value: Any) -> Any:
    """JSON-ready form of a stage or anything inside one."""
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, FromStage):
        return {"from_stage": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: recipe_to_dict(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [recipe_to_dict(inner) for inner in value]
    if isinstance(value, dict):
        return {key: recipe_to_dict(inner) for key, inner in value.items()}
    return value


def resolved(stage: Stage, known: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the result of a stage depends on but the data, JSON-ready.

    Defaults of recorded calls are spelt out. In place of another stage stands its digest, by name
    in `known`, and in place of a model or a folder from elsewhere its content.
    """
    return {
        "kind": stage.kind,
        "version": stage.version,
        **_resolved_fields(stage, known),
        **stage.digest_content(),
    }


def _resolved_fields(holder: Any, known: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a dataclass, or arguments of a recorded call."""
    takes, stages = _kinds_taken(holder), known if isinstance(holder, Stage) else {}
    return {
        name: _resolved(_identity(value, takes[name], stages) if name in takes else value, known)
        for name, value in _members(holder).items()
    }


def _resolved(value: Any, known: Mapping[str, str]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case FromStage():
            return known[value.name]
        case FromData():
            return {"late": value.name}
        case Config():
            return {"call": name_of(value.make), **_resolved_fields(value, known)}
        case Mapping():
            return {str(key): _resolved(inner, known) for key, inner in value.items()}
        case tuple() | list():
            return [_resolved(inner, known) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__qualname__, **_resolved_fields(value, known)}
    return getattr(value, "__qualname__", type(value).__qualname__)  # a default of a call


def _identity(named: Any, kind: str, stages: Mapping[str, str]) -> Any:
    """Digest of the stages that a field names, and of the contents of what is from elsewhere."""
    match named:
        case tuple() | list():
            return [_identity(inner, kind, stages) for inner in named]
        case str() if named in stages:
            return stages[named]
        case str() if kind in CONTENTS:
            return CONTENTS[kind](named)
    return named


def _members(holder: Any) -> dict[str, Any]:
    """Fields of a dataclass by name, or arguments of a recorded call, those by default too."""
    if isinstance(holder, Config):
        parameters = inspect.signature(holder.make).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return defaults | dict(holder.arguments)
    return {member.name: getattr(holder, member.name) for member in fields(holder)}


def _kinds_taken(holder: Any) -> Mapping[str, str]:
    """What fields of a stage, or arguments of a source of negatives, name."""
    taken: Mapping[str, str] = getattr(
        holder.make if isinstance(holder, Config) else holder, "takes", {}
    )
    return taken


def _names(value: str | Sequence[object] | None) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value or ()
    return tuple(name for name in names if isinstance(name, str))


def _leaves(value: Any, kind: str | None = None) -> Iterator[tuple[Any, str | None]]:
    """Values inside a value that hold no others, each with the kind of stage that it may name."""
    match value:
        case Config():
            takes = _kinds_taken(value)
            for name, inner in value.arguments.items():
                yield from _leaves(inner, takes.get(name))
        case Mapping():
            for inner in value.values():
                yield from _leaves(inner, kind)
        case tuple() | list():
            for inner in value:
                yield from _leaves(inner, kind)
        case _:
            yield value, kind
