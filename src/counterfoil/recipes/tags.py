"""TAGS and TAGS-DC: UNITER, or ViLT, trained on captions that it writes itself.

Stages: "pretrained" in the domain; "hard", UNITER's hard negatives; "tags", which also ranks the
captions it writes (step 1, Eq. 7); "tags-dc", which goes on from there and doubts and corrects
their words (step 2, Eqs. 8 and 9). Table 2 compares "wm", which hides single words in place of
phrases, and "static", where the pre-trained model writes all the time.

Departs from the authors' code in: a model pre-trained in the domain (on the small sets as in
`tags_aligned`) takes the place of their weights, which are not at hand; what writes for "static" is
that model; step 2 starts from step 1's best epoch on dev, not from its step 2,000; both directions
of a pair are screened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from counterfoil.corpus.lens import LensPlan
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.matcher import Matcher
from counterfoil.models.uniter import UNITER
from counterfoil.negatives.candidates import Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.proposal import Proposer
from counterfoil.negatives.screened import Screened
from counterfoil.negatives.tailored import Tailored
from counterfoil.negatives.tailored_words import Task
from counterfoil.negatives.together import Together
from counterfoil.objectives.term import Objective, Term, total
from counterfoil.objectives.triplet import RankedBelow
from counterfoil.objectives.words import Words
from counterfoil.recipes import tags_aligned, tags_vilt
from counterfoil.recipes.ndgl import measured
from counterfoil.recipes.pretraining import Pretrain, pretrain_plan
from counterfoil.recipes.profiles import LARGE, PROFILES, Dataset
from counterfoil.recipes.recipe import Compare, Recipe, Stage, Train
from counterfoil.recipes.tags_numbers import PAPER, RELEASED, Numbers, plan
from counterfoil.spec import Spec, late, of, part

__all__ = [
    "COMPARED",
    "HOSTS",
    "VARIANTS",
    "Host",
    "Way",
    "first",
    "hard",
    "hard_negatives",
    "objective",
    "pretrained",
    "second",
    "sets",
    "tags",
    "tags_dc",
]

Host = Literal["uniter", "vilt"]
HOSTS: tuple[Host, ...] = get_args(Host)
TITLES: dict[Host, str] = {"uniter": "UNITER", "vilt": "ViLT"}
COMPARED: tuple[Host, ...] = ("uniter",)  # that the comparisons of Table 2 are of
Way = Literal["tags", "wm", "static", "released"]
Step = Literal[0, 1, 2]
SMALL: dict[Dataset, tuple[int, int, int]] = {  # layers, width, heads
    "scenes": (2, 128, 4),
    "flickr8k": (2, 128, 4),
}

BERT = "bert-base-cased"
DOUBT_WEIGHTS = (1.0, 0.11)  # of wrong words, of right ones
BEFORE, HARD, STEP_1, STEP_2 = "pretrained", "hard", "tags", "tags-dc"
MARGIN = 0.2
ALL_TASKS: tuple[Task, ...] = ("masked", "doubt", "correct")


def sets(host: Host) -> tuple[Dataset, ...]:
    """The data sets that a host has recipes for; ViLT's are those with pictures."""
    return get_args(Dataset) if host == "uniter" else tags_vilt.SETS


def data(dataset: Dataset) -> str:
    """What is opened when the user names nothing: regions with boxes, as UNITER sees them.

    A dev split of `scenes` of 100 images, as every pair of it costs a pass of the transformer.
    """
    if dataset == "scenes":
        return "scenes:images=2600,dev=100,test=500,features=regions"
    return PROFILES[dataset].data


def model(dataset: Dataset, *outputs: str) -> Spec[Matcher]:
    """UNITER-base; a small one without dropout for the small sets, where it learns from nothing."""
    layers, width, heads = SMALL.get(dataset, (12, 768, 12))
    whole = of(
        UNITER,
        layers=layers,
        width=width,
        heads=heads,
        inner=4 * width,
        vocabulary=late("words"),
        features=late("features"),
        classes=late("classes"),
        mask=late("mask"),
        outputs=outputs,
    )
    if dataset in LARGE:
        return whole
    return whole.but(dropout=0.0, spread=round(width**-0.5, 2))


def lens(dataset: Dataset) -> LensPlan:
    """Regions with wordpieces for the large sets, with words for the small ones."""
    if dataset in LARGE:
        return LensPlan(texts=BERT)
    return LensPlan() if dataset == "scenes" else PROFILES[dataset].lens


def pretrained(dataset: Dataset) -> tuple[Train | Pretrain, ...]:
    """UNITER's tasks on the training captions, on the small sets after pairs were told apart.

    How long is ours.
    """
    told = Pretrain(
        name=BEFORE,
        model=model(dataset, "match", "fill", "regress", "classify"),
        plan=pretrain_plan(epochs=30, batch=512),
        lens=lens(dataset),
    )
    return (told,) if dataset in LARGE else tags_aligned.before(told)


def _irtm() -> dict[str, tuple[float, Term]]:
    """UNITER's hinges: hard wrong texts of the image, hard wrong images of the text."""
    return {
        "texts": (1.0, part(RankedBelow, role="hard text", margin=MARGIN, reduction="mean")),
        "images": (1.0, part(RankedBelow, role="hard image", margin=MARGIN, reduction="mean")),
    }


def objective(numbers: Numbers, step: Step) -> Spec[Objective]:
    """The loss (Eq. 10) of UNITER's hard negatives, 0, or of a step of TAGS."""
    terms = _irtm()
    if step >= 1:
        below: Term = part(RankedBelow, role="written", margin=MARGIN, reduction="mean")
        terms["masked"] = (numbers.masked, part(Words, task="masked", reduction="mean"))
        terms["written"] = (numbers.written, below)
    if step == 2:
        doubt: Term = part(Words, task="doubt", weights=DOUBT_WEIGHTS, reduction="mean")
        terms["doubt"] = (numbers.words, doubt)
        terms["correct"] = (numbers.words, part(Words, task="correct", reduction="mean"))
    return total(**terms)


