// Runs a Python program with the playground's archive in Pyodide: node simulator_in_node.mjs RUNTIME ARCHIVE PROGRAM

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [runtime, archive, program] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(pathToFileURL(`${runtime}/pyodide.mjs`));
const env = { PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION: "python" };
const pyodide = await loadPyodide({ indexURL: `${runtime}/`, env });
pyodide.unpackArchive(new Uint8Array(readFileSync(archive)), "zip", { extractDir: "/packages" });
pyodide.runPython('import sys; sys.path.insert(0, "/packages")');
pyodide.runPython(readFileSync(program, "utf8"));
