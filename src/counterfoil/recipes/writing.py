"""Captions that are written and stored, for any model to train on and to be asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from counterfoil import world
from counterfoil.core.console import info, output
from counterfoil.data.phrases import PhraseFile, PhraseParser, RulePhraseParser, SpacyPhraseParser
from counterfoil.files import check_folder, check_new
from counterfoil.negatives.candidates import Rule
from counterfoil.negatives.masks import Singles
from counterfoil.negatives.written_store import ROWS, WrittenStore
from counterfoil.recipes.context import Stopped
from counterfoil.recipes.mining import partial
from counterfoil.recipes.run import Source
from counterfoil.recipes.tailoring import rewritten, told, written
from counterfoil.recipes.writes import RulePlan, Write
from counterfoil.spec import Spec, of, unknown

NONE = "none"  # no rule


def write_rules(source: Source, plan: RulePlan, out: Path) -> WrittenStore:
    """Write foils of a split by rule; the nouns come from the training split alone.

    Raises:
        ValueError: `out` exists or cannot be written, there is no such split or none to train on,
            or a setting is not possible.
    """
    check_new(out, "a new folder with --out")
    check_folder(out)
    corpus = source.split(plan.split)
    store = rewritten(plan, corpus, source.split("train"), out)
    output(f"{told(store, corpus)}: {out / ROWS}")
    return store


def asked(
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
) -> Write:
    """The stage that a command line asks for; see `Write`.

    Raises:
        ValueError: something unknown, or a number that is not possible.
    """
    return Write(
        name="written",
        using=model,
        split=split,
        parser=_parser(phrases),
        masks=masks,
        refills=refills,
        keep=keep,
        temperature=temperature,
        singles=cast(Singles, singles),  # the stage checks both
        rules=cast(tuple[Rule, ...], () if tuple(rules) == (NONE,) else tuple(rules)),
        guide=guide,
        encoder=encoder,
        slack=slack,
        seed=seed,
    )


def write_tags(
    stage: Write,
    source: Source,
    out: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
) -> bool:
    """Let a frozen model write foils of a split, and store them.

    Args:
        stage: who writes, and how, with names that `open_model` opens.
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
    check_new(out, "a new folder with --out")
    check_folder(out)
    if partial(out).exists() and not resume:
        raise ValueError(
            f"{partial(out)} holds a writing that was stopped; add --resume to go on with it, or "
            "delete it"
        )
    world.join()
    world.wait()  # nobody begins before everybody has looked
    corpus = source.split(stage.split)

    def left() -> float | None:
        return None if minutes is None else minutes - (time.monotonic() - began) / 60

    try:
        store = written(stage, corpus, out, left=left)
    except Stopped as stopped:
        info(f"stopped, {stopped}; add --resume to go on")
        return False
    output(f"{told(store, corpus)}: {out / ROWS}")
    return True


def _parser(phrases: str) -> Spec[PhraseParser]:
    """What finds phrases: by rule, by spaCy, or what a file says."""
    if phrases.endswith(".json"):
        return of(PhraseFile, path=phrases)
    if phrases == "spacy":
        return of(SpacyPhraseParser)
    if phrases != "rules":
        known = ["rules", "spacy", "a file that ends in .json"]
        raise ValueError(unknown(phrases, known, "a way to find phrases"))
    return of(RulePhraseParser)
