"""Evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(models: Iterable[nn.Module], *, gradients: bool = False) -> Iterator[None]:
    """Run the block in evaluation mode; then every part is as it was.

    Not `torch.inference_mode`: what is made inside are ordinary tensors.

    Args:
        models: whose parts are switched.
        gradients: keep a graph for them.
    """
    modes = {part: part.training for model in models for part in model.modules()}
    for part, mode in modes.items():
        if mode:  # setting costs ten times what asking does
            part.training = False
    try:
        with torch.set_grad_enabled(gradients):
            yield
    finally:
        for part, mode in modes.items():  # parts may have been frozen in evaluation mode before
            if part.training != mode:
                part.training = mode
