"""Guide stages: targets of similarity that a training reads, from teachers or from captions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch

from counterfoil.core import distributed
from counterfoil.core.config import parse_literal
from counterfoil.core.console import info
from counterfoil.core.types import Needs
from counterfoil.data.processor import same_processors
from counterfoil.model import Model, load_model
from counterfoil.negatives.similarity import (
    CaptionSimilarity,
    CaptionSpace,
    LatentSpaceConfig,
    Measure,
    check_captions,
)
from counterfoil.negatives.sources import NegativeSource, PlannedModel, PlannedTraining
from counterfoil.negatives.teachers import (
    FrozenTeacher,
    TargetStore,
    Teacher,
    TeacherEnsemble,
    TeacherForm,
    TeacherInputs,
    TeacherModel,
    stored_teachers,
    target_weighting,
    write_targets,
)
from counterfoil.pipelines.stages.base import Stage, models_content
from counterfoil.pipelines.state import RunContext, stop_watch
from counterfoil.scoring.embedding_store import StoredPrecision

EVERY = 1.0  # minutes between two checkpoints


@dataclass(frozen=True, kw_only=True)
class GuideStage(Stage):
    """A stage that stores target similarities of images and texts."""

    @abstractmethod
    def result(self, context: RunContext, scale: float) -> NegativeSource:
        """Open the stored targets for a student of this `RetrievalModel.loss_scale`."""

    @abstractmethod
    def planned(self, context: RunContext) -> NegativeSource:
        """A source that gives what the stored targets will."""


@final
class PlannedTargets(NegativeSource):
    """Targets that a stage will store.

    Args:
        gives: what they are.
        check: refuses a student that they do not fit.
    """

    def __init__(
        self, gives: Needs, check: Callable[[PlannedTraining], None] = lambda training: None
    ) -> None:
        self.gives, self._check = gives, check

    def check_plan(self, training: PlannedTraining) -> None:
        self._check(training)


@final
@dataclass(frozen=True, kw_only=True)
class ComputeTargets(GuideStage):
    """Encode the training split with teacher models. Writes a store.

    Attributes:
        using: stages whose models teach; the targets are the mean of all teachers.
        models: saved models that teach too, as `counterfoil.model.load_model` opens them.
        form: "stored" encodes the split once and reads what a batch needs from the disk; "models"
            encodes every batch anew and stores nothing.
        precision: of the stored encodings.
        inputs: inputs of the teachers of a batch: "clean" items of their own, or the "same"
            augmented ones as the student.
        standardise: bring the scores of teachers of different kinds to one mean and deviation.
    """

    kind: ClassVar[str] = "teach"
    takes: ClassVar[Mapping[str, str]] = {"using": "train"}
    using: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    form: TeacherForm = "stored"
    precision: StoredPrecision = "fp32"
    inputs: TeacherInputs = "clean"
    standardise: bool = False

    def __post_init__(self) -> None:
        for value, known, name in (
            (self.form, TeacherForm, "a form of teachers"),
            (self.precision, StoredPrecision, "a precision of stored encodings"),
            (self.inputs, TeacherInputs, "an input of teachers"),
        ):
            parse_literal(known, value, name)
        if self.inputs == "same" and self.form == "stored":
            raise ValueError(
                f"{self.name!r} stores what teachers make of clean items, so they cannot see the "
                "same ones as the student; use form=models, or inputs=clean"
            )
        if self.inputs == "same" and self.models:
            raise ValueError(
                f"{self.models[0]} has a vocabulary and features of its own, so {self.name!r} "
                "cannot show it the same items as the student; set inputs=clean"
            )

    @property
    def lacks_inputs(self) -> bool:
        return not (self.using or self.models)

    def digest_content(self) -> dict[str, Any]:
        return models_content(self.models)

    def check(self, context: RunContext) -> None:
        """Refuse saved teachers that do not exist or cannot read the training split."""
        first = torch.zeros(1, dtype=torch.long)
        for name in self.models:
            processor = load_model(name).process(context.train)
            processor.images(first)
            processor.texts(first)

    def planned(self, context: RunContext) -> NegativeSource:
        return PlannedTargets(TeacherEnsemble.gives, partial(self._check_student, context))

    def _check_student(self, context: RunContext, student: PlannedTraining) -> None:
        """Refuse teachers with another processor where they see the student's inputs."""
        for name in self.using if self.inputs == "same" else ():
            teacher = context.recipe.stage(name).planned(context)
            if isinstance(teacher, PlannedModel) and not same_processors(
                teacher.processor, student.processor, student.data
            ):
                raise ValueError(
                    f"{self.name!r} shows teachers the same items as the student, but {name!r} "
                    f"has another processor; set {self.name}.inputs=clean"
                )

    def result(self, context: RunContext, scale: float) -> NegativeSource:
        """The ensemble of the teachers."""
        return TeacherEnsemble(teachers=_teachers(context, self, scale))

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Store the teachers' encodings of the training split."""
        teachers = []
        for name in self.model_paths(context):
            model = load_model(name)
            teachers.append(TeacherModel(model.model, model.process(context.train), model.source()))
        place = context.place(self.name)
        with stop_watch(context.left(), EVERY) as watch:
            write_targets(
                place, teachers, form=self.form, precision=self.precision, stop=watch.wanted
            )
        many = f"{len(teachers)} teacher{'s' if len(teachers) > 1 else ''}"
        info(f"{self.name}: {many}, {self.form} for {len(context.train):,} images, {place}")

    def model_paths(self, context: RunContext) -> tuple[str, ...]:
        """Paths or names of the teachers."""
        return (*(str(context.place(name)) for name in self.using), *self.models)


