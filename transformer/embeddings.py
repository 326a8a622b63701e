# Exported from notebooks/03_4_embeddings_and_softmax.py, Section 3.4; edit that file, not this one.
# sha256 of what follows: f0e28ba47ad73f36
"""Embeddings and Softmax (Section 3.4)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["TokenEmbedding"]


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
