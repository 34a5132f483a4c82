# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown] needs=["multi30k"]
# # Variations
#
# This chapter changes one thing in the model at a time and trains it again: every row of the paper's Table 3 in miniature, from three seeds each (section 6.2 of the paper).
#
# Is a Transformer with one head worse than one with eight? In the paper's table its perplexity is 5.29 instead of 4.92, so it would seem. We trained both in miniature, each from three seeds; this page reads the log. Guess how often eight heads win.

# %%
from benchmarks.common import read_log

settings, *log = read_log("table3")
runs = {}
for run in sorted(log, key=lambda run: run["seed"]):
    runs.setdefault(run["row"], []).append(run)
for eight, one in zip(runs["base"], runs["A-h1"]):
    a, b = (run["validation_loss"] for run in (eight, one))
    print(f"seed {eight['seed']}: eight heads {a:.2f}, one head {b:.2f}")

# %% [markdown]
# From the first and the third seed one head loses, from the second it wins. (The losses are on held-out sentences, in nats per token.) Another seed means other initial weights and other batches, and here that changes the loss by as much as the heads do. A single run of each would have given a verdict, and the opposite one from another seed.
#
# ## A difference, and how far to trust it
#
# An experiment that changes one thing in a model is an **ablation**, and its result is a difference. So we train each row and the base model from the same $n$ seeds, take the difference of the losses $L$ seed by seed, and say how far the mean of the differences can be trusted:
#
# $$
# \begin{gathered}
# d_s = L_{\text{row}, s} - L_{\text{base}, s} \\[4pt]
# \bar d \pm t_n \frac{\text{std}(d)}{\sqrt{n}}
# \end{gathered}
# $$ (eq-difference)
#
# With the factor $t_n$ the interval holds the true difference in 95 of 100 experiments. It is 1.96 for many seeds and 4.30 for three.
#
# **Exercise 1. Write it first** (★, 5 min). Before you read on, write `compare(row, base)`, which takes two lists of losses, seed by seed, and returns the mean of the differences and half the width of the interval.

# %%
import math
import statistics

T95 = {2: 12.71, 3: 4.30, 5: 2.78, 10: 2.26}  # Student's t, by the number of seeds


def compare(row, base):
    d = [a - b for a, b in zip(row, base, strict=True)]
    return statistics.mean(d), T95[len(d)] * statistics.stdev(d) / math.sqrt(len(d))


# %% [markdown]
# Does the interval do what it says? We play the experiment 100,000 times with three seeds and made-up differences whose true mean is 0, and count how often 0 lies inside. For comparison: one standard error to either side, as many plots have it, and the 1.96 that belongs to many seeds.

# %%
import torch

generator = torch.Generator().manual_seed(0)
d = torch.randn(100_000, 3, generator=generator, dtype=torch.float64)
off = d.mean(dim=1).abs() / (d.std(dim=1) / math.sqrt(3))
for factor in (1, 1.96, T95[3]):
    print(f"± {factor:<4} standard errors: inside {(off < factor).double().mean():.0%}")

# %% [markdown]
# With three seeds, bars of one standard error miss the truth in two experiments of five. The paper gives one number per row and says nothing of seeds, so we can't tell which of its small differences are more than chance.
#
# ## The miniature
#
# The paper's base model took eight GPUs twelve hours. The miniature keeps the proportions: half the layers and a quarter of every width, so that each row differs from the base model by the same factor as there. The number of heads stays. Rows have the paper's names: `C-N2` is its row with two layers of six, so here it has one of three.

# %%
from annotated_transformer.transformer import parameter_count
from benchmarks.experiments.table3 import shape

print("         N  d_model  d_ff   h  d_k  parameters")
for name in ("base", "A-h32", "B-dk16", "C-N2", "C-d1024", "big"):
    c = shape(name, vocabulary_size=4000)
    d_k = c.d_k or c.d_model // c.heads
    print(
        f"{name:8}{c.layers:2}{c.d_model:9}{c.d_ff:6}{c.heads:4}{d_k:5}{parameter_count(c):12,}"
    )

