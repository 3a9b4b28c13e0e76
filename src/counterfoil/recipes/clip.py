"""Fine-tuning of CLIP, SigLIP and other pretrained pairs of encoders on one's own photos.

All weights, low-rank adapters on the attention (LoRA), or adapters behind stored vectors of the
frozen towers. Which losses there are is registered, see `counterfoil.core.registry`: a training is
a function of a `FineTunedModel` that returns its stages. Losses keep the numbers of their papers;
rates, epochs and the temperature, which CLIP ends with, are ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, final

import torch

from counterfoil.core import registry
from counterfoil.core.config import (
    Config,
    FromStage,
    config,
    fill_stages,
    from_stage,
    lazy,
    parse_choice,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessorConfig
from counterfoil.loading import (
    Pretrained,
    is_pretrained_folder,
    load_pretrained,
    starts_untrained,
)
from counterfoil.losses.base import Loss, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss, InfoNCEWithCandidatesLoss, TripletCLIPLoss
from counterfoil.losses.ndgl import (
    MarginDistillationLoss,
    distillation_settings,
    listwise_settings,
)
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.model import Model, download_model, load_model
from counterfoil.models.base import RetrievalModel, SingleVectorModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.library_folders import encoder_folder
from counterfoil.negatives.advice import advise_mining
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.negatives.teachers import Mask
from counterfoil.pipelines.pipeline import (
    Compare,
    ComputeTargets,
    Evaluate,
    Mine,
    Recipe,
    Select,
    Stage,
    Train,
)
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.stages.base import is_stage_name
from counterfoil.recipes.base import (
    ADAPTIVE,
    HARDEST,
    MARGIN,
    RERANKER,
    Terms,
    TrainingSetup,
    adamw_plan,
    adaptive_quintuplet,
    reported,
)
from counterfoil.recipes.catalogue import own_data_recipe
from counterfoil.training.config import TUNED_STEPS, ParameterGroup, adapter_config
from counterfoil.training.mined import Mined, MinedNeighbours, MinedTeacher

DISTILL = 1.0  # weight of distillation beside the loss


TEMPERATURE = 0.01
RANK = 8
HEAD_RATE, TOWER_FACTOR = 1e-3, 0.01  # of timm pairs: rate of the heads, factor of the towers
TEACHER = "teacher-"  # begins the names of trainings that are not evaluated
LISTED = 50, 10  # texts of an image and images of a text that a re-ranker scores, at most
CANDIDATES = 4  # of these, drawn for an anchor
TEACHER_TEMPERATURE = 0.5  # in deviations of its scores
LISTWISE = "listwise"
FOILS = 5  # of a caption, sampled at each visit; NegCLIP appends one
TRIPLET: Terms = {"triplet": (1.0, lazy(HardestTripletLoss, margin=MARGIN))}


WAYS = {  # ways to fine-tune: the trained part, and the training
    "full": ("all of it trained", adamw_plan(epochs=5, batch=64, rate=1e-5, least=TUNED_STEPS)),
    "lora": (
        f"adapters of rank {RANK}",
        adamw_plan(epochs=5, batch=64, rate=2e-4, least=TUNED_STEPS),
    ),
    "frozen": ("adapters behind frozen towers", adapter_config(0)),  # of few captions
}


def contrastive_terms(temperature: float, *, candidates: bool) -> Terms:
    """Cross-entropy over the images and texts of a batch, with or without generated captions."""
    if candidates:
        term: Loss = lazy(InfoNCEWithCandidatesLoss, temperature=temperature, reduction="mean")
    else:
        term = lazy(InfoNCELoss, temperature=temperature, reduction="mean")
    return {"contrast": (1.0, term)}


@final
@dataclass(frozen=True)
class TrainedModel(Pretrained):
    """A model that counterfoil saved, to be trained on from its weights with its processor."""

    name: str
    long_captions: bool = False  # which it refuses

    @cached_property
    def opened(self) -> Model:
        """The model as it is."""
        return load_model(self.name, long_captions=self.long_captions)

    @property
    def spec(self) -> Config[RetrievalModel]:
        """The call that builds it as it is."""
        assert self.opened.spec is not None  # by which it was opened
        return self.opened.spec

    @property
    def processor(self) -> ProcessorConfig:
        """What it reads of the data; the processor itself is the saved one."""
        return ProcessorConfig(images="features" if self.opened.reads_features else "pixels")

    def trained(self, *, frozen: bool, lora: int) -> Config[RetrievalModel]:
        """The call that builds it for training; see `Pretrained.trained`."""
        spec = self.spec
        if spec.make is FrozenWithAdapters:
            if not frozen:
                raise ValueError(
                    f"{self.name} has adapters behind frozen towers, and only these are trained "
                    "on: add --tune frozen, or name the model that it began with"
                )
            return spec
        known = inspect.signature(spec.make).parameters
        single = isinstance(self.opened.model, SingleVectorModel)
        if (frozen and not single) or ((frozen or lora) and "lora" not in known):
            raise ValueError(f"{self.name} is trained on as a whole; leave --tune out")
        if frozen:
            width = self.opened.encode_texts("a").shape[1]
            body: RetrievalModel = lazy(spec.make, **spec.arguments)
            return config(FrozenWithAdapters, body=body, width=width)
        if lora:
            return spec.replace(lora=lora)
        # of a model of sentence-transformers; small steps vanish in half precision
        return spec.replace(weights="fp32") if "weights" in known else spec


@final
@dataclass(frozen=True, kw_only=True)
class FineTunedModel:
    """A pretrained pair of encoders, or a trained model, and the way it is fine-tuned.

    Attributes:
        name: folder or name of the pair, or of a model that counterfoil saved or pushed to the hub.
        way: "full", "lora" or "frozen".
        written: folder of captions that ``counterfoil papers write`` made of the training split,
            ranked below the true ones; or a foil set, see `counterfoil.training.foils.Foils`, whose
            pictures of foils are trained on, too, if it has them; None for none.
        long_captions: stretch its text positions, see `counterfoil.models.layers.positions`.
        captions: of the training split, on which the batch of adapters depends; 0 for few.
    """

    name: str
    way: str = "full"
    written: str | None = None
    long_captions: bool = False
    captions: int = 0

    def __post_init__(self) -> None:
        parse_choice(WAYS, self.way, "a way to train a pretrained model")

    @cached_property
    def model(self) -> Config[RetrievalModel]:
        """Config of the model for training; to know its width, a library's model is loaded."""
        rank = RANK if self.way == "lora" else 0
        return self.pair.trained(frozen=self.way == "frozen", lora=rank)

    @cached_property
    def pair(self) -> Pretrained:
        """The pretrained pair, with the config of its processor."""
        if self.start:
            return TrainedModel(self.name, self.long_captions)
        return load_pretrained(self.name, long_captions=self.long_captions)

    @cached_property
    def start(self) -> str | None:
        """The model of ours whose weights it begins with; None for those of a pretrained pair.

        A folder, or the name of one that was pushed to the hub.
        """
        folder = Path(self.name)
        if folder.is_dir():
            return None if is_pretrained_folder(folder) else self.name
        return self.name if download_model(self.name) else None

    def setup(self, terms: Terms, seed: int = 0) -> TrainingSetup:
        """The model with its loss terms and training settings."""
        plan = WAYS[self.way][1]
        if self.way == "frozen" and not self.pair.heads:
            plan = adapter_config(self.captions)
        plan = replace(plan, seed=seed)
        if self.pair.heads:
            # the heads begin at random and learn fast, the pretrained towers slowly
            towers = tuple(
                ParameterGroup(match=f"{side}.body.*", rate=TOWER_FACTOR)
                for side in ("image", "text")
            )
            plan = replace(plan, optimiser=replace(plan.optimiser, rate=HEAD_RATE, groups=towers))
        return TrainingSetup(self.model, terms, self.pair.processor, plan, start=self.start)

    def stage(self, name: str, terms: Terms) -> Train:
        """A training; with generated captions, these are ranked below the true ones."""
        return self.with_generated(self.setup(terms).stage(name))

    def with_generated(self, stage: Train) -> Train:
        """The training with a loss that also ranks generated captions below true ones."""
        if self.written is None:
            return stage
        from counterfoil.negatives.generated import GeneratedCaptions  # few trainings need it

        if _is_foil_set(self.written):
            return _with_foils(stage, self.written)
        joined = "contrast" in stage.objective.arguments["terms"]
        if not joined:
            below: Loss = lazy(MarginRankingLoss, role="written", margin=MARGIN)
            stage = stage.with_terms(written=(1.0, below))
        count = 1 if joined else FOILS
        return stage.with_sources(
            config(GeneratedCaptions, folder=self.written, count=count, shared=joined)
        )


