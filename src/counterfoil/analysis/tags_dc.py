"""Analyses of TAGS-DC (https://arxiv.org/abs/2111.03349): section 4.4, Table 3 and Figure 4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from counterfoil.analysis.captions import (
    INTERVALS,
    GenerationSettings,
    StoredCaptions,
    draw_captions,
    generator_inputs,
    open_stores,
    score_captions,
)
from counterfoil.analysis.word_accuracy import (
    THRESHOLD,
    Task,
    WordPredictions,
    concatenate,
    word_counts,
)
from counterfoil.core import distributed
from counterfoil.core.types import WordHead, WordHeadModel, WordSlots
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessedDataset
from counterfoil.evaluation.bootstrap import Share, shares
from counterfoil.evaluation.explain import (
    DOUBT_THRESHOLD,
    ExplainConfig,
    Explanation,
    describe_missing_heads,
    explain,
    explain_dataset,
    has_correction_head,
    has_doubt_head,
    text_processor,
)
from counterfoil.evaluation.explanation_page import DOUBT_NOTE, GAIN_NOTE, ExplainedCard
from counterfoil.evaluation.language_models import (
    CaptionLogProbs,
    CausalLM,
    Fluency,
    NGrams,
    fluency,
    ngram_log_probs,
)
from counterfoil.model import Model, load_model
from counterfoil.negatives.generation.generator import GeneratedItems, generate_items
from counterfoil.negatives.generation.inputs import (
    CandidateFilter,
    GeneratorInputs,
)
from counterfoil.negatives.generation.scoring import PairInputs, read_in_parts
from counterfoil.negatives.generation.tags import check_heads
from counterfoil.pipelines.publishing import (
    MISSING,
    Analysis,
    Scorer,
    check_page_path,
    describe_models,
    format_share,
    open_scorers,
    share_point,
)
from counterfoil.pipelines.run import DataSource
from counterfoil.report.figures import dot_plot, doubt_histograms, grouped_bars
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Figure,
    PageItem,
    TableBlock,
    TextPart,
    thumbnail,
)
from counterfoil.report.tables import format_number
from counterfoil.scoring.encode import evaluation_mode

# -- Section 4.4: words doubted and corrected -----------------------------------------------------

_TITLES: dict[Task, str] = {"doubt": "Words doubted", "correct": "Words corrected"}
_PAPER: dict[Task, str] = {"doubt": "66.5 %", "correct": "87.3 %"}


@final
@dataclass(frozen=True, slots=True)
class WordAccuracy:
    """Accuracy of words in one reading of the paper.

    Attributes:
        task: "doubt" or "correct".
        of: what is counted.
        every: over all generated captions.
        hardest: over the hardest of each caption.
        idle: percent that a model gets right that doubts and changes nothing.
    """

    task: Task
    of: str
    every: Share
    hardest: Share
    idle: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "task": self.task,
            "of": self.of,
            "all": self.every.to_dict(),
            "hardest": self.hardest.to_dict(),
            "idle": self.idle if self.every.count else None,
        }


def words(
    name: str,
    source: DataSource,
    out: Path,
    *,
    split: str = "test",
    anchors: int = 200,
    writer: str | None = None,
    settings: GenerationSettings | None = None,
    seed: int = 0,
) -> tuple[WordAccuracy, ...]:
    """Measure how well a model finds and corrects the wrong words of generated captions.

    Args:
        name: of the model.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        anchors: number of images, a caption of each.
        writer: another model that generates, with the same tokens; default the model itself.
        settings: how it generates.
        seed: of captions, generation and intervals.

    Returns:
        Every reading that the model has heads for.

    Raises:
        ValueError: the page exists, the model has neither a head for doubts nor one for
            corrections, it and the writer read different tokens, or model and data do not fit.
    """
    check_page_path(out)
    distributed.init()
    dataset, settings = source.split(split), settings or GenerationSettings()
    scorers = open_scorers([name] if writer in (None, name) else [name, writer or name])
    for scorer in scorers:
        scorer.check_reads()
    model, author = scorers[0].single(), scorers[-1].single()
    _check_same_tokens(model, author)
    rows = draw_captions(dataset, anchors, torch.Generator().manual_seed(seed))
    answers = _word_answers(model, author, dataset, rows, settings, seed)
    accuracies = tuple(_accuracies(answers, dataset.text_to_image, seed))
    by = f", written by {scorers[1].name}: {scorers[1].describe()}" if len(scorers) > 1 else ""
    Analysis(
        title="Words doubted and corrected",
        headline=_words_headline(accuracies),
        protocol=(
            f"{dataset.name} {dataset.split_name}: {len(answers.rows):,} captions written for "
            f"{len(rows):,} captions of different images ({settings.describe()}{by}); a word is "
            f"doubted that is right with {THRESHOLD:g} or less; {scorers[0].describe()}; sampling "
            f"seed {seed}; {INTERVALS}"
        ),
        seed=seed,
        figures=tuple(_word_figures(accuracies, answers.read)),
        tables=tuple(
            _word_table(accuracies, task)
            for task in _TITLES
            if any(one.task == task for one in accuracies)
        ),
        numbers={
            "model": name,
            "writer": writer or name,
            "readings": [one.to_dict() for one in accuracies],
        },
    ).publish(out)
    return accuracies


@final
@dataclass(frozen=True, slots=True, eq=False)
class _WordAnswers:
    """Answers of a model to W generated captions.

    Attributes:
        read: word by word.
        rows: (W,) rows of the captions they were made of.
        place: (W,) rank of each among those of its caption, the hardest first.
    """

    read: WordPredictions
    rows: Tensor
    place: Tensor


def _check_same_tokens(model: Model, author: Model) -> None:
    """Refuse a model that cannot judge the words of the other."""
    matcher = model.model
    if not (
        isinstance(matcher, WordHeadModel) and matcher.wants & {WordHead.DOUBT, WordHead.CORRECT}
    ):
        instead = (
            "name a model with heads for words, such as one trained with tags-dc/uniter-scenes"
        )
        check_heads(matcher, {WordHead.DOUBT, WordHead.CORRECT}, f"{model.name}, a", instead)
    ours, theirs = (one.processor.tokenizer for one in (model, author) if one.processor)
    assert ours is not None
    assert theirs is not None
    if ours.digest != theirs.digest:
        raise ValueError(
            f"{model.name} and {author.name} read different tokens, so that one cannot say which "
            "of the other's are wrong; let the model write itself"
        )


def _word_answers(
    model: Model,
    author: Model,
    dataset: ImageTextDataset,
    rows: Tensor,
    settings: GenerationSettings,
    seed: int,
) -> _WordAnswers:
    """Generate captions and let the model read them."""
    inputs, processor = generator_inputs(author, dataset), model.process(dataset)
    parts, answers = [], []
    for part in generate_items(
        author.model,
        inputs,
        rows,
        mask_refill=settings.mask_refill,
        candidate_filter=CandidateFilter(),
        keep=settings.keep,
        seed=seed,
    ):
        if len(part):
            parts.append(part)
            answers.append(_read_words(model, processor, inputs, part))
    if not parts:
        raise ValueError(
            f"nothing that may be false was written for {len(rows):,} captions of {dataset.name} "
            f"{dataset.split_name}; ask for more with --anchors"
        )
    made_of = torch.cat([part.rows for part in parts])
    return _WordAnswers(concatenate(answers), made_of, torch.cat([part.place for part in parts]))


def _read_words(
    model: Model, processor: ProcessedDataset, inputs: GeneratorInputs, items: GeneratedItems
) -> WordPredictions:
    """The model's answers to every word of some generated captions, on the CPU."""
    matcher, texts = model.model, items.texts
    assert isinstance(matcher, WordHeadModel)
    text_to_image, image = torch.unique(
        processor.dataset.text_to_image[items.rows], return_inverse=True
    )
    device = texts.values.device
    counted = texts.mask & ~inputs.banned.to(device)[items.original]
    pair, place = counted.nonzero(as_tuple=True)
    want = matcher.wants & {WordHead.DOUBT, WordHead.CORRECT}
    with evaluation_mode([matcher]):
        images = matcher.encode_images(processor.images(text_to_image).to(device))
        shown = PairInputs(images, texts, image.to(device))
        answers = read_in_parts(matcher, shown, want, WordSlots(pair, place))
    better = None
    if answers.correct is not None:
        best = answers.correct.argmax(1)
        better = texts.values.index_put((pair, place), best).cpu()
    return WordPredictions(
        original=items.original.cpu(),
        written=texts.values.cpu(),
        mask=texts.mask.cpu(),
        counted=counted.cpu(),
        slots=items.slots.cpu(),
        right=None if answers.doubt is None else answers.doubt.float().softmax(2)[..., 1].cpu(),
        better=better,
        words=None if texts.words is None else texts.words.cpu(),
    )


