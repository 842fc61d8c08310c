// Geometry: landscapes, the loss along lines and between runs, the Hessian's spectrum, figures block by block.
const MOST_LANDSCAPES = 12;

// The measured runs that a section shows: of the chosen panel, of series that are not switched off, of the chosen seeds.
function subjectsShown(section) {
  const panel = $(`#${section}-panel`)?.value ?? "all";
  const all = chosen(`${section}-seeds`) === "all";
  return (index) => {
    const one = data.subjects[index];
    return (panel === "all" || String(one.panel) === panel) && !hidden.has(data.series[one.series]) && (all || one.first);
  };
}

// Draws one plot a panel. `traces` makes those of one entry.
function drawFacets(holder, entries, panelOf, label, traces, finish) {
  if (!holder) return;
  const wanted = panelsOf(entries.map(panelOf));
  facets(holder, wanted, label).forEach((plot, place) => {
    const own = entries.filter((entry) => panelOf(entry) === wanted[place]);
    const layout = baseLayout();
    finish(layout, own, entries);
    draw(plot, own.flatMap(traces), layout);
  });
}

const subjectOf = (entry) => data.subjects[entry.subject];
const titleOf = (entry) => cut(subjectOf(entry).name, 60);

// ---- landscapes ------------------------------------------------------------------------------------------------
function drawLandscapes() {
  const holder = $("#landscapes");
  if (!holder) return;
  const shown = subjectsShown("geo");
  const all = data.landscapes.filter((one) => shown(one.subject));
  const some = all.slice(0, MOST_LANDSCAPES);
  const key = some.map((one) => subjectOf(one).name).join("\n");
  $("#landscapes-more").textContent = all.length > some.length ? `The first ${some.length} of ${all.length}: choose fewer above to see the others.` : "";
  if (holder.dataset.shown !== key) {
    surfaces.clear();
    holder.replaceChildren(...some.map(landscapeCard));
    holder.classList.toggle("few", some.length < 3);
    holder.dataset.shown = key;
  }
  if (!some.length) return;
  const scale = sharedScale(some, chosen("height"));
  const reach = Math.max(...some.flatMap((one) => one.steps.map(Math.abs))) || 1;
  $$("canvas", holder).forEach((canvas, place) => surfaces.set(canvas, { landscape: some[place], scale, reach }));
  showScale(scale);
  paintSurfaces();
}

