# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Serving
#
# This chapter hands a trained model to an engine that was made for serving, and checks that both write the same translations (section 6.1 of the paper).
#
# Our decoder is written to be read. Each word passes through Python, layer by layer. How much Python is that? We count the calls while it translates one caption, greedily.

# %% tags=["export"]
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from numpy import ndarray
from torch import Tensor, nn

# %% tags=["export"]
from annotated_transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerNorm
from annotated_transformer.masks import BOS, EOS, UNK
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.training import TOKENIZER, check_vocabulary, write_text
from annotated_transformer.transformer import Transformer

# %%
import statistics
import sys
import time
from dataclasses import replace

import ctranslate2
import matplotlib.pyplot as plt
from ctranslate2.specs.model_spec import NumpyVariable

from annotated_transformer import load_pretrained
from annotated_transformer.decoding import length_penalty, translate
from annotated_transformer.figures import INK, KEY, QUERY, style
from annotated_transformer.positional_encoding import sinusoid

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained()
captions = [
    "Ein Hund läuft über die Wiese.",
    "Zwei Kinder spielen mit einem Ball am Strand.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
]
calls = []
sys.setprofile(lambda frame, event, _: calls.append(event) if "call" in event else None)
ours = translate(model, tokenizer, captions[-1:], beam=1)
sys.setprofile(None)
print(f"{len(calls):,} calls for: {ours[0]}")
assert len(calls) > 5000

# %% [markdown]
# For a book that is right. A server has other wishes. Its weights never change, so it wants a small program that multiplies these matrices and does nothing else, without PyTorch, and in 8 bits if that is good enough. [CTranslate2](https://opennmt.net/CTranslate2/) is such a program, written in C++.
#
# ## What must both agree on?
#
# The engine has never seen our code. It reads named matrices and computes what *it* takes a Transformer to be. A missing name is an error. A different idea of what the numbers mean is not: sentences come out, only somewhat worse. These are the ideas:
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
# The engine is an extra of the package. If it is missing, one sentence says what to install.


# %% tags=["export", "internal"]
def serving_engine() -> Any:
    """Return CTranslate2's descriptions of models; raises ImportError if it is not installed."""
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise ImportError(
            'CTranslate2 is not installed: pip install "annotated-transformer[serve]"'
        ) from error
    return specs


# %% [markdown]
# ## Weights under other names
#
# The engine describes a model by an object with empty places, and we fill them. A place wants an array of NumPy, whatever the model's precision and device.


# %% tags=["export", "internal"]
def array_of(tensor: Tensor) -> ndarray:
    """Return a tensor's numbers in single precision, outside of PyTorch."""
    return tensor.detach().float().cpu().numpy()


# %% [markdown]
# Maps that read the same vector stand on top of each other in one matrix, since one large multiplication is faster than three small ones. `copy_linear` therefore takes several. Where we have no bias, the place stays empty.


# %% tags=["export", "internal"]
def copy_linear(place: Any, *maps: nn.Linear) -> None:
    """Copy linear maps of the same input, one matrix on top of the other."""
    place.weight = array_of(torch.cat([each.weight for each in maps]))
    if maps[0].bias is not None:
        place.bias = array_of(torch.cat([each.bias for each in maps]))


# %% [markdown]
# A normalization has a gain and a bias, here under the names of two Greek letters.


# %% tags=["export", "internal"]
def copy_norm(place: Any, norm: LayerNorm) -> None:
    """Copy gain and bias of a layer normalization."""
    place.gamma, place.beta = array_of(norm.gain), array_of(norm.bias)


# %% [markdown]
# In self-attention query, key and value become one map. With $d_\text{model} = 192$ that is a matrix of 576 rows. Attention to the memory takes the query from the decoder, key and value from the encoder: two maps. The output comes last in both. So the number of places tells which kind it is.


# %% tags=["export", "internal"]
def copy_attention(place: Any, attention: MultiHeadAttention, norm: LayerNorm) -> None:
    """Copy one attention; two linear maps in its place mean that it is self-attention."""
    copy_norm(place.layer_norm, norm)
    maps = [attention.query, attention.key, attention.value]
    groups = [maps] if len(place.linear) == 2 else [maps[:1], maps[1:]]
    for linear, group in zip(place.linear, [*groups, [attention.output]]):
        copy_linear(linear, *group)


