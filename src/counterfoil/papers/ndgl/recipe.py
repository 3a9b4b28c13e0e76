"""NDGL (Zhou et al., AAAI 2025): K models with the hardest negatives teach one all of them.

K = 2 teachers differ in their seed, MR (Eq. 4) weighs 100, HNR (Eq. 5) 0.5, gamma is 0.01 and all
else is the model's own. Eq. 4 leaves open which distributions are compared; here it is a softmax
over each anchor's negatives, summed as the model sums its triplet, see `MarginDistillationLoss`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from counterfoil.core.config import config, from_stage, lazy
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Reduction
from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
from counterfoil.papers.compared.counterfactual import CounterfactualSampler
from counterfoil.papers.compared.losses import LSEHLoss, SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.papers.systems import (
    EDIT_MARGIN,
    GAMMA,
    HARDEST,
    HNR_WEIGHT,
    MR_WEIGHT,
    OF_NDGL,
    PROFILES,
    DataSet,
    K,
    find_system,
)
from counterfoil.papers.training import ModelSetting, as_published, check_numbers, dataset_recipe
from counterfoil.pipelines.pipeline import (
    CaptionSpaceStage,
    ComputeTargets,
    Evaluate,
    Mine,
    Recipe,
    Stage,
    Train,
)
from counterfoil.recipes.base import Terms, TrainingSetup, WeightedLoss, mined
from counterfoil.recipes.catalogue import OneOf
from counterfoil.recipes.clip import TEACHER, TRIPLET, FineTunedModel

TARGETS, LISTS, SEMANTICS = "targets", "lists", "semantics"  # names of stages


def mr(reduction: Reduction = "sum", weight: float = MR_WEIGHT, **changes: Any) -> WeightedLoss:
    """MR (Eq. 4), with the softmax over each anchor's negatives, or another reading of it."""
    return weight, lazy(MarginDistillationLoss, **{"reduction": reduction, **changes})


def hnr(reduction: Reduction = "sum", **changes: Any) -> WeightedLoss:
    """HNR (Eq. 5)."""
    return HNR_WEIGHT, lazy(
        HardNegativeRectificationLoss, gamma=GAMMA, reduction=reduction, **changes
    )


def guided_stage(name: str, setup: TrainingSetup, more: Terms, *, targets: str = TARGETS) -> Train:
    """A training with the model's own loss and terms that read teachers' scores."""
    return setup.stage(name, more).with_sources(from_stage(targets))


def student_stage(name: str, setup: TrainingSetup, *, targets: str = TARGETS) -> Train:
    """A training with MR and HNR beside the model's own loss (Eq. 6)."""
    more: Terms = {"mr": mr(setup.reduction), "hnr": hnr(setup.reduction)}
    return guided_stage(name, setup, more, targets=targets)


def teacher_stages(name: str, dataset: str, count: int = K) -> tuple[Train, ...]:
    """The model from seeds 1 to `count`; the student's is 0."""
    return tuple(
        ModelSetting(name=name, dataset=dataset, seed=seed).setup().stage(f"teacher-{seed}")
        for seed in range(1, count + 1)
    )


def evaluations_of(
    trainings: Sequence[str], dataset: str, *, ensembles: Sequence[tuple[str, ...]] = ()
) -> tuple[Evaluate, ...]:
    """A test of every training alone, and of ensembles.

    On MS-COCO also over all 5,000 test images, "<test>-5k".
    """
    using: dict[str, tuple[str, ...]]
    using = {f"test-{training}": (training,) for training in trainings}
    using |= {f"test-ensemble-of-{len(names)}": names for names in ensembles}
    protocols = {"": PROFILES[dataset].protocol}
    if dataset == "coco":
        protocols["-5k"] = "coco-5k"
    return tuple(
        Evaluate(name=f"{name}{suffix}", using=models, protocol=protocol)
        for suffix, protocol in protocols.items()
        for name, models in using.items()
    )


def usual_results(tests: Sequence[Evaluate]) -> tuple[str, ...]:
    """Names of the tests under the data set's usual protocol, for a report."""
    return tuple(test.name for test in tests if not test.name.endswith("-5k"))


def taught_recipe(name: str, dataset: str, *, saved: tuple[str, ...] = ()) -> Recipe:
    """K teachers, their scores of the training split, the student; all evaluated (Fig. 3a)."""
    student = student_stage("student", ModelSetting(name=name, dataset=dataset).setup())
    if saved:
        plural = "s" * (len(saved) > 1)
        return _recipe(
            "",
            (name, dataset),
            [
                ComputeTargets(name=TARGETS, models=saved),
                student,
                *evaluations_of(("student",), dataset),
            ],
            f"the student of {len(saved)} saved model{plural}",
        )
    teachers = teacher_stages(name, dataset)
    names = tuple(teacher.name for teacher in teachers)
    stages = [
        *teachers,
        ComputeTargets(name=TARGETS, using=names),
        student,
        *evaluations_of((*names, "student"), dataset, ensembles=[names]),
    ]
    about = f"{K} teachers, their ensemble, the student"
    results = "test-teacher-1", f"test-ensemble-of-{K}", "test-student"
    return _recipe("", (name, dataset), stages, about, results)


