// ε against steps, drawn as SVG: steps from left to right, ε on a logarithmic scale.

import { number } from "./progress.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 720;
const HEIGHT = 300;
const LEFT = 56;
const RIGHT = 16;
const TOP = 16;
const BOTTOM = 36;

export class Curve {
  constructor(place, { planned, target }) {
    this.place = place;
    this.planned = planned;
    this.target = target;
  }

  /** Draw what a run has reported, [{step, epsilon}], beside the plan. */
  draw(reported, total = 1) {
    const shown = [...this.planned, ...reported].filter(({ epsilon }) => epsilon > 0);
    const steps = Math.max(total, ...shown.map(({ step }) => step));
    const scale = scales(steps, [this.target, ...shown.map(({ epsilon }) => epsilon)]);
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    svg.setAttribute("aria-label", describe(reported, steps, this.target));
    svg.append(...axes(scale, steps), ...this.#targetLine(scale));
    svg.append(make("path", { class: "planned", d: path(this.planned, scale) }));
    svg.append(make("path", { class: "reported", d: path(reported, scale) }));
    for (const point of reported.filter(({ epsilon }) => epsilon > 0)) {
      const r = point === reported.at(-1) ? 5 : 2.5;
      svg.append(make("circle", { class: "dot", cx: scale.x(point.step), cy: scale.y(point.epsilon), r }));
    }
    this.place.replaceChildren(svg);
  }

  #targetLine({ y }) {
    const at = y(this.target);
    const name = make("text", { class: "target-name", x: WIDTH - RIGHT, y: at - 6, "text-anchor": "end" });
    name.textContent = `target ε ${number(this.target)}`;
    return [make("line", { class: "target", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }), name];
  }
}

function scales(steps, epsilons) {
  const logs = epsilons.filter((epsilon) => epsilon > 0).map(Math.log10);
  const low = Math.floor(Math.min(...logs) - 0.1);
  const high = Math.max(low + 1, Math.ceil(Math.max(...logs)));
  return {
    low,
    high,
    x: (step) => LEFT + (step / steps) * (WIDTH - LEFT - RIGHT),
    y: (epsilon) => TOP + ((high - Math.log10(epsilon)) / (high - low)) * (HEIGHT - TOP - BOTTOM),
  };
}

function axes({ x, y, low, high }, steps) {
  const parts = [];
  const every = Math.ceil((high - low) / 6);
  for (let power = low; power <= high; power += every) {
    const at = y(10 ** power);
    parts.push(make("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
    parts.push(label(String(Number((10 ** power).toPrecision(1))), LEFT - 8, at + 4, "end"));
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const anchor = part === 1 ? "end" : "middle";
    parts.push(label(String(Math.round(part * steps)), x(part * steps), HEIGHT - BOTTOM + 18, anchor));
  }
  parts.push(label("step", LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 2, "middle"));
  parts.push(label("ε", 12, TOP + 8, "start"));
  return parts;
}

function path(points, { x, y }) {
  return points
    .filter(({ epsilon }) => epsilon > 0)
    .map(({ step, epsilon }, index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(epsilon).toFixed(1)}`)
    .join("");
}

function describe(reported, steps, target) {
  const last = reported.at(-1);
  const aim = `the target is ${number(target)}`;
  if (last === undefined) return `No step has been reported yet; ${aim}.`;
  return `After ${last.step} of ${steps} steps ε is ${number(last.epsilon)}; ${aim}.`;
}

function label(content, x, y, anchor) {
  const text = make("text", { x, y, "text-anchor": anchor });
  text.textContent = content;
  return text;
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
