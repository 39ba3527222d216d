// Names, numbers and times as they are read.

import { el, setAttribute, setText } from "./dom.js";

const CUT = 80;
const whole = new Intl.NumberFormat("en");
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

// Whatever changes how the text around it looks, or can't be seen at all.
const HIDDEN =
  /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?! )\p{Zs}/gu;
const EDGES = /^ +| +$/g;

const escaped = (text) => text.replace(/./gsu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

// A text as it can be shown: hidden characters as escapes, so that no two look the same.
export const visible = (text) => text.replace(HIDDEN, escaped);
// A name stands alone, where a space at its edge can't be seen either.
const visibleName = (name) => visible(name).replace(EDGES, escaped);

export function short(text, most, show = visible) {
  const shown = show(text.length > 4 * most ? text.slice(0, 4 * most) : text);
  // By characters, as half an emoji is none.
  const characters = Array.from(shown);
  return characters.length > most || text.length > 4 * most
    ? `${characters.slice(0, most).join("")}…`
    : shown;
}

export const titleOf = (name) => short(name, 60, visibleName);

// Write a name into `node`, cut if it is long; the whole is its title.
export function setName(node, name, { title = null, most = CUT } = {}) {
  const shown = short(name, most, visibleName);
  setText(node, shown);
  setAttribute(node, "title", title ?? (shown === name ? null : visible(name)));
}

export function nameOf(name, { title = null, most = CUT } = {}) {
  const node = el("bdi", { class: "name" });
  setName(node, name, { title, most });
  return node;
}

// What the coordinator says, as a sentence of its own: it may have ended it already.
export const sentenceOf = (text) => capital(visible(text)) + (/[.?]$/u.test(text) ? "" : ".");

export const capital = (text) => text.replace(/^./u, (c) => c.toUpperCase());

export const UNKNOWN = "–";

export const count = (n) => (n === null || n === undefined ? UNKNOWN : whole.format(n));

export const counted = (n, one, many = `${one}s`) => `${whole.format(n)} ${n === 1 ? one : many}`;

// Of a number that is too long for its column, the title has all of it.
const LONG = 10 ** 12;
export const longText = (n) => (n !== null && n >= LONG ? count(n) : null);

// A number that is known for some partitions only is at least that.
const known = (text, unknownPartitions) => (unknownPartitions > 0 && text !== UNKNOWN ? `≥ ${text}` : text);

export const lagText = (lag, unknownPartitions = 0) => known(count(lag), unknownPartitions);

export const behindText = (seconds, unknownPartitions = 0) => known(span(seconds), unknownPartitions);

export const withoutText = (unknownPartitions) =>
  unknownPartitions > 0 ? `without ${counted(unknownPartitions, "partition")} whose lag is not known` : null;

export function changeText(change) {
  if (change === null) return UNKNOWN;
  if (change === 0) return "0";
  return `${change > 0 ? "+" : "−"}${whole.format(Math.abs(change))}`;
}

// A span of time, in the unit that it is best read in.
export function span(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${tenths.format(seconds)} s`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  if (seconds < 7170) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86_400 * 2) return `${tenths.format(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

export const spanOfMs = (ms) => span(ms === null || ms === undefined ? null : ms / 1000);

export function bytes(n) {
  if (n === null || n === undefined) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  let value = n;
  while (value >= 999.5 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at === 0 || value >= 99.5 ? Math.round(value) : tenths.format(value)} ${units[at]}`;
}

export const percent = (share) =>
  share === null || share === undefined ? UNKNOWN : `${Math.round(share * 100)} %`;

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return UNKNOWN;
  if (perSecond > 0 && perSecond < 0.05) return "< 0.1"; // 0.0 would read as never.
  return perSecond > 0 && perSecond < 99.95 ? tenths.format(perSecond) : count(Math.round(perSecond));
}

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  return ms < 99.95 ? `${tenths.format(ms)} ms` : spanOfMs(ms);
}

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

// A time of the API in milliseconds; null is not known.
export const timeOf = (text) => (text === null || text === undefined ? null : Date.parse(text));
export const clockTime = (ms) => (ms === null ? UNKNOWN : clock.format(ms));
export const dayOf = (ms) => (ms === null ? "" : day.format(ms));

// What a state means for whoever looks. Kafka's name of it stays in the title.
export const STATES = {
  Stable: { text: "Stable", tone: "ok" },
  PreparingRebalance: { text: "Joining", tone: "moving" },
  CompletingRebalance: { text: "Syncing", tone: "moving" },
  Empty: { text: "Empty", tone: "idle" },
  Dead: { text: "Dead", tone: "wrong" },
};

export const isMoving = (group) => STATES[group.state]?.tone === "moving";

const BEHIND_S = 60;
export const isBehind = (group) => group.lag_seconds !== null && group.lag_seconds >= BEHIND_S;

// A group needs no members: a listener commits for it. But with nobody in it, a lag that grows old
// is nobody's.
export const isAbandoned = (group) => group.state === "Empty" && isBehind(group);

export function stateOf(group) {
  if (isAbandoned(group)) return { text: "Empty, behind", tone: "wrong" };
  return STATES[group.state] ?? { text: group.state, tone: "idle" };
}

// What a check of the node finds wrong.
export function wrongOf(check) {
  const since = check.since === null ? "" : `, since ${clockTime(timeOf(check.since))}`;
  return `${check.part}: ${visible(check.reason ?? "not well")}${since}`;
}

// Who caused it and why, as one sentence in parts: text, or {by} where the member is named.
export function causeOf(rebalance) {
  const by = rebalance.by === null ? null : { by: rebalance.by };
  const who = by ?? "a member";
  const { trigger } = rebalance;
  const told = why(trigger, rebalance.reason);
  const and = told === "" ? "" : `: ${told}`;
  switch (trigger) {
    case "member joined":
      return [who, ` joined${and}`];
    case "member left":
      return [who, ` left${and}`];
    case "leader rejoined":
      return [who, `, the leader, asked to assign anew${and}`];
    case "member changed its protocols":
      return [who, ` changed what it subscribes to${and}`];
    case "static member replaced":
      return [who, ` took the place of the same instance${and}`];
    case "session expired":
      return [who, ` fell silent and was removed${and}`];
    case "rebalance timeout":
      return [who, ` did not join in time and was removed${and}`];
    case "sync timeout":
      return [who, ` did not ask for its assignment and was removed${and}`];
    case "bad assignment":
      return [who, `, the leader, assigned what can’t be and was removed${and}`];
    case "group full":
      return [who, ` was removed, as the group is full${and}`];
    case "drain asked":
      return [who, ` is to hand over its partitions${and}`];
    case "topics changed":
      return [`Topics changed${and}`];
    case "offsets altered":
      return [`Offsets were altered by an operator${and}`];
    case "too many members":
      return [`More members than the group may have${and}`];
    case "generation was never assigned":
      return [`The coordinator restarted${and}`];
    default:
      return by === null ? [`${trigger}${and}`] : [by, `: ${trigger}${and}`];
  }
}

// The reason without what its trigger has said already: "left: bye" of "member left" is "bye".
function why(trigger, reason) {
  const told = reason ?? "";
  if (trigger === "generation was never assigned") return told.replace(/^restarted at /u, "");
  const last = trigger.slice(trigger.lastIndexOf(" ") + 1);
  for (const said of [trigger, last, "offsets altered on request"]) {
    if (told === said) return "";
    if (told.startsWith(`${said}: `)) return told.slice(said.length + 2);
  }
  return told;
}
