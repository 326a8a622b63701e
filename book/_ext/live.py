"""The live translator: give its pages the scripts, and put the shipped model beside them, as a script itself.

A script can be loaded by a page that was opened from a folder, without a server; a data file cannot.
"""

import base64
import json
from pathlib import Path

FILES = ("translator/transformer.js", "translator/page.js")
MARK = 'class="live-translator"'


def model_script(root: Path) -> str:
    """Weights, pieces and words of the shipped model, handed to a function of the page."""
    from transformer.corpus import vocabulary
    from transformer.data import Tokenizer

    folder = root / "transformer" / "pretrained"
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    model = {
        "config": json.loads((folder / "config.json").read_text(encoding="utf-8"))["model"],
        "pieces": tokenizer.pieces(range(len(tokenizer))),
        "words": list(vocabulary()),
        "weights": base64.b64encode((folder / "model.safetensors").read_bytes()).decode("ascii"),
    }
    return f"liveTransformerModel({json.dumps(model, ensure_ascii=False, separators=(',', ':'))});\n"


def scripts(app, pagename, templatename, context, doctree):
    if MARK not in context.get("body", ""):
        return
    app.add_css_file("translator/page.css")
    for file in FILES:
        app.add_js_file(file, loading_method="defer")


def write_model(app, exception):
    if exception or app.builder.format != "html":
        return
    path = Path(app.outdir) / "_static" / "translator" / "model.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(model_script(Path(app.srcdir)), encoding="utf-8")


def setup(app):
    app.connect("html-page-context", scripts)
    app.connect("build-finished", write_model)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
