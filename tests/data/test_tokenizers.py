from __future__ import annotations

import json
import pickle
import sys
import types
from collections.abc import Sequence
from typing import final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import recipes_cases
import vision_cases
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import (
    SPECIAL,
    CharacterTokenizer,
    OpenClipTokenizer,
    TokenIds,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    load_open_clip_tokenizer,
    open_tokenizer,
    pack_tokens,
    read_vocabulary,
    split_words,
    tokenize,
)


@pytest.mark.parametrize(
    "text, words",
    [
        ("A dog, running .", "a dog , running ."),
        ("Two men's T-shirts aren't red.", "two men 's t-shirts are n't red ."),
        ("they've I'm you'll he'd we're", "they 've i 'm you 'll he 'd we 're"),
        ("It cannot wait at 10:30 for 1,000 or 3.5", "it can not wait at 10:30 for 1,000 or 3.5"),
        ("at 2 o'clock on St. John and/or U.S. soil", "at 2 o'clock on st. john and/or u.s. soil"),
        ('the "white out" is (quite "so")', "the `` white out '' is ( quite `` so '' )"),
        ("wait... what -- no!?", "wait ... what -- no ! ?"),
        ("a <unk> stays", "a <unk> stays"),
        ("Ein Hünd 狗 läuft", "ein hünd 狗 läuft"),
        (" \n\t", ""),
    ],
)
def test_words_are_split_as_the_field_does(text, words):
    assert split_words(text) == words.split()


@given(st.text())
def test_no_character_is_lost(text):
    plain = text.lower().replace('"', "").replace("`", "").replace("'", "")
    joined = "".join(split_words(text)).replace("`", "").replace("'", "")
    assert "".join(joined.split()) == "".join(plain.split())


def test_vocabulary_is_ordered_by_count_then_alphabet():
    words = WordTokenizer.of(["b b a c", "c d <unk>"], min_count=1)
    assert words.words == [*SPECIAL, "b", "c", "a", "d"]
    assert WordTokenizer.of(["b b a c", "c d"], min_count=2).words == [*SPECIAL, "b", "c"]


def test_ids_unknown_and_cut():
    words = WordTokenizer.of(["a dog runs"], longest=2)
    ids = words.encode(["a dog runs", "A CAT", ""])
    assert [words.tokens(row) for row in ids] == [
        ["<start>", "a", "dog", "<end>"],
        ["<start>", "a", "<unk>", "<end>"],
        ["<start>", "<end>"],
    ]
    assert words.read(["a dog"]).words is None  # every id is a word
    assert (words.mask, words.divides) == (None, False)


def test_words_saved_and_opened(tmp_path):
    words = WordTokenizer.of(["ein hünd", "x"], longest=7)
    words.save(tmp_path)
    back = open_tokenizer(tmp_path)
    assert isinstance(back, WordTokenizer)
    assert (back.words, back.longest, back.digest) == (words.words, 7, words.digest)


def test_digest_depends_on_words_and_length():
    digests = {
        WordTokenizer.of(["a b"]).digest,
        WordTokenizer.of(["a c"]).digest,
        WordTokenizer.of(["a b"], longest=3).digest,
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["a", "b"], "<pad> <start> <end> <unk> and words; .* begins with 'a b', has no <pad>"),
        ([*SPECIAL[:3], "x"], "has no <unk>"),
        ([*SPECIAL, "x", "x"], "'x' occurs twice"),
        ([], "a vocabulary holds"),
    ],
)
def test_bad_vocabularies(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        WordTokenizer(words)


def test_special_words_may_stand_anywhere(tmp_path):
    """NAAF's files begin with <pad> <unk> <start> <end>."""
    words = ["<pad>", "<unk>", "a", "<start>", "dog", "<end>"]
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"word2idx": {word: n for n, word in enumerate(words)}}))
    read = read_vocabulary(path)
    assert (read.pad, read.unknown, read.wordless) == (0, 1, (0, 1, 3, 5))
    assert read.encode(["A dog runs"]) == [[3, 2, 4, 1, 5]]
    assert read.count_unknown(["a dog runs"]) == (1, 3)
    read.save(tmp_path)
    assert open_tokenizer(tmp_path).encode(["A dog runs"]) == [[3, 2, 4, 1, 5]]
    plain = WordTokenizer([*SPECIAL, "a", "dog"])
    assert plain.encode(["A dog runs"]) == [[1, 4, 5, 3, 2]]


