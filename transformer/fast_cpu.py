# Exported from notebooks/A6_faster_on_a_cpu.py, Appendix A6; edit that file, not this one.
# sha256 of what follows: 0ad270609d64ebd1
"""Faster on a CPU (Appendix A6)."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transformer.embeddings import TokenEmbedding
from transformer.feed_forward import PositionwiseFeedForward
from transformer.layers import DecoderLayer, LayerCache
from transformer.model import DecoderCache, Transformer
from transformer.multi_head import MultiHeadAttention

__all__ = ["BeamCache", "FastTransformer", "FastDropout", "use_fast_dropout", "use_one_dnn"]


def _one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b by oneDNN, in float32; the weight may be packed."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _packed(weight: Tensor) -> Tensor | None:
    """A matrix (outputs, inputs) in oneDNN's own order; None where that cannot be had."""
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    if pack is None or weight.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return None
    return pack(weight)


class _Linear:
    """A linear layer that has been trained."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        packed = _packed(weight)
        self.multiply = F.linear if packed is None else _one_dnn
        self.weight = weight.t().contiguous().t() if packed is None else packed  # in memory, a row per input
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():  # oneDNN would lose it, and nobody would say so
            raise ValueError("FastTransformer makes no gradients; use the model, or torch.inference_mode().")
        return self.multiply(x, self.weight, self.bias)  # (…, inputs) → (…, outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Linear":
        return self  # it never changes, and PyTorch cannot copy what is packed


def _together(*layers: nn.Linear) -> _Linear:
    """Linear layers that read the same input, as one."""
    weights, biases = ([getattr(layer, name).detach() for layer in layers] for name in ("weight", "bias"))
    return _Linear(torch.cat(weights), torch.cat(biases))


class BeamCache(DecoderCache):
    """The cache of a beam: one row a sentence, and for each of its hypotheses the slots that hold its past.

    Rows of `select` are hypotheses, as many for every sentence, those of a sentence one after the other.

    Args:
        layers: One cache per decoder layer, with a row per sentence.
        memory_mask: Shape (S, 1, 1, n): 0 where the source holds a token, −∞ elsewhere; or None.

    Attributes:
        past: Shape (S, w, slots): 0 where a slot holds a hypothesis's past, −∞ elsewhere.
    """

    def __init__(self, layers: list[LayerCache], memory_mask: Tensor | None) -> None:
        super().__init__(layers, memory_mask)
        memory = layers[0].memory_keys
        self.past = memory.new_zeros(len(memory), 1, 0)
        self._length = 0

    @property
    def length(self) -> int:
        """Number of target positions decoded so far: the position of the next token."""
        return self._length

    def select(self, index: Tensor, same_source: bool = False) -> None:
        """Keep these hypotheses, in this order; one may be repeated.

        Args:
            index: Row numbers, shape (B',), int64.
            same_source: Every row takes the place of one with the same source.

        Raises:
            ValueError: A sentence keeps more hypotheses than another, or they are not together.
        """
        width = self.past.size(1)
        sentences, counts = (index // width).unique_consecutive(return_counts=True)
        if len(counts.unique()) != 1 or len(sentences.unique()) < len(sentences):
            raise ValueError("a beam keeps as many hypotheses of every sentence, one after the other; see select.")
        self.past = self.past.flatten(0, 1)[index].unflatten(0, (len(sentences), -1))
        if not same_source and not sentences.equal(torch.arange(len(self.layers[0].memory_keys))):
            super().select(sentences)

    def begin_step(self) -> None:
        """Take a slot for every hypothesis. Each has its own new slot in its past, and not those of the others."""
        sentences, width, slots = self.past.shape
        new = self.past.new_full((width, width), -torch.inf).fill_diagonal_(0.0)
        self.past = torch.cat([self.past, new.expand(sentences, width, width)], dim=-1)
        self._length += 1
        for layer in self.layers:
            own = layer.own
            if slots + width > own.keys.size(2):  # twice the room, so that copying it is rare
                room = (0, 0, 0, slots + width)
                own.keys, own.values = F.pad(own.keys, room), F.pad(own.values, room)


class _Step:
    """One decoder layer, for one new token of each hypothesis."""

    def __init__(self, layer: DecoderLayer) -> None:
        own, other, ffn = layer.self_attention, layer.memory_attention, layer.feed_forward
        if not (type(own) is type(other) is MultiHeadAttention and type(ffn) is PositionwiseFeedForward):
            raise TypeError("a layer has parts other than the paper's, which FastTransformer would not compute.")
        self.layer, self.n_heads = layer, own.n_heads
        self.widths = [own.n_heads * own.d_k, own.n_heads * own.d_k, own.n_heads * own.d_v]
        self.w_qkv, self.w_o = _together(own.w_q, own.w_k, own.w_v), _together(own.w_o)
        self.memory_w_q, self.memory_w_o = _together(other.w_q), _together(other.w_o)
        self.w_1, self.w_2 = _together(ffn.w_1), _together(ffn.w_2)

    def __call__(self, x: Tensor, cache: LayerCache, past: Tensor | None, memory_mask: Tensor | None) -> Tensor:
        """From and to (S·w, d_model); past (S, 1, w, slots), memory_mask (S, 1, 1, n)."""
        sentences, layer = len(cache.memory_keys), self.layer

        def split(x: Tensor) -> Tensor:
            return x.view(sentences, -1, self.n_heads, x.size(-1) // self.n_heads).transpose(1, 2)  # (S, h, w, d_k)

        def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
            heads = F.scaled_dot_product_attention(split(query), keys, values, mask)  # (S, h, w, d_v)
            return heads.transpose(1, 2).reshape(len(query), -1)  # (S·w, h·d_v)

        def attend_self(x: Tensor) -> Tensor:
            query, key, value = self.w_qkv(x).split(self.widths, dim=-1)
            return self.w_o(attend(query, *cache.own.append(split(key), split(value)), past))

        def attend_memory(x: Tensor) -> Tensor:
            heads = attend(self.memory_w_q(x), cache.memory_keys, cache.memory_values, memory_mask)
            return self.memory_w_o(heads)

        x = layer.self_attention_block(x, attend_self)
        x = layer.memory_attention_block(x, attend_memory)
        return layer.feed_forward_block(x, lambda x: self.w_2(self.w_1(x).relu_()))


class FastTransformer(Transformer):
    """A trained model that decodes faster on a CPU. What it computes is the same up to rounding.

    It shares all parts with the model, and has a second copy of the decoder's matrices, made now: when weights change,
    also by `load_state_dict`, make it anew. `encode`, and `decode` without a cache, are the model's; all else refuses
    gradients.

    Args:
        model: On the CPU and in evaluation mode.

    Raises:
        TypeError: The model is of a class made from Transformer, or a layer has parts other than the paper's.
        ValueError: The model is on another device or in training mode.

    Source: not in the paper.
    """

    def __init__(self, model: Transformer) -> None:
        if type(model) is not Transformer:
            raise TypeError(f"a {type(model).__name__} may compute something else; give a plain Transformer.")
        device = next(model.parameters()).device
        if device.type != "cpu" or model.training:
            mode = "training" if model.training else "evaluation"
            raise ValueError(f"the model is on {device} in {mode} mode; move it to the CPU and call eval() first.")
        nn.Module.__init__(self)
        self.config = model.config
        for name, part in model.named_children():
            self.add_module(name, part)
        layers: Any = model.decoder.layers  # a ModuleList forgets that these are decoder layers
        self._steps = [_Step(layer) for layer in layers]
        self._projection = _Linear((model.embedding if model.config.tie_embeddings else model.output).weight.detach())
        self.eval()

    def new_cache(self, memory: Tensor, memory_mask: Tensor | None, max_new_tokens: int) -> BeamCache:
        """Prepare to generate, as `Transformer.new_cache`.

        Args:
            memory: From `encode`, shape (S, n, d_model).
            memory_mask: Bool, (S, 1, 1, n), or None.
            max_new_tokens: Number of target positions to begin with; there is room for more.

        Returns:
            An empty cache.

        Raises:
            ValueError: max_new_tokens is less than 1, or weights of attention are recorded, which only the model makes.
        """
        if any(part.on_weights is not None for part in self.modules() if isinstance(part, MultiHeadAttention)):
            raise ValueError("FastTransformer makes no weights of attention to record; record those of the model.")
        made = super().new_cache(memory, memory_mask, max_new_tokens)
        if memory_mask is not None:  # as numbers to add, which attention would make of it in every step and layer
            memory_mask = memory.new_zeros(memory_mask.shape).masked_fill(~memory_mask, -torch.inf)
        return BeamCache(made.layers, memory_mask)

    def decode(
        self,
        tgt_in: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Hidden states, as `Transformer.decode`; with a cache, of one new position a row.

        Args:
            tgt_in: Target ids, shape (B, m); with a cache (S·w, 1).
            memory: Left out with a cache, and so are the masks.
            tgt_mask: As in `Transformer.decode`.
            memory_mask: As in `Transformer.decode`.
            cache: From `new_cache`; it is extended by one position.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: Neither or both of memory and cache are given, the shapes do not fit together, or a gradient is
                asked for.
        """
        if cache is None or memory is not None:
            return super().decode(tgt_in, memory, tgt_mask, memory_mask, cache)
        if not isinstance(cache, BeamCache) or tgt_in.shape != (cache.past.shape[:2].numel(), 1):
            raise ValueError(f"tgt_in is {tuple(tgt_in.shape)}; with a cache of this model's own, give one id a row.")
        embedding = self.embedding if self.config.tie_embeddings else self.tgt_embedding
        x = self.tgt_positions(embedding(tgt_in), cache.length)[:, 0]  # (S·w, d_model)
        cache.begin_step()
        past = None if cache.past.size(2) == cache.length else cache.past[:, None]  # with a slot a step, none is hidden
        for step, layer in zip(self._steps, cache.layers, strict=True):
            x = step(x, layer, past, cache.memory_mask)
        return (x if self.decoder.norm is None else self.decoder.norm(x))[:, None]

    def output_projection(self, hidden: Tensor) -> Tensor:
        """The pre-softmax linear transformation.

        Args:
            hidden: Shape (B, m, d_model).

        Returns:
            Logits, shape (B, m, V).
        """
        return self._projection(hidden)


class FastDropout(nn.Dropout):
    """Dropout for training on a CPU: one draw of 64 random bits serves four numbers.

    Args:
        p: The rate; a multiple of 2^-16 is used, the nearest.

    Source: §5.4; the way to draw is not in the paper.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop numbers at random in training.

        Args:
            x: Any shape, on the CPU.

        Returns:
            The same shape; 0 where a number was dropped, and what was kept divided by 1 − p.
        """
        dropped = round(self.p * 2**16)  # of 2^16
        if not self.training or dropped == 0:
            return x
        if dropped == 2**16:
            return x * 0.0
        draws = torch.empty(x.numel() // 4 + 1, dtype=torch.int64).random_(-(2**63), None)
        kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
        return x * kept.to(x.dtype).mul_(2**16 / (2**16 - dropped))


def use_fast_dropout(model: nn.Module) -> None:
    """Let a model that trains on a CPU draw its dropout quicker, in place. Random numbers differ from before.

    Args:
        model: The model; every `nn.Dropout` in it is replaced.

    Source: not in the paper.
    """
    for part in list(model.modules()):
        for name, child in part.named_children():
            if type(child) is nn.Dropout:
                setattr(part, name, FastDropout(child.p).train(child.training))


class _Product(torch.autograd.Function):
    """x · Wᵀ + b by oneDNN, with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _one_dnn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), asked = ctx.saved_tensors, ctx.needs_input_grad
        rows = grad.flatten(0, -2)  # (rows, outputs)
        return (
            _one_dnn(grad, weight.t()) if asked[0] else None,
            _one_dnn(rows.t(), x.flatten(0, -2).t()) if asked[1] else None,
            rows.sum(dim=0) if asked[2] else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b; in float32 by oneDNN, in any other type, and under autocast, by PyTorch."""
    if x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or x.dim() < 2 or x.numel() == 0:
        return F.linear(x, weight, bias)
    return _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]


class _OneDnnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return _product(x, self.weight, self.bias)


class _OneDnnEmbedding(TokenEmbedding):
    def project(self, hidden: Tensor) -> Tensor:
        return _product(hidden, self.weight) if hidden.size(-1) == self.weight.size(1) else super().project(hidden)


def use_one_dnn(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Let oneDNN multiply in a model that trains on an AMD processor, in place. On other processors nothing changes.

    Args:
        model: The model; its parameters stay the same. Sums are added up in another order than before.

    Returns:
        What now multiplies float32 matrices (n, m) and (m, k) in the model.

    Source: not in the paper.
    """
    if not _on_amd() or _packed(torch.zeros(1, 1)) is None:
        return torch.mm
    twins: dict[type, type] = {nn.Linear: _OneDnnLinear, TokenEmbedding: _OneDnnEmbedding}
    for part in model.modules():
        part.__class__ = twins.get(type(part), type(part))
    return lambda a, b: _one_dnn(a, b.t())


def _on_amd() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (cpuinfo.read_text() if cpuinfo.exists() else platform.processor())
