# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["treebank"]
# # Parsing
#
# This chapter teaches the model, without any new part, to write down the structure of a sentence, as if that were another language (section 6.3 of the paper).

# %% tags=["hide-input"]
import statistics
from collections import Counter
from itertools import chain, pairwise
from random import Random

import altair as alt
import torch

from annotated_transformer.masks import BOS, EOS
from annotated_transformer.transformer import Transformer, TransformerConfig
from benchmarks import treebank
from benchmarks.common import read_log
from benchmarks.experiments.parsing import Code, allowed, encode_trees, fit
from benchmarks.treebank import clean, leaves, read_trees, words_of
from book.figures import AMBER, INK, PAPER, PLUM, show, show_drawing, words_at


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-tree", "caption": "Which words belong together, and as what? The tree of *the black cat likes fish*. A label opens a bracket around all that hangs below it: S is a sentence, NP a noun phrase, VP a verb phrase. Each word hangs below its tag: DT, JJ, NN and VBZ are determiner, adjective, noun and verb."}}
def show_tree(tree, alt):
    parts, step = [], 56
    across = iter(range(step // 2, 10_000, step))

    def place(node, y):
        label, inside = node
        if isinstance(inside, str):
            x = next(across)
            parts.append(words_at(x, y + 18, inside, size=14))
            low = y + 18
        else:
            below = [place(child, y + 46) for child in inside]
            x = (below[0][0] + below[-1][0]) / 2
            low = max(depth for _, depth in below)
            parts.extend(
                f'<path d="M{x:g},{y + 5:g}L{to:g},{y + 32:g}" stroke="{INK}" opacity="0.5"/>'
                for to, _ in below
            )
        parts.append(words_at(x, y, label, size=12))
        return x, low

    low = place(tree, 20)[1]
    show_drawing(parts, step * len(leaves(tree)), round(low) + 12, alt)


(drawn_tree,) = read_trees(
    "(S (NP (DT the) (JJ black) (NN cat)) (VP (VBZ likes) (NP (NN fish))))"
)
show_tree(
    drawn_tree,
    "A sentence S is made of a noun phrase, the black cat, and a verb phrase, which is made of the verb likes and another noun phrase, fish.",
)

# %% [markdown]
# A **parse tree** says which words of a sentence belong together, and as what. To a model that writes symbols it is a text with brackets, so a translator can try to learn it like any language.
#
# But a tree has a form, and no part of a translator knows that an open bracket must be closed. So before you read on, make a guess. A small model learns from 3,400 sentences of a newspaper and their trees. For what share of new sentences does it write a tree at all, be it right or wrong? And what would it take to make that all of them?
#
# (Why parse, if you came to translate? Because sooner or later you'll want output that has a form: a tree, a table, a piece of code.)
#
# ## A tree as a text
#
# In our code a tree is a pair: a label and a list of trees or, for a word, its tag and the word. To **linearize** a tree is to write it as a list of symbols: `(NP` opens a bracket, `)` closes one, and a word comes before its tag, as in `cat` `/NN`. The tree above becomes
#
# ```
# (S (NP the /DT black /JJ cat /NN ) (VP likes /VBZ (NP fish /NN ) ) )
# ```
#
# **Exercise 1. Write it first** (★, 5 min). Before you read on, write `linearize(tree)`, which returns this list. Ours:


# %%
def linearize(tree):
    label, inside = tree
    if isinstance(inside, str):
        return [inside, f"/{label}"]
    return [f"({label}", *chain(*map(linearize, inside)), ")"]


subject = "NP", [("DT", "the"), ("JJ", "black"), ("NN", "cat")]
predicate = "VP", [("VBZ", "likes"), ("NP", [("NN", "fish")])]
ours = "S", [subject, predicate]
print(*linearize(ours))

# %% [markdown]
# {cite:t}`vinyals2015grammar` called this "Grammar as a Foreign Language", and the Transformer's authors follow them to show that their model isn't a machine for translation alone. Vinyals and his colleagues leave the words out, since the third tag can only mean the third word. We write them all the same, because a word in the output tells the model which word it has come to. ([What that is worth](#do-the-words-help).)
#
# ## Back to a tree
#
# Reading the symbols needs a stack of the brackets that are open. What a model writes need not be a tree; then `restore` returns None. It passes over the words, because the tags come in the same order.


# %%
def restore(symbols, words):
    stack, tagged = [("", [])], 0
    for symbol in symbols:
        children = stack[-1][1]
        if symbol[0] == "(":
            stack.append((symbol[1:], []))
        elif symbol[0] == "/":
            if tagged == len(words):
                return None  # a tag too many
            children.append((symbol[1:], words[tagged]))
            tagged += 1
        elif symbol == ")":
            if len(stack) == 1 or not children:
                return None  # nothing to close, or nothing in it
            done = stack.pop()
            stack[-1][1].append(done)
    trees = stack[0][1]
    if len(stack) > 1 or len(trees) != 1 or tagged < len(words):
        return None  # a bracket is open, or a word is left
    return trees[0]


symbols = ["(NP", "the", "/DT", "cat", "/NN", ")"]
print(restore(symbols, ["the", "cat"]))
print(restore(symbols[:-1], ["the", "cat"]))

# %% tags=["remove-cell"]
if CHECKING:
    some = words_of(ours)[:3]
    for broken in (
        "(S /DT /JJ /NN (VP /VBZ",
        "(S /DT /JJ /NN ) )",
        "(S /DT /JJ )",
        "(S (NP ) /DT )",
    ):
        assert restore(broken.split(), some) is None
    assert restore(linearize(ours), words_of(ours)) == ours

# %% [markdown]
# ## A parser in a quarter of a minute
#
# First an easy language. Five rules draw trees, and `words_of` lists a tree's words. A noun phrase may hold another one, as in *the cat that sees the dog near the bird*, so brackets can be deep.

# %%
RULES = {
    "S": ["NP VP"],
    "NP": ["DT NN", "DT JJ NN", "NN", "DT NN PP", "DT NN SBAR"],
    "PP": ["IN NP"],
    "SBAR": ["WDT VP"],
    "VP": ["VBZ NP", "VBZ NP", "VBZ"],
}
WORDS = {
    "DT": "the a this every",
    "JJ": "black small old",
    "NN": "cat dog mouse bird fish",
    "VBZ": "likes sees chases finds",
    "IN": "near behind",
    "WDT": "that",
}


def draw(label, random):
    if label in WORDS:
        return label, random.choice(WORDS[label].split())
    parts = random.choice(RULES[label]).split()
    return label, [draw(part, random) for part in parts]


random = Random(1)
drawn = [draw("S", random) for _ in range(6000)]
trees = [tree for tree in drawn if 5 <= len(words_of(tree)) <= 14]
trees = list({str(tree): tree for tree in trees}.values())  # each once
print(len(trees), "trees, one of them:", *linearize(trees[2]))

# %% [markdown]
# `Code` makes one vocabulary of words and symbols: its `source` turns words into ids, and its `read` turns ids back into symbols. `encode_trees` turns trees into pairs of a sentence and its symbols, and `fit` makes the updates of [the training chapter](18_training.ipynb#one-update) and keeps the weights with the lowest loss on held-out trees. A hundred trees are kept for that, and a hundred more for the test. The model has one layer, with [the norms in front](09_layers.ipynb#why-the-place-of-the-norm-matters).

# %% tags=["nbval-ignore-output"]
test, held_out, learn = trees[:100], trees[100:200], trees[200:]
code = Code(learn)
sizes = {"layers": 1, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.0}
torch.manual_seed(0)
model = Transformer(TransformerConfig(len(code.entries), **sizes, pre_norm=True))
data = encode_trees(code, learn), encode_trees(code, held_out)
model = fit(model, *data, steps=400, warmup=100, every=100)

# %% [markdown]
# It writes greedily. A `rule` can say what may come next; everything else then gets the logit $-\infty$, as a [mask](04_masks.ipynb#how-to-hide-a-key) would do it. At first there is none.


# %%
def write(words, rule=None):
    source, ids = torch.tensor([code.source(words)]), [BOS]
    while ids[-1] != EOS and len(ids) < 6 * len(words) + 10:
        with torch.no_grad():
            logits = model(source, torch.tensor([ids]))[0, -1]
        if rule is not None:
            written = code.read(ids[1:])
            may = torch.tensor([rule(entry, written, words) for entry in code.entries])
            logits[~may] = -torch.inf
        ids.append(logits.argmax().item())
    return code.read(ids[1:])


# %% tags=["nbval-ignore-output"]
free = {tuple(words_of(tree)): write(words_of(tree)) for tree in test}
broken = [words for words, symbols in free.items() if not restore(symbols, words)]
print(f"{len(broken)} of {len(free)} are no trees. The shortest of them:")
shortest = min(broken, key=len)
print(*shortest)
print(*free[shortest])

# %% [markdown]
# In the run shown, the shortest lacks one bracket: after the last `dog` and its tag six must close, and it closes five. It takes no more than that to lose a whole sentence.
#
# ## Must the output be a tree?
#
# That need not be left to the model. Before each step, a few rules say which symbols can still lead to a tree. A tree begins with a bracket and ends when that one is closed. After a word comes its tag. A bracket closes only if there is something in it, and the outermost one only after the last word. A word must be the next one of the sentence.
#
# :::{margin}
# At most five brackets may open in a row, or a search might open them forever.
# :::


# %%
def may_follow(symbol, written, words):
    opens = [other[0] == "(" for other in written]
    depth = sum(opens) - written.count(")")
    tagged = sum(other[0] == "/" for other in written)
    if not written:
        return symbol[0] == "("
    if depth == 0:
        return symbol == "</s>"
    if written[-1][0] not in "()/":  # a word
        return symbol[0] == "/"
    if symbol == ")":
        return not opens[-1] and (depth > 1 or tagged == len(words))
    if tagged == len(words):
        return False
    if symbol[0] == "(":
        return len(opens) < 5 or not all(opens[-5:])  # five in a row at most
    return symbol == words[tagged]


# %% tags=["remove-cell"]
if CHECKING:
    dice = Random(0)
    for tree in test[:8]:
        sentence = words_of(tree)
        source = torch.tensor([code.source(sentence)])
        written, ids = [], [BOS]
        while ids[-1] != EOS and len(ids) < 60:
            may = [may_follow(entry, written, sentence) for entry in code.entries]
            inputs = torch.tensor([[ids]]), source, torch.tensor([[len(sentence)]])
            assert may == allowed(*inputs, code.kinds)[0, 0].tolist(), written
            ids.append(dice.choice([number for number, yes in enumerate(may) if yes]))
            written.append(code.entries[ids[-1]])

# %% [markdown]
# Let's watch the rules at work on our sentence, with `(NP` for every label and `/NN` for every tag:

# %%
words, symbols = words_of(ours), linearize(ours)
for step in range(len(symbols) + 1):
    written = symbols[:step]
    choices = ["(NP", *words, "/NN", ")", "</s>"]
    may = [symbol for symbol in choices if may_follow(symbol, written, words)]
    print(f"{written[-1] if written else 'start':6} then  {'  '.join(may)}")

# %% [markdown]
# Once the noun phrase of `cat` is closed, a second `)` is forbidden, because it would close the sentence while two words are left. After `fish` and its tag only closing brackets remain, exactly as many as are open. So the model no longer has to count. Does it now write trees?

# %% tags=["nbval-ignore-output"]
held = {words: write(list(words), may_follow) for words in free}
print(sum(restore(held[words], words) is not None for words in held), "trees of 100")
print(*held[shortest])

# %% tags=["remove-cell"]
if CHECKING:
    assert 5 <= len(broken) <= 97
    assert sum(restore(held[words], words) is not None for words in held) > 97

# %% [markdown]
# ## How right is a tree?
#
# All hundred are trees now, but not all are right. Since a tree can be partly right, one counts brackets, each with its label, its first and its last word. $G$ are those of the tree that an expert drew (the gold), $P$ the parser's, and $|\cdot|$ counts:
#
# $$
# F_1 = \frac{2 \, |G \cap P|}{|G| + |P|}
# $$ (eq-f1)
#
# Tags don't count. The sum runs over the brackets of all sentences, and output that isn't a tree counts as a tree without brackets.


# %%
def brackets(tree, start=0):
    label, inside = tree
    if isinstance(inside, str):
        return start + 1, Counter()
    end, found = start, Counter()
    for child in inside:
        end, more = brackets(child, end)
        found += more
    found[label, start, end] += 1
    return end, found


def labeled_f1(gold, parsed):
    common = total = 0
    for right, guess in zip(gold, parsed, strict=True):
        G = brackets(right)[1]
        P = brackets(guess)[1] if guess else Counter()
        common += (G & P).total()
        total += G.total() + P.total()
    return 100 * 2 * common / total


# %% tags=["nbval-ignore-output"]
for name, written in {"left free": free, "held to trees": held}.items():
    parsed = [restore(symbols, words) for words, symbols in written.items()]
    print(f"{name}: F1 {labeled_f1(test, parsed):.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    left = [restore(free[words], words) for words in free]
    for found in (parsed, left):
        assert abs(labeled_f1(test, found) - treebank.labeled_f1(test, found)) < 1e-9
    assert labeled_f1(test, parsed) > max(labeled_f1(test, left), 75)

# %% [markdown]
# Both scores come from the same weights. Only the search has changed.
#
# ## Newspapers
#
# English trees come from the **Penn Treebank** {cite:p}`marcus1993building`, whose best-known part is articles of the *Wall Street Journal*, bracketed by a program and corrected by hand. NLTK distributes a sample for non-commercial use:

# %%
sample = [*chain(*treebank.read_treebank())]

# %% tags=["remove-cell"]
if CHECKING:
    assert len(sample) == 3914
    assert all(treebank.linearize(tree) == linearize(tree) for tree in sample)
    assert all(restore(linearize(tree), words_of(tree)) == tree for tree in sample)
    for tree in map(clean, sample):
        symbols, words = linearize(tree), words_of(tree)
        assert restore(symbols, words) == treebank.restore(symbols, words) == tree

# %% [markdown]
# We train on 3,396 of its trees, choose the weights on 273 others, and score on the last 245. The model has two layers of width 128. It knows the 3,000 most frequent words; of a rarer one it sees only an outline, such as `*ck` for *black*. The search is [the beam search](19_decoding.ipynb#the-whole-search) with the paper's settings for parsing, a beam of 21 and $\alpha = 0.3$. From three seeds (log of `python -m benchmarks.experiments.parsing`):

# %%
settings, *runs = read_log("parsing")
full = [run for run in runs if run["share"] == 1 and run["words_written"]]
full.sort(key=lambda run: run["seed"])
for run in full:
    trees_free, trees_held = run["well_formed_free"], run["well_formed_constrained"]
    print(f"left free     {trees_free:4.0%} trees, F1 {run['f1_free']:.1f}")
    print(f"held to trees {trees_held:4.0%} trees, F1 {run['f1_constrained']:.1f}")

# %% [markdown]
# That is the answer to the guess at the start: left free, this model writes a tree for about one sentence in five, although the same weights know enough about phrases to score more than twice as high when they are held to trees.
#
# :::{margin}
# One or two in a hundred fail even so: with up to five new brackets before each word, they reach the length limit before the last one.
# :::
#
# How many trees would it take to get further? The same command also trains on an eighth, a quarter and half of them.

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-parsing-curve", "caption": "How far do 3,400 trees get you? Labeled F1 over the number of trees trained on (logarithmic): each run and the mean of its size, with the search left free (purple) and held to trees (orange). The diamond is the paper's model, with twelve times the trees and many times the size."}}
by_size = {}
for run in sorted(runs, key=lambda run: (run["trees"], run["seed"])):
    if run["words_written"]:
        by_size.setdefault(run["share"], []).append(run)
kinds = {"left free": ("f1_free", PLUM), "held to trees": ("f1_constrained", AMBER)}
points = [
    {"trees": run["trees"], "f1": run[field], "search": kind}
    for kind, (field, _) in kinds.items()
    for found in by_size.values()
    for run in found
]
colors = alt.Scale(domain=[*kinds], range=[color for _, color in kinds.values()])
key = alt.Color("search:N", scale=colors, sort=None, legend=None)
x = alt.X(
    "trees:Q",
    title="trees",
    scale=alt.Scale(type="log", domain=[300, 60_000], nice=False),
    axis=alt.Axis(values=[400, 1000, 4000, 10_000, 40_000]),
)
y = alt.Y("f1:Q", title="labeled F1", scale=alt.Scale(domain=[0, 100]))
base = alt.Chart(alt.Data(values=points))
paper = alt.Chart(alt.Data(values=[{"trees": 40_000, "f1": 91.3}])).encode(x, y)
means = base.encode(x, alt.Y("mean(f1):Q"), key)
ends = alt.Chart(alt.Data(values=[point for point in points if point["trees"] > 3000]))
names = ends.mark_text(align="left", dx=8).encode(
    x, alt.Y("mean(f1):Q"), key, text="search:N"
)
over_seeds = {
    kind: statistics.mean(run[field] for run in by_size[1])
    for kind, (field, _) in kinds.items()
}
show(
    alt.layer(
        base.mark_point(filled=True, size=30, opacity=1).encode(x, y, key),
        means.mark_line(),
        names,
        paper.mark_point(shape="diamond", size=90, color=INK, fill=PAPER),
        paper.mark_text(align="right", dx=-10, color=INK).encode(
            text=alt.value("the paper, 91.3")
        ),
    ).properties(width=290, height=240),
    alt=f"With all trees the free search reaches an F1 of {over_seeds['left free']:.1f}, the one held to trees {over_seeds['held to trees']:.1f}; the paper has 91.3.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert [*by_size] == [8, 4, 2, 1] and len(by_size[1]) == 3
    files = treebank.split_treebank()
    assert [len(part) for part in files] == [3396, 273, 245]
    assert all(0.2 < run["well_formed_free"] < 0.24 for run in full)
    held_f1 = [found[0]["f1_constrained"] for found in by_size.values()]
    assert all(big - small > 5 for small, big in pairwise(held_f1))
    f1 = [run["f1_constrained"] for run in full]
    assert max(f1) - min(f1) < 1

# %% [markdown]
# The curve is steep and doesn't bend yet. Held to trees, each doubling gains at least five points. The smaller sizes are a single run each, but the three seeds of the largest differ only by one.
#
# ### Do the words help?
#
# The same command trains on all trees again, from two seeds, without words in the output:

# %%
for run in runs:
    if not run["words_written"]:
        print(f"held to trees: F1 {run['f1_constrained']:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    without = [run["f1_constrained"] for run in runs if not run["words_written"]]
    with_words = [run["f1_constrained"] for run in full]
    assert round(min(with_words) - max(without)) == 9
    assert round(max(with_words) - min(without)) == 13
    assert len(without) == 2

# %% [markdown]
# Every run with words is nine to thirteen points ahead of every run without, although the words are thrown away afterwards. A decoder that has just written the third word finds the fourth beside it in the source; one that has written three tags must count.
#
# ## What to remember
#
# - A tree is a text with brackets, so a translator can learn to parse. The words in its output are for the model alone, which keeps its place by them.
# - A search can be held to well-formed output by masking logits, wherever rules can say, symbol by symbol, what may come next.
# - Labeled F1 counts brackets with label and place over the whole test set. Ask what a score does with output that isn't a tree.
#
# ## Exercises
#
# **1. Write it first** is [above](#a-tree-as-a-text); the code below it is the solution.
#
# **2. By hand** (★, 5 min). The expert has (S (NP a b) (VP c (NP d))), the parser (S (NP a) (VP b c (NP d))). What is the F1?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Four brackets on each side. S and the last NP agree; NP ends too early, VP begins too early: 2 * 2 / 8 = 50.
one = read_trees("(S (NP (X a) (X b)) (VP (X c) (NP (X d))))")
other = read_trees("(S (NP (X a)) (VP (X b) (X c) (NP (X d))))")
print(f"{labeled_f1(one, other):.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert labeled_f1(one, other) == 50

# %% [markdown]
# **3. A lazy parser** (★★, 15 min). Write a parser that puts all words directly below one S. What F1 does it get on the first 300 trees of the sample? Take `clean(tree)` of each, which [drops what no parser is asked for](#the-rules-of-evalb), and score with `treebank.labeled_f1`. What if it also puts an NP around each tree's words?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Most sentences are an S, so its one bracket is mostly right, but nearly all others are missing.
# The NP over everything is nearly always wrong.
pool = [clean(tree) for tree in sample[:300]]
flat = [("TOP", [("S", leaves(tree))]) for tree in pool]
double = [("TOP", [("S", [("NP", leaves(tree))])]) for tree in pool]
print(f"{treebank.labeled_f1(pool, flat):.1f} {treebank.labeled_f1(pool, double):.1f}")

# %% [markdown]
# ## Further
#
# ### What was reproduced, and what wasn't
#
# The paper's Table 4 gives its model, trained on the 40,000 sentences of the *Journal*, an F1 of 91.3, and 92.7 with 17 million more sentences that were parsed by machine. On the same 40,000, {cite:t}`vinyals2015grammar` had 88.3, the Berkeley parser {cite:p}`petrov2006learning` 90.4, and the grammars of {cite:t}`dyer2016recurrent`, which build a tree step by step, 91.7 and 93.3. So the Transformer was close to the best, but not ahead of it.
#
# Don't compare ours with these: the test sentences are different ones, the trees a twelfth of theirs, and the model far smaller (theirs has four layers of width 1,024). What we reproduced is the method, with no part made for trees. The paper reports no constraint like ours. Its settings beside ours are on the page of [departures](../book/departures.md#parsing).
#
# ### The rules of EVALB
#
# Newspaper trees are scored by a program called EVALB, and its rules are part of the number. The label `TOP` around each tree doesn't count. Punctuation is taken out before words are counted, so a comma may hang anywhere. `PRT` and `ADVP` are taken for the same label. The log's F1 follows these rules. In one point it is stricter: EVALB leaves out a sentence whose output doesn't have the right words, and a parser can only gain by that.
#
# The experts also marked the roles of phrases, as in `NP-SBJ` for a subject, and places where a word is understood but not said. Everyone trains and scores without them: `clean` takes them out.

# %% tags=["remove-cell"]
if CHECKING:
    gold = read_trees("(S (NP (DT the) (NN cat)) (VP (VBZ eats)) (. .))")
    moved = read_trees("(S (NP (DT the) (NN cat)) (VP (VBZ eats) (. .)))")
    assert treebank.labeled_f1(gold, moved) == 100 > labeled_f1(gold, moved)

# %% [markdown]
# ## Sources
#
# The experiment is section 6.3 of {cite:t}`vaswani2017attention`, the idea of trees as text from {cite:t}`vinyals2015grammar`. The treebank is that of {cite:t}`marcus1993building`, in the sample that NLTK distributes. EVALB is by Satoshi Sekine and Michael Collins; we follow its parameter file `COLLINS.prm`.
