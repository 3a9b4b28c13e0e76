"""The report of a run: evaluations side by side, curves, hardness, retrievals."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from counterfoil.core.console import output
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.evaluation.galleries import Exhibits, Found, galleries
from counterfoil.evaluation.results import headline, result_table, results
from counterfoil.negatives import diagnose
from counterfoil.pipelines.forgetting import forgetting_table
from counterfoil.pipelines.pipeline import (
    Compare,
    Evaluate,
    Mine,
    Pretrain,
    Train,
    evaluation_title,
)
from counterfoil.pipelines.plan import console
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.pipelines.state import RunContext, current_provenance
from counterfoil.report.figures import LearningCurve, NamedSample, gap_histograms, learning_curves
from counterfoil.report.page import CardSection, FigureSection, Page, Provenance, write_page
from counterfoil.report.tables import terminal_table
from counterfoil.training.logging import read_metrics

HARDNESS = "hardness.safetensors"
REPORT = "report.html"


def comparison_page(context: RunContext, stage: Compare) -> Page:
    """The report of a run: results, learning curves, hardness of negatives, retrievals."""
    found = {
        _name(context, name): RetrievalEvaluation.open(context.place(name))
        for name in stage.results
    }
    reports = {name: measured.report for name, measured in found.items()}
    trained, lost = _trained(context, stage), forgetting_table(context, stage)
    runs = results(reports)
    curves = [learning_curve(name, context.place(name) / "metrics.jsonl") for name in trained]
    gaps = _hardness(context, stage.negatives) if stage.negatives else ()
    figures = {
        "Learning curves": learning_curves(curves),
        "Hardness of negatives": (gap_histograms(gaps),) if gaps else (),
    }
    return Page(
        title=f"{context.recipe.name}: {' and '.join(found)}",
        headline=headline(runs),
        protocol=next(iter(reports.values())).setting.line(),
        provenance=_provenance(context, stage),
        tables=(result_table(runs), *((lost,) if lost else ())),
        sections=(
            *(FigureSection(title, some) for title, some in figures.items() if some),
            *_galleries(context, stage, found),
        ),
    )


def write_comparison(shown: Page, folder: Path) -> None:
    """Print the tables and write ``report.html`` in the stage's folder."""
    for table in shown.tables:
        console.print(terminal_table(table, shown.protocol))
    folder.mkdir(parents=True, exist_ok=True)
    write_page(shown, folder / REPORT)
    output(f"{folder / REPORT}")


def learning_curve(name: str, path: Path) -> LearningCurve:
    """A learning curve from ``metrics.jsonl``: dev RSum and mean training loss of each epoch."""
    lines = read_metrics(path)
    dev = {line["epoch"]: line["dev_rsum"] for line in lines if "dev_rsum" in line}
    losses = ((-(-line["epoch"] // 1), line["loss"]) for line in lines if "loss" in line)
    means: dict[float, float] = {}
    for epoch, group in groupby(losses, key=lambda pair: pair[0]):
        values = [loss for _, loss in group]
        means[epoch] = sum(values) / len(values)
    epochs = sorted(set(means) & set(dev)) if dev else sorted(means)
    return LearningCurve(
        name,
        tuple(float(epoch) for epoch in epochs),
        tuple(dev[epoch] for epoch in epochs if epoch in dev),
        tuple(means[epoch] for epoch in epochs),
    )


def save_hardness(found: diagnose.NegativeHardness, folder: Path) -> None:
    """Keep what was measured beside the mined lists."""
    tensors = {"positive": found.positive, "online": found.online, "offline": found.offline}
    write_tensors(folder / HARDNESS, tensors, {"batch": found.batch})


def _hardness(context: RunContext, mining: str) -> tuple[NamedSample, ...]:
    stage = context.recipe.stage(mining)
    assert isinstance(stage, Mine)
    return hardness_at(context.place(mining), " + ".join((*stage.using, *stage.models)))


def hardness_at(folder: Path, scorer: str) -> tuple[NamedSample, ...]:
    """What `save_hardness` kept of negatives of a batch and of mined ones.

    Args:
        folder: of the mining.
        scorer: who mined, in words.

    Raises:
        ValueError: nothing was kept, or it is damaged.
    """
    tensors, about = read_tensors(folder / HARDNESS, "the hardness of negatives")
    names = {
        "online": f"online: hardest of a batch of {about['batch']}, by {scorer}",
        "offline": f"offline: mined, by {scorer}",
    }
    gaps = {kind: tensors[kind] - tensors["positive"] for kind in names}
    return tuple(NamedSample(name, gaps[kind].numpy()) for kind, name in names.items())


def _name(context: RunContext, evaluation: str) -> str:
    stage = context.recipe.stage(evaluation)
    assert isinstance(stage, Evaluate)
    return evaluation_title((*stage.using, *stage.models), stage.first, stage.depth)


def _trained(context: RunContext, stage: Compare) -> tuple[str, ...]:
    """Training stages behind the evaluations, each once."""
    stages = [context.recipe.stage(name) for name in stage.results]
    used = [name for s in stages if isinstance(s, Evaluate) for name in s.using]
    return tuple(dict.fromkeys(used))


def _galleries(
    context: RunContext, stage: Compare, found: dict[str, RetrievalEvaluation]
) -> tuple[CardSection, ...]:
    """Retrievals of the last evaluation, with the places under the others."""
    evaluation = context.recipe.stage(stage.results[-1])
    assert isinstance(evaluation, Evaluate)
    dataset = context.split(evaluation.split)
    if dataset.pictures is None:
        return ()
    *others, (_, shown) = found.items()
    i2t, t2i = shown.report.ranked
    rest = [(name, other.report.ranked) for name, other in others]
    return galleries(
        Exhibits(
            dataset.texts, dataset.text_to_image, dataset.pictures.open, dataset.extra_positives
        ),
        Found(i2t, shown.texts, shown.text_scores, tuple((n, r[0]) for n, r in rest)),
        Found(t2i, shown.images, shown.image_scores, tuple((n, r[1]) for n, r in rest)),
    )


def _provenance(context: RunContext, stage: Compare) -> Provenance:
    seeds = {s.plan.seed for s in context.recipe.stages if isinstance(s, Train | Pretrain)}
    return current_provenance(
        seed=seeds.pop() if len(seeds) == 1 else None,
        recipe=context.recipe.name,
        digest=context.digests[stage.name],
    )
