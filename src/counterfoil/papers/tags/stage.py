"""Generation of false captions of a split, by rules or by a trained model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

from counterfoil.core import distributed
from counterfoil.core.config import Config, config, unknown_name
from counterfoil.core.console import info
from counterfoil.core.resumable import partial_folder
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.phrases import PhraseParser, RulePhraseParser
from counterfoil.model import Model, load_model
from counterfoil.models.layers.pooling import check_positive
from counterfoil.negatives.generated import GeneratedStore
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.papers.compared.rules import RuleGenerator, frequent_nouns
from counterfoil.papers.tags.generation import MaskRefill
from counterfoil.papers.tags.generator import ModelGenerator, generate_in_parts
from counterfoil.papers.tags.inputs import (
    RULES,
    SHARE,
    CandidateFilter,
    FalseNegativeJudge,
    GeneratorInputs,
    Rule,
    Singles,
)
from counterfoil.papers.tags.judges import JudgeModel, ParaphraseJudge
from counterfoil.pipelines.stages.base import CaptionStage
from counterfoil.pipelines.stages.fitting import ModelStage
from counterfoil.pipelines.state import RunContext, stop_watch

BY_RULE: Config[PhraseParser] = config(RulePhraseParser)
EVERY = 1.0  # minutes between two checkpoints


@final
@dataclass(frozen=True, slots=True)
class RuleConfig:
    """Settings of captions that are changed by rule.

    Attributes:
        split: the split whose captions are changed.
        kinds: see `counterfoil.papers.compared.rules.RuleGenerator`; () for all.
        most: foils of a kind and caption.
        frequency: least count of a noun in the training captions; see
            `counterfoil.papers.compared.rules.frequent_nouns`.
        synonyms: source of nouns that may name the same thing.
        seed: of the choice among all possible foils.
    """

    split: str = "train"
    kinds: tuple[str, ...] = ()
    most: int = 5
    frequency: int | None = None
    synonyms: str = "list"
    seed: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class RewriteByRule(CaptionStage):
    """Change captions of a split by rule (VSE-C). Writes a folder of foils.

    Attributes:
        plan: settings of the rules.
    """

    kind: ClassVar[str] = "rewrite"
    plan: RuleConfig = RuleConfig()

    @property
    def source_split(self) -> str:
        return self.plan.split

    def check(self, context: RunContext) -> None:
        """Refuse rules that have nothing to write."""
        context.split(self.plan.split)
        _rule_generator(self.plan, context.train)

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Write foils of the split and store them."""
        dataset, place = context.split(self.plan.split), context.place(self.name)
        if distributed.rank() == 0 and not place.exists():
            rewrite_captions(self.plan, dataset, context.train, place)
        distributed.barrier()
        store = GeneratedStore.open(place, fingerprint=dataset.fingerprint)
        info(f"{self.name}: {describe_generation(store, dataset)}, {place}")


