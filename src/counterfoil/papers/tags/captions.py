"""Generated captions that analyses measure: stored ones, models that write, and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import WordHead, WordHeadModel
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.model import Model
from counterfoil.negatives.generated import (
    GENERATED,
    GeneratedCaption,
    GeneratedManifest,
    GeneratedStore,
)
from counterfoil.papers.analyses import GenerationOptions
from counterfoil.papers.tags.generator import ModelGenerator
from counterfoil.papers.tags.inputs import GeneratorInputs
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.scorers import Scorer, check_different, score_unit, short_names
from counterfoil.scoring.pairs import score_index_pairs

INTERVALS = "95 % intervals: images drawn anew with all that belongs to them, 1,000 times"


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredCaptions:
    """Generated captions of a folder, with the split they were generated for."""

    name: str  # short name of the folder
    manifest: GeneratedManifest
    dataset: ImageTextDataset
    foils: tuple[GeneratedCaption, ...]  # in the order in which they were generated
    images: tuple[int, ...]  # rows of their images
    texts: tuple[int, ...]  # rows of the captions they were made of

    def describe(self) -> str:
        """Name, number, generator and seed, in words."""
        made = self.manifest
        return f"{self.name}: {len(self.foils):,} by {made.writer}, seed {made.seed}"

    def of_captions(self, dataset: ImageTextDataset, rows: Tensor) -> list[GeneratedCaption]:
        """The foils of some captions of a split, at least one.

        Raises:
            ValueError: they are of another split, or of none of these captions.
        """
        if self.dataset.split_name != dataset.split_name:
            raise ValueError(
                f"{self.name} was written for split {self.dataset.split_name!r}, and the analysis "
                f"is of {dataset.split_name!r}; name it with --split"
            )
        wanted = set(rows.tolist())
        foils = [foil for row, foil in zip(self.texts, self.foils) if row in wanted]
        if not foils:
            raise ValueError(
                f"{self.name} has no foil of the {len(rows):,} captions that were drawn; draw "
                "more with --anchors"
            )
        return foils


def open_stores(folders: Sequence[Path], source: DataSource) -> tuple[StoredCaptions, ...]:
    """Open generated captions of one split.

    Raises:
        ValueError: a folder is given twice, is no store, is empty or damaged, or was written for
            other data, or two were written for different splits.
    """
    check_different(folders, "folder")
    names = short_names(folders)
    stores = tuple(_open_store(path, name, source) for path, name in zip(folders, names))
    splits = {store.dataset.split_name: store.name for store in stores}
    if len(splits) > 1:
        listed = ", ".join(f"{name} for {split!r}" for split, name in splits.items())
        raise ValueError(f"captions of one split can be compared, but {listed} were written")
    return stores


def _open_store(folder: Path, name: str, source: DataSource) -> StoredCaptions:
    made = GENERATED.read_manifest(folder)
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


def caption_generator(
    model: Model, dataset: ImageTextDataset, generation: GenerationOptions, seed: int
) -> ModelGenerator:
    """The generator with which a model writes captions of a split.

    Raises:
        ValueError: the model reads ready-made vectors or has no head for hidden words, or the data
            do not fit.
    """
    inputs = GeneratorInputs(processor=model.process(dataset), parser=RulePhraseParser())
    return ModelGenerator(
        inputs=inputs,
        model=model.model,
        mask_refill=generation.refill,
        keep=generation.keep,
        seed=seed,
    )


def can_generate(scorer: Scorer) -> bool:
    """Return True if a scorer is a single model with a head for masked words."""
    model = scorer.models[0].model
    return (
        len(scorer.models) == 1
        and isinstance(model, WordHeadModel)
        and WordHead.FILL in model.word_heads
    )


def draw_captions(dataset: ImageTextDataset, count: int, seed: int) -> Tensor:
    """(S,) rows of captions of different images, in the order of the images.

    Raises:
        ValueError: no text describes an image.
    """
    rng = torch.Generator().manual_seed(seed)
    described = dataset.relation.described
    if not len(described):
        raise ValueError(
            f"{dataset.name} {dataset.split_name} has no caption that describes an image"
        )
    images = described[torch.randperm(len(described), generator=rng)[:count].sort().values]
    return dataset.relation.random_caption(images, rng)


def first_of_images(
    rows: Iterable[int], images: Sequence[int], count: int, used: set[int]
) -> list[int]:
    """The first rows whose images are not yet in `used`, at most `count`; their images go there."""
    chosen: list[int] = []
    for row in rows:
        if len(chosen) == count:
            break
        if images[row] not in used:
            used.add(images[row])
            chosen.append(row)
    return chosen


def score_captions(
    scorer: Scorer,
    dataset: ImageTextDataset,
    images: Tensor,
    texts: Sequence[str],
    *,
    scaled: bool = True,
) -> Tensor:
    """(P,) scores of images with captions that need not be in the split; equal pairs cost once.

    `images` are (P,) rows of the data set; scores are divided by their unit if `scaled`.

    Raises:
        ValueError: the model and the data do not fit.
    """
    present, image = torch.unique(images, return_inverse=True)
    number = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    shown = replace(
        dataset.subset(present),
        texts=list(number),
        text_ids=[str(row) for row in range(len(number))],
        text_to_image=torch.full((len(number),), -1),
        text_features=None,
        dependencies=None,
    )
    pairs = image * len(number) + torch.tensor([number[text] for text in texts], dtype=torch.long)
    once, place = torch.unique(pairs, return_inverse=True)
    members = scorer.on(shown)
    scores = score_index_pairs(members, once // len(number), once % len(number))[place]
    return scores.double() / score_unit(members) if scaled else scores
