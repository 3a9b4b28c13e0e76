"""Anybody's loss: a function or a module of plain scores and true pairs."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from hashlib import sha256
from typing import Any, final

import torch
from torch import Tensor, nn

from counterfoil.core.config import Config
from counterfoil.core.types import Scores
from counterfoil.losses.base import Loss, plain_settings

_LIBRARIES = {  # of losses that take embeddings, and their adapters
    "pytorch_metric_learning": "MetricLearningLoss",
    "sentence_transformers": "SentenceTransformersLoss",
}


class ForeignLoss(Loss):
    """Base of losses around a module of somebody else, whose state is more than its tensors.

    Counters and switches that a module keeps as plain attributes, as the place in a queue, are
    saved and resumed with the run.
    """

    pure = False

    @property
    def unresumable(self) -> str:
        for part in self.modules():
            for name, value in vars(part).items():
                if isinstance(value, Tensor):
                    return (
                        f"{type(part).__name__} keeps the tensor {name!r}, which is neither a "
                        "parameter nor a buffer and is not saved"
                    )
        return ""

    def get_extra_state(self) -> Tensor:
        """Plain attributes of all modules inside, as bytes of JSON."""
        plain = {
            path: {name: value for name, value in vars(part).items() if _is_counter(name, value)}
            for path, part in self.named_modules()
            if path
        }
        return torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Put back what `get_extra_state` has read."""
        for path, plain in json.loads(bytes(state.tolist())).items():
            vars(self.get_submodule(path)).update(plain)


def _is_counter(name: str, value: object) -> bool:
    return name != "training" and not name.startswith("_") and isinstance(value, bool | int | float)


@final
class OwnLoss(ForeignLoss):
    """A function or module ``(scores, positives[, mask]) -> scalar`` as a loss.

    It gets float32 copies:

    - scores, (I, T): all finite, higher is better; the block need not be square.
    - positives, (I, T) bool: True where the text describes the image; several in a row where an
      image has several captions.
    - mask, (I, T) bool, if an argument has this name: False for pairs that are not to count, which
      hold the lowest score of the block.

    Parameters of a module are trained with the model, and saved and resumed with the run. Random
    numbers of torch begin anew at each step, the same on every process.

    Args:
        function: the function or module.

    Raises:
        TypeError: it cannot be called so, or is of a library whose losses take embeddings.

    >>> def spread(scores, positives):
    ...     return scores[~positives].mean() - scores[positives].mean()
    >>> round(OwnLoss(spread)(torch.tensor([[0.9, 0.8], [0.1, 0.7]])).item(), 3)
    -0.35
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        nn.Module.__init__(self)
        if isinstance(function, nn.Module):
            self.module = function
            package = type(function).__module__.partition(".")[0]
            if package in _LIBRARIES:
                name, adapter = type(function).__name__, _LIBRARIES[package]
                raise TypeError(
                    f"{name} of {package} takes embeddings instead of scores; write "
                    f"cf.losses.{adapter}({name}(…))"
                )
        self._function = (function,)  # in a tuple: a module is registered once
        self._masked = _takes_mask(function, self.title)

    @property
    def title(self) -> str:
        return callable_name(self._function[0])

    @property
    def unresumable(self) -> str:
        return _unresumable(self._function[0]) or super().unresumable

    def extra_repr(self) -> str:
        return "" if isinstance(self._function[0], nn.Module) else self.title

    def describe(self) -> dict[str, object]:
        return {"function": described(self._function[0])}

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        out = matrix.scores.isneginf()
        lowest = matrix.scores.detach().masked_fill(out, torch.inf).amin()
        block, positives = matrix.scores.masked_fill(out, lowest), matrix.positive.clone()
        mask = {"mask": ~out} if self._masked else {}
        devices = [block.device] if block.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(scores.seed)
            value = self._function[0](block, positives, **mask)
        return scalar(value, block, self.title)


def scalar(value: object, inputs: Tensor, name: str) -> Tensor:
    """What somebody's loss returned as a scalar with a gradient; `inputs` is what it was given.

    Raises:
        ValueError: it is not one number, or has no gradient.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else f"a {type(value).__name__}"
        )
        raise ValueError(
            f"the loss {name} returned {what}; it has to return one number as a tensor that is "
            "computed from what it is given, such as costs.mean()"
        )
    value = value.reshape(())
    if inputs.requires_grad and torch.is_grad_enabled() and not value.requires_grad:
        if value.item():
            raise ValueError(
                f"the loss {name} returned a number without a gradient; compute it from what it is "
                "given by torch, without item(), detach() or numpy()"
            )
        return value + 0 * inputs.sum()  # nothing to learn from this batch
    return value


