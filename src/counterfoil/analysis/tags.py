"""Analyses of TAGS (https://arxiv.org/abs/2111.03349): Figures 1a and 3, and Table 4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from counterfoil.analysis.captions import (
    INTERVALS,
    GenerationSettings,
    can_generate,
    caption_generator,
    draw_captions,
    open_stores,
    score_captions,
)
from counterfoil.analysis.runs import (
    METRICS,
    CaptionDifficulty,
    difficulty_figures,
    first_and_last,
    training_folders,
)
from counterfoil.core import distributed
from counterfoil.core.io import read_json
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.evaluation.bootstrap import Counted, Share, shares
from counterfoil.evaluation.language_models import NGrams
from counterfoil.negatives.generation.rules import RuleGenerator, frequent_nouns
from counterfoil.negatives.generation.store import GeneratedCaption
from counterfoil.pipelines.publishing import (
    MISSING,
    Analysis,
    Scorer,
    check_page_path,
    describe_models,
    format_share,
    open_scorers,
    share_point,
    short_names,
)
from counterfoil.pipelines.run import DataSource
from counterfoil.report.figures import dot_plot, score_scatter
from counterfoil.report.page import Figure, TableBlock
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import DenseScores
from counterfoil.scoring.stream import stream_scores
from counterfoil.training.logging import read_metrics

# -- Figure 1a: triples of an image, its caption and a negative -----------------------------------

EASY_LEVEL = 0.05  # of the hardest negatives 40 % score above the positive, 18 % this far below


@final
@dataclass(frozen=True, slots=True, eq=False)
class Triples:
    """N triples with negatives of one source, as one model scores them.

    Attributes:
        source: of the negatives, in words.
        images: (N,) long.
        positive: (N,) scores of the captions, in units of a score.
        negative: (N,) scores of the negatives.
        left_out: anchors without a negative.
        chosen_by: model that chose the negatives.
        scored_by: model whose scores these are.
    """

    source: str
    images: Tensor
    positive: Tensor
    negative: Tensor
    left_out: int = 0
    chosen_by: str = ""
    scored_by: str = ""

    @property
    def gaps(self) -> Tensor:
        """(N,) score of the negative minus score of the positive."""
        return self.negative.double() - self.positive.double()

    @property
    def by(self) -> str:
        """The scoring model, and the choosing one if it is another."""
        own = self.chosen_by == self.scored_by
        return self.scored_by if own else f"{self.scored_by}, those of {self.chosen_by}"


@final
@dataclass(frozen=True, slots=True)
class TripleDifficulty:
    """Difficulty of triples.

    Attributes:
        above: percent whose negative scores above the positive.
        below: percent whose negative scores at least the level below the positive.
        gap: mean of negative minus positive.
    """

    above: Share
    below: Share
    gap: Share


def triple_difficulty(
    triples: Triples, *, level: float = EASY_LEVEL, seed: int = 0
) -> TripleDifficulty:
    """Measure shares and mean gap of triples; an equal score is not above.

    Args:
        triples: of one source.
        level: distance below the positive that counts as easy.
        seed: of the resampling of images.
    """
    gaps = triples.gaps
    counted = [Counted.where(gaps > 0), Counted.where(gaps <= -level)]
    above, below = shares(counted, triples.images, scale=100, seed=seed)
    gap = shares([Counted.mean(gaps)], triples.images, seed=seed)[0]
    return TripleDifficulty(above, below, gap)


def all_scores(members: Sequence[EmbeddedDataset], images: Tensor) -> Tensor:
    """(S, T) scores of some images with all texts.

    Args:
        members: models with their encodings; several are an ensemble.
        images: (S,) rows.
    """
    some = [EmbeddedDataset(m.model, m.images.rows(images), m.texts) for m in members]
    dense = DenseScores(len(images), len(some[0].texts))
    stream_scores(some, [dense])
    return dense.scores.cpu()


def in_batches(
    scores: Tensor, anchors: Tensor, relation: Relation, *, batch: int, rng: torch.Generator
) -> Tensor:
    """(S,) hardest wrong caption of a random batch that each anchor caption is in; -1 for none.

    Args:
        scores: (S, T) of the anchors' images with all texts.
        anchors: (S,) text rows.
        relation: which text describes which image.
        batch: captions in a batch, the anchor among them.
        rng: of the batches.
    """
    owned = (relation.text_to_image >= 0).nonzero().squeeze(1)
    out = torch.full_like(anchors, -1)
    for place, row in enumerate(anchors.tolist()):
        others = owned[owned != row]
        drawn = others[torch.randperm(len(others), generator=rng)[: batch - 1]]
        wrong = drawn[relation.text_to_image[drawn] != relation.text_to_image[row]].sort().values
        if len(wrong):
            out[place] = wrong[scores[place, wrong].argmax()]
    return out


def in_all(scores: Tensor, anchors: Tensor, relation: Relation) -> Tensor:
    """(S,) hardest wrong caption of all; -1 where every caption is the image's own."""
    wrong = (relation.text_to_image >= 0) & (
        relation.text_to_image != relation.text_to_image[anchors].unsqueeze(1)
    )
    best = scores.masked_fill(~wrong, -torch.inf).argmax(1)
    return best.masked_fill(~wrong.any(1), -1)


