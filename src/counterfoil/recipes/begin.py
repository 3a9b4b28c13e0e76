"""What a training begins with: the model, its first weights, and what it sees."""

from __future__ import annotations

from pathlib import Path

import torch

from counterfoil.core.console import info
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.glove import word_vectors
from counterfoil.corpus.lens import Lens
from counterfoil.corpus.words import Words
from counterfoil.matcher import Adopts, Matcher, Pretrained
from counterfoil.models.blocks.tower import WordTower
from counterfoil.recipes.context import Context
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.recipe import Train


def begun(context: Context, stage: Train | Pretrain) -> Model:
    """The model with the weights it begins from, and what it sees.

    The late values "words", "features", "classes", "size" and "mask" become what the data say.
    "pretrained" is true now and false in the written call of the model, which has "config" too, so
    that a finished model is opened without the pretrained one it came from.

    Raises:
        ValueError: weights, word vectors or data do not fit the model.
    """
    start = open_model(str(context.place(stage.start))) if stage.start else None
    lens = start.lens if start else stage.lens.fit(context.train)
    assert lens is not None
    known: dict[str, object] = {
        "words": lens.tokenizer.size if lens.tokenizer else 0,
        "mask": lens.tokenizer.mask if lens.tokenizer else None,
        "features": lens.eye.width,
        "classes": classes_of(context.train),
        "size": stage.lens.size if stage.lens.images == "pixels" else 0,
    }
    torch.manual_seed(stage.plan.seed)
    config = _config(start.matcher) if start else None
    matcher = stage.model.resolve({**known, "pretrained": start is None, "config": config}).build()
    if start:
        _begin_from(start, matcher, stage)
    elif isinstance(stage, Train) and stage.word_vectors:
        _begin_with(Path(stage.word_vectors), matcher, lens, stage)
    known |= {"pretrained": False, "config": _config(matcher)}
    return Model(matcher, lens, stage.name, stage.model.resolve(known))


def classes_of(train: Corpus) -> int:
    """How many classes the regions of a data set have; 1 where nobody says."""
    told = None if train.features is None else train.features.classes
    return 1 if told is None else int(told.shape[2])


def check_word_vectors(stage: Train) -> None:
    """Refuse word vectors that are not there, or that nothing would read.

    Raises:
        ValueError: so they are.
    """
    if stage.word_vectors is None:
        return
    if stage.start:
        raise ValueError(
            f"{stage.name!r} starts from {stage.start!r} and keeps its word embeddings; set "
            f"word_vectors of {stage.start!r} alone"
        )
    if stage.lens.texts != "words":
        raise ValueError(
            f"{stage.name!r} reads texts with {stage.lens.texts!r} and has no vocabulary of words; "
            "leave word_vectors out"
        )
    if not Path(stage.word_vectors).is_file():
        raise ValueError(
            f"{stage.word_vectors} is no file; set {stage.name}.word_vectors to word vectors in "
            "GloVe's text format, such as glove.840B.300d.txt"
        )


def _config(matcher: Matcher) -> str | None:
    """The configuration of the pretrained model inside, if there is one."""
    inside = (part for part in matcher.modules() if isinstance(part, Pretrained))
    return next((part.written for part in inside), None)


def _begin_from(start: Model, matcher: Matcher, stage: Train | Pretrain) -> None:
    state = start.matcher.state_dict()
    try:
        matcher.load_state_dict(matcher.adopted(state) if isinstance(matcher, Adopts) else state)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{stage.name!r} starts from {stage.start!r}, which is another model: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error


def _begin_with(path: Path, matcher: Matcher, lens: Lens, stage: Train) -> None:
    towers = [module for module in matcher.modules() if isinstance(module, WordTower)]
    if not (towers and isinstance(lens.tokenizer, Words)):
        raise ValueError(
            f"{stage.name!r} has no embeddings of words that could begin with {path}; leave "
            "word_vectors out"
        )
    found = word_vectors(path, lens.tokenizer.words)
    for tower in towers:
        tower.begin_with(found.rows, found.vectors)
    info(f"{stage.name}: {len(found):,} of {lens.tokenizer.size:,} words begin with {path}")
