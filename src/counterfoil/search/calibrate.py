"""Calibration: the probability that a search result matches its query.

A query is compared with its own null distribution: its scores with the images of the index, without
the highest per cent. A result has three features, all of which grow with its score:

    z         (score - mean of the null) / its standard deviation
    surprise  -log of the number of null scores expected above the result, by an exponential tail
              fitted to the highest tenth of the null, times the size of the index
    score     itself, as a plain threshold uses it

A logistic regression on a labelled split turns them into a probability: first results of captions
that have their images among those of the index, and of the same captions without them. Half of the
captions thus have no image; where more or fewer have, probabilities are too high or too low.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest

CALIBRATION = "calibration.json"  # within an index
NULL_SIZE = 5000  # images whose scores make a null distribution
MIN_IMAGES = 20  # fewer make no distribution
MIN_CAPTIONS = 20
MAX_CAPTIONS = 2000
LABELLED = 3  # first results of a caption that are labelled
_TOP = 0.01  # share of the null left out: it may hold matches
_TAIL = 0.1  # share of the null that the tail is fitted to
_PENALTY = 1e-4  # of squared slopes
_AT_ONCE = 256

Array = npt.NDArray[np.float64]


_Slope = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@final
class CalibrationManifest(ArtifactManifest):
    """What is stored of a `Calibration`, whose fields these are."""

    slopes: tuple[_Slope, _Slope, _Slope]
    offset: float = Field(allow_inf_nan=False)
    captions: int = Field(ge=1)


CALIBRATED = ArtifactFormat(
    name="a calibration",
    manifest=CalibrationManifest,
    remedy="delete it, or make it again with `counterfoil index --output INDEX --calibrate DATA`",
    file=CALIBRATION,
)


@final
@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted logistic regression.

    Attributes:
        slopes: of z, surprise and score; none is negative, so that within a query a higher score
            never has a lower probability.
        offset: added.
        captions: number of captions that it was fitted to.
    """

    slopes: tuple[float, float, float]
    offset: float
    captions: int

    def probabilities(self, scores: Tensor, null: Tensor, size: int) -> Tensor:
        """(Q, K) probabilities of results, from (Q, K) scores and the (Q, N) null of each query.

        Args:
            scores: of the results.
            null: of each query with images of the index, results among them.
            size: of the index.
        """
        return self.from_features(hit_features(scores, null, size))

    def from_features(self, features: Array) -> Tensor:
        """(…,) probabilities of results from their (…, 3) features, see `hit_features`."""
        logits = features @ np.array(self.slopes) + self.offset
        # torch's sigmoid rounds the last of a row otherwise, and a filter changes which are last
        return torch.from_numpy(np.exp(-np.logaddexp(0, -logits)))

    def write(self, folder: Path) -> None:
        """Write the calibration into an index."""
        CALIBRATED.write_record(folder, self)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The calibration of an index; None for none.

        Raises:
            ValueError: the file is damaged or of a later version.
        """
        return CALIBRATED.read_record(folder, cls)


class UnfitError(ValueError):
    """Captions and images of which a model finds none, so that no probability can be fitted."""


def hit_features(scores: Tensor, null: Tensor, size: int) -> Array:
    """(Q, K, 3) z, surprise and score of (Q, K) results, from (Q, N) null scores."""
    count = null.shape[1]
    if count < MIN_IMAGES:
        raise ValueError(
            f"a probability needs an index of at least {MIN_IMAGES} images, and this one holds "
            f"{count}; search without"
        )
    ordered = null.double().sort(1, descending=True).values[:, max(1, round(_TOP * count)) :]
    mean, spread = ordered.mean(1, keepdim=True), ordered.std(1, keepdim=True).clamp_min(1e-9)
    above = max(1, round(_TAIL * ordered.shape[1]))
    start = ordered[:, above : above + 1]
    left_out = count - ordered.shape[1]
    # maximum likelihood where what was left out is known to lie above the highest kept (censored)
    total = (ordered[:, :above] - start).sum(1, keepdim=True)
    excess = ((total + left_out * (ordered[:, :1] - start)) / above).clamp_min(1e-9)
    values = scores.double()
    share = (above + left_out) / count
    surprise = (values - start) / excess - np.log(share * size)
    features: Array = torch.stack([(values - mean) / spread, surprise, values], 2).numpy()
    return features


def fit_calibration(texts: Tensor, images: Tensor, matches: Tensor) -> Calibration:
    """Fit a calibration to captions whose images are known.

    Args:
        texts: (T, D) vectors of captions.
        images: (I, D) vectors of the images of an index and of those that the captions describe.
        matches: (T, I) bool, images that a caption describes.

    Raises:
        ValueError: there are too few captions or images.
        UnfitError: no caption finds its image.
    """
    if len(texts) < MIN_CAPTIONS or len(images) <= MIN_IMAGES:
        raise ValueError(
            f"a calibration needs {MIN_CAPTIONS} captions with their images and more than "
            f"{MIN_IMAGES} images, and there are {len(texts)} and {len(images)}; give more data"
        )
    features, labels = labelled_hits(texts, images, matches)
    if not 0 < labels.sum() < len(labels):
        raise UnfitError(
            f"none of {len(texts)} captions finds its image among the first {LABELLED} of "
            f"{len(images)} images, or all always do; a calibration cannot be fitted, give other "
            "data or a better model"
        )
    slopes, offset = _fit_logistic(features, labels)
    z, surprise, score = slopes.tolist()
    return Calibration((z, surprise, score), offset, len(texts))


def labelled_hits(
    texts: Tensor, images: Tensor, matches: Tensor, count: int = LABELLED
) -> tuple[Array, Array]:
    """(n, 3) features of the first results with, then without the true images; (n,) 1 if true."""
    features, labels = [], []
    null = null_rows(len(images))
    for present in (True, False):
        for start in range(0, len(texts), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            scores, own = texts[rows].float() @ images.float().T, matches[rows]
            if not present:  # a removed image scores as the median: it is in neither end
                scores = torch.where(own, scores.median(1, keepdim=True).values, scores)
            best, places = scores.topk(count, 1)
            features.append(hit_features(best, scores[:, null], len(images)).reshape(-1, 3))
            labels.append((own.gather(1, places) & present).double().numpy().reshape(-1))
    return np.concatenate(features), np.concatenate(labels)


def null_rows(count: int) -> Tensor:
    """Evenly spaced rows of `count` images whose scores make the null distributions."""
    return torch.linspace(0, count - 1, min(count, NULL_SIZE)).round().long()


def _fit_logistic(features: Array, labels: Array) -> tuple[Array, float]:
    """Slopes, none of which is negative, and offset."""
    from scipy.optimize import minimize  # scikit-learn's regression has no bounds

    mean, spread = features.mean(0), features.std(0).clip(1e-9)
    inputs = np.concatenate([(features - mean) / spread, np.ones((len(features), 1))], 1)

    def loss(weights: Array) -> tuple[float, Array]:
        logits = inputs @ weights
        penalty = _PENALTY * np.append(weights[:-1], 0)
        value = (np.logaddexp(0, logits) - labels * logits).mean() + (penalty * weights).sum() / 2
        slope = inputs.T @ (1 / (1 + np.exp(-logits)) - labels) / len(labels) + penalty
        return float(value), slope

    width = features.shape[1]
    bounds: list[tuple[Any, Any]] = [(0, None)] * width + [(None, None)]
    solution = minimize(loss, np.zeros(width + 1), jac=True, method="L-BFGS-B", bounds=bounds).x
    slopes = solution[:width] / spread
    return slopes, float(solution[width] - (slopes * mean).sum())
