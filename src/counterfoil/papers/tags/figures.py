"""Figures of TAGS (https://arxiv.org/abs/2111.03349): 1a and 3, and Table 4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import torch
import typer
from torch import Tensor

from counterfoil.analysis.runs import (
    caption_difficulty,
    describe_notes,
    difficulty_figures,
    first_and_last,
    training_folders,
    training_note,
)
from counterfoil.cli.options import Models, Seed, Split, refuse, refuse_without
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.evaluation.bootstrap import Counted, Share, shares
from counterfoil.evaluation.language_models import NGrams
from counterfoil.negatives.generated import GeneratedCaption
from counterfoil.papers.analyses import (
    GENERATION,
    Anchors,
    Batch,
    GenerationOptions,
    Trainings,
    analysis,
)
from counterfoil.papers.aoq.figures import (
    draw_batches,
    hardest_drawn,
    places,
    query_scores,
    wrong_counterparts,
)
from counterfoil.papers.compared.rules import RuleGenerator, frequent_nouns
from counterfoil.papers.tags.captions import (
    INTERVALS,
    can_generate,
    caption_generator,
    draw_captions,
    open_stores,
    score_captions,
)
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.scorers import Scorer, describe_models, open_scorers, short_names
from counterfoil.report.analysis import Analysis, Column, cells, table
from counterfoil.report.figures import dot_plot, score_scatter
from counterfoil.report.page import Figure, TableBlock

# -- Figure 1a: triples of an image, its caption and a negative -----------------------------------

EASY_LEVEL = 0.05  # of the hardest negatives 40 % score above the positive, 18 % this far below


def triple_difficulty(
    positive: Tensor,
    negative: Tensor,
    images: Tensor,
    *,
    level: float = EASY_LEVEL,
    seed: int = 0,
) -> dict[str, Share]:
    """Percent of negatives above, percent at least `level` below the positive, and mean gap.

    (N,) scores of the captions and of the negatives, of which an equal one is not above; (N,)
    images, which are resampled.
    """
    gaps = negative.double() - positive.double()
    counted = [Counted.where(gaps > 0), Counted.where(gaps <= -level)]
    above, below = shares(counted, images, scale=100, seed=seed)
    gap = shares([Counted.mean(gaps)], images, seed=seed)[0]
    return {"percent_above": above, "percent_far_below": below, "mean_gap": gap}


def hardest_captions(
    scores: Tensor, anchors: Tensor, relation: Relation, *, batch: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(S,) hardest wrong caption of a random batch of each anchor, and of all; -1 for none.

    `scores` are (S, T) of the images of the `anchors`, (S,) text rows, with all texts; a batch has
    `batch` captions, the anchor among them.
    """
    owned, found = relation.owned, []
    for row, line in zip(anchors, scores):
        place = places(line, wrong_counterparts(relation, relation.text_to_image[row])[0])
        drawn = draw_batches(owned[owned != row], batch - 1, 1, rng)
        found.append(torch.cat([hardest_drawn(place, drawn), hardest_drawn(place, owned[None])]))
    in_batch, in_all = torch.stack(found, 1)
    return in_batch, in_all


