# Exported from notebooks/05_4_regularization.py, Section 5.4; edit that file, not this one.
# sha256 of what follows: b40540890ac04cc3
"""Regularization (Section 5.4)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["LabelSmoothingLoss"]


class LabelSmoothingLoss(nn.Module):
    """Cross-entropy against smoothed targets: the true token gets 1−ε, every other class ε/(V−1).

    Padding *positions* do not count. The padding *class* is a class like any other and keeps its ε/(V−1).

    Args:
        label_smoothing: ε_ls, in [0, 1).
        pad_id: Target id of the positions that do not count.
        reduction: "mean" over the real tokens, or "sum" over them.

    Raises:
        ValueError: label_smoothing is outside [0, 1), or reduction is unknown.

    Source: §5.4. The paper gives no formula; ε/(V−1) is its authors' code.
    """

    def __init__(self, label_smoothing: float = 0.1, pad_id: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be in [0, 1).")
        if reduction not in ("mean", "sum"):
            raise ValueError(f'reduction is {reduction!r}; choose "mean" or "sum".')
        self.label_smoothing, self.pad_id, self.reduction = label_smoothing, pad_id, reduction

    def forward(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The smoothed loss, in nats.

        Args:
            logits: Shape (B, m, V), or (tokens, V).
            tgt_out: Target ids, shape (B, m), or (tokens,), int64.

        Returns:
            A scalar; 0 if no position counts.

        Raises:
            TypeError: logits are not floating point, or targets not int64.
            ValueError: The shapes do not fit together, the vocabulary has fewer than two classes or too few for this
                ε, or a target is out of range (checked on the CPU only: on a GPU the check would wait for the device).
        """
        _check_loss_inputs(logits, tgt_out, self.pad_id)
        n_classes = logits.size(-1)
        if self.label_smoothing > (n_classes - 1) / n_classes:
            raise ValueError(
                f"label_smoothing={self.label_smoothing} leaves the true one of {n_classes} classes less than the "
                f"others; it must be at most {(n_classes - 1) / n_classes:.4g}."
            )
        # torch spreads ε over all V classes, the true one included; ε·V/(V−1) of that is our ε over the others.
        smoothing = min(1.0, self.label_smoothing * n_classes / (n_classes - 1))
        return self._cross_entropy(logits, tgt_out, smoothing)

    def nll(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The negative log-likelihood without smoothing, in nats; exp of its mean is the perplexity.

        Args:
            logits: As in `forward`.
            tgt_out: As in `forward`.

        Returns:
            A scalar; 0 if no position counts.

        Raises:
            TypeError: As in `forward`.
            ValueError: As in `forward`.
        """
        _check_loss_inputs(logits, tgt_out, self.pad_id)
        return self._cross_entropy(logits, tgt_out, 0.0)

    def _cross_entropy(self, logits: Tensor, tgt_out: Tensor, smoothing: float) -> Tensor:
        # The sum over a batch overflows float16, and rounds in bfloat16.
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        total = F.cross_entropy(
            logits.flatten(0, -2),  # (tokens, V)
            tgt_out.flatten(),  # (tokens,)
            ignore_index=self.pad_id,
            reduction="sum",
            label_smoothing=smoothing,
        )
        return total if self.reduction == "sum" else total / (tgt_out != self.pad_id).sum().clamp(min=1)


def _check_loss_inputs(logits: Tensor, tgt_out: Tensor, pad_id: int) -> None:
    if not logits.is_floating_point() or tgt_out.dtype != torch.int64:
        raise TypeError(
            f"logits have dtype {logits.dtype} and targets {tgt_out.dtype}; give floating logits and int64 ids."
        )
    if logits.dim() < 2 or logits.shape[:-1] != tgt_out.shape or logits.size(-1) < 2:
        raise ValueError(
            f"logits {tuple(logits.shape)} and targets {tuple(tgt_out.shape)} do not fit together; "
            "expected (B, m, V) with V of at least 2, and (B, m)."
        )
    if tgt_out.device.type != "cpu":
        return
    wrong = tgt_out[((tgt_out < 0) | (tgt_out >= logits.size(-1))) & (tgt_out != pad_id)]
    if wrong.numel():
        raise ValueError(
            f"target id {int(wrong[0])} is not in the vocabulary, which has ids 0 to {logits.size(-1) - 1}; were the "
            "targets made by another tokenizer?"
        )
