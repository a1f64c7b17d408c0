// A trait that several widgets have in common, such as the time span of the pictures of a comparison. A view marks a
// value that it sets with `own`: the outputs of the same widget do not follow it, other widgets do.

/** @typedef {{ get(name: string): any, set(name: string, value: any): void }} Traits */

/** @param {Traits} changed @param {Iterable<Traits>} models @param {string} name of the trait */
function share(changed, models, name) {
  const value = { ...changed.get(name) };
  if (!value.own) return;
  delete value.own;
  for (const model of models) if (model !== changed && model.get(name) !== undefined) model.set(name, value);
}

export { share };
