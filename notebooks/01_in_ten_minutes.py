# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # The Transformer in ten minutes
#
# *Zwei kleine Kinder spielen im Sand* becomes *Two young children are playing in the sand*, by a network that has never been told a rule of either language. In this chapter you translate with it, look inside it, and train one of your own in about a minute.
#
# The network is a Transformer, from the paper *Attention Is All You Need* {cite:p}`vaswani2017attention`. The large language models that came later are built from its parts.
#
# ## Translate
#
# A small model comes with the package. It has read 200,000 pairs of German and English: everyday sentences, photo captions and a list of common words.

# %%
from annotated_transformer import load_pretrained, translate

model, tokenizer = load_pretrained()
german = ["Ich habe heute leider keine Zeit.", "Zwei kleine Kinder spielen im Sand."]
print(translate(model, tokenizer, german))

# %% [markdown]
# Replace the sentences with your own. Short ones, as people say them, tend to work. A line from the news has words the model has never met. You get a sentence all the same, and no warning:

# %%
news = "Die Bundesregierung hat das Gesetz zum Schutz der Wälder verabschiedet."
print(translate(model, tokenizer, [news]))

# %% [markdown]
# Four words will carry you through this chapter.
#
# - A **token** is a piece of text with a number: a word, or a part of one. The model sees only the numbers.
# - The **encoder** reads all source tokens at once and turns each into a vector that describes the word in its context.
# - The **decoder** writes the translation token by token. At each step it looks at the encoder's vectors and at what it has written so far, and gives every token in the vocabulary a probability of coming next.
# - The **loss** measures how improbable the model found the right next token. Training changes the model's numbers so that the loss becomes smaller; it does nothing else.
#
# Here are the tokens of *Zwei kleine Kinder spielen im Sand.* with their numbers, and the size of the model. A *parameter* is a number that training may change.

# %%
ids = tokenizer.encode(german[-1])
print([(number, tokenizer.decode([number])) for number in ids])
print(
    f"{len(tokenizer):,} tokens, {sum(p.numel() for p in model.parameters()):,} parameters"
)

# %% [markdown]
# ## Look inside
#
# Which German words does the decoder look at when it is about to write an English one? A Transformer lets you read that off, because its **attention** gives each source token a weight, and the weights sum to 1. Before you look, guess which German word `playing` looks at.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-first-look", "caption": "Where does the model look before it writes each English word? Attention from decoder to encoder in the last layer (averaged over its heads). Each row is a token about to be written and sums to 1; each column is a source token (`</s>` ends a sentence). An empty cell is 0, a full one 1."}}
import torch

from annotated_transformer.attention_maps import attention_maps, token_names
from annotated_transformer.masks import BOS, EOS
from book.figures import heatmap, show

(english,) = translate(model, tokenizer, german[-1:])
source = torch.tensor([[*ids, EOS]])
target = torch.tensor([[BOS, *tokenizer.encode(english)]])
weights = attention_maps(model, source, target).cross[-1].mean(dim=0)
rows = token_names(tokenizer, [*target[0, 1:].tolist(), EOS])
columns = token_names(tokenizer, source[0].tolist())
show(
    heatmap(weights, rows, columns, titles=("about to be written", "source")),
    alt="The largest weights run down the diagonal: Two looks at Zwei, children at Kinder, are and playing both at spielen, sand at Sand.",
)

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(weights)))

# %% [markdown]
# No sentence in the model's data says which of its words belong together. The model worked it out, because that made the loss smaller. (Such pictures can be [trusted less than they suggest](21_attention_maps.ipynb#what-attention-does-not-explain).) You can also [look inside](../book/inside.md) the whole machine, with a sentence of your own, down to single numbers.
#
# ## Train one yourself
#
# The next cell trains a translator from nothing: the network starts with random numbers, and 1,000 updates make its loss smaller. The sentence pairs come from a small [German-English grammar](B_synchronous_grammar.ipynb) that can make as many as you like, with some of what makes German hard: cases, separable verbs, and verbs that wait at the end of the clause. On one processor core this takes about a minute, or a few on a busy machine.

# %% tags=["nbval-ignore-output"]
import torch

from annotated_transformer import Tokenizer, Transformer, TrainingConfig
from annotated_transformer import grammar, preset, train

