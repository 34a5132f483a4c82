# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # WMT14
#
# The paper's models on the paper's corpus, from an empty rented machine to the score, with what each step prints when all is well, and what to do when it prints something else (sections 5 and 6.1 of the paper).
#
# What separates our model from the paper's results is size: 4.5 million pairs, a vocabulary of 37,000, 25,000 tokens per side in each of 100,000 steps. This chapter puts the commands in order, as a list to work through.
#
# ## What was run, and what was not
#
# :::{warning}
# **Nobody has yet run** the download of WMT14, base or big on the whole of it, or anything on several GPUs with this code.
#
# **Run:** `prepare`, `train`, `average`, `evaluate` and the exchange of gradients in small, with two processes on a CPU ([further down](#a-rehearsal)); training steps of base and big on [an H200 and an H100](26_speed.ipynb#on-a-gpu); and on one H100 `train --prepared`, with 227,123 other pairs and two kills ([its log](https://github.com/annotated-transformer/annotated-transformer/blob/main/benchmarks/results/train-H100-base-warmup400.jsonl)). `prepare` was run on 200,000 rows, real sentences of the corpus repeated with a number in each ([log](https://github.com/annotated-transformer/annotated-transformer/blob/main/benchmarks/results/prepare.jsonl)).
#
# **Computed:** all hours below. If something goes differently for you, [tell us](https://github.com/annotated-transformer/annotated-transformer/issues).
# :::

# %% tags=["hide-cell"]
import json
import os
import shlex
import subprocess
import tempfile
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import torch

from annotated_transformer.batching import plan_batches
from annotated_transformer.cli import main
from annotated_transformer.corpus import REVISION, WMT14, open_corpus
from annotated_transformer.data import Pair
from annotated_transformer.evaluation import score
from annotated_transformer.files import load_model
from annotated_transformer.speed import estimate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.trainer import recipe, train
from annotated_transformer.training import TrainingConfig
from annotated_transformer.translation import translate
from annotated_transformer.transformer import Transformer, parameter_count, preset
from benchmarks.common import read_log
from book.figures import AMBER, INK, PLUM, RESIDUAL, SKY, show_plot, style


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-four", "caption": "Which command reads what, and what does it leave on the disk? Commands in boxes; on their left what they read, on their right what they write. Only the first and the last need the network, and only the two in orange want GPUs. The sizes are those of the base model, computed, but for the first, which the data set's card states."}}
style()
weights = 4 * parameter_count(preset("base")) / 1e9
CHAIN = (
    (
        "Parquet files in the cache\n0.8 GB",
        "prepare",
        "wmt14-en-de/\ntokens.bin, lengths.npy,\ntokenizer.json: 0.6 GB",
    ),
    (
        "wmt14-en-de/\ntokens, validation.tsv",
        "train",
        f"base/\ncheckpoints/, log.jsonl:\n{7 * 3 * weights:.1f} GB",
    ),
    (
        "base/\nthe last checkpoints",
        "average",
        f"base-average/\nmodel.safetensors:\n{weights:.2f} GB",
    ),
    ("base-average/, wmt14-en-de/\nnewstest2014", "evaluate", "scores"),
)
figure, axis = plt.subplots(figsize=(4.9, 3.3), layout="constrained")
arrow = {"arrowstyle": "->", "color": RESIDUAL}
for row, (reads, command, writes) in enumerate(CHAIN):
    color = AMBER if command in ("train", "evaluate") else SKY
    box = {"boxstyle": "round,pad=0.5", "fc": "none", "ec": color}
    axis.text(0, row, command, ha="center", va="center", color=color, bbox=box)
    for text, side, align in ((reads, -1, "right"), (writes, 1, "left")):
        axis.text(0.62 * side, row, text, ha=align, va="center", fontsize=9, color=INK)
    for start, end in ((-0.56, -0.32), (0.32, 0.56)):
        axis.annotate("", (end, row), (start, row), arrowprops=arrow)
axis.set(xlim=(-1.9, 1.9), ylim=(3.5, -0.5))
axis.set_axis_off()
show_plot(
    alt="Four rows: prepare, train, average and evaluate, each reading what the one above has written. The folder wmt14-en-de is read twice: by train and by evaluate.",
)

