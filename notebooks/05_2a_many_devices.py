# %% [markdown]
# # 5.2 Many Devices
#
# The paper trained on eight GPUs. Each takes a part of every batch, and their gradients are added up. This chapter shows
# that the sum is the gradient of the whole batch, if one divides by the right number: then the same training runs on one
# device or on eight. The usual mistake gives another model for every number of devices, and no error.

# %%
#| default_exp distributed

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import altair as alt
import torch

import transformer
from transformer.data import copy_task, make_batch
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, TransformerConfig

transformer.check_version("0.1")

# %% [markdown]
# ## A batch on eight devices
#
# > We trained our models on one machine with 8 NVIDIA P100 GPUs.
# >
# > — Section 5.2
#
# Every device holds the whole model. It computes the loss of its own sentences, and the gradients are summed before the
# step, so that all devices take the same one. What a device divides by decides whether that is right: it is the number of
# target tokens of the *whole* batch.
#
# ### See it
#
# Three devices, played one after the other by one CPU. Each takes ten of thirty sentences: the first the short ones, the
# last the long ones. The right way divides each part's loss by the tokens of all. The wrong way takes the mean over the
# parts' own means.

# %%
torch.manual_seed(0)
model = Transformer(TransformerConfig(20, 20, d_model=32, n_layers=1, n_heads=2, d_ff=64, dropout=0.0)).double()
pairs = sorted(copy_task(30, vocab_size=20, min_len=2, max_len=12, seed=1), key=lambda pair: len(pair[0]))
batch, parts = make_batch(pairs), [make_batch(pairs[i : i + 10]) for i in (0, 10, 20)]
print("target tokens of the three:", [part.n_tokens for part in parts])
loss_function = LabelSmoothingLoss(reduction="sum")


# %%
def gradient(batches, divisors):
    model.zero_grad()
    for part, divisor in zip(batches, divisors, strict=True):
        (loss_function(model(part.src, part.tgt_in), part.tgt_out) / divisor).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


# %%
whole = gradient([batch], [batch.n_tokens])
by_tokens = gradient(parts, [batch.n_tokens] * 3)
by_parts = gradient(parts, [3 * part.n_tokens for part in parts])
error, wrong = ((way - whole).norm().item() / whole.norm().item() for way in (by_tokens, by_parts))
print(f"divided by the tokens of all: off by {error:.1%} of the gradient's length")
print(f"mean of the parts' means:     off by {wrong:.1%}")
assert error < 1e-9 < 0.01 < wrong

# %% [markdown]
# The wrong way counts the tokens of short sentences for more than those of long ones. Nothing crashes; the model is merely
# another one for every number of devices. The loop itself cuts batches with `split`
# ([Section 5.1](05_1_training_data_and_batching.py)), whose parts have about equally many tokens, so that no device waits;
# it divides by the tokens of all nevertheless, since "about" is not "exactly".

# %%
difference = gradient(batch.split(3), [batch.n_tokens] * 3) - whole
assert difference.norm() < 1e-9 * whole.norm()

# %% [markdown]
# ## Ranks
#
# `torchrun` starts one process per device and tells each in its environment which one it is: its *rank*. Without
# `torchrun` there is one process, of rank 0, and every function below does nothing or the obvious.

# %%
#| export
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


# %%
#| export
def join_processes() -> None:
    """Join the other processes that `torchrun` started; do nothing in a process that stands alone.

    Raises:
        RuntimeError: The others cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


# %%
#| export
def leave_processes() -> None:
    """Leave the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


# %%
#| export
def rank() -> int:
    """Number of this process among all, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


# %%
#| export
def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


# %% [markdown]
# PyTorch's `DistributedDataParallel` sums the gradients while the backward pass still runs, so that the network's time
# hides behind the computation. It divides by the number of processes; the training loop multiplies by it again.


# %%
#| export
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


# %%
#| export
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


# %% [markdown]
# Sentences to evaluate are dealt out like cards, and the results are put back in order. Nothing is padded to come out
# even, so no sentence counts twice.


# %%
#| export
def share_over_ranks(items: Sequence[T]) -> Sequence[T]:
    """This process's part of the items.

    Args:
        items: The same in all processes.

    Returns:
        Every item whose number, counted round, is this rank.
    """
    return items[rank() :: world_size()]


# %%
#| export
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


# %% [markdown]
# ## Check it: two processes, five sentences
#
# A small program, started twice by `torchrun`. Five items do not come out even for two. Every one is there once, and in
# order.

# %%
program = """
import torch
from transformer.distributed import (
    gather_from_ranks,
    join_processes,
    leave_processes,
    rank,
    share_over_ranks,
    sum_over_ranks,
    world_size,
)

