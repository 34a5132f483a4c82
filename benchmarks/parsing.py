"""Parse the Penn Treebank sample with the unchanged model: learning curve and constraints.

    python benchmarks/parsing.py --jobs 2
    python benchmarks/parsing.py --shares 1 --seeds 0

Trains on an eighth, a quarter, half and all of the trees in wsj_0001 to wsj_0159, from three
seeds, keeps the weights with the best loss on wsj_0160 to wsj_0179, and scores wsj_0180 to
wsj_0199 with a beam of 21, free and held to well-formed brackets; then all of the trees once more,
without words in the output. `results/parsing.jsonl` has the settings first and then a line a run;
a run that it has already is not repeated. Chapter 23 draws it. The trees, of which NLTK
distributes 3,914, are for non-commercial use.
"""

import copy
import math
import re
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import common
import numpy as np
import torch
import tyro
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from annotated_transformer import decoding
from annotated_transformer.batching import EncodedCorpus, batches
from annotated_transformer.data import MissingData, cache_folder
from annotated_transformer.decoding import beam_search, length_batches
from annotated_transformer.masks import BOS, EOS, PAD, UNK
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.training import training_step, validation_loss
from annotated_transformer.transformer import Transformer, TransformerConfig

with warnings.catch_warnings():  # as in the package's data module
    warnings.simplefilter("ignore")
    import pooch

Tree = tuple[str, Any]  # (label, list of trees), or (tag, word)
URL = "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/treebank.zip"
SHA256 = "9da92d76c3666cfb6cddeaed0f7e86b344cce0f0928a286d439e555f19c37399"
SHAPE: dict[str, Any] = {"layers": 2, "d_model": 128, "d_ff": 512, "heads": 4, "dropout": 0.1}
SHAPE |= {"pre_norm": True}  # it starts sooner (chapter 24)
MAX_TOKENS, WARMUP, LR_SCALE, VOCABULARY, EVERY, PATIENCE = 1024, 400, 0.5, 3000, 250, 1500
SEARCH = {"beam": 21, "alpha": 0.3, "max_extra_tokens": 300}  # section 6.3
OURS = ["the", "black", "cat", "likes", "fish"]

# --- Trees ---


def treebank() -> list[list[Tree]]:
    """Return the trees of each of the sample's 199 files.

    Raises MissingData if it is neither in the cache nor to be had over the network.
    """
    folder = cache_folder() / "treebank"
    pooch.get_logger().setLevel("WARNING")
    try:
        path = pooch.retrieve(URL, SHA256, "treebank.zip", folder)
    except (OSError, ValueError) as error:
        raise MissingData(f"put treebank.zip from {URL} into {folder} ({error})") from error
    with zipfile.ZipFile(path) as archive:
        names = sorted(n for n in archive.namelist() if re.search(r"combined/wsj_\d+\.mrg$", n))
        return [read_trees(archive.read(name).decode()) for name in names]


def read_trees(text: str) -> list[Tree]:
    """Read bracketed trees; the bracket without a label around each is called TOP."""
    stack: list[Tree] = [("", [])]
    for label, word, close in re.findall(r"\(\s*([^()\s]*)|([^()\s]+)|(\))", text):
        if close:
            tag, inside = stack.pop()
            leaf = len(inside) == 1 and isinstance(inside[0], str)
            stack[-1][1].append((tag, inside[0] if leaf else inside))
        elif word:
            stack[-1][1].append(word)
        else:
            stack.append((label or "TOP", []))
    return list(stack[0][1])


def plain(label: str) -> str:
    """Return a label without functions and numbers: NP-SBJ-1 is an NP, -LRB- is itself."""
    return label if label[0] == "-" else re.split("[-=]", label)[0]


def clean(tree: Tree) -> Tree | None:
    """Return a tree with plain labels and without what nobody says."""
    label, inside = tree
    if isinstance(inside, str):
        return None if label == "-NONE-" else tree
    children = [child for child in map(clean, inside) if child]
    return (plain(label), children) if children else None


def leaves(tree: Tree) -> list[tuple[str, str]]:
    """Return the (tag, word) pairs of a tree, in order."""
    label, inside = tree
    return [(label, inside)] if isinstance(inside, str) else [*chain(*map(leaves, inside))]


