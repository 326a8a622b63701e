# %% [markdown]
# # 3.2.3 Applications of Attention in our Model
#
# The Transformer calls one function, multi-head attention, in three places. Each has weights of its own. Otherwise the places differ in two things only: where the queries, keys and values come from, and which connections a mask forbids. A wrong mask seldom raises an error. The model trains, its loss may look fine, and it may be useless. So this chapter measures what each mask does, the wrong ones included.

# %%
#| default_exp masks

# %%
import transformer

transformer.check_version("0.1")

# %%
#| export
import torch
from torch import Tensor

# %%
import math

import altair as alt
import torch.nn.functional as F
from torch import nn

# %% [markdown]
# ## Three uses of one function
#
# > The Transformer uses multi-head attention in three different ways:
# >
# > — Section 3.2.3
#
# ![The three uses of attention with their masks: encoder self-attention takes queries, keys and values from the previous encoder layer; masked decoder self-attention takes all three from the previous decoder layer; encoder–decoder attention takes queries from the decoder, keys and values from the encoder's output.](../book/diagrams/masks_and_uses.svg)
#
# To tell the uses apart we need a batch whose source and target differ in length. Here are three sentence pairs. The short ones are filled up with `<pad>`. The target is what the decoder reads: it begins with `<bos>`.

# %%
pairs = [
    ("the cat slept in the old house <eos>", "<bos> die Katze schlief im alten Haus"),
    ("the dog did not sleep <eos>", "<bos> der Hund hat nicht geschlafen"),
    ("cats sleep <eos>", "<bos> Katzen schlafen"),
]
sources, targets = ([side.split() for side in sides] for sides in zip(*pairs))
tokens = [
    "<pad>",
    "<bos>",
    "<eos>",
    *sorted({token for side in sources + targets for token in side} - {"<bos>", "<eos>"}),
]
token_id = {token: number for number, token in enumerate(tokens)}


def to_batch(sentences):
    """Token ids, filled up with <pad> (id 0) on the right."""
    rows = [torch.tensor([token_id[token] for token in sentence]) for sentence in sentences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)


src = to_batch(sources)  # (B, n)
tgt_in = to_batch(targets)  # (B, m)
print(src, tgt_in, sep="\n")
assert src.shape == (3, 8) and tgt_in.shape == (3, 7)

# %% [markdown]
# ### Who may see what
#
# Two functions make every mask of the model. Both return bool tensors in which True means *may attend*.
#
# > Similarly, self-attention layers in the decoder allow each position in the decoder to attend to all positions in the decoder up to and including that position. We need to prevent leftward information flow in the decoder to preserve the auto-regressive property.
# >
# > — Section 3.2.3
#
# "Up to and including that position" is a lower triangle with its diagonal.


# %%
#| export
def causal_mask(size: int, device: torch.device | str | None = None) -> Tensor:
    """Who may attend to whom in the decoder: every position to itself and to those before it.

    Args:
        size: Number of positions, m.
        device: Where the mask is made.

    Returns:
        Bool, shape (m, m), True on and below the diagonal.

    Raises:
        ValueError: size is less than 1.

    Source: §3.2.3.
    """
    if size < 1:
        raise ValueError(f"size is {size}; a causal mask needs at least one position.")
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


# %% [markdown]
# Sentences of a batch have different lengths. The paper does not say what becomes of the padding. A second mask hides it. Its shape has two axes of length 1, so that it broadcasts over the heads and over the queries.


