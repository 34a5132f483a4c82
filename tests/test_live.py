"""The live figures' engine computes what the package computes with the same rounded weights.

It runs here as it does while the site is built, without a browser.
"""

import json
from base64 import b64decode

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from annotated_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    grammar,
    load_model,
    save_model,
)
from annotated_transformer.attention_maps import attention_maps, without_head
from annotated_transformer.decoding import beam_search
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.own_data import single_spaced
from annotated_transformer.transformer import greedy_decode

pytest.importorskip("py_mini_racer")
pytest.importorskip("sphinx")

from book.live import extension, pack, page

SHOWN = pack.PRETRAINED / extension.MODELS["model"]
SENTENCE = extension.SENTENCE
TEXT = "Zwei Männer stehen neben einem Auto und reden miteinander."


def rounded(folder):
    """A saved model with its weights rounded as a page has them."""
    model, tokenizer = load_model(folder)
    stored = load(b64decode(json.loads(pack.pack(folder))["weights"]))
    weights = {}
    for name, tensor in stored.items():
        scales = stored.get(f"{name}.scales")
        whole = tensor if scales is None else tensor * scales[:, None]
        weights[name] = torch.from_numpy(whole)
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model, tokenizer


@pytest.fixture(scope="module")
def shown():
    """The model of the first page."""
    extension.bring("model")
    return rounded(SHOWN)


def run(**job):
    """What the engine answers: all its messages."""
    script = f"JSON.stringify(runner('model')({json.dumps(job)}))"
    return json.loads(extension.engine().eval(script))


def translation(**job):
    """The last of what it writes, and the share of each token."""
    steps = [message["step"] for message in run(**job) if "step" in message]
    return steps[-1]["text"], [step["share"] for step in steps]


@torch.no_grad()
def shares(model, source, target):
    """The probability of each token after `<s>`; padding and `<s>` are no words."""
    logits = model(torch.tensor([source]), torch.tensor([target[:-1]]))[0]
    logits[:, :2] = -torch.inf
    return logits.softmax(dim=-1)[range(len(target) - 1), target[1:]].tolist()


def greedy(model, tokenizer, text):
    """Source, target and translation of the package."""
    source = [*tokenizer.encode(text), EOS]
    (tokens,) = greedy_decode(model, torch.tensor([source]))
    return source, [BOS, *tokens, EOS], tokenizer.decode(tokens)


