"""Models whose sight is frozen look at each picture of a corpus once."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.lens import Lens, PixelEye
from counterfoil.corpus.seen import SeenEye
from counterfoil.engine.identity import model_digest
from counterfoil.matcher import Matcher, SeesOnce
from counterfoil.records import Items


def seen_once(matcher: Matcher, lens: Lens) -> Lens:
    """A lens that keeps what the frozen part of a matcher makes of a corpus, where it has one."""
    parts = [part for part in matcher.modules() if isinstance(part, SeesOnce) and part.still]
    if len(parts) != 1 or not isinstance(lens.eye, PixelEye) or lens.eye.divisor:
        return lens
    (part,) = parts

    def states(images: Items) -> Tensor:
        part.body.to(world.device()).eval()
        with torch.inference_mode():
            return part.states(images.to(world.device())).cpu()

    key = f"{model_digest(part.body)} {part.still}"
    return Lens(SeenEye(lens.eye, states, key), lens.tokenizer)
