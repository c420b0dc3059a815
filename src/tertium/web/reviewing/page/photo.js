// The photo: never the last one while the next is on its way, and nothing but what is asked about. It can be
// enlarged and moved by wheel, pinch, double click, drag, keys and buttons; the model's map moves with it.

const LARGEST = 8; // times its size in the page
export const STEP = 1.5; // of a key or a button
const CLOSER = 2.5; // of a double click
const NUDGE = 0.2; // of the width or height, by Shift and an arrow

export class Photo {
  constructor({ box, layers, image, note, level, closer, farther, whole }) {
    Object.assign(this, { box, layers, image, note, level });
    this.scale = 1;
    this.left = this.top = 0; // of the enlarged photo, in pixels of the box
    this.isShown = false; // the photo of the last call to show is on the screen, whole
    this.pointers = new Map();
    closer.addEventListener("click", () => this.zoom(STEP));
    farther.addEventListener("click", () => this.zoom(1 / STEP));
    whole.addEventListener("click", () => this.reset());
    box.addEventListener("wheel", (event) => this.turned(event), { passive: false });
    box.addEventListener("dblclick", (event) => this.doubled(event));
    box.addEventListener("pointerdown", (event) => this.pressed(event));
    box.addEventListener("pointermove", (event) => this.moved(event));
    for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, (event) => this.released(event));
    addEventListener("resize", () => this.place());
    this.place();
  }

  // ---- what is shown ---------------------------------------------------------------------------------------

  /** Show a photo; until it is there, nothing. Returns false if it cannot be shown. */
  async show(source, name) {
    if (this.isShown && this.source === source) return true; // the same photo again: it stays as it is seen
    this.clear("Loading the photo … Keys and buttons do nothing until it is there.");
    this.image.alt = `Image ${name}`;
    this.image.src = this.source = source;
    try {
      await this.image.decode();
    } catch {
      return false;
    }
    this.note.hidden = true;
    this.image.hidden = false;
    this.isShown = true;
    return true;
  }

  /** Show a sentence instead of a photo. */
  clear(text) {
    this.isShown = false;
    this.image.hidden = true;
    this.image.removeAttribute("src"); // a browser would keep the old pixels until the new ones are there
    this.note.textContent = text;
    this.note.hidden = false;
    this.reset();
  }

  // ---- how it is seen --------------------------------------------------------------------------------------

  /** Enlarge around a point of the box, by default its middle. */
  zoom(factor, x = this.box.clientWidth / 2, y = this.box.clientHeight / 2) {
    if (!this.isShown) return;
    const scale = Math.min(LARGEST, Math.max(1, this.scale * factor));
    const by = scale / this.scale;
    this.left = x - (x - this.left) * by; // what is at this point stays there
    this.top = y - (y - this.top) * by;
    this.scale = scale;
    this.place();
  }

  /** Move the photo by parts of the box. */
  nudge(right, down) {
    this.left -= right * NUDGE * this.box.clientWidth;
    this.top -= down * NUDGE * this.box.clientHeight;
    this.place();
  }

  reset() {
    this.scale = 1;
    this.left = this.top = 0;
    this.place();
  }

  /** Draw it where it is; its edges never come further in than those of the box. */
  place() {
    const inside = (at, size) => Math.min(0, Math.max(size * (1 - this.scale), at));
    this.left = inside(this.left, this.box.clientWidth);
    this.top = inside(this.top, this.box.clientHeight);
    this.layers.style.transform = `translate(${this.left}px, ${this.top}px) scale(${this.scale})`;
    this.box.classList.toggle("closer", this.scale > 1);
    this.level.textContent = `${Math.round(100 * this.scale)} %`;
  }

  // ---- wheel, mouse and fingers ----------------------------------------------------------------------------

  at(event) {
    const { left, top } = this.box.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  turned(event) {
    if (event.deltaY > 0 && this.scale === 1) return; // the page scrolls
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1; // some browsers count lines
    this.zoom(Math.exp(-0.002 * lines * Math.max(-200, Math.min(200, event.deltaY))), ...this.at(event));
  }

  doubled(event) {
    if (this.scale > 1) this.reset();
    else this.zoom(CLOSER, ...this.at(event));
  }

  pressed(event) {
    if (event.button > 0) return;
    this.pointers.set(event.pointerId, this.at(event));
    if (this.scale > 1 || this.pointers.size > 1) this.box.setPointerCapture(event.pointerId);
  }

  moved(event) {
    if (!this.pointers.has(event.pointerId)) return;
    const before = spread([...this.pointers.values()]);
    this.pointers.set(event.pointerId, this.at(event));
    const after = spread([...this.pointers.values()]);
    if (this.pointers.size === 1 && this.scale === 1) return;
    this.left += after.x - before.x;
    this.top += after.y - before.y;
    if (before.size && after.size) this.zoom(after.size / before.size, after.x, after.y);
    else this.place();
  }

  released(event) {
    this.pointers.delete(event.pointerId);
  }
}

/** The middle of one or two fingers, and how far they are apart. */
function spread(points) {
  const [[ax, ay], [bx, by]] = [points[0], points[1] ?? points[0]];
  return { x: (ax + bx) / 2, y: (ay + by) / 2, size: Math.hypot(ax - bx, ay - by) };
}
