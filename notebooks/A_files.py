# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Model files
#
# How a trained model is written into a folder and read back, so that a file is whole or not there at all, and nothing that is read can run code.
#
# A model folder holds three files: `config.json` (the sizes), `tokenizer.json`, and `model.safetensors` (the weights). `save_model` writes it, `load_model` reads it back, and `load_pretrained` opens a model that comes with the package.

# %% tags=["export"]
import hashlib
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

from annotated_transformer.decoding import use_fused
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

# %% [markdown]
# ## Whole or not at all
#
# A process can be killed in the middle of writing a file, and half a file is worse than none. So we write under another name, flush to the disk, and rename, which is a single step for the file system. The same works for a folder that doesn't exist yet. Whatever else in the book must survive a kill uses this: checkpoints, prepared corpora, exports.


# %% tags=["export"]
@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write a file or a folder to; at the end it gets its name, or vanishes.

    A file that is there is replaced; a folder that is there must be empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.unfinished")
    remove(aside)  # what a killed process has left
    try:
        yield aside
        for written in (aside, *aside.rglob("*")):
            if written.is_file():
                with written.open("r+b") as file:
                    os.fsync(file.fileno())
        aside.replace(path)
    finally:
        remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)


# %% [markdown]
# Two processes that write to the same place would destroy each other's work, so a place can be locked. The operating system releases the lock when its holder ends, even if it was killed.


# %% tags=["export"]
@contextmanager
def only_one(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file; raises BlockingIOError, which says what is done, if another holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            yield
    except Timeout:
        raise BlockingIOError(f"another process {what}: wait for it") from None


# %% [markdown]
# ## Saving and loading
#
# The weights go into a **safetensors** file, which holds names, shapes and numbers, and nothing that can run. (A pickle, which `torch.save` writes, is a program: [loading one can run it](29_trainer.ipynb#checkpoints).) Its header also notes which tokenizer and which configuration the weights belong to, so files from different models are refused instead of loaded. All three files are written aside before the first of them gets its name; a disk that is full leaves the old ones as they were.
#
# A file that was cut off is noticed. A number that has changed within the weights, on a bad disk say, is not: if you archive models, keep a checksum of the files.


# %% tags=["export"]
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"


def sha256(text: str) -> str:
    """Return a hash that tells a text from any other."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_vocabulary(model: Transformer, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has ids for which the model has no embedding."""
    entries = model.config.vocabulary_size
    if len(tokenizer) > entries:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} entries, the model {entries}: "
            "build it with vocabulary_size=len(tokenizer)"
        )


def save_model(
    model: Transformer, tokenizer: Tokenizer, folder: str | Path, half: bool = False
) -> None:
    """Write configuration, tokenizer and weights into a folder; `half` stores 16-bit weights."""
    check_vocabulary(model, tokenizer)
    folder = Path(folder)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if half:
        weights = {name: tensor.half() for name, tensor in weights.items()}
    config = json.dumps(asdict(model.config), indent=2)
    notes = {"tokenizer": sha256(tokenizer.text), "config": config}
    with (
        atomic_write(folder / WEIGHTS) as weights_file,
        atomic_write(folder / TOKENIZER) as tokenizer_file,
        atomic_write(folder / CONFIG) as config_file,
    ):
        weights_file.write_bytes(save(weights, notes))
        tokenizer_file.write_text(tokenizer.text, encoding="utf-8")
        config_file.write_text(config, encoding="utf-8")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer from its JSON; raises ValueError if the file is something else."""
    try:
        return Tokenizer(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def load_model(folder: str | Path) -> tuple[Transformer, Tokenizer]:
    """Read a model from its folder, or by its name one of the package; in evaluation mode.

    Raises FileNotFoundError if a file is missing, ValueError if the files don't belong together or
    the weights are no whole safetensors file.
    """
    folder = Path(folder)
    if not (folder / WEIGHTS).exists() and str(folder) in pretrained_names():
        folder = PRETRAINED / folder
    for name in (CONFIG, TOKENIZER, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} holds no model, {name} is missing; "
                f"with the package come {', '.join(pretrained_names())}"
            )
    config = (folder / CONFIG).read_text(encoding="utf-8")
    tokenizer = load_tokenizer(folder / TOKENIZER)
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            notes = file.metadata()
            names = file.keys()
            weights = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(
            f"{folder / WEIGHTS} is no whole safetensors file ({error}); "
            "others are refused, since a pickle can run code"
        ) from error
    if notes != {"tokenizer": sha256(tokenizer.text), "config": config}:
        raise ValueError(f"{folder} holds the files of different models")
    model = Transformer(TransformerConfig(**json.loads(config)))
    model.load_state_dict(weights)
    check_vocabulary(model, tokenizer)
    use_fused(model)
    return model.eval(), tokenizer


# %% [markdown]
# ## Models that come with the package
#
# There are three: `everyday-de-en`, the default, `everyday-en-de`, and `captions-de-en`. Each has a card beside it, `README.md`, with its data, command and scores. Where a command takes a model, a folder of yours goes first: the package's model is taken only if there is none of that name.


# %% tags=["export"]
PRETRAINED = Path(str(files("annotated_transformer"))) / "pretrained"


def pretrained_names() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(entry.name for entry in PRETRAINED.iterdir() if entry.is_dir())


def load_pretrained(name: str = "everyday-de-en") -> tuple[Transformer, Tokenizer]:
    """Read a trained model that comes with the package, in evaluation mode."""
    if name not in pretrained_names():
        raise ValueError(f'no model "{name}": take one of {pretrained_names()}')
    return load_model(PRETRAINED / name)


# %%
import tempfile

model, tokenizer = load_pretrained("captions-de-en")
with tempfile.TemporaryDirectory() as folder:
    save_model(model, tokenizer, folder)
    again, _ = load_model(folder)
    print(*sorted(path.name for path in Path(folder).iterdir()))
same = [bool((a == b).all()) for a, b in zip(model.parameters(), again.parameters())]
print(f"{sum(same)} of {len(same)} tensors read back to the bit")
