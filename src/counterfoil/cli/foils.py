"""``counterfoil foils``: command, tables and page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    Split,
    check_new_files,
    data_source,
    print_tables,
    refuse,
    verb,
)
from counterfoil.core.console import output

if TYPE_CHECKING:
    from counterfoil.evaluation.foils.measures import BlindControl, FoilReport, FoilScore
    from counterfoil.evaluation.foils.sets import FoilItem, FoilSet
    from counterfoil.model import Model
    from counterfoil.report.page import ExampleCard, TableBlock, TableRow


app = typer.Typer(rich_markup_mode="markdown")

BLIND, EXAMPLES = "blind", 12  # items on the page
MEANINGS = {
    "accuracy": "accuracy: the caption scores above every foil.",
    "ITT": "ITT: both true captions score above the foil.",
    "TOT": "TOT: the true captions are closer to each other than either to the foil, by the cosine "
    "of the text encoder.",
    "pairwise": "pairwise: the caption scores above a foil.",
    "by threshold": "by threshold: each caption is judged alone.",
    "AUC": "AUC: a true caption scores above a false one of any picture.",
    "text": "text: each picture prefers its caption.",
    "image": "image: each caption prefers its picture.",
    "group": "group: each picture prefers its caption and each caption its picture.",
    "I2T": "I2T: each of both pictures prefers its caption.",
    "T2I": "T2I: each of both captions prefers its picture.",
    "I2T, true picture": "The true picture prefers the true caption.",
    "I2T, foil's picture": "The foil's picture prefers the foil.",
    "T2I, true caption": "The true caption prefers the true picture.",
    "T2I, foil": "The foil prefers its own picture.",
}


@verb(
    app,
    "counterfoil foils runs/mine winoground/:images=winoground/images --output w.html",
    "counterfoil foils openai/clip-vit-base-patch32 sugarcrepe/:images=coco/val2017",
    "counterfoil foils blind sugarcrepe/ --blind captions.txt",
)
def foils(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help="Model folder or HF name, join with `+` for an ensemble; or `blind`."),
    ],
    foil_set: Annotated[
        list[str],
        typer.Argument(
            metavar="SET",
            help="Files or folder of a set, `scenes`, or `FORM:PATH`; its images or features "
            "after a colon, as `my-set/:images=pictures/`.",
        ),
    ],
    split: Split = "test",
    blind: Annotated[
        str | None,
        typer.Option(help="Captions to train a text-only control: `.txt`, or data (train split)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of foils, thresholds and intervals.")] = 0,
    page: Annotated[
        Path | None, typer.Option("--output", help="HTML page with the worst items.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="JSON file with the numbers and the scores of every item.")
    ] = None,
) -> None:
    """Test whether a model tells captions from foils, which differ in one detail."""
    from counterfoil.core import distributed
    from counterfoil.core.io import write_json, write_text
    from counterfoil.evaluation.foils.sets import is_scenes, named_places, open_foil_set

    if not is_scenes(foil_set[0]):
        refuse(context, ("split",), "with foils of scenes")
    if model == BLIND and blind is None:
        raise ValueError("the blind model learns from captions; name them with --blind")
    check_new_files(page, json)
    distributed.init()
    names, places = named_places(foil_set)
    foils = open_foil_set(names, **places, split=split, seed=seed)
    report = _report(model, foils, blind, seed)
    if distributed.rank():
        return
    print_tables(_tables(report), report.protocol)
    output(report.headline())
    if page is not None:
        write_text(page, _page(report, seed))
        output(f"{page}")
    if json is not None:
        write_json(json, {"model": model, "seed": seed, "ties": "wrong", **report.to_dict()})
        output(f"{json}")


def _report(name: str, foils: FoilSet, blind: str | None, seed: int) -> FoilReport:
    """Evaluate a model or an ensemble, or the blind control alone."""
    from counterfoil.evaluation.foils.measures import caption_cosines, evaluate_foils, score_foils
    from counterfoil.pipelines.scorers import open_scorers

    scorer = None if name == BLIND else open_scorers([name])[0]
    for model in scorer.models if scorer else ():
        _check_readable(model, foils)
    control = _blind_control(blind, foils) if blind else None
    cosines = None
    if scorer is not None:
        members = scorer.on(foils.dataset)
        scores = score_foils(members, foils)
        if foils.form == "sugarcrepe++":
            cosines = caption_cosines(members, foils)
        description = scorer.describe()
    else:
        assert control is not None
        scores, description = control.scores, "the blind model alone"
    return evaluate_foils(
        foils, scores, model=description, cosines=cosines, blind=control, seed=seed
    )


def _check_readable(model: Model, foils: FoilSet) -> None:
    """Refuse a model that cannot read the images or captions, before anything is encoded."""
    from counterfoil.data.processor import FeatureProcessor

    dataset = foils.dataset
    if model.processor is None or model.processor.tokenizer is None:
        raise ValueError(
            f"{model.name} compares ready-made vectors and cannot read the captions of "
            f"{foils.name}; give a model folder or the name of a model"
        )
    needs_features = isinstance(model.processor.image_processor, FeatureProcessor)
    if needs_features and dataset.features is None:
        raise ValueError(
            f"{model.name} reads stored features of pictures and {foils.name} comes without; "
            f"extract those of its pictures and name their folder, as in my-set/:features=folder/; "
            f"a picture is called as in {dataset.image_ids[0]!r}"
        )
    if not needs_features and dataset.pictures is None:
        raise ValueError(
            f"{foils.name} comes without pictures, such as {dataset.image_ids[0]!r}; name "
            "their folder, as in my-set/:images=pictures/"
        )


def _blind_control(source: str, foils: FoilSet) -> BlindControl:
    """The blind control, trained on a text file or on the training split of data."""
    from counterfoil.core.io import read_text_lines
    from counterfoil.evaluation.foils.measures import train_blind_control

    if source.endswith(".txt"):
        captions = [line for line in read_text_lines(Path(source), "captions") if line.strip()]
    else:
        captions = list(data_source(source).split("train").texts)
    return train_blind_control(captions, source, foils)


def _tables(report: FoilReport) -> tuple[TableBlock, ...]:
    """One table for each measure; aggregates of the set's authors are marked."""
    from counterfoil.evaluation.foils.measures import MARGIN
    from counterfoil.report.page import TableBlock

    controls = {(line.measure, line.of): line for line in report.blind}
    published = report.foils.published
    whole = {line.measure: line.weights for line in report.lines if line.of == "all items"}
    mean = {line.measure: line.weights for line in report.lines if line.macro}
    tables = []
    for measure in dict.fromkeys(line.measure for line in report.lines):
        rows: list[TableRow] = []
        suspicious = False
        weighted = bool(whole.get(measure))
        head = ("", "items", *(("weight", "in mean") if weighted else ()), "%", "95 %", "chance")
        head += ("blind", "95 %") if controls else ()
        for line in (line for line in report.lines if line.measure == measure):
            title = f"{line.of} *" if line.own and published else line.of
            row = [title, f"{line.items:,}"]
            if weighted:
                weights = whole[measure], mean.get(measure, {})
                row += (f"{100 * w[line.of]:.1f}" if line.of in w else "" for w in weights)
            row += *_value_and_interval(line), f"{line.chance:.1f}"
            if controls:
                control = controls.get((measure, line.of))
                row += ("", "") if control is None else _value_and_interval(control, mark=" !")
                suspicious |= control is not None and control.suspicious
            rows.append(tuple(row))
        note = MEANINGS[measure]
        if weighted:
            note += " weight, in mean: of a kind in all items and in the mean over kinds, %."
        if published:
            note += " *: as the set's authors report it."
        if suspicious:
            note += (
                f" !: suspicious: the blind model is surely more than {MARGIN:.0f} points above "
                "chance, so the captions alone give answers away."
            )
        tables.append(TableBlock(measure, head, tuple(rows), note))
    return tuple(tables)


