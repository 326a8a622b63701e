# Made by book/tools/export.py from the modules beside it; edit the notebooks, not this file.
# sha256 of what follows: c1ed9b30540fd65b
"""The modules of transformer.modern, exported from the chapters of the book.

Names are loaded when they are first asked for, so importing the package is quick.
"""

import importlib
from typing import TYPE_CHECKING

__all__ = [
    "Difference",
    "Comparison",
    "read_comparison",
    "NoPositions",
    "ModernDecoderLayer",
    "build_transformer",
    "RMSNorm",
    "GatedFeedForward",
    "rotate",
    "RotaryAttention",
    "GroupedQueryAttention",
    "RunningSoftmax",
    "tiled_attention",
    "sequence_log_probability",
    "ADVERBS",
    "begins_with_adverb",
    "front_adverb",
    "PreferencePair",
    "preference_pairs",
    "preference_batch",
    "dpo_loss",
    "PreferenceStep",
    "preference_step",
    "likelihood_step",
    "PreferenceScores",
    "score_preferences",
]

_HOME = {
    "Difference": "comparison",
    "Comparison": "comparison",
    "read_comparison": "comparison",
    "NoPositions": "stacks",
    "ModernDecoderLayer": "stacks",
    "build_transformer": "stacks",
    "RMSNorm": "rms_norm",
    "GatedFeedForward": "gated_feed_forward",
    "rotate": "rope",
    "RotaryAttention": "rope",
    "GroupedQueryAttention": "grouped_query",
    "RunningSoftmax": "tiles",
    "tiled_attention": "tiles",
    "sequence_log_probability": "preferences",
    "ADVERBS": "preferences",
    "begins_with_adverb": "preferences",
    "front_adverb": "preferences",
    "PreferencePair": "preferences",
    "preference_pairs": "preferences",
    "preference_batch": "preferences",
    "dpo_loss": "preferences",
    "PreferenceStep": "preferences",
    "preference_step": "preferences",
    "likelihood_step": "preferences",
    "PreferenceScores": "preferences",
    "score_preferences": "preferences",
}
_MODULES = ("comparison", "gated_feed_forward", "grouped_query", "preferences", "rms_norm", "rope", "stacks", "tiles")

if TYPE_CHECKING:
    from transformer.modern import comparison as comparison
    from transformer.modern import gated_feed_forward as gated_feed_forward
    from transformer.modern import grouped_query as grouped_query
    from transformer.modern import preferences as preferences
    from transformer.modern import rms_norm as rms_norm
    from transformer.modern import rope as rope
    from transformer.modern import stacks as stacks
    from transformer.modern import tiles as tiles
    from transformer.modern.comparison import Comparison, Difference, read_comparison
    from transformer.modern.gated_feed_forward import GatedFeedForward
    from transformer.modern.grouped_query import GroupedQueryAttention
    from transformer.modern.preferences import (
        ADVERBS,
        PreferencePair,
        PreferenceScores,
        PreferenceStep,
        begins_with_adverb,
        dpo_loss,
        front_adverb,
        likelihood_step,
        preference_batch,
        preference_pairs,
        preference_step,
        score_preferences,
        sequence_log_probability,
    )
    from transformer.modern.rms_norm import RMSNorm
    from transformer.modern.rope import RotaryAttention, rotate
    from transformer.modern.stacks import ModernDecoderLayer, NoPositions, build_transformer
    from transformer.modern.tiles import RunningSoftmax, tiled_attention
else:

    def __getattr__(name: str) -> object:
        """Load a public name, or a module, when it is first asked for (PEP 562)."""
        if name in _HOME:
            value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List what there is, loaded or not."""
    return sorted({*globals(), *__all__, *_MODULES})