def _accuracies(answers: _WordAnswers, text_to_image: Tensor, seed: int) -> Iterator[WordAccuracy]:
    """All word_counts, each over all captions and over the hardest of each."""
    first = (answers.place == 0).nonzero().squeeze(1)
    every, hardest = word_counts(answers.read), word_counts(answers.read.rows(first))
    images = text_to_image[answers.rows]
    idle = shares([one.unchanged for one in every], images, scale=100, resamples=1)
    sides = [
        shares([one.correct for one in side], rows, scale=100, seed=seed)
        for side, rows in ((every, images), (hardest, images[first]))
    ]
    for one, lazy, over_all, over_hardest in zip(every, idle, *sides, strict=True):
        yield WordAccuracy(one.task, one.of, over_all, over_hardest, lazy.value)


def _word_figures(accuracies: Sequence[WordAccuracy], answers: WordPredictions) -> Iterator[Figure]:
    if answers.right is not None:
        same = answers.written == answers.original
        right = answers.right[answers.counted].numpy()
        yield doubt_histograms(right, same[answers.counted].numpy(), THRESHOLD)
    for task, title in _TITLES.items():
        points = [
            share_point(series, share, group=one.of, baseline=one.idle)
            for one in accuracies
            for series, share in (("all", one.every), ("hardest of each caption", one.hardest))
            if one.task == task
        ]
        if points:
            yield dot_plot(points, "right, %", task, f"{title}.", "nothing doubted")


