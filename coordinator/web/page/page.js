// Says how fresh the page is: htmx asks for it again every two seconds, and keeps what was there if that fails.
"use strict";

const live = document.getElementById("live");
let freshAt = Date.now();

function say(text, stale) {
  if (live.textContent !== text) live.textContent = text;
  document.body.classList.toggle("stale", stale);
}

function lost(why) {
  say(`${why} — what you see is ${Math.round((Date.now() - freshAt) / 1000)} s old`, true);
}

document.addEventListener("htmx:after:request", ({ detail: { ctx } }) => {
  if (ctx.response.status < 500) {
    freshAt = Date.now();
    say("live", false);
    return;
  }
  const problem = new DOMParser().parseFromString(ctx.text, "text/html").getElementById("problem");
  lost(problem ? problem.textContent.trim() : `the coordinator answers ${ctx.response.status}`);
});

document.addEventListener("htmx:error", () => lost("this coordinator does not answer"));
