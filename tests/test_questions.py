"""The pages of questions and symptoms, and those for newcomers: each link leads somewhere."""

import math
import os
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
import pytest
import torch
import torch.nn.functional as F
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from sacrebleu import BLEU, CHRF, TER
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers
from torch import nn

from annotated_transformer import load_pretrained, preset, translate
from annotated_transformer.attention import attention
from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.masks import BOS, EOS, PAD, UNK, causal_mask, padding_mask
from annotated_transformer.multi_head_attention import split_heads
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.schedule import learning_rate
from annotated_transformer.toolkit.downloads import MissingData, multi30k
from annotated_transformer.toolkit.presets import parameter_count
from tools.chapters import ROOT

NAMES = (
    "questions",
    "troubleshooting",
    "mistakes",
    "departures",
    "own_pair",
    "how_to_read",
)
PAGES = {name: ROOT / "book" / f"{name}.md" for name in NAMES}
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)?)\)")
ANCHOR = re.compile(r"^\{#([\w-]+)\}$", re.MULTILINE)
ASKED = re.compile(r"^\{\.asked\}\n(.+)$", re.MULTILINE)


def text_of(path: Path) -> str:
    """The Markdown of a page or of a notebook's text cells."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def slug(heading: str) -> str:
    """The anchor that MyST makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors_of(path: Path) -> set[str]:
    """The anchors of the headings of a page, and those that it names itself."""
    text = text_of(path)
    tokens = MarkdownIt().use(dollarmath_plugin).parse(text)
    anchors = set(ANCHOR.findall(text))
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open" and opening.tag in ("h1", "h2", "h3"):
            words = [
                token.content
                for token in inline.children or []
                if token.type in ("text", "code_inline")
            ]
            anchors.add(slug("".join(words)))
    return anchors


@cache
def figures() -> set[str]:
    """The names of all figures in notebooks."""
    names = set()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            names.add(figure.get("name", ""))
    return names


def is_broken(link: str, page: Path) -> bool:
    """True if a page's relative link leads to no file, or to no anchor in it."""
    file, _, anchor = link.partition("#")
    if not file:  # a heading of the page, or what any page names
        named = {
            name for path in PAGES.values() for name in ANCHOR.findall(text_of(path))
        }
        return anchor not in named | anchors_of(page)
    path = ROOT / "book" / file
    if not path.exists():
        return True
    return anchor != "" and anchor not in anchors_of(path)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_has_an_anchor(name: str) -> None:
    """The file is there, and so is the heading, the named anchor or the figure."""
    text = text_of(PAGES[name])
    links = [link for link in LINK.findall(text) if not urlsplit(link).scheme]
    assert len(links) > 15
    broken = [link for link in links if is_broken(link, PAGES[name])]
    labels = re.findall(r"\{numref\}`(.+?)`", text)
    broken += [label for label in labels if label not in figures()]
    assert not broken, "\n".join(broken)


def test_every_question_names_its_thread_and_a_section() -> None:
    """Sixty and more; each has a short anchor, a thread by its title, and a way into the book."""
    text = text_of(PAGES["questions"])
    entries = re.split(r"^(?=\{#q-)", text, flags=re.MULTILINE)[1:]
    assert len(entries) >= 60
    anchors = []
    threads = []
    for entry in entries:
        (anchor,) = ANCHOR.findall(entry)
        (line,) = ASKED.findall(entry)
        answer = entry[: entry.index("{.asked}")].split("\n\n", 1)[1]
        sentences = re.findall(r"[.?](?:\s|$)", answer)
        cited = [link for link in LINK.findall(line) if link.startswith("https://")]
        assert cited, anchor
        assert line.count("[*") == len(cited), anchor
        assert ".ipynb#" in answer or "{numref}" in answer or ".md#" in answer, anchor
        assert len(anchor) <= 26, anchor
        assert 2 <= len(sentences) <= 9, anchor
        anchors.append(anchor)
        threads += cited
    assert len({*anchors}) == len(anchors) and len({*threads}) == len(threads)


def test_few_products_give_a_poor_variance() -> None:
    """What the page says of 400 trials with vectors of 64 random numbers."""
    text = text_of(PAGES["questions"])
    random = torch.Generator().manual_seed(0)
    for products, middle in ((10, "0.3 and 2.1"), (1000, "0.9 and 1.1")):
        query, key = torch.randn(2, 400, products, 64, generator=random)
        variances = (query * key).sum(-1).var(dim=-1) / 64
        low, high = variances.quantile(torch.tensor([0.025, 0.975])).tolist()
        assert f"{low:.1f} and {high:.1f}" == middle and middle in text


