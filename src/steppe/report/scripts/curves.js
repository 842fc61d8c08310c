// Learning curves, seeds as bands.
function drawCurves() {
  const holder = $("#plot-curves");
  if (!holder) return;
  const metric = $("#metric").value, progress = $("#progress").value;
  const panel = $("#panel")?.value ?? "all";
  const wanted = data.panels.map((_, i) => i).filter((i) => panel === "all" || String(i) === panel);
  const rows = visible().filter((row) => row.curve && wanted.includes(row.panel));
  trimLegend(holder, data.rows.filter((row) => wanted.includes(row.panel)));
  const axis = sharedAxis(rows.map((row) => row.curve.y[metric].mean), metric);
  facets(holder, wanted, "Learning curves").forEach((plot, place) => {
    const layout = baseLayout();
    Object.assign(layout.yaxis, axis, { ticksuffix: isShare(metric) ? " %" : "" });
    layout.xaxis.title.text = data.titles[progress];
    layout.xaxis.fromZero = true;
    const own = rows.filter((row) => row.panel === wanted[place]);
    draw(plot, own.flatMap((row) => curveTraces(row, metric, progress)), layout);
  });
}

// One vertical axis for all panels. Accuracies leave out the lowest quarter, the climb.
function sharedAxis(curves, metric) {
  const values = known(curves.flat()).map((v) => v * scale(metric)).sort((a, b) => a - b);
  if (!values.length) return {};
  const long = Math.max(...curves.map((curve) => curve.length)) >= 8;
  const low = isShare(metric) && long ? values[Math.floor(values.length / 4)] : values[0];
  const high = values[values.length - 1];
  if (!isShare(metric) && suitsLog(values)) return logAxis(values);
  return { range: widen([low, high], 0.08) };
}

function curveTraces(row, metric, progress) {
  const x = row.curve.x[progress], factor = scale(metric);
  const { mean, std } = row.curve.y[metric], ink = colour(hue(row.series));
  const y = mean.map((v) => (v === null ? null : v * factor));
  const traces = [];
  if (std) {
    const inside = y.map((v, i) => i).filter((i) => y[i] !== null && std[i] !== null && x[i] !== null);
    const edge = (sign) => inside.map((i) => y[i] + sign * std[i] * factor);
    traces.push({
      x: [...inside.map((i) => x[i]), ...inside.map((i) => x[i]).reverse()], y: [...edge(1), ...edge(-1).reverse()],
      fill: colour(hue(row.series), 0.16), mode: "lines",
    });
  }
  traces.push({
    x, y, mode: known(y).length > 1 ? "lines" : "markers",
    line: { color: ink, width: 2, dash: dash(row.series) }, marker: { color: ink, size: 8 },
    hover: y.map((v, i) => [cut(data.series[row.series], 60), `epoch ${row.curve.x.epoch[i]}: ${digits(v, 4)}${isShare(metric) ? " %" : ""}${std && std[i] !== null ? ` ± ${digits(std[i] * factor, 2)}` : ""}`]),
  });
  return traces;
}

figures.push(drawCurves);
starts.push(() => onChange("#metric, #progress, #panel", drawCurves));
