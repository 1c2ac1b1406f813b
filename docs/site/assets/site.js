"use strict";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const base = document.body.dataset.base;
const on = (element, event, act) => element && element.addEventListener(event, act);

// Search: the index is loaded when the field is first used, as a script, since file:// cannot fetch.
const field = $("#site-search"), results = $("#site-results");
const SAME = new Map(Object.entries({ environment: "env", custom: "own", multi: "several", hyperparameter: "flag", gpu: "cuda",
  gae: "general", truncation: "limit", huggingface: "hug" }));
const SMALL = new Set("a an and are do for from how i in is it my of on or the to what with".split(" "));
function stem(word) {
  const short = word.replace(/(i[sz](ations?|e[sdr]?|ing)|ings?|ed|e?s)$/, (end) => (word.length - end.length > 2 ? "" : end));
  const single = short.replace(/([b-df-hj-np-tv-z])\1$/, "$1"); // clipped is clip
  return SAME.get(single) || single;
}
const stems = (text) => (text.toLowerCase().match(/[a-z0-9]+/g) || []).map(stem);
let entries = null;
function read() {
  entries ||= INDEX.map(([page, title, text, weight]) => {
    return { page, title, text, weight, head: new Set(stems(title)), body: new Set(stems(text)) };
  });
  return entries;
}
// How well a word fits an entry: as a word of its title or text, or as the beginning of one.
function fit(word, { head, body }) {
  if (head.has(word)) return 10;
  if (body.has(word)) return 4;
  const begins = (other) => word.length > 2 && other.startsWith(word);
  if ([...head].some(begins)) return 4;
  return [...body].some(begins) ? 1 : 0;
}
function search(query) {
  const all = [...new Set(stems(query))], large = all.filter((word) => !SMALL.has(word));
  const words = large.length ? large : all;
  const fits = words.map((word) => read().map((entry) => fit(word, entry)));
  const rare = fits.map((points) => Math.log(1 + read().length / (1 + points.filter(Boolean).length)));
  const names = query.toLowerCase().split(/\s+/).filter((name) => name.includes("_"));
  const score = (entry, number) => {
    const found = fits.filter((points) => points[number]).length;
    const named = names.includes(entry.title.split(" - ")[0].toLowerCase()) ? 20 : 1; // a function, by its name
    const sum = fits.reduce((total, points, word) => total + points[number] * rare[word], 0);
    return sum * entry.weight * named * (found / words.length) ** 3 / Math.sqrt(10 + entry.head.size);
  };
  const found = read().map((entry, number) => ({ ...entry, points: score(entry, number) })).filter((entry) => entry.points);
  return together(found.sort((a, b) => b.points - a.points));
}
// What several scripts have, a flag say, is one entry.
function together(found) {
  const first = new Map();
  for (const entry of found) {
    const key = `${entry.title.split(" - ")[0]} ${entry.text}`;
    if (first.has(key)) first.get(key).others += 1;
    else first.set(key, { ...entry, others: 0 });
  }
  return [...first.values()];
}
function find() {
  results.hidden = !field.value.trim();
  if (results.hidden || typeof INDEX === "undefined") return;
  const found = search(field.value);
  $("p", results).textContent = `${found.length || "nothing"} found`;
  $("ol", results).replaceChildren(...found.slice(0, 30).map(({ page, title, text, others }) => {
    const item = document.createElement("li"), link = document.createElement("a"), part = document.createElement("span");
    link.href = base + page;
    link.textContent = others ? `${title}, and in ${others} more` : title;
    const at = Math.max(0, text.toLowerCase().indexOf(field.value.toLowerCase().split(/\s/)[0]) - 60);
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
const narrow = matchMedia(`(max-width: ${document.body.matches(".noted") ? 1519 : 900}px)`).matches; // the outline is above
const press = (button, pressed) => button && button.setAttribute("aria-pressed", pressed);
if (narrow) $$(".outline details").forEach((x) => { x.open = false; });
on($("#notes"), "click", ({ target }) => press(target, !document.body.classList.toggle("bare")));
// A tag opens and closes its note; nothing moves, for both are on the screen.
$$('.l a[href^="#note-"]').forEach((link) => on(link, "click", (event) => {
  const note = document.getElementById(link.hash.slice(1));
  event.preventDefault();
  document.body.classList.remove("bare");
  press($("#notes"), true);
  note.open = !note.open;
}));
on(document, "keydown", ({ key }) => { if (key === "Escape") $$(".row .note").forEach((note) => { note.open = false; }); });
const algorithm = (only) => { document.body.classList.toggle("algorithm", only); press($("#algorithm"), only); };
on($("#algorithm"), "click", ({ target }) => { algorithm(target.getAttribute("aria-pressed") !== "true"); current = -1; });
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.matches(".note")) { document.body.classList.remove("bare"); press($("#notes"), true); }
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
const all = $$(".change"), algorithmFirst = all.length && all.some((x) => !x.matches(".elsewhere"));
let changes = all, current = -1;
function go(step) {
  changes = all.filter((x) => x.checkVisibility());
  if (!changes.length) return;
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
  if (step && all.length && !event.ctrlKey && !event.metaKey && !event.target.closest("input, select")) go(step);
});
const unified = (yes) => { document.body.classList.toggle("unified", yes); press($("#unified"), yes); };
on($("#unified"), "click", ({ target }) => {
  unified(target.getAttribute("aria-pressed") !== "true");
  try { localStorage.unified = document.body.classList.contains("unified") || ""; } catch { /* no storage here */ }
});
if (algorithmFirst) algorithm(true); // what most come for; the button shows the rest
try { if (changes.length) unified(Boolean(localStorage.unified)); } catch { /* no storage here */ }
on($("#compare"), "click", () => {
  if ($("#other")) { location.href = $("#other").value; return; }
  const order = [...$(".pick").options].map((x) => x.value);
  const [a, b] = $$(".pick").map((x) => x.value).sort((x, y) => order.indexOf(x) - order.indexOf(y));
  if (a !== b) location.href = `${base}diffs/${a}--${b}.html`;
});
