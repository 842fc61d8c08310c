// Flatness: the loss under noise on the weights, a lane for each series.
function drawFlatness() {
  const plot = $("#plot-flatness");
  if (!plot) return;
  const measure = chosen("flatness");
  const layout = baseLayout();
  const rows = visible().filter((row) => row.values[measure][0] !== null);
  const alone = data.panels.length === 1;
  const groups = alone ? data.series : data.panels;
  const group = (row) => (alone ? row.series : row.panel);
  // Where there are panels each is as tall as it has series: a lane for each of its own.
  const lanes = groups.map((_, i) => (alone ? [i] : panelsOf(rows.filter((row) => row.panel === i).map((row) => row.series))));
  const tall = lanes.map((own) => Math.max(34, own.length * 19 + 14)), top = tall.map((_, i) => tall.slice(0, i).reduce((sum, height) => sum + height, 0));
  const place = (row) => top[group(row)] + (tall[group(row)] * (lanes[group(row)].indexOf(row.series) + 0.5)) / lanes[group(row)].length;
  const end = top[groups.length - 1] + tall[groups.length - 1];
  const traces = rows.map((row) => {
    const [mean, std] = row.values[measure];
    return {
      x: [mean], y: [place(row)], mode: "markers", hoverinfo: "text",
      marker: { size: 11, color: colour(hue(row.series)), symbol: `circle${open(row.series)}`, line: { width: open(row.series) ? 2 : 0, color: colour(hue(row.series)) } },
      error_x: { type: "data", array: [std || 0], visible: Boolean(std), width: 0, thickness: 2, color: colour(hue(row.series), 0.6) },
      hovertext: [`<b>${escape(cut(row.name, 60))}</b><br>${data.titles[measure].toLowerCase()} ${withSpread(row, measure)}`],
    };
  });
  const values = rows.map((row) => row.values[measure][0]);
  Object.assign(layout.xaxis, suitsLog(values) ? logAxis(values) : { rangemode: "tozero", zeroline: true });
  layout.xaxis.title.text = onPhone() ? "← flatter" : `← flatter    ${data.titles[measure]}`;
  Object.assign(layout.yaxis, {
    tickvals: groups.map((_, i) => top[i] + tall[i] / 2), ticktext: groups.map((name) => escape(cut(name, onPhone() ? 14 : 34))),
    range: [end, 0], showgrid: false, tickfont: { size: 13, color: colour("ink") },
  });
  layout.shapes = groups.slice(1).map((_, i) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, y0: top[i + 1], y1: top[i + 1], line: { color: colour("grid"), width: 1 }, layer: "below",
  }));
  plot.style.height = `${90 + end}px`;
  draw(plot, traces, layout);
}

figures.push(drawFlatness);
starts.push(() => onChange('input[name="flatness"]', drawFlatness));
