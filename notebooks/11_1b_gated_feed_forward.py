# %% [markdown]
# # 11.1b The Gated Feed-Forward Network
#
# The feed-forward network of 2017 has one hidden layer and a ReLU. Today's has two linear maps to the hidden layer, and multiplies them: one of them, through a smooth cousin of the ReLU, opens and closes the other.

# %%
#| default_exp modern.gated_feed_forward

# %%
import transformer

transformer.check_version("0.1")

# %%
#| export
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn


# %%
#| export
class GatedFeedForward(nn.Module):
    """FFN_SwiGLU(x) = (Swish(xW) ⊙ xV)W₂, with Swish(z) = z · sigmoid(z); no biases.

    Args:
        d_model: Width of input and output.
        d_ff: Width of the inner layer.

    Raises:
        ValueError: d_ff is less than 1.

    Source: Shazeer (2020), arXiv:2002.05202, Eq. 6.
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        if d_ff < 1:
            raise ValueError(f"d_ff is {d_ff}; the inner layer needs at least one unit.")
        self.w = nn.Linear(d_model, d_ff, bias=False)
        self.v = nn.Linear(d_model, d_ff, bias=False)
        self.w_2 = nn.Linear(d_ff, d_model, bias=False)

    @classmethod
    def as_large_as(cls, d_model: int, d_ff: int) -> Self:
        """Make one with about as many parameters as a network of d_ff units without gate: two thirds of the units.

        Args:
            d_model: Width of input and output.
            d_ff: Width of the inner layer of the network without gate.

        Returns:
            The network; its inner width is 2 d_ff / 3, rounded down.

        Source: Shazeer (2020), arXiv:2002.05202, Section 2.
        """
        return cls(d_model, 2 * d_ff // 3)

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
        if x.size(-1) != self.w.in_features:
            raise ValueError(f"x has shape {tuple(x.shape)}; its last size must be d_model={self.w.in_features}.")
        return self.w_2(F.silu(self.w(x)) * self.v(x))  # (…, d_model) → (…, d_ff) → (…, d_model)
