"""AOQ (Chen et al., ECCV 2020): train, mine the whole training set, train again on the lists.

Section 4.2: h = 300 texts and 60 images, alpha 0.3, beta 1.5, online margin 0.2, offline margin 0;
the second round starts from scratch. Rates and epochs are in `counterfoil.recipes.models`. The
paper mines with VSRN for every model; here each model mines for itself, and `aoq_with_vsrn_lists`
is the paper's way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final, get_args

from counterfoil.core.config import Config, lazy
from counterfoil.losses.aoq import (
    AdaptiveQuintuplet,
    OfflineQuintuplet,
    OfflineTriplet,
    OnlineQuintuplet,
)
from counterfoil.losses.base import Loss as Loss_base
from counterfoil.losses.base import WeightedSum
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.pipelines.pipeline import (
    Compare,
    Mine,
    Recipe,
    Stage,
    Train,
)
from counterfoil.recipes import models as models_module
from counterfoil.recipes.models import (
    MARGIN,
    PAPERS,
    PROFILES,
    WARMUP,
    Dataset,
    EnsembleMember,
    Name,
    Single,
    ensemble_members,
    evaluation_stages,
    members_note,
    model_config,
    online_stage,
    warmup_epochs,
    with_warmup,
)
from counterfoil.training.config import TrainConfig

TEXTS, IMAGES = 300, 60
ALPHA, BETA = 0.3, 1.5
OFFLINE_MARGIN = 0.0

HARDEST: dict[Dataset, tuple[int, int]] = {
    "scenes": (1000, 200),  # of the very hardest, 6 % of texts and 15 % of images are true
    "flickr8k": (100, 20),
    "flickr30k": (TEXTS, IMAGES),
    "coco": (TEXTS, IMAGES),
}

# beta = 1.5 pulls harder than the online triplet: the scores must have spread further by then
OFFLINE_WARMUP: dict[Dataset, int] = {**WARMUP, "scenes": 470}


def adaptive_quintuplet(warmup: int) -> Config[WeightedSum]:
    """The adaptive offline quintuplet loss with the paper's numbers (Eq. 5).

    Args:
        warmup: steps with the sum of hinges first, where the model needs them; the paper has none.
    """
    quintuplet = lazy(
        AdaptiveQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN, alpha=ALPHA, beta=BETA
    )
    return with_warmup(quintuplet, warmup, "quintuplet")


def offline_warmup(name: Single, dataset: Dataset) -> int:
    """Steps with the sum of hinges before mined negatives are used."""
    return max(OFFLINE_WARMUP[dataset], warmup_epochs(name, dataset))


def second_round(name: Single, dataset: Dataset) -> TrainConfig:
    """Rates and epochs of the second round."""
    return models_module.second_round_settings(name, dataset)


def self_mined(
    member: EnsembleMember, dataset: Dataset, *, texts: int = 0, images: int = 0
) -> tuple[Train, Mine]:
    """Round one of a model and the lists it mines for itself; 0 for the data set's own length."""
    hardest = HARDEST[dataset]
    return (
        online_stage(member.model, dataset, member=member),
        Mine(
            name=member.stage("lists"),
            using=(member.stage("online"),),
            texts=texts or hardest[0],
            images=images or hardest[1],
        ),
    )


def second_stage(
    member: EnsembleMember,
    dataset: Dataset,
    objective: Config[WeightedSum],
    *,
    kind: str = "adaptive",
    lists: str = "",
    draw: SamplingConfig | None = None,
) -> Train:
    """Round two of a model, with mined negatives.

    Args:
        member: the model.
        dataset: the data set.
        objective: the loss.
        kind: prefix of the stage's name.
        lists: the mining stage of its negatives; by default its own.
        draw: how negatives are sampled; by default from the whole lists.
    """
    return Train(
        name=member.stage(kind),
        model=model_config(member.model, dataset),
        objective=objective,
        processor=PROFILES[dataset].processor,
        plan=models_module.second_round_settings(member.model, dataset, seed=member.seed),
        negatives=lists or member.stage("lists"),
        draw=draw or SamplingConfig(),
    )


