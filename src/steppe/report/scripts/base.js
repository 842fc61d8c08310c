// What all parts of the page's script share. The parts are put together, in the order that page.py names, in one scope.
// Names in the data are not trusted: they reach the page as textContent.
const root = document.documentElement;
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const element = (tag, name = "", text = "") => Object.assign(document.createElement(tag), { className: name, textContent: text });
const announce = (text) => { $("#announce").textContent = text; };
const cut = (text, limit) => (text.length > limit ? `${text.slice(0, Math.ceil(limit / 2))}…${text.slice(1 - Math.floor(limit / 2))}` : text);
const known = (values) => values.filter((v) => v !== null && Number.isFinite(v));
const onPhone = () => window.innerWidth < 700;
const chosen = (name) => $(`input[name="${name}"]:checked`)?.value;
const onChange = (selector, action) => $$(selector).forEach((input) => input.addEventListener("change", action));

let data = JSON.parse($("#data").textContent);
const hidden = new Set(); // names of the series switched off in the legends
const visible = () => data.rows.filter((row) => !hidden.has(data.series[row.series]));

// A part registers what it does when the page begins or was renewed, and what it draws. Figures further down are drawn
// one by one when the browser is free, so that the page can be read at once.
const starts = [], figures = [], lateFigures = [];
let queue = [];

function drawAll() {
  figures.forEach((figure) => figure());
  queue = [...lateFigures];
  drawNext();
}

function drawNext() {
  const waiting = queue;
  root.toggleAttribute("data-drawing", waiting.length > 0);
  if (waiting.length) setTimeout(() => { if (waiting === queue) { queue.shift()(); drawNext(); } }, 0);
}

function digits(value, count = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e3) return Math.round(value).toLocaleString("en");
  if (size && size < 1e-3) return value.toExponential(Math.max(count - 2, 0)).replace("e-", "e−");
  return String(Number(value.toPrecision(count)));
}

// ---- theme: the reader's choice, else the system's
const system = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

function showTheme() {
  const button = $("#theme");
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  button.setAttribute("aria-pressed", String(isDark()));
  inks.clear();
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

const inks = new Map(); // colours of the theme as they were last looked up

function colour(name, alpha = 1) {
  if (!inks.has(name)) {
    const probe = $("#announce");
    probe.style.color = `var(--${name})`;
    inks.set(name, getComputedStyle(probe).color.match(/[\d.]+/g));
    probe.style.color = "";
  }
  const [r, g, b] = inks.get(name);
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

