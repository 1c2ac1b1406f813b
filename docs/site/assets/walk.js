"use strict";
// One recorded iteration, a statement at a time. benchmarks/walks.py records it; a diff shows those of both files.
const bar = $("#walk"), NAMES = bar ? bar.dataset.of.split(" ") : [];
let walks = [], stops = [], names = [], here = 0, followed = null, playing = null; // followed: { walk, sample }

// Recordings: a step is [first line, last line, [[name, number of value, number of places], ...], function, whether a loop or branch goes in].
class Walk {
  constructor(name, side) {
    Object.assign(this, WALKS[name], { side, decoded: [] });
    const line = side ? this.linesOfDiff(side) : (n) => document.getElementById(`L${n}`);
    this.line = new Map(Object.keys(this.rows).map((n) => [Number(n), line(Number(n))]));
  }
  linesOfDiff(side) {
    const found = new Map($$(`.${side} pre, .fold pre`).filter((pre) => $("i", pre)).map((pre) => [Number($("i", pre).textContent), pre]));
    return (n) => { const pre = found.get(n); return pre && pre.textContent.includes(this.rows[n]) ? pre : null; };
  }
  // A value is [shape, numbers], or of an earlier one what has changed: [its number, [[place, number], ...]].
  value(number) {
    return (this.decoded[number] ||= (() => {
      const [first, rest] = this.values[number];
      if (Array.isArray(first)) return { shape: first, list: rest, changed: new Set() };
      const { shape, list } = this.value(first), now = [...list];
      rest.forEach(([place, x]) => { now[place] = x; });
      return { shape, list: now, changed: new Set(rest.map(([place]) => place)) };
    })());
  }
  lines(step) {
    const [first, last] = this.steps[step], found = [];
    for (let n = first; n <= last; n++) if (this.line.get(n)) found.push(this.line.get(n));
    return found;
  }
  text(step) { return this.rows[this.steps[step][0]]; }
  part(step) {
    const [line] = this.lines(step), section = line && line.closest("section"), head = section && $(".head code", section);
    return head ? head.textContent : this.steps[step][3];
  }
  // How many samples an answer or a pair has; a whole one is numbered as its first.
  get width() { return this.words ? this.words[0].length : this.size ? 1 : 2; }
  whole(ids) { return this.width > 1 && ids.every((id) => id % this.width === 0); }
  isFollowed(id, ids) {
    if (!followed || followed.walk !== this) return false;
    return id === followed.sample || (this.whole(ids) && Math.floor(followed.sample / this.width) * this.width === id);
  }
  // Samples from this one on have not been played yet at a step: what is there is the rollout's before.
  future(step, name) {
    if (!this.size || this.steps[step][3] !== "train") return Infinity;
    for (let before = step; before >= 0; before--) {
      const made = this.steps[before][3] === "train" && this.steps[before][2].find((entry) => entry[0] === "t");
      if (made) return (this.value(made[1]).list[0] + (name === "obs" ? 2 : 1)) * this.size[1];
    }
    return name === "obs" ? this.size[1] : 0;
  }
  nameOf(id) {
    if (id < 0) return "next";
    const [row, column] = [Math.floor(id / this.width), id % this.width];
    if (this.words) return `answer ${row + 1}, token ${column + 1} of ${this.words[row].length}, “${this.words[row][column]}”`;
    if (!this.size) return `pair ${row + 1}, the ${column ? "rejected" : "chosen"} one: “${this.texts[id]}”`;
    return `step ${Math.floor(id / this.size[1])}, env ${id % this.size[1]}`;
  }
}

// Steps of two walks side by side: the longest common sequence of their statements, and what only one of them has.
function sideBySide(a, b) {
  const rows = a.steps.length, columns = b.steps.length;
  const common = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      common[i][j] = a.text(i) === b.text(j) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < rows || j < columns) {
    if (i < rows && j < columns && a.text(i) === b.text(j)) found.push([i++, j++]);
    else if (j >= columns || (i < rows && common[i + 1][j] >= common[i][j + 1])) found.push([i++, null]);
    else found.push([null, j++]);
  }
  return found;
}

