"""Words that a model does not know, and captions that are one word, are told where they count."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import counterfoil as cf
import recipes_cases
from corpus_cases import write_picture
from counterfoil.core.config import config, from_data, lazy
from counterfoil.data import processor
from counterfoil.data.checks import check_dataset
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.tokenizers import (
    WordTokenizer,
    split_words,
    without_blanks,
    word_spans,
)
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.models.vsepp import VSEPP
from counterfoil.pipelines.pipeline import Train
from counterfoil.pipelines.stages.fitting import build_for_training
from counterfoil.search.index import build_index
from recipes_cases import run

ENGLISH = ["a dog in the snow", "a cat on a sofa", "a bird in a tree", "a man with a hat"]
FOREIGN = {
    "chinese": [
        "一只狗在雪地里奔跑",
        "一只猫躺在沙发上面",
        "一只鸟停在大树上面",
        "一个男人戴着一顶帽子",
    ],
    "japanese": [
        "犬が雪の中を走っている",
        "猫がソファの上で寝ている",
        "鳥が木にとまっている",
        "男が帽子をかぶっている",
    ],
}
UNSPACED = {
    "thai": ["สุนัขวิ่งบนหิมะ", "แมวนอนบนโซฟา", "นกเกาะอยู่บนต้นไม้", "ชายคนหนึ่งสวมหมวก"],
    "khmer": ["ឆ្កែរត់ក្នុងព្រិល", "ឆ្មាដេកលើសាឡុង", "បក្សីទំលើដើមឈើ", "បុរសពាក់មួក"],
}


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch):
    monkeypatch.setattr(processor, "_SAID", set())


def folder(root, train, test):
    """Pictures with a caption each, in two splits."""
    rows = []
    for split, captions in (("train", train), ("dev", train), ("test", test)):
        for number, caption in enumerate(captions):
            write_picture(root / f"{split}{number}.png", seed=len(rows))
            rows.append({"file": f"{split}{number}.png", "caption": caption, "split": split})
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    (root / "captions.csv").write_text("\n".join(lines) + "\n")
    return cf.load_dataset(root)


@pytest.mark.parametrize("language", UNSPACED)
def test_captions_without_blanks_are_told(tmp_path, capsys, language):
    captions = UNSPACED[language]
    assert without_blanks(captions) == 4
    folder(tmp_path, captions, list(reversed(captions)))
    assert run("data", "check", tmp_path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "12 captions without blanks between words" in said
    assert "such as a multilingual CLIP" in said


@pytest.mark.parametrize("captions", [ENGLISH, ["一只 狗 在 雪地 里", "собака бежит по снегу"]])
def test_captions_with_blanks_are_not(captions):
    assert without_blanks(captions) == 0


@pytest.mark.parametrize("language", FOREIGN)
def test_chinese_and_japanese_have_a_token_a_character(language):
    captions = FOREIGN[language]
    tokenizer = WordTokenizer.of(captions)
    assert set(tokenizer.words[4:]) == {sign for caption in captions for sign in caption}
    assert [len(row) - 2 for row in tokenizer.read(captions).ids] == list(map(len, captions))
    assert without_blanks(captions) == 0


def test_characters_stand_between_words_of_other_scripts():
    text = "A man、iPhone 15を持つ人 (3.5), don't 在."
    words = split_words(text)
    assert words == [
        *("a", "man", "、", "iphone", "15", "を", "持", "つ", "人"),
        *("(", "3.5", ")", ",", "do", "n't", "在", "."),
    ]
    assert [text[start:stop].lower() for start, stop in word_spans(text)] == words


def test_words_that_train_lacks_are_told_by_share(tmp_path, capsys):
    """Words of test: 14, of which "zebra", "crosses" and "street" are in no caption of train."""
    test = ["a zebra in the snow", "a man crosses a street", "a cat on a sofa!"]
    findings = check_dataset(folder(tmp_path, ENGLISH, test))
    assert findings.unknown == (("dev", 0.0), ("test", pytest.approx(3 / 15)))
    (told,) = [line for line in findings.warnings if "in no caption of train" in line]
    assert told.startswith("20.0 % of the words of test are")
    assert run("data", "check", tmp_path) == 0
    assert "dev 0.0 %, test 20.0 %" in " ".join(capsys.readouterr().out.split())


def test_training_says_the_share_of_dev_and_test(tmp_path, capsys):
    test = ["a zebra in the snow", "a man crosses a street", "a cat on a sofa!"]
    data = folder(tmp_path, ENGLISH, test)
    text = lazy(GRU, words=from_data("words"), width=8, word_width=4)
    image = lazy(PatchTower, size=16, patch=8, width=8, channels=4)
    stage = Train(
        name="online",
        model=config(VSEPP, image=image, text=text),
        objective=weighted_sum(own=lazy(HardestTripletLoss)),
        processor=ProcessorConfig(images="pixels", size=16),
    )
    for _ in range(2):
        context = SimpleNamespace(train=data.split("train"), dataset=data)
        build_for_training(context, stage)  # type: ignore[arg-type]
    said = " ".join(capsys.readouterr().err.split())
    name = data.name
    assert said.count(f"0.0 % of the words of {name} (dev) are not among the 17 that") == 1
    assert said.count(f"20.0 % of the words of {name} (test) are not among the 17 that") == 1


def test_an_evaluation_says_it(tmp_path, capsys):
    model = cf.load_model(recipes_cases.pixel_model(tmp_path / "pixels"))
    (tmp_path / "data").mkdir()
    data = folder(tmp_path / "data", ENGLISH, UNSPACED["thai"])
    for _ in range(2):
        cf.evaluate(model, data["test"])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("100.0 % of the words of data (test) are not among the") == 1
    assert "They have no blanks, so a whole caption is one word" in said
    (tmp_path / "known").mkdir()
    known = ["a red circle", "a red circle, a red circle and a dog"]
    cf.evaluate(model, folder(tmp_path / "known", ENGLISH, known)["test"])
    said = " ".join(capsys.readouterr().err.split())
    assert "% of the words of known (test) are not among the 13 that the model knows" in said
    assert "warning: " not in said.split("are not among")[0]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    root = tmp_path_factory.mktemp("index")
    model = cf.load_model(recipes_cases.pixel_model(root / "pixels"))
    build_index(model, cf.load_dataset("scenes:images=12"), root / "index").close()
    return root / "index"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("xylophone quixotic", "the model knows no word of 'xylophone quixotic', so that"),
        ("一只狗在雪地里奔跑", "the model knows no word of '一只狗在雪地里奔跑', so that its"),
        ("собака", "the model knows no word of 'собака', so that its results are arbitrary"),
        ("a red xylophone", "the model does not know xylophone, and reads all such words as one"),
        ("a red circle", ""),
    ],
)
def test_a_search_for_unknown_words_says_so(index, capsys, query, told):
    with cf.open_index(index) as opened:
        assert len(opened.search(query, 3)) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert told in said
    assert said.count("the model ") == bool(told)
    assert run("search", index, query, "--json") == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["results"]) > 0
    assert " ".join(err.split()).count("the model ") == bool(told)
    assert told in " ".join(err.split())


def test_many_captions_of_unknown_words_are_told_once(tmp_path, capsys):
    model = cf.load_model(recipes_cases.pixel_model(tmp_path / "pixels"))
    model.encode_texts(["xyzzy plugh", *["a red circle"] * 300, "plover"])
    model.encode_texts(["xyzzy plugh", "frobozz"])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("the model knows no word of 1 of 256 captions (0.4 %)") == 1
    assert said.count("the model knows no word of") == 1


@pytest.mark.parametrize(
    ("caption", "told"),
    [
        (
            "A wolf eats a red pizza.",
            "the model does not know wolf, eats, pizza, and reads all such words as one",
        ),
        ("a wolf", "the model does not know wolf, and reads all such words as one"),
        (
            "wolf eats pizza",
            "the model knows no word of the caption, so that its score is arbitrary; "
            "use other words",
        ),
        ("a red circle", ""),
    ],
)
def test_an_explanation_tells_the_unknown_words_of_its_caption_alone(
    tmp_path, capsys, caption, told
):
    recipes_cases.pixel_model(tmp_path / "pixels")
    write_picture(tmp_path / "x.png", seed=1)
    assert run("explain", tmp_path / "pixels", tmp_path / "x.png", caption) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("the model ") == bool(told)
    assert told in said


def test_explained_captions_of_unknown_words_are_told_once(tmp_path, capsys):
    model = cf.load_model(recipes_cases.pixel_model(tmp_path / "pixels"))
    write_picture(tmp_path / "x.png", seed=1)
    for _ in range(2):
        cf.explain(model, str(tmp_path / "x.png"), ["a wolf eats pizza", "wolf eats pizza"])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("the model knows no word of 1 of 2 captions (50.0 %)") == 1
    assert said.count("the model ") == 1


def test_pieces_of_words(tmp_path):
    pieces = cf.load_model(recipes_cases.clip_like(tmp_path / "clip")).processor.tokenizer
    unknown, every = pieces.count_unknown(["狗"])
    assert unknown == every > 0
    assert pieces.count_unknown(["a red circle"])[0] == 0
    words = WordTokenizer.of(ENGLISH)
    assert words.count_unknown(["a dog, and a wolf!", "..."]) == (2, 5)
    assert words.count_unknown([]) == (0, 0)
