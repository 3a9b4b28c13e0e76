"""Which items are true for which query, any number each, in terms of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil import files


@final
@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Queries and the items that are true for them.

    Attributes:
        queries: (Q,) long ids.
        offsets: (Q + 1,) long; items of query q are ``items[offsets[q]:offsets[q + 1]]``.
        items: (P,) long ids, each once per query.
    """

    queries: Tensor
    offsets: Tensor
    items: Tensor

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def sizes(self) -> Tensor:
        """(Q,) how many items are true for each query."""
        return self.offsets.diff()

    def hits(self, rankings: Tensor) -> Tensor:
        """Whether each ranked item is true.

        Args:
            rankings: (Q, K) item ids, best first, in the order of `queries`; -1 for none.

        Raises:
            ValueError: not one row per query, or an item twice in a row.
        """
        check_rankings(rankings, len(self))
        known, code = torch.unique(
            torch.cat([self.items, rankings.flatten().long()]), return_inverse=True
        )
        rows = torch.arange(len(self))
        true = rows.repeat_interleave(self.sizes) * len(known) + code[: len(self.items)]
        asked = rows.unsqueeze(1) * len(known) + code[len(self.items) :].view(rankings.shape)
        return torch.isin(asked, true) & (rankings >= 0)


def truth(relation: Mapping[int, Sequence[int]]) -> Truth:
    """From a mapping of query id to item ids; repeated items count once."""
    lists = [sorted(set(items)) for items in relation.values()]
    offsets = torch.tensor([0, *map(len, lists)]).cumsum(0)
    items = torch.tensor([item for each in lists for item in each], dtype=torch.long)
    return Truth(torch.tensor(list(relation), dtype=torch.long), offsets, items)


def read(path: Path) -> Truth:
    """Read ``{"query id": [item id, ...], ...}``, the layout of the `eccv_caption` package.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    found = files.read_json(path, "a ground-truth file")
    try:
        return truth({int(query): [int(item) for item in found[query]] for query in found})
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path} is not a ground-truth file: a JSON object from query id to a list of item "
            f"ids is needed ({error})"
        ) from error


def align(truth: Truth, asked: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """Rankings of rows as rankings of ids, for the queries of a ground truth.

    Args:
        truth: what is true.
        asked: (N,) ids of the items that asked.
        ids: (M,) ids of the items that were ranked.
        rows: (N, K) ranked rows of the latter, best first; -1 for none.

    Returns:
        (Q, K) item ids.

    Raises:
        ValueError: a query of the ground truth was not asked.
    """
    order = asked.argsort()
    place = torch.searchsorted(asked[order], truth.queries).clamp(max=len(asked) - 1)
    place = order[place]
    missing = truth.queries[asked[place] != truth.queries]
    if len(missing):
        raise ValueError(
            f"{len(missing)} of the {len(truth)} queries of the ground truth are not among the "
            f"{len(asked)} evaluated ones (the first is {int(missing[0])}); evaluate the split "
            "that the ground truth was written for"
        )
    picked = rows[place].long()
    return ids[picked.clamp(min=0)].masked_fill(picked < 0, -1)


def check_rankings(rankings: Tensor, queries: int) -> None:
    """Refuse rankings that are not one list of distinct items per query."""
    if rankings.dim() != 2 or len(rankings) != queries:
        raise ValueError(
            f"the ground truth has {queries} queries, so rankings of shape ({queries}, K) are "
            f"needed, not {tuple(rankings.shape)}"
        )
    ordered = rankings.sort(1).values
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    if twice.any():
        raise ValueError(
            f"{int(twice.sum())} of the {queries} rankings hold an item twice (the first is row "
            f"{int(twice.nonzero()[0])}); every item may stand in a ranking once"
        )
