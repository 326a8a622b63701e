"""The model against PyTorch's own encoder and decoder stacks with the same weights: outputs and gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer import Transformer, TransformerConfig

PAD, V = 0, 13
EXACT = {"rtol": 1e-9, "atol": 1e-11}  # float64


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small lose time to a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def torch_stacks(config: TransformerConfig) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's stacks of the same sizes, in training mode, so that no fast path is taken."""
    pre = config.norm_order == "pre"
    options = {
        "d_model": config.d_model,
        "nhead": config.n_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": pre,
        "layer_norm_eps": 1e-5,
        "dtype": torch.float64,
    }
    finals = [nn.LayerNorm(config.d_model, dtype=torch.float64) if pre else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**options), config.n_layers, norm=finals[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), config.n_layers, norm=finals[1])
    return encoder.train(), decoder.train()


def names(config: TransformerConfig) -> dict[str, list[str]]:
    """For every parameter of PyTorch's stacks, the names of ours that it holds, stacked in this order."""
    table: dict[str, list[str]] = {}

    def attention(theirs: str, ours: str) -> None:
        for kind in ("weight", "bias"):
            table[f"{theirs}.in_proj_{kind}"] = [f"{ours}.{part}.{kind}" for part in ("w_q", "w_k", "w_v")]
            table[f"{theirs}.out_proj.{kind}"] = [f"{ours}.w_o.{kind}"]

    def plain(theirs: str, ours: str) -> None:
        for kind in ("weight", "bias"):
            table[f"{theirs}.{kind}"] = [f"{ours}.{kind}"]

    for side, number in itertools.product(("encoder", "decoder"), range(config.n_layers)):
        layer = f"{side}.layers.{number}"
        attention(f"{layer}.self_attn", f"{layer}.self_attention")
        plain(f"{layer}.linear1", f"{layer}.feed_forward.w_1")
        plain(f"{layer}.linear2", f"{layer}.feed_forward.w_2")
        if side == "encoder":
            blocks = ["attention_block", "feed_forward_block"]
        else:
            attention(f"{layer}.multihead_attn", f"{layer}.memory_attention")
            blocks = ["self_attention_block", "memory_attention_block", "feed_forward_block"]
        for position, block in enumerate(blocks, 1):
            plain(f"{layer}.norm{position}", f"{layer}.{block}.norm")
    if config.norm_order == "pre":
        plain("encoder.norm", "encoder.norm")
        plain("decoder.norm", "decoder.norm")
    return table


def batch(rows: list[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Random ids: one (source length, target length) for each row, padded on the right."""
    n, m = (max(lengths) for lengths in zip(*rows, strict=True))
    src, tgt_in, tgt_out = (torch.full((len(rows), size), PAD) for size in (n, m, m))
    for row, (source, target) in enumerate(rows):
        src[row, :source] = torch.randint(3, V, (source,))
        sentence = torch.randint(3, V, (target,))
        tgt_in[row, :target] = torch.cat([torch.tensor([1]), sentence[:-1]])
        tgt_out[row, :target] = sentence
    return src, tgt_in, tgt_out


def ours_and_theirs(
    config: TransformerConfig, rows: list[tuple[int, int]], dense: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Memory, logits and every gradient of both sides, and how many of our parameters were compared."""
    torch.manual_seed(0)
    model = Transformer(config).double().train()
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 and norms of 1 would hide an exchange
            parameter += 0.2 * torch.randn_like(parameter)
    encoder, decoder = torch_stacks(config)
    table, own = names(config), dict(model.named_parameters())
    theirs = {f"encoder.{k}": p for k, p in encoder.named_parameters()}
    theirs |= {f"decoder.{k}": p for k, p in decoder.named_parameters()}
    assert set(table) == set(theirs)
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(torch.cat([own[part] for part in table[name]]))

    src, tgt_in, tgt_out = batch(rows)
    real_src, real_tgt = src != PAD, tgt_in != PAD
    rest = [name for name in own if name not in itertools.chain(*table.values())]  # embeddings, output, positions
    results = []
    for side in ("ours", "theirs"):
        model.zero_grad()
        target_embedding = model.embedding if config.tie_embeddings else model.tgt_embedding
        if side == "ours":
            src_mask, tgt_mask, memory_mask = model.build_masks(src, tgt_in)
            memory = model.encode(src, src_mask)
            hidden = model.decode(tgt_in, memory, tgt_mask, memory_mask)
            logits = model.output_projection(hidden) if dense else model(src, tgt_in)
        else:
            memory = encoder(model.src_positions(model.embedding(src)), src_key_padding_mask=~real_src)
            future = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(diagonal=1)
            hidden = decoder(
                model.tgt_positions(target_embedding(tgt_in)),
                memory,
                tgt_mask=future,
                tgt_key_padding_mask=~real_tgt,
                memory_key_padding_mask=~real_src,
            )
            logits = model.output_projection(hidden)
        F.cross_entropy(logits[real_tgt], tgt_out[real_tgt]).backward()
        result = {"memory": memory[real_src].detach(), "logits": logits[real_tgt].detach()}
        for name in rest:
            result[name] = own[name].grad.clone()
        for name, parameter in theirs.items():
            result[name] = torch.cat([own[part].grad for part in table[name]]) if side == "ours" else parameter.grad
        results.append(result)
    compared = sum(own[name].numel() for name in rest) + sum(p.numel() for p in theirs.values())
    return results[0], results[1], compared


ROWS = {
    "one token each": [(1, 1)],
    "no padding": [(4, 6), (4, 6)],
    "padded": [(7, 2), (3, 5), (1, 4)],
}
SIZES = {
    "one layer, one head": {"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 12},
    "three layers, four heads": {"d_model": 16, "n_layers": 3, "n_heads": 4, "d_ff": 24},
    "narrow heads, wide inner layer": {"d_model": 12, "n_layers": 2, "n_heads": 6, "d_ff": 64},
}


@pytest.mark.parametrize("dense", [True, False], ids=["dense masks", "forward"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_same_outputs_and_gradients(norm_order, sizes, rows, dense):
    config = TransformerConfig(V, V, dropout=0.0, norm_order=norm_order, **sizes)
    ours, theirs, compared = ours_and_theirs(config, rows, dense)
    torch.testing.assert_close(ours, theirs, **EXACT)
    assert compared == sum(p.numel() for p in Transformer(config).parameters())


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_same_with_untied_embeddings_and_learned_positions(norm_order):
    config = TransformerConfig(
        V,
        V,
        dropout=0.0,
        norm_order=norm_order,
        tie_embeddings=False,
        positions="learned",
        max_len=9,
        **SIZES["three layers, four heads"],
    )
    ours, theirs, compared = ours_and_theirs(config, ROWS["padded"], dense=False)
    torch.testing.assert_close(ours, theirs, **EXACT)
    assert compared == sum(p.numel() for p in Transformer(config).parameters())


def test_the_other_norm_order_is_told_apart():
    """The comparison can fail: pre-norm against post-norm, same weights, other numbers."""
    sizes = SIZES["three layers, four heads"]
    torch.manual_seed(0)
    post = Transformer(TransformerConfig(V, V, dropout=0.0, norm_order="post", **sizes)).double()
    pre = Transformer(TransformerConfig(V, V, dropout=0.0, norm_order="pre", **sizes)).double()
    pre.load_state_dict(post.state_dict(), strict=False)
    src, tgt_in, _ = batch(ROWS["padded"])
    assert not torch.allclose(post(src, tgt_in), pre(src, tgt_in), atol=1e-2)
