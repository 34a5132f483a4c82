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
# # Command line
#
# The book behind one command: prepare a corpus, train, average, translate, score, export.
#
# Four of its six commands do most of the work ([with your own pairs](../book/own_pair.md#train), step by step):
#
# ```
# annotated-transformer train --corpus multi30k --preset captions --output my-run
# annotated-transformer average --run my-run --last 5 --output my-model
# annotated-transformer evaluate --model my-model --corpus multi30k
# echo "Ein Hund läuft über die Wiese." | annotated-transformer translate --model my-model
# ```
#
# The other two are `prepare`, for a [corpus too large for memory](D_large_corpora.ipynb#reading), and `export`, which hands a model to [another engine](F_export.ipynb) or makes [a page](F_export.ipynb#a-page-to-send) of it. `train` and `evaluate` also run in [several processes](26_distributed.ipynb#in-and-out), started by `torchrun`; `prepare` has `--workers`. `annotated-transformer train --help` lists all options with their defaults.
#
# The commands don't call each other. They meet in files, so each can run on another day or another machine:
#
# | file | what it holds | who writes it | who reads it |
# |---|---|---|---|
# | `tokens.bin`, `lengths.npy`, `summary.json` | a [prepared corpus](D_large_corpora.ipynb#a-folder-whole-or-not-at-all) | `prepare` | `train`, `evaluate` |
# | `model.safetensors`, `config.json`, `tokenizer.json` | a model: weights, shape, vocabulary | `train`, `average` | `translate`, `evaluate`, `export`; `train --start` |
# | `checkpoints/` | weights and the optimizer's moments | `train` | `train`, to continue; `average` |
# | `training.json` | all settings of the run | `train` | `train`, to refuse others; `average` |
# | `log.jsonl` | loss, speed and scores, one line a report | `train` | you; copied by `average` |
# | `--output` of `export` | a folder for CTranslate2; with `--format page`, one HTML file | `export` | any machine without this package |
# | `averaged.json` | how many checkpoints it is the mean of, and the settings of their training | `average` | you |
# | `validation.tsv`, `test.tsv` | pairs put aside | `train`, `prepare` | `train`, `evaluate` |
#
# Any folder with a model will do: `translate` also takes `my-run`, where `train` leaves the weights with the best validation score.

# %% tags=["remove-cell"]
import warnings

warnings.filterwarnings("ignore", message="IProgress")  # a progress bar that is not installed

# %% tags=["export"]
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from json import dumps, loads
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from sacrebleu import get_reference_files, get_source_file

from annotated_transformer import large_corpora, model_io, run_folder, speed, training, transformer
from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.data import MissingData, Pair, multi30k
from annotated_transformer.decoding import translate as decode
from annotated_transformer.distributed import find_device, gather_texts, process_group
from annotated_transformer.evaluation import compound_split_bleu, score
from annotated_transformer.own_data import Splits, filter_pairs, read_pairs, split_pairs, utf8_lines
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import Stopped, TrainingConfig, rank_and_world_size

# %% [markdown]
# ## Which pairs
#
# `train` and `evaluate` share the options that say what to read. The corpora of the book are divided already, or by a seed. `train` [cleans and divides](C_own_data.ipynb#cleaning) your own files, with one pair in a hundred for validation and one for the test (of fewer than 5,000 pairs, about fifty each); `evaluate` scores them whole. A folder that `prepare` has filled needs neither. A model is given by its folder or, if it comes with the package, by its name.


