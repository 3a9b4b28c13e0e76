"""``counterfoil explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Features, Images, Split, example
from counterfoil.cli.unread import refuse, refuse_without

File = Annotated[
    Path | None, typer.Option(help="Lines of image and caption, all of them to be judged.")
]
Threshold = Annotated[
    float, typer.Option(min=0, max=1, help="Doubt from which a word counts as wrong.")
]
Rank = Annotated[
    str | None, typer.Option(help="Many captions: by greatest `doubt`, or lowest `score`.")
]
Numbers = Annotated[Path | None, typer.Option(help="JSON of one caption, lines of JSON of many.")]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil explain runs/tags-dc/uniter-scenes/tags-dc scene-0-test-00003 "
        '"a red star above a square" --data scenes:features=regions --html page.html',
        "counterfoil explain runs/mine photo.jpg 'a dog in the snow' --json out.json",
        "counterfoil explain runs/mine --file captions.jsonl --html audit.html --json audit.jsonl",
        "counterfoil explain runs/mine --data flickr8k/ --features regions/ --split train",
    )
)
def explain(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model folder or HF name.")],
    image: Annotated[
        str | None, typer.Argument(help="Path of a picture; with --data, the id of an image.")
    ] = None,
    caption: Annotated[str | None, typer.Argument(help="What is said of it.")] = None,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    file: File = None,
    threshold: Threshold = 0.5,
    corrections: Annotated[int, typer.Option(min=1, help="Shown of each doubted word.")] = 3,
    rank: Rank = None,
    top: Annotated[int, typer.Option(min=1, help="Most suspicious captions to show.")] = 20,
    html: Annotated[Path | None, typer.Option(help="Page with the pictures.")] = None,
    json: Numbers = None,
    resume: Annotated[
        bool, typer.Option(help="Many captions: go on where --json was stopped.")
    ] = False,
) -> None:
    """Say which words of a caption are wrong, and what ought to stand there; or of a data set."""
    from counterfoil.recipes.explain import ExplainPlan
    from counterfoil.recipes.explaining import Places, audit_with, explain_with
    from counterfoil.recipes.run import Source

    _check(context, one=image is not None)
    plan = ExplainPlan(threshold=threshold, corrections=corrections, rank=rank)
    source, out = Source(data or "", features, images, decisions), Places(html, json, resume)
    if image is None and (file is not None or data is not None):
        audit_with(model, source, split, file, plan, top, out)
    elif image is None or caption is None or file is not None:
        raise ValueError(
            "give an image and a caption, or --file with lines of both, or --data without either "
            "for all captions of a split"
        )
    else:
        explain_with(model, image, caption, source if data else None, plan, out)


def _check(context: typer.Context, *, one: bool) -> None:
    """Refuse what is not read of one caption, of those of a file, or without data."""
    if one:
        refuse(context, ("split", "rank", "top", "resume"), "with --file, or with --data alone")
    if one or context.params["file"] is None:
        refuse_without(context, "data", ("features", "images", "decisions", "split"))
    else:
        refuse_without(context, "data", ("decisions",))
        refuse_without(context, "file", ("split",), alone=True)
