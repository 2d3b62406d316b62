// Doing something: asked back first, and sent with the header that no form of another site can send.

import { $, make, words } from "./dom.js";

let token = sessionStorage.getItem("frontdoor-token") || "";

export const hasToken = () => Boolean(token);

export function keepToken(word) {
  token = word;
  sessionStorage.setItem("frontdoor-token", token);
}

export function headers(more) {
  return { "X-Frontdoor-Admin": "page", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
}

// `lengths`: for how long, as pairs of what is sent and what is read; "" sends nothing.
export function ask(question, label, path, done, lengths = []) {
  $("ask-what").textContent = question;
  $("ask-yes").textContent = label;
  $("ask-for").hidden = !lengths.length;
  $("ask-length").replaceChildren(...lengths.map(([value, told]) => make("option", { value }, told)));
  $("ask").onclose = () => {
    const length = lengths.length ? $("ask-length").value : "";
    if ($("ask").returnValue === "yes") act(length ? `${path}?for=${length}` : path, done);
  };
  $("ask").returnValue = "no";
  $("ask").showModal();
}

async function act(path, done) {
  say("asked");
  try {
    const answer = await fetch(path, { method: "POST", headers: headers() });
    const told = await answer.json();
    say(!answer.ok ? told.error : done ? done(told) : `${told.upstream} is ${words(told.state)}`);
  } catch (error) {
    say(`no answer: ${error.message}`);
  }
}

let saidTimer = 0;

export function say(text) {
  $("said").textContent = text;
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => { $("said").textContent = ""; }, 8000);
}
