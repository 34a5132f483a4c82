"""What questions, messages and remedies say of this package and of PyTorch holds."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable

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


def test_answers_are_short_and_lead_somewhere() -> None:
    """About a hundred, each with a link to what shows it; twenty-five of them stand on top."""
    answers = re.findall(
        r"^\{#q-[\w-]+\}\n### [^\n]+\n\n(.*?)\n\n\{\.asked\}",
        SAID,
        re.MULTILINE | re.DOTALL,
    )
    assert 90 < len(answers) < 115
    for answer in answers:
        prose = re.sub(r"```.*?```|\]\([^)]*\)", "", answer, flags=re.DOTALL)
        assert len(prose.split()) < 105, answer
        assert "](" in answer or "{numref}" in answer, answer
    top = re.findall(r"^- \[\]\(#(q-[\w-]+)\)$", SAID, re.MULTILINE)
    assert len(set(top)) == 25 and all(f"{{#{name}}}" in SAID for name in top)


HEADINGS = re.findall(r"^### (.*)$", MESSAGES, re.MULTILINE)


def words_of(heading: str) -> list[str]:
    """Return the parts of a message that don't change from case to case."""
    return re.findall(r"[^`…\"]{4,}", heading.split("`")[1])


def test_messages_stand_in_order() -> None:
    """By their first letter; what changes in front of it doesn't count."""
    keys = [re.sub(r"^[^a-z0-9]+", "", heading.lower()) for heading in HEADINGS]
    assert keys == sorted(keys) and 60 < len(keys) < 100


def test_our_messages_are_ours() -> None:
    """What is said to be a message of the package is written by it."""
    folder = ROOT / "annotated_transformer"
    code = " ".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    code = re.sub(r"\{[^{}]*\}", "", re.sub(r'"\s*\n\s*f?"', "", code))
    ours = [heading for heading in HEADINGS if heading.endswith("(ours)")]
    assert len(ours) > 10
    for heading in ours:
        for part in words_of(heading):
            assert part.strip(" ,;:") in code, part


VECTORS, IDS = torch.zeros(2, 5, 8), torch.zeros(2, 5, dtype=torch.long)
SQUARE, PADDING = torch.zeros(5, 5), torch.zeros(2, 5, dtype=torch.bool)


def layer(**options: torch.Tensor) -> torch.Tensor:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)(VECTORS, **options)


def attention(inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return nn.MultiheadAttention(8, 2, batch_first=True)(inputs, inputs, inputs)


def weight() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def overwritten() -> None:
    result = weight().exp()
    result += 1
    result.sum().backward()


def twice() -> None:
    loss = weight().exp().sum()
    loss.backward()
    loss.backward()


def odd_width() -> None:
    torch.zeros(10, 7)[:, 1::2] = torch.zeros(10, 4)


def too_early() -> None:
    optimizer = torch.optim.Adam([weight()], 1.0)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0).step()


def step_zero() -> None:
    optimizer = torch.optim.Adam([weight()], 1.0)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step**-0.5)


def kept_from_inference() -> None:
    with torch.inference_mode():
        memory = torch.zeros(3)
    (weight() * memory).sum()


