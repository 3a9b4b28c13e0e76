from __future__ import annotations

import pytest
import torch

import processes
from counterfoil.scoring.reducers import PairRanks
from counterfoil.scoring.stream import stream_scores
from engine_cases import given
from evaluation_cases import ragged, scores


def slow(found, text_to_image):
    """Rank of every text among the wrong texts of its image, one text at a time."""
    ranks = []
    for text, image in enumerate(text_to_image.tolist()):
        if image < 0:
            ranks.append(-1)
            continue
        level = float(found[image, text])
        wrong = [t for t, other in enumerate(text_to_image.tolist()) if other != image]
        above = [t for t in wrong if (-float(found[image, t]), t) < (-level, text)]
        ranks.append(len(above))
    return ranks


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("levels", [None, 2])
def test_every_true_text_has_a_rank_of_its_own(seed, levels):
    text_to_image = ragged(21, seed, orphans=3)
    found = scores(21, text_to_image, seed, levels)
    for tile in ((16, 16), (32, 16), (64, 256)):
        ranks = PairRanks(text_to_image)
        stream_scores([given(found)], [ranks], tile=tile)
        assert ranks.ranks().tolist() == slow(found, text_to_image)


def test_memory_for_no_tile_changes_nothing():
    text_to_image = ragged(40, 3)
    found = scores(40, text_to_image, 3)
    ranks = PairRanks(text_to_image)
    stream_scores([given(found)], [ranks], memory=1, tile=(16, 16))
    assert ranks.ranks().tolist() == slow(found, text_to_image)


def test_lowest_scores_rank_last():
    text_to_image = torch.tensor([0, 0, 1])
    found = torch.tensor([[-torch.inf, 0.0, 1.0], [0.0, 0.0, 0.0]])
    ranks = PairRanks(text_to_image)
    stream_scores([given_exactly(found)], [ranks])
    assert ranks.ranks().tolist() == [1, 1, 2]  # the other true text of the image counts for none


def given_exactly(found):
    """As `given`, for scores that a product cannot give."""
    member = given(torch.arange(len(found)).float().unsqueeze(1).expand(-1, found.shape[1]))
    member.model.score_matrix = lambda images, texts: _cut(found, images, texts)
    return member


def _cut(found, images, texts):
    rows = images.tokens[:, 0, 0].long()
    return found[rows][:, texts.tokens[:, 0].argmax(1)]


@pytest.mark.parametrize("size", [2, 3])
def test_processes_agree(size):
    text_to_image = ragged(45, 4, orphans=2)
    found = scores(45, text_to_image, 4, levels=2)
    for ranks in processes.run(_ranks, size, found, text_to_image):
        assert ranks == slow(found, text_to_image)


def _ranks(found, text_to_image):
    ranks = PairRanks(text_to_image)
    stream_scores([given(found)], [ranks], tile=(16, 16))
    return ranks.ranks().tolist()
