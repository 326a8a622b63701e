"""The translator in the page computes what PyTorch does, without a server, and its state is in the address."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import matplotlib
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from built import need_site
from playwright.sync_api import Page
from test_pages import chromium

from transformer.corpus import embedded_corpus, vocabulary
from transformer.decoding import beam_search, greedy_decode
from transformer.translator import load_toy_translator
from transformer.visualization import look_at, without_heads

pytestmark = [pytest.mark.book, pytest.mark.browser]

N_SENTENCES = 200
TIRED = "The animal did not cross the street because it was too tired."
WIDE = TIRED.replace("tired", "wide")
# What the page's scripts make of sentences, without the page's form.
COMPUTE = """(texts) => {
  const { Transformer, Tokenizer, readSafetensors, greedy, beam, BEGIN, END } = LiveTransformer;
  const bytes = Uint8Array.from(atob(given.weights), (character) => character.charCodeAt(0));
  const model = new Transformer(readSafetensors(bytes.buffer), given.config), tokenizer = new Tokenizer(given.pieces);
  return texts.map((text, number) => {
    const source = [...tokenizer.encode(text), END], written = greedy(model, source), found = beam(model, source);
    const cache = model.begin(model.encode(source).memory);
    const logits = [BEGIN, ...written.ids].map((id) => Array.from(model.step(cache, id).logits));
    return { source, greedy: written.ids, text: tokenizer.decode(written.ids), beam: found.ids, score: found.score,
             logits: number < 20 ? logits : logits.slice(-1) };
  });
}"""


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    """One page of a browser without a network."""
    with chromium() as browser:
        page = browser.new_context(reduced_motion="reduce").new_page()
        page.set_default_timeout(60_000)
        yield page


def open_page(page: Page, name: str = "translator", address: str = "") -> Page:
    page.goto("about:blank")  # else a change of the address alone would not load the page anew
    page.goto(f"{(need_site() / 'book' / f'{name}.html').as_uri()}{address}")
    return page


def address_of(page: Page) -> str:
    """The state in the address, once it has been written."""
    page.wait_for_timeout(400)
    return str(page.evaluate("location.hash"))


def pieces(page: Page, language: str = "German") -> list[str]:
    return page.locator(f".live-row[aria-label^='{language}'] button").all_inner_texts()


def weights(page: Page, empty: int | None = None) -> list[list[int]]:
    """The table's numbers, a row a head or a piece; `empty` is what stands for cells without a number."""
    rows = page.locator(".live-weights tbody tr").all()
    return [[int(text or empty) for text in row.locator("td").all_inner_texts()] for row in rows]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model_page(browser_page: Page) -> Iterator[Page]:
    """Another page, with the model's data in `given`."""
    page = open_page(browser_page.context.new_page())
    page.evaluate("globalThis.liveTransformerModel = (model) => { globalThis.given = model; }")
    page.add_script_tag(url=(need_site() / "_static" / "translator" / "model.js").as_uri())
    page.wait_for_function("globalThis.given !== undefined")
    yield page
    page.close()


@pytest.fixture(scope="module")
def computed(model_page: Page) -> list[dict[str, Any]]:
    """What the page makes of unseen sentences of the embedded corpus."""
    page = model_page
    texts = [pair.source for pair in islice(embedded_corpus("test", seed=0), N_SENTENCES)]
    return [{"said": text, **result} for text, result in zip(texts, page.evaluate(COMPUTE, texts), strict=True)]


@pytest.mark.slow
def test_logits_are_those_of_torch(computed: list[dict[str, Any]]) -> None:
    translator = load_toy_translator()
    for one in computed:
        with torch.inference_mode():
            logits = translator.model(torch.tensor([one["source"]]), torch.tensor([[1, *one["greedy"]]]))[0]
        found = torch.tensor(one["logits"])  # of all steps, or of the last
        assert (found - logits[-len(found) :]).abs().max() < 1e-3, one["said"]


def test_weights_have_the_colours_of_the_charts(model_page: Page) -> None:
    shares = [i / 100 for i in range(101)]
    styles = model_page.evaluate("(shares) => shares.map(LiveParts.shade)", shares)
    found = [[int(part) for part in re.findall(r"\d+", style)[:3]] for style in styles]
    wanted = 255 * matplotlib.colormaps["viridis"](shares)[:, :3]
    assert abs(found - wanted).max() < 8


