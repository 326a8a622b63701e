"""The hand-made diagrams follow the theme, explain themselves, and keep their text inside the drawing and its boxes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "book" / "diagrams"
REQUIRED = {
    "scaled_dot_product_attention",
    "multi_head_attention",
    "residual_block",
    "transformer",
    "masks_and_uses",
    "recurrence_and_attention",
}
SVG = "{http://www.w3.org/2000/svg}"
PATHS = sorted(FOLDER.glob("*.svg"))
ALLOWED_TAGS = {"svg", "title", "desc", "defs", "marker", "g", "path", "rect", "circle", "line", "text", "tspan"}
SMALLEST_TEXT = 13.0
EM_REGULAR, EM_BOLD = 0.6, 0.66  # mean width of a character in a wide sans-serif face, in units of the font size


class Text(NamedTuple):
    """One text of a diagram with its estimated extent."""

    content: str
    x: float
    y: float
    left: float
    right: float
    size: float


def number(value: str | None, default: float = 0.0) -> float:
    """Reads an attribute."""
    return default if value is None else float(value)


def width(element: ET.Element, size: float, bold: bool) -> float:
    """Estimates the width of a text with its tspans."""
    size = number(element.get("font-size"), size)
    bold = element.get("font-weight", "600" if bold else "400") in {"600", "700", "bold"}
    em = size * (EM_BOLD if bold else EM_REGULAR)
    total = em * len((element.text or "").strip("\n"))
    for child in element:
        total += width(child, size, bold) + em * len((child.tail or "").strip("\n"))
    return total


def texts(root: ET.Element) -> list[Text]:
    """Collects every text with what it inherits from the groups around it."""
    found: list[Text] = []

    def walk(element: ET.Element, size: float, weight: str, anchor: str) -> None:
        size = number(element.get("font-size"), size)
        weight = element.get("font-weight", weight)
        anchor = element.get("text-anchor", anchor)
        if element.tag == SVG + "text":
            x, y = number(element.get("x")), number(element.get("y"))
            span = width(element, size, weight in {"600", "700", "bold"})
            left = x - {"start": 0.0, "middle": span / 2, "end": span}[anchor]
            found.append(Text("".join(element.itertext()), x, y, left, left + span, size))
            return
        for child in element:
            walk(child, size, weight, anchor)

    walk(root, 16.0, "400", "start")
    return found


@pytest.fixture(params=PATHS, ids=[path.stem for path in PATHS])
def diagram(request: pytest.FixtureRequest) -> tuple[Path, ET.Element]:
    return request.param, ET.parse(request.param).getroot()


def view_box(root: ET.Element) -> tuple[float, float, float, float]:
    x, y, w, h = (float(part) for part in root.attrib["viewBox"].split())
    return x, y, w, h


def test_every_diagram_is_there() -> None:
    assert {path.stem for path in PATHS} >= REQUIRED


def test_root_scales_and_stays_small(diagram: tuple[Path, ET.Element]) -> None:
    path, root = diagram
    assert path.stat().st_size < 20_000
    assert root.tag == SVG + "svg"
    assert root.get("width", "100%") == "100%"
    assert root.get("height") is None
    assert root.get("style", "").startswith("color:#6e7781")
    assert root.get("font-family") == "sans-serif"
    assert view_box(root)[2] <= (620 if path.stem == "transformer" else 420)


def test_it_explains_itself_to_a_screen_reader(diagram: tuple[Path, ET.Element]) -> None:
    _, root = diagram
    title, desc = root[0], root[1]
    assert (title.tag, desc.tag) == (SVG + "title", SVG + "desc")
    assert len((title.text or "").strip()) >= 10
    assert len((desc.text or "").split()) >= 30
    assert (desc.text or "").strip().endswith(".")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby", "").split() == [title.get("id"), desc.get("id")]


def test_ids_are_unique_and_carry_the_name_of_the_file(diagram: tuple[Path, ET.Element]) -> None:
    path, root = diagram
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert all(name.startswith(path.stem + "-") for name in ids), ids
    used = set(re.findall(r"url\(#([^)]+)\)", path.read_text(encoding="utf-8")))
    assert used <= set(ids)


def test_colours_are_the_page_s_own(diagram: tuple[Path, ET.Element]) -> None:
    _, root = diagram
    for element in root.iter():
        for attribute in ("fill", "stroke", "stop-color", "flood-color"):
            assert element.get(attribute, "none") in {"none", "currentColor"}, element.attrib
        if element is not root:
            assert "style" not in element.attrib
            assert "color" not in element.attrib
    assert re.fullmatch(r"color:#6e7781(;max-width:\d+px)?;?", root.get("style", ""))


def test_nothing_is_loaded_or_run(diagram: tuple[Path, ET.Element]) -> None:
    _, root = diagram
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in ALLOWED_TAGS, element.tag
        for attribute, value in element.attrib.items():
            assert not attribute.startswith("on"), attribute
            assert "href" not in attribute, attribute
            assert "://" not in value, value
            assert "url(" not in value.replace("url(#", ""), value
        assert "transform" not in element.attrib, "the estimates below do not follow transforms"


def test_text_is_large_enough_and_inside_the_drawing(diagram: tuple[Path, ET.Element]) -> None:
    _, root = diagram
    x, y, w, h = view_box(root)
    for element in root.iter():
        assert number(element.get("font-size"), 16.0) >= SMALLEST_TEXT, element.attrib
    for text in texts(root):
        assert x <= text.left, text
        assert text.right <= x + w, text
        assert y <= text.y - 0.75 * text.size, text
        assert text.y + 0.25 * text.size <= y + h, text


def test_text_stays_inside_its_box(diagram: tuple[Path, ET.Element]) -> None:
    _, root = diagram
    boxes = [[number(rect.get(key)) for key in ("x", "y", "width", "height")] for rect in root.iter(SVG + "rect")]
    for text in texts(root):
        around = [(w * h, x, y, w, h) for x, y, w, h in boxes if x < text.x < x + w and y < text.y < y + h]
        if around:
            _, x, y, w, h = min(around)
            assert x <= text.left, text
            assert text.right <= x + w, text
            assert y <= text.y - 0.75 * text.size, text
            assert text.y + 0.25 * text.size <= y + h, text


def test_texts_do_not_overlap(diagram: tuple[Path, ET.Element]) -> None:
    _, root = diagram
    found = texts(root)
    for i, a in enumerate(found):
        for b in found[i + 1 :]:
            beside = a.right <= b.left or b.right <= a.left
            apart = a.y <= b.y - 0.75 * b.size or b.y <= a.y - 0.75 * a.size
            assert beside or apart, (a, b)
