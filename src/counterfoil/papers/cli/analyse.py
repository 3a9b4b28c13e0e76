"""``counterfoil papers analyse``: a verb for each figure and table of AOQ, NDGL and TAGS."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, final, get_type_hints

import typer
from typer.core import TyperGroup

from counterfoil.cli.options import Data, Page, Seed, data_source, verb
from counterfoil.papers.analyses import VERBS, Stores, Verb

_KEYWORD = inspect.Parameter.KEYWORD_ONLY

MODULES = (
    "aoq.figures",
    "ndgl.figures",
    "tags.figures",
    "tags.dc_figures",
    "tags.true_rate",
    "compared.cascade",
)


@final
class _Analyses(TyperGroup):
    """The verbs; the modules of the analyses load torch, so they wait until one is wanted."""

    @property
    def commands(self) -> dict[str, Any]:
        """All analyses, by the name of their verb."""
        return _verbs()

    @commands.setter
    def commands(self, _: object) -> None: ...


app = typer.Typer(
    name="analyse",
    cls=_Analyses,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Figures and tables of the papers: a table, an HTML page and JSON.",
)


@cache
def _verbs() -> dict[str, Any]:
    for module in MODULES:
        import_module(f"counterfoil.papers.{module}")
    own = typer.Typer(rich_markup_mode="markdown")
    for name, analysis in VERBS.items():
        verb(own, *analysis.examples, name=name)(_command(analysis))
    verb(
        own,
        "counterfoil papers analyse sheet tags/ rules/ --data flickr8k/ --count 200 "
        "--output sheet.csv",
    )(sheet)
    return dict(typer.main.get_group(own).commands)


def _command(analysis: Verb) -> Callable[..., None]:
    """A function with the options of an analysis and ``--output``, which publishes the result."""
    from counterfoil.pipelines.run import DataSource

    def run(context: typer.Context, page: Path, **values: Any) -> None:
        from counterfoil.core import distributed
        from counterfoil.report.analysis import check_page_path

        if analysis.check:
            analysis.check(context)
        if "data" in values:
            values["source"] = data_source(values.pop("data"))
        check_page_path(page)  # before anything is computed
        distributed.init()
        analysis.function(**values).publish(page)

    hints = get_type_hints(analysis.function, include_extras=True)
    hints |= {"context": typer.Context, "page": Page, "data": Data, "return": type(None)}
    parameters = [inspect.Parameter(name, _KEYWORD) for name in ("context", "page")]
    for each in inspect.signature(analysis.function).parameters.values():
        if hints[each.name] is DataSource:
            del hints[each.name]
            parameters.append(inspect.Parameter("data", _KEYWORD, default=None))
        else:
            parameters.append(each.replace(kind=_KEYWORD))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__, run.__doc__ = hints, analysis.function.__doc__
    return run


def sheet(
    stores: Stores,
    file: Annotated[
        Path, typer.Option("--output", help="CSV file to write; it must not exist yet.")
    ],
    data: Data = None,
    count: Annotated[int, typer.Option(min=1, help="Captions of each folder.")] = 200,
    seed: Seed = 0,
) -> None:
    """Write a CSV sheet to judge generated captions by hand, for `true-rate --answers`."""
    from counterfoil.papers.tags.true_rate import export_sheet

    export_sheet(stores, data_source(data), file, count=count, seed=seed)
