"""NegCLIP: batches that hold the neighbours of their images, and captions written wrong.

Yuksekgonul et al., ICLR 2023 (https://arxiv.org/abs/2210.01936), section 4. The model mines three
images for each caption, captions are changed by rule, and contrastive training goes on: to B pairs
come B neighbours, each an image with a caption, and one foil of every caption. Images choose among
all 4B texts, the true texts among the 2B images.

Departs from the authors' code in: neighbours, see `counterfoil.negatives.sampling.NeighbourImages`;
foils are those of VSE-C's rules, not words of one kind swapped by spaCy. Rates and epochs are ours;
theirs are a rate of 1e-6, warmed up in 50 steps, and 5 epochs of batches of 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, final, get_args

from counterfoil.core.config import Config, config, from_data, lazy, parse_choice
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.losses.base import Loss, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss, InfoNCEWithCandidatesLoss
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.model import pretrained_pair, starts_untrained
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pretrained import encoder_folder
from counterfoil.negatives.generation.store import GeneratedCaptions
from counterfoil.pipelines.pipeline import (
    Compare,
    ComputeTargets,
    Evaluate,
    Mine,
    Recipe,
    RewriteByRule,
    Stage,
    Train,
)
from counterfoil.recipes import aoq, ndgl, photos
from counterfoil.recipes import models as models_module
from counterfoil.recipes.models import MARGIN, PROFILES, Dataset
from counterfoil.recipes.ndgl_models import BaseRecipe, Terms, trained_base
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig

NegCLIPName = Literal["negclip/vsepp"]
NEGCLIP_NAMES: tuple[NegCLIPName, ...] = get_args(NegCLIPName)
NEIGHBOURS = 3  # images of a caption
TEXTS = 100  # of an image, for the report alone: they tell how hard negatives are
TEMPERATURE = 0.07  # of what is trained from scratch
REWRITE = RewriteByRule(name="written")


def negclip_terms(temperature: float) -> Terms:
    """Cross-entropy over the texts of a batch and what is written for them, and over its images."""
    joined: Loss = lazy(InfoNCEWithCandidatesLoss, temperature=temperature, reduction="mean")
    return {"contrast": (1.0, joined)}


def negclip_lists(using: tuple[str, ...] = (), models: tuple[str, ...] = ()) -> Mine:
    """Neighbours by the models of stages, or by saved ones."""
    return Mine(name="lists", using=using, models=models, texts=TEXTS, images=NEIGHBOURS)


def negclip_neighbours(stage: Train) -> Train:
    """The same with neighbours and one foil of each caption in its batches."""
    written = config(
        GeneratedCaptions,
        folder=from_data("written"),
        processor=from_data("lens"),
        count=1,
        shared=True,
    )
    return replace(stage, neighbours="lists", written=REWRITE.name, proposer=written)


def negclip_recipe(name: NegCLIPName, dataset: Dataset) -> Recipe:
    """Both rounds from scratch, on a dual encoder: contrastive, then with what joins the batches.

    Args:
        name: of the recipe.
        dataset: what it is trained on.
    """
    nce: Loss = lazy(InfoNCELoss, temperature=TEMPERATURE, reduction="mean")
    first = replace(models_module.online_stage("vsepp", dataset), objective=weighted_sum(nce=nce))
    second = replace(
        first, name="joined", objective=weighted_sum(**negclip_terms(TEMPERATURE)), start="online"
    )
    tests = [
        e
        for one in ("online", "joined")
        for e in models_module.evaluation_stages(one, "vsepp", dataset)
    ]
    report = Compare(name="report", results=("test-online", "test-joined"), negatives="lists")
    return Recipe(
        name=f"{name}-{dataset}",
        stages=(
            first,
            negclip_lists(using=("online",)),
            REWRITE,
            negclip_neighbours(second),
            *tests,
            report,
        ),
        data=PROFILES[dataset].data,
        about="single model; InfoNCE, mining, foils by rule, both in the batches of InfoNCE",
    )


# CLIP, SigLIP and their kin, trained further on a user's own photos.
#
# All of a model is trained, or low-rank adapters on its attention (LoRA), or adapters behind
# vectors
# that it makes once (its towers are frozen). Losses keep the numbers of their papers; rates, epochs
# and the temperature, which is what CLIP ends with, are ours.


Name = Literal["contrastive", "triplet", "aoq", "ndgl", "negclip"]
Way = Literal["full", "lora", "frozen"]
NAMES: tuple[Name, ...] = get_args(Name)
WAYS: tuple[Way, ...] = get_args(Way)

TEMPERATURE_TUNED = 0.01
RANK = 8
HARDEST = (100, 20)
FOILS = 5  # of a caption, drawn at each visit; NegCLIP appends one

TRIPLET: Terms = {"triplet": (1.0, lazy(HardestTripletLoss, margin=MARGIN))}
ORDER = (
    "teacher-1",
    "teacher-2",
    ndgl.TARGETS,
    "online",
    "lists",
    "written",
    "adaptive",
    "tuned",
    "student",
)
WORDS: dict[Way, str] = {
    "full": "all of it trained",
    "lora": f"adapters of rank {RANK}",
    "frozen": "adapters behind frozen towers",
}

PLANS: dict[Way, TrainConfig] = {
    "full": TrainConfig(
        epochs=5,
        batch=64,
        optimiser=OptimizerConfig(rule="adamw", rate=1e-5, decay=0.01),
        schedule=CosineLR(warmup=50),
    ),
    "lora": TrainConfig(
        epochs=5,
        batch=64,
        optimiser=OptimizerConfig(rule="adamw", rate=2e-4, decay=0.01),
        schedule=CosineLR(warmup=50),
    ),
    "frozen": TrainConfig(
        epochs=10,
        batch=128,
        optimiser=OptimizerConfig(rule="adamw", rate=1e-3, decay=0.01),
        schedule=CosineLR(warmup=50),
    ),
}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class FineTunedModel:
    """A pretrained pair of encoders, and how it is trained.

    Attributes:
        name: its folder or name.
        way: what of it is trained.
        written: folder of captions that ``counterfoil write`` has made of the training split, to be
            ranked below the true ones; None for none.

    Raises:
        ValueError: no such way.
    """

    name: str
    way: Way = "full"
    written: str | None = None

    def __post_init__(self) -> None:
        parse_choice(WAYS, self.way, "a way to train a pretrained model")

    @property
    def model(self) -> Config[RetrievalModel]:
        """The model."""
        rank = RANK if self.way == "lora" else 0
        return pretrained_pair(self.name).trained(frozen=self.way == "frozen", lora=rank)

    @property
    def processor(self) -> ProcessorConfig:
        """What it sees: pictures and texts as it was pretrained on."""
        return pretrained_pair(self.name).processor

    def base(self, terms: Terms, seed: int = 0) -> BaseRecipe:
        """The model with a loss, by a seed."""
        plan = replace(pretrained_pair(self.name).plan(PLANS[self.way]), seed=seed)
        return BaseRecipe(self.model, terms, self.processor, plan, "sum")


def parse_model_name(
    what: str,
    dataset: ImageTextDataset,
    *,
    model: str | None,
    way: str,
    written: Path | None,
    teachers: Sequence[str],
    other: str | None = None,
) -> Recipe:
    """The recipe that ``counterfoil train`` asks for.

    Args:
        what: a model of `counterfoil.recipes.photos`, or where a model is named, a loss for it.
        dataset: what it is to be trained on.
        model: folder or name of a pretrained one, to be trained further; a folder of
            sentence-transformers, too.
        way: what of it is trained.
        written: folder of written captions.
        teachers: who teaches.
        other: data on which it is told too what a pretrained model has forgotten.

    Raises:
        ValueError: no such model, loss or model, or options that do not go together.
    """
    if model is None:
        if written or other or way != "full":
            raise ValueError(
                "--tune, --written and --other are for a pretrained model that is trained further; "
                "name it with --model, or leave them out"
            )
        return photos.own_data_recipe(what, pixels=dataset.features is None, teachers=teachers)
    foils = str(written) if written else None
    inner = str(encoder_folder(Path(model))) if Path(model).is_dir() else model
    host = FineTunedModel(name=inner, way=cast(Way, way), written=foils)  # which checks the way
    found = fine_tune_recipe(what, host, teachers=teachers, pictures=dataset.pictures is not None)
    if other and starts_untrained(inner):
        raise ValueError(
            f"--other tells what a pretrained model has forgotten, and {inner} begins with weights "
            "at random; leave it out"
        )
    return with_forgetting(found, other) if other else found


def with_forgetting(recipe: Recipe, data: str) -> Recipe:
    """A recipe that also evaluates, on another data set, every model that its report compares.

    Args:
        recipe: ends with its report.
        data: path or name for `load_dataset`; its test split, or everything where it has none.

    Raises:
        ValueError: there is no such data set.
    """
    split = "test" if "test" in load_dataset(data).split_names else "all"
    *stages, report = recipe.stages
    assert isinstance(report, Compare)
    tests = {stage.name: stage for stage in stages if isinstance(stage, Evaluate)}
    names = {name: name.replace("test-", "other-", 1) for name in report.results}
    others = [
        replace(tests[name], name=names[name], data=data, split=split)
        for name in tests  # in their order: the original may read the vectors of frozen towers
        if name in names
    ]
    report = replace(report, others=tuple(names.values()))
    return replace(recipe, stages=(*stages, *others, report))


def fine_tune_recipe(
    name: str, host: FineTunedModel, *, teachers: Sequence[str] = (), pictures: bool = True
) -> Recipe:
    """Train a pretrained model further; measured beside what it was.

    Args:
        name: the loss: contrastive, triplet, aoq (both rounds), ndgl (taught), or negclip
            (contrastive, with neighbours and written captions in each batch).
        host: the pretrained model.
        teachers: saved models or names that teach in ndgl; none for two of the model, trained
            first.
        pictures: whether the data have any.

    Raises:
        ValueError: no such loss or model, teachers where nobody is taught, or no pictures.
    """
    parse_choice(NAMES, name, "a loss for a pretrained model")
    if teachers and name != "ndgl":
        raise ValueError(f"{name!r} learns from no teachers; name 'ndgl' to have it do")
    if not pictures:
        raise ValueError(
            f"{host.name} looks at pictures, and these data have none; name their folder with "
            "--images"
        )
    before, trainings = _stages(name, host, tuple(teachers))
    tests = [Evaluate(name=f"test-{one.name}", using=(one.name,)) for one in trainings]
    original = Evaluate(name="test-original", using=(), models=(host.name,))
    report = Compare(
        name="report",
        results=(original.name, *(test.name for test in tests)),
        negatives=next((one.name for one in before if isinstance(one, Mine)), None),
    )
    order = sorted((*before, *trainings), key=lambda stage: ORDER.index(stage.name))
    return Recipe(
        name=f"{name}-{host.way}-own",
        stages=(*order, *tests, original, report),  # which may read what frozen towers have kept
        about=f"{host.name}, {WORDS[host.way]}; {name}, own photos",
    )


def _stages(
    name: str, host: FineTunedModel, teachers: tuple[str, ...]
) -> tuple[tuple[Stage, ...], tuple[Train, ...]]:
    """What is made on the way, and the trainings that are measured."""
    match name:
        case "contrastive":
            return (), (_written(trained_base("tuned", host.base(_contrastive(host))), host),)
        case "triplet":
            return (), (_written(trained_base("tuned", host.base(TRIPLET)), host),)
        case "aoq":
            online = _written(trained_base("online", host.base(TRIPLET)), host)
            lists = Mine(name="lists", using=("online",), texts=HARDEST[0], images=HARDEST[1])
            terms: Terms = dict(aoq.adaptive_quintuplet(0).arguments["terms"])
            second = replace(trained_base("adaptive", host.base(terms)), negatives="lists")
            return (lists,), (online, _written(second, host))
        case "negclip":
            return _negclip(host)
    seeds = () if teachers else (1, 2)
    taught = tuple(trained_base(f"teacher-{seed}", host.base(TRIPLET, seed)) for seed in seeds)
    targets = ComputeTargets(
        name=ndgl.TARGETS, using=tuple(t.name for t in taught), models=teachers
    )
    return (*taught, targets), (_written(ndgl.student_stage("student", host.base(TRIPLET)), host),)


def _negclip(host: FineTunedModel) -> tuple[tuple[Stage, ...], tuple[Train, ...]]:
    """The original mines, rules write where nobody has written, then all join each batch."""
    base = host.base(negclip_terms(TEMPERATURE_TUNED))
    lists = negclip_lists(models=(host.name,))
    if host.written is None:
        return (lists, REWRITE), (negclip_neighbours(trained_base("tuned", base)),)
    return (lists,), (replace(_written(trained_base("tuned", base), host), neighbours=lists.name),)


def _contrastive(host: FineTunedModel) -> Terms:
    if host.written:
        return negclip_terms(TEMPERATURE_TUNED)
    term: Loss = lazy(InfoNCELoss, temperature=TEMPERATURE_TUNED, reduction="mean")
    return {"contrast": (1.0, term)}


def _written(stage: Train, host: FineTunedModel) -> Train:
    """The same, which also ranks written captions below true ones."""
    if host.written is None:
        return stage
    terms = stage.objective.arguments["terms"]
    joined = "contrast" in terms
    below: Loss = lazy(MarginRankingLoss, role="written", margin=MARGIN)
    more = {} if joined else {"written": (1.0, below)}
    return replace(
        stage,
        objective=stage.objective.replace(terms={**terms, **more}),
        proposer=config(
            GeneratedCaptions,
            folder=host.written,
            processor=from_data("lens"),
            count=1 if joined else FOILS,
            shared=joined,
        ),
    )
