/* exported Scorer, splitQuery */
// The weights of the site's search: Sphinx's, with other points for these pages. Decisions come after the pages for users.
const POINTS = [[/^decisions\//, -100], [/^changelog$/, -50], [/^(design|style)$/, -20], [/^(explanation|glossary|how-to)\b/, 3]];
let isMessage = false;
var Scorer = {
  score: ([page, , , , score]) => {
    if (page === "generated/error-messages") return score + (isMessage ? 5 : -10);
    return score + (POINTS.find(([pages]) => pages.test(page)) ?? [null, 0])[1];
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7,
  term: 5, partialTerm: 2,
};

// Three words or more are often a message. The values in it, such as 'my_model' and [1, 4], are on no page.
var splitQuery = (query) => {
  const words = (text) => text.split(/[^\p{Letter}\p{Number}_]+/gu).filter(Boolean);
  const found = words(query.replace(/'[^']*'|\[[^\]]*\]/g, " "));
  const used = found.length ? found : words(query);
  isMessage = used.length > 2;
  return used;
};
