# %% [markdown]
# # 3.5 Positional Encoding
#
# Attention sees a set of vectors, not a sequence: shuffle the words and it computes the same. So the paper adds to every embedding a vector that depends on its position alone. This chapter checks that the addition is needed, that sinusoids make a shift by k a rotation, and what becomes of positions that no training sentence reached.

# %%
#| default_exp positional_encoding

# %%
import transformer

transformer.check_version("0.1")

# %%
#| export
import torch
from torch import Tensor, nn

# %%
import math

import altair as alt
import matplotlib.pyplot as plt
import torch.nn.functional as F

# %% [markdown]
# ## Why positions must be added
#
# > Since our model contains no recurrence and no convolution, in order for the model to make use of the order of the sequence, we must inject some information about the relative or absolute position of the tokens in the sequence.
# >
# > — Section 3.5
#
# We test it. We take an encoder, leave the positions out, and feed it the same tokens in another order.

# %%
torch.manual_seed(0)
config = transformer.TransformerConfig(50, 50, d_model=64, n_layers=3, n_heads=4, d_ff=128, dropout=0.0)
model = transformer.Transformer(config).eval()
ids = torch.randint(3, 50, (1, 10))  # (B, n)
order = torch.randperm(10)

with torch.no_grad():
    bare = model.encoder(model.embedding(ids))  # (1, n, d_model), no positions
    bare_shuffled = model.encoder(model.embedding(ids[:, order]))
    placed = model.encode(ids)  # with positions
    placed_shuffled = model.encode(ids[:, order])
without = (bare_shuffled - bare[:, order]).abs().max().item()
with_positions = (placed_shuffled - placed[:, order]).abs().max().item()
print(
    f"shuffled input against shuffled output: equal without positions: {without < 1e-5}, off by {with_positions:.1f} with them"
)
assert without < 1e-5 and with_positions > 0.5

# %% [markdown]
# Without positions, shuffled inputs give shuffled outputs and nothing more: *dog bites man* and *man bites dog* are one sentence. With positions they differ.
#
# ## The formula
#
# > To this end, we add "positional encodings" to the input embeddings at the bottoms of the encoder and decoder stacks. The positional encodings have the same dimension $d_{\text{model}}$ as the embeddings, so that the two can be summed.
# >
# > — Section 3.5
#
# > In this work, we use sine and cosine functions of different frequencies:
# >
# > $$
# > PE_{(pos,2i)} = sin(pos / 10000^{2i/d_{\text{model}}}) \\
# > PE_{(pos,2i+1)} = cos(pos / 10000^{2i/d_{\text{model}}})
# > $$
# >
# > — Section 3.5
#
# Even channels hold sines, odd channels hold cosines, and channels 2i and 2i+1 share one frequency.


# %%
#| export
def sinusoids(length: int, d_model: int, start: int = 0) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)).

    Args:
        length: Number of positions.
        d_model: Width, even.
        start: The first position.

    Returns:
        Shape (length, d_model), float64; rounding of large positions would shift the phase.

    Raises:
        ValueError: d_model is odd.

    Source: §3.5.
    """
    if d_model % 2:
        raise ValueError(f"d_model is {d_model}; sines and cosines come in pairs, so give an even d_model.")
    position = torch.arange(start, start + length, dtype=torch.float64)[:, None]  # (length, 1)
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)  # (d_model / 2)
    angle = position * frequency  # (length, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # (length, d_model)


# %%
#| export
def _check_embeddings(x: Tensor, d_model: int, start: int) -> None:
    if x.dim() != 3 or x.size(-1) != d_model:
        raise ValueError(f"the embeddings have shape {tuple(x.shape)}; expected (batch, length, {d_model}).")
    if start < 0:
        raise ValueError(f"start is {start}; positions count from 0.")


# %%
#| export
class SinusoidalPositionalEncoding(nn.Module):
    """Add sinusoids to the embeddings. Nothing is learned, and no length is too long.

    Args:
        d_model: Width of the embeddings, even.

    Raises:
        ValueError: d_model is odd.

    Source: §3.5.
    """

    table: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoids(256, d_model).float(), persistent=False)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the encodings of positions start, start + 1, ….

        Args:
            x: Embeddings, shape (B, n, d_model).
            start: Position of the first; greater than 0 while decoding with a cache.

        Returns:
            Shape (B, n, d_model).

        Raises:
            ValueError: x has another shape, or start is negative.
        """
        _check_embeddings(x, self.d_model, start)
        end = start + x.size(1)
        if end > self.table.size(0):  # double, so that decoding token by token seldom comes here
            self.table = sinusoids(max(end, 2 * self.table.size(0)), self.d_model).float().to(self.table)
        return x + self.table[start:end].to(x.dtype)


