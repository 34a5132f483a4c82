# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # WMT14
#
# The paper's models on the paper's corpus: what was tried with this code, what was not, and a plan for the day on which you do it (sections 5 and 6.1 of the paper).
#
# ## What was run, and what was not
#
# **No base model has learned to translate on a GPU with this code.** Two runs on an H100 were meant to try it, with 227,123 pairs of everyday sentences, and ended at a BLEU of 0.0 and 2.3. Nobody has yet downloaded WMT14 with `prepare`, or trained on several GPUs, or trained big beyond single steps.
#
# What was run are [steps of base and big](26_speed.ipynb#on-a-gpu) on an H200 and an H100, for their speed, `prepare` on [rows made of 10,000 real pairs](#the-corpus), and `train`, `average` and `evaluate` on the H100, where `train` was stopped once and killed once and went on. So the machinery runs there, but what it trained is no good. On CPUs it does train good models: those of [the package](../book/models.md), with 3.7 to 5.5 million parameters, have a BLEU of 41 to 54. Whether the paper's sizes learn with the paper's settings is the open question.

# %% tags=["hide-input"]
import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt

from annotated_transformer.corpus import REVISION, WMT14
from annotated_transformer.schedule import learning_rate
from annotated_transformer.trainer import recipe
from annotated_transformer.transformer import parameter_count, preset
from benchmarks.common import read_log
from book.figures import AMBER, RESIDUAL, SKY, show_plot, style

# %% [markdown]
# ### Two sick runs

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-sick", "caption": "What did the two runs on an H100 look like? The base model, 25,000 tokens per batch. Above, the validation loss, with the BLEU at the end; below, the length of the gradient, a mean of 50 updates. Logs: train-H100-base-warmup400 and -warmup800."}}
style()
died, slow = (read_log(f"train-H100-base-warmup{n}") for n in (400, 800))
figure, axes = plt.subplots(2, 1, figsize=(4.4, 4.6), layout="constrained")
for name, log, color, look, heights in (
    ("first run", died, AMBER, "o-", (8.8, 0.66)),
    ("second run", slow, SKY, "s--", (3.6, 12)),
):
    checks = [line for line in log if "score" in line]
    means = [line for line in log if "loss" in line and line["step"] % 50 == 0]
    for axis, lines, field in (
        (axes[0], checks, "validation_loss"),
        (axes[1], means, "gradient_norm"),
    ):
        steps = [line["step"] for line in lines]
        values = [line[field] for line in lines]
        axis.plot(steps, values, look, color=color, ms=4)
    end = f"{name}: BLEU {checks[-1]['score']:.1f}"
    axes[0].text(700, heights[0], end, color=color)
    axes[1].text(700, heights[1], name, color=color)
axes[0].set(ylabel="validation loss", ylim=(0, 11), xlim=(0, 1650))
axes[1].set(ylabel="gradient norm", yscale="log", xlabel="update", xlim=(0, 1650))
axes[1].set_ylim(0.55, 32)
axes[1].set_yticks([1, 2, 5, 10, 20], [1, 2, 5, 10, 20])
axes[1].minorticks_off()
show_plot(
    alt="The first run's validation loss rises from 6.6 to 10 within 600 updates and stays there, while its gradient is calm. The second run's falls from 5.2 to 4.7 and ends at 4.8; its gradient leaps to 24 at update 1,300 and stays restless.",
)

# %% [markdown]
# | | first run | second run | the paper |
# |---|---:|---:|---:|
# | warm-up, updates | 400 | 800 | 4,000 |
# | peak rate | 0.0022 | 0.0006 | 0.0007 |
# | updates in all | 1,200 | 1,600 | 100,000 |
# | epochs | 11 | 15 | about 20 |
#
# At which update would you have stopped each of them, and by which curve? Decide before you read on; [a rule](#how-to-judge-a-run) comes later.
#
# The cause isn't known, because the runs differ from the paper in several settings at once. It may be the warm-up, a tenth and a fifth of the paper's. It may be the rate, in the first run three times the paper's; but in the second the peak was below the paper's, and the gradient leapt when the rate had already come down to 0.0005. It may also be the batch, which holds some 2,000 of these short sentences. Not tried were the paper's own warm-up on real text, a smaller batch, `--grad-clip`, and WMT14 itself.

