"""Pictures that keep their shape."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from corpus_cases import small_corpus, write_picture
from counterfoil.data.images import PictureFiles, ResizeKeepAspect
from counterfoil.data.processor import PixelProcessor, Processor, ProcessorConfig

SIDES = [(640, 480), (480, 640), (500, 375), (384, 384), (1000, 300), (61, 62), (2000, 1999)]


def noise(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * height)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("sides", SIDES)
def test_pictures_are_those_of_transformers(sides, tmp_path):
    from transformers import AutoImageProcessor

    plain = {"image_processor_type": "ViltImageProcessor", "size": {"shortest_edge": 96}}
    plain |= {"size_divisor": 32, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(plain))
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    picture = noise(*sides)
    theirs = torch.as_tensor(np.array(processor(picture, return_tensors="np").pixel_values[0]))
    ours = PixelProcessor(96, divisor=32).from_images([picture])
    torch.testing.assert_close(ours.values[0], theirs.float(), rtol=1e-5, atol=1e-5)
    assert ours.mask.all()
    assert ours.mask.shape[1] == theirs.shape[1] * theirs.shape[2] // 32**2


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 64), st.integers(1, 400))
@settings(deadline=None)
def test_sides_are_multiples_and_fit(width, height, divisor, size):
    size = max(size, divisor)
    form = ResizeKeepAspect(size, divisor)
    sides = form.sides(width, height)
    assert all(side % divisor == 0 and side > 0 for side in sides)
    assert max(sides) <= max(divisor, 1333 / 800 * size)
    assert min(sides) <= size
    assert (sides[0] >= sides[1]) == (width >= height) or sides[0] == sides[1]
    assert 4 + 3 * sides[0] * sides[1] <= form.shape[0]


def test_what_was_stored_is_what_was_seen():
    form = ResizeKeepAspect(64, 16)
    for sides in SIDES:
        picture = noise(*sides)
        assert np.array_equal(form.unpack(form(picture)), form.resize(picture))


def test_pictures_of_a_corpus_and_bare_ones_are_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    paths = [tmp_path / f"{row}.png" for row in range(3)]
    for row, (path, size) in enumerate(zip(paths, [(30, 20), (20, 31), (25, 25)], strict=True)):
        write_picture(path, row, size=size)
    pictures = PictureFiles(paths)
    dataset = replace(small_corpus((1, 1, 1)), pictures=pictures)
    processor = ProcessorConfig(images="pixels", size=16, divisor=4).fit(dataset)
    rows = torch.tensor([2, 0, 1])
    inside = processor.process(dataset).images(rows)
    bare = processor.process_images([pictures.open(row) for row in rows.tolist()])
    assert torch.equal(inside.values, bare.values)
    assert torch.equal(inside.mask, bare.mask)
    assert inside.values.shape == (3, 3, 24, 24)
    cells = inside.mask.view(3, 6, 6)
    assert cells.sum((1, 2)).tolist() == [16, 4 * 6, 6 * 4]
    assert (cells[0, :4, :4].all(), cells[1, :4, :6].all(), cells[2, :6, :4].all()) == (True,) * 3
    processor.save(tmp_path / "lens")
    assert Processor.open(tmp_path / "lens").image_processor == processor.image_processor


def test_a_lens_of_before_keeps_its_squares(tmp_path):
    Processor(PixelProcessor(8), None).save(tmp_path)
    plain = json.loads((tmp_path / "lens.json").read_text())
    del plain["eye"]["divisor"]
    (tmp_path / "lens.json").write_text(json.dumps(plain))
    assert Processor.open(tmp_path).image_processor == PixelProcessor(8)


def test_a_divisor_that_does_not_go_with_the_size():
    with pytest.raises(ValueError, match="divisor=32 does not go with size=16"):
        PixelProcessor(16, divisor=32).from_images([noise(20, 20)])