@analysis(
    "triples",
    "counterfoil papers analyse triples runs/tags-dc/uniter-scenes/tags-dc "
    "--judge runs/scenes/online --data scenes:features=regions --output triples.html",
    "counterfoil papers analyse triples openai/clip-vit-base-patch32 --data flickr8k/ "
    "--written written/ --split test --output triples.html",
    check=lambda context: refuse_without(context, "written", GENERATION, alone=True),
)
def triples(
    models: Models,
    source: DataSource,
    generation: GenerationOptions,
    split: Split = "test",
    anchors: Anchors = 200,
    batch: Batch = 128,
    level: Annotated[
        float, typer.Option(min=0, help="A negative this far below its positive counts as easy.")
    ] = EASY_LEVEL,
    judge: Annotated[
        list[str] | None, typer.Option(help="Model that scores the same triples; repeatable.")
    ] = None,
    writer: Annotated[
        str | None, typer.Option(help="Model that generates captions; default each model itself.")
    ] = None,
    written: Annotated[
        Path | None, typer.Option(help="Folder of generated captions, instead of --writer.")
    ] = None,
    seed: Seed = 0,
) -> Analysis:
    """Compare in-batch, mined and generated negatives with their positives (Figure 1a).

    Each model chooses the hardest negative of every source for `anchors` captions; the judges score
    the same triples without having chosen any.
    """
    if written is not None and writer is not None:
        raise ValueError("captions are given with --written and a writer with --writer; drop one")
    dataset = source.split(split)
    if batch > int((dataset.text_to_image >= 0).sum()):
        raise ValueError(
            f"batches of {batch} cannot be drawn from {len(dataset.texts):,} captions; give "
            "less with --batch"
        )
    scorers = open_scorers([*models, *(judge or ())])
    for scorer in scorers:
        scorer.check_reads()
    rows = draw_captions(dataset, anchors, seed)
    stored: list[GeneratedCaption] | None = None
    origin = f"by {writer or 'each model itself'}, {generation.describe()}"
    if written is not None:
        stored = open_stores([written], source)[0].of_captions(dataset, rows)
        origin = f"of {written}"
    every: list[dict[str, Any]] = []
    for scorer in scorers[: len(models)]:
        foils: Iterable[GeneratedCaption] | None = stored
        if foils is None:
            author = scorer if writer is None else open_scorers([writer])[0]
            if not can_generate(author):
                raise ValueError(
                    f"{author.given} writes no captions; name one model with a head for hidden "
                    "words with --writer, or captions that are written with --written"
                )
            foils = caption_generator(author.single(), dataset, generation, seed).foils(
                rows.tolist()
            )
        rng = torch.Generator().manual_seed(seed + 1)
        negatives = _hardest_of_each_source(scorer, dataset, rows, foils, batch, rng)
        for judging in (scorer, *scorers[len(models) :]):
            for name, texts in negatives.items():
                scores = _scored_triples(texts, judging, dataset, rows, level, seed)
                given = {"chosen_by": scorer.name, "scored_by": judging.name, "negatives": name}
                every.append(given | scores)
    first = scorers[0].name
    shown = ", ".join(
        f"{one['percent_above'].value:.1f} % ({one['negatives']})"
        for one in every
        if one["chosen_by"] == one["scored_by"] == first and one["positive"]
    )
    columns: dict[str, Column] = {
        "scored by": _by,
        "negatives": "negatives",
        "triples": lambda one: len(one["positive"]),
        "above, %": "percent_above",
        f"{level:g} below, %": "percent_far_below",
        "mean gap": ("mean_gap", "+.4f"),
    }
    note = (
        f"Above: the negative scores above the positive. {level:g} below: it scores as far below "
        "it, or further. Gap: negative minus positive, over the unit of the model's score.\n"
        "The paper, with CLIP on Flickr30K: of the hardest of the whole set about 40 % above the "
        "positive, 18 % at least 0.05 below it."
    )
    return Analysis(
        title="Triples",
        headline=f"Negatives that {first} scores above the positive: {shown}.",
        protocol=(
            f"{dataset.name} {dataset.split_name}, {len(dataset.texts):,} captions: a caption "
            f"each of {len(rows):,} images; written {origin}; a tie is not above; "
            f"{describe_models(scorers)}; sampling seed {seed}; {INTERVALS}"
        ),
        seed=seed,
        figures=tuple(_triple_figures(every, level)),
        tables=(table("How hard negatives are", every, columns, note),),
        numbers={"models": {s.name: s.given for s in scorers}, "triples": every},
    )


def _by(one: Mapping[str, Any]) -> str:
    """The scoring model, and the choosing one if it is another."""
    scored, chosen = one["scored_by"], one["chosen_by"]
    return scored if scored == chosen else f"{scored}, those of {chosen}"