def _word_table(accuracies: Sequence[WordAccuracy], task: Task) -> TableBlock:
    def cells(share: Share) -> tuple[str, str]:
        if not share.count:
            return MISSING, MISSING
        return f"{share.value:.1f}", f"{share.interval.low:.1f} to {share.interval.high:.1f}"

    rows = tuple(
        (one.of, f"{one.every.count:,}", *cells(one.every), *cells(one.hardest), f"{one.idle:.1f}")
        for one in accuracies
        if one.task == task
    )
    head = "of", "count", "right, %", "95 %", "hardest, %", "95 %", "nothing doubted, %"
    note = (
        "Tokens: without special ones unless stated. Hardest: of each caption, the generated one "
        "that its generator scores highest. Nothing doubted: accuracy if no word is doubted or "
        "changed.\n"
        f"The paper reports {_PAPER[task]} on Flickr30K, by a definition that it does not state."
    )
    return TableBlock(_TITLES[task], head, rows, note)


def _words_headline(accuracies: Sequence[WordAccuracy]) -> str:
    shown = {(one.task, one.of): one.every for one in accuracies}
    parts = []
    if ("doubt", "wrong tokens") in shown:
        wrong, right = (shown["doubt", f"{side} tokens"] for side in ("wrong", "right"))
        parts.append(f"{wrong.value:.1f} % of the wrong words are doubted")
        parts.append(f"{right.value:.1f} % of the right ones are not")
    if ("correct", "wrong tokens") in shown:
        parts.append(f"{shown['correct', 'wrong tokens'].value:.1f} % of the wrong are put right")
    return f"{', '.join(parts)}."


# -- Table 3: perplexity of generated captions ----------------------------------------------------

_TABLE_3 = (  # by GPT-2
    "captions 51.13, TAGS-DC, written 87.63, TAGS-DC, corrected 70.87, VSE-C, rules 292.76"
)
Speaks: TypeAlias = Callable[[Sequence[str]], CaptionLogProbs]


@final
@dataclass(frozen=True, slots=True, eq=False)
class FluencyLine:
    """Perplexities of a folder of generated captions.

    Attributes:
        name: of the folder.
        captions: that they were made of, each as often as one was made of it.
        written: the generated ones.
        corrected: these as a model corrects them; None without a corrector.
        kinds: the generated ones by kind of change, if there are several.
    """

    name: str
    captions: Fluency
    written: Fluency
    corrected: Fluency | None
    kinds: tuple[tuple[str, Fluency], ...]

    @property
    def lines(self) -> Iterator[tuple[str, Fluency]]:
        """Everything but the kinds, by name."""
        yield "captions", self.captions
        yield "written", self.written
        if self.corrected:
            yield "corrected", self.corrected

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "name": self.name,
            "captions": self.captions.to_dict(),
            "written": self.written.to_dict(),
            "corrected": self.corrected.to_dict() if self.corrected else None,
            "kinds": {kind: found.to_dict() for kind, found in self.kinds},
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Selected:
    """Rows of a store that are measured, and their corrections (empty without a corrector)."""

    stored: StoredCaptions
    rows: tuple[int, ...]
    corrected: tuple[str, ...]


