"""TAGS and TAGS-DC (Fan et al., Findings of NAACL 2022, whose numbers of equations stand here).

UNITER, or ViLT, is trained on captions that it generates itself.

Stages: "pretrained" in the domain; "hard", UNITER's hard negatives; "tags", which also ranks the
captions it generates (step 1, Eq. 7); "tags-dc", which continues from there and doubts and corrects
their words (step 2, Eqs. 8 and 9). Table 2 compares "wm", which hides single words in place of
phrases, and "static", where a frozen model generates all the time: the pre-trained one, or in
"static-tuned" one that is fine-tuned with hard negatives and masked words (§3.2).

Departs from the authors' code in: a model pre-trained in the domain (on the small sets after pairs
were matched) takes the place of their weights, unless ``start`` names these; step 2 starts from
step 1's best epoch on dev, not from its step 2,000; both directions of a pair are screened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

from counterfoil.core.config import Config, config, from_data, from_stage, lazy
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import Loss, Reduction, WeightedSum, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.generated import GeneratedCaptions
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.negatives.sources import NegativeSource
from counterfoil.papers.aoq import recipe as aoq
from counterfoil.papers.models.configs import CASED, SMALL_SIZE
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.ndgl import recipe as ndgl
from counterfoil.papers.ndgl.recipe import evaluations_of
from counterfoil.papers.pretraining.pretrain import PretrainTasks
from counterfoil.papers.pretraining.stage import (
    ADAMW,
    DECAYING,
    Pretrain,
    pretrain_config,
    released_optimiser,
)
from counterfoil.papers.systems import (
    CLIP,
    DOUBT_WEIGHTS,
    HARDEST,
    LARGE,
    PROFILES,
    RERANKED,
    SYSTEMS,
    TAGS,
    TAGS_WARMUP,
    DataSet,
    EnsembleMember,
    TagsNumbers,
    find_system,
)
from counterfoil.papers.tags.generation import TagsGenerator, Task
from counterfoil.papers.tags.inputs import CandidateFilter
from counterfoil.papers.tags.losses import WordLoss
from counterfoil.papers.tags.stage import Generate
from counterfoil.papers.training import ModelSetting, as_published, check_numbers, dataset_recipe
from counterfoil.pipelines.pipeline import ComputeTargets, Evaluate, Mine, Recipe, Stage, Train
from counterfoil.recipes.base import MARGIN, adaptive_quintuplet, mined
from counterfoil.training.config import LinearLR, OptimizerConfig, TrainConfig

AT_ONCE = 8  # pairs of which a batch of the large sets is made
# COCO's dev has 5,000 images: its 125 million pairs cost as much as 800 steps of training. A sample
# of 1,000 costs a 25th and is as large as Flickr30k's dev and a fold of COCO's 1K test.
DEV_IMAGES = {"coco": 1000}
CAPTIONS = {"scenes": 10_000, "flickr8k": 30_000, "flickr30k": 145_000, "coco": 566_435}


def tags_train_config(numbers: TagsNumbers, dataset: str) -> TrainConfig:
    """A step's training: AdamW, a warm-up, then a straight line to 0.

    On the large sets AdamW and line are those of the authors' code.
    """
    large = dataset in LARGE
    batch = AT_ONCE if large else numbers.batch
    optimiser = replace(ADAMW, rate=numbers.rate, clip=CLIP)
    return TrainConfig(
        epochs=-(-numbers.steps * numbers.batch // CAPTIONS[dataset]),
        steps=numbers.steps,
        batch=batch,
        accumulate=numbers.batch // batch,
        optimiser=released_optimiser(optimiser, *DECAYING) if large else optimiser,
        schedule=LinearLR(warmup=TAGS_WARMUP, ahead=int(large)),
        dev_images=DEV_IMAGES.get(dataset, 0),
    )


# The models.


PUBLIC = "dandelin/vilt-b32-mlm"
PUBLIC_PROCESSOR = ProcessorConfig(images="pixels", size=384, divisor=32, texts=PUBLIC, longest=40)
REGION_HEADS = ("regress", "classify")  # heads that say what regions were
UNITER_DATA = "scenes:images=2600,dev=100,test=500,features=regions"
VILT_DATA = "scenes:images=2600,dev=100,test=500"


def tags_data(dataset: str, name: str = "uniter") -> str:
    """The data of a recipe: regions with boxes for UNITER.

    A dev split of `scenes` of 100 images, as every pair of it costs a pass of the transformer.
    """
    if dataset == "scenes":
        return VILT_DATA if name == "vilt" else UNITER_DATA
    return PROFILES[dataset].data


def tags_model(dataset: str, *outputs: str, name: str = "uniter") -> Config[RetrievalModel]:
    """UNITER-base, or -large; a small one without dropout for the small sets; or ViLT."""
    size = SYSTEMS[name].size if dataset in LARGE else SMALL_SIZE
    layers, width, heads = size
    spread = round(width**-0.5, 2)
    text_outputs = tuple(output for output in outputs if output not in REGION_HEADS)
    if name == "vilt-public":
        return config(
            ViLT,
            vocabulary=from_data("words"),
            mask=from_data("mask"),
            dropout=0.1,
            weights=PUBLIC,
            pretrained=from_data("pretrained"),
            outputs=text_outputs,
        )
    if name == "vilt":
        return config(
            ViLT,
            layers=layers,
            width=width,
            heads=heads,
            inner=4 * width,
            vocabulary=from_data("words"),
            positions=PROFILES["scenes"].processor.longest + 2,
            size=from_data("size"),
            patch=16,
            spread=spread,
            mask=from_data("mask"),
            outputs=text_outputs,
            score="probability",
        )
    model = config(
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
    return model if dataset in LARGE else model.replace(dropout=0.0, spread=spread)


def tags_processor(dataset: str, name: str = "uniter") -> ProcessorConfig:
    """Regions with wordpieces for the large sets, with words for the small ones; pixels of ViLT."""
    if name == "vilt-public":
        return PUBLIC_PROCESSOR
    if dataset in LARGE:
        return ProcessorConfig(texts=CASED)
    if dataset == "scenes" and name != "vilt":
        return ProcessorConfig()
    return PROFILES[dataset].processor


# Pre-training. On the small sets a training that matches pairs takes the place of a long one, which
# is not in the paper: from random weights UNITER's own tasks need far more pairs than the small
# sets have before words find their regions; matching each pair among the batch's others finds them
# in minutes, and hidden words and matches are learned from there.


ALIGNED, BEFORE = "aligned", "pretrained"
RATE, ALIGNED_CLIP = 1e-3, 2.0


def pretraining_stages(
    dataset: str, *, epochs: tuple[int, int] = (4, 12), dev_images: int = 0, name: str = "uniter"
) -> tuple[Train | Pretrain, ...]:
    """UNITER's tasks on the training captions; on the small sets after a training on pairs.

    How long is ours.
    """
    model = tags_model(dataset, "match", "fill", *REGION_HEADS, name=name)
    processor = tags_processor(dataset, name)
    if dataset in LARGE:
        plan = pretrain_config(epochs=30, batch=512, released=True)
        return (Pretrain(name=BEFORE, model=model, plan=plan, processor=processor),)
    tasks = PretrainTasks(transport=0.0, words=0.3)
    if name == "vilt":  # it has no regions that could be hidden
        tasks = replace(tasks, mrfr=0.0, mrc=0.0, mrckl=0.0)
    pretraining = Pretrain(
        name=BEFORE,
        model=model,
        plan=pretrain_config(epochs=epochs[1], batch=32, rate=RATE),
        processor=processor,
        tasks=tasks,
        start=ALIGNED,
    )
    pairs = Train(
        name=ALIGNED,
        model=model.replace(score="logit"),
        objective=weighted_sum(pairs=lazy(InfoNCELoss, temperature=1.0)),
        processor=processor,
        plan=TrainConfig(
            epochs=epochs[0],
            batch=16,
            optimiser=OptimizerConfig(
                rule=ADAMW.rule, rate=RATE, decay=ADAMW.decay, betas=ADAMW.betas, clip=ALIGNED_CLIP
            ),
            schedule=LinearLR(warmup=TAGS_WARMUP),
            dev_images=dev_images,
        ),
    )
    return pairs, pretraining


# The trainings: UNITER's hard negatives (step 0) and the two steps of TAGS.


Way = Literal["tags", "wm", "static", "mlm", "static-tuned", "released"]
Step = Literal[0, 1, 2]
HARD, STEP_1, STEP_2 = STEP_NAMES = ("hard", "tags", "tags-dc")
WRITER = "writer"  # fine-tuned with hard negatives and MLM, to generate for "static-tuned"
FILLERS: dict[Way, str] = {"static": BEFORE, "static-tuned": WRITER}
OUTPUTS = (("rank",), ("rank", "match", "fill"), ("rank", "fill", "doubt", "correct"))
ALL_TASKS: tuple[Task, ...] = ("masked", "doubt", "correct")


def tags_loss(numbers: TagsNumbers, step: Step, way: Way = "tags") -> Config[WeightedSum]:
    """The loss of a step (Eq. 10): UNITER's hinges of hard wrong texts and images, and more."""

    def hinge(role: str) -> Loss:
        return lazy(MarginRankingLoss, role=role, margin=MARGIN, reduction="mean")

    terms = {"texts": (1.0, hinge("hard text")), "images": (1.0, hinge("hard image"))}
    if step >= 1:
        terms["masked"] = (numbers.masked, lazy(WordLoss, task="masked", reduction="mean"))
        if way != "mlm":
            terms["written"] = (numbers.written, hinge("written"))
    if step == 2:
        doubt: Loss = lazy(WordLoss, task="doubt", weights=DOUBT_WEIGHTS, reduction="mean")
        terms["doubt"] = (numbers.words, doubt)
        terms["correct"] = (numbers.words, lazy(WordLoss, task="correct", reduction="mean"))
    return weighted_sum(**terms)


