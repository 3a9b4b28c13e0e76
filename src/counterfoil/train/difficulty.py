"""How hard the captions written at a step are for the model that is trained on them.

TAGS (https://arxiv.org/abs/2111.03349), Fig. 3: score of the written caption minus score of the
caption that it was made of, while training goes on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.records import Grid

ABOVE, GAP = "written_above", "written_gap"
LEVELS = (10, 25, 50, 75, 90)


def difficulty(written: Tensor, grid: Grid) -> dict[str, Tensor]:
    """Figures of the captions written for B anchors; none where nothing was written.

    Args:
        written: (B, N) their scores, -inf where there is none.
        grid: whose anchors they are compared with.

    Returns:
        Percent that score above their anchor, the mean difference in units of a score, and its
        percentiles `LEVELS`.
    """
    scores = written.detach().double()
    there = scores > -torch.inf
    gaps = ((scores - grid.anchor.detach().double().unsqueeze(1)) / grid.scale)[there]
    if not len(gaps):
        return {}
    shares = torch.tensor(LEVELS, dtype=torch.double, device=gaps.device) / 100
    return {
        ABOVE: 100 * (gaps > 0).double().mean(),
        GAP: gaps.mean(),
        **{f"{GAP}_p{n}": at for n, at in zip(LEVELS, gaps.quantile(shares), strict=True)},
    }
