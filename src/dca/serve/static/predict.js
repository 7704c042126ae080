// Trying the model: an image or the camera, its answers, the nearest photos, the tray, and right labels.

import { $, element, percent, pluralize, say, showError, thumbnailElement } from "./elements.js";
import { call, get, post, thumbnail } from "./server.js";
import { isLive, startLive, stopLive } from "./camera.js";
import { lookSimilar } from "./photos.js";

export const view = {
  state: null, // GET model
  tray: [], // GET tray
  current: null, // the image being looked at: {image, blob, answer}
  labelled: null, // hash of the image that was labelled last
  busy: false, // while a change is on its way
  project: "", // the open project; "" for a model alone
};

let onState = () => {};
export function whenStateChanges(act) {
  onState = act;
}

export function showAnswers() {
  const { answer } = view.current;
  const list = element("div", { class: "answers", role: "group", "aria-label": "Most probable classes" });
  list.append(...answer.top.map((row, n) => answerButton(row, n + 1, row.label === answer.corrected)));
  if (answer.corrected && !answer.top.some((row) => row.label === answer.corrected)) {
    list.append(element("p", { class: "quiet", text: `Labelled as “${answer.corrected}”.` }));
  }
  if (!answer.top.length) list.append(element("p", { class: "quiet", text: "There is no model yet: it needs photos of two classes. Below you can say what this is, and it becomes a photo of that class." }));
  $("answers").replaceChildren(list);
  $("answer-title").textContent = answer.corrected ? `Labelled: ${answer.corrected}` : "What is it?";
  $("other").hidden = false;
  $("none").hidden = !answer.none_of_these;
  $("none-why").textContent = `It is less like the training images than nearly all of them are (p = ${answer.p_value && answer.p_value.toFixed(3)}: so rarely would a photo of these classes look so unusual).`;
  $("near-box").hidden = !answer.nearest.length;
  $("near").replaceChildren(...answer.nearest.map((near) => element(
    "li", {},
    thumbnailElement(near.image, `Training image of ${near.label}`),
    element("span", { class: "caption" }, near.label, element("span", { class: "quiet", text: ` ${near.similarity.toFixed(2)}` })),
  )));
  $("similar-to-this").hidden = !view.project;
}

function answerButton(row, number, right) {
  const fill = element("div", { class: "fill" });
  const made = element(
    "button",
    { type: "button", class: `answer${right ? " right" : ""}`, "aria-pressed": right ? "true" : "false", onclick: () => label(row.label) },
    element("kbd", { text: number, "aria-hidden": "true" }),
    element("span", { class: "name", text: row.label }),
    element("span", { class: "share", text: percent(row.probability) }),
    element("div", { class: "track", "aria-hidden": "true" }, fill),
  );
  made.setAttribute("aria-label", `${row.label}, ${percent(row.probability)}${right ? ", corrected to this" : ". Label the image so"}`);
  requestAnimationFrame(() => { fill.style.width = `${Math.max(100 * row.probability, 0.5)}%`; });
  return made;
}

let shownAddress = "";
async function showImage() {
  if (isLive()) toggleLive();
  const shown = $("shown"), { current } = view;
  if (shownAddress) URL.revokeObjectURL(shownAddress);
  shownAddress = current.blob ? URL.createObjectURL(current.blob) : "";
  const small = () => thumbnail(current.image).then((address) => { shown.onerror = null; shown.src = address; }).catch(() => {});
  shown.onerror = small; // formats that the browser does not know
  if (shownAddress) shown.src = shownAddress;
  else await small();
  shown.hidden = false;
  $("invite").hidden = true;
  $("drop").classList.add("filled");
}