# %% [markdown]
# Each sub-layer has a normalization. We keep it in the residual connection around it, the engine inside. The last one is that of the feed-forward network.


# %% tags=["export", "internal"]
def copy_layer(place: Any, layer: EncoderLayer | DecoderLayer) -> None:
    """Copy the two sub-layers of an encoder layer, or the three of a decoder layer."""
    norms: list[Any] = [residual.norm for residual in layer.residuals]
    copy_attention(place.self_attention, layer.self_attention, norms[0])
    if isinstance(layer, DecoderLayer):
        copy_attention(place.attention, layer.cross_attention, norms[1])
    copy_norm(place.ffn.layer_norm, norms[-1])
    copy_linear(place.ffn.linear_0, layer.feed_forward.inner)
    copy_linear(place.ffn.linear_1, layer.feed_forward.outer)


# %% [markdown]
# ## The order of sinusoids
#
# Left to itself, the engine computes sinusoids, in another way than ours. Sines fill the left half and cosines the right, the first position counts as 1, and the exponent has $d_\text{model}/2 - 1$ in place of $d_\text{model}/2$.
#
# $$
# PE_p = \left[\sin\frac{p + 1}{10000^{i / (d_\text{model}/2 - 1)}}, \quad \cos\frac{p + 1}{10000^{i / (d_\text{model}/2 - 1)}}\right], \qquad i = 0, \dots, d_\text{model}/2 - 1
# $$ (eq-engine-positions)


