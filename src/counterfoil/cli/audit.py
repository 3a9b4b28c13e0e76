"""``counterfoil audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Decisions, Features, Images, example
from counterfoil.cli.unread import refuse, refuse_without

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil audit my-photos/ --folder audit/",
        "counterfoil audit my-photos/ --model runs/mine --explainer runs/tags-dc --folder audit/",
        "counterfoil audit scenes --model runs/demo/online --negatives runs/demo/lists "
        "--folder audit/",
    )
)
def audit(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Folder, file or name.")],
    folder: Annotated[
        Path, typer.Option("--folder", "--out", help="Where the page and its numbers go.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(help="Who ranks captions: model folder or HF name; several: ensemble."),
    ] = None,
    explainer: Annotated[
        str, typer.Option(help="Model that says which words are wrong, as TAGS-DC trains them.")
    ] = "",
    negatives: Annotated[
        Path | None, typer.Option(help="Folder of mined negatives, to find true ones among them.")
    ] = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Annotated[str, typer.Option(help="Whose captions models judge, or `all`.")] = "all",
    near: Annotated[
        float, typer.Option(help="Cosine from which pictures are nearly the same.")
    ] = 0.97,
    alike: Annotated[
        float, typer.Option(help="TF-IDF cosine from which a mined text is suspected to be true.")
    ] = 0.6,
    top: Annotated[int, typer.Option(min=1, help="Finds of each kind on the page.")] = 100,
) -> None:
    """Find suspicious captions, leaked images and false negatives, and decide on a page."""
    from counterfoil.recipes.auditing import AuditPlan, audit_data
    from counterfoil.recipes.run import Source

    if not model and not explainer:
        refuse(context, ("split",), "with --model or --explainer")
    refuse_without(context, "negatives", ("alike",))
    plan = AuditPlan(tuple(model or ()), explainer, negatives, split, near, alike, top)
    audit_data(Source(data, features, images, decisions), plan, folder)
