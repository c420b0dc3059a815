// What the answers come to so far.

import { at, make } from "/dom.js";

const SHOWN = 200; // differences, at most: the file has all
const WORDS = { 1: "present", [-1]: "absent", 0: "undecided" };

const number = (value, digits) => (value === null ? "–" : value.toFixed(digits));

function fill(table, of, shares) {
  const head = make("tr");
  for (const name of [of, "alpha", "shared", "differ", "answers", "present", "seconds"]) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const rows = shares.map(({ name, answers, present, shared, differ, alpha, seconds }) => {
    const row = make("tr");
    const title = make("th", "", name);
    title.scope = "row";
    const values = [number(alpha, 2), shared, differ, answers, present, number(seconds, 1)];
    row.append(title, ...values.map((value) => make("td", "", value)));
    return row;
  });
  const [top, body] = [make("thead"), make("tbody")];
  top.append(head);
  body.append(...rows);
  table.append(top, body);
}

function difference({ image, row, label, present, absent, decided }, version, hasImages) {
  const item = make("li", "difference");
  if (hasImages && row !== null) {
    const thumb = make("img");
    thumb.src = `/thumb/${row}?of=${encodeURIComponent(version)}`;
    thumb.alt = "";
    thumb.loading = "lazy";
    item.append(thumb);
  }
  const text = make("div");
  text.append(make("strong", "", label), make("span", "faint", ` in ${image}`));
  text.append(make("p", "", `present: ${present.join(", ")} · absent: ${absent.join(", ")}`));
  text.append(make("p", decided ? "faint" : "undecided", decided ? `most say ${WORDS[decided]}` : "undecided: left out"));
  item.append(text);
  return item;
}

function show(about, found) {
  document.title = `Results ${about.run}`;
  at("run").textContent = about.run;
  const each = found.wanted > 1 ? ` by ${found.wanted} people` : "";
  at("counts").textContent = `${found.answered} of ${found.total} questions are answered${each}.`;
  at("forecast").textContent = found.forecast ?? "What the next answers will bring is said after 20 answers, while questions are open.";
  at("pace").textContent = found.pace ?? "";
  at("agreement").textContent = found.agreement;
  fill(at("people"), "person", found.people);
  const order = (share) => (share.alpha === null ? Infinity : share.alpha);
  fill(at("classes"), "class", [...found.classes].sort((a, b) => order(a) - order(b)));
  at("differences").hidden = found.differing.length === 0;
  const shown = found.differing.slice(0, SHOWN);
  at("differing").append(...shown.map((one) => difference(one, found.version, about.images)));
  if (shown.length < found.differing.length) {
    at("differing").append(make("li", "faint", `… and ${found.differing.length - shown.length} more, in the file of contradictions`));
  }
}

async function start() {
  const [about, found] = await Promise.all(
    ["/api/about", "/api/results"].map(async (path) => (await fetch(path)).json()),
  );
  show(about, found);
  at("main").setAttribute("aria-busy", "false");
}

start().catch((error) => { at("status").textContent = error.message; at("status").classList.add("bad"); });
