// Accuracy against cost, with the Pareto front of one test set: accuracies on other images do not compare.
function priceOfAnHour() {
  const typed = Number($("#hour").value);
  return typed > 0 ? typed : null;
}

function drawCost() {
  const plot = $("#plot-cost");
  if (!plot) return;
  const cost = chosen("cost");
  const layout = baseLayout();
  const set = $("#set")?.value ?? data.sets[0];
  const hour = priceOfAnHour();
  $("#price").hidden = cost !== "price";
  const spent = (row) => (cost === "price" && hour ? row.values.time_s.map((s) => (s === null ? null : (s / 3600) * hour)) : row.values[cost]);
  const judged = data.judged[set]; // the trials of a search have no test accuracy
  const points = visible().filter((row) => row.set === set && spent(row)[0] !== null && row.values[judged][0] !== null);
  const at = (row) => [spent(row)[0], 100 * row.values[judged][0]];
  const fronts = data.fronts[cost === "price" && hour ? "time_s" : cost][set] ?? [];
  const front = fronts.map((index) => data.rows[index]).filter((row) => points.includes(row));
  const ofSet = data.rows.filter((row) => row.set === set), panels = panelsOf(ofSet.map((row) => row.panel));
  const mark = (row) => panels.indexOf(row.panel) % 8;
  trimLegend(plot, ofSet);
  const has = ofSet.some((row) => spent(row)[0] !== null);
  $("#no-cost").hidden = has;
  plot.hidden = !has; // the hint stands in its place
  if (!has) return;
  const traces = [];
  if (front.length) {
    traces.push({
      x: front.map((row) => at(row)[0]), y: front.map((row) => at(row)[1]), mode: "lines", hoverinfo: "skip",
      line: { shape: "hv", width: 1.5, dash: "4px,3px", color: colour("soft", 0.8) },
    });
  }
  points.forEach((row) => {
    const best = front.includes(row);
    const bar = (std, strength) => ({ type: "data", array: [std || 0], visible: Boolean(std), width: 0, thickness: 1.5, color: colour(hue(row.series), strength) });
    traces.push({
      x: [at(row)[0]], y: [at(row)[1]], mode: "markers", hoverinfo: "text",
      error_y: bar(100 * (row.values[judged][1] || 0), 0.55), error_x: bar(spent(row)[1], 0.55),
      hovertext: [`<b>${escape(cut(row.name, 60))}</b><br>${judged === "val_accuracy" ? `validation ${withSpread(row, judged)}<br>` : ""}${row.values.test_accuracy[0] === null ? "" : `test ${withSpread(row, "test_accuracy")}<br>`}${escape(data.titles[cost].toLowerCase())} ${digits(spent(row)[0])}${spent(row)[1] ? ` ± ${digits(spent(row)[1])}` : ""}<br>${row.seeds} seed${row.seeds === 1 ? "" : "s"}${best ? "<br>on the Pareto front" : ""}`],
      marker: {
        size: (best ? 13 : 10) + (mark(row) === 3 ? 2 : 0), symbol: SYMBOLS[mark(row)] + open(row.series), color: colour(hue(row.series), best ? 1 : 0.75),
        line: { width: best || open(row.series) ? 2 : 1, color: colour(best ? "ink" : open(row.series) ? hue(row.series) : "paper") },
      },
    });
  });
  const costs = points.map((row) => at(row)[0]);
  if (suitsLog(costs)) Object.assign(layout.xaxis, logAxis(costs));
  layout.xaxis.title.text = escape(data.titles[cost]);
  layout.yaxis.title.text = onPhone() ? "" : `${escape(data.titles[judged])}, %`;
  layout.yaxis.ticksuffix = onPhone() ? " %" : "";
  layout.margin.t = 34;
  const edges = points.flatMap((row) => [-1, 1].map((sign) => at(row)[1] + sign * 100 * (row.values[judged][1] || 0)));
  const placed = (row) => ({ row, x: at(row)[0], y: at(row)[1] });
  layout.annotations = nameFront(front.map(placed), points.map(placed), edges, plot, layout);
  draw(plot, traces, layout);
}

// Names stand up and left of the front, where by its meaning no point can be, or where there is room for them: above, or to
// the right. A name that would stand on a point or on another name is left out.
function nameFront(places, points, edges, plot, layout) {
  const costs = points.map(({ x }) => x);
  if (!costs.length) return [];
  const log = layout.xaxis.type === "log";
  const flat = (x) => (log ? Math.log10(x) : x);
  const [x0, x1] = log ? layout.xaxis.range : widen([Math.min(...costs), Math.max(...costs)], 0.07);
  const [y0, y1] = widen([Math.min(...edges), Math.max(...edges)], 0.1);
  layout.xaxis.range = [x0, x1];
  layout.yaxis.range = [y0, y1];
  const wide = plot.clientWidth - 70, tall = plot.clientHeight - 90;
  const at = ({ x, y }) => [((flat(x) - x0) / (x1 - x0)) * wide, ((y1 - y) / (y1 - y0)) * tall];
  const taken = points.map(at).map(([px, py]) => [px - 6, py - 6, px + 6, py + 6]);
  const isFree = (box) => box[0] >= 0 && box[2] <= wide + 10 && !taken.some((t) => box[0] < t[2] && t[0] < box[2] && box[1] < t[3] && t[1] < box[3]);
  return [...places].reverse().flatMap((place) => {
    const text = cut(place.row.name, onPhone() ? 24 : 40), length = text.length * 7 + 8;
    const [px, py] = at(place);
    const middle = Math.min(Math.max(px - length / 2, 0), wide - length);
    for (const [left, up] of [[px - length - 6, 4], [middle, 12], [px + 12, -10]]) {
      const box = [left, py - up - 20, left + length, py - up];
      if (!isFree(box)) continue;
      taken.push(box);
      return [{ x: flat(place.x), y: place.y, text: escape(text), showarrow: false, yanchor: "bottom", yshift: up, xanchor: "left", xshift: left - px,
        font: { size: 12, color: colour("ink") }, bgcolor: colour("paper", 0.75), borderpad: 1 }];
    }
    return [];
  });
}

figures.push(drawCost);
starts.push(() => {
  onChange('input[name="cost"], #set', drawCost);
  $("#hour")?.addEventListener("input", drawCost);
});