// Tables
const short = (x) => (typeof x === "string" ? x : String(Number(x.toPrecision(3))).replace("-", "−").replace(/^(−?)0\./, "$1."));
function cell(walk, { list, changed }, at, count, ids, most, future) {
  const numbers = list.slice(at * count, (at + 1) * count), box = document.createElement("td"), id = ids && ids[at];
  const first = Math.max(-1, Math.min(1, Number(numbers[0]) / most || 0));
  if (count === 1) box.style.setProperty("--heat", `${Math.round(Math.abs(first) * 55)}%`);
  box.className = first < 0 ? "low" : "high";
  box.classList.toggle("new", changed.size > 0 && numbers.some((_, k) => changed.has(at * count + k)));
  numbers.forEach((x) => box.append(Object.assign(document.createElement("span"), { textContent: short(x) })));
  if (id >= 0 && ids) {
    Object.assign(box.dataset, { sample: id });
    box.tabIndex = -1;
    box.title = walk.whole(ids) ? `${walk.words ? "answer" : "pair"} ${id / walk.width + 1}` : walk.nameOf(id);
    box.classList.toggle("followed", walk.isFollowed(id, ids));
    box.classList.toggle("old", id >= future);
  }
  return box;
}
function header(walk, id, ids) {
  const box = document.createElement("th");
  box.scope = "col";
  if (id < 0) box.textContent = "next";
  else if (walk.words) box.textContent = walk.whole(ids) ? id / walk.width + 1 : walk.words[Math.floor(id / walk.width)][id % walk.width];
  else if (walk.size) box.textContent = `s${Math.floor(id / walk.size[1])} e${id % walk.size[1]}`;
  else box.textContent = walk.whole(ids) ? `pair ${id / 2 + 1}` : `${Math.floor(id / 2) + 1} ${id % 2 ? "rejected" : "chosen"}`;
  return box;
}
const named = (text) => Object.assign(document.createElement("th"), { textContent: text });
// Samples lie as one reads: an env or an answer is a row, and time goes to the right.
function grid(walk, value, ids, future) {
  const { shape, list } = value, two = shape.length > 1 && ids && ids.length === shape[0] * shape[1];
  const cells = two ? shape[0] * shape[1] : shape[0], count = list.length / cells || 1;
  const flip = two && (walk.size ? shape[1] === walk.size[1] || shape[1] < shape[0] : shape[0] === walk.width && shape[1] !== walk.width);
  let [height, width] = two ? (flip ? [shape[1], shape[0]] : [shape[0], shape[1]]) : [1, cells];
  if (!ids && shape.length > 1) [height, width] = [cells, 1];
  const most = Math.max(...list.map((x) => Math.abs(Number(x)) || 0)), table = document.createElement("table");
  if (ids && !two) table.append(Object.assign(document.createElement("tr"), { className: "ids" }));
  if (ids && !two) $("tr", table).append(...ids.map((id) => header(walk, id, ids)));
  const steps = two && walk.size && width > 1;
  if (steps) {
    table.append(document.createElement("tr"));
    $("tr", table).append(named("step"), ...Array.from({ length: width }, (_, t) => named(t === walk.size[0] ? "next" : t)));
  }
  const pairs = two && !walk.size && !walk.words;
  if (pairs) {
    table.append(document.createElement("tr"));
    $("tr", table).append(named(""), named("chosen"), named("rejected"));
  }
  for (let row = 0; row < height; row++) {
    const line = document.createElement("tr"), places = Array.from({ length: width }, (_, column) => (flip ? column * height + row : row * width + column));
    if (two && walk.words) {
      const words = document.createElement("tr");
      words.className = "ids";
      words.append(...places.map((at) => header(walk, ids[at], ids)));
      if (walk.prompts?.length) {
        const prompt = named(walk.prompts[Math.floor(ids[places[0]] / walk.width)]);
        prompt.rowSpan = 2;
        words.prepend(prompt);
      }
      table.append(words);
    }
    if (pairs) line.append(named(`pair ${Math.floor(ids[places[0]] / 2) + 1}`));
    if (steps) line.append(named(`env ${ids[places[0]] % walk.size[1]}`));
    line.append(...places.map((at) => cell(walk, value, at, count, ids, most, future)));
    table.append(line);
  }
  return table;
}
function figure(walk, step, [name, number, places]) {
  const value = walk.value(number), box = document.createElement("figure"), title = document.createElement("figcaption");
  const ids = places >= 0 ? walk.places[places] : null, large = value.list.length < value.shape.reduce((a, b) => a * b, 1);
  title.innerHTML = `<code></code> <small></small>`;
  $("code", title).textContent = name;
  $("small", title).textContent = value.shape.length ? value.shape.join(" × ") : "";
  box.append(title);
  if (large) {
    const [low, mean, high] = value.list.map(short);
    box.append(Object.assign(document.createElement("p"), { textContent: `from ${low} to ${high}, mean ${mean}` }));
  } else if (!value.shape.length) {
    box.append(Object.assign(document.createElement("p"), { className: "scalar", textContent: short(value.list[0]) }));
  } else if (value.list.length) {
    box.append(grid(walk, value, ids, value.shape.length > 1 ? walk.future(step, name) : Infinity));
  }
  return box;
}

