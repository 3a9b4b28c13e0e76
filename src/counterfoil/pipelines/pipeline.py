"""A recipe is a tuple of named stages; each reads earlier names and writes its own.

Nothing here trains or mines by itself: a stage is data, `counterfoil.pipelines.run` is the verb.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.core.config import (
    Config,
    config,
    digest,
    parse_choice,
    parse_literal,
    unknown_name,
)
from counterfoil.data.batching import Positives
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import Pictures
from counterfoil.data.phrases import PhraseParser, RulePhraseParser
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.cascade import DEPTH, check_depth
from counterfoil.losses.base import WeightedSum
from counterfoil.model import model_identity
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.generation.inputs import RULES, SHARE, Rule, Singles
from counterfoil.negatives.generation.store import GeneratedCaptions, generated_digest
from counterfoil.negatives.generation.tags import MaskRefill, at_least_one
from counterfoil.negatives.online import OnlineMiner
from counterfoil.negatives.sampling import CandidateConfig, SamplingConfig
from counterfoil.negatives.similarity import LatentSpaceConfig, Measure
from counterfoil.training.config import LinearLR, OptimizerConfig, TrainConfig
from counterfoil.training.pretrain import ACCURACY, PretrainTasks
from counterfoil.training.remine import RemineConfig

# What is in a data set, told apart by content and not by where it lies.


PICTURES, ROWS = 16, 64  # how many are looked at


def data_contents(dataset: ImageTextDataset) -> str:
    """Sixteen hex digits of ids, captions and splits, and of a sample of pictures and features."""
    digest = hashlib.sha256(dataset.fingerprint.encode())
    digest.update("\x00".join(dataset.splits).encode())
    for name, features in (("images", dataset.features), ("texts", dataset.text_features)):
        if features is not None:
            digest.update(name.encode())
            digest.update(_features(features))
    if dataset.pictures is not None:
        digest.update(_pictures(dataset.pictures))
    return digest.hexdigest()[:16]


def drawn_generated(call: Any) -> list[str]:
    """Digests of the folders of captions, written before, that a written call draws from.

    Args:
        call: of a proposer, or anything inside one.
    """
    match call:
        case Config():
            found = [
                digest for inner in call.arguments.values() for digest in drawn_generated(inner)
            ]
            folder = call.arguments.get("folder") if call.make is GeneratedCaptions else None
            return [*found, generated_digest(Path(folder))] if isinstance(folder, str) else found
        case tuple() | list():
            return [digest for inner in call for digest in drawn_generated(inner)]
    return []


def _features(features: FeatureArray) -> bytes:
    rows = _spread(len(features), ROWS)
    values, _ = features.look(rows)
    said = b"" if features.classes is None else features.likely(rows).numpy().tobytes()
    shape = f"{tuple(values.shape)} {features.values.dtype}".encode()
    return shape + values.numpy().tobytes() + said


def _pictures(pictures: Pictures) -> bytes:
    digest = hashlib.sha256()
    for row in _spread(len(pictures), PICTURES).tolist():
        try:
            picture = pictures.open(row)
        except ValueError:  # whoever needs it says so
            digest.update(b"unreadable")
        else:
            digest.update(f"{picture.size}".encode() + picture.tobytes())
    return digest.digest()


def _spread(count: int, most: int) -> Tensor:
    """Up to `most` rows, evenly over `count`."""
    return torch.linspace(0, max(count - 1, 0), min(count, most), dtype=torch.float64).long()


# Who stands behind a recipe's numbers: one model, or the ensemble that a paper reports.
#
# A name with a paper's bare word, ``scan``, ``bfan`` or ``vsrn``, is the ensemble of two that the
# paper prints: SCAN t-i AVG with i-t LSE, BFAN equal with prob, VSRN from two seeds. Every other
# name
# is a single model.


Paper = Literal["vsepp", "scan", "bfan", "vsrn"]
Host = Literal[
    "vsepp", "scan-t2i", "scan-t2i-avg", "scan-i2t", "bfan-equal", "bfan-prob", "vsrn-single"
]
Ensemble = Literal["scan", "bfan", "vsrn"]
Name = Host | Ensemble

HOSTS: tuple[Host, ...] = get_args(Host)
NAMES: tuple[Name, ...] = (*HOSTS, *get_args(Ensemble))

PAPERS: dict[Host, Paper] = {
    "vsepp": "vsepp",
    "scan-t2i": "scan",
    "scan-t2i-avg": "scan",
    "scan-i2t": "scan",
    "bfan-equal": "bfan",
    "bfan-prob": "bfan",
    "vsrn-single": "vsrn",
}


@final
@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One of the models whose scores are averaged.

    Attributes:
        model: which model.
        part: what its stages are told apart by; empty for a single model.
        seed: of its trainings.
    """

    host: Host
    part: str = ""
    seed: int = 0

    def stage(self, kind: str) -> str:
        """Name of its stage of a kind, as in "online" or "online-equal"."""
        return f"{kind}-{self.part}" if self.part else kind


