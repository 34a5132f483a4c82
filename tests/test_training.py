"""The loop makes the paper's updates: right mean, right rate, no bad gradient; and it learns."""

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.batching import Batch, batches, collate, encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import runs
from annotated_transformer.toolkit.presets import preset
from annotated_transformer.toolkit.run_folder import checkpoints, read_checkpoint
from annotated_transformer.toolkit.runs import TrainingConfig, train
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.training import (
    Group,
    group_batches,
    make_adam,
    training_step,
    validation_loss,
)
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    evaluating,
    greedy_decode,
)

PAIRS = grammar(300, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS)
SHAPE = TransformerConfig(
    len(TOKENIZER), layers=1, d_model=16, d_ff=32, heads=2, dropout=0.0
)
CONFIG = TrainingConfig(steps=8, max_tokens=150)


def make(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(SHAPE, **changes))


def group_of(*batches: Batch) -> Group:
    """One update's worth of batches."""
    (group,) = group_batches(batches, len(batches))
    return group


def flat(model: Transformer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# --- One update ---


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 11), max_size=4, unique=True))
def test_accumulated_batches_equal_the_large_one(cuts: list[int]) -> None:
    """One update over any cut of twelve sentences, a mean over real tokens, in double precision."""
    parts = [[*CORPUS][a:b] for a, b in pairwise([0, *sorted(cuts), 12])]
    after = []
    whole = group_of(collate([*CORPUS][:12]))
    for group in (whole, group_of(*(collate(part) for part in parts))):
        model = make().double()
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        update = training_step(SmoothedLoss(model), group, plain)
        after.append((update, flat(model)))
    torch.testing.assert_close(after[0][1], after[1][1], rtol=0, atol=1e-13)
    torch.testing.assert_close(after[0][0], after[1][0])
    model, batch = make().double(), collate([*CORPUS][:12])
    logits, labels = model(batch.source, batch.target[:, :-1]), batch.target[:, 1:]
    mean = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    mean.backward()
    moved = torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )
    torch.testing.assert_close(after[0][1], flat(model) - moved, rtol=0, atol=1e-13)
    loss, tokens, norm = after[0][0]
    assert tokens == (labels != PAD).sum()
    torch.testing.assert_close(loss / tokens, mean.detach())
    torch.testing.assert_close(norm, moved.norm())


def test_gradients_of_before_do_not_count() -> None:
    after = []
    for stale in (None, 7.0):
        model, batch = make(), collate([*CORPUS][:8])
        for parameter in model.parameters():
            parameter.grad = (
                None if stale is None else torch.full_like(parameter, stale)
            )
        training_step(SmoothedLoss(model), group_of(batch), make_adam(model))
        after.append(flat(model))
    assert torch.equal(*after)


def test_clipping_shortens_long_gradients_only() -> None:
    norms = []
    for clip in (None, 0.01, 1e6):
        model, batch = make(), collate([*CORPUS][:8])
        adam = torch.optim.Adam(model.parameters(), fused=True)
        update = training_step(SmoothedLoss(model), group_of(batch), adam, clip)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norms.append(
            (
                float(update.gradient_norm),
                float(torch.nn.utils.get_total_norm(gradients)),
            )
        )
    assert norms[0] == norms[2] and norms[0][0] == norms[0][1]
    assert norms[1][0] == norms[0][0] and norms[1][1] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    """Neither weights nor moments nor Adam's count of steps."""
    model, batch = make(), collate([*CORPUS][:8])
    adam = torch.optim.Adam(model.parameters(), fused=True)
    loss = SmoothedLoss(model)
    training_step(loss, group_of(batch), adam)
    before = [
        flat(model),
        *(x.clone() for s in adam.state.values() for x in s.values()),
    ]
    model.embedding.weight.register_hook(lambda gradient: gradient * bad)
    with pytest.raises(FloatingPointError, match="not finite, and was not used"):
        training_step(loss, group_of(batch), adam, grad_clip=1.0)
    after = [flat(model), *(x for s in adam.state.values() for x in s.values())]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_is_named_and_not_saved(
    tmp_path: Path, clip: float | None
) -> None:
    model, calls = make(), 0

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return gradient * torch.nan if calls == 23 else gradient

    model.decoder.layers[0].feed_forward.linear2.weight.register_hook(poison)
    config = replace(CONFIG, steps=100, save_every=10, grad_clip=clip)
    with pytest.raises(
        FloatingPointError, match=r"of step 23 is not finite.*grad_clip=1\.0"
    ):
        train(model, TOKENIZER, CORPUS, config, folder=tmp_path)
    assert [path.name for path in checkpoints(tmp_path)] == [
        "step-00000010.pt",
        "step-00000020.pt",
    ]
    saved = read_checkpoint(checkpoints(tmp_path)[-1])
    assert all(weights.isfinite().all() for weights in saved["model"].values())
    assert flat(model).isfinite().all()


