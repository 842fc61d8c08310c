// Accuracy against cost, with the Pareto front of one test set: accuracies on other images do not compare.
function priceOfAnHour() {
  const typed = Number($("#hour").value);
  return typed > 0 ? typed : null;
}

function drawCost() {
  const plot = $("#plot-cost");
  if (!plot) return;
  const cost = $("#cost-axis").value;
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
      x: front.map((row) => at(row)[0]), y: front.map((row) => at(row)[1]), mode: "lines",
      line: { shape: "hv", width: 1.5, dash: "fine", color: colour("soft", 0.8) },
    });
  }
  points.forEach((row) => {
    const best = front.includes(row), hollow = isHollow(row.series), ink = colour(hue(row.series), best ? 1 : 0.75);
    const bar = (std) => (std ? { array: [std], color: colour(hue(row.series), 0.55) } : null);
    traces.push({
      x: [at(row)[0]], y: [at(row)[1]], mode: "markers", error_y: bar(100 * (row.values[judged][1] || 0)), error_x: bar(spent(row)[1]),
      hover: [[
        cut(row.name, 60), judged === "val_accuracy" ? `validation ${withSpread(row, judged)}` : "",
        row.values.test_accuracy[0] === null ? "" : `test ${withSpread(row, "test_accuracy")}`,
        `${data.titles[cost].toLowerCase()} ${digits(spent(row)[0])}${spent(row)[1] ? ` ± ${digits(spent(row)[1])}` : ""}`,
        plural(row.seeds, "seed"), best ? "on the Pareto front" : "",
      ]],
      marker: { size: (best ? 13 : 10) + (mark(row) === 3 ? 2 : 0), symbol: mark(row), color: ink, hollow, edge: colour(best ? "ink" : "paper"), rim: best ? 2 : 1 },
    });
  });
  const costs = points.map((row) => at(row)[0]), edges = points.flatMap((row) => [-1, 1].map((sign) => at(row)[1] + sign * 100 * (row.values[judged][1] || 0)));
  if (suitsLog(costs)) Object.assign(layout.xaxis, logAxis(costs));
  else if (costs.length) layout.xaxis.range = widen([Math.min(...costs), Math.max(...costs)], 0.07);
  if (edges.length) layout.yaxis.range = widen([Math.min(...edges), Math.max(...edges)], 0.1);
  layout.xaxis.title.text = data.titles[cost];
  layout.yaxis.title.text = onPhone() ? "" : `${data.titles[judged]}, %`;
  layout.yaxis.ticksuffix = onPhone() ? " %" : "";
  layout.margin.t = 26;
  layout.annotate = (area) => nameBeside(area, [...front].reverse().map((row) => ({ x: at(row)[0], y: at(row)[1], text: row.name })), boxesAround(area, points.map(at)));
  draw(plot, traces, layout);
}

const boxesAround = (area, points) => points.map(([x, y]) => [area.x(x) - 7, area.y(y) - 7, area.x(x) + 7, area.y(y) + 7]);
const meets = (box, taken) => taken.some((t) => box[0] < t[2] && t[0] < box[2] && box[1] < t[3] && t[1] < box[3]);

// Names stand up and left of a front, where by its meaning no point can be, or where there is room for them: above, or to
// the right. A name that would stand on a point or on another name is left out.
function nameBeside(area, places, taken) {
  const right = area.left + area.wide + 12;
  const isFree = (box) => box[0] >= area.left && box[2] <= right && box[1] >= 0 && box[3] <= area.top + area.tall && !meets(box, taken);
  return places.flatMap((place) => {
    const text = cut(place.text, onPhone() ? 24 : 46), length = textWidth(text) + 4;
    const px = area.x(place.x), py = area.y(place.y);
    const middle = Math.min(Math.max(px - length / 2, area.left), right - length);
    for (const [left, base] of [[px - length - 8, py - 5], [middle, py - 13], [px + 12, py + 4], [middle, py + 24]]) {
      const box = [left - 2, base - 13, left + length, base + 5];
      if (!isFree(box)) continue;
      taken.push(box);
      return [{ x: left, y: base, text }];
    }
    return [];
  });
}

figures.push(drawCost);
starts.push(() => {
  onChange("#cost-axis, #set", drawCost);
  $("#hour")?.addEventListener("input", drawCost);
});