// What a statement has read: the variables that it names, as its function has them. What it made is not among them.
function inputs(walk, step) {
  const [first, last, made, name] = walk.steps[step], found = new Map();
  if (/^(def|for|with|return) ?/.test(walk.rows[first])) return [];
  const code = statement(walk, step).split("\n").map((row) => row.replace(/#.*/, "")).join(" "), known = made.map((entry) => entry[0]);
  const adds = /[-+*/|&]= /.test(code); // then what was there before is read, too
  const words = new Set(code.match(/[a-z_]\w*(\.\w+)?/gi) || []);
  for (let before = step - 1; before >= 0; before--) {
    if (walk.steps[before][3] !== name) continue;
    for (const entry of walk.steps[before][2]) {
      if (words.has(entry[0]) && (adds || !known.includes(entry[0])) && !found.has(entry[0])) found.set(entry[0], entry);
    }
    if (walk.rows[walk.steps[before][0]].startsWith(`def ${name}`)) break;
  }
  return [...words].filter((word) => found.has(word)).map((word) => found.get(word));
}

// What a followed sample has been so far: the values under each name, one after another.
function story(walk, upTo) {
  const found = new Map();
  for (let step = 0; step <= upTo; step++) {
    for (const [name, number, places] of walk.steps[step][2]) {
      if (places < 0) continue;
      const ids = walk.places[places], at = ids.findIndex((id) => walk.isFollowed(id, ids));
      const { list, changed } = walk.value(number), count = list.length / ids.length;
      const touched = !changed.size || changed.has(at * count); // else it is what it was before
      if (at >= 0 && count <= 4 && touched && ids[at] < walk.future(step, name)) {
        const key = name.replace(/^(rollout|minibatch|piece)\./, "batch.");
        const numbers = list.slice(at * count, (at + 1) * count), text = numbers.map(short).join(", ");
        const earlier = found.get(key)?.texts || [];
        if (["idx", "returned"].includes(key)) continue;
        found.delete(key);
        found.set(key, { numbers, step, among: ids.length, texts: earlier.at(-1) === text ? earlier : [...earlier, text].slice(-4) });
      }
    }
  }
  return found;
}
function tell(walk, upTo) {
  const found = story(walk, upTo), text = document.createElement("p"), list = document.createElement("dl");
  text.innerHTML = "<b></b> <button>Follow no more</button>";
  $("b", text).textContent = `${walks.length > 1 ? `${walk.script}.py: ` : ""}${walk.nameOf(followed.sample)}`;
  for (const [name, { texts, step }] of found) {
    if (found.get(name.replace("batch.", "")) !== found.get(name) && found.get(name.replace("batch.", ""))?.texts.at(-1) === texts.at(-1)) continue;
    const pair = document.createElement("div");
    pair.className = step === upTo ? "new" : "";
    pair.append(Object.assign(document.createElement("dt"), { textContent: name }));
    pair.append(Object.assign(document.createElement("dd"), { textContent: texts.join(" → ") }));
    list.append(pair);
  }
  const last = (name) => found.get(name) && found.get(name).numbers[0], gain = found.get("gain"), ratio = last("ratio");
  const said = document.createElement("p");
  if (gain && gain.step >= found.get("ratio").step) {
    const advantage = last("advantages") ?? last("batch.advantages"), product = ratio * advantage;
    const idle = ratio !== last("clipped_ratio") && Math.abs(gain.numbers[0] - product) > 2e-3 * Math.abs(gain.numbers[0]);
    const which = idle ? "The clipped product is the smaller one" : "The product with the ratio itself counts";
    const drawn = walk.steps.slice(0, upTo + 1).findLastIndex(([, , made]) => made.some(([name]) => name === "idx"));
    said.textContent = drawn > gain.step ? "When it was drawn last: " : "";
    said.textContent += advantage === 0 ? "Its advantage is 0, so policy_loss has no gradient from it."
      : `${which}, so policy_loss has ${idle ? "no" : "a"} gradient from it.`;
    if (Object.values(walk.rows).includes("policy_loss = -gain.mean()")) {
      said.textContent += ` It adds ${short(-gain.numbers[0] / gain.among)} to policy_loss, which is minus the mean gain of ${gain.among}.`;
    }
  }
  return [text, said, list];
}

// The page
function light() {
  $$(".lit").forEach((line) => line.classList.remove("lit"));
  const stop = stops[here], lines = walks.flatMap((walk, k) => (stop[k] === null ? [] : walk.lines(stop[k])));
  lines.forEach((line) => {
    line.classList.add("lit");
    const fold = line.closest("details");
    if (fold) fold.open = true;
    if (line.checkVisibility && !line.checkVisibility()) algorithm(false);
  });
  lines.slice(0, 1).forEach((line) => line.scrollIntoView({ block: "nearest" }));
  return lines.length > 0;
}
function values(seen) {
  const columns = walks.map((walk, k) => {
    const step = stops[here][k], column = document.createElement("div");
    if (walks.length > 1) column.append(Object.assign(document.createElement("h3"), { textContent: `${walk.script}.py` }));
    if (step === null) column.append(Object.assign(document.createElement("p"), { className: "none", textContent: "has no such step" }));
    else {
      column.append(Object.assign(document.createElement("pre"), { textContent: statement(walk, step), tabIndex: 0 }));
      const groups = { made: walk.steps[step][2], read: inputs(walk, step) };
      for (const [className, entries] of Object.entries(groups)) {
        const group = Object.assign(document.createElement("div"), { className });
        group.append(...entries.map((entry) => figure(walk, step, entry)));
        if (entries.length) column.append(group);
      }
      const outcome = { true: "goes in", false: /^(for|while) /.test(walk.text(step)) ? "the loop is over" : "is not so, and is left out" }[walk.steps[step][4]];
      const none = walk.steps[step][2].length ? null : "changes no variable that is shown";
      const said = [outcome, !seen && "these lines are alike in both files, and not on this page", !outcome && none].filter(Boolean);
      if (said.length) column.append(Object.assign(document.createElement("p"), { className: "none", textContent: said.join("; ") }));
    }
    return column;
  });
  $("#walk-values").replaceChildren(...columns);
}
function statement(walk, step) {
  const [first, last] = walk.steps[step], rows = [];
  for (let n = first; n <= last; n++) rows.push(walk.rows[n]);
  return rows.join("\n");
}
function where() {
  const walk = walks.at(-1), steps = last(walks.length - 1);
  let epoch = 0, minibatch = 0;
  for (let step = 0; step <= steps; step++) {
    if (!walk.steps[step][4]) continue;
    if (/^for _ in range\(args\.\w*epochs\)/.test(walk.text(step))) [epoch, minibatch] = [epoch + 1, 0];
    if (walk.text(step).startsWith("for idx in")) minibatch += 1;
  }
  const when = [names[here], epoch && `epoch ${epoch}`, minibatch && `minibatch ${minibatch}`].filter(Boolean).join(", ");
  $("#walk-where").textContent = `${here + 1} of ${stops.length}: ${when}`;
  $("#walk-at").value = here;
  const options = [...$("#walk-part").options], at = options.findLastIndex((option) => Number(option.value) <= here);
  $("#walk-part").selectedIndex = Math.max(0, at);
  $("#walk-followed").replaceChildren(...(followed ? tell(followed.walk, last(walks.indexOf(followed.walk))) : []));
}
// The last step of a walk up to here
const last = (k) => Math.max(0, ...stops.slice(0, here + 1).map((stop) => stop[k] ?? 0));
const part = (stop) => names[stop];
function goTo(stop) {
  here = Math.max(0, Math.min(stops.length - 1, stop));
  values(light());
  where();
}
function parts() {
  const found = [];
  names = [];
  stops.forEach((steps, stop) => {
    const k = steps.findLastIndex((step) => step !== null), [own, shown] = [walks[k].steps[steps[k]][3], walks[k].part(steps[k])];
    names.push(own !== "train" ? own : shown && shown !== "train" ? shown : names.at(-1) || "train");
    if (!found.length || found.at(-1)[1] !== names[stop]) found.push([stop, names[stop]]);
  });
  $("#walk-part").replaceChildren(...found.map(([stop, name]) => new Option(`${stop + 1} ${name}`, stop)));
}
function play(yes) {
  clearInterval(playing);
  playing = yes ? setInterval(() => (here < stops.length - 1 ? goTo(here + 1) : play(false)), 700) : null;
  press($("#walk-play"), Boolean(yes));
  $("#walk-play").textContent = yes ? "Pause" : "Play";
}
function openWalk() {
  walks = NAMES.map((name, k) => new Walk(name, NAMES.length > 1 ? ["old", "new"][k] : null));
  stops = walks.length > 1 ? sideBySide(...walks) : walks[0].steps.map((_, step) => [step]);
  bar.hidden = false;
  document.body.classList.add("walking");
  walks.forEach((walk) => walk.line.forEach((line) => line && line.classList.add("walked")));
  $("#walk-at").max = stops.length - 1;
  $(".hint code", bar).textContent = walks.map(({ flags }, k) => `python ${bar.dataset.paths.split(" ")[k]} ${flags}`).join("; ");
  parts();
  goTo(here);
}
function closeWalk() {
  play(false);
  bar.hidden = true;
  document.body.classList.remove("walking");
  $$(".lit").forEach((line) => line.classList.remove("lit"));
  $("#walk-open").focus();
}
on($("#walk-open"), "click", async () => {
  await Promise.all(NAMES.map((name) => new Promise((done) => {
    if (globalThis.WALKS && WALKS[name]) { done(); return; }
    document.head.append(Object.assign(document.createElement("script"), { src: `${base}docs/site/assets/walks/${name}.js`, onload: done }));
  })));
  openWalk();
});
if (bar) {
  on($("#walk-back"), "click", () => { play(false); goTo(here - 1); });
  on($("#walk-on"), "click", () => { play(false); goTo(here + 1); });
  on($("#walk-play"), "click", () => play(playing === null));
  on($("#walk-at"), "input", ({ target }) => { play(false); goTo(Number(target.value)); });
  on($("#walk-part"), "input", ({ target }) => { play(false); goTo(Number(target.value)); });
  on($("#walk-close"), "click", closeWalk);
  on($("#walk-values"), "click", ({ target }) => {
    const box = target.closest("td[data-sample]");
    if (!box) return;
    followed = { walk: walks[[...$("#walk-values").children].indexOf(box.closest("#walk-values > div"))], sample: Number(box.dataset.sample) };
    goTo(here);
  });
  on($("#walk-followed"), "click", ({ target }) => { if (target.matches("button")) { followed = null; goTo(here); } });
  on(document, "keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || bar.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    play(false);
    goTo(here + step);
  });
  on($(".code"), "click", ({ target }) => {
    const line = target.closest(".walked");
    if (bar.hidden || !line || target.closest("a, summary, button") || String(getSelection())) return;
    const runs = (stop) => walks.some((walk, k) => stops[stop][k] !== null && walk.lines(stops[stop][k]).includes(line));
    const order = [...stops.keys()], next = [...order.slice(here + 1), ...order.slice(0, here + 1)].find(runs);
    if (next !== undefined) goTo(next);
  });
}
