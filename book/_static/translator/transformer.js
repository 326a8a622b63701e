/* The shipped model in the page: the formulas of Section 3, one vector a position, on plain typed arrays.

   readSafetensors  the weights, from the very file that the Python package ships
   Tokenizer        byte-pair pieces, as SentencePiece cuts them
   Transformer      encode() reads the source; step() writes one token; both keep every head's weights
   greedy, beam     decoding as in Section 6.1, with all that was considered on the way

   A classic script, so that it also runs from a file that was opened without a server; it defines LiveTransformer.
   tests/test_live_translator.py holds its logits and translations to PyTorch's. */

const LiveTransformer = (() => {
"use strict";

const BEGIN = 1, END = 2, UNKNOWN = 3;
const EXTRA_TOKENS = 50; // §6.1: at most the input's length + 50

/* ------------------------------------------------------------------------------------------- the files */

/** The 65,536 numbers that 16 bits can stand for: sign, 5 bits of exponent, 10 bits of fraction. */
function halfPrecision() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent === 0 ? fraction * 2 ** -24
      : exponent === 31 ? (fraction ? NaN : Infinity)
      : (1 + fraction / 1024) * 2 ** (exponent - 15);
    table[bits] = bits >> 15 ? -size : size;
  }
  return table;
}

/** Name → Float32Array, from a safetensors file of half-precision numbers. */
function readSafetensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const table = halfPrecision(), weights = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (entry.dtype !== "F16") throw new Error(`${name} is ${entry.dtype}; the page reads F16 only.`);
    const [start, end] = entry.data_offsets;
    const bits = new Uint16Array(buffer.slice(8 + length + start, 8 + length + end));
    weights.set(name, new Float32Array(bits.length).map((_, i) => table[bits[i]]));
  }
  return weights;
}

/* ---------------------------------------------------------------------------------------- the tokenizer */

/** Byte-pair encoding (§5.1): begin with characters; join the neighbours whose piece was learned first. */
class Tokenizer {
  constructor(pieces) {
    this.pieces = pieces;
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
  }

  encode(text) {
    const parts = [...("▁" + text.replaceAll(" ", "▁"))];
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const id = this.ids.get(parts[i] + parts[i + 1]) ?? Infinity;
        if (id < best) [best, at] = [id, i];
      }
      if (at < 0) break;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
    return parts.flatMap((part) => this.ids.has(part) ? [this.ids.get(part)] : this.#spell(part));
  }

  decode(ids) {
    const bytes = ids.filter((id) => id > UNKNOWN).flatMap((id) => {
      const byte = /^<0x([0-9A-F]{2})>$/.exec(this.pieces[id]);
      return byte ? [parseInt(byte[1], 16)] : [...new TextEncoder().encode(this.pieces[id])];
    });
    return new TextDecoder().decode(new Uint8Array(bytes)).replaceAll("▁", " ").replace(/^ /, "");
  }

  /** A character without a piece is spelled in the bytes of UTF-8. */
  #spell(character) {
    const name = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
    return [...new TextEncoder().encode(character)].map((byte) => this.ids.get(name(byte)));
  }
}

/* -------------------------------------------------------------------------------------------- the model */

/** Σ x[i] · w[at + i]. Four sums side by side: the processor need not wait for one addition to begin the next. */
function dot(x, w, at) {
  let a = 0, b = 0, c = 0, d = 0;
  for (let i = 0; i < x.length; i += 4) {
    a += x[i] * w[at + i];
    b += x[i + 1] * w[at + i + 1];
    c += x[i + 2] * w[at + i + 2];
    d += x[i + 3] * w[at + i + 3];
  }
  return a + b + c + d;
}

const add = (x, y) => x.map((value, i) => value + y[i]);

/** x in place: exp of each less the largest, divided by their sum. */
function softmax(x) {
  let largest = -Infinity, sum = 0;
  for (const value of x) if (value > largest) largest = value;
  for (let i = 0; i < x.length; i++) sum += x[i] = Math.exp(x[i] - largest);
  for (let i = 0; i < x.length; i++) x[i] /= sum;
  return x;
}

/** What a head's switch is called. */
const headName = (kind, layer, head) => `${kind}.${layer}.${head}`;

class Transformer {
  constructor(weights, config) {
    if (config.norm_order !== "post" || config.positions !== "sinusoidal" || !config.tie_embeddings)
      throw new Error("The page knows the paper's model only: post-norm, sinusoids, tied embeddings.");
    this.weights = weights;
    this.width = config.d_model;
    this.heads = config.n_heads;
    this.layers = config.n_layers;
    this.headWidth = config.d_model / config.n_heads;
    this.vocabulary = config.tgt_vocab_size;
  }

