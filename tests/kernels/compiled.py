"""Compiles every kernel that a run would launch, for a GPU that is not there; prints JSON lines.

``python compiled.py 90`` does so for compute capability 9.0.

Launches of `counterfoil.kernels` on CPU tensors are caught: what would run is compiled with the
types, constants and alignments of the call.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from counterfoil import gpu
from counterfoil.core.types import Embeddings
from counterfoil.gpu import common
from counterfoil.kernels import attention_scores, max_sim, top_k
from counterfoil.losses.tiled import tiled_info_nce
from counterfoil.models.layers.cross_attention import CrossAttention, QueryPooling
from counterfoil.models.layers.kernel_scores import kernel_scores

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
label, target = "", 0


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
    source = ASTSource(self, signature=signature, constexprs=constants, attrs=attributes)
    kernel = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    line = {"call": label, "kernel": f"{self.fn.__module__}.{self.__name__}", "target": target}
    usage = resources(kernel.asm["cubin"])
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


def scores(score: Any, regions: int, words: int, width: int, dtype: torch.dtype, **options: Any):
    sizes = (40, regions, width), (40, words, width)
    images, texts = (torch.zeros(size, dtype=dtype, requires_grad=True) for size in sizes)
    result = score(images, texts, **options)
    if result.requires_grad:
        result.sum().backward()


def contrastive(dtype: torch.dtype) -> None:
    images, texts = (torch.zeros(512, 512, dtype=dtype, requires_grad=True) for _ in range(2))
    tiled_info_nce(images, texts, torch.arange(512)).backward()


def best(dtype: torch.dtype) -> None:
    top_k(torch.zeros(256, 512, dtype=dtype), torch.zeros(512, 512, dtype=dtype), 10)


@torch.no_grad()
def both(dtype: torch.dtype) -> None:
    heads = tuple(CrossAttention(way, "clipped_l2norm", 20.0, "prob") for way in ("t2i", "i2t"))
    sides = (torch.zeros(40, length, 1024, dtype=dtype) for length in (36, 14))
    images, texts = (Embeddings(x, torch.ones(x.shape[:2], dtype=torch.bool)) for x in sides)
    kernel_scores(images, texts, heads, QueryPooling("Mean"))


LSE = {"pooling": "LogSumExp"}
CALLS = {
    "scan t2i": partial(scores, attention_scores, 36, 14, 1024, torch.bfloat16, **LSE),
    "bfan": partial(
        scores,
        attention_scores,
        36,
        14,
        1024,
        torch.bfloat16,
        focus="prob",
        sharpness=20.0,
        direction="i2t",
    ),
    "bfan, both directions": partial(both, torch.bfloat16),
    "scan in float32": partial(scores, attention_scores, 36, 14, 1024, torch.float32),
    "chan": partial(scores, max_sim, 36, 14, 1024, torch.bfloat16, **LSE),
    "late interaction": partial(scores, max_sim, 729, 24, 128, torch.float16, pooling="Sum"),
    "patches": torch.no_grad()(
        partial(scores, max_sim, 196, 64, 128, torch.bfloat16, direction="i2t")
    ),
    "chan in float32": partial(scores, max_sim, 36, 14, 1024, torch.float32),
    "top-k": partial(best, torch.bfloat16),
    "top-k in float32": partial(best, torch.float32),
    "contrastive": partial(contrastive, torch.bfloat16),
    "contrastive in float32": partial(contrastive, torch.float32),
}

if __name__ == "__main__":
    JITFunction.run, target = compiled, int(sys.argv[1])
    gpu.usable = lambda *tensors: True  # CPU tensors stand for those of a GPU
    common.is_hopper = lambda device: target >= 90
    for label, call in CALLS.items():
        call()
