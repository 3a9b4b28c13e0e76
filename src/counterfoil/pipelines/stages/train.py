"""Training of a model on a loss, with mined, proposed or generated negatives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, final

from counterfoil.core.config import Config, FromData
from counterfoil.core.console import info
from counterfoil.core.types import Role
from counterfoil.data.dataset import Positives
from counterfoil.data.processor import ProcessedDataset, Processor, ProcessorConfig
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.model import load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.negatives.aoq_format import lists_digest, open_lists
from counterfoil.negatives.batch_mining import BatchMiningConfig, NeighbourBatches
from counterfoil.negatives.generated import (
    GeneratedCaptions,
    GeneratedStore,
    generated_digest,
)
from counterfoil.negatives.online import OnlineMiner
from counterfoil.negatives.sampling import (
    CandidateConfig,
    NeighbourImages,
    OfflineNegativeSampler,
    SamplingConfig,
    check_candidates,
)
from counterfoil.negatives.teachers import GuideMask, TargetSource
from counterfoil.pipelines.overrides import named_values
from counterfoil.pipelines.stages.base import LATER, CaptionStage, is_stage_name
from counterfoil.pipelines.stages.fitting import (
    ModelStage,
    best_epoch_note,
    build_for_training,
    check_model,
    check_pictures,
    dev_measure,
    is_finished,
    limit_minutes,
    open_initial_model,
    remove_checkpoints,
    save_result,
    weights_content,
)
from counterfoil.pipelines.stages.mine import ListsStage
from counterfoil.pipelines.stages.teach import GuideStage
from counterfoil.pipelines.state import RunContext
from counterfoil.training.config import TrainConfig
from counterfoil.training.remine import RemineConfig, check_remine
from counterfoil.training.step import check_tiled
from counterfoil.training.trainer import fit, sampler_of

EDITS = frozenset({Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE})
LISTS = ("negatives", "neighbours", "mined_batches")  # fields that name mined lists


@final
@dataclass(frozen=True, kw_only=True)
class Train(ModelStage):
    """Train a model on the training split; the best epoch on dev is saved. Writes a model folder.

    Attributes:
        objective: the loss.
        plan: batches, epochs, optimiser, schedule, seed.
        negatives: mining stage whose lists negatives are sampled from, or a folder of lists that
            `counterfoil.negatives.aoq_format.open_lists` opens.
        draw: how they are sampled.
        refresh: how often the model in training mines anew; 0 epochs for never.
        positives: which pairs are no negatives: "text", "id" as in the papers, or "diagonal" as in
            their code, see `counterfoil.data.dataset.ImageTextDataset`.
        guide: stage of the targets of similarity: teachers, or captions in a latent space.
        mask: negatives of the batch and of mined lists that are left out because the guide takes
            them for true pairs, with any loss; off by default.
        word_vectors: file in GloVe's text format that word embeddings begin with, see
            `counterfoil.data.word_vectors`.
        proposer: picks or generates negatives with the model as it is now. In its config,
            ``from_data("generator_data")`` is the training split as its generator sees it,
            ``from_data("mask")`` the token that hides a word, ``from_data("filler")`` and
            ``from_data("model_inputs")`` the frozen model of `filler` and, where that has a
            processor of its own, the training split as the model in training sees it.
        candidates: negatives that are offered to a proposer that screens.
        filler: model that, frozen, generates in place of the one in training: a stage, or a model
            folder or name that `counterfoil.model.load_model` opens.
        written: stage, or folder, whose stored captions are sampled; ``from_data("written")`` in
            the proposer is their folder.
        neighbours: stage, or folder, whose mined images join the batch of an anchor, each with a
            caption of its own, see `counterfoil.negatives.sampling.NeighbourImages`.
        mined_batches: stage, or folder, whose lists compose the batches, so that they hold mutual
            hard negatives, see `counterfoil.negatives.batch_mining`; None shuffles. They stay where
            the model mines anew.
        batch_mining: which of the listed neighbours share a batch.
    """

    kind: ClassVar[str] = "train"
    objective: Config[WeightedSum]
    plan: TrainConfig = TrainConfig()
    negatives: str | None = None
    draw: SamplingConfig = SamplingConfig()
    refresh: RemineConfig = field(default=RemineConfig(), metadata=LATER)
    positives: Positives = "text"
    guide: str | None = field(default=None, metadata=LATER)
    mask: GuideMask = field(default=GuideMask(), metadata=LATER)
    word_vectors: str | None = field(default=None, metadata=LATER)
    proposer: Config[OnlineMiner] | None = field(default=None, metadata=LATER)
    candidates: CandidateConfig = field(default=CandidateConfig(), metadata=LATER)
    filler: str | None = field(default=None, metadata=LATER)
    written: str | None = field(default=None, metadata=LATER)
    neighbours: str | None = field(default=None, metadata=LATER)
    mined_batches: str | None = field(default=None, metadata=LATER)
    batch_mining: BatchMiningConfig = field(default=BatchMiningConfig(), metadata=LATER)

    def __post_init__(self) -> None:
        if self.screens_lists and (self.negatives is None or self.refresh.every):
            raise ValueError(
                f"the candidates of {self.name!r} are to come from mined lists; name the mining "
                "stage with negatives and let refresh.every be 0, or offer random ones"
            )

    def with_terms(self, **terms: tuple[float, Loss]) -> Train:
        """The training with further weighted terms in its loss."""
        own = self.objective.arguments["terms"]
        return replace(self, objective=self.objective.replace(terms={**own, **terms}))

    def training_details(self, context: RunContext) -> dict[str, Any]:
        lists = context.place(self.negatives) if self.negatives else None
        details = {"objective": self.objective.build(), "negatives": lists}
        return details | ({"sampling": self.draw} if lists else {})

    @property
    def screens_lists(self) -> bool:
        """True if mined lists are offered to its proposer, and not drawn from."""
        return bool(self.candidates.provides) and self.candidates.source == "mined"

    @property
    def dependencies(self) -> tuple[tuple[str, str], ...]:
        wanted = (
            (_stage_or_none(self.start), "train"),
            (_stage_or_none(self.negatives), "mine"),
            (self.guide, "guide"),
            (_stage_or_none(self.filler), "train"),
            (_stage_or_none(self.written), "write"),
            (_stage_or_none(self.neighbours), "mine"),
            (_stage_or_none(self.mined_batches), "mine"),
        )
        return tuple((name, kind) for name, kind in wanted if name)

    @property
    def initial_models(self) -> tuple[str, ...]:
        return tuple(name for name in (self.start, self.filler) if name)

    def digest_content(self) -> dict[str, Any]:
        content = super().digest_content() | weights_content("filler", self.filler)
        folders = _caption_digests(self.proposer)
        if self.written and not is_stage_name(self.written):
            folders.append(generated_digest(Path(self.written)))
            content["written"] = None
        if folders:
            content["foils"] = folders
        for name in LISTS:
            folder = getattr(self, name)
            if folder and not is_stage_name(folder):
                content[name] = lists_digest(Path(folder))
        return content

    def check(self, context: RunContext) -> None:
        """Refuse data and earlier stages that do not fit the loss, the proposer or the draws."""
        if len(context.train) < 2:
            raise ValueError(
                f"the train split of {context.train.name} has {len(context.train)} image; a model "
                "learns from the other images and captions as negatives, so give it at least 2"
            )
        context.train.with_positives(self.positives).check_wrong_pairs()
        _check_guide(context, self)
        check_miner(context, self)
        check_pictures(context, self)
        check_model(context, self)
        check_word_vectors(self)
        if not self.plan.batch:
            names = ("negatives", "proposer", "guide", "neighbours", "mined_batches")
            made = self.model.make
            check_tiled(
                self.objective.build(),
                made if isinstance(made, type) and issubclass(made, RetrievalModel) else None,
                **{name: getattr(self, name) for name in names},
            )
        if self.refresh.every:
            check_remine(
                self.refresh,
                self.objective.build(),
                self.draw,
                batches=len(sampler_of(self.plan, context.train)),
                listed=self.negatives is not None,
            )
        if self.negatives:
            _check_list_lengths(context, self, self.negatives)
        for mining in (self.neighbours, self.mined_batches):
            if mining and is_stage_name(mining):
                _check_mined_split(context, self, mining)
            elif mining:
                open_lists(Path(mining), context.train)

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Train the model and save it with its processor."""
        if resume and is_finished(context, self):
            remove_checkpoints(context, self)
            return
        vectors = Path(self.word_vectors) if self.word_vectors else None
        model = build_for_training(context, self, vectors)
        assert model.processor is not None
        train = context.train.with_positives(self.positives)
        place, relation = context.place(self.name), train.relation
        network = model.model
        if isinstance(network, FrozenWithAdapters) and not self.proposer:
            network = network.head  # on stored vectors; a proposer may make new items
        lists = {
            name: open_lists(context.place(listed), train)
            for name in LISTS
            if (listed := getattr(self, name))
        }
        mined, neighbours, batches = (lists.get(name) for name in LISTS)
        offered = self.candidates.provides
        screened = mined if self.screens_lists else None
        draws = None
        if mined and not self.screens_lists:
            draws = OfflineNegativeSampler(lists=mined, relation=relation, plan=self.draw)
        fitted = fit(
            limit_minutes(self.plan, context.left()),
            network,
            self.objective.build(),
            model.process(train),
            folder=place,
            draws=draws,
            candidates=self.candidates.draws(relation, screened, self.draw) if offered else None,
            proposer=build_miner(context, self, model.processor.process(train)),
            guide=build_guide(context, self, model.model.loss_scale),
            mask=self.mask,
            refresh=self.refresh,
            draw=self.draw,
            neighbours=NeighbourImages(lists=neighbours, relation=relation) if neighbours else None,
            partition=NeighbourBatches(batches, relation, self.batch_mining) if batches else None,
            evaluate=dev_measure(context, self, model),
            run=context.digests[self.name],
            resume=resume,
        )
        save_result(context, self, model, fitted)
        info(f"{self.name}: {best_epoch_note(fitted, 'RSum')}, {fitted.seconds:,.0f} s, {place}")


