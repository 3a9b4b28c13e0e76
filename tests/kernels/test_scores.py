"""Kernels of MaxSim and cross-attention equal the torch form, in values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from counterfoil import gpu, kernels
from counterfoil.gpu import attention as attention_kernel
from counterfoil.gpu import common
from counterfoil.gpu import max_sim as max_sim_kernel
from counterfoil.kernels import attention_scores, max_sim
from counterfoil.models.layers.attention_model import AttentionModel
from counterfoil.models.layers.late_interaction import MaxSimModel
from papers_matcher_cases import ALL
from tensor_sizes import Largest

FUSED = [case for case in ALL if isinstance(case.build(), AttentionModel | MaxSimModel)]
POOLINGS = ("Mean", "Sum", "Max", "LogSumExp", "Softmax")
# of the largest value: forward and backward. In half precision the derivatives of affinities and
# the gradients themselves are rounded
NEAR = {torch.float32: (2e-6, 1e-5), torch.bfloat16: (2e-5, 2e-2), torch.float16: (2e-5, 3e-3)}


def items(n: int, longest: int, width: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Items of one vector to the longest, with holes, and NaN at padding."""
    vectors = normalize(torch.randn(n, longest, width, generator=rng), dim=-1)
    mask = torch.arange(longest) < torch.randint(1, longest + 1, (n, 1), generator=rng)
    mask &= torch.rand(n, longest, generator=rng) < 0.9
    mask[:, 0] |= ~mask.any(1)
    mask[0] = True
    return vectors.masked_fill(~mask.unsqueeze(-1), torch.nan), mask


def results(score: Any, images: Tensor, texts: Tensor, *masks: Tensor, **options: Any):
    """Scores, and gradients of images and texts."""
    images, texts = (x.detach().clone().requires_grad_() for x in (images, texts))
    scores = score(images, texts, *masks, **options)
    weights = torch.linspace(-1, 2, scores.numel()).view(scores.shape)
    (scores * weights).sum().backward()
    return scores.detach(), images.grad.float(), texts.grad.float()