# %% [markdown]
# The table is a constant: it is computed once, lengthened when a sentence needs it, and never saved. The alternative of the paper's Table 3, row (E), learns a vector per position instead.


# %%
#| export
class LearnedPositionalEncoding(nn.Module):
    """Add a learned vector per position to the embeddings.

    Args:
        max_len: Number of positions; later ones do not exist.
        d_model: Width of the embeddings.

    Source: §3.5 and Table 3, row (E).
    """

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the encodings of positions start, start + 1, ….

        Args:
            x: Embeddings, shape (B, n, d_model).
            start: Position of the first.

        Returns:
            Shape (B, n, d_model).

        Raises:
            ValueError: A position lies beyond max_len, x has another shape, or start is negative.
        """
        _check_embeddings(x, self.weight.size(1), start)
        end = start + x.size(1)
        if end > self.weight.size(0):
            raise ValueError(
                f"the sequence reaches position {end - 1}, but only positions 0 to {self.weight.size(0) - 1} were "
                'learned; shorten the input, raise max_len, or use positions="sinusoidal".'
            )
        return x + self.weight[start:end]


# %% [markdown]
# ## See it
#
# Position 0 is 0, 1, 0, 1, …: all sines are 0 and all cosines 1. At position 1 the first pair has turned by one radian, the next by a little less. The expected values are computed with Python's `math`, straight from the formula.

# %%
d_model = 512
table = sinusoids(100, d_model)  # (length, d_model)
print("PE[0, 0..3] ", [round(value, 6) for value in table[0, :4].tolist()])
print("PE[1, 0..3] ", [round(value, 6) for value in table[1, :4].tolist()])
turn = 1 / 10000 ** (2 / d_model)
print("by the formula", [round(value, 6) for value in (math.sin(1), math.cos(1), math.sin(turn), math.cos(turn))])
torch.testing.assert_close(
    table[1, :4].float(), torch.tensor([0.841471, 0.540302, 0.821856, 0.569695]), rtol=0, atol=1e-6
)

# %% mystnb={"image": {"alt": "Heat map of the positional encoding: positions 0 to 99 downwards, 128 channels to the right. The left channels alternate quickly from position to position; the stripes grow longer to the right, and the last channels hardly change."}} tags=["hide-input"]
grey = "#7a7f87"
with plt.rc_context(
    {"text.color": grey, "axes.labelcolor": grey, "xtick.color": grey, "ytick.color": grey, "axes.edgecolor": grey}
):
    fig, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    picture = axes.imshow(sinusoids(100, 128), cmap="viridis", aspect="auto", interpolation="nearest")
    axes.set(title="Fast channels left, slow channels right", xlabel="channel", ylabel="position")
    fig.colorbar(picture, label="PE")
    fig.patch.set_alpha(0)
plt.show()

# %% [markdown]
# Each row is the encoding of one position, for a width of 128. The left channels flicker from row to row, like the last bits of a counter. The right channels hardly move, like its first bits. Move the slider to see one pair of channels at $d_{\text{model}} = 512$.

# %% tags=["hide-input"]
pair = alt.param(name="pair", value=40, bind=alt.binding_range(min=0, max=255, step=1, name="pair i "))
waves = (
    alt.Chart(alt.sequence(0, 201, as_="position"))
    .transform_calculate(
        angle="datum.position / pow(10000, 2 * pair / 512)", even="sin(datum.angle)", odd="cos(datum.angle)"
    )
    .transform_fold(["even", "odd"], as_=["channel", "value"])
    .transform_calculate(channel="datum.channel == 'even' ? '2i (sine)' : '2i+1 (cosine)'")
    .mark_line()
    .encode(
        x=alt.X("position:Q", scale=alt.Scale(domain=[0, 200])),
        y=alt.Y("value:Q", title="PE", scale=alt.Scale(domain=[-1, 1])),
        color=alt.Color("channel:N", scale=alt.Scale(range=["#0072B2", "#E69F00"]), legend=alt.Legend(orient="bottom")),
        strokeDash=alt.StrokeDash("channel:N"),
    )
    .add_params(pair)
)
told = (
    alt.Chart(alt.sequence(0, 1, as_="x"))
    .transform_calculate(text="'wavelength ' + format(2 * PI * pow(10000, 2 * pair / 512), ',.1f') + ' positions'")
    .mark_text(align="right", x=480, y=-8)
    .encode(text="text:N")
)
chart = (waves + told).properties(
    title=alt.Title("Each pair of channels is one wave", anchor="start"), width=480, height=180
)
chart

# %% [markdown]
# Pair 0 turns by one radian per position. In the slower half of the pairs, a sentence of 200 tokens sees less than a third of one wave.
#
# ## Wavelengths
#
# > where $pos$ is the position and $i$ is the dimension. That is, each dimension of the positional encoding corresponds to a sinusoid. The wavelengths form a geometric progression from $2\pi$ to $10000 \cdot 2\pi$.
# >
# > — Section 3.5
#
# The progression is geometric and begins at $2\pi$. It does not end at $10000 \cdot 2\pi$. The last pair has $i = d_{\text{model}}/2 - 1$, so its exponent is $(d_{\text{model}} - 2)/d_{\text{model}}$, one step short of 1. $10000 \cdot 2\pi$ would be the wavelength of the first pair that is *not* there.


# %%
def wavelengths(d_model):
    """Wavelength of every pair of channels, in units of 2π positions."""
    return 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)


def wavelengths_of_the_code(d_model):
    """The same in the authors' code: the exponent runs from 0 to 1, both included."""
    return 10000 ** (torch.arange(d_model // 2, dtype=torch.float64) / (d_model // 2 - 1))


for width in (16, 64, 128, 512, 1024):
    print(
        f"d_model {width:5}: longest wavelength {wavelengths(width)[-1]:8.1f} · 2π;  authors' code {wavelengths_of_the_code(width)[-1]:8.1f} · 2π"
    )
longest = wavelengths(512)[-1].item()
ratios = wavelengths(512)[1:] / wavelengths(512)[:-1]
assert round(longest, 1) == 9646.6 and math.isclose(longest, 10000 ** (510 / 512))
assert wavelengths(512)[0] == 1 and torch.allclose(ratios, ratios[0])
# measured, not only computed: one wavelength later the slowest pair is back where it was
steps = torch.arange(0, 2 * math.pi * longest + 2, dtype=torch.float64)
slowest = torch.sin(steps / longest)
turns = (slowest[:-1] < 0) & (slowest[1:] >= 0)  # where it rises through 0 again
assert turns.nonzero().flatten().tolist() == [math.floor(2 * math.pi * longest)]

# %% [markdown]
# At 512 it is $9646.6 \cdot 2\pi$. The first public version of the authors' code divides by $d_{\text{model}}/2 - 1$ instead of $d_{\text{model}}/2$, and so does reach $10000 \cdot 2\pi$: the sentence fits the code, not the formula.

# %% tags=["hide-input"]
rows = [
    {"d": d, "i": i, "wave": round(2 * math.pi * wave, 2), "by": name}
    for d in (16, 64, 512)
    for name, function in {"the paper's formula": wavelengths, "the authors' code": wavelengths_of_the_code}.items()
    for i, wave in enumerate(function(d).tolist())
    if d < 512 or i % 15 == 0
]
dimension = alt.param(name="dimension", value=16, bind=alt.binding_select(options=[16, 64, 512], name="d_model "))
lines = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.d == dimension")
    .mark_line(point=True)
    .encode(
        x=alt.X("i:Q", title="pair i", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False)),
        y=alt.Y("wave:Q", title="wavelength, positions", scale=alt.Scale(type="log", domain=[4, 100000], nice=False)),
        color=alt.Color(
            "by:N",
            scale=alt.Scale(range=["#E69F00", "#0072B2"]),
            legend=alt.Legend(title=None, orient="bottom", symbolType="stroke"),
        ),
        strokeDash=alt.StrokeDash("by:N"),
        tooltip=["by:N", "i:Q", alt.Tooltip("wave:Q", title="wavelength")],
    )
    .add_params(dimension)
)
limit = (
    alt.Chart(alt.Data(values=[{"y": 20000 * math.pi, "text": "10000 · 2π"}]))
    .encode(y="y:Q")
    .mark_rule(strokeDash=[2, 3], color="#7a7f87")
)
label = limit.mark_text(align="left", x=4, dy=-7).encode(text="text:N")
chart = (limit + label + lines).properties(
    title="The paper's formula stops one step short of 10000 · 2π", width=460, height=260
)
chart

