// The recommended rules of ESLint, for browsers and for Node.js. tsc (tsconfig.json) checks types.
import js from "@eslint/js";
import globals from "globals";

const NODE = ["**/*.mjs", "**/*.cjs"];

export default [
  { ...js.configs.recommended, linterOptions: { reportUnusedDisableDirectives: "error" } },
  { rules: { "no-unused-vars": ["error", { argsIgnorePattern: "^_", ignoreRestSiblings: true }] } },
  { files: ["**/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["docs/playground/static/worker.js"], languageOptions: { globals: globals.worker } },
  { files: ["docs/search_scorer.js"], languageOptions: { sourceType: "script" } }, // part of a script of Sphinx
  { files: NODE, languageOptions: { globals: globals.node } },
];
