// Prints the pages that the search of a built site finds, the best first: node search.mjs SITE < queries.json
import { readFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const page = { document: { getElementById: () => ({ lastChild: null }) }, SPHINX_HIGHLIGHT_ENABLED: false, _ready: () => {}, _: (text) => text };
page.window = page;
vm.createContext(page);
for (const file of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  vm.runInContext(readFileSync(join(process.argv[2], file), "utf8"), page);
vm.runInContext("var find = (query) => Search._performSearch(...Search._parseQuery(query)).reverse();", page);
const found = JSON.parse(readFileSync(0, "utf8")).map((query) => page.find(query).map((result) => result[0]));
console.log(JSON.stringify(found));
