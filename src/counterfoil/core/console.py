"""Messages and progress: the one module that prints.

`info` and `warn` go to standard error, `output` to standard output; all of them and the progress
bars are shown on rank 0 only. Rich and torch are imported when something is printed, not before.
What a terminal would obey is printed as `printable` writes it: captions and names come from others.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# controls but tab and line feed, what turns the direction of text round, and lone surrogates, with
# which Python reads names that are not UTF-8
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""Text that is safe to print: what a terminal would obey, or cannot show, is written out.

    >>> print(printable("\x1b[2Jcafé"), printable("café", "ascii"))
    \x1b[2Jcafé caf\xe9
    """
    text = _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def printable_json(value: object) -> str:
    """JSON that is safe to print, and means the same."""
    text = json.dumps(value, ensure_ascii=not _encoding(sys.stdout).startswith("utf"), indent=2)
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _encoding(stream: object) -> str:
    return (getattr(stream, "encoding", None) or "utf-8").lower()


_T = TypeVar("_T")
_SHOWN = 20  # lines


class Lines(list[_T]):
    """A list that prints an item a line, the first twenty of many."""

    def __repr__(self) -> str:
        lines = [repr(item) for item in self[:_SHOWN]]
        if len(self) > _SHOWN:
            lines.append(f"… and {len(self) - _SHOWN:,} more")
        return "\n".join(lines) or "[]"


def console(*, stderr: bool = False) -> Console:
    """The console of standard output or of standard error; strings are plain text, no markup."""
    return _console_class()(stderr=stderr, markup=False, emoji=False)


@cache
def _console_class() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        @property
        def encoding(self) -> str:
            return _encoding(self.file)  # rich's own knows only streams that it is given

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None:  # else rich's own, such as the cursor of a bar
                    segment = Segment(printable(segment.text, self.encoding), segment.style)
                yield segment

    return PrintableConsole


def info(text: str) -> None:
    """Print a message about the work in progress to standard error."""
    _print_line(text, stderr=True)


_briefly = ContextVar("_briefly", default=False)


@contextmanager
def briefly() -> Iterator[None]:
    """Leave out what `detail` prints while the block runs."""
    before = _briefly.set(True)
    try:
        yield
    finally:
        _briefly.reset(before)


def detail(text: str) -> None:
    """Print a message as `info` does, unless the command is to print little."""
    if not _briefly.get():
        info(text)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    _print_line(text, stderr=True, label="warning: ")


def output(text: str) -> None:
    """Print a line of a command's result to standard output."""
    _print_line(text, stderr=False)


def failure(text: str) -> None:
    """Print why a command ends to standard error, from any process; Rich is not loaded."""
    print(printable(text, _encoding(sys.stderr)), file=sys.stderr)


class PrintableFormatter(logging.Formatter):
    """Formatter of a log that is safe to print."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a log record, with what the terminal cannot show escaped."""
        return printable(super().format(record), _encoding(sys.stderr))


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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(description), total=total, completed=completed)
        yield lambda more: bar.advance(task, more)


def _print_line(text: str, *, stderr: bool, label: str = "") -> None:
    if not _is_first_process():
        return
    from rich.text import Text

    text = printable(text)  # before `Text`, which drops some of it
    line = Text(text)
    if label:
        line = Text(label, style="yellow").append(text, style="default")
    console(stderr=stderr).print(line, highlight=False, soft_wrap=True)


def _is_first_process() -> bool:
    # Without torch.distributed there is no group; `--help` must not load torch to learn that.
    if "torch.distributed" not in sys.modules:
        return True
    from counterfoil.core import distributed

    return distributed.rank() == 0
