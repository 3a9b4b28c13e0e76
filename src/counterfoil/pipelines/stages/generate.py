"""What a writing stage does: rules or a trained model change every caption of a split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from counterfoil.core import distributed
from counterfoil.core.console import info
from counterfoil.core.resumable import WorkStopped
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.model import Model, load_model
from counterfoil.negatives.generation.inputs import (
    CandidateFilter,
    FalseNegativeJudge,
    GeneratorInputs,
)
from counterfoil.negatives.generation.judges import AnyJudge, JudgeModel, ParaphraseJudge
from counterfoil.negatives.generation.rules import RuleGenerator, frequent_nouns
from counterfoil.negatives.generation.store import GeneratedStore
from counterfoil.negatives.generation.writer import ModelGenerator, generate_in_parts
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.pipelines.pipeline import Generate, Pretrain, RewriteByRule, RuleConfig, Train
from counterfoil.pipelines.stages.mine import partial_folder
from counterfoil.pipelines.state import RunContext, RunStopped
from counterfoil.training.stopping import watch_for_stop

EVERY = 1.0  # minutes


def check_generator(context: RunContext, stage: Generate) -> None:
    """Refuse a writing that would fail only after its writer has been trained.

    Raises:
        ValueError: there is no such split, nothing finds the phrases, or the writer has no head for
            hidden words.
    """
    context.split(stage.split)
    stage.parser.build()
    writer = context.recipe.stage(stage.using)
    assert isinstance(writer, Train | Pretrain)
    outputs = writer.model.arguments.get("outputs")
    if outputs is not None and "fill" not in outputs:
        raise ValueError(
            f"{stage.name!r} lets {stage.using!r} write, whose model has no head 'fill' for hidden "
            f"words; add it to outputs={outputs!r}"
        )


def run_generate(context: RunContext, stage: Generate) -> None:
    """Write foils of a split and store them."""
    dataset, place = context.split(stage.split), context.place(stage.name)
    if place.exists():  # stopped between its last act and the note that it is done
        store = GeneratedStore.open(place, fingerprint=dataset.fingerprint)
    else:
        store = generate_captions(
            stage, dataset, place, find=lambda name: str(context.place(name)), left=context.left
        )
    info(f"{stage.name}: {describe_generation(store, dataset)}, {place}")


def generate_captions(
    stage: Generate,
    dataset: ImageTextDataset,
    place: Path,
    *,
    find: Callable[[str], str] = str,
    left: Callable[[], float | None] = lambda: None,
) -> GeneratedStore:
    """Write foils of a split and store them, from where it was stopped on.

    Args:
        stage: who writes, and how.
        dataset: the split.
        place: the new folder.
        find: from a name in the stage to what `load_model` opens.
        left: how many minutes are left; None for no limit.

    Raises:
        ValueError: model and data do not fit, the model does not write, or what was kept is of
            another writing.
        Stopped: the time was up, or a signal came.
    """
    model = load_model(find(stage.using))
    guide = load_model(find(stage.guide)) if stage.guide else None
    desk = GeneratorInputs(processor=model.process(dataset), parser=stage.parser.build())
    writer = ModelGenerator(
        desk=desk,
        model=model.model,
        hand=stage.hand,
        keep=stage.keep,
        sieve=_sieve(stage, guide, dataset),
        seed=stage.seed,
    )
    minutes = left()
    with watch_for_stop(0 if minutes is None else max(minutes, 0.01), EVERY) as watch:
        try:
            return generate_in_parts(
                place,
                dataset,
                writer.foils,
                partial=partial_folder(place),
                writer=f"{type(model.model).__name__} (TAGS)",
                settings=_settings(stage, model, guide),
                seed=stage.seed,
                stop=watch.wanted,
            )
        except WorkStopped:
            watch.heed()
            late = watch.late and watch.asked is None
            raise RunStopped("out of time" if late else "interrupted") from None


def run_rewrite(context: RunContext, stage: RewriteByRule) -> None:
    """Write foils of a split by rule and store them."""
    dataset, place = context.split(stage.split), context.place(stage.name)
    if distributed.rank() == 0 and not place.exists():
        rewrite_captions(stage.plan, dataset, context.train, place)
    distributed.barrier()
    store = GeneratedStore.open(place, fingerprint=dataset.fingerprint)
    info(f"{stage.name}: {describe_generation(store, dataset)}, {place}")


def rewrite_captions(
    plan: RuleConfig, dataset: ImageTextDataset, train: ImageTextDataset, place: Path
) -> GeneratedStore:
    """Write foils of a split by rule and store them, on one process.

    Args:
        plan: what to write.
        dataset: the split.
        train: the training split, from which the nouns come.
        place: the new folder.

    Raises:
        ValueError: a setting is not possible, or too few nouns are left.
    """
    writer = _rules(plan, train)
    return GeneratedStore.write(
        place,
        writer.foils(dataset),
        dataset,
        writer="rules (VSE-C)",
        settings={
            "kinds": writer.kinds,
            "most": plan.most,
            "synonyms": plan.synonyms,
            "frequency": plan.frequency,
            "nouns": len(writer.nouns),
        },
        seed=plan.seed,
    )


def check_rules(context: RunContext, stage: RewriteByRule) -> None:
    """Refuse rules that have nothing to write.

    Raises:
        ValueError: so they have, there is no such split, or a setting is not possible.
    """
    context.split(stage.split)
    _rules(stage.plan, context.train)


def describe_generation(store: GeneratedStore, dataset: ImageTextDataset) -> str:
    """How many foils of which kinds were written."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in store.manifest.counts.items())
    return f"{len(store):,} foils of {len(dataset.texts):,} captions ({kinds or 'none'})"


def _rules(plan: RuleConfig, train: ImageTextDataset) -> RuleGenerator:
    return RuleGenerator(
        nouns=frequent_nouns(train.texts, at_least=plan.frequency),
        kinds=plan.kinds or RULE_KINDS,
        most=plan.most,
        synonyms=plan.synonyms,
        seed=plan.seed,
    )


def _sieve(stage: Generate, guide: Model | None, dataset: ImageTextDataset) -> CandidateFilter:
    opinions: list[FalseNegativeJudge] = []
    if guide is not None:
        asked = JudgeModel(model=guide.model, processor=guide.process(dataset), slack=stage.slack)
        opinions.append(asked)
    if stage.encoder is not None:
        meanings = SentenceEncoder(stage.encoder, device=distributed.device())
        opinions.append(ParaphraseJudge(meanings=meanings, dataset=dataset, slack=stage.slack))
    return CandidateFilter(rules=stage.rules, opinion=AnyJudge(opinions) if opinions else None)


def _settings(stage: Generate, model: Model, guide: Model | None) -> dict[str, object]:
    """What the manifest says of the writer, besides its seed."""
    source, judge = model.source(), guide.source() if guide else None
    return {
        "model": source.matcher,
        "checkpoint": source.checkpoint,
        "parser": repr(stage.parser),
        "masks": stage.masks,
        "refills": stage.refills,
        "keep": stage.keep,
        "temperature": stage.temperature,
        "share": stage.share,
        "singles": stage.singles,
        "rules": stage.rules,
        "guide": judge.matcher if judge else None,
        "guide_checkpoint": judge.checkpoint if judge else None,
        "slack": stage.slack,
        **({"encoder": stage.encoder} if stage.encoder else {}),
    }
