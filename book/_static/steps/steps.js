/* Step through one attention: every matrix on the way from the embeddings to the output of W^O, with the trained model's
   numbers, and for the cell picked the very sum that made it.

   The model (2 MB) is fetched when it is first asked for. The state lives in the address: sentence, kind, layer, head,
   step and cell. tests/test_one_attention.py holds the numbers to PyTorch's. */

(() => {
"use strict";

const { BEGIN, END, greedy } = LiveTransformer;
const { load, make, pieceName, remember, shade, unknown } = LiveParts;
const KINDS = {
  encoder: "English looks at English (encoder self-attention)",
  decoder: "German looks at German (decoder self-attention)",
  cross: "German looks at English (encoder–decoder attention)",
};
const PLACES = { encoder: "encoder.layers.#.self_attention", decoder: "decoder.layers.#.self_attention", cross: "decoder.layers.#.memory_attention" };

/* ------------------------------------------------------------------------------------------- the numbers */

/** What one attention takes in, projects and gives out, for all its heads. `written` begins with the begin token. */
function trace(model, source, written, kind, layer) {
  const name = PLACES[kind].replace("#", layer), seen = [];
  model.onAttend = (one) => { if (one.name === name) seen.push(one); };
  try {
    const { memory } = model.encode(source), cache = model.begin(memory);
    for (const id of written) model.step(cache, id);
    const inputs = seen.map((one) => one.input);
    return {
      name, inputs, seenInputs: kind === "cross" ? memory : inputs, queries: seen.map((one) => one.query),
      keys: seen.at(-1).keys, values: seen.at(-1).values, mixed: seen.map((one) => one.mixed), outputs: seen.map((one) => one.output),
    };
  } finally {
    model.onAttend = null;
  }
}

const range = (n) => Array.from({ length: n }, (_, i) => i);
const dims = (n) => range(n).map((i) => `${i + 1}`);
const sum = (terms) => terms.reduce((a, b) => a + b, 0);
const show = (x) => (x === -Infinity ? "−∞" : x.toFixed(2).replace("-", "−").replace("−0.00", "0.00"));

/** The steps of one head, each a matrix with names for rows and columns, and for a cell how it came about.

    A zoom is a table with one column a term: `names` heads the columns, `lines` are [label, numbers]; `words` says it. */
function stepsOf(model, ids, tokens, kind, layer, head) {
  const t = trace(model, ids.source, ids.written, kind, layer), d = model.headWidth, from = head * d, root = Math.sqrt(d);
  const [mine, theirs] = kind === "encoder" ? [tokens.source, tokens.source] : [tokens.written, kind === "cross" ? tokens.source : tokens.written];
  const width = model.width, rows = (list) => list.map((row) => row.slice(from, from + d));
  const table = model.weights.get("embedding.weight");
  const queries = rows(t.queries), keys = rows(t.keys), values = rows(t.values), heads = rows(t.mixed);
  const scores = queries.map((q) => keys.map((k) => sum(Array.from(q, (x, i) => x * k[i]))));
  const scaled = scores.map((row) => row.map((x) => x / root));
  const masked = scaled.map((row, i) => row.map((x, j) => (kind === "decoder" && j > i ? -Infinity : x)));
  const exps = masked.map((row) => row.map((x) => Math.exp(x - Math.max(...row))));
  const weights = exps.map((row) => row.map((x) => x / sum(row)));
  const myIds = kind === "encoder" ? ids.source : ids.written;

  /** A projection: the row of inputs times a column of W, plus its bias. */
  const projected = (inputs, owners, part, letter) => (i, j) => {
    const weight = t.name + `.w_${part}`, column = from + j, bias = model.weights.get(`${weight}.bias`)[column];
    const w = model.weights.get(`${weight}.weight`).slice(column * width, (column + 1) * width), x = Array.from(inputs[i]);
    const products = x.map((value, c) => value * w[c]);
    return {
      names: dims(width), lines: [["input x", x], [`column ${j + 1} of W`, Array.from(w)], ["product", products]],
      words: `${letter} of “${owners[i]}”, number ${j + 1}: the ${width} products add up to ${show(sum(products))}, and the bias adds ${show(bias)}.`,
      terms: [...products, bias],
    };
  };
  const scoreZoom = (i, j) => {
    const products = Array.from(queries[i], (x, c) => x * keys[j][c]);
    return {
      names: dims(d), lines: [[`q of “${mine[i]}”`, Array.from(queries[i])], [`k of “${theirs[j]}”`, Array.from(keys[j])], ["product", products]],
      words: `How well the query of “${mine[i]}” fits the key of “${theirs[j]}”: ${d} products, whose sum is ${show(scores[i][j])}.`, terms: products,
    };
  };
  const one = (words, lines, names, terms) => ({ words, lines, names, terms });
  const all = [
    { title: "Embedding + position", formula: "x = √d_model · E + PE", columns: dims(width), rows: mine, matrix: myIds.map((id, i) => Array.from(model.embed(id, i))),
      text: `Each token is a row of ${width} numbers: its vector in the table E, times √${width}, plus sines and cosines of its position (Sections 3.4 and 3.5).`,
      zoom: (i, j) => {
        const e = table[myIds[i] * width + j] * Math.sqrt(width), all = model.embed(myIds[i], i)[j];
        return one(`Number ${j + 1} of “${mine[i]}” at position ${i}: ${show(e)} from its embedding and ${show(all - e)} from its position.`,
          [["", [e, all - e]]], ["√d_model · E", "PE"], [e, all - e]);
      } },
    { title: "Input of the layer", formula: layer ? `x = output of layer ${layer}` : "x", columns: dims(width), rows: mine, matrix: t.inputs.map((row) => Array.from(row)),
      text: kind === "cross" ? "What the queries are made of: the decoder's positions after its self-attention. Keys and values are made of the encoder's output."
        : layer ? `What layer ${layer} gave out. The last thing it did was to add and to normalise, so each row has about the same size.` : "The first layer takes the embeddings as they are.",
      zoom: (i, j) => one(`Number ${j + 1} of “${mine[i]}” is ${show(t.inputs[i][j])}. What made it lies before this attention.`, [], [], [t.inputs[i][j]]) },
    { title: "Queries", formula: "q = x W^Q + b", columns: dims(d), rows: mine, matrix: queries.map((row) => Array.from(row)),
      text: `This head's own ${d} columns of W^Q turn each row into a query: what this position looks for.`, zoom: projected(t.inputs, mine, "q", "q") },
    { title: "Keys", formula: "k = x W^K + b", columns: dims(d), rows: theirs, matrix: keys.map((row) => Array.from(row)),
      text: `W^K makes the keys: what each position offers to be found by.${kind === "cross" ? " They come from the English side." : ""}`, zoom: projected(t.seenInputs, theirs, "k", "k") },
    { title: "Values", formula: "v = x W^V + b", columns: dims(d), rows: theirs, matrix: values.map((row) => Array.from(row)),
      text: "W^V makes the values: what each position hands over to whoever looks at it.", zoom: projected(t.seenInputs, theirs, "v", "v") },
    { title: "Scores", formula: "q · k", columns: theirs, rows: mine, matrix: scores, text: "Every query meets every key in a dot product.", zoom: scoreZoom },
    { title: "Scaling", formula: "q · k / √d_k", columns: theirs, rows: mine, matrix: scaled,
      text: `Every score is divided by √${d} = ${show(root)}, so that the softmax keeps a gradient (Section 3.2.1).`,
      zoom: (i, j) => one(`${show(scores[i][j])} divided by ${show(root)} is ${show(scaled[i][j])}.`, [["", [scores[i][j], root]]], ["score", "√d_k"], [scaled[i][j]]) },
    { title: "Mask", formula: "−∞ where looking is illegal", columns: theirs, rows: mine, matrix: masked,
      text: kind === "decoder" ? "A position may not look at those after it: their scores become −∞ (Section 3.2.3)." : "Nothing is hidden here: every position may look at all others. Only the decoder's self-attention has a mask in a single sentence.",
      zoom: (i, j) => one(masked[i][j] === -Infinity ? `“${theirs[j]}” comes after “${mine[i]}”, so the score is replaced by −∞.` : `“${mine[i]}” may look at “${theirs[j]}”: the score stays ${show(masked[i][j])}.`, [], [], [masked[i][j]]) },
    { title: "Softmax", formula: "softmax(q · k / √d_k)", columns: theirs, rows: mine, matrix: weights, isWeight: true,
      text: "Each row becomes weights that are positive and add up to 1.",
      zoom: (i, j) => one(`Of “${mine[i]}”, ${show(100 * weights[i][j])} percent goes to “${theirs[j]}”: its exponential ${show(exps[i][j])} divided by the sum of the row, ${show(sum(exps[i]))}.`,
        [["scaled score", masked[i]], ["exp(score − largest)", exps[i]], ["weight", weights[i]]], theirs, [weights[i][j]]) },
    { title: "Weighted sum", formula: "Σ weight · v", columns: dims(d), rows: mine, matrix: heads.map((row) => Array.from(row)),
      text: "The output of the head: for each position the mean of the values, weighted by its row of weights.",
      zoom: (i, j) => {
        const v = values.map((row) => row[j]), products = v.map((x, c) => x * weights[i][c]);
        return one(`Number ${j + 1} of the head's output for “${mine[i]}”: the values' number ${j + 1}, each times its weight, add up to ${show(sum(products))}.`,
          [["weight", weights[i]], [`number ${j + 1} of v`, v], ["product", products]], theirs, products);
      } },
    { title: "Heads side by side", formula: "Concat(head_1, …, head_h)", columns: dims(width), rows: mine, matrix: t.mixed.map((row) => Array.from(row)), own: [from, from + d],
      text: `The outputs of all heads stand in one row. Those of head ${head + 1} are framed.`,
      zoom: (i, j) => one(`Number ${j + 1} of the row of “${mine[i]}” is number ${(j % d) + 1} of head ${Math.floor(j / d) + 1}.`, [], [], [t.mixed[i][j]]) },
    { title: "Output", formula: "Concat(…) W^O + b", columns: dims(width), rows: mine, matrix: t.outputs.map((row) => Array.from(row)),
      text: "W^O mixes the heads. This is what the sub-layer adds to its input (Section 3.1).",
      zoom: (i, j) => {
        const w = Array.from(model.weights.get(`${t.name}.w_o.weight`).slice(j * width, (j + 1) * width)), x = Array.from(t.mixed[i]);
        const products = x.map((value, c) => value * w[c]), bias = model.weights.get(`${t.name}.w_o.bias`)[j];
        return one(`Number ${j + 1} of the output for “${mine[i]}”: ${width} products add up to ${show(sum(products))}, and the bias adds ${show(bias)}.`,
          [["heads side by side", x], [`column ${j + 1} of W^O`, w], ["product", products]], dims(width), [...products, bias]);
      } },
  ];
  return all;
}

/* ------------------------------------------------------------------------------------------------ the page */

class Stepper {
  constructor(place) {
    this.place = place;
    place.stepper = this;
    const examples = JSON.parse(place.dataset.examples), hint = [...place.childNodes];
    this.state = { say: examples[0], kind: "encoder", layer: 0, head: 0, step: 0, row: 0, column: 0 };
    this.input = make("input", { id: "steps-say", type: "text", list: "steps-examples", autocomplete: "off", spellcheck: "false", maxlength: "120" });
    const choice = (name, options) => {
      const select = make("select", { id: `steps-${name}` }, ...options);
      select.addEventListener("change", () => this.go({ [name]: name === "kind" ? select.value : Number(select.value) }));
      return select;
    };
    this.kind = choice("kind", Object.entries(KINDS).map(([kind, words]) => new Option(words, kind)));
    this.layer = choice("layer", range(2).map((i) => new Option(`${i + 1}`, i)));
    this.head = choice("head", range(4).map((i) => new Option(`${i + 1}`, i)));
    const label = (text, control) => make("label", {}, `${text} `, control);
    this.form = make("form", { class: "steps-form" }, make("label", { for: "steps-say" }, "English sentence"), this.input,
      make("button", { type: "submit" }, "Show"), make("datalist", { id: "steps-examples" }, ...examples.map((text) => new Option(text))),
      label("Attention", this.kind), label("Layer", this.layer), label("Head", this.head));
    this.status = make("p", { role: "status", class: "steps-status" });
    this.body = make("div", { class: "steps-body" }, ...hint);
    place.replaceChildren(this.form, this.status, this.body);
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.go({ say: this.input.value.trim() }); });
    addEventListener("hashchange", () => this.readAddress());
    this.sync();
    this.readAddress();
  }

  /** A link may carry a state: #steps?say=…&kind=…&layer=…&head=…&step=…&row=…&column=… */
  readAddress() {
    const [name, query] = location.hash.split("?");
    if (name !== "#steps" || !query) return;
    const given = Object.fromEntries(new URLSearchParams(query)), asked = {};
    if (given.say) asked.say = given.say.slice(0, 120);
    if (given.kind in KINDS) asked.kind = given.kind;
    for (const key of ["layer", "head", "step", "row", "column"])
      if (/^\d{1,3}$/.test(given[key] ?? "")) asked[key] = Math.max(0, Number(given[key]) - 1);
    this.go(asked);
  }

  writeAddress() {
    const { say, kind, ...places } = this.state;
    const query = new URLSearchParams({ say, kind });
    for (const [key, value] of Object.entries(places)) query.set(key, value + 1);
    remember(`#steps?${query}`);
  }

  sync() {
    this.input.value = this.state.say;
    for (const name of ["kind", "layer", "head"]) this[name].value = this.state[name];
  }

  async go(changes) {
    Object.assign(this.state, changes);
    const { state } = this, within = (key, size) => { state[key] = Math.max(0, Math.min(state[key], size - 1)); };
    within("layer", 2);
    within("head", 4);
    this.sync();
    if (!state.say) { this.status.textContent = "Type an English sentence, or choose an example."; return; }
    if (!this.tools) {
      this.status.textContent = "Fetching the model (2 MB) …";
      try { this.tools = await load(); } catch (error) {
        this.status.textContent = `Sorry, ${error.message}. Try again.`;
        return;
      }
    }
    const { model, tokenizer, words } = this.tools, strange = unknown(state.say, words);
    if (strange.length) {
      this.status.textContent = `The model has never met ${strange.map((word) => `“${word}”`).join(", ")}.`;
      this.body.replaceChildren(make("details", {}, make("summary", {}, `The ${words.size} words that it knows`), make("p", {}, [...words].join(", "))));
      return;
    }
    const source = [...tokenizer.encode(state.say), END], { ids } = greedy(model, source), written = [BEGIN, ...ids];
    const piece = (id) => pieceName(tokenizer.pieces, id);
    const tokens = { source: source.map(piece), written: written.map(piece) };
    this.steps = stepsOf(model, { source, written }, tokens, state.kind, state.layer, state.head);
    within("step", this.steps.length);
    this.status.replaceChildren("The model translates: ", make("strong", { lang: "de" }, tokenizer.decode(ids)));
    this.draw();
  }

  draw() {
    const { state } = this, step = this.steps[state.step], last = this.steps.length - 1;
    const turn = (words, by) => {
      const button = make("button", { type: "button", disabled: state.step + by < 0 || state.step + by > last }, words);
      button.addEventListener("click", () => this.turn(by, words));
      return button;
    };
    const list = this.steps.map(({ title }, i) => {
      const button = make("button", { type: "button", ...(i === state.step ? { "aria-current": "step" } : {}) }, `${i + 1} ${title}`);
      button.addEventListener("click", () => { state.step = i; this.draw(); this.body.querySelector("[aria-current]").focus(); });
      return make("li", {}, button);
    });
    const nav = make("nav", { "aria-label": "Steps" }, make("ol", { class: "steps-list" }, ...list));
    nav.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) { event.preventDefault(); this.turn(by); }
    });
    this.table = this.matrix(step);
    this.zoom = make("div", { class: "steps-zoom" });
    this.says = make("p", { "aria-live": "polite" });
    this.body.replaceChildren(
      nav,
      make("div", { class: "steps-turn" }, turn("← Previous", -1), make("h2", { class: "steps-title" }, `${state.step + 1} ${step.title}`), turn("Next →", 1)),
      make("p", { class: "steps-formula" }, make("code", {}, step.formula)), make("p", {}, step.text),
      make("div", { class: "steps-scroll" }, this.table), this.says, this.zoom);
    this.pick(Math.min(state.row, step.rows.length - 1), Math.min(state.column, step.columns.length - 1));
  }

  /** Go on or back; the focus stays on the button of that name, or on the list where there is none to press. */
  turn(by, words) {
    this.state.step = Math.max(0, Math.min(this.state.step + by, this.steps.length - 1));
    this.draw();
    const button = [...this.body.querySelectorAll(".steps-turn button")].find((one) => one.textContent === words);
    (button && !button.disabled ? button : this.body.querySelector("[aria-current]")).focus();
  }

  /** The step's numbers as a grid: one cell can be reached with the Tab key, the arrow keys move on from there. */
  matrix(step) {
    const most = Math.max(...step.matrix.flatMap((row) => row.filter(Number.isFinite).map(Math.abs)));
    const tint = (x) => (Number.isFinite(x) ? `--part: ${Math.round(45 * Math.abs(x) / most)}%` : "");
    const cell = (x, i, j) => make("td", {
      role: "gridcell", tabindex: "-1", style: step.isWeight ? shade(x) : tint(x),
      class: [step.isWeight ? "" : x < 0 ? "steps-minus" : "steps-plus", step.own && j >= step.own[0] && j < step.own[1] ? "steps-own" : ""].join(" "),
    }, show(x));
    const head = make("tr", {}, make("td", {}), ...step.columns.map((text) => make("th", { scope: "col" }, text)));
    const rows = step.matrix.map((row, i) => make("tr", {}, make("th", { scope: "row" }, step.rows[i]), ...row.map((x, j) => cell(x, i, j))));
    const table = make("table", { role: "grid", class: "steps-matrix", "aria-label": `${step.title}: ${step.rows.length} by ${step.columns.length} numbers` },
      make("thead", {}, head), make("tbody", {}, ...rows));
    table.addEventListener("click", (event) => {
      const found = event.target.closest("tbody td");
      if (found) this.pick(found.parentElement.rowIndex - 1, found.cellIndex - 1, true);
    });
    table.addEventListener("keydown", (event) => {
      const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -1e9], End: [0, 1e9] }[event.key] ?? [];
      if (down === undefined) return;
      event.preventDefault();
      const clip = (x, n) => Math.max(0, Math.min(x, n - 1));
      this.pick(clip(this.state.row + down, step.rows.length), clip(this.state.column + right, step.columns.length), true);
    });
    return table;
  }

  pick(row, column, focus = false) {
    Object.assign(this.state, { row, column });
    const step = this.steps[this.state.step], zoom = step.zoom(row, column);
    this.table.querySelectorAll("[tabindex='0']").forEach((old) => { old.tabIndex = -1; old.removeAttribute("aria-selected"); });
    const cell = this.table.tBodies[0].rows[row].cells[column + 1];
    cell.tabIndex = 0;
    cell.setAttribute("aria-selected", "true");
    if (focus) cell.focus();
    this.says.textContent = zoom.words;
    this.zoom.replaceChildren(...(zoom.lines.length ? [this.terms(zoom)] : []));
    this.writeAddress();
  }

  terms({ names, lines, words }) {
    const head = make("tr", {}, make("td", {}), ...names.map((name) => make("th", { scope: "col" }, name)));
    const rows = lines.map(([label, numbers]) => make("tr", {}, make(label ? "th" : "td", label ? { scope: "row" } : {}, label), ...numbers.map((x) => make("td", {}, show(x)))));
    return make("div", { class: "steps-scroll", tabindex: "0", role: "region", "aria-label": "How this number came about" },
      make("table", {}, make("caption", {}, words), make("thead", {}, head), make("tbody", {}, ...rows)));
  }
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".live-steps").forEach((place) => new Stepper(place)));
})();