# %% [markdown]
# On a logarithmic axis both progressions are straight lines from $2\pi$. At a width of 16 the last pair of the formula stays well below the dotted line. At 512 the two are hardly apart.
#
# ## Check it: a shift is a rotation
#
# > We chose this function because we hypothesized it would allow the model to easily learn to attend by relative positions, since for any fixed offset $k$, $PE_{pos+k}$ can be represented as a linear function of $PE_{pos}$.
# >
# > — Section 3.5
#
# The linear function can be written down. For one pair with frequency $\omega$, the addition theorems say
#
# $$\begin{pmatrix} \sin \omega(p+k) \\ \cos \omega(p+k) \end{pmatrix} = \begin{pmatrix} \cos \omega k & \sin \omega k \\ -\sin \omega k & \cos \omega k \end{pmatrix} \begin{pmatrix} \sin \omega p \\ \cos \omega p \end{pmatrix}.$$
#
# The matrix rotates, and it holds no $p$. All pairs together make a block-diagonal matrix $R_k$. We build it for $d_{\text{model}} = 16$ and try it at several positions and offsets.


# %%
def rotation(k, d_model):
    """R_k, block-diagonal, (d_model, d_model): PE(p + k) = R_k PE(p)."""
    angles = k / wavelengths(d_model)  # (d_model / 2)
    blocks = [torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]], dtype=torch.float64) for a in angles]
    return torch.block_diag(*blocks)


