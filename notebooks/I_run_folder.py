# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # The folder of a training run
#
# This appendix keeps a training run in a folder, so that it can be killed at any moment and continued.
#
# [Training](K_runs.ipynb#what-a-checkpoint-holds) says what a checkpoint must hold. The files:
#
# | file | what it holds | when it is written |
# |---|---|---|
# | `training.json` | the settings | at each start |
# | `log.jsonl` | loss, rate, speed, scores | every 50 steps and with each checkpoint |
# | `checkpoints/step-00000500.pt` | weights, averages of Adam, place in the corpus, lowest validation loss | every `save_every` steps; the last few stay |
# | `checkpoints/stop-00000512.pt` | the same | after a signal or some minutes, and before a validation; stays until the next |
# | `config.json`, `tokenizer.json`, `model.safetensors` | the best [model](A_model_io.ipynb#saving-and-loading) so far | after a lower validation loss; without validation, at the end |
# | `.lock` | nothing | [held](A_model_io.ipynb#whole-or-not-at-all) while a run lasts |
#
# | killed while | what the next start does |
# |---|---|
# | it makes a step | makes the steps since the last checkpoint again |
# | it validates | validates again |
# | it writes the log | drops half a line, or a line beyond the last checkpoint |
# | it writes a checkpoint | removes the `.unfinished` file; the one before is whole |
# | it removes old checkpoints | removes the one too many |
# | it saves the best model | validates, and saves the model, again |

# %%
import tempfile

from annotated_transformer.toolkit.presets import preset

# %% tags=["export"]
import json
import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch

from annotated_transformer.toolkit.model_io import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    atomic_write,
    check_weights,
    half_written,
    model_files,
    naming_a_full_disk,
    remove,
    write_files,
)
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.presets import make_config
from annotated_transformer.transformer import Transformer

# %% [markdown]
# ## Checkpoints
#
# A checkpoint gets its name only when it is [whole](A_model_io.ipynb#whole-or-not-at-all), and old ones are removed after the new one is there. (The other way round, each attempt on a full disk would leave one fewer.)
#
# `torch.save` writes a pickle, which can contain any program. `weights_only=True` reads tensors, numbers, text and containers of these and refuses everything else, so a checkpoint can't run code. A file that was cut off, changed or renamed is refused as well. So is one that is compressed, because a few megabytes of it could unpack to more than the memory holds.

# %% tags=["export"]
SETTINGS = "training.json"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"
KINDS = ("step", "stop")  # regular, and the others
CHECKPOINT = re.compile(r"(step|stop)-([0-9]{8})\.pt")


def step_of(checkpoint: Path) -> int:
    """Return the step that the name of a checkpoint tells."""
    return int(checkpoint.stem.partition("-")[2])


def checkpoints(folder: Path, kinds: Sequence[str] = ("step",)) -> list[Path]:
    """Return the checkpoints of a run, oldest first: the regular ones, or those of some kinds.

    Of two of the same step the regular one is the last: it was written after the validation.
    """
    paths = []
    for path in (folder / CHECKPOINTS).glob("*.pt"):
        match = CHECKPOINT.fullmatch(path.name)
        if match and match[1] in kinds:
            paths.append(path)
    return sorted(paths, key=lambda path: (step_of(path), path.name.startswith("step")))


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to continue from, if there is one."""
    paths = checkpoints(folder, KINDS)
    return paths[-1] if paths else None


def steps_made(folder: Path) -> int:
    """Return the step from which a run in a folder goes on: 0 for one that has saved nothing."""
    newest = last_checkpoint(folder)
    return 0 if newest is None else step_of(newest)


def remove_old_checkpoints(folder: Path, keep: int) -> None:
    """Leave the last checkpoint and the last `keep` regular ones."""
    needed = {last_checkpoint(folder), *checkpoints(folder)[-keep:]}
    for path in checkpoints(folder, KINDS):
        if path not in needed:
            path.unlink()


def save_checkpoint(
    folder: Path, content: dict[str, Any], regular: bool, keep: int
) -> None:
    """Write a checkpoint, whole or not at all; the last `keep` regular ones stay.

    Another one, as after a signal, stays until the next. Raises DiskFull, which names the file.
    """
    kind = "step" if regular else "stop"
    path = folder / CHECKPOINTS / f"{kind}-{content['step']:08}.pt"
    with atomic_write(path) as aside:
        write_pickle(content, aside)
    remove_old_checkpoints(folder, keep)


def write_pickle(content: dict[str, Any], path: Path) -> None:
    """Write a file with `torch.save`; raises OSError if that fails."""
    try:
        with path.open("wb") as file:
            torch.save(content, file)
    except RuntimeError as error:  # what torch makes of it
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def check_archive(path: Path) -> None:
    """Raise ValueError for an archive that is damaged, or would unpack to more than its size."""
    with ZipFile(path) as archive:
        members = archive.infolist()
        if any(member.compress_type != ZIP_STORED for member in members):
            raise ValueError("it is compressed")
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("its parts are larger than the file")
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} is wrong")


def read_checkpoint(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint, which cannot run code.

    With `mmap`, tensors are read from the file when they are used. Raises FileNotFoundError if
    there is no such file, ValueError if it is no checkpoint.
    """
    try:
        check_archive(path)
        content: dict[str, Any] = torch.load(
            path, map_location="cpu", weights_only=True, mmap=mmap
        )
        if content["step"] != step_of(path):
            raise ValueError(f"it is of step {content['step']}")
        return content
    except FileNotFoundError:
        raise
    except Exception as error:  # of many kinds, with advice not to be followed
        raise ValueError(
            f"{path} is not a whole checkpoint of its step: move it away"
        ) from error


