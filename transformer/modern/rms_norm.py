# Exported from notebooks/11_1a_rms_norm.py, Section 11.1a; edit that file, not this one.
# sha256 of what follows: 24cf1bd09ab673b5
"""Root Mean Square Normalization (Section 11.1a)."""

import torch
from torch import Tensor, nn

__all__ = ["RMSNorm"]


class RMSNorm(nn.Module):
    """Divide every vector by the root of its components' mean square; then scale each component by a learned gain.

    Args:
        d_model: Width of a vector.
        eps: Added to the mean square, so that the zero vector stays zero.

    Attributes:
        weight: The gain, shape (d_model,), one at first.

    Source: Zhang and Sennrich (2019), arXiv:1910.07467, Eq. 4; theirs has no eps, ours is the paper's LayerNorm's here.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize every vector.

        Args:
            x: Shape (…, d_model), of a floating-point type.

        Returns:
            Shape (…, d_model), the dtype of x.

        Raises:
            TypeError: x is not of a floating-point type.
            ValueError: x is not d_model wide.
        """
        if not x.is_floating_point():
            raise TypeError(f"x is {x.dtype}; give vectors of a floating-point type, not token ids.")
        if x.size(-1) != self.weight.size(0):
            raise ValueError(f"x has shape {tuple(x.shape)}; its last size must be d_model={self.weight.size(0)}.")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # squares overflow in half precision
        mean_square = wide.square().mean(-1, keepdim=True)  # (…, 1)
        return (wide * (mean_square + self.eps).rsqrt()).to(x.dtype) * self.weight.to(x.dtype)
