"""TAGS and TAGS-DC: UNITER, or ViLT, trained on captions that it writes itself.

Stages: "pretrained" in the domain; "hard", UNITER's hard negatives; "tags", which also ranks the
captions it writes (step 1, Eq. 7); "tags-dc", which goes on from there and doubts and corrects
their words (step 2, Eqs. 8 and 9). Table 2 compares "wm", which hides single words in place of
phrases, and "static", where the pre-trained model writes all the time.

Departs from the authors' code in: a model pre-trained in the domain (on the small sets as in
`tags_aligned`) takes the place of their weights, which are not at hand; what writes for "static" is
that model; step 2 starts from step 1's best epoch on dev, not from its step 2,000; both directions
of a pair are screened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

from counterfoil.core.config import Config, config, from_data, lazy
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import Loss, Reduction, WeightedSum, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.losses.tags import WordLoss
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.uniter import UNITER
from counterfoil.models.vilt import ViLT
from counterfoil.negatives.generation.inputs import CandidateFilter, GeneratorInputs
from counterfoil.negatives.generation.store import GeneratedCaptions
from counterfoil.negatives.generation.tags import TagsGenerator, Task
from counterfoil.negatives.online import MinerChain, OnlineMiner, TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.pipelines.pipeline import (
    Compare,
    ComputeTargets,
    Evaluate,
    Generate,
    Mine,
    Pretrain,
    Recipe,
    Stage,
    Train,
    pretrain_config,
)
from counterfoil.pipelines.stages.pretrain import ADAMW
from counterfoil.recipes import aoq, models, ndgl, ndgl_models
from counterfoil.recipes.models import LARGE, PROFILES, Dataset, DatasetProfile
from counterfoil.recipes.ndgl import evaluation_stage_of
from counterfoil.recipes.ndgl_models import BaseRecipe, BaseSetting, trained_base
from counterfoil.training.config import LinearLR, OptimizerConfig, TrainConfig

# What TAGS is trained with: Table 5 of the paper, and what the authors' scripts set instead.
#
# The paper names no batch; 128 pairs a step are UNITER's. Those of `scenes` and Flickr8k are ours.


CLIP = 2.0
WARMUP = 0.1  # of all steps
AT_ONCE = 8  # pairs of which a batch of the large sets is made
CAPTIONS: dict[Dataset, int] = {
    "scenes": 10_000,
    "flickr8k": 30_000,
    "flickr30k": 145_000,
    "coco": 566_435,
}


@final
@dataclass(frozen=True, kw_only=True)
class TagsNumbers:
    """What a step of TAGS is trained with.

    Attributes:
        steps: of the optimiser.
        batch: pairs of a step.
        rate: learning rate.
        temperature: of the draw of words.
        masked: weight of the guesses of hidden words.
        written: weight of the written captions' hinge.
        words: weight of doubting and of correcting words, each.
        offered: wrong texts, and images, that are screened for a pair.
        keep: how many of them, and of the written captions, are trained on.
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

    @property
    def candidates(self) -> CandidateConfig:
        """What is screened."""
        return CandidateConfig(texts=self.offered, images=self.offered)


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


