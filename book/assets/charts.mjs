// A chart that reacts comes as a still SVG with its Vega-Lite specification beside it.
// When the reader comes near, the still is replaced by the live chart; if that fails, it stays.

let bundle; // loaded once, with the first chart

const charts = [...document.querySelectorAll("figure.book-chart")].filter((chart) => dataOf(chart));
whenNear(charts, draw);

async function draw(chart) {
  const still = chart.querySelector("svg");
  const live = document.createElement("div");
  try {
    bundle ??= import("./vega.mjs");
    const { vegaEmbed } = await bundle;
    const asked = []; // for data from elsewhere: Vega would go on with an empty chart
    await vegaEmbed(live, inTheFontOf(still, dataOf(chart)), {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      defaultStyle: false,
      loader: { load: (address) => Promise.reject(asked.push(address)) },
      tooltip: { disableDefaultStyle: true },
    });
    if (asked.length) throw new Error(`it asks for ${asked}`);
    takeOver(still, live.querySelector("svg"));
    still.replaceWith(live);
    chart.dataset.drawn = "true";
  } catch (error) {
    console.error("The chart stays a picture:", error);
  }
}

// The still says how it looks and what it shows; the live chart repeats it.
function inTheFontOf(still, spec) {
  const font = getComputedStyle(still).fontFamily;
  return { ...spec, config: { ...spec.config, font } };
}

function takeOver(still, svg) {
  for (const name of ["role", "aria-label", "style"]) {
    if (still.hasAttribute(name)) svg.setAttribute(name, still.getAttribute(name));
  }
}

// A figure may name a module of ours: its `render({ data, el })` puts the live figure in the place
// of the still one. If that fails, the still one stays.

whenNear([...document.querySelectorAll("figure.book-figure[data-module]")], enliven);

async function enliven(figure) {
  try {
    const { render } = await import(`./${figure.dataset.module}.mjs`);
    render({ data: dataOf(figure), el: figure });
    figure.dataset.drawn = "true";
  } catch (error) {
    console.error("The figure stays a picture:", error);
  }
}

// Act on an element when the reader comes near it.

function whenNear(elements, act) {
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        watch.unobserve(target);
        act(target);
      }
    },
    { rootMargin: "400px" },
  );
  for (const element of elements) watch.observe(element);
}

// Data lie beside the drawing, as JSON in a script element.
function dataOf(element) {
  const script = element.querySelector('script[type="application/json"]');
  return script ? JSON.parse(script.textContent) : null;
}
