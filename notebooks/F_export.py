# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(["git", "clone", "-q", "--depth", "1", "https://github.com/annotated-transformer/annotated-transformer", "/content/book"], check=True)
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown]
# # Serving
#
# This chapter hands a trained model to an engine that was made for serving, and checks that both write the same translations (section 6.1 of the paper).
#
# A model is trained once. After that it may translate for years, on machines that have no GPU and know nothing of this book. There other things count than in training: how long one person waits for one sentence, how much must be installed, how much memory is taken. A program for that looks different from ours, and the model has to move into it. Moving is easy to get nearly right:
#
# | what goes wrong | what one sees | the section about it |
# |---|---|---|
# | each word passes through Python | a processor that seldom multiplies | Where does the time go? |
# | a matrix lands in the wrong place | no error, odd sentences | Weights under other names |
# | the engine means other positions | fluent sentences, a word off here and there | The order of sinusoids |
# | a server starts while we write | new weights beside an old vocabulary | Half a folder is worse than none |
# | an export is tested by its words | nothing: most faults leave most words alone | Do both say the same? |
# | requests wait to be answered together | a server that is fast, and slow for each user | How many captions at a time? |
#
# If you only want to serve a model: `export_ctranslate2(model, tokenizer, "served")` writes a folder, and `python served/translate.py < in.txt > out.txt` uses it without this book. The same is [on the command line](G_cli.ipynb) as `export`.

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
from annotated_transformer.training import TOKENIZER, write_text
from annotated_transformer.model_io import check_vocabulary
from annotated_transformer.transformer import Transformer

# %%
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from importlib import metadata
from statistics import median
from urllib.request import urlopen

import ctranslate2
import matplotlib.pyplot as plt
import torch.nn.functional as F
from ctranslate2.specs.model_spec import NumpyVariable
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer import load_pretrained
from annotated_transformer.decoding import length_penalty, translate
from book.figures import INK, KEY, QUERY, VALUE, style
from annotated_transformer.positional_encoding import sinusoid

# %% [markdown]
# ## Where does the time go?
#
# Our decoder is written to be read. Each word passes through Python, layer by layer. How much Python is that? We load the model that comes with the book and count the calls while it translates one caption, greedily.

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
# Twenty thousand calls for fifteen pieces. What of it is the work that cannot be avoided? The products with weight matrices, and we can count them by hand. Let $d = 192$ be the width, 512 that of the feed-forward network, and 4,000 the vocabulary.
#
# - The encoder reads 17 pieces in 3 layers. A layer has four maps of attention and two of the feed-forward network, $4 d^2 + 2 \cdot 512\, d = 344{,}064$ multiplications a piece: 17.5 million.
# - Keys and values of these 17 pieces for the decoder, in 3 layers, are $17 \cdot 3 \cdot 2 d^2$: 3.8 million.
# - The decoder takes 16 steps, the last one for `</s>`. A step costs $6 d^2 + 2 \cdot 512\, d$ in each of 3 layers and $4{,}000\, d$ for the output: 32.3 million in all.
#
# That makes 53,649,408. A core that does ten billion multiplications a second, a modest number, is done in five milliseconds. PyTorch lets us look at each operation as it is sent off. So we collect the products, check the sum, and then make the same products again, with nothing round them.


