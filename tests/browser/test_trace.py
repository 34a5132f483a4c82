"""What the engine keeps of a translation is what the package's modules compute, part by part."""

import json

import numpy as np
import pytest
import torch
from package_values import inputs_and_outputs

from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import Residual
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.toolkit.synchronous_grammar import grammar
from tools.examples import EXAMPLES
from tools.recordings import model_of_the_page
from tools.web_model import BACK, SHOWN, pack_folder

SIDES = {
    SHOWN: 0,
    BACK: 1,
}  # each model of the pages -> the side of a pair that it reads
COUNT = 10  # sentences for each
CLOSE = {"rtol": 0, "atol": 1e-3}

# A translation with its trace, as text: each vector a list of numbers
TRACE = """(text) => {
    const source = [...model.tokenizer.encode(text), 2], trace = {}, tokens = [];
    for (const { token } of tools.write(model, source, { trace })) tokens.push(token);
    const plain = (_, value) => (value instanceof Float32Array ? Array.from(value) : value);
    return JSON.stringify({ source, tokens, trace }, plain);
}"""

# The page's own task, through the messages of a worker
INSIDE = """(text) => new Promise((resolve) => {
    const plain = (_, value) => (value instanceof Float32Array ? Array.from(value) : value);
    const give = (content) => content.done && resolve(JSON.stringify(content, plain));
    const port = { postMessage: give };
    tools.serve(port);
    port.onmessage({ data: bookFigures.model });
    port.onmessage({ data: { number: 1, task: "inside", text, most: 100, options: {} } });
})"""


@pytest.fixture(scope="module", params=SIDES, ids=lambda folder: folder.name)
def folder(request):
    """A model of the pages."""
    return request.param


@pytest.fixture(scope="module")
def sentences(folder):
    """Those that the first page offers in this direction, and some of the grammar."""
    texts = [example.text for example in EXAMPLES[folder.name]]
    pairs = grammar(COUNT - len(texts), seed=3)
    return texts + [pair[SIDES[folder]] for pair in pairs]


@pytest.fixture(scope="module")
def tab(site, browser, folder):
    """A tab with the engine and a model."""
    tab = browser.new_page()
    tab.add_script_tag(content="var bookFigures = {};")
    tab.add_script_tag(path=site / "_static" / "engine.js")
    tab.add_script_tag(content=f"bookFigures.model = {pack_folder(folder)};")
    tab.evaluate("() => void (window.tools = bookFigures.engine())")
    tab.evaluate("() => void (window.model = tools.readModel(bookFigures.model))")
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def packed(folder):
    """The model and its tokenizer, rounded as the page has them."""
    return model_of_the_page(folder)


def near(found, expected):
    """Compare a trace's vectors (T, ...) with a tensor of the same shape."""
    found = np.array(found)
    assert found.shape == tuple(expected.shape)
    np.testing.assert_allclose(found, expected.numpy(), **CLOSE)


def check_attention(kept, name, heads, seen):
    """Queries, keys and values, scores and weights in each head, and what the heads found."""
    for what, part in {"queries": "query", "keys": "key", "values": "value"}.items():
        near(kept[what], seen[f"{name}.{part}"][1])
    near(kept["joined"], seen[f"{name}.output"][0])
    queries = seen[f"{name}.query"][1].unflatten(-1, (heads, -1)).transpose(0, 1)
    keys = seen[f"{name}.key"][1].unflatten(-1, (heads, -1)).transpose(0, 1)
    scores = queries @ keys.transpose(-2, -1) / keys.size(-1) ** 0.5
    for t, rows in enumerate(kept["scores"]):
        for h, row in enumerate(rows):
            # A decoder has no scores for what the mask hides
            visible = scores[h, t, : len(row)]
            near(row, visible)
            near(kept["weights"][t][h], visible.softmax(dim=-1))


@pytest.mark.parametrize("number", range(COUNT))
def test_every_number_is_that_of_the_package(tab, packed, sentences, number):
    model, tokenizer = packed
    text = sentences[number]
    answer = json.loads(tab.evaluate(TRACE, text))
    assert answer["source"] == [*tokenizer.encode(text), EOS]
    source, target = answer["source"], [BOS, *answer["tokens"][:-1]]
    seen = inputs_and_outputs(model, source, target)
    trace = answer["trace"]
    with torch.no_grad():
        for side, tokens in {"encoder": source, "decoder": target}.items():
            words = model.embedding(torch.tensor([tokens]))
            near(trace[side]["words"], words[0])
            near(trace[side]["embedded"], model.positions(words)[0])
    names = {"encoder", "decoder"}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            check_attention(trace[name], name, module.heads, seen)
            width = len(trace[name]["scores"][-1][0])
            causal = name.startswith("decoder") and "self" in name
            assert width == len(target) if causal else len(source)
        elif isinstance(module, FeedForward):
            near(trace[name]["hidden"], seen[f"{name}.linear2"][0])
        elif isinstance(module, Residual):
            near(trace[name]["after"], seen[name][1])
            near(trace[name]["added"], seen[sublayer_of(name)][1])
        else:
            continue
        names.add(name)
    assert {*trace} == names


def sublayer_of(residual):
    """The name of the module whose output a residual adds."""
    layer, _, number = residual.rpartition(".residuals.")
    if layer.startswith("encoder"):
        return f"{layer}.{['self_attention', 'feed_forward'][int(number)]}"
    return (
        f"{layer}.{['self_attention', 'cross_attention', 'feed_forward'][int(number)]}"
    )


def test_what_it_would_say_if_it_stopped_below_a_layer(tab, packed, sentences):
    """The stream after each decoder layer, compared with the table of embeddings."""
    model, _ = packed
    answer = json.loads(tab.evaluate(INSIDE, sentences[0]))
    trace = answer["trace"]
    layers = range(model.config.layers)
    after = [trace[f"decoder.layers.{n}.residuals.2"]["after"] for n in layers]
    streams = [trace["decoder"]["embedded"], *after]
    assert len(answer["lens"]) == len(streams)
    for nearest, stream in zip(answer["lens"], streams, strict=True):
        with torch.no_grad():
            logits = model.embedding.logits(torch.tensor(stream))
        logits[:, :2] = -torch.inf
        shares = logits.softmax(dim=-1).topk(5).values
        near([[share for _, share in words] for words in nearest], shares)
    last = [words[0][0] for words in answer["lens"][-1]]
    assert last == answer["written"]
    assert answer["texts"][-1].startswith(" ".join(last[:2]))
