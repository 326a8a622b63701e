# %% [markdown]
# # 7 Conclusion
#
# The paper ends with what it has shown, with three hopes, and with its code. Each hope has been taken up since. This page says what
# came of it, with sources, and tries the limits that the paper did not claim to have solved: cost that grows with $n^2$, sentences longer than those
# in training, and weights that look like explanations.

# %%
import itertools

import altair as alt
import torch

import transformer
from transformer import EncoderLayer, MultiHeadAttention, PositionwiseFeedForward, TransformerConfig, causal_mask

transformer.check_version("0.1")

# %% [markdown]
# > In this work, we presented the Transformer, the first sequence transduction model based entirely on attention, replacing the
# > recurrent layers most commonly used in encoder-decoder architectures with multi-headed self-attention.
# >
# > — Section 7
#
# > For translation tasks, the Transformer can be trained significantly faster than architectures based on recurrent or
# > convolutional layers.
# >
# > — Section 7
#
# Two claims and a restriction: "for translation tasks". Faster training on other tasks is not claimed.
#
# ## Three hopes, and the code
#
# > We plan to extend the Transformer to problems involving input and output modalities other than text and to investigate local,
# > restricted attention mechanisms to efficiently handle large inputs and outputs such as images, audio and video.
# >
# > — Section 7
#
# > Making generation less sequential is another research goals of ours.
# >
# > — Section 7
#
# > The code we used to train and evaluate our models is available at https://github.com/tensorflow/tensor2tensor.
# >
# > — Section 7
#
# | said | what came of it |
# |---|---|
# | other modalities | Images within a year, by some of the same authors (Parmar et al. [2018](https://arxiv.org/abs/1802.05751)), and speech (Dong et al. 2018). Cut into patches, an image is a sentence for a nearly unchanged encoder (Dosovitskiy et al. [2021](https://arxiv.org/abs/2010.11929)); video followed (Arnab et al. [2021](https://arxiv.org/abs/2103.15691)). |
# | local, restricted attention | Neighborhoods in images (Parmar et al. 2018), strides and blocks (Child et al. [2019](https://arxiv.org/abs/1904.10509)), windows with a few global tokens (Beltagy et al. [2020](https://arxiv.org/abs/2004.05150)). *Exact* attention got cheaper, too: computed in tiles, it need not store its weights (Dao et al. [2022](https://arxiv.org/abs/2205.14135)). The count of operations stays at $n^2$. |
# | generation less sequential | All words at once (Gu et al. [2018](https://arxiv.org/abs/1711.02281)), with some loss of quality. Drafts that one pass of the model checks keep the model's own output (Stern et al. [2018](https://arxiv.org/abs/1811.03115), Leviathan et al. [2023](https://arxiv.org/abs/2211.17192)). One token at a time is still the rule that the others are compared with. |
# | the code | It was public three days after the paper's first version, and its defaults soon left the paper's: see [the paper against its code](../book/against_itself.md). |
#
# All are in the [bibliography](../book/bibliography.md).
#
# ## Three families
#
# What the paper did not say is that its two halves would live apart. Three families have followed:
#
# | family | a position sees | trained to | examples |
# |---|---|---|---|
# | encoder-only | every position | fill in hidden tokens | BERT (Devlin et al. [2019](https://arxiv.org/abs/1810.04805)) |
# | decoder-only | itself and what came before | say the next token | GPT (Radford et al. 2018), GPT-3 (Brown et al. [2020](https://arxiv.org/abs/2005.14165)) |
# | encoder–decoder | all of the source; of the target, what came before | write the target | the paper's; T5 (Raffel et al. 2020), BART (Lewis et al. [2020](https://arxiv.org/abs/1910.13461)) |
#
# ### See it: one block, three masks
#
# The block is the paper's encoder layer. What makes it one of a family is the mask. Eight positions, of which the first four are
# the source, the others the target:

# %%
N, SOURCE = 8, 4
masks = {
    "encoder-only": torch.ones(N, N, dtype=torch.bool),
    "decoder-only": causal_mask(N),
    "encoder–decoder": causal_mask(N) | (torch.arange(N) < SOURCE),  # the source is seen from everywhere
}
print(*(f"{family:18}" for family in masks))
for rows in zip(*(mask.tolist() for mask in masks.values()), strict=True):
    print(*(f"{' '.join('■' if seen else '·' for seen in row):18}" for row in rows))


# %% [markdown]
# ### Check it: who depends on whom
#
# The measurement: change the input at one position, and see at which positions the output changes.


# %%
WIDTH = 32


