# %% [markdown]
# # 3.4 Embeddings and Softmax
#
# Token ids go in and probabilities of token ids come out. The paper does both with one matrix, and multiplies it by $\sqrt{d_{\text{model}}}$ on the way in. The factor looks arbitrary. It is what lets one matrix serve two places that need it at two scales. The scale on the way out fixes the loss of the untrained model: $\ln V + \tfrac12$.

# %%
#| default_exp embeddings

# %%
import transformer

transformer.check_version("0.1")

# %%
#| export
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %%
import copy

import altair as alt

# %% [markdown]
# ## One matrix, in and out
#
# > Similarly to other sequence transduction models, we use learned embeddings to convert the input tokens and output tokens to vectors of dimension $d_{\text{model}}$.
# >
# > We also use the usual learned linear transformation and softmax function to convert the decoder output to predicted next-token probabilities.
# >
# > In our model, we share the same weight matrix between the two embedding layers and the pre-softmax linear transformation, similar to [30].
# >
# > In the embedding layers, we multiply those weights by $\sqrt{d_{\text{model}}}$.
# >
# > — Section 3.4
#
# Reference [30] of the paper is Press and Wolf, who tied input and output embeddings of language models. So there is one matrix of shape (V, d_model). `forward` looks tokens up in it and scales them. `project` compares a hidden state with every row of it, unscaled. We draw the matrix with standard deviation $d_{\text{model}}^{-0.5}$; the paper does not say how.


# %%
#| export
class TokenEmbedding(nn.Module):
    """A learned vector per token, multiplied by √d_model.

    The same matrix serves the pre-softmax linear transformation through `project`.

    Args:
        vocab_size: V, the number of tokens.
        d_model: Width of a vector.

    Attributes:
        weight: Shape (V, d_model), drawn from a normal distribution with standard deviation d_model^-0.5.

    Source: §3.4.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Look the tokens up.

        Args:
            ids: Token ids from 0 to V−1, shape (B, n), int64 or int32.

        Returns:
            Shape (B, n, d_model).

        Raises:
            TypeError: ids are neither int64 nor int32.
            ValueError: ids is not a non-empty (B, n), or an id is out of range (checked on the CPU only: on a GPU
                the check would wait for the device).
        """
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"token ids have dtype {ids.dtype}; give int64 ids, as a tokenizer makes them.")
        if ids.dim() != 2 or ids.numel() == 0:
            raise ValueError(f"token ids have shape {tuple(ids.shape)}; expected a non-empty (batch, length).")
        if ids.device.type == "cpu" and not 0 <= int(ids.min()) <= int(ids.max()) < self.weight.size(0):
            raise ValueError(
                f"token ids range from {int(ids.min())} to {int(ids.max())}, but the vocabulary has ids 0 to "
                f"{self.weight.size(0) - 1}; were they made by another tokenizer?"
            )
        return F.embedding(ids, self.weight) * math.sqrt(self.weight.size(1))

    def project(self, hidden: Tensor) -> Tensor:
        """Compare hidden states with every token's vector: the pre-softmax linear transformation.

        Args:
            hidden: Shape (…, d_model).

        Returns:
            Logits, shape (…, V).

        Raises:
            ValueError: The last dimension is not d_model.
        """
        if hidden.size(-1) != self.weight.size(1):
            raise ValueError(
                f"hidden states have shape {tuple(hidden.shape)}; their last dimension must be {self.weight.size(1)}."
            )
        return F.linear(hidden, self.weight)


# %% [markdown]
# ## See it
#
# Five tokens of width 4, so that $\sqrt{d_{\text{model}}} = 2$. Looking a token up is multiplying the matrix by a one-hot row. Nobody computes it so, but it says why the gradient of an embedding is a linear layer's gradient.

# %%
torch.manual_seed(0)
tiny = TokenEmbedding(vocab_size=5, d_model=4)
ids = torch.tensor([[3, 1, 3]])  # (B, n) = (1, 3)
with torch.no_grad():
    vectors = tiny(ids)  # (1, 3, 4)
    one_hot = F.one_hot(ids, 5).float()  # (1, 3, 5)
    logits = tiny.project(vectors)  # (1, 3, 5)
    probabilities = logits.softmax(dim=-1)
