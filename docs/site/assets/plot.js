"use strict";
// What the pages with pictures share.
const show = (x, digits = 3) => x.toFixed(digits).replace("-", "−");
const label = (id, text) => { $(`output[for=${id}]`).textContent = text; };

// A plot: lines are {points: [[x, y], ...], kind}, bars and marks likewise; x and y are the ranges of the axes.
function plot(svg, { x, y, xticks, yticks, lines = [], bars = [], marks = [], name }) {
  const [left, right, top, bottom] = [44, 548, 10, 222];
  const px = (v) => (left + ((v - x[0]) / (x[1] - x[0])) * (right - left)).toFixed(1);
  const py = (v) => (bottom - ((v - y[0]) / (y[1] - y[0])) * (bottom - top)).toFixed(1);
  const line = ({ points, kind }) => `<polyline class="${kind}" points="${points.map(([a, b]) => `${px(a)},${py(b)}`).join(" ")}"/>`;
  svg.innerHTML = [
    ...yticks.map((v) => `<path class="grid" d="M${left} ${py(v)}H${right}"/><text x="${left - 6}" y="${+py(v) + 4}" text-anchor="end">${show(v, Number.isInteger(v) ? 0 : 1)}</text>`),
    ...xticks.map((v) => `<text x="${px(v)}" y="${bottom + 17}" text-anchor="middle">${v}</text>`),
    `<text x="${(left + right) / 2}" y="${bottom + 34}" text-anchor="middle">${name}</text>`,
    ...bars.map(([a, b, v, kind]) => `<rect class="${kind}" x="${px(a)}" y="${py(v)}" width="${Math.max(px(b) - px(a) - 1, 0.5)}" height="${bottom - py(v)}"/>`),
    ...lines.map(line),
    ...marks.map(([a, b]) => `<circle class="mark" cx="${px(a)}" cy="${py(b)}" r="6"/>`),
  ].join("");
}