encoding = sinusoids(2000, 16)  # (length, 16)
worst = max(
    (encoding[p + k] - rotation(k, 16) @ encoding[p]).abs().max().item()
    for k in (-7, 1, 5, 100)
    for p in (7, 8, 31, 500, 1899)
)
print("largest error of R_k PE(p) against PE(p + k) below 1e-12:", worst < 1e-12)
print("first two blocks of R_5:\n", rotation(5, 16)[:4, :4].round(decimals=3))
assert worst < 1e-12
assert torch.allclose(rotation(5, 16) @ rotation(5, 16).T, torch.eye(16, dtype=torch.float64))  # lengths are kept
assert torch.allclose(rotation(2, 16) @ rotation(3, 16), rotation(5, 16))  # shifts add up

# %% [markdown]
# A stricter test does not know $R_k$. We let least squares find the best matrix for k = 5 from the first 500 positions, and ask it about positions 1000 to 1900. For random vectors in place of sinusoids no such matrix exists.

# %%
random = torch.randn(2000, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
for name, vectors in {"sinusoids": encoding, "random": random}.items():
    fitted = torch.linalg.lstsq(vectors[:500], vectors[5:505]).solution  # (16, 16)
    error = (vectors[1000:1900] @ fitted - vectors[1005:1905]).norm() / vectors[1005:1905].norm()
    print(f"{name:10} relative error at unseen positions: {'below 1e-6' if error < 1e-6 else f'{error:.1f}'}")
    assert (error < 1e-6) == (name == "sinusoids")

# %% [markdown]
# ## Check it: the dot product knows the distance alone
#
# A rotation keeps angles, so $PE_p \cdot PE_{p+k}$ cannot depend on $p$. Term by term, $\sin a \sin b + \cos a \cos b = \cos(a - b)$, and the sum over the pairs is $\sum_i \cos \omega_i k$.

# %%
starts = torch.tensor([0, 1, 17, 250, 1800])
for k in (0, 1, 10, 100):
    products = (encoding[starts] * encoding[starts + k]).sum(-1)
    print(f"k = {k:3}: PE(p)·PE(p+k) at five p:", [round(value, 4) for value in products.tolist()])
    assert torch.allclose(products, torch.cos(k / wavelengths(16)).sum())
learned_products = (random[starts] * random[starts + 1]).sum(-1)
assert learned_products.std() > 0.5  # random vectors do depend on p

# %% tags=["hide-input"]
rows = [
    {"d": d, "k": k, "product": round((2 / d * torch.cos(k / wavelengths(d)).sum()).item(), 4)}
    for d in (16, 64, 512)
    for k in range(-100, 101)
]
dimension = alt.param(name="dimension", value=512, bind=alt.binding_select(options=[16, 64, 512], name="d_model "))
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.d == dimension")
    .mark_line(color="#0072B2")
    .encode(
        x=alt.X("k:Q", title="offset k", scale=alt.Scale(nice=False)),
        y=alt.Y("product:Q", title="PE(p)·PE(p+k), of its maximum", scale=alt.Scale(domain=[-0.3, 1])),
        tooltip=["k:Q", "product:Q"],
    )
    .add_params(dimension)
    .properties(title="The dot product knows how far, not which way", width=460, height=220)
)
chart