def _stage_or_none(name: str | None) -> str | None:
    """The name, where it is that of a stage."""
    return name if name and is_stage_name(name) else None


def build_guide(context: RunContext, stage: Train, scale: float) -> TargetSource | None:
    """Open a training's targets of similarity; None where it names none."""
    return context.stage(stage.guide, GuideStage).targets(context, scale) if stage.guide else None


def build_miner(context: RunContext, stage: Train, data: ProcessedDataset) -> OnlineMiner | None:
    """Build the proposer of a training, if it has one; see `Train` for what its config may read."""
    if stage.proposer is None:
        return None
    # the generator is the model in training, or the frozen filler, which may see other inputs
    filler, generator_data = None, data
    if stage.filler:
        model = load_model(context.model_path(stage.filler))
        filler = model.model.requires_grad_(False)
        if _other_processor(context, stage):
            generator_data = model.process(context.train)
    tokenizer = generator_data.processor.tokenizer
    known = {
        "generator_data": generator_data,
        "mask": tokenizer.mask if tokenizer else None,
        "filler": filler,
        "model_inputs": None if generator_data is data else data,
        "written": str(context.place(stage.written)) if stage.written else None,
    }
    return stage.proposer.fill(known).build()


def check_miner(context: RunContext, stage: Train) -> None:
    """Refuse a loss, proposer and candidates that do not fit each other or the data."""
    _check_candidates(stage)
    _check_generated(context, stage)
    _check_stored_captions(context, stage)
    if stage.proposer is None:
        if stage.objective.build().needs & EDITS:
            raise ValueError(
                f"the loss of {stage.name!r} judges edited negatives, and the stage names nothing "
                "that makes them; set its proposer to CounterfactualSampler"
            )
        return
    images, texts = _image_inputs(context, stage), stage.processor.texts
    for part in _miners(stage):
        try:
            part.check_inputs(images, texts)
        except ValueError as error:
            raise ValueError(
                f"{stage.name!r} sees {images} and texts as {texts!r}; {error}"
            ) from None


