// What the figures share: marks, colours, axes, panels.
const GLYPHS = ["M0-5A5 5 0 1 1-.01-5Z", "M-4.5-4.5h9v9h-9Z", "M0-6 5.5 0 0 6-5.5 0Z", "M0-5.5 5.5 4.5h-11Z",
  "M-2-5h4v3h3v4h-3v3h-4v-3h-3v-4h3Z", "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z",
  "M0-6 1.6-2 6-2 2.4.8 3.8 5 0 2.4-3.8 5-2.4.8-6-2-1.6-2Z", "M-3-5h6l3 5-3 5h-6l-3-5Z"];
const DOWNWARD = GLYPHS.length;
const MARKS = [...GLYPHS, "M0 5.5 5.5-4.5h-11Z"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const hue = (series) => `c${series % 8}`;
const dash = (series) => DASHES[Math.floor(series / 8) % DASHES.length];
const isHollow = (series) => series % 16 >= 8; // a second round of colours has hollow marks
const panelsOf = (indices) => [...new Set(indices)].sort((a, b) => a - b);
const isShare = (name) => name.endsWith("accuracy");
const scale = (name) => (isShare(name) ? 100 : 1);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function withSpread(row, name) {
  const [mean, std] = row.values[name];
  if (mean === null) return "–";
  const text = isShare(name) ? (v) => (100 * v).toFixed(1) : (v) => digits(v);
  return text(mean) + (std ? ` ± ${text(std)}` : "") + (isShare(name) ? " %" : "");
}

const baseLayout = () => ({ margin: { t: 14, r: 16 }, xaxis: { title: { text: "" } }, yaxis: { title: { text: "" }, gap: 48 }, shapes: [] });

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
  return { type: "log", range: [low, high], tickvals: ticks, ticktext: ticks.map((tick) => digits(tick)) };
}

// One plot for each wanted panel, with its name above; those that are there already are kept.
function facets(holder, wanted, label) {
  if (holder.dataset.shown !== wanted.join()) {
    holder.replaceChildren(...wanted.map((index) => {
      const box = element("div", "panel"), title = element("h3", ""), plot = element("div", "plot");
      title.textContent = data.panels[index];
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", `${label} ${data.panels[index]}`);
      box.append(...(data.panels[index] ? [title] : []), plot);
      return box;
    }));
    holder.classList.toggle("one", wanted.length === 1);
    holder.dataset.shown = wanted.join();
  }
  return $$(".plot", holder);
}