def _hardest_of_each_source(
    scorer: Scorer,
    dataset: ImageTextDataset,
    rows: Tensor,
    generated: Iterable[GeneratedCaption],
    batch: int,
    rng: torch.Generator,
) -> dict[str, list[str]]:
    """The negative that a model scores highest, of each source and caption; "" for none."""
    captions: dict[str, list[str]] = {}  # by the id of the caption that they were made of
    for foil in generated:
        captions.setdefault(foil.text, []).append(foil.foil)
    scores = query_scores(scorer.on(dataset), "i2t", dataset.text_to_image[rows])
    in_batch, in_all = hardest_captions(scores, rows, dataset.relation, batch=batch, rng=rng)
    negatives = {
        name: [dataset.texts[row] if row >= 0 else "" for row in best.tolist()]
        for name, best in ((f"batch of {batch}", in_batch), ("whole set", in_all))
    }
    foils = [captions.get(dataset.text_ids[row], ()) for row in rows.tolist()]
    counts = torch.tensor([len(of_caption) for of_caption in foils])
    images = dataset.text_to_image[rows].repeat_interleave(counts)
    hardest = [""] * len(rows)
    if len(images):
        flat = score_captions(scorer, dataset, images, [text for some in foils for text in some])
        for place, (some, found) in enumerate(zip(foils, torch.split(flat, counts.tolist()))):
            hardest[place] = some[int(found.argmax())] if some else ""
    return {**negatives, "written": hardest}


def _scored_triples(
    texts: Sequence[str],
    judge: Scorer,
    dataset: ImageTextDataset,
    rows: Tensor,
    level: float,
    seed: int,
) -> dict[str, Any]:
    """The triples of a source, whose texts are "" where it has no negative of a caption."""
    anchors = rows[torch.tensor([bool(text) for text in texts])]
    images = dataset.text_to_image[anchors]
    pairs = [*(dataset.texts[row] for row in anchors.tolist()), *filter(None, texts)]
    scores = score_captions(judge, dataset, torch.cat([images, images]), pairs)
    positive, negative = scores.view(2, -1)
    return {
        "left_out": len(rows) - len(anchors),
        **triple_difficulty(positive, negative, images, level=level, seed=seed),
        "positive": positive.tolist(),
        "negative": negative.tolist(),
    }


def _triple_figures(every: Sequence[Mapping[str, Any]], level: float) -> Iterator[Figure]:
    """A scatter plot for every pair of a choosing and a scoring model."""
    for number, by in enumerate(dict.fromkeys(map(_by, every))):
        points = [
            (one["negatives"], np.array(one["positive"]), np.array(one["negative"]))
            for one in every
            if _by(one) == by and one["positive"]
        ]
        if points:
            yield score_scatter(points, level, f"triples-{number}", f"Scored by {by}.")


# -- Section 4.1 and Figure 3: difficulty of generated captions during training -------------------
# The paper draws the distribution of the score of the generated caption minus that of its original.
# Its text says that captions of a static generator score higher than those of a dynamic one, and
# concludes that the static one fails to be hard; the figure shows the numbers.


@analysis(
    "difficulty",
    "counterfoil papers analyse difficulty runs/tags/ablations/static/uniter-scenes "
    "--output hard.html",
)
def difficulty(folders: Trainings) -> Analysis:
    """Draw the hardness of generated captions during training, static and dynamic (Figure 3).

    Trainings without generated captions are left out.
    """
    courses = {
        place: course
        for place in training_folders(folders)
        if (course := caption_difficulty("", place))
    }
    if not courses:
        raise ValueError(
            f"no log below {', '.join(map(str, folders))} tells how hard written captions are; "
            "name trainings on negatives that are written, as by the recipe tags"
        )
    notes = [training_note(place) for place in courses]
    data, seeds = describe_notes(notes)
    numbers: list[dict[str, Any]] = []
    for name, (place, course), note in zip(short_names(list(courses)), courses.items(), notes):
        first, last = first_and_last(course)
        made = {"writer": note.writer if note else "", "seed": note.seed if note else None}
        ends = {"first": first, "last": last}
        numbers.append({**course, "training": name, "folder": str(place), **made, **ends})
    words = [
        f"{one['training']} from {one['first']['percent_above'].value:.1f} % to "
        f"{one['last']['percent_above'].value:.1f} %"
        for one in numbers
    ]
    columns: dict[str, Column] = {
        "training": "training",
        "writer": lambda one: one["writer"] or None,
        "seed": "seed",
        "steps": lambda one: f"{one['from']:,} to {one['to']:,}",
        "above, %": "percent_above",
        "score − the original's": ("gap", "+.4f"),
    }
    explanation = (
        "The first and the last fifth of the logged steps. Neighbouring steps are alike, so these "
        "intervals are rather too narrow."
    )
    ends_of_all = [one | one[end] for one in numbers for end in ("first", "last")]
    return Analysis(
        title="Difficulty of written captions",
        headline=f"Written captions above their original: {'; '.join(words)}.",
        protocol=(
            f"{data}train: captions written for the last batch before each line of the log, as the "
            "model in training scores them, dropout included; a tie is not above; single "
            f"models{seeds}; 95 % intervals: logged steps drawn anew, 1,000 times, seed 0"
        ),
        figures=tuple(difficulty_figures(numbers, loss=True)),
        tables=(table("First and last steps", ends_of_all, columns, explanation),),
        numbers={"trainings": numbers},
    )


