/* What the pages with the model in them share: elements, colours, and the model itself, fetched when first asked for. */

const LiveParts = (() => {
"use strict";

const { BEGIN, END, Tokenizer, Transformer, readSafetensors } = LiveTransformer;
const HERE = document.currentScript.src;
const VIRIDIS = [
  "440154", "471365", "482475", "463480", "414487", "3b528b", "355f8d", "2f6c8e", "2a788e", "25848e", "21918c",
  "1e9c89", "22a884", "2fb47c", "44bf70", "5ec962", "7ad151", "9bd93c", "bddf26", "dfe318", "fde725",
].map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));

/** An element with attributes or properties, and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Background and ink for a weight from 0 to 1, on the scale of all attention maps of the book. */
function shade(weight) {
  const place = weight * (VIRIDIS.length - 1), low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const color = VIRIDIS[low].map((c, i) => Math.round(c + (place - low) * (VIRIDIS[low + 1][i] - c)));
  const [red, green, blue] = color.map((c) => (c / 255) ** 2.2);
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179; // there black and white are equally easy to read
  return `background: rgb(${color}); color: ${light ? "#000" : "#fff"}`;
}

/* ---------------------------------------------------------------------------------------------- the model */

let loading = null;

/** Fetch weights and pieces, once for all translators of a page. */
function load() {
  loading ??= new Promise((resolve, reject) => {
    globalThis.liveTransformerModel = ({ config, pieces, words, choices, weights }) => {
      const bytes = Uint8Array.from(atob(weights), (character) => character.charCodeAt(0));
      resolve({
        model: new Transformer(readSafetensors(bytes.buffer), config), tokenizer: new Tokenizer(pieces), words: new Set(words), choices,
      });
    };
    const script = make("script", { src: new URL("model.js", HERE).href });
    script.onerror = () => { loading = null; reject(new Error("the model could not be fetched")); };
    document.head.append(script);
  });
  return loading;
}

/** The words and signs of a sentence that the grammar does not have. */
const unknown = (sentence, words) =>
  [...new Set((sentence.match(/[\p{L}\p{N}'’-]+|[^\s\p{P}]/gu) ?? []).filter((word) => !words.has(word.toLowerCase())))];

let waiting = 0;

/** Put the state into the address, once it has been still for a moment: browsers refuse many changes in a row. */
function remember(hash) {
  clearTimeout(waiting);
  waiting = setTimeout(() => history.replaceState(null, "", hash), 250);
}

/** A piece as people read it: a dot marks one that goes on inside a word. */
function pieceName(pieces, id) {
  if (id === BEGIN || id === END) return id === END ? "(end)" : "(begin)";
  const piece = pieces[id], text = piece.replaceAll("▁", " ").trim();
  return text ? (piece.startsWith("▁") || !/[\p{L}\p{N}]/u.test(text) ? text : `·${text}`) : "␣";
}

return { load, make, pieceName, remember, shade, unknown };
})();
