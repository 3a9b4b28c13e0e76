"""Proposals of negatives in less than quadratic time, for data sets of millions: FAISS IVF.

`mine_lists` multiplies all images with all texts. Here vectors are grouped around sqrt(N) centres,
and each query meets the vectors of its `probes` nearest centres only; `rerank_proposals` then
scores the proposed pairs exactly. A pair that is not proposed cannot be listed:
`recall_of_lists` measures how much of the exact lists comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.optional import optional_import
from counterfoil.core.resumable import WorkStopped
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset, gather_shards, is_inner_product

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
    stop: Callable[[], bool] | None = None,
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
        stop: polled now and then; nothing is kept when it returns True.

    Returns:
        Lists without scores, at least one column wide, -1 where there is no proposal.

    Raises:
        ValueError: FAISS is not installed, or the vectors' widths differ.
        WorkStopped: `stop` returned True on one of the processes.
    """
    if images.shape[1] != texts.shape[1]:
        raise ValueError(
            f"vectors of width {images.shape[1]} and {texts.shape[1]} were given; both sides come "
            "from one model"
        )
    faiss = import_faiss()
    faiss.omp_set_num_threads(torch.get_num_threads())

    def search(queries: Tensor, answers: Tensor, count: int) -> Tensor:
        """(Q, count) int32 rows of the answers near each query."""
        count = min(count, len(answers))
        if not count:
            return torch.full((len(queries), 1), -1, dtype=torch.int32)
        index = _index(faiss, answers, stop)
        index.nprobe = min(probes, index.nlist)
        return _nearest(index, queries, count, stop)

    return HardNegativeLists(
        search(images, texts, texts_per_image), search(texts, images, images_per_text)
    )


def import_faiss() -> Any:
    """Import FAISS, or say how to install it.

    Raises:
        ValueError: it is not installed.
    """
    needs = 'proposals by IVF need FAISS; install it: pip install "counterfoil[index]"'
    return optional_import("faiss", needs)


def propose_by_own_vectors(
    member: EmbeddedDataset,
    *,
    texts_per_image: int,
    images_per_text: int,
    stop: Callable[[], bool] | None = None,
) -> HardNegativeLists:
    """Propose by the vectors of the model that scores; see `propose_by_ivf`.

    Raises:
        ValueError: the model does not score by the inner product of one vector per item.
        WorkStopped: `stop` returned True on one of the processes.
    """
    if not is_inner_product(member.model, member.images, member.texts):
        raise ValueError(
            "IVF proposes by the inner product of one vector per item, and this model scores in "
            "another way; let an embedding model propose: --propose MODEL"
        )
    images, texts = member.images.tokens[:, 0], member.texts.tokens[:, 0]
    lengths = {"texts_per_image": texts_per_image, "images_per_text": images_per_text}
    return propose_by_ivf(images, texts, **lengths, stop=stop)


def _index(faiss: Any, vectors: Tensor, stop: Callable[[], bool] | None) -> Any:
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
        _check(stop)
        index.add(_values(vectors[start : start + AT_ONCE]))
    return index


def _nearest(index: Any, queries: Tensor, count: int, stop: Callable[[], bool] | None) -> Tensor:
    """(Q, count) int32 rows of the answers nearest to each query."""
    # a group of processes on GPUs exchanges tensors on GPUs only
    device = distributed.device() if distributed.size() > 1 else torch.device("cpu")

    def search(share: Tensor | slice) -> Tensor:
        parts = []
        for part in torch.split(queries[share], AT_ONCE):  # views of a slice
            _check(stop)  # shares are equally long, so that all processes take part
            parts.append(torch.from_numpy(index.search(_values(part), count)[1]).int())
        return torch.cat(parts).to(device)

    return gather_shards(len(queries), search, torch.device("cpu")).cpu()


def _check(stop: Callable[[], bool] | None) -> None:
    if stop is not None and distributed.all_reduce_max(int(stop())):
        raise WorkStopped


def _values(vectors: Tensor) -> Any:
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())


def recall_of_lists(found: Tensor, exact: Tensor) -> float:
    """Share of the rows of (Q, k) exact lists that are in the found lists; -1 is no row.

    >>> recall_of_lists(torch.tensor([[3, 1], [5, -1]]), torch.tensor([[1, 2], [5, -1]]))
    0.6666666666666666
    """
    recalled = (exact.unsqueeze(2) == found.unsqueeze(1)).any(2) & (exact >= 0)
    return int(recalled.sum()) / max(1, int((exact >= 0).sum()))
