"""VSE-C: training on the hardest caption that is changed by rule.

Shi et al., "Learning visually-grounded semantics from contrastive adversarial samples", COLING 2018
(https://arxiv.org/abs/1806.10348). The hardest triplet of VSE++; from the second epoch on, 5
changed captions of every caption of the batch are one pool, and each image is held against the
hardest of the pool too. One recipe has all kinds of changed captions, the others one kind each.

Numbers of the authors' code: Adam at 1e-3, a tenth after 15 of 30 epochs, batches of 128, margin
0.2, word vectors of 400. Rates on `scenes` and Flickr8k are ours.

Departs from the authors' code in: all 400 entries of a word vector are learnt, where theirs are 300
of GloVe, fixed, beside 100; at most 20 changed captions of a kind are stored for each caption; the
checkpoint is chosen by RSum, not by R@1 + R@5 + R@10 of images among true and changed captions; and
see `counterfoil.papers.compared.rules.RuleGenerator`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from counterfoil.core.config import config, from_stage, lazy
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.losses.schedules import StartAt
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.negatives.generated import GeneratedCaptions
from counterfoil.papers.systems import (
    EPOCH,
    LARGE,
    VSEC_FOILS,
    VSEC_PLAN,
    VSEC_WORD_WIDTH,
    DataSet,
)
from counterfoil.papers.tags.stage import RewriteByRule, RuleConfig
from counterfoil.papers.training import (
    as_published,
    dataset_recipe,
    evaluation_stages,
    online_stage,
    warmup_steps,
)
from counterfoil.pipelines.pipeline import Recipe
from counterfoil.recipes.base import MARGIN
from counterfoil.recipes.catalogue import OneOf

MODEL = "vsepp"
STORED = 20  # of a caption and kind


@as_published
def vse_c(
    *,
    like: DataSet = "scenes",
    kinds: Annotated[str, OneOf(("all", *RULE_KINDS))] = "all",
) -> Recipe:
    """VSE-C: change captions by rule, and train VSE++ with the hardest of them.

    Args:
        like: data set whose numbers, widths and protocol it has.
        kinds: of changed captions.
    """
    chosen = RULE_KINDS if kinds == "all" else (kinds,)
    written = RewriteByRule(name="written", plan=RuleConfig(kinds=chosen, most=STORED))
    base = online_stage(MODEL, like)
    if like in LARGE:
        text = base.model.arguments["text"].replace(word_width=VSEC_WORD_WIDTH)
        base = replace(base, model=base.model.replace(text=text), plan=VSEC_PLAN)
    # our warm-ups on small data are an epoch or more
    begin = EPOCH.get(like) or warmup_steps(MODEL, like)
    below = lazy(MarginRankingLoss, role="written", margin=MARGIN)
    foils = config(
        GeneratedCaptions,
        folder=from_stage(written.name),
        count=VSEC_FOILS,
        shared=True,
        hardest=True,
    )
    training = base.with_terms(written=(1.0, lazy(StartAt, term=below, steps=begin))).with_sources(
        foils
    )
    part = "" if kinds == "all" else f"{kinds}/"
    return dataset_recipe(
        f"vse-c/{part}{MODEL}-{like}",
        like,
        (written, training, *evaluation_stages("online", MODEL, like, "test")),
        f"single model; online hardest triplet, and the hardest of {' and '.join(chosen)} foils of "
        "the batch",
    )
