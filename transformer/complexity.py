# Exported from notebooks/04_why_self_attention.py, Section 4; edit that file, not this one.
# sha256 of what follows: 408be199c8a95ce6
"""Why Self-Attention (Section 4)."""

from transformer.model import TransformerConfig

__all__ = [
    "LAYER_KINDS",
    "layer_operations",
    "sequential_operations",
    "maximum_path_length",
    "encoder_layer_costs",
    "break_even_length",
]


LAYER_KINDS = (
    "self-attention",
    "recurrent",
    "convolutional",
    "restricted self-attention",
    "dilated convolutional",
    "separable convolutional",
)


def layer_operations(kind: str, n: int, d: int, k: int | None = None, r: int | None = None) -> int:
    """Multiply–adds of one layer on one sequence: the first column of Table 1, with its constants.

    Matrix products alone count, as in the table: no softmax, no biases, and no projections around attention. A
    recurrent layer is a plain one, h_t = tanh(W x_t + U h_{t−1} + b). Windows that stick out at the ends count whole.

    Args:
        kind: One of `LAYER_KINDS`: the four of Table 1, or a convolution with dilation or of the separable sort.
        n: Length of the sequence.
        d: Width of its vectors.
        k: Kernel size; convolutions need it, the others ignore it.
        r: Size of the neighbourhood; restricted self-attention needs it, the others ignore it.

    Returns:
        The number; a floating-point operation count (FLOPs) is twice as large.

    Raises:
        ValueError: The kind is unknown, or a size that it needs is not a positive integer.

    Source: §4, Table 1.
    """
    window = _window(kind, n=n, d=d, k=k, r=r)
    if kind == "self-attention":
        return 2 * n * n * d  # scores, weighted sums
    if kind == "restricted self-attention":
        return 2 * window * n * d
    if kind == "recurrent":
        return 2 * n * d * d  # inputs, states
    if kind == "separable convolutional":
        return window * n * d + n * d * d  # along the positions, across the components
    return window * n * d * d


def _window(kind: str, k: int | None, r: int | None, **sizes: int) -> int:
    """How many positions an output of this kind looks at, 1 where the table has neither k nor r; checks all sizes."""
    if kind not in LAYER_KINDS:
        raise ValueError(f"kind is {kind!r}; choose one of {', '.join(map(repr, LAYER_KINDS))}.")
    needed: dict[str, int | None] = dict(sizes)
    if kind.endswith("convolutional"):
        needed["k"] = k
    elif kind.startswith("restricted"):
        needed["r"] = r
    for name, size in needed.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} is {size!r}; for a {kind} layer give a positive integer.")
    return needed.get("k") or needed.get("r") or 1


def sequential_operations(kind: str, n: int) -> int:
    """How many operations of a layer must wait for each other: the second column of Table 1.

    Args:
        kind: One of `LAYER_KINDS`.
        n: Length of the sequence.

    Returns:
        n for a recurrent layer, 1 for all others, up to a constant that does not depend on n.

    Raises:
        ValueError: The kind is unknown, or n is not a positive integer.

    Source: §4, Table 1.
    """
    _window(kind, n=n, k=1, r=1)
    return n if kind == "recurrent" else 1


def maximum_path_length(kind: str, n: int, k: int | None = None, r: int | None = None) -> int:
    """Layers, or steps of a recurrence, that a signal passes between the ends of a sequence: Table 1's last column.

    Convolutions look back over k positions, their own included; in a dilated stack, layer i (from 0) takes every kⁱ-th.
    The neighbourhood of restricted self-attention is centred and reaches ⌊(r−1)/2⌋ to either side.

    Args:
        kind: One of `LAYER_KINDS`.
        n: Length of the sequence.
        k: Kernel size, at least 2; convolutions need it.
        r: Size of the neighbourhood, at least 3; restricted self-attention needs it.

    Returns:
        1 for self-attention; n for a recurrent layer; ⌈(n−1)/(k−1)⌉ for a convolution, ⌈log_k n⌉ for dilated ones;
        ⌈(n−1)/⌊(r−1)/2⌋⌉ for restricted self-attention. At least 1.

    Raises:
        ValueError: The kind is unknown, a size that it needs is not a positive integer, or a window is too small to
            connect positions.

    Source: §4, Table 1.
    """
    window = _window(kind, n=n, k=k, r=r)
    if kind in ("self-attention", "recurrent"):
        return 1 if kind == "self-attention" else n
    stride = reached = (window - 1) // 2 if kind.startswith("restricted") else window - 1
    if not reached:
        raise ValueError(f"a window of {window} reaches no neighbour; give k of at least 2, or r of at least 3.")
    length = 1
    while reached < n - 1:
        length += 1
        stride *= window if kind.startswith("dilated") else 1
        reached += stride
    return length


def encoder_layer_costs(config: TransformerConfig, n: int) -> dict[str, int]:
    """Multiply–adds of one encoder layer on one sequence, by part; matrix products alone.

    Args:
        config: The model's sizes.
        n: Length of the sequence.

    Returns:
        "projections" (of queries, keys, values and output), "scores" (QKᵀ), "weighted sums" (of the values) and
        "feed-forward".

    Raises:
        ValueError: n is not a positive integer.

    Source: §3.1 to §3.3, §4.
    """
    _window("self-attention", n=n, k=None, r=None)
    d, h = config.d_model, config.n_heads
    keys, values = h * (config.d_k or d // h), h * (config.d_v or d // h)
    return {
        "projections": 2 * n * d * (keys + values),
        "scores": n * n * keys,
        "weighted sums": n * n * values,
        "feed-forward": 2 * n * d * config.d_ff,
    }


def break_even_length(config: TransformerConfig) -> int:
    """The shortest sequence for which scores and weighted sums cost an encoder layer at least as much as all its rest.

    Args:
        config: The model's sizes.

    Returns:
        The length, 3072 for the base model, 6 · d_model wherever d_k = d_v = d_model / h and d_ff = 4 · d_model.

    Source: §4.
    """
    one = encoder_layer_costs(config, 1)  # scores and sums grow with n², the rest with n
    return -(-(one["projections"] + one["feed-forward"]) // (one["scores"] + one["weighted sums"]))
