"""Tensors of VSE++, SCAN and BFAN under our names: all three have the same two encoders."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, gru, regions
from counterfoil.models.bfan import BFAN
from counterfoil.models.scan import SCAN
from counterfoil.models.tensor_names import TensorNames
from counterfoil.models.vse import VSE
from counterfoil.spec import of

PREFIXES = {
    "img_enc.fc.": "image.fc.",
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
}
NEEDED = ("image.fc.weight", "image.fc.bias", "text.embed.weight", "text.rnn.weight_ih_l0")


def convert_vsepp(state: Mapping[str, Tensor]) -> State:
    """VSE++'s tensors under the names of `VSE`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return _renamed(state, "VSE++")


def convert_scan(state: Mapping[str, Tensor]) -> State:
    """SCAN's tensors under the names of `SCAN`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return _renamed(state, "SCAN")


def convert_bfan(state: Mapping[str, Tensor]) -> State:
    """BFAN's tensors under the names of `BFAN`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return _renamed(state, "BFAN")


def vsepp(checkpoint: Checkpoint) -> Converted:
    """VSE++ from a checkpoint alone.

    Raises:
        ValueError: it is not a VSE++ checkpoint on ready-made features.
    """
    state, options = convert_vsepp(checkpoint.state), checkpoint.options
    spec = of(
        VSE,
        image=regions(state),
        text=gru(state),
        text_pool="last",
        measure=options.get("measure", "cosine"),
        absolute=bool(options.get("use_abs", False)),
        normalise_images=not options.get("no_imgnorm", False),
    )
    return Converted(spec, state)


def scan(checkpoint: Checkpoint) -> Converted:
    """SCAN from a checkpoint alone; without its options, t2i LogSumExp as published.

    Raises:
        ValueError: it is not a SCAN checkpoint.
    """
    state, options = convert_scan(checkpoint.state), checkpoint.options
    direction = options.get("cross_attn", "t2i")
    spec = of(
        SCAN,
        image=regions(state),
        text=gru(state),
        direction=direction,
        raw_norm=options.get("raw_feature_norm", "clipped_l2norm"),
        aggregate=options.get("agg_func", "LogSumExp"),
        lambda_softmax=float(options.get("lambda_softmax", 9 if direction == "t2i" else 4)),
        lambda_lse=float(options.get("lambda_lse", 6 if direction == "t2i" else 5)),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return Converted(spec, state)


def bfan(checkpoint: Checkpoint) -> Converted:
    """BFAN from a checkpoint alone; without its options, "equal".

    Raises:
        ValueError: it is not a BFAN checkpoint.
    """
    state, options = convert_bfan(checkpoint.state), checkpoint.options
    spec = of(
        BFAN,
        image=regions(state),
        text=gru(state),
        focus=options.get("focal_type", "equal"),
        lambda_softmax=float(options.get("lambda_softmax", 20)),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return Converted(spec, state)


def _renamed(state: Mapping[str, Tensor], system: str) -> State:
    names = TensorNames(system=f"a {system}", prefixes=PREFIXES, needed=NEEDED)
    return names.renamed(_unnormed(state))


def _unnormed(state: Mapping[str, Tensor]) -> State:
    """Weight normalisation written out: SCAN may save fc as direction and length."""
    new = dict(state)
    for name in [n for n in state if n.endswith("fc.weight_g")]:
        length, way = new.pop(name), new.pop(name[:-1] + "v")
        norm = way.norm() if length.numel() == 1 else way.norm(dim=1, keepdim=True)
        new[name.removesuffix("_g")] = way * (length / norm)
    return new