# %%
with tempfile.TemporaryDirectory() as folder:
    for step, regular in ((10, True), (20, True), (27, False), (30, True), (34, False)):
        save_checkpoint(Path(folder), {"step": step}, regular, keep=2)
        print(step, [path.name for path in sorted(Path(folder, CHECKPOINTS).iterdir())])
    stopped = Path(folder, CHECKPOINTS, "stop-00000034.pt")
    stopped.rename(stopped.with_name("step-00000099.pt"))
    try:
        read_checkpoint(last_checkpoint(Path(folder)))
    except ValueError as error:
        print(str(error).partition("is not ")[2])

# %% [markdown]
# ## Settings
#
# A run is continued only with its own settings. Those that have no part in an update may change: how long to train, how often to save, how many checkpoints to keep, how patient to be. Until something is saved, all may.
#
# A folder that belongs to something else, such as a prepared corpus, an average or your letters, is left alone. So is one with a model whose checkpoints are gone, and one with a `training.json` of another program.
#
# What a training began with is known by the hash of its weights, so a model may be moved, or its path be written in another way.

# %% tags=["export"]
MAY_CHANGE = ("steps", "save_every", "save_minutes", "keep_checkpoints", "patience")
FREE = {f"training.{name}" for name in MAY_CHANGE}
IN_EVERY_RUN = {  # of what `training.json` holds
    "training.steps",
    "training.max_tokens",
    "training.seed",
    "model.layers",
    "model.d_model",
    "tokenizer",
    "pairs",
    "validation",
}
# The validation and test pairs are written by the command line
FILES = (SETTINGS, LOG, CONFIG, TOKENIZER, WEIGHTS, "validation.tsv", "test.tsv")


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a training run; raises ValueError if the file holds something else."""
    try:
        settings: dict[str, Any] = json.loads(path.read_text("utf-8"))
        missing = IN_EVERY_RUN - settings.keys()
        if missing:
            raise ValueError(f"it lacks {min(missing)}")
        return settings
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no settings of a run: take another folder"
        ) from error


def leftovers(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return what a killed process left half-written of the files with these names."""
    return [path for path, name in half_written(folder) if name in names]


def check_belongs(folder: Path) -> None:
    """Raise FileExistsError for a folder that holds anything but a run with its checkpoints."""
    paths = {*folder.iterdir()} - {*leftovers(folder, FILES)}
    names = {path.name for path in paths if path.suffix != ".unfinished"} - {".lock"}
    lacks_checkpoints = (folder / WEIGHTS).exists() and CHECKPOINTS not in names
    if names and (SETTINGS not in names or lacks_checkpoints):
        raise FileExistsError(
            f"{folder} is no run, it holds {min(names)}: take another folder"
        )


