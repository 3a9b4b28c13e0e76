"""``python -m benchmarks.predict vectors | measure | table``: negatives, before training.

``measure`` takes the plans of the ledgers of one bed on its frozen vectors: ``towers`` as
``benchmarks.truths bed`` writes it, ``world`` as ``benchmarks.truths world`` does, ``regions`` and
``scenes`` as ``vectors`` writes them here. ``table`` holds them against the ledgers of ``docs/``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import refused
from benchmarks.experiments.cca import write_cca_vectors
from benchmarks.predict.page import read_plans, summary, table, write_pages
from benchmarks.predict.plans import LEDGERS, Bench
from benchmarks.predict.score import Plan, predict, pull
from counterfoil.core.io import read_json, write_text
from counterfoil.data.readers import load_dataset


def measured(bench: Bench, plan: Plan) -> dict[str, float]:
    """What a plan does at the starting point, and what the best step is worth on dev."""
    found = pull(bench.frozen, plan)
    numbers = asdict(predict(bench.frozen, bench.held_out, found)) | {
        name: getattr(found, name) for name in ("hardness", "false_share", "effective")
    }
    return {name: round(number, 4) for name, number in numbers.items()} | {"batch": plan.batch}


def measure(bench: Bench, name: str, folder: Path) -> None:
    """Measure the plans of all ledgers of a bed; a later run goes on with their files."""
    folder.mkdir(parents=True, exist_ok=True)
    for ledger in LEDGERS:
        if ledger.bench != name:
            continue
        path = folder / f"{ledger.name}.json"
        found = read_json(path, "measured plans") if path.exists() else {}
        for row, plan in ledger.plans(bench).items():
            if row not in found:
                found[row] = measured(bench, plan())
                write_text(path, f"{json.dumps(found, indent=1)}\n")
                print(f"{ledger.name}: {row} {found[row]}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when all went well, 2 when the input was at fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    vectors = verbs.add_parser("vectors", help="write CCA vectors of a data set with features")
    vectors.add_argument("data", help="as flickr8k/, or scenes:images=8000,…,features=regions")
    vectors.add_argument("--features", help="as flickr8k_regions/")
    vectors.add_argument("--output", type=Path, required=True, help="folder to write")
    go = verbs.add_parser("measure", help="measure the plans of a bed")
    go.add_argument("bed", type=Path)
    go.add_argument(
        "--as", dest="name", required=True, choices=[*dict.fromkeys(x.bench for x in LEDGERS)]
    )
    go.add_argument("--folder", type=Path, required=True, help="of what is measured")
    show = verbs.add_parser("table", help="hold it against the ledgers")
    show.add_argument("folder", type=Path)
    show.add_argument("--ledgers", type=Path, default=Path("docs"), help="as docs/")
    show.add_argument("--docs", type=Path, help="write the summary and the page here")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "vectors":
            write_cca_vectors(load_dataset(given.data, features=given.features), given.output)
        elif given.verb == "measure":
            torch.set_num_threads(1)
            measure(Bench(given.bed), given.name, given.folder)
        else:
            found = summary(given.ledgers, read_plans(given.folder))
            print(table(found))
            if given.docs is not None:
                write_pages(given.docs, found)
    except (ValueError, OSError) as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
