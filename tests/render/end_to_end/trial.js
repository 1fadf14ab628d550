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
  tried.shown = [document.querySelector("[role=status]").textContent, [...document.querySelectorAll(".group")].filter((one) => !one.hidden).length];
  choose("kind", "all");
  choose("order", "share of the gradient");
  tried.order = [...document.querySelectorAll(".group")].map((one) => one.dataset.share);
  document.querySelector("th button").click();
  tried.sorted = [...document.querySelector("tbody").rows].map((row) => row.cells[0].textContent);
  tried.copy = [...document.querySelectorAll(".command button")].map((one) => one.textContent);
  return tried;
})()