def callable_name(function: object) -> str:
    """The name of a function, or of the class of a module."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _takes_mask(function: Callable[..., Tensor], name: str) -> bool:
    """Return True if it names a mask; refuse a function of other arguments."""
    try:
        signature = inspect.signature(
            function.forward if isinstance(function, nn.Module) else function
        )
    except ValueError:  # written in C
        return False
    masked = "mask" in signature.parameters
    try:
        signature.bind(None, None, **({"mask": None} if masked else {}))
    except TypeError as error:
        raise TypeError(
            f"{name}{signature} is no loss: it has to take (scores, positives), and may take a "
            f"mask by this name ({error})"
        ) from error
    return masked


# What a run depends on, so that another loss does not resume it.


def _unresumable(function: object) -> str:
    """Why nothing says that a function is the same one in a later process; "" where it is known."""
    while isinstance(function, partial):
        values = (*function.args, *function.keywords.values())
        if other := [value for value in values if not _is_plain(value)]:
            return f"its partial holds a {type(other[0]).__name__}"
        function = function.func
    if inspect.ismethod(function):
        function = function.__self__
    if not inspect.isfunction(function):
        return ""
    if function.__name__ == "<lambda>":
        return "a lambda has no name"
    if function.__closure__:
        return "it reads variables of the function around it"
    return "" if _source(function) else "its source cannot be read"


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _source(code: Any) -> str:
    """Twelve hex digits of the source of a function or class; "" where it cannot be read."""
    try:
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return ""
    return sha256(text.encode()).hexdigest()[:12]


def described(value: object) -> object:
    """Names, sources and plain settings of a function or module, JSON-ready."""
    if isinstance(value, partial):
        return ["partial", described(value.func), _plain(value.args), _plain(value.keywords)]
    if inspect.ismethod(value):
        return [described(value.__func__), described(value.__self__)]
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        return [f"{value.__module__}:{value.__qualname__}", _source(value)]
    parts = value.modules() if isinstance(value, nn.Module) else [value]
    return [_described_object(part) for part in parts]


def _described_object(part: object) -> object:
    kind = type(part)
    own = vars(part) if hasattr(part, "__dict__") else {}
    held = {
        key: described(inner)
        for key, inner in sorted(own.items())
        if not key.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, partial))
    }
    source = "" if kind.__module__.startswith("torch.") else _source(kind)
    return [f"{kind.__module__}:{kind.__qualname__}", source, plain_settings(part), held]


def _plain(value: object) -> object:
    return value if _is_plain(value) else repr(value)


# In recipes, which record calls.


@final
class RecordedLoss:
    """What makes a loss in a recorded call, of a function of scores or a class of modules.

    Its source is one of the arguments, so a stage is made again where the code has changed.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        update_wrapper(self, make, updated=())
        parameters = [*inspect.signature(make).parameters.values()]
        if not isinstance(make, type):  # the first two are scores and positives
            parameters = [p for p in parameters[2:] if p.name != "mask"]
        settings = [
            p.replace(kind=p.KEYWORD_ONLY)
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        source = inspect.Parameter("source", inspect.Parameter.KEYWORD_ONLY, annotation=str)
        self.__signature__ = inspect.Signature([*settings, source])
        self._make = make

    def __call__(self, *, source: str, **settings: Any) -> OwnLoss:
        if isinstance(self._make, type):
            return OwnLoss(self._make(**settings))
        return OwnLoss(partial(self._make, **settings) if settings else self._make)


def recorded_loss(make: Callable[..., Any], settings: Mapping[str, Any]) -> Config[OwnLoss]:
    """The recorded call of a function of scores, or of a class of modules, with its settings.

    Raises:
        TypeError: the function cannot be called as a loss.
        ValueError: a recipe could not know it again: it has no name, or no source.
    """
    if not isinstance(make, type):
        _takes_mask(partial(make, **settings) if settings else make, make.__name__)
        if why := _unresumable(make):
            raise ValueError(
                f"a recipe knows a loss again by its name and source, and {make.__qualname__} "
                f"cannot be: {why}; write a function with a name in the file of the recipe, "
                "def my_loss(scores, positives): …"
            )
    return Config(RecordedLoss(make), {**settings, "source": _source(make)})
