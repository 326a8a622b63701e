# %% [markdown]
# # 12 The Bug Museum
#
# A Transformer with a fault in it still trains, still translates something, and often has a loss that looks fine. This
# chapter puts twenty-two famous faults into the book's code, one at a time, measures what each does on the
# [embedded corpus](A1_the_embedded_corpus.py), and names the test that catches it.

# %%
import builtins
import importlib
import inspect
import itertools
import math
import random
import tempfile
import types
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import altair as alt
import torch

import transformer
from transformer.data import EOS_ID, make_batch, pad

transformer.check_version("0.1")
torch.set_num_threads(1)  # most tensors here are small: a second thread would only wait

# %% [markdown]
# ## How a fault gets in
#
# A fault is a piece of a module's text and what takes its place. `with_fault` reads the package's source, changes it in
# memory and runs it: the faulty module, and fresh copies of all modules around it, which see each other and nothing else.
# Nothing of the installed package changes.


# %%
class Bug(NamedTuple):
    """A fault: a piece of text of transformer/ROOM.py, what takes its place, and the test that goes red."""

    name: str
    room: str
    old: str
    new: str
    caught_by: str


def with_fault(bug=None):
    """The package with a fault in it: a function that gives its modules by name."""
    rooms = {}

    def room(name):
        if name not in rooms:
            source = inspect.getsource(importlib.import_module(f"transformer.{name}"))
            if bug and name == bug.room:
                if source.count(bug.old) != 1:
                    raise ValueError(f"{name} has {bug.old!r} {source.count(bug.old)} times; it must stand there once.")
                source = source.replace(bug.old, bug.new)
            rooms[name] = types.ModuleType(f"transformer.{name}")
            vars(rooms[name])["__builtins__"] = {**vars(builtins), "__import__": bring}
            exec(compile(source, f"transformer/{name}.py", "exec"), vars(rooms[name]))
        return rooms[name]

    def bring(name, *rest):  # what an import statement in a copied module calls
        package, _, inside = name.partition(".")
        return room(inside) if package == "transformer" and inside else builtins.__import__(name, *rest)

    return room


# %% [markdown]
# ## How its symptom is measured
#
# Two numbers, on 100 unseen test sentences in one batch. **Exact match**: how many come out right to the last letter when
# the shipped model decodes greedily in the faulty code. **Perplexity**: how sure it is of each right token when it is told
# all tokens before it (*teacher forcing*). The second is what a loss curve shows.

