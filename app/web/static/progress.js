// Polls one run's progress about once a second, until the run or the session ends.

const INTERVAL_MS = 1000;
const LONGEST_MS = 15000;
const ACTIVE = ["queued", "leased", "running"];
const TONES = { queued: "wait", leased: "busy", running: "busy", published: "good", failed: "bad" };

/** Call `onEvent` with what a run's server-sent events say, while it goes on. */
export async function follow(run, onEvent) {
  let wait = INTERVAL_MS;
  for (;;) {
    const event = await ask(run);
    if (event === "over") return;
    if (event !== null) {
      onEvent(event);
      if (!ACTIVE.includes(event.state)) return;
    }
    wait = event === null ? Math.min(2 * wait, LONGEST_MS) : INTERVAL_MS;
    await new Promise((resolve) => { setTimeout(resolve, document.hidden ? LONGEST_MS : wait); });
  }
}

async function ask(run) {
  try {
    const answer = await fetch(`/runs/${run}/progress`, { redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 403) return "over";
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

/** Put an event's numbers where the page shows them. */
export function show(root, event) {
  const steps = event.total_steps === null ? "–" : `${event.step} / ${event.total_steps}`;
  fill(root, "phase", event.phase === null ? "–" : event.phase.replaceAll("_", " "));
  fill(root, "step", steps);
  fill(root, "epsilon", number(event.epsilon));
  fill(root, "attempt", String(event.attempt));
  const pill = root.querySelector("[data-field=state] .pill");
  if (pill !== null && pill.textContent !== event.state) {
    pill.textContent = event.state;
    pill.className = `pill ${TONES[event.state] ?? "off"}`;
  }
  const bar = root.querySelector("progress");
  if (bar === null) return;
  if (event.total_steps !== null) {
    bar.max = event.total_steps;
    bar.value = event.step;
  } else if (event.state === "running" || event.state === "leased") {
    bar.removeAttribute("value");  // a phase without steps: it moves, and says not how far
  } else {
    bar.max = 1;
    bar.value = event.state === "published" ? 1 : 0;
  }
}

/** Spell a number with four digits. */
export function number(value) {
  return value === null ? "–" : String(Number(value.toPrecision(4)));
}

function fill(root, field, text) {
  const place = root.querySelector(`[data-field=${field}]`);
  if (place !== null && place.textContent !== text) place.textContent = text;
}
