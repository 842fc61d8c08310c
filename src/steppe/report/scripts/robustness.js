// Robustness: the table of corruptions as a heat map, and the calibration of the confidence.
const plainName = (name) => name.replace(/_/g, " ");
const average = (values) => (known(values).length ? known(values).reduce((sum, v) => sum + v, 0) / known(values).length : null);

function drawCorruptions() {
  const table = $("#corruption-table");
  if (!table) return;
  const one = data.corruptions[Number($("#corruption-row").value)];
  const other = data.corruptions[Number($("#corruption-other").value)];
  const names = Object.keys(one.table);
  const columns = Math.max(...names.map((name) => one.table[name].length));
  const lines = names.map((name) => [plainName(name), one.table[name].map((v, i) => less(v, other?.table[name]?.[i], other))]);
  const all = Array.from({ length: columns }, (_, i) => average(lines.map(([, values]) => values[i])));
  const largest = Math.max(0.02, ...lines.flatMap(([, values]) => known(values).map(Math.abs)));
  const head = element("tr");
  head.append(...["Corruption", ...all.map((_, i) => String(i + 1)), "mean"].map((text) => Object.assign(element("th", "", text), { scope: "col" })));
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...[...lines, ["mean", all]].map(([name, values]) => {
    const line = element("tr", name === "mean" ? "mean" : "");
    line.append(Object.assign(element("th", "", name), { scope: "row" }), ...[...values, average(values)].map((v) => heatCell(v, other ? largest : null)));
    return line;
  }));
  const seeds = one.seeds > 1 ? `, mean of ${one.seeds} seeds` : "";
  const clean = one.clean === null ? "" : ` Without corruption it reaches ${(100 * one.clean).toFixed(1)} %.`;
  $("#corruption-said").textContent = other
    ? `${one.name} less ${other.name}, in percentage points: blue is better, orange is worse. On average ${signed(average(all))}.`
    : `${one.name}: mean accuracy ${(100 * (one.mean[0] ?? average(all))).toFixed(1)} %${seeds}.${clean}`;
}

const less = (value, from, other) => (!other ? value : value === null || from === null || from === undefined ? null : value - from);
const signed = (value) => (value === null ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}`);

function heatCell(value, largest) {
  const cell = element("td", "heat", value === null ? "–" : largest ? signed(value) : (100 * value).toFixed(1));
  if (value === null) return cell;
  const [r, g, b] = largest ? contrast(value / largest) : viridis(value).map(Math.round);
  cell.style.background = `rgb(${r}, ${g}, ${b})`;
  cell.style.color = luminance(`${r} ${g} ${b}`) > 0.179 ? "#000" : "#fff";
  return cell;
}

// From orange over the card's own colour to blue, which colour-blind eyes distinguish.
function contrast(share) {
  const end = share < 0 ? [214, 96, 20] : [24, 105, 190], middle = isDark() ? [40, 45, 50] : [245, 244, 240];
  const strength = Math.min(Math.abs(share), 1) ** 0.8;
  return middle.map((part, i) => Math.round(part + (end[i] - part) * strength));
}

function drawReliability() {
  const panel = $("#robust-panel")?.value ?? "all";
  const found = data.reliability.filter(({ row }) => !hidden.has(data.series[data.rows[row].series]) && (panel === "all" || String(data.rows[row].panel) === panel));
  drawFacets($("#plot-reliability"), found, (entry) => data.rows[entry.row].panel, "Accuracy against confidence", reliabilityTrace, (layout) => {
    Object.assign(layout.xaxis, { range: [0, 104], ticksuffix: " %" });
    Object.assign(layout.yaxis, { range: [-2, 105], ticksuffix: " %" });
    layout.xaxis.title.text = "confidence";
    layout.yaxis.title.text = onPhone() ? "" : "accuracy";
    layout.shapes = [{ x: [0, 100], y: [0, 100], dash: "fine" }];
  });
}

function reliabilityTrace(entry) {
  const row = data.rows[entry.row], ink = colour(hue(row.series)), largest = Math.max(...entry.points.map((point) => point[2]));
  return [{
    x: entry.points.map(([sure]) => 100 * sure), y: entry.points.map(([, right]) => 100 * right), mode: "lines+markers",
    line: { color: ink, width: 1.5, dash: dash(row.series) },
    marker: { color: ink, size: entry.points.map((point) => 5 + 11 * Math.sqrt(point[2] / largest)), opacity: 0.85 },
    hover: entry.points.map(([sure, right, count]) => [cut(row.name, 60), `${(100 * right).toFixed(1)} % right where ${(100 * sure).toFixed(1)} % sure`, `${count.toLocaleString("en")} images`, `ECE ${digits(entry.ece[0])}`]),
  }];
}

lateFigures.push(drawReliability, drawCorruptions);
starts.push(() => {
  onChange("#corruption-row, #corruption-other", drawCorruptions);
  onChange("#robust-panel", drawReliability);
});
