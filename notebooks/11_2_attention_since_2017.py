# %% [markdown]
# # 11.2 Attention and Its Cache Since 2017
#
# Equation (1) is still what large models compute. What has changed is what goes into it, and when its parts are
# computed. This chapter sorts the dials of the last years by that question, follows one of them, the key–value cache
# with which models write, from multiply–adds to bytes, and ends at the other side of the logits: sampling.

# %%
import altair as alt
import torch
from torch.utils.flop_counter import FlopCounterMode

import transformer

transformer.check_version("0.1")

# %% [markdown]
# | dial | changes the computation | its inputs | only its schedule | chapter |
# |---|---|---|---|---|
# | rotary positions (Su et al. [2021](https://arxiv.org/abs/2104.09864)) | no | queries and keys are turned by their positions | | [11.2a](11_2a_rotary_positions.py) |
# | grouped queries (Shazeer [2019](https://arxiv.org/abs/1911.02150), Ainslie et al. [2023](https://arxiv.org/abs/2305.13245)) | no | heads of a group get the same keys and values | | [11.2b](11_2b_grouped_query_attention.py) |
# | fused attention (Dao et al. [2022](https://arxiv.org/abs/2205.14135)) | no | | tile by tile, without the table of weights | [11.2c](11_2c_attention_in_tiles.py) |
# | key–value cache | no | | keys and values are kept, not computed again | here |
# | sampling | not attention: it acts on the logits | | | here |
#
# The computation is $\mathrm{softmax}(QK^T/\sqrt{d_k})\,V$ for one head. A dial changes it if the same $Q$, $K$ and
# $V$ give another output, by more than rounding. Things that do are known, too: a penalty on far keys (Press et al.
# [2022](https://arxiv.org/abs/2108.12409)), or windows that hide them (Beltagy et al.
# [2020](https://arxiv.org/abs/2004.05150)).
#
# ## The key–value cache: the same outputs
#
# > At each step the model is auto-regressive, consuming the previously generated symbols as additional input when
# > generating the next.
# >
# > — Section 3
#
# A causal mask lets no position see what comes later. So the keys and values of the positions written so far do not
# change when a token is added, and need not be computed again. The model of this book has had such a cache from the
# start: [`new_cache`](03_6_the_full_model.py) projects the memory once and takes room for the target, and
# [decoding](06_1a_decoding.py) uses it.
#
# ### See it
#
# The shipped translator writes a sentence in both ways.

# %%
translator = transformer.load_toy_translator()
model, tokenizer = translator.model, translator.tokenizer
english = "The pig does not see a dog although the mother has crossed the field."
source = transformer.make_batch([(tokenizer.encode(english), [])]).src  # (1, s): with its end token
bos, eos = model.config.bos_id, model.config.eos_id


@torch.inference_mode()
def write(with_cache, most=40):
    """Greedy decoding of the one source; the logits of every step, and how many decoder positions were computed."""
    ids, logits, computed = [bos], [], 0
    memory, mask = model.encode(source), None
    cache = model.new_cache(memory, mask, most)
    while ids[-1] != eos and len(ids) <= most:
        if with_cache:
            hidden = model.decode(torch.tensor([ids[-1:]]), cache=cache)  # (1, 1, d_model): the new position
        else:
            hidden = model.decode(torch.tensor([ids]), memory)  # (1, t, d_model): all of them again
        computed += hidden.size(1)
        logits.append(model.output_projection(hidden[:, -1]))  # (1, V)
        ids.append(int(logits[-1].argmax()))
    return ids, torch.cat(logits), computed


kept, kept_logits, kept_positions = write(with_cache=True)
again, again_logits, again_positions = write(with_cache=False)
print(tokenizer.decode(kept[1:-1]))
print(f"{len(kept) - 1} tokens; decoder positions computed: {kept_positions} with the cache, {again_positions} without")
assert kept == again and again_positions == kept_positions * (kept_positions + 1) // 2

# %% [markdown]
# ### Check it
#
# The same tokens could be luck. The logits of all steps agree, to rounding.

