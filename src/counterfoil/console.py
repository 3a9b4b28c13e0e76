"""Messages and tables on standard output."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from counterfoil import world

console = Console()


def say(line: str) -> None:
    """Print one line, from the first process only."""
    if world.rank() == 0:
        console.print(escape(line), highlight=False, soft_wrap=True)
