// Tables: a heading sorts by click or Enter, words in the box above filter.
function sortBy(button) {
  const head = button.closest("th");
  const numeric = button.dataset.kind === "number";
  const [first, other] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
  const direction = head.getAttribute("aria-sort") === first ? other : first;
  sortTable(head, direction);
  announce(`Sorted by ${button.textContent}, ${direction}`);
}

function sortTable(head, direction) {
  $$("th", head.parentNode).forEach((th) => th.setAttribute("aria-sort", th === head ? direction : "none"));
  const numeric = $("button", head).dataset.kind === "number";
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].map((row, place) => ({ row, place, key: row.cells[head.cellIndex].dataset.sort ?? row.cells[head.cellIndex].textContent }));
  rows.sort((a, b) => inOrder(a.key, b.key, numeric, direction) || a.place - b.place);
  body.append(...rows.map(({ row }) => row));
}

// What is missing comes last either way.
function inOrder(a, b, numeric, direction) {
  if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
  const order = numeric ? Number(a) - Number(b) : String(a).localeCompare(String(b), undefined, { numeric: true });
  return direction === "ascending" ? order : -order;
}

const wordsOf = (input) => input.value.toLowerCase().split(/\s+/).filter(Boolean);

function filterRows(input) {
  const words = wordsOf(input);
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  const shown = rows.filter((row) => !row.hidden).length;
  $(`output[for="${input.id}"]`).textContent = words.length ? `${shown} of ${rows.length} rows` : "";
}

starts.push(() => {
  $$("table.sortable th button").forEach((button) => button.addEventListener("click", () => sortBy(button)));
  $$('table.sortable th[aria-sort="descending"]').forEach((head) => sortTable(head, "descending"));
  $$("input[data-filters]").forEach((input) => { input.addEventListener("input", () => filterRows(input)); filterRows(input); });
});
