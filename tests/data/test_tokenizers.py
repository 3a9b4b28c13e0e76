import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.tokenizers import (
    SPECIAL,
    WordPieceTokenizer,
    WordTokenizer,
    open_tokenizer,
    split_words,
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
        (["a", "b"], "a vocabulary begins with <pad> <start> <end> <unk>, this one with 'a b'"),
        ([*SPECIAL, "x", "x"], "'x' occurs twice"),
        ([], "a vocabulary begins with"),
    ],
)
def test_bad_vocabularies(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        WordTokenizer(words)


@pytest.mark.parametrize("content", ["{}", "[]", '{"kind": "words"}', '{"kind": "other"}', "{"])
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
    ids = pieces.encode(["A dogs", "a a a a a", ""])
    assert ids == [[2, 6, 4, 3], [2, 6, 6, 3], [2, 3]]
    assert pieces.tokens([2, 4, 5]) == ["[CLS]", "dog", "##s"]
    assert (pieces.size, pieces.pad) == (8, 0)
    assert (pieces.mask, pieces.divides) == (7, True)
    before = pieces.digest
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


def test_every_id_of_a_vocabulary_is_a_word():
    words = WordTokenizer.of(["a dog"])
    read = words.read(["a dog", "x"])
    assert (read.ids, read.words) == (words.encode(["a dog", "x"]), None)
    assert (words.mask, words.divides) == (None, False)


def test_a_tokenizer_that_cannot_tell_its_words_tells_none(pieces):
    pieces.divides = False
    assert pieces.read(["a dogs"]).words is None


def test_digest_of_pieces_does_not_depend_on_what_was_encoded(pieces):
    before = pieces.digest
    pieces.encode(["a dog"])
    assert pieces.digest == before


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
    with pytest.raises(ValueError, match="has no offsets of its tokens"):
        pieces.spans([text])
