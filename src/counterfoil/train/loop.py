"""Trains a model: epochs of steps, the best epoch on dev kept, resumable at any step."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from torch import nn

from counterfoil import world
from counterfoil.corpus.collate import Positives
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import CorpusLens
from counterfoil.corpus.sampler import Sampler
from counterfoil.matcher import Matcher
from counterfoil.negatives.draws import Draws, Needed
from counterfoil.negatives.guide import Guide
from counterfoil.negatives.mined import Mined, MinedPlan
from counterfoil.negatives.neighbours import Neighbours
from counterfoil.negatives.offers import check as check_candidates
from counterfoil.negatives.proposal import Proposer, screened
from counterfoil.objectives.term import Objective
from counterfoil.records import Role
from counterfoil.spec import digest
from counterfoil.train.checkpoint import Checkpoints
from counterfoil.train.log import check_trackers
from counterfoil.train.plan import TrainPlan
from counterfoil.train.prefetch import Stream
from counterfoil.train.refresh import Refresh, Relisting, check
from counterfoil.train.step import Step
from counterfoil.train.training import Fitted, Measure, Training

__all__ = ["Fitted", "Measure", "fit", "sampler_of"]

_NEVER, _FROM_ALL = Refresh(), MinedPlan()


def fit(
    plan: TrainPlan,
    matcher: Matcher,
    objective: Objective,
    train: CorpusLens,
    *,
    folder: Path,
    draws: Draws | None = None,
    candidates: Draws | None = None,
    proposer: Proposer | None = None,
    guide: Guide | None = None,
    positives: Positives = "id",
    refresh: Refresh = _NEVER,
    draw: MinedPlan = _FROM_ALL,
    neighbours: Neighbours | None = None,
    evaluate: Measure | None = None,
    run: str = "",
    resume: bool = False,
) -> Fitted:
    """Train a model in place; with `resume`, from the last checkpoint in the folder on.

    Every process of a group calls this with the same arguments.

    Args:
        plan: how to train.
        matcher: the model, with the weights to begin from.
        objective: the loss.
        train: the training split as the model sees it.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` are written.
        draws: negatives drawn before a batch is encoded.
        candidates: what the proposer screens.
        proposer: candidates that depend on the model as it is now.
        guide: soft targets.
        positives: which pairs are true.
        refresh: when the model mines `train` anew; from then on its own lists are drawn from, kept
            in ``lists/``.
        draw: how to draw from them.
        neighbours: who else joins the captions of a batch as an anchor.
        evaluate: dev figures of the model in evaluation mode, after each epoch; every process
            calls it. `plan.select` is one of them.
        run: digest of what else the numbers depend on: the recipe, the weights to begin from.
        resume: go on from the last checkpoint, if there is one; else earlier ones are removed.

    Raises:
        ValueError: what the objective needs is not provided, or not early enough, a tracker is not
            installed, the loss is not finite, or the checkpoint is damaged or belongs to another
            training.
    """
    check_trackers(plan.track)
    needed = Needed(draws, objective.needs) if draws else None
    offered = _offered(candidates, proposer, objective)
    stream = replace(_stream(plan, train, needed, offered, positives), neighbours=neighbours)
    later = _later(refresh, objective, draw, stream)
    step = Step(
        matcher, objective, proposer=proposer, guide=guide, seed=plan.seed,
        provides=needed.provides if needed else later, precision=plan.precision,
    ).to(world.device())  # fmt: skip
    if isinstance(guide, nn.Module):
        guide.to(world.device())
    numbers = [run, plan.numbers(), train.corpus.fingerprint, positives, _shapes(step)]
    key = digest([*numbers, asdict(refresh), asdict(draw)] if later else numbers)
    lists = Relisting(refresh, stream, draw, later, folder / "lists", key) if later else None
    saved = Checkpoints(folder / "checkpoints", key)
    training = Training(plan, step, stream, saved, evaluate, lists)
    return training.run(folder / "metrics.jsonl", resume=resume)


def sampler_of(plan: TrainPlan, corpus: Corpus) -> Sampler:
    """Which captions of a corpus meet."""
    return Sampler(
        corpus.relation,
        batch=plan.batch,
        seed=plan.seed,
        one_caption=plan.one_caption,
        drop_last=plan.drop_last,
        all_captions=plan.all_captions,
    )


def _offered(
    candidates: Draws | None, proposer: Proposer | None, objective: Objective
) -> Needed | None:
    """Candidates in the roles that are screened and judged."""
    provided = candidates.provides if candidates else frozenset[Role]()
    check_candidates(provided, screened(proposer), objective.needs)
    return Needed(candidates, objective.needs) if candidates else None


def _stream(
    plan: TrainPlan,
    train: CorpusLens,
    draws: Needed | None,
    candidates: Needed | None,
    positives: Positives,
) -> Stream:
    return Stream(
        lens=train,
        sampler=sampler_of(plan, train.corpus),
        epochs=plan.epochs,
        seed=plan.seed,
        draws=draws,
        candidates=candidates,
        positives=positives,
    )


def _later(
    refresh: Refresh, objective: Objective, draw: MinedPlan, stream: Stream
) -> frozenset[Role]:
    """Roles that will be drawn from lists which the model mines while it is trained."""
    if not refresh.every:
        return frozenset()
    batches, listed = len(stream.sampler), stream.draws is not None
    check(refresh, objective, draw, batches=batches, listed=listed)
    return Mined.provides & objective.needs


def _shapes(step: Step) -> list[tuple[str, list[int]]]:
    return [(name, list(value.shape)) for name, value in step.state_dict().items()]