def words_file(words: Sequence[object], longest: object) -> str:
    return json.dumps({"kind": "words", "words": list(words), "longest": longest})


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "{",
        '{"kind": "words"}',
        '{"kind": "other"}',
        words_file([*SPECIAL, []], 9),
        words_file(SPECIAL, 0),
        words_file(SPECIAL, True),
        words_file(SPECIAL, "9"),
        words_file(SPECIAL, 10**30),
    ],
)
def test_what_is_no_tokenizer(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match="tokenizer"):
        open_tokenizer(tmp_path)


@pytest.fixture
def pieces(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    ids = {
        w: n
        for n, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "dog", "##s", "a", "[MASK]"])
    }
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder = tmp_path / "bert"
    transformers.BertTokenizerFast(tokenizer_object=model).save_pretrained(folder)
    return WordPieceTokenizer(str(folder), longest=4)


def test_pieces_of_hugging_face(pieces, tmp_path):
    before = pieces.digest  # which does not depend on what was encoded
    ids = pieces.encode(["A dogs", "a a a a a", ""])
    assert ids == [[2, 6, 4, 3], [2, 6, 6, 3], [2, 3]]
    assert pieces.tokens([2, 4, 5]) == ["[CLS]", "dog", "##s"]
    assert (pieces.size, pieces.pad) == (8, 0)
    assert (pieces.mask, pieces.divides) == (7, True)
    pieces.save(tmp_path / "saved")
    back = open_tokenizer(tmp_path / "saved")
    assert back.encode(["A dogs"]) == pieces.encode(["A dogs"])
    assert back.digest == pieces.digest == before


def test_pieces_of_one_word_are_known(pieces):
    pieces.longest = 9
    read = pieces.read(["a dogs' dogss", "dogs", ""])
    assert read.ids == [[2, 6, 4, 5, 1, 4, 5, 5, 3], [2, 4, 5, 3], [2, 3]]
    assert read.words == [[-1, 0, 1, 1, 2, 3, 3, 3, -1], [-1, 0, 0, -1], [-1, -1]]
    pieces.longest = 4
    assert pieces.read(["a dogs dogs"]).words == [[-1, 0, 1, -1]]


def test_pieces_that_are_not_there(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="is no tokenizer that can be read here"):
        WordPieceTokenizer(str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r'needs transformers: pip install "counterfoil\[hf\]"'):
        WordPieceTokenizer("bert-base-uncased")


def test_where_pieces_stand(pieces):
    pieces.longest = 9
    text = " A dogs' x"
    assert [text[a:b] for a, b in pieces.spans([text])[0]] == ["", "A", "dog", "s", "'", "x", ""]
    assert pieces.wordless == (0, 1, 2, 3, 7)
    pieces.divides = False
    assert pieces.read(["a dogs"]).words is None
    with pytest.raises(ValueError, match="has no offsets of its tokens"):
        pieces.spans([text])


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


def test_words_stand_with_their_pieces():
    tokens = tokenize(["a dog", "a cat runs"], Letters())
    items = tokens.items(torch.tensor([7, 8]), torch.tensor([1, 0]))
    assert items.ids.tolist() == [7, 8]
    assert items.words.tolist() == [[0, 1, 1, 1, 2, 2, 2, 2], [0, 1, 1, 1, -1, -1, -1, -1]]
    assert items.words.shape == items.mask.shape == items.values.shape
    assert len(tokenize([], Letters())) == 0


@pytest.fixture
def open_clip(tmp_path, monkeypatch):
    fixed = types.SimpleNamespace(fix_text=lambda text: text.replace("~", "a"))
    monkeypatch.setitem(sys.modules, "open_clip", vision_cases.open_clip(tmp_path))
    monkeypatch.setitem(sys.modules, "ftfy", fixed)


