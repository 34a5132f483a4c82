"""What all tests share: one thread, how hard hypothesis tries, one small trained model."""

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

import annotated_transformer

torch.set_num_threads(1)

# `make test` takes ci, `make test-slow` nightly: --hypothesis-profile
settings.register_profile("ci", max_examples=30, derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=300, deadline=None)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def grammar_model():
    """A `tiny` model, its tokenizer, and the 4,000 pairs of the grammar that it was trained on.

    A third of new sentences come out right. It is trained once for the package as it is, by
    whichever process needs it first, and kept in the folder for temporary files. Do not change it.
    """
    from annotated_transformer import (
        Tokenizer,
        TrainingConfig,
        Transformer,
        grammar,
        load_model,
        preset,
        save_model,
        train,
    )

    pairs = grammar(4000, seed=1)
    package = Path(annotated_transformer.__file__).parent
    made_of = [Path(__file__), *sorted(package.glob("*.py"))]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in made_of)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"annotated-transformer-{os.getuid()}" / key
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not (folder / "model.safetensors").exists():  # written last
            tokenizer = Tokenizer.train(pairs, vocabulary_size=1500)
            torch.manual_seed(0)
            model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0))
            config = TrainingConfig(steps=250, max_tokens=768, warmup=60, lr_scale=0.4)
            save_model(train(model, tokenizer, pairs, config), tokenizer, folder)
        model, tokenizer = load_model(folder)
    return model, tokenizer, pairs
