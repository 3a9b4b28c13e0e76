"""Random captions of other pictures, beside which foils stand."""

from __future__ import annotations

import torch

import tailored_cases
from counterfoil.analysis.tags import random_captions


def test_others_are_of_other_pictures_and_say_something_else() -> None:
    dataset = tailored_cases.dataset()
    dataset.texts[5] = dataset.texts[0]  # two pictures of which the same was said
    rows = torch.tensor([0, 4, 5, 11])
    [found] = random_captions(dataset, rows, 99, seed=0)
    for row in rows.tolist():
        own = {
            t
            for t, o in zip(dataset.texts, dataset.text_to_image)
            if o == dataset.text_to_image[row]
        }
        said = [text for text, of in zip(found.texts, found.rows.tolist()) if of == row]
        foreign = [
            t
            for t, o in zip(dataset.texts, dataset.text_to_image)
            if o != dataset.text_to_image[row]
        ]
        assert sorted(said) == sorted(text for text in foreign if text not in own)
        assert len(said) < len(foreign) or row not in (0, 5)
    [few] = random_captions(dataset, rows, 2, seed=1)
    assert few.rows.tolist() == [0, 0, 4, 4, 5, 5, 11, 11]
    assert few.texts != next(random_captions(dataset, rows, 2, seed=2)).texts


def test_where_all_pictures_are_one_there_are_none() -> None:
    alone = tailored_cases.dataset(images=1)
    assert not list(random_captions(alone, torch.tensor([0]), 3, seed=0))
