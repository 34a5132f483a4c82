# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # One launch per pass
#
# This appendix records the forward and the backward pass of a training step once for each shape of batch, and starts the record with one launch where the step has a thousand (section 5.2 of the paper).
#
# On a fast GPU a step of the base model [waits for the program](25_speed.ipynb#when-a-gpu-waits-for-the-program), whatever the batch: Python hands over one small kernel after another, and the GPU is done before the next one comes. A **CUDA graph** is a list of kernels with their arguments, recorded once and handed over as a whole. Since the arguments are addresses, it is of use only for batches of the same shape, and so that there are few shapes, lengths are padded to multiples of 8:
#
# ```bash
# annotated-transformer train --compile --pad-to-multiple-of 8 ...
# ```
#
# What can be had without a GPU is proved by tests: a padded and recorded step has the loss and the gradients of the plain one, and makes the same updates. How much faster it is, nobody has measured yet; `timeout 600 python -m benchmarks.speed.gpu --peak 989e12 --parts rivals launches` is the command.

# %% tags=["export"]
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annotated_transformer.batching import Batch
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.speed import CHUNK, FastLoss
from annotated_transformer.toolkit.planning import Estimate
from annotated_transformer.transformer import TransformerConfig

# %% [markdown]
# ## Few shapes
#
# A batch has three sizes: rows, source and target positions. [The plan of an epoch](15_batching.ipynb#a-plan-for-an-epoch) takes lengths and cares for nothing else. Given lengths that are rounded up, it makes batches of the few lengths that are left, and as many rows as the budget of tokens allows; at the end of a bucket some are missing, and are filled up with rows that have no label. Neither changes the loss, which counts real target tokens.


