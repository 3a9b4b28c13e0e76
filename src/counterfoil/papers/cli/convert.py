"""``counterfoil papers convert``: authors' checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import verb
from counterfoil.core.console import info, output

if TYPE_CHECKING:
    from counterfoil.data.tokenizers import Tokenizer
    from counterfoil.models.checkpoints import ConvertedModel

app = typer.Typer(rich_markup_mode="markdown")

EMBEDDINGS = re.compile(r"text\.(.*\.)?(embed|word_embeddings)\.weight")
POSITIONS = re.compile(r"text\.(.*\.)?position_embeddings\.weight")
FEWEST = 64  # positions of a text model that does not say how many it has


@verb(
    app,
    "counterfoil papers convert scan model_best.pth.tar vocab.json scan-f30k/",
)
def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="vsepp, scan, bfan, vsrn, cgmn, gpo, chan, esa, hrem, dive, naaf, sgraf, user, "
            "xdim, uniter, lightningdot or ernievil."
        ),
    ],
    checkpoint: Annotated[
        Path, typer.Argument(help="The authors' checkpoint; of ernievil a folder.")
    ],
    vocabulary: Annotated[
        Path, typer.Argument(help="Its vocabulary, JSON or pickle; or the folder of its BERT.")
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="Folder of the model; it must not exist yet.")
    ],
) -> None:
    """Convert an authors' checkpoint to a model folder."""
    from dataclasses import replace

    from counterfoil.core.io import ensure_absent, ensure_writable_folder
    from counterfoil.data.processor import Processor
    from counterfoil.data.tokenizers import LONGEST, WordPieceTokenizer, read_vocabulary
    from counterfoil.papers.models.convert import (
        WITH_BERT,
        WITHOUT_TEXT_MODEL,
        convert_checkpoint,
        guessed_heads,
        image_processor,
        with_augmentation,
        with_special_tokens,
    )
    from counterfoil.saved import portable_config, save_model

    ensure_absent(folder)
    ensure_writable_folder(folder)
    is_bert = vocabulary.is_dir()
    converted = convert_checkpoint(checkpoint, model, bert=str(vocabulary) if is_bert else None)
    # the authors cut no caption, but BERT has so many positions
    tokenizer = (
        WordPieceTokenizer(str(vocabulary), longest=_positions(converted))
        if is_bert
        else read_vocabulary(vocabulary, longest=LONGEST)
    )
    _check_vocabulary(converted, tokenizer, vocabulary, masks=model in WITH_BERT)
    converted.build()  # refuses weights that do not fit
    converted = with_augmentation(converted, model, tokenizer)
    if not converted.options and model not in ("vsepp", *WITHOUT_TEXT_MODEL):
        info(f"{checkpoint.name} has no options beside its tensors; the published ones are taken")
    for option, numbers in guessed_heads(converted, model).items():
        info(
            f"{checkpoint.name} does not say how many attention heads it has ({option}); "
            f"{' and '.join(str(number) for number in numbers)} are taken"
        )
    if model in WITHOUT_TEXT_MODEL and isinstance(tokenizer, WordPieceTokenizer):
        converted = with_special_tokens(converted, tokenizer)
    spec = portable_config(converted.model)  # a folder names no other, as that of BERT
    save_model(
        folder,
        spec=spec,
        model=replace(converted, model=spec).build(),
        processor=Processor(image_processor(converted), tokenizer),
        provenance={"converted_from": checkpoint.name, "system": model},
    )
    output(f"{spec!r}: {folder}")


def _positions(converted: ConvertedModel) -> int:
    """Return how many pieces its text model reads."""
    found = (len(table) for name, table in converted.state.items() if POSITIONS.fullmatch(name))
    return next(found, FEWEST)


def _check_vocabulary(
    converted: ConvertedModel, tokenizer: Tokenizer, path: Path, *, masks: bool
) -> None:
    """Refuse a vocabulary of another size or kind than the trained embeddings."""
    from counterfoil.data.tokenizers import WordPieceTokenizer

    name, table = next(
        (name, weight) for name, weight in converted.state.items() if EMBEDDINGS.fullmatch(name)
    )
    needs_bert = name.endswith("word_embeddings.weight")
    if needs_bert != isinstance(tokenizer, WordPieceTokenizer):
        raise ValueError(
            f"this checkpoint reads texts by BERT and {path} is a file; give the folder of that "
            "model, with its config.json and tokenizer"
            if needs_bert
            else f"this checkpoint reads words and {path} is a folder; give its vocabulary file"
        )
    # BERT's table may have more rows than there are pieces; a model with a mask token has one more.
    spare = len(table) - tokenizer.size
    if spare < 0 or (spare > masks and not needs_bert):
        raise ValueError(
            f"{path} has {tokenizer.size} words and this checkpoint was trained with {len(table)}; "
            "give the vocabulary that belongs to it"
        )