def test_the_one_beside_the_softmax_shrinks_with_the_maximum() -> None:
    """And a key and a value of zeros are the same as the formula."""
    scores = torch.tensor([-5.0, -6.0, -7.0]).double()
    right = scores.exp().sum() / (1 + scores.exp().sum())
    shifted = (scores - scores.max()).exp().sum()
    text = text_of(PAGES["questions"])
    assert f"{right:.3f} in all, and get {shifted / (1 + shifted):.2f}" in text
    zero = torch.cat([scores, torch.zeros(1)]).softmax(-1)[:3].sum()
    torch.testing.assert_close(zero, right)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("float16", "fp16 puts a cosine off by up to {}"),
        ("bfloat16", "bf16 by up to {}"),
    ],
)
def test_a_table_of_rotations_in_sixteen_bits_is_wrong(kind: str, said: str) -> None:
    """By as much as the page says; narrowed afterwards, it is not."""
    dtype = getattr(torch, kind)
    rates = 10_000 ** (-torch.arange(0, 64, 2).double() / 64)
    exact = torch.outer(torch.arange(2048).double(), rates).cos()
    narrow = torch.outer(torch.arange(2048).to(dtype), rates.to(dtype)).cos()
    worst = f"{(narrow.double() - exact).abs().max():.2f}".removesuffix(".00")
    assert said.format(worst) in text_of(PAGES["questions"])
    assert (exact.to(dtype).double() - exact).abs().max() < 0.005


def test_bf16_counts_to_256() -> None:
    """One more is rounded to the same number."""
    whole = torch.arange(258).to(torch.bfloat16)
    assert len({*whole[:257].tolist()}) == 257 and whole[257] == whole[256]


def test_a_beam_may_end_below_greedy_search() -> None:
    """In as many small trees as the page says."""
    random = torch.Generator().manual_seed(0)
    worse = 0
    for _ in range(20_000):
        tree = [
            torch.randn(3**level, 3, generator=random).double().log_softmax(-1).tolist()
            for level in range(3)
        ]
        best = {}
        for beam in (1, 2):
            running = [(0.0, 0)]
            for level in tree:
                longer = [
                    (score + level[place][word], 3 * place + word)
                    for score, place in running
                    for word in range(3)
                ]
                running = sorted(longer, reverse=True)[:beam]
            best[beam] = running[0][0]
        worse += best[2] < best[1] - 1e-12
    assert f"in {worse} of 20,000 random trees" in text_of(PAGES["questions"])


def test_an_empty_row_is_mended_before_the_softmax_and_not_after() -> None:
    """NaN set to zero leaves NaN in the gradients; the page's remedy leaves none."""
    text = text_of(PAGES["questions"])
    assert (
        "`has_key = mask.any(-1, keepdim=True)`" in text and "`mask | ~has_key`" in text
    )
    mask = torch.tensor([[True, True, False], [False, False, False]])
    value = torch.randn(3, 4)
    has_key = mask.any(-1, keepdim=True)
    gradients = {}
    for name, shown in (("after", mask), ("before", mask | ~has_key)):
        scores = torch.zeros(2, 3, requires_grad=True)
        added = torch.zeros(2, 3).masked_fill(~shown, -torch.inf)
        weights = (scores + added).softmax(-1).nan_to_num()
        (weights @ value * has_key).sum().backward()
        gradients[name] = scores.grad
    assert gradients["after"].isnan().any() and not gradients["before"].isnan().any()


