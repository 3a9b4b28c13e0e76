"""A recipe is a tuple of named stages; each reads earlier names and writes its own.

Nothing here trains or mines by itself: a stage is data, `counterfoil.recipes.run` is the verb.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, final

from counterfoil.core.literals import parse_choice
from counterfoil.corpus.collate import Positives
from counterfoil.corpus.lens import LensPlan
from counterfoil.corpus.reading import open_corpus
from counterfoil.matcher import Matcher
from counterfoil.negatives.mined import MinedPlan
from counterfoil.negatives.offers import CandidatePlan
from counterfoil.negatives.proposal import Proposer
from counterfoil.objectives.term import Objective
from counterfoil.recipes.contents import contents, foils_drawn
from counterfoil.recipes.guides import GUIDE, GUIDES, LATER, Semantics, Teach
from counterfoil.recipes.measures import Compare, Evaluate, Protocol
from counterfoil.recipes.mines import Mine
from counterfoil.recipes.model import identity
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.writes import WRITERS, Rewrite, Write
from counterfoil.spec import Spec, digest
from counterfoil.train.plan import TrainPlan
from counterfoil.train.refresh import Refresh

__all__ = [
    "Compare",
    "Evaluate",
    "Mine",
    "Pretrain",
    "Protocol",
    "Recipe",
    "Rewrite",
    "Semantics",
    "Stage",
    "Teach",
    "Train",
    "Write",
    "digests",
    "plain",
]


@final
@dataclass(frozen=True, kw_only=True)
class Train:
    """Fit a model on the training split; the best epoch on dev is kept. Writes a model folder.

    Attributes:
        name: of the stage and of its folder.
        model: the matcher; ``late("words")`` and ``late("features")`` are filled in from the data.
        objective: the loss.
        lens: what the matcher sees.
        plan: batches, epochs, optimiser, schedule, seed.
        start: stage whose weights and lens to begin from, instead of random ones.
        negatives: stage whose mined lists to draw from.
        draw: how to draw from them.
        refresh: whether, and how often, the model in training mines anew; 0 epochs for never.
        positives: which pairs are true, see `counterfoil.corpus.collate`.
        guide: stage that says how similar pairs ought to be, of a kind in `GUIDES`.
        word_vectors: file in GloVe's text format that word embeddings begin with, see
            `counterfoil.corpus.glove`.
        proposer: what picks or writes negatives with the model as it is now; ``late("lens")`` is
            what its writer sees of the training split, ``late("mask")`` the token that hides a
            word, ``late("filler")`` and ``late("reader")`` as `filler` has them.
        candidates: what is offered to a proposer that screens.
        filler: stage whose model, frozen, writes in place of the one in training.
        written: stage whose stored captions to draw from; ``late("written")`` in the proposer is
            their folder.
        neighbours: stage whose mined images join the batch of an anchor, each with a caption of its
            own, see `counterfoil.negatives.neighbours.Neighbours`.

    Raises:
        ValueError: candidates are to come from mined lists, and none are named, or those are mined
            anew while training.
    """

    kind: ClassVar[str] = "train"
    name: str
    model: Spec[Matcher]
    objective: Spec[Objective]
    lens: LensPlan = LensPlan()
    plan: TrainPlan = TrainPlan()
    start: str | None = None
    negatives: str | None = None
    draw: MinedPlan = MinedPlan()
    refresh: Refresh = field(default=Refresh(), metadata=LATER)
    positives: Positives = "id"
    guide: str | None = field(default=None, metadata=LATER)
    word_vectors: str | None = field(default=None, metadata=LATER)
    proposer: Spec[Proposer] | None = field(default=None, metadata=LATER)
    candidates: CandidatePlan = field(default=CandidatePlan(), metadata=LATER)
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

Stage = Train | Pretrain | Mine | Rewrite | Write | Teach | Semantics | Evaluate | Compare


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Stages in order.

    Attributes:
        name: as in "aoq/vsepp-flickr8k".
        stages: each reads only what stands before it.
        data: what `counterfoil.corpus.reading.open_corpus` opens when the user names nothing.
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
        if isinstance(stage, Mine | Teach | Evaluate):
            scored = (*scored, *stage.models)
        if not scored and not isinstance(stage, Train | Pretrain | Rewrite | Semantics):
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


def plain(value: Any, *, brief: bool = False) -> Any:
    """JSON-ready form of a stage or anything inside one.

    Args:
        value: the stage.
        brief: leave out later fields at their defaults.
    """
    if isinstance(value, Spec):
        return value.plain()
    if is_dataclass(value) and not isinstance(value, type):
        told = (f for f in fields(value) if not (brief and _silent(value, f)))
        return {f.name: plain(getattr(value, f.name), brief=brief) for f in told}
    if isinstance(value, tuple | list):
        return [plain(inner, brief=brief) for inner in value]
    if isinstance(value, dict):
        return {key: plain(inner, brief=brief) for key, inner in value.items()}
    return value


def digests(recipe: Recipe, data: str) -> dict[str, str]:
    """Twelve hex digits of everything each stage's result depends on.

    Args:
        recipe: the recipe.
        data: digest of the data.
    """
    known: dict[str, str] = {}
    for stage in recipe.stages:
        content = {"kind": stage.kind, "data": data, **plain(stage, brief=True)}
        if isinstance(stage, Train | Pretrain):
            content["plan"] = stage.plan.numbers()
        if isinstance(stage, Mine | Teach | Evaluate) and stage.models:
            content["models"] = [identity(model) for model in stage.models]
        if isinstance(stage, Train) and (drawn := foils_drawn(stage.proposer)):
            content["foils"] = drawn
        if isinstance(stage, Evaluate) and stage.data is not None:
            content["data"] = contents(open_corpus(stage.data))
        content["reads"] = [known[name] for name in stage.reads]
        known[stage.name] = digest(content)
    return known


def _silent(holder: Any, one: Field[Any]) -> bool:
    return bool(one.metadata) and bool(getattr(holder, one.name) == one.default)


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "ae" else f"a {kind}"
