"""Serve every script from the site's own ``_static`` folder: Vega and MathJax come from installed packages."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import vl_convert
from altair.vegalite.v6.display import VEGALITE_VERSION

MATHJAX = ["tex-chtml.js", "output/chtml/fonts/woff-v2"]  # 1.5 MB of 24


def gather(app, config):
    """Write Vega and MathJax to ``_build/offline`` and let Sphinx copy them."""
    static = Path(app.outdir).parent / "offline"
    made_of = f"vega-lite {VEGALITE_VERSION}, vl-convert {vl_convert.__version__}, MathJax {MATHJAX}\n"
    stamp = static / "mathjax" / "made-of.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != made_of:
        shutil.rmtree(static, ignore_errors=True)
        (static / "mathjax").mkdir(parents=True)
        bundle = vl_convert.javascript_bundle(vl_version=VEGALITE_VERSION.rpartition(".")[0])
        (static / "vega.js").write_text(f"(function () {{\n{bundle}\n}})();\n", encoding="utf-8")
        source = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static/mathjax"
        for part in MATHJAX:
            goal = static / "mathjax" / part
            goal.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (source / part).is_dir() else shutil.copy)(source / part, goal)
        stamp.write_text(made_of, encoding="utf-8")
    config.html_static_path.append(str(static))
    config.mathjax_path = "mathjax/" + MATHJAX[0]


def only_what_is_used(app, pagename, templatename, context, doctree):
    """Drop Thebe, which wants a server, and MathJax where there is no mathematics."""
    unused = ["thebe"] if 'class="math' in context.get("body", "") else ["thebe", "mathjax"]

    def wanted(asset) -> bool:
        name = f"{getattr(asset, 'filename', asset)} {getattr(asset, 'attributes', '')}".lower()
        return not any(part in name for part in unused)

    for kind in ("script_files", "css_files"):
        context[kind] = [asset for asset in dict.fromkeys(context[kind]) if wanted(asset)]


def setup(app):
    app.connect("config-inited", gather)
    app.connect("html-page-context", only_what_is_used, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
