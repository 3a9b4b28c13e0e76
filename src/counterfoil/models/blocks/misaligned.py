"""A slip of UNITER's released training, for who wants to measure what it does."""

from __future__ import annotations

import torch

from counterfoil.records import Encoded


def misaligned(images: Encoded, texts: Encoded) -> Encoded:
    """What UNITER's released code reads in place of the regions of P image-anchored pairs.

    It takes the length of the last text for that of the longest. The places of the regions are
    filled from there on: first with what is left of the padded text, then with the first regions;
    the last regions are lost. TAGS and LightningDOT inherit it.

    Args:
        images: P of them.
        texts: P of them, in the order of the authors' batch, as a model encodes them: what stands
            at padding is read.

    Returns:
        What to score with the texts in place of the images.
    """
    lengths = texts.mask.sum(1)
    longest, last = int(lengths.max()), int(lengths[-1])
    wide = images.tokens.shape[1]
    beside = torch.cat([texts.tokens[:, :longest], images.tokens], 1)
    return Encoded(beside[:, last : last + wide], images.mask)