def assert_near(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    forward, backward = NEAR[dtype]
    for one, other, near in zip(got, expected, (forward, backward, backward), strict=True):
        assert not one.isnan().any()
        off = float((one - other).abs().max() / other.abs().max())
        assert off < near


def check(score, sizes, dtype=torch.float32, **options):
    rng = torch.Generator().manual_seed(1)
    images, texts, regions, words, width = sizes
    left, image_mask = items(images, regions, width, rng)
    right, text_mask = items(texts, words, width, rng)
    left, right = left.to(dtype), right.to(dtype)
    with kernels.use("always"):
        got = results(score, left, right, image_mask, text_mask, **options)
    expected = results(score, left.float(), right.float(), image_mask, text_mask, **options)
    assert_near(got, expected, dtype)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_max_sim(direction, pooling):
    check(max_sim, (3, 5, 9, 5, 20), direction=direction, pooling=pooling, sharpness=3.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [40, 200], ids=["resident", "in parts"])
def test_max_sim_in_half_precision(dtype, width):
    check(max_sim, (4, 3, 7, 12, width), dtype, pooling="LogSumExp", sharpness=5.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_max_sim_of_contexts_in_two_parts(direction, dtype, monkeypatch):
    monkeypatch.setattr(max_sim_kernel, "AT_ONCE", 20 * 7 * 4)  # some queries after others
    monkeypatch.setattr(max_sim_kernel, "HIGHEST", 1)  # every program visits all contexts
    check(max_sim, (9, 7, 36, 20, 20), dtype, direction=direction, pooling="LogSumExp")


def test_max_sim_visits_long_contexts_block_by_block():
    check(max_sim, (2, 3, 150, 6, 33))


def test_max_sim_of_long_queries():
    check(max_sim, (2, 3, 150, 6, 33), torch.bfloat16, direction="i2t")


def test_max_sim_gives_equal_vectors_to_the_first():
    images = torch.ones(1, 3, 4, requires_grad=True)
    with kernels.use("always"):
        max_sim(images, torch.ones(1, 2, 4)).sum().backward()
    assert images.grad.sum(2).tolist() == [[4.0, 0.0, 0.0]]


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("raw_norm", ["clipped_l2norm", "l2norm", "softmax", "clipped", "no_norm"])
def test_attention(direction, raw_norm):
    options = {"raw_norm": raw_norm, "pooling": "LogSumExp", "direction": direction}
    check(attention_scores, (3, 5, 6, 10, 20), **options)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_of_attention(pooling):
    check(attention_scores, (2, 3, 5, 6, 20), pooling=pooling)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("focus", ["equal", "prob"])
def test_focal_attention(direction, focus):
    check(attention_scores, (3, 4, 7, 9, 20), direction=direction, focus=focus, sharpness=20.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_attention_in_half_precision(dtype, direction):
    check(attention_scores, (3, 4, 36, 12, 70), dtype, direction=direction, pooling="LogSumExp")


def test_attention_in_parts_keeps_its_gradient(monkeypatch):
    monkeypatch.setattr(attention_kernel, "BUFFER", 200)
    check(attention_scores, (7, 20, 4, 10, 20))
    check(attention_scores, (7, 20, 4, 10, 20), direction="i2t")


@pytest.mark.parametrize("score", [max_sim, attention_scores])
def test_gradients_are_reproducible(score):
    rng = torch.Generator().manual_seed(1)
    images, image_mask = items(4, 5, 20, rng)
    texts, text_mask = items(30, 8, 20, rng)
    with kernels.use("always"):
        first, second = (results(score, images, texts, image_mask, text_mask) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("score", [max_sim, attention_scores])
def test_no_tensor_grows_with_all_four_axes(score, monkeypatch):
    monkeypatch.setattr(attention_kernel, "BUFFER", 1 << 12)
    monkeypatch.setattr(attention_kernel, "SPLITS", 1)
    images, texts = torch.randn(16, 12, 8), torch.randn(16, 12, 8)
    with kernels.use("always"), Largest() as largest:
        results(score, images, texts)
    # a number per pair and word, a buffer, or the inputs
    assert largest.elements <= max(16 * 16 * 12, 1 << 12)


class Questions(TorchDispatchMode):
    """Counts the operations whose answer the CPU waits for."""

    WAITED_FOR = ("_local_scalar_dense", "nonzero", "masked_select")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += str(func).split(".")[1] in self.WAITED_FOR
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("score", [max_sim, attention_scores])
def test_lengths_alone_are_read_before_kernels_run(score, monkeypatch):
    rng = torch.Generator().manual_seed(1)
    images, image_mask = items(6, 36, 20, rng)
    texts, text_mask = items(40, 30, 20, rng)
    real, transfers = common.lengths_of, []

    def lengths_of(*masks: Tensor):
        transfers.append(len(masks))
        return real(*masks)

    monkeypatch.setattr(common, "lengths_of", lengths_of)
    for module in (attention_kernel, max_sim_kernel):
        monkeypatch.setattr(module, "launch", lambda *arguments, **constants: None)
    with kernels.use("always"), torch.no_grad(), Questions() as asked:
        score(images, texts, image_mask, text_mask)
    assert (asked.count, transfers) == (0, [2])


@pytest.mark.parametrize("case", FUSED, ids=lambda case: case.name)
def test_models_score_with_kernels(case, monkeypatch):
    def computed() -> tuple[Tensor, ...]:
        model, rng = case.build(), torch.Generator().manual_seed(0)
        images = model.encode_images(case.images(5, rng))
        texts = model.encode_texts(case.texts(6, rng))
        scores = model.score_matrix(images, texts)
        scores.square().sum().backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return scores.detach(), torch.cat(grads)

    expected = computed()
    # the torch form must not be reached
    monkeypatch.delattr("counterfoil.models.layers.late_interaction.torch_scores")
    monkeypatch.delattr("counterfoil.models.layers.attention_model.torch_scores")
    with kernels.use("always"):
        got = computed()
    torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-6)
    # of a caption of one word, the norm's derivative is a difference of equal numbers: noise, which
    # BFAN's sharp attention enlarges
    near = 1e-3 if case.name.startswith("bfan") else 1e-5
    near *= float(expected[1].abs().max())
    torch.testing.assert_close(got[1], expected[1], rtol=1e-4, atol=near)


@pytest.mark.parametrize("name", ["bfan", "bfan-prob", "bfan-pixels"])
def test_bfan_scores_both_directions_from_one_product(name, monkeypatch):
    case, rng = next(c for c in FUSED if c.name == name), torch.Generator().manual_seed(0)
    model = case.build()
    launched: list[object] = []
    launch = attention_kernel.launch

    def counted(kernel: object, *arguments: object, **constants: object) -> None:
        launched.append(kernel)
        launch(kernel, *arguments, **constants)

    monkeypatch.setattr(attention_kernel, "launch", counted)
    with torch.no_grad():
        images = model.encode_images(case.images(9, rng))
        texts = model.encode_texts(case.texts(10, rng))
        expected = model.score_matrix(images, texts)
        with kernels.use("always"):
            scores = model.score_matrix(images, texts)
    assert len(launched) == 1
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=2e-6)


def test_autocast_chooses_the_precision_of_products():
    case = next(case for case in FUSED if case.name == "scan-t2i")
    model, rng = case.build(), torch.Generator().manual_seed(0)
    images, texts = case.images(5, rng), case.texts(6, rng)
    with torch.no_grad():
        encoded, read = model.encode_images(images), model.encode_texts(texts)
        expected = model.score_matrix(encoded, read)
        with kernels.use("always"), torch.autocast("cpu", torch.bfloat16):
            scores = model.score_matrix(encoded, read)
    assert scores.dtype == torch.float32
    assert 0 < float((scores - expected).abs().max()) < 0.02


def test_a_device_on_which_no_kernel_runs_is_named_once(monkeypatch):
    assert gpu.launches(torch.device("cpu"))

    def fail(*args: object, **constants: object) -> None:
        raise RuntimeError("no C compiler\nwas found")

    monkeypatch.setattr(common, "launch", fail)
    gpu.launches.cache_clear()
    with pytest.warns(UserWarning, match=r"cpu are computed without .* \(no C compiler\)"):
        assert not gpu.launches(torch.device("cpu"))
    assert not gpu.launches(torch.device("cpu"))  # without a second warning
    gpu.launches.cache_clear()


def test_what_does_not_fit_is_scored_in_torch():
    rng = torch.Generator().manual_seed(1)
    images, texts = torch.randn(2, 140, 8, generator=rng), torch.randn(2, 70, 8, generator=rng)
    expected = attention_scores(images, texts)
    with kernels.use("always"):
        assert torch.equal(attention_scores(images, texts), expected)
        double = attention_scores(images.double(), texts.double())
    assert double.dtype == torch.float64


def test_a_text_without_words_is_refused():
    mask = torch.tensor([[True, True], [False, False]])
    with kernels.use("always"), pytest.raises(ValueError, match="text 1 has no words"):
        max_sim(torch.ones(2, 3, 4), torch.ones(2, 2, 4), None, mask)
