"""NDGL (Zhou et al., AAAI 2025): K models with the hardest negatives teach one all of them.

K = 2 teachers differ in their seed, MR (Eq. 4) weighs 100, HNR (Eq. 5) 0.5, gamma is 0.01 and all
else is the model's own. Eq. 4 leaves open which distributions are compared; here it is a softmax
over each anchor's negatives, summed as the model sums its triplet, see `MarginDistillationLoss`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from counterfoil.core.config import config, lazy
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Loss, Reduction, weighted_sum
from counterfoil.losses.baselines import LSEHLoss, SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
from counterfoil.negatives.counterfactual import CounterfactualSampler
from counterfoil.pipelines.pipeline import (
    CaptionSpaceStage,
    Compare,
    ComputeTargets,
    Evaluate,
    Mine,
    Recipe,
    Stage,
    Train,
)
from counterfoil.recipes.aoq import HARDEST
from counterfoil.recipes.models import PROFILES, Dataset
from counterfoil.recipes.ndgl_models import (
    BaseModel,
    BaseRecipe,
    BaseSetting,
    Terms,
    base_margin,
    base_of,
    base_reduction,
    base_title,
    trained_base,
)

K = 2
MR_WEIGHT, HNR_WEIGHT, GAMMA = 100.0, 0.5, 0.01
TARGETS = "targets"


def margin_distillation(reduction: Reduction = "sum") -> Loss:
    """MR, in the reading that is taken here."""
    return lazy(MarginDistillationLoss, reduction=reduction)


def hard_negative_rectification(reduction: Reduction = "sum") -> Loss:
    """HNR."""
    return lazy(HardNegativeRectificationLoss, gamma=GAMMA, reduction=reduction)


def guided_loss(name: str, host: BaseRecipe, more: Terms, *, targets: str = TARGETS) -> Train:
    """A model trained with its own loss and with terms that read a guide."""
    stage = trained_base(name, host)
    return replace(stage, objective=weighted_sum(**host.terms, **more), guide=targets)


def student_stage(name: str, host: BaseRecipe, *, targets: str = TARGETS) -> Train:
    """A model trained with MR and HNR beside its own loss (Eq. 6)."""
    more: Terms = {
        "mr": (MR_WEIGHT, margin_distillation(host.reduction)),
        "hnr": (HNR_WEIGHT, hard_negative_rectification(host.reduction)),
    }
    return guided_loss(name, host, more, targets=targets)


def teacher_stages(name: BaseModel, dataset: Dataset, count: int = K) -> tuple[Train, ...]:
    """The model from seeds 1 to `count`; the student's is 0."""
    return tuple(
        trained_base(f"teacher-{seed}", base_of(BaseSetting(host=name, dataset=dataset, seed=seed)))
        for seed in range(1, count + 1)
    )


def evaluation_stage_of(
    trainings: Sequence[str], dataset: Dataset, *, ensembles: Sequence[tuple[str, ...]] = ()
) -> tuple[Evaluate, ...]:
    """A test of every training alone, and of ensembles of the first few.

    On MS-COCO also over all 5,000 test images, "<test>-5k".
    """
    using: dict[str, tuple[str, ...]] = {f"test-{one}": (one,) for one in trainings}
    using |= {f"test-ensemble-of-{len(them)}": them for them in ensembles}
    usual = tuple(
        Evaluate(name=name, using=them, protocol=PROFILES[dataset].protocol)
        for name, them in using.items()
    )
    if dataset != "coco":
        return usual
    whole = (
        Evaluate(name=f"{name}-5k", using=them, protocol="coco-5k") for name, them in using.items()
    )
    return (*usual, *whole)


def comparison_stage(tests: Sequence[Evaluate]) -> Compare:
    """A report of tests under the data set's usual protocol."""
    names = tuple(test.name for test in tests if not test.name.endswith("-5k"))
    return Compare(name="report", results=names)


