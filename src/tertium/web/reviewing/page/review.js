// The page asks for an image with its questions, sends each answer, and goes on when the server says that it
// is on disk.

import { at, make } from "/dom.js";
import { Photo, STEP } from "/photo.js";

const KEYS = { y: "present", ArrowRight: "present", n: "absent", ArrowLeft: "absent", s: "skip" };
const WORDS = { present: "Present", absent: "Absent", skip: "Skip" };
const PAUSE = 1500; // milliseconds between attempts while the server does not answer

const photo = new Photo({
  box: at("picture"), layers: at("layers"), image: at("image"), note: at("unseen"),
  level: at("level"), closer: at("closer"), farther: at("farther"), whole: at("whole"),
});
const page = {
  about: {},
  state: null, // what the server said last: sheet, counts, classes …
  current: 0, // the question that keys answer
  busy: true, // from an answer until the next question can be seen
  heat: localStorage.getItem("tertium-heat") === "on",
  pending: false, // something was pressed of which the server has not said that it is on disk
  slow: 0, // the timer after which a map is said to take its time
  looked: 0, // milliseconds for which the questions could be answered since the last answer
  since: null, // when they could be seen again; null while they cannot
  window: windowId(),
};

function windowId() {
  // A reload goes on with the same image; a duplicated tab, which copies the storage, is another window.
  const kept = sessionStorage.getItem("tertium-window");
  const [visit] = performance.getEntriesByType("navigation");
  const id = kept && visit && visit.type === "reload" ? kept : newId();
  sessionStorage.setItem("tertium-window", id);
  return id;
}

