// Act on an element when the reader comes near it.

export function whenNear(elements, act) {
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
export function dataOf(element) {
  const script = element.querySelector('script[type="application/json"]');
  return script ? JSON.parse(script.textContent) : null;
}
