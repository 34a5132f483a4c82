"""Training learns, a model survives the disk, and nothing but a model is taken for one."""

import json
import pickle
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import annotated_transformer
from annotated_transformer.batching import Batch, collate, encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.decoding import translate
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import Objective, Progress, TrainingConfig, batch_loss, make_optimizer, train, training_step, atomic_write
from annotated_transformer.model_io import load_model, load_pretrained, save_model
from annotated_transformer.transformer import Transformer, TransformerConfig, preset

PAIRS = grammar(400, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=400)
SHAPE = TransformerConfig(
    vocabulary_size=len(TOKENIZER), layers=1, d_model=16, d_ff=32, heads=2, dropout=0.0
)


def make(shape: TransformerConfig = SHAPE) -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape)


# --- Learning ---


def test_a_tiny_model_learns_the_grammar() -> None:
    """BLEU above 90 on sentences that it has never seen, from the defaults, within a minute."""
    pairs = grammar(20_300, seed=1)
    tokenizer = Tokenizer.train(pairs[:20_000], vocabulary_size=1500)
    torch.manual_seed(0)
    model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
    train(model, tokenizer, pairs[:20_000])
    held_out = pairs[20_000:]
    translations = translate(model, tokenizer, [pair.source for pair in held_out])
    score = sacrebleu.corpus_bleu(translations, [[pair.target for pair in held_out]]).score
    assert score > 90


def test_training_is_decided_by_its_seeds() -> None:
    first, second = (
        train(make(replace(SHAPE, dropout=0.1)), TOKENIZER, PAIRS, TrainingConfig(steps=8))
        for _ in range(2)
    )
    for name, weights in first.state_dict().items():
        torch.testing.assert_close(weights, second.state_dict()[name])


def test_training_reports_and_ends_in_evaluation_mode() -> None:
    seen: list[Progress] = []
    model = train(make(), TOKENIZER, PAIRS, TrainingConfig(steps=150), report=seen.append)
    assert [progress.step for progress in seen] == [50, 100, 150]
    assert seen[-1].loss < seen[0].loss
    assert not model.training


def test_a_step_counts_every_token_alike() -> None:
    """A batch's loss is the sum of its sentences' losses, whatever the padding."""
    model, examples = make().double(), encode_pairs(TOKENIZER, PAIRS[:7])
    loss, tokens = batch_loss(model, collate(examples), 0.1)
    alone = [batch_loss(model, collate([example]), 0.1) for example in examples]
    torch.testing.assert_close(loss, sum(part for part, _ in alone))
    assert tokens == sum(number for _, number in alone)
    assert tokens == sum(len(example.target) - 1 for example in examples)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 11), max_size=4, unique=True))
def test_accumulated_batches_equal_the_large_one(cuts: list[int]) -> None:
    examples = encode_pairs(TOKENIZER, PAIRS[:12])
    borders = [0, *sorted(cuts), 12]
    parts = [collate(examples[start:stop]) for start, stop in pairwise(borders)]
    after = []
    for group in ([collate(examples)], parts):
        model = make().double()
        plain = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
        step = training_step(Objective(model, 0.1), group, plain)  # type: ignore[arg-type]
        after.append((step, torch.cat([p.detach().flatten() for p in model.parameters()])))
    torch.testing.assert_close(after[0][1], after[1][1], rtol=0, atol=1e-13)
    assert after[0][0].tokens == after[1][0].tokens
    torch.testing.assert_close(after[0][0].norm, after[1][0].norm)


def test_clipping_shortens_long_gradients_only() -> None:
    batch = collate(encode_pairs(TOKENIZER, PAIRS[:8]))
    norms = []
    for clip in (None, 0.01, 1e6):
        model = make()
        step = training_step(Objective(model, 0.1), [batch], make_optimizer(model), clip)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norms.append((float(step.norm), float(torch.nn.utils.get_total_norm(gradients))))
    assert norms[0] == norms[2] and norms[0][0] == norms[0][1]
    assert norms[1][0] == norms[0][0] and norms[1][1] == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_is_not_finite_is_reported_and_not_used() -> None:
    model, calls = make(), 0

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return gradient * torch.nan if calls == 23 else gradient

    model.decoder.layers[0].feed_forward.linear2.weight.register_hook(poison)
    with pytest.raises(FloatingPointError, match=r"gradient of step 23 is not finite.*grad_clip=1\.0"):
        train(model, TOKENIZER, PAIRS, TrainingConfig(steps=100))
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_training_leaves_the_random_numbers_of_others_alone() -> None:
    model = make(replace(SHAPE, dropout=0.3))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(model, TOKENIZER, PAIRS, TrainingConfig(steps=3))
    assert torch.equal(torch.rand(3), expected)


def test_the_model_does_not_see_the_answer() -> None:
    """Changing target word t changes the loss of no word before it."""
    model = make().double()
    source = torch.tensor([[5, 6, 2]])
    for t in range(1, 5):
        one, other = torch.tensor([[1, 7, 8, 9, 2]]), torch.tensor([[1, 7, 8, 9, 2]])
        other[0, t] = 11
        for shorter in range(2, t + 1):
            before = [
                batch_loss(model, Batch(source, x[:, :shorter]), 0.1)[0] for x in (one, other)
            ]
            assert before[0] == before[1]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.floats(0, 0.99))
