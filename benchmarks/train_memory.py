"""``python -m benchmarks.train_memory``: memory of a training step against the size of its batch.

A CLIP of the size of ViT-B/32 with random weights makes one step on the CPU, in float32, by
InfoNCE: plainly, with gradient caching, with gradient checkpointing, and with both. Each is a
process of its own; its peak is what the step needs beside the weights, gradients included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from benchmarks.speed.memory import peak
from benchmarks.truths.table import markdown
from counterfoil.core.types import Batch, ModalityBatch, Pairs
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.models.clip import DualEncoder
from counterfoil.training.step import TrainingStep, checkpointed

SIDE, TOKENS, VOCABULARY = 224, 20, 49_408
BATCHES, PIECE = (16, 64), 8
WAYS = ("plain", "grad_cache", "gradient_checkpointing", "both")


def batch_of(size: int) -> Batch:
    """Random pixels and as many captions."""
    rng = torch.Generator().manual_seed(size)
    rows = torch.arange(size)
    pixels = torch.randn(size, 3, SIDE, SIDE, generator=rng)
    ids = torch.randint(1, VOCABULARY - 2, (size, TOKENS), generator=rng)
    ids[:, -1] = VOCABULARY - 1  # the end of a caption
    images = ModalityBatch(rows, pixels, torch.ones(size, 1, dtype=torch.bool))
    texts = ModalityBatch(rows, ids, torch.ones(size, TOKENS, dtype=torch.bool))
    return Batch(0, rows, rows, images, texts, (size, size), Pairs(rows, rows))


def measure(size: int, way: str) -> dict[str, float]:
    """Peak of one step, in MiB beside the weights, and its processor seconds."""
    from transformers import CLIPConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DualEncoder(
        name="random ViT-B/32", pretrained=False, config=CLIPConfig().to_json_string()
    ).train()
    loss = WeightedSum(terms={"nce": (1.0, InfoNCELoss(reduction="mean"))})
    again = way in ("gradient_checkpointing", "both")
    step = TrainingStep(model, loss, chunk=PIECE if way in ("grad_cache", "both") else 0)
    batch = batch_of(size)
    began = time.process_time()

    def work() -> None:
        torch.stack(list(step(batch).values())).sum().backward()

    with checkpointed(model) if again else nullcontext():
        held = peak(work)
    return {"MiB": round((held or 0) / 2**20), "seconds": time.process_time() - began}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table; with a size and a way, one measurement as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_memory", description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[*BATCHES])
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(json.dumps(measure(int(given.one[0]), given.one[1])))
        return 0
    rows = []
    for size in given.batches:
        cells = [str(size)]
        for way in WAYS:
            call = [sys.executable, "-m", "benchmarks.train_memory", "--one", str(size), way]
            done = subprocess.run(call, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            cells.append(f"{found['MiB']:,.0f} MiB, {found['seconds']:.0f} s")
            print(size, way, cells[-1], flush=True)
        rows.append(cells)
    names = ("plain", f"`grad_cache={PIECE}`", "`gradient_checkpointing`", "both")
    print("\n".join(markdown(["batch", *names], rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
