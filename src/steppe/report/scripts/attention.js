// Where transformers look: a line of maps for each run, a column for each image, cut out of one picture a run.
function drawAttention() {
  const holder = $("#attention-maps");
  if (!holder) return;
  const line = Number(chosen("map"));
  const shown = subjectsShown("attention");
  const own = data.attention.filter((one) => shown(one.subject));
  holder.replaceChildren(...panelsOf(own.map((one) => subjectOf(one).panel)).flatMap((panel) => {
    const some = own.filter((one) => subjectOf(one).panel === panel);
    const sheets = some.filter((one) => one.columns);
    const title = data.panels[panel] && data.panels.length > 1 ? [element("h4", "", data.panels[panel])] : [];
    return [...title, ...(sheets.length ? [mapTable(sheets, line)] : []), ...some.filter((one) => !one.columns).map(wholeFigure)];
  }));
}

function mapTable(sheets, line) {
  const scroll = element("div", "scroll maps"), table = element("table");
  Object.assign(scroll, { tabIndex: 0 }).setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Attention maps");
  table.append(mapLine("the image", sheets[0], 0), ...sheets.map((one) => mapLine(data.series.length > 1 ? data.series[subjectOf(one).series] : subjectOf(one).name, one, line)));
  scroll.append(table);
  return scroll;
}

function mapLine(name, sheet, line) {
  const row = element("tr");
  row.append(Object.assign(element("th", "", name), { scope: "row" }));
  sheet.images.slice(0, sheet.columns).forEach((number, column) => {
    const cell = element("td"), map = element("div", "map");
    map.setAttribute("role", "img");
    map.setAttribute("aria-label", `${name}, test image ${number}`);
    map.title = `test image ${number}`;
    map.style.backgroundImage = `url("${sheet.src}")`;
    map.style.backgroundSize = `${100 * sheet.columns}% ${100 * sheet.lines}%`;
    map.style.backgroundPosition = `${sheet.columns > 1 ? (100 * column) / (sheet.columns - 1) : 0}% ${sheet.lines > 1 ? (100 * Math.min(line, sheet.lines - 1)) / (sheet.lines - 1) : 0}%`;
    cell.append(map);
    row.append(cell);
  });
  return row;
}

function wholeFigure(one) {
  const figure = element("figure", "whole"), picture = element("img");
  Object.assign(picture, { src: one.src, alt: `Attention maps of ${subjectOf(one).name}`, loading: "lazy" });
  figure.append(element("h4", "", subjectOf(one).name), picture);
  return figure;
}

lateFigures.push(drawAttention);
starts.push(() => onChange("input[name='map'], #attention-panel, input[name='attention-seeds']", drawAttention));