# -- Section 4.3 and Table 4: captions against foils of several sources ---------------------------
# The paper reports one accuracy and does not say of which pairs; its code counts ties as right.
# Here ties are wrong, and three accuracies are measured.

BLIND = "blind"
_ACCURACIES = {  # title and note
    "pairs": (
        "every pair",
        "The caption scores above a foil.\nThe paper (Flickr30K, ties right, pairs not said): "
        "foils of TAGS, TAGS 98.7 and UNITER 2.3; of a TAGS of another seed, 99.7 and 2.8; of "
        "VSE-C's rules, 96.3 and 87.5.",
    ),
    "hardest": ("the writer's hardest", "Above the foil that its writer scores highest."),
    "every": ("every foil at once", "Above all foils of its own."),
}

ScoreCaptions: TypeAlias = Callable[[Tensor, Sequence[str]], Tensor]


class FoilAccuracies(NamedTuple):
    """Percent of captions that score above their foils, counted in three ways."""

    pairs: Share  # the caption above a foil
    hardest: Share | None  # above the foil that its writer scores highest; None if unknown
    every: Share  # above all foils of its own at once
    chance: Mapping[str, float]  # percent by guessing, of each of the three

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return self._asdict()


class SourceFoils(NamedTuple):
    """P foils of one source."""

    source: str
    rows: Tensor  # (P,) rows of the captions, those of one caption side by side
    texts: Sequence[str]
    ranked: bool = False  # the first of each caption is the one its writer scores highest


def foil_accuracies(
    images: Tensor,
    captions: Tensor,
    hardest: Tensor | None,
    positive: Tensor,
    negative: Tensor,
    *,
    seed: int = 0,
) -> FoilAccuracies:
    """Measure accuracies with intervals over images, of P pairs of a caption and a foil of it.

    All (P,): image and caption of each pair, whether the writer scores the foil highest of its
    caption (None if unknown), and the scores of the captions and of the foils.
    """
    right = positive > negative
    _, place = torch.unique(captions, return_inverse=True)
    counts = torch.bincount(place)
    missed = torch.zeros(len(counts), dtype=torch.long).index_add(0, place, (~right).long())
    image = torch.zeros(len(counts), dtype=torch.long).index_put((place,), images)
    known = torch.zeros_like(right) if hardest is None else hardest
    counted = [Counted.where(right), Counted.where(right, known)]
    pairs, at_hardest = shares(counted, images, scale=100, seed=seed)
    every = shares([Counted.where(missed == 0)], image, scale=100, seed=seed)[0]
    chance = 100 * (1 / (1 + counts.double())).mean().item()
    return FoilAccuracies(
        pairs,
        None if hardest is None else at_hardest,
        every,
        {"pairs": 50.0, "hardest": 50.0, "every": chance},
    )


def _check_writing(context: typer.Context) -> None:
    if context.params["foils"] and not context.params["writer"]:
        unused = GENERATION[:-1] if context.params["rules"] else GENERATION
        refuse(context, unused, "with --writer, where --foils are given")


