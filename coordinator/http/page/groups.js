// All groups: who is behind? The worst first.

import { dot, el, setAttribute, setSign, setText } from "./dom.js";
import { ask } from "./live.js";
import { drawSmall } from "./curve.js";
import { Roving, Table } from "./table.js";
import {
  UNKNOWN,
  behindText,
  changeText,
  count,
  counted,
  isAbandoned,
  isBehind,
  isMoving,
  lagText,
  setName,
  short,
  span,
  stateOf,
  timeOf,
  withoutText,
} from "./words.js";

const FIRST = 50; // So many are shown before the others are asked for.
const MOST = 2000; // The most that one answer has; of more groups, the worst.
const SORT_MS = 1000;
const SEARCH_MS = 200;

const number = (value) => (value === null ? -1 : value);
const ORDERS = {
  lag: { descends: true, of: (a, b) => number(b.lag) - number(a.lag) },
  lag_seconds: { descends: true, of: (a, b) => number(b.lag_seconds) - number(a.lag_seconds) },
  change: { descends: true, of: (a, b) => number(changeOf(b)) - number(changeOf(a)) },
  members: { descends: true, of: (a, b) => b.members - a.members },
  state: { descends: false, of: (a, b) => stateOf(a).text.localeCompare(stateOf(b).text) },
  id: { descends: false, of: () => 0 },
};
const byId = (a, b) => (a.id < b.id ? -1 : Number(a.id > b.id));

// Of more groups than one answer holds, the coordinator is asked for those that may fit.
const CHOICES = {
  all: { label: "All", fits: () => true, asked: {} },
  behind: { label: "Over a minute behind", fits: isBehind, asked: { sort: "lag_seconds" } },
  moving: {
    label: "Rebalancing",
    tone: "moving",
    fits: isMoving,
    asked: { state: ["PreparingRebalance", "CompletingRebalance"] },
  },
  abandoned: {
    label: "Empty and behind",
    tone: "wrong",
    fits: isAbandoned,
    asked: { state: ["Empty"], sort: "lag_seconds" },
  },
};
// By these it can put them in order; the others are the worst, by another column.
const ASKED_ORDERS = new Set(["lag", "lag_seconds", "members", "id"]);

// Of a lag that is known in part, no change is known.
const changeOf = (group) =>
  group.lag === null || group.unknown_partitions > 0 || (group.earlier_lag ?? null) === null
    ? null
    : group.lag - group.earlier_lag;

const href = (id) => `#/groups/${encodeURIComponent(id)}`;

function fillName(cell, group) {
  let link = cell.firstChild;
  if (link === null) {
    link = el("a", { href: href(group.id), tabindex: -1 }, el("bdi", { class: "name" }));
    cell.append(link);
  }
  setName(link.firstChild, group.id);
}

export function fillState(cell, group) {
  const state = stateOf(group);
  setSign(cell, state.tone, state.text);
  setAttribute(cell, "title", group.state === state.text ? null : group.state);
}

const COLUMNS = [
  { id: "id", label: "Group", sort: "id", fill: fillName },
  { id: "state", label: "State", sort: "state", fill: fillState },
  {
    id: "members",
    label: "Members",
    isNumber: true,
    sort: "members",
    fill: (cell, group) => setText(cell, count(group.members)),
  },
  {
    id: "lag",
    label: "Lag",
    title: "Messages that are not committed yet",
    isNumber: true,
    sort: "lag",
    fill: (cell, group) => {
      setText(cell, lagText(group.lag, group.unknown_partitions));
      setAttribute(cell, "title", withoutText(group.unknown_partitions));
    },
  },
  {
    id: "behind",
    label: "Behind",
    title: "How long ago the oldest message that is not committed was written",
    isNumber: true,
    sort: "lag_seconds",
    fill: (cell, group) => {
      if (cell.firstChild === null) cell.append(el("span"));
      setText(cell.firstChild, behindText(group.lag_seconds, group.unknown_partitions));
      setAttribute(cell, "title", withoutText(group.unknown_partitions));
      cell.firstChild.classList.toggle("far", isBehind(group));
    },
  },
  {
    id: "change",
    label: "In 5 min",
    title: "How the lag has changed",
    isNumber: true,
    sort: "change",
    fill: (cell, group) => {
      const change = changeOf(group);
      setText(cell, changeText(change));
      const over = change === null ? null : `over ${span(group.earlier_ms / 1000)}`;
      setAttribute(cell, "title", over);
    },
  },
  {
    id: "curve",
    label: "Last hour",
    draw: (cell, group) => drawSmall(cell, group.samples),
  },
];

