"""The engine in JavaScript computes what PyTorch computes with the same rounded weights."""

import base64
import math
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import torch

from annotated_transformer.attention_maps import attention_maps, without_head
from annotated_transformer.data import MissingData, multi30k
from annotated_transformer.decoding import beam_search, filter_logits
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.model_io import load_model, save_model
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, greedy_decode
from tools.web_model import SHOWN, pack_folder, rounded_weights

SETUP = """() => {
    window.tools = bookFigures.engine();
    window.model = tools.readModel(bookFigures.model);
    // All logits of a target, and the attention of each kind as [layer][head][query][key]
    window.read = (source, target, options) => {
        let state = tools.begin(model, source, options);
        const maps = { encoder: state.maps.encoder, decoder: [], cross: [] }, logits = [];
        for (const token of target) {
            const next = tools.step(model, state, token);
            logits.push(next.logits);
            state = next.state;
            for (const kind of ["decoder", "cross"])
                next.maps[kind].forEach((heads, n) => heads.forEach((rows, h) =>
                    ((maps[kind][n] ??= [])[h] ??= []).push(rows.at(-1))));
        }
        return { logits, maps };
    };
    // Large arrays travel as text
    window.furthest = (rows, text) => {
        const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const wanted = new Float32Array(bytes.buffer);
        const at = (t, i, row) => wanted[t * row.length + i];
        const apart = (row, t) => row.map((value, i) => Math.abs(value - at(t, i, row)));
        return Math.max(...rows.map((row, t) => apart(row, t).reduce((a, b) => Math.max(a, b))));
    };
}"""


def rounded(folder):
    """A saved model, its weights as the page has them, and its tokenizer."""
    model, tokenizer = load_model(folder)
    weights = {name: torch.from_numpy(array) for name, array in rounded_weights(folder).items()}
    model.load_state_dict(weights)
    return model, tokenizer


@pytest.fixture
def open_engine(site, browser):
    """A function that opens a tab with the engine and a packed model."""
    tabs = []

    def open_engine(folder):
        tab = browser.new_page()
        tabs.append(tab)
        tab.add_script_tag(content="var bookFigures = {};")
        tab.add_script_tag(path=site / "_static" / "engine.js")
        tab.add_script_tag(content=f"bookFigures.model = {pack_folder(folder)};")
        tab.evaluate(SETUP)
        return tab

    yield open_engine
    for tab in tabs:
        tab.close()


@pytest.fixture(scope="module")
def captions():
    """Sentence pairs of Multi30k's validation part, or none where they are not at hand."""
    try:
        return multi30k("val")
    except MissingData as error:
        pytest.skip(str(error))


def as_text(array):
    """Numbers for `furthest`."""
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def ids_of(tokenizer, pair):
    """Source with `</s>` and target with `<s>`."""
    return [*tokenizer.encode(pair.source), EOS], [BOS, *tokenizer.encode(pair.target)]


def difference(tab, model, source, target, options=None):
    """The largest difference of a logit between PyTorch and the page."""
    with torch.no_grad():
        wanted = model(torch.tensor([source]), torch.tensor([target]))[0]
    script = "([s, t, o, text]) => furthest(read(s, t, o).logits, text)"
    return tab.evaluate(script, [source, target, options or {}, as_text(wanted)])


