// Which classes are taken for which, as a heat map, and the accuracy of each class as a table: of one row, or less another.
const LARGEST_CELL = 52, NUMBERED_CELL = 20, HIGHEST_MAP = 900;
const SHADES = { right: ["c0", 1], wrong: ["c1", 0.6], other: ["soft", 0.8] }; // full colour, and how soon it is reached
const shareOf = (entry, label, count) => (entry.sizes[label] ? count / entry.sizes[label] : null);
const inPercent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

function drawClasses() {
  const table = $("#class-table");
  if (!table) return;
  const one = data.confusions[Number($("#class-row").value)];
  const alike = (entry) => entry !== one && entry.set === one.set && entry.classes === one.classes;
  const choices = $("#class-other");
  [...choices.options].slice(1).forEach((option, i) => { option.disabled = option.hidden = !alike(data.confusions[i]); });
  if (choices.selectedOptions[0]?.disabled) choices.value = "-1";
  const other = data.confusions[Number(choices.value)];
  const names = data.class_names[one.classes];
  drawConfusion(one, other, names);
  fillClasses(table, one, other, names);
  $("#class-said").textContent = (other ? sayDifference(one, other) : sayMistakes(one, names)) + (one.fewest > 1 ? ` Mistakes of fewer than ${one.fewest} images are not in the map.` : "");
}

// Counts by label and answer, from lines that hold answer, count, answer, count, …
function matrixOf(entry) {
  return entry.lines.map((own) => {
    const line = new Array(entry.sizes.length).fill(0);
    for (let i = 0; i < own.length; i += 2) line[own[i]] = own[i + 1];
    return line;
  });
}

// The worst mistakes of a class: pairs of answer and count, most frequent first.
function mistakesOf(entry, label) {
  const own = entry.lines[label], pairs = [];
  for (let i = 0; i < own.length; i += 2) if (own[i] !== label) pairs.push([own[i], own[i + 1]]);
  return pairs.sort((a, b) => b[1] - a[1]);
}

function sayMistakes(one, names) {
  const worst = one.lines.flatMap((_, label) => mistakesOf(one, label).slice(0, 1).map(([answer, count]) => [label, answer, count])).sort((a, b) => b[2] - a[2])[0];
  const hardest = one.accuracy.map(([mean], label) => [mean, label]).filter(([mean]) => mean !== null).sort((a, b) => a[0] - b[0])[0];
  if (!worst || !hardest) return `${one.name}: no image was mistaken.`;
  const [label, answer, count] = worst, images = one.seeds > 1 ? `answers of ${one.seeds} seeds` : "images";
  return `${one.name}: hardest is ${names[hardest[1]]}, of which ${inPercent(hardest[0])} are recognised. The most frequent mistake: ${names[label]} taken for ${names[answer]}, ${count} of ${one.sizes[label]} ${images}. Orange cells are mistakes.`;
}

function sayDifference(one, other) {
  const differences = one.accuracy.map(([mean], i) => less(mean, other.accuracy[i][0], other)).filter((v) => v !== null);
  const better = differences.filter((v) => v > 0).length, worse = differences.filter((v) => v < 0).length;
  return `${one.name} less ${other.name}, in percentage points: blue is better, orange is worse. More accurate in ${better} of ${differences.length} classes, less in ${worse}.`;
}

// ---- the map ---------------------------------------------------------------------------------------------------
function drawConfusion(one, other, names) {
  const plot = $("#plot-confusion"), layout = baseLayout();
  const most = Number(chosen("class-part") ?? 200), matrix = matrixOf(one), second = other && matrixOf(other);
  const mistaken = one.sizes.map((size, label) => size - matrix[label][label]);
  const kept = names.map((_, i) => i).sort((a, b) => mistaken[b] - mistaken[a] || a - b).slice(0, most).sort((a, b) => a - b);
  const rest = kept.length < names.length || one.fewest > 1; // answers without a column of their own
  const labels = uniqueLabels(kept.map((i) => names[i] || String(i)));
  const cell = mapSize(plot, labels, kept.length + rest);
  const cells = kept.map((label) => {
    const whole = (entry, counts) => entry.sizes[label] - kept.reduce((sum, answer) => sum + counts[label][answer], 0);
    const line = kept.map((answer) => cellOf(one, other, matrix, second, names, label, answer));
    return rest ? [...line, describeCell(one, other, label, whole(one, matrix), second && whole(other, second), `${cut(names[label], 40)} taken for a class without a column`, "other")] : line;
  });
  const columns = rest ? [...labels, "others"] : labels;
  const largest = Math.max(0.02, ...cells.flat().filter(({ kind }) => kind === "wrong" || (other && kind === "right")).map(({ share }) => Math.abs(share ?? 0)));
  const shade = (one) => (one.worth === null ? null : shadeOf(one, other, largest));
  const traces = [{
    type: "heat", x: columns, y: labels, z: cells.map((line) => line.map(({ worth }) => worth)),
    inks: cells.map((line) => line.map(shade)), hover: cells.map((line) => line.map(({ hover }) => hover)),
  }];
  if (cell >= NUMBERED_CELL) traces.push(numbersOn(cells, columns, labels, cell > 36 ? 13 : cell > 25 ? 11 : 10, shade));
  const named = { type: "category", grid: false, size: cell < 12.5 ? 9 : 12, ink: "ink", least: cell < 12.5 ? 10 : 12 };
  Object.assign(layout.xaxis, named, { turn: Math.max(...columns.map((text) => text.length)) * 7 > cell ? -60 : 0 });
  Object.assign(layout.yaxis, named, { reversed: true });
  layout.xaxis.title.text = "answer";
  layout.yaxis.title.text = onPhone() ? "" : "class";
  draw(plot, traces, layout);
}

