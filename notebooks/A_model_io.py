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
# # Model files
#
# How a trained model is written into a folder and read back, so that a file is whole or not there at all, and nothing that is read can run code.
#
# A model folder holds three files: `config.json` (the sizes), `tokenizer.json`, and `model.safetensors` (the weights). `save_model` writes it, `load_model` reads it back, and `load_pretrained` opens a model that comes with the package.

# %%
import tempfile

from annotated_transformer.transformer import preset

# %% tags=["export"]
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, parameter_count

# %% [markdown]
# ## Whole or not at all
#
# A process can be killed in the middle of writing a file, and half a file is worse than none. So we write under another name, flush to disk, and rename, which is a single step for the file system. The same works for a folder that doesn't exist yet. Whatever else in the book must survive a kill uses this: checkpoints, prepared corpora, exports. Whatever a killed process leaves behind ends in `.unfinished`; the next training run or `prepare` there removes its own, and you can delete the rest.
#
# Two processes that write into one folder would destroy each other's work, so a folder can be locked. The operating system releases the lock when its holder ends, even if it was killed.


# %% tags=["export"]
@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write a file or folder to; it gets its name at the end, whole, or not at all.

    An existing file is replaced; an existing folder that is not empty raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        yield aside
        for file in [p for p in (aside, *aside.rglob("*")) if p.is_file()]:
            with file.open("r+b") as written:
                os.fsync(written.fileno())
        aside.replace(path)
    finally:
        remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)


def clear(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left half-written in a folder, of one name or of all."""
    for path in folder.glob(f"{name}.[0-9]*.unfinished"):
        remove(path)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep a folder for this process alone; made if it is not there.

    The operating system drops the lock when the process ends, however it ends. Raises
    BlockingIOError if another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise BlockingIOError(f"another process is working in {folder}: wait for it") from None


# %% [markdown]
# ## Saving and loading
#
# The weights go into a **safetensors** file, which holds names, shapes and numbers, and nothing that can run. (A pickle, which `torch.save` writes, is a program: [loading one can run it](I_run_folder.ipynb#checkpoints).) Its header also records which tokenizer and which configuration the weights belong to, so three files from different models are refused instead of loaded. `save` writes these two notes in any order; we put them into one, so that equal models are equal files. Before anything of the size that the configuration claims is built, the weights are counted: all that a damaged or malicious `config.json` can still ask for is a table of positions, a million rows at most and as wide as the stream.

# %% tags=["export"]
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def check_vocabulary(model: Transformer, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has ids for which the model has no embedding."""
    if len(tokenizer) > (known := model.config.vocabulary_size):
        sizes = f"the tokenizer has {len(tokenizer)} entries, the model {known}"
        raise ValueError(f"{sizes}: build it with vocabulary_size=len(tokenizer)")


def save_model(
    model: Transformer, tokenizer: Tokenizer, folder: str | Path, half: bool = False
) -> None:
    """Write configuration, tokenizer and weights into a folder; `half` stores 16-bit weights.

    Raises ValueError if the tokenizer has ids for which the model has no embedding.
    """
    check_vocabulary(model := getattr(model, "_orig_mod", model), tokenizer)  # compiled or not
    config = json.dumps(asdict(model.config), indent=2)
    notes = {"tokenizer": tokenizer.sha256, "config": config}
    raw = save({n: t.half() if half else t for n, t in model.state_dict().items()}, notes)
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end]) | {"__metadata__": notes}  # which `save` orders by chance
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(end - 8)
    contents = {CONFIG: config.encode(), TOKENIZER: tokenizer.text.encode()}
    for name, content in {**contents, WEIGHTS: raw[:8] + text + raw[end:]}.items():
        with atomic_write(Path(folder) / name) as aside:
            aside.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the notes of a safetensors file; raises ValueError if it is not one."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        why = "other formats, such as pickles, are refused because they can run code"
        raise ValueError(f"{path} is not a whole safetensors file ({error}); {why}") from error


def load_model(folder: str | Path) -> tuple[Transformer, Tokenizer]:
    """Read what `save_model` wrote; the model is in evaluation mode.

    Raises FileNotFoundError if a file is missing, ValueError if one is damaged or they do not
    belong together. Before that, nothing of the size that the configuration claims is built,
    except the table of positions, which has a million rows at most.
    """
    folder = Path(folder)
    if missing := [n for n in (WEIGHTS, CONFIG, TOKENIZER) if not (folder / n).is_file()]:
        raise FileNotFoundError(f"{folder} holds no model: {', '.join(missing)} missing")
    text = (folder / CONFIG).read_bytes().decode(errors="replace")
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    weights, notes = read_tensors(folder / WEIGHTS)
    beside = {"tokenizer": tokenizer.sha256, "config": text}
    if strange := [name for name, value in beside.items() if notes.get(name) != value]:
        raise ValueError(f"{folder / WEIGHTS} was trained with another {' and '.join(strange)}")
    try:
        config = TransformerConfig(**json.loads(text))
        if parameter_count(config) != (found := sum(t.numel() for t in weights.values())):
            raise ValueError(f"a model of this shape has other than {found:,} weights")
        model = Transformer(config)
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / WEIGHTS} does not fit {CONFIG}: {error}") from error
    check_vocabulary(model, tokenizer)
    return model.eval(), tokenizer


# %%
tokenizer = Tokenizer.train(["the black cat likes fish"], vocabulary_size=270)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer)))
with tempfile.TemporaryDirectory() as folder:
    save_model(model, tokenizer, folder)
    again, _ = load_model(folder)
    print(sorted(path.name for path in Path(folder).iterdir()))
same = [bool((a == b).all()) for a, b in zip(model.parameters(), again.parameters())]
print(f"{sum(same)} of {len(same)} tensors read back to the bit")

# %% [markdown]
# ## Models that come with the package
#
# There are three: `everyday-de-en`, the default, `everyday-en-de`, and `captions-de-en`. Each has a card beside it, `README.md`, with its data, command and scores.


# %% tags=["export"]
def load_pretrained(name: str = "everyday-de-en") -> tuple[Transformer, Tokenizer]:
    """Read a trained model that comes with the package, in evaluation mode.

    Raises ValueError if there is none of that name.
    """
    home = Path(str(files("annotated_transformer"))) / "pretrained"
    names = sorted(entry.name for entry in home.iterdir() if entry.is_dir())
    if name not in names:
        raise ValueError(f'there is no model "{name}"; the package has: {", ".join(names)}')
    return load_model(home / name)


# %%
model, tokenizer = load_pretrained()
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens")
