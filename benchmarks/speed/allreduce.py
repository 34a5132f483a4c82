"""Time the exchange of a gradient between the processes that torchrun has started.

    torchrun --standalone --nproc-per-node 8 -m benchmarks.speed.allreduce

Each process sends and receives as many numbers as the base model has parameters. Prints how long an
all-reduce takes, and how many bytes per second each process sends in it; writes no log.
"""

import time

import torch
import torch.distributed as dist

from annotated_transformer.distributed import process_group
from benchmarks import common


def main(numbers: int = 63_000_000, rounds: int = 10, device: str = "cuda") -> None:
    """Exchange a gradient of so many numbers, for some rounds, and print the fastest."""
    with process_group(device) as own_device:
        gradient = torch.ones(numbers, device=own_device)
        seconds = []
        for _ in range(rounds + 2):  # the first two warm up
            start = time.perf_counter()
            dist.all_reduce(gradient)
            gradient[0].item()  # waits for a GPU
            seconds.append(time.perf_counter() - start)
            gradient.fill_(1)
        size, best = dist.get_world_size(), min(seconds[2:])
        sent = 2 * (size - 1) / size * 4 * numbers
        if dist.get_rank() == 0:
            print(
                f"{size} processes exchange {4 * numbers / 1e6:.0f} MB in "
                f"{1e3 * best:.1f} ms, {sent / best / 1e9:.1f} GB per second"
            )


if __name__ == "__main__":
    common.command(main)