export function showTray() {
  const { tray, current } = view;
  $("tray-count").textContent = tray.length;
  $("csv").hidden = !tray.length;
  $("tray").replaceChildren(...tray.map((row, n) => {
    const best = row.top[0];
    const said = !best ? "no answer yet" : row.none_of_these ? "none of these?" : `${best.label}?`;
    const sure = best && !row.none_of_these ? percent(best.probability) : "";
    const chosen = current && current.image === row.image;
    return element(
      "li", {},
      element(
        "button",
        { type: "button", class: `thumb${chosen ? " current" : ""}`, "aria-label": `Unlabelled image ${n + 1}: ${said} ${sure}`, "aria-current": chosen ? "true" : "false", onclick: () => lookAt(row) },
        thumbnailElement(row.image, ""),
        element("span", { class: "caption" }, said, element("span", { class: "quiet", text: ` ${sure}` })),
      ),
      element("button", { type: "button", class: "remove", "aria-label": `Remove unlabelled image ${n + 1} from the tray`, onclick: () => removeFromTray(row.image) }, element("span", { "aria-hidden": "true", text: "×" })),
    );
  }));
}

function showChange(result, image) {
  const box = $("change");
  box.hidden = false;
  const rows = [];
  const before = result.before.answer, after = result.after.answer;
  if (before && after) {
    const old = new Map(before.top.map((row) => [row.label, row.probability]));
    for (const row of after.top.slice(0, 3)) {
      const was = old.has(row.label) ? percent(old.get(row.label)) : "–";
      rows.push(changeRow(row.label, was, percent(row.probability), row.probability > (old.get(row.label) || 0)));
    }
  }
  const a = result.before.accuracy, b = result.after.accuracy;
  if (a && b) rows.push(changeRow("Expected accuracy", percent(a.value), percent(b.value), b.value > a.value));
  const table = element("table", {}, element("thead", {}, element("tr", {}, element("th", { text: "" }), element("td", { text: "before" }), element("td", { text: "after" }))), element("tbody", {}, ...rows));
  const others = result.tray_changed ? ` ${pluralize(result.tray_changed, "answer")} in the tray changed.` : "";
  const words = element("p", {}, element("strong", { text: `Refitted in ${result.seconds.toFixed(2)} s.` }), others);
  box.replaceChildren(element("div", { class: "what" }, ...(before ? [thumbnailElement(image, "The image that was labelled last")] : []), words), table);
}

function changeRow(name, before, after, better) {
  return element("tr", {}, element("th", { text: name, scope: "row" }), element("td", { text: before }), element("td", { class: better ? "up" : "", text: after }));
}

// --- actions ---------------------------------------------------------------------------------

export async function change(action) {
  if (view.busy) return;
  view.busy = true;
  $("drop").classList.add("busy");
  try {
    await action();
  } catch (error) {
    showError(error);
  } finally {
    view.busy = false;
    $("drop").classList.remove("busy");
    if (view.state) onState();
  }
}

async function predict(blob) {
  const answer = await post("predict", blob);
  view.current = { image: answer.image, blob, answer };
  $("change").hidden = true;
  await showImage();
  showAnswers();
  showTray();
  const best = answer.top[0];
  const doubt = answer.none_of_these ? "Perhaps none of these; nearest: " : "";
  say(best ? `${doubt}${best.label}, ${percent(best.probability)}` : "There is no model yet", { seen: true });
}

const names = new Map(); // hash of an image -> the name of its file, for the table of answers

// Tries images: one is looked at, several go to the tray, of which the first new one is looked at.
export function tryImages(images) {
  if (!images.length) return say("That is not an image", { bad: true });
  if (images.length === 1) return change(async () => predict(await images[0].read()));
  return change(async () => {
    const added = [];
    for (const image of images) {
      say(`Trying ${added.length + 1} of ${images.length} …`);
      try {
        const answer = await post("tray", await image.read());
        names.set(answer.image, [...image.path, image.name].join("/"));
        added.push(answer.image);
      } catch (error) {
        showError(error);
        if (error.body && error.body.code === "tray-full") break;
      }
    }
    await refresh(true);
    say(`${pluralize(added.length, "image")} in the tray`);
    const first = view.tray.find((row) => added.includes(row.image));
    if (first) await lookAt(first);
  });
}

export async function lookAt(row) {
  view.current = { image: row.image, blob: null, answer: row };
  $("change").hidden = true;
  await showImage();
  showAnswers();
  showTray();
}

