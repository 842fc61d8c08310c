// Every single figure with its settings: made when it is opened, since there may be thousands.
const MOST_LINES = 400;
let scalarOrder = { column: null, direction: "ascending" };
let scalarLines = null;

function drawScalars() {
  const table = $("#scalars");
  if (!table?.closest("details").open) return;
  const { names, settings, lines } = data.scalars;
  scalarLines ??= lines.map(([subject, name, value, place]) => [data.subjects[subject].name, names[name], value, settings[place]]);
  const words = wordsOf($("#scalar-filter"));
  let found = scalarLines.filter((line) => words.every((word) => `${line[0]} ${line[1]} ${line[3]}`.toLowerCase().includes(word)));
  const { column, direction } = scalarOrder;
  if (column !== null) found = [...found].sort((a, b) => inOrder(a[column] ?? "", b[column] ?? "", column === 2, direction));
  $$("thead th", table).forEach((th, i) => th.setAttribute("aria-sort", i === column ? direction : "none"));
  table.tBodies[0].replaceChildren(...found.slice(0, MOST_LINES).map((line) => {
    const row = element("tr");
    row.append(element("td", "label", line[0]), element("td", "", line[1]), element("td", "number", digits(line[2], 5)), element("td", "how", line[3]));
    return row;
  }));
  const shown = Math.min(found.length, MOST_LINES).toLocaleString("en");
  $("#scalar-count").textContent = `${shown} of ${scalarLines.length.toLocaleString("en")} figures${found.length > MOST_LINES ? ": filter to see others" : ""}`;
}

function sortScalars(column) {
  const first = column === 2 ? "descending" : "ascending", other = column === 2 ? "ascending" : "descending";
  scalarOrder = { column, direction: scalarOrder.column === column && scalarOrder.direction === first ? other : first };
  drawScalars();
}

starts.push(() => {
  scalarLines = null;
  const table = $("#scalars");
  if (!table) return;
  $$("thead button", table).forEach((button, column) => button.addEventListener("click", () => sortScalars(column)));
  $("#scalar-filter").addEventListener("input", drawScalars);
  table.closest("details").addEventListener("toggle", drawScalars);
});
lateFigures.push(drawScalars);