export class Groups {
  constructor(page) {
    this.page = page;
    this.total = null;
    this.isWhole = false;
    this.hasAll = false;
    this.isNarrowed = false; // By the coordinator, to what is asked for.
    this.asOf = null; // Of when the list is.
    this.isLoading = false;
    this.neededAsOf = null; // At least so new must be the one that is being loaded.
    this.sort = "lag";
    this.isReversed = false;
    this.choice = "all";
    this.query = "";
    this.isHeld = false;
    this.asked = 0;
    this.sortTimer = null;
    this.searchTimer = null;

    this.table = new Table({
      caption: "Groups",
      className: "groups",
      columns: COLUMNS,
      key: (group) => group.id,
      onSort: (by) => this.#sortBy(by),
    });
    this.groups = this.table.items; // All that are known; the table shows some of them.
    this.roving = new Roving(this.table, "th a");
    this.filter = el("input", {
      type: "search",
      id: "filter",
      placeholder: "Filter",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": "Filter groups by name",
      "aria-keyshortcuts": "/",
      oninput: () => this.#typed(),
      onkeydown: (event) => this.#keyInFilter(event),
    });
    this.choices = new Map(
      Object.entries(CHOICES).map(([id, choice]) => [
        id,
        el(
          "button",
          { type: "button", class: "choice", onclick: () => this.#choose(id) },
          choice.tone ? dot(choice.tone) : null,
          el("span", { text: choice.label }),
          " ",
          el("span", { class: "number", text: UNKNOWN }),
        ),
      ]),
    );
    this.empty = el("p", { class: "empty slow", text: "Asking the coordinator for its groups…" });
    this.foot = el("p", { class: "foot soft" });
    this.node = el(
      "section",
      { "aria-labelledby": "title" },
      el("h1", { id: "title", class: "unseen", tabindex: -1, text: "Groups" }),
      el(
        "div",
        { class: "tools" },
        el("div", { class: "choices", role: "group", "aria-label": "Show" }, ...this.choices.values()),
        this.filter,
      ),
      this.table.node,
      this.empty,
      this.foot,
    );
    this.table.node.hidden = true;
    const body = this.table.node;
    body.addEventListener("pointerenter", (event) => this.#hold(event.pointerType === "mouse"));
    body.addEventListener("pointerleave", () => this.#hold(body.contains(document.activeElement)));
    body.addEventListener("focusin", () => this.#hold(true));
    body.addEventListener("focusout", (event) => {
      if (!body.contains(event.relatedTarget)) this.#hold(body.matches(":hover"));
    });
    this.#sorted();
    this.#count();
  }

  get title() {
    return "Groups";
  }

  open() {
    this.load();
  }

  close() {
    clearTimeout(this.sortTimer);
    clearTimeout(this.searchTimer);
    this.sortTimer = null;
  }

  // What is filtered and in which order, as it stands in the address.
  get address() {
    const said = new URLSearchParams();
    if (this.query !== "") said.set("q", this.query);
    if (this.choice !== "all") said.set("show", this.choice);
    if (this.sort !== "lag" || this.isReversed) said.set("sort", (this.isReversed ? "-" : "") + this.sort);
    return said.size === 0 ? "#/" : `#/?${said}`;
  }

  // Show what an address says; what it can't mean is as if it said nothing.
  wanted(said) {
    const before = this.address;
    const [, minus, sort] = /^(-?)(.*)$/u.exec(said.get("sort") ?? "");
    const choice = said.get("show");
    this.query = said.get("q") ?? "";
    this.choice = Object.hasOwn(CHOICES, choice) ? choice : "all";
    this.sort = Object.hasOwn(ORDERS, sort) ? sort : "lag";
    this.isReversed = minus !== "" && Object.hasOwn(ORDERS, sort);
    this.filter.value = this.query;
    this.#sorted();
    if (this.total !== null && this.address !== before) this.#asked();
  }

  // Something else is asked for: show what is known of it, and ask for the rest.
  #asked() {
    this.#show();
    if (this.#isPart()) {
      clearTimeout(this.searchTimer);
      this.searchTimer = setTimeout(() => this.load(), SEARCH_MS);
    }
  }

  // The same by hand, which the address says from then on.
  #askedFor() {
    history.replaceState(null, "", this.address);
    this.#asked();
  }

  // Read the list: a first screenful, then all, or the worst of very many.
  async load() {
    this.asked += 1;
    const asked = this.asked;
    this.isLoading = true;
    this.neededAsOf = null;
    try {
      const first = this.hasAll ? null : await ask(`api/v1/groups?limit=${FIRST}`);
      if (asked !== this.asked) return;
      if (first !== null) this.#take(first, first.next === null);
      if (first === null || first.next !== null) {
        const all = await ask(`api/v1/groups?${this.#question()}`);
        if (asked !== this.asked) return;
        this.#take(all, true);
      }
      this.isLoading = false;
      if (this.neededAsOf !== null && this.asOf < this.neededAsOf) this.load();
    } catch (problem) {
      if (asked !== this.asked) return;
      this.isLoading = false;
      this.page.failed(problem);
      if (this.groups.size === 0) {
        this.empty.classList.remove("slow");
        setText(this.empty, "No groups are known yet.");
      }
    }
  }

  #question() {
    const said = new URLSearchParams({ limit: MOST });
    if (this.#isPart()) {
      const { state = [], sort = "lag" } = CHOICES[this.choice].asked;
      if (this.query !== "") said.set("q", this.query);
      for (const one of state) said.append("state", one);
      const isByOther = ASKED_ORDERS.has(this.sort) && !this.isReversed && this.choice === "all";
      said.set("sort", isByOther ? this.sort : sort);
    }
    return said;
  }

  #take(list, isAll) {
    this.page.answered();
    this.asOf = Date.parse(list.as_of);
    this.isNarrowed = isAll && this.#isPart() && (this.query !== "" || this.choice !== "all");
    this.isWhole = list.items.length >= list.total && !this.isNarrowed;
    if (!this.isNarrowed) this.total = list.total;
    const named = new Set(list.items.map((group) => group.id));
    if (isAll) {
      for (const id of this.groups.keys()) if (!named.has(id)) this.table.forget(id);
    }
    for (const group of list.items) this.table.update(group);
    this.hasAll = isAll;
    this.#show();
  }

