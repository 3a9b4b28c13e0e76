"""``python -m benchmarks [name ...] [--threads 1] [--markdown FILE]``: the speed figures."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import import_module
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.speed import Result

NAMES = (
    "scan",
    "bfan",
    "gpo",
    "chan",
    "hrem",
    "dive",
    "uniter",
    "tailored",
    "guided",
    "offline",
    "selfmining",
    "shortlist",
    "mining",
    "recall",
    "scale",
    "server",
    "waiting",
)
COLUMNS = ("figure", "x plain product", "target", "met", "authors", "note")
MET = {None: "", True: "met", False: "missed"}


def _cells(result: Result) -> tuple[str, ...]:
    target = "" if result.target is None else f"<= {result.target:g}"
    authors = "" if result.authors is None else f"{result.authors:g}"
    figure = f"{result.ratio:.2f} {result.unit}".rstrip()
    return result.name, figure, target, MET[result.met], authors, result.note


def _title(threads: int) -> str:
    return "one thread, process CPU time" if threads == 1 else f"{threads} threads, wall time"


def _measure(name: str, threads: int) -> list[Result]:
    torch.set_num_threads(threads)
    found = []
    for result in import_module(f"benchmarks.speed.{name}").results(threads):
        print(" | ".join(_cells(result)), flush=True)
        found.append(result)
    return found


def _table(found: list[Result], threads: int) -> Table:
    table = Table(*COLUMNS, title=_title(threads))
    for result in found:
        table.add_row(*_cells(result))
    return table


def _markdown(found: list[Result], threads: int) -> str:
    head = [
        f"### {_title(threads)}",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
    ]
    rows = ["| " + " | ".join(_cells(result)) + " |" for result in found]
    return "\n".join([*head, *rows, ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which of {', '.join(NAMES)}")
    parser.add_argument("--threads", type=int, action="append", help="default: 1, then all cores")
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; choose from {', '.join(NAMES)}")
    return arguments


def main() -> int:
    """Measure, print, and answer 1 if a target was missed."""
    arguments = _arguments()
    modes = arguments.threads or list(dict.fromkeys((1, os.cpu_count() or 1)))
    texts = [f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, float32.\n"]
    missed = False
    for threads in modes:
        found = [r for name in arguments.names or NAMES for r in _measure(name, threads)]
        missed |= any(result.met is False for result in found)
        Console().print(_table(found, threads))
        texts.append(_markdown(found, threads))
        if arguments.markdown:
            arguments.markdown.write_text("\n".join(texts), encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
