"""The five models of NDGL, written down as their papers train them.

GPO (Chen et al., CVPR 2021), CHAN (Pan et al., CVPR 2023), ESA (Zhu et al., TCSVT 2023), HREM (Fu
et al., CVPR 2023) and DivE (Kim et al., CVPR 2023), on detected regions with a BiGRU, with BERT
where a name ends in ``-bert``, and GPO also on the grid of a ResNeXt-101 (``gpo-grid``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final, get_args

from counterfoil.core.config import Config, config, from_data, lazy
from counterfoil.core.types import INFERENCE
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import Loss, Reduction, WeightedSum, weighted_sum
from counterfoil.losses.baselines import DistanceWeightedTripletLoss, SelfExpandingLoss
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, MeanTripletLoss, SumTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.chan import CHAN
from counterfoil.models.dive import DivE, PooledParts, WordsAndStates
from counterfoil.models.esa import ESA
from counterfoil.models.gpo import GPO
from counterfoil.models.hrem import HREM, BatchGraph
from counterfoil.models.layers.pooling import ImageTower, TextTower
from counterfoil.models.layers.pretrained import BertTextTower, TimmGridTower
from counterfoil.models.layers.towers import GRU, Init, MLPRegions, PatchTower, Regions
from counterfoil.pipelines.pipeline import Evaluate, Recipe, Train
from counterfoil.recipes import models
from counterfoil.recipes.models import LARGE, PROFILES, Dataset, DatasetProfile
from counterfoil.training.config import (
    CosineLR,
    OptimizerConfig,
    ParameterGroup,
    StepDecayLR,
    TrainConfig,
)

Paper = Literal["gpo", "chan", "esa", "hrem", "dive"]
Host = Literal[
    "gpo",
    "chan",
    "esa",
    "hrem",
    "dive",
    "gpo-bert",
    "chan-bert",
    "esa-bert",
    "hrem-bert",
    "gpo-grid",
]

HOSTS: tuple[Host, ...] = get_args(Host)
TITLES: dict[Paper, str] = {
    "gpo": "GPO",
    "chan": "CHAN",
    "esa": "ESA",
    "hrem": "HREM",
    "dive": "DivE",
}
BERT = "bert-base-uncased"
DROP = 0.2  # of regions and of words, in training
RESNEXT = "resnext101_32x8d.fb_wsl_ig1b_ft_in1k"
GRID_LENS = ProcessorConfig(
    images="pixels",
    size=512,
    mean=(0.485, 0.456, 0.406),
    deviation=(0.229, 0.224, 0.225),
    texts=BERT,
)


def modern_config(
    name: Host, dataset: Dataset, *, copies: int = 2, profile: DatasetProfile | None = None
) -> Config[RetrievalModel]:
    """The model at the width of a data set.

    Args:
        name: the model.
        dataset: what it is trained on.
        copies: of each item in ESA's expanded view, where that is judged.
        profile: another width than the data set's.
    """
    told = profile or PROFILES[dataset]
    match paper_of(name):
        case "gpo":
            return config(GPO, image=_regions(name, told), text=_words(name, told))
        case "chan":
            return _chan(name, dataset, told)
        case "esa":
            image, text = _regions(name, told, drop=0.0), _words(name, told, dropout=0.1)
            return config(ESA, image=image, text=text, copies=copies)
        case "hrem":
            return _hrem(name, dataset, told)
        case "dive":
            return _dive(told)


def paper_of(name: Host) -> Paper:
    """Whose model it is."""
    (found,) = (known for known in get_args(Paper) if name.split("-")[0] == known)
    whose: Paper = found
    return whose


def reads_bert(name: Host) -> bool:
    """Whether its texts are wordpieces."""
    return name.endswith(("-bert", "-grid"))


def model_title(name: Host) -> str:
    """As tables call it, with what reads its texts."""
    seen = " (ResNeXt-101, BERT)" if name.endswith("-grid") else " (BERT)"
    return TITLES[paper_of(name)] + (seen if reads_bert(name) else " (BiGRU)")


def modern_processor(name: Host, dataset: Dataset) -> ProcessorConfig:
    """What it sees."""
    plan = PROFILES[dataset].processor
    if name.endswith("-grid"):
        return GRID_LENS
    return replace(plan, texts=BERT) if reads_bert(name) else plan


def embeddings_per_item(name: Host) -> tuple[Dataset, ...]:
    """The data sets that it has recipes for: small ones where nothing is to be downloaded."""
    every: tuple[Dataset, ...] = get_args(Dataset)
    return tuple(to for to in every if to in LARGE or not reads_bert(name))


def _chan(name: Host, dataset: Dataset, profile: DatasetProfile) -> Config[RetrievalModel]:
    """Beside a BiGRU it is published with self-attention over regions and log-sum-exp over words.

    On our own small sets words are averaged, as beside BERT, so that the margin is in cosines.
    """
    large, bert = dataset in LARGE, reads_bert(name)
    return config(
        CHAN,
        image=_regions(name, profile, mlp=False),
        text=_words(name, profile),
        block="basic" if bert else "selfattention",
        pooling="LSE" if large and not bert else "Mean",
    )


def _hrem(name: Host, dataset: Dataset, profile: DatasetProfile) -> Config[RetrievalModel]:
    weight = 1.5 if dataset == "coco" else 1.0
    graph = lazy(BatchGraph, width=profile.width, mask_weight=weight)
    image = _regions(name, profile, init="xavier")
    return config(HREM, image=image, text=_words(name, profile), graph=graph)


def _dive(profile: DatasetProfile) -> Config[RetrievalModel]:
    """Words' embeddings are the parts of a text."""
    width = profile.width
    if profile.sees == "pixels":
        tower: ImageTower = lazy(PatchTower, size=from_data("size"), width=width)
    else:
        tower = lazy(
            MLPRegions,
            features=from_data("features"),
            width=width,
            inner=width // 2,
            stacked=True,
            dropout=0.1,
            region_drop=DROP,
        )
    gru = lazy(
        GRU,
        words=from_data("words"),
        word_width=profile.word_width,
        width=width,
        dropout=max(0.1, profile.dropout),
        word_drop=DROP,
        drop_ends=False,
    )
    return config(
        DivE,
        image=lazy(PooledParts, tower=tower, pool="max"),
        text=lazy(WordsAndStates, gru=gru),
        head_width=width // 2,
    )


