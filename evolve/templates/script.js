document.documentElement.classList.add("js");
const reveal = () => {
  const place = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (!place) return;
  for (let at = place; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  place.hidden = false;
  place.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
const bar = document.getElementById("filter");
if (bar) {
  const all = [...document.querySelectorAll("details.episode")];
  const count = document.getElementById("count");
  const filter = () => {
    const words = bar.elements.words.value.toLowerCase();
    let shown = 0;
    for (const one of all) {
      const fits = ["phase", "arm", "result"].every((name) => {
        const wanted = bar.elements[name].value;
        return !wanted || one.dataset[name] === wanted;
      });
      one.hidden = !(fits && (!words || one.textContent.toLowerCase().includes(words)));
      shown += !one.hidden;
    }
    count.textContent = `${shown} of ${all.length} shown`;
  };
  bar.addEventListener("input", filter);
  bar.addEventListener("submit", (event) => event.preventDefault());
  filter();
}
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a.item");
  const entry = link && document.getElementById(link.hash.slice(1));
  if (!entry) return;
  event.preventDefault();
  const box = link.closest(".recalled");
  const old = box.querySelector(`[data-of="${link.hash.slice(1)}"]`);
  if (old) { old.remove(); link.setAttribute("aria-expanded", "false"); return; }
  const copy = document.createElement("div");
  copy.className = "item-copy";
  copy.dataset.of = link.hash.slice(1);
  for (const node of entry.querySelector(".item-body").childNodes) copy.append(node.cloneNode(true));
  box.append(copy);
  link.setAttribute("aria-expanded", "true");
});
