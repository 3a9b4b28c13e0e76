"""Public ViLT weights under our names.

What Hugging Face calls ViltForMaskedLM, ViltForImageAndTextRetrieval, ViltForPreTraining or
ViltModel is read: "dandelin/vilt-b32-mlm", "dandelin/vilt-b32-mlm-itm",
"dandelin/vilt-b32-finetuned-coco", or a folder.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from counterfoil.models.authors import State, read_checkpoint
from counterfoil.models.blocks.pretrained import weights_file

OUTPUTS = ("rank", "match", "fill", "doubt", "correct")
BODY = "vilt."
PARTS = ("embeddings.", "encoder.", "layernorm.", "pooler.")  # of a ViltModel saved alone
HEADS = {
    "rank_output.": "says.rank.",
    "itm_score.fc.": "says.match.",
    "itm_score.": "says.match.",
    "mlm_score.transform.dense.": "says.fill.enter.0.",
    "mlm_score.transform.LayerNorm.": "says.fill.enter.2.",
    "mlm_score.decoder.bias": "says.fill.bias",
    "mlm_score.bias": "says.fill.bias",
}
UNREAD = ("position_ids", "token_type_ids")  # numbered, not learnt
WORDS = "vilt.embeddings.text_embeddings.word_embeddings.weight"


def renamed(theirs: str) -> str | None:
    """Our name of one of their tensors; None for one that is not read."""
    if theirs.endswith(UNREAD):
        return None
    if theirs.startswith(BODY):
        return theirs
    if theirs.startswith(PARTS):
        return BODY + theirs
    found = max((p for p in HEADS if theirs.startswith(p)), key=len, default=None)
    return None if found is None else HEADS[found] + theirs.removeprefix(found)


def public_state(name: str, *, words: int | None = None) -> State:
    """The weights of a Hugging Face ViLT under the names of `ViLT`.

    Args:
        name: folder or name of the model.
        words: how many there are to be; where one more than the weights know, it begins as their
            mean and is never guessed.

    Raises:
        ValueError: transformers is not installed, or there is no such model.
    """
    given = read_checkpoint(weights_file(name)).state
    state = {ours: value for theirs, value in given.items() if (ours := renamed(theirs))}
    if WORDS not in state:
        raise ValueError(f"{name} holds no weights of a ViLT; give one, as dandelin/vilt-b32-mlm")
    known = state[WORDS]
    if words == len(known) + 1:
        state[WORDS] = torch.cat([known, known.mean(0, keepdim=True)])
        if (bias := state.get("says.fill.bias")) is not None:
            state["says.fill.bias"] = pad(bias, (0, 1), value=-100.0)
    return state
