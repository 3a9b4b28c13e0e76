"""``counterfoil evaluate``: recalls of models, ensembles and cascades on a split."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    CaptionColumn,
    DataSets,
    Device,
    ImageColumn,
    Numbers,
    Split,
    check_new_files,
    check_new_folder,
    command_line,
    data_source,
    print_tables,
    verb,
)
from counterfoil.core.console import console, output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.evaluation.cascade import Shortlister
    from counterfoil.evaluation.cxc import CxCResult
    from counterfoil.evaluation.foils.attack import AttackReport, CaptionAttack
    from counterfoil.evaluation.metrics import Protocol
    from counterfoil.evaluation.truth import Truth
    from counterfoil.model import Model
    from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
    from counterfoil.scoring.reducers import Tie

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil evaluate runs/mine --data my-photos/",
    "counterfoil evaluate openai/clip-vit-base-patch32 --data my-photos/ --split test",
    "counterfoil evaluate runs/a runs/b --data flickr8k/ --output measured/",
    "counterfoil evaluate runs/tags/tags --first runs/vsepp/online --depth 50 --data flickr8k/",
    "counterfoil evaluate runs/mine --data my-photos/ --foils questions/",
    "counterfoil evaluate runs/mine --data flickr8k/ --truth judged "
    "--judgements flickr8k/annotations/",
    "counterfoil evaluate runs/mine --data flickr8k/ --truth judged "
    "--judgements flickr8k/annotations/ --bounds",
    "counterfoil evaluate vectors --data embeddings/ --split all",
)
def evaluate(
    model: Annotated[
        list[str],
        typer.Argument(
            help="Model folder, HF name, or `vectors`; join an ensemble with `+`. Several are "
            "compared with the first."
        ),
    ],
    data: DataSets = None,
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
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
    truth: Annotated[
        str, typer.Option(help="Own captions, judged pairs too, or complete: every true pair.")
    ] = "own",
    judgements: Annotated[
        Path | None,
        typer.Option(help="What people judged, file or folder: votes, corrections, ECCV, CxC."),
    ] = None,
    bounds: Annotated[
        bool,
        typer.Option(
            "--bounds", help="With judged pairs: lowest and highest mAP@R that unjudged ones allow."
        ),
    ] = False,
    foils: Annotated[
        Path | None,
        typer.Option(help="Foils of the split, as `write` makes them: attack the images' ranks."),
    ] = None,
    device: Device = None,
    json: Numbers = None,
    folder: Annotated[
        Path | None, typer.Option("--output", help="Folder for numbers and ranks, for `report`.")
    ] = None,
) -> None:
    """Measure retrieval in both directions; print recalls, protocol and intervals.

    Several models are compared on the same queries, with paired intervals.
    """
    from counterfoil.core import distributed
    from counterfoil.core.config import parse_literal
    from counterfoil.core.io import write_json
    from counterfoil.evaluation.cascade import DEPTH
    from counterfoil.evaluation.evaluate import truth_of
    from counterfoil.evaluation.protocols import check_bounded, folds_of, protocol_by_name
    from counterfoil.pipelines.stages.evaluate import build_shortlist
    from counterfoil.scoring.reducers import Tie

    settings = protocol_by_name(protocol)
    rule: Tie = parse_literal(Tie, ties, "a tie rule")
    compared = _compared(model)
    _check_options(
        len(compared),
        first=bool(first),
        shortlist=depth is not None or full,
        foils=foils is not None,
        own=truth == "own" and judgements is None,
    )
    if bounds:
        check_bounded(truth, rule)
    check_new_files(json)
    if folder is not None:
        check_new_folder(folder)
    distributed.init()
    source = data_source(data, caption_column=caption_column, image_column=image_column)
    sets = source.parts or {"": source}
    datasets = {name: each.split(split) for name, each in sets.items()}
    if source.parts:  # of equal names, tables say which
        datasets = {name: replace(each, name=name) for name, each in datasets.items()}
    for dataset in datasets.values():
        dataset.check_captions("to rank")
        folds_of(settings, len(dataset))  # fails before anything is encoded
    values: dict[str, dict[str, object]] = {}
    for part, dataset in datasets.items():
        known = truth_of(dataset, truth, judgements, settings)
        shortlist = build_shortlist(first or (), dataset, depth or DEPTH, full=full)
        evaluations = {
            name: _evaluate(
                models, dataset, settings, rule, shortlist, known, judgements, foils, bounds
            )
            for name, models in compared.items()
        }
        if distributed.rank():
            continue
        several = len(evaluations) > 1
        shown = _show_comparison(evaluations) if several else _show_single(*evaluations.values())
        values[part] = shown
        if folder is not None:
            for name, evaluation in evaluations.items():
                place = folder / part / name.replace("/", "-") if several else folder / part
                evaluation.retrieval.save(place, evaluation.models)
    if distributed.rank():
        return
    if json is not None:
        write_json(json, values if source.parts else values[""])
    if folder is not None:
        places = (command_line("report", folder / part) for part in datasets)
        output(f"next: {', or '.join(places)}")


def _check_options(models: int, *, first: bool, shortlist: bool, foils: bool, own: bool) -> None:
    """Refuse options that conflict or have no effect; `own`: no other truth is asked."""
    if shortlist and not first:
        raise ValueError(
            "--depth and --full are about a shortlist, and no model makes one; name a model with "
            "--first, or leave them out"
        )
    if first and (foils or not own):
        raise ValueError(
            "--truth and --foils need all scores, which a shortlist avoids; leave out --first, or "
            "leave out --truth, --judgements and --foils"
        )
    if models > 1 and foils:
        raise ValueError(
            "--foils are measured for one model at a time; name one, or join an ensemble with +"
        )
    if foils and not own:
        raise ValueError("--foils attack the ranks of own captions; leave out --truth or --foils")


def _compared(names: Sequence[str]) -> dict[str, list[str]]:
    """Models to compare, by short names; each is a list, of several for an ensemble.

    Raises:
        ValueError: a name is given twice.
    """
    from counterfoil.pipelines.scorers import check_different, ensemble_parts, short_names

    check_different(names, "model")
    return {
        short: ensemble_parts(name) for short, name in zip(short_names(names), names, strict=True)
    }


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Results of a model, or of an ensemble of several."""

    models: Sequence[str]
    retrieval: RetrievalEvaluation
    cxc: Sequence[CxCResult]
    attack: AttackReport | None


