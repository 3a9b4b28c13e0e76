"""``python -m benchmarks.experiments plan | run | table | pages``: run and show the tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import refused
from benchmarks.experiments.catalogue import find, tables
from benchmarks.experiments.ledger import run
from benchmarks.experiments.summary import show, show_plan, show_tables, write_pages
from counterfoil.pipelines.run import DataSource

STOPPED = 3  # exit code of a run that can go on with --resume


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)

    plan = verbs.add_parser("plan", help="list all tables, or the experiments of one")
    plan.add_argument("table", nargs="?", help="as aoq-batch; default: list all")

    go = verbs.add_parser("run", help="run the missing experiments of a table")
    go.add_argument("table", help="as aoq-batch")
    go.add_argument("--budget", default="cpu", help="cpu, gpu or smoke; default cpu")
    go.add_argument("--data", help="as `counterfoil run` has it")
    for name in ("features", "images", "corrections"):
        go.add_argument(f"--{name}", type=Path, help="as `counterfoil run` has it")
    go.add_argument("--folder", type=Path, help="of the runs; default runs/TABLE/BUDGET")
    go.add_argument("--ledger", type=Path, help="raw results, JSONL; default in the folder")
    go.add_argument(
        "--only", action="append", default=[], help="experiments whose names begin so; many times"
    )
    go.add_argument("--resume", action="store_true", help="go on with a stopped run")
    go.add_argument("--minutes", type=float, help="stop after this long; --resume goes on")

    pages = verbs.add_parser("pages", help="write all tables and figures into docs/results")
    pages.add_argument("docs", nargs="?", type=Path, default=Path("docs"), help="default docs")

    table = verbs.add_parser("table", help="make the table again from raw results")
    table.add_argument("ledger", nargs="+", type=Path, help="raw results, JSONL")
    table.add_argument("--figure", type=Path, help="draw the differences, SVG")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace) -> bool:
    table = find(given.table)
    folder = given.folder or Path("runs") / table.name / given.budget
    return run(
        table,
        given.budget,
        DataSource(given.data or table.data, given.features, given.images, given.corrections),
        folder,
        given.ledger or folder / "ledger.jsonl",
        only=given.only,
        resume=given.resume,
        minutes=given.minutes,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when all went well, 2 when the input was at fault, 3 when stopped."""
    given = _arguments(arguments)
    try:
        if given.verb == "plan" and given.table is None:
            show_tables(tables())
        elif given.verb == "plan":
            show_plan(find(given.table))
        elif given.verb == "pages":
            write_pages(given.docs)
        elif given.verb == "table":
            show(given.ledger, given.figure)
        elif not _run(given):
            return STOPPED
    except (ValueError, OSError) as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
