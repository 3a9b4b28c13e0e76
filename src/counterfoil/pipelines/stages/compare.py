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
from counterfoil.evaluation.galleries import differ, galleries, side_by_side
from counterfoil.evaluation.metrics import METRICS, RSUM, EvaluationReport, common_line
from counterfoil.evaluation.results import (
    MAP_AT_R,
    RunResult,
    cascade_figure,
    cascade_table,
    chance,
    figure,
    headline,
    model_table,
    result_table,
    results,
    signed,
    truths_table,
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
        called: what the models are called, for each of `results`, in words that a newcomer knows;
            the report then opens with queries that the first and the last answer.
        several: evaluations of the same models, in this order, by a truth of several right answers;
            mAP@R by these stands beside RSum.
    """

    kind: ClassVar[str] = "compare"
    takes: ClassVar[Mapping[str, str]] = {
        "results": "evaluate",
        "others": "evaluate",
        "several": "evaluate",
        "negatives": "mine",
        "selection": "select",
    }
    results: tuple[str, ...]
    negatives: str | None = None
    others: tuple[str, ...] = ()
    selection: str | None = None
    foils: int = 0
    called: tuple[str, ...] = ()
    several: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.called and len(set(self.called)) != len(self.results):
            raise ValueError(
                f"called has {len(set(self.called))} different names for {len(self.results)} "
                "results; give each its own, or none"
            )
        if self.several and len(self.several) != len(self.results):
            raise ValueError(
                f"several has {len(self.several)} evaluations for {len(self.results)} results; "
                "name one of each model, or none"
            )

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
            evaluations = _evaluations(context, self)
            runs = results({name: each.report for name, each in evaluations.items()})
            page, path = (
                comparison_page(context, self, evaluations, runs),
                context.place(self.name) / REPORT,
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            write_page(page, path)
            if self.called:  # the rest is in the table, and in the page
                for sentence in first_answers(runs, next(iter(evaluations.values())).report):
                    output(sentence)
            else:  # the stage that selects has said its sentence
                output(page.headline.removeprefix(_selected(context, self)).lstrip())
            for table in self._shown(page.tables, runs):
                console.print(TerminalTable(table, page.protocol))
            if self.selection:
                output(f"the model to use: {context.place(self.selection)}")
            output(f"open {path}")

    def _shown(
        self, tables: Sequence[TableBlock], runs: Sequence[RunResult]
    ) -> Iterator[TableBlock]:
        """What the terminal shows of the report: recalls, and what only this comparison has."""
        recalls, *others = tables
        if self.several:
            yield others.pop(0)
        elif self.called or len(runs) > 2:
            yield model_table(runs)
        else:
            rows = tuple(row for row in recalls.rows if not str(row[0]).endswith("rank"))
            yield replace(recalls, rows=rows, note="Below each number: its 95 % interval.")
        if not self.called:
            yield from (table for table in others if self.others or table.title != FORGETTING)


def _by_several(context: RunContext, stage: Compare) -> tuple[RunResult, ...]:
    """The models, as they are called, by a truth of several right answers."""
    titles = _evaluations(context, stage)
    opened = (RetrievalEvaluation.open(context.place(name)) for name in stage.several)
    return results({title: each.report for title, each in zip(titles, opened)})


def _evaluations(context: RunContext, stage: Compare) -> dict[str, RetrievalEvaluation]:
    titles = stage.called or [context.stage(name, Evaluate).title for name in stage.results]
    return {
        title: RetrievalEvaluation.open(context.place(name))
        for title, name in zip(titles, stage.results, strict=True)
    }


def _selected(context: RunContext, stage: Compare) -> str:
    """The sentence of the stage that selects a model, if there is one."""
    return selection_sentence(context.place(stage.selection)) if stage.selection else ""


def comparison_page(
    context: RunContext,
    stage: Compare,
    evaluations: Mapping[str, RetrievalEvaluation],
    runs: Sequence[RunResult],
) -> Page:
    """The report of a run: results, learning curves, hardness of negatives, retrievals."""
    titles = list(evaluations)
    reports = {name: evaluation.report for name, evaluation in evaluations.items()}
    used = (name for result in stage.results for name in context.stage(result, Evaluate).using)
    trained = [n for n in dict.fromkeys(used) if isinstance(context.recipe.stage(n), ModelStage)]
    forgetting = forgetting_table(context, stage)
    named = dict(zip(trained, titles)) if stage.called else {name: name for name in trained}
    curves = [
        learning_curve(title, context.place(name) / "metrics.jsonl")
        for name, title in named.items()
    ]
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
    by_all = _by_several(context, stage)
    if stage.foils:  # a report without foils imports nothing of them
        from counterfoil.pipelines.stages.foil_report import compare_on_foils

        foils = compare_on_foils(context, stage, (titles[0], titles[-1]))
    else:
        foils = None
    return Page(
        title=f"{context.recipe.name}: {' and '.join(evaluations)}",
        headline=" ".join(
            part
            for part in (
                _selected(context, stage),
                " ".join(first_answers(runs, next(iter(reports.values()))))
                if stage.called
                else headline(runs),
                several_sentence(by_all) if by_all else "",
                foils.sentence if foils else "",
            )
            if part
        ),
        protocol=common_line([report.setting for report in reports.values()]),
        provenance=_provenance(context, stage),
        opening=_answers(context, stage, evaluations) if stage.called else (),
        tables=(
            result_table(runs),
            *((truths_table(runs, by_all),) if by_all else ()),
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
    context: RunContext, stage: Compare, evaluations: Mapping[str, RetrievalEvaluation]
) -> tuple[CardSection, ...]:
    """Retrievals of the last evaluation, with the places under the others."""
    dataset = context.split(context.stage(stage.results[-1], Evaluate).split)
    if dataset.pictures is None:
        return ()
    *others, (_, last) = evaluations.items()
    i2t, t2i = (
        replace(lists, others=tuple((name, each.report.ranked[side]) for name, each in others))
        for side, lists in enumerate(last.ranked_lists)
    )
    return galleries(dataset, i2t, t2i)


def first_answers(runs: Sequence[RunResult], report: EvaluationReport) -> tuple[str, str]:
    """What two models find first, in words that a newcomer knows: a caption, and a picture."""
    first, last, setting = runs[0], runs[-1], report.setting
    caption, picture = (METRICS.index(metric) for metric in RECALLS)
    spans = [last.against[place].interval for place in (caption, picture)]
    caveat = ["" if span.low > 0 or span.high < 0 else ", which could be chance" for span in spans]
    return (
        f"The model {last.name} finds a right caption first for {last.numbers[caption]:.1f} % of "
        f"{setting.images:,} pictures, the one {first.name} for {first.numbers[caption]:.1f} % "
        f"(95 % interval of the difference {both_ends(spans[0])}{caveat[0]}).",
        f"It finds the right picture first for {last.numbers[picture]:.1f} % of "
        f"{setting.texts:,} captions, the other for {first.numbers[picture]:.1f} % "
        f"({both_ends(spans[1])}{caveat[1]}).",
    )


def several_sentence(runs: Sequence[RunResult]) -> str:
    """How the last model differs from the first where every true pair is right."""
    place = runs[-1].metrics.index(MAP_AT_R)
    change = runs[-1].against[place]
    caveat = ", which could be chance" if change.interval.low <= 0 <= change.interval.high else ""
    return (
        f"Where every picture that a caption is true of is right, mAP@R is "
        f"{runs[-1].numbers[place]:.1f} against {runs[0].numbers[place]:.1f} "
        f"({both_ends(change.interval)}{caveat})."
    )


ANSWERS = (("t2i", 2, 1, 3), ("i2t", 1, 1, 3))  # direction, for the last, for the first, items


def _answers(
    context: RunContext, stage: Compare, evaluations: Mapping[str, RetrievalEvaluation]
) -> tuple[CardSection, ...]:
    """Queries on which the first and the last model differ most, answered by both."""
    dataset = context.split(context.stage(stage.results[0], Evaluate).split)
    named = list(evaluations.items())
    if dataset.pictures is None or len(named) < 2:
        return ()
    both, cards, counts = dict((named[0], named[-1])), [], []
    for direction, better, worse, depth in ANSWERS:
        lists = {name: each.ranked_lists[direction == "t2i"] for name, each in both.items()}
        one, other = (each.ranked for each in lists.values())
        gained, lost = differ(one, other, max(better, worse))
        cards += [
            side_by_side(dataset, lists, row, depth) for row in (*gained[:better], *lost[:worse])
        ]
        counts.append(
            f"{int((other.ranks < one.ranks).sum()):,} of {len(one):,} "
            f"{'captions' if direction == 't2i' else 'pictures'} better and "
            f"{int((other.ranks > one.ranks).sum()):,} worse"
        )
    note = (
        f"{context.recipe.about.capitalize()}. Green is right. Chosen are those on which the two "
        f"differ most, either way: the one {named[-1][0]} answers {' and '.join(counts)} than the "
        "other."
    )
    return (CardSection("The same questions to both models", note, tuple(cards)),)


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
