"""Figures of TAGS-DC (https://arxiv.org/abs/2111.03349): section 4.4, Table 3 and Figure 4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, final

import torch
import typer
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.cli.options import Models, OneModel, Seed, Split
from counterfoil.core import distributed
from counterfoil.core.types import WordHead, WordHeadModel, WordSlots
from counterfoil.data.processor import ProcessedDataset
from counterfoil.evaluation.bootstrap import Counted, Share, shares
from counterfoil.evaluation.exchanges import encode_rows
from counterfoil.evaluation.explain import (
    DOUBT_THRESHOLD,
    ExplainConfig,
    describe_missing_heads,
    explain_dataset,
    explain_pairs,
    has_correction_head,
    has_doubt_head,
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
from counterfoil.evaluation.read_image import text_processor
from counterfoil.model import Model, load_model
from counterfoil.papers.analyses import Anchors, GenerationOptions, Stores, analysis
from counterfoil.papers.tags.captions import (
    INTERVALS,
    StoredCaptions,
    caption_generator,
    draw_captions,
    first_of_images,
    open_stores,
    score_captions,
)
from counterfoil.papers.tags.generation import check_heads
from counterfoil.papers.tags.generator import GeneratedItems
from counterfoil.papers.tags.inputs import GeneratorInputs
from counterfoil.papers.tags.scoring import PairInputs, read_in_parts
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.scorers import Scorer, describe_models, open_scorers
from counterfoil.report.analysis import Analysis, Column, cells, table
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
# TAGS-DC reports 66.5 % for word discrimination with a threshold of 0.5 and 87.3 % for word
# correction, but not over which words. So every plausible definition is measured, each beside the
# accuracy of a model that trusts every word and changes none.

Task = Literal["doubt", "correct"]
THRESHOLD = 0.5
_TITLES: dict[Task, str] = {"doubt": "Words doubted", "correct": "Words corrected"}
_PAPER: dict[Task, str] = {"doubt": "66.5 %", "correct": "87.3 %"}


@final
@dataclass(frozen=True, slots=True, eq=False)
class WordPredictions:
    """Predictions of a model for the tokens of W generated captions, all (W, L)."""

    original: Tensor  # long, tokens of the captions they were generated from
    written: Tensor  # long, tokens of the generated captions
    mask: Tensor  # bool, real tokens
    counted: Tensor  # bool, real tokens without the special ones: those that definitions count
    slots: Tensor  # bool, tokens masked during generation
    right: Tensor | None  # probability of being the original's token; None without a doubt head
    better: Tensor | None  # long, predicted tokens; None without a correction head
    words: Tensor | None = None  # long, word of each token; None where every token is a word

    def rows(self, index: Tensor) -> WordPredictions:
        """A subset of the captions."""
        tensors: list[Any] = [getattr(self, name) for name in self.__slots__]
        subset: list[Any] = [None if tensor is None else tensor[index] for tensor in tensors]
        return WordPredictions(*subset)


def concatenate(parts: Sequence[WordPredictions]) -> WordPredictions:
    """Concatenate captions; shorter ones are padded with masked tokens."""
    longest = max(part.original.shape[1] for part in parts)

    def stacked(name: str) -> Any:
        tensors = [getattr(part, name) for part in parts]
        if any(tensor is None for tensor in tensors):
            return None
        value = -1 if name == "words" else 0
        return torch.cat([pad(t, (0, longest - t.shape[1]), value=value) for t in tensors])

    return WordPredictions(*map(stacked, WordPredictions.__slots__))


class WordCounts(NamedTuple):
    """Correct words of each of W captions, under one definition of the accuracy.

    `of` says which units count; `unchanged` is of a model that doubts and changes nothing.
    """

    task: Task
    of: str
    correct: Counted
    unchanged: Counted


def word_counts(predictions: WordPredictions) -> tuple[WordCounts, ...]:
    """Accuracies under every definition that the model's heads allow.

    A token is doubted if its `right` is at most `THRESHOLD`, and corrected if the original one has
    the highest probability.
    """
    p, every = predictions, predictions.counted
    same = p.written == p.original
    wrong, right, hidden = every & ~same, every & same, every & p.slots
    wrong_words, words = _any_token(p, wrong), _any_token(p, every)

    def whole(tokens: Tensor) -> Tensor:  # (W, 1), captions of which all tokens are among these
        return (tokens | ~every).all(1, keepdim=True)

    captions = torch.ones_like(whole(same))
    # name, units that are right, units right if nothing is doubted or changed, units that count
    readings: dict[Task, list[tuple[str, Tensor, Tensor, Tensor]]] = {"doubt": [], "correct": []}
    if p.right is not None:
        doubted = p.right <= THRESHOLD
        hit, word_hit = doubted != same, _any_token(p, every & doubted) == wrong_words
        readings["doubt"] = [
            ("tokens, special ones too", hit, same, p.mask),
            ("tokens", hit, same, every),
            ("wrong tokens", hit, same, wrong),
            ("right tokens", hit, same, right),
            ("tokens that were hidden", hit, same, hidden),
            ("words", word_hit, ~wrong_words, words),
            ("wrong words", word_hit, ~wrong_words, words & wrong_words),
            ("right words", word_hit, ~wrong_words, words & ~wrong_words),
            # shares of two columns are averaged, not pooled
            ("tokens, mean of wrong and right", hit, same, torch.stack([wrong, right], 2)),
            ("captions, every word", whole(hit), whole(same), captions),
            ("captions with any doubt", ~whole(~doubted), ~captions, captions),
        ]
    if p.better is not None:
        hit = p.better == p.original
        readings["correct"] = [
            ("tokens that were hidden", hit, same, hidden),
            ("wrong tokens", hit, same, wrong),
            ("hidden tokens that are right", hit, same, hidden & same),
            ("tokens", hit, same, every),
            ("wrong words", ~_any_token(p, wrong & ~hit), ~wrong_words, wrong_words),
            ("captions, only wrong words replaced", whole(same | hit), whole(same), captions),
        ]
        if p.right is not None:
            after = p.written.where(p.right > THRESHOLD, p.better) == p.original
            name = "captions, doubted words replaced"
            readings["correct"].append((name, whole(after), whole(same), captions))
    return tuple(
        WordCounts(task, of, _correct(hit, among), _correct(unchanged, among))
        for task, some in readings.items()
        for of, hit, unchanged, among in some
    )


def _correct(right: Tensor, among: Tensor) -> Counted:
    """(W,) correct units among some, (W, n) or in several columns (W, n, C)."""
    right = right if among.dim() == right.dim() else right.unsqueeze(2)
    return Counted((right & among).sum(1).double(), among.sum(1).double())


def _any_token(predictions: WordPredictions, tokens: Tensor) -> Tensor:
    """(W, L) bool, True in column n where word n of the caption has one of these tokens."""
    if predictions.words is None:
        return tokens
    place = predictions.words.clamp(min=0)  # special tokens (-1) are masked out below
    return (
        torch.zeros_like(tokens, dtype=torch.int8).scatter_reduce(
            1, place, (tokens & (predictions.words >= 0)).to(torch.int8), "amax"
        )
        > 0
    )


class _Reading(NamedTuple):
    """Accuracy of words in one reading of the paper."""

    task: Task
    of: str
    all: Share  # over all generated captions
    hardest: Share  # over the hardest of each caption
    idle: float | None  # percent right without any doubt or change; None if nothing counts

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return self._asdict()


@analysis(
    "words",
    "counterfoil papers analyse words runs/tags-dc/uniter-scenes/tags-dc "
    "--data scenes:features=regions --output words.html",
)
def words(
    model: OneModel,
    source: DataSource,
    generation: GenerationOptions,
    split: Split = "test",
    anchors: Anchors = 200,
    writer: Annotated[
        str | None, typer.Option(help="Model that generates captions; default the model itself.")
    ] = None,
    seed: Seed = 0,
) -> Analysis:
    """Measure how well a model finds and corrects wrong words of generated captions (section 4.4).

    A writer reads the same tokens. Every reading is measured that the model has heads for.
    """
    dataset = source.split(split)
    scorers = open_scorers([model] if writer in (None, model) else [model, writer or model])
    for scorer in scorers:
        scorer.check_reads()
    reader, author = scorers[0].single(), scorers[-1].single()
    _check_same_tokens(reader, author)
    rows = draw_captions(dataset, anchors, seed)
    generator = caption_generator(author, dataset, generation, seed)
    processor = reader.process(dataset)
    parts, answers = [], []
    for part in generator.items(rows):
        if len(part):
            parts.append(part)
            answers.append(_read_words(reader, processor, generator.inputs, part))
    if not parts:
        raise ValueError(
            f"nothing that may be false was written for {len(rows):,} captions of {dataset.name} "
            f"{dataset.split_name}; ask for more with --anchors"
        )
    read = concatenate(answers)
    images = dataset.text_to_image[torch.cat([part.rows for part in parts])]
    first = (torch.cat([part.place for part in parts]) == 0).nonzero().squeeze(1)
    readings = _readings(read, images, first, seed)
    by_task = {task: [one for one in readings if one.task == task] for task in _TITLES}
    columns: dict[str, Column] = {
        "of": "of",
        "count": lambda one: one.all.count,
        "right, %": "all",
        "hardest, %": "hardest",
        "nothing doubted, %": "idle",
    }
    note = (
        "Tokens: without special ones unless stated. Hardest: of each caption, the generated "
        "one that its generator scores highest. Nothing doubted: accuracy if no word is "
        "doubted or changed. In brackets 95 % intervals.\n"
        "The paper reports {} on Flickr30K, by a definition that it does not state."
    )
    by = f", written by {scorers[1].name}: {scorers[1].describe()}" if len(scorers) > 1 else ""
    return Analysis(
        title="Words doubted and corrected",
        headline=_words_headline(readings),
        protocol=(
            f"{dataset.name} {dataset.split_name}: {len(images):,} captions written for "
            f"{len(rows):,} captions of different images ({generation.describe()}{by}); a word is "
            f"doubted that is right with {THRESHOLD:g} or less; {scorers[0].describe()}; sampling "
            f"seed {seed}; {INTERVALS}"
        ),
        seed=seed,
        figures=tuple(_word_figures(by_task, read)),
        tables=tuple(
            table(_TITLES[task], some, columns, note.format(_PAPER[task]))
            for task, some in by_task.items()
            if some
        ),
        numbers={"model": model, "writer": writer or model, "readings": readings},
    )


def _check_same_tokens(model: Model, author: Model) -> None:
    """Refuse a model that cannot judge the words of the other."""
    matcher = model.model
    if not (
        isinstance(matcher, WordHeadModel)
        and matcher.word_heads & {WordHead.DOUBT, WordHead.CORRECT}
    ):
        instead = "name a model with heads for words, such as one trained by the recipe tags-dc"
        check_heads(matcher, {WordHead.DOUBT, WordHead.CORRECT}, f"{model.name}, a", instead)
    ours, theirs = (reader.processor.tokenizer for reader in (model, author) if reader.processor)
    assert ours is not None
    assert theirs is not None
    if ours.digest != theirs.digest:
        raise ValueError(
            f"{model.name} and {author.name} read different tokens, so that one cannot say which "
            "of the other's are wrong; let the model write itself"
        )


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
    want = matcher.word_heads & {WordHead.DOUBT, WordHead.CORRECT}
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


def _readings(read: WordPredictions, images: Tensor, first: Tensor, seed: int) -> list[_Reading]:
    """All `word_counts`, each over all captions and over the hardest of each, rows `first`."""
    every, hardest = word_counts(read), word_counts(read.rows(first))
    idle = shares([counts.unchanged for counts in every], images, scale=100, resamples=1)
    sides = [
        shares([counts.correct for counts in side], rows, scale=100, seed=seed)
        for side, rows in ((every, images), (hardest, images[first]))
    ]
    return [
        _Reading(counts.task, counts.of, over_all, over_hardest, lazy.value if lazy.count else None)
        for counts, lazy, over_all, over_hardest in zip(every, idle, *sides, strict=True)
    ]


def _word_figures(
    by_task: Mapping[Task, Sequence[_Reading]], read: WordPredictions
) -> Iterator[Figure]:
    if read.right is not None:
        same = read.written == read.original
        right = read.right[read.counted].numpy()
        yield doubt_histograms(right, same[read.counted].numpy(), THRESHOLD)
    for task, readings in by_task.items():
        points = [
            share.point(series, group=one.of, baseline=one.idle)
            for one in readings
            for series, share in (("all", one.all), ("hardest of each caption", one.hardest))
        ]
        if points:
            yield dot_plot(points, "right, %", task, f"{_TITLES[task]}.", "nothing doubted")


def _words_headline(readings: Sequence[_Reading]) -> str:
    shown = {(reading.task, reading.of): reading.all for reading in readings}
    parts = []
    if ("doubt", "wrong tokens") in shown:
        wrong, right = (shown["doubt", f"{side} tokens"] for side in ("wrong", "right"))
        parts.append(f"{wrong.value:.1f} % of the wrong words are doubted")
        parts.append(f"{right.value:.1f} % of the right ones are not")
    if ("correct", "wrong tokens") in shown:
        parts.append(f"{shown['correct', 'wrong tokens'].value:.1f} % of the wrong are put right")
    return f"{', '.join(parts)}."


# -- Table 3: perplexity of generated captions ----------------------------------------------------

LanguageModel: TypeAlias = Callable[[Sequence[str]], CaptionLogProbs]


@analysis(
    "fluency",
    "counterfoil papers analyse fluency written/ rules/ --data scenes --output fluency.html",
    "counterfoil papers analyse fluency written/ --each 1 --lm gpt2 "
    "--data flickr8k/ --output f.html",
    "counterfoil papers analyse fluency written/ --corrector runs/tags-dc/uniter-scenes/tags-dc "
    "--data scenes:features=regions --output fluency.html",
)
def caption_fluency(
    stores: Stores,
    source: DataSource,
    lm: Annotated[
        str | None,
        typer.Option(
            help="Causal language model, folder or HF name; default n-grams trained here."
        ),
    ] = None,
    each: Annotated[
        int | None,
        typer.Option(min=1, help="Generated captions of each caption, the first; default all."),
    ] = None,
    corrector: Annotated[
        str | None, typer.Option(help="Model that corrects the captions, to measure them again.")
    ] = None,
    seed: Seed = 0,
) -> Analysis:
    """Compare the perplexity of generated captions with that of their originals (Table 3)."""
    opened = open_stores(stores, source)
    model = load_model(corrector) if corrector else None
    if model and not (has_doubt_head(model.model) and has_correction_head(model.model)):
        raise ValueError(
            f"{describe_missing_heads(model)}; name one that has both with --corrector"
        )
    selected = [_first_of_each(store, each) for store in opened]
    corrected = [
        _corrections(store, rows, model) if model else [] for store, rows in zip(opened, selected)
    ]
    language_model, description = _causal(lm) if lm else _ngrams(opened, corrected, source)
    lines = {
        store.name: _fluency_line(store, rows, better, language_model, seed)
        for store, rows, better in zip(opened, selected, corrected)
    }
    subset_note = f"the first {each} of each caption; " if each else ""
    if model:
        subset_note += f"words that {corrector} doubts with {DOUBT_THRESHOLD:g} or more corrected; "
    dataset = opened[0].dataset
    points = [
        part_fluency.typical.point(part, group=name)
        for name, (parts, _) in lines.items()
        for part, part_fluency in parts.items()
    ]
    columns: dict[str, Column] = {
        "": lambda one: one[0],
        "captions": lambda one: one[1].captions,
        "perplexity": lambda one: (one[1].typical, ",.1f"),
        "mean of captions": lambda one: (one[1].mean, ",.1f"),
        "of all tokens": lambda one: (one[1].whole, ",.1f"),
        "times the captions": lambda one: (one[1].times, ".2f") if one[1].times else "",
    }
    note = (
        "Lower is more fluent. Perplexity: exp of the mean, over captions, of the mean negative "
        "log probability of a token; beside it the mean of the captions' own perplexities, and "
        "that of all tokens together. Times: the first, divided by that of the captions that these "
        "were made of. In brackets 95 % intervals: pictures drawn anew with all their captions, "
        "1,000 times.\nTable 3 of TAGS-DC has, by GPT-2 and with details not reported: captions "
        "51.13, TAGS-DC, written 87.63, TAGS-DC, corrected 70.87, VSE-C, rules 292.76."
    )
    records = [
        (f"{line}: {name}", part)
        for line, parts in lines.items()
        for some in parts
        for name, part in some.items()
    ]
    return Analysis(
        title="Fluency of written captions",
        headline=" ".join(_fluency_headline(name, parts) for name, (parts, _) in lines.items()),
        protocol=(
            f"{dataset.name} {dataset.split_name}; {'; '.join(one.describe() for one in opened)}; "
            f"{subset_note}{description}; seed {seed}"
        ),
        seed=seed,
        figures=(grouped_bars(points, "perplexity", "fluency", "Lower is more fluent."),),
        tables=(table("Perplexity", records, columns, note),),
        numbers={
            "seed": seed,
            "lm": lm,
            "corrector": corrector,
            "sets": [
                {"name": name, "corrected": None, **parts, "kinds": kinds}
                for name, (parts, kinds) in lines.items()
            ],
        },
    )


def _first_of_each(store: StoredCaptions, each: int | None) -> list[int]:
    """Rows of the first captions made of each caption."""
    counts: Counter[int] = Counter()
    rows = []
    for row, text in enumerate(store.texts):
        counts[text] += 1
        if each is None or counts[text] <= each:
            rows.append(row)
    return rows


def _corrections(store: StoredCaptions, rows: Sequence[int], model: Model) -> list[str]:
    """Stored captions as a model corrects them."""
    written = replace(
        store.dataset,
        texts=[store.foils[row].foil for row in rows],
        text_ids=[f"written {row}" for row in rows],
        text_to_image=torch.tensor([store.images[row] for row in rows]),
        text_features=None,
        dependencies=None,
    )
    explained = (explanation for _, explanation in explain_dataset(model, written, ExplainConfig()))
    return [
        explanation.corrected.text if explanation.corrected else explanation.caption
        for explanation in explained
    ]


def _causal(name: str) -> tuple[LanguageModel, str]:
    model = CausalLM(name, distributed.device())
    begin = f"behind {model.begins}" if model.begins else "first tokens not counted"
    return model.log_probs, f"language model {name}, captions {begin}"


def _ngrams(
    stores: Sequence[StoredCaptions], corrected: Sequence[Sequence[str]], source: DataSource
) -> tuple[LanguageModel, str]:
    """N-grams of training captions, none of a measured image or equal to a measured caption."""
    train = source.split("train")
    foils = [foil for store in stores for foil in store.foils]
    images = {foil.image for foil in foils}
    measured = {text for foil in foils for text in (foil.caption, foil.foil)}
    measured |= {text for some in corrected for text in some}
    own = [train.image_ids[row] if row >= 0 else "" for row in train.text_to_image.tolist()]
    texts = [
        text
        for text, image in zip(train.texts, own, strict=True)
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


def _fluency_line(
    store: StoredCaptions,
    rows: Sequence[int],
    corrected: Sequence[str],
    language_model: LanguageModel,
    seed: int,
) -> tuple[dict[str, Fluency], dict[str, Fluency]]:
    """Perplexities of captions, of what was written of them, and of its corrections, if any.

    The captions count as often as one was made of them. The second part has the written ones by
    kind of change, if there are several.
    """
    foils = [store.foils[row] for row in rows]
    images = torch.tensor([store.images[row] for row in rows])
    texts = [*(foil.caption for foil in foils), *(foil.foil for foil in foils), *corrected]
    log_probs, every = language_model(texts), torch.arange(len(foils))
    old, new = log_probs.rows(every), log_probs.rows(every + len(foils))
    parts = {
        "captions": fluency(old, images, seed=seed),
        "written": fluency(new, images, made_of=old, seed=seed),
    }
    if corrected:
        better = log_probs.rows(every + 2 * len(foils))
        parts["corrected"] = fluency(better, images, made_of=old, seed=seed)
    kinds = {}
    if len({foil.kind for foil in foils}) > 1:
        for kind in dict.fromkeys(foil.kind for foil in foils):
            at = torch.tensor([place for place, foil in enumerate(foils) if foil.kind == kind])
            kinds[kind] = fluency(new.rows(at), images[at], made_of=old.rows(at), seed=seed)
    return parts, kinds


def _fluency_headline(name: str, parts: Mapping[str, Fluency]) -> str:
    text = (
        f"{name}: captions have perplexity {parts['captions'].typical.value:,.1f}, what was "
        f"written {parts['written'].typical.value:,.1f}, "
        f"{cells((parts['written'].times, '.2f'))[0]} times as much"
    )
    if "corrected" in parts:
        text += f"; corrected {parts['corrected'].typical.value:,.1f}"
    return f"{text}."


# -- Figure 4: captions on which two models differ ------------------------------------------------


def margin_differences(first: Tensor, second: Tensor) -> Tensor:
    """(N,) double, second model's margins less the first's, each in units of their own spread.

    Margins are (N,) scores of the originals less those of the generated captions.
    """

    def scaled(margins: Tensor) -> Tensor:
        margins = margins.double()
        spread = margins.std(correction=0)
        return margins / spread if spread > 0 else margins

    return scaled(second) - scaled(first)


def choose_cases(
    gaps: Tensor, images: Tensor, count: int, *, seed: int = 0
) -> tuple[list[int], list[int], list[int]]:
    """Choose the largest differences in favour of each model, and some at random.

    `gaps` are (N,) `margin_differences`, `images` the (N,) images; `count` of each kind at most.

    Returns:
        Rows, no two of one image: where the second model prefers the original most compared with
        the first; where the first does; drawn from the rest.
    """
    used: set[int] = set()
    of, rng = images.tolist(), torch.Generator().manual_seed(seed)
    down = gaps.argsort(descending=True, stable=True).tolist()
    up = gaps.argsort(stable=True).tolist()
    shuffled = torch.randperm(len(gaps), generator=rng).tolist()
    return (
        first_of_images((row for row in down if gaps[row] > 0), of, count, used),
        first_of_images((row for row in up if gaps[row] < 0), of, count, used),
        first_of_images(shuffled, of, count, used),
    )


@analysis(
    "cases",
    "counterfoil papers analyse cases runs/tags/hard runs/tags-dc/tags-dc --written written/ "
    "--data scenes:features=regions --output cases.html",
)
def cases(
    models: Models,
    written: Annotated[Path, typer.Option(help="Folder of generated captions.")],
    source: DataSource,
    count: Annotated[int, typer.Option(min=1, help="Cases of each kind.")] = 3,
    sample: Annotated[int, typer.Option(min=1, help="Captions to score, at most.")] = 2000,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Doubt from which a word counts as wrong.")
    ] = DOUBT_THRESHOLD,
    seed: Seed = 0,
) -> Analysis:
    """Show captions, their generated foils and corrections, with scores of two models (Figure 4).

    The model that doubts words explains; if both do, the second.
    """
    if len(models) != 2:
        raise ValueError(f"{len(models)} models are given, but the cases of two are shown")
    (stored,) = open_stores([written], source)
    scorers = open_scorers(models)
    for model in (model for scorer in scorers for model in scorer.models):
        text_processor(model)
    explainer = _choose_explainer(scorers)
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(stored.foils), generator=rng)[:sample].sort().values.tolist()
    foils = [stored.foils[row] for row in rows]
    images = torch.tensor([stored.images[row] for row in rows])
    sentences = [*(foil.caption for foil in foils), *(foil.foil for foil in foils)]
    both = [  # of each model, (2, N) scores of originals and generated captions
        score_captions(s, stored.dataset, images.repeat(2), sentences, scaled=False).view(2, -1)
        for s in scorers
    ]
    gaps = margin_differences(*(scores[0] - scores[1] for scores in both))
    first, second = (scorer.name for scorer in scorers)
    word_note = DOUBT_NOTE if has_doubt_head(explainer.model) else GAIN_NOTE
    tables, sections, groups = [], [], []
    for (title, note), chosen in zip(
        (
            (f"For {second}", f"Margin of {second} largest, beside {first}."),
            (f"For {first}", f"Margin of {first} largest, beside {second}."),
            ("At random", "Drawn from all others."),
        ),
        choose_cases(gaps, images, count, seed=seed),
    ):
        shown = [
            _case(stored, rows[at], explainer, scorers, threshold, *(s[:, at] for s in both))
            for at in chosen
        ]
        if shown:
            lines = tuple(line for case in shown for line in case.lines)
            tables.append(TableBlock(title, ("", "sentence", first, second), lines, note))
            cards = tuple(case.card for case in shown)
            sections.append(CardSection(f"{title}: words", word_note, cards))
            groups.append({"title": title, "cases": [case.numbers for case in shown]})
    by = next(s.name for s in scorers if any(model is explainer for model in s.models))
    parts = [
        f"{stored.dataset.name} {stored.dataset.split_name}; {stored.describe()}, {len(rows):,} "
        "of them scored",
        describe_models(scorers),
        f"words by {by}",
        describe_missing_heads(explainer),
        "largest differences between the models' margins, caption less written, each divided by "
        "their standard deviation; one case a picture",
        f"seed {seed}",
    ]
    return Analysis(
        title=f"Cases of {first} and {second}",
        headline=f"Scores of {first} and {second} for captions, what was written of them, and the "
        "correction.",
        protocol="; ".join(part for part in parts if part),
        seed=seed,
        tables=tuple(tables),
        sections=tuple(sections),
        numbers={"models": [first, second], "seed": seed, "groups": groups},
    )


def _choose_explainer(scorers: Sequence[Scorer]) -> Model:
    """Return the single model that doubts words, the last of several; else the last single one."""
    single = [scorer.models[0] for scorer in reversed(scorers) if len(scorer.models) == 1]
    if not single:
        raise ValueError("two ensembles are given, and an ensemble cannot explain; give one model")
    return next((model for model in single if has_doubt_head(model.model)), single[0])


class _Case(NamedTuple):
    """A generated caption on which two models differ."""

    lines: list[tuple[str, ...]]  # of a table: kind, sentence, scores of both models
    card: ExampleCard  # the same with the words marked
    numbers: dict[str, Any]


def _case(
    stored: StoredCaptions,
    row: int,
    model: Model,
    scorers: Sequence[Scorer],
    threshold: float,
    *both: Tensor,
) -> _Case:
    """Explain a generated caption of which both models' scores of the two captions are known."""
    dataset, foil, image = stored.dataset, stored.foils[row], stored.images[row]
    # a foil that is too long is explained as far as the model reads it
    encoded, rows = encode_rows(model, dataset, torch.tensor([image])), torch.zeros(1).long()
    [explained] = explain_pairs(model, encoded, [foil.foil], rows, ExplainConfig(threshold))
    words = ExplainedCard(PageItem(foil.image), explained, threshold)
    parts = words.parts
    marked = "".join(f"{part.text} [{part.number}]" if part.marked else part.text for part in parts)
    sentences = [
        ("caption", foil.caption, PageItem(foil.caption)),
        ("written", marked, PageItem(foil.foil, parts=parts)),
    ]
    pairs = list(zip(*(scores.tolist() for scores in both)))
    if explained.corrected:
        text, here = explained.corrected.text, torch.tensor([image])
        new = tuple(TextPart(part, inserted=inserted) for part, inserted in words.new)
        sentences.append(("corrected", text, PageItem(text, parts=new)))
        pairs.append(
            tuple(score_captions(s, dataset, here, [text], scaled=False).item() for s in scorers)
        )
    lines, columns = [], []
    for (kind, sentence, item), pair in zip(sentences, pairs):
        scores = [format_number(score, ".3f") for score in pair]
        lines.append((kind, sentence, *scores))
        note = ", ".join(f"{scorer.name} {score}" for scorer, score in zip(scorers, scores))
        if kind == "written" and explained.unread is not None:
            note += f"; explained up to {foil.foil[: explained.unread][-30:]!r}"
        columns.append(CardColumn(kind, note, (item,)))
    picture = thumbnail(dataset.pictures.open(image)) if dataset.pictures else None
    numbers = {
        "image": foil.image,
        "caption": foil.caption,
        "written": explained,
        "scores": {"corrected": None, **{line[0]: pair for line, pair in zip(lines, pairs)}},
    }
    return _Case(
        lines, ExampleCard(PageItem(foil.image, picture), foil.image, tuple(columns)), numbers
    )
