"""Words that others in their place score better than."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tailored_cases as cases
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.exchanges import (
    EXCHANGES,
    FALSE_DOUBTS,
    WordExchanges,
    best_exchanges,
    exchanged_captions,
    fit_exchanges,
    similar_words,
)
from counterfoil.evaluation.explain import ExplainConfig, explain_by_exchange
from counterfoil.models.base import RetrievalModel

SIMILAR = {"red": ("blue", "green"), "dog": ("cat", "owl"), "two": ("three",)}
WORDS = ("a", "an", "owl", "red", "blue", "green", "dog", "cat", "two", "three", "on", "grass")


class BagOfWords(RetrievalModel):
    """Scores the share of a caption's words that an image's own caption has."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = nn.Parameter(torch.ones(1))

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return Embeddings(images.values, images.mask)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return Embeddings(texts.values, texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        mine, theirs = images.tokens[:, 0], texts.tokens[:, 0]
        return (mine.minimum(theirs)).sum(-1) / theirs.sum(-1)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        raise NotImplementedError


def read(captions) -> ModalityBatch:
    rows = []
    for caption in captions:
        words = caption.lower().replace(".", "").split()
        rows.append([float(words.count(word)) for word in WORDS])
    values = torch.tensor(rows).unsqueeze(1)
    return ModalityBatch(torch.arange(len(rows)), values, torch.ones(len(rows), 1).bool())


def explained(true: str, caption: str, **changes):
    exchanges = WordExchanges(SIMILAR, noise=0.1, slope=20.0, prior=0.1, words=99, model="m")
    model = BagOfWords()
    return explain_by_exchange(
        model,
        read,
        model.encode_images(read([true])),
        [caption],
        torch.tensor([0]),
        config=replace(ExplainConfig(exchanges=exchanges), **changes),
    )[0]


def test_a_wrong_word_is_doubted_and_corrected():
    one = explained("A red dog on grass.", "A red cat on grass.")
    assert one.corrected is None  # no word is exchanged for "dog" where "cat" stands
    one = explained("An owl on grass.", "A dog on grass.")
    assert [word.text for word in one.words if (word.doubt or 0) >= 0.5] == ["dog"]
    (dog,) = (word for word in one.words if word.text == "dog")
    assert dog.corrections[0].text == "owl"
    assert one.corrected is not None
    assert one.corrected.text == "An owl on grass."
    assert one.corrected.score == pytest.approx(1.0)
    assert [one.corrected.text[a:b] for a, b in one.corrected.changes] == ["An", "owl"]
    assert [word.text for word in one.words if word.doubt is None] == ["A", "on", "grass"]


def test_a_true_caption_is_not_doubted():
    one = explained("Two red dog on grass", "Two red dog on grass")
    assert one.doubts
    assert one.doubt is not None
    assert one.doubt < 0.5
    assert one.corrected is None
    assert all(not word.corrections for word in one.words)


def test_capitals_and_the_threshold():
    one = explained("Two green cat on grass", "Two Red cat on grass")
    assert one.corrected is not None
    assert one.corrected.text == "Two Green cat on grass"
    assert explained("Three dog on grass", "Two dog on grass", threshold=1.0).corrected is None


def test_words_of_the_same_places():
    captions = list(load_dataset("scenes:images=300")["train"].texts)
    similar = similar_words(captions, count=6)
    assert {"blue", "green"} <= set(similar["red"])
    assert "above" not in similar
    assert "the" not in similar
    assert all(word not in others for word, others in similar.items())
    assert max(map(len, similar.values())) <= 6
    assert similar_words([]) == {}
    assert similar == similar_words(captions, count=6)


def test_only_content_words_are_exchanged():
    exchanged = exchanged_captions("A dog on grass.", {**SIMILAR, "on": ("under",), "a": ("no",)})
    assert [(word.text, [one.caption for one in variants]) for word, variants in exchanged] == [
        ("dog", ["A cat on grass.", "An owl on grass."])
    ]


def test_gains_are_differences_of_scores(monkeypatch):
    seen = cases.processor()
    model = cases.host(seen, outputs=("rank",)).eval().requires_grad_(False)
    images = model.encode_images(seen.images(torch.arange(8)))
    monkeypatch.setattr("counterfoil.evaluation.exchanges.SCORE_BATCH", 3)
    captions, rows = ["Red dogs near cats.", "birds", "A cat, a dog"], torch.tensor([4, 0, 2])
    similar = {"dogs": ["cats", "birds"], "cat": ["dog"], "birds": []}
    results = best_exchanges(model, seen.processor.process_texts, images, captions, rows, similar)

    def score(row: Tensor, text: str) -> float:
        texts = model.encode_texts(seen.processor.process_texts([text]))
        return float(model.loss_scores(model.score_pairs(images.rows(row[None]), texts)))

    counts = []
    for (total, words), caption, row in zip(results, captions, rows, strict=True):
        assert total == pytest.approx(score(row, caption), abs=1e-6)
        counts.append([word.text for word, _ in words])
        for _, options in words:
            gains = [one.gain for one in options]
            assert gains == sorted(gains, reverse=True)
            for one in options:
                expected = score(row, one.variant.caption) - score(row, caption)
                assert one.gain == pytest.approx(expected, abs=1e-6)
    assert counts == [["dogs"], [], ["cat"]]


def test_noise_is_that_of_true_captions(models, tmp_path):
    model, data = models, load_dataset("scenes:images=200")
    dev = data["dev"]
    exchanges = fit_exchanges(model, dev, captions=40)
    assert exchanges == fit_exchanges(model, dev, captions=40)
    assert exchanges.doubt(exchanges.noise) == pytest.approx(0.5)
    assert exchanges.doubt(exchanges.noise + 1) > exchanges.doubt(exchanges.noise - 1)
    assert 0 <= exchanges.doubt(-1e9) < exchanges.doubt(1e9) <= 1
    assert 0 < exchanges.prior < 1
    rows = torch.arange(len(dev))
    images = model.model.encode_images(model.processor.image_processor.from_dataset(dev, rows))
    results = best_exchanges(
        model.model,
        model.processor.process_texts,
        images,
        list(dev.texts),
        dev.text_to_image,
        exchanges.similar,
    )
    gains = torch.tensor([best.gain for _, words in results for _, (best, *_) in words])
    share = float((gains > exchanges.noise).float().mean())
    assert share == pytest.approx(FALSE_DOUBTS, abs=0.03)
    exchanges.write(tmp_path)
    assert WordExchanges.read(tmp_path) == replace(exchanges, similar=dict(exchanges.similar))
    (tmp_path / EXCHANGES).write_text('{"format": 1, "noise": 1}')
    with pytest.raises(ValueError, match=r"exchanges.json .*--calibrate DATA --words"):
        WordExchanges.read(tmp_path)
    with pytest.raises(ValueError, match="give more captions"):
        fit_exchanges(model, dev, captions=2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    import recipes_cases
    from counterfoil.model import load_model

    return load_model(recipes_cases.pixel_model(tmp_path_factory.mktemp("m") / "pixels"))
