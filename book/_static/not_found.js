// On the page for addresses that lead nowhere: offer the page whose name is closest to the one asked for.
// Two names are as close as the share of neighbouring letters that they have in common.
const name = (path) => decodeURIComponent(path).replace(/\/+$/, "").split("/").pop().replace(/\.\w+$/, "").toLowerCase();
const pairs = (text) => new Set([...text].slice(1).map((letter, place) => text[place] + letter));
const closeness = (one, other) => {
  const [a, b] = [pairs(one), pairs(other)];
  return (2 * [...a].filter((pair) => b.has(pair)).length) / (a.size + b.size || 1);
};

const asked = name(location.pathname);
const links = [...document.querySelectorAll("#contents a")];
const [best, value] = links
  .map((link) => [link, closeness(asked, name(link.pathname))])
  .reduce((first, second) => (second[1] > first[1] ? second : first));
if (value > 0.4) {
  const link = Object.assign(document.createElement("a"), { href: best.href, textContent: best.textContent });
  document.querySelector("#closest").append("Perhaps you want ", link, ".");
}
