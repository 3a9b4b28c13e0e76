"""Models whose score is the inner product of one vector per item, as an index needs them."""

from __future__ import annotations

import torch

from counterfoil.engine.modes import evaluating
from counterfoil.recipes.model import Model
from counterfoil.records import Encoded

_FEW = 8


def check_vectors(model: Model, images: Encoded | None, texts: Encoded | None) -> None:
    """Refuse a model whose items are not one vector each, or are not compared by product.

    Args:
        model: any host.
        images: some, as it encodes them; None for none.
        texts: some, as it encodes them; None for none.

    Raises:
        ValueError: it is such a model.
    """
    for encoded in (images, texts):
        if encoded is not None and (encoded.tokens.shape[1] != 1 or encoded.gram is not None):
            raise ValueError(
                f"{model.name} does not make one vector of an image or a caption, so that an index "
                "cannot hold what it makes; make the index with a model that does, as vsepp or "
                "CLIP, and re-rank with this one: `counterfoil search INDEX QUERY --rerank "
                f"{model.name}`"
            )
    if images is None or texts is None:
        return
    left, right = images.rows(slice(_FEW)), texts.rows(slice(_FEW))
    with evaluating([model.matcher]):
        scores = model.matcher.grid(left, right).float()
    product = left.tokens[:, 0].float() @ right.tokens[:, 0].float().T
    if not torch.allclose(scores, product.to(scores.device), rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"{model.name} does not compare images and captions by inner product, which is what an "
            "index is searched by; make the index with a model that does, and re-rank with this one"
        )