# --- The loop ---


def test_a_training_is_decided_by_its_seed() -> None:
    def trained(seed: int) -> torch.Tensor:
        return flat(
            train(make(dropout=0.2), TOKENIZER, CORPUS, replace(CONFIG, seed=seed))
        )

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))


def test_pairs_may_come_as_text_or_as_ids() -> None:
    after = [flat(train(make(), TOKENIZER, given, CONFIG)) for given in (PAIRS, CORPUS)]
    assert torch.equal(*after)


def test_others_keep_their_random_numbers() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    model = make(dropout=0.3)
    torch.manual_seed(5)
    train(model, TOKENIZER, CORPUS, CONFIG, validation=PAIRS[:20])
    assert torch.equal(torch.rand(3), expected)


def test_a_score_may_do_to_mode_and_chance_what_it_likes() -> None:
    def careless(model: Transformer) -> float:
        model.eval()
        torch.manual_seed(99)
        return 0.0

    config = replace(CONFIG, save_every=2)
    one, other = (
        train(make(dropout=0.3), TOKENIZER, CORPUS, config, score=score)
        for score in (None, careless)
    )
    assert torch.equal(flat(one), flat(other)) and not one.training


def test_the_rate_is_equation_3_from_step_1_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "REPORT_EVERY", 1)
    lines: list[dict[str, Any]] = []
    config = replace(CONFIG, warmup=4, lr_scale=0.7, grad_accum_steps=2)
    train(make(), TOKENIZER, CORPUS, config, report=lines.append)
    expected = [learning_rate(step, SHAPE.d_model, 4, 0.7) for step in range(1, 9)]
    assert [line["learning_rate"] for line in lines] == expected