def hard(dataset: Dataset, numbers: Numbers | None = None) -> Train:
    """UNITER's hard negatives, with the numbers of TAGS; the paper's unless others are given."""
    numbers = numbers or PAPER[dataset][0]
    return Train(
        name=HARD,
        model=model(dataset, "rank"),
        objective=objective(numbers, 0),
        lens=lens(dataset),
        plan=plan(numbers, dataset),
        start=BEFORE,
        proposer=of(Screened, keep=numbers.keep),
        candidates=numbers.candidates,
    )


def first(
    dataset: Dataset, way: Way = "tags", *, name: str = STEP_1, numbers: Numbers | None = None
) -> Train:
    """Step 1, with what later doubts words kept as it was pre-trained."""
    numbers = numbers or (RELEASED if way == "released" else PAPER)[dataset][0]
    return replace(
        hard(dataset),
        name=name,
        model=model(dataset, "rank", "match", "fill"),
        objective=objective(numbers, 1),
        plan=plan(numbers, dataset),
        proposer=_writes(numbers, way, 1),
        candidates=numbers.candidates,
        filler=BEFORE if way == "static" else None,
    )


def second(
    dataset: Dataset,
    way: Way = "tags",
    *,
    name: str = STEP_2,
    start: str = STEP_1,
    numbers: Numbers | None = None,
) -> Train:
    """Step 2, which starts from step 1."""
    numbers = numbers or (RELEASED if way == "released" else PAPER)[dataset][1]
    return replace(
        first(dataset, way, name=name),
        model=model(dataset, "rank", "fill", "doubt", "correct"),
        objective=objective(numbers, 2),
        plan=plan(numbers, dataset),
        start=start,
        proposer=_writes(numbers, way, 2),
        candidates=numbers.candidates,
    )


def _writes(numbers: Numbers, way: Way, step: Step) -> Spec[Proposer]:
    """What screens, and what writes: as Table 2 has it, or the authors' code (T2 to T4)."""
    released = way == "released"
    choice: Literal["lowered logits", "lowered scores"]
    choice = "lowered logits" if step == 1 else "lowered scores"
    desk = part(Desk, lens=late("lens"), parser=part(RulePhraseParser), mask=late("mask"))
    writer = part(
        Tailored,
        desk=desk,
        filler=late("filler") if way == "static" else None,
        masks=numbers.masks,
        refills=numbers.refills,
        keep=numbers.keep,
        temperature=numbers.temperature,
        singles="only" if way == "wm" else "without phrases",
        words=("masked",) if step == 1 else ALL_TASKS,
        sieve=part(Sieve, rules=(), choice=choice) if released else None,
        specials=released,
    )
    screens = part(Screened, keep=numbers.keep)
    return of(Together, proposers=(screens, writer))


def hard_negatives(host: Host, dataset: Dataset) -> Recipe:
    """Pre-training, then UNITER's hard negatives."""
    return _recipe("", host, dataset, (hard(dataset),), "hard negatives screened")


def tags(host: Host, dataset: Dataset) -> Recipe:
    """Step 1, beside UNITER's hard negatives from the same pre-training."""
    stages = (hard(dataset), first(dataset))
    return _recipe("tags/", host, dataset, stages, "negatives of its own")


def tags_dc(host: Host, dataset: Dataset) -> Recipe:
    """Both steps."""
    stages = (first(dataset), second(dataset))
    about = "both steps, with words"
    return _recipe("tags-dc/", host, dataset, stages, about)


def words_masked(host: Host, dataset: Dataset) -> Recipe:
    """TAGS beside TAGS w/ WM (Table 2)."""
    stages = (first(dataset), first(dataset, "wm", name="wm"))
    return _recipe("tags/ablations/wm/", host, dataset, stages, "single words hidden")


def static(host: Host, dataset: Dataset) -> Recipe:
    """TAGS beside TAGS w/ SG (Table 2)."""
    stages = (first(dataset), first(dataset, "static", name="static"))
    return _recipe("tags/ablations/static/", host, dataset, stages, "a frozen writer")


def released(host: Host, dataset: Dataset) -> Recipe:
    """Both steps with the authors' scripts' numbers and their code's rules, without T1 and U1."""
    before, after = "tags-released", "tags-dc-released"
    stages = (
        first(dataset, "released", name=before),
        second(dataset, "released", name=after, start=before),
    )
    return _recipe("tags-dc/released/", host, dataset, stages, "the authors' code")


VARIANTS = {
    "tags/ablations/wm": words_masked,
    "tags/ablations/static": static,
    "tags-dc/released": released,
}


def _recipe(
    kind: str, host: Host, dataset: Dataset, trainings: tuple[Train, ...], about: str
) -> Recipe:
    """Pre-training, trainings, a test of each, and a report where there are several."""
    before, where = pretrained(dataset), data(dataset)
    if host == "vilt":
        before, where = tuple(map(tags_vilt.small, before)), tags_vilt.DATA
        trainings = tuple(map(tags_vilt.trained, trainings))
    tests = measured([one.name for one in trainings], dataset)
    stages: tuple[Stage, ...] = (*before, *trainings, *tests)
    if len(trainings) > 1:
        beside = tuple(f"test-{one.name}" for one in trainings)
        stages = (*stages, Compare(name="report", results=beside))
    told = f"{TITLES[host]}; {about}"
    return Recipe(name=f"{kind}{host}-{dataset}", stages=stages, data=where, about=told)
