# %% [markdown]
# # 6.1 Decoding
#
# A trained model gives probabilities of the next token. Decoding turns them into a sentence, and different ways of doing so
# make different sentences of the same weights. The paper searches with a beam and a length penalty, in three sentences that
# leave most of it open. This chapter builds that search, holds it against exhaustive search, and says every convention.

# %%
#| default_exp decoding

# %%
import itertools
import math

import altair as alt

import transformer
from transformer.corpus import embedded_corpus
from transformer.data import EOS_ID, copy_task, make_batch, pad
from transformer.layers import LayerCache
from transformer.model import TransformerConfig
from transformer.multi_head import KeyValueCache

transformer.check_version("0.1")

# %% [markdown]
# ## One element at a time
#
# > Given $\mathbf{z}$, the decoder then generates an output sequence $(y_1,...,y_m)$ of symbols one element at a time.
# > At each step the model is auto-regressive, consuming the previously generated symbols as additional input when
# > generating the next.
# >
# > — Section 3
#
# > We used beam search with a beam size of $4$ and length penalty $\alpha=0.6$. These hyperparameters were chosen after
# > experimentation on the development set. We set the maximum output length during inference to input length + $50$, but
# > terminate early when possible.
# >
# > — Section 6.1
#
# All ways of decoding begin alike: read the source, project the memory once, take room for the target. The cache holds the
# keys and values of all earlier positions ([Section 3.2.2](03_2_2_multi_head_attention.py)), so a step computes one position
# instead of all. Every sentence has its own maximum length: a long sentence in the batch does not lend a short one more room.

# %%
#| export
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transformer.masks import padding_mask
from transformer.model import DecoderCache, Transformer

EXTRA_TOKENS = 50


# %%
#| export
def _check_count(name: str, value: int, most: int | None = None) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 up.")
    if most is not None and value > most:
        raise ValueError(f"{name} is {value}; it must be at most {most}.")


# %%
#| export
def _begin(model: Transformer, src: Tensor, max_new_tokens: int | None) -> tuple[DecoderCache, Tensor]:
    """An empty cache, one row a sentence, and the most tokens of each sentence: shape (B,), on the CPU."""
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes the output; call model.eval() first.")
    config, src_mask = model.config, padding_mask(src, model.config.pad_id)
    limits = src_mask.sum(dim=-1).flatten().cpu() + EXTRA_TOKENS
    if max_new_tokens is not None:
        _check_count("max_new_tokens", max_new_tokens)
        limits = torch.full_like(limits, max_new_tokens)
    if config.positions == "learned":
        if max_new_tokens is not None and max_new_tokens > config.max_len:
            raise ValueError(
                f"max_new_tokens is {max_new_tokens}, but the model has learned {config.max_len} positions; "
                f"ask for at most {config.max_len}."
            )
        limits = limits.clamp(max=config.max_len)  # there is no position beyond
    return model.new_cache(model.encode(src, src_mask), src_mask, int(limits.max())), limits


# %% [markdown]
# This loop writes one token a sentence and step. How it is chosen is the caller's. A sentence that has ended leaves the batch,
# and the cache keeps the rows that live on. Greedy decoding takes the most probable token.


# %%
#| export
def _write(
    model: Transformer, src: Tensor, max_new_tokens: int | None, choose: Callable[[Tensor, Tensor, int], Tensor]
) -> list[list[int]]:
    """Write with `choose`, which makes of logits (rows, V), each row's sentence, and the step from 1 tokens (rows,)."""
    cache, limits = _begin(model, src, max_new_tokens)
    outputs: list[list[int]] = [[] for _ in limits]
    sentence = torch.arange(len(limits))  # which sentence each live row is
    tokens = src.new_full((len(limits), 1), model.config.bos_id)
    for step in range(1, int(limits.max()) + 1):
        logits = model.output_projection(model.decode(tokens, cache=cache))[:, -1]  # (rows, V)
        if not logits.amax(dim=-1).isfinite().all():
            raise ValueError("the model's logits are not finite numbers; did its training diverge? Load other weights.")
        chosen = choose(logits, sentence, step).cpu()  # (rows,)
        ended = chosen == model.config.eos_id
        for i, token, end in zip(sentence.tolist(), chosen.tolist(), ended.tolist(), strict=True):
            if not end:
                outputs[i].append(token)
        live = (~ended & (limits[sentence] > step)).nonzero()[:, 0]
        if not len(live):
            break
        tokens = chosen[live, None].to(src)  # (rows, 1)
        if len(live) < len(sentence):
            sentence = sentence[live]
            cache.select(live.to(src.device))
    return outputs


# %%
#| export
@torch.inference_mode()
def greedy_decode(model: Transformer, src: Tensor, max_new_tokens: int | None = None) -> list[list[int]]:
    """Take the most probable token at every step until the end token.

    A sentence's output does not depend on what shares its batch. Sentences that have ended leave the batch.

    Args:
        model: In evaluation mode.
        src: Source ids, shape (B, n), padded with pad_id.
        max_new_tokens: Most tokens to generate per sentence; None means its own length + 50, as in the paper,
            or as many as there are learned positions, if they are fewer.

    Returns:
        The ids of each sentence, without begin and end.

    Raises:
        ValueError: The model is in training mode, its logits are not finite, or max_new_tokens is less than 1 or more
            than the learned positions.

    Source: §6.1 for the maximum length; the paper itself uses beam search.
    """
    return _write(model, src, max_new_tokens, lambda logits, *_: logits.argmax(dim=-1))


# %% [markdown]
# ### See it
#
# An untrained model has nothing to say, but the mechanism is the same for any weights: tokens in, one token out, the
# output becomes input.

