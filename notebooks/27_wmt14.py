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
# # WMT14
#
# This chapter trains the paper's models on the paper's corpus, from the download to the score, in four commands (sections 5 and 6.1 of the paper).
#
# The model of the paper has been ready for some time. What stood between it and the paper's results was size. There are 4.5 million pairs, too many for a list. The vocabulary has 37,000 tokens, so the logits of one batch fill gigabytes. A step takes about 25,000 source and 25,000 target tokens, and there are 100,000 steps. Each of these had its chapter or its appendix. Nothing is left to write, and this notebook exports no code.
#
# So here is all of it:
#
# ```bash
# annotated-transformer prepare wmt14-en-de
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train --prepared wmt14-en-de --preset base --compile --output base
# annotated-transformer average --run base --last 5 --output base-average
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer evaluate --model base-average --prepared wmt14-en-de
# ```
#
# For the big model the preset changes, and how many checkpoints are averaged. The paper takes 20, so `train` keeps 20:
#
# ```bash
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train --prepared wmt14-en-de --preset big --compile --output big
# annotated-transformer average --run big --last 20 --output big-average
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer evaluate --model big-average --prepared wmt14-en-de
# ```
#
# The 8 is the number of GPUs. With one, leave the part before `train` away and say `annotated-transformer`. English to French is the same with `wmt14-en-fr`, and has a section of its own.
#
# The rest of the chapter is for the person who types these lines. What must be on the machine? What does each command say when all is well? Is it as fast as planned, and how does one see that in the first ten minutes? What if it is dead in the morning? And when the number is there, what does it mean?
#
# One thing must be said before all others. **Nobody has run these commands on the whole of WMT14 yet.** No GPU and no way to the corpus was at hand when this was written. What was run, and what was not, has a section below, and every number on this page says which kind it is.

# %%
import json
import os
import shlex
import subprocess
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from io import StringIO
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import torch
from pyarrow.parquet import write_table

from annotated_transformer.batching import plan_batches
from annotated_transformer.cli import main, recipe
from annotated_transformer.data import Pair
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from annotated_transformer.large_corpora import REVISION, WMT14, open_corpus
from annotated_transformer.model_io import load_model
from annotated_transformer.schedule import learning_rate
from annotated_transformer.speed import estimate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train
from annotated_transformer.transformer import Transformer, parameter_count, preset
from book.figures import INK, KEY, QUERY, RESIDUAL, VALUE, style

# %% [markdown]
# ## What each command takes
#
# The commands meet in folders. Each reads what the one before it has written, so the whole way can be seen in one picture:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-four", "caption": "Which command reads what, and what does it leave on the disk? Commands in boxes; on their left what they read, on their right what they write. Only the first one needs the network, and only the two in orange want GPUs. The sizes are those of the base model, computed."}, "image": {"alt": "Four rows: prepare, train, average and evaluate, each reading what the one above has written. The folder wmt14-en-de is read twice: by train and by evaluate."}}
style()
weights = 4 * parameter_count(preset("base")) / 1e9
CHAIN = (
    ("Parquet files in the cache\n0.8 GB", "prepare", "wmt14-en-de/\ntokens.bin, lengths.npy,\ntokenizer.json: 0.6 GB"),
    ("wmt14-en-de/\ntokens, validation.tsv", "train", f"base/\ncheckpoints/, log.jsonl:\n{7 * 3 * weights:.1f} GB"),
    ("base/\nthe last checkpoints", "average", f"base-average/\nmodel.safetensors:\n{weights:.2f} GB"),
    ("base-average/, wmt14-en-de/\nnewstest2014", "evaluate", "scores"),
)  # fmt: skip
figure, axis = plt.subplots(figsize=(7.2, 3.3), layout="constrained")
arrow = {"arrowstyle": "->", "color": RESIDUAL}
for row, (reads, command, writes) in enumerate(CHAIN):
    color = KEY if command in ("train", "evaluate") else QUERY
    box = {"boxstyle": "round,pad=0.5", "fc": "none", "ec": color}
    axis.text(0, row, command, ha="center", va="center", color=color, bbox=box)
    for text, side, align in ((reads, -1, "right"), (writes, 1, "left")):
        axis.text(0.62 * side, row, text, ha=align, va="center", fontsize=9, color=INK)
    for start, end in ((-0.56, -0.32), (0.32, 0.56)):
        axis.annotate("", (end, row), (start, row), arrowprops=arrow)
axis.set(xlim=(-1.9, 1.9), ylim=(3.5, -0.5))
axis.set_axis_off()
plt.show()

# %% [markdown]
# | command | reads | writes | if it is killed |
# |---|---|---|---|
# | `prepare` | Parquet files from the Hugging Face hub, in its [cache](D_large_corpora.ipynb) | `wmt14-en-de/`: tokens, tokenizer, tables of sentences to measure with | what was downloaded and encoded is not made again |
# | `train` | `wmt14-en-de/` | `base/`: log, checkpoints, best model | continues from the last checkpoint, at most ten minutes back |
# | `average` | the last checkpoints | `base-average/`: a model | nothing is lost, start it again |
# | `evaluate` | the model, the test sets of sacreBLEU | nothing: it prints scores | the same |
#
# In each case the remedy is the same command again. Hours and memory of training are computed further down. `average` reads a few files, and `evaluate` translates about three thousand sentences; how long that takes on a GPU has not been measured.
#
# ### What must be on the machine?
#
# Python 3.10 or newer, a driver for the GPUs, and this package. The plain installation on Linux brings a PyTorch that knows GPUs:
#
# ```bash
# git clone https://github.com/annotated-transformer/annotated-transformer
# python3 -m venv wmt && source wmt/bin/activate
# pip install "./annotated-transformer[wmt14]"
# nvidia-smi --list-gpus
# python -c "import torch; print(torch.__version__, torch.cuda.device_count())"
# df -h .
# ```
#
# The last three lines are checks. The two counts of GPUs must be the same. If PyTorch says 0 where `nvidia-smi` lists eight, it is a PyTorch for processors, or one that is too new for the driver. `df` shows the free space of the folder in which all that follows is written.
#
# The Parquet files go into the user's cache, which on many clusters is a small disk. `export HF_HOME=/scratch/data` names another place, and has to be set for `prepare` only. Preparing needs no GPU, so do it before one is rented. The folder can then be copied to the machine with the GPUs; no file in it names a path.
#
# ### How much disk does training need?
#
# A checkpoint holds each weight and two moments, twelve bytes a parameter. The last few are kept, and while a new one is written, the oldest is still there. A second kind is written after a signal, or every ten minutes, and there is one of it at most. So there must be room for two more than the number says:

# %%
for name in ("base", "big"):
    config, run = preset(name), recipe(name)
    each, kept = 12 * parameter_count(config) / 1e9, run.keep_checkpoints
    most = (kept + 2) * each
    print(f"{name}: {run.steps:,} steps, {kept} checkpoints of {each:.2f} GB, at most {most:.0f}")

# %% [markdown]
# The twenty of the big model are the largest thing that the whole project writes. If the disk is full in the middle of a run, the checkpoint that was being written is given up, the older ones stand, and the command ends with one line. Make room and start it again.
#
# ### What can be tried in five minutes?
#
# Eight GPUs cost the same while one looks for a mistake in a path. So before the real run, a short one that touches everything: all processes, the compiler, the exchange, a checkpoint, a score.
#
# ```bash
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train --prepared wmt14-en-de --preset base --compile \
#     --limit 100000 --steps 300 --save-every 100 --output try
# ```
#
# It learns next to nothing, and its BLEU stays near 0. What counts is that three lines of progress come, that the number of target tokens a second in `try/log.jsonl` is the same in the second half, and that the same command, given once more, ends without another step. Then delete `try`. It has a folder of its own, since [another limit is another run](18_training.ipynb).
#
# ## What is "WMT14"?
#
# The paper says which task it means in half a sentence. `prepare` takes the copy on the Hugging Face hub, at one revision:

# %%
print(f"https://huggingface.co/datasets/wmt/wmt14, revision {REVISION[:12]}")
for name, vocabulary_size in WMT14.items():
    print(f"{name}: a joint vocabulary of {vocabulary_size:,}")

# %% [markdown]
# For German these are Europarl, Common Crawl and News Commentary, with 4,520,620 pairs in the archives of the task; the copy leaves those out in which a side is empty. Four facts matter, if a score is to be compared:
#
# - **News Commentary is version 9.** It is the one that the task of 2014 handed out. Other projects take a later version under the same name, and so train on more.
# - **The authors' released code lists the corpora of WMT16**, as [departures](../book/departures.md) says. We follow the paper's text.
# - **Choose on newstest2013, measure on newstest2014.** The paper's Table 3 is the former, its Table 2 the latter.
# - **The test set has 3,003 sentences**, and a filtered version has 2,737. `evaluate` scores both, with the files that sacreBLEU fetches, and says which is which.
#
# What cleaning drops, and why, stands in `summary.json`.
#
# ## A rehearsal
#
# A command that was never run does not work. So we run all four now, on this machine. Only the corpus is a stand-in: the pairs of our [grammar](B_synchronous_grammar.ipynb), turned round, in Parquet files with the layout of WMT14: one column, in which each row has a text for each language.

# %%
home = tempfile.TemporaryDirectory()
folder = Path(home.name)
(folder / "de-en").mkdir()
pairs = [Pair(pair.target, pair.source) for pair in grammar(1800, seed=0)]
for part in range(2):
    rows = [{"de": pair.target, "en": pair.source} for pair in pairs[900 * part :][:900]]
    path = folder / "de-en" / f"train-{part:05}-of-00002.parquet"
    write_table(pa.table({"translation": rows}), path)
    print(path.name, rows[0])

# %% [markdown]
# A command is typed as in a shell. The function below runs it in the folder of the rehearsal, prints what it says, and insists on its exit code. `torchrun` starts processes of their own. All other commands are called in this process, which saves the seconds that Python needs to begin. It can also kill a command: in a process of its own, no signal that could be caught, as when the power fails, as soon as the log has the record of some step.

# %%
DIES = """
import os, signal, sys
from annotated_transformer import cli, run_folder

def write_log(folder, record, write=run_folder.write_log):
    write(folder, record)
    if record["step"] == int(os.environ["DIES_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)

run_folder.write_log = write_log
cli.main()
"""
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore::FutureWarning",
}  # fmt: skip


