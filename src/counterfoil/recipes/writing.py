"""Captions that are written and stored, for any model to train on and to be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from counterfoil.corpus.foil_rules import KINDS
from counterfoil.files import check_folder
from counterfoil.negatives.rule_writer import RuleWriter, frequent_nouns
from counterfoil.negatives.written_store import ROWS, WrittenStore
from counterfoil.recipes.run import Source
from counterfoil.recipes.show import say


@final
@dataclass(frozen=True, slots=True)
class RulePlan:
    """What rules are to write.

    Attributes:
        split: whose captions are changed.
        kinds: see `RuleWriter`; () for all.
        most: foils of a kind that are kept of each caption.
        frequency: how often a noun stands in the training captions; see `frequent_nouns`.
        synonyms: which nouns may name the same.
        seed: of the choice among all foils.
    """

    split: str = "train"
    kinds: tuple[str, ...] = ()
    most: int = 5
    frequency: int | None = None
    synonyms: str = "list"
    seed: int = 0


def write_rules(source: Source, plan: RulePlan, out: Path) -> WrittenStore:
    """Write foils of a split by rule; the nouns come from the training split alone.

    Raises:
        ValueError: `out` exists or cannot be written, there is no such split or none to train on,
            or a setting is not possible.
    """
    if out.exists():
        raise ValueError(f"{out} exists and is left alone; name a new folder with --out")
    check_folder(out)
    corpus = source.split(plan.split)
    nouns = frequent_nouns(source.split("train").texts, at_least=plan.frequency)
    kinds = plan.kinds or KINDS
    writer = RuleWriter(
        nouns=nouns, kinds=kinds, most=plan.most, synonyms=plan.synonyms, seed=plan.seed
    )
    store = WrittenStore.write(
        out,
        writer.foils(corpus),
        corpus,
        writer="rules (VSE-C)",
        settings={
            "kinds": kinds,
            "most": plan.most,
            "synonyms": plan.synonyms,
            "frequency": plan.frequency,
            "nouns": len(nouns),
        },
        seed=plan.seed,
    )
    told = ", ".join(f"{count:,} {kind}" for kind, count in store.manifest.counts.items())
    say(f"{len(store):,} foils of {len(corpus.texts):,} captions ({told or 'none'}): {out / ROWS}")
    return store