# %% tags=["export"]
def say(text: str) -> None:
    """Write a line where it does not mix with results; of many processes, the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Data:
    """Which sentence pairs."""

    corpus: Literal["grammar", "multi30k"] = "grammar"  # A corpus of the book, German to English.
    data: tuple[Path] | tuple[Path, Path] | None = None  # Your own pairs: a TSV, or two text files.
    columns: tuple[int, int] = (0, 1)  # Those of source and target, counted from 0.
    reverse: bool = False  # Translate the other way round.
    prepared: Path | None = None  # Folder that `prepare` has filled, in place of all these.
    limit: int | None = None  # Learn from, or score, so many pairs at most, the first ones.

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be above 0, not {self.limit}")
        if bool(self.data) + bool(self.prepared) + self.reverse > 1:
            raise ValueError("give only one of data (exchange its columns), prepared, reverse")


def read_splits(data: Data, seed: int, divide: bool = True) -> Splits:
    """Return pairs to learn from, to choose by and to measure on; undivided files are all three."""
    if data.data:
        pairs = read_pairs(data.data[0], next(iter(data.data[1:]), None), data.columns)
        if not divide:
            return Splits(pairs, pairs, pairs)
        pairs, dropped = filter_pairs(pairs)
        say(f"{len(pairs):,} pairs; dropped: {dropped}")
        share = min(0.1, max(0.01, 50 / (len(pairs) or 1)))  # 50 pairs at least, if there are 500
        return split_pairs(pairs, share, share, seed)
    if data.corpus == "multi30k":
        splits = Splits(*map(multi30k, ("train", "val", "test_2016_flickr")))
    else:
        splits = split_pairs(grammar(10_000, seed), 0.01, 0.01, seed)
    turned = ([Pair(pair.target, pair.source) for pair in part] for part in splits)
    return Splits(*turned) if data.reverse else splits


def load(model: Path) -> tuple[transformer.Transformer, Tokenizer]:
    """Load a model from its folder, or by its name one that comes with the package."""
    return (model_io.load_model if model.exists() else model_io.load_pretrained)(str(model))


# %% [markdown]
# ## Training
#
# `train` takes the options of its data and of its model, and the fields of [`TrainingConfig`](18_training.ipynb#the-settings), whose comments serve as help texts. Defaults come with the preset, and what you type wins. For the paper's models they are the paper's. Its checkpoints were written every ten minutes: every 1,500 steps of 0.4 seconds for base, and (we assume) every 600 steps of 1.0 seconds for big. With `--start`, a run begins with [a trained model](../book/own_pair.md#start-from-a-trained-model).


# %% tags=["export"]
def recipe(preset: str) -> TrainingConfig:
    """Return the settings that go with a preset; those of the paper's models are in section 5."""
    if preset in ("tiny", "small") or preset not in transformer.PRESETS:  # refused later
        return TrainingConfig()
    if preset in ("captions", "everyday"):
        return TrainingConfig(12_000, 2048, warmup=1000, lr_scale=1.0, keep_checkpoints=12)
    paper = TrainingConfig(100_000, 25_000, warmup=4000, lr_scale=1.0, save_every=1500)
    if preset == "big":
        return replace(paper, steps=300_000, save_every=600, keep_checkpoints=20)
    return replace(paper, label_smoothing=float(preset.partition("smoothing")[2] or 0.1))