# %%
assert torch.allclose(kept_logits, again_logits, atol=1e-3)
print("all", kept_logits.numel(), "logits agree to a thousandth:", torch.allclose(kept_logits, again_logits, atol=1e-3))

# %% [markdown]
# ## What a token costs
#
# The $t$-th token passes $N$ decoder layers. With the cache, one position is computed in each: four projections, $t$
# scores and $t$ products with values in self-attention; two projections and the source's $s$ keys and values in the
# attention over the memory; the feed-forward network. Without, it is $t$ positions, and the memory's keys and values
# again.


# %%
def multiply_adds(config, t, s, cached):
    """Multiply–adds of the decoder for the t-th token, from a source of s; matrix products alone, d_k = d_v = d/h."""
    d, positions = config.d_model, 1 if cached else t
    own = positions * (4 * d**2 + 2 * t * d)
    over_memory = positions * (2 * d**2 + 2 * s * d) + (0 if cached else 2 * s * d**2)
    network = positions * 2 * d * config.d_ff
    return config.n_layers * (own + over_memory + network) + d * config.tgt_vocab_size  # logits of the last position


# %%
for layer in model.decoder.layers:  # by Equation (1), whose products the counter sees
    layer.self_attention.on_weights = layer.memory_attention.on_weights = lambda weights: None
s = source.size(1)
with torch.inference_mode():
    memory = model.encode(source)
    for t in (1, 10, 40):
        ids = torch.randint(3, 100, (1, t))
        measured = {}
        for cached in (True, False):
            cache = model.new_cache(memory, None, t)
            if cached and t > 1:
                model.decode(ids[:, :-1], cache=cache)
            with FlopCounterMode(display=False) as counter:
                hidden = model.decode(ids[:, -1:], cache=cache) if cached else model.decode(ids, memory)
                model.output_projection(hidden[:, -1])
            measured[cached] = counter.get_total_flops() // 2
            assert measured[cached] == multiply_adds(model.config, t, s, cached)
        print(f"token {t:2}: {measured[True]:9,} multiply–adds with the cache, {measured[False]:10,} without")
for layer in model.decoder.layers:
    layer.self_attention.on_weights = layer.memory_attention.on_weights = None

# %% [markdown]
# PyTorch's counter agrees with the formula to the last multiply–add. Now the formula alone, for the paper's models
# and longer texts.

# %%
configs = {"base": transformer.TransformerConfig.base(), "big": transformer.TransformerConfig.big()}
ways = ["without cache", "with cache"]
rows = [
    {"t": t, "millions": round(multiply_adds(config, t, 30, way == "with cache") / 1e6, 1), "way": way, "model": name}
    for name, config in configs.items()
    for t in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    for way in ways
]
for name, config in configs.items():
    first, late = (multiply_adds(config, t, 30, True) for t in (1, 1024))
    ratio = multiply_adds(config, 1024, 30, False) / late
    print(f"{name:4}: token 1,024 costs {late / first:.1f} times the first with the cache, and without it {ratio:.0f} times that")
    assert late < 1.5 * first and ratio > 300
chosen = alt.param("chosen", value="base", bind=alt.binding_select(options=list(configs), name="model "))
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.model == chosen")
    .mark_line(point=alt.OverlayMarkDef(size=30))
    .encode(
        x=alt.X("t:Q", title="the token's number", scale=alt.Scale(type="log", base=2, nice=False), axis=alt.Axis(values=[1, 4, 16, 64, 256, 1024, 4096])),
        y=alt.Y("millions:Q", title="million multiply–adds", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s", tickCount=5)),
        color=alt.Color(
            "way:N", sort=ways, title=None, scale=alt.Scale(domain=ways, range=["#D55E00", "#0072B2"]),
            legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300),
        ),
        strokeDash=alt.StrokeDash("way:N", sort=ways, scale=alt.Scale(domain=ways, range=[[6, 3], [1, 0]])),
        tooltip=["way:N", "t:Q", alt.Tooltip("millions:Q", format=",.1f")],
    )
    .add_params(chosen)
    .properties(width=420, height=220, title="With a cache, the thousandth token costs about as much as the first")
)
chart

