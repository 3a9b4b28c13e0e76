"""Training of a model on a loss, with negatives of any source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, final

from counterfoil.core import registry
from counterfoil.core.config import Config, FromStage, fill_stages
from counterfoil.core.console import info
from counterfoil.data.dataset import Positives
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sources import NegativeSource, PlannedTraining, having, with_asked
from counterfoil.pipelines.stages.fitting import (
    ModelStage,
    best_epoch_note,
    build_for_training,
    check_model,
    check_pictures,
    dev_measure,
    is_finished,
    limit_minutes,
    remove_checkpoints,
    save_result,
)
from counterfoil.pipelines.state import RunContext
from counterfoil.training.config import TrainConfig
from counterfoil.training.mined import Mined, MinedTeacher
from counterfoil.training.step import check_sources, check_tiled, check_vectors, source_names
from counterfoil.training.trainer import sampler_of, small_dev, train_network


@final
@dataclass(frozen=True, kw_only=True)
class Train(ModelStage):
    """Train a model on the training split; the best epoch on dev is saved. Writes a model folder.

    Attributes:
        objective: the loss.
        plan: batches, epochs, optimiser, schedule, seed.
        positives: which pairs are no negatives: "text", "id" as in the papers, or "diagonal" as in
            their code, see `counterfoil.data.dataset.ImageTextDataset`.
        word_vectors: file in GloVe's text format that word embeddings begin with, see
            `counterfoil.data.word_vectors`.
        sources: of negatives and of targets, see `counterfoil.negatives.sources`, such as
            ``config(Mined, negatives=from_stage("lists"))``, or a folder in place of the stage. A
            stage of targets is a source by itself: ``from_stage("targets")``.
    """

    kind: ClassVar[str] = "train"
    takes: ClassVar[Mapping[str, str]] = {"start": "train", "sources": "guide"}
    # sources that ``--set`` may add, by name in the registry; imported when they are
    addable: ClassVar[tuple[str, ...]] = (
        "Mined",
        "MinedBatches",
        "MinedNeighbours",
        "MinedTeacher",
        "TopScoringMiner",
        "GeneratedCaptions",
        "MomentumQueue",
        "Mask",
    )
    objective: Config[WeightedSum]
    plan: TrainConfig = TrainConfig()
    positives: Positives = "text"
    word_vectors: str | None = None
    sources: tuple[Config[NegativeSource] | FromStage, ...] = ()

    def with_terms(self, **terms: tuple[float, Loss]) -> Train:
        """The training with further weighted terms in its loss."""
        own = self.objective.arguments["terms"]
        return replace(self, objective=self.objective.replace(terms={**own, **terms}))

    def with_sources(self, *more: Config[NegativeSource] | FromStage) -> Train:
        """The training with further sources of negatives, behind its own."""
        return replace(self, sources=(*self.sources, *more))

    def with_source_of(self, key: str) -> Train:
        """The training with the source of `addable` that a setting's key names and it lacks."""
        name, dot, _ = key.removeprefix("sources.").partition(".")
        names = {addable.lower(): addable for addable in self.addable}
        if not dot or name not in names:
            return self
        kind = registry.find("source", names[name])
        return self if self.source(kind) else self.with_sources(Config(kind, {}))

    def source(self, kind: type[NegativeSource]) -> Config[NegativeSource] | None:
        """The first of its sources that is made by this class."""
        calls = (source for source in self.sources if isinstance(source, Config))
        return next((call for call in calls if call.make is kind), None)

    def training_details(self, context: RunContext) -> dict[str, Any]:
        details: dict[str, Any] = {"objective": self.objective.build(), "negatives": None}
        for kind in (Mined, MinedTeacher, TopScoringMiner):
            call = self.source(kind)
            if call is None or call.arguments.get("negatives") is None:
                continue
            made = fill_stages(call, lambda stage: str(context.place(stage.name))).build()
            return details | {"negatives": Path(made.negatives), "sampling": made.sampling}
        return details

    def planned_sources(self, context: RunContext) -> tuple[NegativeSource, ...]:
        """The sources on what earlier stages will write, to check them before a run."""
        return self._built(lambda stage: context.recipe.stage(stage.name).planned(context))

    def built_sources(self, context: RunContext, scale: float) -> tuple[NegativeSource, ...]:
        """The sources of a model with this `RetrievalModel.loss_scale`, on what is there."""
        return self._built(lambda stage: context.recipe.stage(stage.name).result(context, scale))

    def _built(self, find: Callable[[FromStage], Any]) -> tuple[NegativeSource, ...]:
        found = cache(find)  # a loss and a mask may ask one and the same source of targets
        built = []
        for source in fill_stages(self.sources, found):
            try:
                built.append(source.build() if isinstance(source, Config) else source)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{self.name!r}, {source.make.__qualname__}: {error}") from error
        return tuple(built)

    def check(self, context: RunContext) -> None:
        """Refuse data and earlier stages that do not fit the loss or the sources."""
        if len(context.train) < 2:
            raise ValueError(
                f"the train split of {context.train.name} has {len(context.train)} image; a model "
                "learns from the other images and captions as negatives, so give it at least 2"
            )
        context.train.with_positives(self.positives).check_wrong_pairs()
        self.check_sources(context)
        check_pictures(context, self)
        check_model(context, self)
        check_word_vectors(self)

    def check_sources(self, context: RunContext) -> None:
        """Refuse sources that do not fit each other, the loss or the data."""
        loss, sources = self.objective.build(), self.planned_sources(context)
        training = PlannedTraining(
            data=context.train,
            loss=loss,
            images=_image_inputs(context, self),
            texts=self.processor.texts,
            processor=self.planned(context).processor,
            batches=len(sampler_of(self.plan, context.train)),
        )
        try:
            check_sources(loss, None, sources)
            for source in with_asked(sources):
                source.check_plan(training)
        except ValueError as error:
            raise ValueError(f"{self.name!r}: {error}") from error
        made = self.model.make
        known = made if isinstance(made, type) and issubclass(made, RetrievalModel) else None
        if known:
            check_vectors(loss, known)
        if not self.plan.batch:
            check_tiled(loss, known, source_names(sources))

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Train the model and save it with its processor."""
        if resume and is_finished(context, self):
            remove_checkpoints(context, self)
            return
        vectors = Path(self.word_vectors) if self.word_vectors else None
        model = build_for_training(context, self, vectors)
        train = context.train.with_positives(self.positives)
        place = context.place(self.name)
        network, data = model.model, model.process(train)
        sources = self.built_sources(context, network.loss_scale)
        # on stored vectors, but not where a source may make new items
        if isinstance(network, FrozenWithAdapters) and not having(sources, "propose"):
            network = network.head
        for source in with_asked(sources):
            source.check(network, train)
        plan = small_dev(self.plan, context.dev) if context.dev else self.plan
        fitted = train_network(
            limit_minutes(plan, context.left()),
            network,
            self.objective.build(),
            data,
            folder=place,
            sources=sources,
            evaluate=dev_measure(context, self, model),
            run=context.digests[self.name],
            resume=resume,
        )
        save_result(context, self, model, fitted)
        info(f"{self.name}: {best_epoch_note(fitted, 'RSum')}, {fitted.seconds:,.0f} s, {place}")


def _image_inputs(context: RunContext, stage: Train) -> str:
    """Form of a stage's image inputs, in words."""
    features = context.train.features
    if stage.processor.images == "pixels":
        return "pixels"
    if features is None:
        return "no features"
    return "regions" if features.regions > 1 else "one vector an image"


def check_word_vectors(stage: Train) -> None:
    """Refuse word vectors that do not exist or that no model would read."""
    if stage.word_vectors is None:
        return
    if stage.start:
        raise ValueError(
            f"{stage.name!r} starts from {stage.start!r} and keeps its word embeddings; set "
            f"word_vectors of {stage.start!r} alone"
        )
    if stage.processor.texts != "words":
        raise ValueError(
            f"{stage.name!r} reads texts with {stage.processor.texts!r} and has no vocabulary of "
            "words; leave word_vectors out"
        )
    if not Path(stage.word_vectors).is_file():
        raise ValueError(
            f"{stage.word_vectors} is no file; set {stage.name}.word_vectors to word vectors in "
            "GloVe's text format, such as glove.840B.300d.txt"
        )
