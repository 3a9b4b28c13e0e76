"""What a pretrained model has forgotten by being trained further: before and after, in words.

On the data that it was trained for, and on other data where any are named, as in WiSE-FT
(https://arxiv.org/abs/2109.01903). Both models answer the same queries, so differences have
intervals and paired tests, see `counterfoil.evaluation.bootstrap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.bootstrap import Comparison
from counterfoil.evaluation.metrics import METRICS
from counterfoil.evaluation.results import RunResult, chance, figure, results, signed
from counterfoil.model import starts_untrained
from counterfoil.pipelines.pipeline import Compare, Evaluate, Recipe, evaluation_title
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.pipelines.state import RunContext
from counterfoil.report.page import TableBlock

RSUM = METRICS.index("RSum")
RECALLS = ("i2t R@1", "t2i R@1")
HEAD = (
    "Data, model",
    "R@1, image to text",
    "R@1, text to image",
    "RSum before",
    "after",
    "Difference",
)
NOTE = (
    "Differences from the model as it was, with 95 % intervals (images drawn anew with all their "
    "captions) and p of an exchange of answers image by image."
)


def forgetting_table(context: RunContext, stage: Compare) -> TableBlock | None:
    """The table and its sentences; None where the first result is of no pretrained model.

    Args:
        context: the run.
        stage: compares models that were trained further with what they began with.
    """
    first = _evaluation(context, stage.results[0])
    if first.using or not first.models or len(stage.results) < 2:
        return None
    if any(map(starts_untrained, first.models)):
        return None
    groups = [stage.results, *_by_data(context, stage.others)]
    measured = [_measured(context, names) for names in groups]
    rows = [row for where, runs in measured for row in _rows(where, runs)]
    said = [
        forgetting_sentence(where, runs[0].name, run)
        for where, runs in measured
        for run in runs[1:]
    ]
    return TableBlock("What is forgotten", HEAD, tuple(rows), "\n".join([*said, NOTE]))


def forgetting_note(found: Recipe, data: str) -> Recipe:
    """A recipe that measures all that its report compares on other data, too.

    Args:
        found: a recipe that ends with its report.
        data: as `load_dataset` opens them; their test split, or all where they have none.

    Raises:
        ValueError: there are no such data.
    """
    split = "test" if "test" in load_dataset(data).split_names else "all"
    *stages, report = found.stages
    assert isinstance(report, Compare)
    tests = {stage.name: stage for stage in stages if isinstance(stage, Evaluate)}
    names = {name: name.replace("test-", "other-", 1) for name in report.results}
    others = [
        replace(tests[name], name=names[name], data=data, split=split)
        for name in tests  # in their order: the original may read what others have kept
        if name in names
    ]
    report = replace(report, others=tuple(names.values()))
    return replace(found, stages=(*stages, *others, report))


def forgetting_sentence(where: str, original: str, run: RunResult) -> str:
    """Whether a run is worse than what it began with, by RSum.

    Args:
        where: the data.
        original: name of the model that it began with.
        run: compared with that.
    """
    change = run.against[RSUM]
    span, fallen = change.interval, change.difference < 0
    told = (
        f"RSum {figure('', run.numbers[RSUM])}, {figure('', abs(change.difference))} "
        f"{'less' if fallen else 'more'} than {original} (95 % interval of the difference "
        f"{signed(span.low)} to {signed(span.high)}; p {chance(change.p)})"
    )
    if span.high < 0:
        return f"{where}: {run.name} has forgotten: {told}."
    if span.low > 0:
        return f"{where}: {run.name} has forgotten nothing on the whole: {told}."
    return f"{where}: whether {run.name} has forgotten anything cannot be told: {told}."


def _rows(where: str, runs: Sequence[RunResult]) -> list[tuple[str, ...]]:
    first = runs[0]
    return [
        (
            f"{where}: {run.name}",
            *(_change(run.against[METRICS.index(metric)]) for metric in RECALLS),
            figure("RSum", first.numbers[RSUM]),
            figure("RSum", run.numbers[RSUM]),
            _change(run.against[RSUM]),
        )
        for run in runs[1:]
    ]


def _change(change: Comparison) -> str:
    span = change.interval
    between = f"{signed(span.low)} to {signed(span.high)}"
    return f"{signed(change.difference)} ({between}; p {chance(change.p)})"


def _measured(context: RunContext, names: Sequence[str]) -> tuple[str, tuple[RunResult, ...]]:
    """On which data, and the runs, all but the first compared with the first."""
    reports = {}
    for name in names:
        stage = _evaluation(context, name)
        model = evaluation_title((*stage.using, *stage.models), stage.first, stage.depth)
        reports[model] = RetrievalEvaluation.open(context.place(name)).report
    setting, data = next(iter(reports.values())).setting, _evaluation(context, names[0]).data
    return f"{data or setting.dataset} {setting.split}".strip(), results(reports)


def _by_data(context: RunContext, names: Sequence[str]) -> list[tuple[str, ...]]:
    alike = groupby(names, key=lambda name: _evaluation(context, name).data)
    return [tuple(group) for _, group in alike]


def _evaluation(context: RunContext, name: str) -> Evaluate:
    stage = context.recipe.stage(name)
    assert isinstance(stage, Evaluate)
    return stage