@pytest.mark.slow
def test_pieces_and_translations_are_those_of_the_package(computed: list[dict[str, Any]]) -> None:
    translator = load_toy_translator()
    for one in computed:
        source = [*translator.tokenizer.encode(one["said"]), 2]
        assert one["source"] == source
        ids = greedy_decode(translator.model, torch.tensor([source]))[0]
        assert (one["greedy"], one["text"]) == (ids, translator.tokenizer.decode(ids))
        best = beam_search(translator.model, torch.tensor([source]))[0][0]
        assert one["beam"] == best.ids, one["said"]
        assert one["score"] == pytest.approx(best.score, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["ärger Über  42 😀", "don't ▁x", "Größe, naïve 中文", "<0x41> <pad>"])
def test_any_text_is_cut_as_sentencepiece_cuts_it(model_page: Page, text: str) -> None:
    assert model_page.evaluate("(text) => new LiveTransformer.Tokenizer(given.pieces).encode(text)", text) == (
        load_toy_translator().tokenizer.encode(text)
    )


def test_a_translation_and_where_its_heads_look(browser_page: Page) -> None:
    page = open_page(browser_page)
    assert page.locator(".live-weights").count() == 0, "the model is fetched when it is asked for, not before"
    page.locator(".live-go").click()
    page.locator(".live-weights").wait_for()
    expected = look_at(load_toy_translator(), TIRED)
    assert page.locator(".live-status strong").inner_text() == load_toy_translator().translate([TIRED])[0]
    place = pieces(page).index("es")
    page.locator(".live-row[aria-label^='German'] button").nth(place).focus()
    shown = torch.tensor(weights(page))  # (layers · heads, n)
    seen = torch.as_tensor(expected.part("cross")[0]).flatten(0, 1)[:, place]
    assert (shown / 100 - seen).abs().max() < 0.006
    assert page.locator(".live-next .live-taken").inner_text().startswith("es")
    lives, dropped = (
        page.locator(f".live-rounds tr.live-{what} td:nth-child(2)").all_inner_texts() for what in ("lives", "dropped")
    )
    assert len(lives) == 4 and dropped
    assert not [one for one in dropped if any(other.startswith(f"{one} ") for other in lives)]


def test_heads_can_be_turned_off(browser_page: Page) -> None:
    page = open_page(browser_page)
    page.locator(".live-go").click()
    boxes = page.locator(".live-weights input")
    for row in (6, 7):
        boxes.nth(row).click()
        page.wait_for_selector(f".live-status:has-text('{row - 5} of the heads off')")
    translator = load_toy_translator()
    with without_heads(translator.model, [("cross", 1, 2), ("cross", 1, 3)]):
        assert page.locator(".live-status strong").inner_text() == translator.translate([TIRED])[0]
    assert page.evaluate("document.activeElement.type") == "checkbox", "the focus stays where it was"


def test_the_address_holds_the_state(browser_page: Page) -> None:
    page = open_page(browser_page)
    page.locator(".live-example", has_text="too wide").click()
    page.locator(".live-weights").wait_for()
    page.select_option("#live-0-kind", "decoder")
    page.locator(".live-row[aria-label^='German'] button", has_text="sie").focus()
    before, address = weights(page), address_of(page)
    open_page(page, address=address)
    page.locator(".live-weights").wait_for()
    assert page.locator("#live-0-say").input_value() == WIDE
    assert page.locator("#live-0-kind").input_value() == "decoder"
    assert page.locator(".live-piece[aria-pressed='true']").all_inner_texts() == ["sie"]
    assert weights(page) == before


def test_one_head_shows_its_map(browser_page: Page) -> None:
    page = open_page(browser_page)
    page.locator(".live-go").click()
    page.locator(".live-weights").wait_for()
    seen = look_at(load_toy_translator(), TIRED)
    for kind in ("cross", "encoder", "decoder"):
        page.select_option("#live-0-kind", kind)
        page.select_option("#live-0-head", "2.3")
        rows = weights(page, empty=0)
        wanted = torch.as_tensor(seen.part(kind)[0])[1, 2]
        assert len(rows) == len(wanted)
        assert (torch.tensor(rows) / 100 - wanted).abs().max() < 0.006
    address = address_of(page)
    assert "head=2.3" in address
    open_page(page, address=address)
    page.locator(".live-weights").wait_for()
    assert page.locator("#live-0-head").input_value() == "2.3"
    assert weights(page, empty=0) == rows


