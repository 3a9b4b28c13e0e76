"""Coarse to fine: one matcher proposes the k best, another puts them in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.modes import evaluating
from counterfoil.engine.select import NOTHING, descending, rank_keys, rows_of, scores_of
from counterfoil.engine.tiles import Member, Side, device_of, not_a_number
from counterfoil.progress import progress
from counterfoil.records import Pairs

_NUMBERS = 2**24  # that the encodings of the pairs scored together may hold


@final
@dataclass(frozen=True, slots=True)
class Reranked:
    """The proposed counterparts of every query, in the order of the finer score.

    Only what was proposed is here: a counterpart that the coarse matcher left out cannot come
    back, so recall at r is known for r up to k only.

    Attributes:
        rows: (Q, k) int32, best first, ties to the lower row, -1 where fewer were proposed.
        scores: (Q, k) float32 of the finer matcher, -inf where fewer were proposed.
    """

    rows: Tensor
    scores: Tensor


def rerank(
    member: Member,
    query: Side,
    proposed: Tensor,
    *,
    device: torch.device | str | None = None,
) -> Reranked:
    """Score the proposed pairs with another matcher and sort each list by that.

    Pairs are scored in parts whose size depends on the member alone, so several processes, which
    deal out the parts, find what one does.

    Args:
        member: the finer matcher with its encodings.
        query: which side asks.
        proposed: (Q, k) rows, -1 for none, as in `TopK.rows`.
        device: where to compute, as in `sweep`.

    Raises:
        ValueError: lists for another number of queries, or rows that do not exist.
    """
    _check(member, query, proposed)
    where = device_of(member) if device is None else torch.device(device)
    query_rows, places = (proposed >= 0).nonzero(as_tuple=True)
    answers = proposed[query_rows, places].long()
    left, right = (query_rows, answers) if query == "image" else (answers, query_rows)
    with evaluating([member.matcher]):
        scores = _scores(member, left.cpu(), right.cpu(), where).to(proposed.device)
    keys = torch.full(proposed.shape, NOTHING, device=proposed.device)
    keys[query_rows, places] = rank_keys(scores, answers)
    keys = descending(keys)
    return Reranked(rows_of(keys).int(), scores_of(keys))


def _check(member: Member, query: Side, proposed: Tensor) -> None:
    sides = (len(member.images), len(member.texts))
    queries, answers = sides if query == "image" else sides[::-1]
    if proposed.dim() != 2 or len(proposed) != queries:
        raise ValueError(
            f"lists of shape {tuple(proposed.shape)} were given for {queries} {query} queries; "
            f"one list per query is needed, ({queries}, k)"
        )
    if proposed.numel() and int(proposed.max()) >= answers:
        raise ValueError(
            f"row {int(proposed.max())} was proposed, but there are {answers} counterparts; "
            "propose from the same split"
        )


def _scores(member: Member, left: Tensor, right: Tensor, device: torch.device) -> Tensor:
    """(P,) float32 scores of pairs of rows, on the CPU."""
    if not len(left):
        return torch.zeros(0)
    each = member.images.tokens[0].numel() + member.texts.tokens[0].numel()
    size = max(1, min(_NUMBERS // max(1, each), len(left)))
    parts = list(zip(torch.split(left, size), torch.split(right, size)))
    found = torch.zeros(len(parts), size, device=device)
    with progress("pairs scored", len(left)) as advance:
        for place in range(world.rank(), len(parts), world.size()):
            images, texts = (_filled(rows, size) for rows in parts[place])
            (seen, image), (read, text) = _once(images), _once(texts)
            pools = member.images.rows(seen).to(device), member.texts.rows(read).to(device)
            found[place] = member.matcher.listed(*pools, Pairs(image, text)).float()
            advance(len(parts[place][0]) * world.size())
    scores = world.gather(found).sum(0).flatten()[: len(left)].cpu()
    if bool(scores.isnan().any()):
        place = int(scores.isnan().nonzero()[0])
        raise not_a_number(int(left[place]), int(right[place]))
    return scores


def _once(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that occur, and the place of each among them."""
    occurring, places = rows.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return occurring, places


def _filled(rows: Tensor, size: int) -> Tensor:
    """The rows, the last one repeated until there are `size`: every part has the same shape."""
    return torch.cat([rows, rows[-1:].expand(size - len(rows))])