def _is_foil_set(written: str) -> bool:
    """Whether a file or folder holds foils that no command of ours wrote for these data."""
    from counterfoil.evaluation.foils.sets import named_places
    from counterfoil.negatives.generated import GENERATED

    (name,), _ = named_places([written])
    return Path(name).exists() and not GENERATED.exists(Path(name))


def _with_foils(stage: Train, written: str) -> Train:
    """The training with a foil set, and with the pictures of its foils, if it has them.

    InfoNCE becomes the loss of NegCLIP, or with pictures that of TripletCLIP; to other losses
    hinges are added.
    """
    from counterfoil.training.foils import Foils, open_foils

    pictures = open_foils(written).task == "crossed"
    terms = stage.objective.arguments["terms"]
    if "contrast" in terms and pictures:
        weight, contrast = terms["contrast"]
        settings = {key: contrast.arguments[key] for key in ("temperature", "reduction")}
        stage = stage.with_terms(contrast=(weight, lazy(TripletCLIPLoss, **settings)))
    for role in ("written", "written image")[: 1 + pictures] if "contrast" not in terms else ():
        below: Loss = lazy(MarginRankingLoss, role=role, margin=MARGIN)
        stage = stage.with_terms(**{role.replace(" ", "_"): (1.0, below)})
    return stage.with_sources(config(Foils, foils=written, pictures=pictures))


