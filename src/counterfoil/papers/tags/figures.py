"""Analyses of TAGS (https://arxiv.org/abs/2111.03349): Figures 1a and 3, and Table 4.

Each of `triples`, `difficulty` and `discrimination` makes one figure or table: it takes what
``papers analyse`` takes under the same names, and returns an `Analysis` to publish. Models are
given by name, joined by ``+`` for an ensemble. Settings that fit no model, data or folder raise a
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from counterfoil.analysis.runs import (
    caption_difficulty,
    describe_notes,
    difficulty_figures,
    first_and_last,
    training_folders,
    training_note,
)
from counterfoil.core.types import WordHead, WordHeadModel
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.evaluation.bootstrap import Counted, Share, shares
from counterfoil.evaluation.language_models import NGrams
from counterfoil.model import Model
from counterfoil.negatives.generated import (
    GENERATED,
    GeneratedCaption,
    GeneratedManifest,
    GeneratedStore,
)
from counterfoil.papers.aoq.figures import image_scores
from counterfoil.papers.compared.rules import RuleGenerator, frequent_nouns
from counterfoil.papers.tags.generation import MaskRefill
from counterfoil.papers.tags.generator import ModelGenerator
from counterfoil.papers.tags.inputs import GeneratorInputs
from counterfoil.pipelines.publishing import (
    Analysis,
    Scorer,
    cells,
    check_different,
    describe_models,
    open_scorers,
    score_unit,
    share_point,
    short_names,
)
from counterfoil.pipelines.run import DataSource
from counterfoil.report.figures import dot_plot, score_scatter
from counterfoil.report.page import Figure, TableBlock
from counterfoil.scoring.pairs import score_index_pairs

# -- Generated captions: stores of them, models that generate them, and their scores --------------

INTERVALS = "95 % intervals: images drawn anew with all that belongs to them, 1,000 times"
MASK_REFILL, KEPT = MaskRefill(), 10  # of the generation; captions kept of each


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredCaptions:
    """Generated captions of a folder, with the split they were generated for."""

    name: str  # short name of the folder
    manifest: GeneratedManifest
    dataset: ImageTextDataset
    foils: tuple[GeneratedCaption, ...]  # in the order in which they were generated
    images: tuple[int, ...]  # rows of their images
    texts: tuple[int, ...]  # rows of the captions they were made of

    def describe(self) -> str:
        """Name, number, generator and seed, in words."""
        made = self.manifest
        return f"{self.name}: {len(self.foils):,} by {made.writer}, seed {made.seed}"


def open_stores(folders: Sequence[Path], source: DataSource) -> tuple[StoredCaptions, ...]:
    """Open generated captions of one split.

    Raises:
        ValueError: a folder is given twice, is no store, is empty or damaged, or was written for
            other data, or two were written for different splits.
    """
    check_different(folders, "folder")
    names = short_names(folders)
    stores = tuple(_open_store(path, name, source) for path, name in zip(folders, names))
    splits = {store.dataset.split_name: store.name for store in stores}
    if len(splits) > 1:
        listed = ", ".join(f"{name} for {split!r}" for split, name in splits.items())
        raise ValueError(f"captions of one split can be compared, but {listed} were written")
    return stores


def _open_store(folder: Path, name: str, source: DataSource) -> StoredCaptions:
    made = GENERATED.read_manifest(folder)
    whole = source.open()
    parts = made.split.split("+")
    dataset = whole if set(parts) - set(whole.split_names) else whole.split(*parts)
    foils = tuple(GeneratedStore.open(folder, fingerprint=dataset.fingerprint).foils())
    if not foils:
        raise ValueError(f"{folder} holds no written captions; write again")
    images = {name: row for row, name in enumerate(dataset.image_ids)}
    texts = {name: row for row, name in enumerate(dataset.text_ids)}
    strange = next((f for f in foils if f.image not in images or f.text not in texts), None)
    if strange is not None:
        raise ValueError(
            f"{folder} has a foil of caption {strange.text!r} of {strange.image!r}, which these "
            "data do not have; write again"
        )
    rows = tuple(images[foil.image] for foil in foils), tuple(texts[foil.text] for foil in foils)
    return StoredCaptions(name, made, dataset, foils, *rows)


def _foils_of(
    folder: Path, store: StoredCaptions, dataset: ImageTextDataset, rows: Tensor
) -> list[GeneratedCaption]:
    """Stored foils of some captions of a split, at least one."""
    if store.dataset.split_name != dataset.split_name:
        raise ValueError(
            f"{folder} was written for split {store.dataset.split_name!r}, and the analysis is "
            f"of {dataset.split_name!r}; name it with --split"
        )
    wanted = set(rows.tolist())
    foils = [foil for row, foil in zip(store.texts, store.foils) if row in wanted]
    if not foils:
        raise ValueError(
            f"{folder} has no foil of the {len(rows):,} captions that were drawn; draw more "
            "with --anchors"
        )
    return foils


def describe_generation(mask_refill: MaskRefill, keep: int) -> str:
    """Describe in words how models generate captions."""
    return (
        f"{mask_refill.masks} maskings of a caption, {mask_refill.refills} refills of each at "
        f"temperature {mask_refill.temperature:g}, the {keep} hardest kept that may be false"
    )


def caption_generator(
    model: Model, dataset: ImageTextDataset, mask_refill: MaskRefill, keep: int, seed: int
) -> ModelGenerator:
    """The generator with which a model writes captions of a split.

    Raises:
        ValueError: the model reads ready-made vectors or has no head for hidden words, or the data
            do not fit.
    """
    inputs = GeneratorInputs(processor=model.process(dataset), parser=RulePhraseParser())
    return ModelGenerator(
        inputs=inputs, model=model.model, mask_refill=mask_refill, keep=keep, seed=seed
    )


def can_generate(scorer: Scorer) -> bool:
    """Return True if a scorer is a single model with a head for masked words."""
    model = scorer.models[0].model
    return (
        len(scorer.models) == 1
        and isinstance(model, WordHeadModel)
        and WordHead.FILL in model.word_heads
    )


def draw_captions(dataset: ImageTextDataset, count: int, rng: torch.Generator) -> Tensor:
    """(S,) rows of captions of different images, in the order of the images.

    Raises:
        ValueError: no text describes an image.
    """
    described = (dataset.relation.counts > 0).nonzero().squeeze(1)
    if not len(described):
        raise ValueError(
            f"{dataset.name} {dataset.split_name} has no caption that describes an image"
        )
    images = described[torch.randperm(len(described), generator=rng)[:count].sort().values]
    return dataset.relation.random_caption(images, rng)


def score_captions(
    scorer: Scorer,
    dataset: ImageTextDataset,
    images: Tensor,
    texts: Sequence[str],
    *,
    scaled: bool = True,
) -> Tensor:
    """(P,) scores of images with captions that need not be in the split; equal pairs cost once.

    `images` are (P,) rows of the data set; scores are divided by their unit if `scaled`.

    Raises:
        ValueError: the model and the data do not fit.
    """
    present, image = torch.unique(images, return_inverse=True)
    number = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    shown = replace(
        dataset.subset(present),
        texts=list(number),
        text_ids=[str(row) for row in range(len(number))],
        text_to_image=torch.full((len(number),), -1),
        text_features=None,
    )
    pairs = image * len(number) + torch.tensor([number[text] for text in texts], dtype=torch.long)
    once, place = torch.unique(pairs, return_inverse=True)
    members = scorer.on(shown)
    scores = score_index_pairs(members, once // len(number), once % len(number))[place]
    return scores.double() / score_unit(members) if scaled else scores


# -- Figure 1a: triples of an image, its caption and a negative -----------------------------------

EASY_LEVEL = 0.05  # of the hardest negatives 40 % score above the positive, 18 % this far below


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Triples:
    """Triples with negatives of one source, chosen by one model and scored by one model."""

    chosen_by: str
    scored_by: str
    negatives: str  # their source
    left_out: int  # anchors without a negative
    percent_above: Share  # see `triple_difficulty`
    percent_far_below: Share
    mean_gap: Share
    positive: list[float]  # scores of the captions, in units of a score
    negative: list[float]  # scores of the negatives

    @property
    def by(self) -> str:
        """The scoring model, and the choosing one if it is another."""
        self_scored = self.chosen_by == self.scored_by
        return self.scored_by if self_scored else f"{self.scored_by}, those of {self.chosen_by}"


def triple_difficulty(
    positive: Tensor,
    negative: Tensor,
    images: Tensor,
    *,
    level: float = EASY_LEVEL,
    seed: int = 0,
) -> tuple[Share, Share, Share]:
    """Percent of negatives above, percent at least `level` below the positive, and mean gap.

    (N,) scores of the captions and of the negatives, of which an equal one is not above; (N,)
    images, which are resampled.
    """
    gaps = negative.double() - positive.double()
    counted = [Counted.where(gaps > 0), Counted.where(gaps <= -level)]
    above, below = shares(counted, images, scale=100, seed=seed)
    return above, below, shares([Counted.mean(gaps)], images, seed=seed)[0]


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
        sample = others[torch.randperm(len(others), generator=rng)[: batch - 1]]
        wrong = sample[relation.text_to_image[sample] != relation.text_to_image[row]].sort().values
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


def triples(
    models: Sequence[str],
    source: DataSource,
    *,
    judge: Sequence[str] = (),
    split: str = "test",
    anchors: int = 200,
    batch: int = 128,
    level: float = EASY_LEVEL,
    writer: str | None = None,
    written: Path | None = None,
    mask_refill: MaskRefill = MASK_REFILL,
    keep: int = KEPT,
    seed: int = 0,
) -> Analysis:
    """Draw how hard negatives of batches, of the whole set and generated ones are (Figure 1a).

    Each model chooses the hardest negative of every source for `anchors` captions, and generates
    captions itself unless a writer or a folder of written captions is named; the judges score the
    same triples without having chosen any.
    """
    if written is not None and writer is not None:
        raise ValueError("captions are given with --written and a writer with --writer; drop one")
    dataset = source.split(split)
    if batch > int((dataset.text_to_image >= 0).sum()):
        raise ValueError(
            f"batches of {batch} cannot be drawn from {len(dataset.texts):,} captions; give "
            "less with --batch"
        )
    scorers = open_scorers([*models, *judge])
    for scorer in scorers:
        scorer.check_reads()
    rows = draw_captions(dataset, anchors, torch.Generator().manual_seed(seed))
    stored = None
    origin = f"by {writer or 'each model itself'}, {describe_generation(mask_refill, keep)}"
    if written is not None:
        stored = _foils_of(written, open_stores([written], source)[0], dataset, rows)
        origin = f"of {written}"
    every: list[_Triples] = []
    for scorer in scorers[: len(models)]:
        foils: Iterable[GeneratedCaption] | None = stored
        if foils is None:
            author = scorer if writer is None else open_scorers([writer])[0]
            if not can_generate(author):
                raise ValueError(
                    f"{author.given} writes no captions; name one model with a head for hidden "
                    "words with --writer, or captions that are written with --written"
                )
            writing = caption_generator(author.single(), dataset, mask_refill, keep, seed)
            foils = writing.foils(rows.tolist())
        rng = torch.Generator().manual_seed(seed + 1)
        negatives = _hardest_of_each_source(scorer, dataset, rows, foils, batch, rng)
        for judging in (scorer, *scorers[len(models) :]):
            every += [
                _scored_triples(name, texts, scorer, judging, dataset, rows, level, seed)
                for name, texts in negatives.items()
            ]
    first = scorers[0].name
    shown = ", ".join(
        f"{one.percent_above.value:.1f} % ({one.negatives})"
        for one in every
        if one.chosen_by == one.scored_by == first and one.positive
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
        tables=(_triple_table(every, level),),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "triples": every,
        },
    )


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
    scores = image_scores(scorer.on(dataset), dataset.text_to_image[rows])
    mined = {
        f"batch of {batch}": in_batches(scores, rows, dataset.relation, batch=batch, rng=rng),
        "whole set": in_all(scores, rows, dataset.relation),
    }
    negatives = {
        name: [dataset.texts[row] if row >= 0 else "" for row in best]
        for name, best in mined.items()
    }
    foils = [captions.get(dataset.text_ids[row], ()) for row in rows.tolist()]
    images = dataset.text_to_image[rows].repeat_interleave(torch.tensor([len(f) for f in foils]))
    hardest = []
    if len(images):
        flat = score_captions(scorer, dataset, images, [text for some in foils for text in some])
        for some, of_caption in zip(foils, torch.split(flat, [len(f) for f in foils])):
            hardest.append(some[int(of_caption.argmax())] if some else "")
    return {**negatives, "written": hardest or [""] * len(rows)}


def _scored_triples(
    negatives: str,
    texts: Sequence[str],
    chosen_by: Scorer,
    judge: Scorer,
    dataset: ImageTextDataset,
    rows: Tensor,
    level: float,
    seed: int,
) -> _Triples:
    """The triples of a source, whose texts are "" where it has no negative of a caption."""
    anchors = rows[torch.tensor([bool(text) for text in texts])]
    images = dataset.text_to_image[anchors]
    pairs = [*(dataset.texts[row] for row in anchors.tolist()), *filter(None, texts)]
    scores = score_captions(judge, dataset, torch.cat([images, images]), pairs)
    positive, negative = scores.view(2, -1)
    return _Triples(
        chosen_by.name,
        judge.name,
        negatives,
        len(rows) - len(anchors),
        *triple_difficulty(positive, negative, images, level=level, seed=seed),
        positive.tolist(),
        negative.tolist(),
    )


def _triple_figures(every: Sequence[_Triples], level: float) -> Iterator[Figure]:
    """A scatter plot for every pair of a choosing and a scoring model."""
    for number, by in enumerate(dict.fromkeys(one.by for one in every)):
        some = [one for one in every if one.by == by and one.positive]
        points = [(t.negatives, np.array(t.positive), np.array(t.negative)) for t in some]
        if points:
            yield score_scatter(points, level, f"triples-{number}", f"Scored by {by}.")


def _triple_table(every: Sequence[_Triples], level: float) -> TableBlock:
    rows = tuple(
        cells(
            one.by,
            one.negatives,
            len(one.positive),
            one.percent_above,
            one.percent_far_below,
            (one.mean_gap, "+.4f"),
        )
        for one in every
    )
    head = "scored by", "negatives", "triples", "above, %", f"{level:g} below, %", "mean gap"
    note = (
        f"Above: the negative scores above the positive. {level:g} below: it scores as far below "
        "it, or further. Gap: negative minus positive, over the unit of the model's score.\n"
        "The paper, with CLIP on Flickr30K: of the hardest of the whole set about 40 % above the "
        "positive, 18 % at least 0.05 below it."
    )
    return TableBlock("How hard negatives are", head, rows, note)


# -- Section 4.1 and Figure 3: difficulty of generated captions during training -------------------
# The paper draws the distribution of the score of the generated caption minus that of its original.
# Its text says that captions of a static generator score higher than those of a dynamic one, and
# concludes that the static one fails to be hard; the figure shows the numbers.


def difficulty(folders: Sequence[Path]) -> Analysis:
    """Draw how hard generated captions were for the models trained on them (Figure 3).

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
    words, rows, numbers = [], [], []
    for name, place, note in zip(short_names(list(courses)), courses, notes):
        writer, seed = (note.writer, note.seed) if note else ("", None)
        first, last = first_and_last(courses[place])
        ends = [f"{part['percent_above'].value:.1f} %" for part in (first, last)]
        words.append(f"{name} from {ends[0]} to {ends[1]}")
        rows += [
            cells(
                name,
                writer or None,
                seed,
                f"{part['from']:,} to {part['to']:,}",
                part["percent_above"],
                (part["gap"], "+.4f"),
            )
            for part in (first, last)
        ]
        numbers.append(
            {
                **courses[place],
                "training": name,
                "folder": str(place),
                "writer": writer,
                "seed": seed,
                "first": first,
                "last": last,
            }
        )
    head = "training", "writer", "seed", "steps", "above, %", "score − the original's"
    explanation = (
        "The first and the last fifth of the logged steps. Neighbouring steps are alike, so these "
        "intervals are rather too narrow."
    )
    return Analysis(
        title="Difficulty of written captions",
        headline=f"Written captions above their original: {'; '.join(words)}.",
        protocol=(
            f"{data}train: captions written for the last batch before each line of the log, as the "
            "model in training scores them, dropout included; a tie is not above; single "
            f"models{seeds}; 95 % intervals: logged steps drawn anew, 1,000 times, seed 0"
        ),
        figures=tuple(difficulty_figures(numbers, loss=True)),
        tables=(TableBlock("First and last steps", head, tuple(rows), explanation),),
        numbers={"trainings": numbers},
    )


