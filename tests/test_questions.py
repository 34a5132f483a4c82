"""What the page of questions says of this package: its models, its positions, its sizes."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.files import load_pretrained
from annotated_transformer.masks import EOS, PAD
from annotated_transformer.multi_head_attention import split_heads
from annotated_transformer.own_data import MissingData, multi30k
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.transformer import parameter_count, preset
from annotated_transformer.translation import translate
from tools.chapters import ROOT

SAID = (ROOT / "book" / "questions.md").read_text(encoding="utf-8")


def captions(split: str, number: int = 300) -> list:
    try:
        return multi30k(split)[:number]
    except MissingData as error:
        pytest.skip(str(error))


def test_a_period_more_or_less_changes_one_caption_in_five() -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    sources = [pair.source for pair in captions("test_2016_flickr")]
    whole = [source for source in sources if source.endswith(".")]
    assert f"took the period off {len(whole)} captions" in SAID
    written, other = (
        translate(model, tokenizer, lines, beam=1)
        for lines in (whole, [source[:-1] for source in whole])
    )
    changed = sum(a.rstrip(".") != b.rstrip(".") for a, b in zip(written, other))
    assert 0.15 < changed / len(whole) < 0.2  # "nearly one of five"


def test_quotes_and_single_words() -> None:
    model, tokenizer = load_pretrained("everyday-de-en")
    sources = ["Er sagte: „Ich komme morgen.“", "Er sagte: «Ich komme morgen.»", "Hund"]
    german, french, word = translate(model, tokenizer, sources)
    quoted = '"I\'ll come tomorrow."'
    assert german.endswith(quoted) and quoted in SAID
    assert french.endswith("I'll come tomorrow.") and '"' not in french
    assert word == "dog" and "answer *Hund* with *dog*" in SAID


def test_losses_of_the_captions_model_with_dropout_and_with_other_sources() -> None:
    model, tokenizer = load_pretrained("captions-de-en")

    def losses(split: str, shift: int = 0) -> torch.Tensor:
        pairs = encode_pairs(tokenizer, captions(split))
        source, target = collate([*pairs])
        with torch.no_grad():
            logits = model(source.roll(shift, 0), target[:, :-1])
        return F.cross_entropy(
            logits.mT, target[:, 1:], ignore_index=PAD, reduction="none"
        )

    for split, training, told in (
        ("train", True, 1.22),
        ("train", False, 0.96),
        ("val", True, 1.68),
        ("val", False, 1.46),
    ):
        torch.manual_seed(0)
        model.train(training)
        found = losses(split)
        assert abs(found[found > 0].mean() - told) < 0.03 and f"{told:.2f}" in SAID
    for shift, told in ((0, 0.56), (1, 4.81)):
        first_word = losses("val", shift)[:, 0].mean()
        assert f"{first_word:.2f}" == f"{told:.2f}" and f"{told:.2f}" in SAID


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


def test_places_and_counts() -> None:
    table = sinusoid(1024, 512).double()
    assert (table.norm(dim=1) - 16).abs().max() < 1e-4 and "its length is 16 at" in SAID
    distances = torch.cdist(table, table).fill_diagonal_(torch.inf)
    assert f"{distances.min():.1f}" == f"{distances[0, 1]:.1f}" == "3.7"
    assert SAID.count("3.7 apart") == 2
    a_table = 37_000 * 512 / 1e6
    rest = parameter_count(preset("base")) / 1e6 - a_table
    one, two, three = (f"{rest + tables * a_table:.1f}" for tables in (1, 2, 3))
    assert f"{rest:.1f} million. The rest" in SAID
    assert f"makes {one} million with one table, {two} with two and {three} " in SAID


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
@pytest.mark.parametrize("way", ["its own", "one thread"])
def test_a_forked_process_translates_with_a_model_of_its_own(way: str) -> None:
    """And one thread from the start lets it take its parent's, as the page says of servers."""
    assert "`torch.set_num_threads(1)` came before loading" in SAID
    code = """
import multiprocessing as mp
import sys

import torch
from annotated_transformer import load_pretrained, translate

def serve(queue, model_and_tokenizer):
    queue.put(translate(*(model_and_tokenizer or load_pretrained()), ["Guten Morgen!"]))

loaded = None
if sys.argv[1] == "one thread":
    torch.set_num_threads(1)
    loaded = load_pretrained()
context = mp.get_context("fork")
queue = context.Queue()
process = context.Process(target=serve, args=(queue, loaded), daemon=True)
process.start()
print(queue.get(timeout=120))
"""
    run = subprocess.run(
        [sys.executable, "-c", code, way],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
    )
    assert run.stdout == "['Good morning!']\n", run.stderr