PAPER: dict[Dataset, tuple[TagsNumbers, TagsNumbers]] = {
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

RELEASED: dict[Dataset, tuple[TagsNumbers, TagsNumbers]] = {
    "scenes": PAPER["scenes"],
    "flickr8k": PAPER["flickr8k"],
    "flickr30k": (
        TagsNumbers(steps=5000, rate=5e-5, temperature=2.0, masked=0.05, written=5e-4),
        TagsNumbers(steps=1500, batch=256, rate=1e-5, masked=0.1, written=5e-4, words=5e-4),
    ),
    "coco": (
        TagsNumbers(steps=5000, batch=256, rate=5e-5, masked=0.01, written=5e-5),
        TagsNumbers(steps=1500, batch=256, rate=1e-5, masked=0.05, written=1e-4, words=5e-4),
    ),
}


LARGE_PAPER: dict[Dataset, tuple[TagsNumbers, TagsNumbers]] = {  # Table 5, L
    "flickr30k": (
        TagsNumbers(steps=5000, rate=4e-5, masked=0.1, written=5e-4, keep=23),
        TagsNumbers(steps=1500, rate=1e-5, masked=0.1, written=5e-4, words=5e-4, keep=23),
    ),
    "coco": (
        TagsNumbers(steps=5000, rate=4e-5, masked=0.05, written=5e-4, keep=23),
        TagsNumbers(steps=1500, rate=1e-5, masked=0.05, written=5e-4, words=5e-4, keep=23),
    ),
}

LARGE_RELEASED: dict[Dataset, tuple[TagsNumbers, TagsNumbers]] = {
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


def tags_train_config(numbers: TagsNumbers, dataset: Dataset) -> TrainConfig:
    """The training written down: AdamW, a warm-up, then a straight line to 0."""
    batch = AT_ONCE if dataset in LARGE else numbers.batch
    return TrainConfig(
        epochs=-(-numbers.steps * numbers.batch // CAPTIONS[dataset]),
        steps=numbers.steps,
        batch=batch,
        accumulate=numbers.batch // batch,
        optimiser=OptimizerConfig(
            rule=ADAMW.rule,
            rate=numbers.rate,
            decay=ADAMW.decay,
            betas=ADAMW.betas,
            epsilon=ADAMW.epsilon,
            clip=CLIP,
        ),
        schedule=LinearLR(warmup=WARMUP),
    )


# What takes the place of a long pre-training where data and time are small.
#
# Not in the paper. From random weights UNITER's own tasks need far more pairs than the small sets
# have before words find their regions; telling each pair from the batch's others finds them in
# minutes, and hidden words and matches are learned from there.


ALIGNED = "aligned"
RATE, ALIGNED_CLIP, ALIGNED_WARMUP = 1e-3, 2.0, 0.1


def before_training(
    told: Pretrain, *, epochs: tuple[int, int] = (4, 12), dev_images: int = 0
) -> tuple[Train, Pretrain]:
    """Pairs told apart, then the tasks of a pre-training.

    Args:
        told: the pre-training; its plan and how often its tasks are drawn are replaced.
        epochs: passes over the training captions of each.
        dev_images: on which the first's epochs are compared; 0 for all.
    """
    return aligned_stage(told, epochs=epochs[0], dev_images=dev_images), replace(
        told,
        start=ALIGNED,
        plan=pretrain_config(epochs=epochs[1], batch=32, rate=RATE),
        tasks=replace(told.tasks, transport=0.0, words=0.3),
    )


def aligned_stage(told: Pretrain, *, epochs: int, dev_images: int = 0) -> Train:
    """A training that tells pairs apart, from random weights, of what is then pre-trained."""
    return Train(
        name=ALIGNED,
        model=told.model.replace(score="logit"),
        objective=weighted_sum(pairs=lazy(InfoNCELoss, temperature=1.0)),
        processor=told.processor,
        plan=TrainConfig(
            epochs=epochs,
            batch=16,
            optimiser=OptimizerConfig(
                rule=ADAMW.rule, rate=RATE, decay=ADAMW.decay, betas=ADAMW.betas, clip=ALIGNED_CLIP
            ),
            schedule=LinearLR(warmup=ALIGNED_WARMUP),
            dev_images=dev_images,
        ),
    )


# TAGS for photos: ViLT, which reads pixels, in the place of UNITER, which reads regions.
#
# Not in the paper. On `scenes` it is small and pre-trained in the domain, by hidden words and by
# whether text and image match; on a user's own photos it begins with public weights.


PUBLIC = "dandelin/vilt-b32-mlm"
SIDE, PATCH, LONGEST = 384, 32, 40  # of the public weights
SETS: tuple[Dataset, ...] = ("scenes",)
DATA = "scenes:images=2600,dev=100,test=500"
REGIONS = ("regress", "classify")  # heads that say what regions were


def small_vilt(stage: Train | Pretrain) -> Train | Pretrain:
    """A stage of UNITER on `scenes` as one of a small ViLT."""
    return trained_vilt(stage) if isinstance(stage, Train) else pretrained_vilt(stage)


def trained_vilt(stage: Train) -> Train:
    """A training of UNITER on `scenes` as one of a small ViLT."""
    return replace(stage, model=_small_vilt(stage.model), processor=PROFILES["scenes"].processor)


def pretrained_vilt(stage: Pretrain) -> Pretrain:
    """The pre-training of UNITER on `scenes` as that of a small ViLT: no region is hidden."""
    tasks = replace(stage.tasks, mrfr=0.0, mrc=0.0, mrckl=0.0)
    processor = PROFILES["scenes"].processor
    return replace(stage, model=_small_vilt(stage.model), processor=processor, tasks=tasks)


def vilt_from_public(stage: Train) -> Train:
    """A training of UNITER as one of a ViLT that begins with public weights."""
    model = config(
        ViLT,
        vocabulary=from_data("words"),
        mask=from_data("mask"),
        dropout=0.1,
        weights=PUBLIC,
        pretrained=from_data("pretrained"),
        outputs=_heads(stage.model),
    )
    processor = ProcessorConfig(
        images="pixels", size=SIDE, divisor=PATCH, texts=PUBLIC, longest=LONGEST
    )
    return replace(stage, model=model, processor=processor)


def _small_vilt(uniter: Config[RetrievalModel]) -> Config[RetrievalModel]:
    """As wide and as deep as a UNITER; texts may be as long as the processor lets them."""
    taken = {name: uniter.arguments[name] for name in ("layers", "width", "heads", "inner")}
    return config(
        ViLT,
        layers=taken["layers"],
        width=taken["width"],
        heads=taken["heads"],
        inner=taken["inner"],
        vocabulary=from_data("words"),
        positions=PROFILES["scenes"].processor.longest + 2,
        size=from_data("size"),
        patch=16,
        spread=uniter.arguments["spread"],
        mask=from_data("mask"),
        outputs=_heads(uniter),
        score=uniter.arguments.get("score", "probability"),
    )


def _heads(uniter: Config[RetrievalModel]) -> tuple[str, ...]:
    return tuple(name for name in uniter.arguments["outputs"] if name not in REGIONS)


Host = Literal["uniter", "vilt"]
HOSTS: tuple[Host, ...] = get_args(Host)
TITLES: dict[Host, str] = {"uniter": "UNITER", "vilt": "ViLT"}
COMPARED: tuple[Host, ...] = ("uniter",)  # that the comparisons of Table 2 are of
Way = Literal["tags", "wm", "static", "released"]
Step = Literal[0, 1, 2]
SMALL: dict[Dataset, tuple[int, int, int]] = {  # layers, width, heads
    "scenes": (2, 128, 4),
    "flickr8k": (2, 128, 4),
}

BERT = "bert-base-cased"
DOUBT_WEIGHTS = (1.0, 0.11)  # of wrong words, of right ones
BEFORE, HARD, STEP_1, STEP_2 = "pretrained", "hard", "tags", "tags-dc"
MARGIN = 0.2
ALL_TASKS: tuple[Task, ...] = ("masked", "doubt", "correct")


def tags_datasets(host: Host) -> tuple[Dataset, ...]:
    """The data sets that a model has recipes for; ViLT's are those with pictures."""
    return get_args(Dataset) if host == "uniter" else SETS


def tags_data(dataset: Dataset) -> str:
    """What is opened when the user names nothing: regions with boxes, as UNITER sees them.

    A dev split of `scenes` of 100 images, as every pair of it costs a pass of the transformer.
    """
    if dataset == "scenes":
        return "scenes:images=2600,dev=100,test=500,features=regions"
    return PROFILES[dataset].data


def tags_model(dataset: Dataset, *outputs: str) -> Config[RetrievalModel]:
    """UNITER-base; a small one without dropout for the small sets, where it learns from nothing."""
    layers, width, heads = SMALL.get(dataset, (12, 768, 12))
    whole = config(
        UNITER,
        layers=layers,
        width=width,
        heads=heads,
        inner=4 * width,
        vocabulary=from_data("words"),
        features=from_data("features"),
        classes=from_data("classes"),
        mask=from_data("mask"),
        outputs=outputs,
    )
    if dataset in LARGE:
        return whole
    return whole.replace(dropout=0.0, spread=round(width**-0.5, 2))


def tags_processor(dataset: Dataset) -> ProcessorConfig:
    """Regions with wordpieces for the large sets, with words for the small ones."""
    if dataset in LARGE:
        return ProcessorConfig(texts=BERT)
    return ProcessorConfig() if dataset == "scenes" else PROFILES[dataset].processor


def pretrained_stage(dataset: Dataset) -> tuple[Train | Pretrain, ...]:
    """UNITER's tasks on the training captions, on the small sets after pairs were told apart.

    How long is ours.
    """
    told = Pretrain(
        name=BEFORE,
        model=tags_model(dataset, "match", "fill", "regress", "classify"),
        plan=pretrain_config(epochs=30, batch=512),
        processor=tags_processor(dataset),
    )
    return (told,) if dataset in LARGE else before_training(told)


def _irtm() -> dict[str, tuple[float, Loss]]:
    """UNITER's hinges: hard wrong texts of the image, hard wrong images of the text."""
    return {
        "texts": (1.0, lazy(MarginRankingLoss, role="hard text", margin=MARGIN, reduction="mean")),
        "images": (
            1.0,
            lazy(MarginRankingLoss, role="hard image", margin=MARGIN, reduction="mean"),
        ),
    }


def tags_loss(numbers: TagsNumbers, step: Step) -> Config[WeightedSum]:
    """The loss (Eq. 10) of UNITER's hard negatives, 0, or of a step of TAGS."""
    terms = _irtm()
    if step >= 1:
        below: Loss = lazy(MarginRankingLoss, role="written", margin=MARGIN, reduction="mean")
        terms["masked"] = (numbers.masked, lazy(WordLoss, task="masked", reduction="mean"))
        terms["written"] = (numbers.written, below)
    if step == 2:
        doubt: Loss = lazy(WordLoss, task="doubt", weights=DOUBT_WEIGHTS, reduction="mean")
        terms["doubt"] = (numbers.words, doubt)
        terms["correct"] = (numbers.words, lazy(WordLoss, task="correct", reduction="mean"))
    return weighted_sum(**terms)


def hard_stage(dataset: Dataset, numbers: TagsNumbers | None = None) -> Train:
    """UNITER's hard negatives, with the numbers of TAGS; the paper's unless others are given."""
    numbers = numbers or PAPER[dataset][0]
    return Train(
        name=HARD,
        model=tags_model(dataset, "rank"),
        objective=tags_loss(numbers, 0),
        processor=tags_processor(dataset),
        plan=tags_train_config(numbers, dataset),
        start=BEFORE,
        proposer=config(TopScoringMiner, keep=numbers.keep),
        candidates=numbers.candidates,
    )


def first_stage(
    dataset: Dataset, way: Way = "tags", *, name: str = STEP_1, numbers: TagsNumbers | None = None
) -> Train:
    """Step 1, with what later doubts words kept as it was pre-trained."""
    numbers = numbers or (RELEASED if way == "released" else PAPER)[dataset][0]
    return replace(
        hard_stage(dataset),
        name=name,
        model=tags_model(dataset, "rank", "match", "fill"),
        objective=tags_loss(numbers, 1),
        plan=tags_train_config(numbers, dataset),
        proposer=_writes(numbers, way, 1),
        candidates=numbers.candidates,
        filler=BEFORE if way == "static" else None,
    )


def tags_second_stage(
    dataset: Dataset,
    way: Way = "tags",
    *,
    name: str = STEP_2,
    start: str = STEP_1,
    numbers: TagsNumbers | None = None,
) -> Train:
    """Step 2, which starts from step 1."""
    numbers = numbers or (RELEASED if way == "released" else PAPER)[dataset][1]
    return replace(
        first_stage(dataset, way, name=name),
        model=tags_model(dataset, "rank", "fill", "doubt", "correct"),
        objective=tags_loss(numbers, 2),
        plan=tags_train_config(numbers, dataset),
        start=start,
        proposer=_writes(numbers, way, 2),
        candidates=numbers.candidates,
    )


def _writes(numbers: TagsNumbers, way: Way, step: Step) -> Config[OnlineMiner]:
    """What screens, and what writes: as Table 2 has it, or the authors' code (T2 to T4)."""
    released = way == "released"
    choice: Literal["lowered logits", "lowered scores"]
    choice = "lowered logits" if step == 1 else "lowered scores"
    desk = lazy(
        GeneratorInputs,
        processor=from_data("lens"),
        parser=lazy(RulePhraseParser),
        mask=from_data("mask"),
    )
    writer = lazy(
        TagsGenerator,
        desk=desk,
        filler=from_data("filler") if way == "static" else None,
        masks=numbers.masks,
        refills=numbers.refills,
        keep=numbers.keep,
        temperature=numbers.temperature,
        singles="only" if way == "wm" else "without phrases",
        words=("masked",) if step == 1 else ALL_TASKS,
        sieve=lazy(CandidateFilter, rules=(), choice=choice) if released else None,
        specials=released,
    )
    screens = lazy(TopScoringMiner, keep=numbers.keep)
    return config(MinerChain, proposers=(screens, writer))


def hard_negatives(host: Host, dataset: Dataset) -> Recipe:
    """Pre-training, then UNITER's hard negatives."""
    return _recipe("", host, dataset, (hard_stage(dataset),), "hard negatives screened")


def tags(host: Host, dataset: Dataset) -> Recipe:
    """Step 1, beside UNITER's hard negatives from the same pre-training."""
    stages = (hard_stage(dataset), first_stage(dataset))
    return _recipe("tags/", host, dataset, stages, "negatives of its own")


def tags_dc(host: Host, dataset: Dataset) -> Recipe:
    """Both steps."""
    stages = (first_stage(dataset), tags_second_stage(dataset))
    about = "both steps, with words"
    return _recipe("tags-dc/", host, dataset, stages, about)


def words_masked(host: Host, dataset: Dataset) -> Recipe:
    """TAGS beside TAGS w/ WM (Table 2)."""
    stages = (first_stage(dataset), first_stage(dataset, "wm", name="wm"))
    return _recipe("tags/ablations/wm/", host, dataset, stages, "single words hidden")


def static_tags(host: Host, dataset: Dataset) -> Recipe:
    """TAGS beside TAGS w/ SG (Table 2)."""
    stages = (first_stage(dataset), first_stage(dataset, "static", name="static"))
    return _recipe("tags/ablations/static/", host, dataset, stages, "a frozen writer")


def released_tags(host: Host, dataset: Dataset) -> Recipe:
    """Both steps with the authors' scripts' numbers and their code's rules, without T1 and U1."""
    before, after = "tags-released", "tags-dc-released"
    stages = (
        first_stage(dataset, "released", name=before),
        tags_second_stage(dataset, "released", name=after, start=before),
    )
    return _recipe("tags-dc/released/", host, dataset, stages, "the authors' code")


VARIANTS = {
    "tags/ablations/wm": words_masked,
    "tags/ablations/static": static_tags,
    "tags-dc/released": released_tags,
}


def _recipe(
    kind: str, host: Host, dataset: Dataset, trainings: tuple[Train, ...], about: str
) -> Recipe:
    """Pre-training, trainings, a test of each, and a report where there are several."""
    before, where = pretrained_stage(dataset), tags_data(dataset)
    if host == "vilt":
        before, where = tuple(map(small_vilt, before)), DATA
        trainings = tuple(map(trained_vilt, trainings))
    tests = evaluation_stage_of([one.name for one in trainings], dataset)
    stages: tuple[Stage, ...] = (*before, *trainings, *tests)
    if len(trainings) > 1:
        beside = tuple(f"test-{one.name}" for one in trainings)
        stages = (*stages, Compare(name="report", results=beside))
    told = f"{TITLES[host]}; {about}"
    return Recipe(name=f"{kind}{host}-{dataset}", stages=stages, data=where, about=told)


# TAGS and TAGS-DC in the paper's large setting: UNITER-large, with its numbers of Table 5.


Kind = Literal["", "tags/", "tags-dc/", "tags-dc/released/"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def large_recipe(kind: Kind, dataset: Dataset) -> Recipe:
    """A recipe of UNITER-base with the large model and its numbers.

    Args:
        kind: what its name begins with.
        dataset: one of the paper's.
    """
    make = {
        "": hard_negatives,
        "tags/": tags,
        "tags-dc/": tags_dc,
        "tags-dc/released/": released_tags,
    }[kind]
    base = make("uniter", dataset)
    stages = tuple(_large(stage, kind, dataset) for stage in base.stages)
    return replace(
        base,
        name=f"{kind}uniter-large-{dataset}",
        stages=stages,
        about=base.about.replace("UNITER", "UNITER-large"),
    )


def _large(stage: Stage, kind: Kind, dataset: Dataset) -> Stage:
    """The stage with the large model; a training with its numbers, too."""
    if not isinstance(stage, Train | Pretrain):
        return stage
    numbers = LARGE_RELEASED if kind == "tags-dc/released/" else LARGE_PAPER
    one, two = numbers[dataset]
    way: Way = "released" if kind == "tags-dc/released/" else "tags"
    match stage.name:
        case "hard":
            stage = hard_stage(dataset, one)
        case "tags" | "tags-released":
            stage = first_stage(dataset, way, name=stage.name, numbers=one)
        case "tags-dc" | "tags-dc-released":
            assert isinstance(stage, Train)
            start = stage.start or STEP_1
            stage = tags_second_stage(dataset, way, name=stage.name, start=start, numbers=two)
    wide = stage.model.replace(layers=24, width=1024, heads=16, inner=4096)
    return replace(stage, model=wide)


# Captions that TAGS has written, for models that cannot write: by themselves, with AOQ, with NDGL.
#
# A UNITER is pre-trained in the domain and trained by step 1 of TAGS, as in `counterfoil.recipes.
# tags`; then it writes foils of every training caption, once. A model trains on them beside its own
# loss, by the hinge of Eq. 7, once the warm-up of its own loss is over; all else is as without
# them.
# Not in the paper, which trains the model that writes alone; weights and numbers are ours.


OtherModel = Literal["vsepp", "gpo", "scan"]
OTHER_MODELS: tuple[OtherModel, ...] = get_args(OtherModel)
SINGLE: dict[OtherModel, models.Single] = {"vsepp": "vsepp", "scan": "scan-t2i"}
OTHER_TITLES: dict[OtherModel, str] = {"vsepp": "VSE++", "gpo": "GPO", "scan": "SCAN t-i"}

FOILS, OWN = "written", "own"
STORED = 10  # foils of a caption, at most
COUNT = 5  # of them, drawn at each visit
WEIGHT = 1.0


def writer_stages(dataset: Dataset) -> tuple[Stage, ...]:
    """A UNITER that has learnt to write, and what it writes of the training captions."""
    written = foil_stages(STEP_1, PAPER[dataset][0])
    return *pretrained_stage(dataset), first_stage(dataset), written


def foil_stages(using: str, numbers: TagsNumbers) -> Generate:
    """What a model writes of the training captions, with the maskings and refills of its step."""
    return Generate(
        name=FOILS,
        using=using,
        masks=numbers.masks,
        refills=numbers.refills,
        keep=min(numbers.keep, STORED),
        temperature=numbers.temperature,
    )


def taught_stage(stage: Train, name: str, *, margin: float, reduction: Reduction = "sum") -> Train:
    """A training that also ranks stored foils below its captions, after its own warm-up.

    Args:
        stage: any training without a proposer.
        name: of the new one.
        margin: of the hinge, in units of the model's scores.
        reduction: how the model's losses are summed over a batch.
    """
    assert stage.proposer is None
    terms = stage.objective.arguments["terms"]
    below: Loss = lazy(MarginRankingLoss, role="written", margin=margin, reduction=reduction)
    steps = _warmup(stage.objective)
    late_below = lazy(StartAt, term=below, steps=steps) if steps else below
    return replace(
        stage,
        name=name,
        objective=stage.objective.replace(terms={**terms, "written": (WEIGHT, late_below)}),
        proposer=config(
            GeneratedCaptions, folder=from_data("written"), processor=from_data("lens"), count=COUNT
        ),
        written=FOILS,
    )


def model_recipes(name: OtherModel, dataset: Dataset) -> Recipe:
    """A model's own loss, and that beside the hinge of written captions."""
    own = trained_base(OWN, tags_base(name, dataset))
    return _other_recipe("hosts", name, dataset, (), (own, tags_beside(own, name)), "foils of TAGS")


def tags_with_aoq(name: OtherModel, dataset: Dataset) -> Recipe:
    """AdapOffQuin on mined lists, alone and beside the hinge of written captions."""
    own = trained_base(OWN, tags_base(name, dataset))
    texts, images = aoq.HARDEST[dataset]
    lists = Mine(name=ndgl.LISTS, using=(OWN,), texts=texts, images=images)
    mined = tags_adaptive(name, dataset)
    about = "AdapOffQuin and foils of TAGS"
    trainings = mined, tags_beside(mined, name)
    return _other_recipe("with-aoq", name, dataset, (own, lists), trainings, about)


def tags_with_ndgl(name: OtherModel, dataset: Dataset) -> Recipe:
    """NDGL's student, alone and beside the hinge of written captions."""
    teachers = tuple(
        trained_base(f"teacher-{seed}", tags_base(name, dataset, seed))
        for seed in range(1, ndgl.K + 1)
    )
    targets = ComputeTargets(name=ndgl.TARGETS, using=tuple(one.name for one in teachers))
    student = ndgl.student_stage("student", tags_base(name, dataset))
    trainings = student, tags_beside(student, name)
    return _other_recipe(
        "with-ndgl", name, dataset, (*teachers, targets), trainings, "NDGL and foils"
    )


OTHER_VARIANTS: dict[
    str, tuple[Callable[[OtherModel, Dataset], Recipe], tuple[OtherModel, ...]]
] = {
    "tags/hosts": (model_recipes, OTHER_MODELS),
    "tags/with-aoq": (tags_with_aoq, ("vsepp", "gpo")),
    "tags/with-ndgl": (tags_with_ndgl, ("vsepp", "gpo")),
}


def tags_base(
    name: OtherModel, dataset: Dataset, seed: int = 0, *, profile: DatasetProfile | None = None
) -> BaseRecipe:
    """A model as its own paper trains it, at the width of the data set or of another profile."""
    if name == "gpo":
        return ndgl_models.base_of(
            BaseSetting(host=name, dataset=dataset, seed=seed, profile=profile)
        )
    one = SINGLE[name]
    stage = models.online_stage(one, dataset, member=models.EnsembleMember(one, seed=seed))
    model = models.model_config(one, dataset, profile=profile)
    return BaseRecipe(model, stage.objective.arguments["terms"], stage.processor, stage.plan, "sum")


def tags_adaptive(name: OtherModel, dataset: Dataset, seed: int = 0) -> Train:
    """A model trained with AdapOffQuin on the lists of the stage "lists"."""
    if name == "gpo":
        return ndgl.offline_recipe("adaptive", BaseSetting(host=name, dataset=dataset, seed=seed))
    one = SINGLE[name]
    loss = aoq.adaptive_quintuplet(aoq.offline_warmup(one, dataset))
    return aoq.second_stage(models.EnsembleMember(one, seed=seed), dataset, loss)


def tags_beside(stage: Train, name: OtherModel) -> Train:
    """A training of a model, and the hinge of written captions beside its loss."""
    title = f"{stage.name}-{FOILS}"
    if name == "gpo":
        return taught_stage(
            stage,
            title,
            margin=ndgl_models.base_margin(name),
            reduction=ndgl_models.base_reduction(name),
        )
    return taught_stage(stage, title, margin=models.MARGIN)


def _warmup(objective: Config[WeightedSum]) -> int:
    """Steps until the model's own triplet is what it is to be."""
    terms = [term for _, term in objective.arguments["terms"].values()]
    return max((term.arguments["steps"] for term in terms if term.make is SwitchAfter), default=0)


def _other_recipe(
    kind: str,
    name: OtherModel,
    dataset: Dataset,
    before: tuple[Stage, ...],
    trainings: tuple[Train, Train],
    about: str,
) -> Recipe:
    """The writer, what stands before the trainings, these, a test of each, and a report."""
    tests = ndgl.evaluation_stage_of([one.name for one in trainings], dataset)
    stages = (*writer_stages(dataset), *before, *trainings, *tests, ndgl.comparison_stage(tests))
    return Recipe(
        name=f"tags/{kind}/{name}-{dataset}",
        stages=stages,
        data=tags_data(dataset),
        about=f"{OTHER_TITLES[name]}; {about}",
    )


# TAGS on a user's own photos: ViLT from public weights.


Name = Literal["vilt", "tags/vilt", "tags-dc/vilt"]
NAMES: tuple[Name, ...] = get_args(Name)
OWN_AT_ONCE = 2  # pairs whose sequences fit a graphics card of 16 GB


def tags_own_recipe(name: Name) -> Recipe:
    """Hard negatives screened, step 1 of TAGS, or both steps; numbers are those of Flickr8k.

    The first training begins with public weights, not with a pre-training.
    """
    match name:
        case "vilt":
            trainings = [hard_stage("flickr8k")]
        case "tags/vilt":
            trainings = [first_stage("flickr8k")]
        case "tags-dc/vilt":
            trainings = [first_stage("flickr8k"), tags_second_stage("flickr8k")]
    first, *rest = map(_fitting, trainings)
    trainings = [replace(first, start=None), *rest]
    tests = [Evaluate(name=f"test-{one.name}", using=(one.name,)) for one in trainings]
    stages: tuple[Stage, ...] = (*trainings, *tests)
    if rest:
        stages = (*stages, Compare(name="report", results=tuple(test.name for test in tests)))
    return Recipe(name=f"{name}-own", stages=stages, about="ViLT; own photos")


def _fitting(stage: Train) -> Train:
    whole = stage.plan.batch * stage.plan.accumulate
    plan = replace(stage.plan, batch=OWN_AT_ONCE, accumulate=whole // OWN_AT_ONCE)
    return replace(vilt_from_public(stage), plan=plan)
