# %% [markdown]
# # 3 Model Architecture
#
# A Transformer is an encoder and a decoder. The encoder reads the whole source at once; the decoder writes the target one
# token at a time, and reads what it has written. This chapter runs that machine before any of its parts is explained. It
# shows every shape on the way, and says in which chapter each part is built.
#
# > Here, the encoder maps an input sequence of symbol representations $(x_1, ..., x_n)$ to a sequence of continuous
# > representations $\mathbf{z} = (z_1, ..., z_n)$. Given $\mathbf{z}$, the decoder then generates an output sequence
# > $(y_1,...,y_m)$ of symbols one element at a time.
# >
# > — Section 3

# %%
import altair as alt
import torch
from torch import nn

import transformer
from transformer import Transformer, TransformerConfig

transformer.check_version("0.1")

# %% [markdown]
# ## The encoder–decoder shell
#
# The quoted sentence fixes three functions and nothing about what is inside them.
#
# | function | from | to |
# |---|---|---|
# | `encode` | source tokens $x_1, …, x_n$ | the memory $\mathbf{z}$ |
# | `decode` | the target so far, and the memory | one hidden state per target position |
# | `output_projection` | a hidden state | a score for each token of the vocabulary, its *logit* |
#
# `Transformer` has these three methods. So can other models. Here is one made of recurrent networks, as translation
# models were in 2014:


# %%
class RecurrentModel(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.reader = nn.GRU(d_model, d_model, batch_first=True)
        self.writer = nn.GRU(d_model, d_model, batch_first=True)
        self.output_projection = nn.Linear(d_model, vocab_size)

    def encode(self, src):  # (B, n)
        return self.reader(self.embedding(src))[1]  # (1, B, d_model): the last state only

    def decode(self, tgt_in, memory):  # (B, m), (1, B, d_model)
        return self.writer(self.embedding(tgt_in), memory)[0]  # (B, m, d_model)


# %% [markdown]
# The vocabulary has twelve tokens. Three of them are special: padding, the beginning of a target, and the end of a
# sentence.

# %%
TOKENS = ["<pad>", "<s>", "</s>", "the", "cat", "is", "very", "tired", "die", "Katze", "ist", "müde"]
ID = {token: number for number, token in enumerate(TOKENS)}
PAD, BOS, EOS = 0, 1, 2


def ids(text):
    return torch.tensor([[ID[word] for word in text.split()]])  # (1, length)


torch.manual_seed(0)
config = TransformerConfig(len(TOKENS), len(TOKENS), d_model=24, n_layers=2, n_heads=3, d_ff=32, dropout=0.0)
ours = Transformer(config).eval()
recurrent = RecurrentModel(len(TOKENS), 24)

with torch.no_grad():
    for source in ("the cat </s>", "the cat is very very tired </s>"):
        memories = [model.encode(ids(source)) for model in (recurrent, ours)]
        n = ids(source).size(1)
        print(f"n = {n}   recurrent memory {tuple(memories[0].shape)}   ours {tuple(memories[1].shape)}")
        assert memories[0].numel() == 24 and memories[1].shape == (1, n, 24)

# %% [markdown]
# The recurrent encoder squeezes a source of any length into one vector. Ours keeps $n$ vectors for $n$ tokens, which is
# what $(z_1, ..., z_n)$ says. Attention makes that usable: the decoder can look up any of them at any step.
#
# ## Auto-regression
#
# > At each step the model is auto-regressive, consuming the previously generated symbols as additional input when
# > generating the next.
# >
# > — Section 3
#
# In code that is a loop. Decode what there is, take the scores at the last position, choose a token, append it, repeat.
# The loop needs the three functions of the shell and nothing else.


# %%
def generate(model, src, length, choose):
    memory = model.encode(src)  # once: the source does not change
    tgt = torch.tensor([[BOS]])  # (1, 1)
    for _ in range(length):
        hidden = model.decode(tgt, memory)  # (1, m, d_model)
        logits = model.output_projection(hidden[:, -1])  # (1, V): only the last position is new
        tgt = torch.cat([tgt, choose(logits)], dim=1)  # (1, m + 1): the output becomes input
        if tgt[0, -1] == EOS:
            break
    return tgt


def drawn(logits):
    return torch.multinomial(logits.softmax(dim=-1), 1)


# %% [markdown]
# ### See it
#
# Nothing is trained, so no sense comes out. The loop works all the same, for both models. Each token is printed with what
# the model had consumed when it chose it.

# %%
with torch.no_grad():
    for name, model in (("recurrent", recurrent), ("ours", ours)):
        torch.manual_seed(8)
        produced = [TOKENS[i] for i in generate(model, ids("the cat is tired </s>"), 5, drawn)[0]]
        print(name)
        for step in range(1, len(produced)):
            print(f"  {' '.join(produced[:step]):28} → {produced[step]}")

# %% [markdown]
# ### Check it
#
# The loop defines a probability for every target: the product of the probabilities of its steps. If each step sees only
# what came before, the probabilities of all targets of one length must add up to 1. With a vocabulary of twelve there are
# 1,728 targets of three tokens. We compute all of them in one batch. If a step could see later tokens, its "prediction"
# would depend on what it predicts, and the sum would be something else. So we also take the mask away.

# %%
every = torch.cartesian_prod(*3 * [torch.arange(12)])  # (1728, 3): all targets y
shifted = torch.cat([torch.full((1728, 1), BOS), every[:, :-1]], dim=1)  # (1728, 3): what the decoder consumes
no_mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)


