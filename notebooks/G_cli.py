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
# # Command line
#
# This appendix puts the book behind one command: preparing a corpus, training, averaging, translating, scoring and exporting.
#
# From a shell, four commands do most of the work:
#
# ```
# annotated-transformer train --corpus multi30k --preset mini --output my-run
# annotated-transformer average --run my-run --last 5 --output my-model
# annotated-transformer evaluate --model my-model --corpus multi30k
# echo "Ein Hund läuft über die Wiese." | annotated-transformer translate --model my-model
# ```
#
# Two more are for the ends of the road: `prepare` makes a [corpus too large for memory](D_large_corpora.ipynb) ready, and `export` hands a model to [another engine](F_export.ipynb). `train` and `evaluate` run in one process, or started by `torchrun` in [several](26_distributed.ipynb). With their options, `annotated-transformer train --help` and the others explain themselves.
#
# The commands do not call each other. They meet in files, so each can run on another day or another machine:
#
# | file | what it holds | who writes it | who reads it |
# |---|---|---|---|
# | `tokens.bin`, `lengths.npy`, `summary.json` | a [prepared corpus](D_large_corpora.ipynb) | `prepare` | `train` |
# | `model.safetensors`, `config.json`, `tokenizer.json` | a model: weights, shape, vocabulary | `train`, `average` | `translate`, `evaluate`, `export` |
# | `checkpoints/` | weights and the optimizer's moments, every few hundred steps | `train` | `train`, to continue; `average` |
# | `training.json` | all settings of the run | `train` | `train`, to refuse others |
# | `log.jsonl` | loss, speed and scores, one line a report | `train` | you; copied by `average` |
# | `averaged.json` | the mean of how many checkpoints it is, and the settings of their training | `average` | you |
# | `validation.tsv`, `test.tsv` | pairs put aside, if they came from your own files | `train`, `prepare` | `evaluate` |
#
# A folder with a model is a model, whichever command made it. So `translate` also takes `my-run`, where `train` leaves the weights with the best score on the validation pairs.

# %% tags=["export"]
import codecs
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from annotated_transformer import decoding, large_corpora, model_io, run_folder, training, transformer
from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.data import MissingData, Pair, multi30k
from annotated_transformer.distributed import find_device, gather_texts, process_group
from annotated_transformer.large_corpora import PreparedCorpus, open_corpus
from annotated_transformer.own_data import Splits, filter_pairs, read_pairs, split_pairs
from annotated_transformer.speed import FastLoss, best_precision, compile_layers, estimate, measured_peak
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, rank_and_world_size
from annotated_transformer.transformer import Transformer, TransformerConfig

# %% [markdown]
# ## Which pairs
#
# `train` and `evaluate` read pairs, so what to read is a group of options of its own. The corpora of the book are divided already, or by a seed. Your own files are cleaned and divided here: one pair in a hundred for validation, and one for the test. A folder that `prepare` has filled was treated so once.


# %% tags=["export"]
def say(text: str) -> None:
    """Write a line where it does not mix with results; of many processes, the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Data:
    """Which sentence pairs."""

    corpus: Literal["grammar", "multi30k"] = "grammar"  # A corpus of the book, German to English.
    data: tuple[Path, ...] = ()  # Your own pairs in its place: one TSV, or two text files.
    columns: tuple[int, int] = (0, 1)  # Those of source and target in a TSV, counted from 0.
    reverse: bool = False  # Translate the other way round.
    prepared: Path | None = None  # Folder that `prepare` has filled, in place of all these.
    limit: int | None = None  # Learn from, or score, so many pairs at most, the first ones.

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be above 0, not {self.limit}")
        if len(self.data) > 2:
            raise ValueError(f"data takes one TSV or two text files, not {len(self.data)} files")
        if self.prepared and (self.data or self.reverse):
            message = f"{self.prepared} was prepared in one direction: leave data and reverse away"
            raise ValueError(message)

    def turned(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Return the pairs, the other way round if asked."""
        return [Pair(p.target, p.source) if self.reverse else p for p in pairs]


