// The page of `dca serve` and `dca app`: no libraries, no build step, nothing from other hosts.

import { $, element, percent, pluralize, say, setText, showError } from "./elements.js";
import { get, readTokenFromAddress, useToken, whenTokenNeeded } from "./server.js";
import { change, label, move, redo, refit, refresh, showSimilarToThis, toggleLive, tryImages, undo, view, whenStateChanges } from "./predict.js";
import { addPhotos, createProject, listProjects, mayLeave, openWorkspace, showProject } from "./project.js";
import { clearSelection, createClass, deleteSelected, hasSelection, listenToCloser, lookAtSelected, moveSelected, whenFilesAreWanted } from "./photos.js";
import { answerDoubtful, DOUBTFUL_KEYS, listenToDoubtful } from "./checks.js";
import { collect, isUploading, stopUploads } from "./files.js";
import { listenToDownloads } from "./downloads.js";

const POLL_MS = 2500, BUSY_POLL_MS = 900;

// --- showing a model without a project -----------------------------------------------------------

function showModel() {
  const { state, busy } = view;
  const accuracy = state.accuracy;
  document.title = `${state.model} – dca`;
  $("title").textContent = state.model;
  $("subtitle").textContent = `${state.method} on ${state.backbone}, ${pluralize(state.classes.filter((c) => !c.new).length, "class")}`;
  $("accuracy-box").hidden = !accuracy;
  if (accuracy) {
    const range = `${Math.round(100 * accuracy.low)}–${Math.round(100 * accuracy.high)} %`;
    $("accuracy").replaceChildren(percent(accuracy.value), " ", element("span", { class: "fine", text: `(${range})` }));
    $("accuracy").title = `${accuracy.how} on ${pluralize(accuracy.images, "training image")}, 95 % interval`;
  }
  $("accuracy-caveats").hidden = !accuracy || !accuracy.caveats.length;
  $("accuracy-caveats").textContent = accuracy ? `Expected accuracy: ${accuracy.caveats.join(" ")}` : "";
  const waiting = state.pending ? element("span", { class: "fine", text: ` ${state.pending} not in the model yet` }) : "";
  $("corrections").replaceChildren(String(state.corrections), waiting);
  $("refit").disabled = busy || !state.refit.possible || !state.pending;
  $("undo").disabled = busy || !state.undo;
  $("undo").title = state.undo ? `Undo: ${state.undo} (${pluralize(state.undo_steps, "step")} back at most)` : "Nothing to undo";
  const notice = $("no-refit");
  const { failure } = state.refit;
  notice.hidden = state.refit.possible && !failure;
  if (failure) {
    const details = failure.details ? ` (${failure.details.join("; ")})` : "";
    notice.textContent = `The corrections are not in the model: ${failure.message}${details}. To mend it: ${failure.hint}.`;
  } else if (!state.refit.possible) {
    notice.replaceChildren(
      `Refit is not possible here: ${state.refit.reason}. Corrections are kept; where the training images are, run`,
      element("code", { text: state.refit.command }),
    );
  }
  showQuota();
  $("class-count").textContent = state.classes.length;
  $("classes").replaceChildren(...state.classes.map((one) => {
    const chip = element("li", { class: one.new ? "new" : "" }, one.label);
    chip.append(element("span", { class: "count", text: one.new ? "new" : one.images, title: "training images" }));
    if (one.pending) chip.append(element("span", { class: "more", text: `+${one.pending}`, title: "corrections that wait for Refit" }));
    return chip;
  }));
}

// Said before the quota is used up, from four fifths on.
const QUOTA_SHARE = 0.8;
function showQuota() {
  const { quota, corrections, limits } = view.state;
  const images = `${quota.images.toLocaleString("en")} corrections`;
  const bytes = `${(quota.bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`;
  const used = `${corrections.toLocaleString("en")} of ${images} and ${(quota.used_bytes / 1e6).toFixed(1)} of ${bytes}`;
  $("limits").textContent = `Up to ${images} (${bytes}) are kept; the last ${pluralize(limits.undo_steps, "step")} can be undone.`;
  $("quota").hidden = corrections < QUOTA_SHARE * quota.images && quota.used_bytes < QUOTA_SHARE * quota.bytes;
  $("quota").textContent = `${used} are used. When they are used up, ${quota.hint}.`;
}

function showRejection() {
  const { rejection } = view.state;
  if (!rejection) return setText($("rejection"), "");
  const { rate, images, needed } = rejection;
  const why = images < needed ? `it takes ${needed} training images that can be left out, as many of each class, and these are worth ${images}` : "switched off";
  setText($("rejection"), rate === null
    ? `The answer “none of these” is not given: ${why}.`
    : `“None of these” is for images with p ≤ ${rate.toFixed(3)}; about ${percent(rate)} of good images have that, too.`);
}

let shownLabels = "";
function showState() {
  if (view.project) showProject();
  else showModel();
  showRejection();
  const known = view.state.classes.map((one) => one.label);
  if (known.join("\n") !== shownLabels) $("known").replaceChildren(...known.map((value) => element("option", { value })));
  shownLabels = known.join("\n");
}

// --- files that are dropped, pasted or chosen ------------------------------------------------------

let wantedClass = null; // where chosen files go: a class, or null for those of their folders

async function take(transfer, { label: to, trying }) {
  try {
    const found = await collect(transfer);
    if (trying || !view.project) {
      if (!found.images.length) return say("That is not an image", { bad: true });
      return await tryImages(found.images);
    }
    await addPhotos(found, to);
  } catch (error) {
    showError(error);
  }
}