def train_recipe(
    name: str,
    dataset: ImageTextDataset,
    *,
    model: str | None,
    way: str,
    written: Path | None,
    teachers: Sequence[str],
    other: str | None = None,
    guide: str | None = None,
    negatives: Path | None = None,
    distill: float | None = None,
    remedies: bool = False,
    tower: str | None = None,
    long_captions: bool = False,
    first: str | None = None,
) -> Recipe:
    """Build the recipe for the options of ``counterfoil train``.

    Args:
        name: a model that is trained from scratch, or where `model` is given, a loss for it.
        dataset: the data to train on.
        model: folder or name of a pretrained model to fine-tune; also a folder of
            sentence-transformers.
        way: "full", "lora" or "frozen".
        written: folder of generated captions, or a foil set.
        teachers: saved models or names of teachers.
        other: another data set to measure forgetting on.
        guide: saved model or name of the guide that leaves out likely false negatives.
        negatives: folder of mined lists of the training split, see `with_lists`.
        distill: weight of distillation towards the original, see `with_distillation`.
        remedies: compare the remedies against forgetting, see `with_remedies`.
        tower: frozen vision model whose patches stand for regions.
        long_captions: stretch the text positions of the pretrained model.
        first: retriever of a re-ranker, see `counterfoil.recipes.rerank`.

    Raises:
        ValueError: no such model or loss, or options that do not go together.
    """
    captions, images = train_size(dataset)
    advice = advise_mining(captions, images)
    lengths = advice.texts, advice.images
    fine_tuning = way != "full" or distill is not None
    fine_tuning |= any((written, other, remedies, long_captions))
    _check_options(name, model, tower, first, fine_tuning, guided=bool(teachers or guide))
    if name == RERANKER and model is not None:
        from counterfoil.recipes.rerank import reranker_recipe

        return reranker_recipe(model, lengths=lengths, negatives=negatives, first=first)
    if name == LISTWISE and bool(teachers) == bool(negatives):
        raise ValueError(
            f"{LISTWISE!r} learns from a re-ranker: name it with --teacher, or give lists that "
            "have its scores with --negatives, as `counterfoil judge RERANKER --negatives lists/ "
            "--scores scored-lists/` writes them; one of the two"
        )
    original = ""
    if model is None:
        pixels = dataset.features is None
        recipe = own_data_recipe(
            name, pixels=pixels, teachers=teachers, lengths=lengths, tower=tower
        )
    else:
        original = _place(model)
        forgetting = {"--other": other, "--distill": distill is not None, "--remedies": remedies}
        _check_pretrained(original, [option for option, given in forgetting.items() if given])
        tuned = FineTunedModel(
            name=original,
            way=way,
            written=str(written) if written else None,
            long_captions=long_captions,
            captions=captions,
        )
        pictures = dataset.pictures is not None
        recipe = fine_tune_recipe(
            name, tuned, teachers=teachers, pictures=pictures, lengths=lengths
        )
    recipe = with_lists(recipe, negatives) if negatives else recipe
    recipe = with_guide(recipe, guide) if guide else recipe
    if remedies:
        weight = DISTILL if distill is None else distill
        recipe = with_remedies(recipe, original, weight, interpolated=way != "frozen")
    elif distill is not None:
        recipe = with_distillation(recipe, original, distill)
    return with_forgetting(recipe, other) if other else recipe


