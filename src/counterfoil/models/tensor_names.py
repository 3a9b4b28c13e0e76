"""Tensors of authors' checkpoints under our names, beginning by beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from counterfoil.models.authors import State

PIXELS = ("img_enc.backbone.", "img_enc.image_encoder.", "img_enc.cnn.")
TEXTS = {  # a BiGRU or BERT, as most systems of this family name them
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
    "txt_enc.bert.": "text.body.",
    "txt_enc.linear.": "text.fc.",
}
REGIONS = {  # a linear map beside two more with a norm between them
    "img_enc.fc.": "image.fc.",
    "img_enc.mlp.layers.0.": "image.enter.",
    "img_enc.mlp.layers.1.": "image.leave.",
    "img_enc.mlp.bns.0.": "image.norm.",
}
POSITIONS = "txt_enc.bert.embeddings.position_ids"  # that older versions of BERT saved
UNUSED = ("img_enc.mlp.bns.1.", POSITIONS)  # of `REGIONS`, of BERT


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TensorNames:
    """Which of a system's tensors is which of ours.

    Attributes:
        system: its name, with an article.
        prefixes: the beginnings of their names, and what stands for each in ours; the first that
            fits counts.
        unused: beginnings of names that nothing reads.
        needed: names of ours without which it is another system's.
        either: names of ours one of which is needed.
    """

    system: str
    prefixes: Mapping[str, str]
    unused: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    either: tuple[str, ...] = ()

    def ours(self, theirs: str) -> str | None:
        """Our name of one of their tensors; None for one that nothing reads.

        Raises:
            ValueError: it is none of theirs.
        """
        plain = theirs.replace("module.", "")
        if plain.startswith(self.unused):
            return None
        prefix = next((prefix for prefix in self.prefixes if plain.startswith(prefix)), None)
        if prefix is None:
            pixels = "; it was trained on pixels: extract features with its network first"
            hint = pixels if plain.startswith(PIXELS) else ""
            raise ValueError(
                f"{theirs!r} is no tensor of {self.system} checkpoint on features{hint}"
            )
        return self.prefixes[prefix] + plain.removeprefix(prefix)

    def renamed(self, state: Mapping[str, Tensor]) -> State:
        """All that is read, under our names.

        Raises:
            ValueError: a tensor is missing or unknown.
        """
        new = {ours: value for name, value in state.items() if (ours := self.ours(name))}
        either = () if any(name in new for name in self.either) else self.either[-1:]
        if missing := [name for name in (*self.needed, *either) if name not in new]:
            raise ValueError(
                f"this {self.system.partition(' ')[2]} checkpoint has no {missing[0]!r}; is it "
                "another system's?"
            )
        return new
