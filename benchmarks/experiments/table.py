"""Tables of experiments as data: a table has experiments, an experiment is a recipe with rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final

from counterfoil.core.config import parse_literal, unknown_name
from counterfoil.pipelines.pipeline import Evaluate, Recipe, Stage, Train

Budget = Literal["cpu", "gpu", "smoke"]
PREFIX = "evidence/"  # of the names in ledgers


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One evaluation of one seed.

    Attributes:
        host: the model, as in "VSE++".
        method: how it was trained, as in "AdapOffQuin".
        lists: the model whose scores mined its negatives; empty for none.
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
        recipe: the stages to run.
        rows: its results, in the order of the recipe.
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
        data: the data set opened by default.
        first: method that the others are compared with, on the same model and seed.
        experiments: the experiments of a budget, the most important first.
    """

    name: str
    about: str
    data: str
    first: str
    experiments: Callable[[Budget], Iterable[Experiment]]

    def of(self, budget: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
        """The experiments of a budget; with `only`, those whose key begins with one of these.

        Raises:
            ValueError: no such budget, or no key begins so.
        """
        every = tuple(self.experiments(parse_literal(Budget, budget, "a budget")))
        keys = [one.key for one in every]
        for start in only:
            if not any(key.startswith(start) for key in keys):
                kind = f"an experiment of {self.name} ({budget})"
                raise ValueError(unknown_name(start, keys, kind))
        return tuple(one for one in every if not only or one.key.startswith(tuple(only)))


@final
@dataclass
class ExperimentBuilder:
    """An experiment while it is put together.

    Attributes:
        test: the evaluation that follows each training; its name and models are filled in.
        stages: so far.
        rows: so far.
    """

    test: Evaluate
    stages: list[Stage] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, *stages: Stage) -> None:
        """Add stages, each once."""
        self.stages += [stage for stage in stages if stage not in self.stages]

    def compare(self, host: str, method: str, train: Train, *, lists: str | None = None) -> None:
        """Add a training, its evaluation and the row.

        Args:
            host: title of the model.
            method: of the row.
            train: the training; added unless it is there.
            lists: title of the model that mined its negatives, if not the model itself.
        """
        self.add(train)
        mined = (host if lists is None else lists) if train.negatives else ""
        self.measure(host, method, (train.name,), train.name, train.plan.seed, lists=mined)

    def measure(
        self, host: str, method: str, models: tuple[str, ...], name: str, seed: int, lists: str = ""
    ) -> None:
        """Add an evaluation of trainings and its row."""
        test = replace(self.test, name=f"test-{name}", using=models)
        self.stages.append(test)
        row = Row(host=host, method=method, lists=lists, seed=seed, test=test.name, models=models)
        self.rows.append(row)

    def build(self, table: str, key: str, data: str) -> Experiment:
        """The experiment."""
        recipe = Recipe(name=f"{table}/{key}", stages=tuple(self.stages), data=data)
        return Experiment(key=key, recipe=recipe, rows=tuple(self.rows))
