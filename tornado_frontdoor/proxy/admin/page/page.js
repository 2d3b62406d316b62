// The page of a front door: one stream of events in, the view drawn once a frame at most.
// No library and no build step. Everything that comes from outside goes in as text, never as HTML.
"use strict";

const MOST_REQUESTS = 300;
const seen = { engines: {}, queues: {}, requests: [], log: [], history: [], config: [], at: 0 };
const open = new Set();
let lastId = "", held = false, token = sessionStorage.getItem("frontdoor-token") || "";
const $ = (id) => document.getElementById(id);

// Making elements

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

function seconds(value) {
  if (value == null) return "–";
  if (value < 0.001) return "<1 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

const words = (name) => name.replaceAll("_", " ");
const clock = (time) => new Date(time).toLocaleTimeString();

// Engines

function slots(engine) {
  const { in_flight: busy, cooling = 0, cap, slots: all } = engine;
  if (cap == null) return make("p", { class: "small" }, `${busy} in flight, no cap`);
  const told = `${busy} in flight of a cap of ${cap}` + (cooling ? `, ${cooling} cooling` : "") +
    (all ? `; the engine has ${all} slots` : "");
  const drawn = make("div", { class: "slots", role: "img", "aria-label": told });
  for (let place = 0; place < Math.min(Math.max(cap, all || 0), 256); place++) {
    const kind = place < busy ? "busy" : place < busy + cooling ? "cooling" : place < cap ? "free" : "reserve";
    drawn.append(make("i", { class: kind }));
  }
  return make("div", {}, drawn, make("p", { class: "small" }, told));
}

function queue(name, engine) {
  const inside = seen.queues[name] || [];
  const waiting = inside.filter((one) => one.state === "queued");
  const passed = (performance.now() - seen.at) / 1000;
  if (!engine.queued) return make("p", { class: "small" }, "nobody waits");
  const list = make("ol", { class: "queue" });
  for (const one of waiting) {
    list.append(make("li", { value: one.place },
      `${seconds(one.age_s + passed)} · ${one.model} · ${one.surface} · ${one.client || "?"}`));
  }
  const oldest = Math.max(0, ...waiting.map((one) => one.age_s + passed));
  const limit = engine.queue == null ? "" : ` of ${engine.queue} places`;
  return make("div", {}, make("p", { class: "small" }, `${engine.queued}${limit} taken, the oldest waits ${seconds(oldest)}`), list);
}

function engineCard(name, engine) {
  const passed = (performance.now() - seen.at) / 1000;
  const step = engine.wake_step ? ` (${words(engine.wake_step)})` : "";
  const estimates = Object.entries(engine.estimated_wake_seconds || {})
    .filter(([, value]) => value != null).map(([depth, value]) => `from ${depth} ${seconds(value)}`);
  const sleeps = engine.sleep_support !== false && engine.can_sleep;
  const act = (verb, label, question, off) => make("button", {
    disabled: off, "aria-label": `${label} ${name}`,
    onclick: () => ask(question, label, `admin/${verb}/${encodeURIComponent(name)}`),
  }, label);
  const asleep = ["sleeping", "offloaded", "stopped"].includes(engine.state);
  return make("article", { class: "card", "data-engine": name },
    make("header", {}, make("h2", {}, name),
      make("span", { class: `pill ${engine.state}` }, words(engine.state) + step),
      make("span", { class: "since" }, engine.since_s == null ? "" : `for ${seconds(engine.since_s + passed)}`)),
    make("p", { class: "small" }, `${engine.models.join(", ")} at ${engine.url}`),
    engine.waits_for ? make("p", { class: "small" }, `waits for ${engine.waits_for}`) : null,
    engine.makes_room ? make("p", { class: "small" }, "makes room on its GPUs for another") : null,
    engine.sleep_fault ? make("p", { class: "small" }, engine.sleep_fault) : null,
    make("h3", {}, "In flight"), slots(engine),
    make("h3", {}, "Queue"), queue(name, engine),
    sleeps ? make("p", { class: "small" }, `${engine.wakes_total} wakes` + (estimates.length ? `, about ${estimates.join(", ")}` : "")) : null,
    sleeps ? make("p", { class: "buttons" },
      act("wake", "Wake", `Wake ${name} now?`, engine.state === "awake" || engine.wake_in_progress),
      act("sleep", "Sleep", `Put ${name} to sleep? It wakes for the next request.`, asleep || engine.in_flight > 0)) : null);
}

function drawEngines() {
  const focused = document.activeElement && document.activeElement.getAttribute("aria-label");
  const scrolled = Object.fromEntries([...document.querySelectorAll(".card")].map((card) =>
    [card.dataset.engine, card.querySelector(".queue")?.scrollTop]));
  $("engines").replaceChildren(...Object.entries(seen.engines).map(([name, engine]) => engineCard(name, engine)));
  for (const card of document.querySelectorAll(".card")) {
    const list = card.querySelector(".queue");
    if (list && scrolled[card.dataset.engine]) list.scrollTop = scrolled[card.dataset.engine];
  }
  if (focused) $("engines").querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

// Requests

function kind(outcome) {
  if (outcome === "served") return "served";
  return outcome.startsWith("client_gone") || outcome.startsWith("queue") || outcome === "model_waking" ? "late" : "bad";
}

function story(one) {
  const at = (later) => new Date(Date.parse(one.time) - (one.total_s - later) * 1000).toLocaleTimeString([], { fractionalSecondDigits: 3 });
  const steps = [[0, `arrived: ${one.method} ${one.path} from ${one.client || "?"}` + (one.forwarded ? ` for ${one.forwarded}` : "")]];
  if (one.place != null) steps.push([0, `queued at place ${one.place}`]);
  if (one.held_s) steps.push([one.held_s, `held ${seconds(one.held_s)} for an engine that was ${one.wake || "not awake"}`]);
  if (one.replica) steps.push([one.waited_s, `granted after ${seconds(one.waited_s)}, asked ${one.replica}`]);
  if (one.first_byte_s != null) steps.push([one.first_byte_s, "first byte"]);
  steps.push([one.total_s, `${words(one.outcome)} (${one.code}), status ${one.status}` + (one.cause ? `: ${one.cause}` : "")]);
  const more = { request: one.request_id, "user agent": one.user_agent, key: one.key,
    bytes: `${one.bytes_in} in, ${one.bytes_out} out`, slots: one.weight };
  return make("div", {},
    make("ol", {}, ...steps.map(([later, text]) => make("li", {}, `${at(later)} ${text}`))),
    make("dl", {}, ...Object.entries(more).filter(([, value]) => value != null)
      .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))])));
}