def other_settings(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of the settings that differ, without those that may change."""
    names = sorted({*before, *now} - FREE)
    return [name for name in names if before.get(name) != now.get(name)]


def check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Raise ValueError if a model or checkpoint in a folder was made with other settings."""
    if not (folder / SETTINGS).exists():
        return
    saved = read_settings(folder / SETTINGS)
    if not (folder / WEIGHTS).exists() and last_checkpoint(folder) is None:
        return
    different = other_settings(saved, settings)
    if different:
        name = different[0]
        raise ValueError(
            f"{folder} has a run with {name}={saved.get(name)}, "
            f"not {settings.get(name)}: "
            "repeat its settings to continue it, or take another folder"
        )


def begin_in_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings in an empty folder, or check that they are those of the training there.

    Raises FileExistsError if the folder belongs to something else, ValueError for other settings.
    """
    check_belongs(folder)
    check_settings(folder, settings)
    write_text(folder / SETTINGS, json.dumps(settings, indent=2))
    (folder / CHECKPOINTS).mkdir(exist_ok=True)
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left half-written of the files of a run, and nothing else."""
    for path in leftovers(folder, FILES):
        remove(path)
    for path, name in half_written(folder / CHECKPOINTS):
        if CHECKPOINT.fullmatch(name):
            remove(path)


# %%
settings = dict.fromkeys(IN_EVERY_RUN, "...")
settings |= {"training.steps": 9, "training.seed": 0}
with tempfile.TemporaryDirectory() as folder:
    begin_in_folder(Path(folder), settings)
    begin_in_folder(
        Path(folder), settings | {"training.seed": 1}
    )  # nothing is saved yet
    Path(folder, CHECKPOINTS, "step-00000005.pt").touch()
    begin_in_folder(Path(folder), settings | {"training.seed": 1, "training.steps": 20})
    try:
        begin_in_folder(Path(folder), settings)
    except ValueError as error:
        print(str(error).partition("run with ")[2])
    Path(folder, SETTINGS).unlink()
    try:
        begin_in_folder(Path(folder), settings)
    except FileExistsError as error:
        print(str(error).partition("is no ")[2])

# %% [markdown]
# ## The log
#
# The log has one JSON object a line, so it is written by appending, read with one line of Python, and searched with `grep`. Appending has a catch. A run with a checkpoint at step 500 and a line for step 550 is killed. When it continues, it makes step 550 again, and the log would have it twice. So each start drops the lines of later steps, and adds one of its own with what the numbers depend on besides the settings.


# %% tags=["export"]
def begin_log(folder: Path, step: int, processes: int) -> None:
    """Forget what the log holds of later steps, and note what the numbers depend on.

    Raises ValueError if the file is no log.
    """
    path = folder / LOG
    lines: list[str] = []
    try:
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                is_whole = line.endswith("\n")
                if is_whole and json.loads(line)["step"] <= step:
                    lines.append(line)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is no log of a run ({error}): move it away"
        ) from error
    write_text(path, "".join(lines))
    record = {
        "step": step,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processes": processes,
        "threads": torch.get_num_threads(),
    }
    write_log(folder, record)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a log that tell how a run went, without those of its starts."""
    lines = (folder / LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    # A full disk may have left half a line at the end
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if {"loss", "gradient_norm"} <= record.keys()]


def write_log(folder: Path, record: dict[str, Any]) -> None:
    """Append a line with the time of day to the log."""
    line = json.dumps({**record, "time": time.strftime("%Y-%m-%d %H:%M:%S%z")})
    path = folder / LOG
    with naming_a_full_disk(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, LOG)
    path.write_text(
        "".join(f'{{"step": {step}}}\n' for step in (450, 500, 550)) + '{"step": 6'
    )
    begin_log(Path(folder), step=500, processes=1)
    print([json.loads(line)["step"] for line in path.read_text().splitlines()])

# %% [markdown]
# 450 and 500 are kept, 550 is gone, and the second 500 is the line of the new start.
#
# ## The mean of checkpoints
#
# The paper translates with the mean of the last checkpoints; [Training](18_training.ipynb#what-averaging-checkpoints-brings) measures what that gains. Adam's averages are left out: translating and `--start` need only weights. Sums are in double precision, so the mean of five equal numbers is that number. Mapped into memory, large files are read one tensor at a time. The training may go on meanwhile. If it removes a checkpoint before we have opened it, we look again which are the last.


# %% tags=["export"]
def read_last_checkpoints(folder: Path, last: int) -> dict[Path, dict[str, Any]]:
    """Read the last regular checkpoints, oldest first, of a run that may still be going on.

    Raises FileNotFoundError if there are fewer, ValueError if one is damaged or if `last` is
    below 1.
    """
    if last < 1:
        raise ValueError(f"the last {last} checkpoints have no mean: take 1 or more")
    while True:
        paths = checkpoints(folder)
        if last > len(paths):
            if not folder.is_dir():
                raise FileNotFoundError(f"there is no folder {folder}")
            raise FileNotFoundError(
                f"checkpoints in {folder}: {len(paths)}, asked for: {last}"
            )
        try:
            return {path: read_checkpoint(path, mmap=True) for path in paths[-last:]}
        except FileNotFoundError:
            # A run removes one after it has written a newer one; else it is a link to nowhere
            if checkpoints(folder) == paths:
                raise


def check_same_model(contents: Mapping[Path, dict[str, Any]]) -> None:
    """Raise ValueError unless all checkpoints hold weights of one model with one tokenizer."""
    newest_path, newest = [*contents.items()][-1]
    for path, content in contents.items():
        for name in ("config", "tokenizer"):
            if name not in content:
                raise ValueError(f"{path} has no {name}: move it away")
            if content[name] != newest.get(name):
                raise ValueError(
                    f"{path} has another {name} than {newest_path.name}: "
                    "move away the checkpoints that are not of this run"
                )
        try:
            check_weights(make_config(content["config"]), content["model"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no model: {error}") from error


def average_checkpoints(
    folder: str | Path, last: int = 5
) -> tuple[Transformer, Tokenizer]:
    """Return the model whose weights are the mean of the last checkpoints (section 6.1).

    Raises FileNotFoundError if the folder of the training has fewer, ValueError if one is damaged
    or of another model.
    """
    checkpoint_contents = read_last_checkpoints(Path(folder), last)
    check_same_model(checkpoint_contents)
    contents = [*checkpoint_contents.values()]
    model = Transformer(make_config(contents[0]["config"]))
    for name, weights in model.state_dict().items():
        total = sum(content["model"][name].double() for content in contents)
        weights.copy_(total / last)
    return model.eval(), Tokenizer(contents[0]["tokenizer"])


# %%
tokenizer = Tokenizer.train(["the black cat likes fish"], vocabulary_size=270)
models = [Transformer(preset("tiny", vocabulary_size=len(tokenizer))) for _ in range(3)]
same_in_all = {"config": vars(models[0].config), "tokenizer": tokenizer.text}
with tempfile.TemporaryDirectory() as folder:
    for step, model in enumerate(models):
        content = {"step": step, "model": model.state_dict(), **same_in_all}
        save_checkpoint(Path(folder), content, regular=True, keep=3)
    mean, _ = average_checkpoints(folder, last=3)
by_hand = torch.stack([model.embedding.weight for model in models]).mean(dim=0)
print("the mean of three:", torch.allclose(mean.embedding.weight, by_hand))

# %% [markdown]
# The folder of an average is no run: in place of `training.json` it has a note, `averaged.json`, of how many checkpoints were averaged and which training they are of. A second average of the same training replaces it, and removes `score.jsonl`, the score of the weights that go.


# %% tags=["export"]
NOTE = "averaged.json"
SCORE = "score.jsonl"  # where chapter 27 keeps what `evaluate` says of the weights


def check_average_belongs(output: Path, run: Path) -> None:
    """Raise FileExistsError if a folder holds anything but an average of a run."""
    files = (NOTE, LOG, CONFIG, TOKENIZER, WEIGHTS)
    if not {*output.glob("*")} - {*leftovers(output, files)}:
        return
    noted = read_settings(output / NOTE) if (output / NOTE).exists() else {}
    noted.pop("last", None)
    if other_settings(noted, read_settings(run / SETTINGS)):
        raise FileExistsError(f"{output} holds something else: take an empty folder")


def save_average(run: Path, output: Path, last: int = 5, half: bool = False) -> None:
    """Write the mean of the last checkpoints of a run into a folder, as a model.

    Its log comes along. The note, by which the folder is known again, is the first to get its
    name. Raises FileExistsError if the folder holds anything but an average of this run, and
    what `average_checkpoints` raises.
    """
    check_average_belongs(output, run)
    model, tokenizer = average_checkpoints(run, last)
    note = {"last": last, **read_settings(run / SETTINGS)}
    contents = {
        NOTE: json.dumps(note, indent=2).encode(),
        **model_files(model, tokenizer, half),
        LOG: (run / LOG).read_bytes(),
    }
    for path in leftovers(output, [*contents]):
        remove(path)
    remove(output / SCORE)
    write_files(output, contents)