print("matrix\n", tiny.weight.data.round(decimals=2))
print("tokens 3, 1, 3\n", vectors[0].round(decimals=2))
print("probabilities after token 3\n", probabilities[0, 0].round(decimals=2))
assert torch.equal(vectors[0, 0], 2 * tiny.weight[3])
torch.testing.assert_close(vectors, one_hot @ tiny.weight * 2)
assert torch.allclose(probabilities.sum(-1), torch.ones(1, 3))

# %% [markdown]
# What is not a token id is refused before it reaches the matrix.

# %%
for wrong in (ids.float(), torch.tensor([[4, 5]]), torch.tensor([3, 1]), torch.empty(0, 3, dtype=torch.int64)):
    try:
        tiny(wrong)
    except (TypeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown]
# ## Check it: why $\sqrt{d_{\text{model}}}$ fits $d_{\text{model}}^{-0.5}$
#
# The matrix is used at two places, and each has a scale that suits it.
#
# - **On the way in**, the vector is added to a positional encoding whose entries are sines and cosines, with root mean square $\sqrt{1/2}$. A token should be about as loud, so its entries should have standard deviation about 1.
# - **On the way out**, the decoder's last layer normalization hands over a vector $h$ of $d_{\text{model}}$ entries with variance 1. The logit $h \cdot w$ sums $d_{\text{model}}$ products, so its variance is $d_{\text{model}}$ times that of an entry of $w$. For logits of variance 1 the entries need variance $1/d_{\text{model}}$.
#
# One matrix cannot have both scales, unless a factor stands between them. Below are the four combinations of two initializations (PyTorch's default for `nn.Embedding` is standard deviation 1) and the factor, at $d_{\text{model}} = 512$.

# %%
d_model, vocabulary = 512, 4000
generator = torch.Generator().manual_seed(0)
hidden = F.layer_norm(
    torch.randn(2000, d_model, generator=generator), [d_model]
)  # (2000, d_model): what a decoder ends with
answers = torch.randint(0, vocabulary, (2000,), generator=generator)
drawn = torch.randn(vocabulary, d_model, generator=generator)  # (V, d_model)

print("init std   factor    std on the way in   std of logits   untrained loss   ln V + 1/2")
table = {}
for init in (1.0, d_model**-0.5):
    for factor in (1.0, d_model**0.5):
        weight = drawn * init
        logits = hidden @ weight.T  # (2000, V)
        loss = F.cross_entropy(logits, answers).item()
        table[init, factor] = ((weight * factor).std().item(), logits.std().item(), loss)
        inward, outward, _ = table[init, factor]
        print(
            f"{init:8.3f} {factor:8.1f} {inward:20.2f} {outward:15.1f} {loss:16.1f} {math.log(vocabulary) + 0.5:12.1f}"
        )
inward, outward, loss = table[d_model**-0.5, d_model**0.5]
assert abs(inward - 1) < 0.02 and abs(outward - 1) < 0.02 and abs(loss - math.log(vocabulary) - 0.5) < 0.1
right = [pair for pair, (into, out, _) in table.items() if abs(into - 1) < 0.02 and abs(out - 1) < 0.02]
assert right == [(d_model**-0.5, d_model**0.5)]
assert table[1.0, 1.0][2] > 5 * loss

# %% [markdown]
# Only the last row is right at both ends. With a standard deviation of 1, the logits spread by $\sqrt{512}$ and the untrained model is confident and wrong. With $d_{\text{model}}^{-0.5}$ and no factor, the token is small beside its position. The wider the model, the smaller:

# %% tags=["hide-input"]
widths = [16, 32, 64, 128, 256, 512, 1024]
names = {
    "token × √d_model": lambda w, d: w * d**0.5,
    "token, no factor": lambda w, d: w,
    "positional encoding": lambda w, d: transformer.sinusoids(256, d),
}
rows = [
    {
        "d_model": d,
        "what": name,
        "size": round(make(torch.randn(1000, d, generator=generator) * d**-0.5, d).square().mean().sqrt().item(), 3),
    }
    for d in widths
    for name, make in names.items()
]
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_line(point=True)
    .encode(
        x=alt.X(
            "d_model:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=widths, format="d"), title="d_model"
        ),
        y=alt.Y("size:Q", title="root mean square of an entry", scale=alt.Scale(domain=[0, 1.1])),
        color=alt.Color(
            "what:N",
            scale=alt.Scale(range=["#0072B2", "#E69F00", "#009E73"]),
            legend=alt.Legend(title=None, orient="bottom", symbolType="stroke"),
        ),
        strokeDash=alt.StrokeDash("what:N"),
        tooltip=["what:N", "d_model:Q", "size:Q"],
    )
    .properties(title="Without the factor, positions drown out the tokens", width=420, height=240)
)
sizes = {(row["d_model"], row["what"]): row["size"] for row in rows}
assert sizes[512, "positional encoding"] > 10 * sizes[512, "token, no factor"]
assert abs(sizes[512, "token × √d_model"] - 1) < 0.02 and abs(sizes[512, "positional encoding"] - 0.5**0.5) < 0.01
chart

