// Copying, and links that open the run they lead to.
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

starts.push(() => $$(".copy").forEach((button) => button.addEventListener("click", () => copy(button))));
