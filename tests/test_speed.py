"""Each fast path equals its slow twin; counts agree with PyTorch's; nothing compiles twice."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import speed
from annotated_transformer.batching import Batch, Example, collate, plan_batches
from annotated_transformer.decoding import beam_search, next_logits
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.speed import FastObjective, Shape, activations, batch_shapes, best_precision, chunked_loss, compiled, compiled_reader, estimate, known_peak, measured_peak, memory, mfu, operations, prefetch, shapes_to_try, static_reader, warm_up
from annotated_transformer.transformer import Transformer, TransformerConfig, preset
from tools.chapters import ROOT

ODD = TransformerConfig(
    vocabulary_size=50, layers=2, d_model=32, d_ff=48, heads=4, d_k=6, d_v=10, dropout=0.0
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(config: TransformerConfig = ODD) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config)


def some_batch(seed: int = 0, vocabulary: int = 50) -> Batch:
    """Sentences of 3 to 9 tokens side by side."""
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 10, (7, 2), generator=chance).tolist()

    def words(count: int) -> list[int]:
        return torch.randint(4, vocabulary, (count,), generator=chance).tolist()

    return collate([Example([*words(s), EOS], [BOS, *words(t), EOS]) for s, t in lengths])


def slow_loss(model: Transformer, batch: Batch, smoothing: float = 0.1) -> Tensor:
    """The readable twin: all logits, then the loss of chapter 17."""
    logits = model(batch.source, batch.target[:, :-1])
    return label_smoothed_loss(logits, batch.target[:, 1:], smoothing)[0]


def gradients(model: Transformer, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], rtol=tolerance, atol=tolerance) for name in one
    )


# --- Operations ---


@pytest.mark.parametrize("name", ["tiny", "B-dk16", "A-h4"])
def test_operations_are_those_that_pytorch_counts(name: str) -> None:
    """A forward and backward pass through the readable attention, counted product by product."""
    config = preset(name, vocabulary_size=61, layers=2, dropout=0.0)
    model = made(config)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.keep_weights = True  # the fused kernel is counted with what it computes twice
    rows, source, target = 3, 11, 7
    batch = Batch(torch.full((rows, source), 5), torch.full((rows, target + 1), 5))
    with FlopCounterMode(display=False) as counter:
        slow_loss(model, batch).backward()
    ours = flops(config, torch.full((rows,), source), torch.full((rows,), target))
    assert sum(ours.values()) == counter.get_total_flops()
    alone = flops(config, source, target)
    assert ours == {block: rows * count for block, count in alone.items()}


def test_operations_give_the_totals_of_the_papers_runs() -> None:
    """100,000 and 300,000 steps of 25,000 tokens a side, sentences of 28."""
    for name, steps, total in (("base", 100_000, 9.5e17), ("big", 300_000, 9.7e18)):
        a_pair = sum(flops(preset(name), 28, 28).values())
        assert a_pair / 28 * 25_000 * steps == pytest.approx(total, rel=0.006)


def test_the_fragments_name_the_right_gpu() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H200": 989e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA A10": 125e12,
        "NVIDIA L4": 121e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA GeForce RTX 3090": 71e12,
        "NVIDIA GeForce RTX 4090": 165e12,
        "Tesla V100-SXM2-16GB": 125e12,
        "Tesla T4": 65e12,
    }
    assert {name: known_peak(name) for name in names} == names
    assert known_peak("NVIDIA GeForce GTX 1080") is None


def test_peak_and_share() -> None:
    assert measured_peak(CPU, size=64) > 1e6
    assert mfu(operations=30, seconds=2, peak=100) == 0.15


# --- The loss without the logits ---


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 9), st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.7]), st.integers(0, 99))
def test_the_chunked_loss_is_that_of_chapter_13(
    positions: int, chunk: int, smoothing: float, seed: int
) -> None:
    """Value and both gradients, with padding and without, however it is cut."""
    chance = torch.Generator().manual_seed(seed)
    states = torch.randn(2, positions, 6, dtype=torch.float64, generator=chance)
    table = torch.randn(11, 6, dtype=torch.float64, generator=chance)
    labels = torch.randint(0, 11, (2, positions), generator=chance)
    results = []
    for fast in (True, False):
        inputs = [states.clone().requires_grad_(), table.clone().requires_grad_()]
        if fast:
            loss = chunked_loss(*inputs, labels, smoothing, chunk)
        else:
            loss, _ = label_smoothed_loss(F.linear(*inputs), labels, smoothing)
        (loss * 3).backward()
        results.append([loss.detach(), *(each.grad for each in inputs)])
    for ours, theirs in zip(*results):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_padding_is_left_out_also_where_it_is_not_cut_out() -> None:
    """On a GPU padding goes through the products; what comes out of them is dropped."""
    states = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    table = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([4, PAD, 7, PAD, PAD])
    whole = speed.ChunkedLoss.apply(states, table, labels, 0.1, 2, torch.float64)
    cut = chunked_loss(states, table, labels, 0.1, 2)
    assert torch.allclose(whole, cut)
    for one, other in zip(
        torch.autograd.grad(whole, (states, table)), torch.autograd.grad(cut, (states, table))
    ):
        assert torch.allclose(one, other)
    assert torch.autograd.gradcheck(
        lambda *inputs: speed.ChunkedLoss.apply(*inputs, labels, 0.1, 2, torch.float64),
        (states, table),
    )


def test_smoothing_must_be_a_rate() -> None:
    with pytest.raises(ValueError, match="below 1, not 1"):
        chunked_loss(torch.zeros(1, 2), torch.zeros(5, 2), torch.tensor([4]), 1.0)


# --- The objective ---


@pytest.mark.parametrize("changes", [{}, {"pre_norm": True}, {"positions": "learned"}])
@pytest.mark.parametrize("chunk", [3, 2048])
def test_the_fast_objective_equals_the_readable_one(changes: dict, chunk: int) -> None:
    model, batch = made(TransformerConfig(**{**vars(ODD), **changes})), some_batch()
    fast = FastObjective(model, 0.1, chunk=chunk)(*batch)
    slow = slow_loss(model, batch)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-6)
    assert close(gradients(model, fast), gradients(model, slow), 1e-5)


def test_it_is_the_objective_of_the_training_chapter() -> None:
    from annotated_transformer.training import Objective

    model, batch = made(), some_batch()
    one, other = Objective(model, 0.1)(*batch), FastObjective(model, 0.1)(*batch)
    assert one.item() == pytest.approx(other.item(), rel=1e-6)
    assert [*Objective(model, 0.1).state_dict()] == [*FastObjective(model, 0.1).state_dict()]


def test_dropout_draws_as_in_the_model() -> None:
    """The same numbers in the same order: a run may change from one objective to the other."""
    model, batch = made(TransformerConfig(**{**vars(ODD), "dropout": 0.3})), some_batch()
    losses = []
    for objective in (lambda: FastObjective(model, 0.1)(*batch), lambda: slow_loss(model, batch)):
        torch.manual_seed(1)
        losses.append(objective().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_no_label_no_loss_and_no_gradient() -> None:
    model = made()
    batch = collate([Example([EOS], [BOS])] * 3, 4, 5)
    loss = FastObjective(model, 0.1)(*batch)
    assert loss.item() == 0
    found = gradients(model, loss)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert not any(gradient.any() for gradient in found.values())


def test_accumulated_and_divided_as_training_does() -> None:
    model, group = made(), [some_batch(seed) for seed in (1, 2)]
    tokens = sum((batch.target[:, 1:] != PAD).sum() for batch in group)
    results = []
    for objective in (FastObjective(model, 0.1), lambda *batch: slow_loss(model, Batch(*batch))):
        model.zero_grad()
        for batch in group:
            (objective(*batch) / tokens).backward()
        results.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert close(*results, 1e-6)


def test_bf16_is_near_and_weights_stay_fp32() -> None:
    model, batch = made(), some_batch()
    fast = FastObjective(model, 0.1, precision="bf16")(*batch)
    slow = slow_loss(model, batch)
    assert fast.dtype == torch.float32 and fast.item() == pytest.approx(slow.item(), rel=0.02)
    halves, wholes = gradients(model, fast), gradients(model, slow)
    for name, gradient in halves.items():
        assert gradient.dtype == torch.float32
        assert F.cosine_similarity(gradient.flatten(), wholes[name].flatten(), dim=0) > 0.98


def test_the_logits_never_stand_at_once() -> None:
    """Of the positions of a batch, no more than a chunk meets the vocabulary at a time."""
    vocabulary, chunk = 997, 5
    model, batch = made(preset("tiny", vocabulary_size=vocabulary, layers=1)), some_batch()
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and vocabulary in out.shape:
                sizes.append(out.numel() // vocabulary)
            return out

    with Watch():
        FastObjective(model, 0.1, chunk=chunk)(*batch).backward()
    assert max(size for size in sizes if size != model.config.d_model) <= chunk
    assert batch.target[:, 1:].numel() > chunk


DISTRIBUTED = """
import sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from annotated_transformer.batching import Batch
from annotated_transformer.speed import FastObjective
from annotated_transformer.transformer import Transformer, TransformerConfig
rank, port = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
)
torch.manual_seed(0)
model = Transformer(TransformerConfig(30, 1, 16, 24, 2, dropout=0.0))
chance = torch.Generator().manual_seed(5)
source = torch.randint(4, 30, (4, 5), generator=chance)
target = torch.randint(4, 30, (4, 6), generator=chance)
FastObjective(model, 0.1)(source, target).backward()
whole = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
mine, shared = slice(2 * rank, 2 * rank + 2), DistributedDataParallel(FastObjective(model, 0.1))
shared(source[mine], target[mine]).backward()
assert all(torch.allclose(2 * p.grad, g, atol=1e-5) for p, g in zip(model.parameters(), whole))
distributed.destroy_process_group()
print("equal")
"""


def test_it_works_in_several_processes() -> None:
    """Two processes with half of the batch each add up to the gradient of the whole."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    commands = [[sys.executable, "-c", DISTRIBUTED, str(rank), port] for rank in (0, 1)]
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for command in commands
    ]  # fmt: skip
    for process in running:
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0 and output.split()[-1] == "equal", errors