# %%
#| export
def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Which positions hold a token and not padding.

    Args:
        ids: Token ids, shape (B, n), integers.
        pad_id: The id that fills short sentences up.

    Returns:
        Bool, shape (B, 1, 1, n), True at real tokens; it broadcasts over heads and queries.

    Raises:
        ValueError: ids is not of shape (B, n).

    Source: the paper does not mention padding; its Figures 3 to 5 show `<pad>` tokens.
    """
    if ids.dim() != 2:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; expected (batch, length).")
    return (ids != pad_id)[:, None, None, :]


# %% [markdown]
# ## See it
#
# The causal mask of four positions, and the padding mask of the batch. Row: the query that looks. Column: the key it looks at.

# %%
print(causal_mask(4).int())
print(padding_mask(src)[:, 0, 0].int())

# %% [markdown]
# Each use gets the mask it needs: the source's padding, the target's padding *and* the causal triangle, and again the source's padding.

# %%
src_mask = padding_mask(src)  # (B, 1, 1, n)
tgt_mask = padding_mask(tgt_in) & causal_mask(tgt_in.size(1))  # (B, 1, 1, m) & (m, m) → (B, 1, m, m)
memory_mask = src_mask  # (B, 1, 1, n): the keys are source positions
print(tuple(src_mask.shape), tuple(tgt_mask.shape), tuple(memory_mask.shape))

# %% [markdown]
# Now the three uses. The paper's words stand above the first and the third; those for the second stood above `causal_mask`. `weights` collects what every call attended to.

# %%
torch.manual_seed(0)
d_model, n_heads = 32, 4
embedding = transformer.TokenEmbedding(len(tokens), d_model)
x, y = embedding(src), embedding(tgt_in)  # (B, n, d_model), (B, m, d_model)
weights = {}


def attention(name):
    """A new multi-head attention that notes its weights under a name."""
    module = transformer.MultiHeadAttention(d_model, n_heads)
    module.on_weights = lambda seen: weights.update({name: seen.detach()})
    return module


# %% [markdown]
# > In a self-attention layer all of the keys, values and queries come from the same place, in this case, the output of the previous layer in the encoder. Each position in the encoder can attend to all positions in the previous layer of the encoder.
# >
# > — Section 3.2.3

# %%
encoder_attention = attention("encoder self-attention")
memory = encoder_attention(query=x, key=x, value=x, mask=src_mask)  # (B, n, d_model)

# %% [markdown]
# The decoder's self-attention takes all three from the previous decoder layer, under the causal mask.

# %%
decoder_attention = attention("decoder self-attention")
hidden = decoder_attention(query=y, key=y, value=y, mask=tgt_mask)  # (B, m, d_model)

# %% [markdown]
# > In "encoder-decoder attention" layers, the queries come from the previous decoder layer, and the memory keys and values come from the output of the encoder. This allows every position in the decoder to attend over all positions in the input sequence.
# >
# > — Section 3.2.3

# %%
cross_attention = attention("encoder–decoder attention")
output = cross_attention(query=hidden, key=memory, value=memory, mask=memory_mask)  # (B, m, d_model)

for name, seen in weights.items():
    print(f"{name:27}", tuple(seen.shape), "  each row sums to 1:", torch.allclose(seen.sum(-1), torch.ones(())))
n, m = src.size(1), tgt_in.size(1)
assert [seen.shape[-2:] for seen in weights.values()] == [(n, n), (m, m), (m, n)]

# %% [markdown]
# The weights have one row per query and one column per key: (n, n), (m, m) and (m, n). The third is the only one that is not square, because it alone joins two sequences. The output always has the length of the queries.
#
# ## Check it: the masks of a batch
#
# The model builds the same three masks with `build_masks`. The weights obey them: no forbidden connection has any weight.

# %%
torch.manual_seed(0)
config = transformer.TransformerConfig(
    len(tokens), len(tokens), d_model=d_model, n_layers=2, n_heads=n_heads, d_ff=64, dropout=0.0
)
model = transformer.Transformer(config).eval()
for ours, models in zip((src_mask, tgt_mask, memory_mask), model.build_masks(src, tgt_in), strict=True):
    assert torch.equal(ours, models)
for seen, mask in zip(weights.values(), (src_mask, tgt_mask, memory_mask), strict=True):
    forbidden = ~mask.expand(seen.shape)
    assert seen[forbidden].abs().max() == 0.0
    print("forbidden connections:", int(forbidden.sum()), " largest weight on them:", seen[forbidden].max().item())


# %% tags=["hide-input"]
def mask_cells():
    """One row per cell of each mask and sentence, with the reason if it is forbidden."""
    panels = {
        "source": (sources, sources, src_mask),
        "target": (targets, targets, tgt_mask),
        "memory": (targets, sources, memory_mask),
    }
    for b in range(len(pairs)):
        for panel, (rows, columns, mask) in panels.items():
            m, n = max(map(len, rows)), max(map(len, columns))
            for i, j in torch.cartesian_prod(torch.arange(m), torch.arange(n)).tolist():
                padded = j >= len(columns[b])
                seen = mask.expand(len(pairs), 1, m, n)[b, 0, i, j].item()
                yield {
                    "b": b,
                    "panel": panel,
                    "query": i,
                    "key": j,
                    "connection": "may attend" if seen else "no: padding" if padded else "no: later position",
                }


def padded(sentences):
    """Every sentence's tokens, filled up as in the batch."""
    longest = max(map(len, sentences))
    return [sentence + ["<pad>"] * (longest - len(sentence)) for sentence in sentences]