@final
@dataclass(frozen=True, kw_only=True)
class CaptionSpaceStage(GuideStage):
    """Embed the captions of the training split in a latent space (LSEH). Writes a store.

    Attributes:
        space: settings of the latent space.
        measure: similarity of two points: their "inner" product or "cosine".
    """

    kind: ClassVar[str] = "semantics"
    space: LatentSpaceConfig = LatentSpaceConfig()
    measure: Measure = "inner"

    def __post_init__(self) -> None:
        parse_literal(Measure, self.measure, "a measure")

    def check(self, context: RunContext) -> None:
        """Refuse captions that the space cannot be made of."""
        check_captions(context.train.texts, self.space)

    def planned(self, context: RunContext) -> NegativeSource:
        return PlannedTargets(CaptionSimilarity.gives)

    def result(self, context: RunContext, scale: float) -> NegativeSource:
        """Similarity of the captions in the stored space."""
        space = CaptionSpace.open(context.place(self.name), fingerprint=context.train.fingerprint)
        return CaptionSimilarity(space=space, measure=self.measure)

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Store the captions' points."""
        place = context.place(self.name)
        if distributed.rank() == 0:
            space = CaptionSpace.of(context.train, self.space)
            space.save(place)
            texts, width = space.points.shape
            info(f"{self.name}: {texts:,} captions in {width} dimensions, {place}")


def _teachers(context: RunContext, stage: ComputeTargets, scale: float) -> list[Teacher]:
    """The stage's teachers."""
    place = context.place(stage.name)
    store = TargetStore.open(place, fingerprint=context.train.fingerprint)
    weights = target_weighting(store.manifest.teachers, scale, standardise=stage.standardise)
    models = partial(_teacher_model, context, stage, store)
    if stage.form == "stored":
        return stored_teachers(store, weights, lambda number: models(number).model)
    return [
        FrozenTeacher(
            model=model.model,
            processor=model.process(context.train),
            inputs=stage.inputs,
            weight=weight,
        )
        for model, weight in zip(map(models, range(len(weights))), weights, strict=True)
    ]


def _teacher_model(
    context: RunContext, stage: ComputeTargets, store: TargetStore, number: int
) -> Model:
    """Open a teacher whose weights are still those of the store."""
    model = load_model(stage.model_paths(context)[number])
    store.check(number, model.source(), context.place(stage.name))
    return model
