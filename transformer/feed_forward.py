# Exported from notebooks/03_3_feed_forward_networks.py, Section 3.3; edit that file, not this one.
# sha256 of what follows: 42adbcca3069aa38
"""Position-wise Feed-Forward Networks (Section 3.3)."""

from torch import Tensor, nn

__all__ = ["PositionwiseFeedForward"]


class PositionwiseFeedForward(nn.Module):
    """FFN(x) = max(0, xW₁ + b₁)W₂ + b₂, applied to each position separately and identically.

    Args:
        d_model: Width of input and output.
        d_ff: Width of the inner layer.

    Source: §3.3, Eq. 2.
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position.

        Args:
            x: Shape (…, d_model).

        Returns:
            Shape (…, d_model).

        Raises:
            TypeError: x is not of a floating-point type.
            ValueError: x is not d_model wide.
        """
        if not x.is_floating_point():
            raise TypeError(f"x is {x.dtype}; give vectors of a floating-point type, not token ids.")
        if x.size(-1) != self.w_1.in_features:
            raise ValueError(f"x has shape {tuple(x.shape)}; its last size must be d_model={self.w_1.in_features}.")
        return self.w_2(self.w_1(x).relu())  # (…, d_model) → (…, d_ff) → (…, d_model)
