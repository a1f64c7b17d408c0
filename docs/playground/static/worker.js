// The simulator in a thread of the browser: CPython in WebAssembly, and the modules of the package from one archive.

const SITE = new URL("../../", import.meta.url); // the directory of the page
const PACKAGES = "/packages";
const FILES = "/files";
const ENVIRONMENT = { PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION: "python" };

async function load() {
  const begin = performance.now();
  const { loadPyodide } = await import(new URL("pyodide/pyodide.mjs", SITE).href).catch(() => {
    throw new Error("this copy of the site has no runtime (make site adds it), or the network failed");
  });
  const [pyodide, archive] = await Promise.all([
    loadPyodide({ indexURL: new URL("pyodide/", SITE).href, env: ENVIRONMENT }),
    fetch(new URL("tritonnb.zip", SITE)).then((response) => response.arrayBuffer()),
  ]);
  pyodide.unpackArchive(archive, "zip", { extractDir: PACKAGES });
  pyodide.FS.mkdirTree(FILES);
  const session = pyodide.runPython(
    `import sys; sys.path.insert(0, "${PACKAGES}")\nfrom docs.playground.session import Session\nSession()`,
  );
  return { pyodide, session, ms: performance.now() - begin };
}

// Dropped files become files of Pyodide's file system, which is in the memory of this thread.
/** @param {any} pyodide @param {File[]} files */
async function writeFiles(pyodide, files) {
  for (const name of pyodide.FS.readdir(FILES)) {
    if (!name.startsWith(".")) pyodide.FS.unlink(`${FILES}/${name}`);
  }
  return Promise.all(files.map(async (file) => {
    const path = `${FILES}/${file.name.replaceAll("/", "_")}`;
    pyodide.FS.writeFile(path, new Uint8Array(await file.arrayBuffer()));
    return path;
  }));
}

function serve() {
  const loading = load();
  loading.then(({ ms }) => postMessage({ loaded: ms }), ({ message }) => postMessage({ failed: message }));
  globalThis.onmessage = async ({ data: { id, message, files } }) => {
    try {
      const { pyodide, session } = await loading;
      const asked = files ? { ...message, paths: await writeFiles(pyodide, files) } : message;
      postMessage({ id, answer: session.answer(JSON.stringify(asked)) });
    } catch (error) {
      postMessage({ id, answer: JSON.stringify({ error: error.message }) });
    }
  };
}

if ("WorkerGlobalScope" in globalThis) serve();

export { serve };