  /** §3.4 and §3.5: a token's vector times √d_model, plus sine and cosine of its position. */
  embed(id, position) {
    const d = this.width, x = new Float32Array(d), table = this.weights.get("embedding.weight");
    for (let i = 0; i < d; i++) {
      const angle = position * 10000 ** (-(i - (i % 2)) / d);
      x[i] = table[id * d + i] * Math.sqrt(d) + Math.fround(i % 2 ? Math.cos(angle) : Math.sin(angle));
    }
    return x;
  }

  /** x Wᵀ + b; torch stores W as (out, in). */
  linear(x, name) {
    const weight = this.weights.get(`${name}.weight`), bias = this.weights.get(`${name}.bias`);
    return bias.map((shift, row) => shift + dot(x, weight, row * x.length));
  }

  /** LayerNorm(x + y), §3.1. */
  addAndNorm(x, y, block) {
    const sum = add(x, y), n = sum.length;
    const gain = this.weights.get(`${block}.norm.weight`), shift = this.weights.get(`${block}.norm.bias`);
    const mean = sum.reduce((a, b) => a + b, 0) / n;
    const variance = sum.reduce((a, b) => a + (b - mean) ** 2, 0) / n;
    return sum.map((value, i) => (value - mean) / Math.sqrt(variance + 1e-5) * gain[i] + shift[i]);
  }

  /** §3.3, Equation 2. */
  feedForward(x, name) {
    return this.linear(this.linear(x, `${name}.w_1`).map((value) => Math.max(0, value)), `${name}.w_2`);
  }

  /** One query against all keys, head by head: §3.2.1, Equation 1, and §3.2.2. Gives the output and each head's weights. */
  attend(x, keys, values, name, isOff) {
    const query = this.linear(x, `${name}.w_q`), width = this.headWidth, mixed = new Float32Array(this.width);
    const weights = [];
    for (let head = 0; head < this.heads; head++) {
      const from = head * width, scores = new Float32Array(keys.length);
      keys.forEach((key, j) => {
        let dot = 0;
        for (let i = from; i < from + width; i++) dot += query[i] * key[i];
        scores[j] = dot / Math.sqrt(width);
      });
      weights.push(softmax(scores));
      if (isOff(head)) continue; // its part of `mixed` stays 0
      values.forEach((value, j) => {
        for (let i = from; i < from + width; i++) mixed[i] += scores[j] * value[i];
      });
    }
    const output = this.linear(mixed, `${name}.w_o`);
    this.onAttend?.({ name, input: x, query, keys, values, mixed, output }); // for who wants to see inside
    return { output, weights };
  }

  /** Read the source. `off` is a set of head names. Gives the memory and weights[layer][position][head]. */
  encode(ids, off = new Set()) {
    let x = ids.map((id, position) => this.embed(id, position));
    const weights = [];
    for (let layer = 0; layer < this.layers; layer++) {
      const name = `encoder.layers.${layer}`, attention = `${name}.self_attention`;
      const keys = x.map((row) => this.linear(row, `${attention}.w_k`));
      const values = x.map((row) => this.linear(row, `${attention}.w_v`));
      const isOff = (head) => off.has(headName("encoder", layer, head));
      const attended = x.map((row) => this.attend(row, keys, values, attention, isOff));
      weights.push(attended.map((one) => one.weights));
      x = x.map((row, i) => this.addAndNorm(row, attended[i].output, `${name}.attention_block`));
      x = x.map((row) => this.addAndNorm(row, this.feedForward(row, `${name}.feed_forward`), `${name}.feed_forward_block`));
    }
    return { memory: x, weights };
  }

  /** What the decoder keeps: the memory's keys and values, once; its own, which grow. */
  begin(memory) {
    const project = (layer, what) =>
      memory.map((row) => this.linear(row, `decoder.layers.${layer}.memory_attention.${what}`));
    return Array.from({ length: this.layers }, (_, layer) => ({
      keys: [], values: [], memoryKeys: project(layer, "w_k"), memoryValues: project(layer, "w_v"),
    }));
  }