cells = list(mask_cells())
sentence = alt.param(
    name="sentence",
    value=1,
    bind=alt.binding_select(options=[0, 1, 2], labels=[" ".join(s[:-1]) for s in sources], name="Sentence "),
)
source_tokens = alt.param(name="source_tokens", value=padded(sources))
target_tokens = alt.param(name="target_tokens", value=padded(targets))
colours = alt.Scale(domain=["may attend", "no: later position", "no: padding"], range=["#0072B2", "#E69F00", "#c3c7cc"])


def mask_panel(panel, title, rows, columns):
    """One mask of the chosen sentence, with its tokens on both axes."""
    data = [cell for cell in cells if cell["panel"] == panel]
    m, n = max(cell["query"] for cell in data) + 1, max(cell["key"] for cell in data) + 1
    axis = {"domain": False, "ticks": False, "labelLimit": 80}
    return (
        alt.Chart(alt.Data(values=data), title=alt.Title(title, fontSize=11, anchor="start"))
        .mark_rect(stroke="#888888", strokeWidth=0.5)
        .encode(
            x=alt.X(
                "key:O",
                title=None,
                axis=alt.Axis(labelExpr=f"{columns}[sentence][datum.value]", labelAngle=-90, orient="top", **axis),
            ),
            y=alt.Y("query:O", title=None, axis=alt.Axis(labelExpr=f"{rows}[sentence][datum.value]", **axis)),
            color=alt.Color(
                "connection:N", scale=colours, legend=alt.Legend(title=None, orient="bottom", direction="horizontal")
            ),
            tooltip=[
                alt.Tooltip("row:N", title="query"),
                alt.Tooltip("column:N", title="key"),
                alt.Tooltip("connection:N"),
            ],
        )
        .transform_filter("datum.b == sentence")
        .transform_calculate(row=f"{rows}[sentence][datum.query]", column=f"{columns}[sentence][datum.key]")
        .properties(width=14 * n, height=14 * m)
    )


chart = (
    alt.hconcat(
        mask_panel("source", "encoder", "source_tokens", "source_tokens"),
        mask_panel("target", "decoder", "target_tokens", "target_tokens"),
        mask_panel("memory", "encoder–decoder", "target_tokens", "source_tokens"),
        spacing=12,
    )
    .add_params(sentence, source_tokens, target_tokens)
    .properties(title="Only the decoder's own mask hides later positions")
)
chart

# %% [markdown]
# Choose a sentence above. Blue cells may attend. Padded columns are grey in all three masks. Only the decoder's mask has a triangle of later positions. The third mask has target tokens as rows and source tokens as columns. Rows of `<pad>` queries attend like any other; the loss ignores what comes out of them.
#
# ## Check it: causality by perturbation
#
# The mask claims that position i knows nothing of the positions after it. The claim can be tested without looking at a weight: change one target token and see which outputs move. We change the last token of the first sentence, from *Haus* to *Hund*, in a real two-layer model.

# %%
first_src, first_tgt = src[:1], tgt_in[:1]  # (1, n), (1, m)
m = first_tgt.size(1)
changed = first_tgt.clone()
changed[0, -1] = token_id["Hund"]


@torch.no_grad()
def decode(target, mask):
    """Hidden states of the decoder, (1, m, d_model), for the first source sentence."""
    return model.decode(target, model.encode(first_src), mask)


for name, mask in {"causal mask": causal_mask(m), "no mask": torch.ones(m, m, dtype=torch.bool)}.items():
    moved = (decode(changed, mask) - decode(first_tgt, mask)).abs().amax(dim=-1)[0]  # (m)
    print(f"{name:12}", " ".join(f"{change:6.3f}" for change in moved.tolist()))
    if name == "causal mask":
        assert moved[:-1].max() == 0.0 and moved[-1] > 0.5
    else:
        assert moved[:-1].min() > 0.01

# %% [markdown]
# With the mask, every earlier output changes by exactly 0.0: not by little, by nothing, because a weight of zero multiplies the changed value. Without it every output moves.
#
# Now every token in turn, under right and wrong masks. Entry (i, j) says how far output i moves when input token j changes.

# %%
lower = causal_mask(m)
masks = {
    "right: causal": lower,
    "none": torch.ones_like(lower),
    "transposed": lower.T,
    "inverted": ~lower,
    "one to the right (tril(1))": torch.ones_like(lower).tril(1),
    "one to the left (tril(-1))": torch.ones_like(lower).tril(-1),
}


