# %% [markdown]
# # 6.1 Decoding
#
# A trained model gives probabilities of the next token. Decoding turns them into a sentence. This chapter takes the most
# probable token at every step, keeps what it has computed, and shows that neither the cache nor the other sentences of a
# batch change the output.

# %%
#| default_exp decoding

# %%
import altair as alt

import transformer
from transformer.data import copy_task, make_batch
from transformer.model import TransformerConfig

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
# Greedy decoding is beam search with a beam of one. It has the paper's maximum length and its early end. Every sentence
# has its own maximum, so a long sentence in the batch does not lend a short one more room.

# %%
#| export
import torch
from torch import Tensor

from transformer.masks import padding_mask
from transformer.model import Transformer

EXTRA_TOKENS = 50


# %% [markdown]
# The cache holds the keys and values of all earlier positions ([Section 3.2.2](03_2_2_multi_head_attention.py)). A step
# then computes one position instead of all. When a sentence ends it leaves the batch, and the cache keeps only the rows
# that live on.


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
        ValueError: The model is in training mode, or max_new_tokens is less than 1.

    Source: §6.1 for the maximum length; the paper itself uses beam search.
    """
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes the output; call model.eval() first.")
    config = model.config
    src_mask = padding_mask(src, config.pad_id)
    memory = model.encode(src, src_mask)  # (B, n, d_model)
    limits = src_mask.sum(dim=-1).flatten() + EXTRA_TOKENS if max_new_tokens is None else None  # (B,)
    if limits is not None and config.positions == "learned":
        limits = limits.clamp(max=config.max_len)  # there is no position beyond
    room = int(limits.max()) if limits is not None else int(max_new_tokens or 0)
    cache = model.new_cache(memory, src_mask, room)
    outputs: list[list[int]] = [[] for _ in range(src.size(0))]
    sentence = torch.arange(src.size(0), device=src.device)  # which sentence each live row is
    tokens = src.new_full((src.size(0), 1), config.bos_id)
    for step in range(1, room + 1):
        logits = model.output_projection(model.decode(tokens, cache=cache))  # (rows, 1, V)
        tokens = logits.argmax(dim=-1)  # (rows, 1)
        ended = tokens[:, 0] == config.eos_id
        for i, token, end in zip(sentence.tolist(), tokens[:, 0].tolist(), ended.tolist(), strict=True):
            if not end:
                outputs[i].append(token)
        if limits is not None:
            ended |= limits[sentence] <= step
        if ended.all():
            break
        if ended.any():
            live = (~ended).nonzero()[:, 0]
            tokens, sentence = tokens[live], sentence[live]
            cache.select(live)
    return outputs


# %% [markdown]
# ## See it
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
# ## Check it: the cache changes nothing
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
# ## Check it: the batch changes nothing
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
# Without a cache, step t runs the decoder over t positions; a sentence of m tokens costs 1 + 2 + … + m of them. With a
# cache it costs m.

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
# ## Unsaid by the paper
#
# * **How to decode fast.** The paper does not mention keeping keys and values. Generation without it does the same work
#   again at every step.
# * **"Terminate early when possible."** For greedy decoding this is plain: stop at the end token. For a beam it is not; the
#   authors' code stops when no living hypothesis can still overtake the worst of the finished ones.

# %% [markdown]
# ## What we now know
#
# * Greedy decoding with a cache gives the same tokens as without.
# * A sentence's output does not depend on its neighbours in the batch, nor on their order.
# * For 100 tokens the cache computes 100 decoder positions instead of 5,050.

# %% [markdown]
# ## Exercises
#
# 1. *Predict, then run.* Call `greedy_decode` on a model in training mode. Why is that refused rather than allowed?
# 2. Forget to pass the position: let every decoding step believe that it is at position 0. How soon do the outputs
#    differ from those without a cache?
# 3. Write `sample_decode`, which draws the next token from the softmax at a temperature. At which temperature does it
#    equal `greedy_decode`?

# %% tags=["hide-cell"]
# Exercise 2: a positional encoding that ignores its start.
forgetful = Transformer(model.config).eval()
forgetful.load_state_dict(model.state_dict())
encode_positions = forgetful.tgt_positions.forward
forgetful.tgt_positions.forward = lambda x, start=0: encode_positions(x, 0)
wrong = greedy_decode(forgetful, src, max_new_tokens=12)
print(sum(a != b for a, b in zip(wrong, outputs, strict=True)), "of", len(outputs), "outputs differ")
assert wrong != outputs

# %% [markdown]
# ## The notebook and the module agree

# %%
assert transformer.greedy_decode(model, src, max_new_tokens=12) == outputs
