"""What the chapters of the model, 03 to 10, cannot test about themselves."""

import json
import math
from dataclasses import asdict, replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from annotated_transformer.attention import attention
from annotated_transformer.decoding import (
    fused_attention,
    fused_layer_norm,
    use_fused,
)
from annotated_transformer.layers import Residual
from annotated_transformer.masks import (
    BOS,
    EOS,
    PAD,
    causal_mask,
    padding_mask,
    target_mask,
)
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import (
    LearnedPositions,
    SinusoidalPositions,
)
from annotated_transformer.transformer import (
    PRESETS,
    Transformer,
    TransformerConfig,
    evaluating,
    greedy_decode,
    parameter_count,
    preset,
)

any_time = settings(deadline=None)  # the first call of a kernel can be slow
few = settings(deadline=None, max_examples=15)

TOY = TransformerConfig(
    vocabulary_size=13,
    layers=2,
    d_model=12,
    d_ff=20,
    heads=3,
    dropout=0.0,
    max_length=80,
)
VARIANTS = {
    "paper": TOY,
    "pre-norm": replace(TOY, pre_norm=True),
    "learned positions": replace(TOY, positions="learned"),
    "free widths": replace(TOY, d_k=5, d_v=7),
    "attention biases": replace(TOY, attention_bias=True),
}
each_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())


def make(config: TransformerConfig, dtype: torch.dtype = torch.float64) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config).to(dtype)


def padded(rows: list[list[int]], extra: int = 0) -> Tensor:
    width = max(map(len, rows)) + extra
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


words = st.integers(min_value=4, max_value=12)
sentences = st.lists(words, min_size=1, max_size=7)
batches = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=4)


def tensors(
    batch: list[tuple[list[int], list[int]]], extra: int = 0
) -> tuple[Tensor, Tensor]:
    source = padded([[*row, EOS] for row, _ in batch], extra)
    target = padded([[BOS, *row] for _, row in batch], extra)
    return source, target


# --- Configuration ---


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"heads": 7}, "heads=7 does not divide d_model=512"),
        ({"layers": 0}, "layers=0"),
        ({"d_ff": 2048.0}, "d_ff=2048.0"),
        ({"vocabulary_size": 3}, "vocabulary_size"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"positions": "none"}, "sinusoidal"),
        ({"d_model": 15, "heads": 5}, "d_model=15"),
    ],
)
def test_a_wrong_configuration_fails_when_made_and_says_what_would_do(wrong, says):
    with pytest.raises(ValueError) as error:
        TransformerConfig(**{"vocabulary_size": 100, **wrong})
    assert says in str(error.value)


def test_a_configuration_survives_json():
    assert TransformerConfig(**json.loads(json.dumps(asdict(TOY)))) == TOY


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_when_small(name):
    small = preset(name, vocabulary_size=20, max_length=8, layers=1, d_ff=8)
    model = make(small, torch.float32)
    logits = model(torch.tensor([[5, EOS]]), torch.tensor([[BOS, 6, 7]]))
    assert logits.shape == (1, 3, 20)
    assert parameter_count(small) == parameter_count(model)


@pytest.mark.parametrize(
    "name, changes, heads, d_k, d_v, millions",
    [
        ("base", {}, 8, 64, 64, 63.05),
        ("big", {}, 16, 64, 64, 214.17),
        ("base", {"heads": 32}, 32, 16, 16, 63.05),
        ("base", {"d_k": 16}, 8, 16, 64, 55.97),
        ("base", {"d_model": 1024}, 8, 128, 128, 163.82),
    ],
)
def test_heads_are_as_wide_as_in_table_3_and_parameters_as_many(
    name, changes, heads, d_k, d_v, millions
):
    assert round(parameter_count(preset(name, **changes)) / 1e6, 2) == millions
    with torch.device("meta"):
        model = Transformer(preset(name, layers=1, **changes))
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert len(attentions) == 3
    for module in attentions:
        assert module.heads == heads
        assert module.query.out_features == module.key.out_features == heads * d_k
        assert module.value.out_features == module.output.in_features == heads * d_v