def total_probability(tgt_mask):
    memory = ours.encode(ids("the cat is tired </s>")).expand(1728, -1, -1)
    logits = ours.output_projection(ours.decode(shifted, memory, tgt_mask))  # (1728, 3, V)
    log_probabilities = logits.log_softmax(dim=-1).gather(-1, every[..., None])  # (1728, 3, 1)
    return log_probabilities.sum(dim=(1, 2)).exp().sum().item()


with torch.no_grad():
    hidden_future, open_future = total_probability(None), total_probability(no_mask)
print(f"sum over all {len(every):,} targets, later tokens hidden:  {hidden_future:.4f}")
print(f"the same without the mask:                    {open_future:.2f}")
assert abs(hidden_future - 1) < 1e-4
assert abs(open_future - 1) > 1e-2

# %% [markdown]
# That is also why training needs no loop. The target is known, so all steps can be computed at once, each from the tokens
# before it: give the decoder the target *shifted right*, as the bottom of Figure 1 says, and ask for the target.

# %%
target = ids("die Katze ist müde </s>")
tgt_in = torch.cat([ids("<s>"), target[:, :-1]], dim=1)
print("consumed:", [TOKENS[i] for i in tgt_in[0]])
print("asked:   ", [TOKENS[i] for i in target[0]])

with torch.no_grad():
    src = ids("the cat is tired </s>")
    at_once = ours(src, tgt_in)  # (1, 5, V)
    memory = ours.encode(src)
    for m in range(1, 6):
        one_step = ours.output_projection(ours.decode(tgt_in[:, :m], memory)[:, -1])  # (1, V)
        torch.testing.assert_close(one_step, at_once[:, m - 1], rtol=0, atol=1e-5)
print("five steps of the loop give the five rows of one call")

# %% [markdown]
# ## Figure 1, redrawn
#
# > The Transformer - model architecture.
# >
# > — Section 3, caption of Figure 1
#
# ![The Transformer, read from bottom to top. Left, the encoder: inputs are embedded, positional encodings are added, and N layers follow, each of multi-head self-attention and a feed-forward network, each followed by add and norm. Right, the decoder: outputs shifted right are embedded, positional encodings are added, and N layers follow, each of masked multi-head self-attention, multi-head attention over the encoder's output, and a feed-forward network, each followed by add and norm. A linear layer and a softmax give output probabilities.](../book/diagrams/transformer.svg)
#
# > The Transformer follows this overall architecture using stacked self-attention and point-wise, fully connected layers
# > for both the encoder and decoder, shown in the left and right halves of Figure 1, respectively.
# >
# > — Section 3
#
# Read it from bottom to top. One arrow crosses from left to right. It starts at the top of the encoder, after its last
# layer, and ends in a block that stands for $N$ layers. So every decoder layer reads the same memory. A hook can see
# that:

