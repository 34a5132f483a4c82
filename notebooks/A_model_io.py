# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands

# %% [markdown]
# # Model files
#
# How a trained model is written into a folder and read back, so that a file is whole or not there at all, and nothing that is read can run code.
#
# A model folder holds three files: `config.json` (the sizes), `tokenizer.json`, and `model.safetensors` (the weights). `save_model` writes it, `load_model` reads it back, and `load_pretrained` opens a model that comes with the package.

# %%
import tempfile

from annotated_transformer import preset

# %% tags=["export"]
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.presets import make_config, parameter_count
from annotated_transformer.transformer import Transformer

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
        raise BlockingIOError(
            f"another process is working in {folder}: wait for it"
        ) from None


# %% [markdown]
# ## Saving and loading
#
# The weights go into a **safetensors** file, which holds names, shapes and numbers, and nothing that can run. (A pickle, which `torch.save` writes, is a program: [loading one can run it](I_run_folder.ipynb#checkpoints).) Its header also records which tokenizer and which configuration the weights belong to, so three files from different models are refused instead of loaded. `save` writes these two notes in any order; we put them into one, so that equal models are equal files. Before anything of the size that the configuration claims is built, the weights are counted: all that a damaged or malicious `config.json` can still ask for is a table of positions, a million rows at most and as wide as the stream.

# %% tags=["export"]
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"


def check_vocabulary(model: Transformer, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has ids for which the model has no embedding."""
    entries = model.config.vocabulary_size
    if len(tokenizer) > entries:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} entries, the model {entries}: "
            "build it with vocabulary_size=len(tokenizer)"
        )


def safetensors_file(tensors: dict[str, Tensor], notes: dict[str, str]) -> bytes:
    """Return the bytes of a safetensors file, in which the notes keep their order.

    Such a file is the length of its header in eight bytes, the header as JSON, padded with spaces,
    and the numbers. The library orders the notes by chance, so the header is written anew.
    """
    raw = save(tensors, notes)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = notes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    return raw[:8] + text.encode().ljust(length) + raw[8 + length :]


def save_model(
    model: Transformer, tokenizer: Tokenizer, folder: str | Path, half: bool = False
) -> None:
    """Write configuration, tokenizer and weights into a folder; `half` stores 16-bit weights.

    Raises ValueError if the tokenizer has ids for which the model has no embedding.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    check_vocabulary(model, tokenizer)
    weights = model.state_dict()
    if half:
        weights = {name: tensor.half() for name, tensor in weights.items()}
    config = json.dumps(asdict(model.config), indent=2)
    notes = {"tokenizer": tokenizer.sha256, "config": config}
    contents = {
        CONFIG: config.encode(),
        TOKENIZER: tokenizer.text.encode(),
        WEIGHTS: safetensors_file(weights, notes),
    }
    for name, content in contents.items():
        with atomic_write(Path(folder) / name) as aside:
            aside.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the notes of a safetensors file; raises ValueError if it is not one."""
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
            return tensors, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); other formats, "
            "such as pickles, are refused because they can run code"
        ) from error


def build_model(config_text: str, weights: Mapping[str, Tensor]) -> Transformer:
    """Return the model that a configuration describes, with these weights; counts them first.

    Raises RuntimeError, TypeError or ValueError if they do not fit.
    """
    config = make_config(json.loads(config_text))
    count = sum(tensor.numel() for tensor in weights.values())
    if parameter_count(config) != count:
        raise ValueError(f"a model of this shape has other than {count:,} weights")
    model = Transformer(config)
    model.load_state_dict(weights)
    return model


def load_model(folder: str | Path) -> tuple[Transformer, Tokenizer]:
    """Read what `save_model` wrote; the model is in evaluation mode.

    Raises FileNotFoundError if a file is missing, ValueError if one is damaged or they do not
    belong together. Before that, nothing of the size that the configuration claims is built,
    except the table of positions, which has a million rows at most.
    """
    folder = Path(folder)
    names = (WEIGHTS, CONFIG, TOKENIZER)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} holds no model: {', '.join(missing)} missing"
        )
    config_text = (folder / CONFIG).read_bytes().decode(errors="replace")
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    weights, notes = read_tensors(folder / WEIGHTS)
    present = {"tokenizer": tokenizer.sha256, "config": config_text}
    different = [name for name in present if notes.get(name) != present[name]]
    if different:
        raise ValueError(
            f"{folder / WEIGHTS} was trained with another {' and '.join(different)}"
        )
    try:
        model = build_model(config_text, weights)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / WEIGHTS} does not fit {CONFIG}: {error}"
        ) from error
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
        raise ValueError(
            f'there is no model "{name}"; the package has: {", ".join(names)}'
        )
    return load_model(home / name)


# %%
model, tokenizer = load_pretrained()
print(
    f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens"
)
