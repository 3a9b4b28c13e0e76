"""Inputs of anybody's model: functions that prepare a picture and tokenize captions.

The functions are never saved. Where their results are stored, as in an index or in lists of
negatives, the model's name stands for them; without one they count as new in every program.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.core.rgb import rgb
from counterfoil.core.types import ModalityBatch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ImageProcessor, Processor
from counterfoil.data.tokenizers import TokenIds, Tokenizer

Preprocess = Callable[[Image.Image], Any]  # a picture -> its tensor, of one shape for all
Tokenize = Callable[[list[str]], Any]  # captions -> (N, L) ids; a list, or a mapping with input_ids


def own_processor(
    preprocess: Preprocess | None, tokenize: Tokenize | Tokenizer | None, name: str
) -> Processor:
    """A processor of functions of the user; features or vectors of the data in place of None."""
    digest = name or f"nameless {secrets.token_hex(8)}"  # which no other program repeats
    tokenizer = (
        tokenize
        if tokenize is None or isinstance(tokenize, Tokenizer)
        else OwnTokenizer(tokenize, digest)
    )
    return Processor(OwnImageProcessor(preprocess, digest), tokenizer, named=name)


@final
@dataclass(frozen=True)
class OwnImageProcessor(ImageProcessor):
    """Pictures by a function of the user, or the data's own features where there is none.

    Args:
        preprocess: turns an RGB picture into a tensor, an array, or a mapping with pixel_values;
            None for stored features.
        digest: what stands for the function in digests.
    """

    preprocess: Preprocess | None = field(repr=False, compare=False)
    digest: str
    width: int = 3

    @property
    def reads_pixels(self) -> bool:
        return self.preprocess is not None

    @property
    def reads_features(self) -> bool:
        return self.preprocess is None

    @property
    def title(self) -> str:
        if self.preprocess is None:
            return "image features"
        return f"pictures by {_function_name(self.preprocess)}"

    def from_dataset(self, dataset: ImageTextDataset, rows: Tensor) -> ModalityBatch:
        if self.preprocess is None:
            if dataset.features is None:
                raise ValueError(
                    f"{dataset.name} has no image features for this model to read; give "
                    "cf.Model(module, preprocess=…), a function that turns a PIL image into a "
                    "tensor"
                )
            return dataset.features.take(rows)
        if dataset.pictures is None:
            raise ValueError(
                f"{dataset.name} has no pictures; this model reads pictures: give the image folder"
            )
        return self._items(rows, [dataset.pictures.open(row) for row in rows.tolist()])

    def from_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        return self._items(torch.full((len(pictures),), -1), pictures)

    def _items(self, rows: Tensor, pictures: Sequence[Image.Image]) -> ModalityBatch:
        if self.preprocess is None:
            raise ValueError(
                "this model reads stored features, not pictures; give cf.Model(module, "
                "preprocess=…), a function that turns a PIL image into a tensor"
            )
        tensors = [_as_tensor(self.preprocess(rgb(picture))) for picture in pictures]
        shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
        if len(shapes) > 1:
            raise ValueError(
                f"preprocess returned tensors of shapes {shapes[0]} and {shapes[1]}; return one "
                "shape for all pictures: resize or pad them"
            )
        values = torch.stack(tensors) if tensors else torch.zeros(0, 3, 1, 1)
        return ModalityBatch(rows, values, torch.ones(len(rows), 1, dtype=torch.bool))


def _as_tensor(output: Any) -> Tensor:
    """The tensor of one picture that a function or a library's image processor has returned."""
    if isinstance(output, Mapping):
        if "pixel_values" not in output:
            raise ValueError(
                f"preprocess returned a mapping with {', '.join(map(str, output))}; return a "
                "tensor, or a mapping with pixel_values"
            )
        pixels = output["pixel_values"]
        return _as_tensor(pixels[0] if len(pixels) == 1 else pixels)
    if isinstance(output, np.ndarray):
        output = torch.from_numpy(np.ascontiguousarray(output))
    if not isinstance(output, Tensor) or not output.ndim:
        raise ValueError(
            f"preprocess returned {_kind(output)} for a picture; return a tensor of it, as "
            "(3, height, width)"
        )
    return output.detach()


@final
class OwnTokenizer(Tokenizer):
    """Captions by a function of the user.

    Args:
        tokenize: turns a list of N captions into (N, L) ids, N lists of ids, or a mapping with
            input_ids and attention_mask, as the tokenizers of transformers return.
        digest: what stands for the function in digests.
    """

    def __init__(self, tokenize: Tokenize, digest: str) -> None:
        self.function, self._digest = tokenize, digest
        self.size = 0  # not known
        self.pad = int(getattr(tokenize, "pad_token_id", None) or 0)

    @property
    def title(self) -> str:
        return _function_name(self.function)

    def read(self, texts: Sequence[str]) -> TokenIds:
        output, mask = self.function(list(texts)), None
        if isinstance(output, Mapping) and "input_ids" in output:
            output, mask = output["input_ids"], output.get("attention_mask")
        try:
            if isinstance(output, Mapping | str):
                raise TypeError
            ids = [[int(i) for i in row] for row in _as_list(output)]
            kept = None if mask is None else [[bool(m) for m in row] for row in _as_list(mask)]
        except TypeError:
            raise ValueError(
                f"tokenize returned {_kind(output)} for a list of {len(texts)} captions; return "
                "(N, L) ids, a list of ids for each, or a mapping with input_ids"
            ) from None
        if len(ids) != len(texts) or not all(ids):
            raise ValueError(
                f"tokenize returned ids of {sum(map(bool, ids))} captions for a list of "
                f"{len(texts)}; return ids for each"
            )
        if kept is not None:
            ids = [[i for i, real in zip(row, marks) if real] for row, marks in zip(ids, kept)]
        return TokenIds(ids)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]

    def save(self, folder: Path) -> None:
        """Write nothing: a function is not saved."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"tokenize of {self._digest}".encode()).hexdigest()[:16]


def _function_name(function: Any) -> str:
    """What a function, or an object that is called like one, is named in its code."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _as_list(output: Any) -> Any:
    return output.tolist() if isinstance(output, Tensor | np.ndarray) else output


def _kind(output: Any) -> str:
    """What something is, in words."""
    if isinstance(output, Tensor | np.ndarray):
        return f"a {type(output).__name__} of shape {tuple(output.shape)}"
    return "nothing" if output is None else f"a {type(output).__name__}"
