"""NegCLIP: batches that hold the neighbours of their images, and captions written wrong.

Yuksekgonul et al., ICLR 2023 (https://arxiv.org/abs/2210.01936), section 4. The model mines three
images for each caption, captions are changed by rule, and contrastive training goes on: to B pairs
come B neighbours, each an image with a caption, and one foil of every caption. Images choose among
all 4B texts, the true texts among the 2B images.

Departs from the authors' code in: neighbours, see `counterfoil.negatives.neighbours.Neighbours`;
foils are those of VSE-C's rules, not words of one kind swapped by spaCy. Rates and epochs are ours;
theirs are a rate of 1e-6, warmed up in 50 steps, and 5 epochs of batches of 256.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from counterfoil.negatives.written import Written
from counterfoil.objectives.infonce import InfoNCE
from counterfoil.objectives.joined import JoinedInfoNCE
from counterfoil.objectives.term import Term, total
from counterfoil.recipes import online
from counterfoil.recipes.modern_losses import Terms
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Compare, Mine, Recipe, Rewrite, Train
from counterfoil.spec import late, of, part

Name = Literal["negclip/vsepp"]
NAMES: tuple[Name, ...] = get_args(Name)
NEIGHBOURS = 3  # images of a caption
TEXTS = 100  # of an image, for the report alone: they tell how hard negatives are
TEMPERATURE = 0.07  # of what is trained from scratch
REWRITE = Rewrite(name="written")


def terms(temperature: float) -> Terms:
    """Cross-entropy over the texts of a batch and what is written for them, and over its images."""
    joined: Term = part(JoinedInfoNCE, temperature=temperature, reduction="mean")
    return {"contrast": (1.0, joined)}


def lists(using: tuple[str, ...] = (), models: tuple[str, ...] = ()) -> Mine:
    """Neighbours by the models of stages, or by saved ones."""
    return Mine(name="lists", using=using, models=models, texts=TEXTS, images=NEIGHBOURS)


def joined(stage: Train) -> Train:
    """The same with neighbours and one foil of each caption in its batches."""
    written = of(Written, folder=late("written"), lens=late("lens"), count=1, shared=True)
    return replace(stage, neighbours="lists", written=REWRITE.name, proposer=written)


def recipe(name: Name, dataset: Dataset) -> Recipe:
    """Both rounds from scratch, on a dual encoder: contrastive, then with what joins the batches.

    Args:
        name: of the recipe.
        dataset: what it is trained on.
    """
    nce: Term = part(InfoNCE, temperature=TEMPERATURE, reduction="mean")
    first = replace(online.online("vsepp", dataset), objective=total(nce=nce))
    second = replace(first, name="joined", objective=total(**terms(TEMPERATURE)), start="online")
    tests = [e for one in ("online", "joined") for e in online.evaluations(one, "vsepp", dataset)]
    report = Compare(name="report", results=("test-online", "test-joined"), negatives="lists")
    return Recipe(
        name=f"{name}-{dataset}",
        stages=(first, lists(using=("online",)), REWRITE, joined(second), *tests, report),
        data=PROFILES[dataset].data,
        about="single model; InfoNCE, mining, foils by rule, both in the batches of InfoNCE",
    )