def _check_options(
    name: str,
    model: str | None,
    tower: str | None,
    first: str | None,
    fine_tuning: bool,
    *,
    guided: bool,
) -> None:
    """Refuse options that do not go together."""
    if name == RERANKER and (model is None or fine_tuning or guided or tower):
        raise ValueError(
            "a re-ranker takes --model, --negatives, --first and settings of the training; "
            "name the model that reads image and text together with --model, and leave other "
            "options out"
        )
    if first is not None and name != RERANKER:
        raise ValueError(
            f"--first names the retriever of a re-ranker, and {name!r} is none; leave it out, or "
            "train `reranker`"
        )
    if model is None and fine_tuning:
        raise ValueError(
            "--tune, --written, --distill, --remedies, --long-captions and --other are for a "
            "pretrained model that is trained further; name it with --model, or leave them out"
        )
    if model is not None and tower:
        raise ValueError(
            f"--tower feeds models of regions, and {model} has a tower of its own; give one of them"
        )


def _place(name: str) -> str:
    """The name, or the folder of its files; of one of ours a path that is no name of a stage."""
    folder = Path(name)
    if not folder.is_dir():
        return name
    if is_pretrained_folder(folder):
        return str(encoder_folder(folder))
    return f"./{folder}" if is_stage_name(str(folder)) else str(folder)


def _check_pretrained(model: str, options: Sequence[str]) -> None:
    """Refuse options about forgetting for a model that begins with weights at random."""
    if options and starts_untrained(model):
        raise ValueError(
            f"{options[0]} is about what a pretrained model has forgotten, and {model} begins "
            "with weights at random; leave it out"
        )


def mining_reasons(recipe: Recipe, dataset: ImageTextDataset) -> tuple[str, ...]:
    """Reasons for the lengths of a recipe's lists, and whether they are expected to help."""
    trained = [s for s in recipe.stages if isinstance(s, Train) and s.source(Mined)]
    if not trained:
        return ()
    captions, images = train_size(dataset)
    advice = advise_mining(captions, images, batch=trained[0].plan.batch or captions)
    mined = any(isinstance(s, Mine) and s.texts == advice.texts for s in recipe.stages)
    return advice.reasons if mined else advice.reasons[1:]


def train_size(dataset: ImageTextDataset) -> tuple[int, int]:
    """Captions and images of the training split."""
    images = torch.tensor([split == "train" for split in dataset.splits])
    own = dataset.text_to_image
    return int((images[own] & (own >= 0)).sum()), int(images.sum())


