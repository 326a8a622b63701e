/* The live translator: a sentence, its translation, and for the piece picked what every head looks at.

   The model (2 MB) is fetched when it is first asked for. The state lives in the address: sentence, search, kind of
   attention, layer and head, piece, heads that are off. */

(() => {
"use strict";

const { END, greedy, beam, headName } = LiveTransformer;
const { load, make, pieceName, remember, shade, unknown } = LiveParts;
const KINDS = {
  cross: "German looks at English (encoder–decoder attention)",
  decoder: "German looks at German (decoder self-attention)",
  encoder: "English looks at English (encoder self-attention)",
};
const PACE = 120; // milliseconds from one German piece to the next
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
    this.head = make("select", { id: id("head") }, new Option("all heads", ""));
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
      make("span", { class: "live-search" }, make("label", { for: id("search") }, "Search"), this.search),
      make("div", { class: "live-examples", role: "group", "aria-label": "Examples" }, ...examples));
    this.words = make("details", { class: "live-words" }, make("summary", {}, "Or pick words"));
    this.kindRow = make("p", { class: "live-kind" }, make("label", { for: id("kind") }, "Show how "), this.kind,
      make("label", { for: id("head") }, "in"), this.head);
    place.replaceChildren(this.form, this.words, this.status, this.body);
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.say(this.input.value); });
    this.search.addEventListener("change", () => this.translate());
    this.kind.addEventListener("change", () => this.pick(0));
    this.head.addEventListener("change", () => this.pick(this.state.at));
    this.words.addEventListener("toggle", () => this.offerWords());
    addEventListener("hashchange", () => this.readAddress());
    this.readAddress();
  }

  /** A link may carry a state: #live?say=…&kind=…&head=…&at=… */
  readAddress() {
    const [name, query] = location.hash.split("?");
    if (name !== "#live" || !query) return;
    const given = new URLSearchParams(query);
    this.input.value = (given.get("say") ?? this.input.value).slice(0, 200);
    if (given.get("search") === "greedy") this.search.value = "greedy";
    if (given.get("kind") in KINDS) this.kind.value = given.get("kind");
    this.asked = /^\d\.\d$/.test(given.get("head") ?? "") ? given.get("head") : "";
    if (this.tools) this.head.value = this.asked;
    this.state.at = Math.max(0, Math.floor(Number(given.get("at"))) || 0);
    this.state.off = (given.get("off") ?? "").split(",").filter((name) => /^(encoder|decoder|cross)\.\d\.\d$/.test(name));
    this.translate();
  }

  writeAddress() {
    const query = new URLSearchParams({ say: this.input.value, search: this.search.value, kind: this.kind.value, at: this.state.at });
    if (this.head.value) query.set("head", this.head.value);
    if (this.state.off.length) query.set("off", this.state.off.join(","));
    remember(`#live?${query}`);
  }

  say(sentence) {
    this.input.value = sentence;
    this.state.at = 0;
    this.translate(true);
  }

  /** The model, or null after saying why there is none. */
  async fetchModel() {
    if (this.tools) return this.tools;
    this.status.textContent = "Fetching the model (2 MB) …";
    try {
      this.tools = await load();
    } catch (error) {
      this.status.textContent = `Sorry, ${error.message}. Try again; the picture on this page shows what it does.`;
      return null;
    }
    const { layers, heads } = this.tools.model;
    for (let i = this.head.length - 1; i < layers * heads; i++) { // "all heads" is there
      const name = `${Math.floor(i / heads) + 1}.${(i % heads) + 1}`;
      this.head.append(new Option(`layer ${name[0]}, head ${name[2]}`, name, false, name === this.asked));
    }
    this.status.textContent = "";
    return this.tools;
  }

  /** Translate what is typed. `slowly` shows the German piece by piece, where motion is welcome. */
  async translate(slowly = false) {
    this.finish?.();
    const sentence = this.input.value.trim();
    if (!sentence) {
      this.status.textContent = "Type an English sentence, or choose one of the examples.";
      return;
    }
    if (!(await this.fetchModel())) return;
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
    this.draw();
    const tell = () => this.status.replaceChildren(make("strong", { lang: "de" }, this.german || "(nothing)"), ` (${Math.round(time)} ms${without})`);
    if (slowly && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.reveal(tell);
    else tell();
  }

  /** Let the German pieces come one by one, as the model wrote them; the table follows. Then, or when somebody picks a
      piece, all are there. */
  reveal(then) {
    const buttons = [...this.deutsch.querySelectorAll("button")];
    buttons.forEach((button) => button.classList.add("live-unwritten"));
    this.status.textContent = "Translating …";
    let next = 0;
    const timer = setInterval(() => {
      buttons[next].classList.remove("live-unwritten");
      if (this.kind.value !== "encoder") this.show(next);
      if (++next === buttons.length) this.pick(0);
    }, PACE);
    this.finish = () => {
      clearInterval(timer);
      buttons.forEach((button) => button.classList.remove("live-unwritten"));
      this.finish = null;
      then();
    };
  }

  /** Selects for the words of a simple sentence, which go together as in the grammar. */
  async offerWords() {
    if (!this.words.open || !(await this.fetchModel()) || this.words.querySelector("select")) return;
    const { adjectives, subjects, objects } = this.tools.choices;
    const fill = (select, names, wanted = select.value) => {
      select.replaceChildren(...names.map((name) => new Option(name, name, false, name === wanted)));
      return select.value;
    };
    const [first, person, verb, second, object] = ["adjective", "subject", "verb", "adjective of the object", "object"]
      .map((label) => make("select", { "aria-label": label }));
    const say = () => {
      fill(person, subjects[verb.value]);
      fill(object, objects[verb.value]);
      fill(first, adjectives[person.value]);
      fill(second, adjectives[object.value]);
      this.say(`The ${first.value} ${person.value} ${verb.value} the ${second.value} ${object.value}.`);
    };
    const verbs = Object.keys(objects);
    fill(verb, verbs, verbs.includes("sees") ? "sees" : verbs[0]);
    for (const select of [first, person, verb, second, object]) select.addEventListener("change", say);
    this.words.append(make("p", {}, "The ", first, " ", person, " ", verb, " the ", second, " ", object, "."));
    say();
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
      // A page that scrolls under a pointer at rest picks nothing.
      button.addEventListener("pointermove", (event) => { if ((event.movementX || event.movementY) && button.getAttribute("aria-pressed") !== "true") pick(); });
      button.addEventListener("focus", pick);
      button.addEventListener("click", pick);
      return button;
    });
    return make("div", { class: "live-row", role: "group", "aria-label": label }, make("span", { class: "live-label" }, label), ...buttons);
  }

  pick(at) {
    if (!this.result) return;
    this.finish?.();
    this.show(at);
    this.writeAddress();
  }

  show(at) {
    const kind = this.kind.value, inSource = kind === "encoder";
    const chosen = this.state.at = Math.min(at, (inSource ? this.source : this.written).length - 1);
    for (const [row, active] of [[this.english, inSource], [this.deutsch, !inSource]])
      row.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(active && i === chosen)));
    if (this.head.value) this.drawHead(kind, chosen);
    else this.drawWeights(kind, chosen);
    if (this.full) {
      this.next.replaceChildren(...(inSource ? [] : this.nextPieces(chosen)));
      this.rounds.replaceChildren(...(inSource || !this.result.rounds ? [] : this.beamAt(chosen)));
    }
  }

  /** The map of one head: a row for each piece. */
  drawHead(kind, at) {
    const [layer, head] = this.head.value.split(".").map((number) => number - 1);
    const looks = kind === "encoder" ? this.result.encoder[layer].map((heads) => heads[head])
      : this.result.steps.map((step) => (kind === "decoder" ? step.self : step.cross)[layer][head]);
    const rows = kind === "encoder" ? this.source : this.written;
    const columns = kind === "decoder" ? ["(begin)", ...this.written.slice(0, -1)] : this.source;
    const line = (weights, i) => make("tr", i === at ? { class: "live-here" } : {}, make("th", { scope: "row" }, rows[i]),
      ...columns.map((_, j) => (j < weights.length ? make("td", { style: shade(weights[j]) }, percent(weights[j])) : make("td", {}))));
    const what = `Layer ${layer + 1}, head ${head + 1}: where each piece looks`;
    this.fill(what, `${what}, in percent of its attention.`, columns, looks.map(line));
  }

  /** The table: its name, the words above it, its columns and rows. */
  fill(what, words, columns, rows) {
    const head = make("tr", {}, make("th", { scope: "col" }, this.head.value ? "piece" : "head"), ...columns.map((text) => make("th", { scope: "col" }, text)));
    this.caption.textContent = words;
    this.table.setAttribute("aria-label", what);
    this.table.replaceChildren(make("table", { class: "live-weights" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  /** Rows are all heads of all layers, columns what the piece may look at. */
  drawWeights(kind, at) {
    const step = this.result.steps[at];
    const layers = kind === "encoder" ? this.result.encoder.map((layer) => layer[at]) : kind === "decoder" ? step.self : step.cross;
    const columns = kind === "decoder" ? ["(begin)", ...this.written.slice(0, at)] : this.source;
    const piece = kind === "encoder" ? this.source[at] : this.written[at];
    const what = kind === "encoder" ? `Where “${piece}” looks` : `Where each head looks when “${piece}” is written`;
    const rows = layers.flatMap((heads, layer) => heads.map((weights, number) => {
      const name = headName(kind, layer, number), box = make("input", { type: "checkbox", checked: !this.state.off.includes(name) });
      box.addEventListener("change", () => {
        this.state.off = box.checked ? this.state.off.filter((other) => other !== name) : [...this.state.off, name];
        this.translate().then(() => this.table.querySelectorAll("input")[layer * heads.length + number]?.focus());
      });
      const label = make("label", {}, box, ` ${layer + 1}.${number + 1}`);
      return make("tr", {}, make("th", { scope: "row" }, label), ...Array.from(weights, (weight) => make("td", { style: shade(weight) }, percent(weight))));
    }));
    this.fill(what, `${what}: percent of its attention, for layer.head. Untick a head to switch it off.`, columns, rows);
  }

  nextPieces(at) {
    const pieces = this.tools.tokenizer.pieces, step = this.result.steps[at];
    const bars = step.best.slice(0, 8).map(([id, logP]) => {
      const p = Math.exp(logP), name = pieceName(pieces, id);
      const bar = make("span", { class: "live-bar", style: `inline-size: ${(40 * p).toFixed(2)}%`, "aria-hidden": "true" });
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