# %%
pairs = list(itertools.islice(transformer.embedded_corpus("test", seed=1), 100))
toy = transformer.load_toy_translator()
tokenizer, config = toy.tokenizer, toy.model.config
src = pad([[*tokenizer.encode(pair.source), EOS_ID] for pair in pairs])  # (B, n)
batch = make_batch([(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs])


class Look(NamedTuple):
    """What one sees of a model."""

    exact: int  # of the 100 sentences
    perplexity: float
    outputs: list[str]


def look(bug=None, model=None, prepare=None):
    """Translate and score with the faulty code: the shipped model, or another one of that code."""
    room = with_fault(bug)
    if model is None:
        model = room("translator").load_toy_translator().model
    if prepare:
        prepare(model)
    try:
        outputs = [tokenizer.decode(ids) for ids in room("decoding").greedy_decode(model, src, max_new_tokens=40)]
    except ValueError as error:  # decoding refuses logits that are no numbers
        if "not finite" not in str(error):
            raise
        outputs = [""] * len(src)
    exact = sum(output == pair.target for output, pair in zip(outputs, pairs, strict=True))
    return Look(exact, room("training").perplexity(model, [batch]), outputs)


museum, looks = [], {}


def exhibit(bug, symptom):
    """Put a fault on the list, and print what it does."""
    museum.append((bug, symptom))
    print(f"{bug.name}: {symptom}")


def exhibit_look(bug, **options):
    """The same for a fault whose symptom is a look at the shipped model."""
    looks[bug.name] = seen = look(bug, **options)
    exhibit(bug, f"exact {healthy.exact} → {seen.exact}, perplexity {healthy.perplexity:.3g} → {seen.perplexity:.3g}")
    return seen


# %%
healthy = look()
print(f"without a fault: {healthy.exact} of {len(pairs)} exact, perplexity {healthy.perplexity:.3g}")
assert healthy.exact >= 95 and healthy.perplexity < 1.2
assert look().outputs == healthy.outputs == [tokenizer.decode(ids) for ids in transformer.greedy_decode(toy.model, src, 40)]

# %% [markdown]
# Faults of training need a training. This one is short: a small model, short sentences, 100 updates.

# %%
short = (pair for pair in transformer.embedded_corpus("train", seed=0) if len(pair.source_words) <= 6)
short = [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in itertools.islice(short, 1000)]


def brief_training(bug=None, steps=100, **options):
    """Train a small model in the faulty code. Returns it, its records and the modules."""
    room = with_fault(bug)
    torch.manual_seed(0)
    sizes = {"d_model": 64, "n_layers": 1, "n_heads": 4, "d_ff": 128, "dropout": 0.0}
    model = room("model").Transformer(room("model").TransformerConfig(len(tokenizer), len(tokenizer), **sizes))
    options = {"warmup_steps": 60, "log_every": 10, "label_smoothing": 0.0, "device": "cpu", "progress": False, **options}
    batches = room("data").TokenBatches(short, 300)
    records = room("training").train(model, batches, room("training").TrainingConfig(steps=steps, **options))
    return model, records, room


_, brief_records, _ = brief_training()
print(f"after 100 updates without a fault: perplexity {brief_records[-1].perplexity:.0f}")
assert 3 < brief_records[-1].perplexity < 30

# %% [markdown]
# ## What a position may see
#
# ### The future leaks
#
# > This masking, combined with fact that the output embeddings are offset by one position, ensures that the predictions
# > for position $i$ can depend only on the known outputs at positions less than $i$.
# >
# > — Section 3.1
#
# Whoever writes the attention alone, and trusts its caller with the mask, writes this: a mask is built and not handed on,
# or a default turns it off. Every shape fits. The decoder reads the answer one position to its right, and the loss falls
# faster than without the fault ([Section 3.2.3](03_2_3_applications_of_attention.py)).

# %%
leak = Bug(
    name="future leaks",
    room="layers",
    old="is_causal=tgt_mask is None",
    new="is_causal=False",
    caught_by="tests/test_masks.py::test_the_whole_models_logits_are_causal",
)

# %%
model, leak_records, _ = brief_training(leak)
seen, (before, after) = look(leak, model=model), (brief_records[-1].perplexity, leak_records[-1].perplexity)
exhibit(leak, f"training perplexity {before:.0f} → {after:.2g}; exact {seen.exact}")
print("it writes:", seen.outputs[0][:60], "…")
assert after < before / 2 and seen.exact == 0

# %% [markdown]
# ### The target is not shifted
#
# The other half of the same sentence: "the output embeddings are offset by one position". It is lost where the data loader
# shifts in one project and the model in another: each leaves it to the other. The decoder then is asked to say what it has
# just been told. The mask is right and no help
# ([Section 5.1](05_1_training_data_and_batching.py) makes the batches).

# %%
unshifted = Bug(
    name="target not shifted",
    room="data",
    old="F.pad(tgt, (1, 0), value=BOS_ID), _ended(tgt, targets))",
    new="_ended(tgt, targets), _ended(tgt, targets))",
    caught_by="tests/test_data.py::test_a_batch_is_its_pairs",
)

# %%
model, unshifted_records, _ = brief_training(unshifted, steps=50)
seen, (usual,) = look(unshifted, model=model), [record.perplexity for record in brief_records if record.step == 50]
exhibit(unshifted, f"perplexity after 50 updates {usual:.0f} → {unshifted_records[-1].perplexity:.2g}; exact {seen.exact}")
assert unshifted_records[-1].perplexity < 2 < usual / 5 and seen.exact == 0

# %% tags=["hide-input"]
runs = {"no fault": brief_records, leak.name: leak_records, unshifted.name: unshifted_records}
values = [
    {"code": name, "update": record.step, "perplexity": record.perplexity}
    for name, records in runs.items()
    for record in records
]
chart = (
    alt.Chart(alt.Data(values=values))
    .mark_line(point=True)
    .encode(
        x=alt.X("update:Q", title="update"),
        y=alt.Y("perplexity:Q", title="training perplexity", scale=alt.Scale(type="log")),
        color=alt.Color(
            "code:N",
            title=None,
            scale=alt.Scale(domain=list(runs), range=["#0072B2", "#D55E00", "#CC79A7"]),
            legend=alt.Legend(orient="top", symbolSize=300),
        ),
        strokeDash=alt.StrokeDash("code:N", title=None, scale=alt.Scale(domain=list(runs), range=[[1, 0], [6, 3], [2, 2]])),
        tooltip=["code:N", "update:Q", alt.Tooltip("perplexity:Q", format=".2f")],
    )
    .properties(width=420, height=220, title="The two lower curves belong to broken models")
)
chart

# %% [markdown]
# Only the solid line belongs to a model that could ever translate. The dashed one pulls away as soon as attention has found
# the position to its right; the dotted one, which only has to repeat its input, is at the bottom within 50 updates.

# %% [markdown]
# ### The mask is inverted
#
# > We implement this inside of scaled dot-product attention by masking out (setting to $-\infty$) all values in the input
# > of the softmax which correspond to illegal connections.
# >
# > — Section 3.2.3
#
# PyTorch itself has both conventions: in `nn.MultiheadAttention` True means *hidden*, in
# `F.scaled_dot_product_attention` True means *visible*. Ours is the second
# ([Section 3.2.3](03_2_3_applications_of_attention.py)). Whoever moves from one to the other forgets one `~`, and the model
# attends to the padding and to nothing else.

# %%
inverted = Bug(
    name="mask inverted",
    room="masks",
    old="return (ids != pad_id)[:, None, None, :]",
    new="return (ids == pad_id)[:, None, None, :]",
    caught_by="tests/test_masks.py::test_padding_mask_is_not_pad",
)

# %%
seen = exhibit_look(inverted)
print("it writes:", seen.outputs[0][:60], "…")
assert seen.exact <= 2 and seen.perplexity > 10

# %% [markdown]
# ### The mask is transposed
#
# > We also modify the self-attention sub-layer in the decoder stack to prevent positions from attending to subsequent
# > positions.
# >
# > — Section 3.1
#
# `triu` for `tril`, or rows taken for keys ([Section 3.2.3](03_2_3_applications_of_attention.py)). The mask is square, so
# no shape complains. Each position sees itself and the future, never the past. Our `forward` needs no mask tensor; what
# shows it is a pass with the three masks of `build_masks`.

# %%
transposed = Bug(
    name="mask transposed",
    room="masks",
    old="return torch.ones(size, size, dtype=torch.bool, device=device).tril()",
    new="return torch.ones(size, size, dtype=torch.bool, device=device).triu()",
    caught_by="tests/test_masks.py::test_causal_mask_is_key_not_after_query",
)


# %%
def perplexity_with_masks(bug=None):
    """The shipped model's perplexity, with mask tensors for everything."""
    model = with_fault(bug)("translator").load_toy_translator().model
    with torch.inference_mode():
        src_mask, tgt_mask, memory_mask = model.build_masks(batch.src, batch.tgt_in)
        hidden = model.decode(batch.tgt_in, model.encode(batch.src, src_mask), tgt_mask, memory_mask)
        return transformer.LabelSmoothingLoss().nll(model.output_projection(hidden), batch.tgt_out).exp().item()


right, wrong = perplexity_with_masks(), perplexity_with_masks(transposed)
exhibit(transposed, f"perplexity {right:.3g} → {wrong:.3g} with mask tensors; exact match does not change")
assert abs(right / healthy.perplexity - 1) < 1e-3 and wrong > 10

# %% [markdown]
# ### The mask in the wrong corner
#
# The paper has no cache. While decoding with one there is one query and there are many keys. The query is the *last*
# position. A causal mask that is aligned at the top left takes it for the first, and hides all keys but one. PyTorch's
# own `is_causal=True` is aligned so. In training there are as many queries as keys, both corners are the same, and
# nothing shows ([Section 3.2.2](03_2_2_multi_head_attention.py)).

# %%
corner = Bug(
    name="mask in the wrong corner",
    room="multi_head",
    old="device=query.device).tril(diagonal=n - m)",
    new="device=query.device).tril()",
    caught_by="tests/test_multi_head.py::test_cached_pieces_equal_one_causal_pass",
)

# %%
seen = exhibit_look(corner)
print("it writes:", seen.outputs[0][:60], "…")
assert seen.exact <= 5 and abs(seen.perplexity / healthy.perplexity - 1) < 1e-4

# %% [markdown]
# ### Padding is attended to
#
# The paper does not speak of padding. The encoder's mask is the one everybody remembers. The one between decoder and
# encoder is forgotten, since the sentence alone translates well: it has no padding then. In a batch, short sentences read
# noise behind their end ([Section 6.1](06_1a_decoding.py)).

# %%
padding = Bug(
    name="padding attended to",
    room="decoding",
    old="return model.new_cache(model.encode(src, src_mask), src_mask, int(limits.max())), limits",
    new="return model.new_cache(model.encode(src, src_mask), None, int(limits.max())), limits",
    caught_by="tests/test_decoding.py::test_wider_padding_changes_nothing[the paper's]",
)

# %%
seen = exhibit_look(padding)
changed = [i for i, (a, b) in enumerate(zip(seen.outputs, healthy.outputs, strict=True)) if a != b]
room, one = with_fault(padding), src[changed[0]]
model = room("translator").load_toy_translator().model
(alone,) = room("decoding").greedy_decode(model, one[one != 0][None])
print(f"{len(changed)} sentences change with their company, among them\n  in the batch: {seen.outputs[changed[0]]}")
print(f"  alone:        {tokenizer.decode(alone)}")
assert len(changed) >= 4 and tokenizer.decode(alone) == healthy.outputs[changed[0]]

# %% [markdown]
# ## The parts of the model
#
# ### No division by √d_k
#
# > We compute the dot products of the query with all keys, divide each by $\sqrt{d_k}$, and apply a softmax function to
# > obtain the weights on the values.
# >
# > — Section 3.2.1
#
# Left out, or divided by $\sqrt{d_{\text{model}}}$, or applied twice because a fused kernel already does it
# ([Section 3.2.1](03_2_1_scaled_dot_product_attention.py)). With the shipped model's $d_k = 32$ the scores become
# $\sqrt{32}$ times larger. Its weights are computed by Equation (1) here, so that they can be seen; their entropy says
# over how many keys a row spreads.

# %%
unscaled = Bug(
    name="no division by √d_k",
    room="attention",
    old="scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)",
    new="scores = query @ key.transpose(-2, -1)",
    caught_by="tests/test_attention.py::test_the_worked_example",
)


# %%
def watch(model, on_weights=lambda weights: None):
    """Let every attention of the model compute by Equation (1) and show its weights."""
    for module in model.modules():
        if hasattr(module, "on_weights"):
            module.on_weights = on_weights


def encoder_entropy(bug=None):
    """Mean entropy of the encoder's rows of weights, in bits."""
    model, found = with_fault(bug)("translator").load_toy_translator().model, []
    watch(model, found.append)
    with torch.inference_mode():
        model.encode(src, transformer.padding_mask(src))
    rows = torch.stack(found).transpose(2, 3)[:, src != 0]  # (N, B, h, n, n) → (N, real tokens, h, n)
    return torch.special.entr(rows).sum(-1).mean().item() / math.log(2)


seen = looks[unscaled.name] = look(unscaled, prepare=watch)
right, wrong = encoder_entropy(), encoder_entropy(unscaled)
exhibit(unscaled, f"entropy of a row {right:.2f} → {wrong:.2f} bits; exact {healthy.exact} → {seen.exact}")
assert config.d_model // config.n_heads == 32 and wrong < 0.75 * right and seen.exact >= healthy.exact - 5 and seen.perplexity > healthy.perplexity

# %% [markdown]
# The trained model hardly notices: its heads had made up their minds anyway. Only the entropy moves. What the division is
# for is the beginning of a training with large $d_k$, and there no output tells what is missing.
#
# ### The softmax runs over the wrong axis
#
# > The output is computed as a weighted sum of the values, where the weight assigned to each value is computed by a
# > compatibility function of the query with the corresponding key.
# >
# > — Section 3.2
#
# `dim=1` is right for a single matrix of scores, and runs over the queries as soon as a batch stands before it. Scores are
# $m \times n$. Normalized over the queries, each *column* sums to 1 and no row does
# ([Section 3.2.1](03_2_1_scaled_dot_product_attention.py)). A column runs over all queries, so the weights of a position
# depend on the positions after it: the mask is obeyed, and the future leaks through the denominator. A hidden key is a
# column of $-\infty$ alone; with padding in the batch, the model's output is not even a number, and decoding refuses it.

# %%
wrong_axis = Bug(
    name="softmax over the wrong axis",
    room="attention",
    old='scores = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)\n    return torch.softmax(scores, dim=-1)',
    new='scores = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)\n    return torch.softmax(scores, dim=-2)',
    caught_by="tests/test_attention.py::test_equals_torchs_kernel_with_gradients[mask_shape1]",
)

# %%
attend = with_fault(wrong_axis)("attention").scaled_dot_product_attention
torch.manual_seed(0)
x, mask = torch.randn(5, 8), transformer.causal_mask(5)  # (n, d_k), (n, n)
later = torch.cat([x[:-1], torch.randn(1, 8)])  # another last position
out, weights = attend(x, x, x, mask)
moved = (attend(later, later, later, mask)[0] - out)[:-1].abs().max().item()
print("sums of the rows:", [round(number, 2) for number in weights.sum(-1).tolist()])
print(f"a change of the last position moves earlier outputs by up to {moved:.2f}")
seen = looks[wrong_axis.name] = look(wrong_axis, prepare=watch)
exhibit(wrong_axis, f"exact {healthy.exact} → {seen.exact}, perplexity {healthy.perplexity:.3g} → {seen.perplexity:.3g}")
assert (weights.sum(-1) - 1).abs().max() > 0.1 and moved > 0.01 and seen.exact <= 5 and math.isnan(seen.perplexity)

# %% [markdown]
# ### Heads cut by reshape
#
# > On each of these projected versions of queries, keys and values we then perform the attention function in parallel,
# > yielding $d_v$-dimensional output values.
# >
# > — Section 3.2.2
#
# The projections give $(B, n, h \cdot d_k)$, the heads want $(B, h, n, d_k)$. `reshape` gives that shape too, in one call
# and from the wrong numbers: a "head" is then a run of neighbouring positions, cut into pieces
# ([Section 3.2.2](03_2_2_multi_head_attention.py)). What comes out at a position mixes others, later ones among them.

# %%
reshaped = Bug(
    name="heads cut by reshape",
    room="multi_head",
    old="return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)",
    new="return x.reshape(x.size(0), self.n_heads, x.size(1), -1)",
    caught_by="tests/test_multi_head.py::test_equals_torchs_module_with_gradients[plain]",
)

# %%
seen = exhibit_look(reshaped)
assert seen.exact <= 5 and seen.perplexity > 10

# %% [markdown]
# ### A norm too many
#
# > That is, the output of each sub-layer is $\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$, where
# > $\mathrm{Sublayer}(x)$ is the function implemented by the sub-layer itself.
# >
# > — Section 3.1
#
# In the paper's order the last thing a stack does is normalize. Code that grew around the other order often adds one more
# at the end ([Section 3.1](03_1_encoder_and_decoder_stacks.py)). Loading the weights tells, unless `strict=False` silences
# it. The outputs do not tell at all.

# %%
too_many = Bug(
    name="a norm too many",
    room="model",
    old="(_make_decoder_layer(config) for _ in range(config.n_layers)), nn.LayerNorm(config.d_model) if pre else None",
    new="(_make_decoder_layer(config) for _ in range(config.n_layers)), nn.LayerNorm(config.d_model)",
    caught_by="tests/test_model.py::test_only_pre_norm_ends_its_stacks_with_a_norm[post]",
)

# %%
model = with_fault(too_many)("model").Transformer(config).eval()
missing, unexpected = model.load_state_dict(toy.model.state_dict(), strict=False)
looks[too_many.name] = seen = look(too_many, model=model)
extra = transformer.count_parameters(model) - transformer.count_parameters(toy.model)
exhibit(too_many, f"{extra} parameters more; exact {healthy.exact} → {seen.exact}, perplexity {healthy.perplexity:.3g} → {seen.perplexity:.3g}")
print("what strict=False did not say: no weights for", ", ".join(missing))
assert extra == 2 * config.d_model and not unexpected and abs(seen.exact - healthy.exact) <= 3

# %% [markdown]
# ### A norm too few
#
# The other way round: layers in pre-norm order, which is not the paper's, leave a sum that nothing has normalized. It
# needs the final norm ([Xiong et al. 2020](https://arxiv.org/abs/2002.04745),
# [Wang et al. 2019](https://arxiv.org/abs/1906.01787)); whoever turns a paper's layer into a pre-norm one moves two lines
# and does not look at the stack. Without it the logits of a new model grow with its depth, and it begins far worse than a
# guess ([Section 3.1](03_1_encoder_and_decoder_stacks.py), [Section 3.4](03_4_embeddings_and_softmax.py)).

# %%
too_few = Bug(
    name="a norm too few",
    room="model",
    old="(_make_decoder_layer(config) for _ in range(config.n_layers)), nn.LayerNorm(config.d_model) if pre else None",
    new="(_make_decoder_layer(config) for _ in range(config.n_layers)), None",
    caught_by="tests/test_embeddings.py::test_untrained_loss_is_log_v_plus_a_half[tiny 4000 pre]",
)

# %%
starts, few_pairs = {}, batch.split(5)[0]
for bug in (None, too_few):
    room = with_fault(bug)
    torch.manual_seed(0)
    model = room("model").Transformer(replace(config, norm_order="pre", n_layers=6)).eval()
    with torch.inference_mode():
        starts[bug] = (
            model(few_pairs.src, few_pairs.tgt_in).std().item(),
            math.log(room("training").perplexity(model, [few_pairs])),
        )
guess = math.log(len(tokenizer))
exhibit(too_few, f"new model of 6 layers: loss {starts[None][1]:.1f} → {starts[too_few][1]:.1f}, where a guess has {guess:.1f}")
print(f"standard deviation of its logits {starts[None][0]:.2f} → {starts[too_few][0]:.2f}")
assert starts[None][1] < guess + 1 < guess + 2 < starts[too_few][1]

# %% [markdown]
# ### One layer, N times
#
# > The encoder is composed of a stack of $N=6$ identical layers.
# >
# > — Section 3.1
#
# *Identical* means built alike. A list times a number, `[layer] * N`, makes one layer with $N$ names
# ([Section 3.1](03_1_encoder_and_decoder_stacks.py)). It runs, trains, and saves; the model is smaller than it says. A
# copy by `deepcopy` is the milder form: layers of their own, equal at the start.

# %%
one_layer = Bug(
    name="one layer, N times",
    room="model",
    old="(_make_decoder_layer(config) for _ in range(config.n_layers)), nn.LayerNorm",
    new="[_make_decoder_layer(config)] * config.n_layers, nn.LayerNorm",
    caught_by="tests/test_model.py::test_no_two_layers_are_one",
)

# %%
counts = []
for bug in (None, one_layer):
    rooms = with_fault(bug)("model")
    with torch.device("meta"):
        counts.append(rooms.count_parameters(rooms.Transformer(rooms.TransformerConfig.base(37_000))) / 1e6)
exhibit(one_layer, f"parameters of base {counts[0]:.1f}M → {counts[1]:.1f}M")
assert counts[1] < counts[0] - 20

# %% [markdown]
# ## Training
#
# ### The schedule ticks with every part
#
# > This corresponds to increasing the learning rate linearly for the first $warmup\_steps$ training steps, and decreasing
# > it thereafter proportionally to the inverse square root of the step number.
# >
# > — Section 5.3
#
# Who cuts a batch into parts, to hold one in memory at a time, has two counters: parts and updates. The scheduler's call
# stands in the inner loop. With four parts the warm-up is over after a quarter of it
# ([Section 5.3](05_3_optimizer.py)).

# %%
ticking = Bug(
    name="schedule ticks with parts",
    room="training",
    old="self._step(step)\n",
    new="self._step(step * self.config.accumulate)\n",
    caught_by="tests/test_distributed.py::test_parts_change_nothing[2-None]",
)

# %%
few = {"steps": 12, "warmup_steps": 8, "log_every": 1, "accumulate": 4}
rates = {bug: [record.learning_rate for record in brief_training(bug, **few)[1]] for bug in (None, ticking)}
peaks = {bug: max(range(12), key=rates[bug].__getitem__) + 1 for bug in rates}
exhibit(ticking, f"warm-up of 8 updates: the highest rate comes at update {peaks[None]} → {peaks[ticking]}")
assert peaks == {None: 8, ticking: 2} and math.isclose(rates[ticking][-1], rates[None][-1] / 2)

# %% tags=["hide-input"]
values = [
    {"update": i, "rate": rate, "code": "with the fault" if bug else "without"}
    for bug in rates
    for i, rate in enumerate(rates[bug], 1)
]
chart = (
    alt.Chart(alt.Data(values=values))
    .mark_line()
    .encode(
        x=alt.X("update:Q", title="update"),
        y=alt.Y("rate:Q", title="learning rate"),
        color=alt.Color("code:N", title=None, scale=alt.Scale(range=["#D55E00", "#0072B2"]), legend=alt.Legend(orient="top")),
        strokeDash=alt.StrokeDash("code:N", title=None, scale=alt.Scale(range=[[6, 3], [1, 0]])),
        tooltip=["code:N", "update:Q", alt.Tooltip("rate:Q", format=".4f")],
    )
    .properties(width=420, height=180, title="Four parts to a batch: the peak comes at a quarter of the warm-up")
)
chart

# %% [markdown]
# Both curves have the right form and the same height. Only someone who knows where the peak belongs sees that the dashed
# one is not the one that was asked for. After the warm-up it is half of the other: $(4s)^{-0.5}$ for $s^{-0.5}$.
#
# ### A mean of means
#
# > Each training batch contained a set of sentence pairs containing approximately 25000 source tokens and 25000 target
# > tokens.
# >
# > — Section 5.1
#
# Each part's loss is a mean over its own tokens, and the parts' gradients are averaged. Then a token in a part with few
# tokens counts more than one in a part with many ([Section 5.2](05_2_hardware_and_schedule.py)). In 2024 this fault was
# found in several widely used training loops at once, as the *gradient accumulation bug*. The training looks like any
# other; it minimizes another loss. Half of the pairs below have a long source and a short target, half the reverse.

# %%
mean_of_means = Bug(
    name="a mean of means",
    room="training",
    old="loss * (world_size() / n_tokens)",
    new="loss / (self.config.accumulate * part.n_tokens)",
    caught_by="tests/test_distributed.py::test_parts_change_nothing[2-None]",
)

# %%
draw = random.Random(0)
sizes = [(40, 4)] * 8 + [(4, 40)] * 8  # of source and target
ids = [tuple(draw.choices(range(4, len(tokenizer)), k=size) for size in both) for both in sizes]
uneven = make_batch(ids)
gradients, parts = {}, uneven.split(4)
for bug in (None, mean_of_means):
    room = with_fault(bug)
    torch.manual_seed(0)
    model = room("model").Transformer(replace(config, d_model=64, d_ff=128, dropout=0.0))
    options = {"steps": 1, "accumulate": 4, "device": "cpu", "progress": False}
    room("training").train(model, [uneven], room("training").TrainingConfig(**options))
    gradients[bug] = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
off = (gradients[mean_of_means] - gradients[None]).norm().item() / gradients[None].norm().item()
exhibit(mean_of_means, f"the gradient is off by {off:.0%} of its length")
print("target tokens of the parts:", [part.n_tokens for part in parts])
assert off > 0.1

# %% [markdown]
# ### Smoothing spread over V−2
#
# > During training, we employed label smoothing of value $\epsilon_{ls}=0.1$.
# >
# > — Section 5.4
#
# The padding class is left out: it "can never be the target", so it gets no share. The paper does not forbid that; its
# authors' code spreads $\epsilon$ over all $V - 1$ other classes, and results compare only if all do
# ([Section 5.4](05_4_regularization.py)). At the vocabulary's size the loss differs in a digit that nobody reads.

# %%
spread = Bug(
    name="smoothing spread over V−2",
    room="loss",
    old="""        smoothing = min(1.0, self.label_smoothing * n_classes / (n_classes - 1))
        return self._cross_entropy(logits, tgt_out, smoothing)
""",
    new="""        q = torch.full_like(logits, self.label_smoothing / (n_classes - 2))
        q.scatter_(-1, tgt_out[..., None], 1 - self.label_smoothing)
        q[..., self.pad_id] = 0.0
        losses = -(q * logits.log_softmax(dim=-1)).sum(dim=-1)[tgt_out != self.pad_id]
        return losses.sum() if self.reduction == "sum" else losses.mean()
""",
    caught_by="tests/test_loss.py::test_reference_row",
)

# %%
row, true = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]], dtype=torch.float64), torch.tensor([1])
with torch.inference_mode():
    logits = toy.model(batch.src, batch.tgt_in).double()
