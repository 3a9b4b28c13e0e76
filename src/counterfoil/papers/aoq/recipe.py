"""AOQ (Chen et al., ECCV 2020): train, mine the whole training set, train again on the lists.

Section 4.2: h = 300 texts and 60 images, alpha 0.3, beta 1.5, online margin 0.2, offline margin 0;
the second round starts from scratch. Rates and epochs are in `counterfoil.papers.systems`. The
paper mines with VSRN for every model; here each model mines for itself, and ``lists="vsrn"`` is the
paper's way. Figure 4 is of vsrn-single and bfan-prob on the first 1,000 images of COCO's dev
(``dev_images=1000``, ``dev_first=true``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, final

from counterfoil.core.config import Config, config, from_stage, lazy
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.losses.aoq import (
    AdaptiveQuintuplet,
    OfflineQuintuplet,
    OfflineTriplet,
    OnlineQuintuplet,
)
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.papers.compared.graph_stage import GraphLists
from counterfoil.papers.models.configs import model_config
from counterfoil.papers.systems import (
    HARDEST,
    IMAGES,
    NAMES,
    OFFLINE_WARMUP,
    PROFILES,
    SYSTEMS,
    TEXTS,
    DataSet,
    EnsembleMember,
    ensemble_members,
    members_note,
    training_config,
)
from counterfoil.papers.training import (
    as_published,
    dataset_recipe,
    evaluation_stages,
    hardest_triplet,
    online_stage,
    warmup_steps,
)
from counterfoil.pipelines.pipeline import Compare, Mine, Recipe, Stage, Train
from counterfoil.recipes.base import (
    ADAPTIVE,
    ALPHA,
    BETA,
    MARGIN,
    OFFLINE_MARGIN,
    WHOLE_LISTS,
    adaptive_quintuplet,
    mined,
    with_warmup,
)
from counterfoil.recipes.catalogue import OneOf
from counterfoil.recipes.clip import TRIPLET, FineTunedModel
from counterfoil.training.mined import MinedBatches

MARGINS: dict[str, Any] = {"online": MARGIN, "offline": OFFLINE_MARGIN}


def offline_warmup(name: str, dataset: str) -> int:
    """Steps with the sum of hinges before mined negatives are used."""
    return max(OFFLINE_WARMUP.get(dataset, 0), warmup_steps(name, dataset))


def self_mined(
    member: EnsembleMember, dataset: str, lengths: tuple[int, int] | None = None
) -> tuple[Train, Mine]:
    """Round one of a model and the lists it mines for itself, of the data set's usual lengths."""
    texts, images = lengths or HARDEST[dataset]
    online = online_stage(member.model, dataset, member=member)
    lists = Mine(name=member.stage("lists"), using=(online.name,), texts=texts, images=images)
    return online, lists


def second_stage(
    member: EnsembleMember,
    dataset: str,
    objective: Config[WeightedSum],
    *,
    kind: str = "adaptive",
    lists: str = "",
    sampling: SamplingConfig = WHOLE_LISTS,
) -> Train:
    """Round two of a model, with mined negatives."""
    return Train(
        name=member.stage(kind),
        model=model_config(member.model, dataset),
        objective=objective,
        processor=PROFILES[dataset].processor,
        plan=training_config(member.model, dataset, "second", seed=member.seed),
        sources=(mined(lists or member.stage("lists"), sampling),),
    )


def _both_rounds(name: str, dataset: str) -> Recipe:
    """Both rounds of every model, and a report that compares them."""
    trained: list[Stage] = []
    for member in ensemble_members(name):
        loss = adaptive_quintuplet(offline_warmup(member.model, dataset))
        trained += [*self_mined(member, dataset), second_stage(member, dataset, loss)]
    return _compared(
        f"aoq/{name}-{dataset}",
        (name, dataset),
        trained,
        ("online", "adaptive"),
        "online triplet, mining, AdapOffQuin",
    )


def _with_vsrn_lists(name: str, dataset: str) -> Recipe:
    """Round two on the lists of one VSRN, without round one."""
    if not name.startswith(("scan", "bfan")):
        raise ValueError(
            f"lists are mined by VSRN for SCAN and BFAN, as in the paper; {name} mines its own"
        )
    first, lists = self_mined(EnsembleMember("vsrn-single"), dataset)
    trained: list[Stage] = [replace(first, name="teacher"), replace(lists, using=("teacher",))]
    for member in ensemble_members(name):
        loss = adaptive_quintuplet(offline_warmup(member.model, dataset))
        trained.append(second_stage(member, dataset, loss, lists="lists"))
    teacher = evaluation_stages("teacher", "vsrn-single", dataset)
    return dataset_recipe(
        f"aoq/{name}-{dataset}-vsrn-lists",
        dataset,
        (*trained, *teacher, *evaluation_stages("adaptive", name, dataset)),
        f"{members_note(name)}; mined by one VSRN, AdapOffQuin",
        results=("test-teacher", "test-adaptive"),
        negatives="lists",
    )