# %%
torch.manual_seed(1)
model = Transformer(TransformerConfig(32, 32, d_model=32, n_layers=2, n_heads=4, d_ff=64)).eval()
sources = [source for source, _ in copy_task(8, max_len=30, seed=3)]
src = make_batch([(source, []) for source in sources]).src
outputs = greedy_decode(model, src, max_new_tokens=12)
for source, output in zip(sources[:3], outputs, strict=False):
    print(len(source), "tokens in:", output)

# %% [markdown]
# ### Check it: the cache changes nothing
#
# The plain way decodes the whole prefix anew at every step. It must give the same tokens.


# %%
@torch.inference_mode()
def greedy_without_cache(model: Transformer, src: Tensor, max_new_tokens: int) -> list[int]:
    tokens = src.new_full((1, 1), model.config.bos_id)
    for _ in range(max_new_tokens):
        best = model(src, tokens)[:, -1].argmax(dim=-1, keepdim=True)  # (1, 1)
        if best.item() == model.config.eos_id:
            break
        tokens = torch.cat([tokens, best], dim=1)
    return tokens[0, 1:].tolist()


for source, output in zip(sources, outputs, strict=True):
    alone = make_batch([(source, [])]).src
    assert greedy_without_cache(model, alone, 12) == output
print(len(sources), "outputs are the same with and without the cache")

# %% [markdown]
# ### Check it: the batch changes nothing
#
# One of the eight sources is longer than the others, so seven of them are padded. Each decodes alone as it did in the
# batch.

# %%
for source, output in zip(sources, outputs, strict=True):
    assert greedy_decode(model, make_batch([(source, [])]).src, max_new_tokens=12) == [output]
assert greedy_decode(model, src.flip(0), max_new_tokens=12) == outputs[::-1]
print("alone, together and in reverse order: the same outputs")


# %% [markdown]
# ## What the cache saves
#
# Without a cache, step $t$ runs the decoder over $t$ positions; a sentence of $m$ tokens costs $1 + 2 + … + m$ of them. With
# a cache it costs $m$. The beam search below multiplies both by the size of its beam.

