"""What a writing stage does: rules or a trained model change every caption of a split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from counterfoil import world
from counterfoil.core.console import info
from counterfoil.core.resumable import WorkStopped
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.meanings import Meanings
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.negatives.candidates import Opinion, Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.model_writer import ModelWriter
from counterfoil.negatives.paraphrase import Paraphrase
from counterfoil.negatives.rule_writer import RuleWriter, frequent_nouns
from counterfoil.negatives.second_opinion import AnyOf, SecondOpinion
from counterfoil.negatives.written_parts import write_in_parts
from counterfoil.negatives.written_store import WrittenStore
from counterfoil.recipes.context import Context, Stopped
from counterfoil.recipes.mining import partial
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.recipe import Pretrain, Train
from counterfoil.recipes.writes import Rewrite, RulePlan, Write
from counterfoil.train.stopping import stopping

EVERY = 1.0  # minutes


def check(context: Context, stage: Write) -> None:
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


def write(context: Context, stage: Write) -> None:
    """Write foils of a split and store them."""
    corpus, place = context.split(stage.split), context.place(stage.name)
    if place.exists():  # stopped between its last act and the note that it is done
        store = WrittenStore.open(place, fingerprint=corpus.fingerprint)
    else:
        store = written(
            stage, corpus, place, find=lambda name: str(context.place(name)), left=context.left
        )
    info(f"{stage.name}: {told(store, corpus)}, {place}")


def written(
    stage: Write,
    corpus: Corpus,
    place: Path,
    *,
    find: Callable[[str], str] = str,
    left: Callable[[], float | None] = lambda: None,
) -> WrittenStore:
    """Write foils of a split and store them, from where it was stopped on.

    Args:
        stage: who writes, and how.
        corpus: the split.
        place: the new folder.
        find: from a name in the stage to what `open_model` opens.
        left: how many minutes are left; None for no limit.

    Raises:
        ValueError: model and data do not fit, the model does not write, or what was kept is of
            another writing.
        Stopped: the time was up, or a signal came.
    """
    model = open_model(find(stage.using))
    guide = open_model(find(stage.guide)) if stage.guide else None
    desk = Desk(lens=model.on(corpus), parser=stage.parser.build())
    writer = ModelWriter(
        desk=desk,
        matcher=model.matcher,
        hand=stage.hand,
        keep=stage.keep,
        sieve=_sieve(stage, guide, corpus),
        seed=stage.seed,
    )
    minutes = left()
    with stopping(0 if minutes is None else max(minutes, 0.01), EVERY) as watch:
        try:
            return write_in_parts(
                place,
                corpus,
                writer.foils,
                partial=partial(place),
                writer=f"{type(model.matcher).__name__} (TAGS)",
                settings=_settings(stage, model, guide),
                seed=stage.seed,
                stop=watch.wanted,
            )
        except WorkStopped:
            watch.heed()
            late = watch.late and watch.asked is None
            raise Stopped("out of time" if late else "interrupted") from None


def rewrite(context: Context, stage: Rewrite) -> None:
    """Write foils of a split by rule and store them."""
    corpus, place = context.split(stage.split), context.place(stage.name)
    if world.rank() == 0 and not place.exists():
        rewritten(stage.plan, corpus, context.train, place)
    world.wait()
    store = WrittenStore.open(place, fingerprint=corpus.fingerprint)
    info(f"{stage.name}: {told(store, corpus)}, {place}")


def rewritten(plan: RulePlan, corpus: Corpus, train: Corpus, place: Path) -> WrittenStore:
    """Write foils of a split by rule and store them, on one process.

    Args:
        plan: what to write.
        corpus: the split.
        train: the training split, from which the nouns come.
        place: the new folder.

    Raises:
        ValueError: a setting is not possible, or too few nouns are left.
    """
    writer = _rules(plan, train)
    return WrittenStore.write(
        place,
        writer.foils(corpus),
        corpus,
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


def check_rules(context: Context, stage: Rewrite) -> None:
    """Refuse rules that have nothing to write.

    Raises:
        ValueError: so they have, there is no such split, or a setting is not possible.
    """
    context.split(stage.split)
    _rules(stage.plan, context.train)


def told(store: WrittenStore, corpus: Corpus) -> str:
    """How many foils of which kinds were written."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in store.manifest.counts.items())
    return f"{len(store):,} foils of {len(corpus.texts):,} captions ({kinds or 'none'})"


def _rules(plan: RulePlan, train: Corpus) -> RuleWriter:
    return RuleWriter(
        nouns=frequent_nouns(train.texts, at_least=plan.frequency),
        kinds=plan.kinds or RULE_KINDS,
        most=plan.most,
        synonyms=plan.synonyms,
        seed=plan.seed,
    )


def _sieve(stage: Write, guide: Model | None, corpus: Corpus) -> Sieve:
    opinions: list[Opinion] = []
    if guide is not None:
        asked = SecondOpinion(matcher=guide.matcher, lens=guide.on(corpus), slack=stage.slack)
        opinions.append(asked)
    if stage.encoder is not None:
        meanings = Meanings(stage.encoder, device=world.device())
        opinions.append(Paraphrase(meanings=meanings, corpus=corpus, slack=stage.slack))
    return Sieve(rules=stage.rules, opinion=AnyOf(opinions) if opinions else None)


def _settings(stage: Write, model: Model, guide: Model | None) -> dict[str, object]:
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