def test_vowel_signs_are_pieces_of_their_own() -> None:
    """What the page says of an Arabic sentence, and its remedy."""
    text = text_of(PAGES["questions"])
    (remedy,) = re.findall(r'`re\.sub\("(\[.+?\])", "", text\)`', text)
    sentence = "قَرَأَ صَدِيقِي كِتَابًا فِي الْحَدِيقَةِ أَمْسِ"
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    signs = len(cut(sentence))
    plain = len(cut(re.sub(remedy, "", sentence)))
    assert f"of six words is {signs} pieces with them and {plain} without" in text
    assert len(sentence.split()) == 6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_forked_process_translates_with_a_model_of_its_own() -> None:
    """And one thread from the start lets it take its parent's, as the page says of servers."""
    text = text_of(PAGES["questions"])
    assert "`torch.set_num_threads(1)` came before loading" in text
    code = """
import multiprocessing as mp
import sys

import torch
from annotated_transformer import load_pretrained, translate

def serve(queue, model_and_tokenizer):
    queue.put(translate(*(model_and_tokenizer or load_pretrained()), ["Guten Morgen!"]))

loaded = None
if sys.argv[1] == "one thread":
    torch.set_num_threads(1)
    loaded = load_pretrained()
context = mp.get_context("fork")
queue = context.Queue()
process = context.Process(target=serve, args=(queue, loaded), daemon=True)
process.start()
print(queue.get(timeout=120))
"""
    for way in ("its own", "one thread"):
        run = subprocess.run(
            [sys.executable, "-c", code, way],
            env={**os.environ, "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
        )
        assert run.stdout == "['Good morning!']\n", run.stderr


def test_a_period_more_or_less_changes_one_caption_in_five() -> None:
    try:
        captions = multi30k("test_2016_flickr")[:300]
    except MissingData as error:
        pytest.skip(str(error))
    model, tokenizer = load_pretrained("captions-de-en")
    whole = [pair.source for pair in captions if pair.source.endswith(".")]
    said = re.search(r"took the period off (\d+) captions", text_of(PAGES["questions"]))
    assert said and int(said[1]) == len(whole)
    written, other = (
        translate(model, tokenizer, sources, beam=1)
        for sources in (whole, [source[:-1] for source in whole])
    )
    changed = sum(a.rstrip(".") != b.rstrip(".") for a, b in zip(written, other))
    assert 0.15 < changed / len(whole) < 0.2  # "nearly one of five"


def test_what_is_said_of_quotes_and_single_words_is_so() -> None:
    said = text_of(PAGES["questions"])
    model, tokenizer = load_pretrained("everyday-de-en")
    sources = ["Er sagte: „Ich komme morgen.“", "Er sagte: «Ich komme morgen.»", "Hund"]
    german, french, word = translate(model, tokenizer, sources)
    assert (
        german.endswith('"I\'ll come tomorrow."') and '"I\'ll come tomorrow."' in said
    )
    assert french.endswith("I'll come tomorrow.") and '"' not in french
    assert word == "dog" and "answer *Hund* with *dog*" in said


def test_what_is_said_of_pytorchs_modules_is_so() -> None:
    """How layers start, which biases learn, and the mask of several new queries."""
    said = text_of(PAGES["questions"])
    alone = nn.TransformerEncoderLayer(512, 8, batch_first=True)
    whole = nn.Transformer(512, 8, 1, 1, batch_first=True).encoder.layers[0]
    told = re.findall(r"(0\.\d+) instead of (0\.\d+) for the", said)
    parts = ("self_attn.out_proj", "linear2")
    for part, sizes in zip(parts, told, strict=True):
        for layer, size in zip((alone, whole), sizes):
            spread = layer.get_submodule(part).weight.std().item()
            assert abs(spread - float(size)) < 0.001, part

    attention = nn.MultiheadAttention(16, 4, batch_first=True).double()
    nn.init.normal_(attention.in_proj_bias)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    attention(x, x, x)[0].square().sum().backward()
    of_query, of_key, of_value = attention.in_proj_bias.grad.chunk(3)
    assert (
        of_key.abs().max()
        < 1e-10
        < 0.01
        < min(of_query.abs().max(), of_value.abs().max())
    )

    last = torch.ones(2, 5, dtype=torch.bool).tril(5 - 2)
    assert last.tolist() == [[True] * 4 + [False], [True] * 5]
    with_place = nn.MultiheadAttention(8, 2, add_zero_attn=True, batch_first=True)
    x = torch.randn(1, 3, 8)
    hidden = torch.ones(1, 3, dtype=torch.bool)
    output, weights = with_place(x, x, x, key_padding_mask=hidden)
    assert weights.shape == (1, 3, 4) and output.isfinite().all()


def test_what_is_said_of_a_forgotten_transpose_is_so() -> None:
    """Heads joined without it: a position is made of later words, though the mask is right."""
    said = text_of(PAGES["questions"])
    assert "row 0 is made of words 0 and 1, and row 1 of all four" in said
    x = torch.randn(1, 4, 6, requires_grad=True)
    heads = split_heads(x, 2)
    joined = attention(heads, heads, heads, causal_mask(4))[0].reshape(1, 4, 6)
    made_of = []
    for row in joined[0, :2]:
        (gradient,) = torch.autograd.grad(row.sum(), x, retain_graph=True)
        made_of.append(gradient[0].abs().sum(-1).nonzero().flatten().tolist())
    assert made_of == [[0, 1], [0, 1, 2, 3]]


def test_what_is_said_of_the_places_is_so() -> None:
    """Position 0, its neighbor, and words of width 512 that never meet."""
    said = text_of(PAGES["questions"])
    table = sinusoid(1024, 512).double()
    lengths = table.norm(dim=1)
    assert (lengths - 16).abs().max() < 1e-4 and "its length is 16 at a width" in said
    distances = torch.cdist(table, table).fill_diagonal_(torch.inf)
    assert f"{distances.min():.1f}" == f"{distances[0, 1]:.1f}" == "3.7"
    assert said.count("3.7 apart") == 2
    words = torch.randn(2000, 512, generator=torch.Generator().manual_seed(0)).double()
    nearest = torch.inf
    for place in table[1:50]:
        apart = torch.cdist(words, words + place - table[0])
        nearest = min(nearest, apart.fill_diagonal_(torch.inf).min().item())
    assert nearest > 26 and "come closer to each other than 26" in said


def test_what_is_said_of_tied_weights_and_counts_is_so() -> None:
    said = text_of(PAGES["questions"])
    torch.manual_seed(0)
    states = nn.functional.layer_norm(torch.randn(1000, 512), (512,))
    labels = torch.randint(37_000, (1000,))
    embedding, linear = nn.Embedding(37_000, 512), nn.Linear(512, 37_000, bias=False)
    assert f"at {linear.weight.std():.3f}" in said
    first = nn.functional.cross_entropy(linear(states), labels).item()
    other = nn.functional.cross_entropy(states @ embedding.weight.T, labels).item()
    assert abs(other - 95) < 2 and "begins near 95" in said
    assert abs(first - 10.7) < 0.1 and "near 10.7 if" in said
    layers = parameter_count(preset("base")) - 37_000 * 512
    counts = [layers / 1e6, *((layers + n * 37_000 * 512) / 1e6 for n in (1, 2, 3))]
    shown = [f"{count:.1f}" for count in counts]
    assert shown == re.findall(r"(\d+\.\d) million\. The rest", said) + list(
        *re.findall(
            r"makes (\S+) million with one table, (\S+) with two and (\S+) with", said
        )
    )
    biases = 18 * 4 * 512 + 7_853
    tables = (5_893 + 2 * 7_853) * 512
    assert f"{layers + biases + tables:,}" in said


def test_what_is_said_of_the_spread_of_scores_is_so() -> None:
    """Of the captions model, over four captions, before the softmax."""
    model, tokenizer = load_pretrained("captions-de-en")
    spreads: dict[nn.Module, list[float]] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], _: object) -> None:
        query = split_heads(module.query(inputs[0]), module.heads)
        key = split_heads(module.key(inputs[1]), module.heads)
        scores = query @ key.mT / query.size(-1) ** 0.5
        spreads.setdefault(module, []).append(scores.std(-1).mean().item())

    for layer in model.encoder.layers:
        layer.self_attention.register_forward_hook(note)
    for text in (
        "Zwei Hunde spielen im Schnee.",
        "Ein Mann fährt auf einem Fahrrad durch die Stadt.",
        "Eine Frau liest ein Buch im Park.",
        "Drei Kinder spielen Fußball auf einer Wiese.",
    ):
        model.encode(torch.tensor([[*tokenizer.encode(text), EOS]]))
    first, *others = [sum(found) / len(found) for found in spreads.values()]
    assert round(first) == 13 and [round(other) for other in others] == [2, 2]
    said = "spread by 13 in the first layer of the encoder, and by about 2 in the other two"
    assert said in text_of(PAGES["questions"])


