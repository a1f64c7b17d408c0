// The weights of the site's search: Sphinx's, but decisions come after the pages for users.
var Scorer = {
  score: ([page, , , , score]) => (page.startsWith("decisions/") ? score - 100 : score),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7,
  term: 5, partialTerm: 2,
};