def _value_and_interval(line: FoilScore, mark: str = "") -> tuple[str, str]:
    """Cells of a number, marked where it is suspicious, and of its interval."""
    value = f"{line.value:.1f}{mark if line.suspicious else ''}"
    return value, f"{line.interval.low:.1f} to {line.interval.high:.1f}"


def _page(report: FoilReport, seed: int) -> str:
    """The page as HTML: the tables, and cards of the items with the lowest margins."""
    from counterfoil.evaluation.foils.measures import item_margins
    from counterfoil.report.page import CardSection, Page, current_provenance, render_page

    definition = {
        "choice": "the true caption's score less the best foil's",
        "crossed": "the lower true score less the higher false one",
        "judged": "distance from the median score, on the right side",
    }[report.foils.task]
    margins, scores = item_margins(report.foils, report.scores), report.item_scores()
    cards = tuple(
        card
        for row in margins.argsort(stable=True)[:EXAMPLES].tolist()
        for card in _cards(report.foils, report.foils.items[row], scores[row], float(margins[row]))
    )
    note = f"Lowest margins first; margin: {definition}."
    page = Page(
        title=report.foils.name,
        headline=report.headline(),
        protocol=report.protocol,
        provenance=current_provenance(seed=seed),
        tables=_tables(report),
        sections=(CardSection("Most wrong", note, cards),) if cards else (),
    )
    return render_page(page)


def _cards(
    foils: FoilSet, item: FoilItem, scores: Sequence[float], margin: float
) -> Iterator[ExampleCard]:
    """One card for each image of an item, with the captions by score."""
    from counterfoil.report.page import CardColumn, ExampleCard, PageItem, thumbnail

    dataset, many = foils.dataset, len(item.texts)
    minus = f"{margin:.3f}".replace("-", "−")
    title = f"{item.category or 'item'} · {item.id} · margin {minus}"
    for place, image in enumerate(item.images):
        item_scores = scores[place * many : (place + 1) * many]
        true = {place} if foils.task == "crossed" else set(range(item.positives))
        ranked = sorted(range(many), key=lambda at: (-item_scores[at], at in true))
        captions = tuple(
            PageItem(
                dataset.texts[item.texts[at]], None, rank, at in true and item.true, item_scores[at]
            )
            for rank, at in enumerate(ranked, 1)
        )
        picture = thumbnail(dataset.pictures.open(image)) if dataset.pictures else None
        query = PageItem(dataset.image_ids[image], picture)
        yield ExampleCard(query, "", (CardColumn(title, "", captions),))
