"""What the best epoch of a training is chosen on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from counterfoil.core.console import info, warn
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.protocols import evaluate
from counterfoil.matcher import Matcher
from counterfoil.recipes.context import Context
from counterfoil.recipes.model import Model
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.recipe import Train
from counterfoil.train.figures import IMAGES

SEED = 0  # of the sample: the same for all trainings


def chosen_on(context: Context, stage: Train | Pretrain) -> Corpus | None:
    """Dev, or as many of its images as the plan asks for, with all their captions.

    A larger sample holds the smaller ones. What is not all of dev is said.
    """
    corpus, many = context.dev, stage.plan.dev_images
    if corpus is None:
        warn(
            f"{context.corpus.name} has no dev split: the last epoch is kept, whatever it is worth"
        )
        return None
    if not 0 < many < len(corpus):
        return corpus
    order = torch.randperm(len(corpus), generator=torch.Generator().manual_seed(SEED))
    sample = corpus.subset(order[:many].sort().values)
    info(
        f"{stage.name}: measured on {many:,} of the {len(corpus):,} images of {corpus.part}, drawn "
        f"by seed {SEED}, with all their captions"
    )
    return sample


def measure(
    context: Context, stage: Train, model: Model
) -> Callable[[Matcher], Mapping[str, float]] | None:
    """What gives dev figures of a model with the lens of another; None where there is no dev."""
    corpus = chosen_on(context, stage)
    if corpus is None:
        return None
    sampled = {IMAGES: float(len(corpus))} if corpus is not context.dev else {}

    def figures(matcher: Matcher) -> Mapping[str, float]:
        inside = any(part is matcher for part in model.matcher.modules())
        member = (model if inside else replace(model, matcher=matcher)).member(corpus)
        found = evaluate([member], corpus.owner, len(corpus), besides=corpus.also)
        return {
            "rsum": found.rsum,
            **{f"i2t_r{k}": r for k, r in zip((1, 5, 10), found.i2t.numbers)},
            **{f"t2i_r{k}": r for k, r in zip((1, 5, 10), found.t2i.numbers)},
            **sampled,
        }

    return figures
