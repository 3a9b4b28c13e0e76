from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from counterfoil.data.images import ResizeCrop
from counterfoil.data.processor import PixelProcessor, Processor, ProcessorConfig
from counterfoil.data.readers import load_dataset


def drawn(width, height, transform):
    """A picture whose red tells the column and whose green the row."""
    red, green = np.meshgrid(np.arange(width), np.arange(height))
    picture = np.stack([red, green, np.full_like(red, 9)], -1).astype(np.uint8)
    return transform(Image.fromarray(picture))


def test_a_picture_of_the_size_stays_as_it_is():
    for fit in ("shortest", "longest", "squash"):
        found = drawn(8, 8, ResizeCrop(8, fit, "bicubic"))
        assert found.shape == (3, 8, 8)
        assert (found[0] == np.arange(8)).all()
        assert (np.arange(8) == found[1].T).all()


@pytest.mark.parametrize(
    "width, height, left", [(8, 4, 2), (11, 4, 4), (9, 4, 2), (4, 4, 0)]
)  # halves are rounded to the even
def test_the_middle_is_cut_out(width, height, left):
    found = drawn(width, height, ResizeCrop(4, "shortest", "bilinear"))
    assert (found[0] == left + np.arange(4)).all()
    turned = drawn(height, width, ResizeCrop(4, "shortest", "bilinear"))
    assert (left + np.arange(4) == turned[1].T).all()


@pytest.mark.parametrize("height, above", [(4, 2), (5, 1), (8, 0)])
def test_what_is_missing_is_black(height, above):
    found = drawn(8, height, ResizeCrop(8, "longest", "bicubic"))
    assert (found[:, above : above + height][2] == 9).all()
    assert not found[:, :above].any()
    assert not found[:, above + height :].any()


def test_filters_differ_and_squash_keeps_all_of_a_picture():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 40, 3), np.uint8))
    transforms = [ResizeCrop(8, "squash", name) for name in ("bicubic", "bilinear")]
    assert not np.array_equal(*(transform(noise) for transform in transforms))
    whole = drawn(40, 10, transforms[0])
    assert whole[0, 0, 0] < 5
    assert whole[0, 0, -1] > 34
    cut = drawn(40, 10, ResizeCrop(8, "shortest", "bicubic"))
    assert cut[0].min() >= 14


@pytest.mark.parametrize("frame", ["shortest", "shortest nearest", "widest bicubic"])
def test_unknown_frames(frame):
    with pytest.raises(ValueError, match=r"'(|nearest|widest)' is not a"):
        PixelProcessor(8, frame=frame).from_images([Image.new("RGB", (9, 9))])


def test_keys_tell_forms_apart():
    given = [(8, "shortest", "bicubic"), (8, "squash", "bicubic"), (8, "squash", "bilinear")]
    keys = {ResizeCrop(*arguments).key for arguments in [*given, (9, "squash", "bicubic")]}
    assert len(keys) == 4


def test_a_processor_prepares_pictures_so(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    dataset = load_dataset("scenes:images=4")
    plan = ProcessorConfig(images="pixels", size=6, frame="longest bilinear")
    processor = plan.fit(dataset)
    processor.save(tmp_path)
    assert Processor.open(tmp_path).image_processor == processor.image_processor
    picture = dataset.pictures.open(0)
    transform = ResizeCrop(6, "longest", "bilinear")
    wanted = torch.from_numpy(transform(picture)).float() / 255 * 2 - 1
    torch.testing.assert_close(processor.process_images([picture]).values[0], wanted)
    torch.testing.assert_close(
        processor.process(dataset).images(torch.tensor([0])).values[0], wanted
    )