# %% tags=["export"]
@dataclass(frozen=True)
class Shapes:
    """The shapes of batches whose lengths are multiples of a number."""

    multiple: int
    max_tokens: int  # of a batch, on either side
    longest: int  # positions that the model has
    processes: int = 1  # that share a batch

    def padded(self, lengths: np.ndarray) -> np.ndarray:
        """Return lengths (N, 2) rounded up, as far as model and batch have room."""
        rounded = -(-lengths // self.multiple) * self.multiple
        room = min(self.longest, self.max_tokens)
        return np.maximum(lengths, np.minimum(rounded, room))

    def fill_up(self, batch: Batch) -> Batch:
        """Pad a batch to its shape: a source of `</s>` and a target without a label in new rows."""
        rows, source_length = batch.source.shape
        lengths = np.array([[source_length, batch.target.size(1) - 1]])
        ((source_width, target_width),) = self.padded(lengths).tolist()
        whole_batch = self.max_tokens // max(source_width, target_width)
        filled_rows = max(rows, math.ceil(whole_batch / self.processes))
        source = torch.full((filled_rows, source_width), PAD)
        source[:, 0] = EOS
        source[:rows, :source_length] = batch.source
        target = torch.full((filled_rows, target_width + 1), PAD)
        target[:, 0] = BOS
        target[:rows, : batch.target.size(1)] = batch.target
        return Batch(source, target)


# %% [markdown]
# How many shapes does a long corpus have, and what does the padding cost? Lengths like those of WMT14, in batches of 25,000 tokens:

# %% tags=["hide-input"]
from annotated_transformer.batching import plan_batches

chance = np.random.default_rng(0)
source_lengths = 27 * np.exp(0.5 * chance.standard_normal(200_000))
target_lengths = source_lengths * np.exp(0.25 * chance.standard_normal(200_000))
lengths = np.stack([source_lengths, target_lengths], axis=1)
lengths = lengths.round().clip(2, 120).astype(np.int64)
for multiple in (1, 4, 8, 16):
    shapes = Shapes(multiple, max_tokens=25_000, longest=1024)
    padded = shapes.padded(lengths)
    plan = plan_batches(padded, shapes.max_tokens, seed=0, epoch=0)
    sizes = []
    for numbers in plan:
        source, target = padded[numbers].max(axis=0).tolist()
        rows = len(numbers)
        if multiple > 1:
            rows = shapes.max_tokens // max(source, target)
        sizes.append((rows, source, target))
    positions = sum(rows * (source + target) for rows, source, target in sizes)
    print(
        f"multiples of {multiple:2}: {len(plan)} batches of {len(set(sizes)):3} shapes, "
        f"{lengths.sum() / positions:.0%} of the positions useful"
    )

# %% [markdown]
# With multiples of 8, an epoch of this corpus has some sixty shapes in place of hundreds, for about 7% more work. That is the bet: where the GPU waits half of the time, 7% more work is cheap; where it never waits, as with the big model, it isn't.
#
# ## The record
#
# `GraphedLoss` is called like any loss, and its result has a backward pass like any other, so [the loop of the lesson](18_training.ipynb#the-loop), gradient accumulation and `DistributedDataParallel` need not know of it. The work is done in its forward pass: the record computes loss *and* gradients, and leaves these in buffers of their own. The backward pass only multiplies them by the factor that comes from behind the loss, all in one call.
#
# Three things about a record are easy to get wrong:
#
# - It reads the batch from fixed addresses, so each batch is copied there first.
# - The first passes of a shape choose kernels and compile layers, so two are made before the recording. They draw random numbers; `fork_rng` puts the generators back, so that dropout of a step that records is that of one that replays, and a run that is continued stays what it was.
# - While a graph is recorded, other threads, such as that which reads batches ahead, go on talking to the GPU. `thread_local` lets them.
#
# Records of all shapes share their memory, since one is over before the next begins. Beyond so many shapes, further ones are computed as usual.


# %% tags=["export"]
Step = Callable[[Tensor, Tensor], Tensor]  # source and target of a batch to its loss
Recorder = Callable[[Step, Batch], Step]


class CudaRecorder:
    """Records steps as CUDA graphs, which share their memory."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step, batch: Batch) -> Step:
        """Record a step; return what does the same for each batch of this shape."""
        own = Batch(batch.source.clone(), batch.target.clone())
        before, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.random.fork_rng([torch.cuda.current_device()]):
            aside.wait_stream(before)
            with torch.cuda.stream(aside):
                for _ in range(2):
                    step(*own)
            before.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=self.pool, capture_error_mode="thread_local"
            ):
                loss = step(*own)

        def replay(source: Tensor, target: Tensor) -> Tensor:
            own.source.copy_(source)
            own.target.copy_(target)
            graph.replay()
            return loss.clone()

        return replay


class Replay(torch.autograd.Function):
    """A loss with its gradients known already: they wait in buffers until the next replay."""

    @staticmethod
    def forward(
        context: Any, loss: "GraphedLoss", replay: Step, batch: Batch, *weights: Tensor
    ) -> Tensor:
        """Return the loss of a batch, (), and leave the gradients of the weights."""
        context.graphed = loss
        context.number = loss.replays = loss.replays + 1
        return replay(*batch)

    @staticmethod
    def backward(context: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, times what comes from behind the loss."""
        if context.number != context.graphed.replays:
            raise RuntimeError(
                "the gradients of this loss are overwritten: call backward() before the "
                "loss of the next batch"
            )
        gradients = torch._foreach_mul(context.graphed.gradients, factor)
        return None, None, None, *gradients


class GraphedLoss(SmoothedLoss):
    """A loss whose forward and backward pass are recorded once for each shape of batch.

    Each loss needs its backward pass before the next loss. Without gradients, and once there are
    `most` records, it is the loss that it is made of.
    """

    def __init__(
        self, loss: FastLoss, recorder: Recorder | None = None, most: int = 128
    ) -> None:
        super().__init__(loss.model, loss.label_smoothing)
        self.loss = loss
        self.precision = loss.precision
        self.recorder = recorder or CudaRecorder()
        self.most = most
        self.records: dict[tuple[Any, ...], Step] = {}  # by shape and self.training
        self.replays = 0
        self.weights = [weight for weight in self.parameters() if weight.requires_grad]
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]

    def step(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch, and leave its gradients in the buffers."""
        with torch.enable_grad():
            loss = self.loss(source, target)
            gradients = torch.autograd.grad(loss, self.weights)
        for buffer, gradient in zip(self.gradients, gradients):
            buffer.copy_(gradient)
        return loss.detach()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        shape = source.shape, target.shape, self.training
        is_full = len(self.records) >= self.most and shape not in self.records
        if is_full or not torch.is_grad_enabled():
            loss: Tensor = self.loss(source, target)
            return loss
        batch = Batch(source, target)
        if shape not in self.records:
            self.records[shape] = self.recorder(self.step, batch)
        replayed: Tensor = Replay.apply(self, self.records[shape], batch, *self.weights)
        return replayed


# %% [markdown]
# What is left to launch? On a CPU we can count operators in place of kernels, in a training step of a model as deep as base. There is no CUDA here, so a stand-in does the record's work out of sight of the counter.

# %% tags=["hide-input"]
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer.training import Group, make_adam, training_step
from annotated_transformer.transformer import Transformer


class Counter(TorchDispatchMode):
    """Counts operators that compute something, but not those in a record."""

    operators = 0
    hidden = False

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.operators += not operator.is_view and not self.hidden
        return operator(*arguments, **(named or {}))


counter = Counter()


def stand_in(step, batch):
    """Replay a step by making it again, out of sight of the counter."""

    def replay(source, target):
        counter.hidden = True
        loss = step(source, target)
        counter.hidden = False
        return loss

    return replay


# %%
model = Transformer(TransformerConfig(300, d_model=16, d_ff=32, heads=2))
source, target = torch.randint(4, 300, (64, 16)), torch.randint(4, 300, (64, 17))
group = Group([Batch(source, target)], torch.tensor(64 * 16))
in_chunks, in_one = FastLoss(model), FastLoss(model)
in_chunks.chunk, in_one.chunk = 40, 1024  # 26 chunks, as base has of 25,000 positions
for name, loss in (
    ("as in the lesson", in_chunks),
    ("the loss in one chunk", in_one),
    ("recorded", GraphedLoss(in_one, stand_in)),
):
    adam = make_adam(model)
    training_step(loss, group, adam)  # makes the records
    counter.operators = 0
    with counter:
        training_step(loss, group, adam)
    print(f"{name:22} {counter.operators:5} operators per update")

# %% tags=["remove-cell"]
if CHECKING:
    assert counter.operators < 30

# %% [markdown]
# ## The size of a chunk
#
# [The loss in chunks](25_speed.ipynb#the-loss-without-the-logits) saves memory, and each chunk costs some ten launches and one more pass over the gradient of the embedding matrix. Where there is memory for the logits of a whole batch, one chunk is better. How much there is follows from the memory of the device and the [estimate](P_planning.ipynb#memory) of the rest, of which we count the whole twice: records have memory of their own. What happens to be free at the moment would be another number at each start, and with it the rounding of the loss.


# %% tags=["export"]
def largest_chunk(
    config: TransformerConfig, max_tokens: int, plan: Estimate, memory: float
) -> int:
    """Return how many positions the loss can take at once on a device with so many bytes."""
    left = memory - 2 * plan.memory_bytes
    positions = int(left / (12 * config.vocabulary_size))
    return max(CHUNK, min(positions, max_tokens))


# %%
from annotated_transformer import preset
from annotated_transformer.toolkit.planning import estimate
from annotated_transformer.training import Hyperparameters

for name in ("base", "big"):
    training = Hyperparameters(max_tokens=25_000)
    plan = estimate(preset(name), training, lengths[:20_000], "bf16")
    for gigabytes in (16, 24, 80):
        chunk = largest_chunk(preset(name), 25_000, plan, gigabytes * 1e9)
        print(f"{name}, {gigabytes} GB: chunks of {chunk:,}")
