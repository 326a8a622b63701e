# Exported from notebooks/09_the_transformer_in_numpy.py, Section 9; edit that file, not this one.
# sha256 of what follows: 97db43e91811549c
"""The Transformer in NumPy (Section 9)."""

from typing import Any

import numpy as np

__all__ = ["NumpyTransformer"]


_Tree = dict[str, Any]  # arrays by name, or trees of them


def _nest(flat: dict[str, np.ndarray]) -> _Tree:
    """{"a.b": x} → {"a": {"b": x}}."""
    tree: _Tree = {}
    for name, array in flat.items():
        *path, last = name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = array
    return tree


def _flatten(tree: _Tree, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": x}} → {"a.b": x}."""
    flat: dict[str, Any] = {}
    for name, branch in tree.items():
        flat |= _flatten(branch, f"{prefix}{name}.") if isinstance(branch, dict) else {prefix + name: branch}
    return flat


def _rows(x: np.ndarray) -> np.ndarray:
    """All positions of all sentences below each other."""
    return x.reshape(-1, x.shape[-1])  # (B, n, d) → (B·n, d)


def _linear(x: np.ndarray, w: _Tree) -> tuple[np.ndarray, Any]:
    """Compute xWᵀ + b."""
    return x @ w["weight"].T + w["bias"], (x, w["weight"])  # (…, in) → (…, out)


def _linear_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    x, weight = kept
    d_weight = _rows(d_y).T @ _rows(x)  # (out, in)
    return d_y @ weight, {"weight": d_weight, "bias": _rows(d_y).sum(axis=0)}


def _masks(src: np.ndarray, tgt_in: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Who may be attended to in the source (B, 1, 1, n), and who by whom in the target (m, m)."""
    m = tgt_in.shape[1]
    return (src != pad_id)[:, None, None, :], np.tril(np.ones((m, m), dtype=bool))


def _softmax(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, 0 where the mask is False; a row that may attend to nothing is all 0."""
    scores = np.where(mask, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores - np.where(np.isneginf(largest), 0.0, largest))  # no exponent above 0, so no overflow
    total = exps.sum(axis=-1, keepdims=True)
    return exps / np.where(total == 0, 1.0, total)


def _softmax_backward(d_p: np.ndarray, p: np.ndarray) -> np.ndarray:
    return p * (d_p - (p * d_p).sum(axis=-1, keepdims=True))  # the shape of the scores


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """Equation (1)."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])  # (B, h, m, n)
    p = _softmax(scores, mask)
    return p @ v, (q, k, v, p)  # (B, h, m, d_v)


def _attention_backward(d_out: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v, p = kept
    d_values = p.swapaxes(-1, -2) @ d_out  # (B, h, n, d_v)
    d_scores = _softmax_backward(d_out @ v.swapaxes(-1, -2), p) / np.sqrt(q.shape[-1])  # (B, h, m, n)
    return d_scores @ k, d_scores.swapaxes(-1, -2) @ q, d_values  # the shapes of q, k, v


def _split(x: np.ndarray, n_heads: int) -> np.ndarray:
    """(B, n, h·d) → (B, h, n, d)."""
    return x.reshape(*x.shape[:2], n_heads, -1).swapaxes(1, 2)


def _join(heads: np.ndarray) -> np.ndarray:
    """(B, h, n, d) → (B, n, h·d)."""
    return heads.swapaxes(1, 2).reshape(heads.shape[0], heads.shape[2], -1)


def _multi_head(x: np.ndarray, memory: np.ndarray, w: _Tree, n_heads: int, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """Attend from every position of x (B, m, d_model) to those of memory (B, n, d_model)."""
    q, kept_q = _linear(x, w["w_q"])
    k, kept_k = _linear(memory, w["w_k"])
    v, kept_v = _linear(memory, w["w_v"])
    heads, kept_heads = _attention(_split(q, n_heads), _split(k, n_heads), _split(v, n_heads), mask)
    y, kept_o = _linear(_join(heads), w["w_o"])
    return y, (n_heads, kept_q, kept_k, kept_v, kept_heads, kept_o)


def _multi_head_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, _Tree]:
    n_heads, kept_q, kept_k, kept_v, kept_heads, kept_o = kept
    d_joined, d_w_o = _linear_backward(d_y, kept_o)
    d_queries, d_keys, d_values = _attention_backward(_split(d_joined, n_heads), kept_heads)
    d_x, d_w_q = _linear_backward(_join(d_queries), kept_q)
    d_memory_k, d_w_k = _linear_backward(_join(d_keys), kept_k)
    d_memory_v, d_w_v = _linear_backward(_join(d_values), kept_v)
    return d_x, d_memory_k + d_memory_v, {"w_q": d_w_q, "w_k": d_w_k, "w_v": d_w_v, "w_o": d_w_o}


def _layer_norm(x: np.ndarray, w: _Tree) -> tuple[np.ndarray, Any]:
    """Every position to mean 0 and variance 1, then gain and shift; ε is torch's."""
    centred = x - x.mean(axis=-1, keepdims=True)
    r = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)  # (B, n, 1)
    x_hat = centred * r
    return x_hat * w["weight"] + w["bias"], (x_hat, r, w["weight"])


def _layer_norm_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    x_hat, r, gain = kept
    d_x_hat = d_y * gain
    along = (d_x_hat * x_hat).mean(axis=-1, keepdims=True)
    d_x = r * (d_x_hat - d_x_hat.mean(axis=-1, keepdims=True) - x_hat * along)
    return d_x, {"weight": _rows(d_y * x_hat).sum(axis=0), "bias": _rows(d_y).sum(axis=0)}


def _feed_forward(x: np.ndarray, w: _Tree) -> tuple[np.ndarray, Any]:
    """Equation (2)."""
    inner, kept_1 = _linear(x, w["w_1"])  # (B, n, d_ff)
    y, kept_2 = _linear(np.maximum(inner, 0), w["w_2"])  # (B, n, d_model)
    return y, (kept_1, inner > 0, kept_2)


def _feed_forward_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    kept_1, positive, kept_2 = kept
    d_inner, d_w_2 = _linear_backward(d_y, kept_2)
    d_x, d_w_1 = _linear_backward(d_inner * positive, kept_1)
    return d_x, {"w_1": d_w_1, "w_2": d_w_2}


def _encoder_layer(x: np.ndarray, w: _Tree, n_heads: int, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """Self-attention and feed-forward network, each with a residual connection and a norm (post-norm)."""
    y, kept_attention = _multi_head(x, x, w["self_attention"], n_heads, mask)
    x, kept_norm_1 = _layer_norm(x + y, w["attention_block"]["norm"])
    y, kept_ffn = _feed_forward(x, w["feed_forward"])
    x, kept_norm_2 = _layer_norm(x + y, w["feed_forward_block"]["norm"])
    return x, (kept_attention, kept_norm_1, kept_ffn, kept_norm_2)


def _encoder_layer_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    kept_attention, kept_norm_1, kept_ffn, kept_norm_2 = kept
    d_sum, d_norm_2 = _layer_norm_backward(d_y, kept_norm_2)
    d_x, d_ffn = _feed_forward_backward(d_sum, kept_ffn)
    d_sum, d_norm_1 = _layer_norm_backward(d_sum + d_x, kept_norm_1)
    d_x, d_memory, d_attention = _multi_head_backward(d_sum, kept_attention)
    gradients = {
        "self_attention": d_attention,
        "attention_block": {"norm": d_norm_1},
        "feed_forward": d_ffn,
        "feed_forward_block": {"norm": d_norm_2},
    }
    return d_sum + d_x + d_memory, gradients


def _decoder_layer(
    x: np.ndarray, memory: np.ndarray, w: _Tree, n_heads: int, tgt_mask: np.ndarray, memory_mask: np.ndarray
) -> tuple[np.ndarray, Any]:
    """Masked self-attention, attention over the memory, feed-forward network; post-norm."""
    y, kept_self = _multi_head(x, x, w["self_attention"], n_heads, tgt_mask)
    x, kept_norm_1 = _layer_norm(x + y, w["self_attention_block"]["norm"])
    y, kept_memory = _multi_head(x, memory, w["memory_attention"], n_heads, memory_mask)
    x, kept_norm_2 = _layer_norm(x + y, w["memory_attention_block"]["norm"])
    y, kept_ffn = _feed_forward(x, w["feed_forward"])
    x, kept_norm_3 = _layer_norm(x + y, w["feed_forward_block"]["norm"])
    return x, (kept_self, kept_norm_1, kept_memory, kept_norm_2, kept_ffn, kept_norm_3)


def _decoder_layer_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, _Tree]:
    kept_self, kept_norm_1, kept_memory, kept_norm_2, kept_ffn, kept_norm_3 = kept
    d_sum, d_norm_3 = _layer_norm_backward(d_y, kept_norm_3)
    d_x, d_ffn = _feed_forward_backward(d_sum, kept_ffn)
    d_sum, d_norm_2 = _layer_norm_backward(d_sum + d_x, kept_norm_2)
    d_x, d_memory, d_memory_attention = _multi_head_backward(d_sum, kept_memory)
    d_sum, d_norm_1 = _layer_norm_backward(d_sum + d_x, kept_norm_1)
    d_x, d_own, d_self_attention = _multi_head_backward(d_sum, kept_self)
    gradients = {
        "self_attention": d_self_attention,
        "self_attention_block": {"norm": d_norm_1},
        "memory_attention": d_memory_attention,
        "memory_attention_block": {"norm": d_norm_2},
        "feed_forward": d_ffn,
        "feed_forward_block": {"norm": d_norm_3},
    }
    return d_sum + d_x + d_own, d_memory, gradients


def _encoder(x: np.ndarray, w: _Tree, n_heads: int, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """The embedded source (B, n, d_model) → the memory (B, n, d_model)."""
    kept = []
    for i in range(len(w["layers"])):
        x, kept_layer = _encoder_layer(x, w["layers"][str(i)], n_heads, mask)
        kept.append(kept_layer)
    return x, kept


def _encoder_backward(d_memory: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    d_x, gradients = d_memory, {}
    for i in reversed(range(len(kept))):
        d_x, gradients[str(i)] = _encoder_layer_backward(d_x, kept[i])
    return d_x, {"layers": gradients}


def _decoder(
    x: np.ndarray, memory: np.ndarray, w: _Tree, n_heads: int, tgt_mask: np.ndarray, memory_mask: np.ndarray
) -> tuple[np.ndarray, Any]:
    """The embedded target (B, m, d_model) → its hidden states (B, m, d_model)."""
    kept = []
    for i in range(len(w["layers"])):
        x, kept_layer = _decoder_layer(x, memory, w["layers"][str(i)], n_heads, tgt_mask, memory_mask)
        kept.append(kept_layer)
    return x, kept


def _decoder_backward(d_hidden: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, _Tree]:
    d_x, gradients = d_hidden, {}
    d_memory: Any = 0  # every layer adds to it
    for i in reversed(range(len(kept))):
        d_x, d_from_layer, gradients[str(i)] = _decoder_layer_backward(d_x, kept[i])
        d_memory = d_memory + d_from_layer
    return d_x, d_memory, {"layers": gradients}


def _embed(ids: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    """Scaled vectors of the tokens plus sinusoids of their positions: (B, n) → (B, n, d_model)."""
    n, d_model = ids.shape[1], embedding.shape[1]
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)  # (n, d_model / 2)
    positions = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(n, d_model)  # sine, cosine, sine, …
    return embedding[ids] * np.sqrt(d_model) + positions


def _embed_backward(d_x: np.ndarray, ids: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    d_embedding = np.zeros_like(embedding)  # (V, d_model)
    np.add.at(d_embedding, ids, d_x * np.sqrt(embedding.shape[1]))
    return d_embedding


def _smoothed_loss(
    logits: np.ndarray, tgt_out: np.ndarray, label_smoothing: float, pad_id: int
) -> tuple[np.ndarray, Any]:
    """Mean over the real tokens of −Σ q ln p, in nats."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # (B, m, V)
    q = np.full(logits.shape, label_smoothing / (logits.shape[-1] - 1))  # (B, m, V)
    np.put_along_axis(q, tgt_out[..., None], 1 - label_smoothing, axis=-1)
    real = (tgt_out != pad_id)[..., None]  # (B, m, 1)
    share = real / max(real.sum(), 1)  # of a token in the mean
    return -(share * q * log_p).sum(), (np.exp(log_p), q, share)


def _smoothed_loss_backward(kept: Any) -> np.ndarray:
    p, q, share = kept
    return share * (p - q)  # (B, m, V)


def _transformer(src: np.ndarray, tgt_in: np.ndarray, w: _Tree, n_heads: int, pad_id: int) -> tuple[np.ndarray, Any]:
    """Figure 1: ids (B, n) and (B, m) → logits (B, m, V)."""
    embedding = w["embedding"]["weight"]
    src_mask, tgt_mask = _masks(src, tgt_in, pad_id)
    memory, kept_encoder = _encoder(_embed(src, embedding), w["encoder"], n_heads, src_mask)
    hidden, kept_decoder = _decoder(_embed(tgt_in, embedding), memory, w["decoder"], n_heads, tgt_mask, src_mask)
    return hidden @ embedding.T, (src, tgt_in, hidden, embedding, kept_encoder, kept_decoder)


def _transformer_backward(d_logits: np.ndarray, kept: Any) -> tuple[dict[str, np.ndarray], _Tree]:
    """The gradient of the tied matrix from each of its three places, and the gradients of both stacks."""
    src, tgt_in, hidden, embedding, kept_encoder, kept_decoder = kept
    d_tgt, d_memory, d_decoder = _decoder_backward(
        d_logits @ embedding, kept_decoder
    )  # (B, m, d_model), (B, n, d_model)
    d_src, d_encoder = _encoder_backward(d_memory, kept_encoder)
    places = {
        "source embedding": _embed_backward(d_src, src, embedding),
        "target embedding": _embed_backward(d_tgt, tgt_in, embedding),
        "output": _rows(d_logits).T @ _rows(hidden),  # (V, d_model), like the other two
    }
    return places, {"encoder": d_encoder, "decoder": d_decoder}


def _expected_shapes(flat: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a model as wide and as deep as this one."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in flat or flat[name].ndim != 2:
            raise ValueError(f"the weights have no matrix {name}; give the whole state_dict() of a Transformer.")
        return flat[name].shape

    def linear(n_in: int, n_out: int) -> _Tree:
        return {"weight": (n_out, n_in), "bias": (n_out,)}

    vocab_size, d = shape("embedding.weight")
    first = "encoder.layers.0."
    keys, values = (shape(f"{first}self_attention.{name}.weight")[0] for name in ("w_k", "w_v"))  # h·d_k, h·d_v
    d_ff = shape(f"{first}feed_forward.w_1.weight")[0]
    n_layers = len({name.split(".")[2] for name in flat if name.startswith("encoder.layers.")})

    attention = {"w_q": linear(d, keys), "w_k": linear(d, keys), "w_v": linear(d, values), "w_o": linear(values, d)}
    ffn, block = {"w_1": linear(d, d_ff), "w_2": linear(d_ff, d)}, {"norm": {"weight": (d,), "bias": (d,)}}
    encoder = {"self_attention": attention, "feed_forward": ffn, "attention_block": block, "feed_forward_block": block}
    decoder = {"self_attention": attention, "memory_attention": attention, "feed_forward": ffn} | {
        f"{name}_block": block for name in ("self_attention", "memory_attention", "feed_forward")
    }
    sides = {"encoder": encoder, "decoder": decoder}
    stacks = {side: {"layers": {str(i): layer for i in range(n_layers)}} for side, layer in sides.items()}
    return _flatten({"embedding": {"weight": (vocab_size, d)}, **stacks})


def _check_weights(flat: dict[str, np.ndarray]) -> None:
    expected = _expected_shapes(flat)
    reasons = {
        "encoder.norm.": "pre-norm",
        "decoder.norm.": "pre-norm",
        "src_positions.": "learned positions",
        "tgt_positions.": "learned positions",
        "tgt_embedding.": "untied embeddings",
        "output.": "untied embeddings",
    }
    for name in flat:
        for start, reason in reasons.items():
            if name.startswith(start):
                raise ValueError(
                    f"{name} belongs to a model with {reason}; this one has post-norm, sinusoids and one tied matrix, "
                    "so give weights of such a model."
                )
        if name not in expected:
            raise ValueError(f"{name} is not a weight of this model; leave it out, or mend its name.")
    for name, shape in expected.items():
        if name not in flat:
            raise ValueError(f"the weights lack {name}; give the whole state_dict() of a Transformer.")
        if flat[name].shape != shape:
            raise ValueError(f"{name} has shape {flat[name].shape}; beside the other weights it must be {shape}.")
    if flat["embedding.weight"].shape[1] % 2:
        raise ValueError("d_model is odd; sines and cosines come in pairs, so give weights of an even width.")


def _check_ids(name: str, ids: np.ndarray, vocab_size: int) -> None:
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        raise TypeError(f"{name} is {type(ids).__name__}; give an array of integers, as a tokenizer makes them.")
    if ids.ndim != 2 or ids.size == 0:
        raise ValueError(f"{name} has shape {ids.shape}; expected a non-empty (batch, length).")
    if not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError(
            f"{name} ranges from {ids.min()} to {ids.max()}, but the vocabulary has ids 0 to {vocab_size - 1}; was it "
            "made by another tokenizer?"
        )


class NumpyTransformer:
    """The Transformer of Figure 1 in plain NumPy, in float64, with its backward pass written by hand.

    Post-norm, sinusoidal positions, one matrix for both embeddings and the output; no dropout.

    Args:
        weights: Arrays under the names of torch's `Transformer.state_dict()`. They are copied.
        n_heads: h of the model that the weights come from.
        pad_id: Fills short sentences up.
        bos_id: Begins every target.
        eos_id: Ends every sentence.

    Attributes:
        weights: The float64 weights as a tree: weights["encoder"]["layers"]["0"] and so on.

    Raises:
        ValueError: A weight is missing, unknown or of the wrong shape; n_heads does not divide the projections; or a
            special id is not in the vocabulary.

    Source: §3, Figure 1; §5.4 for the loss. The gradients are the chain rule's.
    """

    def __init__(
        self, weights: dict[str, np.ndarray], n_heads: int, pad_id: int = 0, bos_id: int = 1, eos_id: int = 2
    ) -> None:
        flat = {name: np.array(weight, dtype=np.float64) for name, weight in weights.items()}
        _check_weights(flat)
        for name in ("w_k", "w_v"):
            rows = flat[f"encoder.layers.0.self_attention.{name}.weight"].shape[0]
            if n_heads < 1 or rows % n_heads:
                raise ValueError(
                    f"n_heads={n_heads} does not divide the {rows} rows of {name}; give the model's own h."
                )
        self.vocab_size = len(flat["embedding.weight"])
        special = (pad_id, bos_id, eos_id)
        if len(set(special)) < 3 or not 0 <= min(special) <= max(special) < self.vocab_size:
            raise ValueError(f"pad_id, bos_id, eos_id is {special}; give three different ids below {self.vocab_size}.")
        self.weights, self.n_heads = _nest(flat), n_heads
        self.pad_id, self.bos_id, self.eos_id = special

    def logits(self, src: np.ndarray, tgt_in: np.ndarray) -> np.ndarray:
        """Logits of the next token at every target position.

        Args:
            src: Source ids, shape (B, n), padded with pad_id.
            tgt_in: Target ids shifted right, shape (B, m): bos_id first, padded on the right.

        Returns:
            Shape (B, m, V), float64. Those at padded positions mean nothing.

        Raises:
            TypeError: ids are not an array of integers.
            ValueError: A shape is wrong, or an id is not in the vocabulary.
        """
        return self._run(src, tgt_in)[0]

    def loss_and_gradients(
        self, src: np.ndarray, tgt_in: np.ndarray, tgt_out: np.ndarray, label_smoothing: float = 0.1
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The smoothed loss of a batch, and its derivative by every weight.

        Args:
            src: Source ids, shape (B, n).
            tgt_in: What the decoder reads, shape (B, m).
            tgt_out: What it should say, shape (B, m); pad_id where nothing counts.
            label_smoothing: ε, in [0, 1).

        Returns:
            The mean loss over the real tokens, in nats, and gradients under the names of the weights.

        Raises:
            TypeError: ids are not an array of integers.
            ValueError: A shape is wrong, an id is not in the vocabulary, or label_smoothing is out of range.
        """
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be in [0, 1).")
        logits, kept = self._run(src, tgt_in)
        _check_ids("tgt_out", tgt_out, self.vocab_size)
        if tgt_out.shape != tgt_in.shape:
            raise ValueError(f"tgt_in has shape {tgt_in.shape} and tgt_out {tgt_out.shape}; give them the same shape.")
        loss, kept_loss = _smoothed_loss(logits, tgt_out, label_smoothing, self.pad_id)
        places, stacks = _transformer_backward(_smoothed_loss_backward(kept_loss), kept)
        return float(loss), _flatten({"embedding": {"weight": sum(places.values())}, **stacks})

    def greedy(self, src: np.ndarray, max_new_tokens: int) -> list[list[int]]:
        """Take the most probable token at every step until the end token.

        There is no cache: each step computes all target positions anew.

        Args:
            src: Source ids, shape (B, n), padded with pad_id.
            max_new_tokens: Most tokens to generate per sentence.

        Returns:
            The ids of each sentence, without begin and end.

        Raises:
            TypeError: ids are not an array of integers.
            ValueError: A shape is wrong, an id is not in the vocabulary, or max_new_tokens is less than 1.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
        _check_ids("src", src, self.vocab_size)
        w, embedding = self.weights, self.weights["embedding"]["weight"]
        tgt, ended = np.full((len(src), 1), self.bos_id), np.zeros(len(src), dtype=bool)
        memory, _ = _encoder(_embed(src, embedding), w["encoder"], self.n_heads, _masks(src, tgt, self.pad_id)[0])
        while tgt.shape[1] <= max_new_tokens and not ended.all():
            src_mask, tgt_mask = _masks(src, tgt, self.pad_id)
            hidden, _ = _decoder(_embed(tgt, embedding), memory, w["decoder"], self.n_heads, tgt_mask, src_mask)
            chosen = (hidden[:, -1] @ embedding.T).argmax(axis=-1)  # (B,)
            ended |= chosen == self.eos_id
            tgt = np.concatenate([tgt, chosen[:, None]], axis=1)  # what a row writes after its end is cut off below
        sentences = [[*ids, self.eos_id] for ids in tgt[:, 1:].tolist()]
        return [ids[: ids.index(self.eos_id)] for ids in sentences]

    def _run(self, src: np.ndarray, tgt_in: np.ndarray) -> tuple[np.ndarray, Any]:
        _check_ids("src", src, self.vocab_size)
        _check_ids("tgt_in", tgt_in, self.vocab_size)
        if len(src) != len(tgt_in):
            raise ValueError(f"src has {len(src)} sentences and tgt_in {len(tgt_in)}; give pairs.")
        return _transformer(src, tgt_in, self.weights, self.n_heads, self.pad_id)