# %% [markdown]
# The two upper lines keep their distance at every width. The lowest falls with $d_{\text{model}}^{-0.5}$: at 512 the position is more than ten times louder than the token.
#
# ## Check it: the loss before training is $\ln V + \tfrac12$
#
# A model that knew nothing and said so would give every token the probability $1/V$, and its loss would be $\ln V$. An untrained Transformer is a little worse, by one half. The half can be derived.
#
# 1. The decoder ends with a layer normalization whose gain is still 1 and whose bias is still 0, so $\lVert h \rVert^2 = d_{\text{model}}$ (but for its $\epsilon$).
# 2. The entries of a row $w_v$ are drawn from $N(0, 1/d_{\text{model}})$. A sum of independent normal numbers is normal: $z_v = h \cdot w_v \sim N(0, \lVert h \rVert^2 / d_{\text{model}}) = N(0, 1)$.
# 3. The loss on the answer $y$ is $\ln \sum_v e^{z_v} - z_y$. The second term is 0 on average.
# 4. The sum has $V$ terms, so it is close to $V \cdot \mathrm{E}[e^z]$. Completing the square, $z - z^2/2 = \tfrac12 - (z-1)^2/2$, gives
#
# $$\mathrm{E}[e^z] = \int \frac{e^{z - z^2/2}}{\sqrt{2\pi}}\, dz = e^{1/2} \int \frac{e^{-(z-1)^2/2}}{\sqrt{2\pi}}\, dz = e^{1/2}.$$
#
# The loss is therefore about $\ln(V e^{1/2}) = \ln V + \tfrac12$. With logits of variance $\sigma^2$ the same steps give $\ln V + \sigma^2/2$. First the integral, then real Transformers of several sizes, on random tokens.

# %%
z = torch.linspace(-12, 14, 200_001, dtype=torch.float64)
integral = torch.trapezoid(torch.exp(z - z**2 / 2) / math.sqrt(2 * math.pi), z).item()
print(f"E[exp z] = {integral:.6f}   e^(1/2) = {math.exp(0.5):.6f}")
assert math.isclose(integral, math.exp(0.5), rel_tol=1e-9)


# %%
@torch.no_grad()
def untrained(config, batch=96, length=16):
    """Logits of a fresh model on random tokens, (batch, length, V), with its inputs and answers."""
    torch.manual_seed(0)
    model = transformer.Transformer(config).eval()
    src, tgt_in, tgt_out = torch.randint(3, config.tgt_vocab_size, (3, batch, length))
    return model(src, tgt_in), tgt_in, tgt_out


print("model     V      loss   ln V + 1/2   difference   std of logits")
for name, config in {
    "tiny": transformer.TransformerConfig.tiny(vocab_size=4000),
    "tiny ": transformer.TransformerConfig.tiny(vocab_size=8000),
    "small": transformer.TransformerConfig.small(vocab_size=4000),
    "small ": transformer.TransformerConfig.small(vocab_size=8000),
}.items():
    logits, tgt_in, tgt_out = untrained(config)
    loss = F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten()).item()
    expected = math.log(config.tgt_vocab_size) + 0.5
    print(
        f"{name:6} {config.tgt_vocab_size:6} {loss:8.2f} {expected:10.2f} {loss - expected:12.2f} {logits.std():13.2f}"
    )
    assert abs(loss - expected) < 0.1 and abs(logits.std() - 1) < 0.03

# %% [markdown]
# So a first loss far from $\ln V + \tfrac12$ says that something is wrong before any training: another scale of the matrix, a missing normalization, a target that was not shifted. (A missing mask it does not show: attention has learned nothing yet.) The chart shows what other scales do. The rule $\sigma^2/2$ holds while $V$ terms are enough to meet the large values that make up the mean of $e^z$. Beyond $\sigma = \sqrt{2 \ln V}$ the largest logit alone decides, and the loss grows like $\sigma \sqrt{2 \ln V}$.

