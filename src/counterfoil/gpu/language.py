"""Triton's language and decorator; without triton, stand-ins that only let modules be imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

tl: Any
jit: Any
constant: Any
try:
    tl = import_module("triton.language")
    jit, constant = import_module("triton").jit, tl.constexpr
except ModuleNotFoundError:  # `counterfoil.gpu.usable` keeps everybody away
    tl, jit, constant = None, lambda kernel: kernel, lambda value: value

LOWEST: Any = constant(-3.4028234663852886e38)  # of float32
TINY: Any = constant(1.1754943508222875e-38)  # the smallest normal float32