# %% tags=["remove-cell"]
if CHECKING:
    validated = [[r for r in log if "score" in r] for log in (died, slow)]
    assert [round(lines[-1]["score"], 1) for lines in validated] == [0.0, 2.3]
    assert [log[-1]["step"] for log in (died, slow)] == [1200, 1600]
    assert [round(log[-1]["epoch"]) for log in (died, slow)] == [11, 15]
    peaks = [
        max(r["learning_rate"] for r in log if "loss" in r) for log in (died, slow)
    ]
    assert [round(peak, 4) for peak in peaks] == [0.0022, 0.0006]
    leap = max((r for r in slow if "loss" in r), key=lambda r: r["gradient_norm"])
    assert leap["step"] == 1300 and round(leap["learning_rate"], 4) == 0.0005
    assert 1900 < 227_123 / (50 / slow[1]["epoch"]) < 2200
    for name, part, alpha, sentences, bleu in (
        ("captions-de-en", "captions", 0.6, 1000, 41.2),
        ("everyday-de-en", "tatoeba", 0.6, 1728, 54.2),
        ("everyday-en-de", "tatoeba", 0.6, 1733, 43.5),
    ):
        card = f"../annotated_transformer/pretrained/{name}/evaluation.jsonl"
        wanted = {"seed": 0, "set": part, "alpha": alpha, "beam": 4}
        scored = map(json.loads, Path(card).read_text().splitlines())
        [found] = [r for r in scored if wanted.items() <= r.items()]
        assert (found["sentences"], round(found["bleu"], 1)) == (sentences, bleu)
    card = "../annotated_transformer/pretrained/captions-de-en/evaluation.jsonl"
    scored = map(json.loads, Path(card).read_text().splitlines())
    by_search = {}
    for r in scored:
        if r["set"] == "captions":
            by_search.setdefault((r["alpha"], r["beam"]), []).append(r["bleu"])
    moved = max(max(bleus) - min(bleus) for bleus in by_search.values())
    assert 0.45 < moved < 0.6
    ours = [record for record in read_log("wmt14") if "bleu" in record]
    assert not ours, "there are scores on WMT14 now: this page must tell them"

# %% [markdown]
# ## Four commands
#
# The whole chain for base, through the [command line](G_cli.ipynb):
#
# ```bash
# annotated-transformer prepare wmt14-en-de
# annotated-transformer train --prepared wmt14-en-de --preset base --output base
# annotated-transformer average --run base --last 5 --output base-average
# annotated-transformer evaluate --model base-average --prepared wmt14-en-de
# ```
#
# `prepare` downloads the pairs and writes them into the folder `wmt14-en-de`. `train` learns from it with the paper's settings for base, and writes log, checkpoints and the weights with the lowest validation loss into the folder `base`. `average` makes a new model, the mean of the last checkpoints. `evaluate` scores it on newstest2014, the full set and the [filtered one](#3003-or-2737-test-sentences); its `not_comparable` is a BLEU in the paper's way.
#
# If a command is stopped or killed, run it again: `train` goes on from its last checkpoint, the others begin anew, `prepare` without the download.
#
# ## A rehearsal
#
# Do it in small first. On a laptop it takes a minute or two. Install once, in a terminal, with Python 3.10 or later:
#
# ```bash
# git clone https://github.com/annotated-transformer/annotated-transformer
# cd annotated-transformer
# python3 -m venv env
# . env/bin/activate
# pip install ".[wmt14]"
# ```
#
# The stand-in for WMT14 is 2,000 pairs of the [grammar](13_data.ipynb#a-pair-and-its-alignment) in two text files. (In a terminal, paste these lines into `python`, with `Path(".")` for the folder, and type the commands that `shell` gets below.)