# %% tags=["hide-input"]
rows = []
for V in (100, 1000, 10000):
    noise = torch.randn(200, V, generator=generator)  # (samples, V)
    for step in range(25):
        sigma = step / 4
        measured = (sigma * noise).logsumexp(-1).mean().item()  # the answer's own logit is 0 on average
        rows.append({"V": V, "sigma": sigma, "kind": "measured", "loss": round(measured, 3)})
        rows.append({"V": V, "sigma": sigma, "kind": "ln V + σ²/2", "loss": round(math.log(V) + sigma**2 / 2, 3)})
        if sigma <= 2:
            assert abs(measured - math.log(V) - sigma**2 / 2) < 0.35
        if sigma == 1:
            assert abs(measured - math.log(V) - 0.5) < 0.1
size = alt.param(name="V", value=1000, bind=alt.binding_select(options=[100, 1000, 10000], name="V "))
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.V == V")
    .mark_line()
    .encode(
        x=alt.X("sigma:Q", title="standard deviation of the logits, σ"),
        y=alt.Y("loss:Q", title="loss before training", scale=alt.Scale(domain=[0, 30])),
        color=alt.Color(
            "kind:N", scale=alt.Scale(range=["#E69F00", "#0072B2"]), legend=alt.Legend(title=None, orient="bottom")
        ),
        strokeDash=alt.StrokeDash("kind:N"),
        tooltip=["kind:N", "V:Q", "sigma:Q", "loss:Q"],
    )
    .add_params(size)
    .properties(title="At σ = 1 the loss is ln V + ½; larger scales cost far more", width=420, height=260)
)
chart

# %% [markdown]
# Choose V. At σ = 1 the curves meet at $\ln V + \tfrac12$. They part the later, the larger V is.
#
# ## One matrix in three places
#
# The model has one `embedding`, and both stacks and the output use it. PyTorch counts and saves it once.

# %%
config = transformer.TransformerConfig(1000, 1000, d_model=64, n_layers=2, n_heads=4, d_ff=128, dropout=0.0)
torch.manual_seed(0)
tied = transformer.Transformer(config)
untied = transformer.Transformer(
    transformer.TransformerConfig(
        1000, 1000, d_model=64, n_layers=2, n_heads=4, d_ff=128, dropout=0.0, tie_embeddings=False
    )
)
of_vocabulary = [name for name, tensor in tied.state_dict().items() if 1000 in tensor.shape]
of_vocabulary_untied = [name for name, tensor in untied.state_dict().items() if 1000 in tensor.shape]
print("tied:  ", of_vocabulary)
print("untied:", of_vocabulary_untied)
assert of_vocabulary == ["embedding.weight"] and len(of_vocabulary_untied) == 3
saved = transformer.count_parameters(untied) - transformer.count_parameters(tied)
assert saved == 2 * 1000 * 64

# %% [markdown]
# For the base model with 37,000 tokens, without making its numbers (on PyTorch's `meta` device):

# %%
with torch.device("meta"):
    base = transformer.Transformer(transformer.TransformerConfig.base())
    base_untied = transformer.Transformer(transformer.TransformerConfig.base(tie_embeddings=False))
matrix = base.embedding.weight.numel()
total, total_untied = transformer.count_parameters(base), transformer.count_parameters(base_untied)
print(f"the matrix {matrix:,} of {total:,} parameters ({matrix / total:.0%}); untied {total_untied:,}")
assert matrix == 37_000 * 512 and total_untied == total + 2 * matrix and total == 63_082_496

# %% [markdown]
# Three uses send three gradients to one matrix, and they add up. We copy the weights into an untied model and compare. The two embeddings touch only the rows of tokens that occur. The output touches every row at every step, since the softmax compares all tokens. A shared row therefore learns even when its token does not occur.

# %%
weights = tied.state_dict()
untied.load_state_dict(
    {**weights, "tgt_embedding.weight": weights["embedding.weight"], "output.weight": weights["embedding.weight"]}
)
src, tgt_in, tgt_out = torch.randint(3, 1000, (3, 4, 10), generator=generator)
for model in (tied, untied):
    F.cross_entropy(model(src, tgt_in).flatten(0, 1), tgt_out.flatten()).backward()
