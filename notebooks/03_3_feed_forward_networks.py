# %% [markdown]
# # 3.3 Position-wise Feed-Forward Networks

# %%
#| default_exp feed_forward

# %%
import transformer

transformer.check_version("0.1")

# %%
#| export
from torch import Tensor, nn


# %%
#| export
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