# %% [markdown]
# All rows are trained on the 29,000 captions of Multi30k, German to English, with the optimizer, the dropout and the smoothing of the paper: 2,400 updates of up to 1,024 tokens on either side, a warm-up of 800 updates, and 4,000 subwords. That is less than five passes through the corpus, where the paper makes twenty. The learning rate is that of the paper's formula, whose peak is 0.0031 for this width and warm-up (for the paper's base, 0.0007). Nothing was tuned for a row. As in the paper, the scores are those of the validation set, without averaging of checkpoints: the loss without smoothing, and BLEU with a beam of 4 and a length penalty of 0.6 on all 1,014 captions.

# %%
base = runs["base"]
loss, bleu = (
    statistics.mean(r[key] for r in base) for key in ("validation_loss", "bleu")
)
print(
    f"base: {loss:.2f} nats per token, perplexity {math.exp(loss):.1f}, BLEU {bleu:.1f}"
)
print(base[0]["signature"])

# %% [markdown]
# Here is the paper's table, and how far each row is from the base model, in the paper and here. (The paper's perplexities are per word piece; counted per word they would be larger.) Which of its differences do you expect to come back?

# %%
# Table 3 of the paper: perplexity and BLEU on newstest2013
PPL_BLEU = {
    "base": (4.92, 25.8),
    "A-h1": (5.29, 24.9),
    "A-h4": (5.00, 25.5),
    "A-h16": (4.91, 25.8),
    "A-h32": (5.01, 25.4),
    "B-dk16": (5.16, 25.1),
    "B-dk32": (5.01, 25.4),
    "C-N2": (6.11, 23.7),
    "C-N4": (5.19, 25.3),
    "C-N8": (4.88, 25.5),
    "C-d256": (5.75, 24.5),
    "C-d1024": (4.66, 26.0),
    "C-ff1024": (5.12, 25.4),
    "C-ff4096": (4.75, 26.2),
    "D-dropout0.0": (5.77, 24.6),
    "D-dropout0.2": (4.95, 25.5),
    "D-smoothing0.0": (4.67, 25.3),
    "D-smoothing0.2": (5.47, 25.7),
    "E-learned": (4.92, 25.7),
    "big": (4.33, 26.4),
}


def ours(name, field):
    return compare([run[field] for run in runs[name]], [run[field] for run in base])


worse, gained, ppl, points = {}, {}, {}, {}
for name in [*PPL_BLEU][1:]:
    worse[name], gained[name] = ours(name, "validation_loss"), ours(name, "bleu")
    ppl[name] = math.log(PPL_BLEU[name][0] / PPL_BLEU["base"][0])
    points[name] = PPL_BLEU[name][1] - PPL_BLEU["base"][1]

# %% tags=["remove-cell"]
if CHECKING:
    surely = {name: mean for name, (mean, error) in worse.items() if abs(mean) > error}
    unclear = {"A-h1", "A-h4", "A-h16", "B-dk32", "C-ff1024", "C-ff4096"}
    assert worse.keys() - surely.keys() == unclear
    told = {name: f"{abs(mean):.2f}" for name, (mean, _) in worse.items()}
    assert told["A-h32"] == "0.30" and told["B-dk16"] == "0.26"
    assert told["A-h16"] == "0.08" and told["B-dk32"] == "0.05"
    assert told["C-d256"] == "0.15" and told["C-d1024"] == "0.19"
    assert told["D-dropout0.0"] == "0.12" and told["D-dropout0.2"] == "0.42"
    assert told["D-smoothing0.0"] == "0.05" and told["D-smoothing0.2"] == "0.09"
    better = {name for name, mean in surely.items() if mean < 0}
    assert better == {"C-N2", "C-N4", "D-dropout0.0", "D-smoothing0.0", "E-learned"}
    assert worse["C-N4"][0] < worse["C-N2"][0] and worse["C-N8"][0] > 0.5
    assert max(worse, key=lambda name: worse[name][0]) == "big"
    assert round(worse["E-learned"][0], 1) == -0.1 and round(ppl["C-d256"], 2) == 0.16
    assert sum(abs(mean) < error for mean, error in gained.values()) == 9
    assert f"{statistics.median(error for _, error in gained.values()):.1f}" == "1.5"
    assert all(len(group) == 3 for group in runs.values())
    deviations = [error * math.sqrt(3) / T95[3] for _, error in worse.values()]
    assert round(math.sqrt(statistics.mean(s**2 for s in deviations)), 2) == 0.03


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-variations", "caption": "Which changes matter, in the paper and here? Difference of the loss from the base model, in nats per token (for the paper, the logarithm of its perplexities); left of the line is better. Diamonds: the paper, one number each. Dots: our miniature after 2,400 updates, with 95% intervals from three seeds. Dot and diamond of a row have the same change. Measured by `benchmarks/experiments/table3.py`."}}
import altair as alt

