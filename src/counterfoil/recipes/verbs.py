"""What the command line does besides running recipes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

from counterfoil import world
from counterfoil.core.console import info, output
from counterfoil.core.literals import parse_choice
from counterfoil.corpus.extract import extract
from counterfoil.corpus.lens import FeatureEye, Lens
from counterfoil.corpus.vocabulary import read_vocabulary
from counterfoil.corpus.words import Pieces, Tokenizer
from counterfoil.data.checks import check_dataset
from counterfoil.evaluate.cascade import DEPTH
from counterfoil.evaluate.protocols import PROTOCOLS, folds_of
from counterfoil.evaluate.recall import TIES, Tie
from counterfoil.files import check_file, check_folder, check_new, write_json
from counterfoil.models.authors import Converted
from counterfoil.models.weights import MODERN, convert
from counterfoil.recipes import many_true
from counterfoil.recipes.context import Stopped
from counterfoil.recipes.measured import Measured, shortlisting
from counterfoil.recipes.mining import mined, partial, tidy
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.recipe import Mine
from counterfoil.recipes.run import Source
from counterfoil.recipes.settings import changed
from counterfoil.recipes.show import console
from counterfoil.spec import unknown
from counterfoil.train.saved import save_model

IMAGE_LAYER = re.compile(r"image\.(tower\.)?fc\.weight")
EMBEDDINGS = re.compile(r"text\.(.*\.)?(embed|word_embeddings)\.weight")


def mine_with(
    stage: Mine, source: Source, out: Path, *, resume: bool = False, minutes: float | None = None
) -> bool:
    """List the hardest negatives of a split by the mean score of the models a stage names.

    Args:
        stage: what to mine, with names that `open_model` opens.
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
    check_new(out, "a new folder with --out")
    check_folder(out)
    if partial(out).exists() and not resume:
        raise ValueError(
            f"{partial(out)} holds a mining that was stopped; add --resume to go on with it, or "
            "delete it"
        )
    world.join()
    world.wait()  # nobody begins before everybody has looked
    corpus = source.split(stage.split)

    def left() -> float | None:
        return None if minutes is None else minutes - (time.monotonic() - began) / 60

    try:
        store, _ = mined(stage, corpus, out, left=left)
    except Stopped as stopped:
        info(f"stopped, {stopped}; add --resume to go on")
        return False
    tidy(out)
    output(f"{store.lists.in_words()}, {corpus.name} {corpus.part}: {out}")
    return True


def evaluate_with(
    names: Sequence[str],
    source: Source,
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
) -> Measured:
    """Measure models on a split, print the table and the protocol.

    Args:
        names: of the models, as `open_model` opens them.
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
        raise ValueError(unknown(ties, list(TIES), "a tie rule"))
    _check_shortlists(first, asked=depth is not None or full, extended=bool(eccv or cxc))
    if out is not None:
        check_file(out)
    world.join()
    corpus = source.split(split)
    models = [open_model(name) for name in names]
    folds_of(PROTOCOLS[protocol], len(corpus))  # refuses before anything is encoded
    members = [model.member(corpus) for model in models]
    how, by = PROTOCOLS[protocol], shortlisting(first, corpus, depth or DEPTH, full=full)
    measured = Measured.of(members, corpus, how, tie=rule, seed=_seed(models), by=by)
    many = many_true.eccv_caption(members, corpus, eccv) if eccv else ()
    crossed = many_true.crisscrossed(members, corpus, cxc) if cxc else ()
    if world.rank() == 0:
        measured.show(" + ".join(names))
        for extra in many_true.table(many, crossed):
            console.print(extra)
        if out is not None:
            more = {"eccv": [asdict(m) for m in many], "cxc": [asdict(c) for c in crossed]}
            write_json(out, {"models": list(names), **measured.plain(), **more})
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


def check_data(source: Source, *, quick: bool) -> bool:
    """Print what is there; whether it can be trained on."""
    findings = check_dataset(source.open(), quick=quick)
    console.print(findings)
    return not findings.errors


def extract_features(
    source: Source, out: Path, *, model: str, batch: int, grid: int | None
) -> None:
    """Extract features of all pictures into a folder."""
    check_folder(out)
    table = extract(source.open(), model, out, grid=grid, batch=batch, device=world.device())
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
    check_new(out)
    check_folder(out)
    pieces = vocabulary.is_dir()
    found = convert(checkpoint, system, bert=str(vocabulary) if pieces else None)
    words = Pieces(str(vocabulary)) if pieces else read_vocabulary(vocabulary)
    _check_vocabulary(found, words, vocabulary, masks=system in MODERN)
    found.build()
    spec = found.matcher
    if "mask" in spec.arguments and words.mask is not None:
        spec = spec.but(mask=words.mask)
    for setting in settings:
        spec = changed(spec, setting)
    matcher = replace(found, matcher=spec).build()
    width = next(v for k, v in found.state.items() if IMAGE_LAYER.fullmatch(k)).shape[1]
    save_model(
        out,
        spec=spec,
        matcher=matcher,
        lens=Lens(FeatureEye(width), words),
        provenance={"converted_from": checkpoint.name, "system": system},
    )
    output(f"{spec!r}: {out}")


def _check_vocabulary(found: Converted, words: Tokenizer, given: Path, *, masks: bool) -> None:
    """Refuse a vocabulary that the embeddings were not trained with."""
    name, table = next((k, v) for k, v in found.state.items() if EMBEDDINGS.fullmatch(k))
    pieces = name.endswith("word_embeddings.weight")
    if pieces != isinstance(words, Pieces):
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
