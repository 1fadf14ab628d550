"use strict";
// What a page's reader would stumble over: text too pale for its ground, things without a name, a page that scrolls sideways.
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
const found = { contrast: [], unnamed: [], wide: [] };
for (const details of document.querySelectorAll("details")) details.open = true;
for (const element of document.querySelectorAll("body *")) {
  const style = getComputedStyle(element);
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.matches("script, style, desc, title, pre#audit") || !element.getClientRects().length) continue;
  const under = ground(element);
  const color = over(channels(element instanceof SVGElement ? style.fill : style.color), under);
  const [a, b] = [luminance(color), luminance(under)].sort((x, y) => y - x);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < (large ? 3 : 4.5)) found.contrast.push(`${ratio.toFixed(2)} ${element.tagName}.${element.getAttribute("class")}: ${element.textContent.slice(0, 40)}`);
}
for (const element of document.querySelectorAll("button, a, select, summary, th, [role=img], [role=region], [tabindex]")) {
  const labels = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "");
  const name = [element.getAttribute("aria-label") ?? "", ...labels, ...[...(element.labels ?? [])].map((label) => label.firstChild.textContent)];
  if (!element.matches("select, [role=img], [role=region]")) name.push(element.textContent);
  if (!name.join("").trim()) found.unnamed.push(element.outerHTML.slice(0, 80).toUpperCase().replace("<", ""));
}
if (document.documentElement.scrollWidth > innerWidth) found.wide.push(`${document.documentElement.scrollWidth} of ${innerWidth}`);
const told = document.createElement("pre");
told.id = "audit";
told.textContent = JSON.stringify(found);
document.body.append(told);