def caption_fluency(
    folders: Sequence[Path],
    source: DataSource,
    out: Path,
    *,
    lm: str | None = None,
    each: int | None = None,
    corrector: str | None = None,
    seed: int = 0,
) -> tuple[FluencyLine, ...]:
    """Compare the perplexity of generated captions with that of their originals (Table 3).

    Args:
        folders: of captions generated for one split of the data.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        lm: folder or name of a causal language model; default n-grams of the training captions of
            all images but those that are measured.
        each: only so many of the first of each caption; default all.
        corrector: model that corrects the words it doubts, after which they are measured again.
        seed: of the intervals.

    Raises:
        ValueError: the page exists, data and captions do not fit, there is no such model, nothing
            is left to train one on, or the corrector corrects nothing.
    """
    check_page_path(out)
    distributed.init()
    stores = open_stores(folders, source)
    model = _open_corrector(corrector) if corrector else None
    selected = [_select(one, each, model) for one in stores]
    speaks, description = _causal(lm) if lm else _ngrams(selected, source)
    lines = tuple(_fluency_line(one, speaks, seed) for one in selected)
    some = f"the first {each} of each caption; " if each else ""
    if model:
        some += f"words that {corrector} doubts with {DOUBT_THRESHOLD:g} or more corrected; "
    dataset = stores[0].dataset
    points = [
        share_point(name, one.typical, group=line.name)
        for line in lines
        for name, one in line.lines
    ]
    Analysis(
        title="Fluency of written captions",
        headline=" ".join(map(_fluency_headline, lines)),
        protocol=(
            f"{dataset.name} {dataset.split_name}; {'; '.join(one.describe() for one in stores)}; "
            f"{some}"
            f"{description}; seed {seed}"
        ),
        seed=seed,
        figures=(grouped_bars(points, "perplexity", "fluency", "Lower is more fluent."),),
        tables=(_fluency_table(lines),),
        numbers={
            "seed": seed,
            "lm": lm,
            "corrector": corrector,
            "sets": [line.to_dict() for line in lines],
        },
    ).publish(out)
    return lines


def _open_corrector(name: str) -> Model:
    """Open a model that doubts words and corrects them."""
    model = load_model(name)
    if not (has_doubt_head(model.model) and has_correction_head(model.model)):
        raise ValueError(
            f"{describe_missing_heads(model)}; name one that has both with --corrector"
        )
    return model


def _select(one: StoredCaptions, each: int | None, model: Model | None) -> _Selected:
    """The first captions made of each caption, and their corrections."""
    counts: Counter[int] = Counter()
    rows = []
    for row, text in enumerate(one.texts):
        counts[text] += 1
        if each is None or counts[text] <= each:
            rows.append(row)
    if model is None:
        return _Selected(one, tuple(rows), ())
    written = replace(
        one.dataset,
        texts=[one.foils[row].foil for row in rows],
        text_ids=[f"written {row}" for row in rows],
        text_to_image=torch.tensor([one.images[row] for row in rows]),
        text_features=None,
    )
    explained = [explanation for _, explanation in explain_dataset(model, written, ExplainConfig())]
    corrected = tuple(one.corrected.text if one.corrected else one.caption for one in explained)
    return _Selected(one, tuple(rows), corrected)


def _causal(name: str) -> tuple[Speaks, str]:
    model = CausalLM(name, distributed.device())
    begin = f"behind {model.begins}" if model.begins else "first tokens not counted"
    return model.log_probs, f"language model {name}, captions {begin}"