# %%
import tempfile
from pathlib import Path

from annotated_transformer.synchronous_grammar import grammar

folder = Path(tempfile.mkdtemp())
for language, side in (("en", 1), ("de", 0)):
    lines = [f"{pair[side]}\n" for pair in grammar(2000, seed=0)]
    (folder / f"train.{language}").write_text("".join(lines))

# %%
import shlex
import subprocess
import sys


def shell(line):
    """Run a line that begins with annotated-transformer, and print what it says."""
    words = [sys.executable, "-m", "annotated_transformer", *shlex.split(line)[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    print((done.stdout + done.stderr).rstrip())


# %% tags=["remove-cell"]
os.environ["PYTHONPATH"] = str(Path("..").resolve())
os.environ["OMP_NUM_THREADS"] = "1"

# %%
shell(
    "annotated-transformer prepare train.en train.de --vocabulary-size 1000 --output corpus"
)

# %% [markdown]
# The settings of the next command suit a tiny model and short sentences; `--preset base` brings its own.

# %% tags=["nbval-ignore-output"]
shell(
    "annotated-transformer train --prepared corpus --preset tiny --dropout 0 "
    "--max-tokens 800 --warmup 100 --peak-lr 0.003 --steps 200 --save-every 50 --output run"
)

# %% tags=["nbval-ignore-output"]
shell("annotated-transformer average --run run --last 2 --output run-average")
shell("annotated-transformer evaluate --model run-average --prepared corpus")

# %% tags=["remove-cell"]
if CHECKING:
    written = [json.loads(line) for line in (folder / "run" / "log.jsonl").open()]
    losses = [line["validation_loss"] for line in written if "score" in line]
    assert len(losses) == 4 and losses[-1] < losses[0] - 1
    assert max(line.get("score", 0) for line in written) > 5

# %% [markdown]
# Stop `train` with Ctrl+C in the middle, and run it again: it says where it stands, and goes on.
#
# ## A day with eight GPUs
#
# The paper's base model took twelve hours on eight P100. Eight newer GPUs don't make one run of base much faster than one, because [its steps are short](27_distributed.ipynb#how-fast-it-can-be). But eight runs can go side by side, and then you have what the paper doesn't have: its Table 2 with a spread over seeds.
#
# | when | what |
# |---|---|
# | before you rent | `prepare` on a cheap machine; copy its folder |
# | the first quarter of an hour | install, and try one GPU and all eight |
# | then | base with seeds 0 to 3, big with seeds 0 to 3, one GPU for each |
# | a quarter of an hour later | look at [all eight logs](#how-to-judge-a-run): go on, or stop and change one thing |
# | when base is done | average and score it; the four GPUs are free for more seeds |
# | when big is done | average and score it; then the [large batch](#two-recipes), if there is time |
# | at the end | copy home, and delete the machine |
#
# The trial, in the environment of the rehearsal:
#
# ```bash
# python -c "import torch; print(torch.__version__, torch.cuda.device_count())"
# annotated-transformer train --prepared wmt14-en-de --preset base --steps 200 --output try
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train \
#     --prepared wmt14-en-de --preset base --steps 200 --output try-8
# ```
#
# The first line should end in 8. The two short runs end with a loss below $\ln 37{,}000 = 10.5$, that of guessing, and the first line of `try-8/log.jsonl` has `"processes": 8`.
#
# :::{margin}
# If it ends in 0 where `nvidia-smi` lists GPUs, this PyTorch is one for CPUs, or too new for the driver. `pip install --force-reinstall "torch>=2.6" --index-url https://download.pytorch.org/whl/cu126` installs another.
# :::
#
# ### What it will take
#
# **Exercise 1. Write it first** (★, 5 min). One update took 85.9 ms for base and 124.6 ms for big, on one H100 with 25,000 tokens. Compute the hours and the rent of 100,000 and of 300,000 updates.

# %%
RENT = 3.00  # dollars per GPU and hour: put in your own
_, *measured = read_log("gpu-NVIDIA-H100-80GB-HBM3")
step = {line["name"]: median(line["seconds"]) / 5 for line in measured}  # seconds
plans = (  # with GPUs, updates, seconds per update
    ("base", 1, 100_000, step["base"]),
    ("big", 1, 300_000, step["big"]),
    ("base, large batch", 8, 12_500, step["base"]),
    ("big, large batch", 8, 18_750, 2 * step["big"]),
)
hours = {}
for name, gpus, updates, seconds in plans:
    hours[name] = updates * seconds / 3600
    cost = RENT * gpus * hours[name]
    print(f"{name:19}{gpus} x {hours[name]:4.1f} hours, {cost:4.0f} dollars")
day = hours["big"] + hours["base, large batch"] + hours["big, large batch"]
print(f"all of the plan: {day:.0f} hours of 8 GPUs, {RENT * 8 * day:.0f} dollars")

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(h, 1) for h in hours.values()] == [2.4, 10.4, 0.3, 1.3]
    assert [round(1e3 * step[name], 1) for name in ("base", "big")] == [85.9, 124.6]
    assert round(step["big"] / step["big, compiled"], 2) == 1.16
    tokens = sum(measured[0]["tokens"]) / 25
    assert round(tokens, -3) == 22_000
    rates = [line["tokens_per_second"] for line in measured[:2]]
    assert [round(rate, -3) for rate in rates] == [244_000, 179_000]
    kept = {name: recipe(name).keep_checkpoints + 2 for name in ("base", "big")}
    disk = {n: 12e-9 * parameter_count(preset(n)) * k for n, k in kept.items()}
    assert [round(size, 1) for size in disk.values()] == [5.3, 56.5]
    assert 300 < 5 * sum(disk.values()) < 350
    for log in (died, slow):
        waits = {True: [], False: []}  # seconds of 50 updates, with a validation or not
        for old, new in pairwise(log):
            if "loss" in old and new["step"] == old["step"] + 50:
                begin, end = (
                    datetime.fromisoformat(r["time"][:19]) for r in (old, new)
                )
                waits["score" in new].append((end - begin).total_seconds())
        assert 2 < median(waits[True]) - median(waits[False]) < 4
    assert (recipe("base").save_every, recipe("big").save_every) == (1500, 600)

# %% [markdown]
# So one H100 needs a fifth (base) or an eighth (big) of the time that eight P100 took. Three things aren't in these numbers. A validation took about three seconds in the two runs above, and a checkpoint of big, 2.6 GB, takes 13 seconds at 200 MB per second; base makes 67 of both, and big makes 500, which may add more than two hours. Eight processes on one host take something from each other. And the exchange of gradients is counted as if it took no time. On the other hand, `--compile` made steps of big 1.16 times as fast.
#
# **The machine** needs NVIDIA's driver, Python 3.10 or later, git, tmux and rsync, and for this plan two cores per GPU. (Nobody has measured whether they suffice.) The disk needs 400 GB, since checkpoints can take 5 GB in each run of base and 57 GB in each of big. In a container, `df -h /dev/shm` should show a gigabyte per process.
#
# ### The corpus
#
# `prepare` needs the network and no GPU. So let it run on a cheap machine, with 16 GB of memory to be safe (this wasn't measured). `gpus` stands for the rented one:
#
# ```bash
# annotated-transformer prepare wmt14-en-de
# sacrebleu -t wmt14/full -l en-de --echo src > test-full.en
# sacrebleu -t wmt14 -l en-de --echo src > test-filtered.en
# wc -l test-full.en test-filtered.en
# rsync -a wmt14-en-de gpus:annotated-transformer/
# rsync -a ~/.sacrebleu gpus:
# ```
#
# `sacrebleu` fetches the test sets, 3,003 and 2,737 lines, into the folder that the last line copies, because the GPUs' machine is often without a network. How long `prepare` takes, and what it drops, can be estimated from a log of rows that repeat 10,000 real pairs of WMT, with a number in each:

# %%
about, found = read_log("prepare")
share = 4_508_785 / about["rows"]  # WMT14's pairs over those of the log
minutes = found["stages"]["all"]["cpu_seconds"] * share / 60
print(f"{about['rows']:,} rows; all of WMT14: {minutes:.0f} minutes of one core")
print(f"lengths apart: {found['pairs']['lengths apart'] / about['rows']:.1%}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 8 < minutes < 180
    counts = found["pairs"]
    assert 0.05 < counts["lengths apart"] / about["rows"] < 0.12
    assert counts["untranslated"] / about["rows"] < 0.005

# %% [markdown]
# The minutes are processor time, and rather too many: scaled up, they count a vocabulary learned from all pairs, while `prepare` takes a million at most. The download comes on top, 2.2 GB on the disk by the data set's [card](https://huggingface.co/datasets/wmt/wmt14).
#
# **How many of the 4,508,785 pairs stay isn't known.** The sample lost one in twelve, nearly all as [`lengths apart`](28_corpus.ipynb#what-is-worth-learning). But its text was tokenized before, so of WMT14 itself it may be another share; write your own number beside your score.
#
# ### Two recipes
#
# **As the paper, a GPU for each run.** In `tmux`, so that a broken connection ends nothing:
#
# ```bash
# export OMP_NUM_THREADS=1
# for seed in 0 1 2 3; do
#     CUDA_VISIBLE_DEVICES=$seed annotated-transformer train --prepared wmt14-en-de \
#         --preset base --seed $seed --output base-$seed 2> base-$seed.txt &
#     CUDA_VISIBLE_DEVICES=$((seed + 4)) annotated-transformer train --prepared wmt14-en-de \
#         --preset big --seed $seed --output big-$seed 2> big-$seed.txt &
# done
# ```
#
# The shell prints a process number for each; `kill` and this number stops a run after its update, with a checkpoint. Its command, with the seed written out, continues it. The measured peak of memory was 8.4 GB for base and 17.6 for big.
#
# **A large batch on all eight**, after {cite:t}`ott2018scaling`, who gave big about 400,000 tokens per update and a peak rate of 0.001. For base we know of no published run, and take half that batch:
#
# ```bash
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train \
#     --prepared wmt14-en-de --preset base --max-tokens 200000 --peak-lr 0.001 \
#     --steps 12500 --save-every 200 --output base-large
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train \
#     --prepared wmt14-en-de --preset big --max-tokens 200000 --grad-accum-steps 2 \
#     --peak-lr 0.001 --steps 18750 --save-every 250 --output big-large
# ```
#
# Each sees as many tokens as the paper's run, in an eighth of the time and for the same rent. It is the second choice all the same. Several GPUs were never tried, and these shorter runs end at a high rate: base at $0.001 \sqrt{4000 / 12500} = 0.00057$, four times the paper's last rate of $0.0007 \sqrt{4000 / 100000} = 0.00014$, and big at eight times its own. The weights still move a lot then, which may cost some BLEU.

# %% tags=["remove-cell"]
if CHECKING:
    ends = [
        learning_rate(updates, d_model, 4000, peak)
        for d_model, updates, peak in (
            (512, 100_000, None),
            (512, 12_500, 0.001),
            (1024, 300_000, None),
            (1024, 18_750, 0.001),
        )
    ]
    assert [round(rate, 5) for rate in ends[:2]] == [0.00014, 0.00057]
    assert round(ends[1] / ends[0], 1) == 4.0 and 8.0 < ends[3] / ends[2] < 8.2
    assert [measured[n]["gigabytes"] for n in (0, 1)] == [8.38, 17.55]
    assert 12_500 * 200_000 == 100_000 * 25_000 and 18_750 * 16 == 300_000
    for name in ("base", "big"):
        assert round(hours[name] / hours[f"{name}, large batch"], 6) == 8

# %% [markdown]
# ### How to judge a run
#
# `tail -F base-0/log.jsonl` shows a line every 50 updates. First look at the speed. The steps from which the hours above come made 244,000 tokens per second for base and 179,000 for big. So a run is as planned if its first minutes average 200,000 or more, or 145,000 for big. (Single lines can be 30% off.) Far below, see whether `nvidia-smi` shows another program on the GPU, and `top` whether the cores are busy.
#
# Then see whether it learns. There is no healthy curve of ours yet, so this rule of thumb is made from two sick runs and one published number:
#
# | in the log | stop the run if |
# |---|---|
# | `gradient_norm` | it is above 5 in two lines in a row, after the first 1,000 updates |
# | `validation_loss` | it rises by more than 0.1 from one validation to the next |
# | `score` | it is below 5 at update 6,000, after nine minutes of base or fifteen of big, validations and checkpoints included |
# | `warning` | it is there: `train` [says so itself](29_trainer.ipynb#a-run-that-dies-says-so) when the loss stands still |
#
# The rule on the gradient would have stopped our second run at update 1,350, the rule on the validation loss our first at 400. The bound on the score is a third of the 15.9 BLEU that [a user of THUMT](https://github.com/THUNLP-MT/THUMT/issues/71) had on newstest2014, trained on WMT17's pairs, after 5,000 updates of 25,000 tokens, and thought too low. (For the large batch there is no such number.)
#
# **What to change:** one thing, in a new folder. Half the peak (`--peak-lr 0.00035` for base, 0.00025 for big), twice the warm-up (`--warmup 8000`, which also lowers the paper's peak, to 0.0005 and 0.00035), or `--grad-clip 1`. With four GPUs, try the three beside an unchanged run. If all four stop, stop renting, too, and [tell us](https://github.com/annotated-transformer/annotated-transformer/issues). For all other troubles, see [When training does not work](../book/troubleshooting.md).

# %% tags=["remove-cell"]
if CHECKING:
    at = {line["step"]: line for line in slow if "loss" in line}
    assert min(at[n]["gradient_norm"] for n in (1300, 1350)) > 5
    over = [n for n in at if n > 50 and at[n]["gradient_norm"] > 5]
    assert over == [1200, 1300, 1350]
    first, second = validated[0][:2]
    assert second["step"] == 400
    assert second["validation_loss"] > first["validation_loss"] + 0.1
    for log in (died, slow):
        paces = [
            r["tokens_per_second"] for r in log if "loss" in r and r["step"] % 50 == 0
        ]
        mean = sum(paces) / len(paces)
        assert 0.69 * mean < min(paces) and max(paces) < 1.31 * mean
    # Seconds for validations and checkpoints
    stops = {"base": 4 * (3 + 4), "big": 10 * (3 + 13)}
    for name, minutes in (("base", 9), ("big", 15)):
        assert round((6000 * step[name] + stops[name]) / 60) == minutes

# %% [markdown]
# ### Average and score
#
# Five checkpoints for base and twenty for big are the paper's numbers; for `big-large` twenty would reach back over a quarter of the training, so take ten.
#
# ```bash
# for seed in 0 1 2 3; do
#     annotated-transformer average --run base-$seed --last 5 --output base-$seed-average
#     annotated-transformer average --run big-$seed --last 20 --output big-$seed-average
# done
# annotated-transformer average --run base-large --last 5 --output base-large-average
# annotated-transformer average --run big-large --last 10 --output big-large-average
# for run in base-{0..3} big-{0..3} base-large big-large; do
#     annotated-transformer evaluate --model $run-average --prepared wmt14-en-de --json \
#         > $run-average/score.jsonl
#     cat $run-average/score.jsonl
# done
# ```
#
# Copy the averages home, with their logs and scores, before you delete the machine:
#
# ```bash
# rsync -a "gpus:annotated-transformer/*-average" .
# rsync -a gpus:annotated-transformer/wmt14-en-de/summary.json .
# ```
#
# And please [send your scores](https://github.com/annotated-transformer/annotated-transformer/blob/main/CONTRIBUTING.md#adding-a-run-of-wmt14), good or bad.
#
# ### The score to expect
#
# The paper has 27.3 for base and 28.4 for big, of tokenized text with compounds split. Your score is sacreBLEU's, and between the two lie 0.7 to 1.5 points, as three systems show that were scored in both ways:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-two-ways", "caption": "How much of a score is the tool? Three published systems, each scored with sacreBLEU (circle) and in the paper's style (square). Below, the paper's own scores: the bar shows where sacreBLEU would put them if the gap were between 0.7 and 1.5."}}
TWICE = (
    ("Ott et al., big", 28.6, 29.3),
    ("Vinodababu, base", 25.1, 26.49),
    ("tensor2tensor, base", 27.52, 29.02),
    ("the paper, big", None, 28.4),
    ("the paper, base", None, 27.3),
)
gaps = [styled - strict for _, strict, styled in TWICE if strict]
style()
figure, axis = plt.subplots(figsize=(4.8, 2.8), layout="constrained")
for row, (_, strict, styled) in enumerate(TWICE):
    low, high = (strict, strict) if strict else (styled - max(gaps), styled - min(gaps))
    line = "-" if strict else ":"
    axis.plot((low, styled), (row, row), color=RESIDUAL, lw=1.2, ls=line)
    axis.plot(styled, row, "s", color=AMBER)
    where = {"textcoords": "offset points", "fontsize": 9}
    axis.annotate(f"{styled:.1f}", (styled, row), (8, -3), **where)
    if strict:
        axis.plot(strict, row, "o", color=SKY)
    else:
        axis.plot((low, high), (row, row), color=SKY, lw=6, solid_capstyle="round")
    label = f"{low:.1f}" if strict else f"{low:.1f} to {high:.1f} ?"
    axis.annotate(label, (low, row), (-8, -3), ha="right", **where)
names = [name for name, *_ in TWICE]
axis.set(yticks=range(len(TWICE)), yticklabels=names, xlim=(23.5, 30))
axis.set(ylim=(len(TWICE) - 0.5, -0.5), xlabel="BLEU, newstest2014, English to German")
axis.grid(False)
show_plot(
    alt="The paper's style gives 0.7, 1.4 and 1.5 points more. With such gaps the paper's 27.3 would be 25.8 to 26.6 in sacreBLEU, and its 28.4 would be 26.9 to 27.7.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(gap, 1) for gap in gaps] == [0.7, 1.4, 1.5]

# %% [markdown]
# So the paper's level is **25.8 to 26.6 for base and 26.9 to 27.7 for big**, in sacreBLEU's terms. In our judgment, a base model below 23 has something wrong with it (JoeyNMT's has 24.4); if yours is above 28, look for a mistake in the measurement.
#
# Not only the tool differs from one published score to the next, but also the test sentences, the checkpoints averaged and the text: our vocabulary works on raw bytes, those of several others on text that was tokenized first. Another seed alone moved the score of our captions model by up to half a point, so 25.6 and 25.9 are the same result until a [paired bootstrap](20_evaluation.ipynb#whether-a-difference-is-real) and your other seeds say otherwise.
#
# ## What to remember
#
# - No base model has learned on a GPU with this code yet, so the first quarter of an hour of a run decides.
# - One GPU per run and four seeds tell more than eight GPUs on one run.
# - Watch BLEU, the validation loss and the length of the gradient. The training loss fell in both sick runs, so it proves nothing.
# - A score without its tool, its test set and its number of sentences is half a score.
#
# ## The end of the book
#
# The model began with a lookup in a dictionary. From there each chapter added one thing: masks, heads, layers, a vocabulary, batches, a schedule, a search, a score. You have built the model that these commands train, which is [one page](../book/model.md), and you can read every other line that they run. If a run goes wrong, you know in which file to look.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** is [above](#what-it-will-take); the code below it is the solution.
#
# **2. Two lines in a row** (★, 5 min). In the second sick run the gradient was above 5 at updates 1,200, 1,300 and 1,350. Why does [the rule](#how-to-judge-a-run) stop it only at 1,350? And what stops a run whose gradient and losses stay calm, but whose score at update 6,000 is 2.3?
#
# :::{admonition} Solution 2
# :class: dropdown
# The log has a line every 50 updates. Those of 1,150 and 1,250 were calm, and the rule wants two lines in a row, so that a single leap ends nothing. The calm run is stopped by its score, which is below 5.
# :::
#
# **3. Which is better?** (★, 5 min). Your run has 26.4 on the 2,737 filtered sentences. A paper reports 26.1 for the same model.
#
# :::{admonition} Solution 3
# :class: dropdown
# Nothing says so. Is theirs on 3,003 sentences, tokenized, with compounds split? Score yours on the full set, compare the signatures, and remember that a seed alone can move a score by half a point, and the tool by 0.7 to 1.5.
# :::
#
# ## Further
#
# ### What "WMT14" means
#
# `prepare` takes [the copy on the Hugging Face hub](https://huggingface.co/datasets/wmt/wmt14) at one revision: Europarl, Common Crawl and News Commentary, 4,508,785 pairs, which are the 4,520,620 of the archives without those in which a side is empty. News Commentary is version 9, the one of 2014; other projects take a later one under the same name. Choose on newstest2013, and measure on newstest2014, once.
#
# ### 3,003 or 2,737 test sentences?
#
# Both are newstest2014. By sacreBLEU's descriptions, the official evaluation used a filtered set of 2,737 sentences, `wmt14`, and the full set of 3,003, `wmt14/full`, was released afterwards. Some projects score the one, some the other, and many don't say which. `evaluate` prints both; we report the full set.
#
# ### How many checkpoints to average
#
# The paper takes five and twenty, without a reason. Ask the validation set:
#
# ```bash
# for last in 1 3 5; do
#     annotated-transformer average --run base-0 --last $last --output base-0-last-$last
#     annotated-transformer evaluate --model base-0-last-$last --prepared wmt14-en-de \
#         --split validation --json
# done
# ```
#
# If the last one alone is best, the run isn't done.
#
# ### English to French
#
# ```bash
# annotated-transformer prepare wmt14-en-fr
# annotated-transformer train --prepared wmt14-en-fr --preset big --dropout 0.1 --output big-fr
# ```
#
# With this many sentences (36 million by the paper, 40.8 million on the hub before cleaning) the paper gave big a dropout of 0.1 in place of 0.3, and a vocabulary of 32,000, which `prepare` knows. The number of updates and their size stay, so training takes as long. The paper's scores are 38.1 and 41.8, with the authors' tool.
#
# ### The links between the GPUs
#
# Only the large batch needs them. `nvidia-smi topo -m` shows how each pair is connected, and this command exchanges a gradient of the base model's size:
#
# ```bash
# torchrun --standalone --nproc-per-node 8 -m benchmarks.speed.allreduce
# ```
#
# With `NV` and a number between all pairs (NVLink) it should take a few milliseconds; [by computation](27_distributed.ipynb#the-cost-of-an-all-reduce) it is 1.5. If it hangs, try `NCCL_P2P_DISABLE=1`; if that cures it, the machine is set up wrongly.

# %% tags=["remove-cell"]
if CHECKING:
    assert WMT14 == {"wmt14-en-de": 37_000, "wmt14-en-fr": 32_000}
    assert REVISION.startswith("b199e406")

# %% [markdown]
# ## Sources
#
# Corpus, batches and schedule are from section 5 of {cite:t}`vaswani2017attention`, scores and hours from its section 5.2 and its Tables 2 and 3, beam and averaging from section 6.1. The other scores are from [a user's measurement of tensor2tensor](https://github.com/tensorflow/tensor2tensor/issues/317), the pages of [JoeyNMT](https://github.com/joeynmt/joeynmt) and [Sagar Vinodababu](https://github.com/sgrvinod/a-PyTorch-Tutorial-to-Transformers), and {cite:t}`ott2018scaling`, who trained on WMT16's pairs and whose settings are also in [fairseq](https://github.com/facebookresearch/fairseq/blob/main/examples/scaling_nmt/README.md). That scores must come with a signature is the point of {cite:t}`post2018call`.
