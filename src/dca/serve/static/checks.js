// What the last fit found out: how good the model is, doubtful labels one by one, copies, and what photos to take next.

import { $, button, element, percent, pluralize, setText, showError, thumbnailElement } from "./elements.js";
import { call, get } from "./server.js";
import { view } from "./predict.js";
import { deletePhotos, edit, moveTo } from "./photos.js";

let findings = null, skipped = new Set(), seenRevision = -1, shownFindings = "";

export async function showFindings() {
  showQuality();
  if (view.state.revision === seenRevision) return;
  seenRevision = view.state.revision;
  const { revision, ...found } = await get("findings").catch((error) => { seenRevision = -1; throw error; });
  const unreadable = view.state.unreadable ? (await get("photos?unreadable=1&count=50")).photos : [];
  const now = JSON.stringify([found, unreadable]);
  if (now === shownFindings) return;
  shownFindings = now;
  findings = found;
  showAdvice();
  showDoubtful();
  showCopies(unreadable);
}

let shownCaveats = "";
// How the fit stands, and what is to be expected of the model.
function showQuality() {
  const { fit, accuracy, fitted, reading, photos, classes } = view.state;
  const words = [];
  if (reading) words.push(`Reading ${pluralize(reading, "photo")} …`);
  if (fit.status === "fitting") words.push(`Learning … ${Math.round(fit.seconds)} s${fit.expected ? ` of about ${Math.max(1, Math.round(fit.expected))} s` : ""}`);
  else if (fit.status === "impossible") words.push(sayWhatIsMissing(fit.reason, photos, classes));
  else if (classes.filter((one) => one.images).length < 2) words.push(sayWhatIsMissing("", photos, classes));
  else if (!fitted) words.push("The model will learn the latest changes in a moment.");
  else words.push(`The model knows all ${pluralize(photos, "photo")} (learned in ${fit.seconds.toFixed(1)} s).`);
  setText($("fit-words"), words.join(" "));
  const busy = fit.status === "fitting" || reading > 0;
  $("fit-bar").hidden = !busy;
  if (busy && fit.status === "fitting" && fit.expected) $("fit-bar").value = Math.min(0.97, fit.seconds / fit.expected);
  else if (busy) $("fit-bar").removeAttribute("value");
  $("estimate").hidden = !accuracy;
  if (accuracy) {
    setText($("estimate-value"), percent(accuracy.value));
    setText($("estimate-words"), `of new photos like these should be recognised (mean over classes; 95 % interval ${Math.round(100 * accuracy.low)} to ${Math.round(100 * accuracy.high)} %, ${accuracy.how} on ${pluralize(accuracy.images, "photo")})`);
    if (accuracy.caveats.join("\n") !== shownCaveats) $("caveats").replaceChildren(...accuracy.caveats.map((text) => element("li", { text })));
    shownCaveats = accuracy.caveats.join("\n");
  }
}

function sayWhatIsMissing(reason, photos, classes) {
  if (!classes.length) return "Begin with a class: drop a folder of photos, or create one.";
  if (!photos) return "Now add photos: drop them on a class, choose files, or use the camera.";
  if (classes.filter((one) => one.images).length < 2) return "One class has photos. Add photos of a second one, and the model begins to learn.";
  return `No model: ${reason}.`;
}

function showAdvice() {
  const rows = [];
  for (const { labels, images } of findings.confused) rows.push(`${labels[0]} and ${labels[1]} are confused (${pluralize(images, "photo")}).`);
  for (const { label, missed, n, rival } of findings.needed.slice(0, 3)) {
    if (missed) rows.push(`Next, take photos of ${label}: ${missed} of ${n} were not recognised, mostly taken for ${rival}. Vary what sets the two apart.`);
  }
  for (const label of findings.unmeasured) rows.push(`${label} has one photo, or copies or a series of one: it is not in the expected accuracy. Add a second, different one.`);
  if (findings.more) {
    const gain = Math.round(100 * findings.more.gain);
    if (gain > 0) rows.push(`${findings.more.shots} photos per class would bring about +${pluralize(gain, "point")}.`);
  }
  rows.push(...findings.notes);
  $("advice").replaceChildren(...rows.map((text) => element("li", { text })));
  $("advice-box").hidden = !rows.length;
}

function nextDoubtful() {
  return findings && findings.doubtful.find((row) => !skipped.has(row.photo.photo));
}

function showDoubtful() {
  const row = nextDoubtful();
  $("doubtful").hidden = !row;
  if (!row) { skipped = new Set(); return; }
  $("doubtful-title").textContent = `Is this really ${row.photo.label}?`;
  $("doubtful-words").textContent = `A model that has not seen it says ${row.suggested} (${percent(row.probability)}; ${row.photo.label} ${percent(row.own)}). ${pluralize(findings.doubtful.length, "label")} to check.`;
  $("doubtful-image").replaceChildren(thumbnailElement(row.photo.image, `Photo ${row.photo.name} of ${row.photo.label}`));
  $("doubtful-keep").firstChild.textContent = `It is ${row.photo.label} `;
  $("doubtful-move").firstChild.textContent = `It is ${row.suggested} `;
}

export const DOUBTFUL_KEYS = { y: "keep", m: "move", x: "delete", s: "skip" };

// One answer to the doubtful label that is shown; false if none is.
export function answerDoubtful(how) {
  const row = nextDoubtful();
  if (!row || $("doubtful").hidden) return false;
  const keys = [row.photo.photo];
  if (how === "keep") edit("photos/confirm", { photos: keys }, `Kept as ${row.photo.label}`);
  else if (how === "move") moveTo(keys, row.suggested);
  else if (how === "delete") deletePhotos(keys);
  else { skipped.add(row.photo.photo); showDoubtful(); }
  return true;
}

const MOST_GROUPS = 12;
function showCopies(unreadable) {
  const groups = findings.copies;
  $("tidy").hidden = !groups.length && !unreadable.length;
  const rows = groups.slice(0, MOST_GROUPS).map((group) => {
    const labels = new Set(group.map((photo) => photo.label));
    const words = labels.size > 1 ? `The same photo in ${[...labels].join(" and ")}: one label is wrong.` : `${group.length} that are the same, or nearly, in ${group[0].label}: they count as one.`;
    const rest = group.slice(1).map((photo) => photo.photo);
    return element("li", {}, element("p", { text: words }),
      element("ul", { class: "thumbs small" }, ...group.map((photo) => element("li", {}, thumbnailElement(photo.image, `${photo.name} of ${photo.label}`), element("span", { class: "caption", text: photo.label }),
        button("Delete", () => deletePhotos([photo.photo]), { class: "plain", "aria-label": `Delete ${photo.name} of ${photo.label}` })))),
      ...(labels.size === 1 ? [button("Keep the first only", () => deletePhotos(rest))] : []));
  });
  if (unreadable.length) {
    const list = unreadable.map((photo) => element("li", { text: `${photo.label}/${photo.name}: ${photo.fault}` }));
    rows.push(element("li", {}, element("p", { text: `Left out, because they cannot be read: ${pluralize(view.state.unreadable, "file")}.` }), element("ul", { class: "lines" }, ...list), button("Delete them", () => deletePhotos(unreadable.map((photo) => photo.photo)))));
  }
  const more = groups.length - MOST_GROUPS;
  if (more > 0) rows.push(element("li", { class: "quiet", text: `and ${pluralize(more, "more group")}` }));
  $("tidy-list").replaceChildren(...rows);
}

export function listenToDoubtful() {
  for (const how of Object.values(DOUBTFUL_KEYS)) $(`doubtful-${how}`).addEventListener("click", () => answerDoubtful(how));
}
