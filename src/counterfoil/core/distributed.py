"""The torch.distributed collectives of the package; with one process they do nothing."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from counterfoil.core.config import unknown_name

_TIMEOUT = timedelta(days=1)  # rank 0 may decode images for hours while the others wait

_solo = False
_device: str | None = None


def rank() -> int:
    """Rank of this process; 0 for a single one."""
    return dist.get_rank() if dist.is_initialized() and not _solo else 0


def size() -> int:
    """Number of processes that share the work; 1 without a group."""
    return dist.get_world_size() if dist.is_initialized() and not _solo else 1


@contextmanager
def on_rank_0(context: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter a context on rank 0, which writes for all processes; where it fails, all fail.

    Raises:
        ValueError: rank 0 could not enter it, as a lock that another run holds.
    """
    with ExitStack() as stack:
        refusal = ""
        try:
            if rank() == 0:
                stack.enter_context(context)
        except (ValueError, OSError) as error:
            if size() == 1:
                raise
            refusal = str(error)
        # without this the others would wait for rank 0 in their next collective
        refusal = str(gather_objects(refusal)[0])
        if refusal:
            raise ValueError(refusal)
        yield


@contextmanager
def solo() -> Iterator[None]:
    """Run the block as a single process, for work that is not shared."""
    global _solo
    before, _solo = _solo, True
    try:
        yield
    finally:
        _solo = before


def init() -> bool:
    """Join the process group of `torchrun`; return whether there is one."""
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return dist.is_initialized()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)
    if dist.get_backend() == "gloo":  # its threads abort a process that exits before them
        atexit.register(shutdown)
    return True


def is_lost_process(error: BaseException) -> bool:
    """Return True if a collective failed because another process of the group ended."""
    # gloo raises plain RuntimeErrors that name its source file
    return dist.is_initialized() and (isinstance(error, dist.DistError) or "/gloo/" in str(error))


def shutdown() -> None:
    """Leave the process group, if any."""
    if dist.is_initialized():
        dist.destroy_process_group()


def use_device(name: str | None) -> None:
    """Choose the device of this process; None leaves the choice to `device`.

    Apple's "mps" is used only where it is named: not every operation of the models exists there.

    Raises:
        ValueError: there is no such device here.
    """
    global _device  # one process computes on one device
    here = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name is not None and name not in here:
        raise ValueError(unknown_name(name, list(here), "a device"))
    if name is not None and not here[name]:
        usable = " or ".join(kind for kind, there in here.items() if there)
        raise ValueError(f"PyTorch finds no {name} on this machine; --device can be {usable}")
    _device = name


def device() -> torch.device:
    """Device of this process: the one chosen with `use_device`, else its GPU, else the CPU."""
    if _device in ("cpu", "mps"):
        return torch.device(_device)
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def barrier() -> None:
    """Wait for all processes."""
    if size() > 1:
        dist.barrier()


def shard(count: int) -> slice:
    """This process's contiguous share of `count` rows, padded to a multiple of the processes."""
    each = -(-count // size())
    return slice(rank() * each, (rank() + 1) * each)


def gather(tensor: Tensor) -> Tensor:
    """Stack equally shaped tensors of all processes: (...) -> (W, ...)."""
    if size() == 1:
        return tensor.unsqueeze(0)
    out = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(out, tensor.contiguous())
    return torch.stack(out)


def all_reduce_max(number: int) -> int:
    """Maximum of a number over all processes."""
    return all_reduce_max_of((number,))[0]


def all_reduce_max_of(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Elementwise maximum over all processes."""
    if size() == 1:
        return numbers
    tensor = torch.tensor(numbers, device=device())
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tuple(tensor.tolist())


def gather_objects(value: object) -> list[object]:
    """A small picklable value of every process, in rank order."""
    if size() == 1:
        return [value]
    out: list[object] = [None] * size()
    dist.all_gather_object(out, value)
    return out


@final
class _GatherRows(torch.autograd.Function):
    """All processes' rows, stacked; the gradient of a row returns to the process that sent it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        return gather(rows).flatten(0, 1)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        # Every process holds a gradient of all rows; their sum belongs to the sum of all losses.
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad.chunk(size())[rank()]


def gather_rows(rows: Tensor) -> Tensor:
    """Differentiable: (N, ...) on each of W processes -> (W * N, ...) on all of them.

    When every process computes the same loss from gathered rows, DistributedDataParallel's mean
    over processes gives exactly the gradient of that loss on the whole batch.
    """
    if size() == 1:
        return rows
    out: Tensor = _GatherRows.apply(rows)  # type: ignore[no-untyped-call]
    return out


def broadcast_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with the values of rank 0, in place."""
    if size() == 1:
        return
    for tensor in tensors:
        dist.broadcast(tensor, 0)
