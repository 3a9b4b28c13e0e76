"""``counterfoil audit``: a page to review suspicious images, captions and mined negatives."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    DataName,
    command_line,
    data_source,
    earlier_corrections,
    open_negatives,
    print_tables,
    record_settings,
    refuse,
    verb,
    with_settings,
)
from counterfoil.core.console import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.model import Model
    from counterfoil.pipelines.run import DataSource

PAGE_FILE, JSON_FILE = "audit.html", "audit.json"
SETTINGS = "near", "alike", "top", "order"  # of an `AuditConfig`

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil audit my-photos/ --output audit/",
    "counterfoil audit my-photos/ --model runs/mine --explainer runs/tags-dc --output audit/",
    "counterfoil audit my-photos/ --model runs/mine --negatives lists/ --output audit/",
    "counterfoil audit my-photos/ --negatives lists/ --set order=random --set top=200 "
    "--output sample/",
    "counterfoil audit my-photos/ --model runs/mine --split test --set order=bounds --output next/",
)
def audit(
    context: typer.Context,
    data: DataName,
    folder: Annotated[Path, typer.Option("--output", help="Folder of the page and its numbers.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model folder or HF name that ranks captions; several are an ensemble."),
    ] = None,
    explainer: Annotated[
        str, typer.Option(help="Model that marks wrong words, trained by TAGS-DC.")
    ] = "",
    negatives: Annotated[
        Path | None, typer.Option(help="Mined negatives, to find true pairs among them.")
    ] = None,
    judgements: Annotated[
        Path | None,
        typer.Option(help="With order=bounds: pairs judged before, besides the corrections."),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Split whose captions models judge, or `all`.")
    ] = "all",
    settings: Annotated[list[str] | None, record_settings(*SETTINGS)] = None,
) -> None:
    """Find suspicious captions, leaked images and false negatives, and review them on a page."""
    from counterfoil.audit import AuditConfig, AuditPage, audit_dataset, render_audit
    from counterfoil.core import distributed
    from counterfoil.core.console import warn
    from counterfoil.core.io import ensure_absent, ensure_writable_folder, write_json, write_text
    from counterfoil.data.corrections import pair_verdicts, read_verdicts
    from counterfoil.model import load_model
    from counterfoil.report.page import TableBlock, current_provenance

    if not model and not explainer:
        refuse(context, ("split",), "with --model or --explainer")
    unread = {} if negatives else {"alike": "with --negatives"}
    config = with_settings(AuditConfig(split), settings, SETTINGS, **unread)
    if judgements is not None and config.order != "bounds":
        raise ValueError("--judgements are read with --set order=bounds alone; leave them out")
    ensure_writable_folder(folder / PAGE_FILE)
    for name in (PAGE_FILE, JSON_FILE):
        ensure_absent(folder / name, "a new folder with --output")
    distributed.init()
    source = data_source(data)
    dataset, earlier = source.open(), earlier_corrections(source)
    names = tuple(model or ())
    models = [load_model(name) for name in names]
    taught = [each for each in models if split in ("all", "train") and _knows(each, dataset)]
    known = tuple(
        f"{each.name} was trained on captions of {dataset.name}, and takes wrong ones among them "
        "for right; look at dev and test (--split), or train on one half of the images and audit "
        "the other"
        for each in taught
    )
    for sentence in known:
        warn(sentence)
    verdicts = list(pair_verdicts(earlier))
    if judgements is not None:
        found, _ = read_verdicts(judgements, dataset)
        ids = dataset.image_ids, dataset.text_ids
        verdicts += [(ids[0][image], ids[1][text], true) for (image, text), true in found.items()]
    sections = audit_dataset(
        dataset,
        config,
        models=models,
        explainer=load_model(explainer) if explainer else None,
        negatives=open_negatives(negatives, source)[0] if negatives else None,
        verdicts=verdicts,
    )
    if distributed.rank():
        return
    page = AuditPage(
        title=f"Audit of {dataset.name}",
        protocol=_protocol(dataset, split, models, explainer, negatives),
        known=known,
        again=_by_halves(taught[0], source, folder) if taught else (),
        sections=sections,
        earlier=earlier,
        key=f"{dataset.name} {dataset.fingerprint}",
        provenance=current_provenance(),
    )
    rows = tuple((each.title, f"{each.found:,}", f"{each.shown:,}") for each in sections)
    print_tables([TableBlock("", ("", "found", "on the page"), rows)], page.protocol)
    write_text(folder / PAGE_FILE, render_audit(page))
    plan = {"models": names, "explainer": explainer, "negatives": str(negatives or "")}
    values = {
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "plan": plan | asdict(config),
        "protocol": page.protocol,
        "known": known,
        "again": page.again,
        "decided": [correction.to_dict() for correction in earlier],
        "found": {section.kind: section.to_dict() for section in sections},
        "provenance": asdict(page.provenance),
    }
    write_json(folder / JSON_FILE, values)
    output(page.headline)
    if page.again:
        output("\n".join(("each half of the images judged by a model of the other:", *page.again)))
    output(f"{folder / PAGE_FILE}, {folder / JSON_FILE}")


def _knows(model: Model, dataset: ImageTextDataset) -> bool:
    """Return True if the model was trained on data of this name, even if the data changed since."""
    from counterfoil.evaluation.caption_check import trained_on

    named = model.card is not None and model.card.provenance.get("data") == dataset.name
    return named or trained_on(model, dataset)


def _by_halves(model: Model, source: DataSource, folder: Path) -> tuple[str, ...]:
    """Commands that train on each half of the images and audit the other one."""
    from counterfoil.data.readers.settings import HALVES

    commands = []
    for half in HALVES:
        data, run = replace(source, half=half).typed, f"{folder}-half-{half}"
        commands += [
            command_line(*_training(model), "--data", data, "--output", run),
            command_line(
                *("audit", data, "--model", run, "--split", "test"),
                *("--output", f"{folder}-of-half-{3 - half}"),
            ),
        ]
    return tuple(commands)


def _training(model: Model) -> list[str]:
    """The words that train such a model, as far as its card tells."""
    from counterfoil.card import began_from
    from counterfoil.recipes.clip import WAYS

    card = model.card
    assert card is not None  # it says what the model was trained on
    name, own, _ = str(card.provenance.get("recipe", "")).rpartition("-own")
    if not own:
        return ["train", "LOSS_OR_MODEL"]
    loss, _, way = name.rpartition("-")
    if way not in WAYS:
        return ["train", name]
    return ["train", loss, "--model", began_from(card) or "MODEL", "--tune", way]


def _protocol(
    dataset: ImageTextDataset,
    split: str,
    models: Sequence[Model],
    explainer: str,
    negatives: Path | None,
) -> str:
    """Data, models and negatives of an audit, in one line."""
    from counterfoil.models.base import score_names

    score = score_names(model.model for model in models)
    names = " + ".join(model.name for model in models)
    judged = f"{dataset.name} {split}" if split != "all" else "all splits"
    parts = (
        f"{dataset.name}: {len(dataset):,} images, {len(dataset.texts):,} texts",
        f"captions of {judged} ranked by {names}, score: {score}" if models else "",
        f"words judged by {explainer}" if explainer else "",
        f"negatives of {negatives}" if negatives else "",
        "" if models or explainer else "no model was used",
        f"decided before: {dataset.corrections}" if dataset.corrections else "",
    )
    return "; ".join(filter(None, parts))