@pytest.mark.usefixtures("open_clip")
def test_pieces_know_their_words():
    found = OpenClipTokenizer(clean="lower", longest=7).read(["A dog", "bad eggs and more"])
    assert found.ids[0] == [38, 19, 4, 15, 25, 39]
    assert found.words == [[-1, 0, 1, 1, 1, -1], [-1, 0, 0, 0, 1, 1, -1]]
    assert len(found.ids[1]) == 7
    assert OpenClipTokenizer(clean="lower").tokens([38, 4, 25]) == ["<start>", "d", "g</w>"]


@pytest.mark.usefixtures("open_clip")
@pytest.mark.parametrize(
    "clean, text, same",
    [
        ("whitespace", "  ~  dog &amp;amp; snow ", "a dog & snow"),
        ("lower", "A Dog", "a dog"),
        ("canonicalize", "A big_Dog, (in) the-snow!", "a big dog in thesnow"),
    ],
)
def test_captions_are_cleaned_first(clean, text, same, tmp_path):
    folder = str(recipes_cases.clip_like(tmp_path / "siglip", "siglip"))
    pieces = WordPieceTokenizer(folder, longest=12)
    words = OpenClipTokenizer(clean=clean, longest=12, pieces=pieces)
    assert words.encode([text]) == pieces.encode([same])
    assert words.pad == pieces.pad == 1
    assert words.divides


@pytest.mark.usefixtures("open_clip")
def test_the_end_may_be_left_out(tmp_path):
    folder = recipes_cases.clip_like(tmp_path / "siglip", "siglip")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"sep_token": "</s>"}))
    pieces = WordPieceTokenizer(str(folder), longest=12)
    words = OpenClipTokenizer(clean="lower", longest=12, pieces=pieces, ends=False)
    (ids,) = pieces.encode(["a dog"])
    assert ids[-1] == 39
    assert words.encode(["a dog"]) == [[*ids[:-1], 0]]


@pytest.mark.usefixtures("open_clip")
@pytest.mark.parametrize("public", [False, True])
def test_open_clip_saved_and_opened(public, tmp_path):
    folder = str(recipes_cases.clip_like(tmp_path / "siglip", "siglip"))
    pieces = WordPieceTokenizer(folder, longest=9) if public else None
    words = OpenClipTokenizer(clean="canonicalize", longest=9, pieces=pieces)
    Processor(PixelProcessor(4), words).save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert again.digest == words.digest
    assert again.encode(["A dog!"]) == words.encode(["A dog!"])
    found = Processor.open(tmp_path).tokenizer
    assert isinstance(found, OpenClipTokenizer)
    assert found.digest != OpenClipTokenizer(clean="lower", longest=9, pieces=pieces).digest


@pytest.mark.usefixtures("open_clip")
def test_open_clip_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'upper' is not a cleaning of open_clip"):
        OpenClipTokenizer(clean="upper")
    with pytest.raises(ValueError, match="'open_clip:ViT-X' is no model of open_clip"):
        load_open_clip_tokenizer("open_clip:ViT-X")
    folder = vision_cases.clip_folder(tmp_path / "clip")
    plain = json.loads((folder / "open_clip_config.json").read_text())
    plain["model_cfg"]["text_cfg"] |= {"tokenizer_mode": "clips"}
    (folder / "open_clip_config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="reads captions with tokenizer_mode, which is not known"):
        load_open_clip_tokenizer(f"open_clip:local-dir:{folder}")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"kind": "open_clip"}))
    with pytest.raises(ValueError, match="is not a tokenizer that counterfoil wrote"):
        open_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ValueError, match=r'pip install "counterfoil\[vision\]"'):
        load_open_clip_tokenizer("open_clip:ViT-T-8")


WORDS = ["<pad>", "<start>", "<end>", "<unk>", "dog", "a", "caf\xe9"]


def test_json_keeps_ids(tmp_path):
    path = tmp_path / "vocab.json"
    ids = {word: n for n, word in reversed(list(enumerate(WORDS)))}
    path.write_text(json.dumps({"word2idx": ids, "idx2word": {}, "idx": len(ids)}))
    words = read_vocabulary(path)
    assert words.words == WORDS
    assert words.encode(["A dog runs"]) == [[1, 5, 4, 3, 2]]


