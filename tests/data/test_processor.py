import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from corpus_cases import random_array, small_corpus, write_picture, write_pictures
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import PictureFiles
from counterfoil.data.processor import FeatureProcessor, PixelProcessor, Processor, ProcessorConfig
from counterfoil.data.tokenizers import WordTokenizer


def pictured(tmp_path):
    paths = write_pictures(tmp_path, range(4))
    write_picture(paths[3], 3, size=(20, 31))
    return replace(small_corpus(), pictures=PictureFiles(paths))


def test_features_are_standardised_on_training_data():
    train = replace(small_corpus(), features=FeatureArray.of(5 + 2 * random_array(4, 3, 4)))
    processor = ProcessorConfig(standardise=True).fit(train)
    items = processor.process(train).images(torch.arange(4))
    torch.testing.assert_close(items.values.mean((0, 1)), torch.zeros(4), atol=1e-5, rtol=0)
    squares = items.values.square().mean((0, 1))
    torch.testing.assert_close(squares, torch.ones(4), atol=1e-5, rtol=0)
    other = replace(train, features=FeatureArray.of(random_array(4, 3, 4, seed=1)))
    moved = processor.process(other).images(torch.arange(4)).values
    assert moved.mean() < -1  # by the training mean, not its own


def test_features_as_they_are():
    dataset = small_corpus()
    processor = ProcessorConfig().fit(dataset)
    rows = torch.tensor([2, 0])
    assert torch.equal(
        processor.process(dataset).images(rows).values, dataset.features.take(rows).values
    )
    assert processor.image_processor == FeatureProcessor(4)


def test_vocabulary_comes_from_the_given_captions_alone():
    dataset = replace(small_corpus((1, 1), ["train", "test"]), texts=["a dog", "a cat"])
    processor = ProcessorConfig().fit(dataset.split("train"))
    items = processor.process(dataset).texts(torch.tensor([1, 0]))
    words = [" ".join(processor.tokenizer.tokens(row)) for row in items.values.tolist()]
    assert words == ["<start> a <unk> <end>", "<start> a dog <end>"]
    assert torch.equal(items.ids, torch.tensor([1, 0]))


@pytest.mark.parametrize(
    "plan",
    [
        ProcessorConfig(standardise=True),
        ProcessorConfig(images="pixels", size=6),
        ProcessorConfig(images="pixels", size=6, frame="longest bilinear"),
        ProcessorConfig(images="pixels", size=16, divisor=4),
        ProcessorConfig(images="pixels", size=16, whole=True),
    ],
)
def test_saved_and_opened(tmp_path, monkeypatch, plan):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    dataset, rows = pictured(tmp_path), torch.tensor([3, 1])
    processor = plan.fit(dataset)
    processor.save(tmp_path / "saved")
    back = Processor.open(tmp_path / "saved")
    assert back.image_processor == processor.image_processor
    assert back.tokenizer.digest == processor.tokenizer.digest
    (images, texts), (seen, read) = (
        (one.process(dataset).images(rows), one.process(dataset).texts(rows))
        for one in (processor, back)
    )
    assert torch.equal(seen.values, images.values)
    assert torch.equal(read.values, texts.values)
    if plan.images == "pixels":  # pictures of no data set are seen alike
        bare = back.process_images([dataset.pictures.open(row) for row in rows.tolist()])
        assert torch.equal(bare.values, images.values)
        assert torch.equal(bare.mask, images.mask)


def test_lens_of_vectors(tmp_path):
    vectors = FeatureArray.of(random_array(6, 5))
    dataset = replace(small_corpus(), text_features=vectors)
    processor = ProcessorConfig(texts="vectors").fit(dataset)
    processor.save(tmp_path)
    back = Processor.open(tmp_path)
    assert back.tokenizer is None
    rows = torch.tensor([5, 0])
    assert torch.equal(back.process(dataset).texts(rows).values, vectors.take(rows).values)
    with pytest.raises(ValueError, match="ready-made vectors and cannot read a caption"):
        back.process_texts(["a dog"])
    with pytest.raises(ValueError, match="has no text vectors and the model no tokenizer"):
        back.process(small_corpus()).texts(rows)


