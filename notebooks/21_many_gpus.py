# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Many GPUs
#
# This chapter shares one training among several processes, each with its own GPU, so that the updates stay what one process would make (section 5.2 of the paper).

# %% tags=["export"]
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from annotated_transformer.batching import Batch, BatchPlan
from annotated_transformer.training import Run, Team, begin_moments
from annotated_transformer.transformer import Transformer


# %% tags=["export"]
def deal(batch: BatchPlan, rank: int, size: int) -> BatchPlan:
    """Return the share of process `rank` of `size` in a batch: every size-th sentence.

    All shares have the same number of rows; empty sentences fill them up.
    """
    rows = max(batch.rows, len(batch.indices))
    return BatchPlan(batch.indices[rank::size], batch.shape, -(-rows // size))


# %% tags=["export"]
class Processes(Team):
    """All processes that torchrun has started; without it, this one alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def arrange(self, plan: list[BatchPlan]) -> list[BatchPlan]:
        """Return this process's share of each batch of a plan."""
        return [deal(batch, self.rank, self.size) for batch in plan]

    def share(self, run: Run) -> None:
        """Give all processes the run of the first."""
        share_run(run, self.device)

    def join(self, objective: nn.Module) -> nn.Module:
        """Wrap an objective so that each backward pass ends with the mean of all gradients."""
        if self.size == 1:
            return objective
        with warnings.catch_warnings():  # newer releases have another name for broadcast_buffers
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(
                objective, broadcast_buffers=False, gradient_as_bucket_view=True
            )

    def exchange(self, objective: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Within the block of the last batch of an update, gradients become those of all."""
        if isinstance(objective, DistributedDataParallel) and not last:
            return objective.no_sync()
        return nullcontext()

    def total(self, number: Tensor) -> Tensor:
        """Return the sum of a number over all processes."""
        if self.size > 1:
            dist.all_reduce(number)
        return number

    def asked(self, stop: bool, step: int) -> bool:
        """Return whether any process was asked to stop; all get the same answer."""
        if self.size == 1 or (self.device.type == "cuda" and step % 8):
            return stop and self.size == 1
        return bool(self.total(torch.tensor(float(stop))) > 0)


# %% tags=["export"]
def share_run(run: Run, device: torch.device) -> None:
    """Give all processes weights, moments and step of the first one's run."""
    if not dist.is_initialized():
        return
    numbers = torch.tensor([run.step, run.best_step, run.best_score], dtype=torch.float64)
    dist.broadcast(numbers, src=0)
    run.step, run.best_step, run.best_score = int(numbers[0]), int(numbers[1]), float(numbers[2])
    if not run.optimizer.state:
        begin_moments(run.optimizer)
    for tensor in run.tensors().values():
        dist.broadcast(tensor, src=0)
    for state in run.optimizer.state.values():
        state["step"].fill_(run.step)


# %% tags=["export"]
@contextmanager
def processes(device: str | None = None) -> Iterator[Processes]:
    """Join the processes that torchrun has started, if it has, and leave them at the end."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not dist.is_torchelastic_launched():
        yield Processes(torch.device(name))
        return
    if name == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if name.startswith("cuda") else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=20))
    yield Processes(torch.device(name))
    dist.destroy_process_group()
