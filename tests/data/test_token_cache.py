from typing import final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from counterfoil.core.io import cache_folder
from counterfoil.data import tokenizers
from counterfoil.data.tokenizers import (
    TokenIds,
    Tokenizer,
    WordTokenizer,
    pack_tokens,
    tokenize_dataset,
)


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=6), st.randoms())
def test_rows_come_back_padded(ids, random):
    tokens = pack_tokens(TokenIds(ids), 0)
    rows = [random.randrange(len(ids)) for _ in range(random.randrange(1, 5))]
    values, mask = tokens.take(torch.tensor(rows))
    assert len(tokens) == len(ids)
    assert values.shape == (len(rows), max(len(ids[row]) for row in rows))
    assert tokens.lengths(torch.tensor(rows)).tolist() == [len(ids[row]) for row in rows]
    for place, row in enumerate(rows):
        assert values[place][mask[place]].tolist() == ids[row]
        assert (values[place][~mask[place]] == 0).all()


def test_padding_is_the_tokenizers():
    values, mask = pack_tokens(TokenIds([[1], [2, 3]]), 7).take(torch.arange(2))
    assert values.tolist() == [[1, 7], [2, 3]]
    assert mask.tolist() == [[True, False], [True, True]]
    assert pack_tokens(TokenIds([]), 0).take(torch.tensor([], dtype=torch.long))[0].shape == (0, 0)


@final
class Letters(Tokenizer):
    """Every letter is an id and a piece of its word."""

    size, divides = 256, True

    def read(self, texts):
        words = [[n for n, word in enumerate(text.split()) for _ in word] for text in texts]
        return TokenIds([[ord(c) for c in text if c != " "] for text in texts], words)

    def tokens(self, ids):
        return [chr(i) for i in ids]

    def save(self, folder):
        raise NotImplementedError

    digest = "letters"


def test_words_stand_with_their_pieces(counted):
    for _ in range(2):  # tokenised, then read from the cache
        items = tokenize_dataset(TEXTS, Letters()).items(torch.tensor([7, 8]), torch.tensor([1, 0]))
        assert items.ids.tolist() == [7, 8]
        assert items.words.tolist() == [[0, 1, 1, 1, 2, 2, 2, 2], [0, 1, 1, 1, -1, -1, -1, -1]]
        assert items.words.shape == items.mask.shape == items.values.shape


def test_a_cache_from_before_words_were_kept_is_made_again(counted):
    first = tokenize_dataset(TEXTS, Letters())
    (path,) = (cache_folder() / "tokens").glob("*.safetensors")
    for words in ({}, {"words": first.words[:-1]}):
        save_file({"flat": first.flat, "starts": first.starts, **words}, path)
        assert torch.equal(tokenize_dataset(TEXTS, Letters()).words, first.words)
    assert "words" in load_file(path)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A cache of its own that keeps even few texts; counts what is tokenised."""
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path))
    monkeypatch.setattr(tokenizers, "MIN_CACHED", 1)
    calls = []
    original = WordTokenizer.read
    monkeypatch.setattr(
        WordTokenizer,
        "read",
        lambda self, texts: calls.append(len(texts)) or original(self, texts),
    )
    return calls


TEXTS = ["a dog", "a cat runs"]


def same(left, right):
    return torch.equal(left.flat, right.flat) and torch.equal(left.starts, right.starts)


def test_tokenised_once(counted):
    words = WordTokenizer.of(TEXTS)
    first = tokenize_dataset(TEXTS, words)
    assert same(tokenize_dataset(list(TEXTS), WordTokenizer.of(TEXTS)), first)
    assert counted == [2]


def test_other_texts_or_words_are_tokenised_anew(counted):
    words = WordTokenizer.of(TEXTS)
    for texts, tokenizer in (
        (TEXTS, words),
        (["a dog", "a cat ran"], words),
        (["a dog a", "cat runs"], words),
        (TEXTS, WordTokenizer.of(TEXTS, longest=1)),
        (TEXTS, WordTokenizer(list(reversed(words.words[4:])) and [*words.words[:4], "dog", "a"])),
    ):
        found = tokenize_dataset(texts, tokenizer)
        assert found.take(torch.tensor([1]))[0].tolist() == [tokenizer.encode([texts[1]])[0]]
    assert counted.count(2) == 5


@pytest.mark.parametrize("damage", ["garbage", "empty", "cut", "other"])
def test_damaged_cache_is_made_again(counted, damage):
    words = WordTokenizer.of(TEXTS)
    first = tokenize_dataset(TEXTS, words)
    (path,) = (cache_folder() / "tokens").glob("*.safetensors")
    whole = path.read_bytes()
    if damage == "other":
        more = [*TEXTS, "dog"]
        tokenize_dataset(more, words)
        (other,) = set((cache_folder() / "tokens").glob("*.safetensors")) - {path}
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes({"garbage": b"x" * 100, "empty": b"", "cut": whole[:-3]}[damage])
    counted.clear()
    assert same(tokenize_dataset(TEXTS, words), first)
    assert counted == [2]
    assert path.read_bytes() == whole


def test_cache_that_cannot_be_written_does_no_harm(counted, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "file"))
    assert len(tokenize_dataset(TEXTS, WordTokenizer.of(TEXTS))) == 2
    assert (tmp_path / "file").read_text() == ""