def influence(mask):
    """Entry (i, j): the largest change of output i when token j is replaced, (m, m)."""
    columns = []
    for j in range(m):
        other = first_tgt.clone()
        other[0, j] = token_id["Hund"]
        columns.append((decode(other, mask) - decode(first_tgt, mask)).abs().amax(dim=-1)[0])
    return torch.stack(columns, dim=1)


influences = {name: influence(mask) for name, mask in masks.items()}
for name, matrix in influences.items():
    leaks = int((matrix.triu(1) > 0).sum())
    print(f"{name:28} later tokens that reach an earlier output: {leaks:2} of {m * (m - 1) // 2}")
assert influences["right: causal"].triu(1).max() == 0.0
assert (influences["right: causal"].tril() + torch.ones(m, m).triu(1) > 0).all()
assert all(
    (influences[name].triu(1) > 0).sum() > 0
    for name in ("none", "transposed", "inverted", "one to the right (tril(1))")
)
assert all((influences[name].triu(1) > 0).sum() == m * (m - 1) // 2 for name in ("none", "transposed", "inverted"))
ahead = influences["one to the right (tril(1))"]
assert (ahead.diagonal(2) > 0).all() and ahead.triu(3).max() == 0.0  # two layers, two positions ahead
assert influences["one to the left (tril(-1))"].triu(1).max() == 0.0
assert influences["none"].min() > 0.01

# %% tags=["hide-input"]
rows = [
    {"mask": name, "i": i, "j": j, "change": round(matrix[i, j].item(), 3), "exact": "0" if matrix[i, j] == 0 else ""}
    for name, matrix in influences.items()
    for i in range(m)
    for j in range(m)
]
which = alt.param(name="which", value="right: causal", bind=alt.binding_select(options=list(masks), name="Mask "))
words = alt.param(name="words", value=targets[0])
labels = {"labelExpr": "words[datum.value]", "domain": False, "ticks": False}
base = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.mask == which")
    .encode(
        x=alt.X("j:O", title="changed token", axis=alt.Axis(labelAngle=-90, orient="top", **labels)),
        y=alt.Y("i:O", title="output", axis=alt.Axis(**labels)),
    )
)
heat = base.mark_rect().encode(
    color=alt.Color("change:Q", scale=alt.Scale(scheme="viridis", domain=[0, 2], clamp=True), title="change"),
    tooltip=[alt.Tooltip("i:O", title="output"), alt.Tooltip("j:O", title="changed"), alt.Tooltip("change:Q")],
)
chart = (
    (heat + base.mark_text(color="#ffffff").encode(text="exact:N"))
    .add_params(which, words)
    .properties(title="Under the causal mask nothing reaches an earlier output", width=300, height=300)
)
chart

# %% [markdown]
# Choose a mask above. A white 0 marks a change of exactly zero. Under the right mask the upper triangle is all zeros. The transposed and the inverted mask let every later token in. `tril(1)` looks one position ahead in each layer, so through two layers it sees two ahead. Note the last entry: a triangle shifted one to the left keeps the zeros where they belong. This perturbation cannot tell it from the right one, because the residual connection carries each token to its own output. The weights show what it misses: no position attends to itself, and the first attends to nothing.
#
# ## What each wrong mask does
#
# A mask has many ways to be wrong. For each we measure, at the real tokens of the whole batch: whether a later token leaks into an earlier output, the largest share of its attention that any query gives to padding in any head, how many queries have nothing to attend to, and how far the decoder's output is from the right one.

# %%
real = tgt_in != 0  # (B, m)
last = real.sum(dim=1) - 1  # (B): the last real position
poked = tgt_in.scatter(1, last[:, None], token_id["Hund"])
before = torch.arange(tgt_in.size(1)) < last[:, None]  # (B, m): real positions before the last


@torch.no_grad()
def diagnose(mask):
    """Leak into earlier outputs, largest share of a query on padding, empty rows, distance from the right output."""
    seen = []
    memory = model.encode(src, src_mask)
    right = model.decode(tgt_in, memory, tgt_mask, memory_mask)
    output = model.decode(tgt_in, memory, mask, memory_mask)
    leak = (model.decode(poked, memory, mask, memory_mask) - output).abs().amax(-1)[before].max().item()
    for layer in model.decoder.layers:
        layer.self_attention.on_weights = seen.append
    model.decode(tgt_in, memory, mask, memory_mask)
    for layer in model.decoder.layers:
        layer.self_attention.on_weights = None
    on_padding = max((w * ~padding_mask(tgt_in)).sum(-1).amax(1)[real].max().item() for w in seen)
    empty = int((~mask.expand_as(tgt_mask).any(-1)[:, 0] & real).sum())
    return leak, on_padding, empty, (output - right).abs().amax(-1)[real].max().item()


