// The whole story of one request: from its arrival to its end, or as far as it has come.

import { $, make, seconds, words } from "./dom.js";
import { passed, seen } from "./state.js";

// An access line that ended, as steps and facts.
export function story(one) {
  const arrived = Date.parse(one.time) - one.total_s * 1000;
  const steps = before(one);
  if (one.first_byte_s != null) steps.push([one.first_byte_s, "first byte"]);
  steps.push([one.total_s, `${words(one.outcome)} (${one.code}), status ${one.status}` + (one.cause ? `: ${one.cause}` : "")]);
  return told(one, steps, arrived, { bytes: `${one.bytes_in} in, ${one.bytes_out} out`,
    tokens: one.tokens_out == null ? null : `${one.tokens_in ?? "?"} in, ${one.tokens_out} out` });
}

// One that is under way.
function storySoFar(one) {
  const age = one.age_s + passed();
  const steps = before(one);
  if (one.first_byte_s != null) steps.push([one.first_byte_s, "first byte"]);
  steps.push([age, one.state === "queued" ? `waits at place ${one.place}` : one.first_byte_s == null ? "waits for the engine's first byte" : "is answered"]);
  return told(one, steps, Date.now() - age * 1000, {});
}

function before(one) {
  const came = one.came_at ?? (one.state ? null : one.place);
  const steps = [[0, `arrived: ${one.method} ${one.path} from ${one.client || "?"}` + (one.forwarded ? ` for ${one.forwarded}` : "")]];
  if (came != null) steps.push([0, `queued at place ${came}`]);
  if (one.held_s) steps.push([one.held_s, `held ${seconds(one.held_s)} for an engine that was ${one.wake || "not awake"}`]);
  if (one.replica) steps.push([one.waited_s, `granted${came == null ? " at once" : ` after ${seconds(one.waited_s)}`}, asked ${one.replica}`]);
  return steps;
}

function told(one, steps, arrived, more) {
  const at = (later) => new Date(arrived + later * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false });
  const facts = { request: one.request_id, model: one.model, upstream: one.upstream, "user agent": one.user_agent,
    key: one.key, slots: one.weight || null, ...more };
  return make("div", {},
    make("ol", {}, steps.map(([later, text]) => make("li", {}, make("time", {}, at(later)), ` ${text}`))),
    make("dl", {}, Object.entries(facts).filter(([, value]) => value != null)
      .map(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))])));
}

let shown = null;

export function showStory(id) {
  shown = id;
  drawStory();
  if (!$("story").open) $("story").showModal();
}

export function drawStory() {
  if (shown == null) return;
  const under = Object.values(seen.queues).flat().find((one) => one.request_id === shown);
  const ended = seen.requests.find((one) => one.request_id === shown);
  $("story-of").textContent = `Request ${shown}`;
  $("story-text").replaceChildren(ended ? story(ended) : under ? storySoFar(under)
    : make("p", {}, "It has ended, and its line is not among the last ones any more."));
}

$("story").addEventListener("close", () => { shown = null; });
