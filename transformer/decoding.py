# Exported from notebooks/06_1a_decoding.py, Section 6.1; edit that file, not this one.
# sha256 of what follows: 8fb0f439b59c131d
"""Decoding (Section 6.1)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transformer.masks import padding_mask
from transformer.model import DecoderCache, Transformer

__all__ = ["EXTRA_TOKENS", "greedy_decode", "length_penalty", "Hypothesis", "beam_search", "sample"]


EXTRA_TOKENS = 50


def _check_count(name: str, value: int, most: int | None = None) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 up.")
    if most is not None and value > most:
        raise ValueError(f"{name} is {value}; it must be at most {most}.")


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


def _best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and ids of the `count` largest logits of each row, the largest first; of equals, the lower id first."""
    values, ids = _largest(logits, count + 1)
    tied = (values[:, 1:] == values[:, :-1]).any(dim=-1)  # topk does not say which of equals it takes
    if tied.any():
        ordered = logits[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], ids[tied] = ordered.values[:, : values.size(1)], ordered.indices[:, : values.size(1)]
    return values[:, :count], ids[:, :count]


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
