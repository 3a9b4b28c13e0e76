"""Opens what is to be served, and serves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from counterfoil.recipes.explain import lacking
from counterfoil.recipes.model import open_model
from counterfoil.recipes.searching import open_index
from counterfoil.recipes.show import say
from counterfoil.serve.app import application
from counterfoil.serve.library import Library
from counterfoil.serve.run import listening, run
from counterfoil.serve.settings import Settings

if TYPE_CHECKING:
    from counterfoil.recipes.run import Source


def serve(
    index: Path,
    *,
    model: str | None = None,
    explainer: str | None = None,
    source: Source | None = None,
    settings: Settings | None = None,
) -> None:
    """Serve an index until SIGTERM or Ctrl-C.

    Args:
        index: folder of the index.
        model: to ask with; None for the one that the index names.
        explainer: another model, which explains; None for the same.
        source: data that hold the images of the index, where it has no files of theirs, or where
            the explainer reads features.
        settings: what is allowed; None for the defaults.

    Raises:
        ValueError: there is no index, models and index do not fit, or the address is taken.
    """
    allowed = settings or Settings()
    opened = listening(allowed)
    try:
        with open_index(index, model=model) as found:
            corpus = None if source is None else source.open()
            library = Library(found, None if explainer is None else open_model(explainer), corpus)
            app = application(library, allowed)
            say(f"{index}: {found.told}, {library.name}")
            if lacks := lacking(library.explainer):
                say(f"{lacks}; words are left out instead, and another model is --explainer")
            if not allowed.local and allowed.key is None:
                say(f"anybody who reaches {allowed.host} can search; --key asks for a key")
            run(app, replace(allowed, port=opened.getsockname()[1]), opened)
    finally:
        opened.close()
