"""What each kind of stage does."""

from __future__ import annotations

import torch

from counterfoil.core import distributed
from counterfoil.core.config import Config, FromData
from counterfoil.core.console import info
from counterfoil.core.types import Role
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.evaluation.protocols import folds_of, protocol_by_name
from counterfoil.model import Model, load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.negatives.counterfactual import CounterfactualSampler
from counterfoil.negatives.diagnose import hardness
from counterfoil.negatives.generation.store import GeneratedCaptions
from counterfoil.negatives.generation.tags import TagsGenerator
from counterfoil.negatives.online import OnlineMiner, TopScoringMiner
from counterfoil.negatives.sampling import (
    CandidateConfig,
    NegativeSampler,
    NeighbourImages,
    OfflineNegativeSampler,
)
from counterfoil.negatives.sampling import check as check_candidates
from counterfoil.negatives.similarity import check_captions
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.pipelines.overrides import match_type
from counterfoil.pipelines.pipeline import (
    CaptionSpaceStage,
    Compare,
    ComputeTargets,
    Evaluate,
    Generate,
    Mine,
    Pretrain,
    Recipe,
    RewriteByRule,
    Stage,
    Train,
)
from counterfoil.pipelines.stages import compare
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation, build_shortlist
from counterfoil.pipelines.stages.fitting import (
    best_epoch_note,
    build_for_training,
    check_word_vectors,
    dev_measure,
    is_finished,
    limit_minutes,
    remove_checkpoints,
    save_result,
)
from counterfoil.pipelines.stages.generate import check_generator, check_rules
from counterfoil.pipelines.stages.mine import remove_partial, run_mining
from counterfoil.pipelines.stages.pretrain import check_pretrain
from counterfoil.pipelines.stages.teach import build_guide, check_guide, check_teachers
from counterfoil.pipelines.state import RunContext
from counterfoil.training.remine import check_remine
from counterfoil.training.trainer import fit, sampler_of

# What picks or writes negatives while a stage trains.


EDITS = frozenset({Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE})
OURS = (CounterfactualSampler, TopScoringMiner, TagsGenerator, GeneratedCaptions)


def build_miner(context: RunContext, stage: Train, seen: ProcessedDataset) -> OnlineMiner | None:
    """The source of a training, if it has one.

    The late values "processor" and "mask" become what the writer sees of the training split and the
    token that hides a word for it; "filler" the frozen writer, if the stage names one; "reader"
    what the model in training sees, where it sees with another processor than the writer;
    "written" the folder of the stored captions that the stage names.

    Args:
        context: the run.
        stage: the training.
        seen: what its model sees of the training split.
    """
    if stage.proposer is None:
        return None
    filler, writes = None, seen
    if stage.filler:
        model = load_model(str(context.place(stage.filler)))
        filler = model.model.requires_grad_(False)
        if _apart(context.recipe, stage):
            writes = model.process(context.train)
    tokenizer = writes.processor.tokenizer
    known = {
        "lens": writes,
        "mask": tokenizer.mask if tokenizer else None,
        "filler": filler,
        "reader": None if writes is seen else seen,
        "written": str(context.place(stage.written)) if stage.written else None,
    }
    return stage.proposer.fill(known).build()


def check_miner(context: RunContext, stage: Train) -> None:
    """Refuse what is judged and nobody makes, or cannot be made, before anything is trained.

    Raises:
        ValueError: edits that nobody makes, or of what cannot be edited; candidates that nobody
            screens, or none where they are screened; word tasks that nobody solves; stored captions
            that nobody draws from, or none where they are drawn from.
    """
    _offered(stage)
    _written(context.recipe, stage)
    _stored(context.recipe, stage)
    if stage.proposer is None:
        if stage.objective.build().needs & EDITS:
            raise ValueError(
                f"the loss of {stage.name!r} judges edited negatives, and the stage names nothing "
                "that makes them; set its proposer to Edited"
            )
        return
    if stage.proposer.make is not CounterfactualSampler:
        return
    seen = _seen(context, stage)
    if seen != "regions" or stage.processor.texts == "vectors":
        raise ValueError(
            f"{stage.name!r} sees {seen} and texts as {stage.processor.texts!r}; edited negatives "
            f"need "
            "images of several regions, and words: choose other features, or leave the proposer out"
        )