# %% [markdown]
# The commands meet in folders, and none of them has to be watched. If one is killed, give it again: `train` goes on from its last checkpoint, at most 1,500 updates back, and the others begin anew (`prepare` without the download).
#
# ## A machine
#
# Rent one GPU: it is enough for base and big as the paper trained them, and eight would hardly be faster. Eight pay only with a [large batch](#two-recipes). Take an image with NVIDIA's driver and Python 3.10 or later. Everything happens inside `tmux`, which survives a broken connection; `tmux attach` finds it again.
#
# ```bash
# nvidia-smi
# df -h .
# tmux new -s wmt
# ```
#
# The first line shows the GPUs, and at the top the newest CUDA that the driver knows. On the disk there should be room for 20 GB, for the big model 80. Then, inside `tmux`:
#
# ```bash
# git clone https://github.com/annotated-transformer/annotated-transformer
# cd annotated-transformer
# python3 -m venv env
# . env/bin/activate
# pip install ".[wmt14]"
# python -c "import torch; print(torch.__version__, torch.cuda.device_count())"
# ```
#
# **Expect** a version that ends in `+cu` and a number, and the number of GPUs. The installation takes a few minutes, most of them for PyTorch's download.
#
# :::{admonition} If not: a command is missing, 0 GPUs, or you are in a container
# :class: dropdown
# A command that is missing, or a `venv` without `ensurepip`, comes with `sudo apt update` and `sudo apt install git tmux python3-venv rsync` (as root without `sudo`).
#
# 0 GPUs where `nvidia-smi` lists some is a PyTorch for CPUs, or one that is too new for the driver. Install one for a CUDA that it knows: `pip install --force-reinstall "torch>=2.6" --index-url https://download.pytorch.org/whl/cu126`.
#
# If you start a container yourself, give `docker run` the options `--gpus all --shm-size 1g`; if the machine that you rent is one, `df -h /dev/shm` should show 1 GB. The process that reads batches ahead needs this shared memory, and too little ends in a bus error. If there is less, set it where you rent, or take another machine.
# :::
#
# ## The links between the GPUs
#
# Skip this with a single GPU. The first line shows how each pair is connected; the second exchanges a gradient of the base model's size.
#
# ```bash
# nvidia-smi topo -m
# torchrun --standalone --nproc-per-node 8 -m benchmarks.speed.allreduce
# ```
#
# **Expect** `NV` and a number between all pairs (NVLink), and an exchange in a few milliseconds: [computed](27_distributed.ipynb#the-cost-of-an-all-reduce), 1.5 ms at 300 GB per second. `PIX` or `PXB` is a PCIe switch, and `PHB`, `NODE` and `SYS` lead through the processor: at 25 GB per second, 18 ms. **If not:** `NCCL_DEBUG=INFO` before the command says which way was taken. If it hangs, try `NCCL_P2P_DISABLE=1`; if that cures it, the machine is set up wrongly. If an exchange takes 65 ms, as long as a step, the large batch below loses half of its speed.
#
# ## A trial on all GPUs
#
# From here on `run` is the command on all your GPUs, in bash and in zsh. (With four, write 4. With one, `run() { annotated-transformer "$@"; }`. A new shell needs this line again, after `cd annotated-transformer` and `. env/bin/activate`.)
#
# ```bash
# run() { torchrun --standalone --nproc-per-node 8 -m annotated_transformer "$@"; }
# run train --corpus multi30k --preset base --steps 200 --output try
# head -n 1 try/log.jsonl
# ```
#
# **Expect** a line of progress after some twenty seconds, at step 200, and in the log `"processes":` with the number of your GPUs. **If not:** "another process is working in try" means that it was started without `torchrun`; the [table of failures](27_distributed.ipynb#what-fails-and-how-it-shows) has more.
#
# ## The corpus
#
# `prepare` needs the network and no GPU. Its download takes 2.2 GB on the disk, by the [card of the data set](https://huggingface.co/datasets/wmt/wmt14); the first line puts it into the present folder instead of your home. The last two lines fetch the test sets into sacreBLEU's cache (`~/.sacrebleu`), since the nodes of a cluster are often offline when `evaluate` wants them.
#
# ```bash
# export HF_HOME=$PWD/cache
# annotated-transformer prepare wmt14-en-de
# sacrebleu -t wmt14/full -l en-de --echo src > test-full.en
# sacrebleu -t wmt14 -l en-de --echo src > test-filtered.en
# ```

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show how time and disk are computed", "code_prompt_hide": "Hide how time and disk are computed"}
prepared_with, measured = read_log("prepare")
rows = prepared_with["rows"]
minutes = measured["stages"]["all"]["cpu_seconds"] / 60 * 4_508_785 / rows
print(f"{minutes:.0f} minutes of a core, from a log of {rows:,} rows")
weights = 12 / 1e9  # a parameter in a checkpoint, GB
for name in ("base", "big"):
    each, kept = weights * parameter_count(preset(name)), recipe(name).keep_checkpoints
    print(
        f"{name}: {kept + 2} checkpoints of {each:.2f} GB: {each * (kept + 2):.0f} GB"
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert 40 < minutes < 55
    assert (recipe("base").save_every, recipe("big").save_every) == (1500, 600)

# %% [markdown]
# **Expect** less than an hour of one core, computed from the log; the cutting into tokens runs on all cores, the rest on one. Then a line counts the pairs kept and dropped, most of them for lengths too far apart. Given again, the same command says that the folder is prepared. `wc -l test-full.en` counts 3,003 lines, `test-filtered.en` 2,737. **If not:** give the command again; what was downloaded is kept.
#
# :::{admonition} Preparing on a machine without a GPU
# :class: dropdown
# A cheap machine will do, with the clone and the environment from above. Copy the result from it: `rsync -a wmt14-en-de user@machine:annotated-transformer/` and `rsync -a ~/.sacrebleu user@machine:`.
# :::
#
# ## Will it fit?
#
# ```bash
# annotated-transformer train --prepared wmt14-en-de --preset base --output base \
#     --dry-run --peak 989e12 --precision bf16
# ```
#
# **Expect** 63,045,632 parameters, about 9e17 operations, 7 to 8 GiB for base (16 for big), and the hours of one H100 (`--peak` is from a data sheet, [here](26_speed.ipynb#the-speed-of-the-machine) are others). The memory that was measured lay up to 8% above. **If your card has less:** add `--max-tokens 12500 --grad-accum-steps 2`, here and to the training: the same updates in two halves. For the large batch below, add its options and `--gpus 8`.
#
# ## Train
#
# ```bash
# annotated-transformer train --prepared wmt14-en-de --preset base --output base
# ```
#
# That is all; bf16 is taken where the GPU has it. With `run` in front of `train`, your GPUs share each batch and the updates stay as they are. But a step of base takes 62 ms [however small the shares](27_distributed.ipynb#how-fast-it-can-be), so eight would finish no sooner. If you have a second GPU, use it for big at the same time: in another window, write `CUDA_VISIBLE_DEVICES=1` in front of the command.
#
# ### Two recipes
#
# **As the paper.** Take one GPU for big, too. With this batch, eight would finish it at most 1.7 times as fast, for 4.6 times the rent.
#
# ```bash
# annotated-transformer train --prepared wmt14-en-de --preset big --output big
# ```
#
# **A large batch, for eight GPUs**, after {cite:t}`ott2018scaling`. They gave the big model about 400,000 tokens per update and a peak rate of 0.001, twice the paper's. Trained on WMT16's data, it reached 29.3 BLEU, scored in the paper's way, in which the paper's model has 28.4. In sacreBLEU's way their 29.3 is 28.6 ({numref}`fig-two-ways`). The second command below has the same batch and rate, on WMT14's data. For base we know of no published run, and take half that batch with the same rate:
#
# ```bash
# run train --prepared wmt14-en-de --preset base --max-tokens 200000 \
#     --lr-scale 1.43 --steps 12500 --save-every 200 --output base-large
# run train --prepared wmt14-en-de --preset big --max-tokens 200000 \
#     --grad-accum-steps 2 --lr-scale 2 --steps 18750 --save-every 250 --output big-large
# ```
#
# Each sees as many tokens as the paper's run, and trains the paper's model. But they change batch, rate and steps, so say that beside the score. On four GPUs, write `--max-tokens 100000`, with `--grad-accum-steps 2` for base and 4 for big.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hours", "caption": "How long, and how much? Hours of training for each recipe, and the rent at 3 per GPU and hour, computed from steps measured on one H200 (filled) and, hatched, as if eight such GPUs exchanged gradients in no time and big had the same floor of 62 ms as base. Validations, averaging and a run that fails come on top."}}
GPU = {line["name"]: line for line in read_log("gpu-NVIDIA-H200") if "seconds" in line}
BASE, BIG, FLOOR = (
    median(GPU[name]["seconds"]) / 5 for name in ("base", "big", "3,125 tokens")
)
RENT = 3  # for a GPU and an hour, in your currency
PLANS = (  # recipe, GPUs, updates, seconds of an update
    ("base, as the paper", 1, 100_000, BASE),
    ("base, as the paper", 8, 100_000, FLOOR),
    ("base, large batch", 8, 12_500, BASE),
    ("big, as the paper", 1, 300_000, BIG),
    ("big, as the paper", 8, 300_000, FLOOR),
    ("big, large batch", 8, 18_750, 2 * BIG),
)
style()
figure, axis = plt.subplots(figsize=(4.6, 3), layout="constrained")
hours = {}
for row, (name, gpus, steps, seconds) in enumerate(PLANS):
    hours[name, gpus] = took = steps * seconds / 3600
    color = SKY if "base" in name else AMBER
    axis.barh(
        row,
        took,
        fc=color if gpus == 1 else "none",
        ec=color,
        hatch="" if gpus == 1 else "//",
    )
    label = f"{took:.1f} h, rent {RENT * gpus * took:.0f}"
    axis.text(took + 0.2, row, label, va="center", color=INK)
names = [f"{name}, {gpus} GPU{'s' * (gpus > 1)}" for name, gpus, *_ in PLANS]
axis.set(yticks=range(len(PLANS)), yticklabels=names, xlim=(0, 15), xlabel="hours")
axis.invert_yaxis()
axis.grid(False)
show_plot(
    alt="Base as the paper takes 1.8 hours on one GPU and 1.7 on eight, at eight times the rent; with a large batch 0.2 hours. Big takes 9.0 hours on one, at least 5.2 on eight, and 1.1 with a large batch.",
)

# %% tags=["remove-cell"]
if CHECKING:
    H100 = read_log("gpu-NVIDIA-H100-80GB-HBM3")
    slower = [line for line in H100 if "seconds" in line]
    for line, most in zip(slower[:2], (1.4, 1.2)):
        times = median(line["seconds"]) / median(GPU[line["name"]]["seconds"])
        assert 1.1 < times < most
    assert [round(h, 1) for h in hours.values()] == [1.8, 1.7, 0.2, 9.0, 5.2, 1.1]

# %% [markdown]
# ## What it will take
#
# Hours are updates times the length of a step, and the first minutes tell whether yours is as planned. Base made 344,000 real target tokens per second on one H200, and 244,000 on one H100 (2.4 hours in all); big 204,000 and 179,000 (10.4 hours). On another card, expect 22,000 times the number of steps, divided by the dry run's hours in seconds. With a large batch, eight GPUs should make nearly eight times as many, but nobody has measured it. Below half of that, look whether the log names the right number of `processes`, and whether `nvidia-smi` shows another program on the GPUs. Validations add about three seconds each: 67 of them for base, 500 for big.
#
# `--compile` made big [16% faster](26_speed.ipynb#compiling-a-layer) on our H100. To see about yours, run `annotated-transformer train --corpus multi30k --preset big --steps 200 --output try-big`, then again with `--compile --output try-big-compiled`, and compare the last `tokens_per_second` of the two logs. (If it asks for a compiler: `sudo apt install build-essential python3-dev`.)
#
# :::{admonition} The cost as Table 2 of the paper states it
# :class: dropdown
# Table 2 of the paper states the cost in another sense: time on the GPUs, times what such a GPU can sustain, 9.5e12 operations per second. Of the 3.3e18 operations that this makes for base, the model's own products are 28%, and of the 2.3e19 for big 41%.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the plan for made-up sentences of WMT14's lengths", "code_prompt_hide": "Hide the plan for made-up sentences of WMT14's lengths"}
chance = np.random.default_rng(0)
typical = chance.gamma(2.2, 27 / 2.2, size=(225_000, 1))
lengths = 1 + (typical * chance.lognormal(0, 0.15, size=(225_000, 2))).round()
lengths = lengths.clip(2, 250).astype(np.int32)
batches_per_epoch = 20 * len(plan_batches(lengths, 25_000, seed=0, epoch=0))
print(
    f"{batches_per_epoch:,} batches: 100,000 steps are {100_000 / batches_per_epoch:.1f} epochs"
)
PEAKS = {"H100": 989e12, "A100": 312e12, "RTX 4090": 165e12}  # bf16, from data sheets
plans = {}
for name in ("base", "big"):
    plans[name] = plan = estimate(preset(name), recipe(name), lengths, "bf16")
    memory = plan.memory_bytes / 2**30
    for gpu, peak in PEAKS.items():
        print(
            f"{name:4} 1 x {gpu:9} {memory:5.1f} GiB each,  {plan.hours(peak):6.1f} hours"
        )

# %% tags=["remove-cell"]
if CHECKING:
    died, slow = (read_log(f"train-H100-base-warmup{n}") for n in (400, 800))
    for log in (died, slow):
        losses = [r for r in log if "loss" in r and r["step"] % 50 == 0]
        paces = [r["tokens_per_second"] for r in losses]
        mean = sum(paces) / len(paces)
        assert 0.69 * mean < min(paces) and max(paces) < 1.31 * mean
    spent = {name: 8 * h * 3600 * 9.5e12 for name, h in (("base", 12), ("big", 84))}
    rates = [GPU[n]["tokens_per_second"] for n in ("base", "big")]
    rates += [line["tokens_per_second"] for line in slower[:2]]
    seconds = []  # of fifty steps with a validation, beyond those of the fifty before
    for old, new in pairwise(died):
        if "loss" in old and "score" in new and new["step"] == old["step"] + 50:
            begin, end = (datetime.fromisoformat(r["time"][:19]) for r in (old, new))
            seconds.append((end - begin).total_seconds() - 50 * BASE)
    assert [f"{number:.1e}" for number in spent.values()] == ["3.3e+18", "2.3e+19"]
    assert [round(100 * plans[name].flops / spent[name]) for name in spent] == [28, 41]
    assert [round(rate, -3) for rate in rates] == [344_000, 204_000, 244_000, 179_000]
    assert 2 < median(seconds) < 4
    assert 2.35 < 1e5 * median(slower[0]["seconds"]) / 5 / 3600 < 2.45
    assert 10.3 < 3e5 * median(slower[1]["seconds"]) / 5 / 3600 < 10.45

# %% [markdown]
# ### A cluster with Slurm
#
# :::{admonition} A script for the large batch, and two machines
# :class: dropdown
#
#  ```bash
#  #!/bin/bash
#  #SBATCH --job-name=base
#  #SBATCH --nodes=1
#  #SBATCH --ntasks-per-node=1        # one torchrun per machine; it starts the processes
#  #SBATCH --gpus-per-node=8
#  #SBATCH --cpus-per-task=32
#  #SBATCH --time=04:00:00
#  #SBATCH --signal=TERM@120          # two minutes before the end: time to leave a checkpoint
#  #SBATCH --dependency=singleton     # jobs of this name run one after the other
#  #SBATCH --output=%x-%j.log
#  set -euo pipefail
#  . env/bin/activate
#  export OMP_NUM_THREADS=1 SRUN_CPUS_PER_TASK=32 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
#  first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
#
#  srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 --max-restarts=3 \
#      --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:29500" \
#      -m annotated_transformer train --prepared wmt14-en-de --preset base \
#      --max-tokens 200000 --lr-scale 1.43 --steps 12500 --save-every 200 --output base-large
#  ```
#
# Save it as `train.sh` in the clone, and submit it there with `sbatch train.sh`. If the run takes longer than a job may, submit it as often as it needs: each job waits for the one before, and goes on where that ended. For another recipe, change the job's name and the last two lines. With two machines (`--nodes=2`, and twice the batch), clone and folder must be on a disk that both see. Without Slurm, type on each machine `export OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` and then the script's command from `torchrun` on, with `--nnodes=2`, any word for `--rdzv-id`, the same on both, and the name of the first machine in place of `$first`.
# :::
#
# ## Watching it from another terminal
#
# ```bash
# cd annotated-transformer
# tail -F base/log.jsonl
# nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv -l 5
# ```
#
# | column | what it is | in a healthy run |
# |---|---|---|
# | `loss` | nats per target token, mean of the steps since the last record, with smoothed labels | falls fast, then slowly; never below 1.38, [what the smoothing costs](17_regularization.ipynb#why-does-my-loss-stop-above-1) |
# | `gradient_norm` | mean length of the gradient | high at first, then calm; ten times its usual size is a warning |
# | `tokens_per_second` | real target tokens of all processes, without validations | no trend; in our two H100 logs single records were up to 30% from the mean |
# | `validation_loss` | nats per target token on newstest2013, without smoothing and dropout | falls as long as it pays to go on |
# | `score` | BLEU of greedy translations of every second validation sentence | near 0 at first, then rises |
#
# To stop, press Ctrl+C in the window of the training, or send `kill` to its process (with several GPUs, to `torchrun`'s); it leaves a checkpoint. (Under `torchrun` a traceback follows; what counts is the line above it, `stopped at step ...`.) The same command goes on.
#
# ## How to judge a run
#
# There is no curve of ours for WMT14 yet. This is what is known on the way:
#
# | after | what to expect |
# |---|---|
# | 50 updates | a loss near $\ln 37{,}000 = 10.5$ (10.3 on our H200, on made-up text), and falling; far above it, the weights didn't start as ours do |
# | 1,000 | a quarter of the warm-up; no published value. Ours on the H100, on shorter sentences and past its warm-up, had a training loss of 5.3 and a BLEU of 1 to 2 |
# | 10,000 | BLEU far from 0. [A user of THUMT](https://github.com/THUNLP-MT/THUMT/issues/71) logged 15.9 on newstest2014 after 5,000 updates of 25,000 tokens, 18.9 after 10,000 and 20.9 after 45,000, trained on WMT17's pairs; he thought that too low, so take it for a lower mark |
# | 100,000 | the paper: 25.8 BLEU and a perplexity of 4.92 on newstest2013, which is 1.59 nats per token of *its* vocabulary. [Zesen Wang](https://github.com/WangZesen/Reproduce-Transformer/tree/761538718caeffdd6f49ac01ea4c5c5f6ac813e7#results) draws loss and BLEU against steps for three runs, which end at 27.60 ± 0.13 on newstest2014 after 112,760 |
#
# The updates of the table have 25,000 tokens; for the large batch we know no values on the way. A loss per token depends on how text is cut into tokens. Compare BLEU, and your own curves with each other. [Two sick runs](#two-sick-runs) show what to look out for: a validation loss that *rises* after the first updates, and a loss that falls while BLEU stays near 0.

# %% tags=["remove-cell"]
if CHECKING:
    eps, size = 0.1, 37_000
    floor = (1 - eps) * np.log(1 / (1 - eps)) + eps * np.log(size / eps)
    assert round(floor, 2) == 1.38 and round(np.log(size), 1) == 10.5
    assert round(np.log(4.92), 2) == 1.59
    at = {record["step"]: record for record in slow}
    assert (
        round(at[1000]["loss"], 1) == 5.3
        and 0.9 < at[800]["score"] < at[1200]["score"] < 2.3
    )

# %% [markdown]
# ## Average and score
#
# ```bash
# annotated-transformer average --run base --last 5 --output base-average
# run evaluate --model base-average --prepared wmt14-en-de --json > base-average/score.jsonl &&
#     cat base-average/score.jsonl
# ```
#
# The paper averages the last five checkpoints of base, 1,500 steps apart, and the last twenty of big (600 apart, if they too were written every ten minutes). Take 5 of `base-large`, 20 of `big`, and 10 of `big-large`, where twenty would reach back over a quarter of the training.
#
# **Expect** a minute, then two lines with scores and signatures, of 3,003 sentences and of 2,737, and `not_comparable`, a score in the authors' way. **If not:** without the network `evaluate` needs the test sets that were fetched [with the corpus](#the-corpus).
#
# ### The score to expect
#
# The paper's level is **25.8 to 26.6 for base and 26.9 to 27.7 for big** in sacreBLEU's terms ({numref}`fig-two-ways`), and base got between 24.4 and 27.6 in the different hands that are listed [below](#published-scores-and-why-yours-will-differ). A base model that ends below 23 has something wrong with it. The same goes for one above 28, most likely in the measurement: look at the signature, at the number of sentences, and for test sentences in the training data. (Both bounds are our judgment.) Two scores can differ by 0.3 by seed alone, so 25.6 and 25.9 are the same result until a [paired bootstrap](20_evaluation.ipynb#a-bootstrap-for-bleu) and a second seed say otherwise.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-two-ways", "caption": "How much of a score is the tool? Three published systems, each scored with sacreBLEU (circle) and with a script in the style of the paper (square). Below, the paper's own scores, for which only the second is known; the bar is where the first would be if the gap were between 0.7 and 1.5. For tensor2tensor the gap may contain a change of the test set as well."}}
TWICE = (
    ("Ott et al., big", 28.6, 29.3),
    ("Vinodababu, base", 25.1, 26.49),
    ("tensor2tensor, base", 27.52, 29.02),
    ("the paper, big", None, 28.4),
    ("the paper, base", None, 27.3),
)
gaps = [styled - strict for _, strict, styled in TWICE if strict]
figure, axis = plt.subplots(figsize=(4.8, 2.8), layout="constrained")
for row, (_, strict, styled) in enumerate(TWICE):
    low, high = (strict, strict) if strict else (styled - max(gaps), styled - min(gaps))
    axis.plot(
        (low, styled), (row, row), color=RESIDUAL, lw=1.2, ls="-" if strict else ":"
    )
    axis.plot(styled, row, "s", color=AMBER)
    axis.annotate(
        f"{styled:.1f}", (styled, row), (8, -3), textcoords="offset points", fontsize=9
    )
    if strict:
        axis.plot(strict, row, "o", color=SKY)
    else:
        axis.plot((low, high), (row, row), color=SKY, lw=6, solid_capstyle="round")
    label = f"{low:.1f}" if strict else f"{low:.1f} to {high:.1f} ?"
    axis.annotate(
        label, (low, row), (-8, -3), textcoords="offset points", ha="right", fontsize=9
    )
axis.set(
    yticks=range(len(TWICE)), yticklabels=[name for name, *_ in TWICE], xlim=(23.5, 30)
)
axis.set(ylim=(len(TWICE) - 0.5, -0.5), xlabel="BLEU, newstest2014, English to German")
axis.grid(False)
show_plot(
    alt="The paper's style gives 0.7, 1.4 and 1.5 points more. With such gaps the paper's 27.3 would be 25.8 to 26.6 in sacreBLEU, and its 28.4 would be 26.9 to 27.7.",
)

# %% [markdown]
# ## Take it home
#
# Type this on your own machine, in an environment that has the package, too (`pip install .` in a clone):
#
# ```bash
# scp -r user@machine:annotated-transformer/base-average .
# scp user@machine:annotated-transformer/wmt14-en-de/summary.json base-average/
# echo "Attention is all you need." | annotated-transformer translate --model base-average
# ```
#
# The folder has 0.25 GB. In it are the model, its settings, its log and its score. With `summary.json` beside them and the commit of the clone (`git rev-parse HEAD`) you can [send your score](https://github.com/annotated-transformer/annotated-transformer/blob/main/CONTRIBUTING.md#adding-a-run-of-wmt14), whatever it is. Only then delete the rented machine. One that is only stopped often still costs, for its disk.

# %% [markdown]
# ## What to remember
#
# - Prepare, train, average, evaluate: each may be killed and started again.
# - One GPU is enough for base and big as the paper trained them. Eight pay with a large batch.
# - A falling loss is no proof. Watch the speed in the first ten minutes, and BLEU from then on.
# - A score without its tool, its test set and its number of sentences is half a score.
#
# ## The end of the book
#
# The model began with a lookup in a dictionary. From there each chapter added one thing: masks, heads, layers, a vocabulary, batches, a schedule, a search, a score. You have built the model that these commands train, which is [one page](../book/model.md), and you can open every other line that they run. If a run goes wrong, you know in which file to look and what its numbers should be.

# %% [markdown]
# ## Exercises
#
# **1. By hand** (★, 5 min). 100,000 steps of 25,000 target tokens, a corpus of 4.5 million pairs: how many epochs, if each has 28 target tokens? Why does the plan that is folded at the end of [What it will take](#what-it-will-take) have fewer?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The 25,000 count padding, and a batch is seldom full to the last position.
print(
    f"{100_000 * 25_000 / (4.5e6 * 28):.1f} by hand, {100_000 / batches_per_epoch:.1f} planned"
)

# %% [markdown]
# **2. A leak** (★★, 10 min). What breaks if the vocabulary is learned from the test set too? Add twenty sentences about a quagga and count the tokens of the word.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Rare words of the test become longer tokens, so a name that training never met is spelled in fewer.
# The score is a little too good, and no number looks wrong.
quagga = [Pair("The quagga sleeps.", "Das Quagga schläft.")] * 20
sentences = grammar(500, seed=0)
for text in (sentences, [*sentences, *quagga]):
    print(len(Tokenizer.train(text, 500).encode("quagga")), "tokens for quagga")

# %% [markdown]
# **3. The bill** (★, 5 min). At 3 per GPU and hour, what does a run of base cost on one GPU at 25,000 tokens per update, and on eight? What do the eight cost if each gets 25,000?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Steps times seconds, times the number of GPUs that are rented; all measured on one H200.
one, eight = hours["base, as the paper", 1], hours["base, as the paper", 8]
print(f"{3 * one:.0f} on one, {3 * 8 * eight:.0f} on eight;", end=" ")
print(f"{3 * 8 * hours['base, large batch', 8]:.0f} with 200,000 tokens per update")

# %% [markdown]
# **4. Which is better?** (★, 5 min) Your run has 26.4 on the 2,737 filtered sentences. A paper reports 26.1 for the same model.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Nothing says so. Is theirs on 3,003 sentences, tokenized, with compounds split? Score yours on the
# full set, compare the signatures, and remember that a seed alone can move a score by 0.3.
print(
    f"difference {26.4 - 26.1:.1f}, seeds 0.3, tools {min(gaps):.1f} to {max(gaps):.1f}"
)

# %% [markdown]
# **5. Reading a log** (★★, 10 min). The log of a base run on one A100 says 120,000 target tokens per second. As on our H200, a step has 22,000 real ones. How long will 100,000 steps take, without validations? Which share of the peak is that, with 0.38e9 operations per token?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# All real tokens of all steps, divided by those of a second; operations per second over the peak.
print(f"{100_000 * 22_000 / 120_000 / 3600:.1f} hours, {0.38e9 * 120_000 / 312e12:.0%}")

# %% tags=["remove-cell"]
if CHECKING:
    assert round(sum(GPU["base"]["tokens"]) / 25, -3) == 22_000

# %% [markdown]
# **6. Be the first** (★★★, an evening and a GPU, open). Train base, and send your line.

# %% [markdown]
# ## Second reading: a rehearsal, sick runs, and scores
#
# ### A rehearsal
#
# :::{admonition} The four commands of the chain, on a stand-in for WMT14
# :class: dropdown
# Commands that were never run tend not to work, so the four of the chain ran here in small, and the exchange of gradients with them. (The Slurm script, two machines and the downloads did not.) The corpus is a stand-in: pairs of our [grammar](13_data.ipynb#a-pair-and-its-alignment), from English to German, in two text files. The folds have each command with what it printed; the function `shell` runs it and insists on its exit code.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the corpus and the harness", "code_prompt_hide": "Hide the corpus and the harness"}
home = tempfile.TemporaryDirectory()
folder = Path(home.name)
pairs = [Pair(pair.target, pair.source) for pair in grammar(1200, seed=0)]
for language, side in (("en", 0), ("de", 1)):
    lines = [f"{pair[side]}\n" for pair in pairs]
    _ = Path(folder, f"train.{language}").write_text("".join(lines))


DIES = """
import os, signal, sys
from annotated_transformer import cli, trainer

def write_log(folder, record, write=trainer.write_log):
    write(folder, record)
    if record["step"] == int(os.environ["DIES_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)

trainer.write_log = write_log
cli.main()
"""
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore::FutureWarning",
    "PYTHONPATH": str(Path.cwd().parent),
}