def translate_together(
    model: transformer.Transformer, tokenizer: Tokenizer, lines: list[str], beam: int, alpha: float,
) -> list[str]:  # fmt: skip
    """Translate sentences, each process its share of them; all processes get all translations."""
    rank, n = rank_and_world_size()
    room = 16_384 if model.embedding.weight.is_cuda else 2048
    made = gather_texts(decode(model, tokenizer, lines[rank::n], beam, alpha, max_tokens=room))
    return [made[i % n][i // n].replace("\n", " ") for i in range(len(lines))]


PROGRESS = "step {step}: loss {loss:.3f}, validation loss {validation_loss:.3f}, BLEU {score:.1f}"


def train(
    output: Path, settings: TrainingConfig, data: Data = Data(), preset: str = "tiny",
    start: Path | None = None, dropout: float | None = None, vocabulary_size: int = 2000,
    device: str | None = None, precision: Literal["fp32", "bf16"] | None = None,
    compile: bool = False, dry_run: bool = False, peak: float | None = None, gpus: int = 1,
) -> None:  # fmt: skip
    """Train a model in a folder; the same command continues it where it stopped.

    Args:
        output: Folder for log, checkpoints and model; made if it is not there.
        preset: Shape of the model: tiny, small, base, big, a row of the paper's Table 3 ...
        start: Model to begin with, a folder or a name; its shape and vocabulary stay.
        dropout: Share of numbers dropped in training, if not the preset's.
        vocabulary_size: Entries of the vocabulary; a prepared corpus has its own.
        device: cpu or cuda; if not given, a GPU if there is one.
        precision: Numbers of products; if not given, bf16 on a GPU that has it.
        compile: Compile the layers first: for a GPU and a long training.
        dry_run: Say what the training is made of and how long it may take, and do nothing.
        peak: For --dry-run: FLOP/s of one GPU by its data sheet; if not given, this machine's.
        gpus: For --dry-run: so many GPUs.
    """
    begun, known = load(start) if start else (None, None)
    config = begun.config if begun else transformer.preset(preset)
    config = config if dropout is None else replace(config, dropout=dropout)
    with process_group(device) as place:
        if data.prepared:
            corpus, tokenizer, validation, test = large_corpora.open_corpus(data.prepared)
        else:
            pairs, validation, test = read_splits(data, settings.seed)
            tokenizer = known or Tokenizer.train(pairs[: data.limit], vocabulary_size)
            corpus = encode_pairs(tokenizer, pairs[: data.limit])
        told_apart_by = f"{corpus.sha256}{data.limit or ''}{start or ''}"  # when a run is continued
        corpus = EncodedCorpus(corpus.tokens, corpus.lengths[: data.limit], told_apart_by)
        say(f"{len(corpus):,} pairs to learn from, {len(validation):,} for validation")
        if known and known.sha256 != tokenizer.sha256:
            raise ValueError(f"{data.prepared} needs the vocabulary of {start}: see --tokenizer")
        config = config if known else replace(config, vocabulary_size=len(tokenizer))
        precision = precision or speed.best_precision(place)
        if dry_run:
            plan = speed.estimate(config, settings, corpus.lengths, precision, gpus)
            hours = plan.hours(peak or speed.measured_peak(place, precision), gpus)
            print(f"{plan.parameters:,} parameters, {corpus.lengths.sum():,} tokens an epoch")
            print(f"{settings.steps:,} steps, {plan.flops:.1e} floating-point operations")
            return print(f"{plan.memory_bytes / 2**30:.1f} GiB a device, {hours:.1f} hours")
        torch.manual_seed(settings.seed)
        model = transformer.Transformer(config).to(place)
        model.load_state_dict((begun or model).state_dict())
        if compile:
            speed.compile_layers(model)
        watched = validation[:: 1 + len(validation) // 2000]

        def bleu(model: transformer.Transformer) -> float:
            made = translate_together(model, tokenizer, [p.source for p in watched], 1, 0.6)
            return score(made, [p.target for p in watched]).bleu

        put_aside = {"validation": validation, "test": test} if data.data else {}

        def report(line: dict[str, Any]) -> None:
            while put_aside:
                name, part = put_aside.popitem()
                rows = "".join(f"{pair[0]}\t{pair[1]}\n" for pair in part)
                run_folder.write_text(output / f"{name}.tsv", rows)
            if "score" in line:
                say(PROGRESS.format(**line))

        training.train(
            model, tokenizer, corpus, settings, validation=encode_pairs(tokenizer, validation),
            score=bleu if watched else None, folder=output, report=report,
            loss=speed.FastLoss(model, settings.label_smoothing, precision),
        )  # fmt: skip
        if rank_and_world_size()[0] == 0:
            report({})  # the files, where a run was killed before its first report


# %% [markdown]
# ## Averaging
#
# No run continues in the folder of an average, but `--start` can begin with one. `average` writes into an empty folder or one of its own, and no other.


# %% tags=["export"]
def average(run: Path, output: Path, last: int = 5, half: bool = False) -> None:
    """Average the last checkpoints of a training run into a model.

    Args:
        run: Folder of the training.
        output: Folder for the model.
        last: How many checkpoints.
        half: Store the weights in half precision, in half the space.
    """
    model, tokenizer = run_folder.average_checkpoints(run, last)
    note, now = output / "averaged.json", run_folder.read_settings(run / run_folder.SETTINGS)
    model_io.clear(output, note.name)
    old = run_folder.read_settings(note) if note.exists() else {}
    if any(output.glob("*")) and {n for n in now if old.get(n) != now[n]} - run_folder.FREE:
        raise FileExistsError(f"{output} holds something else: take an empty folder")
    run_folder.write_text(note, dumps({"last": last, **now}, indent=2))
    run_folder.write_text(output / run_folder.LOG, (run / run_folder.LOG).read_text("utf-8"))
    model_io.save_model(model, tokenizer, output, half)


# %% [markdown]
# ## Translating
#
# Line 7 of the output is the translation of line 7 of the input, and an empty line stays empty.


# %% tags=["export"]
def translate(model: Path, beam: int = 4, alpha: float = 0.6, device: str | None = None) -> None:
    """Translate standard input to standard output, line for line, once all of it is read.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    loaded, tokenizer = load(model)
    lines = [*utf8_lines(sys.stdin.buffer, "the input")]
    made = translate_together(loaded.to(find_device(device)), tokenizer, lines, beam, alpha)
    sys.stdout.buffer.write("".join(f"{line}\n" for line in made).encode())
    sys.stdout.buffer.flush()


# %% [markdown]
# ## Scoring
#
# For WMT14 there are [two test sets](27_wmt14.ipynb#3003-or-2737-test-sentences), and sacreBLEU provides both, so scores can be compared with those of others. A score with compounds split, nearly as the paper computed it, is printed as `not_comparable`.


# %% tags=["export"]
def test_sets(data: Data, split: str, seed: int) -> dict[str, list[Pair]]:
    """Return what is to be translated and scored, by name; raises MissingData."""
    if not data.prepared:
        return {split: getattr(read_splits(data, seed, divide=False), split)}
    held_out = Splits([], *large_corpora.open_corpus(data.prepared)[2:])
    name = loads((data.prepared / large_corpora.SUMMARY).read_text("utf-8"))["settings"]["data"][0]
    if name not in large_corpora.WMT14 or split != "test":
        return {split: getattr(held_out, split)}
    sets, to = ("wmt14/full", "wmt14"), name.removeprefix("wmt14-")
    try:
        return {s: read_pairs(get_source_file(s, to), get_reference_files(s, to)[0]) for s in sets}
    except (Exception, SystemExit) as error:  # of several unrelated types
        raise MissingData(f"sacreBLEU cannot fetch {sets}: {error}; check the network") from error


def evaluate(
    model: Path, data: Data = Data(), split: Literal["train", "validation", "test"] = "test",
    seed: int = 0, beam: int = 4, alpha: float = 0.6, json: bool = False,
    device: str | None = None,
) -> None:  # fmt: skip
    """Translate sentences that have a reference, and score the translations.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        split: Which part of a corpus; of your own files, all is scored.
        seed: Seed of the training, which divided the grammar.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        json: Print a line of JSON for each test set.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    loaded, tokenizer = load(model)
    with process_group(device) as place:
        for name, pairs in test_sets(data, split, seed).items():
            sources, references = ([str(p[i]) for p in pairs[: data.limit]] for i in (0, 1))
            made = translate_together(loaded.to(place), tokenizer, sources, beam, alpha)
            record: dict[str, Any] = {"split": name, "sentences": len(made), "beam": beam}
            record |= {"alpha": alpha, **score(made, references)._asdict()}
            record |= {kind: round(record[kind], 2) for kind in ("bleu", "chrf")}
            if name == "wmt14/full":
                record["not_comparable"] = round(compound_split_bleu(made, references), 2)
            if rank_and_world_size()[0] == 0:
                print(dumps(record) if json else "\n".join(f"{k:16}{v}" for k, v in record.items()))


# %% [markdown]
# ## Exporting


# %% tags=["export"]
Format = Literal["ctranslate2", "page"]


def export(model: Path, output: Path, format: Format = "ctranslate2") -> None:
    """Write a model for CTranslate2, a fast engine, or as a page that translates in a browser.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        output: Folder for the exported one; for a page, a file that ends in .html.
        format: What to write.
    """
    from annotated_transformer.export import export_ctranslate2, export_page

    (export_page if format == "page" else export_ctranslate2)(*load(model), output)


# %% [markdown]
# ## One error, one line
#
# [tyro](https://brentyi.github.io/tyro/) makes the options from the functions: their parameters, types and docstrings. Wrong input gets a message instead of a traceback, and scripts see an exit code:
#
# | exit code | what happened | what is printed |
# |---|---|---|
# | 0 | all went well | the results |
# | 2 | an option or the input is wrong | tyro's box about the option, or one sentence: what, where, and what to do |
# | 141 | the next program in a pipe stopped reading, as in `head -1` | nothing |
# | 130 | Ctrl+C, outside a training run | nothing (but a traceback in the first second or two, while Python still imports) |
# | 143 | a training run was asked to stop, by Ctrl+C or SIGTERM | the step, and that the same command continues there |
# | 1 | a bug, or a GPU out of memory | Python's traceback |


# %% tags=["export"]
MISTAKES = (Stopped, MissingData, ValueError, ArithmeticError, OSError, MemoryError, ImportError)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and says what is wrong with bad input."""
    arguments, name = sys.argv[1:] if arguments is None else arguments, "annotated-transformer"
    presets = re.findall(r"--preset[= ](\S+)", " ".join(arguments))
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    commands: list[Any] = [large_corpora.prepare, train, average, translate, evaluate, export]
    try:
        table = {command.__name__: command for command in commands}
        table["train"] = partial(train, settings=recipe(presets[-1] if presets else "tiny"))
        tyro.extras.subcommand_cli_from_dict(table, prog=name, args=arguments, config=options)
    except BrokenPipeError:  # whoever read our output has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except MISTAKES as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(143 if isinstance(error, Stopped) else 2)


# %% [markdown]
# `pyproject.toml` ties `annotated-transformer` in the shell to `main`. `python -m annotated_transformer` is the same, for `torchrun`.
#
# ## A day in the life
#
# Here are the commands in a row, on a corpus so small that it takes seconds. `run` calls `main` and collects what a shell would see: exit code and both outputs.


# %%
import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout


def run(*arguments, lines=""):
    """Call the command and return its exit code, standard output and standard error."""
    output, errors, code = io.TextIOWrapper(io.BytesIO()), io.StringIO(), 0
    standard_input, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(lines.encode()))
    try:
        with redirect_stdout(output), redirect_stderr(errors):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdin = standard_input
    output.flush()
    return code, output.buffer.getvalue().decode(), errors.getvalue()


home = tempfile.TemporaryDirectory()
folder, averaged = f"{home.name}/run", f"{home.name}/averaged"
options = ("--limit", 500, "--steps", 30, "--save-every", 10, "--vocabulary-size", 500)
code, _, told = run("train", "--output", folder, *options, "--device", "cpu")
print("exit code", code, "|", told.splitlines()[0])
print(sorted(path.name for path in Path(folder).iterdir() if path.name[0] != "."))
code, _, told = run("train", "--output", folder, *options, "--device", "cpu")
print("exit code", code, "| nothing left to do:", "step" not in told)

# %% [markdown]
# The same command once more finds that all is done; had it been killed, it would have continued.
#
# The average is stored twice, the second time in half precision. Three lines go in, one of them empty, and three come out:

# %%
code, *_ = run("average", "--run", folder, "--last", 3, "--output", averaged)
run("average", "--run", folder, "--last", 3, "--output", f"{home.name}/half", "--half")
sizes = [Path(home.name, of, "model.safetensors").stat().st_size for of in ("half", "averaged")]
print(f"half of the precision: {sizes[0] / sizes[1]:.2f} of the file")
_, translations, _ = run("translate", "--model", averaged, lines="Der Hund schläft.\n\nJa.\n")
print("exit code", code, "| lines out:", translations.count("\n"))
assert translations.split("\n")[1] == ""

# %% [markdown]
# A second training run starts from this average. It takes over the vocabulary, and its first losses are those of a model that has learned something:

# %% tags=["nbval-ignore-output"]
first = {}
for name, start in (("new", ()), ("begun", ("--start", averaged))):
    again = ("--limit", 500, "--steps", 10, "--vocabulary-size", 500, "--device", "cpu", *start)
    *_, told = run("train", "--output", f"{home.name}/{name}", *again)
    first[name] = float(re.findall(r"validation loss (\d+\.\d+)", told)[0])
print("after ten steps:", first)
assert first["begun"] < first["new"]

# %% [markdown]
# `evaluate` finds the grammar's pairs again from the seed that the training had, and `--json` prints one line for a program to read. To compare two beams, loop over them, on the validation pairs if you mean to choose:

# %%
table = []
for beam in (1, 2):
    search = ("--limit", 20, "--beam", beam, "--split", "validation", "--json")
    _, output, _ = run("evaluate", "--model", averaged, *search)
    table.append(loads(output))
print(*table[0])
print([(record["beam"], record["split"], record["sentences"]) for record in table])

# %% [markdown]
# (After thirty steps the scores mean nothing, so they aren't shown.) What would the paper's base model take on eight GPUs, with this grammar for a corpus? The dry run starts nothing:

# %%
paper = ("train", "--output", f"{home.name}/base", "--preset", "base", "--precision", "bf16")
code, output, _ = run(*paper, "--dry-run", "--peak", 989e12, "--gpus", 8)
print(output, end="")
print("exit code", code, "| anything written:", Path(home.name, "base").exists())

# %% [markdown]
# The average goes to another engine, and into a page. `prepare` is shown in [large corpora](D_large_corpora.ipynb#in-use), and in a row with `train`, `average` and `evaluate` in [the last chapter](27_wmt14.ipynb#a-rehearsal).

# %%
code, *_ = run("export", "--model", averaged, "--output", f"{home.name}/served")
print("exit code", code, "|", *sorted(path.name for path in Path(home.name, "served").iterdir()))
page = f"{home.name}/page.html"
code, *_ = run("export", "--model", averaged, "--format", "page", "--output", page)
print("exit code", code, "|", Path(page).read_text(encoding="utf-8").splitlines()[0])

# %% [markdown]
# And five mistakes: a model that doesn't exist, settings that aren't those of the run, a table with a broken line, a folder that belongs to a training run, more checkpoints than there are.

# %%
table = Path(home.name, "pairs.tsv")
table.write_text("Guten Tag.\tHello.\nkaputt\n")
for arguments in (
    ("translate", "--model", "nowhere"),
    ("train", "--output", folder, *options, "--lr-scale", 0.5),
    ("train", "--output", f"{home.name}/own", "--data", table),
    ("average", "--run", folder, "--output", folder, "--last", 3),
    ("average", "--run", folder, "--output", averaged, "--last", 99),
):
    code, output, errors = run(*arguments)
    print(code, errors.splitlines()[-1].replace(f"{home.name}/", ""))
home.cleanup()
