"""Written captions on which two models differ, with words doubted and corrected (Figure 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.core.console import output
from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.scored import score_pairs
from counterfoil.evaluate.analysis_page import Rows
from counterfoil.evaluate.cases import differences, picked
from counterfoil.evaluate.cases_page import Case, CaseGroup, CasesPage, Pair, render
from counterfoil.evaluate.gallery import Shown, thumbnail
from counterfoil.evaluate.table import plain
from counterfoil.evaluation.explain import (
    DOUBT_THRESHOLD,
    describe_missing_heads,
    explain,
    has_doubt_head,
    text_processor,
)
from counterfoil.evaluation.explanation_page import DOUBT_NOTE, GAIN_NOTE, ExplainedCard
from counterfoil.files import write_json, write_text
from counterfoil.recipes.analyses.results import check_out
from counterfoil.recipes.analyses.scorers import Scorer, open_scorers
from counterfoil.recipes.analyses.stores import Stored, open_stores
from counterfoil.recipes.model import Model
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source
from counterfoil.recipes.show import console

KINDS = "caption", "written", "corrected"


@final
@dataclass(frozen=True, slots=True)
class CasesPlan:
    """What to show.

    Attributes:
        count: cases of each kind.
        sample: written captions that both models score; drawn where there are more.
        threshold: doubt from which a word counts as wrong.
        seed: of the draws.
    """

    count: int = 3
    sample: int = 2000
    threshold: float = DOUBT_THRESHOLD
    seed: int = 0


def cases(
    names: Sequence[str], folder: Path, source: Source, plan: CasesPlan, out: Path
) -> tuple[CaseGroup, ...]:
    """Show captions, what was written of them and the correction, with the scores of two models.

    Args:
        names: of the two models; joined by ``+``, an ensemble. The one that doubts words explains,
            of two that do the second.
        folder: of written captions.
        source: the data.
        plan: what to show.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: not two models, the page exists, or models, captions and data do not fit.
    """
    if len(names) != 2:
        raise ValueError(f"{len(names)} models are given, but the cases of two are shown")
    check_out(out)
    world.join()
    (stored,) = open_stores([folder], source)
    scorers = open_scorers(names)
    for model in (model for scorer in scorers for model in scorer.models):
        text_processor(model)
    explains = _explains(scorers)
    rng = torch.Generator().manual_seed(plan.seed)
    rows = torch.randperm(len(stored.foils), generator=rng)[: plan.sample].sort().values.tolist()
    found = _groups(stored, rows, scorers, explains, plan)
    page = _page(found, stored, len(rows), scorers, explains, plan)
    _show(page, found, plan, out)
    return found


def _explains(scorers: Sequence[Scorer]) -> Model:
    """The model whose words are shown."""
    single = [scorer.models[0] for scorer in reversed(scorers) if len(scorer.models) == 1]
    if not single:
        raise ValueError("two ensembles are given, and an ensemble cannot explain; give one model")
    return next((model for model in single if has_doubt_head(model.matcher)), single[0])


def _groups(
    stored: Stored, rows: Sequence[int], scorers: Sequence[Scorer], model: Model, plan: CasesPlan
) -> tuple[CaseGroup, ...]:
    foils = [stored.foils[row] for row in rows]
    images = torch.tensor([stored.images[row] for row in rows])
    sentences = [*(foil.caption for foil in foils), *(foil.foil for foil in foils)]
    both = [_scores(s, stored.corpus, images.repeat(2), sentences).view(2, -1) for s in scorers]
    gaps = differences(*(found[0] - found[1] for found in both))
    chosen = picked(gaps, images, plan.count, seed=plan.seed)
    first, second = (scorer.name for scorer in scorers)
    titles = {
        f"For {second}": (
            chosen.second,
            f"Where {second} prefers the caption most, beside {first}.",
        ),
        f"For {first}": (chosen.first, f"Where {first} prefers the caption most, beside {second}."),
        "At random": (chosen.random, "Drawn from all others."),
    }
    groups = []
    for title, (some, note) in titles.items():
        made = [
            (_card(stored, rows[at], model, plan), foils[at].caption, [b[:, at] for b in both])
            for at in some
        ]
        corrected = _corrected(stored.corpus, [card for card, *_ in made], scorers)
        told = tuple(
            Case(card, caption, (_pair(scores, 0), _pair(scores, 1), new))
            for (card, caption, scores), new in zip(made, corrected, strict=True)
        )
        groups += [CaseGroup(title, note, told)] if told else []
    return tuple(groups)


def _scores(scorer: Scorer, corpus: Corpus, images: Tensor, sentences: Sequence[str]) -> Tensor:
    """(N,) of each sentence with its picture."""
    there, place = images.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    asked = replace(
        corpus.subset(there),
        texts=list(sentences),
        text_ids=[f"sentence {row}" for row in range(len(sentences))],
        owner=torch.full((len(sentences),), -1),
        text_features=None,
    )
    order = place.argsort(stable=True)
    found = torch.zeros(len(sentences))
    found[order] = score_pairs(scorer.on(asked), place[order], order)
    return found


def _card(stored: Stored, row: int, model: Model, plan: CasesPlan) -> ExplainedCard:
    foil, corpus = stored.foils[row], stored.corpus
    found = explain(model, foil.image, foil.foil, dataset=corpus, threshold=plan.threshold)
    picture = thumbnail(corpus.pictures.open(stored.images[row])) if corpus.pictures else None
    return ExplainedCard(Shown(foil.image, picture), found, plan.threshold)


def _corrected(
    corpus: Corpus, cards: Sequence[ExplainedCard], scorers: Sequence[Scorer]
) -> list[Pair | None]:
    """What both models think of each corrected caption; None where there is none."""
    names = {name: row for row, name in enumerate(corpus.image_ids)}
    some = [
        (place, card.explanation.corrected.text)
        for place, card in enumerate(cards)
        if card.explanation.corrected
    ]
    out: list[Pair | None] = [None] * len(cards)
    if some:
        images = torch.tensor([names[cards[place].image.text] for place, _ in some])
        found = [_scores(one, corpus, images, [text for _, text in some]) for one in scorers]
        for at, (place, _) in enumerate(some):
            out[place] = float(found[0][at]), float(found[1][at])
    return out


def _pair(scores: Sequence[Tensor], side: int) -> Pair:
    return float(scores[0][side]), float(scores[1][side])


def _page(
    groups: tuple[CaseGroup, ...],
    stored: Stored,
    scored: int,
    scorers: Sequence[Scorer],
    model: Model,
    plan: CasesPlan,
) -> CasesPage:
    first, second = (scorer.name for scorer in scorers)
    doubts = has_doubt_head(model.matcher)
    explains = next(s.name for s in scorers if any(one is model for one in s.models))
    parts = [
        f"{stored.corpus.name} {stored.corpus.part}; {stored.said()}, {scored:,} of them scored",
        *(f"{scorer.name}: {scorer.said()}" for scorer in scorers),
        f"words by {explains}",
        describe_missing_heads(model),
        "largest differences between the models' margins, caption less written, each divided by "
        "their standard deviation; one case a picture",
        f"seed {plan.seed}",
    ]
    return CasesPage(
        title=f"Cases of {first} and {second}",
        headline=f"How {first} and {second} score captions, what was written of them, and the "
        "correction.",
        protocol="; ".join(part for part in parts if part),
        note=DOUBT_NOTE if doubts else GAIN_NOTE,
        measure="doubt" if doubts else "score without it",
        models=(first, second),
        groups=groups,
        provenance=made_now(seed=plan.seed),
    )


def _show(page: CasesPage, groups: Sequence[CaseGroup], plan: CasesPlan, out: Path) -> None:
    """The terminal, the page and the numbers; the first process does."""
    if world.rank():
        return
    for group in groups:
        rows = tuple(row for case in group.cases for row in _rows(case))
        console.print(plain(Rows(group.title, ("", "sentence", *page.models), rows, group.note)))
    output(f"{page.protocol}.")
    numbers = {
        "title": page.title,
        "protocol": page.protocol,
        "provenance": asdict(page.provenance),
        "models": list(page.models),
        "seed": plan.seed,
        "groups": [
            {"title": group.title, "cases": [_plain(case) for case in group.cases]}
            for group in groups
        ],
    }
    write_json(out.with_suffix(".json"), numbers)
    write_text(out, render(page))
    output(f"{out}, {out.with_suffix('.json')}")


def _rows(case: Case) -> Iterator[tuple[str, ...]]:
    said = "".join(
        f"{part.text} [{part.number}]" if part.marked else part.text for part in case.card.parts
    )
    corrected = case.card.explanation.corrected
    texts = case.caption, said, corrected.text if corrected else ""
    for kind, text, pair in zip(KINDS, texts, case.scores, strict=True):
        if pair:
            yield kind, text, *(f"{score:.3f}".replace("-", "−") for score in pair)


def _plain(case: Case) -> dict[str, Any]:
    scores = dict(zip(KINDS, (list(pair) if pair else None for pair in case.scores), strict=True))
    return {
        "image": case.card.image.text,
        "caption": case.caption,
        "written": case.card.explanation.to_dict(),
        "scores": scores,
    }
