# Exported from notebooks/06_3_english_constituency_parsing.py, Section 6.3; edit that file, not this one.
# sha256 of what follows: 164d12e2959e5a26
"""English Constituency Parsing (Section 6.3)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

__all__ = [
    "Tree",
    "read_trees",
    "clean_tree",
    "linearize",
    "Parsed",
    "parse_linearized",
    "PUNCTUATION",
    "brackets",
    "BracketScores",
    "bracket_scores",
    "right_branching",
    "MajorityParser",
]


@dataclass(frozen=True)
class Tree:
    """A phrase and what it consists of; or a word and its part of speech.

    Args:
        label: Of the phrase, as "NP"; or the word's tag, as "NN".
        children: The parts of a phrase, in order; none if this is a word.
        word: The word; empty if this is a phrase.

    Source: §6.3.
    """

    label: str
    children: tuple["Tree", ...] = ()
    word: str = ""

    def walk(self) -> Iterator[tuple[str, "Tree"]]:
        """Go through the tree from left to right.

        Returns:
            Each phrase twice, with "(" when it begins and ")" when it ends, and each word once, with "".
        """
        waiting: list[tuple[str, Tree]] = [("" if self.word else "(", self)]
        while waiting:
            event, tree = waiting.pop()
            yield event, tree
            if event == "(":
                waiting.append((")", tree))
                waiting += [("" if child.word else "(", child) for child in reversed(tree.children)]

    def leaves(self) -> list["Tree"]:
        """The words with their tags."""
        return [tree for event, tree in self.walk() if not event]

    def words(self) -> list[str]:
        """The words."""
        return [leaf.word for leaf in self.leaves()]

    def __str__(self) -> str:
        """The tree in the brackets of the Penn Treebank, on one line."""
        parts = {"(": "({0.label}", "": "({0.label} {0.word})", ")": ")"}
        return " ".join(parts[event].format(tree) for event, tree in self.walk()).replace(" )", ")")


_ROOTS = ("", "TOP", "ROOT", "S1")  # names that treebanks give to the outermost bracket, which is no phrase


def read_trees(lines: Iterable[str]) -> Iterator[Tree]:
    """Read trees in the brackets of the Penn Treebank; one tree may take several lines.

    An outermost bracket without a label, or called TOP, ROOT or S1, is taken off. If it holds several trees or a bare
    word, it stays, as TOP.

    Args:
        lines: An open file, or any lines.

    Returns:
        The trees, as they come.

    Raises:
        TypeError: A string is given in place of many.
        ValueError: The brackets do not balance, a phrase has no label or no word, or a word has no tag; the message
            gives the line.

    Source: §6.3.
    """
    if isinstance(lines, str):
        raise TypeError("read_trees takes many lines; put the one line into a list.")
    opened: list[_Opened] = []
    for number, line in enumerate(lines, 1):
        for token in re.findall(r"[()]|[^() \t\r\n]+", line):  # a word may hold any other space
            if token == ")":
                tree = _close(opened, number)
                if opened:
                    opened[-1].children.append(tree)
                else:
                    yield _without_root(tree)
            elif token == "(" and not (opened and opened[-1].word):
                opened.append(_Opened(number, []))
            elif token == "(" or not opened or opened[-1].children:
                raise ValueError(f"line {number}: {token!r} is out of place; a word stands in brackets, after its tag.")
            elif opened[-1].label:
                opened[-1].word = f"{opened[-1].word} {token}".strip()  # a few words of real treebanks hold a space
            else:
                opened[-1].label = token
    if opened:
        raise ValueError(f"line {opened[-1].line}: a bracket that opens here is never closed; is the text cut short?")


@dataclass
class _Opened:
    """A bracket that is not closed yet."""

    line: int
    children: list[Tree]
    label: str = ""
    word: str = ""


def _close(opened: list[_Opened], number: int) -> Tree:
    if not opened:
        raise ValueError(f"line {number}: a bracket closes that was never opened; remove it.")
    last = opened.pop()
    if not (last.children or last.word):
        raise ValueError(f"line {number}: the brackets of {last.label!r} hold no word; remove them.")
    if opened and not last.label:
        raise ValueError(f"line {number}: brackets within a tree have no label; only the outermost may lack it.")
    return Tree(last.label, tuple(last.children), last.word)


def _without_root(tree: Tree) -> Tree:
    if tree.word or tree.label not in _ROOTS:
        return tree
    return tree.children[0] if len(tree.children) == 1 and tree.children[0].children else Tree("TOP", tree.children)


def clean_tree(tree: Tree) -> Tree | None:
    """Reduce a tree to what parsers are trained and scored on.

    Function tags and indices go ("NP-SBJ-1" becomes "NP"), and so do traces (-NONE-) and the phrases they leave empty.
    A phrase whose only part is a phrase of the same label is replaced by that part.

    Args:
        tree: As `read_trees` gives it.

    Returns:
        The reduced tree; None if it holds no word.

    Source: §6.3; the paper leaves it open, the rules are those of the field.
    """
    opened: list[list[Tree]] = [[]]
    for event, node in tree.walk():
        found = re.match("[^-=|]+", node.label)  # -LRB- and -NONE- begin with a dash and stay
        label = found[0] if found else node.label
        if event == "(":
            opened.append([])
        elif event == "":
            opened[-1] += [Tree(label, word=node.word)] if label != "-NONE-" else []
        else:
            children = opened.pop()
            same = len(children) == 1 and bool(children[0].children) and children[0].label == label
            opened[-1] += children if same or not children else [Tree(label, tuple(children))]
    return opened[0][0] if opened[0] else None


def linearize(tree: Tree) -> list[str]:
    """Write a tree as a sequence of tokens: "(NP" opens a phrase, ")NP" closes it, and a word is its tag.

    Args:
        tree: A tree.

    Returns:
        The tokens. With the words, `parse_linearized` makes the same tree of them, unless it is a single word.

    Source: §6.3, after Vinyals, Kaiser et al. (2015).
    """
    return [event + node.label for event, node in tree.walk()]


class Parsed(NamedTuple):
    """A tree made of tokens.

    Args:
        tree: It holds all the words, in order.
        repaired: Whether the tokens were no tree over these words, and had to be mended.
        flat: Whether they held no phrase at all, so that nothing could be mended.

    Source: not in the paper.
    """

    tree: Tree
    repaired: bool
    flat: bool


def parse_linearized(tokens: Sequence[str], words: Sequence[str]) -> Parsed:
    """Make a tree of what `linearize` or a model wrote.

    What is no tree is mended: a closing bracket closes the innermost phrase, whatever its label, and is dropped if none
    is open; brackets left open are closed at the end; phrases without words are dropped, and so are surplus words;
    missing words are put at the end of the outermost phrase, with the tag XX. Several trees become one, called TOP. If
    there is no phrase, TOP holds all words.

    Args:
        tokens: "(LABEL", ")LABEL", and tags for words.
        words: The sentence, at least one word.

    Returns:
        The tree, and whether it had to be mended.

    Raises:
        TypeError: A string is given in place of a list.
        ValueError: There is no word.

    Source: §6.3; how malformed output counts is left open by the paper.
    """
    if isinstance(tokens, str) or isinstance(words, str):
        raise TypeError("parse_linearized takes lists of tokens and words; split the string at its spaces.")
    if not words:
        raise ValueError("a tree needs at least one word; leave empty sentences out.")
    opened: list[tuple[str, list[Tree]]] = [("TOP", [])]
    used, repaired = 0, False
    for i, token in enumerate([*tokens, *[")"] * len(tokens)]):
        if token[:1] == "(":
            opened.append((token[1:], []))
        elif token[:1] == ")" and len(opened) > 1:
            label, children = opened.pop()
            opened[-1][1].extend([Tree(label, tuple(children))] if children else [])
            repaired |= i >= len(tokens) or label != token[1:] or not children
        elif token[:1] != ")" and used < len(words):
            opened[-1][1].append(Tree(token, word=words[used]))
            used += 1
        else:
            repaired |= i < len(tokens)
    roots = opened[0][1]
    flat = not any(root.children for root in roots)
    missing = [Tree("XX", word=word) for word in words[used:]]
    if len(roots) == 1 and not flat:
        return Parsed(Tree(roots[0].label, (*roots[0].children, *missing)), repaired or bool(missing), flat)
    return Parsed(Tree("TOP", (*roots, *missing)), True, flat)


PUNCTUATION = frozenset([",", ":", "``", "''", "."])  # the tags that EVALB's file COLLINS.prm deletes


def brackets(tree: Tree, counts: Sequence[bool] | None = None) -> Counter[tuple[str, int, int]]:
    """The phrases of a tree as EVALB counts them: label, first word, and word behind the last.

    A bracket without a label, or called TOP, ROOT or S1, is no phrase. PRT counts as ADVP.

    Args:
        tree: A tree.
        counts: Whether each word counts; None if all do. A phrase of words that do not count does not count either.

    Returns:
        How often each phrase occurs.

    Source: not in the paper; the rules are EVALB's.
    """
    before = [0, *accumulate(map(int, counts if counts is not None else [True] * len(tree.leaves())))]
    found: Counter[tuple[str, int, int]] = Counter()
    starts: list[int] = []
    position = 0
    for event, node in tree.walk():
        if event == "(":
            starts.append(position)
        elif event == "":
            position += 1
        else:
            start, end = before[starts.pop()], before[position]
            if start < end and node.label not in _ROOTS:
                found["ADVP" if node.label == "PRT" else node.label, start, end] += 1
    return found


class BracketScores(NamedTuple):
    """Labelled brackets, in percent.

    Args:
        precision: Predicted brackets that are right.
        recall: Right brackets that were predicted.
        f1: Harmonic mean of the two.
        exact: Sentences with all brackets right and none too many.

    Source: Table 4 for F1.
    """

    precision: float
    recall: float
    f1: float
    exact: float


def bracket_scores(gold: Sequence[Tree], predicted: Sequence[Tree], punctuation: bool = False) -> BracketScores:
    """Score trees as EVALB does with its file COLLINS.prm.

    Brackets of all sentences are counted together. Tags do not count, and words which are punctuation by the tag in
    the right tree are left out of both trees.

    Args:
        gold: The right trees.
        predicted: As many trees of the same words.
        punctuation: Whether punctuation counts.

    Returns:
        The scores.

    Raises:
        ValueError: There is no tree, the numbers of trees differ, or two trees have different words.

    Source: Table 4. The paper does not name its script.
    """
    if len(gold) != len(predicted) or not gold:
        raise ValueError(f"{len(gold)} right trees and {len(predicted)} predicted; give as many of each, at least one.")
    matched = n_gold = n_predicted = exact = 0
    for number, (right, guess) in enumerate(zip(gold, predicted, strict=True)):
        if right.words() != guess.words():
            raise ValueError(f"the trees at index {number} have different words; give them in the same order.")
        counts = [punctuation or leaf.label not in PUNCTUATION for leaf in right.leaves()]
        a, b = brackets(right, counts), brackets(guess, counts)
        matched, n_gold, n_predicted = matched + (a & b).total(), n_gold + a.total(), n_predicted + b.total()
        exact += a == b
    precision, recall = 100 * matched / max(1, n_predicted), 100 * matched / max(1, n_gold)
    return BracketScores(precision, recall, 200 * matched / max(1, n_gold + n_predicted), 100 * exact / len(gold))


def right_branching(words: Sequence[str], root: str = "S", inner: str = "NP") -> Tree:
    """The tree in which each word is joined to all that follows: a baseline that learns nothing but two labels.

    Args:
        words: The sentence, at least one word.
        root: Label of the whole.
        inner: Label of every other phrase.

    Returns:
        The tree; its words have the tag XX.

    Raises:
        TypeError: A string is given in place of a list.

    Source: not in the paper.
    """
    if isinstance(words, str):
        raise TypeError("right_branching takes a list of words; split the string at its spaces.")
    leaves = [Tree("XX", word=word) for word in words]
    tail = leaves[-1:]
    for leaf in leaves[-2:0:-1]:
        tail = [Tree(inner, (leaf, *tail))]
    return Tree(root, (*leaves[: len(leaves) > 1], *tail))


class MajorityParser:
    """The baseline that answers with the most frequent tree of the sentence's length, whatever the words.

    Args:
        trees: To learn from, at least one.

    Source: not in the paper.
    """

    def __init__(self, trees: Iterable[Tree]) -> None:
        self._shapes: dict[int, Counter[tuple[str, ...]]] = {}
        for tree in trees:
            shape = tuple(event + (node.label if event else "XX") for event, node in tree.walk())
            self._shapes.setdefault(len(tree.leaves()), Counter())[shape] += 1

    def parse(self, words: Sequence[str]) -> Tree:
        """The tree of these words.

        Args:
            words: The sentence, at least one word.

        Returns:
            The most frequent tree of this length; if there is none, that of the nearest length, mended to fit.

        Raises:
            TypeError: A string is given in place of a list.
            ValueError: There is no word, or there was no tree to learn from.
        """
        nearest = min(self._shapes, key=lambda length: (abs(length - len(words)), length))
        return parse_linearized(self._shapes[nearest].most_common(1)[0][0], words).tree
