"""The best answers of every query: a product whose epilogue drops what cannot be among them.

Each query has a floor, the k-th best score so far. A tile of scores is compared with the floors of
its rows while it is in registers; what reaches them, hardly anything after the first tiles, is
appended to the queries' lists as a rank key (`counterfoil.scoring.reducers`). No score matrix is
written. Lists have room for a whole part of the answers, so the order of the answers cannot make
them overflow; when they have grown to several k, they are cut to the k best, which raises the
floors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.gpu.common import dot_settings, launch, product, tiles
from counterfoil.gpu.language import jit, tl

QUERIES, ANSWERS = 4096, 8192  # at a time: the lists take up to 8 bytes for each pair of them
GROWTH = 4  # lists of so many k are cut: sorting costs more than a tile
ROWS = 128  # of a tile
NOTHING = -(2**63)  # key of an empty place, see `reducers.NOTHING`


def best_keys(
    queries: Tensor, answers: Tensor, k: int, query_groups: Tensor, answer_groups: Tensor
) -> Tensor:
    """Return the rank keys of the k best answers of every query.

    Args:
        queries: (Q, d) float32, float16 or bfloat16, finite.
        answers: (N, d) of the same dtype.
        k: length of a list.
        query_groups: (Q,) int32.
        answer_groups: (N,) int32; an answer of the query's own group is left out.

    Returns:
        (Q, k) int64 keys, best first, `NOTHING` where fewer answers exist.
    """
    answers, answer_groups = answers.contiguous(), answer_groups.contiguous()
    parts = zip(torch.split(queries, QUERIES), torch.split(query_groups, QUERIES))
    return torch.cat([_best_of(x.contiguous(), answers, k, a, answer_groups) for x, a in parts])


def _best_of(x: Tensor, y: Tensor, k: int, x_groups: Tensor, y_groups: Tensor) -> Tensor:
    queries, answers, width = len(x), len(y), x.shape[1]
    settings = dot_settings(x.dtype)
    del settings["inner"]
    columns = 128 if x.dtype != torch.float32 else 64
    room = GROWTH * k + min(ANSWERS, answers)
    keys = torch.full((queries, room), NOTHING, device=x.device)
    lengths = torch.full((queries,), k, dtype=torch.int32, device=x.device)
    floors = torch.full((queries,), float(torch.finfo(torch.float32).min), device=x.device)
    step = max(columns, k)  # parts grow: the first one meets no floor
    start = 0
    while start < answers:
        stop = min(start + min(step, ANSWERS), answers)
        launch(
            _append, (tiles(queries, ROWS), tiles(stop - start, columns)),
            x, y, x_groups, y_groups, floors, lengths, keys, room,
            queries, start, stop, width, block_m=ROWS, block_n=columns, **settings,
        )  # fmt: skip
        used = int(lengths.max())
        if used > (k if stop == answers else GROWTH * k):
            keys[:, :k] = keys[:, :used].sort(1, descending=True).values[:, :k]
            keys[:, k:used] = NOTHING
            lengths.fill_(k)
            floors = _floors(keys[:, k - 1])
        start, step = stop, step * 4
    return keys[:, :k]


def _floors(keys: Tensor) -> Tensor:
    """Scores of the k-th best keys; the lowest float32 where a query has fewer."""
    monotone = (keys >> 32).int()
    bits = monotone ^ ((monotone >> 31) & 0x7FFFFFFF)
    lowest = torch.finfo(torch.float32).min
    return bits.view(torch.float32).masked_fill(keys == NOTHING, lowest)


@jit
def _append(  # type: ignore[no-untyped-def]
    x, y, x_groups, y_groups, floors, lengths, keys, room, queries, start, stop, width,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    precision: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """One program: a tile of queries and answers, whose best are appended to the queries' lists."""
    row = tl.program_id(0) * block_m + tl.arange(0, block_m)
    column = start + tl.program_id(1) * block_n + tl.arange(0, block_n)
    row_ok, column_ok = row < queries, column < stop
    s = product(
        x, y, row.to(tl.int64), column.to(tl.int64), row_ok, column_ok, width,
        block_m, block_n, block_k, precision, exact,
    )  # fmt: skip
    floor = tl.load(floors + row, row_ok, other=0.0)
    query_group = tl.load(x_groups + row, row_ok, other=0)
    answer_group = tl.load(y_groups + column, column_ok, other=0)
    kept = (s >= floor[:, None]) & row_ok[:, None] & column_ok[None, :]
    kept = kept & (query_group[:, None] != answer_group[None, :])
    count = tl.sum(kept.to(tl.int32), 1)
    if tl.max(count, 0) > 0:
        first = tl.atomic_add(lengths + row, count, row_ok & (count > 0))
        place = first[:, None] + tl.cumsum(kept.to(tl.int32), 1) - 1
        # a rank key: the score, as an integer of the same order, above the row counted down
        bits = (s + 0.0).to(tl.int32, bitcast=True)
        monotone = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        down = tl.full((block_n,), 4294967295, tl.int64) - column.to(tl.int64)
        key = (monotone.to(tl.int64) << 32) + down[None, :]
        tl.store(keys + row.to(tl.int64)[:, None] * room + place, key, kept)
