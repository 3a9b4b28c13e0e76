"""Doubt by better alternatives, for any model: words that others in their place score better than.

Each content word of a caption is exchanged for words that captions use in the same places, and the
model scores every new caption with the image. In a true caption the best of some twenty exchanges
gains something too: that gain is noise, and it is measured on captions of a data set. A word is
doubted where an exchange gains more than that. Function words are never exchanged.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.console import progress
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.caption_edits import TextChange
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.phrases import TaggedWord, tag_words
from counterfoil.evaluation.word_heads import replace_words, spell
from counterfoil.models.base import RetrievalModel
from counterfoil.scoring.encode import evaluation_mode

if TYPE_CHECKING:
    from counterfoil.model import Model

EXCHANGES = "exchanges.json"  # within an index
CONTENT = frozenset({"noun", "attribute", "adjective", "verb", "number"})
SCORE_BATCH = 256  # captions scored together
CAPTION_BATCH = 16  # captions whose words are exchanged together
FALSE_DOUBTS = 0.05  # share of the words of true captions that may be doubted
MIN_WORDS = 50  # of true captions, to measure noise on

TextReader: TypeAlias = "Callable[[Sequence[str]], ModalityBatch]"


class Variant(NamedTuple):
    """A caption with one word exchanged."""

    word: str  # the new word, spelled for its place
    caption: str
    spans: tuple[tuple[int, int], ...]  # of new words in it: an adapted article, then the word


@final
@dataclass(frozen=True, slots=True)
class Exchange:
    """A variant of a caption, and what it gains."""

    variant: Variant
    gain: float  # its score, less that of the caption


@final
class ExchangesManifest(ArtifactManifest):
    """What is stored of `WordExchanges`, whose fields these are."""

    similar: dict[str, tuple[str, ...]]
    noise: float
    slope: float
    prior: float
    words: int
    model: str


EXCHANGED = ArtifactFormat(
    name="exchanges of words",
    manifest=ExchangesManifest,
    remedy="make them again with `counterfoil index --output INDEX --calibrate DATA --words`",
    file=EXCHANGES,
)


@final
@dataclass(frozen=True, slots=True)
class WordExchanges:
    """Words that may take each other's place, and how much exchanges gain in true captions.

    Attributes:
        similar: of each content word, in lower case, the words used most like it.
        noise: gain that the best exchange of a word exceeds in 5 % of the words of true captions.
        slope: of the doubt's logit, per unit of gain.
        prior: share of wrong words at which the doubt is the probability that a word is wrong.
        words: words of true captions that the noise was measured on.
        model: identity of the model.
    """

    similar: Mapping[str, tuple[str, ...]]
    noise: float
    slope: float
    prior: float
    words: int
    model: str

    def doubt(self, gain: float) -> float:
        """Doubt in a word whose best exchange gains so much; 0.5 at the noise."""
        return 1 / (1 + math.exp(-max(-700.0, min(700.0, self.slope * (gain - self.noise)))))

    def write(self, folder: Path) -> None:
        """Write it into an index."""
        EXCHANGED.write_record(folder, self)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Those of an index; None for none.

        Raises:
            ValueError: the file is damaged or of a later version.
        """
        return EXCHANGED.read_record(folder, cls)