def tags_stage(
    step: Step,
    dataset: str,
    way: Way = "tags",
    *,
    name: str = "",
    start: str = "",
    numbers: TagsNumbers | None = None,
    model: str = "uniter",
) -> Train:
    """A training on UNITER's hard negatives (step 0), or a step of TAGS.

    Captions are generated as Table 2 has it or as the authors' code; "mlm" trains on hard negatives
    and masked words and ranks no generated captions. A training starts from the pre-training, step
    2 from step 1, unless another stage is named.
    """
    system = SYSTEMS[model]
    table = system.tags_released if way == "released" else system.tags
    numbers = numbers or table[dataset][max(step - 1, 0)]
    offered = lazy(CandidateConfig, texts=numbers.offered, images=numbers.offered)
    screening = config(TopScoringMiner, keep=numbers.keep, candidates=offered)
    return Train(
        name=name or STEP_NAMES[step],
        model=tags_model(dataset, *OUTPUTS[step], name=model),
        objective=tags_loss(numbers, step, way),
        processor=tags_processor(dataset, model),
        plan=tags_train_config(numbers, dataset),
        start=start or (STEP_1 if step == 2 else BEFORE),
        sources=(screening, _generator(numbers, way, step)) if step else (screening,),
    )


def _generator(numbers: TagsNumbers, way: Way, step: Step) -> Config[NegativeSource]:
    """Generation of captions: as Table 2 has it, or the authors' code."""
    released = way == "released"
    choice: Literal["lowered logits", "lowered scores"]
    choice = "lowered logits" if step == 1 else "lowered scores"
    return config(
        TagsGenerator,
        filler=from_stage(FILLERS[way]) if way in FILLERS else None,
        parser=lazy(RulePhraseParser),
        masks=numbers.masks,
        refills=1 if way == "mlm" else numbers.refills,  # only its masks are trained on
        keep=numbers.keep,
        temperature=numbers.temperature,
        singles="only" if way == "wm" else "without phrases",
        words=("masked",) if step == 1 else ALL_TASKS,
        candidate_filter=lazy(CandidateFilter, rules=(), choice=choice) if released else None,
        specials=released,
    )