# --- Precision ---


def test_bf16_only_where_the_hardware_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda: False, raising=False)
    assert best_precision("cpu") == "fp32"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert best_precision(CPU) == "bf16"
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert best_precision(CPU) == "fp32"  # an older PyTorch cannot tell

    asked: list[bool] = []

    def supported(including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return including_emulation  # as a V100 answers

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert best_precision("cuda") == "fp32" and asked == [False]
    assert best_precision("mps") == "fp32"


# --- Compilation ---

has_compiler = any(map(shutil.which, ("g++", "clang++")))


needs_compiler = pytest.mark.skipif(not has_compiler, reason="no C++ compiler")


def programs() -> int:
    from torch._dynamo.utils import counters

    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


@needs_compiler
def test_after_the_warm_up_nothing_is_compiled() -> None:
    """Two programs, one for each kind of layer, do for batches of all sizes; the same loss."""
    model = made()
    objective = compiled(FastObjective(model, 0.1))
    before = programs()
    shapes = [Shape(6, 9, 7), Shape(4, 4, 4), Shape(3, 3, 8), Shape(2, 8, 2), Shape(13, 2, 5)]
    warm_up(objective, shapes)
    assert programs() == before + 2
    assert all(p.grad is None for p in model.parameters())
    for rows, source, target in shapes:
        batch = Batch(
            torch.randint(4, 50, (rows, source)), torch.randint(4, 50, (rows, target + 1))
        )
        batch.source[0, -1] = batch.target[0, -1] = PAD
        fast, slow = objective(*batch), slow_loss(model, batch)
        assert fast.item() == pytest.approx(slow.item(), rel=1e-5)
        assert close(gradients(model, fast), gradients(model, slow), 1e-4)
    assert programs() == before + 2


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(1, 5)] * 3), min_size=1))
def test_what_is_tried_has_each_case_and_the_largest(sizes: list[tuple[int, int, int]]) -> None:
    """A size of 1 is a case of its own; all others that a small batch has differ."""
    shapes = {Shape(*size) for size in sizes}
    *small, largest = shapes_to_try(shapes)
    assert largest in shapes and largest.places == max(shape.places for shape in shapes)

    def ones(shape: Shape) -> tuple[bool, ...]:
        return tuple(size == 1 for size in shape)

    assert {ones(shape) for shape in small} == {ones(shape) for shape in shapes}
    for shape in small:
        several = [size for size in shape if size > 1]
        assert len(several) == len(set(several))
    assert shapes_to_try([]) == []


