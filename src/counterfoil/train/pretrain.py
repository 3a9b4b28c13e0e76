"""Pre-trains a model in its domain, with the checkpoints and the metrics of every training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.corpus.lens import CorpusLens
from counterfoil.corpus.sampler import Sampler
from counterfoil.matcher import Matcher
from counterfoil.spec import digest
from counterfoil.train.checkpoint import Checkpoints
from counterfoil.train.log import check_trackers
from counterfoil.train.loop import sampler_of
from counterfoil.train.plan import TrainPlan
from counterfoil.train.pretrain_batches import TASKS, Classes, Task, Tasks, TaskStream
from counterfoil.train.pretrain_step import Pretraining, PreTrains, asked, can_pretrain, mask_word
from counterfoil.train.training import Fitted, Training

ACCURACY = "accuracy"  # the dev figure that an epoch is chosen by
DECIDED: tuple[Task, ...] = ("mlm", "itm")  # tasks with an answer that is right or wrong
MOST = 2048  # pairs of dev that are asked


def pretrain(
    plan: TrainPlan,
    matcher: Matcher,
    tasks: Tasks,
    train: CorpusLens,
    *,
    folder: Path,
    classes: Classes | None = None,
    dev: CorpusLens | None = None,
    run: str = "",
    resume: bool = False,
) -> Fitted:
    """Pre-train a model in place; with `resume`, from the last checkpoint in the folder on.

    Every process of a group calls this with the same arguments.

    Args:
        plan: how to train; `plan.select` is "accuracy", the mean of "mlm" and "itm", or one of
            them, in percent.
        matcher: the model, with the weights to begin from.
        tasks: what it is asked, and how often.
        train: the training split as the model sees it.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` are written.
        classes: how likely the classes of regions are; without it "mrc" and "mrckl" are left out.
        dev: the split that an epoch is chosen on.
        run: digest of what else the numbers depend on: the recipe, the weights to begin from.
        resume: go on from the last checkpoint, if there is one; else earlier ones are removed.

    Raises:
        ValueError: the model or the plan does not go with pre-training, no task is left, a tracker
            is not installed, the loss is not finite, or the checkpoint is damaged or belongs to
            another training.
    """
    check_trackers(plan.track)
    if plan.chunk:
        raise ValueError(
            f"chunk={plan.chunk} is for losses that compare the pairs of a batch, which "
            "pre-training does not; set batch to fewer and accumulate to more"
        )
    tasks = tasks if classes is not None else tasks.without_classes()
    can_pretrain(matcher, tasks)
    step = Pretraining(matcher, tasks, precision=plan.precision).to(world.device())
    stream = TaskStream(
        lens=train,
        sampler=sampler_of(plan, train.corpus),
        epochs=plan.epochs,
        seed=plan.seed,
        tasks=tasks,
        mask=mask_word(matcher),
        words=words_of(train),
        accumulate=plan.accumulate,
        classes=classes,
    )
    shapes = [(name, list(value.shape)) for name, value in step.state_dict().items()]
    numbers = [run, plan.numbers(), train.corpus.fingerprint, asdict(tasks), shapes]
    saved = Checkpoints(folder / "checkpoints", digest(numbers))
    measure = None if dev is None or not _decided(tasks) else Measured(tasks, dev, plan.batch)
    training = Training(plan, step, stream, saved, measure)
    return training.run(folder / "metrics.jsonl", resume=resume)


def words_of(lens: CorpusLens) -> Tensor:
    """(W,) long, ids that stand for a word.

    Raises:
        ValueError: texts are ready-made vectors.
    """
    tokenizer = lens.lens.tokenizer
    if tokenizer is None:
        raise ValueError("pre-training hides words, and these texts are ready-made vectors")
    kept = torch.ones(tokenizer.size, dtype=torch.bool)
    kept[list(tokenizer.wordless)] = False
    return kept.nonzero().squeeze(1)


@final
class Measured:
    """How often a model is right on dev, in percent: always asked the same.

    Args:
        tasks: of the training; those that cannot be right or wrong are not asked.
        lens: dev as the model sees it.
        batch: pairs read at a time.
    """

    def __init__(self, tasks: Tasks, lens: CorpusLens, batch: int) -> None:
        self.tasks, self.lens = tasks, lens
        self.sampler = Sampler(lens.corpus.relation, batch=batch, seed=0)

    def __call__(self, matcher: Matcher) -> Mapping[str, float]:
        """Of each task, and "accuracy", their mean."""
        assert isinstance(matcher, PreTrains)
        word, words = mask_word(matcher), words_of(self.lens)
        found: dict[str, float] = {}
        for task in _decided(self.tasks):
            only = self.tasks.only(task)
            stream = TaskStream(
                lens=self.lens,
                sampler=self.sampler,
                epochs=1,
                seed=0,
                tasks=only,
                mask=word,
                words=words,
            )
            found[task] = self._right(matcher, stream, task)
        return {**found, ACCURACY: sum(found.values()) / len(found)}

    @torch.no_grad()
    def _right(self, matcher: PreTrains, stream: TaskStream, task: Task) -> float:
        batches = min(len(self.sampler), -(-MOST // self.sampler.batch))
        right = torch.zeros(2, dtype=torch.long, device=world.device())
        with progress(f"batches of {task}", batches) as advance:
            for batch in islice(stream.batches(), batches):
                said = asked(matcher, batch.to(world.device()))
                hits = (said.answers.argmax(1) == said.truth).sum()
                right += torch.stack([hits, hits.new_tensor(len(said.truth))])
                advance(1)
        hit, all_ = world.gather(right).sum(0).tolist()
        return float(100 * hit / max(all_, 1))


def _decided(tasks: Tasks) -> tuple[Task, ...]:
    """The tasks that are drawn and are right or wrong."""
    ratios = dict(zip(TASKS, tasks.ratios(), strict=True))
    return tuple(task for task in DECIDED if ratios[task])
