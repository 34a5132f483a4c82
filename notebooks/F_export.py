# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Export
#
# This appendix hands a trained model to CTranslate2, an engine made for serving, and checks that both give every token the same probability; or it writes a page that translates in a browser.
#
# Our decoder is written to be read, and it needs PyTorch. [CTranslate2](https://opennmt.net/CTranslate2/) is a library in C++ that translates with the same weights, without PyTorch, and in 8 bits if you like. Install it with `pip install ".[export]"` in the folder of the book. Then
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
from annotated_transformer.toolkit.model_io import (
    TOKENIZER,
    atomic_write,
    check_vocabulary,
    clear,
)
from annotated_transformer.toolkit.own_data import WHITE_SPACE
from annotated_transformer.toolkit.page import pack
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

# %%
import subprocess
import tempfile

import ctranslate2

from annotated_transformer import translate
from annotated_transformer.toolkit.model_io import load_pretrained

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
LINEAR = {"weight": "weight", "bias": "bias"}  # their names: ours
NORM = {"gamma": "gain", "beta": "bias"}


def copy_parameters(spec: Any, names: dict[str, str], *modules: Any) -> None:
    """Copy parameters of modules, on top of one another, into a specification.

    `names` gives its name for each parameter, and ours.
    """
    for their_name, our_name in names.items():
        parameters = [getattr(module, our_name) for module in modules]
        if parameters[0] is None:  # the maps have no bias
            continue
        stacked = torch.cat(parameters).detach().float().cpu()
        setattr(spec, their_name, stacked.numpy())


def copy_attention(spec: Any, attention: Any, norm: Any) -> None:
    """Copy one attention; two linear maps in its specification mean self-attention."""
    if len(spec.linear) == 2:
        query_key_value, output = spec.linear
        copy_parameters(
            query_key_value, LINEAR, attention.query, attention.key, attention.value
        )
    else:
        query, key_value, output = spec.linear
        copy_parameters(query, LINEAR, attention.query)
        copy_parameters(key_value, LINEAR, attention.key, attention.value)
    copy_parameters(output, LINEAR, attention.output)
    copy_parameters(spec.layer_norm, NORM, norm)


def copy_layer(spec: Any, layer: Any) -> None:
    """Copy the two sub-layers of an encoder layer, or the three of a decoder layer."""
    norms = [residual.norm for residual in layer.residuals]
    copy_attention(spec.self_attention, layer.self_attention, norms[0])
    if len(norms) == 3:
        copy_attention(spec.attention, layer.cross_attention, norms[1])
    copy_parameters(spec.ffn.layer_norm, NORM, norms[-1])
    copy_parameters(spec.ffn.linear_0, LINEAR, layer.feed_forward.linear1)
    copy_parameters(spec.ffn.linear_1, LINEAR, layer.feed_forward.linear2)


def copy_stack(spec: Any, stack: Any, model: Transformer) -> None:
    """Copy an encoder or a decoder with its table of positions."""
    copy_parameters(spec.position_encodings, {"encodings": "table"}, model.positions)
    for layer_spec, layer in zip(spec.layer, stack.layers):
        copy_layer(layer_spec, layer)
    if model.config.pre_norm:
        copy_parameters(spec.layer_norm, NORM, stack.norm)


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
        raise ImportError(
            'there is no CTranslate2: pip install ".[export]" in the folder of the book'
        ) from error
    config = model.config
    sizes = (config.layers, config.heads)
    options = {"head_dim": common_head_width(config), "pre_norm": config.pre_norm}
    check_vocabulary(model, tokenizer)
    encoder = specs.TransformerEncoderSpec(*sizes, **options)
    decoder = specs.TransformerDecoderSpec(*sizes, **options)
    copy_stack(encoder, model.encoder, model)
    copy_stack(decoder, model.decoder, model)
    for table in (encoder.embeddings[0], decoder.embeddings, decoder.projection):
        copy_parameters(table, {"weight": "weight"}, model.embedding)
    spec = specs.TransformerSpec(encoder, decoder)
    describe_tokens(spec, model, tokenizer)
    first_layer: Any = model.encoder.layers[0]
    spec.config.layer_norm_epsilon = first_layer.residuals[0].norm.eps
    return spec


def common_head_width(config: TransformerConfig) -> int:
    """Return the width of a head; raises ValueError if values have another than keys."""
    d_k = config.d_k or config.d_model // config.heads
    d_v = config.d_v or config.d_model // config.heads
    if d_k != d_v:
        raise ValueError(f"d_k={d_k} and d_v={d_v}: CTranslate2 has one width for both")
    return d_k


def describe_tokens(spec: Any, model: Transformer, tokenizer: Tokenizer) -> None:
    """Add the vocabulary, with a name for each row of the table, and the special tokens."""
    names = [
        tokenizer.library.id_to_token(row) or f"<unused {row}>"
        for row in range(model.config.vocabulary_size)
    ]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = SPECIAL[BOS]
    spec.config.decoder_start_token = SPECIAL[BOS]
    spec.config.eos_token = SPECIAL[EOS]
    spec.config.unk_token = SPECIAL[UNK]
    spec.config.add_source_eos = True