PROVOKED: dict[str, Callable[[], object]] = {
    "m-step-zero": step_zero,
    "m-leaf": lambda: weight().fill_(0),
    "m-bool-value": lambda: nn.CrossEntropyLoss(VECTORS, IDS),
    "m-numpy": lambda: weight().numpy(),
    "m-scheduler-order": too_early,
    "m-einsum": lambda: torch.einsum("bqd,bkd->bqk", VECTORS, torch.zeros(2, 5, 6)),
    "m-no-grad-fn": lambda: weight().argmax().backward(),
    "m-heads-divide": lambda: nn.MultiheadAttention(30, 8),
    "m-nested-tensor": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2), 1
    ),
    "m-probabilities": lambda: F.cross_entropy(VECTORS[0], IDS.new_zeros(5, 8)),
    "m-batch-size": lambda: F.cross_entropy(torch.zeros(20, 9), IDS.new_zeros(22)),
    "m-padding-shape": lambda: layer(src_key_padding_mask=PADDING.mT),
    "m-ragged": lambda: torch.tensor([[1, 2, 3], [1, 2]]),
    "m-target-size": lambda: F.cross_entropy(
        torch.zeros(2, 10, 37), IDS.new_zeros(2, 10)
    ),
    "m-indices-type": lambda: nn.Embedding(4, 2)(VECTORS),
    "m-explicit-mask": lambda: F.scaled_dot_product_attention(
        VECTORS, VECTORS, VECTORS, SQUARE, is_causal=True
    ),
    "m-missing-memory": lambda: nn.TransformerDecoderLayer(8, 2)(VECTORS),
    "m-norm-shape": lambda: nn.LayerNorm([6, 48])(torch.zeros(2, 5, 48)),
    "m-scalar-loss": lambda: weight().exp().backward(),
    "m-index": lambda: nn.Embedding(4, 2)(IDS + 4),
    "m-inference-tensor": kept_from_inference,
    "m-tuple": lambda: nn.Linear(8, 8)(attention(VECTORS)),
    "m-bool-mask": lambda: VECTORS.masked_fill(VECTORS.byte(), 0.0),
    "m-double": lambda: nn.Linear(8, 8)(VECTORS.double()),
    "m-mat1": lambda: nn.Linear(24576, 48)(torch.zeros(6144, 512)),
    "m-no-forward": lambda: nn.ModuleList()(VECTORS),
    "m-need-mask": lambda: layer(is_causal=torch.tensor(True)),
    "m-in-place": overwritten,
    "m-four-axes": lambda: attention(VECTORS[None]),
    "m-shape-invalid": lambda: torch.zeros(64, 1024).view(64, 1024, 8, 128),
    "m-cat": lambda: torch.cat([torch.zeros(2, 3), torch.zeros(2, 4)]),
    "m-stack": lambda: torch.stack([torch.zeros(2), torch.zeros(3)]),
    "m-mask-types": lambda: layer(src_mask=SQUARE, src_key_padding_mask=PADDING),
    "m-target-bounds": lambda: F.cross_entropy(torch.zeros(1, 37), IDS[0, :1] + 37),
    "m-batch-number": lambda: nn.Transformer(8, 2, 1, 1)(VECTORS, torch.zeros(2, 4, 8)),
    "m-odd-width": odd_width,
    "m-feature-number": lambda: nn.Transformer(4, 2, 1, 1)(VECTORS, VECTORS),
    "m-2d-mask": lambda: layer(src_mask=PADDING),
    "m-mask-shape": lambda: layer(src_mask=torch.zeros(2, 5, 5)),
    "m-size-of-tensor": lambda: torch.zeros(2, 230, 8) + torch.zeros(1, 200, 8),
    "m-backward-twice": twice,
    "m-half-mask": lambda: VECTORS.half().masked_fill(VECTORS.bool(), -1e9),
    "m-view": lambda: torch.zeros(2, 3, 4).mT.view(2, 12),
    "m-embed-dim": lambda: attention(torch.zeros(2, 4, 5)),
}


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="other messages")
@pytest.mark.parametrize("name", PROVOKED)
def test_messages_of_pytorch_read_so(name: str) -> None:
    """The page has PyTorch's own words; those that can be provoked in a line or two are."""
    heading = MESSAGES.partition(f"{{#{name}}}\n### ")[2].partition("\n")[0]
    said = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            PROVOKED[name]()
        except Exception as error:  # any that PyTorch chooses
            said = str(error)
    said = "\n".join([said, *(str(warning.message) for warning in warned)])
    for part in words_of(heading):
        assert part.strip() in said.replace("`", "").replace("size[", "size [")
