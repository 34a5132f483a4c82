# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # What a run will take
#
# This appendix estimates the memory and the hours of a training run before it begins (section 5.2 of the paper).
#
# `train --dry-run` prints these estimates. [Speed](25_speed.ipynb#memory-and-hours-before-a-run) holds them against measurements.

# %% tags=["export"]
import math
from typing import NamedTuple

import numpy as np
import torch

from annotated_transformer.batching import plan_batches
from annotated_transformer.speed import CHUNK, DTYPES, Precision, flops
from annotated_transformer.toolkit.presets import parameter_count
from annotated_transformer.training import Hyperparameters
from annotated_transformer.transformer import TransformerConfig

# %% [markdown]
# ## What the machine can do
#
# A data sheet says how many operations per second a GPU does at best. A CPU has no such sheet, so we measure one large product, the best of five rounds: other programs can make a round slower but never faster. On a GPU, beware of the clock. The program requests a product in microseconds, and the GPU computes it later: if you don't wait, you've timed the request. PyTorch's `Timer` waits.


# %% tags=["export"]
def measured_peak(
    device: torch.device, precision: Precision = "fp32", size: int | None = None
) -> float:
    """Return the operations per second of a product of two matrices (size, size), best of five.

    Without a size, they are so large that on this device handing the product over does not count.
    """
    from torch.utils.benchmark import Timer  # waits for a GPU; slow to import

    if size is None:
        size = 8192 if device.type == "cuda" else 1024
    left, right = torch.randn(2, size, size, dtype=DTYPES[precision], device=device)
    timer = Timer(
        "left @ right",
        globals={"left": left, "right": right},
        num_threads=torch.get_num_threads(),
    )
    seconds = min(timer.timeit(1).median for _ in range(5))
    return 2 * size**3 / seconds


def best_precision(device: torch.device | str) -> Precision:
    """Return "bf16" for a GPU that has units for products of such numbers, else "fp32"."""
    if torch.device(device).type != "cuda":
        return "fp32"
    has_units = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_units else "fp32"


# %% [markdown]
# ## Memory
#
# Weights, gradients and Adam's two moments take 16 bytes per parameter, and in bf16 a narrow copy of the weights adds 2. The loss takes three tensors of the size of a chunk's logits. The rest are **activations**, what the layers keep for the backward pass.
#
# An encoder layer keeps $6 d + 2 w + d_\text{ff}$ numbers per position: its input, queries, keys, values, the output of the heads, the hidden layer of the feed-forward network and its input, two dropout masks and the inputs of two normalizations. A decoder layer keeps $9 d + 4 w + d_\text{ff}$, of which $w$, keys and values of the source, stand at the source's positions. In bf16 all are half as wide, except the inputs of normalizations. Kernels differ, so this is an estimate; a test holds it within 20% of what autograd stores.


# %% tags=["export"]
def activations(
    config: TransformerConfig,
    rows: np.ndarray | int,
    source: np.ndarray | int,
    target: np.ndarray | int,
    precision: Precision = "fp32",
) -> np.ndarray:
    """Return the bytes that layers keep for the backward pass of batches, about.

    A batch has so many rows, source and target positions; arrays hold one number per batch.
    """
    d = config.d_model
    d_k = config.d_k or d // config.heads
    d_v = config.d_v or d // config.heads
    width = 3 * config.heads * (d_k + d_v) + config.d_ff
    bytes_per_number = 2 if precision == "bf16" else 4
    wide_inputs = (2, 3) if precision == "bf16" else (0, 0)  # of norms, in 32 bits
    encoder = source * (width + (6 + wide_inputs[0]) * d)
    decoder = target * (width + (9 + wide_inputs[1]) * d)
    embedded = (2 * source + target) * d
    numbers = rows * (config.layers * (encoder + decoder) + embedded)
    return np.asarray(bytes_per_number * numbers)


# %% [markdown]
# ## The estimate
#
# One object holds it. Its operations include padding, so the hours err on the long side by that share; the memory is that of the largest batch, divided among the processes. A validation needs no more: it has batches of the same size and takes its loss in the same chunks, but keeps nothing for a backward pass.
#
# Hours follow from operations, a peak, and the share of the peak that training gets, the MFU. Unless you give one, it is what [was measured](25_speed.ipynb#on-a-gpu): in 16 bits on an H200 and an H100, 14% and 10% with the base model and 28% and 24% with the big one, of which we take the means; in 32 bits about half, with the base model 47% of a processor's peak.
#
# Several GPUs divide the operations among them, but each launches all kernels of a step, and that takes its time [however small its share](26_distributed.ipynb#how-fast-it-can-be): 62 ms on an H200 for the twelve layers of base. A run can't take less than these launches.


# %% tags=["export"]
LAUNCHES = 0.062 / 12  # seconds of a step per layer, measured on an H200 with base


def usual_mfu(parameters: int, precision: Precision) -> float:
    """Return the share of the peak that training had where it was measured.

    In bf16 that was an H200 and an H100, with the base and with the big model.
    """
    if precision == "fp32":
        return 0.5
    return 0.26 if parameters > 100_000_000 else 0.12