ENSEMBLES: dict[Ensemble, tuple[EnsembleMember, ...]] = {
    "scan": (EnsembleMember("scan-t2i-avg", "t2i"), EnsembleMember("scan-i2t", "i2t")),
    "bfan": (EnsembleMember("bfan-equal", "equal"), EnsembleMember("bfan-prob", "prob")),
    "vsrn": (
        EnsembleMember("vsrn-single", "first"),
        EnsembleMember("vsrn-single", "second", seed=1),
    ),
}


def ensemble_members(name: Name) -> tuple[EnsembleMember, ...]:
    """The models behind a name; one for a single model."""
    for ensemble, found in ENSEMBLES.items():
        if name == ensemble:
            return found
    return tuple(EnsembleMember(host) for host in HOSTS if host == name)


def members_note(name: Name) -> str:
    """How many models that is, for tables and pages."""
    many = len(ensemble_members(name))
    return "single model" if many == 1 else f"ensemble of {many}"


# Stages that say how similar images and texts ought to be, as records.


GUIDE = "guide"  # what a training asks for where it names any of the following kinds
GUIDES = ("teach", "semantics")
LATER = {"later": True}  # of a field that says nothing at its default, so older runs keep digests

Form = Literal["stored", "models"]
StorePrecision = Literal["fp32", "fp16"]
Inputs = Literal["clean", "same"]


@final
@dataclass(frozen=True, kw_only=True)
class ComputeTargets:
    """Let trained models say how similar all pairs of the training split are. Writes a store.

    Attributes:
        name: of the stage and of its folder.
        using: stages whose models teach; the mean of all teachers counts.
        models: saved models that teach too, as `counterfoil.model.load_model` opens them.
        form: "stored" encodes the split once and reads what a batch needs from the disk; "models"
            encodes every batch anew and stores nothing.
        precision: of what is stored.
        inputs: what models see of a batch: "clean" items of their own, or the "same" ones as the
            student, augmented as those are.
        standardise: bring the scores of teachers of different kinds to one mean and deviation.

    Raises:
        ValueError: no such form, precision or inputs, or stored or saved teachers that see the same
            items.
    """

    kind: ClassVar[str] = "teach"
    name: str
    using: tuple[str, ...] = ()
    models: tuple[str, ...] = field(default=(), metadata=LATER)
    form: Form = "stored"
    precision: StorePrecision = "fp32"
    inputs: Inputs = "clean"
    standardise: bool = False

    def __post_init__(self) -> None:
        for value, known, what in (
            (self.form, Form, "a form of teachers"),
            (self.precision, StorePrecision, "a precision of stored encodings"),
            (self.inputs, Inputs, "what teachers see"),
        ):
            if value not in get_args(known):
                raise ValueError(unknown_name(value, list(get_args(known)), what))
        if self.inputs == "same" and self.form == "stored":
            raise ValueError(
                f"{self.name!r} stores what teachers make of clean items, so they cannot see the "
                "same ones as the student; use form=models, or inputs=clean"
            )
        if self.inputs == "same" and self.models:
            raise ValueError(
                f"{self.models[0]} has a vocabulary and features of its own, so {self.name!r} "
                "cannot show it the same items as the student; set inputs=clean"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return self.using

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.using)


