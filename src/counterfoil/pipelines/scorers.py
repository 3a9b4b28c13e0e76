"""Models and ensembles by name, their short names, and how they are described on pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import final

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import describe_members
from counterfoil.model import MODEL, Model, load_model
from counterfoil.models.base import score_names
from counterfoil.scoring.encode import EmbeddedDataset


@final
@dataclass(frozen=True, eq=False)
class Scorer:
    """A model, or an ensemble whose scores are averaged.

    Attributes:
        name: short name for tables.
        given: name as the user typed it.
        models: at least one.
    """

    name: str
    given: str
    models: tuple[Model, ...]

    def on(self, dataset: ImageTextDataset) -> list[EmbeddedDataset]:
        """Encode a split with every model."""
        return [model.embed(dataset) for model in self.models]

    def single(self) -> Model:
        """Return the only model."""
        if len(self.models) > 1:
            raise ValueError(
                f"{self.given} is an ensemble, which neither reads words nor writes captions; "
                "name one model"
            )
        return self.models[0]

    def check_reads(self) -> None:
        """Refuse a model that cannot read a caption."""
        for model in self.models:
            if model.processor is None or model.processor.tokenizer is None:
                raise ValueError(
                    f"{model.name} compares ready-made vectors and cannot read written captions; "
                    "give a model folder or the name of a model"
                )

    def describe(self) -> str:
        """Number of models, their score and their training seeds, in words."""
        known = [model.card.provenance.get("seed") for model in self.models if model.card]
        seeds = " and ".join(dict.fromkeys(str(seed) for seed in known if seed is not None))
        score = score_names(model.model for model in self.models)
        kind = describe_members(len(self.models), score)
        return f"{kind}, trained with seed {seeds}" if seeds else kind


def open_scorers(names: Sequence[str]) -> tuple[Scorer, ...]:
    """Open models by name; names joined by ``+`` are an ensemble."""
    check_different(names, "model")
    return tuple(
        Scorer(short, name, tuple(load_model(part) for part in ensemble_parts(name)))
        for short, name in zip(short_names(names), names)
    )


def check_different(names: Sequence[object], kind: str) -> None:
    """Refuse duplicate names."""
    for name in names:
        if list(names).count(name) > 1:
            raise ValueError(f"{name} is given twice; name each {kind} once")


def ensemble_parts(name: str) -> list[str]:
    """Split the name of an ensemble; an existing path that contains ``+`` is one model."""
    parts = [name] if Path(name).exists() else [part.strip() for part in name.split("+")]
    if not all(parts):
        raise ValueError(f"{name!r} is no ensemble; join models with +, as in runs/a+runs/b")
    return parts


def short_names(names: Sequence[str | Path]) -> tuple[str, ...]:
    """Shorten paths to the shortest endings that differ.

    >>> short_names(["runs/demo/alike", "runs/demo/hardest/model"])
    ('alike', 'hardest')
    >>> short_names(["runs/a/online", "runs/b/online"])
    ('a/online', 'b/online')
    >>> short_names(["runs/a/x+runs/a/y"])
    ('x + y',)
    """
    split = [[_path_parts(part) for part in ensemble_parts(str(name))] for name in names]
    longest = max((len(steps) for parts in split for steps in parts), default=1)
    for count in range(1, longest + 1):
        short = tuple(" + ".join("/".join(steps[-count:]) for steps in parts) for parts in split)
        if len(set(short)) == len(short):
            return short
    return tuple(map(str, names))


def _path_parts(name: str) -> list[str]:
    steps = [step for step in PurePath(name).parts if step != PurePath(name).anchor]
    return steps[:-1] if len(steps) > 1 and steps[-1] == MODEL else steps


def describe_models(scorers: Sequence[Scorer]) -> str:
    """Describe models by name, in one clause."""
    return "; ".join(f"{scorer.name}: {scorer.describe()}" for scorer in scorers)


def describe_protocol(
    dataset: ImageTextDataset, scorers: Sequence[Scorer], *, seed: int | None = None
) -> str:
    """Describe data, sizes, models and sampling seed in one sentence."""
    models = describe_models(scorers) if len(scorers) > 1 else scorers[0].describe()
    sampling = "" if seed is None else f"; sampling seed {seed}"
    return (
        f"{dataset.name} {dataset.split_name}, whole split: {len(dataset):,} images, "
        f"{len(dataset.texts):,} texts; ties: the lower row comes first; {models}{sampling}"
    )


def score_unit(members: Sequence[EmbeddedDataset]) -> float:
    """Unit of the mean of the models' scores, see `RetrievalModel.score_scale`."""
    return sum(member.model.score_scale for member in members) / len(members)