def with_lists(recipe: Recipe, folder: Path) -> Recipe:
    """A recipe whose trainings read mined lists from a folder.

    A recipe that mines reads them instead. To another one with a single training a second is added,
    and `Select` takes the better one on dev: InfoNCE gets batches with mined neighbours; for other
    losses it is AdapOffQuin, from scratch where the loss is the hardest triplet, as in the paper,
    else from the weights of the first.
    """
    lists = str(folder.absolute())
    mining = {stage.name for stage in recipe.stages if isinstance(stage, Mine)}
    if mining:
        stages = [_with_folder(s, mining, lists) for s in recipe.stages if s.name not in mining]
        return replace(recipe, stages=tuple(stages))
    trained = [stage for stage in recipe.stages if isinstance(stage, Train)]
    if len(trained) != 1 or trained[0].sources:
        raise ValueError(
            f"{recipe.name!r} has no training on mined lists; leave --negatives out, or train a "
            "model or loss that has: aoq, triplet, contrastive, negclip, vsepp, scan-t2i, gpo, …"
        )
    (first,) = trained
    second = _second_round(first, lists)
    first_test = next(stage for stage in recipe.stages if isinstance(stage, Evaluate))
    before = Evaluate(name=f"test-{first.name}", using=(first.name,), protocol=first_test.protocol)
    after = replace(before, name=f"test-{second.name}", using=(second.name,))
    others = [stage for stage in recipe.stages if isinstance(stage, Evaluate) and stage.models]
    return replace(
        recipe,
        stages=(
            first,
            second,
            before,
            after,
            *others,
            Select(name="best", using=(first.name, second.name)),
            Compare(
                name="report",
                results=(*(other.name for other in others), before.name, after.name),
                selection="best",
            ),
        ),
        about=f"{recipe.about}, then with mined lists; the better one on dev",
    )


def _with_folder(stage: Stage, mining: Collection[str], lists: str) -> Stage:
    """A stage that reads a folder instead of the lists of these stages."""
    match stage:
        case Train():
            sources = fill_stages(stage.sources, lambda s: lists if s.name in mining else s)
            return replace(stage, sources=sources)
        case Compare() if stage.negatives in mining:
            return replace(stage, negatives=None)
    return stage


def _second_round(first: Train, lists: str) -> Train:
    """A training on mined lists that follows one without them."""
    terms = first.objective.arguments["terms"]
    losses = [loss for _, loss in terms.values()]
    if any(loss.make in (InfoNCELoss, InfoNCEWithCandidatesLoss) for loss in losses):
        return replace(first, name="neighbours").with_sources(
            config(MinedNeighbours, negatives=lists)
        )
    second = replace(first, name="adaptive").with_sources(config(Mined, negatives=lists))
    (loss,) = losses if len(losses) == 1 else (None,)
    if loss and loss.make is SwitchAfter:  # the sum of hinges comes first
        loss = lazy(SwitchAfter, **{**loss.arguments, "second": ADAPTIVE})
        return replace(second, objective=weighted_sum(quintuplet=loss))
    second = replace(second, objective=adaptive_quintuplet(0))
    return second if loss and loss.make is HardestTripletLoss else replace(second, start=first.name)


def with_guide(recipe: Recipe, model: str) -> Recipe:
    """A recipe whose trainings leave out negatives that a model takes for true pairs.

    The margin of its mask, 0, is in units of the scores of the model in training.
    """
    taught = [s for s in recipe.stages if isinstance(s, Train) and _targets_named(s)]
    if taught:
        name, targets = taught[0].name, _targets_named(taught[0])[0]
        raise ValueError(
            f"{recipe.name!r} has teachers of its own, so --guide cannot be given; pass "
            f"--set {name}.mask.guide={targets} for these to leave negatives out"
        )
    guide = ComputeTargets(name="guide", models=(model,))
    mask = config(Mask, guide=from_stage(guide.name), margin=0.0)
    recipe = replace(recipe, stages=(guide, *recipe.stages))
    return recipe.with_changed(Train, lambda stage: stage.with_sources(mask))


