"""Messages and progress: the one module that prints.

`info` and `warn` go to standard error, `output` to standard output; all of them and the progress
bars are shown on rank 0 only. Rich and torch are imported when something is printed, not before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """The console of standard output or of standard error."""
    from rich.console import Console

    return Console(stderr=stderr)


def info(text: str) -> None:
    """Print a message about the work in progress to standard error."""
    _print_line(text, stderr=True)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    _print_line(text, stderr=True, label="warning: ")


def output(text: str) -> None:
    """Print a line of a command's result to standard output."""
    _print_line(text, stderr=False)


@contextmanager
def progress(description: str, total: int, completed: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a bar with a rate and an ETA while the block runs; yields a function that advances it.

    An earlier, stopped run may have `completed` some units.
    """
    if not _is_first_process() or not console(stderr=True).is_terminal:
        yield lambda more: None
        return
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

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f}/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, completed=completed)
        yield lambda more: bar.advance(task, more)


def _print_line(text: str, *, stderr: bool, label: str = "") -> None:
    if not _is_first_process():
        return
    from rich.text import Text

    line = Text(text)  # plain text: square brackets of a path or a name are no markup
    if label:
        line = Text(label, style="yellow").append(text, style="default")
    console(stderr=stderr).print(line, highlight=False, soft_wrap=True)


def _is_first_process() -> bool:
    # Without torch.distributed there is no group; `--help` must not load torch to learn that.
    if "torch.distributed" not in sys.modules:
        return True
    from counterfoil.core import distributed

    return distributed.rank() == 0
