from __future__ import annotations

import pytest
import torch

from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import DenseScores, Ranks, TopK
from counterfoil.scoring.stream import stream_scores
from engine_cases import Dot, Noisy, given, vectors


def test_dense_is_the_whole_matrix():
    images, texts = torch.randn(30, 5), torch.randn(70, 5)
    member = EmbeddedDataset(Dot(), vectors(images), vectors(texts))
    whole = DenseScores(30, 70)
    stream_scores([member], [whole], tile=(16, 16))
    torch.testing.assert_close(whole.scores, images @ texts.T)


def test_an_ensemble_is_the_mean_of_its_members():
    scores = torch.randn(3, 9, 14)
    whole, lists = DenseScores(9, 14), TopK("image", 9, 4)
    stream_scores([given(s) for s in scores], [whole, lists], tile=(4, 8))
    torch.testing.assert_close(whole.scores, scores.mean(0))
    assert torch.equal(lists.rows.long(), scores.mean(0).topk(4, 1).indices)


def test_members_may_see_different_bags():
    one = given(torch.randn(6, 8))
    values = torch.randn(6, 3, 8)
    bag = type(one.images)(values, torch.rand(6, 3) > 0.3)
    other = EmbeddedDataset(Dot(), bag, one.texts)
    whole = DenseScores(6, 8)
    stream_scores([one, other], [whole])
    mean = (
        one.model.score_matrix(one.images, one.texts) + other.model.score_matrix(bag, one.texts)
    ) / 2
    torch.testing.assert_close(whole.scores, mean)


def test_members_must_agree_on_the_corpus():
    with pytest.raises(ValueError, match="their sizes are 2 x 3, 2 x 4"):
        stream_scores([given(torch.zeros(2, 3)), given(torch.zeros(2, 4))], [])
    with pytest.raises(ValueError, match="sizes are none"):
        stream_scores([], [])


@pytest.mark.parametrize("reordered", [False, True])
def test_nan_is_refused_with_the_rows_in_the_data_set(reordered):
    images, texts = torch.ones(40, 2), torch.ones(50, 2)
    texts[33, 1] = torch.nan
    member = EmbeddedDataset(Dot(), vectors(images), vectors(texts))
    text_to_image = torch.arange(50).flip(0) % 40  # texts are streamed in the order of images
    reducer = Ranks("image", 40, text_to_image) if reordered else TopK("image", 40, 3)
    with pytest.raises(ValueError, match=r"image row \d+ and text row 33 is not a number"):
        stream_scores([member], [reducer], tile=(16, 16))


def test_scoring_is_in_evaluation_mode_and_modes_come_back():
    model = Noisy().train()
    model.text.eval()  # a part that was frozen stays so
    modes = []
    grid = model.score_matrix
    model.score_matrix = lambda i, t: (modes.append(model.drop.training), grid(i, t))[1]  # type: ignore
    whole = DenseScores(2, 2)
    stream_scores(
        [EmbeddedDataset(model, vectors(torch.zeros(2, 6)), vectors(torch.zeros(2, 6)))], [whole]
    )
    assert modes == [False]
    assert model.training
    assert model.drop.training
    assert not model.text.training
    assert not whole.scores.is_inference()


def test_nothing_to_score_is_fine():
    lists = TopK("image", 0, 3), TopK("text", 4, 3)
    stream_scores(
        [EmbeddedDataset(Dot(), vectors(torch.zeros(0, 2)), vectors(torch.zeros(4, 2)))], lists
    )
    assert lists[0].rows.shape == (0, 3)
    assert (lists[1].rows == -1).all()