from book.figures import INK, PAPER, RESIDUAL, SKY, show

GROUPS = {  # heading: the rows below it
    "A: number of heads (base: 8)": {
        "A-h1": "1 head",
        "A-h4": "4 heads",
        "A-h16": "16 heads",
        "A-h32": "32 heads",
    },
    "B: width of a key": {"B-dk16": "× 1/4", "B-dk32": "× 1/2"},
    "C: number of layers": {"C-N2": "× 1/3", "C-N4": "× 2/3", "C-N8": "× 4/3"},
    "C: width of the stream": {"C-d256": "× 1/2", "C-d1024": "× 2"},
    "C: width of the network": {"C-ff1024": "× 1/2", "C-ff4096": "× 2"},
    "D: dropout (base: 0.1)": {"D-dropout0.0": "none", "D-dropout0.2": "0.2"},
    "D: smoothing (base: 0.1)": {"D-smoothing0.0": "none", "D-smoothing0.2": "0.2"},
    "E: positions": {"E-learned": "learned"},
    "everything larger": {"big": "big"},
}


def dot_plot(measured, published, title, domain, values):
    """Show one small chart per group, below one another, on one axis."""
    scale = alt.Scale(domain=domain, nice=False)
    charts = []
    for heading, names in GROUPS.items():
        records = []
        for name, said in names.items():
            if name not in measured:  # a row that you have taken out
                continue
            mean, error = measured[name]
            numbers = {
                "mean": mean,
                "low": max(mean - error, domain[0]),
                "high": min(mean + error, domain[1]),
                "paper": published[name],
            }
            records.append(
                {"row": said, **{k: round(v, 4) for k, v in numbers.items()}}
            )
        axis = alt.Axis(labelLimit=80, minExtent=62, domain=False, ticks=False)
        order = alt.Y("row:N", sort=None, title=None, axis=axis)
        last = heading == [*GROUPS][-1]
        axis = alt.Axis(values=values, labels=last, ticks=last, domain=last)
        x = alt.X("mean:Q", title=title if last else None, scale=scale, axis=axis)
        drawn = alt.Chart(alt.Data(values=records))
        dots = drawn.mark_point(filled=True, size=55, color=SKY, opacity=1)
        bars = drawn.mark_rule(strokeWidth=2, color=SKY).encode(
            alt.X("low:Q", scale=scale), order, alt.X2("high:Q")
        )
        diamonds = drawn.mark_point(
            shape="diamond", size=60, color=INK, fill=PAPER, opacity=1
        )
        zero = alt.Chart(alt.Data(values=[{"mean": 0}])).mark_rule(color=RESIDUAL)
        layers = alt.layer(
            zero.encode(x=x),
            bars,
            diamonds.encode(alt.X("paper:Q", scale=scale), order),
            dots.encode(x, order),
        )
        head = alt.TitleParams(heading, anchor="start", frame="group", fontSize=12)
        charts.append(layers.properties(width=230, height={"step": 18}, title=head))
    told = "; ".join(
        f"{name}: {mean:+.2f} here, {published[name]:+.2f} in the paper"
        for name, (mean, _) in measured.items()
    )
    show(alt.vconcat(*charts, spacing=6), alt=f"{told}.")


dot_plot(
    worse, ppl, "difference of the loss, nats", [-0.35, 1.2], [-0.3, 0, 0.3, 0.6, 0.9]
)

# %% [markdown]
# ## Heads and their width: rows A and B
#
# Rows A keep $h \cdot d_k$, and so the cost, the same. In the paper one head is the worst of them. Here one, four and 16 heads can't be told from eight, and it is 32 that are clearly worse, by 0.30 nats.
#
# Are 32 heads too many, or too narrow? Each of them compares words by four numbers only. Rows B answer that: `B-dk16` keeps eight heads and narrows only their keys, to four numbers as well. It loses about as much, 0.26. With eight numbers a key, in `A-h16` and `B-dk32`, the means are 0.08 and 0.05, too little for three seeds to tell. So most of the loss comes from keys that are too narrow. In the paper the narrowest keys have 16 numbers, and both rows lose less.
#
# ## Size: rows C, and big
#
# In the paper, more is better, by its perplexities: more layers, a wider stream, a wider network, and most of all everything at once. Here half of $d_\text{model}$ loses 0.15 nats, in the paper 0.16. $d_\text{ff}$ makes no difference that three seeds could show. But twice the $d_\text{model}$ *loses* 0.19. And depth is nearly upside down: two layers are the best, one is better than three, and four are far behind. Big, with twice the width, twice the heads and a dropout of 0.3, is the worst of all, though much of that may be its dropout.
#
# Do the deeper ones only need more updates? The log has the training loss, a mean over every fifty updates, so we can watch the order change. Here are the means of the three seeds:

