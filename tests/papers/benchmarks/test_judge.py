from __future__ import annotations

import pytest
import torch

from benchmarks.judge import measure, results, truth
from counterfoil.core.types import Pairs
from counterfoil.data.readers import load_dataset
from counterfoil.negatives.judging import JudgedNegatives


def test_precision_and_recall_are_counted() -> None:
    none = torch.zeros(5)
    reached = torch.tensor([0.2, 0.5, 0.9, 0.95, 1.0])
    judged = JudgedNegatives(Pairs(none.long(), none.long()), none, reached, None)
    true = torch.tensor([True, False, True, False, True])
    row, highest = measure({"a": judged}, true, (0.9, 1.1))
    assert (row.pairs, row.precision, row.recall, row.left) == (3, 2 / 3, 2 / 3, 0.5)
    assert (highest.pairs, highest.precision, highest.recall, highest.left) == (0, 0, 0, 0.6)


def test_own_captions_are_true_and_an_invented_one_is_not() -> None:
    data = load_dataset("scenes:images=36").split("train")
    own = Pairs(data.text_to_image, torch.arange(len(data.texts)))
    assert bool(truth(data, own).all())
    image = torch.arange(len(data)).repeat_interleave(len(data.texts))
    every = truth(data, Pairs(image, torch.arange(len(data.texts)).repeat(len(data))))
    assert 0.04 < float(every.float().mean()) < 0.3


@pytest.mark.slow
def test_a_judge_is_trained_and_measured() -> None:
    data = load_dataset("scenes:images=120,dev=20,test=20,features=regions")
    rows, true = results(data, {"VSE++": 1}, scan=False)
    assert {row.judge for row in rows} == {"VSE++, the miner", "VSE++"}
    assert 0 < float(true.float().mean()) < 0.5
