import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

PATIENCE = timedelta(minutes=20)


def find_device(name: str | None = None) -> torch.device:
    """Return the device of this name, cpu or cuda; without one, a GPU if there is one.

    Raises ValueError for any other.
    """
    gpu = torch.cuda.is_available()
    name = name or ("cuda" if gpu else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"there is no device {name!r}: take cpu or cuda")
    if name != "cpu" and not gpu:
        raise ValueError("PyTorch finds no GPU here: take cpu, or install a PyTorch with CUDA")
    return torch.device(name)


@contextmanager
def process_group(device: str | None = None) -> Iterator[torch.device]:
    """Join the processes that torchrun has started, if it has; give this one's device."""
    place = find_device(device)
    if not dist.is_torchelastic_launched():
        yield place
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    # After a restart, the addresses in torchrun's store lead to processes that are dead
    store, rank, world_size = next(rendezvous("env://", timeout=PATIENCE))
    one_machine = os.environ["GROUP_WORLD_SIZE"] == "1"
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"] if one_machine else "0"
    store = dist.PrefixStore(f"restart {restart}", store)  # type: ignore[attr-defined] # untyped
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=PATIENCE
    )
    try:
        yield place
    finally:
        dist.destroy_process_group()


def gather_texts(texts: list[str]) -> list[list[str]]:
    """Return the texts of all processes, in the order of their ranks; alone, one's own."""
    if not dist.is_initialized():
        return [texts]
    found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, texts)
    return found