# %%
class Products(TorchDispatchMode):
    """Collects every product with a matrix of weights, to be made again."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.__name__.split(".")[0] in ("mm", "addmm"):
            products.append((operation, args))
        return operation(*args, **(kwargs or {}))


products = []
with Products():
    translate(model, tokenizer, captions[-1:], beam=1)
total = sum(args[-2].numel() * args[-1].shape[-1] for _, args in products)
print(f"{len(products)} products, {total:,} multiplications")


# %% tags=["nbval-ignore-output"]
def milliseconds(work, turns=9):
    """Return the time of some work, the median of several turns."""
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


@torch.inference_mode()
def multiply():
    for operation, args in products:
        operation(*args)


spent = {"ours": milliseconds(lambda: translate(model, tokenizer, captions[-1:], beam=1))}
spent["its products alone"] = milliseconds(multiply)
for name, value in spent.items():
    print(f"{name:20} {value:5.1f} ms")
assert spent["its products alone"] < 0.6 * spent["ours"]

# %% [markdown]
# The sum is right to the last digit, so no product was missed. And they take a small part of the time. The rest is Python that decides what to do next, tensors that are made, cut and copied, softmax and normalization. With a larger model or a batch the share of the products grows, because a call costs the same however much it multiplies. This model, one sentence at a time, is the worst case, and it is what a small server does all day.
#
# ### What must a server install?
#
# There is a second cost, which no clock shows. Everything that was needed to train is still there.

# %% tags=["nbval-ignore-output"]
megabytes = {}
for name in ("torch", "ctranslate2", "tokenizers"):
    files = metadata.distribution(name).files or []
    megabytes[name] = sum(file.size or 0 for file in files) / 1e6
    print(f"{name:12} {megabytes[name]:4.0f} MB")
assert megabytes["torch"] > megabytes["ctranslate2"] + megabytes["tokenizers"]

# %% [markdown]
# This is PyTorch for processors only; with support for GPUs it is several times as large. It brings derivatives, optimizers, a compiler, hundreds of layers that we do not use. A server that starts ten copies of itself loads it ten times.
#
# For a book our decoder is right. A server has other wishes. Its weights never change, so it wants a small program that multiplies these matrices and does nothing else, without PyTorch, and in 8 bits if that is good enough. [CTranslate2](https://opennmt.net/CTranslate2/) is such a program, written in C++. From here on, it is the engine.
#
# ### Why not write the fast program ourselves?
#
# Because it is a different craft. A fast product in 8 bits has another version for each kind of processor, and most of them are written close to the machine. Nothing about the Transformer can be learned from that. What can be learned is what a model is, once its code is gone: a list of matrices, and a number of agreements about them. That is what the chapter is about, and it is the same with every other engine.
#
# ### Why not hand over the program with the weights?
#
# There are formats that store a model as a graph of operations with the weights inside. Then there is nothing to agree on, since the file says what to compute. The price is that it says it operation by operation, in the order in which our Python happened to write it. Decoding does not fit well either: it is a loop that ends when the sentence does, over a cache that grows. An engine that knows what a Transformer is can do all of it in its own way. It only has to mean the same Transformer.
#
# ## What must both agree on?
#
# The engine has never seen our code. It reads named matrices and computes what *it* takes a Transformer to be. A missing name is an error. What else would be noticed? We look at the shapes.

# %%
shapes = Counter(tuple(parameter.shape) for parameter in model.parameters())
print(shapes.total(), "tensors of", len(shapes), "shapes")
for shape, count in shapes.most_common():
    print(f"{count:3} of {shape}")

# %% [markdown]
# Of the 91 tensors, 36 are squares of one size: query, key, value and output of nine attentions. Any of them could stand in the place of any other, and no shape would object. So a check of names and shapes proves little. And a different idea of what the numbers *mean* is not seen by any such check: sentences come out, only somewhat worse. These are the ideas:
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
# The first row is a line of luck. Both multiply an embedding by $\sqrt{192} = 13.9$, as the paper says. Had one of them left it out, words would be 14 times weaker beside their positions, with all shapes intact. The others are taken up one after the other below, and then we measure what each is worth.
#
# None of this is the fault of either side. The paper leaves some of it open, and where it does not, both have reasons of their own. But whoever moves weights from one program to another needs this table, and it is seldom written down. One finds its rows by reading both programs, or by comparing numbers until they agree.
#
# The engine is an extra of the package, since most readers will not need it. So it is imported when somebody asks for it and not at the top of the module. If it is missing, one sentence says what to install, in place of the name of a module that nobody has heard of.


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
# The engine describes a model by an object with empty places, such as `encoder.layer[0].ffn.linear_0.weight`, and we fill them. Our own names for the same matrices come from [the layers](09_layers.ipynb). One way is a long table, ours on the left and theirs on the right, with 91 rows. It would be correct until the first model with another number of layers. We follow the structure in its place: a function for a map, one for an attention, one for a layer, one for a stack, each made of the ones before.
#
# A place wants an array of NumPy, whatever the model's precision and device. A model may have been trained on a GPU, or kept in 16 bits, and NumPy knows neither GPUs nor bfloat16.


# %% tags=["export", "internal"]
def array_of(tensor: Tensor) -> ndarray:
    """Return a tensor's numbers in single precision, outside of PyTorch."""
    return tensor.detach().float().cpu().numpy()


# %% [markdown]
# `detach` cuts the thread to the gradient, which NumPy could not hold. Single precision loses nothing here: a model computes in it, or in fewer bits. From double precision it rounds.
#
# ### Why are three matrices one?
#
# Query, key and value all read the same vector. Three small products need three calls, and each call reads the vector again. If the matrices stand on top of each other, one product gives all three results, and they only have to be cut apart. We check this on five random vectors, with the first attention of the encoder:

