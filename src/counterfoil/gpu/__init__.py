"""Triton kernels on plain tensors, without fall-back; `counterfoil.kernels` adds it.

This package lies below the models, so that they can call a kernel where tensors are on a GPU. Its
modules import triton; ask `usable` before importing one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

Mode = Literal["auto", "always", "never"]
Pooling = Literal["Mean", "Sum", "Max", "LogSumExp", "Softmax"]  # of a query's similarities
LONGEST = 2048  # vectors of a query of MaxSim
CELLS = 1 << 13  # affinities of a tile of attention, which stay in registers
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_mode: ContextVar[Mode] = ContextVar("mode", default="auto")


@contextmanager
def use(mode: Mode) -> Iterator[None]:
    """Choose, within a `with` block, when kernels take the place of the torch form.

    Args:
        mode: "auto": where tensors are on a CUDA device and triton is installed; "never": nowhere;
            "always": on CPU tensors too, which needs triton's interpreter (TRITON_INTERPRET=1 in
            the environment) and is meant for tests.

    Raises:
        ValueError: an unknown mode, or "always" without triton.
    """
    if mode not in get_args(Mode):
        allowed = ", ".join(get_args(Mode))
        raise ValueError(f"kernels are to be used {mode!r}; choose one of {allowed}")
    if mode == "always" and not installed():
        raise ValueError("kernels need triton; install counterfoil[kernels] or choose auto")
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


@cache
def installed() -> bool:
    """Return whether triton can be imported."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Return whether kernels run in triton's interpreter, which reads CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def usable(*tensors: Tensor) -> bool:
    """Return whether a kernel can read these tensors and is to be used for them."""
    mode = _mode.get()
    if mode == "never" or not all(x.dtype in DTYPES for x in tensors):
        return False
    devices = {x.device for x in tensors}
    if len(devices) != 1 or not installed():
        return False
    device = devices.pop()
    if device.type == "cuda":
        return launches(device)
    return mode == "always" and interpreted()


@cache
def launches(device: torch.device) -> bool:
    """Return whether a kernel runs on a device, by trying a small one; warns once if none does.

    Triton compiles at the first call, which fails on a machine without a C compiler, for instance.
    """
    try:
        from counterfoil.gpu.common import add_one

        sums = add_one(torch.zeros(16, device=device)).tolist()
    except torch.OutOfMemoryError:
        raise  # the next try may have room
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    else:
        if sums == [1.0] * 16:
            return True
        reason = "a sum was wrong"
    message = f"scores on {device} are computed without kernels: triton failed there ({reason})"
    warnings.warn(message, stacklevel=2)
    return False


def attention_fits(query: int, context: int) -> bool:
    """Return whether queries and contexts of so many vectors fit in a tile."""
    return padded_to(query) * padded_to(context) <= CELLS


def padded_to(size: int) -> int:
    """Return the least power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()