@final
@dataclass(frozen=True, kw_only=True)
class CaptionSpaceStage:
    """Work out how near the captions of the training split are in meaning (LSEH). Writes a store.

    Attributes:
        name: of the stage and of its folder.
        space: how captions become points.
        measure: how near two points are: by their "inner" product, or their "cosine".

    Raises:
        ValueError: no such measure.
    """

    kind: ClassVar[str] = "semantics"
    name: str
    space: LatentSpaceConfig = LatentSpaceConfig()
    measure: Measure = "inner"

    def __post_init__(self) -> None:
        parse_literal(Measure, self.measure, "a measure")

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs: none."""
        return ()

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be: none."""
        return ()


# Stages that measure what others have trained, as records.


Protocol = Literal["whole", "flickr-1k", "coco-1k", "coco-5k"]


@final
@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure retrieval. Writes metrics and ranks.

    Attributes:
        name: of the stage and of its folder.
        using: stages whose models score; several are one ensemble.
        split: what is measured.
        protocol: "whole" ranks the split as it is; see `counterfoil.evaluation.protocols`.
        first: stages whose models shortlist, see `counterfoil.evaluation.cascade`; none for ranking
            everything.
        depth: how many counterparts of a query they shortlist.
        full: rank everything too, to tell what the shortlists lose.
        models: saved models or names of pretrained ones that score too, as
            `counterfoil.model.load_model` opens them.
        data: other data that are measured, as `counterfoil.data.readers.load_dataset` opens them;
            None for those of the run.

    Raises:
        ValueError: shortlists of nothing.
    """

    kind: ClassVar[str] = "evaluate"
    name: str
    using: tuple[str, ...]
    split: str = "test"
    protocol: Protocol = "whole"
    first: tuple[str, ...] = field(default=(), metadata=LATER)
    depth: int = field(default=DEPTH, metadata=LATER)
    full: bool = field(default=False, metadata=LATER)
    models: tuple[str, ...] = field(default=(), metadata=LATER)
    data: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_depth(self.depth)

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (*self.using, *self.first)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)


@final
@dataclass(frozen=True, kw_only=True)
class Compare:
    """Set evaluations side by side. Writes ``report.html``.

    Attributes:
        name: of the stage and of its folder.
        results: evaluation stages; the first is what the others are compared with.
        negatives: mining stage whose hardness is shown, if any.
        others: evaluations of the same models, in this order, on other data: what they have
            forgotten there is told, see `counterfoil.pipelines.forgetting`.
    """

    kind: ClassVar[str] = "compare"
    name: str
    results: tuple[str, ...]
    negatives: str | None = None
    others: tuple[str, ...] = field(default=(), metadata=LATER)

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return tuple(name for name, _ in self.wants)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        mined = ((self.negatives, "mine"),) if self.negatives else ()
        return (*((name, "evaluate") for name in (*self.results, *self.others)), *mined)


def evaluation_title(models: Sequence[str], first: Sequence[str], depth: int) -> str:
    """What was measured, in words: an ensemble, or one on the shortlists of another.

    >>> evaluation_title(("a", "b"), (), 20)
    'a + b'
    >>> evaluation_title(("a",), ("b",), 20)
    'a on top-20 of b'
    """
    told = " + ".join(models)
    return f"{told} on top-{depth} of {' + '.join(first)}" if first else told


# Mining, as a record.


MinePrecision = Literal["fp32", "bf16"]


@final
@dataclass(frozen=True, kw_only=True)
class Mine:
    """List the hardest negatives of the training split, both ways. Writes a store.

    Attributes:
        name: of the stage and of its folder.
        using: stages whose models score; several are one ensemble.
        texts: hardest texts kept for each image.
        images: hardest images kept for each text.
        split: what is mined.
        filters: what to leave out of the lists because it may be true.
        guides: stages whose models judge too, for `FilterConfig.guided`.
        proposing: stages whose models choose the pairs that `using` looks at; none for all pairs.
        proposals: how many times as many as are listed they choose.
        precision: "bf16" scores all pairs in half precision, and those that count again.
        models: saved models or names of pretrained ones that score too, as
            `counterfoil.model.load_model` opens them.

    Raises:
        ValueError: what proposes, or half precision, does not go with filters that judge scores.
    """

    kind: ClassVar[str] = "mine"
    name: str
    using: tuple[str, ...]
    texts: int = 300
    images: int = 60
    split: str = "train"
    filters: FilterConfig = field(default=FilterConfig(), metadata=LATER)
    guides: tuple[str, ...] = field(default=(), metadata=LATER)
    proposing: tuple[str, ...] = field(default=(), metadata=LATER)
    proposals: int = field(default=4, metadata=LATER)
    precision: MinePrecision = field(default="fp32", metadata=LATER)
    models: tuple[str, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        if self.proposals < 1:
            raise ValueError(f"proposals={self.proposals}: at least 1 is needed")
        if self.precision not in get_args(MinePrecision):
            known = list(get_args(MinePrecision))
            raise ValueError(unknown_name(self.precision, known, "a precision of mining"))
        if self.precision != "fp32" and (self.proposing or self.filters.judges_scores):
            raise ValueError(
                f"precision={self.precision} goes with all pairs, and with filters of captions and "
                "pictures alone; leave out the others and what proposes, or mine in fp32"
            )
        if self.proposing and self.filters.judges_scores:
            raise ValueError(
                f"{self.name!r} re-ranks what others propose, whose scores are not its own; leave "
                "out all filters but captions and pictures, or propose nothing"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (*self.using, *self.guides, *self.proposing)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)


# Pre-training in the domain, as a record: what a training may start from.


# UNITER, in-domain: config/pretrain-indomain-base-8gpu.json of its repository
ADAMW = OptimizerConfig(
    rule="adamw", rate=5e-5, decay=0.01, betas=(0.9, 0.98), epsilon=1e-6, clip=5.0
)
WARMUP = 0.05  # 10,000 of 200,000 steps


def pretrain_config(
    *, epochs: int, batch: int, rate: float = ADAMW.rate, accumulate: int = 1, seed: int = 0
) -> TrainConfig:
    """A plan with UNITER's optimiser: AdamW, a warm-up, then a straight line to 0.

    Args:
        epochs: passes over the training captions; the best one on dev is kept.
        batch: pairs of a batch, over all processes.
        rate: learning rate.
        accumulate: batches of one task whose gradients are averaged.
        seed: of the tasks, what they hide, and the dropout.
    """
    return TrainConfig(
        epochs=epochs,
        batch=batch,
        seed=seed,
        optimiser=OptimizerConfig(
            rule=ADAMW.rule,
            rate=rate,
            decay=ADAMW.decay,
            betas=ADAMW.betas,
            epsilon=ADAMW.epsilon,
            clip=ADAMW.clip,
        ),
        schedule=LinearLR(warmup=WARMUP),
        accumulate=accumulate,
        select=ACCURACY,
    )


@final
@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Pre-train a model on the training split; the best epoch on dev is kept.

    Writes a model folder; a training starts from it by its name, ``Train(start="pretrained")``.

    Attributes:
        name: of the stage and of its folder.
        model: a model that can be pre-trained, with the heads that the tasks ask;
            ``late("words")``, ``late("features")``, ``late("classes")`` and ``late("mask")`` become
            what the data say.
        plan: batches, epochs, optimiser, schedule, seed; it selects by "accuracy", "mlm" or "itm".
        tasks: what the model is asked, and how often; where the features come without
            ``classes.npy``, "mrc" and "mrckl" are left out, and the run says so.
        processor: what the model sees: stored features, or pixels where no regions are hidden, and
            words or wordpieces.
        start: stage whose weights and processor to begin from, instead of random ones.

    Raises:
        ValueError: regions are hidden and the model is to see pixels, or it is to read vectors.
    """

    kind: ClassVar[str] = "pretrain"
    name: str
    model: Config[RetrievalModel]
    plan: TrainConfig
    tasks: PretrainTasks = PretrainTasks()
    processor: ProcessorConfig = ProcessorConfig()
    start: str | None = None

    def __post_init__(self) -> None:
        blind = self.tasks.sighted and self.processor.images != "features"
        if blind or self.processor.texts == "vectors":
            hides = "regions and words" if self.tasks.sighted else "words"
            raise ValueError(
                f"{self.name!r} hides {hides}, but its lens shows {self.processor.images} and "
                f"{self.processor.texts}; set images to 'features' (or mrfr, mrc and mrckl to 0), "
                f"and "
                "texts to 'words' or a tokenizer"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (self.start,) if self.start else ()

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)


