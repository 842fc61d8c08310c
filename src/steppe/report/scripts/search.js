// A search: accuracy against the seconds that had passed, a mark for each candidate when it was finished.
function drawSearch() {
  const plot = $("#plot-search");
  if (!plot) return;
  const { moments, kinds, titles, end, tested } = data.search;
  const layout = baseLayout(), at = (one) => [one.at, 100 * one.accuracy];
  const best = [];
  moments.forEach((one) => { if (!best.length || one.accuracy > best[best.length - 1].accuracy) best.push(one); });
  const last = end ?? moments[moments.length - 1].at, line = best.map(at);
  line.push([last, line[line.length - 1][1]]);
  const traces = [{ x: line.map(([x]) => x), y: line.map(([, y]) => y), mode: "lines", line: { shape: "hv", width: 2, color: colour("soft", 0.55) } }];
  moments.forEach((one) => {
    const kind = Math.max(0, kinds.indexOf(one.kind)), [x, y] = at(one);
    traces.push({
      x: [x], y: [y], mode: "markers", marker: { size: one.best ? 15 : 11, symbol: kind, color: colour(hue(kind)), edge: colour(one.best ? "ink" : "paper"), rim: one.best ? 2 : 1 },
      hover: [[one.name, `${titles[one.kind] ?? one.kind}, ready after ${inTime(one.at)}`, `validation ${digits(y)} %`, one.best ? "chosen" : ""]],
    });
  });
  const heights = [...moments.map((one) => 100 * one.accuracy), ...(tested === null ? [] : [100 * tested])];
  Object.assign(layout.xaxis, timeAxis(last), { range: [0, last * 1.04] });
  layout.yaxis.range = widen([Math.min(...heights), Math.max(...heights)], 0.18);
  layout.yaxis.range[1] = Math.min(layout.yaxis.range[1], 101);
  layout.yaxis.ticksuffix = " %";
  layout.xaxis.title.text = "time since the search began";
  if (tested !== null) layout.shapes.push({ y: [100 * tested, 100 * tested], ink: colour("accent"), dash: "dash" });
  layout.annotate = (area) => {
    const names = [...moments].sort((a, b) => b.best - a.best || b.accuracy - a.accuracy).map((one) => ({ x: one.at, y: 100 * one.accuracy, text: one.name }));
    const taken = boxesAround(area, moments.map(at));
    return [...(tested === null ? [] : nameTested(area, 100 * tested, taken)), ...nameBeside(area, names, taken)];
  };
  draw(plot, traces, layout);
}

// The test accuracy is written on its line, at the end and the side where no point is.
function nameTested(area, percent, taken) {
  const text = `${percent.toFixed(1)} % of the test images`, wide = textWidth(text), right = area.left + area.wide - wide - 4;
  const places = [[right, 16], [right, -6], [area.left + 8, 16], [area.left + 8, -6]].map(([x, up]) => ({ x, y: area.y(percent) + up, text, fill: colour("accent") }));
  const free = places.filter(({ x, y }) => !meets([x - 2, y - 13, x + wide + 2, y + 4], taken)).slice(0, 1);
  taken.push(...free.map(({ x, y }) => [x - 2, y - 13, x + wide + 2, y + 4]));
  return free;
}

const inTime = (seconds) => (seconds < 100 ? `${digits(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`);

// Ticks at whole seconds, minutes or hours.
function timeAxis(last) {
  const step = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400].find((one) => last / one <= 7) ?? 28800;
  const tickvals = Array.from({ length: Math.floor(last / step) + 1 }, (_, i) => i * step);
  const show = (seconds) => (step < 60 ? `${seconds} s` : step < 3600 ? `${seconds / 60} min` : `${seconds / 3600} h`);
  return { tickvals, ticktext: tickvals.map((tick) => (tick ? show(tick) : "0")) };
}

function buildKinds() {
  const holder = $("#search-kinds");
  if (!holder) return;
  holder.replaceChildren(...data.search.kinds.map((kind, index) => {
    const key = element("span", "key"), mark = glyph("panel", index);
    $("path", mark).style.fill = `var(--${hue(index)})`;
    key.append(mark, data.search.titles[kind]);
    return key;
  }));
}

figures.push(drawSearch);
starts.push(buildKinds);
