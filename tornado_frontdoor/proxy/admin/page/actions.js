// Doing something: asked back first, and sent with the header that no form of another site can send.

import { $, words } from "./dom.js";

let token = sessionStorage.getItem("frontdoor-token") || "";

export const hasToken = () => Boolean(token);

export function keepToken(word) {
  token = word;
  sessionStorage.setItem("frontdoor-token", token);
}

export function headers(more) {
  return { "X-Frontdoor-Admin": "page", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
}

export function ask(question, label, path, done) {
  $("ask-what").textContent = question;
  $("ask-yes").textContent = label;
  $("ask").onclose = () => { if ($("ask").returnValue === "yes") act(path, done); };
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
