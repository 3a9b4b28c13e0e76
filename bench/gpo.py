"""GPO's pooling of 128 images and of 128 captions, against the plain product of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench import Result
from bench.bags import REGIONS, bags
from bench.gemm import against
from counterfoil.models.blocks.gpo import GeneralPool
from counterfoil.records import Encoded

IMAGES, TEXTS, WIDTH, FEWEST = 128, 128, 1024, 22
TARGET = 1.2


def results(threads: int) -> Iterator[Result]:
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    some = torch.randint(
        FEWEST, REGIONS + 1, (IMAGES, 1), generator=torch.Generator().manual_seed(1)
    )
    fewer = Encoded(images.tokens, torch.arange(REGIONS) < some)
    words, regions = texts.tokens[texts.mask], images.tokens.flatten(0, 1)

    def plain() -> Tensor:
        return words @ regions.T

    rows = (
        (f"{REGIONS} regions, forward", evaluated(images), TARGET, 1.56),
        (f"{REGIONS} regions, forward + backward", trained(images), None, None),
        (f"{FEWEST} to {REGIONS} regions, forward", evaluated(fewer), TARGET, 1.35),
        (f"{FEWEST} to {REGIONS} regions, forward + backward", trained(fewer), None, 2.38),
        ("8 to 20 words, forward", evaluated(texts), None, 0.58),
        ("8 to 20 words, forward + backward", trained(texts), None, 0.93),
    )
    for what, work, target, theirs in rows:
        timing = against(plain, work, warm=2)
        note = f"{timing.work * 1e3:.0f} ms; plain {timing.plain * 1e3:.0f} ms"
        name = f"GPO pooling, {IMAGES} bags, width {WIDTH}: {what}"
        yield Result(name, timing.ratio, target, theirs, note)


def evaluated(bag: Encoded) -> Callable[[], object]:
    """Pool as in evaluation."""
    pool = GeneralPool()

    def work() -> None:
        with torch.no_grad():
            pool(bag)

    return work


def trained(bag: Encoded) -> Callable[[], object]:
    """Pool, and carry a gradient back to the vectors and the weights of the pool."""
    pool, tokens = GeneralPool(), bag.tokens.clone().requires_grad_()

    def work() -> None:
        tokens.grad = None
        pool(Encoded(tokens, bag.mask)).sum().backward()

    return work
