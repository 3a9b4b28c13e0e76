"""``counterfoil cache``: list and delete cached files."""

from __future__ import annotations

from typing import Annotated

import typer

from counterfoil.cli.options import CONVERSION, example, refuse_without

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    rich_help_panel=CONVERSION,
    epilog=example(
        "counterfoil cache",
        "counterfoil cache --clear pixels --days 30",
        "counterfoil cache --clear all",
    ),
)
def cache(
    context: typer.Context,
    clear: Annotated[
        str | None, typer.Option(help="Delete: pixels, states, tokens, vectors, or all.")
    ] = None,
    days: Annotated[
        float, typer.Option(min=0, help="Delete only what was written so many days ago.")
    ] = 0,
) -> None:
    """List cached files with their sizes, or delete them; they are made again when needed."""
    refuse_without(context, "clear", ("days",))
    from counterfoil.core.cache import KINDS, cached_files, remove_cached
    from counterfoil.core.console import output
    from counterfoil.core.io import cache_folder

    kinds = list(KINDS) if clear in (None, "all") else [str(clear)]
    caches = [cached_files(kind, days=days) for kind in kinds]
    for files in caches:
        if clear:
            remove_cached(files)
        number = f"{len(files.entries):,} {'entry' if len(files.entries) == 1 else 'entries'}"
        age = f", the oldest {files.days:.0f} days old" if files.entries and not clear else ""
        verb = "deleted " if clear else ""
        output(
            f"{files.kind} ({KINDS[files.kind]}): {verb}{number}, {files.size / 1e6:,.1f} MB{age}"
        )
    total = sum(files.size for files in caches) / 1e6
    output(f"{cache_folder()}: {total:,.1f} MB{' freed' if clear else ''}")