losses = {}
for bug in (None, spread):
    loss = with_fault(bug)("loss").LabelSmoothingLoss(0.1)
    losses[bug] = loss(row, true).item(), loss(logits, batch.tgt_out).item()
exhibit(spread, f"5 classes: loss {losses[None][0]:.4f} → {losses[spread][0]:.4f}")
print(f"{len(tokenizer):,} classes: loss {losses[None][1]:.3f} → {losses[spread][1]:.3f}")
assert abs(losses[None][0] - 1.576914) < 1e-6 and abs(losses[spread][0] - 1.651914) < 1e-6
assert 0 < abs(losses[spread][1] - losses[None][1]) < 0.01

# %% [markdown]
# ### Perplexity from the smoothed loss
#
# > This hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score.
# >
# > — Section 5.4
#
# The training loop has a loss at hand, and perplexity is exp of a loss. Of the loss *without* smoothing
# ([Section 5.4](05_4_regularization.py)). The smoothed one never falls below the entropy of its target, so its exp has a
# floor above 1, and no comparison with anybody's number holds.

# %%
smoothed = Bug(
    name="perplexity with smoothing",
    room="training",
    old='LabelSmoothingLoss(0.0, model.config.pad_id, reduction="sum")',
    new='LabelSmoothingLoss(0.1, model.config.pad_id, reduction="sum")',
    caught_by="tests/test_training.py::test_perplexity_is_per_token_and_without_smoothing",
)