export function label(text) {
  const { current, tray } = view;
  if (!current) return;
  return change(async () => {
    const place = tray.findIndex((row) => row.image === current.image);
    const result = await post("correct", { image: current.image, label: text }).catch(async (error) => {
      if (error.status !== 404 || !current.blob) throw error;
      await post("predict", current.blob); // the server has forgotten it
      return post("correct", { image: current.image, label: text });
    });
    view.state = result.state;
    current.answer = { ...current.answer, corrected: result.label };
    view.labelled = current.image;
    $("other-label").value = "";
    const next = view.project ? " The model learns it by itself." : view.state.refit.possible ? " Press Refit to learn it." : "";
    say(`Saved as “${result.label}”.${next}`);
    if (place < 0) return showAnswers();
    view.tray = (await get("tray")).images;
    if (view.tray.length) return lookAt(view.tray[Math.min(place, view.tray.length - 1)]);
    showAnswers();
    showTray();
  });
}

export function refit() {
  return change(async () => {
    say("Refitting …");
    const { current } = view;
    const image = view.labelled || (current && current.image);
    const result = await post("refit", image ? { image } : {});
    if (current && current.image === image) current.answer = { ...current.answer, ...result.after.answer };
    await refresh(true);
    showChange(result, image);
    say(`Refitted in ${result.seconds.toFixed(2)} s`, { seen: true });
  });
}

export function undo() {
  return change(async () => {
    const result = await post("undo", { revision: view.state.revision });
    $("change").hidden = true;
    view.labelled = null;
    await refresh(true);
    say(`Undone: ${result.undone}`);
  });
}

export function redo() {
  return change(async () => {
    const result = await post("redo");
    await refresh(true);
    say(`Done again: ${result.redone}`);
  });
}

function removeFromTray(image) {
  return change(async () => {
    await call("DELETE", `tray/${image}`);
    await refresh(true);
  });
}

// The state of the server, and whatever depends on it; other tabs may have changed it.
export async function refresh(force = false) {
  const { project } = view;
  const found = await get("model");
  if (view.project !== project) return; // it was left meanwhile
  if (!force && view.state && found.revision === view.state.revision && !found.fit) return;
  const same = view.state && found.revision === view.state.revision;
  view.state = found;
  onState();
  if (same && !force) return;
  const { images } = await get("tray");
  if (view.project !== project) return;
  view.tray = images;
  const { current } = view;
  if (current && !isLive()) {
    const row = view.tray.find((one) => one.image === current.image);
    if (row) current.answer = row;
    else if (current.blob) current.answer = await post("predict", current.blob).catch(() => current.answer); // its file may be gone
    showAnswers();
  }
  showTray();
}

export function move(step) {
  const { tray, current } = view;
  if (!tray.length) return;
  const place = current ? tray.findIndex((row) => row.image === current.image) : -1;
  lookAt(tray[Math.min(Math.max(place + step, 0), tray.length - 1)]);
}

// --- the camera, and a table of answers ---------------------------------------------------------

export async function toggleLive() {
  const video = $("live");
  if (isLive()) {
    stopLive(video);
  } else {
    try {
      await startLive(video, (answer, blob) => {
        view.current = { image: answer.image, blob, answer };
        showAnswers();
      });
      $("shown").hidden = $("invite").hidden = true;
      $("drop").classList.add("filled");
    } catch (error) {
      say(error.message, { bad: true });
    }
  }
  video.hidden = !isLive();
  $("live-toggle").setAttribute("aria-pressed", String(isLive()));
  if (!isLive()) {
    $("shown").hidden = !$("shown").getAttribute("src");
    $("invite").hidden = !$("shown").hidden;
  }
}

// A cell that a spreadsheet takes for text.
function cell(value) {
  const text = /^[=+\-@\t\r]/.test(String(value)) && typeof value === "string" ? `'${value}` : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// The answers of the tray, with the columns of `dca predict --csv` and the p-value.
export function answersAsTable() {
  const rows = [["path", "label", "probability", "p_value"]];
  for (const row of view.tray) {
    const best = row.top[0] || { label: "", probability: "" };
    rows.push([names.get(row.image) || row.image, row.none_of_these ? "none of these" : best.label, best.probability, row.p_value]);
  }
  return rows.map((cells) => `${cells.map(cell).join(",")}\n`).join("");
}

export function showSimilarToThis() {
  if (view.current) lookSimilar(view.current.image, "Photos like this one");
}
