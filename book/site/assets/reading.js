// What helps to read on any screen: whatever scrolls sideways can be reached with the keyboard, the
// code of figures and all solutions open at once, and a term or a citation says what it leads to.

"use strict";

(() => {
  const SCROLLS = "pre, .highlight, .katex-display, figure, .step, .player-stage, .output, .output > div, .math, .pst-scrollable-table-container";
  const NAMES = [
    ["pre, .highlight", "Code"],
    [".katex-display, .math", "Formula"],
    [".pst-scrollable-table-container", "Table"],
  ];

  /** Let the keyboard reach what scrolls, and only that; a screen reader says what it is. */
  function reach() {
    for (const element of document.querySelectorAll(`article :is(${SCROLLS})`)) {
      const scrolls = element.scrollWidth > element.clientWidth && /auto|scroll/.test(getComputedStyle(element).overflowX);
      const apart = element.querySelector("a, button, input, summary") || element.closest("[aria-hidden=true]");
      if (scrolls && !apart && !element.hasAttribute("tabindex")) {
        element.tabIndex = 0;
        element.dataset.reached = "";
        if (!element.hasAttribute("role") && !element.matches("figure")) {
          element.setAttribute("role", "group");
          const [, name] = NAMES.find(([kind]) => element.matches(kind)) ?? ["", "Figure"];
          element.setAttribute("aria-label", `${name}, scrolls sideways`);
        }
      } else if (!scrolls && "reached" in element.dataset) {
        for (const name of ["tabindex", "data-reached"]) element.removeAttribute(name);
        if (element.getAttribute("aria-label")?.endsWith("scrolls sideways")) {
          for (const name of ["role", "aria-label"]) element.removeAttribute(name);
        }
      }
    }
  }

  /** A switch under a chapter's title: show the code of figures, checks and imports, or leave it out. */
  function addCodeSwitch() {
    const folds = document.querySelectorAll("article .cell:is(.tag_hide-input, .imports) > details.hide");
    const head = document.querySelector("article .chapter-head");
    if (!head || !folds.length) return;
    const label = document.createElement("label");
    label.className = "code-switch";
    label.innerHTML = '<input type="checkbox"> code of figures and checks';
    const box = label.firstChild;
    const set = (on) => {
      document.documentElement.dataset.code = on ? "all" : "lesson";
      for (const fold of folds) fold.open = on;
    };
    box.checked = localStorage.getItem("code") === "all";
    box.addEventListener("change", () => {
      localStorage.setItem("code", box.checked ? "all" : "lesson");
      set(box.checked);
    });
    head.append(label);
    set(box.checked);
  }

  /** A button before the first exercise: open all solutions, or close them. */
  function addOpenAll() {
    const folds = [...document.querySelectorAll("article details.hide")].filter(
      (fold) => !fold.closest(".cell:is(.tag_hide-input, .imports)"),
    );
    if (folds.length < 2) return;
    const button = document.createElement("button");
    button.className = "open-all";
    button.type = "button";
    const isOpen = () => folds.every((fold) => fold.open);
    const say = () => (button.textContent = isOpen() ? "close all solutions" : "open all solutions");
    button.addEventListener("click", () => {
      const open = !isOpen();
      for (const fold of folds) fold.open = open;
    });
    for (const fold of folds) fold.addEventListener("toggle", say);
    folds.at(-1).closest("section").querySelector("h2").after(button);
    say();
  }

  /** Show what a term or a citation leads to, to the pointer and to the keyboard alike. */
  function addAbouts() {
    const links = document.querySelectorAll("article :is(a.term, a[href*='bibliography.html#'])[title]");
    if (!links.length) return;
    const box = document.createElement("div");
    Object.assign(box, { id: "about", className: "about", role: "tooltip", hidden: true });
    document.body.append(box);
    let closing;
    const close = (delay = 0) => {
      clearTimeout(closing);
      closing = setTimeout(() => (box.hidden = true), delay);
    };
    const open = (link) => {
      clearTimeout(closing);
      box.textContent = link.dataset.about;
      box.hidden = false;
      const place = link.getBoundingClientRect();
      const left = Math.min(place.left, document.documentElement.clientWidth - box.offsetWidth - 8);
      const above = place.bottom + box.offsetHeight + 8 > innerHeight;
      box.style.left = `${Math.max(8, left) + scrollX}px`;
      box.style.top = `${(above ? place.top - box.offsetHeight - 4 : place.bottom + 4) + scrollY}px`;
    };
    for (const link of links) {
      link.dataset.about = link.title.replace(/ URL: \S+$/, "");
      link.removeAttribute("title");
      link.setAttribute("aria-describedby", box.id);
      for (const event of ["pointerenter", "focus"]) link.addEventListener(event, () => open(link));
      for (const event of ["pointerleave", "blur"]) link.addEventListener(event, () => close(200));
    }
    box.addEventListener("pointerenter", () => clearTimeout(closing));
    box.addEventListener("pointerleave", () => close());
    addEventListener("keydown", (event) => event.key === "Escape" && close());
  }

  /** Fold the contents on the right while a note stands there. */
  function makeRoomForNotes() {
    const contents = document.querySelector(".bd-sidebar-secondary");
    if (!contents) return;
    const seen = new Set();
    const watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target);
      contents.classList.toggle("hide", seen.size > 0);
    });
    for (const note of document.querySelectorAll(".note-beside")) watch.observe(note);
  }

  addCodeSwitch();
  addOpenAll();
  addAbouts();
  makeRoomForNotes();
  reach();
  addEventListener("load", reach);
  let waiting;
  const later = () => {
    clearTimeout(waiting);
    waiting = setTimeout(reach, 150);
  };
  new ResizeObserver(later).observe(document.body);
  document.addEventListener("toggle", later, true); // what is unfolded may scroll
  document.addEventListener("change", later); // so may the next step of a figure
})();