def linearize(tree: Tree) -> list[str]:
    """Write a tree as symbols: `(NP` opens, `)` closes, and `cat /NN` is a word with its tag."""
    label, inside = tree
    if isinstance(inside, str):
        return [inside, f"/{label}"]
    return [f"({label}", *chain(*map(linearize, inside)), ")"]


def restore(symbols: Sequence[str], words: Sequence[str]) -> Tree | None:
    """Return the tree of some symbols and words, or None where they don't make one.

    The nth tag is the nth word's; words among the symbols are passed over.
    """
    stack, place = [("", list[Tree]())], 0
    for symbol in symbols:
        if symbol == ")" and len(stack) > 1 and stack[-1][1]:
            tree = stack.pop()
            stack[-1][1].append(tree)
        elif symbol[0] == "(":
            stack.append((symbol[1:], []))
        elif symbol[0] == "/" and place < len(words):
            stack[-1][1].append((symbol[1:], words[place]))
            place += 1
        elif symbol[0] in ")/":
            return None
    whole = stack[0][1]
    return whole[0] if len(stack) == len(whole) == 1 and place == len(words) else None


# --- The score of section 6.3 ---

DELETED = {"TOP", "-NONE-", ",", ":", "``", "''", "."}  # as EVALB's COLLINS.prm has it


def brackets(tree: Tree, place: Sequence[int], start: int = 0) -> tuple[int, Counter[Any]]:
    """Return where a tree ends and its constituents that count, each with label, start and end.

    place[i] is how many words that count stand before word i.
    """
    label, inside = tree
    if isinstance(inside, str):
        return start + 1, Counter()
    end, found = start, Counter[Any]()
    for child in inside:
        end, more = brackets(child, place, end)
        found += more
    if label not in DELETED and place[start] < place[end]:
        found[plain(label).replace("PRT", "ADVP"), place[start], place[end]] += 1
    return end, found


def labeled_f1(gold: Sequence[Tree], parsed: Sequence[Tree | None]) -> float:
    """Score parses by labeled F1 over all brackets, 0 to 100; a missing parse has no bracket."""
    hits = total = 0
    for right, said in zip(gold, parsed, strict=True):
        place = [0, *accumulate(tag not in DELETED for tag, _ in leaves(right))]
        wanted = brackets(right, place)[1]
        found = brackets(said, place)[1] if said else Counter()
        hits, total = hits + (wanted & found).total(), total + wanted.total() + found.total()
    return 200 * hits / total


# --- The model's view: words go in, symbols come out ---

WORD, OPEN, CLOSE, TAG, OTHER = range(5)
KINDS = {"(": OPEN, ")": CLOSE, "/": TAG, "<": OTHER}


def outline(word: str) -> str:
    """Return what is kept of a rare word: whether it has a capital or a digit, and its end."""
    capital, digit = word[0].isupper(), any(letter.isdigit() for letter in word)
    return "*" + "A" * capital + "0" * digit + word[-2:].lower()


class Code:
    """One vocabulary: frequent words, the outlines of rare ones, and the symbols of trees.

    If words aren't `written`, a tree is its brackets and tags alone.
    """

    def __init__(
        self, trees: Sequence[Tree], vocabulary: int = VOCABULARY, written: bool = True
    ) -> None:
        counts = Counter(word for tree in trees for _, word in leaves(tree))
        words = [word for word, _ in counts.most_common(vocabulary)]
        rare = sorted({outline(word) for word in counts.keys() - set(words)})
        symbols = sorted({s for tree in trees for s in linearize(tree) if s[0] in KINDS})
        self.entries = ["<pad>", "<s>", "</s>", "*", *words, *rare, *symbols]
        self.ids, self.written = {entry: n for n, entry in enumerate(self.entries)}, written
        self.kinds = torch.tensor([KINDS.get(entry[0], WORD) for entry in self.entries])

    def source(self, words: Sequence[str]) -> list[int]:
        """Return the ids of a sentence."""
        ids = (self.ids.get(word, self.ids.get(outline(word), UNK)) for word in words)
        return [*ids, EOS]

    def target(self, tree: Tree) -> list[int]:
        """Return the ids of a tree."""
        symbols = [s for s in linearize(tree) if self.written or s[0] in KINDS]
        ids = [self.ids.get(s, UNK) if s[0] in KINDS else self.source([s])[0] for s in symbols]
        return [BOS, *ids, EOS]

    def read(self, ids: Sequence[int]) -> list[str]:
        """Return the symbols of ids."""
        return [self.entries[i] for i in ids]


