"""Photos, as a public MobileNetV2 sees them: its weights stay as they are, the rest is trained.

Not in a paper. What the frozen network makes of a photo is kept on disk, so that it looks at each
but once; the saved model holds the network and reads pixels. Round one is InfoNCE, as the hardest
triplet collapses here; round two goes on from there with AdapOffQuin. Rates and epochs are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from counterfoil.core.config import Config, config, from_data, lazy, unknown_name
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import WeightedSum, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.gpo import GPO
from counterfoil.models.layers.pretrained import HFVisionTower
from counterfoil.models.layers.towers import GRU
from counterfoil.pipelines.pipeline import (
    Compare,
    Evaluate,
    Mine,
    ProtocolName,
    Recipe,
    Stage,
    Train,
)
from counterfoil.recipes import aoq, models, ndgl, ndgl_models, tags
from counterfoil.recipes.models import PROFILES, Dataset
from counterfoil.recipes.ndgl_models import BASE_MODELS, base_embeddings
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig

Name = Literal["mobilenet", "aoq/mobilenet"]
NAMES: tuple[Name, ...] = get_args(Name)
SETS: tuple[Dataset, ...] = ("scenes", "flickr8k")
PUBLIC = "google/mobilenet_v2_1.0_224"
SIDE, CELLS = 192, 3  # pixels of a side, and cells that its map is averaged to
WIDTH, WORD_WIDTH = 256, 200
TEMPERATURE = 0.07
EPOCHS, RATE, WARMUP = (4, 1), (1e-3, 3e-4), 50  # of both rounds; warm-up of the rate, in steps
HARDEST = (100, 20)


def photo_model() -> Config[RetrievalModel]:
    """A GPO on the cells of a frozen MobileNetV2, with a BiGRU."""
    image = lazy(
        HFVisionTower,
        name=PUBLIC,
        width=WIDTH,
        pretrained=from_data("pretrained"),
        grid=CELLS,
        config=from_data("config"),
    )
    text = lazy(
        GRU,
        words=from_data("words"),
        word_width=WORD_WIDTH,
        width=WIDTH,
        dropout=0.3,
        word_drop=0.1,
    )
    return config(GPO, image=image, text=text)


def photo_settings(name: Name) -> Recipe:
    """On a user's own photos."""
    return _recipe(name, f"{name}-own", "whole")


def photo_recipe(name: Name, dataset: Dataset) -> Recipe:
    """Train and measure, or both rounds of AOQ and a report."""
    profile = PROFILES[dataset]
    return _recipe(name, f"{name}-{dataset}", profile.protocol, profile.data)


def _recipe(name: Name, called: str, protocol: ProtocolName, data: str = "scenes") -> Recipe:
    first = _trained(
        "online", weighted_sum(nce=lazy(InfoNCELoss, temperature=TEMPERATURE, reduction="mean"))
    )
    test = Evaluate(name="test", using=("online",), protocol=protocol)
    if name == "mobilenet":
        about = "frozen MobileNetV2; InfoNCE"
        return Recipe(name=called, stages=(first, test), data=data, about=about)
    texts, images = HARDEST
    stages: tuple[Stage, ...] = (
        first,
        Mine(name="lists", using=("online",), texts=texts, images=images),
        replace(
            _trained("adaptive", aoq.adaptive_quintuplet(0), second=True),
            start="online",
            negatives="lists",
        ),
        Evaluate(name="test-online", using=("online",), protocol=protocol),
        Evaluate(name="test-adaptive", using=("adaptive",), protocol=protocol),
        Compare(name="report", results=("test-online", "test-adaptive"), negatives="lists"),
    )
    about = "frozen MobileNetV2; InfoNCE, mining, AdapOffQuin"
    return Recipe(name=called, stages=stages, data=data, about=about)


def _trained(name: str, objective: Config[WeightedSum], *, second: bool = False) -> Train:
    return Train(
        name=name,
        model=photo_model(),
        objective=objective,
        processor=ProcessorConfig(images="pixels", size=SIDE, min_count=2),
        plan=TrainConfig(
            epochs=EPOCHS[second],
            batch=128,
            optimiser=OptimizerConfig(rule="adamw", rate=RATE[second], decay=0.01),
            schedule=CosineLR(warmup=WARMUP),
        ),
    )


# Recipes for a user's own data: any model by itself, or taught by others.


TAUGHT = "ndgl/"


def own_data_recipe(name: str, *, pixels: bool, teachers: Sequence[str] = ()) -> Recipe:
    """Train a model and measure it on the test split as it is.

    Args:
        name: a model, or ``ndgl/HOST`` for one that is taught: by two of its kind, trained before;
            on photos also ViLT, by itself or with captions that it writes, and a text tower beside
            a frozen MobileNetV2, by itself or with negatives that it mines.
        pixels: whether there are no features, so that pictures are looked at; what is for photos
            looks at them in any case.
        teachers: saved models that teach instead.

    Raises:
        ValueError: no such model, or teachers of one that is not taught.
    """
    like: Dataset = "scenes" if pixels else "flickr8k"
    if teachers and not name.startswith(TAUGHT):
        raise ValueError(f"{name!r} learns from no teachers; name {TAUGHT + name!r} to have it do")
    for single in models.SINGLES:
        if name == single:
            return models.own_recipe(single, pixels=pixels)
    for written in tags.NAMES:
        if name == written:
            return tags.tags_own_recipe(written)
    for photo in NAMES:
        if name == photo:
            return photo_settings(photo)
    for base in ndgl_models.HOSTS:
        if name == base and like in ndgl_models.embeddings_per_item(base):
            return _whole(ndgl_models.base_recipe(base, like), name)
    for student in BASE_MODELS:
        if name == TAUGHT + student and like in base_embeddings(student):
            return _whole(ndgl.ndgl_recipe(student, like, saved=tuple(teachers)), name)
    raise ValueError(unknown_name(name, known_models(like), "a model to train"))


def known_models(like: Dataset) -> list[str]:
    """What can be trained where data are like these."""
    hosts = [host for host in ndgl_models.HOSTS if like in ndgl_models.embeddings_per_item(host)]
    taught = [TAUGHT + host for host in BASE_MODELS if like in base_embeddings(host)]
    seeing = (*tags.NAMES, *NAMES) if like == "scenes" else ()
    return [*models.SINGLES, *hosts, *taught, *seeing]


def _whole(found: Recipe, name: str) -> Recipe:
    stages: list[Stage] = [
        replace(stage, protocol="whole") if isinstance(stage, Evaluate) else stage
        for stage in found.stages
    ]
    about = found.about.split("; ")[-1]
    return replace(found, name=f"{name}-own", stages=tuple(stages), about=f"{about}, own data")
