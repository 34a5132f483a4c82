"""Maps are those of the model, merging and scores are right, and a silenced head comes back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.attention_maps import (
    align,
    alignment_error_rate,
    attention_maps,
    attention_modules,
    keeping_weights,
    merge_tokens,
    token_names,
    without_head,
    word_of_token,
)
from annotated_transformer.data import words
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

PAIRS = grammar(200, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=330)  # so small that words fall into parts
SOURCE, TARGET = torch.tensor([[5, 6, 7, 8, EOS]]), torch.tensor([[BOS, 9, 10, 11]])
HEADS = [
    (kind, layer, head)
    for kind in ("encoder", "decoder", "cross")
    for layer, head in [(0, 2), (1, 0)]
]
LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=9)


@pytest.fixture
def model() -> Transformer:
    """A model whose d_v is not d_model / heads, with dropout, in training mode."""
    torch.manual_seed(0)
    shape = TransformerConfig(40, layers=2, d_model=24, d_ff=32, heads=3, d_v=5, dropout=0.3)
    return Transformer(shape).double()


def test_maps_have_their_shapes_and_sum_to_1(model: Transformer) -> None:
    maps = attention_maps(model, SOURCE, TARGET)
    assert [tuple(kind.shape) for kind in maps] == [(2, 3, 5, 5), (2, 3, 4, 4), (2, 3, 4, 5)]
    for kind in maps:
        torch.testing.assert_close(kind.sum(dim=-1), torch.ones(kind.shape[:-1]).double())
    assert not maps.decoder.triu(diagonal=1).any()


def test_maps_are_those_of_each_layer_in_evaluation_mode(model: Transformer) -> None:
    maps = attention_maps(model, SOURCE, TARGET)
    first = model.encoder.layers[0].self_attention
    with evaluating(model), keeping_weights(model):
        x = model.embed(SOURCE)
        first(x, x, x)
        torch.testing.assert_close(maps.encoder[:1], first.weights)
    assert torch.equal(attention_maps(model, SOURCE, TARGET).cross, maps.cross)


def test_keeping_weights_leaves_no_trace(model: Transformer) -> None:
    first = model.encoder.layers[0].self_attention
    first.keep_weights = True  # somebody else's wish
    attention_maps(model, SOURCE, TARGET)
    modules = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert [m.keep_weights for m in modules] == [True, *[False] * (len(modules) - 1)]
    assert all(m.weights is None for m in modules) and model.training
    with pytest.raises(KeyError), keeping_weights(model):
        raise KeyError
    assert sum(m.keep_weights for m in modules) == 1


def test_maps_of_more_than_one_sentence_are_refused(model: Transformer) -> None:
    two = torch.tensor([[5, EOS], [6, PAD]])
    with pytest.raises(ValueError, match="one sentence at a time, not 2 and 1"):
        attention_maps(model, two, TARGET)


@pytest.mark.parametrize("kind, layer, head", HEADS)
def test_without_a_head_its_term_is_missing(model: Transformer, kind, layer, head) -> None:
    attention = attention_modules(model)[kind][layer]
    x = torch.randn(1, 6, 24).double()
    before = attention.output.weight.detach().clone()
    with torch.no_grad():
        attention.keep_weights = True
        whole = attention(x, x, x)
        value = attention.project(x, x)[1][:, head]
        term = attention.weights[:, head] @ value @ before[:, 5 * head : 5 * head + 5].T
        with without_head(model, kind, layer, head):
            torch.testing.assert_close(attention(x, x, x), whole - term)
    assert torch.equal(attention.output.weight, before)


def test_a_head_comes_back_after_an_error(model: Transformer) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError), without_head(model, "cross", 1, 1):
        raise KeyError
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "which", [("memory", 0, 0), ("cross", 2, 0), ("cross", 0, 3), ("cross", -1, 0)]
)
def test_a_head_that_is_not_there_is_named(model: Transformer, which) -> None:
    kind, layer, head = which
    message = f"no head {head} in layer {layer} of '{kind}'.* 2 x 3"
    with pytest.raises(ValueError, match=message), without_head(model, kind, layer, head):
        pass


def test_each_token_knows_its_word() -> None:
    for pair in PAIRS[:60]:
        for text in pair[:2]:
            ids = TOKENIZER.encode(text)
            place = word_of_token(TOKENIZER, text)
            joined = [
                "".join(TOKENIZER.decode([i]) for i, w in zip(ids, place) if w == n)
                for n in range(max(place) + 1)
            ]
            if "�" not in "".join(joined):  # a letter of two bytes, cut in two
                assert [word.strip() for word in joined] == words(text)
    assert len(word_of_token(TOKENIZER, "Ünï  códé 😀! ")) == len(
        TOKENIZER.encode("Ünï  códé 😀! ")
    )


def test_names_of_tokens() -> None:
    ids = [BOS, *TOKENIZER.encode("Der Hund"), EOS, *TOKENIZER.encode(" ")]
    names = token_names(TOKENIZER, ids)
    assert names[0] == "<s>" and names[-2:] == ["</s>", "·"]
    assert "".join(names[1:-2]).replace("·", "") == "DerHund"


def test_merged_rows_still_sum_to_1() -> None:
    weights = torch.rand(2, 3, 6, 5).double().softmax(dim=-1)
    merged = merge_tokens(weights, [0, 0, 1, 2, 2, 2], [0, 1, 1, 1, 2])
    assert merged.shape == (2, 3, 3, 3)
    torch.testing.assert_close(merged.sum(dim=-1), torch.ones(2, 3, 3).double())
    torch.testing.assert_close(merged[..., 0, 1], weights[..., :2, 1:4].sum(-1).mean(-1))


def test_a_word_without_a_token_is_no_division_by_zero() -> None:
    text = "the dog's"  # to the tokenizer, 's is one token; to words(), two words
    place = word_of_token(TOKENIZER, text)
    merged = merge_tokens(torch.rand(len(place), len(place)).softmax(dim=-1), place, place)
    assert merged.shape[0] == len(words(text)) and not merged.isnan().any()


@given(st.lists(st.tuples(LINKS, LINKS), min_size=1, max_size=4))
def test_error_rate_is_one_minus_f(sentences) -> None:
    found, true = zip(*sentences)
    hits = sum(len(a & s) for a, s in sentences)
    size = sum(len(a) + len(s) for a, s in sentences)
    rate = alignment_error_rate(found, true)
    assert 0 <= rate <= 1 and rate == pytest.approx(1 - 2 * hits / size if size else 1)


def test_error_rate_is_0_for_gold() -> None:
    gold = [pair.alignment for pair in PAIRS]
    assert alignment_error_rate(gold, gold) == 0
    assert alignment_error_rate([{(0, 0), (1, 1)}], [{(0, 0)}]) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="1 alignments for 2"):
        alignment_error_rate([set()], [set(), set()])


def test_align_takes_the_largest_weight_and_leaves_out_what_is_no_word() -> None:
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    assert align(weights, source_words=2) == {(1, 0), (0, 2)}
