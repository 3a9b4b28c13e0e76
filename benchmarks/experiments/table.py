"""Tables of experiments as data: a table has experiments, an experiment is a recipe with rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, final

from counterfoil.core.config import parse_literal, unknown_name
from counterfoil.pipelines.pipeline import Evaluate, Recipe, Stage, Train
from counterfoil.pipelines.stages.evaluate import ProtocolName

Budget = Literal["cpu", "gpu", "smoke"]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One training of one seed, measured on dev and on test.

    Attributes:
        model: title of the model, as in "VSE++".
        setting: what several methods are compared under, as in "batch 8"; empty for none.
        method: how it was trained, as in "AdapOffQuin".
        seed: of the training.
        name: its evaluations are the stages ``dev-NAME`` and ``test-NAME``.
        trained: training stages behind it; several are an ensemble.
    """

    model: str
    setting: str = ""
    method: str
    seed: int
    name: str
    trained: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A comparison that was declared before its seeds were run.

    Attributes:
        claim: one sentence.
        model: title of the model.
        setting: see `Row`.
        method: the treatment.
        base: the method that it is compared with, on equal seeds.
        seeds: that confirm or refute; those of the exploration are not among them.
        metric: compared on dev and on test.
        least: a difference below this is of no use: a contrast whose upper bounds lie below it on
            both splits is refuted.
    """

    claim: str
    model: str
    setting: str = ""
    method: str
    base: str
    seeds: tuple[int, ...]
    metric: str = "RSum"
    least: float = 1.0


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
    """Experiments that answer one question.

    Attributes:
        name: as in "aoq-batch".
        question: one sentence.
        data: the data set opened by default.
        base: method that the others are compared with, on the same model, setting and seeds.
        experiments: the experiments of a budget, the most important first.
        contrasts: declared comparisons.
        vectors: whether models train on closed-form CCA vectors of the data, see `cca`.
        metrics: shown, the first in the figure; with "foils", accuracy on foils is measured too.
    """

    name: str
    question: str
    data: str
    base: str
    experiments: Callable[[Budget], Iterable[Experiment]]
    contrasts: tuple[Contrast, ...] = ()
    vectors: bool = False
    metrics: tuple[str, ...] = ("RSum",)

    def declares(self, row: Row) -> bool:
        """Whether a row belongs to a declared contrast."""
        key = row.model, row.setting
        return any(
            key == (one.model, one.setting) and row.method in (one.method, one.base)
            for one in self.contrasts
        )

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
        model: title of the model of its rows.
        seed: of its trainings.
        protocol: of the evaluations on test; dev is ranked whole.
        stages: so far.
        rows: so far.
    """

    model: str
    seed: int
    protocol: ProtocolName = "whole"
    stages: list[Stage] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, *stages: Stage) -> None:
        """Add stages, each once."""
        self.stages += [stage for stage in stages if stage not in self.stages]

    def compare(self, method: str, *trained: Train, setting: str = "") -> None:
        """Add trainings, the evaluations of all of them together, and the row."""
        self.add(*trained)
        self.measure(method, tuple(stage.name for stage in trained), setting=setting)

    def measure(self, method: str, trained: tuple[str, ...], *, setting: str = "") -> None:
        """Add the evaluations of trainings that are there, and the row."""
        name = "-".join(trained)
        for split, protocol in (("dev", "whole"), ("test", self.protocol)):
            stage = Evaluate(
                name=f"{split}-{name}",
                using=trained,
                split=split,
                protocol=cast(ProtocolName, protocol),
            )
            self.add(stage)
        row = Row(
            model=self.model,
            setting=setting,
            method=method,
            seed=self.seed,
            name=name,
            trained=trained,
        )
        self.rows.append(row)

    def build(self, table: str, key: str, data: str) -> Experiment:
        """The experiment."""
        recipe = Recipe(name=f"{table}/{key}", stages=tuple(self.stages), data=data)
        return Experiment(key=key, recipe=recipe, rows=tuple(self.rows))
