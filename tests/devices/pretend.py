"""A pretend accelerator, ``pretend:0``, which finds device faults on a machine without a GPU.

Importing this module registers the device (PyTorch's PrivateUse1 key). A tensor on it is a wrapper
that says so and computes with the CPU tensor it holds: values equal the CPU's. What it adds are the
rules of a second memory. As on CUDA, operands of two devices are refused (`MixedDevices`), save
0-dim CPU tensors, CPU indices into device tensors, CPU lengths of packed sequences, and copies;
``.numpy()`` is refused. No mode is installed: threads and the backward pass see the device too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME, HALVES = "pretend", [torch.bfloat16, torch.float16]


class MixedDevices(RuntimeError):
    """An operation met tensors of two devices that CUDA would not compute with."""


class PretendTensor(Tensor):
    """A tensor that says it is on ``pretend:0``; ``inner`` is the CPU tensor that it stands for."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, **_):
        return f"{self.inner!r} on {DEVICE}"  # type: ignore[assignment]

    def tolist(self):
        return self.inner.tolist()

    def untyped_storage(self):
        return self.inner.untyped_storage()

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendTensor:
        layout = {"dtype": inner.dtype, "layout": inner.layout, "device": DEVICE}
        layout |= {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        out: PretendTensor = Tensor._make_wrapper_subclass(cls, inner.size(), **layout)
        out.inner = inner
        return out

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, *args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt, (self.inner, self.requires_grad, isinstance(self, torch.nn.Parameter))

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu().")


def _rebuilt(inner: Tensor, requires_grad: bool, parameter: bool) -> Tensor:
    out = PretendTensor(inner).requires_grad_(requires_grad)
    return torch.nn.Parameter(out, requires_grad) if parameter else out


def inner(value: Any) -> Any:
    """The CPU's tensor of a pretend one, the CPU for the pretend device; else the value itself."""
    if isinstance(value, PretendTensor):
        return value.inner
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def compute(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Check the operands' devices, run one operation on the CPU, and say where its results live."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    leaves = tree_leaves((args, kwargs))
    ours = {id(leaf.inner): leaf for leaf in leaves if isinstance(leaf, PretendTensor)}
    device = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    there = bool(ours) if device is None else device.type == NAME
    if ours and name not in ("copy_", "_to_copy", "_pin_memory"):
        _refuse(func, name, args, kwargs)
    out = _FUSED.get(name, func)(*tree_map(inner, args), **tree_map(inner, kwargs))
    for one in ours.values():
        if (one.shape, one.stride()) != (one.inner.shape, one.inner.stride()):
            one.data = PretendTensor(one.inner)  # resized, squeezed or transposed in place

    def placed(value: Any) -> Any:
        known = ours.get(id(value))
        if there and isinstance(value, Tensor):
            return PretendTensor(value) if known is None else known
        return value if known is None else value.clone()

    if name == "_pack_padded_sequence":  # whose batch sizes stay on the CPU
        return placed(out[0]), out[1]
    return args[0] if name == "copy_" else tree_map(placed, out)


def _refuse(func: Any, name: str, args: Any, kwargs: Any) -> None:
    """Refuse operands on the CPU beside those on the device, but those that CUDA allows."""
    indexed = name in _INDEXED and isinstance(args[0], PretendTensor)
    for place, argument in enumerate(func._schema.arguments):
        if place == 1 and (indexed or name == "_pack_padded_sequence"):
            continue
        written = argument.alias_info is not None and argument.alias_info.is_write
        for one in tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name)):
            on_cpu = isinstance(one, Tensor) and not isinstance(one, PretendTensor)
            if on_cpu and (written or one.dim() or name in ("cat", "stack")):
                raise MixedDevices(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {DEVICE} and cpu! ({name}, {argument.name}: {one.shape})"
                )


def _gru(
    x: Tensor, h: Tensor, old: Tensor, bx: Any = None, bh: Any = None
) -> tuple[Tensor, Tensor]:
    """The fused cell of devices: new state and workspace, from both products and the state."""
    xr, xz, xn = (x if bx is None else x + bx).chunk(3, 1)
    hr, hz, hn = (h if bh is None else h + bh).chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (n + z * (old - n)).contiguous(), torch.cat([r, z, n, old, hn], 1)