# The recipes: a row of trainings each, beside one another where there are several.


@final
@dataclass(frozen=True, slots=True)
class TagsTraining:
    """One training of a recipe; see `tags_stage` for step, way, name and start."""

    step: Step
    way: Way = "tags"
    name: str = ""
    start: str = ""


RECIPES: dict[str, tuple[str, tuple[TagsTraining, ...]]] = {  # begin of the name: about, trainings
    "": ("hard negatives screened", (TagsTraining(0),)),
    "tags/": ("negatives of its own", (TagsTraining(0), TagsTraining(1))),
    "tags-dc/": ("both steps, with words", (TagsTraining(1), TagsTraining(2))),
    # Table 2
    "tags/ablations/wm/": (
        "single words hidden",
        (TagsTraining(1), TagsTraining(1, "wm", "wm")),
    ),
    "tags/ablations/static/": (
        "a frozen writer",
        (TagsTraining(1), TagsTraining(1, "static", "static")),
    ),
    "tags/ablations/static-tuned/": (
        "a fine-tuned, frozen writer",
        (
            TagsTraining(1),
            TagsTraining(1, "mlm", WRITER),
            TagsTraining(1, "static-tuned", "static"),
        ),
    ),
    # the authors' scripts' numbers and their code's rules, without T1 and U1
    "tags-dc/released/": (
        "the authors' code",
        (
            TagsTraining(1, "released", "tags-released"),
            TagsTraining(2, "released", "tags-dc-released", "tags-released"),
        ),
    ),
}
Model = Literal["uniter", "vilt", "uniter-large"]


