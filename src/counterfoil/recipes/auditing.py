"""``counterfoil audit``: what is odd about a data set, on a page to go through, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.decisions import Decision, beside, read_decisions
from counterfoil.evaluate.audit_page import AuditPage, Section, render
from counterfoil.files import check_folder, check_new, write_json, write_text
from counterfoil.negatives.duplicates import check_least
from counterfoil.negatives.store import NegativeStore, read_manifest
from counterfoil.recipes.auditing_data import Exhibit, alike, repeated, sound, wordless
from counterfoil.recipes.auditing_models import (
    check_ranks,
    doubted,
    false_negatives,
    misfits,
    worded,
)
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source
from counterfoil.recipes.show import console, say
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import terminal_table

PAGE, NUMBERS = "audit.html", "audit.json"


@final
@dataclass(frozen=True, slots=True)
class AuditPlan:
    """How to look.

    Attributes:
        models: whose mean score ranks captions and judges negatives; none for no scores.
        explainer: says which words of a caption are wrong; "" for nobody.
        negatives: folder of mined lists to look through; None for none.
        split: whose captions models judge; "all" is everything.
        near: cosine from which two pictures are nearly the same.
        alike: TF-IDF cosine that makes a mined text suspect.
        top: how many finds of each kind are shown.

    Raises:
        ValueError: a cosine out of range.
    """

    models: tuple[str, ...] = ()
    explainer: str = ""
    negatives: Path | None = None
    split: str = "all"
    near: float = 0.97
    alike: float = 0.6
    top: int = 100

    def __post_init__(self) -> None:
        check_least("near", self.near)
        check_least("alike", self.alike)


def audit_data(source: Source, plan: AuditPlan, folder: Path) -> tuple[Section, ...]:
    """Look a data set over; write ``audit.html`` to go through and ``audit.json``.

    Args:
        source: the data, as decided so far.
        plan: how to look.
        folder: where both go.

    Returns:
        What was found.

    Raises:
        ValueError: the folder holds an audit, or models, lists and data do not fit.
    """
    check_folder(folder / PAGE)
    for name in (PAGE, NUMBERS):
        check_new(folder / name, "a new folder with --folder")
    world.join()
    corpus, earlier = source.open(), _earlier(source)
    models = [open_model(name) for name in plan.models]
    explainer = open_model(plan.explainer) if plan.explainer else None
    store = _store(source, plan)
    _check(source, models, explainer, plan)
    whole, unreadable = sound(corpus)
    found = [unreadable] if unreadable else []
    found += _by_data(Exhibit(whole, plan.top), plan)
    found += _by_models(whole, plan, models, explainer)
    if store is not None and plan.negatives is not None:
        mined = Exhibit(source.split(store.manifest.split), plan.top)
        found.append(false_negatives(mined, store, models, alike=plan.alike))
    if world.rank() == 0:
        _write(corpus, plan, tuple(found), earlier, folder)
    return tuple(found)


def _earlier(source: Source) -> tuple[Decision, ...]:
    path = source.decisions or beside(source.data)
    return read_decisions(path) if path is not None else ()


def _check(source: Source, models: list[Model], explainer: Model | None, plan: AuditPlan) -> None:
    """Refuse what could be asked of nobody, before anything long is done."""
    source.split(plan.split)
    if explainer is not None and not models:
        check_ranks(explainer)


def _store(source: Source, plan: AuditPlan) -> NegativeStore | None:
    """The lists, refused before anything long is done."""
    if plan.negatives is None:
        return None
    corpus = source.split(read_manifest(plan.negatives).split)
    return NegativeStore.open(plan.negatives, fingerprint=corpus.fingerprint)


def _by_data(exhibit: Exhibit, plan: AuditPlan) -> Iterator[Section]:
    yield from alike(exhibit, plan.near)
    for section in (wordless(exhibit), repeated(exhibit)):
        if section is not None:
            yield section


def _by_models(
    whole: Corpus, plan: AuditPlan, models: list[Model], explainer: Model | None
) -> Iterator[Section]:
    if not models and explainer is None:
        return
    exhibit = Exhibit(worded(whole if plan.split == "all" else whole.split(plan.split)), plan.top)
    if models:
        yield misfits(exhibit, models, explainer)
    elif explainer is not None:
        yield doubted(exhibit, explainer)


def _write(
    corpus: Corpus,
    plan: AuditPlan,
    found: tuple[Section, ...],
    earlier: tuple[Decision, ...],
    folder: Path,
) -> None:
    page = AuditPage(
        title=f"Audit of {corpus.name}",
        headline=_headline(found),
        protocol=_protocol(corpus, plan),
        sections=found,
        earlier=earlier,
        key=f"{corpus.name} {corpus.fingerprint}",
        provenance=made_now(),
    )
    rows = tuple((part.title, f"{part.found:,}", f"{part.shown:,}") for part in found)
    console.print(terminal_table(TableBlock("", ("", "found", "on the page"), rows), page.protocol))
    write_text(folder / PAGE, render(page))
    asked: dict[str, Any] = asdict(plan) | {"negatives": str(plan.negatives or "")}
    write_json(
        folder / NUMBERS,
        {
            "data": corpus.name,
            "fingerprint": corpus.fingerprint,
            "plan": asked,
            "protocol": page.protocol,
            "decided": [decision.plain() for decision in earlier],
            "found": {part.kind: part.plain() for part in found},
            "provenance": asdict(page.provenance),
        },
    )
    say(page.headline)
    say(f"{folder / PAGE}, {folder / NUMBERS}")


def _headline(found: tuple[Section, ...]) -> str:
    told = [f"{part.title.lower()}: {part.found:,}" for part in found if part.found]
    if not told:
        return "Nothing odd was found."
    return f"{'; '.join(told).capitalize()}."


def _protocol(corpus: Corpus, plan: AuditPlan) -> str:
    models = " + ".join(plan.models)
    asked = f"{corpus.name} {plan.split}" if plan.split != "all" else "all splits"
    parts = [
        f"{corpus.name}: {len(corpus):,} images, {len(corpus.texts):,} texts",
        f"captions of {asked} ranked by {models}" if models else "",
        f"words judged by {plan.explainer}" if plan.explainer else "",
        f"negatives of {plan.negatives}" if plan.negatives else "",
        "" if models or plan.explainer else "no model was asked",
        f"decided before: {corpus.decided}" if corpus.decided else "",
    ]
    return "; ".join(part for part in parts if part)