def hardest_of(scores: Tensor, group: Tensor, groups: int) -> Tensor:
    """(G,) place of the highest score of each group; of equal ones the first, -1 for none.

    Args:
        scores: (N,).
        group: (N,) long.
        groups: G.
    """
    order = scores.argsort(descending=True, stable=True)
    out = torch.full((groups,), len(scores), dtype=torch.long)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    out.scatter_reduce_(0, group, rank, "amin")
    none = out == len(scores)
    places = torch.cat([order, order.new_full((1,), -1)])
    return places[out].masked_fill(none, -1)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TripleSettings:
    """Settings of `triples`.

    Attributes:
        split: of anchors and negatives.
        anchors: number of images, a caption of each.
        batch: captions in a batch.
        level: distance below the positive that counts as easy, in units of a score.
        writer: model that generates; None for each model itself.
        written: folder of generated captions, instead of a model.
        generation: how models generate.
        seed: of anchors, batches, generated captions and intervals.
    """

    split: str = "test"
    anchors: int = 200
    batch: int = 128
    level: float = EASY_LEVEL
    writer: str | None = None
    written: Path | None = None
    generation: GenerationSettings = GenerationSettings()
    seed: int = 0


CaptionsByRow: TypeAlias = Mapping[int, Sequence[str]]


def triples(
    names: Sequence[str],
    source: DataSource,
    out: Path,
    *,
    judges: Sequence[str] = (),
    plan: TripleSettings | None = None,
) -> tuple[Triples, ...]:
    """Draw how hard negatives of batches, of the whole set and generated ones are (Figure 1a).

    Args:
        names: of the models, each of which chooses the hardest negatives of every source.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        judges: models that score the same triples without having chosen any.
        plan: the settings.

    Returns:
        Every source by every model that chose and every model that scored.

    Raises:
        ValueError: the page exists, a model cannot generate or read, or does not fit the data.
    """
    check_page_path(out)
    distributed.init()
    plan = plan or TripleSettings()
    if plan.written is not None and plan.writer is not None:
        raise ValueError("captions are given with --written and a writer with --writer; drop one")
    dataset = source.split(plan.split)
    if plan.batch > int((dataset.text_to_image >= 0).sum()):
        raise ValueError(
            f"batches of {plan.batch} cannot be drawn from {len(dataset.texts):,} captions; give "
            "less with --batch"
        )
    scorers = open_scorers([*names, *judges])
    for scorer in scorers:
        scorer.check_reads()
    rows = draw_captions(dataset, plan.anchors, torch.Generator().manual_seed(plan.seed))
    stored = _stored_captions(plan, source, dataset, rows)
    every = tuple(
        one
        for scorer in scorers[: len(names)]
        for one in _triples_of(scorer, scorers[len(names) :], dataset, rows, plan, stored)
    )
    hard = [triple_difficulty(one, level=plan.level, seed=plan.seed) for one in every]
    origin = f"of {plan.written}"
    if plan.written is None:
        origin = f"by {plan.writer or 'each model itself'}, {plan.generation.describe()}"
    first = every[0]
    shown = ", ".join(
        f"{d.above.value:.1f} % ({one.source})"
        for one, d in zip(every, hard)
        if (one.scored_by, one.chosen_by) == (first.scored_by, first.chosen_by) and d.above.count
    )
    Analysis(
        title="Triples",
        headline=f"Negatives that {first.scored_by} scores above the positive: {shown}.",
        protocol=(
            f"{dataset.name} {dataset.split_name}, {len(dataset.texts):,} captions: a caption "
            f"each of {len(rows):,} images; written {origin}; a tie is not above; "
            f"{describe_models(scorers)}; sampling seed {plan.seed}; {INTERVALS}"
        ),
        seed=plan.seed,
        figures=tuple(_triple_figures(every, plan.level)),
        tables=(_triple_table(every, hard, plan.level),),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "triples": [_triple_numbers(one, d) for one, d in zip(every, hard)],
        },
    ).publish(out)
    return every


