"""Opens what is to be served, and serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from counterfoil.core.console import output
from counterfoil.corpus.lens import FeatureEye
from counterfoil.recipes.explain import lacking
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.reranking import open_reranker
from counterfoil.recipes.searching import open_index
from counterfoil.serve.app import application
from counterfoil.serve.holdings import Library
from counterfoil.serve.run import listening, run
from counterfoil.serve.settings import Settings

if TYPE_CHECKING:
    from counterfoil.recipes.run import Source


def serve(
    index: Path,
    *,
    model: str | None = None,
    explainer: str | None = None,
    rerank: str | None = None,
    depth: int | None = None,
    source: Source | None = None,
    settings: Settings | None = None,
) -> None:
    """Serve an index until SIGTERM or Ctrl-C.

    Args:
        index: folder of the index.
        model: to ask with; None for the one that the index names.
        explainer: another model, which explains; None for the same.
        rerank: another model, which puts the first results in order; None for none.
        depth: how many results it looks at; None for the default.
        source: data that hold the images of the index, where it has no files of theirs, or where
            the explainer or what re-ranks reads features.
        settings: what is allowed; None for the defaults.

    Raises:
        ValueError: there is no index, models and index do not fit, or the address is taken.
    """
    allowed = settings or Settings()
    with open_index(index, model=model) as found, listening(allowed) as opened:
        corpus = source and source.open()
        reranker = open_reranker(rerank, depth, corpus)
        if reranker is not None and explainer == rerank:
            library = Library(found, reranker.model, corpus, reranker)
        else:
            library = Library(found, _explainer(explainer, source), corpus, reranker)
        app = application(library, allowed)
        output(f"{index}: {found.told}, {library.name}")
        if library.reranker is not None:
            told = library.reranker
            output(f"{told.model.name} puts the first {told.depth} results in order")
        if lacks := lacking(library.explainer):
            output(f"{lacks}; words are left out instead, and --explainer names another model")
        if not allowed.local and allowed.key is None:
            output(f"anybody who reaches {allowed.host} can search; --key asks for a key")
        run(app, allowed, opened)


def _explainer(name: str | None, source: Source | None) -> Model | None:
    """The model that explains, where it is another.

    Raises:
        ValueError: it reads stored features, and nobody says where they are.
    """
    model = None if name is None else open_model(name)
    if model is None or model.lens is None or source is not None:
        return model
    if isinstance(model.lens.eye, FeatureEye):
        raise ValueError(
            f"{name} reads stored features of images; name the data that have them, with --data "
            "and --features"
        )
    return model