def ndgl_recipe(name: BaseModel, dataset: Dataset, *, saved: tuple[str, ...] = ()) -> Recipe:
    """K teachers, what they think of the training split, the student; all measured (Fig. 3a).

    Args:
        name: the model.
        dataset: what it is trained on.
        saved: models that teach instead, of which none is trained or measured.
    """
    if saved:
        return _taught_by(saved, name, dataset)
    taught = teacher_stages(name, dataset)
    names = tuple(one.name for one in taught)
    tests = evaluation_stage_of((*names, "student"), dataset, ensembles=[names])
    stages: tuple[Stage, ...] = (
        *taught,
        ComputeTargets(name=TARGETS, using=names),
        student_stage("student", base_of(BaseSetting(host=name, dataset=dataset))),
        *tests,
        Compare(name="report", results=("test-teacher-1", f"test-ensemble-of-{K}", "test-student")),
    )
    return Recipe(
        name=f"ndgl/{name}-{dataset}",
        stages=stages,
        data=PROFILES[dataset].data,
        about=f"{base_title(name)}; {K} teachers, their ensemble, the student",
    )


def _taught_by(saved: tuple[str, ...], name: BaseModel, dataset: Dataset) -> Recipe:
    stages: tuple[Stage, ...] = (
        ComputeTargets(name=TARGETS, models=saved),
        student_stage("student", base_of(BaseSetting(host=name, dataset=dataset))),
        *evaluation_stage_of(("student",), dataset),
    )
    return Recipe(
        name=f"ndgl/{name}-{dataset}",
        stages=stages,
        data=PROFILES[dataset].data,
        about=(
            f"{base_title(name)}; the student of {len(saved)} saved model{'s' * (len(saved) > 1)}"
        ),
    )


# NDGL's own comparisons: its parts, its teachers, its batches, other ways to use negatives.
#
# And the readings of Eq. 4, of which the paper says only that it is a Kullback-Leibler divergence
# of
# margins; where tau is not 1 the weight is multiplied by its square, which keeps the gradient.


LISTS, MEANINGS = "lists", "semantics"
BATCHES = (32, 64, 128, 256, 512)
MOST = 5  # teachers, Table 3
EDIT_MARGIN, UNKNOWN_WORD = 0.1, 3  # CFM's second margin; the id of <unk>


def reading_recipes(summed: Reduction = "sum", batch: int = 128) -> dict[str, tuple[float, Loss]]:
    """Eq. 4 as it may be meant, weighted beside a loss of this reduction."""
    w = MR_WEIGHT
    return {
        "margins": (w, margin_distillation(summed)),
        "similarities": (w, lazy(MarginDistillationLoss, operand="similarity", reduction=summed)),
        "with-positive": (w, lazy(MarginDistillationLoss, include_positive=True, reduction=summed)),
        "teacher-first": (
            w,
            lazy(MarginDistillationLoss, direction="teacher_student", reduction=summed),
        ),
        "sharp-hard": (
            w / 100,
            lazy(MarginDistillationLoss, tau=0.1, emphasis="hard", reduction=summed),
        ),
        "sharp-easy": (
            w / 100,
            lazy(MarginDistillationLoss, tau=0.1, emphasis="easy", reduction=summed),
        ),
        "bernoulli": (w, lazy(MarginDistillationLoss, form="bernoulli", reduction=summed)),
        "gaussian": (w, lazy(MarginDistillationLoss, form="gaussian", reduction=summed)),
        "squared": (w, lazy(MarginDistillationLoss, form="mse", reduction=summed)),
        "flat": (w * batch, lazy(MarginDistillationLoss, form="flat_softmax", reduction=summed)),
        "batch-mean": (w, lazy(MarginDistillationLoss, reduction="mean")),
    }