# --- Masks ---


@any_time
@given(batches)
def test_padding_mask_opens_exactly_the_words(batch):
    source, _ = tensors(batch)
    mask = padding_mask(source)
    assert mask.dtype == torch.bool
    assert mask.shape == (len(batch), 1, 1, source.size(1))
    assert mask.sum(dim=-1).flatten().tolist() == [len(row) + 1 for row, _ in batch]


@any_time
@given(batches, st.integers(0, 3))
def test_target_mask_shows_neither_padding_nor_future(batch, extra):
    _, target = tensors(batch, extra)
    mask = target_mask(target)
    length = target.size(1)
    assert mask.shape == (len(batch), 1, length, length)
    for b, t, s in product(range(len(batch)), range(length), range(length)):
        assert mask[b, 0, t, s] == (s <= t and target[b, s] != PAD)


# --- Attention and positions ---


def test_attention_dropout_acts_in_training_only():
    torch.manual_seed(0)
    module = MultiHeadAttention(12, 3, dropout=0.5)
    x = torch.randn(1, 6, 12)
    assert not torch.allclose(module(x, x, x), module(x, x, x))
    module.eval()
    torch.testing.assert_close(module(x, x, x), module(x, x, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.long])
def test_a_mask_that_is_not_boolean_is_refused(dtype):
    module, x = MultiHeadAttention(12, 3), torch.randn(1, 6, 12)
    with pytest.raises(RuntimeError, match="boolean"):
        module(x, x, x, causal_mask(6).to(dtype))
    use_fused(module)
    with pytest.raises(TypeError, match=f"the mask is {dtype}: make it boolean"):
        module(x, x, x, causal_mask(6).to(dtype))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_fused_attention_is_attention_also_where_nothing_may_be_seen(rate):
    """Outputs and gradients; dropout acts in training only, in both."""
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, n, 4, requires_grad=True) for n in (5, 7, 7)]
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[:, :, 2] = False
    dropout = nn.Dropout(rate)
    for function in (attention, fused_attention):
        one, other = (function(*inputs, mask, dropout)[0] for _ in range(2))
        assert torch.equal(one, other) == (rate == 0)
    dropout.eval()
    results = []
    for function in (attention, fused_attention):
        output, _ = function(*inputs, mask, dropout)
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
        assert not output[:, :, 2].any()
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs)


@each_variant
def test_a_model_with_fused_functions_is_the_same_model(config):
    plain, fused = make(config).eval(), make(config).eval()
    use_fused(fused)
    assert fused.encoder.layers[0].residuals[0].norm.normalize is fused_layer_norm
    batch = tensors([([5, 6, 7], [8, 9]), ([10], [11])])
    torch.testing.assert_close(fused(*batch), plain(*batch))


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_positions_step_by_step_equal_all_at_once_and_end_with_a_clear_error(kind):
    positions = kind(d_model=6, max_length=5)
    x = torch.randn(2, 5, 6)
    steps = [positions(x[:, t : t + 1], offset=t) for t in range(5)]
    assert torch.equal(torch.cat(steps, dim=1), positions(x))
    with pytest.raises(ValueError, match="6 positions are needed, the model has 5"):
        positions(x[:, :2], offset=4)


