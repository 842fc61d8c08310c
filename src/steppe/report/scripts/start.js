startTheme();
starts.forEach((start) => start());
showTheme();
window.addEventListener("hashchange", openTarget);
openTarget(); // a link to a run opens it
const served = $("meta[name=steppe-version]")?.content;
if (served) watch(served);