# %%
lengths = [1, *range(5, 101, 5)]
values = [{"m": m, "positions": m * (m + 1) // 2, "way": "without cache"} for m in lengths]
values += [{"m": m, "positions": m, "way": "with cache"} for m in lengths]
assert values[len(lengths) - 1]["positions"] == 5050 and values[-1]["positions"] == 100
chart = (
    alt.Chart(alt.Data(values=values))
    .mark_line(point=True)
    .encode(
        x=alt.X("m:Q", title="tokens written, m"),
        y=alt.Y("positions:Q", title="decoder positions computed", scale=alt.Scale(type="log")),
        color=alt.Color("way:N", title=None, scale=alt.Scale(range=["#0072B2", "#E69F00"])),
        strokeDash=alt.StrokeDash("way:N", title=None),
        tooltip=["way:N", "m:Q", "positions:Q"],
    )
    .properties(title="At 100 tokens the cache saves 98 % of the decoder's positions", width=420, height=240)
)
chart

# %% [markdown]
# The vertical axis is logarithmic. At 100 tokens the upper line stands at 5,050 positions, the lower at 100. The new
# position still attends to all earlier keys. What the cache saves is the work of the positions before it: their
# projections, their rows of attention, their feed-forward networks.


# %% [markdown]
# ## Greed can miss
#
# The most probable first token need not begin the most probable sentence. Here is a model that is nothing but a table: the
# probabilities of the next token after each beginning. It has the interface of `Transformer`, and it keeps what was written in
# a real cache, so a search that mixed up its rows would read from the wrong line.


# %%
class TableModel:
    """Gives the next token's probabilities by a function of the tokens written so far."""

    training = False

    def __init__(self, probabilities: Callable[[tuple[int, ...]], list[float]]) -> None:
        self.probabilities = probabilities
        size = len(probabilities(()))
        self.config = TransformerConfig(size, size, d_model=2, n_heads=1, n_layers=1, d_ff=1)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        return src[:, None, :, None].double()  # (B, 1, n, 1): not used

    def new_cache(self, memory: Tensor, memory_mask: Tensor, room: int) -> DecoderCache:
        keys = torch.zeros(len(memory), 1, room, 1, dtype=torch.float64)
        return DecoderCache([LayerCache(KeyValueCache(keys, keys.clone()), memory, memory)], memory_mask)

    def decode(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        new = tokens[:, None, :, None].double()  # (rows, 1, 1, 1)
        return cache.layers[0].own.append(new, new)[0][:, 0, :, 0]  # (rows, step): begin, then what was written

    def output_projection(self, written: Tensor) -> Tensor:
        rows = [self.probabilities(tuple(int(token) for token in row[1:])) for row in written.tolist()]
        return torch.tensor(rows, dtype=torch.float64).log()[:, None]  # (rows, 1, V)


NAMES = ["<pad>", "<s>", "</s>", "the", "a", "dog", "cat", "cow"]
LINES = {
    "": {"the": 0.6, "a": 0.4},
    "the": {"dog": 0.4, "cat": 0.3, "cow": 0.3},
    "a": {"dog": 0.9, "cat": 0.1},
}


def next_word(written: tuple[int, ...]) -> list[float]:
    line = LINES.get(" ".join(NAMES[token] for token in written), {"</s>": 1.0})
    return [line.get(name, 0.0) for name in NAMES]


table, anything = TableModel(next_word), torch.tensor([[3, EOS_ID]])
greedy = greedy_decode(table, anything)[0]
print("greedy:", *[NAMES[token] for token in greedy], "with probability", round(0.6 * 0.4, 2))
print("better: a dog with probability", round(0.4 * 0.9, 2))

# %% [markdown]
# A beam keeps the $k$ most probable beginnings instead of one. With $k = 2$ both *the* and *a* survive the first step, and the
# second step decides.
#
# ## The length penalty
#
# Every further token makes a sentence less probable. So $\log P(Y \mid X)$ prefers short outputs, and a search that finds the
# most probable sentence finds one that is too short. The paper's "length penalty $\alpha = 0.6$" is that of Google's
# earlier system (Wu et al. 2016, with one author in common): hypotheses are compared by
#
# $$\text{score}(Y) = \frac{\log P(Y \mid X)}{lp(Y)}, \qquad lp(Y) = \left(\frac{5 + |Y|}{6}\right)^{\alpha}.$$
#
# The name misleads. $\log P$ is negative, so what divides it is a bonus for length. Some toolkits divide by $|Y|^\alpha$ instead,
# fairseq among them. The same $\alpha$ then means another preference, so the form is an argument.


# %%
#| export
def length_penalty(length: Tensor, alpha: float = 0.6, form: str = "gnmt") -> Tensor:
    """What beam search divides log P(Y | X) by.

    Args:
        length: |Y|, the number of tokens, the end token among them; any shape.
        alpha: 0 for no penalty.
        form: "gnmt" for ((5 + |Y|) / 6)^α, as the paper's authors computed it; "fairseq" for |Y|^α.

    Returns:
        Penalties of the same shape, float64.

    Raises:
        ValueError: alpha is negative or not finite, or the form is unknown.

    Source: §6.1, which names α and refers to Wu et al. (2016).
    """
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"alpha is {alpha}; it must be a number from 0 up.")
    if form not in ("gnmt", "fairseq"):
        raise ValueError(f'the penalty is {form!r}; choose "gnmt" (the paper) or "fairseq".')
    base = length.double()
    return ((5 + base) / 6 if form == "gnmt" else base) ** alpha


# %%
length = torch.tensor([1, 7, 13, 25])
for form in ("gnmt", "fairseq"):
    print(f"{form:8}", *[f"{value:6.3f}" for value in length_penalty(length, 0.6, form).tolist()])
assert torch.allclose(length_penalty(length, 0.6), torch.tensor([1, 2, 3, 5]).double() ** 0.6)

# %% [markdown]
# ## One step of the beam
#
# Each of a sentence's $w$ hypotheses can be continued by each of $V$ tokens. Of these $w \cdot V$ candidates the step needs
# the best $2k$: at most $w \le k$ of them end, one per hypothesis, so at least $k$ live on. No hypothesis can give more than
# $2k$, so the vocabulary is searched once per hypothesis, by PyTorch, and only a few numbers remain to be added and sorted.
#
# `topk` sorts, and sorting $V$ logits takes longer than reading them. So the logits are first laid out as a table of 16 rows.
# The $k$ largest stand in at most $k$ of its columns, and those are the columns with the $k$ largest maxima. Finding maxima is
# one pass that a processor makes many numbers at a time; what is left to sort are the chosen columns.
#
# Equal logits need care. `topk` promises no order among equals and takes another one when the batch has another shape. A
# sentence's translation must not depend on that. Rows in which equals occur are sorted again, stably: the lower id comes first,
# as in `argmax`. For the same reason, $\log P$ is added in double precision, where two different logits stay different.


# %%
#| export
def _largest(logits: Tensor, count: int, height: int = 16) -> tuple[Tensor, Tensor]:
    """`topk` for many columns: values and ids of the `count` largest logits of each row (rows, V)."""
    width = logits.size(-1) // height
    if width < 32 * count:  # a table this small saves nothing
        return logits.topk(min(count, logits.size(-1)))
    columns = logits[:, : height * width].unflatten(1, (height, width)).amax(dim=1).topk(count).indices  # (rows, count)
    table = torch.arange(0, height * width, width, device=logits.device)[:, None] + columns[:, None]
    rest = torch.arange(height * width, logits.size(-1), device=logits.device).expand(len(logits), -1)
    ids = torch.cat([table.flatten(1), rest], dim=1)  # (rows, height·count, and less than height more)
    values, order = logits.gather(1, ids).topk(count)
    return values, ids.gather(1, order)


# %%
#| export
def _best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and ids of the `count` largest logits of each row, the largest first; of equals, the lower id first."""
    values, ids = _largest(logits, count + 1)
    tied = (values[:, 1:] == values[:, :-1]).any(dim=-1)  # topk does not say which of equals it takes
    if tied.any():
        ordered = logits[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], ids[tied] = ordered.values[:, : values.size(1)], ordered.indices[:, : values.size(1)]
    return values[:, :count], ids[:, :count]


# %%
#| export
def _grow(logits: Tensor, log_p: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best one-token continuations of each sentence's hypotheses, the best first.

    From logits (S·w, V) and log P of the hypotheses (S, w) to log P, hypothesis continued and token, all (S, count).
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    each = min(count, logits.size(-1))  # no hypothesis can give more
    values, ids = _best_tokens(logits, each)  # (S·w, each)
    total = values[:, 0] + (logits - values[:, :1]).exp_().sum(dim=-1).log()  # (S·w,): log Σ exp, the largest taken out
    if not total.isfinite().all():
        raise ValueError("the model's logits are not finite numbers; did its training diverge? Load other weights.")
    # From here on few numbers are left. The CPU adds them in double precision, which not every device has.
    steps = values.cpu().double() - total.cpu().double()[:, None]  # log P of the token alone
    grown = (log_p[:, :, None] + steps.reshape(*log_p.shape, each)).flatten(1)  # (S, w·each)
    best, order = (part[:, :count] for part in grown.sort(dim=-1, descending=True, stable=True))  # equals stay in order
    return best, order // each, ids.cpu().reshape(len(log_p), -1).gather(1, order)


# %%
many = torch.randn(5, 8_003)
assert all(ours.equal(theirs) for ours, theirs in zip(_largest(many, 9), many.topk(9), strict=True))
ties = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 2.0, 3.0]])
print(_best_tokens(ties, 3)[1].tolist())
assert _best_tokens(ties, 3)[1].tolist() == [[1, 2, 4]] and ties.argmax() == 1

# %% [markdown]
# ## The search
#
# At first all hypotheses of a sentence would be equal, so there is one row a sentence. The beam widens in the first steps to
# $k$ rows. Those that end are kept apart, with their scores; they take no place in the beam from those that live. The cache
# follows its rows. All hypotheses of a sentence read the same source, so while no sentence leaves, the memory's keys and values
# stay where they are.
#
# "Terminate early when possible": when is it? Not when the best hypothesis ends, and not when $k$ have ended. With a penalty a
# longer one can still come out ahead. Two facts give a bound. $\log P$ only falls as a hypothesis grows, and the penalty is
# largest at the maximum length. So no descendant of a living hypothesis scores more than its $\log P$ of now divided by the
# penalty at the maximum length. When that is no more than the score of the best finished hypothesis (or the last of the
# `n_best` asked for), the sentence is done, and the result is what it would have been at the maximum length.


# %%
#| export
class Hypothesis(NamedTuple):
    """A translation that beam search found.

    Args:
        ids: Its tokens, without begin and end.
        score: log P(Y | X) divided by the length penalty.
        log_probability: log P(Y | X), natural logarithm, the end token's included.
        finished: Whether it has an end token; False if it was cut at the maximum length.
    """

    ids: list[int]
    score: float
    log_probability: float
    finished: bool = True


# %%
#| export
@torch.inference_mode()
def beam_search(
    model: Transformer,
    src: Tensor,
    beam_size: int = 4,
    alpha: float = 0.6,
    max_new_tokens: int | None = None,
    n_best: int = 1,
    penalty: str = "gnmt",
) -> list[list[Hypothesis]]:
    """Keep the beam_size most probable beginnings at every step; return the best by log P(Y | X) / length penalty.

    A sentence's output does not depend on what shares its batch. A sentence leaves the batch when nothing that lives
    can still enter its n_best.

    Args:
        model: In evaluation mode.
        src: Source ids, shape (B, n), padded with pad_id.
        beam_size: k. With 1, the ids are those of `greedy_decode`.
        alpha: α of the length penalty, 0 or more.
        max_new_tokens: Most tokens to generate per sentence, the end token among them; None means its own length + 50,
            as in the paper, or as many as there are learned positions, if they are fewer.
        n_best: How many hypotheses to return per sentence, at most beam_size.
        penalty: "gnmt" (the paper) or "fairseq"; see `length_penalty`.

    Returns:
        For each sentence its hypotheses, the best first. There are fewer than n_best if fewer finished; if none did,
        they are those that were cut at the maximum length.

    Raises:
        ValueError: The model is in training mode, its logits are not finite, or an option is out of its range.

    Source: §6.1.
    """
    _check_count("beam_size", beam_size)
    _check_count("n_best", n_best, beam_size)
    length_penalty(torch.ones(1), alpha, penalty)  # refuses what it cannot use, before the work
    cache, limits = _begin(model, src, max_new_tokens)
    found: list[list[Hypothesis]] = [[] for _ in limits]
    sentence = torch.arange(len(limits))  # S sentences live, each with w hypotheses
    log_p = torch.zeros(len(limits), 1, dtype=torch.float64)  # (S, w)
    written = torch.zeros(len(limits), 1, 0, dtype=torch.int64)  # (S, w, step)
    worst = torch.full((len(limits),), -torch.inf, dtype=torch.float64)  # score of the n_best-th finished one
    tokens = src.new_full((len(limits), 1), model.config.bos_id)
    for step in range(1, int(limits.max()) + 1):
        logits = model.output_projection(model.decode(tokens, cache=cache))[:, -1]  # (S·w, V)
        width, here = log_p.size(1), torch.arange(len(log_p))[:, None]
        log_p, parent, token = _grow(logits, log_p, 2 * beam_size)  # (S, 2k): at most w end, so k live on
        divisor = length_penalty(torch.tensor(step), alpha, penalty)
        ended = token == model.config.eos_id
        better = (ended & (log_p / divisor > worst[:, None]))[:, :beam_size]
        for s, j in better.nonzero().tolist():
            best, value = found[int(sentence[s])], float(log_p[s, j])
            best.append(Hypothesis(written[s, parent[s, j]].tolist(), value / float(divisor), value))
            best.sort(key=lambda hypothesis: -hypothesis.score)
            del best[n_best:]
            worst[s] = best[-1].score if len(best) == n_best else -torch.inf
        # What did not end lives on. A beam of one has nothing left: that makes it greedy decoding.
        lives = ended.int().argsort(dim=-1, stable=True)[:, : min(beam_size, log_p.size(1) - width)]
        if beam_size == 1:
            log_p = log_p.masked_fill(ended[:, :1], -torch.inf)
        log_p, parent, token = log_p.gather(1, lives), parent.gather(1, lives), token.gather(1, lives)  # (S, w)
        written = torch.cat([written[here, parent], token[:, :, None]], dim=-1)
        # log P only falls and the penalty only grows with length: no descendant scores above this.
        bound = log_p[:, 0] / length_penalty(limits[sentence], alpha, penalty)
        over = (bound <= worst) | (limits[sentence] <= step)
        for s in over.nonzero()[:, 0].tolist():
            cut = zip(written[s].tolist(), log_p[s].tolist(), strict=True)
            if not found[int(sentence[s])]:
                found[int(sentence[s])] = [Hypothesis(y, p / float(divisor), p, False) for y, p in cut][:n_best]
        keep = (~over).nonzero()[:, 0]
        if not len(keep):
            break
        rows = (here * width + parent)[keep].flatten()
        stay = len(keep) == len(over) and width == log_p.size(1)  # each row stays with its sentence
        if not stay or not rows.equal(torch.arange(len(rows))):
            cache.select(rows.to(src.device), same_source=stay)
        sentence, log_p, written, worst = sentence[keep], log_p[keep], written[keep], worst[keep]
        tokens = token[keep].view(-1, 1).to(src)
    return found


# %% [markdown]
# ### See it
#
# The table from above, with beams of one and two.

# %%
for k in (1, 2):
    (best,) = beam_search(table, anything, beam_size=k)[0]
    print(f"beam {k}:", *[NAMES[token] for token in best.ids], f"  P = {math.exp(best.log_probability):.2f}")
    assert [NAMES[token] for token in best.ids] == ["a" if k == 2 else "the", "dog"]

# %% [markdown]
# ### Check it: nothing is missed
#
# Over four tokens, one of which ends, there are few sentences of at most five tokens. Exhaustive search scores all of them. A
# beam that is wide enough to hold every beginning must find the same best ones, in the same order, for any penalty.


# %%
def random_table(seed: int) -> Callable[[tuple[int, ...]], list[float]]:
    """A line of its own for each of the beginnings that are shorter than five tokens."""
    rng = torch.Generator().manual_seed(seed)
    beginnings = [y for n in range(5) for y in itertools.product([0, 1, 3], repeat=n)]
    lines = torch.softmax(2 * torch.randn(len(beginnings), 4, generator=rng, dtype=torch.float64), dim=-1)
    return dict(zip(beginnings, lines.tolist(), strict=True)).__getitem__


def exhaustive_search(
    probabilities: Callable[[tuple[int, ...]], list[float]], alpha: float
) -> list[tuple[float, list]]:
    found = []
    for y in (y for n in range(5) for y in itertools.product([0, 1, 3], repeat=n)):
        log_p = sum(math.log(probabilities(y[:i])[token]) for i, token in enumerate([*y, EOS_ID]))
        found.append((log_p / ((5 + len(y) + 1) / 6) ** alpha, list(y)))
    return sorted(found, reverse=True)


compared = greedy_misses = narrow_misses = 0
for seed, alpha in itertools.product(range(10), (0, 0.6, 1)):
    probabilities = random_table(seed)
    everything = exhaustive_search(probabilities, alpha)
    found = beam_search(TableModel(probabilities), anything, 4**4, alpha, max_new_tokens=5, n_best=3)[0]
    assert [hypothesis.ids for hypothesis in found] == [y for _, y in everything[:3]]
    assert all(math.isclose(h.score, score) for h, (score, _) in zip(found, everything, strict=False))
    (narrow,) = beam_search(TableModel(probabilities), anything, 2, alpha, max_new_tokens=5)[0]
    narrow_misses += narrow.ids != everything[0][1]
    greedy_misses += greedy_decode(TableModel(probabilities), anything, max_new_tokens=5)[0] != everything[0][1]
    compared += 1
print(len(everything), "sentences in each of", compared, "searches; the wide beam found the best three of each")
print("a beam of two missed the best in", narrow_misses, "and greedy decoding in", greedy_misses)
assert 0 < narrow_misses < greedy_misses

# %% [markdown]
# Beam search promises nothing when the beam is narrower than that. On a real translation model it misses the most probable
# output most of the time, and that is just as well: Stahlberg and Byrne (2019) searched a Transformer of base size exhaustively,
# without a penalty, and for more than half of the sentences the most probable output was the empty one. So a beam of four
# is not a poor man's exhaustive search. It is part of what makes the translations good.
#
# ### Check it: by hand, without cache or batch
#
# Here is the same search as a textbook has it: one sentence, Python lists, the whole prefix computed anew at every step, always
# on to the maximum length. It also writes down all it sees, for the picture below.


# %%
@torch.inference_mode()
def beam_by_hand(model: Transformer, src: list[int], k: int, alpha: float, limit: int) -> tuple[Hypothesis, list[dict]]:
    living, finished, seen = [(0.0, ())], [], []
    for step in range(1, limit + 1):
        grown = []
        for log_p, y in living:
            logits = model(torch.tensor([src]), torch.tensor([[model.config.bos_id, *y]]))[0, -1]  # (V,)
            values = logits.log_softmax(dim=-1).tolist()
            grown += [(log_p + value, (*y, token)) for token, value in enumerate(values)]
        grown.sort(key=lambda candidate: -candidate[0])
        ended = [(log_p, y) for log_p, y in grown[:k] if y[-1] == EOS_ID]
        finished += [Hypothesis(list(y[:-1]), log_p / ((5 + step) / 6) ** alpha, log_p) for log_p, y in ended]
        living = [(log_p, y) for log_p, y in grown if y[-1] != EOS_ID][:k]
        shown = sorted([*ended, *living], key=lambda candidate: -candidate[0])
        seen += [{"y": y, "rank": rank, "log_p": log_p} for rank, (log_p, y) in enumerate(shown, 1)]
    return max(finished, key=lambda hypothesis: hypothesis.score), seen


translator = transformer.load_toy_translator()
pairs = list(itertools.islice(embedded_corpus("test"), 60))
sources = [[*translator.tokenizer.encode(pair.source), EOS_ID] for pair in pairs]
together = beam_search(translator.model, pad(sources))
for source, (best,) in itertools.islice(zip(sources, together, strict=True), 4):
    by_hand, _ = beam_by_hand(translator.model, source, k=4, alpha=0.6, limit=len(best.ids) + 4)
    assert by_hand.ids == best.ids and abs(by_hand.score - best.score) < 1e-5
    print(f"{best.score:7.4f}", translator.tokenizer.decode(best.ids))

# %% [markdown]
# ### Check it: a beam of one is greedy, and the batch changes nothing

# %%
greedy = greedy_decode(translator.model, pad(sources))
assert [best.ids for (best,) in beam_search(translator.model, pad(sources), beam_size=1)] == greedy
for start in range(0, len(sources), 7):
    few = beam_search(translator.model, pad(sources[start : start + 7]))
    for (alone,), (best,) in zip(few, together[start : start + 7], strict=True):
        assert alone.ids == best.ids and abs(alone.score - best.score) < 1e-5
print(len(sources), "translations: the same by sevens as together")

# %% [markdown]
# ## A beam, seen
#
# The shipped model translates one sentence with a beam of four. Each column is a step, and its rows are the hypotheses by rank.
# A line leads from a hypothesis to its continuation.

# %%
english = "The dog drinks the milk although it is very sour."
source = [*translator.tokenizer.encode(english), EOS_ID]
(best,) = beam_search(translator.model, pad([source]))[0]
_, seen = beam_by_hand(translator.model, source, k=4, alpha=0.6, limit=len(best.ids) + 1)
place = {node["y"]: (len(node["y"]), node["rank"]) for node in seen}
winner = [(*best.ids, EOS_ID)[: n + 1] for n in range(len(best.ids) + 1)]
parents = {node["y"][:-1] for node in seen}
pieces = translator.tokenizer.pieces(range(len(translator.tokenizer)))
values = []
for node in (node for node in seen if node["rank"] <= 5):
    y = node["y"]
    fate = "chosen" if y in winner else "ended" if y[-1] == EOS_ID else "lives on" if y in parents else "dropped"
    step, rank = place[y]
    from_step, from_rank = place.get(y[:-1], (0, 1))
    text = pieces[y[-1]].replace("▁", " ").strip() or "▁"
    so_far = translator.tokenizer.decode([token for token in y if token != EOS_ID])
    values.append(
        {
            "step": step,
            "rank": rank,
            "from_step": from_step,
            "from_rank": from_rank,
            "token": text,
            "fate": fate,
            "log P": round(node["log_p"], 3),
            "so far": so_far,
        }
    )
assert winner[-1] in place and len(values) < 150

# %%
alive = alt.Chart(alt.Data(values=values)).encode(
    x=alt.X(
        "step:Q",
        title="step",
        axis=alt.Axis(tickMinStep=1, grid=False),
        scale=alt.Scale(domain=[0, len(winner) + 0.5], nice=False),
    ),
    y=alt.Y("rank:Q", title="rank", scale=alt.Scale(reverse=True, domain=[0.5, 5.5]), axis=alt.Axis(tickMinStep=1)),
    tooltip=["so far:N", "token:N", "log P:Q", "rank:Q", "fate:N"],
)
fates, below = ["chosen", "lives on", "dropped", "ended"], alt.Legend(orient="bottom")
fate = alt.Color(
    "fate:N",
    title=None,
    legend=below,
    scale=alt.Scale(domain=fates, range=["#0072B2", "#009E73", "#999999", "#D55E00"]),
)
sign = alt.Shape(
    "fate:N", title=None, legend=below, scale=alt.Scale(domain=fates, range=["circle", "square", "cross", "diamond"])
)
lines = alive.mark_rule(opacity=0.7).encode(
    x="from_step:Q",
    x2="step:Q",
    y="from_rank:Q",
    y2="rank:Q",
    color=fate,
    strokeWidth=alt.condition("datum.fate == 'chosen'", alt.value(3), alt.value(1)),
)
labels = alive.mark_text(fontSize=12, dy=-9, fontWeight="bold").encode(text="token:N")
dots = alive.mark_point(filled=True, size=40, opacity=1).encode(color=fate, shape=sign)
(lines + dots + labels).properties(title="A beam of four holds variants of one sentence", width=620, height=240)

# %% [markdown]
# The thick line is the translation; grey hypotheses found no continuation in the beam, and in the last column the picture ends. Point at a dot to read what it ends.

# %%
(variants,) = beam_search(translator.model, pad([source]), n_best=4)
for hypothesis in variants:
    print(f"{hypothesis.score:7.3f}  {translator.tokenizer.decode(hypothesis.ids)}")
    assert len(set(hypothesis.ids) & set(best.ids)) > len(set(best.ids)) / 2
assert variants[0] == best

# %% [markdown]
# The four places do not hold four different sentences. They hold one sentence with one decision taken differently, such as
# another verb or another article, and then carry each variant along to the end. The list shows the best of those that
# finished, by score. A wider beam would hold more such variants rather than other ideas.
#
# ## What α does
#
# A larger $\alpha$ favours longer outputs. The shipped model translates the same sentences with ever larger ones.

# %%
sample_size, values = 30, []
some = pad(sources[:sample_size])
for alpha in (0.0, 0.6, 1.0, 2.0, 2.5, 3.0, 3.25, 3.5, 4.0):
    results = [best for (best,) in beam_search(translator.model, some, alpha=alpha)]
    texts = [translator.tokenizer.decode(best.ids) for best in results]
    right = sum(text == pair.target for text, pair in zip(texts, pairs, strict=False)) / sample_size
    length = sum(len(best.ids) for best in results) / sample_size
    log_p = sum(best.log_probability for best in results) / sample_size
    values.append({"alpha": alpha, "tokens": length, "right": right, "log P": log_p})
    print(f"α = {alpha:4}: {length:5.1f} tokens, log P {log_p:8.2f}, {right:4.0%} right")
by_alpha = {value["alpha"]: value for value in values}
assert all(abs(by_alpha[alpha]["right"] - by_alpha[0.0]["right"]) < 0.05 for alpha in (0.6, 1.0, 2.0))
assert by_alpha[4.0]["right"] < 0.1 and by_alpha[4.0]["tokens"] > 3 * by_alpha[0.6]["tokens"]

# %%
base = alt.Chart(alt.Data(values=values)).encode(
    x=alt.X("alpha:Q", title="α"),
    tooltip=[
        alt.Tooltip("alpha:Q", title="α"),
        alt.Tooltip("tokens:Q", format=".1f"),
        alt.Tooltip("right:Q", format=".0%"),
        alt.Tooltip("log P:Q", format=".2f"),
    ],
)
length_chart = base.mark_line(point=True, color="#0072B2").encode(y=alt.Y("tokens:Q", title="mean length, tokens"))
right_chart = base.mark_line(point=True, color="#D55E00").encode(
    y=alt.Y("right:Q", title="exactly right", axis=alt.Axis(format="%"))
)
(length_chart.properties(width=300, height=200) | right_chart.properties(width=300, height=200)).properties(
    title="The penalty is harmless up to a point; beyond it the beam writes on to the maximum length"
)

# %% [markdown]
# For a long way hardly anything changes: this model's probabilities say clearly where a sentence ends. Then comes a cliff. The
# score divides a $\log P$ that falls about linearly with length by a penalty that grows like a power of it. Once $\alpha$ is
# large enough, a long and improbable output scores better than a short and certain one, and the search writes on to the
# maximum length. What value suits depends on the model and the text; the authors chose 0.6 on their development set.

# %% [markdown]
# ## Sampling
#
# The paper does not sample. It is the usual way with language models, and it shows what a distribution holds that its
# maximum hides. Dividing the logits by a temperature below 1 sharpens the softmax, above 1 it flattens it; `top_k` cuts off
# the tail of improbable tokens.
#
# A draw must not depend on the neighbours in the batch either. Each sentence has its own stream of random numbers, one number a
# step: the token is where that number falls in the cumulated probabilities.


# %%
#| export
@torch.inference_mode()
def sample(
    model: Transformer,
    src: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | Sequence[int] = 0,
    max_new_tokens: int | None = None,
) -> list[list[int]]:
    """Draw each token from the softmax of the logits divided by the temperature.

    With a seed for each sentence, an output does not depend on what shares its batch. With one for all, it depends on
    the sentence's place there, and on nothing else of it.

    Args:
        model: In evaluation mode.
        src: Source ids, shape (B, n), padded with pad_id.
        temperature: Above 0. Towards 0 the most probable token takes all, as in `greedy_decode`.
        top_k: Draw among the k most probable tokens only; None for all. With 1, the ids are those of `greedy_decode`.
        seed: One for each sentence; or one for all, and then sentence i draws by (seed, i).
        max_new_tokens: As in `greedy_decode`.

    Returns:
        The ids of each sentence, without begin and end.

    Raises:
        ValueError: The model is in training mode, its logits are not finite, or an option is out of its range.

    Source: not in the paper.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; it must be above 0 (greedy_decode is the limit at 0).")
    if top_k is not None:
        _check_count("top_k", top_k)
    seeds = [(seed, i) for i in range(len(src))] if isinstance(seed, int) else [(one,) for one in seed]
    if len(seeds) != len(src):
        raise ValueError(f"{len(seeds)} seeds are given for {len(src)} sentences; give one for each, or one number.")
    if any(number < 0 for entropy in seeds for number in entropy):
        raise ValueError(f"seed is {seed}; seeds are whole numbers from 0 up.")
    streams = [np.random.default_rng(entropy) for entropy in seeds]

    def draw(logits: Tensor, sentence: Tensor, step: int) -> Tensor:
        ids = None
        if top_k is not None:
            logits, ids = _best_tokens(logits, top_k)
        logits = logits.cpu().double()  # not every device has double precision
        weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).exp().cumsum(dim=-1)
        uniform = torch.tensor([[streams[i].random()] for i in sentence.tolist()], dtype=torch.float64)
        drawn = torch.searchsorted(weights, uniform * weights[:, -1:], right=True)  # (rows, 1)
        return (drawn if ids is None else ids.cpu().gather(1, drawn))[:, 0]

    return _write(model, src, max_new_tokens, draw)


# %% [markdown]
# ### See it

# %%
four = pad([source] * 4)
for temperature in (0.5, 1.0, 2.0):
    print("temperature", temperature)
    for ids in sample(translator.model, four, temperature, top_k=10):
        print("   ", translator.tokenizer.decode(ids))
assert sample(translator.model, four, top_k=1) == greedy_decode(translator.model, four)
assert sample(translator.model, four, temperature=1e-6) == greedy_decode(translator.model, four)
assert sample(translator.model, four[2:3], 2.0, seed=[7]) == sample(translator.model, four, 2.0, seed=[5, 6, 7, 8])[2:3]

# %% [markdown]
# ### Check it: as often as the softmax says

# %%
n, probabilities = 4000, random_table(1)
drawn = [y[0] if y else EOS_ID for y in sample(TableModel(probabilities), anything.expand(n, -1), max_new_tokens=1)]
chi_square = sum((drawn.count(i) - n * p) ** 2 / (n * p) for i, p in enumerate(probabilities(())))
print("expected", [round(n * p) for p in probabilities(())], "drawn", [drawn.count(i) for i in range(4)])
assert chi_square < 16.3  # exceeded once in a thousand times with three degrees of freedom

# %% [markdown]
# ## Unsaid by the paper
#
# "Beam size of 4 and length penalty 0.6" leaves open nearly everything that two programs can do differently. This is what we do,
# and what others do.
#
# | question | here | elsewhere |
# |---|---|---|
# | What is the penalty? | $((5+\lvert Y\rvert)/6)^\alpha$; $\lvert Y\rvert^\alpha$ on request | the authors' code the first, fairseq the second |
# | What does $\lvert Y\rvert$ count? | the tokens with the end token, without the begin token | the authors' code the same |
# | What is the input length? | the sentence's own tokens with the end token, without padding | the authors' first code: the padded length of the batch; a later one adds 100 |
# | Does the end token need room? | yes, it is one of the maximum | |
# | Which ends count? | those among the best $k$ candidates of a step | fairseq the same; the authors' code any among the best $2k$ |
# | Do the finished fill the beam? | no, $k$ others live on | the authors' code the same; in the earliest beam searches the beam shrinks |
# | When does a sentence stop? | when no living hypothesis can still enter the n best | the authors' code: when none can overtake the worst it keeps, and all sentences of the batch at once; fairseq: when $k$ have finished |
# | What if none has finished at the maximum length? | those that were cut, scored as they are; `finished` is False | |
# | And a beam of one? | its end is the end, so it is greedy decoding | by the rules above the second candidate would live on, and with a penalty could win |
# | Equal scores? | the better parent first, then the lower id | by chance |
# | In which precision? | logits as the model gives them, the softmax's sum in single or double, the sum over steps in double | mostly single |
#
# * **How to decode fast.** The paper does not mention keeping keys and values, though generation without them does the same
#   work again at every step.
# * **Coverage.** The system that the penalty comes from also rewards hypotheses that attend to every source word. The paper
#   does not mention it, and its authors' code does not have it.
#
# ## What we now know
#
# * Greedy decoding with a cache gives the same tokens as without. So does beam search.
# * A sentence's output does not depend on its neighbours in the batch, in any of the three ways; in sampling, provided that
#   each sentence brings a seed of its own.
# * A beam that is wide enough finds what exhaustive search finds. A narrow one can miss it, and greedy decoding misses more.
# * The search may stop when the bound at the maximum length says so; the first finished hypothesis need not be the best
#   (exercise 4).
# * For 100 tokens the cache computes 100 decoder positions instead of 5,050.
# * Too large an $\alpha$ makes outputs several times too long.
#
# ## Exercises
#
# 1. **Predict, then run.** By what is the log-probability of a translation of 13 tokens divided, with $\alpha = 0.6$? Check:
#    `check("6.1-length-penalty", answer)`.
# 2. **Predict, then run.** Call `greedy_decode` on a model in training mode. Why is that refused rather than allowed?
# 3. **Predict, then run.** Forget to pass the position: let every decoding step of the shipped model believe that it is at position
#    0. How many of the sixty translations change, and where?
# 4. **An hour.** Let a search stop as soon as its best hypothesis ends. Make a table on which that is wrong with $\alpha = 0.6$,
#    though it is right with $\alpha = 0$.
# 5. **An hour.** Write nucleus sampling: draw among the fewest tokens that together hold a share $p$ of the probability. What is
#    the difference to `top_k` where the model is sure, and where it is not?

# %% [markdown]
# Solution to exercise 1: $(18/6)^{0.6} = 3^{0.6}$.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = ((5 + 13) / 6) ** 0.6
print(f"{answer:.4f}")
verdict = check("6.1-length-penalty", answer)
print(verdict)
assert verdict

# %% tags=["hide-cell"]
# Exercise 3: a positional encoding that ignores its start. Most outputs stay: a causal decoder knows its place by what it has
# written. The errors come late, where a sentence says something for the second time.
forgetful = Transformer(translator.model.config).eval()
forgetful.load_state_dict(translator.model.state_dict())
encode_positions = forgetful.tgt_positions.forward
forgetful.tgt_positions.forward = lambda x, start=0: encode_positions(x, 0)
wrong = []
for got, expected in zip(greedy_decode(forgetful, pad(sources)), greedy, strict=True):
    places = (i for i, (a, b) in enumerate(itertools.zip_longest(got, expected), 1) if a != b)
    if (place := next(places, None)) is not None:
        wrong.append(place)
        print(f"from token {place}:", translator.tokenizer.decode(got))
assert 0 < len(wrong) < len(sources) / 2 and min(wrong) > 5

# %% tags=["hide-cell"]
# Exercise 4: a short sentence of probability 0.45 ends at once; one of probability 0.4 takes six tokens, all certain.
patient = {(): [0.15, 0.4, 0.45, 0.0], (1, 3, 3, 3, 3): [0.0, 0.0, 1.0, 0.0]}
patient |= {(1, *[3] * n): [0.0, 0.0, 0.0, 1.0] for n in range(4)}
waiting = TableModel(lambda written: patient.get(written, [0.25] * 4))
(long,) = beam_search(waiting, anything, beam_size=2, alpha=0.6, max_new_tokens=6)[0]
(short,) = beam_search(waiting, anything, beam_size=2, alpha=0, max_new_tokens=6)[0]
print(f"α = 0: {len(short.ids)} tokens, log P {short.log_probability:.3f}")
print(f"α = 0.6: {len(long.ids)} tokens, log P {long.log_probability:.3f}, score {long.score:.3f}")
assert short.ids == [] and len(long.ids) == 5 and long.log_probability < short.log_probability < long.score

# %% [markdown]
# ## The notebook and the module agree

# %%
assert transformer.greedy_decode(model, src, max_new_tokens=12) == outputs
few = pad(sources[:20])
assert transformer.beam_search(translator.model, few, n_best=4) == beam_search(translator.model, few, n_best=4)
assert transformer.sample(translator.model, few, temperature=1.5) == sample(translator.model, few, temperature=1.5)
