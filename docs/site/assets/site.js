"use strict";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const base = document.body.dataset.base;
const on = (element, event, act) => element && element.addEventListener(event, act);

// Search: the index is loaded when the field is first used, as a script, since file:// cannot fetch.
const field = $("#site-search"), results = $("#site-results");
function find() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.hidden = !words.length;
  if (results.hidden || typeof INDEX === "undefined") return;
  const score = ([page, title, text]) => {
    const [head, body] = [title.toLowerCase(), text.toLowerCase()];
    if (!words.every((word) => head.includes(word) || body.includes(word))) return 0;
    const weight = page.startsWith("docs/details.html#") ? 20 : page.startsWith("tests/") ? 1 : 9;
    return words.reduce((sum, word) => sum + 20 * head.startsWith(word) + 10 * head.includes(word), weight);
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
  Object.assign(script, { id: "index", src: `${base}docs/site/assets/index.js`, onload: find });
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
on(document, "click", (event) => { if (!event.target.closest("search") || event.target.closest("#site-results a")) results.hidden = true; });
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

// Diffs
const changes = $$(".change");
let current = -1;
function go(step) {
  const seen = current < 0 && step > 0 ? changes.findIndex((x) => x.getBoundingClientRect().top > 60) : current + step;
  current = Math.min(Math.max(seen, 0), changes.length - 1);
  changes[current].focus({ preventScroll: true });
  changes[current].scrollIntoView();
  $("#at").textContent = `change ${current + 1} of ${changes.length}`;
}
on($("#next"), "click", () => go(1));
on($("#previous"), "click", () => go(-1));
on(document, "keydown", (event) => {
  const step = { n: 1, p: -1 }[event.key];
  if (step && changes.length && !event.ctrlKey && !event.metaKey && !event.target.closest("input, select")) go(step);
});
const unified = (yes) => { document.body.classList.toggle("unified", yes); press($("#unified"), yes); };
on($("#unified"), "click", ({ target }) => {
  unified(target.getAttribute("aria-pressed") !== "true");
  try { localStorage.unified = document.body.classList.contains("unified") || ""; } catch { /* no storage here */ }
});
try { if (changes.length) unified(Boolean(localStorage.unified)); } catch { /* no storage here */ }
on($("#compare"), "click", () => {
  if ($("#other")) { location.href = $("#other").value; return; }
  const order = [...$(".pick").options].map((x) => x.value);
  const [a, b] = $$(".pick").map((x) => x.value).sort((x, y) => order.indexOf(x) - order.indexOf(y));
  if (a !== b) location.href = `${base}diffs/${a}--${b}.html`;
});
