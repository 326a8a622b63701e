"""Step through one attention: the page's numbers are PyTorch's, each cell is the sum that is shown for it."""

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from built import executed, need_site, printed
from playwright.sync_api import Page
from test_pages import PHONE, WIDE, chromium

from transformer.corpus import embedded_corpus
from transformer.data import make_batch
from transformer.decoding import greedy_decode
from transformer.translator import load_toy_translator
from transformer.visualization import look_at

pytestmark = [pytest.mark.book, pytest.mark.browser, pytest.mark.slow]

KING = "The old king sees a small house."
KINDS = ["encoder", "decoder", "cross"]
SENTENCES = [KING, *(pair.source for pair in islice(embedded_corpus("test", seed=3), 9))]
TITLES = [
    *("Embedding + position", "Input of the layer", "Queries", "Keys", "Values", "Scores", "Scaling", "Mask"),
    *("Softmax", "Weighted sum", "Heads side by side", "Output"),
]
PRINTED = {"query": "Queries", "scores": "Scores", "scaled": "Scaling", "weights": "Softmax", "output": "Weighted sum"}
# Every step's matrix, and for some cells the sum of the terms of their zoom.
COMPUTE = """async (asked) => {
  const { stepper } = document.querySelector(".live-steps");
  await stepper.go(asked);
  return stepper.steps.map(({ title, matrix, zoom, rows, columns }) => ({
    title, matrix, rows, columns,
    zooms: [[0, 0], [2, 1], [rows.length - 1, columns.length - 1]]
      .map(([i, j]) => [i, j, zoom(i, j).terms.reduce((a, b) => a + b, 0)]),
  }));
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """The page, opened from its folder, without a server."""
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        yield page


def opened(page: Page, address: str = "") -> Page:
    page.goto("about:blank")  # else a change of the address alone would not load the page anew
    page.goto(f"{(need_site() / 'book' / 'one_attention.html').as_uri()}{address}")
    return page


def steps(said: str, kind: str, layer: int, head: int) -> dict[str, torch.Tensor]:
    """What the package computes at each step, seen by hooks on its own projections."""
    translator = load_toy_translator()
    model = translator.model
    src = make_batch([(translator.tokenizer.encode(said), [])]).src
    written = greedy_decode(model, src)[0]
    stack = model.encoder if kind == "encoder" else model.decoder
    one: Any = stack.layers[layer]
    first: Any = stack.layers[0]
    attention = one.memory_attention if kind == "cross" else one.self_attention
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(name: str, module: Any) -> Any:
        return module.register_forward_hook(lambda _, given, made: seen.update({name: (given[0][0], made[0])}))

    hooks = [keep(part, getattr(attention, f"w_{part}")) for part in "qkvo"]
    hooks.append(keep("first", first.self_attention.w_q))
    with torch.inference_mode():
        model(src, torch.tensor([[1, *written]]))
    for hook in hooks:
        hook.remove()
    d_k = attention.d_k
    q, k, v = (seen[part][1][:, head * d_k : (head + 1) * d_k] for part in "qkv")
    scores = q @ k.T
    scaled = scores / math.sqrt(d_k)
    hidden = torch.ones_like(scores).triu(1).bool() if kind == "decoder" else torch.zeros_like(scores).bool()
    masked = scaled.masked_fill(hidden, -torch.inf)
    weights = masked.softmax(dim=-1)
    made = [seen["first"][0], seen["q"][0], q, k, v, scores, scaled, masked, weights, weights @ v, *seen["o"]]
    return dict(zip(TITLES, made, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_that_of_torch(page: Page, kind: str) -> None:
    opened(page)
    for number, said in enumerate(SENTENCES):
        layer, head = number % 2, number % 4
        expected = steps(said, kind, layer, head)
        found = page.evaluate(COMPUTE, {"say": said, "kind": kind, "layer": layer, "head": head})
        assert [step["title"] for step in found] == TITLES
        for step in found:
            wanted, numbers = expected[step["title"]], torch.tensor(step["matrix"])
            assert numbers.shape == wanted.shape == (len(step["rows"]), len(step["columns"]))
            assert torch.equal(numbers.isinf(), wanted.isinf())
            assert (numbers - wanted).nan_to_num(0.0).abs().max() < 1e-3, (said, step["title"])
            for i, j, total in step["zooms"]:
                assert total == pytest.approx(step["matrix"][i][j], abs=1e-3), (said, step["title"])


def test_weights_are_those_of_the_other_pages(page: Page) -> None:
    translator = load_toy_translator()
    seen = look_at(translator, KING)
    found = page.evaluate(COMPUTE, {"say": KING, "kind": "cross", "layer": 1, "head": 2})[8]
    weights, _, columns = seen.part("cross")
    assert (torch.tensor(found["matrix"]) - weights[1, 2]).abs().max() < 1e-3
    assert found["columns"] == [*columns[:-1], "(end)"]


def test_the_chapter_prints_the_same_numbers(page: Page) -> None:
    text = next(text for text in printed(executed("08_attention_visualizations")) if text.startswith("query "))
    wanted = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in text.splitlines()}
    opened(page, f"#steps?say={KING}&kind=encoder&layer=1&head=1&row=3".replace(" ", "+"))
    page.get_by_role("button", name="Show", exact=True).wait_for()
    for name, title in PRINTED.items():
        page.get_by_role("button", name=re.compile(rf"^\d+ {title}$")).click()
        row = page.locator(".steps-matrix tbody tr").nth(2)
        assert row.locator("th").inner_text() == "king"
        shown = [float(x.replace("−", "-")) for x in row.locator("td").all_inner_texts()]
        assert shown[: len(wanted[name])] == wanted[name]
        assert len(wanted[name]) == 10


def test_the_keyboard_walks(page: Page) -> None:
    opened(page)
    page.get_by_label("English sentence").focus()
    page.keyboard.press("Enter")
    page.locator(".steps-matrix").wait_for()
    page.locator(".steps-matrix [tabindex='0']").focus()
    place = "(({ parentElement: row, cellIndex }) => [row.rowIndex, cellIndex])(document.activeElement)"
    for key, row, column in [
        ("ArrowDown", 2, 1),
        ("ArrowDown", 3, 1),
        ("ArrowUp", 2, 1),
        ("ArrowRight", 2, 2),
        ("ArrowLeft", 2, 1),
        ("End", 2, 128),
        ("ArrowRight", 2, 128),  # it goes nowhere
        ("Home", 2, 1),
        ("ArrowUp", 1, 1),
        ("ArrowUp", 1, 1),
        ("End", 1, 128),
    ]:
        page.keyboard.press(key)
        assert page.evaluate(place) == [row, column], key
    assert page.locator(".steps-matrix [tabindex='0']").count() == 1
    said = page.locator("[aria-live]").inner_text()
    assert said.startswith("Number 128 of ")
    page.get_by_role("button", name="Next →").focus()
    for _ in range(20):  # to the last step and no further
        page.keyboard.press("Enter")
        if page.get_by_role("button", name="Next →").is_disabled():
            break
    assert page.locator("[aria-current='step']").inner_text() == "12 Output"
    assert page.evaluate("document.activeElement.textContent") == "12 Output"
    for key, step in [("ArrowRight", "12 Output"), ("ArrowLeft", "11 Heads side by side")]:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent") == step


def test_a_link_shows_what_it_says(page: Page) -> None:
    address = f"#steps?say={KING}&kind=cross&layer=2&head=3&step=9&row=2&column=4".replace(" ", "+")
    opened(page, address)
    page.locator(".steps-matrix").wait_for()
    assert page.get_by_label("English sentence").input_value() == KING
    assert [page.get_by_label(name).input_value() for name in ("Attention", "Layer", "Head")] == ["cross", "1", "2"]
    assert page.locator("[aria-current='step']").inner_text() == "9 Softmax"
    cell = page.locator("[aria-selected='true']")
    assert cell.evaluate("cell => [cell.parentElement.rowIndex, cell.cellIndex]") == [2, 4]
    assert page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('head')") == "3"
    page.wait_for_timeout(400)  # the address is written once it is still
    again = page.evaluate("location.hash")
    opened(page, again)
    page.locator(".steps-matrix").wait_for()
    page.wait_for_timeout(400)
    assert page.evaluate("location.hash") == again


@pytest.mark.parametrize(
    "query", ["kind=no&layer=99&head=-4&step=1e9&row=x", "step=999&row=999&column=999", "%E0%A4%A"]
)
def test_a_broken_link_shows_something(page: Page, query: str) -> None:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    opened(page, f"#steps?{query}")
    page.locator(".steps-matrix").wait_for()
    assert not complaints


def test_unknown_words_are_named(page: Page) -> None:
    opened(page)
    page.get_by_label("English sentence").fill("The zebra sees a robot.")
    page.get_by_role("button", name="Show", exact=True).click()
    page.locator("details").wait_for()
    assert "“zebra”, “robot”" in page.locator(".steps-status").inner_text()


def test_accessible_and_narrow(page: Page) -> None:
    opened(page, f"#steps?say={KING}&kind=decoder&layer=2&head=4&step=8".replace(" ", "+"))
    page.locator(".steps-matrix").wait_for()
    try:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
            for step in (1, 9) if scheme == "light" else (9,):
                page.get_by_role("button", name=re.compile(rf"^{step} ")).click()
                page.wait_for_timeout(200)  # the theme's transition of colours
                faults = Axe().run(page, context=".live-steps").response["violations"]
                assert not [fault for fault in faults if fault["impact"] in ("serious", "critical")]
        page.set_viewport_size(PHONE)
        assert not page.evaluate(WIDE)
    finally:
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1280, "height": 900})


def test_without_javascript_it_says_something(page: Page) -> None:
    context = page.context.browser.new_context(java_script_enabled=False)
    try:
        plain = opened(context.new_page())
        assert "Equation (1)" in plain.locator(".live-steps").inner_text()
    finally:
        context.close()