# %%
seen = exhibit_look(smoothed)
n_others = len(tokenizer) - 1
floor = math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1 / n_others))
print(f"the floor, which no model can fall below: {floor:.2f}")
assert seen.exact == healthy.exact and seen.perplexity > floor > 2 * healthy.perplexity

# %% [markdown]
# ### The shared matrix averaged twice
#
# > In our model, we share the same weight matrix between the two embedding layers and the pre-softmax linear
# > transformation
# >
# > — Section 3.4
#
# Averaging adds checkpoints up, name by name, and divides ([Appendix A3](A3_checkpoints.py)). A matrix with two names is
# added twice and divided once. The logits' *order* survives any factor, so a first look says that all is well; the
# embeddings drown out the positions.

# %%
twice = Bug(
    name="shared matrix averaged twice",
    room="checkpoints",
    old="        for name, value in other.state_dict().items():\n            total[name] += value\n",
    new="""        weights = other.state_dict()
        for name in [*weights, "embedding.weight"]:  # the output's matrix, too
            total[name] += weights[name]
""",
    caught_by="tests/test_checkpoints.py::test_the_mean_counts_every_weight_once[True]",
)

# %%
with tempfile.TemporaryDirectory() as folder:
    checkpoints = [Path(folder) / str(number) for number in range(5)]
    for path in checkpoints:
        toy.save(path)
    model = with_fault(twice)("checkpoints").average_checkpoints(checkpoints)  # of five times the same
