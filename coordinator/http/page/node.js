// The node: is it well, and what does it do?

import { dot, el, redraw, setText } from "./dom.js";
import { ask } from "./live.js";
import { drawSmall } from "./curve.js";
import { Table } from "./table.js";
import { STATES, UNKNOWN, bytes, capital, count, milliseconds, nameOf, percent, rate, span, spanOfMs, timeOf, visible, wrongOf } from "./words.js";

const WELL = {
  loading: "the log is loaded",
  disk: "the disk takes what is written",
  zookeeper: "ZooKeeper takes what is written",
  storage: "new offsets are taken",
  compaction: "compaction works",
  stopping: "it goes on running",
};

export class Node {
  constructor(page) {
    this.page = page;
    this.samples = [];
    this.about = el("p", { class: "soft about" });
    this.checks = el("ul", { class: "checks" });
    this.parts = el("div", { class: "parts" });
    this.noRequests = el("p", { class: "empty", text: "Nobody has asked for anything in the last minute." });
    this.requests = new Table({
      caption: "Requests in the last minute",
      className: "requests",
      key: (one) => one.api,
      columns: [
        { id: "api", label: "Request", fill: (cell, one) => setText(cell, one.api) },
        { id: "rate", label: "Per s", isNumber: true, fill: (cell, one) => setText(cell, rate(one.per_second)) },
        { id: "half", label: "Median", isNumber: true, fill: (cell, one) => setText(cell, milliseconds(one.p50_ms)) },
        { id: "most", label: "p99", isNumber: true, fill: (cell, one) => setText(cell, milliseconds(one.p99_ms)) },
        { id: "errors", label: "Errors per s", isNumber: true, fill: (cell, one) => setText(cell, rate(one.errors_per_second)) },
      ],
    });
    this.content = el(
      "div",
      { hidden: true },
      this.about,
      part("Is it well?", this.checks),
      this.parts,
      part("Requests in the last minute", this.requests.node, this.noRequests),
    );
    this.wait = el("p", { class: "empty slow", text: "Asking the coordinator…" });
    this.node = el(
      "article",
      { "aria-labelledby": "title" },
      el("h1", { id: "title", tabindex: -1, text: "Node" }),
      this.wait,
      this.content,
    );
  }

  get title() {
    return "Node";
  }

  open() {
    this.load();
  }

  close() {}

  async load() {
    try {
      this.#take(await ask("api/v1/node"));
      this.page.answered();
    } catch (problem) {
      this.page.failed(problem);
    }
  }

  onEvent(name, data) {
    if (name === "hello" || name === "minute") this.load();
    else if (name === "node") this.#take(data);
  }

  #take(node) {
    this.wait.hidden = true;
    this.content.hidden = false;
    // As an event it comes without them.
    if (node.flushes.samples?.length > 0) this.samples = node.flushes.samples;
    const since = span((this.page.now() - timeOf(node.started_at)) / 1000);
    redraw(this.about, JSON.stringify([node.node_id, node.cluster_id, node.version, since, node.leader_epoch]), () => [
      `Version ${visible(node.version)}, up for ${since}, node ${node.node_id} of cluster `,
      nameOf(node.cluster_id),
      `, leader epoch ${count(node.leader_epoch)}.`,
    ]);
    redraw(this.checks, JSON.stringify(node.checks), () => node.checks.map(checkLine));
    this.#showParts(node);
    this.requests.take(node.requests);
    this.requests.node.hidden = node.requests.length === 0;
    this.noRequests.hidden = node.requests.length > 0;
  }

  #showParts(node) {
    const { log, flushes, compaction, load, disk } = node;
    const slow = this.samples.map((sample) => sample.p99_ms);
    const groups = Object.entries(node.groups).sort(([a], [b]) => (a < b ? -1 : 1));
    const all = [
      ["Log", [
        ["On disk", bytes(log.bytes)],
        ["Still in use", bytes(log.live_bytes)],
        ["Dirty share", percent(log.dirty_ratio)],
        ["Segments", count(log.segments)],
        ["Not yet on disk", bytes(log.unflushed_bytes)],
      ]],
      ["Flushes", [
        ["Per second", rate(flushes.per_second)],
        ["Median", milliseconds(flushes.p50_ms)],
        ["p99", milliseconds(flushes.p99_ms)],
        ["p99 of fsync", milliseconds(flushes.fsync_p99_ms)],
        ["p99, last hour", curve(slow)],
      ]],
      ["Compaction", [
        ["Now", compaction.running ? "running" : "idle"],
        ["Done", count(compaction.done)],
        ["Failed", count(compaction.failed)],
        ["The last took", spanOfMs(compaction.last_ms)],
        ["Removed", bytes(compaction.removed_bytes)],
      ]],
      disk && ["Disk", [
        ["Free", bytes(disk.free_bytes)],
        ["Of", bytes(disk.size_bytes)],
        ["Kept in reserve", bytes(disk.reserve_bytes)],
      ]],
      ["Load", [
        ["Done", percent(load.done)],
        ["Entries", count(load.entries)],
        ["Took", spanOfMs(load.ms)],
      ]],
      ["Groups and connections", [
        ...groups.map(([state, n]) => [STATES[state]?.text ?? visible(state), count(n)]),
        ["Connections", count(node.connections)],
        ["p99 of loop stalls", milliseconds(node.loop_stall_p99_ms)],
        ["Series left out", node.metrics.left_out > 0 ? `${count(node.metrics.left_out)} above ${count(node.metrics.max_series)}` : "none"],
      ]],
    ].filter(Boolean);
    redraw(this.parts, JSON.stringify([all, slow]), () =>
      all.map(([title, facts]) =>
        part(
          title,
          el(
            "dl",
            { class: "list" },
            ...facts.map(([what, value]) =>
              el("div", {}, el("dt", { text: what }), el("dd", { class: "number" }, value ?? UNKNOWN)),
            ),
          ),
        ),
      ),
    );
  }
}

function curve(samples) {
  const node = el("span");
  drawSmall(node, samples);
  if (node.firstChild === null) node.append(UNKNOWN);
  return node;
}

function checkLine(check) {
  const text = check.ok ? (WELL[check.part] ?? `${check.part} is well`) : wrongOf(check);
  return el(
    "li",
    {},
    dot(check.ok ? "ok" : "wrong"),
    el("span", { text: capital(text) }),
  );
}

let parts = 0;
function part(title, ...content) {
  parts += 1;
  const id = `node-${parts}`;
  return el("section", { class: "part", "aria-labelledby": id }, el("h2", { id, text: title }), ...content);
}