def _offered(stage: Train) -> None:
    """Whether candidates and what screens them go together."""
    screens = any(part.make is TopScoringMiner for part in _parts(stage))
    screened = TopScoringMiner.screens if screens else frozenset[Role]()
    check_candidates(stage.candidates.provides, screened, stage.objective.build().needs)


def _written(recipe: Recipe, stage: Train) -> None:
    """Whether somebody writes what is judged, and learns words where the loss judges them."""
    objective, parts = stage.objective.build(), _parts(stage)
    writers = [part for part in parts if part.make is TagsGenerator]
    if not parts and (Role.WRITTEN in objective.needs or objective.needs_words):
        raise ValueError(
            f"the loss of {stage.name!r} judges written captions, and the stage names nothing that "
            "writes them; set its proposer to Tailored"
        )
    tasks = {task for part in writers for task in match_type(part)["words"]}
    lost = sorted(objective.needs_words - tasks)
    if lost and all(part.make in OURS for part in parts):
        raise ValueError(
            f"the loss of {stage.name!r} judges the word task {lost[0]!r}, which its proposer "
            "leaves out; name it in words, or drop the loss"
        )
    if stage.filler and not writers:
        raise ValueError(
            f"{stage.name!r} names the filler {stage.filler!r}, and nothing that it could write "
            "for; set its proposer to Tailored"
        )
    if tasks and _apart(recipe, stage):
        raise ValueError(
            f"{stage.name!r} reads with another lens than its filler {stage.filler!r}, so it "
            "learns no words from what that one writes; set words=()"
        )


def _stored(recipe: Recipe, stage: Train) -> None:
    """Whether stored captions and what draws from them go together."""
    folders = [p.arguments.get("folder") for p in _parts(stage) if p.make is GeneratedCaptions]
    draws = any(isinstance(folder, FromData) for folder in folders)
    if draws and not stage.written:
        raise ValueError(
            f"{stage.name!r} draws from written captions and names no stage that writes them; set "
            "its written to a stage such as Write, or its proposer's folder to one that is there"
        )
    if not stage.written:
        return
    if not draws:
        raise ValueError(
            f"{stage.name!r} names the written captions of {stage.written!r}, and nothing that "
            "draws from them; set its proposer to Written with folder=late('written')"
        )
    writing = recipe.stage(stage.written)
    assert isinstance(writing, Generate | RewriteByRule)
    if writing.split != "train":
        raise ValueError(
            f"{stage.name!r} trains on captions of the split 'train', and {writing.name!r} writes "
            f"those of {writing.split!r}; set {writing.name}.split=train"
        )


def _parts(stage: Train) -> tuple[Config[OnlineMiner], ...]:
    """The proposers of a stage: its own, or those inside it."""
    if stage.proposer is None:
        return ()
    inner: tuple[Config[OnlineMiner], ...] = stage.proposer.arguments.get("proposers", ())
    return inner or (stage.proposer,)


def _apart(recipe: Recipe, stage: Train) -> bool:
    """Whether a stage sees with another processor than its filler."""
    if stage.filler is None:
        return False
    filler = recipe.stage(stage.filler)
    assert isinstance(filler, Train | Pretrain)
    return _lens(recipe, filler) != _lens(recipe, stage)


def _lens(recipe: Recipe, stage: Train | Pretrain) -> ProcessorConfig:
    """What a stage sees: that of where it starts from, if it does."""
    while stage.start:
        before = recipe.stage(stage.start)
        assert isinstance(before, Train | Pretrain)
        stage = before
    return stage.processor


def _seen(context: RunContext, stage: Train) -> str:
    """What a stage sees of an image, in words."""
    features = context.train.features
    if stage.processor.images == "pixels":
        return "pixels"
    if features is None:
        return "no features"
    return "regions" if features.regions > 1 else "one vector an image"


BATCH, SAMPLES = 128, 4096  # for the hardness of negatives in the report


