"""The fast loss equals the slow one; counts agree with PyTorch's; nothing compiles without end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.batching import Batch, plan_batches
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.speed import (
    CHUNK,
    FastLoss,
    chunked_loss,
    compile_layers,
    flops,
)
from annotated_transformer.toolkit.model_io import load_pretrained
from annotated_transformer.toolkit.planning import (
    activations,
    best_precision,
    estimate,
    measured_peak,
    unusual_settings,
)
from annotated_transformer.toolkit.presets import preset
from annotated_transformer.toolkit.runs import TrainingConfig, collate_share
from annotated_transformer.toolkit.translation import translate
from annotated_transformer.training import (
    Hyperparameters,
    group_batches,
    training_step,
)
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.chapters import ROOT

CPU = torch.device("cpu")
Gradients = list[Tensor | None]


def made(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 32, "d_ff": 48, "heads": 4, "d_k": 6, "d_v": 10}
    return Transformer(TransformerConfig(50, **{**sizes, "dropout": 0.0, **changes}))


def some_batch(rows: int = 7, source: int = 9, target: int = 8, seed: int = 0) -> Batch:
    """A batch of these sizes; the last sentences end early."""
    chance = torch.Generator().manual_seed(seed)
    sizes = ((rows, source), (rows, target + 1))
    batch = Batch(*(torch.randint(4, 50, size, generator=chance) for size in sizes))
    for side in batch:
        side[rows // 2 + 1 :, side.size(1) // 2 + 1 :] = PAD
    return batch


def gradients(model: nn.Module, loss: Tensor) -> Gradients:
    model.zero_grad()
    loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


# --- Operations ---


@pytest.mark.parametrize("name", ["tiny", "B-dk16", "A-h4"])
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    """A forward and backward pass through the readable attention, counted product by product."""
    config = preset(name, vocabulary_size=61, layers=2, dropout=0.0)
    model = Transformer(config)
    rows, source, target = 3, 11, 7
    # The fused kernel is counted with what it computes twice
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        SmoothedLoss(model)(
            torch.full((rows, source), 5), torch.full((rows, target + 1), 5)
        ).backward()
    ours = flops(config, [source] * rows, [target] * rows)
    assert sum(ours.values()) == counter.get_total_flops()
    alone = flops(config, source, target)
    assert ours == {block: rows * count for block, count in alone.items()}


def test_the_peak_is_measured() -> None:
    assert (
        measured_peak(CPU, size=64) > 1e6 and measured_peak(CPU, "bf16", size=64) > 1e5
    )


# --- The loss without the logits ---


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 18),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.1, 0.7]),
    st.integers(0, 99),
)
def test_chunked_loss_is_that_of_all_logits(
    positions: int, chunk: int, smoothing: float, seed: int
) -> None:
    """Value and both gradients, with padding and without, however it is cut."""
    chance = torch.Generator().manual_seed(seed)
    states = torch.randn(positions, 6, dtype=torch.float64, generator=chance)
    weight = torch.randn(11, 6, dtype=torch.float64, generator=chance)
    labels = torch.randint(0, 11, (positions,), generator=chance)
    results = []
    for fast in (True, False):
        inputs = [states.clone().requires_grad_(), weight.clone().requires_grad_()]
        if fast:
            loss = chunked_loss(*inputs, labels, smoothing, chunk)
        else:
            loss = label_smoothed_loss(F.linear(*inputs), labels, smoothing)
        (loss * 3).backward()
        results.append([loss.detach(), *(each.grad for each in inputs)])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_its_gradient_is_the_slope_of_its_value() -> None:
    states = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([4, PAD, 7, PAD, PAD])
    assert torch.autograd.gradcheck(
        lambda *inputs: chunked_loss(*inputs, labels, 0.1, 2), (states, weight)
    )


def test_the_logits_never_exist_at_once() -> None:
    """Of the positions of a batch, no more than a chunk meets the vocabulary at a time."""
    vocabulary, chunk, sizes = 997, 5, []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and vocabulary in out.shape:
                sizes.append(out.numel() // vocabulary)
            return out

    states, weight = torch.randn(23, 8, requires_grad=True), torch.randn(vocabulary, 8)
    with Watch():
        chunked_loss(
            states, weight.requires_grad_(), torch.full((23,), 5), 0.1, chunk
        ).backward()
    assert set(sizes) <= {*range(1, chunk + 1), 8}  # 8: the table


# --- The fast loss ---


@pytest.mark.parametrize("changes", [{}, {"pre_norm": True}, {"positions": "learned"}])
def test_fast_loss_equals_the_readable_one(changes: dict) -> None:
    """Also for more positions than a chunk has, in value and in every gradient."""
    model = made(**changes).double()
    for batch in (some_batch(), some_batch(rows=60, target=19)):
        fast, slow = FastLoss(model)(*batch), SmoothedLoss(model)(*batch)
        torch.testing.assert_close(fast, slow, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradients(model, fast), gradients(model, slow))
    assert batch.target[:, 1:].numel() > CHUNK


def test_dropout_draws_the_same_numbers() -> None:
    """A run may change from one loss to the other."""
    model, batch, losses = made(dropout=0.3), some_batch(), []
    for kind in (FastLoss, SmoothedLoss):
        torch.manual_seed(1)
        losses.append(kind(model)(*batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_no_label_no_loss_and_no_gradient() -> None:
    """What a process without sentences adds: nothing, but for every parameter."""
    model = made()
    loss = FastLoss(model)(*collate_share([]))
    assert loss.item() == 0
    found = gradients(model, loss)
    assert all(gradient is not None and not gradient.any() for gradient in found)


def test_it_can_be_evaluated_without_gradients() -> None:
    model, batch = made(), some_batch()
    with torch.no_grad():
        assert FastLoss(model)(*batch).item() == pytest.approx(
            SmoothedLoss(model)(*batch).item()
        )


def test_an_update_is_that_of_the_training_chapter() -> None:
    """Batches added up, divided by their tokens, clipped: the same weights afterwards."""
    (group,) = group_batches([some_batch(seed=1), some_batch(rows=3, seed=2)], 2)
    results = []
    for kind in (FastLoss, SmoothedLoss):
        model = made().double()
        adam = Adam(model.parameters(), lr=0.01, fused=True)
        for _ in range(2):
            training_step(kind(model), group, adam, grad_clip=0.5)
        results.append(model.state_dict())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("rows", [7, 60])
def test_bf16_is_near_and_weights_stay_fp32(rows: int) -> None:
    model, batch = made(), some_batch(rows, target=19)
    fast, slow = FastLoss(model, precision="bf16")(*batch), SmoothedLoss(model)(*batch)
    assert fast.dtype == torch.float32 and fast.item() == pytest.approx(
        slow.item(), rel=0.01
    )
    for half, whole in zip(gradients(model, fast), gradients(model, slow)):
        assert half is not None and whole is not None and half.dtype == torch.float32
        assert F.cosine_similarity(half.flatten(), whole.flatten(), dim=0) > 0.98
    assert fast.item() != slow.item()


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="fp16"):
        FastLoss(made(), precision="fp16")(*some_batch())  # type: ignore[arg-type]


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_it_can_be_wrapped_for_several_processes(alone: None) -> None:
    """Each gradient is handed over once, though the table is used at both ends and in chunks."""
    model, batch = made(), some_batch(rows=60, target=19)
    plain = gradients(model, FastLoss(model)(*batch))
    wrapped = DistributedDataParallel(FastLoss(model))
    for _ in range(2):  # the second time, all hooks must have been called
        torch.testing.assert_close(gradients(model, wrapped(*batch)), plain)


@pytest.mark.parametrize("precision, fused", [("fp32", True), ("bf16", False)])
def test_attention_on_a_processor_is_fused_unless_in_bf16(
    precision: Any, fused: bool
) -> None:
    """There its way back takes several times as long as that of plain products."""
    with profile() as seen:
        FastLoss(made(d_v=6), precision=precision)(*some_batch()).backward()
    assert any("flash" in event.key for event in seen.key_averages()) == fused


def test_bf16_only_where_there_are_units_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert best_precision("cpu") == best_precision(CPU) == "fp32"
    # A V100 says yes, unless emulation is ruled out
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: including_emulation,
    )
    assert best_precision("cuda") == "fp32"
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: True
    )
    assert best_precision("cuda") == "bf16" and best_precision(CPU) == "fp32"


def test_attention_on_a_gpu_is_never_left_to_cudnn() -> None:
    """It prepares itself anew for each length of sentences."""
    allowed = []
    loss = FastLoss(made())
    loss.model.encoder.register_forward_hook(
        lambda *_: allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    loss(*some_batch())
    assert allowed == [False] and torch.backends.cuda.cudnn_sdp_enabled()


# --- Compilation ---


def programs() -> int:
    from torch._dynamo.utils import counters

    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


@pytest.fixture
def strict() -> Iterator[None]:
    """Dynamo raises an error at its limit, and forgets afterwards that compile_layers raised it."""
    with torch._dynamo.config.patch(
        recompile_limit=8, fail_on_recompile_limit_hit=True
    ):
        yield


@pytest.mark.slow
def test_few_programs_do_for_batches_of_all_sizes(strict: None) -> None:
    """Two each for training, for a single sentence, for validation; then none, and no limit."""
    model, slow = made(), made()
    compile_layers(model, backend="eager")
    before = programs()

    def run(sizes: list[tuple[int, int, int]]) -> int:
        for size in sizes:
            batch = some_batch(*size)
            fast = SmoothedLoss(model)(*batch)
            torch.testing.assert_close(fast, SmoothedLoss(slow)(*batch))
            if torch.is_grad_enabled():
                fast.backward()
        return programs() - before

    assert run([(6, 9, 7), (4, 4, 4), (2, 8, 2), (13, 2, 5)]) == 2
    assert run([(1, 5, 6)]) == 4
    model.eval()
    with torch.no_grad():
        assert run([(6, 9, 7), (5, 5, 3)]) == 6
    model.train()
    assert run([(7, 3, 3), (1, 8, 9), (3, 11, 4), (1, 4, 4), (20, 6, 20)]) == 6


def test_a_compiled_model_translates_in_whole_programs() -> None:
    """As in validation."""
    model, tokenizer = load_pretrained("captions-de-en")
    lines = ["Ein Hund läuft über die Wiese.", "Eine Frau liest."]
    plain, before = translate(model, tokenizer, lines), programs()
    compile_layers(model, backend="eager")
    assert translate(model, tokenizer, lines) == plain
    assert programs() > before  # and no graph break


@pytest.mark.slow
def test_the_limit_of_dynamo_is_never_reached(strict: None) -> None:
    """All ways in which sizes can be 1 or equal, the equal ones first, in both modes."""
    from itertools import product

    model = made()
    compile_layers(model, backend="eager")
    before = programs()
    sizes = sorted(product((1, 4, 5, 6), repeat=3), key=lambda size: len(set(size)))
    for training in (True, False):
        model.train(training)
        with torch.set_grad_enabled(training):
            for rows, source, target in sizes:
                SmoothedLoss(model)(
                    torch.full((rows, source), 5), torch.full((rows, target + 1), 5)
                )
    assert programs() - before <= 24


@pytest.mark.slow
def test_compiled_for_real_it_trains_the_same() -> None:
    model, slow = made(), made()
    compile_layers(model)
    before = programs()
    for batch in (some_batch(6, 9, 7), some_batch(4, 4, 4), some_batch(13, 2, 5)):
        one, other = FastLoss(model)(*batch), SmoothedLoss(slow)(*batch)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
        pairs = zip(gradients(model, one), gradients(slow, other))
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)
    assert programs() - before == 2


NO_COMPILER = """
import os
from annotated_transformer.speed import compile_layers
from annotated_transformer.transformer import Transformer, TransformerConfig
os.environ["PATH"] = ""
compile_layers(Transformer(TransformerConfig(50, 1, 16, 24, 2)))
"""


@pytest.mark.slow
def test_without_a_cpp_compiler_pytorch_says_so(tmp_path: Path) -> None:
    """In a process of its own, since what was compiled once needs no compiler any more."""
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    env.pop("CXX", None)
    command = [sys.executable, "-c", NO_COMPILER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert "OSError: cannot compile: install g++ or triton" in done.stderr
    assert "No working C++ compiler" in done.stderr


def test_what_cannot_be_compiled_is_told_before_work() -> None:
    def broken(*inputs: Any) -> Any:
        raise RuntimeError("no compiler here\nand many lines more")

    model = made()
    with pytest.raises(
        OSError, match=r"install g\+\+ or triton.*no compiler here"
    ) as error:
        compile_layers(model, backend=broken)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    SmoothedLoss(model)(*some_batch())  # is as before


# --- Before a run ---


@pytest.mark.parametrize(
    ("changes", "per_epoch", "expected"),
    [
        ({}, 20, []),
        (
            {"steps": 100},
            200,
            ["100 steps are 50% of an epoch", "one epoch is --steps 200"],
        ),
        (
            {"steps": 5000},
            20,
            ["5,000 steps are 250 epochs", "30 epochs are --steps 600"],
        ),
        (
            {"warmup": 1000},
            20,
            ["the warm-up takes 1,000 of 1,300 steps", "--warmup 260"],
        ),
        (
            {"max_tokens": 25_000},
            100,
            ["only 100 updates of 25,000", "--max-tokens 2048"],
        ),
        ({"max_tokens": 3000, "grad_accum_steps": 2}, 100, ["updates of 6,000 tokens"]),
        ({"max_tokens": 25_000}, 1000, []),
    ],
)
def test_settings_far_from_what_has_worked_are_named(
    changes: dict[str, Any], per_epoch: float, expected: list[str]
) -> None:
    """Each with what to give in its place."""
    said = " ".join(unusual_settings(Hyperparameters(**changes), per_epoch))
    assert all(part in said for part in expected) and bool(said) == bool(expected)


def test_patience_makes_many_epochs_usual() -> None:
    many = Hyperparameters(steps=5000)
    assert unusual_settings(many, 20) and not unusual_settings(many, 20, patience=5)


def test_the_smaller_batch_is_counted_in_the_epochs() -> None:
    """30 epochs of 40 updates of 25,000 tokens are 12.2 times as many of 2,048."""
    large = Hyperparameters(steps=100_000, max_tokens=25_000)
    batch, epochs = unusual_settings(large, updates_per_epoch=40)
    assert "--max-tokens 2048" in batch and "--steps 14649" in epochs


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_layers_keep_is_about_what_the_formula_says(precision: Any) -> None:
    """Counted by autograd's own hooks; on a CPU, dropout keeps four bytes for a GPU's one."""
    config = TransformerConfig(
        vocabulary_size=50, layers=3, d_model=64, d_ff=160, heads=4
    )
    model, shape = Transformer(config), (16, 20, 17)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if (storage := tensor.untyped_storage()).data_ptr() not in weights:
            small = (
                tensor.dtype == torch.bfloat16
                and tensor.dim() == 2
                and 64 in tensor.shape
            )
            if not (
                small and tensor.size(0) in (64, 160) and tensor.size(1) in (64, 160)
            ):
                kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    source, target = torch.full((16, 20), 5), torch.full((16, 17), 5)
    half = precision == "bf16"
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
        saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        states = model.decode(target, model.encode(source), source)
    assert states.requires_grad  # and all of its graph is alive
    ratio = activations(config, *shape, precision) / sum(kept.values())
    assert (0.95 if not half else 0.8) < ratio < 1.2


def test_an_estimate_adds_up() -> None:
    config = preset("tiny", vocabulary_size=300)
    lengths = np.random.default_rng(0).integers(3, 20, (300, 2))
    training = TrainingConfig(steps=7, max_tokens=200, grad_accum_steps=2)
    found = estimate(config, training, lengths)
    plan = plan_batches(lengths, 200, seed=0, epoch=0)
    shapes = [(len(rows), *lengths[rows].max(axis=0).tolist()) for rows in plan]
    by_hand = sum(
        rows * sum(flops(config, s, t).values()) for rows, s, t in shapes
    ) / len(plan)
    assert found.flops == pytest.approx(7 * 2 * by_hand)
    assert found.parameters == sum(p.numel() for p in Transformer(config).parameters())
    largest = max(
        activations(config, *shape) + 12 * shape[0] * shape[2] * 300 for shape in shapes
    )
    assert found.memory_bytes == pytest.approx(16 * found.parameters + largest)
    assert found.hours(1e12, gpus=2, mfu=0.5) == pytest.approx(
        found.flops / 1e12 / 3600
    )

    several = estimate(config, training, lengths, processes=4)
    assert several.flops == found.flops and several.memory_bytes < found.memory_bytes
    half = estimate(config, training, lengths, "bf16")
    assert half.memory_bytes - 18 * half.parameters < largest


def test_an_estimate_of_a_huge_model_does_not_wrap_around() -> None:
    """A prepared corpus keeps lengths in 32 bits, and bytes of a large batch need more."""
    config = preset("big", layers=96, d_model=4096, d_ff=16_384, max_length=1024)
    lengths = np.full((40, 2), 1000)
    training = TrainingConfig(steps=1, max_tokens=40_000)
    wide, narrow = (
        estimate(config, training, lengths.astype(kind)) for kind in ("int64", "int32")
    )
    assert wide.memory_bytes == narrow.memory_bytes


def test_an_estimate_refuses_what_cannot_be_trained_on() -> None:
    for lengths, message in (
        (np.zeros((0, 2), int), "no sentence pairs"),
        ([[3, 999]], "999 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            estimate(preset("tiny"), TrainingConfig(), np.array(lengths))


def test_the_runs_of_the_paper() -> None:
    """100,000 and 300,000 steps; at the MFU that was measured, hours between those measured."""
    lengths = np.full((892, 2), 28)
    for name, steps, total in (("base", 100_000, 9.5e17), ("big", 300_000, 9.7e18)):
        training = TrainingConfig(steps=steps, max_tokens=25_000)
        found = estimate(preset(name), training, lengths, "bf16")
        assert found.flops == pytest.approx(total, rel=0.006)
        hours = []
        for gpu in ("NVIDIA-H200", "NVIDIA-H100-80GB-HBM3"):
            log = ROOT / "benchmarks" / "results" / f"gpu-{gpu}.jsonl"
            lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
            (line,) = [line for line in lines if line["name"] == name]
            hours.append(found.hours(989e12, mfu=line["mfu"]))
        assert hours[0] < found.hours(989e12) < hours[1]
    whole = estimate(preset("base"), training, lengths, "fp32")
    assert whole.usual_mfu == 0.5


def test_more_gpus_do_not_shorten_launches() -> None:
    """As in the figure of chapter 27: eight GPUs need 1.7 hours for base, one not much more."""
    lengths = np.full((892, 2), 28)
    training = TrainingConfig(steps=100_000, max_tokens=25_000)
    plan = estimate(preset("base"), training, lengths, "bf16")
    assert plan.hours(989e12, gpus=8) == plan.launch_hours
    assert plan.launch_hours == pytest.approx(1.72, abs=0.01)
    assert plan.launch_hours < plan.hours(989e12) < 1.5 * plan.launch_hours

    large = TrainingConfig(steps=100_000, max_tokens=400_000)
    plan = estimate(preset("base"), large, np.full((20_000, 2), 28), "bf16")
    assert plan.hours(989e12, gpus=8) == pytest.approx(plan.hours(989e12) / 8)
    on_a_processor = estimate(preset("base"), training, lengths, "fp32")
    assert on_a_processor.launch_hours == 0
