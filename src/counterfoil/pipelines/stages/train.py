"""Training of a model on a loss, with mined, proposed or generated negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from counterfoil.negatives.aoq_format import open_lists
from counterfoil.negatives.batch_mining import BatchMiningConfig
from counterfoil.negatives.generated import (
    GeneratedCaptions,
    GeneratedStore,
)
from counterfoil.negatives.online import CANDIDATES, TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig, SamplingConfig
from counterfoil.negatives.sources import NegativeSource, with_asked
from counterfoil.negatives.teachers import GuideMask, Mask
from counterfoil.pipelines.overrides import named_values
from counterfoil.pipelines.stages.base import CaptionStage, is_stage_name
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
)
from counterfoil.pipelines.stages.mine import ListsStage
from counterfoil.pipelines.stages.teach import GuideStage
from counterfoil.pipelines.state import RunContext
from counterfoil.training.config import TrainConfig
from counterfoil.training.mined import Mined, MinedBatches, MinedNeighbours
from counterfoil.training.remine import RemineConfig, check_remine
from counterfoil.training.step import check_tiled
from counterfoil.training.trainer import sampler_of, train_network

EDITS = frozenset({Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE})
_SCREENED = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
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
        sources: further sources of negatives, such as a `TopScoringMiner`. In their configs,
            ``from_data("generator_data")`` is the training split as a generator sees it,
            ``from_data("mask")`` the token that hides a word, ``from_data("filler")`` and
            ``from_data("model_inputs")`` the frozen model of `filler` and, where that has a
            processor of its own, the training split as the model in training sees it. Candidates
            of the source "mined" come from the lists of `negatives`, as far down as `draw` says.
        filler: model that, frozen, generates in place of the one in training: a stage, or a model
            folder or name that `counterfoil.model.load_model` opens.
        written: stage, or folder, whose stored captions are sampled; ``from_data("written")`` in
            a source is their folder.
        neighbours: stage, or folder, whose mined images join the batch of an anchor, each with a
            caption of its own, see `counterfoil.negatives.sampling.NeighbourImages`.
        mined_batches: stage, or folder, whose lists compose the batches, so that they hold mutual
            hard negatives, see `counterfoil.negatives.batch_mining`; None shuffles. They stay where
            the model mines anew.
        batch_mining: which of the listed neighbours share a batch.
    """

    kind: ClassVar[str] = "train"
    takes: ClassVar[Mapping[str, str]] = {
        "start": "train",
        "negatives": "mine",
        "guide": "guide",
        "filler": "train",
        "written": "write",
        "neighbours": "mine",
        "mined_batches": "mine",
    }
    elsewhere: ClassVar[frozenset[str]] = frozenset(takes) - {"guide"}
    objective: Config[WeightedSum]
    plan: TrainConfig = TrainConfig()
    negatives: str | None = None
    draw: SamplingConfig = SamplingConfig()
    refresh: RemineConfig = RemineConfig()
    positives: Positives = "text"
    guide: str | None = None
    mask: GuideMask = GuideMask()
    word_vectors: str | None = None
    sources: tuple[Config[NegativeSource], ...] = ()
    filler: str | None = None
    written: str | None = None
    neighbours: str | None = None
    mined_batches: str | None = None
    batch_mining: BatchMiningConfig = BatchMiningConfig()

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
    def screened(self) -> CandidateConfig | None:
        """The candidates that one of its sources chooses from."""
        for part in self.sources:
            if _class_of(part) is TopScoringMiner:
                given = part.arguments.get("candidates", CANDIDATES)
                found: CandidateConfig = given.build() if isinstance(given, Config) else given
                return found
        return None

    @property
    def screens_lists(self) -> bool:
        """True if mined lists are offered as candidates, and not drawn from."""
        return self.screened is not None and self.screened.source == "mined"

    def check(self, context: RunContext) -> None:
        """Refuse data and earlier stages that do not fit the loss or the sources."""
        if len(context.train) < 2:
            raise ValueError(
                f"the train split of {context.train.name} has {len(context.train)} image; a model "
                "learns from the other images and captions as negatives, so give it at least 2"
            )
        context.train.with_positives(self.positives).check_wrong_pairs()
        _check_guide(context, self)
        check_generators(context, self)
        check_pictures(context, self)
        check_model(context, self)
        check_word_vectors(self)
        if not self.plan.batch:
            names = ("negatives", "sources", "guide", "neighbours", "mined_batches")
            made = self.model.make
            check_tiled(
                self.objective.build(),
                made if isinstance(made, type) and issubclass(made, RetrievalModel) else None,
                [name.replace("_", " ") for name in names if getattr(self, name)],
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
        place = context.place(self.name)
        network, data = model.model, model.process(train)
        sources = build_sources(context, self, model.processor.process(train), network.loss_scale)
        # on stored vectors, but not where a source may make new items
        if isinstance(network, FrozenWithAdapters) and not self.sources:
            network = network.head
        for source in with_asked(sources):
            source.check(network, train)
        fitted = train_network(
            limit_minutes(self.plan, context.left()),
            network,
            self.objective.build(),
            data,
            folder=place,
            sources=sources,
            evaluate=dev_measure(context, self, model),
            run=context.digests[self.name],
            resume=resume,
        )
        save_result(context, self, model, fitted)
        info(f"{self.name}: {best_epoch_note(fitted, 'RSum')}, {fitted.seconds:,.0f} s, {place}")


def _stage_or_none(name: str | None) -> str | None:
    """The name, where it is that of a stage."""
    return name if name and is_stage_name(name) else None


def build_sources(
    context: RunContext, stage: Train, data: ProcessedDataset, scale: float
) -> tuple[NegativeSource, ...]:
    """Build the sources of negatives of a training, of the data as its model sees them."""
    found: list[NegativeSource] = []
    if stage.neighbours:
        found.append(MinedNeighbours(context.place(stage.neighbours)))
    if stage.mined_batches:
        found.append(MinedBatches(context.place(stage.mined_batches), stage.batch_mining))
    mined = context.place(stage.negatives) if stage.negatives else None
    if not stage.screens_lists and (mined is not None or stage.refresh.every):
        found.append(Mined(mined, sampling=stage.draw, remine=stage.refresh))
    known = _known_to_sources(context, stage, data) if stage.sources else {}
    for part in stage.sources:
        if stage.screens_lists and _class_of(part) is TopScoringMiner:
            part = part.replace(negatives=mined, sampling=stage.draw)
        found.append(part.fill(known).build())
    if stage.guide:
        guide = context.stage(stage.guide, GuideStage).targets(context, scale)
        needs = stage.objective.build().needs
        if needs.targets:
            found.append(guide)
        if stage.mask.margin is not None:
            found.append(Mask(guide, margin=stage.mask.margin, kind=stage.mask.kind))
    return tuple(found)


def _known_to_sources(context: RunContext, stage: Train, data: ProcessedDataset) -> dict[str, Any]:
    """What the configs of sources may read from the data; see `Train`."""
    # the generator is the model in training, or the frozen filler, which may see other inputs
    filler, generator_data = None, data
    if stage.filler:
        model = load_model(context.model_path(stage.filler))
        filler = model.model.requires_grad_(False)
        if _other_processor(context, stage):
            generator_data = model.process(context.train)
    tokenizer = generator_data.processor.tokenizer
    return {
        "generator_data": generator_data,
        "mask": tokenizer.mask if tokenizer else None,
        "filler": filler,
        "model_inputs": None if generator_data is data else data,
        "written": str(context.place(stage.written)) if stage.written else None,
    }


def check_generators(context: RunContext, stage: Train) -> None:
    """Refuse a loss and sources that do not fit each other or the data."""
    _check_candidates(stage)
    _check_generated(context, stage)
    _check_stored_captions(context, stage)
    if not stage.sources:
        if stage.objective.build().needs.roles & EDITS:
            raise ValueError(
                f"the loss of {stage.name!r} judges edited negatives, and the stage names nothing "
                "that makes them; add CounterfactualSampler to its sources"
            )
        return
    images, texts = _image_inputs(context, stage), stage.processor.texts
    for part in map(_class_of, stage.sources):
        try:
            part.check_inputs(images, texts)
        except ValueError as error:
            raise ValueError(
                f"{stage.name!r} sees {images} and texts as {texts!r}; {error}"
            ) from None


def _check_candidates(stage: Train) -> None:
    """Refuse candidates in fewer roles than the loss reads."""
    screened, roles = stage.screened, stage.objective.build().needs.roles
    missing = roles & _SCREENED - screened.provides if screened else frozenset[Role]()
    if missing:
        names = " and ".join(sorted(repr(role.value) for role in missing))
        raise ValueError(
            f"candidates in the role of {names} are to be screened, and none are drawn; say how "
            "many texts and images are offered for an anchor, as in texts=399, images=399"
        )


def _check_generated(context: RunContext, stage: Train) -> None:
    """Refuse a loss of generated captions or word tasks that no source makes."""
    needs, kinds = stage.objective.build().needs, [_class_of(part) for part in stage.sources]
    writers = [kind for kind in kinds if kind.takes_filler]
    if not kinds and (Role.WRITTEN in needs.roles or needs.words):
        raise ValueError(
            f"the loss of {stage.name!r} judges written captions, and the stage names nothing that "
            "writes them; add TagsGenerator to its sources"
        )
    made = [kind.word_tasks(named_values(part)) for kind, part in zip(kinds, stage.sources)]
    tasks = frozenset[str]().union(*filter(None, made))
    missing = sorted(needs.words - tasks)
    if missing and None not in made:
        raise ValueError(
            f"the loss of {stage.name!r} judges the word task {missing[0]!r}, which its sources "
            "leave out; name it in words, or drop the loss"
        )
    if stage.filler and not writers:
        raise ValueError(
            f"{stage.name!r} names the filler {stage.filler!r}, and nothing that it could write "
            "for; add TagsGenerator to its sources"
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
    """Refuse stored captions that no source reads, and a source without any."""
    folders = [p.arguments.get("folder") for p in stage.sources if p.make is GeneratedCaptions]
    draws = any(isinstance(folder, FromData) for folder in folders)
    if draws and not stage.written:
        raise ValueError(
            f"{stage.name!r} draws from written captions and names no stage that writes them; set "
            "its written to a stage such as Generate, or the source's folder to one that is there"
        )
    if not stage.written:
        return
    if not draws:
        raise ValueError(
            f"{stage.name!r} names the written captions of {stage.written!r}, and nothing that "
            "draws from them; add GeneratedCaptions to its sources"
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


def _class_of(part: Config[NegativeSource]) -> type[NegativeSource]:
    """Class of a source; of what a function makes nothing is known."""
    make = part.make
    return make if isinstance(make, type) and issubclass(make, NegativeSource) else NegativeSource


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


def _check_guide(context: RunContext, stage: Train) -> None:
    """Refuse a loss without the guide that it needs, before teachers are trained for it."""
    needs = stage.objective.build().needs
    if stage.guide is None and (needs.targets or needs.pair_targets):
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
    offer = stage.screened if stage.screened and stage.screens_lists else CandidateConfig()
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
