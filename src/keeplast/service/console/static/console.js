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
  if (!answer.ok || answer.redirected) return location.reload();
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
  if (part && line) line.textContent = part.getAttribute("aria-label");
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
      const words = { badge: [each.badge], pass: [each.pass], both: [each.badge, each.pass] };
      shown.textContent = words[shown.dataset.part].filter(Boolean).join(", ");
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

function countOn() {
  const main = document.getElementById("main");
  if (!main || !main.dataset.now) return;
  const now = Number(main.dataset.now) + performance.now() - madeAt;
  for (const time of document.querySelectorAll("time[data-at]")) {
    const away = Number(time.dataset.at) - now;
    let words = "now";
    if (away >= 2000) words = "in " + span(away);
    if (away <= -2000) words = span(-away) + " ago";
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

if (!enter && window.EventSource) {
  const stream = new EventSource("/events");
  stream.onmessage = heard;
  window.addEventListener("pagehide", () => stream.close());
}
