"""Trees, brackets and scores: lossless both ways, malformed output mended, F1 as an existing scorer counts it."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PYEVALB import parser, scorer

from transformer import Tree
from transformer.parsing import (
    PUNCTUATION,
    MajorityParser,
    bracket_scores,
    brackets,
    clean_tree,
    linearize,
    parse_linearized,
    read_trees,
    right_branching,
)

LABELS = ["S", "NP", "VP", "PP", "ADVP", "PRT", "NML"]
TAGS = ["NN", "DT", "VBZ", "-LRB-", "PRP$", ",", ":", "."]
WORD = st.text(st.characters(exclude_characters="() \t\r\n", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)


@st.composite
def trees(draw, words=WORD, labels=LABELS, root=None):
    """A phrase over one to eight words, with brackets at random places."""
    leaves = [Tree(draw(st.sampled_from(TAGS)), word=word) for word in draw(st.lists(words, min_size=1, max_size=8))]
    return draw(bracketed(leaves, labels, root))


@st.composite
def bracketed(draw, leaves, labels=LABELS, root=None):
    """Put brackets around some neighbours, several times, and at last around all."""
    parts = list(leaves)
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(parts) - 1))
        end = draw(st.integers(start + 1, len(parts)))
        parts[start:end] = [Tree(draw(st.sampled_from(labels)), tuple(parts[start:end]))]
    return Tree(root or draw(st.sampled_from(labels)), tuple(parts))


TOKENS = st.lists(st.sampled_from(["(S", ")S", "(NP", ")NP", "(", ")", "NN", "XX"]), max_size=14)
A_TREE = "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)) (. .))"


def tree(text: str) -> Tree:
    (found,) = read_trees([text])
    return found


# ------------------------------------------------------------------------------------------------- brackets as text


@given(trees())
def test_text_and_back(some):
    assert tree(str(some)) == some
    assert tree(f"( {some} )") == tree(f"(TOP {some})") == tree(f"(ROOT{some})") == tree(f"(S1 {some})") == some


@given(st.lists(trees(), max_size=4), st.randoms())
def test_lines_may_break_anywhere_between_tokens(some, random):
    text = "\n".join(map(str, some))
    text = re.sub(" ", lambda _: random.choice([" ", "\n", "\n\n   "]), text)
    assert list(read_trees(text.split("\n"))) == some


def test_reads_penn_brackets():
    assert tree(A_TREE).words() == ["the", "cat", "sleeps", "."]
    assert [leaf.label for leaf in tree(A_TREE).leaves()] == ["DT", "NN", "VBZ", "."]
    assert str(tree(A_TREE)) == A_TREE
    assert tree("(TOP (NP (NN a)) (. .))") == tree("((NP (NN a)) (. .))")
    assert tree("(TOP (NP (NN a)) (. .))").label == "TOP", "several trees keep their bracket"
    assert str(tree("(ROOT (NN a))")) == "(TOP (NN a))", "a bare word keeps its bracket"
    assert tree("(NP (NN two words))").words() == ["two words"]
    assert tree("(NP (CD 10\u00a0000))").words() == ["10\u00a0000"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["(S (NN a))", "", "(S (NN a)))"], "line 3: a bracket closes that was never opened"),
        (["(S (NN a))", "(S (NP (NN a))"], "line 2: a bracket that opens here is never closed"),
        (["(S", "(NP (NN a))", "(VP"], "line 3: a bracket that opens here is never closed"),
        (["a (S (NN a))"], "line 1: 'a' is out of place"),
        (["(S (NN a) b)"], "line 1: 'b' is out of place"),
        (["(S b (NN a))"], r"line 1: '\(' is out of place"),
        (["(S (NP) (NN a))"], "line 1: the brackets of 'NP' hold no word"),
        (["()"], "line 1: the brackets of '' hold no word"),
        (["(S ((NN a)))"], "line 1: brackets within a tree have no label"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_line(lines, message):
    with pytest.raises(ValueError, match=message):
        list(read_trees(lines))


def test_cleaning():
    raw = "(S (NP-SBJ-1 (PRP He)) (VP (VBZ is) (VP (VBN told) (NP-1 (-NONE- *)) (S (NP (-NONE- *U*)) (VP (VP (TO to))))"
    raw += " (PRT|ADVP (RP on)) (NP=2 (-LRB- -LRB-) (NN|JJ x)))))"
    clean = "(S (NP (PRP He)) (VP (VBZ is) (VP (VBN told) (S (VP (TO to))) (PRT (RP on)) (NP (-LRB- -LRB-) (NN x)))))"
    assert str(clean_tree(tree(raw))) == clean
    assert str(clean_tree(tree("(NP (NP (NP (NN a))))"))) == "(NP (NN a))"
    assert str(clean_tree(tree("(NP (NP-SBJ (-NONE- *)) (NP (NN a) (NN b)))"))) == "(NP (NN a) (NN b))"
    assert str(clean_tree(tree("(NN (NN a))"))) == "(NN (NN a))", "a tag is no phrase"
    assert clean_tree(tree("(S (NP (-NONE- *)))")) is None


@given(trees())
def test_cleaning_twice_is_cleaning_once_and_keeps_the_words(some):
    once = clean_tree(some)
    assert once.leaves() == some.leaves() and clean_tree(once) == once


# ------------------------------------------------------------------------------------------- trees as token sequences


def test_a_tree_as_tokens():
    assert " ".join(linearize(tree(A_TREE))) == "(S (NP DT NN )NP (VP VBZ )VP . )S"


@given(trees())
def test_tokens_and_back(some):
    assert parse_linearized(linearize(some), some.words()) == (some, False, False)


@pytest.mark.parametrize("tokens", ["(S NN )S )", "(S NN", "( NN", "(S NN )S X"])
def test_what_is_dropped_or_closed_is_said_to_be_mended(tokens):
    assert parse_linearized(tokens.split(), ["cat"]).repaired


@given(TOKENS, st.lists(WORD, min_size=1, max_size=6))
def test_any_tokens_become_a_tree_of_the_words(tokens, words):
    found = parse_linearized(tokens, words)
    assert found.tree.words() == words
    assert all(node.children or node.word for _, node in found.tree.walk())
    assert found.repaired or linearize(found.tree) == tokens, "what is not said to be mended is as it was written"
    phrases = [node for event, node in found.tree.walk() if event == "("]
    assert found.flat == (phrases == [found.tree] and found.tree.label == "TOP")
    again = parse_linearized(linearize(found.tree), words)
    assert again.tree == found.tree


@given(trees(), st.data())
def test_each_single_fault_is_noticed(some, data):
    tokens = linearize(some)
    at = data.draw(st.integers(0, len(tokens) - 1))
    lost = parse_linearized(tokens[:at] + tokens[at + 1 :], some.words())
    assert lost.repaired and lost.tree.words() == some.words()
    doubled = parse_linearized(tokens[: at + 1] + tokens[at:], some.words())
    assert doubled.repaired and doubled.tree.words() == some.words()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("(S (NP DT NN )NP (VP VBZ", "(S (NP (DT a) (NN b)) (VP (VBZ c)))"),  # cut short
        ("(S (NP DT NN )VP (VP VBZ )VP )S", "(S (NP (DT a) (NN b)) (VP (VBZ c)))"),  # the wrong label
        ("(S (NP DT NN )NP )NP (VP VBZ )VP )S", "(TOP (S (NP (DT a) (NN b))) (VP (VBZ c)))"),  # one too many
        ("(S (NP DT )NP (VP VBZ )VP )S", "(S (NP (DT a)) (VP (VBZ b)) (XX c))"),  # a word missing
        ("(S (NP DT NN NN NN )NP (VP VBZ )VP )S", "(S (NP (DT a) (NN b) (NN c)))"),  # words too many
        ("(S (NP DT NN )NP (VP )VP (X X )X )S", "(S (NP (DT a) (NN b)) (X (X c)))"),  # a phrase without words
        ("(S DT )S (S NN )S NN", "(TOP (S (DT a)) (S (NN b)) (NN c))"),  # three trees
    ],
)
def test_what_is_mended(tokens, expected):
    found = parse_linearized(tokens.split(), ["a", "b", "c"])
    assert (str(found.tree), found.repaired, found.flat) == (expected, True, False)


@pytest.mark.parametrize("tokens", ["", "DT NN", "DT NN NN NN", ")S", "(S (NP )NP )S"])
def test_no_phrase_at_all_is_a_flat_tree(tokens):
    found = parse_linearized(tokens.split(), ["a", "b"])
    assert found.repaired and found.flat and found.tree.label == "TOP" and not brackets(found.tree)


@pytest.mark.parametrize(
    "call",
    [
        lambda: list(read_trees(A_TREE)),
        lambda: parse_linearized("(S NN )S", ["cat"]),
        lambda: parse_linearized(["(S", "NN", ")S"], "cat"),
        lambda: right_branching("the cat sleeps"),
        lambda: MajorityParser([tree(A_TREE)]).parse("the cat sleeps"),
    ],
)
def test_a_string_is_not_read_letter_by_letter(call):
    with pytest.raises(TypeError, match=r"takes .*(put the one line into a list|split the string at its spaces)"):
        call()


def test_a_sentence_without_words_is_refused():
    with pytest.raises(ValueError, match="at least one word"):
        parse_linearized(["(S", ")S"], [])


def test_depth_is_no_limit():
    tokens = ["(NP"] * 5000 + ["NN"] + [")NP"] * 5000
    found = parse_linearized(tokens, ["a"])
    assert not found.repaired and linearize(found.tree) == tokens
    assert str(found.tree).count("(NP") == 5000 and brackets(found.tree) == {("NP", 0, 1): 5000}
    words = [str(i) for i in range(2000)]
    assert right_branching(words).words() == words


# ------------------------------------------------------------------------------------------------------------- scores

PLAIN = st.sampled_from(["a", "b", "c"])  # PYEVALB splits words at underscores


def pyevalb(gold: list[Tree], predicted: list[Tree]) -> tuple[float, float]:
    """Precision and recall in percent over all sentences."""
    results = [
        scorer.Scorer().score_trees(*(parser.create_from_bracket_string(str(some)) for some in pair))
        for pair in zip(gold, predicted, strict=True)
    ]
    matched = sum(result.matched_brackets for result in results)
    return tuple(
        100 * matched / sum(getattr(result, side) for result in results) for side in ("test_brackets", "gold_brackets")
    )


def once(some: Tree) -> bool:
    """Whether no phrase occurs twice: PYEVALB compares sets where EVALB compares multisets."""
    return max(brackets(some).values()) == 1


@st.composite
def pairs(draw):
    """Two trees over the same words, none of them punctuation, and no PRT, which PYEVALB does not know as ADVP."""
    labels = LABELS[:4]
    first = draw(trees(PLAIN, labels).filter(once))
    leaves = [Tree(leaf.label if leaf.label not in PUNCTUATION else "NN", word=leaf.word) for leaf in first.leaves()]
    return tuple(draw(bracketed(leaves, labels).filter(once)) for _ in range(2))


@given(st.lists(pairs(), min_size=1, max_size=5))
def test_f1_is_that_of_pyevalb(some):
    gold, predicted = [pair[0] for pair in some], [pair[1] for pair in some]
    ours = bracket_scores(gold, predicted)
    precision, recall = pyevalb(gold, predicted)
    assert ours.precision == pytest.approx(precision) and ours.recall == pytest.approx(recall)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert ours.f1 == pytest.approx(f1)
    assert ours == bracket_scores(gold, predicted, punctuation=True)


@given(trees(), st.data())
def test_scores_of_a_tree_with_itself_and_turned_around(some, data):
    other = data.draw(bracketed(some.leaves()))
    counted = brackets(some, [leaf.label not in PUNCTUATION for leaf in some.leaves()])
    assert bracket_scores([some], [some]).f1 == (100 if counted else 0)
    assert bracket_scores([some], [some]).exact == 100
    one, two = bracket_scores([some], [other]), bracket_scores([other], [some])
    assert (one.precision, one.recall, one.f1, one.exact) == (two.recall, two.precision, two.f1, two.exact)


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        # EVALB with COLLINS.prm gives these figures. First: the comma counts for no span.
        ("(S (NP (NN a)) (, ,) (VP (VB b)))", "(S (NP (NN a) (, ,)) (VP (VB b)))", (100, 100, 100)),
        # and the right tree says what a comma is
        ("(S (NP (NN a)) (, ,) (VP (VB b)))", "(S (NP (XX a) (XX ,)) (VP (XX b)))", (100, 100, 100)),
        # a phrase of punctuation alone is no phrase
        ("(S (NP (NN a)) (X (. .)))", "(S (NP (NN a)) (. .))", (100, 100, 100)),
        # the same phrase twice counts twice, and a pair can be right once
        ("(NP (NP (NN a)))", "(NP (NN a))", (100, 50, 66.67)),
        ("(NP (NP (NN a)))", "(NP (NP (NP (NN a))))", (66.67, 100, 80)),
        # PRT is ADVP, TOP is nothing, tags are nothing
        ("(S (VB a) (PRT (RP b)))", "(S (NN a) (ADVP (RB b)))", (100, 100, 100)),
        ("(TOP (NP (NN a)) (NP (NN b)))", "(S (NP (NN a)) (NP (NN b)))", (66.67, 100, 80)),
        # two of four, two of three
        (
            "(S (NP (DT a) (NN b)) (VP (VB c) (NP (NN d))))",
            "(S (NP (DT a) (NN b)) (VP (VB c)) (NN d))",
            (66.67, 50, 57.14),
        ),
    ],
)
def test_scores_worked_out_by_hand(gold, predicted, expected):
    found = bracket_scores([tree(gold)], [tree(predicted)])
    assert found[:3] == pytest.approx(expected, abs=0.005)
    assert found.exact == (100 if expected == (100, 100, 100) else 0)


def test_brackets_are_counted_over_all_sentences_together():
    gold = [tree("(S (NP (NN a)) (VP (VB b)))"), tree("(NP (NN a))")]
    found = bracket_scores(gold, [tree("(S (NN a) (VB b))"), gold[1]])
    assert found == pytest.approx((100, 50, 200 / 3, 50))


@pytest.mark.parametrize("tag", [",", ":", "``", "''", ".", "-LRB-", "$"])
def test_punctuation_is_five_tags(tag):
    found = bracket_scores([tree(f"(S (NP (NN a)) ({tag} x))")], [tree(f"(S (NP (NN a) ({tag} x)))")])
    assert found.f1 == (50 if tag in ("-LRB-", "$") else 100)


def test_punctuation_counts_if_asked_to():
    gold, predicted = [tree("(S (NP (NN a)) (X (. .)))")], [tree("(S (NP (NN a)) (. .))")]
    assert bracket_scores(gold, predicted, punctuation=True) == pytest.approx((100, 200 / 3, 80, 0))


def test_scores_refuse_what_does_not_fit():
    one = tree(A_TREE)
    with pytest.raises(ValueError, match="0 right trees and 0 predicted"):
        bracket_scores([], [])
    with pytest.raises(ValueError, match="2 right trees and 1 predicted"):
        bracket_scores([one, one], [one])
    with pytest.raises(ValueError, match="index 1 have different words"):
        bracket_scores([one, one], [one, tree("(S (NN dog))")])


# ---------------------------------------------------------------------------------------------------------- baselines


def test_right_branching():
    assert str(right_branching(["a"])) == "(S (XX a))"
    assert str(right_branching(["a", "b"])) == "(S (XX a) (XX b))"
    assert str(right_branching(list("abcd"), "X", "Y")) == "(X (XX a) (Y (XX b) (Y (XX c) (XX d))))"


@given(st.lists(WORD, min_size=2, max_size=9))
def test_right_branching_ends_every_phrase_at_the_end(words):
    found = brackets(right_branching(words))
    assert found == Counter({("S" if start == 0 else "NP", start, len(words)): 1 for start in range(len(words) - 1)})


def test_the_majority():
    texts = ["(S (NP (NN a)) (VP (VB b)))", "(NP (NN a) (NN b))", "(S (NP (PRP i)) (VP (VB b)))", "(NP (NN a))"]
    majority = MajorityParser(map(tree, texts))
    assert str(majority.parse(["x", "y"])) == "(S (NP (XX x)) (VP (XX y)))"
    assert str(majority.parse(["x"])) == "(NP (XX x))"
    assert str(majority.parse(["x", "y", "z"])) == "(S (NP (XX x)) (VP (XX y)) (XX z))", "the nearest length, mended"
    far = MajorityParser(map(tree, ["(NP (NN a) (NN b) (NN c))", "(VP (VB a))"]))
    assert str(far.parse(["x", "y"])) == "(VP (XX x) (XX y))", "of two lengths as near, the shorter"