def part_recipes(name: BaseModel, dataset: Dataset) -> Recipe:
    """Table 4: MR, HNR, and SR in place of MR."""
    host = base_of(BaseSetting(host=name, dataset=dataset))
    sr = lazy(MarginDistillationLoss, operand="similarity", reduction=host.reduction)
    mr, hnr = (
        (MR_WEIGHT, margin_distillation(host.reduction)),
        (HNR_WEIGHT, hard_negative_rectification(host.reduction)),
    )
    variants: dict[str, Terms] = {
        "mr": {"mr": mr},
        "mr-hnr": {"mr": mr, "hnr": hnr},
        "sr-hnr": {"sr": (MR_WEIGHT, sr), "hnr": hnr},
        "hnr": {"hnr": hnr},
    }
    trainings = [
        trained_base("own", host),
        *(guided_loss(n, host, more) for n, more in variants.items()),
    ]
    return _compared("parts", name, dataset, trainings, "its parts (Table 4)")


def read_variant(name: BaseModel, dataset: Dataset) -> Recipe:
    """Every reading of Eq. 4, without HNR."""
    host = base_of(BaseSetting(host=name, dataset=dataset))
    found = reading_recipes(host.reduction, host.plan.batch)
    trainings = [
        trained_base("own", host),
        *(guided_loss(n, host, {"mr": t}) for n, t in found.items()),
    ]
    return _compared("readings", name, dataset, trainings, "readings of Eq. 4")


def teacher_count_recipes(name: BaseModel, dataset: Dataset) -> Recipe:
    """Table 3: one to five teachers."""
    taught, host = (
        teacher_stages(name, dataset, MOST),
        base_of(BaseSetting(host=name, dataset=dataset)),
    )
    stages: list[Stage] = list(taught)
    for many in range(1, MOST + 1):
        using = tuple(one.name for one in taught[:many])
        stages.append(ComputeTargets(name=f"targets-{many}", using=using))
        stages.append(student_stage(f"student-of-{many}", host, targets=f"targets-{many}"))
    students = [f"student-of-{many}" for many in range(1, MOST + 1)]
    ensembles = [tuple(t.name for t in taught[:many]) for many in range(2, MOST + 1)]
    tests = evaluation_stage_of(["teacher-1", *students], dataset, ensembles=ensembles)
    stages += [*tests, comparison_stage(tests)]
    return _recipe("teachers", name, dataset, stages, "one to five teachers (Table 3)")


def batch_size_recipes(name: BaseModel, dataset: Dataset) -> Recipe:
    """Fig. 4: batches of 32 to 512, of the model's own loss and of NDGL with the same teachers."""
    trainings: list[Train] = []
    for size in BATCHES:
        sized = base_of(BaseSetting(host=name, dataset=dataset, batch=size))
        trainings += [trained_base(f"own-{size}", sized), student_stage(f"ndgl-{size}", sized)]
    return _compared("batches", name, dataset, trainings, "batches of 32 to 512 (Fig. 4)")


def mined_recipe(name: BaseModel, dataset: Dataset) -> Recipe:
    """Table 5, and what the paper did not try: mined negatives inside what teachers judge.

    CFM edits regions, so it is left out where pixels are seen.
    """
    (texts, images), at = HARDEST[dataset], BaseSetting(host=name, dataset=dataset)
    taught, own = teacher_stages(name, dataset), trained_base("own", base_of(at))
    trainings = [
        offline_recipe("adapoffquin", at),
        lseh_recipe("lseh", at),
        *([cfm_recipe("cfm", at)] if PROFILES[dataset].sees == "features" else []),
        student_stage("ndgl", base_of(at)),
        combined_recipe("ndgl-adapoffquin", at),
        rectified_offline_recipe("ndgl-hnr-offline", at),
    ]
    stages: list[Stage] = [
        own,
        Mine(name=LISTS, using=("own",), texts=texts, images=images),
        CaptionSpaceStage(name=MEANINGS),
        *taught,
        ComputeTargets(name=TARGETS, using=tuple(one.name for one in taught)),
        *trainings,
    ]
    tests = evaluation_stage_of(["own", *(one.name for one in trainings)], dataset)
    stages += [*tests, comparison_stage(tests)]
    return _recipe("mining", name, dataset, stages, "ways to use negatives (Table 5)")


def offline_recipe(name: str, at: BaseSetting) -> Train:
    """AdapOffQuin in place of the model's triplet."""
    return replace(trained_base(name, base_of(at, _quintuplet(at))), negatives=LISTS)


