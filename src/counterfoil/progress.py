"""Progress of long work: a rate and an ETA, on rank 0, to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from counterfoil import world

stderr = Console(stderr=True)


@final
class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; call what it yields with how much more has been done.

    Args:
        what: what is being counted, as in "images encoded".
        total: how many there are.
        done: how many were done before, by a run that was stopped.
    """
    if world.rank() or not stderr.is_terminal:
        yield lambda more: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda more: bar.advance(task, more)
