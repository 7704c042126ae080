// The projects of a workspace: choosing one, making one, and showing the one that is open.

import { $, ask, button, element, pluralize, setText, showError } from "./elements.js";
import { get, post, setBase } from "./server.js";
import { refresh, view } from "./predict.js";
import { chooseClass, showClasses } from "./photos.js";
import { showFindings } from "./checks.js";
import { isUploading, nameClasses, upload } from "./files.js";

const nameInAddress = () => decodeURIComponent(location.hash.slice(1));

// The page begins anew with a project, so that nothing of another one stays on it.
function goTo(name) {
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  location.reload();
}

// Opens the project in the address, or the one that was used last; without any, asks for one.
export async function openWorkspace({ projects, folder }) {
  document.body.classList.add("app");
  $("workspace-folder").textContent = folder;
  const wanted = nameInAddress() || projects[0];
  if (wanted && projects.includes(wanted)) await openProject(wanted);
  else showProjects(projects);
}

function showProjects(projects) {
  view.project = "";
  view.state = null;
  document.body.classList.add("choosing");
  document.title = "dca";
  $("title").textContent = "dca";
  $("subtitle").textContent = "Teach the computer to tell your photos apart";
  $("projects").replaceChildren(...projects.map((name) => element("li", {}, button(name, () => goTo(name), { class: "project" }))));
  $("projects-title").hidden = !projects.length;
  if (!projects.length) $("project-name").focus();
}

export async function listProjects() {
  if (isUploading()) throw new Error("Photos are still being saved: wait until they are, or press Stop");
  history.replaceState(null, "", "#/"); // no project is called "/"
  showProjects((await get("/api/workspace")).projects);
}

export async function createProject(name) {
  const { project } = await post("/api/projects", { name });
  goTo(project);
}

async function openProject(name) {
  setBase(`/api/projects/${encodeURIComponent(name)}`);
  view.project = name;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  await refresh(true);
}

// A name as one word of a command.
const quote = (name) => (/^[\w@%+=:,./-]+$/.test(name) ? name : `'${name.replaceAll("'", `'"'"'`)}'`);

export function showProject() {
  const { state } = view;
  document.title = `${state.project} – dca`;
  setText($("title"), state.project);
  setText($("subtitle"), `${pluralize(state.photos, "photo")} in ${pluralize(state.classes.length, "class")}`);
  $("undo").disabled = view.busy || !state.undo;
  $("undo").title = state.undo ? `Undo: ${state.undo}` : "Nothing to undo";
  $("redo").disabled = view.busy || !state.redo;
  $("redo").title = state.redo ? `Redo: ${state.redo}` : "Nothing to redo";
  $("teach").hidden = state.photos > 0;
  setText($("board-title-count"), String(state.classes.length));
  setText($("folder"), state.folder);
  setText($("command"), `dca predict ${quote(state.model)} IMAGE...`);
  for (const made of document.querySelectorAll("[data-download]")) if (!made.hasAttribute("aria-busy")) made.disabled = !state.accuracy && !state.method;
  setText($("ship-words"), state.method ? "Everything works without this page, and without a network." : "There is nothing to take away yet: first add photos of two classes.");
  showClasses().catch(showError);
  showFindings().catch((error) => { if (error.status !== 404) showError(error); });
}

// Adds images to the class that is given, or to those of their folders; asks where there is neither.
export async function addPhotos({ images, others }, label = null) {
  if (!images.length) {
    if (others.length) throw new Error(`no image is among the ${pluralize(others.length, "file")}: ${others.slice(0, 3).join(", ")}`);
    return;
  }
  if (label === null) nameClasses(images);
  else for (const image of images) image.label = label;
  const loose = images.filter((image) => image.label === null);
  if (loose.length) {
    const to = await chooseClass(loose.length === 1 ? "Which class is this photo?" : `Which class are these ${loose.length} photos?`, "Photos of several classes? Drop folders, or a zip with one folder per class.");
    for (const image of loose) image.label = to;
    images = images.filter((image) => image.label !== null);
  }
  const classes = new Set(images.map((image) => image.label));
  const MANY = 300;
  if (classes.size > MANY && !(await ask(`${classes.size} classes?`, { words: "Each folder becomes a class.", choices: [["Add them", true, "strong"]] }))) return;
  await upload(images);
  await refresh(true);
}

export const mayLeave = () => !isUploading();