// The colour of a cell, as the heat map has it.
function shadeOf({ kind, worth }, other, largest) {
  if (other) return `rgb(${contrast(worth / largest).join()})`;
  const [ink, bend] = SHADES[kind];
  return mixed(colour("card"), colour(ink), Math.min(worth / (kind === "wrong" ? largest : 1), 1) ** bend);
}

// The figures in the cells, black or white: whichever stands out more from the cell.
function numbersOn(cells, columns, labels, size, shade) {
  const shown = cells.flatMap((line, y) => line.map((one, x) => ({ ...one, x: columns[x], y: labels[y] }))).filter(({ text }) => text);
  return {
    mode: "text", size, x: shown.map(({ x }) => x), y: shown.map(({ y }) => y), text: shown.map(({ text }) => text),
    inks: shown.map((one) => (luminance(shade(one)) > 0.179 ? "#000" : "#fff")),
  };
}

function luminance(text) {
  const [r, g, b] = text.match(/[\d.]+/g).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// The size of a cell; the figure gets what its cells and names need, and no more than there is.
function mapSize(plot, labels, columns) {
  const words = 30 + 6 * Math.max(...labels.map((text) => text.length)), room = plot.parentElement.clientWidth;
  const cell = Math.max(2, Math.min(LARGEST_CELL, (room - words - 40) / columns, HIGHEST_MAP / labels.length));
  plot.style.maxWidth = `${words + 40 + cell * columns}px`;
  plot.style.height = `${words + 40 + cell * labels.length}px`;
  return cell;
}

// Short names, no two alike: the axis would take them for one class.
function uniqueLabels(names) {
  const short = names.map((name) => cut(name, onPhone() ? 12 : 22));
  return short.map((text, i) => (short.indexOf(text) === i && text !== "others" ? text : `${text} (${i})`));
}

function cellOf(one, other, matrix, second, names, label, answer) {
  const said = label === answer ? "recognised" : `taken for ${cut(names[answer], 40)}`;
  return describeCell(one, other, label, matrix[label][answer], second?.[label][answer], `${cut(names[label], 40)} ${said}`, label === answer ? "right" : "wrong");
}

function describeCell(one, other, label, count, otherCount, said, kind) {
  const share = shareOf(one, label, count), from = other ? shareOf(other, label, otherCount) : null;
  const value = less(share, from, other), rounded = value === null ? 0 : Math.round(100 * value);
  return {
    kind, share: value, worth: value === null ? null : other && kind !== "right" ? -value : value,
    text: rounded === 0 ? "" : other ? signed(rounded / 100).replace(".0", "") : String(rounded),
    hover: [said, `${count} of ${one.sizes[label]}: ${inPercent(share)}`, other ? `less ${inPercent(from)}: ${signed(value)}` : ""],
  };
}

function mixed(from, to, share) {
  const [a, b] = [from, to].map((text) => text.match(/[\d.]+/g).map(Number));
  return `rgb(${[0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * share)).join()})`;
}

// ---- the table -------------------------------------------------------------------------------------------------
function fillClasses(table, one, other, names) {
  table.tHead.rows[0].cells[2].hidden = !other;
  table.tBodies[0].replaceChildren(...names.map((name, label) => {
    const [mean, std] = one.accuracy[label], row = element("tr");
    const difference = other ? less(mean, other.accuracy[label][0], other) : null;
    const taken = mistakesOf(one, label).slice(0, 3).map(([answer, count]) => `${names[answer]} (${inPercent(shareOf(one, label, count))})`);
    const cells = [
      [name, name], [mean === null ? "–" : (100 * mean).toFixed(1) + (std ? ` ± ${(100 * std).toFixed(1)}` : ""), mean ?? ""],
      [signed(difference), difference ?? ""], [String(Math.round(one.sizes[label] / one.seeds)), one.sizes[label]], [taken.join(", ") || "–", taken.join(", ")],
    ].map(([text, key], i) => {
      const cell = element("td", ["label", "number", "number", "number", "long"][i], text);
      cell.dataset.sort = key;
      return cell;
    });
    cells[2].hidden = !other;
    row.append(...cells);
    return row;
  }));
  const head = $('th:not([aria-sort="none"])', table);
  if (head) sortTable(head, head.getAttribute("aria-sort"));
}

lateFigures.push(drawClasses);
starts.push(() => onChange("#class-row, #class-other, input[name='class-part']", drawClasses));
