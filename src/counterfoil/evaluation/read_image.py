"""One image as a model reads it, with its encoding; and the processor of a model of captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from counterfoil.core.config import unknown_name
from counterfoil.core.rgb import rgb
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import Processor
from counterfoil.scoring.encode import evaluation_mode

if TYPE_CHECKING:
    from counterfoil.model import ImageInput, Model


@final
@dataclass(frozen=True, slots=True)
class ReadImage:
    """One image as a model reads it."""

    items: ModalityBatch  # its input
    encoded: Embeddings  # its encoding
    size: tuple[int, int] | None  # width and height of its upright picture; None for features


def read_image(model: Model, image: ImageInput, dataset: ImageTextDataset | None) -> ReadImage:
    """Read and encode one image.

    Args:
        model: reads captions.
        image: a picture or its path; the id of an image where a data set is given.
        dataset: holds the image.

    Raises:
        ValueError: the model cannot read this kind of image, or there is no such image.
    """
    from counterfoil.model import open_image

    processor = text_processor(model).image_processor
    size: tuple[int, int] | None = None
    if isinstance(image, str) and dataset is not None:
        row = find_image_row(dataset, image)
        items = processor.from_dataset(dataset, torch.tensor([row]))
        if processor.reads_pixels and dataset.pictures is not None:
            size = dataset.pictures.open(row).size
    else:
        picture = rgb(open_image(Path(image) if isinstance(image, str) else image))
        items, size = processor.from_images([picture]), picture.size
    with evaluation_mode([model.model]):
        weight = next(model.model.parameters(), None)
        encoded = model.model.encode_images(items if weight is None else items.to(weight.device))
    return ReadImage(items, encoded, size)


def text_processor(model: Model) -> Processor:
    """The processor of a model that reads captions; refuses a model of ready-made vectors."""
    if model.processor is None or model.processor.tokenizer is None:
        raise ValueError(
            f"{model.name} compares ready-made vectors and cannot read a caption; give a model "
            "folder or the name of a model"
        )
    return model.processor


def find_image_row(dataset: ImageTextDataset, image_id: str) -> int:
    """The row of an image, by its id."""
    try:
        return list(dataset.image_ids).index(image_id)
    except ValueError:
        noun = f"an image of {dataset.name}"
        raise ValueError(
            f"{unknown_name(image_id, list(dataset.image_ids[:5]), noun)[:-1]}, …; "
            f"{len(dataset):,} in all"
        ) from None
