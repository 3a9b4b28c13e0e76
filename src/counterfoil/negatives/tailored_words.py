"""What a model learns of the words of captions that were written for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.negatives.readings import Shown, read
from counterfoil.reading import Slots, Want
from counterfoil.records import Items, WordTask

Task = Literal["masked", "doubt", "correct"]
TASKS: dict[str, Want] = {"masked": Want.FILL, "doubt": Want.DOUBT, "correct": Want.CORRECT}


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """Written captions that are trained on.

    Attributes:
        anchor: (C,) for which anchor.
        column: (C,) its place among those of the anchor, the hardest first.
        masking: (C,) which masking of the anchor's caption it fills.
        texts: C of them, as the model in training reads them.
    """

    anchor: Tensor
    column: Tensor
    masking: Tensor
    texts: Items


def judged(
    matcher: Matcher,
    shown: Shown,
    kept: Kept,
    originals: Items,
    hidden: Tensor,
    words: tuple[Task, ...],
) -> tuple[Tensor, dict[str, WordTask]]:
    """(C,) scores of kept captions, and their word tasks, from one pass over them.

    Where nothing was kept, the first original is read so that every head takes part in the step;
    nothing of it counts.

    Args:
        matcher: reads words.
        shown: the kept captions with their images.
        kept: which they are.
        originals: B captions.
        hidden: (B, K, L) bool, slots of each masking.
        words: the tasks; "masked" is none of them.
    """
    anchor, none = kept.anchor, not len(kept.anchor)
    slots_of = hidden[anchor, kept.masking]
    if none:
        anchor, slots_of = anchor.new_zeros(1), hidden[:1, 0]
        shown = Shown(shown.images, originals.rows(anchor), anchor)
    pair, place = slots_of.nonzero(as_tuple=True)
    want = frozenset({Want.SCORE, *(TASKS[word] for word in words if word != "masked")})
    found = read(matcher, shown, want, Slots(pair, place))
    true, tasks = originals.values[anchor], {}
    assert found.score is not None
    if found.doubt is not None:
        row, column = shown.texts.mask.nonzero(as_tuple=True)
        same = (shown.texts.values == true).long()[row, column]
        tasks["doubt"] = _task(found.doubt[row, column], same, anchor[row], none)
    if found.correct is not None:
        tasks["correct"] = _task(found.correct, true[pair, place], anchor[pair], none)
    return found.score[: len(kept.anchor)], tasks


def _task(logits: Tensor, labels: Tensor, anchor: Tensor, none: bool) -> WordTask:
    """A word task; where it is of nothing, no label counts."""
    return WordTask(logits, torch.full_like(labels, -1) if none else labels, anchor)
