"""What questions, messages and remedies say of this package holds."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.files import load_pretrained
from annotated_transformer.masks import EOS, PAD
from annotated_transformer.multi_head_attention import split_heads
from annotated_transformer.own_data import MissingData, multi30k
from annotated_transformer.transformer import Transformer, parameter_count, preset
from tools.chapters import ROOT

SAID, REMEDIES, MESSAGES = (
    (ROOT / "book" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("questions", "troubleshooting", "messages")
)


def captions(split: str, number: int = 300) -> list:
    try:
        return multi30k(split)[:number]
    except MissingData as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_losses_of_the_captions_model_with_and_without_dropout() -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    for split, training, told in (
        ("train", True, 1.22),
        ("train", False, 0.96),
        ("val", True, 1.68),
        ("val", False, 1.46),
    ):
        source, target = collate([*encode_pairs(tokenizer, captions(split))])
        torch.manual_seed(0)
        model.train(training)
        with torch.no_grad():
            logits = model(source, target[:, :-1])
        found = F.cross_entropy(logits.mT, target[:, 1:], ignore_index=PAD)
        assert abs(found - told) < 0.03 and f"{told:.2f}" in REMEDIES


def test_the_spread_of_scores_in_the_captions_model() -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    spreads: dict[nn.Module, list[float]] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], _: object) -> None:
        query = split_heads(module.query(inputs[0]), module.heads)
        key = split_heads(module.key(inputs[1]), module.heads)
        scores = query @ key.mT / query.size(-1) ** 0.5
        spreads.setdefault(module, []).append(scores.std(-1).mean().item())

    for layer in model.encoder.layers:
        layer.self_attention.register_forward_hook(note)
    for text in (
        "Zwei Hunde spielen im Schnee.",
        "Ein Mann fährt auf einem Fahrrad durch die Stadt.",
        "Eine Frau liest ein Buch im Park.",
        "Drei Kinder spielen Fußball auf einer Wiese.",
    ):
        model.encode(torch.tensor([[*tokenizer.encode(text), EOS]]))
    found = [round(sum(layer) / len(layer)) for layer in spreads.values()]
    assert found == [13, 2, 2]
    assert "spread by 13 in the first layer of the encoder, and by about 2 in" in SAID


def test_counts() -> None:
    a_table = 37_000 * 512 / 1e6
    rest = parameter_count(preset("base")) / 1e6 - a_table
    one, two, three = (f"{rest + tables * a_table:.1f}" for tables in (1, 2, 3))
    assert f"{rest:.1f} million. The rest" in SAID
    assert f"makes {one} million with one table, {two} with two and {three} " in SAID


@pytest.mark.parametrize(
    "pre_norm, told", [(True, (0.45, 0.01)), (False, (0.15, 0.15))]
)
def test_what_the_factor_of_the_embedding_does_without_positions(
    pre_norm: bool, told: tuple[float, float]
) -> None:
    """An untrained encoder of base: how much of a word is left at the top, with the factor."""
    for factor, cosine in zip((512**0.5, 1.0), told):
        torch.manual_seed(0)
        config = preset("base", vocabulary_size=1000, pre_norm=pre_norm, dropout=0.0)
        model = Transformer(config)
        model.embedding.scale = factor
        with torch.no_grad():
            words = model.embedding(torch.randint(4, 1000, (8, 25)))
            left = F.cosine_similarity(model.encoder(words), words, dim=-1).mean()
            if pre_norm:
                first = model.encoder.layers[0]
                normed = first.residuals[0].norm(words)
                added = first.self_attention(normed, normed, normed)
                assert round(added.std().item(), 1) == 0.3
        assert abs(left - cosine) < 0.02 and f"{cosine:.2f}" in SAID


def test_our_messages_are_ours() -> None:
    """What is said to be a message of the package is written by it."""
    folder = ROOT / "annotated_transformer"
    code = " ".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    code = re.sub(r"\{[^{}]*\}", "", re.sub(r'"\s*\n\s*f?"', "", code))
    ours = re.findall(r"^### (.*) \(ours\)$", MESSAGES, re.MULTILINE)
    assert len(ours) > 10
    for heading in ours:
        # The parts that don't change from case to case
        for part in re.findall(r"[^`…\"]{4,}", heading.split("`")[1]):
            assert part.strip(" ,;:") in code, part
