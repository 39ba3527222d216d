// Why did it rebalance? One line for each: the cause as a sentence, the phases to scale, the late.

import { dot, el, redraw, unseen } from "./dom.js";
import { causeOf, clockTime, dayOf, nameOf, short, span, spanOfMs, timeOf, visible } from "./words.js";

const REASON = 240; // Characters that are shown.
const NAME = 40;

const phaseMs = (rebalance, phase) =>
  rebalance.phases.find((one) => one.phase === phase)?.ms ?? 0;
const totalMs = (rebalance) => phaseMs(rebalance, "join") + phaseMs(rebalance, "sync");

const WRONG = new Set([
  "session expired",
  "rebalance timeout",
  "sync timeout",
  "bad assignment",
  "group full",
  "too many members",
]);

// Wrong is what nobody wanted: somebody was lost, or it came to nothing.
export const toneOf = (rebalance) =>
  WRONG.has(rebalance.trigger) ||
  rebalance.outcome === "overtaken" ||
  rebalance.late.some((late) => late.removed)
    ? "wrong"
    : "moving";

export class Timeline {
  constructor(now) {
    this.now = now;
    this.running = null;
    this.members = new Map();
    this.past = [];
    this.list = el("ol", { class: "rebalances" });
    this.scale = el("p", { class: "scale" });
    this.empty = el("p", {
      class: "empty",
      hidden: true,
      text: "It has not rebalanced: no member has joined yet.",
    });
    this.node = el("div", {}, this.scale, this.empty, this.list);
  }

  // `members`, by their ids, tell the names of those that it waits for.
  show(past, running, members) {
    this.past = past;
    this.running = running;
    this.members = members;
    this.tick();
  }

  // The running one grows.
  tick() {
    const all = this.running === null ? this.past : [this.#grown(), ...this.past];
    const most = niceMs(Math.max(1, ...all.map(longestMs)));
    this.empty.hidden = all.length > 0;
    this.scale.hidden = this.list.hidden = all.length === 0;
    redraw(this.scale, String(most), () => [
      el("span", { class: "key" }, el("i", { class: "bar-join" }), "join"),
      el("span", { class: "key" }, el("i", { class: "bar-sync" }), "sync"),
      el("span", { class: "key" }, el("i", { class: "bar-late" }), "late"),
      el("span", { class: "number", text: `full width ${spanOfMs(most)}` }),
    ]);
    const items = new Map([...this.list.children].map((li) => [li.dataset.key, li]));
    let at = this.list.firstElementChild;
    for (const one of all) {
      const key = one.isRunning ? "running" : `${one.number}`;
      const li = items.get(key) ?? el("li", { "data-key": key });
      items.delete(key);
      if (li === at) at = at.nextElementSibling;
      else this.list.insertBefore(li, at);
      // Its end is its own line: the next one that runs begins anew.
      redraw(li, JSON.stringify([one, most, dayOf(this.now())]), () => line(one, most, this.now()));
      li.className = one.isRunning ? "running" : "";
    }
    for (const li of items.values()) li.remove();
  }

  #grown() {
    const running = this.running;
    const passedMs = Math.max(0, this.now() - (timeOf(running.started_at) ?? this.now()));
    const join = phaseMs(running, "join");
    const inSync = running.phases.some((one) => one.phase === "sync");
    const phases = inSync
      ? [
          { phase: "join", ms: join },
          { phase: "sync", ms: Math.max(0, passedMs - join) },
        ]
      : [{ phase: "join", ms: passedMs }];
    const tenthOfSecond = (one) => ({ ...one, ms: Math.round(one.ms / 100) * 100 });
    const missing = running.waiting_for.map(
      (id) => this.members.get(id) ?? { id, client_id: "", host: "" },
    );
    return { ...running, phases: phases.map(tenthOfSecond), missing, isRunning: true };
  }
}

function longestMs(rebalance) {
  const join = phaseMs(rebalance, "join");
  const late = rebalance.late.map((one) => one.waited_ms + (one.phase === "sync" ? join : 0));
  return Math.max(totalMs(rebalance), ...late);
}