def _gru_backward(grad: Tensor, work: Tensor, bias: bool) -> tuple[Tensor | None, ...]:
    r, z, n, old, hn = work.chunk(5, 1)
    dn, dz = grad * (1 - z) * (1 - n * n), grad * (old - n) * z * (1 - z)
    dr = dn * hn * r * (1 - r)
    dx, dh = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
    return dx, dh, grad * z, dx.sum(0) if bias else None, dh.sum(0) if bias else None


_INDEXED = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
_FUSED = {"_thnn_fused_gru_cell": _gru, "_thnn_fused_gru_cell_backward": _gru_backward}
_LOWER = "mm addmm bmm baddbmm matmul linear conv1d conv2d gru_cell"
_FLOAT = "exp log softmax.int log_softmax.int layer_norm sum sum.dim_IntList cumsum logsumexp prod"
_WIDEST = "cat stack addcmul addcdiv index_put scatter_add"


def _autocast(op: Any, rule: str) -> Any:
    """The kernel that casts an operation's floating operands as CUDA's autocast does."""

    def casts(value: Any) -> bool:
        return isinstance(value, PretendTensor) and value.dtype in (torch.float32, *HALVES)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME) if rule == _LOWER else torch.float32
        dtypes = {leaf.dtype for leaf in tree_leaves(args) if casts(leaf)}
        dtype = next(iter(dtypes), dtype) if rule == _WIDEST and len(dtypes) < 2 else dtype
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AMP)):
            return op(*tree_map(lambda one: one.to(dtype) if casts(one) else one, args), **kwargs)

    return kernel


class Stub:
    """A stream, an event, or the context of a stream or device: its work is always done."""

    __init__ = __exit__ = wait = wait_event = wait_stream = lambda self, *_, **__: None
    synchronize = record = record_event = __exit__
    __enter__, query, elapsed_time = lambda self: self, lambda self: True, lambda self, end: 0.0


class Module:
    """``torch.pretend``: one device, all of whose work is done; its random state is the CPU's."""

    Stream = Event = stream = device = Stub
    is_available = is_initialized = is_bf16_supported = lambda self, *_: True
    current_device = memory_allocated = max_memory_allocated = lambda self, *_: 0
    synchronize = empty_cache = set_device = manual_seed = manual_seed_all = lambda self, *_: None
    _is_in_bad_fork, device_count = lambda self: False, lambda self: 1
    current_stream, get_amp_supported_dtype = lambda self, *_: Stub(), lambda self: HALVES

    def get_rng_state(self, *_):
        return torch.get_rng_state()

    def set_rng_state(self, state, *_):
        return torch.set_rng_state(state)


class _Generators(type):
    """``torch.Generator`` as it was, but that one of the device is one of the CPU."""

    def __instancecheck__(cls, one):
        return isinstance(one, torch._C.Generator)

    def __call__(cls, device="cpu"):
        return torch._C.Generator(inner(torch.device(device)))


def _swapped(self: Any, fn: Any, recurse: bool = True, apply: Any = torch.nn.Module._apply) -> Any:
    """``Module.to``: the parameters stay the objects they were, as between the CPU and CUDA."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return apply(self, fn, recurse)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


_setup_privateuseone_for_python_backend(NAME, Module())
DEVICE, _AMP = torch.device(NAME, 0), torch._C.DispatchKey.AutocastPrivateUse1
torch.Generator = _Generators("Generator", (), {})  # type: ignore[misc,assignment]
torch.nn.Module._apply = _swapped  # type: ignore[method-assign]


def _here(storage, where):
    return storage if where.startswith(NAME) else None


torch.serialization.register_package(0, lambda _: None, _here)  # torch.load there: on the CPU
Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign,assignment]
_all, _aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_all.fallback(compute, "PrivateUse1")  # what makes tensors there; torch.tensor copies below Python
_aten.impl("copy_", lambda *all: compute(torch.ops.aten.copy_.default, *all), "PrivateUse1")
_all.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for _rule in (_LOWER, _FLOAT, _WIDEST):
    for _op, _, _kind in (_name.partition(".") for _name in _rule.split()):
        _chosen = getattr(getattr(torch.ops.aten, _op), _kind or "default")
        _aten.impl(f"{_op}.{_kind}".rstrip("."), _autocast(_chosen, _rule), "AutocastPrivateUse1")