def _recipe(
    kind: str,
    of: tuple[str, str],
    stages: Sequence[Stage],
    about: str,
    results: Sequence[str] = (),
) -> Recipe:
    name, dataset = of
    about = f"{find_system(name).title}; {about}"
    return dataset_recipe(f"ndgl/{kind}{name}-{dataset}", dataset, stages, about, results=results)


# NDGL's own comparisons: its parts, its teachers, its batches, other ways to use negatives; and the
# readings of Eq. 4, of which the paper says only that it is a Kullback-Leibler divergence of
# margins. Where tau is not 1 the weight is multiplied by its square, which keeps the gradient.


BATCHES = (32, 64, 128, 256, 512)
MOST_TEACHERS = 5  # Table 3
UNKNOWN_WORD = 3  # the id of <unk>


def _parts(name: str, dataset: str) -> Recipe:
    """Table 4 (CHAN with BERT, Flickr30K): MR, HNR, and SR, on similarities, in place of MR."""
    setup = ModelSetting(name=name, dataset=dataset).setup()
    own_mr, own_hnr = mr(setup.reduction), hnr(setup.reduction)
    variants: dict[str, Terms] = {
        "mr": {"mr": own_mr},
        "mr-hnr": {"mr": own_mr, "hnr": own_hnr},
        "sr-hnr": {"sr": mr(setup.reduction, operand="similarity"), "hnr": own_hnr},
        "hnr": {"hnr": own_hnr},
    }
    guided = (guided_stage(kind, setup, more) for kind, more in variants.items())
    return _compared("parts", (name, dataset), [setup.stage("own"), *guided], "its parts (Table 4)")


def _readings(name: str, dataset: str) -> Recipe:
    """Possible readings of Eq. 4, without HNR."""
    setup = ModelSetting(name=name, dataset=dataset).setup()
    own, sharp = setup.reduction, MR_WEIGHT / 100
    readings = {
        "margins": mr(own),
        "similarities": mr(own, operand="similarity"),
        "with-positive": mr(own, include_positive=True),
        "teacher-first": mr(own, direction="teacher_student"),
        "sharp-hard": mr(own, sharp, tau=0.1, emphasis="hard"),
        "sharp-easy": mr(own, sharp, tau=0.1, emphasis="easy"),
        "bernoulli": mr(own, form="bernoulli"),
        "gaussian": mr(own, form="gaussian"),
        "squared": mr(own, form="mse"),
        "flat": mr(own, MR_WEIGHT * setup.plan.batch, form="flat_softmax"),
        "batch-mean": mr("mean"),
    }
    guided = (guided_stage(kind, setup, {"mr": term}) for kind, term in readings.items())
    return _compared(
        "readings", (name, dataset), [setup.stage("own"), *guided], "readings of Eq. 4"
    )


def _teachers(name: str, dataset: str) -> Recipe:
    """Table 3 (CHAN with BERT, Flickr30K): one to five teachers."""
    teachers = teacher_stages(name, dataset, MOST_TEACHERS)
    names = tuple(teacher.name for teacher in teachers)
    setup = ModelSetting(name=name, dataset=dataset).setup()
    stages: list[Stage] = list(teachers)
    students = []
    for count in range(1, MOST_TEACHERS + 1):
        targets = ComputeTargets(name=f"targets-{count}", using=names[:count])
        students.append(student_stage(f"student-of-{count}", setup, targets=targets.name))
        stages += [targets, students[-1]]
    ensembles = [names[:count] for count in range(2, MOST_TEACHERS + 1)]
    trainings = ["teacher-1", *(student.name for student in students)]
    tests = evaluations_of(trainings, dataset, ensembles=ensembles)
    about, results = "one to five teachers (Table 3)", usual_results(tests)
    return _recipe("teachers/", (name, dataset), [*stages, *tests], about, results)


def _batches(name: str, dataset: str) -> Recipe:
    """Fig. 4 (CHAN with BERT, Flickr30K): batches of 32 to 512, of its own loss and of NDGL.

    One pair of teachers, of the model's own batch, for all; the paper does not say.
    """
    trainings: list[Train] = []
    for size in BATCHES:
        setup = ModelSetting(name=name, dataset=dataset, batch=size).setup()
        trainings += [setup.stage(f"own-{size}"), student_stage(f"ndgl-{size}", setup)]
    return _compared("batches", (name, dataset), trainings, "batches of 32 to 512 (Fig. 4)")


