// What the console does in a browser beyond links and forms. Without it all pages and acts work; they
// do not refresh themselves.
"use strict";

// Live pages: one event every 2 seconds, which htmx answers by fetching the page and putting its
// part #live in place. Not while the page is hidden, and not while a person works within that part:
// for some seconds after the last movement or key. A pointer that rests there does not stop it.
const everyMillis = 2000;
const workMillis = 5000;
let failures = 0;
let focused = null; // the address of the link that has the focus
let worked = -workMillis;
for (const what of ["pointermove", "pointerdown", "keydown"]) {
  document.addEventListener(what, () => { worked = performance.now(); }, {passive: true});
}
const busy = () => {
  const live = document.getElementById("live");
  if (!live || document.hidden || String(document.getSelection()) !== "") return true;
  return performance.now() - worked < workMillis &&
    (live.contains(document.activeElement) || live.querySelector(".scroll:hover, .command:hover") !== null);
};
const tick = () => {
  if (!busy()) htmx.trigger(document.body, "live");
  setTimeout(tick, everyMillis * Math.min(1 + failures, 15));
};
setTimeout(tick, everyMillis);

// A server that is gone, or a session that has ended, is shown in place of old numbers.
const gone = (text) => {
  failures++;
  const live = document.getElementById("live");
  if (!live || failures < 2) return;
  live.classList.add("stale");
  let note = document.getElementById("gone");
  if (!note) {
    note = document.createElement("div");
    note.id = "gone";
    note.className = "notice bad";
    note.setAttribute("role", "alert");
    live.before(note);
  }
  note.textContent = text;
};
document.addEventListener("htmx:sendError", () => gone("The console does not answer. What you see is old."));
document.addEventListener("htmx:responseError", (e) => {
  const status = e.detail.xhr.status;
  gone(status === 401 || status === 403 ? "You are no longer signed in. What you see is old." : "The console answers with an error (" + status + "). What you see is old.");
});
document.addEventListener("htmx:beforeSwap", (e) => {
  // A page without its database says so in the same place.
  if (e.detail.xhr.status === 503) e.detail.shouldSwap = true;
  const at = document.activeElement;
  focused = document.getElementById("live")?.contains(at) ? at.getAttribute("href") : null;
});
document.addEventListener("htmx:afterSwap", () => {
  failures = 0;
  // The link that had the focus has it in the new part too.
  if (focused) document.querySelector(`#live a[href="${CSS.escape(focused)}"]`)?.focus({preventScroll: true});
  document.getElementById("gone")?.remove();
  dress();
});

// Buttons that copy a command appear where a browser can copy.
const dress = () => {
  if (!navigator.clipboard) return;
  for (const b of document.querySelectorAll("button.copy[hidden]")) b.hidden = false;
};
document.addEventListener("click", async (e) => {
  const b = e.target.closest("button.copy");
  if (!b) return;
  await navigator.clipboard.writeText(b.dataset.copy);
  b.textContent = "copied";
});
dress();

// Keys: / goes to the search, j and k to the next and previous row of a list, Enter opens it.
const rows = () => [...document.querySelectorAll("td a.open")];
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, select, textarea")) {
    if (e.key === "Escape") e.target.blur();
    return;
  }
  switch (e.key) {
    case "/":
      document.getElementById("find")?.focus();
      break;
    case "j":
    case "k": {
      const all = rows();
      const at = all.indexOf(document.activeElement);
      all[e.key === "j" ? Math.min(at + 1, all.length - 1) : Math.max(at - 1, 0)]?.focus();
      break;
    }
    case "Escape":
      document.activeElement?.blur();
      break;
    default:
      return;
  }
  e.preventDefault();
});

// A form is sent once.
document.addEventListener("submit", (e) => {
  if (e.target.method !== "post") return;
  if (e.target.dataset.sent) e.preventDefault();
  e.target.dataset.sent = "yes";
});
