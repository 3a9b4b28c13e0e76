"""``counterfoil explain``: one caption, or a data set with its most suspicious captions first."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from counterfoil.cli.options import (
    Data,
    Device,
    Resume,
    Split,
    check_new_files,
    data_source,
    refuse,
    refuse_without,
    verb,
)
from counterfoil.core.console import console, output

if TYPE_CHECKING:
    from PIL import Image
    from rich.style import Style
    from rich.text import Text

    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.evaluation.caption_check import CaptionCheck
    from counterfoil.evaluation.exchanges import WordExchanges
    from counterfoil.evaluation.explain import ExplainConfig, Explanation
    from counterfoil.evaluation.explanation_page import ExplainedCard
    from counterfoil.model import Model
    from counterfoil.pipelines.run import DataSource


Ranked: TypeAlias = "tuple[float, int, Explanation]"  # suspicion, caption row
TINTS = ((0.75, "bold red"), (0.5, "red"), (0.25, "yellow"))

Threshold = Annotated[
    float, typer.Option(min=0, max=1, help="Doubt from which a word counts as wrong.")
]
Json = Annotated[Path | None, typer.Option(help="Write JSON of one caption, JSON lines of many.")]

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil explain runs/tags-dc/uniter-scenes/tags-dc scene-0-test-00003 "
    '"a red star above a square" --data scenes:features=regions --output page.html',
    "counterfoil explain runs/mine photo.jpg 'a dog in the snow' --calibrate my-photos/",
    "counterfoil explain runs/mine --data photos/ --split all --output page.html",
    "counterfoil explain runs/mine --data flickr8k/:features=regions/ --json all.jsonl",
)
def explain(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model folder or HF name.")],
    image: Annotated[
        str | None, typer.Argument(help="Path of an image; with --data, its id.")
    ] = None,
    caption: Annotated[str | None, typer.Argument(help="Caption to explain.")] = None,
    data: Data = None,
    split: Split = "test",
    threshold: Threshold = 0.5,
    index: Annotated[
        Path | None,
        typer.Option(
            help="Calibrated index, or the folder that --calibrate writes: says which captions fit "
            "and, with `index --words`, which words others in their place beat."
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Data whose captions and images, 50 or more that the model was not trained on, "
            "say which scores fit, against the captions of other images that score highest; kept "
            "in --index."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Most suspicious captions to show.")] = 20,
    page: Annotated[
        Path | None, typer.Option("--output", help="HTML page with the images.")
    ] = None,
    json: Json = None,
    device: Device = None,
    resume: Resume = False,
) -> None:
    """Does a caption fit its image, and which words are wrong? Of one, or of a data set."""
    from counterfoil.core import distributed
    from counterfoil.evaluation.explain import ExplainConfig
    from counterfoil.model import load_model

    if image is not None:
        refuse(context, ("split", "top", "resume"), "with --data alone")
    refuse_without(context, "data", ("split",))
    source = data_source(data) if data else None
    only_calibrates = calibrate is not None and index is not None and not (image or source)
    if caption is None and not only_calibrates and (image is not None or source is None):
        kept = "" if calibrate is None or image else ", or --index FOLDER to keep a calibration"
        raise ValueError(
            "give an image and a caption, or --data without either for all captions of a split"
            f"{kept}"
        )
    if resume and json is None:
        raise ValueError("--resume continues the file that --json has begun; name that file")
    check_new_files(page, json)
    distributed.init()
    check, exchanges = _calibrated(index, written=calibrate is not None)
    picture = None if image is None else _picture_of(image, source)
    opened = load_model(model)
    if calibrate is not None:
        check = _calibrate(opened, data_source(calibrate), index)
    _check_model(opened, check, exchanges)
    config = ExplainConfig(threshold, exchanges=exchanges, check=check)
    if picture is not None and caption is not None:
        _explain_one(opened, picture, caption, config, page, json)
    elif source is not None:
        _explain_many(opened, source.split(split), config, top, page, json, resume=resume)


def _calibrated(
    index: Path | None, *, written: bool
) -> tuple[CaptionCheck | None, WordExchanges | None]:
    """What a folder says of captions and of words; refuses one that says nothing."""
    from counterfoil.evaluation.caption_check import CaptionCheck
    from counterfoil.evaluation.exchanges import WordExchanges

    if index is None:
        return None, None
    # one that is made again is not read: it may be damaged
    check, exchanges = None if written else CaptionCheck.read(index), WordExchanges.read(index)
    if check is None and exchanges is None and not written:
        raise ValueError(
            f"{index} is not calibrated; do it with `counterfoil explain MODEL --index {index} "
            f"--calibrate DATA`, or an index with `counterfoil index --output {index} --calibrate "
            "DATA --words`"
        )
    return check, exchanges


def _calibrate(model: Model, source: DataSource, index: Path | None) -> CaptionCheck:
    from counterfoil.core import distributed
    from counterfoil.evaluation.caption_check import fit_caption_check

    check = fit_caption_check(model, source.open())
    if not distributed.rank() and index is not None:
        check.write(index)
        output(f"{index}: captions are {check.basis}")
    return check


def _check_model(model: Model, check: CaptionCheck | None, exchanges: WordExchanges | None) -> None:
    """Refuse a calibration of another model."""
    known = {found.model for found in (check, exchanges) if found is not None}
    if known and known != {model.identity()}:
        raise ValueError(
            f"the index of --index was calibrated with another model than {model.name}; name its "
            "model, or an index of this one, or calibrate anew with --calibrate DATA"
        )


@dataclass(frozen=True, slots=True)
class _Picture:
    """An image of the command line: a picture, or an image of a data set."""

    name: str
    picture: Image.Image | None
    dataset: ImageTextDataset | None


def _picture_of(image: str, source: DataSource | None) -> _Picture:
    """The image, by its path, or by its id where data are given."""
    from counterfoil.data.images import is_picture_name, open_picture
    from counterfoil.evaluation.read_image import find_image_row

    if source is not None:
        dataset = source.open()
        return _Picture(image, _open_picture(dataset, find_image_row(dataset, image)), dataset)
    if is_picture_name(Path(image)) or Path(image).exists():
        return _Picture(image, open_picture(Path(image)), None)
    raise ValueError(
        f"{image!r} is no picture; give the path of one, or name with --data the data whose "
        "image it is"
    )


def _explain_one(
    model: Model,
    picture: _Picture,
    caption: str,
    config: ExplainConfig,
    page: Path | None,
    json_file: Path | None,
) -> None:
    """Explain a caption of an image."""
    from counterfoil.core import distributed
    from counterfoil.core.io import write_json
    from counterfoil.evaluation import explain as explaining
    from counterfoil.evaluation.explanation_page import ExplainedCard, headline, picture_of

    explanation = explaining.explain(
        model,
        picture.name if picture.dataset is not None or not picture.picture else picture.picture,
        caption,
        dataset=picture.dataset,
        threshold=config.threshold,
        corrections=config.corrections,
        exchanges=config.exchanges,
        check=config.check,
    )
    if distributed.rank():
        return
    card = ExplainedCard(picture_of(picture.name, picture.picture), explanation, config.threshold)
    title = headline(explanation, config.threshold)
    output(title)
    _print_method(config)
    print_caption(card)
    if page is not None:
        _write_page(page, model, _method(model, config), "A caption explained", title, [card])
    if json_file is not None:
        told = {"model": model.name, "image": picture.name, **explanation.to_dict()}
        write_json(json_file, told)
        output(f"{json_file}")


def _explain_many(
    model: Model,
    dataset: ImageTextDataset,
    config: ExplainConfig,
    top: int,
    page: Path | None,
    json_file: Path | None,
    *,
    resume: bool,
) -> None:
    """Explain all captions of a split, write them all, and show the most suspicious."""
    from counterfoil.core import distributed
    from counterfoil.core.io import atomic_write
    from counterfoil.evaluation.caption_check import hedged
    from counterfoil.evaluation.explain import (
        ExplanationCheckpoint,
        explain_dataset,
        has_doubt_head,
    )

    # otherwise by score, the lowest first
    by_doubt = has_doubt_head(model.model) or config.exchanges is not None
    lines_file = None if distributed.rank() else json_file
    checkpoint = None
    if lines_file is not None:
        facts = _facts(model, dataset, config)
        checkpoint = ExplanationCheckpoint(lines_file, facts, resume=resume)
    lines: list[tuple[float, bytes]] = []  # suspicion, JSON
    count = Counter[str]()

    def ranked() -> Iterator[Ranked]:
        for row, explanation in explain_dataset(model, dataset, config, checkpoint):
            doubt = explanation.doubt or 0.0
            suspicion = doubt if by_doubt else -explanation.score
            if lines_file is not None:
                image = dataset.image_ids[int(dataset.text_to_image[row])]
                values = {"id": dataset.text_ids[row], "image": image, "suspicion": suspicion}
                line = json.dumps({**values, **explanation.to_dict()}, ensure_ascii=False)
                lines.append((suspicion, line.encode()))
            count["captions"] += 1
            count["truncated"] += explanation.unread is not None
            count["doubted"] += doubt >= config.threshold
            count[explanation.verdict] += 1
            yield suspicion, row, explanation

    # holds `top` explanations at a time; of equally suspicious captions the first row comes first
    best = heapq.nlargest(top, ranked(), key=itemgetter(0))
    if lines_file is not None:
        lines.sort(key=lambda line: -line[0])
        with atomic_write(lines_file) as temporary, temporary.open("wb") as stream:
            stream.writelines(line + b"\n" for _, line in lines)
    # only now is the output complete on disk
    if checkpoint is not None:
        checkpoint.parts.remove()
    if distributed.rank():
        return
    order = "greatest doubt" if by_doubt else "lowest score"
    protocol = f"{dataset.name}: {count['captions']:,} captions; {order} first"
    if count["truncated"]:
        protocol += f"; {count['truncated']:,} too long for the model, explained up to its limit"
    summary = ""
    if config.check is not None:
        given = (count["does not fit"], "do not fit"), (count["fits"], "fit")
        judged = ", ".join(
            f"{number:,} {hedged(words, share if number else None)}"
            for (number, words), share in zip(given, config.check.mistakes)
        )
        summary = (
            f"Of {count['captions']:,} captions {judged}, and of {count['cannot tell']:,} it "
            "cannot be told. "
        )
    if best and best[0][2].doubts:
        share = 100 * count["doubted"] / count["captions"]
        summary += (
            f"{count['doubted']:,} of {count['captions']:,} captions ({share:.1f} %) have a word "
            f"whose doubt is {config.threshold:g} or more."
        )
    _show_ranking(model, dataset, best, (summary.strip(), protocol), config, page)
    if json_file is not None:
        output(f"{json_file}")


def _facts(model: Model, dataset: ImageTextDataset, config: ExplainConfig) -> dict[str, object]:
    """Facts that stored explanations depend on."""
    from counterfoil.core.config import digest

    facts: dict[str, object] = {
        "model": model.identity(),
        "data": dataset.fingerprint,
        "threshold": config.threshold,
        "corrections": config.corrections,
    }
    if config.exchanges is not None:
        facts["exchanges"] = digest(asdict(config.exchanges))
    if config.check is not None:
        facts["check"] = asdict(config.check)
    return facts


def _show_ranking(
    model: Model,
    dataset: ImageTextDataset,
    best: Sequence[Ranked],
    sentences: tuple[str, str],
    config: ExplainConfig,
    page: Path | None,
) -> None:
    """Print the ranking and write the page."""
    from counterfoil.evaluation.explanation_page import ExplainedCard, picture_of
    from counterfoil.evaluation.similarity_maps import similarity_maps, without_maps

    cards = []
    for place, (_, row, explanation) in enumerate(best, 1):
        image = int(dataset.text_to_image[row])
        picture = _open_picture(dataset, image) if page is not None else None
        shown = picture_of(dataset.image_ids[image], picture)
        if page is not None and not without_maps(model):
            mapped = similarity_maps(
                model, dataset.image_ids[image], explanation.caption, dataset=dataset
            )
            explanation = replace(explanation, maps=mapped)
        cards.append(ExplainedCard(shown, explanation, config.threshold, place))
    _print_method(config)
    print_ranking(cards, judged=config.check is not None)
    for sentence in filter(None, sentences):
        output(sentence)
    if page is not None:
        summary, protocol = sentences
        headline = summary or f"The {len(cards):,} captions that fit least."
        method = "; ".join((_method(model, config), protocol))
        _write_page(page, model, method, "Suspicious captions", headline, cards)


def _open_picture(dataset: ImageTextDataset, row: int) -> Image.Image | None:
    return dataset.pictures.open(row) if dataset.pictures else None


def _print_method(config: ExplainConfig) -> None:
    from counterfoil.evaluation.caption_check import UNCALIBRATED

    output(config.check.basis if config.check else UNCALIBRATED)
    if exchanges := config.exchanges:
        output(
            "a word is doubted where another in its place scores better by more than "
            f"{exchanges.noise:.3f}, as in 5 % of {exchanges.words:,} words of true captions"
        )


def _method(model: Model, config: ExplainConfig) -> str:
    """The model, and what its answers rest on."""
    from counterfoil.evaluation.caption_check import UNCALIBRATED

    basis = config.check.basis if config.check else UNCALIBRATED
    return f"{model.name}; score: {model.model.score_name}; {basis}"


def _write_page(
    path: Path,
    model: Model,
    protocol: str,
    title: str,
    headline: str,
    cards: Sequence[ExplainedCard],
) -> None:
    from counterfoil.core.io import write_text
    from counterfoil.evaluation.explanation_page import render_explanations
    from counterfoil.evaluation.similarity_maps import without_maps
    from counterfoil.report.page import current_provenance

    page = render_explanations(
        cards,
        title=title,
        headline=headline,
        protocol=protocol,
        provenance=current_provenance(),
        no_maps=without_maps(model),
    )
    write_text(path, page)
    output(f"{path}")


def print_caption(card: ExplainedCard) -> None:
    """Print a caption, a table of its words, and the corrected caption."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from counterfoil.evaluation.explanation_page import measure, tints

    explanation = card.explanation
    console().print(styled_caption(card), soft_wrap=True)
    output(f"{card.image.text}: score {explanation.score:.3f}")
    table = Table("word", box=box.SIMPLE_HEAD)
    table.add_column(measure(explanation), justify="right")
    if explanation.doubts:
        table.add_column("instead")
    if explanation.maps is not None:
        table.add_column(f"where, by {explanation.maps.shows}")
    for tint, (word, number, instead, where) in zip(tints(explanation), card.rows, strict=True):
        cells = [number] + [instead] * explanation.doubts
        cells += [where] * (explanation.maps is not None)
        table.add_row(Text(word, _style(tint)), *map(Text, cells))
    console().print(table)
    if explanation.maps is not None:
        output(explanation.maps.note)
    if explanation.corrected is not None:
        console().print(Text("corrected: ").append_text(styled_correction(card)), soft_wrap=True)
        output(f"score {explanation.corrected.score:.3f}")


