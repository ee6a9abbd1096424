// Keeps a page up to date: waits for news of the runs that it shows, and takes its new parts over.
//
// Whoever waits for a run's news asks with "Prefer: wait", this page, too. The news themselves are
// drawn by the server; the parts of the page that may change are those with data-live and an id.

const WAIT_S = 30;
const PAUSE_MS = 1000;
const LONGEST_MS = 15000;

// The parts as the server last drew them: somebody may have opened something in one since.
const last = new Map([...document.querySelectorAll("[data-live]")].map((part) => [part.id, part.cloneNode(true)]));
let known = null;
for (let path = waitedFor(); path !== undefined; path = waitedFor()) {
  await shown();
  const answer = await ask(path);
  if (answer.redirected || answer.status === 403 || answer.status === 404) break;
  if (answer.status === 200) {
    known = answer.headers.get("ETag");
    await refresh();
  }
  await pause(answer.status === 200 || answer.status === 304 ? PAUSE_MS : LONGEST_MS);
}

// A page has something to wait for until its run has ended.
function waitedFor() {
  return document.querySelector("[data-progress]")?.dataset.progress;
}

async function ask(path) {
  // The first answer is not waited for: something may have changed since the page was made.
  const headers = known === null ? {} : { "Prefer": `wait=${WAIT_S}`, "If-None-Match": known };
  try {
    const answer = await fetch(path, { redirect: "manual", headers });
    return { status: answer.status, headers: answer.headers, redirected: answer.type === "opaqueredirect" };
  } catch {
    return { status: 0 };
  }
}

async function refresh() {
  const page = await load();
  for (const part of document.querySelectorAll("[data-live]")) {
    const found = page?.getElementById(part.id);
    if (!found || found.isEqualNode(last.get(part.id))) continue;
    last.set(part.id, found.cloneNode(true));
    const focused = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
    part.replaceChildren(...found.childNodes);
    if (focused) part.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

// This page as it is now; null if it cannot be had.
function load() {
  return new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.onload = () => { done(request.status === 200 ? request.response : null); };
    request.onerror = () => { done(null); };
    request.send();
  });
}

function shown() {
  return new Promise((done) => {
    if (!document.hidden) done();
    else document.addEventListener("visibilitychange", done, { once: true });
  });
}

function pause(milliseconds) {
  return new Promise((done) => { setTimeout(done, milliseconds); });
}
