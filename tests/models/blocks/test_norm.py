from __future__ import annotations

import pytest
import torch

from counterfoil.models.layers.pooling import batch_norm_rows, batch_norm_tokens


def test_one_row_is_normalised_by_what_was_seen_before():
    norm = torch.nn.BatchNorm1d(2)
    norm.running_mean += 3
    row = torch.tensor([[4.0, 3.0]])
    torch.testing.assert_close(batch_norm_rows(norm, row), torch.tensor([[1.0, 0.0]]))
    assert norm.num_batches_tracked == 0
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(row)


def test_tokens_that_are_hidden_take_no_part_and_become_zero():
    norm, alone = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    tokens = torch.randn(2, 4, 3)
    mask = torch.arange(4) < torch.tensor([[3], [1]])
    found = batch_norm_tokens(norm, tokens.masked_fill(~mask.unsqueeze(-1), torch.nan), mask)
    torch.testing.assert_close(found[mask], alone(tokens[mask]))
    assert not found[~mask].any()
    torch.testing.assert_close(norm.running_var, alone.running_var)


def test_without_a_mask_all_tokens_take_part():
    norm, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    tokens = torch.randn(2, 4, 3)
    every = torch.ones(2, 4, dtype=torch.bool)
    torch.testing.assert_close(
        batch_norm_tokens(norm, tokens), batch_norm_tokens(other, tokens, every)
    )
