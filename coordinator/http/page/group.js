// One group: how far behind, why it rebalanced, who is in it, and each partition.

import { el, redraw, setAttribute, setSign, setText } from "./dom.js";
import { ask, groupPath } from "./live.js";
import { drawSmall, large } from "./curve.js";
import { fillState } from "./groups.js";
import { Table } from "./table.js";
import { Timeline, toneOf } from "./timeline.js";
import {
  UNKNOWN,
  behindText,
  causeOf,
  count,
  counted,
  isMoving,
  lagText,
  nameOf,
  longText,
  sentenceOf,
  setName,
  short,
  span,
  spanOfMs,
  stateOf,
  timeOf,
  titleOf,
  visible,
  withoutText,
} from "./words.js";

const PARTITIONS_MS = 2000;
const PAGE = 200;
const MOST = 2000;
const REBALANCES = 20;

const age = (at, now) => (at === null ? null : Math.max(0, now - timeOf(at)) / 1000);

export class Group {
  constructor(page, id) {
    this.page = page;
    this.id = id;
    this.group = null;
    this.rebalances = [];
    this.curves = new Map();
    this.limit = PAGE;
    this.sort = "lag";
    this.topic = "";
    this.ticking = null;
    this.partitionsTimer = null;
    this.isPartitionsNews = false;
    this.isOpen = false;
    this.stream = null; // The one whose hello is no news.
    this.isFollowed = false; // The stream has told of it.

    this.heading = el("h1", { id: "title", tabindex: -1 });
    this.heading.append(nameOf(id));
    this.state = el("p", { class: "state" });
    this.copy = el("button", { type: "button", class: "plain soft", text: "Copy name", onclick: () => this.#copy() });
    this.facts = el("dl", { class: "facts" });
    this.hour = el("div");
    this.timeline = new Timeline(page.now);
    this.members = new Table({
      caption: "Members",
      className: "members",
      columns: this.#memberColumns(),
      key: (member) => member.id,
    });
    this.partitions = new Table({
      caption: "Partitions",
      className: "partitions",
      columns: this.#partitionColumns(),
      key: (one) => `${one.partition}/${one.topic}`,
      onSort: (by) => {
        this.sort = by;
        this.#loadPartitions({ withCurves: true });
      },
    });
    this.noMembers = el("p", { class: "empty", text: "Nobody is in it." });
    this.noPartitions = el("p", { class: "empty", text: "It owns no partition and has committed nothing." });
    this.choice = el("select", {
      "aria-label": "Topic",
      onchange: () => {
        this.topic = this.choice.value;
        this.limit = PAGE;
        this.#loadPartitions({ withCurves: true });
      },
    });
    this.more = el("button", {
      type: "button",
      hidden: true,
      onclick: () => {
        this.limit = Math.min(MOST, this.limit * 2);
        this.#loadPartitions({ withCurves: true });
      },
    });
    this.memberCount = el("span", { class: "soft number" });
    this.partitionCount = el("span", { class: "soft number" });
    this.content = el(
      "div",
      { hidden: true },
      el("div", { class: "overview" }, this.facts, this.hour),
      section("timeline", "Why it rebalanced", null, this.timeline.node),
      section("members", "Members", this.memberCount, this.members.node, this.noMembers),
      section(
        "partitions",
        "Partitions",
        this.partitionCount,
        this.choice,
        this.partitions.node,
        this.noPartitions,
        this.more,
      ),
    );
    this.wait = el("p", { class: "empty slow", text: "Asking the coordinator for this group…" });
    this.node = el(
      "article",
      { "aria-labelledby": "title" },
      el("p", { class: "back" }, el("a", { href: page.groupsAddress, text: "All groups" })),
      el("div", { class: "headline" }, this.heading, this.state, this.copy),
      this.wait,
      this.content,
    );
  }

  get title() {
    return titleOf(this.id);
  }

  open(stream) {
    this.isOpen = true;
    this.stream = stream;
    this.load();
    this.ticking = setInterval(() => document.hidden || this.#tick(), 1000);
  }

  close() {
    this.isOpen = false;
    clearInterval(this.ticking);
    clearTimeout(this.partitionsTimer);
    this.partitionsTimer = null;
  }

  async load() {
    await Promise.all([
      this.#look(),
      this.#loadRebalances(),
      this.#loadPartitions({ withCurves: true }),
    ]);
  }

  async #look() {
    await this.#asked(groupPath(this.id), (group) => this.#take(group));
  }

  async #loadRebalances() {
    await this.#asked(groupPath(this.id, "/rebalances", { limit: REBALANCES }), (list) => {
      this.rebalances = list.items;
      this.#showRebalances();
    });
  }

  async #loadPartitions({ withCurves }) {
    const query = { limit: this.limit, sort: this.sort };
    if (this.topic !== "") query.topic = this.topic;
    if (withCurves) query.samples = 60;
    await this.#asked(groupPath(this.id, "/partitions", query), (list) => this.#showPartitions(list));
  }

  async #asked(path, take) {
    try {
      const answer = await ask(path);
      if (!this.isOpen) return;
      this.page.answered();
      take(answer);
    } catch (problem) {
      if (!this.isOpen) return;
      this.stream = null;
      // Of what can't be asked for, as of what isn't there, no further question tells more.
      if ([400, 404].includes(problem.status)) this.#gone(problem.message);
      else this.page.failed(problem);
    }
  }

  #gone(detail) {
    this.isFollowed = false;
    this.content.hidden = true;
    this.wait.hidden = false;
    this.wait.classList.remove("slow");
    setText(this.wait, sentenceOf(detail));
    this.state.replaceChildren();
    this.copy.hidden = true;
  }

  onEvent(name, data) {
    if (name === "hello") {
      // With the first one it was asked for; but what time it is, is known since.
      if (this.stream !== null && this.stream === this.page.live.source) this.#showRebalances();
      else this.load();
      this.stream = null;
      this.isFollowed = false;
    } else if (name === "group" && data.id === this.id) {
      this.#take(data);
      // One may have ended after it was asked for, and before this.
      if (!this.isFollowed) this.#loadRebalances();
      this.isFollowed = true;
      this.#partitionsSoon();
    } else if (name === "groups" && data.removed.includes(this.id)) {
      this.#gone(`there is no group ${this.id} any more`);
    } else if (name === "minute") {
      this.load();
    } else if (this.group?.members === 0 && (name === "node" || name === "beat")) {
      // It has no heartbeats to be told of, and a commit need not change its lag.
      this.#partitionsSoon();
    }
  }

  #take(facts) {
    const before = this.group;
    // Alone it has its members themselves; as one of many, their number.
    const group = { ...facts, members_list: facts.members, members: facts.members.length };
    this.group = group;
    this.wait.hidden = true;
    this.copy.hidden = false;
    this.content.hidden = false;
    this.#showHead();
    this.#showMembers();
    this.#showRebalances();
    if (before !== null && (before.generation !== group.generation || (isMoving(before) && !isMoving(group)))) {
      this.#loadRebalances();
      this.#loadPartitions({ withCurves: false });
    }
    this.#tell(before, group);
  }

  // A screen reader hears what happens, not every number.
  #tell(before, group) {
    if (before === null || before.state === group.state) return;
    const cause = group.rebalance === null ? "" : `: ${sentence(group.rebalance)}`;
    const what = isMoving(group) ? `It rebalances${cause}` : `It is ${stateOf(group).text}`;
    this.page.saySoon(`${what}.`);
  }

  #showHead() {
    const { group } = this;
    fillState(this.state, group);
    const unknown = group.unknown_partitions;
    const facts = [
      ["Lag", lagText(group.lag, unknown), unknown > 0 ? `without ${counted(unknown, "partition")}` : "messages"],
      ["Behind", behindText(group.lag_seconds, unknown), "age of the oldest"],
      ["Members", count(group.members), group.protocol === null || group.protocol === "" ? "" : group.protocol],
      ["Partitions", count(group.partitions), group.topics.length > 0 ? `of ${counted(group.topics.length, "topic")}` : ""],
      ["Generation", count(group.generation), retentionText(group.retention_ms)],
    ];
    redraw(this.facts, JSON.stringify(facts), () =>
      facts.map(([what, value, more]) =>
        el("div", {}, el("dt", { text: what }), el("dd", {}, el("span", { class: "number big", text: value }), el("span", { class: "soft", text: short(more, 40) }))),
      ),
    );
    const topics = group.topics.map((one) => one.topic);
    redraw(this.choice, JSON.stringify(topics), () => [
      option("", `all ${counted(topics.length, "topic")}`),
      ...topics.slice(0, 500).map((topic) => option(topic, titleOf(topic))),
    ]);
    this.choice.value = this.topic;
    this.choice.hidden = topics.length < 2;
  }

  #showHour() {
    const { group } = this;
    const samples = [...(group.samples ?? [])].slice(-59);
    samples.push(group.lag);
    const minute = Math.floor(this.page.now() / 60_000);
    const marks = this.rebalances.map((one) => ({ at: timeOf(one.started_at), tone: toneOf(one) }));
    redraw(this.hour, JSON.stringify([samples, minute, marks]), () => [
      large({ samples, nowMs: this.page.now(), marks, label: "Lag in the last hour, and rebalances" }),
    ]);
  }

  #showRebalances() {
    if (this.group === null) return;
    this.timeline.show(this.rebalances, this.group.rebalance, this.members.items);
    this.#showHour();
  }

  #showMembers() {
    const members = this.group.members_list;
    setText(this.memberCount, count(members.length));
    this.members.node.hidden = members.length === 0;
    this.noMembers.hidden = members.length > 0;
    this.takenAt = performance.now();
    this.members.take(members);
  }

  #showPartitions(list) {
    for (const one of list.items) {
      const id = this.partitions.key(one);
      if (one.samples.length > 0) this.curves.set(id, one.samples);
      one.samples = this.curves.get(id) ?? [];
    }
    this.partitions.take(list.items);
    this.partitions.sorted(this.sort, this.sort === "lag" ? "descending" : "ascending");
    this.partitions.node.hidden = list.items.length === 0;
    this.noPartitions.hidden = list.items.length > 0;
    setText(this.partitionCount, count(list.total));
    const left = list.total - list.items.length;
    this.more.hidden = left <= 0 || this.limit >= MOST;
    setText(this.more, `Show more of ${count(list.total)}`);
  }

  // At once, and then not for a while.
  #partitionsSoon() {
    if (this.partitionsTimer !== null) {
      this.isPartitionsNews = true;
      return;
    }
    this.isPartitionsNews = false;
    this.#loadPartitions({ withCurves: false });
    this.partitionsTimer = setTimeout(() => {
      this.partitionsTimer = null;
      if (this.isPartitionsNews) this.#partitionsSoon();
    }, PARTITIONS_MS);
  }

  #tick() {
    if (this.group === null || this.content.hidden) return;
    if (this.group.rebalance !== null) this.timeline.tick();
    for (const member of this.members.items.values()) this.members.update(member);
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.id);
      this.page.say("The name is in the clipboard");
      setText(this.copy, "Copied");
    } catch {
      setText(this.copy, "Not allowed here");
    }
    setTimeout(() => setText(this.copy, "Copy name"), 2000);
  }

  #memberColumns() {
    const isLate = (member) =>
      this.#heard(member) > member.session_timeout_ms / 2 && member.waits === null;
    return [
      {
        id: "member",
        label: "Member",
        fill: (cell, member) => {
          const roles = [
            member.is_leader ? "leader" : null,
            member.instance_id === null ? null : `static ${member.instance_id}`,
            member.drained ? "hands over" : null,
          ].filter((role) => role !== null);
          redraw(cell, JSON.stringify([member.client_id, member.id, roles]), () => [
            nameOf(member.client_id || member.id, { title: visible(member.id) }),
            roles.length === 0 ? null : el("span", { class: "soft role", text: ` ${visible(roles.join(", "))}` }),
          ]);
        },
      },
      { id: "host", label: "Host", fill: (cell, member) => setName(cell, member.host) },
      {
        id: "does",
        label: "State",
        fill: (cell, member) => {
          const tone = member.waits !== null ? "moving" : isLate(member) ? "wrong" : "ok";
          const text = { moving: `waits in ${member.waits}`, wrong: "silent", ok: "heard" }[tone];
          setSign(cell, tone, text);
        },
      },
      {
        id: "heard",
        label: "Heartbeat",
        title: "How long ago it was heard, of the session timeout after which it is removed",
        isNumber: true,
        fill: (cell, member) => {
          setText(cell, `${Math.floor(this.#heard(member) / 1000)} s of ${spanOfMs(member.session_timeout_ms)}`);
        },
      },
      { id: "count", label: "Partitions", isNumber: true, fill: (cell, member) => setText(cell, count(member.partitions)) },
      {
        id: "lag",
        label: "Lag",
        isNumber: true,
        fill: (cell, member) => {
          setText(cell, lagText(member.lag, member.unknown_partitions));
          setAttribute(cell, "title", withoutText(member.unknown_partitions) ?? longText(member.lag));
        },
      },
    ];
  }

  #heard(member) {
    return member.heartbeat_age_ms + (performance.now() - this.takenAt);
  }

  #partitionColumns() {
    const owner = (one) => this.members.items.get(one.owner);
    return [
      { id: "topic", label: "Topic", sort: "id", fill: (cell, one) => {
        if (cell.firstChild === null) cell.append(nameOf(one.topic));
      } },
      { id: "partition", label: "Partition", isNumber: true, fill: (cell, one) => setText(cell, count(one.partition)) },
      {
        id: "owner",
        label: "Owner",
        fill: (cell, one) => {
          if (!one.owner) {
            setText(cell, UNKNOWN);
            setAttribute(cell, "title", "nobody");
          } else {
            setName(cell, owner(one)?.client_id || one.owner, { title: visible(one.owner) });
          }
        },
      },
      {
        id: "committed",
        label: "Committed",
        isNumber: true,
        fill: (cell, one) => {
          setText(cell, count(one.committed));
          const when = age(one.committed_at, this.page.now());
          const parts = [
            longText(one.committed),
            when === null ? null : `${span(Math.round(when))} ago`,
            one.metadata ? visible(one.metadata) : null,
          ];
          setAttribute(cell, "title", parts.filter((part) => part !== null).join(", ") || null);
        },
      },
      {
        id: "end",
        label: "End",
        isNumber: true,
        fill: (cell, one) => {
          setText(cell, count(one.end));
          const when = age(one.end_reported_at, this.page.now());
          const reported = when === null ? "nobody has reported it" : `reported ${span(Math.round(when))} ago`;
          setAttribute(cell, "title", [longText(one.end), reported].filter(Boolean).join(", "));
        },
      },
      { id: "lag", label: "Lag", sort: "lag", isNumber: true, fill: fillLag },
      { id: "behind", label: "Behind", isNumber: true, fill: (cell, one) => setText(cell, span(one.lag_seconds)) },
      { id: "curve", label: "Last hour", draw: (cell, one) => drawSmall(cell, one.samples) },
    ];
  }
}

function retentionText(ms) {
  if (ms === null) return "";
  return ms < 0 ? "offsets kept for ever" : `offsets kept ${spanOfMs(ms)}`;
}

function fillLag(cell, { lag, committed, end }) {
  const isBeyond = committed !== null && end !== null && committed > end;
  setText(cell, lagText(lag));
  setAttribute(cell, "title", isBeyond ? "committed beyond the reported end: that is old, or the commit is wrong" : longText(lag));
}

const option = (value, text) => el("option", { value, text });

const sentence = (rebalance) =>
  causeOf(rebalance)
    .map((part) => visible(typeof part === "string" ? part : part.by.client_id || part.by.id))
    .join("");

function section(id, title, beside, ...content) {
  return el(
    "section",
    { "aria-labelledby": `${id}-title`, class: `part ${id}` },
    el("h2", { id: `${id}-title` }, title, beside === null ? null : " ", beside),
    ...content,
  );
}

