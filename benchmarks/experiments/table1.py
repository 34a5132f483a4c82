"""What does a layer cost? Table 1 of the paper, measured for chapter 12.

    python -m benchmarks.experiments.table1 --cpu-time
    python -m benchmarks.experiments.table1 --device cuda

Runs each kind of layer forward and backward on one sentence, for growing length n at one width and
for growing width d at one length, and notes the time and the bytes kept for the backward pass. The
layers take turns, and the best turn of each counts, so that what else the machine does disturbs
little. Writes `results/table1.jsonl`, on a GPU `results/table1-cuda.jsonl`.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from benchmarks import common

KERNEL = 3  # places of a window
NEIGHBORS = 64  # that restricted self-attention sees
Layer = Callable[[Tensor], Tensor]

# --- The layers, as chapter 12 shows them ---


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Let each of n positions attend to all."""
    return (q @ k.T / math.sqrt(q.size(-1))).softmax(-1) @ v


def recurrent(x: Tensor, W: Tensor, U: Tensor) -> Tensor:
    """Read word by word; each state needs the one before."""
    states = [torch.zeros_like(x[0])]
    for word in x @ W:
        states.append((word + states[-1] @ U).tanh())
    return torch.stack(states[1:])


def windows(x: Tensor, k: int) -> Tensor:
    """Return (n, k, d): each position and the k - 1 before it."""
    return F.pad(x, (0, 0, k - 1, 0)).unfold(0, k, 1).mT


def convolve(x: Tensor, W: Tensor) -> Tensor:
    """Sum over a window, with a matrix (d, d) for each of its k places."""
    return windows(x, len(W)).flatten(1) @ W.flatten(0, 1)


def separable(x: Tensor, taps: Tensor, W: Tensor) -> Tensor:
    """Sum over a window, each column by itself; then mix the columns."""
    return torch.einsum("nkd,kd->nd", windows(x, len(taps)), taps) @ W


def restricted(q: Tensor, k: Tensor, v: Tensor, r: int) -> Tensor:
    """Let each position attend to itself and the r - 1 before it."""
    scores = torch.einsum("nd,nrd->nr", q, windows(k, r)) / math.sqrt(q.size(-1))
    position = torch.arange(len(q), device=q.device)[:, None]
    before_start = position + torch.arange(r, device=q.device) < r - 1
    weights = scores.masked_fill(before_start, -torch.inf).softmax(-1)
    return torch.einsum("nr,nrd->nd", weights, windows(v, r))


def make_layers(d: int, device: str) -> dict[str, Layer]:
    """Make each kind of layer of width d, with fresh weights."""

    def weight(*shape: int) -> Tensor:
        return (torch.randn(shape, device=device) / math.sqrt(d)).requires_grad_()

    W, U = weight(d, d), weight(d, d)
    W_Q, W_K, W_V, W_O = (weight(d, d) for _ in range(4))
    taps = weight(KERNEL, d)
    kernel = weight(KERNEL, d, d)
    rnn = nn.RNN(d, d, bias=False, device=device)
    return {
        "self-attention": lambda x: attend(x, x, x),
        "with projections": lambda x: attend(x @ W_Q, x @ W_K, x @ W_V) @ W_O,
        "recurrent": lambda x: recurrent(x, W, U),
        "nn.RNN": lambda x: rnn(x)[0],
        "convolution": lambda x: convolve(x, kernel),
        "separable": lambda x: separable(x, taps, W),
        "restricted": lambda x: restricted(x, x, x, NEIGHBORS),
    }


# --- Measuring ---


def kept_bytes(layer: Layer, x: Tensor) -> int:
    """Count the bytes that the backward pass needs, without the weights of the layer."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        whole = tensor if tensor._base is None else tensor._base
        is_weight = whole.is_leaf and whole.requires_grad
        if not is_weight:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = layer(1.0 * x)  # no leaf any more, so the input counts
    total = sum(sizes.values())
    del y  # until here it holds what is kept, and no address is used twice
    return total


def main(
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048),
    length: int = 512,
    width: int = 512,
    rounds: int = 5,
    brief: float = 0.1,
    cpu_time: bool = False,
    device: str = "cpu",
    results: Path = common.RESULTS,
) -> None:
    """Measure every length at `width` and every width at `length`, each for `brief` seconds."""
    sizes = [(n, width) for n in lengths]
    sizes += [(length, d) for d in widths if (length, d) not in sizes]
    clock: dict[str, Any] = {"timer": time.process_time} if cpu_time else {}
    records = []
    for n, d in sizes:
        torch.manual_seed(0)
        layers = make_layers(d, device)
        x = torch.randn(n, d, device=device, requires_grad=True)
        timers = {
            name: Timer(
                "layer(x).sum().backward()", globals={"layer": layer, "x": x}, **clock
            )
            for name, layer in layers.items()
        }
        turns: dict[str, list[float]] = {name: [] for name in layers}
        for _ in range(rounds):
            for name, timer in timers.items():
                taken = timer.blocked_autorange(min_run_time=brief)
                turns[name].append(taken.median)
        for name, layer in layers.items():
            best = float(f"{min(turns[name]):.4g}")
            record = {"layer": name, "n": n, "d": d, "seconds": best}
            records.append({**record, "kept_bytes": kept_bytes(layer, x)})
            print(records[-1], flush=True)
    settings = {
        "kernel": KERNEL,
        "neighbors": NEIGHBORS,
        "length": length,
        "width": width,
        "rounds": rounds,
        "threads": 1,  # as a Timer has it
        "cpu_time": cpu_time,
        "device": common.device_name(device),
    }
    name = "table1" if device == "cpu" else "table1-cuda"
    common.write_log(results, name, settings, records)


if __name__ == "__main__":
    common.command(main)