def test_pieces_come_one_by_one_where_motion_is_welcome(browser_page: Page) -> None:
    page = browser_page
    try:
        for motion in ("no-preference", "reduce"):
            page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
            open_page(page)
            page.locator(".live-go").click()
            page.locator(".live-weights").wait_for()
            moves = motion == "no-preference"
            assert bool(page.locator(".live-unwritten").count()) == moves
            assert bool(page.locator(".live-status strong").count()) != moves, (
                "the sentence is there when it is written"
            )
            page.wait_for_function("!document.querySelector('.live-unwritten')")
            assert page.locator(".live-status strong").inner_text() == load_toy_translator().translate([TIRED])[0]
    finally:
        page.emulate_media(reduced_motion="reduce")


def test_words_can_be_picked(browser_page: Page) -> None:
    page = open_page(browser_page)
    page.locator(".live-words summary").click()
    page.locator(".live-weights").wait_for()
    page.select_option("[aria-label='verb']", "throws away")
    page.select_option("[aria-label='object']", "letter")
    page.select_option("[aria-label='subject']", "queen")
    page.select_option("[aria-label='adjective']", "old")
    sentence = page.locator("#live-0-say").input_value()
    assert re.fullmatch(r"The old queen throws away the \w+ letter\.", sentence)
    assert page.locator(".live-status strong").inner_text() == load_toy_translator().translate([sentence])[0]
    offered = {
        text
        for select in page.locator(".live-words select").all()
        for text in select.locator("option").all_inner_texts()
    }
    known = set(vocabulary())
    assert len(offered) > 60 and all(word in known for text in offered for word in text.split())


def test_unknown_words_get_a_kind_word(browser_page: Page) -> None:
    page = open_page(browser_page)
    page.fill("#live-0-say", "The zebra sees a quark 😀.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".live-body details")
    told = page.locator(".live-status").inner_text()
    assert "zebra" in told and "quark" in told and "😀" in told and "sees" not in told
    page.locator(".live-body summary").click()
    assert "animal" in page.locator(".live-body details p").inner_text().split(", ")
    page.fill("#live-0-say", "  ")
    page.keyboard.press("Enter")
    assert "Type an English sentence" in page.locator(".live-status").inner_text()


@pytest.mark.parametrize("address", ["#live?say=%E0%A4%A&at=-7&kind=no&head=9.9&off=a,b", "#live?at=1e99&say=The+dog"])
def test_a_broken_link_does_no_harm(browser_page: Page, address: str) -> None:
    complaints: list[str] = []
    browser_page.on("pageerror", lambda error: complaints.append(str(error)))
    page = open_page(browser_page, address=address)
    page.wait_for_function("document.querySelector('.live-status').textContent.length > 0")
    page.wait_for_function("!document.querySelector('.live-status').textContent.startsWith('Fetching')")
    assert not complaints


@pytest.mark.parametrize(("name", "scheme"), [("translator", "light"), ("translator", "dark"), ("index", "dark")])
def test_it_is_accessible_and_fits_a_phone(browser_page: Page, name: str, scheme: str) -> None:
    page = browser_page
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": 360, "height": 800})
    open_page(page, name)
    page.locator(".live-go").click()
    page.locator(".live-weights").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    faults = Axe().run(page, context=".live-translator").response["violations"]
    assert not [fault for fault in faults if fault["impact"] in ("serious", "critical")], json.dumps(faults)[:2000]
    page.set_viewport_size({"width": 1200, "height": 900})
    page.emulate_media(color_scheme="light")


def test_without_scripts_the_page_still_says_something() -> None:
    for name in ("translator", "index"):
        html = (need_site() / "book" / f"{name}.html").read_text(encoding="utf-8")
        assert "The translator needs JavaScript." in html
        assert "translator/model.js" not in html, "the weights must not delay the page"
