"""Names under which parts are found: models, losses, sources, recipes, engines, verbs, ….

A part has a kind and a name. Those of this package stand in `counterfoil.core.shipped`, a table
that is read without importing what it names, so that a command loads what it uses and no more.
Other packages add names with a decorator, once their module is imported,

    @register.training("mine")
    def mine(model, *, teachers, lengths): ...

or as entry points of the groups ``counterfoil.loss``, ``counterfoil.training``, … in their
``pyproject.toml``. A name has one owner.

Saved files call classes by these names (`name_of`, `find_called`); a class that was moved or
renamed keeps its name, so that files open again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partialmethod
from importlib import import_module
from importlib.metadata import entry_points, packages_distributions
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, TypeVar, final

from counterfoil.core.shipped import PAPERS, SHIPPED, Kind

Part = TypeVar("Part")

SAVED: tuple[Kind, ...] = ("model", "part")  # kinds that a model folder may name
CALLED: tuple[Kind, ...] = (*SAVED, "loss", "source")  # kinds that recorded calls name
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
            if known is None or _place(known) != _place(part):  # else a notebook's cell, run again
                kinds = CALLED if kind in CALLED else (kind,)  # calls in files do not say which
                if owner := next((other for other in kinds if name in names(other)), None):
                    raise ValueError(
                        f"there is a {owner} {name!r} already; register yours under another name"
                    )
            _added[kind, name] = part
            return part

        return add

    model = partialmethod(_add, "model")
    part = partialmethod(_add, "part")
    loss = partialmethod(_add, "loss")
    source = partialmethod(_add, "source")
    training = partialmethod(_add, "training")
    scratch = partialmethod(_add, "scratch")
    recipe = partialmethod(_add, "recipe")
    loader = partialmethod(_add, "loader")
    reader = partialmethod(_add, "reader")
    features = partialmethod(_add, "features")
    engine = partialmethod(_add, "engine")
    verb = partialmethod(_add, "verb")


register = Register()


def names(kind: Kind) -> list[str]:
    """All names of a kind; nothing is imported."""
    own = (name for known, name in _added if known == kind)
    return list(dict.fromkeys((*_owners(kind), *own)))


def added(kind: Kind) -> list[str]:
    """Names of a kind that other packages and the user's own modules have added."""
    return [name for name in names(kind) if name not in SHIPPED[kind]]


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


def absent(kind: Kind) -> list[str]:
    """Names of ours whose package is not installed."""
    return [name for name in SHIPPED[kind] if is_absent(kind, name)]


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


def name_of(make: object) -> str:
    """Name of a class or function in files; ``module:qualname`` where it has none."""
    place = _place(make)
    if name := _shipped_names().get(place):
        return name
    for kind in CALLED:
        for name in names(kind):
            if (kind, name) in _added:
                if _place(_added[kind, name]) == place:
                    return name
            elif any(_is_at(make, known) for known in _owners(kind).get(name, ())):
                return name
    return place


def short_name(make: object) -> str:
    """`name_of` without a module, for digests that do not depend on where the code is."""
    return name_of(make).rpartition(":")[2]


def find_called(name: str, kinds: Sequence[Kind] = CALLED) -> Any:
    """What a file calls by a name of one of these kinds; its module is imported.

    Raises:
        ValueError: there is none, it is of another kind, or as in `find`.
    """
    known = [kind for kind in kinds if name in names(kind) or is_absent(kind, name)]
    if len(known) == 1:
        return find(known[0], name)
    if known:
        raise ValueError(
            f"{name!r} is a {' and a '.join(known)} of different packages; uninstall one of them"
        )
    if name.isidentifier() and not any(name in names(kind) for kind in CALLED):
        raise ValueError(
            f"{name!r} does not exist in this version of counterfoil; the file was written by "
            "another one"
        )
    raise ValueError(
        f"{name!r} is not something this file may call; allowed are registered names of the kinds "
        f"{' and '.join(kinds)}"
    )


def _place(part: object) -> str:
    return f"{getattr(part, '__module__', '')}:{getattr(part, '__qualname__', repr(part))}"


def _is_at(make: object, place: str) -> bool:
    """Return True if a class is at a place, or is imported there; nothing is imported."""
    module, _, attribute = place.partition(":")
    loaded = sys.modules.get(module)
    return place == _place(make) or getattr(loaded, attribute, None) is make


@cache
def _shipped_names() -> dict[str, str]:
    """The name of every place of ours that files may call."""
    return {place: name for kind in CALLED for name, place in SHIPPED[kind].items()}


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
