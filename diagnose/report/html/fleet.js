"use strict";
(() => {
  const table = document.getElementById("jobs-table");
  if (!table) return;
  const body = table.tBodies[0], rows = [...body.rows], shown = document.getElementById("jobs-shown");
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
  const compare = (column, isNumber, sign) => (a, b) => {
    const x = value(a, column), y = value(b, column);
    if ((x === "") !== (y === "")) return x === "" ? 1 : -1; // what is not known stands last, whichever way
    return sign * (isNumber ? Number(x) - Number(y) : x < y ? -1 : x > y ? 1 : 0);
  };
  heads.forEach((head, column) => {
    const isNumber = head.classList.contains("num"), button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const down = now ? now === "ascending" : isNumber;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort(compare(column, isNumber, down ? -1 : 1));
      body.append(...rows);
    });
  });
  const filters = document.getElementById("filters");
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const order = new Map(rows.map((row, n) => [row, n]));
  const apply = () => {
    const wanted = document.getElementById("filter-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdict = document.getElementById("filter-verdict").value, cause = document.getElementById("filter-cause").value;
    let n = 0;
    for (const row of rows) {
      const text = texts[order.get(row)];
      const fits = wanted.every((word) => text.includes(word)) && (!verdict || row.dataset.verdict === verdict)
        && (!cause || row.dataset.causes.split(" ").includes(cause));
      row.hidden = !fits;
      n += fits;
    }
    shown.textContent = `${n.toLocaleString("en")} of ${rows.length.toLocaleString("en")} jobs`;
  };
  filters.hidden = false;
  filters.addEventListener("input", apply);
  filters.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("pageshow", apply); // a browser that comes back to the page fills in what was typed
  apply();
})();