def test_what_is_said_of_a_rotation_before_the_projection_is_so() -> None:
    """Turned last, scores depend on distances alone."""
    assert "they differ by several units" in text_of(PAGES["questions"])
    table = sinusoid(8, 16).double()
    sin, cos = table[:, 0::2], table[:, 1::2]

    def turn(x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, 0::2], x[:, 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(1)

    torch.manual_seed(0)
    W_Q, W_K = torch.randn(2, 16, 16, dtype=torch.float64) / 4
    query, key = torch.randn(2, 1, 16, dtype=torch.float64).expand(2, 8, 16)
    scores = {
        "after": turn(query @ W_Q) @ turn(key @ W_K).T,
        "before": (turn(query) @ W_Q) @ (turn(key) @ W_K).T,
    }
    spread = {
        name: (s.diagonal().max() - s.diagonal().min()).item()
        for name, s in scores.items()
    }
    assert spread["after"] < 1e-5 and spread["before"] > 2


def test_what_is_said_of_adam_in_half_precision_is_so() -> None:
    """An epsilon of 0, and a weight without a gradient."""
    assert "a weight without a gradient is divided 0 by 0" in text_of(
        PAGES["questions"]
    )
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    weight.grad = torch.tensor([0, 0.1], dtype=torch.float16)
    torch.optim.Adam([weight], lr=1e-3, betas=(0.9, 0.98), eps=1e-9).step()
    assert weight.isnan().tolist() == [True, False]


def test_what_is_said_of_rounded_layers_and_joined_pieces_is_so() -> None:
    said = text_of(PAGES["questions"])
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    rounded = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear})
    fast = "`torch.backends.mha.set_fastpath_enabled(False)`"
    assert rounded is not layer and fast in said
    assert isinstance(rounded.self_attn.out_proj, nn.Linear)
    assert not isinstance(rounded.linear1, nn.Linear)
    x = torch.randn(1, 3, 16)
    with torch.no_grad():
        with pytest.raises(AttributeError):
            rounded(x)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            rounded(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    assert '`re.sub(r"@@( |$)", "", text)`' in said
    assert re.sub(r"@@( |$)", "", "He@@ llo Worl@@ d@@") == "Hello World"


def test_what_is_said_of_penalties_and_first_words_is_so() -> None:
    said = text_of(PAGES["questions"])
    assert "about 0.4 for ten tokens and 0.5 for twenty-five" in said
    assert [round(0.6 * n / (n + 5), 2) for n in (10, 25)] == [0.4, 0.5]
    assert f"is a probability of {math.exp(-1.18):.0%} for" in said
    assert f"$2^{{-0.96}} = {2**-0.96:.0%}".replace("%", "\\%") in said
    rate = learning_rate(110_000, 512, 4000)
    assert f"the paper's rate is still {rate:.5f}, a fifth of its peak" in said


def test_the_loop_for_pytorchs_decoder_writes_what_it_writes_row_by_row() -> None:
    """The page's code, on a batch with padding: each row comes out as it does alone."""
    (loop,) = re.findall(
        r"```python\n(written = .+?)```", text_of(PAGES["questions"]), re.DOTALL
    )
    torch.manual_seed(1)
    stack = (
        nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True).eval().double()
    )
    table = nn.Embedding(6, 16).double()

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        return 3 * table(tokens) + sinusoid(tokens.size(1), 16)

    names = {"torch": torch, "PAD": PAD, "BOS": BOS, "EOS": EOS, "longest": 9}
    names |= {"decoder": stack.decoder, "embed": embed}
    names["output"] = nn.Linear(16, 6).double()

    def run(source: torch.Tensor) -> torch.Tensor:
        hidden = source == PAD
        with torch.no_grad():
            memory = stack.encoder(embed(source), src_key_padding_mask=hidden)
            given = names | {"source": source, "memory": memory}
            exec(loop, given)
        written: torch.Tensor = given["written"]
        return written

    rows = torch.randint(4, 6, (40, 5))
    rows[20:, 3:] = PAD
    together = run(rows)
    lengths = set()
    for row, written in zip(rows, together):
        alone = run(row[row != PAD][None])[0]
        padded = nn.functional.pad(alone, (0, len(written) - len(alone)))
        assert torch.equal(padded, written)
        lengths.add(len(alone))
    assert len(lengths) > 1