// A round number above: a scale that is easily read, and seldom changes.
function niceMs(ms) {
  const power = 10 ** Math.floor(Math.log10(ms));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((nice) => nice >= ms);
}

// Its width is a share of the scale; set as a property, as style attributes are forbidden.
function bar(className, fromMs, ms, most) {
  const node = el("i", { class: className });
  node.style.setProperty("--from", `${((fromMs / most) * 100).toFixed(2)}%`);
  node.style.setProperty("--width", `${((ms / most) * 100).toFixed(2)}%`);
  return node;
}

function line(one, most, nowMs) {
  const startedMs = timeOf(one.started_at);
  const join = phaseMs(one, "join");
  const sync = phaseMs(one, "sync");
  const isToday = startedMs !== null && dayOf(startedMs) === dayOf(nowMs);
  const when = el("time", {
    datetime: one.started_at,
    class: "when number",
    title: isToday ? null : clockTime(startedMs),
    text: isToday ? clockTime(startedMs) : `${dayOf(startedMs)} ${clockTime(startedMs).slice(0, 5)}`,
  });
  const phases = [join > 0 || sync === 0 ? `join ${spanOfMs(join)}` : null, sync > 0 ? `sync ${spanOfMs(sync)}` : null]
    .filter((part) => part !== null)
    .join(", ");
  return [
    el(
      "div",
      { class: "head" },
      dot(one.isRunning ? "moving" : toneOf(one)),
      when,
      el("p", { class: "cause" }, ...sentence(one)),
      el(
        "p",
        { class: "generations number" },
        unseen("generation "),
        one.isRunning || one.to_generation === null || one.to_generation < 0
          ? `${one.from_generation} → …`
          : `${one.from_generation} → ${one.to_generation}`,
      ),
      el(
        "p",
        { class: "took number", title: phases },
        el("span", { text: spanOfMs(totalMs(one)) }),
        unseen(` (${phases})`),
      ),
      el(
        "div",
        { class: "bars", "aria-hidden": "true" },
        bar("bar-join", 0, join, most),
        bar("bar-sync", join, sync, most),
      ),
    ),
    outcome(one),
    one.late.length === 0
      ? null
      : el("ul", { class: "late" }, ...one.late.map((late) => lateLine(late, join, most))),
  ];
}

function sentence(one) {
  const parts = causeOf(one).map((part) => (typeof part === "string" ? told(part) : who(part.by)));
  return [...parts, "."];
}

// A reason is what a client says, at any length; it may be in any script.
function told(text) {
  const shown = short(text, REASON);
  return el("bdi", { text: shown, title: shown === text ? null : visible(text) });
}

function who(member) {
  const name = member.client_id || member.id;
  const node = el("span", { class: "who" }, nameOf(name, { title: visible(member.id), most: NAME }));
  if (member.host) {
    node.append(el("span", { class: "soft" }, " (", nameOf(member.host, { most: NAME }), ")"));
  }
  return node;
}

function outcome(one) {
  if (one.isRunning) {
    const { missing } = one;
    if (missing.length === 0) return el("p", { class: "note", text: "Going on." });
    const names = missing.slice(0, 5).flatMap((member, at) => [at > 0 ? ", " : "", who(member)]);
    const more = missing.length > 5 ? ` and ${missing.length - 5} more` : "";
    return el("p", { class: "note" }, "Going on: waits for ", ...names, `${more}.`);
  }
  if (one.outcome === "overtaken") {
    return el("p", { class: "note", text: "Another one began before the leader had assigned." });
  }
  if (one.outcome === "empty") return el("p", { class: "note", text: "Nobody is left in the group." });
  return null;
}

function lateLine(late, joinMs, most) {
  const waited = span(late.waited_ms / 1000);
  const did = late.removed
    ? ` did not ${late.phase} within ${waited}, and is no longer a member`
    : ` came to ${late.phase} after ${waited}`;
  return el(
    "li",
    {},
    el("span", { class: "cause" }, who(late), `${did}.`),
    el(
      "div",
      { class: "bars", "aria-hidden": "true" },
      bar(late.removed ? "bar-late removed" : "bar-late", late.phase === "sync" ? joinMs : 0, late.waited_ms, most),
    ),
  );
}
