"""UNITER's and TAGS's tensors under our names, and ours under theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State
from counterfoil.models.blocks.uniter_heads import OUTPUTS
from counterfoil.models.uniter import UNITER
from counterfoil.models.uniter_start import begun
from counterfoil.spec import of

HEAD_WIDTH = 64  # of all published sizes
MASK = 103  # in bert-base-cased

WORDS = "uniter.embeddings.word_embeddings.weight"
KINDS = "uniter.embeddings.token_type_embeddings.weight"  # of a word, and of a region
VEIL = "uniter.img_embeddings.mask_embedding.weight"  # zero, and what stands for a region
FEATURES = "uniter.img_embeddings.img_linear.weight"
TIED = {
    "cls.predictions.decoder.weight": WORDS,
    "correction_output.predictions.decoder.weight": WORDS,
    "feat_regress.weight": FEATURES,
}
PREFIXES = {
    "uniter.embeddings.word_embeddings.": "text.word_embeddings.",
    "uniter.embeddings.position_embeddings.": "text.position_embeddings.",
    "uniter.embeddings.LayerNorm.": "text.norm.",
    "uniter.img_embeddings.img_linear.": "image.fc.",
    "uniter.img_embeddings.img_layer_norm.": "image.fc_norm.",
    "uniter.img_embeddings.pos_linear.": "image.place.",
    "uniter.img_embeddings.pos_layer_norm.": "image.place_norm.",
    "uniter.img_embeddings.LayerNorm.": "image.norm.",
    "uniter.pooler.dense.": "pooler.",
    "rank_output.": "says.rank.",
    "itm_output.": "says.match.",
    "disc_output.": "says.doubt.",
    "feat_regress.net.": "says.regress.enter.",
    "feat_regress.bias": "says.regress.bias",
    "region_classifier.net.3.": "says.classify.out.",
    "region_classifier.net.": "says.classify.enter.",
    **{
        f"{theirs}.predictions.{part}": f"says.{ours}.{own}"
        for theirs, ours in (("cls", "fill"), ("correction_output", "correct"))
        for part, own in (
            ("bias", "bias"),
            ("transform.dense.", "enter.0."),
            ("transform.LayerNorm.", "enter.2."),
        )
    },
}
LAYER = {
    "attention.output.dense.": "leave.",
    "attention.output.LayerNorm.": "norm.",
    "intermediate.dense.": "wide.",
    "output.dense.": "narrow.",
    "output.LayerNorm.": "last_norm.",
}
ASKING = ("query", "key", "value")
THEIR_LAYER = re.compile(r"uniter\.encoder\.layer\.(\d+)\.(.+)")
OUR_LAYER = re.compile(r"body\.layers\.(\d+)\.(.+)")
BERT = ("embeddings.", "img_embeddings.", "encoder.", "pooler.")  # what may stand behind "bert."
NEEDED = ("text.word_embeddings.weight", "image.fc.weight", "body.layers.0.enter.weight")


def renamed(theirs: str) -> str | None:
    """Our name of one of their tensors; None for one that is not ours alone, or that none reads.

    The parts of a layer that ask, are asked and answer are one tensor here.
    """
    if layer := THEIR_LAYER.fullmatch(theirs):
        found = _exchanged(layer[2], LAYER)
        return found and f"body.layers.{layer[1]}.{found}"
    return _exchanged(theirs, PREFIXES)


def convert_uniter(state: Mapping[str, Tensor]) -> State:
    """UNITER's and TAGS's tensors under the names of `UNITER`; those that none reads are left out.

    Names with "gamma" and "beta", and with "bert." before them or in place of "uniter.", are known.

    Raises:
        ValueError: what every UNITER has is missing.
    """
    given = {_plain(name): value for name, value in state.items()}
    new = {ours: value for name, value in given.items() if (ours := renamed(name))}
    for name in given:
        if (layer := THEIR_LAYER.fullmatch(name)) and ".self.query." in name:
            parts = [given.get(name.replace("query", part)) for part in ASKING]
            whole = torch.cat([part for part in parts if part is not None])
            new[f"body.layers.{layer[1]}.enter.{name.rpartition('.')[2]}"] = whole
    if KINDS in given:
        new["text.kind"], new["image.kind"] = given[KINDS][:2]
    if VEIL in given:
        new["image.veil"] = given[VEIL][1]
    if missing := [name for name in NEEDED if name not in new]:
        raise ValueError(f"this UNITER checkpoint has no {missing[0]!r}; is it another system's?")
    return new


def official(state: Mapping[str, Tensor]) -> State:
    """The weights of a `UNITER` under the authors' names, as their loaders want them."""
    new: State = {}
    back = {ours: theirs for theirs, ours in PREFIXES.items()}
    layer_back = {ours: theirs for theirs, ours in LAYER.items()}
    for name, value in state.items():
        if layer := OUR_LAYER.fullmatch(name):
            before = f"uniter.encoder.layer.{layer[1]}."
            if layer[2].startswith("enter."):
                for part, own in zip(ASKING, value.chunk(3), strict=True):
                    kind = layer[2].removeprefix("enter.")
                    new[f"{before}attention.self.{part}.{kind}"] = own.clone()
            elif found := _exchanged(layer[2], layer_back):
                new[before + found] = value
        elif found := _exchanged(name, back):
            new[found] = value
    new[KINDS] = torch.stack([state["text.kind"], state["image.kind"]])
    if (veil := state.get("image.veil")) is not None:
        new[VEIL] = torch.stack([torch.zeros_like(veil), veil])
    heads = {name.partition(".")[0] for name in new}
    return new | {n: new[own] for n, own in TIED.items() if n.partition(".")[0] in heads}


