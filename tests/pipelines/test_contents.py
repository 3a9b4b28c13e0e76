from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from corpus_cases import random_array, small_corpus, write_picture
from counterfoil.data.contents import ContentDigests
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers import load_dataset
from counterfoil.pipelines.pipeline import data_contents

CORPUS = small_corpus((2, 1, 3), ["train", "train", "test"])

PAIRS = torch.tensor([[[0, 1], [1, n]] for n in range(6)], dtype=torch.int16)


def features(**more) -> FeatureArray:
    return FeatureArray.of(random_array(3, 3, 4, **more))


@pytest.mark.parametrize(
    "other",
    [
        replace(CORPUS, splits=["train", "test", "test"]),
        replace(CORPUS, texts=["x", *CORPUS.texts[1:]]),
        replace(CORPUS, image_ids=["x", *CORPUS.image_ids[1:]]),
        replace(CORPUS, text_to_image=torch.tensor([0, 0, 2, 1, 2, 2])),
        replace(CORPUS, features=features(seed=1)),
        replace(CORPUS, features=None),
        replace(CORPUS, features=FeatureArray.of(random_array(3, 3, 4).astype(np.float16))),
        replace(CORPUS, text_features=FeatureArray.of(random_array(6, 4))),
        replace(CORPUS, dependencies=PAIRS),
    ],
)
def test_everything_counts(other):
    assert data_contents(other) != data_contents(CORPUS)


def test_the_name_and_the_place_do_not_count():
    again = replace(CORPUS, name="x", features=replace(CORPUS.features, where="elsewhere"))
    assert data_contents(again) == data_contents(CORPUS)


def test_dependencies_count_by_their_pairs():
    """Not by the room that the longest list of a data set leaves behind them."""
    parsed = replace(CORPUS, dependencies=PAIRS)
    longer = replace(CORPUS, dependencies=torch.cat([PAIRS, torch.full_like(PAIRS, -1)], 1))
    other = replace(CORPUS, dependencies=PAIRS.flip(2))
    for digest in (data_contents, ContentDigests.of):
        assert digest(parsed) == digest(longer)
        assert len({str(digest(one)) for one in (CORPUS, parsed, other)}) == 3


def test_pictures_count_by_content(tmp_path):
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        for row in range(3):
            write_picture(tmp_path / folder / f"{row}.png", row + seed)
    found = [
        data_contents(
            replace(CORPUS, pictures=PictureFiles([tmp_path / f / f"{r}.png" for r in range(3)]))
        )
        for f in "abc"
    ]
    assert found[0] == found[1]
    assert len({data_contents(CORPUS), *found}) == 3


def test_a_picture_that_cannot_be_read_is_no_error_here(tmp_path):
    lost = PictureFiles([tmp_path / f"{row}.png" for row in range(3)])
    assert data_contents(replace(CORPUS, pictures=lost)) != data_contents(CORPUS)


def test_scenes_by_seed_and_size():
    sources = ("scenes:images=12", "scenes:images=12,seed=1", "scenes:images=12,size=32")
    found = [data_contents(load_dataset(source)) for source in sources]
    assert len(set(found)) == 3
    assert found[0] == data_contents(load_dataset(sources[0]))
