"""Photos, as a public MobileNetV2 sees them: its weights stay as they are, the rest is trained.

Not in a paper. What the frozen network makes of a photo is kept on disk, so that it looks at each
but once; the saved model holds the network and reads pixels. Round one is InfoNCE, as the hardest
triplet collapses here; round two goes on from there with AdapOffQuin. Rates and epochs are ours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.vision import VisionModel
from counterfoil.models.gpo import GPO
from counterfoil.objectives.infonce import InfoNCE
from counterfoil.objectives.term import Objective, total
from counterfoil.recipes import aoq
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Compare, Evaluate, Mine, Protocol, Recipe, Stage, Train
from counterfoil.spec import Spec, late, of, part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Cosine

Name = Literal["mobilenet", "aoq/mobilenet"]
NAMES: tuple[Name, ...] = get_args(Name)
SETS: tuple[Dataset, ...] = ("scenes", "flickr8k")
PUBLIC = "google/mobilenet_v2_1.0_224"
SIDE, CELLS = 192, 3  # pixels of a side, and cells that its map is averaged to
WIDTH, WORD_WIDTH = 256, 200
TEMPERATURE = 0.07
EPOCHS, RATE, WARMUP = (4, 1), (1e-3, 3e-4), 50  # of both rounds; warm-up of the rate, in steps
HARDEST = (100, 20)


def model() -> Spec[Matcher]:
    """A GPO on the cells of a frozen MobileNetV2, with a BiGRU."""
    image = part(
        VisionModel,
        name=PUBLIC,
        width=WIDTH,
        pretrained=late("pretrained"),
        grid=CELLS,
        config=late("config"),
    )
    text = part(
        GRU, words=late("words"), word_width=WORD_WIDTH, width=WIDTH, dropout=0.3, word_drop=0.1
    )
    return of(GPO, image=image, text=text)


def own(name: Name) -> Recipe:
    """On a user's own photos."""
    return _recipe(name, f"{name}-own", "whole")


def recipe(name: Name, dataset: Dataset) -> Recipe:
    """Train and measure, or both rounds of AOQ and a report."""
    profile = PROFILES[dataset]
    return _recipe(name, f"{name}-{dataset}", profile.protocol, profile.data)


def _recipe(name: Name, called: str, protocol: Protocol, data: str = "scenes") -> Recipe:
    first = _trained("online", total(nce=part(InfoNCE, temperature=TEMPERATURE, reduction="mean")))
    test = Evaluate(name="test", using=("online",), protocol=protocol)
    if name == "mobilenet":
        about = "frozen MobileNetV2; InfoNCE"
        return Recipe(name=called, stages=(first, test), data=data, about=about)
    texts, images = HARDEST
    stages: tuple[Stage, ...] = (
        first,
        Mine(name="lists", using=("online",), texts=texts, images=images),
        replace(
            _trained("adaptive", aoq.adaptive(0), second=True), start="online", negatives="lists"
        ),
        Evaluate(name="test-online", using=("online",), protocol=protocol),
        Evaluate(name="test-adaptive", using=("adaptive",), protocol=protocol),
        Compare(name="report", results=("test-online", "test-adaptive"), negatives="lists"),
    )
    about = "frozen MobileNetV2; InfoNCE, mining, AdapOffQuin"
    return Recipe(name=called, stages=stages, data=data, about=about)


def _trained(name: str, objective: Spec[Objective], *, second: bool = False) -> Train:
    return Train(
        name=name,
        model=model(),
        objective=objective,
        lens=LensPlan(images="pixels", size=SIDE, min_count=2),
        plan=TrainPlan(
            epochs=EPOCHS[second],
            batch=128,
            optimiser=Optimiser(rule="adamw", rate=RATE[second], decay=0.01),
            schedule=Cosine(warmup=WARMUP),
        ),
    )
