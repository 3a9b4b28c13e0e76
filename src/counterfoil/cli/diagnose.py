"""``counterfoil diagnose``: hardness, hubness and likely false negatives of mined lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import RESEARCH, DataOptions, Numbers, data_options, example

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    rich_help_panel=RESEARCH,
    epilog=example(
        "counterfoil diagnose lists/ --model runs/mine/online --data my-photos/",
        "counterfoil diagnose lists/ --data flickr8k/ --alike 0.7 --json diagnosis.json",
    ),
)
@data_options
def diagnose(
    store: Annotated[Path, typer.Argument(help="Folder of mined negatives.")],
    data: DataOptions,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model whose scores to compare; several are an ensemble."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Anchor captions to inspect.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of anchors.")] = 0,
    alike: Annotated[
        float, typer.Option(help="TF-IDF cosine from which a text is suspected to be true.")
    ] = 0.6,
    examples: Annotated[
        int, typer.Option(min=0, help="Anchors of each direction on the page.")
    ] = 6,
    page: Annotated[
        Path, typer.Option("--output", help="HTML page of examples, with the images.")
    ] = Path("diagnosis.html"),
    json: Numbers = None,
) -> None:
    """Report hardness, hubness and estimated false-negative rate of mined negatives."""
    from counterfoil.analysis.diagnosis import diagnose_lists, diagnosis_tables, write_diagnosis
    from counterfoil.core import distributed
    from counterfoil.core.console import console, output
    from counterfoil.core.io import ensure_writable_file, write_json
    from counterfoil.model import load_model
    from counterfoil.negatives.store import MINED, NegativeStore
    from counterfoil.report.tables import terminal_table

    for path in (page, json):
        if path is not None:
            ensure_writable_file(path)
    distributed.init()
    dataset = data.source().split(MINED.read_manifest(store).split)
    negatives = NegativeStore.open(store, fingerprint=dataset.fingerprint)
    models = [load_model(name) for name in model or ()]
    diagnosis = diagnose_lists(negatives, dataset, models, samples=samples, seed=seed, alike=alike)
    if distributed.rank() == 0:
        for table in diagnosis_tables(diagnosis):
            console().print(terminal_table(table))
        write_diagnosis(diagnosis, page, title=str(store), examples=examples)
        if json is not None:
            names = {"store": str(store), "models": model or []}
            write_json(json, {**names, **diagnosis.to_dict()})
        output(diagnosis.line)
        output(f"{page}")