# %% [markdown]
# The peak is at k = 0, and the curve is symmetric: the plain dot product cannot tell left from right. The learned projections of a head can, because $W^Q$ or $W^K$ may contain a rotation. At a width of 16 the curve wobbles, for it sums eight waves only.
#
# ## What each kind does beyond its training
#
# > We also experimented with using learned positional embeddings instead, and found that the two versions produced nearly identical results (see Table 3 row (E)).
# >
# > We chose the sinusoidal version because it may allow the model to extrapolate to sequence lengths longer than the ones encountered during training.
# >
# > — Section 3.5
#
# First the mechanics. Sinusoids go on: position 5000 is computed like any other. Learned vectors end at `max_len`, and our error says so. Within `max_len` there is a limit without an error: a position that no training sentence reached has received no gradient, and is still the random vector it was.

# %%
sinusoidal = SinusoidalPositionalEncoding(64)
learned = LearnedPositionalEncoding(max_len=48, d_model=64)
far = sinusoidal(torch.zeros(1, 1, 64), start=5000)  # (1, 1, 64)
assert torch.equal(far[0], sinusoids(1, 64, start=5000).float())
try:
    learned(torch.zeros(1, 49, 64))
except ValueError as error:
    print(error)

learned(torch.randn(2, 16, 64)).square().sum().backward()  # sentences of 16 tokens
touched = (learned.weight.grad != 0).any(dim=1)
print("positions with a gradient:", int(touched.sum()), "of", len(touched))
assert touched[:16].all() and not touched[16:].any()