def _ngrams(selected: Sequence[_Selected], source: DataSource) -> tuple[Speaks, str]:
    """N-grams of training captions, none of a measured image or equal to a measured caption."""
    train = source.split("train")
    foils = [foil for one in selected for foil in one.stored.foils]
    images = {foil.image for foil in foils}
    measured = {text for foil in foils for text in (foil.caption, foil.foil)}
    measured |= {text for one in selected for text in one.corrected}
    text_to_image = [
        train.image_ids[row] if row >= 0 else "" for row in train.text_to_image.tolist()
    ]
    texts = [
        text
        for text, image in zip(train.texts, text_to_image, strict=True)
        if image not in images and text not in measured
    ]
    if not texts:
        raise ValueError(
            "all training captions are of pictures that are measured, and a language model must "
            "not know these; name captions written for another split, or a model with --lm"
        )
    model = NGrams.of(texts)
    return (
        lambda captions: ngram_log_probs(model, captions),
        f"language model: {model.order}-grams of {len(texts):,} training captions, "
        f"{len(train.texts) - len(texts):,} of measured pictures or like measured captions left "
        "out",
    )


def _fluency_line(one: _Selected, speaks: Speaks, seed: int) -> FluencyLine:
    foils = [one.stored.foils[row] for row in one.rows]
    images = torch.tensor([one.stored.images[row] for row in one.rows])
    texts = [*(foil.caption for foil in foils), *(foil.foil for foil in foils), *one.corrected]
    spoken, count = speaks(texts), len(foils)
    old, new = (spoken.rows(torch.arange(count) + start) for start in (0, count))
    corrected = None
    if one.corrected:
        last = spoken.rows(torch.arange(2 * count, 3 * count))
        corrected = fluency(last, images, made_of=old, seed=seed)
    kinds = list(dict.fromkeys(foil.kind for foil in foils))
    parts = []
    for kind in kinds if len(kinds) > 1 else ():
        at = torch.tensor([place for place, foil in enumerate(foils) if foil.kind == kind])
        part = fluency(new.rows(at), images[at], made_of=old.rows(at), seed=seed)
        parts.append((kind, part))
    return FluencyLine(
        one.stored.name,
        fluency(old, images, seed=seed),
        fluency(new, images, made_of=old, seed=seed),
        corrected,
        tuple(parts),
    )


def _fluency_table(lines: Sequence[FluencyLine]) -> TableBlock:
    rows = []
    for line in lines:
        for name, one in (*line.lines, *line.kinds):
            values = (format_share(s, ",.1f") for s in (one.typical, one.mean, one.whole))
            times = format_share(one.times, ".2f") if one.times else ""
            rows.append((f"{line.name}: {name}", f"{one.captions:,}", *values, times))
    head = (
        "",
        "captions",
        "perplexity",
        "mean of captions",
        "of all tokens",
        "times the captions",
    )
    note = (
        "Lower is more fluent. Perplexity: exp of the mean, over captions, of the mean negative "
        "log probability of a token; beside it the mean of the captions' own perplexities, and "
        "that of all tokens together. Times: the first, divided by that of the captions that these "
        "were made of. In brackets 95 % intervals: pictures drawn anew with all their captions, "
        f"1,000 times.\nTable 3 of TAGS-DC has, by GPT-2 and with details not reported: {_TABLE_3}."
    )
    return TableBlock("Perplexity", head, tuple(rows), note)


def _fluency_headline(line: FluencyLine) -> str:
    assert line.written.times is not None
    text = (
        f"{line.name}: captions have perplexity {line.captions.typical.value:,.1f}, what was "
        f"written {line.written.typical.value:,.1f}, {format_share(line.written.times, '.2f')} "
        "times as much"
    )
    if line.corrected:
        text += f"; corrected {line.corrected.typical.value:,.1f}"
    return f"{text}."


# -- Figure 4: captions on which two models differ ------------------------------------------------

_KINDS = "caption", "written", "corrected"
ScorePair: TypeAlias = tuple[float, float]


@final
@dataclass(frozen=True, slots=True)
class CasesSettings:
    """Settings of `cases`.

    Attributes:
        count: cases of each kind.
        sample: generated captions that both models score, at most.
        threshold: doubt from which a word counts as wrong.
        seed: of the draws.
    """

    count: int = 3
    sample: int = 2000
    threshold: float = DOUBT_THRESHOLD
    seed: int = 0


@final
@dataclass(frozen=True, slots=True)
class ModelCase:
    """A generated caption on which two models differ.

    Attributes:
        image: id of the image.
        picture: ``data:`` address of the image, if there are pictures.
        caption: that it was made of.
        written: the generated caption, explained.
        scores: of both models, for the caption, the generated caption and the correction, if any.
    """

    image: str
    picture: str | None
    caption: str
    written: Explanation
    scores: tuple[ScorePair, ScorePair, ScorePair | None]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        scores = (list(pair) if pair else None for pair in self.scores)
        return {
            "image": self.image,
            "caption": self.caption,
            "written": self.written.to_dict(),
            "scores": dict(zip(_KINDS, scores, strict=True)),
        }