parts = {
    "source embedding": untied.embedding.weight.grad,
    "target embedding": untied.tgt_embedding.weight.grad,
    "output": untied.output.weight.grad,
}
torch.testing.assert_close(sum(parts.values()), tied.embedding.weight.grad, rtol=1e-4, atol=1e-7)
for name, gradient in parts.items():
    print(f"{name:17} rows with a gradient: {int((gradient != 0).any(dim=1).sum()):4} of {len(gradient)}")
assert (parts["output"] != 0).any(dim=1).all()
assert torch.equal((parts["source embedding"] != 0).any(dim=1).nonzero()[:, 0], src.unique())

# %% [markdown]
# Sharing needs one vocabulary. The paper's byte-pair encoding of English–German covers both languages together, so an id means the same on both sides. Two vocabularies cannot be tied. The configuration refuses two of different size; whether two of one size are the same, it cannot know.

# %%
try:
    transformer.TransformerConfig(src_vocab_size=1000, tgt_vocab_size=1200)
except ValueError as error:
    print(error)

# %% [markdown]
# Sharing has a side effect before any training. The residual connections carry each input token's vector up to the output, where it meets the same vector again. The untrained model thus favours repeating its input token.

# %%
for name, tie in {"tied": True, "untied": False}.items():
    logits, tgt_in, _ = untrained(transformer.TransformerConfig.small(vocab_size=4000, tie_embeddings=tie))
    own = logits.gather(-1, tgt_in[..., None]).mean().item()
    print(f"{name:7} mean logit of the input token {own:5.1f}   of all tokens {abs(logits.mean()):4.1f}")
    if name == "untied":
        assert abs(own) < 0.5
    else:
        assert own > 1

# %% [markdown]
# It is one token in thousands, so the loss hardly notices. But it is a reason to let an untrained *tied* model decode a few tokens and see whether it repeats itself: it should.
#
# ## Live in the trained model
#
# The model that ships with this book translates English to German with one matrix for both languages and for the output.

# %%
translator = transformer.load_toy_translator()
trained, tokenizer = translator.model, translator.tokenizer
vocabulary, d_model = trained.embedding.weight.shape
of_vocabulary = [name for name, tensor in trained.state_dict().items() if vocabulary in tensor.shape]
scale = trained.embedding.weight.std().item() * d_model**0.5
print("tensors with one row per token:", of_vocabulary)
print(f"{vocabulary:,} × {d_model} = {vocabulary * d_model:,} of {transformer.count_parameters(trained):,} parameters")
print(f"standard deviation times √d_model: 1.0 at the start, {scale:.1f} after training")
assert of_vocabulary == ["embedding.weight"] and 0.6 < scale < 1.6

# %% [markdown]
# One matrix in three places means that a change to one row is felt at three places, and nowhere else. We disturb the row of one token in a copy of the model.

# %%
disturbed = copy.deepcopy(trained)
(cat,) = tokenizer.encode("Katze")  # one piece, one row
with torch.no_grad():
    disturbed.embedding.weight[cat] += 0.1 * torch.randn(d_model, generator=generator)
source = torch.tensor([[*tokenizer.encode("The black cat is tired."), 2]])  # ends with <eos>; (1, n)
german = torch.tensor([[1, *tokenizer.encode("Die schwarze Katze ist müde.")]])  # begins with <bos>; (1, m)
print("pieces:", tokenizer.pieces(german[0].tolist()))


@torch.no_grad()
def felt(function):
    """Positions at which the two models differ by more than rounding."""
    return ((function(disturbed) - function(trained)).abs() > 1e-6).any(dim=-1)[0].nonzero()[:, 0].tolist()


with torch.no_grad():
    state = trained.decode(german, trained.encode(source))  # (1, m, d_model)
at = german[0].tolist().index(cat)
print("read by the encoder at positions", felt(lambda model: model.embedding(german)), "of the German words")
print(
    "read by the decoder at positions",
    felt(lambda model: model.decode(german, trained.encode(source))),
    "and through attention later",
)
print("written as the logit of tokens  ", felt(lambda model: model.output_projection(state[:, :1]).transpose(1, 2)))
assert felt(lambda model: model.embedding(german)) == [at]
assert felt(lambda model: model.encode(german)) == list(range(german.size(1)))  # the encoder looks both ways
assert felt(lambda model: model.decode(german, trained.encode(source))) == list(range(at, german.size(1)))
assert felt(lambda model: model.output_projection(state[:, :1]).transpose(1, 2)) == [cat]

