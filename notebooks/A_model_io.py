# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

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
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.presets import make_config
from annotated_transformer.transformer import Transformer, TransformerConfig

# %% [markdown]
# ## Whole or not at all
#
# A process can be killed in the middle of writing a file, and half a file is worse than none. So we write under another name, flush to disk, and rename, which is a single step for the file system. The same works for a folder that doesn't exist yet. Whatever else in the book must survive a kill uses this: checkpoints, prepared corpora, exports. A killed process leaves `NAME.PID.unfinished` behind, with the number of the process. The next command that writes the same file or folder removes its own of these and no others, and you can delete the rest. It can't know whether their writer is still at work; such a writer ends with an error that says so.
#
# Several files that belong together are all written aside before the first of them gets its name. A disk that is full then leaves the old ones as they were.
#
# Two processes that write into one folder would destroy each other's work, so a folder can be locked. The operating system releases the lock when its holder ends, even if it was killed.


# %% tags=["export"]
class DiskFull(OSError):
    """There was no space left to write a file, which the message names."""


FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def naming_a_full_disk(path: Path) -> Iterator[None]:
    """Raise DiskFull, which names the file, where the block fails because the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise DiskFull(f"there is no space left to write {path}") from error
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write a file or folder to; it gets its name at the end, whole, or not at all.

    An existing file is replaced. Raises BlockingIOError for a folder that is there and not empty,
    and if another process, which writes the same, has removed what was half-written; DiskFull for
    a full disk.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with naming_a_full_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield aside
            for written in (aside, *aside.rglob("*")):
                if written.is_file():
                    with written.open("r+b") as file:
                        os.fsync(file.fileno())
            aside.replace(path)
    except OSError as error:
        is_own = Path(str(error.filename)).is_relative_to(aside)
        if is_own and error.errno in (errno.ENOENT, errno.ENOTEMPTY):
            raise BlockingIOError(
                f"another process writes {path} at the same time: wait for it, "
                "or take another name"
            ) from error
        raise
    finally:
        remove(aside)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder: all of them aside first, then they get their names, in order.

    So a full disk, which raises DiskFull, changes none of them.
    """
    with ExitStack() as renamings:
        for name in reversed([*contents]):  # the last one is renamed first
            aside = renamings.enter_context(atomic_write(folder / name))
            aside.write_bytes(contents[name])


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)


def half_written(folder: Path) -> list[tuple[Path, str]]:
    """Return what killed processes left unfinished in a folder, and the name each was to get."""
    leftovers = []
    for path in folder.glob("*.unfinished"):
        match = re.fullmatch(r"(.+)\.[0-9]+\.unfinished", path.name, re.DOTALL)
        if match:
            leftovers.append((path, match[1]))
    return leftovers