def check_stage(context: RunContext, stage: Stage) -> None:
    """Refuse what would fail only after hours: a split or a picture that is not there.

    Raises:
        ValueError: there is no such split, its protocol does not fit, pictures are missing, or
            lists will be shorter than what is drawn from them, or items cannot be edited or
            compared.
    """
    match stage:
        case Train():
            check_guide(context.recipe, stage)
            check_miner(context, stage)
            _visible(context, stage)
            check_word_vectors(stage)
            if stage.refresh.every:
                _refreshed(context, stage)
            if stage.negatives:
                _long_enough(context, stage)
            if stage.neighbours:
                _of_train(context, stage, stage.neighbours)
        case Pretrain():
            _visible(context, stage)
            check_pretrain(context, stage)
        case Mine():
            context.split(stage.split)
        case RewriteByRule():
            check_rules(context, stage)
        case Generate():
            check_generator(context, stage)
        case ComputeTargets():
            check_teachers(context, stage)
        case CaptionSpaceStage():
            check_captions(context.train.texts, stage.space)
        case Evaluate():
            folds_of(protocol_by_name(stage.protocol), len(context.measured(stage)))


def _visible(context: RunContext, stage: Train | Pretrain) -> None:
    """Whether there are pictures, where a stage is to see them."""
    if stage.processor.images == "pixels" and not stage.start:
        for dataset in (context.train, *([context.dev] if context.dev else [])):
            _pictures(dataset)


def _long_enough(context: RunContext, stage: Train) -> None:
    """Whether the lists will be as long as the draws."""
    assert stage.negatives
    mined = context.recipe.stage(stage.negatives)
    assert isinstance(mined, Mine)
    dataset = context.split(mined.split)
    offer = stage.candidates if stage.screens_lists else CandidateConfig()
    texts, images = max(stage.draw.texts, offer.texts), max(stage.draw.images or 0, offer.images)
    for what, drawn, kept, there in (
        ("texts of an image", texts, mined.texts, len(dataset.texts)),
        ("images of a text", images, mined.images, len(dataset)),
    ):
        if drawn > min(kept, there):
            raise ValueError(
                f"{stage.name!r} draws from the {drawn:,} hardest {what}, but {mined.name!r} keeps "
                f"{kept:,} of {there:,}; set {stage.name}.draw to fewer, or mine longer lists"
            )


def _of_train(context: RunContext, stage: Train, mining: str) -> None:
    """Whether images that join batches are of the split that is trained on."""
    mined = context.recipe.stage(mining)
    assert isinstance(mined, Mine)
    if mined.split != "train":
        raise ValueError(
            f"{stage.name!r} trains on images of the split 'train', and {mining!r} mines those of "
            f"{mined.split!r}; set {mining}.split=train"
        )


def run_train(context: RunContext, stage: Train, *, resume: bool) -> None:
    """Fit the stage's model and save it with its processor."""
    if resume and is_finished(context, stage):
        remove_checkpoints(context, stage)
        return
    model = build_for_training(context, stage)
    assert model.processor is not None
    place, seen = context.place(stage.name), model.process(context.train)
    fitted = fit(
        limit_minutes(stage.plan, context.left()),
        _moving(model, stage),
        stage.objective.build(),
        seen,
        folder=place,
        draws=_draws(context, stage),
        candidates=_candidates(context, stage),
        proposer=build_miner(context, stage, model.processor.process(context.train)),
        guide=build_guide(context, stage, model.model.score_scale),
        positives=stage.positives,
        refresh=stage.refresh,
        draw=stage.draw,
        neighbours=_neighbours(context, stage),
        evaluate=dev_measure(context, stage, model),
        run=context.digests[stage.name],
        resume=resume,
    )
    save_result(context, stage, model, fitted)
    info(f"{stage.name}: {best_epoch_note(fitted, 'RSum')}, {fitted.seconds:,.0f} s, {place}")


def _moving(model: Model, stage: Train) -> RetrievalModel:
    """What is trained: of a frozen model whose items are all known beforehand, its head alone."""
    matcher = model.model
    return (
        matcher.head if isinstance(matcher, FrozenWithAdapters) and not stage.proposer else matcher
    )