# Captions that rules or a trained model write and store, as records.


BY_RULE: Config[PhraseParser] = config(RulePhraseParser)
WRITERS = ("write", "rewrite")  # kinds of stages that write a folder of foils


@final
@dataclass(frozen=True, slots=True)
class RuleConfig:
    """What rules are to write.

    Attributes:
        split: whose captions are changed.
        kinds: see `counterfoil.negatives.generation.rules.RuleGenerator`; () for all.
        most: foils of a kind that are kept of each caption.
        frequency: how often a noun stands in the training captions; see
            `counterfoil.negatives.generation.rules.frequent_nouns`.
        synonyms: which nouns may name the same.
        seed: of the choice among all foils.
    """

    split: str = "train"
    kinds: tuple[str, ...] = ()
    most: int = 5
    frequency: int | None = None
    synonyms: str = "list"
    seed: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class RewriteByRule:
    """Change captions of a split by rule (VSE-C). Writes a folder of foils.

    Attributes:
        name: of the stage and of its folder.
        plan: what the rules are to write.
    """

    kind: ClassVar[str] = "rewrite"
    name: str
    plan: RuleConfig = RuleConfig()

    @property
    def split(self) -> str:
        """Whose captions are changed."""
        return self.plan.split

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs: none."""
        return ()

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be: none."""
        return ()