@as_published
def tags(
    *,
    model: Model = "uniter",
    like: DataSet = "scenes",
    way: Literal["tags", "wm", "static", "static-tuned"] = "tags",
) -> Recipe:
    """TAGS: pre-training, then hard negatives, and beside them captions that the model generates.

    Args:
        model: generates its own negatives.
        like: data set whose numbers, widths and protocol it has.
        way: to generate, and a row of Table 2 that is compared with TAGS: wm hides single words,
            static is a frozen writer, static-tuned a fine-tuned and frozen one; of uniter.

    Raises:
        ValueError: the model has no numbers for the data set, or is not in the comparison.
    """
    if way == "tags":
        return tags_recipe("tags/", model, like)
    if model != "uniter":
        raise ValueError(f"Table 2 compares ways to generate for uniter, not for {model}")
    return tags_recipe(f"tags/ablations/{way}/", model, like)


@as_published
def tags_dc(*, model: Model = "uniter", like: DataSet = "scenes", released: bool = False) -> Recipe:
    """TAGS-DC: both steps of TAGS; the second doubts and corrects words, too.

    Args:
        model: generates its own negatives.
        like: data set whose numbers, widths and protocol it has.
        released: with the numbers and rules of the authors' code; of uniter and uniter-large.

    Raises:
        ValueError: the model has no numbers for the data set, or no released ones.
    """
    if released and model == "vilt":
        raise ValueError("the authors released no numbers for vilt; leave released out")
    return tags_recipe("tags-dc/released/" if released else "tags-dc/", model, like)


def tags_recipe(kind: str, name: str, dataset: str) -> Recipe:
    """Pre-training, the trainings of a kind, a test of each, and a report if there are several.

    Raises:
        ValueError: the model has no numbers for the data set.
    """
    check_numbers(name, dataset, SYSTEMS[name].datasets)
    about, rows = RECIPES[kind]
    trainings = [
        tags_stage(row.step, dataset, row.way, name=row.name, start=row.start, model=name)
        for row in rows
    ]
    tests = evaluations_of([training.name for training in trainings], dataset)
    return dataset_recipe(
        f"{kind}{name}-{dataset}",
        dataset,
        (*pretraining_stages(dataset, name=name), *trainings, *tests),
        f"{SYSTEMS[name].title}; {about}",
        results=ndgl.usual_results(tests) if len(trainings) > 1 else (),
        data=tags_data(dataset, name),
    )


