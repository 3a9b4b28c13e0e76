"""The models that NDGL is tried on or compared with, as their papers train them.

GPO (Chen et al., CVPR 2021), CHAN (Pan et al., CVPR 2023), ESA (Zhu et al., TCSVT 2023), HREM (Fu
et al., CVPR 2023) and DivE (Kim et al., CVPR 2023), on detected regions with a BiGRU, with BERT
where a name ends in ``-bert``, and GPO also on the grid of a ResNeXt-101 (``gpo-grid``); VSRN; and
`COMPARED`: X-Dim (Zhang et al., ACM MM 2023) and USER (Zhang et al., TIP 2024). NAAF and SGRAF are
in `counterfoil.papers.systems`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, final

from counterfoil.core.config import Config, config, from_data, lazy
from counterfoil.core.types import INFERENCE
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import Loss, Reduction
from counterfoil.losses.queue import MomentumQueueLoss, UTOLoss
from counterfoil.losses.schedules import LinearRamp, StartAt, SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, MeanTripletLoss, SumTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import ImageTower, TextTower
from counterfoil.models.layers.pretrained import BertTextTower, TimmGridTower
from counterfoil.models.layers.towers import GRU, Init, MLPRegions, PatchTower, Regions
from counterfoil.negatives.momentum import MomentumQueue
from counterfoil.negatives.online import OnlineMiner
from counterfoil.papers import systems as models
from counterfoil.papers.compared.losses import DistanceWeightedTripletLoss, SelfExpandingLoss
from counterfoil.papers.models.chan import CHAN
from counterfoil.papers.models.dive import DivE, PooledParts, WordsAndStates
from counterfoil.papers.models.esa import ESA
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.hrem import HREM, BatchGraph
from counterfoil.papers.models.user import EnhancedRegions
from counterfoil.papers.models.xdim import XDim
from counterfoil.papers.systems import (
    DATASETS,
    LARGE,
    PROFILES,
    DataSet,
    DatasetProfile,
    as_published,
    check_numbers,
)
from counterfoil.pipelines.pipeline import Recipe
from counterfoil.recipes.base import MARGIN, Terms, TrainingSetup
from counterfoil.training.config import (
    CosineLR,
    LRSchedule,
    OptimizerConfig,
    ParameterGroup,
    StepDecayLR,
    TrainConfig,
)

# Rates, epochs and batches on Flickr30K and MS-COCO, as the authors' scripts have them.
#
# AdamW everywhere. With a BiGRU the scripts of GPO, CHAN and ESA leave the decay at PyTorch's 0.01;
# with BERT it is 1e-4, as it always is in those of HREM and DivE. Theirs decays biases and norms
# too, ours does not, see `OptimizerConfig`. The warm-up with all negatives is an epoch, as the
# authors have it, but for HREM and DivE.

EPOCH = {"flickr30k": 1132, "coco": 4425}  # steps of 128 captions
WIDE_EPOCH = {"flickr30k": 377, "coco": 1475}  # steps of 384
_TEXT = ParameterGroup(match="text.body.*", rate=0.1)
# an epoch of standing still, then a hundredth (WSL weights)
_GRID = ParameterGroup(match="image.body.*", rate=0.01, begins=1)
_DIVE = ("image.*", "image_slots.*", "image_norm.*", "text_slots.*", "text_norm.*")


@final
@dataclass(frozen=True, kw_only=True)
class ModelPreset:
    """A model with the training of its authors' scripts.

    Attributes:
        title: for tables, with the text encoder.
        paper: key of the paper that describes the model.
        bert: whether BERT reads the texts; it is for the large data sets alone.
        grid: whether it looks at the grid of a ResNeXt-101 instead of regions.
        margin: of its triplet.
        reduction: how its losses are summed over a batch.
        warmup: steps against all negatives first.
        epochs: of the training.
        schedule: of the learning rate.
        rounds: epochs, and epoch at which the rate drops, where data sets differ in them.
        batch: captions of a batch, or images with all of their captions.
        all_captions: whether a batch is of images with all of their captions.
        rate: learning rate.
        decay: weight decay.
        clip: norm that gradients are clipped to.
        groups: parameters with another rate.
    """

    title: str
    paper: str
    bert: bool = False
    grid: bool = False
    margin: float = MARGIN
    reduction: Reduction = "sum"
    warmup: dict[str, int] = field(default_factory=lambda: EPOCH)
    epochs: int = 25
    schedule: LRSchedule = field(default_factory=lambda: StepDecayLR(at=(15,)))
    rounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    batch: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LARGE, 128))
    all_captions: bool = False
    rate: float = 5e-4
    decay: float = 0.01
    clip: float = 2.0
    groups: tuple[ParameterGroup, ...] = ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that it has recipes for: small ones where nothing is to be downloaded."""
        return LARGE if self.bert else DATASETS


