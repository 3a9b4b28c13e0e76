"""The largest tensor that a piece of code makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Watches the largest tensor that any operation makes, backward pass included."""

    elements = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            # bytes are what triton's interpreter copies of tensors that are there
            if isinstance(tensor, Tensor) and tensor.dtype != torch.uint8:
                self.elements = max(self.elements, tensor.numel())
        return made
