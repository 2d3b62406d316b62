// What is known, and who is drawn anew when it changes: once a frame at most, and only what is seen.

import { $ } from "./dom.js";

export const seen = {
  engines: {}, queues: {}, requests: [], log: [], history: [], config: [], gpus: null, cluster: null,
  at: 0, uptime_s: 0, version: "",
};

export const passed = () => (performance.now() - seen.at) / 1000;

const draws = {};
const dirty = new Set();
let due = false;

// A view of that name is drawn by `draw`; `held` says whether it is to stay as it is for now.
export function view(name, draw, held) { draws[name] = { draw, held: held || (() => false) }; }

export function changed(...names) {
  for (const name of names.length ? names : Object.keys(draws)) dirty.add(name);
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    for (const name of [...dirty]) {
      if ($(name).hidden || draws[name].held()) continue;
      dirty.delete(name);
      draws[name].draw();
    }
  });
}

// Put new elements into a place that is drawn anew; whoever had the focus in it has it again.
export function redraw(place, elements) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.at : null;
  const scrolled = [...place.querySelectorAll("[data-scroll]")].map((one) => [one.dataset.scroll, one.scrollTop]);
  place.replaceChildren(...elements.filter((one) => one != null));
  for (const [name, top] of scrolled) {
    const one = top && place.querySelector(`[data-scroll="${CSS.escape(name)}"]`);
    if (one) one.scrollTop = top;
  }
  if (focused) place.querySelector(`[data-at="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}
