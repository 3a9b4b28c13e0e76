from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from corpus_cases import random_array, small_corpus, write_picture
from counterfoil.corpus.lens import FeatureEye, Lens, LensPlan, PixelEye
from counterfoil.corpus.pictures import PictureFiles
from counterfoil.corpus.regions import Features
from counterfoil.corpus.words import Words


def pictured(tmp_path):
    paths = [tmp_path / f"{row}.png" for row in range(4)]
    for row, path in enumerate(paths):
        write_picture(path, row)
    return replace(small_corpus(), pictures=PictureFiles(paths))


def test_features_are_standardised_on_training_data():
    train = replace(small_corpus(), features=Features.of(5 + 2 * random_array(4, 3, 4)))
    lens = LensPlan(standardise=True).fit(train)
    items = lens.on(train).images(torch.arange(4))
    torch.testing.assert_close(items.values.mean((0, 1)), torch.zeros(4), atol=1e-5, rtol=0)
    squares = items.values.square().mean((0, 1))
    torch.testing.assert_close(squares, torch.ones(4), atol=1e-5, rtol=0)
    other = replace(train, features=Features.of(random_array(4, 3, 4, seed=1)))
    moved = lens.on(other).images(torch.arange(4)).values
    assert moved.mean() < -1  # by the training mean, not its own


def test_features_as_they_are():
    corpus = small_corpus()
    lens = LensPlan().fit(corpus)
    rows = torch.tensor([2, 0])
    assert torch.equal(lens.on(corpus).images(rows).values, corpus.features.take(rows).values)
    assert lens.eye == FeatureEye(4)


def test_vocabulary_comes_from_the_given_captions_alone():
    corpus = replace(small_corpus((1, 1), ["train", "test"]), texts=["a dog", "a cat"])
    lens = LensPlan().fit(corpus.split("train"))
    items = lens.on(corpus).texts(torch.tensor([1, 0]))
    assert lens.tokenizer.tokens(items.values[0].tolist()) == ["<start>", "a", "<unk>", "<end>"]
    assert lens.tokenizer.tokens(items.values[1].tolist()) == ["<start>", "a", "dog", "<end>"]
    assert torch.equal(items.ids, torch.tensor([1, 0]))


@pytest.mark.parametrize("plan", [LensPlan(standardise=True), LensPlan(images="pixels", size=6)])
def test_saved_and_opened(tmp_path, plan):
    corpus = pictured(tmp_path)
    lens = plan.fit(corpus)
    lens.save(tmp_path / "lens")
    back = Lens.open(tmp_path / "lens")
    assert back.eye == lens.eye
    assert back.tokenizer.digest == lens.tokenizer.digest
    rows = torch.tensor([3, 1])
    assert torch.equal(back.on(corpus).images(rows).values, lens.on(corpus).images(rows).values)
    assert torch.equal(back.on(corpus).texts(rows).values, lens.on(corpus).texts(rows).values)


def test_lens_of_vectors(tmp_path):
    vectors = Features.of(random_array(6, 5))
    corpus = replace(small_corpus(), text_features=vectors)
    lens = LensPlan(texts="vectors").fit(corpus)
    lens.save(tmp_path)
    back = Lens.open(tmp_path)
    assert back.tokenizer is None
    rows = torch.tensor([5, 0])
    assert torch.equal(back.on(corpus).texts(rows).values, vectors.take(rows).values)
    assert back.on(corpus).text_lengths().tolist() == [1] * 6
    with pytest.raises(ValueError, match="ready-made vectors and cannot read a caption"):
        back.read(["a dog"])
    with pytest.raises(ValueError, match="has no text vectors and the model no tokenizer"):
        back.on(small_corpus()).texts(rows)


def test_bare_captions_are_read_as_those_of_a_corpus():
    corpus = small_corpus()
    lens = LensPlan().fit(corpus)
    bare = lens.read(corpus.texts)
    stored = lens.on(corpus).texts(torch.arange(6))
    assert torch.equal(bare.values, stored.values)
    assert torch.equal(bare.mask, stored.mask)
    assert bare.ids.tolist() == [-1] * 6
    with pytest.raises(ValueError, match="caption 1 of 2 is empty; give it words"):
        lens.read(["a dog", "  "])


def test_bare_pictures_are_seen_as_those_of_a_corpus(tmp_path):
    corpus = pictured(tmp_path)
    lens = LensPlan(images="pixels", size=6, mean=(0.4, 0.5, 0.6), deviation=(1, 2, 3)).fit(corpus)
    stored = lens.on(corpus).images(torch.arange(4))
    bare = lens.see([corpus.pictures.open(row) for row in range(4)])
    assert stored.values.shape == (4, 3, 6, 6)
    assert torch.equal(bare.values, stored.values)
    assert stored.mask.shape == (4, 1)
    white = lens.see([Image.new("RGB", (3, 3), "white")]).values[0, :, 0, 0]
    torch.testing.assert_close(white, torch.tensor([0.6, 0.25, 0.4 / 3]))


def test_lengths_of_texts():
    corpus = replace(small_corpus((1, 1)), texts=["a dog runs", "x"])
    assert LensPlan().fit(corpus).on(corpus).text_lengths().tolist() == [5, 3]


def test_what_a_lens_cannot_see(tmp_path):
    corpus = small_corpus()
    bare = replace(corpus, features=None)
    lens = LensPlan().fit(corpus)
    with pytest.raises(ValueError, match="this recipe reads features; make them with"):
        LensPlan().fit(bare)
    with pytest.raises(ValueError, match="small has no image to fit a lens on"):
        LensPlan().fit(corpus.subset(torch.tensor([], dtype=torch.long)))
    with pytest.raises(ValueError, match="has no image features; this model reads features of wi"):
        lens.on(bare).images(torch.tensor([0]))
    wide = replace(corpus, features=Features.of(np.zeros((4, 7), np.float32)))
    with pytest.raises(ValueError, match="are 7 wide; this model reads features of width 4"):
        lens.on(wide).images(torch.tensor([0]))
    with pytest.raises(ValueError, match="cannot look at a bare picture"):
        lens.see([Image.new("RGB", (2, 2))])
    with pytest.raises(ValueError, match="has no pictures; this model reads pixels"):
        Lens(PixelEye(4), None).on(corpus).images(torch.tensor([0]))


@pytest.mark.parametrize("content", ["{}", "[]", '{"eye": 3, "texts": false}', "{", '"x"'])
def test_what_is_no_lens(tmp_path, content):
    (tmp_path / "lens.json").write_text(content)
    with pytest.raises(ValueError, match=r"lens\.json"):
        Lens.open(tmp_path)
    with pytest.raises(ValueError, match=r"lens\.json does not exist; a lens is needed"):
        Lens.open(tmp_path / "none")


def test_words_longer_than_planned_are_cut():
    lens = LensPlan(longest=2, min_count=2).fit(replace(small_corpus((2,)), texts=["a b", "a c"]))
    assert isinstance(lens.tokenizer, Words)
    assert lens.tokenizer.words[4:] == ["a"]
    assert lens.read(["a a a a"]).values.shape == (1, 4)
