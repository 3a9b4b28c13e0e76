"""What the command line does besides running recipes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

from counterfoil.core import distributed
from counterfoil.core.config import parse_choice, unknown_name
from counterfoil.core.console import info, output
from counterfoil.core.io import (
    ensure_absent,
    ensure_writable_file,
    ensure_writable_folder,
    write_json,
)
from counterfoil.data.checks import check_dataset
from counterfoil.data.extract import extract_features as extract_features_extract
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.data.tokenizers import Tokenizer, WordPieceTokenizer, read_vocabulary
from counterfoil.evaluation import extended as extended_module
from counterfoil.evaluation.cascade import DEPTH
from counterfoil.evaluation.metrics import TIES, Tie
from counterfoil.evaluation.protocols import PROTOCOLS, folds_of
from counterfoil.model import Model, load_model, save_model
from counterfoil.models.checkpoints import ConvertedModel
from counterfoil.models.convert import MODERN
from counterfoil.models.convert import convert_checkpoint as convert_checkpoint_convert
from counterfoil.pipelines.overrides import changed_settings
from counterfoil.pipelines.pipeline import Mine
from counterfoil.pipelines.plan import console
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation, build_shortlist
from counterfoil.pipelines.stages.mine import partial_folder, remove_partial, run_mining
from counterfoil.pipelines.state import RunStopped

IMAGE_LAYER = re.compile(r"image\.(tower\.)?fc\.weight")
EMBEDDINGS = re.compile(r"text\.(.*\.)?(embed|word_embeddings)\.weight")


def mine(
    stage: Mine,
    source: DataSource,
    out: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
) -> bool:
    """List the hardest negatives of a split by the mean score of the models a stage names.

    Args:
        stage: what to mine, with names that `load_model` opens.
        source: from which data.
        out: where the store goes.
        resume: go on with what was stopped; without it such a mining is refused.
        minutes: stop by itself after this long.

    Returns:
        Whether the lists are done; False when it was stopped first.

    Raises:
        ValueError: `out` exists, or models and data do not fit.
    """
    began = time.monotonic()
    ensure_absent(out, "a new folder with --out")
    ensure_writable_folder(out)
    if partial_folder(out).exists() and not resume:
        raise ValueError(
            f"{partial_folder(out)} holds a mining that was stopped; add --resume to go on with "
            f"it, or "
            "delete it"
        )
    distributed.init()
    distributed.barrier()  # nobody begins before everybody has looked
    dataset = source.split(stage.split)

    def left() -> float | None:
        return None if minutes is None else minutes - (time.monotonic() - began) / 60

    try:
        store, _ = run_mining(stage, dataset, out, left=left)
    except RunStopped as stopped:
        info(f"stopped, {stopped}; add --resume to go on")
        return False
    remove_partial(out)
    output(f"{store.lists.describe()}, {dataset.name} {dataset.split_name}: {out}")
    return True


def evaluate(
    names: Sequence[str],
    source: DataSource,
    split: str,
    *,
    protocol: str = "whole",
    ties: str = "row",
    first: Sequence[str] = (),
    depth: int | None = None,
    full: bool = False,
    eccv: Path | None = None,
    cxc: Path | None = None,
    out: Path | None = None,
) -> RetrievalEvaluation:
    """Measure models on a split, print the table and the protocol.

    Args:
        names: of the models, as `load_model` opens them.
        source: on which data.
        split: which split of it.
        protocol: by its short name.
        ties: the tie rule.
        first: names of models that shortlist; none for ranking everything.
        depth: how many counterparts of a query they shortlist.
        full: rank everything too.
        eccv: ECCV-Caption annotations.
        cxc: folder of CxC annotations.
        out: where the numbers are written too.

    Raises:
        ValueError: an unknown protocol or tie rule, options that do not go together, or model and
            data do not fit.
    """
    parse_choice(PROTOCOLS, protocol, "a protocol")
    rule: Tie | None = next((tie for tie in get_args(Tie) if tie == ties), None)
    if rule is None:
        raise ValueError(unknown_name(ties, list(TIES), "a tie rule"))
    _check_shortlists(first, asked=depth is not None or full, extended=bool(eccv or cxc))
    if out is not None:
        ensure_writable_file(out)
    distributed.init()
    dataset = source.split(split)
    models = [load_model(name) for name in names]
    folds_of(PROTOCOLS[protocol], len(dataset))  # refuses before anything is encoded
    members = [model.embed(dataset) for model in models]
    how, by = PROTOCOLS[protocol], build_shortlist(first, dataset, depth or DEPTH, full=full)
    measured = RetrievalEvaluation.of(members, dataset, how, tie=rule, seed=_seed(models), by=by)
    many = extended_module.eccv_caption(members, dataset, eccv) if eccv else ()
    crossed = extended_module.crisscrossed(members, dataset, cxc) if cxc else ()
    if distributed.rank() == 0:
        measured.show(" + ".join(names))
        for extra in extended_module.extended_table(many, crossed):
            console.print(extra)
        if out is not None:
            more = {"eccv": [asdict(m) for m in many], "cxc": [asdict(c) for c in crossed]}
            write_json(out, {"models": list(names), **measured.to_dict(), **more})
    return measured


def _check_shortlists(first: Sequence[str], *, asked: bool, extended: bool) -> None:
    if asked and not first:
        raise ValueError(
            "--depth and --full say something of shortlists, and no model makes any; name it with "
            "--first, or leave them out"
        )
    if first and extended:
        raise ValueError(
            "extended annotations ask for all scores, and --first is there so that not all are "
            "worked out; leave it out, or leave out --eccv and --cxc"
        )


def check_data(source: DataSource, *, quick: bool) -> bool:
    """Print what is there; whether it can be trained on."""
    findings = check_dataset(source.open(), quick=quick)
    console.print(findings)
    return not findings.errors


def extract_features(
    source: DataSource, out: Path, *, model: str, batch: int, grid: int | None
) -> None:
    """Extract features of all pictures into a folder."""
    ensure_writable_folder(out)
    table = extract_features_extract(
        source.open(), model, out, grid=grid, batch=batch, device=distributed.device()
    )
    output(f"{len(table.features):,} images: {out}")


def convert_checkpoint(
    system: str, checkpoint: Path, vocabulary: Path, out: Path, *, settings: Sequence[str]
) -> None:
    """Turn an authors' checkpoint and its vocabulary into a model folder.

    Args:
        system: whose checkpoint it is.
        checkpoint: the file.
        vocabulary: its vocabulary file; where it reads texts by BERT, the folder of that model,
            with its configuration and tokenizer.
        out: the new folder.
        settings: ``key=value`` of the model.

    Raises:
        ValueError: `out` exists, or the files are not what they should be or do not fit.
    """
    ensure_absent(out)
    ensure_writable_folder(out)
    pieces = vocabulary.is_dir()
    found = convert_checkpoint_convert(checkpoint, system, bert=str(vocabulary) if pieces else None)
    words = WordPieceTokenizer(str(vocabulary)) if pieces else read_vocabulary(vocabulary)
    _check_vocabulary(found, words, vocabulary, masks=system in MODERN)
    found.build()
    spec = found.model
    if "mask" in spec.arguments and words.mask is not None:
        spec = spec.replace(mask=words.mask)
    for setting in settings:
        spec = changed_settings(spec, setting)
    model = replace(found, model=spec).build()
    width = next(v for k, v in found.state.items() if IMAGE_LAYER.fullmatch(k)).shape[1]
    save_model(
        out,
        spec=spec,
        model=model,
        processor=Processor(FeatureProcessor(width), words),
        provenance={"converted_from": checkpoint.name, "system": system},
    )
    output(f"{spec!r}: {out}")


def _check_vocabulary(found: ConvertedModel, words: Tokenizer, given: Path, *, masks: bool) -> None:
    """Refuse a vocabulary that the embeddings were not trained with."""
    name, table = next((k, v) for k, v in found.state.items() if EMBEDDINGS.fullmatch(k))
    pieces = name.endswith("word_embeddings.weight")
    if pieces != isinstance(words, WordPieceTokenizer):
        raise ValueError(
            f"this checkpoint reads texts by BERT and {given} is a file; give the folder of that "
            "model, with its config.json and tokenizer"
            if pieces
            else f"this checkpoint reads words and {given} is a folder; give its vocabulary file"
        )
    spare = len(table) - words.size  # BERT may have room for more pieces than there are
    if spare < 0 or (spare > masks and not pieces):
        raise ValueError(
            f"{given} has {words.size} words and this checkpoint was trained with {len(table)}; "
            "give the vocabulary that belongs to it"
        )


def _seed(models: Sequence[Model]) -> int | None:
    seeds = {model.card.provenance.get("seed") for model in models if model.card}
    found = seeds.pop() if len(seeds) == 1 else None
    return found if isinstance(found, int) else None
