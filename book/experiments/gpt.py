"""Chapter 10: from the shell to the GPT part by part, and the GPT with one choice of the paper at a time.

    python book/experiments/gpt.py

All models are 64 wide, read windows of 64 characters of the embedded corpus' English, and get as many updates. A rung
of the ladder has one part more than the one before. A variant is the GPT of one layer with one thing done otherwise,
mostly as the paper does it. Measured: the loss in nats per character on sentences that no run has seen, never smoothed.
"""

from functools import cache
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from recording import record
from torch import Tensor, nn

from transformer.corpus import embedded_corpus
from transformer.feed_forward import PositionwiseFeedForward
from transformer.gpt import GPT, GELUFeedForward, GPTConfig
from transformer.layers import Encoder
from transformer.loss import LabelSmoothingLoss
from transformer.masks import causal_mask
from transformer.model import count_parameters
from transformer.multi_head import MultiHeadAttention
from transformer.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding

SEEDS, STEPS, ROWS, WINDOW, WIDTH, HEADS, LAYERS = (1, 2, 3), 400, 16, 64, 64, 4, 1
LEARNING_RATE, N_TRAIN, N_UNSEEN = 0.006, 25_000, 600
RUNGS = ["the shell", "+ one head", "+ four heads", "+ feed-forward", "+ residuals", "+ layer norm"]
VARIANTS = [
    "as GPT-2",
    "untied output",
    "ReLU",
    "label smoothing 0.1",
    "normalization after",
    "sinusoids",
    "sinusoids, embedding × √d",
]


@cache
def corpus() -> tuple[Tensor, Tensor, int]:
    """The characters of the training text and of unseen sentences, as ids, and how many there are."""
    sizes = {"train": N_TRAIN, "dev": N_UNSEEN}
    texts = ["\n".join(pair.source for pair in islice(embedded_corpus(split), n)) for split, n in sizes.items()]
    characters = sorted(set(texts[0]))
    return *(torch.tensor([characters.index(c) for c in text]) for text in texts), len(characters)


class Rung(nn.Module):
    """The shell and the first parts of a layer."""

    def __init__(self, vocab_size: int, parts: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, WIDTH)
        self.positions = LearnedPositionalEncoding(WINDOW, WIDTH)
        self.attention = MultiHeadAttention(WIDTH, 1 if parts == 1 else HEADS) if parts >= 1 else None
        self.feed_forward = GELUFeedForward(WIDTH, 4 * WIDTH) if parts >= 3 else None
        self.residual = parts >= 4
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) if parts >= 5 else nn.Identity() for _ in range(3))
        self.head = nn.Linear(WIDTH, vocab_size)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.5 * WIDTH**-0.5)  # as in our GPT

    def forward(self, ids: Tensor) -> Tensor:
        """(B, n) → (B, n, V)."""
        x = self.positions(self.embedding(ids))
        if self.attention is not None:
            y = self.norms[0](x)
            x = x * self.residual + self.attention(y, y, y, is_causal=True)
        if self.feed_forward is not None:
            x = x * self.residual + self.feed_forward(self.norms[1](x))
        return self.head(self.norms[2](x))


class Untied(GPT):
    """A GPT with an output matrix of its own."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.output = nn.Linear(WIDTH, config.vocab_size, bias=False)
        nn.init.normal_(self.output.weight, std=0.5 * WIDTH**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, n) → (B, n, V)."""
        return self.output(self.blocks(self._embed(ids), causal_mask(ids.size(1))))


class Scaled(GPT):
    """A GPT that multiplies its embedding by √d_model, as the paper does."""

    def _embed(self, ids: Tensor, start: int = 0) -> Tensor:
        return self.dropout(self.positions(self.embedding(ids), start))


def build(model: str, vocab_size: int) -> nn.Module:
    """A rung or a variant by its name."""
    if model in RUNGS:
        return Rung(vocab_size, RUNGS.index(model))
    config = GPTConfig(vocab_size, WIDTH, LAYERS, HEADS, max_len=WINDOW, dropout=0.0)
    gpt = {"untied output": Untied, "sinusoids, embedding × √d": Scaled}.get(model, GPT)(config)
    if "sinusoids" in model:
        gpt.positions = SinusoidalPositionalEncoding(WIDTH)
    for layer in gpt.blocks.layers:
        if model == "ReLU":
            weights = layer.feed_forward.state_dict()
            layer.feed_forward = PositionwiseFeedForward(WIDTH, 4 * WIDTH)
            layer.feed_forward.load_state_dict(weights)
        if model == "normalization after":
            layer.attention_block.norm_order = layer.feed_forward_block.norm_order = "post"
    if model == "normalization after":
        gpt.blocks = Encoder(gpt.blocks.layers, None)
    return gpt


def windows(ids: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Input and target: (B, WINDOW) each, the target one character ahead."""
    rows = ids[starts[:, None] + torch.arange(WINDOW + 1)]
    return rows[:, :-1], rows[:, 1:]


def run(model: str, seed: int, steps: int) -> dict[str, Any]:
    """Train once and measure on unseen sentences."""
    train, unseen, vocab_size = corpus()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = build(model, vocab_size)
    loss_function = LabelSmoothingLoss(0.1 if "smoothing" in model else 0.0, pad_id=-1)
    adam = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        inputs, targets = windows(train, torch.randint(len(train) - WINDOW, (ROWS,)))
        adam.zero_grad()
        loss_function(network(inputs), targets).backward()
        adam.step()
        schedule.step()
    with torch.inference_mode():
        inputs, targets = windows(unseen, torch.arange(0, len(unseen) - WINDOW, WINDOW))
        loss = F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten()).item()
    return {"loss": round(loss, 4), "parameters": count_parameters(network)}


if __name__ == "__main__":
    runs = {
        f"{model}, seed {seed}": {"model": model, "seed": seed, "steps": STEPS}
        for seed in SEEDS
        for model in RUNGS + VARIANTS
    }
    record(__file__, runs, run)
