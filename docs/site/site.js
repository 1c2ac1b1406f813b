"use strict";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const base = document.body.dataset.base;
const on = (element, event, act) => element && element.addEventListener(event, act);

// Search: the index is loaded when the field is first used, as a script, since file:// cannot fetch.
const field = $("#search"), results = $("#results");
function find() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.hidden = !words.length;
  if (results.hidden || typeof INDEX === "undefined") return;
  const score = ([, title, text]) => {
    const [head, body] = [title.toLowerCase(), text.toLowerCase()];
    if (!words.every((word) => head.includes(word) || body.includes(word))) return 0;
    return words.reduce((sum, word) => sum + 20 * head.startsWith(word) + 10 * head.includes(word) + 1, 0);
  };
  const found = INDEX.map((entry) => [score(entry), entry]).filter(([points]) => points);
  found.sort((a, b) => b[0] - a[0]);
  $("p", results).textContent = `${found.length || "nothing"} found`;
  $("ol", results).replaceChildren(...found.slice(0, 30).map(([, [page, title, text]]) => {
    const item = document.createElement("li"), link = document.createElement("a"), part = document.createElement("span");
    link.href = base + page;
    link.textContent = title;
    const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
    part.textContent = (at ? "… " : "") + text.slice(at, at + 170);
    link.append(part);
    item.append(link);
    return item;
  }));
}
on(field, "focus", () => {
  if ($("#index")) return;
  const script = document.createElement("script");
  Object.assign(script, { id: "index", src: `${base}assets/search-index.js`, onload: find });
  document.head.append(script);
});
on(field, "input", find);
on($("search"), "keydown", (event) => {
  const links = [field, ...$$("a", results)], at = links.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && links[at + step]) { event.preventDefault(); links[at + step].focus(); }
  if (event.key === "Enter" && at === 0 && links[1]) links[1].click();
  if (event.key === "Escape") { results.hidden = true; field.focus(); }
});
on(document, "click", (event) => { if (!event.target.closest("search") || event.target.closest("#results a")) results.hidden = true; });
on(document, "keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select, textarea")) { event.preventDefault(); field.focus(); }
});

// Scripts
const narrow = matchMedia("(max-width: 1179px)").matches;
const press = (button, pressed) => button && button.setAttribute("aria-pressed", pressed);
const notes = $$(".note"), openNotes = (open) => notes.forEach((note) => { note.open = open; });
if (narrow) { openNotes(false); press($("#notes"), false); $$(".outline details").forEach((x) => { x.open = false; }); }
on($("#notes"), "click", ({ target }) => {
  const open = target.getAttribute("aria-pressed") !== "true";
  press(target, open);
  openNotes(open);
});
const algorithm = (only) => { document.body.classList.toggle("algorithm", only); press($("#algorithm"), only); };
on($("#algorithm"), "click", ({ target }) => algorithm(target.getAttribute("aria-pressed") !== "true"));
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.checkVisibility && !target.checkVisibility()) algorithm(false);
  for (let x = target; x; x = x.parentElement) if (x.tagName === "DETAILS") x.open = true;
  target.scrollIntoView();
}
on(window, "hashchange", reveal);
reveal();
$$(".copy").forEach((button) => on(button, "click", async () => {
  const parts = [button.closest(button.dataset.of)];
  for (let next = parts[0]; (next = next.nextElementSibling) && $("h3", next);) parts.push(next); // train's
  const text = parts.flatMap((part) => $$(".l code", part)).map((line) => line.textContent).join("");
  await navigator.clipboard.writeText(text);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1200);
}));
