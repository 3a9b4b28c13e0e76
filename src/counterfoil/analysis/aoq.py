"""Analyses of AOQ (https://arxiv.org/abs/2003.03669): section 1 and Figures 3, 4 and 5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.analysis.base import (
    MISSING,
    Analysis,
    check_page_path,
    describe_protocol,
    exhibits,
    open_scorers,
    short_names,
)
from counterfoil.analysis.runs import METRICS, training_folders
from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.pair_ranks import PairRanks
from counterfoil.engine.ranks import Ranks
from counterfoil.engine.sweep import MEMORY, sweep
from counterfoil.engine.tiles import Member
from counterfoil.evaluate.gallery import Exhibits, shown_caption, shown_image
from counterfoil.evaluate.recall import check_owner
from counterfoil.files import read_json
from counterfoil.negatives.examples import Example, Kinds, Listed
from counterfoil.negatives.examples import examples as draw_examples
from counterfoil.negatives.mined import as_many_images
from counterfoil.negatives.online_rank import (
    Direction,
    OnlineRanks,
    chance_of_top,
    expected_rank,
    online_ranks,
)
from counterfoil.negatives.store import NegativeStore
from counterfoil.recipes.comparison import curve
from counterfoil.recipes.run import Source
from counterfoil.report.figures import (
    ExpectedCurve,
    LearningCurve,
    expected_by_batch,
    learning_curves,
    share_bars,
)
from counterfoil.report.page import CardColumn, CardSection, ExampleCard, Figure, TableBlock
from counterfoil.report.tables import format_number

# -- Section 1: rank of the hardest negative of a random batch ----------------------------------

BATCHES = (32, 64, 128, 256, 512, 1024)
_SIDES = {"i2t": "captions for an image", "t2i": "images for a caption"}


@final
@dataclass(frozen=True, slots=True)
class OnlineRankLine:
    """Hardest negatives of random batches of one size, in one direction.

    Attributes:
        direction: "i2t", images ask for texts, or "t2i".
        batch: captions in a batch.
        mean_rank: of the batch's hardest negative in the whole split, from 1.
        half_interval: half width of its 95 % interval over anchors.
        expected_rank: by counting.
        hardest: number of counterparts that count as the hardest.
        top: percent of batches whose hardest negative is one of them.
        expected_top: by counting.
        median_gap: score of the negative minus score of the anchor pair.
    """

    direction: Direction
    batch: int
    mean_rank: float
    half_interval: float
    expected_rank: float
    hardest: int
    top: float
    expected_top: float
    median_gap: float


def online_rank(
    name: str,
    source: Source,
    out: Path,
    *,
    split: str = "train",
    batches: Sequence[int] = (),
    anchors: int = 200,
    draws: int = 20,
    top: int = 100,
    seed: int = 0,
) -> tuple[OnlineRanks, OnlineRanks]:
    """Rank the hardest negatives of random batches in a whole split (section 1).

    Images count as among the hardest in proportion to texts: 20 images for 100 captions if an image
    has five, as the paper takes 60 images for 300 texts.

    Args:
        name: of the model; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        batches: sizes in captions; by default 32 to 1,024, up to the number of captions.
        anchors: number of captions whose batches are drawn.
        draws: batches of each size for each anchor.
        top: number of captions that count as the hardest.
        seed: of anchors and batches.

    Returns:
        Images asking for texts, and texts for images.

    Raises:
        ValueError: the page exists, model and data do not fit, or a batch cannot be drawn.
    """
    check_page_path(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers([name])
    owned = int((corpus.owner >= 0).sum())
    sizes = tuple(batches) or tuple(b for b in BATCHES if b <= owned) or (owned,)
    ranks = online_ranks(
        scorers[0].on(corpus),
        corpus.relation,
        batches=sizes,
        anchors=anchors,
        draws=draws,
        rng=torch.Generator().manual_seed(seed),
    )
    i2t, t2i = (_online_lines(side, corpus, top) for side in ranks)
    shown = next((line for line in i2t if line.batch == 128), i2t[-1])
    Analysis(
        title="How hard online negatives are",
        headline=(
            f"The hardest wrong caption of a batch of {shown.batch:,} has rank "
            f"{_rank(shown.mean_rank)} on average in {len(corpus.texts):,} captions (by counting "
            f"{_rank(shown.expected_rank)}) and is one of the {shown.hardest:,} hardest in "
            f"{shown.top:.1f} % of batches (by counting {shown.expected_top:.1f} %)."
        ),
        protocol=(
            f"{describe_protocol(corpus, scorers, seed=seed)}; {min(anchors, owned):,} anchors, "
            f"{draws} batches of each size for each"
        ),
        numbers={
            "models": [name],
            "seed": seed,
            "lines": [asdict(line) for line in (*i2t, *t2i)],
        },
        figures=_online_figures(i2t, t2i),
        tables=(_online_table(i2t), _online_table(t2i)),
    ).publish(out)
    return ranks


def _online_lines(ranks: OnlineRanks, corpus: Corpus, top: int) -> list[OnlineRankLine]:
    texts = int((corpus.owner >= 0).sum())
    described = int((corpus.relation.counts > 0).sum())
    captions = 1.0 if ranks.direction == "i2t" else texts / described
    hardest = max(1, round(top / captions))
    return [
        OnlineRankLine(
            ranks.direction,
            batch,
            *ranks.mean(place),
            expected_rank(texts, batch, captions=captions),
            hardest,
            ranks.top(place, hardest),
            100 * chance_of_top(hardest, texts, batch, captions=captions),
            ranks.gap(place),
        )
        for place, batch in enumerate(ranks.batches)
    ]


def _rank(rank: float) -> str:
    return f"{rank:,.0f}" if rank >= 100 else f"{rank:.1f}"


def _online_table(lines: Sequence[OnlineRankLine]) -> TableBlock:
    side = _SIDES[lines[0].direction]
    rows = tuple(
        (
            f"{line.batch:,}",
            f"{line.mean_rank:,.1f}\u00a0±\u00a0{line.half_interval:,.1f}",
            f"{line.expected_rank:,.1f}",
            f"{line.top:.2f}\u00a0%",
            f"{line.expected_top:.2f}\u00a0%",
            format_number(line.median_gap),
        )
        for line in lines
    )
    note = (
        f"Rank among all wrong {side.split()[0]} of the split, from 1; ± is a 95 % interval over "
        f"anchors. Hardest: the first {lines[0].hardest:,}. Gap: score of the negative minus score "
        "of the anchor pair. Expected: by counting, whatever the model."
    )
    head = "batch", "mean rank", "expected", "among the hardest", "expected share", "median gap"
    return TableBlock(f"Online negatives: {side}", head, rows, note)


def _online_figures(
    i2t: Sequence[OnlineRankLine], t2i: Sequence[OnlineRankLine]
) -> tuple[Figure, Figure]:
    ranks, tops = [], []
    for lines in (i2t, t2i):
        name, batches = _SIDES[lines[0].direction], tuple(line.batch for line in lines)
        ranks.append(
            ExpectedCurve(
                name,
                batches,
                tuple(line.expected_rank for line in lines),
                tuple(line.mean_rank for line in lines),
                tuple(line.half_interval for line in lines),
            )
        )
        expected = tuple(line.expected_top for line in lines)
        tops.append(ExpectedCurve(name, batches, expected, tuple(line.top for line in lines)))
    hardest = f"{i2t[0].hardest:,} captions or {t2i[0].hardest:,} images"
    often = f"How often it is one of the hardest {hardest}."
    return (
        expected_by_batch(ranks, "mean rank", "rank", "Its rank in the whole split.", log=True),
        expected_by_batch(tops, "share of batches, %", "top", often),
    )


# -- Figure 3: online and offline negatives of some anchors --------------------------------------

ExamplePairs = list[tuple[Example, Example]]


def negative_examples(
    name: str,
    source: Source,
    out: Path,
    *,
    split: str = "train",
    lists: Path | None = None,
    anchors: int = 6,
    batch: int = 128,
    top: int = 300,
    shown: int = 3,
    seed: int = 0,
) -> ExamplePairs:
    """Show negatives of random batches and of the whole split side by side (Figure 3).

    Offline negatives are drawn from the `top` hardest captions of an image, and from
    proportionally fewer images of a caption: 60 for 300 at five captions an image.

    Args:
        name: of the model that scores; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        lists: folder of mined lists to draw offline negatives from; default the model's own.
        anchors: number of images, each with one of its captions.
        batch: captions in a batch; at most all.
        top: draw offline negatives from so many captions; at most all.
        shown: number of batches, and of offline negatives.
        seed: of anchors, batches and draws.

    Raises:
        ValueError: the page exists, or model, lists and data do not fit.
    """
    check_page_path(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers([name])
    store = NegativeStore.open(lists, fingerprint=corpus.fingerprint) if lists else None
    kinds = _example_sizes(corpus, store, batch=batch, top=top, shown=shown)
    pairs = draw_examples(
        scorers[0].on(corpus),
        corpus.relation,
        kinds=kinds,
        anchors=anchors,
        rng=torch.Generator().manual_seed(seed),
        lists=store.lists if store else None,
    )
    origin = f"lists of {lists}" if lists else "the model's own lists"
    totals = f"{len(corpus.texts):,} captions and {len(corpus):,} images"
    Analysis(
        title="Online and offline negatives",
        headline=f"Negatives of a batch of {kinds.batch}, and of {totals}.",
        protocol=(
            f"{describe_protocol(corpus, scorers, seed=seed)}; batches of {kinds.batch}; offline: "
            f"drawn from {kinds.texts} texts and {kinds.images} images, {origin}"
        ),
        numbers={
            "models": [name],
            "seed": seed,
            **asdict(kinds),
            "anchors": [
                {
                    "image": corpus.image_ids[image.row],
                    "caption": corpus.texts[text.row],
                    "texts": asdict(image),
                    "images": asdict(text),
                }
                for image, text in pairs
            ],
        },
        tables=(_example_table(pairs),),
        sections=tuple(_example_cards(pairs, exhibits(corpus), kinds)),
    ).publish(out)
    return pairs


def _example_sizes(
    corpus: Corpus, store: NegativeStore | None, *, batch: int, top: int, shown: int
) -> Kinds:
    """The requested sizes, limited by the split and the lists."""
    most = max(1, len(corpus.texts))
    texts = min(top, most)
    images = as_many_images(texts, corpus.relation)
    if store is not None:
        texts = min(texts, store.lists.texts.shape[1])
        images = min(images, store.lists.images.shape[1])
    return Kinds(batch=min(batch, most), texts=texts, images=images, shown=shown)


def _example_table(pairs: ExamplePairs) -> TableBlock:
    sides = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    rows = tuple(
        (f"{name}, {kind}", *_medians([getattr(example, kind) for example in side]))
        for name, side in zip(("captions of an image", "images of a caption"), sides)
        for kind in ("true", "online", "offline")
    )
    note = "Rank among all wrong counterparts of the split, from 1."
    return TableBlock("In these examples", ("", "median rank", "median score"), rows, note)


def _medians(listed: Sequence[Listed]) -> tuple[str, str]:
    ranks = torch.tensor([place for one in listed for place in one.places]).double()
    scores = torch.tensor([score for one in listed for score in one.scores]).double()
    if not len(ranks):
        return MISSING, MISSING
    return f"{ranks.median():,.0f}", format_number(scores.median().item(), ".3f")


def _example_cards(pairs: ExamplePairs, shown: Exhibits, kinds: Kinds) -> Iterator[CardSection]:
    yield CardSection(
        "Images and wrong captions",
        "Before each caption its rank among the wrong ones, after it its score.",
        tuple(_example_card(shown, pair[0], kinds, from_image=True) for pair in pairs),
    )
    yield CardSection(
        "Captions and wrong images",
        "Under each image its rank among the wrong ones and its score.",
        tuple(_example_card(shown, pair[1], kinds, from_image=False) for pair in pairs),
    )


def _example_card(
    shown: Exhibits, example: Example, kinds: Kinds, *, from_image: bool
) -> ExampleCard:
    item = shown_caption if from_image else shown_image
    query = shown_image if from_image else shown_caption

    def column(title: str, note: str, listed: Listed) -> CardColumn:
        rows = zip(listed.rows, listed.places, listed.scores)
        items = tuple(item(shown, row, example.row, place - 1, score) for row, place, score in rows)
        return CardColumn(title, note, items)

    hardest = kinds.texts if from_image else kinds.images
    return ExampleCard(
        query(shown, example.row),
        "",
        (
            column("Positive", "", example.true),
            column("Online", f"hardest of each of {kinds.shown} batches", example.online),
            column("Offline", f"drawn from the {hardest} hardest", example.offline),
        ),
    )


# -- Figure 4: learning curves --------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """Learning curve of a training and its settings, as far as they were recorded.

    Attributes:
        curve: metrics by epoch.
        folder: of the training.
        losses: names of its losses.
        seed: of the training.
        data: name of the data.
        fingerprint: of the data.
    """

    curve: LearningCurve
    folder: str
    losses: str = ""
    seed: int | None = None
    data: str = ""
    fingerprint: str = ""


def curves(folders: Sequence[Path], out: Path) -> tuple[TrainingCurve, ...]:
    """Draw development RSum and training loss by epoch (Figure 4).

    Args:
        folders: of training stages, or of runs with all their trainings.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, or a folder holds no log of a training.
    """
    check_page_path(out)
    places = training_folders(folders)
    names = short_names([str(place) for place in places])
    trainings = tuple(_read_training(name, place) for name, place in zip(names, places))
    data = ", ".join(dict.fromkeys(one.data for one in trainings if one.data))
    seeds = ", ".join(dict.fromkeys(str(one.seed) for one in trainings if one.seed is not None))
    Analysis(
        title="Learning curves",
        headline=_curves_headline(trainings),
        protocol=(
            f"{f'{data} ' if data else ''}dev, whole split: RSum after each epoch, sum of R@1, R@5 "
            f"and R@10 both ways, any hit; single models{f'; seed {seeds}' if seeds else ''}"
        ),
        numbers={"trainings": [asdict(one) for one in trainings]},
        figures=learning_curves([one.curve for one in trainings]),
        tables=(_curves_table(trainings),),
    ).publish(out)
    return trainings


def _read_training(name: str, folder: Path) -> TrainingCurve:
    metrics = curve(name, folder / METRICS)
    if not metrics.epochs:
        raise ValueError(f"{folder / METRICS} holds no epoch; was the training stopped at once?")
    note = folder.with_name(f"{folder.name}.json")
    content = read_json(note, "the note of a stage") if note.is_file() else {}
    try:
        stage, data = content.get("stage", {}), content.get("data", {})
        losses = ", ".join(dict.fromkeys(_loss_names(stage.get("objective", {}).get("terms", {}))))
        seed = stage.get("plan", {}).get("seed")
        return TrainingCurve(
            metrics, str(folder), losses, seed, data.get("name", ""), data.get("fingerprint", "")
        )
    except AttributeError as error:
        raise ValueError(f"{note} is no note of a stage: {error}") from error


def _loss_names(written: Any) -> Iterator[str]:
    """Names of the losses in a written call; losses in sequence are joined by "then"."""
    if isinstance(written, dict):
        call = str(written.get("call", ""))
        if call.endswith(":Then"):
            parts = ("first", "second")
            yield " then ".join(name for key in parts for name in _loss_names(written.get(key)))
            return
        if call:
            yield call.rpartition(":")[2]
        for value in written.values():
            yield from _loss_names(value)
    elif isinstance(written, list):
        for value in written:
            yield from _loss_names(value)


def _curves_table(trainings: Sequence[TrainingCurve]) -> TableBlock:
    rows = []
    for one in trainings:
        rsum, measured = one.curve.dev_rsum, (MISSING, MISSING, MISSING)
        if rsum:
            best = max(rsum)
            epoch = one.curve.epochs[rsum.index(best)]
            measured = f"{best:.1f}", f"{epoch:g}", f"{rsum[-1]:.1f}"
        seed = MISSING if one.seed is None else str(one.seed)
        rows.append((one.curve.name, one.losses or MISSING, seed, *measured))
    head = "training", "loss", "seed", "best dev RSum", "at epoch", "last"
    return TableBlock("Trainings", head, tuple(rows))


def _curves_headline(trainings: Sequence[TrainingCurve]) -> str:
    measured = [one.curve for one in trainings if one.curve.dev_rsum]
    if not measured:
        return f"Training loss of {len(trainings)} trainings; none was measured on dev."
    top = max(measured, key=lambda one: max(one.dev_rsum))
    best = max(top.dev_rsum)
    if len(measured) == 1:
        return f"{top.name} reaches dev RSum {best:.1f} in {len(top.epochs)} epochs."
    if len({one.fingerprint for one in trainings if one.fingerprint}) > 1:
        return f"{len(trainings)} trainings on different data, whose figures do not compare."
    others = ", ".join(f"{max(o.dev_rsum):.1f} by {o.name}" for o in measured if o is not top)
    return f"The best dev RSum is {best:.1f} by {top.name}; {others}."


# -- Section 4.3 and Figure 5: cross-retrieval rank -----------------------------------------------

EDGES = (1, 5, 10, 20, 50, 100, 200)  # last rank of each bin but the open one
BINS = ("1", "2–5", "6–10", "11–20", "21–50", "51–100", "101–200", "above 200")


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossRanks:
    """Ranks of all P true pairs, from 1, in the order of the texts.

    Attributes:
        texts: (P,) long, rank among the wrong texts of the pair's image, r_t.
        images: (P,) long, rank among the wrong images of the pair's text, r_i.
        ratio: texts per image, by which image ranks are scaled.
    """

    texts: Tensor
    images: Tensor
    ratio: float

    @property
    def cross(self) -> Tensor:
        """(P,) double, max(ratio * (r_i - 1) + 1, r_t).

        Section 4.3 has max(5 r_i - 4, r_t), which this is at five texts per image. Whole numbers
        stay whole if the ratio is one.
        """
        return torch.maximum(self.ratio * (self.images.double() - 1) + 1, self.texts.double())

    def shares(self) -> tuple[float, ...]:
        """Percent of the pairs in each of `BINS`; a rank between two bins falls in the upper."""
        place = torch.bucketize(self.cross, torch.tensor(EDGES, dtype=torch.double))
        return tuple((100 * torch.bincount(place, minlength=len(BINS)) / len(place)).tolist())


def cross_ranks(members: Sequence[Member], owner: Tensor, *, memory: int = MEMORY) -> CrossRanks:
    """Rank every true pair in one pass over the scores.

    Other true texts of the image count neither for nor against a pair; of equal scores the lower
    row comes first.

    Args:
        members: models with their encodings; several are an ensemble.
        owner: (T,) image of each text, -1 for none.
        memory: bytes, see `sweep`.

    Raises:
        ValueError: `owner` does not fit the encodings, or no text describes an image.
    """
    images = len(members[0].images) if members else 0
    check_owner(owner, images, len(members[0].texts) if members else 0)
    paired = owner >= 0
    if not bool(paired.any()):
        raise ValueError(f"none of the {len(owner)} texts describes an image; there is no pair")
    texts, pictures = PairRanks(owner), Ranks("text", len(owner), owner)
    sweep(members, [texts, pictures], memory=memory)
    r_t, r_i = texts.ranks().cpu()[paired.cpu()], pictures.ranks().cpu()[paired.cpu()]
    return CrossRanks(r_t + 1, r_i + 1, len(r_t) / images)


def cross_rank(
    names: Sequence[str], source: Source, out: Path, *, split: str = "test"
) -> dict[str, CrossRanks]:
    """Count true pairs by their cross-retrieval rank under each model (Figure 5).

    Args:
        names: of the models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.

    Returns:
        The ranks by the model's short name.

    Raises:
        ValueError: the page exists, or model and data do not fit.
    """
    check_page_path(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers(names)
    ranks = {s.name: cross_ranks(s.on(corpus), corpus.owner) for s in scorers}
    shares = {name: one.shares() for name, one in ranks.items()}
    first = next(iter(ranks.values()))
    pairs, ratio = first.cross.numel(), first.ratio
    rows = (
        *((name, *(f"{shares[s][place]:.1f}" for s in shares)) for place, name in enumerate(BINS)),
        ("median rank", *(f"{one.cross.median():,.0f}" for one in ranks.values())),
    )
    note = (
        f"Percent of {pairs:,} true pairs by max({ratio:.4g} · (r_i − 1) + 1, r_t): r_i is the "
        f"pair's rank among wrong images of its text, r_t among wrong texts of its image, and "
        f"{ratio:.4g} texts fall on an image; at five this is max(5 r_i − 4, r_t)."
    )
    best = ", ".join(f"{share[0]:.1f} % under {name}" for name, share in shares.items())
    far = ", ".join(f"{share[-1]:.1f} % under {name}" for name, share in shares.items())
    Analysis(
        title="Cross-retrieval ranks",
        headline=f"Above every wrong pair: {best}. Beyond rank 200: {far}.",
        protocol=describe_protocol(corpus, scorers),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "pairs": pairs,
            "texts_per_image": ratio,
            "bins": list(BINS),
            "percent": {name: list(share) for name, share in shares.items()},
            "median": {name: float(one.cross.median()) for name, one in ranks.items()},
        },
        figures=(share_bars(list(shares.items()), BINS, "cross"),),
        tables=(TableBlock("Shares of the true pairs", ("rank", *shares), rows, note),),
    ).publish(out)
    return ranks
