# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(
        [
            "git",
            "clone",
            "-q",
            "--depth",
            "1",
            "https://github.com/annotated-transformer/annotated-transformer",
            "/content/book",
        ],
        check=True,
    )
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown]
# # Export
#
# This appendix hands a trained model to CTranslate2, an engine made for serving, and checks that both give every token the same probability; or it writes a page that translates in a browser.
#
# Our decoder is written to be read, and it needs PyTorch. [CTranslate2](https://opennmt.net/CTranslate2/) is a library in C++ that translates with the same weights, without PyTorch, and in 8 bits if you like. Install it with `pip install "./annotated-transformer[export]"`. Then
#
# ```python
# export_ctranslate2(model, tokenizer, "served")
# ```
#
# writes a folder, and `python served/translate.py < in.txt > out.txt` uses it where this book isn't installed. [On the command line](G_cli.ipynb#exporting) it's `export`.

# %% tags=["export"]
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.masks import BOS, EOS, UNK
from annotated_transformer.model_io import TOKENIZER, atomic_write, check_vocabulary
from annotated_transformer.page import pack
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer

# %%
import subprocess
import tempfile

import ctranslate2

from annotated_transformer.decoding import translate
from annotated_transformer.model_io import load_pretrained

# %% [markdown]
# ## What both must agree on
#
# The engine reads named matrices and computes what *it* takes a Transformer to be. A missing name is an error; a different idea of what the numbers mean only makes translations somewhat worse. If you move weights between programs you need this table, and you will rarely find it written down.
#
# | both must agree on | ours | the engine, unless told |
# |---|---|---|
# | the scale of embeddings | $\sqrt{d_\text{model}}$ | the same |
# | positions | sine and cosine by turns, from position 0, or learned | all sines, then all cosines, from position 1 |
# | the epsilon of layer normalization | $10^{-6}$ | $10^{-5}$ |
# | the width of a head | $d_k$, chosen freely | $d_\text{model}$ divided by the heads |
# | the end of a source | `</s>` | nothing |
# | words never written | `<pad>` and `<s>` | none |
#
# ## Weights under other names
#
# The engine describes a model by an object with empty places, such as `encoder.layer[0].ffn.linear_0.weight`. In self-attention it stacks the matrices of query, key and value; in cross-attention the query is alone.


# %% tags=["export"]
LINEAR, NORM = {"weight": "weight", "bias": "bias"}, {"gamma": "gain", "beta": "bias"}


def copy(place: Any, names: dict[str, str], *modules: Any) -> None:
    """Copy parameters of modules, on top of one another, to places (keys) with other names."""
    for theirs, ours in names.items():
        if (parts := [getattr(module, ours) for module in modules])[0] is not None:  # a bias
            setattr(place, theirs, torch.cat(parts).detach().float().cpu().numpy())


def copy_attention(place: Any, attention: Any, norm: Any) -> None:
    """Copy one attention; two linear maps in its place mean that it is self-attention."""
    maps = [attention.query, attention.key, attention.value]
    groups = [maps] if len(place.linear) == 2 else [maps[:1], maps[1:]]
    for linear, group in zip(place.linear, [*groups, [attention.output]]):
        copy(linear, LINEAR, *group)
    copy(place.layer_norm, NORM, norm)


def copy_layer(place: Any, layer: Any) -> None:
    """Copy the two sub-layers of an encoder layer, or the three of a decoder layer."""
    first, *middle, last = [residual.norm for residual in layer.residuals]
    copy_attention(place.self_attention, layer.self_attention, first)
    for norm in middle:
        copy_attention(place.attention, layer.cross_attention, norm)
    copy(place.ffn.layer_norm, NORM, last)
    copy(place.ffn.linear_0, LINEAR, layer.feed_forward.linear1)
    copy(place.ffn.linear_1, LINEAR, layer.feed_forward.linear2)


# %% [markdown]
# ## The whole specification
#
# Positions go over as a table, computed or learned, so that no formula is left to disagree about. One embedding serves three times, for source, target and output. Heads with $d_k \ne d_v$, as in rows B of the paper's Table 3, can't be expressed there and are refused before anything is written.