# %% [markdown]
# "May allow the model to extrapolate" is careful wording, and a small test is easy. One encoder layer learns to name the token *before* each token, a purely relative task, on sequences of 16. Then it reads sequences of 48. A third model has sinusoids too, and sees sequences of 16 that start at a random position.

# %%
vocabulary, trained_length, long_length = 12, 16, 48


def previous_token_logits(model, x, start=0):
    """Logits at every position, (B, n, V), with the sequence placed at a starting position."""
    return model.output_projection(model.encoder(model.src_positions(model.embedding(x), start)))


def learn_previous_token(positions, random_start=False, updates=300):
    """An encoder trained on short sequences."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    sizes = {"d_model": 64, "n_layers": 1, "n_heads": 4, "d_ff": 128, "dropout": 0.0, "max_len": long_length}
    model = transformer.Transformer(transformer.TransformerConfig(vocabulary, vocabulary, positions=positions, **sizes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(updates):
        x = torch.randint(3, vocabulary, (64, trained_length), generator=generator)
        start = int(torch.randint(0, long_length - trained_length + 1, (), generator=generator)) if random_start else 0
        logits = previous_token_logits(model, x, start)
        loss = F.cross_entropy(logits[:, 1:].flatten(0, 1), x[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def accuracy(model, length):
    """Share of right answers at each position from 1 to length − 1, (length − 1)."""
    x = torch.randint(3, vocabulary, (512, length), generator=torch.Generator().manual_seed(2))
    return (previous_token_logits(model, x)[:, 1:].argmax(-1) == x[:, :-1]).float().mean(0)


models = {
    "sinusoidal": learn_previous_token("sinusoidal"),
    "learned": learn_previous_token("learned"),
    "sinusoidal, random start": learn_previous_token("sinusoidal", random_start=True),
}
curves = {name: accuracy(model, long_length) for name, model in models.items()}
for name, model in models.items():
    short, beyond = accuracy(model, trained_length).mean(), curves[name][trained_length - 1 :].mean()
    print(f"{name:25} sequences of 16: {short:4.0%}   positions from 16 on: {beyond:4.0%}")
    assert short > 0.9
    assert beyond > 0.6 if "random" in name else beyond < 0.5
assert curves["sinusoidal, random start"][:3].mean() < 0.7  # the same positions, now among 48

# %% tags=["hide-input"]
rows = [
    {"position": position, "accuracy": round(value, 3), "positions": name}
    for name, curve in curves.items()
    for position, value in enumerate(curve.tolist(), 1)
]
base = (
    alt.Chart(alt.Data(values=rows))
    .mark_line()
    .encode(
        x=alt.X("position:Q", title="position", scale=alt.Scale(domain=[0, 48], nice=False)),
        y=alt.Y("accuracy:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        color=alt.Color(
            "positions:N",
            scale=alt.Scale(range=["#0072B2", "#E69F00", "#009E73"]),
            legend=alt.Legend(title=None, orient="bottom"),
        ),
        strokeDash=alt.StrokeDash("positions:N"),
        tooltip=["positions:N", "position:Q", "accuracy:Q"],
    )
)
end = (
    alt.Chart(alt.Data(values=[{"x": 15.5, "text": "trained up to here"}]))
    .encode(x=alt.X("x:Q", title="position"))
    .mark_rule(color="#7a7f87")
)
note = end.mark_text(align="left", dx=5, y=230).encode(text="text:N")
chart = (base + end + note).properties(title="Trained on the first 16 positions, neither kind extrapolates", width=460, height=240)
chart

# %% [markdown]
# Both kinds solve the task and both fail right after the last trained position. The sinusoidal model *has* encodings there, and a linear map that would serve them exists. But training on 16 positions does not single that map out. Trained at random starting positions, the same function with sequences no longer than before answers most of the 48 positions, least at both ends. It is not the first positions themselves that it lacks: alone, in sequences of 16, it answers almost all of them. In the long sequence it also meets tokens farther away than any in training. In this test, most of what was missing is training, not the encoding.
#
# ## Check it: why the table is computed in double precision
#
# At position 100,000 an angle in single precision can be off by about the spacing of float32 numbers of its size.

# %%
position = 100_000
exact = [trig(position / 10000 ** (2 * i / 64)) for i in range(32) for trig in (math.sin, math.cos)]
exact = torch.tensor(exact, dtype=torch.float64)
angle = torch.tensor(float(position)) * (1 / wavelengths(64).float())  # all in float32
single = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten()
double = sinusoids(1, 64, start=position)[0].float()
print("error above 1e-3 in single precision:", (single - exact).abs().max().item() > 1e-3)
print("error below 1e-7 in double precision:", (double - exact).abs().max().item() < 1e-7)
assert (single - exact).abs().max() > 1e-3 and (double - exact).abs().max() < 1e-7

# %% [markdown]
# ## Unsaid by the paper
#
# - **The authors' code differs.** tensor2tensor puts all sines first and all cosines after them, and spaces the exponents by $d_{\text{model}}/2 - 1$. Its comment says that it differs slightly from the published paper. The order of channels is immaterial for training: it is a permutation of the columns of every matrix that reads them. For weights that are trained already, it is not.


# %%
def sinusoids_of_the_code(length, d_model):
    """tensor2tensor's layout: sines in the first half, cosines in the second, the exponent from 0 to 1."""
    angle = torch.arange(length, dtype=torch.float64)[:, None] / wavelengths_of_the_code(d_model)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)  # (length, d_model)