everything = torch.ones_like(tgt_mask)
candidates = {
    "right": tgt_mask,
    "causal only": causal_mask(m),
    "padding only": padding_mask(tgt_in).expand_as(tgt_mask),
    "none": everything,
    "transposed": tgt_mask.transpose(-2, -1),
    "inverted": ~tgt_mask,
    "tril(1)": padding_mask(tgt_in) & everything.tril(1),
    "tril(-1)": padding_mask(tgt_in) & everything.tril(-1),
}
print(f"{'mask':14} {'leak':>6} {'padding':>8} {'empty':>6} {'distance':>9}")
found = {name: diagnose(mask) for name, mask in candidates.items()}
for name, (leak, on_padding, empty, distance) in found.items():
    print(f"{name:14} {leak:6.2f} {on_padding:8.2f} {empty:6} {distance:9.2f}")
assert found["right"] == (0.0, 0.0, 0, 0.0)
assert found["causal only"][:3] == (0.0, 0.0, 0) and found["causal only"][3] < 1e-5
assert all(found[name][0] > 0.01 for name in ("padding only", "none", "transposed", "tril(1)"))
assert found["inverted"][1] > 0.99 and found["tril(-1)"][2] == len(pairs)

# %% [markdown]
# Every one of these masks has the right shape and the right dtype, and none raises an error. Two rows deserve a remark. *Causal only* is harmless: targets are padded on the right, so every padded position is a later position. *Inverted* can put all of a query's attention on padding.
#
# ### A float where a bool belongs
#
# PyTorch's own function takes two kinds of mask. A bool mask selects. A float mask is *added to the scores*. A mask of ones and zeros given as floats therefore forbids nothing: it multiplies the odds of the allowed keys by e.

# %%
query, key = torch.zeros(1, 1, 8), torch.zeros(1, 8, 8)  # all scores equal
mask = torch.tensor([[True, True, False, False, False, False, False, False]])
for given in (mask, mask.float()):
    shares = F.scaled_dot_product_attention(query, key, torch.eye(8)[None], given)[
        0, 0
    ]  # values = identity: the weights
    print(f"{given.dtype!s:13} weight on forbidden keys: {shares[2:].sum():.2f}")
assert math.isclose(shares[2:].sum(), 6 / (6 + 2 * math.e), rel_tol=1e-6)

try:
    transformer.scaled_dot_product_attention(query, key, key, mask.float())
except TypeError as error:
    print("ours:", error)

# %% [markdown]
# More than half of the attention goes where none should. Our functions refuse a mask that is not bool.
#
# ### True for may, or True for may not
#
# PyTorch itself uses both. `F.scaled_dot_product_attention` reads True as *may attend*, as we do. `nn.MultiheadAttention` and `nn.Transformer` read True as *may not*. A mask carried from one to the other is inverted.

# %%
torch.manual_seed(0)
ours = transformer.MultiHeadAttention(16, 2)
theirs = nn.MultiheadAttention(16, 2, batch_first=True).eval()
with torch.no_grad():
    theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.w_q.bias, ours.w_k.bias, ours.w_v.bias]))
    theirs.out_proj.load_state_dict(ours.w_o.state_dict())
    z = torch.randn(1, 5, 16)
    allowed = causal_mask(5).tril(-1) | torch.eye(5, dtype=torch.bool)
    wanted = ours(z, z, z, allowed)
    same = (theirs(z, z, z, attn_mask=~allowed)[0] - wanted).abs().max().item()
    carried = (theirs(z, z, z, attn_mask=allowed)[0] - wanted)[:, :-1].abs().max().item()
print(f"given ~mask: equal within 1e-6: {same < 1e-6};  given mask: off by {carried:.2f}")
assert same < 1e-6 < 0.1 < carried

# %% [markdown]
# ### Minus a billion in half precision
#
# The authors' code adds $-10^9$ where we set $-\infty$. In half precision, whose largest number is 65504, there is no such number.

