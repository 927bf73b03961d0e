"use strict";
(() => {
  const ago = (s) => (s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} days`);
  const tick = () => document.querySelectorAll(".age").forEach((age) => {
    age.textContent = `, ${ago(Math.max(0, Date.now() / 1000 - Number(age.dataset.at)))} ago`;
  });
  tick();
  setInterval(tick, 1000);
  const { events, page, refresh: refreshAfter } = document.body.dataset;
  if (refreshAfter) {
    // A page on a disk: it is loaded again, but not under the eyes of who just now looks into it.
    let usedAt = 0;
    for (const kind of ["pointermove", "keydown", "scroll"]) addEventListener(kind, () => { usedAt = Date.now(); });
    const wait = Number(refreshAfter) * 1000;
    setInterval(() => { if (!document.hidden && Date.now() - usedAt > wait) location.reload(); }, wait);
  }
  if (!events) return;

  // What the reader opened stays open; styles of the new page come in by the script, which the rules of the page allow.
  const title = (d) => d.querySelector("summary")?.textContent;
  const sheet = new CSSStyleSheet();
  const replace = (text) => {
    const [whole, style] = text.match(/<style>([^]*?)<\/style>/);
    const next = new DOMParser().parseFromString(text.replace(whole, ""), "text/html");
    const opened = new Set([...document.querySelectorAll("details[open]")].map(title));
    const focused = document.activeElement?.id;
    sheet.replaceSync(style);
    document.adoptedStyleSheets = [sheet];
    document.title = next.title;
    for (const part of ["header", "main", "#probes"]) document.querySelector(part).replaceWith(document.adoptNode(next.querySelector(part)));
    document.querySelectorAll("details").forEach((d) => { d.open ||= opened.has(title(d)); });
    document.getElementById("tip").hidden = true;
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    start();
    tick();
  };

  let isBusy = false, isWanted = false, lostAt = null;
  const tell = () => {
    const link = document.getElementById("link");
    link.textContent = lostAt ? `Not connected since ${lostAt.toLocaleTimeString()}: what stands here may be old.` : "";
  };
  const refresh = async () => {
    isWanted = true;
    if (isBusy) return;
    isBusy = true;
    while (isWanted) {
      isWanted = false;
      try {
        const answer = await fetch(location.pathname, { cache: "no-store" });
        if (answer.ok) replace(await answer.text());
      } catch { /* the stream tells when the server is there again */ }
      tell();
      await new Promise((done) => setTimeout(done, 1000)); // many windows at once are one change
    }
    isBusy = false;
  };
  const stream = new EventSource(events); // it connects again by itself, and says what it knows already
  stream.addEventListener("changed", (event) => {
    const pages = JSON.parse(event.data);
    if (pages.includes(page)) refresh();
  });
  stream.addEventListener("watched", (event) => {
    const at = Number(event.data), age = document.querySelector(".age");
    if (!at || at < Number(age.dataset.at)) return;
    age.dataset.at = at;
    document.querySelector(".written").textContent = `${new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    tick();
  });
  stream.addEventListener("open", () => { lostAt = null; tell(); });
  stream.addEventListener("error", () => { lostAt ??= new Date(); tell(); });
})();
