// The verification form: takes files, lists the steps. Nothing is sent.

import { verify } from "./certificate.js";

const PUBLISHED_KEYS = "/.well-known/expunge-keys.json";
const TONES = { ok: "good", failed: "bad", "not checked": "wait" };

const form = document.getElementById("verify");
const outcome = document.getElementById("verification");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    await run();
  } finally {
    button.disabled = false;
  }
});

async function run() {
  const steps = element("ol", "checks");
  const state = element("p", "muted", "Reading…");
  outcome.replaceChildren(state, steps);
  let holds = false;
  try {
    const given = form.elements.keys.files[0];
    holds = await verify({
      bundle: await bytesOf(form.dataset.certificate, form.elements.bundle?.files[0]),
      keys: await bytesOf(PUBLISHED_KEYS, given, given !== undefined),
      weights: form.elements.weights.files[0],
      report: (step) => steps.append(row(step)),
      progress: (part) => { state.textContent = `Weights: ${Math.floor(100 * part)} % read`; },
    });
    outcome.append(...verdict(holds, given !== undefined));
  } catch (error) {
    outcome.append(element("p", "verdict bad", `Nothing was checked: ${error.message}`));
  }
  state.remove();
}

async function bytesOf(address, file, chosen = file !== undefined) {
  if (chosen) return new Uint8Array(await file.arrayBuffer());
  const answer = await fetch(address, { redirect: "manual" });
  if (!answer.ok) throw new Error("the service did not answer; log in again");
  return new Uint8Array(await answer.arrayBuffer());
}

function row({ name, state, finding }) {
  const item = element("li");
  const mark = element("span");
  mark.append(element("span", `pill ${TONES[state]}`, state));
  item.append(mark, element("b", "", name), element("span", "", finding));
  item.dataset.step = name;
  item.dataset.state = state;
  return item;
}

function verdict(holds, keysGiven) {
  if (!holds) {
    return [element("p", "verdict bad", "Do not trust this certificate for these weights.")];
  }
  const source = keysGiven
    ? "The keys were yours."
    : "The keys came from this service itself: compare them with a copy from another channel.";
  return [
    element("p", "verdict good", "Signature, weights and place in the log hold."),
    element("p", "muted", `Not checked: that the guarantee follows from the stated parameters (expunge verify computes it again), and that the log grew out of an older checkpoint. ${source}`),
  ];
}

function element(name, className = "", content = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = content;
  return made;
}