def _regions(
    name: Host,
    profile: DatasetProfile,
    *,
    mlp: bool = True,
    init: Init = "default",
    drop: float = DROP,
) -> ImageTower:
    """Regions, or what stands for them where pixels are seen."""
    width = profile.width
    if name.endswith("-grid"):
        return lazy(
            TimmGridTower,
            name=RESNEXT,
            width=width,
            pretrained=from_data("pretrained"),
            smallest=0.6,
            mirror=0.5,
            cell_drop=DROP,
        )
    if profile.sees == "pixels":
        return lazy(PatchTower, size=from_data("size"), width=width)
    features = from_data("features")
    if mlp:
        return lazy(MLPRegions, features=features, width=width, init=init, region_drop=drop)
    return lazy(Regions, features=features, width=width, region_drop=drop)


def _words(name: Host, profile: DatasetProfile, *, dropout: float = 0.0) -> TextTower:
    if reads_bert(name):
        return lazy(
            BertTextTower,
            name=BERT,
            width=profile.width,
            pretrained=from_data("pretrained"),
            dropout=dropout,
            word_drop=DROP,
            mask=from_data("mask"),
        )
    return lazy(
        GRU,
        words=from_data("words"),
        word_width=profile.word_width,
        width=profile.width,
        dropout=max(dropout, profile.dropout),
        word_drop=DROP,
    )


# What NDGL's models are trained with: their own loss, or one in place of its triplet.
#
# HREM judges three enhanced grids beside the plain one, whatever the loss of the plain one is. The
# warm-up with all negatives is an epoch, as the authors have it, but for HREM and DivE; on our own
# small sets it is longer, and for all.


