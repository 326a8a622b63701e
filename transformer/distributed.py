# Exported from notebooks/05_2a_many_devices.py, Section 5.2; edit that file, not this one.
# sha256 of what follows: ed8b1238612aebc4
"""Many Devices (Section 5.2)."""

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = [
    "T",
    "join_processes",
    "leave_processes",
    "rank",
    "world_size",
    "data_parallel",
    "sum_over_ranks",
    "share_over_ranks",
    "gather_from_ranks",
]


T = TypeVar("T")


def join_processes() -> None:
    """Join the other processes that `torchrun` started; do nothing in a process that stands alone.

    Raises:
        RuntimeError: The others cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def leave_processes() -> None:
    """Leave the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process among all, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def data_parallel(model: nn.Module) -> nn.Module:
    """The model, with its gradients averaged over all processes after every backward pass.

    Args:
        model: On its device, the same in all processes.

    Returns:
        The wrapped model; the model itself if the process stands alone.
    """
    if world_size() == 1:
        return model
    # The only buffers are tables of positions. Each process makes its own, as long as its longest sentence.
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.broadcast_buffers = False
    return wrapped


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum over all processes, in place. All processes must call it.

    Args:
        values: Of equal shape in all processes.

    Returns:
        The same tensor.
    """
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def share_over_ranks(items: Sequence[T]) -> Sequence[T]:
    """This process's part of the items.

    Args:
        items: The same in all processes.

    Returns:
        Every item whose number, counted round, is this rank.
    """
    return items[rank() :: world_size()]


def gather_from_ranks(mine: Sequence[T]) -> list[T]:
    """The results of all processes, in the order of the items that were shared out. All processes must call it.

    Args:
        mine: One result per item of this process's `share_over_ranks`.

    Returns:
        One result per item.
    """
    if world_size() == 1:
        return list(mine)
    dealt: list[Any] = [None] * world_size()
    dist.all_gather_object(dealt, list(mine))
    return [dealt[i % len(dealt)][i // len(dealt)] for i in range(sum(map(len, dealt)))]