looks[twice.name] = seen = look(twice, model=model)
factor = model.embedding.weight.norm().item() / toy.model.embedding.weight.norm().item()
exhibit(twice, f"the matrix is {factor:.1f} times as large; exact {healthy.exact} → {seen.exact}, perplexity {healthy.perplexity:.3g} → {seen.perplexity:.3g}")
assert abs(factor - 1.8) < 1e-3 and seen.exact < healthy.exact - 3

# %% [markdown]
# ## Decoding
#
# ### Every token at position 0
#
# > To this end, we add "positional encodings" to the input embeddings at the bottoms of the encoder and decoder stacks.
# >
# > — Section 3.5
#
# Whoever adds a cache to a decoder that was written without one forgets this. The decoder is then given one token at a
# time, and a sequence of one token begins at position 0 ([Section 3.6](03_6_the_full_model.py)). Training knows nothing
# of it. The output is not nonsense, which makes it worse: most sentences are right.

# %%
restarting = Bug(
    name="position always 0",
    room="model",
    old="start = 0 if cache is None else cache.length",
    new="start = 0",
    caught_by="tests/test_model.py::test_cache_gives_the_same_hidden_states",
)

# %%
seen = exhibit_look(restarting)
at = next(i for i, (a, b) in enumerate(zip(seen.outputs, healthy.outputs, strict=True)) if a != b)
print(f"it writes: {seen.outputs[at]}\ninstead of {healthy.outputs[at]}")
assert seen.exact < healthy.exact - 3 and abs(seen.perplexity / healthy.perplexity - 1) < 1e-4

