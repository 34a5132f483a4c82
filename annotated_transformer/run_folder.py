import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.model_io import WEIGHTS, atomic_write
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

SETTINGS, LOG, CHECKPOINTS = "training.json", "log.jsonl", "checkpoints"
MAY_CHANGE = ("steps", "save_every", "save_minutes", "keep_checkpoints", "patience")


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a training; raises ValueError if the file holds something else."""
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = settings["training.steps"], settings["tokenizer"]
        return settings
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path} does not hold the settings of a training: take another folder"
        raise ValueError(message) from error


def begin_in_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings in an empty folder, or check that they are those of the training there.

    Raises FileExistsError if the folder belongs to something else, ValueError for other settings.
    """
    path = folder / SETTINGS
    others = [p.name for p in folder.iterdir() if p.name != ".lock" and p.suffix != ".tsv"]
    if others and not path.exists():
        found = ", ".join(sorted(others)[:3])
        raise FileExistsError(f"{folder} is no training, it holds {found}: take another folder")
    before = read_settings(path) if path.exists() else settings
    begun = last_checkpoint(folder) or (folder / WEIGHTS).exists()
    for name in {**before, **settings} if begun else ():
        if name.removeprefix("training.") in MAY_CHANGE or before.get(name) == settings.get(name):
            continue
        raise ValueError(
            f"{folder} holds a training with {name}={before.get(name)}, not {settings.get(name)}: "
            "repeat its settings to continue it, or take another folder"
        )
    write_text(path, json.dumps(settings, indent=2))


def checkpoints(folder: Path, kind: str = "step") -> list[Path]:
    """Return the checkpoints of a training, oldest first; kind is step (regular) or stop."""
    return sorted((folder / CHECKPOINTS).glob(f"{kind}-{'[0-9]' * 8}.pt"))


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to continue from, if there is one."""
    found = [*checkpoints(folder), *checkpoints(folder, "stop")]
    return max(found, key=lambda path: path.stem[-8:], default=None)


def save_checkpoint(folder: Path, content: dict[str, Any], regular: bool, keep: int) -> None:
    """Write a checkpoint, whole or not at all; the last `keep` regular ones stay.

    One that is not regular, written after a signal or some minutes, stays until the next.
    """
    path = folder / CHECKPOINTS / f"{'step' if regular else 'stop'}-{content['step']:08}.pt"
    with atomic_write(path) as aside:
        torch.save(content, aside)
    for old in [*checkpoints(folder)[:-keep], *checkpoints(folder, "stop")]:
        if old != path:
            old.unlink()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, which cannot run code; raises ValueError if the file is not one."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if content["step"] != int(path.stem[-8:]):
            raise ValueError(f"it is of step {content['step']}")
        return content
    except Exception as error:  # torch.load raises many kinds
        raise ValueError(f"{path} is not a whole checkpoint ({error}): move it away") from error


def begin_log(folder: Path, step: int, processes: int) -> None:
    """Forget what the log holds of later steps, and note what the numbers depend on."""
    path = folder / LOG
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
    write_text(path, "".join(f"{line}\n" for line in kept))
    where = {"torch": torch.__version__, "machine": platform.machine(), "processes": processes}
    write_log(folder, {"step": step, **where, "threads": torch.get_num_threads()})


def write_log(folder: Path, record: dict[str, Any]) -> None:
    """Append a line with the time of day to the log; values that are None are left out."""
    record = {**record, "time": time.strftime("%Y-%m-%d %H:%M:%S%z")}
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps({k: v for k, v in record.items() if v is not None}) + "\n")


def average_checkpoints(folder: str | Path, last: int = 5) -> tuple[Transformer, Tokenizer]:
    """Return the model whose weights are the mean of the last checkpoints (section 6.1).

    Raises FileNotFoundError if the folder of the training has fewer.
    """
    found = checkpoints(Path(folder))
    if not 0 < last <= len(found):
        raise FileNotFoundError(f"{folder} has {len(found)} checkpoints, {last} were asked for")
    contents = [read_checkpoint(path) for path in found[-last:]]
    model = Transformer(TransformerConfig(**contents[0]["config"]))
    for name, weights in model.state_dict().items():
        weights.copy_(sum(content["model"][name].double() for content in contents) / last)
    return model.eval(), Tokenizer.from_json(contents[0]["tokenizer"])