def lseh_recipe(name: str, at: BaseSetting) -> Train:
    """LSEH in place of the model's triplet; its margin is its own."""
    term = lazy(LSEHLoss, reduction=base_reduction(at.host))
    return replace(trained_base(name, base_of(at, term)), guide=MEANINGS)


def cfm_recipe(name: str, at: BaseSetting) -> Train:
    """CFM beside the model's own loss: two hinges on edited items, unweighted."""
    host, summed = base_of(at), base_reduction(at.host)
    more: Terms = {
        "adjusted": (1.0, lazy(SelfAdjustedCFMLoss, margin=EDIT_MARGIN, reduction=summed)),
        "explored": (1.0, lazy(SelfExploredCFMLoss, margin=EDIT_MARGIN, reduction=summed)),
    }
    hidden = UNKNOWN_WORD if at.host == "vsrn" else None  # other models have a word that hides
    proposer = config(CounterfactualSampler, margin=base_margin(at.host), mask=hidden)
    stage = trained_base(name, host)
    return replace(stage, objective=weighted_sum(**host.terms, **more), proposer=proposer)


def combined_recipe(name: str, at: BaseSetting, *, targets: str = TARGETS) -> Train:
    """AdapOffQuin, whose drawn pairs are among the negatives that the teachers judge."""
    summed = base_reduction(at.host)
    more: Terms = {
        "mr": (MR_WEIGHT, lazy(MarginDistillationLoss, offline=True, reduction=summed)),
        "hnr": (HNR_WEIGHT, hard_negative_rectification(summed)),
    }
    stage = guided_loss(name, base_of(at, _quintuplet(at)), more, targets=targets)
    return replace(stage, negatives=LISTS)


def rectified_offline_recipe(name: str, at: BaseSetting, *, targets: str = TARGETS) -> Train:
    """NDGL whose HNR compares drawn pairs, where gamma is no longer inert."""
    summed = base_reduction(at.host)
    hnr = lazy(HardNegativeRectificationLoss, gamma=GAMMA, candidates="offline", reduction=summed)
    more: Terms = {"mr": (MR_WEIGHT, margin_distillation(summed)), "hnr": (HNR_WEIGHT, hnr)}
    return replace(guided_loss(name, base_of(at), more, targets=targets), negatives=LISTS)


def _quintuplet(at: BaseSetting) -> Loss:
    """AdapOffQuin with the model's margin."""
    return lazy(AdaptiveQuintuplet, online=base_margin(at.host), reduction=base_reduction(at.host))


def _compared(
    kind: str, name: BaseModel, dataset: Dataset, trainings: Sequence[Train], about: str
) -> Recipe:
    """Trainings that the same two teachers guide, or nobody, side by side."""
    taught = teacher_stages(name, dataset)
    targets = ComputeTargets(name=TARGETS, using=tuple(one.name for one in taught))
    tests = evaluation_stage_of([one.name for one in trainings], dataset)
    report = comparison_stage(tests)
    return _recipe(kind, name, dataset, [*taught, targets, *trainings, *tests, report], about)


def _recipe(
    kind: str, name: BaseModel, dataset: Dataset, stages: Sequence[Stage], about: str
) -> Recipe:
    return Recipe(
        name=f"ndgl/{kind}/{name}-{dataset}",
        stages=tuple(stages),
        data=PROFILES[dataset].data,
        about=f"{base_title(name)}; {about}",
    )


_BY_HOST: tuple[BaseModel, ...] = ("gpo", "gpo-bert", "chan", "chan-bert")

VARIANTS: dict[str, tuple[Callable[[BaseModel, Dataset], Recipe], tuple[BaseModel, ...]]] = {
    "parts": (part_recipes, _BY_HOST),
    "readings": (read_variant, _BY_HOST),
    "teachers": (teacher_count_recipes, _BY_HOST),
    "batches": (batch_size_recipes, _BY_HOST),
    "mining": (mined_recipe, (*_BY_HOST, "vsrn")),
}