def test_every_logit_of_fifty_sentences(open_engine):
    """Pairs of the grammar, at every position of the target."""
    model, tokenizer = rounded(SHOWN)
    tab = open_engine(SHOWN)
    most = [difference(tab, model, *ids_of(tokenizer, pair)) for pair in grammar(50, seed=0)]
    assert len(most) == 50 and 0 < max(most) < 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_norm": True, "attention_bias": True},
        {"positions": "learned", "d_k": 3, "d_v": 5},
    ],
)
def test_every_shape_of_model(open_engine, tmp_path, changes):
    """Pre-norm, biases, learned positions, heads of other widths, all at random."""
    pairs = grammar(200, seed=0)
    tokenizer = Tokenizer.train(pairs, 400)
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "max_length": 256}
    model = Transformer(TransformerConfig(len(tokenizer), **sizes, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    save_model(model, tokenizer, tmp_path)
    model, _ = rounded(tmp_path)
    tab = open_engine(tmp_path)
    most = [difference(tab, model, *ids_of(tokenizer, pair)) for pair in pairs[:5]]
    assert 0 < max(most) < 1e-3


def test_attention_and_what_if(open_engine):
    """The maps agree; so do a silenced head, no positions, and no causal mask."""
    model, tokenizer = rounded(SHOWN)
    tab = open_engine(SHOWN)
    source, target = ids_of(tokenizer, grammar(1, seed=1)[0])
    kinds = attention_maps(model, torch.tensor([source]), torch.tensor([target]))._asdict()
    found = tab.evaluate("([s, t]) => read(s, t).maps", [source, target])
    for kind, wanted in kinds.items():
        for layer, heads in enumerate(found[kind]):
            for head, rows in enumerate(heads):
                for query, row in enumerate(rows):  # the page has no numbers for what is hidden
                    there = wanted[layer, head, query]
                    assert torch.allclose(
                        torch.tensor(row, dtype=torch.float), there[: len(row)], atol=1e-3
                    )
                    assert there[len(row) :].sum() == 0

    with without_head(model, "cross", 1, 2):
        assert difference(tab, model, source, target, {"silent": ["cross.1.2"]}) < 1e-3
    assert difference(tab, model, source, target, {"silent": ["cross.1.2"]}) > 0.1

    model.positions.table = torch.zeros_like(model.positions.table)
    assert difference(tab, model, source, target, {"positions": False}) < 1e-3
    model.positions.table = sinusoid(*model.positions.table.shape)

    # Without the causal mask the last position's logits are those of a decoder that sees all
    memory, sees_all = model.encode(torch.tensor([source])), torch.ones(1, 1, 1, 1).bool()
    with torch.no_grad():
        states = model.decoder(model.embed(torch.tensor([target])), memory, sees_all, sees_all)
        wanted = model.embedding.logits(states[0, -1:])
    script = "([s, t, text]) => furthest(read(s, t, { causal: false }).logits.slice(-1), text)"
    assert tab.evaluate(script, [source, target, as_text(wanted)]) < 1e-3


def test_greedy_translations_of_captions(open_engine, captions):
    """200 captions come out as PyTorch has them, each in under a second."""
    model, tokenizer = rounded(SHOWN)
    tab = open_engine(SHOWN)
    script = """(sources) => sources.map((text) => {
        const started = performance.now();
        const written = [...tools.write(model, [...model.tokenizer.encode(text), 2])];
        const tokens = written.map(({ token }) => token).filter((token) => token !== 2);
        return [tokens, performance.now() - started];
    })"""
    sources = [pair.source for pair in captions[:200]]
    found = tab.evaluate(script, sources)
    for text, (tokens, _) in zip(sources, found):
        source = torch.tensor([[*tokenizer.encode(text), EOS]])
        assert tokens == greedy_decode(model, source)[0], text
    times = sorted(milliseconds for _, milliseconds in found)
    assert times[len(times) // 2] < 1000


@pytest.mark.parametrize(("beam", "alpha"), [(1, 0.6), (4, 0.6), (4, 1.2), (3, -1)])
def test_beam_search(open_engine, beam, alpha):
    """The same best hypothesis with the same score."""
    model, tokenizer = rounded(SHOWN)
    tab = open_engine(SHOWN)
    script = """([sources, options]) => sources.map((source) => {
        const search = tools.beamSearch(model, source, options);
        for (;;) {
            const { done, value } = search.next();
            if (done) return [value.tokens, value.score];
        }
    })"""
    sources = [ids_of(tokenizer, pair)[0] for pair in grammar(6, seed=2)]
    found = tab.evaluate(script, [sources, {"beam": beam, "alpha": alpha}])
    for source, (tokens, score) in zip(sources, found):
        (best,) = beam_search(model, torch.tensor([source]), beam, alpha)[0]
        assert tokens == best.tokens + [EOS] * best.ended
        assert math.isclose(score, best.score, rel_tol=1e-4)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 0.9), (2.0, 0.3)])
def test_sampling(open_engine, temperature, top_p):
    """Each token gets its share of the line from 0 to 1 on which the lot falls."""
    tab = open_engine(SHOWN)
    logits = torch.randn(12, generator=torch.Generator().manual_seed(0))
    script = """([logits, temperature, topP]) => Array.from({ length: 1000 }, (_, i) => {
        const draw = tools.sampler({ temperature, topP, random: () => (i + 0.5) / 1000 });
        return draw(Float32Array.from(logits));
    })"""
    drawn = torch.tensor(tab.evaluate(script, [logits.tolist(), temperature, top_p]))
    shares = filter_logits(logits / temperature, top_p=top_p).softmax(dim=-1)
    assert torch.allclose(drawn.bincount(minlength=12) / 1000, shares, atol=2e-3)


def test_tokenizer_on_every_block_of_unicode(open_engine):
    """Every kind of character beside letters, digits and spaces: same pieces, same ids, no loss.

    Of the long rows of Chinese and Korean signs, one in 64 is taken.
    """
    tokenizer = Tokenizer.load(SHOWN / "tokenizer.json")
    splits = tokenizer.library.pre_tokenizer.pre_tokenize_str
    characters = [
        chr(code)
        for code in range(0x110000)
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
        and (unicodedata.category(chr(code)) != "Lo" or code < 0x3000 or code % 64 == 0)
    ]
    characters += ["\ue000", "\U0010fffd"]  # for private use
    chunks = pairwise([*range(0, len(characters), 400), len(characters)])
    texts = ["".join(f"a{c}1{c} {c}" for c in characters[start:end]) for start, end in chunks]
    texts += [
        "",
        " ",
        "  two  spaces\n",
        "\ttab\r\n\n x",
        "a \u00a0 b",
        "\ufeffx\x85 y",
        "</s><pad>",
    ]
    texts += [
        "we'll don't I'M 's",
        "e\u0301 👩‍👧 🇩🇪",
        "x" * 300,
        "日本語" * 40,
        "\u2028\u3000\u180e",
    ]
    tab = open_engine(SHOWN)
    script = """([text, pieces, ids]) => {
        const { split, encode, decode } = model.tokenizer, found = encode(text);
        const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);
        return [same(split(text), pieces), same(found, ids), decode(found) === text];
    }"""
    for text in texts:
        pieces = [text[start:end] for _, (start, end) in splits(text)]
        answer = tab.evaluate(script, [text, pieces, tokenizer.encode(text)])
        assert answer == [True, True, True], (answer, text[:60])
    assert len(characters) > 20_000
