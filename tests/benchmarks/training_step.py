"""Training: forward pass, smoothed loss, backward pass, Adam.

All contestants begin with the same weights, see the same padded batches in the same order, and use the same loss
(`LabelSmoothingLoss`, fused) and the same optimizer (`make_adam`); what differs is the model. Ours draws its dropout as
`transformer train` does on a CPU (`FastDropout`). Tokens are real target tokens. `dropout` is the rate, and 0 takes the
questions where and how it is drawn out of the comparison (peers.py says who draws where); `precision` "bfloat16" is
autocast around model and loss for all.
"""

from collections.abc import Callable
from itertools import islice

import torch
from contest import Contest, main
from lengths import random_pairs
from peers import WORK, TorchTransformer, make_config, make_ours, to_joey, to_marian
from torch import Tensor, nn

from transformer.data import Batch, TokenBatches
from transformer.fast_cpu import use_fast_dropout, use_one_dnn
from transformer.loss import LabelSmoothingLoss
from transformer.schedule import make_adam

Function = Callable[[Tensor, Tensor], Tensor]


def trained(
    module: nn.Module, loss_function: Function, forward: Function | None = None, precision: str = "float32"
) -> Callable[[Batch], None]:
    """Make one update a batch.

    Args:
        module: What is trained.
        loss_function: Sum over the target tokens, of logits and ids.
        forward: Makes logits of source and target ids; the module itself if None.
        precision: "float32" or "bfloat16".
    """
    module.train()
    optimizer = make_adam(module)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4

    def update(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = loss_function((forward or module)(batch.src, batch.tgt_in), batch.tgt_out)
        (loss / batch.n_tokens).backward()
        optimizer.step()

    return update


def contest(
    size: str,
    dropout: float = 0.1,
    precision: str = "float32",
    n_batches: int = 4,
    max_tokens: int = 1024,
    peers: tuple[str, ...] = ("torch", "Marian", "Joey NMT"),
    seed: int = 0,
) -> Contest:
    """Updates of a model of this size on batches of about `max_tokens` target positions."""
    pairs = random_pairs(WORK[size], make_config(size).src_vocab_size, seed=seed)
    batches = list(islice(TokenBatches(pairs, max_tokens, seed), n_batches))

    def made(module: nn.Module, forward: Function | None = None) -> Callable[[Batch], None]:
        return trained(module, LabelSmoothingLoss(0.1, reduction="sum"), forward, precision)

    def ours() -> Callable[[Batch], None]:
        model = make_ours(size, dropout, seed)
        use_fast_dropout(model)
        use_one_dnn(model)
        return made(model)

    def theirs() -> Callable[[Batch], None]:
        return made(TorchTransformer(make_ours(size, dropout, seed)))

    def marian() -> Callable[[Batch], None]:
        model = to_marian(make_ours(size, dropout, seed))

        def forward(src: Tensor, tgt_in: Tensor) -> Tensor:
            mask = (src != 0).long()
            return model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt_in, use_cache=False).logits

        return made(model, forward)

    def joey() -> Callable[[Batch], None]:
        return made(to_joey(make_ours(size, dropout, seed)))

    needs = {"Marian": "transformers.models.marian.modeling_marian", "Joey NMT": "joeynmt.decoders"}
    make = {"ours": ours, "torch": theirs, "Marian": marian, "Joey NMT": joey}
    return Contest(
        make={name: make[name] for name in ("ours", *peers)},
        items=batches,
        tokens=sum(batch.n_tokens for batch in batches),
        needs={name: needs[name] for name in peers if name in needs},
        heaviest=max(range(len(batches)), key=lambda i: batches[i].tgt_in.numel()),
    )


if __name__ == "__main__":
    main(contest)
