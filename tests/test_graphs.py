"""Padded and recorded steps are the plain ones, and few shapes and launches are left."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer.batching import (
    Batch,
    encode_pairs,
    plan_batches,
)
from annotated_transformer.distributed import DataParallelLoss
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.speed import CHUNK, FastLoss, Precision, compile_layers
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import cli
from annotated_transformer.toolkit.graphs import (
    CudaRecorder,
    GraphedLoss,
    Shapes,
    Step,
    largest_chunk,
)
from annotated_transformer.toolkit.planning import Estimate
from annotated_transformer.toolkit.presets import preset
from annotated_transformer.toolkit.runs import TrainingConfig, collate_share, train
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.training import (
    Group,
    group_batches,
    make_adam,
    training_step,
)
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(150, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS)
SHAPES = Shapes(multiple=8, max_tokens=200, longest=1024)


def make(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "dropout": 0.0}
    return Transformer(TransformerConfig(len(TOKENIZER), **{**sizes, **changes}))


def again(step: Step, batch: Batch) -> Step:
    """Stand in for a recorder: make the step again."""
    return step


def traced(step: Step, batch: Batch) -> Step:
    """Stand in for a recorder: write down each operator of a step, and replay these alone.

    As in a CUDA graph, no Python of ours runs in a replay, and no size or address changes.
    """
    program = make_fx(lambda *sides: step(*sides))(*batch)
    return lambda source, target: program(source, target).clone()


def some_batches(plan: list[np.ndarray]) -> list[Batch]:
    return [collate_share([CORPUS[number] for number in rows]) for rows in plan]


def plan_of(shapes: Shapes) -> list[np.ndarray]:
    return plan_batches(shapes.padded(CORPUS.lengths), shapes.max_tokens, 0, 0)


def gradients(loss: SmoothedLoss, batch: Batch) -> list[Tensor]:
    """The loss of a batch and its gradients."""
    loss.zero_grad()
    value = loss(*batch)
    value.backward()
    return [value.detach(), *[weight.grad for weight in loss.parameters()]]


# --- Shapes ---


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 16),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1),
)
def test_a_shape_has_room_for_each_share_of_its_batches(
    multiple: int, processes: int, sizes: list[tuple[int, int]]
) -> None:
    """And no more positions than a batch may have, or the model."""
    lengths = np.array(sizes)
    shapes = Shapes(multiple, max_tokens=60, longest=50, processes=processes)
    padded = shapes.padded(lengths)
    assert (padded >= lengths).all() and padded.max() <= 50
    for numbers in plan_batches(padded, 60, seed=0, epoch=0):
        for share in (numbers[rank::processes] for rank in range(processes)):
            rows, (source, target) = len(share), (1, 1)
            if rows:
                source, target = lengths[share].max(axis=0).tolist()
            rows = max(rows, 1)
            filled = shapes.fill_up(
                Batch(torch.full((rows, source), 5), torch.full((rows, target + 1), 5))
            )
            assert filled.source.size(0) == filled.target.size(0) >= rows
            widest = max(filled.source.size(1), filled.target.size(1) - 1)
            assert (filled.source.size(0) - 1) * processes * widest <= 60


@pytest.mark.parametrize("kind", [SmoothedLoss, FastLoss])
def test_a_filled_batch_has_the_loss_and_the_gradients_of_the_plain_one(
    kind: type[SmoothedLoss],
) -> None:
    loss = kind(make())
    for batch in some_batches(plan_of(SHAPES))[:6]:
        filled = SHAPES.fill_up(batch)
        assert filled.source.numel() > batch.source.numel()
        assert filled.source.size(1) % 8 == 0 == (filled.target.size(1) - 1) % 8
        for own, plain in zip(gradients(loss, filled), gradients(loss, batch)):
            torch.testing.assert_close(own, plain, rtol=1e-5, atol=1e-5)


def lengths_like_wmt14() -> np.ndarray:
    chance = np.random.default_rng(0)
    source = 27 * np.exp(0.5 * chance.standard_normal(100_000))
    target = source * np.exp(0.25 * chance.standard_normal(100_000))
    return np.stack([source, target], axis=1).round().clip(2, 120).astype(np.int64)


def test_batches_of_a_long_corpus_have_few_shapes() -> None:
    """Two epochs of 100,000 pairs: far fewer than a loss keeps records, and than without."""
    lengths = lengths_like_wmt14()
    shapes = Shapes(8, 25_000, 1024)
    padded = shapes.padded(lengths)
    plain, few = set(), set()
    for epoch in (0, 1):
        for rows in plan_batches(lengths, 25_000, 0, epoch):
            plain.add((len(rows), *lengths[rows].max(axis=0)))
        for rows in plan_batches(padded, 25_000, 0, epoch):
            source, target = padded[rows].max(axis=0)
            few.add((source, target))  # the rows follow from them
    assert len(few) <= 64 < 2 * len(few) < len(plain)
    assert all(size % 8 == 0 for sizes in few for size in sizes)


@pytest.mark.slow
def test_padded_batches_need_no_more_programs_than_others() -> None:
    """Layers are compiled once for all shapes, as they are without padding."""
    from torch._dynamo.utils import counters

    model = make()
    compile_layers(model, backend="eager")
    before = counters["stats"]["unique_graphs"]
    loss = FastLoss(model)
    filled = {}
    for batch in some_batches(plan_of(SHAPES)):
        padded = SHAPES.fill_up(batch)
        filled[padded.source.shape, padded.target.shape] = padded
    assert len(filled) == 25
    for batch in filled.values():
        gradients(loss, batch)
    # Two for any sizes and two for a single row
    assert counters["stats"]["unique_graphs"] - before == 4


# --- Records ---


def test_a_record_has_the_loss_and_the_gradients_of_other_batches() -> None:
    """What was recorded with one batch is right for the next of its shape: nothing is baked in."""
    graphed = GraphedLoss(FastLoss(make()), traced)
    plain = FastLoss(make())
    first, other = (SHAPES.fill_up(batch) for batch in one_shape(2))
    gradients(graphed, first)
    for own, expected in zip(gradients(graphed, other), gradients(plain, other)):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-5)
    assert len(graphed.records) == 1


def one_shape(count: int) -> list[Batch]:
    """Different batches that are filled up to the same shape."""
    by_shape: dict[torch.Size, list[Batch]] = {}
    for batch in some_batches(plan_of(SHAPES)):
        filled = SHAPES.fill_up(batch)
        of_this_shape = by_shape.setdefault(
            torch.Size([*filled.source.shape, *filled.target.shape]), []
        )
        of_this_shape.append(batch)
        if len(of_this_shape) == count:
            return of_this_shape
    raise AssertionError("no shape has so many batches")


@pytest.mark.parametrize("accumulated", [1, 3])
def test_recorded_steps_make_the_same_updates(accumulated: int) -> None:
    """In double precision, to its last digits: Adam makes much of small differences."""
    torch.set_default_dtype(torch.float64)
    try:
        plain, graphed = make(), make()
    finally:
        torch.set_default_dtype(torch.float32)
    batches = some_batches(plan_of(SHAPES))[:12]
    filled = [SHAPES.fill_up(batch) for batch in batches]
    losses = FastLoss(plain), GraphedLoss(FastLoss(graphed), again)
    for loss, stream in zip(losses, (batches, filled)):
        adam = make_adam(loss.model)
        adam.param_groups[0]["lr"] = 0.01
        for group in group_batches(stream, accumulated):
            training_step(loss, group, adam, grad_clip=1.0)
    for own, other in zip(graphed.parameters(), plain.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-10)


def test_a_recorded_step_leaves_a_few_dozen_operators_to_launch() -> None:
    """Out of nearly a thousand, at the depth of base."""
    counted = Counted()

    def hidden(step: Step, batch: Batch) -> Step:
        def replay(source: Tensor, target: Tensor) -> Tensor:
            counted.pause = True
            loss = step(source, target)
            counted.pause = False
            return loss

        return replay

    def operators(loss: SmoothedLoss) -> int:
        batch = SHAPES.fill_up(some_batches(plan_of(SHAPES))[0])
        group = Group([batch], (batch.target[:, 1:] != PAD).sum())
        adam = make_adam(loss.model)
        training_step(loss, group, adam)
        counted.operators = 0
        with counted:
            training_step(loss, group, adam)
        return counted.operators

    model = make(layers=6, dropout=0.1)
    plain = operators(FastLoss(model))
    assert plain > 800
    assert operators(GraphedLoss(FastLoss(model), hidden)) < 30


class Counted(TorchDispatchMode):
    """Counts operators that compute something."""

    operators = 0
    pause = False

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        self.operators += not operator.is_view and not self.pause
        return operator(*arguments, **(named or {}))


def test_a_larger_chunk_leaves_fewer_operators_and_the_same_loss() -> None:
    model, batch = make(), some_batches(plan_of(SHAPES))[0]
    results, counts = [], []
    for chunk in (16, CHUNK):
        loss = FastLoss(model)
        loss.chunk = chunk
        with Counted() as counted:
            results.append(gradients(loss, batch))
        counts.append(counted.operators)
    positions = batch.target[:, 1:].numel()
    assert counts[0] - counts[1] > 5 * (positions // 16)
    for small, large in zip(*results):
        torch.testing.assert_close(small, large, rtol=1e-5, atol=1e-5)


def test_beyond_so_many_shapes_steps_are_plain() -> None:
    graphed = GraphedLoss(FastLoss(make()), again, most=1)
    for rows in (2, 3, 4):
        batch = Batch(torch.full((rows, 5), 5), torch.full((rows, 6), 5))
        own = gradients(graphed, batch)
        for value, expected in zip(own, gradients(graphed.loss, batch)):
            torch.testing.assert_close(value, expected)
    assert len(graphed.records) == 1 == graphed.replays


def test_without_gradients_nothing_is_recorded() -> None:
    graphed = GraphedLoss(FastLoss(make()), again)
    (batch, *_) = some_batches(plan_of(SHAPES))
    with torch.no_grad():
        torch.testing.assert_close(graphed(*batch), graphed.loss(*batch))
    assert not graphed.records


@pytest.mark.slow
def test_dropout_is_recorded_apart_from_its_absence() -> None:
    graphed = GraphedLoss(FastLoss(make(dropout=0.5)), traced)
    (batch, *_) = some_batches(plan_of(SHAPES))
    noisy = [graphed.train()(*batch).item() for _ in range(2)]
    exact = [graphed.eval()(*batch).item() for _ in range(2)]
    assert noisy[0] != noisy[1] and exact[0] == exact[1] and len(graphed.records) == 2


def test_gradients_that_are_overwritten_are_refused() -> None:
    graphed = GraphedLoss(FastLoss(make()), again)
    (batch, *_) = some_batches(plan_of(SHAPES))
    first = graphed(*batch)
    graphed(*batch)
    with pytest.raises(RuntimeError, match="call backward\\(\\) before"):
        first.backward()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_gradients_of_a_record_reach_the_other_processes(alone: None) -> None:
    """DistributedDataParallel averages what arrives at the weights."""
    batch = SHAPES.fill_up(some_batches(plan_of(SHAPES))[0])
    parallel = DataParallelLoss(GraphedLoss(FastLoss(make()), again))
    own = gradients(parallel, batch)
    for value, expected in zip(own, gradients(FastLoss(make()), batch), strict=True):
        torch.testing.assert_close(value, expected)


# --- A run with few shapes ---

RUN = TrainingConfig(
    steps=14, max_tokens=150, warmup=5, save_every=10, pad_to_multiple_of=8
)


def go(
    folder: Path | None = None,
    config: TrainingConfig = RUN,
    record: Callable[[Step, Batch], Step] = again,
    device: str | torch.device = "cpu",
) -> Transformer:
    model = make(dropout=0.1).to(device)
    loss = GraphedLoss(FastLoss(model, config.label_smoothing), record)
    return train(model, TOKENIZER, CORPUS, config, folder=folder, loss=loss)


def test_a_run_with_few_shapes_goes_on_to_the_bit(tmp_path: Path) -> None:
    """In the middle of an epoch; batches are planned anew, and steps recorded anew."""
    go(tmp_path, replace(RUN, steps=7))
    continued = go(tmp_path)
    for own, other in zip(continued.parameters(), go().parameters()):
        assert torch.equal(own, other)


def test_another_padding_is_another_run(tmp_path: Path) -> None:
    go(tmp_path, replace(RUN, pad_to_multiple_of=1))
    with pytest.raises(ValueError, match="pad_to_multiple_of=1, not 8"):
        go(tmp_path)


def test_every_pair_is_in_an_epoch_of_padded_batches_once() -> None:
    shapes = Shapes(8, 150, 1024)
    plan = plan_of(shapes)
    assert sorted(np.concatenate(plan).tolist()) == [*range(len(CORPUS))]
    tokens = 0
    for batch in some_batches(plan):
        tokens += int((shapes.fill_up(batch).target[:, 1:] != PAD).sum())
    assert tokens == CORPUS.lengths[:, 1].sum()


# --- On a GPU ---

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("compiled", [False, True])
def test_a_cuda_graph_has_the_loss_and_the_gradients_of_other_batches(
    compiled: bool, precision: Precision
) -> None:
    """Of the plain step, for a batch that it was not recorded with."""
    plain, model = make().cuda(), make().cuda()
    if compiled:
        compile_layers(model)
    graphed = GraphedLoss(FastLoss(model, precision=precision))
    first, other = (
        SHAPES.fill_up(batch).to(torch.device("cuda")) for batch in one_shape(2)
    )
    gradients(graphed, first)
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    expected = gradients(FastLoss(plain, precision=precision), other)
    for own, value in zip(gradients(graphed, other), expected, strict=True):
        torch.testing.assert_close(own, value, rtol=tolerance, atol=tolerance)
    assert len(graphed.records) == 1


@needs_gpu
def test_a_cuda_graph_draws_new_dropout_each_time_and_recording_draws_none() -> None:
    graphed = GraphedLoss(FastLoss(make(dropout=0.5).cuda()))
    batch = SHAPES.fill_up(some_batches(plan_of(SHAPES))[0]).to(torch.device("cuda"))
    torch.manual_seed(1)
    losses = [graphed(*batch).item() for _ in range(3)]
    assert len(set(losses)) == 3
    torch.manual_seed(1)
    assert losses == [graphed(*batch).item() for _ in range(3)]
    torch.manual_seed(1)
    assert losses[0] == GraphedLoss(graphed.loss)(*batch).item()


@needs_gpu
def test_a_run_of_cuda_graphs_goes_on_where_it_was(tmp_path: Path) -> None:
    """With the dropout of the run that was never stopped."""
    device = torch.device("cuda")
    go(tmp_path, replace(RUN, steps=7), CudaRecorder(), device)
    continued = go(tmp_path, RUN, CudaRecorder(), device)
    whole = go(None, RUN, CudaRecorder(), device)
    for own, other in zip(continued.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


# --- The command line ---


@pytest.mark.parametrize(
    ("name", "gigabytes", "expected"),
    [("base", 80, 25_000), ("base", 16, CHUNK), ("big", 80, 25_000)],
)
def test_the_loss_takes_one_chunk_where_there_is_memory(
    name: str, gigabytes: float, expected: int
) -> None:
    planned = {"base": 7.81e9, "big": 16.75e9}  # with 25,000 tokens, in bf16
    plan = Estimate(0, 0.0, planned[name], usual_mfu=0.1)
    chunk = largest_chunk(preset(name), 25_000, plan, gigabytes * 1e9)
    assert chunk == expected
    assert largest_chunk(preset(name), 500, plan, 1e12) == CHUNK


class Card:
    """A GPU of 80 gigabytes, for those who ask."""

    total_memory = 80e9


@pytest.mark.parametrize("multiple", [1, 8])
def test_compiling_on_a_gpu_takes_one_chunk_and_with_few_shapes_records(
    multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of this model only say that they are on one."""
    compiled: list[Transformer] = []
    monkeypatch.setattr(cli, "compile_layers", compiled.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    config = replace(RUN, max_tokens=2048, pad_to_multiple_of=multiple)
    loss = FastLoss(make())
    on_cpu = cli.loss_with_few_launches(loss, config, CORPUS)
    assert on_cpu is loss and loss.chunk == CHUNK and compiled == [loss.model]

    class OnGpu(Transformer):
        embedding: Any = type("Embedding", (), {"weight": Weight()})()

    monkeypatch.setattr(loss.model, "__class__", OnGpu)
    del loss.model._modules["embedding"]
    chosen = cli.loss_with_few_launches(loss, config, CORPUS)
    assert loss.chunk == 2048
    assert isinstance(chosen, GraphedLoss) == (multiple > 1)


class Weight:
    """A weight that says it is on a GPU."""

    device = torch.device("cuda", 0)