function wanted(one) {
  const outcome = $("by-outcome").value, model = $("by-model").value.toLowerCase(), client = $("by-client").value;
  if (outcome === "!served" ? one.outcome === "served" : outcome && one.outcome !== outcome) return false;
  if (model && !`${one.model} ${one.upstream}`.toLowerCase().includes(model)) return false;
  return !client || `${one.client} ${one.forwarded} ${one.user_agent} ${one.key}`.includes(client);
}

function row(one) {
  const id = one.request_id, isOpen = open.has(id);
  const toggle = make("button", { "aria-expanded": String(isOpen), "data-id": id, onclick: () => {
    if (!open.delete(id)) open.add(id);
    drawRequests();
    document.querySelector(`[data-id="${id}"]`)?.focus();
  } }, clock(one.time));
  const tokens = one.tokens_out == null ? "–" : `${one.tokens_in ?? "?"} → ${one.tokens_out}`;
  const cells = make("tr", {}, make("td", {}, toggle),
    make("td", {}, make("span", { class: `pill ${kind(one.outcome)}` }, words(one.outcome))),
    make("td", { class: "model" }, one.model || one.path), make("td", { class: "client" }, one.forwarded || one.client || ""),
    make("td", { class: "n" }, one.place == null ? "–" : seconds(one.waited_s)),
    make("td", { class: "n" }, seconds(one.first_byte_s)), make("td", { class: "n" }, seconds(one.total_s)),
    make("td", { class: "n" }, tokens), make("td", { class: "why" }, one.cause || ""));
  return isOpen ? [cells, make("tr", { class: "story" }, make("td", { colspan: 9 }, story(one)))] : [cells];
}

function drawRequests() {
  const known = new Set([...$("by-outcome").options].map((option) => option.value));
  for (const one of seen.requests) {
    if (known.has(one.outcome)) continue;
    known.add(one.outcome);
    $("by-outcome").append(make("option", { value: one.outcome }, words(one.outcome)));
  }
  const focused = document.activeElement && document.activeElement.dataset.id;
  const shown = seen.requests.filter(wanted).slice(-100).reverse();
  $("rows").replaceChildren(...shown.flatMap(row));
  $("shown").textContent = `${shown.length} of ${seen.requests.length}`;
  if (focused) document.querySelector(`[data-id="${focused}"]`)?.focus();
}

// History

function chart(title, unit, lines, minutes) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (String(value).startsWith("var(")) element.style.setProperty(name, value);
      else element.setAttribute(name, value);
    }
    if (text != null) element.textContent = text;
    svg.append(element);
  };
  const W = 600, H = 150, first = minutes[0].minute, span = Math.max(10, minutes.at(-1).minute - first);
  const most = Math.max(unit === "s" ? 0.1 : 4, ...lines.flatMap(([name]) => minutes.map((minute) => minute[name] || 0)));
  const x = (minute) => 44 + (W - 50) * (minute.minute - first) / span;
  const y = (value) => H - 22 - (H - 34) * value / most;
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("role", "img");
  const told = lines.map(([name, label]) => `${label} at most ${+Math.max(...minutes.map((m) => m[name] || 0)).toPrecision(3)} ${unit}`).join(", ");
  svg.setAttribute("aria-label", `${title}: ${told}`);
  for (const value of [0, most / 2, most]) {
    draw("line", { x1: 44, x2: W - 6, y1: y(value), y2: y(value), stroke: "var(--line)" });
    draw("text", { x: 38, y: y(value) + 4, "text-anchor": "end", class: "axis" }, +value.toPrecision(2));
  }
  const time = (minute) => new Date(minute.minute * 60000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  draw("text", { x: 44, y: H - 4, class: "axis" }, time(minutes[0]));
  draw("text", { x: x(minutes.at(-1)), y: H - 4, "text-anchor": minutes.length > 5 ? "end" : "start", class: "axis" }, minutes.length > 1 ? time(minutes.at(-1)) : "");
  for (const [name, , color] of lines) {
    const points = minutes.map((minute) => `${x(minute).toFixed(1)},${y(minute[name] || 0).toFixed(1)}`);
    draw("polyline", { points: points.join(" "), fill: "none", stroke: color, "stroke-width": 2, "stroke-linejoin": "round" });
    if (points.length === 1) draw("circle", { cx: x(minutes[0]), cy: y(minutes[0][name] || 0), r: 3, fill: color });
  }
  return make("figure", {}, make("figcaption", {}, make("b", {}, title),
    ...lines.map(([, label, color]) => {
      const key = make("span", {}, label);
      key.style.setProperty("--of", color);
      return key;
    })), svg);
}