@final
@dataclass(frozen=True, kw_only=True)
class Generate:
    """Let a trained model write false captions of a split (TAGS). Writes a folder of foils.

    Attributes:
        name: of the stage and of its folder.
        using: stage whose model writes; it needs heads for a score and for hidden words.
        split: whose captions are changed; a training draws from those of "train".
        parser: finds the phrases that are hidden.
        masks: K, maskings of each caption.
        refills: L, refills of each masking.
        keep: m, hardest foils that are kept of each caption.
        temperature: of the draw of words.
        share: of the tokens that are hidden, roughly.
        singles: whether single words are hidden, see
            `counterfoil.negatives.generation.tags.MaskRefill`.
        rules: what may be true, see `counterfoil.negatives.generation.inputs.CandidateFilter`.
        guide: stage whose model judges the hardest too: what it scores about as high as the
            original is left out.
        slack: how far below the original's score that is, or its cosine.
        seed: of what is hidden and drawn.
        encoder: a sentence encoder that judges them too: what is about as near in meaning to the
            image's other captions as the original is left out, see
            `counterfoil.negatives.generation.judges.ParaphraseJudge`.

    Raises:
        ValueError: a number or a rule that is not possible.
    """

    kind: ClassVar[str] = "write"
    name: str
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
    encoder: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        at_least_one({"keep": self.keep})
        if strange := [rule for rule in self.rules if rule not in RULES]:
            raise ValueError(unknown_name(strange[0], list(RULES), "a rule for written captions"))
        _ = self.hand  # which refuses the rest

    @property
    def hand(self) -> MaskRefill:
        """How it writes."""
        return MaskRefill(
            masks=self.masks,
            refills=self.refills,
            temperature=self.temperature,
            share=self.share,
            singles=self.singles,
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (self.using, self.guide) if self.guide else (self.using,)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)


