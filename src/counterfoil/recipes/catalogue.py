"""Recipes by name, and recipes from a user's own file."""

from __future__ import annotations

import difflib
import runpy
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from rich.table import Column, Table

from counterfoil.core.config import Config
from counterfoil.core.console import console, output
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.pipelines.pipeline import Generate, Mine, Pretrain, Recipe, Train
from counterfoil.recipes import aoq, clip, models, ndgl, ndgl_models, photos, tags, vsec
from counterfoil.recipes.models import DATASETS, LARGE, NAMES
from counterfoil.training.config import TrainConfig

SMOKE_STEPS = 20
SMOKE_WARMUP = 5
SMOKE_FOILS = 2

T = TypeVar("T")
Recipes = dict[str, Callable[[], Recipe]]  # how each recipe is made, by name


def all_recipes() -> tuple[Recipe, ...]:
    """Every built-in recipe but single ablations, comparisons, and UNITER-large's."""
    return tuple(make() for make in _recipes(_listed_families()).values())


def recipe_names() -> tuple[str, ...]:
    """Every name that `find_recipe` knows."""
    return tuple(_known())


def find_recipe(name: str) -> Recipe:
    """The recipe of this name, or the one that a Python file calls ``recipe``.

    Raises:
        ValueError: there is none; the message has the nearest name.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    known = _known()
    if name not in known:
        pretrained = " --model MODEL" if name in clip.NAMES else ""
        if pretrained or any(name in photos.known_models(like) for like in photos.SETS):
            raise ValueError(
                f"{name!r} is not a recipe but a training, whose stages depend on the data; "
                f"`counterfoil train {name}{pretrained} --data DATA --plan` shows them"
            )
        near = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"{name!r} is not a recipe; {hint}`counterfoil plan` lists them, and a file ends in .py"
        )
    return known[name]()


@cache
def _known() -> Recipes:
    return _recipes([*_listed_families(), *_other_families()])


class _Family(NamedTuple):
    """Recipes of some models on their data sets; {} of the pattern is model and data set."""

    pattern: str
    make: Callable[[str, str], Recipe]
    names: Sequence[str]


def _datasets(name: str) -> tuple[str, ...]:
    """The data sets that a model has recipes for."""
    if name in photos.NAMES:
        return photos.SETS
    if name == photos.PATCH_NAME:
        return photos.PATCH_SETS
    preset = ndgl_models.PRESETS.get(name) or tags.TAGS_MODELS.get(name)
    return preset.datasets if preset else DATASETS


def _listed_families() -> list[_Family]:
    """The recipes that `print_catalogue` lists one by one."""
    # the models for which the paper mines with VSRN
    attending = [name for name in NAMES if name.startswith(("scan", "bfan"))]
    families = [
        _Family("{}", models.online_recipe, (*NAMES, *models.COMPARED)),
        _Family("aoq/{}", aoq.aoq_recipe, NAMES),
        _Family("aoq/{}-vsrn-lists", aoq.aoq_with_vsrn_lists, attending),
        _Family("aoq/ablations/{}", aoq.ablation_recipe, NAMES),
        _Family("graph/{}", aoq.graph_recipe, ("vsepp", "scan-t2i")),
        _Family("batches/{}", aoq.mined_batches_recipe, ("vsepp", "scan-t2i")),
        _Family("{}", ndgl_models.modern_recipe, (*ndgl_models.MODERN, *ndgl_models.COMPARED)),
        _Family("queue/{}", ndgl_models.queue_recipe, ("vsepp", "gpo", "gpo-bert")),
        _Family("ndgl/{}", ndgl.ndgl_recipe, tuple(ndgl_models.MODELS)),
        _Family("{}", photos.photo_recipe, photos.NAMES),
        _Family("{}", lambda _, dataset: photos.patches_recipe(dataset), (photos.PATCH_NAME,)),
        _Family("negclip/{}", clip.negclip_recipe, ("vsepp",)),
        _Family("cascade/{}", tags.cascade_recipe, ("vsepp", "gpo")),
        _Family("vse-c/{}", vsec.vsec_recipe, ("vsepp",)),
    ]
    return families + _tags_families(tags.KINDS, "uniter", "vilt")


def _other_families() -> list[_Family]:
    """The recipes that `print_catalogue` lists by their kinds."""
    families = [
        _Family(f"aoq/ablations/{loss}/{{}}", partial(aoq.ablation_variant, loss), NAMES)
        for loss in aoq.LOSSES
    ]
    for rule in RULE_KINDS:
        make_one = partial(vsec.vsec_recipe, kinds=(rule,))
        families.append(_Family(f"vse-c/{rule}/{{}}", make_one, ("vsepp",)))
    for kind, (make, names) in ndgl.VARIANTS.items():
        families.append(_Family(f"ndgl/{kind}/{{}}", make, names))
    families += _tags_families(tags.LARGE_KINDS, "uniter-large")
    families += _tags_families(tags.VARIANTS, "uniter")
    for kind, (make, names) in tags.OTHER_VARIANTS.items():
        families.append(_Family(f"{kind}/{{}}", make, names))
    return families


def _tags_families(kinds: Sequence[str], *names: str) -> list[_Family]:
    return [_Family(f"{kind}{{}}", partial(tags.tags_recipe, kind), names) for kind in kinds]


def _recipes(families: Iterable[_Family]) -> Recipes:
    return {"demo": aoq.demo_recipe} | {
        pattern.format(f"{name}-{dataset}"): partial(_as_published, make, name, dataset)
        for pattern, make, names in families
        for name in names
        for dataset in _datasets(name)
    }


def _as_published(make: Callable[[str, str], Recipe], name: str, dataset: str) -> Recipe:
    """A recipe with the negatives of the papers, to which captions that say the same are wrong."""

    def by_id(stage: Train | Mine) -> Train | Mine:
        return replace(stage, positives="id") if stage.positives == "text" else stage

    return make(name, dataset).with_changed(Train, by_id).with_changed(Mine, by_id)


def print_catalogue() -> None:
    """Print all recipes; those that differ in model and data set alone share a line."""
    rows: dict[tuple[str, str], list[str]] = {("demo", aoq.demo_recipe().about): []}
    for pattern, make, names in _listed_families():
        for name in names:
            datasets = _datasets(name)
            about = make(name, datasets[0]).about.split("; ")[-1]
            if datasets in (DATASETS, LARGE):
                data = "DATA" if datasets == DATASETS else "LARGE"
                rows.setdefault((pattern.format(f"MODEL-{data}"), about), []).append(name)
            else:
                rows |= {(pattern.format(f"{name}-{dataset}"), about): [] for dataset in datasets}
    table = Table(Column("recipe", no_wrap=True), "MODEL", "about")
    for (recipe, about), models_of in rows.items():
        table.add_row(recipe, " ".join(models_of), about)
    console().print(table)
    large = ", ".join(f"{kind}uniter-large-LARGE" for kind in tags.LARGE_KINDS)
    ways = " ".join(kind.removesuffix("/") for kind in tags.VARIANTS)
    foils = ", ".join(
        f"{kind} ({' '.join(names)})" for kind, (_, names) in tags.OTHER_VARIANTS.items()
    )
    for line in (
        f"DATA: {' '.join(DATASETS)}",
        f"LARGE: {' '.join(LARGE)}",
        "scan, bfan, vsrn, naaf and sgraf are ensembles of 2, but not in ndgl/ and tags/; others "
        "are one model",
        f"aoq/ablations/LOSS/MODEL-DATA is one ablation alone; LOSS: {' '.join(aoq.LOSSES)}",
        f"ndgl/COMPARISON/MODEL-DATA, of gpo or chan; COMPARISON: {' '.join(ndgl.VARIANTS)}",
        f"vse-c/KIND/vsepp-DATA trains on foils of one kind; KIND: {' '.join(RULE_KINDS)}",
        f"METHOD/MODEL-DATA compares ways to generate captions; METHOD: {ways}",
        f"UNITER-large, with the paper's numbers for it: {large}",
        f"METHOD/MODEL-DATA trains other models on captions of TAGS; METHOD (MODEL): {foils}",
    ):
        output(line)


def smoke_recipe(recipe: Recipe) -> Recipe:
    """The recipe with at most 20 training steps a stage, to see whether it runs at all.

    A model that generates captions tries 4 for each caption and keeps 2.

    Warm-ups are cut too, so that the loss that follows them is reached, unless it samples from
    lists that are mined only after some epochs.
    """

    def few_steps(plan: TrainConfig) -> TrainConfig:
        return replace(plan, epochs=1, steps=SMOKE_STEPS, log_every=1)

    def train(stage: Train) -> Train:
        early = stage.negatives or not stage.refresh.every
        objective = _with_short_warmups(stage.objective) if early else stage.objective
        return replace(stage, plan=few_steps(stage.plan), objective=objective)

    def generate(stage: Generate) -> Generate:
        return replace(stage, masks=SMOKE_FOILS, refills=SMOKE_FOILS, keep=SMOKE_FOILS)

    return (
        recipe.with_changed(Train, train)
        .with_changed(Pretrain, lambda stage: replace(stage, plan=few_steps(stage.plan)))
        .with_changed(Generate, generate)
    )


def _with_short_warmups(value: T) -> T:
    """An objective's configuration in which no schedule waits longer than a few steps."""
    result: Any = value
    match result:
        case Config():
            arguments = {k: _with_short_warmups(inner) for k, inner in result.arguments.items()}
            if result.make in (SwitchAfter, StartAt):
                arguments["steps"] = min(arguments["steps"], SMOKE_WARMUP)
            result = Config(result.make, arguments)
        case Mapping():
            result = {name: _with_short_warmups(inner) for name, inner in result.items()}
        case tuple():
            result = tuple(_with_short_warmups(inner) for inner in result)
    return cast("T", result)


def _from_file(path: Path) -> Recipe:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a Python file that sets `recipe` is needed there")
    try:
        recipe = runpy.run_path(str(path)).get("recipe")
    except Exception as error:  # whatever a user's own file may raise
        raise ValueError(f"{path}{_line(error, path)}: {_message(error)}") from error
    if not isinstance(recipe, Recipe):
        raise ValueError(f"{path} does not set `recipe` to a counterfoil.pipelines.pipeline.Recipe")
    return recipe


def _line(error: Exception, path: Path) -> str:
    """The last line of a user's file that an error passed through."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _message(error: Exception) -> str:
    if isinstance(error, ValueError):  # ours are sentences
        return str(error)
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
