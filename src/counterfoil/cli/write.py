"""``counterfoil write rules`` and ``counterfoil write tags``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

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
    refuse,
    refuse_without,
)
from counterfoil.core import distributed
from counterfoil.core.config import Config, config, unknown_name
from counterfoil.core.console import info, output
from counterfoil.core.io import ensure_absent, ensure_writable_folder
from counterfoil.data.phrases import PhraseFile, PhraseParser, RulePhraseParser, SpacyPhraseParser
from counterfoil.negatives.generation.inputs import Rule
from counterfoil.negatives.generation.inputs import Singles as Singles_inputs
from counterfoil.negatives.generation.store import ROWS, GeneratedStore
from counterfoil.pipelines.pipeline import Generate, RuleConfig
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.stages.generate import (
    describe_generation,
    generate_captions,
    rewrite_captions,
)
from counterfoil.pipelines.stages.mine import partial_folder
from counterfoil.pipelines.state import RunStopped

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
    from counterfoil.pipelines.pipeline import RuleConfig
    from counterfoil.pipelines.run import DataSource

    pass

    if kind and "noun" not in kind:
        refuse(context, ("frequency", "synonyms"), "where nouns are changed, with --kind noun")
    plan = RuleConfig(
        split=split,
        kinds=tuple(kind or ()),
        most=most,
        frequency=frequency,
        synonyms=synonyms,
        seed=seed,
    )
    write_rules(DataSource(data, images=images, decisions=decisions), plan, out)


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
    from counterfoil.pipelines.run import DataSource

    pass

    if encoder is None:
        refuse_without(context, "guide", ("slack",))
    stage = generator_settings(
        model,
        split,
        phrases=phrases,
        masks=masks,
        refills=refills,
        keep=keep,
        temperature=temperature,
        singles=singles,
        rules=rule or ("captions",),
        guide=guide,
        encoder=encoder,
        slack=slack,
        seed=seed,
    )
    source = DataSource(data, features, images, decisions)
    if not write_tags(stage, source, out, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)


# Captions that are written and stored, for any model to train on and to be asked.


NONE = "none"  # no rule


def write_rules(source: DataSource, plan: RuleConfig, out: Path) -> GeneratedStore:
    """Write foils of a split by rule; the nouns come from the training split alone.

    Raises:
        ValueError: `out` exists or cannot be written, there is no such split or none to train on,
            or a setting is not possible.
    """
    ensure_absent(out, "a new folder with --out")
    ensure_writable_folder(out)
    dataset = source.split(plan.split)
    store = rewrite_captions(plan, dataset, source.split("train"), out)
    output(f"{describe_generation(store, dataset)}: {out / ROWS}")
    return store


def generator_settings(
    model: str,
    split: str,
    *,
    phrases: str,
    masks: int,
    refills: int,
    keep: int,
    temperature: float,
    singles: str,
    rules: Sequence[str],
    guide: str | None,
    encoder: str | None,
    slack: float,
    seed: int,
) -> Generate:
    """The stage that a command line asks for; see `Generate`.

    Raises:
        ValueError: something unknown, or a number that is not possible.
    """
    return Generate(
        name="written",
        using=model,
        split=split,
        parser=_parser(phrases),
        masks=masks,
        refills=refills,
        keep=keep,
        temperature=temperature,
        singles=cast(Singles_inputs, singles),  # the stage checks both
        rules=cast(tuple[Rule, ...], () if tuple(rules) == (NONE,) else tuple(rules)),
        guide=guide,
        encoder=encoder,
        slack=slack,
        seed=seed,
    )


def write_tags(
    stage: Generate,
    source: DataSource,
    out: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
) -> bool:
    """Let a frozen model write foils of a split, and store them.

    Args:
        stage: who writes, and how, with names that `load_model` opens.
        source: from which data.
        out: the new folder.
        resume: go on with what was stopped; without it such a writing is refused.
        minutes: stop by itself after this long.

    Returns:
        Whether all is written; False when it was stopped first.

    Raises:
        ValueError: `out` exists, or models and data do not fit.
    """
    began = time.monotonic()
    ensure_absent(out, "a new folder with --out")
    ensure_writable_folder(out)
    if partial_folder(out).exists() and not resume:
        raise ValueError(
            f"{partial_folder(out)} holds a writing that was stopped; add --resume to go on with "
            f"it, or "
            "delete it"
        )
    distributed.init()
    distributed.barrier()  # nobody begins before everybody has looked
    dataset = source.split(stage.split)

    def left() -> float | None:
        return None if minutes is None else minutes - (time.monotonic() - began) / 60

    try:
        store = generate_captions(stage, dataset, out, left=left)
    except RunStopped as stopped:
        info(f"stopped, {stopped}; add --resume to go on")
        return False
    output(f"{describe_generation(store, dataset)}: {out / ROWS}")
    return True


def _parser(phrases: str) -> Config[PhraseParser]:
    """What finds phrases: by rule, by spaCy, or what a file says."""
    if phrases.endswith(".json"):
        return config(PhraseFile, path=phrases)
    if phrases == "spacy":
        return config(SpacyPhraseParser)
    if phrases != "rules":
        known = ["rules", "spacy", "a file that ends in .json"]
        raise ValueError(unknown_name(phrases, known, "a way to find phrases"))
    return config(RulePhraseParser)