MARGIN, CHAN_MARGIN = 0.2, 0.05
SMALL_STEPS: dict[Dataset, int] = {"scenes": 628, "flickr8k": 705}  # with fewer GPO collapses
STEPS: dict[Dataset, int] = {"flickr30k": 1132, "coco": 4425}  # of 128 captions in an epoch
WIDE_STEPS: dict[Dataset, int] = {"flickr30k": 377, "coco": 1475}  # of 384
GRAPH_AFTER: dict[Dataset, int] = {
    "scenes": 628,
    "flickr8k": 705,
    "flickr30k": 8000,
    "coco": 8000,
}
FURTHEST: dict[Dataset, float] = {"coco": 1.9}  # of the distance, HREM's sampler
ENHANCED = ("images enhanced", "texts enhanced", "both enhanced")

Terms = dict[str, tuple[float, Loss]]


def modern_loss(name: Host, dataset: Dataset) -> Config[WeightedSum]:
    """The model's own loss."""
    return weighted_sum(**modern_terms(name, dataset))


def modern_terms(
    name: Host, dataset: Dataset, instead: Loss | None = None, *, longer: float = 1.0
) -> Terms:
    """Weighted terms by name.

    Args:
        name: the model.
        dataset: what it is trained on.
        instead: what judges the plain grid in place of the model's own triplet.
        longer: how many times as many steps come before what begins later, as in smaller batches.
    """
    plain = instead or _own(name, dataset)
    steps = round(longer * loss_warmup(name, dataset))
    expanded = instead is None and paper_of(name) == "esa"
    whole = initial_loss(_first(name, dataset, expanded=expanded), plain, steps)
    return {"triplet": (1.0, whole), **_enhanced(name, dataset, longer)}


def initial_loss(first: Loss, then: Loss, steps: int) -> Loss:
    """A term after some steps with another; no steps, no other."""
    return lazy(SwitchAfter, first=first, second=then, steps=steps) if steps else then


def against_all(dataset: Dataset) -> type[SumTripletLoss] | type[MeanTripletLoss]:
    """What a warm-up is with: the sum of hinges as authors have it, on our own small sets the mean.

    To Adam both are alike, but for a long warm-up a sum would drown what else is learnt.
    """
    return SumTripletLoss if dataset in LARGE else MeanTripletLoss


def loss_reduction(name: Host) -> Reduction:
    """How the model's losses are summed over a batch."""
    return "mean" if paper_of(name) == "dive" else "sum"


def loss_margin(name: Host) -> float:
    """Of the model's triplet."""
    return CHAN_MARGIN if paper_of(name) == "chan" else MARGIN


def loss_warmup(name: Host, dataset: Dataset) -> int:
    """Steps against all negatives first."""
    if dataset not in LARGE:
        return SMALL_STEPS[dataset]
    if paper_of(name) in ("hrem", "dive"):
        return 0
    wide = paper_of(name) == "chan" and not reads_bert(name)
    return (WIDE_STEPS if wide else STEPS)[dataset]


def _first(name: Host, dataset: Dataset, *, expanded: bool) -> Loss:
    """What the warm-up of a model is with."""
    if expanded:
        return lazy(SelfExpandingLoss, against="all" if dataset in LARGE else "mean", margin=MARGIN)
    return lazy(against_all(dataset), margin=loss_margin(name), reduction=loss_reduction(name))


def _own(name: Host, dataset: Dataset) -> Loss:
    match paper_of(name):
        case "gpo" | "chan":
            return lazy(HardestTripletLoss, margin=loss_margin(name))
        case "esa":
            return lazy(SelfExpandingLoss, margin=MARGIN)
        case "hrem":
            return _by_distance(dataset)
        case "dive":
            return lazy(HardestTripletLoss, margin=MARGIN, reduction="mean")


def _by_distance(dataset: Dataset, grid: str = INFERENCE) -> Loss:
    furthest = FURTHEST.get(dataset, 1.7)
    return lazy(DistanceWeightedTripletLoss, margin=MARGIN, furthest=furthest, grid=grid)


