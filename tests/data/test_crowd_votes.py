from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from corpus_cases import small_corpus
from counterfoil.data.corrections import CrowdVotes, read_crowd_votes
from counterfoil.data.readers import load_dataset

DATA = os.environ.get("COUNTERFOIL_DATA")


def test_captions_are_known_by_id_and_by_picture_and_place(tmp_path):
    dataset = small_corpus()
    image = dataset.image_ids[0]
    other = int(dataset.text_to_image[-1])
    own = (dataset.text_to_image == other).nonzero().flatten().tolist()
    named = dataset.text_ids[own[0]]
    path = tmp_path / "crowd.txt"
    path.write_text(
        f"{image}\t{named}\t0.5\t2\t2\n\n{image}\t{dataset.image_ids[other]}#0\t0\t1\t2\r\n"
    )
    crowd = read_crowd_votes(path, dataset)
    assert len(crowd) == 2
    assert crowd.images.tolist() == [0, 0]
    assert crowd.texts.tolist() == [own[0], own[0]]
    assert crowd.true.tolist() == [True, False]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "holds no judgements"),
        ("a\tb\t1\t2\n", "line 1 is no judgement"),
        ("a\tb\t1\ttwo\t0\n", "line 1 is no judgement"),
        ("a\tb\t0\t0\t0\n", "line 1 has no votes"),
        ("nobody\tb\t1\t3\t0\n", "the picture 'nobody'"),
    ],
)
def test_what_is_no_judgement_is_refused(tmp_path, text, message):
    path = tmp_path / "crowd.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_crowd_votes(path, small_corpus())


def test_rows_keep_columns_together():
    columns = [torch.arange(4) + 10 * n for n in range(4)]
    some = CrowdVotes(*columns).rows(torch.tensor([False, True, False, True]))
    assert [t.tolist() for t in (some.images, some.texts, some.yes, some.no)] == [
        [1, 3], [11, 13], [21, 23], [31, 33],
    ]  # fmt: skip


@pytest.mark.skipif(DATA is None, reason="needs COUNTERFOIL_DATA")
def test_flickr8k():
    folder = Path(str(DATA)) / "flickr8k"
    dataset = load_dataset(str(folder))
    path = folder / "annotations" / "CrowdFlowerAnnotations.txt"
    crowd = read_crowd_votes(path, dataset)
    other = crowd.rows(dataset.text_to_image[crowd.texts] != crowd.images)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    slow = [line for line in lines if line[1].split("#")[0] != line[0]]
    assert len(other) == len(slow)
    assert int(other.true.sum()) == sum(float(line[2]) >= 0.5 for line in slow)
    assert len(crowd) == len(lines)