def run_mine(context: RunContext, stage: Mine) -> None:
    """List the hardest negatives of a split and save them."""
    dataset, place = context.split(stage.split), context.place(stage.name)
    store, members = run_mining(
        stage, dataset, place, find=lambda name: str(context.place(name)), left=context.left
    )
    if distributed.rank() == 0:
        rng, texts = torch.Generator().manual_seed(0), store.lists.texts
        found = hardness(
            members, dataset.text_to_image, texts, batch=BATCH, samples=SAMPLES, rng=rng
        )
        compare.save_hardness(found, place)
    remove_partial(place)
    info(f"{stage.name}: {store.lists.describe()}, {place}")


def run_evaluate(context: RunContext, stage: Evaluate) -> None:
    """Measure, print and save numbers, ranks and the first items of every list."""
    dataset = context.measured(stage)
    names = (*(str(context.place(name)) for name in stage.using), *stage.models)
    models = [load_model(name) for name in names]
    folds_of(protocol_by_name(stage.protocol), len(dataset))  # refuses before anything is encoded
    members = [model.embed(dataset) for model in models]
    seed = context.seed(stage.using[0]) if stage.using else None
    protocol = protocol_by_name(stage.protocol)
    by = build_shortlist(
        stage.first,
        dataset,
        stage.depth,
        full=stage.full,
        find=lambda name: str(context.place(name)),
    )
    measured = RetrievalEvaluation.of(members, dataset, protocol, seed=seed, by=by)
    if distributed.rank() == 0:
        measured.save(context.place(stage.name))
        measured.show(", ".join((*stage.using, *stage.models)))


def run_compare(context: RunContext, stage: Compare) -> None:
    """Print evaluations side by side and write the report."""
    if distributed.rank() == 0:
        page = compare.comparison_page(context, stage)
        compare.write_comparison(page, context.place(stage.name))


def _pictures(dataset: ImageTextDataset) -> None:
    if dataset.pictures is None:
        raise ValueError(
            f"{dataset.name} ({dataset.split_name}) has no pictures, and this model reads pixels; "
            f"name "
            "their folder with --images"
        )
    if not isinstance(dataset.pictures, PictureFiles):
        return
    lost = [path for path in dataset.pictures.paths if not path.is_file()]
    if lost:
        raise ValueError(
            f"{len(lost):,} of {len(dataset):,} pictures of {dataset.name} ({dataset.split_name}) "
            f"are "
            f"missing, such as {lost[0]}; `counterfoil data check` lists them"
        )


def _refreshed(context: RunContext, stage: Train) -> None:
    batches = len(sampler_of(stage.plan, context.train))
    check_remine(
        stage.refresh,
        stage.objective.build(),
        stage.draw,
        batches=batches,
        listed=stage.negatives is not None,
    )


def _lists(context: RunContext, stage: Train) -> HardNegativeLists | None:
    return _stored_lists(context, stage.negatives) if stage.negatives else None


def _stored_lists(context: RunContext, mining: str) -> HardNegativeLists:
    place = context.place(mining)
    return NegativeStore.open(place, fingerprint=context.train.fingerprint).lists


def _neighbours(context: RunContext, stage: Train) -> NeighbourImages | None:
    """Who joins the batches of a training, if anybody."""
    if stage.neighbours is None:
        return None
    return NeighbourImages(
        lists=_stored_lists(context, stage.neighbours), relation=context.train.relation
    )


def _draws(context: RunContext, stage: Train) -> NegativeSampler | None:
    """Negatives that are trained on as they are drawn."""
    lists = None if stage.screens_lists else _lists(context, stage)
    if lists is None:
        return None
    return OfflineNegativeSampler(lists=lists, relation=context.train.relation, plan=stage.draw)


def _candidates(context: RunContext, stage: Train) -> NegativeSampler | None:
    """What is offered to the proposer."""
    plan = stage.candidates
    if not plan.provides:
        return None
    lists = _lists(context, stage) if stage.screens_lists else None
    return plan.draws(context.train.relation, lists, stage.draw)
