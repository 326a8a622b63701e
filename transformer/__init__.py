# Made by book/tools/export.py from the modules beside it; edit the notebooks, not this file.
# sha256 of what follows: 13b93e708b6e88ae
"""The Transformer of *Attention Is All You Need*, exported from the chapters of the book.

Names are loaded when they are first asked for, so importing the package is quick.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "ResidualBlock",
    "EncoderLayer",
    "LayerCache",
    "DecoderLayer",
    "Encoder",
    "Decoder",
    "check_attention_inputs",
    "masked_softmax",
    "scaled_dot_product_attention",
    "MultiHeadAttention",
    "KeyValueCache",
    "causal_mask",
    "padding_mask",
    "PositionwiseFeedForward",
    "TokenEmbedding",
    "sinusoids",
    "SinusoidalPositionalEncoding",
    "LearnedPositionalEncoding",
    "TransformerConfig",
    "DecoderCache",
    "Transformer",
    "count_parameters",
    "choose_device",
    "__version__",
    "check_version",
]

_HOME = {
    "ResidualBlock": "layers",
    "EncoderLayer": "layers",
    "LayerCache": "layers",
    "DecoderLayer": "layers",
    "Encoder": "layers",
    "Decoder": "layers",
    "check_attention_inputs": "attention",
    "masked_softmax": "attention",
    "scaled_dot_product_attention": "attention",
    "MultiHeadAttention": "multi_head",
    "KeyValueCache": "multi_head",
    "causal_mask": "masks",
    "padding_mask": "masks",
    "PositionwiseFeedForward": "feed_forward",
    "TokenEmbedding": "embeddings",
    "sinusoids": "positional_encoding",
    "SinusoidalPositionalEncoding": "positional_encoding",
    "LearnedPositionalEncoding": "positional_encoding",
    "TransformerConfig": "model",
    "DecoderCache": "model",
    "Transformer": "model",
    "count_parameters": "model",
    "choose_device": "model",
}
_MODULES = ("attention", "embeddings", "feed_forward", "layers", "masks", "model", "multi_head", "positional_encoding")

if TYPE_CHECKING:
    from transformer import attention, embeddings, feed_forward, layers, masks, model, multi_head, positional_encoding
    from transformer.attention import check_attention_inputs, masked_softmax, scaled_dot_product_attention
    from transformer.embeddings import TokenEmbedding
    from transformer.feed_forward import PositionwiseFeedForward
    from transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerCache, ResidualBlock
    from transformer.masks import causal_mask, padding_mask
    from transformer.model import DecoderCache, Transformer, TransformerConfig, choose_device, count_parameters
    from transformer.multi_head import KeyValueCache, MultiHeadAttention
    from transformer.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoids
else:

    def __getattr__(name: str) -> object:
        """Load a public name, or a module, when it is first asked for (PEP 562)."""
        if name in _HOME:
            value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List what there is, loaded or not."""
    return sorted({*globals(), *__all__, *_MODULES})


def check_version(expected: str) -> None:
    """Fail unless the installed module belongs to the text that is being read.

    Args:
        expected: Major and minor version that the text was written for, such as ``"0.1"``.

    Raises:
        ValueError: If `expected` is not two numbers with a dot between.
        RuntimeError: If the module's major and minor version are others.
    """
    if not isinstance(expected, str) or [part.isdigit() for part in expected.split(".")] != [True, True]:
        raise ValueError(f"expected is {expected!r}; give major and minor version, such as '0.1'")
    if __version__.split(".")[:2] != expected.split("."):
        raise RuntimeError(
            f"this text needs transformer {expected}, but {__version__} is installed ({__path__[0]}). "
            "In the book's repository run `make book` (or `pip install --upgrade --force-reinstall .`); "
            "in Colab run the notebook's first cell; then restart the kernel."
        )