def _check_candidates(stage: Train) -> None:
    """Refuse candidates that no proposer screens, and a screening proposer without any."""
    screened = frozenset[Role]().union(*(part.screens for part in _miners(stage)))
    check_candidates(stage.candidates.provides, screened, stage.objective.build().needs)


def _check_generated(context: RunContext, stage: Train) -> None:
    """Refuse a loss of generated captions or word tasks that no proposer makes."""
    objective, parts = stage.objective.build(), _proposers(stage)
    writers = [part for part in _miners(stage) if part.takes_filler]
    if not parts and (Role.WRITTEN in objective.needs or objective.needs_words):
        raise ValueError(
            f"the loss of {stage.name!r} judges written captions, and the stage names nothing that "
            "writes them; set its proposer to TagsGenerator"
        )
    made = [miner.word_tasks(named_values(part)) for miner, part in zip(_miners(stage), parts)]
    tasks = frozenset[str]().union(*filter(None, made))
    missing = sorted(objective.needs_words - tasks)
    if missing and None not in made:
        raise ValueError(
            f"the loss of {stage.name!r} judges the word task {missing[0]!r}, which its proposer "
            "leaves out; name it in words, or drop the loss"
        )
    if stage.filler and not writers:
        raise ValueError(
            f"{stage.name!r} names the filler {stage.filler!r}, and nothing that it could write "
            "for; set its proposer to TagsGenerator"
        )
    if stage.filler and not is_stage_name(stage.filler):
        filler = open_initial_model(context, stage, stage.filler).model
        for part in writers:
            part.check_filler(filler, f"the filler of {stage.name!r},")
    if tasks and _other_processor(context, stage):
        raise ValueError(
            f"{stage.name!r} has another processor than its filler {stage.filler!r}, so it "
            "learns no words from what that one writes; set words=()"
        )