@as_published
def graph(*, model: Literal["vsepp", "scan-t2i"] = "vsepp", like: DataSet = "scenes") -> Recipe:
    """AdapOffQuin on lists from a denotation graph of the captions, which no model mines.

    Args:
        model: trained online first, to compare with.
        like: data set whose numbers, widths and protocol it has.
    """
    loss = adaptive_quintuplet(offline_warmup(model, like))
    stages: list[Stage] = [
        online_stage(model, like),
        GraphLists(name="lists", texts=TEXTS, images=IMAGES, parser=config(RulePhraseParser)),
        second_stage(EnsembleMember(model), like, loss, kind="graph"),
    ]
    return _compared(
        f"graph/{model}-{like}",
        (model, like),
        stages,
        ("online", "graph"),
        "online triplet, AdapOffQuin on a denotation graph of the captions",
    )


@as_published
def batches(*, model: Literal["vsepp", "scan-t2i"] = "vsepp", like: DataSet = "scenes") -> Recipe:
    """Train on with the model's own loss, on random batches and on batches of its mined lists.

    Batches are those of B3 (https://arxiv.org/abs/2505.11293), see
    `counterfoil.negatives.batch_mining`. Both continue from round one: from scratch, the hardest
    negative of such batches makes VSE++ collapse.

    Args:
        model: trained online first, and mined with.
        like: data set whose numbers, widths and protocol it has.
    """
    online, lists = self_mined(EnsembleMember(model), like)
    longer = replace(online, name="longer", objective=hardest_triplet(0), start=online.name)
    composed = config(MinedBatches, negatives=from_stage(lists.name))
    return _compared(
        f"batches/{model}-{like}",
        (model, like),
        [online, lists, longer, replace(longer, name="mined", sources=(composed,))],
        ("online", "longer", "mined"),
        "online triplet, then on random batches or on batches of mutual mined negatives",
    )


def _compared(
    recipe: str, of: tuple[str, str], trained: list[Stage], kinds: tuple[str, ...], about: str
) -> Recipe:
    """Trainings of a model on a data set, evaluations of their kinds, and a report of these."""
    name, dataset = of
    tests = [test for kind in kinds for test in evaluation_stages(kind, name, dataset)]
    return dataset_recipe(
        recipe,
        dataset,
        (*trained, *tests),
        f"{members_note(name)}; {about}",
        results=(f"test-{kind}" for kind in kinds),
        negatives=ensemble_members(name)[0].stage("lists"),
    )


# AOQ's other losses and its ablations (Tables 1 and 3), for any model and data set.