def _stored_captions(
    plan: TripleSettings, source: DataSource, dataset: ImageTextDataset, rows: Tensor
) -> CaptionsByRow | None:
    """Stored captions by the row of the caption they were made of; None if models generate."""
    if plan.written is None:
        return None
    store = open_stores([plan.written], source)[0]
    store.check_split(dataset, plan.written)
    wanted = set(rows.tolist())
    captions: dict[int, list[str]] = {}
    for row, foil in zip(store.texts, store.foils, strict=True):
        if row in wanted:
            captions.setdefault(row, []).append(foil.foil)
    if not captions:
        raise ValueError(
            f"{plan.written} has no foil of the {len(rows):,} captions that were drawn; draw more "
            "with --anchors"
        )
    return captions


def _generated_captions(
    scorer: Scorer, dataset: ImageTextDataset, rows: Tensor, plan: TripleSettings
) -> CaptionsByRow:
    """Captions that a model, or another one for it, generates."""
    writer = scorer if plan.writer is None else open_scorers([plan.writer])[0]
    if not can_generate(writer):
        raise ValueError(
            f"{writer.given} writes no captions; name one model with a head for hidden words with "
            "--writer, or captions that are written with --written"
        )
    number = {name: row for row, name in enumerate(dataset.text_ids)}
    captions: dict[int, list[str]] = {}
    generator = caption_generator(writer, dataset, plan.generation, plan.seed)
    for foil in generator.foils(rows.tolist()):
        captions.setdefault(number[foil.text], []).append(foil.foil)
    return captions


def _triples_of(
    scorer: Scorer,
    judges: Sequence[Scorer],
    dataset: ImageTextDataset,
    rows: Tensor,
    plan: TripleSettings,
    stored: CaptionsByRow | None,
) -> Iterator[Triples]:
    """Triples that one model chose, by its own scores and by those of the judges."""
    captions = _generated_captions(scorer, dataset, rows, plan) if stored is None else stored
    scores = all_scores(scorer.on(dataset), dataset.text_to_image[rows])
    rng = torch.Generator().manual_seed(plan.seed + 1)
    batch = in_batches(scores, rows, dataset.relation, batch=plan.batch, rng=rng)
    whole = in_all(scores, rows, dataset.relation)
    sources = {
        f"batch of {plan.batch}": [dataset.texts[row] if row >= 0 else "" for row in batch],
        "whole set": [dataset.texts[row] if row >= 0 else "" for row in whole],
        "written": _hardest_captions(scorer, dataset, rows, captions),
    }
    for judge in (scorer, *judges):
        for name, negatives in sources.items():
            available = torch.tensor([bool(text) for text in negatives])
            anchors = rows[available]
            images = dataset.text_to_image[anchors]
            texts = [dataset.texts[row] for row in anchors.tolist()]
            both = [*texts, *(text for text in negatives if text)]
            positive, negative = score_captions(
                judge, dataset, torch.cat([images, images]), both
            ).view(2, -1)
            missing = int((~available).sum())
            yield Triples(name, images, positive, negative, missing, scorer.name, judge.name)