def print_ranking(cards: Sequence[ExplainedCard], *, judged: bool = False) -> None:
    """Print the most suspicious captions as a table; what is `judged` has a verdict."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from counterfoil.core.console import console
    from counterfoil.evaluation.explanation_page import content_words, measure, number

    table = Table("", "image", box=box.SIMPLE_HEAD)
    for name in ("score", measure(cards[0].explanation) if cards else ""):
        table.add_column(name, justify="right")
    if judged:
        table.add_column("verdict")
    table.add_column("caption")
    for card in cards:
        lines = styled_caption(card)
        if card.new:
            lines.append("\n→ ").append_text(styled_correction(card))
        explanation = card.explanation
        words = explanation.words if explanation.doubts else content_words(explanation)
        worst = max(words, key=lambda word: word.doubt or word.gain or 0.0, default=None)
        cells = [
            str(card.place),
            card.image.text,
            f"{explanation.score:.3f}",
            "" if worst is None else number(worst),
        ]
        if judged:
            cells.append(explanation.answer)
        table.add_row(*map(Text, cells), lines)
    console().print(table)


def styled_caption(card: ExplainedCard) -> Text:
    """A caption with coloured words; doubted words carry their doubt."""
    from rich.text import Text

    caption = Text()
    for part in card.parts:
        caption.append(part.text, _style(part.tint))
        if part.marked:
            caption.append(f" [{part.number}]", _style(part.tint))
    return caption


def styled_correction(card: ExplainedCard) -> Text:
    """The corrected caption, new words underlined and between ``_``; empty without one."""
    from rich.text import Text

    caption = Text()
    for text, new in card.new:
        caption.append(f"_{text}_" if new else text, "underline green" if new else "")
    return caption


def _style(tint: float | None) -> str | Style:
    return next((style for level, style in TINTS if tint is not None and tint >= level), "")
