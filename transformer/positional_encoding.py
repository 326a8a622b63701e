# Exported from notebooks/03_5_positional_encoding.py, Section 3.5; edit that file, not this one.
# sha256 of what follows: 24b7d113d3cdae17
"""Positional Encoding (Section 3.5)."""

import torch
from torch import Tensor, nn

__all__ = ["sinusoids", "SinusoidalPositionalEncoding", "LearnedPositionalEncoding"]


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


def _check_embeddings(x: Tensor, d_model: int, start: int) -> None:
    if x.dim() != 3 or x.size(-1) != d_model:
        raise ValueError(f"the embeddings have shape {tuple(x.shape)}; expected (batch, length, {d_model}).")
    if start < 0:
        raise ValueError(f"start is {start}; positions count from 0.")


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
