# Made by book/tools/export.py from the modules beside it; edit the notebooks, not this file.
# sha256 of what follows: 23e002a28c375a59
"""The Transformer of *Attention Is All You Need*, exported from the chapters of the book.

Names are loaded when they are first asked for, so importing the package is quick.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "ResidualBlock",
    "EncoderLayer",
    "Encoder",
    "LayerCache",
    "DecoderLayer",
    "Decoder",
    "scaled_dot_product_attention",
    "masked_softmax",
    "check_attention_inputs",
    "MultiHeadAttention",
    "KeyValueCache",
    "causal_mask",
    "padding_mask",
    "PositionwiseFeedForward",
    "TokenEmbedding",
    "sinusoids",
    "SinusoidalPositionalEncoding",
    "LearnedPositionalEncoding",
    "TransformerConfig",
    "DecoderCache",
    "Transformer",
    "count_parameters",
    "choose_device",
    "PAD_ID",
    "BOS_ID",
    "EOS_ID",
    "UNKNOWN_ID",
    "Tokenizer",
    "Batch",
    "pad",
    "make_batch",
    "EncodedPairs",
    "TokenBatches",
    "padding_share",
    "copy_task",
    "TrainingConfig",
    "pick_precision",
    "Record",
    "Stopped",
    "train",
    "perplexity",
    "T",
    "join_processes",
    "leave_processes",
    "rank",
    "world_size",
    "data_parallel",
    "sum_over_ranks",
    "share_over_ranks",
    "gather_from_ranks",
    "PAPER_TFLOPS",
    "paper_cost",
    "flops_by_part",
    "forward_flops",
    "batch_flops",
    "Ledger",
    "measure_peak",
    "make_adam",
    "noam_rate",
    "NoamScheduler",
    "LabelSmoothingLoss",
    "EXTRA_TOKENS",
    "greedy_decode",
    "length_penalty",
    "Hypothesis",
    "beam_search",
    "sample",
    "TOKENIZERS",
    "Score",
    "bleu",
    "chrf",
    "split_compounds",
    "paper_bleu",
    "TOKENIZER_FILE",
    "Translator",
    "load_toy_translator",
    "AttentionRecord",
    "record_attention",
    "SentenceAttention",
    "look_at",
    "attention_chart",
    "SPACE",
    "word_of_piece",
    "alignment_accuracy",
    "Preset",
    "PRESETS",
    "Ingredient",
    "recipe_ledger",
    "memory",
    "activations",
    "Accelerator",
    "ACCELERATORS",
    "Budget",
    "budget",
    "run_preset",
    "SPLITS",
    "PHENOMENA",
    "MAX_WORDS",
    "SentencePair",
    "words",
    "reserved",
    "embedded_corpus",
    "vocabulary",
    "NUMBERS",
    "MODALS",
    "PRONOUNS",
    "DECLENSION",
    "Noun",
    "Verb",
    "NOUNS",
    "nouns_named",
    "ADJECTIVES",
    "PREPOSITIONS",
    "VERBS",
    "SAYING",
    "BE",
    "Words",
    "Phrase",
    "phenomena_that",
    "word_by_word",
    "inflect",
    "noun_phrase",
    "prepositional",
    "VerbGroup",
    "verb_group",
    "read_sources",
    "data_folder",
    "download",
    "unpack",
    "read_sgml",
    "Corpus",
    "files_corpus",
    "find_corpus",
    "VOCABULARY_SIZES",
    "read_lines",
    "read_pairs",
    "Cleaning",
    "clean",
    "Prepared",
    "embedded_files",
    "prepare",
    "FORMAT",
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "STATE_FILE",
    "write_atomically",
    "save_checkpoint",
    "load_checkpoint",
    "read_tensors",
    "read_description",
    "save_training_checkpoint",
    "list_checkpoints",
    "average_checkpoints",
    "RUN_FILE",
    "CONFIGURATIONS",
    "make_configuration",
    "parts_of",
    "train_run",
    "average_run",
    "make_parser",
    "main",
    "__version__",
    "check_version",
]

_HOME = {
    "ResidualBlock": "layers",
    "EncoderLayer": "layers",
    "Encoder": "layers",
    "LayerCache": "layers",
    "DecoderLayer": "layers",
    "Decoder": "layers",
    "scaled_dot_product_attention": "attention",
    "masked_softmax": "attention",
    "check_attention_inputs": "attention",
    "MultiHeadAttention": "multi_head",
    "KeyValueCache": "multi_head",
    "causal_mask": "masks",
    "padding_mask": "masks",
    "PositionwiseFeedForward": "feed_forward",
    "TokenEmbedding": "embeddings",
    "sinusoids": "positional_encoding",
    "SinusoidalPositionalEncoding": "positional_encoding",
    "LearnedPositionalEncoding": "positional_encoding",
    "TransformerConfig": "model",
    "DecoderCache": "model",
    "Transformer": "model",
    "count_parameters": "model",
    "choose_device": "model",
    "PAD_ID": "data",
    "BOS_ID": "data",
    "EOS_ID": "data",
    "UNKNOWN_ID": "data",
    "Tokenizer": "data",
    "Batch": "data",
    "pad": "data",
    "make_batch": "data",
    "EncodedPairs": "data",
    "TokenBatches": "data",
    "padding_share": "data",
    "copy_task": "data",
    "TrainingConfig": "training",
    "pick_precision": "training",
    "Record": "training",
    "Stopped": "training",
    "train": "training",
    "perplexity": "training",
    "T": "distributed",
    "join_processes": "distributed",
    "leave_processes": "distributed",
    "rank": "distributed",
    "world_size": "distributed",
    "data_parallel": "distributed",
    "sum_over_ranks": "distributed",
    "share_over_ranks": "distributed",
    "gather_from_ranks": "distributed",
    "PAPER_TFLOPS": "ledger",
    "paper_cost": "ledger",
    "flops_by_part": "ledger",
    "forward_flops": "ledger",
    "batch_flops": "ledger",
    "Ledger": "ledger",
    "measure_peak": "ledger",
    "make_adam": "schedule",
    "noam_rate": "schedule",
    "NoamScheduler": "schedule",
    "LabelSmoothingLoss": "loss",
    "EXTRA_TOKENS": "decoding",
    "greedy_decode": "decoding",
    "length_penalty": "decoding",
    "Hypothesis": "decoding",
    "beam_search": "decoding",
    "sample": "decoding",
    "TOKENIZERS": "scoring",
    "Score": "scoring",
    "bleu": "scoring",
    "chrf": "scoring",
    "split_compounds": "scoring",
    "paper_bleu": "scoring",
    "TOKENIZER_FILE": "translator",
    "Translator": "translator",
    "load_toy_translator": "translator",
    "AttentionRecord": "visualization",
    "record_attention": "visualization",
    "SentenceAttention": "visualization",
    "look_at": "visualization",
    "attention_chart": "visualization",
    "SPACE": "visualization",
    "word_of_piece": "visualization",
    "alignment_accuracy": "visualization",
    "Preset": "wmt14",
    "PRESETS": "wmt14",
    "Ingredient": "wmt14",
    "recipe_ledger": "wmt14",
    "memory": "wmt14",
    "activations": "wmt14",
    "Accelerator": "wmt14",
    "ACCELERATORS": "wmt14",
    "Budget": "wmt14",
    "budget": "wmt14",
    "run_preset": "wmt14",
    "SPLITS": "corpus",
    "PHENOMENA": "corpus",
    "MAX_WORDS": "corpus",
    "SentencePair": "corpus",
    "words": "corpus",
    "reserved": "corpus",
    "embedded_corpus": "corpus",
    "vocabulary": "corpus",
    "NUMBERS": "lexicon",
    "MODALS": "lexicon",
    "PRONOUNS": "lexicon",
    "DECLENSION": "lexicon",
    "Noun": "lexicon",
    "Verb": "lexicon",
    "NOUNS": "lexicon",
    "nouns_named": "lexicon",
    "ADJECTIVES": "lexicon",
    "PREPOSITIONS": "lexicon",
    "VERBS": "lexicon",
    "SAYING": "lexicon",
    "BE": "lexicon",
    "Words": "lexicon",
    "Phrase": "lexicon",
    "phenomena_that": "lexicon",
    "word_by_word": "lexicon",
    "inflect": "lexicon",
    "noun_phrase": "lexicon",
    "prepositional": "lexicon",
    "VerbGroup": "lexicon",
    "verb_group": "lexicon",
    "read_sources": "downloads",
    "data_folder": "downloads",
    "download": "downloads",
    "unpack": "downloads",
    "read_sgml": "downloads",
    "Corpus": "downloads",
    "files_corpus": "downloads",
    "find_corpus": "downloads",
    "VOCABULARY_SIZES": "preparation",
    "read_lines": "preparation",
    "read_pairs": "preparation",
    "Cleaning": "preparation",
    "clean": "preparation",
    "Prepared": "preparation",
    "embedded_files": "preparation",
    "prepare": "preparation",
    "FORMAT": "checkpoints",
    "CONFIG_FILE": "checkpoints",
    "WEIGHTS_FILE": "checkpoints",
    "STATE_FILE": "checkpoints",
    "write_atomically": "checkpoints",
    "save_checkpoint": "checkpoints",
    "load_checkpoint": "checkpoints",
    "read_tensors": "checkpoints",
    "read_description": "checkpoints",
    "save_training_checkpoint": "checkpoints",
    "list_checkpoints": "checkpoints",
    "average_checkpoints": "checkpoints",
    "RUN_FILE": "runs",
    "CONFIGURATIONS": "runs",
    "make_configuration": "runs",
    "parts_of": "runs",
    "train_run": "runs",
    "average_run": "runs",
    "make_parser": "cli",
    "main": "cli",
}
_MODULES = (
    "attention",
    "checkpoints",
    "cli",
    "corpus",
    "data",
    "decoding",
    "distributed",
    "downloads",
    "embeddings",
    "feed_forward",
    "layers",
    "ledger",
    "lexicon",
    "loss",
    "masks",
    "model",
    "multi_head",
    "positional_encoding",
    "preparation",
    "runs",
    "schedule",
    "scoring",
    "training",
    "translator",
    "visualization",
    "wmt14",
)

if TYPE_CHECKING:
    from transformer import attention as attention
    from transformer import checkpoints as checkpoints
    from transformer import cli as cli
    from transformer import corpus as corpus
    from transformer import data as data
    from transformer import decoding as decoding
    from transformer import distributed as distributed
    from transformer import downloads as downloads
    from transformer import embeddings as embeddings
    from transformer import feed_forward as feed_forward
    from transformer import layers as layers
    from transformer import ledger as ledger
    from transformer import lexicon as lexicon
    from transformer import loss as loss
    from transformer import masks as masks
    from transformer import model as model
    from transformer import multi_head as multi_head
    from transformer import positional_encoding as positional_encoding
    from transformer import preparation as preparation
    from transformer import runs as runs
    from transformer import schedule as schedule
    from transformer import scoring as scoring
    from transformer import training as training
    from transformer import translator as translator
    from transformer import visualization as visualization
    from transformer import wmt14 as wmt14
    from transformer.attention import check_attention_inputs, masked_softmax, scaled_dot_product_attention
    from transformer.checkpoints import (
        CONFIG_FILE,
        FORMAT,
        STATE_FILE,
        WEIGHTS_FILE,
        average_checkpoints,
        list_checkpoints,
        load_checkpoint,
        read_description,
        read_tensors,
        save_checkpoint,
        save_training_checkpoint,
        write_atomically,
    )
    from transformer.cli import main, make_parser
    from transformer.corpus import (
        MAX_WORDS,
        PHENOMENA,
        SPLITS,
        SentencePair,
        embedded_corpus,
        reserved,
        vocabulary,
        words,
    )
    from transformer.data import (
        BOS_ID,
        EOS_ID,
        PAD_ID,
        UNKNOWN_ID,
        Batch,
        EncodedPairs,
        TokenBatches,
        Tokenizer,
        copy_task,
        make_batch,
        pad,
        padding_share,
    )
    from transformer.decoding import EXTRA_TOKENS, Hypothesis, beam_search, greedy_decode, length_penalty, sample
    from transformer.distributed import (
        T,
        data_parallel,
        gather_from_ranks,
        join_processes,
        leave_processes,
        rank,
        share_over_ranks,
        sum_over_ranks,
        world_size,
    )
    from transformer.downloads import (
        Corpus,
        data_folder,
        download,
        files_corpus,
        find_corpus,
        read_sgml,
        read_sources,
        unpack,
    )
    from transformer.embeddings import TokenEmbedding
    from transformer.feed_forward import PositionwiseFeedForward
    from transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerCache, ResidualBlock
    from transformer.ledger import (
        PAPER_TFLOPS,
        Ledger,
        batch_flops,
        flops_by_part,
        forward_flops,
        measure_peak,
        paper_cost,
    )
    from transformer.lexicon import (
        ADJECTIVES,
        BE,
        DECLENSION,
        MODALS,
        NOUNS,
        NUMBERS,
        PREPOSITIONS,
        PRONOUNS,
        SAYING,
        VERBS,
        Noun,
        Phrase,
        Verb,
        VerbGroup,
        Words,
        inflect,
        noun_phrase,
        nouns_named,
        phenomena_that,
        prepositional,
        verb_group,
        word_by_word,
    )
    from transformer.loss import LabelSmoothingLoss
    from transformer.masks import causal_mask, padding_mask
    from transformer.model import DecoderCache, Transformer, TransformerConfig, choose_device, count_parameters
    from transformer.multi_head import KeyValueCache, MultiHeadAttention
    from transformer.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoids
    from transformer.preparation import (
        VOCABULARY_SIZES,
        Cleaning,
        Prepared,
        clean,
        embedded_files,
        prepare,
        read_lines,
        read_pairs,
    )
    from transformer.runs import CONFIGURATIONS, RUN_FILE, average_run, make_configuration, parts_of, train_run
    from transformer.schedule import NoamScheduler, make_adam, noam_rate
    from transformer.scoring import TOKENIZERS, Score, bleu, chrf, paper_bleu, split_compounds
    from transformer.training import Record, Stopped, TrainingConfig, perplexity, pick_precision, train
    from transformer.translator import TOKENIZER_FILE, Translator, load_toy_translator
    from transformer.visualization import (
        SPACE,
        AttentionRecord,
        SentenceAttention,
        alignment_accuracy,
        attention_chart,
        look_at,
        record_attention,
        word_of_piece,
    )
    from transformer.wmt14 import (
        ACCELERATORS,
        PRESETS,
        Accelerator,
        Budget,
        Ingredient,
        Preset,
        activations,
        budget,
        memory,
        recipe_ledger,
        run_preset,
    )
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


def check_version(expected: str) -> None:
    """Fail unless the installed module belongs to the text that is being read.

    Args:
        expected: Major and minor version that the text was written for, such as ``"0.1"``.

    Raises:
        ValueError: If `expected` is not two numbers with a dot between.
        RuntimeError: If the module's major and minor version are others.
    """
    if not isinstance(expected, str) or [part.isdigit() for part in expected.split(".")] != [True, True]:
        raise ValueError(f"expected is {expected!r}; give major and minor version, such as '0.1'")
    if __version__.split(".")[:2] != expected.split("."):
        raise RuntimeError(
            f"this text needs transformer {expected}, but {__version__} is installed ({__path__[0]}). "
            "In the book's repository run `make book` (or `pip install --upgrade --force-reinstall .`); "
            "in Colab run the notebook's first cell; then restart the kernel."
        )
