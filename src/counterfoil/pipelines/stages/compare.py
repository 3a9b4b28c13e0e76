"""Comparison of evaluations: the stage and its report.

The report has the results side by side, learning curves, the hardness of negatives and example
retrievals. Where a pretrained model was trained further, a table says what it has forgotten, on the
data that it was trained for and on other data where any are named, as in WiSE-FT
(https://arxiv.org/abs/2109.01903). Both models answer the same queries, so differences have
intervals and paired tests, see `counterfoil.evaluation.bootstrap`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, final

from counterfoil.core import distributed
from counterfoil.core.console import output
from counterfoil.core.io import parsing
from counterfoil.data.scenes import scene
from counterfoil.evaluation.bootstrap import Comparison
from counterfoil.evaluation.galleries import RankedLists, galleries
from counterfoil.evaluation.metrics import METRICS, common_line
from counterfoil.evaluation.results import (
    RunResult,
    cascade_figure,
    cascade_table,
    chance,
    figure,
    headline,
    result_table,
    results,
    signed,
)
from counterfoil.loading import starts_untrained
from counterfoil.pipelines.plan import console
from counterfoil.pipelines.stages.base import Stage
from counterfoil.pipelines.stages.evaluate import Evaluate, RetrievalEvaluation
from counterfoil.pipelines.stages.fitting import ModelStage
from counterfoil.pipelines.stages.mine import Mine, hardness_at
from counterfoil.pipelines.stages.select import both_ends, selection_sentence
from counterfoil.pipelines.state import RunContext
from counterfoil.report.figures import LearningCurve, NamedSample, gap_histograms, learning_curves
from counterfoil.report.page import (
    CardSection,
    FigureSection,
    Page,
    Provenance,
    TableBlock,
    current_provenance,
    write_page,
)
from counterfoil.report.tables import TerminalTable
from counterfoil.training.logging import read_metrics

REPORT = "report.html"
RSUM = METRICS.index("RSum")
RECALLS = ("i2t R@1", "t2i R@1")
FORGETTING = "What is forgotten"
FORGETTING_HEAD = (
    "Data, model",
    "R@1, image to text",
    "R@1, text to image",
    "RSum",
    "Difference of RSum",
)
FORGETTING_NOTE = (
    "The first row of each data set is the original. Differences from it, with 95 % intervals "
    "(images drawn anew with all their captions) and p of an exchange of answers image by image."
)


@final
@dataclass(frozen=True, kw_only=True)
class Compare(Stage):
    """Set evaluations side by side. Writes ``report.html``.

    Attributes:
        results: evaluation stages; the others are compared with the first.
        negatives: mining stage whose hardness is shown, if any.
        others: evaluations of the same models, in this order, on other data, to show what the
            models have forgotten.
        selection: stage that selects one of the models; the report opens with its sentence.
        foils: images of `scenes` whose captions the first and the last model tell from false ones
            that differ in one detail; 0 for none.
    """

    kind: ClassVar[str] = "compare"
    takes: ClassVar[Mapping[str, str]] = {
        "results": "evaluate",
        "others": "evaluate",
        "negatives": "mine",
        "selection": "select",
    }
    results: tuple[str, ...]
    negatives: str | None = None
    others: tuple[str, ...] = ()
    selection: str | None = None
    foils: int = 0

    @property
    def lacks_inputs(self) -> bool:
        return not self.dependencies

    def check(self, context: RunContext) -> None:
        """Refuse foils of other images than rendered scenes."""
        if self.foils:
            scene(context.split(context.stage(self.results[0], Evaluate).split).image_ids[0])

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Print the evaluations side by side and write the report."""
        if distributed.rank() == 0:
            page, path = comparison_page(context, self), context.place(self.name) / REPORT
            for table in self._shown(page.tables):
                console.print(TerminalTable(table, page.protocol))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_page(page, path)
            output(page.headline)
            if self.selection:
                place = context.place(self.selection)
                output(f"{selection_sentence(place)} It is in {place}; the report is {path}")
            else:
                output(f"{path}")

    def _shown(self, tables: Sequence[TableBlock]) -> Iterator[TableBlock]:
        """What the terminal shows of the report: recalls, and what only this comparison has."""
        recalls, *others = tables
        rows = tuple(row for row in recalls.rows if not str(row[0]).endswith("rank"))
        yield replace(recalls, rows=rows, note="Below each number: its 95 % interval.")
        yield from (table for table in others if self.others or table.title != FORGETTING)


