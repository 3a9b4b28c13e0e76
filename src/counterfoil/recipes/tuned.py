"""CLIP, SigLIP and their kin, trained further on a user's own photos.

All of a model is trained, or low-rank adapters on its attention (LoRA), or adapters behind vectors
that it makes once (its towers are frozen). Losses keep the numbers of their papers; rates, epochs
and the temperature, which is what CLIP ends with, are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, final, get_args

from counterfoil.core.literals import parse_choice
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.models.blocks.pretrained import encoder_folder
from counterfoil.negatives.written import Written
from counterfoil.objectives.infonce import InfoNCE
from counterfoil.objectives.term import Term
from counterfoil.objectives.triplet import HardestTriplet, RankedBelow
from counterfoil.recipes import aoq, ndgl, negclip, own
from counterfoil.recipes.bases import Base, trained
from counterfoil.recipes.forgetting import told_of
from counterfoil.recipes.modern_losses import Terms
from counterfoil.recipes.online import MARGIN
from counterfoil.recipes.pairs import knows_nothing, pair_of
from counterfoil.recipes.recipe import Compare, Evaluate, Mine, Recipe, Stage, Teach, Train
from counterfoil.spec import Spec, late, of, part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Cosine

Name = Literal["contrastive", "triplet", "aoq", "ndgl", "negclip"]
Way = Literal["full", "lora", "frozen"]
NAMES: tuple[Name, ...] = get_args(Name)
WAYS: tuple[Way, ...] = get_args(Way)

TEMPERATURE = 0.01
RANK = 8
HARDEST = (100, 20)
FOILS = 5  # of a caption, drawn at each visit; NegCLIP appends one

TRIPLET: Terms = {"triplet": (1.0, part(HardestTriplet, margin=MARGIN))}
ORDER = (
    "teacher-1", "teacher-2", ndgl.TARGETS, "online", "lists", "written", "adaptive", "tuned",
    "student",
)  # fmt: skip
WORDS: dict[Way, str] = {
    "full": "all of it trained",
    "lora": f"adapters of rank {RANK}",
    "frozen": "adapters behind frozen towers",
}

PLANS: dict[Way, TrainPlan] = {
    "full": TrainPlan(
        epochs=5,
        batch=64,
        optimiser=Optimiser(rule="adamw", rate=1e-5, decay=0.01),
        schedule=Cosine(warmup=50),
    ),
    "lora": TrainPlan(
        epochs=5,
        batch=64,
        optimiser=Optimiser(rule="adamw", rate=2e-4, decay=0.01),
        schedule=Cosine(warmup=50),
    ),
    "frozen": TrainPlan(
        epochs=10,
        batch=128,
        optimiser=Optimiser(rule="adamw", rate=1e-3, decay=0.01),
        schedule=Cosine(warmup=50),
    ),
}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A pretrained pair of encoders, and how it is trained.

    Attributes:
        model: its folder or name.
        way: what of it is trained.
        written: folder of captions that ``counterfoil write`` has made of the training split, to be
            ranked below the true ones; None for none.

    Raises:
        ValueError: no such way.
    """

    model: str
    way: Way = "full"
    written: str | None = None

    def __post_init__(self) -> None:
        parse_choice(WAYS, self.way, "a way to train a pretrained model")

    @property
    def matcher(self) -> Spec[Matcher]:
        """The model."""
        rank = RANK if self.way == "lora" else 0
        return pair_of(self.model).trained(frozen=self.way == "frozen", lora=rank)

    @property
    def lens(self) -> LensPlan:
        """What it sees: pictures and texts as it was pretrained on."""
        return pair_of(self.model).lens

    def base(self, terms: Terms, seed: int = 0) -> Base:
        """The host with a loss, by a seed."""
        plan = replace(pair_of(self.model).plan(PLANS[self.way]), seed=seed)
        return Base(self.matcher, terms, self.lens, plan, "sum")


def asked(
    what: str,
    corpus: Corpus,
    *,
    model: str | None,
    way: str,
    written: Path | None,
    teachers: Sequence[str],
    other: str | None = None,
) -> Recipe:
    """The recipe that ``counterfoil train`` asks for.

    Args:
        what: a host of `counterfoil.recipes.own`, or where a model is named, a loss for it.
        corpus: what it is to be trained on.
        model: folder or name of a pretrained one, to be trained further; a folder of
            sentence-transformers, too.
        way: what of it is trained.
        written: folder of written captions.
        teachers: who teaches.
        other: data on which it is told too what a pretrained model has forgotten.

    Raises:
        ValueError: no such host, loss or model, or options that do not go together.
    """
    if model is None:
        if written or other or way != "full":
            raise ValueError(
                "--tune, --written and --other are for a pretrained model that is trained further; "
                "name it with --model, or leave them out"
            )
        return own.recipe(what, pixels=corpus.features is None, teachers=teachers)
    foils = str(written) if written else None
    inner = str(encoder_folder(Path(model))) if Path(model).is_dir() else model
    host = Host(model=inner, way=cast(Way, way), written=foils)  # which checks the way
    found = recipe(what, host, teachers=teachers, pictures=corpus.pictures is not None)
    if other and knows_nothing(inner):
        raise ValueError(
            f"--other tells what a pretrained model has forgotten, and {inner} begins with weights "
            "at random; leave it out"
        )
    return told_of(found, other) if other else found