def aoq_recipe(name: Name, dataset: Dataset) -> Recipe:
    """Both rounds of every model, and a report that compares them."""
    models = ensemble_members(name)
    trained: list[Stage] = []
    for member in models:
        loss = adaptive_quintuplet(offline_warmup(member.model, dataset))
        trained += [*self_mined(member, dataset), second_stage(member, dataset, loss)]
    measured = (
        *evaluation_stages("online", name, dataset),
        *evaluation_stages("adaptive", name, dataset),
    )
    report = Compare(
        name="report", results=("test-online", "test-adaptive"), negatives=models[0].stage("lists")
    )
    return Recipe(
        name=f"aoq/{name}-{dataset}",
        stages=(*trained, *measured, report),
        data=PROFILES[dataset].data,
        about=f"{members_note(name)}; online triplet, mining, AdapOffQuin",
    )


def aoq_with_vsrn_lists(name: Name, dataset: Dataset) -> Recipe:
    """Round two on the lists of one VSRN, without round one: the paper's SCAN and BFAN."""
    teacher = EnsembleMember("vsrn-single")
    first, lists = self_mined(teacher, dataset)
    trained: list[Stage] = [replace(first, name="teacher"), replace(lists, using=("teacher",))]
    for member in ensemble_members(name):
        loss = adaptive_quintuplet(offline_warmup(member.model, dataset))
        trained.append(second_stage(member, dataset, loss, lists="lists"))
    teachers = evaluation_stages("teacher", "vsrn-single", dataset)
    report = Compare(name="report", results=("test-teacher", "test-adaptive"), negatives="lists")
    return Recipe(
        name=f"aoq/{name}-{dataset}-vsrn-lists",
        stages=(*trained, *teachers, *evaluation_stages("adaptive", name, dataset), report),
        data=PROFILES[dataset].data,
        about=f"{members_note(name)}; mined by one VSRN, AdapOffQuin",
    )


# AOQ's other losses and its ablations (Tables 1 and 3), for any model and data set.


Loss = Literal[
    "offtri",
    "offquin",
    "adapoffquin",
    "only-offline",
    "fine-tune",
    "online-quin",
    "positive-adaptive",
    "squared",
    "h200",
    "h300",
    "h500",
    "h1000",
    "released-code",
]
LOSSES: tuple[Loss, ...] = get_args(Loss)


@final
@dataclass(frozen=True, slots=True)
class AblationVariant:
    """How an ablation's round two differs from the method.

    Attributes:
        about: in a few words.
        term: the loss, written down.
        texts: h, hardest texts of an image that are sampled, images a fifth; 0 for the usual.
        cold: no warm-up with the sum of hinges.
        fine_tune: start from the weights of round one instead of from scratch.
        released: whether sampling, positives, rates and VSRN's batch statistics are those of the
            authors' code.
    """

    about: str
    term: Loss_base
    texts: int = 0
    cold: bool = False
    fine_tune: bool = False
    released: bool = False


_FINAL = lazy(AdaptiveQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN, alpha=ALPHA, beta=BETA)
_QUINTUPLET = lazy(OfflineQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN)

VARIANTS: dict[Loss, AblationVariant] = {
    "offtri": AblationVariant(
        "OffTri, Eq. 3", lazy(OfflineTriplet, online=MARGIN, offline=OFFLINE_MARGIN)
    ),
    "offquin": AblationVariant("OffQuin, Eq. 4", _QUINTUPLET),
    "adapoffquin": AblationVariant("AdapOffQuin, Eq. 5", _FINAL),
    "only-offline": AblationVariant(
        "Eq. 4 without its online hinges",
        lazy(OfflineQuintuplet, online=None, offline=OFFLINE_MARGIN),
        cold=True,
    ),
    "fine-tune": AblationVariant(
        "Eq. 5 from the weights of round one", _FINAL, cold=True, fine_tune=True
    ),
    "online-quin": AblationVariant(
        "Eq. 4, derived pairs from online negatives",
        lazy(OnlineQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN),
    ),
    "positive-adaptive": AblationVariant(
        "w/o OfflineAdap: Eq. 5 weighed by the positive's score",
        lazy(
            AdaptiveQuintuplet,
            online=MARGIN,
            offline=OFFLINE_MARGIN,
            alpha=ALPHA,
            beta=BETA,
            reference="positive",
        ),
    ),
    "squared": AblationVariant(
        "Eq. 4 with squared hinges, section 3.3",
        lazy(OfflineQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN, squared=True),
    ),
    "h200": AblationVariant("Eq. 5, h = 200", _FINAL, texts=200),
    "h300": AblationVariant("Eq. 5, h = 300", _FINAL, texts=300),
    "h500": AblationVariant("Eq. 5, h = 500", _FINAL, texts=500),
    "h1000": AblationVariant("Eq. 5, h = 1000", _FINAL, texts=1000),
    "released-code": AblationVariant("Eq. 5 as the authors' code has it", _FINAL, released=True),
}


