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

// What the page shows, as events count it, and what there is by now.
let serial = document.body.dataset.serial;
let wanted = serial;
let isRenewing = false;
// What is pressed stays until the press is over, or it would be a press of nothing.
let isPressed = false;
document.addEventListener("pointerdown", () => { isPressed = true; });
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => { isPressed = false; });
}

function isChanged(field) {
  if (field.tagName !== "SELECT") return "defaultValue" in field && field.value !== field.defaultValue;
  const first = [...field.options].findIndex((each) => each.defaultSelected);
  return field.selectedIndex !== Math.max(first, 0);
}

// The search form of a page, while somebody types in it or has typed and not sent it.
function formInUse(main) {
  const form = main.querySelector("form[role=search]");
  if (!form) return null;
  return form.contains(document.activeElement) || [...form.elements].some(isChanged) ? form : null;
}

function depth(element, root) {
  return element === root ? 0 : 1 + depth(element.parentNode, root);
}

// Everything of a page is swapped, but for a form in use: what is around it changes place, it never.
function swap(old, fresh) {
  const open = [...old.querySelectorAll("details")].map((each) => each.open);
  fresh.querySelectorAll("details").forEach((each, at) => { each.open = Boolean(open[at]); });
  let kept = formInUse(old);
  let place = fresh.querySelector("form[role=search]");
  if (!kept || !place || depth(kept, old) !== depth(place, fresh)) return old.replaceWith(fresh);
  for (; kept !== old; kept = kept.parentNode, place = place.parentNode) {
    const all = [...place.parentNode.childNodes];
    for (const each of [...kept.parentNode.childNodes]) if (each !== kept) each.remove();
    kept.before(...all.slice(0, all.indexOf(place)));
    kept.after(...all.slice(all.indexOf(place) + 1));
  }
  Object.assign(old.dataset, fresh.dataset);
}

// A link or a button, by what it leads to or does: it is another element after a swap.
function nameOf(element) {
  if (element.tagName === "A") return element.getAttribute("href");
  if (element.tagName !== "BUTTON") return null;
  if (!element.form) return element.getAttribute("aria-label");
  const values = [...element.form.elements].filter((each) => each.name !== "form").map((each) => each.value);
  return [element.form.getAttribute("action"), ...values].join(" ");
}

// Says false where the page stays for now.
async function renew() {
  // What came by POST stays: a request for its address would lose it.
  if (document.body.hasAttribute("data-still")) return true;
  const field = document.activeElement;
  if (isPressed || (field && field.closest("main input, main select") && !field.closest("form[role=search]"))) return false;
  const main = document.getElementById("main");
  const has = main && main.dataset.tag ? { "If-None-Match": '"' + main.dataset.tag + '"' } : {};
  const answer = await fetch(location.pathname + location.search, { credentials: "same-origin", headers: has });
  if (answer.status === 304) {
    sayLooked(Number(answer.headers.get("x-looked-ms")));
    return true;
  }
  // Who must enter, or whose log is gone, gets that page by a reload; what may pass is tried again.
  if (answer.redirected || [401, 403, 404].includes(answer.status)) return location.reload();
  if (!answer.ok) throw new Error(answer.statusText);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("main");
  const old = document.getElementById("main");
  if (!fresh || !old || isPressed) return false;
  const at = document.activeElement;
  const name = at && old.contains(at) ? nameOf(at) : null;
  swap(old, fresh);
  madeAt = Date.now();
  const footer = page.querySelector("footer");
  if (footer) document.querySelector("footer").replaceWith(footer);
  say(said);
  offerCopies();
  if (name && !document.contains(at)) {
    const again = [...document.querySelectorAll("main a, main button")].find((each) => nameOf(each) === name);
    if (again) again.focus();
  }
  return true;
}

// A page that did not come, or could not be shown yet, is asked for again with the next beat.
function catchUp() {
  if (serial === wanted || isRenewing) return;
  const now = wanted;
  isRenewing = true;
  renew().then((found) => { if (found !== false) serial = now; }, () => {}).finally(() => { isRenewing = false; });
}

// A command is copied by a button; without script it is selected whole.
function offerCopies() {
  if (!navigator.clipboard) return;
  for (const command of document.querySelectorAll("main code.command:not(:has(+ .copy))")) {
    const button = document.createElement("button");
    const say = (words) => {
      button.textContent = words;
      button.setAttribute("aria-label", words + ": " + command.textContent);
    };
    button.type = "button";
    button.className = "copy";
    say("Copy");
    button.addEventListener("click", () => navigator.clipboard.writeText(command.textContent).then(() => say("Copied")));
    command.after(button);
  }
}
offerCopies();

// What the page says is as it was: it was only looked at again.
function sayLooked(at) {
  const time = document.querySelector(".seen time");
  if (!time || !at) return;
  time.dataset.at = at;
  time.dateTime = new Date(at).toISOString().slice(0, 19) + "Z";
  time.previousSibling.data = "As of " + time.dateTime.replace("T", " ").replace("Z", " UTC (");
  countOn();
}

