from __future__ import annotations

import pytest
import torch

import processes
from counterfoil.scoring.reducers import TrueScores
from counterfoil.scoring.stream import stream_scores
from evaluation_cases import member, ragged, scores

OWNER = ragged(37, 3, orphans=3)
FOUND = scores(37, OWNER, 3)


def wanted() -> list[float]:
    each = enumerate(OWNER.tolist())
    return [float(FOUND[image, text]) if image >= 0 else -torch.inf for text, image in each]


@pytest.mark.parametrize("tile", [(16, 16), (48, 128)])
def test_every_text_has_the_score_of_its_own_image(tile):
    true = TrueScores(OWNER)
    stream_scores([member(FOUND)], [true], tile=tile)
    assert true.scores.tolist() == wanted()


def test_two_processes_find_the_same():
    processes.run(_worker, 2)


def _worker() -> None:
    true = TrueScores(OWNER)
    stream_scores([member(FOUND)], [true], tile=(16, 16))
    assert true.scores.tolist() == wanted()
