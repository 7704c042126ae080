// The photos of a project, class by class: looking, selecting many, moving, deleting.

import { $, ask, button, element, pluralize, say, setText, showError, thumbnailElement } from "./elements.js";
import { call, get, post } from "./server.js";
import { change, refresh, view } from "./predict.js";
import { takePhotos } from "./camera.js";

// Photos of a class that are shown at first, with each further click, and in addition rather than offering so few.
const FEW = 12, MORE = 240, REST = 3;
const cards = new Map(); // label -> {box, list, version, shown, photos, total}
const selected = new Map(); // key of a photo -> photo
let lastClicked = null;

let chooseFiles = () => {};
export function whenFilesAreWanted(act) {
  chooseFiles = act;
}

// Brings the cards up to date; only classes that have changed are asked for again.
export async function showClasses() {
  const { classes } = view.state;
  const wanted = new Set(classes.map((one) => one.label));
  for (const [label, card] of cards) {
    if (!wanted.has(label)) { card.box.remove(); cards.delete(label); }
  }
  let before = null;
  for (const one of classes) {
    const card = cards.get(one.label) || makeCard(one.label);
    if (before ? before.nextSibling !== card.box : $("cards").firstChild !== card.box) {
      if (before) before.after(card.box); else $("cards").prepend(card.box);
    }
    before = card.box;
    setText(card.count, pluralize(one.images, "photo"));
    setText(card.recall, one.recall ? `${one.recall[0]} of ${one.recall[1]} recognised` : one.images === 1 ? "one photo: cannot be measured" : "");
    card.empty.hidden = one.images > 0;
    if (card.version !== one.version) {
      card.version = one.version;
      load(card).catch((error) => { card.version = -1; if (error.status !== 404) showError(error); });
    }
  }
}

function makeCard(label) {
  const act = (text, run, attributes = {}) => button(text, run, { "aria-label": `${text}: ${label}`, ...attributes });
  const card = {
    label, version: -1, shown: FEW, photos: [], total: 0,
    count: element("span", { class: "quiet" }), recall: element("span", { class: "quiet" }), list: element("ul", { class: "thumbs photos" }),
    more: button("", () => { card.shown += MORE; load(card).catch(showError); }, { class: "plain", hidden: true }),
    empty: element("p", { class: "quiet empty", text: "No photos yet. Drop some here, choose files, or use the camera. Eight different ones are a good start." }),
  };
  card.box = element(
    "article", { class: "card class-card", "aria-label": `Class ${label}`, "data-label": label },
    element("div", { class: "row class-head" }, element("h3", { text: label }), card.count, card.recall),
    element("div", { class: "row class-actions" },
      act("Add photos", () => chooseFiles(label)), act("Camera", () => takePhotos(label, () => refresh(true).catch(() => {}))),
      act("Rename", () => rename(label)), act("Merge", () => merge(label)), act("Delete", () => remove(label))),
    card.empty, card.list, card.more,
  );
  cards.set(label, card);
  return card;
}

async function load(card) {
  const own = card.loads = (card.loads || 0) + 1; // of several at a time the last one counts
  const where = new URLSearchParams({ class: card.label, start: 0, count: Math.min(card.shown, 500) });
  const found = await get(`photos?${where}`);
  let photos = found.photos;
  const wanted = found.total <= card.shown + REST ? found.total : card.shown;
  while (photos.length < wanted && photos.length) { // beyond what was asked for, or the most of one answer
    const next = new URLSearchParams({ class: card.label, start: photos.length, count: 500 });
    const rows = (await get(`photos?${next}`)).photos;
    if (!rows.length) break;
    photos = [...photos, ...rows];
  }
  if (own !== card.loads) return;
  card.total = found.total;
  const known = new Map(card.photos.map((photo, n) => [stateOf(photo), card.list.children[n]]));
  card.photos = photos;
  for (const key of [...selected.keys()]) {
    if (selected.get(key).label === card.label && !photos.some((photo) => photo.photo === key)) selected.delete(key);
  }
  const rows = photos.map((photo) => known.get(stateOf(photo)) || photoItem(photo, card));
  if (rows.length !== card.list.children.length || rows.some((row, n) => row !== card.list.children[n])) card.list.replaceChildren(...rows);
  card.more.hidden = photos.length >= found.total;
  setText(card.more, `Show ${Math.min(MORE, found.total - photos.length)} more of ${card.label}`);
  showSelection(card.list);
}

// What decides how a photo is shown: one that is not read yet has no picture.
const stateOf = (photo) => `${photo.photo} ${photo.read} ${photo.fault}`;

function picture(photo) {
  if (photo.fault) return element("span", { class: "caption bad-photo", text: `${photo.name} cannot be read` });
  return photo.read ? thumbnailElement(photo.image, "") : element("span", { class: "caption", text: "reading …" });
}

function photoItem(photo, card) {
  const made = element(
    "button", { type: "button", class: "thumb photo", "aria-pressed": "false", "aria-label": `${photo.name}, photo of ${photo.label}`, "data-photo": photo.photo, title: photo.fault || photo.name },
    picture(photo),
  );
  made.addEventListener("click", (event) => {
    if (event.shiftKey && lastClicked && lastClicked.label === card.label) {
      const place = (key) => card.photos.findIndex((one) => one.photo === key);
      const [from, to] = [place(lastClicked.photo), place(photo.photo)].sort((a, b) => a - b);
      for (const one of card.photos.slice(Math.max(from, 0), to + 1)) selected.set(one.photo, one);
    } else if (selected.has(photo.photo)) selected.delete(photo.photo);
    else selected.set(photo.photo, photo);
    lastClicked = photo;
    showSelection();
  });
  made.addEventListener("dblclick", () => { selected.delete(photo.photo); showSelection(); lookClosely(photo); });
  return element("li", {}, made);
}

