// Files to take away.

import { $, say, showError } from "./elements.js";
import { call } from "./server.js";
import { answersAsTable, view } from "./predict.js";

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function download(made) {
  const kind = made.dataset.download, name = made.textContent.trim().replace(/^(The|A) /, (word) => word.toLowerCase());
  made.disabled = true;
  made.setAttribute("aria-busy", "true");
  say(`Making ${name} …`);
  try {
    const response = await call("GET", `downloads/${kind}`);
    const plain = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") || "");
    const coded = /filename\*=utf-8''([^;]+)/i.exec(response.headers.get("Content-Disposition") || "");
    save(await response.blob(), coded ? decodeURIComponent(coded[1]) : plain ? plain[1] : kind);
    say(`Saved ${name}`);
  } catch (error) {
    showError(error);
  } finally {
    made.disabled = false;
    made.removeAttribute("aria-busy");
  }
}

export function listenToDownloads() {
  for (const made of document.querySelectorAll("[data-download]")) made.addEventListener("click", () => download(made));
  $("csv").addEventListener("click", () => save(new Blob([answersAsTable()], { type: "text/csv" }), `${view.project || "answers"}.csv`));
}
