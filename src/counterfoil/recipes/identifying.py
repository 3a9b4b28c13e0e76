"""Telling models apart by what they make of images and texts, not by where they lie."""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import Any

from counterfoil.corpus.lens import Eye, FeatureEye, Lens, PixelEye
from counterfoil.engine.identity import model_digest
from counterfoil.matcher import Matcher
from counterfoil.saved_names import short_name
from counterfoil.spec import Spec

_SOURCES = ("name", "config", "pretrained")  # where a pretrained part came from


def identity_of(matcher: Matcher, spec: Spec[Matcher] | None, lens: Lens | None) -> str:
    """Sixteen hex digits of all that the vectors and scores of a model depend on.

    Weights, what computes with them, and what the model sees of pictures and captions. A model that
    was saved anew or moved is the same.

    Args:
        matcher: the model.
        spec: the call that built it, if it is known.
        lens: what it sees; None for ready-made vectors.
    """
    digest = hashlib.sha256(model_digest(matcher).encode())
    if spec is not None:
        digest.update(json.dumps(_call(spec), sort_keys=True).encode())
    if lens is not None:
        digest.update(_described(lens.eye).encode())
        digest.update((lens.tokenizer.digest if lens.tokenizer else "").encode())
    return digest.hexdigest()[:16]


def _described(eye: Eye) -> str:
    """Settings of an eye, in the words of version 0.1 whatever classes and fields are called today.

    Indices and stores hold this digest: a changed word here would make them another model's.
    """
    if isinstance(eye, FeatureEye):
        return f"FeatureEye(width={eye.width!r}, mean={eye.mean!r}, deviation={eye.deviation!r})"
    if isinstance(eye, PixelEye):
        square = f"size={eye.size!r}, mean={eye.mean!r}, deviation={eye.deviation!r}"
        shape = f"crop={eye.crop!r}, divisor={eye.divisor!r}, width={eye.width!r}"
        frame = f", frame={eye.frame!r}" if eye.frame else ""
        return f"PixelEye({square}, {shape}{frame})"
    return repr(eye)


def _call(value: Any) -> Any:
    """A written call without its defaults, and without the sources of pretrained parts.

    Their configurations and weights are told by the model itself.
    """
    match value:
        case Spec():
            known = inspect.signature(value.make).parameters
            loaded = {"config", "pretrained"} <= known.keys()
            told = {
                name: _call(given)
                for name, given in value.arguments.items()
                if not (loaded and name in _SOURCES) and given != known[name].default
            }
            return {"call": short_name(value.make), **told}
        case tuple() | list():
            return [_call(inner) for inner in value]
    return value