def encode_trees(code: Code, trees: Sequence[Tree]) -> EncodedCorpus:
    """Encode trees as pairs of a sentence and its symbols."""
    rows = list[list[int]]()
    for tree in trees:
        rows += code.source([word for _, word in leaves(tree)]), code.target(tree)
    lengths = np.array([*map(len, rows)], np.int64).reshape(-1, 2) - [0, 1]
    return EncodedCorpus(np.array([*chain(*rows)], np.int32), lengths)


def fit(
    model: Transformer, corpus: EncodedCorpus, held_out: EncodedCorpus, steps: int, seed: int = 0,
    max_tokens: int = MAX_TOKENS, warmup: int = WARMUP, every: int = EVERY,
    patience: int = PATIENCE,
    report: Callable[[int, float, float], None] = lambda *_: None,
) -> Transformer:  # fmt: skip
    """Train a model and return it with the weights that had the best loss on held-out trees.

    It ends early when this loss hasn't fallen for `patience` updates.
    """
    loss, adam, best = SmoothedLoss(model, 0.1), common.make_adam(model), (math.inf, 0, {})
    device, updates = model.embedding.weight.device, list[Tensor]()
    epochs = (batches(corpus, max_tokens, seed, epoch) for epoch in range(10_000))
    for step, batch in enumerate(islice(chain.from_iterable(epochs), steps), start=1):
        lr = learning_rate(step, model.config.d_model, warmup, LR_SCALE)
        adam.param_groups[0]["lr"] = lr
        updates.append(training_step(loss, [batch.to(device)], adam))
        if step % every == 0 or step == steps:
            total, tokens, _ = torch.stack(updates).double().sum(dim=0).tolist()
            held = validation_loss(model, held_out, max_tokens)
            report(step, round(total / tokens, 4), round(held, 4))
            updates = []
            if held < best[0]:
                best = held, step, copy.deepcopy(model.state_dict())
            if step - best[1] >= patience:
                break
    model.load_state_dict(best[2])
    return model.eval()


# --- Held to well-formed brackets ---


def allowed(
    tokens: Tensor, source: Tensor, words: Tensor, kinds: Tensor, written: bool = True
) -> Tensor:
    """Tell which entries may follow: (B, R, |V|) for tokens (B, R, T), source (B, S), words (B, 1).

    kinds (|V|,) tells what each entry is, `words` how many words a sentence has.
    """
    kind = kinds[tokens]
    depth = (kind == OPEN).sum(-1) - (kind == CLOSE).sum(-1)
    tagged, last, begun = (kind == TAG).sum(-1), kind[..., -1], tokens.size(-1) > 1
    inside, left, between = depth > 0, tagged < words, last != WORD
    in_a_row = (kind[..., -5:] == OPEN).all(-1)  # <s> is none
    may = {
        OPEN: between & left & ~in_a_row & (inside | (not begun)),
        CLOSE: between & inside & (last != OPEN) & ((depth > 1) | ~left),
        TAG: ~between if written else inside & left,
    }
    ok = torch.stack([may[k][..., None] & (kinds == k) for k in may]).any(0)
    if written:  # the next word, and no other
        following = source.gather(1, tagged.clamp(max=source.size(1) - 1))
        ok.scatter_(-1, following[..., None], (between & inside & left)[..., None])
    ok[..., EOS] = ~inside & begun
    return ok