// within: what may show other photos than before.
export function showSelection(within = $("cards")) {
  for (const made of within.querySelectorAll("[data-photo]")) {
    const pressed = String(selected.has(made.dataset.photo));
    if (made.getAttribute("aria-pressed") !== pressed) made.setAttribute("aria-pressed", pressed);
  }
  const count = selected.size;
  $("selection").hidden = !count;
  setText($("selection-count"), `${pluralize(count, "photo")} selected`);
  $("selection-look").hidden = count !== 1;
}

export function clearSelection() {
  selected.clear();
  showSelection();
}

export const hasSelection = () => selected.size > 0;

// A change of the project: shown as soon as the server has it on disk.
export function edit(path, body, words) {
  return change(async () => {
    view.state = await post(path, body);
    await refresh(true);
    say(`${words}. Undo takes it back.`);
  });
}

export async function moveSelected() {
  const to = await chooseClass(`Move ${pluralize(selected.size, "photo")} to which class?`);
  if (to) await moveTo([...selected.keys()], to);
}

export async function moveTo(keys, to) {
  await edit("photos/move", { photos: keys, to }, `Moved ${pluralize(keys.length, "photo")} to ${to}`);
  clearSelection();
}

export async function deletePhotos(keys) {
  await edit("photos/delete", { photos: keys }, `Deleted ${pluralize(keys.length, "photo")}`);
  clearSelection();
}

export const deleteSelected = () => deletePhotos([...selected.keys()]);
export const lookAtSelected = () => lookClosely([...selected.values()][0]);

// Asks for a class: one that is there, or a new one.
export function chooseClass(title, words = "") {
  return ask(title, { words, field: { label: "a class, known or new", list: "known" }, choices: [["Continue", "text", "strong"]] });
}

export async function createClass() {
  const name = await ask("A new class", { words: "Call it what a person would call it: the model reads the name, too.", field: { label: "name of the class" }, choices: [["Create", "text", "strong"]] });
  if (name) await edit("classes", { label: name }, `Created ${name}`);
}

async function rename(label) {
  const name = await ask(`Rename ${label}`, { field: { label: "new name", value: label }, choices: [["Rename", "text", "strong"]] });
  if (name && name !== label) await edit("classes/rename", { label, to: name }, `Renamed ${label} to ${name}`);
}

async function merge(label) {
  const others = view.state.classes.map((one) => one.label).filter((one) => one !== label);
  if (!others.length) return say("There is no other class to merge it with", { bad: true });
  const into = await ask(`Merge ${label} into which class?`, { words: "All its photos move there, and the class goes.", field: { label: "a class", list: "known" }, choices: [["Merge", "text", "strong"]] });
  if (into) await edit("classes/merge", { label, to: into }, `Merged ${label} into ${into}`);
}

const remove = (label) => edit("classes/delete", { label }, `Deleted the class ${label}`);

// --- one photo, large, and those that look like it ------------------------------------------------

let looked = null, lookedAddress = "";
export async function lookClosely(photo) {
  looked = photo;
  $("closer-title").textContent = `${photo.name}, ${photo.label}`;
  $("closer-image").alt = `Photo of ${photo.label}`;
  $("closer-image").removeAttribute("src");
  $("closer-actions").hidden = $("closer-image").hidden = false;
  $("closer-similar").replaceChildren();
  if (!$("closer").open) $("closer").showModal();
  try {
    const blob = await (await call("GET", `photos/${photo.photo}?large=1`)).blob();
    if (lookedAddress) URL.revokeObjectURL(lookedAddress);
    $("closer-image").src = lookedAddress = URL.createObjectURL(blob);
    await showSimilar(photo.photo);
  } catch (error) {
    showError(error);
  }
}

// Photos of the project like an image that was tried; image: its hash.
export async function lookSimilar(image, title) {
  looked = null;
  $("closer-title").textContent = title;
  $("closer-actions").hidden = $("closer-image").hidden = true;
  $("closer").showModal();
  await showSimilar(image).catch(showError);
}

async function showSimilar(image) {
  const { photos } = await get(`similar/${image}`);
  const rows = photos.map(({ photo, similarity }) => element("li", {}, element(
    "button", { type: "button", class: "thumb", "aria-label": `${photo.name}, photo of ${photo.label}, similarity ${similarity.toFixed(2)}`, onclick: () => lookClosely(photo) },
    thumbnailElement(photo.image, ""), element("span", { class: "caption" }, photo.label, element("span", { class: "quiet", text: ` ${similarity.toFixed(2)}` })),
  )));
  $("closer-similar").replaceChildren(...rows);
}

export function listenToCloser() {
  const act = (run) => async () => { const photo = looked; $("closer").close(); if (photo) await run(photo); };
  $("closer-move").addEventListener("click", act(async (photo) => {
    const to = await chooseClass(`Move ${photo.name} to which class?`);
    if (to) await moveTo([photo.photo], to);
  }));
  $("closer-delete").addEventListener("click", act((photo) => deletePhotos([photo.photo])));
  $("closer-close").addEventListener("click", () => $("closer").close());
}
