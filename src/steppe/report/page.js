// The page's behaviour: theme, sorting, filtering, figures, copying. Reads its numbers from the element #data.
// Names in the data are not trusted: they reach the page as textContent, and Plotly through escape().
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const element = (tag, name) => Object.assign(document.createElement(tag), { className: name });
  const announce = (text) => { $("#announce").textContent = text; };
  const hidden = new Set(); // series switched off in the legends, by number

  // ---- theme -------------------------------------------------------------------------------------------------
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  function showTheme() {
    const button = $("#theme");
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    button.setAttribute("aria-pressed", String(isDark()));
    drawAll();
  }

  function startTheme() {
    try { root.dataset.theme = localStorage.getItem("steppe-theme") || ""; } catch { /* storage may be refused */ }
    if (!["light", "dark"].includes(root.dataset.theme)) delete root.dataset.theme;
    $("#theme").addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("steppe-theme", root.dataset.theme); } catch { /* then it lasts for this visit */ }
      showTheme();
    });
    system.addEventListener("change", showTheme);
  }

  function colour(name, alpha = 1) {
    const probe = $("#announce");
    probe.style.color = `var(--${name})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g);
    probe.style.color = "";
    return `rgba(${r}, ${g}, ${b}, ${alpha})`;
  }

  // ---- table -------------------------------------------------------------------------------------------------
  function sortBy(button) {
    const head = button.closest("th");
    const numeric = button.dataset.kind === "number";
    const [first, other] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
    const direction = head.getAttribute("aria-sort") === first ? other : first;
    $$("th", head.parentNode).forEach((th) => th.setAttribute("aria-sort", th === head ? direction : "none"));
    sortRows(head.cellIndex, numeric, direction);
    announce(`Sorted by ${button.textContent}, ${direction}`);
  }

  function sortRows(column, numeric, direction) {
    const sign = direction === "ascending" ? 1 : -1;
    const body = $("#table tbody");
    const rows = [...body.rows].map((row, place) => ({ row, place, key: row.cells[column].dataset.sort }));
    rows.sort((a, b) => {
      if ((a.key === "") !== (b.key === "")) return a.key === "" ? 1 : -1;
      const order = numeric ? Number(a.key) - Number(b.key) : a.key.localeCompare(b.key, undefined, { numeric: true });
      return sign * order || a.place - b.place;
    });
    rows.forEach(({ row }) => body.append(row));
  }

  function filterRows() {
    const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...$("#table tbody").rows];
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    $("#shown").textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  }

  function startTable() {
    $$("#table th button").forEach((button) => button.addEventListener("click", () => sortBy(button)));
    const sorted = $('#table th[aria-sort="descending"]');
    if (sorted) sortRows(sorted.cellIndex, true, "descending");
    $("#filter").addEventListener("input", filterRows);
    filterRows();
  }

  // ---- figures -----------------------------------------------------------------------------------------------
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon"];
  const GLYPHS = ["M0-5A5 5 0 1 1-.01-5Z", "M-4.5-4.5h9v9h-9Z", "M0-6 5.5 0 0 6-5.5 0Z", "M0-5.5 5.5 4.5h-11Z",
    "M-2-5h4v3h3v4h-3v3h-4v-3h-3v-4h3Z", "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z",
    "M0-6 1.6-2 6-2 2.4.8 3.8 5 0 2.4-3.8 5-2.4.8-6-2-1.6-2Z", "M-3-5h6l3 5-3 5h-6l-3-5Z"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const chosen = (name) => $(`input[name="${name}"]:checked`)?.value;
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  const cut = (text, limit) => (text.length > limit ? `${text.slice(0, Math.ceil(limit / 2))}…${text.slice(1 - Math.floor(limit / 2))}` : text);
  const hue = (series) => `c${series % 8}`;
  const dash = (series) => DASHES[Math.floor(series / 8) % DASHES.length];
  const open = (series) => (series % 16 < 8 ? "" : "-open"); // a second round of colours has hollow marks
  const isShare = (name) => name.endsWith("accuracy");
  const scale = (name) => (isShare(name) ? 100 : 1);
  const onPhone = () => window.innerWidth < 700;
  const known = (values) => values.filter((v) => v !== null && Number.isFinite(v));
  const visible = () => data.rows.filter((row) => !hidden.has(row.series));

  function figures(value, digits = 3) {
    if (value === null || value === undefined) return "–";
    if (Math.abs(value) >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
    if (Math.abs(value) >= 1e3) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(digits)));
  }

  function withSpread(row, name) {
    const [mean, std] = row.values[name];
    if (mean === null) return "–";
    const digits = isShare(name) ? (v) => (100 * v).toFixed(1) : (v) => figures(v);
    return digits(mean) + (std ? ` ± ${digits(std)}` : "") + (isShare(name) ? " %" : "");
  }

  function baseLayout() {
    const axis = () => ({
      gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), zeroline: false,
      automargin: true, title: { standoff: 12, font: { size: 13 } }, tickfont: { size: 12 }, ticks: "",
    });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("soft") },
      margin: { l: 12, r: 14, t: 14, b: 12 }, dragmode: onPhone() ? false : "zoom",
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { family: getComputedStyle(document.body).fontFamily, color: colour("ink"), size: 13 }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("soft", 0.6), activecolor: colour("ink") },
      xaxis: axis(), yaxis: axis(),
    };
  }

  const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };
  const draw = (plot, traces, layout) => Plotly.react(plot, traces, layout, CONFIG);

  function widen([low, high], share) {
    const pad = (high - low) * share || Math.abs(high) * 0.02 || 1;
    return [low - pad, high + pad];
  }

  // A logarithmic axis suits positive values that span more than a decade; its ticks stand at 1, 2 and 5.
  const suitsLog = (values) => values.length > 0 && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 12;

  function logAxis(values, share = 0.06) {
    const [low, high] = widen([Math.log10(Math.min(...values)), Math.log10(Math.max(...values))], share);
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power += 1) {
      for (const digit of high - low > (onPhone() ? 2 : 3) ? [1] : [1, 2, 5]) ticks.push(Number(`${digit}e${power}`));
    }
    return { type: "log", range: [low, high], tickvals: ticks, ticktext: ticks.map((tick) => figures(tick)) };
  }

  function drawCost() {
    const plot = $("#plot-cost");
    if (!plot) return;
    const cost = chosen("cost");
    const layout = baseLayout();
    const points = visible().filter((row) => row.values[cost][0] !== null && row.values.test_accuracy[0] !== null);
    const at = (row) => [row.values[cost][0], 100 * row.values.test_accuracy[0]];
    const front = data.fronts[cost].map((index) => data.rows[index]).filter((row) => points.includes(row));
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
        error_y: bar(100 * (row.values.test_accuracy[1] || 0), 0.55), error_x: bar(row.values[cost][1], 0.55),
        hovertext: [`<b>${escape(cut(row.name, 60))}</b><br>test ${withSpread(row, "test_accuracy")}<br>${data.titles[cost].toLowerCase()} ${withSpread(row, cost)}<br>${row.seeds} seed${row.seeds === 1 ? "" : "s"}${best ? "<br>on the Pareto front" : ""}`],
        marker: {
          size: (best ? 13 : 10) + (row.panel % 8 === 3 ? 2 : 0), symbol: SYMBOLS[row.panel % 8] + open(row.series), color: colour(hue(row.series), best ? 1 : 0.75),
          line: { width: best || open(row.series) ? 2 : 1, color: colour(best ? "ink" : open(row.series) ? hue(row.series) : "paper") },
        },
      });
    });
    const costs = points.map((row) => at(row)[0]);
    if (suitsLog(costs)) Object.assign(layout.xaxis, logAxis(costs));
    layout.xaxis.title.text = data.titles[cost];
    layout.yaxis.title.text = onPhone() ? "" : "Test accuracy, %";
    layout.yaxis.ticksuffix = onPhone() ? " %" : "";
    layout.margin.t = 34;
    const edges = points.flatMap((row) => [-1, 1].map((sign) => at(row)[1] + sign * 100 * (row.values.test_accuracy[1] || 0)));
    layout.annotations = nameFront(front.map((row) => ({ row, x: at(row)[0], y: at(row)[1] })), costs, edges, plot, layout);
    draw(plot, traces, layout);
  }

  // Names stand up and left of the front, where by its meaning no point can be; those that would collide are left out.
  function nameFront(places, costs, edges, plot, layout) {
    if (!costs.length) return [];
    const log = layout.xaxis.type === "log";
    const flat = (x) => (log ? Math.log10(x) : x);
    const [x0, x1] = log ? layout.xaxis.range : widen([Math.min(...costs), Math.max(...costs)], 0.07);
    const [y0, y1] = widen([Math.min(...edges), Math.max(...edges)], 0.1);
    layout.xaxis.range = [x0, x1];
    layout.yaxis.range = [y0, y1];
    const wide = plot.clientWidth - 70, tall = plot.clientHeight - 90;
    const taken = [];
    return [...places].reverse().flatMap(({ row, x, y }) => {
      const text = cut(row.name, onPhone() ? 24 : 40);
      const px = ((flat(x) - x0) / (x1 - x0)) * wide, py = ((y1 - y) / (y1 - y0)) * tall;
      const length = text.length * 7 + 8;
      const left = px > length ? px - length - 6 : Math.min(Math.max(px - length / 2, 0), wide - length);
      const up = px > length ? 4 : 12;
      const box = [left, py - up - 20, left + length, py - up];
      if (taken.some((t) => box[0] < t[2] && t[0] < box[2] && box[1] < t[3] && t[1] < box[3])) return [];
      taken.push(box);
      return [{ x: flat(x), y, text: escape(text), showarrow: false, yanchor: "bottom", yshift: up, xanchor: px > length ? "right" : "left",
        xshift: px > length ? -6 : left - px, font: { size: 12, color: colour("ink") }, bgcolor: colour("paper", 0.75), borderpad: 1 }];
    });
  }

  function drawCurves() {
    const holder = $("#plot-curves");
    if (!holder) return;
    const metric = chosen("metric"), progress = chosen("progress");
    const panel = $("#panel")?.value ?? "all";
    const wanted = data.panels.map((_, i) => i).filter((i) => panel === "all" || String(i) === panel);
    const rows = visible().filter((row) => row.curve && wanted.includes(row.panel));
    const axis = sharedAxis(rows.map((row) => row.curve.y[metric].mean), metric);
    layOutPanels(holder, wanted).forEach((plot, place) => {
      const layout = baseLayout();
      Object.assign(layout.yaxis, axis, { ticksuffix: isShare(metric) ? " %" : "" });
      layout.xaxis.title.text = data.titles[progress];
      layout.xaxis.rangemode = "tozero";
      const own = rows.filter((row) => row.panel === wanted[place]);
      draw(plot, own.flatMap((row) => curveTraces(row, metric, progress)), layout);
    });
  }

  function layOutPanels(holder, wanted) {
    if (holder.dataset.shown !== wanted.join()) {
      $$(".plot", holder).forEach((old) => Plotly.purge(old));
      holder.replaceChildren(...wanted.map((index) => {
        const box = element("div", "panel"), title = element("h3", ""), plot = element("div", "plot");
        title.textContent = data.panels[index];
        plot.setAttribute("role", "img");
        plot.setAttribute("aria-label", `Learning curves ${data.panels[index]}`);
        box.append(...(data.panels[index] ? [title] : []), plot);
        return box;
      }));
      holder.classList.toggle("one", wanted.length === 1);
      holder.dataset.shown = wanted.join();
    }
    return $$(".plot", holder);
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
        fill: "toself", mode: "lines", line: { width: 0 }, fillcolor: colour(hue(row.series), 0.16), hoverinfo: "skip",
      });
    }
    traces.push({
      x, y, mode: known(y).length > 1 ? "lines" : "markers", hoverinfo: "text",
      line: { color: ink, width: 2, dash: dash(row.series) }, marker: { color: ink, size: 8 },
      hovertext: y.map((v, i) => `<b>${escape(cut(data.series[row.series], 60))}</b><br>epoch ${row.curve.x.epoch[i]}: ${figures(v, 4)}${isShare(metric) ? " %" : ""}${std && std[i] !== null ? ` ± ${figures(std[i] * factor, 2)}` : ""}`),
    });
    return traces;
  }

  function drawFlatness() {
    const plot = $("#plot-flatness");
    if (!plot) return;
    const measure = chosen("flatness");
    const layout = baseLayout();
    const rows = visible().filter((row) => row.values[measure][0] !== null);
    const alone = data.panels.length === 1;
    const groups = alone ? data.series : data.panels;
    const group = (row) => (alone ? row.series : row.panel);
    const lanes = alone ? [0] : data.series.map((_, i) => i).filter((i) => !hidden.has(i));
    const lane = (row) => (alone ? 0 : ((lanes.indexOf(row.series) + 0.5) / lanes.length - 0.5) * 0.72);
    const traces = rows.map((row) => {
      const [mean, std] = row.values[measure];
      return {
        x: [mean], y: [group(row) + lane(row)], mode: "markers", hoverinfo: "text",
        marker: { size: 11, color: colour(hue(row.series)), symbol: `circle${open(row.series)}`, line: { width: open(row.series) ? 2 : 0, color: colour(hue(row.series)) } },
        error_x: { type: "data", array: [std || 0], visible: Boolean(std), width: 0, thickness: 2, color: colour(hue(row.series), 0.6) },
        hovertext: [`<b>${escape(cut(row.name, 60))}</b><br>${data.titles[measure].toLowerCase()} ${withSpread(row, measure)}`],
      };
    });
    const values = rows.map((row) => row.values[measure][0]);
    Object.assign(layout.xaxis, suitsLog(values) ? logAxis(values) : { rangemode: "tozero", zeroline: true });
    layout.xaxis.title.text = onPhone() ? "← flatter" : `← flatter    ${data.titles[measure]}`;
    Object.assign(layout.yaxis, {
      tickvals: groups.map((_, i) => i), ticktext: groups.map((name) => escape(cut(name, onPhone() ? 14 : 34))),
      range: [groups.length - 0.5, -0.5], showgrid: false, tickfont: { size: 13, color: colour("ink") },
    });
    layout.shapes = groups.slice(1).map((_, i) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: i + 0.5, y1: i + 0.5, line: { color: colour("grid"), width: 1 }, layer: "below",
    }));
    plot.style.height = `${90 + groups.length * Math.max(34, lanes.length * 19 + 14)}px`;
    draw(plot, traces, layout);
  }

  // ---- legends, shared by all figures ----------------------------------------------------------------------------
  function glyph(kind, index) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
    Object.entries({ width: kind === "lines" ? 26 : 16, height: 14, viewBox: kind === "lines" ? "-13 -7 26 14" : "-8 -7 16 14", "aria-hidden": "true" })
      .forEach(([name, value]) => svg.setAttribute(name, value));
    shape.setAttribute("d", kind === "lines" ? "M-12 0H12" : kind === "panel" ? GLYPHS[index % 8] : GLYPHS[0]);
    shape.style.cssText = kind === "lines"
      ? `stroke: var(--${hue(index)}); stroke-width: 3; stroke-dasharray: ${{ solid: "none", dash: "7 4", dot: "2 4", dashdot: "7 3 2 3" }[dash(index)]}`
      : kind !== "panel" && open(index) ? `fill: none; stroke-width: 2; stroke: var(--${hue(index)})`
        : `fill: var(--${kind === "panel" ? "soft" : hue(index)})`;
    svg.append(shape);
    return svg;
  }

  function buildLegends() {
    $$(".legend").forEach((legend) => {
      const kind = legend.dataset.legend;
      if (data.series.length > 1) {
        data.series.forEach((name, index) => {
          const button = element("button", "series");
          button.type = "button";
          button.dataset.series = index;
          button.setAttribute("aria-pressed", "true");
          button.title = "Show or hide in all figures";
          button.append(glyph(kind, index), cut(name, 60));
          button.addEventListener("click", () => toggleSeries(index));
          legend.append(button);
        });
      }
      if (kind === "symbols" && data.panels.length > 1) {
        legend.append(element("span", "rule"), ...data.panels.map((name, index) => {
          const key = element("span", "key");
          key.append(glyph("panel", index), cut(name, 60));
          return key;
        }));
      }
    });
  }

  function toggleSeries(index) {
    if (!hidden.delete(index)) hidden.add(index);
    $$(`.legend button[data-series="${index}"]`).forEach((b) => b.setAttribute("aria-pressed", String(!hidden.has(index))));
    drawAll();
  }

  function drawAll() { [drawCost, drawCurves, drawFlatness].forEach((figure) => figure()); }

  // ---- copying and links ------------------------------------------------------------------------------------------
  async function copy(button) {
    const text = $("pre", button.closest(".file")).textContent;
    const done = await Promise.resolve(navigator.clipboard?.writeText(text).then(() => true)).catch(() => false) || copyOldWay(text);
    button.textContent = done ? "Copied" : "Select and copy by hand";
    announce(button.textContent);
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  function copyOldWay(text) { // pages opened as files may have no clipboard object
    const area = element("textarea", "quiet");
    const before = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }

  function openTarget() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target?.tagName === "DETAILS") target.open = true;
  }

  startTheme();
  startTable();
  buildLegends();
  showTheme();
  $$('input[name="cost"]').forEach((input) => input.addEventListener("change", drawCost));
  $$('input[name="metric"], input[name="progress"], #panel').forEach((input) => input.addEventListener("change", drawCurves));
  $$('input[name="flatness"]').forEach((input) => input.addEventListener("change", drawFlatness));
  $$(".copy").forEach((button) => button.addEventListener("click", () => copy(button)));
  window.addEventListener("hashchange", openTarget);
  openTarget(); // a link to a run opens it
})();
