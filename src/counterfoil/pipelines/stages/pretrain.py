"""What a pre-training stage does."""

from __future__ import annotations

from counterfoil.core.console import info, warn
from counterfoil.data.features import FeatureArray
from counterfoil.models.uniter import UNITER
from counterfoil.models.vilt import ViLT
from counterfoil.pipelines.pipeline import Pretrain
from counterfoil.pipelines.stages.fitting import (
    best_epoch_note,
    build_for_training,
    is_finished,
    limit_minutes,
    remove_checkpoints,
    save_result,
    selection_note,
)
from counterfoil.pipelines.state import RunContext
from counterfoil.training import pretrain
from counterfoil.training.pretrain import CLASSED, TASKS, PretrainTasks

HEADS = {"mlm": "fill", "mrfr": "regress", "mrc": "classify", "mrckl": "classify", "itm": "match"}


def check_pretrain(context: RunContext, stage: Pretrain) -> None:
    """Refuse a pre-training that would fail only after a while.

    Raises:
        ValueError: no task is left, or the model lacks a head that some task asks.
    """
    told = _detector(context) is not None
    tasks = stage.tasks if told else stage.tasks.without_classes()
    if stage.model.make not in (UNITER, ViLT):
        return
    outputs = stage.model.arguments.get("outputs", ("rank",))
    for task in _drawn(tasks):
        if HEADS[task] not in outputs:
            raise ValueError(
                f"{stage.name!r} draws the task {task!r}, for which its model has no head "
                f"{HEADS[task]!r}; add it to outputs={outputs!r}, or set {stage.name}.{task}=0"
            )


def run_pretrain(context: RunContext, stage: Pretrain, *, resume: bool) -> None:
    """Pre-train the stage's model and save it with its processor."""
    if resume and is_finished(context, stage):
        remove_checkpoints(context, stage)
        return
    model = build_for_training(context, stage)
    assert model.processor is not None
    detector = _detector(context)
    if left_out := [t for t in _drawn(stage.tasks) if t in CLASSED and detector is None]:
        warn(
            f"{stage.name}: nobody says which classes the regions of {context.dataset.name} have, "
            f"so {' and '.join(left_out)} left out"
        )
    dev = selection_note(context, stage)
    fitted = pretrain.pretrain(
        limit_minutes(stage.plan, context.left()),
        model.model,
        stage.tasks,
        model.processor.process(context.train),
        folder=context.place(stage.name),
        classes=detector,
        dev=model.processor.process(dev) if dev else None,
        run=context.digests[stage.name],
        resume=resume,
    )
    save_result(context, stage, model, fitted)
    told = best_epoch_note(fitted, stage.plan.select)
    info(f"{stage.name}: {told}, {fitted.seconds:,.0f} s, {context.place(stage.name)}")


def _detector(context: RunContext) -> FeatureArray | None:
    """What says how likely the classes of regions are, if anything does."""
    features = context.train.features
    return features if features is not None and features.classes is not None else None


def _drawn(tasks: PretrainTasks) -> list[str]:
    return [task for task, ratio in zip(TASKS, tasks.ratios(), strict=True) if ratio]