def make_stack(n_layers: int) -> list[EncoderLayer]:
    """Untrained encoder layers of the paper's kind, in evaluation mode."""
    torch.manual_seed(0)
    parts = ((MultiHeadAttention(WIDTH, 4), PositionwiseFeedForward(WIDTH, 64)) for _ in range(n_layers))
    return [EncoderLayer(attention, network, WIDTH).eval() for attention, network in parts]


# %%
@torch.inference_mode()
def influence(layers: list[EncoderLayer], mask: torch.Tensor) -> torch.Tensor:
    """How far the output at i moves when the input at j changes, shape (n, n)."""
    n = mask.size(0)
    x = torch.randn(1, n, WIDTH, generator=torch.Generator().manual_seed(1))
    inputs = x.repeat(n + 1, 1, 1)  # (n + 1, n, d_model): copy j has another vector at j, the last copy has none
    inputs[torch.arange(n), torch.arange(n)] += 1 - 2 * x[0].sign()
    for layer in layers:
        inputs = layer(inputs, mask)
    return (inputs[:n] - inputs[n]).norm(dim=-1).T  # (n, n)


# %%
measured = {family: influence(make_stack(1), mask) for family, mask in masks.items()}
for family, mask in masks.items():
    assert torch.equal(measured[family] > 1e-5, mask)
print("in each family the output depends on what the mask allows, and on all of it")

# %% [markdown]
# For the third family the block is a stand-in: the paper's model has two stacks with weights of their own, and its decoder sees the
# source through attention of a third kind. Do its positions see one another in the same way? Here is the whole model, with memory and
# decoder output in place of the eight positions:

# %%
torch.manual_seed(0)
model = transformer.Transformer(TransformerConfig.tiny(vocab_size=50)).eval()
src, tgt_in = torch.randint(3, 50, (1, SOURCE)), torch.randint(3, 50, (1, N - SOURCE))


@torch.inference_mode()
def all_positions(ids: torch.Tensor) -> torch.Tensor:
    """Memory and decoder output, one after the other: (1, n) to (1, n, d_model)."""
    memory = model.encode(ids[:, :SOURCE])
    return torch.cat([memory, model.decode(ids[:, SOURCE:], memory)], dim=1)


ids = torch.cat([src, tgt_in], dim=1)
before = all_positions(ids)
seen = torch.zeros(N, N, dtype=torch.bool)
for j in range(N):
    changed = ids.clone()
    changed[0, j] = 3 + (ids[0, j] - 2) % 47  # another token
    seen[:, j] = (all_positions(changed) - before).norm(dim=-1)[0] > 1e-5
assert torch.equal(seen, masks["encoder–decoder"])
print("the paper's model, measured: the third mask")

# %% tags=["hide-input"]
names = [f"source {i + 1}" for i in range(SOURCE)] + [f"target {i + 1}" for i in range(N - SOURCE)]
cells = [
    {"family": family, "of": names[i], "on": names[j], "moves": round(value, 3)}
    for family, matrix in measured.items()
    for i, row in enumerate(matrix.tolist())
    for j, value in enumerate(row)
    if value > 1e-5
]
family = alt.param(value="encoder–decoder", bind=alt.binding_select(options=list(masks), name="family "))
axis = alt.Axis(labelLimit=0)
chart = (
    alt.Chart(alt.Data(values=cells))
    .transform_filter(f"datum.family == {family.name}")
    .mark_rect(stroke="#7a7f87", strokeWidth=0.5)
    .encode(
        x=alt.X("on:N", scale=alt.Scale(domain=names), title="when the input changes here", axis=axis),
        y=alt.Y("of:N", scale=alt.Scale(domain=names), title="the output here moves", axis=axis),
        color=alt.Color(
            "moves:Q",
            title="by so much",
            scale=alt.Scale(scheme="viridis", type="log", domain=[0.2, 10]),
            legend=alt.Legend(orient="top", values=[0.2, 0.5, 1, 2, 5, 10]),
        ),
        tooltip=[alt.Tooltip("of:N", title="output"), alt.Tooltip("on:N", title="input"), alt.Tooltip("moves:Q", format=".3f")],
    )
    .add_params(family)
    .properties(width=230, height=230, title="The mask alone decides the family")
)
chart

# %% [markdown]
# Choose a family. Where a cell is empty, nothing passes. The diagonal is the brightest, since the residual connection carries each
# position's own vector through. The weights of the block are the same in all three pictures.
#
# ## The limits
#
# ### Cost: $n^2$
#
# Every position compares itself with every other. For sentences that hardly shows; for long inputs it is nearly all there is. The share
# of the scores $QK^T$ and of the weighted sums in a forward pass of base, source and target of equal length, counted as in
# [Section 5.2](05_2b_the_cost_of_training.py):