def read_splits(data: Data, seed: int) -> Splits:
    """Return pairs to learn from, to choose by and to measure on; the limit is not applied."""
    if data.data:
        pairs, dropped = filter_pairs(read_pairs(*data.data, columns=data.columns))
        say(f"{len(pairs):,} pairs; dropped: {dropped}")
    elif data.corpus == "multi30k":
        parts = ("train", "val", "test_2016_flickr")
        return Splits(*(data.turned(multi30k(part)) for part in parts))
    else:
        pairs = grammar(10_000, seed)
    return split_pairs(data.turned(pairs), 0.01, 0.01, seed)


def read_corpus(data: Data, vocabulary_size: int, seed: int) -> PreparedCorpus:
    """Return encoded pairs to learn from, their tokenizer, and pairs for validation and test."""
    if data.prepared:
        found = open_corpus(data.prepared)
        tokens, lengths, sha256 = found.corpus.tokens, found.corpus.lengths, found.corpus.sha256
        if data.limit:
            limited = EncodedCorpus(tokens, lengths[: data.limit], f"{sha256} {data.limit}")
            found = found._replace(corpus=limited)
        return found
    splits = read_splits(data, seed)
    learned = splits.train[: data.limit]
    tokenizer = Tokenizer.train(learned, vocabulary_size)
    return PreparedCorpus(
        encode_pairs(tokenizer, learned), tokenizer, splits.validation, splits.test
    )


# %% [markdown]
# ## Training
#
# The options of a training are those of its data, of its model, and the fields of [`TrainingConfig`](18_training.ipynb), whose comments are their help. Their defaults come with the preset: the paper's for its models, those of the book for the small ones. What is typed wins.


# %% tags=["export"]
def recipe(preset: str) -> TrainingConfig:
    """Return the settings that go with a preset; those of the paper's models are in section 5."""
    if preset in ("tiny", "mini", "small"):
        return TrainingConfig()
    big, smoothing = preset == "big", preset.partition("smoothing")[2]
    return TrainingConfig(
        steps=300_000 if big else 100_000, max_tokens=25_000, warmup=4000, lr_scale=1.0,
        label_smoothing=float(smoothing or 0.1), save_every=1500, keep_checkpoints=20 if big else 5,
    )  # fmt: skip


def translate_together(
    model: Transformer, tokenizer: Tokenizer, sentences: Sequence[str], beam: int = 4,
    alpha: float = 0.6,
) -> list[str]:  # fmt: skip
    """Translate sentences, each process its share of them; all processes get all translations."""
    rank, world_size = rank_and_world_size()
    room = 16_384 if model.embedding.weight.is_cuda else 2048
    mine = decoding.translate(
        model, tokenizer, sentences[rank::world_size], beam, alpha, max_tokens=room
    )
    together = [""] * len(sentences)
    for number, share in enumerate(gather_texts(mine)):
        together[number::world_size] = share
    return together


def print_plan(
    config: TransformerConfig, settings: TrainingConfig, lengths: Any, precision: str,
    peak: float, gpus: int,
) -> None:  # fmt: skip
    """Print what a training is made of and how long it may take on GPUs of a peak in FLOP/s."""
    plan = estimate(config, settings, lengths, precision, gpus)
    positions = f"{settings.grad_accum_steps} x {settings.max_tokens:,}"
    print(f"parameters  {plan.parameters:,}")
    print(f"pairs       {len(lengths):,}, with {int(lengths.sum()):,} tokens")
    print(f"steps       {settings.steps:,} of {positions} positions on either side")
    print(f"operations  {plan.flops:.2e}")
    print(f"memory      {plan.memory_bytes / 2**30:.1f} GiB on each of {gpus}, {precision}")
    print(f"time        {plan.hours(peak, gpus, 0.2):.1f} hours at 20 % of {peak:.2e} FLOP/s each")