# -- Section 4.3 and Table 4: captions against foils of several sources ---------------------------
# The paper reports one accuracy and does not say of which pairs; its code counts ties as right.
# Here ties are wrong, and three accuracies are measured.

BLIND = "blind"
_ACCURACIES = {  # title and note
    "pairs": ("every pair", "The caption scores above a foil."),
    "hardest": ("the writer's hardest", "Above the foil that its writer scores highest."),
    "every": ("every foil at once", "Above all foils of its own."),
}
_TABLE_4 = (
    "The paper (Flickr30K, ties right, pairs not said): foils of TAGS, TAGS 98.7 and UNITER 2.3; "
    "of a TAGS of another seed, 99.7 and 2.8; of VSE-C's rules, 96.3 and 87.5."
)

ScoreCaptions: TypeAlias = Callable[[Tensor, Sequence[str]], Tensor]


@final
@dataclass(frozen=True, slots=True)
class FoilAccuracies:
    """Percent of captions that score above their foils, counted in three ways."""

    pairs: Share  # the caption above a foil
    hardest: Share | None  # above the foil that its writer scores highest; None if unknown
    every: Share  # above all foils of its own at once
    chance: Mapping[str, float]  # percent by guessing, of each of the three


@final
@dataclass(frozen=True, slots=True, eq=False)
class SourceFoils:
    """P foils of one source."""

    source: str
    rows: Tensor  # (P,) rows of the captions, those of one caption side by side
    texts: tuple[str, ...]
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
    """Measure accuracies with intervals over images.

    Args:
        images: (P,) long, the image of each pair of a caption and a foil of it; at least one.
        captions: (P,) long, the caption of each pair.
        hardest: (P,) bool, foils that their writer scores highest of their caption; None if
            unknown.
        positive: (P,) scores of the captions.
        negative: (P,) scores of the foils.
        seed: of the resampling.
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
        pairs=pairs,
        hardest=None if hardest is None else at_hardest,
        every=every,
        chance={"pairs": 50.0, "hardest": 50.0, "every": chance},
    )


def discrimination(
    models: Sequence[str],
    source: DataSource,
    *,
    split: str = "test",
    anchors: int = 200,
    foils: Sequence[Path] = (),
    writer: Sequence[str] | None = None,
    rules: bool = True,
    others: int = 1,
    mask_refill: MaskRefill = MASK_REFILL,
    keep: int = KEPT,
    seed: int = 0,
) -> Analysis:
    """Measure whether captions score above foils of several sources (Table 4).

    Foils are those of folders, of models that write now (without a folder, all that can), by rule
    (at most `keep` of a kind and caption), and `others` random captions of other images. A blind
    language model of the training captions is the control.
    """
    dataset, scorers = source.split(split), open_scorers(models)
    for scorer in scorers:
        scorer.check_reads()
    rows = draw_captions(dataset, anchors, torch.Generator().manual_seed(seed))
    sources: list[SourceFoils] = []
    for folder, store in zip(foils, open_stores(foils, source) if foils else ()):
        sources += _by_kind(store.name, _foils_of(folder, store, dataset, rows), dataset, rows)
    writing = [s for s in scorers if can_generate(s)] if not foils else []
    if writer is not None:
        known = {scorer.given: scorer for scorer in scorers}
        known |= {
            scorer.given: scorer for scorer in open_scorers([w for w in writer if w not in known])
        }
        writing = [known[name] for name in writer]
        for author in writing:
            author.check_reads()
    for author in writing:
        generator = caption_generator(author.single(), dataset, mask_refill, keep, seed)
        foils_now = generator.foils(rows.tolist())
        sources += _by_kind(f"by {author.name}", foils_now, dataset, rows)
    if rules:  # VSE-C's rules, with nouns of the training split
        nouns = frequent_nouns(source.split("train").texts)
        by_rule = RuleGenerator(nouns=nouns, kinds=RULE_KINDS, most=keep, seed=seed)
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
            f"write with {describe_generation(mask_refill, keep)}; ties wrong; "
            f"{describe_models(scorers)}; {control}; seed {seed}; {INTERVALS}"
        ),
        seed=seed,
        figures=tuple(_accuracy_figures(matrix)),
        tables=tuple(_accuracy_tables(matrix)),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "foils": matrix,
        },
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
            share_point(name, share, group=line, baseline=accuracies.chance[kind])
            for line, models in matrix.items()
            for name, accuracies in models.items()
            if (share := getattr(accuracies, kind))
        ]
        if points:
            caption = f"{title[0].upper()}{title[1:]}. {note}"
            label = f"accuracy, {title}, %"
            yield dot_plot(points, label, f"duels-{number}", caption, "guessing")


def _accuracy_tables(matrix: Mapping[str, Mapping[str, FoilAccuracies]]) -> Iterator[TableBlock]:
    for kind, (title, note) in _ACCURACIES.items():
        rows = []
        for line, models in matrix.items():
            first, values = next(iter(models.values())), [getattr(a, kind) for a in models.values()]
            if values[0] is not None:
                rows.append(cells(line, values[0].count, *values, first.chance[kind]))
        if rows:
            head = "foils", "count", *next(iter(matrix.values())), "guessing"
            more = f"\n{_TABLE_4}" if kind == "pairs" else ""
            yield TableBlock(f"Told apart, %: {title}", head, tuple(rows), f"{note}{more}")
