"""What a model in pre-training is to say of hidden regions (UNITER's MRFR, MRC and MRC-kl).

UNITER (Chen et al., ECCV 2020), section 3.2. Each function gives one row for each hidden region;
the authors' code takes the mean over all entries, that over classes included.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, mse_loss

BACKGROUND = 0  # the detector's class of what is no thing


def regression(predicted: Tensor, features: Tensor) -> Tensor:
    """(M, F) squared errors of predicted features: masked region feature regression.

    Args:
        predicted: (M, F).
        features: (M, F) what the regions were before they were hidden.
    """
    return mse_loss(predicted, features, reduction="none")


def likeliest(classes: Tensor) -> Tensor:
    """(M,) the class that the detector thinks likeliest, but for the background.

    Args:
        classes: (M, C) its probabilities.
    """
    return classes[:, BACKGROUND + 1 :].argmax(1) + BACKGROUND + 1


def classification(logits: Tensor, classes: Tensor) -> Tensor:
    """(M,) cross entropy with the likeliest class: masked region classification.

    Args:
        logits: (M, C).
        classes: (M, C) the detector's probabilities.
    """
    return cross_entropy(logits, likeliest(classes), reduction="none")


def divergence(logits: Tensor, classes: Tensor) -> Tensor:
    """(M, C) terms of the divergence from the detector's probabilities: MRC-kl.

    Args:
        logits: (M, C).
        classes: (M, C) the detector's probabilities.
    """
    return kl_div(logits.log_softmax(1), classes, reduction="none")