def _hardest_captions(
    scorer: Scorer, dataset: ImageTextDataset, rows: Tensor, captions: CaptionsByRow
) -> list[str]:
    """The generated caption that a model scores highest, of each caption; "" for none."""
    flat = [
        (place, foil) for place, row in enumerate(rows.tolist()) for foil in captions.get(row, ())
    ]
    if not flat:
        return [""] * len(rows)
    group = torch.tensor([place for place, _ in flat])
    images = dataset.text_to_image[rows[group]]
    scores = score_captions(scorer, dataset, images, [foil for _, foil in flat])
    best = hardest_of(scores, group, len(rows)).tolist()
    return [flat[place][1] if place >= 0 else "" for place in best]


def _triple_figures(every: Sequence[Triples], level: float) -> Iterator[Figure]:
    """A scatter plot for every pair of a choosing and a scoring model."""
    for number, pair in enumerate(dict.fromkeys((one.chosen_by, one.scored_by) for one in every)):
        own = [t for t in every if (t.chosen_by, t.scored_by) == pair and len(t.images)]
        if own:
            points = [(t.source, t.positive.numpy(), t.negative.numpy()) for t in own]
            yield score_scatter(points, level, f"triples-{number}", f"Scored by {own[0].by}.")


def _triple_table(
    every: Sequence[Triples], hard: Sequence[TripleDifficulty], level: float
) -> TableBlock:
    rows = tuple(
        (
            one.by,
            one.source,
            f"{len(one.images):,}",
            format_share(difficulty.above),
            format_share(difficulty.below),
            format_share(difficulty.gap, "+.4f"),
        )
        for one, difficulty in zip(every, hard)
    )
    head = "scored by", "negatives", "triples", "above, %", f"{level:g} below, %", "mean gap"
    note = (
        f"Above: the negative scores above the positive. {level:g} below: it scores as far below "
        "it, or further. Gap: negative minus positive, over the unit of the model's score.\n"
        "The paper, with CLIP on Flickr30K: of the hardest of the whole set about 40 % above the "
        "positive, 18 % at least 0.05 below it."
    )
    return TableBlock("How hard negatives are", head, rows, note)


def _triple_numbers(one: Triples, difficulty: TripleDifficulty) -> dict[str, Any]:
    return {
        "chosen_by": one.chosen_by,
        "scored_by": one.scored_by,
        "negatives": one.source,
        "left_out": one.left_out,
        "percent_above": difficulty.above.to_dict(),
        "percent_far_below": difficulty.below.to_dict(),
        "mean_gap": difficulty.gap.to_dict(),
        "positive": one.positive.tolist(),
        "negative": one.negative.tolist(),
    }


# -- Section 4.1 and Figure 3: difficulty of generated captions during training -------------------
# The paper draws the distribution of the score of the generated caption minus that of its original.
# Its text says that captions of a static generator score higher than those of a dynamic one, and
# concludes that the static one fails to be hard; the figure shows the numbers.


@final
@dataclass(frozen=True, slots=True, eq=False)
class GeneratingTraining:
    """A training on generated captions.

    Attributes:
        course: difficulty of its captions.
        folder: of the training.
        writer: "dynamic", the model in training, or "static", a frozen one; "" if not noted.
        seed: of the training, if noted.
        data: name of the data, if noted.
    """

    course: CaptionDifficulty
    folder: str
    writer: str
    seed: int | None
    data: str