@final
@dataclass(frozen=True, kw_only=True)
class Train:
    """Fit a model on the training split; the best epoch on dev is kept. Writes a model folder.

    Attributes:
        name: of the stage and of its folder.
        model: the model; ``late("words")`` and ``late("features")`` are filled in from the data.
        objective: the loss.
        processor: what the model sees.
        plan: batches, epochs, optimiser, schedule, seed.
        start: stage whose weights and processor to begin from, instead of random ones.
        negatives: stage whose mined lists to draw from.
        draw: how to draw from them.
        refresh: whether, and how often, the model in training mines anew; 0 epochs for never.
        positives: which pairs are true, see `counterfoil.data.batching`.
        guide: stage that says how similar pairs ought to be, of a kind in `GUIDES`.
        word_vectors: file in GloVe's text format that word embeddings begin with, see
            `counterfoil.data.word_vectors`.
        proposer: what picks or writes negatives with the model as it is now; ``late("lens")`` is
            what its writer sees of the training split, ``late("mask")`` the token that hides a
            word, ``late("filler")`` and ``late("reader")`` as `filler` has them.
        candidates: what is offered to a proposer that screens.
        filler: stage whose model, frozen, writes in place of the one in training.
        written: stage whose stored captions to draw from; ``late("written")`` in the proposer is
            their folder.
        neighbours: stage whose mined images join the batch of an anchor, each with a caption of its
            own, see `counterfoil.negatives.sampling.NeighbourImages`.

    Raises:
        ValueError: candidates are to come from mined lists, and none are named, or those are mined
            anew while training.
    """

    kind: ClassVar[str] = "train"
    name: str
    model: Config[RetrievalModel]
    objective: Config[WeightedSum]
    processor: ProcessorConfig = ProcessorConfig()
    plan: TrainConfig = TrainConfig()
    start: str | None = None
    negatives: str | None = None
    draw: SamplingConfig = SamplingConfig()
    refresh: RemineConfig = field(default=RemineConfig(), metadata=LATER)
    positives: Positives = "id"
    guide: str | None = field(default=None, metadata=LATER)
    word_vectors: str | None = field(default=None, metadata=LATER)
    proposer: Config[OnlineMiner] | None = field(default=None, metadata=LATER)
    candidates: CandidateConfig = field(default=CandidateConfig(), metadata=LATER)
    filler: str | None = field(default=None, metadata=LATER)
    written: str | None = field(default=None, metadata=LATER)
    neighbours: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.screens_lists and (self.negatives is None or self.refresh.every):
            raise ValueError(
                f"the candidates of {self.name!r} are to come from mined lists; name the mining "
                "stage with negatives and let refresh.every be 0, or offer random ones"
            )

    @property
    def screens_lists(self) -> bool:
        """Whether mined lists are offered to its proposer, and not drawn from."""
        return bool(self.candidates.provides) and self.candidates.source == "mined"

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return tuple(name for name, _ in self.wants)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        wanted = (
            (self.start, "train"),
            (self.negatives, "mine"),
            (self.guide, GUIDE),
            (self.filler, "train"),
            (self.written, "write"),
            (self.neighbours, "mine"),
        )
        return tuple((name, kind) for name, kind in wanted if name)


MODELS = ("train", "pretrain")  # kinds of stages that write a model folder
KINDS = {GUIDE: GUIDES, "train": MODELS, "write": WRITERS}  # that stand for one another