def _check_stored_captions(context: RunContext, stage: Train) -> None:
    """Refuse stored captions that no proposer reads, and a proposer without any."""
    folders = [p.arguments.get("folder") for p in _proposers(stage) if p.make is GeneratedCaptions]
    draws = any(isinstance(folder, FromData) for folder in folders)
    if draws and not stage.written:
        raise ValueError(
            f"{stage.name!r} draws from written captions and names no stage that writes them; set "
            "its written to a stage such as Generate, or its proposer's folder to one that is there"
        )
    if not stage.written:
        return
    if not draws:
        raise ValueError(
            f"{stage.name!r} names the written captions of {stage.written!r}, and nothing that "
            "draws from them; set its proposer to GeneratedCaptions"
        )
    if not is_stage_name(stage.written):
        GeneratedStore.open(Path(stage.written), fingerprint=context.train.fingerprint)
        return
    writing = context.stage(stage.written, CaptionStage)
    if writing.source_split != "train":
        raise ValueError(
            f"{stage.name!r} trains on captions of the split 'train', and {writing.name!r} writes "
            f"those of {writing.source_split!r}; set {writing.name}.split=train"
        )


def _proposers(stage: Train) -> tuple[Config[OnlineMiner], ...]:
    """Configs of the proposers of a stage: its own, or those inside it."""
    if stage.proposer is None:
        return ()
    inner: tuple[Config[OnlineMiner], ...] = stage.proposer.arguments.get("proposers", ())
    return inner or (stage.proposer,)


def _miners(stage: Train) -> list[type[OnlineMiner]]:
    """Classes of the proposers of a stage."""
    made = (part.make for part in _proposers(stage))
    # of what a function makes nothing is known
    return [
        make if isinstance(make, type) and issubclass(make, OnlineMiner) else OnlineMiner
        for make in made
    ]


def _other_processor(context: RunContext, stage: Train) -> bool:
    """Return True if a stage and its filler see their inputs with different processors."""
    if stage.filler is None:
        return False
    filler, own = _processor(context, stage, stage.filler), _processor(context, stage, stage.start)
    if not isinstance(filler, Processor) and not isinstance(own, Processor):
        return filler != own
    one, other = (p if isinstance(p, Processor) else p.fit(context.train) for p in (filler, own))
    return (one.image_processor, one.tokenizer and one.tokenizer.digest) != (
        other.image_processor,
        other.tokenizer and other.tokenizer.digest,
    )


