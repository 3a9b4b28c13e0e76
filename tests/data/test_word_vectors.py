import zipfile

import pytest
import torch

from counterfoil.data import word_vectors as module
from counterfoil.data.tokenizers import SPECIAL
from counterfoil.data.word_vectors import word_vectors

WORDS = [*SPECIAL, "dog", "t-shirt", "his/her", "n't", "absent", "."]
LINES = [
    ", 9 9 9",
    "dog 0.5 -1e-2 3",
    ". . . 8 8 8",
    "dog house 7 7 7",
    "tshirt 1 2 3",
    "his 4 5 6",
    "nt 6 6 6",
    "n't 7 8 9",
    "dog 0 0 0",
    "hünd 1 1 1",
    ". 2 2 2",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))


def written(folder, lines, name="glove.txt"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


EXPECTED = {
    "dog": [0.5, -0.01, 3],
    "t-shirt": [1, 2, 3],
    "his/her": [4, 5, 6],
    "n't": [7, 8, 9],
    ".": [2, 2, 2],
}


def as_dict(found, words=WORDS):
    vectors = [[round(x, 6) for x in vector] for vector in found.vectors.tolist()]
    return dict(zip([words[row] for row in found.rows.tolist()], vectors, strict=True))


def test_words_are_found_as_they_are_or_without_their_marks(tmp_path):
    found = word_vectors(written(tmp_path, LINES), WORDS)
    assert as_dict(found) == EXPECTED
    assert len(found) == 5
    assert found.vectors.dtype == torch.float32
    assert found.rows.tolist() == sorted(found.rows.tolist())


def test_words_with_blanks_are_words_of_their_own(tmp_path):
    assert as_dict(word_vectors(written(tmp_path, LINES[1:4]), ["dog", "."]), ["dog", "."]) == {
        "dog": [0.5, -0.01, 3]
    }


@pytest.mark.parametrize("form", ["header", "crlf", "zip", "trailing"])
def test_other_forms_of_the_file(tmp_path, form):
    lines = LINES
    if form == "header":
        lines = [f"{len(LINES)} 3", *LINES]
    if form in ("crlf", "trailing"):
        lines = [line + {"crlf": "\r", "trailing": " "}[form] for line in LINES]
    path = written(tmp_path, lines)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "glove.zip", "w") as archive:
            archive.write(path, "glove.txt")
        path = tmp_path / "glove.zip"
    assert as_dict(word_vectors(path, WORDS)) == EXPECTED


def test_read_once_as_long_as_nothing_changes(tmp_path, monkeypatch):
    reads = []
    original = module._read
    monkeypatch.setattr(module, "_read", lambda *a: reads.append(1) or original(*a))
    path = written(tmp_path, LINES)
    for _ in range(2):
        assert as_dict(word_vectors(path, WORDS)) == EXPECTED
    assert len(reads) == 1
    word_vectors(path, WORDS[:5])
    written(tmp_path, [*LINES, "absent 1 1 1"])
    assert "absent" in as_dict(word_vectors(path, WORDS))
    assert len(reads) == 3
    for kept in (tmp_path / "cache" / "vectors").iterdir():
        kept.write_bytes(b"damaged")
    assert "absent" in as_dict(word_vectors(path, WORDS))


@pytest.mark.parametrize(
    "lines, sentence",
    [
        ([""], "glove.txt is not in GloVe's text format"),
        (["# About these", "nothing"], "glove.txt is not in GloVe's text format"),
        ([", 1 2 3", "cat 1 2 3"], r"has a vector for none of the 10 words, such as 't-shirt'"),
        (
            [", 1 2 3", "dog 1 2 x"],
            r"line 2 of .*glove.txt is not a word and 3 numbers.*'dog 1 2 x",
        ),
        ([", 1 2 3", "dog 1 nan 2"], r"line 2 of .* is not a word and 3 numbers"),
        ([*[", 1 2 3"] * 200, "dog 1 2"], r"line 201 of .* is not a word and 3 numbers"),
    ],
)
def test_what_is_no_file_of_word_vectors(tmp_path, lines, sentence):
    with pytest.raises(ValueError, match=sentence):
        word_vectors(written(tmp_path, lines), WORDS)


def test_binary_files_folders_and_absent_files(tmp_path):
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(ValueError, match="is not in GloVe's text format"):
        word_vectors(tmp_path / "model.bin", WORDS)
    for path in (tmp_path, tmp_path / "absent.txt"):
        with pytest.raises(ValueError, match=r"is no file; give word vectors in GloVe's text"):
            word_vectors(path, WORDS)


def test_an_archive_of_several_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "glove.zip", "w") as archive:
        archive.writestr("a.txt", "a 1 2")
        archive.writestr("b.txt", "b 1 2")
    with pytest.raises(ValueError, match=r"glove.zip holds 2 files \(a.txt, b.txt\); unpack it"):
        word_vectors(tmp_path / "glove.zip", WORDS)