pairs = grammar(11_000)
training, unseen = pairs[1000:], pairs[:1000]
own_tokenizer = Tokenizer.train(training, vocabulary_size=700)
torch.manual_seed(0)
own = Transformer(preset("tiny", vocabulary_size=len(own_tokenizer)))


def note(progress):
    if progress["step"] % 100 == 0:
        print(f"step {progress['step']:4}  loss {progress['loss']:.2f}")


own = train(own, own_tokenizer, training, TrainingConfig(steps=1000), report=note)

# %% [markdown]
# What does it make of 200 sentences that it has not been trained on?
#
# **Exercise 1. Count them first** (★, 5 min). `translate` returns a list of sentences, and each pair has a `source` and a `target`. Before you look at the next cell, write the lines that count how many of the 200 come out exactly right.

# %% tags=["nbval-ignore-output"]
found = translate(own, own_tokenizer, [pair.source for pair in unseen[:200]])
for pair, sentence in list(zip(unseen, found))[:4]:
    print(f"{pair.source}\n    {sentence}")
right = sum(sentence == pair.target for sentence, pair in zip(found, unseen))
print(f"{right} of {len(found)} exactly as the grammar has them")

# %% tags=["remove-cell"]
if CHECKING:
    assert right > 60

# %% [markdown]
# In the run shown, more than half are exactly right; others often lose the thread in the second clause. It is a complete Transformer, with every part the paper describes. It can learn [your own language pair](../book/own_pair.md#what-you-need) instead, and go into [one file](../book/own_pair.md#send-it-to-a-friend) that works in any browser.
#
# ## The map
#
# The paper's first figure shows the model as two towers. Here it is, drawn for this book; read it from bottom to top.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-figure-1", "caption": "What is a Transformer made of? The encoder (left) reads the source, the decoder (right) writes the target. Each layer is repeated N times, six in the paper. Blue, orange and green arrows belong to attention, in chapter 3. Each box opens its chapter."}}
from book.figures import INK, KEY, QUERY, VALUE, arrow, box, show_drawing, words_at

HEADS, NORM, NETWORK = (
    "05_multi_head_attention.html",
    "09_layers.html",
    "06_feed_forward.html",
)


W = 130  # of a box


def frame(x, y, height):
    place = f'x="{x}" y="{y}" width="{W + 36}" height="{height}" rx="10"'
    dashed = f'<rect {place} fill="none" stroke="{INK}" stroke-dasharray="3 4"/>'
    return dashed + words_at(x + (-16 if x < 200 else W + 52), y + height / 2, "N ×")


def sublayer(x, y, title, below, link):
    """A box with its sum and norm above; the stream runs from below and passes it on the left."""
    middle = x + W / 2
    around = arrow([(middle, y + 72), (x - 10, y + 72), (x - 10, y - 21), (x, y - 21)])
    parts = [arrow([(middle, y + 90), (middle, y + 52)]), around]
    parts += [
        box(x, y, W, 52, title, below, link),
        arrow([(middle, y), (middle, y - 8)]),
    ]
    return "".join([*parts, box(x, y - 34, W, 26, "add & norm", link=NORM)])


def feet(x, title):
    middle = x + W / 2
    parts = [words_at(middle, 708, title)]
    parts += [arrow([(middle, 692), (middle, 672)])]
    parts += [box(x, 630, W, 42, "embedding", link="07_embeddings.html")]
    parts += [arrow([(middle, 630), (middle, 612)])]
    parts += [box(x, 570, W, 42, "+ position", link="08_positional_encoding.html")]
    return "".join(parts)


E, D = 44, 250
encoder, decoder = E + W / 2, D + W / 2
drawing = [frame(E - 18, 306, 250), frame(D - 18, 180, 376)]
drawing += [feet(E, "source tokens"), feet(D, "target tokens so far")]
drawing += [sublayer(E, 482, "multi-head", "self-attention", HEADS)]
drawing += [sublayer(E, 358, "feed-forward", "each position by itself", NETWORK)]
drawing += [
    sublayer(D, 482, "multi-head", "self-attention, no future", "04_masks.html")
]
drawing += [sublayer(D, 358, "multi-head", "attention to the source", HEADS)]
drawing += [sublayer(D, 234, "feed-forward", "each position by itself", NETWORK)]
for shift, color in ((-8, KEY), (8, VALUE)):
    up = [
        (encoder + shift, 324),
        (encoder + shift, 290 - shift),
        (E + 168 - shift, 290 - shift),
    ]
    drawing += [arrow([*up, (E + 168 - shift, 384 + shift), (D, 384 + shift)], color)]