# %%
received = []
hooks = [
    layer.memory_attention.register_forward_pre_hook(lambda module, inputs: received.append(inputs[1]))
    for layer in ours.decoder.layers
]
with torch.no_grad():
    ours.decode(tgt_in, memory)
for hook in hooks:
    hook.remove()
print("layers that read the encoder's output itself:", sum(keys is memory for keys in received), "of", config.n_layers)
assert len(received) == config.n_layers and all(keys is memory for keys in received)

# %% [markdown]
# ## One batch, every shape
#
# Two sentence pairs go through the model, step by step. The second pair is shorter and filled up with padding. All sizes
# are different numbers, so no two dimensions can be taken for each other. `show` compares each shape with the letters
# beside it.

# %%
src = torch.cat([ids("the cat is tired </s>"), ids("the cat </s> <pad> <pad>")])  # (B, n)
tgt_in = torch.cat([ids("<s> die Katze ist"), ids("<s> die Katze <pad>")])  # (B, m)
SIZES = {"B": 2, "n": 5, "m": 4, "V": 12, "d": 24, "h": 3, "d_k": 8, "d_ff": 32, "1": 1}


def show(what, tensor, letters):
    assert tuple(tensor.shape) == tuple(SIZES[letter] for letter in letters.split()), (what, tensor.shape)
    print(f"{what:44}{letters.replace(' ', ' × '):20}{tuple(tensor.shape)}")


def by_heads(x):
    return x.unflatten(-1, (3, 8)).transpose(1, 2)  # (B, n, h·d_k) → (B, h, n, d_k)


# %% [markdown]
# The encoder, its first layer in full:

# %%
model = ours
with torch.no_grad():
    show("source ids", src, "B n")
    src_mask = transformer.padding_mask(src, PAD)
    show("source mask", src_mask, "B 1 1 n")
    x = model.embedding(src)
    show("embeddings, times √d", x, "B n d")
    x = model.src_positions(x)
    show("plus positions", x, "B n d")

    layer = model.encoder.layers[0]
    attention = layer.self_attention
    queries, keys, values = by_heads(attention.w_q(x)), by_heads(attention.w_k(x)), by_heads(attention.w_v(x))
    show("queries of all heads", queries, "B h n d_k")
    show("keys", keys, "B h n d_k")
    show("values", values, "B h n d_k")
    heads, weights = transformer.scaled_dot_product_attention(queries, keys, values, src_mask)
    show("attention weights: source to source", weights, "B h n n")
    show("outputs of the heads", heads, "B h n d_k")
    output = attention.w_o(heads.transpose(1, 2).flatten(2))
    show("concatenated and projected", output, "B n d")
    x1 = layer.attention_block.norm(x + output)
    show("add and norm", x1, "B n d")
    inner = layer.feed_forward.w_1(x1).relu()
    show("feed-forward, inner layer", inner, "B n d_ff")
    x2 = layer.feed_forward_block.norm(x1 + layer.feed_forward.w_2(inner))
    show("feed-forward, add and norm", x2, "B n d")

    torch.testing.assert_close(x2, layer(x, src_mask))  # by hand and by the layer
    memory = model.encoder.layers[1](x2, src_mask)
    show("after the last layer: the memory", memory, "B n d")

# %% [markdown]
# The decoder. What is new is the third kind of attention, whose weights have target rows and source columns:

