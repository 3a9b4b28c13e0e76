from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.dive import SlotAttention, slot_codes

WIDTH, PART = 6, 4


def made(**options: object) -> SlotAttention:
    torch.manual_seed(0)
    sizes = {"slots": 3, "heads": 2, "head_width": 5, "rounds": 2, "dropout": 0.0}
    return SlotAttention(width=WIDTH, part_width=PART, **(sizes | options)).double().eval()


def bag(*lengths: int, longest: int = 0) -> Embeddings:
    return bag_cases.bag([*lengths], PART, seed=1, longest=longest)


def place(position: int, length: int) -> list[float]:
    angle = 2 * math.pi * position / (length + 1e-6)
    turns = [angle / 10000 ** (2 * (f // 2) / PART) for f in range(PART)]
    return [math.cos(turn) if f % 2 else math.sin(turn) for f, turn in enumerate(turns)]


def by_loops(block: SlotAttention, parts: Tensor) -> Tensor:
    """One item without padding, one head and one slot at a time."""
    normal = block.part_norm(parts)
    keys = normal
    if block.positions == "sine":
        where = [place(k + 1, len(parts)) for k in range(len(parts))]
        keys = normal + torch.tensor(where, dtype=torch.double)
    slots = block.latents
    for _ in range(block.rounds):
        queries = block.query(block.slot_norm(slots)).chunk(block.heads, 1)
        heads = []
        for h, query in enumerate(queries):
            key = block.key(keys).chunk(block.heads, 1)[h]
            value = block.value(normal).chunk(block.heads, 1)[h]
            shares = (query @ key.T / key.shape[1] ** 0.5).softmax(0)
            heads.append(torch.stack([(s / (s.sum() + 1e-7)) @ value for s in shares]))
        slots = slots + block.out(torch.cat(heads, 1))
        entered = torch.nn.functional.gelu(block.enter(block.inner_norm(slots)))
        slots = slots + block.leave(entered)
    return block.last_norm(slots)


@pytest.mark.parametrize("positions", ["none", "sine"])
@pytest.mark.parametrize("inner", [2, 4])
def test_equals_loops_over_items_heads_and_slots(positions, inner):
    block, parts = made(positions=positions, inner=inner), bag(1, 5, 3)
    assert block.enter.out_features == inner * WIDTH
    found = block(parts)
    assert found.shape == (3, 3, WIDTH)
    for item, tokens, mask in zip(found, parts.tokens, parts.mask, strict=True):
        torch.testing.assert_close(item, by_loops(block, tokens[mask]), atol=1e-6, rtol=1e-6)


def test_released_padding_takes_a_share_and_stretches_places():
    tidy, released = made(positions="sine"), made(positions="sine", released_padding=True)
    whole, room = bag(4), bag(4, longest=6)
    room = Embeddings(room.tokens.nan_to_num(0.0), room.mask)
    torch.testing.assert_close(released(whole), tidy(whole))
    assert (released(room) - tidy(whole)).abs().max() > 0.01


def test_codes_of_an_odd_width():
    like = torch.zeros(1, 3, 5)
    found = slot_codes(torch.tensor([[3]]), 3, like)
    assert found.shape == (1, 3, 5)
    turns = 2 * math.pi * torch.arange(1, 4) / 3
    torch.testing.assert_close(found[0, :, 4], (turns / 10000**0.8).sin())
