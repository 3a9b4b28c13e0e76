"""The systems of the papers in one table: each with its loss and its training for every data set.

Every number of a paper stands here once: what a model is trained with in `SYSTEMS`, what a method
adds below it. Rates and epochs of `scenes` and Flickr8k are ours, chosen on dev with VSE++. How a
model of the table is built is in `counterfoil.papers.models.configs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, final, get_args

from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import Reduction
from counterfoil.pipelines.pipeline import ProtocolName
from counterfoil.recipes.base import MARGIN
from counterfoil.training.config import (
    ConstantLR,
    CosineLR,
    LinearLR,
    LRSchedule,
    OptimizerConfig,
    ParameterGroup,
    StepDecayLR,
    TrainConfig,
)

# Data sets

DataSet = Literal["scenes", "flickr8k", "flickr30k", "coco"]
DATASETS: tuple[str, ...] = get_args(DataSet)
LARGE = ("flickr30k", "coco")  # those of the papers


@final
@dataclass(frozen=True, kw_only=True)
class DatasetProfile:
    """Input format and model widths for a data set.

    Attributes:
        data: what is opened when the user names nothing.
        processor: features or pixels, and the vocabulary's threshold.
        width: of the joint space.
        word_width: of a word embedding.
        dropout: share of a word embedding's entries dropped in training.
        protocol: how the test split is evaluated.
    """

    data: str
    processor: ProcessorConfig
    width: int = 1024
    word_width: int = 300
    dropout: float = 0.0
    protocol: ProtocolName


_BUTD = ProcessorConfig(images="features", min_count=4)

PROFILES = {
    "scenes": DatasetProfile(
        data="scenes",
        processor=ProcessorConfig(images="pixels", size=64),
        width=192,
        word_width=128,
        protocol="whole",
    ),
    "flickr8k": DatasetProfile(
        data="flickr8k",
        processor=ProcessorConfig(images="features", standardise=True, min_count=4),
        width=128,
        word_width=128,
        dropout=0.2,
        protocol="flickr-1k",
    ),
    "flickr30k": DatasetProfile(data="f30k_precomp", processor=_BUTD, protocol="flickr-1k"),
    "coco": DatasetProfile(data="coco_precomp", processor=_BUTD, protocol="coco-1k"),
}


# TAGS: Table 5 of the paper, and the numbers of the authors' scripts.
#
# The paper names no batch, clipping and decay; 128 pairs a step, 2 and 0.01 are UNITER's. Section
# 3.2 has masked=0.1 and written=0.001 for both data sets; COCO's are Table 5's here. Those of
# `scenes` and Flickr8k are ours.


@final
@dataclass(frozen=True, kw_only=True)
class TagsNumbers:
    """Numbers of a step of TAGS.

    Attributes:
        steps: of the optimiser.
        batch: pairs of a step.
        rate: learning rate.
        temperature: at which words are sampled.
        masked: weight of the guesses of hidden words.
        written: weight of the generated captions' hinge.
        words: weight of doubting and of correcting words, each.
        offered: wrong texts, and images, that are screened for a pair.
        keep: how many of them, and of the generated captions, are trained on.
        masks: maskings of a caption.
        refills: of each masking.
    """

    steps: int
    batch: int = 128
    rate: float
    temperature: float = 1.5
    masked: float
    written: float
    words: float = 0.0
    offered: int = 399
    keep: int = 31
    masks: int = 20
    refills: int = 20


Steps = tuple[TagsNumbers, TagsNumbers]


def _small(*, steps: int, rate: float, words: float = 0.0) -> TagsNumbers:
    return TagsNumbers(
        steps=steps,
        batch=16,
        rate=rate,
        masked=0.1,
        written=1e-3,
        words=words,
        offered=39,
        keep=7,
        masks=5,
        refills=5,
    )


TAGS: dict[str, Steps] = {
    "scenes": (_small(steps=1000, rate=1e-4), _small(steps=300, rate=2e-5, words=1e-3)),
    "flickr8k": (_small(steps=2000, rate=1e-4), _small(steps=600, rate=2e-5, words=1e-3)),
    "flickr30k": (
        TagsNumbers(steps=5000, rate=5e-5, masked=0.1, written=1e-3),
        TagsNumbers(steps=1500, rate=1e-5, masked=0.1, written=1e-3, words=1e-3),
    ),
    "coco": (
        TagsNumbers(steps=5000, rate=5e-5, masked=0.05, written=1e-4),
        TagsNumbers(steps=1500, rate=1e-5, masked=0.05, written=1e-4, words=5e-4),
    ),
}

TAGS_RELEASED: dict[str, Steps] = {
    "scenes": TAGS["scenes"],
    "flickr8k": TAGS["flickr8k"],
    "flickr30k": (
        TagsNumbers(steps=5000, rate=5e-5, temperature=2.0, masked=0.05, written=5e-4),
        TagsNumbers(steps=1500, batch=256, rate=1e-5, masked=0.1, written=5e-4, words=5e-4),
    ),
    "coco": (
        TagsNumbers(steps=5000, batch=256, rate=5e-5, masked=0.01, written=5e-5),
        TagsNumbers(steps=1500, batch=256, rate=1e-5, masked=0.05, written=1e-4, words=5e-4),
    ),
}


LARGE_TAGS: dict[str, Steps] = {  # Table 5, L
    "flickr30k": (
        TagsNumbers(steps=5000, rate=4e-5, masked=0.1, written=5e-4, keep=23),
        TagsNumbers(steps=1500, rate=1e-5, masked=0.1, written=5e-4, words=5e-4, keep=23),
    ),
    "coco": (
        TagsNumbers(steps=5000, rate=4e-5, masked=0.05, written=5e-4, keep=23),
        TagsNumbers(steps=1500, rate=1e-5, masked=0.05, written=5e-4, words=5e-4, keep=23),
    ),
}

LARGE_TAGS_RELEASED: dict[str, Steps] = {
    "flickr30k": (
        TagsNumbers(
            steps=5000, batch=256, rate=5e-5, temperature=2.0, masked=0.05, written=1e-3, keep=23
        ),
        TagsNumbers(
            steps=5000, batch=256, rate=1e-5, masked=0.05, written=5e-4, words=5e-4, keep=23
        ),
    ),
    "coco": (
        TagsNumbers(steps=5000, batch=256, rate=4e-5, masked=0.05, written=1e-3, keep=23),
        TagsNumbers(steps=1500, batch=256, rate=1e-5, masked=0.05, written=1e-4, words=5e-4),
    ),
}


# Trainings: epochs, learning rates, batches and drops of the rate.


BATCH = 128
CLIP = 2.0  # global norm of the gradients, in every training but DivE's
RoundName = Literal["first", "second", "released"]


def adam_plan(rate: float, drop: int, epochs: int, batch: int = BATCH) -> TrainConfig:
    """Adam with gradients clipped at 2, and a tenth of the rate after `drop` epochs."""
    schedule: LRSchedule = StepDecayLR(at=(drop,)) if drop < epochs else ConstantLR()
    optimiser = OptimizerConfig(rate=rate)
    return TrainConfig(epochs=epochs, batch=batch, optimiser=optimiser, schedule=schedule)


def adamw_plan(
    *,
    epochs: int = 25,
    drops: tuple[int, ...] = (15,),
    batch: int = BATCH,
    rate: float = 5e-4,
    decay: float = 0.01,
    clip: float = 2.0,
    groups: tuple[ParameterGroup, ...] = (),
    all_captions: bool = False,
) -> TrainConfig:
    """AdamW as the scripts of GPO have it, on whose code the newer models build.

    With a BiGRU the scripts of GPO, CHAN and ESA leave the decay at PyTorch's 0.01; with BERT it is
    1e-4, as it always is in those of HREM and DivE. All parameters decay, biases and norms too. The
    last batch of an epoch is dropped. Without `drops` the rate follows half a cosine.
    """
    return TrainConfig(
        epochs=epochs,
        batch=batch,
        all_captions=all_captions,
        drop_last=True,
        optimiser=OptimizerConfig(
            rule="adamw", rate=rate, decay=decay, decay_vectors=True, clip=clip, groups=groups
        ),
        schedule=StepDecayLR(at=drops) if drops else CosineLR(),
    )


def small_plan(dataset: str, seed: int) -> TrainConfig:
    """Our own rates, for `scenes` and Flickr8k."""
    scenes = dataset == "scenes"
    rates = OptimizerConfig(rule="adamw", rate=1e-3) if scenes else OptimizerConfig(rate=3e-3)
    return TrainConfig(
        epochs=5,
        batch=64 if scenes else BATCH,
        seed=seed,
        optimiser=rates,
        schedule=CosineLR(warmup=50),
    )


# Steps against all negatives first, VSE-infinity's warm-up: without it the hardest negative may
# collapse from a cold start. The newer models' authors have an epoch of it. On our own small sets
# it is longer than theirs: with fewer steps BFAN, VSRN and GPO collapse.


EPOCH = {"flickr30k": 1132, "coco": 4425}  # steps of 128 captions
WIDE_EPOCH = {"flickr30k": 377, "coco": 1475}  # steps of 384
SHORT = {"scenes": 320, "flickr8k": 235}
LONG = {"scenes": 628, "flickr8k": 705}
NONE = {"flickr30k": 0, "coco": 0}


@final
@dataclass(frozen=True, kw_only=True)
class System:
    """A model with its loss and its training.

    Attributes:
        title: for tables, with the text encoder.
        paper: key of the paper that describes the model.
        datasets: the data sets that it has numbers for.
        bert: whether BERT reads the texts.
        grid: whether it looks at the grid of a ResNeXt-101 instead of regions.
        boxes: whether it reads where regions are, and wordpieces on the large data sets.
        margin: of its triplet.
        reduction: how its losses are summed over a batch.
        warmup: steps against all negatives first, by data set.
        training: as its own paper or its authors' scripts have it, by large data set.
        second: training on mined negatives, of AOQ.
        released: the same in AOQ's code.
        size: layers, width and heads of a joint encoder on the large data sets.
        tags: both steps of TAGS, by data set.
        tags_released: the same in the authors' scripts.
    """

    title: str
    paper: str
    datasets: tuple[str, ...] = DATASETS
    bert: bool = False
    grid: bool = False
    boxes: bool = False
    margin: float = MARGIN
    reduction: Reduction = "sum"
    warmup: Mapping[str, int] = field(default_factory=dict)
    training: Mapping[str, TrainConfig] = field(default_factory=dict)
    second: TrainConfig | None = None
    released: TrainConfig | None = None
    size: tuple[int, int, int] = (12, 768, 12)
    tags: Mapping[str, Steps] = field(default_factory=dict)
    tags_released: Mapping[str, Steps] = field(default_factory=dict)


# VSE++ (Faghri et al., BMVC 2018, section 4.1), SCAN (Lee et al., ECCV 2018, section 4.3), BFAN
# (Liu et al., ACM MM 2019; its repository names the epochs), VSRN (Li et al., ICCV 2019, as AOQ's
# section 4.2 has it; its repository trains 30 epochs on Flickr30K too), NAAF (Zhang et al., CVPR
# 2022; its repository names the drop after 10 epochs, which its code's default never makes) and
# SGRAF (Diao et al., AAAI 2021, as its repository). The second round is AOQ's (Chen et al., ECCV
# 2020, section 4.2); it has no VSE++.

_VSEPP = System(
    title="VSE++",
    paper="vsepp",
    warmup=SHORT | NONE,
    training={"flickr30k": adam_plan(2e-4, 15, 30), "coco": adam_plan(2e-4, 15, 30)},
    second=adam_plan(2e-4, 10, 15),  # not in the paper
    released=adam_plan(2e-4, 10, 15),
)
_SCAN = System(
    title="SCAN t-i",
    paper="scan",
    warmup=SHORT | NONE,
    training={"flickr30k": adam_plan(2e-4, 15, 30), "coco": adam_plan(5e-4, 10, 20)},
    second=adam_plan(5e-4, 10, 15),
    released=adam_plan(5e-4, 10, 15),
)
_BFAN = System(
    title="BFAN equal",
    paper="bfan",
    warmup=SHORT | NONE | {"scenes": 628},
    training={"flickr30k": adam_plan(2e-4, 15, 15), "coco": adam_plan(5e-4, 15, 20)},
    second=adam_plan(5e-4, 10, 15),
    released=adam_plan(2e-4, 10, 15),  # the code's default rate
)
_VSRN = System(
    title="VSRN",
    paper="vsrn",
    warmup=LONG | NONE,
    training={"flickr30k": adam_plan(2e-4, 10, 20), "coco": adam_plan(2e-4, 15, 30)},
    second=adam_plan(2e-4, 10, 20),
    released=adam_plan(2e-4, 10, 20),
)
_NAAF = System(
    title="NAAF",
    paper="naaf",
    warmup=SHORT | NONE,
    training={"flickr30k": adam_plan(5e-4, 10, 20), "coco": adam_plan(5e-4, 10, 20, batch=256)},
)
_SGR = System(
    title="SGRAF SGR",
    paper="sgr",
    warmup=SHORT | NONE,
    training={"flickr30k": adam_plan(2e-4, 30, 40), "coco": adam_plan(2e-4, 10, 20)},
)
_SAF = System(
    title="SGRAF SAF",
    paper="saf",
    warmup=SHORT | NONE,
    training={"flickr30k": adam_plan(2e-4, 20, 30), "coco": adam_plan(2e-4, 10, 20)},
)

# GPO (Chen et al., CVPR 2021), CHAN (Pan et al., CVPR 2023), ESA (Zhu et al., TCSVT 2023), HREM (Fu
# et al., CVPR 2023) and DivE (Kim et al., CVPR 2023), on detected regions with a BiGRU, with BERT
# where a name ends in ``-bert``, and GPO also on the grid of a ResNeXt-101: as the authors' scripts
# have them. X-Dim (Zhang et al., ACM MM 2023) and USER (Zhang et al., TIP 2024) were released with
# BERT alone; beside a BiGRU they have the same numbers.

_TEXT = ParameterGroup(match="text.body.*", rate=0.1)
# an epoch of standing still, then a hundredth (WSL weights)
_GRID = ParameterGroup(match="image.body.*", rate=0.01, begins=1)
_DIVE_GROUPS = tuple(
    ParameterGroup(match=match, rate=0.1)
    for match in ("image.*", "image_slots.*", "image_norm.*", "text_slots.*", "text_norm.*")
)


def _alike(plan: TrainConfig) -> dict[str, TrainConfig]:
    """The same training on both large data sets."""
    return dict.fromkeys(LARGE, plan)


def _with_bert(system: System) -> System:
    """The same with BERT: for the large data sets, at a decay of 1e-4, with a tenth of the rate."""

    def slower(plan: TrainConfig) -> TrainConfig:
        groups = (*plan.optimiser.groups, _TEXT)
        return replace(plan, optimiser=replace(plan.optimiser, decay=1e-4, groups=groups))

    return replace(
        system,
        title=system.title.replace("BiGRU", "BERT"),
        datasets=LARGE,
        bert=True,
        training={like: slower(plan) for like, plan in system.training.items()},
    )


_GPO = System(title="GPO (BiGRU)", paper="gpo", warmup=LONG | EPOCH, training=_alike(adamw_plan()))
_CHAN = System(
    title="CHAN (BiGRU)",
    paper="chan",
    margin=0.05,
    warmup=LONG | WIDE_EPOCH,
    training=_alike(adamw_plan(batch=384)),
)
_ESA = replace(_GPO, title="ESA (BiGRU)", paper="esa")
_HREM = System(
    title="HREM (BiGRU)",
    paper="hrem",
    warmup=LONG | NONE,
    training={
        "flickr30k": adamw_plan(epochs=30, drops=(15, 25), decay=1e-4),
        "coco": adamw_plan(epochs=30, drops=(15, 25), decay=1e-4, batch=256),
    },
)
_DIVE = System(
    title="DivE (BiGRU)",
    paper="dive",
    reduction="mean",
    warmup=LONG | NONE,
    training=_alike(
        adamw_plan(
            epochs=80,
            drops=(),
            batch=200,  # images with all of their captions
            all_captions=True,
            rate=1e-3,
            decay=1e-4,
            clip=1.0,
            groups=_DIVE_GROUPS,
        )
    ),
)
# CGMN (Cheng et al., TOMM 2022), as its repository has it: beside the triplet, the graph matching's
_CGMN_PLAN = TrainConfig(
    epochs=30,
    batch=BATCH,
    optimiser=OptimizerConfig(rate=2e-4),
    schedule=StepDecayLR(at=(20, 25)),
)
_CGMN = System(
    title="CGMN",
    paper="cgmn",
    warmup=LONG | {"flickr30k": 500, "coco": 500},
    training=_alike(_CGMN_PLAN),
)
_XDIM = replace(
    _GPO,
    title="X-Dim (BiGRU)",
    paper="xdim",
    training={
        "flickr30k": adamw_plan(decay=1e-4),
        "coco": adamw_plan(epochs=20, drops=(10,), decay=1e-4),
    },
)
_USER = System(
    title="USER (BiGRU)",
    paper="user",
    reduction="mean",
    warmup=LONG | NONE,
    training={
        "flickr30k": adamw_plan(epochs=20, drops=(10,), decay=1e-4),
        "coco": adamw_plan(decay=1e-4),
    },
)

# LightningDOT (Sun et al., NAACL 2021), fine-tuned as its repository has it, from its pre-trained
# weights; without weight decay.


def _lightningdot_plan(epochs: int) -> TrainConfig:
    return TrainConfig(
        epochs=epochs,
        batch=64,
        optimiser=OptimizerConfig(rule="adamw", rate=2e-5, clip=CLIP),
        schedule=LinearLR(warmup=0.1),
    )


_LIGHTNINGDOT = System(
    title="LightningDOT",
    paper="lightningdot",
    boxes=True,
    reduction="mean",
    training={"flickr30k": _lightningdot_plan(15), "coco": _lightningdot_plan(20)},
)

# ERNIE-ViL (Yu et al., AAAI 2021), fine-tuned as the table of its repository has it: 40 epochs of
# batches of 64, the rate falling at three and at four fifths of the steps. It has no COCO training.

WRONG = 10  # images for a caption, and captions for an image, of the 20 that are drawn
_ERNIEVIL = System(
    title="ERNIE-ViL",
    paper="ernievil",
    datasets=("flickr30k",),
    bert=True,
    boxes=True,
    reduction="mean",
    training={
        "flickr30k": TrainConfig(
            epochs=40,
            batch=8,
            accumulate=8,
            optimiser=OptimizerConfig(rule="adamw", rate=2e-5, decay=0.01, clip=1.0),
            schedule=StepDecayLR(at=(24, 32), warmup=0.1),
        )
    },
)

_UNITER = System(title="UNITER", paper="uniter", boxes=True, tags=TAGS, tags_released=TAGS_RELEASED)

SYSTEMS: dict[str, System] = {
    "vsepp": _VSEPP,
    "scan-t2i": _SCAN,
    "scan-t2i-avg": replace(_SCAN, title="SCAN t-i AVG"),
    "scan-i2t": replace(_SCAN, title="SCAN i-t"),
    "bfan-equal": _BFAN,
    "bfan-prob": replace(_BFAN, title="BFAN prob"),
    "vsrn-single": _VSRN,
    "naaf-single": _NAAF,
    "sgraf-sgr": _SGR,
    "sgraf-saf": _SAF,
    "gpo": _GPO,
    "chan": _CHAN,
    "esa": _ESA,
    "hrem": _HREM,
    "dive": _DIVE,
    "gpo-bert": _with_bert(_GPO),
    "chan-bert": replace(
        _with_bert(_CHAN),
        warmup=EPOCH,
        training=_with_bert(_GPO).training,  # batches of 128
    ),
    "esa-bert": _with_bert(_ESA),
    "hrem-bert": _with_bert(_HREM),
    "gpo-grid": replace(
        _with_bert(_GPO),
        title="GPO (ResNeXt-101, BERT)",
        grid=True,
        training=_alike(adamw_plan(decay=1e-4, groups=(_TEXT, _GRID))),
    ),
    "cgmn": _CGMN,
    "xdim": _XDIM,
    "user": _USER,
    "xdim-bert": _with_bert(_XDIM),
    "user-bert": _with_bert(_USER),
    "lightningdot": _LIGHTNINGDOT,
    "ernievil": _ERNIEVIL,
    "uniter": _UNITER,
    # ViLT is not in the paper: on `scenes` it is small and pre-trained in the domain
    "vilt": replace(_UNITER, title="ViLT", paper="vilt", datasets=("scenes",)),
    "uniter-large": System(
        title="UNITER-large",
        paper="uniter",
        datasets=LARGE,
        size=(24, 1024, 16),
        tags=LARGE_TAGS,
        tags_released=LARGE_TAGS_RELEASED,
    ),
    # begins with public weights, for a user's own photos
    "vilt-public": replace(_UNITER, title="ViLT", paper="vilt", datasets=()),
}

# Names by what is done with them. "vsrn" is the ensemble but for NDGL, whose VSRN is a single one.

CLASSIC = tuple(name for name, one in SYSTEMS.items() if one.second)
REASONING = ("naaf-single", "sgraf-sgr", "sgraf-saf")
SINGLES = (*CLASSIC, *REASONING)
JOINT = tuple(name for name, one in SYSTEMS.items() if one.tags)
NEWER = tuple(name for name in SYSTEMS if name not in (*SINGLES, *JOINT))
_NOT_OF_NDGL = ("cgmn", "xdim", "user", "lightningdot", "ernievil")
OF_NDGL = (*(name for name in NEWER if SYSTEMS[name].paper not in _NOT_OF_NDGL), "vsrn")


def find_system(name: str) -> System:
    """The row of a single model."""
    return SYSTEMS["vsrn-single" if name == "vsrn" else name]


def training_config(
    name: str, dataset: str, kind: RoundName = "first", *, seed: int = 0
) -> TrainConfig:
    """The training of a model; on the small data sets with rates of our own.

    "first" is as in the model's paper; "second", on mined negatives, as in AOQ's paper; "released"
    the same as in AOQ's code.
    """
    system = find_system(name)
    if dataset in LARGE:
        plans = {"first": system.training[dataset]}
        if system.second and system.released:
            plans |= {"second": system.second, "released": system.released}
        return replace(plans[kind], seed=seed)
    plan = small_plan(dataset, seed)
    if not any(one.all_captions for one in system.training.values()):
        return plan
    # as many captions as the others' batches have
    return replace(plan, batch=max(1, plan.batch // 5), all_captions=True)


# Ensembles whose scores are averaged, as the papers report: SCAN t-i AVG with i-t LSE, BFAN equal
# with prob, VSRN and NAAF from two seeds, SGRAF SGR with SAF. Every other name is a single model.


@final
@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """A model of an ensemble whose scores are averaged.

    Attributes:
        model: name of the model.
        part: suffix of its stages; empty for a single model.
        seed: of its trainings.
    """

    model: str
    part: str = ""
    seed: int = 0

    def stage(self, kind: str) -> str:
        """Name of its stage of a kind, as in "online" or "online-equal"."""
        return f"{kind}-{self.part}" if self.part else kind


ENSEMBLES = {
    "scan": (EnsembleMember("scan-t2i-avg", "t2i"), EnsembleMember("scan-i2t", "i2t")),
    "bfan": (EnsembleMember("bfan-equal", "equal"), EnsembleMember("bfan-prob", "prob")),
    "vsrn": (
        EnsembleMember("vsrn-single", "first"),
        EnsembleMember("vsrn-single", "second", seed=1),
    ),
    "naaf": (
        EnsembleMember("naaf-single", "first"),
        EnsembleMember("naaf-single", "second", seed=1),
    ),
    "sgraf": (EnsembleMember("sgraf-sgr", "sgr"), EnsembleMember("sgraf-saf", "saf")),
}
REASONING_ENSEMBLES = ("naaf", "sgraf")
NAMES = (*CLASSIC, *(name for name in ENSEMBLES if name not in REASONING_ENSEMBLES))  # of AOQ
COMPARED = (*REASONING, *REASONING_ENSEMBLES)  # in tables of other papers


def ensemble_members(name: str) -> tuple[EnsembleMember, ...]:
    """The models behind a name; one for a single model."""
    return ENSEMBLES.get(name) or (EnsembleMember(name),)


def members_note(name: str) -> str:
    """Number of models behind a name, in words."""
    count = len(ensemble_members(name))
    return "single model" if count == 1 else f"ensemble of {count}"


# What methods add.

# AOQ, section 4.2, but for alpha, beta and the margins, see `counterfoil.recipes.base.ADAPTIVE`
TEXTS, IMAGES = 300, 60  # h: hardest texts of an image, and images of a text
HARDEST = {
    "scenes": (1000, 200),  # of the very hardest, 6 % of texts and 15 % of images are true
    "flickr8k": (100, 20),
    "flickr30k": (TEXTS, IMAGES),
    "coco": (TEXTS, IMAGES),
}
# beta = 1.5 pulls harder than the online triplet: the scores must have spread further by then
OFFLINE_WARMUP = {"scenes": 470}  # steps at least

# NDGL: teachers, weights of MR (Eq. 4) and HNR (Eq. 5), gamma
K = 2
MR_WEIGHT, HNR_WEIGHT, GAMMA = 100.0, 0.5, 0.01
EDIT_MARGIN = 0.1  # CFM's second margin

MATCHED = 1 / 3  # CGMN: weight of the graph matching

# HREM: steps before its graph counts, largest distance of its sampler
GRAPH_AFTER = {**LONG, "flickr30k": 8000, "coco": 8000}
FURTHEST = {"scenes": 1.7, "flickr8k": 1.7, "flickr30k": 1.7, "coco": 1.9}

# USER: lambda of its loss within the batch, K places of its queue
IN_BATCH = {"scenes": 1.0, "flickr8k": 1.0, "flickr30k": 20.0, "coco": 1.0}
QUEUE = {"scenes": 2048, "flickr8k": 2048, "flickr30k": 2048, "coco": 4096}

# TAGS
TAGS_WARMUP = 0.1  # of all steps
DOUBT_WEIGHTS = (1.0, 0.11)  # of wrong words, of right ones

# VSE-C: foils of a caption at each visit, entries of a word vector
VSEC_PLAN = adam_plan(1e-3, 15, 30)
VSEC_FOILS, VSEC_WORD_WIDTH = 5, 400

NEIGHBOURS = 3  # NegCLIP: images of a caption
RERANKED = 100  # LightningDOT: counterparts of a query
