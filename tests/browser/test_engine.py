"""The engine in JavaScript computes what PyTorch computes with the same rounded weights."""

import base64
import math
import unicodedata

import numpy as np
import pytest
import torch

from annotated_transformer.attention_maps import attention_maps, without_head
from annotated_transformer.decoding import beam_search, filter_logits
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.downloads import MissingData, multi30k
from annotated_transformer.toolkit.model_io import load_tokenizer, save_model
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    greedy_decode,
)
from tools.recordings import model_of_the_page
from tools.web_model import SHOWN, pack_folder

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
        const expected = new Float32Array(bytes.buffer);
        const at = (t, i, row) => expected[t * row.length + i];
        const apart = (row, t) => row.map((value, i) => Math.abs(value - at(t, i, row)));
        return Math.max(...rows.map((row, t) => apart(row, t).reduce((a, b) => Math.max(a, b))));
    };
}"""


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
        expected = model(torch.tensor([source]), torch.tensor([target]))[0]
    script = "([s, t, o, text]) => furthest(read(s, t, o).logits, text)"
    return tab.evaluate(script, [source, target, options or {}, as_text(expected)])


def test_every_logit_of_fifty_sentences(open_engine):
    """Pairs of the grammar, at every position of the target."""
    model, tokenizer = model_of_the_page(SHOWN)
    tab = open_engine(SHOWN)
    most = [
        difference(tab, model, *ids_of(tokenizer, pair)) for pair in grammar(50, seed=0)
    ]
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
    model, _ = model_of_the_page(tmp_path)
    tab = open_engine(tmp_path)
    most = [difference(tab, model, *ids_of(tokenizer, pair)) for pair in pairs[:5]]
    assert 0 < max(most) < 1e-3


def check_maps(on_page, expected):
    """The weights of one kind; of what is hidden, the page has no numbers."""
    for layer, heads in enumerate(on_page):
        for head, rows in enumerate(heads):
            for query, row in enumerate(rows):
                weights = expected[layer, head, query]
                visible = torch.tensor(row, dtype=torch.float)
                assert torch.allclose(visible, weights[: len(row)], atol=1e-3)
                assert weights[len(row) :].sum() == 0


def test_attention_and_what_if(open_engine):
    """The maps agree; so do a silenced head, no positions, and no causal mask."""
    model, tokenizer = model_of_the_page(SHOWN)
    tab = open_engine(SHOWN)
    source, target = ids_of(tokenizer, grammar(1, seed=1)[0])
    maps = attention_maps(model, torch.tensor([source]), torch.tensor([target]))
    on_page = tab.evaluate("([s, t]) => read(s, t).maps", [source, target])
    for kind, expected in maps._asdict().items():
        check_maps(on_page[kind], expected)

    with without_head(model, "cross", 1, 2):
        assert difference(tab, model, source, target, {"silent": ["cross.1.2"]}) < 1e-3
    assert difference(tab, model, source, target, {"silent": ["cross.1.2"]}) > 0.1

    model.positions.table = torch.zeros_like(model.positions.table)
    assert difference(tab, model, source, target, {"positions": False}) < 1e-3
    model.positions.table = sinusoid(*model.positions.table.shape)

    # Without the causal mask the last position's logits are those of a decoder that sees all
    memory = model.encode(torch.tensor([source]))
    sees_all = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    with torch.no_grad():
        x = model.embed(torch.tensor([target]))
        states = model.decoder(x, memory, sees_all, sees_all)
        expected = model.embedding.logits(states[0, -1:])
    script = "([s, t, text]) => furthest(read(s, t, { causal: false }).logits.slice(-1), text)"
    assert tab.evaluate(script, [source, target, as_text(expected)]) < 1e-3


def test_greedy_translations_of_captions(open_engine, captions):
    """200 captions come out as PyTorch has them, each in under a second."""
    model, tokenizer = model_of_the_page(SHOWN)
    tab = open_engine(SHOWN)
    script = """(sources) => sources.map((text) => {
        const started = performance.now();
        const written = [...tools.write(model, [...model.tokenizer.encode(text), 2])];
        const tokens = written.map(({ token }) => token).filter((token) => token !== 2);
        return [tokens, performance.now() - started];
    })"""
    sources = [pair.source for pair in captions[:200]]
    translations = tab.evaluate(script, sources)
    for text, (tokens, _) in zip(sources, translations):
        source = torch.tensor([[*tokenizer.encode(text), EOS]])
        assert tokens == greedy_decode(model, source)[0], text
    times = sorted(milliseconds for _, milliseconds in translations)
    assert times[len(times) // 2] < 1000


@pytest.mark.parametrize(("beam", "alpha"), [(1, 0.6), (4, 0.6), (4, 1.2), (3, -1)])
def test_beam_search(open_engine, beam, alpha):
    """The same best hypothesis with the same score."""
    model, tokenizer = model_of_the_page(SHOWN)
    tab = open_engine(SHOWN)
    script = """([sources, options]) => sources.map((source) => {
        const search = tools.beamSearch(model, source, options);
        for (;;) {
            const { done, value } = search.next();
            if (done) return [value.tokens, value.score];
        }
    })"""
    sources = [ids_of(tokenizer, pair)[0] for pair in grammar(6, seed=2)]
    results = tab.evaluate(script, [sources, {"beam": beam, "alpha": alpha}])
    for source, (tokens, score) in zip(sources, results):
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
    samples = torch.tensor(tab.evaluate(script, [logits.tolist(), temperature, top_p]))
    shares = filter_logits(logits / temperature, top_p=top_p).softmax(dim=-1)
    assert torch.allclose(samples.bincount(minlength=12) / 1000, shares, atol=2e-3)


ODD_TEXTS = [
    "",
    " ",
    "  two  spaces\n",
    "\ttab\r\n\n x",
    "a \u00a0 b",
    "\ufeffx\x85 y",
    "</s><pad>",
    "we'll don't I'M 's",
    "e\u0301 👩‍👧 🇩🇪",
    "x" * 300,
    "日本語" * 40,
    "\u2028\u3000\u180e",
]


def every_kind_of_character():
    """All that have a name, one in 64 of the long rows of signs, and two for private use."""
    characters = []
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        in_long_row = category == "Lo" and code >= 0x3000
        if category in ("Cn", "Co", "Cs") or (in_long_row and code % 64):
            continue
        characters.append(chr(code))
    return [*characters, "\ue000", "\U0010fffd"]


def test_tokenizer_on_every_block_of_unicode(open_engine):
    """Every kind of character beside letters, digits and spaces: same pieces, same ids, no loss.

    Of the long rows of Chinese and Korean signs, one in 64 is taken.
    """
    tokenizer = load_tokenizer(SHOWN / "tokenizer.json")
    splits = tokenizer.library.pre_tokenizer.pre_tokenize_str
    characters = every_kind_of_character()
    assert len(characters) > 20_000
    starts = range(0, len(characters), 400)
    chunks = [characters[start : start + 400] for start in starts]
    texts = ["".join(f"a{c}1{c} {c}" for c in chunk) for chunk in chunks]
    texts += ODD_TEXTS
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


ANSWER = """(text) => new Promise((resolve) => {
    let answer = "";
    const port = { postMessage: (content) => {
        if (content.text !== undefined) answer = content.text;
        if (content.done) resolve(answer);
    } };
    tools.serve(port);
    port.onmessage({ data: bookFigures.model });
    port.onmessage({ data: { number: 1, text, most: 100, options: {} } });
})"""


def test_any_white_space_is_one_space_for_the_page(open_engine):
    tab = open_engine(SHOWN)
    words = ["Das", "ist", "ein", "Hund."]
    expected = tab.evaluate(ANSWER, " ".join(words))
    assert expected
    for space in ("  ", "\t", "\n", "\u00a0", "\u3000", "\ufeff", "\x85", "\x1c"):
        assert tab.evaluate(ANSWER, space.join(["", *words, ""])) == expected
