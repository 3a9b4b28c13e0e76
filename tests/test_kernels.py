"""Public functions of kernels without a GPU: the torch form, and when a kernel is chosen."""

from __future__ import annotations

import pytest
import torch

from counterfoil import gpu, kernels
from counterfoil.kernels import attention_scores, max_sim, top_k


def bags(seed: int, n: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(longest) < torch.randint(1, longest + 1, (n, 1), generator=rng)
    vectors = torch.randn(n, longest, 6, generator=rng)
    return torch.nn.functional.normalize(vectors, dim=-1), mask


def test_max_sim_is_late_interaction():
    (images, image_mask), (texts, text_mask) = bags(0, 4, 5), bags(1, 3, 6)
    scores = max_sim(images, texts, image_mask, text_mask, pooling="Sum")
    for i in range(4):
        for t in range(3):
            products = texts[t][text_mask[t]] @ images[i][image_mask[i]].T
            torch.testing.assert_close(scores[i, t], products.amax(1).sum())


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_attention_scores_are_cosines_of_attended_vectors(direction):
    (images, image_mask), (texts, text_mask) = bags(0, 4, 5), bags(1, 3, 6)
    options = {"direction": direction, "raw_norm": "no_norm", "sharpness": 4.0}
    scores = attention_scores(images, texts, image_mask, text_mask, **options)
    for i in range(4):
        for t in range(3):
            queries, context = texts[t][text_mask[t]], images[i][image_mask[i]]
            if direction == "i2t":
                queries, context = context, queries
            attended = (4 * queries @ context.T).softmax(1) @ context
            cosines = torch.cosine_similarity(queries, attended, dim=1)
            torch.testing.assert_close(scores[i, t], cosines.mean())


def test_log_sum_exp_is_in_units_of_a_cosine():
    images, texts = torch.ones(1, 1, 2), torch.ones(1, 3, 2)
    score = attention_scores(images, texts, pooling="LogSumExp", pooling_sharpness=6.0)
    assert score.item() == pytest.approx(1 + torch.tensor(3.0).log().item() / 6)
    score = max_sim(images, texts, pooling="LogSumExp", sharpness=6.0)
    assert score.item() == pytest.approx(12 + torch.tensor(3.0).log().item())


def test_an_image_without_regions_is_one_zero_vector():
    images, mask = torch.full((1, 2, 3), torch.nan), torch.zeros(1, 2, dtype=torch.bool)
    assert max_sim(images, torch.ones(1, 2, 3), mask).tolist() == [[0.0]]
    assert max_sim(images[:0], torch.ones(1, 2, 3)).shape == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "both"}, "direction='both' is not known; use one of t2i, i2t"),
        ({"pooling": "Median"}, "pooling='Median' is not known"),
        ({"sharpness": 0.0}, "a sharpness of 0.0 was given; it must be positive"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        max_sim(torch.ones(1, 2, 3), torch.ones(1, 2, 3), **options)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 2, 3\) and \(1, 2, 4\) were given"):
        max_sim(torch.ones(1, 2, 3), torch.ones(1, 2, 4))
    with pytest.raises(ValueError, match=r"it must be \(1, 2\) and bool"):
        max_sim(torch.ones(1, 2, 3), torch.ones(1, 2, 3), torch.ones(1, 2))


def test_top_k_leaves_out_the_own_group():
    rng = torch.Generator().manual_seed(0)
    images, texts = torch.randn(4, 6, generator=rng), torch.randn(5000, 6, generator=rng)
    own = torch.arange(5000) % 4
    scores, rows = top_k(images, texts, 7, torch.arange(4), own)
    matrix = (images @ texts.T).masked_fill(torch.arange(4).unsqueeze(1) == own, -torch.inf)
    expected = matrix.topk(7)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(rows, expected.indices)
    few = top_k(images, texts[:2], 3)
    assert few[1][:, 2].tolist() == [-1] * 4
    assert few[0][:, 2].tolist() == [-torch.inf] * 4


@pytest.mark.parametrize(
    ("shape", "k", "groups", "message"),
    [
        ((3, 5), 1, None, r"shapes \(2, 4\) and \(3, 5\), .* were given"),
        ((3, 4), 0, None, "k is 0, but at least 1 answer is needed"),
        ((3, 4), 1, torch.zeros(3), r"groups of shape \(3,\) were given for 2 vectors"),
    ],
)
def test_top_k_refuses_what_does_not_fit(shape, k, groups, message):
    with pytest.raises(ValueError, match=message):
        top_k(torch.ones(2, 4), torch.ones(shape), k, groups)
    with pytest.raises(ValueError, match="queries hold NaN"):
        top_k(torch.full((2, 4), torch.nan), torch.ones(3, 4), 1)


def test_kernels_are_for_gpus(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    on_gpu, on_cpu = torch.empty(2, device="meta"), torch.empty(2)
    assert not gpu.usable(on_cpu)
    assert not gpu.usable(on_cpu, on_gpu)
    with pytest.raises(ValueError, match="choose one of auto, always, never"), kernels.use("yes"):
        pass
    if gpu.installed():
        with kernels.use("always"):
            assert not gpu.usable(on_cpu)  # a compiled kernel cannot read it
            monkeypatch.setenv("TRITON_INTERPRET", "1")
            assert gpu.usable(on_cpu)
            assert not gpu.usable(on_cpu, on_cpu.double())
            with kernels.use("never"):
                assert not gpu.usable(on_cpu)
    assert not gpu.usable(on_cpu)