# %%
layers = {"C-N2": "one", "C-N4": "two", "base": "three", "C-N8": "four"}
means = {}
print("update  " + "".join(f"{said:>7}" for said in layers.values()))
for update in (800, 1200, 1600, 2000, 2400):
    means[update] = [
        statistics.mean(run["curve"][update // 50 - 1] for run in runs[name])
        for name in layers
    ]
    print(f"{update:6}  " + "".join(f"{loss:7.2f}" for loss in means[update]))

# %% tags=["remove-cell"]
if CHECKING:
    one, two, three, four = means[800]
    assert 0.03 < two - one < 0.06 and round(three - one, 1) == 0.4
    assert abs(means[1200][1] - means[1200][0]) < 0.02
    assert means[2400][1] < means[2400][0] - 0.05
    assert 0 < means[2400][2] - means[2400][0] < 0.1
    assert means[2400][3] - means[2400][2] > means[800][3] - means[800][2] + 0.3

# %% [markdown]
# At 800 updates two layers are just behind one, at 1,200 they are level, and at 2,400 two are ahead. Three layers trail one by 0.4 nats at first and by less than 0.1 in the end. So among these the order is turning into the paper's. Four layers, though, have fallen further behind. When four come first, if they ever do, we can't say; the paper made 40 times as many updates, of 25 times as many tokens each, at less than a quarter of our rate.
#
# None of this refutes the paper, which asks another question: which is best after 100,000 updates (big: 300,000)? A deep post-norm stack needs many before it learns at all, as [the last experiment](#norm-and-depth) shows.
#
# ## Dropout, smoothing, positions: rows D and E
#
# Dropout and smoothing hold a model back from being too sure of its training sentences. That is a price paid now for a gain later. In fewer than five passes a small model has little time to learn them by heart, so here it's the price that shows: 0.12 nats from no dropout to 0.1, and 0.42 more from 0.1 to 0.2. In the paper the gain shows: of all its models, only the one with two layers has a worse perplexity than the one without dropout.
#
# The price of smoothing is nearly the paper's: without it the loss, which is measured without smoothing, is lower by 0.05 in both, and with twice as much it is higher by 0.09 here and 0.11 there. What smoothing gains in the paper, half a point of BLEU, three seeds can't show.
#
# Learned positions gain 0.1 nats here, and nothing in the paper. Learning isn't the only difference between the two tables. Ours starts small, at $d_\text{model}^{-0.5} = 0.09$, where sinusoids have the size 0.71, so at first it covers less of the words ([learned positions](08_positional_encoding.ipynb#learned-positions)).
#
# ## Where the miniature agrees
#
# A row agrees with the paper if its whole interval lies on the paper's side of zero, however far out, and disagrees if it lies on the other. (Learned positions have no side in the paper's perplexity, so any clear difference disagrees.) Where the interval holds zero, three seeds can't tell. (And of 38 intervals that are right 19 times in 20, about two should be wrong.)

# %%
from collections import Counter


def verdict(mean, error, published):
    if abs(mean) < error:
        return "can't tell"
    return "agrees" if mean * published > 0 else "disagrees"


for measure, measured, published in (("loss", worse, ppl), ("BLEU", gained, points)):
    verdicts = {name: verdict(*measured[name], published[name]) for name in measured}
    against = [name for name, said in verdicts.items() if said == "disagrees"]
    print(
        f"{measure}: {dict(Counter(verdicts.values()))}, against: {', '.join(against)}"
    )

# %% [markdown]
# Which conclusions can you carry from a short training of a small model to a long one of a large one? Not even all of those about heads, because keeping the proportions doesn't keep everything: a quarter of the paper's widths makes keys of four numbers, which the paper never tried, and so 32 heads are the worst of rows A here, where one head is there. Questions of how *much* of something is good depend on the budget as well: depth and size need many updates before they pay, and dropout pays once a model has seen its text many times. With the wrong budget, a small experiment answers such a question clearly, and wrongly.
#
# ## Norm and depth
#
# The paper's models begin with 4,000 updates of warm-up, and [the schedule](16_schedule.ipynb#why-does-a-transformer-need-a-warm-up) says why: post-norm and Adam's first steps don't go together. {cite:t}`xiong2020layer` claim that pre-norm needs no warm-up. We try it on the base row with 2, 6 and 12 layers, for 300 updates with a peak of 0.0018, a fifth of what the paper's formula gives for 100 updates of warm-up. *Without warm-up* means that the learning rate starts at its peak and stays there, where the other one rises to it, for 100 updates; from then on both are the same.

# %%
from benchmarks.experiments import table3

tokenizer, corpus = table3.data()
targets = torch.cat([torch.from_numpy(example.target[1:]) for example in corpus])
shares = torch.bincount(targets) / len(targets)
by_frequency = torch.special.entr(shares).sum().item()
print(f"knowing only how frequent each token is: {by_frequency:.2f}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-norms", "caption": "Does it train without warm-up? Loss on the validation captions after 300 updates, by the place of the norm and the number of layers, with warm-up (filled) and without (hollow); means and 95% intervals of three seeds, cut off at 10. Dashed: the loss of a model that knows how frequent each token is, and nothing else."}}
ends = []
for name in table3.NORMS:
    form, layers, rise = name.split("-")
    losses = [run["validation_loss"] for run in runs[name]]
    error = T95[3] * statistics.stdev(losses) / math.sqrt(3)
    mean = statistics.mean(losses)
    ends.append(
        {
            "row": f"{form}-norm, {layers} layers",
            "rise": rise,
            "mean": round(mean, 3),
            "low": round(max(mean - error, 3.4), 3),
            "high": round(min(mean + error, 10), 3),
        }
    )
final = {name: end["mean"] for name, end in zip(table3.NORMS, ends)}
order = alt.Y(
    "row:N",
    sort=[f"{form}-norm, {n} layers" for form in ("post", "pre") for n in (2, 6, 12)],
    title=None,
    axis=alt.Axis(labelLimit=150, minExtent=115),
)
scale, axis = alt.Scale(domain=[3.4, 10], nice=False), alt.Axis(values=[4, 6, 8, 10])
x = alt.X("mean:Q", title="loss, nats per token", scale=scale, axis=axis)
drawn = alt.Chart(alt.Data(values=ends))
low = alt.X("low:Q", scale=scale, axis=axis)
bars = drawn.mark_rule(strokeWidth=2, color=SKY).encode(low, order, alt.X2("high:Q"))
dots = drawn.mark_point(size=60, color=SKY, opacity=1).encode(
    x,
    order,
    fill=alt.condition("datum.rise == 'warm'", alt.value(SKY), alt.value(PAPER)),
)
stuck = alt.Chart(alt.Data(values=[{"mean": round(by_frequency, 3)}]))
show(
    (
        stuck.mark_rule(strokeDash=[4, 3], color=RESIDUAL).encode(x) + bars + dots
    ).properties(width=175, height={"step": 26}),
    alt="; ".join(
        f"{p['row']}, {'with' if p['rise'] == 'warm' else 'without'} warm-up: {p['mean']:.2f}"
        for p in ends
    )
    + ".",
)

# %% [markdown]
# With two layers, all four train. With six, the place of the norm decides: pre-norm learns about as well without warm-up as with it, and post-norm needs it. Without it, the validation loss is near 8 at the end, worse than the 5.78 of the frequencies alone; with warm-up, two seeds of three have begun to learn, and all three trail pre-norm by more than a nat. With twelve layers, 100 updates of warm-up aren't enough for post-norm; pre-norm trains with them or without.
#
# So {cite:t}`xiong2020layer` are right here, too. And this may be why depth came out upside down in rows C: from two layers to six, with warm-up, post-norm *loses* 1.6 nats in 300 updates, pre-norm 0.2.

# %% tags=["remove-cell"]
if CHECKING:
    assert round(final["post-6-warm"] - final["post-2-warm"], 1) == 1.6
    begun = [run["validation_loss"] < by_frequency for run in runs["post-6-warm"]]
    assert sum(begun) == 2 and all(
        run["validation_loss"] > 5.2 for run in runs["post-6-warm"]
    )
    assert round(final["pre-6-warm"] - final["pre-2-warm"], 1) == 0.2
    assert all(
        final[f"{form}-2-{rise}"] < 4.3
        for form in ("post", "pre")
        for rise in ("warm", "cold")
    )
    assert (
        final["post-6-cold"]
        > by_frequency
        > final["post-6-warm"]
        > final["pre-6-warm"] + 1
    )
    assert (
        min(final["post-12-warm"], final["post-12-cold"])
        > by_frequency
        > final["pre-12-cold"] + 1
    )
    assert all(
        abs(final[f"pre-{n}-warm"] - final[f"pre-{n}-cold"]) < 0.25 for n in (2, 6, 12)
    )

# %% [markdown]
# ## What to remember
#
# - An ablation is a difference, and a difference needs several seeds on both sides and an interval that fits their number.
# - In miniature the number of heads hardly matters until their keys become too narrow: with four numbers a key, 32 heads and eight lose about as much.
# - By their loss, 32 heads, the narrowest keys, half of $d_\text{model}$, more dropout and smoothing lie on the same side as in the paper's Table 3, some much further out. Depth, twice the $d_\text{model}$, no dropout and big lie on the other, and learned positions gain where the paper has no difference.
# - A deep post-norm stack needs warm-up and patience. With the norm in front, it needs no warm-up and much less patience.
#
# ## Exercises
#
# **1. Write it first** is [above](#a-difference-and-how-far-to-trust-it); the code below it is the solution.
#
# **2. How many seeds?** (★, 10 min). Suppose that differences scatter with a standard deviation of 0.04 nats (in this log, 0.03 is typical). How many seeds (2, 3, 5 or 10) does it take to see a difference of 0.04?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Ten. Twice the precision costs four times the seeds, apart from what t gains.
for n, t in T95.items():
    print(f"{n:2} seeds: ± {t * 0.04 / math.sqrt(n):.3f}")

# %% [markdown]
# **3. Against one another** (★★, 15 min). {eq}`eq-difference` compares seed by seed, which helps if a lucky seed is lucky for both models. Take the standard error of each row's difference once in pairs and once as if the seeds were unrelated, $\sqrt{(s_\text{row}^2 + s_\text{base}^2) / n}$. Compare the two over all rows, for the loss and for BLEU. What did pairing buy?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# For the loss nothing. For BLEU it takes two fifths off the error: a seed that is lucky for one
# model is mostly lucky for the others.
for field in ("validation_loss", "bleu"):
    before = [run[field] for run in base]
    paired, apart = [], []
    for name in worse:
        after = [run[field] for run in runs[name]]
        paired.append(statistics.variance(a - b for a, b in zip(after, before)) / 3)
        apart.append((statistics.variance(after) + statistics.variance(before)) / 3)
    in_pairs, unrelated = (math.sqrt(statistics.mean(v)) for v in (paired, apart))
    print(f"{field}: standard error {in_pairs:.3f} in pairs, {unrelated:.3f} apart")

# %% tags=["remove-cell"]
if CHECKING:
    assert round(in_pairs / unrelated, 1) == 0.6  # of BLEU

# %% [markdown]
# ## Further
#
# ### The same models by BLEU
#
# By BLEU the rows stand in about the same order ({numref}`fig-variations-bleu`), but three seeds tell less of them: in 9 of 19 rows the interval holds zero, for the loss in 6, and half of the intervals are 1.5 points or more to either side, where most of the paper's differences are below one. A loss is an average over seventeen thousand tokens; BLEU counts runs of up to four words that are all right, in a thousand sentences.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-variations-bleu", "caption": "The same models, scored by BLEU: difference from the base model on the validation captions; right of the line is better. Diamonds: the paper, on newstest2013. Dots: ours, with 95% intervals from three seeds."}}
dot_plot(gained, points, "difference of BLEU", [-23, 7], [-20, -10, 0])

# %% [markdown]
# ## Sources
#
# Rows, columns and diamonds are section 6.2 and Table 3 of {cite:t}`vaswani2017attention`, whose BLEU is on newstest2013, without averaging of checkpoints, and can't be compared with that of its Table 2. Pre-norm without warm-up is from {cite:t}`xiong2020layer`; {cite:t}`narang2021transformer` tried some forty published changes in one code base. The factor $t_n$ is from the distribution that William Gosset published as "Student" in 1908.