def test_what_is_said_of_a_layer_of_ones_own_is_so() -> None:
    """The error as people type it, and a vector of one number."""
    said = text_of(PAGES["questions"])

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = nn.MultiheadAttention(4, 2)

        def forward(
            self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None
        ) -> Any:
            return src

    encoder = nn.TransformerEncoder(Own(), 1, enable_nested_tensor=False)
    with pytest.raises(
        TypeError, match=r"forward\(\) got an unexpected keyword"
    ) as error:
        encoder(torch.randn(3, 1, 4))
    assert "'is_causal'" in str(error.value)
    assert "got an unexpected keyword argument 'is_causal'`" in said
    assert "of a single number 0 is left" in said
    assert not nn.LayerNorm(1)(torch.randn(5, 1)).any()


def test_what_is_said_of_rates_that_were_divided_is_so() -> None:
    """`position / div_term`: clocks turned upside down, and neighbors that are no longer near."""
    said = text_of(PAGES["questions"])
    assert "the codes of neighbors have a cosine of 0.97; divided, it is −0.06" in said
    rate = 10_000 ** (-torch.arange(0, 512, 2, dtype=torch.float64) / 512)
    assert (
        "advance by 1 to 9,647 radians" in said and round(1 / rate[-1].item()) == 9647
    )
    assert (1 / rate > math.pi).double().mean() == 7 / 8 and "seven in eight" in said
    places = torch.arange(200, dtype=torch.float64)
    cosines = []
    for rates in (rate, 1 / rate):
        angle = torch.outer(places, rates)
        codes = torch.cat([angle.sin(), angle.cos()], dim=1) / 16
        cosines.append(codes @ codes.T)
    assert all(
        round(found[0, 1].item(), 2) == is_
        for found, is_ in zip(cosines, (0.97, -0.06))
    )
    assert cosines[1].fill_diagonal_(-1).max() < 0.12