def parse(
    model: Transformer, code: Code, sentences: Sequence[Sequence[str]], constrained: bool = False,
    beam: int = 21, alpha: float = 0.3, max_extra_tokens: int = 300,
) -> list[list[str]]:  # fmt: skip
    """Return the symbols that beam search writes for each sentence, in order."""
    sources = [torch.tensor(code.source(words)) for words in sentences]
    device, free = model.embedding.weight.device, decoding.extend
    kinds, found = code.kinds.to(device), dict[int, list[str]]()
    for group in length_batches([len(source) for source in sources], 512):
        words = torch.tensor([[len(sentences[n])] for n in group], device=device)
        some = [sources[n] for n in group]
        source = pad_sequence(some, batch_first=True, padding_value=PAD).to(device)

        def extend(
            beams: Any, logits: Tensor, source: Tensor = source, words: Tensor = words
        ) -> Any:
            where = beams.sentence
            ok = allowed(beams.tokens, source[where], words[where], kinds, code.written)
            ok |= (beams.total == -torch.inf)[..., None]  # no hypothesis: nothing to forbid
            return free(beams, logits.masked_fill(~ok, -torch.inf))

        with patch.object(decoding, "extend", extend if constrained else free):
            best = beam_search(model, source, beam, alpha, max_extra_tokens)
        found |= {n: code.read(hypotheses[0].tokens) for n, hypotheses in zip(group, best)}
    return [found[n] for n in range(len(sentences))]


# --- The learning curve ---


def split() -> tuple[list[Tree], list[Tree], list[Tree]]:
    """Return the cleaned trees to train on, to choose by, and to score."""
    files = [[tree for tree in map(clean, trees) if tree] for trees in treebank()]
    train, held_out, test = (
        [*chain(*files[some])] for some in (slice(159), slice(159, 179), slice(179, None))
    )
    return train, held_out, test


def measure(
    share: int, seed: int, words_written: bool, steps: int, sentences: int, device: str,
    threads: int,
) -> dict[str, Any]:  # fmt: skip
    """Train on one tree in `share` and score; return a line of the log."""
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    train, held_out, test = split()
    test, code = test[:sentences], Code(train, written=words_written)
    curve = list[tuple[float, ...]]()
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(len(code.entries), **SHAPE)).to(device)
    some = train[seed % share :: share]

    def report(*line: float) -> None:
        curve.append(line)
        print(f"{len(some)} trees, seed {seed}: update, losses", *line, flush=True)

    fit(model, encode_trees(code, some), encode_trees(code, held_out), steps, seed, report=report)
    trained, texts = time.perf_counter(), [[word for _, word in leaves(tree)] for tree in test]
    record: dict[str, Any] = {"trees": len(some), "tested": len(test)}
    for name, constrained in (("free", False), ("constrained", True)):
        written = parse(model, code, texts, constrained)
        parsed = [restore(symbols, words) for symbols, words in zip(written, texts)]
        record[f"f1_{name}"] = round(labeled_f1(test, parsed), 2)
        record[f"well_formed_{name}"] = round(sum(map(bool, parsed)) / len(test), 4)
    symbols = parse(model, code, [[*OURS, "."]], constrained=True)[0]
    record |= {"ours": " ".join(symbols), "curve": curve, "device": device}
    record |= {"parameters": sum(p.numel() for p in model.parameters())}
    record |= {"trained": round(trained - begin, 1)}
    return record | {"seconds": round(time.perf_counter() - begin, 1)}


def main(
    shares: tuple[int, ...] = (1, 2, 4, 8), seeds: tuple[int, ...] = (0, 1, 2), steps: int = 4000,
    sentences: int = 300, jobs: int = 1, device: str = "cuda" if common.GPU else "cpu",
    threads: int = 1, results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Make the runs that the log doesn't have yet, some of them side by side."""
    settings = {"benchmark": "parsing", **SHAPE, **SEARCH, "max_tokens": MAX_TOKENS}
    settings |= {"warmup": WARMUP, "lr_scale": LR_SCALE, "steps": steps, "patience": PATIENCE}
    settings |= {"vocabulary": VOCABULARY, "sentences": sentences, "threads": threads}
    tasks = [{"share": n, "seed": s, "words_written": True} for s in seeds for n in shares]
    tasks += [{"share": 1, "seed": s, "words_written": False} for s in seeds if 1 in shares]
    fixed = {"steps": steps, "sentences": sentences, "device": device, "threads": threads}
    path = results / "parsing.jsonl"
    common.make_runs(path, settings, tasks, partial(measure, **fixed), jobs)


if __name__ == "__main__":
    tyro.cli(main)
