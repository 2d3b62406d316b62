// The page of a front door: one stream of events in, the views drawn once a frame at most.
// No library and no build step.

import { $, make, seconds } from "./dom.js";
import { changed, passed, seen, view } from "./state.js";
import { hasToken, headers, keepToken } from "./actions.js";
import { drawStory } from "./story.js";
import "./engines.js";
import "./requests.js";
import "./history.js";
import "./whatif.js";

const MOST_REQUESTS = 300;
let lastId = "";

view("config", () => {
  $("config-path").textContent = seen.path || "";
  $("settings").replaceChildren(...seen.config.map(([key, value, from]) => make("tr", { class: from },
    make("td", { class: "key" }, key), make("td", {}, value), make("td", {}, from))));
});

view("log", () => {
  const lines = seen.log.map((line) => make("span", { class: line.split(" ", 2)[1] }, `${line}\n`));
  $("lines").replaceChildren(...lines.length ? lines.reverse() : ["Nothing has been logged yet."]);
});

setInterval(() => {
  if (document.hidden || !seen.version) return;
  about();
  drawStory();
  changed("engines");
}, 1000);

function about() { $("about").textContent = `${seen.version}, up ${seconds(seen.uptime_s + passed())}`; }

// Events

const heard = {
  snapshot(data) {
    Object.assign(seen, data, { requests: data.requests || seen.requests, at: performance.now() });
    about();
    changed();
  },
  request(data) {
    seen.requests.push(data);
    if (seen.requests.length > MOST_REQUESTS) seen.requests.splice(0, seen.requests.length - MOST_REQUESTS);
    changed("requests");
  },
  engine(data) {
    const gone = passed();
    const now = { ...data };
    if (now.since_s != null) now.since_s -= gone;
    if (now.transition_s != null) now.transition_s -= gone;
    seen.engines[data.upstream] = { ...seen.engines[data.upstream], ...now };
    changed("engines");
  },
  queue(data) {
    for (const one of data.inside) one.age_s -= passed();
    seen.queues[data.upstream] = data.inside;
    changed("engines");
  },
  gpus(data) {
    for (const turn of data.now?.turns || []) turn.waits_s -= passed();
    seen.gpus = data.now;
    changed("engines");
  },
  cluster(data) { seen.cluster = data.now; changed("engines"); },
  config(data) { seen.config = data.config; changed("config"); },
  history(data) {
    const fresh = new Set(data.minutes.map((minute) => minute.minute));
    seen.history = [...seen.history.filter((minute) => !fresh.has(minute.minute)), ...data.minutes].slice(-720);
    changed("history");
  },
  log(data) { seen.log = [...seen.log, ...data.lines].slice(-200); changed("log"); },
};

function take(frame) {
  let event = "message", data = "";
  for (const line of frame.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
    else if (line.startsWith("id: ")) lastId = line.slice(4);
  }
  if (data && heard[event]) heard[event](JSON.parse(data));
}

function live(text, lost) { $("live").textContent = text; $("live").className = lost ? "lost" : ""; }

let stream = new AbortController();
addEventListener("pagehide", () => stream.abort());
addEventListener("pageshow", (event) => { if (event.persisted) listen(); });

async function listen() {
  stream = new AbortController();
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    try {
      // Not an EventSource: that cannot send the token.
      const answer = await fetch("admin/events", { headers: headers(lastId ? { "Last-Event-ID": lastId } : {}), cache: "no-store", signal: stream.signal });
      if (answer.status === 401 || answer.status === 429) return askToken(hasToken() ? "This is not the token." : "");
      if (!answer.ok) throw new Error((await answer.json()).error);
      live("live"); pause = 500;
      $("token").hidden = true;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const frames = (text + value).split("\n\n");
        text = frames.pop();
        frames.forEach(take);
      }
      live("the front door closed the stream", true);
    } catch (error) {
      if (stream.signal.aborted) return;
      live(`no connection: ${error.message}`, true);
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

function askToken(said) {
  live("a token is needed", true);
  $("token").hidden = false;
  $("token-said").textContent = said;
  $("token-word").focus();
}

$("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token-word").value.trim());
  listen();
});

// Views

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  // With a slash: no element is called that, so that none gets the focus when the page opens.
  history.replaceState(null, "", `#/${tab.getAttribute("aria-controls")}`);
  changed(tab.getAttribute("aria-controls"));
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    show(next);
    next.focus();
  });
}
const asked = tabs.find((tab) => `#/${tab.getAttribute("aria-controls")}` === location.hash);
if (asked) show(asked);
listen();
