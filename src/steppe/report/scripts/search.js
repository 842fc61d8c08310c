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
    const beside = nameBeside(area, names, moments.map(at));
    return tested === null ? beside : [...beside, nameTested(area, 100 * tested, line[line.length - 1][1])];
  };
  draw(plot, traces, layout);
}

// At the right end of its line, on the side away from the best validation accuracy.
function nameTested(area, percent, best) {
  const text = `${percent.toFixed(1)} % of the test images`;
  return { x: area.left + area.wide - textWidth(text) - 4, y: area.y(percent) + (percent > best ? -6 : 16), text, fill: colour("accent") };
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
