// The first view: every engine, what it does, who is inside, and what can be done about it.

import { $, count, make, seconds, table, words } from "./dom.js";
import { changed, passed, redraw, seen, view } from "./state.js";
import { cluster, gpus } from "./gpus.js";
import { ask } from "./actions.js";
import { showStory } from "./story.js";

const ASLEEP = ["sleeping", "offloaded", "stopped"];
const whoRuns = new Set();

// All of it in a line

function summary() {
  const engines = Object.values(seen.engines);
  if (!engines.length) return make("p", { class: "empty" }, "No upstream is configured.");
  const states = {};
  for (const engine of engines) states[engine.state] = (states[engine.state] || 0) + 1;
  const sum = (name) => engines.reduce((all, engine) => all + (engine[name] || 0), 0);
  const waiting = Object.values(seen.queues).flat().filter((one) => one.state === "queued");
  const oldest = waiting.length ? Math.max(...waiting.map((one) => one.age_s + passed())) : null;
  const figure = (value, label, kind) => make("div", { class: kind }, make("dt", {}, label), make("dd", {}, value));
  return make("dl", { class: "summary" },
    figure(Object.entries(states).map(([state, number]) => `${number} ${words(state)}`).join(", "), "engines"),
    figure(String(sum("in_flight")), "in flight"),
    figure(String(sum("queued")), "waiting"),
    figure(oldest == null ? "–" : seconds(oldest), "oldest wait"));
}

// One engine

function slots(name, engine) {
  const { in_flight: busy, cooling = 0, cap, slots: all } = engine;
  const told = (cap == null ? `${busy} in flight, no cap` : `${busy} in flight of a cap of ${cap}`) +
    (cooling ? `, ${cooling} cooling` : "") + (all ? `; the engine has ${all} slots` : "");
  if (cap == null) return make("p", { class: "small" }, told);
  const drawn = make("div", { class: "slots", role: "img", "aria-label": told });
  for (let place = 0; place < Math.min(Math.max(cap, all || 0), 256); place++) {
    const kind = place < busy ? "busy" : place < busy + cooling ? "cooling" : place < cap ? "free" : "reserve";
    drawn.append(make("i", { class: kind }));
  }
  return make("div", {}, drawn, make("p", { class: "small" }, told));
}

function people(caption, inside, first, name) {
  const rows = inside.map((one) => [
    first(one), seconds(one.age_s + passed()), one.model, one.surface,
    make("button", { class: "link", "data-at": `who ${one.request_id}`, title: "its story so far",
      onclick: () => showStory(one.request_id) }, one.forwarded || one.client || "?"),
  ]);
  return make("div", { class: "people", "data-scroll": `${caption} ${name}` },
    table(`${caption} ${name}`, [["", "n"], ["age", "n"], ["model"], ["dialect"], ["client", "client"]], rows));
}

function inFlight(name, engine) {
  const running = (seen.queues[name] || []).filter((one) => one.state !== "queued");
  const isOpen = whoRuns.has(name);
  const toggle = make("button", { class: "link", "aria-expanded": String(isOpen), "data-at": `runs ${name}`,
    "aria-label": `Who is in flight at ${name}`,
    onclick: () => { if (!whoRuns.delete(name)) whoRuns.add(name); changed("engines"); } },
    isOpen ? "hide who" : "who?");
  return [make("h3", {}, "In flight ", running.length ? toggle : null), slots(name, engine),
    isOpen && running.length ? people("In flight at", running, () => "", name) : null];
}

function queue(name, engine) {
  const waiting = (seen.queues[name] || []).filter((one) => one.state === "queued");
  if (!engine.queued) return [make("h3", {}, "Queue"), make("p", { class: "small" }, "nobody waits")];
  const oldest = Math.max(engine.oldest_wait_s || 0, ...waiting.map((one) => one.age_s + passed()));
  const limit = engine.queue == null ? "" : ` of ${engine.queue} places`;
  const full = engine.queue != null && engine.queued >= engine.queue;
  return [make("h3", {}, "Queue"),
    make("p", { class: full ? "small note" : "small" },
      `${engine.queued}${limit} taken, the oldest waits ${seconds(oldest)}${full ? "; who comes now is refused" : ""}`),
    waiting.length ? people("Queue before", waiting, (one) => String(one.place), name)
      : make("p", { class: "small" }, "They wait at other front doors.")];
}

function steps(engine) {
  if (!engine.wake_step || !engine.wake_steps.length) return null;
  const depth = engine.sleep_depth;
  const about = engine.state === "waking" ? (engine.estimated_wake_seconds || {})[depth] : null;
  const since = engine.transition_s == null ? 0 : engine.transition_s + passed();
  const at = engine.wake_steps.indexOf(engine.wake_step);
  const list = make("ol", { class: "steps", "aria-label": "Steps" },
    engine.wake_step === "gpu" ? make("li", { class: "now", "aria-current": "step" }, "its turn on the GPU") : null,
    engine.wake_steps.map((step, place) => make("li", {
      class: place < at ? "done" : place === at ? "now" : "", "aria-current": place === at ? "step" : null,
    }, words(step))));
  const wakes = engine.state === "waking";
  const took = about == null ? `${seconds(since)} so far` : `${seconds(since)} of about ${seconds(about)}`;
  return make("div", {}, make("h3", {}, wakes ? `Wake: ${took}` : `Going to sleep: ${seconds(since)} so far`),
    about == null ? null : make("div", { class: "bar thin", role: "img", "aria-label": took },
      make("i", { class: "waking", width: `${Math.min(100, 100 * since / about)}%` })), list);
}