@final
@dataclass(frozen=True, slots=True)
class CaseGroup:
    """Cases that were chosen alike; the note says how."""

    title: str
    note: str
    cases: tuple[ModelCase, ...]


@final
@dataclass(frozen=True, slots=True)
class CaseChoice:
    """Rows of generated captions, no two of one image.

    Attributes:
        second: the second model prefers the original most, compared with the first.
        first: the first model prefers the original most, compared with the second.
        random: drawn from the rest.
    """

    second: tuple[int, ...]
    first: tuple[int, ...]
    random: tuple[int, ...]


def margin_differences(first: Tensor, second: Tensor) -> Tensor:
    """(N,) double, second model's margins less the first's, each in units of their own spread.

    Args:
        first: (N,) score of the original less that of the generated caption, by the first model.
        second: (N,) the same by the second.
    """

    def scaled(margins: Tensor) -> Tensor:
        margins = margins.double()
        spread = margins.std(correction=0)
        return margins / spread if spread > 0 else margins

    return scaled(second) - scaled(first)


def choose_cases(gaps: Tensor, images: Tensor, count: int, *, seed: int = 0) -> CaseChoice:
    """Choose the largest differences in favour of each model, and some at random.

    Args:
        gaps: (N,) see `margin_differences`.
        images: (N,) long, image of each.
        count: of each kind, at most.
        seed: of the draw.
    """
    used: set[int] = set()

    def first(rows: Iterable[int]) -> tuple[int, ...]:
        """The first rows of images that were not used."""
        chosen: list[int] = []
        for row in rows:
            image = int(images[row])
            if len(chosen) < count and image not in used:
                used.add(image)
                chosen.append(row)
        return tuple(chosen)

    down = gaps.argsort(descending=True, stable=True).tolist()
    up = gaps.argsort(stable=True).tolist()
    shuffled = torch.randperm(len(gaps), generator=torch.Generator().manual_seed(seed)).tolist()
    return CaseChoice(
        first(row for row in down if gaps[row] > 0),
        first(row for row in up if gaps[row] < 0),
        first(shuffled),
    )


def cases(
    names: Sequence[str], folder: Path, source: DataSource, settings: CasesSettings, out: Path
) -> tuple[CaseGroup, ...]:
    """Show captions, generated captions and corrections with the scores of two models (Figure 4).

    Args:
        names: of the two models; joined by ``+``, an ensemble. The one that doubts words explains;
            if both do, the second.
        folder: of generated captions.
        source: the data.
        settings: what to show.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: not two models, the page exists, or models, captions and data do not fit.
    """
    if len(names) != 2:
        raise ValueError(f"{len(names)} models are given, but the cases of two are shown")
    check_page_path(out)
    distributed.init()
    (stored,) = open_stores([folder], source)
    scorers = open_scorers(names)
    for model in (model for scorer in scorers for model in scorer.models):
        text_processor(model)
    explains = _explaining_model(scorers)
    rng = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(stored.foils), generator=rng)
    rows = order[: settings.sample].sort().values.tolist()
    groups = _case_groups(stored, rows, scorers, explains, settings)
    first, second = (scorer.name for scorer in scorers)
    by = next(s.name for s in scorers if any(one is explains for one in s.models))
    parts = [
        f"{stored.dataset.name} {stored.dataset.split_name}; {stored.describe()}, {len(rows):,} "
        f"of them "
        "scored",
        describe_models(scorers),
        f"words by {by}",
        describe_missing_heads(explains),
        "largest differences between the models' margins, caption less written, each divided by "
        "their standard deviation; one case a picture",
        f"seed {settings.seed}",
    ]
    note = DOUBT_NOTE if has_doubt_head(explains.model) else GAIN_NOTE
    Analysis(
        title=f"Cases of {first} and {second}",
        headline=f"Scores of {first} and {second} for captions, what was written of them, and the "
        "correction.",
        protocol="; ".join(part for part in parts if part),
        seed=settings.seed,
        tables=tuple(
            TableBlock(
                group.title,
                ("", "sentence", first, second),
                tuple(row for case in group.cases for row in _case_rows(case, settings)),
                group.note,
            )
            for group in groups
        ),
        sections=tuple(
            CardSection(
                f"{group.title}: words",
                note,
                tuple(_case_card(case, (first, second), settings) for case in group.cases),
            )
            for group in groups
        ),
        numbers={
            "models": [first, second],
            "seed": settings.seed,
            "groups": [
                {"title": group.title, "cases": [case.to_dict() for case in group.cases]}
                for group in groups
            ],
        },
    ).publish(out)
    return groups


