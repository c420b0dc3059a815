// Elements of a page. All names come from files: they reach the page as text, never as HTML.

export const at = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