theirs = sinusoids_of_the_code(100, 512)
print("PE[1, 0..3] in the code's layout:", [round(value, 6) for value in theirs[1, :4].tolist()])
print("our 0.540302 is their channel 256:", round(theirs[1, 256].item(), 6))
deinterleave = torch.cat([torch.arange(0, 512, 2), torch.arange(1, 512, 2)])  # sines first, then cosines
reordered = table[:, deinterleave]
assert torch.allclose(reordered @ reordered.T, table @ table.T)  # the order changes no dot product
gram = theirs @ theirs.T  # (100, 100)
assert all(torch.allclose(gram.diagonal(k), gram.diagonal(k)[0]) for k in range(100))  # theirs too depends on k alone
shift = (theirs - reordered).abs().max().item()
print(f"largest difference by the exponent alone, in 100 positions: {shift:.2f}")
assert 0.05 < shift < 2

with torch.no_grad():  # in a trained model the layouts cannot be exchanged
    trained = models["sinusoidal"]
    x = torch.randint(3, vocabulary, (512, trained_length), generator=torch.Generator().manual_seed(3))
    logits = trained.output_projection(trained.encoder(trained.embedding(x) + sinusoids_of_the_code(16, 64).float()))
    swapped = (logits[:, 1:].argmax(-1) == x[:, :-1]).float().mean().item()
print(f"the trained model's accuracy with the other layout: {swapped:.0%}")
assert swapped < 0.5

# %% [markdown]
# - **The causal mask knows an order.** A decoder is not blind without positions: its first position sees one token, its second two. The exercise below shows it.
# - **Where the sum is scaled.** The embedding is multiplied by $\sqrt{d_{\text{model}}}$ before the sum, the encoding is not; see [Section 3.4](03_4_embeddings_and_softmax.py).
# - **The initial size of learned positions** is not given. We draw them with standard deviation $d_{\text{model}}^{-0.5}$, the scale of the embedding matrix.