@analysis(
    "discrimination",
    "counterfoil papers analyse discrimination runs/tags-dc/uniter-scenes/tags-dc "
    "runs/scenes/online --data scenes:features=regions --output table.html",
    "counterfoil papers analyse discrimination openai/clip-vit-base-patch32 --data flickr8k/ "
    "--foils written/ --no-rules --output table.html",
    check=_check_writing,
)
def discrimination(
    models: Models,
    source: DataSource,
    generation: GenerationOptions,
    split: Split = "test",
    anchors: Anchors = 200,
    foils: Annotated[
        list[Path] | None, typer.Option(help="Folder of generated captions; repeatable.")
    ] = None,
    writer: Annotated[
        list[str] | None,
        typer.Option(help="Model that generates foils; default, without --foils, all that can."),
    ] = None,
    rules: Annotated[bool, typer.Option(help="Also use foils by the rules of VSE-C.")] = True,
    others: Annotated[int, typer.Option(min=0, help="Random captions for each image.")] = 1,
    seed: Seed = 0,
) -> Analysis:
    """Compare how well models, and a text-only control, tell captions from foils (Table 4)."""
    dataset, scorers = source.split(split), open_scorers(models)
    for scorer in scorers:
        scorer.check_reads()
    rows = draw_captions(dataset, anchors, seed)
    sources: list[SourceFoils] = []
    for store in open_stores(foils, source) if foils else ():
        sources += _by_kind(store.name, store.of_captions(dataset, rows), dataset, rows)
    writing = [s for s in scorers if can_generate(s)] if not foils else []
    if writer:
        known = {scorer.given: scorer for scorer in scorers}
        known |= {s.given: s for s in open_scorers([name for name in writer if name not in known])}
        writing = [known[name] for name in writer]
        for author in writing:
            author.check_reads()
    for author in writing:
        generator = caption_generator(author.single(), dataset, generation, seed)
        sources += _by_kind(f"by {author.name}", generator.foils(rows.tolist()), dataset, rows)
    if rules:  # VSE-C's rules, with nouns of the training split
        nouns = frequent_nouns(source.split("train").texts)
        by_rule = RuleGenerator(nouns=nouns, kinds=RULE_KINDS, most=generation.keep, seed=seed)
        subset = dataset.subset(dataset.text_to_image[rows])
        sources += _by_kind("rules", by_rule.foils(subset), dataset, rows)
    sources += random_captions(dataset, rows, others, seed)
    if not sources:
        raise ValueError(
            "there is nothing to tell apart; name stores with --foils, writers with --writer, or "
            "let rules write"
        )
    blind, control = _blind_control(source, dataset, sources)
    scoring = {scorer.name: partial(score_captions, scorer, dataset) for scorer in scorers}
    matrix = _accuracy_matrix({**scoring, BLIND: blind}, sources, dataset, seed)
    words = []
    for line, accuracies in matrix.items():
        values = ", ".join(f"{name} {one.pairs.value:.1f} %" for name, one in accuracies.items())
        words.append(f"{line}: {values}")
    return Analysis(
        title="Discrimination of captions and foils",
        headline=f"Captions above a foil. {'; '.join(words)}.",
        protocol=(
            f"{dataset.name} {dataset.split_name}: a caption each of {len(rows):,} images; models "
            f"write with {generation.describe()}; ties wrong; "
            f"{describe_models(scorers)}; {control}; seed {seed}; {INTERVALS}"
        ),
        seed=seed,
        figures=tuple(_accuracy_figures(matrix)),
        tables=tuple(_accuracy_tables(matrix)),
        numbers={"models": {s.name: s.given for s in scorers}, "foils": matrix},
    )


