"""Draw the chart that the README and the front page show, from the shipped model: book/_static/attention.svg.

Run it with `python book/tools/picture.py`; `make book` does when the model has changed.
"""

import hashlib
import itertools
from pathlib import Path

import torch
import vl_convert
from altair.vegalite.v6.display import VEGALITE_VERSION

from transformer.checkpoints import write_atomically
from transformer.corpus import embedded_corpus
from transformer.translator import load_toy_translator
from transformer.visualization import alignment_accuracy, attention_chart, look_at

ROOT = Path(__file__).resolve().parents[2]
PICTURE, WEIGHTS = ROOT / "book/_static/attention.svg", ROOT / "transformer/pretrained/model.safetensors"
SENTENCE = "Yesterday the animal did not cross the street because it was too tired."
GREY = "#6e7781"  # readable on white and on black


def draw() -> str:
    """The chart of the encoder-decoder head that aligns best, as SVG."""
    translator = load_toy_translator()
    accuracy = alignment_accuracy(translator, list(itertools.islice(embedded_corpus("test", seed=3), 100)))
    layer, head = divmod(int(torch.argmax(accuracy)), accuracy.size(1))
    title = f"Layer {layer + 1}, head {head + 1}: each German word looks at the English word it translates"
    chart = attention_chart([look_at(translator, SENTENCE)], "cross", title, layer, head)
    chart = chart.configure(background="transparent", axis={"labelColor": GREY, "titleColor": GREY})
    chart = chart.configure_title(color=GREY).configure_legend(labelColor=GREY, titleColor=GREY)
    return vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=VEGALITE_VERSION.rpartition(".")[0])


def signature() -> str:
    """Names the weights that the picture is of; it stands at the end of the file."""
    return f"<!-- drawn from weights with sha256 {hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()} -->\n"


if __name__ == "__main__":
    write_atomically(PICTURE, f"{draw().rstrip()}\n{signature()}".encode())
    print(f"wrote {PICTURE.name}")
