"""The fast loss equals the readable one, and what is counted and estimated is what happens."""

from shutil import which
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.batching import Batch, plan_batches
from annotated_transformer.decoding import use_fused
from annotated_transformer.distributed import collate_share
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.speed import (
    CHUNK,
    FastLoss,
    activations,
    best_precision,
    chunked_loss,
    compile_layers,
    estimate,
    flops,
)
from annotated_transformer.trainer import recipe
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import (
    PRESETS,
    Transformer,
    TransformerConfig,
    preset,
)


def make(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 32, "d_ff": 48, "heads": 4, "d_k": 6, "d_v": 10}
    return Transformer(TransformerConfig(50, **{**sizes, "dropout": 0.0, **changes}))


def some_batch(rows: int = 7, source: int = 9, target: int = 8) -> Batch:
    """A batch of these sizes; the last sentences end early."""
    chance = torch.Generator().manual_seed(0)
    sizes = ((rows, source), (rows, target + 1))
    batch = Batch(*(torch.randint(4, 50, size, generator=chance) for size in sizes))
    for side in batch:
        side[rows // 2 + 1 :, side.size(1) // 2 + 1 :] = PAD
    return batch


LARGE = some_batch(rows=60, target=19)  # more positions than a chunk


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [weights.grad.clone() for weights in model.parameters()]


# --- Operations ---


@pytest.mark.parametrize("changes", [{}, {"d_k": 16}, {"heads": 1}])
def test_flops_are_those_that_pytorch_counts(changes: dict[str, int]) -> None:
    config = preset("tiny", vocabulary_size=61, dropout=0.0, **changes)
    rows, source, target = 3, 11, 7
    batch = torch.full((rows, source), 5), torch.full((rows, target + 1), 5)
    # The fused kernel is counted with what it computes twice
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        SmoothedLoss(Transformer(config))(*batch).backward()
    ours = flops(config, np.array([source] * rows), np.array([target] * rows))
    assert sum(ours.values()) == counter.get_total_flops()
    one = flops(config, source, target)
    assert ours == {block: rows * count for block, count in one.items()}


# --- The loss ---


@given(
    st.integers(0, 18),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.1, 0.7]),
    st.integers(0, 99),
)
def test_the_chunked_loss_is_that_of_all_logits(
    positions: int, chunk: int, smoothing: float, seed: int
) -> None:
    """Value and both gradients, however it is cut, with padding anywhere."""
    chance = torch.Generator().manual_seed(seed)
    states = torch.randn(positions, 6, dtype=torch.float64, generator=chance)
    weight = torch.randn(11, 6, dtype=torch.float64, generator=chance)
    labels = torch.randint(0, 11, (positions,), generator=chance)

    def plain(states: Tensor, weight: Tensor) -> Tensor:
        return label_smoothed_loss(F.linear(states, weight), labels, smoothing)

    def chunked(states: Tensor, weight: Tensor) -> Tensor:
        return chunked_loss(states, weight, labels, smoothing, chunk)

    results = []
    for loss_of in (plain, chunked):
        inputs = [states.clone().requires_grad_(), weight.clone().requires_grad_()]
        loss = loss_of(*inputs)
        (loss * 3).backward()
        results.append([loss.detach(), *(each.grad for each in inputs)])
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"pre_norm": True}, {"positions": "learned"}])
@pytest.mark.parametrize("batch", [some_batch(), LARGE])
def test_the_fast_loss_is_the_readable_one(changes: dict[str, Any], batch: Batch):
    model = make(**changes).double()
    fast, slow = FastLoss(model), SmoothedLoss(model)
    torch.testing.assert_close(fast(*batch), slow(*batch), rtol=1e-12, atol=0)
    wanted = gradients(model, slow(*batch))
    torch.testing.assert_close(gradients(model, fast(*batch)), wanted)
    with torch.no_grad():
        torch.testing.assert_close(fast(*batch), slow(*batch), rtol=1e-12, atol=0)
    assert LARGE.target[:, 1:].numel() > CHUNK


def test_without_a_label_there_is_a_gradient_of_zero_for_every_weight() -> None:
    """As in a process that gets no sentence of a batch."""
    model = make()
    loss = FastLoss(model)(*collate_share([]))
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(model, loss))


@pytest.mark.parametrize("batch", [some_batch(), LARGE])
def test_in_16_bits_the_loss_is_close(batch: Batch) -> None:
    """And its gradients are for weights of 32 bits."""
    model = make()
    half, whole = FastLoss(model, precision="bf16")(*batch), SmoothedLoss(model)(*batch)
    assert half.item() != whole.item()
    assert half.item() == pytest.approx(whole.item(), rel=0.01)
    for one, other in zip(gradients(model, half), gradients(model, whole)):
        assert one.dtype == torch.float32
        assert F.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.98


