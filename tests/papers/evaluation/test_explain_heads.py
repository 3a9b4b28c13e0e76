"""Doubts and corrections against slow readings of one sentence at a time."""

from __future__ import annotations

import math

import pytest
import torch

import explain_cases as cases
from counterfoil.core.types import Embeddings
from counterfoil.data.tokenizers import Tokenizer
from counterfoil.evaluation.explain import ExplainConfig, Explanation, explain_by_heads
from counterfoil.evaluation.word_heads import group_tokens, spell
from counterfoil.papers.models.uniter import UNITER

IMAGE = torch.tensor([3, 0, 5, 0])


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Tokenizer:
    return cases.pieces(tmp_path_factory.mktemp("pieces"))


@pytest.fixture(scope="module")
def model(pieces) -> UNITER:
    return cases.model(pieces)


@pytest.fixture(scope="module")
def images(model) -> Embeddings:
    seen = cases.tailored_cases.processor()
    return model.encode_images(seen.images(torch.arange(8)))


def explained(model, pieces, images, **options) -> list[Explanation]:
    config = ExplainConfig(**options)
    return explain_by_heads(model, pieces, images, cases.CAPTIONS, IMAGE, config=config)


def parts(pieces, text):
    read = pieces.read([text])
    every = group_tokens(pieces.spans([text])[0], read.words[0])
    return read.ids[0], [one for one in every if text[one.start : one.stop] not in (".", ",")]


def slow_corrections(model, one, ids, place, text, pieces) -> list[tuple[str, float]]:
    """All that may stand in the place of a word, by how it is written, the likeliest first."""
    every = cases.every_rewording(model, one, ids, place.tokens, pieces)
    old = text[place.start : place.stop]
    found: dict[str, tuple[str, float]] = {}
    for tokens, log in sorted(every.items(), key=lambda item: -item[1]):
        new = spell(pieces.tokens(tokens), old)
        if new.casefold() != old.casefold():
            found.setdefault(new.casefold(), (new, math.exp(log)))
    return list(found.values())


def test_doubts_of_words_are_those_of_their_worst_piece(model, pieces, images):
    for one, row in zip(explained(model, pieces, images), IMAGE):
        ids, words = parts(pieces, one.caption)
        score, doubts = cases.doubts(model, images.rows(row[None]), ids)
        assert one.score == pytest.approx(score, abs=1e-6)
        assert [word.text for word in one.words] == [
            one.caption[place.start : place.stop] for place in words
        ]
        worst = [max(doubts[token] for token in place.tokens) for place in words]
        assert [word.doubt for word in one.words] == pytest.approx(worst, abs=1e-6)
        assert one.doubt == pytest.approx(max(worst), abs=1e-6)


def test_corrections_are_the_likeliest_of_all(model, pieces, images):
    """Beams as wide as the vocabulary miss nothing."""
    lengths = set()
    for one, row in zip(explained(model, pieces, images, threshold=0.0, corrections=12), IMAGE):
        ids, words = parts(pieces, one.caption)
        for word, place in zip(one.words, words):
            image, lengths = images.rows(row[None]), lengths | {len(place.tokens)}
            slow = slow_corrections(model, image, ids, place, one.caption, pieces)
            found = {c.text: pytest.approx(c.chance, abs=1e-6) for c in word.corrections}
            if len(place.tokens) == 3:  # some beginnings were given up
                assert found.items() <= dict(slow).items()
                assert next(iter(found)) == slow[0][0]
            else:
                assert found == dict(slow[:12])
    assert lengths == {1, 2, 3}


def test_what_the_word_itself_has(model, pieces, images):
    found = explained(model, pieces, images, threshold=0.0)[3]
    ids, words = parts(pieces, found.caption)
    inner = {token for token, text in enumerate(cases.VOCABULARY) if text.startswith("##")}
    for word, place in zip(found.words, words):
        log = 0.0
        for piece, at in enumerate(place.tokens):
            barred = {*cases.unwritten(pieces), len(cases.VOCABULARY)} | (set() if piece else inner)
            log += cases.logs(model, images.rows(IMAGE[3:]), ids, at, barred).get(
                ids[at], -math.inf
            )
        assert word.kept == pytest.approx(math.exp(log), abs=1e-6)


def test_special_tokens_and_the_word_itself_are_never_offered(model, pieces, images):
    for one in explained(model, pieces, images, threshold=0.0, corrections=40):
        for word in one.words:
            offered = [correction.text.casefold() for correction in word.corrections]
            assert len(offered) == len(set(offered))
            assert word.text.casefold() not in offered
            assert not [text for text in offered if "[" in text or text.startswith("#")]
            assert not {".", ","} & {*offered, word.text}
            assert sum(correction.chance for correction in word.corrections) <= 1 + 1e-9


