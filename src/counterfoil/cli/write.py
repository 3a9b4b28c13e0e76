"""``counterfoil write rules`` and ``counterfoil write tags``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    STOPPED,
    Decisions,
    Features,
    Images,
    Minutes,
    Seed,
    Split,
    example,
)
from counterfoil.cli.unread import refuse, refuse_without

Out = Annotated[Path, typer.Option(help="Folder of the foils; must not exist yet.")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="Leave out what may be true: captions (the paper's, the default), lemmas, wordnet, "
        "inflection; many times; `none` for none.",
    ),
]
Guide = Annotated[
    str | None, typer.Option(help="A model that leaves out what it takes for true, too.")
]
Encoder = Annotated[
    str | None, typer.Option(help="A sentence encoder that leaves out what means the same, too.")
]
Phrases = Annotated[str, typer.Option(help="What finds phrases: rules, spacy, or a .json file.")]
Singles = Annotated[
    str, typer.Option(help="Hide single words: `without phrases`, `always`, or `only`.")
]

app = typer.Typer(no_args_is_help=True, help="False captions, written and stored.")


@app.command(
    "rules",
    epilog=example(
        "counterfoil write rules scenes --out written/",
        "counterfoil write rules flickr8k/ --out written/ --kind noun --kind relation --most 10",
    ),
)
def rules(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Folder, file or name.")],
    out: Out,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="noun, numeral or relation; may be given many times; default all."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Foils of a kind and caption, at most.")] = 5,
    frequency: Annotated[
        int | None,
        typer.Option(min=1, help="Nouns written stand as often in training captions."),
    ] = None,
    synonyms: Annotated[
        str, typer.Option(help="What may name the same: `list`, or `wordnet`, which needs nltk.")
    ] = "list",
    seed: Seed = 0,
) -> None:
    """Change a noun, a number or a relation of every caption; `counterfoil foils` asks them."""
    from counterfoil.recipes.run import Source
    from counterfoil.recipes.writes import RulePlan
    from counterfoil.recipes.writing import write_rules

    if kind and "noun" not in kind:
        refuse(context, ("frequency", "synonyms"), "where nouns are changed, with --kind noun")
    plan = RulePlan(
        split=split,
        kinds=tuple(kind or ()),
        most=most,
        frequency=frequency,
        synonyms=synonyms,
        seed=seed,
    )
    write_rules(Source(data, images=images, decisions=decisions), plan, out)


@app.command(
    "tags",
    epilog=example(
        "counterfoil write tags runs/tags/uniter-scenes/tags "
        "scenes:images=2600,dev=100,test=500,features=regions --out written/",
        "counterfoil write tags runs/mine/tags flickr8k/ --features regions/ --out written/ "
        "--rule captions --rule wordnet --guide runs/chan/online --minutes 60 --resume",
    ),
)
def tags(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Folder of a model that reads words: UNITER, ….")],
    data: Annotated[str, typer.Argument(help="Folder, file or name.")],
    out: Out,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    phrases: Phrases = "rules",
    masks: Annotated[int, typer.Option(min=1, help="K, maskings of each caption.")] = 20,
    refills: Annotated[int, typer.Option(min=1, help="L, refills of each masking.")] = 20,
    keep: Annotated[int, typer.Option(min=1, help="m, hardest foils kept of a caption.")] = 10,
    temperature: Annotated[float, typer.Option(help="Temperature of the draw of words.")] = 1.5,
    singles: Singles = "without phrases",
    rule: Rules = None,
    guide: Guide = None,
    encoder: Encoder = None,
    slack: Annotated[float, typer.Option(help="How far below the original is true still.")] = 0.0,
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option(help="Go on where it was stopped.")] = False,
    minutes: Minutes = None,
) -> None:
    """Let a model that looks at the pictures change phrases of every caption (TAGS)."""
    from counterfoil.recipes.run import Source
    from counterfoil.recipes.writing import asked, write_tags

    if encoder is None:
        refuse_without(context, "guide", ("slack",))
    stage = asked(
        model, split, phrases=phrases, masks=masks, refills=refills, keep=keep,
        temperature=temperature, singles=singles, rules=rule or ("captions",), guide=guide,
        encoder=encoder, slack=slack, seed=seed,
    )  # fmt: skip
    source = Source(data, features, images, decisions)
    if not write_tags(stage, source, out, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)