function drawHistory() {
  if (!seen.history.length) return;
  $("history").replaceChildren(
    chart("Requests a minute", "", [["arrivals", "all", "var(--ink)"], ["served", "served", "var(--green)"], ["refused", "refused or failed", "var(--red)"], ["left", "left", "var(--amber)"]], seen.history),
    chart("Waits in the queue of those served", "s", [["wait_p95_s", "95 %", "var(--amber)"], ["wait_p50_s", "median", "var(--blue)"]], seen.history),
    chart("At once, at most", "", [["in_flight", "in flight", "var(--blue)"], ["queued", "queued", "var(--amber)"]], seen.history),
    chart("Engines fell asleep", "", [["sleeps", "sleeps", "var(--blue)"]], seen.history));
}

function drawConfig() {
  $("config-path").textContent = seen.path || "";
  $("settings").replaceChildren(...seen.config.map(([key, value, from]) => make("tr", {},
    make("td", { class: "key" }, key), make("td", {}, value), make("td", {}, from))));
}

function drawLog() { $("lines").textContent = seen.log.join("\n") || "nothing yet"; }

// Once a frame

const draws = { engines: drawEngines, requests: drawRequests, history: drawHistory, config: drawConfig, log: drawLog };
const dirty = new Set();
let due = false;

function changed(...names) {
  for (const name of names) dirty.add(name);
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    for (const name of [...dirty]) {
      if ($(name).hidden || (name === "requests" && held)) continue;
      dirty.delete(name);
      draws[name]();
    }
  });
}

setInterval(() => {
  if (document.hidden || !seen.version) return;
  $("about").textContent = `${seen.version}, up ${seconds(seen.uptime_s + (performance.now() - seen.at) / 1000)}`;
  changed("engines");
}, 1000);

// Events

const heard = {
  snapshot(data) {
    Object.assign(seen, data, { requests: data.requests || seen.requests, at: performance.now() });
    $("about").textContent = `${data.version}, up ${seconds(data.uptime_s)}`;
    changed(...Object.keys(draws));
  },
  request(data) {
    seen.requests.push(data);
    if (seen.requests.length > MOST_REQUESTS) seen.requests.splice(0, seen.requests.length - MOST_REQUESTS);
    changed("requests");
  },
  engine(data) {
    seen.engines[data.upstream] = { ...seen.engines[data.upstream], ...data };
    changed("engines");
  },
  queue(data) {
    const passed = (performance.now() - seen.at) / 1000;
    for (const one of data.inside) one.age_s -= passed;
    seen.queues[data.upstream] = data.inside;
    changed("engines");
  },
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

function headers(more) {
  return { "X-Frontdoor-Admin": "page", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
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
      if (answer.status === 401 || answer.status === 429) return askToken(token ? "This is not the token." : "");
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
  token = $("token-word").value.trim();
  sessionStorage.setItem("frontdoor-token", token);
  listen();
});

// Acting

function ask(question, label, path) {
  $("ask-what").textContent = question;
  $("ask-yes").textContent = label;
  $("ask").onclose = () => { if ($("ask").returnValue === "yes") act(path); };
  $("ask").returnValue = "no";
  $("ask").showModal();
}

async function act(path) {
  say("asked");
  try {
    const answer = await fetch(path, { method: "POST", headers: headers() });
    const told = await answer.json();
    say(answer.ok ? `${told.upstream} is ${words(told.state)}` : told.error);
  } catch (error) {
    say(`no answer: ${error.message}`);
  }
}

let saidTimer = 0;
function say(text) {
  $("said").textContent = text;
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => { $("said").textContent = ""; }, 8000);
}

// Views

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
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
$("filter").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["by-outcome", "by-model", "by-client"]) $(id).addEventListener("input", drawRequests);
$("pause").addEventListener("click", () => {
  held = !held;
  $("pause").setAttribute("aria-pressed", String(held));
  $("pause").textContent = held ? "Go on" : "Hold still";
  if (!held) changed("requests");
});
const asked = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
if (asked) show(asked);
listen();