# %% [markdown]
# ## A script that goes along
#
# Matrices and a vocabulary don't say how text was cut into subwords, so the folder carries a script. The engine divides by $L^\alpha$, [our search](19_decoding.ipynb#why-do-searches-prefer-short-sentences) by $((5 + L) / 6)^\alpha$; we take 0.5 there for our 0.6. Left alone, the engine silently cuts a source after 1,024 tokens and an output after 256, so its limits are switched off or set to ours. What isn't text, or too long for the model, is an error that names its line. A line ends [where a line of the training data ends](C_own_data.ipynb#reading), each run of white space within it becomes one space, and letters and their marks are composed, as in [the training data](C_own_data.ipynb#cleaning).

# %% tags=["export"]
TRANSLATE = r"""# Translate standard input, line for line.
# It needs: pip install ctranslate2 tokenizers

import os
import re
import sys
import unicodedata
from pathlib import Path

import ctranslate2
from tokenizers import Tokenizer

MAX_LENGTH = THE LENGTH  # tokens, with the one that ends a sentence
WHITE_SPACE = re.compile(THE WHITE SPACE)  # becomes one space, as in training

folder = Path(__file__).parent
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # "</s>" in a text is text


def read_sources():
    # The tokens of each line; a line without words has none
    content = sys.stdin.buffer.read()
    *lines, last = content.split(b"\n" if b"\n" in content else b"\r")
    if last:
        lines.append(last)
    sources = []
    for number, line in enumerate(lines, start=1):
        try:
            composed = unicodedata.normalize("NFC", line.decode())  # as in training
            text = WHITE_SPACE.sub(" ", composed).strip()
        except UnicodeDecodeError as error:
            sys.exit(f"line {number} is no UTF-8 text: {error}")
        tokens = tokenizer.encode(text).tokens
        if len(tokens) >= MAX_LENGTH:
            sys.exit(f"line {number} has {len(tokens)} tokens: split it")
        sources.append(tokens)
    return sources


def translate(sources):
    # The tokens of the best translation of each source
    longest = max(len(tokens) for tokens in sources)
    results = ctranslate2.Translator(str(folder)).translate_batch(
        sources,
        max_batch_size=32,
        beam_size=4,
        length_penalty=0.5,
        min_decoding_length=0,
        max_decoding_length=min(longest + 51, MAX_LENGTH),
        max_input_length=0,
        suppress_sequences=[["<pad>"], ["<s>"]],
    )
    return [result.hypotheses[0] for result in results]


def main():
    if sys.stdin is None or sys.stdout is None:
        sys.exit("standard input or output is closed")
    sources = read_sources()
    with_words = [tokens for tokens in sources if tokens]
    translations = iter(translate(with_words) if with_words else [])
    for tokens in sources:
        text = tokenizer.decoder.decode(next(translations)) if tokens else ""
        line = " ".join(text.splitlines())
        sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()


try:
    main()
except BrokenPipeError:  # whoever read the translations has enough, as in `| head -1`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
except KeyboardInterrupt:
    sys.exit(130)
"""

# %% [markdown]
# ## Whole or not at all
#
# Everything is written aside and renamed ([model files](A_model_io.ipynb#whole-or-not-at-all)), so a server that starts meanwhile can't find new weights beside an old vocabulary. A folder that isn't empty is refused. What an export that was killed has left behind is removed by the next one of the same name.


