/* The live translator: a sentence, its translation, and for the piece picked what every head looks at.

   The model (2 MB) is fetched when it is first asked for. The state lives in the address: sentence, search, kind of
   attention, piece, heads that are off. */

(() => {
"use strict";

const { END, greedy, beam, headName } = LiveTransformer;
const { load, make, pieceName, shade, unknown } = LiveParts;
const KINDS = {
  cross: "German looks at English (encoder–decoder attention)",
  decoder: "German looks at German (decoder self-attention)",
  encoder: "English looks at English (encoder self-attention)",
};
const percent = (weight) => `${Math.round(100 * weight)}`;

/* ------------------------------------------------------------------------------------------ one translator */

class LiveTranslator {
  constructor(place, number) {
    const fixed = JSON.parse(place.dataset.examples);
    this.full = place.dataset.size === "full";
    this.state = { say: fixed[0], search: "beam", kind: "cross", at: 0, off: [] };
    const id = (name) => `live-${number}-${name}`;
    this.input = make("input", { id: id("say"), type: "text", value: fixed[0], autocomplete: "off", spellcheck: "false", maxlength: "200" });
    this.search = make("select", { id: id("search") }, new Option("beam of 4", "beam"), new Option("greedy", "greedy"));
    const kinds = Object.entries(KINDS).map(([kind, words]) => new Option(words, kind));
    this.kind = make("select", { id: id("kind") }, ...kinds);
    this.status = make("p", { role: "status", class: "live-status" });
    this.body = make("div", { class: "live-body" });
    const examples = fixed.map((text) => {
      const button = make("button", { type: "button", class: "live-example" }, text);
      button.addEventListener("click", () => this.say(text));
      return button;
    });
    this.form = make("form", { class: "live-form" },
      make("label", { for: id("say") }, "English sentence"), this.input,
      make("button", { type: "submit", class: "live-go" }, "Translate"),
      make("label", { for: id("search") }, "Search"), this.search,
      make("div", { class: "live-examples", role: "group", "aria-label": "Examples" }, ...examples));
    this.kindRow = make("p", { class: "live-kind" }, make("label", { for: id("kind") }, "Show how "), this.kind);
    place.replaceChildren(this.form, this.status, this.body);
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.say(this.input.value); });
    this.search.addEventListener("change", () => this.translate());
    this.kind.addEventListener("change", () => this.pick(0));
    this.readAddress();
  }

  /** A link may carry a state: #live?say=…&kind=…&at=… */
  readAddress() {
    const [name, query] = location.hash.split("?");
    if (name !== "#live" || !query) return;
    const given = new URLSearchParams(query);
    this.input.value = given.get("say") ?? this.input.value;
    if (given.get("search") === "greedy") this.search.value = "greedy";
    if (given.get("kind") in KINDS) this.kind.value = given.get("kind");
    this.state.at = Number(given.get("at")) || 0;
    this.state.off = (given.get("off") ?? "").split(",").filter(Boolean);
    this.translate();
  }

  writeAddress() {
    const query = new URLSearchParams({ say: this.input.value, search: this.search.value, kind: this.kind.value, at: this.state.at });
    if (this.state.off.length) query.set("off", this.state.off.join(","));
    history.replaceState(null, "", `#live?${query}`);
  }

  say(sentence) {
    this.input.value = sentence;
    this.state.at = 0;
    this.translate();
  }

  async translate() {
    const sentence = this.input.value.trim();
    if (!sentence) {
      this.status.textContent = "Type an English sentence, or choose one of the examples.";
      return;
    }
    if (!this.tools) {
      this.status.textContent = "Fetching the model (2 MB) …";
      try {
        this.tools = await load();
      } catch (error) {
        this.status.textContent = `Sorry, ${error.message}. Try again; the picture on this page shows what it does.`;
        return;
      }
    }
    const { model, tokenizer, words } = this.tools;
    const strange = unknown(sentence, words);
    if (strange.length) return this.explain(strange);
    const source = [...tokenizer.encode(sentence), END], off = new Set(this.state.off), begun = performance.now();
    this.result = this.search.value === "greedy" ? greedy(model, source, off) : beam(model, source, { off });
    const time = performance.now() - begun;
    const show = (id) => pieceName(tokenizer.pieces, id);
    this.source = source.map(show);
    this.written = this.result.steps.map((step) => show(step.id));
    this.german = tokenizer.decode(this.result.ids);
    const without = off.size ? ` with ${off.size} of the heads off` : "";
    this.status.replaceChildren(make("strong", { lang: "de" }, this.german || "(nothing)"), ` (${Math.round(time)} ms${without})`);
    this.draw();
  }

  /** The model knows one small language. */
  explain(strange) {
    const list = [...this.tools.words].join(", ");
    this.status.textContent =
      `The model has never met ${strange.map((word) => `“${word}”`).join(", ")}. It knows the ${this.tools.words.size} words of a small grammar.`;
    this.body.replaceChildren(make("details", {}, make("summary", {}, "All words that it knows"), make("p", {}, list)));
  }

  draw() {
    this.english = this.row("English pieces", this.source, "encoder", "en");
    this.deutsch = this.row("German pieces, as they were written", this.written, "german", "de");
    this.caption = make("p", { class: "live-label" });
    this.table = make("div", { class: "live-scroll", tabindex: "0", role: "region" });
    this.next = make("div", { class: "live-next" });
    this.rounds = make("div", { class: "live-rounds" });
    this.body.replaceChildren(this.kindRow, this.english, this.deutsch, this.caption, this.table, this.next, this.rounds);
    this.pick(this.state.at);
  }

  /** Pieces as buttons: pointing at one, or moving the focus to it, picks it. */
  row(label, pieces, side, lang) {
    const buttons = pieces.map((piece, at) => {
      const button = make("button", { type: "button", class: "live-piece", lang }, piece);
      const pick = () => {
        if ((this.kind.value === "encoder") !== (side === "encoder")) this.kind.value = side === "encoder" ? "encoder" : "cross";
        this.pick(at);
      };
      button.addEventListener("pointerenter", pick);
      button.addEventListener("focus", pick);
      button.addEventListener("click", pick);
      return button;
    });
    return make("div", { class: "live-row", role: "group", "aria-label": label }, make("span", { class: "live-label" }, label), ...buttons);
  }

  pick(at) {
    if (!this.result) return;
    const kind = this.kind.value, inSource = kind === "encoder";
    const chosen = this.state.at = Math.min(at, (inSource ? this.source : this.written).length - 1);
    for (const [row, active] of [[this.english, inSource], [this.deutsch, !inSource]])
      row.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(active && i === chosen)));
    this.drawWeights(kind, chosen);
    if (this.full) {
      this.next.replaceChildren(...(inSource ? [] : this.nextPieces(chosen)));
      this.rounds.replaceChildren(...(inSource || !this.result.rounds ? [] : this.beamAt(chosen)));
    }
    this.writeAddress();
  }

  /** Rows are all heads of all layers, columns what the piece may look at. */
  drawWeights(kind, at) {
    const step = this.result.steps[at];
    const layers = kind === "encoder" ? this.result.encoder.map((layer) => layer[at]) : kind === "decoder" ? step.self : step.cross;
    const columns = kind === "decoder" ? ["(begin)", ...this.written.slice(0, at)] : this.source;
    const piece = kind === "encoder" ? this.source[at] : this.written[at];
    const what = kind === "encoder" ? `Where “${piece}” looks` : `Where each head looks when “${piece}” is written`;
    const head = make("tr", {}, make("th", { scope: "col" }, "head"), ...columns.map((text) => make("th", { scope: "col" }, text)));
    const rows = layers.flatMap((heads, layer) => heads.map((weights, number) => {
      const name = headName(kind, layer, number), box = make("input", { type: "checkbox", checked: !this.state.off.includes(name) });
      box.addEventListener("change", () => {
        this.state.off = box.checked ? this.state.off.filter((other) => other !== name) : [...this.state.off, name];
        this.translate().then(() => this.table.querySelectorAll("input")[layer * heads.length + number]?.focus());
      });
      const label = make("label", {}, box, ` ${layer + 1}.${number + 1}`);
      return make("tr", {}, make("th", { scope: "row" }, label), ...Array.from(weights, (weight) => make("td", { style: shade(weight) }, percent(weight))));
    }));
    this.caption.textContent = `${what}: percent of its attention, for layer.head. Untick a head to switch it off.`;
    this.table.setAttribute("aria-label", what);
    this.table.replaceChildren(make("table", { class: "live-weights" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  nextPieces(at) {
    const pieces = this.tools.tokenizer.pieces, step = this.result.steps[at];
    const bars = step.best.slice(0, 8).map(([id, logP]) => {
      const p = Math.exp(logP), name = pieceName(pieces, id);
      const bar = make("span", { class: "live-bar", style: `inline-size: ${(60 * p).toFixed(2)}%`, "aria-hidden": "true" });
      return make("li", id === step.id ? { class: "live-taken" } : {}, make("span", { class: "live-name", lang: "de" }, name), bar, ` ${(100 * p).toFixed(1)} %`);
    });
    return [make("h3", {}, "What it would write here"), make("ol", {}, ...bars)];
  }

  /** The hypotheses after this step: those that live, that ended, and that were dropped. */
  beamAt(at) {
    const text = (ids) => this.tools.tokenizer.decode(ids) || "(nothing)";
    const round = this.result.rounds[at], before = this.result.rounds[at - 1]?.live ?? [];
    const goesOn = (one) => [...round.live, ...round.ended].some(({ ids }) => one.ids.every((id, i) => ids[i] === id));
    const line = (one, what) => make("tr", { class: `live-${what}` }, make("td", {}, what), make("td", { lang: "de" }, text(one.ids)), make("td", {}, one.score.toFixed(2)));
    const rows = [
      ...round.live.map((one) => line(one, "lives")), ...round.ended.map((one) => line(one, "ended")),
      ...before.filter((one) => !goesOn(one)).map((one) => line(one, "dropped")),
    ];
    const head = make("tr", {}, ...["", "beginning", "score"].map((name) => make("th", { scope: "col" }, name)));
    return [make("h3", {}, `The beam after step ${at + 1}`), make("div", { class: "live-scroll", tabindex: "0", role: "region", "aria-label": "The beam" },
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)))];
  }
}

document.addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll(".live-translator").forEach((place, number) => new LiveTranslator(place, number)));
})();
