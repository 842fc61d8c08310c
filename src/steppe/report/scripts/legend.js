// Legends: a series that is switched off in one is off in all figures.
function glyph(kind, index) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
  Object.entries({ width: kind === "lines" ? 26 : 16, height: 14, viewBox: kind === "lines" ? "-13 -7 26 14" : "-8 -7 16 14", "aria-hidden": "true" })
    .forEach(([name, value]) => svg.setAttribute(name, value));
  shape.setAttribute("d", kind === "lines" ? "M-12 0H12" : kind === "panel" ? GLYPHS[index % 8] : GLYPHS[0]);
  shape.style.cssText = kind === "lines"
    ? `stroke: var(--${hue(index)}); stroke-width: 3; stroke-dasharray: ${{ solid: "none", dash: "7 4", dot: "2 4", dashdot: "7 3 2 3" }[dash(index)]}`
    : kind !== "panel" && isHollow(index) ? `fill: none; stroke-width: 2; stroke: var(--${hue(index)})`
      : `fill: var(--${kind === "panel" ? "soft" : hue(index)})`;
  svg.append(shape);
  return svg;
}

function buildLegends() {
  $$(".legend").forEach((legend) => {
    const kind = legend.dataset.legend;
    if (data.series.length > 1) {
      data.series.forEach((name, index) => {
        const button = element("button", "series");
        button.type = "button";
        button.dataset.series = index;
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        button.title = "Show or hide in all figures";
        button.append(glyph(kind, index), cut(name, 60));
        button.addEventListener("click", () => toggleSeries(index));
        legend.append(button);
      });
    }
    if (kind === "symbols" && data.panels.length > 1) {
      legend.append(element("span", "rule"), ...data.panels.map((name, index) => {
        const key = element("span", "key");
        key.dataset.panel = index;
        key.append(glyph("panel", index), cut(name, 60));
        return key;
      }));
    }
  });
}

// A figure that shows some of the rows names only what is among them. Panels get their marks in the order they are shown.
function trimLegend(figure, rows) {
  const legend = $(".legend", figure.closest("section"));
  $$("[data-series]", legend).forEach((button) => { button.hidden = !rows.some((row) => row.series === Number(button.dataset.series)); });
  const panels = panelsOf(rows.map((row) => row.panel));
  $$("[data-panel]", legend).forEach((key) => {
    const place = panels.indexOf(Number(key.dataset.panel));
    key.hidden = place < 0 || panels.length === 1;
    $("path", key).setAttribute("d", GLYPHS[Math.max(place, 0) % 8]);
  });
}

function toggleSeries(index) {
  const name = data.series[index];
  if (!hidden.delete(name)) hidden.add(name);
  $$(`.legend button[data-series="${index}"]`).forEach((b) => b.setAttribute("aria-pressed", String(!hidden.has(name))));
  drawAll();
}

starts.push(buildLegends);
