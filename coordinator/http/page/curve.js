// The last hour of a number, as a small curve in a row, or a large one with its axes.

import { el, redraw, svg } from "./dom.js";
import { clockTime, count } from "./words.js";

const MINUTES = 60;
const WIDTH = 120;
const HEIGHT = 22;
const EDGE = 2; // So that a line at the top or the bottom is as thick as any other.

// The runs of known samples, as the `d` of a path; a single one becomes a short stroke.
function pathOf(points) {
  let path = "";
  let isDrawing = false;
  points.forEach(([x, y], at) => {
    if (y === null) {
      isDrawing = false;
      return;
    }
    const isAlone = !isDrawing && (at + 1 >= points.length || points[at + 1][1] === null);
    path += `${isDrawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${isAlone ? "h1" : ""}`;
    isDrawing = true;
  });
  return path;
}

function pointsOf(samples, most, width, height) {
  const first = MINUTES - samples.length;
  const step = (width - 2 * EDGE) / (MINUTES - 1);
  return samples.map((value, at) => [
    EDGE + (first + at) * step,
    value === null ? null : height - EDGE - (value / (most || 1)) * (height - 2 * EDGE),
  ]);
}

const known = (samples) => samples.filter((value) => value !== null);

function describe(samples) {
  const seen = known(samples);
  if (seen.length === 0) return "not known yet";
  const [first, last] = [seen[0], seen[seen.length - 1]];
  const most = Math.max(...seen);
  return `from ${count(first)} to ${count(last)}, at most ${count(most)}`;
}

// Draw `samples`, the newest last, into `cell`.
export function drawSmall(cell, samples) {
  redraw(cell, samples.join(), () => [small(samples)]);
}

function small(samples) {
  const seen = known(samples);
  if (seen.length === 0) return null;
  const points = pointsOf(samples, Math.max(...seen), WIDTH, HEIGHT);
  const last = points[points.length - 1];
  return svg(
    "svg",
    {
      class: "small-curve",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": describe(samples),
    },
    svg("path", { d: pathOf(points) }),
    last[1] === null ? null : svg("circle", { cx: last[0].toFixed(1), cy: last[1].toFixed(1), r: 1.75 }),
  );
}

// The hour up to `nowMs`, with `marks` ({at, tone}) on the same axis under it.
export function large({ samples, nowMs, marks, label }) {
  const [width, height] = [600, 72];
  const seen = known(samples);
  const most = Math.max(0, ...seen);
  const points = pointsOf(samples, most, width, height);
  const path = pathOf(points);
  const at = (ms) => EDGE + (1 - (nowMs - ms) / (MINUTES * 60_000)) * (width - 2 * EDGE);
  const inSight = marks.filter((mark) => mark.at > nowMs - MINUTES * 60_000);
  return el(
    "figure",
    { class: "large-curve" },
    el(
      "figcaption",
      {},
      el("span", { text: label }),
      el("span", { class: "number", text: seen.length === 0 ? "" : `at most ${count(most)}` }),
    ),
    svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${label}: ${describe(samples)}`,
      },
      svg("path", { class: "base", d: `M0 ${height - 0.5}H${width}` }),
      svg("path", { class: "line", d: path }),
    ),
    svg(
      "svg",
      {
        class: "marks",
        viewBox: `0 0 ${width} 10`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${inSight.length} rebalances in this hour`,
      },
      ...inSight.map((mark) =>
        svg("path", { class: mark.tone, d: `M${at(mark.at).toFixed(1)} 0V10` }),
      ),
    ),
    el(
      "div",
      { class: "axis number", "aria-hidden": "true" },
      el("span", { text: clockTime(nowMs - 3_600_000).slice(0, 5) }),
      el("span", { text: clockTime(nowMs - 1_800_000).slice(0, 5) }),
      el("span", { text: "now" }),
    ),
  );
}
