// The page: which view is shown, what every view shares, and the keys.

import { dot, el, redraw, setAttribute, setText } from "./dom.js";
import { Live, ask, post } from "./live.js";
import { Group } from "./group.js";
import { Groups } from "./groups.js";
import { Node } from "./node.js";
import { capital, clockTime, counted, nameOf, visible, wrongOf } from "./words.js";

const SAY_MS = 400;
const LOST_MS = 700; // A blink of the network is no news.
const AGAIN_MS = 2000;

const byId = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.content = byId("content");
    this.view = null;
    this.groups = null;
    this.skewMs = 0;
    this.heardAt = null;
    this.isLost = false;
    this.lostTimer = null;
    this.lookTimer = null;
    this.sayTimer = null;
    this.problem = "";
    this.isForbidden = false; // The problem is that one may not see it.
    this.wrong = []; // What the node finds wrong with itself.
    this.now = () => Date.now() + this.skewMs;
    this.live = new Live(
      (state) => this.#connection(state),
      (name, data) => this.#event(name, data),
      () => this.#whoAsks(), // A stream doesn't say why: maybe the log-in has ended.
    );
  }

  start() {
    window.addEventListener("hashchange", () => this.route());
    document.addEventListener("keydown", (event) => this.#key(event));
    byId("show-keys").addEventListener("click", () => byId("keys").showModal());
    byId("log-out").addEventListener("click", () => this.#logOut());
    this.#whoAsks();
    this.route();
  }

  // Who looks, where the coordinator asks; who has logged in here can log out.
  async #whoAsks() {
    try {
      const { principal, by } = await ask("api/v1/session");
      setText(byId("who"), principal ?? "");
      byId("log-out").hidden = by !== "cookie";
    } catch (problem) {
      if (problem.status === 401) this.#toLogIn();
    }
  }

  async #logOut() {
    try {
      await post("api/v1/logout", {});
    } catch {
      return; // Who can't be reached, says so by the stream.
    }
    this.#toLogIn();
  }

  #toLogIn() {
    location.assign(`page/login.html${location.hash}`);
  }

  // The address says what is shown, so it can be sent to somebody.
  route() {
    const [path, asked = ""] = location.hash.split("?", 2);
    const [, where = "", name = ""] = path.split("/");
    const from = this.view;
    let view;
    let group = null;
    if (where === "groups" && name !== "") {
      group = decoded(name);
      view = new Group(this, group);
    } else if (where === "node") {
      view = new Node(this);
    } else {
      this.groups ??= new Groups(this);
      view = this.groups;
      view.wanted(new URLSearchParams(asked));
    }
    setAttribute(byId("to-groups"), "href", view === this.groups ? "#/" : this.groupsAddress);
    if (view === from) return;
    if (this.isForbidden) this.answered();
    from?.close();
    this.view = view;
    this.content.replaceChildren(view.node);
    document.title = `${view.title} · group coordinator`;
    for (const link of document.querySelectorAll("nav a")) {
      const isHere = link.dataset.view === (where === "node" ? "node" : "groups");
      setAttribute(link, "aria-current", isHere ? (group === null ? "page" : "true") : null);
    }
    view.open(this.live.watch(group));
    if (from === null) return;
    if (from instanceof Group && view === this.groups && view.focusOn(from.id)) return;
    window.scrollTo(0, 0);
    byId("title")?.focus({ preventScroll: true });
  }

  // All groups, as they were last looked at.
  get groupsAddress() {
    return this.groups?.address ?? "#/";
  }

  // Tell a screen reader; `saySoon` waits until typing has paused.
  say(text) {
    clearTimeout(this.sayTimer);
    setText(byId("said"), text);
  }

  saySoon(text) {
    clearTimeout(this.sayTimer);
    this.sayTimer = setTimeout(() => setText(byId("said"), text), SAY_MS);
  }

  answered() {
    this.heardAt = this.now();
    if (this.problem !== "") {
      this.problem = "";
      this.#notice();
    }
  }

  failed(problem) {
    // Without an answer the stream is lost as well, and says so.
    if (problem.status === undefined) return;
    if (problem.status === 401) {
      this.#toLogIn();
      return;
    }
    this.isForbidden = problem.status === 403;
    this.problem = problem.message;
    this.#notice();
    if (!this.isForbidden) this.#askAgain();
  }

  #askAgain() {
    clearTimeout(this.lookTimer);
    this.lookTimer = setTimeout(() => this.view.load(), AGAIN_MS);
  }

  #event(name, data) {
    this.heardAt = this.now();
    if (name === "hello") this.skewMs = Date.parse(data.as_of) - Date.now();
    if (name === "node") {
      this.#checked(data.checks);
      this.#elsewhere(data.others);
    }
    this.view.onEvent(name, data);
  }

  // What is wrong with the node is told whatever is looked at.
  #checked(checks) {
    const wrong = checks.filter((check) => !check.ok).map(wrongOf);
    if (wrong.join() === this.wrong.join()) return;
    if (this.wrong.length === 0) this.say("The coordinator is not well");
    this.wrong = wrong;
    this.#notice();
  }

  // A node of a cluster has the groups that it leads, and nobody should take them for all.
  #elsewhere(others) {
    const line = byId("elsewhere");
    line.hidden = others.length === 0;
    redraw(line, JSON.stringify(others), () => [
      "This node shows the groups that it leads. ",
      ...others.flatMap((other, n) => [
        n > 0 ? ", " : "",
        `${n > 0 ? "node" : "Node"} ${other.node_id} at `,
        nameOf(other.address),
        other.ready ? ` leads ${counted(other.partitions, "partition")}` : " is not ready",
      ]),
      ".",
    ]);
  }

  #connection(state) {
    if (state === "live") {
      clearTimeout(this.lostTimer);
      this.lostTimer = null;
      if (this.isLost) this.say("Connected again");
      this.isLost = false;
      this.#notice();
      this.#state("live");
    } else if (this.lostTimer === null) {
      this.lostTimer = setTimeout(() => {
        this.isLost = true;
        this.wrong = [];
        this.#state("lost");
        this.#notice();
        this.say("Connection lost");
      }, LOST_MS);
    }
  }

  #state(state) {
    const tone = state === "live" ? "ok" : "wrong";
    redraw(byId("link-state"), state, () => [
      dot(tone),
      el("span", { text: state === "live" ? "live" : "not connected" }),
    ]);
    document.body.classList.toggle("lost", state !== "live");
  }

  #notice() {
    const notice = byId("notice");
    const texts = this.wrong.map((text) => `${capital(text)}.`);
    const of = this.heardAt === null ? "" : ` What is shown is of ${clockTime(this.heardAt)}.`;
    if (this.problem !== "" && this.isForbidden) {
      texts.push(`This is not shown to you: ${visible(this.problem)}.`);
    } else if (this.problem !== "") {
      texts.push(`The coordinator can’t tell yet: ${visible(this.problem)}.${of}`);
    } else if (this.isLost) {
      texts.push(`The coordinator can’t be reached; the page tries on.${of}`);
    }
    notice.hidden = texts.length === 0;
    redraw(notice, texts.join(""), () => texts.map((text) => el("p", { text })));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, select, textarea, dialog") !== null) return;
    if (this.view.onKey?.(event)) event.preventDefault();
    else if (event.key === "g") location.hash = this.view === this.groups ? "#/" : this.groupsAddress;
    else if (event.key === "n") location.hash = "#/node";
    else if (event.key === "?") byId("keys").showModal();
    else if (event.key === "/" && this.view !== this.groups) {
      location.hash = this.groupsAddress;
      event.preventDefault();
      requestAnimationFrame(() => byId("filter")?.focus());
    }
  }
}

// A name that was not encoded as it should be is taken as it stands.
function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

new Page().start();
