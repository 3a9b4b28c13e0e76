"""A small data set with mined and written negatives that are known by heart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from corpus_cases import small_corpus, write_picture
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles
from counterfoil.negatives.generated import GeneratedCaption, GeneratedStore
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring.embedding_store import ModelSource

TEXTS = [[3, 5], [0, -1], [4, 1], [2, 0]]  # of images a0, a1, a2 and a3; a1 has no caption
IMAGES = [[3, 2], [2, -1], [0, 3], [0, 1], [2, 0], [-1, -1], [0, 1]]  # the last text is nobody's


def dataset(folder: Path | None = None) -> ImageTextDataset:
    """Four images with 2, 0, 1 and 3 captions and a caption of none; files if a folder is named."""
    found = small_corpus()
    orphan = replace(
        found,
        text_ids=[*found.text_ids, "nobody's"],
        texts=[*found.texts, "an animal\tof no picture"],
        text_to_image=torch.cat([found.text_to_image, torch.tensor([-1])]),
        image_ids=["a 0%", *found.image_ids[1:]],
        split_name="train",
    )
    if folder is None:
        return orphan
    paths = [folder / f"a{row}.png" for row in range(4)]
    for row, path in enumerate(paths):
        write_picture(path, row, size=(16, 16))
    return replace(orphan, pictures=PictureFiles(paths))


def mined(folder: Path, of: ImageTextDataset, *, scored: bool = True) -> Path:
    """A store of the lists above; the score of a row of place n is -n / 2."""
    texts, images = (torch.tensor(rows, dtype=torch.int32) for rows in (TEXTS, IMAGES))
    scores = [
        torch.where(rows < 0, -torch.inf, torch.tensor([0, -0.5])).half()
        for rows in (texts, images)
    ]
    lists = (
        HardNegativeLists(texts, images, *scores) if scored else HardNegativeLists(texts, images)
    )
    by = (ModelSource(matcher="SCAN()"),)
    NegativeStore.of(lists, dataset=of.fingerprint, split="train", sources=by).save(folder)
    return folder


def written(folder: Path, of: ImageTextDataset) -> Path:
    """Two foils of the first caption and one of the third."""
    foils = [
        _foil(of, 0, "a 0 cat of picture 0"),
        _foil(of, 2, 'a "0" cat of picture 2'),
        _foil(of, 0, "a 0 dog of picture 9"),
    ]
    GeneratedStore.write(folder, foils, of, writer="rules", settings={}, seed=0)
    return folder


def _foil(of: ImageTextDataset, text: int, foil: str) -> GeneratedCaption:
    image = of.image_ids[int(of.text_to_image[text])]
    return GeneratedCaption(image, of.text_ids[text], of.texts[text], foil, "noun", ())
