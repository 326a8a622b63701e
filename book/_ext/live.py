"""Pages with the shipped model in them: give them their scripts, and put the model beside these, as a script itself.

A script can be loaded by a page that was opened from a folder, without a server; a data file cannot.
"""

import base64
import json
from pathlib import Path

SHARED = ("translator/transformer.js", "translator/parts.js")
PAGES = {'class="live-translator"': "translator/page", 'class="live-steps"': "steps/steps"}  # mark: script and style


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
    found = [name for mark, name in PAGES.items() if mark in context.get("body", "")]
    for name in found:
        app.add_css_file(f"{name}.css")
    for file in (*SHARED, *(f"{name}.js" for name in found)) if found else ():
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
