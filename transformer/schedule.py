# Exported from notebooks/05_3_optimizer.py, Section 5.3; edit that file, not this one.
# sha256 of what follows: 1a2f83a272bfe90a
"""Optimizer (Section 5.3)."""

import torch
from torch.optim.lr_scheduler import LRScheduler

__all__ = ["make_adam", "noam_rate", "NoamScheduler"]


def make_adam(model: torch.nn.Module) -> torch.optim.Adam:
    """Adam with β₁ = 0.9, β₂ = 0.98 and ε = 10⁻⁹. The learning rate is the scheduler's business.

    Args:
        model: The module whose parameters are trained, on its device.

    Returns:
        The optimizer.

    Source: §5.3.
    """
    on_gpu = next(model.parameters()).is_cuda  # where one fused kernel updates all weights
    return torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=on_gpu or None)


def noam_rate(step: int, d_model: int, warmup_steps: int = 4000) -> float:
    """Give the learning rate of one update: d_model^−0.5 · min(step^−0.5, step · warmup_steps^−1.5).

    Args:
        step: Number of the update, from 1.
        d_model: Width of the model.
        warmup_steps: Updates over which the rate rises.

    Returns:
        The learning rate of this update.

    Raises:
        ValueError: An argument is less than 1.

    Source: §5.3, Eq. 3.
    """
    if min(step, d_model, warmup_steps) < 1:
        raise ValueError(f"step={step}, d_model={d_model} and warmup_steps={warmup_steps} must all be at least 1.")
    return float(d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


class NoamScheduler(LRScheduler):
    """Give update s the rate `noam_rate(s)`, s from 1. Call `step()` after each `optimizer.step()`.

    Args:
        optimizer: Its own learning rates are replaced.
        d_model: Width of the model.
        warmup_steps: Updates over which the rate rises.

    Raises:
        ValueError: d_model or warmup_steps is less than 1.

    Source: §5.3, Eq. 3.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, d_model: int, warmup_steps: int = 4000) -> None:
        self.d_model, self.warmup_steps = d_model, warmup_steps
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rate of the coming update, for each parameter group."""
        rate = noam_rate(self.last_epoch + 1, self.d_model, self.warmup_steps)
        return [rate] * len(self.optimizer.param_groups)