def test_the_limit_of_dynamo_is_raised_and_never_lowered() -> None:
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    for count, expected in ((1000, 1000), (10, 1000)):
        speed.allow_graphs(count)
        assert getattr(config, name) >= expected
        assert getattr(config, f"accumulated_{name}") >= expected


def test_without_a_compiler_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(OSError, match=r"install g\+\+ or clang\+\+"):
        compiled(FastObjective(made(), 0.1))
    with pytest.raises(OSError, match=r"install g\+\+ or clang\+\+"):
        compiled_reader(CPU)


# --- Warming up ---


class Memory(nn.Module):
    """An objective that has room for so many places."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.weight, self.room = nn.Parameter(torch.ones(())), room
        self.seen: list[tuple[int, int, int]] = []

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        rows, places = source.shape
        self.seen.append((rows, places, target.size(1) - 1))
        if source.numel() > self.room:
            raise torch.OutOfMemoryError("out of memory")
        return self.weight * source.sum()


def test_the_largest_shape_comes_last_and_nothing_stays() -> None:
    shapes = [Shape(2, 3, 4), Shape(9, 9, 9), Shape(1, 60, 2), Shape(30, 2, 2)]
    objective = Memory(room=100)
    state = torch.get_rng_state()
    warm_up(objective, shapes)
    assert objective.seen == [(1, 3, 5), (2, 3, 5), (9, 9, 9)]
    assert objective.weight.grad is None and torch.equal(state, torch.get_rng_state())


def test_lack_of_memory_names_the_shape_and_the_remedy() -> None:
    objective = Memory(room=80)
    with pytest.raises(MemoryError, match="9 sentences with 9 source and 9 target places") as error:
        warm_up(objective, [Shape(2, 3, 4), Shape(9, 9, 9)])
    assert "halve max_tokens and double accumulate" in str(error.value)
    assert objective.seen[-1] == (9, 9, 9)


# --- Decoding ---


def sentences(count: int, seed: int) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 50, (count, 9), generator=chance)
    for row in source:
        row[int(torch.randint(2, 10, (), generator=chance)) :] = PAD
    return source


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [{}, {"pre_norm": True}, {"positions": "learned"}, {"d_k": 3, "d_v": 5}, {"heads": 1}],
)
def test_a_cache_with_room_finds_the_same(changes: dict, beam: int) -> None:
    """The same hypotheses and scores, over several enlargements of the room."""
    model = made(replace(ODD, **changes)).double()
    for count in (1, 7):
        source = sentences(count, seed=count)
        slow, fast = (
            beam_search(model, source, beam, max_extra_tokens=20, n_best=beam, read=read)
            for read in (next_logits, static_reader())
        )
        longest = max(len(found.tokens) for row in slow for found in row)
        assert longest > speed.ROOM
        for one, other in zip(slow, fast):
            assert [found.tokens for found in one] == [found.tokens for found in other]
            scores = [torch.tensor([found.score for found in row]) for row in (one, other)]
            torch.testing.assert_close(*scores)


@needs_compiler
def test_four_programs_translate_everything() -> None:
    """Compiled for one and for many sentences, for one and for many hypotheses, and never again."""
    model, read = made(), compiled_reader(CPU)
    before = programs()

    def search(count: int, beam: int, reader: Any) -> list[list[int]]:
        found = beam_search(model, sentences(count, count), beam, max_extra_tokens=20, read=reader)
        return [best.tokens for (best,) in found]

    for count in (1, 2):
        search(count, 2, read)
    assert programs() == before + 4
    for count, beam in ((6, 1), (5, 4), (1, 3), (9, 2)):
        assert search(count, beam, read) == search(count, beam, next_logits)
    assert programs() == before + 4


# --- Prefetching ---


def numbered(count: int) -> Iterator[Batch]:
    for number in range(count):
        yield Batch(torch.full((1, 1), number), torch.full((1, 2), number))


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_come_in_order_and_the_thread_ends(ahead: int) -> None:
    before = threading.active_count()
    assert [int(batch.source) for batch in prefetch(numbered(20), ahead=ahead)] == list(range(20))
    assert list(prefetch([])) == []
    assert threading.active_count() == before


def test_an_error_in_the_thread_comes_after_the_batches_before_it() -> None:
    def broken() -> Iterator[Batch]:
        yield from numbered(2)
        raise OSError("shard 3 is damaged")

    seen = []
    with pytest.raises(OSError, match="shard 3 is damaged"):
        for batch in prefetch(broken()):
            seen.append(int(batch.source))
    assert seen == [0, 1]


def test_who_stops_early_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    made_so_far = []

    def endless() -> Iterator[Batch]:
        for number in range(10**9):
            made_so_far.append(number)
            yield from numbered(1)

    stream = prefetch(endless(), ahead=2)
    next(stream)
    stream.close()
    assert threading.active_count() == before and len(made_so_far) < 10


# --- Before a run ---


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_layers_keep_is_about_what_the_estimate_says(precision: Any) -> None:
    """Counted by autograd's own hooks; on a CPU, dropout keeps four bytes for a GPU's one."""
    config = TransformerConfig(vocabulary_size=50, layers=3, d_model=64, d_ff=160, heads=4)
    model, shape = made(config), Shape(16, 20, 17)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if (storage := tensor.untyped_storage()).data_ptr() not in weights:
            small = tensor.dtype == torch.bfloat16 and tensor.dim() == 2 and 64 in tensor.shape
            if not (small and tensor.size(0) in (64, 160) and tensor.size(1) in (64, 160)):
                kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = speed.made_up(shape, CPU)
    half = precision == "bf16"
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
        saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        FastObjective(model, 0.1).states(batch.source, batch.target[:, :-1])
    ratio = activations(config, shape, precision) / sum(kept.values())
    assert (0.95 if not half else 0.8) < ratio < 1.2


def test_an_estimate_adds_up() -> None:
    config = preset("tiny", vocabulary_size=300)
    lengths = torch.randint(3, 20, (300, 2), generator=torch.Generator().manual_seed(0))
    plan = plan_batches(lengths, 200, 0, 0)
    plan[0] = plan[0]._replace(rows=len(plan[0].indices) + 2)
    found = estimate(config, plan, steps=7, grad_accum_steps=2)
    by_hand = sum(
        max(batch.rows, len(batch.indices)) * sum(flops(config, *batch.shape).values())
        for batch in plan
    ) / len(plan)
    assert found.operations == pytest.approx(14 * by_hand)
    count = found.parameters
    assert found.memory["weights"] == 4 * count and found.memory["Adam"] == 8 * count
    assert found.memory["activations"] == max(
        activations(config, shape) for shape in batch_shapes(plan)
    )
    assert found.hours(peak=1e12, gpus=2, share=0.5) == pytest.approx(
        found.operations / 1e12 / 3600
    )
    shape = shapes_to_try(batch_shapes(plan))[-1]
    half = memory(config, shape, "bf16")
    assert half["activations"] < memory(config, shape)["activations"]


def test_the_runs_of_the_paper_take_what_the_table_says() -> None:
    """On one H200 at 20 %: base 1.3 hours, big 13.6."""
    for name, steps, hours in (("base", 100_000, 1.3), ("big", 300_000, 13.6)):
        plan = plan_batches(torch.full((892, 2), 28), 25_000, 0, 0)
        found = estimate(preset(name), plan, steps)
        assert found.hours(speed.PEAKS["H200"]) == pytest.approx(hours, abs=0.06)


# --- The benchmark ---


def test_the_benchmark_runs_from_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--preset", "tiny"]
    brief = ["--corpus", "grammar", "--rounds", "1", "--threads", "1", "--max-tokens", "200"]
    brief += ["--vocabulary", "300", "--batches", "1", "--device", "cpu"]
    done = subprocess.run(
        [*command, *brief, "--results", str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    assert path.name == "speed.jsonl"
    first, *turns = map(json.loads, path.read_text().splitlines())
    assert first["benchmark"] == "speed" and first["preset"] == "tiny" and first["torch"]
    systems = {turn["system"] for turn in turns}
    assert {"this book's step", "all together"} <= systems
    assert all(turn["tokens"] > 0 and turn["seconds"] > 0 for turn in turns)
    assert (
        len(
            {
                turn["tokens"]
                for turn in turns
                if turn["system"] in ("all together", "loss in chunks")
            }
        )
        == 1
    )
    for word in ("tokens/s", "MFU", "useful"):
        assert word in done.stdout
    assert importlib.util.find_spec("torch") is not None