def shell(line, dies_at=0, code=0):
    """Run a command, show it and what it says, and return that."""
    print("$", line)
    program, *words = shlex.split(line)
    if program == "torchrun" or dies_at:
        start = ["-c", DIES] if dies_at else ["-m", "torch.distributed.run"]
        done = subprocess.run(
            [sys.executable, *start, *words], cwd=folder, text=True,
            env={**ENVIRONMENT, "DIES_AT": str(dies_at)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        ended, told = done.returncode, done.stdout
    else:
        ended, before, output = 0, Path.cwd(), StringIO()
        os.chdir(folder)
        try:
            with redirect_stdout(output), redirect_stderr(output):
                main(words)
        except SystemExit as stop:
            ended = stop.code
        finally:
            os.chdir(before)
        told = output.getvalue()
    print(told, end="")
    assert ended == (-9 if dies_at else code), ended
    return told


# %% [markdown]
# First `prepare`. For WMT14 its only argument is the name; for files, one says which columns and how large a vocabulary.

# %% tags=["nbval-ignore-output"]
_ = shell(
    "annotated-transformer prepare de-en/train-00000-of-00002.parquet de-en/train-00001-of-00002.parquet "
    "--columns translation.en translation.de --vocabulary-size 1000 --output corpus"
)
corpus, words, validation, test = open_corpus(folder / "corpus")
print(len(corpus), len(validation), len(test))
assert len(words) == 1000 and len(corpus) > 1500 and min(len(validation), len(test)) > 50

# %%
print(*sorted(path.name for path in (folder / "corpus").glob("[!.]*")))

# %% [markdown]
# ### What does a line of progress say?
#
# Now the training. The paper's settings make no sense for 1,600 short sentences, so we give smaller ones: the tiny model, 200 steps, 800 tokens. We begin with one process, and at step 100 it is killed, before it can write its checkpoint.

# %% tags=["nbval-ignore-output"]
options = (
    "train --prepared corpus --output run --preset tiny --dropout 0 --device cpu "
    "--steps 200 --max-tokens 800 --warmup 80 --lr-scale 0.3 --save-every 50"
)
told = shell(f"annotated-transformer {options}", dies_at=100)
assert "step 50" in told
print(*sorted(path.name for path in (folder / "run" / "checkpoints").iterdir()))

# %% [markdown]
# A line comes with each validation, here every 50 steps, for base and big every 1,500. `loss` is the mean over the latest steps, on training pairs with smoothed labels. `validation loss` is on whole sentences of newstest2013, without smoothing and without dropout, so [it may be the lower one](18_training.ipynb). BLEU is that of greedy translations. On a terminal there is a progress bar, too, which knows how much time is left.
#
# ### How does it go on after a kill?
#
# The same command continues, this time as two processes that share each batch. On a machine with eight GPUs the number would be 8, and nothing else would change.

# %% tags=["nbval-ignore-output"]
torchrun = "torchrun --standalone --nproc-per-node 2 -m annotated_transformer"
told = shell(f"{torchrun} {options}")
assert "step 50" not in told and "step 100" in told and "step 200" in told

# %% [markdown]
# The first part is not made again: this one went on from the last checkpoint, of step 50. Nobody had to say so, and nobody had to find the file. The log in the folder covers both, and says what each was made with. In the figure the line goes on as if nothing had happened:

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-rehearsal", "caption": "Does a kill leave a trace? Log of the rehearsal: loss on training and validation pairs, and BLEU of greedy translations of the validation sentences. The dashed line is the checkpoint from which two processes went on, after one was killed."}, "image": {"alt": "Both losses fall without a jump at the step of the kill, and BLEU rises after it."}}
records = [json.loads(line) for line in (folder / "run" / "log.jsonl").open()]
reports = [record for record in records if "loss" in record]
checks = [record for record in reports if "score" in record]
restart = [record["step"] for record in records if "machine" in record][1]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for axis, name, shown, line, color in (
    (left, "loss", reports, "-", INK),
    (left, "validation_loss", checks, "o--", KEY),
    (right, "score", checks, "s-", VALUE),
):
    axis.plot([r["step"] for r in shown], [r[name] for r in shown], line, color=color, lw=1.5)
    axis.axvline(restart, color=RESIDUAL, lw=0.8, ls="--")
    axis.set(xlabel="step", xlim=(0, None), ylim=(0, None))
left.text(0.5, 0.55, "training, smoothed labels", color=INK, transform=left.transAxes)
left.text(0.05, 0.12, "validation", color=KEY, transform=left.transAxes)
left.set_ylabel("loss a target token, nats")
right.set_ylabel("BLEU, validation")
plt.show()
assert restart == 50 and checks[-1]["validation_loss"] < checks[0]["validation_loss"] / 1.5

# %% [markdown]
# ### How do I watch it from another terminal?
#
# The run itself needs no terminal. Start it with `nohup` and an `&`, and look at its folder from wherever you are:
#
# ```bash
# tail -F base/log.jsonl                        # each record as it comes, every 50 steps
# grep score base/log.jsonl | tail -n 5         # the last five validations
# ls -l base/checkpoints                        # when was the last one written?
# nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv -l 5
# ```
#
# It is `-F` and not `-f`, since the log is written anew when a run goes on, and `-f` would watch the old file for ever. To stop a run politely, send `kill` to the number of `torchrun`. It passes the signal on, and all leave a checkpoint.
#
# Here are the first record of the rehearsal and the last:

# %% tags=["nbval-ignore-output"]
for record in (records[0], records[-1]):
    for name, value in record.items():
        print(f"{name:18} {value:.5g}" if isinstance(value, float) else f"{name:18} {value}")
    print()
assert {"torch", "processes"} <= set(records[0])

# %% [markdown]
# | column | what it is | in a healthy run |
# |---|---|---|
# | `step`, `epoch` | updates made; passes through the corpus | |
# | `loss` | nats a target token, mean of the steps since the last record, smoothed | falls fast, then slowly, never below the floor that is computed further down |
# | `learning_rate` | of the last step | rises for 4,000 steps, then falls |
# | `gradient_norm` | mean length of the gradient | high at first, then calm; ten times its usual size is a warning |
# | `tokens_per_second` | real target tokens of all processes, without validations | steady to a few percent |
# | `validation_loss` | nats a target token, newstest2013 | falls as long as it is worth to go on; its exponential is the perplexity |
# | `score` | BLEU of greedy translations | near 0 for long, then rises |
# | `time` | when the record was made | two times and the steps between them are the true pace, validations included |
#
# A record with `torch` and `processes` begins each start of the command. So the number of such records is the number of times that the run was begun, and `processes` says with how many.
#
# ### And the score?
#
# Averaging takes seconds, and then the score, by two processes again:

# %% tags=["nbval-ignore-output"]
shell("annotated-transformer average --run run --last 2 --output average")
evaluate = "evaluate --model average --prepared corpus --json"
told = shell(f"{torchrun} {evaluate}")
scores = json.loads(told.splitlines()[-1])
assert scores["sentences"] == len(test) and "tok:13a" in scores["bleu_signature"]
assert scores["bleu"] > 10

# %% tags=["nbval-ignore-output"]
model, _ = load_model(folder / "average")
for pair, line in zip(test[:4], translate(model, words, [pair.source for pair in test[:4]])):
    print(f"{pair.source}\n   wants  {pair.target}\n   writes {line}")

# %% [markdown]
# Do two processes translate what one does?

# %%
with redirect_stdout(StringIO()):
    told = shell(f"annotated-transformer {evaluate}")
print("the same scores:", json.loads(told.splitlines()[-1]) == scores)

# %% [markdown]
# For WMT14 there are two records. The one to report is of `wmt14/full`, the full test set. That of `wmt14` is for papers that took the filtered set. `not_comparable` is computed in the authors' way, as far as it is known, and has a name of its own so that nobody takes it for the first.
#
# What we have here is a score of a tiny model after half a minute, on sentences that a grammar made. The model has learned what German looks like, and how a translation often begins. The score says that each step of the way works and that the files fit together. About WMT14 it says nothing. What the real run adds is size, the network, and what only a GPU has: products of 16 bits, compiled layers, and another way to exchange gradients.
#
# ## What will it take?
#
# Before a GPU is rented, `train --dry-run` tells what a run will be made of. Somebody has to say what the GPU can do: 989e12 operations a second in 16 bits, for an H100 by its data sheet. On the rehearsal's corpus, for eight of them, which we do not have:

# %% tags=["nbval-ignore-output"]
told = shell(
    "annotated-transformer train --prepared corpus --preset base --output base "
    "--dry-run --peak 989e12 --gpus 8 --precision bf16"
)
assert "100,000 steps" in told and "hours" in told and not (folder / "base").exists()

# %% [markdown]
# With a vocabulary of 1,000 this is not the paper's model, and an epoch is over in a few batches. For the real thing we need the lengths of 4.5 million pairs. We make some up for a tenth of them, 28 tokens long on average, as in [speed](25_speed.ipynb), a few of them much longer, and plan an epoch. All that follows is **computed, not measured**.

# %%
chance = np.random.default_rng(0)
typical = chance.gamma(2.2, 27 / 2.2, size=(450_000, 1))
lengths = 1 + (typical * chance.lognormal(0, 0.15, size=(450_000, 2))).round().clip(1, 249)
lengths = lengths.astype(np.int32)
print("mean lengths", lengths.mean(axis=0).round(1), "longest", lengths.max())
batches_per_epoch = 10 * len(plan_batches(lengths, 25_000, seed=0, epoch=0))
print(f"{batches_per_epoch:,} batches: 100,000 steps are {100_000 / batches_per_epoch:.1f} epochs")
on_disk = 10 * (2 * (int(lengths.sum()) + len(lengths)) + lengths.nbytes)
print(f"tokens.bin and lengths.npy: {on_disk / 1e9:.1f} GB")

# %%
PEAKS = {"H100": 989e12, "A100": 312e12, "RTX 4090": 165e12}  # FLOP/s in bf16, by data sheets
runs = {}
for name in ("base", "big"):
    for gpu, count in (("H100", 1), ("H100", 8), ("A100", 8), ("RTX 4090", 1)):
        if (name, count) not in runs:
            runs[name, count] = estimate(preset(name), recipe(name), lengths, "bf16", count)
        plan = runs[name, count]
        hours, memory = plan.hours(PEAKS[gpu], count, 0.2), plan.memory_bytes / 2**30
        print(f"{name:4} {count} x {gpu:9} {memory:5.1f} GiB each, {hours:6.1f} hours at 20 %")
    print(f"{name:4} {runs[name, 1].flops:.1e} operations")

# %% [markdown]
# How does this compare with the paper? Its Table 2 states the cost of training in operations too, but means another thing: time on the GPUs, times what such a GPU keeps up, 9.5 trillion a second. The models' own products are a part of that.

# %%
for name, hours in (("base", 12), ("big", 3.5 * 24)):
    spent = 8 * hours * 3600 * 9.5e12
    print(f"{name}: {spent:.1e} spent, {runs[name, 1].flops / spent:.0%} of it in the model")

# %% [markdown]
# The first numbers are those of Table 2. So the paper's eight GPUs put between a quarter and a half of what they could do into the model. We plan with 20 % of a much higher peak. It is a guess, and it decides about everything. The figure shows what becomes of the hours if the guess is wrong:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hours", "caption": "How long would it take? Hours of the paper's two runs against the share of a GPU's peak that training gets, computed for one H100 (solid) and eight (dashed). The dot is the 20 % that we plan with; gray lines are the paper's hours on eight P100. Nothing here was measured."}, "image": {"alt": "On logarithmic axes the hours fall as the share rises. At 20 percent, base takes between one and two hours on one H100 and big more than ten, both below the paper's 12 and 84 hours."}}
shares = np.geomspace(0.03, 0.5, 30)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for axis, (name, color), paper in zip(axes, (("base", QUERY), ("big", KEY)), (12, 84)):
    for count, line in ((1, "-"), (8, "--")):
        plan = runs[name, count]
        hours = [plan.hours(PEAKS["H100"], count, share) for share in shares]
        planned = plan.hours(PEAKS["H100"], count, 0.2)
        axis.plot(100 * shares, hours, line, color=color, lw=1.6)
        axis.plot(20, planned, "o", color=color)
        for text, place in (
            (f"{planned:.1f}", (20, planned)),
            (f"{count} x H100", (30, hours[-7])),
        ):
            axis.annotate(text, place, (5, 5), textcoords="offset points", color=color, fontsize=9)
    axis.axhline(paper, color=RESIDUAL, lw=0.8)
    axis.text(50, paper * 1.1, f"the paper: {paper} hours", color=RESIDUAL, fontsize=9, ha="right")
    axis.set(xscale="log", yscale="log", xlim=(2.9, 52), ylim=(0.05, 150), title=name)
    axis.set_xticks((3, 5, 10, 20, 30, 50), ("3", "5", "10", "20", "30", "50"))
    axis.set_yticks((0.1, 1, 10, 100), ("0.1", "1", "10", "100"))
    axis.minorticks_off()
    axis.set_xlabel("share of the peak in %")
axes[0].set_ylabel("hours")
plt.show()

# %% [markdown]
# On eight GPUs do not expect 20 % for the base model. Its batch, cut in eight, is [too small to keep one busy](25_speed.ipynb). With eight it may take no less time than with four.
#
# ### What is not in these hours?
#
# Three things. The start: opening the corpus, compiling. That is minutes, once a start. The checkpoints: a second or so each. And the validations, one every 1,500 steps, in which nothing is learned. Base has $100{,}000 / 1{,}500 = 66$ of them, big 200, and each translates 1,500 sentences greedily.
#
# How long one takes on your GPUs we do not know. The log does, from the first one on: the times of two records tell, as above. Say it is 20 seconds. Then base spends 22 minutes on them, which on eight fast GPUs would be more than the training itself. In that case `--save-every 5000` is allowed, also for a run that is under way. The price is that what is averaged at the end lies further apart.
#
# ## Is it as fast as planned?
#
# A run that gets a quarter of the planned speed looks exactly like one that gets all of it, only for four times as long. So one compares, in the first ten minutes. The hours of a plan can be turned into a number that the log shows. Each step has so many real target tokens, and all steps have to fit into the hours:

# %%
a_step = 10 * lengths[:, 1].sum() / batches_per_epoch
print(f"{a_step:,.0f} real target tokens a step, of 25,000 positions")
for name in ("base", "big"):
    pace = recipe(name).steps / (3600 * runs[name, 1].hours(PEAKS["H100"], 1, 0.2))
    print(f"{name}: {pace:.1f} steps and {pace * a_step:,.0f} tokens a second, ", end="")
    print(f"first validation after {1500 / pace:.0f} s")

# %% [markdown]
# So on one H100, base is as planned if `tokens_per_second` stands near half a million. Half of that number means twice the hours. For other machines:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-needed", "caption": "How many target tokens a second does the plan need? Each machine's line goes from 5 to 40 percent of its peak, with a mark at the 20 percent that we plan with. Read `tokens_per_second` in your log and find it on the line of your machine. Computed from the made-up lengths; nothing here was measured."}, "image": {"alt": "For base, from 40 thousand tokens a second on an RTX 3090 through half a million on one H100 to about four million on eight. Big needs about a third of these numbers."}}
figure, axis = plt.subplots(figsize=(8.5, 3.6), layout="constrained")
MACHINES = (("RTX 4090", 1), ("A100", 1), ("H100", 1), ("A100", 8), ("H100", 8))
for row, (gpu, count) in enumerate(MACHINES):
    for name, color, mark, shift in (("base", QUERY, "o", -0.17), ("big", KEY, "s", 0.17)):
        whole = 3600 * runs[name, count].hours(PEAKS[gpu], count, 1)
        needed = [share * recipe(name).steps * a_step / whole for share in (0.05, 0.2, 0.4)]
        axis.plot((needed[0], needed[2]), (row + shift,) * 2, color=color, lw=1.2)
        axis.plot(needed[1], row + shift, mark, color=color)
        label = f"{name}: {needed[1]:,.0f}"
        axis.text(needed[2] * 1.1, row + shift, label, va="center", color=color, fontsize=8)
axis.set(xscale="log", xlim=(5e3, 4e7), ylim=(len(MACHINES) - 0.5, -0.5))
axis.set_yticks(range(len(MACHINES)), [f"{count} x {gpu}" for gpu, count in MACHINES])
axis.set_xlabel("target tokens a second")
plt.show()

# %% [markdown]
# Three records are enough, those of steps 100, 150 and 200. If the number is far below the mark, look in this order:
#
# 1. Does the first record of the log say the right number of `processes`, and does `nvidia-smi` list one on each GPU? If not, PyTorch has not found the GPUs.
# 2. Does `nvidia-smi` show another program on them? Two programs on a GPU share it.
# 3. Does the number stay if you take fewer GPUs? Then steps are too short to be shared. By the arithmetic of [many GPUs](26_distributed.ipynb), launches alone take 6.4 ms a step, if nothing is compiled. That is an end at $22{,}700 / 0.0064 = 3.5$ million tokens a second, however many GPUs there are. Larger batches are the remedy, or fewer GPUs.
# 4. Is one core of the processor busy all the time, and the GPU idle in between? Then launches are what limits, and `--compile` helps.
# 5. Does the number fall after some minutes? A GPU that gets too hot slows down.
#
# [Speed](25_speed.ipynb) goes through the levers one at a time. The important thing is to ask before the night and not after it.
#
# ## What does a sick run look like?
#
# Slow is one way to fail. The other is to be fast and to learn nothing. We make two runs ill on purpose, with the settings of the rehearsal. In the first the learning rate is ten times as high. In the second each English sentence stands beside the German of its neighbor, as happens when one line is missing in one of two files.


# %%
held_out = {*validation, *test}
good = [pair for pair in pairs if pair not in held_out]
shifted = [Pair(one.source, other.target) for one, other in pairwise(good)]


def small_run(pairs, steps, lr_scale):
    """Train as in the rehearsal, and return the reports of the validations."""
    torch.manual_seed(0)
    model = Transformer(preset("tiny", vocabulary_size=len(words), dropout=0.0))
    config = TrainingConfig(
        steps=steps, max_tokens=800, warmup=80, lr_scale=lr_scale, save_every=50
    )

    def bleu(model):
        made = translate(model, words, [pair.source for pair in validation[:30]], beam=1)
        return score(made, [pair.target for pair in validation[:30]]).bleu

    reports = []
    train(model, words, pairs, config, validation=validation, score=bleu, report=reports.append)
    return [report for report in reports if "score" in report]


# %% [markdown]
# Beside them we need a number to compare with. What loss has a model that knows how frequent each token is, and nothing else? It is the entropy of the tokens, and it can be counted:

# %% tags=["nbval-ignore-output"]
sick = {"rate": small_run(good, 60, lr_scale=3.0), "lines": small_run(shifted, 200, lr_scale=0.3)}
counts = np.bincount([i for pair in good for i in [*words.encode(pair.target), 2]])
shares = counts[counts > 0] / counts.sum()
frequencies = -(shares * np.log(shares)).sum()
print(f"loss of a model that knows the frequencies alone: {frequencies:.2f}")
for name, some in sick.items():
    print(
        f"{name}: validation loss {some[-1]['validation_loss']:.2f}, BLEU {some[-1]['score']:.1f}"
    )
assert sick["rate"][-1]["validation_loss"] > 0.9 * frequencies
assert sick["lines"][-1]["validation_loss"] > checks[-1]["validation_loss"] + 0.5
assert sick["lines"][-1]["score"] < checks[-1]["score"] / 3

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-sick", "caption": "How does one see that a run is ill? Validation loss and BLEU of the rehearsal (healthy) and of two runs that were made ill: ten times the learning rate, and lines that are shifted by one. The dotted line is the loss of a model that knows how frequent the tokens are and nothing else."}, "image": {"alt": "With too high a rate the loss stays at the dotted line. With shifted lines the loss falls nearly as in the healthy run for half of the time and then lags behind, while BLEU stays near zero."}}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for name, some, color, line in (
    ("healthy", checks, VALUE, "s-"),
    ("rate x 10", sick["rate"], KEY, "o-"),
    ("shifted lines", sick["lines"], QUERY, "^--"),
):
    for axis, column, lift in ((left, "validation_loss", 0.25), (right, "score", -0.7)):
        axis.plot([r["step"] for r in some], [r[column] for r in some], line, color=color, lw=1.5)
        place = some[-1]["step"] + 5, some[-1][column] + (lift if name == "rate x 10" else 0)
        axis.text(*place, name, color=color, va="center", fontsize=9)
left.axhline(frequencies, color=INK, lw=0.8, ls=":")
left.text(258, frequencies - 0.22, "frequencies alone", ha="right", va="center", fontsize=9)
left.set(xlabel="step", xlim=(40, 260), ylim=(0, 5.5))
right.set(xlabel="step", xlim=(40, 260), ylim=(-1.3, None))
left.set_ylabel("validation loss")
right.set_ylabel("BLEU, validation")
plt.show()

# %% [markdown]
# The first illness is easy to see. The loss comes down to the dotted line and stays there. The model has learned which tokens are frequent, and nothing else. So a flat line at this height means a rate that is too high, or a warm-up that is too short.
#
# The second one is dangerous. For a hundred steps the loss falls as it should, since most of what can be learned at first is German, and German does not need the source. Only then does it lag behind. Without a healthy run beside it nobody would notice. BLEU is what tells: it stays where it was. So a falling loss is no proof that a model translates. For WMT14, where both languages stand in one row of a file, this case is unlikely. With a corpus of your own it is the first thing to suspect.
#
# ### What if the loss is not a number?
#
# With 16 bits and a high rate, numbers overflow. We provoke it with a rate that nobody would choose:

# %% tags=["nbval-ignore-output"]
told = shell(
    "annotated-transformer train --prepared corpus --output hot --preset tiny --device cpu "
    "--dropout 0 --max-tokens 800 --lr-scale 1e30 --steps 20 --save-every 10",
    code=2,
)
assert "is not finite; it was not used" in told

# %% [markdown]
# The command has ended, with code 2 and one line. No `nan` has reached the weights, and no checkpoint was written after the bad step. So the last checkpoint is good. What to do depends on what comes next:
#
# 1. **The same command again.** The run repeats the same batches from its last checkpoint. If it gets past the step, it was most likely a fault of the hardware, and one may go on. If it happens twice in a night, test the GPUs.
# 2. **It stops at the same step.** Look at `gradient_norm` in the records before. If it has grown for hundreds of steps, the rate is too high for this model: a longer `--warmup`, a smaller `--lr-scale`, or `--grad-clip 1`. Each of them is another training, in another folder.
# 3. **It stops at the same step, and the norm was calm.** Try `--precision fp32`, which is another training, too, in another folder. If it gets past that step, the narrow numbers had overflowed.
#
# With `torchrun --max-restarts=3` the first point happens by itself, and the second costs three restarts more. A run over night should have it. On a cluster that gives hours and no nights, [the script for Slurm](26_distributed.ipynb) does the rest; its last line becomes `-m annotated_transformer train --prepared wmt14-en-de --preset base --output /shared/runs/base`.
#
# ## What was run, and what was not
#
# | | run? | on what |
# |---|---|---|
# | the four commands, with a kill | yes, on this page | two processes on a processor, grammar sentences |
# | the download of WMT14 from the hub | no | the number of rows is what the hub states |
# | parts of the GPU path: 16 bits, compiling, many GPUs | no GPU was available | on processors only: [speed](25_speed.ipynb), [many GPUs](26_distributed.ipynb) |
# | base and big on WMT14, either language | **no** | |
#
# ## What score should I expect?
#
# For base, something between 24 and 27.5. That is a wide answer to a narrow question, and it is what the same model has got in the hands of different people. Scores that others have published follow, and ours, which are read from `benchmarks/results/wmt14.jsonl`. All are for English to German, newstest2014.

# %%
PUBLISHED = (
    ("the paper, base", "tokenized, compounds split", 27.3),
    ("the paper, big", "tokenized, compounds split", 28.4),
    ("tensor2tensor, base, long run", "sacreBLEU", 27.52),
    ("JoeyNMT, base", "sacreBLEU, 3,003 sentences", 24.38),
    ("Vinodababu's tutorial, base", "sacreBLEU, 3,003 sentences", 25.1),
    ("OpenNMT-py, base", "sacreBLEU, 2,737 sentences", 26.77),
    ("Ott et al., big", "sacreBLEU", 28.6),
    ("NVIDIA, big", "without case", 27.9),
)
path = Path("../benchmarks/results/wmt14.jsonl")
address = "https://github.com/annotated-transformer/annotated-transformer/raw/main/benchmarks/results/wmt14.jsonl"
text = path.read_text() if path.exists() else urlopen(address).read().decode()  # in Colab
ours = [record for record in map(json.loads, text.splitlines()) if "bleu" in record]
for name, how, bleu in PUBLISHED:
    print(f"{bleu:6.2f}  {name:31} {how}")
for name in ("base", "big"):
    found = [record for record in ours if record["preset"] == name]
    for record in found:
        print(
            f"{record['bleu']:6.2f}  ours, {name:25} {record['bleu_signature']}, by {record['by']}"
        )
    if not found:
        print(f"     -  ours, {name:25} not run yet")

# %% [markdown]
# The scores are from Table 2 of the paper, from a user's measurement of [tensor2tensor's model](https://github.com/tensorflow/tensor2tensor/issues/317), from the pages of [JoeyNMT](https://github.com/joeynmt/joeynmt), [a PyTorch tutorial by Sagar Vinodababu](https://github.com/sgrvinod/a-PyTorch-Tutorial-to-Transformers), [OpenNMT-py](https://opennmt.net/Models-py/) and [NVIDIA](https://github.com/NVIDIA/DeepLearningExamples), and from Ott, Edunov, Grangier and Auli (*[Scaling neural machine translation](https://aclanthology.org/W18-6301/)*, 2018). They are not one column, although they stand in one. Three of the systems were scored in two ways, and that tells how far apart the ways are:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-two-ways", "caption": "How much of a score is the tool? Three published systems, each scored twice on the same translations: sacreBLEU (circle) and a script in the style of the paper (square). Below, the paper's own scores, for which only the second is known; the line is where the first would be if the gap were 1.5."}, "image": {"alt": "The paper's style gives 0.7, 1.4 and 1.5 points more for the same translations. With a gap of 1.5, the paper's 27.3 would be 25.8 and its 28.4 would be 26.9."}}
TWICE = (
    ("Ott et al., big", 28.6, 29.3),
    ("Vinodababu, base", 25.1, 26.49),
    ("tensor2tensor, base", 27.52, 29.02),
    ("the paper, big", None, 28.4),
    ("the paper, base", None, 27.3),
)
figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
for row, (_, strict, styled) in enumerate(TWICE):
    start = strict or styled - 1.5
    axis.plot((start, styled), (row, row), color=RESIDUAL, lw=1.2, ls="-" if strict else ":")
    axis.plot(styled, row, "s", color=KEY)
    axis.annotate(f"{styled:.1f}", (styled, row), (8, -3), textcoords="offset points", fontsize=9)
    axis.plot(start, row, "o", color=QUERY, mfc=QUERY if strict else "none")
    label = f"{start:.1f}" if strict else f"{start:.1f} ?"
    axis.annotate(label, (start, row), (-8, -3), textcoords="offset points", ha="right", fontsize=9)
axis.set(yticks=range(len(TWICE)), yticklabels=[name for name, *_ in TWICE], xlim=(24, 30))
axis.set(ylim=(len(TWICE) - 0.5, -0.5), xlabel="BLEU, newstest2014, English to German")
axis.grid(False)
plt.show()

# %% [markdown]
# The wide gaps are from tensor2tensor's script, the paper's own. So a score of ours around 25.8 for base and 26.9 for big would be the paper's level, give or take 0.3. `evaluate` prints the [score with compounds split](20_evaluation.ipynb) too, so that nobody has to guess.
#
# ### Why will mine differ from the paper's?
#
# | cause | how much, and how we know |
# |---|---|
# | another tool: tokens, compounds, quotes | 0.7 to 1.5, the figure above |
# | 2,737 sentences in place of 3,003 | `evaluate` prints both |
# | another seed | about 0.3 between two runs; one [careful repetition](https://github.com/WangZesen/Reproduce-Transformer) states a spread of 0.13 |
# | another draw of 3,003 sentences | more than a seed: [a test set is a sample](20_evaluation.ipynb) |
# | average, last or best checkpoint; beam and its penalty | measure it on the validation set |
# | another cleaning, another vocabulary, another News Commentary | not known; the paper says little about its own |
#
# A base model that ends below 23 has something wrong with it. One that ends above 28 has, too, most likely in the measurement: look at the signature, at the number of sentences, and for sentences of the test set in the training data. Both bounds are our judgment from the list above, not a law.
#
# ### Adding your run
#
# A run becomes a line of the table. It is what `evaluate --json` prints, with what only you know. Most of it is in the files already. For the rehearsal:


# %% tags=["nbval-ignore-output"]
def hours_of(records):
    """Return the hours that a log covers, without the time between a kill and going on."""
    seconds, last = 0.0, None
    for record in records:
        now = datetime.fromisoformat(record["time"].replace("+0000", "+00:00"))
        seconds += (now - last).total_seconds() if last and "machine" not in record else 0.0
        last = now
    return seconds / 3600


begun = [record for record in records if "machine" in record]
line = {
    "by": "your name", "version": "the commit", "preset": "tiny", "steps": records[-1]["step"],
    "machine": "two processes", "torch": begun[-1]["torch"], "hours": round(hours_of(records), 3),
    **scores,
}  # fmt: skip
print(json.dumps(line, indent=1))
assert line["hours"] > 0 and {"bleu", "chrf", "bleu_signature"} <= set(line)

# %% [markdown]
# Append yours to `benchmarks/results/wmt14.jsonl`, as one line, and open a pull request with `log.jsonl`, `training.json` and `summary.json` beside it. Send a bad score too, and say so if a setting was changed.
#
# ## How to judge a run
#
# A training of hours should be looked at early. Some numbers are known before the first step:

# %%
base = preset("base")
size, eps = base.vocabulary_size, 0.1
floor = (1 - eps) * np.log(1 / (1 - eps)) + eps * np.log(size / eps)
print(f"loss if all tokens are equally likely: {np.log(size):.1f} nats")
print(f"loss on smoothed labels of a perfect model: {floor:.2f}")
print(f"the paper's perplexities in nats: base {np.log(4.92):.2f}, big {np.log(4.33):.2f}")
for step in (100, 1_000, 4_000, 10_000, 100_000):
    print(f"rate at step {step:7,}: {learning_rate(step, base.d_model, 4000):.6f}")

# %% [markdown]
# The paper's perplexities are its Table 3, on newstest2013, with tokens that are not ours. Our `validation_loss` is the same quantity and should end near them. The training loss is higher by its floor.
#
# | when | what to look for | if not |
# |---|---|---|
# | before step 1 | the dry run fits into memory | halve `--max-tokens`, double `--grad-accum-steps` |
# | step 50, in `log.jsonl` | a loss near the first number above, or half a unit more | far above it: the weights did not start as ours do |
# | step 200 | target tokens a second near the plan | the list of five questions above |
# | step 1,500, the first line on the terminal | the loss has fallen all the way; the validation loss too; BLEU may still be near 0 | flat for hundreds of steps: the rate, as in {numref}`fig-sick` |
# | step 10,000 | BLEU on newstest2013 is far from 0 and rises from check to check | flat near 0 while the loss falls: the [decoder does not read the source](18_training.ipynb) |
# | the end | curves flat, the average better than the last checkpoint | the average is worse: fewer checkpoints, or the run is not done |
#
# We give no loss values for steps 1,500 and 10,000. They would be from another corpus or another machine, and a wrong expectation is worse than none.
#
# The BLEU in the progress lines is that of greedy search, on every second sentence of newstest2013. For a decision, such as how many checkpoints to average, run `evaluate --split validation`.
#
# ### How many checkpoints should be averaged?
#
# The paper says five and twenty, and why not four or thirty it does not say. With a run of your own, ask the validation set:
#
# ```bash
# for last in 1 3 5; do
#     annotated-transformer average --run base --last $last --output base-$last
#     annotated-transformer evaluate --model base-$last --prepared wmt14-en-de --split validation --json >> validation.jsonl
# done
# ```
#
# In the run of [your own pair](../book/own_pair.md) it was 39.6 for the last checkpoint alone, 40.1 for two and 39.0 for three. That run was short, and its third checkpoint was too young. In a long one the optimum is flat, and nobody needs to search for it. If the last one alone is best, the weights were still moving fast, and the run is not done.
#
# ### When are two results different?
#
# Two scores differ by 0.3 from the seed alone. So one run with 25.6 and one with 25.9 are the same result, until a [paired bootstrap](20_evaluation.ipynb) and a second seed say otherwise. And look at newstest2014 once. Whoever picks the best of ten checkpoints on it has trained on it.
#
# ## What is different for French?
#
# The name of the corpus, one option, and the size. The direction is English to French, as in the paper:
#
# ```bash
# annotated-transformer prepare wmt14-en-fr
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train --prepared wmt14-en-fr --preset big --dropout 0.1 --output big-fr
# annotated-transformer average --run big-fr --last 20 --output big-fr-average
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer evaluate --model big-fr-average --prepared wmt14-en-fr
# ```
#
# The option is `--dropout 0.1`, which the paper gave to its big model here, in place of 0.3. With so many sentences a model has little chance to learn them by heart. For base, nothing changes but the name of the corpus. The vocabulary has 32,000 entries and not 37,000, which `prepare` knows. What eight times the pairs mean, by the rates of the log:

# %%
french = 36e6 / 4.5e6
print(f"tokens.bin and lengths.npy: {french * on_disk / 1e9:.1f} GB")
for steps in (100_000, 300_000):
    print(f"{steps:,} steps: {steps / (batches_per_epoch * french):.1f} epochs")

# %% [markdown]
# The 36 million are the paper's count; the copy on the hub has 40.8 million before cleaning. A training takes as long as for German, since a step is a step. It only sees each sentence twice, or with 300,000 steps nearly seven times, and not eighteen times or fifty.
#
# The paper's scores are 38.1 and 41.8, with the authors' tool. We know of no way to say what they would be with sacreBLEU.
#
# ## Other roads
#
# **One GPU with 24 GB.** The update is the same if it is made in four parts: `--max-tokens 6250 --grad-accum-steps 4`. An exercise computes the memory.
#
# **Larger batches.** On many GPUs the paper's batch is small. Ott et al. took about 400,000 tokens an update with a peak rate near 0.001, and the big model then got better, in fewer steps. With `--grad-accum-steps` and `--lr-scale` this can be tried here: for the big model our peak is $1024^{-0.5} \cdot 4000^{-0.5} = 0.0005$, so `--lr-scale 2` is theirs. It is another recipe than the paper's, and has to be named.
#
# **Another large corpus.** Give its files to [`prepare`](D_large_corpora.ipynb), as the rehearsal did, and the other commands stay the same. For some hundred thousand pairs in two text files, [your own language pair](../book/own_pair.md) is the shorter road.
#
# **Putting it to work.** `export` hands the averaged model to [an engine made for serving](F_export.ipynb).
#
# ## The end of the book
#
# It began with a lookup in a dictionary. From there each chapter added one thing: masks, heads, layers, a vocabulary, batches, a schedule, a search, a score. You have seen every line of the program that the four commands run, and why it is there. If a run goes wrong you know in which file to look, and what its numbers should be.
#
# The models that are in use today differ from this one in details that you can now judge: where the [norm](09_layers.ipynb) stands, how [positions](08_positional_encoding.ipynb) enter, whether there is an encoder at all. Good next readings are {cite:t}`xiong2020layer` on the norm, {cite:t}`shaw2018self` on positions as distances, and Ott et al. on size. After them, Devlin et al. (*BERT*, 2019) keep only the encoder, and Radford et al. (*Language models are unsupervised multitask learners*, 2019) only the decoder. You will recognize most of what you find there.
#
# ## What to remember
#
# - Four commands lead from nothing to a score: prepare, train, average, evaluate. Each may be killed and started again.
# - "WMT14" is a revision of a data set. Say which one you took.
# - A score without its tool, its test set and its number of sentences is half a score. The same translations get 0.7 to 1.5 points more from some scripts.
# - A falling loss is no proof. Watch the speed in the first ten minutes and BLEU from then on.
# - Computed is not measured, and a rehearsal is not a run. This page says of each number which it is.

# %% [markdown]
# ## Exercises
#
# 1. By hand: 100,000 steps of 25,000 target tokens, a corpus of 4.5 million pairs with 28 target tokens each. How many epochs? Why is the number above smaller?
# 2. What breaks if the vocabulary is learned from the test set too?
# 3. A GPU costs 3 (in your currency) an hour. What do base and big cost on one H100 at 20 % of its peak, and what if training gets only 5 %?
# 4. How much memory does base need at 25,000 tokens, and how much at 6,250 with `--grad-accum-steps 4`? What does not become smaller?
# 5. Your run has 26.4 on the 2,737 filtered sentences. A paper reports 26.1 for the same model. Which is better?
# 6. The log of a base run on one A100 says 120,000 target tokens a second, with the steps of this page. How long will it take, without validations? Which share of the peak is that?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. The 25,000 count padding, and a batch is seldom full to the last position
print(f"{100_000 * 25_000 / (4.5e6 * 28):.1f} by hand, {100_000 / batches_per_epoch:.1f} planned")

# 2. No number looks wrong, which is the bad thing. Rare words of the test become whole tokens,
# and a name that the training never met is spelled less. The score is a little too good
quagga = [Pair("The quagga sleeps.", "Das Quagga schläft.")] * 20
for text in (pairs[:500], [*pairs[:500], *quagga]):
    print(len(Tokenizer.train(text, 500).encode("quagga")), "tokens for quagga")

# 3. Hours go with one over the share
for name in ("base", "big"):
    costs = [3 * runs[name, 1].hours(PEAKS["H100"], 1, share) for share in (0.2, 0.05)]
    print(f"{name}: {costs[0]:.0f} or {costs[1]:.0f}")

# 4. Weights, gradients and moments stay, 18 bytes a parameter with the copy in 16 bits
for most, batches in ((25_000, 1), (6250, 4)):
    settings = TrainingConfig(steps=100_000, max_tokens=most, grad_accum_steps=batches)
    plan = estimate(preset("base"), settings, lengths[::10], "bf16")
    print(f"{most:6,}: {plan.memory_bytes / 2**30:.1f} GiB", end=", of these ")
    print(f"{18 * plan.parameters / 2**30:.1f} for the weights")

# yours on all of them, compare the signatures, and remember that a seed moves a score by 0.3

# 6. All real tokens of all steps, divided by those of a second
hours = 100_000 * a_step / 120_000 / 3600
share = runs["base", 1].hours(PEAKS["A100"], 1, 1) / hours
print(f"{hours:.1f} hours, {share:.0%} of the peak")
home.cleanup()

# %% [markdown]
# ## Sources
#
# Corpus, batches and schedule are from section 5 of {cite:t}`vaswani2017attention`, scores and cost from its Tables 2 and 3, beam and averaging from section 6.1. That scores must come with a signature is the point of {cite:t}`post2018call`; the filtered and the full test set are two entries of that tool's list.
