"""Lists from a denotation graph as a stage of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from counterfoil.core import distributed
from counterfoil.core.config import Config
from counterfoil.data.phrases import PhraseParser
from counterfoil.papers.compared.graph import graph_negatives
from counterfoil.pipelines.stages.mine import ListsStage, report_lists
from counterfoil.pipelines.state import RunContext


@final
@dataclass(frozen=True, kw_only=True)
class GraphLists(ListsStage):
    """List negatives from the denotation graph of the captions; no model scores. Writes a store.

    Attributes:
        parser: of the captions.
    """

    parser: Config[PhraseParser]

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Make the graph and save the lists."""
        if distributed.rank() == 0:
            negatives = graph_negatives(
                context.split(self.split).with_positives("id"),  # as the papers list negatives
                texts_per_image=self.texts,
                images_per_text=self.images,
                parser=self.parser.build(),
            )
            negatives.store.check_filled()
            place = context.place(self.name)
            negatives.save(place)
            report_lists(self.name, negatives.store, place)
