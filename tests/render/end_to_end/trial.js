"use strict";
// What a reader does with the page's script, and what then stands there, as an expression.
(() => {
  const tried = {};
  const first = document.querySelector("svg[data-over]");
  for (let press = 0; press < 2; press++) first.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", cancelable: true }));
  tried.tip = document.querySelector(".tip").textContent;
  tried.cursors = document.querySelectorAll(".cursor").length;
  const choice = (name) => [...document.querySelectorAll(".filters label")].find((label) => label.textContent.startsWith(name)).querySelector("select");
  function choose(name, value) {
    choice(name).value = value;
    choice(name).dispatchEvent(new Event("change"));
  }
  choose("kind", "mixed");
  tried.shown = [document.querySelector("[role=status]").textContent, [...document.querySelectorAll(".groups > .group")].filter((one) => !one.hidden).length];
  choose("kind", "all");
  choose("order", "share of the gradient");
  tried.order = [...document.querySelectorAll(".groups > .group")].map((one) => one.dataset.share);
  const box = first.getBoundingClientRect();
  const point = (kind, part) => first.dispatchEvent(new PointerEvent(kind, { clientX: box.left + part * box.width, bubbles: true }));
  point("pointerdown", 0.9);
  point("pointerup", 1);
  tried.chosen = [document.querySelectorAll(".chosen").length, [...document.querySelectorAll(".groups > .group")].filter((one) => !one.hidden).length];
  dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  tried.released = [document.querySelectorAll(".chosen").length, [...document.querySelectorAll(".groups > .group")].filter((one) => !one.hidden).length];
  document.querySelector("th button").click();
  tried.sorted = [...document.querySelector("tbody").rows].map((row) => row.cells[0].textContent);
  tried.copy = [...document.querySelectorAll(".command button")].map((one) => one.textContent);
  return tried;
})()