// A strip's part in words, below it: screen readers hear its name anyway.
function showPart(event) {
  const part = event.target.closest ? event.target.closest(".strip.tall a") : null;
  const line = document.getElementById("segment");
  if (part && line) line.textContent = "Selected segment: " + part.firstElementChild.textContent;
}
document.addEventListener("focusin", showPart);
document.addEventListener("pointerover", showPart);

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
let madeAt = Date.now();

function span(milliseconds) {
  const at = UNITS.findIndex((unit) => milliseconds >= unit[1]);
  const [name, size] = UNITS[at];
  const words = Math.floor(milliseconds / size) + " " + name;
  if (at + 1 === UNITS.length) return words;
  const [less, part] = UNITS[at + 1];
  const rest = Math.floor((milliseconds % size) / part);
  return rest ? words + " " + rest + " " + less : words;
}

// What is to come is shown to the nearest of the second unit, as the page that was made has it.
function nearest(milliseconds) {
  const at = UNITS.findIndex((unit) => milliseconds >= unit[1]);
  const part = at + 1 < UNITS.length ? UNITS[at + 1][1] : 1000;
  return Math.floor((milliseconds + part / 2) / part) * part;
}

function countOn() {
  const main = document.getElementById("main");
  if (!main || !main.dataset.now) return;
  const now = Number(main.dataset.now) + Date.now() - madeAt;
  for (const time of document.querySelectorAll("time[data-at]")) {
    const away = Number(time.dataset.at) - now;
    let words = away >= 0 ? "now" : "just now";
    if (away >= 2000) words = "in " + span(nearest(away));
    if (away <= -2000) words = "deadline" in time.dataset ? "overdue for " + span(-away) : span(-away) + " ago";
    if (time.textContent !== words) time.textContent = words;
  }
}
setInterval(countOn, 1000);

// The words of the moment for those who hear the page: once a minute at most.
const SPOKEN_MS = 60000;
let spokenAt = 0;

function speak() {
  const line = document.getElementById("spoken");
  const live = document.getElementById("live");
  const words = isLost ? said : live ? live.textContent : "";
  if (!line || !words || words === line.textContent || Date.now() - spokenAt < SPOKEN_MS) return;
  line.textContent = words;
  spokenAt = Date.now();
}
setInterval(speak, 1000);

function heard(event) {
  heardAt = Date.now();
  const found = JSON.parse(event.data);
  if (found.live) {
    for (const id of ["live", "live-line"]) {
      const line = document.getElementById(id);
      if (line && line.textContent !== found.live.words) line.textContent = found.live.words;
    }
    for (const each of found.live.running) showRound(each);
  }
  wanted = found.serial + ":" + (found.live ? found.live.serial : 0);
  catchUp();
}

// How the page stays new: by events, or where there are none for it, by the clock. A browser opens
// few connections to one place: a tab out of sight holds none.
const RELOAD_SECONDS = Number(document.body.dataset.reload) || 10;
let stream = null;
let timer = null;
let said = "";
// A stream says something every second: one that is silent for longer is lost, as after a sleep.
const SILENCE_MS = 15000;
let heardAt = Date.now();
let isLost = false;

function say(words) {
  said = words;
  const line = document.getElementById("renewal");
  if (line && words && line.textContent !== words) line.textContent = words;
}

function listen() {
  if (stream || document.visibilityState === "hidden") return;
  heardAt = Date.now();
  stream = new EventSource("/events");
  stream.onmessage = heard;
  stream.addEventListener("beat", () => {
    heardAt = Date.now();
    catchUp();
  });
  stream.addEventListener("end", () => {
    stream.close();
    stream = null;
    listen();
  });
  stream.onopen = () => {
    clearInterval(timer);
    timer = null;
    heardAt = Date.now();
    say("Changes appear by themselves.");
    // A loop that was started again counts from its beginning: what is here may look like new.
    if (isLost) serial = "";
    isLost = false;
  };
  stream.onerror = lost;
}

function lost() {
  isLost = true;
  // One that has ended the browser opens again by itself, one that was refused never.
  if (stream && stream.readyState === EventSource.CLOSED) stream = null;
  say(stream ? "The connection was lost, and is made again: what is shown may be old." : "This page reloads every " + RELOAD_SECONDS + " s.");
  if (timer === null) timer = setInterval(again, RELOAD_SECONDS * 1000);
}

function endSilence() {
  if (!stream || Date.now() - heardAt < SILENCE_MS) return;
  stream.close();
  stream = null;
  listen();
  lost();
}
setInterval(endSilence, 1000);

function again() {
  if (document.visibilityState === "hidden") return;
  renew().then(
    () => { if (!stream || isLost) say("This page reloads every " + RELOAD_SECONDS + " s."); },
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
