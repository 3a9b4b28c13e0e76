"""Word-level explanations: which words of a caption do not match the image, and corrections.

A model with word heads (TAGS-DC) predicts how likely each word is wrong and which word belongs
there. For any other model, `WordExchanges` doubt the words that others in their place score better
than. Without them the change of the score when a word is left out is reported, which explains the
score, not the word: where two words are wrong, leaving out either may change little.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final, overload

import torch
from torch import Tensor

from counterfoil.core.console import Lines, progress
from counterfoil.core.io import check_file, write_json
from counterfoil.core.resumable import PartsFolder, check_begun, is_begun, write_facts
from counterfoil.core.types import Embeddings, WordHead, WordHeadModel
from counterfoil.data.caption_edits import TextChange
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.tokenizers import Tokenizer, pack_tokens, word_spans
from counterfoil.evaluation.caption_check import CaptionCheck, Verdict, hedged, sentence
from counterfoil.evaluation.exchanges import (
    Exchange,
    TextReader,
    WordExchanges,
    best_exchanges,
    encode_rows,
    score_captions,
)
from counterfoil.evaluation.read_image import read_image, text_processor
from counterfoil.evaluation.similarity_maps import SimilarityMaps, maps_of, without_maps
from counterfoil.evaluation.word_heads import (
    ImageSentences,
    RankedReplacements,
    SentenceWord,
    WordHeads,
    WordSpan,
    group_tokens,
    is_word,
    rank_replacements,
    replace_words,
    spell,
)
from counterfoil.models.base import RetrievalModel

if TYPE_CHECKING:
    from PIL import Image

    from counterfoil.model import Model


DOUBT_THRESHOLD = 0.5  # TAGS-DC, section 4.4
CAPTION_BATCH = 256  # captions explained together, and per part of a checkpoint


@final
@dataclass(frozen=True, slots=True)
class WordCorrection:
    """A word that may replace another."""

    text: str  # spelled for its place in the caption
    chance: float  # probability, in 0..1; of exchanges the doubt that this one alone would give


@final
@dataclass(frozen=True, slots=True, repr=False)
class ExplainedWord:
    """A word of a caption.

    Attributes:
        text: the word.
        start: its first character in the caption.
        stop: the character after its last.
        doubt: how likely it is wrong, in 0..1; None without a doubt head and exchanges.
        gain: score of the caption without the word, or with the best exchange of it, less its
            score; None with a doubt head.
        kept: probability of the word itself under the correction head; None unless doubted.
        corrections: other words, the most likely first.
    """

    text: str
    start: int
    stop: int
    doubt: float | None = None
    gain: float | None = None
    kept: float | None = None
    corrections: tuple[WordCorrection, ...] = ()

    def __repr__(self) -> str:
        number = f" {self.gain:+.3f}" if self.gain is not None else ""
        if self.doubt is not None:
            number = f" {100 * self.doubt:.0f} %"
        instead = ", ".join(f"{other.text!r}" for other in self.corrections)
        return f"{self.text!r}{number}" + (f" (instead {instead})" if instead else "")


@final
@dataclass(frozen=True, slots=True)
class CorrectedCaption:
    """A caption with its doubted words replaced."""

    text: str  # the new caption
    score: float  # of the new caption with the image
    changes: tuple[tuple[int, int], ...]  # start and stop of each new word


@final
@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The match of a caption and an image, as a whole and word by word.

    Attributes:
        caption: the caption.
        score: of the caption with the image.
        words: from left to right.
        corrected: the corrected caption; None where no word was replaced.
        unread: first character beyond the model's limit; None where it reads the whole caption.
        verdict: whether the caption fits; "cannot tell" without a `CaptionCheck`.
        mistakes: share of such verdicts that is expected to be wrong, at most, where every second
            caption is right; None if it cannot be told.
    """

    caption: str
    score: float
    words: tuple[ExplainedWord, ...]
    corrected: CorrectedCaption | None = None
    unread: int | None = None
    verdict: Verdict = "cannot tell"
    mistakes: float | None = None
    maps: SimilarityMaps | None = None

    def __repr__(self) -> str:
        lines = [f"{self.caption!r}: {self.answer}, score {self.score:.3f}"]
        words = ", ".join(map(repr, self.words))
        what = "doubt of each word" if self.doubts else "score without each word, less the score"
        lines += textwrap.wrap(f"{what}: {words}", 98) if self.words else []
        if self.unread is not None:
            lines.append(f"not read, beyond the model's limit: {self.caption[self.unread :]!r}")
        if self.corrected is not None:
            lines.append(f"corrected: {self.corrected.text!r}, score {self.corrected.score:.3f}")
        return "\n  ".join(lines)

    @property
    def answer(self) -> str:
        """The verdict, with *probably* where more than a tenth of such answers may be wrong."""
        return hedged(self.verdict, self.mistakes)

    @property
    def told(self) -> str:
        """The answer as a sentence."""
        return sentence(self.verdict, self.mistakes)

    @property
    def doubts(self) -> bool:
        """True if the words have doubts."""
        return any(word.doubt is not None for word in self.words)

    @property
    def doubt(self) -> float | None:
        """The greatest doubt of all words; None where there is none."""
        return max((word.doubt for word in self.words if word.doubt is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain values for JSON, with the verdict as a sentence."""
        plain = asdict(self)
        if self.maps is None:
            del plain["maps"]
        return {**plain, "told": self.told}


@final
@dataclass(frozen=True, slots=True)
class ExplainConfig:
    """What an explanation contains: when a word counts as wrong, and how many corrections."""

    threshold: float = DOUBT_THRESHOLD  # doubt from which a word counts as wrong
    corrections: int = 3  # shown per doubted word
    exchanges: WordExchanges | None = None  # in place of heads
    check: CaptionCheck | None = None  # of the caption as a whole


@overload
def explain(
    model: Model,
    image: str | Path | Image.Image,
    caption: str,
    *,
    dataset: ImageTextDataset | None = None,
    threshold: float = DOUBT_THRESHOLD,
    corrections: int = 3,
    exchanges: WordExchanges | None = None,
    check: CaptionCheck | None = None,
    maps: bool = True,
) -> Explanation: ...
@overload
def explain(
    model: Model,
    image: str | Path | Image.Image,
    caption: list[str] | tuple[str, ...],
    *,
    dataset: ImageTextDataset | None = None,
    threshold: float = DOUBT_THRESHOLD,
    corrections: int = 3,
    exchanges: WordExchanges | None = None,
    check: CaptionCheck | None = None,
    maps: bool = True,
) -> list[Explanation]: ...
def explain(
    model: Model,
    image: str | Path | Image.Image,
    caption: str | list[str] | tuple[str, ...],
    *,
    dataset: ImageTextDataset | None = None,
    threshold: float = DOUBT_THRESHOLD,
    corrections: int = 3,
    exchanges: WordExchanges | None = None,
    check: CaptionCheck | None = None,
    maps: bool = True,
) -> Explanation | list[Explanation]:
    """Say whether captions fit an image, and explain it word by word.

    Args:
        model: an opened model.
        image: a picture or its path; the id of an image where a data set is given.
        caption: a caption, or several of the same image.
        dataset: holds the image.
        threshold: doubt from which a word counts as wrong.
        corrections: proposed for each doubted word, at most.
        exchanges: of `fit_exchanges`; words are doubted by them, not by heads.
        check: of `fit_caption_check` with this model; without one, every verdict is "cannot tell".
        maps: say where in the picture, see `similarity_maps`, if the model has maps.

    Returns:
        An explanation, or a list of them for several captions.

    Raises:
        ValueError: the model cannot read captions or this kind of image, there is no such image, a
            caption is empty or too long, an output is not a number, or the check is of another
            model.
    """
    captions = [caption] if isinstance(caption, str) else list(caption)
    from counterfoil.model import as_model

    model = as_model(model)
    processor = text_processor(model)
    if not all(text.strip() for text in captions):
        raise ValueError("the caption is empty; describe the picture")
    read = read_image(model, image, dataset)
    if check is not None:
        check.check_model(model)
    config = ExplainConfig(threshold, corrections, exchanges, check)
    if isinstance(caption, str):
        processor.warn_of_caption(caption)
    else:
        processor.warn_of_captions(captions)
    same_image = torch.zeros(len(captions), dtype=torch.long)
    explanations = explain_pairs(model, read.encoded, captions, same_image, config)
    for explanation in explanations:
        if explanation.unread is not None:
            raise ValueError(
                f"the caption is too long for {model.name}, which reads it up to "
                f"{explanation.caption[: explanation.unread][-30:]!r}; leave out what follows"
            )
    if maps and not without_maps(model):
        mapped = maps_of(model, read, captions)
        explanations = [
            replace(one, maps=own) for one, own in zip(explanations, mapped, strict=True)
        ]
    return explanations[0] if isinstance(caption, str) else Lines(explanations)


def explain_dataset(
    model: Model,
    dataset: ImageTextDataset,
    config: ExplainConfig,
    checkpoint: ExplanationCheckpoint | None = None,
) -> Iterator[tuple[int, Explanation]]:
    """Explain every caption that has an image; yields caption rows in order, with explanations.

    Captions that are too long are explained as far as the model reads them. Parts that the
    checkpoint holds are not explained again.

    Raises:
        ValueError: as `explain` does, but for long captions.
    """
    processor = text_processor(model)
    text_to_image = dataset.relation.text_to_image
    rows = dataset.relation.owned
    if not len(rows):
        raise ValueError(
            f"{dataset.name} ({dataset.split_name}) has no caption; there is nothing to do"
        )
    for row in rows.tolist():
        if not dataset.texts[row].strip():
            raise ValueError(
                f"caption {dataset.text_ids[row]!r} is empty; give it words or drop it"
            )
    with progress("captions explained", len(rows)) as advance:
        for number, part in enumerate(torch.split(rows, CAPTION_BATCH)):
            explanations = None if checkpoint is None else checkpoint.load(number)
            if explanations is None:
                # each image of the part is encoded once
                image_rows, image = text_to_image[part].unique(return_inverse=True)  # type: ignore[no-untyped-call]
                images = encode_rows(model, dataset, image_rows)
                captions = [dataset.texts[row] for row in part.tolist()]
                processor.warn_of_captions(captions)
                explanations = explain_pairs(model, images, captions, image, config)
                if checkpoint is not None:
                    checkpoint.save(number, explanations)
            yield from zip(part.tolist(), explanations, strict=True)
            advance(len(part))


def explain_pairs(
    model: Model, images: Embeddings, captions: Sequence[str], image: Tensor, config: ExplainConfig
) -> list[Explanation]:
    """Explain N captions by exchanges if there are, else by word heads, or by occlusion.

    `image` (N,) is the row of each caption's image.
    """
    explanations = _explain_words(model, images, captions, image, config)
    if (check := config.check) is None:
        return explanations
    return list(map(check.applied, explanations))


def _explain_words(
    model: Model, images: Embeddings, captions: Sequence[str], image: Tensor, config: ExplainConfig
) -> list[Explanation]:
    processor, rows = text_processor(model), image.cpu()
    assert processor.tokenizer is not None
    if config.exchanges is None and has_doubt_head(model.model):
        return explain_by_heads(
            model.model, processor.tokenizer, images, captions, rows, config=config
        )
    read = processor.process_variants
    if config.exchanges is None:
        explanations = explain_by_occlusion(model.model, read, images, captions, rows)
    else:
        explanations = explain_by_exchange(model.model, read, images, captions, rows, config=config)
    ends = _truncations(processor.tokenizer, captions)
    return [replace(each, unread=end) for each, end in zip(explanations, ends, strict=True)]


def has_doubt_head(model: RetrievalModel) -> bool:
    """Return True if a model predicts how likely a word is wrong."""
    return isinstance(model, WordHeadModel) and WordHead.DOUBT in model.word_heads


def has_correction_head(model: RetrievalModel) -> bool:
    """Return True if a model predicts which word belongs in the place of another."""
    return isinstance(model, WordHeadModel) and WordHead.CORRECT in model.word_heads


def describe_missing_heads(model: Model) -> str:
    """The word heads that a model lacks, in a clause; "" where it has both."""
    heads = {"doubts": has_doubt_head, "corrects": has_correction_head}
    missing = [name for name, has_head in heads.items() if not has_head(model.model)]
    if not missing:
        return ""
    return f"{model.name} has no head that {' or '.join(missing)} words, as TAGS-DC trains them"


def _truncation(text: str, words: Sequence[WordSpan]) -> int | None:
    """The character after the last word that was read; None where nothing was cut."""
    stop = words[-1].stop if words else 0
    return stop if is_word(text[stop:]) else None


def _truncations(tokenizer: Tokenizer, captions: Sequence[str]) -> list[int | None]:
    """End of each truncated caption; None for all where the tokenizer reports no spans."""
    try:
        read = [group_tokens(spans, None) for spans in tokenizer.spans(captions)]
    except ValueError:
        return [None] * len(captions)
    return list(map(_truncation, captions, read))


def explain_by_occlusion(
    model: RetrievalModel,
    read: TextReader,
    images: Embeddings,
    captions: Sequence[str],
    rows: Tensor,
) -> list[Explanation]:
    """Explain captions by the gain in score when each word is left out; for any model.

    Args are those of `explain_by_heads`; `read` tokenizes captions for the model.

    Raises:
        ValueError: a score is not a number.
    """
    words = [_removable_words(text) for text in captions]
    # the whole caption, then the caption without each word
    variants = [
        variant
        for text, own in zip(captions, words, strict=True)
        for variant in (text, *(without_word(text, *word) for word in own))
    ]
    counts = torch.tensor([1 + len(own) for own in words], dtype=torch.long)
    scores = score_captions(model, read, images, variants, rows.repeat_interleave(counts))
    explanations, remaining = [], iter(scores)
    for text, own in zip(captions, words, strict=True):
        score, *reduced = islice(remaining, 1 + len(own))
        _check_number(text, score)
        gains = tuple(
            ExplainedWord(text[start:stop], start, stop, gain=other - score)
            for (start, stop), other in zip(own, reduced, strict=True)
        )
        explanations.append(Explanation(text, score, gains))
    return explanations


def explain_by_exchange(
    model: RetrievalModel,
    read: TextReader,
    images: Embeddings,
    captions: Sequence[str],
    rows: Tensor,
    *,
    config: ExplainConfig,
) -> list[Explanation]:
    """Explain captions by exchanges of their words; for any model.

    Words without candidates and function words have no doubt. The corrected caption is that of the
    exchange that gains most, if its word is doubted.

    Args are those of `explain_by_heads`; `read` tokenizes captions for the model, and the exchanges
    are those of the configuration.

    Raises:
        ValueError: a score is not a number.
    """
    exchanges = config.exchanges
    assert exchanges is not None
    results = best_exchanges(model, read, images, captions, rows, exchanges.similar)
    explanations = []
    for caption, (score, words) in zip(captions, results, strict=True):
        _check_number(caption, score, *(best.gain for _, (best, *_) in words))
        exchanges_of_word = {word.start: options for word, options in words}
        explained = []
        for start, stop in word_spans(caption):
            word = ExplainedWord(caption[start:stop], start, stop)
            if options := exchanges_of_word.get(start):
                word = _exchanged_word(word, options, exchanges, config)
            if is_word(word.text):
                explained.append(word)
        best = max((options[0] for _, options in words), key=lambda one: one.gain, default=None)
        corrected = None
        if best is not None and exchanges.doubt(best.gain) >= config.threshold:
            corrected = CorrectedCaption(
                best.variant.caption, score + best.gain, best.variant.spans
            )
        explanations.append(Explanation(caption, score, tuple(explained), corrected))
    return explanations


def _exchanged_word(
    word: ExplainedWord,
    options: Sequence[Exchange],
    exchanges: WordExchanges,
    config: ExplainConfig,
) -> ExplainedWord:
    doubts = [exchanges.doubt(option.gain) for option in options]
    better = [
        WordCorrection(option.variant.word, doubt)
        for option, doubt in zip(options, doubts, strict=True)
        if doubt >= config.threshold
    ]
    return replace(
        word,
        doubt=doubts[0],
        gain=options[0].gain,
        corrections=tuple(better[: config.corrections]),
    )


def without_word(text: str, start: int, stop: int) -> str:
    """A caption without one of its words.

    >>> without_word("A red circle.", 2, 5)
    'A circle.'
    """
    before, after = text[:start], text[stop:]
    return before.rstrip() + after if before[-1:].isspace() else before + after.lstrip()


def _removable_words(text: str) -> list[tuple[int, int]]:
    """Words with a letter or digit; none where there is only one, as no caption would be left."""
    words = [word for word in word_spans(text) if is_word(text[slice(*word)])]
    return words if len(words) > 1 else []


def _check_number(caption: str, *values: float) -> None:
    if any(map(math.isnan, values)):
        raise ValueError(
            f"the score of {caption!r} is not a number; look for NaN in the features, or train "
            "again with a lower learning rate"
        )


@final
@dataclass(frozen=True, slots=True)
class _Draft:
    """A caption while it is corrected."""

    text: str
    words: list[WordSpan]
    score: float
    doubts: list[float]  # of the words
    new: dict[int, str] = field(default_factory=dict)  # new words, by number of the word

    def old(self, word: int) -> str:
        return self.text[self.words[word].start : self.words[word].stop]

    def most_doubted(self, doubts: Sequence[float], threshold: float) -> int | None:
        """The most doubted original word; None where none is doubted."""
        words = [n for n, doubt in enumerate(doubts) if doubt >= threshold and n not in self.new]
        return max(words, key=lambda word: doubts[word], default=None)

    def changes(self) -> list[TextChange]:
        return [
            TextChange(self.words[word].start, self.words[word].stop, new)
            for word, new in sorted(self.new.items())
            if new != self.old(word)
        ]


# replacements by row of the caption and number of the word
_Ranked: TypeAlias = "dict[tuple[int, int], RankedReplacements]"


def explain_by_heads(
    model: RetrievalModel,
    tokenizer: Tokenizer,
    images: Embeddings,
    captions: Sequence[str],
    rows: Tensor,
    *,
    config: ExplainConfig,
) -> list[Explanation]:
    """Explain captions by a doubt head and, where there is one, a correction head.

    The doubt of a word is the greatest doubt of its tokens, since in training one wrong token
    makes a word wrong. Punctuation is not a word. Corrections of a word leave all others as they
    are. The corrected caption is made greedily: the most doubted word is replaced by its best
    correction, the sentence is read again, and so on until no original word is doubted.

    Args:
        model: a model with a doubt head.
        tokenizer: of the model.
        images: encoded.
        captions: N, none of them empty.
        rows: (N,) row of the image of each caption, on the CPU.
        config: threshold, and corrections of each doubted word.

    Raises:
        ValueError: an output of the model is not a number.
    """
    if not captions:
        return []
    heads = WordHeads(model, tokenizer, images)
    sentences, words = _tokenize(tokenizer, captions, rows)
    scores, token_doubts = heads.doubts(sentences)
    drafts = []
    for row, (text, score) in enumerate(zip(captions, scores.tolist(), strict=True)):
        _check_number(text, score, *token_doubts[row][sentences.mask[row]].tolist())
        drafts.append(_Draft(text, words[row], score, _word_doubts(words[row], token_doubts[row])))
    ranked: _Ranked = {}
    if has_correction_head(model):
        doubted = [
            (row, word)
            for row, draft in enumerate(drafts)
            for word, doubt in enumerate(draft.doubts)
            if doubt >= config.threshold
        ]
        # twice as many as shown: replacements that differ only in case are merged
        ranked = _rank(heads, sentences, drafts, doubted, 2 * config.corrections + 2)
        _correct(heads, sentences, drafts, ranked, config.threshold)
    corrected = _score_corrected(heads, drafts, rows)
    return [
        Explanation(
            draft.text,
            draft.score,
            tuple(
                _explained_word(tokenizer, draft, word, ranked.get((row, word)), config.corrections)
                for word in range(len(draft.words))
            ),
            corrected.get(row),
            _truncation(draft.text, draft.words),
        )
        for row, draft in enumerate(drafts)
    ]


def _tokenize(
    tokenizer: Tokenizer, captions: Sequence[str], rows: Tensor
) -> tuple[ImageSentences, list[list[WordSpan]]]:
    reading = tokenizer.read(captions)
    ids, mask = pack_tokens(reading, tokenizer.pad).take(torch.arange(len(captions)))
    words = []
    for row, (text, spans) in enumerate(zip(captions, tokenizer.spans(captions), strict=True)):
        groups = group_tokens(spans, None if reading.words is None else reading.words[row])
        words.append([word for word in groups if is_word(text[word.start : word.stop])])
    return ImageSentences(ids, mask, rows), words


def _word_doubts(words: Sequence[WordSpan], token_doubts: Tensor) -> list[float]:
    doubts = token_doubts.tolist()
    return [max(doubts[token] for token in word.tokens) for word in words]


def _rank(
    heads: WordHeads,
    sentences: ImageSentences,
    drafts: Sequence[_Draft],
    targets: Sequence[tuple[int, int]],
    beam: int,
) -> _Ranked:
    """Replacements of (row, word) targets, which are ordered by row."""
    words = [SentenceWord(row, drafts[row].words[word].tokens) for row, word in targets]
    return dict(zip(targets, rank_replacements(heads, sentences, words, beam), strict=True))


def _options(
    tokenizer: Tokenizer, old: str, replacements: RankedReplacements, count: int
) -> list[tuple[str, tuple[int, ...], float]]:
    """The best replacements that differ from the word and one another: text, ids, probability."""
    texts = {old.casefold()}
    options: list[tuple[str, tuple[int, ...], float]] = []
    for replacement in replacements.best:
        text = spell(tokenizer.tokens(replacement.ids), old)
        if text.casefold() not in texts and len(options) < count:
            options.append((text, replacement.ids, math.exp(replacement.log_prob)))
        texts.add(text.casefold())
    return options


def _correct(
    heads: WordHeads,
    sentences: ImageSentences,
    drafts: Sequence[_Draft],
    ranked: _Ranked,
    threshold: float,
) -> None:
    """Replace doubted words; in each round the most doubted one of every caption."""
    ids = sentences.ids.clone()
    doubts = {row: draft.doubts for row, draft in enumerate(drafts)}
    while worst := {
        row: word
        for row, own in doubts.items()
        if (word := drafts[row].most_doubted(own, threshold)) is not None
    }:
        if any(drafts[row].new for row in worst):  # after the first round: other words have changed
            ranked = _rank(heads, sentences.with_ids(ids), drafts, sorted(worst.items()), 4)
        for row, word in worst.items():
            draft = drafts[row]
            best = _options(heads.tokenizer, draft.old(word), ranked[row, word], 1)
            # a word without a replacement stays, and is not tried again
            draft.new[word] = best[0][0] if best else draft.old(word)
            if best:
                ids[row, list(draft.words[word].tokens)] = torch.tensor(best[0][1])
        rows = torch.tensor(sorted(worst))
        _, token_doubts = heads.doubts(sentences.with_ids(ids).rows(rows))
        doubts = {
            row: _word_doubts(drafts[row].words, own)
            for row, own in zip(rows.tolist(), token_doubts, strict=True)
        }


def _score_corrected(
    heads: WordHeads, drafts: Sequence[_Draft], rows: Tensor
) -> dict[int, CorrectedCaption]:
    """The corrected captions by row, tokenized and scored again."""
    edits = {
        row: replace_words(draft.text, changes)
        for row, draft in enumerate(drafts)
        if (changes := draft.changes())
    }
    if not edits:
        return {}
    sentences, _ = _tokenize(heads.tokenizer, [text for text, _ in edits.values()], rows[[*edits]])
    scores = heads.scores(sentences).tolist()
    return {
        row: CorrectedCaption(text, score, spans)
        for (row, (text, spans)), score in zip(edits.items(), scores, strict=True)
    }


def _explained_word(
    tokenizer: Tokenizer,
    draft: _Draft,
    word: int,
    replacements: RankedReplacements | None,
    count: int,
) -> ExplainedWord:
    span, old = draft.words[word], draft.old(word)
    explained = ExplainedWord(old, span.start, span.stop, doubt=draft.doubts[word])
    if replacements is None:
        return explained
    options = _options(tokenizer, old, replacements, count)
    return replace(
        explained,
        kept=math.exp(replacements.own),
        corrections=tuple(WordCorrection(text, chance) for text, _, chance in options),
    )


@final
class ExplanationCheckpoint:
    """Finished parts of a pass over a data set, on disk until the output file is complete."""

    def __init__(self, output: Path, facts: Mapping[str, Any], *, resume: bool) -> None:
        """Start a pass, or resume it.

        Args:
            output: the file that will hold all explanations; the parts are in a folder beside it.
            facts: plain values that the explanations depend on.
            resume: allow parts of an interrupted pass, if they depend on the same facts.
        """
        self.parts = PartsFolder(output.with_name(f"{output.name}.partial"), suffix=".json")
        self._facts = dict(facts)
        if is_begun(self.parts.folder) and not resume:
            raise ValueError(
                f"{self.parts.folder} holds explanations that were stopped; add --resume to "
                "continue them, or delete it"
            )
        check_begun(self.parts.folder, self._facts)

    def load(self, number: int) -> list[Explanation] | None:
        """A finished part; None where it is missing."""
        from pydantic import TypeAdapter, ValidationError

        path = self.parts.path(number)
        if not path.exists():
            return None
        try:
            check_file(path)
            return TypeAdapter(list[Explanation]).validate_json(path.read_bytes(), strict=True)
        except (OSError, ValidationError) as error:
            reason = str(error) if isinstance(error, OSError) else error.errors()[0]["msg"]
            raise ValueError(f"{path} holds no explanations: {reason}; delete it") from error

    def save(self, number: int, explanations: Sequence[Explanation]) -> None:
        """Write the explanations of a part of the data set."""
        # the facts come with the first part: a pass that is refused leaves nothing behind
        write_facts(self.parts.folder, self._facts)
        write_json(self.parts.path(number), list(map(asdict, explanations)))