@final
@dataclass(frozen=True, kw_only=True)
class Generate(CaptionStage):
    """Generate false captions of a split with a trained model (TAGS). Writes a folder of foils.

    Attributes:
        using: stage of the generating model; it needs outputs for a score and for hidden words.
        split: the split whose captions are changed; a training reads those of "train".
        parser: finds the phrases that are hidden.
        masks: K, maskings of each caption.
        refills: L, refills of each masking.
        keep: m, hardest foils of each caption.
        temperature: of the draw of words.
        share: approximate share of tokens that are hidden.
        singles: whether single words are hidden, see
            `counterfoil.papers.tags.generation.MaskRefill`.
        rules: rules for captions that may be true, see
            `counterfoil.papers.tags.inputs.CandidateFilter`.
        guide: stage of a guide model: foils that it scores about as high as the original are
            left out.
        slack: least distance below the original's score or cosine.
        seed: of what is hidden and drawn.
        encoder: sentence encoder: foils about as near in meaning to the image's other captions as
            the original are left out, see
            `counterfoil.papers.tags.judges.ParaphraseJudge`.
    """

    kind: ClassVar[str] = "write"
    takes: ClassVar[Mapping[str, str]] = {"using": "train", "guide": "train"}
    using: str
    split: str = "train"
    parser: Config[PhraseParser] = BY_RULE
    masks: int = 20
    refills: int = 20
    keep: int = 10
    temperature: float = 1.5
    share: float = SHARE
    singles: Singles = "without phrases"
    rules: tuple[Rule, ...] = ("captions",)
    guide: str | None = None
    slack: float = 0.0
    seed: int = 0
    encoder: str | None = None

    def shortened(self, steps: int) -> Generate:
        return replace(self, masks=2, refills=2, keep=2)

    def __post_init__(self) -> None:
        check_positive(keep=self.keep)
        if strange := [rule for rule in self.rules if rule not in RULES]:
            raise ValueError(unknown_name(strange[0], list(RULES), "a rule for written captions"))
        _ = self.mask_refill  # refuses the other settings

    @property
    def mask_refill(self) -> MaskRefill:
        """Settings of masking and refilling."""
        return MaskRefill(
            masks=self.masks,
            refills=self.refills,
            temperature=self.temperature,
            share=self.share,
            singles=self.singles,
        )

    @property
    def source_split(self) -> str:
        return self.split

    def check(self, context: RunContext) -> None:
        """Refuse a split or parser that does not exist, and a model without an output for words."""
        context.split(self.split)
        self.parser.build()
        outputs = context.stage(self.using, ModelStage).model.arguments.get("outputs")
        if outputs is not None and "fill" not in outputs:
            raise ValueError(
                f"{self.name!r} generates with {self.using!r}, whose model has no head 'fill' for "
                f"hidden words; add it to outputs={outputs!r}"
            )

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Generate foils of the split and store them."""
        dataset, place = context.split(self.split), context.place(self.name)
        if place.exists():  # killed after its last write and before it was recorded as done
            store = GeneratedStore.open(place, fingerprint=dataset.fingerprint)
        else:
            store = generate_captions(
                self, dataset, place, find=context.model_path, left=context.left
            )
        info(f"{self.name}: {describe_generation(store, dataset)}, {place}")


def generate_captions(
    stage: Generate,
    dataset: ImageTextDataset,
    place: Path,
    *,
    find: Callable[[str], str] = str,
    left: Callable[[], float | None] = lambda: None,
) -> GeneratedStore:
    """Generate foils of a split and store them; continues a generation that was stopped.

    Args:
        stage: the model and the settings.
        dataset: the split.
        place: the new folder.
        find: from a name in the stage to the path or name that `load_model` opens.
        left: returns the minutes left; None for no limit.

    Raises:
        ValueError: model and data do not fit, the model has no output for words, or the saved
            progress is of another generation.
        RunStopped: the time was up, or a signal came.
    """
    model = load_model(find(stage.using))
    guide = load_model(find(stage.guide)) if stage.guide else None
    inputs = GeneratorInputs(processor=model.process(dataset), parser=stage.parser.build())
    writer = ModelGenerator(
        inputs=inputs,
        model=model.model,
        mask_refill=stage.mask_refill,
        keep=stage.keep,
        candidate_filter=_candidate_filter(stage, guide, dataset),
        seed=stage.seed,
    )
    with stop_watch(left(), EVERY) as watch:
        return generate_in_parts(
            place,
            dataset,
            writer.foils,
            partial=partial_folder(place),
            writer=f"{type(model.model).__name__} (TAGS)",
            settings=_manifest_settings(stage, model, guide),
            seed=stage.seed,
            stop=watch.wanted,
        )


def rewrite_captions(
    plan: RuleConfig, dataset: ImageTextDataset, train: ImageTextDataset, place: Path
) -> GeneratedStore:
    """Write foils of a split by rule and store them, on one process."""
    writer = _rule_generator(plan, train)
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


def describe_generation(store: GeneratedStore, dataset: ImageTextDataset) -> str:
    """Number of foils by kind, in words."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in store.manifest.counts.items())
    return f"{len(store):,} foils of {len(dataset.texts):,} captions ({kinds or 'none'})"


def _rule_generator(plan: RuleConfig, train: ImageTextDataset) -> RuleGenerator:
    return RuleGenerator(
        nouns=frequent_nouns(train.texts, at_least=plan.frequency),
        kinds=plan.kinds or RULE_KINDS,
        most=plan.most,
        synonyms=plan.synonyms,
        seed=plan.seed,
    )


def _candidate_filter(
    stage: Generate, guide: Model | None, dataset: ImageTextDataset
) -> CandidateFilter:
    judges: list[FalseNegativeJudge] = []
    if guide is not None:
        processor = guide.process(dataset)
        judges.append(JudgeModel(model=guide.model, processor=processor, slack=stage.slack))
    if stage.encoder is not None:
        meanings = SentenceEncoder(stage.encoder, device=distributed.device())
        judges.append(ParaphraseJudge(meanings=meanings, dataset=dataset, slack=stage.slack))
    return CandidateFilter(rules=stage.rules, opinion=judges)


def _manifest_settings(stage: Generate, model: Model, guide: Model | None) -> dict[str, object]:
    """Settings of the generator for the manifest, without the seed."""
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