def test_what_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over tokens since the last report, and where in the corpus the training is."""
    reports: list[list[dict[str, Any]]] = []
    for every in (1, 4):
        monkeypatch.setattr(runs, "REPORT_EVERY", every)
        reports.append([])
        model = train(make(), TOKENIZER, CORPUS, CONFIG, report=reports[-1].append)
        assert not model.training
    each, mean = reports
    assert [line["step"] for line in mean] == [4, 8]
    assert mean[0]["gradient_norm"] == pytest.approx(
        sum(x["gradient_norm"] for x in each[:4]) / 4
    )
    epoch = [*batches(CORPUS, CONFIG.max_tokens)]
    tokens = [int((batch.target[:, 1:] != PAD).sum()) for batch in epoch]
    total = sum(line["loss"] * count for line, count in zip(each[:4], tokens))
    assert mean[0]["loss"] == pytest.approx(total / sum(tokens[:4]))
    assert [line["epoch"] for line in mean] == [
        round(n / len(epoch), 3) for n in (4, 8)
    ]


def test_a_long_training_without_a_folder_reports_no_more_often() -> None:
    """The minutes after which the state is saved are over; there is nowhere to save it."""
    lines: list[dict[str, Any]] = []
    config = replace(CONFIG, steps=60, save_minutes=1e-9)
    train(make(), TOKENIZER, CORPUS, config, report=lines.append)
    assert [line["step"] for line in lines] == [50, 60]


def test_the_validation_loss_is_the_plain_one() -> None:
    """Hard labels, no dropout, a mean over all tokens, whatever the batches."""
    model, losses, tokens = make(dropout=0.5), 0.0, 0
    with evaluating(model):
        for source, target in CORPUS:
            source, target = (
                torch.from_numpy(side).long()[None] for side in (source, target)
            )
            logits = model(source, target[:, :-1])[0].double()
            losses += F.cross_entropy(logits, target[0, 1:], reduction="sum").item()
            tokens += len(target[0]) - 1
    for max_tokens in (150, 1000):
        found = validation_loss(model, CORPUS, max_tokens)
        assert found == pytest.approx(losses / tokens, rel=1e-6)
    assert model.training


def test_frozen_weights_stay(tmp_path: Path) -> None:
    """In a folder, too; and the training continues."""

    def frozen() -> Transformer:
        model = make()
        model.embedding.weight.requires_grad_(False)
        return model

    start = frozen().embedding.weight
    for steps in (4, 8):
        config = replace(CONFIG, steps=steps)
        model = train(frozen(), TOKENIZER, CORPUS, config, folder=tmp_path)
        assert torch.equal(model.embedding.weight, start)
    assert torch.equal(flat(model), flat(train(frozen(), TOKENIZER, CORPUS, config)))


def test_it_may_run_in_a_thread(tmp_path: Path) -> None:
    """Where no signal can be listened to."""
    models: list[Transformer] = []
    thread = threading.Thread(
        target=lambda: models.append(
            train(make(), TOKENIZER, CORPUS, CONFIG, folder=tmp_path)
        )
    )
    thread.start()
    thread.join()
    assert torch.equal(flat(models[0]), flat(train(make(), TOKENIZER, CORPUS, CONFIG)))


# --- Bad input ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be a whole number from 1 to 99,999,999, not 0"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"steps": 10**8}, "steps must"),
        ({"steps": True}, "steps must"),
        ({"max_tokens": -1}, "max_tokens must be a whole number from 1 to .*, not -1"),
        ({"max_tokens": 150.0}, "max_tokens must be a whole number .*, not 150.0"),
        ({"save_every": 0.5}, "save_every must"),
        ({"save_minutes": None}, "save_minutes must be a number above 0, not None"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must"),
        ({"grad_accum_steps": None}, "grad_accum_steps must"),
        ({"warmup": "200"}, "warmup must .*, not '200'"),
        ({"lr_scale": True}, "lr_scale must"),
        ({"lr_scale": torch.inf}, "lr_scale must"),
        ({"lr_scale": 0.0}, "lr_scale must"),
        ({"lr_scale": torch.nan}, "lr_scale must"),
        ({"grad_clip": 0.0}, "grad_clip must"),
        ({"patience": 0}, "patience must"),
        ({"patience": 2.5}, "patience must"),
        ({"seed": -1}, "seed must"),
        ({"seed": None}, "seed must"),
        ({"seed": 2**64}, "seed must"),
        (
            {"label_smoothing": 1.0},
            "label_smoothing must be a number from 0 to below 1, not 1.0",
        ),
        ({"label_smoothing": -0.1}, "label_smoothing must"),
    ],
)
def test_settings_that_cannot_work(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**change)
    TrainingConfig(seed=0, label_smoothing=0, lr_scale=1, patience=None, grad_clip=2)
    TrainingConfig(seed=2**63 - 1, steps=99_999_999, save_minutes=0.5)


LONG = Pair("Hund " * 2000, "dog")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": []}, "no sentence pairs"),
        ({"vocabulary_size": 290}, "300 entries, the model 290"),
        (
            {"max_length": 5},
            r"training pair 1 has \d+ tokens, the model's max_length allows 5: ",
        ),
        (
            {"pairs": [*PAIRS[:3], LONG]},
            r"training pair 4 has \d+ tokens, the model.* allows 1024",
        ),
        (
            {"max_tokens": 10},
            "training pair 1 has .* max_tokens allows 10: drop or split the pair, or raise max_",
        ),
        (
            {"validation": [*PAIRS[:2], LONG]},
            r"validation pair 3 has \d+ tokens, the model's max",
        ),
        ({"patience": 1}, "patience needs a loss to watch"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    config = {
        name: options.pop(name)
        for name in ("max_tokens", "patience")
        if name in options
    }
    pairs, validation = options.pop("pairs", PAIRS), options.pop("validation", ())
    with pytest.raises(ValueError, match=message):
        train(
            make(**options),
            TOKENIZER,
            pairs,
            replace(CONFIG, **config),
            validation=validation,
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_a_validation_pair_longer_than_a_batch_is_refused_at_the_start() -> None:
    widths = CORPUS.lengths.max(axis=1)
    short = [pair for pair, width in zip(PAIRS, widths) if width <= 30]
    first = int((widths > 30).argmax())
    message = (
        f"validation pair {first + 1} has {widths[first]} tokens, max_tokens allows 30"
    )
    with pytest.raises(ValueError, match=message):
        train(
            make(), TOKENIZER, short, replace(CONFIG, max_tokens=30), validation=PAIRS
        )


def test_the_loss_must_be_that_of_model_and_settings() -> None:
    model = make()
    for loss in (SmoothedLoss(make()), SmoothedLoss(model, label_smoothing=0.2)):
        with pytest.raises(
            ValueError, match="made with this model and the label_smoothing"
        ):
            train(model, TOKENIZER, CORPUS, CONFIG, loss=loss)


# --- Learning ---


def test_the_loss_falls() -> None:
    lines: list[dict[str, Any]] = []
    config = TrainingConfig(steps=150, max_tokens=300, warmup=50, lr_scale=0.5)
    train(make(), TOKENIZER, CORPUS, config, report=lines.append)
    assert lines[-1]["loss"] < lines[0]["loss"] - 1


@pytest.mark.slow
def test_a_tiny_model_learns_the_grammar() -> None:
    """BLEU above 90 on sentences that it has never seen, from the defaults."""
    pairs = grammar(20_300, seed=1)
    tokenizer = Tokenizer.train(pairs[:20_000], vocabulary_size=1500)
    torch.manual_seed(0)
    model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
    train(model, tokenizer, pairs[:20_000])
    held_out = pairs[20_000:]
    source = collate([*encode_pairs(tokenizer, held_out)]).source
    translations = [tokenizer.decode(row) for row in greedy_decode(model, source)]
    score = sacrebleu.corpus_bleu(
        translations, [[pair.target for pair in held_out]]
    ).score
    assert score > 90
