"""Pages with the shipped model in them: give them their scripts, and put the model beside these, as a script itself.

A script can be loaded by a page that was opened from a folder, without a server; a data file cannot.
"""

import base64
import json
from pathlib import Path

from sentencepiece import SentencePieceProcessor

SHARED = ("translator/transformer.js", "translator/parts.js")
PAGES = {'class="live-translator"': "translator/page", 'class="live-steps"': "steps/steps"}  # mark: script and style


def choices() -> dict[str, dict[str, list[str]]]:
    """Words to make a simple sentence of: adjectives that go with each noun, persons and objects with each verb."""
    from transformer.lexicon import ADJECTIVES, VERBS

    verbs = {" ".join([verb.forms[1], *verb.english.split()[1:]]): verb for verb in VERBS
             if verb.cases == ("acc",) and any(noun.kind == "person" for noun in verb.subjects)}  # fmt: skip
    nouns = sorted({noun for verb in verbs.values() for noun in (*verb.subjects, *verb.objects)}, key=str)
    return {
        "adjectives": {noun.english: [name for name, (_, fit) in ADJECTIVES.items() if noun in fit] for noun in nouns},
        "subjects": {
            name: [noun.english for noun in verb.subjects if noun.kind == "person"] for name, verb in verbs.items()
        },
        "objects": {name: [noun.english for noun in verb.objects] for name, verb in verbs.items()},
    }


def model_script(root: Path) -> str:
    """Weights, pieces and words of the shipped model, handed to a function of the page."""
    from transformer.corpus import vocabulary

    folder = root / "transformer" / "pretrained"
    # Not the module's own Tokenizer: a build that has nothing to do need not wait for torch.
    tokenizer = SentencePieceProcessor(model_proto=(folder / "tokenizer.model").read_bytes())
    model = {
        "config": json.loads((folder / "config.json").read_text(encoding="utf-8"))["model"],
        "pieces": tokenizer.id_to_piece(list(range(len(tokenizer)))),
        "words": list(vocabulary()),
        "choices": choices(),
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