def test_bare_captions_are_read_as_those_of_a_corpus():
    dataset = small_corpus()
    processor = ProcessorConfig().fit(dataset)
    bare = processor.process_texts(dataset.texts)
    stored = processor.process(dataset).texts(torch.arange(6))
    assert torch.equal(bare.values, stored.values)
    assert torch.equal(bare.mask, stored.mask)
    assert bare.ids.tolist() == [-1] * 6
    with pytest.raises(ValueError, match="caption 1 of 2 is empty; give it words"):
        processor.process_texts(["a dog", "  "])


def test_pixels_are_standardised():
    processor = PixelProcessor(6, mean=(0.4, 0.5, 0.6), deviation=(1, 2, 3))
    white = processor.from_images([Image.new("RGB", (3, 3), "white")])
    assert (white.values.shape, white.mask.shape) == ((1, 3, 6, 6), (1, 1))
    wanted = torch.tensor([0.6, 0.25, 0.4 / 3])
    torch.testing.assert_close(white.values[0, :, 0, 0], wanted)


def test_what_a_lens_cannot_see(tmp_path):
    dataset = small_corpus()
    bare = replace(dataset, features=None)
    processor = ProcessorConfig().fit(dataset)
    with pytest.raises(ValueError, match="this recipe reads features; make them with"):
        ProcessorConfig().fit(bare)
    with pytest.raises(ValueError, match="small has no image to fit a processor on"):
        ProcessorConfig().fit(dataset.subset(torch.tensor([], dtype=torch.long)))
    with pytest.raises(ValueError, match="has no image features; this model reads features of wi"):
        processor.process(bare).images(torch.tensor([0]))
    wide = replace(dataset, features=FeatureArray.of(np.zeros((4, 7), np.float32)))
    with pytest.raises(ValueError, match="are 7 wide; this model reads features of width 4"):
        processor.process(wide).images(torch.tensor([0]))
    with pytest.raises(ValueError, match="reads stored features, not pictures"):
        processor.process_images([Image.new("RGB", (2, 2))])
    with pytest.raises(ValueError, match="has no pictures; this model reads pixels"):
        Processor(PixelProcessor(4), None).process(dataset).images(torch.tensor([0]))


def lens(images: object = "pixels", texts: object = False, **eye: object) -> str:
    return json.dumps({"images": images, "image_processor": {"size": 8} | eye, "texts": texts})


@pytest.mark.parametrize(
    "content",
    [
        *("{}", "[]", '{"image_processor": 3, "texts": false}', "{", '"x"', "[" * 9_999),
        *(lens({}), lens(["pixels"]), lens("other"), lens(texts=None), lens("features")),
        *(lens(size=0), lens(size=10**9), lens(size="8"), lens(size=None), lens(unknown=1)),
        *(lens(mean=[0.5]), lens(mean=0.5), lens(deviation=[1, 1, 0]), lens(mean=[1, "a", 2])),
        *(lens(mean=[1, 2, float("nan")]), lens(crop="yes"), lens(width=4)),
        '{"images": "features", "texts": false, "image_processor": {"width": 3, "mean": [1]}}',
    ],
)
def test_what_is_no_lens(tmp_path, content):
    (tmp_path / "processor.json").write_text(content)
    with pytest.raises(ValueError, match=r"processor\.json"):
        Processor.open(tmp_path)
    with pytest.raises(ValueError, match=r"processor\.json does not exist; a processor is needed"):
        Processor.open(tmp_path / "none")


def test_words_longer_than_planned_are_cut():
    processor = ProcessorConfig(longest=2, min_count=2).fit(
        replace(small_corpus((2,)), texts=["a b", "a c"])
    )
    assert isinstance(processor.tokenizer, WordTokenizer)
    assert processor.tokenizer.words[4:] == ["a"]
    assert processor.process_texts(["a a a a"]).values.shape == (1, 4)


def test_dependencies_follow_their_texts():
    pairs = torch.tensor([[[0, n], [n, 1]] for n in range(6)], dtype=torch.int16)
    dataset = replace(small_corpus(), dependencies=pairs)
    part = dataset.subset(torch.tensor([3, 0]))  # texts 3, 4, 5 and 0, 1
    read = ProcessorConfig().fit(part).process(part).texts(torch.tensor([4, 0]))
    assert torch.equal(read.dependencies, pairs[[1, 3]].long())
    assert torch.equal(read.rows(torch.tensor([1])).dependencies, pairs[[3]].long())
    assert ProcessorConfig().fit(part).process_texts(["a dog"]).dependencies is None