# TAGS on a user's own photos: ViLT from public weights.


OWN_RECIPES: dict[str, tuple[Step, ...]] = {
    "vilt": (0,),
    "tags/vilt": (1,),
    "tags-dc/vilt": (1, 2),
}
OWN_AT_ONCE = 2  # pairs whose sequences fit a graphics card of 16 GB


def tags_own_recipe(name: str) -> Recipe:
    """Hard negatives screened, step 1 of TAGS, or both steps; numbers are those of Flickr8k.

    The first training begins with public weights, not with a pre-training.
    """
    trainings: list[Train] = []
    for step in OWN_RECIPES[name]:
        stage = tags_stage(step, "flickr8k", model="vilt-public")
        batch = stage.plan.batch * stage.plan.accumulate
        plan = replace(stage.plan, batch=OWN_AT_ONCE, accumulate=batch // OWN_AT_ONCE)
        trainings.append(replace(stage, plan=plan, start=stage.start if trainings else None))
    tests = [
        Evaluate(name=f"test-{training.name}", using=(training.name,)) for training in trainings
    ]
    results = ndgl.usual_results(tests) if len(tests) > 1 else ()
    stages = *trainings, *tests
    return dataset_recipe(f"{name}-own", "scenes", stages, "ViLT; own photos", results=results)


# Captions that TAGS has generated, for models that cannot generate: by themselves, with AOQ, with
# NDGL.
#
# A UNITER is pre-trained in the domain and trained by step 1 of TAGS; then it generates foils of
# every training caption, once. A model trains on them beside its own loss, by the hinge of Eq. 7,
# once the warm-up of its own loss is over; all else is as without them. Not in the paper, which
# trains the generator alone; weights and numbers are ours.


OTHER_MODELS = {  # titles
    "vsepp": "VSE++",
    "gpo": "GPO",
    "scan-t2i": "SCAN t-i",
    "lightningdot": "LightningDOT",
}

FOILS, OWN = "written", "own"  # names of stages
STORED = 10  # foils of a caption, at most
COUNT = 5  # of them, sampled at each visit
WEIGHT = 1.0


def generate_stage(using: str, numbers: TagsNumbers) -> Generate:
    """Generation of the training captions' foils, with the maskings and refills of a step."""
    return Generate(
        name=FOILS,
        using=using,
        masks=numbers.masks,
        refills=numbers.refills,
        keep=min(numbers.keep, STORED),
        temperature=numbers.temperature,
    )


def with_generated(
    stage: Train, name: str, *, margin: float, reduction: Reduction = "sum", foils: str = FOILS
) -> Train:
    """A training that also ranks stored foils below its captions, after its own warm-up.

    The margin is in units of the model's scores; `foils` is the stage that writes them.
    """
    terms = stage.objective.arguments["terms"]
    below: Loss = lazy(MarginRankingLoss, role="written", margin=margin, reduction=reduction)
    warmups = [term.arguments["steps"] for _, term in terms.values() if term.make is SwitchAfter]
    if any(warmups):
        below = lazy(StartAt, term=below, steps=max(warmups))
    drawn = config(GeneratedCaptions, folder=from_stage(foils), count=COUNT)
    return replace(stage.with_terms(written=(WEIGHT, below)), name=name).with_sources(drawn)


def _setting(name: str, dataset: str) -> ModelSetting:
    return ModelSetting(name=name, dataset=dataset)


@as_published
def tags_foils(
    *,
    model: Literal["vsepp", "gpo", "scan-t2i"] = "vsepp",
    like: DataSet = "scenes",
    method: Literal["own", "aoq", "ndgl"] = "own",
) -> Recipe:
    """Another model with and without captions that TAGS has generated: TAGS for any model.

    Args:
        model: which cannot generate.
        like: data set whose numbers, widths and protocol it has.
        method: it is trained with its own loss, with AOQ, or with NDGL.

    Raises:
        ValueError: AOQ or NDGL with SCAN.
    """
    if method == "own":
        return _foils_with_own_loss(model, like)
    if model == "scan-t2i":
        raise ValueError(f"foils beside {method} are for vsepp and gpo, not for {model}")
    return (_foils_with_aoq if method == "aoq" else _foils_with_ndgl)(model, like)


def _foils_with_own_loss(name: str, dataset: str) -> Recipe:
    """A model's own loss, alone and beside the hinge of generated captions."""
    training = _setting(name, dataset).setup().stage(OWN)
    return _other_recipe("hosts", name, dataset, (), training, "foils of TAGS")


def _foils_with_aoq(name: str, dataset: str) -> Recipe:
    """AdapOffQuin on mined lists, alone and beside the hinge of generated captions."""
    training = _setting(name, dataset).setup().stage(OWN)
    texts, images = HARDEST[dataset]
    lists = Mine(name=ndgl.LISTS, using=(OWN,), texts=texts, images=images)
    if name == "gpo":
        adaptive = ndgl.adaptive_setup(_setting(name, dataset)).stage("adaptive")
        adaptive = adaptive.with_sources(mined(ndgl.LISTS))
    else:
        member = EnsembleMember(name)
        loss = adaptive_quintuplet(aoq.offline_warmup(member.model, dataset))
        adaptive = aoq.second_stage(member, dataset, loss)
    about = "AdapOffQuin and foils of TAGS"
    return _other_recipe("with-aoq", name, dataset, (training, lists), adaptive, about)


def _foils_with_ndgl(name: str, dataset: str) -> Recipe:
    """NDGL's student, alone and beside the hinge of generated captions."""
    teachers = ndgl.teacher_stages(name, dataset)
    targets = ComputeTargets(name=ndgl.TARGETS, using=tuple(teacher.name for teacher in teachers))
    student = ndgl.student_stage("student", _setting(name, dataset).setup())
    return _other_recipe(
        "with-ndgl", name, dataset, (*teachers, targets), student, "NDGL and foils"
    )


@as_published
def cascade(
    *, model: Literal["vsepp", "gpo", "lightningdot"] = "vsepp", like: DataSet = "scenes"
) -> Recipe:
    """A bi-encoder retrieves and UNITER re-ranks: LightningDOT with re-ranking.

    Sun et al., NAACL 2021. UNITER's scores of the first ones replace the bi-encoder's; both are
    never mixed.

    Args:
        model: retrieves.
        like: data set whose numbers, widths and protocol they have.
    """
    own, hard = _setting(model, like).setup().stage(OWN), tags_stage(0, like)
    alone = evaluations_of([OWN], like)
    tests = [
        replace(
            stage,
            name=stage.name.replace(OWN, "cascade"),
            using=(hard.name,),
            first=(OWN,),
            depth=RERANKED,
        )
        for stage in alone
    ]
    return dataset_recipe(
        f"cascade/{model}-{like}",
        like,
        (own, *pretraining_stages(like), hard, *alone, *tests),
        f"{OTHER_MODELS[model]}; retrieves, and UNITER re-ranks the first {RERANKED}",
        results=ndgl.usual_results([*alone, *tests]),
        data=tags_data(like),
    )


def _other_recipe(
    kind: str, name: str, dataset: str, first: tuple[Stage, ...], training: Train, about: str
) -> Recipe:
    """The generator, stages before the training, this with and without foils, a report."""
    margin = find_system(name).margin
    trainings = training, with_generated(training, f"{training.name}-{FOILS}", margin=margin)
    tests = evaluations_of([training.name for training in trainings], dataset)
    stages = (
        *pretraining_stages(dataset),
        tags_stage(1, dataset),
        generate_stage(STEP_1, TAGS[dataset][0]),
        *first,
        *trainings,
        *tests,
    )
    return dataset_recipe(
        f"tags/{kind}/{name}-{dataset}",
        dataset,
        stages,
        f"{OTHER_MODELS[name]}; {about}",
        results=ndgl.usual_results(tests),
        data=tags_data(dataset),
    )