def _enhanced(name: Host, dataset: Dataset, longer: float) -> Terms:
    """HREM's other grids, once the plain embeddings have been learnt for a while."""
    if paper_of(name) != "hrem":
        return {}
    steps = round(longer * GRAPH_AFTER[dataset])
    return {
        grid.replace(" ", "_"): (1.0, lazy(StartAt, term=_by_distance(dataset, grid), steps=steps))
        for grid in ENHANCED
    }


# Rates, epochs and batches of NDGL's models, as their authors' scripts have them.
#
# AdamW everywhere. With a BiGRU the scripts of GPO, CHAN and ESA leave the decay at PyTorch's 0.01;
# with BERT it is 1e-4, as it always is in those of HREM and DivE. Theirs decays biases and norms
# too,
# ours does not, see `OptimizerConfig`. The rates of `scenes` and Flickr8k are ours, the same as of
# the
# older models.


RATE, DECAY, BERT_DECAY = 5e-4, 0.01, 1e-4
SLOWER = 0.1  # BERT; DivE's image side, and what makes sets of its texts
DIVE_SLOWER = ("image.*", "image_slots.*", "image_norm.*", "text_slots.*", "text_norm.*")
IMAGES = 200  # of a batch of DivE, each with all of its captions


def modern_train_config(name: Host, dataset: Dataset, *, seed: int = 0) -> TrainConfig:
    """The training written down."""
    if dataset not in LARGE:
        return _small(name, dataset, seed)
    if paper_of(name) == "dive":
        return _dive_modern_rounds(seed)
    hrem = paper_of(name) == "hrem"
    return TrainConfig(
        epochs=30 if hrem else 25,
        batch=_batch(name, dataset),
        seed=seed,
        drop_last=True,
        optimiser=_optimiser(name),
        schedule=StepDecayLR(at=(15, 25) if hrem else (15,)),
    )


def _batch(name: Host, dataset: Dataset) -> int:
    if paper_of(name) == "chan" and not reads_bert(name):
        return 384
    return 256 if paper_of(name) == "hrem" and dataset == "coco" else 128


def _optimiser(name: Host) -> OptimizerConfig:
    if not reads_bert(name):
        decay = BERT_DECAY if paper_of(name) == "hrem" else DECAY
        return OptimizerConfig(rule="adamw", rate=RATE, decay=decay)
    groups: tuple[ParameterGroup, ...] = (ParameterGroup(match="text.body.*", rate=SLOWER),)
    if name.endswith("-grid"):  # an epoch of standing still, then a hundredth (WSL weights)
        groups = (*groups, ParameterGroup(match="image.body.*", rate=0.01, begins=1))
    return OptimizerConfig(rule="adamw", rate=RATE, decay=BERT_DECAY, groups=groups)


def _dive_modern_rounds(seed: int) -> TrainConfig:
    slower = tuple(ParameterGroup(match=match, rate=SLOWER) for match in DIVE_SLOWER)
    return TrainConfig(
        epochs=80,
        batch=IMAGES,
        all_captions=True,
        seed=seed,
        drop_last=True,
        optimiser=OptimizerConfig(
            rule="adamw", rate=1e-3, decay=BERT_DECAY, clip=1.0, groups=slower
        ),
        schedule=CosineLR(),
    )