function newId() {
  // crypto.randomUUID is missing where the page is reached by plain HTTP from elsewhere.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// ---- the server --------------------------------------------------------------------------------------------

async function post(path, body) {
  const whole = JSON.stringify({ who: at("who").value.trim() || page.about.who, window: page.window, ...body });
  page.pending = path !== "/api/next";
  for (;;) {
    let reply = null;
    try {
      reply = await fetch(path, {
        method: "POST", body: whole, headers: { "Content-Type": "application/json", "X-Tertium": "review" },
      });
    } catch {
      say("Not saved yet: the server does not answer. Trying again …", true);
      await new Promise((done) => setTimeout(done, PAUSE));
      continue; // a step has an id: sent twice, it counts once
    }
    page.pending = false;
    if (reply.ok) return reply.json();
    if (reply.status === 409) location.reload(); // other questions are asked by now
    const text = await reply.text();
    throw new Error(reply.headers.get("Content-Type") === "application/json" ? JSON.parse(text).error : text);
  }
}

async function act(work) {
  if (page.busy) {
    if (at("main").classList.contains("loading")) say("Not counted: the photo is not there yet.");
    return;
  }
  setBusy(true);
  try {
    await work();
  } catch (error) {
    say(error.message, true);
    setBusy(false);
  }
}

function setBusy(busy) {
  page.busy = busy;
  at("main").setAttribute("aria-busy", String(busy));
  watch();
}

// ---- how long an answer takes ------------------------------------------------------------------------------

function watch() {
  // Time counts only while there is something to see: not while a photo loads, nor in a hidden tab.
  if (page.since !== null) page.looked += performance.now() - page.since;
  page.since = page.busy || document.hidden ? null : performance.now();
}

function taken() {
  watch();
  const seconds = page.looked / 1000;
  page.looked = 0;
  return seconds;
}

// ---- what a person does ------------------------------------------------------------------------------------

const questions = () => page.state?.sheet?.questions ?? [];
const open = () => questions().filter((question) => question.said === null);

// What the server says of the round, and of the questions on the screen, after an answer or an undo.
function take(reply) {
  Object.assign(page.state, reply, { sheet: reply.sheet ?? page.state.sheet });
}

async function next() {
  const only = at("only").value || null;
  page.state = await post("/api/next", { only });
  page.looked = 0;
  page.current = Math.max(0, following(page.state.sheet?.next, -1));
  await show();
}

// Where to go on: the question that tells most by now, if answers tell, else the next open one after a place.
function following(number, place) {
  const isOpen = (question) => question.said === null;
  const telling = questions().findIndex((question) => isOpen(question) && question.number === number);
  if (telling >= 0) return telling;
  const later = questions().findIndex((question, index) => index > place && isOpen(question));
  return later >= 0 ? later : questions().findIndex(isOpen);
}

const answer = (asked, said) => act(async () => {
  if (said !== "skip" && page.about.images && !photo.isShown) {
    say("Only skip is possible: there is no photo to answer about.", true);
    setBusy(false);
    return;
  }
  const focused = document.activeElement?.dataset?.said; // who works by Tab and Enter stays on that button
  const body = {
    step: newId(), round: page.state.round, heat: page.heat && page.about.heat, seconds: taken(),
    answers: asked.map((question) => ({ number: question.number, said })),
  };
  const counts = await post("/api/answer", body);
  if (counts.round !== page.state.round) location.reload(); // saved; but other questions are asked by now
  const { chances, certain } = counts; // what the answers say of the image's other labels
  take(counts);
  for (const question of asked) question.said = said;
  for (const question of questions()) question.probability = chances[question.number] ?? question.probability;
  const current = questions()[page.current];
  page.state.sheet.questions = questions().filter((each) => each.said || !certain.includes(each.number));
  page.current = questions().indexOf(current);
  say(`${asked.map((question) => question.label).join(", ")}: ${said === "skip" ? "skipped" : said}. Saved.`);
  if (open().length === 0) {
    await next();
  } else {
    page.current = following(counts.next, page.current);
    showProgress();
    showQuestions();
    showHeat();
    setBusy(false);
  }
  if (focused) at("questions").querySelector(`[aria-current=true] [data-said=${focused}]`)?.focus();
});

const undo = () => act(async () => {
  const back = await post("/api/undo", { step: newId(), round: page.state.round });
  const { undone } = back;
  take(back);
  if (undone.length === 0) {
    say("There is nothing to undo.");
    setBusy(false);
    return;
  }
  page.current = questions().findIndex((question) => question.label === undone[0]);
  say(`Taken back: ${undone.join(", ")}.`);
  await show();
});

const answerRest = () => answer(open(), "absent");

function move(step) {
  const count = questions().length;
  if (!count || page.busy) return;
  page.current = (page.current + step + count) % count;
  showQuestions();
  showHeat();
  at("questions").querySelector("[aria-current=true]").scrollIntoView({ block: "nearest" });
}

function look() {
  if (!page.about.heat) return;
  page.heat = !page.heat;
  localStorage.setItem("tertium-heat", page.heat ? "on" : "off");
  showHeat();
}

// ---- what is shown -----------------------------------------------------------------------------------------

function say(text, bad = false) {
  at("status").textContent = text;
  at("status").classList.toggle("bad", bad);
}

async function show() {
  showProgress();
  const { sheet } = page.state;
  at("sheet").hidden = !sheet;
  at("end").hidden = Boolean(sheet);
  if (!sheet) {
    showEnd();
    setBusy(false);
    return;
  }
  at("name").textContent = sheet.image;
  showQuestions();
  showHeat();
  await showImage(sheet);
  setBusy(false); // only now: nobody answers about an image that is not there yet
}

async function showImage(sheet) {
  if (!page.about.images) {
    photo.clear("No images were given: look this one up by its name.");
    return;
  }
  const source = address("image", sheet.row);
  at("main").classList.add("loading");
  if (!(await photo.show(source, sheet.image))) {
    photo.clear(`${await reason(source)} Only skip is possible.`);
  }
  at("main").classList.remove("loading");
  if (page.state.ahead !== null) new Image().src = address("image", page.state.ahead);
}

const address = (kind, number) => `/${kind}/${number}?of=${encodeURIComponent(page.state.version)}`;

async function reason(source) {
  try {
    return `Nothing to show: ${await (await fetch(source)).text()}.`;
  } catch {
    return "Nothing to show: the server does not answer.";
  }
}

function showHeat() {
  const heat = at("heat");
  const question = questions()[page.current];
  at("look").hidden = !page.about.heat;
  at("look").setAttribute("aria-pressed", String(page.heat));
  heat.hidden = at("legend").hidden = true;
  clearTimeout(page.slow);
  if (!page.heat || !page.about.heat || !question) return;
  heat.alt = `Where the model looks for ${question.label}`;
  at("looked").textContent = question.label;
  page.slow = setTimeout(() => say("Finding where the model looks …"), PAUSE / 3); // the first time loads it
  heat.onload = () => {
    clearTimeout(page.slow);
    if (at("status").textContent.startsWith("Finding")) say("");
    heat.hidden = at("legend").hidden = !page.heat;
  };
  heat.onerror = async () => {
    clearTimeout(page.slow);
    say(await reason(heat.src));
  };
  heat.src = address("heat", question.number);
}

function showProgress() {
  const { counts, classes, contradictions, undoable, wanted } = page.state;
  at("undo").disabled = at("end-undo").disabled = !undoable;
  at("bar").max = counts.total || 1;
  at("bar").value = counts.answered;
  const each = wanted > 1 ? ` by ${wanted} people` : "";
  at("counts").textContent =
    `${counts.answered} of ${counts.total} answered${each} · by you: ${counts.present} present, ` +
    `${counts.absent} absent, ${counts.skip} skipped`;
  const only = at("only");
  const chosen = only.value;
  const all = make("option", "", "all classes");
  all.value = "";
  const options = classes.map(([name, count]) => {
    const option = make("option", "", `${name} (${count})`);
    option.value = name;
    return option;
  });
  only.replaceChildren(all, ...options);
  only.value = chosen;
  const { people, labels } = contradictions;
  const parts = [];
  if (people) parts.push(`${people} between people`);
  if (labels) parts.push(`${labels} with the label file`);
  at("clashes").textContent = parts.length ? `Contradictions: ${parts.join(", ")}` : "No contradictions";
  at("clashes").classList.toggle("some", parts.length > 0);
  if (parts.length) at("clashes").href = "/answers-contradictions.csv";
  else at("clashes").removeAttribute("href");
}

function showQuestions() {
  at("questions").replaceChildren(...questions().map(questionCard));
  at("rest").hidden = open().length < 2;
  at("rest").firstChild.textContent = `All ${open().length} remaining absent `;
}

function questionCard(question, place) {
  const card = make("li", "question");
  card.setAttribute("aria-current", String(place === page.current));
  if (question.said) card.dataset.said = question.said;
  const line = make("div", "line");
  line.append(
    make("span", "label", question.label),
    make("span", "chance", `${Math.round(100 * question.probability)} % likely`),
  );
  const bar = make("progress", "likely");
  bar.max = 1;
  bar.value = question.probability;
  bar.setAttribute("aria-hidden", "true"); // the words say it
  card.append(line, bar, make("p", "why", question.why), buttonsOf(question));
  if (place === page.current && page.about.images) card.append(examplesOf(question));
  card.addEventListener("click", (event) => {
    if (event.target.closest("button") || page.busy || place === page.current) return;
    page.current = place;
    showQuestions();
    showHeat();
  });
  return card;
}

function buttonsOf(question) {
  const row = make("div", "buttons");
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", `Is ${question.label} in the image?`);
  for (const [said, word] of Object.entries(WORDS)) {
    const button = make("button", said, `${word} `);
    button.type = "button";
    button.dataset.said = said;
    button.setAttribute("aria-label", `${word}: ${question.label}`);
    button.setAttribute("aria-pressed", String(question.said === said));
    button.append(make("kbd", "", Object.keys(KEYS).find((key) => KEYS[key] === said)));
    button.addEventListener("click", () => answer([question], said));
    row.append(button);
  }
  return row;
}

function examplesOf(question) {
  const box = make("div", "examples");
  const { examples, label } = question;
  box.append(examples.length ? `Known examples of ${label}` : `No example of ${label} is known yet.`);
  const row = make("div");
  for (const { row: number, image } of examples) {
    const thumb = make("img");
    thumb.src = address("thumb", number);
    thumb.alt = thumb.title = image;
    row.append(thumb);
  }
  box.append(row);
  return box;
}

function showEnd() {
  const { waiting, counts } = page.state;
  const only = at("only").value;
  at("end-title").textContent = waiting ? "Others have the rest" : only ? `No more questions about ${only}` : "No more questions";
  at("end-text").textContent = waiting
    ? `${waiting} images are open in other windows; those left behind come back after three minutes.`
    : only ? "Choose another class above, or all of them."
    : `${counts.answered} of ${counts.total} are answered. The answers are a label file: merge it with yours and train again.`;
}

// ---- start -------------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest("input, select, textarea")) return;
  const question = questions()[page.current];
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const acts = {
    u: undo, a: () => open().length && answerRest(), h: look, ArrowDown: () => move(1), ArrowUp: () => move(-1),
    "+": () => photo.zoom(STEP), "=": () => photo.zoom(STEP), "-": () => photo.zoom(1 / STEP), 0: () => photo.reset(),
  };
  const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  if (event.shiftKey && key in ways) {
    photo.nudge(...ways[key]); // never an answer
  } else if (key in KEYS) {
    if (question) answer([question], KEYS[key]);
  } else if (key in acts) {
    acts[key]();
  } else {
    return;
  }
  event.preventDefault();
});

at("look").addEventListener("click", look);
at("rest").addEventListener("click", answerRest);
at("undo").addEventListener("click", undo);
at("end-undo").addEventListener("click", undo);
at("again").addEventListener("click", () => act(next));
at("only").addEventListener("change", () => { at("only").blur(); act(next); });
at("who").addEventListener("change", () => {
  localStorage.setItem("tertium-who", at("who").value.trim());
  act(next);
});
at("who").addEventListener("keydown", (event) => { if (event.key === "Enter") at("who").blur(); });

document.addEventListener("visibilitychange", watch);
addEventListener("beforeunload", (event) => { if (page.pending) event.preventDefault(); });

async function start() {
  if (location.search) history.replaceState(null, "", "/"); // the token is a cookie by now
  page.about = await (await fetch("/api/about")).json();
  document.title = `Review ${page.about.run}`;
  at("run").textContent = page.about.run;
  at("who").value = localStorage.getItem("tertium-who") || page.about.who;
  page.busy = false;
  await act(next);
}

start().catch((error) => say(error.message, true));
