// The page of one run: its numbers, and its curve as it grows.

import { Curve } from "./curve.js";
import { follow, number, show } from "./progress.js";

const page = document.getElementById("run");
const news = document.getElementById("news");
const announcement = document.getElementById("announcement");
const { run, target, active } = page.dataset;

const planned = rows("#planned");
const curve = new Curve(document.getElementById("curve"), { planned, target: Number(target) });
let attempt = Number(page.dataset.attempt);
let points = rows("#reported");
let announced = 0;

draw();
follow(run, (event) => {
  show(page, event);
  if (event.attempt !== attempt) {
    points = [];
    attempt = event.attempt;
  }
  add(event);
  announce(event);
});

function add({ step, total_steps: total, epsilon }) {
  const last = points.at(-1);
  if (epsilon === null || step === null || last?.step >= step) return;
  points.push({ step, epsilon });
  draw(total);
}

// Without scripts, or without a point, no figure is shown, only the numbers.
function draw(total) {
  if (planned.length + points.length === 0) return;
  document.querySelector("figure.curve").hidden = false;
  curve.draw(points, total);
}

// Screen readers announce each quarter of the way and the end, not every step.
function announce({ state, step, total_steps: total, epsilon }) {
  if (active === "yes" && state === "published") {
    news.replaceChildren("The run has published a version. ", link());
  } else if (active === "yes" && state === "failed") {
    news.replaceChildren("The run has failed. ", link());
  } else if (total !== null && epsilon !== null && Math.floor((4 * step) / total) > announced) {
    announced = Math.floor((4 * step) / total);
    announcement.textContent = `Step ${step} of ${total}: ε is ${number(epsilon)}.`;
  }
}

function link() {
  const again = document.createElement("a");
  again.href = location.pathname;
  again.textContent = "Show it";
  return again;
}

// What the page has in a table: the plan, or what the run had reported when the page was made.
function rows(table) {
  return [...document.querySelectorAll(`${table} tr[data-step]`)].map((row) => ({
    step: Number(row.dataset.step),
    epsilon: Number(row.dataset.epsilon),
  }));
}