def uniter(checkpoint: Checkpoint) -> Converted:
    """UNITER, or TAGS, from a checkpoint alone, with the heads that are in it and a rank.

    A rank that was not fine-tuned is the yes of the pre-trained match; other tensors that are
    missing begin as fresh ones. Sizes are read off the tensors, "heads" (64 numbers to each) and
    "mask" (103) may be among the options.

    Raises:
        ValueError: it is not a UNITER checkpoint.
    """
    state = convert_uniter(checkpoint.state)
    heads = {name.split(".")[1] for name in state if name.startswith("says.")}
    begin = begun(state) if "match" in heads else state
    state |= {name: value for name, value in begin.items() if name.startswith("says.rank.")}
    outputs = tuple(name for name in OUTPUTS if name in heads | {"rank"})
    vocabulary, width = state["text.word_embeddings.weight"].shape
    options = checkpoint.options
    spec = of(
        UNITER,
        layers=len({layer[1] for name in state if (layer := OUR_LAYER.fullmatch(name))}),
        width=width,
        heads=int(options.get("heads", max(1, width // HEAD_WIDTH))),
        inner=_rows(state, "body.layers.0.wide.weight", 4 * width),
        vocabulary=vocabulary,
        positions=_rows(state, "text.position_embeddings.weight", 512),
        features=state["image.fc.weight"].shape[1],
        classes=_rows(state, "says.classify.out.weight", 1601),
        mask=int(options.get("mask", MASK if vocabulary > MASK else 0)),
        outputs=outputs,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        own = spec.build().state_dict()
    return Converted(spec, {name: state.get(name, value) for name, value in own.items()})


def _rows(state: State, name: str, otherwise: int) -> int:
    return len(state[name]) if name in state else otherwise


def _plain(name: str) -> str:
    name = name.replace("gamma", "weight").replace("beta", "bias").removeprefix("module.")
    rest = name.removeprefix("bert.")
    return f"uniter.{rest}" if rest != name and rest.startswith(BERT) else rest


def _exchanged(name: str, prefixes: Mapping[str, str]) -> str | None:
    found = max((p for p in prefixes if name.startswith(p)), key=len, default=None)
    return None if found is None else prefixes[found] + name.removeprefix(found)
