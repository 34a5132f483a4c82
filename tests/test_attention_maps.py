"""Maps are those of the model, which stays as it is, and a silenced head comes back."""

import pytest
import torch

from annotated_transformer.attention_maps import (
    attention_maps,
    attention_modules,
    attention_weights,
    keeping_weights,
    token_names,
    without_head,
)
from annotated_transformer.masks import BOS, EOS, PAD, target_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention, split_heads
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

PAIRS = grammar(200, seed=0)
TOKENIZER = Tokenizer.train(
    PAIRS, vocabulary_size=330
)  # so small that words fall into parts
SOURCE, TARGET = torch.tensor([[5, 6, 7, 8, EOS]]), torch.tensor([[BOS, 9, 10, 11]])
HEADS = [
    (kind, layer, head)
    for kind in ("encoder", "decoder", "cross")
    for layer, head in [(0, 2), (1, 0)]
]


@pytest.fixture
def model() -> Transformer:
    """A model whose d_v is not d_model / heads, with dropout, in training mode."""
    torch.manual_seed(0)
    shape = TransformerConfig(
        40, layers=2, d_model=24, d_ff=32, heads=3, d_v=5, dropout=0.3
    )
    return Transformer(shape).double()


def test_maps_have_their_shapes_and_sum_to_1(model: Transformer) -> None:
    maps = attention_maps(model, SOURCE, TARGET)
    assert [tuple(kind.shape) for kind in maps] == [
        (2, 3, 5, 5),
        (2, 3, 4, 4),
        (2, 3, 4, 5),
    ]
    for kind in maps:
        torch.testing.assert_close(
            kind.sum(dim=-1), torch.ones(kind.shape[:-1]).double()
        )
    assert not maps.decoder.triu(diagonal=1).any()


def test_maps_are_those_of_each_layer_in_evaluation_mode(model: Transformer) -> None:
    maps = attention_maps(model, SOURCE, TARGET)
    first = model.encoder.layers[0].self_attention
    with evaluating(model):
        x = model.embed(SOURCE)
        torch.testing.assert_close(maps.encoder[:1], attention_weights(first, x, x, x))
    assert torch.equal(attention_maps(model, SOURCE, TARGET).cross, maps.cross)


def test_the_weights_are_those_that_the_module_blends_with(model: Transformer) -> None:
    """With a mask, given by place or by name, and in a batch."""
    attention = model.decoder.layers[0].self_attention
    x = torch.randn(2, 4, 24).double()
    mask = target_mask(torch.tensor([[BOS, 9, 10, 11], [BOS, 9, PAD, PAD]]))
    with evaluating(model), keeping_weights(attention) as weights:
        output = attention(x, x, x, mask)
        blended = weights[attention] @ split_heads(attention.value(x), 3)
        by_hand = attention.output(blended.transpose(1, 2).flatten(2))
        torch.testing.assert_close(by_hand, output)
        by_place = weights[attention]
        attention(x, x, x, mask=mask)
        assert torch.equal(weights[attention], by_place)


def test_looking_leaves_no_trace(model: Transformer) -> None:
    attention_maps(model, SOURCE, TARGET)
    with pytest.raises(KeyError), keeping_weights(model) as weights:
        model(SOURCE, TARGET)
        raise KeyError
    modules = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert {*weights} == {*modules} and model.training
    assert not any(module._forward_hooks for module in modules)
    assert not any(kept.requires_grad for kept in weights.values())


@pytest.mark.parametrize("kind, layer, head", HEADS)
def test_without_a_head_its_term_is_missing(
    model: Transformer, kind, layer, head
) -> None:
    attention = attention_modules(model)[kind][layer]
    x = torch.randn(1, 6, 24).double()
    before = attention.output.weight.detach().clone()
    with evaluating(model):
        whole = attention(x, x, x)
        value = split_heads(attention.value(x), 3)[:, head]
        weights = attention_weights(attention, x, x, x)[:, head]
        term = weights @ value @ before[:, 5 * head : 5 * head + 5].T
        with without_head(model, kind, layer, head):
            torch.testing.assert_close(attention(x, x, x), whole - term)
    assert torch.equal(attention.output.weight, before)


def test_a_head_comes_back_after_an_error(model: Transformer) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError), without_head(model, "cross", 1, 1):
        raise KeyError
    assert all(
        torch.equal(before[name], value) for name, value in model.state_dict().items()
    )


def test_names_of_tokens() -> None:
    ids = [BOS, *TOKENIZER.encode("Der Hund"), EOS, *TOKENIZER.encode(" ")]
    names = token_names(TOKENIZER, ids)
    assert names[0] == "<s>" and names[-2:] == ["</s>", "·"]
    assert "".join(names[1:-2]).replace("·", "") == "DerHund"
