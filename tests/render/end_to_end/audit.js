"use strict";
// What a page's reader would stumble over, as an expression: lists of what is wrong, by kind. It unfolds what is folded.
(() => {
  function channels(color) {
    const numbers = color.match(/[\d.]+/g).map(Number);
    return [...numbers.slice(0, 3), numbers.length > 3 ? numbers[3] : 1];
  }
  function over([r, g, b, a], ground) {
    return [r, g, b].map((value, index) => value * a + ground[index] * (1 - a));
  }
  function luminance(color) {
    const [r, g, b] = color.map((value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function ground(element) {
    if (!element) return [255, 255, 255];
    const color = channels(getComputedStyle(element).backgroundColor);
    return color[3] === 1 ? color.slice(0, 3) : over(color, ground(element.parentElement));
  }
  const named = (element) => `${element.tagName}.${element.getAttribute("class")}: ${element.textContent.slice(0, 40)}`;
  const found = { contrast: [], small: [], cut: [], overlap: [], spill: [], unnamed: [], target: [], structure: [], wide: [] };
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const element of document.querySelectorAll("body *")) {
    const style = getComputedStyle(element);
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.matches("script, style, desc, title") || !element.getClientRects().length) continue;
    const under = ground(element);
    const color = over(channels(element instanceof SVGElement ? style.fill : style.color), under);
    const [a, b] = [luminance(color), luminance(under)].sort((x, y) => y - x);
    const scale = element instanceof SVGElement ? element.getScreenCTM().d : 1;
    const size = parseFloat(style.fontSize) * scale;
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.contrast.push(`${ratio.toFixed(2)} ${named(element)}`);
    if (size < 9) found.small.push(`${size.toFixed(1)} px ${named(element)}`);
  }
  for (const element of document.querySelectorAll("body, body *")) {
    if (element instanceof SVGElement || getComputedStyle(element).overflowX !== "visible") continue;
    if (element.clientWidth && element.scrollWidth > element.clientWidth + 1) found.spill.push(`${element.scrollWidth} of ${element.clientWidth} ${named(element)}`);
  }
  for (const drawing of document.querySelectorAll("svg")) {
    const frame = drawing.getBoundingClientRect();
    const texts = [...drawing.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    for (const [index, [text, box]] of texts.entries()) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1 || box.top < frame.top - 2) found.cut.push(named(text));
      for (const [other, its] of texts.slice(index + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 1 && down > box.height / 4) found.overlap.push(`${named(text)} | ${named(other)}`);
      }
    }
  }
  for (const element of document.querySelectorAll("button, a, select, summary, th, [role=img], [role=region], [tabindex]")) {
    const labels = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "");
    const name = [element.getAttribute("aria-label") ?? "", ...labels, ...[...(element.labels ?? [])].map((label) => label.firstChild.textContent)];
    if (!element.matches("select, [role=img], [role=region]")) name.push(element.textContent);
    if (!name.join("").trim()) found.unnamed.push(element.outerHTML.slice(0, 80).toUpperCase().replace("<", ""));
  }
  for (const element of document.querySelectorAll("button, select, summary")) {
    const { width, height } = element.getBoundingClientRect();
    if (Math.min(width, height) < 24) found.target.push(`${width.toFixed(0)} by ${height.toFixed(0)} ${named(element)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((one, index) => ids.indexOf(one) !== index))) found.structure.push(`two elements are ${id}`);
  for (const link of document.querySelectorAll("a[href^='#']")) {
    if (!document.getElementById(decodeURIComponent(link.hash.slice(1)))) found.structure.push(`${link.hash} leads nowhere`);
  }
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const deep = Number(heading.tagName[1]);
    if (deep > level + 1) found.structure.push(`${heading.tagName} after H${level}: ${heading.textContent.slice(0, 40)}`);
    level = deep;
  }
  if (!document.documentElement.lang || !document.title) found.structure.push("no language or no title");
  if (document.documentElement.scrollWidth > innerWidth) found.wide.push(`${document.documentElement.scrollWidth} of ${innerWidth}`);
  return found;
})()
