// A real table whose rows are patched in place, and whose curves are drawn when they come in sight.
//
// 2,000 rows are made in slices, the first screenful at once. A row that is not in sight is neither
// styled nor laid out (content-visibility; for that a row is a box of its own, and its roles say that
// it is one of a table), and is patched when it comes in sight, or when there is time.

import { el, inSlices, setAttribute } from "./dom.js";

const AT_ONCE = 60;
const FRESHEN_MS = 500;

export class Table {
  // columns: {id, label, title, isNumber, sort, fill(cell, item), draw(cell, item)}.
  // `fill` is cheap; `draw` is called only for rows in sight. The first column names the row.
  constructor({ caption, columns, key, onSort = null, className = "" }) {
    this.key = key;
    this.columns = columns;
    this.items = new Map();
    this.rows = new Map(); // key -> {tr, cells, isStale, isSeen}
    this.stop = null;
    this.freshening = null;
    this.body = el("tbody", { role: "rowgroup" });
    this.heads = new Map();
    // Copied for each row, which takes a quarter of the time of making it.
    this.blank = el(
      "tr",
      { role: "row" },
      ...columns.map((column, at) =>
        at === 0
          ? el("th", { role: "rowheader", scope: "row", class: classOf(column) })
          : el("td", { role: "cell", class: classOf(column) }),
      ),
    );
    const head = el("tr", { role: "row" });
    for (const column of columns) {
      const label = onSort !== null && column.sort
        ? el("button", {
            type: "button",
            class: "plain",
            onclick: () => onSort(column.sort),
          }, el("span", { text: column.label }))
        : el("span", { text: column.label });
      const th = el(
        "th",
        { role: "columnheader", scope: "col", class: classOf(column), title: column.title },
        label,
      );
      this.heads.set(column.sort ?? column.id, th);
      head.append(th);
    }
    this.node = el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { role: "table", class: className },
        el("caption", { class: "unseen", text: caption }),
        el("thead", { role: "rowgroup" }, head),
        this.body,
      ),
    );
    this.sight = new IntersectionObserver((entries) => this.#seen(entries), {
      rootMargin: "200px 0px",
    });
  }

  // Say by which column it is sorted.
  sorted(by, direction) {
    for (const [id, th] of this.heads) setAttribute(th, "aria-sort", id === by ? direction : null);
  }

  // Take new facts of one item; it is shown where it stands.
  update(item) {
    const id = this.key(item);
    this.items.set(id, item);
    const row = this.rows.get(id);
    if (row === undefined) return;
    if (row.isSeen) {
      this.#patch(row, item);
      return;
    }
    row.isStale = true;
    this.freshening ??= setTimeout(() => {
      this.freshening = null;
      inSlices(this.#freshen());
    }, FRESHEN_MS);
  }

  // What is out of sight is found by the browser's search, too, and read aloud.
  *#freshen() {
    for (const [id, row] of [...this.rows]) {
      if (!row.isStale || !this.items.has(id)) continue;
      this.#patch(row, this.items.get(id));
      yield;
    }
  }

  forget(id) {
    this.items.delete(id);
    const row = this.rows.get(id);
    if (row === undefined) return;
    this.sight.unobserve(row.tr);
    row.tr.remove();
    this.rows.delete(id);
  }

  // Have these items and no others, and show them.
  take(items) {
    const ids = new Set(items.map(this.key));
    for (const id of this.items.keys()) if (!ids.has(id)) this.forget(id);
    for (const item of items) this.update(item);
    this.show(items);
  }

  // Show these of its items, in this order.
  show(items) {
    this.stop?.();
    this.stop = null;
    const ids = items.map(this.key);
    if (ids.length * 2 < this.body.childElementCount) {
      this.body.replaceChildren(...ids.slice(0, AT_ONCE).map((id) => this.#row(id).tr));
    }
    const steps = this.#place(ids);
    for (let n = 0; n <= AT_ONCE; n += 1) if (steps.next().done) return;
    this.stop = inSlices(steps);
  }

  *#place(ids) {
    let at = this.body.firstElementChild;
    for (const id of ids) {
      // It may have gone since.
      if (!this.items.has(id)) continue;
      const row = this.#row(id);
      if (at !== null && at !== row.tr && at.nextElementSibling === row.tr) {
        // One has moved down: take it out instead of moving all that follow up.
        const gone = at;
        at = row.tr;
        gone.remove();
      }
      if (at === row.tr) at = at.nextElementSibling;
      else this.body.insertBefore(row.tr, at);
      if (row.isStale) this.#patch(row, this.items.get(id));
      yield;
      if (at !== null && at.parentNode !== this.body) at = row.tr.nextElementSibling;
    }
    while (at !== null) {
      const next = at.nextElementSibling;
      at.remove();
      at = next;
    }
  }

  #row(id) {
    const found = this.rows.get(id);
    if (found !== undefined) return found;
    const tr = this.blank.cloneNode(true);
    const row = { tr, cells: [...tr.children], isStale: false, isSeen: false };
    row.tr.dataset.key = id;
    this.rows.set(id, row);
    this.#patch(row, this.items.get(id));
    this.sight.observe(row.tr);
    return row;
  }

  #patch(row, item) {
    row.isStale = false;
    this.columns.forEach((column, at) => {
      column.fill?.(row.cells[at], item);
      if (row.isSeen) column.draw?.(row.cells[at], item);
    });
  }

  #seen(entries) {
    for (const entry of entries) {
      const row = this.rows.get(entry.target.dataset.key);
      if (row === undefined) continue;
      row.isSeen = entry.isIntersecting;
      const item = this.items.get(entry.target.dataset.key);
      if (row.isSeen && item !== undefined) this.#patch(row, item);
    }
  }
}

const classOf = (column) =>
  [`c-${column.id}`, column.isNumber ? "number" : ""].filter(Boolean).join(" ");

// One of the links of a table's rows is in the tab order; arrows, j and k go on from there.
export class Roving {
  constructor(table, selector) {
    this.table = table;
    this.selector = selector;
    this.current = null;
    table.body.addEventListener("focusin", (event) => {
      const link = event.target.closest(selector);
      if (link !== null) this.#take(link);
    });
  }

  // Have one in the tab order, whichever rows there are.
  settle() {
    if (this.current?.isConnected) return;
    const first = this.table.body.querySelector(this.selector);
    if (first !== null) this.#take(first);
  }

  move(by) {
    const row = this.current?.isConnected ? this.current.closest("tr") : null;
    const isIn = row !== null && row.contains(document.activeElement);
    const next = isIn
      ? row[by > 0 ? "nextElementSibling" : "previousElementSibling"]
      : (row ?? this.table.body.firstElementChild);
    next?.querySelector(this.selector)?.focus();
  }

  #take(link) {
    if (this.current !== null && this.current !== link) this.current.tabIndex = -1;
    this.current = link;
    link.tabIndex = 0;
  }
}