def similar_words(
    captions: Sequence[str], *, count: int = 20, least: int = 3
) -> dict[str, tuple[str, ...]]:
    """Words that captions use in the same places.

    The places of a word are the words before and after it. Words of one part of speech are compared
    by the cosine of the square roots of their counts, so that frequent places do not drown others.

    Args:
        captions: of a data set.
        count: most words of each.
        least: occurrences that a word needs.

    >>> captions = ["A red circle.", "A blue circle.", "A red square.", "A blue square."]
    >>> similar_words(captions, least=2)["red"]
    ('blue',)
    """
    from scipy.sparse import csr_matrix

    places: dict[tuple[str, str], Counter[tuple[int, str]]] = defaultdict(Counter)
    for caption in captions:
        tagged = tag_words(caption)
        texts = ["", *(word.text.lower() for word in tagged), ""]
        for at, word in enumerate(tagged, 1):
            if word.part in CONTENT:
                own = places[texts[at], word.part]
                own.update(((-1, texts[at - 1]), (1, texts[at + 1])))
    usual: dict[str, tuple[str, str]] = {}  # each word with its most frequent part of speech
    for key, own in places.items():
        if key[0] not in usual or own.total() > places[usual[key[0]]].total():
            usual[key[0]] = key
    keys = sorted(key for key in usual.values() if places[key].total() >= 2 * least)
    columns = {place: n for n, place in enumerate(sorted({p for k in keys for p in places[k]}))}
    rows = [
        (n, columns[place], count) for n, k in enumerate(keys) for place, count in places[k].items()
    ]
    if not rows:
        return {}
    row, column, counts = (np.array(each) for each in zip(*rows))
    weights = np.sqrt(counts / np.bincount(row, counts)[row])  # rows of length 1
    vectors = csr_matrix((weights, (row, column)), (len(keys), len(columns)))
    parts = np.array([part for _, part in keys])
    similar: dict[str, tuple[str, ...]] = {}
    for at, (text, part) in enumerate(keys):
        cosine = (vectors @ vectors[at].T).toarray()[:, 0]
        cosine[(parts != part) | (np.arange(len(keys)) == at)] = 0
        best = np.argsort(-cosine, kind="stable")[:count]
        similar[text] = tuple(keys[other][0] for other in best if cosine[other] > 0)
    return similar


def exchanged_captions(
    caption: str, similar: Mapping[str, Sequence[str]]
) -> list[tuple[TaggedWord, list[Variant]]]:
    """Content words of a caption, each with the captions in which it is exchanged."""
    exchanged = []
    for word in tag_words(caption):
        old = caption[word.start : word.stop]
        new = [spell([other], old) for other in similar.get(old.lower(), ())]
        if new and word.part in CONTENT:
            changes = [TextChange(word.start, word.stop, other) for other in new]
            variants = [
                Variant(other, *replace_words(caption, [change]))
                for other, change in zip(new, changes, strict=True)
            ]
            exchanged.append((word, variants))
    return exchanged


def score_captions(
    model: RetrievalModel,
    read: TextReader,
    images: Embeddings,
    captions: Sequence[str],
    rows: Tensor,
) -> list[float]:
    """Scores of N captions with the images of (N,) rows, see `RetrievalModel.loss_scores`."""
    scores: list[float] = []
    device = images.tokens.device
    with evaluation_mode([model]):
        for start in range(0, len(captions), SCORE_BATCH):
            part = slice(start, start + SCORE_BATCH)
            texts = model.encode_texts(read(captions[part]).to(device))
            pairs = model.score_pairs(images.rows(rows[part]).to(device), texts)
            scores += model.loss_scores(pairs.double()).tolist()
    return scores


def best_exchanges(
    model: RetrievalModel,
    read: TextReader,
    images: Embeddings,
    captions: Sequence[str],
    rows: Tensor,
    similar: Mapping[str, Sequence[str]],
) -> list[tuple[float, list[tuple[TaggedWord, list[Exchange]]]]]:
    """Score of each caption; its content words with their exchanges, the best first.

    Args:
        model: any.
        read: tokenizes captions for the model.
        images: encoded.
        captions: N of them.
        rows: (N,) row of the image of each.
        similar: candidates of each word.
    """
    if not captions:
        return []
    exchanged = [exchanged_captions(caption, similar) for caption in captions]
    texts, owners = list[str](), list[int]()
    for row, (caption, words) in enumerate(zip(captions, exchanged, strict=True)):
        new = [caption, *(variant.caption for _, variants in words for variant in variants)]
        texts += new
        owners += [row] * len(new)
    scores = iter(score_captions(model, read, images, texts, rows[torch.tensor(owners)]))
    results = []
    for words in exchanged:
        score, exchanges = next(scores), []
        for word, variants in words:
            gains = [Exchange(variant, next(scores) - score) for variant in variants]
            exchanges.append((word, sorted(gains, key=lambda exchange: -exchange.gain)))
        results.append((score, exchanges))
    return results


