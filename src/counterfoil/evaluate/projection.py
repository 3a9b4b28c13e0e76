"""Points of the plane for vectors: t-SNE by scikit-learn, and principal components.

t-SNE: van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 9 (2008). It begins with
principal components and draws nothing, so the same vectors give the same map; one of more than
`EXACT` points may depend on the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sklearn.manifold import TSNE

Projection = Literal["tsne", "pca"]

PERPLEXITY = 30.0
EXACT = 500  # points at most; more would take minutes, so their slopes are approximated
_SPREAD = 1e-4  # of the first axis where t-SNE begins; more would hold points where they are
_TINY = 1e-12


def principal(vectors: Tensor) -> Tensor:
    """(N, 2) first two principal components, each with its largest weight positive.

    Args:
        vectors: (N, D).
    """
    centred = vectors.double() - vectors.double().mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    points = centred @ (axes * largest.sign()).T
    return torch.nn.functional.pad(points, (0, 2 - points.shape[1]))


def tsne(vectors: Tensor, *, perplexity: float = PERPLEXITY) -> Tensor:
    """(N, 2) t-SNE of Euclidean distances; principal components of fewer than 4 points.

    Args:
        vectors: (N, D).
        perplexity: effective number of neighbours; at most a third of the other points.

    Raises:
        ValueError: scikit-learn is not installed.
    """
    count = len(vectors)
    if count < 4:
        return principal(vectors)
    start = principal(vectors)
    start = _SPREAD * start / start[:, 0].std(correction=0).clamp(min=_TINY)
    fitted = _library()(
        perplexity=min(perplexity, (count - 1) / 3),
        init=start.cpu().numpy(),
        method="exact" if count <= EXACT else "barnes_hut",
        random_state=0,
    )
    return torch.from_numpy(fitted.fit_transform(vectors.double().cpu().numpy()))


def check_projection(method: Projection) -> None:
    """Refuse a map that cannot be drawn here, before anything is done for it.

    Raises:
        ValueError: scikit-learn is needed and not installed.
    """
    if method == "tsne":
        _library()


def _library() -> type[TSNE]:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise ValueError(
            'maps by t-SNE need scikit-learn: pip install "counterfoil[maps]", or draw principal '
            "components with --method pca"
        ) from None
    library: type[TSNE] = TSNE
    return library
