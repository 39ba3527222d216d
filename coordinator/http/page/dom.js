// Making and changing elements. Text is only ever set as text, so a name can't become markup.

const SVG = "http://www.w3.org/2000/svg";

// Make <tag>: `class`, `text` and attributes from `has`; functions are listeners ("onclick").
export function el(tag, has = {}, ...children) {
  return dressed(document.createElement(tag), has, children);
}

export function svg(tag, has = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), has, children);
}

function dressed(node, has, children) {
  for (const [name, value] of Object.entries(has)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Set what differs only: whoever has selected a number, or reads it aloud, is not disturbed.
export function setText(node, text) {
  const child = node.firstChild;
  if (child === null) {
    if (text !== "") node.textContent = text;
  } else if (child !== node.lastChild || child.nodeType !== Node.TEXT_NODE) {
    node.textContent = text;
  } else if (child.data !== text) {
    child.data = text;
  }
}

export function setAttribute(node, name, value) {
  if (value === null) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

// What only a screen reader says.
export const unseen = (text) => el("span", { class: "unseen", text });

// A sign for `tone`, which words beside it say as well.
export const dot = (tone) => el("span", { class: `dot ${tone}`, "aria-hidden": "true" });

// Have `cell` hold such a sign and its words.
export function setSign(cell, tone, text) {
  if (cell.firstChild === null) cell.append(dot(tone), el("span", { class: "label" }));
  setAttribute(cell.firstChild, "class", `dot ${tone}`);
  setText(cell.lastChild, text);
}

// Replace what `node` holds, if its `fingerprint` is another one than last time.
const drawn = new WeakMap();
export function redraw(node, fingerprint, draw) {
  if (drawn.get(node) === fingerprint) return;
  drawn.set(node, fingerprint);
  node.replaceChildren(...draw().filter((child) => child !== null));
}

// Do the steps of a generator in slices, so that typing and scrolling go on; returns a stop.
const SLICE_MS = 30;
export function inSlices(steps) {
  let timer = null;
  const slice = () => {
    const until = performance.now() + SLICE_MS;
    while (performance.now() < until) if (steps.next().done) return;
    timer = setTimeout(slice);
  };
  timer = setTimeout(slice);
  return () => clearTimeout(timer);
}