# %% tags=["export"]
def check_new_folder(folder: Path) -> None:
    """Raise FileExistsError for anything but an empty folder, or one that isn't there yet."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file: take a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: take a new folder")


def translating_script(max_length: int) -> str:
    """Return the script for a model that takes max_length tokens."""
    script = TRANSLATE.replace("THE LENGTH", str(max_length))
    return script.replace("THE WHITE SPACE", repr(WHITE_SPACE.pattern))


def export_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    folder: str | Path,
    quantization: str | None = None,
) -> None:
    """Write a model as a folder for `ctranslate2.Translator`, with tokenizer and a script.

    `quantization` is CTranslate2's, such as int8. Raises FileExistsError for a folder that is not
    empty, ValueError if CTranslate2 cannot compute such a model, ImportError if it is missing.
    """
    folder = Path(folder).resolve()
    check_new_folder(folder)
    spec = specification(model, tokenizer)
    from ctranslate2.converters import Converter

    class ModelConverter(Converter):
        def _load(self) -> Any:
            return spec

    clear(folder.parent, folder.name)
    with atomic_write(folder) as aside:
        ModelConverter().convert(str(aside), quantization=quantization)
        (aside / TOKENIZER).write_bytes(tokenizer.text.encode())
        script = translating_script(model.config.max_length)
        (aside / "translate.py").write_text(script, encoding="utf-8")


# %% [markdown]
# ## Both say the same
#
# We export the captions model and run the script without PyTorch and this book: a module that is `None` can't be imported.

# %%
model, tokenizer = load_pretrained("captions-de-en")
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name, "served")
export_ctranslate2(model, tokenizer, folder)
print(sorted(path.name for path in folder.iterdir()))

# %% tags=["nbval-ignore-output"]
captions = [
    "Ein Hund läuft über die Wiese.",
    "Zwei Kinder spielen mit einem Ball am Strand.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
]
program = f"""
import runpy, sys
sys.modules["torch"] = sys.modules["annotated_transformer"] = None
runpy.run_path({str(folder / "translate.py")!r})
"""
command = [sys.executable, "-c", program]
lines = "".join(f"{caption}\n" for caption in captions).encode()
done = subprocess.run(command, input=lines, capture_output=True, check=True)
print(done.stdout.decode(), end="")

# %% tags=["remove-cell"]
if CHECKING:
    assert done.stdout.decode().splitlines() == translate(model, tokenizer, captions)

# %% [markdown]
# These are the translations of our own beam search. But a model with a small fault still writes most of the same words. Compare log-probabilities: both programs can score a given translation, and there every fault shows.


# %% tags=["nbval-ignore-output"]
def score(folder, source, translation):
    """Return the log-probabilities that the engine gives each token, and ours."""
    engine = ctranslate2.Translator(
        str(folder), compute_type="float32", intra_threads=1
    )
    source = tokenizer.library.encode(source)
    target = tokenizer.library.encode(translation)
    (result,) = engine.score_batch([source.tokens], [target.tokens])
    with torch.no_grad():
        logits = model(
            torch.tensor([[*source.ids, EOS]]), torch.tensor([[BOS, *target.ids]])
        )
    labels = [*target.ids, EOS]
    ours = logits[0].log_softmax(dim=-1)[range(len(labels)), labels]
    return torch.tensor(result.log_probs), ours


(translation,) = translate(model, tokenizer, captions[2:])
theirs, ours = score(folder, captions[2], translation)
largest = (theirs - ours).abs().max().item()
print(f"{len(ours)} log-probabilities, largest difference {largest:.0e}")

# %% tags=["remove-cell"]
if CHECKING:
    assert largest < 1e-4

# %% [markdown]
# With a beam of 4, 39 of 1,000 translations differ, because penalty and stopping rule do (62 with an exponent of 0.6, as below). `benchmarks/speed/serving.py` logged speed and BLEU on the whole test set, on an AMD EPYC. `ours bf16` is `translate(model.bfloat16(), ...)`, for a processor that has units for such numbers; each of the `workers` has a thread and batches of its own, as in `translate`; without them, the threads share each product:

# %%
from benchmarks.common import read_log

for threads in (1, 2):
    for record in read_log(f"serving-captions-de-en-{threads}")[1:]:
        if "bleu" in record:
            speed = f"{record['times_ours']:.2f} times as fast as ours"
            name = f"{record['search']:6}  {record['system']:27}"
            print(f"threads {threads}  {name}  BLEU {record['bleu']:.2f}, {speed}")

# %% [markdown]
# ## A page to send
#
# The other way out needs no installation at the other end: one HTML file with the weights, [rounded to eight bits](J_page.ipynb), and the scripts of the [first page](../book/index.md). It translates and draws its attention in any browser, without a network, and what is typed stays in it. Every model of this book will do: other positions, other widths of heads, pre-norm, biases.


# %% tags=["export"]
def export_page(model: Transformer, tokenizer: Tokenizer, path: str | Path) -> None:
    """Write a model as one HTML file that translates and draws its attention, without a network.

    Its title is the name of the file, which must be new, and end in .html; raises ValueError.
    """
    path = Path(path)
    if path.exists() or path.suffix != ".html":
        raise ValueError(
            f"a page goes into a new file that ends in .html, not into {path}"
        )
    check_vocabulary(model, tokenizer)
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    tensors = {
        name: tensor.float().cpu().numpy()
        for name, tensor in model.state_dict().items()
    }
    packed = pack(path.stem, asdict(model.config), tokenizer.text, tensors)
    template = files("annotated_transformer") / "page.html"
    page = template.read_text(encoding="utf-8").replace("THE MODEL", packed)
    clear(path.parent, path.name)
    with atomic_write(path) as aside:
        aside.write_text(page, encoding="utf-8")


# %%
page = Path(temporary.name, "captions.html")
export_page(model, tokenizer, page)
text = page.read_text(encoding="utf-8")
elsewhere = sum(text.count(sign) for sign in ("src=", "url(", "<link", "import "))
print(f"{page.name}: {len(text) / 1e6:.1f} MB; it asks for {elsewhere} other files")
temporary.cleanup()