def _processor(
    context: RunContext, stage: ModelStage, model: str | None
) -> ProcessorConfig | Processor:
    """The processor of a model that a stage names, or of the stage where it names none."""
    while model and is_stage_name(model):
        stage = context.stage(model, ModelStage)
        model = stage.start
    if model is None:
        return stage.processor
    processor = open_initial_model(context, stage, model).processor
    assert processor is not None
    return processor


def _image_inputs(context: RunContext, stage: Train) -> str:
    """Form of a stage's image inputs, in words."""
    features = context.train.features
    if stage.processor.images == "pixels":
        return "pixels"
    if features is None:
        return "no features"
    return "regions" if features.regions > 1 else "one vector an image"


def _caption_digests(call: Any) -> list[str]:
    """Digests of the folders of stored captions inside the config of a proposer."""
    match call:
        case Config():
            inner = [name for value in call.arguments.values() for name in _caption_digests(value)]
            folder = call.arguments.get("folder") if call.make is GeneratedCaptions else None
            return [*inner, generated_digest(Path(folder))] if isinstance(folder, str) else inner
        case tuple() | list():
            return [name for inner in call for name in _caption_digests(inner)]
    return []


def _check_guide(context: RunContext, stage: Train) -> None:
    """Refuse a loss without the guide that it needs, before teachers are trained for it."""
    objective = stage.objective.build()
    if stage.guide is None and (objective.needs_guide or objective.needs_guided):
        raise ValueError(
            f"the loss of {stage.name!r} needs a guide that says how similar images and texts "
            "ought to be, and the stage names none; set guide to a stage such as ComputeTargets"
        )
    if stage.guide is None and stage.mask.margin is not None:
        raise ValueError(
            f"{stage.name!r} leaves out negatives that a guide takes for true pairs, and names no "
            "guide; set guide to a stage of teachers, or leave mask.margin out"
        )
    if stage.guide:
        context.stage(stage.guide, GuideStage).check_student(context, stage)


def check_word_vectors(stage: Train) -> None:
    """Refuse word vectors that do not exist or that no model would read."""
    if stage.word_vectors is None:
        return
    if stage.start:
        raise ValueError(
            f"{stage.name!r} starts from {stage.start!r} and keeps its word embeddings; set "
            f"word_vectors of {stage.start!r} alone"
        )
    if stage.processor.texts != "words":
        raise ValueError(
            f"{stage.name!r} reads texts with {stage.processor.texts!r} and has no vocabulary of "
            "words; leave word_vectors out"
        )
    if not Path(stage.word_vectors).is_file():
        raise ValueError(
            f"{stage.word_vectors} is no file; set {stage.name}.word_vectors to word vectors in "
            "GloVe's text format, such as glove.840B.300d.txt"
        )


def _check_list_lengths(context: RunContext, stage: Train, mining: str) -> None:
    """Refuse lists that are shorter than the ranks that negatives are sampled from."""
    if is_stage_name(mining):
        mined = context.stage(mining, ListsStage)
        dataset, lengths = context.split(mined.split), (mined.texts, mined.images)
    else:
        dataset, lists = context.train, open_lists(Path(mining), context.train)
        lengths = lists.texts.shape[1], lists.images.shape[1]
    offer = stage.candidates if stage.screens_lists else CandidateConfig()
    texts, images = max(stage.draw.texts, offer.texts), max(stage.draw.images or 0, offer.images)
    for items, wanted, listed, total in (
        ("texts of an image", texts, lengths[0], len(dataset.texts)),
        ("images of a text", images, lengths[1], len(dataset)),
    ):
        if wanted > min(listed, total):
            raise ValueError(
                f"{stage.name!r} draws from the {wanted:,} hardest {items}, but {mining!r} "
                f"keeps {listed:,} of {total:,}; set {stage.name}.draw to fewer, or mine longer "
                "lists"
            )


def _check_mined_split(context: RunContext, stage: Train, mining: str) -> None:
    """Refuse neighbours, or batches, of a split that is not trained on."""
    mined = context.stage(mining, ListsStage)
    if mined.split != "train":
        raise ValueError(
            f"{stage.name!r} trains on images of the split 'train', and {mining!r} mines those of "
            f"{mined.split!r}; set {mining}.split=train"
        )