# %%
with torch.no_grad():
    show("target ids, shifted right", tgt_in, "B m")
    tgt_mask = transformer.padding_mask(tgt_in, PAD) & transformer.causal_mask(4)
    show("target mask", tgt_mask, "B 1 m m")
    y = model.tgt_positions(model.embedding(tgt_in))
    show("embeddings plus positions", y, "B m d")

    layer = model.decoder.layers[0]
    attention = layer.self_attention
    heads, weights = transformer.scaled_dot_product_attention(
        by_heads(attention.w_q(y)), by_heads(attention.w_k(y)), by_heads(attention.w_v(y)), tgt_mask
    )
    show("masked attention weights: target to target", weights, "B h m m")
    y1 = layer.self_attention_block.norm(y + attention.w_o(heads.transpose(1, 2).flatten(2)))
    show("add and norm", y1, "B m d")

    attention = layer.memory_attention
    queries = by_heads(attention.w_q(y1))
    keys, values = by_heads(attention.w_k(memory)), by_heads(attention.w_v(memory))
    show("queries, from the target", queries, "B h m d_k")
    show("keys and values, from the memory", keys, "B h n d_k")
    heads, weights = transformer.scaled_dot_product_attention(queries, keys, values, src_mask)
    show("attention weights: target to source", weights, "B h m n")
    y2 = layer.memory_attention_block.norm(y1 + attention.w_o(heads.transpose(1, 2).flatten(2)))
    show("add and norm", y2, "B m d")
    y3 = layer.feed_forward_block(y2, layer.feed_forward)
    show("feed-forward, add and norm", y3, "B m d")

    hidden = model.decoder.layers[1](y3, memory, tgt_mask, src_mask)
    show("after the last layer: hidden states", hidden, "B m d")
    logits = model.output_projection(hidden)
    show("linear: logits", logits, "B m V")
    show("softmax: output probabilities", logits.softmax(dim=-1), "B m V")

# %% [markdown]
# Step by step or in one call, the logits are the same at every real position. (`forward` lets padded target positions
# compute what they like; [Section 3.6](03_6_the_full_model.py) says why that is safe.) And the layers of a stack are
# alike: every part of the second layer has the shapes of the same part in the first.

# %%
shapes = {}
handles = [
    module.register_forward_hook(lambda module, inputs, output, name=name: shapes.update({name: tuple(output.shape)}))
    for name, module in model.named_modules()
    if name
]
with torch.no_grad():
    in_one_call = model(src, tgt_in)
for handle in handles:
    handle.remove()

real = tgt_in != PAD
torch.testing.assert_close(in_one_call[real], logits[real], rtol=1e-4, atol=1e-5)
first_layers = {name: shape for name, shape in shapes.items() if ".layers.0" in name}
assert first_layers == {name.replace("s.1", "s.0"): shape for name, shape in shapes.items() if ".layers.1" in name}
for name in ("encoder.layers.0", "decoder.layers.0"):
    print(f"{name:42}{shapes[name]}")
    for part in ("self_attention.w_q", "memory_attention.w_q", "memory_attention.w_k", "feed_forward.w_1"):
        if f"{name}.{part}" in shapes:
            print(f"  {part:40}{shapes[f'{name}.{part}']}")

# %% [markdown]
# ## How much is computed as sentences grow
#
# The shapes say what a longer sentence costs. The formulas below count numbers for one sentence pair in one layer, and the
# logits, which come once, at the sizes of the paper's base model ($d_{\text{model}} = 512$, $d_{ff} = 2048$, $h = 8$,
# $V = 37{,}000$). First we hold four of them against the small model, whose shapes we have just seen.

# %%
FORMULAS = {  # what: (number of values for one pair, its kind)
    "source stream": ("n * d", "other"),
    "feed-forward inner layer, source": ("n * d_ff", "other"),
    "feed-forward inner layer, target": ("m * d_ff", "other"),
    "attention weights, source to source": ("h * n * n", "attention weights"),
    "attention weights, target to target": ("h * m * m", "attention weights"),
    "attention weights, target to source": ("h * m * n", "attention weights"),
    "logits": ("m * V", "other"),
}


def value_of(formula, **sizes):
    product = 1
    for letter in formula.split(" * "):
        product *= sizes[letter]
    return product


seen = {
    "source stream": x2,
    "feed-forward inner layer, source": inner,
    "attention weights, target to source": weights,
    "logits": logits,
}
for what, tensor in seen.items():
    assert value_of(FORMULAS[what][0], **SIZES) == tensor[0].numel(), what

base = {"d": 512, "d_ff": 2048, "h": 8, "V": 37_000}
for length in (25, 256, 2000):
    numbers = {what: value_of(formula, n=length, m=length, **base) for what, (formula, _) in FORMULAS.items()}
    print(f"n = m = {length}")
    for what, number in numbers.items():
        print(f"  {what:38}{number:14,}")
