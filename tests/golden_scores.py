"""A model built from golden weights, and the rule that its numbers are compared by."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import Checkpoint

load = golden_vectors.load


@cache
def _state(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "state.safetensors")


def checkpoint(system: str, **options: object) -> Checkpoint:
    return Checkpoint(_state(golden_vectors.folder(system)), options)


def captions(inputs: dict[str, Tensor]) -> ModalityBatch:
    ids, lengths = inputs["captions"], inputs["lengths"]
    mask = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    return ModalityBatch(torch.arange(len(ids)), ids, mask)


def images(inputs: dict[str, Tensor]) -> ModalityBatch:
    values = inputs["images"]
    values = values if values.dim() == 3 else values.unsqueeze(1)
    return ModalityBatch(
        torch.arange(len(values)), values, torch.ones(values.shape[:2], dtype=torch.bool)
    )


def kernel(inputs: dict[str, Tensor]) -> tuple[Embeddings, Embeddings]:
    """The embeddings that the kernel cases start from, with garbage as padding."""
    regions = inputs["kernel_regions"].clone().requires_grad_()
    mask = captions(inputs).mask
    words = inputs["kernel_words"].masked_fill(~mask.unsqueeze(-1), torch.nan)
    everywhere = torch.ones(regions.shape[:2], dtype=torch.bool)
    return Embeddings(regions, everywhere), Embeddings(words.requires_grad_(), mask)


def agrees(golden: golden_vectors.Golden, key: str, ours: Tensor) -> None:
    """|got - expected| <= atol + 1e-5 |expected|, or the same where the folder says so."""
    theirs = golden.outputs[key]
    assert ours.shape == theirs.shape
    if golden.exact(key):
        assert torch.equal(ours.to(theirs.dtype), theirs)
        return
    torch.testing.assert_close(ours.detach(), theirs, rtol=1e-5, atol=golden.atol(key))
