"""Models that an analysis compares, each one or an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import final

from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.tiles import Member
from counterfoil.evaluate.gallery import Exhibits
from counterfoil.recipes.model import MODEL, Model, open_model


@final
@dataclass(frozen=True, eq=False)
class Scorer:
    """One model, or several whose scores are averaged.

    Attributes:
        name: what it is called in tables: the ends of its folders that tell it from the others.
        given: what the user called it.
        models: at least one.
    """

    name: str
    given: str
    models: tuple[Model, ...]

    def on(self, corpus: Corpus) -> list[Member]:
        """Its models with the corpus encoded.

        Raises:
            ValueError: a model and the corpus do not fit, or the corpus is empty.
        """
        return [model.member(corpus) for model in self.models]

    def said(self) -> str:
        """Whether it is a single model, and the seeds it was trained from where they are known."""
        found = [model.card.provenance.get("seed") for model in self.models if model.card]
        seeds = " and ".join(dict.fromkeys(str(seed) for seed in found if seed is not None))
        many = len(self.models)
        kind = "single model" if many == 1 else f"ensemble of {many} by mean score"
        return f"{kind}, trained with seed {seeds}" if seeds else kind


def open_scorers(names: Sequence[str]) -> tuple[Scorer, ...]:
    """Models by name; names joined by ``+`` are an ensemble.

    Raises:
        ValueError: a name is no model, or the same one is given twice.
    """
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; name each model once")
    return tuple(
        Scorer(short, name, tuple(open_model(part) for part in parts(name)))
        for short, name in zip(short_names(names), names)
    )


def parts(name: str) -> list[str]:
    """The models of an ensemble; a folder whose own name holds a ``+`` is one model.

    Raises:
        ValueError: nothing stands before or after a ``+``.
    """
    found = [name] if Path(name).exists() else [part.strip() for part in name.split("+")]
    if not all(found):
        raise ValueError(f"{name!r} is no ensemble; join models with +, as in runs/a+runs/b")
    return found


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """As much of the ends of paths as tells them apart.

    >>> short_names(["runs/demo/online", "runs/demo/adaptive/model"])
    ('online', 'adaptive')
    >>> short_names(["runs/a/online", "runs/b/online"])
    ('a/online', 'b/online')
    >>> short_names(["runs/a/x+runs/a/y"])
    ('x + y',)
    """
    split = [[_steps(part) for part in parts(name)] for name in names]
    longest = max((len(steps) for one in split for steps in one), default=1)
    for many in range(1, longest + 1):
        found = tuple(" + ".join("/".join(steps[-many:]) for steps in one) for one in split)
        if len(set(found)) == len(found):
            return found
    return tuple(names)


def exhibits(corpus: Corpus) -> Exhibits:
    """Captions of a corpus, and its pictures where it has any."""
    picture = corpus.pictures.open if corpus.pictures else None
    return Exhibits(corpus.texts, corpus.owner, picture, corpus.also)


def said(corpus: Corpus, scorers: Sequence[Scorer], *, seed: int | None = None) -> str:
    """Data, sizes, who scored and from which seed something was drawn, in one sentence."""
    who = "; ".join(
        f"{scorer.name}: {scorer.said()}" if len(scorers) > 1 else scorer.said()
        for scorer in scorers
    )
    drawn = "" if seed is None else f"; sampling seed {seed}"
    return (
        f"{corpus.name} {corpus.part}, whole split: {len(corpus):,} images, "
        f"{len(corpus.texts):,} texts; ties: the lower row comes first; {who}{drawn}"
    )


def _steps(name: str) -> list[str]:
    steps = [step for step in PurePath(name).parts if step != PurePath(name).anchor]
    return steps[:-1] if len(steps) > 1 and steps[-1] == MODEL else steps