function landscapeCard(one) {
  const card = element("figure", "landscape"), name = subjectOf(one).name, canvas = element("canvas");
  const rim = known(one.loss.flatMap((line, i) => (i === 0 || i === one.loss.length - 1 ? line : [line[0], line[line.length - 1]])));
  const said = `loss ${digits(one.centre)} at the weights, ${rim.length ? `${digits(Math.min(...rim))} to ${digits(Math.max(...rim))} at the rim` : "not finite at the rim"}`;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Loss landscape of ${name}: ${said}. Arrow keys turn it, plus and minus change its size.`);
  makeSurface(canvas);
  card.append(element("h4", "", name), canvas, element("figcaption", "", said));
  return card;
}

function showScale(scale) {
  const bar = $("#loss-scale");
  const stops = Array.from({ length: 9 }, (_, i) => `rgb(${viridis(i / 8).map(Math.round).join()})`);
  $(".ramp", bar).style.background = `linear-gradient(to right, ${stops.join()})`;
  $(".ticks", bar).replaceChildren(...scale.ticks.map((tick) => {
    const mark = element("span", "", digits(tick));
    mark.style.left = `${100 * scale.share(tick)}%`;
    return mark;
  }));
  $(".name", bar).textContent = scale.log ? "loss, logarithmic" : "loss";
}

function startLandscapes() {
  surfaces.clear();
  onChange('input[name="height"]', drawLandscapes);
  onChange("#geo-panel, input[name='geo-seeds']", drawGeometry);
  onChange("#geo-block, input[name='block']", drawBlocks);
  const turn = $("#turn");
  const show = () => { turn.setAttribute("aria-pressed", String(turning)); turn.textContent = turning ? "Stop turning" : "Turn slowly"; };
  turn?.addEventListener("click", () => { turning = !turning; show(); repaint(); });
  if (turn) show(); else turning = false;
  $("#above")?.addEventListener("click", () => { Object.assign(view, { tilt: Math.PI / 2, turn: 0 }); repaint(); });
  $("#aside")?.addEventListener("click", () => { Object.assign(view, START); repaint(); });
}

// ---- lines -----------------------------------------------------------------------------------------------------
function lineTrace(entry) {
  const { series } = subjectOf(entry), ink = colour(hue(series));
  return [{
    x: entry.x, y: entry.y, mode: "lines", line: { color: ink, width: 2, dash: dash(series) },
    hover: entry.y.map((loss, i) => [titleOf(entry), `loss ${digits(loss, 4)} at ${digits(entry.x[i])}`]),
  }];
}

function lossAxis(layout, entries) {
  const values = known(entries.flatMap((entry) => entry.y));
  Object.assign(layout.yaxis, suitsLog(values) ? logAxis(values) : { range: values.length ? widen([Math.min(...values), Math.max(...values)], 0.06) : null });
  layout.yaxis.title.text = onPhone() ? "" : "loss";
}

function drawLines() {
  const shown = subjectsShown("geo");
  const panel = (entry) => subjectOf(entry).panel;
  drawFacets($("#plot-lines"), data.lines.filter((one) => shown(one.subject)), panel, "Loss along a direction", lineTrace, (layout, own, all) => {
    lossAxis(layout, all);
    layout.xaxis.title.text = "step along the direction; 0 is the weights";
  });
  drawFacets($("#plot-between"), data.betweens.filter((one) => shown(one.subject)), panel, "Loss between runs", betweenTraces, (layout, own, all) => {
    lossAxis(layout, all);
    Object.assign(layout.xaxis, { tickvals: [0, 0.5, 1], ticktext: ["the run", "half way", "the other"] });
    layout.xaxis.title.text = own.length === 1 ? `${cut(subjectOf(own[0]).name, 30)} → ${cut(own[0].other, 30)}` : "";
  });
}

function betweenTraces(entry) {
  const ends = [entry.y[0], entry.y[entry.y.length - 1]];
  const straight = { x: [0, 1], y: ends, mode: "lines", line: { color: colour("soft", 0.7), width: 1, dash: "fine" } };
  const [line] = lineTrace(entry);
  line.hover = entry.y.map((loss) => [titleOf(entry), `to ${cut(entry.other, 60)}`, `loss ${digits(loss, 4)}`, `barrier ${digits(entry.barrier)}`]);
  return [straight, { ...line, mode: "lines+markers", marker: { size: 5, color: line.line.color } }];
}

// ---- the Hessian -----------------------------------------------------------------------------------------------
function drawSpectra() {
  const shown = subjectsShown("geo");
  drawFacets($("#plot-spectrum"), data.spectra.filter((one) => shown(one.subject)), (entry) => subjectOf(entry).panel, "Density of the Hessian's eigenvalues", spectrumTraces, (layout, own, all) => {
    const peak = Math.max(...all.flatMap((one) => known(one.y)));
    const powers = Array.from({ length: 5 }, (_, i) => 2 * Math.floor((Math.log10(peak) - 7) / 2) + 2 * i);
    Object.assign(layout.yaxis, { type: "log", range: [Math.log10(peak) - 7, Math.log10(peak) + 0.4], tickvals: powers.map((power) => 10 ** power), ticktext: powers.map(asPower) });
    layout.yaxis.title.text = onPhone() ? "" : "density";
    layout.xaxis.title.text = "eigenvalue";
    layout.xaxis.zero = true;
  });
}

const asPower = (power) => `10${[...String(power)].map((sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign])).join("")}`;

function spectrumTraces(entry) {
  const { series } = subjectOf(entry), ink = colour(hue(series)), lowest = Math.max(...known(entry.y)) * 1e-8;
  const marks = entry.top.map((value) => ({
    x: [value], y: [lowest * 40], mode: "markers", marker: { symbol: DOWNWARD, size: 10, color: ink, rim: 0 },
    hover: [[titleOf(entry), `eigenvalue ${digits(value, 4)}`]],
  }));
  return [{
    x: entry.x, y: entry.y.map((v) => Math.max(v ?? 0, lowest)), mode: "lines",
    line: { color: ink, width: 1.8, dash: dash(series) },
    hover: entry.x.map((x, i) => [titleOf(entry), `density ${digits(entry.y[i])} at ${digits(x)}`]),
  }, ...marks];
}

function drawBlocks() {
  const kind = chosen("block"), panel = $("#geo-panel")?.value ?? "all";
  const found = (data.blocks[kind] ?? []).filter(({ row }) => !hidden.has(data.series[data.rows[row].series]) && (panel === "all" || String(data.rows[row].panel) === panel));
  drawFacets($("#plot-blocks"), found, (entry) => data.rows[entry.row].panel, data.block_titles[kind], (entry) => blockTrace(entry, kind), (layout, own) => {
    const values = own.flatMap((entry) => Object.values(entry.parts).map(([mean]) => mean));
    const log = suitsLog(known(values)) && Math.max(...known(values)) / Math.min(...known(values)) > 40;
    Object.assign(layout.yaxis, log ? logAxis(known(values), 0.1) : { fromZero: true, zero: true, ticksuffix: kind === "active" ? " %" : "" });
    Object.assign(layout.xaxis, { type: "category", grid: false, least: 16, turn: own.some((entry) => Object.keys(entry.parts).length > 5) ? -40 : 0 });
  });
}

function blockTrace(entry, kind) {
  const row = data.rows[entry.row], factor = kind === "active" ? 100 : 1, parts = Object.entries(entry.parts), ink = colour(hue(row.series));
  return [{
    type: "bar", x: parts.map(([name]) => name), y: parts.map(([, [mean]]) => (mean === null ? null : mean * factor)), ink,
    sure: parts.map(([, [, , sure]]) => sure), // a bar that is not is hatched
    error_y: entry.seeds > 1 ? { array: parts.map(([, [, std]]) => (std ?? 0) * factor) } : null,
    hover: parts.map(([name, [mean, std, sure]]) => [cut(row.name, 60), `${name}: ${digits(mean === null ? null : mean * factor, 4)}${std ? ` ± ${digits(std * factor, 2)}` : ""}`, sure ? "" : "not converged"]),
  }];
}

// The legend names what the section's figures show in the chosen panel.
function trimGeometryLegend() {
  if (!$("#geometry")) return;
  const panel = $("#geo-panel")?.value ?? "all";
  const drawn = [...[data.landscapes, data.lines, data.betweens, data.spectra].flat().map(subjectOf), ...Object.values(data.blocks).flat().map(({ row }) => data.rows[row])];
  trimLegend($("#geometry h2"), drawn.filter((one) => panel === "all" || String(one.panel) === panel));
}

const geometryFigures = [trimGeometryLegend, drawLandscapes, drawLines, drawSpectra, drawBlocks];
function drawGeometry() { geometryFigures.forEach((figure) => figure()); }

lateFigures.push(...geometryFigures);
starts.push(startLandscapes);
window.addEventListener("resize", repaint);
