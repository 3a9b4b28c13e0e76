"""Names under which parts are found: losses, trainings, recipes, converters, verbs, ….

A part has a kind and a name. Those of this package stand in `SHIPPED`, a table that is read without
importing what it names, so that a command loads what it uses and no more. Other packages add
names with a decorator, once their module is imported,

    @register.training("mine")
    def mine(model, *, teachers, lengths): ...

or as entry points of the groups ``counterfoil.loss``, ``counterfoil.training``, … in their
``pyproject.toml``. A name has one owner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, partialmethod
from importlib import import_module
from importlib.metadata import entry_points, packages_distributions
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, Literal, TypeVar, final, get_args

Kind = Literal[
    "model",
    "part",
    "loss",
    "training",
    "scratch",
    "recipe",
    "loader",
    "reader",
    "features",
    "verb",
]
Part = TypeVar("Part")

PAPERS = "counterfoil.papers"

_COMPARED_LOSSES = (
    "DistanceWeightedTripletLoss",
    "LSEHLoss",
    "SelfAdjustedCFMLoss",
    "SelfExpandingLoss",
    "SelfExploredCFMLoss",
)
# kind -> name -> module:attribute
SHIPPED: Mapping[Kind, Mapping[str, str]] = {
    # classes that a saved model folder may name; ours are in `counterfoil.core.saved_names`
    "model": {},
    "part": {},
    "loss": {
        **{name: f"counterfoil.papers.compared.losses:{name}" for name in _COMPARED_LOSSES},
        "WordLoss": "counterfoil.papers.tags.losses:WordLoss",
    },
    # (FineTunedModel, TrainingOptions) -> stages that train a pretrained model
    "training": {
        "contrastive": "counterfoil.recipes.clip:contrastive_stages",
        "triplet": "counterfoil.recipes.clip:triplet_stages",
        "aoq": "counterfoil.papers.aoq.recipe:fine_tuning_stages",
        "ndgl": "counterfoil.papers.ndgl.recipe:fine_tuning_stages",
        "negclip": "counterfoil.papers.compared.negclip:fine_tuning_stages",
    },
    # `counterfoil.recipes.catalogue.ScratchModels`, of several models each
    "scratch": {"papers": "counterfoil.papers.photos:SCRATCH"},
    # functions with keyword arguments that return a Recipe, see `counterfoil.recipes.catalogue`
    "recipe": {
        "demo": "counterfoil.recipes.demo:demo_recipe",
        "online": "counterfoil.papers.online:online",
        "aoq": "counterfoil.papers.aoq.recipe:aoq",
        "ndgl": "counterfoil.papers.ndgl.recipe:ndgl",
        "tags": "counterfoil.papers.tags.recipe:tags",
        "tags-dc": "counterfoil.papers.tags.recipe:tags_dc",
        "tags-foils": "counterfoil.papers.tags.recipe:tags_foils",
        "vse-c": "counterfoil.papers.compared.vsec:vse_c",
        "negclip": "counterfoil.papers.compared.negclip:negclip",
        "graph": "counterfoil.papers.aoq.recipe:graph",
        "batches": "counterfoil.papers.aoq.recipe:batches",
        "queue": "counterfoil.papers.online:queue",
        "cascade": "counterfoil.papers.tags.recipe:cascade",
        "patches": "counterfoil.papers.photos:patches",
        "photos": "counterfoil.papers.photos:photos",
    },
    # (name, **options) -> Pretrained, by the prefix of a name, the library of a folder, or the
    # model_type in its config.json, see `counterfoil.loading`
    "loader": {
        "blip": "counterfoil.loading.converted:load_blip",
        "open_clip": "counterfoil.loading.open_clip:load_pair",
        "sentence_transformers": "counterfoil.loading.sentence_transformers:load_embedder",
        "timm": "counterfoil.loading.timm:load_towers",
        "transformers": "counterfoil.loading.transformers:load_pair",
        "vilt": "counterfoil.papers.models.vilt:load_vilt",
    },
    # Format, under the pattern of a file by which folders of this format are known
    "reader": {
        "*_caps.txt": "counterfoil.papers.readers.precomp:FORMAT",
        "*_ims*.npy": "counterfoil.papers.readers.precomp:FORMAT",
        "txt2img.json": "counterfoil.papers.readers.uniter:FORMAT",
        "*/txt2img.json": "counterfoil.papers.readers.uniter:FORMAT",
    },
    # FeatureFormat
    "features": {
        "precomp": "counterfoil.papers.readers.precomp:FEATURES",
        "img_db": "counterfoil.papers.readers.uniter:DATABASE",
        "detections": "counterfoil.papers.readers.uniter:DETECTIONS",
    },
    # a Typer whose commands, or whose group if it is named, are the verb; the help has this order
    "verb": {
        "demo": "counterfoil.cli.run:app",
        "data": "counterfoil.cli.data:app",
        "audit": "counterfoil.cli.audit:app",
        "evaluate": "counterfoil.cli.evaluate:app",
        "train": "counterfoil.cli.train:app",
        "mine": "counterfoil.cli.mine:app",
        "judge": "counterfoil.cli.mine:app",
        "diagnose": "counterfoil.cli.negatives:diagnose_app",
        "negatives": "counterfoil.cli.negatives:app",
        "report": "counterfoil.cli.run:app",
        "explain": "counterfoil.cli.explain:app",
        "foils": "counterfoil.cli.foils:app",
        "index": "counterfoil.cli.index:app",
        "search": "counterfoil.cli.search:app",
        "serve": "counterfoil.cli.serve:app",
        **dict.fromkeys(
            ("export", "interpolate", "encode", "features", "cache"), "counterfoil.cli.models:app"
        ),
        **dict.fromkeys(("plan", "run"), "counterfoil.cli.run:app"),
        "papers": "counterfoil.papers.cli:app",
    },
}
SAVED: tuple[Kind, ...] = ("model", "part")  # kinds that a model folder may name
_added: dict[tuple[Kind, str], object] = {}


@final
class Register:
    """Decorators that add a class or function under a name, one for each kind.

    Raises:
        ValueError: the name has an owner already.
    """

    def _add(self, kind: Kind, name: str) -> Callable[[Part], Part]:
        def add(part: Part) -> Part:
            known = _added.get((kind, name))
            again = known is not None and _place(known) == _place(
                part
            )  # a notebook's cell, run again
            if name in _owners(kind) or (known is not None and not again):
                raise ValueError(
                    f"there is a {kind} {name!r} already; register yours under another name"
                )
            _added[kind, name] = part
            return part

        return add

    model = partialmethod(_add, "model")
    part = partialmethod(_add, "part")
    loss = partialmethod(_add, "loss")
    training = partialmethod(_add, "training")
    scratch = partialmethod(_add, "scratch")
    recipe = partialmethod(_add, "recipe")
    loader = partialmethod(_add, "loader")
    reader = partialmethod(_add, "reader")
    features = partialmethod(_add, "features")
    verb = partialmethod(_add, "verb")


register = Register()


def names(kind: Kind) -> list[str]:
    """All names of a kind; nothing is imported."""
    own = (name for known, name in _added if known == kind)
    return list(dict.fromkeys((*_owners(kind), *own)))


def find(kind: Kind, name: str) -> Any:
    """The part of a kind and name; its module is imported.

    Raises:
        ValueError: there is none, it belongs to the papers and these are not installed, or two
            packages own the name.
    """
    if (kind, name) in _added:
        return _added[kind, name]
    owners = _owners(kind).get(name, ())
    if is_absent(kind, name):
        raise ValueError(without_papers(f"the {kind} {name!r}"))
    if not owners:
        from counterfoil.core.config import unknown_name  # which imports this module

        raise ValueError(unknown_name(name, names(kind), f"a registered {kind}"))
    if len(owners) > 1:
        raise ValueError(
            f"the {kind} {name!r} has two owners, {' and '.join(owners)}; uninstall one of them"
        )
    module, _, attribute = owners[0].partition(":")
    try:
        return attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the {kind} {name!r} of {owners[0]} cannot be imported: {error}; mend or uninstall "
            "the package that names it"
        ) from error


def is_absent(kind: Kind, name: str) -> bool:
    """Return True for a name of ours whose package is not installed; `find` says so."""
    return name in SHIPPED[kind] and name not in names(kind)


def without_papers(what: str) -> str:
    """The sentence on what belongs to the papers, where these are not installed."""
    return (
        f"{what} belongs to {PAPERS}, the laboratory of the papers, which is not installed; "
        "install counterfoil as a whole to use it"
    )


def has_papers() -> bool:
    """Return True if the papers are installed: the library works without them."""
    return find_spec(PAPERS) is not None


def package_of(make: object) -> str:
    """The distribution that a class belongs to, or ``counterfoil.papers``."""
    module = getattr(make, "__module__", "")
    if module.startswith(f"{PAPERS}."):
        return PAPERS
    package = module.partition(".")[0]
    if package == "counterfoil":
        return package
    return next(iter(packages_distributions().get(package, ())), package)


def saved_by_name(make: object) -> str | None:
    """The name under which files hold a class of another package; None where it has none."""
    for kind in SAVED:
        for name in names(kind):
            if (kind, name) in _added:
                if _place(_added[kind, name]) == _place(make):
                    return name
            elif any(_is_at(make, place) for place in _owners(kind).get(name, ())):
                return name
    return None


def _place(part: object) -> str:
    return f"{getattr(part, '__module__', '')}:{getattr(part, '__qualname__', repr(part))}"


def _is_at(make: object, place: str) -> bool:
    """Return True if a class is at a place, or is imported there; nothing is imported."""
    module, _, attribute = place.partition(":")
    loaded = sys.modules.get(module)
    return place == _place(make) or getattr(loaded, attribute, None) is make


@cache
def _owners(kind: Kind) -> dict[str, tuple[str, ...]]:
    """The ``module:attribute`` of every name of this package and of installed ones."""
    owners: dict[str, tuple[str, ...]]
    papers = has_papers()
    owners = {
        name: (place,)
        for name, place in SHIPPED[kind].items()
        if papers or not place.startswith(PAPERS)
    }
    for point in entry_points(group=f"counterfoil.{kind}"):
        if point.value not in owners.get(point.name, ()):
            owners[point.name] = (*owners.get(point.name, ()), point.value)
    return owners


assert set(SHIPPED) == set(get_args(Kind))