def recipe(name: str, host: Host, *, teachers: Sequence[str] = (), pictures: bool = True) -> Recipe:
    """Train a pretrained model further; measured beside what it was.

    Args:
        name: the loss: contrastive, triplet, aoq (both rounds), ndgl (taught), or negclip
            (contrastive, with neighbours and written captions in each batch).
        host: the model.
        teachers: saved models or names that teach in ndgl; none for two of the host, trained first.
        pictures: whether the data have any.

    Raises:
        ValueError: no such loss or model, teachers where nobody is taught, or no pictures.
    """
    parse_choice(NAMES, name, "a loss for a pretrained model")
    if teachers and name != "ndgl":
        raise ValueError(f"{name!r} learns from no teachers; name 'ndgl' to have it do")
    if not pictures:
        raise ValueError(
            f"{host.model} looks at pictures, and these data have none; name their folder with "
            "--images"
        )
    before, trainings = _stages(name, host, tuple(teachers))
    tests = [Evaluate(name=f"test-{one.name}", using=(one.name,)) for one in trainings]
    original = Evaluate(name="test-original", using=(), models=(host.model,))
    report = Compare(
        name="report",
        results=(original.name, *(test.name for test in tests)),
        negatives=next((one.name for one in before if isinstance(one, Mine)), None),
    )
    order = sorted((*before, *trainings), key=lambda stage: ORDER.index(stage.name))
    return Recipe(
        name=f"{name}-{host.way}-own",
        stages=(*order, *tests, original, report),  # which may read what frozen towers have kept
        about=f"{host.model}, {WORDS[host.way]}; {name}, own photos",
    )


def _stages(
    name: str, host: Host, teachers: tuple[str, ...]
) -> tuple[tuple[Stage, ...], tuple[Train, ...]]:
    """What is made on the way, and the trainings that are measured."""
    match name:
        case "contrastive":
            return (), (_written(trained("tuned", host.base(_contrastive(host))), host),)
        case "triplet":
            return (), (_written(trained("tuned", host.base(TRIPLET)), host),)
        case "aoq":
            online = _written(trained("online", host.base(TRIPLET)), host)
            lists = Mine(name="lists", using=("online",), texts=HARDEST[0], images=HARDEST[1])
            terms: Terms = dict(aoq.adaptive(0).arguments["terms"])
            second = replace(trained("adaptive", host.base(terms)), negatives="lists")
            return (lists,), (online, _written(second, host))
        case "negclip":
            return _negclip(host)
    seeds = () if teachers else (1, 2)
    taught = tuple(trained(f"teacher-{seed}", host.base(TRIPLET, seed)) for seed in seeds)
    targets = Teach(name=ndgl.TARGETS, using=tuple(t.name for t in taught), models=teachers)
    return (*taught, targets), (_written(ndgl.student("student", host.base(TRIPLET)), host),)


def _negclip(host: Host) -> tuple[tuple[Stage, ...], tuple[Train, ...]]:
    """The original mines, rules write where nobody has written, then all join each batch."""
    base = host.base(negclip.terms(TEMPERATURE))
    lists = negclip.lists(models=(host.model,))
    if host.written is None:
        return (lists, negclip.REWRITE), (negclip.joined(trained("tuned", base)),)
    return (lists,), (replace(_written(trained("tuned", base), host), neighbours=lists.name),)


def _contrastive(host: Host) -> Terms:
    if host.written:
        return negclip.terms(TEMPERATURE)
    term: Term = part(InfoNCE, temperature=TEMPERATURE, reduction="mean")
    return {"contrast": (1.0, term)}


def _written(stage: Train, host: Host) -> Train:
    """The same, which also ranks written captions below true ones."""
    if host.written is None:
        return stage
    terms = stage.objective.arguments["terms"]
    joined = "contrast" in terms
    below: Term = part(RankedBelow, role="written", margin=MARGIN)
    more = {} if joined else {"written": (1.0, below)}
    return replace(
        stage,
        objective=stage.objective.but(terms={**terms, **more}),
        proposer=of(
            Written,
            folder=host.written,
            lens=late("lens"),
            count=1 if joined else FOILS,
            shared=joined,
        ),
    )
