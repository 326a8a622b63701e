"""The theme's icons as a small style sheet, in place of the script with all two thousand (0.5 MB) that it brings."""

import re
from pathlib import Path
from urllib.parse import quote

import pydata_sphinx_theme

ALL = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static/scripts/fontawesome.js"
USED = [
    *("angle-left", "angle-right", "arrow-up", "bars", "book", "chevron-down", "chevron-up", "circle-half-stroke"),
    *("download", "expand", "file", "file-pdf", "list", "magnifying-glass", "moon", "rocket", "sun"),
]
RULES = """\
.fas, .fa-solid, .fa-brands {
  display: inline-block; width: 1.1em; height: 1em; vertical-align: -0.125em;
  background: currentColor; mask: var(--icon) center / contain no-repeat; forced-color-adjust: preserve-parent-color;
}
.fas::before, .fa-solid::before, .fa-brands::before { content: none; } /* the theme's font is not fetched for it */
.fa-lg { font-size: 1.25em; line-height: 0.05em; vertical-align: -0.075em; }
.search-button-field > .fa-solid { display: inline-block; }
.bd-header-article .btn .fas, .bd-header-article .btn .fa-solid { width: 1.3rem; }
.theme-switch-button .theme-switch { display: none; }
html[data-mode="auto"] .theme-switch[data-mode="auto"], html[data-mode="dark"] .theme-switch[data-mode="dark"],
html[data-mode="light"] .theme-switch[data-mode="light"] { display: inline-block; }
@media print { .fas, .fa-solid { print-color-adjust: exact; } }
"""


def outline(script: str, name: str) -> tuple[str, str, str]:
    """Width, height and outline of an icon."""
    found = re.search(rf'[{{,]"?{name}"?:\[(\d+),(\d+),\[[^\]]*\],"[^"]*","([^"]+)"\]', script)
    if not found:
        raise ValueError(f"{ALL.name} has no icon {name}; choose another.")
    return found[1], found[2], found[3]


def style_sheet() -> str:
    """A rule for icons in general, and one for each that the pages use."""
    script = ALL.read_text(encoding="utf-8")
    rules = [RULES]
    for name in USED:
        width, height, path = outline(script, name)
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><path d="{path}"/></svg>'
        rules.append(f'.fa-{name} {{ --icon: url("data:image/svg+xml,{quote(svg, safe=" /:=")}"); }}\n')
    return "".join(rules)


def gather(app, config):
    folder = Path(app.outdir).parent / "icons"
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / "icons.css", style_sheet()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    config.html_static_path.append(str(folder))
    config.html_css_files.insert(0, "icons.css")


def setup(app):
    app.connect("config-inited", gather)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