# %%
scores = torch.tensor([1.0, 2.0, 3.0, 4.0])
allowed = torch.tensor([True, True, False, False])
none_allowed = torch.zeros(4, dtype=torch.bool)


def with_bias(scores, allowed, bias):
    """Softmax after adding a large negative number at the forbidden places."""
    return torch.softmax(scores + torch.where(allowed, 0.0, bias).to(scores.dtype), dim=-1).tolist()


try:
    scores.half().masked_fill(~allowed, -1e9)
except RuntimeError as error:
    print("float16, masked_fill(-1e9):", error)
print("float16, -1e9 as a tensor :", torch.tensor(-1e9).half())
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for name, legal in {"two allowed": allowed, "none allowed": none_allowed}.items():
        print(f"{dtype!s:15} {name:13}", [round(w, 3) for w in with_bias(scores.to(dtype), legal, -1e9)])
print("two masks of -65504 added:", torch.tensor(-65504.0).half() + torch.tensor(-65504.0).half())
assert all(map(math.isnan, with_bias(scores.half(), none_allowed, -1e9)))
assert with_bias(scores, none_allowed, -1e9) == [0.25] * 4
assert transformer.masked_softmax(scores.half(), none_allowed).tolist() == [0.0] * 4

# %% [markdown]
# Where something is allowed, all agree. The harm is in the row with nothing to attend to. In half precision it is NaN. In single precision it is worse than NaN, because nobody sees it: adding $-10^9$ wipes out the scores, and the query attends to all forbidden keys alike. Taking $-65504$, the lowest number that float16 has, does not help where two masks are added: their sum is $-\infty$ again.
#
# ### Two missing axes
#
# `ids != pad_id` has shape (B, n). Without the two axes that `padding_mask` inserts, it broadcasts against (m, n). If the batch happens to have as many sentences as the sentence has tokens, no error tells of it, and sentence b's mask is laid over query b of *every* sentence.

# %%
square = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 0], [5, 6, 0, 0], [5, 0, 0, 0]])  # four sentences of four tokens
q = k = torch.randn(4, 2, 4, 8, generator=torch.Generator().manual_seed(0))  # (B, h, n, d_k)
for name, mask in {"with axes": padding_mask(square), "without": square != 0}.items():
    _, seen = transformer.scaled_dot_product_attention(q, k, k, mask)  # (B, h, n, n)
    share = (seen * ~padding_mask(square)).sum(-1)[(square != 0)[:, None].expand(-1, 2, -1)].max().item()
    print(f"{name:10} mask {tuple(mask.shape)!s:14} largest share on padding at a real token: {share:.2f}")
    assert (share == 0.0) == (name == "with axes")

# %% [markdown]
# ## The leak that looks like success
#
# The missing causal mask is the dangerous one. We train a small decoder on *random* tokens. Nothing can be learned: the next token is uniform over 17 tokens, and no honest loss can stay below ln 17. We train it once with the causal mask and once without.

# %%
vocabulary, length, batch = 20, 10, 64
floor = math.log(vocabulary - 3)  # ids 0 to 2 are never drawn


def random_targets(generator):
    """Random ids from 3 upwards, (batch, length + 1)."""
    return torch.randint(3, vocabulary, (batch, length + 1), generator=generator)


