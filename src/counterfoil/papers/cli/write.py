"""``counterfoil papers write rules`` and ``counterfoil papers write tags``: generated captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from counterfoil.cli.options import (
    DataName,
    Minutes,
    NewFolder,
    Phrases,
    Resume,
    Seed,
    Split,
    check_new_folder,
    data_source,
    phrase_parser,
    record_settings,
    resumable_work,
    verb,
    with_settings,
)
from counterfoil.core.console import output

if TYPE_CHECKING:
    from counterfoil.papers.tags.inputs import Rule

Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="Remove likely true captions: captions (the paper's, the default), lemmas, wordnet, "
        "inflection; repeatable; `none` for none.",
    ),
]
Guide = Annotated[
    str | None, typer.Option(help="Guide model that removes captions it scores as true.")
]
Encoder = Annotated[
    str | None, typer.Option(help="Sentence encoder that removes captions of the same meaning.")
]

NO_RULE = "none"
BY_RULE = "most", "frequency", "synonyms"  # of a `RuleConfig`
# of the stage `Generate`
BY_MODEL = "masks", "refills", "keep", "temperature", "share", "singles", "slack"

app = typer.Typer(
    name="write",
    no_args_is_help=True,
    help="Generate false captions (foils) and store them.",
)


@verb(
    app,
    "counterfoil papers write rules scenes --output written/",
    "counterfoil papers write rules flickr8k/ --output written/ --kind noun --kind relation "
    "--set most=10",
)
def rules(
    data: DataName,
    folder: NewFolder,
    split: Split = "train",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="noun, numeral or relation; repeatable; default all."),
    ] = None,
    seed: Seed = 0,
    settings: Annotated[list[str] | None, record_settings(*BY_RULE)] = None,
) -> None:
    """Change a noun, a number or a relation of every caption."""
    from counterfoil.negatives.generated import ROWS
    from counterfoil.papers.tags.stage import RuleConfig, describe_generation, rewrite_captions

    when = "where nouns are changed, with --kind noun"
    unread = {"frequency": when, "synonyms": when} if kind and "noun" not in kind else {}
    config = RuleConfig(split=split, kinds=tuple(kind or ()), seed=seed)
    config = with_settings(config, settings, BY_RULE, **unread)
    check_new_folder(folder)
    source = data_source(data)
    dataset = source.split(split)
    store = rewrite_captions(config, dataset, source.split("train"), folder)
    output(f"{describe_generation(store, dataset)}: {folder / ROWS}")


@verb(
    app,
    "counterfoil papers write tags runs/tags/uniter-scenes/tags "
    "scenes:images=2600,dev=100,test=500,features=regions --output written/",
    "counterfoil papers write tags runs/mine/tags flickr8k/:features=regions/ --output written/ "
    "--rule captions --rule wordnet --guide runs/chan/online --minutes 60 --resume",
    "counterfoil papers write tags runs/tags/tags txt_db/:features=img_db/flickr30k/ "
    "--phrases txt_db/ --output written/",
)
def tags(
    model: Annotated[
        str, typer.Argument(help="Folder of a model with a masked language model: UNITER, ….")
    ],
    data: DataName,
    folder: NewFolder,
    split: Split = "train",
    phrases: Phrases = "rules",
    rule: Rules = None,
    guide: Guide = None,
    encoder: Encoder = None,
    seed: Seed = 0,
    settings: Annotated[list[str] | None, record_settings(*BY_MODEL)] = None,
    resume: Resume = False,
    minutes: Minutes = None,
) -> None:
    """Change phrases of every caption with a model that sees the image (TAGS)."""
    from counterfoil.negatives.generated import ROWS
    from counterfoil.papers.tags.stage import Generate, describe_generation, generate_captions

    rules: Sequence[str] = rule or ("captions",)
    stage = Generate(
        name="written",
        using=model,
        split=split,
        parser=phrase_parser(phrases),
        rules=cast("tuple[Rule, ...]", () if tuple(rules) == (NO_RULE,) else tuple(rules)),
        guide=guide,
        encoder=encoder,
        seed=seed,
    )
    unread = {} if guide or encoder else {"slack": "with --guide or --encoder"}
    stage = with_settings(stage, settings, BY_MODEL, **unread)
    with resumable_work(folder, "writing", resume=resume, minutes=minutes) as minutes_left:
        dataset = data_source(data).split(split)
        store = generate_captions(stage, dataset, folder, left=minutes_left)
    output(f"{describe_generation(store, dataset)}: {folder / ROWS}")
