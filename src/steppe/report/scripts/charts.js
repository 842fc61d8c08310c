// Charts as SVG: points, lines, bars and heat maps on two axes. The pointer shows names, dragging zooms, a button saves a PNG.
// A figure gives `traces` and a `layout`; `draw` keeps both on the element and paints again when its size changes.
// Names in the data are not trusted: all text is set as textContent.
const SVG = "http://www.w3.org/2000/svg";
const ruler = document.createElement("canvas").getContext("2d");
const LINE_DASHES = { dash: "7 4", dot: "2 4", dashdot: "7 3 2 3", fine: "4 3" };
const NEAR_PX = 28, TICK_SIZE = 12;
const family = () => getComputedStyle(document.body).fontFamily;

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => { if (value !== undefined && value !== null) made.setAttribute(name, value); });
  made.append(...children);
  return made;
}

function textWidth(text, size = TICK_SIZE) {
  ruler.font = `${size}px ${family()}`;
  return ruler.measureText(text).width;
}

function textAt(x, y, text, { size = TICK_SIZE, fill = colour("soft"), anchor = "middle", turn = 0, ...more } = {}) {
  const made = svg("text", { x, y, fill, "font-size": size, "text-anchor": anchor, transform: turn ? `rotate(${turn} ${x} ${y})` : null, ...more });
  made.textContent = text;
  return made;
}

function draw(plot, traces, layout) {
  const before = plot.layout && plot.zoom && sameAxes(plot.layout, layout) ? plot.zoom : null;
  Object.assign(plot, { data: traces, layout, zoom: before });
  if (!plot.watched) {
    plot.watched = true;
    sizes.observe(plot);
    listen(plot);
  }
  paint(plot);
}

const sameAxes = (a, b) => [a, b].map(({ xaxis, yaxis }) => JSON.stringify([xaxis.type, xaxis.title.text, yaxis.type, yaxis.title.text])).every((text, _, all) => text === all[0]);
const sizes = new ResizeObserver((seen) => seen.forEach(({ target }) => { if (target.layout && target.clientWidth && target.clientWidth !== target.painted) paint(target); }));
window.addEventListener("beforeprint", () => $$(".plot").filter((plot) => plot.layout).forEach(paint));

// ---- axes ------------------------------------------------------------------------------------------------------
// An axis works in units: numbers as they are, logarithms, or places in a list of categories.
function makeAxis(spec, values, zoom) {
  if (spec.type === "category") {
    const names = [...new Set(values)];
    const places = new Map(names.map((name, i) => [name, i]));
    const range = [-0.5, names.length - 0.5];
    return { spec, names, unit: (name) => places.get(name), range: spec.reversed ? range.reverse() : range };
  }
  const log = spec.type === "log", unit = log ? (value) => (value > 0 ? Math.log10(value) : NaN) : (value) => value;
  let range = zoom === "all" ? null : zoom ?? spec.range;
  if (!range) {
    const found = known(values.map(unit));
    const low = found.reduce((least, v) => Math.min(least, v), Infinity), high = found.reduce((most, v) => Math.max(most, v), -Infinity);
    range = Number.isFinite(low) ? widen([low, high], 0.05) : [0, 1];
    if (spec.fromZero && !log) range = [low >= 0 ? 0 : range[0], high <= 0 ? 0 : range[1]];
  }
  return { spec, log, unit, range };
}

function ticksOf(axis, room) {
  const { spec, log } = axis, [low, high] = [...axis.range].sort((a, b) => a - b);
  if (axis.names) {
    const every = Math.max(1, Math.ceil((axis.names.length * (spec.least ?? 11)) / room));
    return axis.names.map((name, at) => ({ at, text: name })).filter(({ at }) => at % every === 0);
  }
  const inside = ({ at }) => at >= low - 1e-9 && at <= high + 1e-9;
  if (spec.tickvals) {
    const named = spec.tickvals.map((value, i) => ({ at: axis.unit(value), text: spec.ticktext[i] })).filter(inside);
    if (named.length > 1 || !log) return named;
  }
  const step = roundStep((high - low) / Math.max(2, Math.floor(room / (spec.gap ?? 80))));
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) ticks.push({ at, text: log ? digits(10 ** at) : showTick(at, step, spec.ticksuffix) });
  return ticks;
}

function roundStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999) ?? 1;
}

function showTick(value, step, suffix = "") {
  const places = Math.min(8, Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (String(step / 10 ** Math.floor(Math.log10(step) + 1e-9)).startsWith("2.5") ? 1 : 0)));
  const rounded = Math.abs(value) < step * 1e-6 ? 0 : value;
  if (Math.abs(rounded) >= 1e6) return `${Number((rounded / 1e6).toPrecision(3))}M${suffix}`;
  return rounded.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−") + suffix;
}

// ---- painting --------------------------------------------------------------------------------------------------
function paint(plot) {
  const { data: traces, layout } = plot;
  const width = plot.clientWidth || 600, height = plot.clientHeight || 360;
  plot.painted = plot.clientWidth;
  const area = layOut(traces, layout, width, height, plot.zoom);
  const clip = `clip-${plot.id || (plot.dataset.name ??= `plot-${Math.random().toString(36).slice(2)}`)}`;
  const inside = svg("g", { "clip-path": `url(#${clip})` }), over = svg("g"), defs = svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", { x: area.left, y: area.top - 4, width: area.wide, height: area.tall + 8 })));
  const picture = svg("svg", { class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": family(), role: "presentation" }, defs, paintAxes(area, layout), inside, over);
  plot.spots = [];
  (layout.shapes ?? []).forEach(({ x, y, ink = colour("soft", 0.8), dash: style }) => {
    const [x0, x1] = x ? x.map(area.x) : [area.left, area.left + area.wide], [y0, y1] = y.map(area.y);
    inside.append(svg("line", { x1: x0, x2: x1, y1: y0, y2: y1, stroke: ink, "stroke-dasharray": LINE_DASHES[style] }));
  });
  const bars = traces.filter((trace) => trace.type === "bar");
  traces.forEach((trace) => {
    if (trace.type === "heat") paintHeat(trace, area, inside, plot.spots);
    else if (trace.type === "bar") paintBars(trace, bars, area, inside, defs, clip, plot.spots);
    else paintTrace(trace, area, inside, plot.spots);
  });
  (layout.annotate?.(area) ?? []).forEach(({ x, y, text, fill = colour("ink") }) => {
    const words = textAt(x, y, text, { fill, anchor: "start" });
    over.append(svg("g", { class: "annotation" }, svg("rect", { x: x - 2, y: y - 12, width: textWidth(text) + 4, height: 16, fill: colour("paper", 0.75) }), words));
  });
  const tip = $(".tip", plot) ?? element("div", "tip");
  const save = $(".save", plot) ?? saveButton(plot);
  tip.hidden = true;
  plot.area = area;
  plot.replaceChildren(picture, tip, save);
}

function layOut(traces, layout, width, height, zoom) {
  const both = (key, bar) => traces.flatMap((trace) => {
    const values = trace[key] ?? [], spread = trace[bar];
    return spread ? values.flatMap((v, i) => (v === null || typeof v === "string" ? [v] : [v - (spread.array[i] || 0), v + (spread.array[i] || 0)])) : values;
  });
  const xAxis = makeAxis(layout.xaxis, both("x", "error_x"), zoom?.x ?? (zoom === "all" ? zoom : null));
  const yAxis = makeAxis(layout.yaxis, both("y", "error_y"), zoom?.y ?? (zoom === "all" ? zoom : null));
  const { t: top, r: right } = layout.margin, turn = layout.xaxis.turn ?? 0;
  const longestY = ticksOf(yAxis, height - top - 50).map(({ text }) => textWidth(text, layout.yaxis.size));
  const titled = layout.yaxis.title.text ? 24 : 0;
  const left = Math.ceil(Math.max(0, ...longestY)) + 12 + titled;
  const wide = Math.max(40, width - left - right), xTicks = ticksOf(xAxis, wide);
  const longest = Math.max(0, ...xTicks.map(({ text }) => textWidth(text, layout.xaxis.size)));
  const below = (turn ? longest * Math.sin(Math.abs(turn) * Math.PI / 180) + 18 : 22) + (layout.xaxis.title.text ? 22 : 0);
  const tall = Math.max(30, height - top - below);
  const yTicks = ticksOf(yAxis, tall);
  const scaled = ({ range }, start, length) => (at) => start + ((at - range[0]) / (range[1] - range[0])) * length;
  const xAt = scaled(xAxis, left, wide), yAt = scaled(yAxis, top + tall, -tall);
  return { width, height, left, top, wide, tall, xAxis, yAxis, xTicks, yTicks, xAt, yAt, x: (v) => xAt(xAxis.unit(v)), y: (v) => yAt(yAxis.unit(v)) };
}

function paintAxes({ left, top, wide, tall, width, height, xTicks, yTicks, xAt, yAt, xAxis, yAxis }, layout) {
  const group = svg("g"), { xaxis, yaxis } = layout, turn = xaxis.turn ?? 0;
  const rule = (x1, y1, x2, y2, ink) => group.append(svg("line", { x1, y1, x2, y2, stroke: colour(ink) }));
  const zero = ({ range, log }) => !log && Math.min(...range) <= 0 && Math.max(...range) >= 0;
  xTicks.forEach(({ at, text }) => {
    const x = xAt(at);
    if (xaxis.grid !== false) rule(x, top, x, top + tall, "grid");
    group.append(textAt(x, top + tall + (turn ? 12 : 17), text, { size: xaxis.size, fill: colour(xaxis.ink ?? "soft"), anchor: turn ? "end" : "middle", turn, class: "xtick" }));
  });
  yTicks.forEach(({ at, text }) => {
    const y = yAt(at);
    if (yaxis.grid !== false) rule(left, y, left + wide, y, "grid");
    group.append(textAt(left - 8, y + 4, text, { size: yaxis.size, fill: colour(yaxis.ink ?? "soft"), anchor: "end", class: "ytick" }));
  });
  if (xaxis.zero && zero(xAxis)) rule(xAt(0), top, xAt(0), top + tall, "line");
  if (yaxis.zero && zero(yAxis)) rule(left, yAt(0), left + wide, yAt(0), "line");
  if (xaxis.title.text) group.append(textAt(left + wide / 2, height - 5, xaxis.title.text, { size: 13, class: "xtitle" }));
  if (yaxis.title.text) group.append(textAt(14, top + tall / 2, yaxis.title.text, { size: 13, turn: -90, class: "ytitle" }));
  return group;
}

function paintTrace(trace, area, inside, spots) {
  const { x, y, mode = "lines", line = {}, marker = {} } = trace;
  const points = x.map((v, i) => (v === null || y[i] === null ? null : [area.x(v), area.y(y[i])])).map((point) => (point && point.every(Number.isFinite) ? point : null));
  const at = (list, i) => (Array.isArray(list) ? list[i] : list);
  if (mode.includes("lines")) {
    inside.append(svg("path", {
      d: pathOf(points, line.shape === "hv") + (trace.fill ? "Z" : ""), fill: trace.fill ?? "none", stroke: trace.fill ? "none" : line.color,
      "stroke-width": line.width ?? 2, "stroke-dasharray": LINE_DASHES[line.dash], "stroke-linejoin": "round", class: trace.fill ? "band" : "line",
    }));
  }
  for (const [key, dx, dy] of [["error_y", 0, 1], ["error_x", 1, 0]]) {
    const bar = trace[key];
    if (!bar) continue;
    points.forEach((point, i) => {
      if (!point || !bar.array[i]) return;
      const ends = [-1, 1].map((sign) => [area.x(x[i] + sign * dx * bar.array[i]), area.y(y[i] + sign * dy * bar.array[i])]);
      const [from, to] = ends.map((end, side) => end.map((v, axis) => (Number.isFinite(v) ? v : [area.left, area.top + area.tall][axis] + side)));
      inside.append(svg("line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1], stroke: bar.color, "stroke-width": bar.thickness ?? 1.5, class: "bar" }));
    });
  }
  if (mode.includes("markers")) {
    const group = svg("g", { class: "points" });
    points.forEach((point, i) => {
      if (!point) return;
      const hollow = marker.hollow, size = at(marker.size, i) ?? 8;
      group.append(svg("path", {
        d: MARKS[marker.symbol ?? 0], transform: `translate(${point[0]} ${point[1]}) scale(${size / 10})`, fill: hollow ? "none" : marker.color, opacity: marker.opacity,
        stroke: hollow ? marker.color : marker.edge, "stroke-width": ((hollow ? 2 : marker.rim ?? 1) * 10) / size, class: "point",
      }));
    });
    inside.append(group);
  }
  if (mode === "text") {
    points.forEach((point, i) => { if (point) inside.append(textAt(point[0], point[1] + trace.size * 0.36, trace.text[i], { size: trace.size, fill: at(trace.inks, i), class: "number" })); });
  }
  if (trace.hover) points.forEach((point, i) => { if (point) spots.push({ x: point[0], y: point[1], hover: trace.hover[i] }); });
}

function pathOf(points, stepped) {
  let text = "", down = false;
  for (const point of points) {
    if (!point) { down = false; continue; }
    const [x, y] = point.map((v) => v.toFixed(1));
    text += !down ? `M${x} ${y}` : stepped ? `H${x}V${y}` : `L${x} ${y}`;
    down = true;
  }
  return text;
}

function paintBars(trace, bars, area, inside, defs, name, spots) {
  const step = area.wide / area.xAxis.names.length, wide = (step * 0.78) / bars.length, place = bars.indexOf(trace);
  const bottom = area.yAxis.log ? area.top + area.tall : area.y(0), hatch = `hatch-${name}`;
  if (!$("pattern", defs)) {
    defs.append(svg("pattern", { id: hatch, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { width: 2.6, height: 6, fill: colour("paper") })));
  }
  trace.x.forEach((category, i) => {
    if (trace.y[i] === null) return;
    const x = area.x(category) - step * 0.39 + wide * place, y = area.y(trace.y[i]);
    if (!Number.isFinite(y)) return;
    const box = { x: x + wide * 0.03, y: Math.min(y, bottom), width: wide * 0.94, height: Math.max(1, Math.abs(bottom - y)) };
    inside.append(svg("rect", { ...box, fill: trace.ink, class: "column" }));
    if (!trace.sure[i]) inside.append(svg("rect", { ...box, fill: `url(#${hatch})`, class: "unsure" }));
    const std = trace.error_y?.array[i];
    if (std) {
      const [low, high] = [trace.y[i] - std, trace.y[i] + std].map(area.y).map((v) => (Number.isFinite(v) ? v : bottom));
      inside.append(svg("line", { x1: x + wide / 2, x2: x + wide / 2, y1: low, y2: high, stroke: colour("soft"), "stroke-width": 1.5, class: "bar" }));
    }
    spots.push({ x: x + wide / 2, y, box: { left: x, right: x + wide, top: area.top, bottom: area.top + area.tall }, hover: trace.hover[i] });
  });
}

// Cells are painted on a canvas: of two hundred classes there are forty thousand.
function paintHeat(trace, area, inside, spots) {
  const columns = trace.x.length, lines = trace.y.length, ratio = 2;
  const canvas = element("canvas"), brush = canvas.getContext("2d");
  canvas.width = Math.round(area.wide * ratio);
  canvas.height = Math.round(area.tall * ratio);
  const wide = canvas.width / columns, tall = canvas.height / lines, gap = wide / ratio > 8 ? ratio : 0;
  trace.inks.forEach((line, i) => line.forEach((ink, j) => {
    if (!ink) return;
    brush.fillStyle = ink;
    brush.fillRect(j * wide, i * tall, wide - gap, tall - gap);
  }));
  inside.append(svg("image", { x: area.left, y: area.top, width: area.wide, height: area.tall, href: canvas.toDataURL(), preserveAspectRatio: "none" }));
  spots.push({ heat: trace, cell: (x, y) => [Math.floor(((y - area.top) / area.tall) * lines), Math.floor(((x - area.left) / area.wide) * columns)] });
}

// ---- what a pointer does ---------------------------------------------------------------------------------------
function listen(plot) {
  let start = null, frame = null;
  const place = (event) => { const box = plot.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const zooms = () => !plot.area.xAxis.names && !plot.area.yAxis.names;
  plot.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (!start) { showTip(plot, ...at); return; }
    const box = dragged(plot.area, start, at);
    if (!frame) $("svg", plot).append(frame = svg("rect", { fill: colour("accent", 0.15), stroke: colour("accent") }));
    Object.entries({ x: box.x[0], y: box.y[0], width: box.x[1] - box.x[0], height: box.y[1] - box.y[0] }).forEach(([name, value]) => frame.setAttribute(name, value));
  });
  plot.addEventListener("pointerdown", (event) => {
    if (event.target.closest(".save")) return;
    if (event.pointerType !== "mouse" || event.button || !zooms()) { showTip(plot, ...place(event)); return; }
    start = place(event);
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointerup", (event) => {
    const from = start, shown = frame;
    start = frame = null;
    if (!from || !shown) return;
    const { area } = plot, box = dragged(area, from, place(event));
    const units = (pair, at, axis, first, length) => pair.map((px) => axis.range[0] + ((px - first) / length) * (axis.range[1] - axis.range[0]));
    if (box.x[1] - box.x[0] > 8 || box.y[1] - box.y[0] > 8) {
      plot.zoom = { x: units(box.x, area.xAt, area.xAxis, area.left, area.wide), y: units([box.y[1], box.y[0]], area.yAt, area.yAxis, area.top + area.tall, -area.tall) };
    }
    paint(plot);
  });
  plot.addEventListener("pointerleave", () => { if (!start) $(".tip", plot).hidden = true; });
  plot.addEventListener("dblclick", () => { plot.zoom = plot.zoom ? null : "all"; paint(plot); });
}

// The rectangle between two points, all of a side where the pointer hardly left it.
function dragged({ left, top, wide, tall }, [x0, y0], [x1, y1]) {
  const span = (a, b, low, high) => (Math.abs(a - b) < 12 ? [low, high] : [Math.max(low, Math.min(a, b)), Math.min(high, Math.max(a, b))]);
  return { x: span(x0, x1, left, left + wide), y: span(y0, y1, top, top + tall) };
}

function spotAt(plot, x, y) {
  let best = null, least = NEAR_PX;
  for (const spot of plot.spots) {
    if (spot.heat) {
      const [line, column] = spot.cell(x, y), hover = spot.heat.hover[line]?.[column];
      if (hover) return { x, y, hover };
    } else if (spot.box) {
      if (x >= spot.box.left && x < spot.box.right && y > spot.box.top && y < spot.box.bottom) return spot;
    } else {
      const far = Math.hypot(spot.x - x, spot.y - y);
      if (far < least) [best, least] = [spot, far];
    }
  }
  return best;
}

function showTip(plot, x, y) {
  const tip = $(".tip", plot), spot = spotAt(plot, x, y);
  tip.hidden = !spot;
  if (!spot) return;
  tip.replaceChildren(...spot.hover.filter(Boolean).map((text, i) => element(i ? "span" : "strong", "", text)));
  const left = Math.min(Math.max(spot.x + 14, 0), plot.clientWidth - tip.offsetWidth), above = spot.y - tip.offsetHeight - 12;
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${above < 0 ? spot.y + 16 : above}px`;
}

function saveButton(plot) {
  const button = element("button", "save", "PNG");
  Object.assign(button, { type: "button", title: "Save this figure as a PNG" });
  button.addEventListener("click", () => savePicture(plot));
  return button;
}

function savePicture(plot) {
  const picture = $("svg", plot), { width, height } = plot.area, image = new Image();
  const source = new XMLSerializer().serializeToString(picture);
  image.onload = () => {
    const canvas = Object.assign(element("canvas"), { width: width * 2, height: height * 2 }), brush = canvas.getContext("2d");
    brush.fillStyle = colour("paper");
    brush.fillRect(0, 0, canvas.width, canvas.height);
    brush.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => {
      const link = Object.assign(element("a"), { href: URL.createObjectURL(blob), download: `${plot.id || plot.getAttribute("aria-label") || "figure"}.png` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
}
