"""The few collectives the package uses, and their meaning when there is one process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

_PATIENCE = timedelta(days=1)  # while one prepares what all read: pictures, for hours at times

_apart = False


def rank() -> int:
    """This process's number, 0 when there is one."""
    return dist.get_rank() if dist.is_initialized() and not _apart else 0


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() and not _apart else 1


@contextmanager
def solo() -> Iterator[None]:
    """Let this process work as if it were the only one, on what it shares with no other."""
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


def init() -> bool:
    """Join the group that `torchrun` announces in the environment; False when there is none."""
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return dist.is_initialized()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    if dist.get_backend() == "gloo":  # whose threads abort a process that ends before them
        atexit.register(shutdown)
    return True


def shutdown() -> None:
    """Leave the group, if any."""
    if dist.is_initialized():
        dist.destroy_process_group()


def device() -> torch.device:
    """Where this process computes: its GPU when there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def barrier() -> None:
    """Wait for everybody."""
    if size() > 1:
        dist.barrier()


def shard(count: int) -> slice:
    """This process's contiguous share of `count` rows padded to a multiple of the processes."""
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
    """The largest of all processes' numbers."""
    return all_reduce_max_of((number,))[0]


def all_reduce_max_of(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The largest of all processes' numbers, place by place."""
    if size() == 1:
        return numbers
    tensor = torch.tensor(numbers, device=device())
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tuple(tensor.tolist())


def gather_objects(value: object) -> list[object]:
    """One small picklable value of every process, in rank order."""
    if size() == 1:
        return [value]
    out: list[object] = [None] * size()
    dist.all_gather_object(out, value)
    return out


@final
class _GatherRows(torch.autograd.Function):
    """All processes' rows, stacked; the gradient returns to whoever sent the row."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        return gather(rows).flatten(0, 1)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
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


def broadcast_ok(tensors: Iterable[Tensor]) -> None:
    """Give every process the first one's values, in place."""
    if size() == 1:
        return
    for tensor in tensors:
        dist.broadcast(tensor, 0)


def mean_gradients(parameters: Iterable[Tensor]) -> None:
    """Average gradients over processes, for steps that do not go through DDP's own hooks."""
    if size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= size()