# %%
first = model.encoder.layers[0].self_attention
maps = [first.query, first.key, first.value]
x = torch.randn(5, 192, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    together = F.linear(x, torch.cat([each.weight for each in maps]))
    apart = [each(x) for each in maps]
print("one product:", tuple(together.shape), " three:", [tuple(each.shape) for each in apart])
torch.testing.assert_close(together, torch.cat(apart, dim=1))

# %% [markdown]
# So `copy_linear` takes any number of maps. Where we have no bias, as in all attentions of the paper, the place stays empty, and the engine adds none.


# %% tags=["export", "internal"]
def copy_linear(place: Any, *maps: nn.Linear) -> None:
    """Copy linear maps of the same input, one matrix on top of the other."""
    place.weight = array_of(torch.cat([each.weight for each in maps]))
    if maps[0].bias is not None:
        place.bias = array_of(torch.cat([each.bias for each in maps]))


# %% [markdown]
# A normalization has a gain and a bias, here under the names of two Greek letters. The gain is $\gamma$ and the bias $\beta$. Exchange the two, and each vector of the model is multiplied by numbers near zero. That would be seen at once; most other mistakes would not.


# %% tags=["export", "internal"]
def copy_norm(place: Any, norm: LayerNorm) -> None:
    """Copy gain and bias of a layer normalization."""
    place.gamma, place.beta = array_of(norm.gain), array_of(norm.bias)


# %% [markdown]
# Now an attention. In self-attention query, key and value become one map. With $d_\text{model} = 192$ that is a matrix of 576 rows. Attention to the memory takes the query from the decoder, key and value from the encoder. These are two different inputs, so there are two maps: one of 192 rows, and one of 384. The output comes last in both.
#
# So the number of places tells which kind it is, two or three. And within a map the order is fixed, query before key before value. Nothing in the file says so. It is one more agreement, and exercise 2 breaks it.
#
# What about the heads? Our query matrix has the rows of head 0 first, then those of head 1, and so on ([four heads](05_multi_head_attention.ipynb) of 48 rows). The engine cuts its rows in the same way. A program that went through the heads the other way round, with one row of each by turns, would need the rows in another order first.


# %% tags=["export", "internal"]
def copy_attention(place: Any, attention: MultiHeadAttention, norm: LayerNorm) -> None:
    """Copy one attention; two linear maps in its place mean that it is self-attention."""
    copy_norm(place.layer_norm, norm)
    maps = [attention.query, attention.key, attention.value]
    groups = [maps] if len(place.linear) == 2 else [maps[:1], maps[1:]]
    for linear, group in zip(place.linear, [*groups, [attention.output]]):
        copy_linear(linear, *group)


# %% [markdown]
# Each sub-layer has a normalization. We keep it in the residual connection around it, the engine inside of the sub-layer. So the same numbers hang on another branch of the tree. An encoder layer has two of them and a decoder layer three. The first belongs to self-attention and the last to the feed-forward network in both, which is why the code says `norms[-1]`.


# %% tags=["export", "internal"]
def copy_layer(place: Any, layer: EncoderLayer | DecoderLayer) -> None:
    """Copy the two sub-layers of an encoder layer, or the three of a decoder layer."""
    norms: list[Any] = [residual.norm for residual in layer.residuals]
    copy_attention(place.self_attention, layer.self_attention, norms[0])
    if isinstance(layer, DecoderLayer):
        copy_attention(place.attention, layer.cross_attention, norms[1])
    copy_norm(place.ffn.layer_norm, norms[-1])
    copy_linear(place.ffn.linear_0, layer.feed_forward.linear1)
    copy_linear(place.ffn.linear_1, layer.feed_forward.linear2)


# %% [markdown]
# ## The order of sinusoids
#
# Positions are no weights. They follow from a formula, so an export that copies weights does not even think of them. Left to itself, the engine computes sinusoids, and "sinusoids" is what the paper says as well. But they are others than ours. Sines fill the left half and cosines the right, the first position counts as 1, and the exponent has $d_\text{model}/2 - 1$ in place of $d_\text{model}/2$.
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


# %% [markdown]
# A width of 4 is small enough to check by hand. Our first position is 0, where every sine is 0 and every cosine 1. The engine's first position is 1. Its two rates are $10000^0 = 1$ and $10000^{-1}$, so it begins with $\sin 1 = 0.84$ and a sine that is nearly 0.

# %%
for name, table in {"ours": sinusoid(2, 4), "the engine's": engine_positions(2, 4)}.items():
    for position, row in enumerate(table.tolist()):
        print(f"{name:13} position {position}:", "  ".join(f"{number:4.2f}" for number in row))

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
# A model that was trained with one table cannot read the other: column 1 says something else in each. The order [does not matter](08_positional_encoding.ipynb) as long as one keeps it.
#
# ### Reorder the columns, or hand over a table?
#
# One could try to live with the engine's formula. Its halves are our columns in another order, so permuting the columns of the embedding, and of every matrix that reads or writes the residual stream, would answer for them. But then there is still the first position, and the exponent. No permutation helps against those. The other way is shorter: the engine has a place for a table, meant for learned positions. We put ours there, computed or learned, and no formula is left to disagree about. It costs $1{,}024 \cdot 192$ numbers, 0.8 MB.
#
# A stack is then positions, layers, and for pre-norm models one normalization more, after the last layer. The paper's post-norm stack has none there.


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
# One of our shapes has no description there: heads with $d_k \ne d_v$, as in rows B of the paper's Table 3. Another $d_k$ than $d_\text{model} / H$ is possible, but the engine must be told. Otherwise it divides the scores by the wrong root.
#
# What should an export do with such a model? It could write what fits and leave the rest to the engine, which would cut the value matrix at the wrong rows. It could warn. A warning scrolls by, and the folder stays and gets used. So what cannot be said is refused, before anything is written, with a sentence that names both numbers.


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
# The first layer of the decoder has two places in self-attention and three in attention to the memory, as `copy_attention` expects. And the row of Table 3 is refused.
#
# Could one not fill the narrow keys up with zeros? One could. A column of zeros adds nothing to a dot product, so the scores would stay. But the engine would divide them by $\sqrt{48}$ where our model divides by $\sqrt{16}$. The query matrix would have to be multiplied by $\sqrt{48 / 16} = 1.73$ to make up for it. It works, and the export would hold a model that nobody has trained in this form. For a shape that is only there to repeat a table, we leave it.
#
# ## Names for numbers
#
# Inside, a word is a number, the row of the table in which its vector stands. Text goes to the engine as pieces, not as ids. So it needs the spelling of each entry, in the order of the ids. Shift this list by one, and all matrices are right and every word is wrong.
#
# A model may have more rows than its tokenizer has entries, for instance when the size was rounded up to a multiple of 8 for the sake of a GPU. A row too many gets a name that no text contains, so that it can never be read. It could still be written, in theory. Training has never seen it as a label, so its probability is next to nothing.
#
# Three names are reserved: what begins a target, what ends a sentence, what stands for the unknown. With `add_source_eos` the engine ends each source with `</s>` itself, as `encode_source` does. Otherwise each caller would have to remember it. The epsilon is read from the model, not typed again, so a model that was made with another one is exported with that.


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
# Now the whole description. One table serves three times, as in [its chapter](07_embeddings.ipynb): for source, target and output. We put it into all three places. `validate` refuses a description with an empty place, which is how a forgotten matrix shows. `optimize` looks for equal matrices and stores them once: the table of 768,000 numbers is 3.1 MB, and would be 9.2 MB in three copies.
#
# A tokenizer that does not belong to the model is refused first, by `check_vocabulary`. It is the cheapest check of all and catches a common mistake, the right model with last week's tokenizer.


# %% tags=["export", "internal"]
def description_of(model: Transformer, tokenizer: Tokenizer) -> Any:
    """Return CTranslate2's description of a model, complete."""
    check_vocabulary(model, tokenizer)
    description = empty_description(model)
    encoder, decoder = description.encoder, description.decoder
    table = array_of(model.embedding.weight)
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
assert torch.equal(torch.from_numpy(stacked.numpy()[192:384]), first.key.weight)

# %% [markdown]
# Rows 192 to 383 of the stacked matrix are our key matrix, to the last bit. The picture follows these rows from the name that we gave them to the bytes that a processor multiplies.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-way-of-a-weight", "caption": "Which way does a weight go? Three matrices of the first encoder layer, as training keeps them, are copied on top of each other into one place of the engine. The engine can keep that as it is, or in 8 bits with one scale for each row. Names, shapes and bytes are those of this model."}, "image": {"alt": "Three square matrices for query, key and value become one matrix of 576 rows, 442,368 bytes. In 8 bits it is the same matrix with 110,592 bytes, beside a narrow column of 576 scales."}}
style()
figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
size = stacked.numpy().size
rows = stacked.shape[0]
for number, (name, color) in enumerate({"query": QUERY, "key": KEY, "value": VALUE}.items()):
    top = 2 - number
    for left, gap in ((0, 1.25), (4.1, 1), (7.6, 1)):
        box = plt.Rectangle((left, top * gap), 1, 1, fc="white", ec=color, lw=1.8)
        axis.add_patch(box)
        axis.text(left + 0.5, top * gap + 0.5, name, ha="center", va="center", color=color)
    axis.text(1.1, top * 1.25 + 0.5, f"{tuple(maps[number].weight.shape)}", va="center", fontsize=8)
    axis.add_patch(plt.Rectangle((8.75, top), 0.12, 1, fc="none", ec=color, hatch="----"))
for left, text in ((2.3, "copy_linear"), (5.5, 'compute_type=\n"int8"')):
    axis.annotate("", (left + 1.6, 1.5), (left, 1.5), arrowprops={"arrowstyle": "->"})
    axis.text(left + 0.8, 1.62, text, ha="center", fontsize=8, family="monospace")
below = {
    0.5: "encoder.layers.0\n.self_attention.key.weight",
    4.6: f"encoder/layer_0/self_attention\n/linear_0/weight {tuple(stacked.shape)}\n{4 * size:,} bytes",
    8.2: f"whole numbers and scales\n{size:,} bytes\n+ {4 * rows:,} bytes",
}
for at, text in below.items():
    axis.text(at, -0.15, text, ha="center", va="top", fontsize=8)
axis.set(xlim=(-0.9, 9.5), ylim=(-1, 3.7))
axis.axis("off")
plt.show()

# %% [markdown]
# A row in 8 bits is a row of whole numbers and one scale, four bytes more. For this matrix that makes $110{,}592 + 2{,}304$ bytes in place of 442,368, a quarter and a little. The engine can do the last step when it opens the folder. So one export serves both, and nobody has to decide early. The file on disk stays as large as it was.

# %% [markdown]
# ## Half a folder is worse than none
#
# An export is a folder of several files. The simple way is to write them into it, one after the other, over the old ones. Then there are moments at which the folder holds new weights beside an old vocabulary. A server that starts in one of them finds nothing wrong: both files are whole, and they load. Every word is another. A process that is killed in between leaves that folder behind for good.
#
# [Training](18_training.ipynb) wrote one file aside and renamed it. Here we do the same with a folder: all files go into a new folder beside it, and at the end one rename puts it in place. A single file can be renamed over another. A folder that is not empty cannot, so the old one steps aside for an instant, and comes back if the last step fails.
#
# | while | a server that opens the folder finds | after a kill there is |
# |---|---|---|
# | the files are written | the old export, whole | the old export, and a folder `.part` to delete |
# | one is renamed away and the other is not yet in place | nothing, an error | both, under `.part` |
# | all is done | the new export, whole | the new export |
#
# The middle row is two system calls long. A server that hits it fails with an error at once, and can try again. That is the difference that counts: an error is seen.
#
# Before the rename, each file is forced to disk with `fsync`. Without it, a rename may survive a power cut that the content does not.


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
# The second writer failed half way. The old weights are there, and nothing else is left beside the folder.
#
# ### What may be replaced?
#
# What is replaced is deleted. Somebody types the name of the wrong folder, and two months of notes are gone. So the folder must be empty, or hold exactly these files:


# %% tags=["export", "internal"]
SCRIPT = "translate.py"
EXPORTED = {"config.json", "model.bin", "shared_vocabulary.json", TOKENIZER, SCRIPT}

# %% [markdown]
# Anything else is somebody's work. A trained model of ours is refused as well: it has a `config.json` too, but other files beside it. That one matters most. An export carries no dropout and no way back, so the folder it came from must not be what it overwrites.


# %% tags=["export", "internal"]
def check_replaceable(folder: Path) -> None:
    """Raise FileExistsError if a folder holds anything but an earlier export."""
    if folder.is_dir() and {path.name for path in folder.iterdir()} not in (set(), EXPORTED):
        raise FileExistsError(
            f"{folder} holds files that are no export: take an empty folder, or a new one"
        )
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: take an empty folder, or a new one")


# %%
with tempfile.TemporaryDirectory() as home:
    for name in ("config.json", "notes.txt"):
        Path(home, name).touch()
    try:
        check_replaceable(Path(home))
    except FileExistsError as error:
        print(str(error).replace(home, "this folder"))

# %% [markdown]
# ## A script that goes along
#
# The folder goes to a machine where this book is not installed. Whoever finds it there has matrices and a vocabulary, and does not know how a text was cut into pieces, or with which beam our BLEU was measured. So the folder carries a script: cut into pieces, translate, join. It needs two packages and no PyTorch.
#
# Its settings make the engine search nearly as we do:
#
# - `beam_size=4`, and `length_penalty=0.5` for our 0.6. The two formulas differ, see below.
# - `max_input_length=0`. Left alone, the engine cuts a source after 1,024 pieces and does not say so.
# - `max_decoding_length`. Left alone, it stops at 256 pieces of output, in the middle of a sentence. Our own limit is 50 pieces beyond each source. The engine knows one number for all sentences of a call, so the script takes that of the longest, but never more than there are positions.
# - `min_decoding_length=0`. The engine asks for one piece at least, and we allow an empty translation.
# - `suppress_sequences`. Padding and `<s>` have rows in the output like every piece, and must not be written.
# - `max_batch_size=32`. The engine sorts the lines by length and takes 32 at a time.
#
# Three details are about text. `encode_special_tokens` makes `</s>` in a text four plain characters, not the end of the sentence; without it a user could end a sentence early by typing it. Lines are cut where `\n` stands and nowhere else, so line 7 of the output translates line 7 of the input. [Large corpora](D_large_corpora.ipynb) tells what Python's `splitlines` does to that. And an empty line stays empty, since a model that is given nothing to translate makes something up.


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

lines = [line.decode("utf-8-sig").rstrip("\\r\\n") for line in sys.stdin.buffer]
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
# Now all of it in order: refuse, describe, write. The order is on purpose. Both ways to refuse come before the first byte is written, so a model that cannot be exported leaves no trace. The tokenizer goes along without the SHA-256 that we keep in its file, since other programs refuse a field that they do not know. The script gets the number of positions of this model in place of `MAX_LENGTH`.


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
# We export the model that comes with the book and look at what is in the folder.

# %%
served = tempfile.TemporaryDirectory()
folder = f"{served.name}/model"
export_ctranslate2(model, tokenizer, folder)
for path in sorted(Path(folder).iterdir()):
    print(f"{path.stat().st_size:12,} bytes  {path.name}")

# %% [markdown]
# Nearly all of it is `model.bin`. Now the captions, first with the script, as a stranger would use it. To prove that it needs neither PyTorch nor this book, we forbid both: a module that is `None` cannot be imported.

# %% tags=["nbval-ignore-output"]
program = "import runpy, sys; sys.modules['torch'] = sys.modules['annotated_transformer'] = None; "
program += f"runpy.run_path({folder + '/translate.py'!r})"
text = "".join(f"{caption}\n" for caption in captions).encode()
done = subprocess.run([sys.executable, "-c", program], input=text, capture_output=True, check=True)
print(done.stdout.decode(), end="")
assert done.stdout.decode().splitlines() == translate(model, tokenizer, captions)

# %% [markdown]
# These are the translations of our own beam search, letter for letter. From here on we call the engine from Python, so that we can ask it more than a script can. It gets pieces and gives pieces. Greedily, both write the same again:

# %% tags=["nbval-ignore-output"]
settings = {"beam_size": 1, "min_decoding_length": 0, "suppress_sequences": [["<pad>"], ["<s>"]]}
sources = [tokenizer.library.encode(caption).tokens for caption in captions]
engine = ctranslate2.Translator(folder, compute_type="float32", intra_threads=1)
found = [result.hypotheses[0] for result in engine.translate_batch(sources, **settings)]
theirs = [tokenizer.library.decoder.decode(pieces) for pieces in found]
print(*theirs, sep="\n")
assert theirs == translate(model, tokenizer, captions, beam=1)

# %% [markdown]
# Are we done? The same words are a weak check. Greedy search picks the largest of 4,000 numbers, and mostly the largest is far ahead. A model with a small fault mostly still picks it. What it gets wrong is a sentence here and there, and our test had three.
#
# ### What can be compared in place of words?
#
# The numbers behind them. Both programs can score a translation that is given: how probable is its first piece after the source, its second after the first, and so on to `</s>`? A fault moves these log-probabilities even where it does not change which piece is the largest. No search takes part, so no difference between two searches can hide or fake anything.
#
# Our model does it in one pass, since the whole target is known. The engine has `score_batch` for it.
#
# A check that has never failed proves little, too. So the engine gets the model with a fault, put into the description before it is saved. Without one, it is the export as it should be.


# %%
def engine_with(spoil):
    """Return the engine with a model that has a fault."""
    description = description_of(model, tokenizer)
    spoil(description)
    with tempfile.TemporaryDirectory() as folder:
        description.save(folder)
        return ctranslate2.Translator(folder, compute_type="float32", intra_threads=1)


# %% [markdown]
# Next our own scores of the last translation, and the largest difference from those of the engine over its 16 pieces.

# %%
words = [tokenizer.library.token_to_id(piece) for piece in [*found[-1], "</s>"]]
source = [tokenizer.library.token_to_id(piece) for piece in [*sources[-1], "</s>"]]
with torch.no_grad():
    logits = model(torch.tensor([source]), torch.tensor([[BOS, *words[:-1]]]))
right = logits.log_softmax(dim=-1)[0, range(len(words)), words]


# %%
def engine_scores(spoil=lambda description: None):
    """Return the log-probabilities that the engine gives each piece, with a fault."""
    return torch.tensor(engine_with(spoil).score_batch(sources[-1:], found[-1:])[0].log_probs)


def worst_difference(spoil=lambda description: None):
    """Return the largest difference between the scores of both programs, one with a fault."""
    return (engine_scores(spoil) - right).abs().max().item()


exact = worst_difference()
assert exact < 1e-4
print("as exported, all scores agree to four places")

# %% [markdown]
# How close should they be? Both compute in single precision, with seven digits, and add in different orders. Logits of this model are about ten, so differences of some $10^{-6}$ are what rounding makes. Our bound of $10^{-4}$ leaves room for other processors. In probabilities it is one part in ten thousand. If you see $10^{-2}$, do not raise the bound: something means something else.
#
# ## What is each agreement worth?
#
# Now we give up one agreement at a time, for what the engine does unless told. Three rows of the table can be tried like this: the epsilon, the positions, the end of a source. We also give it our formula {eq}`eq-engine-positions` of its sinusoids, as a table. If we have understood what the engine does, it must do the same harm.


# %%
def positions(table):
    def spoil(description):
        for stack in (description.encoder, description.decoder):
            stack.position_encodings.encodings = table

    return spoil


def setting(name, value):
    return lambda description: setattr(description.config, name, value)


# %% [markdown]
# `"__optional"` is how a description says that a place is left empty on purpose. Then the engine falls back on its formula.

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
# Scores are natural logarithms, so a difference is a factor. With the engine's own positions, the piece that suffers most is off by a factor of $e^{0.67} = 1.95$. Without `</s>` it is off by a quarter, $e^{0.23} = 1.25$. And our formula does the same harm as the engine's sinusoids to five places, so it describes them well.
#
# The epsilon hardly shows. It is added to a variance before the root is taken, and here the variances are many times as large as either epsilon. In a model whose states have a variance near $10^{-5}$, the same slip would change them by a third. So we keep the agreement, though this model would forgive us.
#
# Which pieces suffer? The largest difference says only how bad the worst one is.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-pieces", "caption": "Which pieces feel a fault? The probability of each piece of the last translation, given those before it: ours (outlined circles), the engine as exported (dots inside of them), with its own positions (orange crosses) and without the end of the source (green triangles). The pieces are those of the page's own run."}, "image": {"alt": "Dots fill the circles exactly at all sixteen pieces. Crosses leave them at about five pieces, most at the word cleaning; the triangle leaves them at the full stop only."}}
style()
figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
looks = {
    "ours": (right, {"marker": "o", "mfc": "none", "color": INK, "ms": 9}),
    "as exported": (engine_scores(), {"marker": "o", "color": QUERY, "ms": 4}),
    "its positions": (engine_scores(faults["its positions"]), {"marker": "x", "color": KEY}),
    "no </s>": (engine_scores(faults["no </s>"]), {"marker": "^", "color": VALUE, "ms": 5}),
}
for name, (scores, look) in looks.items():
    axis.plot(scores.exp(), ls="none", label=name, **look)
pieces = [tokenizer.library.decoder.decode([piece]).strip() for piece in found[-1]]
axis.set_xticks(range(len(words)), [*pieces, "</s>"], rotation=40, ha="right", fontsize=9)
axis.set(ylabel="probability", ylim=(0, 1.05))
figure.legend(loc="outside upper center", ncols=4, frameon=False)
plt.show()
at = pieces.index("cleaning")
fallen = [looks[name][0][at].exp().item() for name in ("ours", "its positions")]
assert [round(probability, 2) for probability in fallen] == [0.72, 0.37]

# %% [markdown]
# Most pieces hardly move. With the engine's positions, *cleaning* falls from 0.72 to 0.37, and *in* and *on* fall by less. Without `</s>` one piece falls, the full stop: the model is not told that the source is over, and doubts that the translation is. A piece that falls may still be the largest of 4,000. Only where another one overtakes it does the text change, and from there on everything after it may.
#
# ### Would one see it in the words?
#
# We translate with the engine's own positions and compare with the right translations.

# %% tags=["nbval-ignore-output"]
faulty = engine_with(faults["its positions"]).translate_batch(sources, **settings)
for result, as_it_should_be in zip(faulty, theirs):
    text = tokenizer.library.decoder.decode(result.hypotheses[0])
    print(f"{'same ' if text == as_it_should_be else 'other'} {text}")
assert all(len(result.hypotheses[0]) > 5 for result in faulty)

# %% [markdown]
# Fluent English, a word exchanged here and there, and the longest caption does not differ at all. Nobody who reads a few translations would find the fault. BLEU might, if somebody had kept the number from before; then one would know that something is wrong, and not what. The comparison of scores needed one sentence and no reference translation.
#
# ### How would a team use this?
#
# As a gate. Ten sentences and their translations are kept beside the model, with the log-probabilities that the training program gave them. Whatever is about to serve the model must give the same numbers first. It costs a second, and it holds for the next version of the engine, for another processor, and for the colleague who writes a faster export.
#
# ## Is it faster?
#
# We go back to the caption from the beginning, and add the engine to what was measured there.

# %% tags=["nbval-ignore-output"]
engines = {"float32": engine}
engines["int8"] = ctranslate2.Translator(folder, compute_type="int8", intra_threads=1)
for kind, each in engines.items():
    work = lambda each=each: each.translate_batch(sources[-1:], **settings)
    spent[f"the engine, {kind}"] = milliseconds(work)
    print(f"{kind}: {spent['ours'] / spent[f'the engine, {kind}']:.1f} times as fast as ours")
assert spent["the engine, float32"] < spent["ours"]

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-one-request", "caption": "Where does the time of one request go? Milliseconds for one caption, greedily, on one thread of the machine that made this page. Above, our decoder; the hatched part is what its products with weights take when they are made by themselves. Below, the engine with the same weights, in single precision and in 8 bits."}, "image": {"alt": "The bar of our decoder is several times as long as the others, and most of it is not products. The engine takes about as long as our products alone, in 8 bits less."}}
style()
figure, axis = plt.subplots(figsize=(7, 2), layout="constrained")
bars = ["ours", "the engine, float32", "the engine, int8"]
axis.barh(bars, [spent[bar] for bar in bars], 0.6, color="none", edgecolor=[INK, QUERY, VALUE])
axis.barh("ours", spent["its products alone"], 0.6, color="none", edgecolor=INK, hatch="////")
for bar in bars:
    axis.text(spent[bar], bar, f"  {spent[bar]:.1f} ms", va="center")
middle = (spent["ours"] + spent["its products alone"]) / 2
axis.text(middle, "ours", "all that is not products", ha="center", va="center", fontsize=9)
axis.set(xlim=(0, 1.15 * spent["ours"]), xlabel="milliseconds")
axis.invert_yaxis()
plt.show()

# %% [markdown]
# In single precision the engine needs about as long as our products do, with all the rest included. So most of the gain is not a faster way to multiply. It comes from leaving out what stands round the products. In 8 bits the products get faster as well.
#
# ### And with a thousand captions?
#
# `benchmarks/serving.py` translates the 1,000 captions of the test set with both, two threads each, the systems by turns. Here is its [log](https://github.com/annotated-transformer/annotated-transformer/blob/main/benchmarks/results/serving-multi30k-de-en-2.jsonl), made by the command that it names.

# %%
path = Path("../benchmarks/results/serving-multi30k-de-en-2.jsonl")
address = (
    f"https://github.com/annotated-transformer/annotated-transformer/raw/main/{path.as_posix()[3:]}"
)
text = path.read_text() if path.exists() else urlopen(address).read().decode()  # in Colab
log = [json.loads(line) for line in text.splitlines()]
measured = [record for record in log if "bleu" in record]
print(log[0]["command"])
print("search  system               x ours   BLEU  as ours")
for record in measured:
    print(
        "{search:7} {system:20} {times_ours:6.2f}  {bleu:5.2f}  {same_as_ours:7,}".format(**record)
    )

# %% [markdown]
# The column "x ours" is how many times as fast as ours a system is, the median over the rounds, and "as ours" counts translations that are equal to ours. The machine was busy with other work, and from round to round the ratios spread. How widely?

# %%
turns = {(r["search"], r["round"], r["system"]): r["seconds"] for r in log if "round" in r}
spread = [
    turns["greedy", turn, "ours"] / turns["greedy", turn, "CTranslate2 float32"]
    for turn in range(1, 6)
]
print("greedy, single precision:", ", ".join(f"{ratio:.2f}" for ratio in spread))

# %% [markdown]
# From 1.02 to 2.17. So take the speeds as rough, and do not read anything into a difference of a tenth. BLEU and the count of equal translations do not depend on the load.
#
# Twenty thousand calls, and single precision is not even twice as fast? These were batches. A batch pays for a call once, for all its sentences, and both programs have to make the products. A sentence by itself bears all the calls.
#
# ## How many captions at a time?
#
# A server can choose. It may answer each request as it comes. Or it may wait until some have come, and answer them together. The first is what a user wants, the second is what the machine wants. How large is the conflict? We measure batches of our three captions, repeated.

# %% tags=["nbval-ignore-output"]
sizes = (1, 2, 4, 8, 16, 32)
waits = {"ours": [], "the engine, int8": []}
for size in sizes:
    lines, cut = (captions * 11)[:size], (sources * 11)[:size]
    ask = lambda lines=lines: translate(model, tokenizer, lines, beam=1)
    waits["ours"].append(milliseconds(ask, turns=3))
    ask = lambda cut=cut: engines["int8"].translate_batch(cut, **settings)
    waits["the engine, int8"].append(milliseconds(ask, turns=3))
for name, times in waits.items():
    one, many = times[0], times[-1]
    print(f"{name:16}: 1 in {one:.0f} ms, 32 in {many:.0f} ms, which is {many / 32:.1f} ms each")
assert waits["ours"][-1] < 32 * waits["ours"][0]

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-batch-latency", "caption": "What does company cost, and what does it gain? Left: the time until a batch is answered, which is what each of its users waits. Right: captions a second. Ours (circles) and the engine in 8 bits (triangles), greedy, one thread, on the machine that made this page."}, "image": {"alt": "With the batch, waiting grows for both, for ours slowly at first. Ours answers many times more captions a second in a batch of 32 than one at a time, the engine gains much less and stays ahead."}}
style()
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for (name, times), marker, color in zip(waits.items(), "o^", (INK, VALUE)):
    rates = [1000 * size / each for size, each in zip(sizes, times)]
    for axis, values in zip(axes, (times, rates)):
        axis.plot(sizes, values, marker=marker, color=color, lw=1.2)
    axes[0].annotate(
        name, (8, times[3]), (0, 8), textcoords="offset points", color=color, ha="right"
    )
for axis, label in zip(axes, ("milliseconds until all are answered", "captions a second")):
    axis.set(xscale="log", yscale="log", xlabel="captions in a batch", ylabel=label)
    axis.set_xticks(sizes, sizes)
    axis.minorticks_off()
plt.show()

# %% [markdown]
# Our decoder gains much by company. A step for 32 captions takes as many calls as a step for one, and the calls were most of the cost. The engine gains less, since it has few calls to share. So a program of many calls forces its server to collect requests. A program of few can answer each one as it comes.
#
# Add the waiting. If 20 requests a second arrive and the server collects 16, the first of a batch has waited 0.75 seconds before any work begins. Collecting pays when requests come faster than they can be answered one by one. Below that, it costs users time and gains nothing. A usual rule has two numbers: take what is there, at most so many, and never wait longer than some milliseconds for more.
#
# All sentences of a batch also wait for its longest. That is one reason more to sort by length, as [our own search](19_decoding.ipynb) and the engine both do.
#
# ## Is it as good?
#
# The rows with `int8` keep each row of a matrix as whole numbers from $-127$ to $127$, with one scale a row. That is a quarter of the memory, and processors multiply such numbers faster: four of them fit where one number in single precision was. The input of a product is rounded in the same way when it comes, and the result is scaled back. Exercise 4 does it by hand.
#
# Why one scale a row, and not one for the matrix? A scale follows from the largest number that shares it. If one row of a matrix has a weight of 10 and all others stay below 0.5, a common scale would leave the others with steps of $10 / 127 = 0.08$, six of them up to 0.5. With a scale of its own, only that row is coarse.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-serving", "caption": "What does speed cost? Three programs with the same weights, from the log above: how many times as fast as ours they translate 1,000 captions, and how well. Circles are ours, squares the engine in single precision, triangles in 8 bits. The machine was busy, so the speeds are rough."}, "image": {"alt": "From ours to single precision to 8 bits, speed rises to 1.7 times greedily and 2.0 times with a beam of 4, while BLEU falls by 0.5 and 0.4."}}
style()
figure, axis = plt.subplots(figsize=(6, 3.2))
for search, color in (("greedy", KEY), ("beam 4", QUERY)):
    points = [(r["times_ours"], r["bleu"]) for r in measured if r["search"] == search]
    axis.plot(*zip(*points), ":", color=color, lw=1.2)
    for point, marker, label in zip(points, "os^", (f"ours, {search}", "float32", "int8")):
        axis.plot(*point, marker, color=color, markersize=7)
        axis.annotate(label, point, (7, 6), textcoords="offset points", color=INK)
axis.set(xlabel="times as fast as ours", ylabel="BLEU", xlim=(0.9, 2.2), ylim=(35, 38.5))
plt.show()

# %% [markdown]
# Greedy and in single precision, all 1,000 captions are the same. In 8 bits a quarter of them differ, and the loss is 0.46 points greedily and 0.39 with a beam. [Evaluation](20_evaluation.ipynb) says what can be made of such differences: on one test set of 1,000 captions, not much more than that they are small. A different translation is not a worse one, mostly.
#
# ### Why does the beam differ, if the scores agree?
#
# With a beam, both with $\alpha = 0.6$, 71 differ, for two reasons, and neither has to do with the model.
#
# The first is the penalty. The engine divides by $L^\alpha$, where [our search](19_decoding.ipynb) divides by $((5 + L) / 6)^\alpha$. From length 10 to length 14, ours grows by a factor of $(19/15)^{0.6} = 1.15$ and the engine's by $1.4^{0.6} = 1.22$. So its 0.6 favors long translations more than ours. With $\alpha = 0.5$ it grows by $1.4^{0.5} = 1.18$, which is nearer. The script has 0.5, and exercise 1 shows a case in which that decides.
#
# The second is when to stop. The engine stops when it has as many finished hypotheses as the beam is wide, though a running one may still win. `patience=2` makes it search on. The log has what each of the two leaves:

# %%
for record in log:
    if "patience" in record:
        alpha, patience = record["length_penalty"], record["patience"]
        print(f"alpha {alpha}, patience {patience}: {1000 - record['same_as_ours']} differ")

# %% [markdown]
# So 35 differ with 0.5, and 16 with both. The script leaves `patience` at 1. With 2, every search would be longer, to write what ours does for 19 captions of 1,000 more.
#
# ## Questions that come up
#
# **Does it run on a GPU?** The engine does, with `device="cuda"` where the translator is made. The folder is the same. We had none to try it on while this chapter was written, so it has no numbers for it.
#
# **How many threads?** `intra_threads` is how many threads share one product, `inter_threads` how many batches are at work at once. Products of this size are too small to share well. For a server with many users, several batches at once on one thread each is the place to begin.
#
# **Can the folder be smaller on disk?** Yes. The engine's own converters can store 8 bits, which would make ours about a quarter as large. We keep single precision on disk, so the same export serves for comparing scores and for serving fast.
#
# **Can I train the export further?** No. It carries no dropout, no optimizer and no way back: keep what `save_model` wrote.
#
# **Do I have to export again when the engine gets a new version?** The description carries a version of its format, which the engine checks. What it *means* by the same matrices could change all the same, and no version number would tell. Run the comparison of scores.
#
# **Would another engine do?** Yes. The functions of this chapter would have other places to fill, and the table of agreements would have other entries in its last column. The order of work stays: write down what both must agree on, copy, compare log-probabilities, then measure speed.
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
rows = model.encoder.layers[0].feed_forward.linear1.weight.detach()
scale = torch.from_numpy(place.weight_scale.numpy())
torch.testing.assert_close(scale, 127 / rows.abs().amax(dim=1))
off = (torch.from_numpy(place.weight.numpy()) - rows * scale[:, None]).abs().max()
assert 0.4 < off < 0.5001  # at most half a step
print("a weight is stored as", place.weight.dtype)
served.cleanup()
