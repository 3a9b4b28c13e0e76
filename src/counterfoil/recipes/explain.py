"""Captions explained: which words a model doubts, and what it would write in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, final, get_args

import torch
from PIL import Image
from torch import Tensor

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import Lens
from counterfoil.corpus.words import Tokenizer
from counterfoil.engine.modes import evaluating
from counterfoil.evaluate.explain import (
    THRESHOLD,
    corrects_words,
    doubts_words,
    explain_words,
    unread,
)
from counterfoil.evaluate.explanation import Explanation
from counterfoil.evaluate.occlusion import explain_without
from counterfoil.evaluate.surgery import places
from counterfoil.recipes.explained_parts import ExplainedParts
from counterfoil.recipes.model import Model
from counterfoil.records import Encoded
from counterfoil.spec import unknown

Rank: TypeAlias = Literal["doubt", "score"]
AT_ONCE = 256  # captions explained together


@final
@dataclass(frozen=True, slots=True)
class ExplainPlan:
    """How to explain.

    Attributes:
        threshold: doubt from which a word counts as wrong.
        corrections: shown of each doubted word.
        rank: by what captions are ranked: "doubt", the greatest of their words, or "score", the
            lowest; None for doubt where the model has it.
    """

    threshold: float = THRESHOLD
    corrections: int = 3
    rank: str | None = None

    def ranked(self, model: Model) -> Rank:
        """By what the captions of a model are ranked.

        Raises:
            ValueError: an unknown rank, or doubt where the model has none.
        """
        has = doubts_words(model.matcher)
        rank: Rank | None = next((one for one in get_args(Rank) if one == self.rank), None)
        if self.rank is not None and rank is None:
            raise ValueError(unknown(self.rank, list(get_args(Rank)), "a rank of captions"))
        if rank == "doubt" and not has:
            raise ValueError(f"{lacking(model)}; rank by score")
        return rank or ("doubt" if has else "score")


def explain(
    model: Model,
    image: str | Path | Image.Image,
    captions: Sequence[str],
    *,
    corpus: Corpus | None = None,
    threshold: float = THRESHOLD,
    corrections: int = 3,
) -> list[Explanation]:
    """Explain why captions fit an image or do not.

    A model with heads for words says how likely each word is wrong and what ought to stand there;
    any other is asked what its score gains when a word is left out.

    Args:
        model: as `open_model` opens it.
        image: a picture or its path; the id of an image where a corpus is given.
        captions: what is said of it.
        corpus: holds the image.
        threshold: doubt from which a word counts as wrong.
        corrections: proposed for each doubted word, at most.

    Raises:
        ValueError: the model cannot read captions or see the image, there is no such image, a
            caption is empty or too long, or an answer is not a number.
    """
    lens = reads(model)
    for caption in captions:
        if not caption.strip():
            raise ValueError("the caption is empty; say something of the picture")
    plan = ExplainPlan(threshold=threshold, corrections=corrections)
    seen = _look(model, lens, image, corpus)
    rows = torch.zeros(len(captions), dtype=torch.long)
    found = explain_pairs(model, seen, captions, rows, plan)
    for one in found:
        if one.unread is not None:
            raise ValueError(
                f"the caption is too long for {model.name}, which reads it up to "
                f"{one.caption[: one.unread][-30:]!r}; leave out what follows"
            )
    return found


def explain_corpus(
    model: Model, corpus: Corpus, plan: ExplainPlan, parts: ExplainedParts | None = None
) -> Iterator[tuple[int, Explanation]]:
    """The row of every caption that describes an image, and its explanation, in order of rows.

    Args:
        model: as `open_model` opens it.
        corpus: the captions with their images.
        plan: how to explain.
        parts: where explanations are kept, and those lie that need not be made again.

    Raises:
        ValueError: as `explain` does; a caption that is too long is explained as far as it is read.
    """
    lens = reads(model)
    rows = (corpus.relation.owner >= 0).nonzero().squeeze(1)
    if not len(rows):
        raise ValueError(f"{corpus.name} ({corpus.part}) has no caption; there is nothing to do")
    for row in rows.tolist():
        if not corpus.texts[row].strip():
            raise ValueError(f"caption {corpus.text_ids[row]!r} is empty; give it words or drop it")
    with progress("captions explained", len(rows)) as advance:
        for number, part in enumerate(torch.split(rows, AT_ONCE)):
            found = None if parts is None else parts.load(number)
            if found is None:
                images, at = corpus.relation.owner[part].unique(return_inverse=True)  # type: ignore[no-untyped-call]
                seen = _encoded(model, lens, corpus, images)
                captions = [corpus.texts[row] for row in part.tolist()]
                found = explain_pairs(model, seen, captions, at, plan)
                if parts is not None:
                    parts.save(number, found)
            yield from zip(part.tolist(), found, strict=True)
            advance(len(part))


def explain_pairs(
    model: Model, images: Encoded, captions: Sequence[str], image: Tensor, plan: ExplainPlan
) -> list[Explanation]:
    """Explain captions, each with one of some encoded images, in the best way the model allows."""
    lens = reads(model)
    assert lens.tokenizer is not None
    if doubts_words(model.matcher):
        return explain_words(
            model.matcher, lens.tokenizer, images, captions, image=image,
            threshold=plan.threshold, most=plan.corrections,
        )  # fmt: skip
    found = explain_without(model.matcher, lens.read, images, captions, image=image)
    ends = _ends(lens.tokenizer, captions)
    return [replace(one, unread=end) for one, end in zip(found, ends, strict=True)]


def lacking(model: Model) -> str:
    """What a model lacks to doubt and correct words, in words; "" where it lacks nothing."""
    heads = {"doubts": doubts_words(model.matcher), "corrects": corrects_words(model.matcher)}
    missing = [what for what, there in heads.items() if not there]
    if not missing:
        return ""
    return f"{model.name} has no head that {' or '.join(missing)} words, as TAGS-DC trains them"


def reads(model: Model) -> Lens:
    """The lens of a model that reads captions.

    Raises:
        ValueError: it compares ready-made vectors.
    """
    if model.lens is None or model.lens.tokenizer is None:
        raise ValueError(
            f"{model.name} compares ready-made vectors and cannot read a caption; give a model "
            "folder or the name of a model"
        )
    return model.lens


def image_row(corpus: Corpus, name: str) -> int:
    """The row of an image by its id.

    Raises:
        ValueError: there is none.
    """
    try:
        return list(corpus.image_ids).index(name)
    except ValueError:
        raise ValueError(
            f"{unknown(name, list(corpus.image_ids[:5]), f'an image of {corpus.name}')[:-1]}, …; "
            f"{len(corpus):,} in all"
        ) from None


def _look(
    model: Model, lens: Lens, image: str | Path | Image.Image, corpus: Corpus | None
) -> Encoded:
    if isinstance(image, str) and corpus is not None:
        return _encoded(model, lens, corpus, torch.tensor([image_row(corpus, image)]))
    return model.encode([Path(image) if isinstance(image, str) else image])


def _encoded(model: Model, lens: Lens, corpus: Corpus, rows: Tensor) -> Encoded:
    with evaluating([model.matcher]):
        return model.matcher.encode_images(lens.eye.look(corpus, rows).to(world.device()))


def _ends(tokenizer: Tokenizer, captions: Sequence[str]) -> list[int | None]:
    """From which character on each caption is cut; None where it is not, or nobody can tell."""
    try:
        spans = tokenizer.spans(captions)
    except ValueError:
        return [None] * len(captions)
    return [unread(text, places(own, None)) for text, own in zip(captions, spans, strict=True)]