# %% tags=["export"]
def specification(model: Transformer, tokenizer: Tokenizer) -> Any:
    """Return CTranslate2's specification of a model, complete.

    Raises ImportError without CTranslate2, ValueError if it cannot compute such a model.
    """
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise ImportError('no CTranslate2: pip install "annotated-transformer[export]"') from error
    c, sides = model.config, list[Any]()
    d_k, d_v = (width or c.d_model // c.heads for width in (c.d_k, c.d_v))
    if d_k != d_v:
        raise ValueError(f"d_k={d_k} and d_v={d_v}: CTranslate2 has one width for both")
    check_vocabulary(model, tokenizer)
    stacks: list[Any] = [model.encoder, model.decoder]
    for kind, stack in zip((specs.TransformerEncoderSpec, specs.TransformerDecoderSpec), stacks):
        sides.append(kind(c.layers, c.heads, head_dim=d_k, pre_norm=c.pre_norm))
        copy(sides[-1].position_encodings, {"encodings": "table"}, model.positions)
        if c.pre_norm:
            copy(sides[-1].layer_norm, NORM, stack.norm)
        for place, layer in zip(sides[-1].layer, stack.layers):
            copy_layer(place, layer)
    for place in (sides[0].embeddings[0], sides[1].embeddings, sides[1].projection):
        copy(place, {"weight": "weight"}, model.embedding)
    spec = specs.TransformerSpec(*sides)
    names = [tokenizer.library.id_to_token(n) or f"<unused {n}>" for n in range(c.vocabulary_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = spec.config.decoder_start_token = SPECIAL[BOS]
    spec.config.eos_token, spec.config.unk_token = SPECIAL[EOS], SPECIAL[UNK]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = stacks[0].layers[0].residuals[0].norm.eps
    return spec


# %% [markdown]
# ## A script that goes along
#
# Matrices and a vocabulary don't say how text was cut into subwords, so the folder carries a script. The engine divides by $L^\alpha$, [our search](19_decoding.ipynb#why-do-searches-prefer-short-sentences) by $((5 + L) / 6)^\alpha$; we take 0.5 there for our 0.6. Left alone, the engine silently cuts a source after 1,024 tokens and an output after 256, so its limits are switched off or set to ours. A line too long for the model is an error that names it; a line ends [only at](C_own_data.ipynb#reading) `\n`.

# %% tags=["export"]
TRANSLATE = r"""# Translate standard input, line for line; needs: pip install ctranslate2 tokenizers
import sys
from pathlib import Path
import ctranslate2
from tokenizers import Tokenizer
folder, most = Path(__file__).parent, MAX_LENGTH
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # "</s>" in a text is text
lines = [line.decode("utf-8-sig").rstrip("\r\n") for line in sys.stdin.buffer]
sources = [tokenizer.encode(line).tokens * bool(line.strip()) for line in lines]
if (longest := max(map(len, sources), default=0)) >= most:  # with </s> it does not fit
    sys.exit(f"line {[*map(len, sources)].index(longest) + 1} has {longest} tokens: split it")
results = iter(ctranslate2.Translator(str(folder)).translate_batch(
    [source for source in sources if source], max_batch_size=32, beam_size=4, length_penalty=0.5,
    min_decoding_length=0, max_input_length=0, suppress_sequences=[["<pad>"], ["<s>"]],
    max_decoding_length=min(longest + 51, most)))
for source in sources:
    text = tokenizer.decoder.decode(next(results).hypotheses[0]) if source else ""
    sys.stdout.buffer.write((" ".join(text.split("\n")) + "\n").encode())
"""

# %% [markdown]
# ## Whole or not at all
#
# Everything is written aside and renamed ([model files](A_model_io.ipynb#whole-or-not-at-all)), so a server that starts meanwhile can't find new weights beside an old vocabulary. A folder that isn't empty is refused.


# %% tags=["export"]
def export_ctranslate2(
    model: Transformer, tokenizer: Tokenizer, folder: str | Path, quantization: str | None = None
) -> None:
    """Write a model as a folder for `ctranslate2.Translator`, with tokenizer and a script.

    `quantization` is CTranslate2's, such as int8. Raises FileExistsError for a folder that is not
    empty, ValueError if CTranslate2 cannot compute such a model, ImportError if it is missing.
    """
    if (folder := Path(folder).resolve()).exists() and (folder.is_file() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not empty: take another folder")
    spec = specification(model, tokenizer)
    from ctranslate2.converters import Converter

    converter = type("ModelConverter", (Converter,), {"_load": lambda self: spec})()
    with atomic_write(folder) as aside:
        converter.convert(str(aside), quantization=quantization)
        tokenizer.save(aside / TOKENIZER)
        script = TRANSLATE.replace("MAX_LENGTH", str(model.config.max_length))
        (aside / "translate.py").write_text(script, encoding="utf-8")


# %% [markdown]
# ## Both say the same
#
# We export the captions model and run the script without PyTorch and this book: a module that is `None` can't be imported.

# %%
model, tokenizer = load_pretrained("captions-de-en")
home = tempfile.TemporaryDirectory()
folder = Path(home.name, "served")
export_ctranslate2(model, tokenizer, folder)
print(sorted(path.name for path in folder.iterdir()))

# %% tags=["nbval-ignore-output"]
captions = [
    "Ein Hund läuft über die Wiese.",
    "Zwei Kinder spielen mit einem Ball am Strand.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
]
program = "import runpy, sys; sys.modules['torch'] = sys.modules['annotated_transformer'] = None; "
program += f"runpy.run_path({str(folder / 'translate.py')!r})"
text = "".join(f"{caption}\n" for caption in captions).encode()
done = subprocess.run([sys.executable, "-c", program], input=text, capture_output=True, check=True)
print(done.stdout.decode(), end="")
assert done.stdout.decode().splitlines() == translate(model, tokenizer, captions)

# %% [markdown]
# These are the translations of our own beam search. But a model with a small fault still writes most of the same words. Compare log-probabilities: both programs can score a given translation, and there every fault shows.


# %% tags=["nbval-ignore-output"]
def scores(folder, caption, translation):
    """Return the log-probabilities that the engine gives each token, and ours."""
    engine = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    source, target = (tokenizer.library.encode(text) for text in (caption, translation))
    (theirs,) = engine.score_batch([source.tokens], [target.tokens])
    with torch.no_grad():
        rows = torch.tensor([[*source.ids, EOS]]), torch.tensor([[BOS, *target.ids]])
        ours = model(*rows)[0].log_softmax(dim=-1)
    return torch.tensor(theirs.log_probs), ours[range(len(ours)), [*target.ids, EOS]]


theirs, ours = scores(folder, captions[2], translate(model, tokenizer, captions[2:])[0])
largest = (theirs - ours).abs().max().item()
print(f"{len(ours)} log-probabilities, largest difference {largest:.0e}")
assert largest < 1e-4

# %% [markdown]
# With a beam of 4, 39 of 1,000 translations differ, because penalty and stopping rule do (62 with an exponent of 0.6, as below). `benchmarks/serving.py` logged speed and BLEU on the whole test set, on an AMD EPYC. `ours bf16` is `translate(model.bfloat16(), ...)`, for a processor that has units for such numbers; each of the `workers` has a thread and batches of its own, as in `translate`; without them, the threads share each product:

# %%
import json

for threads in (1, 2):
    log = Path(f"../benchmarks/results/serving-captions-de-en-{threads}.jsonl").read_text()
    for record in map(json.loads, log.splitlines()):
        if "bleu" in record:
            speed = f"{record['times_ours']:.2f} times as fast as ours"
            print(f"threads {threads}  {record['search']:6}  {record['system']:27}", end="  ")
            print(f"BLEU {record['bleu']:.2f}, {speed}")

# %% [markdown]
# ## A page to send
#
# The other way out needs no installation at the other end: one HTML file with the weights, [rounded to eight bits](J_page.ipynb), and the scripts of the [first page](../book/index.md). It translates and draws its attention in any browser, without a network, and what is typed stays in it. Every model of this book will do: other positions, other widths of heads, pre-norm, biases.


# %% tags=["export"]
def export_page(model: Transformer, tokenizer: Tokenizer, path: str | Path) -> None:
    """Write a model as one HTML file that translates and draws its attention, without a network.

    Its title is the name of the file, which must be new, and end in .html; raises ValueError.
    """
    if (path := Path(path)).exists() or path.suffix != ".html":
        raise ValueError(f"a page goes into a new file that ends in .html, not into {path}")
    check_vocabulary(model, tokenizer)
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    tensors = {name: tensor.float().cpu().numpy() for name, tensor in model.state_dict().items()}
    packed = pack(path.stem, asdict(model.config), tokenizer.text, tensors)
    template = (files("annotated_transformer") / "page.html").read_text(encoding="utf-8")
    with atomic_write(path) as aside:
        aside.write_text(template.replace("THE MODEL", packed), encoding="utf-8")


# %%
page = Path(home.name, "captions.html")
export_page(model, tokenizer, page)
text = page.read_text(encoding="utf-8")
elsewhere = sum(map(text.count, ("src=", "url(", "<link", "import ")))
print(f"{page.name}: {len(text) / 1e6:.1f} MB; it asks for {elsewhere} other files")
home.cleanup()
