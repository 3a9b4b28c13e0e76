"""``counterfoil diagnose``: the terminal, the page and the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterfoil import world
from counterfoil.core.console import output
from counterfoil.files import check_file, write_json
from counterfoil.negatives.store import MINED, NegativeStore
from counterfoil.recipes import diagnosis_page
from counterfoil.recipes.diagnosis import Diagnosis, DiagnosisPlan, diagnose
from counterfoil.recipes.model import open_model
from counterfoil.recipes.run import Source
from counterfoil.recipes.show import console
from counterfoil.report.tables import terminal_table


def diagnose_with(
    folder: Path,
    names: Sequence[str],
    source: Source,
    plan: DiagnosisPlan,
    *,
    page: Path,
    examples: int,
    out: Path | None,
) -> Diagnosis:
    """Print what a store is like, write a page of examples and, if asked, the numbers as JSON.

    Args:
        folder: of the store.
        names: models whose mean score is compared; with none no scores are compared.
        source: the data; of them the split that was mined.
        plan: how to look.
        page: where the page goes.
        examples: how many anchors of each side it shows.
        out: where the numbers go.

    Raises:
        ValueError: no store of these data, or a model that does not fit them.
    """
    for path in (page, out):
        if path is not None:
            check_file(path)
    world.join()
    corpus = source.split(MINED.read_manifest(folder).split)
    store = NegativeStore.open(folder, fingerprint=corpus.fingerprint)
    found = diagnose(store, corpus, [open_model(name) for name in names], plan)
    if world.rank() == 0:
        for table in diagnosis_page.tables(found):
            console.print(terminal_table(table))
        diagnosis_page.write(found, page, title=str(folder), examples=examples)
        if out is not None:
            write_json(out, {"store": str(folder), "models": list(names), **found.plain()})
        output(f"{found.line}")
        output(f"{page}")
    return found