  // There are more than one answer holds: then the coordinator filters, too.
  #isPart() {
    return this.total !== null && this.total > MOST;
  }

  // All that changes after a hello is told; the list has to be so new itself.
  #hello(asOf) {
    if (this.isLoading) this.neededAsOf = asOf;
    else if (this.asOf === null || asOf === null || this.asOf < asOf) this.load();
  }

  onEvent(name, data) {
    if (name === "hello") {
      this.#hello(timeOf(data.groups_as_of));
    } else if (name === "minute") {
      this.load();
    } else if (name === "groups") {
      this.#changed(data);
    }
  }

  #changed({ changed, removed }) {
    let isOther = removed.length > 0;
    for (const id of removed) {
      // A whole list that has come since is without it already, and so is its count.
      if (this.total !== null && (this.groups.has(id) || !this.isWhole)) this.total -= 1;
      this.table.forget(id);
    }
    for (const group of changed) {
      const known = this.groups.get(group.id);
      if (known === undefined) {
        if (!this.isWhole) continue;
        if (this.total !== null) this.total += 1;
        isOther = true;
      }
      // As an event it comes without them.
      this.table.update({ samples: [], ...known, ...group });
    }
    if (isOther && !this.isHeld) {
      this.#show();
    } else {
      this.#count();
      this.#sortSoon();
    }
  }

  #sortSoon() {
    if (this.sortTimer !== null) return;
    this.sortTimer = setTimeout(() => {
      this.sortTimer = null;
      if (!this.isHeld) this.#show();
    }, SORT_MS);
  }

  #hold(isHeld) {
    if (this.isHeld && !isHeld) this.#sortSoon();
    this.isHeld = isHeld;
  }

  #chosen() {
    const wanted = this.query.toLowerCase();
    const { fits } = CHOICES[this.choice];
    const found = [...this.groups.values()].filter(
      (group) => fits(group) && (wanted === "" || group.id.toLowerCase().includes(wanted)),
    );
    const order = ORDERS[this.sort];
    const sign = this.isReversed ? -1 : 1;
    return found.sort((a, b) => sign * (order.of(a, b) || (this.sort === "id" ? byId(a, b) : 0)) || byId(a, b));
  }

  #show() {
    const found = this.#chosen();
    this.table.show(found);
    this.#count();
    this.shownCount = found.length;
    const isKnown = this.hasAll;
    this.table.node.hidden = found.length === 0;
    this.empty.hidden = found.length > 0 || !isKnown;
    if (isKnown && found.length === 0) {
      this.empty.classList.remove("slow");
      if (this.total === 0) {
        setText(this.empty, "There are no groups. One begins with the first member that joins, or the first commit.");
      } else if (this.query !== "") {
        setText(this.empty, `No group has “${short(this.query, 40)}” in its name.`);
      } else {
        setText(this.empty, "None, which is good.");
      }
    }
    const loaded = this.groups.size;
    setText(
      this.foot,
      this.hasAll && this.#isPart() && !this.isNarrowed
        ? `The worst ${count(loaded)} of ${counted(this.total, "group")}. The filter searches all of them.`
        : "",
    );
    this.roving.settle();
  }

  // Of a part of them, it is at least so many.
  #count() {
    if (this.isNarrowed) {
      this.#pressed();
      return;
    }
    const counts = Object.fromEntries(Object.keys(CHOICES).map((id) => [id, 0]));
    for (const group of this.groups.values()) {
      for (const [id, choice] of Object.entries(CHOICES)) if (choice.fits(group)) counts[id] += 1;
    }
    for (const [id, button] of this.choices) {
      const n = id === "all" || this.total === null ? this.total : counts[id];
      setText(button.lastChild, n === null ? UNKNOWN : (id !== "all" && this.#isPart() ? "≥ " : "") + count(n));
      button.classList.toggle("none", n === 0);
    }
    this.#pressed();
  }

  #pressed() {
    for (const [id, button] of this.choices) setAttribute(button, "aria-pressed", String(id === this.choice));
  }

  #choose(id) {
    this.choice = id;
    this.#askedFor();
    this.#sayMatches();
  }

  #sortBy(by) {
    this.isReversed = this.sort === by ? !this.isReversed : false;
    this.sort = by;
    this.#sorted();
    this.#askedFor();
  }

  #sorted() {
    const descends = ORDERS[this.sort].descends !== this.isReversed;
    this.table.sorted(this.sort, descends ? "descending" : "ascending");
  }

  #typed() {
    this.query = this.filter.value;
    this.#askedFor();
    this.#sayMatches();
  }

  #sayMatches() {
    const n = this.shownCount;
    this.page.saySoon(n === 1 ? "1 group matches" : `${count(n)} groups match`);
  }

  #keyInFilter(event) {
    if (event.key === "Escape") {
      this.filter.value = "";
      this.#typed();
      event.preventDefault();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      this.roving.move(1);
      event.preventDefault();
    }
  }

  onKey(event) {
    if (event.key === "/") {
      this.filter.focus();
      this.filter.select();
    } else if (event.key === "j" || event.key === "ArrowDown") this.roving.move(1);
    else if (event.key === "k" || event.key === "ArrowUp") this.roving.move(-1);
    else if (event.key === "Escape" && this.query !== "") {
      this.filter.value = "";
      this.#typed();
    } else return false;
    return true;
  }

  // Back from a group: where one was.
  focusOn(id) {
    const link = this.table.rows.get(id)?.tr.querySelector("a");
    if (!link?.isConnected) return false;
    link.focus({ preventScroll: true });
    link.scrollIntoView({ block: "nearest" });
    return true;
  }
}
