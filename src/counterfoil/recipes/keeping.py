"""What trainings of every kind keep, and how they are cut short and gone on with."""

from __future__ import annotations

import shutil
from dataclasses import replace

from counterfoil import world
from counterfoil.matcher import LowRank, Matcher
from counterfoil.recipes.context import Context, Stopped
from counterfoil.recipes.model import MODEL, Model
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.recipe import Train
from counterfoil.spec import Spec
from counterfoil.train.figures import sampled
from counterfoil.train.plan import TrainPlan
from counterfoil.train.saved import CARD, read_card, save_model
from counterfoil.train.training import Fitted


def timed(plan: TrainPlan, left: float | None) -> TrainPlan:
    """The plan with what is left of the run's time, where that is less than its own."""
    if left is None or 0 < plan.minutes < left:
        return plan
    return replace(plan, minutes=max(left, 0.01))


def kept_already(context: Context, stage: Train | Pretrain) -> bool:
    """Whether the stage was stopped between its last act and the note that it is done."""
    folder = context.place(stage.name) / MODEL
    if not (folder / CARD).is_file():
        return False
    return read_card(folder).provenance.get("digest") == context.digests[stage.name]


def keep(context: Context, stage: Train | Pretrain, model: Model, fitted: Fitted) -> None:
    """Save a finished model with its lens; one that did not finish stops the run.

    Raises:
        Stopped: it did not.
    """
    if not fitted.finished:
        why = "out of time" if fitted.why == "minutes" else "interrupted"
        raise Stopped(f"{why} after {fitted.steps} steps")
    assert model.lens is not None
    spec = _merged(model)
    if world.rank() == 0:
        save_model(
            context.place(stage.name) / MODEL,
            spec=spec,
            matcher=model.matcher,
            lens=model.lens,
            provenance=_provenance(context, stage, fitted),
            metrics=fitted.best.dev if fitted.best else {},
        )
        remove_checkpoints(context, stage)
    world.wait()


def remove_checkpoints(context: Context, stage: Train | Pretrain) -> None:
    """What a finished training no longer needs."""
    if world.rank() == 0:
        shutil.rmtree(context.place(stage.name) / "checkpoints", ignore_errors=True)


def best(fitted: Fitted, figure: str) -> str:
    """In words: how many epochs, and the best of them with its dev figure."""
    if fitted.best is None:
        return f"{fitted.epochs} epochs"
    on = sampled(fitted.best.dev)
    begun = max(fitted.epochs, fitted.best.epoch)  # the last one may be cut short
    return f"best epoch {fitted.best.epoch} of {begun}, dev {figure} {fitted.best.value:.1f}{on}"


def _merged(model: Model) -> Spec[Matcher]:
    """How to build the model once its adapters are in its weights, unless they stay apart."""
    assert model.spec is not None
    matcher = model.matcher
    if not isinstance(matcher, LowRank) or not matcher.lora or matcher.apart:
        return model.spec
    matcher.merge()
    return model.spec.but(lora=0)


def _provenance(context: Context, stage: Train | Pretrain, fitted: Fitted) -> dict[str, object]:
    return {
        "recipe": context.recipe.name,
        "stage": stage.name,
        "digest": context.digests[stage.name],
        "data": context.corpus.name,
        "data_fingerprint": context.corpus.fingerprint,
        "seed": stage.plan.seed,
        "epochs": fitted.epochs,
        "best_epoch": fitted.best.epoch if fitted.best else fitted.epochs,
    }