@final
@dataclass(frozen=True, slots=True)
class AblationVariant:
    """An ablation of the method's second round.

    Attributes:
        about: in a few words.
        term: the loss.
        texts: h, hardest texts of an image that are sampled, images a fifth; 0 for the usual.
        cold: no warm-up with the sum of hinges.
        fine_tune: start from the weights of round one instead of from scratch.
        released: whether sampling, positives, rates and VSRN's batch statistics are those of the
            authors' code.
    """

    about: str
    term: Loss = ADAPTIVE
    texts: int = 0
    cold: bool = False
    fine_tune: bool = False
    released: bool = False

    def lengths(self, dataset: str) -> tuple[int, int]:
        """Lengths of its lists: h texts and h / 5 images."""
        return (self.texts, self.texts // 5) if self.texts else HARDEST[dataset]


VARIANTS = {
    "offtri": AblationVariant("OffTri, Eq. 3", lazy(OfflineTriplet, **MARGINS)),
    "offquin": AblationVariant("OffQuin, Eq. 4", lazy(OfflineQuintuplet, **MARGINS)),
    "adapoffquin": AblationVariant("AdapOffQuin, Eq. 5"),
    "only-offline": AblationVariant(
        "Eq. 4 without its online hinges",
        lazy(OfflineQuintuplet, online=None, offline=OFFLINE_MARGIN),
        cold=True,
    ),
    "fine-tune": AblationVariant("Eq. 5 from the weights of round one", cold=True, fine_tune=True),
    "online-quin": AblationVariant(
        "Eq. 4, derived pairs from online negatives", lazy(OnlineQuintuplet, **MARGINS)
    ),
    "positive-adaptive": AblationVariant(
        "w/o OfflineAdap: Eq. 5 weighed by the positive's score",
        lazy(AdaptiveQuintuplet, **MARGINS, alpha=ALPHA, beta=BETA, reference="positive"),
    ),
    "squared": AblationVariant(
        "Eq. 4 with squared hinges, section 3.3",
        lazy(OfflineQuintuplet, **MARGINS, squared=True),
    ),
    "h200": AblationVariant("Eq. 5, h = 200", texts=200),
    "h300": AblationVariant("Eq. 5, h = 300", texts=300),
    "h500": AblationVariant("Eq. 5, h = 500", texts=500),
    "h1000": AblationVariant("Eq. 5, h = 1000", texts=1000),
    "released-code": AblationVariant("Eq. 5 as the authors' code has it", released=True),
}


def _with_one_loss(loss: str, name: str, dataset: str) -> Recipe:
    """Round one, its lists, and round two with one loss; compared with round one."""
    return _ablations(
        f"aoq/ablations/{loss}/{name}-{dataset}",
        (name, dataset),
        ("online", loss),
        VARIANTS[loss].about,
    )


def _with_every_loss(name: str, dataset: str) -> Recipe:
    """Round one, its lists, and round two with every loss; compared with the full method.

    Table 3 has the differences in parentheses; here they are in the report.
    """
    recipe = _ablations(
        f"aoq/ablations/{name}-{dataset}",
        (name, dataset),
        ("online", *VARIANTS),
        "all of AOQ's Tables 1 and 3",
    )
    *stages, report = recipe.stages
    assert isinstance(report, Compare)
    first = "test-adapoffquin"
    others = tuple(result for result in report.results if result != first)
    return replace(recipe, stages=(*stages, replace(report, results=(first, *others))))


def _ablations(recipe: str, of: tuple[str, str], kinds: tuple[str, ...], about: str) -> Recipe:
    name, dataset = of
    _, *losses = kinds
    lengths = [VARIANTS[loss].lengths(dataset) for loss in losses]
    longest = max(texts for texts, _ in lengths), max(images for _, images in lengths)
    stages: list[Stage] = []
    for member in ensemble_members(name):
        stages += self_mined(member, dataset, longest)
        stages += [_ablation_stage(loss, member, dataset) for loss in losses]
    return _compared(recipe, of, stages, kinds, about)


def _ablation_stage(loss: str, member: EnsembleMember, dataset: str) -> Train:
    """Round two of one model with one loss."""
    variant, model = VARIANTS[loss], member.model
    warmup = 0 if variant.cold else offline_warmup(model, dataset)
    texts, images = variant.lengths(dataset)
    sampling = SamplingConfig(
        texts=texts,
        images=images,
        tied_rank=variant.released,
        resample=not variant.released,
    )
    objective = with_warmup(variant.term, warmup, "quintuplet")
    stage = second_stage(member, dataset, objective, kind=loss, sampling=sampling)
    if variant.fine_tune:
        stage = replace(stage, start=member.stage("online"))
    if variant.released:
        plan = training_config(model, dataset, "released", seed=member.seed)
        stage = replace(stage, plan=plan, positives="diagonal")
        if SYSTEMS[model].paper == "vsrn":
            stage = replace(stage, model=stage.model.replace(bn_passes="separate"))
    return stage


@as_published
def aoq(
    *,
    model: Annotated[str, OneOf(NAMES)] = "vsepp",
    like: DataSet = "scenes",
    loss: Annotated[str, OneOf(("adaptive", "all", *VARIANTS))] = "adaptive",
    lists: Literal["own", "vsrn"] = "own",
) -> Recipe:
    """AOQ: train online, mine the whole training set, train again from scratch on the lists.

    Args:
        model: a single model, or an ensemble of two that average their scores.
        like: data set whose numbers, widths and protocol it has.
        loss: of the second round: adaptive is AdapOffQuin, every other name one row of AOQ's Tables
            1 and 3, and all compares all of these rows.
        lists: whose they are: each model's own, or those of one VSRN for SCAN and BFAN, without a
            first round, as in the paper.

    Raises:
        ValueError: lists of a VSRN for another model or with another loss.
    """
    if lists == "vsrn":
        if loss != "adaptive":
            raise ValueError(f"with lists of a VSRN the loss is adaptive, not {loss}")
        return _with_vsrn_lists(model, like)
    if loss == "adaptive":
        return _both_rounds(model, like)
    return _with_every_loss(model, like) if loss == "all" else _with_one_loss(loss, model, like)


def fine_tuning_stages(
    model: FineTunedModel, *, lengths: tuple[int, int], **_: object
) -> tuple[Stage, ...]:
    """Both rounds of a pretrained model: online triplets, mining, the adaptive quintuplet."""
    lists = Mine(name="lists", using=("online",), texts=lengths[0], images=lengths[1])
    terms = dict(adaptive_quintuplet(0).arguments["terms"])
    second = model.stage("adaptive", terms).with_sources(mined(lists.name))
    return model.stage("online", TRIPLET), lists, second