def random_captions(
    dataset: ImageTextDataset, rows: Tensor, count: int, seed: int
) -> Iterator[SourceFoils]:
    """Random captions of other images, an easy control.

    A caption that is word for word a caption of the image itself is not drawn.
    """
    rng = torch.Generator().manual_seed(seed)
    text_to_image, made_of, texts = dataset.text_to_image, [], []
    for row in rows.tolist():
        same = text_to_image == text_to_image[row]
        captions = {dataset.texts[caption] for caption in same.nonzero().squeeze(1).tolist()}
        wrong = ((text_to_image >= 0) & ~same).nonzero().squeeze(1)
        order = wrong[torch.randperm(len(wrong), generator=rng)].tolist()
        sample = [other for other in order if dataset.texts[other] not in captions][:count]
        made_of += [row] * len(sample)
        texts += [dataset.texts[other] for other in sample]
    if texts:
        yield SourceFoils("random captions", torch.tensor(made_of), tuple(texts))


def _by_kind(
    name: str, foils: Iterable[GeneratedCaption], dataset: ImageTextDataset, rows: Tensor
) -> Iterator[SourceFoils]:
    """Foils of drawn captions; by kind of change if their writer did not score them."""
    number = {text: row for row, text in enumerate(dataset.text_ids)}
    wanted = set(rows.tolist())
    wanted_foils = [(number[foil.text], foil) for foil in foils if number[foil.text] in wanted]
    wanted_foils.sort(key=lambda pair: pair[0])  # stable: the hardest of each caption stays first
    ranked = all("foil" in foil.scores for _, foil in wanted_foils)
    for kind in [""] if ranked else list(dict.fromkeys(foil.kind for _, foil in wanted_foils)):
        kind_foils = [(row, foil.foil) for row, foil in wanted_foils if kind in ("", foil.kind)]
        if kind_foils:
            made_of = torch.tensor([row for row, _ in kind_foils])
            texts = tuple(text for _, text in kind_foils)
            yield SourceFoils(f"{name}, {kind}" if kind else name, made_of, texts, ranked)


def _blind_control(
    source: DataSource, dataset: ImageTextDataset, foils: Sequence[SourceFoils]
) -> tuple[ScoreCaptions, str]:
    """A language model of training captions that are not evaluated, and its description."""
    evaluated = {dataset.texts[row] for some in foils for row in some.rows.tolist()}
    evaluated |= {text for some in foils for text in some.texts}
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
    """Accuracies by source, then by model."""
    images = [dataset.text_to_image[some.rows] for some in foils]
    texts = [dataset.texts[row] for some in foils for row in some.rows.tolist()]
    texts += [text for some in foils for text in some.texts]
    matrix: dict[str, dict[str, FoilAccuracies]] = {some.source: {} for some in foils}
    for name, score in models.items():
        scores = score(torch.cat([*images, *images]), texts).view(2, -1)
        parts = torch.split(scores, [len(some.rows) for some in foils], 1)
        for some, image, (positive, negative) in zip(foils, images, parts, strict=True):
            before = torch.cat([some.rows.new_full((1,), -1), some.rows[:-1]])
            hardest = some.rows != before if some.ranked else None
            matrix[some.source][name] = foil_accuracies(
                image, some.rows, hardest, positive, negative, seed=seed
            )
    return matrix


def _accuracy_figures(matrix: Mapping[str, Mapping[str, FoilAccuracies]]) -> Iterator[Figure]:
    for number, (kind, (title, note)) in enumerate(_ACCURACIES.items()):
        points = [
            share.point(name, group=line, baseline=accuracies.chance[kind])
            for line, models in matrix.items()
            for name, accuracies in models.items()
            if (share := getattr(accuracies, kind))
        ]
        if points:
            caption = f"{title[0].upper()}{title[1:]}. {note.splitlines()[0]}"
            label = f"accuracy, {title}, %"
            yield dot_plot(points, label, f"duels-{number}", caption, "guessing")


def _accuracy_tables(matrix: Mapping[str, Mapping[str, FoilAccuracies]]) -> Iterator[TableBlock]:
    head = "foils", "count", *next(iter(matrix.values())), "guessing"
    for kind, (title, note) in _ACCURACIES.items():
        rows = []
        for line, models in matrix.items():
            values, chance = [getattr(a, kind) for a in models.values()], models[BLIND].chance
            if values[0] is not None:
                rows.append(cells(line, values[0].count, *values, chance[kind]))
        if rows:
            yield TableBlock(f"Told apart, %: {title}", head, tuple(rows), note)
