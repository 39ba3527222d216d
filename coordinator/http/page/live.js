// What the daemon says: one question at a time, and the stream of what changes.

const RETRY_MS = [1000, 2000, 4000, 8000];
// The stream is never silent for more than two seconds, unless the other end or the way is gone
// without a word, of which no browser tells.
const SILENT_MS = 10_000;

// The coordinator answered, and not with what was asked for.
class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// Relative to the page, so that a proxy may put it anywhere.
export async function ask(path) {
  return answered(await fetch(path, { cache: "no-cache" }));
}

export async function post(path, said) {
  const headers = { "content-type": "application/json" };
  return answered(await fetch(path, { method: "POST", headers, body: JSON.stringify(said) }));
}

async function answered(response) {
  if (response.ok) return response.json();
  let detail = response.statusText;
  try {
    detail = (await response.json()).detail ?? detail;
  } catch {
    // It was not JSON, but a proxy's page.
  }
  throw new Problem(response.status, detail);
}

// In a path, a browser takes ".." for a step up, however it is encoded.
export const groupPath = (group, part = "", more = {}) =>
  `api/v1/group${part}?${new URLSearchParams({ group, ...more })}`;

// The event stream; comes back by itself, and says whether it is there.
//
// A browser has six connections to one address for all of its tabs, and without HTTP/2 each stream
// takes one: so a tab that nobody sees has none, or the seventh would wait for ever.
export class Live {
  // onState("live" | "lost"), onEvent(name, data); onRefused() when it was refused.
  constructor(onState, onEvent, onRefused) {
    this.onState = onState;
    this.onEvent = onEvent;
    this.onRefused = onRefused;
    this.group = null;
    this.source = null;
    this.failed = 0;
    this.timer = null;
    this.silence = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#rest() : this.#open()));
  }

  // Follow all groups, and *group* in detail if there is one; return the stream if it is a new one.
  watch(group) {
    if (this.source !== null && this.group === group) return null;
    this.group = group;
    if (document.hidden) return null;
    this.#open();
    return this.source;
  }

  #rest() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.source?.close();
    this.source = null;
  }

  #open() {
    this.#rest();
    const query = this.group === null ? "" : `?group=${encodeURIComponent(this.group)}`;
    const source = new EventSource(`api/v1/events${query}`);
    this.source = source;
    this.#heard();
    source.addEventListener("open", () => {
      this.failed = 0;
      this.onState("live");
    });
    source.addEventListener("error", () => {
      if (this.source !== source) return;
      this.onState("lost");
      // The browser tries again unless it was refused, as by a daemon that is full.
      if (source.readyState === EventSource.CLOSED) {
        const wait = RETRY_MS[Math.min(this.failed, RETRY_MS.length - 1)];
        this.failed += 1;
        this.timer = setTimeout(() => this.#open(), wait);
        this.onRefused();
      }
    });
    for (const name of ["hello", "groups", "group", "node", "minute", "beat"]) {
      source.addEventListener(name, (event) => {
        if (this.source !== source) return;
        this.#heard();
        this.onEvent(name, JSON.parse(event.data));
      });
    }
  }

  #heard() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.onState("lost");
      this.#open();
    }, SILENT_MS);
  }
}
