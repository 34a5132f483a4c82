# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Export
#
# This appendix hands a trained model to CTranslate2, an engine made for serving, and checks that both give every token the same probability.
#
# Our decoder is written to be read, and it needs PyTorch. [CTranslate2](https://opennmt.net/CTranslate2/) is a library in C++ that translates with the same weights, without PyTorch, and in 8 bits if you like. Install it with `pip install ".[export]"` in the folder of the book. Then
#
# ```python
# export_ctranslate2(model, tokenizer, "served")
# ```
#
# writes a folder that is all another machine needs, and `python served/translate.py < in.txt > out.txt` translates there, where neither this book nor PyTorch is installed. On [the command line](G_cli.ipynb) it's `export`. (A page that translates in a browser is [another way out](../book/own_pair.md#send-it-to-a-friend).)

# %% tags=["export"]
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annotated_transformer.files import TOKENIZER, atomic_write, check_vocabulary
from annotated_transformer.masks import BOS, EOS, UNK
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer

# %%
import subprocess
import sys
import tempfile

import ctranslate2

from annotated_transformer import load_pretrained, translate

# %% [markdown]
# ## What both must agree on
#
# The engine reads named matrices and computes what *it* takes a Transformer to be. A missing name is an error; a different idea of what the numbers mean only makes translations somewhat worse. Whoever moves weights between programs needs this table, and will rarely find it written down.
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
def stacked(*tensors: Tensor) -> np.ndarray:
    """Return tensors on top of one another, as the numbers that CTranslate2 takes."""
    return torch.cat(tensors).detach().float().cpu().numpy()


def copy_linear(spec: Any, *maps: Any) -> None:
    """Copy linear maps of the same input as one."""
    spec.weight = stacked(*(map.weight for map in maps))
    if maps[0].bias is not None:
        spec.bias = stacked(*(map.bias for map in maps))


def copy_norm(spec: Any, norm: Any) -> None:
    """Copy a layer normalization."""
    spec.gamma = stacked(norm.gain)
    spec.beta = stacked(norm.bias)


def copy_attention(spec: Any, attention: Any, norm: Any) -> None:
    """Copy one attention; two linear maps in its specification mean self-attention."""
    query, key, value = attention.query, attention.key, attention.value
    if len(spec.linear) == 2:
        copy_linear(spec.linear[0], query, key, value)
    else:
        copy_linear(spec.linear[0], query)
        copy_linear(spec.linear[1], key, value)
    copy_linear(spec.linear[-1], attention.output)
    copy_norm(spec.layer_norm, norm)


def copy_stack(spec: Any, stack: Any, model: Transformer) -> None:
    """Copy an encoder or a decoder with its table of positions."""
    spec.position_encodings.encodings = stacked(model.positions.table)
    for layer_spec, layer in zip(spec.layer, stack.layers):
        norms = [residual.norm for residual in layer.residuals]
        copy_attention(layer_spec.self_attention, layer.self_attention, norms[0])
        if len(norms) == 3:
            copy_attention(layer_spec.attention, layer.cross_attention, norms[1])
        copy_norm(layer_spec.ffn.layer_norm, norms[-1])
        copy_linear(layer_spec.ffn.linear_0, layer.feed_forward.linear1)
        copy_linear(layer_spec.ffn.linear_1, layer.feed_forward.linear2)
    if model.config.pre_norm:
        copy_norm(spec.layer_norm, stack.norm)


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
        remedy = 'pip install ".[export]" in the folder of the book'
        raise ImportError(f"CTranslate2 is missing: {remedy}") from error
    check_vocabulary(model, tokenizer)
    config = model.config
    d_k = config.d_k or config.d_model // config.heads
    d_v = config.d_v or config.d_model // config.heads
    if d_k != d_v:
        raise ValueError(f"d_k={d_k} and d_v={d_v}: CTranslate2 has one width for both")

    options = {"head_dim": d_k, "pre_norm": config.pre_norm}
    encoder = specs.TransformerEncoderSpec(config.layers, config.heads, **options)
    decoder = specs.TransformerDecoderSpec(config.layers, config.heads, **options)
    copy_stack(encoder, model.encoder, model)
    copy_stack(decoder, model.decoder, model)
    for table in (encoder.embeddings[0], decoder.embeddings, decoder.projection):
        table.weight = stacked(model.embedding.weight)

    spec = specs.TransformerSpec(encoder, decoder)
    names = [
        tokenizer.library.id_to_token(row) or f"<unused {row}>"
        for row in range(config.vocabulary_size)
    ]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = SPECIAL[BOS]
    spec.config.decoder_start_token = SPECIAL[BOS]
    spec.config.eos_token = SPECIAL[EOS]
    spec.config.unk_token = SPECIAL[UNK]
    spec.config.add_source_eos = True
    first_layer: Any = model.encoder.layers[0]
    spec.config.layer_norm_epsilon = first_layer.residuals[0].norm.eps
    return spec