def fit_exchanges(
    model: Model,
    dataset: ImageTextDataset,
    *,
    vocabulary: Sequence[str] | None = None,
    count: int = 20,
    captions: int = 500,
    seed: int = 0,
) -> WordExchanges:
    """Measure how much exchanges gain in true captions, and in captions with a wrong word.

    The wrong word is an exchanged one, drawn at random. It fits the slope of the doubt alone: what
    counts as a doubt is decided by true captions.

    Args:
        model: reads captions.
        dataset: true captions with their images; not the split that is explained afterwards.
        vocabulary: captions whose words are exchanged; by default those of the data set.
        count: exchanges of a word.
        captions: of the data set, drawn at random.
        seed: of the draws.

    Raises:
        ValueError: the model reads no captions, or too few words can be exchanged.
    """
    if model.processor is None or model.processor.tokenizer is None:
        raise ValueError(f"{model.name} reads no captions; give a model that does")
    similar = similar_words(list(vocabulary or dataset.texts), count=count)
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero((dataset.text_to_image >= 0).numpy())
    chosen = torch.from_numpy(np.sort(rng.permutation(rows)[:captions]))
    true = [dataset.texts[row] for row in chosen.tolist()]
    wrong = [_with_wrong_word(caption, similar, rng) for caption in true]
    exchangeable = 0
    for caption in true:
        exchangeable += len(exchanged_captions(caption, similar))
        if exchangeable >= MIN_WORDS:  # all captions are exchanged once they are scored
            break
    else:  # before anything is scored
        raise ValueError(
            f"{dataset.name} has {exchangeable} words that could be exchanged, and noise is "
            f"measured on {MIN_WORDS} or more: {MIN_WORDS - exchangeable} are missing; give more "
            "captions"
        )
    model.processor.warn_of_captions(true)
    read = model.processor.process_variants
    right_gains, wrong_gains = list[float](), list[float]()
    with progress("captions calibrated", len(true)) as advance:
        for start in range(0, len(true), CAPTION_BATCH):
            part = slice(start, start + CAPTION_BATCH)
            image_rows, owners = dataset.text_to_image[chosen[part]].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            images = encode_rows(model, dataset, image_rows)
            results = best_exchanges(model.model, read, images, true[part], owners, similar)
            right_gains += [best.gain for _, words in results for _, (best, *_) in words]
            texts = [text for text, _ in wrong[part]]
            results = best_exchanges(model.model, read, images, texts, owners, similar)
            for (_, words), (_, place) in zip(results, wrong[part], strict=True):
                wrong_gains += [best.gain for word, (best, *_) in words if word.start == place]
            advance(len(owners))
    if len(wrong_gains) < 2:
        raise ValueError(
            f"no word of {dataset.name} stays exchangeable once it is exchanged; give more captions"
        )
    noise = float(np.quantile(right_gains, 1 - FALSE_DOUBTS))
    slope, offset = _logistic(right_gains, wrong_gains)
    prior = 1 / (1 + math.exp(min(700.0, offset + slope * noise)))
    return WordExchanges(similar, noise, slope, prior, len(right_gains), model.identity())


def encode_rows(model: Model, dataset: ImageTextDataset, rows: Tensor) -> Embeddings:
    """Encode the images of some rows of a data set together."""
    assert model.processor is not None
    with evaluation_mode([model.model]):
        device = next(model.model.parameters()).device
        pictures = model.processor.image_processor.from_dataset(dataset, rows).to(device)
        return model.model.encode_images(pictures)


def _with_wrong_word(
    caption: str, similar: Mapping[str, Sequence[str]], rng: np.random.Generator
) -> tuple[str, int]:
    """Exchange a random word of a caption; return it and the start of the new word, or -1."""
    variants = [one for _, variants in exchanged_captions(caption, similar) for one in variants]
    if not variants:
        return caption, -1
    variant = variants[int(rng.integers(len(variants)))]
    return variant.caption, variant.spans[-1][0]


def _logistic(right: Sequence[float], wrong: Sequence[float]) -> tuple[float, float]:
    """Slope and offset of the logit that a word is wrong, were half of all words wrong."""
    from sklearn.linear_model import LogisticRegression

    values = np.array([*right, *wrong])
    scale = float(values.std()) or 1.0
    labels = np.repeat([0, 1], [len(right), len(wrong)])
    fitted = LogisticRegression(class_weight="balanced").fit(values[:, None] / scale, labels)
    return max(float(fitted.coef_[0, 0]), 1e-6) / scale, float(fitted.intercept_[0])