def ablation_loss(loss: Loss, model: Single, dataset: Dataset) -> Config[WeightedSum]:
    """The loss of a variant, with the warm-up that model and data set need."""
    variant = VARIANTS[loss]
    return with_warmup(
        variant.term, 0 if variant.cold else offline_warmup(model, dataset), "quintuplet"
    )


def ablation_lists(loss: Loss, dataset: Dataset) -> tuple[int, int]:
    """Lengths of a variant's lists: h texts and h / 5 images."""
    texts = VARIANTS[loss].texts
    return (texts, texts // 5) if texts else HARDEST[dataset]


def ablation_sampling(loss: Loss, dataset: Dataset) -> SamplingConfig:
    """How a variant samples negatives."""
    texts, images = ablation_lists(loss, dataset)
    released = VARIANTS[loss].released
    return SamplingConfig(texts=texts, images=images, tied_rank=released, resample=not released)


def ablation_variant(loss: Loss, name: Name, dataset: Dataset) -> Recipe:
    """Round one, its lists, and round two with one loss; compared with round one."""
    recipe = _recipe((loss,), name, dataset, first="online")
    about = f"{members_note(name)}; {VARIANTS[loss].about}"
    return replace(recipe, name=f"aoq/ablations/{loss}/{name}-{dataset}", about=about)


def ablation_recipe(name: Name, dataset: Dataset) -> Recipe:
    """Round one, its lists, and round two with every loss; compared with the full method.

    Table 3 has the differences in parentheses; here they are in the report.
    """
    recipe = _recipe(LOSSES, name, dataset, first="adapoffquin")
    about = f"{members_note(name)}; all of AOQ's Tables 1 and 3"
    return replace(recipe, name=f"aoq/ablations/{name}-{dataset}", about=about)


def ablation_round(loss: Loss, member: EnsembleMember, dataset: Dataset) -> Train:
    """Round two of one model with one loss."""
    variant = VARIANTS[loss]
    stage = second_stage(
        member,
        dataset,
        ablation_loss(loss, member.model, dataset),
        kind=loss,
        draw=ablation_sampling(loss, dataset),
    )
    if variant.fine_tune:
        stage = replace(stage, start=member.stage("online"))
    return _released(stage, member, dataset) if variant.released else stage


def _released(stage: Train, member: EnsembleMember, dataset: Dataset) -> Train:
    plan = models_module.released_settings(member.model, dataset, seed=member.seed)
    apart = PAPERS[member.model] == "vsrn"
    model = stage.model.replace(bn_passes="separate") if apart else stage.model
    return replace(stage, plan=plan, positives="diagonal", model=model)


def _recipe(losses: tuple[Loss, ...], name: Name, dataset: Dataset, *, first: str) -> Recipe:
    texts, images = (
        max(lengths) for lengths in zip(*(ablation_lists(loss, dataset) for loss in losses))
    )
    stages: list[Stage] = []
    for member in ensemble_members(name):
        stages += self_mined(member, dataset, texts=texts, images=images)
        stages += [ablation_round(loss, member, dataset) for loss in losses]
    for kind in ("online", *losses):
        stages += evaluation_stages(kind, name, dataset)
    others = [f"test-{kind}" for kind in ("online", *losses) if kind != first]
    lists = ensemble_members(name)[0].stage("lists")
    report = Compare(name="report", results=(f"test-{first}", *others), negatives=lists)
    return Recipe(name=f"{name}-{dataset}", stages=(*stages, report), data=PROFILES[dataset].data)