def difficulty(folders: Sequence[Path], out: Path) -> tuple[GeneratingTraining, ...]:
    """Draw how hard generated captions were for the models trained on them (Figure 3).

    Args:
        folders: of training stages, or of runs; trainings without generated captions are left out.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, a folder holds no log of a training, or no log is about
            generated captions.
    """
    check_page_path(out)
    trainings = tuple(_generating_trainings(training_folders(folders)))
    if not trainings:
        raise ValueError(
            f"no log below {', '.join(map(str, folders))} tells how hard written captions are; "
            "name trainings on negatives that are written, as by tags/uniter-scenes"
        )
    data = ", ".join(dict.fromkeys(one.data for one in trainings if one.data))
    seeds = ", ".join(dict.fromkeys(str(one.seed) for one in trainings if one.seed is not None))
    words, rows, numbers = [], [], []
    for one in trainings:
        first, last = first_and_last(one.course)
        name = one.course.name
        words.append(f"{name} from {first.above.value:.1f} % to {last.above.value:.1f} %")
        seed = MISSING if one.seed is None else str(one.seed)
        rows += [
            (
                name,
                one.writer or MISSING,
                seed,
                f"{part.first:,} to {part.last:,}",
                format_share(part.above),
                format_share(part.gap, "+.4f"),
            )
            for part in (first, last)
        ]
        numbers.append(
            {
                **one.course.to_dict(),
                "folder": one.folder,
                "writer": one.writer,
                "seed": one.seed,
                "first": first.to_dict(),
                "last": last.to_dict(),
            }
        )
    head = "training", "writer", "seed", "steps", "above, %", "score − the original's"
    note = (
        "The first and the last fifth of the logged steps. Neighbouring steps are alike, so these "
        "intervals are rather too narrow."
    )
    Analysis(
        title="Difficulty of written captions",
        headline=f"Written captions above their original: {'; '.join(words)}.",
        protocol=(
            f"{f'{data} ' if data else ''}train: captions written for the last batch before each "
            "line of the log, as the model in training scores them, dropout included; a tie is not "
            f"above; single models{f', seed {seeds}' if seeds else ''}; 95 % intervals: logged "
            "steps drawn anew, 1,000 times, seed 0"
        ),
        figures=tuple(difficulty_figures([one.course for one in trainings], loss=True)),
        tables=(TableBlock("First and last steps", head, tuple(rows), note),),
        numbers={"trainings": numbers},
    ).publish(out)
    return trainings


def _generating_trainings(places: Sequence[Path]) -> Iterator[GeneratingTraining]:
    logs = {place: read_metrics(place / METRICS) for place in places}
    courses: dict[Path, CaptionDifficulty] = {}
    for place, lines in logs.items():
        try:
            course = CaptionDifficulty.from_log("", lines)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{place / METRICS} tells only a part of how hard written captions are: {error} is "
                "missing or no number"
            ) from error
        if course is not None:
            courses[place] = course
    names = short_names([str(place) for place in courses]) if courses else ()
    for name, place in zip(names, courses, strict=True):
        named = CaptionDifficulty.from_log(name, logs[place])
        assert named is not None
        yield GeneratingTraining(named, str(place), *_noted(place.with_name(f"{place.name}.json")))


def _noted(note: Path) -> tuple[str, int | None, str]:
    """Generator, seed and data of a training, as far as its note has them."""
    if not note.is_file():
        return "", None, ""
    content = read_json(note, "the note of a stage")
    try:
        stage = content.get("stage", {})
        writer = "dynamic" if stage.get("filler") is None else f"static: {stage['filler']}"
        return writer, stage.get("plan", {}).get("seed"), content.get("data", {}).get("name", "")
    except AttributeError as error:
        raise ValueError(f"{note} is no note of a stage: {error}") from error


# -- Section 4.3 and Table 4: captions against foils of several sources ---------------------------
# The paper reports one accuracy and does not say of which pairs; its code counts ties as right.
# Here ties are wrong, and three accuracies are measured.

