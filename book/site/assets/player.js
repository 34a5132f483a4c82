// A recorded computation, frame by frame. Words and states stand still; each frame draws the
// weights that flow in it as lines. The reader drives: buttons, a slider, the arrow keys.
//
// data: width, height, start (frame), pause (milliseconds),
//   states: [x, y, born], words: [x, y, text, born], frames: {say, new: [state], lines: [[from, to, weight]]}

"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  function render({ data, el }) {
    const { frames } = data;
    const view = make("svg", { viewBox: `0 0 ${data.width} ${data.height}`, width: data.width, role: "img" });
    const said = make("p", { "aria-live": "polite" });
    const slider = make("input", { type: "range", min: 1, max: frames.length, "aria-label": "Step" });
    const [back, play, on] = ["Previous", "Play", "Next"].map((name) => make("button", { type: "button" }, name));
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let now = data.start, timer;

    function show(frame) {
      now = Math.max(0, Math.min(frames.length - 1, frame));
      if (now === frames.length - 1) stop();
      const words = `Step ${now + 1} of ${frames.length}. ${frames[now].say}`;
      view.setAttribute("aria-label", words);
      view.replaceChildren(...draw(data, now));
      said.textContent = words;
      slider.value = now + 1;
      slider.setAttribute("aria-valuetext", words);
      back.disabled = now === 0;
      on.disabled = now === frames.length - 1;
      keepFocus();
      follow();
    }

    // On a narrow screen the drawing scrolls to what is new; the page stays where it is
    function follow() {
      const right = Math.max(...frames[now].new.map((state) => data.states[state][0]));
      stage.scrollLeft = (right / data.width) * stage.scrollWidth - 0.8 * stage.clientWidth;
    }

    // A button that was pressed and is off now hands the focus on
    function keepFocus() {
      const focused = document.activeElement;
      if (focused?.disabled && controls.contains(focused)) controls.querySelector("button:enabled").focus();
    }

    function stop() {
      clearInterval(timer);
      timer = undefined;
      play.textContent = "Play";
    }

    function start() {
      if (now === frames.length - 1) show(0);
      timer = setInterval(() => show(now + 1), data.pause);
      play.textContent = "Pause";
    }

    function move(frame) {
      stop();
      show(frame);
    }

    back.onclick = () => move(now - 1);
    on.onclick = () => move(now + 1);
    play.onclick = () => (timer ? stop() : start());
    slider.oninput = () => move(slider.value - 1);

    const controls = make("div", { class: "player-controls", role: "group", "aria-label": "Steps of the computation" });
    controls.append(back, ...(calm ? [] : [play]), on, slider);
    const stage = make("div", { class: "player-stage", tabindex: 0, role: "group", "aria-label": "Drawing; arrow keys change the step" });
    stage.append(view);
    const player = make("div", { class: "player" });
    player.append(controls, said, stage);
    player.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: frames.length - 1 }[event.key];
      if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      move(to);
    });
    show(now);
    el.querySelector("svg").replaceWith(player);
    follow();
  }

  // What a frame shows: lines as dark as their weight, new states filled, old ones outlined.
  function draw({ states, words, frames }, now) {
    const { lines, new: fresh } = frames[now];
    return [
      ...lines.map(([from, to, weight]) => {
        const [[x1, y1], [x2, y2]] = [states[from], states[to]];
        return make("line", { x1, y1, x2, y2, stroke: "currentColor", "stroke-opacity": weight, "stroke-width": 1 + 3 * weight });
      }),
      ...states.map(([cx, cy, born], index) =>
        make("circle", { cx, cy, r: 6, class: fresh.includes(index) ? "new" : born <= now ? "old" : "later" }),
      ),
      ...words.filter((word) => word[3] <= now).map(([x, y, text]) => make("text", { x, y, "text-anchor": "middle" }, text)),
    ];
  }

  function make(name, attributes, text) {
    const inPicture = ["svg", "line", "circle", "text"].includes(name);
    const element = inPicture ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  bookFigures.player = { render };
})();
