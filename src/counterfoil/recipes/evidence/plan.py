"""What a table of experiments consists of; the experiments themselves are recipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

from counterfoil.recipes.recipe import Recipe
from counterfoil.spec import unknown

Budget = Literal["cpu", "gpu", "smoke"]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One evaluation of one seed.

    Attributes:
        host: the matcher, as in "VSE++".
        method: how it was trained, as in "AdapOffQuin".
        lists: whose scores mined the negatives it was trained with; empty for none.
        seed: of the training.
        test: evaluation stage of the recipe.
        models: training stages behind it.
    """

    host: str
    method: str
    lists: str = ""
    seed: int
    test: str
    models: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A recipe and the rows that its evaluations fill.

    Attributes:
        key: name of its folder.
        recipe: what is run.
        rows: what is read off it, in order of the recipe.
    """

    key: str
    recipe: Recipe
    rows: tuple[Row, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Table:
    """Experiments under one protocol.

    Attributes:
        name: as in "evidence/aoq-flickr8k".
        about: one sentence.
        data: what is opened when the user names nothing.
        first: method that the others are compared with, on the same host and seed.
        experiments: the experiments of a budget, those that matter most first.
    """

    name: str
    about: str
    data: str
    first: str
    experiments: Callable[[Budget], Sequence[Experiment]]

    def of(self, budget: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
        """The experiments of a budget; with `only`, those whose key begins with one of these.

        Raises:
            ValueError: no such budget, or nothing begins so.
        """
        chosen = _budget(budget)
        every = tuple(self.experiments(chosen))
        for start in only:
            if not any(one.key.startswith(start) for one in every):
                keys = [one.key for one in every]
                raise ValueError(unknown(start, keys, f"an experiment of {self.name} ({budget})"))
        return tuple(one for one in every if not only or one.key.startswith(tuple(only)))


def _budget(name: str) -> Budget:
    for known in get_args(Budget):
        if known == name:
            found: Budget = known
            return found
    raise ValueError(unknown(name, list(get_args(Budget)), "a budget"))
