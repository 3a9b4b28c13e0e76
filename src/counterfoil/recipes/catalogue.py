"""Recipes by name, and recipes from a user's own file."""

from __future__ import annotations

import difflib
import runpy
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from rich.markup import escape
from rich.table import Column, Table

from counterfoil.core.config import Config
from counterfoil.core.console import console, output
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.pipelines.pipeline import (
    Generate,
    Pretrain,
    Recipe,
    Stage,
    Train,
)
from counterfoil.recipes import aoq, clip, models, ndgl, ndgl_models, photos, tags
from counterfoil.recipes.models import LARGE, NAMES, PAPERS, Dataset, ensemble_members
from counterfoil.recipes.ndgl_models import BASE_MODELS, base_embeddings

SMOKE_STEPS = 20
SMOKE_WARMUP = 5
SMOKE_FOILS = 2
SETS: tuple[Dataset, ...] = get_args(Dataset)

T = TypeVar("T")
Make = Callable[[], Recipe]


def all_recipes() -> tuple[Recipe, ...]:
    """Every recipe that is built in, but single ablations, comparisons, and UNITER-large's."""
    return tuple(make() for make in _listed().values())


def find_recipe(name: str) -> Recipe:
    """The recipe of this name, or the one that a Python file calls ``recipe``.

    Raises:
        ValueError: there is none; the nearest name is told.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    known = _known()
    if name not in known:
        near = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"{name!r} is not a recipe; {hint}`counterfoil plan` lists them, and a file ends in .py"
        )
    return known[name]()


def print_catalogue() -> None:
    """Print all recipes; those that differ in model and data set alone share a line."""
    hosts_of: dict[tuple[str, str], dict[str, None]] = {}
    for recipe in all_recipes():
        family, host = _family(recipe.name)
        about = recipe.about.split("; ")[-1]
        hosts_of.setdefault((family, about), {})[host] = None
    table = Table(Column("recipe", no_wrap=True), "HOST", "about")
    for (family, about), hosts in hosts_of.items():
        table.add_row(*(escape(text) for text in (family, " ".join(hosts), about)))
    console().print(table)
    output(f"DATA: {' '.join(get_args(Dataset))}")
    output(f"LARGE: {' '.join(LARGE)}")
    output(
        "scan, bfan and vsrn are ensembles of 2, but not in ndgl/ and tags/; others are one model"
    )
    output(f"aoq/ablations/LOSS/HOST-DATA is one of them alone; LOSS: {' '.join(aoq.LOSSES)}")
    compared = " ".join(ndgl.VARIANTS)
    output(f"ndgl/WHAT/HOST-DATA is a comparison of gpo or chan; WHAT: {compared}")
    output(f"WHAT/HOST-DATA compares ways to write; WHAT: {' '.join(tags.VARIANTS)}")
    taught = ", ".join(
        f"{kind} ({' '.join(hosts)})" for kind, (_, hosts) in tags.OTHER_VARIANTS.items()
    )
    large = ", ".join(f"{begins}uniter-large-LARGE" for begins in tags.KINDS)
    output(f"UNITER-large, with the paper's numbers for it: {large}")
    output(f"WHAT/HOST-DATA trains other hosts on foils of TAGS; WHAT (HOST): {taught}")


def _family(name: str) -> tuple[str, str]:
    """A recipe's name with HOST-DATA where model and data set stand, and the model.

    Of a model that not every data set has recipes for, the whole name.
    """
    writing = {host for host in tags.HOSTS if tags.tags_datasets(host) == get_args(Dataset)}
    for host in sorted({*NAMES, *ndgl_models.HOSTS, *writing}, key=len, reverse=True):
        large = any(host == one and ndgl_models.reads_bert(one) for one in ndgl_models.HOSTS)
        for data in get_args(Dataset):
            if f"{host}-{data}" in name:
                return name.replace(f"{host}-{data}", f"HOST-{'LARGE' if large else 'DATA'}"), host
    return name, ""


def recipe_names() -> tuple[str, ...]:
    """Every name that `find` knows."""
    return tuple(_known())


def demo() -> Recipe:
    """The recipe of ``make demo``: AOQ's VSE++ on pixels of `scenes`, in minutes."""
    return replace(
        aoq.aoq_recipe("vsepp", "scenes"),
        name="demo",
        data="scenes",
        about="first light: train, mine, train again and compare on rendered scenes",
    )


def _known() -> dict[str, Make]:
    return {**_listed(), **dict(_ablations()), **dict(_compared()), **dict(_of_tags())}


def _listed() -> dict[str, Make]:
    """How each recipe is made, by its name, so that looking one up makes no other."""
    rows: dict[str, Make] = {"demo": demo}
    for name in NAMES:
        for to in SETS:
            rows[f"{name}-{to}"] = partial(models.online_recipe, name, to)
    for name in NAMES:
        for to in SETS:
            rows[f"aoq/{name}-{to}"] = partial(aoq.aoq_recipe, name, to)
    for name in NAMES:
        for to in SETS if PAPERS[ensemble_members(name)[0].model] in ("scan", "bfan") else ():
            rows[f"aoq/{name}-{to}-vsrn-lists"] = partial(aoq.aoq_with_vsrn_lists, name, to)
    for name in NAMES:
        for to in SETS:
            rows[f"aoq/ablations/{name}-{to}"] = partial(aoq.ablation_recipe, name, to)
    return rows | _of_modern_hosts()