  /** Write one token. `cache` is extended. Gives the next token's logits, and the weights of both attentions. */
  step(cache, id, off = new Set()) {
    let x = this.embed(id, cache[0].keys.length);
    const self = [], cross = [];
    cache.forEach((kept, layer) => {
      const name = `decoder.layers.${layer}`, own = `${name}.self_attention`, memory = `${name}.memory_attention`;
      kept.keys.push(this.linear(x, `${own}.w_k`)); // no later position exists yet: that is the causal mask
      kept.values.push(this.linear(x, `${own}.w_v`));
      const isOff = (kind) => (head) => off.has(headName(kind, layer, head));
      const first = this.attend(x, kept.keys, kept.values, own, isOff("decoder"));
      x = this.addAndNorm(x, first.output, `${own}_block`);
      const second = this.attend(x, kept.memoryKeys, kept.memoryValues, memory, isOff("cross"));
      x = this.addAndNorm(x, second.output, `${memory}_block`);
      x = this.addAndNorm(x, this.feedForward(x, `${name}.feed_forward`), `${name}.feed_forward_block`);
      self.push(first.weights);
      cross.push(second.weights);
    });
    return { logits: this.project(x), self, cross };
  }

  /** §3.4: compare with every token's vector. */
  project(x) {
    const table = this.weights.get("embedding.weight");
    return new Float32Array(this.vocabulary).map((_, id) => dot(x, table, id * x.length));
  }
}

/* ----------------------------------------------------------------------------------------- the decoding */

/** Of the logits the `count` largest, as [id, log P], the largest first; of equals the lower id. */
function bestTokens(logits, count) {
  let largest = -Infinity, sum = 0;
  for (const value of logits) if (value > largest) largest = value;
  for (const value of logits) sum += Math.exp(value - largest);
  const total = largest + Math.log(sum);
  const floor = Float32Array.from(logits).sort()[logits.length - count]; // few stay to be put in order
  const ids = Array.from(logits.keys()).filter((id) => logits[id] >= floor);
  ids.sort((a, b) => logits[b] - logits[a] || a - b);
  return ids.slice(0, count).map((id) => [id, logits[id] - total]);
}

const copy = (cache) => cache.map((kept) => ({ ...kept, keys: [...kept.keys], values: [...kept.values] }));

/** ((5 + |Y|) / 6)^α, which divides log P(Y | X). */
const lengthPenalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/** The most probable token at every step. Gives its ids and, for each, what the model saw and thought. */
function greedy(model, source, off = new Set()) {
  const read = model.encode(source, off), cache = model.begin(read.memory), ids = [], steps = [];
  for (let last = BEGIN; steps.length < source.length + EXTRA_TOKENS; ) {
    const { logits, self, cross } = model.step(cache, last, off);
    const best = bestTokens(logits, 8);
    last = best[0][0];
    steps.push({ id: last, best, self, cross });
    if (last === END) break;
    ids.push(last);
  }
  return { ids, steps, encoder: read.weights };
}

/** Beam search, as transformer.beam_search does it for one sentence. `rounds` tells who lived, ended or died at each step. */
function beam(model, source, { size = 4, alpha = 0.6, off = new Set() } = {}) {
  const read = model.encode(source, off), limit = source.length + EXTRA_TOKENS;
  let live = [{ ids: [], steps: [], logP: 0, cache: model.begin(read.memory), last: BEGIN }];
  let found = null;
  const rounds = [];
  for (let length = 1; length <= limit; length++) {
    const grown = live.flatMap((parent) => {
      const { logits, self, cross } = model.step(parent.cache, parent.last, off);
      const best = bestTokens(logits, Math.max(2 * size, 8));
      return best.slice(0, 2 * size).map(([id, logP]) => ({
        parent, id, logP: parent.logP + logP, steps: [...parent.steps, { id, best, self, cross }],
      }));
    });
    grown.sort((a, b) => b.logP - a.logP); // stable: of equals the earlier hypothesis first
    const considered = grown.slice(0, 2 * size), divisor = lengthPenalty(length, alpha);
    const ended = considered.slice(0, size).filter((one) => one.id === END);
    for (const one of ended) {
      const score = one.logP / divisor;
      if (!found || score > found.score) found = { ids: one.parent.ids, steps: one.steps, score, finished: true };
    }
    live = considered.filter((one) => one.id !== END).slice(0, size).map((one) => ({
      ids: [...one.parent.ids, one.id], steps: one.steps, logP: one.logP, last: one.id, cache: copy(one.parent.cache),
    }));
    rounds.push({
      live: live.map(({ ids, logP }) => ({ ids, score: logP / divisor })),
      ended: ended.map((one) => ({ ids: one.parent.ids, score: one.logP / divisor })),
    });
    // log P only falls and the penalty only grows with length: no descendant scores above this.
    const bound = live[0].logP / lengthPenalty(limit, alpha);
    if (found && bound <= found.score) break;
    if (length === limit && !found)
      found = { ids: live[0].ids, steps: live[0].steps, score: live[0].logP / divisor, finished: false };
  }
  return { ...found, rounds, encoder: read.weights };
}

return { BEGIN, END, Tokenizer, Transformer, readSafetensors, bestTokens, greedy, beam, headName };
})();
