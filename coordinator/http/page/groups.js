// All groups: who is behind? The worst first.

import { dot, el, setAttribute, setSign, setText } from "./dom.js";
import { ask } from "./live.js";
import { drawSmall } from "./curve.js";
import { Roving, Table } from "./table.js";
import {
  UNKNOWN,
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
} from "./words.js";

const FIRST = 50; // So many are shown before the others are asked for.
const MOST = 2000; // The most that one answer has; of more groups, the worst.
const SORT_MS = 1000;

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

const CHOICES = {
  all: { label: "All", fits: () => true },
  behind: { label: "Over a minute behind", fits: isBehind },
  moving: { label: "Rebalancing", tone: "moving", fits: isMoving },
  abandoned: { label: "Empty and behind", tone: "wrong", fits: isAbandoned },
};

const changeOf = (group) =>
  group.lag === null || group.earlier_lag === null || group.earlier_lag === undefined
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
      const unknown = group.unknown_partitions;
      setAttribute(
        cell,
        "title",
        unknown > 0 ? `without ${counted(unknown, "partition")} whose lag is not known` : null,
      );
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
      setText(cell.firstChild, span(group.lag_seconds));
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
    this.sortTimer = null;
  }

  // Read the list: a first screenful, then all, or the worst of very many.
  async load() {
    this.asked += 1;
    const asked = this.asked;
    const q = this.#isSearched() ? `&q=${encodeURIComponent(this.query)}` : "";
    try {
      if (this.groups.size === 0 && q === "") {
        const first = await ask(`api/v1/groups?limit=${FIRST}`);
        if (asked !== this.asked) return;
        this.#take(first, first.next === null);
        if (first.next === null) return;
      }
      const all = await ask(`api/v1/groups?limit=${MOST}${q}`);
      if (asked === this.asked) this.#take(all, true);
    } catch (problem) {
      if (asked !== this.asked) return;
      this.page.failed(problem);
      if (this.groups.size === 0) {
        this.empty.classList.remove("slow");
        setText(this.empty, "No groups are known yet.");
      }
    }
  }

  #take(list, isAll) {
    this.page.answered();
    this.isWhole = list.items.length >= list.total;
    if (!this.#isSearched()) this.total = list.total;
    const named = new Set(list.items.map((group) => group.id));
    if (isAll) {
      for (const id of this.groups.keys()) if (!named.has(id)) this.table.forget(id);
    }
    for (const group of list.items) this.table.update(group);
    this.hasAll = isAll;
    this.#show();
  }

  // More than one answer holds: then the coordinator filters.
  #isSearched() {
    return this.query !== "" && this.total !== null && this.total > MOST;
  }

  onEvent(name, data) {
    if (name === "hello" || name === "minute") {
      this.load();
    } else if (name === "groups") {
      this.#changed(data);
    }
  }

  #changed({ changed, removed }) {
    let isOther = removed.length > 0;
    for (const id of removed) {
      this.table.forget(id);
      if (this.total !== null) this.total -= 1;
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
    const isKnown = this.total !== null;
    this.table.node.hidden = found.length === 0;
    this.empty.hidden = found.length > 0 || !isKnown;
    if (isKnown && found.length === 0) {
      this.empty.classList.remove("slow");
      if (this.groups.size === 0 && this.query === "") {
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
      isKnown && !this.isWhole && this.hasAll && this.total > loaded
        ? `The worst ${count(loaded)} of ${counted(this.total, "group")}. The filter searches all of them.`
        : "",
    );
    this.roving.settle();
  }

  #count() {
    const counts = Object.fromEntries(Object.keys(CHOICES).map((id) => [id, 0]));
    for (const group of this.groups.values()) {
      for (const [id, choice] of Object.entries(CHOICES)) if (choice.fits(group)) counts[id] += 1;
    }
    for (const [id, button] of this.choices) {
      const n = id === "all" || this.total === null ? this.total : counts[id];
      setText(button.lastChild, n === null ? UNKNOWN : count(n));
      setAttribute(button, "aria-pressed", String(id === this.choice));
      button.classList.toggle("none", n === 0);
    }
  }

  #choose(id) {
    this.choice = id;
    this.#show();
    this.#sayMatches();
  }

  #sortBy(by) {
    this.isReversed = this.sort === by ? !this.isReversed : false;
    this.sort = by;
    this.#sorted();
    this.#show();
  }

  #sorted() {
    const descends = ORDERS[this.sort].descends !== this.isReversed;
    this.table.sorted(this.sort, descends ? "descending" : "ascending");
  }

  #typed() {
    this.query = this.filter.value;
    this.#show();
    if (this.total > MOST) {
      clearTimeout(this.searchTimer);
      this.searchTimer = setTimeout(() => this.load(), 200);
    }
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