def comparison_page(context: RunContext, stage: Compare) -> Page:
    """The report of a run: results, learning curves, hardness of negatives, retrievals."""
    evaluations = {
        context.stage(name, Evaluate).title: RetrievalEvaluation.open(context.place(name))
        for name in stage.results
    }
    reports = {name: evaluation.report for name, evaluation in evaluations.items()}
    used = (name for result in stage.results for name in context.stage(result, Evaluate).using)
    trained = [n for n in dict.fromkeys(used) if isinstance(context.recipe.stage(n), ModelStage)]
    forgetting = forgetting_table(context, stage)
    runs = results(reports)
    curves = [learning_curve(name, context.place(name) / "metrics.jsonl") for name in trained]
    gaps: tuple[NamedSample, ...] = ()
    mining = context.recipe.stage(stage.negatives) if stage.negatives else None
    if isinstance(mining, Mine):  # no model scores in other stages
        scorer = " + ".join((*mining.using, *mining.models))
        gaps = hardness_at(context.place(mining.name), scorer)
    cascades = {
        name: evaluation.shortlists
        for name, evaluation in evaluations.items()
        if evaluation.shortlists and evaluation.shortlists.curve
    }
    figures = {
        "Learning curves": learning_curves(curves),
        "Hardness of negatives": (gap_histograms(gaps),) if gaps else (),
        "Recall against cost": (cascade_figure(cascades),) if cascades else (),
    }
    verdict = selection_sentence(context.place(stage.selection)) if stage.selection else ""
    if stage.foils:  # a report without foils imports nothing of them
        from counterfoil.pipelines.stages.foil_report import compare_on_foils

        foils = compare_on_foils(context, stage)
    else:
        foils = None
    return Page(
        title=f"{context.recipe.name}: {' and '.join(evaluations)}",
        headline=" ".join(
            part for part in (verdict, headline(runs), foils.sentence if foils else "") if part
        ),
        protocol=common_line([report.setting for report in reports.values()]),
        provenance=_provenance(context, stage),
        tables=(
            result_table(runs),
            *((foils.table,) if foils else ()),
            *((forgetting,) if forgetting else ()),
            *(cascade_table(name, cascade) for name, cascade in cascades.items()),
        ),
        sections=(
            *((foils.cards,) if foils else ()),
            *(FigureSection(title, shown) for title, shown in figures.items() if shown),
            *_galleries(context, stage, evaluations),
        ),
    )


def learning_curve(name: str, path: Path) -> LearningCurve:
    """A learning curve from ``metrics.jsonl``: dev figures and mean training loss by epoch."""
    lines = read_metrics(path)
    with parsing(path, "the log of a training"):
        return _curve(name, lines)