# %% [markdown]
# ### The first end ends all
#
# > We set the maximum output length during inference to input length + $50$, but terminate early when possible
# >
# > — Section 6.1
#
# *When possible* is a matter of each sentence ([Section 6.1](06_1a_decoding.py)). A loop over a batch that stops at the
# first end token is right for a batch of one, and that is what one tries it on.

# %%
first_end = Bug(
    name="the first end ends all",
    room="decoding",
    old="        if not len(live):\n            break\n        tokens = chosen[live, None].to(src)",
    new="        if ended.any():\n            break\n        tokens = chosen[live, None].to(src)",
    caught_by="tests/test_decoding.py::test_alone_and_together_as_without_the_cache[the paper's]",
)

# %%
seen = exhibit_look(first_end)
cut = sum(b.startswith(a) and a != b for a, b in zip(seen.outputs, healthy.outputs, strict=True))
print(f"{cut} translations are the beginning of the right one, such as: {seen.outputs[0]}")
assert cut > 80

# %% [markdown]
# ### The beam moves, the cache stays
#
# > We used beam search with a beam size of $4$ and length penalty $\alpha=0.6$
# >
# > — Section 6.1
#
# Whoever adds a cache to a search that read whole hypotheses writes this. When a hypothesis dies and another is continued
# twice, the rows of the cache must be copied with it
# ([Section 6.1](06_1a_decoding.py)). Without that, a hypothesis goes on with the keys and values of another. Where the
# model is sure, nothing moves and nothing shows. On sentences longer than any in training it is not sure. What gives it
# away is the score: log P as returned is no longer that of the tokens returned.

# %%
cache_stays = Bug(
    name="the cache stays behind",
    room="decoding",
    old="if not stay or not rows.equal(torch.arange(len(rows))):",
    new="if not stay:",
    caught_by="tests/test_decoding.py::test_the_batch_finds_what_the_textbook_finds[the paper's]",
)

# %%
long = [pair.source for pair in itertools.islice(transformer.embedded_corpus("long", seed=1), 30)]
long_src = pad([[*tokenizer.encode(line), EOS_ID] for line in long])


