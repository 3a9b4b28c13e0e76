"""Recipes for a user's own data, and for photos with a frozen public model as image tower.

Any model of regions may read the patches of any frozen vision model of Hugging Face. The recipes
`mobilenet` and `aoq/mobilenet` are not in a paper: MobileNetV2 stays frozen and its outputs are
kept on disk, so that it runs once on each photo; the saved model holds the network and reads
pixels. The loss is InfoNCE, as the hardest triplet collapses here; with AOQ a second round
continues with AdapOffQuin. An epoch on mined negatives costs as much as three without, so that both
recipes cost the same. Rates are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final

from counterfoil.core.config import Config, config, from_data, lazy, unknown_name
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import WeightedSum, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pretrained import (
    HALF,
    FrozenPatches,
    HFVisionTower,
    PictureFormat,
    picture_format,
)
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.ndgl import recipe as ndgl
from counterfoil.papers.online import modern_recipe, own_recipe
from counterfoil.papers.systems import NEWER, OF_NDGL, PROFILES, SINGLES, SYSTEMS, find_system
from counterfoil.papers.tags import recipe as tags
from counterfoil.papers.training import (
    ModelSetting,
    as_published,
    dataset_recipe,
    evaluation_stages,
)
from counterfoil.pipelines.pipeline import (
    Evaluate,
    Mine,
    ProtocolName,
    Recipe,
    Select,
    Stage,
    Train,
)
from counterfoil.recipes.base import HARDEST, adamw_plan, adaptive_quintuplet
from counterfoil.recipes.base import mined as mined_lists

NAMES = ("mobilenet", "aoq/mobilenet")
PUBLIC = "google/mobilenet_v2_1.0_224"
SIZE, CELLS = 192, 3  # pixels of a side, and cells of a side that the feature map is averaged to
WIDTH, WORD_WIDTH = 256, 200
TEMPERATURE = 0.07
FIRST_EPOCHS, PLAIN_EPOCHS = 4, 7  # before a round on mined negatives, and without one
PUBLISHED_RATE, RATE = 1e-3, 1e-2  # of the first round; on a user's own photos, measured to 1,000
STEPS, AGAIN_STEPS = 160, 75  # at least, of the two rounds on a user's own photos


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


def photo_recipe(name: str, dataset: str | None, *, lengths: tuple[int, int] = HARDEST) -> Recipe:
    """Train and evaluate, or both rounds of AOQ and a report; None for a user's own photos."""
    protocol: ProtocolName = PROFILES[dataset].protocol if dataset else "whole"
    first = _training(
        "online",
        weighted_sum(nce=lazy(InfoNCELoss, temperature=TEMPERATURE, reduction="mean")),
        epochs=PLAIN_EPOCHS if name == "mobilenet" else FIRST_EPOCHS,
        rate=PUBLISHED_RATE if dataset else RATE,
        least=0 if dataset else STEPS,
    )
    recipe, about = f"{name}-{dataset or 'own'}", "frozen MobileNetV2; InfoNCE"
    if name == "mobilenet":
        test = Evaluate(name="test", using=("online",), protocol=protocol)
        return dataset_recipe(recipe, dataset or "scenes", (first, test), about)
    texts, images = lengths
    least = 0 if dataset else AGAIN_STEPS
    second = _training("adaptive", adaptive_quintuplet(0), epochs=1, rate=3e-4, least=least)
    rounds = "online", "adaptive"
    return dataset_recipe(
        recipe,
        dataset or "scenes",
        (
            first,
            Mine(name="lists", using=("online",), texts=texts, images=images),
            replace(second, start="online").with_sources(mined_lists("lists")),
            *(Evaluate(name=f"test-{n}", using=(n,), protocol=protocol) for n in rounds),
            Select(name="best", using=rounds),
        ),
        f"{about}, mining, AdapOffQuin; the better one on dev",
        results=(f"test-{n}" for n in rounds),
        negatives="lists",
        selection="best",
    )


@as_published
def photos(*, like: Literal["scenes", "flickr8k"] = "scenes", mined: bool = False) -> Recipe:
    """A frozen MobileNetV2 and a BiGRU, trained with InfoNCE.

    Args:
        like: data set whose protocol it has.
        mined: train on with AdapOffQuin on mined lists, and keep the better one on dev.
    """
    return photo_recipe("aoq/mobilenet" if mined else "mobilenet", like)


def _training(
    name: str, objective: Config[WeightedSum], *, epochs: int, rate: float, least: int
) -> Train:
    return Train(
        name=name,
        model=photo_model(),
        objective=objective,
        processor=ProcessorConfig(images="pixels", size=SIZE, min_count=2),
        plan=adamw_plan(epochs=epochs, batch=128, rate=rate, least=least),
    )


# Patches of any frozen vision model in place of detected regions.


TOWER = "google/siglip2-base-patch16-224"
TOWER_FORMAT = PictureFormat(224, HALF, HALF, crop=False, frame="squash bilinear")
PATCH_MODELS = ("scan-t2i", "chan", "gpo")