# %%
def split_cost(n: int) -> tuple[float, float]:
    """Operations per target token of a forward pass of base: those that grow with n, and the others."""
    parts = transformer.flops_by_part(TransformerConfig.base(), n, n)
    pairwise = parts["scores"] + parts["weighted sums"]
    return pairwise / n, (sum(parts.values()) - pairwise) / n


print("      n    share of n²   weights in one layer of the encoder")
for n in (30, 1_000, 10_000, 100_000):
    pairwise, others = split_cost(n)
    print(f"{n:7,}{pairwise / (pairwise + others):15.1%}{8 * n * n:24,}")
pairwise, others = split_cost(1)
print(f"half of it at {others / pairwise:,.0f} positions")
assert all(split_cost(n) == (n * pairwise, others) for n in (30, 1_000))  # the one grows with n, the other does not

# %% [markdown]
# "Local, restricted attention" is a mask once more: a band. If each position sees $r$ to either side, a layer costs $n \cdot (2r+1)$ comparisons,
# provided that the others are not computed at all ([our chapter on Section 4](04_why_self_attention.py) has such a layer). The price is distance.
# Section 4 says that the path between distant positions grows to $O(n/r)$, and the same measurement shows it: news travels $r$ positions a layer.

# %%
n, r = 24, 2
distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
band = distance <= r
for n_layers in (1, 2, 3):
    reaches = influence(make_stack(n_layers), band) > 1e-6
    assert torch.equal(reaches, distance <= n_layers * r)
    print(f"layers: {n_layers}; position 12 depends on positions {12 - n_layers * r} to {12 + n_layers * r}")

# %% tags=["hide-input"]
radius = alt.param(value=128, bind=alt.binding_range(min=16, max=1024, step=16, name="r "))
lengths = [{"n": 2**k} for k in range(4, 18)]
full, window = "all positions", "r to either side"
chart = (
    alt.Chart(alt.Data(values=lengths))
    .transform_calculate(
        full=f"({others} + {pairwise} * datum.n) / 1e6",
        window=f"({others} + {pairwise} * min(datum.n, 2 * {radius.name} + 1)) / 1e6",
    )
    .transform_fold(["full", "window"], as_=["kind", "cost"])
    .transform_calculate(kind=f"datum.kind == 'full' ? '{full}' : '{window}'")
    .mark_line(strokeWidth=2.5, point=True)
    .encode(
        x=alt.X("n:Q", title="length n (tokens)", scale=alt.Scale(type="log", domain=[10, 200_000]), axis=alt.Axis(tickCount=4, format="~s")),
        y=alt.Y("cost:Q", title="million operations per target token", scale=alt.Scale(type="log", domain=[100, 10_000]), axis=alt.Axis(tickCount=3)),
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=[full, window], range=["#D55E00", "#0072B2"]),
            legend=alt.Legend(orient="top", title=None),
        ),
        strokeDash=alt.StrokeDash("kind:N", scale=alt.Scale(domain=[full, window], range=[[1, 0], [6, 3]]), legend=alt.Legend(orient="top", title=None)),
        tooltip=[
            alt.Tooltip("kind:N", title="sees"),
            alt.Tooltip("n:Q", format=","),
            alt.Tooltip("cost:Q", format=",.0f", title="million operations"),
        ],
    )
    .add_params(radius)
    .properties(width=250, height=230, title="A window keeps the cost constant")
)
chart

# %% [markdown]
# Both axes are logarithmic. Up to some hundred tokens the two curves cannot be told apart: there the feed-forward networks, the projections and the
# vocabulary cost more than all comparisons. Move $r$ to see where the window begins to pay.
#
# ### Length: beyond training
#
# Section 3.5 hoped that sinusoids "may allow the model to extrapolate to sequence lengths longer than the ones encountered during
# training". [Section 6.1](06_1c_machine_translation.py) trains a model, and finds otherwise. Here are thirty unseen sentences such as the shipped model
# was trained on, and thirty longer ones:

# %%
translator = transformer.load_toy_translator()
exact = {}
for split in ("test", "long"):
    pairs = list(itertools.islice(transformer.embedded_corpus(split, seed=7), 30))
    outputs = translator.translate([pair.source for pair in pairs], beam_size=1)
    exact[split] = sum(output == pair.target for output, pair in zip(outputs, pairs, strict=True))
    words = [len(pair.source.split()) for pair in pairs]
    short = sum(len(output.split()) < len(pair.target.split()) for output, pair in zip(outputs, pairs, strict=True))
    print(f"{split}: {min(words)} to {max(words)} words, {exact[split]} of {len(pairs)} exactly right, {short} too short")