def _of_modern_hosts() -> dict[str, Make]:
    rows: dict[str, Make] = {}
    for own in ndgl_models.HOSTS:
        rows |= {
            f"{own}-{to}": partial(ndgl_models.base_recipe, own, to)
            for to in ndgl_models.embeddings_per_item(own)
        }
    for one in BASE_MODELS:
        rows |= {
            f"ndgl/{one}-{to}": partial(ndgl.ndgl_recipe, one, to) for to in base_embeddings(one)
        }
    for seen in photos.NAMES:
        rows |= {f"{seen}-{to}": partial(photos.photo_recipe, seen, to) for to in photos.SETS}
    for name in clip.NEGCLIP_NAMES:
        rows |= {f"{name}-{to}": partial(clip.negclip_recipe, name, to) for to in SETS}
    for before, make in (
        ("", tags.hard_negatives),
        ("tags/", tags.tags),
        ("tags-dc/", tags.tags_dc),
    ):
        for reads in tags.HOSTS:
            sets = tags.tags_datasets(reads)
            rows |= {f"{before}{reads}-{to}": partial(make, reads, to) for to in sets}
    return rows


def _compared() -> Iterator[tuple[str, Make]]:
    for kind, (make, hosts) in ndgl.VARIANTS.items():
        for one in hosts:
            for to in base_embeddings(one):
                yield f"ndgl/{kind}/{one}-{to}", partial(make, one, to)


def _of_tags() -> Iterator[tuple[str, Make]]:
    for begins in tags.KINDS:
        for to in LARGE:
            yield f"{begins}uniter-large-{to}", partial(tags.large_recipe, begins, to)
    for kind, make in tags.VARIANTS.items():
        for host in tags.COMPARED:
            for to in SETS:
                yield f"{kind}/{host}-{to}", partial(make, host, to)
    for kind, (combine, hosts) in tags.OTHER_VARIANTS.items():
        for one in hosts:
            for to in SETS:
                yield f"{kind}/{one}-{to}", partial(combine, one, to)


def _ablations() -> Iterator[tuple[str, Make]]:
    for loss in aoq.LOSSES:
        for name in NAMES:
            for to in SETS:
                made = partial(aoq.ablation_variant, loss, name, to)
                yield f"aoq/ablations/{loss}/{name}-{to}", made


def smoke_recipe(recipe: Recipe) -> Recipe:
    """The recipe with at most 20 training steps a stage, to see whether it runs at all.

    Of a caption that a model writes anew, no more than 4 are written and 2 are kept.

    Warm-ups are cut too, so that the loss that follows them is met, unless it draws from lists that
    are mined only after some epochs.
    """
    stages: list[Stage] = []
    for stage in recipe.stages:
        if isinstance(stage, Train):
            short = replace(stage.plan, epochs=1, steps=SMOKE_STEPS, log_every=1)
            early = stage.negatives or not stage.refresh.every
            hurried = _hurried(stage.objective) if early else stage.objective
            stages.append(replace(stage, plan=short, objective=hurried))
        elif isinstance(stage, Pretrain):
            short = replace(stage.plan, epochs=1, steps=SMOKE_STEPS, log_every=1)
            stages.append(replace(stage, plan=short))
        elif isinstance(stage, Generate):
            stages.append(replace(stage, masks=SMOKE_FOILS, refills=SMOKE_FOILS, keep=SMOKE_FOILS))
        else:
            stages.append(stage)
    return replace(recipe, stages=tuple(stages))


def _hurried(value: T) -> T:
    """A written objective in which no curriculum waits longer than a few steps."""
    found: Any = value
    match found:
        case Config():
            arguments = {name: _hurried(inner) for name, inner in found.arguments.items()}
            if found.make in (SwitchAfter, StartAt):
                arguments["steps"] = min(arguments["steps"], SMOKE_WARMUP)
            found = Config(found.make, arguments)
        case Mapping():
            found = {name: _hurried(inner) for name, inner in found.items()}
        case tuple():
            found = tuple(_hurried(inner) for inner in found)
    return cast("T", found)


def _from_file(path: Path) -> Recipe:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a Python file that sets `recipe` is needed there")
    try:
        found = runpy.run_path(str(path)).get("recipe")
    except Exception as error:  # whatever a user's own file may raise
        raise ValueError(f"{path}{_line(error, path)}: {_told(error)}") from error
    if not isinstance(found, Recipe):
        raise ValueError(f"{path} does not set `recipe` to a counterfoil.pipelines.pipeline.Recipe")
    return found


def _line(error: Exception, path: Path) -> str:
    """The last line of a user's file that an error passed through."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _told(error: Exception) -> str:
    if isinstance(error, ValueError):  # ours are sentences
        return str(error)
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
