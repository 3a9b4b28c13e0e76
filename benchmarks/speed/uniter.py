"""UNITER: packed against padded sequences, and words at slots against words everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.speed import Result
from benchmarks.speed.gemm import against
from counterfoil.core.types import Embeddings, WordHead, WordSlots
from counterfoil.papers.models.uniter import UNITER

REGIONS, SHORTEST, LONGEST, LONG = 36, 10, 22, 47  # tokens of most captions, and of the longest
MASKED, SLOTS = 20, 2
SIZES = {
    "base": ({}, 16),
    "small": ({"layers": 4, "width": 256, "heads": 4, "inner": 1024}, 256),
}
TARGET, FILLED = 0.75, 0.9


@torch.no_grad()
def results(threads: int) -> Iterator[Result]:
    """The other form is the plain one here: all of a batch as long as its longest sequence."""
    for size, (sizes, count) in SIZES.items():
        host = UNITER(outputs=("rank", "fill"), **sizes).eval()
        images, texts = items(host, count)
        padded = Padded(host, images, texts)
        torch.testing.assert_close(padded.scores(), host.score_pairs(images, texts))
        what = f"UNITER-{size}, {count} pairs, {REGIONS} regions"
        ours = partial(host.score_pairs, images, texts)
        yield compared(f"{what}: scores", padded.scores, ours, TARGET)
        yield filling(host, size)


def items(host: UNITER, count: int) -> tuple[Embeddings, Embeddings]:
    """Embedded images and captions, one of which is long."""
    rng, width = torch.Generator().manual_seed(0), host.text.width
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count, 1), generator=rng)
    lengths[0] = LONG
    regions = torch.randn(count, REGIONS, width, generator=rng)
    tokens = torch.randn(count, LONG, width, generator=rng)
    every = torch.ones(count, REGIONS, dtype=torch.bool)
    return Embeddings(regions, every), Embeddings(tokens, torch.arange(LONG) < lengths)


class Padded:
    """PyTorch's own encoder with the same weights, over padded sequences and hidden keys."""

    def __init__(self, host: UNITER, images: Embeddings, texts: Embeddings) -> None:
        self.host = host
        self.tokens = torch.cat([texts.tokens, images.tokens], 1)
        self.hidden = ~torch.cat([texts.mask, images.mask], 1)
        layers = host.body.layers
        one = nn.TransformerEncoderLayer(
            host.text.width,
            layers[0].heads,
            layers[0].wide.out_features,
            activation="gelu",
            layer_norm_eps=1e-12,
            batch_first=True,
        )
        self.body = nn.TransformerEncoder(one, len(layers), enable_nested_tensor=False).eval()
        for theirs, ours in zip(self.body.layers, layers, strict=True):
            theirs.self_attn.in_proj_weight.copy_(ours.enter.weight)
            theirs.self_attn.in_proj_bias.copy_(ours.enter.bias)
            for one_, other in (
                (theirs.self_attn.out_proj, ours.leave),
                (theirs.norm1, ours.norm),
                (theirs.linear1, ours.wide),
                (theirs.linear2, ours.narrow),
                (theirs.norm2, ours.last_norm),
            ):
                one_.load_state_dict(other.state_dict())

    def states(self) -> Tensor:
        """Of every token, padding too."""
        found: Tensor = self.body(self.tokens, src_key_padding_mask=self.hidden)
        return found

    def scores(self) -> Tensor:
        """Of every pair."""
        pooled = self.host.pooler(self.states()[:, 0]).tanh()
        return self.host.says.logit(pooled)


def filling(host: UNITER, size: str) -> Result:
    """The words of one image's masked captions, against those at all of its tokens."""
    images, texts = items(host, 1)
    several = torch.zeros(MASKED, dtype=torch.long)
    images, texts = images.rows(several), texts.rows(several)
    texts = Embeddings(texts.tokens[:, :LONGEST], texts.mask[:, :LONGEST])
    place = torch.arange(1, SLOTS + 1).repeat(MASKED)
    slots = WordSlots(torch.arange(MASKED).repeat_interleave(SLOTS), place)
    padded = Padded(host, images, texts)

    def everywhere() -> Tensor:
        return host.filled(padded.states()[:, :LONGEST].flatten(0, 1))

    def at_slots() -> object:
        return host.read(images, texts, frozenset({WordHead.FILL}), slots).fill

    name = f"UNITER-{size}, {MASKED} masked captions: words at {SLOTS} slots of each"
    return compared(name, everywhere, at_slots, FILLED)


def compared(
    name: str, plain: Callable[[], object], work: Callable[[], object], target: float
) -> Result:
    """A figure of ours against the padded form."""
    timing = against(plain, work, repeats=5)
    note = f"{timing.work * 1e3:.0f} ms; padded {timing.plain * 1e3:.0f} ms"
    return Result(name, timing.ratio, target, None, note)
