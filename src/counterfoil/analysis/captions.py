"""Generated captions: stores of them, models that generate them, and scores of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import WordHead, WordHeadModel
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.model import Model
from counterfoil.negatives.generation.generator import ModelGenerator
from counterfoil.negatives.generation.inputs import GeneratorInputs
from counterfoil.negatives.generation.store import (
    WRITTEN,
    GeneratedCaption,
    GeneratedManifest,
    GeneratedStore,
)
from counterfoil.negatives.generation.tags import MaskRefill
from counterfoil.pipelines.publishing import Scorer, check_different, score_unit, short_names
from counterfoil.pipelines.run import DataSource
from counterfoil.scoring.pairs import score_index_pairs

INTERVALS = "95 % intervals: images drawn anew with all that belongs to them, 1,000 times"


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredCaptions:
    """Generated captions of a folder, with the split they were generated for.

    Attributes:
        name: short name of the folder.
        manifest: how they were generated.
        dataset: the split.
        foils: all captions, in the order in which they were generated.
        images: rows of their images.
        texts: rows of the captions they were made of.
    """

    name: str
    manifest: GeneratedManifest
    dataset: ImageTextDataset
    foils: tuple[GeneratedCaption, ...]
    images: tuple[int, ...]
    texts: tuple[int, ...]

    def describe(self) -> str:
        """Name, number, generator and seed, in words."""
        made = self.manifest
        return f"{self.name}: {len(self.foils):,} by {made.writer}, seed {made.seed}"

    def check_split(self, dataset: ImageTextDataset, folder: Path) -> None:
        """Refuse captions that were generated for another split.

        Raises:
            ValueError: they were.
        """
        if self.dataset.split_name != dataset.split_name:
            raise ValueError(
                f"{folder} was written for split {self.dataset.split_name!r}, and the analysis is "
                f"of {dataset.split_name!r}; name it with --split"
            )


def open_stores(folders: Sequence[Path], source: DataSource) -> tuple[StoredCaptions, ...]:
    """Open generated captions of one split.

    Raises:
        ValueError: a folder is given twice, is no store, is empty or damaged, or was written for
            other data, or two were written for different splits.
    """
    check_different(folders, "folder")
    names = short_names([str(path) for path in folders])
    stores = tuple(_open_store(path, name, source) for path, name in zip(folders, names))
    splits = {one.dataset.split_name: one.name for one in stores}
    if len(splits) > 1:
        listed = ", ".join(f"{name} for {split!r}" for split, name in splits.items())
        raise ValueError(f"captions of one split can be compared, but {listed} were written")
    return stores


def _open_store(folder: Path, name: str, source: DataSource) -> StoredCaptions:
    made = WRITTEN.read_manifest(folder)
    whole = source.open()
    parts = made.split.split("+")
    dataset = whole if set(parts) - set(whole.split_names) else whole.split(*parts)
    foils = tuple(GeneratedStore.open(folder, fingerprint=dataset.fingerprint).foils())
    if not foils:
        raise ValueError(f"{folder} holds no written captions; write again")
    images = {name: row for row, name in enumerate(dataset.image_ids)}
    texts = {name: row for row, name in enumerate(dataset.text_ids)}
    strange = next((f for f in foils if f.image not in images or f.text not in texts), None)
    if strange is not None:
        raise ValueError(
            f"{folder} has a foil of caption {strange.text!r} of {strange.image!r}, which these "
            "data do not have; write again"
        )
    rows = tuple(images[foil.image] for foil in foils), tuple(texts[foil.text] for foil in foils)
    return StoredCaptions(name, made, dataset, foils, *rows)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSettings:
    """How models generate captions during an analysis.

    Attributes:
        masks: maskings of a caption.
        refills: refills of each masking.
        keep: captions kept of each, the hardest.
        temperature: of the draw of words.
    """

    masks: int = 20
    refills: int = 20
    keep: int = 10
    temperature: float = 1.5

    @property
    def mask_refill(self) -> MaskRefill:
        """The mask-and-refill settings."""
        return MaskRefill(masks=self.masks, refills=self.refills, temperature=self.temperature)

    def describe(self) -> str:
        """In words."""
        return (
            f"{self.masks} maskings of a caption, {self.refills} refills of each at temperature "
            f"{self.temperature:g}, the {self.keep} hardest kept that may be false"
        )


def generator_inputs(model: Model, dataset: ImageTextDataset) -> GeneratorInputs:
    """Inputs with which a model generates captions of a split.

    Raises:
        ValueError: the model reads ready-made vectors, or the data do not fit.
    """
    return GeneratorInputs(processor=model.process(dataset), parser=RulePhraseParser())


def caption_generator(
    scorer: Scorer, dataset: ImageTextDataset, settings: GenerationSettings, seed: int
) -> ModelGenerator:
    """Make a model generate captions of a split.

    Raises:
        ValueError: it is an ensemble, fills no hidden words, or the data do not fit.
    """
    model = scorer.single()
    return ModelGenerator(
        inputs=generator_inputs(model, dataset),
        model=model.model,
        mask_refill=settings.mask_refill,
        keep=settings.keep,
        seed=seed,
    )


def can_generate(scorer: Scorer) -> bool:
    """Whether this is one model that fills hidden words."""
    model = scorer.models[0].model
    return (
        len(scorer.models) == 1
        and isinstance(model, WordHeadModel)
        and WordHead.FILL in model.wants
    )


def draw_captions(dataset: ImageTextDataset, count: int, rng: torch.Generator) -> Tensor:
    """(S,) rows of captions of different images, in the order of the images.

    Raises:
        ValueError: no text describes an image.
    """
    described = (dataset.relation.counts > 0).nonzero().squeeze(1)
    if not len(described):
        raise ValueError(
            f"{dataset.name} {dataset.split_name} has no caption that describes an image"
        )
    images = described[torch.randperm(len(described), generator=rng)[:count].sort().values]
    return dataset.relation.random_caption(images, rng)


def score_captions(
    scorer: Scorer,
    dataset: ImageTextDataset,
    images: Tensor,
    texts: Sequence[str],
    *,
    scaled: bool = True,
) -> Tensor:
    """(P,) scores of images with captions that need not be in the split.

    Each different pair is scored once.

    Args:
        scorer: the model.
        dataset: has the images.
        images: (P,) rows of it.
        texts: P captions.
        scaled: whether to divide by the score's unit.

    Raises:
        ValueError: the model and the data do not fit.
    """
    present, image = images.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    number = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    shown = replace(
        dataset.subset(present),
        texts=list(number),
        text_ids=[str(row) for row in range(len(number))],
        text_to_image=torch.full((len(number),), -1),
        text_features=None,
    )
    pairs = image * len(number) + torch.tensor([number[text] for text in texts], dtype=torch.long)
    once, place = pairs.unique(return_inverse=True)
    members = scorer.on(shown)
    scores = score_index_pairs(members, once // len(number), once % len(number))[place]
    return scores.double() / score_unit(members) if scaled else scores