function replicas(name, engine) {
  if (!engine.replicas?.length) return null;
  const act = (verb, label, question, one, more, done) => make("button", {
    "data-at": `${verb} ${name} ${one.url}`, "aria-label": `${label} ${one.url}`,
    onclick: () => ask(question, label,
      `admin/${verb}/${encodeURIComponent(name)}?replica=${encodeURIComponent(one.url)}${more}`, done),
  }, label);
  const drain = (one) => one.drained
    ? act("drain", "Use", `Send requests to ${one.url} again?`, one, "&undo=true", () => `${one.url} is used again`)
    : act("drain", "Drain", `Send nobody new to ${one.url}? What it has runs to its end.`, one, "", () => `${one.url} is drained`);
  // One that sleeps by itself says how deep.
  const move = (one) => one.sleep_depth === undefined ? null
    : one.sleep_depth === null ? act("sleep", "Sleep", `Put ${one.url} to sleep?`, one, "", null)
      : act("wake", "Wake", `Wake ${one.url} now?`, one, "", null);
  const step = (one) => (one.wake_step ? ` ${one.wake_step === "gpu" ? "waits for its GPU" : words(one.wake_step)}` : "") +
    (one.drained && one.state !== "drained" ? " drained" : "");
  return [make("h3", {}, "Replicas"), table(`Replicas of ${name}`,
    [["address"], ["state"], ["slots", "n"], ["", "n"]],
    engine.replicas.map((one) => [one.url,
      make("span", {}, make("span", { class: `pill ${one.state}` }, words(one.state)), step(one)),
      `${one.taken} of ${one.slots}`, make("span", { class: "buttons" }, move(one), drain(one))]))];
}

function trouble(engine) {
  const told = [
    engine.waits_for && `waits for ${engine.waits_for}`,
    engine.makes_room && "makes room on its GPUs for another: nobody is admitted, those in flight run to their end",
    engine.sleep_fault,
  ].filter(Boolean);
  return told.map((text) => make("p", { class: "small note" }, text));
}

const HOLDS = { pin: "pinned", keep: "kept awake", asleep: "kept asleep: no request wakes it" };

// What holds it awake or asleep: the first counts, and shows when it ends.
function orders(engine) {
  return (engine.orders || []).map((one) => make("p", { class: "small" },
    make("b", {}, HOLDS[one.kind] || words(one.kind)), ` ${one.replica ? `at ${one.replica} ` : ""}by ${words(one.owner)}${one.by ? ` (${one.by})` : ""}, ` +
    (one.left_s == null ? "for good" : `for ${seconds(Math.max(0, one.left_s - passed()))} more`)));
}

function facts(engine) {
  const learned = Object.entries(engine.estimated_wake_seconds || {})
    .filter(([, value]) => value != null).map(([depth, value]) => `${seconds(value)} from ${depth}`);
  return make("p", { class: "small" }, count(engine.wakes_total, "wake") +
    (learned.length ? `, one takes about ${learned.join(", ")}` : ""));
}

const FOR_HOW_LONG = [["1h", "for an hour"], ["8h", "for 8 hours"], ["24h", "for a day"]];

function buttons(name, engine) {
  const act = (verb, label, question, off, lengths) => make("button", {
    disabled: off, "aria-label": `${label} ${name}`, "data-at": `${verb} ${name}`,
    onclick: () => ask(question, label, `admin/${verb}/${encodeURIComponent(name)}`, null, lengths),
  }, label);
  const all = engine.replicas?.length ? engine.replicas : [engine];
  const settled = all.every((one) => ["awake", "waking"].includes(one.state));
  const held = (engine.orders || []).some((one) => one.owner === "operator" && one.kind !== "asleep");
  return make("p", { class: "buttons" },
    held ? act("unpin", "Unpin", `End what holds ${name} awake? Its idle time counts again, and it makes room for others.`)
      : act("pin", "Pin", `Pin ${name}? Neither idle time nor another engine's need puts it to sleep.`, false,
        [["", "until somebody unpins it"], ...FOR_HOW_LONG]),
    act("wake", "Wake", `Wake ${name} now?`, settled),
    act("sleep", "Sleep", `Put ${name} to sleep?`, all.every((one) => ASLEEP.includes(one.state)) || engine.in_flight > 0,
      [["", "until the next request"], ...FOR_HOW_LONG]));
}

// Models, where they do not just have the name of their upstream.
function models(name, engine) {
  if (!engine.models.length) return "no model · ";
  return engine.models.join() === name ? "" : `${engine.models.join(", ")} · `;
}

function card(name, engine) {
  const sleeps = engine.sleep_support !== false && engine.can_sleep;
  return make("article", { class: "card", "data-engine": name, "aria-label": name },
    make("header", {}, make("h2", {}, name),
      make("span", { class: `pill ${engine.state}` }, words(engine.state)),
      make("span", { class: "since" }, engine.since_s == null ? "" : `for ${seconds(engine.since_s + passed())}`)),
    make("p", { class: "small" }, models(name, engine), engine.url),
    trouble(engine), orders(engine), steps(engine), inFlight(name, engine), queue(name, engine), replicas(name, engine),
    sleeps ? make("footer", {}, facts(engine), buttons(name, engine)) : null);
}

view("engines", () => redraw($("engines"), [summary(), cluster(), gpus(),
  make("div", { class: "cards" }, Object.entries(seen.engines).map(([name, engine]) => card(name, engine)))]));
