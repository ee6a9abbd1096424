// ε against steps, drawn as SVG: steps from left to right, ε on a logarithmic scale.

import { number } from "./progress.js";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 52, right: 16, top: 26, bottom: 40 };
const MOST_TICKS = 7;

export class Curve {
  #reported = [];
  #total = 1;

  /** `planned` is [{step, epsilon}] of the plan; `target` is the ε to reach. */
  constructor(place, { planned, target }) {
    this.place = place;
    this.planned = visible(planned);
    this.target = target;
    new ResizeObserver(() => this.#redraw()).observe(place);
  }

  /** Draw what a run has reported, [{step, epsilon}], beside the plan. */
  draw(reported, total = 1) {
    this.#reported = visible(reported);
    this.#total = total;
    this.#redraw();
  }

  #redraw() {
    const [reported, planned] = [this.#reported, this.planned];
    const points = [...planned, ...reported];
    const steps = Math.max(this.#total, ...points.map(({ step }) => step));
    const width = Math.max(280, this.place.clientWidth);
    const height = Math.round(Math.min(340, Math.max(220, 0.4 * width)));
    const scale = scales(width, height, steps, [this.target, ...points.map((point) => point.epsilon)]);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    svg.setAttribute("aria-label", describe(reported, steps, this.target));
    svg.append(
      ...axes(scale),
      make("path", { class: "planned", d: path(planned, scale) }),
      ...targetLine(this.target, scale),
      make("path", { class: "reported", d: path(reported, scale) }),
      ...reported.map((point) => dot(point, scale, point === reported.at(-1))),
    );
    this.place.replaceChildren(svg);
  }
}

function visible(points) {
  return points.filter(({ epsilon }) => epsilon > 0);
}

function scales(width, height, steps, epsilons) {
  const logs = epsilons.map(Math.log10);
  const low = Math.min(...logs) - 0.15;
  const high = Math.max(...logs, low + 0.8) + 0.05;
  const across = width - MARGIN.left - MARGIN.right;
  const down = height - MARGIN.top - MARGIN.bottom;
  return {
    width,
    height,
    steps,
    low,
    high,
    x: (step) => MARGIN.left + (step / steps) * across,
    y: (epsilon) => MARGIN.top + ((high - Math.log10(epsilon)) / (high - low)) * down,
  };
}

function axes({ x, y, low, high, width, height, steps }) {
  const parts = [label("ε", MARGIN.left - 8, 14, "end")];
  for (const epsilon of levels(low, high)) {
    const at = y(epsilon);
    parts.push(make("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }));
    parts.push(label(String(epsilon), MARGIN.left - 8, at + 4, "end"));
  }
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => Math.round(part * steps));
  for (const step of new Set(marks)) {
    const anchor = step === steps ? "end" : "middle";
    parts.push(label(String(step), x(step), height - MARGIN.bottom + 18, anchor));
  }
  parts.push(label("steps", x(steps / 2), height - 4, "middle"));
  return parts;
}

// 1, 2 and 5 of each power of ten, or powers alone where these are too many.
function levels(low, high) {
  for (const digits of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(low); power <= high; power += 1) {
      found.push(...digits.map((digit) => Number(`${digit}e${power}`)));
    }
    const inside = found.filter((level) => Math.log10(level) >= low && Math.log10(level) <= high);
    const every = digits.length === 1 ? Math.ceil(inside.length / MOST_TICKS) : 1;
    const thinned = inside.filter((_, index) => index % every === 0);
    if (thinned.length <= MOST_TICKS) return thinned;
  }
  return [];
}

function targetLine(target, { width, y }) {
  const at = y(target);
  const name = label(`target ε ${number(target)}`, width - MARGIN.right, at + 16, "end");
  name.setAttribute("class", "target-name");
  return [make("line", { class: "target", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }), name];
}

function dot({ step, epsilon }, { x, y }, last) {
  return make("circle", { class: "dot", cx: x(step), cy: y(epsilon), r: last ? 5 : 2.5 });
}

function path(points, { x, y }) {
  return points
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