def test_what_is_said_of_axes_and_modes_is_so() -> None:
    """A norm over positions, a function that never hears of `eval`, a mask without its axis."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 48, dtype=torch.float64)
    other = x.clone()
    other[:, -1] = 1.0
    each, all_of_them = nn.LayerNorm(48).double(), nn.LayerNorm([6, 48]).double()
    assert torch.equal(each(x)[:, 0], each(other)[:, 0])
    assert (all_of_them(x)[:, 0] - all_of_them(other)[:, 0]).abs().max() > 0.01
    with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[6, 48\]"):
        all_of_them(x[:, :5])

    q = torch.randn(8, 8, 5, 4)
    dropped = [F.scaled_dot_product_attention(q, q, q, dropout_p=0.1) for _ in range(2)]
    assert not torch.equal(*dropped)
    masks = torch.ones(8, 5, 5, dtype=torch.bool)
    masks[3, :, 2:] = False  # of sentence 3
    silent = F.scaled_dot_product_attention(q, q, q, masks)
    plain = F.scaled_dot_product_attention(q, q, q)
    changed = (silent - plain).abs().amax(dim=(2, 3)) > 1e-6
    assert changed.nonzero()[:, 1].unique().tolist() == [3]  # head 3, of every sentence
    with pytest.raises(
        RuntimeError,
        match=r"size of tensor a \(8\) must match the size of tensor b \(2\)",
    ):
        F.scaled_dot_product_attention(q[:2], q[:2], q[:2], masks[:2])


def test_what_is_said_of_a_rate_after_loading_is_so() -> None:
    """What was saved replaces what was set, and a scheduler starts from `initial_lr`."""
    weight = nn.Parameter(torch.ones(3))
    first = torch.optim.Adam([weight], lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(first, lambda step: 1.0)
    saved = first.state_dict()

    def resumed(*names: str) -> list[float]:
        optimizer = torch.optim.Adam([weight], lr=5e-5, weight_decay=0.1)
        optimizer.load_state_dict(saved)
        (group,) = optimizer.param_groups
        assert (group["lr"], group["weight_decay"]) == (1e-3, 0)
        for name in names:
            group[name] = 5e-5
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0, 0)
        return [float(rate) for rate in scheduler.get_last_lr()]

    assert resumed("lr") == [1e-3]
    assert resumed("lr", "initial_lr") == [5e-5]


def test_what_is_said_of_scores_and_their_lines_is_so(tmp_path: Path) -> None:
    """chrF and chrF++, the length of several references, and files of unequal length."""
    output = "Das ist das Haus von Thomas und Samuel"
    reference = ["Das ist das Haus von Tom and Sam"]
    said = text_of(PAGES["questions"])
    told = re.search(r"has (\d+\.\d) as chrF2 and (\d+\.\d) as chrF2\+\+", said)
    assert told
    for words, score in zip((0, 2), told.groups()):
        found = CHRF(word_order=words).sentence_score(output, reference).score
        assert f"{found:.1f}" == score

    shorter = BLEU().corpus_score(
        ["I ate an apple"], [["Bye"], ["I ate an apple here"]]
    )
    assert shorter.ref_len == 5  # the closest, not the shortest
    assert BLEU().corpus_score(["a b c d", "lost"], [["a b c d"]]).score > 99.9
    for name, text in (("output", "a b c d\nlost\n"), ("reference", "a b c d\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "reference", "-i", "output"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode and "streams have different lengths" in ended.stderr


def test_what_is_said_of_source_words_and_gradients_is_so() -> None:
    """Without its source word a word becomes improbable; gradients name fewer of them."""
    model, tokenizer = load_pretrained("everyday-de-en")
    ids = [*tokenizer.encode("Die schwarze Katze mag Fisch."), EOS]
    source = torch.tensor([ids])
    target = [BOS, *tokenizer.encode("The black cat likes fish.")]
    assert (len(ids), len(target)) == (7, 7)

    embedded = model.embed(source).detach().requires_grad_()
    memory = model.encoder(embedded, padding_mask(source))
    states = model.decode(torch.tensor([target]), memory, source)
    logs = model.embedding.logits(states).log_softmax(-1)[0]
    by_length, by_product = [], []
    for place in range(5):
        chosen = logs[place, target[place + 1]]
        (gradient,) = torch.autograd.grad(chosen, embedded, retain_graph=True)
        by_length.append(gradient[0].norm(dim=-1).argmax().item())
        by_product.append((gradient * embedded)[0].sum(-1).abs().argmax().item())
        losses = []
        for left_out in range(5):
            rest = torch.tensor([ids[:left_out] + ids[left_out + 1 :]])
            again = model(rest, torch.tensor([target]))[0, place].log_softmax(-1)
            losses.append((chosen - again[target[place + 1]]).item())
        own = losses.pop(place)
        assert 4 < own < 11 and max(losses) < 1
    assert sum(named == place for place, named in enumerate(by_length)) == 3
    assert not any(named == place for place, named in enumerate(by_product))


def test_what_is_said_of_softmaxes_in_a_row_is_so() -> None:
    """Of log-probabilities one changes nothing; of probabilities it levels them."""
    logits = 5 * torch.randn(7, 1000, dtype=torch.float64)
    logs = logits.log_softmax(-1)
    for temperature in (1.0, 0.7):
        again = (logs / temperature).softmax(-1)
        torch.testing.assert_close(again, (logits / temperature).softmax(-1))
    torch.testing.assert_close(logs.log_softmax(-1), logs)
    sure = torch.zeros(37_000, dtype=torch.float64)
    sure[0] = 1
    first, other = sure.softmax(-1)[:2].tolist()
    assert f"{first:.3%}" == "0.007%" and math.isclose(first / other, math.e)


def test_what_is_said_of_an_entry_that_training_lacks_is_so() -> None:
    """Looked up by itself, it stays as it was; as an output or in a tied table it moves."""
    torch.manual_seed(0)
    words = torch.arange(UNK + 1, 20)
    separate, tied = nn.Embedding(20, 8), nn.Embedding(20, 8)
    output = nn.Linear(8, 20)
    weights = [*separate.parameters(), *tied.parameters(), *output.parameters()]
    adam = torch.optim.Adam(weights, lr=0.01)
    before = [table.weight[UNK].clone() for table in (separate, tied)]
    for _ in range(300):
        loss = F.cross_entropy(output(separate(words)), words.roll(1))
        loss += F.cross_entropy(tied(words) @ tied.weight.T, words.roll(1))
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert torch.equal(separate.weight[UNK], before[0])
    assert not torch.allclose(tied.weight[UNK], before[1], atol=0.1)
    assert output(separate(words)).softmax(-1)[:, UNK].max() < 0.01


def test_what_is_said_of_min_frequency_is_so() -> None:
    """Steps to later merges stay in the vocabulary, and what is left of them is rare."""
    counts = {"recommend": 40, "recommendation": 30, "recommendations": 3}
    counts |= {"nation": 12, "station": 25}
    text = " ".join(word for word, times in counts.items() for _ in range(times))
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=500, min_frequency=25, show_progress=False)
    library.train_from_iterator([text], trainer)
    merges = [entry for entry in library.get_vocab() if len(entry) > 1]
    written = library.encode(text).tokens
    found = [written.count(entry) for entry in merges]
    assert (len(merges), found.count(0)) == (17, 12)
    assert sum(0 < times < 25 for times in found) == 2


def test_what_is_said_of_other_scores_is_so() -> None:
    """TER of the two sentences that begin the chapter on evaluation."""
    reference = "A man in a blue shirt is standing on a ladder cleaning a window."
    false = reference.replace("man", "woman")
    sound = "On a ladder stands a man who cleans a window, wearing a blue shirt."
    said = text_of(PAGES["questions"])
    for line, score in ((false, "7.1"), (sound, "71.4")):
        found = TER().corpus_score([line], [[reference]]).score
        assert f"{found:.1f}" == score and score in said


def test_what_messages_are_said_to_mean_is_so() -> None:
    """Each message comes from the mistake that its answer names."""
    ids = torch.zeros(64, 1024, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"'\[64, 1024, 8, 128\]' is invalid"):
        ids.reshape(64, 1024, 8, 128)
    with pytest.raises(RuntimeError, match="must have the same dtype, but got Double"):
        nn.Linear(4, 4)(torch.ones(1, 4) + torch.ones(4, dtype=torch.float64))
    rows = [torch.ones(3), torch.ones(2)]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal"):
        torch.utils.data.default_collate(rows)
    with pytest.raises(ValueError, match=r"expected sequence of length 3 at dim 1"):
        torch.tensor([[1, 2, 3], [1, 2]])
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    assert padded.shape == (2, 3) and padded[1, 2] == 0
    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        nn.ModuleList([nn.Linear(1, 1)])(torch.ones(1))
    logits = torch.randn(5, 7, requires_grad=True)
    labels = torch.arange(5)
    losses = F.cross_entropy(logits, labels, reduction="none")
    with pytest.raises(RuntimeError, match="implicitly created only for scalar"):
        losses.backward()
    losses.backward(torch.ones_like(losses))
    total = F.cross_entropy(logits, labels, reduction="sum")
    assert torch.equal(logits.grad, torch.autograd.grad(total, logits)[0])


def test_what_is_said_of_einsum_and_biases_is_so() -> None:
    """The letters of a product and of a slip; a value's bias is one vector for all words."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 6, 4, 8, generator=random, dtype=torch.float64)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    torch.testing.assert_close(scores, q.transpose(1, 2) @ k.transpose(1, 2).mT)
    weights = scores.softmax(-1)
    mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    torch.testing.assert_close(mixed, (weights @ v.transpose(1, 2)).transpose(1, 2))
    values = v.transpose(1, 2)
    slip = torch.einsum("bnsk,bnsh->bnsh", weights, values)
    torch.testing.assert_close(slip, values)

    x = torch.randn(1, 5, 16, generator=random, dtype=torch.float64)
    layer = nn.MultiheadAttention(16, 2, batch_first=True).double()

    def moved(part: int) -> torch.Tensor:
        """How a bias of the query (0), the key or the value moves the output."""
        nn.init.zeros_(layer.in_proj_bias)
        before = layer(x, x, x)[0]
        nn.init.ones_(layer.in_proj_bias[16 * part :][:16])
        return (layer(x, x, x)[0] - before).detach()

    assert moved(0).abs().max() > 0.001 and moved(1).abs().max() < 1e-12
    constant = layer.out_proj.weight.sum(-1).expand_as(x)
    torch.testing.assert_close(moved(2), constant)
    assert 18 * 4 * 512 == 36_864


