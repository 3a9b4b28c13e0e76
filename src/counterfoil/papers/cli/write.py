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
    refuse,
    refuse_without,
    resumable_work,
    verb,
)
from counterfoil.core.console import output

if TYPE_CHECKING:
    from counterfoil.papers.tags.inputs import Rule
    from counterfoil.papers.tags.inputs import Singles as SinglesMode

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
Singles = Annotated[
    str, typer.Option(help="Mask single words: `without phrases`, `always`, or `only`.")
]

NO_RULE = "none"

app = typer.Typer(
    name="write",
    no_args_is_help=True,
    help="Generate false captions (foils) and store them.",
)


@verb(
    app,
    "counterfoil papers write rules scenes --output written/",
    "counterfoil papers write rules flickr8k/ --output written/ --kind noun --kind relation "
    "--most 10",
)
def rules(
    context: typer.Context,
    data: DataName,
    folder: NewFolder,
    split: Split = "train",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="noun, numeral or relation; repeatable; default all."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Foils of a kind and caption, at most.")] = 5,
    frequency: Annotated[
        int | None,
        typer.Option(min=1, help="Least number of training captions that a new noun occurs in."),
    ] = None,
    synonyms: Annotated[
        str, typer.Option(help="Synonyms to avoid: from `list`, or `wordnet`, which needs nltk.")
    ] = "list",
    seed: Seed = 0,
) -> None:
    """Change a noun, a number or a relation of every caption."""
    if kind and "noun" not in kind:
        refuse(context, ("frequency", "synonyms"), "where nouns are changed, with --kind noun")
    from counterfoil.negatives.generated import ROWS
    from counterfoil.papers.tags.stage import RuleConfig, describe_generation, rewrite_captions

    config = RuleConfig(
        split=split,
        kinds=tuple(kind or ()),
        most=most,
        frequency=frequency,
        synonyms=synonyms,
        seed=seed,
    )
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
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Folder of a model with a masked language model: UNITER, ….")
    ],
    data: DataName,
    folder: NewFolder,
    split: Split = "train",
    phrases: Phrases = "rules",
    masks: Annotated[int, typer.Option(min=1, help="Maskings of each caption (K).")] = 20,
    refills: Annotated[int, typer.Option(min=1, help="Refills of each masking (L).")] = 20,
    keep: Annotated[
        int, typer.Option(min=1, help="Hardest foils to keep of each caption (m).")
    ] = 10,
    temperature: Annotated[float, typer.Option(help="Sampling temperature of words.")] = 1.5,
    singles: Singles = "without phrases",
    rule: Rules = None,
    guide: Guide = None,
    encoder: Encoder = None,
    slack: Annotated[
        float, typer.Option(help="Score below the original's that still counts as true.")
    ] = 0.0,
    seed: Seed = 0,
    resume: Resume = False,
    minutes: Minutes = None,
) -> None:
    """Change phrases of every caption with a model that sees the image (TAGS)."""
    if encoder is None:
        refuse_without(context, "guide", ("slack",))
    from counterfoil.negatives.generated import ROWS
    from counterfoil.papers.tags.stage import Generate, describe_generation, generate_captions

    rules: Sequence[str] = rule or ("captions",)
    stage = Generate(
        name="written",
        using=model,
        split=split,
        parser=phrase_parser(phrases),
        masks=masks,
        refills=refills,
        keep=keep,
        temperature=temperature,
        singles=cast("SinglesMode", singles),  # the stage checks both
        rules=cast("tuple[Rule, ...]", () if tuple(rules) == (NO_RULE,) else tuple(rules)),
        guide=guide,
        encoder=encoder,
        slack=slack,
        seed=seed,
    )
    with resumable_work(folder, "writing", resume=resume, minutes=minutes) as minutes_left:
        dataset = data_source(data).split(split)
        store = generate_captions(stage, dataset, folder, left=minutes_left)
    output(f"{describe_generation(store, dataset)}: {folder / ROWS}")
