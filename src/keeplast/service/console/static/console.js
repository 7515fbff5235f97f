// The console's only script. Everything works without it: pages then reload by themselves.
"use strict";

const enter = document.getElementById("enter");
if (enter && location.hash.length > 1) {
  // The token of the printed link: out of the address before anything else, then by POST.
  const token = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
  document.getElementById("token").value = token;
  enter.submit();
}

let serial = null;

function isBusy() {
  const active = document.activeElement;
  return active !== null && ["INPUT", "SELECT", "BUTTON"].includes(active.tagName);
}

async function renew() {
  // What came by POST stays: getting its address anew would lose it.
  if (isBusy() || document.body.hasAttribute("data-still")) return;
  const answer = await fetch(location.pathname + location.search, { credentials: "same-origin" });
  if (!answer.ok || answer.redirected) return location.reload();
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("main");
  const old = document.getElementById("main");
  if (!fresh || !old) return;
  const at = document.activeElement;
  const href = at && at.closest && at.closest("main a") ? at.closest("main a").getAttribute("href") : null;
  old.replaceWith(fresh);
  const footer = page.querySelector("footer");
  if (footer) document.querySelector("footer").replaceWith(footer);
  if (href) {
    for (const link of fresh.querySelectorAll("a")) {
      if (link.getAttribute("href") === href) { link.focus(); break; }
    }
  }
}

function heard(event) {
  const found = JSON.parse(event.data);
  if (found.live) {
    for (const id of ["live", "live-line"]) {
      const line = document.getElementById(id);
      if (line && line.textContent !== found.live.words) line.textContent = found.live.words;
    }
    const bar = document.getElementById("progress");
    if (bar) {
      bar.max = found.live.planned_bytes || 1;
      bar.value = found.live.read_bytes;
    }
  }
  const now = found.serial + ":" + (found.live ? found.live.serial : 0);
  if (serial !== null && serial !== now) renew().catch(() => {});
  serial = now;
}

if (!enter && window.EventSource) {
  const stream = new EventSource("/events");
  stream.onmessage = heard;
  window.addEventListener("pagehide", () => stream.close());
}