def next_token_loss(model, ids, mask):
    """Loss at every position, (batch, m), of predicting each next token."""
    memory = model.encode(torch.full((batch, 1), 3))
    logits = model.output_projection(model.decode(ids[:, :-1], memory, mask))  # (batch, m, V)
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def train_on_noise(mask, updates=200):
    """A one-layer model, and its loss after every update."""
    torch.manual_seed(0)
    sizes = {"d_model": 64, "n_layers": 1, "n_heads": 4, "d_ff": 128, "dropout": 0.0}
    model = transformer.Transformer(transformer.TransformerConfig(vocabulary, vocabulary, **sizes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(updates):
        loss = next_token_loss(model, random_targets(generator), mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


noise_masks = {"causal mask": causal_mask(length), "no mask": torch.ones(length, length, dtype=torch.bool)}
trained = {name: train_on_noise(mask) for name, mask in noise_masks.items()}

# %% [markdown]
# In use there are no later tokens. So the honest test feeds each prefix alone and asks for the token after it.

# %%
honest = {}
with torch.no_grad():
    fresh = random_targets(torch.Generator().manual_seed(2))
    for name, (noise_model, losses) in trained.items():
        prefixes = [
            next_token_loss(noise_model, fresh[:, : i + 1], noise_masks[name][:i, :i])[:, -1]
            for i in range(1, length + 1)
        ]
        honest[name] = torch.stack(prefixes).mean().item()
        print(f"{name:12} training loss {losses[-1]:.1f}   loss when the future is not there {honest[name]:.0f}")
print(f"{'ln 17':12} {floor:.2f}")
assert trained["causal mask"][1][-1] > 0.95 * floor and honest["causal mask"] > 0.95 * floor
assert trained["no mask"][1][-1] < 0.3 * floor and honest["no mask"] > 1.2 * floor

# %% tags=["hide-input"]
curves = [
    {"update": step + 1, "loss": round(losses[step], 3), "trained with": name}
    for name, (_, losses) in trained.items()
    for step in range(0, len(losses), 5)
]
lines = (
    alt.Chart(alt.Data(values=curves))
    .mark_line()
    .encode(
        x=alt.X("update:Q", title="update"),
        y=alt.Y("loss:Q", title="training loss", scale=alt.Scale(domain=[0, 4.5])),
        color=alt.Color(
            "trained with:N", scale=alt.Scale(range=["#0072B2", "#D55E00"]), legend=alt.Legend(orient="bottom")
        ),
        strokeDash=alt.StrokeDash("trained with:N"),
        tooltip=["trained with:N", "update:Q", "loss:Q"],
    )
)
limit = (
    alt.Chart(alt.Data(values=[{"floor": round(floor, 4)}]))
    .mark_rule(strokeDash=[2, 3], color="#7a7f87")
    .encode(y="floor:Q", tooltip=alt.value("ln 17: nobody can do better on random tokens"))
)
chart = (limit + lines).properties(title="On random tokens, a loss below ln 17 is a leak", width=420, height=240)
chart

# %% [markdown]
# The dotted line is ln 17. The model with the mask settles on it. The model without falls far below: it reads the answer from the next input position. Its training loss looks excellent, and a validation loss computed in the same way would too. In use it does worse than guessing.
#
# ## The empty row
#
# > We implement this inside of scaled dot-product attention by masking out (setting to $-\infty$) all values in the input of the softmax which correspond to illegal connections.
# >
# > — Section 3.2.3
#
# If every connection of a query is illegal, its row is all $-\infty$, and the softmax is 0/0. One such row in a batch, say an empty source, turns the gradients of the shared weights into NaN, even if the loss leaves that row out. Ours gives zeros.

# %%
torch.manual_seed(0)
q = torch.randn(3, 4, requires_grad=True)
mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
naive = torch.softmax((q @ q.T / 2).masked_fill(~mask, -torch.inf), dim=-1) @ q
(naive_gradient,) = torch.autograd.grad(naive[[0, 2]].sum(), q)
out, seen = transformer.scaled_dot_product_attention(q, q, q, mask)
(gradient,) = torch.autograd.grad(out.sum(), q)
print("naive row  ", naive[1].tolist(), " gradient finite:", naive_gradient.isfinite().all().item())
print("our row    ", out[1].tolist(), " gradient finite:", gradient.isfinite().all().item())
assert naive[1].isnan().all() and not naive_gradient.isfinite().all()
assert torch.equal(out[1], torch.zeros(4)) and torch.equal(seen[1], torch.zeros(3)) and gradient.isfinite().all()
assert torch.equal(out[[0, 2]], naive[[0, 2]])

# %% [markdown]
# The same in the whole model: one source of nothing but padding, beside two real ones. Outputs and all gradients are finite, and the other sentences come out as they do without it.

# %%
with_empty = src.clone()
with_empty[1] = 0
logits = model(with_empty, tgt_in)  # (B, m, V)
model.zero_grad()
logits.square().mean().backward()
assert logits.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())
with torch.no_grad():
    alone = model(src[[0, 2]], tgt_in[[0, 2]])
    memory = model.encode(with_empty, padding_mask(with_empty))
    cross = model.decoder.layers[0].memory_attention
    nothing = cross(model.embedding(tgt_in), memory, memory, padding_mask(with_empty))[1]  # what the empty source gives
torch.testing.assert_close(logits.detach()[[0, 2]], alone, rtol=0, atol=1e-5)
assert torch.equal(nothing, cross.w_o.bias.expand_as(nothing))
print("finite outputs and gradients; attention over an empty source leaves only the output projection's bias")

# %% [markdown]
# ## Check it: padding is invisible
#
# With the right masks it does not matter how much padding a batch has. We add six more `<pad>` to source and target and compare the logits at the real positions.

# %%
with torch.no_grad():
    wider = model(F.pad(src, (0, 6)), F.pad(tgt_in, (0, 6)))[:, : tgt_in.size(1)]
    difference = (wider - model(src, tgt_in))[real].abs().max().item()
print("largest difference below 1e-5:", difference < 1e-5)
assert difference < 1e-5

# %% [markdown]
# ## Unsaid by the paper
#
# - **Padding.** The paper speaks of illegal connections in the decoder only. `<pad>` appears in the pictures of its appendix. The authors' code (tensor2tensor) sets the embeddings of padding to zero and masks padded keys of the source. Its decoder's self-attention has the triangle alone, the row *causal only* above.
# - **Minus infinity.** The paper says $-\infty$. The authors' code adds a bias of $-10^9$. In single precision the two agree unless a row is empty.
# - **The start symbol.** The authors' code has none: it shifts the targets right by one zero vector. Most others put a token in front, as we do.
# - **No mask at all in the fast path.** `Transformer.forward` passes no target mask. It asks the kernel for causal attention (`is_causal`), which leaves a GPU free to take its fastest kernel. The padding of targets needs no mask because it stands on the right, as the row *causal only* above shows; [Section 3.6](03_6_the_full_model.py) checks it on `forward`.

# %%
with torch.no_grad():
    memory = model.encode(src, src_mask)
    fast = model.decode(tgt_in, memory, None, memory_mask)
    dense = model.decode(tgt_in, memory, tgt_mask, memory_mask)
print("at real positions, largest difference below 1e-5:", (fast - dense)[real].abs().max().item() < 1e-5)
assert (fast - dense)[real].abs().max() < 1e-5

# %% [markdown]
# ## What we now know
#
# - The three uses are one function. Their weights have shapes (n, n), (m, m) and (m, n): checked.
# - Our masks equal those of the model, and no forbidden connection has any weight: checked.
# - With the causal mask a later token changes earlier outputs by exactly 0.0; without, by much: checked for every token.
# - Transposed, inverted and missing masks leak, and none raises an error. A float mask forbids nothing; ours refuses it.
# - A decoder without the mask reaches a low loss on pure noise, and is worse than guessing in use: trained.
# - A query with nothing to attend to gives zeros and finite gradients: checked in the function and in the model.
#
# ## Exercises
#
# 1. **Predict, then run.** Which of the three attention sub-layers could do without its mask if every batch held a single sentence?
# 2. **Minutes.** A target of five positions ends in two of padding. Write the mask of its self-attention by hand, with what is true where. Check: `check("3.2.3-mask", answer)`.
# 3. **Minutes.** A prefix language model lets the first p positions see each other and keeps the rest causal. Write its mask and check it by perturbation.
# 4. **An hour.** The mask `tril(-1)` passes the perturbation test. Write a test that it fails, without reading the weights. Hint: take the residual connection away.
# 5. **An hour.** Put the padding of the targets on the left. Which line of `Transformer.forward` is then wrong, and which measure in the table above would show it?

# %% [markdown]
# Solution to exercise 3: the causal mask, or a key that stands within the prefix.


# %% tags=["hide-cell"]
def prefix_mask(size, prefix):
    """Causal, but the first positions see each other: (m, m)."""
    return causal_mask(size) | (torch.arange(size) < prefix)


print(prefix_mask(5, 2).int())
reach = influence(prefix_mask(m, 3)) > 0  # which token reaches which output
assert torch.equal(reach, prefix_mask(m, 3))

# %% [markdown]
# Solution to exercise 2: a key is seen if it is not later and not padding.

# %% tags=["hide-cell"]
from transformer.exercises import check

by_hand = [
    [1, 0, 0, 0, 0],
    [1, 1, 0, 0, 0],
    [1, 1, 1, 0, 0],
    [1, 1, 1, 0, 0],  # padding asks, too; nobody reads what it gets
    [1, 1, 1, 0, 0],
]
assert torch.tensor(by_hand).bool().equal(causal_mask(5) & padding_mask(torch.tensor([[1, 7, 8, 0, 0]]))[0, 0])
verdict = check("3.2.3-mask", by_hand)
print(verdict)
assert verdict

# %% [markdown]
# ## The notebook and the module agree

# %%
assert torch.equal(transformer.causal_mask(7), causal_mask(7))
assert torch.equal(transformer.padding_mask(src), padding_mask(src))
print("same masks")