# %% [markdown]
# Both axes are logarithmic. The solid line is all but flat until the $2td$ of its scores and sums outweigh the
# matrices. The dashed line climbs with $t$, and in the end with $t^2$. (The source has 30 tokens.)
#
# ## What it takes: memory
#
# The price is room. For each of $n$ positions the cache keeps a key and a value in each of $N$ layers and $h$ heads,
# here with $d_v = d_k$:
#
# $$ \text{bytes} = 2 \cdot N \cdot h \cdot d_k \cdot n \cdot \text{bytes of a number} $$
#
# In an encoder–decoder there are two such parts, one for the target and one for the memory.


# %%
def cache_bytes(n_layers, n_kv_heads, d_k, n, bytes_each):
    """Keys and values of n positions."""
    return 2 * n_layers * n_kv_heads * d_k * n * bytes_each


config = model.config
with torch.inference_mode():
    cache = model.new_cache(memory, None, max_new_tokens=50)
own = sum(kept.nbytes for layer in cache.layers for kept in (layer.own.keys, layer.own.values))
of_memory = sum(kept.nbytes for layer in cache.layers for kept in (layer.memory_keys, layer.memory_values))
sizes = (config.n_layers, config.n_heads, config.d_model // config.n_heads)
print(f"target, 50 positions: {own:,} bytes; memory, {s} positions: {of_memory:,} bytes")
assert own == cache_bytes(*sizes, 50, bytes_each=4) and of_memory == cache_bytes(*sizes, s, bytes_each=4)

# %% [markdown]
# The formula for models of other sizes, with two bytes a number. The sizes of GPT-2 (Radford et al. 2019, its largest
# model) and of Llama 2 (Touvron et al. [2023](https://arxiv.org/abs/2307.09288)) are in their released
# configurations. Base and big are counted without their memory's part, at 1,024 tokens. The last two columns ask what
# the model would take with one head of keys and values for eight of queries, and with one for all
# ([11.2b](11_2b_grouped_query_attention.py)).

# %%
MODELS = {  # layers, query heads, heads of keys and values, d_k, tokens
    "base": (6, 8, 8, 64, 1024),
    "big": (6, 16, 16, 64, 1024),
    "GPT-2, 1.5 billion": (48, 25, 25, 64, 1024),
    "Llama 2, 7 billion": (32, 32, 32, 128, 4096),
    "Llama 2, 70 billion": (80, 64, 8, 128, 4096),
}
MIB = 2**20
print(f"{'model':22}{'tokens':>7}{'its cache':>11}{'multi-head':>12}{'grouped':>9}{'multi-query':>13}   MiB for one text")
for name, (n_layers, h, n_kv, d_k, n) in MODELS.items():
    its_own, multi_head, multi_query = (cache_bytes(n_layers, heads, d_k, n, 2) / MIB for heads in (n_kv, h, 1))
    grouped = f"{cache_bytes(n_layers, h // 8, d_k, n, 2) / MIB:9,.1f}" if h % 8 == 0 else f"{'–':>9}"
    print(f"{name:22}{n:7,}{its_own:11,.0f}{multi_head:12,.0f}{grouped}{multi_query:13,.1f}")
assert cache_bytes(32, 32, 128, 4096, 2) == 2 * 2**30 > cache_bytes(80, 8, 128, 4096, 2)
assert cache_bytes(80, 64, 128, 4096, 2) == 8 * cache_bytes(80, 8, 128, 4096, 2)

# %% [markdown]
# The smaller of the two Llamas takes 2 GiB for one text of 4,096 tokens. The larger one, ten times its size, takes
# less: it shares each head of keys and values among eight of queries. The weights are kept once for all texts, but
# each text needs a cache of its own. So the room for caches limits how many are written at the same time.
#
# ## Sampling
#
# The paper searches for a probable translation, with a beam. Models that talk draw at random instead. Nothing in the
# model changes for that: there is one row of logits for the next token, and several ways to choose from it.
#
# | way | what it does to the distribution |
# |---|---|
# | greedy | all to the most probable token |
# | temperature $T$ | divides the logits by $T$: sharper below 1, flatter above |
# | top-$k$ (Fan et al. [2018](https://arxiv.org/abs/1805.04833)) | keeps the $k$ most probable tokens |
# | top-$p$, or nucleus (Holtzman et al. [2020](https://arxiv.org/abs/1904.09751)) | keeps the fewest tokens that together hold at least $p$ |
#
# The first three are in [`sample`](06_1a_decoding.py), with temperature and `top_k`. Top-$p$ is short enough to write
# here.


# %%
def nucleus(probabilities, p):
    """Keep the most probable tokens until they hold p, and scale them to sum 1; shape (…, V)."""
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered  # what the more probable tokens hold
    kept = torch.zeros_like(probabilities).scatter(-1, ids, ordered * (before < p))
    return kept / kept.sum(dim=-1, keepdim=True)


tiny = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
for p in (0.4, 0.6, 0.9, 1.0):
    print(f"p = {p}:", [round(value, 3) for value in nucleus(tiny, p).tolist()])
assert torch.allclose(nucleus(tiny, 0.6), torch.tensor([0.625, 0.375, 0, 0], dtype=torch.float64))
assert torch.equal(nucleus(tiny, 0.4), torch.tensor([1.0, 0, 0, 0], dtype=torch.float64))

# %% [markdown]
# ### One real distribution
#
# After "Das Schwein" the translator has to write "sieht", and its tokens begin with *sie*. It is not sure. Training
# with [label smoothing](05_4_regularization.py) asked it never to be: a tenth of the mass was to be spread over all
# other tokens.

# %%
text = "Das Schwein"
prefix = torch.tensor([[bos, *tokenizer.encode(text)]])
with torch.inference_mode():
    logits = model.output_projection(model.decode(prefix, memory))[0, -1].double()  # (V)
sure = kept_logits[1].double().softmax(-1)  # the step before: after "Das"
probabilities = logits.softmax(-1)
ways = {
    "as the model says": probabilities,
    "temperature 0.5": (logits / 0.5).softmax(-1),
    "temperature 2": (logits / 2).softmax(-1),
    "top-k, k = 3": torch.where(probabilities >= probabilities.topk(3).values[-1], probabilities, 0),
    "top-p, p = 0.6": nucleus(probabilities, 0.6),
    "top-p, p = 0.9": nucleus(probabilities, 0.9),
}
ways = {name: way / way.sum() for name, way in ways.items()}
top = probabilities.topk(9).indices


def counted(way):
    """How many tokens can be drawn; to the nearest ten if there are many."""
    kept = int((way > 0).sum())
    return str(kept) if kept < 10 or kept == len(way) else f"about {round(kept, -1)}"


print(f"{'':18}" + "".join(f"{tokenizer.decode([token]):>10}" for token in top[:4].tolist()) + f"{'kept':>10}")
for name, way in ways.items():
    print(f"{name:18}" + "".join(f"{way[token]:10.2f}" for token in top[:4].tolist()) + f"{counted(way):>10}")
here, before = (nucleus(some, 0.9) for some in (probabilities, sure))
print(f"tokens in the nucleus of 0.9: {counted(here)} here, {counted(before)} at the step before")
assert (before > 0).sum() <= 2 and (here > 0).sum() > 100
assert ways["temperature 2"][top].sum() < 0.3 < probabilities[top].sum()  # most of the draw goes to tokens not shown


# %% tags=["hide-input"]
names = [tokenizer.decode([token]) for token in top.tolist()]
assert len(set(names)) == 9
order = [*names, "all others"]
rows = [
    {"token": name, "p": round(value, 4), "way": way}
    for way, distribution in ways.items()
    for name, value in zip(order, [*distribution[top].tolist(), 1 - distribution[top].sum().item()], strict=True)
]
chosen_way = alt.param("way", value="as the model says", bind=alt.binding_select(options=list(ways), name="way "))
base = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.way == way")
    .encode(
        x=alt.X("p:Q", title="probability of being drawn", scale=alt.Scale(domain=[0, 1.08], nice=False), axis=alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="%")),
        y=alt.Y("token:N", title=None, sort=order),
        tooltip=["token:N", alt.Tooltip("p:Q", format=".1%")],
    )
)
chart = (
    alt.layer(
        base.mark_bar().encode(color=alt.condition("datum.token == 'all others'", alt.value("#E69F00"), alt.value("#0072B2"))),
        base.mark_text(align="left", dx=4).encode(text=alt.Text("p:Q", format=".1%")),
    )
    .add_params(chosen_way)
    .properties(width=300, height=240, title="A high temperature feeds the tail; top-k and top-p cut it")
)
chart

