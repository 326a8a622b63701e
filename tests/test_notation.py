"""The page of notation: our names stand in the files named, PyTorch's in its signatures, and the traps are real."""

import ast
import inspect
import re

import pytest
import torch
import torch.nn.functional as F
from built import ROOT, table_rows
from torch import nn

import transformer

PAGE = (ROOT / "book" / "notation.md").read_text(encoding="utf-8")
BRIDGE = PAGE.partition("## The bridge")[2]


def code(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def names_in(file: str) -> set[str]:
    """Every name that a file of the package defines, takes as an argument or sets as an attribute."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / "transformer" / file).read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def torchs_names() -> set[str]:
    """The names of PyTorch's classes, arguments, parts and weights that a Transformer is built from."""
    whole = nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
    signatures = [nn.Transformer, nn.Transformer.forward, nn.MultiheadAttention, nn.MultiheadAttention.forward,
                  nn.TransformerDecoderLayer.forward, F.cross_entropy, torch.optim.Adam]  # fmt: skip
    found = {name for thing in signatures for name in inspect.signature(thing).parameters}
    found |= {part for name, _ in whole.named_modules() for part in name.split(".")}
    found |= {part for name, _ in whole.named_parameters() for part in name.split(".")}
    return found | set(dir(nn)) | set(dir(F)) | set(dir(nn.Transformer)) | set(dir(torch.optim))


def test_our_names_are_in_their_files() -> None:
    table = table_rows(BRIDGE)
    assert len(table) == 35
    for row in table:
        here = row["Here, and in which file"]
        (file,) = re.findall(r"`(\w+\.py)`", here)
        missing = set(code(here)) - names_in(file)
        assert code(here) and not missing, f"{file}: {missing}"


def test_torchs_names_are_in_its_signatures() -> None:
    known = torchs_names()
    named = {name for row in table_rows(BRIDGE) for name in code(row["PyTorch"])}
    assert len(named) >= 30 and named <= known, named - known


def test_every_row_says_something_of_each_code() -> None:
    for row in table_rows(BRIDGE):
        for column in ("PyTorch", "tensor2tensor", "fairseq"):
            assert row[column] == "–" or "not to be chosen" in row[column] or code(row[column]), (row["Paper"], column)


def test_names_of_the_upper_tables_exist() -> None:
    files = [path.name for path in (ROOT / "transformer").glob("*.py")]
    known = set.union(*map(names_in, files)) | {"weight", "bias"}
    for row in table_rows(PAGE.partition("## The bridge")[0]):
        for name in re.findall(r"`([\w.]+)", row["Code"]):
            if name not in ("B", "n", "m", "V"):
                assert set(name.split(".")) <= known, name


# ----------------------------------------------------------------------------------------- the same name, another thing


def test_true_means_may_in_the_function_and_may_not_in_the_module() -> None:
    torch.manual_seed(0)
    x, may = torch.randn(1, 4, 8), transformer.causal_mask(4)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    _, weights = module(x, x, x, attn_mask=~may)
    assert torch.equal(weights[0] > 0, may)
    value = torch.eye(4)[None]  # so that the output is the weights
    assert torch.equal(F.scaled_dot_product_attention(x, x, value, attn_mask=may)[0] > 0, may)
    assert torch.equal(transformer.scaled_dot_product_attention(x, x, value, may)[1][0] > 0, may)
    padded = torch.tensor([[False, False, True, True]])
    assert module(x, x, x, key_padding_mask=padded)[1][0, :, 2:].abs().max() == 0


def test_kdim_is_the_width_of_the_input() -> None:
    module = nn.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=True)
    assert module.k_proj_weight.shape == (8, 5) and module.v_proj_weight.shape == (8, 3) and module.head_dim == 4
    ours = transformer.MultiHeadAttention(8, 2, d_k=5, d_v=3)
    assert ours.w_k.weight.shape == (10, 8) and ours.w_v.weight.shape == (6, 8)


def test_torchs_axes_begin_with_the_length() -> None:
    assert not inspect.signature(nn.Transformer).parameters["batch_first"].default
    assert not inspect.signature(nn.MultiheadAttention).parameters["batch_first"].default


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("pre", [False, True])
def test_torchs_transformer_has_final_norms_always_and_ours_in_pre_norm(pre: bool) -> None:
    theirs = nn.Transformer(8, 2, 1, 1, 8, batch_first=True, norm_first=pre)
    assert theirs.encoder.norm is not None and theirs.decoder.norm is not None
    order = "pre" if pre else "post"
    config = transformer.TransformerConfig(9, 9, d_model=8, n_layers=1, n_heads=2, d_ff=8, norm_order=order)
    model = transformer.Transformer(config)
    assert (model.encoder.norm is not None) == (model.decoder.norm is not None) == pre


def test_torchs_dropout_reaches_the_weights_and_the_inner_layer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3)
    assert layer.self_attn.dropout == layer.dropout.p == 0.3
    torch.manual_seed(0)
    before = []
    layer.linear2.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    with torch.no_grad():
        layer.linear1.weight.zero_()
        layer.linear1.bias.fill_(1.0)  # every inner value is 1, before dropout
    layer.train()(torch.randn(3, 1, 8))
    assert before[0].unique().tolist() == pytest.approx([0, 1 / 0.7])


def test_padding_and_end_are_as_the_page_says() -> None:
    config = transformer.TransformerConfig.base()
    assert (config.pad_id, config.eos_id) == (0, 2)