function onDrop(event) {
  event.preventDefault();
  document.body.classList.remove("over");
  if (document.body.classList.contains("choosing")) return say("First give the project a name", { bad: true });
  const card = event.target.closest && event.target.closest(".class-card");
  const trying = !view.project || Boolean(event.target.closest && event.target.closest(".try"));
  take(event.dataTransfer, { label: card ? card.dataset.label : null, trying });
}

function onPaste(event) {
  if (!event.clipboardData.files.length || document.body.classList.contains("choosing")) return;
  const card = document.activeElement && document.activeElement.closest(".class-card");
  take(event.clipboardData, { label: card ? card.dataset.label : null, trying: !card });
}

function chooseFiles(to, { folder = false } = {}) {
  wantedClass = to;
  $(folder ? "folder-input" : "photo-input").click();
}

function onChosen(input, options) {
  const files = [...input.files];
  take({ files }, options);
  input.value = "";
}

// --- keys -------------------------------------------------------------------------------------

const KEYS = {
  o: () => $("choose").click(),
  r: () => { if (!view.project && !$("refit").disabled) refit(); },
  u: () => { if (!$("undo").disabled) undo(); },
  n: () => { if (!$("other").hidden) $("other-label").focus(); },
  c: () => { if (view.project) createClass(); },
  Escape: clearSelection,
  Delete: () => { if (hasSelection()) deleteSelected(); },
  ArrowRight: () => move(1),
  ArrowLeft: () => move(-1),
};

function onKey(event) {
  const typing = event.target instanceof HTMLInputElement;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing || !view.state) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if ((event.ctrlKey || event.metaKey) && key === "z") {
    event.preventDefault();
    if (event.shiftKey) { if (!$("redo").disabled && view.project) redo(); } else KEYS.u();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = view.current ? view.current.answer.top : [];
  if (/^[1-9]$/.test(event.key) && rows[event.key - 1]) return label(rows[event.key - 1].label);
  if (view.project && DOUBTFUL_KEYS[key] && answerDoubtful(DOUBTFUL_KEYS[key])) return event.preventDefault();
  const action = KEYS[key];
  if (action) {
    event.preventDefault();
    action();
  }
}

// --- start ------------------------------------------------------------------------------------

function listen() {
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
  document.addEventListener("drop", onDrop);
  document.addEventListener("paste", onPaste);
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && view.state && !view.busy) refresh().catch(showError); });
  window.addEventListener("beforeunload", (event) => { if (!mayLeave()) event.preventDefault(); });
  window.addEventListener("hashchange", () => { if (document.body.classList.contains("app")) location.reload(); });
  const on = (id, run) => $(id).addEventListener("click", run);
  on("choose", () => $("file").click());
  $("file").addEventListener("change", () => onChosen($("file"), { trying: true }));
  on("add-folder", () => chooseFiles(null, { folder: true }));
  on("add-zip", () => chooseFiles(null));
  $("photo-input").addEventListener("change", () => onChosen($("photo-input"), { label: wantedClass }));
  $("folder-input").addEventListener("change", () => onChosen($("folder-input"), { label: wantedClass }));
  whenFilesAreWanted(chooseFiles);
  on("refit", refit);
  on("undo", undo);
  on("redo", redo);
  on("new-class", createClass);
  on("live-toggle", toggleLive);
  on("similar-to-this", showSimilarToThis);
  on("progress-stop", stopUploads);
  on("selection-move", moveSelected);
  on("selection-delete", deleteSelected);
  on("selection-look", lookAtSelected);
  on("selection-clear", clearSelection);
  on("all-projects", () => listProjects().catch(showError));
  on("camera-close", () => $("camera").close());
  for (const link of document.querySelectorAll("[data-jump]")) { // the address keeps the name of the project
    link.addEventListener("click", (event) => { event.preventDefault(); $(link.dataset.jump).scrollIntoView(); });
  }
  listenToCloser();
  listenToDoubtful();
  listenToDownloads();
  $("other").addEventListener("submit", (event) => {
    event.preventDefault();
    $("other-label").blur();
    label($("other-label").value);
  });
  $("new-project").addEventListener("submit", (event) => {
    event.preventDefault();
    change(async () => { await createProject($("project-name").value); $("project-name").value = ""; });
  });
  $("token-form").addEventListener("submit", (event) => { event.preventDefault(); start($("token").value.trim().split("#token=").pop()); });
}

let away = false, lookedAt = 0;
async function poll() {
  const { state } = view;
  const learning = state && state.fit && (state.fit.status !== "impossible" && !state.fitted || state.reading > 0);
  const due = learning || isUploading() || performance.now() - lookedAt >= POLL_MS;
  if (due && state && !view.busy && !document.hidden) {
    lookedAt = performance.now();
    await refresh().then(() => { if (away) say("The server answers again"); away = false; }).catch((error) => {
      if (error.status === 401) return;
      if (!away || error.status !== 0) showError(error);
      away = error.status === 0;
    });
  }
  setTimeout(poll, BUSY_POLL_MS);
}

async function start(given) {
  useToken(given);
  try {
    const workspace = await get("/api/workspace");
    $("token-form").hidden = true;
    document.body.classList.remove("locked");
    if (workspace.projects) await openWorkspace(workspace);
    else await refresh(true);
  } catch (error) {
    if (error.status !== 401 || given) showError(error);
  }
}

whenTokenNeeded(() => { $("token-form").hidden = false; document.body.classList.add("locked"); });
whenStateChanges(showState);
listen();
start(readTokenFromAddress()).then(poll);
