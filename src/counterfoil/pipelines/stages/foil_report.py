"""Captions told from foils, by the first and the last model of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from counterfoil.evaluation.foils.measures import compare_foils, item_margins, score_foils
from counterfoil.evaluation.foils.sets import FoilSet, foils_of_scenes
from counterfoil.evaluation.results import signed
from counterfoil.model import load_model
from counterfoil.pipelines.stages.evaluate import Evaluate
from counterfoil.pipelines.stages.select import both_ends
from counterfoil.pipelines.state import RunContext
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    PageItem,
    TableBlock,
    thumbnail,
)

if TYPE_CHECKING:
    from counterfoil.pipelines.stages.compare import Compare

FOIL_CARDS = 8


class FoilBlocks(NamedTuple):
    """Accuracy on foils of the first and the last model of a report."""

    sentence: str
    table: TableBlock
    cards: CardSection


def compare_on_foils(context: RunContext, stage: Compare, titles: tuple[str, str]) -> FoilBlocks:
    """Accuracies by kind of foil with paired intervals, and examples that were learnt.

    Args:
        context: of the run.
        stage: the comparison.
        titles: of the first and the last model.
    """
    first, *_, last = (context.stage(name, Evaluate) for name in stage.results)
    dataset = context.split(first.split)
    foils = foils_of_scenes(dataset.subset(torch.arange(min(stage.foils, len(dataset)))), seed=0)
    scores = []
    for evaluation in (first, last):
        models = [load_model(str(context.place(name))) for name in evaluation.using]
        scores.append(score_foils([model.embed(foils.dataset) for model in models], foils))
    changes = compare_foils(foils, scores[0], scores[1])
    every = changes[-1]
    rows = tuple(
        (
            change.of,
            f"{change.items:,}",
            f"{change.before:.1f}",
            f"{change.after:.1f}",
            f"{signed(change.after - change.before)} ({both_ends(change.interval)})",
        )
        for change in changes
    )
    note = (
        f"{foils.name}, {len(foils.dataset):,} images, seed {foils.seed}: percent of captions that "
        "score above the same caption with one detail made false; ties are wrong; guessing gives "
        "50. In brackets: 95 % interval of the difference, images drawn anew with all their "
        "captions."
    )
    title = "Captions against foils"
    table = TableBlock(title, ("Changed", "items", *titles, "difference"), rows, note)
    sentence = (
        f"Of {every.items:,} captions it scores {every.after:.1f} % above the same caption with a "
        f"detail made false, the other {every.before:.1f} % (95 % interval of the difference "
        f"{both_ends(every.interval)})."
    )
    return FoilBlocks(sentence, table, _learnt_foils(foils, titles, scores))


def _learnt_foils(foils: FoilSet, titles: tuple[str, str], scores: Sequence[Tensor]) -> CardSection:
    """Cards of items that the first model gets wrong and the last one right."""
    before, after = (item_margins(foils, model_scores) for model_scores in scores)
    learnt = ((before <= 0) & (after > 0)).nonzero().squeeze(1)
    lost = int(((before > 0) & (after <= 0)).sum())
    order = learnt[(after - before)[learnt].argsort(descending=True, stable=True)]
    cards: list[ExampleCard] = []
    images = set[int]()
    pictures = foils.dataset.pictures
    for row in order.tolist():
        item = foils.items[row]
        if len(cards) == FOIL_CARDS or item.images[0] in images:
            continue
        images.add(item.images[0])
        columns = []
        for title, model_scores in zip(titles, scores, strict=True):
            own = model_scores[2 * row : 2 * row + 2].tolist()  # each item has one foil
            ranked = sorted((0, 1), key=lambda at: (-own[at], -at))
            captions = tuple(
                PageItem(foils.dataset.texts[item.texts[at]], None, place, at == 0, own[at])
                for place, at in enumerate(ranked, 1)
            )
            columns.append(CardColumn(title, "", captions))
        picture = thumbnail(pictures.open(item.images[0])) if pictures else None
        query = PageItem(foils.dataset.image_ids[item.images[0]], picture)
        cards.append(ExampleCard(query, f"changed: {item.category}", tuple(columns)))
    note = (
        f"{len(learnt):,} of {len(foils):,} foils are above their caption by {titles[0]} and below "
        f"it by {titles[1]}; {lost:,} the other way round. The largest gains of different images."
    )
    return CardSection("Captions against foils, before and after", note, tuple(cards))