def wrong_scores(bug=None):
    """How many of the best hypotheses have another log P than the model gives their tokens."""
    found = [best[0] for best in with_fault(bug)("decoding").beam_search(toy.model, long_src)]
    again = make_batch([([], hypothesis.ids) for hypothesis in found])
    with torch.inference_mode():
        log_p = toy.model(long_src, again.tgt_in).log_softmax(-1).gather(-1, again.tgt_out[..., None])[..., 0]
    totals = (log_p * (again.tgt_out != 0)).sum(-1).tolist()
    return sum(abs(total - hypothesis.log_probability) > 0.01 for total, hypothesis in zip(totals, found, strict=True))


right, wrong = wrong_scores(), wrong_scores(cache_stays)
exhibit(cache_stays, f"wrong scores of {len(long)} long sentences {right} → {wrong}")
assert right == 0 and wrong >= 3

# %% [markdown]
# ### A beam without the penalty
#
# The same sentence of the paper, its second half. Whoever writes the search first ranks by the sum of log P, and the
# penalty waits for later. Each further token makes log P smaller, so a search for the highest sum prefers to stop early;
# the penalty evens that out ([Section 6.1](06_1a_decoding.py)). The shipped model is too sure for that to matter, so its
# logits are made smaller here, which makes it about as unsure as a model of real text.

# %%
no_penalty = Bug(
    name="a beam without penalty",
    room="decoding",
    old="divisor = length_penalty(torch.tensor(step), alpha, penalty)",
    new="divisor = torch.tensor(1.0)",
    caught_by="tests/test_decoding.py::test_the_search_goes_on_when_the_best_hypothesis_ends",
)

# %%
unsure = transformer.Transformer(config).eval()
unsure.load_state_dict(toy.model.state_dict())
unsure.output_projection = lambda hidden: 0.6 * toy.model.output_projection(hidden)
lengths, exact = [], []
for bug in (None, no_penalty):
    found = [best[0].ids for best in with_fault(bug)("decoding").beam_search(unsure, src[:60], max_new_tokens=40)]
    lengths.append(sum(map(len, found)) / len(found))
    exact.append(sum(tokenizer.decode(ids) == pair.target for ids, pair in zip(found, pairs[:60], strict=True)))
wanted = sum(len(tokenizer.encode(pair.target)) for pair in pairs[:60]) / 60
exhibit(no_penalty, f"mean length {lengths[0]:.1f} → {lengths[1]:.1f} tokens, {wanted:.1f} are right; exact {exact[0]} → {exact[1]} of 60")
print(f"perplexity of the unsure model: {transformer.perplexity(unsure, [batch]):.1f}")
assert lengths[1] < lengths[0] < wanted and exact[1] < exact[0]

# %% [markdown]
# ### Dropout left on
#
# A model is made in training mode, and stays there until somebody calls `eval()`. Our decoding refuses such a model
# ([Section 6.1](06_1a_decoding.py)); without the refusal it translates, a little worse, and each time differently. The
# shipped model was trained without dropout; here it has the paper's rate.

# %%
dropping = Bug(
    name="dropout left on",
    room="decoding",
    old="""    if model.training:
        raise ValueError("the model is in training mode, where dropout changes the output; call model.eval() first.")
""",
    new="",
    caught_by="tests/test_decoding.py::test_training_mode_is_refused[greedy]",
)

# %%
model = with_fault(dropping)("model").Transformer(replace(config, dropout=0.1))
model.load_state_dict(toy.model.state_dict())
torch.manual_seed(0)
looks[dropping.name] = seen = look(dropping, model=model.train())
again = look(dropping, model=model)
differ = sum(a != b for a, b in zip(seen.outputs, again.outputs, strict=True))
exhibit(dropping, f"exact {healthy.exact} → {seen.exact} and {again.exact}; {differ} translations differ from one run to the next")
assert config.dropout == 0 and differ >= 3

# %% [markdown]
# ## See it: the whole museum

# %%
for bug, symptom in museum:
    file, _, test = bug.caught_by.partition("::")
    lines = [f"{bug.name} (transformer/{bug.room}.py)", *symptom.split("; "), f"caught in {file} by", f"  {test}"]
    print("\n  ".join(lines))
assert len(museum) == len({bug.name for bug, _ in museum}) == 22
assert all(len(text.splitlines()) <= 10 for bug, _ in museum for text in (bug.old, bug.new))

# %% [markdown]
# The tests are the project's own. `python book/tools/museum.py` reads the faults from this page, puts each into a copy of
# the code, and runs the test that it names. It fails if one of them stays green.
#
# ## Check it: what a loss curve does not show
#
# All faults with which the shipped model was looked at. *Loss looks right*: the perplexity under teacher forcing is within
# 3 percent of the healthy code's.

# %%
def looks_right(seen):
    return abs(seen.perplexity / healthy.perplexity - 1) < 0.03


silent = [name for name, seen in looks.items() if looks_right(seen)]
harmful = [name for name in silent if looks[name].exact < healthy.exact - 3]
print(f"{len(silent)} of {len(looks)} faults leave the loss as it is; {len(harmful)} of these spoil translations:")
print(", ".join(harmful))
assert len(silent) > len(looks) / 2 and len(harmful) >= 4 and corner.name in harmful and restarting.name in harmful

# %% tags=["hide-input"]
values = [
    {"fault": name, "exact": seen.exact, "loss": "loss looks right" if looks_right(seen) else "loss tells"}
    for name, seen in {"no fault": healthy, **looks}.items()
]
order = sorted([value["fault"] for value in values], key=lambda name: -(looks.get(name, healthy).exact))
base = alt.Chart(alt.Data(values=values)).encode(
    x=alt.X("exact:Q", title="exact translations of 100", scale=alt.Scale(domain=[0, 104], nice=False)),
    y=alt.Y("fault:N", title=None, sort=order, axis=alt.Axis(labelLimit=200)),
)
kinds = {"domain": ["loss looks right", "loss tells"]}
bars = base.mark_bar(height=11).encode(
    color=alt.Color("loss:N", title=None, scale=alt.Scale(**kinds, range=["#0072B2", "#E69F00"]), legend=alt.Legend(orient="top")),
    tooltip=["fault:N", "exact:Q", "loss:N"],
)
ends = base.mark_point(filled=True, size=60, opacity=1).encode(
    color=alt.Color("loss:N"), shape=alt.Shape("loss:N", title=None, scale=alt.Scale(**kinds, range=["circle", "triangle-right"]))
)
chart = (bars + ends).properties(width=260, height=300, title="Short blue bars: broken, and the loss says nothing")
chart

