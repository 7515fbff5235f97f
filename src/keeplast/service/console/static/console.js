// The console's only script. Everything works without it: pages then reload by themselves.
"use strict";

const enter = document.getElementById("enter");
function takeLink() {
  if (location.hash.length < 2) return;
  // The token of the printed link: out of the address before anything else, then by POST.
  const token = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
  document.getElementById("token").value = token;
  enter.submit();
}
if (enter) {
  takeLink();
  // A link that is pasted while this page is open changes nothing but what follows the #.
  window.addEventListener("hashchange", takeLink);
}

// What the page shows, as events count it; and whether a newer one waits until nobody types.
let serial = document.body.dataset.serial;
let isLate = false;

function isBusy() {
  const active = document.activeElement;
  return active !== null && ["INPUT", "SELECT", "BUTTON"].includes(active.tagName);
}

async function renew() {
  // What came by POST stays: getting its address anew would lose it.
  if (document.body.hasAttribute("data-still")) return;
  isLate = isBusy();
  if (isLate) return;
  const answer = await fetch(location.pathname + location.search, { credentials: "same-origin" });
  // Who must enter, or whose log is gone, is told so; what may pass is tried again.
  if (answer.redirected || [401, 403, 404].includes(answer.status)) return location.reload();
  if (!answer.ok) throw new Error(answer.statusText);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("main");
  const old = document.getElementById("main");
  if (!fresh || !old) return;
  const at = document.activeElement;
  const href = at && at.closest && at.closest("main a") ? at.closest("main a").getAttribute("href") : null;
  old.replaceWith(fresh);
  madeAt = performance.now();
  const footer = page.querySelector("footer");
  if (footer) document.querySelector("footer").replaceWith(footer);
  say(said);
  if (href) {
    for (const link of fresh.querySelectorAll("a")) {
      if (link.getAttribute("href") === href) { link.focus(); break; }
    }
  }
}

// A strip's part in words, below it: screen readers hear its name anyway.
function tell(event) {
  const part = event.target.closest ? event.target.closest(".strip.tall a") : null;
  const line = document.getElementById("segment");
  if (part && line) line.textContent = "Selected segment: " + part.getAttribute("aria-label");
}
document.addEventListener("focusin", tell);
document.addEventListener("pointerover", tell);
document.addEventListener("focusout", () => {
  if (isLate) setTimeout(() => renew().catch(() => {}));
});

// How far a round is, wherever it is shown.
function showRound(each) {
  const name = each.topic + "-" + each.partition;
  for (const shown of document.querySelectorAll("[data-round]")) {
    if (shown.dataset.round !== name) continue;
    if (shown.tagName === "PROGRESS") {
      if (each.percent !== null) shown.value = each.percent;
    } else {
      shown.textContent = shown.dataset.part === "badge" ? each.badge : each.words;
    }
  }
}

// Ages count on between two looks, by the console's clock: the page says when it was made.
const UNITS = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
let madeAt = performance.now();

function span(milliseconds) {
  const at = UNITS.findIndex((unit) => milliseconds >= unit[1]);
  const [name, size] = UNITS[at];
  const words = Math.floor(milliseconds / size) + " " + name;
  if (at + 1 === UNITS.length) return words;
  const [less, part] = UNITS[at + 1];
  const rest = Math.floor((milliseconds % size) / part);
  return rest ? words + " " + rest + " " + less : words;
}

// What is to come is told to the nearest of the second unit, as the page that was made has it.
function nearest(milliseconds) {
  const at = UNITS.findIndex((unit) => milliseconds >= unit[1]);
  const part = at + 1 < UNITS.length ? UNITS[at + 1][1] : 1000;
  return Math.floor((milliseconds + part / 2) / part) * part;
}

function countOn() {
  const main = document.getElementById("main");
  if (!main || !main.dataset.now) return;
  const now = Number(main.dataset.now) + performance.now() - madeAt;
  for (const time of document.querySelectorAll("time[data-at]")) {
    const away = Number(time.dataset.at) - now;
    let words = away >= 0 ? "now" : "just now";
    if (away >= 2000) words = "in " + span(nearest(away));
    if (away <= -2000) words = "deadline" in time.dataset ? "overdue for " + span(-away) : span(-away) + " ago";
    if (time.textContent !== words) time.textContent = words;
  }
}
setInterval(countOn, 1000);

function heard(event) {
  const found = JSON.parse(event.data);
  if (found.live) {
    for (const id of ["live", "live-line"]) {
      const line = document.getElementById(id);
      if (line && line.textContent !== found.live.words) line.textContent = found.live.words;
    }
    for (const each of found.live.running) showRound(each);
  }
  const now = found.serial + ":" + (found.live ? found.live.serial : 0);
  if (serial === now) return;
  // Not before it is shown: a page that did not come is asked for again with the next event.
  renew().then(() => { serial = now; }, () => {});
}

// How the page stays new: by events, or where there are none for it, by the clock. A browser opens
// few connections to one place: a tab that nobody sees holds none.
const RELOAD_SECONDS = Number(document.body.dataset.reload) || 10;
let stream = null;
let timer = null;
let said = "";

function say(words) {
  said = words;
  const line = document.getElementById("renewal");
  if (line && words && line.textContent !== words) line.textContent = words;
}

function listen() {
  if (stream || document.visibilityState === "hidden") return;
  stream = new EventSource("/events");
  stream.onmessage = heard;
  stream.onopen = () => {
    clearInterval(timer);
    timer = null;
    say("Changes appear by themselves.");
  };
  stream.onerror = lost;
}

function lost() {
  // One that has ended the browser opens again by itself, one that was refused never.
  if (stream && stream.readyState === EventSource.CLOSED) stream = null;
  if (!stream) say("This page reloads every " + RELOAD_SECONDS + " s.");
  if (timer === null) timer = setInterval(again, RELOAD_SECONDS * 1000);
}

function again() {
  if (document.visibilityState === "hidden") return;
  renew().then(
    () => { if (!stream) say("This page reloads every " + RELOAD_SECONDS + " s."); },
    () => say("The console does not answer: what is shown may be old.")
  );
  listen();
}

function leave() {
  if (stream) stream.close();
  stream = null;
  clearInterval(timer);
  timer = null;
}

function comeBack() {
  renew().catch(() => say("The console does not answer: what is shown may be old."));
  listen();
}

if (!enter && window.EventSource) {
  listen();
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") leave(); else comeBack();
  });
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", (event) => { if (event.persisted) comeBack(); });
}