_GPO = ModelPreset(title="GPO (BiGRU)", paper="gpo")
_CHAN = ModelPreset(
    title="CHAN (BiGRU)",
    paper="chan",
    margin=0.05,
    warmup=WIDE_EPOCH,
    batch=dict.fromkeys(LARGE, 384),
)
_ESA = ModelPreset(title="ESA (BiGRU)", paper="esa")
_HREM = ModelPreset(
    title="HREM (BiGRU)",
    paper="hrem",
    warmup=dict.fromkeys(LARGE, 0),
    epochs=30,
    schedule=StepDecayLR(at=(15, 25)),
    batch={"flickr30k": 128, "coco": 256},
    decay=1e-4,
)

MODELS = {
    "gpo": _GPO,
    "chan": _CHAN,
    "esa": _ESA,
    "hrem": _HREM,
    "dive": ModelPreset(
        title="DivE (BiGRU)",
        paper="dive",
        reduction="mean",
        warmup=dict.fromkeys(LARGE, 0),
        epochs=80,
        schedule=CosineLR(),
        batch=dict.fromkeys(LARGE, 200),
        all_captions=True,
        rate=1e-3,
        decay=1e-4,
        clip=1.0,
        groups=tuple(ParameterGroup(match=match, rate=0.1) for match in _DIVE),
    ),
    "gpo-bert": replace(_GPO, title="GPO (BERT)", bert=True, decay=1e-4, groups=(_TEXT,)),
    "chan-bert": replace(
        _CHAN,
        title="CHAN (BERT)",
        bert=True,
        warmup=EPOCH,
        batch=dict.fromkeys(LARGE, 128),
        decay=1e-4,
        groups=(_TEXT,),
    ),
    "esa-bert": replace(_ESA, title="ESA (BERT)", bert=True, decay=1e-4, groups=(_TEXT,)),
    "hrem-bert": replace(_HREM, title="HREM (BERT)", bert=True, groups=(_TEXT,)),
    "gpo-grid": replace(
        _GPO,
        title="GPO (ResNeXt-101, BERT)",
        bert=True,
        grid=True,
        decay=1e-4,
        groups=(_TEXT, _GRID),
    ),
    "vsrn": ModelPreset(title="VSRN", paper="vsrn"),  # trained as in `models`
}
MODERN = tuple(name for name in MODELS if name != "vsrn")

_XDIM = replace(
    _GPO,
    title="X-Dim (BiGRU)",
    paper="xdim",
    rounds={"flickr30k": (25, 15), "coco": (20, 10)},
    decay=1e-4,
)
_USER = replace(
    _GPO,
    title="USER (BiGRU)",
    paper="user",
    reduction="mean",
    warmup=dict.fromkeys(LARGE, 0),
    rounds={"flickr30k": (20, 10), "coco": (25, 15)},
    decay=1e-4,
)
# Both were released with BERT alone; beside a BiGRU they have the same numbers.
COMPARED = {
    "xdim": _XDIM,
    "user": _USER,
    "xdim-bert": replace(_XDIM, title="X-Dim (BERT)", bert=True, groups=(_TEXT,)),
    "user-bert": replace(_USER, title="USER (BERT)", bert=True, groups=(_TEXT,)),
}
PRESETS = MODELS | COMPARED


