"""Writes an image's caption from its regions, to make them hold what captions tell (VSRN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, pad

from counterfoil.models.blocks.gru import recurrent
from counterfoil.models.blocks.pool import pool
from counterfoil.models.blocks.tower import hidden, positive
from counterfoil.records import Encoded


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """What the decoder attends to.

    Attributes:
        states: (P, R, H) of the recurrent network over the regions.
        keys: (P, R, H) their part of the attention, computed once.
        hidden: (P, R) bool, True at padding; None where there is none.
    """

    states: Tensor
    keys: Tensor
    hidden: Tensor | None

    def first(self, count: int) -> Memory:
        """That of the first captions."""
        if count == len(self.states):
            return self
        hidden = None if self.hidden is None else self.hidden[:count]
        return Memory(self.states[:count], self.keys[:count], hidden)


@final
class Captioner(nn.Module):
    """A recurrent reader of regions and a recurrent writer that attends to them (section 3.4).

    The writer sees the words so far. After the last token it must predict one padding token, as
    the authors have it, except in captions that are cut.

    Departs from the authors' code in: each caption is left at its end and the vocabulary is
    scored for its own tokens only, where theirs runs `longest` - 1 steps (the loss is the same);
    regions may be padded.
    """

    def __init__(
        self,
        *,
        words: int,
        width: int,
        hidden: int = 512,
        word_width: int = 300,
        dropout: float = 0.2,
        longest: int = 60,
    ) -> None:
        """Keyword arguments.

        Args:
            words: size of the vocabulary.
            width: of the region vectors.
            hidden: width of both recurrent networks.
            word_width: width of a word embedding.
            dropout: share of what both networks read that is dropped in training.
            longest: longer captions are cut to so many tokens, their last one kept.

        Raises:
            ValueError: a size that is not possible.
        """
        super().__init__()
        positive(words=words, width=width, hidden=hidden, word_width=word_width)
        if longest < 2:
            raise ValueError(
                f"longest={longest} leaves no token to predict after the first one; it must be at "
                "least 2"
            )
        self.width, self.longest = width, longest
        self.fc = nn.Linear(width, hidden)
        self.reader = nn.GRU(hidden, hidden, batch_first=True)
        self.embed = nn.Embedding(words, word_width)
        self.attend, self.focus = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1, bias=False)
        self.writer = nn.GRUCell(word_width + hidden, hidden)
        self.out = nn.Linear(hidden, words)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_normal_(self.fc.weight)
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, regions: Encoded, captions: Tensor) -> Tensor:
        """() negative log likelihood, summed over all captions.

        Args:
            regions: (P, R, D) of the image of each caption.
            captions: (P, L) long, -1 behind the last token.
        """
        if not len(captions):  # several processes must agree on which parameters have a gradient
            return torch.stack([parameter.sum() for parameter in self.parameters()]).sum() * 0
        ids, steps = self._cut(captions)
        order = steps.argsort(descending=True, stable=True)
        ids, steps = ids[order], steps[order]
        states = self.write(regions.rows(order), ids, steps)
        going = torch.arange(ids.shape[1] - 1, device=ids.device).unsqueeze(1) < steps
        return cross_entropy(self.out(states), ids[:, 1:].T[going], reduction="sum")

    def write(self, regions: Encoded, ids: Tensor, steps: Tensor) -> Tensor:
        """States after each word, given the words before: first those of the first step.

        Args:
            regions: (P, R, D).
            ids: (P, L) long.
            steps: (P,) words to read of each caption, falling.
        """
        memory, state = self._read(regions)
        going = torch.arange(int(steps[0]), device=ids.device).unsqueeze(1) < steps
        words = self._words(ids[:, : len(going)].T[going])
        states: list[Tensor] = []
        for read in torch.split(words, going.sum(1).tolist()):
            memory = memory.first(len(read))
            state = self._step(memory, read, state[: len(read)])
            states.append(state)
        return torch.cat(states)

    @torch.no_grad()
    def greedy(self, regions: Encoded, start: int, steps: int) -> tuple[Tensor, Tensor]:
        """The likeliest word at each step, and its log probability; both (N, steps).

        Args:
            regions: (N, R, D).
            start: token that every caption begins with.
            steps: tokens to write; nothing ends a caption.
        """
        memory, state = self._read(regions)
        word = torch.full((len(regions),), start, device=state.device)
        found: list[tuple[Tensor, Tensor]] = []
        for _ in range(steps):
            state = self._step(memory, self._words(word), state)
            likely, word = self.out(state).log_softmax(1).max(1)
            found.append((word, likely))
        return torch.stack([w for w, _ in found], 1), torch.stack([p for _, p in found], 1)

    def _cut(self, captions: Tensor) -> tuple[Tensor, Tensor]:
        """(P, L + 1) ids with padding 0, and how many of them are predicted."""
        counts = (captions >= 0).sum(1)
        ids = pad(captions.clamp(min=0), (0, 1))
        if ids.shape[1] > self.longest:
            last = ids.gather(1, (counts - 1).clamp(min=0).unsqueeze(1))[:, 0]
            ids = ids[:, : self.longest].clone()
            ids[:, -1] = torch.where(counts >= self.longest, last, ids[:, -1])
        return ids, counts.clamp(max=self.longest - 1)

    def _read(self, regions: Encoded) -> tuple[Memory, Tensor]:
        """What the decoder attends to, and the state that it begins with."""
        whole = bool(regions.mask.all())
        tokens = self.dropout(self.fc(hidden(regions.tokens, regions.mask)))
        states = self.reader(tokens)[0] if whole else recurrent(self.reader, tokens, regions.mask)
        width = states.shape[-1]
        keys = linear(states, self.attend.weight[:, :width], self.attend.bias)
        memory = Memory(states, keys, None if whole else ~regions.mask)
        return memory, pool("last", Encoded(states, regions.mask))

    def _words(self, ids: Tensor) -> Tensor:
        """(P, 3H) what words add to the gates."""
        words = self.dropout(self.embed(ids))
        weight = self.writer.weight_ih[:, : words.shape[-1]]
        return linear(words, weight, self.writer.bias_ih)

    def _step(self, memory: Memory, words: Tensor, state: Tensor) -> Tensor:
        """(P, H) the next state."""
        width = state.shape[-1]
        query = linear(state, self.attend.weight[:, width:]).unsqueeze(1)
        energy = self.focus((memory.keys + query).tanh_()).squeeze(-1)
        if memory.hidden is not None:
            energy = energy.masked_fill(memory.hidden, -torch.inf)
        context = self.dropout((energy.softmax(1).unsqueeze(1) @ memory.states).squeeze(1))
        read = words + linear(context, self.writer.weight_ih[:, -width:])
        again = linear(state, self.writer.weight_hh, self.writer.bias_hh)
        reset, keep = (read + again)[:, : 2 * width].sigmoid().chunk(2, 1)
        new = (read[:, 2 * width :] + reset * again[:, 2 * width :]).tanh()
        return new + keep * (state - new)
