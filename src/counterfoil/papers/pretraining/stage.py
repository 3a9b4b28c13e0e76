"""Pre-training: masked words and regions, and matching of pairs, on the training split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from counterfoil.core.console import info, warn
from counterfoil.data.features import FeatureArray
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.pretraining import pretrain
from counterfoil.papers.pretraining.pretrain import (
    ACCURACY,
    CLASS_TASKS,
    REGION_TASKS,
    PretrainTasks,
)
from counterfoil.pipelines.stages.fitting import (
    ModelStage,
    best_epoch_note,
    build_for_training,
    check_model,
    check_pictures,
    is_finished,
    limit_minutes,
    remove_checkpoints,
    save_result,
    selection_dataset,
)
from counterfoil.pipelines.state import RunContext
from counterfoil.training.config import LinearLR, OptimizerConfig, ParameterGroup, TrainConfig

# which output of a model a task trains
HEADS = {"mlm": "fill", "mrfr": "regress", "mrc": "classify", "mrckl": "classify", "itm": "match"}

# UNITER, in-domain: config/pretrain-indomain-base-8gpu.json of its repository
ADAMW = OptimizerConfig(
    rule="adamw", rate=5e-5, decay=0.01, betas=(0.9, 0.98), epsilon=1e-6, clip=5.0
)
WARMUP = 0.05  # 10,000 of 200,000 steps

# what decays in the code of UNITER and TAGS beside matrices: it spares the tensors that are called
# bias or LayerNorm, and these are not, in the model and in the heads of regions
DECAYING = ("image.fc_norm.weight", "image.place_norm.weight", "text.kind", "image.kind")
DECAYING_IN_HEADS = (
    "image.veil",
    "says.regress.enter.2.weight",
    "says.classify.enter.2.weight",
)


def released_optimiser(optimiser: OptimizerConfig, *vectors: str) -> OptimizerConfig:
    """The optimiser as the code of UNITER and TAGS has it: its AdamW, and `vectors` decay too."""
    groups = tuple(ParameterGroup(match=name, decay_vectors=True) for name in vectors)
    return replace(optimiser, rule="transformers-adamw", groups=groups)


def pretrain_config(
    *,
    epochs: int,
    batch: int,
    rate: float = ADAMW.rate,
    accumulate: int = 1,
    seed: int = 0,
    released: bool = False,
) -> TrainConfig:
    """Training settings with UNITER's optimiser: AdamW, a warm-up, then linear decay to 0.

    With `released` its AdamW and schedule are those of the authors' code, to the last step.
    """
    optimiser = replace(ADAMW, rate=rate)
    return TrainConfig(
        epochs=epochs,
        batch=batch,
        seed=seed,
        optimiser=released_optimiser(optimiser, *DECAYING, *DECAYING_IN_HEADS)
        if released
        else optimiser,
        schedule=LinearLR(warmup=WARMUP, ahead=int(released)),
        accumulate=accumulate,
        select=ACCURACY,
    )


@final
@dataclass(frozen=True, kw_only=True)
class Pretrain(ModelStage):
    """Pre-train a model on the training split; the best epoch on dev is saved.

    Writes a model folder; a training starts from it by its name, ``Train(start="pretrained")``.

    Attributes:
        model: a model that can be pre-trained, with the outputs that the tasks train.
        plan: batches, epochs, optimiser, schedule, seed; it selects by "accuracy", "mlm" or "itm".
        tasks: the tasks and how often each is drawn; where the features come without
            ``classes.npy``, "mrc" and "mrckl" are left out with a warning.
        processor: stored features, or pixels where no regions are hidden, and words or wordpieces.
        start: as that of a training, see `counterfoil.pipelines.stages.fitting.ModelStage`.
    """

    kind: ClassVar[str] = "pretrain"
    tasks: PretrainTasks = PretrainTasks()

    def __post_init__(self) -> None:
        blind = self.tasks.used(REGION_TASKS) and self.processor.images != "features"
        if blind or self.processor.texts == "vectors":
            hides = "regions and words" if self.tasks.used(REGION_TASKS) else "words"
            raise ValueError(
                f"{self.name!r} hides {hides}, but its processor gives {self.processor.images} and "
                f"{self.processor.texts}; set images to 'features' (or mrfr, mrc and mrckl to 0), "
                f"and texts to 'words' or a tokenizer"
            )

    def check(self, context: RunContext) -> None:
        """Refuse missing pictures and a model without the output that some task trains."""
        check_pictures(context, self)
        check_model(context, self)
        has_classes = _classified_regions(context) is not None
        tasks = self.tasks if has_classes else self.tasks.without_classes()
        if self.model.make not in (UNITER, ViLT):
            return
        outputs = self.model.arguments.get("outputs", ("rank",))
        for task in tasks.used():
            if HEADS[task] not in outputs:
                raise ValueError(
                    f"{self.name!r} draws the task {task!r}, for which its model has no head "
                    f"{HEADS[task]!r}; add it to outputs={outputs!r}, or set {self.name}.{task}=0"
                )

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Pre-train the model and save it with its processor."""
        if resume and is_finished(context, self):
            remove_checkpoints(context, self)
            return
        model = build_for_training(context, self)
        assert model.processor is not None
        regions = _classified_regions(context)
        left_out = self.tasks.used(CLASS_TASKS)
        if regions is None and left_out:
            warn(
                f"{self.name}: the regions of {context.dataset.name} come without class "
                f"probabilities, so {' and '.join(left_out)} left out"
            )
        dev = selection_dataset(context, self)
        fitted = pretrain.pretrain(
            limit_minutes(self.plan, context.left()),
            model.model,
            self.tasks,
            model.processor.process(context.train),
            folder=context.place(self.name),
            classes=None if regions is None else regions.likely,
            dev=model.processor.process(dev) if dev else None,
            run=context.digests[self.name],
            resume=resume,
        )
        save_result(context, self, model, fitted)
        epochs = best_epoch_note(fitted, self.plan.select)
        info(f"{self.name}: {epochs}, {fitted.seconds:,.0f} s, {context.place(self.name)}")


def _classified_regions(context: RunContext) -> FeatureArray | None:
    """The training split's features if they come with a detector's class probabilities."""
    features = context.train.features
    return features if features is not None and features.classes is not None else None