# %% [markdown]
# And the softmax at work: the probabilities of the token after *Die schwarze*, and the tokens whose rows point most nearly in the same direction as a given one. The rows were drawn at random. What they share, training put there.

# %%
with torch.no_grad():
    logits = trained(source, german[:, :at])  # (1, at, V): the last position has read "Die schwarze"
    probabilities = logits[0, -1].softmax(-1)
best = probabilities.topk(3)
for probability, piece in zip(best.values.tolist(), tokenizer.pieces(best.indices.tolist())):
    print(f"{piece.replace('▁', ''):10} {probability:.2f}")
assert best.indices[0] == cat and math.isclose(probabilities.sum(), 1, rel_tol=1e-5)

directions = F.normalize(trained.embedding.weight.detach(), dim=1)  # (V, d_model)
for word in ("Katze", "Hund", "cat", "black", "ist"):
    row = tokenizer.encode(word)[0]
    nearest = (directions @ directions[row]).topk(6).indices[1:].tolist()
    print(f"{word:6}", " ".join(piece.replace("▁", "") for piece in tokenizer.pieces(nearest)))

# %% [markdown]
# ## Unsaid by the paper
#
# - **The reason for the factor.** The paper gives none. Section 3.4 only states it. That the factor makes tokens as loud as positions, or that it undoes a small initialization, is a reading of later authors, and of this chapter.
# - **The initialization.** The paper states none either. The authors' code draws embeddings with standard deviation $d_{\text{model}}^{-0.5}$, and so do fairseq and this book.
# - **Padding.** The authors' code sets the vectors of padding to zero. Here `<pad>` has a row like any token, and the masks of [Section 3.2.3](03_2_3_applications_of_attention.py) keep others from seeing it.
# - **Sharing is not everywhere.** The authors' code shares in `transformer_base`, but not in the settings of the big English–French model. The Annotated Transformer has it off by default.
# - **A bias.** Our output has none: it is the matrix and nothing else.

# %% [markdown]
# ## What we now know
#
# - Looking a token up is multiplying by a one-hot row: checked.
# - At standard deviation $d_{\text{model}}^{-0.5}$ with the factor $\sqrt{d_{\text{model}}}$, and only there, tokens enter with unit scale and logits leave with unit scale: checked against three alternatives.
# - The untrained loss is $\ln V + \tfrac12$ within 0.1: derived, and checked on four models.
# - The matrix is one parameter. Tying saves two copies of it, and its gradient is the sum of three: checked.
# - In the trained model a changed row is felt by the encoder, the decoder and one logit: checked.
#
# ## Exercises
#
# 1. **Predict, then run.** What is the untrained loss if the answer is the input token itself? Estimate it from the mean logit printed above, then measure it.
# 2. **Minutes.** With which loss does an untrained base model begin, with 37,000 tokens and logits of variance 1? Check: `check("3.4-untrained", answer)`.
# 3. **Minutes.** Replace the normal distribution by a uniform one of the same variance. Which step of the derivation changes, and why does the result not?
# 4. **An hour.** Derive the untrained loss for pre-norm with a final normalization. Does it differ?
# 5. **An hour.** Label smoothing changes the loss of [Section 5.4](05_4_regularization.py). Show that the untrained loss is the same, up to noise.

# %% [markdown]
# Solution to exercise 1: the loss falls by the mean logit of the input token.

# %% tags=["hide-cell"]
logits, tgt_in, tgt_out = untrained(transformer.TransformerConfig.small(vocab_size=4000))
repeat = F.cross_entropy(logits.flatten(0, 1), tgt_in.flatten()).item()
other = F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten()).item()
own = logits.gather(-1, tgt_in[..., None]).mean().item()
print(f"random answer {other:.1f}, input token {repeat:.1f}, expected {math.log(4000) + 0.5 - own:.1f}")
assert abs(repeat - (math.log(4000) + 0.5 - own)) < 0.1

# %% [markdown]
# Solution to exercise 2: $\ln V + \sigma^2/2$ with $\sigma = 1$.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = math.log(37_000) + 1 / 2
print(f"{answer:.2f} nats")
verdict = check("3.4-untrained", answer)
print(verdict)
assert verdict

# %% [markdown]
# ## The notebook and the module agree

# %%
installed = transformer.TokenEmbedding(5, 4)
installed.load_state_dict(tiny.state_dict())
assert torch.equal(installed(ids), tiny(ids))
assert torch.equal(installed.project(vectors), tiny.project(vectors))
print("same vectors, same logits")