def _mining(name: str, dataset: str) -> Recipe:
    """Table 5 (GPO with BERT and VSRN, Flickr30K), and mined negatives among the teachers' too.

    LSEH has a margin of its own. CFM adds two unweighted hinges on items whose regions are edited,
    so it is left out where models read pixels. "ndgl-hnr-offline" is where gamma has an effect.
    """
    setting = ModelSetting(name=name, dataset=dataset)
    reduction, margin = setting.system.reduction, setting.system.margin
    texts, images = HARDEST[dataset]
    setup, quintuplet = setting.setup(), adaptive_setup(setting)
    first: list[Stage] = [
        setup.stage("own"),
        Mine(name=LISTS, using=("own",), texts=texts, images=images),
        CaptionSpaceStage(name=SEMANTICS),
    ]
    lseh = setting.setup(lazy(LSEHLoss, reduction=reduction)).stage("lseh")
    edited: Terms = {
        "adjusted": (1.0, lazy(SelfAdjustedCFMLoss, margin=EDIT_MARGIN, reduction=reduction)),
        "explored": (1.0, lazy(SelfExploredCFMLoss, margin=EDIT_MARGIN, reduction=reduction)),
    }
    hidden = UNKNOWN_WORD if name == "vsrn" else None  # other models have a mask word
    editor = config(CounterfactualSampler, margin=margin, mask=hidden)
    cfm = setup.stage("cfm", edited).with_sources(editor)
    mined_mr: Terms = {"mr": mr(reduction, offline=True), "hnr": hnr(reduction)}
    mined_hnr: Terms = {"mr": mr(reduction), "hnr": hnr(reduction, candidates="offline")}
    trainings = [
        quintuplet.stage("adapoffquin").with_sources(mined(LISTS)),
        lseh.with_sources(from_stage(SEMANTICS)),
        *([cfm] if PROFILES[dataset].processor.images == "features" else []),
        student_stage("ndgl", setup),
        guided_stage("ndgl-adapoffquin", quintuplet, mined_mr).with_sources(mined(LISTS)),
        guided_stage("ndgl-hnr-offline", setup, mined_hnr).with_sources(mined(LISTS)),
    ]
    about = "ways to use negatives (Table 5)"
    return _compared("mining", (name, dataset), trainings, about, first=first)


def adaptive_setup(setting: ModelSetting) -> TrainingSetup:
    """The model with AdapOffQuin, at the model's margin, in place of its triplet."""
    system = setting.system
    loss = lazy(AdaptiveQuintuplet, online=system.margin, reduction=system.reduction)
    return setting.setup(loss)


def _compared(
    kind: str,
    of: tuple[str, str],
    trainings: Sequence[Train],
    about: str,
    *,
    first: Sequence[Stage] = (),
) -> Recipe:
    """Trainings side by side, with the same two teachers for those that have any."""
    name, dataset = of
    teachers = teacher_stages(name, dataset)
    targets = ComputeTargets(name=TARGETS, using=tuple(teacher.name for teacher in teachers))
    own = [stage.name for stage in first if isinstance(stage, Train)]
    tests = evaluations_of([*own, *(training.name for training in trainings)], dataset)
    stages = [*first, *teachers, targets, *trainings, *tests]
    return _recipe(f"{kind}/", of, stages, about, usual_results(tests))


_COMPARED = ("gpo", "gpo-bert", "chan", "chan-bert")

COMPARISONS: dict[str, tuple[Callable[[str, str], Recipe], tuple[str, ...]]] = {
    "parts": (_parts, _COMPARED),
    "readings": (_readings, _COMPARED),
    "teachers": (_teachers, _COMPARED),
    "batches": (_batches, _COMPARED),
    "mining": (_mining, (*_COMPARED, "vsrn")),
}


@as_published
def ndgl(
    *,
    model: Annotated[str, OneOf(OF_NDGL)] = "gpo",
    like: DataSet = "scenes",
    compare: Annotated[str, OneOf(("none", *COMPARISONS))] = "none",
) -> Recipe:
    """NDGL: two teachers, their scores of the training split, and their student.

    Args:
        model: of teachers and student.
        like: data set whose numbers, widths and protocol it has.
        compare: a comparison of the paper instead: parts (Table 4), teachers (Table 3) and batches
            (Fig. 4), which the paper has of chan-bert on flickr30k; mining, ways to use negatives
            (Table 5), which it has of gpo-bert and vsrn on flickr30k; or readings of Eq. 4.

    Raises:
        ValueError: the model has no numbers for the data set, or is not in the comparison.
    """
    check_numbers(model, like, find_system(model).datasets)
    if compare == "none":
        return taught_recipe(model, like)
    make, compared = COMPARISONS[compare]
    if model not in compared:
        raise ValueError(f"{compare} compares {', '.join(compared)}, not {model}")
    return make(model, like)


def fine_tuning_stages(
    model: FineTunedModel, *, teachers: tuple[str, ...], **_: object
) -> tuple[Stage, ...]:
    """A pretrained model with saved teachers, or with K copies of it that are trained first."""
    trainings = [
        model.setup(TRIPLET, seed).stage(f"{TEACHER}{seed}")
        for seed in range(1, K + 1)
        if not teachers
    ]
    using = tuple(stage.name for stage in trainings)
    targets = ComputeTargets(name=TARGETS, using=using, models=teachers)
    student = student_stage("student", model.setup(TRIPLET))
    return *trainings, targets, model.with_generated(student)
