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
      x: [mean], y: [place(row)], mode: "markers",
      marker: { size: 11, color: colour(hue(row.series)), hollow: isHollow(row.series), rim: 0 },
      error_x: std ? { array: [std], thickness: 2, color: colour(hue(row.series), 0.6) } : null,
      hover: [[cut(row.name, 60), `${data.titles[measure].toLowerCase()} ${withSpread(row, measure)}`]],
    };
  });
  const values = rows.map((row) => row.values[measure][0]);
  Object.assign(layout.xaxis, suitsLog(values) ? logAxis(values) : { fromZero: true, zero: true });
  layout.xaxis.title.text = onPhone() ? "← flatter" : `← flatter    ${data.titles[measure]}`;
  Object.assign(layout.yaxis, {
    tickvals: groups.map((_, i) => top[i] + tall[i] / 2), ticktext: groups.map((name) => cut(name, onPhone() ? 14 : 34)),
    range: [end, 0], grid: false, size: 13, ink: "ink",
  });
  layout.shapes = groups.slice(1).map((_, i) => ({ y: [top[i + 1], top[i + 1]], ink: colour("grid") }));
  plot.style.height = `${90 + end}px`;
  draw(plot, traces, layout);
}

figures.push(drawFlatness);
starts.push(() => onChange('input[name="flatness"]', drawFlatness));