def slow_corrected(model, one, text, pieces, threshold) -> dict[int, str]:
    """New words by place: the most doubtful of the caption's own gives way, again and again."""
    ids, words = parts(pieces, text)
    new: dict[int, str] = {}
    while True:
        _, doubts = cases.doubts(model, one, ids)
        left = {
            word: max(doubts[token] for token in place.tokens)
            for word, place in enumerate(words)
            if word not in new
        }
        worst = max(left, key=lambda word: left[word], default=None)
        if worst is None or left[worst] < threshold:
            return new
        place = words[worst]
        old = text[place.start : place.stop]
        every = cases.every_rewording(model, one, ids, place.tokens, pieces)
        best = next(
            tokens
            for tokens, _ in sorted(every.items(), key=lambda item: -item[1])
            if spell(pieces.tokens(tokens), old).casefold() != old.casefold()
        )
        new[worst] = spell(pieces.tokens(best), old)
        for at, token in zip(place.tokens, best):
            ids[at] = token


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.6])
def test_captions_are_corrected_word_after_word(model, pieces, images, threshold):
    changed = 0
    for one, row in zip(explained(model, pieces, images, threshold=threshold), IMAGE):
        image = images.rows(row[None])
        new = slow_corrected(model, image, one.caption, pieces, threshold)
        changed += len(new)
        if not new:
            assert one.corrected is None
            continue
        shown = [one.corrected.text[start:stop] for start, stop in one.corrected.changes]
        articles = [text for text in shown if text.lower() in ("a", "an")]
        wanted = [text for _, text in sorted(new.items())]
        assert [t for t in shown if t not in articles] == [t for t in wanted if t not in articles]
        score, _ = cases.doubts(model, image, pieces.encode([one.corrected.text])[0])
        assert one.corrected.score == pytest.approx(score, abs=1e-6)
    assert changed


def test_the_batch_has_no_share_in_it(model, pieces, images, monkeypatch):
    together = explained(model, pieces, images, threshold=0.3)
    monkeypatch.setattr("counterfoil.evaluation.word_heads.HEAD_BATCH", {"cpu": 3, "cuda": 3})
    for one, again in zip(together, explained(model, pieces, images, threshold=0.3)):
        assert one.score == pytest.approx(again.score)
        assert [w.text for w in one.words] == [w.text for w in again.words]
        assert (one.corrected is None) == (again.corrected is None)
        if one.corrected:
            assert one.corrected.text == again.corrected.text


def test_a_model_that_only_doubts_corrects_nothing(pieces, images):
    model = cases.model(pieces, outputs=("rank", "doubt"))
    found = explained(model, pieces, images, threshold=0.0)
    assert all(one.corrected is None and one.doubts for one in found)
    assert not [word for one in found for word in one.words if word.corrections or word.kept]


def test_nothing_is_doubted_above_every_doubt(model, pieces, images):
    for one in explained(model, pieces, images, threshold=1.1):
        assert one.corrected is None
        assert not [word for word in one.words if word.corrections]


def test_no_captions(model, pieces, images):
    assert explain_by_heads(model, pieces, images, [], IMAGE[:0], config=ExplainConfig()) == []


def test_features_that_are_no_numbers(model, pieces, images):
    broken = Embeddings(images.tokens * math.nan, images.mask)
    with pytest.raises(ValueError, match=r"near a skateboard\.' is not a number"):
        explained(model, pieces, broken)


def test_captions_that_are_cut_say_so(model, pieces, images):
    text = "A red dog near a cat, " * 9
    captions = [text, "A dog."]
    found = explain_by_heads(model, pieces, images, captions, IMAGE[:2], config=ExplainConfig())
    assert found[1].unread is None
    assert text[: found[0].unread].endswith(" red dog")
    assert len(found[0].words) == 38 - 5  # commas are none


def test_models_of_words(images):
    seen = cases.tailored_cases.processor()
    words = seen.processor.tokenizer
    model = cases.model(words)
    own = model.encode_images(seen.images(torch.arange(8)))
    text = 'Red dogs, "near" GREEN zebras'
    config = ExplainConfig(threshold=0.0)
    (one,) = explain_by_heads(model, words, own, [text], torch.tensor([0]), config=config)
    assert [word.text for word in one.words] == ["Red", "dogs", "near", "GREEN", "zebras"]
    assert not [c for word in one.words for c in word.corrections if c.text.startswith("<")]
    assert all(c.text.isupper() for c in one.words[3].corrections if c.text.isalpha())