def run_apart(words, dies_at):
    """Run a program in a process of its own; return its exit code and what it says."""
    start = ["-c", DIES] if dies_at else ["-m", "torch.distributed.run"]
    process = subprocess.run(
        [sys.executable, *start, *words],
        cwd=folder,
        text=True,
        env={**ENVIRONMENT, "DIES_AT": str(dies_at)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return process.returncode, process.stdout


def run_here(words):
    """Run the command line in this process; return its exit code and what it says."""
    before, output, code = Path.cwd(), StringIO(), 0
    os.chdir(folder)
    try:
        with redirect_stdout(output), redirect_stderr(output):
            main(words)
    except SystemExit as stop:
        code = stop.code
    finally:
        os.chdir(before)
    return code, output.getvalue()


def show(text, prefix=""):
    """Print lines that are no wider than a page."""
    for line in text.splitlines():
        print(textwrap.fill(prefix + line, 80, subsequent_indent="    "))


def shell(line, dies_at=0, code=0):
    """Run a command, show it and what it says, and return that."""
    show(line, "$ ")
    program, *words = shlex.split(line)
    if program == "torchrun" or dies_at:
        ended_with, printed = run_apart(words, dies_at)
    else:
        ended_with, printed = run_here(words)
    show(printed)
    if ended_with != (-9 if dies_at else code):
        raise RuntimeError(f"ended with the code {ended_with}")
    return printed


# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the exchange, prepare, and the plan of the training", "code_prompt_hide": "Hide these commands"}
torchrun = "torchrun --standalone --nproc-per-node 2 -m"
_ = shell(f"{torchrun} benchmarks.speed.allreduce --device cpu --numbers 1000000")
_ = shell(
    "annotated-transformer prepare train.en train.de --vocabulary-size 1000 "
    "--output corpus"
)
_ = shell(
    "annotated-transformer train --prepared corpus --preset base --output base "
    "--dry-run --peak 989e12 --precision bf16"
)

# %% tags=["remove-cell"]
if CHECKING:
    corpus, words, validation, test, _ = open_corpus(folder / "corpus")
    assert len(words) == 1000 and len(corpus) > 1000
    assert min(len(validation), len(test)) > 40 and not (folder / "base").exists()

# %% [markdown]
# ### Killed and continued
#
# :::{admonition} A training that is killed at step 80, and goes on with two processes
# :class: dropdown
# The training begins as one process, with settings that suit a thousand short sentences, and is killed at step 80, before its checkpoint, with a signal that can't be caught. The same command continues it from step 40, now as two processes that share each batch. Then the last two checkpoints are averaged and scored, by two processes and by one, with the same result.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the training, killed", "code_prompt_hide": "Hide the training"}
options = (
    "train --prepared corpus --output run --preset tiny --dropout 0 --device cpu "
    "--steps 120 --max-tokens 800 --warmup 80 --lr-scale 0.3 --save-every 40"
)
begun = shell(f"annotated-transformer {options}", dies_at=80)

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the training, continued", "code_prompt_hide": "Hide the training, continued"}
ended = shell(f"{torchrun} annotated_transformer {options}")

# %% tags=["remove-cell"]
if CHECKING:
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").open()]
    checks = [record for record in records if "score" in record]
    restart = [record["step"] for record in records if "machine" in record][1]
    assert "step 40" in begun and "step 40" not in ended
    assert "step 80" in ended and "step 120" in ended
    assert (
        restart == 40 and checks[-1]["validation_loss"] < checks[0]["validation_loss"]
    )
    assert {"torch", "processes"} <= set(records[0])

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the average, its score, two translations, and a run that must fail", "code_prompt_hide": "Hide these commands"}
shell("annotated-transformer average --run run --last 2 --output average")
evaluate = "evaluate --model average --prepared corpus --json"
scores = json.loads(
    shell(f"{torchrun} annotated_transformer {evaluate}").splitlines()[-1]
)
with redirect_stdout(StringIO()):
    printed = shell(f"annotated-transformer {evaluate}")
alone = json.loads(printed.splitlines()[-1])
print(f"BLEU {scores['bleu']} from two processes, {alone['bleu']} from one")
model, words = load_model(folder / "average")
_, _, validation, test, _ = open_corpus(folder / "corpus")
for pair, line in zip(test[:2], translate(model, words, [p.source for p in test[:2]])):
    print(f"{pair.source}\n   wants  {pair.target}\n   writes {line}")
_ = shell(
    "annotated-transformer train --prepared corpus --output hot --preset tiny "
    "--device cpu --dropout 0 --max-tokens 800 --lr-scale 1e30 --steps 20",
    code=2,
)

# %% tags=["remove-cell"]
if CHECKING:
    assert alone == scores and scores["sentences"] == len(test)
    assert "tok:13a" in scores["bleu_signature"] and scores["bleu"] > 2
    assert "not finite" in _ and "step" in _

# %% [markdown]
# :::{admonition} What the rehearsal says, and what it doesn't
# :class: dropdown
# The last command in the fold above was meant to fail: with an absurd rate the gradient overflows, and the run stops before any weight is spoiled ([what to do](#a-loss-that-is-not-a-number)).
#
# The score of a tiny model after a minute says that each step works and that the files fit together. It is no forecast for WMT14. What the real run adds is size, the downloads, and the exchange between GPUs.
# :::
#
# ### Two sick runs
#
# The cell below pairs each English sentence with the German of its neighbor, as when one file has lost a line.

# %% tags=["hide-input", "nbval-ignore-output"]
held_out = {*validation, *test}
good = [pair for pair in pairs if pair not in held_out]
shifted = [Pair(one.source, other.target) for one, other in pairwise(good)]
torch.manual_seed(0)
small = Transformer(preset("tiny", vocabulary_size=len(words), dropout=0.0))
sources = [pair.source for pair in validation[:30]]


def bleu_of(model):
    """Score greedy translations of thirty validation sentences."""
    made = translate(model, words, sources, beam=1)
    return score(made, [pair.target for pair in validation[:30]]).bleu


reports = []
train(
    small,
    words,
    shifted,
    TrainingConfig(steps=120, max_tokens=800, warmup=80, lr_scale=0.3, save_every=40),
    validation=validation,
    score=bleu_of,
    report=reports.append,
)
shifted_run = [report for report in reports if "score" in report]
records = [json.loads(line) for line in (folder / "run" / "log.jsonl").open()]
checks = [record for record in records if "score" in record]
for name, some in (("healthy", checks), ("lines shifted", shifted_run)):
    told = ", ".join(f"{r['validation_loss']:.2f}" for r in some)
    print(f"{name}: validation loss {told}; BLEU {some[-1]['score']:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    falls = [r["validation_loss"] for r in shifted_run]
    assert falls[0] > falls[1] > falls[2] > checks[-1]["validation_loss"] + 0.3
    assert shifted_run[-1]["score"] < checks[-1]["score"] / 3
    assert died[-1]["validation_loss"] > 9.8 and died[-1]["score"] == 0
    assert max(r["gradient_norm"] for r in slow if "loss" in r) > 24
    assert [
        round(max(r["learning_rate"] for r in log if "loss" in r), 4)
        for log in (died, slow)
    ] == [0.0022, 0.0006]

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-sick", "caption": "How does one see that a run is ill? Above, validation loss of base on an H100: a warm-up of 400 updates to a rate of 0.0022, which kills it, and one of 800 to 0.0006. Below, BLEU of the rehearsal (healthy) and of the same with lines shifted by one, which shows no illness in its loss. From the logs train-H100-base-warmup400 and -warmup800, and from runs of this page."}}
died, slow = (read_log(f"train-H100-base-warmup{n}") for n in (400, 800))
figure, (left, right) = plt.subplots(2, 1, figsize=(4.3, 4.8), layout="constrained")
for name, log, color, line in (
    ("warm-up 400", died, AMBER, "o-"),
    ("warm-up 800", slow, SKY, "s--"),
):
    some = [r for r in log if "score" in r]
    losses = [r["validation_loss"] for r in some]
    left.plot([r["step"] for r in some], losses, line, color=color)
    left.text(700, losses[-1] - 1.7, name, color=color)
left.set(xlabel="update", ylabel="validation loss", ylim=(0, 11))
for name, some, color, line in (
    ("healthy", checks, PLUM, "s-"),
    ("shifted lines", shifted_run, AMBER, "^--"),
):
    bleu = [r["score"] for r in some]
    right.plot([r["step"] for r in some], bleu, line, color=color)
    right.text(some[-1]["step"] - 5, bleu[-1] + 1, name, color=color, ha="right")
right.set(xlabel="update", ylabel="BLEU, validation", ylim=(0, None))
show_plot(
    alt="Above, with the short warm-up the validation loss rises from 6.6 to 10 and stays there; with the longer one it falls from 5.2 to 4.7 and ends at 4.8. Below, BLEU of the healthy run rises, that of the shifted lines stays near zero.",
)

# %% tags=["remove-cell"]
if CHECKING:
    home.cleanup()


# %% [markdown]
# :::{admonition} One that died, and one that learns German without the source
# :class: dropdown
# A run may be fast and learn nothing. The upper half of {numref}`fig-sick` has two real ones, base on the H100 with 227,123 pairs. The first had a warm-up of 400 updates to a peak of 0.0022, three times the paper's. Its training loss stays between 6.5 and 6.7 for 800 updates, its validation loss *rises* to 10, and BLEU is 0: it has died, and nothing in it will recover. The second, with a peak of 0.0006 after 800, learns, but its gradient norm leaps to 24 and its progress ends. Six layers in post-norm at 25,000 tokens per update need the slow warm-up.
#
# The other illness is more dangerous. In the lower half, a small run of the rehearsal, each English sentence is paired with the German of its neighbor, as happens when one line is missing in one of two files. The loss falls for a long time, since what is learned first is German, and German doesn't need the source. BLEU tells. With a corpus of your own, this is the first thing to suspect.
# :::
#
# ### A loss that is not a number
#
# :::{admonition} Give the same command again
# :class: dropdown
# `train` then ends with one line (under `torchrun` with a traceback below it). No `nan` has reached the weights, and any checkpoint is good. **Give the same command again:** it repeats the same batches, and if it gets past the step, it was rounding or the hardware. (`torchrun --max-restarts=3` does this by itself.) If it stops at the same step, look at `gradient_norm` before it. If it grew for hundreds of steps, the rate is too high: a longer `--warmup`, a smaller `--lr-scale`, or `--grad-clip 1`, in another folder. If it was calm, try `--precision fp32`.
# :::
#
# ### What "WMT14" means
#
# :::{admonition} Which pairs, which version, which sets
# :class: dropdown
# `prepare` takes [the copy on the Hugging Face hub](https://huggingface.co/datasets/wmt/wmt14), at one revision (`REVISION` in the package). For German these are Europarl, Common Crawl and News Commentary: 4,508,785 pairs, the 4,520,620 of the original archives without those in which a side is empty. News Commentary is version 9, the one that the task of 2014 handed out; other projects take a later version under the same name, and the authors' released code lists the corpora of WMT16 ([departures](../book/departures.md#training)). Choose on newstest2013 and measure on newstest2014: the paper's Table 3 is the former, its Table 2 the latter. And look at newstest2014 once. If you pick the best of ten checkpoints on it, it's a validation set, and you have no test set.
# :::
#
# ### 3,003 or 2,737 test sentences?
#
# :::{admonition} Both are newstest2014
# :class: dropdown
# By sacreBLEU's descriptions, the official evaluation used a filtered set of 2,737 sentences, `wmt14`, and the full set of 3,003, `wmt14/full`, was released afterwards. Some projects score the one, some the other, and many don't say which. `evaluate` prints both, with signatures, and we report the full set.
# :::
#
# ### How many checkpoints to average
#
# :::{admonition} Ask the validation set
# :class: dropdown
# The paper says five and twenty, without a reason. With a run of your own:
#
# ```bash
# for last in 1 3 5; do
#     annotated-transformer average --run base --last $last --output base-$last
#     annotated-transformer evaluate --model base-$last --prepared wmt14-en-de \
#         --split validation --json
# done
# ```
#
# With [your own pair](../book/own_pair.md#translate) the mean of two was ahead of the last one alone, and of the mean of three; that run was short, and its third checkpoint too young. If the last one alone is best, the run isn't done.
# :::
#
# ### Published scores, and why yours will differ
#
# :::{admonition} Eight systems, and six causes
# :class: dropdown
# The scores in the table below are from Table 2 of the paper, a user's measurement of [tensor2tensor's model](https://github.com/tensorflow/tensor2tensor/issues/317), the pages of [JoeyNMT](https://github.com/joeynmt/joeynmt), [Sagar Vinodababu's PyTorch tutorial](https://github.com/sgrvinod/a-PyTorch-Tutorial-to-Transformers), [OpenNMT-py](https://opennmt.net/Models-py/) and [NVIDIA](https://github.com/NVIDIA/DeepLearningExamples), and {cite:t}`ott2018scaling`. They aren't comparable, although they share a column. The gap of 1.5 in {numref}`fig-two-ways` is tensor2tensor's own script, the closest to the paper's, but its record doesn't say whether sacreBLEU scored 3,003 sentences or 2,737.
#
# | cause | how much, and how we know |
# |---|---|
# | another tool: tokens, compounds, quotes | 0.7 to 1.5, {numref}`fig-two-ways` |
# | 2,737 sentences instead of 3,003 | `evaluate` prints both |
# | another seed | Zesen Wang states 27.60 ± 0.13; two runs may then differ by 0.3 |
# | another draw of 3,003 sentences | more than a seed: [a test set is a sample](20_evaluation.ipynb#a-test-set-is-a-sample) |
# | average, last or best checkpoint; beam and its penalty | measure it on the validation set |
# | another cleaning, vocabulary, or News Commentary | not known; the paper says little about its own |
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the published scores, and ours", "code_prompt_hide": "Hide the published scores, and ours"}
PUBLISHED = (
    ("the paper, base", "tokenized, compounds split", 27.3),
    ("the paper, big", "tokenized, compounds split", 28.4),
    ("tensor2tensor, base, long run", "sacreBLEU, which set isn't said", 27.52),
    ("JoeyNMT, base", "sacreBLEU, 3,003 sentences", 24.38),
    ("Vinodababu's tutorial, base", "sacreBLEU, 3,003 sentences", 25.1),
    ("OpenNMT-py, base", "tool and set aren't said", 26.89),
    ("Ott et al., big, large batch", "sacreBLEU", 28.6),
    ("NVIDIA, big", "without case", 27.9),
)
ours = [record for record in read_log("wmt14") if "bleu" in record]
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
# ### English to French
#
# :::{admonition} The second corpus
# :class: dropdown
# The name of the corpus, one option, and the size:
#
# ```bash
# annotated-transformer prepare wmt14-en-fr
# run train --prepared wmt14-en-fr --preset big --dropout 0.1 --output big-fr
# ```
#
# The paper gave its big model a dropout of 0.1 here instead of 0.3: with so many sentences a model has little chance to learn them by heart. The vocabulary has 32,000 entries, which `prepare` knows. The paper counts 36 million pairs, eight times the German ones; the copy on the hub has 40.8 million before cleaning. A step is a step, so training takes as long. The paper's scores are 38.1 and 41.8, with the authors' tool.
# :::
#
# ### A large corpus of your own
#
# :::{admonition} The same commands, with your files
# :class: dropdown
# Give `prepare` the files, source first:
#
# ```bash
# annotated-transformer prepare train.en train.de --output mine --vocabulary-size 37000
# run train --prepared mine --preset base --output base-mine
# ```
#
# [`prepare`](28_corpus.ipynb#put-aside-and-nothing-of-it-learned) puts up to 3,000 pairs aside for validation and as many for the test. A test set of your own is scored with `evaluate --data test.en test.de`; keep its sentences out of the training files. For some hundred thousand pairs, [your own language pair](../book/own_pair.md#what-you-need) is the shorter road.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert WMT14 == {"wmt14-en-de": 37_000, "wmt14-en-fr": 32_000}
    assert REVISION.startswith("b199e406")

# %% [markdown]
# ## Sources
#
# Corpus, batches and schedule are from section 5 of {cite:t}`vaswani2017attention`, scores and cost from its Tables 2 and 3, beam and averaging from section 6.1. That scores must come with a signature is the point of {cite:t}`post2018call`. The large batch is that of {cite:t}`ott2018scaling`, whose settings are also in [fairseq](https://github.com/facebookresearch/fairseq/blob/main/examples/scaling_nmt/README.md).