def _curve(name: str, lines: Sequence[Mapping[str, Any]]) -> LearningCurve:
    dev = {line["epoch"]: line for line in lines if "dev_rsum" in line}
    losses = ((-(-line["epoch"] // 1), line["loss"]) for line in lines if "loss" in line)
    means: dict[float, float] = {}
    for epoch, group in groupby(losses, key=lambda pair: pair[0]):
        values = [loss for _, loss in group]
        means[epoch] = sum(values) / len(values)
    epochs = sorted(set(means) & set(dev)) if dev else sorted(means)

    def measured(name: str) -> tuple[float, ...]:
        shown = [dev[epoch] for epoch in epochs if epoch in dev]
        return (
            tuple(float(line[name]) for line in shown)
            if all(name in line for line in shown)
            else ()
        )

    return LearningCurve(
        name,
        tuple(float(epoch) for epoch in epochs),
        measured("dev_rsum"),
        tuple(means[epoch] for epoch in epochs),
        measured("dev_i2t_r1"),
        measured("dev_t2i_r1"),
    )


def _galleries(
    context: RunContext, stage: Compare, evaluations: dict[str, RetrievalEvaluation]
) -> tuple[CardSection, ...]:
    """Retrievals of the last evaluation, with the places under the others."""
    dataset = context.split(context.stage(stage.results[-1], Evaluate).split)
    if dataset.pictures is None:
        return ()
    *others, (_, last) = evaluations.items()
    i2t, t2i = last.report.ranked
    rankings = [(name, other.report.ranked) for name, other in others]
    return galleries(
        dataset,
        RankedLists(i2t, last.texts, last.text_scores, tuple((n, r[0]) for n, r in rankings)),
        RankedLists(t2i, last.images, last.image_scores, tuple((n, r[1]) for n, r in rankings)),
    )


def _provenance(context: RunContext, stage: Compare) -> Provenance:
    seeds = {s.training_seed for s in context.recipe.stages} - {None}
    return current_provenance(
        seed=seeds.pop() if len(seeds) == 1 else None,
        recipe=context.recipe.name,
        digest=context.digests[stage.name],
    )


def forgetting_table(context: RunContext, stage: Compare) -> TableBlock | None:
    """Results of pretrained models before and after; None where the first is not pretrained."""
    first = context.stage(stage.results[0], Evaluate)
    if first.using or not first.models or len(stage.results) < 2:
        return None
    if any(map(starts_untrained, first.models)):
        return None
    by_data = groupby(stage.others, key=lambda name: context.stage(name, Evaluate).data)
    groups = [stage.results, *(tuple(names) for _, names in by_data)]
    measured = [_results(context, names) for names in groups]
    rows = [
        (
            f"{where}: {run.name}",
            *(_with_change(run, METRICS.index(metric)) for metric in RECALLS),
            figure("RSum", run.numbers[RSUM]),
            _format_change(run.against[RSUM]) if run.against else "",
        )
        for where, runs in measured
        for run in runs
    ]
    sentences = [
        forgetting_sentence(where, runs[0].name, run)
        for where, runs in measured
        for run in runs[1:]
    ]
    return TableBlock(
        FORGETTING, FORGETTING_HEAD, tuple(rows), "\n".join([*sentences, FORGETTING_NOTE])
    )


def forgetting_sentence(where: str, original: str, run: RunResult) -> str:
    """Compare a run with its initial model by RSum, in one sentence."""
    change = run.against[RSUM]
    span, fallen = change.interval, change.difference < 0
    difference = (
        f"RSum {figure('', run.numbers[RSUM])}, {figure('', abs(change.difference))} "
        f"{'less' if fallen else 'more'} than {original} (95 % interval of the difference "
        f"{both_ends(span)}; p {chance(change.p)})"
    )
    if span.high < 0:
        return f"{where}: {run.name} has forgotten: {difference}."
    if span.low > 0:
        return f"{where}: {run.name} has forgotten nothing on the whole: {difference}."
    return f"{where}: it is open whether {run.name} has forgotten anything: {difference}."


def _with_change(run: RunResult, place: int) -> str:
    """A metric of a run, with its difference from the original."""
    number = figure(METRICS[place], run.numbers[place])
    return f"{number}: {_format_change(run.against[place])}" if run.against else number


def _format_change(change: Comparison) -> str:
    return f"{signed(change.difference)} ({both_ends(change.interval)}; p {chance(change.p)})"


def _results(context: RunContext, names: Sequence[str]) -> tuple[str, tuple[RunResult, ...]]:
    """Name of the data, and the runs, all but the first compared with the first."""
    reports = {}
    for name in names:
        title = context.stage(name, Evaluate).title
        reports[title] = RetrievalEvaluation.open(context.place(name)).report
    setting, data = next(iter(reports.values())).setting, context.stage(names[0], Evaluate).data
    return f"{data or setting.dataset} {setting.split}".strip(), results(reports)
