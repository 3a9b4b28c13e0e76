"""Proposals of negatives in less than quadratic time, for data sets of millions: FAISS IVF.

`mine_lists` multiplies all images with all texts. Here vectors are grouped around sqrt(N) centres,
and each query meets the vectors of its `probes` nearest centres only; `rerank_proposals` then
scores the proposed pairs exactly. A pair that is not proposed cannot be listed:
`recall_of_lists` measures how much of the exact lists comes back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.optional import optional_import
from counterfoil.negatives.store import HardNegativeLists

AT_ONCE = 16_384  # vectors read at a time, which may be memory-mapped
SAMPLE = 64  # vectors for each centre that k-means sees
ROUNDS = 10  # of k-means


def propose_by_ivf(
    images: Tensor, texts: Tensor, *, texts_per_image: int, images_per_text: int, probes: int = 32
) -> HardNegativeLists:
    """Propose texts for every image and images for every text, by inner product.

    FAISS holds a byte for every number; the vectors themselves are read part by part and may be
    memory-mapped. True pairs are proposed too, and `rerank_proposals` leaves them out.

    Args:
        images: (I, D) vectors.
        texts: (T, D) vectors.
        texts_per_image: texts proposed for each image, 0 for none.
        images_per_text: images proposed for each text, 0 for none.
        probes: centres whose vectors a query meets; more are slower and miss fewer.

    Returns:
        Lists without scores, at least one column wide, -1 where there is no proposal.

    Raises:
        ValueError: FAISS is not installed, or the vectors' widths differ.
    """
    if images.shape[1] != texts.shape[1]:
        raise ValueError(
            f"vectors of width {images.shape[1]} and {texts.shape[1]} were given; both sides come "
            "from one model"
        )
    needs = 'proposals by IVF need FAISS; install it: pip install "counterfoil[index]"'
    faiss = optional_import("faiss", needs)
    faiss.omp_set_num_threads(torch.get_num_threads())
    return HardNegativeLists(
        _proposed(faiss, images, texts, texts_per_image, probes),
        _proposed(faiss, texts, images, images_per_text, probes),
    )


def _proposed(faiss: Any, queries: Tensor, answers: Tensor, count: int, probes: int) -> Tensor:
    """(Q, count) int32 rows of the answers near each query."""
    count = min(count, len(answers))
    rows = torch.full((len(queries), max(1, count)), -1, dtype=torch.int32)
    if not count:
        return rows
    index = _index(faiss, answers)
    index.nprobe = min(probes, index.nlist)
    for start in range(0, len(queries), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        _, nearest = index.search(_values(queries[part]), count)
        rows[part] = torch.from_numpy(nearest).int()
    return rows


def _index(faiss: Any, vectors: Tensor) -> Any:
    """An IVF of one byte a number, around sqrt(N) centres."""
    count, width = vectors.shape
    cells = max(1, math.isqrt(count))
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(width),
        width,
        cells,
        faiss.ScalarQuantizer.QT_8bit,
        faiss.METRIC_INNER_PRODUCT,
    )
    index.cp.niter, index.cp.min_points_per_centroid = ROUNDS, 1
    step = max(1, count // (SAMPLE * cells))  # evenly spread, as neighbours in a file are alike
    index.train(_values(vectors[::step]))
    for start in range(0, count, AT_ONCE):
        index.add(_values(vectors[start : start + AT_ONCE]))
    return index


def _values(vectors: Tensor) -> Any:
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())


def recall_of_lists(found: Tensor, exact: Tensor) -> float:
    """Share of the rows of (Q, k) exact lists that are in the found lists; -1 is no row.

    >>> recall_of_lists(torch.tensor([[3, 1], [5, -1]]), torch.tensor([[1, 2], [5, -1]]))
    0.6666666666666666
    """
    recalled = (exact.unsqueeze(2) == found.unsqueeze(1)).any(2) & (exact >= 0)
    return int(recalled.sum()) / max(1, int((exact >= 0).sum()))