print(f"\nsource    {pairs[0].source}\nshould be {pairs[0].target}\nis        {outputs[0]}")
assert max(len(pair.source.split()) for pair in pairs) > transformer.MAX_WORDS
assert exact["test"] >= 27 and exact["long"] <= 10 and short >= 20

# %% [markdown]
# What it writes is German, and mostly too short. Most of the longer sentences also have more clauses than any in training, so this does not separate the positions'
# share from the structure's. Later encodings count distances instead of places: relative vectors (Shaw et al. 2018), rotations
# (Su et al. [2021](https://arxiv.org/abs/2104.09864)), and biases that grow with distance (Press et al. [2022](https://arxiv.org/abs/2108.12409)), the last
# made for this very purpose.
#
# ### Weights as explanations
#
# Section 4 hopes for "more interpretable models", as a side benefit. Whether a weight explains an output has been disputed since
# (Jain and Wallace 2019; Wiegreffe and Pinter 2019). On sentences whose alignment is known, it can be measured how often the largest weight stands where it
# should: [Attention visualizations](08_attention_visualizations.py) does.
#
# ## Unsaid by the paper
#
# - **Pretraining.** The other models in the table of families learn first from text that nobody has labelled. The paper trains on sentence pairs and on parsed
#   sentences.
# - **Scale.** That "bigger models are better" is said of the rows of Table 3 (Section 6.2). That the loss falls with size, data and compute
#   by power laws (Kaplan et al. [2020](https://arxiv.org/abs/2001.08361)) was found later.
# - **What would go.** Post-norm, ReLU, sinusoids and biases have been replaced in much later work. The residual stream, multi-head attention and
#   the position-wise network have stayed.
# - **Why it works.** The paper compares, and does not claim a theory.
#
# ## What we now know
#
# - One block with three masks gives three families. Measured, outputs depend on what the mask allows, and on nothing else; the paper's
#   model as a whole has the third mask.
# - With a band of $r$ to either side, $L$ layers reach $L \cdot r$ positions, no farther.
# - In base the $n^2$ part is a small share for sentences, and nearly all for inputs of a hundred thousand tokens.
# - The shipped model is right on nearly all sentences of trained lengths, and on few longer ones.
#
# ## Exercises
#
# 1. **Predict, then run.** A decoder-only model with the source put in front of the target has the second mask. Which cells does it lack, compared with the
#    third, and what can its source positions therefore not know?
# 2. **Minutes.** Add one global token to a band of ten neighbours to each side, which sees all and is seen by all. How many layers does any of 4,000 positions now
#    need to hear of any other? Check: `check("7-global", answer)`.
# 3. **An hour.** "Less sequential": let a draft be checked. Give the shipped model a source and its own greedy translation, in *one* pass, and count how many
#    tokens the pass confirms. Then change one token of the draft.
# 4. **A day.** Translate `long` sentences clause by clause, cut at *and*, *but* and *because*. How many become exact? What must the cutter know?

# %% [markdown]
# Solution to exercise 2: one layer to the global token, and one from there. Squaring the mask shows it.

# %% tags=["hide-cell"]
from transformer.exercises import check

sees = torch.ones(401, 401).tril(10).triu(-10)  # the first of 401 is made global
sees[0], sees[:, 0] = 1, 1
layers, reached = 1, sees
while not reached.all():
    layers, reached = layers + 1, ((reached @ sees) > 0).float()
print(layers, "layers:", check("7-global", layers))
assert check("7-global", layers)

# %% tags=["hide-cell"]
# Exercise 3: the logits of a whole draft come at once, and each says which token greedy decoding would have chosen there.
eos_id = translator.model.config.eos_id
source = torch.tensor([[*translator.tokenizer.encode(next(transformer.embedded_corpus("test", seed=7)).source), eos_id]])
draft = [*transformer.greedy_decode(translator.model, source)[0], eos_id]


@torch.inference_mode()
def confirmed(draft: list[int]) -> int:
    """How many tokens of a draft one pass of the model confirms."""
    tgt_in = torch.tensor([[translator.model.config.bos_id, *draft[:-1]]])
    chosen = translator.model(source, tgt_in)[0].argmax(-1).tolist()
    return next((i for i, (a, b) in enumerate(zip(chosen, draft, strict=True)) if a != b), len(draft))


wrong = draft.copy()
wrong[5] = draft[4]
print(f"one pass confirms {confirmed(draft)} of {len(draft)} tokens, and {confirmed(wrong)} of the changed draft")
assert confirmed(draft) == len(draft) and confirmed(wrong) == 5