@pytest.mark.parametrize("name", extension.MODELS)
def test_examples_are_what_the_package_writes(name):
    folder = pack.PRETRAINED / extension.MODELS[name]
    model, tokenizer = rounded(folder)
    for example in extension.EXAMPLES[folder.name]:
        source, target, text = greedy(model, tokenizer, example.text)
        steps = extension.record("translator", name, example.text)["steps"]
        assert steps[-1]["text"] == text
        found = [step["share"] for step in steps]
        assert found == pytest.approx(shares(model, source, target), abs=0.002)
        looks = attention_maps(
            model, torch.tensor([source]), torch.tensor([target[:-1]])
        ).cross[-1]
        expected = looks.mean(dim=0).numpy()
        assert np.allclose([step["look"] for step in steps], expected, atol=0.002)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_norm": True, "attention_bias": True},
        {"positions": "learned", "d_k": 3, "d_v": 5},
    ],
)
def test_every_kind_of_model(tmp_path, changes):
    """All at random: the share of each token that it writes, until it is stopped."""
    tokenizer = Tokenizer.train(grammar(200), 400)
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "max_length": 80}
    model = Transformer(TransformerConfig(len(tokenizer), **sizes, **changes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_model(model, tokenizer, tmp_path)
    model, _ = rounded(tmp_path)
    extension.engine().call("bring", "random", pack.pack(tmp_path))
    text = grammar(1, seed=1)[0].source
    answer = extension.engine().call("record", "translator", "random", text)
    steps = json.loads(answer)["steps"]
    source = [*tokenizer.encode(text), EOS]
    (tokens,) = greedy_decode(model, torch.tensor([source]))
    written = [BOS, *tokens][: len(steps) + 1]
    found = [step["share"] for step in steps][: len(tokens)]
    assert found == pytest.approx(shares(model, source, written), abs=0.002)


def test_what_if(shown):
    """No positions, no head, another search: what the package writes, too."""
    model, tokenizer = shown
    with without_head(model, "cross", 2, 0):
        source, target, text = greedy(model, tokenizer, TEXT)
        expected = shares(model, source, target)
    written, found = translation(
        task="translate", text=TEXT, options={"silent": ["cross.2.0"]}
    )
    assert written == text and found == pytest.approx(expected, abs=0.002)

    table = model.positions.table
    model.positions.table = torch.zeros_like(table)
    source, target, text = greedy(model, tokenizer, TEXT)
    expected = shares(model, source, target)
    model.positions.table = table
    written, found = translation(
        task="translate", text=TEXT, options={"positions": False}
    )
    assert written == text and found == pytest.approx(expected, abs=0.002)

    (beams,) = beam_search(model, torch.tensor([source]), beam=3)
    rounds = [
        m["round"]
        for m in run(task="search", text=TEXT, options={"beam": 3})
        if "round" in m
    ]
    ended = [one for candidates in rounds for one in candidates if one.get("ended")]
    best = max(ended, key=lambda one: one["score"])
    assert best["text"] == tokenizer.decode(beams[0].tokens)
    assert best["score"] == pytest.approx(beams[0].score, abs=0.002)


@pytest.mark.parametrize(
    "text, spelled, meant",
    [
        ("WEISST DU, WO DER BAHNHOF IST?", "Weisst du, wo der Bahnhof ist?", SENTENCE),
        ("Das ist schoen.", None, "Das ist schön."),
        ("Ich liebe dich \U0001f600\u2764\ufe0f", None, None),
    ],
)
def test_known_spellings(shown, text, spelled, meant):
    """Capitals are read as small letters, other spellings are offered; a smiley is no alarm."""
    read = run(task="translate", text=text)[0]
    assert (read.get("spelled"), read.get("meant"), read["rare"]) == (
        spelled,
        meant,
        [],
    )


@torch.no_grad()
def test_masks(shown):
    """The share of each word with the mask, and with the whole translation in view."""
    model, tokenizer = shown
    source, target, _ = greedy(model, tokenizer, TEXT)
    rows = [m["shares"] for m in run(task="shares", text=TEXT) if "shares" in m]
    causal, alone, in_view = zip(*rows, strict=True)
    assert causal == pytest.approx(shares(model, source, target), abs=0.002)
    memory = model.encode(torch.tensor([source]))
    everything = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    x = model.embed(torch.tensor([target[:-1]]))
    states = model.decoder(x, memory, everything, everything)
    logits = model.embedding.logits(states)[0]
    logits[:, :2] = -torch.inf
    expected = logits.softmax(dim=-1)[range(len(rows)), target[1:]]
    assert in_view == pytest.approx(expected.tolist(), abs=0.002)
    assert alone[0] == pytest.approx(causal[0]) and alone != causal


def test_neighbors(shown):
    model, tokenizer = shown
    job = {"task": "neighbors", "text": "snow", "options": {"count": 5, "piece": 0}}
    (found,) = [message for message in run(**job) if "nearest" in message]
    rows = torch.nn.functional.normalize(model.embedding.weight.detach(), dim=1)
    (token,) = tokenizer.encode(" snow")
    best = (rows @ rows[token])[4:].topk(6).values.tolist()[1:]
    assert [cosine for _, cosine in found["nearest"]] == pytest.approx(best, abs=1e-3)


@torch.no_grad()
def test_inside(shown):
    """What the page tells of the parts: weights, units, what is added, the stream and its word."""
    model, tokenizer = shown
    seen = {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, inputs, output, name=name: seen.update(
                {name: (inputs[0], output)}
            )
        )
    answer = extension.record("inside", "model", SENTENCE)
    source, target, text = greedy(model, tokenizer, SENTENCE)
    assert answer["translation"] == text
    maps = attention_maps(model, torch.tensor([source]), torch.tensor([target[:-1]]))
    trace = answer["trace"]
    model(torch.tensor([source]), torch.tensor([target[:-1]]))
    for layer in range(model.config.layers):
        name = f"decoder.layers.{layer}"
        weights = torch.tensor(trace[f"{name}.cross_attention"]["weights"])
        assert torch.allclose(weights.transpose(0, 1), maps.cross[layer], atol=2e-3)
        expected = {
            "hidden": (f"{name}.feed_forward", seen[f"{name}.feed_forward.linear2"][0]),
            "added": (f"{name}.residuals.2", seen[f"{name}.feed_forward"][1]),
            "after": (f"{name}.residuals.2", seen[f"{name}.residuals.2"][1]),
        }
        for what, (part, tensor) in expected.items():
            assert torch.allclose(torch.tensor(trace[part][what]), tensor[0], atol=5e-3)
        logits = seen[name][1][0] @ model.embedding.weight.T
        logits[:, :2] = -torch.inf
        best = logits.softmax(dim=-1).max(dim=-1).values.tolist()
        assert [share for _, share in answer["lens"][layer]] == pytest.approx(
            best, abs=0.005
        )


@given(st.text())
def test_the_tokenizer_is_the_packages(shown, text):
    _, tokenizer = shown
    text = single_spaced(text)  # as it comes from the field
    script = f"JSON.stringify(engines.model.tokenizer.encode({json.dumps(text)}))"
    assert json.loads(extension.engine().eval(script)) == tokenizer.encode(text)


def test_a_page_is_one_file(tmp_path, monkeypatch, capsys):
    """It asks for nothing; its name stays text; a file that is there stays as it is."""
    path = tmp_path / "<b>captions.html"
    monkeypatch.setattr("sys.argv", ["page", "captions-de-en", str(path)])
    page.main()
    text = path.read_text("utf-8")
    assert "<h1>&lt;b&gt;captions</h1>" in text
    assert not any(sign in text for sign in ("<link", "url(", "@import"))
    with pytest.raises(SystemExit, match="is there already"):
        page.main()
    assert path.read_text("utf-8") == text