def train_config(name: str, dataset: str, *, seed: int = 0) -> TrainConfig:
    """The training of a modern model; on the small data sets with the rates of the older ones."""
    preset = PRESETS[name]
    if dataset not in LARGE:
        plan = models.small_plan(dataset, seed)
        if not preset.all_captions:
            return plan
        # as many captions as the others' batches have
        return replace(plan, batch=max(1, plan.batch // 5), all_captions=True)
    schedule, epochs = preset.schedule, preset.epochs
    if dataset in preset.rounds:
        epochs, drop = preset.rounds[dataset]
        schedule = StepDecayLR(at=(drop,))
    return TrainConfig(
        epochs=epochs,
        batch=preset.batch[dataset],
        all_captions=preset.all_captions,
        seed=seed,
        drop_last=True,
        optimiser=OptimizerConfig(
            rule="adamw",
            rate=preset.rate,
            decay=preset.decay,
            clip=preset.clip,
            groups=preset.groups,
        ),
        schedule=schedule,
    )


# Configs of the models.

BERT = "bert-base-uncased"
DROP = 0.2  # share of regions and of words that is dropped in training
RESNEXT = "resnext101_32x8d.fb_wsl_ig1b_ft_in1k"
GRID_PROCESSOR = ProcessorConfig(
    images="pixels",
    size=512,
    mean=(0.485, 0.456, 0.406),
    deviation=(0.229, 0.224, 0.225),
    texts=BERT,
)


def model_config(
    name: str, dataset: str, *, copies: int = 2, profile: DatasetProfile | None = None
) -> Config[RetrievalModel]:
    """A modern model at the width of a data set."""
    profile, preset = profile or PROFILES[dataset], PRESETS[name]
    match preset.paper:
        case "gpo":
            return config(GPO, image=_regions(preset, profile), text=_words(preset, profile))
        case "user":
            image = _regions(preset, profile, drop=0.0)
            if profile.processor.images == "features":  # pixels have no features to enhance
                image = lazy(EnhancedRegions, tower=image, features=from_data("features"))
            return config(GPO, image=image, text=_words(preset, profile))
        case "xdim":
            return config(XDim, image=_regions(preset, profile), text=_words(preset, profile))
        case "chan":
            # Beside a BiGRU it is published with self-attention over regions and log-sum-exp over
            # words. On our own small sets words are averaged, as beside BERT, so that the margin
            # is in cosines.
            return config(
                CHAN,
                image=_regions(preset, profile, mlp=False),
                text=_words(preset, profile),
                block="basic" if preset.bert else "selfattention",
                pooling="LSE" if dataset in LARGE and not preset.bert else "Mean",
            )
        case "esa":
            image, text = _regions(preset, profile, drop=0.0), _words(preset, profile, dropout=0.1)
            return config(ESA, image=image, text=text, copies=copies)
        case "hrem":
            weight = 1.5 if dataset == "coco" else 1.0
            graph = lazy(BatchGraph, width=profile.width, mask_weight=weight)
            image = _regions(preset, profile, init="xavier")
            return config(HREM, image=image, text=_words(preset, profile), graph=graph)
    return _dive(profile)


def processor_config(name: str, dataset: str) -> ProcessorConfig:
    """The processor of a modern model."""
    preset, processor = PRESETS[name], PROFILES[dataset].processor
    if preset.grid:
        return GRID_PROCESSOR
    return replace(processor, texts=BERT) if preset.bert else processor


def _dive(profile: DatasetProfile) -> Config[RetrievalModel]:
    """DivE; the parts of a text are its words' embeddings."""
    width = profile.width
    if profile.processor.images == "pixels":
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
    preset: ModelPreset,
    profile: DatasetProfile,
    *,
    mlp: bool = True,
    init: Init = "default",
    drop: float = DROP,
) -> ImageTower:
    """Tower of regions; of grid cells or patches where the model reads pixels."""
    width = profile.width
    if preset.grid:
        return lazy(
            TimmGridTower,
            name=RESNEXT,
            width=width,
            pretrained=from_data("pretrained"),
            smallest=0.6,
            mirror=0.5,
            cell_drop=DROP,
        )
    if profile.processor.images == "pixels":
        return lazy(PatchTower, size=from_data("size"), width=width)
    features = from_data("features")
    if mlp:
        return lazy(MLPRegions, features=features, width=width, init=init, region_drop=drop)
    return lazy(Regions, features=features, width=width, region_drop=drop)


def _words(preset: ModelPreset, profile: DatasetProfile, *, dropout: float = 0.0) -> TextTower:
    if preset.bert:
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


# Losses: a model's own, or another in place of its triplet.
#
# HREM also judges three enhanced score matrices, whatever the loss of the plain one is. On our own
# small sets the warm-up with all negatives is longer than the authors', and every model with a
# triplet has one: with fewer steps GPO collapses.

SMALL_STEPS = {"scenes": 628, "flickr8k": 705}
GRAPH_AFTER = {**SMALL_STEPS, "flickr30k": 8000, "coco": 8000}  # steps before HREM's graph
FURTHEST = {"coco": 1.9}  # largest distance of HREM's sampler
ENHANCED = ("images enhanced", "texts enhanced", "both enhanced")
IN_BATCH = {"flickr30k": 20.0}  # lambda of USER's loss within the batch; 1 elsewhere
QUEUE = {"coco": 4096}  # K, places of USER's queue; 2,048 elsewhere


def loss_terms(
    name: str, dataset: str, instead: Loss | None = None, *, longer: float = 1.0
) -> Terms:
    """Weighted terms of a modern model's loss by name.

    Another loss may stand in place of its triplet; steps before later terms are `longer` times as
    many, as for smaller batches.
    """
    preset = PRESETS[name]
    if preset.paper == "user":
        loss = instead or lazy(UTOLoss)
        return {
            "batch": (IN_BATCH.get(dataset, 1.0), loss),
            "queue": (1.0, lazy(MomentumQueueLoss)),
        }
    first: Loss
    if instead is None and preset.paper == "esa":
        first = lazy(
            SelfExpandingLoss, against="all" if dataset in LARGE else "mean", margin=MARGIN
        )
    else:
        first = lazy(all_negatives_loss(dataset), margin=preset.margin, reduction=preset.reduction)
    steps = round(longer * warmup_steps(name, dataset))
    triplet = switch_after(first, instead or _own_loss(name, dataset), steps)
    if preset.grid:  # the backbone is unfrozen after the warm-up, and the loss rises for an epoch
        triplet = lazy(LinearRamp, term=triplet, steps=steps, start=steps)
    terms: Terms = {"triplet": (1.0, triplet)}
    if preset.paper == "hrem":  # once the plain embeddings have been learnt for a while
        steps = round(longer * GRAPH_AFTER[dataset])
        for grid in ENHANCED:
            late = lazy(StartAt, term=_distance_weighted(dataset, grid), steps=steps)
            terms[grid.replace(" ", "_")] = (1.0, late)
    return terms


def warmup_steps(name: str, dataset: str) -> int:
    """Steps against all negatives first."""
    return PRESETS[name].warmup[dataset] if dataset in LARGE else SMALL_STEPS[dataset]


def switch_after(first: Loss, then: Loss, steps: int) -> Loss:
    """A loss that follows some steps with another; for 0 steps the loss alone."""
    return lazy(SwitchAfter, first=first, second=then, steps=steps) if steps else then


def all_negatives_loss(dataset: str) -> type[SumTripletLoss] | type[MeanTripletLoss]:
    """Loss of the warm-up: the sum of hinges as authors have it, on our own small sets the mean.

    To Adam both are alike, but in a long warm-up a sum would outweigh the other terms.
    """
    return SumTripletLoss if dataset in LARGE else MeanTripletLoss


def _own_loss(name: str, dataset: str) -> Loss:
    preset = PRESETS[name]
    match preset.paper:
        case "esa":
            return lazy(SelfExpandingLoss, margin=MARGIN)
        case "hrem":
            return _distance_weighted(dataset)
        case "dive":
            return lazy(HardestTripletLoss, margin=MARGIN, reduction="mean")
    return lazy(HardestTripletLoss, margin=preset.margin)


def _distance_weighted(dataset: str, grid: str = INFERENCE) -> Loss:
    furthest = FURTHEST.get(dataset, 1.7)
    return lazy(DistanceWeightedTripletLoss, margin=MARGIN, furthest=furthest, grid=grid)


def momentum_queue(dataset: str) -> Config[OnlineMiner]:
    """USER's queue, which scores the anchors of any model with items of earlier batches."""
    return config(MomentumQueue, size=QUEUE.get(dataset, 2048))


# A model with everything of its training.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSetting:
    """A model on a data set.

    Attributes:
        name: of the model, in `PRESETS` or `counterfoil.papers.systems.SINGLES`.
        dataset: the data set.
        seed: of its training.
        profile: widths, where they are not the data set's.
        batch: anchors in a batch, where they are not the model's; warm-ups see as many anchors
            then.
    """

    name: str
    dataset: str
    seed: int = 0
    profile: DatasetProfile | None = None
    batch: int | None = None

    @property
    def preset(self) -> ModelPreset:
        """The model's row in `PRESETS`."""
        return PRESETS[self.name]

    def setup(self, instead: Loss | None = None) -> TrainingSetup:
        """The model as its paper trains it, or with another loss in place of its own triplet."""
        older = "vsrn-single" if self.name == "vsrn" else self.name
        if older in models.SINGLES:
            return self._older_setup(older, instead or lazy(HardestTripletLoss, margin=MARGIN))
        plan, longer = self._with_batch(train_config(self.name, self.dataset, seed=self.seed))
        copies = 2 if instead is None else 1
        return TrainingSetup(
            model=model_config(self.name, self.dataset, copies=copies, profile=self.profile),
            terms=loss_terms(self.name, self.dataset, instead, longer=longer),
            processor=processor_config(self.name, self.dataset),
            plan=plan,
            reduction=self.preset.reduction,
            proposer=momentum_queue(self.dataset) if self.preset.paper == "user" else None,
        )

    def _older_setup(self, name: str, loss: Loss) -> TrainingSetup:
        plan, longer = self._with_batch(models.round_plan(name, self.dataset, seed=self.seed))
        every = all_negatives_loss(self.dataset) if self.name == "vsrn" else SumTripletLoss
        steps = round(longer * models.warmup_steps(name, self.dataset))
        return TrainingSetup(
            model=models.model_config(name, self.dataset, profile=self.profile),
            terms={"triplet": (1.0, switch_after(lazy(every, margin=MARGIN), loss, steps))},
            processor=PROFILES[self.dataset].processor,
            plan=plan,
        )

    def _with_batch(self, plan: TrainConfig) -> tuple[TrainConfig, float]:
        """The plan with batches of this size, and the factor by which an epoch gets longer."""
        if self.batch is None:
            return plan, 1.0
        return replace(plan, batch=self.batch), plan.batch / self.batch


def modern_recipe(name: str, dataset: str) -> Recipe:
    """Train and evaluate."""
    training = ModelSetting(name=name, dataset=dataset).setup().stage("online")
    stages = training, *models.evaluation_stages("online", name, dataset, "test")
    about = f"{PRESETS[name].title}; single model, its own loss"
    return models.dataset_recipe(f"{name}-{dataset}", dataset, stages, about)


@as_published
def queue(
    *, model: Literal["vsepp", "gpo", "gpo-bert"] = "vsepp", like: DataSet = "scenes"
) -> Recipe:
    """The model's own loss, alone and with USER's momentum queue as a further source of negatives.

    Args:
        model: trained twice.
        like: data set whose numbers, widths and protocol it has.

    Raises:
        ValueError: the model has no numbers for the data set.
    """
    check_numbers(model, like, PRESETS[model].datasets if model in PRESETS else DATASETS)
    setup = ModelSetting(name=model, dataset=like).setup()
    more: Terms = {"queue": (1.0, lazy(MomentumQueueLoss, reduction=setup.reduction))}
    queued = replace(setup, proposer=momentum_queue(like)).stage("queue", more)
    tests = [t for k in ("online", "queue") for t in models.evaluation_stages(k, model, like)]
    return models.dataset_recipe(
        f"queue/{model}-{like}",
        like,
        (setup.stage("online"), queued, *tests),
        "single model; its own loss, and USER's momentum queue beside it",
        results=("test-online", "test-queue"),
    )
