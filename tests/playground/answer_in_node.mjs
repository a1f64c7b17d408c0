// Answers messages with the playground's archive in Pyodide: node answer_in_node.mjs RUNTIME ARCHIVE MESSAGES

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [runtime, archive, file] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(pathToFileURL(`${runtime}/pyodide.mjs`));
const env = { PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION: "python" };
const pyodide = await loadPyodide({ indexURL: `${runtime}/`, env, stdout: (text) => process.stderr.write(`${text}\n`) });
pyodide.unpackArchive(new Uint8Array(readFileSync(archive)), "zip", { extractDir: "/packages" });
const session = pyodide.runPython(
  'import sys; sys.path.insert(0, "/packages")\nfrom docs.playground.session import Session\nSession()',
);
const messages = JSON.parse(readFileSync(file, "utf8"));
process.stdout.write(JSON.stringify(messages.map((message) => session.answer(message))));
