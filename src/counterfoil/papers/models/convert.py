"""Conversion of authors' checkpoints by system; each model's conversion is in its own file."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

from counterfoil.core.config import Config, parse_choice
from counterfoil.data.processor import FeatureProcessor, ImageProcessor
from counterfoil.data.tokenizers import Tokenizer, WordPieceTokenizer
from counterfoil.models.checkpoints import (
    MOST_SAID,
    Checkpoint,
    ConvertedModel,
    option_value,
    read_checkpoint,
)
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions
from counterfoil.models.vsepp import vsepp_from_checkpoint
from counterfoil.papers.models.bfan import bfan_from_checkpoint
from counterfoil.papers.models.cgmn import cgmn_from_checkpoint
from counterfoil.papers.models.chan import chan_from_checkpoint
from counterfoil.papers.models.dive import dive_from_checkpoint
from counterfoil.papers.models.ernievil import ErnieViL, ernievil_from_checkpoint, is_ernievil
from counterfoil.papers.models.esa import esa_from_checkpoint
from counterfoil.papers.models.gpo import gpo_from_checkpoint
from counterfoil.papers.models.grid import ResnetGridTower, picture_processor
from counterfoil.papers.models.hrem import hrem_from_checkpoint
from counterfoil.papers.models.lightningdot import TokenAndRegions, lightningdot_from_checkpoint
from counterfoil.papers.models.naaf import naaf_from_checkpoint
from counterfoil.papers.models.paddle import read_paddle
from counterfoil.papers.models.scan import scan_from_checkpoint
from counterfoil.papers.models.sgraf import sgraf_from_checkpoint
from counterfoil.papers.models.uniter import UNITER, WordPieceEmbedding, uniter_from_checkpoint
from counterfoil.papers.models.user import user_from_checkpoint
from counterfoil.papers.models.vsrn import vsrn_from_checkpoint
from counterfoil.papers.models.xdim import xdim_from_checkpoint


class BertConversion(Protocol):
    """A conversion of checkpoints whose text encoder may be BERT."""

    def __call__(self, checkpoint: Checkpoint, *, bert: str = ...) -> ConvertedModel:
        """Convert the checkpoint, with BERT's configuration from this folder or name."""


# GPO and its successors, whose training adds a mask token to the vocabulary
WITH_BERT: Mapping[str, BertConversion] = {
    "gpo": gpo_from_checkpoint,
    "chan": chan_from_checkpoint,
    "esa": esa_from_checkpoint,
    "hrem": hrem_from_checkpoint,
    "dive": dive_from_checkpoint,
    "user": user_from_checkpoint,
    "xdim": xdim_from_checkpoint,
}
DROP = 0.2  # share of regions and of words that GPO and its successors drop in training
MASKED_WORD = "<mask>"  # the last word of a vocabulary that has one
# these embed wordpieces themselves, so there is no text model to configure
WITHOUT_TEXT_MODEL = frozenset({"uniter", "lightningdot", "ernievil"})
SYSTEMS: Mapping[str, Callable[[Checkpoint], ConvertedModel]] = {
    "vsepp": vsepp_from_checkpoint,
    "scan": scan_from_checkpoint,
    "bfan": bfan_from_checkpoint,
    "vsrn": vsrn_from_checkpoint,
    "cgmn": cgmn_from_checkpoint,
    **WITH_BERT,
    "naaf": naaf_from_checkpoint,
    "sgraf": sgraf_from_checkpoint,
    "uniter": uniter_from_checkpoint,
    "lightningdot": lightningdot_from_checkpoint,
    "ernievil": ernievil_from_checkpoint,
}


def convert_checkpoint(path: Path, system: str, *, bert: str | None = None) -> ConvertedModel:
    """Read and convert an authors' checkpoint of one of `SYSTEMS`.

    Args:
        path: the file; of ERNIE-ViL the folder, with a file for each parameter.
        system: whose it is.
        bert: folder or name of the text model that was trained, for its configuration; where None,
            the one that the authors trained.
    """
    parse_choice(SYSTEMS, system, "a system whose checkpoints are read")
    takes_bert = system in WITH_BERT or system in WITHOUT_TEXT_MODEL
    if bert is not None and not takes_bert:
        raise ValueError(
            f"{system} never reads texts by BERT, and {bert} was given as its text model; leave "
            "that out and give a vocabulary"
        )
    paddle = system == "ernievil" and path.is_dir()
    checkpoint = read_paddle(path, is_ernievil) if paddle else read_checkpoint(path)
    try:
        if system in WITH_BERT and bert is not None:
            converted = WITH_BERT[system](checkpoint, bert=bert)
        else:
            converted = SYSTEMS[system](checkpoint)
    except (IndexError, KeyError, TypeError, RuntimeError, ValueError) as error:
        if isinstance(error, ValueError) and "to unpack (expected" not in str(error):
            raise  # says itself what is wrong
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", MOST_SAID, placeholder=" …")
        raise ValueError(
            f"{path} has tensors or options of another shape than those of {system} ({reason}); "
            "give the checkpoint as the authors saved it"
        ) from error
    return replace(converted, options=checkpoint.options)


IMAGE_LAYER = re.compile(r"image\.(tower\.)*(embed\.regions\.)?fc\.weight")