# %%
def engine_positions(length, d_model):
    """The sinusoids that the engine computes if it is given no table."""
    rate = 10_000 ** -torch.linspace(0, 1, d_model // 2)
    angle = torch.outer(torch.arange(1, length + 1), rate)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-two-orders", "caption": "What is a position? Left: our table, sine and cosine by turns. Right: the table that the engine would compute, all sines and then all cosines. Rows are positions of a sentence, 64 columns in place of 192. Purple is +1, orange is \u22121."}, "image": {"alt": "Two tables of 30 positions by 64 columns. The left one ends in fine vertical stripes, since sine and cosine alternate. In the right one the waves appear twice, and each half ends in an even surface."}}
style()
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained", sharey=True)
tables = {"ours: interleaved": sinusoid(30, 64), "the engine's: halves": engine_positions(30, 64)}
for axis, (title, table) in zip(axes, tables.items()):
    picture = axis.imshow(table, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    axis.set(title=title, xlabel="column of the vector")
axes[0].set_ylabel("position")
figure.colorbar(picture, ax=axes, label="value")
plt.show()

# %% [markdown]
# A model that was trained with one table cannot read the other: column 1 says something else in each. The order [does not matter](06_positional_encoding.ipynb) as long as one keeps it. So we hand over our own table, computed or learned.
#
# A pre-norm stack has one normalization more, after its last layer.


# %% tags=["export", "internal"]
def copy_stack(place: Any, stack: Encoder | Decoder, positions: ndarray) -> None:
    """Copy the encoder or the decoder."""
    place.position_encodings.encodings = positions
    if isinstance(stack.norm, LayerNorm):
        copy_norm(place.layer_norm, stack.norm)
    for description, layer in zip(place.layer, stack.layers):
        copy_layer(description, cast("EncoderLayer | DecoderLayer", layer))


# %% [markdown]
# ## What the engine cannot say
#
# One of our shapes has no description there: heads with $d_k \ne d_v$, as in rows B of the paper's Table 3. Another $d_k$ than $d_\text{model} / H$ is possible, but the engine must be told. Otherwise it divides the scores by the wrong root. What cannot be said is refused before anything is written.


# %% tags=["export", "internal"]
def empty_description(model: Transformer) -> Any:
    """Return CTranslate2's description of the model's shape, without weights.

    Raises:
        ValueError: keys and values differ in width.
    """
    c = model.config
    d_k, d_v = (width or c.d_model // c.heads for width in (c.d_k, c.d_v))
    if d_k != d_v:
        raise ValueError(
            f"d_k={d_k} and d_v={d_v}: CTranslate2 has one width for both; "
            "export a model with d_k = d_v, or translate with this package"
        )
    engine = serving_engine()
    shape = {"num_layers": c.layers, "num_heads": c.heads, "head_dim": d_k, "pre_norm": c.pre_norm}
    return engine.TransformerSpec(
        engine.TransformerEncoderSpec(**shape), engine.TransformerDecoderSpec(**shape)
    )


# %%
place = empty_description(model).decoder.layer[0]
print("maps of self-attention:", len(place.self_attention.linear))
print("maps of attention to the memory:", len(place.attention.linear))
try:
    empty_description(Transformer(replace(model.config, d_k=16)))
except ValueError as error:
    print(error)

# %% [markdown]
# ## Names for numbers
#
# Text goes to the engine as pieces, not as ids. So it needs the spelling of each entry, in the order of the ids. A model may have more rows than its tokenizer has entries; a row too many gets a name that no text contains. With `add_source_eos` the engine ends each source with `</s>` itself, as `encode_source` does. The epsilon is read from the model, not typed again.


# %% tags=["export", "internal"]
def add_names(description: Any, model: Transformer, tokenizer: Tokenizer) -> None:
    """Give the description vocabulary, reserved names and epsilon."""
    rows = range(model.config.vocabulary_size)
    names = [tokenizer.library.id_to_token(row) or f"<unused {row}>" for row in rows]
    description.register_source_vocabulary(names)
    description.register_target_vocabulary(names)
    config = description.config
    config.bos_token = config.decoder_start_token = SPECIAL[BOS]
    config.eos_token, config.unk_token = SPECIAL[EOS], SPECIAL[UNK]
    config.add_source_eos = True
    config.layer_norm_epsilon = next(m.eps for m in model.modules() if isinstance(m, LayerNorm))


# %% [markdown]
# One table serves three times, as in [its chapter](05_embeddings.ipynb): for source, target and output. `validate` refuses a description with an empty place, and `optimize` stores equal matrices once. A tokenizer that does not belong to the model is refused first, by `check_vocabulary`.


# %% tags=["export", "internal"]
def description_of(model: Transformer, tokenizer: Tokenizer) -> Any:
    """Return CTranslate2's description of a model, complete."""
    check_vocabulary(model, tokenizer)
    description = empty_description(model)
    encoder, decoder = description.encoder, description.decoder
    table = array_of(model.embedding.table)
    encoder.embeddings[0].weight = decoder.embeddings.weight = decoder.projection.weight = table
    for place, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        copy_stack(place, stack, array_of(model.positions.table))
    add_names(description, model, tokenizer)
    description.validate()
    description.optimize()
    return description


# %%
description = description_of(model, tokenizer)
stacked = description.encoder.layer[0].self_attention.linear[0].weight
print("query, key and value in one matrix:", tuple(stacked.shape))
first = model.encoder.layers[0].self_attention
assert torch.equal(torch.from_numpy(stacked.numpy()[192:384]), first.key.weight)

# %% [markdown]
# ## Half a folder is worse than none
#
# An export is a folder of several files. A server that starts while we write must not find new weights beside an old vocabulary: they load, and every word is another. [Training](14_training.ipynb) wrote one file aside and renamed it. Here we do the same with a folder. A folder that is not empty cannot be renamed over, so the old one steps aside for an instant, and comes back if the last step fails.


# %% tags=["export", "internal"]
@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder to fill; at the end it replaces `folder`, whole, or nothing changes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(".part", f"{folder.name}.", folder.parent))
    new, old = aside / "new", aside / "old"
    try:
        new.mkdir()
        yield new
        for path in new.iterdir():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        if folder.exists():
            folder.replace(old)
        new.replace(folder)
    finally:
        if old.exists() and not folder.exists():
            old.replace(folder)
        shutil.rmtree(aside, ignore_errors=True)


# %%
with tempfile.TemporaryDirectory() as home:
    target = Path(home, "model")
    with whole_folder(target) as new:
        (new / "weights").write_text("old")
    try:
        with whole_folder(target) as new:
            (new / "weights").write_text("new, but not all of")
            raise OSError("the disk is full")
    except OSError as error:
        print(f"{error}; the weights are", (target / "weights").read_text())
    assert list(Path(home).iterdir()) == [target]

# %% [markdown]
# What is replaced is deleted. So the folder must be empty, or hold exactly these files:


# %% tags=["export", "internal"]
SCRIPT = "translate.py"
EXPORTED = {"config.json", "model.bin", "shared_vocabulary.json", TOKENIZER, SCRIPT}

# %% [markdown]
# Anything else is somebody's work.


# %% tags=["export", "internal"]
def check_replaceable(folder: Path) -> None:
    """Raise FileExistsError if a folder holds anything but an earlier export."""
    if folder.is_dir() and {path.name for path in folder.iterdir()} not in (set(), EXPORTED):
        raise FileExistsError(
            f"{folder} holds files that are no export: take an empty folder, or a new one"
        )
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: take an empty folder, or a new one")


# %% [markdown]
# ## A script that goes along
#
# The folder goes to a machine where this book is not installed. So it carries a script: cut into pieces, translate, join. The script needs two packages and no PyTorch.
#
# Its settings make the engine search nearly as we do. Left alone, the engine cuts a source after 1,024 pieces without a word and stops at 256 pieces of output; both are lifted. Our own limit is 50 pieces beyond each source. The engine knows one number for all sentences of a call, so the script takes that of the longest.


# %% tags=["export", "internal"]
USAGE = '''\
"""Translate standard input, line for line. Needs: pip install ctranslate2 tokenizers"""

import sys
from pathlib import Path

import ctranslate2
from tokenizers import Tokenizer

folder = str(Path(__file__).parent)
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.encode_special_tokens = True  # "</s>" in a text is text
translator = ctranslate2.Translator(folder)  # int8: compute_type="int8"

lines = sys.stdin.buffer.read().decode().splitlines()
sources = [tokenizer.encode(line).tokens if line.strip() else [] for line in lines]
found = translator.translate_batch(
    [source for source in sources if source],
    max_batch_size=32, beam_size=4, length_penalty=0.5,
    min_decoding_length=0, max_input_length=0, suppress_sequences=[["<pad>"], ["<s>"]],
    max_decoding_length=min(max(map(len, sources), default=0) + 51, MAX_LENGTH),
)  # fmt: skip
results = iter(found)
for source in sources:
    text = tokenizer.decoder.decode(next(results).hypotheses[0]) if source else ""
    sys.stdout.buffer.write((" ".join(text.split("\\n")) + "\\n").encode())
'''


# %% [markdown]
# Now all of it in order: refuse, describe, write. The tokenizer goes along without the SHA-256 that we keep in its file, since other programs refuse a field that they do not know.


# %% tags=["export"]
def export_ctranslate2(model: Transformer, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Write a model as a folder for `ctranslate2.Translator`, with tokenizer and a script.

    An earlier export is replaced. Raises FileExistsError if the folder holds anything else,
    ValueError if CTranslate2 cannot compute such a model, ImportError if it is not installed.
    """
    folder = Path(folder).resolve()
    check_replaceable(folder)
    description = description_of(model, tokenizer)
    with whole_folder(folder) as new:
        description.save(str(new))
        write_text(new / TOKENIZER, json.dumps(tokenizer.content, ensure_ascii=False))
        write_text(new / SCRIPT, USAGE.replace("MAX_LENGTH", str(model.config.max_length)))


# %% [markdown]
# ## Do both say the same?
#
# We export the model that comes with the book and translate our three captions with both, greedily.

# %%
served = tempfile.TemporaryDirectory()
folder = f"{served.name}/model"
export_ctranslate2(model, tokenizer, folder)
print(sorted(path.name for path in Path(folder).iterdir()))

# %% tags=["nbval-ignore-output"]
settings = {"beam_size": 1, "min_decoding_length": 0, "suppress_sequences": [["<pad>"], ["<s>"]]}
sources = [tokenizer.library.encode(caption).tokens for caption in captions]
engine = ctranslate2.Translator(folder, compute_type="float32", intra_threads=1)
found = [result.hypotheses[0] for result in engine.translate_batch(sources, **settings)]
theirs = [tokenizer.library.decoder.decode(pieces) for pieces in found]
print(*theirs, sep="\n")
assert theirs == translate(model, tokenizer, captions, beam=1)

# %% [markdown]
# The same words are a weak check: a model with a small fault often still picks them. Log-probabilities tell more: both programs score the last translation, piece by piece, and we keep the largest difference. A fault can be put into the description before it is saved.


# %%
def engine_with(spoil):
    """Return the engine with a model that has a fault."""
    description = description_of(model, tokenizer)
    spoil(description)
    with tempfile.TemporaryDirectory() as folder:
        description.save(folder)
        return ctranslate2.Translator(folder, compute_type="float32", intra_threads=1)


words = [tokenizer.library.token_to_id(piece) for piece in [*found[-1], "</s>"]]
source = [tokenizer.library.token_to_id(piece) for piece in [*sources[-1], "</s>"]]
with torch.no_grad():
    logits = model(torch.tensor([source]), torch.tensor([[BOS, *words[:-1]]]))
right = logits.log_softmax(dim=-1)[0, range(len(words)), words]


# %%
def worst_difference(spoil=lambda description: None):
    """Return the largest difference between the scores of both programs, one with a fault."""
    result = engine_with(spoil).score_batch(sources[-1:], found[-1:])[0]
    return (torch.tensor(result.log_probs) - right).abs().max().item()


exact = worst_difference()
assert exact < 1e-4
print("as exported, all scores agree to four places")

# %% [markdown]
# ## What is each agreement worth?
#
# Now we give up one agreement at a time, for what the engine does unless told. We also give it our formula of its sinusoids as a table. If the formula is right, it does the same harm.


# %%
def positions(table):
    def spoil(description):
        for stack in (description.encoder, description.decoder):
            stack.position_encodings.encodings = table

    return spoil


def setting(name, value):
    return lambda description: setattr(description.config, name, value)


# %% tags=["nbval-ignore-output"]
faults = {
    "its epsilon": setting("layer_norm_epsilon", None),
    "its positions": positions("__optional"),
    "our formula of them": positions(NumpyVariable(engine_positions(1024, 192).numpy())),
    "no </s>": setting("add_source_eos", False),
}
wrong = {name: worst_difference(spoil) for name, spoil in faults.items()}
for name, value in {"as exported": exact, **wrong}.items():
    print(f"{name:20} {value:.6f}")
assert wrong["its positions"] > 0.1 and wrong["no </s>"] > 0.1 and wrong["its epsilon"] < 0.001
assert abs(wrong["its positions"] - wrong["our formula of them"]) < 1e-2

# %% [markdown]
# Scores are natural logarithms. With the engine's own positions, the piece that suffers most has half the probability that it should have, since $e^{-0.67} = 0.51$. Without `</s>` it has four fifths, $e^{-0.23}$. The epsilon is lost here beside the variances that it is added to; a model with smaller states would feel it. And our formula does the same harm as the engine's sinusoids, so it describes them well.
#
# What does one see of this in the words? We translate with the engine's own positions.

# %% tags=["nbval-ignore-output"]
faulty = engine_with(faults["its positions"]).translate_batch(sources, **settings)
for result, as_it_should_be in zip(faulty, theirs):
    text = tokenizer.library.decoder.decode(result.hypotheses[0])
    print(f"{'same ' if text == as_it_should_be else 'other'} {text}")
assert all(len(result.hypotheses[0]) > 5 for result in faulty)

# %% [markdown]
# Fluent English, a word exchanged here and there, and the longest caption does not differ at all. Nobody who reads a few translations would find the fault.
#
# ## Is it faster, and is it as good?
#
# `benchmarks/serving.py` translates the 1,000 captions of the test set with both, two threads each, the systems by turns. Its [log](https://github.com/annotated-transformer/annotated-transformer/blob/main/benchmarks/results/serving-multi30k-de-en-2.jsonl) names the command. The column of ratios is the median over the rounds. The machine was busy with other work, and from round to round the ratios spread widely: greedy and in single precision, from 1.0 to 2.2. So take them as rough. BLEU and the count of equal translations do not depend on the load.
#
# | | times as fast as ours, greedy | beam 4 | BLEU, greedy | beam 4 | same as ours, beam 4 |
# |---|---|---|---|---|---|
# | `translate` | 1.00 | 1.00 | 36.10 | 37.72 | all |
# | CTranslate2, `float32` | 1.40 | 1.48 | 36.10 | 37.58 | 929 |
# | CTranslate2, `int8` | 1.70 | 2.02 | 35.64 | 37.33 | 768 |
#
# Twenty thousand calls, and single precision is not even twice as fast? A batch pays for a call once, for all its sentences, and both have to make the products. A sentence by itself bears all the calls. So we let both translate our last caption, by turns.

# %% tags=["nbval-ignore-output"]
ratios = []
for _ in range(15):
    start = time.perf_counter()
    translate(model, tokenizer, captions[-1:], beam=1)
    middle = time.perf_counter()
    engine.translate_batch(sources[-1:], **settings)
    ratios.append((middle - start) / (time.perf_counter() - middle))
print(f"a single caption: {statistics.median(ratios):.1f} times as fast as ours")
assert min(ratios) > 0

# %% [markdown]
# The rows with `int8` keep each row of a matrix as whole numbers from $-127$ to $127$, with one scale a row. That is a quarter of the memory, and processors multiply such numbers faster. Exercise 4 does it by hand.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-serving", "caption": "What does speed cost? Three programs with the same weights, from the table above: how many times as fast as ours they translate 1,000 captions, and how well. Circles are ours, squares the engine in single precision, triangles in 8 bits. The machine was busy, so the speeds are rough."}, "image": {"alt": "From ours to single precision to 8 bits, speed rises to 1.7 times greedily and 2.0 times with a beam of 4, while BLEU falls by 0.5 and 0.4."}}
measured = [  # search, system, times as fast as ours, BLEU
    ("greedy", "ours", 1.00, 36.10),
    ("greedy", "CTranslate2 float32", 1.40, 36.10),
    ("greedy", "CTranslate2 int8", 1.70, 35.64),
    ("beam 4", "ours", 1.00, 37.72),
    ("beam 4", "CTranslate2 float32", 1.48, 37.58),
    ("beam 4", "CTranslate2 int8", 2.02, 37.33),
]
style()
figure, axis = plt.subplots(figsize=(6, 3.2))
for search, color in (("greedy", KEY), ("beam 4", QUERY)):
    rows = [row for row in measured if row[0] == search]
    axis.plot([row[2] for row in rows], [row[3] for row in rows], ":", color=color, lw=1.2)
    for (_, name, speed, bleu), marker in zip(rows, "os^"):
        axis.plot(speed, bleu, marker, color=color, markersize=7)
        label = name.split()[-1] if name != "ours" else f"ours, {search}"
        axis.annotate(label, (speed, bleu), (7, 6), textcoords="offset points", color=INK)
axis.set(xlabel="times as fast as ours", ylabel="BLEU", xlim=(0.9, 2.2), ylim=(35, 38.5))
plt.show()

# %% [markdown]
# Greedy and in single precision, all 1,000 captions are the same. With a beam, both with $\alpha = 0.6$, 71 differ, for two reasons. The engine divides by $L^\alpha$, where [our search](15_decoding.ipynb) divides by $((5 + L) / 6)^\alpha$. At these lengths its 0.6 favors long translations more than ours, so the script has 0.5; exercise 1 shows how. And the engine stops when it has as many finished hypotheses as the beam is wide, though a running one may still win; `patience=2` makes it search on. The log has what that leaves: 35 differ with 0.5, and 16 with both.
#
# In 8 bits the loss is a few tenths of a point. [Evaluation](16_evaluation.ipynb) says what can be made of such differences: on one test set of 1,000 captions, not much more than that they are small.
#
# The export carries no dropout, no optimizer and no way back: keep what `save_model` wrote.
#
# ## What to remember
#
# - Two programs with the same weights agree only if they agree on what the numbers mean: positions, epsilon, scale, the width of a head, the end of a source.
# - A wrong agreement raises no error. Compare log-probabilities, not words.
# - Give the engine tables and numbers, not the names of formulas: a sinusoid is not one thing.
# - A folder appears whole or not at all, and what is not an export is never replaced.
# - 8 bits are fast and nearly as good. How nearly is measured on a test set, not assumed.
#
# ## Exercises
#
# **1. By hand.** A finished hypothesis has log-probability $-5$ at length 10, another $-6$ at length 14. Our search divides by $((5 + L)/6)^{0.6}$, the engine by $L^\alpha$. Which wins with us, which there at $\alpha = 0.6$, and which at $0.5$? ($10^{0.6} = 3.98$, $14^{0.6} = 4.87$, $10^{0.5} = 3.16$, $14^{0.5} = 3.74$, $2.5^{0.6} = 1.73$, $3.17^{0.6} = 2.00$)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The short one with us, the long one at 0.6, the short one again at 0.5: hence the script's 0.5.
rules = {
    "ours": lambda length: length_penalty(length, 0.6),
    "engine, 0.6": lambda length: length**0.6,
    "engine, 0.5": lambda length: length**0.5,
}
winners = {}
for name, penalty in rules.items():
    short, long = -5 / penalty(10), -6 / penalty(14)
    winners[name] = "short" if short > long else "long"
    print(f"{name:12} {short:.2f} {long:.2f}: the {winners[name]} one")
assert list(winners.values()) == ["short", "long", "short"]

# %% [markdown]
# **2. What breaks if** `copy_attention` stacks key, query, value in place of query, key, value? Do the shapes complain? Predict what the attention scores become, then measure.


# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Nothing complains. The scores are transposed: a word weighs another as that one should weigh it.
def exchange(description):
    for layer in description.encoder.layer:
        place = layer.self_attention.linear[0]
        stacked = torch.from_numpy(place.weight.numpy())
        query, key, value = stacked.clone().chunk(3)
        stacked[:] = torch.cat([key, query, value])


print(f"largest difference {worst_difference(exchange):.2f}")
assert worst_difference(exchange) > 0.1

# %% [markdown]
# **3. By hand.** The model has 3,284,736 parameters, and the export adds the table of 1,024 positions. How many megabytes has `model.bin`, in single precision? The encoder and the decoder have a table each: is it stored twice?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Four bytes a number, and a little for names. A second table would need 0.8 MB more: it is stored once.
parameters = sum(parameter.numel() for parameter in model.parameters())
assert parameters == 3_284_736
expected = 4 * (parameters + 1024 * 192)
size = Path(folder, "model.bin").stat().st_size
print(f"{expected / 1e6:.1f} MB by hand, {size / 1e6:.1f} MB on disk")
assert 0 < size - expected < 50_000

# %% [markdown]
# **4. Eight bits.** The row $(0.5, -0.25, 0.1)$ is stored in 8 bits: multiply it by $127 / 0.5$ and round. What comes back? And what if the last number is 10 in place of 0.1? Say what one large weight does to its row, and check the rule on the description.


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The step is the largest number / 127. One large weight makes it coarse for all others of the row.
def there_and_back(row):
    scale = 127 / row.abs().max()
    return (row * scale).round() / scale


for row in (torch.tensor([0.5, -0.25, 0.1]), torch.tensor([0.5, -0.25, 10])):
    print([round(number, 3) for number in there_and_back(row).tolist()])

place = description_of(model, tokenizer).encoder.layer[0].ffn.linear_0
place.optimize(quantization="int8")
rows = model.encoder.layers[0].feed_forward.inner.weight.detach()
scale = torch.from_numpy(place.weight_scale.numpy())
torch.testing.assert_close(scale, 127 / rows.abs().amax(dim=1))
off = (torch.from_numpy(place.weight.numpy()) - rows * scale[:, None]).abs().max()
assert 0.4 < off < 0.5001  # at most half a step
print("a weight is stored as", place.weight.dtype)
served.cleanup()
