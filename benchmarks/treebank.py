"""The Penn Treebank sample: read its trees, write them as symbols and back, and score parses.

NLTK distributes 3,914 trees of the Wall Street Journal, for non-commercial use. Chapter 23 and
`benchmarks.experiments.parsing` learn from them.
"""

import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

from annotated_transformer.own_data import MissingData, cache_folder

with warnings.catch_warnings():  # as in the package's data module
    warnings.simplefilter("ignore")
    import pooch

Tree = tuple[str, Any]  # (label, list of trees), or (tag, word)
URL = "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/treebank.zip"
SHA256 = "9da92d76c3666cfb6cddeaed0f7e86b344cce0f0928a286d439e555f19c37399"

# --- From files to trees ---


def read_treebank() -> list[list[Tree]]:
    """Return the trees of each of the sample's 199 files.

    Raises MissingData if it is neither in the cache nor to be had over the network.
    """
    folder = cache_folder() / "treebank"
    pooch.get_logger().setLevel("WARNING")
    try:
        path = pooch.retrieve(URL, SHA256, "treebank.zip", folder)
    except (OSError, ValueError) as error:
        raise MissingData(
            f"put treebank.zip from {URL} into {folder} ({error})"
        ) from error
    with zipfile.ZipFile(path) as archive:
        return [
            read_trees(archive.read(name).decode())
            for name in sorted(archive.namelist())
            if re.search(r"combined/wsj_\d+\.mrg$", name)
        ]


def read_trees(text: str) -> list[Tree]:
    """Read bracketed trees; the bracket without a label around each is called TOP."""
    stack: list[Tree] = [("", [])]
    for label, word, close in re.findall(r"\(\s*([^()\s]*)|([^()\s]+)|(\))", text):
        if close:
            tag, inside = stack.pop()
            is_leaf = len(inside) == 1 and isinstance(inside[0], str)
            stack[-1][1].append((tag, inside[0] if is_leaf else inside))
        elif word:
            stack[-1][1].append(word)
        else:
            stack.append((label or "TOP", []))
    return list(stack[0][1])


def plain(label: str) -> str:
    """Return a label without functions and numbers: NP-SBJ-1 is an NP, -LRB- is itself."""
    if label[0] == "-":
        return label
    return re.split("[-=]", label)[0]


def clean(tree: Tree) -> Tree | None:
    """Return a tree with plain labels and without what nobody says."""
    label, inside = tree
    if isinstance(inside, str):
        return None if label == "-NONE-" else tree
    children = [child for child in map(clean, inside) if child]
    return (plain(label), children) if children else None


def split_treebank() -> tuple[list[Tree], list[Tree], list[Tree]]:
    """Return the cleaned trees to train on, to choose by, and to score."""
    train, held_out, test = list[Tree](), list[Tree](), list[Tree]()
    for number, trees in enumerate(read_treebank()):
        part = train if number < 159 else held_out if number < 179 else test
        part.extend(tree for tree in map(clean, trees) if tree)
    return train, held_out, test


# --- Trees and symbols ---


def leaves(tree: Tree) -> list[tuple[str, str]]:
    """Return the (tag, word) pairs of a tree, in order."""
    label, inside = tree
    if isinstance(inside, str):
        return [(label, inside)]
    return [leaf for child in inside for leaf in leaves(child)]


def words_of(tree: Tree) -> list[str]:
    """Return the words of a tree, in order."""
    return [word for _, word in leaves(tree)]


def linearize(tree: Tree) -> list[str]:
    """Write a tree as symbols: `(NP` opens, `)` closes, and `cat /NN` is a word with its tag."""
    label, inside = tree
    if isinstance(inside, str):
        return [inside, f"/{label}"]
    symbols = [symbol for child in inside for symbol in linearize(child)]
    return [f"({label}", *symbols, ")"]


def restore(symbols: Sequence[str], words: Sequence[str]) -> Tree | None:
    """Return the tree of some symbols and words, or None where they don't make one.

    The nth tag is the nth word's; words among the symbols are passed over.
    """
    stack: list[Tree] = [("", [])]
    tagged = 0  # words that have a tag by now
    for symbol in symbols:
        children = stack[-1][1]
        if symbol[0] == "(":
            stack.append((symbol[1:], []))
        elif symbol[0] == "/":
            if tagged == len(words):
                return None
            children.append((symbol[1:], words[tagged]))
            tagged += 1
        elif symbol == ")":
            if len(stack) == 1 or not children:
                return None
            constituent = stack.pop()
            stack[-1][1].append(constituent)
    trees = stack[0][1]
    if len(stack) > 1 or len(trees) != 1 or tagged < len(words):
        return None
    return trees[0]


# --- The score of section 6.3 ---

DELETED = {"TOP", "-NONE-", ",", ":", "``", "''", "."}  # as EVALB's COLLINS.prm has it


def brackets(
    tree: Tree, positions: Sequence[int], start: int = 0
) -> tuple[int, Counter[Any]]:
    """Return where a tree ends and its constituents that count, each with label, start and end.

    positions[i] is how many words that count stand before word i.
    """
    label, inside = tree
    if isinstance(inside, str):
        return start + 1, Counter()
    end = start
    constituents = Counter[Any]()
    for child in inside:
        end, inner = brackets(child, positions, end)
        constituents += inner
    if label not in DELETED and positions[start] < positions[end]:
        name = plain(label).replace("PRT", "ADVP")
        constituents[name, positions[start], positions[end]] += 1
    return end, constituents


def labeled_f1(gold: Sequence[Tree], parsed: Sequence[Tree | None]) -> float:
    """Score parses by labeled F1 over all brackets, 0 to 100; a missing parse has no bracket."""
    hits = total = 0
    for tree, parse in zip(gold, parsed, strict=True):
        positions = [0]
        for tag, _ in leaves(tree):
            positions.append(positions[-1] + (tag not in DELETED))
        expected = brackets(tree, positions)[1]
        written = brackets(parse, positions)[1] if parse else Counter()
        hits += (expected & written).total()
        total += expected.total() + written.total()
    return 200 * hits / total