def _small(name: Host, dataset: Dataset, seed: int) -> TrainConfig:
    """DivE's batch has about as many captions as the others'."""
    plan = models.own_settings(dataset, seed)
    if paper_of(name) != "dive":
        return plan
    return replace(plan, batch=max(1, plan.batch // 5), all_captions=True)


# The models that NDGL is tried on, each trained by itself: five modern ones and VSRN.


BaseModel = Host | Literal["vsrn"]
BASE_MODELS: tuple[BaseModel, ...] = (*HOSTS, "vsrn")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class BaseSetting:
    """A model on a data set.

    Attributes:
        model: which model.
        dataset: what it is trained on.
        seed: of its training.
        profile: widths, where they are not the data set's.
        batch: anchors in a batch, where they are not the model's; warm-ups see as many anchors
            then.
    """

    host: BaseModel
    dataset: Dataset
    seed: int = 0
    profile: DatasetProfile | None = None
    batch: int | None = None


@final
@dataclass(frozen=True, slots=True)
class BaseRecipe:
    """A model as its own paper trains it.

    Attributes:
        model: the model.
        terms: its own loss.
        processor: what it sees.
        plan: its training.
        reduction: how its loss is summed over a batch.
    """

    model: Config[RetrievalModel]
    terms: Terms
    processor: ProcessorConfig
    plan: TrainConfig
    reduction: Reduction


def base_of(at: BaseSetting, instead: Loss | None = None) -> BaseRecipe:
    """A model as its paper trains it.

    Args:
        at: which model, and on what.
        instead: what judges the plain grid in place of its own triplet.
    """
    if at.host == "vsrn":
        return _vsrn(at, instead or lazy(HardestTripletLoss, margin=models.MARGIN))
    plan, longer = _batched(modern_train_config(at.host, at.dataset, seed=at.seed), at.batch)
    copies = 2 if instead is None else 1
    return BaseRecipe(
        model=modern_config(at.host, at.dataset, copies=copies, profile=at.profile),
        terms=modern_terms(at.host, at.dataset, instead, longer=longer),
        processor=modern_processor(at.host, at.dataset),
        plan=plan,
        reduction=loss_reduction(at.host),
    )


def _vsrn(at: BaseSetting, term: Loss) -> BaseRecipe:
    plan, longer = _batched(models.first_round("vsrn-single", at.dataset, seed=at.seed), at.batch)
    first = lazy(against_all(at.dataset), margin=models.MARGIN)
    steps = round(longer * models.warmup_epochs("vsrn-single", at.dataset))
    whole = initial_loss(first, term, steps)
    return BaseRecipe(
        model=models.model_config("vsrn-single", at.dataset, profile=at.profile),
        terms={"triplet": (1.0, whole)},
        processor=PROFILES[at.dataset].processor,
        plan=plan,
        reduction="sum",
    )


def _batched(plan: TrainConfig, batch: int | None) -> tuple[TrainConfig, float]:
    """A plan with batches of another size, and how many times as many there are in an epoch."""
    if batch is None:
        return plan, 1.0
    return replace(plan, batch=batch), plan.batch / batch


def base_reduction(host: BaseModel) -> Reduction:
    """How the model's losses are summed over a batch."""
    return "sum" if host == "vsrn" else loss_reduction(host)


def base_margin(name: BaseModel) -> float:
    """Of the model's own triplet."""
    return models.MARGIN if name == "vsrn" else loss_margin(name)


def base_title(name: BaseModel) -> str:
    """As tables call it."""
    return "VSRN" if name == "vsrn" else model_title(name)


def base_embeddings(name: BaseModel) -> tuple[Dataset, ...]:
    """The data sets that it has recipes for."""
    return get_args(Dataset) if name == "vsrn" else embeddings_per_item(name)


def trained_base(name: str, host: BaseRecipe) -> Train:
    """A model trained with its own loss."""
    return Train(
        name=name,
        model=host.model,
        objective=weighted_sum(**host.terms),
        processor=host.processor,
        plan=host.plan,
    )


def base_recipe(name: Host, dataset: Dataset) -> Recipe:
    """Train and measure."""
    protocol = PROFILES[dataset].protocol
    tests = [Evaluate(name="test", using=("online",), protocol=protocol)]
    if dataset == "coco":
        tests.append(Evaluate(name="test-5k", using=("online",), protocol="coco-5k"))
    return Recipe(
        name=f"{name}-{dataset}",
        stages=(trained_base("online", base_of(BaseSetting(host=name, dataset=dataset))), *tests),
        data=PROFILES[dataset].data,
        about=f"{base_title(name)}; single model, its own loss",
    )