# %% [markdown]
# ## What we now know
#
# - Without positions an encoder maps shuffled inputs to shuffled outputs; with them it does not: checked.
# - At 512 the longest wavelength is $9646.6 \cdot 2\pi$, not $10000 \cdot 2\pi$. The latter holds for the authors' code: checked for both.
# - $PE_{p+k} = R_k PE_p$ with one block rotation for every p, which least squares finds by itself: checked.
# - $PE_p \cdot PE_{p+k}$ depends on k alone and is symmetric in k: checked.
# - Beyond its training, the learned kind has random vectors, then an error. The sinusoidal kind goes on, but a model trained on short sequences does not use it well: trained and measured.
#
# ## Exercises
#
# 1. **Predict, then run.** Take the positions from a decoder and shuffle all tokens but the last. Does the last output change with one layer? With two?
# 2. **Minutes.** Which offsets k up to 100 have the smallest dot product at a width of 16? Read it off the chart, then compute it.
# 3. **Minutes.** Replace 10000 by 100 in the formula. At a width of 512 the slowest pair of channels is then back after 617 positions. Are the encodings? Compute $PE_p \cdot PE_{p+k}$ for $k$ up to 2000, and find its largest value beyond $k = 10$.
# 4. **An hour.** Write the block-diagonal matrix $R_k$ of $d_{\text{model}} = 16$, with $PE_{pos+k} = R_k\, PE_{pos}$ at every position, as a function of k. What is $R_k R_{-k}$? Check: `check("3.5-rotation", your_function)`.
# 5. **An hour.** Write $W$ such that $PE_p^\top W\, PE_q$ is largest at q = p − 1, and check it. It is what a head must learn in the task above.

# %% [markdown]
# Solution to exercise 1. With one layer the last output is a weighted mean over a set, and does not change. With two it does, because the tokens before it have seen different sets.

# %% tags=["hide-cell"]
target = torch.tensor([[1, 10, 20, 30, 40, 45]])
shuffled = torch.tensor([[30, 1, 40, 20, 10, 45]])
memory = torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(0))
for n_layers in (1, 2):
    torch.manual_seed(0)
    decoder = transformer.Transformer(
        transformer.TransformerConfig(50, 50, d_model=64, n_layers=n_layers, n_heads=4, d_ff=128, dropout=0.0)
    )
    with torch.no_grad():
        outputs = [decoder.decoder(decoder.embedding(ids), memory)[0, -1] for ids in (target, shuffled)]
    moved = (outputs[0] - outputs[1]).abs().max().item()
    print(n_layers, "layer(s): the last output", "moves" if moved > 1e-3 else "stays")
    assert (moved > 1e-3) == (n_layers == 2)

# %% [markdown]
# Solution to exercise 4: each pair of a sine and a cosine turns by its own angle $k / 10000^{2i/16}$. $R_k R_{-k}$ is the identity: turning forth and back.

# %% tags=["hide-cell"]
from transformer.exercises import check

def block_diagonal(k):
    """R_k for d_model = 16: (16, 16)."""
    angles = k / 10000 ** (torch.arange(0, 16, 2).double() / 16)  # (8,)
    sines, cosines = angles.sin(), angles.cos()
    return torch.block_diag(*(torch.tensor([[c, s], [-s, c]]) for s, c in zip(sines.tolist(), cosines.tolist())))


encoding = sinusoids(60, 16)
for k in (1, 7, 40):
    assert torch.allclose(encoding[:20] @ block_diagonal(k).double().T, encoding[k : k + 20], atol=1e-5)
    assert torch.allclose(block_diagonal(k) @ block_diagonal(-k), torch.eye(16), atol=1e-6)
verdict = check("3.5-rotation", block_diagonal)
print(verdict)
assert verdict

# %% [markdown]
# ## The notebook and the module agree

# %%
assert torch.equal(transformer.sinusoids(300, 64, start=7), sinusoids(300, 64, start=7))
x = torch.randn(2, 300, 64)
assert torch.equal(transformer.SinusoidalPositionalEncoding(64)(x, start=3), sinusoidal(x, start=3))
installed = transformer.LearnedPositionalEncoding(48, 64)
installed.load_state_dict(learned.state_dict())
assert torch.equal(installed(x[:, :40], start=8), learned(x[:, :40], start=8))
print("same encodings")