@pytest.mark.parametrize("precision, fused", [("fp32", True), ("bf16", False)])
def test_attention_is_fused_where_that_is_fast(precision: Any, fused: bool) -> None:
    """On a CPU not in 16 bits; on a GPU never by cuDNN, which prepares for each length."""
    model = make(d_v=6)
    use_fused(model)
    loss = FastLoss(model, precision=precision)
    allowed = []
    loss.model.encoder.register_forward_hook(
        lambda *_: allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    with profile() as seen:
        loss(*some_batch()).backward()
    assert any("flash" in event.key for event in seen.key_averages()) == fused
    assert allowed == [False] and torch.backends.cuda.cudnn_sdp_enabled()


def test_16_bits_are_for_gpus_that_have_units_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert best_precision("cpu") == best_precision(torch.device("cpu")) == "fp32"
    monkeypatch.setattr(  # a V100 says yes, unless emulation is ruled out
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation
    )
    assert best_precision("cuda") == "fp32"
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: True
    )
    assert best_precision("cuda") == "bf16"


# --- Compilation ---


def programs() -> int:
    """How many programs Dynamo has made, none of them broken in two."""
    from torch._dynamo.utils import counters

    assert not counters["graph_break"]
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="needs g++")
def test_few_programs_compute_the_same_for_batches_of_all_sizes() -> None:
    """Two for training, two more for a single sentence, as many for validation."""
    torch._dynamo.reset()
    model, plain = make(), make()
    compile_layers(model)
    before = programs()
    sizes = [(6, 9, 7), (4, 4, 4), (2, 8, 2), (13, 2, 5), (1, 5, 6), (1, 4, 4)]
    for is_training in (True, False):
        model.train(is_training)
        for size in sizes:
            batch = some_batch(*size)
            with torch.set_grad_enabled(is_training):
                loss, wanted = FastLoss(model)(*batch), SmoothedLoss(plain)(*batch)
            torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-4)
            if is_training:
                for one, other in zip(gradients(model, loss), gradients(plain, wanted)):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert 0 < programs() - before <= 8


def test_what_cannot_be_compiled_is_said_before_any_work() -> None:
    def broken(*inputs: Any) -> Any:
        raise RuntimeError("no compiler here\nand many lines more")

    model = make()
    with pytest.raises(OSError, match="no compiler here") as caught:
        compile_layers(model, backend=broken)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    SmoothedLoss(model)(*some_batch())  # is as before


# --- Before a run ---


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_layers_keep_is_about_what_is_estimated(precision: Any) -> None:
    """Counted by autograd's own hooks; on a CPU, dropout keeps four bytes for a GPU's one."""
    config = TransformerConfig(50, layers=3, d_model=64, d_ff=160, heads=4)
    model = Transformer(config)
    use_fused(model)
    weights = {w.untyped_storage().data_ptr() for w in model.parameters()}
    weight_sizes = {w.numel() for w in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_cast_weight = tensor.dtype == torch.bfloat16 and tensor.dim() == 2
        if is_cast_weight and tensor.numel() in weight_sizes:
            return tensor
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    source, target = torch.full((16, 20), 5), torch.full((16, 17), 5)
    is_half = precision == "bf16"
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=is_half),
        saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        states = model.decode(target, model.encode(source), source)
    assert states.requires_grad  # and all of its graph is alive
    estimated = activations(config, 16, 20, 17, precision)
    assert 0.8 < estimated / sum(kept.values()) < 1.2


def test_an_estimate_is_that_of_the_batches_of_the_run() -> None:
    config = preset("tiny", vocabulary_size=300)
    lengths = np.random.default_rng(0).integers(3, 20, (300, 2))
    training = TrainingConfig(steps=7, max_tokens=200, grad_accum_steps=2)
    found = estimate(config, training, lengths)
    shapes = [
        (len(rows), *lengths[rows].max(axis=0).tolist())
        for rows in plan_batches(lengths, 200, seed=0, epoch=0)
    ]
    of_an_epoch = sum(rows * sum(flops(config, s, t).values()) for rows, s, t in shapes)
    assert found.flops == pytest.approx(7 * 2 * of_an_epoch / len(shapes))
    assert found.parameters == sum(w.numel() for w in Transformer(config).parameters())
    assert found.memory_bytes > 16 * found.parameters  # weight, gradient, Adam's two
    assert found.hours(1e12) == found.flops / (1e12 * found.usual_mfu) / 3600
    assert found.hours(1e12, gpus=2) == found.hours(1e12) / 2

    several = estimate(config, training, lengths, processes=4)
    assert several.flops == found.flops and several.memory_bytes < found.memory_bytes
    stored = estimate(config, training, lengths.astype(np.int32))
    assert stored == found


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_plan(name: str) -> None:
    """Of the paper's corpus, about: 28 tokens a sentence. The models of Table 2 fit a GPU."""
    lengths = np.full((10_000, 2), 28, np.int32)
    found = estimate(preset(name), recipe(name), lengths, "bf16")
    assert found.parameters < found.flops < 1e20
    assert 16 * found.parameters < found.memory_bytes < 40 * 2**30
    assert 0 < found.hours(989e12, gpus=8) <= found.hours(989e12) < 100


def test_the_papers_models_take_what_the_last_chapter_says() -> None:
    lengths = np.full((892, 2), 28)
    base = estimate(preset("base"), recipe("base"), lengths, "bf16")
    big = estimate(preset("big"), recipe("big"), lengths, "bf16")
    assert [base.flops, big.flops] == pytest.approx([9.5e17, 9.7e18], rel=0.006)
    # More GPUs do not shorten the launches
    assert base.hours(989e12, gpus=8) == base.launch_hours
    assert base.launch_hours == pytest.approx(1.72, abs=0.01)
