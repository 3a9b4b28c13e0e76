"""Every model scores and learns on a device as on the CPU, and leaves nothing behind there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from matcher_cases import Case
from papers_matcher_cases import ALL


@pytest.fixture(autouse=True)
def _double(monkeypatch):
    # in which the order of sums leaves no doubt about what is equal
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def computed(case: Case, device: torch.device, *, train: bool) -> dict[str, Tensor]:
    """Scores of five images and six texts, and the gradients and state of the model."""
    model, rng = case.build(), torch.Generator().manual_seed(0)
    images, texts = case.images(5, rng).to(device), case.texts(6, rng).to(device)
    model.to(device).train(train)
    torch.manual_seed(1)
    encoded, read = model.encode_images(images), model.encode_texts(texts)
    rows = torch.arange(5, device=device)
    scores = {
        "matrix": model.score_matrix(encoded, read),
        "pairs": model.score_pairs(encoded.rows(rows), read.rows(rows)),
    }
    if any(value.requires_grad for value in scores.values()):
        (scores["matrix"].sum() + scores["pairs"].sum()).backward()
    grads = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return scores | grads | model.state_dict()


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_scores_and_gradients_equal_those_of_the_cpu(case, train, device):
    expected = computed(case, torch.device("cpu"), train=train)
    values = computed(case, device, train=train)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        assert value.device == device, name
        torch.testing.assert_close(
            value.detach().cpu(),
            expected[name].detach(),
            rtol=1e-7,
            atol=1e-9,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