join_processes()
mine = share_over_ranks(list("abcde"))
everyone = gather_from_ranks([letter.upper() for letter in mine])
total = sum_over_ranks(torch.tensor([float(len(mine))]))
print(f"rank {rank()} of {world_size()} had {''.join(mine)}; together {''.join(everyone)}, {total.item():.0f} items\\n", end="")
leave_processes()
"""
path = Path(tempfile.mkdtemp()) / "program.py"
path.write_text(program, encoding="utf-8")
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
environment = {**os.environ, "OMP_NUM_THREADS": "1"}
done = subprocess.run(torchrun, capture_output=True, text=True, env=environment, check=False)
lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
print("\n".join(lines) or done.stderr)
assert len(lines) == 2 and all("together ABCDE, 5 items" in line for line in lines)

# %% [markdown]
# The program lives in a file. Processes that a notebook starts from its own cells could not find a function that exists
# only in the notebook.

# %% [markdown]
# ## What a device does in an update
#
# The more devices, the smaller the part of each, and the update stays the same. A single GPU reaches the paper's batch by
# *accumulation*: it computes the parts one after the other and steps once.

# %%
values = [
    {"devices": str(devices), "way": way, "tokens": 25_000 // devices // repeats}
    for devices in (1, 2, 4, 8)
    for way, repeats in (("all at once", 1), ("in four rounds", 4))
]
held = {(value["devices"], value["way"]): value["tokens"] for value in values}
assert held["8", "all at once"] == 3125 and held["1", "in four rounds"] == 2 * 3125
chart = (
    alt.Chart(alt.Data(values=values))
    .mark_bar()
    .encode(
        x=alt.X("tokens:Q", title="target tokens in memory at a time, on one device"),
        y=alt.Y("devices:N", title="devices", sort=["1", "2", "4", "8"]),
        yOffset="way:N",
        color=alt.Color("way:N", title=None, scale=alt.Scale(range=["#0072B2", "#E69F00"])),
        tooltip=["devices:N", "way:N", "tokens:Q"],
    )
    .properties(title="More devices or more rounds: the same update, less to hold at a time", width=420, height=200)
)
chart

# %% [markdown]
# Each pair of bars is one machine, at 25,000 target tokens an update. On eight devices each holds 3,125 of them, about what
# the paper's GPUs had. One device in four rounds holds twice that.

# %% [markdown]
# ## Unsaid by the paper
#
# * **How gradients were combined.** The paper says only that there were eight GPUs on one machine.
# * **What a batch is on eight GPUs.** "Each training batch contained a set of sentence pairs containing approximately 25000
#   source tokens" does not say whether that is all GPUs' or each one's. The authors' first configuration has 4,096 tokens a
#   GPU, padding included, and there were eight. That is of the paper's order, so the sum is probably meant.

# %% [markdown]
# ## What we now know
#
# * Divided by the tokens of the whole batch, the parts' gradients add up to the whole one's. The mean of the parts' means
#   is another gradient.
# * Five sentences on two processes are five sentences, in order.

# %% [markdown]
# ## Exercises
#
# 1. **Predict, then run.** One device has 30 target tokens with a mean loss of 2, another 10 with a mean loss of 4. What is the
#    loss of the batch? Check: `check("5.2-two-devices", answer)`.
# 2. **Predict, then run.** What does `batch.split(40)` hand out for thirty pairs, and why does it change no gradient?
# 3. **Minutes.** With dropout on, one process and two give different losses. Is one of them wrong?

# %% [markdown]
# Solution to exercise 1: sums are added, and divided once by all tokens.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = (30 * 2 + 10 * 4) / (30 + 10)
verdict = check("5.2-two-devices", answer)
print(verdict)
assert verdict

# %% tags=["hide-cell"]
# Exercise 2: batches without target tokens, whose loss is a sum over nothing.
many = batch.split(40)
print(sum(part.n_tokens == 0 for part in many), "of 40 parts are blank")
assert (gradient(many, [batch.n_tokens] * 40) - whole).norm() < 1e-9 * whole.norm()

# %% [markdown]
# ## The notebook and the module agree

# %%
assert (transformer.rank(), transformer.world_size()) == (rank(), world_size()) == (0, 1)
dealt = share_over_ranks([3, 1, 2])
assert transformer.gather_from_ranks(transformer.share_over_ranks([3, 1, 2])) == gather_from_ranks(dealt) == [3, 1, 2]