def with_patches(recipe: Recipe, tower: str, form: PictureFormat | None = None) -> Recipe:
    """A recipe whose models read the patches of a frozen vision model in place of regions.

    Args:
        recipe: its models read features.
        tower: folder or name of a Hugging Face vision model.
        form: its picture format; by default what its folder says.

    Raises:
        ValueError: a model of the recipe has no regions that patches could stand for, or the
            tower's folder does not say how its pictures are prepared.
    """
    form = form or picture_format(tower)
    changed = recipe.with_changed(Train, lambda t: _on_patches(t, recipe.name, tower, form))
    return replace(changed, about=f"patches of {tower}, frozen; {recipe.about}")


@as_published
def patches(
    *, like: Literal["flickr8k", "flickr30k", "coco"] = "flickr8k", tower: str = TOWER
) -> Recipe:
    """SCAN, CHAN and GPO on the patches of one frozen tower, which encodes each picture once.

    Args:
        like: data set whose numbers, widths and protocol they have.
        tower: folder or name of a Hugging Face vision model.
    """
    stages: list[Stage] = []
    for name in PATCH_MODELS:
        training = ModelSetting(name=name, dataset=like).setup().stage(name)
        stages += [training, *evaluation_stages(name, name, like)]
    recipe = dataset_recipe(
        f"patches-{like}",
        like,
        stages,
        "SCAN t-i, CHAN and GPO",
        results=(f"test-{name}" for name in PATCH_MODELS),
    )
    return with_patches(recipe, tower, TOWER_FORMAT if tower == TOWER else None)


def _on_patches(stage: Train, recipe: str, tower: str, form: PictureFormat) -> Train:
    regions = stage.model.arguments.get("image")
    if not isinstance(regions, Config) or regions.make not in (Regions, MLPRegions):
        raise ValueError(
            f"{stage.name!r} of {recipe} has no tower of regions that patches could stand for; use "
            "scan-t2i, chan, gpo or another model that reads region features, or leave --tower out"
        )
    kept = {key: value for key, value in regions.arguments.items() if key != "features"}
    patches = lazy(
        FrozenPatches,
        name=tower,
        mlp=regions.make is MLPRegions,
        pretrained=from_data("pretrained"),
        config=from_data("config"),
        **kept,
    )
    processor = replace(
        stage.processor,
        images="pixels",
        standardise=False,
        size=form.size,
        mean=form.mean,
        deviation=form.deviation,
        crop=form.crop,
        frame=form.frame,
    )
    return replace(stage, model=stage.model.replace(image=patches), processor=processor)


# Recipes for a user's own data: any model by itself, or with teachers.


PREFIX = "ndgl/"  # of models with teachers


def own_data_recipe(
    name: str,
    *,
    pixels: bool,
    teachers: Sequence[str] = (),
    lengths: tuple[int, int] = HARDEST,
    tower: str | None = None,
) -> Recipe:
    """Train a model and evaluate it on the whole test split.

    ``ndgl/MODEL`` has teachers: two of its kind, trained before, or saved ones. The models for
    photos, ViLT and a text tower beside a frozen MobileNetV2, read pixels in any case. With a
    `tower`, models of regions read its patches, see `with_patches`.
    """
    if tower:
        return with_patches(own_data_recipe(name, pixels=False, teachers=teachers), tower)
    like = "scenes" if pixels else "flickr8k"
    if teachers and not name.startswith(PREFIX):
        raise ValueError(f"{name!r} learns from no teachers; name {PREFIX + name!r} to have it do")
    if name in tags.OWN_RECIPES:
        return tags.tags_own_recipe(name)
    if name in NAMES:
        return photo_recipe(name, None, lengths=lengths)
    if name not in known_models(like):
        raise ValueError(unknown_name(name, known_models(like), "a model to train"))
    if name in SINGLES:
        return own_recipe(name, pixels=pixels)
    if name.startswith(PREFIX):
        recipe = ndgl.taught_recipe(name.removeprefix(PREFIX), like, saved=tuple(teachers))
    else:
        recipe = modern_recipe(name, like)
    recipe = recipe.with_changed(Evaluate, lambda test: replace(test, protocol="whole"))
    about = f"{recipe.about.split('; ')[-1]}, own data"
    return replace(recipe, name=f"{name}-own", about=about)


def known_models(like: str) -> list[str]:
    """Models that can be trained on data like a data set's."""
    taught = [name for name in OF_NDGL if like in find_system(name).datasets]
    newer = [
        name
        for name in NEWER
        # pixels have no boxes
        if like in SYSTEMS[name].datasets and not (SYSTEMS[name].boxes and like == "scenes")
    ]
    for_photos = (*tags.OWN_RECIPES, *NAMES) if like == "scenes" else ()
    return [*SINGLES, *newer, *(PREFIX + name for name in taught), *for_photos]


@final
class PaperModels:
    """Models of the papers that are trained from scratch on one's own data."""

    own_data_recipe = staticmethod(own_data_recipe)

    @staticmethod
    def names() -> list[str]:
        """Names of the models."""
        return list(
            dict.fromkeys(name for like in ("scenes", "flickr8k") for name in known_models(like))
        )


SCRATCH = PaperModels()
