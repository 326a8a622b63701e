"""Draw three pictures of the site into book/_static: attention.svg, card.png, favicon.png.

The first is the chart that the README and the front page show, drawn from the shipped model. The second is the card
that a shared link shows, drawn from the same weights. The third is the site's icon where SVG is not understood.
Run it with `python book/tools/picture.py`; `make book` does when the model has changed.
"""

import hashlib
import io
import itertools
from pathlib import Path

import matplotlib
import torch
import vl_convert
import yaml
from altair.vegalite.v6.display import VEGALITE_VERSION
from matplotlib.figure import Figure

from transformer.checkpoints import write_atomically
from transformer.corpus import embedded_corpus
from transformer.translator import Translator, load_toy_translator
from transformer.visualization import alignment_accuracy, attention_chart, look_at

ROOT = Path(__file__).resolve().parents[2]
STATIC, WEIGHTS = ROOT / "book/_static", ROOT / "transformer/pretrained/model.safetensors"
PICTURE, CARD, ICON = STATIC / "attention.svg", STATIC / "card.png", STATIC / "favicon.png"
SENTENCE = "Yesterday the animal did not cross the street because it was too tired."
GREY = "#6e7781"  # readable on white and on black
BLUE, YELLOW = "#0b3c5d", "#f2c14e"  # of the icon
CARD_SIZE, ICON_SIZE, DPI = (1200, 630), 180, 100


def best_head(translator: Translator) -> tuple[int, int]:
    """Layer and head, from 0, of the encoder-decoder attention that aligns words best."""
    accuracy = alignment_accuracy(translator, list(itertools.islice(embedded_corpus("test", seed=3), 100)))
    return divmod(int(torch.argmax(accuracy)), accuracy.size(1))


def draw() -> str:
    """The chart of that head, as SVG."""
    translator = load_toy_translator()
    layer, head = best_head(translator)
    title = f"Layer {layer + 1}, head {head + 1}: most German words look at the English word they translate"
    chart = attention_chart([look_at(translator, SENTENCE)], "cross", title, layer, head)
    chart = chart.configure(background="transparent", axis={"labelColor": GREY, "titleColor": GREY})
    chart = chart.configure_title(color=GREY).configure_legend(labelColor=GREY, titleColor=GREY)
    return vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=VEGALITE_VERSION.rpartition(".")[0])


def card() -> bytes:
    """The book's title beside the same head, as PNG. Matplotlib brings its fonts, so every machine draws the same."""
    translator = load_toy_translator()
    layer, head = best_head(translator)
    seen = look_at(translator, SENTENCE)
    title, _, subtitle = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"].partition(", ")
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "text.color": "white", "axes.edgecolor": "white"}):
        figure = Figure(figsize=(CARD_SIZE[0] / DPI, CARD_SIZE[1] / DPI), dpi=DPI, facecolor=BLUE)
        figure.text(0.05, 0.62, title.replace("Is All ", "Is All\n"), size=38, weight="bold", linespacing=1.25)
        figure.text(0.05, 0.5, subtitle, size=38, color=YELLOW)
        words = "A book you can run,\na module you can import,\na trained model that ships with both"
        figure.text(0.05, 0.2, words, size=17, linespacing=1.5)
        axes = figure.add_axes((0.6, 0.06, 0.37, 0.7))
        axes.imshow(seen.cross[layer, head].numpy(), cmap="viridis", vmin=0, vmax=1)
        axes.set_xticks(range(len(seen.source)), seen.source, rotation=60, ha="left", rotation_mode="anchor", size=12)
        axes.set_yticks(range(len(seen.written)), seen.written, size=12)
        axes.tick_params(colors="white", length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        axes.set_frame_on(False)
        made = io.BytesIO()
        figure.savefig(made, format="png", metadata={"Software": None, "Comment": signature()})
    return made.getvalue()


def icon() -> bytes:
    """The icon as PNG."""
    svg = (STATIC / "favicon.svg").read_text(encoding="utf-8")
    return vl_convert.svg_to_png(svg, scale=ICON_SIZE / 32)


def signature() -> str:
    """Names the weights that a picture is of; it stands at the end of the SVG, and in the PNG's comment."""
    return f"drawn from weights with sha256 {hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()}"


if __name__ == "__main__":
    write_atomically(PICTURE, f"{draw().rstrip()}\n<!-- {signature()} -->\n".encode())
    write_atomically(CARD, card())
    write_atomically(ICON, icon())
    print(f"wrote {PICTURE.name}, {CARD.name}, {ICON.name}")
