"""Publish the result of an analysis; open models and ensembles by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path, PurePath
from typing import Any, TypeAlias, final

from counterfoil.core import distributed
from counterfoil.core.console import output
from counterfoil.core.io import ensure_absent, ensure_writable_file, write_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import Share
from counterfoil.evaluation.metrics import describe_members
from counterfoil.model import MODEL, Model, load_model
from counterfoil.models.base import score_names
from counterfoil.pipelines.plan import console
from counterfoil.pipelines.state import current_provenance
from counterfoil.report.figures import ResultPoint
from counterfoil.report.page import Page, write_page
from counterfoil.report.tables import TerminalTable, format_interval, format_number
from counterfoil.scoring.encode import EmbeddedDataset

MISSING = "–"
Cell: TypeAlias = "str | float | Share | tuple[float | Share | None, str] | None"


@final
@dataclass(frozen=True, kw_only=True)
class Analysis(Page):
    """Result of an analysis: a page with its numbers, ready to be published.

    Attributes:
        numbers: JSON-ready numbers, or records of them as `to_numbers` takes.
        seed: of the sampling, if there was any.
        recipe: name of the recipe, if the analysis is about one.
    """

    numbers: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    recipe: str = ""

    def publish(self, out: Path) -> None:
        """Print the tables, write the page, and write the numbers as JSON beside it.

        Only the first process of a distributed run does.
        """
        if distributed.rank():
            return
        provenance = current_provenance(seed=self.seed, recipe=self.recipe)
        page = replace(self, provenance=provenance)
        for table in self.tables:
            console.print(TerminalTable(table, self.protocol))
        numbers = {
            "title": self.title,
            "protocol": self.protocol,
            "provenance": asdict(provenance),
            **to_numbers(self.numbers),
        }
        write_json(out.with_suffix(".json"), numbers)
        write_page(page, out)
        output(self.headline)
        output(f"{out}, {out.with_suffix('.json')}")


def to_numbers(value: Any) -> Any:
    """Convert records inside of lists and mappings to JSON: by `to_dict`, or by their fields."""
    if hasattr(value, "to_dict"):
        return to_numbers(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return to_numbers({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return {key: to_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_numbers(part) for part in value]
    return value


def check_page_path(out: Path) -> None:
    """Refuse a page that is no ``.html`` or exists, or whose ``.json`` does."""
    if out.suffix != ".html":
        raise ValueError(f"{out} is no page; name a file that ends in .html")
    ensure_writable_file(out, exist_ok=True)
    for path in (out, out.with_suffix(".json")):
        ensure_absent(path, "a new page with --output")


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
    """Refuse a name that is given twice."""
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


def format_share(share: Share | None, form: str = ".1f") -> str:
    """Format a share with its interval; a dash if nothing was counted."""
    if share is None or not share.count:
        return MISSING
    return format_interval(share.value, share.interval.low, share.interval.high, form)


def cells(*values: Cell) -> tuple[str, ...]:
    """Cells of a row of a table: a dash for what is None or NaN.

    Integers have separators, other numbers one decimal, and shares their interval, unless the value
    comes with another format.
    """
    return tuple(_cell(*value) if isinstance(value, tuple) else _cell(value) for value in values)


def _cell(value: str | float | Share | None, form: str = "") -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Share):
        return format_share(value, form or ".1f")
    if value != value:
        return MISSING
    return format_number(value, form or ("," if isinstance(value, int) else ".1f"))


def share_point(
    series: str, share: Share, *, group: str = "", at: float = 0.0, baseline: float | None = None
) -> ResultPoint:
    """Convert a share to a point of a figure; NaN if nothing was counted."""
    value = share.value if share.count else float("nan")
    span = share.interval
    return ResultPoint(series, value, span.low, span.high, group, at, baseline)
