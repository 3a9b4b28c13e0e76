"""A recipe: a tuple of named stages; each reads the results of earlier ones and writes its own.

A recipe is data: `counterfoil.pipelines.run` runs it. The stages are in
`counterfoil.pipelines.stages` and can be imported from here too, so that a recipe needs one import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, final

from counterfoil.core.config import digest, parse_choice
from counterfoil.data.contents import data_contents
from counterfoil.pipelines.stages.base import (
    KINDS,
    Stage,
    is_stage_name,
    recipe_to_dict,
    resolved,
)
from counterfoil.pipelines.stages.compare import Compare
from counterfoil.pipelines.stages.evaluate import Evaluate, ProtocolName, evaluation_title
from counterfoil.pipelines.stages.mine import Mine
from counterfoil.pipelines.stages.select import Select
from counterfoil.pipelines.stages.teach import CaptionSpaceStage, ComputeTargets
from counterfoil.pipelines.stages.train import Train

__all__ = [
    "CaptionSpaceStage",
    "Compare",
    "ComputeTargets",
    "Evaluate",
    "Mine",
    "ProtocolName",
    "Recipe",
    "Select",
    "Stage",
    "Train",
    "data_contents",
    "evaluation_title",
    "recipe_to_dict",
    "stage_digests",
]

S = TypeVar("S", bound=Stage)


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Stages in order.

    Attributes:
        name: as in "aoq/vsepp-flickr8k".
        stages: each reads only results of earlier ones.
        data: data set that is opened when the user names none, see
            `counterfoil.data.readers.load_dataset`.
        about: one sentence.

    Raises:
        ValueError: a stage reads a name no earlier stage writes, or of another kind, or a name is
            written twice.
    """

    name: str
    stages: tuple[Stage, ...]
    data: str = "scenes"
    about: str = ""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError(f"{self.name} has no stage; give it at least one")
        known: dict[str, str] = {}
        for stage in self.stages:
            self._check(stage, known)
            known[stage.name] = stage.kind

    def _check(self, stage: Stage, known: Mapping[str, str]) -> None:
        if not is_stage_name(stage.name):
            raise ValueError(
                f"{self.name}: {stage.name!r} cannot name a stage; letters, digits and - are needed"
            )
        if stage.name in known:
            raise ValueError(f"{self.name}: two stages are called {stage.name!r}")
        if stage.lacks_inputs:
            raise ValueError(f"{self.name}: {stage.name!r} names no stage whose results it uses")
        for name, kind in stage.dependencies:
            if name not in known:
                models = [
                    stage_name
                    for stage_name, stage_kind in known.items()
                    if stage_kind in KINDS["train"]
                ]
                raise ValueError(
                    f"{self.name}: {stage.name!r} reads {name!r}, which no earlier stage writes"
                    + (_other_models(name, models) if kind == "train" and stage.elsewhere else "")
                )
            if kind and known[name] not in KINDS.get(kind, (kind,)):
                raise ValueError(
                    f"{self.name}: {stage.name!r} needs {_with_article(kind)} stage where "
                    f"it names {name!r}, {_with_article(known[name])} stage"
                )

    def stage(self, name: str) -> Stage:
        """The stage of this name.

        Raises:
            ValueError: there is none; the nearest one is named.
        """
        stages = {stage.name: stage for stage in self.stages}
        parse_choice(stages, name, f"a stage of {self.name}")
        return stages[name]

    def with_changed(self, kind: type[S], change: Callable[[S], Stage]) -> Recipe:
        """The recipe with every stage of a kind changed."""
        stages = (change(stage) if isinstance(stage, kind) else stage for stage in self.stages)
        return replace(self, stages=tuple(stages))


def stage_digests(recipe: Recipe, data: str) -> dict[str, str]:
    """Twelve hex digits of everything each stage's result depends on.

    Args:
        recipe: the recipe.
        data: digest of the data.
    """
    known: dict[str, str] = {}
    for stage in recipe.stages:
        known[stage.name] = digest({"data": data, **resolved(stage, known)})
    return known


def _other_models(name: str, stages: list[str]) -> str:
    """The models that may be named in place of this one, as the end of a sentence."""
    earlier = (
        f"an earlier stage ({', '.join(stages)})" if stages else "no earlier stage, as none is"
    )
    return (
        f"; name {earlier}, or a model folder, as in './{name}', or a hub name, as in 'user/{name}'"
    )


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "ae" else f"a {kind}"