assert value_of("h * n * n", n=256, **base) == value_of("n * d_ff", n=256, **base)

# %% tags=["hide-input"]
lengths = [
    alt.param(name=letter, value=25, bind=alt.binding_range(min=1, max=5000, step=1, name=f"{side} length {letter}: "))
    for letter, side in (("n", "source"), ("m", "target"))
]
NUMERALS = "{0: '1', 3: 'thousand', 6: 'million', 9: 'billion'}[round(log(datum.value) / LN10)]"
constants = [alt.param(name=letter, value=number) for letter, number in base.items()]
layers = [
    alt.Chart(alt.Data(values=[{"what": what, "kind": kind}]))
    .transform_calculate(number=formula)
    .mark_point(filled=True, size=130, opacity=1)
    .encode(
        x=alt.X(
            "number:Q",
            title="numbers computed for one sentence pair (logarithmic)",
            scale=alt.Scale(type="log", domain=[1, 1e9]),
            axis=alt.Axis(values=[1, 1e3, 1e6, 1e9], labelExpr=NUMERALS),
        ),
        y=alt.Y("what:N", sort=list(FORMULAS), title=None, axis=alt.Axis(labelLimit=260)),
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=["attention weights", "other"], range=["#D55E00", "#0072B2"]),
            legend=alt.Legend(orient="top", title=None),
        ),
        shape=alt.Shape("kind:N", scale=alt.Scale(domain=["attention weights", "other"], range=["diamond", "circle"])),
        tooltip=["what:N", alt.Tooltip("number:Q", format=",")],
    )
    for what, (formula, kind) in FORMULAS.items()
]
chart = (
    alt.layer(*layers)
    .add_params(*lengths, *constants)
    .properties(width=330, height=230, title="Only attention weights grow with the square of the length")
)
chart

# %% [markdown]
# Move the lengths. At 25 tokens, a usual sentence, the logits are by far the most and attention weights the fewest. Make
# both lengths ten times as long: every circle moves by a factor of ten, every diamond by a hundred. At 256 tokens an
# attention has as many weights as the inner layer of a feed-forward network has values.
#
# ## Where each box lives
#
# | in Figure 1 | name | file | chapter |
# |---|---|---|---|
# | Input Embedding, Output Embedding | `TokenEmbedding` | `transformer/embeddings.py` | [3.4](03_4_embeddings_and_softmax.py) |
# | Positional Encoding | `SinusoidalPositionalEncoding` | `transformer/positional_encoding.py` | [3.5](03_5_positional_encoding.py) |
# | Multi-Head Attention | `MultiHeadAttention` | `transformer/multi_head.py` | [3.2.2](03_2_2_multi_head_attention.py) |
# | inside it, Figure 2: Scaled Dot-Product Attention | `scaled_dot_product_attention` | `transformer/attention.py` | [3.2.1](03_2_1_scaled_dot_product_attention.py) |
# | the word "Masked" | `causal_mask` | `transformer/masks.py` | [3.2.3](03_2_3_applications_of_attention.py) |
# | not drawn: padding | `padding_mask` | `transformer/masks.py` | [3.2.3](03_2_3_applications_of_attention.py) |
# | Feed Forward | `PositionwiseFeedForward` | `transformer/feed_forward.py` | [3.3](03_3_feed_forward_networks.py) |
# | Add & Norm | `ResidualBlock` | `transformer/layers.py` | [3.1](03_1_encoder_and_decoder_stacks.py) |
# | the left block | `EncoderLayer` | `transformer/layers.py` | [3.1](03_1_encoder_and_decoder_stacks.py) |
# | N× on the left | `Encoder` | `transformer/layers.py` | [3.1](03_1_encoder_and_decoder_stacks.py) |
# | the right block | `DecoderLayer` | `transformer/layers.py` | [3.1](03_1_encoder_and_decoder_stacks.py) |
# | N× on the right | `Decoder` | `transformer/layers.py` | [3.1](03_1_encoder_and_decoder_stacks.py) |
# | Linear | `TokenEmbedding.project` | `transformer/embeddings.py` | [3.4](03_4_embeddings_and_softmax.py) |
# | Softmax, in training | `LabelSmoothingLoss` | `transformer/loss.py` | [5.4](05_4_regularization.py) |
# | Output Probabilities, in use | `greedy_decode` | `transformer/decoding.py` | [6.1](06_1a_decoding.py) |
# | the whole figure | `Transformer` | `transformer/model.py` | [3.6](03_6_the_full_model.py) |
#
# Each name is where the table says:

