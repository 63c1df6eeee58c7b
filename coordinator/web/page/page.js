// Keeps an open page fresh: asks for it again and changes what has changed. Without it the page is whole,
// only as old as its loading.
"use strict";

const DEADLINE_MS = 8000;
const live = document.getElementById("live");
let main = document.getElementById("main");
let etag = null;
let seenAt = Date.now();

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined;
}

// Makes `old` equal to `fresh` with as few changes as possible, so that focus, selection, scrolling and the
// transitions of cells survive. Children with a key are matched by it, others by their place.
function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const keyed = new Map([...old.children].filter(key).map((child) => [key(child), child]));
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    let match = key(child) === undefined ? at : keyed.get(key(child));
    if (!match || match.nodeName !== child.nodeName || key(match) !== key(child)) {
      old.insertBefore(document.importNode(child, true), at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else old.insertBefore(match, at);
    morph(match, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function say(text, lost) {
  if (live.textContent !== text) live.textContent = text;
  live.classList.toggle("lost", lost);
  main.classList.toggle("stale", lost);
}

function lose(why) {
  const seconds = Math.round((Date.now() - seenAt) / 1000);
  say(`${why} — what you see is ${seconds} s old`, true);
}

async function refresh() {
  const response = await fetch(location.href, { signal: AbortSignal.timeout(DEADLINE_MS) });
  if (response.ok && etag !== null && response.headers.get("etag") === etag) {
    seenAt = Date.now();
    say("live", false);
    return;
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const problem = page.getElementById("problem");
  if (response.status >= 500) {
    lose(problem ? problem.textContent : `the coordinator answers ${response.status}`);
    return;
  }
  etag = response.headers.get("etag");
  seenAt = Date.now();
  main.classList.remove("stale");
  morph(main, page.getElementById("main"));
  document.title = page.title;
  say("live", false);
}

async function run() {
  let failures = 0;
  for (;;) {
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    }
    try {
      await refresh();
      failures = 0;
    } catch {
      failures += 1;
      lose("this coordinator does not answer");
    }
    const pause = Number(main.dataset.refresh) * 2 ** Math.min(failures, 3);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

run();
