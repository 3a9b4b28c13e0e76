"""The recipes of the papers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple, final

from rich.table import Column, Table

from counterfoil.core.console import console, output
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.papers import photos
from counterfoil.papers import systems as models
from counterfoil.papers.aoq import recipe as aoq
from counterfoil.papers.compared import negclip, vsec
from counterfoil.papers.ndgl import recipe as ndgl
from counterfoil.papers.ndgl import systems as ndgl_models
from counterfoil.papers.systems import DATASETS, LARGE, NAMES
from counterfoil.papers.tags import recipe as tags
from counterfoil.pipelines.pipeline import Mine, Recipe, Train
from counterfoil.recipes.catalogue import Recipes
from counterfoil.recipes.demo import demo_recipe


def all_recipes() -> tuple[Recipe, ...]:
    """Every recipe, the demo among them, but single ablations, comparisons, and UNITER-large's."""
    return demo_recipe(), *(make() for make in _recipes(_listed_families()).values())


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
        _Family("negclip/{}", negclip.negclip_recipe, ("vsepp",)),
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
    return {
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
    rows: dict[tuple[str, str], list[str]] = {}
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


@final
class PapersCatalogue:
    """The recipes of the papers, and their models, which may be trained on one's own data."""

    recipes = staticmethod(_known)
    describe = staticmethod(print_catalogue)
    own_data_recipe = staticmethod(photos.own_data_recipe)

    @staticmethod
    def models() -> list[str]:
        """Models that can be trained on one's own data."""
        return [name for like in photos.SETS for name in photos.known_models(like)]


CATALOGUE = PapersCatalogue()