# %%
PLACES = {
    "embeddings": ["TokenEmbedding", "TokenEmbedding.project"],
    "positional_encoding": ["SinusoidalPositionalEncoding"],
    "multi_head": ["MultiHeadAttention"],
    "attention": ["scaled_dot_product_attention"],
    "masks": ["causal_mask", "padding_mask"],
    "feed_forward": ["PositionwiseFeedForward"],
    "layers": ["ResidualBlock", "EncoderLayer", "Encoder", "DecoderLayer", "Decoder"],
    "loss": ["LabelSmoothingLoss"],
    "decoding": ["greedy_decode"],
    "model": ["Transformer"],
}
for module, names in PLACES.items():
    for name in names:
        found = transformer
        for part in name.split("."):
            found = getattr(found, part)
        assert found.__module__ == f"transformer.{module}", name
print(sum(map(len, PLACES.values())), "names found, each in its module")

# %% [markdown]
# ## Unsaid by the paper
#
# - **What stands first.** "Shifted right" leaves a gap at the first position. The authors' code fills it with a vector of
#   zeros. Most later code, ours too, puts a token there that marks the beginning.
# - **What is not drawn.** Figure 1 shows neither dropout, nor the factor $\sqrt{d_{\text{model}}}$, nor the matrix that
#   both embeddings and the linear layer share. Padding is in neither the figure nor the text of the model.
# - **What is not in the paper.** The first public version of the authors' code adds a learned vector to the encoder's
#   input that names the kind of target ("target space"). We have none.
# - **The order of add and norm.** The figure and the text agree. The authors' code changed it within four months;
#   [Section 3.1](03_1_encoder_and_decoder_stacks.py) compares both.
# - **How to choose a token.** The loop above draws one. The paper uses beam search, in Section 6.1.
#
# ## What we now know
#
# - The encoder gives one vector per source token. A recurrent encoder of the same shell gives one in all.
# - Generation is a loop that feeds outputs back. Because later tokens are hidden, the probabilities of all targets of a
#   length sum to 1, and without the mask they do not.
# - In training the loop becomes one call on the target shifted right, with the same numbers.
# - Every layer keeps the shape (B, n, d_model). Only inside do heads, attention weights and the inner layer have others.
# - Every decoder layer reads the same memory, the output of the last encoder layer.
#
# ## Exercises
#
# 1. **Predict, then run.** Write a `choose` that takes the most probable token, and run `generate` with it for twenty tokens.
#    What does an untrained model do?
# 2. **Predict, then run.** Exchange two words of the source. Does the memory exchange two rows? Then remove `src_positions`,
#    and look again.
# 3. **Minutes.** From which length on do all 18 attentions of base together have more weights than there are logits? Use
#    `value_of` with $n = m$. Check: `check("3-weights", answer)`.
# 4. **Minutes.** `generate` computes all positions again at each step. How many positions does it compute for $m$ tokens? Which
#    part could be kept? [Section 3.6](03_6_the_full_model.py) keeps it.
# 5. **An hour.** Give `RecurrentModel` a memory of $n$ vectors and attention over them. Which of the three functions change?

# %% [markdown]
# Solution to exercise 3: count up, or divide $V$ by 18 times 8.

# %% tags=["hide-cell"]
from transformer.exercises import check

length = 1
while 18 * value_of("h * n * n", n=length, **base) <= value_of("m * V", m=length, **base):
    length += 1
print(f"from {length} tokens on: 18 · 8 · {length} > 37,000")
print(check("3-weights", length))
assert length == 37_000 // (18 * 8) + 1 and check("3-weights", length)