BLIND = "blind"
_ACCURACIES = {
    "every pair": "The caption scores above a foil.",
    "the writer's hardest": "Above the foil that its writer scores highest.",
    "every foil at once": "Above all foils of its own.",
}
_TABLE_4 = (
    "The paper (Flickr30K, ties right, pairs not said): foils of TAGS, TAGS 98.7 and UNITER 2.3; "
    "of a TAGS of another seed, 99.7 and 2.8; of VSE-C's rules, 96.3 and 87.5."
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FoilPairs:
    """P pairs of a caption and a foil of it.

    Attributes:
        images: (P,) long, the image of each pair.
        captions: (P,) long, the caption of each pair.
        hardest: (P,) bool, foils that their writer scores highest of their caption; None if
            unknown.
    """

    images: Tensor
    captions: Tensor
    hardest: Tensor | None


@final
@dataclass(frozen=True, slots=True)
class FoilAccuracies:
    """Accuracies in percent.

    Attributes:
        pairs: the caption scores above a foil.
        hardest: above the one that the writer scores highest; None if unknown.
        every: above every foil of its own.
        chance: percent by guessing, of `every`; of the others it is 50.
    """

    pairs: Share
    hardest: Share | None
    every: Share
    chance: float

    @property
    def by_title(self) -> dict[str, tuple[Share | None, float]]:
        """Accuracies with the chance level, by the title of their table."""
        values = (self.pairs, 50.0), (self.hardest, 50.0), (self.every, self.chance)
        return dict(zip(_ACCURACIES, values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "pairs": self.pairs.to_dict(),
            "hardest": self.hardest.to_dict() if self.hardest else None,
            "every": self.every.to_dict(),
            "chance": {"pairs": 50.0, "hardest": 50.0, "every": self.chance},
        }


def foil_accuracies(
    pairs: FoilPairs, positive: Tensor, negative: Tensor, *, seed: int = 0
) -> FoilAccuracies:
    """Measure accuracies with intervals over images.

    Args:
        pairs: at least one.
        positive: (P,) scores of the captions.
        negative: (P,) scores of the foils.
        seed: of the resampling.
    """
    right = positive > negative
    _, place = torch.unique(pairs.captions, return_inverse=True)
    counts = torch.bincount(place)
    missed = torch.zeros(len(counts), dtype=torch.long).index_add(0, place, (~right).long())
    image = torch.zeros(len(counts), dtype=torch.long).index_put((place,), pairs.images)
    each = shares([Counted.where(right)], pairs.images, scale=100, seed=seed)[0]
    every = shares([Counted.where(missed == 0)], image, scale=100, seed=seed)[0]
    hardest = None
    if pairs.hardest is not None:
        counted = Counted.where(right, pairs.hardest)
        hardest = shares([counted], pairs.images, scale=100, seed=seed)[0]
    chance = 100 * (1 / (1 + counts.double())).mean().item()
    return FoilAccuracies(each, hardest, every, chance)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SourceFoils:
    """Foils of one source.

    Attributes:
        source: name in tables.
        rows: (P,) rows of the captions, those of one caption side by side.
        texts: P foils.
        ranked: whether the first foil of each caption is the one its writer scores highest.
    """

    source: str
    rows: Tensor
    texts: tuple[str, ...]
    ranked: bool = False

    def pairs(self, text_to_image: Tensor) -> FoilPairs:
        """The pairs they are part of."""
        before = torch.cat([self.rows.new_full((1,), -1), self.rows[:-1]])
        hardest = self.rows != before if self.ranked else None
        return FoilPairs(text_to_image[self.rows], self.rows, hardest)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class DiscriminationSettings:
    """Settings of `discrimination`.

    Attributes:
        split: of the captions.
        anchors: number of images, a caption of each.
        stores: folders of generated captions.
        writers: models that generate now; None for all evaluated models that can.
        rules: whether rules write too; at most as many of a kind and caption as models keep.
        others: random captions of other images, of each caption.
        generation: how models generate.
        seed: of captions, foils and intervals.
    """

    split: str = "test"
    anchors: int = 200
    stores: tuple[Path, ...] = ()
    writers: tuple[str, ...] | None = None
    rules: bool = True
    others: int = 1
    generation: GenerationSettings = GenerationSettings()
    seed: int = 0


AccuracyMatrix: TypeAlias = Mapping[str, Mapping[str, FoilAccuracies]]  # by source, then by model
ScoreCaptions: TypeAlias = Callable[[Tensor, Sequence[str]], Tensor]


def discrimination(
    names: Sequence[str],
    source: DataSource,
    out: Path,
    *,
    plan: DiscriminationSettings | None = None,
) -> AccuracyMatrix:
    """Measure whether captions score above foils of several sources (Table 4).

    Args:
        names: of the models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        plan: the settings.

    Returns:
        Accuracies by source and model; "blind" is a language model of the training captions.

    Raises:
        ValueError: the page exists, there is no source of foils, or models, stores and data do not
            fit.
    """
    check_page_path(out)
    distributed.init()
    plan = plan or DiscriminationSettings()
    dataset, scorers = source.split(plan.split), open_scorers(names)
    for scorer in scorers:
        scorer.check_reads()
    rows = draw_captions(dataset, plan.anchors, torch.Generator().manual_seed(plan.seed))
    foils = tuple(_all_foils(scorers, source, dataset, rows, plan))
    if not foils:
        raise ValueError(
            "there is nothing to tell apart; name stores with --foils, writers with --writer, or "
            "let rules write"
        )
    blind, control = _blind_control(source, dataset, foils)
    models: dict[str, ScoreCaptions] = {s.name: _scores_of(s, dataset) for s in scorers}
    matrix = _accuracy_matrix({**models, BLIND: blind}, foils, dataset, plan.seed)
    words = [
        f"{line}: "
        + ", ".join(f"{name} {one.pairs.value:.1f} %" for name, one in accuracies.items())
        for line, accuracies in matrix.items()
    ]
    Analysis(
        title="Captions and foils told apart",
        headline=f"Captions above a foil. {'; '.join(words)}.",
        protocol=(
            f"{dataset.name} {dataset.split_name}: a caption each of {len(rows):,} images; models "
            f"write with {plan.generation.describe()}; ties wrong; {describe_models(scorers)}; "
            f"{control}; seed {plan.seed}; {INTERVALS}"
        ),
        seed=plan.seed,
        figures=tuple(_accuracy_figures(matrix)),
        tables=tuple(_accuracy_tables(matrix)),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "foils": {
                line: {name: one.to_dict() for name, one in accuracies.items()}
                for line, accuracies in matrix.items()
            },
        },
    ).publish(out)
    return matrix


def _scores_of(scorer: Scorer, dataset: ImageTextDataset) -> ScoreCaptions:
    return lambda images, texts: score_captions(scorer, dataset, images, texts)


def _all_foils(
    scorers: Sequence[Scorer],
    source: DataSource,
    dataset: ImageTextDataset,
    rows: Tensor,
    plan: DiscriminationSettings,
) -> Iterator[SourceFoils]:
    """Foils of stores, of models that generate now, by rule, and random captions."""
    for folder, store in zip(plan.stores, open_stores(plan.stores, source) if plan.stores else ()):
        store.check_split(dataset, folder)
        of_store = list(_by_kind(store.name, store.foils, dataset, rows))
        if not of_store:
            raise ValueError(
                f"{folder} has no foil of the {len(rows):,} captions that were drawn; draw more "
                "with --anchors"
            )
        yield from of_store
    writers = [s for s in scorers if can_generate(s)] if not plan.stores else []
    if plan.writers is not None:
        known = {scorer.given: scorer for scorer in scorers}
        missing = [name for name in plan.writers if name not in known]
        known |= {scorer.given: scorer for scorer in open_scorers(missing)}
        writers = [known[name] for name in plan.writers]
        for writer in writers:
            writer.check_reads()
    for writer in writers:
        generator = caption_generator(writer, dataset, plan.generation, plan.seed)
        yield from _by_kind(f"by {writer.name}", generator.foils(rows.tolist()), dataset, rows)
    if plan.rules:  # VSE-C's rules, with nouns of the training split
        nouns = frequent_nouns(source.split("train").texts)
        most = plan.generation.keep
        by_rule = RuleGenerator(nouns=nouns, kinds=RULE_KINDS, most=most, seed=plan.seed)
        foils = by_rule.foils(dataset.subset(dataset.text_to_image[rows]))
        yield from _by_kind("rules", foils, dataset, rows)
    yield from random_captions(dataset, rows, plan.others, plan.seed)


def random_captions(
    dataset: ImageTextDataset, rows: Tensor, count: int, seed: int
) -> Iterator[SourceFoils]:
    """Random captions of other images, an easy control.

    A caption that is word for word a caption of the image itself is not drawn.
    """
    rng = torch.Generator().manual_seed(seed)
    text_to_image, made_of, texts = dataset.text_to_image, [], []
    for row in rows.tolist():
        own = {
            dataset.texts[one]
            for one in (text_to_image == text_to_image[row]).nonzero().squeeze(1).tolist()
        }
        wrong = ((text_to_image >= 0) & (text_to_image != text_to_image[row])).nonzero().squeeze(1)
        order = wrong[torch.randperm(len(wrong), generator=rng)].tolist()
        drawn = [other for other in order if dataset.texts[other] not in own][:count]
        made_of += [row] * len(drawn)
        texts += [dataset.texts[other] for other in drawn]
    if texts:
        yield SourceFoils("random captions", torch.tensor(made_of), tuple(texts))


def _by_kind(
    name: str, foils: Iterable[GeneratedCaption], dataset: ImageTextDataset, rows: Tensor
) -> Iterator[SourceFoils]:
    """Foils of drawn captions; by kind of change if their writer did not score them."""
    number = {text: row for row, text in enumerate(dataset.text_ids)}
    wanted = set(rows.tolist())
    own = [(number[foil.text], foil) for foil in foils if number[foil.text] in wanted]
    own.sort(key=lambda pair: pair[0])  # stable: the hardest of each caption stays first
    ranked = all("foil" in foil.scores for _, foil in own)
    for kind in [""] if ranked else list(dict.fromkeys(foil.kind for _, foil in own)):
        some = [(row, foil.foil) for row, foil in own if kind in ("", foil.kind)]
        if some:
            made_of = torch.tensor([row for row, _ in some])
            texts = tuple(text for _, text in some)
            yield SourceFoils(f"{name}, {kind}" if kind else name, made_of, texts, ranked)


def _blind_control(
    source: DataSource, dataset: ImageTextDataset, foils: Sequence[SourceFoils]
) -> tuple[ScoreCaptions, str]:
    """A language model of training captions that are not evaluated, and its description."""
    evaluated = {dataset.texts[row] for one in foils for row in one.rows.tolist()}
    evaluated |= {text for one in foils for text in one.texts}
    train = source.split("train").texts
    unseen = [text for text in train if text not in evaluated]
    if not unseen:
        raise ValueError(
            f"all {len(train):,} training captions of {dataset.name} are evaluated, and the blind "
            "model has none to learn from; evaluate fewer with --anchors"
        )
    model = NGrams.of(unseen)
    control = f"{BLIND}: {model.order}-gram model of {len(unseen):,} training captions"
    return lambda images, texts: model.scores(texts).double(), control


def _accuracy_matrix(
    models: Mapping[str, ScoreCaptions],
    foils: Sequence[SourceFoils],
    dataset: ImageTextDataset,
    seed: int,
) -> dict[str, dict[str, FoilAccuracies]]:
    images = [dataset.text_to_image[one.rows] for one in foils]
    texts = [dataset.texts[row] for one in foils for row in one.rows.tolist()]
    texts += [text for one in foils for text in one.texts]
    matrix: dict[str, dict[str, FoilAccuracies]] = {one.source: {} for one in foils}
    for name, score in models.items():
        scores = score(torch.cat([*images, *images]), texts)
        parts = scores.view(2, -1).split([len(one.rows) for one in foils], 1)  # type: ignore[no-untyped-call]
        for one, (positive, negative) in zip(foils, parts, strict=True):
            pairs = one.pairs(dataset.text_to_image)
            matrix[one.source][name] = foil_accuracies(pairs, positive, negative, seed=seed)
    return matrix


def _accuracy_figures(matrix: AccuracyMatrix) -> Iterator[Figure]:
    for number, (title, note) in enumerate(_ACCURACIES.items()):
        points = [
            share_point(name, share, group=line, baseline=guess)
            for line, models in matrix.items()
            for name, one in models.items()
            for share, guess in (one.by_title[title],)
            if share
        ]
        if points:
            caption = f"{title[0].upper()}{title[1:]}. {note}"
            label = f"told apart, {title}, %"
            yield dot_plot(points, label, f"duels-{number}", caption, "guessing")


def _accuracy_tables(matrix: AccuracyMatrix) -> Iterator[TableBlock]:
    for title, note in _ACCURACIES.items():
        rows = []
        for line, models in matrix.items():
            cells = [one.by_title[title] for one in models.values()]
            share, guess = cells[0]
            if share is not None:
                values = (format_share(one) for one, _ in cells)
                rows.append((line, f"{share.count:,}", *values, f"{guess:.1f}"))
        if rows:
            head = "foils", "count", *next(iter(matrix.values())), "guessing"
            more = f"\n{_TABLE_4}" if title == "every pair" else ""
            yield TableBlock(f"Told apart, %: {title}", head, tuple(rows), f"{note}{more}")
