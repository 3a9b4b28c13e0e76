"""A tiny corpus with phrases, a tiny UNITER that reads it, and a writer for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.config import config
from counterfoil.core.types import Batch, EncodedViews
from counterfoil.data.batching import collate
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.model import Model
from counterfoil.negatives.generated import GeneratedCaption
from counterfoil.negatives.sources import MinedExtras
from sources_cases import begun

if TYPE_CHECKING:
    from counterfoil.papers.models.uniter import UNITER
    from counterfoil.papers.tags.generation import TagsGenerator
    from counterfoil.papers.tags.inputs import GeneratorInputs

WIDTH = 6
COLOURS = ["red", "blue", "green", "black", "white"]
THINGS = ["dogs", "cats", "birds", "cars", "boats", "hats", "cups", "balls"]
RELATIONS = ["near", "behind", "above", "under"]
ALL = ("rank", "match", "fill", "doubt", "correct")
ANCHORS = [0, 1, 5, 11, 14]  # captions 0 and 1 share an image


def dataset(images: int = 8, captions: int = 3, seed: int = 0) -> ImageTextDataset:
    rng = np.random.default_rng(seed)
    texts = []
    for image in range(images):
        for _ in range(captions):
            one = rng.choice(THINGS)
            words = [rng.choice(COLOURS), THINGS[image % len(THINGS)], rng.choice(RELATIONS)]
            texts.append(" ".join([*words, rng.choice(COLOURS), one][: int(rng.integers(2, 6))]))
    features = FeatureArray.of(
        rng.normal(size=(images, 3, WIDTH)).astype(np.float32),
        lengths=rng.integers(1, 4, images),
        boxes=np.sort(rng.random((images, 3, 4)), axis=2).astype(np.float32),
    )
    return ImageTextDataset(
        name="tiny",
        image_ids=[f"i{n}" for n in range(images)],
        text_ids=[f"t{n}" for n in range(len(texts))],
        texts=[text.capitalize() for text in texts],
        text_to_image=torch.arange(images).repeat_interleave(captions),
        splits=["train"] * images,
        features=features,
    )


def processor() -> ProcessedDataset:
    made = dataset()
    return ProcessorConfig().fit(made).process(made)


def host(seen: ProcessedDataset, *, dropout: float = 0.0, **options: Any) -> UNITER:
    torch.manual_seed(0)
    from counterfoil.papers.models.uniter import UNITER

    made = UNITER(
        layers=1,
        width=16,
        heads=2,
        inner=16,
        vocabulary=seen.processor.tokenizer.size,
        positions=40,
        features=WIDTH,
        dropout=dropout,
        **{"outputs": ALL, **options},
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def inputs(seen: ProcessedDataset, **options: Any) -> GeneratorInputs:
    from counterfoil.papers.tags.inputs import GeneratorInputs

    return GeneratorInputs(processor=seen, parser=RulePhraseParser(), **options)


def writer(
    seen: ProcessedDataset,
    kind: type[TagsGenerator] | None = None,
    *,
    filler: Any = None,
    model_inputs: ProcessedDataset | None = None,
    **options: Any,
) -> TagsGenerator:
    """A generator that has begun; `seen` are the inputs of the frozen filler, if there is one."""
    from counterfoil.papers.tags.generation import TagsGenerator

    small = {"masks": 4, "refills": 5, "keep": 6, "parser": RulePhraseParser()}
    frozen = filler and Model(filler, seen.processor, "filler", config(type(filler)))
    made = (kind or TagsGenerator)(frozen, **{**small, **options})
    return begun(made, model_inputs or seen, host(model_inputs or seen))


def batch_of(seen: ProcessedDataset, anchors: list[int] = ANCHORS, step: int = 0) -> Batch:
    return collate(seen, torch.tensor(anchors), step=step)


def proposed(
    source: TagsGenerator, model: Any, batch: Batch, seed: int = 0
) -> tuple[MinedExtras, EncodedViews, Tensor]:
    views = model(batch)
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    rng = torch.Generator().manual_seed(seed)
    return source.propose(model, batch, views, grid, rng), views, grid


def undone(foil: GeneratedCaption) -> str:
    """The caption that a foil was made from, by undoing its changes from right to left."""
    caption = foil.foil
    for change in reversed(foil.changed):
        assert foil.foil[change.start : change.stop] == change.new
        caption = caption[: change.start] + change.old + caption[change.stop :]
    return caption
