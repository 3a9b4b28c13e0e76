"""The batch of adapters: 512 captions, the default, against 128, on photos of Flickr8k.

``python -m benchmarks.adapter_batch run --data flickr8k/ --towers flickr8k_towers/`` trains what
``counterfoil train contrastive --tune frozen`` trains, on the subsets and towers of
`benchmarks.small_data`, with its batch and with 128 at the rate and the warm-up of that batch; a
line of JSON for each training is appended to the ledger, and what is there is not run again.
``table`` writes the table into the page. Batch, rate and warm-up were chosen on seeds 0 to 4.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.pages import put_table
from benchmarks.small_data import DRAW, PAGE, SETTINGS, SIZES, Data, Runner, _difference, _mean
from counterfoil.training.config import TrainConfig, adapter_config

LEDGER = Path("docs/evidence/adapter-batch.jsonl")
PHOTOS = (150, 300, 1000, 3500)  # with five captions each
SEEDS = (5, 6, 7, 8, 9)
METHODS = {"default": "batch 512", "narrow": "batch 128"}
BEGIN, END = "<!-- adapter batch -->", "<!-- end of adapter batch -->"
Rows = Sequence[Mapping[str, Any]]


@final
class MorePhotos(Data):
    """The same subsets, and larger ones."""

    def rows(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows of the training photos and of dev."""
        draw = np.random.default_rng([DRAW, seed]).permutation(len(self.pool))
        order, start = self.pool[torch.from_numpy(draw)], max(size, *SIZES)
        return order[:size], order[start : start + size // 10]


def read(ledger: Path) -> list[dict[str, Any]]:
    """The rows of a ledger."""
    lines = ledger.read_text("utf-8").splitlines() if ledger.is_file() else []
    return [json.loads(line) for line in lines]


def _wanted() -> Iterator[tuple[dict[str, Any], TrainConfig]]:
    """Rows to be made, without their numbers, and the settings of each."""
    for seed in SEEDS:
        for size in PHOTOS:
            for method in METHODS:
                plan = adapter_config(5 * size if method == "default" else 0)
                row = {"way": "frozen", "size": size, "seed": seed, "method": method}
                yield row, replace(plan, seed=seed)


def run(runner: Runner, ledger: Path) -> None:
    """Make the missing rows of a ledger."""
    runner.data = MorePhotos(runner.data.whole)
    have = [(row["size"], row["seed"], row["method"], row["settings"]) for row in read(ledger)]
    for row, plan in _wanted():
        settings = {key: getattr(plan, key) for key in (*SETTINGS, "batch")}
        settings["rate"] = plan.optimiser.rate
        if (row["size"], row["seed"], row["method"], settings) in have:
            continue
        made = row | runner.run(row["size"], row["seed"], plan) | {"settings": settings}
        with ledger.open("a", encoding="utf-8") as file:
            file.write(json.dumps(made) + "\n")


def as_markdown(rows: Rows) -> str:
    """The table of a ledger, as the page has it."""
    by_key = {(row["size"], row["seed"], row["method"]): row for row in rows}
    head = ["photos", "seeds", *METHODS.values(), "difference", "difference without dev"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for size in PHOTOS:
        seeds = [s for s in SEEDS if all((size, s, m) in by_key for m in METHODS)]
        if not seeds:
            continue
        shown = {
            figure: {m: [by_key[size, s, m][figure] for s in seeds] for m in METHODS}
            for figure in ("test_best", "test_last")
        }
        changes = [
            _difference([a - b for a, b in zip(each["default"], each["narrow"], strict=True)])
            for each in shown.values()
        ]
        means = [_mean(shown["test_best"][m]) for m in METHODS]
        lines.append(f"| {' | '.join([f'{size:,}', str(len(seeds)), *means, *changes])} |")
    return "\n".join(lines)


def write_page(page: Path, rows: Rows) -> None:
    """Put the table of a ledger in its place in a page."""
    put_table(page, BEGIN, END, as_markdown(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapter_batch", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    go = verbs.add_parser("run", help="add the missing trainings to the ledger")
    go.add_argument("--data", type=Path, required=True, help="folder of Flickr8k")
    go.add_argument("--towers", type=Path, required=True, help="folder of stored vectors")
    table = verbs.add_parser("table", help="write the table of the ledger into the page")
    table.add_argument("--page", type=Path, default=PAGE)
    for each in (go, table):
        each.add_argument("--ledger", type=Path, default=LEDGER)
    given = parser.parse_args(arguments)
    if given.verb == "table":
        write_page(given.page, read(given.ledger))
        return 0
    torch.set_num_threads(1)
    run(Runner("frozen", given.data, given.towers, "", Path()), given.ledger)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