class Estimate(NamedTuple):
    """What a run will take: parameters, operations in all, bytes of the largest batch."""

    parameters: int
    flops: float
    memory_bytes: float
    usual_mfu: float
    updates_per_epoch: float = 1.0
    launch_hours: float = 0.0  # which more GPUs don't make fewer

    def hours(self, peak: float, gpus: int = 1, mfu: float | None = None) -> float:
        """Return the hours on GPUs of some peak, of which training gets a share.

        They are not less than launching all kernels takes.

        Raises ValueError for a peak, a number of GPUs or a share that is not above 0.
        """
        mfu = self.usual_mfu if mfu is None else mfu
        for name, value in (("peak", peak), ("gpus", gpus), ("mfu", mfu)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number above 0, not {value}")
        return max(self.flops / (gpus * peak * mfu) / 3600, self.launch_hours)


def estimate(
    config: TransformerConfig,
    training: Hyperparameters,
    lengths: np.ndarray,
    precision: Precision = "fp32",
    processes: int = 1,
) -> Estimate:
    """Estimate a training run with FastLoss on examples of these lengths (N, 2), before it begins.

    The memory is that of one process. Raises ValueError if there are no examples, or if one does
    not fit into a batch.
    """
    lengths = lengths.astype(np.int64)  # of a prepared corpus they have 32 bits
    plan = plan_batches(lengths, training.max_tokens, training.seed, epoch=0)
    if not plan or processes < 1:
        raise ValueError(
            f"there are no sentence pairs to train on, or no GPUs ({processes})"
        )
    rows = np.array([len(batch) for batch in plan])
    source, target = np.array([lengths[batch].max(axis=0) for batch in plan]).T
    per_epoch = flops(config, source.repeat(rows), target.repeat(rows))
    per_batch = sum(per_epoch.values()) / len(plan)
    batches = training.steps * training.grad_accum_steps

    parameters = parameter_count(config)
    bytes_per_parameter = 18 if precision == "bf16" else 16
    share = np.ceil(rows / processes).astype(int)
    layers = activations(config, share, source, target, precision)
    loss = 12 * np.minimum(share * target, CHUNK) * config.vocabulary_size
    memory = bytes_per_parameter * parameters + (layers + loss).max()
    updates_per_epoch = len(plan) / training.grad_accum_steps
    # A program that computes in 32 bits is taken for one on a CPU, which launches nothing
    launches = 2 * config.layers * batches * LAUNCHES if precision == "bf16" else 0.0
    return Estimate(
        parameters=parameters,
        flops=per_batch * batches,
        memory_bytes=float(memory),
        usual_mfu=usual_mfu(parameters, precision),
        updates_per_epoch=updates_per_epoch,
        launch_hours=launches / 3600,
    )


# %% tags=["hide-input"]
from annotated_transformer import preset

# %%
lengths = np.full((892, 2), 28)  # sentences of 28 tokens, 25,000 per side
for name, steps in (("base", 100_000), ("big", 300_000)):
    training = Hyperparameters(steps=steps, max_tokens=25_000)
    plan = estimate(preset(name), training, lengths, precision="bf16")
    one, eight = plan.hours(peak=989e12), plan.hours(peak=989e12, gpus=8)
    memory = plan.memory_bytes / 1e9
    print(f"{name}: {plan.flops:.1e} operations, {memory:.0f} GB;", end=" ")
    print(f"hours on one H100 {one:.1f}, on eight {eight:.1f}")


# %% [markdown]
# ## Settings far from what has worked
#
# The paper's settings are for the paper's corpus. On 200,000 pairs, 100,000 updates of `base` are five hundred epochs, and long before their end the model knows its sentences by heart. So the dry run compares the settings with those of [trainings whose logs are in the project](../book/own_pair.md#which-settings-for-my-corpus). These took batches of 1,024 or 2,048 tokens, and those that saw their pairs most often had their best score after 26 to 37 epochs. Nothing is refused: with `--patience`, for example, many epochs do no harm.


# %% tags=["export"]
MOST_EPOCHS = 100
USUAL_EPOCHS = 30
LARGE_BATCH = 4096  # tokens per update on either side
FEW_UPDATES = 200  # per epoch
USUAL_BATCH = 2048


def unusual_settings(
    training: Hyperparameters, updates_per_epoch: float, patience: int | None = None
) -> list[str]:
    """Return a sentence for each setting that lies far from what has worked on such a corpus."""
    found = []
    steps = training.steps
    epochs = steps / updates_per_epoch
    batch = training.max_tokens * training.grad_accum_steps
    advised_per_epoch = updates_per_epoch
    if batch > LARGE_BATCH and updates_per_epoch < FEW_UPDATES:
        found.append(
            f"an epoch is only {updates_per_epoch:,.0f} updates of {batch:,} tokens: a "
            f"corpus of this size learns from smaller ones, --max-tokens {USUAL_BATCH}"
        )
        advised_per_epoch *= batch / USUAL_BATCH
    if epochs > MOST_EPOCHS and patience is None:
        fewer = math.ceil(USUAL_EPOCHS * advised_per_epoch)
        batches = "such batches" if found else "these batches"
        found.append(
            f"{steps:,} steps are {epochs:,.0f} epochs of this corpus: with {batches}, "
            f"{USUAL_EPOCHS} epochs are --steps {fewer}; or stop with --patience 5 where "
            "the validation loss no longer falls"
        )
    if epochs < 1:
        found.append(
            f"{steps:,} steps are {epochs:.0%} of an epoch: the run ends before it has "
            f"seen all pairs; one epoch is --steps {math.ceil(updates_per_epoch)}"
        )
    if 2 * training.warmup > steps:
        found.append(
            f"the warm-up takes {training.warmup:,} of {steps:,} steps: a fifth is "
            f"--warmup {math.ceil(steps / 5)}, with a smaller --lr-scale, since a shorter "
            "warm-up ends at a higher rate"
        )
    return found


# %% [markdown]
# What would it say of the paper's settings for base, on a corpus with 110 updates per epoch? And of settings that suit it?

# %%
for settings in (
    Hyperparameters(steps=100_000, max_tokens=25_000, warmup=4000),
    Hyperparameters(steps=3_000, max_tokens=2048, warmup=600),
):
    print(unusual_settings(settings, updates_per_epoch=110) or "nothing")
