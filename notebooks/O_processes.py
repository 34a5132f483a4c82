# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Processes and devices
#
# This appendix finds the device of a process and joins the processes that `torchrun` has started.
#
# [Many GPUs](26_distributed.ipynb) says how several processes share a training. Here is the plumbing: `with process_group() as device:` around a call of `train` is all that a script of yours needs.

# %% tags=["export"]
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from os import environ
from time import sleep

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

# %% [markdown]
# ## A device
#
# A process computes on a GPU if there is one. (Other kinds of devices were never tried, and are refused.)


# %% tags=["export"]
def find_device(name: str | None = None) -> torch.device:
    """Return the device of this name, such as cpu or cuda; without one, a GPU if there is one.

    Raises ValueError for any that is not there.
    """
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = ["cuda", *gpus, "cpu"] if gpus else ["cpu"]
    if name is None:
        return torch.device(devices[0])
    if name not in devices:
        raise ValueError(
            f"there is no device {name!r} here: take one of {', '.join(devices)}"
        )
    return torch.device(name)


# %%
print(find_device("cpu"))

# %% [markdown]
# ## Joining
#
# To join, each process leaves its address in a store that `torchrun` keeps, and reads the others'. When `torchrun` restarts all processes after an accident, PyTorch 2.13 keeps the store with the addresses of the dead still in it, and a quick process may call one of them. So on one machine each restart looks under a prefix of its own; for several, a [variable](26_distributed.ipynb#several-machines) asks for a new store.
#
# Without `torchrun` the same script trains alone. Each process takes the GPU with its local number; forget this, and all use GPU 0. The timeout is long because the first process may have a large checkpoint to write. After an error there is no good-bye: the others hang in an all-reduce, so the process ends at once and lets `torchrun` end the rest.


# %% tags=["export"]
def join_processes(device: torch.device) -> None:
    """Meet the other processes of this torchrun."""
    store, rank, world_size = next(rendezvous("env://"))
    # After a restart, the addresses in torchrun's store lead to processes that are dead
    one_machine = environ["GROUP_WORLD_SIZE"] == "1"
    restart = environ["TORCHELASTIC_RESTART_COUNT"] if one_machine else "0"
    own_store = dist.PrefixStore(f"restart {restart}", store)  # type: ignore[attr-defined] # untyped
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        timeout=timedelta(minutes=20),
        world_size=world_size,
        rank=rank,
        store=own_store,
    )


@contextmanager
def process_group(device: str | None = None) -> Iterator[torch.device]:
    """Join the processes that torchrun has started, if it has; give the device of this one."""
    own_device = find_device(device)
    if not dist.is_torchelastic_launched():
        yield own_device
        return
    if own_device.type == "cuda":
        own_device = torch.device("cuda", int(environ["LOCAL_RANK"]))
        torch.cuda.set_device(own_device)
    join_processes(own_device)
    yield own_device
    # A thread of gloo that still has to free a tensor could abort Python's exit
    sleep(0.1)
    # Not after an error: the others may wait in an all-reduce
    dist.destroy_process_group()


# %% [markdown]
# ## What all must know
#
# The score of the [command line](G_cli.ipynb#scoring) lets each process translate a share of the sentences and gives all translations to all. Texts have no fixed size, so `all_gather_object` pickles them, which between processes of one program is safe.


# %% tags=["export"]
def gather_texts(texts: list[str]) -> list[list[str]]:
    """Return the texts of all processes, in the order of their ranks; alone, one's own."""
    if not dist.is_initialized():
        return [texts]
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, texts)
    return gathered


# %%
print(gather_texts(["Guten Morgen!"]))