def test_positions_are_as_exact_as_the_type_of_the_model():
    table = Transformer(TOY).positions.table
    for p in range(TOY.max_length):
        for i in range(TOY.d_model):
            angle = p / 10_000 ** (i // 2 * 2 / TOY.d_model)
            exact = math.cos(angle) if i % 2 else math.sin(angle)
            assert abs(table[p, i].item() - exact) < 1e-7


# --- The whole model against the paper's formulas, in loops ---


class Reference:
    """The model by its formulas: one sentence, position and head at a time, no padding, no mask.

    Takes its parameters from a model and nothing else from the package.
    """

    def __init__(self, model: Transformer) -> None:
        self.p, self.c = dict(model.named_parameters()), model.config

    def linear(self, name: str, x: Tensor, rows: slice = slice(None)) -> Tensor:
        y = self.p[f"{name}.weight"][rows] @ x
        bias = self.p.get(f"{name}.bias")
        return y if bias is None else y + bias[rows]

    def attention(
        self, name: str, asking: list[Tensor], answering: list[Tensor], past: bool
    ):
        c = self.c
        d_k, d_v = c.d_k or c.d_model // c.heads, c.d_v or c.d_model // c.heads
        for t, x in enumerate(asking):
            seen, heads = answering[: t + 1] if past else answering, []
            for h in range(c.heads):
                width = slice(h * d_k, h * d_k + d_k)
                depth = slice(h * d_v, h * d_v + d_v)
                query = self.linear(f"{name}.query", x, width)
                keys = [self.linear(f"{name}.key", y, width) for y in seen]
                values = [self.linear(f"{name}.value", y, depth) for y in seen]
                shares = [(query @ key / math.sqrt(d_k)).exp() for key in keys]
                heads.append(sum(s * v for s, v in zip(shares, values)) / sum(shares))
            yield self.linear(f"{name}.output", torch.cat(heads))

    def network(self, name: str, states: list[Tensor]):
        for x in states:
            hidden = self.linear(f"{name}.linear1", x).clamp(min=0)
            yield self.linear(f"{name}.linear2", hidden)

    def norm(self, name: str, x: Tensor) -> Tensor:
        centered = x - sum(x) / len(x)
        size = (sum(centered**2) / len(x) + 1e-6).sqrt()
        return centered / size * self.p[f"{name}.gain"] + self.p[f"{name}.bias"]

    def residual(self, name: str, states: list[Tensor], sublayer) -> list[Tensor]:
        if self.c.pre_norm:
            updates = sublayer([self.norm(name, x) for x in states])
            return [x + update for x, update in zip(states, updates)]
        sums = [x + update for x, update in zip(states, sublayer(states))]
        return [self.norm(name, x) for x in sums]

    def embed(self, tokens: list[int]) -> list[Tensor]:
        d, states = self.c.d_model, []
        for p, token in enumerate(tokens):
            angles = [p / 10_000 ** (2 * i / d) for i in range(d // 2)]
            waves = [f(angle) for angle in angles for f in (math.sin, math.cos)]
            place = torch.tensor(waves, dtype=torch.float64)
            if self.c.positions == "learned":
                place = self.p["positions.table"][p]
            states.append(self.p["embedding.weight"][token] * math.sqrt(d) + place)
        return states

    def layer(
        self, at: str, x: list[Tensor], memory: list[Tensor] | None
    ) -> list[Tensor]:
        past = memory is not None
        steps = [lambda y: self.attention(f"{at}.self_attention", y, y, past)]
        if memory is not None:
            steps.append(
                lambda y: self.attention(f"{at}.cross_attention", y, memory, False)
            )
        steps.append(lambda y: self.network(f"{at}.feed_forward", y))
        for i, step in enumerate(steps):
            x = self.residual(f"{at}.residuals.{i}.norm", x, step)
        return x

    def stack(self, name: str, x: list[Tensor], memory: list[Tensor] | None = None):
        for n in range(self.c.layers):
            x = self.layer(f"{name}.layers.{n}", x, memory)
        return [self.norm(f"{name}.norm", y) for y in x] if self.c.pre_norm else x

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        memory = self.stack("encoder", self.embed(source))
        states = self.stack("decoder", self.embed(target), memory)
        return torch.stack(states) @ self.p["embedding.weight"].T


configurations = st.builds(
    lambda heads, width, **rest: TransformerConfig(
        13, d_model=2 * heads * width, heads=heads, **rest
    ),
    heads=st.integers(1, 3),
    width=st.integers(1, 2),
    layers=st.integers(1, 2),
    d_ff=st.integers(1, 5),
    d_k=st.none() | st.integers(1, 4),
    d_v=st.none() | st.integers(1, 4),
    attention_bias=st.booleans(),
    pre_norm=st.booleans(),
    positions=st.sampled_from(["sinusoidal", "learned"]),
    dropout=st.just(0.0),
    max_length=st.just(12),
)
short = st.lists(words, min_size=1, max_size=3)


@few
@given(configurations, st.lists(st.tuples(short, short), min_size=1, max_size=2))
def test_logits_and_gradients_equal_those_of_the_formulas(config, batch):
    model = make(config)
    for parameter in model.parameters():  # so that no gain is 1 and no bias 0
        nn.init.normal_(parameter, std=0.7)
    found = model(*tensors(batch))
    ours, theirs = [], []
    for logits, (source, target) in zip(found, batch):
        ours.append(logits[: len(target) + 1])
        theirs.append(Reference(model).logits([*source, EOS], [BOS, *target]))
    ours, theirs = torch.cat(ours), torch.cat(theirs)
    torch.testing.assert_close(ours, theirs)
    slope = torch.randn_like(ours)
    gradients = [
        torch.autograd.grad(x, list(model.parameters()), slope) for x in (ours, theirs)
    ]
    for (name, _), one, other in zip(model.named_parameters(), *gradients):
        torch.testing.assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}")


# --- The whole model ---


@each_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_reach_every_parameter_in_every_precision(config, dtype):
    model = make(replace(config, dropout=0.1), dtype)
    source = padded([[5, 6, 7, EOS], [8, EOS]])
    target = padded([[BOS, 4, 5, EOS], [BOS, 9, EOS]])
    logits = model(source, target[:, :-1])
    assert logits.dtype == dtype
    F.cross_entropy(logits.mT, target[:, 1:], ignore_index=PAD).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@each_variant
@few
@given(batch=batches, more=st.integers(0, 5))
def test_padding_changes_no_logit(config, batch, more):
    model = make(config)
    source, target = tensors(batch)
    wider = model(*tensors(batch, more))
    torch.testing.assert_close(wider[:, : target.size(1)], model(source, target))
    for row, (one, other) in zip(wider, batch):  # alone, without any neighbor
        alone = model(*tensors([(one, other)]))
        torch.testing.assert_close(row[: alone.size(1)], alone[0])


@each_variant
@few
@given(target=sentences, data=st.data())
def test_no_logit_depends_on_a_later_word(config, target, data):
    model = make(config)
    source = torch.tensor([[5, 6, EOS]])
    at = data.draw(st.integers(0, len(target) - 1))
    other = [
        *target[:at],
        *data.draw(st.lists(words, min_size=len(target) - at, max_size=7)),
    ]
    first = model(source, torch.tensor([[BOS, *target]]))
    second = model(source, torch.tensor([[BOS, *other]]))
    torch.testing.assert_close(first[:, : at + 1], second[:, : at + 1])


def test_the_names_of_the_weights_are_those_of_published_files():
    names = ["embedding.weight"]
    for stack, kinds in (("encoder", ["self"]), ("decoder", ["self", "cross"])):
        at = f"{stack}.layers.0"
        for kind in kinds:
            maps = ("query", "key", "value", "output")
            names += [f"{at}.{kind}_attention.{part}.weight" for part in maps]
        for part in ("linear1", "linear2"):
            names += [f"{at}.feed_forward.{part}.{n}" for n in ("weight", "bias")]
        for i in range(len(kinds) + 1):
            names += [f"{at}.residuals.{i}.norm.{n}" for n in ("gain", "bias")]
    assert list(Transformer(replace(TOY, layers=1)).state_dict()) == names


def test_a_model_with_sinusoids_can_be_loaded_with_more_positions():
    longer = Transformer(replace(TOY, max_length=200))
    longer.load_state_dict(make(TOY).state_dict())


def test_dropout_of_the_configuration_is_all_there_is():
    config = replace(TOY, dropout=0.25, attention_dropout=0.5, relu_dropout=0.75)
    rates = [m.p for m in Transformer(config).modules() if isinstance(m, nn.Dropout)]
    layers = config.layers
    assert rates.count(0.25) == layers * 2 + layers * 3 + 1
    assert rates.count(0.5) == layers * 3
    assert rates.count(0.75) == layers * 2
    assert not any(m.p for m in Transformer(TOY).modules() if isinstance(m, nn.Dropout))


def test_dropout_acts_on_embedding_plus_position_and_on_each_sublayer_output():
    model = make(replace(TOY, dropout=0.5, d_model=60))
    dropped = (model.embed(torch.full((4, 40), 7)) == 0).double().mean()
    assert 0.45 < dropped < 0.55
    x = torch.full((1000,), 5.0)
    pre_norm = Residual(1000, dropout=0.5, pre_norm=True)
    assert set(pre_norm(x, torch.ones_like).tolist()) == {5.0, 7.0}
    assert set(pre_norm.eval()(x, torch.ones_like).tolist()) == {6.0}
    post_norm = Residual(1000, dropout=0.5)
    assert len(set(post_norm(x, torch.ones_like).tolist())) == 2
    assert set(post_norm.eval()(x, torch.ones_like).tolist()) == {0.0}


def test_layers_compile_one_by_one_without_breaks_and_once_for_all_sizes():
    torch._dynamo.reset()
    model, plain = make(TOY), make(TOY)
    counter = CompileCounter()
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.compile(dynamic=True, backend=counter, fullgraph=True)
    counts = []
    for length in (3, 4, 6, 9):
        row = list(range(4, 4 + length))
        source = padded([[*row, EOS], [8, EOS]])
        target = padded([[BOS, *row, 5], [BOS, 9]])
        torch.testing.assert_close(model(source, target), plain(source, target))
        counts.append(counter.frame_count)
    assert counts == [counts[0]] * 4
    assert counts[0] <= 2 * TOY.layers


# --- Greedy decoding ---


def test_evaluating_restores_the_mode_of_each_part_even_after_an_error():
    model = make(replace(TOY, dropout=0.5)).train()
    model.encoder.eval()  # frozen by somebody, for reasons of their own
    before = [module.training for module in model.modules()]
    assert any(before) and not all(before)
    with pytest.raises(RuntimeError), evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise RuntimeError
    assert [module.training for module in model.modules()] == before
    assert torch.is_grad_enabled()


@few
@given(st.lists(sentences, min_size=1, max_size=4), st.integers(1, 6))
def test_greedy_decoding_keeps_its_limit_and_ignores_its_neighbors(rows, extra):
    model = make(replace(TOY, dropout=0.3))
    source = padded([[*row, EOS] for row in rows], extra=2)
    written = greedy_decode(model, source, extra)
    for row, words in zip(rows, written):
        assert len(words) <= len(row) + 1 + extra
        assert not {PAD, BOS, EOS} & set(words)
        assert greedy_decode(model, torch.tensor([[*row, EOS]]), extra) == [words]


def test_greedy_decoding_without_an_end_stops_at_its_limit_or_at_the_last_position():
    model = make(replace(TOY, max_length=9))
    table = model.embedding.weight.data
    table[EOS], table[6] = 0, -table[5]  # 5 or 6 always scores above the end
    source = torch.tensor([[5, 6, EOS]])
    lengths = [len(greedy_decode(model, source, extra)[0]) for extra in (0, 2, 50)]
    assert lengths == [3, 5, 9]


def test_a_model_that_knows_the_answer_writes_it():
    torch.manual_seed(0)
    model = Transformer(replace(TOY, d_model=24, d_ff=48))
    source = padded([[5, 6, 7, EOS], [8, EOS]])
    target = padded([[BOS, 9, 10, 11, EOS], [BOS, 12, EOS]])
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(80):
        logits = model(source, target[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, target[:, 1:].flatten(), ignore_index=PAD)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert greedy_decode(model, source) == [[9, 10, 11], [12]]