def pickled(protocol, module="vocab", name="Vocabulary", **attributes):
    """Bytes as the authors' code writes them."""
    kind = type(name, (), {"__module__": module})
    holder = types.ModuleType(module)
    setattr(holder, name, kind)
    before = sys.modules.get(module)
    sys.modules[module] = holder
    try:
        value = kind()
        value.__dict__.update(attributes)
        return pickle.dumps(value, protocol)
    finally:
        if before is None:
            del sys.modules[module]
        else:
            sys.modules[module] = before


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize("module", ["vocab", "__main__"])
def test_pickle_keeps_ids(tmp_path, protocol, module):
    ids = {word: n for n, word in enumerate(WORDS)}
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickled(protocol, module, word2idx=ids, idx2word={}, idx=7))
    assert read_vocabulary(path).words == WORDS


def test_pickle_of_python_2(tmp_path):
    """An instance of an old class, strings in latin1, as Python 2 wrote it in protocol 0."""
    ids = "".join(
        f"S{word.encode('latin1')!r}\nI{n}\ns".replace("Sb", "S") for n, word in enumerate(WORDS)
    )
    path = tmp_path / "vocab.pkl"
    path.write_bytes(f"(ivocab\nVocabulary\n(dS'word2idx'\n(d{ids}sb.".encode("latin1"))
    assert read_vocabulary(path).words == WORDS


class _Harmful:
    def __reduce__(self):
        return (print, ("constructed",))


def test_nothing_else_is_constructed(tmp_path, capsys):
    path = tmp_path / "vocab.pkl"
    for bad in (
        pickle.dumps(_Harmful()),
        pickle.dumps({"word2idx": _Harmful()}),
        pickled(2, "os", word2idx={}),
        pickled(2, "vocab", "Other", word2idx={}),
        pickled(2, word2idx={"<pad>": _Harmful()}),
    ):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="cannot be read as a vocabulary: it holds"):
            read_vocabulary(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "ids, words",
    [
        ({"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 4}, "'<unk>' has id 4; 4 words need"),
        ({"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 2}, "'<unk>' has id 2"),
        ({"<pad>": 0, "<start>": "1"}, "'<start>': '1' is not a word with its id"),
        ({"dog": 0, "<start>": 1, "<end>": 2, "<unk>": 3}, "begins with 'dog .*, has no <pad>"),
    ],
)
def test_bad_ids_in_words(tmp_path, ids, words):
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"word2idx": ids}))
    with pytest.raises(ValueError, match=words):
        read_vocabulary(path)


def test_bad_files_in_words(tmp_path):
    for name in ("none.pkl", "none.json"):
        with pytest.raises(ValueError, match="does not exist; a vocabulary is needed"):
            read_vocabulary(tmp_path / name)
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ValueError, match="is not a vocabulary"):
        read_vocabulary(tmp_path / "x.json")
    for damaged in (b"", b"garbage", pickle.dumps(3), pickled(2)):
        (tmp_path / "x.pkl").write_bytes(damaged)
        with pytest.raises(ValueError, match="ocabulary"):
            read_vocabulary(tmp_path / "x.pkl")


def test_characters_are_read_with_their_words(tmp_path):
    tokenizer = CharacterTokenizer()
    read = tokenizer.read([" A dog's 😀 ."])
    assert "".join(tokenizer.tokens(read.ids[0])) == "A dog's 😀 ."
    assert read.words == [[0, -1, 1, 1, 1, 2, 2, -1, 3, -1, 4]]
    assert tokenizer.spans([" A b"]) == [[(1, 2), (2, 3), (3, 4)]]
    tokenizer.save(tmp_path)
    assert open_tokenizer(tmp_path).digest == tokenizer.digest


def test_no_more_of_a_text_is_split_than_can_count(pieces, monkeypatch):
    """A long word takes time with the square of its length."""
    library, seen = pieces._pieces, []

    def called(texts, **options):
        seen.extend(texts)
        return library(texts, **options)

    wanted = pieces.read(["a dog " * 9])
    monkeypatch.setattr(pieces, "_pieces", called)
    found = pieces.read(["a dog " * 10**6])
    assert (found.ids, found.truncated) == (wanted.ids, 1)
    assert [len(text) for text in seen] == [10_000]
