// A served page asks now and then whether the runs have changed, and takes what is new in without being loaded again:
// what was chosen, sorted, filtered, opened and read stays as it was.
const EVERY_MS = 2000;

function remember() {
  const state = { fields: {}, radios: {}, open: [], sorts: {} };
  $$("main input:not([type=radio]), main select").forEach((field) => {
    state.fields[field.id] = field.tagName === "SELECT" ? field.selectedOptions[0]?.textContent : field.value;
  });
  $$("main input[type=radio]:checked").forEach((radio) => { state.radios[radio.name] = radio.value; });
  $$("main details").forEach((details) => { if (details.open) state.open.push(details.dataset.key); });
  $$("main table.sortable").forEach((table) => {
    const head = $('th:not([aria-sort="none"])', table);
    if (head) state.sorts[table.id] = [head.textContent, head.getAttribute("aria-sort")];
  });
  const focus = document.activeElement;
  state.focus = focus?.id ? `#${CSS.escape(focus.id)}` : focus?.name ? `input[name="${CSS.escape(focus.name)}"]:checked` : null;
  const section = $$("main > section").find((one) => one.getBoundingClientRect().bottom > 0);
  state.place = section && [section.id, section.getBoundingClientRect().top];
  return state;
}

function restore(state) {
  Object.entries(state.fields).forEach(([id, value]) => {
    const field = id && document.getElementById(id);
    if (field?.tagName === "SELECT") field.selectedIndex = Math.max(0, [...field.options].findIndex((option) => option.textContent === value));
    else if (field) field.value = value;
  });
  Object.entries(state.radios).forEach(([name, value]) => {
    const radio = $$(`main input[name="${name}"]`).find((one) => one.value === value);
    if (radio) radio.checked = true;
  });
  $$("main details").forEach((details) => { details.open = state.open.includes(details.dataset.key); });
}

function restoreAfterStart(state) {
  Object.entries(state.sorts).forEach(([id, [text, direction]]) => {
    const head = $$(`#${CSS.escape(id)} th`).find((th) => th.textContent === text);
    if (head) sortTable(head, direction);
  });
  const section = state.place && document.getElementById(state.place[0]);
  if (section) window.scrollBy({ top: section.getBoundingClientRect().top - state.place[1], behavior: "instant" });
  if (state.focus) $(state.focus)?.focus({ preventScroll: true });
}

function renew(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const state = remember();
  for (const part of ["main", ".top nav", "footer"]) $(part).replaceWith(document.adoptNode($(part, fresh)));
  $("#data").textContent = $("#data", fresh).textContent;
  data = JSON.parse($("#data").textContent);
  document.title = fresh.title;
  restore(state);
  starts.forEach((start) => start());
  [...figures, ...lateFigures].forEach((figure) => figure()); // all at once: where the reader was depends on their heights
  restoreAfterStart(state);
  return $("meta[name=steppe-version]", fresh).content;
}

// What the server says; "" where it has nothing to show now, null where it does not answer.
async function ask(what) {
  try {
    const answer = await fetch(what, { cache: "no-store" });
    return answer.ok ? await answer.text() : "";
  } catch {
    return null;
  }
}

async function watch(version) {
  const light = $("#live");
  for (;;) {
    await new Promise((done) => { setTimeout(done, EVERY_MS); });
    if (document.hidden) continue;
    const now = await ask("version");
    const fresh = now && now !== version ? await ask("update") : "";
    if (fresh) {
      version = renew(fresh);
      light.title = `renewed at ${new Date().toLocaleTimeString()}`;
      announce("The page was renewed");
    }
    light.classList.toggle("lost", now === null); // then the page stays as it is
    $("#live-word").textContent = now === null ? "server stopped" : "live";
  }
}