drawing += [arrow([(decoder, 448), (decoder, 410)], QUERY)]
drawing += [arrow([(decoder, 200), (decoder, 160)])]
drawing += [box(D, 118, W, 42, "linear", "the embedding", "07_embeddings.html")]
drawing += [arrow([(decoder, 118), (decoder, 98)])]
drawing += [box(D, 56, W, 42, "softmax", "", "10_transformer.html")]
drawing += [
    arrow([(decoder, 56), (decoder, 36)]),
    words_at(decoder, 26, "next token: probabilities"),
]
drawing += [
    words_at(encoder, 730, "encoder", 15),
    words_at(decoder, 730, "decoder", 15),
]
show_drawing(
    drawing,
    436,
    745,
    "Two towers. The encoder's result enters the decoder as keys and values.",
)

# %% [markdown]
# Tokens become vectors, and each vector is told its position. Then a stream of vectors climbs through the layers. Attention moves information *between* positions, the feed-forward network works on each position *by itself*, and each of the two adds its result to the stream instead of replacing it. At the top of the decoder, the stream is compared with every token of the vocabulary: the better the match, the more probable the token.
#
# ## What the paper claimed
#
# Until the paper, the best translators were recurrent or convolutional networks with some attention on top; the [next chapter](02_before_attention.ipynb) shows what that cost. The paper removed recurrence and convolution, kept the attention, and reported, on the standard test set of 2014:
#
# | model | en-de, BLEU | en-fr, BLEU | training cost en-de, operations |
# |---|---|---|---|
# | GNMT + RL (recurrent) | 24.6 | 39.9 | 2.3 · 10¹⁹ |
# | ConvS2S (convolutional) | 25.2 | 40.5 | 9.6 · 10¹⁸ |
# | Transformer, base | 27.3 | 38.1 | 3.3 · 10¹⁸ |
# | Transformer, big | 28.4 | 41.8 | 2.3 · 10¹⁹ |
#
# [BLEU](20_evaluation.ipynb#why-each-part-of-bleu-is-there) measures, on a scale from 0 to 100, how many words and phrases a translation shares with a reference. In English-German even the base model, trained in twelve hours on eight GPUs, beat all earlier ones, ensembles included; in English-French only the big model did. These are the paper's figures (its Table 2), not ours; the [chapter on WMT14](30_wmt14.ipynb) has the commands to try them.
#
# ## What to remember
#
# - The encoder reads the source all at once; the decoder writes one token at a time and looks back at the source through attention.
# - A translator is trained by showing it pairs of sentences and making the right next token more probable.
# - A model knows what it was trained on. Outside of that it still writes a sentence, and nothing warns you.
#
# ## Exercises
#
# **1. Count them first** is [above](#train-one-yourself); the code below it is the solution. A sentence that differs by one letter counts as wrong, although it may be a good translation. [Evaluation](20_evaluation.ipynb) is about better measures.
#
# **2. Find its limits** (★, 5 min). Translate ten sentences of your own with `model`. Which kinds go wrong first: long ones, rare words, questions, negations? Guess before you try.
#
# :::{admonition} Solution 2
# :class: dropdown
# Words that it has never met do the most harm, as in the line from the news: the tokenizer always finds pieces for them, but the model has hardly ever seen these pieces together. Long sentences come next, because most of those that it has read are short.
# :::
#
# **3. The other way round** (★★, 10 min). Train the same network from English to German, with `Pair(pair.target, pair.source)`, which you import from `annotated_transformer.data`. Do you expect more sentences to come out exactly right, or fewer? Why?
#
# :::{admonition} Solution 3
# :class: dropdown
# Fewer, when we tried it. German has to choose endings that English doesn't show: *the small woman* is *die kleine Frau* when she acts and *der kleinen Frau* when she is given something, so a single wrong letter, as in *dieser kleine Frau*, spoils the sentence. Besides, German words may stand in several orders, and the count accepts only the one that the grammar has written down.
# :::
#
# ## Further
#
# The model and the numbers of the table are from {cite:t}`vaswani2017attention`. The everyday sentences that the model has read are by the contributors of [Tatoeba](https://tatoeba.org), the captions are those of Multi30k {cite:p}`elliott2016multi30k`. The plan of this first chapter owes something to Jay Alammar's *The Illustrated Transformer*, which shows the whole before its parts.
