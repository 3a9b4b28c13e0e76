from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.aoq import examples
from counterfoil.data.dataset import Relation
from counterfoil.negatives.store import HardNegativeLists
from evaluation_cases import member, ragged, scores

SIZES = {"batch": 6, "texts": 5, "images": 3, "shown": 2}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(seed: int = 0, lists: HardNegativeLists | None = None, **sizes: int):
    text_to_image = ragged(12, 1, orphans=2)
    found = scores(12, text_to_image, 1)
    relation = Relation(text_to_image, images=12)
    drawn = examples(
        [member(found)], relation, **SIZES | sizes, anchors=4, rng=rng(seed), lists=lists
    )
    return text_to_image, found, drawn


def check(listed, line, wrong, true):
    """Scores, order and places of what is listed."""
    assert listed["scores"] == [float(line[row]) for row in listed["rows"]]
    assert listed["scores"] == sorted(listed["scores"], reverse=True)
    for row, place in zip(listed["rows"], listed["places"]):
        assert bool(wrong[row]) is not true
        assert place == 1 + int((wrong & (line > line[row])).sum())


def test_both_sides_of_an_anchor():
    text_to_image, found, drawn = made()
    assert len(drawn) == 4
    for image, text in drawn:
        assert int(text_to_image[text["row"]]) == image["row"]
        wrong = (text_to_image >= 0) & (text_to_image != image["row"])
        check(image["true"], found[image["row"]], wrong, true=True)
        assert (
            sorted(image["true"]["rows"])
            == (text_to_image == image["row"]).nonzero().flatten().tolist()
        )
        for listed in (image["online"], image["offline"]):
            check(listed, found[image["row"]], wrong, true=False)
        described = torch.bincount(text_to_image[text_to_image >= 0], minlength=12) > 0
        others = described & (torch.arange(12) != image["row"])
        assert text["true"]["rows"] == [image["row"]]
        for listed in (text["online"], text["offline"]):
            check(listed, found[:, text["row"]], others, true=False)


def test_offline_negatives_are_the_hardest():
    _, _, drawn = made()
    for image, text in drawn:
        assert len(image["offline"]["rows"]) == len(text["offline"]["rows"]) == 2
        assert max(image["offline"]["places"]) <= SIZES["texts"]
        assert max(text["offline"]["places"]) <= SIZES["images"]


def test_a_batch_of_everything_finds_the_hardest():
    _, _, drawn = made(batch=1000, shown=3)
    for pair in drawn:
        assert [example["online"]["places"] for example in pair] == [[1], [1]]


def test_lists_of_others():
    text_to_image = ragged(12, 1, orphans=2)
    texts = torch.full((12, 4), -1, dtype=torch.int32)
    images = torch.full((len(text_to_image), 2), -1, dtype=torch.int32)
    for image in range(12):
        wrong = ((text_to_image >= 0) & (text_to_image != image)).nonzero().flatten()
        texts[image, 0] = wrong[-1]
    described = text_to_image[text_to_image >= 0].unique().tolist()
    for text, own in enumerate(text_to_image.tolist()):
        images[text, 0] = next(row for row in described if row != own)
    _, _, drawn = made(lists=HardNegativeLists(texts, images))
    for image, text in drawn:
        assert image["offline"]["rows"] == [int(texts[image["row"], 0])]
        assert text["offline"]["rows"] == [int(images[text["row"], 0])]


def test_the_seed_chooses():
    assert made(0)[2] == made(0)[2]
    assert made(0)[2] != made(1)[2]


def test_one_image_has_no_negatives():
    relation = Relation(torch.tensor([0, 0]), images=2)
    with pytest.raises(ValueError, match="1 images have captions; negatives need at least 2"):
        examples([member(torch.rand(2, 2))], relation, **SIZES, anchors=1, rng=rng())