def clear(folder: Path, name: str) -> None:
    """Remove what killed processes left half-written in a folder of the file with this name."""
    for path, intended_name in half_written(folder):
        if intended_name == name:
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
# The weights go into a **safetensors** file, which holds names, shapes and numbers, and nothing that can run. (A pickle, which `torch.save` writes, is a program: [loading one can run it](I_run_folder.ipynb#checkpoints).) Its header also records which tokenizer and which configuration the weights belong to, so three files from different models are refused instead of loaded. `save` writes these two notes in any order; we put them into one, so that equal models are equal files.
#
# A `config.json` that is damaged or malicious may claim any size. So the tensors in the file are compared with those that the configuration asks for, by name, number and shape, before anything is built. The one thing that a model has and the file hasn't is the table of sinusoids, and [its size is limited](M_presets.ipynb#checks).
#
# A file that was cut off is noticed. A number that has changed within the weights, on a bad disk say, is not: if you archive models, keep a checksum of the files.

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
    # The library wants each tensor in memory of its own, row after row
    apart = {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    raw = save(apart, notes)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = notes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    return raw[:8] + text.encode().ljust(length) + raw[8 + length :]


def half_precision(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in 16 bits; raises ValueError for one that does not fit into their range."""
    halves = {name: tensor.half() for name, tensor in weights.items()}
    for name, half in halves.items():
        if not half.isfinite().all():
            largest = weights[name].abs().max()
            raise ValueError(
                f"{name} has a weight of {largest:.3g}, half precision ends at 65504: "
                "store the whole precision"
            )
    return halves


def model_files(
    model: Transformer, tokenizer: Tokenizer, half: bool = False
) -> dict[str, bytes]:
    """Return the content of the files of a model, by name; `half` stores 16-bit weights.

    Raises ValueError if the tokenizer has ids for which the model has no embedding, for a weight
    beyond the range of half precision, and what `build_model` raises for what could not be loaded.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    check_vocabulary(model, tokenizer)
    weights = model.state_dict()
    check_weights(make_config(asdict(model.config)), weights)
    if half:
        weights = half_precision(weights)
    config = json.dumps(asdict(model.config), indent=2)
    notes = {"tokenizer": tokenizer_hash(tokenizer), "config": config}
    return {
        WEIGHTS: safetensors_file(weights, notes),
        TOKENIZER: tokenizer.text.encode(),
        CONFIG: config.encode(),
    }


def save_model(
    model: Transformer, tokenizer: Tokenizer, folder: str | Path, half: bool = False
) -> None:
    """Write configuration, tokenizer and weights into a folder; `half` stores 16-bit weights.

    Raises what `model_files` raises; DiskFull if there is no space left, and what was in the folder
    is as it was.
    """
    write_files(Path(folder), model_files(model, tokenizer, half))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the notes of a safetensors file; raises ValueError if it is not one."""
    # Of a file that may not be read, safe_open would say that it isn't there
    path.open("rb").close()
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


def weight_shapes(config: TransformerConfig) -> Iterator[tuple[str, torch.Size]]:
    """Yield name and shape of each weight of a model; one layer of it is built, without memory."""
    with torch.device("meta"):
        one_layer = Transformer(replace(config, layers=1))
    for name, tensor in one_layer.state_dict().items():
        layers = config.layers if ".layers.0." in name else 1
        for layer in range(layers):
            yield name.replace(".layers.0.", f".layers.{layer}."), tensor.shape


def check_weights(config: TransformerConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError if these are not the weights of a model of this configuration.

    It takes no longer than the weights are many, whatever the configuration claims.
    """
    count = 0
    for name, shape in weight_shapes(config):
        if name not in weights:
            raise ValueError(f"there is no {name}")
        if weights[name].shape != shape:
            sizes = f"{list(weights[name].shape)}, not {list(shape)}"
            raise ValueError(f"the shape of {name} is {sizes}")
        if not weights[name].is_floating_point():
            raise ValueError(f"{name} has numbers of type {weights[name].dtype}")
        if weights[name].is_meta or weights[name].layout != torch.strided:
            raise ValueError(f"{name} has no numbers, or not all of them")
        count += 1
    if count < len(weights):
        raise ValueError(f"there are {len(weights)} tensors, not {count}")


def build_model(
    config_fields: dict[str, Any], weights: Mapping[str, Tensor]
) -> Transformer:
    """Return the model that a configuration describes, with these weights; compares them first.

    Raises RuntimeError, TypeError or ValueError if they do not fit.
    """
    config = make_config(config_fields)
    check_weights(config, weights)
    model = Transformer(config)
    model.load_state_dict(weights)
    return model


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of a tokenizer's JSON, which tells it from any other."""
    return hashlib.sha256(tokenizer.text.encode()).hexdigest()


def weights_hash(model: Transformer) -> str:
    """Return the SHA-256 of a model's weights: the same for every copy of it, wherever it lies."""
    digest = hashlib.sha256()
    for name, weights in model.state_dict().items():
        digest.update(name.encode())
        digest.update(weights.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer from its JSON; raises ValueError if the file is something else."""
    text = Path(path).read_bytes().decode(errors="replace")
    try:
        return Tokenizer(text)
    except ValueError as error:
        raise ValueError(f"{path} is {error}") from error


def load_model(folder: str | Path) -> tuple[Transformer, Tokenizer]:
    """Read what `save_model` wrote; the model is in evaluation mode.

    Raises FileNotFoundError if a file is missing, ValueError if one is cut off or something else,
    or if they do not belong together. A number that has changed within the weights is not noticed.
    """
    folder = Path(folder)
    names = (WEIGHTS, CONFIG, TOKENIZER)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} holds no model: {', '.join(missing)} missing"
        )
    config_text = (folder / CONFIG).read_text(encoding="utf-8", errors="replace")
    tokenizer = load_tokenizer(folder / TOKENIZER)
    weights, notes = read_tensors(folder / WEIGHTS)
    present = {"tokenizer": tokenizer_hash(tokenizer), "config": config_text}
    different = [name for name in present if notes.get(name) != present[name]]
    if different:
        raise ValueError(
            f"{folder / WEIGHTS} was trained with another {' and '.join(different)}"
        )
    try:
        model = build_model(json.loads(config_text), weights)
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
#
# Where a command takes the folder or the name of a model, a folder that holds one goes first: a model of yours in a folder `captions-de-en` is taken, and the package's only where there is no such folder.


# %% tags=["export"]
PRETRAINED = Path(str(files("annotated_transformer"))) / "pretrained"


def pretrained_names() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(entry.name for entry in PRETRAINED.iterdir() if entry.is_dir())


def load_pretrained(name: str = "everyday-de-en") -> tuple[Transformer, Tokenizer]:
    """Read a trained model that comes with the package, in evaluation mode.

    Raises ValueError if there is none of that name.
    """
    names = pretrained_names()
    if name not in names:
        raise ValueError(
            f'there is no model "{name}"; the package has: {", ".join(names)}'
        )
    return load_model(PRETRAINED / name)


def load_by_name(name: str | Path) -> tuple[Transformer, Tokenizer]:
    """Read a model by its folder, or by its name one that comes with the package.

    A folder goes first if it holds weights; then a model of the package. Raises what `load_model`
    raises for a folder, and ValueError for a name that is neither.
    """
    folder = Path(name)
    is_in_package = str(name) in pretrained_names()
    if folder.exists() and ((folder / WEIGHTS).exists() or not is_in_package):
        return load_model(folder)
    return load_pretrained(str(name))


# %%
model, tokenizer = load_pretrained()
print(
    f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens"
)
