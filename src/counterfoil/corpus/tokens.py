"""All captions of a corpus as ids, tokenised once and kept by content hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterfoil.corpus.words import Reading, Tokenizer
from counterfoil.files import replacing
from counterfoil.records import Items

WORTH_KEEPING = 2_000  # texts; fewer are tokenised again sooner than read


def cache() -> Path:
    """Where things that can be made again are kept: ``$COUNTERFOIL_CACHE`` or the user's cache."""
    given = os.environ.get("COUNTERFOIL_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "counterfoil"


@final
@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """Ragged rows of ids.

    Attributes:
        flat: (S,) int32 ids, text after text.
        starts: (T + 1,) long.
        pad: id that fills short rows.
        words: (S,) int32 which word of its text each id is a piece of, -1 for special ones; None
            where every id is a word.
    """

    flat: Tensor
    starts: Tensor
    pad: int
    words: Tensor | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self, rows: Tensor) -> Tensor:
        """(N,) ids of each of these texts."""
        return self.starts[rows + 1] - self.starts[rows]

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) long ids and (N, L) bool mask of these texts, padded to the longest."""
        at, mask = self._at(rows)
        return self.flat[at].long().masked_fill(~mask, self.pad), mask

    def items(self, ids: Tensor, rows: Tensor) -> Items:
        """These texts as items.

        Args:
            ids: (N,) long, by which they are known.
            rows: (N,) long, where they stand here.
        """
        values, mask = self.take(rows)
        if self.words is None:
            return Items(ids, values, mask)
        words = self.words[self._at(rows)[0]].long().masked_fill(~mask, -1)
        return Items(ids, values, mask, words=words)

    def _at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) places in the flat rows, and which of them are real."""
        lengths = self.lengths(rows)
        place = torch.arange(int(lengths.max()) if len(rows) else 0)
        mask = place < lengths.unsqueeze(1)
        at = (self.starts[rows].unsqueeze(1) + place).clamp(max=max(len(self.flat) - 1, 0))
        return at, mask


def pack(reading: Reading, pad: int) -> Tokens:
    """Ragged rows from lists."""
    lengths = torch.tensor([len(row) for row in reading.ids], dtype=torch.long)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    words = None if reading.words is None else _flat(reading.words)
    return Tokens(_flat(reading.ids), starts, pad, words)


def tokenise(texts: Sequence[str], tokenizer: Tokenizer) -> Tokens:
    """Ids of all texts; large sets are kept in the cache under the hash of texts and tokenizer."""
    if not texts:
        return pack(Reading([]), tokenizer.pad)
    if len(texts) < WORTH_KEEPING:
        return pack(tokenizer.read(texts), tokenizer.pad)
    digest = hashlib.sha256(tokenizer.digest.encode())
    for text in texts:
        digest.update(text.encode() + b"\x00")
    path = cache() / "tokens" / f"{digest.hexdigest()[:24]}.safetensors"
    kept = _kept(path, len(texts), tokenizer)
    if kept is not None:
        return kept
    tokens = pack(tokenizer.read(texts), tokenizer.pad)
    words = {} if tokens.words is None else {"words": tokens.words}
    with suppress(OSError), replacing(path) as temporary:  # a cache that cannot be written is none
        save_file({"flat": tokens.flat, "starts": tokens.starts, **words}, temporary)
    return tokens


def _flat(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([number for row in rows for number in row], dtype=torch.int32)


def _kept(path: Path, texts: int, tokenizer: Tokenizer) -> Tokens | None:
    """What the cache holds, None where it is absent, damaged or older than the words in it."""
    try:
        kept = load_file(path)
        flat, starts = kept["flat"], kept["starts"]
        words = kept["words"] if tokenizer.divides else None
    except (SafetensorError, KeyError, OSError):
        return None
    if len(starts) != texts + 1 or int(starts[-1]) != len(flat):
        return None
    if words is not None and len(words) != len(flat):
        return None
    return Tokens(flat, starts, tokenizer.pad, words)