def test_what_is_said_of_masks_of_floats_is_so() -> None:
    """Zeros and ones mean one thing with gradients and another on the fast path."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 16)
    future = torch.ones(5, 5).triu(1)
    for mask, apart in ((future, True), (future.bool(), False)):
        with_gradients = encoder(x, mask=mask)
        with torch.no_grad():
            without = encoder(x, mask=mask)
        assert torch.allclose(with_gradients, without, atol=1e-5) != apart


def test_what_is_said_of_the_captions_model_is_so() -> None:
    """What dropout does to its losses, and how its first word hangs on source and start."""
    try:
        sides = {name: multi30k(name)[:300] for name in ("train", "val")}
    except MissingData as error:
        pytest.skip(str(error))
    model, tokenizer = load_pretrained("captions-de-en")
    said = text_of(PAGES["questions"])
    batches = {
        name: collate([*encode_pairs(tokenizer, pairs)])
        for name, pairs in sides.items()
    }

    def logits_of(name: str, shift: int = 0) -> torch.Tensor:
        source, target = batches[name]
        with torch.no_grad():
            return model(source.roll(shift, 0), target[:, :-1])

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
        flat = logits.flatten(0, -2), labels.flatten()
        return F.cross_entropy(*flat, ignore_index=PAD).item()

    for name, told in (("train", (1.22, 0.96)), ("val", (1.68, 1.46))):
        for training, number in zip((True, False), told):
            torch.manual_seed(0)
            model.train(training)
            found = loss(logits_of(name), batches[name].target[:, 1:])
            assert abs(found - number) < 0.03 and f"{number:.2f}" in said
    for shift, number in ((0, 0.56), (1, 4.81)):
        found = loss(logits_of("val", shift)[:, 0], batches["val"].target[:, 1])
        assert f"{found:.2f}" == f"{number:.2f}" and f"{number:.2f}" in said

    source = batches["val"].source[:200]
    first = {}
    with torch.no_grad():
        memory = model.encode(source)
        for start in (BOS, EOS):
            states = model.decode(torch.full((200, 1), start), memory, source)
            logits = model.embedding.logits(states)[:, 0]
            logits[:, [PAD, BOS]] = -math.inf
            first[start] = logits.argmax(-1)
    (article,) = tokenizer.encode("A")
    references = [pair.target.split()[0] for pair in sides["val"][:200]]
    assert references.count("A") == 126 and (first[BOS] == article).sum() == 131
    assert (first[EOS] == EOS).sum() == 96
    assert not (first[BOS] == first[EOS]).any()
