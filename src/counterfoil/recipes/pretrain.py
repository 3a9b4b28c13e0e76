"""What a pre-training stage does."""

from __future__ import annotations

from counterfoil.core.console import info, warn
from counterfoil.corpus.regions import Features
from counterfoil.models.uniter import UNITER
from counterfoil.models.vilt import ViLT
from counterfoil.recipes.begin import begun
from counterfoil.recipes.context import Context
from counterfoil.recipes.keeping import best, keep, kept_already, remove_checkpoints, timed
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.selecting import chosen_on
from counterfoil.train import pretrain as training
from counterfoil.train.pretrain_batches import CLASSED, TASKS, Tasks

HEADS = {"mlm": "fill", "mrfr": "regress", "mrc": "classify", "mrckl": "classify", "itm": "match"}


def check(context: Context, stage: Pretrain) -> None:
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


def pretrain(context: Context, stage: Pretrain, *, resume: bool) -> None:
    """Pre-train the stage's model and save it with its lens."""
    if resume and kept_already(context, stage):
        remove_checkpoints(context, stage)
        return
    model = begun(context, stage)
    assert model.lens is not None
    detector = _detector(context)
    if left_out := [t for t in _drawn(stage.tasks) if t in CLASSED and detector is None]:
        warn(
            f"{stage.name}: nobody says which classes the regions of {context.corpus.name} have, "
            f"so {' and '.join(left_out)} left out"
        )
    dev = chosen_on(context, stage)
    fitted = training.pretrain(
        timed(stage.plan, context.left()),
        model.matcher,
        stage.tasks,
        model.lens.on(context.train),
        folder=context.place(stage.name),
        classes=detector,
        dev=model.lens.on(dev) if dev else None,
        run=context.digests[stage.name],
        resume=resume,
    )
    keep(context, stage, model, fitted)
    told = best(fitted, stage.plan.select)
    info(f"{stage.name}: {told}, {fitted.seconds:,.0f} s, {context.place(stage.name)}")


def _detector(context: Context) -> Features | None:
    """What says how likely the classes of regions are, if anything does."""
    features = context.train.features
    return features if features is not None and features.classes is not None else None


def _drawn(tasks: Tasks) -> list[str]:
    return [task for task, ratio in zip(TASKS, tasks.ratios(), strict=True) if ratio]