# %% [markdown]
# The orange bar is everything that is not shown: close to 1,500 tokens, each of them nearly impossible, and together
# a force. A temperature of 2 hands them most of the draw. Top-$k$ keeps a fixed number of tokens, whether the model is
# sure or not. Top-$p$ keeps a fixed mass, so few tokens where the model is sure and many where it is not.
#
# ### What it does to whole sentences
#
# A draw from the tail at any step spoils a sentence. We let five ways write 60 unseen sentences, and count those that
# are the reference to the letter.

# %%
pairs = [pair for pair, _ in zip(transformer.embedded_corpus("test", seed=0), range(60), strict=False)]
batch = transformer.make_batch([(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs])


@torch.inference_mode()
def draw_from_nucleus(p, seed=0, most=40):
    """Sample with top-p, all sentences at once; what follows an end token is dropped."""
    generator = torch.Generator().manual_seed(seed)
    mask = transformer.padding_mask(batch.src, model.config.pad_id)
    cache = model.new_cache(model.encode(batch.src, mask), mask, most)
    tokens = [torch.full((len(pairs), 1), bos)]
    for _ in range(most):
        probabilities = model.output_projection(model.decode(tokens[-1], cache=cache))[:, -1].double().softmax(-1)
        tokens.append(torch.multinomial(nucleus(probabilities, p), 1, generator=generator))  # (rows, 1)
    written = torch.cat(tokens[1:], dim=1).tolist()
    return [ids[: ids.index(eos)] if eos in ids else ids for ids in written]


outputs = {
    "greedy": transformer.greedy_decode(model, batch.src, 40),
    "temperature 1": transformer.sample(model, batch.src, max_new_tokens=40),
    "temperature 0.5": transformer.sample(model, batch.src, temperature=0.5, max_new_tokens=40),
    "top-k, k = 3": transformer.sample(model, batch.src, top_k=3, max_new_tokens=40),
    "top-p, p = 0.9": draw_from_nucleus(0.9),
}
right = {
    name: sum(tokenizer.decode(ids) == pair.target for ids, pair in zip(written, pairs, strict=True)) / len(pairs)
    for name, written in outputs.items()
}
for name, share in right.items():
    print(f"{name:16} {'over 80' if share > 0.8 else 'under 60' if share < 0.6 else '60 to 80'} % exact; the first: {tokenizer.decode(outputs[name][0])}")
assert right["greedy"] > 0.9 and right["temperature 1"] < 0.6
assert min(right[name] for name in ("temperature 0.5", "top-k, k = 3", "top-p, p = 0.9")) > 0.8

# %% [markdown]
# Each sentence has one reference here, and greedy decoding finds more than nine in ten. Chance has nothing to add, and
# with the whole tail in the draw it spoils at least two sentences in five. Where the tail is cut or made light, nearly
# all are saved. For a story or an answer in a conversation the most probable output is not the goal. Holtzman et al.
# (2020) found that the most probable continuations by a large model are dull and repeat themselves, while what people
# write is seldom the most probable. Plain sampling meets the tail sooner or later, as ours does at temperature 1. What
# is used lies between: draw, but not from the tail.
#
# ## Unsaid by the paper
#
# - **The cache.** The paper does not say how its decoder avoids computing the same keys and values again. Toolkits
#   soon had the cache: [Sockeye's](https://github.com/awslabs/sockeye/pull/226) was proposed in November 2017.
# - **Long texts.** A cache that is taken in one piece for the longest text wastes room on short ones. Servers cut it
#   into pages, like an operating system its memory (Kwon et al. [2023](https://arxiv.org/abs/2309.06180)). That is
#   schedule again: where numbers lie.
# - **Fewer bits.** Keys and values kept in one byte or less take less room, and are other numbers: an input is
#   changed, if slightly.
# - **Drafts.** A small model writes a few tokens ahead and the large one checks them in one pass (Leviathan et al.
#   [2023](https://arxiv.org/abs/2211.17192)). What is drawn has the large model's distribution.
#
# ## What we now know
#
# - With and without the cache, the logits are equal; so it changes the schedule alone.
# - With it the $t$-th token costs one position and $2td$ for its scores and sums; without it, $t$ positions. Formula
#   and counter agree exactly.
# - It takes $2 N h d_k n$ numbers: formula and tensors agree. For large models that is gigabytes for one text.
# - Temperature, top-$k$ and top-$p$ act on one row of logits. In this translation, draws at temperature 1, from the
#   whole tail, spoil many sentences; draws without the tail spoil few.
#
# ## Exercises
#
# 1. **Predict, then run.** Does a source twice as long make the cached cost of the hundredth token of base twice as
#    large? By how much does it grow?
# 2. **Minutes.** For rotary positions, grouped queries, the key–value cache and fused attention: do they change the
#    computation, its inputs, or its schedule? Check: `check("11-what-changes", {"rotary positions": …, "grouped
#    queries": …, "key-value cache": …, "fused attention": …})` with `"computation"`, `"inputs"` or `"schedule"`.
# 3. **Minutes.** From which length on does the cache of the smaller Llama 2 take more bytes than its 7 billion
#    weights, at two bytes each?
# 4. **An hour.** Does it matter whether temperature or top-$p$ comes first? Find a distribution for which it does, and
#    say what either order means.
# 5. **A day.** Keep keys and values as whole numbers of one byte, with one scale a position and head. Measure what it
#    does to the logits, and from how many bits on sentences change.

# %% [markdown]
# Solution to exercise 1: hardly. The source enters in $2sd$ a layer, beside matrices that do not depend on it.

# %% tags=["hide-cell"]
base = transformer.TransformerConfig.base()
growth = multiply_adds(base, 100, 60, True) / multiply_adds(base, 100, 30, True)
print(f"{growth - 1:.2%} more")
assert growth < 1.01

# %% [markdown]
# Solution to exercise 2: none changes the computation.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = {"rotary positions": "inputs", "grouped queries": "inputs", "key-value cache": "schedule", "fused attention": "schedule"}
verdict = check("11-what-changes", answer)
print(verdict)
assert verdict

# %% [markdown]
# Solution to exercise 3: each token takes half a mebibyte, all texts counted together.

# %% tags=["hide-cell"]
per_token = cache_bytes(32, 32, 128, 1, bytes_each=2)
print(f"{per_token:,} bytes a token; more than the weights from {2 * 7_000_000_000 // per_token + 1:,} tokens on")
assert per_token == 2**19

# %% [markdown]
# Solution to exercise 4: with top-$p$ first, the nucleus is the model's own, and the temperature only moves mass inside
# it. With the temperature first, it also decides how many tokens the nucleus holds.

# %% tags=["hide-cell"]
tiny_logits = tiny.log()
for temperature in (0.5, 2.0):
    heated_first = nucleus((tiny_logits / temperature).softmax(-1), 0.9)
    cut_first = (nucleus(tiny, 0.9).log() / temperature).softmax(-1)
    kept = [int((way > 0).sum()) for way in (heated_first, cut_first)]
    print(f"tokens kept: {kept[0]} with temperature {temperature} first, {kept[1]} with top-p first")
    assert kept == [2 if temperature < 1 else 4, 3]