def _targets_named(stage: Train) -> list[str]:
    """The stages whose stored targets a training's loss reads."""
    return [source.name for source in stage.sources if isinstance(source, FromStage)]


def with_distillation(recipe: Recipe, original: str, weight: float) -> Recipe:
    """A recipe whose trainings keep the scores of a batch near those of the original.

    The original encodes the training split once. The loss, with this weight, is that of
    `counterfoil.losses.ndgl.distillation_settings`.

    Raises:
        ValueError: a weight that is not above 0, or a training has a guide already.
    """
    recipe = replace(recipe, stages=(_targets_of(original), *recipe.stages))
    return recipe.with_changed(Train, lambda stage: _distilled(stage, weight))


def with_remedies(
    recipe: Recipe, original: str, weight: float, *, interpolated: bool = True
) -> Recipe:
    """A recipe that sets two remedies against forgetting beside its last training.

    The training is repeated with distillation towards the original, and, where `interpolated`, its
    weights are averaged with the original's (WiSE-FT). The report compares all four models.

    Raises:
        ValueError: see `with_distillation`.
    """
    *stages, report = recipe.stages
    assert isinstance(report, Compare)
    last = next(stage for stage in reversed(stages) if isinstance(stage, Train))
    test = next(s for s in stages if isinstance(s, Evaluate) and s.using == (last.name,))
    remedies: list[Stage] = [replace(_distilled(last, weight), name="distilled")]
    if interpolated:
        from counterfoil.pipelines.stages.interpolate import Interpolate

        remedies.insert(0, Interpolate(name="wise-ft", original=original, tuned=last.name))
    tests = [replace(test, name=f"test-{s.name}", using=(s.name,)) for s in remedies]
    at, after = (stages.index(stage) + 1 for stage in (last, test))
    return replace(
        recipe,
        stages=(
            _targets_of(original),
            *stages[:at],
            *remedies,
            *stages[at:after],
            *tests,
            *stages[after:],
            replace(report, results=(*report.results, *(each.name for each in tests))),
        ),
        about=f"{recipe.about}; {' and '.join(s.name for s in remedies)} against forgetting",
    )


def _targets_of(original: str) -> ComputeTargets:
    return ComputeTargets(name="original", models=(original,))


def _distilled(stage: Train, weight: float) -> Train:
    """The training with one more term, guided by the scores of the original."""
    if weight <= 0:
        raise ValueError(f"--distill is {weight}; give a weight above 0, as in 1")
    if targets := _targets_named(stage):
        raise ValueError(
            f"{stage.name!r} has targets of {targets[0]!r} already, and a loss has those of one "
            "stage; leave --distill and --remedies out; ndgl learns from the original where "
            "--teacher names it"
        )
    if stage.source(MinedTeacher):
        raise ValueError(
            f"{stage.name!r} has targets of a re-ranker already, and a loss has those of one; "
            "leave --distill and --remedies out"
        )
    _, first = next(iter(stage.objective.arguments["terms"].values()))
    settings = distillation_settings(reduction=first.arguments.get("reduction", "sum"))
    term: Loss = lazy(MarginDistillationLoss, **settings)
    return stage.with_terms(original=(weight, term)).with_sources(from_stage("original"))