def train(
    output: Path, data: Data = Data(), preset: str = "tiny", dropout: float | None = None,
    vocabulary_size: int = 2000, settings: TrainingConfig = TrainingConfig(),
    device: str | None = None, precision: Literal["fp32", "bf16"] | None = None,
    compile: bool = False, dry_run: bool = False, peak: float | None = None, gpus: int = 1,
) -> None:  # fmt: skip
    """Train a model in a folder; the same command continues it where it stopped.

    Args:
        output: Folder for log, checkpoints and model; made if it is not there.
        preset: Shape of the model: tiny, mini, small, base, big, or a row of the paper's Table 3.
        dropout: Share of numbers dropped in training, if not the preset's.
        vocabulary_size: Entries of the vocabulary; a prepared corpus has its own.
        device: cpu or cuda; if not given, a GPU if there is one.
        precision: Numbers of products; if not given, bf16 where the hardware has it.
        compile: Compile the layers first: for a GPU and a long training.
        dry_run: Say what the training is made of and how long it may take, and do nothing.
        peak: For --dry-run: FLOP/s of one GPU by its data sheet; if not given, this machine's.
        gpus: For --dry-run: so many GPUs.
    """
    changes = {} if dropout is None else {"dropout": dropout}
    transformer.preset(preset, **changes)  # a wrong name is found before anything is read
    with process_group(device) as place:
        corpus, tokenizer, validation, test = read_corpus(data, vocabulary_size, settings.seed)
        say(f"{len(corpus):,} pairs to learn from, {len(validation):,} for validation")
        config = transformer.preset(preset, vocabulary_size=len(tokenizer), **changes)
        precision = precision or best_precision(place)
        if dry_run:
            peak = peak or measured_peak(place)
            return print_plan(config, settings, corpus.lengths, precision, peak, gpus)
        torch.manual_seed(settings.seed)
        model = Transformer(config).to(place)
        if compile:
            compile_layers(model)
        watched = validation[:: 1 + len(validation) // 2000]

        def bleu(model: Transformer) -> float:
            from annotated_transformer.evaluation import score

            made = translate_together(model, tokenizer, [p.source for p in watched], beam=1)
            return score(made, [p.target for p in watched]).bleu

        def report(line: dict[str, Any]) -> None:
            for name, pairs in {"validation": validation, "test": test}.items():
                path = output / f"{name}.tsv"
                if data.data and not path.exists():
                    run_folder.write_text(path, "".join(f"{p[0]}\t{p[1]}\n" for p in pairs))
            if "score" in line:
                say(
                    "step {step}, epoch {epoch:.1f}: loss {loss:.3f}, validation loss "
                    "{validation_loss:.3f}, BLEU {score:.1f}, {tokens_per_second:,} target "
                    "tokens a second".format(**line)
                )

        fast = place.type == "cuda" or precision == "bf16"
        training.train(
            model, tokenizer, corpus, settings, validation=encode_pairs(tokenizer, validation),
            score=bleu if watched else None, folder=output, report=report,
            loss=FastLoss(model, settings.label_smoothing, precision) if fast else None,
        )  # fmt: skip


# %% [markdown]
# ## Averaging
#
# The folder of an average is a model and no training: `train` refuses it, and `average` refuses any folder but an empty one and one of its own.


# %% tags=["export"]
def average(run: Path, output: Path, last: int = 5, half: bool = False) -> None:
    """Average the last checkpoints of a training into a model.

    Args:
        run: Folder of the training.
        output: Folder for the model.
        last: How many checkpoints.
        half: Store the weights in half precision, in half the space.
    """
    note = output / "averaged.json"
    if output.exists() and any(output.iterdir()) and not note.exists():
        raise FileExistsError(f"{output} holds something else: take an empty folder")
    model, tokenizer = run_folder.average_checkpoints(run, last)
    made_of = {"last": last, "settings": run_folder.read_settings(run / run_folder.SETTINGS)}
    run_folder.write_text(note, json.dumps(made_of, indent=2))
    log = (run / run_folder.LOG).read_text(encoding="utf-8")
    run_folder.write_text(output / run_folder.LOG, log)
    model_io.save_model(model, tokenizer, output, half)


# %% [markdown]
# ## Translating
#
# Line for line: an empty line stays empty, and line 7 of the output is the translation of line 7 of the input.


# %% tags=["export"]
def read_lines(content: bytes) -> list[str]:
    """Return the lines of UTF-8 text; raises ValueError naming the first line that is none."""
    content = content.removeprefix(codecs.BOM_UTF8)
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of the input is not UTF-8: {error.reason}") from error
    return [line.decode().rstrip("\r") for line in lines]


def one_per_line(sentences: Sequence[str]) -> str:
    """Join sentences to a text with one on each line; a line feed inside becomes a space."""
    return "".join(" ".join(sentence.split("\n")) + "\n" for sentence in sentences)


def translate(
    model: Path, beam: int = 4, alpha: float = 0.6, device: str | None = None
) -> None:
    """Translate standard input to standard output, line for line.

    Args:
        model: Folder of a trained model.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    place = find_device(device)
    loaded, tokenizer = model_io.load_model(model)
    lines = read_lines(sys.stdin.buffer.read())
    made = translate_together(loaded.to(place), tokenizer, lines, beam, alpha)
    sys.stdout.buffer.write(one_per_line(made).encode())
    sys.stdout.buffer.flush()


# %% [markdown]
# ## Scoring
#
# For WMT14 there are two test sets, and both come from sacreBLEU, so that the scores can be compared with those of others: all 3,003 sentences, and a filtered set. Beside them stands a score with compounds split, nearly as the paper computed it, which can be compared with nothing else.


# %% tags=["export"]
def newstest(name: str, languages: str) -> list[Pair]:
    """Return a test set of sacreBLEU, such as wmt14/full; raises MissingData."""
    import sacrebleu

    try:
        references = sacrebleu.get_reference_files(name, languages)
        return read_pairs(sacrebleu.get_source_file(name, languages), references[0])
    except (Exception, SystemExit) as error:  # of several unrelated types
        raise MissingData(
            f"sacreBLEU has no {name} of {languages} ({error}): check the network, or fetch it with "
            f"`sacrebleu -t {name} -l {languages} --echo src` and copy ~/.sacrebleu"
        ) from error


def test_sets(data: Data, split: str, seed: int) -> dict[str, list[Pair]]:
    """Return what is to be translated and scored, by name."""
    if data.prepared and split == "train":
        raise ValueError("a prepared corpus has no text of its training pairs: take another split")
    if data.prepared:
        found = open_corpus(data.prepared)
        summary = json.loads((data.prepared / large_corpora.SUMMARY).read_text(encoding="utf-8"))
        name = summary["settings"]["data"][0]
        if name in large_corpora.WMT14 and split == "test":
            languages = name.removeprefix("wmt14-")
            return {test: newstest(test, languages) for test in ("wmt14/full", "wmt14")}
        return {split: getattr(found, split)}
    if data.data:
        pairs = data.turned(read_pairs(*data.data, columns=data.columns))
        return {data.data[0].name: pairs}
    return {f"{data.corpus} {split}": getattr(read_splits(data, seed), split)}


def evaluate(
    model: Path, data: Data = Data(), split: Literal["train", "validation", "test"] = "test",
    seed: int = 0, beam: int = 4, alpha: float = 0.6, output: Path | None = None,
    json: bool = False, device: str | None = None,
) -> None:  # fmt: skip
    """Translate sentences that have a reference, and score the translations.

    Args:
        model: Folder of a trained model.
        split: Which part of a corpus; of your own files, all is scored.
        seed: Seed of the training, which divided the grammar.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        output: File for the translations, one a line.
        json: Print a line of JSON for each test set.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    from annotated_transformer.evaluation import compound_split_bleu, score

    loaded, tokenizer = model_io.load_model(model)
    with process_group(device) as place:
        sets = {n: some[: data.limit] for n, some in test_sets(data, split, seed).items()}
        sources = list(dict.fromkeys(pair.source for pairs in sets.values() for pair in pairs))
        start = time.perf_counter()
        made = translate_together(loaded.to(place), tokenizer, sources, beam, alpha)
        seconds = round(time.perf_counter() - start, 1)
        if rank_and_world_size()[0] > 0:
            return
    found = dict(zip(sources, made))
    for name, pairs in sets.items():
        hypotheses, references = [found[p.source] for p in pairs], [p.target for p in pairs]
        record = {"test_set": name, "sentences": len(pairs), "beam": beam, "alpha": alpha}
        record |= score(hypotheses, references)._asdict() | {"seconds": seconds}
        if name == "wmt14/full":
            record["compound_split_bleu"] = compound_split_bleu(hypotheses, references)
        print_scores(record, json)
        if output and name == next(iter(sets)):
            run_folder.write_text(output, one_per_line(hypotheses))


def print_scores(record: dict[str, Any], as_json: bool) -> None:
    """Print scores and how they came about, for people or as one line of JSON."""
    if as_json:
        return print(json.dumps(record))
    print("BLEU  {bleu:5.1f}  {bleu_signature}\nchrF2 {chrf:5.1f}  {chrf_signature}".format(**record))
    if "compound_split_bleu" in record:
        print(f"      {record['compound_split_bleu']:5.1f}  with compounds split: not comparable")
    print("{test_set}: {sentences:,} sentences, beam {beam}, alpha {alpha}, {seconds} s".format(**record))


# %% [markdown]
# ## Preparing and exporting


# %% tags=["export"]
def prepare(
    data: tyro.conf.Positional[tuple[str, ...]], output: Path | None = None,
    columns: tuple[str, ...] = (), vocabulary_size: int | None = None,
    tokenizer: Path | None = None, limit: int | None = None,
) -> None:  # fmt: skip
    """Make a large corpus ready for training: fetch, clean, encode.

    Args:
        data: wmt14-en-de, wmt14-en-fr, or files: one TSV, two texts, JSON lines or Parquet.
        output: Folder for it; if not given, one with the name of the corpus.
        columns: Those of source and target, as `0 1` in a TSV, `translation.de translation.en`.
        vocabulary_size: Entries of the joint vocabulary; WMT14 has a default.
        tokenizer: A tokenizer.json to use, in place of learning one.
        limit: Use so many pairs at most, to try things out.
    """
    large_corpora.prepare(
        data[0] if len(data) == 1 else data, output or Path(data[0]), columns=columns,
        vocabulary_size=vocabulary_size, tokenizer=tokenizer, limit=limit,
    )  # fmt: skip


def export(model: Path, output: Path) -> None:
    """Write a model for CTranslate2, a fast engine for inference.

    Args:
        model: Folder of a trained model.
        output: Folder for the exported one.
    """
    from annotated_transformer.export import export_ctranslate2

    export_ctranslate2(*model_io.load_model(model), output)


# %% [markdown]
# ## One error, one line
#
# [tyro](https://brentyi.github.io/tyro/) makes the options from the functions: their parameters, types and docstrings. A mistake of the user is not a bug of ours: it gets one sentence, without a traceback. Scripts see the exit code:
#
# | exit code | what happened | what is printed |
# |---|---|---|
# | 0 | all went well | the results |
# | 2 | an option or the input is wrong | one sentence: what, where, and what to do |
# | 141 | the program after it in a pipe has enough | nothing |
# | 143 | a training was asked to stop | the step, and that the same command continues there |
# | 1 | a bug | Python's traceback |


# %% tags=["export"]
COMMANDS = (prepare, train, average, translate, evaluate, export)
MISTAKES = (ValueError, OSError, FloatingPointError, MemoryError, ImportError, MissingData)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and one line for bad input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    named = re.findall(r"--preset[= ](\S+)", " ".join(arguments))
    commands: dict[str, Any] = {command.__name__: command for command in COMMANDS}
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    try:
        commands["train"] = partial(train, settings=recipe(named[-1] if named else "tiny"))
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="annotated-transformer", args=arguments, config=options
        )
    except training.Stopped as stopped:
        say(f"annotated-transformer: {stopped}")
        sys.exit(143)
    except BrokenPipeError:  # whoever read our output has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except MISTAKES as error:
        print(f"annotated-transformer: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
