// A figure with a script of its own: <figure class="book-figure" data-module="NAME"> holds a still
// and its data. `figures/NAME.mjs` exports render({data, el}); if that fails, the still stays.

import { dataOf, whenNear } from "./near.mjs";

whenNear(document.querySelectorAll("figure.book-figure[data-module]"), draw);

async function draw(el) {
  try {
    const { render } = await import(`./figures/${el.dataset.module}.mjs`);
    await render({ data: dataOf(el), el });
    el.dataset.drawn = "true";
  } catch (error) {
    console.error(`The figure ${el.dataset.module} stays a picture:`, error);
  }
}