Stage = (
    Train
    | Pretrain
    | Mine
    | RewriteByRule
    | Generate
    | ComputeTargets
    | CaptionSpaceStage
    | Evaluate
    | Compare
)


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Stages in order.

    Attributes:
        name: as in "aoq/vsepp-flickr8k".
        stages: each reads only what stands before it.
        data: what `counterfoil.data.readers.load_dataset` opens when the user names nothing.
        about: one sentence.

    Raises:
        ValueError: a stage reads a name no earlier stage writes, or of another kind, or a name is
            written twice.
    """

    name: str
    stages: tuple[Stage, ...]
    data: str = "scenes"
    about: str = ""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError(f"{self.name} has no stage; give it at least one")
        known: dict[str, str] = {}
        for stage in self.stages:
            self._check(stage, known)
            known[stage.name] = stage.kind

    def _check(self, stage: Stage, known: Mapping[str, str]) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", stage.name):
            raise ValueError(
                f"{self.name}: {stage.name!r} cannot name a stage; letters, digits and - are needed"
            )
        if stage.name in known:
            raise ValueError(f"{self.name}: two stages are called {stage.name!r}")
        scored = stage.using if isinstance(stage, Mine | Evaluate) else stage.reads
        if isinstance(stage, Mine | ComputeTargets | Evaluate):
            scored = (*scored, *stage.models)
        if not scored and not isinstance(
            stage, Train | Pretrain | RewriteByRule | CaptionSpaceStage
        ):
            raise ValueError(f"{self.name}: {stage.name!r} names no stage whose results it uses")
        for name, kind in stage.wants:
            if name not in known:
                raise ValueError(
                    f"{self.name}: {stage.name!r} reads {name!r}, which no earlier stage writes"
                )
            if known[name] not in KINDS.get(kind, (kind,)):
                raise ValueError(
                    f"{self.name}: {stage.name!r} needs {_a(kind)} stage where it names {name!r}, "
                    f"{_a(known[name])} stage"
                )

    def stage(self, name: str) -> Stage:
        """The stage of this name.

        Raises:
            ValueError: there is none; the nearest one is named.
        """
        found = {stage.name: stage for stage in self.stages}
        parse_choice(found, name, f"a stage of {self.name}")
        return found[name]


def recipe_to_dict(value: Any, *, brief: bool = False) -> Any:
    """JSON-ready form of a stage or anything inside one.

    Args:
        value: the stage.
        brief: leave out later fields at their defaults.
    """
    if isinstance(value, Config):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        told = (f for f in fields(value) if not (brief and _silent(value, f)))
        return {f.name: recipe_to_dict(getattr(value, f.name), brief=brief) for f in told}
    if isinstance(value, tuple | list):
        return [recipe_to_dict(inner, brief=brief) for inner in value]
    if isinstance(value, dict):
        return {key: recipe_to_dict(inner, brief=brief) for key, inner in value.items()}
    return value


def stage_digests(recipe: Recipe, data: str) -> dict[str, str]:
    """Twelve hex digits of everything each stage's result depends on.

    Args:
        recipe: the recipe.
        data: digest of the data.
    """
    known: dict[str, str] = {}
    for stage in recipe.stages:
        content = {"kind": stage.kind, "data": data, **recipe_to_dict(stage, brief=True)}
        if isinstance(stage, Train | Pretrain):
            content["plan"] = stage.plan.numbers()
        if isinstance(stage, Mine | ComputeTargets | Evaluate) and stage.models:
            content["models"] = [model_identity(model) for model in stage.models]
        if isinstance(stage, Train) and (drawn := drawn_generated(stage.proposer)):
            content["foils"] = drawn
        if isinstance(stage, Evaluate) and stage.data is not None:
            content["data"] = data_contents(load_dataset(stage.data))
        content["reads"] = [known[name] for name in stage.reads]
        known[stage.name] = digest(content)
    return known


def _silent(holder: Any, one: Field[Any]) -> bool:
    return bool(one.metadata) and bool(getattr(holder, one.name) == one.default)


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "ae" else f"a {kind}"