def _explaining_model(scorers: Sequence[Scorer]) -> Model:
    single = [scorer.models[0] for scorer in reversed(scorers) if len(scorer.models) == 1]
    if not single:
        raise ValueError("two ensembles are given, and an ensemble cannot explain; give one model")
    return next((model for model in single if has_doubt_head(model.model)), single[0])


def _case_groups(
    stored: StoredCaptions,
    rows: Sequence[int],
    scorers: Sequence[Scorer],
    model: Model,
    settings: CasesSettings,
) -> tuple[CaseGroup, ...]:
    dataset, foils = stored.dataset, [stored.foils[row] for row in rows]
    images = torch.tensor([stored.images[row] for row in rows])
    sentences = [*(foil.caption for foil in foils), *(foil.foil for foil in foils)]
    both = [  # of each model, (2, N) scores of originals and generated captions
        score_captions(s, dataset, images.repeat(2), sentences, scaled=False).view(2, -1)
        for s in scorers
    ]
    gaps = margin_differences(*(scores[0] - scores[1] for scores in both))
    chosen = choose_cases(gaps, images, settings.count, seed=settings.seed)
    first, second = (scorer.name for scorer in scorers)
    groups = []
    for title, some, note in (
        (f"For {second}", chosen.second, f"Margin of {second} largest, beside {first}."),
        (f"For {first}", chosen.first, f"Margin of {first} largest, beside {second}."),
        ("At random", chosen.random, "Drawn from all others."),
    ):
        made = []
        for at in some:
            foil, image = foils[at], int(images[at])
            explained = explain(
                model, foil.image, foil.foil, dataset=dataset, threshold=settings.threshold
            )
            better = None
            if explained.corrected:
                texts, here = [explained.corrected.text], images[at : at + 1]
                one, two = (score_captions(s, dataset, here, texts, scaled=False) for s in scorers)
                better = float(one[0]), float(two[0])
            pairs = [(float(both[0][side, at]), float(both[1][side, at])) for side in (0, 1)]
            picture = thumbnail(dataset.pictures.open(image)) if dataset.pictures else None
            made.append(
                ModelCase(
                    foil.image, picture, foil.caption, explained, (pairs[0], pairs[1], better)
                )
            )
        if made:
            groups.append(CaseGroup(title, note, tuple(made)))
    return tuple(groups)


def _case_rows(case: ModelCase, settings: CasesSettings) -> Iterator[tuple[str, ...]]:
    card = ExplainedCard(PageItem(case.image), case.written, settings.threshold)
    marked = "".join(f"{p.text} [{p.number}]" if p.marked else p.text for p in card.parts)
    corrected = case.written.corrected.text if case.written.corrected else ""
    for kind, text, pair in zip(
        _KINDS, (case.caption, marked, corrected), case.scores, strict=True
    ):
        if pair:
            yield kind, text, *(format_number(score, ".3f") for score in pair)


def _case_card(case: ModelCase, models: tuple[str, str], settings: CasesSettings) -> ExampleCard:
    card = ExplainedCard(PageItem(case.image), case.written, settings.threshold)
    written = tuple(TextPart(p.text, p.tint, p.number, p.marked) for p in card.parts)
    items = [PageItem(case.caption), PageItem(case.written.caption, parts=written)]
    if case.written.corrected:
        new = tuple(TextPart(text, inserted=inserted) for text, inserted in card.new)
        items.append(PageItem(case.written.corrected.text, parts=new))
    columns = []
    for kind, item, pair in zip(_KINDS, items, case.scores):
        scores = zip(models, pair or ())
        note = ", ".join(f"{name} {format_number(score, '.3f')}" for name, score in scores)
        columns.append(CardColumn(kind, note, (item,)))
    return ExampleCard(PageItem(case.image, case.picture), case.image, tuple(columns))
