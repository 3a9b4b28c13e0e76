"""A small bed, on which uses of negatives are tried."""

from __future__ import annotations

import numpy as np
import pytest

import corpus_cases
from benchmarks.truths.bed import Bed, write_bed
from counterfoil.core.io import write_json
from counterfoil.data.readers import load_dataset

SPLITS = ["train"] * 300 + ["val"] * 20 + ["test"] * 20


@pytest.fixture(scope="session")
def bed(tmp_path_factory):
    """Vectors with a common part for each image and its captions, and a few judgements."""
    folder = tmp_path_factory.mktemp("bed")
    rng = np.random.default_rng(0)
    names = [f"{n}.jpg" for n in range(len(SPLITS))]
    common = rng.normal(size=(len(names), 300))
    (folder / "towers").mkdir()
    images = common + rng.normal(size=common.shape)
    np.save(folder / "towers" / "images.npy", images.astype(np.float16))
    texts = np.repeat(common, 5, 0) + rng.normal(size=(5 * len(names), 300))
    np.save(folder / "towers" / "texts.npy", texts.astype(np.float16))
    write_json(folder / "towers" / "image_names.json", names)
    write_json(folder / "towers" / "splits.json", SPLITS)
    plain = [
        corpus_cases.karpathy_image(name, split, [f"a thing {n} {k}" for k in range(5)], 5 * n)
        for n, (name, split) in enumerate(zip(names, SPLITS, strict=True))
    ]
    corpus_cases.write_karpathy(folder / "data", plain, pictures=False)
    lines = [
        f"{n}.jpg\t{n + shift}.jpg#1\t0\t{3 * (shift == 1)}\t{3 * (shift != 1)}\n"
        for n in range(320, 335)
        for shift in (1, 2, 3)
    ]
    (folder / "CrowdFlowerAnnotations.txt").write_text("".join(lines))
    write_bed(folder / "towers", load_dataset(str(folder / "data")), folder / "made")
    return Bed(folder / "made", folder / "CrowdFlowerAnnotations.txt")
