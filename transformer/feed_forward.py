# Exported from notebooks/03_3_feed_forward_networks.py, Section 3.3; edit that file, not this one.
# sha256 of what follows: ad923e786fccde35
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
        """
        return self.w_2(self.w_1(x).relu())  # (…, d_model) → (…, d_ff) → (…, d_model)
