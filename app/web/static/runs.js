// Keeps the runs of a table up to date.

import { follow, show } from "./progress.js";

for (const row of document.querySelectorAll("tr[data-run]")) {
  follow(row.dataset.run, (event) => show(row, event));
}