def _evaluate(
    names: Sequence[str],
    dataset: ImageTextDataset,
    protocol: Protocol,
    tie: Tie,
    shortlist: Shortlister | None,
    truth: Truth | None,
    judgements: Path | None,
    foils: Path | None,
    bounds: bool,
) -> _Evaluation:
    """Evaluate a model, or an ensemble of several; its vectors are released on return."""
    from counterfoil.evaluation.cxc import FILES, within_modalities
    from counterfoil.evaluation.foils.attack import evaluate_attack
    from counterfoil.model import load_model
    from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation

    models = [load_model(name) for name in names]
    attack = _open_attack(foils, dataset) if foils else None
    attacked = [model.embed(attack.dataset) for model in models] if attack else []
    embedded = (
        attack.captions_only(attacked)
        if attack
        else [model.embed(dataset, keep_pixels=len(models) > 1) for model in models]
    )
    seed = _common_seed(models)
    retrieval = RetrievalEvaluation.of(
        embedded, dataset, protocol, tie=tie, seed=seed, by=shortlist, truth=truth, bounded=bounds
    )
    rated = judgements is not None and any((judgements / name).exists() for name in FILES)
    return _Evaluation(
        names,
        retrieval,
        within_modalities(embedded, dataset, judgements) if judgements and rated else (),
        evaluate_attack(attacked, attack, retrieval.report) if attack else None,
    )


def _show_single(evaluation: _Evaluation) -> dict[str, object]:
    """Print all tables of one evaluation; returns its numbers."""
    from counterfoil.evaluation.cxc import cxc_tables

    retrieval, attack = evaluation.retrieval, evaluation.attack
    retrieval.show(" + ".join(evaluation.models))
    if attack:
        print_tables([attack.table()], attack.protocol())
    for table in cxc_tables(evaluation.cxc):
        console().print(table)
    return {
        "models": evaluation.models,
        **retrieval.to_dict(),
        "cxc": [asdict(score) for score in evaluation.cxc],
        **({"foils": attack.to_dict()} if attack else {}),
    }


def _show_comparison(evaluations: Mapping[str, _Evaluation]) -> dict[str, object]:
    """Print evaluations side by side, then paired intervals; returns their numbers."""
    from counterfoil.evaluation.results import EvaluationComparison

    comparison = EvaluationComparison.of(
        {name: evaluation.retrieval.report for name, evaluation in evaluations.items()}
    )
    for line in comparison.headlines:
        output(line)
    print_tables([comparison.table()], comparison.protocol)
    return {
        "evaluations": [
            {"models": evaluation.models, **evaluation.retrieval.to_dict()}
            for evaluation in evaluations.values()
        ],
        "comparison": comparison.to_dict(),
    }


def _open_attack(folder: Path, dataset: ImageTextDataset) -> CaptionAttack:
    """A split with the stored foils of its captions."""
    from counterfoil.evaluation.foils.attack import CaptionAttack
    from counterfoil.negatives.generated import GeneratedStore

    store = GeneratedStore.open(folder, fingerprint=dataset.fingerprint)
    return CaptionAttack.of(dataset, ((foil.text, foil.kind, foil.foil) for foil in store.foils()))


def _common_seed(models: Sequence[Model]) -> int | None:
    """The seed that all models were trained with; None if they differ."""
    seeds = {model.card.provenance.get("seed") for model in models if model.card}
    seed = seeds.pop() if len(seeds) == 1 else None
    return seed if isinstance(seed, int) else None
