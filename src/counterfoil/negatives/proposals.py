"""Proposals of negatives in less than quadratic time, for data sets of millions: FAISS IVF.

`mine_lists` multiplies all images with all texts. Here vectors are grouped around sqrt(N) centres,
and each query meets the vectors of its `probes` nearest centres only; `rerank_proposals` then
scores the proposed pairs exactly. A pair that is not proposed cannot be listed:
`recall_of_lists` measures how much of the exact lists comes back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.optional import optional_import
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset, gather_shards

IVF: Final = "ivf"  # in place of a proposing model
PROBES = 32
AT_ONCE = 16_384  # vectors read at a time, which may be memory-mapped
SAMPLE = 64  # vectors for each centre that k-means sees
ROUNDS = 10  # of k-means


def propose_by_ivf(
    images: Tensor,
    texts: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    probes: int = PROBES,
) -> HardNegativeLists:
    """Propose texts for every image and images for every text, by inner product.

    FAISS holds a byte for every number; the vectors themselves are read part by part and may be
    memory-mapped. True pairs are proposed too, and `rerank_proposals` leaves them out. Processes
    share the queries, and all return the same lists.

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


def propose_by_own_vectors(
    members: Sequence[EmbeddedDataset], *, texts_per_image: int, images_per_text: int
) -> HardNegativeLists:
    """Propose by the vectors of the model that decides; see `propose_by_ivf`.

    Raises:
        ValueError: several models, or one with several vectors per item.
    """
    single = all(m.images.mask.shape[1] == m.texts.mask.shape[1] == 1 for m in members)
    if len(members) != 1 or not single:
        kind = f"{len(members)} models were" if single else "one of several vectors per item was"
        raise ValueError(
            f"IVF proposes by the vectors of one model that has one per item, and {kind} given; "
            "name a fast embedding model instead, as --propose MODEL"
        )
    images, texts = members[0].images.tokens[:, 0], members[0].texts.tokens[:, 0]
    lengths = {"texts_per_image": texts_per_image, "images_per_text": images_per_text}
    return propose_by_ivf(images, texts, **lengths)


def _proposed(faiss: Any, queries: Tensor, answers: Tensor, count: int, probes: int) -> Tensor:
    """(Q, count) int32 rows of the answers near each query."""
    count = min(count, len(answers))
    if not count:
        return torch.full((len(queries), 1), -1, dtype=torch.int32)
    index = _index(faiss, answers)
    index.nprobe = min(probes, index.nlist)
    device = distributed.device()

    def search(share: Tensor | slice) -> Tensor:
        parts = torch.split(queries[share], AT_ONCE)  # views of a slice
        nearest = [index.search(_values(part), count)[1] for part in parts]
        return torch.from_numpy(np.concatenate(nearest)).int().to(device)

    return gather_shards(len(queries), search, torch.device("cpu")).cpu()


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