def test_loss_equals_pytorch(seed: int, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 4, 9, generator=generator, dtype=torch.float64) * 5
    labels = torch.randint(0, 9, (2, 4), generator=generator)
    loss, tokens = label_smoothed_loss(logits, labels, smoothing)
    reference = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
    torch.testing.assert_close(loss, reference)
    assert tokens == (labels != PAD).sum()


# --- Bad input ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be above 0, not 0"),
        ({"max_tokens": -1}, "max_tokens must be above 0, not -1"),
        ({"factor": 0.0}, "factor must be above 0, not 0.0"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1, not 1.0"),
    ],
)
def test_a_training_that_cannot_work(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**change)  # type: ignore[arg-type]


def test_no_pairs_and_foreign_tokenizers_are_refused() -> None:
    with pytest.raises(ValueError, match="no sentence pairs"):
        train(make(), TOKENIZER, [])
    with pytest.raises(ValueError, match=r"400 entries, the model 300: .*len\(tokenizer\)"):
        train(make(replace(SHAPE, vocabulary_size=300)), TOKENIZER, PAIRS)


def test_a_pair_that_is_too_long_is_named_before_any_work() -> None:
    pairs = [*PAIRS[:3], Pair("Hund " * 10_000, "dog")]
    with pytest.raises(
        ValueError, match=r"training pair 4 has \d+ tokens, the model has 1024 positions"
    ):
        train(make(), TOKENIZER, pairs)
    short = make(replace(SHAPE, max_length=5))
    with pytest.raises(
        ValueError, match=r"training pair 1 has \d+ tokens, the model has 5 positions"
    ):
        train(short, TOKENIZER, PAIRS)
    with pytest.raises(ValueError, match=r"tokens, a batch only 10: .*allow more tokens a batch"):
        train(make(), TOKENIZER, PAIRS, TrainingConfig(max_tokens=10))


# --- On disk ---


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(make(), TOKENIZER, tmp_path)
    return tmp_path


def test_save_and_load(saved: Path) -> None:
    model, tokenizer = load_model(saved)
    assert model.config == SHAPE and not model.training
    for name, weights in make().state_dict().items():
        assert torch.equal(weights, model.state_dict()[name])
    assert tokenizer.encode(PAIRS[0].source) == TOKENIZER.encode(PAIRS[0].source)
    assert len(list(saved.iterdir())) == 3


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("maker", ["pickle", "torch"])
def test_a_pickle_is_refused_and_not_run(saved: Path, maker: str) -> None:
    mark, weights = saved / "it-ran", saved / "model.safetensors"
    if maker == "pickle":
        weights.write_bytes(pickle.dumps(Trap(mark)))
    else:
        torch.save({"trap": Trap(mark)}, weights)
    with pytest.raises(ValueError, match="pickles, are refused"):
        load_model(saved)
    assert not mark.exists()


def test_cut_off_weights_are_refused(saved: Path) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_model(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} missing"):
        load_model(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_ff": 64}, "another configuration"),
        ({"layers": 2}, "another configuration"),
        ({"heads": 5}, "not a model's configuration"),
        ({"colour": "red"}, "not a model's configuration.*colour"),
        ({"vocabulary_size": 300}, "400 entries, the model 300"),
    ],
)
def test_a_configuration_of_another_model(
    saved: Path, change: dict[str, object], message: str
) -> None:
    path = saved / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        load_model(saved)


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "3"])
def test_a_configuration_that_is_none(saved: Path, content: str) -> None:
    (saved / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is not a model's configuration"):
        load_model(saved)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="no space"), atomic_write(path) as aside:
        aside.write_bytes(b"ne")
        raise OSError("no space left on device")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_weights_know_their_tokenizer(saved: Path) -> None:
    Tokenizer.train(grammar(400, seed=1), vocabulary_size=400).save(saved / "tokenizer.json")
    with pytest.raises(ValueError, match="not the tokenizer that the model was trained with"):
        load_model(saved)


def test_half_precision_halves_the_file(tmp_path: Path) -> None:
    model = make()
    save_model(model, TOKENIZER, tmp_path / "whole")
    save_model(model, TOKENIZER, tmp_path / "half", half=True)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    again, _ = load_model(tmp_path / "half")
    for name, weights in model.state_dict().items():
        assert again.state_dict()[name].dtype == torch.float32
        torch.testing.assert_close(again.state_dict()[name], weights, rtol=1e-3, atol=1e-6)


def test_the_pretrained_model_is_small_and_whole() -> None:
    model, tokenizer = load_pretrained()
    assert not model.training and len(tokenizer) == model.config.vocabulary_size
    folder = Path(annotated_transformer.__file__).parent / "pretrained" / "multi30k-de-en"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12_000_000
    with pytest.raises(ValueError, match='no pretrained model "latin": take one of multi30k-de-en'):
        load_pretrained("latin")
