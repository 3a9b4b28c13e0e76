"""``counterfoil negatives`` and ``counterfoil diagnose``: lists of negatives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    Data,
    NewFolder,
    Numbers,
    Seed,
    Split,
    check_new_files,
    check_new_folder,
    data_source,
    open_negatives,
    print_tables,
    record_settings,
    verb,
    with_settings,
)
from counterfoil.core.console import output

SETTINGS = "samples", "alike"  # of `diagnose_lists`
GUARANTEE = "sample", "encoder"  # of a `GuaranteeConfig`

diagnose_app = typer.Typer(rich_markup_mode="markdown")
app = typer.Typer(
    name="negatives",
    no_args_is_help=True,
    help="Filter mined negatives by judged pairs; push and pull them.",
)


@verb(
    app,
    "counterfoil negatives filter lists/ --data my-photos/ --judgements judged.jsonl "
    "--set sample=200 --output filtered/",
    "counterfoil negatives filter lists/ --data my-photos/ --judgements judged.jsonl "
    "--set sample=200 --by captions --at-most-true 0.1 --output filtered/",
    name="filter",
)
def filter_lists(
    store: Annotated[Path, typer.Argument(help="Folder of mined negatives.")],
    judgements: Annotated[
        Path, typer.Option(help="What people judged: corrections of an audit, or votes.")
    ],
    folder: NewFolder,
    data: Data = None,
    at_most_true: Annotated[
        float, typer.Option(help="Share of the kept pairs that may be true.")
    ] = 0.05,
    confidence: Annotated[float, typer.Option(help="How sure that is, for each side.")] = 0.95,
    by: Annotated[
        str, typer.Option(help="Measure: margin, score, rank, captions or meanings.")
    ] = "margin",
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model that scores the pairs; default those that mined."),
    ] = None,
    settings: Annotated[list[str] | None, record_settings(*GUARANTEE)] = None,
) -> None:
    """Leave out pairs above a threshold, so that few of the kept ones are true.

    The threshold is chosen by judged pairs, a random sample of the listed ones.
    """
    from counterfoil.core.config import parse_literal
    from counterfoil.data.corrections import read_verdicts
    from counterfoil.model import load_model
    from counterfoil.negatives.guarantee import GuaranteeConfig, Measure, filter_with_guarantee

    check_new_folder(folder)
    measure: Measure = parse_literal(Measure, by, "a measure")
    config = GuaranteeConfig(at_most_true=at_most_true, confidence=confidence, by=measure)
    config = with_settings(config, settings, GUARANTEE)
    negatives, dataset = open_negatives(store, data_source(data))
    verdicts, files = read_verdicts(judgements, dataset)
    members = [load_model(name).embed(dataset) for name in model or ()]
    filtered, sides = filter_with_guarantee(negatives, dataset, verdicts, config, members=members)
    filtered.save(folder)
    drawn = (
        f"a sample of {config.sample:,} of each side, drawn from the lists"
        if config.sample
        else "all judged pairs, taken for a random sample of the lists"
    )
    output(
        f"{dataset.name} {dataset.split_name}: {config.promise} confidence, by {', '.join(files)} "
        f"({drawn})"
    )
    for each in sides:
        output(str(each))
    output(f"{filtered.lists.describe()}: {folder}")


@verb(
    diagnose_app,
    "counterfoil diagnose lists/ --model runs/mine --data my-photos/",
    "counterfoil diagnose lists/ --data flickr8k/ --set alike=0.7 --json diagnosis.json",
)
def diagnose(
    store: Annotated[Path, typer.Argument(help="Folder of mined negatives.")],
    data: Data = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model whose scores to compare; several are an ensemble."),
    ] = None,
    seed: Seed = 0,
    settings: Annotated[list[str] | None, record_settings(*SETTINGS)] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="HTML page of examples, with the images; default `diagnosis.html` in the folder "
            "of negatives.",
        ),
    ] = None,
    json: Numbers = None,
) -> None:
    """Report hardness, hubness and estimated false-negative rate of mined negatives."""
    from counterfoil.analysis.diagnosis import diagnose_lists, diagnosis_tables, write_diagnosis
    from counterfoil.core import distributed
    from counterfoil.core.config import config
    from counterfoil.core.io import write_json
    from counterfoil.model import load_model

    page = page or store / "diagnosis.html"
    check_new_files(page, json)
    distributed.init()
    negatives, dataset = open_negatives(store, data_source(data))
    models = [load_model(name) for name in model or ()]
    call = config(diagnose_lists, store=negatives, dataset=dataset, models=models, seed=seed)
    diagnosis = with_settings(call, settings, SETTINGS).build()
    if distributed.rank() == 0:
        output(diagnosis.line)
        print_tables(diagnosis_tables(diagnosis))
        write_diagnosis(diagnosis, page, title=str(store))
        if json is not None:
            names = {"store": str(store), "models": model or []}
            write_json(json, {**names, **diagnosis.to_dict()})
        output(f"open {page}")


@verb(
    app,
    "counterfoil negatives push lists/ me/my-negatives --data my-photos/",
)
def push(
    store: Annotated[Path, typer.Argument(help="Folder of mined negatives.")],
    name: Annotated[str, typer.Argument(metavar="USER/NAME", help="Data set on the hub.")],
    data: Data = None,
    split: Split = "train",
    judge: Annotated[
        str, typer.Option(help="Who judged the corrected pairs, for the card; default nobody.")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="A new data set is public.")] = False,
) -> None:
    """Upload mined negatives to the Hugging Face hub, as ids and scores, without captions."""
    from counterfoil.hub import push_negatives
    from counterfoil.negatives.mining import HardNegatives
    from counterfoil.negatives.store import NegativeStore

    dataset = data_source(data).split(split)
    mined = NegativeStore.open(store, fingerprint=dataset.fingerprint, relation=dataset.relation)
    output(push_negatives(HardNegatives(mined, dataset), name, judge=judge, private=not public))


@verb(
    app,
    "counterfoil negatives pull me/my-negatives --data my-photos/ --output lists/",
)
def pull(
    name: Annotated[
        str, typer.Argument(metavar="USER/NAME", help="Data set on the hub, or folder.")
    ],
    folder: NewFolder,
    data: Data = None,
    split: Split = "train",
    revision: Annotated[str | None, typer.Option(help="Of the hub; default the newest.")] = None,
) -> None:
    """Download mined negatives of a data set from the Hugging Face hub."""
    from counterfoil.hub import load_negatives

    check_new_folder(folder)
    negatives = load_negatives(name, data_source(data).split(split), revision=revision)
    negatives.save(folder)
    output(f"{negatives.lists.describe()}: {folder}")
