// Draw every chart of the page with the Vega that the site brings, in the page's colours (see book.css). Vega is large,
// so it is fetched when the page itself is there and painted.
// Their look, `chartConfig`, is that of the pages that `transformer attention` writes (see book/_ext/charts.py). Its
// colours are `currentColor`, so a switch between light and dark needs no redrawing.
async function draw(place) {
  const spec = JSON.parse(place.querySelector("script").textContent);
  const target = document.createElement("div");
  place.append(target);
  try {
    const { view } = await vegaEmbed(target, spec, {
      mode: "vega-lite",
      renderer: "svg",
      config: chartConfig,
      actions: { export: true, source: false, compiled: false, editor: false },
    });
    name(place, target, spec);
    place.dataset.drawn = "true";
    place.view = view;
  } catch (error) {
    target.textContent = `This chart could not be drawn: ${error.message}`;
    throw error;
  }
}

// Vega names the picture by the chart's description; the box has its title for a name; its menu, its controls and the scrolling box need names too.
function name(place, target, spec) {
  const label = place.dataset.title || spec.description;
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", label);
  place.tabIndex = 0;
  target.querySelectorAll("summary").forEach((menu) => menu.setAttribute("aria-label", "Save this chart"));
  target.querySelectorAll(".vega-bind").forEach((row) => {
    const text = row.querySelector(".vega-bind-name")?.textContent;
    row.querySelectorAll("select, input").forEach((control) => control.setAttribute("aria-label", text || label));
  });
}

const vega = new URL("vega.js", document.currentScript.src);

function drawAll() {
  const script = document.createElement("script");
  script.src = vega;
  script.onload = () => document.querySelectorAll("div.chart").forEach(draw);
  document.head.append(script);
}

if (document.readyState === "complete") drawAll();
else addEventListener("load", drawAll);