# %% [markdown]
# ## A script that goes along
#
# Matrices and a vocabulary don't say how text was cut into subwords, so the folder carries a script. It is short, for it is an example as much as a tool: copy it into your server. Text is cut into lines at `\n` alone, and white space and letters are unified by [the rule of the training data](C_own_data.ipynb).
#
# The engine divides a score by $L^\alpha$, where [our search](19_decoding.ipynb) divides by $((5 + L) / 6)^\alpha$; we take 0.5 there for our 0.6. Left alone, the engine silently cuts a source after 1,024 tokens and an output after 256, so its limits are switched off or set to ours. A source that is longer than the model's table of positions is an error of the engine's.

# %% tags=["export"]
TRANSLATE = r"""# Translates standard input, line by line. It needs ctranslate2 and tokenizers
import re
import sys
import unicodedata
from pathlib import Path

import ctranslate2
from tokenizers import Tokenizer

folder = Path(__file__).parent
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # "</s>" in a text is text
lines = sys.stdin.buffer.read().decode("utf-8").split("\n")
if not lines[-1]:
    lines.pop()
composed = [unicodedata.normalize("NFC", line) for line in lines]
spaced = [re.sub(r"[\s\ufeff]+", " ", line).strip() for line in composed]
sources = [tokenizer.encode(line).tokens for line in spaced]
results = ctranslate2.Translator(str(folder)).translate_batch(
    [source for source in sources if source],
    max_batch_size=32,
    beam_size=4,
    length_penalty=0.5,
    min_decoding_length=0,
    max_decoding_length=min(51 + max(map(len, sources), default=0), MAX_LENGTH),
    max_input_length=0,
    suppress_sequences=[["<pad>"], ["<s>"]],
)
hypotheses = (result.hypotheses[0] for result in results)
sys.stdout.reconfigure(encoding="utf-8", newline="\n")
for source in sources:  # an empty line stays empty
    text = tokenizer.decoder.decode(next(hypotheses)) if source else ""
    print(" ".join(text.splitlines()), flush=True)
"""


def export_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    folder: str | Path,
    quantization: str | None = None,
) -> None:
    """Write a model as a new folder for `ctranslate2.Translator`, with tokenizer and a script.

    `quantization` is CTranslate2's, such as int8. Raises FileExistsError for a folder that is
    there, and what `specification` raises, before anything is written.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} is there already: take a new folder")
    spec = specification(model, tokenizer)
    from ctranslate2.converters import Converter

    class ModelConverter(Converter):
        def _load(self) -> Any:
            return spec

    script = TRANSLATE.replace("MAX_LENGTH", str(model.config.max_length))
    with atomic_write(folder) as aside:
        ModelConverter().convert(str(aside), quantization=quantization)
        (aside / TOKENIZER).write_text(tokenizer.text, encoding="utf-8")
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
temporary.cleanup()

# %% tags=["remove-cell"]
if CHECKING:
    assert largest < 1e-4

# %% [markdown]
# `benchmarks/speed/serving.py` logged speed and BLEU on the 1,000 captions of Multi30k's test set, on an AMD EPYC with one thread. `ours bf16` is `translate(model.bfloat16(), ...)`, for a processor that has units for such numbers:

# %%
from benchmarks.common import read_log

for record in read_log("serving-captions-de-en-1")[1:]:
    if "bleu" in record:
        print(
            f"{record['search']:6}  {record['system']:19}  BLEU {record['bleu']:.2f}, "
            f"{record['times_ours']:.2f} times as fast as ours, "
            f"{record['same_as_ours']:5} translations the same"
        )

# %% [markdown]
# Greedy search writes the same words, every one of them. In beam search the two programs differ in the length penalty and in when they stop; with the script's exponent of 0.5 in place of this log's 0.6, 961 of the 1,000 translations are the same.
