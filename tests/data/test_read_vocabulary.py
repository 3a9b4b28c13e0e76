import json
import pickle
import sys
import types

import pytest

from counterfoil.data.tokenizers import read_vocabulary

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
        ({"dog": 0, "<start>": 1, "<end>": 2, "<unk>": 3}, "a vocabulary begins with <pad>"),
    ],
)
def test_bad_ids_in_words(tmp_path, ids, words):
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"word2idx": ids}))
    with pytest.raises(ValueError, match=words):
        read_vocabulary(path)


def test_bad_files_in_words(tmp_path):
    with pytest.raises(ValueError, match="does not exist; a vocabulary is needed"):
        read_vocabulary(tmp_path / "none.pkl")
    with pytest.raises(ValueError, match="does not exist; a vocabulary is needed"):
        read_vocabulary(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ValueError, match="is not a vocabulary"):
        read_vocabulary(tmp_path / "x.json")
    for damaged in (b"", b"garbage", pickle.dumps(3), pickled(2)):
        (tmp_path / "x.pkl").write_bytes(damaged)
        with pytest.raises(ValueError, match="ocabulary"):
            read_vocabulary(tmp_path / "x.pkl")
