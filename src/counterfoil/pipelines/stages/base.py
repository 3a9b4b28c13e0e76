"""The base class of stages."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from counterfoil.core.config import Config
from counterfoil.model import model_identity

if TYPE_CHECKING:
    from counterfoil.pipelines.state import RunContext

# Metadata of fields that were added later: left out of digests at their default, so that runs from
# before keep theirs. `before` is what was done without the field, where the default is another.
LATER = {"later": True}


def later(*, before: object) -> dict[str, object]:
    """Metadata of a field that was added later with a new default."""
    return {"later": True, "before": before}


# Kinds of stages that may stand for one another where a stage is read.
KINDS = {
    "guide": ("teach", "semantics"),
    "train": ("train", "pretrain", "select", "interpolate"),
    "write": ("write", "rewrite"),
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

    Attributes:
        name: of the stage and of its folder.
    """

    kind: ClassVar[str]
    name: str

    @property
    def dependencies(self) -> tuple[tuple[str, str], ...]:
        """Names of the stages whose results this one reads, each with the kind it must have."""
        return ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the stages whose results this one reads."""
        return tuple(name for name, _ in self.dependencies)

    @property
    def initial_models(self) -> tuple[str, ...]:
        """Names of models in its fields that are those of stages, or of `load_model`."""
        return ()

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

    def shortened(self, steps: int) -> Stage:
        """The stage with so many steps of work at most, to try whether it runs at all."""
        return self

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


def recipe_to_dict(value: Any, *, brief: bool = False) -> Any:
    """JSON-ready form of a stage or anything inside one; `brief`, for digests, leaves out later
    fields at their defaults.
    """
    if isinstance(value, Config):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        listed = (f for f in fields(value) if not (brief and _at_later_default(value, f)))
        return {f.name: recipe_to_dict(getattr(value, f.name), brief=brief) for f in listed}
    if isinstance(value, tuple | list):
        return [recipe_to_dict(inner, brief=brief) for inner in value]
    if isinstance(value, dict):
        return {key: recipe_to_dict(inner, brief=brief) for key, inner in value.items()}
    return value


def _at_later_default(holder: Any, member: Field[Any]) -> bool:
    before = member.metadata.get("before", member.default)
    return bool(member.metadata) and bool(getattr(holder, member.name) == before)
