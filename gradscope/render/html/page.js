"use strict";
// Tables sort by a click on a column's head; without this script the page lacks nothing else.
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.textContent = "";
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sortBy(table, head, column));
  });
}

function sortBy(table, head, column) {
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("thead th")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
  const known = rows.filter(([value]) => value !== null);
  known.sort(([a], [b]) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
  if (descending) known.reverse();
  const unknown = rows.filter(([value]) => value === null);
  body.append(...[...known, ...unknown].map(([, row]) => row));
}

// A cell without a number sorts last; a text cell sorts by its text.
function key(cell) {
  if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
  return cell.classList.contains("text") && cell.textContent ? cell.textContent : null;
}
