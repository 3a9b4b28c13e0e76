"""``counterfoil evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import DataOptions, Numbers, Split, data_options, example

if TYPE_CHECKING:
    from collections.abc import Sequence

    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.evaluation.foils.attack import CaptionAttack
    from counterfoil.model import Model

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil evaluate runs/mine/best --data my-photos/",
        "counterfoil evaluate openai/clip-vit-base-patch32 --data my-photos/ --split test",
        "counterfoil evaluate runs/tags/tags --first runs/vsepp/online --depth 50 --data flickr8k/",
        "counterfoil evaluate runs/mine/best --data my-photos/ --foils questions/",
        "counterfoil evaluate vectors --data embeddings/ --split all",
    )
)
@data_options
def evaluate(
    model: Annotated[
        list[str],
        typer.Argument(help="Model folder, HF name, or `vectors`; several are an ensemble."),
    ],
    data: DataOptions,
    split: Split = "test",
    protocol: Annotated[str, typer.Option(help="whole, flickr-1k, coco-1k, coco-5k.")] = "whole",
    ties: Annotated[
        str, typer.Option(help="Ranks of equal scores: row, optimistic, pessimistic.")
    ] = "row",
    first: Annotated[
        list[str] | None,
        typer.Option(help="Model whose shortlist is re-ranked; repeatable."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Length of the shortlist; default 50.")
    ] = None,
    full: Annotated[
        bool, typer.Option(help="Rank everything too, to measure what the shortlist loses.")
    ] = False,
    eccv: Annotated[Path | None, typer.Option(help="ECCV-Caption annotations, folder.")] = None,
    cxc: Annotated[Path | None, typer.Option(help="CxC annotations, folder.")] = None,
    foils: Annotated[
        Path | None,
        typer.Option(help="Foils of the split, as `write` makes them: attack the images' ranks."),
    ] = None,
    json: Numbers = None,
) -> None:
    """Measure retrieval in both directions; print recalls, protocol and intervals."""
    from dataclasses import asdict

    from counterfoil.core import distributed
    from counterfoil.core.config import parse_literal
    from counterfoil.core.console import console
    from counterfoil.core.io import ensure_writable_file, write_json
    from counterfoil.evaluation.cascade import DEPTH
    from counterfoil.evaluation.extended import crisscrossed, eccv_caption, extended_table
    from counterfoil.evaluation.foils.attack import evaluate_attack
    from counterfoil.evaluation.metrics import Tie
    from counterfoil.evaluation.protocols import folds_of, protocol_by_name
    from counterfoil.model import load_model
    from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation, build_shortlist
    from counterfoil.report.tables import terminal_table

    settings = protocol_by_name(protocol)
    rule: Tie = parse_literal(Tie, ties, "a tie rule")
    if not first and (depth is not None or full):
        raise ValueError(
            "--depth and --full are about a shortlist, and no model makes one; name a model with "
            "--first, or leave them out"
        )
    if first and (eccv or cxc or foils):
        raise ValueError(
            "--eccv, --cxc and --foils need all scores, which a shortlist avoids; leave out "
            "--first, or leave out --eccv, --cxc and --foils"
        )
    if json is not None:
        ensure_writable_file(json)
    distributed.init()
    dataset = data.source().split(split)
    models = [load_model(name) for name in model]
    folds_of(settings, len(dataset))  # fails before anything is encoded
    attack = _open_attack(foils, dataset) if foils else None
    attacked = [model.embed(attack.dataset) for model in models] if attack else []
    embedded = (
        attack.captions_only(attacked) if attack else [model.embed(dataset) for model in models]
    )
    shortlist = build_shortlist(first or (), dataset, depth or DEPTH, full=full)
    evaluation = RetrievalEvaluation.of(
        embedded, dataset, settings, tie=rule, seed=_common_seed(models), by=shortlist
    )
    eccv_scores = eccv_caption(embedded, dataset, eccv) if eccv else ()
    cxc_scores = crisscrossed(embedded, dataset, cxc) if cxc else ()
    attacks = evaluate_attack(attacked, attack, evaluation.report) if attack else None
    if distributed.rank() == 0:
        evaluation.show(" + ".join(model))
        if attacks:
            console().print(terminal_table(attacks.table(), attacks.protocol()))
        for table in extended_table(eccv_scores, cxc_scores):
            console().print(table)
        if json is not None:
            extended = {
                "eccv": [asdict(score) for score in eccv_scores],
                "cxc": [asdict(score) for score in cxc_scores],
            }
            more = extended | ({"foils": attacks.to_dict()} if attacks else {})
            write_json(json, {"models": model, **evaluation.to_dict(), **more})


def _open_attack(folder: Path, dataset: ImageTextDataset) -> CaptionAttack:
    """A split with the foils that were written of it."""
    from counterfoil.evaluation.foils.attack import CaptionAttack
    from counterfoil.negatives.generation.store import GeneratedStore

    store = GeneratedStore.open(folder, fingerprint=dataset.fingerprint)
    return CaptionAttack.of(dataset, ((foil.text, foil.kind, foil.foil) for foil in store.foils()))


def _common_seed(models: Sequence[Model]) -> int | None:
    """The seed that all models were trained with; None if they differ."""
    seeds = {model.card.provenance.get("seed") for model in models if model.card}
    seed = seeds.pop() if len(seeds) == 1 else None
    return seed if isinstance(seed, int) else None
