"""Compiles every kernel that a run would launch, for two GPUs, without one; prints JSON lines.

Launches of `counterfoil.kernels` on CPU tensors are caught: what would run is compiled with the
types, constants and alignments of the call.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from counterfoil import gpu

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TARGETS = 80, 90
label = ""


def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """Stand-in for `JITFunction.run`."""
    names = [parameter.name for parameter in self.params]
    bound = dict(zip(names, args, strict=False))
    bound |= {name: options.pop(name) for name in names if name in options}
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(self.params):
        value = bound[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        if isinstance(value, Tensor):
            signature[parameter.name], aligned = TYPES[value.dtype], True
        else:
            floating = isinstance(value, float)
            signature[parameter.name] = "fp32" if floating else "i32"
            aligned = not floating and value % 16 == 0
        if aligned:
            attributes[(place,)] = [["tt.divisibility", 16]]
    for target in TARGETS:
        source = ASTSource(self, signature=signature, constexprs=constants, attrs=attributes)
        kernel = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
        usage = resources(kernel.asm["cubin"])
        line = {"call": label, "kernel": self.__name__, "target": target}
        print(json.dumps(line | {"shared": kernel.metadata.shared} | usage), flush=True)


def resources(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of stack of a thread, where triton brings the tool that reads them."""
    if not CUOBJDUMP.exists():
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    assert found, done.stdout
    return {"registers": int(found[1]), "stack": int(found[2])}


def inputs(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


if __name__ == "__main__":
    from counterfoil.kernels import attention_scores, max_sim

    JITFunction.run = compiled
    gpu.usable = lambda *tensors: True  # CPU tensors stand for those of a GPU
    half, single, images, texts = torch.bfloat16, torch.float32, 40, 40
    calls = {
        "scan t2i": (attention_scores, half, 36, 14, 1024, {"pooling": "LogSumExp"}),
        "scan i2t": (
            attention_scores,
            half,
            36,
            14,
            1024,
            {"pooling": "LogSumExp", "direction": "i2t"},
        ),
        "bfan": (attention_scores, half, 36, 14, 1024, {"focus": "prob", "sharpness": 20.0}),
        "scan in float32": (attention_scores, single, 36, 14, 1024, {}),
        "chan": (max_sim, half, 36, 14, 1024, {"pooling": "LogSumExp", "sharpness": 10.0}),
        "late interaction": (max_sim, torch.float16, 729, 24, 128, {"pooling": "Sum"}),
        "patches": (max_sim, half, 196, 64, 128, {"direction": "i2t"}),
        "chan in float32": (max_sim, single, 36, 14, 1024, {}),
    }
    for label, (score, dtype, regions, words, width, options) in calls.items():
        left, right = inputs(dtype, images, regions, width), inputs(dtype, texts, words, width)
        score(left, right, **options).sum().backward()