# %% [markdown]
# Each bar counts exact translations with one fault in the code. Look for the shorter bars with a circle at their end:
# most of them are broken in decoding alone, where no loss is ever computed. The long ones are the other danger. A norm
# too many or a missing division harms a trained model so little that only a test of the code itself finds it. Perplexity
# with smoothing has a triangle, since it shows another number for the same model.
#
# ## Unsaid by the paper
#
# - **How anyone would notice.** The paper names no check of its code. What a test of a Transformer should hold, those who
#   rebuilt it learned from faults like these.
# - **Padding, caches, decoding in batches.** The paper's text has none of the three; several faults of this museum
#   live there.
# - **What to look at beside the loss.** Three habits find many of the above. *Change one token and see which outputs
#   move*: it finds every leak inside the model. *Compute the same thing in two ways*: alone and in a batch, with the
#   cache and without, in one part and in four. *Overfit one batch, then translate it*: a loss of 0 with wrong translations
#   is a leak.
# - **What changed since.** Fused kernels took √d_k, the softmax and the causal mask out of most people's hands, and gave
#   them two conventions for masks and one for corners instead.
#
# ## What we now know
#
# - Each of the twenty-two faults is at most ten lines long, runs without an error, and is caught by a test of ours.
# - With a leak the loss falls further in as many updates. A falling loss is no evidence that a model works.
# - More than half of the faults with which the shipped model was looked at leave its perplexity within 3 percent.
# - A wrong position, a forgotten mask, a wrong corner or an early end while decoding leave perplexity as it was and spoil
#   few or nearly all translations.
# - A norm too many, a missing division by √d_k and another spread of the smoothing change next to nothing that one looks
#   at. They are found by tests against the definition, or not at all.
#
# ## Exercises
#
# 1. **Predict, then run.** `forward` in `transformer/model.py` hands `src_mask` to the decoder as the memory's mask. With
#    None in its place, which of `look`'s two numbers changes? What does the same change do in `decoding`, above?
# 2. **Minutes.** Four teams describe what they see. (a) Training perplexity reaches 1.0 within a few hundred updates, and
#    translations are nonsense. (b) Every sentence is right when translated alone, some are cut short in a batch. (c) Dev
#    perplexity never falls below 2.3, while nearly all translations are exact. (d) Under teacher forcing all is right;
#    greedy output begins right and goes wrong in later words of some sentences, alone as in a batch. Name each fault:
#    "future leaks", "first end ends all", "smoothed perplexity", "position always 0", "padding attended", "dropout left
#    on" or "averaged twice". Check: `check("12-four-symptoms", answer)`.
# 3. **Minutes.** Which number does exp of the smoothed loss show at best, with $\epsilon = 0.1$ and $V = 1{,}500$?
#    Check: `check("12-smoothing-floor", answer)`.
# 4. **An hour.** Write the fault "embeddings without $\sqrt{d_{\text{model}}}$" as a `Bug`, look at it, and find the test
#    that catches it. Why does the shipped model suffer so much, though a model trained that way learns?
# 5. **A day.** Let a program make the faults: change each comparison, each sign and each constant of one room, one at a
#    time, and run the room's tests. Which changes stay green? Are they faults?

# %% [markdown]
# Solution to exercise 1: perplexity, since `forward` is what teacher forcing uses. Greedy decoding makes its own cache and
# never calls `forward`. Above it was the other way round: exact match fell and perplexity stood still.

# %% tags=["hide-cell"]
forgotten = Bug(
    name="memory mask forgotten",
    room="model",
    old="hidden = self.decode(tgt_in, memory, None, src_mask)",
    new="hidden = self.decode(tgt_in, memory, None, None)",
    caught_by="tests/test_masks.py::test_padding_is_invisible",
)
seen = look(forgotten)
print(f"exact {healthy.exact} → {seen.exact}, perplexity {healthy.perplexity:.4f} → {seen.perplexity:.4f}")
assert seen.outputs == healthy.outputs and seen.perplexity > healthy.perplexity + 0.005

# %% [markdown]
# Solution to exercise 2: only a model that is told the answer reaches 1.0; what ends early in company alone is ended by
# another; the smoothed loss has a floor; and what teacher forcing does not show belongs to decoding alone.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = {"a": "future leaks", "b": "first end ends all", "c": "smoothed perplexity", "d": "position always 0"}
print(check("12-four-symptoms", answer))
assert check("12-four-symptoms", answer)

# %% [markdown]
# Solution to exercise 3: exp of the entropy of the smoothed target. It is the floor printed above, which the shipped model
# nearly reaches.

# %% tags=["hide-cell"]
answer = math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1 / 1499))
print(f"{answer:.3f}", check("12-smoothing-floor", answer))
assert check("12-smoothing-floor", answer)

# %% [markdown]
# Solution to exercise 4: the weights were trained to be multiplied. Unmultiplied they are about as large as a random vector
# divided by $\sqrt{128}$, and the positions, which are added unchanged, drown them out.

# %% tags=["hide-cell"]
unmultiplied = Bug(
    name="embeddings without √d_model",
    room="embeddings",
    old="return F.embedding(ids, self.weight) * math.sqrt(self.weight.size(1))",
    new="return F.embedding(ids, self.weight)",
    caught_by="tests/test_embeddings.py::test_a_look_up_is_a_one_hot_product_times_the_root",
)
seen = look(unmultiplied)
sinusoids = transformer.sinusoids(20, config.d_model).norm(dim=-1).mean().item()
print(f"exact {healthy.exact} → {seen.exact}, perplexity {healthy.perplexity:.3g} → {seen.perplexity:.3g}")
print(f"mean length of an embedding {toy.model.embedding.weight.norm(dim=-1).mean().item():.1f}, of a position {sinusoids:.1f}")
assert seen.exact == 0