def with_forgetting(recipe: Recipe, data: str) -> Recipe:
    """A recipe that also evaluates, on another data set, every model that its report compares.

    On its test split, or on everything where it has none.
    """
    split = "test" if "test" in DataSource.of(data).open().split_names else "all"
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
    name: str,
    model: FineTunedModel,
    *,
    teachers: Sequence[str] = (),
    pictures: bool = True,
    lengths: tuple[int, int] = HARDEST,
) -> Recipe:
    """Fine-tune a pretrained model by a registered training; evaluate it beside the original.

    A loss that others have registered is a training, too: with that loss on the batch.
    """
    own = [] if name in registry.names("training") else registry.added("loss")
    if not registry.is_absent("training", name):
        known = [*registry.names("training"), *own]
        parse_choice(known, name, "a loss for a pretrained model")
    if teachers and name in ("contrastive", "triplet", "aoq", "negclip", *own):
        raise ValueError(f"{name!r} learns from no teachers; name 'ndgl' to have it do")
    if not pictures and not (model.start and model.pair.processor.images == "features"):
        raise ValueError(
            f"{model.name} looks at pictures, and these data have none; name their folder, as "
            "in --data photos.csv:images=pictures/"
        )
    if name in own:
        loss: Loss = lazy(registry.find("loss", name))
        stages: tuple[Stage, ...] = (model.stage("tuned", {"loss": (1.0, loss)}),)
    else:
        training: Training = registry.find("training", name)
        stages = training(model, teachers=tuple(teachers), lengths=lengths)
    trained = [stage.name for stage in stages if isinstance(stage, Train)]
    tests = [
        Evaluate(name=f"test-{stage_name}", using=(stage_name,))
        for stage_name in trained
        if not stage_name.startswith(TEACHER)
    ]
    original = Evaluate(name="test-original", using=(), models=(model.name,))
    rounds = ("online", "adaptive")  # a second round need not be better
    select = [Select(name="best", using=rounds)] if set(rounds) <= set(trained) else []
    return reported(
        f"{name}-{model.way}-own",
        # the original comes after the trainings: it may read the frozen towers' stored vectors
        (*stages, *tests, original, *select),
        f"{model.name}, {WAYS[model.way][0]}; {name}, own photos",
        results=(original.name, *(test.name for test in tests)),
        negatives=next((stage.name for stage in stages if isinstance(stage, Mine)), None),
        selection="best" if select else None,
    )


class Training(Protocol):
    """The stages of a registered training of a pretrained model."""

    def __call__(
        self, model: FineTunedModel, *, teachers: tuple[str, ...], lengths: tuple[int, int]
    ) -> tuple[Stage, ...]:
        """Return the stages.

        Args:
            model: to train; `FineTunedModel.stage` makes a stage of it.
            teachers: saved models or names of teachers; () for none.
            lengths: texts of an image and images of a text that are mined.
        """


def contrastive_stages(model: FineTunedModel, **_: object) -> tuple[Stage, ...]:
    """InfoNCE over the batch."""
    return (model.stage("tuned", contrastive_terms(TEMPERATURE, candidates=bool(model.written))),)


def triplet_stages(model: FineTunedModel, **_: object) -> tuple[Stage, ...]:
    """The hardest triplet of the batch."""
    return (model.stage("tuned", TRIPLET),)


def listwise_stages(
    model: FineTunedModel, *, teachers: tuple[str, ...], lengths: tuple[int, int]
) -> tuple[Stage, ...]:
    """InfoNCE over the batch, and a re-ranker's distribution over drawn candidates of lists.

    The original proposes the lists and the re-rankers score them, see
    `counterfoil.training.mined.MinedTeacher`. Without re-rankers a folder takes the place of these
    lists, see `with_lists`.
    """
    texts, images = map(min, lengths, LISTED)
    lists = Mine(
        name="lists",
        using=(),
        models=teachers or (model.name,),
        proposing=(model.name,),
        proposals=1,
        texts=texts,
        images=images,
    )
    settings = listwise_settings(temperature=TEMPERATURE, teacher_temperature=TEACHER_TEMPERATURE)
    taught: Loss = lazy(MarginDistillationLoss, **settings)
    source = config(
        MinedTeacher,
        negatives=from_stage(lists.name),
        sampling=lazy(SamplingConfig, count=CANDIDATES, resample=False),
    )
    terms = {
        **contrastive_terms(TEMPERATURE, candidates=bool(model.written)),
        "lists": (1.0, taught),
    }
    return lists, model.stage("tuned", terms).with_sources(source)
