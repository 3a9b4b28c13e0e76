"""NegCLIP: batches with neighbours and rule-changed captions.

NegCLIP trains on batches that hold the neighbours of their images and rule-changed captions:
Yuksekgonul et al., ICLR 2023 (https://arxiv.org/abs/2210.01936), section 4. The model mines three
images for each caption, captions are changed by rule, and contrastive training goes on: to B pairs
come B neighbours, each an image with a caption, and one foil of every caption. Images are scored
against all 4B texts, the true texts against the 2B images.

Departs from the authors' code in: neighbours, see `counterfoil.negatives.sampling.NeighbourImages`;
foils are those of VSE-C's rules, not words of one kind swapped by spaCy. Rates and epochs are ours;
theirs are a rate of 1e-6, warmed up in 50 steps, and 5 epochs of batches of 256.
"""

from __future__ import annotations

from dataclasses import replace

from counterfoil.core.config import config, from_stage, lazy
from counterfoil.losses.base import Loss, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.negatives.generated import GeneratedCaptions
from counterfoil.papers.systems import NEIGHBOURS, DataSet
from counterfoil.papers.tags.stage import RewriteByRule
from counterfoil.papers.training import (
    as_published,
    dataset_recipe,
    evaluation_stages,
    online_stage,
)
from counterfoil.pipelines.pipeline import Mine, Recipe, Stage, Train
from counterfoil.recipes import clip
from counterfoil.recipes.clip import FineTunedModel, contrastive_terms
from counterfoil.training.mined import MinedNeighbours

MODEL = "vsepp"
TEXTS = 100  # of an image, for the hardness in the report alone
TEMPERATURE = 0.07  # of models that are trained from scratch
REWRITE = RewriteByRule(name="written")
NEIGHBOUR_IMAGES = config(MinedNeighbours, negatives=from_stage("lists"))


def neighbour_lists(using: tuple[str, ...] = (), models: tuple[str, ...] = ()) -> Mine:
    """Mining of neighbours by the models of stages, or by saved ones."""
    return Mine(name="lists", using=using, models=models, texts=TEXTS, images=NEIGHBOURS)


def with_neighbours(stage: Train) -> Train:
    """The stage with neighbours and one foil of each caption in its batches."""
    generated = config(GeneratedCaptions, folder=from_stage(REWRITE.name), count=1, shared=True)
    return stage.with_sources(NEIGHBOUR_IMAGES, generated)


@as_published
def negclip(*, like: DataSet = "scenes") -> Recipe:
    """NegCLIP from scratch, with VSE++: InfoNCE, then with neighbours and foils in the batches.

    Args:
        like: data set whose numbers, widths and protocol it has.
    """
    nce: Loss = lazy(InfoNCELoss, temperature=TEMPERATURE, reduction="mean")
    first = replace(online_stage(MODEL, like), objective=weighted_sum(nce=nce))
    joined = weighted_sum(**contrastive_terms(TEMPERATURE, candidates=True))
    second = replace(first, name="joined", objective=joined, start="online")
    tests = [e for kind in ("online", "joined") for e in evaluation_stages(kind, MODEL, like)]
    lists = neighbour_lists(using=("online",))
    return dataset_recipe(
        f"negclip/{MODEL}-{like}",
        like,
        (first, lists, REWRITE, with_neighbours(second), *tests),
        "single model; InfoNCE, mining, foils by rule, both in the batches of InfoNCE",
        results=("test-online", "test-joined"),
        negatives=lists.name,
    )


def fine_tuning_stages(model: FineTunedModel, **_: object) -> tuple[Stage, ...]:
    """Contrastive, with neighbours and changed captions in each batch.

    The original mines; rules change captions unless the model names a folder of them.
    """
    lists = neighbour_lists(models=(model.name,))
    tuned = model.stage("tuned", contrastive_terms(clip.TEMPERATURE, candidates=True))
    if model.written is None:
        return lists, REWRITE, with_neighbours(tuned)
    return lists, tuned.with_sources(NEIGHBOUR_IMAGES)