def image_processor(converted: ConvertedModel) -> ImageProcessor:
    """Return what prepares images for a converted model: ready-made features, or pictures."""
    image = converted.model.arguments.get("image")
    if isinstance(image, Config) and image.make is ResnetGridTower:
        return picture_processor(converted.options)
    found = (weight for name, weight in converted.state.items() if IMAGE_LAYER.fullmatch(name))
    return FeatureProcessor(next(found).shape[1])


def with_special_tokens(converted: ConvertedModel, tokenizer: WordPieceTokenizer) -> ConvertedModel:
    """Return the same model with the ids of the tokenizer's first and mask tokens."""
    spec = converted.model
    if tokenizer.mask is not None:
        embeds = (UNITER, ErnieViL, WordPieceEmbedding)
        spec = _changed(spec, embeds, {"mask": tokenizer.mask})
    first = tokenizer.pretrained.cls_token_id
    if first is not None:
        spec = _changed(spec, (TokenAndRegions,), {"first": first})
    return replace(converted, model=spec)


# options that say how many attention heads there are, and where the model has them
HEADS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "uniter": {"heads": ("heads",)},
    "lightningdot": {"heads": ("image.heads", "text.heads")},
    "ernievil": {
        "num_attention_heads": ("heads",),
        "v_num_attention_heads": ("image_heads",),
        "co_num_attention_heads": ("shared_heads",),
    },
}


def guessed_heads(converted: ConvertedModel, system: str) -> dict[str, tuple[int, ...]]:
    """Return the numbers of attention heads that no option of the checkpoint gives, by option.

    A wrong one fits all tensors.
    """

    def number(place: str) -> int:
        *towers, name = place.split(".")
        arguments = converted.model.arguments
        for tower in towers:
            arguments = arguments[tower].arguments
        return int(arguments[name])

    return {
        option: tuple(number(place) for place in places)
        for option, places in HEADS.get(system, {}).items()
        if converted.options.get(option) is None
    }


# What the authors' programs do to a batch before the model sees it is part of our towers.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """The parts of its inputs that a system leaves out at random in training.

    Attributes:
        regions: share of the regions that are dropped.
        words: share of the words that are masked, replaced or deleted.
        ends: whether these may be ``<start>`` and ``<end>``.
        dropout: share dropped of what the text tower embeds.
    """

    regions: float = 0.0
    words: float = 0.0
    ends: bool = True
    dropout: float = 0.0


def find_augmentation(system: str, options: Mapping[str, Any]) -> Augmentation:
    """Return what a system's training leaves out; without its options, as published."""

    def number(name: str, published: float) -> float:
        return option_value(options, name, published)

    drops = Augmentation(regions=DROP, words=DROP)
    match system:
        case "gpo" | "xdim":
            return drops
        case "chan":
            off = not number("drop", 1.0)
            return Augmentation() if off else replace(drops, regions=number("obj_drop_rate", DROP))
        case "hrem":
            return drops if number("size_augment", 1.0) else Augmentation()
        case "esa":  # the model itself pools without some regions
            return Augmentation(words=DROP, dropout=0.1)
        case "user":  # every region is needed by its enhancement
            return Augmentation(words=DROP)
        case "dive":
            return Augmentation(
                regions=number("butd_drop_prob", DROP),
                words=number("caption_drop_prob", DROP),
                ends=False,
            )
        case "sgraf":
            return Augmentation(dropout=0.4)
    return Augmentation()


def with_augmentation(
    converted: ConvertedModel, system: str, tokenizer: Tokenizer
) -> ConvertedModel:
    """Return the same model, which in training drops what its authors' program drops.

    Words are dropped where the model knows how a masked word is embedded: by the last row of its
    table, one more than the vocabulary has, or by the mask of BERT's tokenizer.
    """
    found = find_augmentation(system, converted.options)
    regions = {"region_drop": found.regions} if found.regions else {}
    spec = _changed(converted.model, (Regions, MLPRegions), regions)
    spec = _changed(spec, (ResnetGridTower,), {"smallest": 0.6, "mirror": 0.5, "cell_drop": DROP})
    spec = _changed(spec, (GRU, BertTextTower), _word_changes(converted, tokenizer, found))
    return replace(converted, model=spec)


def _word_changes(
    converted: ConvertedModel, tokenizer: Tokenizer, found: Augmentation
) -> dict[str, Any]:
    """Return the arguments of the text tower that change."""
    changes: dict[str, Any] = {"dropout": found.dropout} if found.dropout else {}
    if not found.words:
        return changes
    if isinstance(tokenizer, WordPieceTokenizer):
        masked = {"mask": tokenizer.mask, "word_drop": found.words}
        return changes | (masked if tokenizer.mask is not None else {})
    rows = next(
        len(table) for name, table in converted.state.items() if name.endswith("embed.weight")
    )
    if rows == tokenizer.size and tokenizer.tokens([rows - 1]) != [MASKED_WORD]:
        return changes
    return changes | {"words": rows - 1, "word_drop": found.words, "drop_ends": found.ends}


def _changed(part: Any, makes: tuple[type, ...], changes: Mapping[str, Any]) -> Any:
    """Return a config in which the towers of these classes, at any depth, have other arguments."""
    if not isinstance(part, Config) or not changes:
        return part
    if part.make in makes:
        return part.replace(**changes)
    inner = {name: _changed(value, makes, changes) for name, value in part.arguments.items()}
    return part.replace(**inner)
